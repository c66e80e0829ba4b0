"""The run folder: what a capture writes and `tp.load` reads.

::

    run.json                    when, where, with what; an entry a window
    windows/00000/              one a window, there in whole or not at all
        steps.parquet           STEPS of the steps the window saw, in full or cut by its edge
        ops.parquet             OPS
        devices.parquet         DEVICES
        clocks.parquet          CLOCKS
        ticks.parquet           every step by our own clock, those that no window saw too
        raw.xplane.pb           only with keep="all"

Times in the Parquet files are picoseconds since the run's ``origin_ns``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Profile, Steps
from tpunb.io.places import Place

RUN = "run.json"
RAW = re.compile(r"windows/([0-9]+)/raw\.xplane\.pb")
"""The path of a raw window in the run folder, and its number."""

VERSION = 1

TICKS: schema.Schema = {
    "host": pl.String(),
    "step": pl.Int64(),
    "mark": pl.String(),
    "start_ps": pl.Int64(),
    "end_ps": pl.Int64(),
}
"""One row a step that ended, by our own clock; a step may have several rows."""


def write_run(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``run.json`` to the side and rename it, so that a reader never sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{RUN}.{uuid4().hex[:8]}"
    aside.write_text(json.dumps({"tpunb": VERSION, **facts}, indent=1), encoding="utf-8")
    aside.replace(folder / RUN)


def write_window(
    folder: Path,
    number: int,
    steps: Steps | None,
    ticks: pl.DataFrame,
    raw: bytes | None,
    *,
    clocks: pl.DataFrame | None = None,
) -> None:
    """Write one window as a folder to the side and rename it."""
    aside = folder / "windows" / f".{number:05d}.{uuid4().hex[:8]}"
    aside.mkdir(parents=True)
    ticks.write_parquet(aside / "ticks.parquet")
    if steps is not None:
        steps.frame.write_parquet(aside / "steps.parquet")
        steps.ops.write_parquet(aside / "ops.parquet")
        steps.devices.write_parquet(aside / "devices.parquet")
    if clocks is not None:
        clocks.write_parquet(aside / "clocks.parquet")
    if raw is not None:
        (aside / "raw.xplane.pb").write_bytes(raw)
    aside.rename(folder / "windows" / f"{number:05d}")


def make_way(folder: Path) -> Path | None:
    """Make `folder` free for a new run; an earlier run there is renamed, never overwritten.

    Returns
    -------
    Path or None
        Where the earlier run went.

    Raises
    ------
    ValueError
        When the folder holds something that is not a run.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / RUN).is_file():
        raise ValueError(
            f"The dir parameter of capture must be a new folder or an earlier run's. Got {str(folder)!r} instead, "
            "which holds something else."
        )
    number = 1
    while (moved := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    folder.rename(moved)
    return moved


def is_run(folder: Path) -> bool:
    """Say whether a capture wrote this folder."""
    return (folder / RUN).is_file()


_ReadRaw = Callable[[Mapping[int, Place], int | None, Mapping[int, int]], pl.DataFrame]


def read(folder: Path, raw: Mapping[int, Place], read_raw: _ReadRaw, *, source: Path | str | None = None) -> Profile:
    """Read a run, finished or not.

    Parameters
    ----------
    folder
        The run's.
    raw
        The raw windows that were kept, by number.
    read_raw
        Decodes them to EVENTS in the run's time, given its origin and when each began.
    source
        Where the folder was fetched from, if it was.

    Raises
    ------
    BadProfile
        When ``run.json`` is not one, or a window's file cannot be read.
    """
    facts = _facts(folder / RUN)
    windows, hardware, known_ps = _tables(facts, folder / RUN)
    # what lies on disk counts, not what run.json had come to list: a kill may fall between the two
    folders = sorted(path for path in (folder / "windows").glob("[0-9]*") if path.is_dir())
    ticks = _stack(folders, "ticks.parquet", TICKS)
    seen = _stack(folders, "steps.parquet", schema.STEPS)
    ops = _stack(folders, "ops.parquet", schema.OPS)
    devices = _stack(folders, "devices.parquet", schema.DEVICES)
    clocks = _stack(folders, "clocks.parquet", schema.CLOCKS)
    ends = [windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item(), ticks["end_ps"].max()]
    span = known_ps or max((int(end) for end in ends if end is not None), default=0)
    begins = dict(windows.select("window", "start_ps").iter_rows())
    source = source or folder
    name = str(facts.get("name", PurePath(source).name))
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=hardware,
        span_ps=span,
        origin_ns=facts.get("origin_ns"),
        stored=Steps(*_whole_run(ticks, seen, ops, devices), windows, name),
        read_events=partial(read_raw, raw, facts.get("origin_ns"), begins) if raw else None,
        stored_clocks=None if clocks.is_empty() else _of_run(clocks),
    )


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadProfile(f"{path}: not a run's run.json: {error}") from error
    if not isinstance(facts, dict) or "tpunb" not in facts:
        raise BadProfile(f"{path}: not a run's run.json: no 'tpunb' in it")
    if not isinstance(facts["tpunb"], int):
        raise BadProfile(f"{path}: not a run's run.json: its version is {facts['tpunb']!r:.40}")
    if facts["tpunb"] > VERSION:
        raise BadProfile(
            f"{path}: a run folder of version {facts['tpunb']}, by a later tpunb; this one reads {VERSION}",
            hint="pip install --upgrade tpunb",
        )
    return facts


def _tables(facts: dict[str, Any], path: Path) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return what ``run.json`` says as windows, hardware and the run's length, 0 where a kill left none."""
    host = str(facts.get("host", ""))
    try:
        rows = [
            {"host": host, **{name: entry.get(name) for name in list(schema.WINDOWS)[1:]}}
            for entry in facts.get("windows", [])
        ]
        windows = pl.DataFrame(rows, schema=schema.WINDOWS)
        hardware = pl.DataFrame(facts.get("hardware", []), schema=schema.HARDWARE)
        return windows, hardware, int(facts.get("span_ps", 0))
    except (AttributeError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(f"{path}: not a run's run.json: {reason}") from error


_UNREADABLE = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def _parquet(path: Path, columns: schema.Schema) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path, glob=False)  # a run's name may hold [ or *
        return schema.check(frame, columns, path.stem)
    except BadProfile as error:
        raise BadProfile(f"{path}: {error}") from error
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(f"{path}: cannot be read: {reason}") from error


def _stack(folders: list[Path], file: str, columns: schema.Schema) -> pl.DataFrame:
    files = [path / file for path in folders if (path / file).is_file()]
    if not files:
        return schema.empty(columns)
    try:
        return schema.check(pl.read_parquet(files, glob=False), columns, Path(file).stem)
    except (BadProfile, *_UNREADABLE):  # one by one, to name the one that cannot be read
        return pl.concat([_parquet(path, columns) for path in files])


def _whole_run(
    ticks: pl.DataFrame, seen: pl.DataFrame, ops: pl.DataFrame, devices: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Join the windows: one row a step of the run, with what the windows saw of it."""
    key = ["host", "step"]
    of_windows = seen.group_by(key).agg(
        pl.col("mark").first(),
        pl.col("start_ps").min(),
        pl.col("dur_ps").max(),
        pl.col("seen").max(),  # "partial" where any window cut it
        *map(_merged, _STEP_FACTS),
    )
    by_clock = ticks.group_by(key).agg(
        pl.col("mark").sort_by("start_ps").first().alias("tick_mark"),
        pl.col("start_ps").min().alias("tick_start_ps"),
        pl.col("end_ps").max().alias("tick_end_ps"),
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
        **{name: pl.col(name) for name in _STEP_FACTS},
    )
    # the category of the row with most self time: a group keeps the order of its rows
    table = (
        ops.sort("self_ps", descending=True)
        .group_by(*key, "op", "side")
        .agg(pl.col("category").drop_nulls().first(), pl.col("count", "total_ps", "self_ps").sum())
    )
    per_device = devices.group_by("host", "device", "step").agg(
        pl.col("start_ps").min(), pl.col("dur_ps").sum(), *map(_merged, schema.DEVICE_FACTS)
    )
    return frame, table, per_device


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
