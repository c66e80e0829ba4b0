"""Profile, Steps, Phases, Goodput, Hosts, Roofline, Comparison, Sweep, Scaling: frozen, with frames of `schema`."""

from tpunb.frames.comparison import Comparison
from tpunb.frames.goodput import Goodput
from tpunb.frames.hosts import Hosts
from tpunb.frames.phases import Labels, Phase, PhaseMethod, Phases
from tpunb.frames.profile import Profile
from tpunb.frames.representatives import Representatives
from tpunb.frames.roofline import Roofline
from tpunb.frames.steps import Steps

__all__ = [
    "Comparison",
    "Goodput",
    "Hosts",
    "Labels",
    "Phase",
    "PhaseMethod",
    "Phases",
    "Profile",
    "Representatives",
    "Roofline",
    "Steps",
]
