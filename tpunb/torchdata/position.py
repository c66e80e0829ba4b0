"""A pass over a DataLoader of PyTorch, and the position in it: what it has drawn, and from which random states.

To continue, the random states of its begin are set and the order is drawn again up to the position. Items are not read
again, unless they change what follows: those of an ``IterableDataset``, and random ones that worker processes make.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tpunb.text import format_error, plain, plural
from tpunb.torchdata.loader import is_iterable

AHEAD = 2
"""Batches that a trainer may have drawn before it trains on them."""

State = Mapping[str, Any]
"""Random states as JSON values, the "global" ones apart."""


class Sources(Protocol):
    """Random states that a DataLoader depends on."""

    @property
    def is_random(self) -> bool:
        """Whether its items may be random."""

    def capture(self) -> State:
        """Return the present states."""

    def restore(self, state: State) -> None:
        """Set states of `capture`."""


class LoaderPass(Iterator[Any]):
    """Batches of one pass over a DataLoader, of which the consumer trains on all but the last, at most `ahead`."""

    def __init__(
        self, loader: Any, sources: Sources, begin: Callable[[Any], Iterator[Any]] = iter, ahead: int = 0
    ) -> None:
        self.loader, self.sources, self._begin, self._ahead = loader, sources, begin, ahead
        self.drawn, self.redrawn, self.seconds = 0, 0, 0.0  # batches; those of them drawn again, and in what time
        self._before = deque[State](maxlen=ahead)  # the last draws
        self._ready = deque[Any]()  # batches that the consumer had drawn at the position
        self._present: State | None = None  # to be set when the next batch is drawn
        self._after: Any = None  # global states after the last draw of a stream
        self._moves = [False, False]  # of the global states: by a stream, and by others since
        self._is_again = bool(loader.persistent_workers and getattr(loader, "_iterator", None) is not None)
        self._iterator: Iterator[Any] | None = None
        self._error = ""  # why the states were not captured
        self._begun = self._first = self._captured()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("_iterator"), name)

    @property
    def facts(self) -> dict[str, Any]:
        """What a position in the DataLoader means, by names for people, as JSON values."""
        loader, has_order = self.loader, not is_iterable(self.loader)
        return {
            "items": len(loader.dataset) if has_order and hasattr(loader.dataset, "__len__") else None,
            "items in a batch": loader.batch_size,
            "sampler": type(loader.sampler).__name__,
            "workers": None if has_order and not self.sources.is_random else loader.num_workers,
        }

    def begin(self) -> None:
        """Begin at the first batch."""
        self._iterator = self._begin(self.loader)

    def __next__(self) -> Any:
        if self._present is not None:
            self.sources.restore(self._present)
            self._present = None
        if self._ready:
            return self._ready.popleft()
        assert self._iterator is not None
        is_local, before = not self.loader.num_workers, None
        if is_local and (self._ahead or not self.drawn or is_iterable(self.loader)):
            before = self._captured()
            self._before.append(before)
            self._first = self._first if self.drawn else before
        batch = next(self._iterator)
        self.drawn += 1
        if before is not None and is_iterable(self.loader):
            after = self._captured()["global"]
            self._moves[0] |= self.drawn > 1 and after != before["global"]
            self._moves[1] |= self._after not in (None, before["global"])
            self._after = after
        return batch

    def _captured(self) -> State:
        """Return the present states; an error is a reason, and does not end the training."""
        try:
            return self.sources.capture()
        except Exception as error:  # noqa: BLE001
            self._error = self._error or format_error(error)
            return {"global": None, "counts": {}}

    @property
    def reason(self) -> str:
        """Why the position cannot be restored, or ""."""
        loader = self.loader
        if self._error:
            return f"DataLoader: its random states cannot be read ({self._error})"
        if loader.num_workers and not getattr(loader, "in_order", True):
            return "DataLoader: the speed of its workers orders the batches (set in_order=True)"
        if loader.persistent_workers and self.sources.is_random:
            return "DataLoader: its workers draw random numbers from epoch to epoch (set persistent_workers=False)"
        if self._is_again and self._has_begin:
            return (
                f"{plain(type(loader).__name__)}: its workers stay from epoch to epoch (set persistent_workers=False)"
            )
        name = plain(type(loader.dataset).__name__)
        if self.sources.is_random and self._has_begin and not (loader.num_workers or self._is_stateful):
            return f"{plain(type(loader).__name__)}: it draws random items of {name} in advance (give it workers)"
        if all(self._moves):
            return f"{name}: it draws from global generators, as the training does (give it a generator, or a worker)"
        return ""

    def write(self, taken: int) -> tuple[str, dict[str, Any]]:
        """Return why the position after `taken` batches cannot be restored, or "", and its JSON values."""
        ahead, is_local, now = self.drawn - taken, not self.loader.num_workers, self._captured()
        reason = self.reason or ("" if 0 <= ahead <= self._ahead else f"{plural(ahead, 'batch')} drawn in advance")
        counts = self._begun["counts"]
        changed = {name for name, value in now["counts"].items() if counts.get(name, value) != value}

        def stated(state: State) -> State:
            return {**state, "counts": {name: value for name, value in state["counts"].items() if name in changed}}

        return reason, {
            "facts": self.facts,
            "taken": taken,
            "ahead": ahead,
            "before": [stated(each) for each in [*self._before][len(self._before) - ahead :] if is_local and ahead],
            "begun": stated(self._begun),
            "first": stated(self._first) if is_local else None,
            "now": stated(now),
            "again": self._is_again,
            "stateful": self._is_stateful,
            "redraw": not self._is_stateful and self._is_drawn_again,
        }

    @property
    def _is_stateful(self) -> bool:
        """Whether the loader restores its position itself, as torchdata's does but for random items of its workers."""
        has_state = any(kind.__name__ == "StatefulDataLoader" for kind in type(self.loader).__mro__)
        return has_state and self._begin is iter and not (self.loader.num_workers and self.sources.is_random)

    @property
    def _has_begin(self) -> bool:
        """Whether the class of the loader begins its passes itself."""
        from torch.utils.data import DataLoader

        return type(self.loader).__iter__ is not DataLoader.__iter__ and self._begin is iter

    @property
    def _is_drawn_again(self) -> bool:
        """Whether batches before the position are made again, as they change what follows."""
        is_other = not all(hasattr(self._iterator, name) for name in ("_sampler_iter", "_index_sampler"))
        makes_random = bool(self.loader.num_workers) and self.sources.is_random
        return self._has_begin or is_other or makes_random or is_iterable(self.loader)

    def end(self, saved: Mapping[str, Any]) -> None:
        """Proceed to the end of a pass."""
        if self.loader.persistent_workers:
            self._begin(self.loader)  # a later pass does not draw the seed of the workers
        self.sources.restore(saved["now"])

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Begin at a position, where `seconds` is the time of drawing batches again; StopIteration if it is beyond."""
        taken, begun = saved["taken"], time.monotonic()
        self._begun, self._is_again = self._whole(saved["begun"]), saved["again"]
        self._first = self._whole(saved["first"] or saved["begun"])
        if self._is_again:
            self._iterator = self._begin(self.loader)  # the workers
        self.sources.restore(self._begun)
        skipped = 0 if saved["redraw"] or saved["stateful"] else taken
        self._iterator = self._begin_after(skipped if self.loader.num_workers else 0)
        if saved["first"] is not None:
            self.sources.restore(saved["first"])
        if skipped and not self.loader.num_workers:
            for _ in range(skipped):
                next(self._iterator._sampler_iter)  # type: ignore[attr-defined]
        for _ in range(taken if saved["redraw"] else 0):
            next(self._iterator)
            self.redrawn += 1
        for at in range(saved["ahead"]):
            if saved["before"]:
                self.sources.restore(saved["before"][at])
                self._before.append(self._whole(saved["before"][at]))
            self._ready.append(next(self._iterator))
        self.drawn, self.seconds = taken + saved["ahead"], time.monotonic() - begun
        self._present = saved["now"]
        self.sources.restore(saved["now"])

    def _whole(self, saved: State) -> State:
        """Return a saved state with the counts that it lacks, as they did not change."""
        return {**saved, "counts": self._begun["counts"] | saved["counts"]}

    def _begin_after(self, batches: int) -> Iterator[Any]:
        """Begin at a batch; the workers do not make those before."""
        if self._is_again:
            iterator: Any = self._iterator
            sampler = iterator._index_sampler
            iterator._index_sampler = _Skipping(sampler, batches)
            iterator._reset(self.loader)
        elif not batches:
            return self._begin(self.loader)
        else:
            sampler, loader = self.loader._index_sampler, object.__new__(type(self.loader))
            name = "sampler" if self.loader.batch_sampler is None else "batch_sampler"
            vars(loader).update(vars(self.loader) | {name: _Skipping(sampler, batches), "_iterator": None})
            iterator = self._begin(loader)
            if self.loader.persistent_workers:
                vars(self.loader)["_iterator"] = iterator
        iterator._index_sampler = sampler
        begun: Iterator[Any] = iterator
        return begun


class _Skipping:
    """Batches of indices from one on."""

    def __init__(self, sampler: Any, batches: int) -> None:
        self._sampler, self._batches = sampler, batches

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._sampler), self._batches, None)

    def __len__(self) -> int:
        return len(self._sampler)
