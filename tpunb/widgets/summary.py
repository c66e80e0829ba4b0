"""What a ``%%tpupoint`` cell shows when it ends.

One block of HTML in the colours of the page, without scripts or a network; a PNG of the ribbon; and plain text for
a terminal. Names of runs, marks and operations, and the reasons of errors, are not trusted.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from tpunb import charts, pictures
from tpunb.cluster import advise
from tpunb.export import phase_name
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.words import cut, plain

_ROWS = 12  # phases in the table
_GROUPS = 4  # kinds of failures that are told
_NAMES = 8  # of hosts
_PIECES = 3  # of advice
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
_STYLE = """
.tpunb-summary{color:var(--jp-content-font-color1,currentColor);font-size:13px;line-height:1.45;max-width:960px}
.tpunb-summary .tpunb-headline{font-size:14px;font-weight:600;margin:0 0 2px}
.tpunb-summary .tpunb-quiet{opacity:.8;margin:0 0 8px;overflow-wrap:anywhere}
.tpunb-summary .tpunb-note{border-left:4px solid #D55E00;padding:2px 10px;margin:8px 0;overflow-wrap:anywhere}
.tpunb-summary .tpunb-advice ul{margin:2px 0 12px;padding-left:18px;overflow-wrap:anywhere}
.tpunb-summary .tpunb-tables{display:flex;flex-wrap:wrap;gap:8px 32px;align-items:flex-start;margin:8px 0 12px}
.tpunb-summary table.tpunb-table{border-collapse:collapse;margin:0;font-size:13px;color:inherit;border:0}
.tpunb-summary table.tpunb-table caption{caption-side:top;text-align:left;font-weight:600;padding:4px 0;color:inherit}
.tpunb-summary table.tpunb-table tr{background:none;border-bottom:1px solid rgba(127,127,127,.35)}
.tpunb-summary table.tpunb-table :is(th,td){padding:3px 10px 3px 0;text-align:right;background:none;color:inherit;
border:0;vertical-align:top;max-width:none}
.tpunb-summary table.tpunb-table :is(th,td).tpunb-text{text-align:left;overflow-wrap:anywhere;max-width:340px}
.tpunb-summary .tpunb-chip{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
"""


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
    """

    profile: Profile
    steps: Steps | None = None
    phases: Phases | None = None
    note: str | None = None
    run: Any | None = None

    @property
    def headline(self) -> str:
        """What came out, in one line."""
        if self.phases is None:
            found = f"{len(self.steps):,} steps, no phases" if self.steps is not None else "no steps"
        else:
            found = f"{_many(len(self.phases), 'phase')} over {_many(len(self.phases.steps), 'step')}"
            found += f"; top 3 cover {100 * self.phases.coverage(3):.0f} %, homogeneity {self.phases.homogeneity:.2f}, "
            found += f"noise {100 * self.phases.noise:.0f} % of the time"
        windows = _watched(self.profile.windows)["window"].n_unique()
        observed = f"{100 * self.profile.observed:.0f} % of the run"
        return f"{found}; observed {observed} in {_many(windows, 'window')}"

    @property
    def _facts(self) -> list[str]:
        """What is known besides, in a few quiet lines."""
        windows = self.profile.windows
        watched = " · ".join(filter(None, [_reasons(windows), _slower(self.profile.overhead), _hosts(windows)]))
        return [*filter(None, [watched, " · ".join(filter(None, [self.profile.name, self._raw, self._where]))])]

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
    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Each table: its caption, its header and its rows; text stands left, figures right."""
        if self.phases is None:
            return [("Windows of the profiler", *_windows(self.profile.windows))]
        tables = [("Phases, longest first", *_phases(self.phases))]
        longest = self.phases.longest.id
        top = self.phases.top(5).filter(pl.col("phase") == longest)
        for side in ("device", "host"):
            rows = [
                [row["op"], f"{100 * row['share']:.1f} %", f"{row['self_ps'] / 1e9:,.3f}", f"{row['count']:,}"]
                for row in top.filter(pl.col("side") == side).iter_rows(named=True)
            ]
            if rows:
                caption = f"Top operations of {phase_name(longest)}, {side}"
                tables.append((caption, ["Operation", "Self time", "ms", "Calls"], rows))
        return tables

    @cached_property
    def _advice(self) -> list[str]:
        """What would save most time."""
        if self.phases is None:
            return []
        rows = advise(self.phases).drop_nulls("saves_ps").head(_PIECES)
        return [f"{row['sentence']} Try: {row['knob']}." for row in rows.iter_rows(named=True)]

    @cached_property
    def _chart(self) -> pictures.LayerPicture | None:
        return None if self.phases is None or not len(self.phases.steps) else charts.timeline(self.phases)

    def __repr__(self) -> str:
        lines = [self.headline, *self._facts, *(f"! {note}" for note in self._notes)]
        for caption, header, rows in self._tables:
            lines += ["", caption, *_aligned([header, *rows])]
        if self._advice:
            lines += ["", _ADVICE, *(f"  {advice}" for advice in self._advice)]
        return "\n".join(plain(line) for line in lines)

    def _repr_html_(self) -> str:
        colours = {} if self.phases is None else {phase_name(k): v for k, v in charts.colours(self.phases).items()}
        notes = "".join(f'<p class="tpunb-note" role="note">{safe(note)}</p>' for note in self._notes)
        tables = "".join(_table(*table, colours) for table in self._tables)
        picture = "" if self._chart is None else pictures.svg(self._chart)
        items = "".join(f"<li>{safe(advice)}</li>" for advice in self._advice)
        advice = f'<div class="tpunb-advice"><b>{_ADVICE}</b><ul>{items}</ul></div>' if items else ""
        return (
            f'<div class="tpunb-summary"><style>{_STYLE}</style>'
            f'<p class="tpunb-headline">{safe(self.headline)}</p>'
            f'<p class="tpunb-quiet">{"<br>".join(map(safe, self._facts))}</p>'
            f'{notes}<div class="tpunb-tables">{tables}</div>{advice}{picture}</div>'
        )

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        bundle = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        if self._chart is not None:
            bundle["image/png"] = base64.b64encode(pictures.png(self._chart)).decode()
        return bundle


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
        said.append(f"{n:,} of {_many(asked[host], 'window')}{f' of {host}' if host else ''} {happened}: {reason}")
    others = told.most_common()[_GROUPS:]
    if others:
        said.append(f"{sum(n for _, n in others):,} more failed for {_many(len(others), 'other reason')}")
    return said


def _phases(phases: Phases) -> tuple[list[str], list[list[str]]]:
    rows = []
    for row in phases.frame.head(_ROWS).iter_rows(named=True):
        busy, idle = row["device_ps"], row["idle_ps"]
        known = busy is not None and idle is not None and busy + idle > 0
        rows.append(
            [
                phase_name(row["phase"]),
                row["marks"] or "–",
                f"{row['steps']:,}",
                f"{row['full']:,}" if row["full"] else "clock alone",
                f"{100 * row['share']:.1f} %",
                f"{row['step_ps'] / 1e9:,.3f}",
                f"{100 * row['spread']:.0f} %",
                f"{100 * idle / (busy + idle):.0f} %" if known else "–",
            ]
        )
    if phases.frame.height > _ROWS:
        rest = phases.frame.slice(_ROWS)
        share = f"{100 * rest['share'].sum():.1f} %"
        full = f"{rest['full'].sum():,}"
        rows.append([f"{rest.height} more", "–", f"{rest['steps'].sum():,}", full, share, "–", "–", "–"])
    return ["Phase", "Marks", "Steps", "In full", "Share", "Step (ms)", "Spread", "Idle"], rows


def _windows(windows: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    shown = windows.sort("window", "host", "start_ps").head(_ROWS)
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
    if windows.height > _ROWS:
        rows.append([f"{windows.height - _ROWS} more", *["–"] * 5])
    return ["Window", "Error", "Start (s)", "Length (s)", "Events", "Steps"], rows


_LEFT = {"Phase", "Marks", "Operation", "Window", "Error"}


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], colours: dict[str, str]) -> str:
    kinds = [' class="tpunb-text"' if name in _LEFT else "" for name in header]
    head = "".join(f'<th scope="col"{kind}>{safe(name)}</th>' for name, kind in zip(header, kinds, strict=True))
    body = ""
    for row in rows:
        colour = colours.get(row[0]) if header[0] == "Phase" else None
        chip = f'<span class="tpunb-chip" aria-hidden="true" style="background:{colour}"></span>' if colour else ""
        cells = [f"<td{kind}>{safe(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)]
        first = f'<th scope="row"{kinds[0]} style="font-weight:normal">{chip}{safe(row[0])}</th>'
        body += f"<tr>{first}{''.join(cells[1:])}</tr>"
    caption = f"<caption>{safe(caption)}</caption>"
    return f'<table class="tpunb-table">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines; long names are cut in the middle."""
    cells = [[cut(plain(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [name in _LEFT for name in rows[0]]
    return [
        "  " + "  ".join(c.ljust(w) if to else c.rjust(w) for c, w, to in zip(row, widths, left, strict=True)).rstrip()
        for row in cells
    ]


def _many(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def safe(text: str) -> str:
    """Return `text` as HTML that says just that."""
    return escape(plain(text))
