"""Compare what `tpunb try` says that a remedy saves with what it saves when it is done by hand.

``python benchmarks/tried.py [--quick] [--programs NAME,...] [--budget SECONDS]``: the wasteful programs of
`programs.advised`, whose remedy is tried without a change of the program, and ten programs of `programs.wastes` without
a waste, with a change that gains nothing there; each run is a process of its own. Run it alone on the machine. The last
line is one JSON object of pairs (number, of):

``applied``
    Wasteful programs for which the run advised the remedy, the trial applied it, and the program ran to its end.
``gain``
    Of these, those whose gain is within a fifth of that of the remedy by hand, or both within 2 % of the run.
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

from programs import advised  # noqa: E402

HEALTHY = {
    **dict.fromkeys(("torch_healthy", "torch_healthy_convolution", "torch_healthy_recurrent"), "no_collect"),
    **dict.fromkeys(("jax_healthy", "jax_healthy_scan", "jax_healthy_perceptron"), "wrapped_once"),
    **dict.fromkeys(("keras_healthy", "tensorflow_healthy", "keras_healthy_executions"), "no_collect"),
    "torch_healthy_loader": "rows_at_once",
}
QUICK = ("torch_reads_slow_storage", "torch_healthy")


def train(name: str, by_hand: bool) -> None:
    """Run a program in this process."""
    if name in advised.REMEDIES:
        getattr(advised, name)(by_hand)
        return
    from programs.wastes import PROGRAMS, jax_loops, keras_fits, torch_loops  # noqa: F401

    class Run:
        """A capture of which the program asks nothing."""

        def batches(self, data: Any) -> Any:
            """Return the data."""
            return data

        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: contextlib.nullcontext()

    PROGRAMS[name].train(Run(), False)


def digest() -> str:
    """Return a digest of the files of the program."""
    paths = sorted(path for folder in ("programs", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in paths)).hexdigest()


def tried(name: str, budget_s: float) -> dict[str, Any]:
    """Return the figures of one program, and print them."""
    from tpunb.analysis.run import phases
    from tpunb.tuning import tried as trials

    def program(*options: str) -> trials._Program:
        (own := Path(folder, str(len(options)))).mkdir()
        return trials._Program([*command, *options], ROOT, own, writes=False)

    command = [sys.executable, str(Path(__file__).resolve()), "--train", name]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ADVISED_PROGRAMS"] = str(Path(folder, "programs"))
        as_it_is = program()
        first = as_it_is.run()
        until_s = time.monotonic() + budget_s
        trial = trials._Trials(as_it_is, first, until_s, None)
        if change := HEALTHY.get(name):
            found = trial.of({"trial": change, "id": "T001", "action": change, "saves_ps": None})
            print(f"{name}: {found}", flush=True)
            return {"no_gain": found.decision in ("not faster", "undecided") and (found.low_s or 0) <= 0}
        if first.error:
            print(f"{name}: {first.error}", flush=True)
            return {"applied": False}
        rows = {row["trial"]: row for row in trials._chosen(phases(first.run))}
        if (row := rows.get(advised.REMEDIES[name])) is None:
            print(f"{name}: advised {[*rows]}: {trials._first_sentence(phases(first.run))}", flush=True)
            return {"applied": False}
        found = trial.of(row)
        print(f"{name}: {found}", flush=True)
        if found.before_s is None or found.after_s is None:
            return {"applied": False}
        repaired = program("--by-hand")
        if row["trial"] == "kept_programs":  # what is kept is made first
            repaired.run()
        pairs = [trials._compared(one, repaired.run()) for one in trial._plain[:2]]
        by_hand_s = sum(one - other for one, other in pairs) / len(pairs)
    saved_s, promised_s = found.before_s - found.after_s, found.promised_s
    print(f"{name}: saved {saved_s:.2f} s, by hand {by_hand_s:.2f} s, promised {promised_s or 0:.2f} s", flush=True)
    near = abs(saved_s - by_hand_s) <= max(0.2 * abs(by_hand_s), 0.02 * found.before_s)
    promise = promised_s is not None and abs(promised_s - saved_s) <= 0.2 * abs(saved_s)
    return {"applied": True, "gain": near, "promise": promise, "output": found.output != "unknown"}


def main() -> None:
    """Print what was tried, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two programs, 60 s each")
    parser.add_argument("--programs", default=",".join([*advised.REMEDIES, *HEALTHY]), help="separated by commas")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each program")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--by-hand", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.by_hand)
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
