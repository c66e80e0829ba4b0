"""Ids that link events: flows between threads, and launches on devices.

Profilers write the same number signed or unsigned, so ids are modulo 2**64. Two numbers become one id by a multiplier
that spreads the first over all bits.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

_Ids = TypeVar("_Ids", npt.NDArray[np.uint64], pl.Series, pl.Expr)

MULTIPLIER = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: an odd number whose multiples are far apart."""


def flow_id(kind: _Ids, number: _Ids) -> _Ids:
    """Return the ids of flows, shared by the events at their start and end, of columns of UInt64, which wrap.

    ``_pt``, ``_p`` of the producer and ``_ct``, ``_c`` of the consumer are kind and number.
    """
    return (kind + 1) * MULTIPLIER + number


def run_launch(run_id: _Ids, ordinal: _Ids) -> _Ids:
    """Return the ids of the launches of runs, which are counted per device, of columns of UInt64, which wrap.

    The ordinal is 3 of ``/device:TPU:3``, ``device_ordinal`` of a host event, -1 for host threads.
    """
    return run_id * MULTIPLIER + ordinal + 1
