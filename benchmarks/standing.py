"""Let trainings stand still in twenty ways, and say when and where that is seen; let healthy ones pause.

``python benchmarks/standing.py [--quick] [--only NAMES] [--together N]`` runs each of ``programs/standstills.py`` by
``tpunb run``, a few beside each other, and reads its folder each second, as ``tpunb report`` does. ``--quick`` runs
three that stand still. The last line is one JSON object:

``named``
    How many of `stand` were seen within 20 s of their begin, with the line at which they stand; of a process that is
    stopped, that it is.
``killed``
    How many say it, too, after their process was killed.
``alarms``
    How many of the `healthy` trainings, which take no step for 60 s, were said to stand still.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import psutil

import tpunb as tp
from programs import standstills
from tpunb.errors import TpunbError

ROOT = Path(__file__).parents[1]
WITHIN_S, LIMIT_S = 20.0, 240.0
QUICK = ("empty_queue", "lock_file", "stopped")


class Seen(NamedTuple):
    """What was said of a training."""

    name: str
    after_s: float | None  # since it stands still
    sentence: str
    killed: str  # what was said after its end
    right: bool


def line_of(name: str) -> str | None:
    """Return the line at which a training stands still, ``file.py:12``; None if it is at none."""
    lines, first = inspect.getsourcelines(standstills.STANDSTILLS[name])
    here = next((number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here")), None)
    return None if here is None else f"standstills.py:{here} "


def said(run: Path) -> str | None:
    """Return what is said of a run that stands still."""
    with suppress(TpunbError, OSError), warnings.catch_warnings(action="ignore"):  # that it was cut
        standing = tp.load(run).standing
        return None if standing is None else str(standing)
    return None


def watch(name: str, folder: Path) -> Seen:
    """Run a training until it is said to stand still, or ends."""
    run, stands = folder / name, folder / f"{name}.stands"
    command = [sys.executable, "-m", "tpunb", "run", "-o", str(run), "--"]
    command += [sys.executable, str(ROOT / "programs/standstills.py"), name]
    variables = {**os.environ, "STANDS": str(stands), "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    sentence, after_s = None, None
    with (folder / f"{name}.log").open("w") as log:
        program = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=variables)
        until_s = time.monotonic() + LIMIT_S
        while program.poll() is None and time.monotonic() < until_s and sentence is None:
            time.sleep(1)
            parts = [path.parent for path in run.rglob("run.json")]
            sentence = next(filter(None, map(said, parts)), None)
        if sentence and stands.is_file():
            after_s = time.time() - float(stands.read_text())
        for child in psutil.Process(program.pid).children(recursive=True) if program.poll() is None else ():
            with suppress(psutil.Error):
                child.send_signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            program.wait(30)
        program.kill()
    time.sleep(1)
    killed = next(filter(None, map(said, [path.parent for path in run.rglob("run.json")])), "")
    right = bool(sentence)
    if name in standstills.STANDSTILLS:
        at = line_of(name) or "stopped"
        right = bool(sentence and at in sentence and after_s is not None and after_s <= WITHIN_S)
    print(f"{name:22} {'after ' + format(after_s, '.0f') + ' s: ' if after_s else ''}{sentence}", flush=True)
    return Seen(name, after_s, sentence or "", killed, right)


def main() -> None:
    """Print what is said of each training, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three that stand still")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--together", type=int, default=4, help="how many run at once")
    options = parser.parse_args()
    every = [*standstills.STANDSTILLS, *standstills.PAUSES]
    names = options.only.split(",") if options.only else QUICK if options.quick else every
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.together) as pool:
        seen = [*pool.map(partial(watch, folder=Path(folder)), names)]
    stand = [each for each in seen if each.name in standstills.STANDSTILLS]
    healthy = [each for each in seen if each.name in standstills.PAUSES]
    last = {
        "stand": len(stand),
        "named": sum(each.right for each in stand),
        "killed": sum(bool(each.killed) for each in stand),
        "healthy": len(healthy),
        "alarms": sum(bool(each.sentence) for each in healthy),
    }
    print(json.dumps(last))


if __name__ == "__main__":
    main()
