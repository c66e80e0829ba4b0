from .builders import spelled_steps, toy_events, toy_layers, toy_steps, toy_window
from .conformance import (
    Curve,
    Labels,
    SliderSpec,
    check_checkpoint_format,
    check_method,
    check_search,
    check_source,
    check_step_rule,
    null_run,
)
from .fake_profiler import FakeProfiler

__all__ = [
    "Curve",
    "FakeProfiler",
    "Labels",
    "SliderSpec",
    "check_checkpoint_format",
    "check_method",
    "check_search",
    "check_source",
    "check_step_rule",
    "null_run",
    "spelled_steps",
    "toy_events",
    "toy_layers",
    "toy_steps",
    "toy_window",
]
