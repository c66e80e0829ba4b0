"""Saves and resumes a custom loop through the batches that it draws: ``run.batches(data, state=state)``.

The calls with a `state` in a block of `checkpointing` or `resume` are numbered: a checkpoint holds the number of its
call. When it is resumed, earlier calls yield nothing and leave the state in which they ended; that one continues at the
position in its data.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpunb.checkpoint.resume.custom_loops import array_trees, nnx_arrays, read_parts, torch_parts, write_parts
from tpunb.checkpoint.resume.loop_data import LoopData, loop_data
from tpunb.errors import wrong_type
from tpunb.instrument.torch import on_updates
from tpunb.signals import spending
from tpunb.text import format_error
from tpunb.training import seeds, snapshot, torch_state
from tpunb.training.block import Block, Guarded
from tpunb.training.files import guard
from tpunb.training.fingerprints import Fingerprints, of_arrays
from tpunb.training.fit_start import FitStart
from tpunb.training.program import place_of, user_frame
from tpunb.training.state import DATA, RANDOM, STATE_PARTS, arrays, assign, direct_variables, is_from, to_numpy
from tpunb.training.variables import LoopVariables

T = TypeVar("T")

_SAMPLE = 64  # small arrays of the state whose values are part of a step's fingerprint, at most, and their size in kB
_VARIABLES = "variables"  # part of the arrays that variables of the program hold
_UNCHANGED = "the arrays of state are those that the loop began with (assign state[...] in the loop)"


class _Block(Block):
    """The loops of the outermost block."""

    kind, call = "loop", "batches(data, state=)"

    def __init__(self) -> None:
        super().__init__()
        self.leave()

    def leave(self) -> None:
        self.optimizers = weakref.WeakSet[Any]()  # of PyTorch that took a step
        self._follows_optimizers = False
        self.seeds: list[list[Any]] = []  # of each dataset that was first read in the block
        self.saved_seeds: list[list[Any]] = []  # in the run that is resumed
        self.shared = deque[LoopData](maxlen=4)  # data that several calls may read
        self.fingerprints: Fingerprints | None = None
        self.last: weakref.ref[Loop[Any]] | None = None  # the loop that was begun last

    def finish(self) -> None:
        """Note that the end of the last loop was not seen, if it was left and something still refers to it."""
        if self.last is not None and (loop := self.last()) is not None:
            loop.end(unseen="its end was not seen: something still refers to its iterator")

    def follow_optimizers(self) -> None:
        """Note the optimizers of PyTorch that take a step, until the block ends."""
        if not self._follows_optimizers:
            self._follows_optimizers = on_updates(lambda optimizer: self.optimizers.add(optimizer), self.stack)

    def data_of(self, data: Any) -> LoopData:
        """Return the data of a call, which share the orders of shuffles with earlier calls over the same object."""
        for each in self.shared:
            if each.data is data:
                return copy.copy(each)
        at = len(self.seeds)
        added = loop_data(data, self.saved_seeds[at] if at < len(self.saved_seeds) else None)
        if added.fingerprint or hasattr(data, "__next__"):
            self.shared.append(added)
            self.seeds.append(added.seeds)
        return copy.copy(added)


_block = _Block()
listening = _block.listening


@contextmanager
def starting(start: FitStart) -> Iterator[None]:
    """Start the loops of the block from a checkpoint."""
    with _block.starting(start):
        _block.saved_seeds = start.metadata["seeds"]
        yield


def batches(data: Iterable[T], state: dict[str, Any] | None) -> Iterator[T]:
    """Return an iterator over data; with a state, in a block of `checkpointing` or `resume`, one that is saved."""
    if state is None:
        return iter(data)
    if not isinstance(state, dict) or not state or not all(isinstance(n, str) and n.isidentifier() for n in state):
        raise wrong_type("batches", "state", "be a dict of what the next step depends on, by name", state)
    return Loop(data, state) if _block.users else iter(data)


class Loop(Guarded, Iterator[T], Generic[T]):
    """The batches of one call, after each of which the loop is saved, if due."""

    unsaved_beside = varying = ""

    def __init__(self, data: Iterable[T], state: dict[str, Any]) -> None:
        self.state = state
        self.step_in_epoch, self._is_open, self._is_past = 0, False, False
        self._variables, self._resumed_variables = LoopVariables(state), dict[str, Any]()
        self._is_begun = self._is_over = False  # whether it was asked for a batch, and has ended
        self._skipped: Path | None = None  # the state in which it ended, if it is skipped
        _block.finish()
        _block.last = weakref.ref(self)
        self._noted: str | None = None  # fingerprint of the batch of this step
        _block.optimizers.clear()  # those that take a step in this loop
        _block.follow_optimizers()
        if _block.fingerprints is None:
            _block.fingerprints = Fingerprints(_block.resumed)
        self.fingerprints = _block.fingerprints
        self.data = _block.data_of(data)
        self._resumed = None if _block.start is None else _block.resumed
        self.number, start, is_skipped = _block.begin()
        if is_skipped:
            guard.check()
            if start is None:
                self.data.skip()
            else:
                self._restore(start)
                self._skipped = start.folder
            self._is_past = True
            return
        if start is not None:
            self._restore(start)
        else:
            self._begin()
        self._first = [weakref.ref(leaf) for leaf in _leaves(state) if is_from(leaf, "jaxlib")]
        for saving in _block.listeners:
            saving.on_begin(self)

    @property
    def steps(self) -> int:
        """Number of batches that the loops of the block have drawn."""
        return _block.steps

    def __next__(self) -> T:
        self.end_step()
        if not self._is_begun:
            self._is_begun = True
            self.guarded(self._begin_variables)
        if _block.start is None:
            guard.resume_writes()
        if self._is_past:
            self.end()
            raise StopIteration
        try:
            batch: T = self.data.draw()
        except StopIteration:
            self._is_past, self.step_in_epoch = True, 0
            self.guarded(self._notify)
            self.guarded(self.fingerprints.write)
            self.end()
            raise
        _block.steps += 1
        self.step_in_epoch, self._is_open = self.data.drawn, True
        self.guarded(self._begin_step, batch)
        return batch

    def _begin(self) -> None:
        """Begin at the first batch; if the data cannot be followed, without saving their position."""
        try:
            self.data.follow()
        except Exception as error:  # noqa: BLE001  the training must continue
            self.data = LoopData(self.data.data)
            self.data.reason = format_error(error)
        self.data.begin()

    def _begin_variables(self) -> None:
        self._variables.begin()
        if self._resumed_variables:
            saved, arrays = self._resumed_variables["values"], self._resumed_variables["arrays"]
            self._variables.restore(saved, arrays, self.data.drawn)

    def end(self, *, unseen: str = "") -> None:
        """Handle the end of the loop, once: after its last batch, or as a ``break`` drops it, if that was seen."""
        if self._is_over or not self._is_begun or not _block.users:
            return
        self._is_over = True
        self.guarded(self._end, unseen)

    def _end(self, unseen: str) -> None:
        place = place_of(user_frame())
        for saving in _block.listeners:
            saving.on_end(self, place, kept=self._skipped, unseen=unseen)
        if self._resumed is not None and _block.start is None and self._skipped is None:
            self._resumed.compare_end(self.number, self.steps)

    def __del__(self) -> None:
        with suppress(Exception):
            self.end()

    def _begin_step(self, batch: T) -> None:
        is_noted = self.fingerprints.is_noted(self.steps - 1)
        self._noted = of_arrays(arrays(batch)) if is_noted else None

    def end_step(self) -> None:
        """Handle the end of a step: `state` is what the next one begins with."""
        if self._is_open:
            self._is_open = False
            self.guarded(self._end_step)

    def _end_step(self) -> None:
        if self._resumed is not None and (restarted := self._variables.restarted()):
            self._resumed.diverge(restarted)
        if self._noted is not None:
            self.fingerprints.note(self.steps - 1, self._noted, _sample(self.state))
        self._notify()

    def _notify(self) -> None:
        for saving in _block.listeners:
            saving.on_step(self, repeated=False)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write everything that the next step depends on; return its metadata."""
        metadata, unsaved = write_parts(folder, self.state)
        unpositioned, place = self.data.write(folder, ended=self._is_past)
        lacking = torch_state.missing(torch_parts(self.state), _block.optimizers)
        variables, arrays, varying = self._variables.changed()
        reason = unpositioned or unsaved or lacking or (_UNCHANGED if self._is_unchanged else "") or varying
        generator = seeds.keras_generator()
        random = [] if generator is None else to_numpy([generator.state])
        snapshot.write_arrays(folder, {RANDOM: random, _VARIABLES: arrays})
        holds = {*metadata["holds"], *([] if unpositioned else [DATA])}
        return {
            **metadata,
            "holds": [part for part in STATE_PARTS if part in holds],
            "exact": not reason,
            "why": reason,
            "loop": self.number,
            "ended": self._is_past,
            "data": {**place, "kind": type(self.data).__name__, "drawn": self.data.drawn},
            "constants": self.data.fingerprint,
            "seeds": _block.seeds,
            "variables": variables,
            "fingerprints": self.fingerprints.name,
            "global_seed": generator is not None,
            "random": seeds.host_random_state(),
            "tensorflow_random": seeds.tensorflow_random_state(),
        }

    @property
    def _is_unchanged(self) -> bool:
        """Whether all of the state is arrays of JAX, which do not change, and they are those of the begin."""
        leaves = _leaves(self.state) if len(array_trees(self.state)) == len(self.state) else []
        return bool(leaves) and [id(ref()) for ref in self._first] == [id(leaf) for leaf in leaves]

    def _restore(self, start: FitStart) -> None:
        """Restore the state and the position in the data."""
        saved = start.metadata
        if saved["data"]["kind"] != type(self.data).__name__:
            raise start.different_data("the data are of another kind")
        if saved["exact"] and saved["constants"] != self.data.fingerprint:
            raise start.different_data("its constants differ (arrays, or names of files)")
        with spending("resuming", "position in the data"):
            self.data.resume(start, saved["data"], ended=saved["ended"])
        with spending("checkpoint restore", "tpunb"):
            self.state.update(read_parts(start.folder, saved["parts"], self.state))
            if saved["global_seed"]:
                variables = [seeds.make_keras_generator().state]
                values = snapshot.read_arrays(start.folder, {RANDOM: to_numpy(variables)})
                assign(variables, values[RANDOM])
            seeds.set_host_random_state(saved["random"])
            seeds.set_tensorflow_random_state(saved["tensorflow_random"])
        values, arrays = saved.get("variables", {}), snapshot.read_part(start.folder, _VARIABLES)
        self._resumed_variables = {"values": values, "arrays": arrays}
        self.data.drawn = self.step_in_epoch = saved["data"]["drawn"]
        _block.steps, self._is_past = start.step, saved["ended"]


def _leaves(state: dict[str, Any]) -> list[Any]:
    """Return the arrays and numbers in the trees of a state."""
    if not (trees := array_trees(state)):
        return []
    import jax

    return list(jax.tree.leaves(trees))


def _sample(state: dict[str, Any]) -> list[NDArray[Any]]:
    """Return the values of small arrays and variables of a state, which later steps do not change."""
    variables = [each for part in state.values() for each in direct_variables(part) or ()]
    small = to_numpy([each for each in variables if np.prod(each.shape, dtype=int) <= 256 * _SAMPLE][:_SAMPLE])
    small += torch_state.sample(torch_parts(state), _SAMPLE)
    leaves = chain(*(nnx_arrays(part).values() for part in state.values()), _leaves(state))
    return [*small, *(np.array(leaf) for leaf in map(_as_data, leaves) if _is_small(leaf))][:_SAMPLE]


def _as_data(leaf: Any) -> Any:
    """Return a leaf of a tree; a key of JAX's random numbers as its data."""
    import jax

    is_key = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _is_small(leaf: Any) -> bool:
    return getattr(leaf, "nbytes", 8) <= 1024 * _SAMPLE and getattr(leaf, "is_fully_addressable", True)
