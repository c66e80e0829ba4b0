"""Measure how long the run folder of a week takes to open, and its memory.

``python benchmarks/long_run.py [--quick]``: a capture of a Keras transformer, repeated every 80 seconds for a week as a
capture lays it out: 3.6 million steps, 60,480 windows whose raw files are empty but 500 kB long, 30 GB in all. With
`--quick` a day. Each measurement is made in a separate process, after ``import tpunb`` and the load of the sample. The
last line is one JSON object:

``open_s``, ``open_cpu_s``
    Wall and processor time of ``tp.load`` and ``tp.steps``.
``peak_mb``, ``kept_mb``
    Peak additional memory, and that two seconds later. Operations are read when they are asked for.
``growth``
    Processor time for each step, divided by that in a seventh of the run: 1 if it grows with its length.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # if this file is not run by its name

import polars as pl
from peak_memory import reset_peak, status

import tpunb as tp
from tpunb.io import parquet
from tpunb.io.run_folder import RUN, TABLES, raw_name

SAMPLE = Path(__file__).parents[1] / "datasets" / "sample_profiles" / "keras_transformer"
SPAN_S, WINDOWS = 80, 8  # of the sample
TOGETHER = 256 // WINDOWS  # repeats in a part: 16 parts of 16 windows
RAW = 500_000  # bytes of a window
WEEK, DAY = 7 * 86_400, 86_400


def made(folder: Path, seconds: int) -> Path:
    """Write a run of this length."""
    tables = {file.stem: parquet.read([file], TABLES[file.stem]) for file in SAMPLE.glob("parts/*/*.parquet")}
    steps, parts = int(tables["ticks"]["step"].max()) + 1, round(seconds / SPAN_S / TOGETHER)  # type: ignore[arg-type]
    for part in range(parts):
        first = part * TOGETHER * WINDOWS
        where = folder / "parts" / f"{first:05d}-{first + TOGETHER * WINDOWS - 1:05d}"
        where.mkdir(parents=True)
        for name, table in tables.items():
            by = {"start_ps": SPAN_S * 10**12, "end_ps": SPAN_S * 10**12, "step": steps, "window": WINDOWS}
            moved = [
                table.with_columns(pl.col(column) + number * step for column, step in by.items() if column in table)
                for number in range(part * TOGETHER, (part + 1) * TOGETHER)
            ]
            (where / f"{name}.parquet").write_bytes(parquet.pack(pl.concat(moved), TABLES[name]))
        for window in range(first, first + TOGETHER * WINDOWS):
            file = folder / raw_name(window, "vm", "xplane.pb")
            file.parent.mkdir(parents=True)
            with file.open("wb") as raw:
                raw.truncate(RAW)
    facts = json.loads((SAMPLE / RUN).read_text())
    (folder / RUN).write_text(json.dumps(facts | {"span_ps": parts * TOGETHER * SPAN_S * 10**12}))
    return folder


def opened(folder: str) -> list[float]:
    """Return wall and processor seconds of opening a run, the peak of memory, what is kept, and the steps."""
    tp.steps(tp.load(SAMPLE))
    before = reset_peak()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    steps = tp.steps(tp.load(folder))
    took = time.perf_counter() - begin, time.process_time() - begin_cpu
    time.sleep(2)
    pl.DataFrame({"a": [2, 1]}).sort("a")  # an allocation lets the allocator return what is free
    return [*took, status("VmHWM") - before, status("VmRSS") - before, len(steps)]


def measured(folder: Path) -> list[float]:
    """Return what `opened` does, in a process of its own."""
    command = [sys.executable, __file__, "--opened", str(folder)]
    out = subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, "TPUNB_CACHE": "off"}
    )
    answer: list[float] = json.loads(out.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Print the measurements, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a day in place of a week, in under a minute")
    parser.add_argument("--opened", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.opened:
        print(json.dumps(opened(options.opened)))
        return
    seconds = DAY if options.quick else WEEK
    with tempfile.TemporaryDirectory() as name:
        part = measured(made(Path(name, "part"), seconds // 7))
        whole = measured(made(Path(name, "whole"), seconds))
    for what, (wall, cpu, peak, kept, steps) in (("a seventh", part), ("the whole", whole)):
        sizes = f"{peak / 1e6:.0f} MB at its peak, {kept / 1e6:.0f} MB kept"
        print(f"{what}: {steps:,.0f} steps in {wall:.2f} s, {cpu:.2f} s of processor; {sizes}")
    figures = {"open_s": whole[0], "open_cpu_s": whole[1], "peak_mb": whole[2] / 1e6, "kept_mb": whole[3] / 1e6}
    growth = whole[1] / whole[4] / (part[1] / part[4])
    print(json.dumps({key: round(value, 2) for key, value in {**figures, "growth": growth}.items()}))


if __name__ == "__main__":
    main()
