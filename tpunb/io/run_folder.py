"""The run folder: what a capture writes and `tp.load` reads.

::

    run.json                    when, where, with what, and how it ended
    parts/00000-00015/          16 parts that were written as one once all were there
    parts/00016/                there in whole or not at all: without ticks.parquet it is not there
        ticks.parquet           TICKS: every step by our own clock, those that no window saw too
        windows.parquet         WINDOWS: the windows that the part reduced, one row a host
        steps.parquet           STEPS of the steps they saw, in full or cut by their edges
        ops.parquet             OPS
        devices.parquet         DEVICES
        clocks.parquet          CLOCKS
    plugins/profile/00007/      a raw window that was kept, by its number: what XProf and TensorBoard open
        vm.xplane.pb            one file a host
    .lock                       while a process writes here

A part that lies within the range of another whole one does not count: it is about to be removed, or a kill left it.
A table of no rows is left out, but for the ticks. How the tables lie in their files is told in `packed`. Times are
picoseconds since the run's ``origin_ns``. Names that begin with a dot are of no concern to a reader: what a killed
writer left of its last write is among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Profile, Steps
from tpunb.frames.words import kinds
from tpunb.io import packed
from tpunb.io.places import Place

RUN = "run.json"

VERSION = 2

TICKS: schema.Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "mark": pl.String(),
    "start_ps": pl.Int64(),
    "end_ps": pl.Int64(),
    "input_ps": pl.Int64(),  # waiting for the input, where our clock knows it
}
"""One row a step that ended, by our own clock; a step may have several rows."""

TABLES: Mapping[str, schema.Schema] = {
    "ticks": TICKS,
    "windows": schema.WINDOWS,
    "steps": schema.STEPS,
    "ops": schema.OPS,
    "devices": schema.DEVICES,
    "clocks": schema.CLOCKS,
}
"""The tables of a part."""

TRIES = 16
"""How often a run is read because parts became one meanwhile."""

_PART = re.compile(r"parts/([0-9]+(?:-[0-9]+)?)/([a-z]+)\.parquet")
_RAW = re.compile(r"plugins/profile/([0-9]+)/([^/]*)\.xplane\.pb")


def raw_name(window: int, host: str) -> str:
    """Return where a raw window lies in the run folder.

    >>> raw_name(7, "10.0.0.2:8466")
    'plugins/profile/00007/10.0.0.2%3A8466.xplane.pb'
    """
    return f"plugins/profile/{window:05d}/{quote(host, safe=' @+=,()')}.xplane.pb"


def raw_windows(files: Mapping[str, Place]) -> dict[tuple[int, str], Place]:
    """Return the raw windows among the files of a run, by number and host."""
    found = {(int(name[1]), unquote(name[2])): file for path, file in files.items() if (name := _RAW.fullmatch(path))}
    return dict(sorted(found.items()))


def statistics(files: Mapping[str, Place]) -> dict[str, Place]:
    """Return those of a run's files that `read` reads: ``run.json``, and the tables of the parts that count."""
    count = set(parts(files))
    tables = {path for path in files if (name := _PART.fullmatch(path)) and name[2] in TABLES and name[1] in count}
    return {path: files[path] for path in sorted(files) if path == RUN or path in tables}


def parts(files: Iterable[str]) -> list[str]:
    """Return the names of the parts that count, in their order, given the names of a run's files.

    >>> parts(f"parts/{part}/ticks.parquet" for part in ["00002", "00000-00001", "00001"])
    ['00000-00001', '00002']
    """
    whole = {name[1]: _range(name[1]) for path in files if (name := _PART.fullmatch(path)) and name[2] == "ticks"}
    count, known = [], -1
    for part in sorted(whole, key=lambda part: (whole[part][0], -whole[part][1])):
        if whole[part][1] > known:  # else it lies within one before
            count.append(part)
            known = whole[part][1]
    return count


def _range(part: str) -> tuple[int, int]:
    first, _, last = part.partition("-")
    return int(first), int(last or first)


def is_settled(before: Sequence[str], after: Sequence[str]) -> bool:
    """Say whether what was read between two listings of the parts is the whole run as it was at the first one.

    It is unless parts became one meanwhile: then some may have been gone, from the first listing too, before they were
    read, and the one not there yet. Other parts that came are of later steps.

    >>> is_settled(["00000", "00001"], ["00000", "00001", "00002"])
    True
    >>> is_settled(["00000", "00001"], ["00000-00001"])
    False
    """
    return [*before] == [*after[: len(before)]] and not any("-" in part for part in after[len(before) :])


def restless(place: Path | Place) -> TpunbError:
    """Return the error of a run whose parts become one faster than it can be read."""
    return TpunbError(f"{place}: changes faster than it can be read", hint="load it again")


def is_run(folder: Path) -> bool:
    """Say whether a capture wrote this folder."""
    return (folder / RUN).is_file()


ReadRaw = Callable[[Mapping[tuple[int, str], Place], int | None, Mapping[tuple[int, str], int]], pl.DataFrame]
"""Decodes raw windows, by number and host, to EVENTS in the run's time: given its origin, and when each began."""


def read(
    folder: Path, raw: Mapping[tuple[int, str], Place], read_raw: ReadRaw, *, source: Path | str | None = None
) -> Profile:
    """Read a run, finished or not.

    Parameters
    ----------
    folder
        The run's.
    raw
        The raw windows that were kept, by number and host.
    read_raw
        Decodes them.
    source
        Where the folder was fetched from, if it was.

    Raises
    ------
    BadProfile
        When ``run.json`` is not one, or a table cannot be read.
    TpunbError
        When its parts become one faster than they can be read.
    """
    facts = _facts(folder / RUN)
    hardware, known_ps, overhead, about = _told(facts, folder / RUN)
    hosts = _own_host(facts)
    tables = {name: frame.with_columns(pl.col("host").replace(hosts)) for name, frame in _tables(folder).items()}
    hardware = hardware.with_columns(pl.col("host").replace(hosts))
    raw = {(window, hosts.get(host, host)): place for (window, host), place in raw.items()}
    windows, ticks, clocks = tables["windows"].sort("window", "host"), tables["ticks"], tables["clocks"]
    ends = [windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item(), ticks["end_ps"].max()]
    begins = {(window, host): start for window, host, start in windows.select("window", "host", "start_ps").iter_rows()}
    source = source or folder
    name = str(facts.get("name", PurePath(source).name))
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=hardware,
        # a run that is not over, or was killed, lasts until the last thing known of it
        span_ps=known_ps or max((int(end) for end in ends if end is not None), default=0),
        origin_ns=facts.get("origin_ns"),
        stored=Steps(*_whole_run(tables), windows, name, about=about),
        read_events=partial(read_raw, raw, facts.get("origin_ns"), begins) if raw else None,
        stored_clocks=None if clocks.is_empty() else _of_run(clocks),
        overhead=overhead,
    )


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadProfile(f"{path}: not a run's run.json: {error}") from error
    if not isinstance(facts, dict) or "tpunb" not in facts:
        raise BadProfile(f"{path}: not a run's run.json: no 'tpunb' in it")
    version = facts["tpunb"]
    if not isinstance(version, int):
        raise BadProfile(f"{path}: not a run's run.json: its version is {version!r:.40}")
    if version != VERSION:
        whose, hint = ("a later", "pip install --upgrade tpunb") if version > VERSION else ("an earlier", _RECORD_ANEW)
        raise BadProfile(
            f"{path}: a run folder of version {version}, by {whose} tpunb; this one reads {VERSION}", hint=hint
        )
    return facts


_RECORD_ANEW = "record it again, or read it with the tpunb that wrote it"


def _own_host(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the host of the worker that was the capture's own process: known only once it was watched."""
    worker, host = facts.get("own_worker"), facts.get("host")
    return {worker: host} if isinstance(worker, str) and worker and isinstance(host, str) else {}


def _told(facts: dict[str, Any], path: Path) -> tuple[pl.DataFrame, int, float | None, dict[str, str]]:
    """Return what ``run.json`` says: hardware, the run's length, 0 where a kill left none, overhead, what ran."""
    try:
        hardware = pl.DataFrame(facts.get("hardware", []), schema=schema.HARDWARE)
        overhead = facts.get("overhead")
        about = {str(fact): str(word) for fact, word in facts.get("about", {}).items()}
        only_cpu = all("CPU" in name for name in facts.get("devices") or [""])
        if kind := kinds(hardware) or ("CPU" if only_cpu else ""):
            about["device kind"] = kind
        return hardware, int(facts.get("span_ps", 0)), None if overhead is None else float(overhead), about
    except (AttributeError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(f"{path}: not a run's run.json: {reason}") from error


_UNREADABLE = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def _tables(folder: Path) -> dict[str, pl.DataFrame]:
    """Return the tables of a run, which may be being written."""
    listed = _listed(folder)
    for _ in range(TRIES):
        before = listed
        tables, unreadable = dict[str, pl.DataFrame](), None
        try:
            tables = {name: _stack([folder / "parts" / part for part in before], name) for name in TABLES}
        except BadProfile as error:  # or a part that is gone since
            unreadable = error
        listed = _listed(folder)
        if is_settled(before, listed):
            if unreadable is not None:
                raise unreadable
            return tables
    raise restless(folder)


def _listed(folder: Path) -> list[str]:
    found = (folder / "parts").glob("[0-9]*/ticks.parquet")
    return parts(path.relative_to(folder).as_posix() for path in found)


def _stack(parts: Sequence[Path], table: str) -> pl.DataFrame:
    """Return a table of all parts, one below the other."""
    columns = TABLES[table]
    files = [path for part in parts if (path := part / f"{table}.parquet").is_file()]
    if not files:
        return schema.empty(columns)
    try:
        return packed.read(files, columns)
    except _UNREADABLE:  # one by one, to name the one that cannot be read
        return pl.concat([_table(path, columns) for path in files])


def _table(path: Path, columns: schema.Schema) -> pl.DataFrame:
    try:
        return packed.read([path], columns)
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(f"{path}: cannot be read: {reason}") from error


def _whole_run(tables: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Join the windows: one row a step of the run, with what the windows saw of it."""
    key = ["host", "step"]
    tables = _taken_back(_numbered(tables))
    of_windows = (
        tables["steps"]
        .group_by(key)
        .agg(
            pl.col("mark").first(),
            pl.col("start_ps").min(),
            pl.col("dur_ps").max(),
            pl.col("seen").sort().last(),  # "partial" where any window cut it; Polars 1.32 knows no max of an Enum
            *map(_merged, _STEP_FACTS),
        )
    )
    by_clock = (
        tables["ticks"]
        .group_by(key)
        .agg(
            pl.col("mark").sort_by("start_ps").first().alias("tick_mark"),
            pl.col("start_ps").min().alias("tick_start_ps"),
            pl.col("end_ps").max().alias("tick_end_ps"),
            _merged("input_ps").alias("tick_input_ps"),
        )
    )
    frame = by_clock.join(of_windows, on=key, how="full", coalesce=True).select(
        "host",
        "step",
        mark=pl.coalesce("tick_mark", "mark"),
        # what a window saw in full it knows best: on a device that runs ahead, a step is not when the host says
        start_ps=pl.when(pl.col("seen") == "full").then("start_ps").otherwise(pl.coalesce("tick_start_ps", "start_ps")),
        dur_ps=pl.when(pl.col("seen") == "full")
        .then("dur_ps")
        .otherwise(pl.coalesce(pl.col("tick_end_ps") - pl.col("tick_start_ps"), "dur_ps")),
        seen=pl.col("seen").fill_null("tick"),
        **{name: pl.col(name) for name in _STEP_FACTS if name != "input_ps"},
        input_ps=pl.coalesce("input_ps", "tick_input_ps"),
    )
    per_device = (
        tables["devices"]
        .group_by("host", "device", "step")
        .agg(pl.col("start_ps").min(), pl.col("dur_ps").sum(), *map(_merged, schema.DEVICE_FACTS))
    )
    return frame, _merged_ops(tables["ops"], tables["steps"]), per_device


def _numbered(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables without steps that nobody marked where others were: their numbers are below 0 on disk."""
    steps = pl.concat([tables["steps"].select("host", "step"), tables["ticks"].select("host", "step")])
    marked = steps.filter(pl.col("step") >= 0)["host"].unique().implode()
    if steps.filter(pl.col("step") < 0).is_empty():
        return dict(tables)
    unmarked = pl.col("step") < 0
    number = pl.when(unmarked).then(-1 - pl.col("step")).otherwise("step")
    return {
        name: frame.filter(~(unmarked & pl.col("host").is_in(marked))).with_columns(step=number)
        if "step" in TABLES[name]
        else frame
        for name, frame in tables.items()
    }


def _taken_back(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables without steps that were none in the end: a loop that waits for data which does not come.

    A window may have seen such a step begin; its time is the step's before, and there our clock noted it.
    """
    key, ticks = ["host", "step"], tables["ticks"].select("host", "step", "start_ps")
    unknown = tables["steps"].join(ticks, on=key, how="anti").select(*key, "start_ps")
    before = ticks.select("host", "start_ps", step=pl.col("step") + 1, _to="step")
    moved = unknown.join(before, on=[*key, "start_ps"]).select(*key, "_to").unique(key)
    if moved.is_empty():
        return dict(tables)
    return {
        name: frame.join(moved, on=key, how="left").with_columns(step=pl.coalesce("_to", "step")).drop("_to")
        if "step" in TABLES[name]
        else frame
        for name, frame in tables.items()
    }


def _merged_ops(ops: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return one row an operation of a step: most steps were seen by one window, and theirs are so already."""
    key = ["host", "step"]
    seen_once = steps.group_by(key).len().filter(pl.col("len") == 1).select(key)
    others = ops.join(seen_once, on=key, how="anti")
    if others.is_empty():
        return ops
    # the category of the row with most self time: a group keeps the order of its rows
    merged = (
        others.sort("self_ps", descending=True)
        .group_by(*key, "op", "side")
        .agg(pl.col("category").drop_nulls().first(), pl.col("count", "total_ps", "self_ps").sum())
    )
    return pl.concat([ops.join(seen_once, on=key, how="semi"), merged.select(ops.columns)])


_STEP_FACTS = [name for name in schema.STEPS if name not in {"host", "step", "mark", "start_ps", "dur_ps", "seen"}]


def _merged(fact: str) -> pl.Expr:
    """Return a fact over the windows that know it: sums of times and work, means of shares by the time seen."""
    one = pl.col(fact)
    if not fact.endswith(("_util", "_cycle")):
        return pl.when(one.count() > 0).then(one.sum())
    weight = pl.col("dur_ps").filter(one.is_not_null()).sum()
    mean = (one * pl.col("dur_ps")).sum() / pl.when(weight > 0).then(weight)
    return pl.when(one.min() == one.max()).then(one.min()).otherwise(mean).alias(fact)


def _of_run(clocks: pl.DataFrame) -> pl.DataFrame:
    """Return how host and devices met over all windows, one row a link."""
    linked = pl.col("linked").filter(pl.col("delay_ps").is_not_null()).sum()
    return clocks.group_by("host", "device", "link", maintain_order=True).agg(
        pl.col("launches", "linked").sum(),
        delay_ps=((pl.col("delay_ps") * pl.col("linked")).sum() // pl.when(linked > 0).then(linked)),
        skew_ps=pl.col("skew_ps").max(),
    )
