"""A running iterator over a DataLoader whose next batches other workers make, from any place in an epoch.

What a loop holds is PyTorch's iterator, which draws from the sampler batch by batch. Another iterator continues to draw
where it stopped, so that no batch is lost, repeated or moved. What was drawn and not delivered is remembered: if the
other one fails, the program's own makes it. No random number is drawn that the program would not draw then.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from tpunb.errors import TpunbError
from tpunb.instrument.torch import LIBRARY as TORCH
from tpunb.instrument.torch import LOADER_ITER
from tpunb.text import format_error, plain
from tpunb.torchdata.loader import Settings, settings_of, shut_down, start_method, with_settings

_TIMEOUT = 30.0  # seconds without a batch of workers after which the program makes it, as they may hang
_WATCHED = 16  # batches of an epoch before and after which the global generators are compared, besides those made ahead
_MOST_PARTS = 200  # parts of a dataset that are compared at each batch
_FEW = 32  # items of a list whose parts are compared
_SAMPLER = "torch.utils.data.sampler"
_AT_ONCE = {  # samplers that draw all random numbers with the first index
    *((_SAMPLER, name) for name in ("SequentialSampler", "RandomSampler", "SubsetRandomSampler")),
    (_SAMPLER, "WeightedRandomSampler"),
    ("accelerate.data_loader", "SeedableRandomSampler"),
}
_BATCHED = {  # samplers that group the indices of another one, by the name of that
    (_SAMPLER, "BatchSampler"): "sampler",
    ("accelerate.data_loader", "BatchSamplerShard"): "batch_sampler",
    ("accelerate.data_loader", "SkipBatchSampler"): "batch_sampler",
}


class _Raised:
    """What the program's data raised in place of a batch."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Indices:
    """What the sampler chooses: drawn by one iterator after the other, and remembered until it is made."""

    def __init__(self, source: Iterator[Any], left: int, in_flight: int) -> None:
        self.source, self.left = source, left  # how many may be drawn ahead; -1 for all
        self.pending: deque[Any] = deque([None] * in_flight)  # drawn, not made; None if unknown
        self.again: deque[Any] = deque()  # those of `pending` that no iterator holds

    def drawn(self) -> Iterator[Any]:
        """Yield those that no iterator holds, and further ones; each iterator has its own generator."""
        while True:
            if self.again:
                yield self.again.popleft()
            elif self.left == 0 or not self.draws():
                return
            else:
                self.again.pop()
                yield self.pending[-1]

    def draws(self) -> bool:
        """Draw one more, to be made after all others; return whether there is one."""
        if (index := next(self.source, _END)) is _END:
            return False
        self.left -= 1
        self.pending.append(index)
        self.again.append(index)
        return True


class Handover:
    """The rest of an epoch of the program's `iterator` over a map-style dataset, made with any settings.

    Each method is given the iterator, as a reference would keep it alive after the loop has dropped it; `draw` returns
    its next batch. `before` is the handover of the epoch before, if the iterator is the same.
    """

    def __init__(self, iterator: Any, loader: Any, draw: Callable[[Any], Any], before: Handover | None = None) -> None:
        self._draw = draw
        self._loader = loader
        self._single = type(iterator).__name__ == "_SingleProcessDataLoaderIter"
        drawn = _in_flight(iterator)
        self._indices = _Indices(iterator._sampler_iter, _batches_ahead(loader, drawn), drawn)
        self._parts: deque[Any] = deque([None])  # iterators in turn; None is the program's
        self._kept: dict[Settings, tuple[Any, list[Any]]] = {}  # others that may go on, and of what they are made
        self._ready: deque[tuple[Any, Any]] = deque()
        stays = before is not None and loader.persistent_workers and not self._single
        self._first: list[Any] = before._first if before is not None and stays else _stand(loader)
        self._stand = None if self._single else self._first  # of what the batches in flight are made from
        self._index: Any = None  # of which the data raised an error
        self._before: list[Any] = []
        self._made_count = 0
        self.raised: BaseException | None = None  # by the program's data in place of the last batch, or at the end
        self.failure = ""  # of others, after which the program's settings make all batches
        self.random = ""  # owner of a global generator that the data have drawn from
        self.settles = True  # whether settings may be tried
        iterator._sampler_iter = self._indices.drawn()

    @property
    def ready(self) -> int:
        """Batches that were made ahead by `ahead`."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        """Batches that would still be delivered of those made with the present settings or earlier ones."""
        return len(self._ready) + len(self._indices.pending)

    def obstacle(self) -> str:
        """Return why other settings may give other batches, by what was seen so far; or ""."""
        if name := _lazy_sampler(self._loader, self._indices.source):
            return f"its sampler {plain(name)} chooses indices while it is read (return iter(list_of_indices) in it)"
        if self.random:
            return (
                f"its batches draw from {self.random} global random numbers, which workers have for themselves "
                "(draw from a generator that is made from the index)"
            )
        if self._single and not _equal(self._first, _stand(self._loader)):
            return "its dataset changes while it is read, and each worker would have its own"
        return ""

    @property
    def left(self) -> int | None:
        """Batches of the epoch that are not delivered; None if unknown."""
        return None if self._indices.left < 0 else self._indices.left + self.in_flight

    def next(self, iterator: Any) -> Any:
        """Return the next batch."""
        if self._single and self._parts[0] is None and not self._ready:  # it is made now
            self._stand = None
        elif self._single and not _equal(self._stand or [], _stand(self._loader)):
            changed = TpunbError("the program changed its dataset within an epoch", hint="change it between epochs")
            self.fail(iterator, changed)
        batch = self._ready.popleft()[1] if self._ready else self._made(iterator)[1]
        if isinstance(batch, _Raised):
            self.raised = batch.error
            raise batch.error
        return batch

    def ahead(self, iterator: Any, most: int, proceeds: Callable[[int], bool]) -> Iterator[tuple[Any, Any]]:
        """Yield indices and batches to be delivered next, made now with the present settings; fewer at the end.

        They end earlier if the data raise an error, which is raised when its turn comes.
        """
        made = 0
        while made < most and proceeds(made):
            try:
                self._ready.append(self._made(iterator, ahead=True))
            except StopIteration:
                return
            except Exception as error:
                if error is not self.raised:
                    raise
                self._ready.append((self._index, _Raised(error)))
                return
            if self.random:  # it is made when its turn comes
                _set_random_states(self._before)
                index, _ = self._ready.pop()
                self._indices.pending.appendleft(index)
                self._indices.again.appendleft(index)
                return
            if self._parts == deque([None]) and self._single:
                self._stand = _stand(self._loader)
            if self._ready[-1][0] is not None:
                made += 1
                yield self._ready[-1]

    def made_with(self, settings: Settings, indices: Sequence[Any]) -> Generator[Any, None, None]:
        """Yield the batches of some indices, made with other settings."""
        part = self._part(settings, iter(indices))
        try:
            while True:
                try:
                    yield self._draw(part)
                except StopIteration:
                    break
        except BaseException:  # or it is left early, with batches in flight
            self._kept.pop(settings, None)
            _end(part)
            raise

    def use(self, iterator: Any, settings: Settings | None) -> None:
        """Make the batches after those in flight with some settings, or the program's; an error changes nothing."""
        if settings is None and self._parts[-1] is None:
            return
        last = iterator if self._parts[-1] is None else self._parts[-1]
        if not self._single and not _equal(self._stand or [], _stand(self._loader)):
            raise TpunbError("the program changed its dataset since its workers began", hint="change it between epochs")
        try:
            part = self._program(iterator) if settings is None else self._part(settings, self._indices.drawn())
        except BaseException:
            self._indices.again = deque(self._unheld(iterator))
            raise
        self._stand = self._stand or _stand(self._loader)
        last._sampler_iter = iter(())
        if last is iterator and self._single:  # it has nothing in flight
            self._parts.pop()
        self._parts.append(part)

    def fail(self, iterator: Any, error: Exception) -> None:
        """Make what others have not delivered with the program's settings, and all that follows."""
        self.failure = self.failure or format_error(error)
        drains = not self._single and None in self._parts
        if self._single:  # the present dataset makes what was made ahead
            self._indices.pending.extendleft(index for index, _ in reversed(self._ready) if index is not None)
            self._ready.clear()
            self._stand = None
        self._indices.again = deque([*self._indices.pending][_in_flight(iterator) if drains else 0 :])
        try:
            part = self._program(iterator)
        except BaseException:
            self._indices.again = deque(self._unheld(iterator))
            raise
        self._end()
        self._parts = deque([None, part] if drains else [part])
        if drains:
            iterator._sampler_iter = iter(())

    def give_back(self, iterator: Any) -> bool:
        """Return whether the program's iterator makes the rest alone from now on, as if it had not been handed over."""
        if self._single:
            ready = [index for index, _ in self._ready if index is not None]
            iterator._sampler_iter = chain(ready, list(self._indices.pending), self._indices.source)
        elif self._ready or self._parts != deque([None]):
            return False
        self._end()
        return True

    def leave(self, iterator: Any) -> None:
        """Let the program's iterator go on where nobody hands it over any more, and end the workers of others."""
        if not self.give_back(iterator):
            self.fail(iterator, RuntimeError("the block of the tuning has ended"))
            kind = type(iterator)

            def reset(iterator: Any, *args: Any, **kwargs: Any) -> None:  # for another epoch of workers that stay
                iterator.__class__ = kind
                iterator._reset(*args, **kwargs)

            iterator.__class__ = type(
                kind.__name__, (kind,), {"__next__": lambda iterator: self.next(iterator), "_reset": reset}
            )

    def settle(self) -> None:
        """End the workers that are kept for other settings, as these are decided."""
        self.settles = False
        for settings, (part, _) in [*self._kept.items()]:
            if all(part is not each for each in self._parts):
                del self._kept[settings]
                _end(part)

    def _end(self) -> None:
        """End the workers that are not the program's."""
        kept = [part for part, _ in self._kept.values()]
        self._kept = {}
        for part in {id(part): part for part in (*self._parts, *kept) if part is not None}.values():
            with suppress(Exception):
                _end(part)

    def _made(self, iterator: Any, *, ahead: bool = False) -> tuple[Any, Any]:
        """Return the next indices, None if unknown, and their batch; StopIteration ends what may be made ahead."""
        while True:
            part = iterator if self._parts[0] is None else self._parts[0]
            watches = part is iterator and self._watches(ahead=ahead)
            self._before = _random_states() if watches else []
            try:
                batch = self._draw(part)
            except StopIteration as end:
                if part is not iterator and _in_flight(part):  # of the data: it ends an epoch
                    self.fail(iterator, RuntimeError("the data raised StopIteration in a worker"))
                elif len(self._parts) > 1:
                    self._parts.popleft()
                elif not ahead and self._indices.left == 0 and self._indices.draws():  # it is due now
                    self._parts = deque([self._program(iterator)])
                else:
                    self.raised = end
                    raise
            except BaseException as error:
                if part is iterator:
                    self.raised = error
                    self._index = self._indices.pending.popleft() if self._indices.pending else None
                    raise
                if not isinstance(error, Exception):
                    raise
                self.fail(iterator, error)
            else:
                if watches:
                    self._watch()
                self._made_count += 1
                iterator._num_yielded += part is not iterator
                return self._indices.pending.popleft(), batch

    def _watches(self, *, ahead: bool) -> bool:
        """Return whether to compare the global generators around a batch; the sampler draws with the first."""
        return self._single and self._made_count > 0 and (ahead or self._made_count < _WATCHED)

    def _watch(self) -> None:
        """Note the global generator that has moved."""
        (torch, numpy, python), after = self._before, _random_states()
        moved = {
            "PyTorch's": not torch.equal(after[0]),
            "NumPy's": numpy[2:] != after[1][2:] or not np.array_equal(numpy[1], after[1][1]),
            "Python's": python != after[2],
        }
        self.random = self.random or next((name for name, moves in moved.items() if moves), "")

    def _unheld(self, iterator: Any) -> list[Any]:
        """Return the indices that were drawn, and are in no iterator."""
        parts = [iterator if part is None else part for part in self._parts]
        return [*self._indices.pending][sum(map(_in_flight, parts)) :]

    def _program(self, iterator: Any) -> Any:
        """Return an iterator with the program's settings; None for its own."""
        if self._single:
            iterator._sampler_iter = self._indices.drawn()
            return None
        return self._iterator(settings_of(self._loader), self._indices.drawn())

    def _part(self, settings: Settings, indices: Iterator[Any]) -> Any:
        """Return an iterator of other settings over the batches of some indices: a kept one, or a new one."""
        part, stand = self._kept.get(settings, (None, []))
        if part is None or any(part is each for each in self._parts) or not _equal(stand, _stand(self._loader)):
            part = self._iterator(settings, indices)
            if settings.workers:
                self._kept[settings] = part, _stand(self._loader)
            return part
        part._sampler_iter = indices
        for _ in range(settings.ahead):
            part._try_put_index()
        return part

    def _iterator(self, settings: Settings, indices: Iterator[Any]) -> Any:
        """Return a new iterator of PyTorch's over the batches of some indices, whose workers stay at their end."""
        module: Any = TORCH.module(LOADER_ITER.home)
        stays = settings.workers > 0
        method = start_method(self._loader) if stays else None  # Python's default is not chosen by it
        loader = with_settings(self._loader, replace(settings, persistent_workers=stays, start_method=method))
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        generator = module.torch.Generator()  # so that its seed is not drawn from the program's
        vars(loader).update({name: indices, "generator": generator})
        if not stays:
            return module._SingleProcessDataLoaderIter(loader)
        loader.timeout = max(loader.timeout, _TIMEOUT)
        part = module._MultiProcessingDataLoaderIter(loader)
        # a worker that is killed would raise an error in the midst of the program, rather than in `draw`
        module._utils.signal_handling._remove_worker_pids(id(part))
        part._worker_pids_set = False
        return part


def refusal(iterator: Any, loader: Any) -> str:
    """Return why an iterator over a DataLoader cannot be handed over, or ""."""
    module: Any = TORCH.module(home := LOADER_ITER.home)
    if type(iterator).__module__ != home:
        return f"{plain(type(iterator).__module__)} keeps the position of its DataLoader, which workers would move"
    if iterator._dataset_kind != module._DatasetKind.Map:
        return "its dataset is an IterableDataset, of which each worker would read all"
    if not loader.in_order:
        return "in_order=False: its batches come in any order"
    return "the training is distributed" if iterator._world_size > 1 else ""


def _in_flight(part: Any) -> int:
    """Return how many batches an iterator has drawn indices for, and not delivered."""
    return len(getattr(part, "_task_info", ()))


def _end(part: Any) -> None:
    """End the workers of an iterator, which may hang."""
    for worker in getattr(part, "_workers", ()):
        worker.terminate()
    shut_down(part)


def _kind(part: Any) -> tuple[str, str]:
    return type(part).__module__, type(part).__name__


def _samplers(loader: Any) -> list[Any]:
    """Return the sampler of a loader, and those that it reads."""
    samplers = [loader._index_sampler]
    while (name := _BATCHED.get(_kind(samplers[-1]))) is not None:
        samplers.append(getattr(samplers[-1], name))
    return samplers


def _batches_ahead(loader: Any, drawn: int) -> int:
    """Return how many more batches may be drawn ahead; -1 if their number is unknown."""
    # after the last index, samplers draw from a generator that they were given, or count an epoch
    try:
        length = len(loader._index_sampler)
    except TypeError:
        return -1
    given = any(getattr(sampler, "generator", None) is not None for sampler in _samplers(loader))
    return max(length - given - drawn, 0)


def _lazy_sampler(loader: Any, source: Any) -> str:
    """Return the name of a sampler whose choice may depend on when it is read, or ""."""
    last = _samplers(loader)[-1]
    if len(_samplers(loader)) == 2 and hasattr(source, "gi_frame"):
        source = source.gi_frame.f_locals.get("sampler_iter") if source.gi_frame else iter(())
    if type(source) in (type(iter([])), type(iter(())), type(iter(range(0)))):
        return ""
    given = getattr(last, "generator", None) is not None and _kind(last)[0] == _SAMPLER
    several = getattr(last, "replacement", False) or getattr(last, "num_samples", 0) > len(
        getattr(last, "data_source", ())
    )
    at_once = _kind(last) in _AT_ONCE and not (given and _kind(last)[1] == "RandomSampler" and several)
    return "" if at_once else type(last).__name__


_END = object()


def _random_states() -> list[Any]:
    """Return the states of the global generators."""
    import torch

    return [torch.get_rng_state(), np.random.get_state(), random.getstate()]


def _set_random_states(states: list[Any]) -> None:
    """Restore the states of the global generators."""
    import torch

    of_torch, numpy, python = states
    torch.set_rng_state(of_torch)
    np.random.set_state(numpy)
    random.setstate(python)


def _stand(loader: Any) -> list[Any]:
    """Return the parts of a dataset and of a collation that the program may replace, with the versions of tensors."""
    parts: list[Any] = []
    todo, seen = deque([loader.dataset, loader.collate_fn]), set()
    while todo and len(parts) < _MOST_PARTS:
        part = todo.popleft()
        if id(part) not in seen:
            seen.add(id(part))
            parts += [part, getattr(part, "_version", len(part) if isinstance(part, Sized) else None)]
            inner = part if isinstance(part, list | tuple) else getattr(part, "__dict__", None)
            if isinstance(inner, list | tuple) and len(inner) <= _FEW:
                todo.extend(inner)
            elif isinstance(inner, dict) and not isinstance(part, type):
                todo.extend(inner.values())
    return parts


def _equal(stand: list[Any], other: list[Any]) -> bool:
    return len(stand) == len(other) and all(
        one is two or (isinstance(one, int | float | str) and type(one) is type(two) and one == two)
        for one, two in zip(stand, other, strict=True)
    )
