"""TPUPoint for notebooks: profile a whole training run, and group its steps into phases.

Data flows in one direction: capture → load → steps → phases → explore; from a phase's checkpoint on: resume, tune.

>>> import tpunb as tp
>>> profile = tp.sample("keras_cnn")
>>> phases = tp.phases(tp.steps(profile))
>>> phases.coverage(3) > 0.9
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpunb.errors import TpunbError

if TYPE_CHECKING:
    from tpunb import analysis as analysis
    from tpunb import charts as charts
    from tpunb import checkpoint as checkpoint
    from tpunb import studies as studies
    from tpunb import testing as testing
    from tpunb import tuning as tuning
    from tpunb.analysis.advice import advise
    from tpunb.analysis.compare import compare
    from tpunb.analysis.goodput import Goodput, goodput
    from tpunb.analysis.history import runs
    from tpunb.analysis.roofline import Roofline, roofline
    from tpunb.analysis.stragglers import Hosts, hosts
    from tpunb.checkpoint import checkpointing, checkpoints
    from tpunb.checkpoint.resume import resume
    from tpunb.cluster import DBSCAN, HDBSCAN, OLS, Curve, KMeans, OLSPlus, SliderSpec, phases
    from tpunb.frames import Phases, Profile, Steps
    from tpunb.frames.phases import Labels
    from tpunb.io import load, sample
    from tpunb.profiler.capture import capture, null_run
    from tpunb.profiler.schedule import Schedule
    from tpunb.profiler.sources.address import Address
    from tpunb.profiler.sources.cloud_tpu import TPU
    from tpunb.profiler.sources.local import Local
    from tpunb.profiler.sources.replay import Replay
    from tpunb.profiler.sources.torch import Torch
    from tpunb.step_stats.reduce import steps
    from tpunb.studies.sweeps.measuring import sweep
    from tpunb.tuning import Job, Tuning, tune
    from tpunb.widgets.explorer import explore
    from tpunb.widgets.summary import summary
    from tpunb.widgets.tuning_panel import tuning_panel

NAMESPACES = ("analysis", "charts", "checkpoint", "studies", "testing", "tuning")
"""Modules with what the functions and classes below do not cover."""

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "OLS",
    "TPU",
    "Address",
    "Curve",
    "Goodput",
    "Hosts",
    "Job",
    "KMeans",
    "Labels",
    "Local",
    "OLSPlus",
    "Phases",
    "Profile",
    "Replay",
    "Roofline",
    "Schedule",
    "SliderSpec",
    "Steps",
    "Torch",
    "TpunbError",
    "Tuning",
    "advise",
    "capture",
    "checkpointing",
    "checkpoints",
    "compare",
    "explore",
    "goodput",
    "hosts",
    "load",
    "null_run",
    "phases",
    "resume",
    "roofline",
    "runs",
    "sample",
    "steps",
    "summary",
    "sweep",
    "tune",
    "tuning_panel",
]

_MODULES = {
    "tpunb.analysis": ("advise", "compare", "goodput", "hosts", "roofline", "runs"),
    "tpunb.checkpoint": ("checkpointing", "checkpoints"),
    "tpunb.checkpoint.resume": ("resume",),
    "tpunb.cluster": ("DBSCAN", "HDBSCAN", "OLS", "Curve", "KMeans", "OLSPlus", "SliderSpec", "phases"),
    "tpunb.frames": ("Goodput", "Hosts", "Labels", "Phases", "Profile", "Roofline", "Steps"),
    "tpunb.io": ("load", "sample"),
    "tpunb.magic": ("load_ipython_extension", "unload_ipython_extension"),
    "tpunb.profiler.capture": ("capture", "null_run"),
    "tpunb.profiler.schedule": ("Schedule",),
    "tpunb.profiler.sources.address": ("Address",),
    "tpunb.profiler.sources.cloud_tpu": ("TPU",),
    "tpunb.profiler.sources.local": ("Local",),
    "tpunb.profiler.sources.replay": ("Replay",),
    "tpunb.profiler.sources.torch": ("Torch",),
    "tpunb.step_stats.reduce": ("steps",),
    "tpunb.tuning": ("Job", "Tuning", "tune"),
    "tpunb.widgets.explorer": ("explore",),
    "tpunb.widgets.summary": ("summary",),
    "tpunb.widgets.tuning_panel": ("tuning_panel",),
    "tpunb.studies.sweeps.measuring": ("sweep",),
}
_MODULE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module of a name when the name is first used (PEP 562)."""
    if name in NAMESPACES:
        return import_module(f"tpunb.{name}")
    if name not in _MODULE:
        raise AttributeError(f"module 'tpunb' has no attribute {name!r}")
    value = getattr(import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE, *NAMESPACES})
