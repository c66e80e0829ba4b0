"""Ids that link events: flows between threads, and launches on devices.

Profilers write the same number signed or unsigned, so ids are modulo 2**64. Two numbers become one id by a multiplier
that spreads the first over all bits.
"""

from __future__ import annotations

MULTIPLIER = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: an odd number whose multiples are far apart."""

_MODULUS = 2**64


def flow_id(kind: int, number: int) -> int:
    """Return the id of a flow, 0 to 2**64 - 1, shared by the events at its start and end.

    ``_pt``, ``_p`` of the producer and ``_ct``, ``_c`` of the consumer are its kind and number, signed or unsigned.

    >>> flow_id(12, -1) == flow_id(12, 2**64 - 1) != flow_id(13, -1)
    True
    """
    return ((kind + 1) * MULTIPLIER + number) % _MODULUS


def run_launch(run_id: int, ordinal: int) -> int:
    """Return the id of the launch of a run, 0 to 2**64 - 1; runs are counted per device.

    The ordinal is 3 of ``/device:TPU:3``, ``device_ordinal`` of a host event, -1 for host threads.

    >>> run_launch(850, 0) == run_launch(850, 1), run_launch(0, 0)
    (False, 1)
    """
    return (run_id * MULTIPLIER + ordinal + 1) % _MODULUS
