"""What can be run again: how a model and its data are made, and how one step is taken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpunb.errors import TpunbError, wrong
from tpunb.frames.words import cut, plain
from tpunb.tuning.grain_pipeline import GrainPipeline
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.training import KerasTraining, LoopTraining, Training


@dataclass(frozen=True, repr=False)
class Job:
    """What can be run again.

    Parameters
    ----------
    build
        Returns (model, data): a compiled Keras model, and its ``tf.data.Dataset``. It is called when the job is first
        needed, and once.
    step
        ``step(model, batch)`` for a loop of one's own: changes `model` in place, and returns the loss, or whatever
        must not change. `model` then is all that a step changes, of any kind; data may be Grain's too.

    Raises
    ------
    TypeError
        When one of them cannot be called.

    >>> Job(lambda: (None, None))
    Job(<lambda>, not built yet)
    """

    build: Callable[[], tuple[Any, Any]]
    step: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.build):
            raise wrong("Job", "build", "be a function that returns (model, data)", self.build)
        if self.step is not None and not callable(self.step):
            raise wrong("Job", "step", "be a function of a model and a batch", self.step)

    def __repr__(self) -> str:
        if "parts" not in vars(self):
            return f"Job({plain(getattr(self.build, '__name__', 'build'))}, not built yet)"
        model, data = self.parts
        name = getattr(model, "name", None)
        name = name if isinstance(name, str) else type(model).__name__
        kind = "Grain" if _is_grain(data) else "tf.data"
        return f"Job({plain(cut(name))}, {kind}, 1 model)"

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """The model and the data.

        Raises
        ------
        TypeError
            When `build` returns no pair.
        """
        made = self.build()
        if not isinstance(made, tuple) or len(made) != 2:
            raise wrong("Job", "build", "return (model, data)", type(made))
        return made

    @cached_property
    def pipeline(self) -> Pipeline | GrainPipeline:
        """The data as values that can be changed.

        Raises
        ------
        TypeError
            When the data are neither of ``tf.data`` nor of Grain.
        TpunbError
            When they cannot be taken apart.
        """
        data = self.parts[1]
        return GrainPipeline(data) if _is_grain(data) else Pipeline(data)

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from other jobs, also in another kernel: the kind of its model, and its data's parameters.

        Raises
        ------
        TypeError, TpunbError
            As `pipeline` does.
        """
        knobs = [[knob.name, str(knob.present), str(knob.domain), knob.verdict] for knob in self.pipeline.knobs]
        told = [type(self.parts[0]).__qualname__, getattr(self.step, "__qualname__", ""), knobs]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()

    @cached_property
    def training(self) -> Training:
        """How one step is taken, and the state that it changes.

        Raises
        ------
        TypeError
            When there is no `step`, and the model is no compiled one of Keras.
        TpunbError
            When Keras' ``fit`` would not train it in a way that is known here.
        """
        model, data = self.parts
        if self.step is not None:
            return LoopTraining(model, self.step)
        if _is_grain(data):
            raise TpunbError(
                "the data are Grain's, which Keras' fit hands on in its own way",
                hint="Job(build, step=lambda model, batch: model.train_on_batch(*batch))",
            )
        return KerasTraining(model, data.element_spec)


def _is_grain(data: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "grain" for kind in type(data).__mro__)
