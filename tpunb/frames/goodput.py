"""Goodput: where the wall time of a run went, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real

import polars as pl

from tpunb import schema
from tpunb.errors import wrong
from tpunb.text import cut, duration, percent, plain, plural

_IN = {"callbacks": "in callbacks", "evaluation": "in evaluation", "profiler": "in the profiler"}
_LEAST, _MOST, _DETAILS = 0.02, 4, 2  # share of wall time that is named; most accounts; most details of one
_UNEXPLAINED = 0.05  # share of wall time in "other" above which the sentence begins with it
_BUSY = 0.25  # share of the processors that other programs use on a busy machine


@dataclass(frozen=True, eq=False, repr=False)
class Goodput:
    """Where the wall time of a run went.

    Parameters
    ----------
    frame
        One row per (host, account, phase, detail); each host adds up to `wall_ps`: ``tpunb.schema.GOODPUT``.
    stalls
        Places in the program where steps were held up, most time first: ``tpunb.schema.GOODPUT_STALLS``.
    segments
        The same time in order, one row per stretch of one account: ``tpunb.schema.GOODPUT_SEGMENTS``.
    load
        Load of the process and the machine by second: ``tpunb.schema.LOAD``.
    wall_ps
        Wall time of the captured block in picoseconds.
    ideal_step_ps
        Median step time without waits, callbacks and stalls, in picoseconds; None without steps.
    notes
        What the run has no record of, one line each.
    """

    frame: pl.DataFrame
    stalls: pl.DataFrame
    segments: pl.DataFrame
    load: pl.DataFrame
    wall_ps: int
    ideal_step_ps: int | None
    notes: tuple[str, ...] = ()

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return max(self.frame["host"].n_unique(), 1)

    @property
    def ratio(self) -> float:
        """Productive time as a share of wall time, mean over hosts, 0 to 1."""
        return self.time_ps("productive") / max(self.wall_ps, 1)

    def time_ps(self, account: str) -> int:
        """Return the time in an account, mean over hosts, in picoseconds.

        Raises
        ------
        ValueError
            If there is no such account.
        """
        if account not in schema.ACCOUNTS:
            raise wrong("time_ps", "account", f"be one of {', '.join(schema.ACCOUNTS)}", account)
        return int(self.frame.filter(account=account)["time_ps"].sum()) // self.hosts

    def cost(self, *, per_hour: float) -> pl.DataFrame:
        """Return what each account cost, dearest first: columns ``account``, ``time_ps`` and ``cost``.

        Parameters
        ----------
        per_hour
            Price of all hosts for one hour, in any currency.

        Raises
        ------
        ValueError
            If the price is not a number of 0 or more.
        """
        if isinstance(per_hour, bool) or not isinstance(per_hour, Real) or not 0 <= float(per_hour) < math.inf:
            raise ValueError(f"The per_hour parameter of cost must be a number of 0 or more. Got {per_hour!r} instead.")
        times = self.frame.group_by("account").agg((pl.col("time_ps").sum() // self.hosts).alias("time_ps"))
        priced = times.with_columns(cost=pl.col("time_ps") / 3.6e15 * float(per_hour))
        return priced.sort("cost", "account", descending=[True, False])

    @property
    def sentence(self) -> str:
        """Where the time went, in one sentence."""
        return _sentence(self)

    def __repr__(self) -> str:
        return f"Goodput({self.sentence})"


def totals(goodput: Goodput, *by: str) -> pl.DataFrame:
    """Return (account, *by, time_ps, count, share): time of each account, mean over hosts, most first."""
    share = pl.col("time_ps") / max(goodput.wall_ps, 1)
    times = goodput.frame.drop_nulls("time_ps").group_by("account", *by, maintain_order=True)
    summed = times.agg(pl.col("time_ps").sum() / goodput.hosts, pl.col("count").sum())
    return summed.filter(pl.col("time_ps") > 0).with_columns(share=share).sort("time_ps", descending=True)


def _sentence(goodput: Goodput) -> str:
    """Return where the wall time went: productive time, then the accounts that took most of the rest."""
    accounts = {str(row["account"]): row for row in totals(goodput).iter_rows(named=True)}
    productive = accounts.pop("productive", {"time_ps": 0.0})["time_ps"]
    mean = f" (mean of {plural(goodput.hosts, 'host')})" if goodput.hosts > 1 else ""
    first = f"{duration(goodput.wall_ps)}{mean}: {duration(productive)} productive ({percent(goodput.ratio)})"
    parts = []
    if accounts.get("other", {"share": 0.0})["share"] > _UNEXPLAINED:
        notes = "; ".join(cut(plain(note), 160) for note in goodput.notes[:2])
        parts = [f"{duration(accounts.pop('other')['time_ps'])} other" + f" ({notes})" * bool(notes)]
    named = [(name, row["time_ps"]) for name, row in accounts.items() if row["share"] >= _LEAST]
    for name, time_ps in named[:_MOST]:
        details = ", ".join(_details(goodput, name, duration(time_ps)))
        parts.append(f"{duration(time_ps)} {_IN.get(name, name)}" + f": {details}" * bool(details))
    return ", ".join([first, *(["; ".join(parts)] if parts else [])])


def _details(goodput: Goodput, account: str, whole: str) -> Iterator[str]:
    """Yield the largest details of an account, each with its time unless that is the whole."""
    again = pl.col("detail").str.replace(" again for .*", " again")  # tracing for one shape after the other
    rows = totals(replace(goodput, frame=goodput.frame.with_columns(again)), "detail").drop_nulls("detail")
    rows = rows.filter(pl.col("account") == account, pl.col("share") >= _LEAST / 4)
    for row in rows.head(_DETAILS).iter_rows(named=True):
        time = duration(row["time_ps"])
        yield cut(plain(row["detail"]), 80) + f" {time}" * (time != whole)


def busy(goodput: Goodput) -> str | None:
    """Return that other programs kept the machine busy, or None if they did not or there is no record of it."""
    others = others_used(goodput)
    return None if others is None else f"the machine was busy: {others}"


def others_used(goodput: Goodput) -> str | None:
    """Return the share of the processors that other programs used on a busy machine, in words; else None."""
    share = (goodput.load["machine_cpu"] - goodput.load["cpu"]).drop_nulls().drop_nans().mean()
    if not isinstance(share, float) or share <= _BUSY:
        return None
    return f"other programs used {percent(share)} of its processors"
