"""Stacks of other Python processes, which py-spy reads from their memory: no code runs in them, and nothing stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tpunb.errors import BadProfile, MissingExtra, TpunbError, install
from tpunb.step_stats.sample_places import CELL, is_program
from tpunb.text import cut, plain

_THREAD = re.compile(r"thread \(\w+\)(?:: (.*))?", re.DOTALL)
_ANSWERS_S = 10.0  # of `dump`: it takes 0.1 to 1 s, to read the symbols of large libraries
_STARTS = "BaseProcess._bootstrap"  # of `multiprocessing`: the frames around it are those of the parent
_LIBRARY = re.compile(r"[\\/](?:lib[\\/]python\d|Lib[\\/]|tpunb[\\/](?:io|profiler|instrument)[\\/])")
_LONGEST = 120  # characters of a line
_HINTS = (
    (r"(?i)permission", "run it with sudo; in a container, start that with --cap-add SYS_PTRACE"),
    (r"(?i)python version|interpreter", "give the number of the Python process itself: ps -ef | grep python"),
)


class Place(NamedTuple):
    """What is read of a frame, by names that the process gives: they are not trusted."""

    file: str
    line: int
    function: str  # qualified, from Python 3.11 on


class Stretch(NamedTuple):
    """A time in which each look at a thread found the same stack, in microseconds since the first look."""

    start: int
    end: int
    frames: tuple[Place, ...]  # outermost first


class Thread(NamedTuple):
    """A thread of another process."""

    number: int
    name: str
    stretches: list[Stretch]  # in order


def program() -> str:
    """Return the path of py-spy; raise MissingExtra without it."""
    beside = shutil.which(
        "py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), sysconfig.get_path("scripts")])
    )
    if (found := beside or shutil.which("py-spy")) is None:
        raise MissingExtra("py-spy is not installed", hint=install("attach"))
    return found


def recording(process: int, seconds: float, rate: int, file: Path) -> list[str]:
    """Return the command that looks at all threads of a process, `rate` times a second, and then writes a file."""
    options = ["--idle", "--threads", "--full-filenames", "--format", "chrometrace", "--output", str(file)]
    return [program(), "record", "--pid", str(process), "--duration", f"{seconds:.0f}", "--rate", str(rate), *options]


def failure(process: int, output: str) -> TpunbError:
    """Return why py-spy could not look at a process, from what it printed."""
    reason = next((line for line in output.splitlines() if line.startswith("Error:")), "Error: it printed no reason")
    text = cut(plain(reason.removeprefix("Error:").strip()), 160)
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, output)), "py-spy dump --pid may say more")
    return TpunbError(f"py-spy cannot look at process {process}: {text}", hint=hint)


def read(trace: bytes) -> list[Thread]:
    """Return the threads of a Chrome trace that py-spy has recorded.

    Raises
    ------
    BadProfile
        If the bytes are no such trace.
    """
    try:
        events = json.loads(trace)
        origin = min((int(event["ts"]) for event in events), default=0)
        threads, stacks, since = dict[int, Thread](), dict[int, list[Place]](), dict[int, int]()
        for event in events:
            number, at = int(event["tid"]), int(event["ts"]) - origin
            place = Place(str(event["args"]["filename"]), int(event["args"]["line"]), str(event["name"]))
            stack = stacks.setdefault(number, [])
            if at > since.get(number, at) and stack:  # the first of several changes at once
                stretch = Stretch(since[number], at, tuple(stack[1:]))
                threads[number].stretches.extend([stretch] if stretch.frames else [])
            since[number] = at
            if event["ph"] == "B":
                if not stack:
                    named = _THREAD.fullmatch(place.function)
                    threads.setdefault(number, Thread(number, (named and named[1]) or "", []))
                stack.append(place)
            else:
                stack.pop()
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError) as error:
        raise BadProfile(f"no trace of py-spy: {type(error).__name__}", hint="record it again") from error
    return [*threads.values()]


def line(process: object, *, locked: bool = False) -> str | None:
    """Return the innermost line of the program of a process of this machine now; None if that is not known.

    It is of the thread that holds the interpreter lock, else of the main thread, unless `locked`; in a process that
    another started, of what it does itself.
    """
    with suppress(OSError, TpunbError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        command = [program(), "dump", "--pid", str(int(process)), "--json", "--full-filenames"]  # type: ignore[call-overload]
        done = subprocess.run(command, capture_output=True, timeout=_ANSWERS_S, check=True)
        threads: list[dict[str, Any]] = json.loads(done.stdout)
        threads = [each for each in threads if each["owns_gil"] or not locked]
        first = min(threads, key=lambda each: (not each["owns_gil"], each["thread_name"] != "MainThread"))
        frames = takewhile(lambda each: each["name"] != _STARTS, first["frames"])
        places = [Place(str(each["filename"]), int(each["line"]), str(each["name"])) for each in frames]
        found = next((each for each in places if is_program(each.file, None) and not _LIBRARY.search(each.file)), None)
        return None if found is None else text_of(found)
    return None


def text_of(place: Place) -> str:
    """Return a line for people, such as "train.py:12 in step"."""
    name = "cell" if CELL.search(place.file) else re.split(r"[\\/]", place.file)[-1]
    return cut(plain(f"{name}:{place.line} in {place.function.rpartition('.')[2]}"), _LONGEST)
