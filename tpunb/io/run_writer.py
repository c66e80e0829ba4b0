"""Writing a run while it goes on: to a local folder, to any URL that fsspec knows, or to memory.

What lies there is whole at every moment. Locally files are written to the side and renamed. Object stores know no
renaming, but put an object in whole or not at all: there a part counts once its ``ticks.parquet`` lies there, which
is put last.

Small tables are mostly names and endings: each 16 parts are written once more as one, and only then removed. Until
they are gone they count no more, since they lie within the range of another part, as `run_folder` tells.
"""

from __future__ import annotations

import json
import os
import re
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.errors import TpunbError
from tpunb.io import packed, places
from tpunb.io.folder_lock import holder_here
from tpunb.io.run_folder import RUN, TABLES, VERSION, raw_name
from tpunb.io.run_places import LocalFiles, NoAnswer, RemoteFiles

_TOGETHER = 16  # parts that become one: their tables are kept until then


class _Files(Protocol):
    """Where a run's files go: names are relative to the run, with slashes."""

    def open(self) -> str | None:
        """Make the place free, and say where an earlier run of it went."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file in whole or not at all, over one of that name."""

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write a folder of files, the last one last."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, and the folders that they leave empty."""

    def close(self) -> None:
        """Let others write here."""


class Keeper:
    """Lives as long as somebody may want what it keeps."""


_kept: weakref.WeakValueDictionary[str, Keeper] = weakref.WeakValueDictionary()


def keeper(url: str) -> Keeper | None:
    """Return what keeps a run in memory while it lives; None for a run that lies elsewhere."""
    return _kept.get(url.rstrip("/"))


class RunWriter:
    """Writes a run while it goes on.

    Parameters
    ----------
    where
        A folder, a URL, or None for memory.

    Attributes
    ----------
    source
        What `tp.load` takes.
    name
        The last part of it; of a run in memory "in memory".
    moved
        Where an earlier run of that place went, once open.
    keeper
        What keeps a run in memory: it is gone when this writer and whoever else holds this object are.

    >>> writer = RunWriter(None)
    >>> writer.open()
    >>> writer.facts({"name": "toy"})
    >>> writer.close()
    """

    def __init__(self, where: str | os.PathLike[str] | None) -> None:
        self.source: Path | str
        self.moved: str | None = None
        self.keeper = Keeper()
        self._raw: dict[int, set[str]] = {}
        self._apart: dict[int, Mapping[str, pl.DataFrame]] = {}  # parts that are to become one, at most `_TOGETHER`
        self._doubled: list[str] = []  # files of parts that did, but for those removed
        self._last = -1
        self._files: _Files
        if where is None:
            self.name, self.source = "in memory", f"memory://tpunb/{uuid4().hex}"
            _kept[self.source] = self.keeper
            files = RemoteFiles(self.source)
            weakref.finalize(self.keeper, files.forget).atexit = False
            self._files = files
            return
        text = os.fspath(where) if isinstance(where, (str, os.PathLike)) else None
        if not isinstance(text, str):
            raise TypeError(f"The dir parameter of capture must be a path, a URL or None. Got {where!r} instead.")
        if not text:
            raise ValueError(f"The dir parameter of capture must be a path, a URL or None. Got {where!r} instead.")
        if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", text):
            raise ValueError(
                f"The dir parameter of capture must be text with '://' if it is a URL (a Path makes one slash of two). "
                f"Got {text!r} instead."
            )
        if text.lower().startswith("file://"):
            text = unquote(text[len("file://") :].removeprefix("localhost"))
        if places._URL.match(text):
            self.source = text.rstrip("/")
            self.name = self.source.rpartition("/")[2]
            self._files = RemoteFiles(self.source)
        else:
            self.source = Path(os.path.expanduser(text)).absolute()  # noqa: PTH111  Path's own raises for an unknown user
            self.name = self.source.name
            self._files = LocalFiles(self.source)

    def open(self) -> None:
        """Make the place free for a run: an earlier run there is renamed, never overwritten.

        Raises
        ------
        CaptureBusy
            When another process, or this one, captures into it.
        ValueError
            When it holds something that is not a run.
        TpunbError
            When a URL cannot be reached; `MissingExtra` when the package that speaks its protocol is not installed.
        OSError
            When a folder cannot be made.
        """
        self.moved = self._files.open()

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Write ``run.json``; it says besides when it was written, and by whom."""
        if facts.get("state", "running") != "running":  # from now on the next run may move this one away
            self._put_together()
            self._apart, self._doubled = {}, []
        said = {"tpunb": VERSION, **facts, "updated": time.time(), "written_by": holder_here()}
        self._files.put(RUN, json.dumps(said, indent=1).encode())

    def part(self, number: int, tables: Mapping[str, pl.DataFrame]) -> None:
        """Write a part: any of the tables of `run_folder.TABLES`. It is there once this returns.

        Parameters
        ----------
        number
            Above that of the part before.
        tables
            By their names.

        Raises
        ------
        BadProfile
            When a table has other columns.
        OSError
            When it cannot be written to a folder; nothing of it is left then where that can be helped.
        TpunbError
            When it cannot be written to a URL.
        """
        if unknown := tables.keys() - TABLES.keys():
            raise ValueError(f"The tables of a part must be of {[*TABLES]}. Got {sorted(unknown)} instead.")
        if number <= self._last:
            raise ValueError(f"The number of a part must be above {self._last}. Got {number!r} instead.")
        checked = {name: schema.check(frame, TABLES[name], name) for name, frame in tables.items() if name != "ticks"}
        ticks = schema.check(tables.get("ticks", schema.empty(TABLES["ticks"])), TABLES["ticks"], "ticks")
        whole = {name: frame for name, frame in checked.items() if frame.height} | {"ticks": ticks}
        try:
            self._files.put_folder(f"parts/{number:05d}", _packed(whole))
        except NoAnswer:  # one such wait is enough
            self._apart = {}
            raise
        self._last = number
        if len(self._apart) == _TOGETHER:  # they could not be put together before
            self._put_together()
        if len(self._apart) < _TOGETHER:  # else this one stays by itself: no more is kept in memory
            self._apart[number] = whole
            if len(self._apart) == _TOGETHER:
                self._put_together()

    def _put_together(self) -> None:
        """Write the parts that are kept as one, then remove them.

        A failure is nobody's: they are safe as they are, and only larger. A disk may have no room for both, a server
        may not let us remove. The next part, or the end, is another chance.
        """
        try:
            if len(self._apart) > 1:
                numbers, parts = [*self._apart], [*self._apart.values()]
                names = [*(name for name in TABLES if name != "ticks"), "ticks"]
                frames = {name: [part[name] for part in parts if name in part] for name in names}
                tables = {name: pl.concat(of_parts) for name, of_parts in frames.items() if of_parts}
                self._files.put_folder(f"parts/{numbers[0]:05d}-{numbers[-1]:05d}", _packed(tables))
                for number, part in self._apart.items():  # first what says that it is whole
                    self._doubled += [f"parts/{number:05d}/{name}.parquet" for name in reversed([*part])]
                self._apart = {}
            self._files.remove(self._doubled)
            self._doubled = []
        except NoAnswer:  # it may still fail, and then takes back what it wrote: no second try may be lost by that
            self._apart = {}
        except (OSError, TpunbError):
            pass

    def raw(self, window: int, host: str, data: bytes) -> None:
        """Write a raw window, where XProf and TensorBoard look for it too."""
        name = raw_name(window, host)
        self._files.put(name, data)
        self._raw.setdefault(window, set()).add(name)

    def drop_raw(self, window: int) -> None:
        """Remove the raw windows of that number, of all hosts; nothing where there are none."""
        self._files.remove(sorted(self._raw.get(window, ())))
        self._raw.pop(window, None)

    def close(self) -> None:
        """Let others write here; a second time does nothing."""
        try:
            self._put_together()
        finally:
            self._files.close()


def _packed(tables: Mapping[str, pl.DataFrame]) -> dict[str, bytes]:
    """Return the files of a part, in the order of its tables."""
    return {f"{name}.parquet": packed.pack(frame, TABLES[name]) for name, frame in tables.items()}
