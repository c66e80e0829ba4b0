"""Compare the accounts of wasteful programs with the time that these measure where they waste it.

``python benchmarks/goodput.py [--quick] [--programs keras,keras_jax,function,jax] [--repeats N]``: each program in a
process of its own with the default schedule: twice without the injected waste, where the first warms up, and once
with it. What the program itself spends in an account is the least of the first two. Other programs on the machine
add to every account; their load is printed. ``--quick`` runs one Keras and one JAX program, on two idle
processors in under 50 seconds. The last line is one JSON object, the worst over the programs:

``worst_account``
    Largest |measured - injected| / max(injected, 0.6 s) of an account, or of a callback and hook.
``other``
    Share of wall time in "other".
``sum_error_ps``
    Difference between the sum of a host's accounts and its wall time, in picoseconds.
``places``
    Share of the injected stalls that ``goodput.stalls`` holds with the right file, line and function.
``ticker_us``
    Microseconds a step that the clock takes in Keras' hooks, less the annotation, which only a window needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import polars as pl

import tpunb as tp
from programs import wasteful
from programs.wasteful import PROGRAMS, Waste
from tpunb.analysis.goodput import busy

ALLOWED_S, ALLOWED_SHARE, LEAST_S = 0.03, 0.05, 0.6
QUICK = "jax,keras"
_PLACE = re.compile(r"(.+):(\d+) in (\w+)")


def captured(name: str, folder: Path, *, on: bool) -> tuple[tp.analysis.Goodput, Waste, float]:
    """Return the goodput of a captured program, what it injected, and the share of stalls that sampling takes."""
    folder.mkdir(parents=True)
    waste = Waste(on=on)
    with tp.capture(folder / "run", keep="none") as run:
        waste.run = run
        PROGRAMS[name](run, waste, folder)
        sampling_s = sampler_seconds()
    goodput = tp.goodput(tp.load(run))
    stalled_s = goodput.stalls["time_ps"].sum() / 1e12
    return goodput, waste, sampling_s / max(stalled_s, 1e-9)


def sampler_seconds() -> float:
    """Return the processor time of the thread that samples stalls, where the system tells."""
    for thread in threading.enumerate():
        file = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if thread.name == "tpunb-stalls" and file.exists():
            return int(file.read_text().split()[0]) / 1e9
    return 0.0


def measured(goodput: tp.analysis.Goodput, account: str, detail: str | None) -> float:
    """Return the seconds of an account, or of one detail of it."""
    rows = goodput.frame.filter(account=account)
    rows = rows if detail is None else rows.filter(pl.col("detail") == detail)
    return float(rows["time_ps"].sum()) / 1e12


def compared(plain: list[tuple[tp.analysis.Goodput, Waste]], wasted: tuple[tp.analysis.Goodput, Waste]) -> pl.DataFrame:
    """Return injected and measured seconds of each account and hook, less what the program itself spends."""
    rows = []
    for key, seconds in wasted[1].seconds().items():
        itself = min(measured(goodput, *key) - waste.seconds()[key] for goodput, waste in plain)
        rows.append((*key, itself, seconds, measured(wasted[0], *key) - itself))
    names = ["account", "detail", "itself_s", "injected_s", "measured_s"]
    error = pl.col("measured_s") - pl.col("injected_s")
    frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None).sort("account", "detail")
    return frame.with_columns(error_s=error, error=error.abs() / pl.col("injected_s").clip(LEAST_S))


def places(goodput: tp.analysis.Goodput, waste: Waste) -> tuple[int, int, list[str]]:
    """Return how many of the injected stalls have their place in the profile, how many there are, and the others."""
    seen: Counter[tuple[str, int]] = Counter()
    for place, count in goodput.stalls.drop_nulls("place").select("place", "count").rows():
        file, line, function = _PLACE.match(place).groups() if _PLACE.match(place) else ("", "0", "")
        if file == Path(wasteful.__file__).name:
            seen[function, int(line)] += count
    right, lost = 0, []
    stalls = [each for each in waste.injected if each.stalls]
    for each in stalls:
        lines = range(each.lines[0], each.lines[1] + 1)
        key = next((key for key in seen if seen[key] and key[0] == each.function and key[1] in lines), None)
        if key is None:
            lost.append(f"{each.function}:{each.lines[0]} {each.seconds:.2f} s")
        else:
            seen[key] -= 1
            right += 1
    return right, len(stalls), lost


def measure(name: str) -> dict[str, Any]:
    """Run one program in this process, print its accounts, and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        plain = [captured(name, Path(folder) / str(number), on=False) for number in range(2)]
        goodput, waste, sampling = captured(name, Path(folder) / "wasted", on=True)
    rows = compared([each[:2] for each in plain], (goodput, waste))
    right, stalls, lost = places(goodput, waste)
    sums = goodput.frame.group_by("host").agg(pl.col("time_ps").sum())["time_ps"]
    other = goodput.time_ps("other") / goodput.wall_ps
    print(f"{name}: {goodput.sentence}; {busy(goodput) or 'the machine was idle'}")
    for row in rows.iter_rows(named=True):
        off = "" if abs(row["error_s"]) <= max(ALLOWED_S, ALLOWED_SHARE * row["injected_s"]) else "  <- off"
        title = row["account"] + (f", {row['detail']}" if row["detail"] else "")
        figures = "injected {injected_s:6.3f} s, measured {measured_s:6.3f} s, the program itself {itself_s:6.3f} s"
        print(f"  {title:46} {figures.format(**row)}{off}")
    print(
        f"  {right} of {stalls} places; sampling takes {100 * sampling:.2f} % of stalls"
        + f"; lost: {lost}" * bool(lost)
    )
    worst = rows.sort("error", descending=True).row(0, named=True)
    print(
        f"  worst: {worst['account']}, {worst['detail'] or 'in all'}: {worst['error']:.3f}; other {100 * other:.2f} %"
    )
    return {
        "worst_account": worst["error"],
        "other": other,
        "sum_error_ps": int((sums - goodput.wall_ps).abs().max() or 0),  # type: ignore[arg-type]  # of ints
        "right": right,
        "stalls": stalls,
    }


def ticker_us() -> float:
    """Return the microseconds per step of the clock in Keras' hooks while no window traces."""
    import overhead

    with tempfile.TemporaryDirectory() as folder:
        by_hand, _, hooks, annotated = overhead.tickers(Path(folder))
    print(f"the clock takes {by_hand:.1f} us a step, {hooks:.1f} by Keras' hooks; the annotation {annotated:.1f}")
    return hooks - annotated


def isolated(name: str) -> dict[str, Any]:
    """Run one program in a fresh process."""
    backend = {"KERAS_BACKEND": "jax" if name == "keras_jax" else "tensorflow"}
    command = [sys.executable, __file__, "--program", name]
    done = subprocess.run(command, env={**os.environ, **backend}, stdout=subprocess.PIPE, text=True, check=True)
    *shown, last = done.stdout.splitlines()
    print("\n".join(shown), flush=True)
    return dict(json.loads(last))


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one Keras and one JAX program")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--repeats", type=int, default=1, help="how often each program runs")
    parser.add_argument("--program", choices=["ticker", *PROGRAMS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if options.program:
        figures = {"ticker_us": ticker_us()} if options.program == "ticker" else measure(options.program)
        print(json.dumps(figures))
        return
    names = (QUICK if options.quick else options.programs).split(",")
    done = [isolated(name) for _ in range(options.repeats) for name in names]
    if options.quick:
        print(f"quick: left out: {', '.join(sorted({*PROGRAMS} - {*names}))}")
    last = {
        "worst_account": round(max(each["worst_account"] for each in done), 3),
        "other": round(max(each["other"] for each in done), 4),
        "sum_error_ps": max(each["sum_error_ps"] for each in done),
        "places": round(sum(each["right"] for each in done) / max(1, sum(each["stalls"] for each in done)), 3),
        "ticker_us": round(isolated("ticker")["ticker_us"], 1),
    }
    print(json.dumps(last))


if __name__ == "__main__":
    main()
