"""Lightning: its checkpoints, its evaluations, and the hooks of callbacks and modules that its Trainer calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tpunb.instrument.hooks import listen_to_calls
from tpunb.instrument.registry import Attribute, Evidence, Library
from tpunb.instrument.sink import Sink, What

LIBRARY = Library("lightning", "lightning", ("2.6.6", "2.6.6"))
STANDALONE = Library("pytorch_lightning", "pytorch-lightning", ("2.6.6", "2.6.6"))

SAVE = LIBRARY.attribute("lightning.pytorch.trainer.trainer", "Trainer.save_checkpoint", evidence=Evidence("save"))
EVALUATE = LIBRARY.attribute(
    "lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop.run", evidence=Evidence("evaluate")
)
# its profiler has a context for each hook that the Trainer calls
PROFILE = LIBRARY.attribute("lightning.pytorch.profilers.profiler", "Profiler.profile", "action_name")

_HOOK = re.compile(r"\[(?:Callback|LightningModule)\](\w+).*\.(on_\w+)$")  # in the name of an action


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""

    def profiling(original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def profile(profiler: Any, action_name: str) -> Iterator[Any]:
            with ExitStack() as within:
                if match := _HOOK.match(action_name):
                    what = What(LIBRARY.name, "", f"{match[1]}.{match[2]}")
                    within.enter_context(sink.clock.during("callback", what))
                yield within.enter_context(original(profiler, action_name))

        return profile

    listen_to_calls(sink, [SAVE, EVALUATE], stack)
    stack.enter_context(PROFILE.listening(profiling))


# -- trainings that are saved, resumed and tuned -----------------------------------------------------------------------


class Training(NamedTuple):
    """What a Trainer calls to train, and at the end of each step and epoch."""

    fit: Attribute
    end_step: Attribute
    end_epoch: Attribute


TRAININGS = {
    home: Training(
        library.attribute(f"{home}.trainer.trainer", "Trainer.fit"),
        library.attribute(f"{home}.loops.training_epoch_loop", "_TrainingEpochLoop.on_advance_end"),
        library.attribute(f"{home}.loops.fit_loop", "_FitLoop.on_advance_end"),
    )
    for library, home in ((LIBRARY, "lightning.pytorch"), (STANDALONE, "pytorch_lightning"))
}
