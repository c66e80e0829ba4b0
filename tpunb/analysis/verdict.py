"""The verdict on a run: what took its time, what to do first, and what that would save at most."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tpunb.analysis.advice import FUNCTION_OF, PLACES, candidates, is_once, mostly, took
from tpunb.analysis.causes import NAMED_SHARE
from tpunb.analysis.goodput import Goodput, goodput, others_used, totals
from tpunb.analysis.time_line import FEWEST_SAMPLES
from tpunb.errors import wrong_type
from tpunb.frames import Phases
from tpunb.schema import ACCOUNTS
from tpunb.text import cut, duration, percent, plain

_ALSO = ["growing memory", "debugging", "few threads"]  # causes that are named beside what took most
_APART = ("program startup", "preparation", "checkpoint restore", "profiler")  # of which no run is unhealthy
_LEAST_PRODUCTIVE = 0.5  # of the rest, in a healthy run


@dataclass(frozen=True)
class Verdict:
    """What took the time of a run, and what to do first.

    Parameters
    ----------
    sentence
        Both in words, with shares of run time (wall time).
    account
        The account of what took most, of ``tpunb.schema.ACCOUNTS``; None if nothing took a tenth, or steps compute.
    action
        What to do first; None if nothing is known against a waste of a tenth of the run time.
    saves_ps
        What this would save at most, in picoseconds; None without an action.
    healthy
        Whether nothing of the program took the time from its training.
    cause
        Id of the cause in ``docs/causes.md``; "T001" if it is not known; None if nothing took a tenth.
    observed
        What took the time, without a remedy.
    notes
        The other sentences, but those of advice.
    place
        Lines of the program, or the work, that took most of it, as in `observed`; None if not known.
    """

    sentence: str
    account: str | None = None
    action: str | None = None
    saves_ps: int | None = None
    healthy: bool = False
    cause: str | None = None
    observed: str = ""
    notes: tuple[str, ...] = ()
    place: str | None = None

    def __str__(self) -> str:
        return self.sentence


def verdict(phases: Phases) -> Verdict | None:
    """Return the verdict on a run, the first of its `candidates`; None if there is no record of its wall time.

    Parameters
    ----------
    phases
        Phases of a run.

    Raises
    ------
    TypeError
        If `phases` is something else.
    """
    if not isinstance(phases, Phases):
        raise wrong_type("verdict", "phases", "be Phases", phases, hint="tp.phases(steps)")
    if phases.steps.wall is None or phases.steps.wall.span_ps <= 0:
        return None
    run, ranked = goodput(phases), candidates(phases)
    first = _first(phases, run, ranked.filter(pl.col("wasted_ps") >= NAMED_SHARE * run.wall_ps))
    also = [*ranked.filter(pl.col("rule").is_in(_ALSO))["sentence"]]
    if (profiler_ps := run.time_ps("profiler")) >= NAMED_SHARE * run.wall_ps:
        cost = took(run, profiler_ps)
        also.append(f"The profiler took {cost}: --budget 0.02 lowers it, and a run over a minute has that by default.")
    return replace(first, sentence=" ".join([first.sentence, *also]), notes=(*first.notes, *also))


def _first(phases: Phases, run: Goodput, ranked: pl.DataFrame) -> Verdict:
    """Return the verdict of the first waste of a run, or that it is healthy."""
    wastes = ranked.filter(pl.col("phase").is_null()).to_dicts()
    if wastes:
        first = wastes[0]
        with_remedy = [row for row in wastes[1:] if row["action"] is not None and first["action"] is None]
        sentence = " ".join(_in_words(row) for row in [first, *with_remedy[:1]])
        action = first["action"] and brief(first["action"])
        saves_ps = None if action is None else first["saves_ps"]
        seen = {"cause": first["id"], "observed": first["observed"], "place": first["place"]}
        return Verdict(sentence, first["account"], action, saves_ps, **seen)
    (observed, *notes), healthy = _healthy(run)
    for row in ranked.drop_nulls("action").head(1).iter_rows(named=True):  # of how it computes
        do = (
            f"In {phases.names.get(row['phase'], 'the run')}: {row['action']}, saves up to {duration(row['saves_ps'])}."
        )
        sentence = " ".join([observed, *notes, do])
        of_phase = Verdict(sentence, None, row["action"], row["saves_ps"], cause=row["id"])
        return replace(of_phase, observed=observed, notes=tuple(notes))
    observed = f"{healthy}{observed}"
    return Verdict(" ".join([observed, *notes]), healthy=bool(healthy), observed=observed, notes=tuple(notes))


def brief(action: str) -> str:
    """Return an action up to its first semicolon outside of code.

    >>> brief("set what differs: `a(); b()`; this is paid once")
    'set what differs: `a(); b()`'
    """
    return re.match("(?:`[^`]*`|[^;`])*", action)[0]  # type: ignore[index]  # it matches ""


def _in_words(row: dict[str, Any]) -> str:
    """Return a waste and its remedy."""
    if row["action"] is None:
        return str(row["sentence"])
    action = brief(row["action"])
    return f"{row['sentence']} {action[0].upper()}{action[1:]}: saves up to {duration(row['saves_ps'])}."


def _busiest(run: Goodput) -> list[str]:
    """Return the functions that take most of the steps, a tenth of the run each at least; of a single one its lines."""
    places = run.places.filter(account="productive")
    if places["samples"].sum() < FEWEST_SAMPLES:
        return []
    placed = places.drop_nulls("place").with_columns(of=FUNCTION_OF)
    functions = placed.group_by("of", maintain_order=True).agg(
        pl.col("share").sum(), pl.col("place").first(), n=pl.len()
    )
    functions = functions.sort("share", descending=True, maintain_order=True)
    single = (functions["share"] > 1 - NAMED_SHARE).any()  # then a line that is nearly all is the step itself
    rows = placed.with_columns(n=1) if single else functions
    rows = rows.filter(pl.col("share") * run.ratio >= NAMED_SHARE, pl.col("share") <= 1 - NAMED_SHARE).head(PLACES)
    lines = [
        f"{percent(share)} {'at' if n == 1 else 'around'} {cut(plain(place), 80)}"
        for share, place, n in rows.select("share", "place", "n").rows()
    ]
    return [f"Of that, {' and '.join(lines)}."] if lines else []


def _healthy(run: Goodput) -> tuple[list[str], str]:
    """Return how much of a run without a single waste is productive, and "Healthy" if that is half, startup apart."""
    apart_ps, productive_ps = sum(run.time_ps(name) for name in _APART), run.time_ps("productive")
    healthy = "Healthy: " * (productive_ps >= _LEAST_PRODUCTIVE * (run.wall_ps - apart_ps))
    if productive_ps < _LEAST_PRODUCTIVE * run.wall_ps:
        healthy = healthy.replace(":", " once it trains:")
    parts = [f"{took(run, productive_ps)} is productive training.", *_busiest(run)]
    shares = totals(run).filter(pl.col("share") >= NAMED_SHARE)["account"].cast(pl.String)
    others = others_used(run)
    for name in shares:
        time = f"{ACCOUNTS[name].subject} took {duration(run.time_ps(name))}"
        if name in ("data loading", "step time deviation") and others:
            parts.append(f"{time}, as the machine was busy: {others}.")
        elif is_once(run, name):
            most = mostly(run, name)
            parts.append(f"{time}, once per run{f': mostly {most}' * bool(most)}.")
    return parts, healthy
