"""Profile, Steps, Phases, Phase: frozen, with frames of `schema`; what everything above stands on."""

from typing import TYPE_CHECKING

import lazy_loader

from tpunb.frames.profile import Profile
from tpunb.frames.steps import Steps

if TYPE_CHECKING:
    from tpunb.frames.phases import Phase as Phase
    from tpunb.frames.phases import Phases as Phases
else:  # a capture has no phases
    __getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"phases": ["Phase", "Phases"]})

__all__ = ["Phase", "Phases", "Profile", "Steps"]
