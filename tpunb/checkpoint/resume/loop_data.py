"""The data of a custom loop: its passes, and the position in a pass, saved and restored."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tpunb.checkpoint.resume.custom_loops import read_state, write_state
from tpunb.text import format_error, plain, plural
from tpunb.tfdata import position, rewrite
from tpunb.tfdata.graph import graph_or_none, too_large
from tpunb.tfdata.restored import (
    advances,
    begin_again,
    buffered_bytes,
    keeps_orders,
    not_restored,
    only_checks,
    unpositioned,
    unseeded,
)
from tpunb.torchdata.loader import is_loader
from tpunb.torchdata.position import LoaderPass
from tpunb.training import constants, torch_state
from tpunb.training.fit_data import try_save
from tpunb.training.fit_start import FitStart
from tpunb.training.positions import ITERATOR, Positions
from tpunb.training.state import is_from
from tpunb.training.torch_state import LoaderSources

_BY_INDEX = (list, tuple, range, Sequence, np.ndarray)


class LoopData:
    """An iterable that a loop reads: an iterator with `get_state` and `set_state`, as in Grain, or any other.

    The position in any other one cannot be saved: as many batches are drawn again.
    """

    def __init__(self, data: Any) -> None:
        self.data, self.drawn = data, 0  # batches in this pass
        self.reason = ""  # why the position cannot be saved, after `begin`
        self.positions = Positions()
        self.seeds: list[Any] = []  # of the shuffles that had none
        self.fingerprint = ""  # of the constants in the data
        self.iterator: Any = None
        self._earlier = [0]  # batches of earlier passes, by all copies

    def follow(self) -> None:
        """Prepare to note the position of a pass."""

    def begin(self) -> None:
        """Begin a pass."""
        self._take(iter(self.data))
        if not self._has_state:
            name = plain(type(self.data).__name__)
            instead = "give a list, an array, a DataLoader, a tf.data.Dataset or Grain data"
            self.reason = self.reason or f"{name}: the position in it cannot be saved ({instead})"

    def _take(self, iterator: Any) -> None:
        self.iterator, self.drawn = iterator, 0

    def skip(self) -> None:
        """Proceed as if a pass had been made."""

    def draw(self) -> Any:
        """Return the next batch."""
        batch = next(self.iterator)
        self.drawn += 1
        self._earlier[0] += 1
        return batch

    def write(self, folder: Path, *, ended: bool) -> tuple[str, dict[str, Any]]:
        """Write the position; return why it cannot be restored, or "", and its metadata."""
        if self._has_state:
            write_state(folder / ITERATOR, self.iterator)
            return "", {"redraw": 0}
        return self.reason, {"redraw": self._earlier[0] if self.iterator is self.data else self.drawn}

    def resume(self, start: FitStart, saved: Mapping[str, Any], *, ended: bool) -> None:
        """Begin the pass in which a checkpoint was saved, at its position."""
        self.begin()
        if self._has_state != start.has_iterator:
            raise start.different_data("its iterators have another kind of state")
        if self._has_state:
            read_state(start.folder / ITERATOR, self.iterator)
        self._redraw(start, saved["redraw"])

    def _redraw(self, start: FitStart, batches: int) -> None:
        for drawn in range(batches):
            try:
                next(self.iterator)
            except StopIteration as error:
                raise start.different_data(f"it ends after batch {drawn}") from error
        self._earlier[0] += batches

    @property
    def _has_state(self) -> bool:
        return all(callable(getattr(self.iterator, name, None)) for name in ("get_state", "set_state"))


class _Indexed(LoopData):
    """A sequence, whose batches have indices."""

    def begin(self) -> None:
        self._take(iter(self.data))

    def write(self, folder: Path, *, ended: bool) -> tuple[str, dict[str, Any]]:
        return "", {"length": len(self.data)}

    def resume(self, start: FitStart, saved: Mapping[str, Any], *, ended: bool) -> None:
        if saved["length"] != len(self.data):
            raise start.different_data(f"it had {plural(saved['length'], 'element')}, now {len(self.data)}")
        self._take(_from_index(self.data, saved["drawn"]))


class _Loader(LoopData):
    """A DataLoader of PyTorch; the position in a StatefulDataLoader is its own state, where that suffices."""

    iterator: LoaderPass

    def follow(self) -> None:
        self._take(LoaderPass(self.data, LoaderSources(self.data)))

    def begin(self) -> None:
        self.iterator.begin()
        self.reason = self.iterator.reason

    def write(self, folder: Path, *, ended: bool) -> tuple[str, dict[str, Any]]:
        self.reason, place = self.iterator.write(self.drawn)
        if place["stateful"] and not ended:
            self.reason = self.reason or torch_state.write(folder / ITERATOR, self.data.state_dict())
        return self.reason, place

    def resume(self, start: FitStart, saved: Mapping[str, Any], *, ended: bool) -> None:
        self.follow()
        if saved["stateful"] and not ended:
            self.data.load_state_dict(torch_state.read(start.folder / ITERATOR))
        continue_pass(self.iterator, start, saved, ended=ended)


def continue_pass(followed: LoaderPass, start: FitStart, saved: Mapping[str, Any], *, ended: bool) -> None:
    """Begin a pass over a DataLoader at a saved position, or proceed to its end."""
    start.check_data(saved["facts"], followed.facts)
    if ended:
        followed.end(saved)
        return
    try:
        followed.resume(saved)
    except StopIteration as error:
        raise start.different_data(f"it ends before batch {saved['taken']}") from error
    if followed.redrawn:
        start.resumed.note = f"{plural(followed.redrawn, 'batch')} drawn again in {followed.seconds:.1f} s"


class _TensorFlowIterator(LoopData):
    """An iterator of ``tf.data``, which one pass or several read."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        if (graph := graph_or_none(data._dataset)) is None:
            self.reason = _UNREADABLE
            return
        self.fingerprint = constants.of_data(graph)
        self.reason = unseeded(graph) or not_restored(graph, data._dataset.options(), passes=False)
        if any(map(advances, graph.node)) and int(data._dataset.cardinality()) != -1:
            self.reason = self.reason or "an iterator over data that shuffle in each pass (give the dataset)"

    def begin(self) -> None:
        self._take(self.data)
        self.reason = self.reason or try_save(self.data)

    def write(self, folder: Path, *, ended: bool) -> tuple[str, dict[str, Any]]:
        reason = self.reason or position.write(folder / ITERATOR, self.data)
        return reason, {"redraw": self._earlier[0]}

    def resume(self, start: FitStart, saved: Mapping[str, Any], *, ended: bool) -> None:
        self._take(self.data)
        if start.has_iterator:
            position.read(start.folder / ITERATOR, self.data)
            self._earlier[0] = saved["redraw"]
        else:
            self._redraw(start, saved["redraw"])


class _Dataset(LoopData):
    """A ``tf.data.Dataset``, from which each pass makes an iterator; shuffles without a seed get one, as in fit."""

    def __init__(self, data: Any, seeds: list[Any] | None) -> None:
        super().__init__(data)
        self._dataset, self._buffered = data, 0
        self._restored: Any = None  # kept alive: a position was read into its iterator
        self._are_written, self._keeps_orders = True, False
        self.reason = too_large(data)
        graph = None if self.reason else graph_or_none(data)
        if graph is None:
            self.reason = self.reason or _UNREADABLE
            return
        self.fingerprint = constants.of_data(graph)
        self.reason = not_restored(graph, data.options(), positions=False)
        self._buffered, checked = buffered_bytes(graph), only_checks(graph)
        self._are_written, self._keeps_orders = not any(unpositioned(graph)), keeps_orders(graph)
        self.seeds = position.present_seeds(graph) if seeds is None else seeds
        self._dataset = rewrite.seed_shuffles(data, graph, self.seeds)
        if seeds is not None:
            self._dataset = rewrite.without_locks(self._dataset, graph)
        if checked and not self.reason:
            self._dataset = position.with_external_state_policy(self._dataset, "IGNORE")

    def begin(self) -> None:
        self._take(iter(self._dataset))
        self.positions = Positions(self._buffered, are_written=self._are_written)
        self.positions.begin()
        self.reason = self.reason or (try_save(self.iterator) if self._are_written else "")

    def skip(self) -> None:
        if self._keeps_orders:  # its cache is filled in the order of the first pass
            deque(self._dataset, maxlen=0)
            return
        iter(self._dataset)
        self._begin_again()

    def _begin_again(self) -> None:
        if self._graph is not None:
            begin_again(self._graph, self._dataset.options(), 1)

    @cached_property
    def _graph(self) -> Any:
        return graph_or_none(self._dataset)

    def write(self, folder: Path, *, ended: bool) -> tuple[str, dict[str, Any]]:
        if self.reason or ended:
            return self.reason, {"redraw": self.drawn}
        return self.positions.write(folder, self.iterator, self.drawn)

    def resume(self, start: FitStart, saved: Mapping[str, Any], *, ended: bool) -> None:
        if ended:
            self.skip()
            return
        self.begin()
        redraw = saved["redraw"]
        if start.has_iterator:
            self._begin_again()
            self._restored = rewrite.with_new_shuffles(self._dataset)
            if self._restored is not self._dataset:
                self.iterator = iter(self._restored)
            position.read(start.folder / ITERATOR, self.iterator)
            self.positions.begin(start.folder, saved["drawn"] - redraw, saved["seconds"])
        else:
            self.positions.begin(seconds=saved.get("seconds", 0.0))
        self._redraw(start, redraw)


_UNREADABLE = "the graph of the data cannot be read (larger than 2 GB, or distributed)"


def loop_data(data: Any, seeds: list[Any] | None) -> LoopData:
    """Return the data of a loop; `seeds` are those of its shuffles in the run that is resumed, or None."""
    try:
        if is_from(data, "tensorflow") and hasattr(data, "_dataset") and hasattr(data, "__next__"):
            return _TensorFlowIterator(data)
        if is_from(data, "tensorflow") and hasattr(data, "_variant_tensor"):
            return _Dataset(data, seeds)
    except Exception as error:
        if seeds is not None:
            raise
        unreadable = LoopData(data)
        unreadable.reason = format_error(error)
        return unreadable
    if is_loader(data):
        return _Loader(data)
    by_index = isinstance(data, _BY_INDEX) or is_from(data, "jaxlib") or not hasattr(data, "__iter__")
    has_index = all(hasattr(data, name) for name in ("__len__", "__getitem__"))
    return _Indexed(data) if by_index and has_index else LoopData(data)


def _from_index(data: Any, start: int) -> Iterator[Any]:
    """Yield the items of a sequence from an index on, as its iterator does."""
    at = start
    while True:
        try:
            item = data[at]
        except IndexError:
            return
        yield item
        at += 1
