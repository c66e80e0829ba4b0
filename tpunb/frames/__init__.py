"""Profile, Steps, Phases, Phase: frozen, with frames of `schema`; what everything above stands on."""

from tpunb.frames.phases import Phase, Phases
from tpunb.frames.profile import Profile
from tpunb.frames.steps import Steps

__all__ = ["Phase", "Phases", "Profile", "Steps"]
