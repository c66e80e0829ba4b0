"""Sample the stack of the training thread, most of all while a step, or the gap between steps, lasts too long.

The sampler's own thread checks the progress of the training 50 times a second, and 25 times after ten seconds. Code in
C that holds the interpreter lock delays the sampler too; the first sample after it still finds the line that called the
code, and is marked as locked. Of the threads of a capture that wait for the lock meanwhile, the first to get it takes
this sample: the training continues as soon as that one releases it.
"""

from __future__ import annotations

import ast
import dis
import gc
import linecache
import math
import multiprocessing
import os
import queue
import re
import selectors
import sys
import threading
import time
import tokenize
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import CO_GENERATOR
from itertools import islice, takewhile
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import polars as pl
import psutil

from tpunb import schema
from tpunb.profiler.limits import LIMITS
from tpunb.text import cut, plain
from tpunb.training.program import CELL, GENERATED, PACKAGES, STANDARD_FOLDERS, is_user_code

_DEPTH = 256  # frames of a stack
_SPOTS, _STALLS = 512, 4096  # at most: places counted in a stall, stalls between two takes
_SOURCE, _TEXT = 10_000, 160  # characters of an expression that is parsed, of a place

_WAITING = {module.__file__ for module in (threading, queue, selectors)}
_HOSTS = {*sys.stdlib_module_names, "numpy", "scipy", "pandas", "polars", "PIL", "cv2", "sklearn", "skimage"}
_ALIASES = {"np": "numpy", "pd": "pandas", "pl": "polars", "sp": "scipy"}
_OF_DATA = {  # modules of the standard library that call libraries back, but not to compute
    *("base64", "copy", "csv", "gzip", "hashlib", "http", "json", "logging", "pickle", "pprint", "socket", "ssl"),
    *("statistics", "subprocess", "tarfile", "urllib", "zipfile"),
}
_IMPORTS = "<frozen importlib"
_PRINTS = re.compile(r"[\\/]torch[\\/]_tensor_str\.py$")  # makes text of tensors
_COMPREHENSION = re.compile(r"((\.<locals>)?\.<(listcomp|genexpr|dictcomp|setcomp)>)+$")
_OF_ARRAYS = {"add", "clear", "copy", "index", "sort", "split", "update", "values"}
_OF_BUILTINS = {*dir(str), *dir(list), *dir(dict), *dir(set)} - _OF_ARRAYS
"""Names of methods that arrays and tensors do not have."""
_OF_RANDOM = {"choice", "integers", "normal", "permutation", "random", "shuffle", "standard_normal", "uniform"}
"""Names of methods of generators of random numbers of NumPy and Python; PyTorch's have other names."""
_CALLS = re.compile(r"torch[\\/](?:nn[\\/]modules|utils[\\/]_contextlib)")  # what calls a model of the program
_TRAINS = {"fit", "train"}  # methods of a library that train, and evaluate on their own
_EVALUATES = re.compile(r"(^|_)(evaluat|validat|eval(_|$)|valid(_|$))", re.IGNORECASE)
_IMPORT = re.compile(r"\s*(?:import|from)\s+([\w.]+)")


_reading = threading.Lock()
_texts: dict[tuple[int, int, str | None], tuple[CodeType, str]] = {}
"""Places by instruction and inner function; they hold its code, so that no other has its address."""


def stacks() -> dict[int, FrameType]:
    """Return the frame of each thread but the calling one, without what a collection of garbage calls in it.

    Before Python 3.11.9 a collection of garbage while frames are read may stop all threads forever
    (https://github.com/python/cpython/issues/106883). Before Python 3.12 each frame of another thread is made as it is
    first asked for, and a collection then may let that thread leave it meanwhile: so all are made here.
    """
    if getattr(getattr(sys.modules.get("jax"), "config", None), "jax_check_tracer_leaks", False):
        return {}  # a frame held here keeps what JAX checks that nobody does
    with _reading:
        collects = gc.isenabled()
        gc.disable()
        try:
            frames = sys._current_frames()
            for frame in frames.values() if sys.version_info < (3, 12) else ():
                deque(_outwards(frame), 0)
        finally:
            if collects:
                gc.enable()
    frames.pop(threading.get_ident(), None)  # it would keep itself alive
    callbacks = {code for each in gc.callbacks if (code := getattr(each, "__code__", None)) is not None}
    return {thread: _outside_collection(frame, callbacks) for thread, frame in frames.items()}


def _outside_collection(frame: FrameType, callbacks: set[CodeType]) -> FrameType:
    for each in islice(_outwards(frame), 4):
        if each.f_code in callbacks and each.f_back is not None:
            return each.f_back
    return frame


class Progress(NamedTuple):
    """Where the training is."""

    thread: int | None  # that trains
    since_ns: int | None  # last sign of progress, by the monotonic clock
    step: int | None  # None between steps
    account: str | None  # of tpunb.schema.ACCOUNTS, None if unknown
    typical_ns: int  # typical step time
    computes: bool = False  # whether work is in flight


class Place(NamedTuple):
    """Where samples of a stall were taken."""

    text: str | None  # such as "train.py:12 in on_epoch_end ← time.sleep"; None outside of user code
    samples: int  # a late sample counts as those that it replaces
    locked: bool  # whether one was late


class Stall(NamedTuple):
    """A time without progress."""

    start_ns: int
    end_ns: int
    step: int | None
    account: str | None
    samples: int
    places: tuple[Place, ...]  # most samples first


_Described = tuple[str | None, bool, bool, bool]
"""Place, whether a generator runs, code of the program does, and an evaluation."""


class _Seen(NamedTuple):
    """A late sample of another thread."""

    progress: Progress
    text: str | None
    late_ns: int


@dataclass(slots=True)
class _Open:
    start_ns: int
    step: int | None
    account: str | None
    texts: Counter[str | None] = field(default_factory=Counter)
    locked: set[str | None] = field(default_factory=set)
    samples: int = 0

    def add(self, text: str | None, late_ns: int) -> None:
        locked = late_ns > LIMITS.stall_late_ns
        samples = 1 + (late_ns // LIMITS.stall_sample_ns if locked else 0)
        self.samples += samples
        if text in self.texts or len(self.texts) < _SPOTS:
            self.texts[text] += samples
            if locked:
                self.locked.add(text)

    def stall(self, end_ns: int) -> Stall:
        places = tuple(
            Place(text, count, text in self.locked) for text, count in self.texts.most_common(LIMITS.stall_places)
        )
        return Stall(self.start_ns, end_ns, self.step, self.account, self.samples, places)


class StallSampler:
    """Sample where the training is in stalls; `progress` is called in the sampler's thread."""

    def __init__(
        self, progress: Callable[[], Progress], *, enabled: bool = True, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._progress, self._clock = progress, clock
        # without an interpreter lock, the frames of a running thread cannot be read
        self._enabled = enabled and getattr(sys, "_is_gil_enabled", lambda: True)()
        self._process = os.getpid()
        self._running = threading.Lock()  # released by `stop`; half of an event's cost per wait
        self._thread = threading.Thread(target=self._run, name="tpunb-stalls", daemon=True)
        self._open: _Open | None = None
        self._seen: _Seen | None = None
        self._due_ns = sys.maxsize  # when the sampler looks next
        self._finished: deque[Stall] = deque(maxlen=_STALLS)
        # in stalls or not: time, place, whether a generator runs, code of the program does, and an evaluation
        self._samples: deque[tuple[int, str | None, bool, bool, bool]] = deque(maxlen=LIMITS.most_samples)
        self.loops: set[CodeType] = set()  # functions that a loop is in, whose generators do not prepare its batches
        self._sampled_ns, self._sampled, self._stands_for = 0, 0, 1
        self._looks: dict[tuple[object, ...], tuple[list[CodeType], _Described]] = {}  # by place, codes, instructions
        self._interval_s = self._set_s = 0.0
        self._late_ns, self._is_late = 0, False  # since the last sample that stands for others; the last look
        self.failure: Exception | None = None  # that ended the sampling

    def start(self) -> None:
        """Start the sampler's thread."""
        if self._enabled:
            self._running.acquire()
            self._interval_s = sys.getswitchinterval()
            # code that holds the interpreter lock for less than this is seen as what comes after it
            self._set_s = min(self._interval_s, LIMITS.switch_s)
            sys.setswitchinterval(self._set_s)
            try:
                self._thread.start()
            except RuntimeError:  # too many
                self._running.release()
                self.restore_interval()
                raise

    def stop(self) -> None:
        """End the sampling; an unfinished stall ends now."""
        if self._process == os.getpid() and self._running.locked():  # a forked process has no sampler
            self._running.release()
            self.restore_interval()
            self._thread.join(10.0)  # it wakes 25 times a second at least

    def restore_interval(self) -> None:
        """Let threads keep the interpreter lock as long as before, unless the program has set that since."""
        if self._interval_s and math.isclose(sys.getswitchinterval(), self._set_s):  # whole microseconds
            sys.setswitchinterval(self._interval_s)

    def take(self) -> list[Stall]:
        """Return the stalls that ended since the last call, in order."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def take_samples(self, host: str, origin_ns: int) -> pl.DataFrame:
        """Return where the training was since the last call, as a frame of ``tpunb.schema.SAMPLES``."""
        taken = [self._samples.popleft() for _ in range(len(self._samples))]
        data = [(host, (time_ns - origin_ns) * 1000, *look) for time_ns, *look in taken]
        return pl.DataFrame(data, schema=schema.SAMPLES, orient="row")

    def on_wake(self) -> None:
        """Sample in another thread that wakes while the sampler is overdue."""
        late_ns = self._clock() - self._due_ns
        if late_ns <= LIMITS.stall_late_ns or self._seen is not None or not self._running.locked():
            return
        progress = self._progress()
        stack = self._stacks(progress)
        if progress.thread in stack and self._elapsed_ns(progress) > _limit_ns(progress):
            text = _place(stack, progress.thread, progress.account)
            self._seen = _Seen(progress, text, min(late_ns, self._elapsed_ns(progress)))

    def _stacks(self, progress: Progress) -> dict[int, FrameType]:
        """Return the stacks of all threads; none if the training has gone on meanwhile."""
        stack = stacks()
        return stack if self._progress().since_ns == progress.since_ns else {}

    def _elapsed_ns(self, progress: Progress) -> int:
        return 0 if progress.since_ns is None else self._clock() - progress.since_ns

    def _run(self) -> None:
        try:
            delay_ns, now_ns = 0, self._clock()
            while not self._running.acquire(timeout=delay_ns / 1e9):
                before_ns, now_ns = now_ns, self._clock()
                delay_ns = self._look(now_ns - before_ns - delay_ns)
                self._due_ns = self._clock() + delay_ns
            self._finish(self._clock())
        except Exception as error:  # noqa: BLE001  must never reach the training
            self.failure = error.with_traceback(None)  # which would hold frames of the program

    def _look(self, late_ns: int) -> int:
        """Sample in a stall; return the time until the next look."""
        progress, now_ns = self._progress(), self._clock()
        since_ns = progress.since_ns
        self._late_ns = min(self._late_ns + late_ns, LIMITS.stall_late_ns)
        self._is_late = late_ns > LIMITS.switch_s * 1e9 * 50
        if self._seen is not None:
            seen, self._seen, late_ns = self._seen, None, 0
            self._add(seen.progress, seen.text, seen.late_ns)
        if self._open is not None and since_ns != self._open.start_ns:
            self._finish(now_ns if since_ns is None else since_ns)
        if progress.computes and now_ns - self._sampled_ns >= self._idle_ns:
            self._sampled_ns, frame = now_ns, stacks().get(progress.thread or 0)
            evaluates = self._evaluates(frame)
            place = _innermost(_outwards(frame))[0] if evaluates else None  # else the host does what it likes
            self._keep((now_ns, place, False, False, evaluates))
        if since_ns is None or progress.thread is None:
            return self._idle_ns
        elapsed_ns, limit_ns = now_ns - since_ns, _limit_ns(progress)
        if elapsed_ns <= limit_ns:
            if now_ns - self._sampled_ns >= self._idle_ns:
                self._sampled_ns, stack = now_ns, stacks()
                if progress.thread in stack:
                    self._sample(now_ns, stack[progress.thread], _place(stack, progress.thread, progress.account))
            return min(max(limit_ns - elapsed_ns, LIMITS.stall_sample_ns), self._idle_ns)
        stack = self._stacks(progress)
        if progress.thread in stack:
            place = _place(stack, progress.thread, progress.account)
            self._add(progress, place, min(late_ns, elapsed_ns))
            if now_ns - self._sampled_ns >= self._idle_ns:
                self._sampled_ns = now_ns
                self._sample(now_ns, stack[progress.thread], place)
        return LIMITS.stall_sample_ns

    def _sample(self, now_ns: int, frame: FrameType, place: str | None) -> None:
        frames = [*_outwards(frame)]
        # most looks find a stack as an earlier one did, and the caches of the processor cold: read no code twice
        key = place, len(self.loops), *[number for each in frames for number in (id(each.f_code), each.f_lasti)]
        if (seen := self._looks.get(key)) is None:
            if len(self._looks) >= _SPOTS:
                self._looks.clear()
            codes = [each.f_code for each in frames]  # kept, so that no other code has an address of theirs
            seen = self._looks[key] = codes, self._described(frame, place)
        sample = now_ns, *seen[1]
        self._keep(sample)
        while self._is_late and self._late_ns >= LIMITS.stall_idle_ns:  # those that it replaces
            self._late_ns -= LIMITS.stall_idle_ns
            self._samples.append(sample)

    @property
    def _idle_ns(self) -> int:
        return LIMITS.stall_idle_ns * self._stands_for

    def _keep(self, sample: tuple[int, str | None, bool, bool, bool]) -> None:
        """Keep a look as the samples that it stands for: later ones, which are rarer, as more."""
        self._samples.extend([sample] * self._stands_for)
        self._sampled += 1
        self._stands_for = 1 if self._sampled < LIMITS.frequent_samples else LIMITS.rare_samples

    def _described(self, frame: FrameType, place: str | None) -> _Described:
        frames = [*_outwards(frame)]
        loads, evaluates = any(_prepares(each, self.loops) for each in frames), self._evaluates(frame)
        within = takewhile(lambda each: not is_user_code(each.f_code.co_filename), frames)
        if place and " ← import " not in place and any(each.f_code.co_filename.startswith(_IMPORTS) for each in within):
            place = f"{place} (imports)"  # a library, within a call
        return place, loads, not evaluates and _is_code(frame, place), evaluates

    def _evaluates(self, frame: FrameType | None) -> bool:
        """Return whether a function of the program evaluates, within what the loop is in, or a library that has one."""
        of_program = False
        for each in _outwards(frame):
            code = each.f_code
            if not of_program and code.co_name in _TRAINS:  # of a library
                return False
            if is_user_code(code.co_filename):
                of_program = True
                if code in self.loops or _EVALUATES.search(code.co_name):
                    return code not in self.loops
            elif of_program and PACKAGES.search(code.co_filename) and not _CALLS.search(code.co_filename):
                return False
        return False

    def _add(self, progress: Progress, text: str | None, late_ns: int) -> None:
        """Add a sample to the open stall, or to a new one."""
        if self._open is not None and self._open.start_ns != progress.since_ns:
            self._finish(progress.since_ns or self._clock())
        self._open = self._open or _Open(progress.since_ns or self._clock(), progress.step, progress.account)
        self._open.add(text, late_ns)

    def _finish(self, end_ns: int) -> None:
        """Keep the open stall, if any."""
        if self._open is not None:
            self._finished.append(self._open.stall(end_ns))
            self._open = None


def _limit_ns(progress: Progress) -> int:
    """Return the time without progress after which it is a stall."""
    return max(LIMITS.stall_steps * progress.typical_ns, LIMITS.stall_shortest_ns)


def rows(stalls: Iterable[Stall], host: str, origin_ns: int) -> pl.DataFrame:
    """Return stalls of a host as a frame of ``tpunb.schema.STALLS``; the origin is by the monotonic clock."""
    data = [
        (
            *(host, (stall.start_ns - origin_ns) * 1000, (stall.end_ns - stall.start_ns) * 1000),
            *(stall.step, stall.account, place.text, place.samples / stall.samples, place.samples, place.locked),
        )
        for stall in stalls
        for place in stall.places
    ]
    return pl.DataFrame(data, schema=schema.STALLS, orient="row")


def _place(stack: Mapping[int, FrameType], thread: int, account: str | None) -> str | None:
    """Return where a thread is, or the one that it waits for if it waits for data in a library."""
    text, inner = _innermost(_outwards(stack[thread]))
    if account not in (None, "data loading") or (text is not None and inner is None):
        return text
    at_work: list[tuple[int, str]] = []
    for other, frame in stack.items():
        if other == thread or frame.f_code.co_filename in _WAITING:
            continue
        frames = _outwards(frame)
        busy = _innermost(frames)[0]
        # a thread that no library started may be unrelated, such as one that logs
        if busy and (account or any(PACKAGES.search(outer.f_code.co_filename) for outer in frames)):
            at_work.append((other, busy))
    if not at_work:
        return text
    skipped = {other.ident for other in threading.enumerate() if other.name.startswith("tpunb-")}
    skipped.add(threading.main_thread().ident)
    texts = Counter(busy for other, busy in at_work if other not in skipped)
    return texts.most_common(1)[0][0] if texts else text


def _prepares(frame: FrameType, loops: set[CodeType]) -> bool:
    """Return whether a frame is a generator that user code asks for its next value."""
    code, caller = frame.f_code, frame.f_back
    if not code.co_flags & CO_GENERATOR or code in loops or not is_user_code(code.co_filename):
        return False
    return caller is not None and is_user_code(caller.f_code.co_filename)  # a context manager is asked by a library


def _is_code(frame: FrameType, place: str | None) -> bool:
    """Return whether a thread runs code of the program, or of what cannot be a framework that computes for it."""
    library, module = False, ""  # whether a library is within, and the module that the program called
    for each in _outwards(frame):
        file = each.f_code.co_filename
        if is_user_code(file):
            if module in _OF_DATA:
                return True
            return not library and (each is not frame or _calls_code(each, (place or "").partition(" ← ")[2]))
        if _PRINTS.search(file):
            return True
        standard = file.startswith(STANDARD_FOLDERS) and not PACKAGES.search(file)
        package = str(each.f_globals.get("__name__", "")).partition(".")[0]
        module = package if standard else ""
        library = library or not (standard or package in _HOSTS)
    return False


def _calls_code(frame: FrameType, callee: str) -> bool:
    """Return whether the instruction of a frame is between two of Python's, or calls what is not a framework's."""
    operation = dis.opname[frame.f_code.co_code[max(frame.f_lasti, 0)]]
    # where a thread gives up the interpreter lock on its own, or waits for a lock of the program, or had it since
    if operation in ("RESUME", "BEFORE_WITH") or "JUMP" in operation or operation.startswith(("RETURN_", "YIELD_")):
        return True
    name, _, attribute = callee.partition(".")
    if callee.rpartition(".")[2] in _OF_BUILTINS and attribute:
        return True
    found = _named(frame, name)
    draws = attribute and callee.rpartition(".")[2] in _OF_RANDOM and not {"jax", "tensorflow"} & sys.modules.keys()
    if draws and not isinstance(found, ModuleType):
        return True
    module = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
    # the builtins wait for arrays of a device
    of_host = isinstance(module, str) and module != "builtins" and module.partition(".")[0] in _HOSTS
    return of_host and (bool(attribute) or not isinstance(found, ModuleType))


def _named(frame: FrameType, name: str) -> object:
    """Return what a global name is, or a module that a function of the program imports under it."""
    code, module = frame.f_code, _ALIASES.get(name, name)
    of_function = name in code.co_varnames + code.co_cellvars and module in code.co_names  # with what it imports
    if of_function or (name in code.co_freevars and name in _ALIASES):
        return sys.modules.get(module)
    return frame.f_globals.get(name)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _innermost(frames: Iterator[FrameType]) -> tuple[str | None, str | None]:
    """Return the text of the innermost frame of user code, and the next inner function; leave the outer frames."""
    within: list[CodeType] = []
    for frame in frames:
        code = frame.f_code
        if is_user_code(code.co_filename) or (GENERATED in code.co_filename and _origin(code, frame.f_lineno or 0)):
            inner = _inner(within)
            key = id(code), frame.f_lasti, inner
            if (kept := _texts.get(key)) is None:
                if len(_texts) >= _SPOTS:
                    _texts.clear()
                kept = _texts[key] = code, _text(code, key[1], inner)
            return kept[1], inner
        within.append(code)
    return None, _inner(within)


def _inner(codes: list[CodeType]) -> str | None:
    """Return the outermost function, but for patches around the function that was called."""
    return next((code.co_name for code in reversed(codes) if "__tracebackhide__" not in code.co_varnames), None)


def _origin(code: CodeType, line: int) -> Any:
    """Return what TensorFlow knows of the user's line that AutoGraph made this one of; None if it is of a library."""
    origin = _origins(code.co_filename).get(line)
    return origin if origin is not None and is_user_code(origin.loc.filename) else None


@lru_cache(maxsize=256)
def _origins(file: str) -> dict[int, Any]:
    api = sys.modules.get("tensorflow.python.autograph.impl.api")
    try:
        made = [each for kinds in [*api._TRANSPILER._cache._cache.values()] for each in [*kinds.values()]]  # type: ignore[union-attr]
        maps = [each.source_map for each in made if each.module.__file__ == file]
    except (AttributeError, RuntimeError):  # its internals have changed, or another thread traces
        return {}
    return {at.lineno: origin for lines in maps for at, origin in lines.items()}


@lru_cache(maxsize=4096)
def _text(code: CodeType, instruction: int, inner: str | None) -> str:
    """Return a place for people, such as "train.py:12 in on_epoch_end ← time.sleep"."""
    file, function = code.co_filename, _COMPREHENSION.sub("", code.co_qualname).rpartition(".")[2]
    line, last, start, end = next(islice(code.co_positions(), max(instruction, 0) // 2, None))
    if GENERATED in file and (origin := _origin(code, line or 0)):
        file, line, function = origin.loc.filename, origin.loc.lineno, origin.function_name or function
        callee = _callee(origin.source_code_line.strip())
    else:
        source = _source(file, line or 0, last or 0, start or 0, end)
        callee = _imported(code, instruction) or _callee(source) or inner
    name = "cell" if CELL.search(file) else re.split(r"[\\/]", file)[-1]
    return cut(plain(f"{name}:{line or 0} in {function}" + (f" ← {callee}" if callee else "")), _TEXT)


def _source(file: str, first: int, last: int, start: int, end: int | None) -> str:
    lines = [line.encode() for line in _lines(file)[first - 1 : last]]
    if not lines or not first or end is None:  # -X no_debug_ranges
        return ""
    lines[-1] = lines[-1][:end]  # columns are bytes
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


@lru_cache(maxsize=64)
def _lines(file: str) -> list[str]:
    """Return the lines of a file or cell; `linecache` itself must not change while the program reads it."""
    if len(entry := linecache.cache.get(file, ())) > 2:
        return entry[2]  # type: ignore[misc]
    try:
        with tokenize.open(file) as source:
            return source.readlines()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []


def _imported(code: CodeType, instruction: int) -> str | None:
    """Return the import that an instruction makes: a statement may import several modules."""
    if instruction < 0 or code.co_code[instruction] != dis.opmap["IMPORT_NAME"]:
        return None
    name = next((each.argval for each in dis.get_instructions(code) if each.offset == instruction), None)
    return f"import {name}" if name else None


def _callee(source: str) -> str | None:
    """Return the name of what an expression calls or imports."""
    if match := _IMPORT.match(source):
        return f"import {match[1]}"
    try:
        node = ast.parse(f"({source[:_SOURCE]}\n)", mode="eval").body
        node = node.value if isinstance(node, ast.Await) else node
        return _dotted(node.func) if isinstance(node, ast.Call) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file has changed since
        return None


def _dotted(node: ast.expr) -> str:
    """Return a name without arguments, keys and literals."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func)}()"
    return node.id if isinstance(node, ast.Name) else "…"


_ROWS = 86_400  # at most between two takes


def _launcher(process: psutil.Process) -> psutil.Process:
    """Return the process whose descendants are the job: that of ``tpunb run``, or what started ranks; else itself."""
    job = process
    with suppress(psutil.Error, OSError):
        if "TPUNB_RUN_ANCESTOR" in os.environ and (hook := os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]):
            of_job = takewhile(lambda each: each.environ().get("PYTHONPATH", "").startswith(hook), process.parents())
            job = deque([job, *of_job], 1).pop()
        if job is process and ("LOCAL_RANK" in os.environ or multiprocessing.parent_process()):
            job = process.parent() or process
    return job


class ProcessLoad:
    """The load of this process and its machine; times are by the monotonic clock."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._launcher = _launcher(self._process)
        self._processors = psutil.cpu_count() or 1
        self._children: dict[int, psutil.Process] = {}  # that the last sample saw, such as workers
        self._sampled_ns: int | None = None
        self._rows: deque[tuple[int, float, float, int]] = deque(maxlen=_ROWS)
        self.failure: Exception | None = None  # that ended the sampling

    def sample(self, now_ns: int) -> None:
        """Record the load since the last sample, if that was at least a second ago; for one thread."""
        start_ns = self._sampled_ns
        if self.failure is not None or (start_ns is not None and now_ns - start_ns < LIMITS.load_ns):
            return
        try:  # both are shares of the time since the last call in this thread: the first has no meaning
            cpu = (self._process.cpu_percent() + self._cpu_of_job()) / 100 / self._processors
            machine_cpu = psutil.cpu_percent() / 100
            rss_bytes = self._process.memory_info().rss
        except (psutil.Error, OSError, NotImplementedError) as error:  # a sandbox may hide the figures
            self.failure = error
            return
        self._sampled_ns = now_ns
        if start_ns is not None:
            self._rows.append((start_ns, min(cpu, 1.0), machine_cpu, rss_bytes))

    def _cpu_of_job(self) -> float:
        """Return the percent of a processor of workers and other ranks, of those that the last sample saw too."""
        if self._launcher is not self._process and not self._launcher.is_running():
            self._launcher = self._process
        job = [self._launcher, *self._launcher.children(recursive=True)]
        present = {each.pid: each for each in job if each != self._process}
        self._children = {pid: self._children.get(pid, child) for pid, child in present.items()}
        percent = 0.0
        for child in self._children.values():
            with suppress(psutil.Error):  # it has ended
                percent += child.cpu_percent()
        return percent

    def take(self, host: str, origin_ns: int) -> pl.DataFrame:
        """Return the load since the last call as a frame of ``tpunb.schema.LOAD``."""
        taken = [self._rows.popleft() for _ in range(len(self._rows))]
        data = [(host, (start_ns - origin_ns) * 1000, *figures) for start_ns, *figures in taken]
        return pl.DataFrame(data, schema=schema.LOAD, orient="row")
