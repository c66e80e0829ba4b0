"""Attach to wasteful programs that were started bare, and compare what is said of them with what a capture says.

``python benchmarks/attach.py [--quick] [--only NAMES]`` runs twelve programs of `programs.wastes`, four of each
framework, for a while each: undisturbed; attached to by ``tpunb attach``; and by ``tpunb run``. ``--quick`` runs two of
them, two at a time. Requires py-spy. The last line is one JSON object:

``same``
    How many of `programs` have the account, the cause and the line of ``tpunb run`` in their first sentence.
``accounts``
    How many have the account.
``losses``
    How many have the losses of the undisturbed run, to the bit; of weights where there is no loss.
``after``
    How many have step times after the observation within 2 % of those before, by their fastest tenth, which other
    programs of the machine slow least.
``slower``
    Median over the programs of step time while they are observed, by that before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import tpunb as tp

NAMES = (
    *("jax_sleeps_in_each_step", "jax_parses_json", "jax_jit_in_each_step", "jax_saves_often"),
    *("torch_slow_dataset", "torch_reads_csv_rows", "torch_saves_often", "torch_prints_gradients"),
    *("keras_slow_callback", "keras_saves_often", "keras_validates_often", "keras_augments_in_a_generator"),
)
QUICK = ("jax_sleeps_in_each_step", "torch_slow_dataset")
WITHIN = 0.02  # of step time, asked for
BEGAN = "BENCHMARK_BEGAN"  # variable with the file that a program makes as its first step ends
_LINE = re.compile(r"\w+\.py:\d+")


# -- the program -------------------------------------------------------------------------------------------------------

steps: list[tuple[float, Any]] = []  # when each ended, and its loss


def record(loss: Any) -> None:
    """Record that a step has ended."""
    if not steps and BEGAN in os.environ:
        Path(os.environ[BEGAN]).touch()
    steps.append((time.time(), loss))


class Step:
    """A step that nobody marks: a loop reads its loss, or else its weights, as it ends."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        found = sys._getframe(1).f_locals
        record(found.get("loss", found.get("weights")))


class Bare:
    """In place of a capture, for programs that mark their steps."""

    def step(self, number: int) -> Step:
        """Return a step."""
        return Step()

    def batches(self, data: Any) -> Any:
        """Return the data."""
        return data


def train(name: str, seconds: float, result: Path) -> None:
    """Run a program again and again for a while, and write when steps ended, and digests of their losses."""
    from programs.wastes import PROGRAMS, jax_loops, keras_fits, torch_loops  # noqa: F401

    if name.startswith("torch"):
        fit = torch_loops.fit

        def recorded(model: Any, batches: Any, after: Any = lambda number, loss: None, **options: Any) -> None:
            def ended(number: int, loss: float) -> None:
                record(loss)
                after(number, loss)

            fit(model, batches, ended, **options)

        torch_loops.fit = recorded
    if name.startswith("keras"):
        import keras

        class Records(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                record(logs["loss"])

        made = keras.callbacks.CallbackList.__init__

        def make(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
            made(self, [*(callbacks or []), Records()], *args, **kwargs)

        keras.callbacks.CallbackList.__init__ = make
    while not steps or time.time() < steps[0][0] + seconds:
        if name.startswith("keras"):
            keras.utils.set_random_seed(0)
        PROGRAMS[name].train(Bare(), False)
    import numpy as np

    digests = [hashlib.blake2b(np.asarray(loss).tobytes(), digest_size=8).hexdigest() for _, loss in steps]
    result.write_text(json.dumps({"ended_s": [at for at, _ in steps], "losses": digests}))


# -- its observation ---------------------------------------------------------------------------------------------------


def command(name: str, seconds: float, result: Path) -> list[str]:
    """Return the command that runs a program bare."""
    return [sys.executable, __file__, "--program", name, "--seconds", str(seconds), "--result", str(result)]


def verdict_of(run: Path) -> dict[str, Any]:
    """Return the verdict of the report on a run."""
    found = next(iter(sorted(run.rglob("run.json"))), run / "run.json").parent
    return dict(tp.report(found).content["verdict"])


def step_s(ended_s: list[float], begin_s: float, end_s: float) -> float:
    """Return the time of the steps between two moments: the median of the fastest tenth."""
    within = sorted(later - before for before, later in pairwise(ended_s) if begin_s <= before and later <= end_s)
    return median(within[: 1 + len(within) // 10]) if within else float("nan")


def compare(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a program three times; return what is the same."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    place = folder / name
    place.mkdir()
    subprocess.run(command(name, seconds, place / "alone"), check=True, **quiet)
    began = place / "began"
    variables = {**os.environ, BEGAN: str(began)}
    with subprocess.Popen(command(name, seconds, place / "attached"), env=variables, **quiet) as program:
        while not began.exists() and program.poll() is None:
            time.sleep(0.1)
        time.sleep(seconds / 4)
        begin_s = time.time()
        attach = [sys.executable, "-m", "tpunb", "attach", str(program.pid), "--for", f"{seconds / 3:.0f}s"]
        subprocess.run([*attach, "-o", str(place / "seen")], check=True, **quiet)
    run = [sys.executable, "-m", "tpunb", "run", "-o", str(place / "run"), "--"]
    subprocess.run([*run, *command(name, seconds, place / "captured")], check=True, **quiet)
    alone, attached = (json.loads((place / each).read_text()) for each in ("alone", "attached"))
    seen, captured = verdict_of(place / "seen"), verdict_of(place / "run")
    facts = json.loads((place / "seen" / "run.json").read_text())
    first_s, last_s = facts["origin_ns"] / 1e9, (facts["origin_ns"] + facts["span_ps"] / 1000) / 1e9
    bounds = (0, begin_s), (first_s, last_s), (last_s, float("inf"))
    times = [step_s(attached["ended_s"], *each) for each in bounds]
    lines = [_LINE.findall(each["sentence"])[:1] for each in (seen, captured)]
    same = all(seen.get(key) == captured.get(key) for key in ("account", "cause"))
    same &= lines[0] == lines[1] or [] in lines
    both = min(len(alone["losses"]), len(attached["losses"]))
    figures = {
        "same": same,
        "accounts": seen.get("account") == captured.get("account"),
        "losses": both > 0 and alone["losses"][:both] == attached["losses"][:both],
        "steps": both,
        "before_ms": round(1e3 * times[0], 3),
        "during": round(times[1] / times[0], 3),
        "after": round(times[2] / times[0], 3),
    }
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}")
    print(f"  attach: {seen['sentence']}\n  run:    {captured['sentence']}", flush=True)
    return figures


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two programs that mostly sleep, for a few seconds each")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=24.0, help="how long each program runs, at least")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    os.environ |= {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": paths,
    }
    if options.program:
        train(options.program, options.seconds, options.result)
        return
    names = options.only.split(",") if options.only else QUICK if options.quick else NAMES
    seconds = 7.0 if options.quick else options.seconds
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2 if options.quick else 1) as pool:
        done = [*pool.map(partial(compare, folder=Path(folder), seconds=seconds), names)]
    slower = [each["during"] for each in done if not math.isnan(each["during"])]
    last = {
        "programs": len(done),
        **{key: sum(each[key] for each in done) for key in ("same", "accounts", "losses")},
        "after": sum(abs(each["after"] - 1) <= WITHIN for each in done),
        "slower": round(median(slower), 3) if slower else None,
    }
    print(json.dumps(last))


if __name__ == "__main__":
    main()
