"""The run folder, written by a capture and read by `tp.load`.

::

    run.json                    when, where, with what, and how it ended
    parts/00000-00255/          16 parts of 16 parts each, merged into one
    parts/00256-00271/          16 parts, merged into one
    parts/00272/                a part exists once its ticks.parquet does
        ticks.parquet           TICKS: every step by the host clock, whether a window traced it or not
        windows.parquet         WINDOWS: one row per host
        steps.parquet           STEPS that the windows traced, in full or in part
        ops.parquet             OPS
        devices.parquet         DEVICES
        collectives.parquet     COLLECTIVES, in runs made from raw files: captures do not write them
        clocks.parquet          CLOCKS
        spans.parquet           SPANS by the host clock
        stacks.parquet          STACKS of the process, whose later parts refer to those of earlier ones
        stack_stalls.parquet    STACK_STALLS
        stack_samples.parquet   STACK_SAMPLES
        stalls.parquet          STALLS of an earlier version, which named places as it recorded them
        samples.parquet         SAMPLES of an earlier version
        load.parquet            LOAD
        events.parquet          RUN_EVENTS: what libraries were asked to do
        names.parquet           RUN_NAMES, and likewise what else events refer to by numbers, as it is first used:
        places.parquet          RUN_PLACES
        keys.parquet            RUN_KEYS
        signatures.parquet      RUN_SIGNATURES
        programs.parquet        PROGRAMS that the windows ran
    ticks.parquet               TICKS of the last seconds, which may be in a part by now
    latest.bin                  the journal, until the run is whole: the latest steps, spans and events
    standing.json               of a training that stands still: since when, the stacks of its threads, its children
    programs/                   each compiled program once, by a digest of its contents
        0123456789abcdef.hlo.pb.gz  HloProto
    plugins/profile/00007/      a raw window by its number, as XProf and TensorBoard open it
        vm.xplane.pb            one file per host; of PyTorch vm.trace.json
    unreduced/00007.json        of a raw window that is in no part: what readers require to reduce it
    device.json                 peaks of the device, if they were measured for the run
    .lock                       while a process writes here

A part within the range of a merged one is ignored: it is about to be removed. Empty tables except the ticks are left
out. `tpunb.io.parquet` describes the files. Times are picoseconds since ``origin_ns`` of the run. Readers ignore names
that begin with a dot.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import polars as pl

from tpunb import schema, signals
from tpunb.errors import BadProfile, TpunbError, warn_user
from tpunb.frames import Profile, Steps
from tpunb.frames.conversion import check_file, open_file, read_file
from tpunb.frames.hardware import Device
from tpunb.frames.profile import device_kinds
from tpunb.frames.steps import RunEvents, WallClock
from tpunb.instrument import events as run_events
from tpunb.io import parquet, storage
from tpunb.io.standing import is_silent, stands
from tpunb.io.storage import Location
from tpunb.protobuf import LIMIT
from tpunb.step_stats.numbering import Change, judged_again, numbered
from tpunb.step_stats.recorded_steps import Explanations, are_whole
from tpunb.step_stats.sample_places import Stacks, placed_samples, placed_stalls
from tpunb.text import cut, duration, format_error, plain, plural

MEMBER = re.compile(r"process[0-9]+|rank[0-9]+(?:\.[0-9]+)?")
"""Names of folders that processes of ``tpunb run`` write."""
RUN, DEVICE, TAIL, LATEST, LOCK = "run.json", "device.json", "ticks.parquet", "latest.bin", ".lock"
COMMAND, TRIED = "command.json", "tried.json"  # the words of the program and its folder; remedies that were tried on it
STANDING = "standing.json"
OPS, EVENTS = "ops", "events"

VERSION = 3
"""The layout that a capture writes. Layout 2 had other names of columns and no spans, and can still be read."""

TICKS: schema.Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "kind": pl.String(),
    "start_ps": pl.Int64(),
    "end_ps": pl.Int64(),
    "input_ps": pl.Int64(),  # wait for input, where the host clock measures it
    "callbacks_ps": pl.Int64(),  # in callbacks of the framework
    "dispatch_ps": pl.Int64(),  # before the framework is asked to compute
    "found_by": pl.String(),  # of ``tpunb.schema.RULE``; null in runs of an earlier version
    "peers_ps": pl.Int64(),  # without work in collectives and backward passes, of a job of several ranks
    "samples": pl.Int64(),  # in the batches that it fetched
    "tokens": pl.Int64(),
}
"""One row per step that ended, by the host clock; a step may have several rows."""


class JournalRow(NamedTuple):
    """A row of the journal, a line with tabs: a step as it ended, or a span, which has no number.

    Times are nanoseconds by the clock that was at ``journal_origin_ns`` at the start; without that fact, since the
    epoch.
    """

    step: int | None
    kind: str  # of a span its account
    start_ns: int
    end_ns: int
    input_ns: int | None = None
    callbacks_ns: int | None = None
    dispatch_ns: int | None = None
    found_by: str = ""  # of a span its detail
    before: int | None = None  # `Steps.steps_before` of the run
    peers_ns: int | None = None  # not in rows of earlier versions


_ROW, LATEST_STEPS, _LONGEST_KIND, _LONGEST_DETAIL = 160, 8192, 32, 64
"""Bytes of a row, and rows: the last of each step modulo their number, then as many of spans."""

_EVENTS_FROM, LATEST_EVENTS = 2 * _ROW * LATEST_STEPS, 16_384
"""Where rows of events begin in the journal, after those of spans, and how many there are."""

_NAMES_FROM, _NAME, _MOST_NAMES = _EVENTS_FROM + run_events.ROW.size * LATEST_EVENTS, 512, 8192
"""Where lines of what events refer to begin, after those, with their bytes, and how many there are."""

_JOURNAL_BYTES = _NAMES_FROM + _NAME * _MOST_NAMES

ALIVE_S = 180.0
"""Seconds since the last update of ``run.json`` after which a run without a lock counts as abandoned."""

PROGRAMS: schema.Schema = {
    "host": pl.String(),
    "program": pl.Int64(),  # id, as in the events
    "module": pl.String(),  # its name
    "file": pl.String(),  # digest of its contents
}
"""One row per compiled program that the run holds."""

TABLES: Mapping[str, schema.Schema] = {
    "steps": schema.STEPS,
    "ops": schema.OPS,
    "devices": schema.DEVICES,
    "collectives": schema.COLLECTIVES,
    "clocks": schema.CLOCKS,
    "windows": schema.WINDOWS,
    "spans": schema.SPANS,
    "stalls": schema.STALLS,
    "samples": schema.SAMPLES,
    "stacks": schema.STACKS,
    "stack_stalls": schema.STACK_STALLS,
    "stack_samples": schema.STACK_SAMPLES,
    "load": schema.LOAD,
    "events": schema.RUN_EVENTS,
    **run_events.NAMED,
    "programs": PROGRAMS,
    "ticks": TICKS,
}
"""The tables of a part, in the order of writing: the ticks make it valid."""

_READ_LATER = (OPS, EVENTS)
_MOST_KEPT = 64 << 20  # bytes of these, on disk, that are read before they are asked for
_MOST_FOLDED = 500_000  # events of a run that steps are made of as it is loaded, which takes seconds
_JOURNAL = "journal"  # beside the facts of a run: the contents of its journal
_MOST_PS, _MOST_STEP = 9 * 10**18, 2**48  # 104 days, which fit Int64, and nine years of a step each microsecond
_COUNTS = {"step", "window", "count", "events", "bytes", "steps", "launches", "linked", "samples"}
_SIGNED = {"start_ps", "delay_ps", "skew_ps", "step"}  # before the run, where clocks differ, and of inferred steps
TRIES = 16
"""Attempts to read a run whose parts are being merged."""

_PART = re.compile(r"parts/([0-9]+(?:-[0-9]+)?)/([a-z_]+)\.parquet")
_RAW = re.compile(r"plugins/profile/([0-9]+)/([^/]*)\.(?:xplane\.pb|trace\.json)")
_UNREDUCED = re.compile(r"unreduced/[0-9]+\.json")
_UNREADABLE = (OSError, BadProfile, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def raw_name(window: int, host: str, ending: str) -> str:
    """Return the path of a raw window in the run folder.

    >>> raw_name(7, "10.0.0.2:8466", "xplane.pb")
    'plugins/profile/00007/10.0.0.2%3A8466.xplane.pb'
    """
    return f"plugins/profile/{window:05d}/{quote(host, safe=' @+=,()')}.{ending}"


def unreduced_name(window: int) -> str:
    """Return the path of what is required to reduce a window that the capture did not."""
    return f"unreduced/{window:05d}.json"


def program_name(digest: str) -> str:
    """Return the path of a compiled program in the run folder."""
    return f"programs/{digest}.hlo.pb.gz"


def raw_windows(files: Mapping[str, Location]) -> dict[tuple[int, str], Location]:
    """Return the raw windows among the files of a run, by number and host."""
    matches = ((_RAW.fullmatch(path), file) for path, file in files.items())
    return dict(sorted(((int(match[1]), unquote(match[2])), file) for match, file in matches if match))


def statistics(files: Mapping[str, Location]) -> dict[str, Location]:
    """Return the files that `read` reads: ``run.json``, the tables of the valid parts and the ticks after them."""
    valid = set(parts(files))
    tables = {path for path in files if (name := _PART.fullmatch(path)) and name[2] in TABLES and name[1] in valid}
    return {path: files[path] for path in sorted(files) if path in (RUN, TAIL, LATEST, STANDING) or path in tables}


def parts(files: Iterable[str]) -> list[str]:
    """Return the names of the valid parts in order, given the names of the files of a run.

    >>> parts(f"parts/{part}/ticks.parquet" for part in ["00002", "00000-00001", "00001"])
    ['00000-00001', '00002']
    """
    names = {name[1] for path in files if (name := _PART.fullmatch(path)) and name[2] == "ticks"}
    ranges = {name: (int(name.partition("-")[0]), int(name.rpartition("-")[2])) for name in names}
    valid, end = [], -1
    for part, (_, last) in sorted(ranges.items(), key=lambda item: (item[1][0], -item[1][1])):
        if last > end:  # else it is within the range of an earlier one
            valid.append(part)
            end = last
    return valid


def is_settled(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether parts read between two listings are the whole run at the time of the first.

    It is unless parts were merged in between. Parts that were added hold later steps.

    >>> is_settled(["00000", "00001"], ["00000", "00001", "00002"])
    True
    >>> is_settled(["00000", "00001"], ["00000-00001"])
    False
    """
    return [*before] == [*after[: len(before)]] and not any("-" in part for part in after[len(before) :])


def is_run(folder: Path) -> bool:
    """Return whether a capture wrote this folder."""
    return (folder / RUN).is_file()


def members(run: Path) -> list[Path]:
    """Return the folders of a run on a local disk that hold its parts: itself, or those of its processes."""
    return [path.parent for path in (run / RUN, *sorted(run.glob(f"*/{RUN}"))) if path.is_file()]


def keep_tried(run: Path, found: Iterable[Mapping[str, Any]]) -> None:
    """Write remedies that were tried into a run, beside those that were before."""
    for folder in members(run):
        rows = {(str(each.get("cause")), str(each.get("action"))): each for each in (*tried(folder), *found)}
        if rows:
            (folder / TRIED).write_text(json.dumps([*rows.values()], indent=1))


def keep_refuted(run: Path, earlier: Iterable[Path]) -> None:
    """Write into a run what saved nothing when it was tried on earlier runs of its program."""
    folders = [folder for each in earlier for folder in members(each)[:1] if (folder / TRIED).is_file()]
    folders.sort(key=lambda folder: (folder / TRIED).stat().st_mtime_ns)
    rows = {
        (str(row.get("cause")), str(row.get("action"))): {"earlier": each.name, **row}
        for each in folders
        for row in tried(each)
    }
    keep_tried(run, [row for row in rows.values() if row.get("decision") == "not faster"])


def tried(folder: Path) -> list[dict[str, Any]]:
    """Return the remedies that were tried on a run, as they were written; of a damaged file none."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_file(folder / TRIED))
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return []


def read(folder: Location, files: Mapping[str, Location], owner: object = None) -> Profile:
    """Read a run, finished or not; `files` is the listing of the folder.

    The profile holds `owner`, which keeps a run in memory, while raw windows can be read.
    """
    from tpunb.step_stats import aggregate, launches  # which a capture, that writes runs, does not import

    facts, tables, files, skipped = _settled(folder, files)
    tables = _reduced(facts, tables, files, skipped)
    ops, events = (tables.pop(name).lazy() for name in _READ_LATER)
    hardware, span_ps, (overhead, interval), metadata, notes = _metadata(facts, files[RUN])
    if TRIED in files:
        metadata["tried"] = storage.read_small(files[TRIED]).decode(errors="replace")
    notes += (end := _cut(folder, facts))
    tables = {name: _plausible(frame, name, notes.append) for name, frame in tables.items()}
    origin_ns = facts.get("origin_ns")
    # the worker that ran the capture is on disk under its address: here, in one place, it gets the name of the host
    worker, host = facts.get("own_worker"), facts.get("host")
    hosts = {worker: host} if isinstance(worker, str) and worker and isinstance(host, str) else {}
    if hosts:
        tables = {name: frame.with_columns(pl.col("host").replace(hosts)) for name, frame in tables.items()}
        ops, events = (rows.with_columns(pl.col("host").replace(hosts)) for rows in (ops, events))
    raw = {(window, hosts.get(host, host)): file for (window, host), file in raw_windows(files).items()}
    windows, clocks = tables["windows"].sort("window", "host"), tables["clocks"]
    starts = {(window, host): start for window, host, start in windows.select("window", "host", "start_ps").iter_rows()}
    ends = [windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item(), tables["ticks"]["end_ps"].max()]
    name = str(facts.get("name", folder.name))
    name = folder.name if MEMBER.fullmatch(name) else name  # the process became the run, or a rank of it

    named = tables["programs"].unique(["host", "program"], keep="first", maintain_order=True)
    kept = {
        (host, program): files[path]
        for host, program, file in named.select("host", "program", "file").iter_rows()
        if (path := program_name(file)) in files
    }

    stamp = files[RUN].stamp if _is_long(files) else None
    named = {name: tables[name] for name in run_events.NAMED}
    read_run_events = partial(_run_events, files[RUN], stamp, events, named, str(host), facts.pop(_JOURNAL, b""))
    options = facts.get("options")
    until = options.get("until") if isinstance(options, dict) and isinstance(options.get("until"), int) else None
    if facts.get("state") != "running" and not (facts.get("lost_events") or facts.get("failure") or skipped):
        tables, ops = _judged_again(tables, ops, read_run_events, until, notes)
    # a run that is not over, or was killed, lasts until its last step or window
    ends.append(
        tables["spans"].filter(account=schema.STANDING).select((pl.col("start_ps") + pl.col("dur_ps")).max()).item()
    )
    span_ps = span_ps or max((int(end) for end in ends if end is not None), default=0)
    stacks = Stacks(tables["stacks"], looks := tables["stack_samples"])
    placed = {"stalls": placed_stalls(tables["stack_stalls"], stacks), "samples": placed_samples(looks, stacks)}
    causes = {name: tables[name] for name in ("spans", "load")}
    causes |= {name: pl.concat([tables[name], frame]) for name, frame in placed.items()}
    standing = None
    if facts.get("state") == "running" or facts.get("observed"):
        host = None if facts.get("observed") else facts.get("host")  # else its processes may be others by now
        standing = stands(facts.get(STANDING), facts.get("group"), placed["samples"], is_now=not end, host=host)
        if standing is None and facts.get("state") == "running" and not folder.url and is_written(Path(folder.path)):
            standing = is_silent(Path(folder.path, LOCK), facts, tables["ticks"])
    wall = WallClock(span_ps, complete=facts.get("causes") is True and not skipped, **causes)
    read_raw = partial(_events, owner, name, raw, origin_ns, starts, skipped) if raw else None
    is_over = facts.get("state") == "finished"
    frame, merged, devices = aggregate.merge_steps(tables, _step_flops(facts), is_over=is_over)
    return Profile(
        name=name,
        source=folder.source,
        windows=windows,
        hardware=hardware.with_columns(pl.col("host").replace(hosts)),
        span_ps=span_ps,
        origin_ns=origin_ns,
        stored=Steps(
            frame,
            partial(_ops, files[RUN], stamp, merged, ops),  # type: ignore[arg-type]
            devices,
            windows,
            name,
            read_collectives=(lambda: numbered(tables, is_over=is_over)[0]["collectives"])
            if tables["collectives"].height
            else None,
            metadata=metadata,
            wall=wall,
            device=_device(files),
            source=folder.source,
            steps_before=facts.get("steps_before"),
            read_explanations=lambda: Explanations(read_run_events(), until),
        ),
        read_events=read_raw,
        read_details=partial(_details, read_raw, kept) if read_raw else None,
        read_run_events=read_run_events,
        stored_clocks=None if clocks.is_empty() else aggregate.merge_clocks(clocks),
        read_clocks=launches.clocks,
        overhead=overhead,
        overhead_interval=interval,
        skipped=skipped,
        notes=notes,
        misfits=[str(line) for line in lines] if isinstance(lines := facts.get("not_known"), list) else (),
        is_cut=bool(end),
        state="cut" if facts.get("state") == "running" and end else plain(str(facts.get("state", ""))) or None,
        standing=standing,
    )


def is_written(folder: Path) -> bool:
    """Return whether a capture writes to a folder at this moment; False where that is not known."""
    try:
        import fcntl

        with open_file(folder / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError, BadProfile):
        pass
    return False


def _cut(folder: Location, facts: Mapping[str, Any]) -> list[str]:
    """Return why the run is not whole, if so: it could not be written, or its process was killed."""
    if isinstance(failure := facts.get("failure"), str):
        return [f"the run is incomplete: {cut(plain(failure), 160)}"]
    updated, path = facts.get("updated"), Path(folder.path)
    is_running = isinstance(updated, int | float) and time.time() - updated < ALIVE_S
    if not folder.url and (path / LOCK).exists():  # else it is remote, or a copy
        is_running = is_written(path)
    is_cut = facts.get("state") == "running" and not is_running
    return ["the run was cut: its process was killed before the capture had ended"] * is_cut


def _plausible(frame: pl.DataFrame, table: str, note: Callable[[str], object]) -> pl.DataFrame:
    """Return the rows whose times, counts and step numbers can be; the others are counted."""
    ranges = {}
    for name, dtype in TABLES[table].items():
        if dtype == pl.Int64 and (name.endswith("_ps") or name in _COUNTS):
            most = _MOST_STEP if name == "step" else _MOST_PS
            least = -most if name in _SIGNED and table != "ticks" else 0
            ranges[name] = pl.col(name).is_between(least, most).fill_null(True)
    fit = frame.select(fits.all() for fits in ranges.values())
    for name, fits in ranges.items():
        if not fit[name].item():
            if (wrong := frame.filter(~fits)[name]).len():
                note(f"{wrong.len():,} of {plural(frame.height, 'row')} of {table} left out: {name} is {wrong[0]:,}")
            frame = frame.filter(fits)
    return frame


def _reduced(
    facts: dict[str, Any], tables: dict[str, Any], files: Mapping[str, Location], lost: _Lost
) -> dict[str, Any]:
    """Return the tables with those of the windows that the capture left to be reduced; others are added to `lost`."""
    raw, done = raw_windows(files), {*tables["windows"]["window"]}
    for path in sorted(path for path in files if _UNREDUCED.fullmatch(path)):
        try:
            window = json.loads(storage.read(files[path]).tobytes())
            data = {
                host: storage.read(file).tobytes() for (number, host), file in raw.items() if number == window["number"]
            }
            if window["number"] not in done:
                more, hardware = signals.window_reducers[0](window, data, facts["host"], facts["journal_origin_ns"])
                tables |= {name: pl.concat([tables[name].lazy(), frame.lazy()]) for name, frame in more.items()}
                tables |= {name: tables[name].collect() for name in more if name != OPS}
                facts["hardware"] = facts.get("hardware") or hardware
        except Exception as error:  # noqa: BLE001  whatever a stranger wrote there, the rest can be read
            lost.append((path, f"cannot be reduced: {format_error(error)}"))
    return tables


def _ops(run: Location, stamp: str | None, merged: Change, ops: pl.LazyFrame) -> pl.DataFrame:
    """Return OPS of a run, read only now if `stamp`, that of ``run.json`` at the load, is given."""
    return merged(_collected(run, stamp, ops, OPS))


def _collected(run: Location, stamp: str | None, rows: pl.LazyFrame, table: str) -> pl.DataFrame:
    """Return a table that is read only now."""
    folder = run.parent
    if stamp is not None and (not Path(run.path).is_file() or storage.local(run.path).stamp != stamp):
        raise BadProfile(f"{folder}: the run that was loaded is not there any more", hint="load it where it is now")
    try:
        return _plausible(parquet.collected(rows), table, partial(warn_user, stacklevel=3))
    except _UNREADABLE as error:
        name = "operations" if table == OPS else table
        raise BadProfile(f"{folder}: damaged {name}: {format_error(error)}", hint="copy the run again") from error


def _run_events(
    run: Location,
    stamp: str | None,
    rows: pl.LazyFrame,
    named: Mapping[str, pl.DataFrame],
    host: str,
    journal: bytes,
) -> RunEvents:
    """Return the events of a run in the order in which they ended, with those that the journal alone has."""
    events = _collected(run, stamp, rows, EVENTS).sort("end_ps", maintain_order=True)
    if not journal:  # the run is over
        return RunEvents(events, **named)
    lines = (journal[at : at + _NAME].rstrip(b" \0\n") for at in range(_NAMES_FROM, len(journal), _NAME))
    later, reasons = run_events.named_of(lines, host)
    latest = run_events.frame_of(journal[_EVENTS_FROM:_NAMES_FROM], host, reasons)
    latest = latest.join(events, on=["host", "thread", "start_ps", "end_ps", "event", "count"], how="anti")
    tables = {
        name: pl.concat([frame, later[name]]).unique(["host", "id"], keep="first", maintain_order=True)
        for name, frame in named.items()
    }
    return RunEvents(pl.concat([events, latest]).sort("end_ps", maintain_order=True), **tables)


def _events(
    _owner: object,  # kept alive by the profile
    name: str,
    raw: Mapping[tuple[int, str], Location],
    origin_ns: int | None,
    starts: Mapping[tuple[int, str], int],
    skipped: list[tuple[str, str]],
    kind: str = "events",
) -> pl.DataFrame:
    """Return the events of raw windows; those found damaged are added to `skipped`, with a warning."""
    from tpunb.io import logdir

    before = len(skipped)
    frame = logdir.windows(raw, origin_ns, starts, kind, skipped)
    if skipped[before:]:
        warn_user(logdir.skip_message(name, skipped[before:]), stacklevel=2)
    return frame


def _judged_again(
    tables: dict[str, Any], ops: pl.LazyFrame, read: Callable[[], RunEvents], until: int | None, notes: list[str]
) -> tuple[dict[str, Any], pl.LazyFrame]:
    """Return the tables and operations of a run, whose steps are made of its events if these are whole."""
    try:
        run = read()
        if run.events.is_empty() or run.events.height > _MOST_FOLDED or not are_whole(run):
            return tables, ops
        tables["ticks"], moved = judged_again(tables["ticks"], run, until)
    except (OverflowError, *_UNREADABLE) as error:  # damaged, or what no program does
        notes.append(f"the steps are those that were recorded: {format_error(error)}")
        return tables, ops
    if moved is not None:
        key, is_left = ["host", "step"], pl.col("host").ne(run.events["host"][0]) | pl.col("to").is_not_null()

        def move(rows: pl.LazyFrame) -> pl.LazyFrame:
            joined = rows.join(moved.lazy(), on=key, how="left", maintain_order="left").filter(is_left)
            return joined.with_columns(step=pl.coalesce("to", "step")).drop("to")

        tables |= {name: move(tables[name].lazy()).collect() for name in _OF_STEPS if name != OPS}
        ops = move(ops)
    return tables, ops


def _details(
    read_raw: Callable[[str], pl.DataFrame], kept: Mapping[tuple[str, int], Location], kind: str
) -> pl.DataFrame:
    from tpunb.io import programs  # which numba compiles: a capture writes runs without it

    frame = read_raw(kind)
    return programs.complete(frame, kept, kind) if kind in ("instructions", "buffers", "protos") else frame


_Source = Path | bytes


_OF_STEPS = ("steps", "ops", "devices", "collectives")  # tables of a part that are used together or not at all
_Lost = list[tuple[str, str]]


def _settled(
    folder: Location, files: Mapping[str, Location]
) -> tuple[dict[str, Any], dict[str, Any], Mapping[str, Location], _Lost]:
    """Return ``run.json``, the tables, the files and the lost files of a run, which may be being written."""
    for _ in range(TRIES):
        before, failure = parts(files), None
        try:
            contents = _fetch(statistics(files))
            facts, (tables, lost) = _facts(contents.get(RUN, b""), folder), _tables(contents, files)
            tail, torn = _tail(contents)
        except BadProfile as error:  # or a part that was removed in between
            failure = error
        now = parts(folder.below("parts", refresh=True))
        if is_settled(before, now):
            if failure is not None:
                raise failure
            if before == now:  # else a part, which was not read, may have what the tail had
                ticks = tables["ticks"]
                if tail.height:
                    ticks = pl.concat([ticks, tail.join(ticks, on=["host", "start_ps"], how="anti")])
                journal = contents.get(LATEST)
                latest, steps_before, spans = _latest(journal, facts, ticks)
                tables["ticks"] = pl.concat([ticks, latest])
                key = (pl.col("start_ps") + pl.col("dur_ps"), "account", "host")  # work in flight moves their start
                tables["spans"] = pl.concat([tables["spans"], spans.join(tables["spans"], on=key, how="anti")])
                facts |= {} if steps_before is None else {"steps_before": steps_before}
                facts |= {_JOURNAL: journal} if isinstance(journal, bytes) else {}
                facts[STANDING] = _seen(contents.get(STANDING))
            return facts, tables, files, lost + torn
        files = folder.below(refresh=True)
    raise TpunbError(f"{folder}: changes faster than it can be read", hint="load it again")


def _seen(source: _Source | None) -> object:
    """Return the contents of ``standing.json``, None if they cannot be read: it may be replaced meanwhile."""
    if source is None:
        return None
    with suppress(OSError, BadProfile, ValueError, RecursionError):
        return json.loads(read_file(source) if isinstance(source, Path) else source)
    return None


def _fetch(files: Mapping[str, Location]) -> dict[str, _Source]:
    """Return paths of local files, contents of others, of what is written repeatedly, and of what is read later."""
    # by then a part may be merged, or another run have taken the folder: of a long run that is over, `_ops` looks
    if not any(file.url for file in files.values()):
        paths = {name: Path(file.path) for name, file in files.items()}
        sources: dict[str, _Source] = {name: path for name, path in paths.items() if name != LATEST}
        long = _is_long(files)
        for name, path in paths.items():
            with suppress(FileNotFoundError):  # the run has just ended, or a part been merged
                if name == LATEST:
                    with open_file(path) as file:
                        sources[name] = file.read(_JOURNAL_BYTES)
                elif name in (TAIL, STANDING):
                    sources[name] = read_file(path)
                elif _is_read_later(name) and not long:
                    sources[name] = read_file(path, LIMIT)
        return sources
    contents = dict(zip(files, storage.fetch([*files.values()]), strict=True))
    if gone := [file for name, file in files.items() if contents[name] is None]:
        raise BadProfile(f"{gone[0]}: was removed while the run was read")
    return {name: data for name, data in contents.items() if data is not None}


def _is_read_later(name: str) -> bool:
    return name.endswith(tuple(f"/{table}.parquet" for table in _READ_LATER))


def _is_long(files: Mapping[str, Location]) -> bool:
    """Return whether a local run is over, and what is read later is too large to be kept in memory until then."""
    if RUN not in files or files[RUN].url:
        return False
    with suppress(OSError, ValueError, AttributeError, RecursionError):  # as `_facts` will say
        running = json.loads(read_file(files[RUN].path)).get("state", "running") == "running"
        return not running and sum(file.size for name, file in files.items() if _is_read_later(name)) > _MOST_KEPT
    return False


def _facts(source: _Source, folder: Location) -> dict[str, Any]:
    path = f"{str(folder).rstrip('/')}/{RUN}"
    try:
        facts = json.loads((read_file(source) if isinstance(source, Path) else source).decode())
    except BadProfile:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise BadProfile(f"{path}: not a run's run.json: {format_error(error)}") from error
    if not isinstance(facts, dict) or "tpunb" not in facts:
        raise BadProfile(f"{path}: not a run's run.json: it has no 'tpunb'")
    for name in ("span_ps", "origin_ns", "journal_origin_ns", "steps_before"):
        if (value := facts.get(name)) is not None and not (isinstance(value, int) and 0 <= value <= _MOST_PS):
            raise BadProfile(f"{path}: not a run's run.json: {name} is {value!r:.40}", hint="copy the run again")
    version = facts["tpunb"]
    if not isinstance(version, int):
        raise BadProfile(f"{path}: not a run's run.json: its version is {version!r:.40}")
    if version not in (2, VERSION):
        later = version > VERSION
        raise BadProfile(
            f"{path}: run folder of version {version}, by {'a later' if later else 'an earlier'} tpunb; "
            f"this one reads 2 and {VERSION}",
            hint="install a later tpunb" if later else "record it again, or read it with the tpunb that wrote it",
        )
    return facts


def _step_flops(facts: Mapping[str, Any]) -> float | None:
    flops = facts.get("step_flops")
    return float(flops) if isinstance(flops, int | float) and 0 < flops < 2**1000 else None


_Overhead = tuple[float | None, tuple[float, float] | None]


def _device(files: Mapping[str, Location]) -> Device | None:
    """Return the device that was measured for the run; None if there is no file of it, or a damaged one."""
    if DEVICE not in files:
        return None
    try:
        return Device.from_json(storage.read_small(files[DEVICE]))
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        warn_user(f"{DEVICE} is ignored: {format_error(error)}", stacklevel=2)
        return None


def _metadata(facts: dict[str, Any], path: Location) -> tuple[pl.DataFrame, int, _Overhead, dict[str, str], list[str]]:
    """Return hardware, duration (0 if killed), overhead, metadata (of layout 2 "about") and notes of a run."""
    try:
        hardware = pl.DataFrame(facts.get("hardware", []), schema=schema.HARDWARE)
        overhead, ends = facts.get("overhead"), facts.get("overhead_interval")
        interval = None if ends is None else (float(ends[0]), float(ends[1]))
        metadata = {str(name): str(text) for name, text in facts.get("metadata", facts.get("about", {})).items()}
        only_cpu = all("CPU" in name.upper() for name in facts.get("devices") or [""])  # of JAX "cpu:0"
        if kind := device_kinds(hardware) or ("CPU" if only_cpu else ""):
            metadata["device kind"] = kind
        if only_cpu and isinstance(cpu := facts.get("cpu"), str):
            metadata["cpu"] = cpu
        overhead = None if overhead is None else float(overhead)
        return hardware, int(facts.get("span_ps", 0)), (overhead, interval), metadata, _clock_notes(facts)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise BadProfile(f"{path}: not a run's run.json: {format_error(error)}") from error


def _clock_notes(facts: Mapping[str, Any]) -> list[str]:
    """Return the longest jump of the system clock in the run, if any."""
    if not (jumps := facts.get("clock_jumps")):
        return []
    after_ps, by_ps = max(jumps, key=lambda jump: abs(jump[1]))
    jump = f"{'ahead' if by_ps > 0 else 'back'} by {duration(abs(by_ps))} after {duration(after_ps)} of the run"
    more = f", and {len(jumps) - 1} times more" if len(jumps) > 1 else ""
    return [f"the system clock jumped {jump}{more}: it was set, or the machine suspended; durations are right"]


def _tables(contents: Mapping[str, _Source], files: Mapping[str, Location]) -> tuple[dict[str, Any], _Lost]:
    """Return the tables of all parts, of operations a scan, and the damaged files; raise if no part has its ticks."""
    valid = parts(files)
    paths = {table: [f"parts/{part}/{table}.parquet" for part in valid] for table in TABLES}
    tables, damaged = dict[str, Any](), dict[str, str]()
    for table, all_paths in paths.items():
        there = [path for path in all_paths if path in contents]
        try:
            tables[table] = _stack([contents[path] for path in there], table)
        except _UNREADABLE:
            for path in there:
                try:
                    _stack([contents[path]], table)
                except _UNREADABLE as error:
                    damaged[path] = f"cannot be read: {format_error(error)}"
    if not damaged:
        return tables, []
    if damaged.keys() >= {*filter(contents.__contains__, paths["ticks"])}:
        path, reason = next(iter(damaged.items()))
        raise BadProfile(f"{files[path]}: {reason}", hint="copy the run again")
    left, lost = dict(contents), _Lost()
    for path, reason in damaged.items():
        folder, _, table = path.removesuffix(".parquet").rpartition("/")
        names = TABLES if table == "ticks" else _OF_STEPS if table in _OF_STEPS else [table]
        others = [name for name in names if left.pop(f"{folder}/{name}.parquet", None) is not None and name != table]
        lost.append((path, reason + (f"; left out with it: {', '.join(others)}" if others else "")))
    tables, more = _tables(left, files)
    return tables, lost + more


def _tail(contents: Mapping[str, _Source]) -> tuple[pl.DataFrame, _Lost]:
    """Return the latest steps, which no part holds, and the damaged file of them."""
    try:
        return _stack([contents[TAIL]] if TAIL in contents else [], "ticks"), []
    except _UNREADABLE as error:
        return _stack([], "ticks"), [(TAIL, f"cannot be read: {format_error(error)}")]


_LINE = "\t".join(["%s"] * len(JournalRow._fields))


def step_row(row: JournalRow) -> tuple[bytes, int]:
    r"""Return a row of the journal that is a step, and its place.

    >>> row, at = step_row(JournalRow(8194, "train", 17, 23, found_by="keras", before=0))
    >>> row.strip(), at
    (b'8194\ttrain\t17\t23\tNone\tNone\tNone\tkeras\t0\tNone', 320)
    """
    return _padded(_LINE % row, _ROW), (row.step or 0) % LATEST_STEPS * _ROW


def span_row(number: int, span: signals.Spent) -> tuple[bytes, int]:
    r"""Return a row of the journal that is the span of this number, and its place.

    >>> row, at = span_row(2, signals.Spent("evaluation", None, 17, 23))
    >>> row.strip(), at == (8192 + 2) * 160
    (b'None\tevaluation\t17\t23\tNone\tNone\tNone\t\tNone\tNone', True)
    """
    detail = " ".join((span.detail or "").split()).encode(errors="replace")[:_LONGEST_DETAIL].decode(errors="ignore")
    row = JournalRow(None, span.account, span.start_ns, span.end_ns, found_by=detail)
    return _padded(_LINE % row, _ROW), (LATEST_STEPS + number % LATEST_STEPS) * _ROW


def event_rows(number: int, rows: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """Return the latest of packed events, of which the first has this number, in one piece or two, with their places.

    >>> [(len(rows), at - event_rows(0, [b""])[0][1]) for rows, at in event_rows(16_383, [bytes(64)] * 3)]
    [(64, 1048512), (128, 0)]
    """
    number, rows = number + max(0, len(rows) - LATEST_EVENTS), rows[-LATEST_EVENTS:]
    first = number % LATEST_EVENTS
    pieces = (rows[: LATEST_EVENTS - first], first), (rows[LATEST_EVENTS - first :], 0)
    return [(b"".join(piece), _EVENTS_FROM + run_events.ROW.size * at) for piece, at in pieces if piece]


def name_rows(number: int, lines: Sequence[bytes]) -> tuple[bytes, int]:
    """Return lines of what events refer to, of which the first has this number, and their place."""
    padded = (line[: _NAME - 1].ljust(_NAME - 1) + b"\n" for line in lines[: max(0, _MOST_NAMES - number)])
    return b"".join(padded), _NAMES_FROM + _NAME * number


def _padded(row: str, length: int) -> bytes:
    return row.encode(errors="replace")[: length - 1].ljust(length - 1) + b"\n"


def holds_steps(journal: bytes) -> bool:
    """Return whether a journal holds a step, not spans alone."""
    return bool(journal[: _ROW * LATEST_STEPS].strip(b"\0"))


def fits_journal(kind: str) -> bool:
    r"""Return whether a row of the journal has room for a kind of steps.

    >>> fits_journal("train"), fits_journal("train\t2"), fits_journal("a_function_of_a_long_name" * 3)
    (True, False, False)
    """
    return kind.isprintable() and len(kind.encode(errors="replace")) <= _LONGEST_KIND


def _latest(
    source: _Source | None, facts: Mapping[str, Any], ticks: pl.DataFrame
) -> tuple[pl.DataFrame, int | None, pl.DataFrame]:
    """Return the steps after the last of `ticks` in the journal, the steps before the run, and the journal's spans."""
    columns = JournalRow._fields
    host, origin_ns = facts.get("host"), facts.get("journal_origin_ns", facts.get("origin_ns"))
    if not isinstance(source, bytes) or not isinstance(host, str) or not isinstance(origin_ns, int):
        return ticks.clear(), None, pl.DataFrame(schema=schema.SPANS)
    text = source[:_EVENTS_FROM].decode(errors="replace")
    lines = (line.strip(" \0").split("\t") for line in text.split("\n"))
    rows = [(*line, "None")[: len(columns)] for line in lines if len(columns) - 1 <= len(line) <= len(columns)]
    numbers, names = pl.all().exclude("kind", "found_by"), {name: f"{name[:-2]}ps" for name in columns if "_ns" in name}
    steps = pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row").with_columns(
        numbers.cast(pl.Int64, strict=False), host=pl.lit(host)
    )
    steps = steps.drop_nulls("end_ns").with_columns(pl.col("start_ns", "end_ns") - origin_ns)
    steps = steps.filter(pl.col("start_ns").is_between(0, pl.col("end_ns")), pl.col("end_ns") < _MOST_PS // 1000)
    steps = steps.with_columns(pl.col(*names).clip(-1, _MOST_PS // 1000) * 1000).rename(names).sort("step")
    spans = steps.filter(pl.col("step").is_null()).select(
        *("host", "start_ps"),
        dur_ps=pl.col("end_ps") - pl.col("start_ps"),
        account="kind",
        detail=pl.col("found_by").replace("", None),
    )
    last, before = ticks.filter(host=host)["step"].max(), steps["before"].drop_nulls()
    later = schema.check(steps.filter(pl.col("step") > (last if isinstance(last, int) else -1)), TICKS, "ticks")
    return later, before[-1] if before.len() else None, spans


def _stack(sources: Sequence[_Source], table: str) -> Any:
    """Return a table, a scan of those that are read later."""
    if not sources:
        return pl.DataFrame(schema=TABLES[table])
    for source in sources:
        if isinstance(source, Path):
            check_file(source)  # which polars opens
    return (parquet.scan if table in _READ_LATER else parquet.read)(sources, TABLES[table])
