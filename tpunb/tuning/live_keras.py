"""The data of a running fit of Keras, which continues with other values at the same element of ``tf.data``."""

from __future__ import annotations

import time
from typing import Any

from tpunb.text import format_error
from tpunb.tfdata.graph import graph_or_none
from tpunb.tfdata.position import set_state, state_of
from tpunb.tfdata.restored import late_shuffles
from tpunb.torchdata.effects import digest
from tpunb.training.fit_state import Fit
from tpunb.tuning.live import END, SAMPLE, Feed, Sample, timed
from tpunb.tuning.parameters import Kind
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.position import TfPosition
from tpunb.tuning.results import Message
from tpunb.tuning.search import Values
from tpunb.tuning.stage_costs import StageCost


class FitFeed(Feed):
    """The data of a fit.

    The position of one rebuilt dataset holds for all. An `exclusive` fit begins with one; where something else, such as
    a checkpoint, depends on how the data are made, it takes over as the fit is tuned, at an element found by reading.
    """

    aside = None

    def __init__(self, fit: Fit, data: Any, *, exclusive: bool) -> None:
        self.fit, self.data = fit, data
        super().__init__()
        self.pipeline: Any = None
        self._is_rebuilt = False
        other = fit.data.reason or "its data are not a tf.data.Dataset (arrays and Python code have no values to tune)"
        reason = other if data is None else self._prepared(exclusive)
        self.refusal = Message("not tuned", {"reason": reason}) if reason else None

    def _prepared(self, exclusive: bool) -> str:
        """Rebuild the data if nothing else depends on them; return why their position cannot be moved, or ""."""
        try:
            self.pipeline = Pipeline(self.data)
            if self.pipeline.refusal:
                return str(self.pipeline.refusal)
            if self.pipeline.immovable:
                return f"{self.pipeline.immovable}; tp.tune(model, data) may tune it before the fit"
            if self.pipeline.unsafe:
                return f"{self.pipeline.unsafe[0]}: tuning would change what it returns"
            if exclusive:
                self.data, self._is_rebuilt = self.pipeline.in_place({}), True
            elif not self.fit.data.owns_shuffles:
                return (
                    "it is also saved or resumed, and how often its shuffle was started is unknown: "
                    "omit the shuffle's seed, or tp.checkpointing"
                )
            elif late := late_shuffles(graph_or_none(self.data)):
                return f"it is also saved or resumed, and {late[0]} begins with the first element only"
        except Exception as error:  # noqa: BLE001  the fit must continue
            return format_error(error)
        return ""

    def begin(self) -> None:
        """Begin with the steps that the optimizer has taken before."""
        self.follow()
        self._first = self.steps

    def follow(self) -> None:
        """Take over how far the fit is."""
        fit = self.fit
        self.steps, self.step_in_epoch, self.steps_left = fit.steps, fit.step_in_epoch, fit.steps_left
        self.within_epoch, self.turn = fit.step_in_epoch > 0, int(fit.model.steps_per_execution)

    def obstacle(self) -> Message | None:
        """Return why it cannot be tuned."""
        return self.refusal

    def least_seconds(self, step: float) -> float:
        """Return the least seconds that a tuning takes; batches of the sample, and up to it, are drawn again."""
        drawn = 0 if self._is_rebuilt else self.fit.data.drawn
        return (SAMPLE[0] + 1) * self.execution(step) + drawn * step + super().least_seconds(step)

    def stages(self, seconds: float, busy: float) -> tuple[StageCost, ...]:
        """Return the costs of the stages, any of which may take all of a batch's."""
        calls = [parameter for parameter in self.parameters if parameter.kind is Kind.CALLS]
        return tuple(StageCost(parameter.stage, seconds, busy) for parameter in calls)

    def switch(self, values: Values) -> None:
        """Continue with some values at the same element; later epochs continue the program's shuffles."""
        self.fit.data.replace(self.pipeline.in_place(values), self._copy(values))
        self._is_rebuilt = True

    def sampled(self, values: Values, limit: float, *, batches: int = SAMPLE[1]) -> Sample:
        """Return batches of a copy of the data."""
        import tensorflow as tf

        if not self._is_rebuilt:
            self.switch({})
        drawn: list[bytes] = []
        seconds: list[float] = []
        iterator = self._copy(values)
        begun, worked = time.perf_counter(), time.process_time()
        for batch in timed(iterator, seconds):
            drawn.append(digest(tf.nest.flatten(batch, expand_composites=True)))
            if len(drawn) == batches or (len(drawn) >= SAMPLE[0] and time.perf_counter() - begun >= limit):
                break
        else:
            drawn.append(END)
        return Sample.of(self.steps, drawn, seconds, begun, worked)

    def _copy(self, values: Values) -> Any:
        """Return an iterator over the data with some values, at the present position."""
        present = self.fit.data
        if not self._is_rebuilt:
            position = TfPosition(self.pipeline, begun=present.passes.iterators - 1, drawn=present.drawn)
            return position.source(values).iterator
        iterator = iter(self.pipeline.build(values))
        set_state(iterator, state_of(present.iterator))
        return iterator
