"""Check what PyTorch's kernels are said to do, and measure how fast that is found.

``TPUNB_DATA=... python benchmarks/torch_ops.py [--quick] [--tracelens PYTHON]``. ``--quick`` takes one run of each side
in place of five. The last line is one JSON object:

- ``flops_live``: worst relative error of FLOPs by shapes to PyTorch's FlopCounterMode over live programs, counted on
  the outermost and on the innermost operators
- ``flops_tables``: worst relative error of FLOPs and bytes to the published tables of three models on two GPUs
- ``linked``: least share of device time with an operator over the published traces, of kernels launched within them
- ``linked_of_all``: the same, of all kernels: some were launched before their trace began
- ``faults``: share of the published traces of single faults whose fault the first sentence of ``tp.advise`` names
- ``vs_tracelens``: seconds of TraceLens' report on the largest of these traces, by those of rooflines by module, layer,
  operator and kernel and of the advice; null unless ``--tracelens`` names a Python in which TraceLens is installed
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "KINETO_LOG_LEVEL": "100", "TPUNB_CACHE": "off"}

import polars as pl
import torch_programs

import tpunb as tp
from tpunb.io.torch_cost import Call, cost

FIELDS = ("Input Dims_first", "Input type_first", "Input Strides_first", "Concrete Inputs_first")
REPORT = """
import sys, time
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
begin = time.perf_counter()
generate_perf_report_pytorch(sys.argv[1], output_csvs_dir=sys.argv[2])
print("seconds", time.perf_counter() - begin)
"""


def live() -> float:
    """Return the worst relative error to FlopCounterMode."""
    worst = 0.0
    for program in torch_programs.programs().values():
        expected = torch_programs.counted(program)
        worst = max(
            worst, *(abs(found / expected - 1) for found in torch_programs.by_shapes(torch_programs.recorded(program)))
        )
    return worst


def tables(folder: Path) -> float:
    """Return the worst relative error to the published tables."""
    worst = 0.0
    for path in sorted(folder.glob("*/*/*.csv")):
        if path.stem not in ("GEMM", "CONV_fwd", "SDPA_fwd"):
            continue
        for row in csv.DictReader(path.open()):
            found = cost(Call(row["name"], *(ast.literal_eval(row[field]) for field in FIELDS)))
            flops, size = float(row["GFLOPS_first"]) * 1e9, float(row["Data Moved (MB)_first"]) * 2**20
            worst = max(worst, abs(found.flops / flops - 1), abs(found.bytes / size - 1))
    return worst


def linked(path: Path) -> tuple[float, float]:
    """Return the share of device time with an operator, of kernels launched within the trace and of all."""
    profile = tp.load(path)
    calls = profile.calls.with_columns(pl.col("host", "device").cast(pl.Categorical))
    key = ["host", "device", "start_ps"]
    events = profile.events.filter(pl.col("line").cast(pl.String).str.starts_with("Stream #"))
    of_host = profile.events.filter(~pl.col("plane").cast(pl.String).str.starts_with("/device:"))
    launched = of_host["correlation_id"].drop_nulls().unique()
    events = events.rename({"plane": "device"}).with_columns(
        within=pl.col("correlation_id").is_in(launched.implode()) | pl.col("correlation_id").is_null()
    )
    with_call = events.join(calls.filter(pl.col("operator").is_not_null()).select(key).unique(), on=key, how="semi")
    time_of_all, known = events["dur_ps"].sum(), with_call["dur_ps"].sum()
    within = events.filter("within")["dur_ps"].sum()
    return with_call.filter("within")["dur_ps"].sum() / within, known / time_of_all


def names_its_fault(path: Path) -> bool:
    """Return whether the first sentence of advice names the fault of a trace."""
    profile = tp.load(path)
    if set(profile.hardware["kind"]) <= {"GPU"}:
        profile = tp.load(path, device="MI300X")
    sentences = tp.advise(profile)["sentence"].to_list()
    print(path.name, "-", sentences[0] if sentences else "no advice")
    return bool(sentences) and torch_programs.FAULTS[path.name.partition(".")[0]] in sentences[0]


def report(path: Path) -> float:
    """Return the seconds of the whole report on a trace."""
    begin = time.perf_counter()
    steps = tp.steps(tp.load(path))
    phases = tp.phases(steps)
    for by in ("module", "layer", "op", "kernel"):
        tp.roofline(steps, by)
    tp.advise(phases)
    return time.perf_counter() - begin


def tracelens(python: str, path: Path) -> float:
    """Return the seconds of TraceLens' report on a trace, without its imports."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([python, "-c", REPORT, str(path), folder], capture_output=True, text=True, check=True)
    return float(run.stdout.rpartition("seconds ")[2].split()[0])


def main() -> None:
    """Run all parts and print the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one run of each side")
    parser.add_argument("--tracelens", metavar="PYTHON", help="Python in which TraceLens is installed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(os.environ["TPUNB_DATA"]) / "answers" / "tracelens"
    traces = [*sorted(folder.glob("h100/*.gz")), *sorted(folder.glob("mi300/*.gz"))]
    shares = {path.name: linked(path) for path in traces}
    largest = max(traces, key=lambda path: path.stat().st_size)
    report(traces[0])  # compiles
    runs, ratio = range(1 if options.quick else 5), None
    if options.tracelens:
        ratio = median(tracelens(options.tracelens, largest) / report(largest) for _ in runs)
    faults = [names_its_fault(path) for path in sorted((folder / "faults").glob("*.gz"))]
    result = {
        "flops_live": live(),
        "flops_tables": round(tables(folder), 5),
        "linked": round(min(share for share, _ in shares.values()), 4),
        "linked_of_all": round(min(share for _, share in shares.values()), 4),
        "faults": round(sum(faults) / len(faults), 3),
        "vs_tracelens": None if ratio is None else round(ratio, 1),
        "report_s": round(median(report(largest) for _ in runs), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
