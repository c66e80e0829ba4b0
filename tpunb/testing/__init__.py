"""What tests are made of: toy steps, events and windows, trainings whose phases are known, and a profiler service.

No TPU, no network beyond loopback, no randomness that a seed does not fix.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpunb.testing.known_runs import KINDS, KnownRun, known_run
from tpunb.testing.rules import check_method
from tpunb.testing.toys import spelled_steps, toy_events, toy_steps
from tpunb.testing.windows import toy_window

if TYPE_CHECKING:
    from tpunb.testing.stand_in import ProfilerStandIn

__all__ = [
    "KINDS",
    "KnownRun",
    "ProfilerStandIn",
    "check_method",
    "known_run",
    "spelled_steps",
    "toy_events",
    "toy_steps",
    "toy_window",
]


def __getattr__(name: str) -> Any:
    if name == "ProfilerStandIn":  # with it comes grpc, which the toys do without
        return import_module("tpunb.testing.stand_in").ProfilerStandIn
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
