"""Hugging Face's Trainer: its checkpoints, evaluations and callbacks, and its trainings that are resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from tpunb.instrument.hooks import listen_to_calls
from tpunb.instrument.registry import Evidence, Library
from tpunb.instrument.sink import Clock, Sink

LIBRARY = Library("transformers", "transformers", ("5.24.0", "5.24.0"))

SAVES = tuple(
    LIBRARY.attribute("transformers.trainer", f"Trainer.{name}", evidence=Evidence("save"))
    for name in ("_save_checkpoint", "save_model")
)
EVALUATES = tuple(
    LIBRARY.attribute("transformers.trainer", f"Trainer.{name}", evidence=Evidence("evaluate"))
    for name in ("evaluate", "predict")
)
CALL_EVENT = LIBRARY.attribute(
    *("transformers.trainer_callback", "CallbackHandler.call_event", "event"), evidence=Evidence("callback")
)

# -- trainings that are saved, resumed and tuned -----------------------------------------------------------------------

TRAIN, END_STEP, LOAD_CHECKPOINT, LOAD_RANDOM_STATE, BEGIN, RUN_EPOCH, FINISH = (
    LIBRARY.attribute("transformers.trainer", f"Trainer.{name}")
    for name in (
        *("train", "_maybe_log_save_evaluate", "_load_from_checkpoint", "_load_rng_state", "_init_training_state"),
        *("_run_epoch", "_finalize_training"),
    )
)
SKIP_BATCHES = LIBRARY.attribute("transformers.trainer", "skip_first_batches")

# -- what a capture records --------------------------------------------------------------------------------------------


class _Callbacks(list[Any]):
    """Callbacks that are timed while their handler goes through them."""

    def __init__(self, callbacks: list[Any], clock: Clock, hook: str) -> None:
        super().__init__(callbacks)
        self._clock, self._hook = clock, hook

    def __iter__(self) -> Iterator[Any]:
        return self._clock.calls(list.__iter__(self), self._hook)


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    clock = sink.clock

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method that calls one hook of all callbacks, with the time of each."""

        def call_event(handler: Any, event: str, *args: Any, **kwargs: Any) -> Any:
            callbacks = handler.callbacks
            if not clock.trains_here or type(callbacks) is not list:
                return original(handler, event, *args, **kwargs)
            handler.callbacks = timed = _Callbacks(callbacks, clock, event)
            try:
                return original(handler, event, *args, **kwargs)
            finally:
                if handler.callbacks is timed:
                    callbacks[:] = list.copy(timed)  # a callback may add another
                    handler.callbacks = callbacks

        return call_event

    listen_to_calls(sink, (*SAVES, *EVALUATES), stack)
    stack.enter_context(CALL_EVENT.listening(calling))
