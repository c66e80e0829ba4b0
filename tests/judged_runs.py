"""Recorded trainings with what is true of them, judged again: the corpus in ``tests/corpus``.

``python tests/judged_runs.py`` prints the table of all entries.

An entry is a zip file with a run folder and ``truth.json``, which ``benchmarks/record_corpus.py`` records. Keys without
a value are unknown:

``steps``
    Number of training steps, as the program or its trainer counts them.
``evaluations``
    Number of batches that are evaluated.
``accounts``
    Seconds by account, for some of them, by the program's own clock.
``wasted_s``
    Seconds that the program wasted on purpose, by its own clock.
``cause``
    The accounts that the waste belongs to, one of them, or none where it is spread, and ``words``, a regular expression
    that the first sentence or the action must match, if the waste is the largest of the run.
``not_cause``
    The same of a waste that was repaired: it must not be named, unless for less than half of what its repair gave.
``wall_s``
    Seconds of the captured program.
``healthy``
    Whether nothing is wasted.

Each key is a check, except that ``cause`` with ``wasted_s`` is another, ``amount``, of the time that the first sentence
states if the waste is the largest, else of an account, and that ``not_cause`` is called ``repaired``. ``wrong.toml``
has the checks that fail today and their entries, by the reason.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import tomllib
import warnings
import zipfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import tpunb as tp
from tpunb.analysis.advice import candidates
from tpunb.analysis.verdict import verdict
from tpunb.errors import NoSteps

CORPUS = Path(__file__).parent / "corpus"
WRONG = CORPUS / "wrong.toml"
_TOLERANCE = 0.05  # of run time, for seconds of an account or a waste
_LEEWAY = 0.2  # of a waste, for the one that the answer states
_OF_THE_TIME = {"accounts", "cause", "not_cause", "healthy"}  # keys whose checks need more than the steps


def entries():
    """Return the names of the entries."""
    return sorted(file.stem for file in CORPUS.glob("*.zip"))


def known_wrong():
    """Return the checks that are known to fail, and why, by entry."""
    known = {}
    for reason, checks in tomllib.loads(WRONG.read_text(encoding="utf-8")).items():
        for check, names in checks.items():
            for name in names:
                known.setdefault(name, {})[check] = reason
    return known


def judged(name):
    """Return whether each check of an entry holds, and the sentence that is judged, if one of them needs it."""
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(CORPUS / f"{name}.zip") as entry:
        entry.extractall(temporary)
        truth = json.loads(Path(temporary, "truth.json").read_text())
        if "not_cause" in truth and (spoiled := CORPUS / f"{name.removesuffix('_repaired')}.zip").exists():
            with zipfile.ZipFile(spoiled) as other:
                truth["gain_s"] = json.loads(other.read("truth.json"))["wall_s"] - truth["wall_s"]
        with warnings.catch_warnings(action="ignore"):
            try:
                return checked(tp.load(temporary), {key: value for key, value in truth.items() if value is not None})
            except NoSteps as error:
                needs_steps = ("steps", "evaluations", "accounts", "cause", "healthy")
                return {check: False for check in needs_steps if truth.get(check)}, str(error)


def checked(run, truth):
    """Return whether each check of a run holds, and its sentence, if one of them needs it."""
    steps, checks = tp.steps(run), {}
    kinds = steps.frame["kind"].to_list()
    if "steps" in truth:
        checks["steps"] = sum(kind.startswith("train") for kind in kinds) == truth["steps"]
    if "evaluations" in truth:
        checks["evaluations"] = kinds.count("eval") == truth["evaluations"]
    if not _OF_THE_TIME.intersection(key for key, value in truth.items() if value):
        return checks, ""
    phases = run if isinstance(run, tp.Phases) else tp.phases(steps)
    goodput, answer = tp.goodput(phases), verdict(phases)
    if accounts := truth.get("accounts"):
        checks["accounts"] = all(_holds(goodput, [account], seconds) for account, seconds in accounts.items())
    if cause := truth.get("cause"):
        if "words" in cause:
            checks["cause"] = _names(answer, cause)
        if (accounts := cause["accounts"]) and "wasted_s" in truth:
            if "words" in cause:
                apart_s = abs(_stated_s(answer) - truth["wasted_s"])
                checks["amount"] = checks["cause"] and apart_s <= max(
                    _LEEWAY * truth["wasted_s"], _TOLERANCE * goodput.wall_ps / 1e12
                )
            else:
                checks["amount"] = any(
                    _holds(goodput, each, truth["wasted_s"]) for each in (accounts, *([one] for one in accounts))
                )
    if cause := truth.get("not_cause"):
        is_small = _wasted_ps(phases, answer) / 1e12 < truth.get("gain_s", 0) / 2
        checks["repaired"] = is_small or not _names(answer, cause)
    if truth.get("healthy"):
        checks["healthy"] = answer.healthy
    return checks, str(answer)


def _stated_s(answer):
    """Return the first time in the sentence, in seconds; NaN without one."""
    found = re.search(r"([\d.]+) (ms|s|min)\b", answer.sentence)
    return float(found[1]) * {"ms": 1e-3, "s": 1, "min": 60}[found[2]] if found else math.nan


def _wasted_ps(phases, answer):
    return candidates(phases).filter(id=answer.cause)["wasted_ps"].head(1).sum()


def _names(answer, cause):
    return bool(re.search(cause["words"], answer.sentence)) and (
        not cause["accounts"] or answer.account in cause["accounts"]
    )


def _holds(goodput, accounts, seconds):
    """Return whether accounts have as many seconds in sum, within the tolerance."""
    account_s = sum(map(goodput.time_ps, accounts)) / 1e12
    return abs(account_s - seconds) <= _TOLERANCE * goodput.wall_ps / 1e12


def main():
    """Print the table of all entries, and what is wrong without being known."""
    counts, known, names = {}, known_wrong(), entries()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # of each worker: frames are small
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # a fork of Polars' threads stands still
        for name, (checks, sentence) in zip(names, pool.map(judged, names, chunksize=4), strict=True):
            for check, is_right in checks.items():
                right, tried = counts.get(check, (0, 0))
                counts[check] = right + is_right, tried + 1
            failed = [check for check, is_right in checks.items() if not is_right]
            new = " (new)" * any(check not in known.get(name, {}) for check in failed)
            print(f"{'wrong' if failed else 'right':6} {name:44} {', '.join(failed)}{new}: {sentence[:110]}")
    print(json.dumps({check: f"{right} of {tried}" for check, (right, tried) in counts.items()}))


if __name__ == "__main__":
    main()
