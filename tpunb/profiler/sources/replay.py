"""Replay windows that were recorded earlier, unchanged."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.io import storage
from tpunb.io.storage import Location, PathLike
from tpunb.profiler.sources.frameworks import annotation

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")


class Replay:
    """The raw windows of an earlier run, in their order, with their bytes and times as recorded.

    Each folder with windows is one window, with one XSpace per host. Only the requested window is in memory.

    Parameters
    ----------
    dir
        Run folder with raw windows, a profiler's logdir, or one ``*.xplane.pb``; local or a URL.
    loop
        Whether to start again after the last window.
    pace
        Duration of a window relative to the requested length: 1 takes that long, 0 no time at all.

    >>> Replay("runs/bert", loop=True)
    Replay('runs/bert', loop=True)
    """

    def __init__(self, dir: PathLike, *, loop: bool = False, pace: float = 1.0) -> None:  # noqa: A002  as in `capture`
        if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace < math.inf:
            raise ValueError(f"The pace parameter of Replay must be in [0, inf). Got {pace!r} instead.")
        self.dir, self.loop, self.pace = dir, loop, pace
        self._windows: list[dict[str, Location]] = []
        self._hosts: list[str] = []
        self._next = 0
        self._stopped = threading.Event()

    def __repr__(self) -> str:
        options = [f"loop={self.loop}"] * self.loop + [f"pace={self.pace}"] * (self.pace != 1)
        return f"Replay({', '.join([repr(self.dir), *options])})"

    def __len__(self) -> int:
        """Return the number of windows; 0 before `start`."""
        return len(self._windows)

    def start(self) -> None:
        """Find the windows.

        Raises
        ------
        ProfileNotFound
            If there is nothing, or no raw window.
        """
        from tpunb.io.host_files import stem

        where = storage.find(self.dir)
        files = where.below() if where.is_folder else {where.name: where}
        windows: dict[str, dict[str, Location]] = defaultdict(dict)
        for name in sorted(files):
            folder, _, file = name.rpartition("/")
            if file.endswith(_SUFFIXES) and not any(part.startswith(".") for part in name.split("/")):
                windows[folder][stem(file)] = files[name]
        if not windows:
            hint = "capture with keep='all' to keep the windows" if "run.json" in files else None
            raise ProfileNotFound(f"{where} holds no raw window: no file ends in .xplane.pb", hint=hint)
        self._windows = [windows[folder] for folder in sorted(windows, key=_by_number)]
        self._hosts = sorted({host for window in self._windows for host in window})
        self._next = 0

    def facts(self) -> dict[str, Any]:
        """Return the source of the windows, and the names of several hosts."""
        return {"replayed": str(self.dir), **({"workers": self._hosts} if self._has_hosts else {})}

    @property
    def _has_hosts(self) -> bool:
        return any(len(window) > 1 for window in self._windows)

    def window(self, seconds: float) -> bytes | Mapping[str, bytes | TpunbError]:
        """Return the next window, after `seconds` times the pace.

        Raises
        ------
        TpunbError
            After the last window without `loop`, or if the file of a window cannot be read.
        """
        self._stopped.clear()
        if self._next >= len(self._windows):
            raise TpunbError(f"no more windows: {self.dir} held {len(self)}", hint=f"Replay({self.dir!r}, loop=True)")
        if self.pace:
            self._stopped.wait(self.pace * seconds)
        window = self._windows[self._next]
        self._next += 1
        if self.loop:
            self._next %= len(self)
        if not self._has_hosts:
            return storage.read(next(iter(window.values()))).tobytes()
        return {host: _read(host, window.get(host)) for host in self._hosts}

    def stop(self) -> None:
        """End the wait for the next window; it is returned at once."""
        self._stopped.set()

    step = staticmethod(annotation)


def _by_number(folder: str) -> list[tuple[int, str]]:
    """Return a sort key that orders names by the numbers in them: 9 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", folder)]


def _read(host: str, file: Location | None) -> bytes | TpunbError:
    if file is None:
        return TpunbError(f"{host}: not recorded in this window")
    try:
        return storage.read(file).tobytes()
    except TpunbError as error:
        return error
