"""Run the same programs several times, and compare their phases.

``python benchmarks/repeatability.py [--quick] [--programs keras_convnet,gan] [--runs N] [--seconds S] [--keep DIR]``:
the programs of ``programs/repeatable.py``, eight runs each, each in a process of its own with the default schedule;
every other run beside processes that keep all cores busy. Runs of one program are compared in pairs. For one program a
variant with one more layer is compared with it as well. ``--quick`` runs one program four times in under two minutes.
The last line
is one JSON object:

``same``
    Share of the runs with as many phases of each kind as most runs of their program.
``right``
    Share of the runs with as many phases of each kind as their program has.
``false_changes``
    Share of the pairs of runs of one program for which ``tp.compare`` names an operation as gained or lost, or leaves
    a phase without a counterpart. Step times do differ beside other programs, so their ratio is not a change.
``longest_window_s``
    Seconds of the longest window.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import combinations, product
from pathlib import Path
from typing import Any

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import polars as pl

import tpunb as tp
from programs.repeatable import PROGRAMS, VARIANTS

QUICK = "keras_convnet"


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with another process."""
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spin in spins:
            spin.kill()
            spin.wait()


def captured(name: str, seconds: float, folder: Path) -> None:
    """Capture one program in this process."""
    program = {**PROGRAMS, **dict(variant[:2] for variant in VARIANTS.values())}[name]
    folder.mkdir(parents=True)
    with tp.capture(folder / "run", keep="none") as run:
        program.train(run, seconds, folder)


def kinds(phases: tp.Phases | None) -> dict[str, int]:
    """Return the number of phases of each kind, that of most of their steps; outliers are no phase."""
    if phases is None:
        return {}
    rows = phases.frame.filter(pl.col("phase") >= 0)
    return dict(sorted(Counter(str(kinds).partition(",")[0] for kinds in rows["kinds"]).items()))


def changes(a: tp.Phases, b: tp.Phases, *, other_model: bool = False) -> list[str]:
    """Return the operations gained or lost from run a to run b, and the phases without a counterpart."""
    try:
        compared = tp.compare(a, b, allow_different_models=other_model)
    except tp.TpunbError as error:
        return [f"refused: {error}"]
    ops = compared.ops.filter(pl.col("state").is_in(["gained", "lost"])).select("state", "op").unique()
    named = [f"{state} {op}" for state, op in ops.rows()]
    return sorted(named) + [f"only one has {kinds} phase" for kinds in compared.unmatched["kinds"]]


def repeated(name: str, runs: int, seconds: float, folder: Path) -> list[tuple[tp.Phases | None, float]]:
    """Return the phases and the longest window of several runs, every other one beside busy cores.

    A run without a traced step has no phases: None.
    """
    backend = PROGRAMS[name].backend if name in PROGRAMS else "tensorflow"
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = []
    for number in range(runs):
        path = folder / f"{name}-{number}"
        command = [sys.executable, __file__, "--program", name, "--seconds", str(seconds), "--to", str(path)]
        began_s = time.monotonic()
        with busy_cores() if number % 2 else nullcontext():
            ended = subprocess.run(command, env=env, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"{name} failed: {ended.stderr}")
        profile = tp.load(path / "run")
        longest_s = float(profile.windows["dur_ps"].max() or 0) / 1e12  # type: ignore[arg-type]  # of ints
        try:
            phases = tp.phases(tp.steps(profile))
            full = dict(phases.steps.full().frame["kind"].value_counts().rows())
        except tp.TpunbError as error:
            print(f"{name} {number}: {error}")
            phases, full = None, {}
        print(
            f"{name} {number}{' beside busy cores' if number % 2 else ''}: {time.monotonic() - began_s:.1f} s, "
            f"{kinds(phases)}, traced in full {full}, longest window {longest_s:.2f} s",
            flush=True,
        )
        done.append((phases, longest_s))
    return done


def measure(name: str, runs: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Run one program several times, print what differs, and return its figures."""
    repeats = repeated(name, runs, seconds, folder)
    found = [kinds(phases) for phases, _ in repeats]
    done = [phases for phases, _ in repeats if phases is not None]
    most = Counter(json.dumps(each) for each in found).most_common(1)[0][1]
    false = [named for pair in combinations(done, 2) if (named := changes(*pair))]
    counts = Counter(change for named in false for change in named).most_common(8)
    pairs = len(done) * (len(done) - 1) // 2
    print(f"{name}: {len(false)} of {pairs} pairs with a change: {dict(counts)}")
    if name in VARIANTS:
        variant, _, layer = VARIANTS[name]
        others = [phases for phases, _ in repeated(variant, max(1, runs // 4), seconds, folder) if phases is not None]
        changed = [changes(*pair, other_model=True) for pair in product(done, others)]
        named = sum(any(layer in change for change in each) for each in changed)
        print(f"{name}: operations of the added layer named in {named} of {len(changed)} pairs with {variant}")
        print(f"  {dict(Counter(change for each in changed for change in each).most_common(8))}")
    return {
        "runs": runs,
        "same": most,
        "right": sum(each in PROGRAMS[name].phases for each in found),
        "pairs": pairs,
        "false": len(false),
        "longest_window_s": max(longest_s for _, longest_s in repeats),
    }


def main() -> None:
    """Print one line per run, and the shares over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one program, four runs")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--runs", type=int, default=8, help="runs of each program")
    parser.add_argument("--seconds", type=float, default=14.0, help="seconds of training in each run")
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if options.program:
        captured(options.program, options.seconds, options.to)
        return
    names, runs = options.programs.split(","), options.runs
    if options.quick:
        names, runs = [QUICK], 4
        print(f"quick: left out: {', '.join(sorted({*PROGRAMS} - {QUICK}))}")
    with tempfile.TemporaryDirectory() as folder:
        done = [measure(name, runs, options.seconds, options.keep or Path(folder)) for name in names]
    total = {name: sum(each[name] for each in done) for name in ("runs", "same", "right", "pairs", "false")}
    last = {
        "same": round(total["same"] / total["runs"], 3),
        "right": round(total["right"] / total["runs"], 3),
        "false_changes": round(total["false"] / max(total["pairs"], 1), 3),
        "longest_window_s": round(max(each["longest_window_s"] for each in done), 2),
    }
    print(json.dumps(last))


if __name__ == "__main__":
    main()
