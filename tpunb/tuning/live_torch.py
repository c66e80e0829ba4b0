"""The DataLoaders of a running training: Hugging Face's, Lightning's, or those of a loop of your own.

Whatever trains, PyTorch's iterator is asked for each batch: there the tuning continues, and the rest of the epoch is
handed over.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from tpunb.errors import TpunbError
from tpunb.instrument import transformers
from tpunb.instrument.registry import Priority, around, loaded
from tpunb.instrument.torch import LOADER_ITER, LOADER_NEXT
from tpunb.signals import spending
from tpunb.torchdata.effects import digest
from tpunb.torchdata.handover import Handover, refusal
from tpunb.torchdata.loader import Settings, settings_of, with_settings
from tpunb.training import keras_hooks
from tpunb.tuning import live
from tpunb.tuning.live import END, SAMPLE, Feed, Sample, timed
from tpunb.tuning.loader import SEND, STAGE, LoaderPipeline
from tpunb.tuning.parameters import Kind, Parameter
from tpunb.tuning.results import Message
from tpunb.tuning.search import Values
from tpunb.tuning.stage_costs import StageCost

_KINDS = Kind.WORKERS, Kind.PREFETCH_FACTOR, Kind.PINNED
_START = 0.03  # seconds to start a worker, as `stage_costs` has measured
_MOST_PER_CORE = 4
"""Workers for each core that wait for their data: each takes memory, and a share of the processors to start."""

_STALL = 1.0  # seconds for which batches may be made ahead of a training, which loses nothing by it


class LoaderFeed(Feed):
    """The data of a training that iterates over a DataLoader; its steps are batches."""

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self._loader = loader
        # the running iterator, while the loop has it, and how it is handed over
        self._iterator: Callable[[], Any] = lambda: None
        self._handover: Callable[[], Handover | None] = lambda: None
        self.values: Values = {}
        self.idle = False  # it was not tuned, and is not watched any more
        self._over = self._ends = False  # no batch, or few ones, can be made ahead in this epoch
        self._indices: list[Any] = []  # of the last sample of the present values
        self.refusal = self.failure = ""
        self._by_trainer = _called_from(transformers.TRAIN.home)
        self.ended = False

    @cached_property
    def pipeline(self) -> LoaderPipeline:
        """The parameters of the DataLoader."""
        return LoaderPipeline(self._loader)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those that may change within an epoch."""
        return tuple(parameter for parameter in self.pipeline.parameters if parameter.kind in _KINDS)

    @property
    def within_epoch(self) -> bool:  # type: ignore[override]
        """Whether there are batches to come in this epoch that are not made yet."""
        return self._iterator() is not None and not self._over

    @property
    def steps_left(self) -> int:  # type: ignore[override]
        """The batches left in the epoch; or as many as there were, as the epochs to come are unknown."""
        handover = self._handover()
        rest = None if handover is None else handover.left
        return 0 if self.ended else max(rest or 0, self.steps)

    @property
    def early(self) -> bool:
        """Whether the next batch is made already."""
        handover = self._handover()
        return handover is not None and handover.ready > 0

    def begin(self, iterator: Any, handover: Handover | None) -> None:
        """Begin an epoch, with the present values."""
        self._iterator, self.step_in_epoch, self._over = ref(iterator), 0, False
        self._handover = (lambda: None) if handover is None else ref(handover)
        if self.values and handover is not None:
            handover.use(iterator, self._settings(self.values))

    def obstacle(self) -> Message | None:
        """Return why the rest of the epoch cannot be handed over, or would gain nothing."""
        reason = self.refusal or self._running[0].obstacle()
        if not reason and self.timer.step < SEND:
            reason = f"a batch takes {self.timer.step * 1e3:.2g} ms, and a worker takes as long to send one"
        return Message("not tuned", {"reason": reason}) if reason else None

    def serves(self, iterator: Any) -> bool:
        """Return whether it is of this iterator, and not of a later one over the same data."""
        return self._iterator() is iterator

    def switch(self, values: Values) -> None:
        """Make the batches to come with some values."""
        handover, iterator = self._running
        handover.use(iterator, self._settings(values) if values else None)
        self.values = values

    def block(self, values: Values) -> tuple[int, int]:
        """Return batches after a change to values that are not measured, and those that are.

        Workers deliver in turns: whole turns are measured.
        """
        settings = self._settings(values)
        turns = max(2, math.ceil(live.WINDOW / max(settings.workers, 1)))
        return (
            self._running[0].in_flight + settings.ahead + live.WARM // 2,
            settings.workers * turns if settings.workers else live.WINDOW,
        )

    def sampled(self, values: Values, limit: float, *, batches: int = SAMPLE[1]) -> Sample:
        """Return batches from the present position on; those of the present values are delivered afterwards."""
        handover, iterator = self._running
        prints: list[bytes] = []
        seconds: list[float] = []
        begun, worked = time.perf_counter(), time.process_time()

        def proceeds(made: int) -> bool:
            return made < SAMPLE[0] or time.perf_counter() - begun < max(limit, _STALL)

        if values == self.values:
            self._indices = []
            for index, batch in timed(handover.ahead(iterator, batches, proceeds), seconds):
                self._indices.append(index)
                prints.append(digest(batch))
            self.used += time.perf_counter() - begun
            self._over = len(prints) < SAMPLE[0]
            self._ends = len(prints) < batches and proceeds(len(prints))
            if handover.random:
                raise TpunbError(handover.obstacle(), hint="see the documentation of torch.utils.data.DataLoader")
        else:  # it may take long to start, but all workers make batches then
            with spending("tuning"):
                made = handover.made_with(self._settings(values), self._indices)
                prints += map(digest, timed(made, seconds))
        if self._ends and len(prints) == len(self._indices):
            prints.append(END)
        return Sample.of(self.steps, prints, seconds, begun, worked)

    def stages(self, seconds: float, busy: float) -> tuple[StageCost, ...]:
        """Return the costs of a batch, and the workers with which the rest takes least: each takes time to start."""
        batches = self.pipeline.batches or self.steps_left
        most = min(math.sqrt(batches * seconds / _START), _MOST_PER_CORE * (os.cpu_count() or 1))
        return (StageCost(STAGE, seconds, busy, most=most),)

    def difference(self) -> str | None:
        """Return what the batches depend on besides their indices, read once more by other processes."""
        return self.pipeline.reading.dependence

    def as_code(self, values: Values) -> str:
        """Return the lines that set these values in the program."""
        code = self.pipeline.as_code(values)
        if not self._by_trainer:
            return code
        arguments = code.partition(",  #")[0].split(", ")
        return f"{', '.join(f'dataloader_{argument}' for argument in arguments)},  # of TrainingArguments(...)"

    @property
    def _running(self) -> tuple[Handover, Any]:
        handover, iterator = self._handover(), self._iterator()
        if handover is None or iterator is None:
            raise TpunbError("the loop has dropped the iterator over its DataLoader", hint="iterate to its end")
        return handover, iterator

    def _settings(self, values: Values) -> Settings:
        return settings_of(self.pipeline.build(values))


def _called_from(module: str) -> bool:
    """Return whether a function of a module is running in this thread."""
    frame: FrameType | None = None if loaded(module) is None else sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


class _Watched:
    """Iterators over the DataLoaders of a block, in the thread that has entered it."""

    def __init__(self, on_batch: Callable[..., bool], on_error: Callable[..., None]) -> None:
        self._on_batch, self._on_error = on_batch, on_error
        self._thread = threading.get_ident()
        self._feeds: dict[Any, LoaderFeed] = {}
        self._begun: WeakKeyDictionary[Any, tuple[LoaderFeed, Any]] = WeakKeyDictionary()
        self._running: WeakKeyDictionary[Any, tuple[LoaderFeed, Handover | None]] = WeakKeyDictionary()
        self._last: Callable[[], Any] = lambda: None  # the iterator that was asked last
        self._failed = False

    def begun(self, iterator: Any, loader: Any) -> None:
        """Note that an iterator over a DataLoader begins an epoch."""
        if threading.get_ident() != self._thread or keras_hooks.is_fitting():
            return
        settings = settings_of(loader)
        alike = id(loader.dataset), type(loader.sampler), loader.batch_size, settings  # a loop may make one an epoch
        again = with_settings(loader, settings)  # which does not hold the iterator
        if alike not in self._feeds:
            self._feeds[alike] = LoaderFeed(again)
        if not self._feeds[alike].idle:
            self._begun[iterator] = self._feeds[alike], again

    def next(self, draw: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch of an iterator, which `draw` draws."""
        if iterator in self._running or iterator in self._begun:
            self.guarded(self._asked, draw, iterator)
        self._last = ref(iterator)
        if iterator not in self._running:
            return draw(iterator)
        feed, handover = self._running[iterator]
        if handover is None:
            batch = draw(iterator)
            feed.steps += 1
            return batch
        try:
            batch = handover.next(iterator)
        except BaseException as error:
            if error is handover.raised or not isinstance(error, Exception):
                handover.raised = None  # it refers to this frame
                raise
            self._report(error)
            if not handover.give_back(iterator):
                raise
            del self._running[iterator]
            return draw(iterator)
        feed.steps += 1
        feed.failure = feed.failure or handover.failure
        return batch

    def close(self) -> None:
        """Let the program's iterators make the rest of their batches alone, and end all other workers."""
        for iterator, (_, handover) in [*self._running.items()]:
            if handover is not None:
                self.guarded(handover.leave, iterator)

    def guarded(self, action: Callable[..., None], *args: Any) -> None:
        """Report the first error of an action of tuning; no DataLoader is tuned after it."""
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001  the training must continue
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._on_error(error)

    def _asked(self, draw: Callable[[Any], Any], iterator: Any) -> None:
        """Let the tuning go on before the next batch of an iterator."""
        last = self._last()
        if self._failed or threading.get_ident() != self._thread:
            return
        if iterator in self._begun:
            feed, loader = self._begun.pop(iterator)
            _, before = self._running.get(iterator, (feed, None))
            feed.refusal = refusal(iterator, loader)
            handover = None if feed.refusal else Handover(iterator, loader, draw, before)
            self._running[iterator] = feed, handover
            feed.begin(iterator, handover)
        elif iterator not in self._running:
            return
        feed, handover = self._running[iterator]
        if feed.serves(iterator):
            feed.step_in_epoch = feed.step_in_epoch + 1 if last is iterator else 0
            continues = self._on_batch(feed, follows=last is iterator and not feed.early)
            if continues:
                return
            if not feed.values and (handover is None or handover.give_back(iterator)):
                feed.idle = True
                del self._running[iterator]
            elif handover is not None and handover.settles:
                handover.settle()


def watch(stack: ExitStack, on_batch: Callable[..., bool], on_error: Callable[[Exception], None]) -> None:
    """Call `on_batch` with the `LoaderFeed` and whether it `follows` another, before each batch of a DataLoader.

    It returns whether that is tuned, or may be. The stack ends it. `on_error` is called at most once.
    """
    module: Any = loaded(LOADER_ITER.home)
    base = module._BaseDataLoaderIter
    with_settings(module.DataLoader([0]), Settings())  # checks PyTorch by a DataLoader, which must not be watched
    watched = _Watched(on_batch, on_error)

    def start(iterate: Callable[[Any], Any], loader: Any) -> Any:
        iterator = iterate(loader)
        if isinstance(iterator, base):
            watched.guarded(watched.begun, iterator, loader)
        return iterator

    LOADER_ITER.listen(around(start), Priority.TUNING, stack)
    LOADER_NEXT.listen(around(watched.next), Priority.TUNING, stack)
    stack.callback(watched.guarded, watched.close)
