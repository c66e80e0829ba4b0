"""What the batches of a DataLoader depend on besides their indices: order, process, time or a global generator.

Some batches are read in two child processes, as its workers would, so that nothing of the program changes: in order,
and in reverse by another worker with other seeds. Equal batches, still generators and an unchanged dataset are proof
enough for trials, which compare the batches again. Otherwise a third process names the line that is the cause.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import multiprocessing
import os
import pickle
import random
import re
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import TpunbError, need
from tpunb.instrument.torch import LIBRARY as TORCH
from tpunb.instrument.torch import become_worker
from tpunb.text import format_error, plain
from tpunb.torchdata.loader import is_iterable, settings_of, start_method, start_obstacle, with_settings

_SECONDS, _FEWEST_BATCHES, _MOST_BATCHES = 0.7, 2, 6
"""Time after which no further batch is read, and limits of their number."""

_TIMEOUT = 60.0  # seconds after which a process that reads batches is ended
_INTERVAL = 0.002  # seconds between samples of the function that runs
_SMALL = 1 << 20  # bytes of an array up to which it is compared before and after
_DEPTH = 4  # levels of attributes and items that are compared: a dataset in a subset, its transforms, their values
_SOME = 64  # items of a list or mapping that are compared
_FIX = "make each item depend on its index alone"
_BY_PROCESS = {"get_worker_info": "worker.py", "uuid1": "uuid.py", "uuid4": "uuid.py"}
"""Functions in Python whose results differ by process or time, and their files; `_BUILTIN` has those in C."""
_BUILTIN: dict[Any, str] = {datetime.now: "datetime.now", os.getpid: "os.getpid", os.urandom: "os.urandom"} | {
    getattr(time, name + ending): f"time.{name}{ending}"
    for name in ("time", "perf_counter", "monotonic")
    for ending in ("", "_ns")
}

_METHODS = ("__getitem__", "__getitems__", "forward", "__call__")
_CALLED = {"forward", "__call__", "_wrapped_call_impl", "_call_impl"}
_STDLIB = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class Reading:
    """What was seen when processes like a loader's workers read its first batches."""

    dependence: str | None = None  # of the batches on more than their indices: a sentence with the function and the fix
    batches: tuple[Any, ...] = ()  # their indices
    seconds: float = 0.0  # of one batch
    busy: float = 0.0  # cores meanwhile
    # seconds of a batch by what took them: transforms, functions that ``__getitem__`` calls, "collation"
    parts: Mapping[str, float] = field(default_factory=dict)
    digests: tuple[bytes, ...] = ()
    drawn: tuple[str, ...] = ()  # owners of the global generators that moved
    changed: tuple[str, ...] = ()  # sentences, for what the dataset holds, after the first batch
    repeatable: bool = True  # the first batch was equal when it was read again
    lazy_sampler: str = ""  # its class


def examine(loader: Any) -> Reading:
    """Return what the batches of a DataLoader depend on, and what they cost.

    An iterable dataset is not read: its workers share it, and their number must stay.
    """
    if not getattr(loader, "in_order", True):
        return Reading("in_order=False gives the batches in the order in which workers finish: omit it")
    if is_iterable(loader):
        return Reading()
    try:
        loader = with_settings(loader, settings_of(loader))  # has not begun, so that it can be sent
        reading: Reading = _in_child(loader, _read, loader)
        return replace(reading, dependence=_dependence(loader, reading))
    except TpunbError as error:
        return Reading(f"reading {plain(type(loader.dataset).__name__)} in a worker process fails: {error}")


def _dependence(loader: Any, reading: Reading) -> str | None:
    if not reading.batches:
        return None
    if reading.lazy_sampler:
        fix = "draw all indices before the first is given"
        return f"{reading.lazy_sampler} draws indices during the epoch, and workers ask for them earlier: {fix}"
    if reading.changed:
        return f"{reading.changed[0]}, of which each worker process has a copy: {_FIX}"
    if not reading.drawn:
        other = _in_child(loader, _read, loader, reading.batches)
        if reading.repeatable and other.digests == reading.digests:
            return None
    kind = type(loader.dataset)
    try:
        draw, call = _in_child(loader, _causes, loader, reading.batches[:_FEWEST_BATCHES])
    except TpunbError:  # too slow to be traced
        draw = call = None
    if reading.drawn:
        place = draw or f"{kind.__name__} draws from {reading.drawn[0]}"
        return f"{place} global generator: give it a generator seeded by the index"
    if call:
        return f"{call}, which differs by process and time: {_FIX}"
    return f"{_where(kind)} gives other values when an index is read again: {_FIX}"


def digest(batch: Any) -> bytes:
    """Return a digest of all that a batch holds, exact to the last bit.

    >>> digest({"x": [1.0, "a"]}) == digest({"x": [1.0, "b"]}), digest(np.ones(2)) == digest(np.ones(2))
    (False, True)
    """
    hashed = hashlib.blake2b(digest_size=16)
    for part in _contents(batch):
        hashed.update(part)
    return hashed.digest()


def _contents(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        yield f"{len(value)} parts".encode()
        for part in value:
            yield from _contents(part)
    elif (array := _array(value)) is not None:
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield array.tobytes()
    else:
        pickled = io.BytesIO()
        _Pickler(pickled).dump(value)
        yield pickled.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles objects with their tensors by content, as the usual form of these holds an address."""

    def persistent_id(self, value: Any) -> Any:
        return None if _array(value) is None else (str(value.dtype), tuple(value.shape), digest(value))


def _array(value: Any) -> NDArray[Any] | None:
    """Return the bytes of a tensor, or an array; None for anything else."""
    torch = TORCH.module()
    if torch is None or not isinstance(value, torch.Tensor):
        is_array = hasattr(value, "__array__") and hasattr(value, "dtype") and not isinstance(value, type)
        array = np.asarray(value) if is_array else None
        return None if array is None or array.dtype.hasobject else array
    dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    flat: NDArray[Any] = dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _in_child(loader: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a process that is started like the workers."""
    method = start_method(loader)
    if obstacle := start_obstacle(loader, method):
        raise TpunbError(obstacle)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, args), daemon=True)  # type: ignore[attr-defined]
    try:
        process.start()
        sender.close()
        if not receiver.poll(_TIMEOUT):
            raise TimeoutError(f"a few batches take over {_TIMEOUT:.0f} s")
        answer = receiver.recv()
    except EOFError as error:
        raise TpunbError("the process ended") from error
    except Exception as error:
        raise TpunbError(format_error(error)) from error
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
    if isinstance(answer, str):
        raise TpunbError(answer)
    return answer


def _answer(sender: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  this process ends soon
    try:
        answer = function(*args)
    except Exception as error:  # noqa: BLE001  whatever the program's functions raise
        answer = format_error(error)
    sender.send(answer)


def _read(loader: Any, again: tuple[Any, ...] = ()) -> Reading:
    """Read the first batches; or those batches again, in reverse, as another worker with other seeds."""
    need("torch", extra="torch").set_num_threads(1)  # as in workers
    batches, lazy = (again[::-1], "") if again else _drawn_indices(loader)
    _become_worker(loader, other=bool(again))
    watch, before = _Stopwatch(), _states()
    first: dict[str, str] = {}
    digests: list[bytes] = []
    for batch in batches:
        digests.append(digest(watch.time(loader, batch)))
        first = first or _attributes(loader.dataset)  # files are opened by the first batch
        if not again and len(digests) >= _FEWEST_BATCHES and watch.seconds > _SECONDS:
            break
    if again:
        return Reading(digests=tuple(digests[::-1]))
    states, last = _states(), _attributes(loader.dataset)
    seconds, busy, parts = watch.result()
    return Reading(
        batches=batches[: len(digests)],
        seconds=seconds,
        busy=busy,
        parts=parts,
        digests=tuple(digests),
        drawn=tuple(owner for owner, state in states.items() if state != before[owner]),
        changed=tuple(name for name, value in last.items() if first.get(name) != value),
        repeatable=not digests or digest(_fetched(loader, batches[0])) == digests[0],
        lazy_sampler=lazy,
    )


def _drawn_indices(loader: Any) -> tuple[tuple[Any, ...], str]:
    """Return the indices of the first batches, and the class of a sampler that draws more after the first."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    iterator = iter(sampler)
    drawn, lazy = [*itertools.islice(iterator, 1)], ""
    before = _states(loader.generator)
    for index in itertools.islice(iterator, _MOST_BATCHES - 1):  # at the end, shuffles draw once more
        drawn.append(index)
        if _states(loader.generator) != before:
            lazy = type(getattr(sampler, "sampler", sampler)).__name__
    return tuple(drawn), lazy


def _fetched(loader: Any, index: Any, phase: list[str] | None = None) -> Any:
    """Return a batch as workers make it; `phase` becomes "collation" before the items are joined."""
    dataset = loader.dataset
    if loader.batch_sampler is None:
        items = dataset[index]
    elif getattr(dataset, "__getitems__", None):
        items = dataset.__getitems__(index)
    else:
        items = [dataset[each] for each in index]
    if phase is not None:
        phase[0] = "collation"
    return loader.collate_fn(items)


def _become_worker(loader: Any, *, other: bool) -> None:
    """Have this process look like a worker: the first of the program's; or one of more, with other seeds."""
    workers = int(loader.num_workers) + 2 * other
    if not workers:
        return
    worker, seed = (workers - 1, 977) if other else (0, 1)
    torch = need("torch", extra="torch")
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(seed)
    become_worker(worker, workers, seed, loader.dataset)
    if loader.worker_init_fn is not None:
        loader.worker_init_fn(worker)


def _states(generator: Any = None) -> dict[str, bytes]:
    """Return the states of the global generators by their owner, and of another one."""
    torch = need("torch", extra="torch")
    states = {
        "Python's": repr(random.getstate()).encode(),
        "NumPy's": pickle.dumps(np.random.get_state()),
        "torch's": torch.get_rng_state().numpy().tobytes(),
    }
    return states if generator is None else states | {"": generator.get_state().numpy().tobytes()}


def _attributes(dataset: Any) -> dict[str, str]:
    """Return the values of the attributes of a dataset and of what it holds, by a sentence that they have changed."""
    values: dict[str, str] = {}
    _collect(dataset, "", values, _DEPTH, set())
    return values


def _collect(value: Any, name: str, values: dict[str, str], depth: int, seen: set[int]) -> None:
    content = ""
    if id(value) in seen or depth < 0 or isinstance(value, type | ModuleType):
        return
    if value is None or isinstance(value, bool | int | float | str | bytes):
        content = repr(value)
    elif (state := _generator_state(value)) is not None:
        content, name = state, name.replace(" changes ", " draws from ")
    elif isinstance(nbytes := getattr(value, "nbytes", None), int):
        content = digest(value).hex() if nbytes <= _SMALL else ""
    else:
        seen.add(id(value))
        if isinstance(value, Mapping | Sequence | Set):
            content = str(len(value))
            parts = value.values() if isinstance(value, Mapping) else value
            for part in itertools.islice(parts, _SOME):
                _collect(part, name, values, depth - 1, seen)
        elif hasattr(value, "__dict__") and (callable(value) or hasattr(value, "__getitem__")):
            place = _where(type(value))
            for attribute, part in vars(value).items():
                _collect(part, f"{place} changes self.{attribute}", values, depth - 1, seen)
    values[name] = values.get(name, "") + content


def _generator_state(value: Any) -> str | None:
    """Return the state of a generator of random numbers; None for anything else."""
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    return repr(value.get_state().tolist()) if isinstance(value, need("torch", extra="torch").Generator) else None


def _where(kind: type) -> str:
    """Return the method of a class that makes items, with its file and line."""
    codes = (getattr(getattr(kind, name, None), "__code__", None) for name in _METHODS)
    code = next(filter(None, codes), None)
    return plain(kind.__name__) if code is None else _place(code, code.co_firstlineno)


def _place(code: CodeType, line: int) -> str:
    name = re.sub(r"(\.<locals>\.<(?!lambda)\w+>)+$", "", code.co_qualname)  # of a comprehension: its function
    return plain(f"{name.rpartition('<locals>.')[2]} ({Path(code.co_filename).name}:{line})")


class _Stopwatch:
    """Times batches, and samples the functions that run meanwhile."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []
        self._samples: Counter[str] = Counter()
        self._phase = [""]
        self._thread = threading.get_ident()
        threading.Thread(target=self._sample, daemon=True).start()

    @property
    def seconds(self) -> float:
        return sum(wall for wall, _ in self._times)

    def time(self, loader: Any, index: Any) -> Any:
        """Return a batch."""
        if len(self._times) == 1:  # the first batch opens files, and imports
            self._samples.clear()
        self._phase[0] = "items"
        started, worked = time.perf_counter() - _queued(), time.process_time()
        batch = _fetched(loader, index, self._phase)
        worked = time.process_time() - worked
        self._times.append((max(time.perf_counter() - _queued() - started, worked), worked))
        self._phase[0] = ""
        return batch

    def result(self) -> tuple[float, float, dict[str, float]]:
        """Return the seconds of a batch, the cores that were busy, and the seconds of its parts."""
        times = np.array(self._times[1:] or self._times or [(0.0, 0.0)])
        wall, busy = times.mean(axis=0).tolist()
        samples = max(self._samples.total(), 1)
        parts = {part: wall * count / samples for part, count in self._samples.most_common()}
        return wall, busy / max(wall, 1e-9), parts

    def _sample(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            if (phase := self._phase[0]) == "items":
                phase = _part(sys._current_frames()[self._thread])
            if phase:
                self._samples[phase] += 1


def _queued() -> float:
    """Return the seconds for which this process waited for a core, which others kept busy; 0 if unknown."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _part(frame: FrameType | None) -> str:
    """Return what runs below `_fetched`: a transform, a function that ``__getitem__`` calls, or the dataset itself."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_code is not _fetched.__code__:
        frames.insert(0, frame)
        frame = frame.f_back
    part = "" if frame is None else "dataset"
    for each in frames if frame is not None else ():
        code = each.f_code
        owner = each.f_locals.get(code.co_varnames[0]) if code.co_argcount else None  # self
        is_method = owner is not None and code.co_name in _CALLED
        part = type(owner).__name__ if is_method else code.co_qualname.rpartition("<locals>.")[2]
        is_inside = code.co_name.startswith(("__getitem", "<")) or (is_method and hasattr(owner, "transforms"))
        if not is_inside:
            break
    return plain(part)


def _causes(loader: Any, batches: tuple[Any, ...]) -> tuple[str | None, str | None]:
    """Return the place that first draws from a global generator, and the one that calls what differs by process."""
    _become_worker(loader, other=False)
    watch = _Causes()
    sys.setprofile(watch.profile)
    sys.settrace(watch.trace)
    try:
        for batch in batches:
            _fetched(loader, batch)
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    watch.check()
    return watch.draw, watch.call


class _Causes:
    """Watches each line of the program's functions, and of packages but torch and NumPy."""

    draw: str | None = None
    call: str | None = None

    def __init__(self) -> None:
        self._states, self._at = _states(), ""

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        """Note the first call of a function whose result differs by process or time."""
        name, code, caller = "", frame.f_code, frame
        if event == "c_call":
            name = _BUILTIN.get(function, "")
        elif event == "call" and code.co_filename.endswith(_BY_PROCESS.get(code.co_name, " ")) and frame.f_back:
            name, caller = code.co_name, frame.f_back
        if name and self.call is None and _is_named(caller.f_code):
            self.call = f"{_place(caller.f_code, caller.f_lineno)} calls {name}"

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Note the line that ran before a global generator moved."""
        if self.draw is not None:
            return None
        self.check()
        below: FrameType | None = frame.f_back if event == "return" else frame
        while below is not None and not _is_named(below.f_code):
            below = below.f_back
        if below is not None:
            self._at = _place(below.f_code, below.f_lineno)
        return self.trace if _is_named(frame.f_code) else None

    def check(self) -> None:
        """Note which generator has moved."""
        moved = next((owner for owner, state in _states().items() if state != self._states[owner]), None)
        if moved is not None and self._at and self.draw is None:
            self.draw = f"{self._at} draws from {moved}"


@cache
def _is_named(code: CodeType) -> bool:
    """Return whether a function is the program's, or of a package that is neither torch nor NumPy."""
    path = code.co_filename
    if "site-packages" in path or "dist-packages" in path:
        return not any(f"{os.sep}{name}{os.sep}" in path for name in ("torch", "numpy"))
    return not path.startswith(("<frozen", _STDLIB, str(Path(__file__).parents[1])))
