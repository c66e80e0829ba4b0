"""Comparison: the changes from one run to another, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tpunb import schema
from tpunb.frames.conversion import Tabular
from tpunb.frames.phases import Phases
from tpunb.text import duration, plain, plural

_ALONE = 3  # most unmatched phases that are named


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """Two runs with their phases matched one to one; a change is always b minus a, a ratio b by a.

    Each interval alone covers 95 %: of many, some miss.

    Parameters
    ----------
    a, b
        Phases of each run.
    frame
        One row per pair of phases, longest first: ``tpunb.schema.COMPARED``.
    ops
        Operations of each pair, the largest change first: ``tpunb.schema.COMPARED_OPS``.
    explained
        Contribution of each phase, matched or not, to the difference in run time: ``tpunb.schema.EXPLAINED``.
    accounts
        Contribution of each account to the difference in wall time: ``tpunb.schema.COMPARED_ACCOUNTS``.
    """

    a: Phases
    b: Phases
    frame: pl.DataFrame
    ops: pl.DataFrame
    explained: pl.DataFrame
    accounts: pl.DataFrame

    def __post_init__(self) -> None:
        tables = {"frame": "compared", "ops": "compared_ops", "accounts": "compared_accounts"}
        for name, table in {**tables, "explained": "explained"}.items():
            checked = schema.check(getattr(self, name), getattr(schema, table.upper()), table)
            object.__setattr__(self, name, checked)

    def __repr__(self) -> str:
        text = f"{plural(len(self), 'phase')} matched"
        if len(self) and (ratio := self.frame["ratio"][0]) is not None:
            low, high = self.frame["ratio_low"][0], self.frame["ratio_high"][0]
            interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
            text += f", step time ratio of the longest {ratio:.2f}{interval}"
        if self.a.steps.wall is not None and self.b.steps.wall is not None:
            wall_ps = self.b.steps.wall.span_ps - self.a.steps.wall.span_ps
            text += f", wall time {_signed(wall_ps)}"
            change = pl.col("change_ps")
            most = self.accounts.filter((change > 0) if wall_ps > 0 else (change < 0)).head(2)
            named = [f"{account} {_signed(change)}" for account, change in most.select("account", "change_ps").rows()]
            text += f": {', '.join(named)}" if named else ""
        alone = [
            plain(self.a.names[a] if b is None else self.b.names[b]) + f" only in {'a' if b is None else 'b'}"
            for a, b in self.unmatched.select("phase_a", "phase_b").iter_rows()
        ]
        text += f", unmatched: {', '.join(alone[:_ALONE])}" if alone else ""
        text += f" and {len(alone) - _ALONE} more" if len(alone) > _ALONE else ""
        return f"Comparison({text})"

    @property
    def ratio(self) -> float | None:
        """Time of all steps of b by that of a, means over their hosts; None if a has none."""
        a, b = int(self.explained["dur_a_ps"].sum()), int(self.explained["dur_b_ps"].sum())
        return b / a if a > 0 else None

    @property
    def unmatched(self) -> pl.DataFrame:
        """The rows of `explained` of phases without a counterpart; outliers are not a phase."""
        return self.explained.filter(pl.col("phase_a").is_null() | pl.col("phase_b").is_null())

    @property
    def settings(self) -> pl.DataFrame:
        """Metadata of both runs, ``tpunb.schema.SETTINGS``: null where a run lacks it."""
        a, b = self.a.steps.metadata, self.b.steps.metadata
        rows = [(fact, a.get(fact), b.get(fact)) for fact in dict.fromkeys([*a, *b])]
        return pl.DataFrame(rows, schema=schema.SETTINGS, orient="row")


def _signed(time_ps: int) -> str:
    return f"{'-' if time_ps < 0 else '+'}{duration(abs(time_ps))}"
