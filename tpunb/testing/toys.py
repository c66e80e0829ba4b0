"""Small true things to test with: no TPU, no network, no randomness."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tpunb import schema
from tpunb.frames import Steps

_MS = 1_000_000_000  # picoseconds
_US = 1_000_000


def toy_steps(pattern: str = "aaabbb", *, host: str = "toy", seen: str | None = None) -> Steps:
    """Return one step a letter, 1 ms apart; each letter is a family of operations of its own.

    Letter ``a`` runs device ops ``a0 a1 a2`` and host op ``a_host`` in 1 ms, ``b`` its own in 2 ms, and so on; a
    letter's steps are all alike. A step is busy for half its time.

    Parameters
    ----------
    pattern
        One letter, a to z, a step.
    host
        Its name.
    seen
        One letter a step: f(ull), p(artial) or t(ick); all full unless given.

    >>> toy_steps("aab").frame["dur_ps"].to_list()
    [1000000000, 1000000000, 2000000000]
    """
    how = {"f": "full", "p": "partial", "t": "tick"}
    marks = [how[letter] for letter in seen or "f" * len(pattern)]
    kinds = [ord(letter) - ord("a") for letter in pattern]
    durs = [_MS * (kind + 1) for kind in kinds]
    starts = [sum(durs[:i]) for i in range(len(durs))]
    busy = [dur // 2 if mark == "full" else None for dur, mark in zip(durs, marks, strict=True)]
    frame = pl.DataFrame(
        {
            "host": [host] * len(pattern),
            "step": range(len(pattern)),
            "mark": ["train"] * len(pattern),
            "start_ps": starts,
            "dur_ps": durs,
            "device_ps": busy,
            "idle_ps": busy,
            "seen": marks,
        },
        schema_overrides={name: schema.STEPS[name] for name in ("device_ps", "idle_ps")},
    )
    rows = [
        (host, step, f"{letter}{i}", "device", i + 1, durs[step] // 8 * (i + 1), durs[step] // 12 * (i + 1))
        for step, letter in enumerate(pattern)
        if marks[step] != "tick"
        for i in range(3)
    ] + [
        (host, step, f"{letter}_host", "host", 2, durs[step] // 4, durs[step] // 4)
        for step, letter in enumerate(pattern)
        if marks[step] != "tick"
    ]
    columns = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}
    ops = pl.DataFrame(rows, schema=columns, orient="row")
    devices = frame.filter(pl.col("seen") == "full").select(
        "host", "step", "start_ps", "dur_ps", "device_ps", "idle_ps", device=pl.lit("/device:TOY:0")
    )
    window = {
        "host": host,
        "window": 0,
        "start_ps": 0,
        "dur_ps": sum(durs),
        "answer_ps": sum(durs),
        "bytes": 1000,
        "events": len(rows),
        "steps": marks.count("full"),
    }
    windows = pl.DataFrame([window], schema=schema.WINDOWS)  # what it does not know is null
    return Steps(frame, ops, devices, windows, name="toy")


def spelled_steps(*told: tuple[Mapping[str, int], Mapping[str, int]], host: str = "toy") -> Steps:
    """Return one step of 10 ps a pair of mappings of operations to their self times, the device's and the host's.

    >>> spelled_steps(({"matmul": 7}, {"feed": 2}), ({}, {})).ops["self_ps"].to_list()
    [7, 2]
    """
    n = len(told)
    frame = pl.DataFrame(
        {
            "host": [host] * n,
            "step": range(n),
            "mark": ["train"] * n,
            "start_ps": range(0, 10 * n, 10),
            "dur_ps": [10] * n,
            "device_ps": [5] * n,
            "idle_ps": [5] * n,
            "seen": ["full"] * n,
        }
    )
    rows = [
        (host, step, op, side, 1, own, own)
        for step, sides in enumerate(told)
        for side, ops in zip(("device", "host"), sides, strict=True)
        for op, own in ops.items()
    ]
    columns = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}
    return Steps(frame, pl.DataFrame(rows, schema=columns, orient="row"))


def toy_events(
    *rows: tuple[str, str, str, int, int] | tuple[str, str, str, int, int, int], host: str = "toy"
) -> pl.DataFrame:
    """Return events spelled as (plane, line, name, start, duration) in microseconds, and a step number on marks.

    >>> toy_events(("/host:CPU", "python", "train", 0, 10, 7)).select("name", "step_num", "dur_ps").row(0)
    ('train', 7, 10000000)
    """
    lanes: dict[tuple[str, str], int] = {}
    spelled = [
        (
            host,
            plane,
            line,
            lanes.setdefault((plane, line), len(lanes)),
            name,
            *number,
            start * _US,
            dur * _US,
        )
        for plane, line, name, start, dur, *number in (row if len(row) == 6 else (*row, None) for row in rows)
    ]
    columns = ["host", "plane", "line", "lane", "name", "step_num", "start_ps", "dur_ps"]
    frame = pl.DataFrame(spelled, schema={name: schema.EVENTS[name] for name in columns}, orient="row")
    return schema.check(frame.with_columns(tf_op=None, hlo_op=None), schema.EVENTS, "events")
