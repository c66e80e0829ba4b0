"""What the tuning panel shows, as rows and text: names in it are text, never markup."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import polars as pl

from tpunb import charts
from tpunb.charts import render
from tpunb.charts.trials import gain
from tpunb.checkpoint import Checkpoint, Checkpoints, checkpoints
from tpunb.errors import TpunbError, wrong_type
from tpunb.frames import Phase, Phases
from tpunb.text import cut, plain, plural, short_time
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning.job import Job
from tpunb.tuning.parameters import Parameter, Value
from tpunb.tuning.results import Tuning, format_values
from tpunb.tuning.trial import TrialRunner
from tpunb.tuning.tried import asked
from tpunb.widgets.table import Table, table

_LONGEST = 160  # letters of names and errors


class TrialStart(NamedTuple):
    """Where trials start: a checkpoint, or None for the beginning; and why, as text."""

    checkpoint: Checkpoint | None
    text: str


def checkpoints_of(saved: Checkpoints | str | os.PathLike[str] | None) -> Checkpoints | None:
    """Return checkpoints, given as such or by their folder."""
    if saved is None or isinstance(saved, Checkpoints):
        return saved
    if not isinstance(saved, str | os.PathLike):
        raise wrong_type("tuning_panel", "saved", "be checkpoints of tp.checkpoints(dir), or their folder", saved)
    return checkpoints(saved)


def trial_start(job: Job, phase: Phase | None, saved: Checkpoints | None) -> TrialStart:
    """Return the checkpoint nearest to a phase that holds all that trials need (paper IV.C), or the beginning."""
    if phase is None:
        return TrialStart(None, "beginning (no phases given)")
    if saved is None:
        return TrialStart(None, "beginning (no checkpoints given)")
    complete = Checkpoints(saved.folder, tuple(checkpoint for checkpoint in saved if checkpoint.kind == "tpunb"))
    near = complete.nearest(phase) or saved.nearest(phase)
    if near is None:
        return TrialStart(None, f"beginning (no checkpoint of a known step in {plain(saved.folder.name)})")
    try:
        TrialRunner(job, near)
    except TpunbError as error:
        return TrialStart(None, f"beginning ({plain(str(error))})")
    return TrialStart(near, f"{_distance(near.step or 0, phase)} ({cut(plain(near.path.name))})")


def _distance(step: int, phase: Phase) -> str:
    """Return the position of a step relative to a phase.

    >>> from tpunb.testing import toy_steps
    >>> from tpunb.cluster import phases
    >>> _distance(2, phases(toy_steps("aaabbb"))[1])
    'step 2, 1 step before the phase'
    """
    away = min(phase.steps["step"] - step, key=abs)
    if away == 0:
        return f"step {step:,}, in the phase"
    return f"step {step:,}, {plural(abs(away), 'step')} {'before' if away > 0 else 'after'} the phase"


def format_value(value: Value) -> str:
    """Return the value of a parameter as text.

    >>> format_value(8), format_value(-1), format_value(True), format_value("")
    ('8', 'AUTOTUNE', 'on', 'not constant')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return "AUTOTUNE" if value == AUTOTUNE else cut(plain(str(value))) or "not constant"


def trial_rows(tuning: Tuning) -> list[dict[str, Any]]:
    """Return the trials, one row each, in the order in which they ran."""
    return [
        {
            "trial": trial.number,
            "values": cut(format_values(trial.values), _LONGEST),
            "verdict": trial.verdict,
            "step": "–" if trial.seconds is None else short_time(trial.seconds * 1e12),
            "ratio": gain(speedup),
            "output": {True: "equal", False: "different", None: "–"}[trial.equal],
            "spent": short_time(trial.spent * 1e12),
        }
        for trial, speedup in zip(tuning.trials, tuning.speedups, strict=True)
    ]


def headline(state: str, tuning: Tuning) -> str:
    """Return the state of a tuning in one line.

    >>> headline("running", Tuning(())), headline("done", Tuning(()))
    ('running: 0 trials so far', '0 trials: the values stay as they are')
    """
    ran = plural(len(tuning.trials), "trial")
    gain = "the values stay as they are"
    if tuning.tried and not tuning.trials:
        ran, gain = tuning.tried[-1].change, plain(tuning.tried[-1].outcome)
    elif tuning.best:
        gain = f"{tuning.speedup.sentence}, same output"
    return {
        "ready": "no trials yet",
        "running": f"running: {ran} so far",
        "stopping": f"stopping after the current trial: {ran} so far",
        "done": f"{ran}: {gain}",
        "failed": f"failed after {ran}",
    }[state]


def chart_spec(tuning: Tuning) -> dict[str, Any] | None:
    """Return the spec of the chart of the trials without its title; None if there are none."""
    if not tuning.trials:
        return None
    return {name: part for name, part in render.spec(charts.trials(tuning)).items() if name != "title"}


def tables(parameters: Iterable[Parameter], tuning: Tuning) -> list[Table]:
    """Return the parameters, the trials and the rejected values, those without rows aside."""
    made = parameter_table(parameters, tuning), trial_table(tuning), rejected_table(tuning)
    return [made[0], *(each for each in made[1:] if each["rows"])]


def parameter_table(parameters: Iterable[Parameter], tuning: Tuning) -> Table:
    """Return the parameters with the values that won; verified is one of which another value gave the same output."""
    equal = {name for trial in tuning.trials if trial.equal for name in trial.values}
    rows = [
        [
            *(cut(plain(parameter.stage)), parameter.kind.label or "all", format_value(parameter.current)),
            format_value(tuning.best[parameter.name]) if parameter.name in tuning.best else "–",
            "verified" if parameter.verdict == "verify" and parameter.name in equal else parameter.verdict,
            cut(plain(parameter.reason), 2 * _LONGEST),
        ]
        for parameter in parameters
    ]
    return table("Pipeline parameters", ["Stage", "Parameter", "Current", "Chosen", "Verdict", "Reason"], rows)


def trial_table(tuning: Tuning) -> Table:
    """Return the trials, in the order in which they ran."""
    rows = ([str(value) for value in row.values()] for row in trial_rows(tuning))
    return table("Trials", ["Trial", "Values", "Verdict", "Step", "Speed-up", "Output", "Duration"], rows)


def remedies(phases: Phases | None) -> pl.DataFrame:
    """Return the advice on a run that can be tried on steps of a job."""
    with suppress(TpunbError):  # there is none
        return pl.DataFrame(asked(True, phases))
    return pl.DataFrame()


def remedy_table(advice: pl.DataFrame, tried: Mapping[tuple[str, str], str]) -> Table:
    """Return what a run advises, what it promises for a step, and what was found when it was tried."""
    rows = [
        [
            cut(plain(row["action"]), 2 * _LONGEST),
            "–" if row["step_ps"] is None else short_time(row["step_ps"]),
            tried.get((row["id"], row["action"]), "–"),
        ]
        for row in advice.iter_rows(named=True)
    ]
    return table("Remedies", ["Remedy", "Saves at most, a step", "Tried"], rows)


def rejected_table(tuning: Tuning) -> Table:
    """Return the values that failed or changed the output, and the reason."""
    rejected = tuning.rejected.items()
    rows = ([cut(values, _LONGEST), cut(plain(reason), 2 * _LONGEST)] for values, reason in rejected)
    return table("Rejected values", ["Values", "Reason"], rows)
