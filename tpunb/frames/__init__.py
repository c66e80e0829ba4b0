"""The nouns that flow through the house: Profile, Steps, Phases, Comparison.

Each is frozen and holds Polars frames; their columns are listed in :mod:`tpunb.schema`.
"""

from tpunb.frames.comparison import Comparison
from tpunb.frames.phases import Labels, Phase, PhaseMethod, Phases
from tpunb.frames.profile import Profile
from tpunb.frames.representatives import Representatives
from tpunb.frames.steps import Steps

__all__ = ["Comparison", "Labels", "Phase", "PhaseMethod", "Phases", "Profile", "Representatives", "Steps"]
