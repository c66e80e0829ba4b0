"""Read the results of DLIO, the benchmark of MLPerf Storage: one ``N_output.json`` for each process.

Each has the time of every step in seconds: ``load`` until the batch is there, ``compute`` in an emulated accelerator,
``proc`` from the begin of the first to the end of the second. Then all processes wait for the last one at a barrier.
``per_epoch_stats.json`` beside them, since MLPerf Storage 2.0 one for each process, has the wall time of the epochs,
``summary.json`` the number of processes. In evaluations no process waits for others. After a checkpoint DLIO loses the
time to load the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Profile, Steps
from tpunb.frames.steps import WallClock
from tpunb.io.xprof_json import as_object, text
from tpunb.text import plural

ENDING = "_output.json"
"""Ending of the names of these files."""
EPOCHS, SUMMARY = "per_epoch_stats.json", "summary.json"
"""Names of the files with the wall time of epochs, which may begin with a process, and the number of processes."""

_TIMES = {"load": "input_ps", "proc": "proc_ps", "compute": "device_ps"}
_MOST_S = 10**5  # of an epoch: sums of many fit Int64
_DIGITS = 5  # most of the number of a process
_DEVICE = "/device:accelerator:0"
_BLOCK = ["epoch", "block"]
_TIMES_OF_WALLS = "begin_ps", "end_ps"
_WALLS = {"epoch": pl.Int32(), "block": pl.String(), **dict.fromkeys(_TIMES_OF_WALLS, pl.Int64())}
_EVALUATES = pl.col("block").str.starts_with("eval")


def profile(files: Mapping[str, bytes], name: str, source: Path | str) -> Profile:
    """Return the profile of some processes: a host each, with its steps in all epochs.

    `files` may have `EPOCHS` and `SUMMARY` too. Steps of an epoch are one after the other, each until the slowest
    process ends, since all wait at a barrier; what the epoch takes longer follows its last step. Damaged files are
    skipped. Raises BadProfile if those of all processes are.
    """
    frames, skipped = list[pl.DataFrame](), list[tuple[str, str]]()
    for file in sorted((file for file in files if file.endswith(ENDING)), key=lambda file: (len(file), file)):
        try:
            frames.append(_steps_of(_parsed(files[file], file), file))
        except BadProfile as error:
            skipped.append((file, str(error).removeprefix(f"{file}: ")))
    if not frames:
        raise BadProfile(f"{source}: {skipped[0][0]}: {skipped[0][1]}", hint="load the folder of one run of DLIO")
    rows = pl.concat(frames)
    walls = pl.DataFrame(schema=_WALLS)
    for file in sorted((file for file in files if file.endswith(EPOCHS)), key=lambda file: (len(file), file)):
        walls = walls if len(walls) else _walls(_beside(files, file), rows)  # of the first process that has all
    notes = [] if len(walls) else [f"no wall time of all epochs in {EPOCHS}: utilisation is unknown"]
    absent, more = _absent(files)
    skipped, notes = [*skipped, *absent], [*notes, *more]
    counts = rows.group_by("host", maintain_order=True).len()
    short = counts.filter(pl.col("len") < pl.col("len").max())["host"].to_list()
    notes += [f"{plural(len(short), 'rank')} with fewer steps than others: {', '.join(short[:8])}"] if short else []
    rows = _placed(rows, walls)
    last = rows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item()
    span_ps = int(max([last, *walls["end_ps"]]))
    windows = counts.select(
        *("host", pl.lit(0).alias("window"), pl.lit(0).alias("start_ps"), pl.lit(span_ps).alias("dur_ps")),
        *(pl.col("len").alias(name) for name in ("events", "steps")),
    )
    facts = {"windows": windows, "name": name, "source": source, "metadata": {"device kind": "emulated"}}
    wall = WallClock(span_ps, complete=len(walls) > 0, spans=_spans(walls, counts["host"]))
    steps = _steps(rows, wall=wall, lost=pl.DataFrame(skipped, schema=schema.LOST, orient="row"), **facts)
    devices = [(host, _DEVICE, "emulated", None, None, None) for host in counts["host"]]
    hardware = pl.DataFrame(devices, schema=schema.HARDWARE, orient="row")
    return Profile(name, source, windows, hardware, span_ps, stored=steps, skipped=tuple(skipped), notes=tuple(notes))


def _parsed(data: bytes, file: str) -> Mapping[str, Any]:
    try:
        top = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadProfile(f"{file}: not JSON: {error}", hint="copy the file again") from error
    if not isinstance(top, dict):
        raise BadProfile(f"{file}: a JSON {type(top).__name__} instead of an object by epoch")
    return top


def _beside(files: Mapping[str, bytes], file: str) -> Mapping[str, Any]:
    """Return a file beside those of the processes; empty if it is absent or damaged."""
    with suppress(BadProfile):
        return _parsed(files.get(file, b"{}"), file)
    return {}


def _absent(files: Mapping[str, bytes]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the processes without a file, and a note if there are files of more processes than the run had."""
    ranks = {int(rank) for file in files if (rank := file.removesuffix(ENDING)).isdecimal() and len(rank) <= _DIGITS}
    size, last = _beside(files, SUMMARY).get("num_accelerators"), max(ranks, default=-1)
    if not isinstance(size, int) or not 0 < size < 10**_DIGITS:
        size = last + 1 if 0 in ranks else 0
    notes = [f"{last}{ENDING} is of another run: {SUMMARY} has {size} processes"] if last >= size > 0 else []
    return [(f"{rank}{ENDING}", "no file of this process") for rank in range(size) if rank not in ranks], notes


def _steps_of(top: Mapping[str, Any], file: str) -> pl.DataFrame:
    """Return host, epoch, block, place in the block, and times in picoseconds, of the steps of one process."""
    host = "rank" + file.removesuffix(ENDING) + "@" + (text(top.get("hostname")) or "unknown")
    frames = []
    for epoch in sorted(filter(str.isdecimal, top), key=int):
        lists = [as_object(as_object(top[epoch]).get(name)) for name in _TIMES]
        for block in lists[1]:
            try:
                load, *others = (np.array(each.get(block), float) for each in lists)
                lost = block != "block1" and len(load) == len(others[0]) - 1
                times = np.array([np.append([0.0] * lost, load), *others])
            except (TypeError, ValueError) as error:
                raise BadProfile(f"{file}: epoch {epoch}, {block}: load, proc and compute do not match") from error
            if times.ndim != 2 or not (times >= 0).all() or times.sum() > _MOST_S:
                raise BadProfile(f"{file}: epoch {epoch}, {block}: a time is no number from 0 to {_MOST_S} s")
            columns = dict(zip(_TIMES.values(), np.rint(times * 1e12).astype(np.int64), strict=True))
            place = {"host": pl.lit(host), "epoch": pl.lit(int(epoch)), "block": pl.lit(block)}
            waited = pl.when((pl.col("at") > 0) | (not lost)).then("input_ps")
            frames.append(pl.DataFrame(columns).with_row_index("at").with_columns(input_ps=waited, **place))
    if not frames:
        raise BadProfile(f"{file}: no epoch with load, proc and compute times", hint="it is written by DLIO")
    return pl.concat(frames)


def _walls(stats: Mapping[str, Any], rows: pl.DataFrame) -> pl.DataFrame:
    """Return (epoch, block, begin_ps, end_ps) of blocks and checkpoints; empty if those of a block are unknown."""
    found = list[tuple[int, str, datetime, datetime]]()
    for epoch, parts in stats.items():
        for block, bounds in as_object(parts).items():
            with suppress(KeyError, TypeError, ValueError):
                begin, end = (datetime.fromisoformat(as_object(bounds)[key]) for key in ("start", "end"))
                found.append((int(epoch), block, begin, end))
    times = {name: pl.Datetime("us") for name in _TIMES_OF_WALLS}
    walls = pl.DataFrame(found, schema={**_WALLS, **times}, orient="row")
    since = pl.col(*times) - pl.col("begin_ps").min()
    walls = walls.with_columns(since.dt.total_microseconds() * 10**6)
    return walls if rows.join(walls, on=_BLOCK, how="anti").is_empty() else walls.clear()


def _placed(rows: pl.DataFrame, walls: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the number of the step, its start and its duration, up to the barrier if there is one."""
    dur, proc, host = pl.col("dur_ps"), pl.col("proc_ps"), ["host", *_BLOCK]
    rows = rows.with_columns(dur_ps=pl.when(_EVALUATES).then(proc).otherwise(proc.max().over(*_BLOCK, "at")))
    blocks = rows.group_by(host, maintain_order=True).agg(long_ps=dur.sum(), first=pl.len())
    blocks = blocks.group_by(_BLOCK, maintain_order=True).agg(pl.col("long_ps", "first").max())
    blocks = blocks.join(walls, on=_BLOCK, how="left").sort("epoch", "begin_ps", maintain_order=True)
    since = {name: pl.col(name).cum_sum() - pl.col(name) for name in ("long_ps", "first")}
    blocks = blocks.with_columns(since["first"], begin_ps=pl.coalesce("begin_ps", since["long_ps"]))
    early = pl.when(pl.col("input_ps").is_null()).then(proc - pl.col("device_ps")).max().over(_BLOCK).fill_null(0)
    rows = rows.join(blocks, on=_BLOCK, maintain_order="left")
    start = pl.col("begin_ps") + (dur.cum_sum() - dur).over(host) - early  # it begins with the first batch
    return rows.with_columns(step=pl.col("first") + pl.col("at"), start_ps=start)


def _spans(walls: pl.DataFrame, hosts: pl.Series) -> pl.DataFrame:
    """Return ``tpunb.schema.SPANS``: blocks of epochs as fits, and checkpoints."""
    block = pl.col("block")
    label = pl.when(block.str.contains("ckpt") | (block == "block1")).then(pl.lit("")).otherwise(", " + block)
    account = (
        pl.when(block.str.starts_with("load_ckpt"))
        .then(pl.lit("checkpoint restore"))
        .when(block.str.contains("^(save_)?ckpt"))
        .then(pl.lit("checkpoint save"))
        .otherwise(pl.lit("fit"))
    )
    rows = walls.with_columns(
        start_ps="begin_ps",
        dur_ps=pl.col("end_ps") - pl.col("begin_ps"),
        account=account,
        detail=pl.format("epoch {}{}", "epoch", label),
    )
    return schema.check(hosts.to_frame().join(rows, how="cross"), schema.SPANS, "spans")


def _steps(rows: pl.DataFrame, **facts: Any) -> Steps:
    wait = pl.col("dur_ps") - pl.col("proc_ps")
    frame = rows.with_columns(
        kind=pl.when(_EVALUATES).then(pl.lit("eval")).otherwise(pl.lit("train")),
        traced=pl.lit("full"),
        rule=pl.lit("annotation"),
        collective_ps=wait,
        exposed_collective_ps=wait,
        idle_ps=pl.col("dur_ps") - pl.col("device_ps"),
        duty_cycle=pl.col("device_ps") / pl.col("dur_ps"),
    )
    ops = {
        "load": ("host", "input_ps", None),
        "compute": ("device", "device_ps", None),
        "barrier": ("device", "collective_ps", "all-reduce"),
    }
    trained = frame.filter(kind="train")
    parts = [
        (frame if category is None else trained).drop_nulls(time).select(
            "host", "step", op=pl.lit(op), side=pl.lit(side), category=pl.lit(category, pl.String),
            count=1, total_ps=time, self_ps=time)
        for op, (side, time, category) in ops.items()
    ]  # fmt: skip
    start = pl.col("start_ps") + pl.col("proc_ps")
    names = {"device": pl.lit(_DEVICE), "op": pl.lit("barrier"), "name": pl.lit("barrier"), "instance": pl.lit(1)}
    waits = trained.select("host", "step", start_ps=start, dur_ps=wait, **names)
    barriers = pl.concat([pl.DataFrame(schema=schema.COLLECTIVES), waits], how="diagonal_relaxed")
    return Steps(frame, pl.concat(parts), read_collectives=lambda: barriers, **facts)
