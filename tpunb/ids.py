"""Ids by which events find each other: of hand-overs between threads, and of launches on devices.

Profilers write the same number signed here and unsigned there, and count runs a device: an id is taken modulo 2**64,
and one number of two is made by a multiplier that spreads the first over all bits.
"""

from __future__ import annotations

MULTIPLIER = 0x9E3779B97F4A7C15
"""2**64 by the golden ratio: an odd number whose multiples lie far apart."""

_MODULUS = 2**64


def flow_id(kind: int, number: int) -> int:
    """Return the id of a hand-over, 0 to 2**64 - 1: shared by the event that sends it and the one that receives it.

    Parameters
    ----------
    kind
        Of the context: ``_pt`` of whoever sends, ``_ct`` of whoever receives.
    number
        Within that kind, signed or unsigned: ``_p`` or ``_c``.

    >>> flow_id(12, -1) == flow_id(12, 2**64 - 1) != flow_id(13, -1)
    True
    """
    return ((kind + 1) * MULTIPLIER + number) % _MODULUS


def run_launch(run_id: int, ordinal: int) -> int:
    """Return the id of the launch of a run, 0 to 2**64 - 1; runs are counted a device.

    Parameters
    ----------
    run_id
        The number of the run on its device.
    ordinal
        Of the device: 3 of ``/device:TPU:3``, ``device_ordinal`` of an event of the host; -1 of the host's own threads,
        where a run is one of all its devices.

    >>> run_launch(850, 0) == run_launch(850, 1), run_launch(0, 0)
    (False, 1)
    """
    return (run_id * MULTIPLIER + ordinal + 1) % _MODULUS
