"""Builders of toy data, a fake profiler service, and conformance tests.

They need no TPU and no network beyond loopback; all randomness is seeded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpunb.testing.builders import spelled_steps, toy_events, toy_layers, toy_steps, toy_window
from tpunb.testing.conformance import (
    check_checkpoint_format,
    check_method,
    check_search,
    check_source,
    check_step_rule,
)

if TYPE_CHECKING:
    from tpunb.testing.fake_profiler import FakeProfiler

__all__ = [
    "FakeProfiler",
    "check_checkpoint_format",
    "check_method",
    "check_search",
    "check_source",
    "check_step_rule",
    "spelled_steps",
    "toy_events",
    "toy_layers",
    "toy_steps",
    "toy_window",
]


def __getattr__(name: str) -> Any:
    if name == "FakeProfiler":  # imports grpc
        return import_module("tpunb.testing.fake_profiler").FakeProfiler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
