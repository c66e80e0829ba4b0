"""What a ``%%tpupoint`` cell shows when it ends.

One block of HTML in the colours of the page, without scripts or a network; a PNG of the ribbon; and plain text for
a terminal. Names of runs, marks and operations, and the reasons of errors, are not trusted.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tpunb import charts, pictures
from tpunb.cluster import advise
from tpunb.errors import TpunbError
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.words import plain
from tpunb.widgets import tables
from tpunb.widgets.described import advised
from tpunb.widgets.tables import many, safe

if TYPE_CHECKING:
    from tpunb.recorder import Run
    from tpunb.tuning.job import Job
    from tpunb.tuning.nouns import Tuning
    from tpunb.tuning.online import Online
    from tpunb.widgets.explorer import PhaseExplorer

_GROUPS = 4  # kinds of failures that are told
_NAMES = 8  # of hosts
_ADVICE = "What would save time, at most"
_GIVEN_UP = "given up: "
_RAW = "plugins/profile"
_WHY = {
    "start": "at the start",
    "evenly": "evenly",
    "continuous": "back to back",
    "new phase": "for a new phase",
    "under-sampled": "for steps hardly seen yet",
}
_MOMENT = re.compile(r"; asked again in [\d.]+ s|, [\d.]+ s after it was asked")  # else no two failures are alike


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """A run in one look: its phases, what took its time, and when the profiler watched.

    Parameters
    ----------
    profile
        What was recorded.
    steps
        Its steps, or None where there are none.
    phases
        Its phases, or None where there are none.
    note
        What went wrong, or why something is missing.
    run
        The capture that recorded it.
    online
        What was tuned while it ran.
    """

    profile: Profile
    steps: Steps | None = None
    phases: Phases | None = None
    note: str | None = None
    run: Run | None = None
    online: Online | None = None

    @property
    def tuning(self) -> Tuning | None:
        """What tuning found while it ran; None where nothing was tried."""
        return None if self.online is None else self.online.tuning

    @property
    def job(self) -> Job:
        """The model and the dataset of the last ``fit``, to be run again by ``tp.tune``.

        Raises
        ------
        TpunbError
            When the run was loaded, or as `tpunb.recorder.Run.job`.
        """
        if self.run is None:
            raise TpunbError("an earlier run holds no model and no data", hint="make a tp.Job(build)")
        return self.run.job

    @property
    def headline(self) -> str:
        """What came out, in one line."""
        if self.phases is None:
            found = f"{len(self.steps):,} steps, no phases" if self.steps is not None else "no steps"
        else:
            found = f"{many(len(self.phases), 'phase')} over {many(len(self.phases.steps), 'step')}"
            found += f"; top 3 cover {100 * self.phases.coverage(3):.0f} %, homogeneity {self.phases.homogeneity:.2f}, "
            found += f"noise {100 * self.phases.noise:.0f} % of the time"
        return f"{found}; {self._observed}"

    @property
    def _observed(self) -> str:
        windows = _watched(self.profile.windows)["window"].n_unique()
        return f"observed {100 * self.profile.observed:.0f} % of the run in {many(windows, 'window')}"

    @property
    def _facts(self) -> list[str]:
        """What is known besides, in a few quiet lines."""
        windows = self.profile.windows
        slower, saving = _slower(self.profile.overhead), self._saving
        watched = " · ".join(filter(None, [_reasons(windows), slower, saving, _hosts(windows)]))
        where = " · ".join(filter(None, [self.profile.name, self._raw, self._where]))
        return [*filter(None, [watched, *([] if self.online is None else self.online.facts), where])]

    @property
    def _saving(self) -> str | None:
        """Say how long checkpoints took, which is part of the slow-down."""
        seconds = 0.0 if self.run is None else self.run.status.saving
        return f"of it, saving took {seconds:.1f} s" if seconds >= 0.05 else None

    @property
    def _where(self) -> str | None:
        where, here = self.profile.source, Path.cwd()
        if isinstance(where, Path) and where.is_relative_to(here):
            where = where.relative_to(here)  # paths say who works where
        return None if self._in_memory else str(where)

    @property
    def _in_memory(self) -> bool:
        return str(self.profile.source).startswith("memory:")

    @property
    def _raw(self) -> str:
        """What is left of the windows themselves."""
        if self.profile.read_events is None:
            return "raw windows: none (statistics only)"
        if self._in_memory or (isinstance(self.profile.source, Path) and not (self.profile.source / _RAW).is_dir()):
            return "raw windows: kept"
        return f"raw windows of the phases, for XProf: {_RAW} of the run folder"

    @property
    def _notes(self) -> list[str]:
        return [note for note in (self.note, *_failures(self.profile.windows)) if note]

    @cached_property
    def _tables(self) -> list[tables.Table]:
        if self.phases is None:
            return [tables.Table("Windows of the profiler", *_windows(self.profile.windows))]
        return tables.of_phases(self.phases)

    @cached_property
    def _advice(self) -> list[str]:
        """What would save most time."""
        if self.phases is None:
            return []
        return advised(advise(self.phases).drop_nulls("saves_ps"))

    @cached_property
    def _chart(self) -> pictures.LayerPicture | None:
        return None if self.phases is None or not len(self.phases.steps) else charts.timeline(self.phases)

    def __repr__(self) -> str:
        lines = [self.headline, *self._facts, *(f"! {note}" for note in self._notes)]
        for caption, header, rows, _ in self._tables:
            lines += ["", caption, *tables.text([header, *rows])]
        if self._advice:
            lines += ["", _ADVICE, *(f"  {advice}" for advice in self._advice)]
        return "\n".join(plain(line) for line in lines)

    def _repr_html_(self) -> str:
        picture = "" if self._chart is None else pictures.svg(self._chart)
        items = "".join(f"<li>{safe(advice)}</li>" for advice in self._advice)
        advice = f'<div class="tpunb-advice"><b>{_ADVICE}</b><ul>{items}</ul></div>' if items else ""
        return tables.block(self.headline, self._facts, self._notes, self._tables, advice + picture)

    @cached_property
    def explorer(self) -> PhaseExplorer | None:
        """The panel in which the run is seen and cut; None where it has no phases."""
        if self.phases is None:
            return None
        from tpunb.widgets.explorer import PhaseExplorer

        return PhaseExplorer(self.phases, about=([self._observed, *self._facts], self._notes))

    def freeze(self) -> None:
        """Put pictures and tables where the panel is shown: a notebook saved then needs no kernel to show them."""
        if self.explorer is not None:
            self.explorer.freeze()

    def shown_at(self, display_id: str) -> None:
        """Note in which output this is shown."""
        if _in_kernel() and self.explorer is not None:
            self.explorer.places.add(display_id)

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        bundle = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        if self._chart is not None:
            bundle["image/png"] = base64.b64encode(pictures.png(self._chart)).decode()
        if _in_kernel() and self.explorer is not None:
            bundle |= self.explorer.view_bundle()
        return bundle


def _in_kernel() -> bool:
    """Return whether there is a front end that could show a widget."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _watched(windows: pl.DataFrame) -> pl.DataFrame:
    return windows.filter(pl.col("dur_ps") > 0)


def _reasons(windows: pl.DataFrame) -> str | None:
    """Say why windows were asked for, as far as that is known."""
    asked = _watched(windows).drop_nulls("why").sort("start_ps").unique("window", keep="first", maintain_order=True)
    why = asked.group_by("why", maintain_order=True).len()
    if why.is_empty():
        return None
    return "windows: " + ", ".join(f"{n:,} {_WHY.get(reason, reason)}" for reason, n in why.iter_rows())


def _slower(overhead: float | None) -> str | None:
    if overhead is None:
        return None
    return f"watching slowed it by an estimated {100 * overhead:.1f} %".replace(" 0.0 %", " 0.1 % at most")


def _hosts(windows: pl.DataFrame) -> str | None:
    names = sorted(windows["host"].unique())
    if len(names) < 2:
        return None
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return f"{len(names):,} hosts: {', '.join(names[:_NAMES])}{more}"


def _failures(windows: pl.DataFrame) -> list[str]:
    """Say how many windows did not come and why, host by host where there are several; alike reasons together."""
    several = windows["host"].n_unique() > 1
    told: Counter[tuple[str, str]] = Counter()
    for host, error in windows.drop_nulls("error").sort("start_ps").select("host", "error").iter_rows():
        told[host if several else "", _MOMENT.sub("", error).removeprefix(f"{host}: ")] += 1
    asked = dict(windows.group_by("host").len().iter_rows()) | {"": windows.height}
    said = []
    for (host, error), n in told.most_common(_GROUPS):
        happened, reason = "failed", error
        if error.startswith(_GIVEN_UP):  # for the program's own profiler
            happened, reason = _GIVEN_UP.rstrip(": "), error.removeprefix(_GIVEN_UP)
        said.append(f"{n:,} of {many(asked[host], 'window')}{f' of {host}' if host else ''} {happened}: {reason}")
    others = told.most_common()[_GROUPS:]
    if others:
        said.append(f"{sum(n for _, n in others):,} more failed for {many(len(others), 'other reason')}")
    return said


def _windows(windows: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    shown = windows.sort("window", "host", "start_ps").head(tables.ROWS)
    several = windows["host"].n_unique() > 1
    rows = [
        [
            f"Profile {row['window']}" + (f" of {row['host']}" if several else ""),
            (row["error"] or "–").removeprefix(f"{row['host']}: "),
            f"{row['start_ps'] / 1e12:,.2f}",
            f"{row['dur_ps'] / 1e12:,.2f}",
            "–" if row["events"] is None else f"{row['events']:,}",
            "–" if row["steps"] is None else f"{row['steps']:,}",
        ]
        for row in shown.iter_rows(named=True)
    ]
    if windows.height > tables.ROWS:
        rows.append([f"{windows.height - tables.ROWS} more", *["–"] * 5])
    return ["Window", "Error", "Start (s)", "Length (s)", "Events", "Steps"], rows
