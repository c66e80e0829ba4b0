"""Stacks of threads as raw facts, each frame once below its caller: a tree that is written to the run folder.

What a stack means is decided as the run is loaded, in `tpunb.step_stats.sample_places`.
"""

from __future__ import annotations

import ast
import dis
import gc
import linecache
import re
import sys
import threading
import tokenize
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import CO_GENERATOR
from itertools import accumulate, chain, islice, pairwise, repeat, starmap
from operator import attrgetter, itemgetter
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import polars as pl

from tpunb import schema
from tpunb.instrument.registry import loaded
from tpunb.profiler.limits import LIMITS
from tpunb.step_stats.sample_places import GENERATED
from tpunb.training.program import home_of, is_user_code

_DEPTH = 256  # frames of a stack
_SOURCE = 10_000  # characters of an expression that is parsed

_IMPORT = re.compile(r"\s*(?:import|from)\s+([\w.]+)")

_reading = threading.Lock()


class RawFrame(NamedTuple):
    """What is read of a frame, by the names that it has there: it holds neither the frame nor its variables."""

    f_code: CodeType
    f_lasti: int
    f_globals: dict[str, Any]
    f_lineno: int | None = None  # of another thread


_RAW = attrgetter(*RawFrame._fields)


def stacks() -> dict[int, list[RawFrame]]:
    """Return the frames of each thread but the calling one, innermost first, without what a collection calls in it.

    No frame of another thread is held while that may run: its variables would outlive their function, and end in this
    thread. A guard of PyTorch in one of them, as in the text of each tensor, then resets the state of this thread, and
    the program fails in a later operation. So each stack is read in one call into C, which no other thread interrupts.

    Before Python 3.11.9 a collection of garbage while frames are read may stop all threads forever
    (https://github.com/python/cpython/issues/106883).
    """
    with _reading:
        collects = gc.isenabled()
        gc.disable()
        try:
            threads = {*chain.from_iterable(_current_frames())} - {threading.get_ident()}
            frames = {thread: stack for thread in threads if (stack := _stack_of(thread))}
        finally:
            if collects:
                gc.enable()
    callbacks = {code for each in gc.callbacks if (code := getattr(each, "__code__", None)) is not None}
    return {thread: stack[_in_collection(stack, callbacks) :] for thread, stack in frames.items()}


def _current_frames() -> Iterator[dict[int, FrameType]]:
    """Yield the innermost frames once, for an iterator in C that holds no frame."""
    return starmap(sys._current_frames, [()])


def _stack_of(thread: int) -> list[RawFrame]:
    """Return the frames of a thread, innermost first, none if it has ended."""
    found = deque[tuple[CodeType, int, dict[str, Any], int | None]]()
    steps = chain(map(itemgetter(thread), _current_frames()), repeat("f_back", _DEPTH - 1))
    with suppress(AttributeError, KeyError):  # beyond the outermost frame
        found.extend(map(_RAW, accumulate(steps, getattr)))
    return [RawFrame(*raw) for raw in found]


def _in_collection(stack: list[RawFrame], callbacks: set[CodeType]) -> int:
    """Return how many of the innermost frames a collection of garbage calls."""
    called = (number + 1 for number, frame in enumerate(stack[:4]) if frame.f_code in callbacks)
    return min(next(called, 0), len(stack) - 1)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, as far as a stack is read."""
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


class StackTable:
    """The different stacks of a run; any thread may add one, the program's at no place where it reads sources."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # most looks find a stack as an earlier one did: by caller, code and instruction
        self._numbers: dict[tuple[int | None, int, int], int] = {}
        self._rows: dict[tuple[object, ...], int] = {}  # of ``tpunb.schema.STACKS``, from ``caller`` on
        self._codes: dict[int, CodeType] = {}  # kept, so that no other code has an address of theirs
        self._written = 0

    def add(self, frames: Iterable[FrameType | RawFrame]) -> int | None:
        """Return the number of a stack, innermost frame first; None if it is new and the table full."""
        number: int | None = None
        with self._lock:
            for frame in reversed([*frames]):
                key = number, id(frame.f_code), frame.f_lasti
                child = self._numbers.get(key)
                if child is None and (child := self._new(key, frame)) is None:
                    return None
                number = child
        return number

    def _new(self, key: tuple[int | None, int, int], frame: FrameType | RawFrame) -> int | None:
        caller, address, instruction = key
        row = caller, *_facts(frame.f_code, instruction, frame.f_globals)
        if row not in self._rows and len(self._rows) >= LIMITS.most_frames:
            return None
        if len(self._numbers) >= 2 * LIMITS.most_frames:  # different instructions of one line
            self._numbers.clear()
            self._codes.clear()
        self._codes[address] = frame.f_code
        number = self._numbers[key] = self._rows.setdefault(row, len(self._rows))
        return number

    def unwritten(self, host: str) -> pl.DataFrame:
        """Return the rows that are not `written` yet, as a frame of ``tpunb.schema.STACKS``."""
        with self._lock:
            new = [(host, number, *row) for row, number in islice(self._rows.items(), self._written, None)]
        return pl.DataFrame(new, schema=schema.STACKS, orient="row")

    def written(self, rows: int) -> None:
        """Count rows as written, in the order of `unwritten`."""
        self._written += rows


def _facts(code: CodeType, instruction: int, names: dict[str, Any]) -> tuple[object, ...]:
    """Return the columns of ``tpunb.schema.STACKS`` from ``file`` on, of a function with these globals."""
    file, function = code.co_filename, code.co_qualname
    lines = next(islice(code.co_positions(), max(instruction, 0) // 2, None), (None,) * 4)
    line, origin, home, called = lines[0], None, home_of(file), tuple[str | None, ...]()
    if GENERATED in file and (origin := _origin(file, line or 0)) is not None:
        file, line, function = origin.loc.filename, origin.loc.lineno, origin.function_name or function
        home, called = home_of(file), (None, _callee(origin.source_code_line.strip()), None, None)
    elif is_user_code(file):
        callee = _imported(code, instruction) or callee_at(file, lines)
        scope = _scope(code, names, (callee or "").partition(".")[0]) if callee else (None, None)
        called = dis.opname[code.co_code[max(instruction, 0)]], callee, *scope
    module = dict.get(names, "__name__")
    return (
        *(_text(file), line, _text(function), code.co_firstlineno, _text(module) if isinstance(module, str) else None),
        *(home, bool(code.co_flags & CO_GENERATOR), "__tracebackhide__" in code.co_varnames, origin is not None),
        *(called or (None,) * 4),
    )


def _text(name: str) -> str:
    return name[: LIMITS.longest_name].encode(errors="replace").decode()


def _scope(code: CodeType, names: dict[str, Any], name: str) -> tuple[str, str | None]:
    """Return what a name of the program is, and the module that it is or that defines it."""
    if name in code.co_freevars:
        return "free", None
    if name in code.co_varnames + code.co_cellvars:
        imports = (last.argval for last, stored in pairwise(dis.get_instructions(code)) if _binds(last, stored, name))
        module = next(imports, None)
        return ("local", None) if module is None else ("module", module)
    value = dict.get(names, name)
    try:
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    except Exception:  # noqa: BLE001  an object of the program may raise anything
        module = None
    return "module" if isinstance(value, ModuleType) else "global", _text(module) if isinstance(module, str) else None


def _binds(last: dis.Instruction, stored: dis.Instruction, name: str) -> bool:
    """Return whether two instructions import a module under a name: Python 3.13 may store and load in one."""
    names = stored.argval if isinstance(stored.argval, tuple) else (stored.argval,)
    return last.opname == "IMPORT_NAME" and stored.opname.startswith("STORE_") and names[0] == name


def _origin(file: str, line: int) -> Any:
    """Return what TensorFlow knows of the user's line that AutoGraph made this one of; None if it is of a library."""
    origin = _origins(file).get(line)
    return origin if origin is not None and is_user_code(origin.loc.filename) else None


@lru_cache(maxsize=256)
def _origins(file: str) -> dict[int, Any]:
    api = loaded("tensorflow.python.autograph.impl.api")
    try:
        made = [each for kinds in [*api._TRANSPILER._cache._cache.values()] for each in [*kinds.values()]]  # type: ignore[union-attr]
        maps = [each.source_map for each in made if each.module.__file__ == file]
    except (AttributeError, RuntimeError):  # its internals have changed, or another thread traces
        return {}
    return {at.lineno: origin for lines in maps for at, origin in lines.items()}


def callee_at(file: str, lines: tuple[int | None, ...]) -> str | None:
    """Return the name of what an instruction calls, by its lines and columns as `dis` has them."""
    return _callee(_source(file, *lines))


def _source(file: str, first: int | None, last: int | None, start: int | None, end: int | None) -> str:
    lines = [line.encode() for line in source_lines(file)[(first or 0) - 1 : last or 0]]
    if not lines or not first or end is None:  # -X no_debug_ranges
        return ""
    lines[-1] = lines[-1][:end]  # columns are bytes
    lines[0] = lines[0][start or 0 :]
    return b"".join(lines).decode(errors="replace")


@lru_cache(maxsize=64)
def source_lines(file: str) -> Sequence[str]:
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
        return _text(_dotted(node.func)) if isinstance(node, ast.Call) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file has changed since
        return None


def _dotted(node: ast.expr) -> str:
    """Return a name without arguments, keys and literals."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func)}()"
    return node.id if isinstance(node, ast.Name) else "…"
