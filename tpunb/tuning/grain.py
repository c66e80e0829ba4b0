"""A Grain pipeline as adjustable parameters: read threads, read buffer, worker processes.

Each worker process reads a slice, which changes elements that are made of several after reading. Grain stores what it
reads internally: the first use rebuilds a tiny dataset, and raises if this version does it differently.
"""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

from tpunb.errors import TpunbError, need, wrong_type
from tpunb.text import plain, plural
from tpunb.torchdata.loader import runs_main_again
from tpunb.tuning.parameters import Kind, Parameter, Value, changes

_ONE_TO_ONE = {"PrefetchIterDataset", "MapIterDataset"}  # and independent of the index, which differs in a slice
_PYTHON = "Grain keeps the order of the indices, but functions and sources are Python, whose effects are unknown"
_THREADS = (0, 1, 2, 4, 8, 16, 32)
_BUFFERS = (1, 2, 4, 16, 64, 500)
_AHEAD = (1, 2, 4, 16)  # elements that each worker process makes ahead; Grain's default is 1
_READ_AGAIN = 3  # elements of each stage that are read twice to find one that varies
_FUNCTIONS = ("_transform", "_map_fn", "_filter_fn", "_source")
"""Attributes that hold the program's function or source of a stage."""


def is_grain(data: object) -> bool:
    """Return whether data are Grain's, without importing Grain."""
    return any(kind.__module__.partition(".")[0] == "grain" for kind in type(data).__mro__)


class GrainPipeline:
    """The adjustable parameters of Grain's MapDataset, IterDataset or DataLoader, and the same data with other values.

    A MapDataset is read as ``to_iter_dataset()`` reads it.
    """

    unsafe: tuple[str, ...] = ()

    def __init__(self, dataset: Any) -> None:
        grain = need("grain", extra="jax")
        if not isinstance(dataset, grain.MapDataset | grain.IterDataset | grain.DataLoader):
            raise wrong_type("GrainPipeline", "dataset", "be a dataset of Grain, or a grain.DataLoader", dataset)
        _self_check()
        self.dataset = dataset
        self._is_loader = isinstance(dataset, grain.DataLoader)
        if self._is_loader:
            self._root = dataset._dataset
        else:
            self._root = dataset.to_iter_dataset() if isinstance(dataset, grain.MapDataset) else dataset

    @cached_property
    def refusal(self) -> str | None:
        """Why no value is tried; None if some may be."""
        several = sum(_workers(node) is not None for node in _nodes(self._root)) > 1
        return "several of its inputs have worker processes: call mp_prefetch once, at the end" if several else None

    def __repr__(self) -> str:
        adjustable = sum(parameter.verdict != "locked" for parameter in self.parameters)
        return f"GrainPipeline({adjustable} of {plural(len(self.parameters), 'parameter')} adjustable)"

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Threads and buffer of each read, and the worker processes with the buffer of each."""
        parameters = []
        for stage, read in self._reads.items():
            threads, buffer = _numbers(read)
            for kind, current, candidates in (
                (Kind.READ_THREADS, threads, _THREADS),
                (Kind.ELEMENTS, buffer, _BUFFERS),
            ):
                domain = tuple(sorted({*candidates, current}))
                parameters.append(Parameter(kind, stage, current, domain, "verify", _PYTHON))
        processes = self._processes()
        if processes.verdict == "locked" and not processes.current:
            return (*parameters, processes)
        ahead = self._workers.ahead if self._workers else 1
        domain = tuple(sorted({*_AHEAD, ahead}))
        return (*parameters, processes, Parameter(Kind.ELEMENTS, "worker", ahead, domain, "verify", _PYTHON))

    def build(self, values: Mapping[str, Value]) -> Any:
        """Return a ``grain.IterDataset``, or a DataLoader for a DataLoader, with the same elements and other values.

        Iterator states are interchangeable with the program's, unless the worker processes change.
        """
        changed = self._changed(values)
        options = {id(read): _read_options(read, changed, stage) for stage, read in self._reads.items()}
        workers = self._changed_workers(changed)
        if workers.processes:
            _check_flags()
        built = _rebuilt(self._root, options, workers)
        built = built if self._workers else workers.of(built)
        return _loader(self.dataset, built) if self._is_loader else built

    in_place = build

    def in_flight(self, values: Mapping[str, Value]) -> int:
        """Return how many elements are made at once, which arrive in one burst."""
        changed = self._changed(values)
        threads = [_read_options(read, changed, stage) for stage, read in self._reads.items()]
        most = max((min(each.num_threads, each.prefetch_buffer_size) for each in threads), default=0)
        return max(most, 1) * max(self._changed_workers(changed).processes, 1)

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the lines of code that set these values."""
        changed = self._changed(values)
        lines = []
        for stage, read in self._reads.items():
            if any(place == stage for place, _ in changed):
                options = _read_options(read, changed, stage)
                call = f"num_threads={options.num_threads}, prefetch_buffer_size={options.prefetch_buffer_size}"
                branch = stage.rpartition("/")[0]
                if self._is_loader:
                    lines.append(f"read_options=grain.ReadOptions({call}),  # of grain.DataLoader(...)")
                else:
                    comment = f"  # input {branch}" if branch else ""
                    lines.append(f"ds = ds.to_iter_dataset(grain.ReadOptions({call})){comment}")
        workers = self._changed_workers(changed)
        if workers != (self._workers or _NO_WORKERS) and (workers.processes or self._workers):
            if self._is_loader:
                lines.append(f"worker_buffer_size={workers.ahead},  # of grain.DataLoader(...)")
            else:
                buffer = f", per_worker_buffer_size={workers.ahead}" if workers.ahead > 1 else ""
                lines.append(
                    f"ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers={workers.processes}{buffer}))"
                )
        return "\n".join(lines)

    def metered(self) -> tuple[Any, list[Meter]]:
        """Return the dataset, read in this thread only, and a meter of each stage, the sources first."""
        meters: list[Meter] = []
        return self._metered(self._root, "", meters)[0], meters

    def _metered(self, node: Any, read: str, meters: list[Meter]) -> tuple[Any, list[Meter]]:
        """Return a copy of a dataset that is timed in each stage, and the meters of the last ones."""
        stage = next((stage for stage, each in self._reads.items() if each is node), "")
        metered = [self._metered(parent, stage or read, meters) for parent in _parents(node)]
        parents, below = [parent for parent, _ in metered], [meter for _, each in metered for meter in each]
        if _workers(node):
            return parents[0], below
        grain = need("grain", extra="jax")
        if stage:
            options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            return parents[0].to_iter_dataset(options, allow_nones=node._allow_nones), below
        again = copy.copy(node)
        for name in [name for name in vars(again) if isinstance(getattr(type(again), name, None), cached_property)]:
            del vars(again)[name]  # it may refer to the parents of the program's own
        again._parents = tuple(parents)
        meter = Meter(_stage_name(node, read, below), read, tuple(below))
        meters.append(meter)
        meter.node = _timing_nodes()[isinstance(node, grain.IterDataset)](again, meter)
        return meter.node, [meter]

    def varying(self, digest: Callable[[Any], bytes]) -> str:
        """Return the first stage of random access that gives another element when it is read again; "" for none."""
        for meter in self.metered()[1]:
            rows = range(min(_READ_AGAIN, len(meter.node))) if hasattr(meter.node, "__getitem__") else ()
            if any(digest(meter.node[row]) != digest(meter.node[row]) for row in rows):
                return meter.stage
        return ""

    @cached_property
    def _workers(self) -> _Workers | None:
        """The worker processes of the program; None for none."""
        return next(filter(None, map(_workers, _nodes(self._root))), None)

    def _changed_workers(self, changed: Mapping[tuple[str, Kind], Value]) -> _Workers:
        workers = self._workers or _NO_WORKERS
        processes = changed.get(("worker", Kind.PROCESSES), workers.processes)
        ahead = changed.get(("worker", Kind.ELEMENTS), workers.ahead)
        return workers._replace(processes=int(processes), ahead=int(ahead))

    def _changed(self, values: Mapping[str, Value]) -> dict[tuple[str, Kind], Value]:
        changed = changes(self.parameters, values)
        return {(parameter.stage, parameter.kind): value for parameter, value in changed.items()}

    @cached_property
    def _reads(self) -> dict[str, Any]:
        """Where a MapDataset is read, by stage: "read", or "1/read" and so on for several inputs."""
        reads = [node for node in _nodes(self._root) if _class(node) == "PrefetchIterDataset"]
        return {(f"{i}/read" if len(reads) > 1 else "read"): node for i, node in enumerate(reads, 1)}

    def _processes(self) -> Parameter:
        grain, current = need("grain", extra="jax"), self._workers.processes if self._workers else 0
        inside = [*_nodes(self._workers.inner if self._workers else self._root)]
        iterated = [_class(node) for node in inside if isinstance(node, grain.IterDataset)]
        others = [name for name in iterated if name not in _ONE_TO_ONE]
        reason = ""
        if other := next(iter(others or (name for name in map(_class, inside) if "Filter" in name)), None):
            reason = f"each process reads a slice, of which {plain(other)} would make different elements"
        elif runs_main_again():
            reason = "each process would run the program again: put it under if __name__ == '__main__'"
        elif self._is_loader and current:
            reason = "the state of the loader is that of its number of processes"
        if reason:
            return Parameter(Kind.PROCESSES, "worker", current, (), "locked", reason)
        domain = tuple(sorted({0, 1, 2, os.cpu_count() or 1, current}))
        reason = f"{_PYTHON}, and other processes do not share this one's state"
        return Parameter(Kind.PROCESSES, "worker", current, domain, "verify", reason)


@dataclass(eq=False)
class Meter:
    """What a stage and those below it took: seconds, processor seconds, and the elements that it gave."""

    stage: str
    read: str  # the stage that reads it; "" after reading
    below: tuple[Meter, ...]
    node: Any = None  # the timed dataset
    wall: float = 0.0
    busy: float = 0.0
    elements: int = 0

    @property
    def alone(self) -> tuple[float, float]:
        """Seconds and processor seconds of the stage alone."""
        wall, busy = (
            getattr(self, name) - sum(getattr(each, name) for each in self.below) for name in ("wall", "busy")
        )
        return max(wall, 0.0), max(busy, 0.0)

    def reset(self) -> None:
        """Forget what was measured."""
        self.wall, self.busy, self.elements = 0.0, 0.0, 0

    def timed(self, draw: Callable[[], Any]) -> Any:
        """Return an element."""
        started, worked = time.perf_counter(), time.thread_time()
        element = draw()
        self.wall, self.busy = self.wall + time.perf_counter() - started, self.busy + time.thread_time() - worked
        self.elements += 1
        return element


@cache
def _timing_nodes() -> tuple[type, type]:
    """Return the datasets that time another one: of random access, and iterated."""
    grain = need("grain", extra="jax")

    class Timed:
        def __init__(self, parent: Any, meter: Meter) -> None:
            super().__init__(parent)  # type: ignore[call-arg]
            self._meter = meter

    class TimedMap(Timed, grain.MapDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return len(self._parent)

        def __getitem__(self, index: Any) -> Any:
            return self._meter.timed(lambda: self._parent[index])

    class TimedIter(Timed, grain.IterDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return TimedIterator(self._parent.__iter__(), self._meter)

    class TimedIterator(Timed, grain.DatasetIterator):  # type: ignore[misc, name-defined]
        def __next__(self) -> Any:
            return self._meter.timed(lambda: next(self._parent))

        def get_state(self) -> Any:
            return self._parent.get_state()

        def set_state(self, state: Any) -> None:
            self._parent.set_state(state)

    return TimedMap, TimedIter


def _stage_name(node: Any, read: str, below: list[Meter]) -> str:
    """Return the name of a stage as of tf.data: "map:1(decode)", counted from its farthest source."""
    kind = re.sub(r"(Map|Iter)?Dataset$", "", _class(node)).strip("_") or "dataset"
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
    number = max((int(re.search(r":(\d+)", meter.stage)[1]) + 1 for meter in below), default=0)  # type: ignore[index]
    function = next((vars(node)[name] for name in _FUNCTIONS if name in vars(node)), None)
    label = "" if function is None else getattr(function, "__name__", type(function).__name__)
    branch = read.rpartition("/")[0]
    return f"{branch}/" * bool(branch) + f"{kind}:{number}" + f"({plain(label)})" * label.isidentifier()


def _check_flags() -> None:
    """Raise if Grain's workers would fail at the first element, because command-line flags are not parsed."""
    if not need("absl.flags", extra="jax").FLAGS.is_parsed():
        raise TpunbError(
            "Grain's worker processes need parsed command-line flags, which a notebook does not have",
            hint="from absl import flags; flags.FLAGS.mark_as_parsed()",
        )


def _class(node: Any) -> str:
    return type(node).__name__


def _nodes(root: Any) -> Iterator[Any]:
    """Yield a dataset and all datasets it reads from, the last first."""
    yield root
    for parent in _parents(root):
        yield from _nodes(parent)


def _parents(node: Any) -> tuple[Any, ...]:
    workers = _workers(node)
    return (workers.inner,) if workers else tuple(node.parents)


class _Workers(NamedTuple):
    """Worker processes: how many, the elements that each makes ahead, and what they read, as ``mp_prefetch`` has it."""

    processes: int
    ahead: int
    inner: Any = None
    start: Any = None
    sequential: bool = False

    def of(self, dataset: Any) -> Any:
        """Return a dataset that is read by the processes."""
        if not self.processes:
            return dataset
        options = need("grain", extra="jax").MultiprocessingOptions(
            num_workers=self.processes, per_worker_buffer_size=self.ahead
        )
        return dataset.mp_prefetch(options, worker_init_fn=self.start, sequential_slice=self.sequential)


_NO_WORKERS = _Workers(0, 1)


def _workers(node: Any) -> _Workers | None:
    """Return the worker processes that a dataset is; None for other datasets."""
    shards = getattr(node.parents[0], "_datasets", ()) if _class(node) == "WithOptionsIterDataset" else ()
    if not shards or {_class(shard) for shard in shards} != {"ProcessPrefetchIterDataset"}:
        return None
    inner, sequential = shards[0].parents[0].parents[0], False
    if _class(inner) == "_LazyWorkerSliceIterDataset":
        inner, sequential = inner.parents[0], inner._sequential_slice
    _, *starts = shards[0]._worker_init_fn.args[0]  # the first is Grain's
    return _Workers(len(shards), shards[0]._buffer_size, inner, starts[0].func if starts else None, sequential)


def _numbers(read: Any) -> tuple[int, int]:
    return int(read._read_options.num_threads), int(read._read_options.prefetch_buffer_size)


def _read_options(read: Any, changed: Mapping[tuple[str, Kind], Value], stage: str) -> Any:
    if not any(place == stage for place, _ in changed):
        return read._read_options
    threads, buffer = _numbers(read)
    return need("grain", extra="jax").ReadOptions(
        num_threads=changed.get((stage, Kind.READ_THREADS), threads),
        prefetch_buffer_size=changed.get((stage, Kind.ELEMENTS), buffer),
    )


def _rebuilt(node: Any, options: Mapping[int, Any], workers: _Workers = _NO_WORKERS) -> Any:
    """Return a copy of an IterDataset with other read options and workers; the MapDatasets below are shared."""
    if present := _workers(node):
        return workers.of(_rebuilt(present.inner, options))
    if id(node) in options:
        return node.parents[0].to_iter_dataset(options[id(node)], allow_nones=node._allow_nones)
    grain = need("grain", extra="jax")
    again = copy.copy(node)
    again._parents = tuple(
        _rebuilt(parent, options, workers) if isinstance(parent, grain.IterDataset) else parent
        for parent in node.parents
    )
    return again


def _loader(loader: Any, dataset: Any) -> Any:
    """Return a copy of a DataLoader that draws from another dataset."""
    again = copy.copy(loader)
    again._dataset = dataset
    return again


@cache
def _self_check() -> None:
    """Rebuild a tiny dataset and a tiny DataLoader, once per process."""
    grain = need("grain", extra="jax")
    try:
        tiny = grain.MapDataset.range(5).to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(2)
        read = tiny.parents[0]
        again = _rebuilt(tiny, {id(read): grain.ReadOptions(num_threads=2, prefetch_buffer_size=3)})
        threads = _numbers(again.parents[0])[0], _numbers(read)[0]
        if threads != (2, 0) or [list(batch) for batch in again] != [[0, 1], [2, 3], [4]]:
            raise TypeError("the rebuilt dataset differs")
        processes = read.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=3))
        if _workers(processes) != (2, 3, read, None, False):
            raise TypeError("worker processes are stored otherwise")
        sampler = grain.samplers.IndexSampler(num_records=3, num_epochs=1, shard_options=grain.sharding.NoSharding())
        loader = grain.DataLoader(data_source=range(3), sampler=sampler)
        if [list(batch) for batch in _loader(loader, tiny)] != [[0, 1], [2, 3], [4]] or [*loader] != [0, 1, 2]:
            raise TypeError("the rebuilt DataLoader differs")
    except Exception as error:
        raise TpunbError(
            f"this version of Grain is not supported: {error}", hint="set grain.ReadOptions in your code"
        ) from error
