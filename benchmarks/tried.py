"""Compare what `tpunb try` says that a remedy saves with what the repaired program saves.

``python benchmarks/tried.py [--quick] [--programs NAME,...] [--budget SECONDS]``: programs of `programs.wastes` whose
remedy is tried without a change of the program, and ones without a waste, with a change that gains nothing there; each
run is a process of its own. Run it alone on the machine. The last line is one JSON object of pairs (number, of):

``applied``
    Programs with a waste for which the remedy was applied, and the program ran to its end.
``gain``
    Of these, those whose gain is within a fifth of that of the repaired program, or both within 2 % of the run.
``promise``
    Of these, those in which the saving that the advice promised is within a fifth of the gain.
``output``
    Of these, those whose output was compared: equal bit for bit, or said by how much it differs.
``no_gain``
    Programs without a waste of which no gain was said.
``changed_files``
    Files of the program's folder that are not as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.extend(map(str, (ROOT,)))

WASTES = (
    *("torch_slow_dataset", "torch_starts_workers_each_epoch", "torch_detects_anomalies", "torch_tokenizes_each_epoch"),
    *("torch_reads_csv_rows", "torch_augments_in_python", "torch_saves_often", "torch_loads_tensors_one_by_one"),
    *("jax_jit_in_each_step", "jax_collects_garbage", "jax_computes_in_double", "jax_line_search"),
    *("keras_eager", "keras_predicts_in_each_step", "keras_saves_often", "keras_validates_often"),
    *("keras_tiny_batches", "keras_without_cache", "tensorflow_reads_in_one_thread", "tensorflow_function_in_a_loop"),
)
HEALTHY = {
    **dict.fromkeys(("torch_healthy", "torch_healthy_convolution", "torch_healthy_recurrent"), "no_collect"),
    **dict.fromkeys(("jax_healthy", "jax_healthy_scan", "jax_healthy_perceptron"), "wrapped_once"),
    **dict.fromkeys(("keras_healthy", "tensorflow_healthy", "keras_healthy_executions"), "no_collect"),
    "torch_healthy_loader": "rows_at_once",
}
QUICK = ("torch_slow_dataset", "torch_healthy")


def train(name: str, repaired: bool) -> None:
    """Run a program in this process."""
    from programs.wastes import PROGRAMS, jax_loops, keras_fits, torch_loops  # noqa: F401

    class Run:
        """A capture of which the program asks nothing."""

        def batches(self, data: Any) -> Any:
            """Return the data."""
            return data

        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: contextlib.nullcontext()

    PROGRAMS[name].train(Run(), repaired)


def digest() -> str:
    """Return a digest of the files of the program."""
    paths = sorted(path for folder in ("programs", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in paths)).hexdigest()


def tried(name: str, budget_s: float) -> dict[str, Any]:
    """Return the figures of one program, and print them."""
    from tpunb.errors import TpunbError
    from tpunb.tuning import tried as trials

    command = [sys.executable, str(Path(__file__).resolve()), "--train", name]
    with tempfile.TemporaryDirectory() as folder:
        if change := HEALTHY.get(name):
            program = trials._Program(command, ROOT, Path(folder), writes=False)
            until_s = time.monotonic() + budget_s
            each = trials._Trials(program, program.run(), until_s, None).of(
                {"trial": change, "id": "T001", "action": change, "saves_ps": None}
            )
            print(f"{name}: {each}", flush=True)
            return {"no_gain": each.decision in ("not faster", "undecided") and (each.low_s or 0) <= 0}
        try:
            found = trials.try_remedies(None, command, budget_s=budget_s, say=lambda line: print(f"{name}: {line}"))
        except TpunbError as error:
            print(f"{name}: {error}", flush=True)
            return {"applied": False}
        each = max(found, key=lambda one: one.promised_s or 0.0, default=None)
        if each is None or each.before_s is None:
            return {"applied": False}
        runs = []
        for number, option in enumerate([[], ["--repaired"]]):
            (own := Path(folder, f"program{number}")).mkdir()
            program = trials._Program([*command, *option], ROOT, own, writes=False)
            runs.append([program.run() for _ in range(2)])
        pairs = [trials._compared(one, other) for one, other in zip(*runs, strict=True)]
        twin_s = sum(one - other for one, other in pairs) / len(pairs)
    saved_s = each.before_s - each.after_s
    print(f"{name}: saved {saved_s:.2f} s, repaired {twin_s:.2f} s, promised {each.promised_s or 0:.2f} s", flush=True)
    near = abs(saved_s - twin_s) <= max(0.2 * abs(twin_s), 0.02 * each.before_s)
    promise = each.promised_s is not None and abs(each.promised_s - saved_s) <= 0.2 * abs(saved_s)
    return {"applied": True, "gain": near, "promise": promise, "output": each.output != "unknown"}


def main() -> None:
    """Print what was tried, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two programs, 60 s each")
    parser.add_argument("--programs", default=",".join([*WASTES, *HEALTHY]), help="names, separated by commas")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each program")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--repaired", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.repaired)
        return
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    before, names = digest(), QUICK if options.quick else options.programs.split(",")
    done = [tried(name, 60.0 if options.quick else options.budget) for name in names]
    figures: dict[str, Any] = {}
    for key in ("applied", "gain", "promise", "output", "no_gain"):
        values = [each[key] for each in done if key in each]
        figures[key] = [sum(values), len(values)]
    print(json.dumps({**figures, "changed_files": int(digest() != before)}))


if __name__ == "__main__":
    main()
