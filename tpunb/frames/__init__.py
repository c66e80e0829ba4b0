"""Profile, Steps, Phases, Goodput, Hosts, Roofline, Comparison, Sweep, Scaling: frozen, with frames of `schema`."""

from tpunb.frames.comparison import Comparison
from tpunb.frames.goodput import Goodput
from tpunb.frames.hosts import Hosts
from tpunb.frames.phases import Labels, Phase, PhaseMethod, Phases
from tpunb.frames.profile import Profile
from tpunb.frames.representatives import Representatives
from tpunb.frames.roofline import Roofline
from tpunb.frames.scaling import Scaling, ScalingFit
from tpunb.frames.steps import Steps
from tpunb.frames.sweep import Sweep
from tpunb.frames.sweep_answers import Saturation, Sensitivity, Speedup

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
    "Saturation",
    "Scaling",
    "ScalingFit",
    "Sensitivity",
    "Speedup",
    "Steps",
    "Sweep",
]
