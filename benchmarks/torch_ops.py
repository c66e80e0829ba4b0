"""Check what PyTorch's kernels are said to do, and measure how fast that is found.

``TPUNB_DATA=... python benchmarks/torch_ops.py [--quick] [--tracelens PYTHON]``. The last line is one JSON object:

- ``flops_live``: worst relative error of FLOPs by shapes to PyTorch's FlopCounterMode over live programs, counted on
  the outermost and on the innermost operators
- ``flops_tables``: worst relative error of FLOPs and bytes to the published tables of three models on two GPUs
- ``linked``: least share of device time with an operator over the published traces, of kernels launched within them
- ``linked_of_all``: the same, of all kernels: some were launched before their trace began
- ``faults``: share of the published traces of single faults whose fault the first sentence of ``tp.advise`` names
- ``vs_tracelens``: processor seconds of TraceLens' report on the largest of these traces, by those of rooflines by
  module, layer, operator and kernel and of the advice, the least of three runs after a first one on each side; null
  unless ``--tracelens`` names a Python in which TraceLens is installed
- ``vs_tracelens_wall``: the same by wall time
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

os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "KINETO_LOG_LEVEL": "100", "TPUNB_CACHE": "off"}

import polars as pl
import torch_programs

import tpunb as tp
from tpunb.costs.torch_cost import Call, cost

FIELDS = ("Input Dims_first", "Input type_first", "Input Strides_first", "Concrete Inputs_first")
REPORT = """
import sys, time
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
for _ in range(4):
    begin, busy = time.perf_counter(), time.process_time()
    generate_perf_report_pytorch(sys.argv[1], output_csvs_dir=sys.argv[2])
    print("seconds", time.process_time() - busy, time.perf_counter() - begin)
"""
RUNS = 3


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


def report(path: Path) -> tuple[float, float]:
    """Return the processor and wall seconds of the whole report on a trace."""
    begin, busy = time.perf_counter(), time.process_time()
    steps = tp.steps(tp.load(path))
    phases = tp.phases(steps)
    for by in ("module", "layer", "op", "kernel"):
        tp.roofline(steps, by)
    tp.advise(phases)
    return time.process_time() - busy, time.perf_counter() - begin


def least(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the least processor and wall seconds of several runs."""
    return min(busy for busy, _ in times), min(wall for _, wall in times)


def tracelens(python: str, path: Path) -> list[tuple[float, float]]:
    """Return the processor and wall seconds of TraceLens' reports on a trace, without its imports and first run."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([python, "-c", REPORT, str(path), folder], capture_output=True, text=True, check=True)
    lines = [line.split() for line in run.stdout.splitlines() if line.startswith("seconds ")]
    return [(float(busy), float(wall)) for _, busy, wall in lines[1:]]


def main() -> None:
    """Run all parts and print the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the same: all parts take seconds")
    parser.add_argument("--tracelens", metavar="PYTHON", help="Python in which TraceLens is installed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(os.environ["TPUNB_DATA"]) / "answers" / "tracelens"
    traces = [*sorted(folder.glob("h100/*.gz")), *sorted(folder.glob("mi300/*.gz"))]
    shares = {path.name: linked(path) for path in traces}
    largest = max(traces, key=lambda path: path.stat().st_size)
    report(traces[0])  # compiles
    ours, ratios = least([report(largest) for _ in range(RUNS)]), (None, None)
    if options.tracelens:
        theirs = least(tracelens(options.tracelens, largest))
        ours = least([ours, *(report(largest) for _ in range(RUNS))])
        ratios = tuple(round(other / own, 1) for other, own in zip(theirs, ours, strict=True))
    faults = [names_its_fault(path) for path in sorted((folder / "faults").glob("*.gz"))]
    result = {
        "flops_live": live(),
        "flops_tables": round(tables(folder), 5),
        "linked": round(min(share for share, _ in shares.values()), 4),
        "linked_of_all": round(min(share for _, share in shares.values()), 4),
        "faults": round(sum(faults) / len(faults), 3),
        "vs_tracelens": ratios[0],
        "vs_tracelens_wall": ratios[1],
        "report_s": round(ours[0], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
