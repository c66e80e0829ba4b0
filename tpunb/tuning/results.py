"""Results of tuning: its trials, the values that won, the speed-up, and messages about them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from string import Formatter
from typing import Any, Literal, NamedTuple

import polars as pl

from tpunb.errors import TpunbError
from tpunb.text import duration, plain, plural
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning.job import are_arrays, pipeline_of, shuffled
from tpunb.tuning.parameters import Value
from tpunb.tuning.racing import MOST_PAIRS, RaceResult

TrialVerdict = Literal["default", "faster", "not faster", "undecided", "different output", "failed"]

_FILE = "tuning.jsonl"
_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "trial": pl.Int64,
    "values": pl.String,
    "verdict": pl.String,
    "seconds": pl.Float64,
    "against": pl.Int64,
    "ratio": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "pairs": pl.Int64,
    "equal": pl.Boolean,
    "error": pl.String,
    "spent": pl.Float64,
}
_SENTENCES = {
    "not tuned": "Not tuned: {reason}.",
    "not repeatable": "Not tuned: the program is not deterministic, so equality cannot be checked.",
    "varying": "{stage} gives another element when it is read again, as one does that draws from a global generator or "
    "reads the time. Draw from the generator that random_map(f, seed=...) hands to f.",
    "untracked state": "Not tuned: {state}, and a trial could not restore it.",
    "fit too short": "Not tuned: the rest of the fit takes {rest:.1f} s, one race about {needed:.1f} s.",
    "unsafe": "Not safe in parallel: {reason}.",
    "needs": "Tuning takes {needed:.1f} s at least, and {budget:.1f} s at most.",
    "budget too small": "Not tuned: the budget of {budget:.1f} s is below the {needed:.1f} s of one race. "
    "Raise it with --tune-budget or budget=.",
    "no hot phase": "No phase takes over half of the step time or is input-bound.",
    "hot phase": 'Phase "{phase}" is worth tuning: it takes {share:.0%} of step time without waits.',
    "tuned at": "Tuned after {steps:,} steps.",
    "model-bound": "Nothing to gain: a step takes {step:ms}, the model alone {model:ms}.",
    "compute-bound": "Nothing to gain: a step takes {step:ms}, and keeps {busy:.1f} of {cores:core} busy.",
    "step": "A step takes {step:ms}, the model alone {model:ms}.",
    "compared": "Batches are equal, bit for bit: the first {batches:,}, where an epoch has {epoch}.",
    "different batches": "Not tuned: batch {batches:,} differs with {values:values}.",
    "stages": "Input of a step, one element after another: {stages:stages}.",
    "stages unknown": "The stages of the input could not be timed: {error}.",
    "data": "A step takes {step:ms}, its data alone {data:ms}.",
    "data keep up": "Nothing to gain: a step takes {step:ms}, its data alone {data:ms}.",
    "slow start": "Every trial reads all data before its start again: {reason}.",
    "budget spent": "The budget ended after {trials:trial}.",
    "none faster": "{trials:trial}, no value faster: the pipeline keeps its values.",
    "winner": "{values:values}: {speedup:speedup}, same output.",
    "stopped": "Stopped before the end.",
    "fit ends": "The rest of the fit takes {rest:.1f} s, less than a trial.",
    "interrupted": "Interrupted after {trials:trial}: no values were chosen.",
    "error": "Tuning ended with an error, and training continued unchanged: {error}.",
}


NARROW = 1.5
"""Factor between the ends of an interval beyond which only the lower end is reported."""


class Speedup(NamedTuple):
    """Step time before by step time after, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def sentence(self) -> str:
        """The speed-up in words; of a gain whose interval is wider than a factor of 1.5, its lower end.

        >>> print(Speedup(2.0, 1.7, 2.5).sentence, "·", Speedup(2.0, 1.1, 3.9).sentence)
        2.00 times as fast (95 % interval 1.70 to 2.50) · at least 1.10 times as fast
        """
        if self._is_vague:
            return f"at least {self.low:.2f} times as fast"
        return f"{self.ratio:.2f} times as fast (95 % interval {self.low:.2f} to {self.high:.2f})"

    @property
    def brief(self) -> str:
        """The speed-up in short.

        >>> print(Speedup(2.0, 1.7, 2.5).brief, "·", Speedup(2.0, 1.1, 3.9).brief)
        2.00x [1.70, 2.50] · at least 1.10x
        """
        return f"at least {self.low:.2f}x" if self._is_vague else f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"

    @property
    def _is_vague(self) -> bool:
        return self.low > 1 and self.high > NARROW * self.low


SAME = Speedup(1.0, 1.0, 1.0)
"""Speed-up of the program's values."""


@dataclass(frozen=True)
class Message:
    """An event of a tuning: its code and facts; ``str(message)`` is a sentence.

    >>> print(Message("budget spent", {"trials": 3}))
    The budget ended after 3 trials.
    """

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return _Sentences().vformat(_SENTENCES[self.code], (), self.facts)


def _work(seconds: float, elements: float) -> str:
    """Return the cost of a stage.

    >>> _work(0.024, 8.0), _work(0.003, 1.0)
    ('24 ms (8 x 3 ms)', '3 ms')
    """
    each = f" ({elements:.3g} x {seconds / elements * 1e3:.3g} ms)" if elements > 1 else ""
    return f"{seconds * 1e3:.3g} ms{each}"


class _Sentences(Formatter):
    """Formats milliseconds, parameter values, and counts by their noun."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec == "ms":
            return f"{value * 1e3:.3g} ms"
        if spec == "values":
            return format_values(value)
        if spec == "stages":
            return ", ".join(f"{plain(stage)} {_work(*cost)}" for stage, cost in value.items())
        if spec == "speedup":
            return Speedup(*value).sentence
        return plural(value, spec) if spec in ("trial", "core") else str(super().format_field(value, spec))


@dataclass(frozen=True)
class Trial:
    """Values that were tried.

    Attributes
    ----------
    number
        Number of the trial; 0 is the program's values.
    values
        Values that differ from the program's.
    verdict
        "faster", "not faster" or "undecided" by the race with trial `against`; "different output" or "failed".
    seconds
        Seconds per step; None if not measured.
    against
        Number of the best trial before this one.
    ratio, low, high
        Step time of that trial by step time of this one, and its 95 % interval.
    pairs
        Number of pairs of runs.
    equal
        Whether losses, metrics and the final state equal the program's, to the last bit.
    error
        Error that ended it.
    spent
        Duration in seconds.
    """

    number: int
    values: Mapping[str, Value]
    verdict: TrialVerdict
    seconds: float | None = None
    against: int | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    equal: bool | None = None
    error: str | None = None
    spent: float = 0.0

    def decided(self, result: RaceResult, against: float | None) -> Trial:
        """Return the trial with the result of its race against one of some seconds per step, whose output is equal."""
        low, high = (None if math.isnan(end) else end for end in (result.low, result.high))
        seconds = None if against is None else against / result.ratio
        trial = replace(self, verdict=result.decision, seconds=seconds, equal=True, pairs=result.pairs)
        return replace(trial, ratio=result.ratio, low=low, high=high)


@dataclass(frozen=True)
class Tried:
    """A remedy that was tried.

    Parameters
    ----------
    cause
        Id of the cause in ``docs/causes.md``.
    action
        The remedy, as advice has it.
    change
        What the program ran with.
    loses
        What the program lacked by it.
    promised_s
        What the run's advice promised at most; None if that was not known.
    before_s, after_s
        Time of the program's `unit`, without and with the change: the mean of `pairs` runs, without the profiler's own.
    low_s, high_s
        95 % interval of what it saves; None for fewer than three pairs.
    pairs
        Runs of each.
    decision
        "faster", "not faster" or "undecided", as `tpunb.tuning.racing` decides; or "failed".
    output
        Parameters after the last step, or small results of functions of JAX: "equal" bit for bit, "differs",
        "not repeatable" if two equal runs differ, too, or "unknown".
    difference
        Relative difference of outputs that differ: norm of the difference by norm.
    note
        Why a trial failed, or what it did not compare.
    unit
        "run", or "step" of a job.
    """

    cause: str
    action: str
    change: str
    loses: str = ""
    promised_s: float | None = None
    before_s: float | None = None
    after_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    pairs: int = 0
    decision: str = "failed"
    output: str = "unknown"
    difference: float | None = None
    note: str = ""
    unit: str = "run"

    def __str__(self) -> str:
        return f"{self.change} ({self.cause}): {self.outcome}."

    @property
    def outcome(self) -> str:
        """What it saved, of what was promised, and whether the output is equal."""
        if self.before_s is None or self.after_s is None:
            return f"failed: {self.note}"
        saved_s = self.before_s - self.after_s
        of = f"{_seconds(saved_s)} of {_seconds(self.before_s)}{'' if self.unit == 'run' else f' a {self.unit}'}"
        ends = "" if self.low_s is None else f" (95 %: {_seconds(self.low_s)} to {_seconds(self.high_s or 0)})"
        promised = "" if self.promised_s is None else f", {_seconds(self.promised_s)} promised"
        more = "; a larger budget decides" * (self.pairs < MOST_PAIRS)
        gain = {
            "faster": f"saves {of}{ends}{promised}",
            "not faster": f"no gain: {_seconds(self.after_s)} with it, {_seconds(self.before_s)} without{promised}",
            "undecided": f"not certain after {self.pairs} of each: {of}{ends}{promised}{more}",
        }[self.decision]
        near = "" if self.difference is None else f" by {self.difference:.2g} of its norm"
        output = {
            "equal": "output equal, bit for bit",
            "differs": f"output differs{near}",
            "not repeatable": f"output differs{near}, as that of equal runs does",
            "unknown": f"output not compared: {self.note}",
        }[self.output]
        return f"{gain}; {output}{'; without ' * bool(self.loses)}{self.loses}"


def _seconds(seconds: float) -> str:
    return duration(round(abs(seconds) * 1e12)) if seconds >= 0 else f"-{duration(round(-seconds * 1e12))}"


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """Result of a tuning.

    Parameters
    ----------
    trials
        Trials in the order in which they ran.
    best
        Values that won; empty if the program's values stay.
    speedup
        Speed-up of `best` against the program's values; 1.0 if these stay.
    messages
        Events; printed, they are sentences.
    seconds
        Duration in seconds.
    code
        Lines of `as_code`.
    fingerprint
        Fingerprint of the job; "" if unknown.
    tried
        Remedies that were tried in place of values.
    """

    trials: tuple[Trial, ...]
    best: dict[str, Value] = field(default_factory=dict)
    speedup: Speedup = SAME
    messages: tuple[Message, ...] = ()
    seconds: float = 0.0
    code: str = ""
    fingerprint: str = ""
    tried: tuple[Tried, ...] = ()

    def __repr__(self) -> str:
        if self.tried:
            return f"Tuning({', '.join(f'{each.cause} {each.decision}' for each in self.tried)})"
        gain = f"{self.speedup.brief}, {self.best}" if self.best else "the values stay as they are"
        return f"Tuning({plural(len(self.trials), 'trial')}, {gain})"

    @property
    def speedups(self) -> tuple[Speedup | None, ...]:
        """Speed-up of each trial against the program's values; None if it was not measured.

        Of a trial that raced another one, it is the product of the races between; their errors count as independent.
        """
        speedups: list[Speedup | None] = []
        for trial in self.trials:
            if trial.verdict == "default":
                speedups.append(SAME)
            elif trial.ratio is None or trial.against is None or (base := speedups[trial.against]) is None:
                speedups.append(None)
            else:
                low, high = trial.low or 0.0, math.inf if trial.high is None else trial.high
                speedups.append(_product(base, Speedup(trial.ratio, low, high)))
        return tuple(speedups)

    @property
    def frame(self) -> pl.DataFrame:
        """The trials, one per row, with the fields of `Trial`; values as text."""
        rows = [asdict(trial) | {"trial": trial.number, "values": format_values(trial.values)} for trial in self.trials]
        return pl.DataFrame([{name: row[name] for name in _COLUMNS} for row in rows], schema=_COLUMNS)

    @property
    def rejected(self) -> dict[str, str]:
        """Why trials failed or changed the output, by their values as text."""
        reasons = {"failed": "it raised an error", "different output": "the output differed"}
        rejected = [trial for trial in self.trials if trial.verdict in reasons]
        return {format_values(trial.values): trial.error or reasons[trial.verdict] for trial in rejected}

    def apply(self, data: Any) -> Any:
        """Return the program's data with the best values; unchanged if the program's values stay.

        Seeded shuffles of ``tf.data`` continue where the program's are, also if they have begun before.

        Parameters
        ----------
        data
            Data made like those that were tuned: of ``tf.data``, Grain, or a DataLoader; or the tuple of arrays, of
            which the batches are returned, shuffled as ``fit`` does.

        Raises
        ------
        ValueError, TpunbError
            If it is another pipeline.
        """
        if not self.best:
            return data
        if are_arrays(data):
            return shuffled(data, self.best)
        return pipeline_of(data).in_place(self.best)

    def as_code(self) -> str:
        """Return the lines of code that set the best values; "" if the program's values stay."""
        return self.code

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Tuning:
        """Return the tuning that was written to a folder; of an interrupted one, its finished trials.

        Raises
        ------
        TpunbError
            If there is none, or it cannot be read.
        """
        path = Path(folder) / _FILE
        if not path.is_file():
            raise TpunbError(f"no tuning in {plain(str(folder))}", hint="pass the folder= that tune() wrote to")
        try:
            lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]  # the last may be incomplete
            trials = tuple(_trial(**line["trial"]) for line in lines if "trial" in line)
            fingerprint = next((str(line["fingerprint"]) for line in lines if "fingerprint" in line), "")
            ends = [line["end"] for line in lines if "end" in line]
            if not ends:
                cut_off = Message("interrupted", {"trials": len(trials)})
                return cls(trials, messages=(cut_off,), fingerprint=fingerprint)
            end = ends[-1]
            messages = tuple(Message(**message) for message in end["messages"])
            _ = [*map(str, messages)]  # raises if a code is unknown
            speedup = Speedup(*end["speedup"])
            return cls(trials, end["best"], speedup, messages, end["seconds"], end["code"], fingerprint)
        except (ValueError, KeyError, TypeError) as error:
            raise TpunbError(f"{plain(str(path))} cannot be read: {plain(str(error))}") from error


def _product(a: Speedup, b: Speedup) -> Speedup:
    """Return the product of two speed-ups; the half widths of their intervals, as logarithms, add by their squares."""
    ratio = a.ratio * b.ratio
    down = math.hypot(*(math.log(each.ratio / each.low) if each.low > 0 else math.inf for each in (a, b)))
    up = math.hypot(*(math.log(each.high / each.ratio) for each in (a, b)))
    return Speedup(ratio, ratio * math.exp(-down), ratio * math.exp(up) if up < 700 else math.inf)


def _trial(*, values: object, **fields: Any) -> Trial:
    if not isinstance(values, dict):
        raise TypeError(f"values are {values!r}")
    return Trial(values=values, **fields)


class Journal:
    """Writes trials to a folder as they finish, one JSON line each; to nowhere for None.

    An earlier tuning in the folder is replaced.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._path = None if folder is None else Path(folder) / _FILE
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("")

    def start(self, fingerprint: str) -> None:
        """Write the fingerprint of the job."""
        self._write({"fingerprint": fingerprint})

    def record(self, trial: Trial) -> None:
        """Write a trial."""
        self._write({"trial": asdict(trial)})

    def end(self, tuning: Tuning) -> None:
        """Write the result."""
        fields = asdict(tuning)
        self._write({"end": {name: fields[name] for name in ("best", "speedup", "messages", "seconds", "code")}})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def format_values(values: Mapping[str, Value]) -> str:
    """Return values as text.

    >>> format_values({"map:1 parallel calls": 8, "end prefetch": -1}), format_values({})
    ('map:1 parallel calls = 8, end prefetch = AUTOTUNE', 'as written')
    """
    pairs = (f"{plain(name)} = {'AUTOTUNE' if value == AUTOTUNE else value}" for name, value in values.items())
    return ", ".join(pairs) or "as written"
