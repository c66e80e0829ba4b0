"""TPUPoint for notebooks: what an accelerator did for the whole run, cut into phases.

One line runs through it: capture → load → steps → phases → explore, and from a phase's checkpoint on: tune, resume.

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
    from tpunb.checkpoint import checkpoints
    from tpunb.cluster import DBSCAN, HDBSCAN, OLS, KMeans, OLSPlus, compare, phases
    from tpunb.frames import Phases, Profile, Steps
    from tpunb.io import load, sample
    from tpunb.recorder import capture
    from tpunb.resuming import checkpointing, resume
    from tpunb.stepping import steps
    from tpunb.tuning.job import Job
    from tpunb.tuning.nouns import Tuning
    from tpunb.tuning.tuner import tune
    from tpunb.widgets.explorer import explore
    from tpunb.widgets.tuning_panel import tuning_panel

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "OLS",
    "Job",
    "KMeans",
    "OLSPlus",
    "Phases",
    "Profile",
    "Steps",
    "TpunbError",
    "Tuning",
    "capture",
    "checkpointing",
    "checkpoints",
    "compare",
    "explore",
    "load",
    "phases",
    "resume",
    "sample",
    "steps",
    "tune",
    "tuning_panel",
]

_ROOMS = {
    "tpunb.checkpoint": ("checkpoints",),
    "tpunb.cluster": ("DBSCAN", "HDBSCAN", "OLS", "KMeans", "OLSPlus", "compare", "phases"),
    "tpunb.frames": ("Phases", "Profile", "Steps"),
    "tpunb.io": ("load", "sample"),
    "tpunb.magic": ("load_ipython_extension", "unload_ipython_extension"),
    "tpunb.recorder": ("capture",),
    "tpunb.resuming": ("checkpointing", "resume"),
    "tpunb.stepping": ("steps",),
    "tpunb.tuning.job": ("Job",),
    "tpunb.tuning.nouns": ("Tuning",),
    "tpunb.tuning.tuner": ("tune",),
    "tpunb.widgets.explorer": ("explore",),
    "tpunb.widgets.tuning_panel": ("tuning_panel",),
}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Open the room of a name on the door when it is first asked for (PEP 562)."""
    if name not in _ROOM:
        raise AttributeError(f"module 'tpunb' has no attribute {name!r}")
    value = getattr(import_module(_ROOM[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOM])
