"""A Grain pipeline as values that can be changed: read threads, their buffer, worker processes.

Grain gives the elements of a MapDataset in the order of their indices, however many threads read them. But the
functions on the way are Python's, which nobody can see into: so every knob is to be verified. More than one process
each take a slice of what is read, so that what is made of several elements after reading would be made of others.

How an IterDataset holds those it reads is Grain's own affair: the first use rebuilds a tiny one, and declines with a
sentence when Grain answers otherwise than expected.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from tpunb.errors import TpunbError, need, wrong
from tpunb.frames.words import plain
from tpunb.tuning.knob import Knob, Value, Verdict, checked

_ONE_FOR_ONE = {"PrefetchIterDataset", "MapIterDataset"}  # and looks at no index, which is another in a slice
_PYTHON = "Grain keeps the order of the indices; but functions and sources are Python, which nobody can see into"
_HINT = "set grain.ReadOptions by hand; everything else of tpunb works without"


class GrainPipeline:
    """The adjustable parameters of Grain's MapDataset, IterDataset or DataLoader, and the same with others.

    Parameters
    ----------
    dataset
        The program's data. What is iterated as it stands, a MapDataset, is read as ``to_iter_dataset()`` reads it.

    Raises
    ------
    TypeError
        When it is none of the three.
    TpunbError
        When Grain keeps its datasets otherwise than known.
    """

    def __init__(self, dataset: Any) -> None:
        grain = need("grain", extra="jax")
        if not isinstance(dataset, grain.MapDataset | grain.IterDataset | grain.DataLoader):
            raise wrong("GrainPipeline", "dataset", "be a dataset of Grain, or a grain.DataLoader", dataset)
        _self_check()
        self.dataset = dataset
        self._loads = isinstance(dataset, grain.DataLoader)
        if self._loads:
            self._root = dataset._dataset
        else:
            self._root = dataset.to_iter_dataset() if isinstance(dataset, grain.MapDataset) else dataset

    def __repr__(self) -> str:
        free = sum(knob.verdict != "refused" for knob in self.knobs)
        return f"GrainPipeline({free} of {len(self.knobs)} knobs free)"

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """Threads and buffer of each reading, and the worker processes."""
        found: list[Knob] = []
        for prefix, reading in self._readings.items():
            options = reading._read_options
            for what, present, tried in (
                ("threads", int(options.num_threads), (0, 1, 2, 4, 8, 16, 32)),
                ("buffer", int(options.prefetch_buffer_size), (1, 2, 4, 16, 64, 500)),
            ):
                domain = tuple(sorted({*tried, present}))
                found.append(Knob(f"{prefix}read {what}", f"{prefix}read", present, domain, "to be verified", _PYTHON))
        return (*found, self._workers())

    def build(self, values: Mapping[str, Value]) -> Any:
        """Return a ``grain.IterDataset``, or a DataLoader of a DataLoader, with the same elements and other parameters.

        Its iterators' states are those of the program's, whatever the threads and buffers; but not with other workers.

        Raises
        ------
        ValueError
            When there is no such knob, or the value is none that it takes.
        TpunbError
            When a refused knob would change, or there are to be workers and Grain would fail to start them.
        """
        changed = checked(self.knobs, values)
        with_options = {
            id(reading): _read_options(reading, changed, prefix) for prefix, reading in self._readings.items()
        }
        built = _rebuilt(self._root, with_options)
        if workers := changed.get("worker processes"):
            grain = need("grain", extra="jax")
            _flags_are_parsed()
            built = built.mp_prefetch(grain.MultiprocessingOptions(num_workers=int(workers)))
        return _loader(self.dataset, built) if self._loads else built

    @property
    def canonical(self) -> Any:
        """The dataset with its present values, as `build` gives it."""
        return self.build({})

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the lines that give a program these values, to be pasted.

        Raises
        ------
        ValueError, TpunbError
            As `build` does.
        """
        changed = checked(self.knobs, values)
        lines = []
        for prefix, reading in self._readings.items():
            if any(name.startswith(f"{prefix}read ") for name in changed):
                options = _read_options(reading, changed, prefix)
                asked = f"num_threads={options.num_threads}, prefetch_buffer_size={options.prefetch_buffer_size}"
                which = f"  # input {prefix.rstrip('/')}" if prefix else ""
                if self._loads:
                    lines.append(f"read_options=grain.ReadOptions({asked}),  # of grain.DataLoader(...)")
                else:
                    lines.append(f"ds = ds.to_iter_dataset(grain.ReadOptions({asked})){which}")
        if workers := changed.get("worker processes"):
            lines.append(f"ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers={workers}))")
        return "\n".join(lines)

    @cached_property
    def _readings(self) -> dict[str, Any]:
        """Where a MapDataset is read, by the branch: "" where there is one."""
        found = [node for node in _nodes(self._root) if _kind(node) == "PrefetchIterDataset"]
        return {(f"{i}/" if len(found) > 1 else ""): node for i, node in enumerate(found, 1)}

    def _read_kinds(self) -> Iterator[str]:
        """Yield the classes of all MapDatasets."""
        todo = [parent for reading in self._readings.values() for parent in reading.parents]
        while todo:
            node = todo.pop()
            yield _kind(node)
            todo += node.parents

    def _workers(self) -> Knob:
        other = next((kind for kind in map(_kind, _nodes(self._root)) if kind not in _ONE_FOR_ONE), None)
        other = other or next((kind for kind in self._read_kinds() if "Filter" in kind), None)
        verdict: Verdict = "to be verified" if other is None else "refused"
        why = f"{_PYTHON}, and other processes see none of this one's state"
        if other is not None:
            why = f"every process reads a slice, and {plain(other)} would make other elements of it"
        cores = os.cpu_count() or 1
        domain = tuple(sorted({0, 1, 2, cores})) if other is None else ()
        return Knob("worker processes", "end", 0, domain, verdict, why)


def _flags_are_parsed() -> None:
    """Raise where Grain's workers would fail at the first element: they ask for flags of the command line."""
    if not need("absl.flags", extra="jax").FLAGS.is_parsed():
        raise TpunbError(
            "Grain's worker processes need the flags of the command line, and a notebook parses none",
            hint="from absl import flags; flags.FLAGS.mark_as_parsed()",
        )


def _kind(node: Any) -> str:
    return type(node).__name__


def _nodes(root: Any) -> Iterator[Any]:
    """Yield an IterDataset and all IterDatasets it reads from, the last first."""
    grain = need("grain", extra="jax")
    yield root
    for parent in root.parents:
        if isinstance(parent, grain.IterDataset):
            yield from _nodes(parent)


def _read_options(reading: Any, changed: Mapping[str, Value], prefix: str) -> Any:
    grain = need("grain", extra="jax")
    threads = changed.get(f"{prefix}read threads", int(reading._read_options.num_threads))
    buffer = changed.get(f"{prefix}read buffer", int(reading._read_options.prefetch_buffer_size))
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)


def _rebuilt(node: Any, options: Mapping[int, Any]) -> Any:
    """Return a copy of an IterDataset whose readings have other options; the MapDatasets below are shared."""
    if id(node) in options:
        return node.parents[0].to_iter_dataset(options[id(node)], allow_nones=node._allow_nones)
    grain = need("grain", extra="jax")
    again = copy.copy(node)
    again._parents = tuple(
        _rebuilt(parent, options) if isinstance(parent, grain.IterDataset) else parent for parent in node.parents
    )
    return again


def _loader(loader: Any, dataset: Any) -> Any:
    """Return a copy of a DataLoader that draws from another dataset."""
    again = copy.copy(loader)
    again._dataset = dataset
    return again


@cache
def _self_check() -> None:
    """Rebuild a tiny dataset and a tiny DataLoader, once a process."""
    grain = need("grain", extra="jax")
    try:
        tiny = grain.MapDataset.range(5).to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(2)
        reading = tiny.parents[0]
        again = _rebuilt(tiny, {id(reading): grain.ReadOptions(num_threads=2, prefetch_buffer_size=3)})
        asked = again.parents[0]._read_options.num_threads, reading._read_options.num_threads
        if asked != (2, 0) or [list(batch) for batch in again] != [[0, 1], [2, 3], [4]]:
            raise TypeError("it rebuilt another")
        sampler = grain.samplers.IndexSampler(num_records=3, num_epochs=1, shard_options=grain.sharding.NoSharding())
        loader = grain.DataLoader(data_source=range(3), sampler=sampler)
        if [list(batch) for batch in _loader(loader, tiny)] != [[0, 1], [2, 3], [4]] or [*loader] != [0, 1, 2]:
            raise TypeError("its DataLoader draws from elsewhere")
    except Exception as error:
        raise TpunbError(f"Grain keeps its datasets otherwise than tpunb knows: {error}", hint=_HINT) from error
