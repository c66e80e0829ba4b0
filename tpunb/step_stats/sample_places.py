"""What sampled stacks mean: the place in the program, and whether it loads data, runs code of its own, or evaluates.

Pure functions of a run's stacks, computed once for each different one as the run is loaded: a rule that changes can be
run again on recorded runs. The recorder keeps raw facts alone (`tpunb.schema.STACKS`).
"""

from __future__ import annotations

import builtins
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.text import cut, plain

CELL = re.compile(r"<ipython-input-|[\\/](?:ipykernel_|xpython_|ipython-input-)\d")
GENERATED = "__autograph_generated_file"
PACKAGES = re.compile(rf"[\\/](?:site-packages|dist-packages|debugpy|pydevd)[\\/]|{GENERATED}")
_HOOK = re.compile(r"[\\/]sitecustomize\.py$")  # of Python's start, and of ``tpunb run``, never of the program

_DEPTH = 256  # frames of a stack
_TEXT = 160  # characters of a place
_PLACES = 8  # of a stall, those with most samples
WORKS = 0.5  # share of the time in which a thread that works, rather than waits, has or awaits a processor
_STANDS_FOR = 100  # samples that a look stands for at most

_HOSTS = {*sys.stdlib_module_names, "numpy", "scipy", "pandas", "polars", "PIL", "cv2", "sklearn", "skimage"}
_ALIASES = {"np": "numpy", "pd": "pandas", "pl": "polars", "sp": "scipy"}
_OF_DATA = {  # modules of the standard library that call libraries back, but not to compute
    *("base64", "copy", "csv", "gzip", "hashlib", "http", "json", "logging", "pickle", "pprint", "socket", "ssl"),
    *("statistics", "subprocess", "tarfile", "urllib", "zipfile"),
}
_IMPORTS = "<frozen importlib"
_NO_STEPS = re.compile(r"[\\/]torch[\\/](_tensor_str|serialization)\.py$")  # prints, saves and loads tensors
_COMPREHENSION = re.compile(r"((\.<locals>)?\.<(listcomp|genexpr|dictcomp|setcomp)>)+$")
_OF_ARRAYS = {"add", "clear", "copy", "index", "sort", "split", "update", "values"}
_OF_BUILTINS = {*dir(str), *dir(list), *dir(dict), *dir(set), *dir(io.IOBase), "write"} - _OF_ARRAYS
"""Names of methods that arrays and tensors do not have."""
_BUILTINS = {*dir(builtins)}
_OF_RANDOM = {"choice", "integers", "normal", "permutation", "random", "shuffle", "standard_normal", "uniform"}
"""Names of methods of generators of random numbers of NumPy and Python; PyTorch's have other names."""
_DRAW_LIKE_NUMPY = {"jax", "tensorflow"}  # frameworks whose generators have these methods, too
_CALLS = re.compile(r"torch[\\/](?:nn[\\/]modules|utils[\\/]_contextlib)")  # what calls a model of the program
_MODEL = re.compile(r"[\\/]torch[\\/]nn[\\/]modules[\\/]module\.py$")
_CALLED = {"call", "gradient"}  # launches of compiled functions, which are known once the call is over
_TRAINS = {"fit", "train"}  # methods of a library that train, and evaluate on their own
_EVALUATES = re.compile(r"(^|_)(evaluat|validat|eval(_|$)|valid(_|$))", re.IGNORECASE)

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_EVALUATION = {
    *("eval", "evaluate", "evaluates", "evaluation", "test", "tests"),
    *("val", "valid", "validate", "validates", "validation"),
    *("predict", "predicts", "prediction", "predictions", "infer", "infers", "inference"),
}


def is_evaluation(name: str) -> bool:
    """Return whether a word of a name says that a function evaluates, which counts where nothing else does.

    >>> names = "eval_step", "val_step", "testModel", "latest_step", "retrieval", "value_and_grad", "contest"
    >>> [name for name in names if is_evaluation(name)]
    ['eval_step', 'val_step', 'testModel']
    """
    return not _EVALUATION.isdisjoint(word.lower() for word in _WORDS.findall(name))


@lru_cache(4096)
def is_program(file: str, home: str | None) -> bool:
    """Return whether a file is of the program; `home` is the interpreter's folder that has it, as in STACKS.

    >>> is_program("/home/a/train.py", None), is_program("/usr/lib/python3.11/queue.py", "python")
    (True, False)
    """
    if CELL.search(file):
        return True
    if file.startswith("<"):
        return file in ("<stdin>", "<string>")
    return home is None and not PACKAGES.search(file) and not _HOOK.search(file)


class Frame(NamedTuple):
    """A frame of a stack: the columns of ``tpunb.schema.STACKS`` from ``file`` on."""

    file: str
    line: int | None
    function: str
    first_line: int | None
    module: str | None
    home: str | None
    generator: bool | None
    hidden: bool | None
    converted: bool | None
    operation: str | None
    callee: str | None
    callee_scope: str | None
    callee_module: str | None

    @property
    def name(self) -> str:
        """The function without the path to it."""
        return self.function.rpartition(".")[2]

    @property
    def code(self) -> tuple[object, ...]:
        """What is the same for all frames of a function."""
        return self.file, self.first_line, self.function

    @property
    def of_program(self) -> bool:
        """Whether the program runs, not a library, nor what one has made of the program."""
        return not self.converted and is_program(self.file, self.home)

    @property
    def of_package(self) -> bool:
        """Whether it is of a library that is installed."""
        return bool(self.converted or PACKAGES.search(self.file))

    @property
    def package(self) -> str:
        """The outermost package of the module."""
        return (self.module or "").partition(".")[0]


Stack = Sequence[Frame]
"""Frames of a thread, innermost first."""


class _Meaning(NamedTuple):
    """What a sample means: the columns of ``tpunb.schema.SAMPLES`` from ``place`` on."""

    place: str | None
    loads: bool
    code: bool
    evaluates: bool
    launches: bool = False
    model: str | None = None
    python: bool = False


class Stacks:
    """The stacks of a run by number, and what is known of all of them: from STACKS and STACK_SAMPLES."""

    def __init__(self, table: pl.DataFrame, looks: pl.DataFrame | None = None) -> None:
        rows = table.drop_nulls(["stack", "file", "function"]).select("stack", "caller", *Frame._fields)
        self._frames = {number: (caller, Frame(*facts)) for number, caller, *facts in rows.iter_rows()}
        self._draws_like_numpy = bool(_DRAW_LIKE_NUMPY & {frame.package for _, frame in self._frames.values()})
        self._loop: set[tuple[object, ...]] = set()  # functions in which a step was launched
        self._calls: set[tuple[object, ...]] = set()  # lines that call compiled functions, each with the function
        if looks is not None:
            for number, event in looks.drop_nulls("event").sort("start_ps").select("stack", "event").iter_rows():
                self.launched(number, event)

    def stack(self, number: int | None) -> Stack:
        """Return the stack of this number; an empty one if it is not there."""
        frames = list[Frame]()
        while number in self._frames and len(frames) < _DEPTH:
            caller, frame = self._frames[number]
            frames.append(frame)
            number = caller if caller is None or caller < number else None  # a damaged run may have a circle
        return frames

    def launched(self, number: int | None, event: str) -> None:
        """Take the functions of a stack for those that the loop is in, unless they may evaluate."""
        stack = self.stack(number)
        if event in _CALLED and (caller := next((frame for frame in stack if frame.of_program), None)) is not None:
            self._calls.add((caller.code, caller.line, caller.callee))
        new = [frame for frame in stack if frame.code not in self._loop]
        # what updates parameters, or what the program marks, trains whatever its name is
        if event != "call" or not self._loop or not any(is_evaluation(frame.name) for frame in new):
            self._loop |= {frame.code for frame in new}

    def place(self, number: int | None, others: Sequence[int] | None, account: str | None) -> str | None:
        """Return where a thread is, and the one that it waits for, or that alone if it waits for data in a library."""
        stack = self.stack(number)
        (text, inner), waits = _innermost(iter(stack)), account is None and _waits(stack)
        if account not in (None, "data loading") or (text is not None and inner is None and not waits):
            return text
        at_work = Counter[str]()
        for other in map(self.stack, others or ()):
            frames = iter(other)
            busy = _innermost(frames)[0]
            # a thread that no library started may be unrelated, such as one that logs
            if busy and (account or (not _waits(other) if waits else any(frame.of_package for frame in frames))):
                at_work[busy] += 1
        if not at_work:
            return text
        busy = at_work.most_common(1)[0][0]
        return cut(f"{text} waits for {busy}", _TEXT) if waits else busy

    def meaning(
        self,
        number: int | None,
        others: Sequence[int] | None,
        account: str | None,
        computes: bool | None,
        works: bool | None = None,
    ) -> _Meaning | None:
        """Return what a sample means; None if its stack is not known."""
        stack = self.stack(number)
        evaluates = self.evaluates(stack)
        if computes:  # then the host does what it likes, if that does not evaluate
            return _Meaning(_innermost(iter(stack))[0], False, False, evaluates)
        if not stack:
            return None
        place = self.place(number, others, account)
        within = takewhile(lambda frame: not frame.of_program, stack)
        if place and " ← import " not in place and any(frame.file.startswith(_IMPORTS) for frame in within):
            place = f"{place} (imports)"  # a library, within a call
        code = not evaluates and self.is_code(stack, works=bool(works))
        return _Meaning(
            place, self.loads(stack), code, evaluates, self.launches(stack), _model(stack), _is_python(stack)
        )

    def loads(self, stack: Stack) -> bool:
        """Return whether a generator of the program runs that the loop asks for its next value."""
        within = False
        for frame in stack:
            asks = within and not frame.generator and frame.of_program
            # that of an expression within a call runs for the call
            if asks and (frame.callee == "next" or (frame.operation == "FOR_ITER" and frame.code in self._loop)):
                return True
            within = bool(frame.generator) and frame.code not in self._loop and (within or frame.of_program)
        return False

    def launches(self, stack: Stack) -> bool:
        """Return whether the program is in a call that launched a step, or right before or after it."""
        inner = next((frame for frame in stack if frame.of_program), None)
        if inner is None:
            return False
        return any(call[:2] == (inner.code, inner.line) and inner.callee in (None, call[2]) for call in self._calls)

    def evaluates(self, stack: Stack) -> bool:
        """Return whether a function of the program evaluates, within what the loop is in, or a library that has one."""
        within_program = False
        for frame in stack:
            if not within_program and not frame.converted and frame.name in _TRAINS:  # of a library
                return False
            if frame.of_program:
                within_program = True
                if frame.code in self._loop or _EVALUATES.search(frame.name):
                    return frame.code not in self._loop
            elif within_program and frame.of_package and not _CALLS.search(frame.file):
                return False
        return False

    def is_code(self, stack: Stack, *, works: bool = False) -> bool:
        """Return whether code of the program runs, or of what cannot be a framework that computes for it."""
        library, module = False, ""  # whether a library is within, and the module that the program called
        for frame in stack:
            if frame.of_program:
                if module in _OF_DATA:
                    return True
                return not library and (frame is not stack[0] or self.calls_code(frame, works=works))
            if _NO_STEPS.search(frame.file):
                return True
            standard = frame.home == "python" and not frame.of_package
            module = frame.package if standard else ""
            library = library or not (standard or frame.package in _HOSTS)
        return False

    def calls_code(self, frame: Frame, *, works: bool = False) -> bool:
        """Return whether the instruction of a frame is between two of Python's, or calls what is not a framework's."""
        operation, callee = frame.operation or "", frame.callee or ""
        # where a thread gives up the interpreter lock on its own, or waits for a lock of the program, or had it since
        if operation in ("RESUME", "BEFORE_WITH") or "JUMP" in operation or operation.startswith(("RETURN_", "YIELD_")):
            return True
        name, _, attribute = callee.partition(".")
        method, of_module = callee.rpartition(".")[2], frame.callee_scope == "module"
        if attribute and method in _OF_BUILTINS:
            return True
        if attribute and method in _OF_RANDOM and not self._draws_like_numpy and not of_module:
            return True
        module = frame.callee_module
        if frame.callee_scope == "free" and name in _ALIASES:
            module, of_module = _ALIASES[name], True
        is_builtin = frame.callee_scope == "global" and module is None and name in _BUILTINS
        if module == "builtins" or is_builtin:  # which wait for arrays of a device
            return works
        of_host = module is not None and module.partition(".")[0] in _HOSTS
        return of_host and (bool(attribute) or not of_module)


def _is_python(stack: Stack) -> bool:
    """Return whether no library runs within the program's innermost function, but Python's."""
    for frame in stack:
        if frame.of_program:
            return True
        if frame.of_package or frame.home != "python":
            return False
    return False


def _innermost(frames: Iterator[Frame]) -> tuple[str | None, str | None]:
    """Return the text of the innermost frame of user code, and the next inner function; leave the outer frames."""
    inner = None
    for frame in frames:
        if frame.converted or frame.of_program:
            return _text(frame, inner), inner
        inner = inner if frame.hidden else frame.name  # patches around the function that was called have no say
    return None, inner


def _model(stack: Stack) -> str | None:
    """Return the line of the program that called the outermost model; None if none runs, or a library called it."""
    frames = [frame for frame in reversed(stack) if not frame.hidden]
    callers = (caller for caller, frame in pairwise(frames) if _MODEL.search(frame.file))
    outermost = next(callers, None)
    return _text(outermost, None) if outermost is not None and outermost.of_program else None


def _waits(stack: Stack) -> bool:
    """Return whether a thread waits for a lock, or what Python makes of locks, such as queues."""
    for frame in stack:
        if frame.of_program:
            of_lock = frame.operation == "BEFORE_WITH" or (frame.callee or "").endswith(".acquire")
            return frame is not stack[0] or of_lock
        if frame.home != "python" or frame.module not in ("threading", "queue"):
            return False
    return False


def _text(frame: Frame, inner: str | None) -> str:
    """Return a place for people, such as "train.py:12 in on_epoch_end ← time.sleep"."""
    callee = frame.callee or (None if frame.converted else inner)  # inner functions of a converted one are AutoGraph's
    return cut(line_of(frame.file, frame.line, frame.function) + (f" ← {plain(callee)}" if callee else ""), _TEXT)


def line_of(file: str, line: int | None, function: str) -> str:
    """Return a line for people, without what it calls.

    >>> line_of("/home/a/train.py", 12, "main.<locals>.log")
    'train.py:12 in log'
    """
    name = "cell" if CELL.search(file) else re.split(r"[\\/]", file)[-1]
    return plain(f"{name}:{line or 0} in {_COMPREHENSION.sub('', function).rpartition('.')[2]}")


def placed_samples(looks: pl.DataFrame, stacks: Stacks) -> pl.DataFrame:
    """Return ``tpunb.schema.SAMPLES`` from STACK_SAMPLES; looks at unknown stacks are left out."""
    rows = looks.filter(pl.col("event").is_null())
    rows = rows.with_columns(works=pl.col("worked") > WORKS)
    rows = _with(rows, ["stack", "others", "account", "computes", "works"], stacks.meaning, _Meaning._fields)
    rows = rows.drop_nulls("evaluates")
    repeated = np.repeat(np.arange(rows.height), rows["stands_for"].fill_null(1).clip(0, _STANDS_FOR).to_numpy())
    return rows.select(*schema.SAMPLES)[repeated]


def placed_stalls(stalls: pl.DataFrame, stacks: Stacks) -> pl.DataFrame:
    """Return ``tpunb.schema.STALLS`` from STACK_STALLS: the places of a stall with most samples."""
    stall = ["host", "start_ps", "dur_ps", "step", "kind"]
    rows = _with(stalls, ["stack", "others", "kind"], lambda *key: (stacks.place(*key),), ("place",))
    by_place = rows.group_by(*stall, "place", maintain_order=True)
    rows = by_place.agg(pl.col("share", "samples").sum(), pl.col("locked").any())
    most = rows.sort("samples", descending=True, maintain_order=True).group_by(stall, maintain_order=True).head(_PLACES)
    return most.sort("start_ps", maintain_order=True).select(*schema.STALLS)


def _with(
    rows: pl.DataFrame, keys: list[str], judge: Callable[..., tuple[Any, ...] | None], names: Sequence[str]
) -> pl.DataFrame:
    """Return rows with the columns that `judge` gives for their keys, asked once for each different one."""
    different = rows.select(keys).unique(maintain_order=True)
    answers = [judge(*key) or (None,) * len(names) for key in different.iter_rows()]
    columns = {name: schema.SAMPLES[name] for name in names}
    answered = different.hstack(pl.DataFrame(answers, columns, orient="row"))
    return rows.join(answered, on=keys, how="left", nulls_equal=True, maintain_order="left")
