"""What modules of libraries report to: the loop of a training, and the clock of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeVar

from tpunb.signals import Spent
from tpunb.text import cut

NEW_FUNCTION = "a new function"
"""Why a framework compiles again what it has compiled before: the program wraps it anew."""

END_OF_DATA = "the data"
"""What ends with a fetch that finds no more batches."""

_LONGEST = 8_192  # characters of a signature: about four hundred different shapes

S = TypeVar("S")
T = TypeVar("T")


class What(NamedTuple):
    """What was called: its library, its module, and its qualified name there, as Python has them."""

    library: str
    module: str
    name: str

    @classmethod
    def of(cls, library: str, function: Any) -> What:
        """Return what a function, a method or a class is; without a library, that of its module.

        >>> import json
        >>> What.of("json", json.JSONDecoder.decode)
        What(library='json', module='json.decoder', name='JSONDecoder.decode')
        """
        try:
            module, name = str(function.__module__ or ""), str(function.__qualname__)
        except Exception:  # noqa: BLE001  an object that is called, of which any attribute may raise
            module, name = type(function).__module__, type(function).__qualname__
        return cls(library or module.partition(".")[0], module, name)

    @property
    def is_part_of_steps(self) -> bool:
        """Whether a library computes a part of a step by it, rather than the program a step."""
        return _is_part_of_steps(self.module)


@cache
def _is_part_of_steps(module: str) -> bool:
    return module.partition(".")[0] in _PARTS and module != _WRAPS


_PARTS = {"jax", "optax", "chex"}  # libraries whose compiled functions are a part of a step
_WRAPS = "jax._src.pmap"  # where the functions of a program are wrapped


class Signature(NamedTuple):
    """Arrays that a call took and returned, as text; whether it took some that its last call took or returned."""

    takes: str
    returns: str
    repeats: str | None = None  # "taken" or "returned"

    @classmethod
    def of(cls, taken: Iterable[Any], returned: Iterable[Any], repeats: str | None = None) -> Signature:
        """Return the signature of a call.

        >>> import numpy
        >>> weights, loss = numpy.zeros((2, 3), "float32"), numpy.float32(1)
        >>> Signature.of([weights, weights, 7], [weights, loss])
        Signature(takes='2 float32[2,3], int', returns='float32[2,3], float32[]', repeats=None)
        """
        return cls(_kinds(taken), _kinds(returned), repeats)


def _kinds(leaves: Iterable[Any]) -> str:
    """Return types and shapes of arrays, in order of first use, each with how often it is there."""
    found = Counter(
        f"{leaf.dtype}{str([*leaf.shape]).replace(' ', '')}"
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape")
        else type(leaf).__name__
        for leaf in leaves
    )
    return cut(", ".join(kind if times == 1 else f"{times} {kind}" for kind, times in found.items()), _LONGEST)


Holds = tuple[Signature | None, SupportsIndex | None]
"""What a batch holds: its signature, and how many elements its mask keeps."""


class Result(Protocol):
    """What a launch returns while it computes, such as an array of JAX."""

    def is_ready(self) -> bool:
        """Return whether the work is done; raise if that is not known any more."""

    def block_until_ready(self) -> object:
        """Wait until the work is done; raise if that is not known any more."""


class Events(Protocol):
    """What libraries were asked to do, as it happens."""

    def add(self, event: str, what: What | None, key: Hashable, start_ns: int, end_ns: int) -> int:
        """Record an event of this thread that has ended; return the id of its place."""


class Clock(Protocol):
    """Steps that a library or the program marks, and time of known cause."""

    metadata: dict[str, str]  # of the model that runs
    again: tuple[str, str | None]  # a function that is compiled now, and why again
    steps_before: int | None  # training steps of the job before step 0, if known
    fitted: tuple[Any, Any] | None  # model and data of the last fit
    has_peers: bool  # whether other ranks take part in the steps
    annotates: bool  # whether the clock enters an annotation of the library now
    in_flight: Any  # work that was launched

    @property
    def events(self) -> Events:
        """The log of what libraries were asked to do."""

    @property
    def trains_here(self) -> bool:
        """Whether this thread trains."""

    @property
    def loads(self) -> bool:
        """Whether the program waits for input now."""

    @property
    def opened(self) -> Any:
        """The open step, which a library or the program marks."""

    def begin(
        self, kind: str, *, step: int | None = None, explicit: bool = False, rule: str = "keras", what: What
    ) -> Any:
        """Begin a step, which ends the one before; return it for `end`, or None if none is to begin."""

    def end(self, step: Any) -> None:
        """End this step, if it is open."""

    def exit(self, *, done: bool) -> None:
        """End the open step of a library's loop."""

    def request(self, kind: str, what: What) -> None:
        """Begin a step with the request of its batch."""

    def draw(
        self, function: Callable[[S], T], source: S, what: What, holds: Callable[[Hashable, T], Holds] | None = None
    ) -> T:
        """Return ``function(source)``, and record its time as wait for input, and what the batch of a stream holds."""

    def forget_input(self) -> None:
        """Let the wait for input of the open step be unknown."""

    def begin_batch(self, kind: str, detail: str | None, what: What) -> None:
        """Begin a step, unless the request of its batch did."""

    def dispatched(self) -> None:
        """Record that the open step computes from now on."""

    def computed(self) -> None:
        """Complete the open step, which has computed."""

    def calls(self, callbacks: Iterable[Any], hook: str) -> Iterator[Any]:
        """Yield the callbacks whose hook is called, and record the time until the next is asked for."""

    def enter(self, account: str) -> int:
        """Let the program be in this account until `leave`; return the time."""

    def leave(self) -> int:
        """End what `enter` began; return the time."""

    def within(self, account: str, detail: str | None = None, **event: Any) -> AbstractContextManager[None]:
        """Record the block as a span of an account, and as the event of `on_spent`."""

    def during(self, event: str, what: What, reason: str | None = None) -> AbstractContextManager[None]:
        """Record the block as an event of the thread that trains, unless it is within another of its kind."""

    def past(self, event: str, what: What, start_ns: int, end_ns: int, reason: str | None = None) -> None:
        """Record an event that has ended; of a function that is compiled again, `reason` says why."""

    def on_spent(
        self,
        spent: Spent,
        *,
        event: str | None = None,
        what: What | None = None,
        key: str | None = None,
        end_of: str | None = None,
    ) -> None:
        """Record what a library did: as an event, that of the account without another, and as a span."""

    def waited(self, start_ns: int, worked_ns: int, what: What | None = None) -> int:
        """Record and return what the thread did not work in a call in which ranks wait for each other."""


class Sink(Protocol):
    """The loop of a training, from what libraries are asked to do in it."""

    @property
    def clock(self) -> Clock:
        """The clock of its steps."""

    def is_training(self) -> bool:
        """Return whether this thread trains, outside of Keras' methods, so that its signals count."""

    def adopt_if_idle(self) -> None:
        """Take this thread for the one that trains if no other does so far."""

    def fail(self, error: Exception) -> None:
        """Find no more steps."""

    def fetched(
        self, stream: Hashable, start_ns: int, end_ns: int, *, over: bool = False, what: What, holds: Holds
    ) -> None:
        """Record that a batch was fetched from a stream of data, with what it holds, or its end found."""

    def called(
        self,
        function: str,
        begun_ns: int,
        now_ns: int,
        result: Result | None,
        *,
        what: What,
        signature: Signature | None = None,
    ) -> None:
        """Record that a compiled function was called; one of the library itself begins no step."""

    def takes_gradients(self, function: str, *, what: What) -> None:
        """Record that a compiled function takes gradients, as its tracing shows."""

    def prepared(self, *, what: What, arrays: Signature | None = None) -> None:
        """Record that a model is called for the first time, with these arrays."""

    def evaluates(self, *, on: bool, what: What) -> None:
        """Record that a model is set to evaluate, or to train."""

    def learned(self, begun_ns: int, *, what: What) -> None:
        """Record that gradients were taken, since `begun_ns`."""

    def updated(self, optimizer: Hashable, begun_ns: int, now_ns: int, result: Result | None, *, what: What) -> None:
        """Record that an optimizer has updated the parameters, as far as the host knows."""

    def fitted(self, model: Any) -> None:
        """Record that a model was fitted."""
