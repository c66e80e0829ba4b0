"""Observe a training that was started without a capture, from outside: by its stacks, as py-spy reads them.

A stack that holds a function of a library which a capture listens to is evidence of the event that its hook would have
recorded: looks in a row at one call are one event, with begin and end at the resolution of the looks. What takes less
time may be missed, so that steps cannot be counted: the observation is one step of the rule "whole".
"""

from __future__ import annotations

import ast
import dis
import math
import os
import re
import signal
import socket
import subprocess
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from inspect import CO_GENERATOR
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from warnings import catch_warnings

import polars as pl
import psutil

from tpunb import schema
from tpunb.errors import TpunbError
from tpunb.instrument import LIBRARIES
from tpunb.instrument.registry import Attribute, Library
from tpunb.io import py_spy, run_folder
from tpunb.io.py_spy import Place, Stretch, Thread
from tpunb.io.run_writer import RunWriter
from tpunb.profiler.child_capture import FRAMEWORKS
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.stacks import RawFrame, StackTable, callee_at, source_lines
from tpunb.profiler.stall_sampler import WAITING, ProcessLoad
from tpunb.profiler.standing import Children
from tpunb.profiler.step_clock import ACCOUNT_OF
from tpunb.signals import UNSURE
from tpunb.step_stats.sample_places import is_evaluation
from tpunb.text import plain, short_time
from tpunb.training.program import is_user_code

_WAITS = (None, "data loading")  # accounts in which it may wait for other threads
_STARTUP = ("trace", "compile")  # which follow each other: the work of one line is one event
_LEARNS = ("update", "gradient")  # events in the loop of a training
_TRAINS = (*_LEARNS, "call")  # and in the thread that trains
_MAIN, _STARTED = "MainThread", "Thread._bootstrap"  # name of the one, outermost function of others that Python started
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_EXTENSIONS = re.compile(r"(.+)[\\/]lib-dynload[\\/]")  # in the folder of the standard library


class Observation(NamedTuple):
    """What was seen of a process: its threads, and its load by second."""

    threads: list[Thread]
    load: pl.DataFrame
    started_ns: int  # of the first look, since the epoch
    ended: bool  # whether the process has, too
    loaded: frozenset[str]  # files that it has loaded


class Call(NamedTuple):
    """A call that stacks show, in microseconds since the first look."""

    event: str
    detail: str
    start: int
    end: int
    outer: tuple[Place, ...]  # the frames that called it, outermost first; of what is compiled, with the call of that

    def is_in(self, frames: tuple[Place, ...]) -> bool:
        """Return whether a stack is within the call of what is compiled."""
        call = tuple(each._replace(line=0) for each in frames[len(self.outer) - 1 : len(self.outer)])
        return self.event == "trace" and (*frames[: len(self.outer) - 1], *call) == self.outer


def attach(process: int, seconds: float, where: str | os.PathLike[str]) -> Path | str:
    """Observe a Python process of this machine for a while, and write what is seen as a run; return its path.

    Nothing runs in the process, and nothing stays there; it is stopped for a moment at each look. It may end meanwhile.

    Parameters
    ----------
    process
        Its number.
    seconds
        How long; an interrupt ends it before.
    where
        Folder or URL of the run; an earlier run there is renamed.

    Raises
    ------
    MissingExtra
        Without py-spy.
    TpunbError
        If the process is not there, is of another user, or is not of Python, or its memory may not be read.
    """
    py_spy.program()
    observed = _checked(process)
    writer = RunWriter(where)
    seen = _observed(observed, seconds)
    if not any(thread.stretches for thread in seen.threads):
        raise TpunbError(f"process {process} ended before it was seen twice", hint="attach to one that runs longer")
    writer.open()
    try:
        write(writer, seen, process)
    finally:
        writer.close()
    return writer.source


def _checked(process: int) -> psutil.Process:
    """Return a process of this user."""
    listed = "ps -ef | grep python lists processes"
    try:
        found = psutil.Process(process)
        if hasattr(os, "geteuid") and os.geteuid() not in (0, found.uids().effective):
            raise TpunbError(f"process {process} is of the user {plain(found.username())}", hint="attach as that user")
        if found.status() == psutil.STATUS_ZOMBIE:
            raise psutil.NoSuchProcess(process)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        raise TpunbError(f"there is no process {process} on this machine", hint=listed) from None
    return found


def _observed(process: psutil.Process, seconds: float) -> Observation:
    """Return what is seen of a process, until that time is over, it ends, or an interrupt comes."""
    load, loaded, rate = ProcessLoad(process), frozenset[str](), round(1e9 / LIMITS.stall_idle_ns)
    with suppress(psutil.Error, OSError, AttributeError):  # macOS does not list them
        loaded = frozenset(each.path for each in process.memory_maps())
    with TemporaryDirectory(prefix="tpunb-attach-") as folder:
        file = Path(folder, "stacks.json")
        command = py_spy.recording(process.pid, math.ceil(seconds), rate, file)
        # of a session of its own, so that an interrupt at the terminal arrives here alone
        looks = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while looks.poll() is None:
                load.sample(time.monotonic_ns())
                with suppress(subprocess.TimeoutExpired):
                    looks.wait(LIMITS.poll_s)
        except KeyboardInterrupt:
            looks.send_signal(signal.SIGINT)  # it writes what it has seen
        output = looks.communicate()[0].decode(errors="replace")
        end_ns, now_ns = time.monotonic_ns(), time.time_ns()
        if not file.is_file():
            raise py_spy.failure(process.pid, output)
        threads = py_spy.read(file.read_bytes())
    span_ns = 1000 * max((thread.stretches[-1].end for thread in threads if thread.stretches), default=0)
    of_load = load.take(socket.gethostname(), end_ns - span_ns).filter(pl.col("start_ps") >= 0)
    return Observation(threads, of_load, now_ns - span_ns, not process.is_running(), loaded)


# -- evidence ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65_536)
def _attribute(file: str, function: str) -> Attribute | None:
    """Return the attribute of a library that a function of a file is, if a call of it is an event."""
    if (module := _module(file)) is None:
        return None
    name = f"{module}.{function}"
    library: Library
    for library in (each.LIBRARY for each in LIBRARIES if module.partition(".")[0] == each.LIBRARY.name):
        for attribute in library.attributes:
            if (evidence := attribute.evidence) and name.endswith(evidence.function or f".{attribute.path}"):
                return attribute
    return None


def _module(file: str, folders: Iterable[str] = ()) -> str | None:
    """Return the name of a module that is installed, or in one of these folders."""
    inside = _INSTALLED.split(file)[1:] or [file[len(folder) + 1 :] for folder in folders if file.startswith(folder)]
    return re.sub(r"(?:/__init__)?\.py$", "", inside[-1].replace("\\", "/")).replace("/", ".") if inside else None


def calls(stretches: Sequence[Stretch], is_program: Callable[[str], bool]) -> list[Call]:
    """Return the calls that the stacks of a thread show, in the order of their begins; of a kind the outermost.

    Parameters
    ----------
    stretches
        Stacks of the thread.
    is_program
        Whether a file is of the program.
    """
    current, found, last = dict[tuple[object, ...], Call](), list[Call](), 0
    for stretch in stretches:
        before, current = current, {}
        for call in _shown(stretch, is_program):
            current.setdefault((call.event, call.detail, call.outer), call)
        for key, call in before.items():
            if last == stretch.start and key in current:
                current[key] = call._replace(end=stretch.end)
            elif stretch.end - call.end <= _GAP_US and call.is_in(stretch.frames):
                current[key] = call  # between two parts of it
            else:
                found.append(call)
        last = stretch.end
    return sorted([*found, *current.values()], key=lambda call: (call.start, -call.end))


def _shown(stretch: Stretch, is_program: Callable[[str], bool]) -> Iterator[Call]:
    """Yield the calls that one stack shows, of each kind the outermost."""
    kinds, frames, called = set[str](), stretch.frames, None
    for depth, frame in enumerate(frames):
        attribute = _attribute(frame.file, frame.function)
        if attribute is None or attribute.evidence is None:
            continue
        event = attribute.evidence.event
        kind = "trace" if event in _STARTUP else event
        if kind in kinds:
            continue
        kinds.add(kind)
        outer, detail = frames[:depth], attribute.path
        if kind == "call":
            called = depth
        elif kind == "callback":
            hook = attribute.path.rpartition(".")[2]
            inner = (each.function for each in frames[depth + 1 :] if each.function.endswith(f".{hook}"))
            detail = next((name for name in inner if name != attribute.path), detail)
        elif kind == "trace":
            detail = next((py_spy.text_of(each) for each in reversed(outer) if is_program(each.file)), "the program")
            outer = outer if called is None else (*frames[:called], frames[called]._replace(line=0))
        yield Call(kind, detail.rpartition(".<locals>.")[2], stretch.start, stretch.end, outer)


def _data(stretches: Iterable[Stretch]) -> str | None:
    """Return the kind of the data that most fetches are from; of one fetch, what it calls last says most."""
    times = Counter[str]()
    for start, end, frames in stretches:
        found = (_attribute(frame.file, frame.function) for frame in reversed(frames))
        kinds = (each.evidence.data for each in found if each is not None and each.evidence is not None)
        times.update(dict.fromkeys([*filter(None, kinds)][:1], end - start))
    return next((kind for kind, _ in times.most_common(1)), None)


# -- frames ------------------------------------------------------------------------------------------------------------


class _Frames:
    """Frames of another process in a `StackTable`: from the sources that it runs, which are not run here."""

    def __init__(self, folders: frozenset[str]) -> None:
        self.folders = folders  # of its standard library
        self.table = StackTable()
        self._numbers: dict[tuple[Place, ...], int | None] = {}
        self._sources: dict[str, tuple[list[CodeType], dict[str, Any]]] = {}

    def is_program(self, file: str) -> bool:
        """Return whether a file is of the program."""
        return is_user_code(file) and not file.startswith(tuple(self.folders))

    def of_program(self, stack: Iterable[Place]) -> bool:
        """Return whether a stack has a frame of the program."""
        return any(self.is_program(each.file) for each in stack)

    def number(self, stack: tuple[Place, ...]) -> int | None:
        """Return the number of a stack in the table; None if that is full."""
        if stack not in self._numbers:
            codes = [self._code(each) for each in stack]
            inner = [*zip(stack[1:], codes[1:], strict=True), (None, None)]
            raw = [
                RawFrame(code, _instruction(code, frame.line, *within), self._source(frame.file)[1])
                for frame, code, within in zip(stack, codes, inner, strict=True)
            ]
            self._numbers[stack] = self.table.add(raw[::-1])
        return self._numbers[stack]

    def _code(self, frame: Place) -> CodeType:
        """Return the code of a function; without its source a code that has name and line alone."""
        of_name = [code for code in self._source(frame.file)[0] if frame.function in (code.co_qualname, code.co_name)]
        at_line = (code for code in of_name if any(line == frame.line for *_, line in code.co_lines()))
        name = frame.function.rpartition(".")[2]
        blank = {"co_filename": frame.file, "co_name": name, "co_qualname": frame.function}
        found = next(at_line, None)
        return found or _BLANK.replace(**blank, co_firstlineno=max(frame.line, 1))  # type: ignore[arg-type]

    def _source(self, file: str) -> tuple[list[CodeType], dict[str, Any]]:
        """Return the codes of a file of the program, and what the names of its module are."""
        if file not in self._sources:
            module = _module(file, self.folders) or re.split(r"[\\/]", file)[-1].removesuffix(".py")
            codes, names = list[CodeType](), dict[str, Any](__name__=module)
            if self.is_program(file) and (lines := source_lines(file)):
                with suppress(SyntaxError, ValueError, RecursionError, MemoryError), catch_warnings(action="ignore"):
                    tree = ast.parse("".join(lines))
                    codes = [*_nested(compile(tree, file, "exec", dont_inherit=True))]
                    names |= {name: value for node in tree.body for name, value in _defined(node, module)}
            self._sources[file] = codes, names
        return self._sources[file]


_BLANK = (lambda: None).__code__


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _defined(node: ast.stmt, module: str) -> Iterator[tuple[str, Any]]:
    """Yield the names that a statement of a module defines, each with a value that has the module where it is from."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, SimpleNamespace(__module__=module)
    for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
        top = alias.name if alias.asname else alias.name.partition(".")[0]
        is_module = isinstance(node, ast.Import)
        origin = ModuleType(top) if is_module else SimpleNamespace(__module__=getattr(node, "module", None) or module)
        yield alias.asname or top, origin


def _instruction(code: CodeType, line: int, inner: Place | None, inner_code: CodeType | None) -> int:
    """Return the instruction of a line that ran, as far as known: what calls the inner frame, or the last call.

    A loop asks an inner generator for its next value. Where nothing is called, Python itself runs.
    """
    if code.co_firstlineno == line and code.co_code == _BLANK.co_code:
        return 2  # the first has no line
    there = [each for each in dis.get_instructions(code) if each.positions and each.positions.lineno == line]
    if inner_code is not None and inner_code.co_flags & CO_GENERATOR:
        there = [each for each in there if each.opname == "FOR_ITER"] or there
    called = [each for each in there if each.opname.startswith(("CALL", "BEFORE_WITH", "IMPORT_NAME"))]
    if inner is not None:
        name = inner.function.rpartition(".")[2]
        callees = [callee_at(code.co_filename, tuple(each.positions or ())) or "" for each in called]
        called = [each for each, callee in zip(called, callees, strict=True) if callee.endswith(name)] or called
    jumps = [each for each in there if "JUMP" in each.opname]
    return next((each.offset for each in (*called[-1:], *jumps, *there)), 0)


# -- the run -----------------------------------------------------------------------------------------------------------


def write(writer: RunWriter, seen: Observation, process: int) -> None:
    """Write what was seen of a process as a run.

    Parameters
    ----------
    writer
        Of a folder that is open.
    seen
        What was seen.
    process
        Number of the process.
    """
    folders = {match[1] for file in seen.loaded if (match := _EXTENSIONS.match(file))}
    frames = _Frames(frozenset(folders))
    thread, found = _training((each, calls(each.stretches, frames.is_program)) for each in seen.threads)
    host, end = socket.gethostname(), max(each.stretches[-1].end for each in seen.threads if each.stretches)
    files = seen.loaded or {place.file for each in seen.threads for part in each.stretches for place in part.frames}
    is_program = any(frames.of_program(each.frames) for each in thread.stretches)
    trains = any(map(_LIBRARIES.search, files)) and (is_program or bool(found))
    unsure = list[tuple[int, int]]()
    samples = [(host, *row) for row in _samples(thread, seen.threads, found, frames, unsure)]
    times = [(call.start, call.end, *_account(call)) for call in found if call.event in _ACCOUNTS]
    times += [(*bounds, "other", UNSURE) for bounds in unsure]
    if trains and (since := _standing(thread, seen, frames)) is not None:
        times.append((since, end, schema.STANDING, None))
        begin = datetime.fromtimestamp(seen.started_ns / 1e9 + since / 1e6, UTC).isoformat()
        stands = {"since": begin, "seconds": (end - since) / 1e6, "step": None, "counted": False, "threads": []}
        writer.standing({**stands, "children": _children(process)})
    spans = [(host, start * _US, (until - start) * _US, *of) for start, until, *of in times]
    rows = [(host, 0, "train", 0, end * _US, None, None, None, "whole", None, None, None)] if trains else []
    library = pl.col("file").str.contains("|".join(f"^{re.escape(folder)}" for folder in folders) or "^$")
    home = pl.when(library & ~pl.col("file").str.contains(_INSTALLED.pattern)).then(pl.lit("python")).otherwise("home")
    writer.part(
        0,
        {
            "ticks": pl.DataFrame(rows, run_folder.TICKS, orient="row"),
            "spans": pl.DataFrame(spans, schema.SPANS, orient="row"),
            "stacks": frames.table.unwritten(host).with_columns(home=home),
            "stack_samples": pl.DataFrame(samples, schema.STACK_SAMPLES, orient="row"),
            "load": seen.load.with_columns(host=pl.lit(host)),
        },
    )
    data = _data(thread.stretches)
    writer.facts(
        {
            "name": writer.name,
            "started": datetime.fromtimestamp(seen.started_ns / 1e9, UTC).isoformat(),
            "origin_ns": seen.started_ns,
            "host": host,
            "process": process,
            "observed": "from outside",
            "earlier_run": writer.moved,
            "metadata": {} if data is None else {"data": data},
            "not_known": [*_unknown(found, trains=trains)],
            "causes": True,
            "steps": None,
            "span_ps": end * _US,
            "state": "its process ended" if seen.ended else "finished",
        }
    )


def _children(process: int) -> list[dict[str, Any]]:
    """Return what runs below a process; nothing once it has ended."""
    with suppress(psutil.Error):
        children = Children(psutil.Process(process))
        children.look()
        return children.described()[: LIMITS.most_threads]
    return []


def _account(call: Call) -> tuple[str, str | None]:
    """Return the account of a call, and its detail as a capture records it."""
    if call.event == "trace":
        return _ACCOUNTS[call.event], f"compiling {call.detail}"
    return _ACCOUNTS[call.event], None if call.event == "fetch" else call.detail.removeprefix("Model.")


def _training(threads: Iterable[tuple[Thread, list[Call]]]) -> tuple[Thread, list[Call]]:
    """Return the thread that trains: whose stacks show that for longest, else the main thread, with its calls."""

    def evidence(each: tuple[Thread, list[Call]]) -> tuple[int, bool]:
        return sum(call.end - call.start for call in each[1] if call.event in _TRAINS), each[0].name == _MAIN

    return max((each for each in threads if each[0].stretches), key=evidence)


def _samples(
    thread: Thread,
    threads: Sequence[Thread],
    found: Sequence[Call],
    frames: _Frames,
    unsure: list[tuple[int, int]],
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of ``tpunb.schema.STACK_SAMPLES`` but for the host: where the training was, and its loop.

    `unsure` gets the times in which a compiled function may have waited for code of the program in threads of its
    library, such as a generator of batches, or have computed; and those in which no code of the program was there.
    """
    loops = (call.outer for call in found if call.event in _LEARNS)
    for stack in dict.fromkeys([_around(thread), *loops]):  # as at a mark: that its launch is at a line is not known
        if stack:
            yield 0, thread.number, None, False, "mark", 0, False, frames.number(stack), (), None
    is_program = any(frames.of_program(each.frames) for each in thread.stretches)
    others = [each for each in threads if each is not thread and each.name != _MAIN and each.stretches]
    begins = [[stretch.start for stretch in each.stretches] for each in others]
    for stretch in thread.stretches:
        shown = [*_shown(stretch, frames.is_program)]
        account = next((_ACCOUNTS[call.event] for call in reversed(shown) if call.event in _ACCOUNTS), None)
        compiled = bool(shown) and shown[-1].event == "call" and not frames.is_program(stretch.frames[-1].file)
        between = not frames.of_program(stretch.frames)  # such as cells of a notebook
        looks = max(1, round(1000 * (stretch.end - stretch.start) / LIMITS.stall_idle_ns))
        for look in range(looks):
            at, until = (stretch.start + (stretch.end - stretch.start) * each // looks for each in (look, look + 1))
            beside = [
                each.stretches[last].frames
                for each, starts in zip(others, begins, strict=True)
                if (last := bisect_right(starts, at) - 1) >= 0 and at < each.stretches[last].end
            ]
            of_library = (stack for stack in beside if not stack[0].function.startswith(_STARTED))
            if (compiled and any(map(frames.of_program, of_library))) or (between and is_program):
                unsure.append((at, until))
            busy = [stack for stack in beside if re.split(r"[\\/]", stack[-1].file)[-1] not in _WAITING]
            waits_for = filter(None, map(frames.number, busy[: LIMITS.most_threads] if account in _WAITS else ()))
            yield (
                at * _US,
                thread.number,
                account,
                False,
                None,
                1,
                False,
                frames.number(stretch.frames),
                tuple(waits_for),
                None,
            )


def _around(thread: Thread) -> tuple[Place, ...]:
    """Return the frames of the functions that did not end meanwhile: those of the loop, unless their names evaluate."""
    stacks = [stretch.frames for stretch in thread.stretches]
    same = takewhile(lambda of: len({(each.file, each.function) for each in of}) == 1, zip(*stacks, strict=False))
    trains = takewhile(lambda of: not is_evaluation(of[0].function), same)
    return tuple(of[0] for of in trains)


def _standing(thread: Thread, seen: Observation, frames: _Frames) -> int | None:
    """Return since when the training has been at one line of the program, while the process hardly worked; or None."""
    lines = [
        next((each for each in reversed(stack) if frames.is_program(each.file)), None) for *_, stack in thread.stretches
    ]
    of_last = [*takewhile(lambda line: line == lines[-1], reversed(lines))]
    since = thread.stretches[-len(of_last)].start
    used = seen.load.filter(pl.col("start_ps") >= since * _US)["cpu"].mean()
    is_long = thread.stretches[-1].end - since >= LIMITS.standing_s * 1e6
    idles = isinstance(used, float) and used * (psutil.cpu_count() or 1) < LIMITS.standing_busy
    return since if is_long and idles and lines[-1] is not None and not seen.ended else None


def _unknown(found: Sequence[Call], *, trains: bool) -> Iterator[str]:
    """Yield what is not known without hooks, a line each, with what shows it."""
    shown_by = "\ttpunb run"
    if not trains:
        yield f"whether it trains: no stack shows a program that has loaded {' or '.join(FRAMEWORKS)}{shown_by}"
        return
    every = short_time(LIMITS.stall_idle_ns * 1000)
    yield f"how many steps there were and how long each took: stacks were read every {every}{shown_by}"
    yield f"what ran before: the observation began in the midst of the program{shown_by}"
    events = {call.event for call in found}
    if "trace" in events:
        yield f"which functions were compiled, and why again{shown_by}"
    if "mark" in events:
        yield f"waits for input within compiled steps: they count as productive, or other{shown_by}"


_US = 1_000_000  # picoseconds
_GAP_US = 2 * LIMITS.stall_idle_ns // 1000  # of one look, and what it may be late
_ACCOUNTS = {**ACCOUNT_OF, "fetch": "data loading", "predict": "fit"}
_WAITING = {re.split(r"[\\/]", str(file))[-1] for file in WAITING}
_LIBRARIES = re.compile(rf"[\\/](?:{'|'.join(FRAMEWORKS)})(?:lib)?[\\/]")
