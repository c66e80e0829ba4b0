"""Read the records of DLIO, the benchmark of MLPerf Storage: one ``N_output.json`` for each process.

Each has the time of every step in seconds: ``load`` until the batch is there, ``compute`` in an emulated accelerator,
``proc`` from the begin of the first to the end of the second. Then all processes wait for the last one at a barrier.
``per_epoch_stats.json`` beside them has the wall time of the epochs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Profile, Steps
from tpunb.frames.op_matrix import Floats
from tpunb.frames.steps import WallClock
from tpunb.io.xprof_tables import as_object, text
from tpunb.text import plural

ENDING = "_output.json"
"""Ending of the names of these files."""
EPOCHS = "per_epoch_stats.json"
"""Name of the file with the wall time of epochs."""

_TIMES = ("load", "proc", "compute")
_MOST_S = 10**6  # of a step
_DEVICE = "/device:accelerator:0"
Block = tuple[str, str]  # epoch and block, as the files name them


def profile(files: Mapping[str, bytes], epochs: bytes | None, name: str, source: Path | str) -> Profile:
    """Return the profile of some processes, by file name: a host each, with its steps in all epochs.

    Steps of an epoch are one after the other, each as long as that of the slowest process, since all wait at a barrier;
    what the epoch takes longer follows its last step. Damaged files are skipped. Raises BadProfile if all are.
    """
    hosts, skipped, notes = dict[str, dict[Block, Floats]](), list[tuple[str, str]](), list[str]()
    for file in sorted(files, key=lambda file: (len(file), file)):
        try:
            top = _parsed(files[file], file)
            rank, machine = file.removesuffix(ENDING).rpartition("/")[2], text(top.get("hostname"))
            hosts[f"rank{rank}" + f"@{machine}" * bool(machine)] = _blocks(top, file)
        except BadProfile as error:
            skipped.append((file, str(error).removeprefix(f"{file}: ")))
    if not hosts:
        raise BadProfile(f"{source}: {skipped[0][0]}: {skipped[0][1]}", hint="load the folder of one run of DLIO")
    missing = sorted(
        {*range(len(files))} - {int(stem) for file in files if (stem := file.removesuffix(ENDING)).isdigit()}
    )
    skipped += [(f"{rank}{ENDING}", "no file of this process") for rank in missing]
    walls = {} if epochs is None else _walls(_parsed(epochs, EPOCHS))
    if not walls:
        notes.append(f"no {EPOCHS} beside the files: the wall time of epochs is unknown")
    rows, spans, span_ps = _rows(hosts, walls)
    cut = [host for host, blocks in hosts.items() if {key: len(x) for key, x in blocks.items()} != _longest(hosts)]
    notes += [f"{plural(len(cut), 'rank')} with fewer steps than others: {', '.join(cut[:8])}"] if cut else []
    wall = WallClock(span_ps, complete=bool(walls), spans=spans)
    windows = rows.group_by("host", maintain_order=True).agg(events=pl.len().cast(pl.Int64), steps=pl.len())
    unset = {name: pl.lit(None) for name in ("latency_ps", "bytes", "error", "reason")}
    windows = windows.with_columns(window=pl.lit(0), start_ps=pl.lit(0), dur_ps=pl.lit(span_ps), **unset)
    lost = pl.DataFrame(skipped, schema=schema.LOST, orient="row")
    steps = _steps(rows, windows, name, source, wall, lost)
    hardware = pl.DataFrame(
        [(host, _DEVICE, "emulated", None, None, None) for host in hosts],
        schema=schema.HARDWARE,
        orient="row",
    )
    return Profile(name, source, windows, hardware, span_ps, stored=steps, skipped=tuple(skipped), notes=tuple(notes))


def _parsed(data: bytes, file: str) -> Mapping[str, Any]:
    try:
        top = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadProfile(f"{file}: not JSON: {error}", hint="copy the file again") from error
    if not isinstance(top, dict):
        raise BadProfile(f"{file}: a JSON {type(top).__name__} instead of an object by epoch")
    return top


def _blocks(top: Mapping[str, Any], file: str) -> dict[Block, Floats]:
    """Return the times of the steps of one process in each block: (steps, load · proc · compute), in seconds."""
    blocks = {}
    for epoch in sorted(filter(str.isdecimal, top), key=int):
        lists = [as_object(as_object(top[epoch]).get(name)) for name in _TIMES]
        for block in lists[1]:
            try:
                values = np.array([each.get(block) for each in lists], float).T
            except (TypeError, ValueError) as error:
                raise BadProfile(f"{file}: epoch {epoch}, {block}: load, proc and compute do not match") from error
            if values.ndim == 1 or not ((values >= 0) & (values < _MOST_S)).all():
                raise BadProfile(f"{file}: epoch {epoch}, {block}: a time is negative or over {_MOST_S} s")
            blocks[epoch, block] = values
    if not blocks:
        raise BadProfile(f"{file}: no epoch with load, proc and compute times", hint="it is written by DLIO")
    return blocks


def _walls(stats: Mapping[str, Any]) -> dict[Block, tuple[datetime, datetime]]:
    """Return begin and end of blocks and checkpoints."""
    walls = {}
    for epoch, parts in stats.items():
        for block, bounds in as_object(parts).items():
            try:
                walls[epoch, block] = tuple(datetime.fromisoformat(as_object(bounds)[key]) for key in ("start", "end"))
            except (KeyError, TypeError, ValueError):
                continue
    return walls  # type: ignore[return-value]  # two each


def _longest(hosts: Mapping[str, Mapping[Block, Floats]]) -> dict[Block, int]:
    """Return the steps of each block in order, of the process that has most."""
    keys = sorted({key for blocks in hosts.values() for key in blocks}, key=lambda key: (int(key[0]), key[1]))
    return {key: max(len(blocks.get(key, ())) for blocks in hosts.values()) for key in keys}


def _rows(
    hosts: Mapping[str, Mapping[Block, Floats]], walls: Mapping[Block, tuple[datetime, datetime]]
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return a row per (host, step) with its times, ``tpunb.schema.SPANS``, and the time of the run."""
    zero = min((start for start, _ in walls.values()), default=None)
    since = {key: [round((time - zero).total_seconds() * 1e12) for time in walls[key]] for key in walls if zero}
    parts, spans, number, now = list[pl.DataFrame](), list[tuple[str, int, int, str, str]](), count(), 0
    for key, n in _longest(hosts).items():
        epoch, block = key
        now = max(now, since[key][0]) if key in since else now
        of_hosts = {
            host: np.rint(blocks[key] * 1e12).astype(np.int64) for host, blocks in hosts.items() if key in blocks
        }
        took = np.zeros(n, np.int64)
        for times in of_hosts.values():
            took[: len(times)] = np.maximum(took[: len(times)], times[:, 1])
        start, steps = now + took.cumsum() - took, np.fromiter(number, np.int64, n)
        for host, times in of_hosts.items():
            m = len(times)
            columns = dict(zip(("input_ps", "proc_ps", "device_ps"), times.T, strict=True))
            parts.append(
                pl.DataFrame({"step": steps[:m], "start_ps": start[:m], "dur_ps": took[:m], **columns}).with_columns(
                    host=pl.lit(host), kind=pl.lit("eval" if block.startswith("eval") else "train")
                )
            )
        end = max(now + int(took.sum()), since[key][1] if key in since else 0)
        label = f"epoch {epoch}" + f", {block}" * (block != "block1")
        spans += [(host, now, end - now, "fit", label) for host in of_hosts if key in since]
        now = end
    for (epoch, block), (start_ps, end_ps) in since.items():
        if block.startswith("ckpt"):
            spans += [(host, start_ps, end_ps - start_ps, "checkpoint save", f"epoch {epoch}") for host in hosts]
            now = max(now, end_ps)
    return pl.concat(parts), pl.DataFrame(spans, schema=schema.SPANS, orient="row"), now


def _steps(
    rows: pl.DataFrame, windows: pl.DataFrame, name: str, source: Path | str, wall: WallClock, lost: pl.DataFrame
) -> Steps:
    wait = pl.col("dur_ps") - pl.col("proc_ps")
    frame = rows.with_columns(
        traced=pl.lit("full"),
        rule=pl.lit("annotation"),
        collective_ps=wait,
        exposed_collective_ps=wait,
        idle_ps=pl.col("dur_ps") - pl.col("device_ps"),
        duty_cycle=pl.col("device_ps") / pl.col("dur_ps"),
    )

    def op(label: str, side: str, time: pl.Expr, category: str | None = None) -> pl.DataFrame:
        times = {"total_ps": time, "self_ps": time, "count": pl.lit(1), "category": pl.lit(category, pl.String)}
        return rows.select("host", "step", op=pl.lit(label), side=pl.lit(side), **times)

    parts = [
        op("load", "host", pl.col("input_ps")),
        op("compute", "device", pl.col("device_ps")),
        op("barrier", "device", wait, "all-reduce"),
    ]
    absent = ("program", "wait_ps", "last", "bytes", "groups", "algorithm_bandwidth", "bus_bandwidth")
    barriers = rows.select(
        "host", "step", start_ps=pl.col("start_ps") + pl.col("proc_ps"), dur_ps=wait, **dict.fromkeys(absent)
    ).with_columns(device=pl.lit(_DEVICE), op=pl.lit("barrier"), name=pl.lit("barrier"), instance=pl.lit(1))
    return Steps(
        frame,
        pl.concat(parts),
        windows=windows,
        name=name,
        source=source,
        read_collectives=lambda: barriers,
        metadata={"device kind": "emulated"},
        wall=wall,
        lost=lost,
    )
