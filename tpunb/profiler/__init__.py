"""Capture a run: windows from the framework's profiler, every step by a clock, statistics into a run folder."""
