"""Capture a run: windows from the framework's profiler, every step by a clock, statistics into a run folder."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["sources"])
