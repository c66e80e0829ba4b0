"""Windows recorded earlier, given again as they are."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.io import places, raw_files
from tpunb.io.places import PathLike, Place
from tpunb.sources.frameworks import annotation

_ENDINGS = (".xplane.pb", ".xplane.pb.gz")


class Replay:
    """The raw windows of an earlier run, in their order, bytes and times as they were recorded.

    Each folder that holds windows is one: of several hosts it gives one each. Only the window that is asked for is in
    memory.

    Parameters
    ----------
    dir
        A run folder that kept raw windows, a profiler's logdir, or one ``*.xplane.pb``; local or a URL.
    loop
        Whether the first window comes again after the last, without end.
    pace
        How long a window takes: 1 as long as it is asked for, 0 no time at all.

    >>> Replay("runs/bert", loop=True)
    Replay('runs/bert', loop=True)
    """

    def __init__(self, dir: PathLike, *, loop: bool = False, pace: float = 1.0) -> None:  # noqa: A002  as in `capture`
        if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace < math.inf:
            raise ValueError(f"The pace parameter of Replay must be in [0, inf). Got {pace!r} instead.")
        self.dir, self.loop, self.pace = dir, loop, pace
        self._windows: list[dict[str, Place]] = []
        self._hosts: list[str] = []
        self._next = 0
        self._ended = threading.Event()

    def __repr__(self) -> str:
        others = [f"loop={self.loop}"] * self.loop + [f"pace={self.pace}"] * (self.pace != 1)
        return f"Replay({', '.join([repr(self.dir), *others])})"

    def __len__(self) -> int:
        """Return how many windows there are; 0 before `start`."""
        return len(self._windows)

    def start(self) -> None:
        """Find the windows.

        Raises
        ------
        ProfileNotFound
            When nothing is there, or no raw window.
        """
        where = places.find(self.dir)
        files = where.below() if where.is_folder else {where.name: where}
        found: dict[str, dict[str, Place]] = defaultdict(dict)
        for name in sorted(files):
            folder, _, file = name.rpartition("/")
            if file.endswith(_ENDINGS) and not any(part.startswith(".") for part in name.split("/")):
                found[folder][raw_files.stem(file)] = files[name]
        if not found:
            hint = "a run keeps its windows with keep='all'" if "run.json" in files else None
            raise ProfileNotFound(f"{where} holds no raw window: no file ends in .xplane.pb", hint=hint)
        self._windows = [found[folder] for folder in sorted(found, key=_by_number)]
        self._hosts = sorted({host for window in self._windows for host in window})
        self._next = 0

    def facts(self) -> dict[str, Any]:
        """Return where the windows come from, and of several hosts their names."""
        return {"replayed": str(self.dir), **({"workers": self._hosts} if self._is_shared else {})}

    @property
    def _is_shared(self) -> bool:
        return any(len(window) > 1 for window in self._windows)

    def window(self, seconds: float) -> bytes | Mapping[str, bytes | TpunbError]:
        """Return the next window, after `seconds` times the pace.

        Raises
        ------
        TpunbError
            After the last, unless they come again; when the file of a window cannot be read.
        """
        self._ended.clear()
        if self._next >= len(self._windows):
            raise TpunbError(
                f"no more windows: {self.dir} held {len(self)}", hint=f"Replay({self.dir!r}, loop=True) begins again"
            )
        if self.pace:
            self._ended.wait(self.pace * seconds)
        window = self._windows[self._next]
        self._next += 1
        if self.loop:
            self._next %= len(self)
        if not self._is_shared:
            return places.read(next(iter(window.values()))).tobytes()
        return {host: _read(window[host]) if host in window else _missing(host) for host in self._hosts}

    def stop(self) -> None:
        """End the wait for the next window; it comes at once."""
        self._ended.set()

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Open the annotation of a step by the framework in use."""
        return annotation(mark, number)


def _by_number(folder: str) -> list[tuple[int, str]]:
    """Return what sorts names by the numbers in them: 9 comes before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", folder)]


def _read(file: Place) -> bytes | TpunbError:
    try:
        return places.read(file).tobytes()
    except TpunbError as error:
        return error


def _missing(host: str) -> TpunbError:
    return TpunbError(f"{host}: nothing was recorded of it here")
