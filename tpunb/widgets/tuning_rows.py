"""A tuning in rows and words: what its panel says of it. Names in it are text, never markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tpunb import charts, pictures
from tpunb.charts.trials import gain
from tpunb.frames.words import cut, plain, plural
from tpunb.tuning.knob import AUTOTUNE, Knob, Value
from tpunb.tuning.nouns import Tuning, in_words
from tpunb.widgets.described import seconds
from tpunb.widgets.tables import Table

_LONGEST = 160  # letters of what names or errors make long


def knob_rows(knobs: Iterable[Knob]) -> list[dict[str, str]]:
    """Return the knobs, a row each, in words."""
    return [
        {
            "name": knob.name,  # by which a chosen value is found; it is not shown
            "place": cut(plain(knob.stage)),
            "parameter": cut(plain(knob.name.removeprefix(knob.stage).strip() or "all of it")),
            "present": value_of(knob.present),
            "verdict": knob.verdict,
            "why": cut(plain(knob.why), 2 * _LONGEST),
        }
        for knob in knobs
    ]


def value_of(value: Value) -> str:
    """Return a value of a knob as text.

    >>> value_of(8), value_of(-1), value_of(True), value_of("")
    ('8', 'AUTOTUNE', 'on', 'not written')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return "AUTOTUNE" if value == AUTOTUNE else cut(plain(str(value))) or "not written"


def trial_rows(tuning: Tuning) -> list[dict[str, Any]]:
    """Return the trials, a row each, in words, in the order in which they ran."""
    return [
        {
            "trial": trial.number,
            "values": cut(in_words(trial.values), _LONGEST),
            "verdict": trial.verdict,
            "step": "–" if trial.seconds is None else seconds(trial.seconds * 1e12),
            "ratio": gain(trial) if trial.ratio is None else f"{gain(trial)} vs {trial.against}",
            "output": {True: "the same", False: "another", None: "–"}[trial.equal],
            "spent": seconds(trial.spent * 1e12),
        }
        for trial in tuning.trials
    ]


def refusals(tuning: Tuning) -> list[list[str]]:
    """Return the values that were refused, and why, in words."""
    return [[cut(values, _LONGEST), cut(plain(why), 2 * _LONGEST)] for values, why in tuning.refused.items()]


def headline(state: str, tuning: Tuning) -> str:
    """Return how a tuning stands, in a line.

    >>> headline("running", Tuning(())), headline("done", Tuning(()))
    ('running: the values as written come first', '0 trials: the values stay as they are')
    """
    ran = plural(len(tuning.trials), "trial")
    return {
        "ready": "nothing was tried yet",
        "running": f"running, {ran} so far" if tuning.trials else "running: the values as written come first",
        "stopping": f"stopping once the trial that runs is over, {ran} so far",
        "done": f"{ran}: {_gain(tuning)}",
        "failed": f"it failed after {ran}",
    }[state]


def _gain(tuning: Tuning) -> str:
    if not tuning.best:
        return "the values stay as they are"
    ratio, low, high = tuning.speedup
    return f"{ratio:.2f} times as fast, between {low:.2f} and {high:.2f}, and the same output"


def drawn(tuning: Tuning) -> dict[str, Any] | None:
    """Return the spec of the chart of the trials, less the title, which the panel says; None where none ran."""
    if not tuning.trials:
        return None
    return {name: part for name, part in pictures.spec(charts.trials(tuning)).items() if name != "title"}


def tables(knobs: Iterable[Knob], tuning: Tuning | None) -> list[Table]:
    """Return the knobs and the trials as tables for a page without a kernel."""
    best: Mapping[str, Value] = {} if tuning is None else tuning.best
    chosen = {name: value_of(value) for name, value in best.items()}
    cells = [
        [row["place"], row["parameter"], row["present"], chosen.get(row["name"], "–"), row["verdict"], row["why"]]
        for row in knob_rows(knobs)
    ]
    made = [Table("Parameters of the pipeline", ["Place", "Parameter", "Present", "Chosen", "Verdict", "Why"], cells)]
    if tuning is not None and tuning.trials:
        rows = [[str(value) for value in row.values()] for row in trial_rows(tuning)]
        heads = ["Trial", "Values", "Verdict", "Step", "Times as fast", "Output", "Spent"]
        made.append(Table("Trials", heads, rows))
    if tuning is not None and tuning.refused:
        made.append(Table("Refused", ["Values", "Why"], refusals(tuning)))
    return made
