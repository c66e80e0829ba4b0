"""What tuning found: its trials, the values that won, and what they gain."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import polars as pl

from tpunb.errors import TpunbError
from tpunb.frames.words import plain, plural
from tpunb.tuning.grain_pipeline import GrainPipeline
from tpunb.tuning.knob import Value
from tpunb.tuning.pipeline import Pipeline

Verdict = Literal["default", "faster", "not faster", "undecided", "other output", "refused"]

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


class Speedup(NamedTuple):
    """Time of a step before by that after, and its 95 % interval."""

    ratio: float
    low: float
    high: float


SAME = Speedup(1.0, 1.0, 1.0)
"""Of the program's own values."""


@dataclass(frozen=True)
class Trial:
    """Values that were tried.

    Attributes
    ----------
    number
        From 0, which is the program's own values.
    values
        That differ from the program's.
    verdict
        "faster" and its like are by the race with the trial `against`; "other output" and "refused" end one.
    seconds
        A step; null where it was not measured.
    against
        The number of the trial that was the best when this one ran.
    ratio, low, high
        Time of a step of that trial by time of a step of this one, and its 95 % interval.
    pairs
        In which both ran.
    equal
        Whether losses, metrics and the state after the last step were the program's own, to the last bit.
    error
        With what it was refused.
    spent
        Seconds.
    """

    number: int
    values: Mapping[str, Value]
    verdict: Verdict
    seconds: float | None = None
    against: int | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    equal: bool | None = None
    error: str | None = None
    spent: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """What tuning found.

    Parameters
    ----------
    trials
        In the order in which they ran.
    best
        The values that won; none where the program's own stay.
    speedup
        Of `best`, against the program's own values; 1.0 where those stay.
    said
        What there is to tell, in sentences.
    seconds
        That all of it took.
    code
        The lines of `as_code`.
    of
        The fingerprint of the job; "" where none was written.
    """

    trials: tuple[Trial, ...]
    best: dict[str, Value] = field(default_factory=dict)
    speedup: Speedup = SAME
    said: tuple[str, ...] = ()
    seconds: float = 0.0
    code: str = ""
    of: str = ""

    def __repr__(self) -> str:
        gain = f"{self.speedup.ratio:.2f}x [{self.speedup.low:.2f}, {self.speedup.high:.2f}], {self.best}"
        return f"Tuning({plural(len(self.trials), 'trial')}, {gain if self.best else 'the values stay as they are'})"

    @property
    def frame(self) -> pl.DataFrame:
        """One row a trial: what `Trial` holds, its values as text."""
        rows = [asdict(trial) | {"trial": trial.number, "values": in_words(trial.values)} for trial in self.trials]
        return pl.DataFrame([{name: row[name] for name in _COLUMNS} for row in rows], schema=_COLUMNS)

    @property
    def refused(self) -> dict[str, str]:
        """Why values were refused, or changed the output: by the values in words."""
        why = {"refused": "it raised", "other output": "the output was another"}
        return {in_words(one.values): one.error or why[one.verdict] for one in self.trials if one.verdict in why}

    def apply(self, data: Any) -> Any:
        """Return the program's data with the best values; as they are, where those of the program stay.

        Parameters
        ----------
        data
            A dataset made as the one that was tuned: of ``tf.data``, or of Grain.

        Raises
        ------
        ValueError, TpunbError
            When it is another pipeline.
        """
        if not self.best:
            return data
        of_grain = any(kind.__module__.partition(".")[0] == "grain" for kind in type(data).__mro__)
        return (GrainPipeline if of_grain else Pipeline)(data).build(self.best)

    def as_code(self) -> str:
        """Return the lines that give a program the best values, to be pasted; none where its own stay."""
        return self.code

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Tuning:
        """Return the tuning that was written to a folder; of one that was cut, the trials that it came to.

        Raises
        ------
        TpunbError
            When there is none, or it cannot be read.
        """
        path = Path(folder) / _FILE
        if not path.is_file():
            raise TpunbError(f"no tuning in {plain(str(folder))}", hint="give tune(..., folder=) the same folder")
        try:
            lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]  # the last may be half a line
            trials = tuple(_trial(**line["trial"]) for line in lines if "trial" in line)
            of = next((str(line["of"]) for line in lines if "of" in line), "")
            ends = [line["end"] for line in lines if "end" in line]
            if not ends:
                return cls(
                    trials, said=(f"It was cut after {plural(len(trials), 'trial')}: nothing was chosen.",), of=of
                )
            end = ends[-1]
            speedup = Speedup(*end["speedup"])
            return cls(trials, end["best"], speedup, tuple(end["said"]), end["seconds"], end["code"], of)
        except (ValueError, KeyError, TypeError) as error:
            raise TpunbError(f"{plain(str(path))} cannot be read: {plain(str(error))}") from error


def _trial(*, values: object, **facts: Any) -> Trial:
    if not isinstance(values, dict):
        raise TypeError(f"values are {values!r}")
    return Trial(values=values, **facts)


class Journal:
    """A folder to which trials are written as they arrive, one line of JSON each; None for nowhere.

    What an earlier tuning wrote there is replaced.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._path = None if folder is None else Path(folder) / _FILE
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("")

    def begin(self, of: str) -> None:
        """Write which job it is, by its fingerprint."""
        self._write({"of": of})

    def note(self, trial: Trial) -> None:
        """Write a trial."""
        self._write({"trial": asdict(trial)})

    def end(self, tuning: Tuning) -> None:
        """Write what was found."""
        named = ("best", "speedup", "said", "seconds", "code")
        self._write({"end": {name: getattr(tuning, name) for name in named}})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def in_words(values: Mapping[str, Value]) -> str:
    """Return values as text.

    >>> in_words({"map:1 parallel calls": 8, "end prefetch": -1}), in_words({})
    ('map:1 parallel calls = 8, end prefetch = AUTOTUNE', 'as written')
    """
    told = (f"{plain(name)} = {'AUTOTUNE' if value == -1 else value}" for name, value in values.items())
    return ", ".join(told) or "as written"
