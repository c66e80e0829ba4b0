"""Goodput spelled out in rows."""

import polars as pl

from tpunb import schema
from tpunb.analysis.goodput import Goodput

S = 10**12


def goodput_of(rows, wall_s=None, *, load=(), notes=(), stalls=(), segments=()):
    """Goodput spelled out: (account, detail, seconds) or (host, account, detail, seconds) per row."""
    rows = [row if len(row) == 4 else ("h", *row) for row in rows]
    hosts = {row[0] for row in rows}
    wall_ps = round((sum(row[3] for row in rows) / max(len(hosts), 1) if wall_s is None else wall_s) * S)
    frame = [
        (host, account, None, detail, round(s * S), s * S / max(wall_ps, 1), 1, round(s * S), "clock", None, None)
        for host, account, detail, s in rows
    ]
    loads = [("h", second * S, *each, 10**9) for second, each in enumerate(load)]
    return Goodput(
        pl.DataFrame(frame, schema=schema.GOODPUT, orient="row"),
        pl.DataFrame(stalls, schema=schema.GOODPUT_STALLS, orient="row"),
        pl.DataFrame(segments, schema=schema.GOODPUT_SEGMENTS, orient="row"),
        pl.DataFrame(loads, schema=schema.LOAD, orient="row"),
        wall_ps,
        None,
        tuple(notes),
    )


SLOW = [
    ("productive", None, 3.6),
    ("callbacks", "Slow.on_epoch_end", 10.0),
    ("callbacks", "Slow.on_train_batch_end", 4.0),
    ("callbacks", "History.on_epoch_end", 0.001),
    ("program startup", None, 2.1),
    ("data loading", None, 1.5),
    ("preparation", "before the first step", 1.2),
    ("profiler", None, 1.0),
    ("evaluation", None, 0.5),
    ("other", None, 0.3),
]
