"""Hooks that several libraries share: calls that are events, fetched batches, steps that the program annotates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from functools import partial
from numbers import Integral
from typing import Any

from tpunb.instrument.batches import Batches
from tpunb.instrument.keras import keras_runs
from tpunb.instrument.registry import Attribute, Hook, Priority, around, watching
from tpunb.instrument.sink import Clock, Sink, What

_NUMBER, _STEP = "_tpunb_number", "_tpunb_step"
_EVALUATIONS = {"eval", "evaluate", "evaluation", "test", "val", "validate", "validation"}  # names of annotations


def listen_to_calls(sink: Sink, attributes: Iterable[Attribute], stack: ExitStack) -> None:
    """Record each call as the event that it is, once the module of the attribute is imported."""

    def listen(those: list[Attribute], stack: ExitStack) -> None:
        for attribute in those:
            what = What(attribute.library.name, attribute.home, attribute.path)
            assert attribute.evidence is not None, attribute
            hook = around(partial(_call, sink.clock, attribute.evidence.event, what))
            attribute.listen(hook, Priority.CAPTURE, stack)

    homes = dict[str, list[Attribute]]()
    for attribute in attributes:
        homes.setdefault(attribute.home, []).append(attribute)
    for home, those in homes.items():
        stack.enter_context(watching(home, partial(listen, those)))


def _call(clock: Clock, event: str, what: What, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    with clock.during(event, what):
        return original(*args, **kwargs)


def fetching(sink: Sink, attribute: Attribute, stream: Callable[[Any], Hashable] = id) -> Hook:
    """Return a hook of the method of an iterator over a kind of data that returns the next batch."""
    clock, library = sink.clock, attribute.library.name
    data = attribute.evidence.data if attribute.evidence is not None else library
    batches = Batches()

    def hook(original: Callable[..., Any]) -> Callable[..., Any]:
        what = What.of(library, original)

        def fetch(self: Any, *args: Any) -> Any:
            __tracebackhide__ = True
            if not sink.is_training():  # of a thread that prepares data
                return original(self, *args)
            clock.metadata.setdefault("data", data)
            if clock.loads:  # within another fetch
                return original(self, *args)
            start_ns, over, batch = clock.enter("data loading"), False, None
            try:
                batch = original(self, *args)
                return batch
            except StopIteration:
                over = True
                raise
            finally:
                end_ns, of = clock.leave(), stream(self)
                sink.fetched(of, start_ns, end_ns, over=over, what=what, holds=batches.of(of, batch))

        return fetch

    return hook


def listen_to_annotations(sink: Sink, methods: tuple[Attribute, ...], stack: ExitStack) -> None:
    """Begin a step as an annotation with a step number is entered: by its methods to begin, enter and leave it."""
    clock = sink.clock
    what = What(methods[0].library.name, methods[0].home, methods[0].path.partition(".")[0])

    def begins(init: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        number = kwargs.get("step_num")
        if isinstance(number, Integral) and 0 <= int(number) < 2**62:
            name = args[0] if args else kwargs.get("name")
            setattr(self, _NUMBER, (int(number), "eval" if str(name) in _EVALUATIONS else "train"))

    def entered(enter: Callable[..., Any], self: Any, *args: Any) -> Any:
        number, kind = getattr(self, _NUMBER, (None, ""))
        if number is not None and not clock.annotates and not keras_runs():
            setattr(self, _STEP, clock.begin(kind, step=number, explicit=True, rule="annotation", what=what))
        return enter(self, *args)

    def left(leave: Callable[..., Any], self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            clock.end(getattr(self, _STEP, None))

    hooks: tuple[Callable[..., Any], ...] = begins, entered, left
    for method, hook in zip(methods, hooks, strict=True):
        method.listen(around(hook), Priority.CAPTURE, stack)
