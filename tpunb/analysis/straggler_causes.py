"""Why a host is late, in which steps, and in which device and operation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tpunb.analysis.barriers import Barriers, median
from tpunb.frames.host_tables import HostTables
from tpunb.frames.op_matrix import Floats
from tpunb.step_stats import op_names

_EXPLAINED = 0.5  # part of the lateness that a cause has to explain
_REGULAR = 0.8  # part of the steps, or of the gaps between late ones, that are alike
_WAITING = r"(?i)^(infeed|outfeed|send|recv)"  # operations of a device that wait for others
_REASON = ("host", "cause", "device", "op", "recurrence")


def causes(
    found: Barriers, tables: HostTables, frame: pl.DataFrame, late: Floats, hosts: Sequence[int]
) -> pl.DataFrame:
    """Return host, cause, device, op and recurrence of some hosts.

    A cause explains what the host has more of than the median of its role, at most its lateness in each step. Of the
    device's time only what it was busy is compute, as far as operations took longer.
    """
    times = {
        "input": _by_step(found, frame, pl.sum_horizontal("input_ps", "infeed_ps", ignore_nulls=True)),
        "compile": _by_step(found, frame, pl.col("compile_ps")),
        "host": _by_step(found, frame, pl.col("idle_ps")),
    }
    ops, self_ps = _by_op(found, tables)
    roles = np.array([tables.roles.get(name, "") for name in found.hosts])
    rows: list[tuple[str | None, ...]] = []
    for host in hosts:
        lateness, peers = late[:, host].clip(0), roles == roles[host]
        often = _recurrence(lateness)
        total, shares = max(lateness.sum(), 1), {}
        for name, of in times.items():
            shares[name] = np.nansum(np.minimum(of[:, host] - median(of[:, peers], 1), lateness).clip(0)) / total
        more = self_ps[:, host] - median(self_ps[:, peers], 1)
        idle = shares["host"] if np.isfinite(times["host"][:, host]).any() else shares["input"] + shares["compile"]
        shares["compute"] = min(more.clip(0).sum() / total, 1 - idle)
        shares["host"] -= shares["input"] + shares["compile"]
        cause = max(shares, key=lambda name: shares[name])
        device = op = None
        if shares[cause] < _EXPLAINED:
            cause = "unknown"
        elif cause == "host" and often in ("bursts", "once"):
            cause = "pause"
        elif cause == "compute":
            device, op = _device(found, host), ops[int(more.argmax())]
        rows.append((found.hosts[host], cause, device, op, often))
    return pl.DataFrame(rows, schema=dict.fromkeys(_REASON, pl.String), orient="row")


def _recurrence(lateness: Floats) -> str:
    """Return in which steps a host is late, in words: by 50 % of the mean of late steps, or more."""
    ran = np.flatnonzero(lateness >= (lateness**2).sum() / max(lateness.sum(), 1) / 2)
    gaps = np.diff(ran)
    if len(ran) < 2:
        return "once"
    if len(ran) >= _REGULAR * len(lateness):
        return "every step"
    every = int(np.median(gaps))
    return f"every {every} steps" if len(gaps) > 1 and (gaps == every).mean() >= _REGULAR else "bursts"


def _device(found: Barriers, host: int) -> str | None:
    """Return the device that arrives last in most of the time by which a host is late, None if there is none."""
    late = np.bincount(found.device[:, host] + 1, found.late[:, host].clip(0))[1:]
    return found.devices[late.argmax()] if late.max(initial=0) > late.sum() / 2 else None


def _by_step(found: Barriers, frame: pl.DataFrame, column: pl.Expr) -> Floats:
    """Return a time of each host by step, (steps, hosts), NaN if unknown."""
    rows = frame.select("host", "step", value=column.cast(pl.Float64)).filter(pl.col("step").is_in(found.steps))
    times = np.full((len(found.steps), len(found.hosts)), np.nan)
    host = rows["host"].cast(pl.Enum(found.hosts)).to_physical().to_numpy()
    times[np.searchsorted(found.steps, rows["step"]), host] = rows["value"]
    return times


def _by_op(found: Barriers, tables: HostTables) -> tuple[list[str], Floats]:
    """Return operations of devices that wait for nobody, and their self times, (ops, hosts)."""
    rows = tables.ops.filter(side="device").with_columns(pl.col("op").cast(pl.String), pl.col("host").cast(pl.String))
    rows = rows.filter(pl.col("host").is_in(found.hosts), ~pl.col("op").str.contains(_WAITING))
    ops = [name for name in rows["op"].unique().sort() if op_names.operation_class(name) != "collective"] or [""]
    rows = rows.filter(pl.col("op").is_in(ops))
    times = np.zeros((len(ops), len(found.hosts)))
    op, host = (
        rows[name].cast(pl.Enum(of)).to_physical().to_numpy() for name, of in (("op", ops), ("host", found.hosts))
    )
    times[op, host] = rows["self_ps"]
    return ops, times
