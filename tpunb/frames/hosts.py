"""Hosts: which hosts of a job delay the others, why, and the gain of a replacement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.frames.conversion import Tabular
from tpunb.text import cut, percent, plain, plural

_MOST = 4  # hosts in a sentence


@dataclass(frozen=True, eq=False, repr=False)
class Hosts(Tabular):
    """Hosts of a job by what their delays cost.

    Parameters
    ----------
    frame
        One row per host: ``tpunb.schema.HOSTS``.
    critical
        Per step the chain of (host, device, collective) that ended it: ``tpunb.schema.CRITICAL``.
    lateness
        How late each host came in each step: ``tpunb.schema.LATENESS``.
    span_ps
        Step time of the job in picoseconds, median over hosts: the base of every share.
    by
        What arrivals were judged by: "collectives", or "step ends" if none are recorded.
    notes
        What is not judged, one line each.
    """

    frame: pl.DataFrame
    critical: pl.DataFrame
    lateness: pl.DataFrame
    span_ps: int
    by: str = "collectives"
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("frame", "critical", "lateness"):
            columns = getattr(schema, "HOSTS" if name == "frame" else name.upper())
            object.__setattr__(self, name, schema.check(getattr(self, name), columns, name))

    def share(self, time_ps: int | None) -> float:
        """Return a time as a share of the step time of the job."""
        return (time_ps or 0) / max(self.span_ps, 1)

    @property
    def sentence(self) -> str:
        """Which hosts to replace, and the gain of the job, in one sentence."""
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        present, lost = self.frame.filter(pl.col("lost").is_null()), self.frame["lost"].drop_nulls()
        named, judged = present.filter("named"), present.drop_nulls("costs_ps")
        first = plural(present.height, "host")
        if judged.is_empty():
            yield f"{first}, none waits for another"
        elif named.is_empty():
            gain = percent(self.share(judged["costs_ps"][0]), 2)
            worst = f" more than their spread explains, {_name(judged.row(0, named=True))} by {gain} of step time"
            yield f"{first}, none delays the others{worst if judged['costs_ps'][0] else ''}"
        else:
            rows = [*named.head(_MOST).iter_rows(named=True)]
            each = (f"{_name(row)} to gain {percent(self.share(row['costs_ps']), 1)} ({_why(row)})" for row in rows)
            more = f" and {named.height - _MOST} more" if named.height > _MOST else ""
            yield f"{first}, replace {', '.join(each)}{more}"
            together = percent(self.share(named["together_ps"][-1]), 1)
            yield f"{together} together, of step time" if named.height > 1 else "of step time"
        if self.by != "collectives" and not judged.is_empty():
            yield f"judged by {self.by}, as no collectives are recorded"
        if lost.len():
            yield f"{lost.len():,} lost"
        yield from map(plain, self.notes)

    def __repr__(self) -> str:
        return f"Hosts({self.sentence})"


def _name(row: dict[str, Any]) -> str:
    return cut(plain(row["host"]))


def _why(row: dict[str, Any]) -> str:
    """Return cause and recurrence of a row of ``tpunb.schema.HOSTS``."""
    where = [plain(row[name]) for name in ("device", "op") if row[name] is not None]
    cause = f"{row['cause']} of {', '.join(map(cut, where))}" if where else f"cause {row['cause']}"
    return f"{cause}, {row['recurrence']}"
