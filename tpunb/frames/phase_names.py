"""Names of phases: from the kind of their steps, and from what distinguishes phases of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from tpunb.frames.cache import memoised
from tpunb.frames.exclusive_time import covered
from tpunb.frames.op_matrix import distinct_ops
from tpunb.frames.steps import Steps
from tpunb.text import cut, plain

OUTLIERS = "outliers"
"""Name of the label -1."""

_KINDS = {"eval": "evaluation", "test": "evaluation", "predict": "prediction"}
_INPUT_BOUND = 0.3  # share of step time
_FIRST = 0.1  # of the steps of the longest phase
_OTHER_PACE = 1.25  # factor between step times of two phases that differ in pace
SAVING = r"^(SaveV2|MergeV2Checkpoints)$"
"""Operations that save a checkpoint."""


def phase_names(phases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each phase, unique in the run: docs/phases.md lists the rules.

    Rows of ``tpunb.schema.PHASES``, with ``last_ps``, start of the last step, and shares ``saving`` and ``compiling``.

    >>> train = {"phase": 0, "steps": 9, "kinds": "train", "productive_ps": 90, "start_ps": 0, "last_ps": 99}
    >>> train |= {"step_ps": 5, "saving": 0.0, "compiling": 0.1, "input": 0.4}
    >>> phase_names([train, train | {"phase": 1, "productive_ps": 10, "saving": 1.0}])
    ['train (input-bound)', 'checkpoint']
    """
    bases = [_base(phase["kinds"]) for phase in phases]
    order = sorted(range(len(phases)), key=lambda at: -(phases[at]["productive_ps"] or 0))
    longest: dict[str, int] = {}
    for at in order:
        if phases[at]["phase"] >= 0:
            longest.setdefault(bases[at], at)
    first = next(iter(longest), "")
    names = []
    for phase, base in zip(phases, bases, strict=True):
        if phase["phase"] < 0:
            names.append(OUTLIERS)
            continue
        main, of = phases[longest[base]], "" if base == first else f" of {base}"
        if _most(phase, "saving") and not _most(main, "saving"):
            names.append(f"checkpoint{of}")
        elif phase is not main and _is_first(phase, main):
            names.append(f"first steps{of}")
        else:
            names.append(f"{base} (input-bound)" if (phase["input"] or 0) >= _INPUT_BOUND else base)
    return _unique(names, phases, order)


def _base(kinds: str | None) -> str:
    parts = [_KINDS.get(kind, cut(plain(kind))) for kind in (kinds or "steps").split(", ")[:2]]
    return " and ".join(dict.fromkeys(parts))


def _most(phase: Mapping[str, Any], column: str) -> bool:
    return (phase[column] or 0) >= 0.5


def _is_first(phase: Mapping[str, Any], main: Mapping[str, Any]) -> bool:
    if _most(phase, "compiling") and not _most(main, "compiling"):
        return True
    if None in (phase["last_ps"], main["start_ps"]) or phase["steps"] > _FIRST * main["steps"]:
        return False
    return bool(phase["last_ps"] < main["start_ps"])


def _unique(names: list[str], phases: Sequence[Mapping[str, Any]], order: list[int]) -> list[str]:
    """Return the names with the pace of phases that share one, then with numbers; the longest keeps its name."""
    longest = {names[at]: at for at in reversed(order)}
    paced = [
        name if longest[name] == at else _paced(name, phases[at], phases[longest[name]])
        for at, name in enumerate(names)
    ]
    for pace, most in (("slower", "slowest"), ("faster", "fastest")):
        for name in {paced[at] for at in order if paced[at].endswith(f"{pace})") and paced.count(paced[at]) == 2}:
            one, two = sorted((at for at in order if paced[at] == name), key=lambda at: phases[at]["step_ps"] or 0)
            if _paced("", phases[two], phases[one]):  # of two, the one that is farther
                far = two if pace == "slower" else one
                paced[far] = paced[far].replace(pace, most)
    shared = Counter(paced)
    kept = [name if shared[pace] > 1 else pace for name, pace in zip(names, paced, strict=True)]
    taken = {name for name, at in longest.items()} | {name for name, count in Counter(kept).items() if count == 1}
    number: Counter[str] = Counter()
    for at in sorted(range(len(kept)), key=lambda at: (phases[at]["start_ps"] or 0, phases[at]["phase"])):
        name = kept[at]
        if longest.get(name, at) == at:
            continue
        while kept[at] in taken:
            number[name] += 1
            kept[at] = f"{name} {number[name] + 1}"
        taken.add(kept[at])
    return kept


def _paced(name: str, phase: Mapping[str, Any], main: Mapping[str, Any]) -> str:
    ratio = (phase["step_ps"] or 0) / max(main["step_ps"] or 0, 1)
    if 1 / _OTHER_PACE < ratio < _OTHER_PACE or not ratio:
        return name
    pace = "slower" if ratio > 1 else "faster"
    return f"{name[:-1]}, {pace})" if name.endswith(")") else f"{name} ({pace})"


@memoised
def saving(steps: Steps) -> pl.Series:
    """Return which steps save a checkpoint, by their operations or by the host clock."""
    result = pl.zeros(len(steps), dtype=pl.Int8, eager=True) > 0
    saves = distinct_ops(steps).select(pl.col("op").unique()).filter(pl.col("op").cast(pl.String).str.contains(SAVING))
    if saves.height:
        rows = steps.ops.join(saves, on="op", how="semi").select("host", "step", saves=True).unique()
        placed = steps.frame.join(rows, on=["host", "step"], how="left", maintain_order="left")
        result = placed["saves"].fill_null(value=False)
    return result | saved_by_clock(steps)


def saved_by_clock(steps: Steps) -> pl.Series:
    """Return which steps save a checkpoint, as far as the host clock recorded it."""
    result = pl.zeros(len(steps), dtype=pl.Int8, eager=True) > 0
    if steps.wall is not None:
        until = (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")
        spans = steps.wall.spans.filter(account="checkpoint save").with_columns(until)
        start, end = (steps.frame.with_columns(until)[name].fill_null(0).to_numpy() for name in ("start_ps", "end_ps"))
        for (host,), part in spans.partition_by("host", as_dict=True).items():
            result |= (steps.frame["host"] == host) & pl.Series(covered(part, start, np.maximum(start, end)) > 0)
    return result
