"""The nouns that flow through the house: Profile, Steps, Phases.

Each is frozen and holds Polars frames; their columns are listed in :mod:`tpunb.schema`.
"""

from tpunb.frames.phases import Labels, Phase, PhaseMethod, Phases
from tpunb.frames.profile import Profile
from tpunb.frames.steps import Steps

__all__ = ["Labels", "Phase", "PhaseMethod", "Phases", "Profile", "Steps"]
