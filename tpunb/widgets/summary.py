"""The summary that a ``%%tpupoint`` cell shows at its end.

One block of HTML in the colours of the page, without scripts or a network; a PNG of the timeline; and plain text for
terminals. Names of runs, kinds of steps and operations, and error messages are not trusted.
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

from tpunb import charts, schema
from tpunb.analysis import advise
from tpunb.analysis.goodput import Goodput
from tpunb.analysis.run import OfRun, loaded
from tpunb.analysis.run import Run as RunLike
from tpunb.analysis.run import phases as phases_of
from tpunb.analysis.run import steps as steps_of
from tpunb.charts import render
from tpunb.charts.timeline_rows import Timeline
from tpunb.cluster.assign import method_of
from tpunb.errors import NoSteps, TpunbError
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.conversion import write_atomically
from tpunb.frames.phases import PhaseMethod
from tpunb.profiler.capture import NullRun
from tpunb.signals import STEP_TIMES_ONLY
from tpunb.text import (
    duration,
    earlier_run,
    estimated_overhead,
    format_error,
    plain,
    plural,
    relative,
    windows_cover,
)
from tpunb.widgets import exports, face, phase_view
from tpunb.widgets.explorer_state import ExplorerState
from tpunb.widgets.frontends import in_kernel
from tpunb.widgets.table import METHOD, ROWS, Table, block, document, figure, measured, table, text

if TYPE_CHECKING:
    from tpunb.profiler.capture import Run
    from tpunb.tuning.job import Job
    from tpunb.tuning.online import Online
    from tpunb.tuning.results import Tuning
    from tpunb.widgets.explorer import PhaseExplorer

_GROUPS = 4  # most kinds of failures that are listed
_NAMES = 8  # most hosts that are listed
_GIVEN_UP = "given up: "
_TOO_EARLY = (
    "the run was over before its first window; "
    "for operations, run more steps or trace from the start: --continuous (tp.Schedule.continuous())"
)
_TOO_SHORT = (
    "no window held a whole step; for operations, take longer windows: --window 10 (tp.Schedule.fixed(window=10))"
)
_RAW = "plugins/profile"
_REASONS = {
    "start": "at the start",
    "evenly": "evenly spaced",
    "continuous": "back to back",
    "new phase": "for a new phase",
    "under-sampled": "for under-sampled steps",
}
_MOMENT = re.compile(r"; asked again in [\d.]+ s|, [\d.]+ s after it was asked")  # else no two failures are alike


@dataclass(frozen=True, eq=False, repr=False)
class Summary(NullRun, OfRun):
    """A run at a glance: its wall time, its phases, its most time-consuming operations and the profiler's windows.

    `step` and `batches` do nothing: a loop written for the magic runs again after it, on the magic's result. Every
    verb takes it as a run, grouped by the method that it shows.
    """

    profile: Profile
    steps: Steps | None = None
    phases: Phases | None = None
    note: str | None = None  # an error of the cell, or why something is missing
    run: Run | None = None
    online: Online | None = None

    @property
    def made_of(self) -> Profile | Phases:  # type: ignore[override]  # of other than the default phases, these
        """What verbs read of it."""
        return self.profile if self.phases is None or self.phases.method == method_of(None) else self.phases

    def __fspath__(self) -> str:
        return str(self.profile.source)

    @property
    def tuning(self) -> Tuning | None:
        """Result of the tuning during the run, or None if nothing was tried."""
        return None if self.online is None else self.online.tuning

    @property
    def job(self) -> Job:
        """The model and the dataset of the last ``fit``, for ``tp.tune``; TpunbError if the run was loaded."""
        from tpunb.tuning.job import job_of

        if self.run is None:
            raise TpunbError("a loaded run has no model and no data", hint="make a tp.tuning.Job(build)")
        return job_of(self.run)

    @property
    def headline(self) -> str:
        """The result in one line; shares are of step time without waits."""
        if self.phases is None:
            return f"{plural(len(self.steps), 'step')}, no phases" if self.steps is not None else "no steps"
        parts = {"explained variance": self.phases.explained_variance, "confidence": self.phases.confidence}
        measures = "".join(f"; {name} {value:.2f}" for name, value in parts.items() if value is not None)
        return f"{self.phases.headline}{measures}"

    @cached_property
    def goodput(self) -> Goodput | None:
        """Where the wall time went, or None if there is no record of it."""
        return phase_view.goodput_of(self.phases or self.profile) or phase_view.goodput_of(self.profile)

    @cached_property
    def _lines(self) -> list[str]:
        if self.steps is None and self.goodput is not None:
            return [f"No steps were found in {duration(self.goodput.wall_ps)}."]
        return phase_view.lines(self.goodput, self.phases) or [self.headline]

    @property
    def _tuned(self) -> list[str]:
        return [] if self.online is None else [self.online.headline]

    @property
    def _method(self) -> list[str]:
        """Return how the phases were found, and the windows."""
        return self._facts if self._lines == [self.headline] else [self.headline, *self._facts]

    @property
    def _facts(self) -> list[str]:
        """Return the windows, their cost, and where the run is kept; shares are of run time."""
        windows, online = self.profile.windows, [] if self.online is None else self.online.facts
        covered = windows_cover(_traced(windows)["window"].n_unique(), self.profile.observed)
        cost = [covered + _reasons(windows), self._overhead, _hosts(windows)]
        where = [self.profile.name, self._raw, self._where]
        resumed = () if self.run is None else self.run.resumed
        found = () if self.steps is None else _found(self.steps)
        return [*found, " · ".join(filter(None, cost)), *online, *resumed, " · ".join(filter(None, where))]

    @property
    def _overhead(self) -> str | None:
        saving = 0.0 if self.run is None else self.run.status.saving
        share, interval = self.profile.overhead, self.profile.overhead_interval
        if self.goodput is not None and not self.goodput.frame.filter(account="profiler")["time_ps"].null_count():
            share, interval = self.goodput.time_ps("profiler") / self.goodput.wall_ps, None  # as the verdict has it
        parts = [] if share is None else [estimated_overhead(share, interval)]
        parts += [f"{'of which ' * bool(parts)}checkpointing {saving:.1f} s"] if saving >= 0.05 else []
        return f"cost of windows: {', '.join(parts)}" if parts else None

    @property
    def _where(self) -> str | None:
        return None if self._in_memory else relative(self.profile.source)

    @property
    def _earlier(self) -> str | None:
        earlier = None if self.run is None else self.run.earlier_run
        return None if earlier is None else earlier_run(self.profile.source, earlier)

    @property
    def _in_memory(self) -> bool:
        return str(self.profile.source).startswith("memory:")

    @property
    def _raw(self) -> str:
        if self.profile.read_events is None:
            return "raw windows: none (statistics only)"
        if self._in_memory or (isinstance(self.profile.source, Path) and not (self.profile.source / _RAW).is_dir()):
            return "raw windows: kept"
        if isinstance(self.profile.source, Path) and any((self.profile.source / _RAW).rglob("*.trace.json")):
            return f"raw windows for Perfetto: {_RAW} in the run folder"
        return f"raw windows for XProf: {_RAW} in the run folder"

    @property
    def _notes(self) -> list[str]:
        disturbed = [*self.profile.notes, *phase_view.warnings(self.goodput)]
        return [
            note
            for note in (self.note, self._earlier, *disturbed, *self._untraced, *_failures(self.profile.windows))
            if note
        ]

    @property
    def _untraced(self) -> list[str]:
        """Return why steps have no operations, if no window failed."""
        windows = self.profile.windows
        if self.steps is None or not len(self.steps) or len(self.steps.full()) or windows["error"].count():
            return []
        why = _TOO_SHORT if windows.height else _TOO_EARLY
        return [f"{STEP_TIMES_ONLY}: {why}"]

    @cached_property
    def _tables(self) -> list[Table]:
        if self.phases is None:
            return [_windows(self.profile.windows)]
        return phase_view.tables(self.phases)

    @cached_property
    def _advice(self) -> list[Table]:
        if self.phases is None:
            return []
        advice = phase_view.advised(advise(self.phases).drop_nulls("saves_ps"), self.phases)
        return [advice] if advice["rows"] else []

    @cached_property
    def _chart(self) -> render.LayerPicture | None:
        return None if self.phases is None or not len(self.phases.steps) else charts.timeline(self.phases)

    def __repr__(self) -> str:
        lines = [*self._tuned, *self._lines, *(f"! {note}" for note in self._notes)]
        for each in (*self._advice, *self._tables):
            lines += ["", *text(each)]
        lines += ["", METHOD, *(f"  {line}" for line in self._method)]
        return "\n".join(plain(line) for line in lines)

    @cached_property
    def _state(self) -> ExplorerState | None:
        """What the explorer shows first, or None without phases."""
        if self.phases is None:
            return None
        messages = self._facts, [*self._tuned, *self._notes]
        shown = Timeline(self.phases.steps)
        return ExplorerState(self.phases, self.phases, "", {}, shown, profile=self.profile, messages=messages)

    def _repr_html_(self) -> str:
        run, state, answer = self.goodput, self._state, ""
        if state is None:
            lines, notes = [*self._tuned, *self._lines[:1]], self._notes
            body = "" if run is None else face.html(face.spent(run))
        else:
            answer = "" if state.answer is None else face.html(state.answer)
            lines, notes = [] if answer else [*self._lines[:1]], state.notes[1]
            body = exports.evidence_of(state, render.svg, rates=True) + face.html(state.todo)
        return block(lines, notes, body, self._tables, self._method, answer=answer)

    @cached_property
    def explorer(self) -> PhaseExplorer | None:
        """The explorer of the run, or None if it has no phases."""
        if self.phases is None:
            return None
        from tpunb.widgets.explorer import PhaseExplorer

        messages = self._facts, [*self._tuned, *self._notes]
        return PhaseExplorer(self.phases, messages=messages, profile=self.profile, folded=True)

    def save(self, path: str | Path) -> Path:
        """Write the summary as one HTML file, which needs neither a kernel nor a network."""
        page = document(self.profile.name or "Summary", f"<main>{self._repr_html_()}</main>")
        return write_atomically(Path(path), page)

    def to_static(self) -> None:
        """Replace the shown panel by pictures and tables, which a saved notebook shows without a kernel."""
        if self.explorer is not None:
            self.explorer.to_static()

    def shown_at(self, display_id: str) -> None:
        """Show the explorer below the output in which the pictures are shown."""
        if in_kernel() and self.explorer is not None:
            self.explorer.displays.show_below(display_id, self.explorer.view_bundle())

    def pictures(self) -> dict[str, Any]:
        """Return what stands above the explorer, by media type."""
        bundle = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        if in_kernel() and self.explorer is not None:
            bundle["text/html"] = self.explorer.displays.marked(bundle["text/html"])
        elif self._chart is not None:
            bundle["image/png"] = base64.b64encode(render.png(self._chart)).decode()
        return bundle

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        bundle = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        if self._chart is not None:
            bundle["image/png"] = base64.b64encode(render.png(self._chart)).decode()
        if in_kernel() and self.explorer is not None:
            bundle |= self.explorer.view_bundle()
        return bundle


def summary(run: RunLike, *, method: PhaseMethod | str | None = None, note: str | None = None) -> Summary:
    """Return the summary of a run, as a ``%%tpupoint`` cell shows it.

    Parameters
    ----------
    run
        Path of the run, its Profile, Steps or Phases.
    method
        Phase method or its name; ``DBSCAN()`` if None, or that of the phases.
    note
        Warning above the summary.

    Raises
    ------
    TypeError
        If `run` or `method` is something else.
    """
    found = loaded(run, "summary")
    if not isinstance(found, Profile):
        frame = steps_of(found)
        return Summary(_profile_of(frame), frame, phases_of(found, method), note)
    whole, grouped = None, None
    try:
        try:
            whole = steps_of(found)
        except NoSteps as error:
            note = ". ".join(filter(None, [note, format_error(error)]))
            if found.read_events is not None:
                whole = steps_of(found, by="whole")
        grouped = None if whole is None else phases_of(whole, method)
    except NoSteps as error:  # of the whole
        note = note or format_error(error)
    return Summary(profile=found, steps=whole, phases=grouped, note=note)


def _profile_of(steps: Steps) -> Profile:
    """Return the record of a run of which the steps alone are at hand."""
    ends = steps.frame["start_ps"] + steps.frame["dur_ps"]
    span_ps = int(ends.max() or 0) if steps.wall is None else steps.wall.span_ps  # type: ignore[arg-type]
    devices = pl.DataFrame(schema=schema.HARDWARE)
    return Profile(steps.name, steps.source, steps.windows, devices, span_ps, stored=steps)


def _traced(windows: pl.DataFrame) -> pl.DataFrame:
    return windows.filter(pl.col("dur_ps") > 0)


_FOUND = {
    "annotation": "as the program annotates them",
    "optimizer": "one for each update by an optimizer; the program marks none",
    "gradients": "one for each backward pass, as no optimizer was seen; the program marks none",
    "fetches": "one for each batch that was fetched; the program marks none",
    "calls": "one for each call of a compiled function; the program marks none: mark them to be certain",
    "module": "one for each run of a compiled module, in windows alone; the program marks none",
}


def _found(steps: Steps) -> tuple[str, ...]:
    """Return how steps were found, if the program or Keras did not say so."""
    rules = Counter(steps.frame["rule"].drop_nulls().to_list())
    texts = [f"{plural(count, 'step')}, {_FOUND[rule]}" for rule, count in rules.most_common() if rule in _FOUND]
    return (" · ".join(texts),) if texts else ()


def _reasons(windows: pl.DataFrame) -> str:
    """Return how many windows were taken for which reason, if known."""
    taken = _traced(windows).drop_nulls("reason").sort("start_ps").unique("window", keep="first", maintain_order=True)
    counts = taken.group_by("reason", maintain_order=True).len().rows()
    return ": " * bool(counts) + ", ".join(f"{n:,} {_REASONS.get(reason, reason)}" for reason, n in counts)


def _hosts(windows: pl.DataFrame) -> str | None:
    names = sorted(windows["host"].unique())
    if len(names) < 2:
        return None
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return f"{len(names):,} hosts: {', '.join(names[:_NAMES])}{more}"


def _failures(windows: pl.DataFrame) -> list[str]:
    """Return how many windows failed and why, for each host if there are several."""
    several = windows["host"].n_unique() > 1
    counts: Counter[tuple[str, str]] = Counter()
    for host, error in windows.drop_nulls("error").sort("start_ps").select("host", "error").iter_rows():
        counts[host if several else "", _MOMENT.sub("", error).removeprefix(f"{host}: ")] += 1
    taken = dict(windows.group_by("host").len().iter_rows()) | {"": windows.height}
    lines = []
    for key in [key for key in counts if STEP_TIMES_ONLY in key[1]]:
        lines.append(key[1])  # nothing failed
        del counts[key]
    for (host, error), n in counts.most_common(_GROUPS):
        given_up = error.startswith(_GIVEN_UP)  # for the program's own profiler
        result = f"{'given up' if given_up else 'failed'}: {error.removeprefix(_GIVEN_UP)}"
        lines.append(f"{n:,} of {plural(taken[host], 'window')}{f' of {host}' if host else ''} {result}")
    if others := counts.most_common()[_GROUPS:]:
        lines.append(f"{sum(n for _, n in others):,} more failed for {plural(len(others), 'other reason')}")
    return lines


def _windows(windows: pl.DataFrame) -> Table:
    shown = windows.sort("window", "host", "start_ps").head(ROWS)
    several = windows["host"].n_unique() > 1
    cells = [
        [
            f"Window {row['window']}" + (f" of {row['host']}" if several else ""),
            (row["error"] or "–").removeprefix(f"{row['host']}: "),
            f"{row['start_ps'] / 1e12:,.2f}",
            f"{row['dur_ps'] / 1e12:,.2f}",
            figure(row["events"]),
            figure(row["steps"]),
        ]
        for row in shown.iter_rows(named=True)
    ]
    if windows.height > ROWS:
        cells.append([f"{windows.height - ROWS} more", *["–"] * 5])
    names = ("Window", "Error", "Start (s)", "Length (s)", "Events", "Steps")
    columns = measured(dict(zip(names, zip(*cells, strict=True), strict=True))) if cells else dict.fromkeys(names, ())
    return table("Profiler windows", [*columns], zip(*columns.values(), strict=True))
