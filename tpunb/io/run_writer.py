"""Write a run during its capture: to a local folder, to any URL that fsspec supports, or to memory.

The run is valid at every moment: files are written atomically, and a part is valid once its ``ticks.parquet`` exists.
Small tables are mostly headers, so 16 parts are merged into one and then removed, and 16 of these likewise.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.errors import TpunbError, wrong_type
from tpunb.instrument.events import EventLog
from tpunb.io import parquet, storage
from tpunb.io.run_folder import (
    LATEST,
    RUN,
    STANDING,
    TABLES,
    TAIL,
    VERSION,
    JournalRow,
    event_rows,
    name_rows,
    program_name,
    raw_name,
    span_row,
    step_row,
    unreduced_name,
)
from tpunb.io.run_storage import LocalFiles, RemoteFiles, holder_here
from tpunb.io.storage import NoAnswer
from tpunb.signals import Spent

_TOGETHER = 16  # parts merged into one: their tables, or files, are kept in memory until then


class Keeper:
    """Keeps a run in memory as long as a reference to this object exists."""


_kept: weakref.WeakValueDictionary[str, Keeper] = weakref.WeakValueDictionary()


def keeper(url: str) -> Keeper | None:
    """Return the keeper of a run in memory; None for other runs."""
    return _kept.get(url.rstrip("/"))


class RunWriter:
    """Writes a run during its capture, into a folder, at a URL, or in memory if `where` is None.

    >>> writer = RunWriter(None)
    >>> writer.open()
    >>> writer.facts({"name": "toy"})
    >>> writer.close()
    """

    def __init__(self, where: str | os.PathLike[str] | None) -> None:
        self.source: Path | str
        self.moved: str | None = None  # new path of an earlier run in that folder, once open
        self.keeper = Keeper()  # of a run in memory, which is deleted with the last reference to it
        self._raw: dict[int, set[str]] = {}
        self._programs: set[str] = set()
        self._pending: dict[int, Mapping[str, pl.DataFrame]] = {}  # parts to be merged, at most `_TOGETHER`
        self._packed: dict[str, Mapping[str, bytes]] = {}  # files of merged parts that are to be merged, too
        self._merged: list[str] = []  # files of merged parts that are not removed yet
        self._last = self._single = -1  # number of a part, and of one that stays as it is
        self._journal: FileIO | None = None  # of the latest steps, spans and events
        self._spans = count()  # their numbers in it
        self._events = self._names = 0  # how many of them it has got
        self._journaling_events = Lock()
        self._journaled = False  # whether it has begun
        self.has_journal_only = False  # whether the latest steps there are all that is kept of a run
        self._ended = True  # whether run.json says so, if there is one
        self._files: LocalFiles | RemoteFiles
        if where is None:
            self.name, self.source = "in memory", f"memory://tpunb/{uuid4().hex}"
            _kept[self.source] = self.keeper
            self._files = files = RemoteFiles(self.source)
            weakref.finalize(self.keeper, files.forget).atexit = False
            return
        text = os.fspath(where) if isinstance(where, (str, os.PathLike)) else None
        if not isinstance(text, str):
            raise wrong_type("capture", "dir", "be a path, a URL or None", where)
        if not text:
            raise ValueError(f"The dir parameter of capture must be a path, a URL or None. Got {where!r} instead.")
        if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", text):
            raise ValueError(
                f"The dir parameter of capture must be text with '://' if it is a URL (a Path makes one slash of two). "
                f"Got {text!r} instead."
            )
        target = storage.resolve(text)
        if isinstance(target, str):
            self.source = target.rstrip("/")
            self.name = self.source.rpartition("/")[2]
            self._files = RemoteFiles(self.source)
        else:
            self.source = target.absolute()
            self.name = self.source.name
            self._files = LocalFiles(self.source)

    def open(self) -> None:
        """Prepare the folder for a run: an earlier run there is renamed, never overwritten.

        Raises CaptureBusy if another capture writes there, ValueError if it holds no run, TpunbError or OSError.
        """
        self.moved = self._files.open()

    def step(self, row: JournalRow) -> None:
        """Write a step on a local disk, where a kill leaves it."""
        self._write_latest(*step_row(row))

    def span(self, span: Spent) -> None:
        """Write a span likewise; any thread may."""
        self._write_latest(*span_row(next(self._spans), span))

    def events(self, log: EventLog) -> None:
        """Write the events since the last call likewise; any thread may, of which one does at a time."""
        if not self._journaling_events.acquire(blocking=False):  # the other one, or the next call, writes them
            return
        try:
            rows, lines = log.take_unjournaled()
            if self._journaled and self._journal is None:
                return
            # what they refer to first: a kill may come in between
            if lines:
                self._write_latest(*name_rows(self._names, lines))
            for piece, at in event_rows(self._events, rows):
                self._write_latest(piece, at)
            self._names, self._events = self._names + len(lines), self._events + len(rows)
        finally:
            self._journaling_events.release()

    def _write_latest(self, row: bytes, at: int) -> None:
        if not self._journaled and isinstance(self._files, LocalFiles):
            self._journaled = True
            with suppress(OSError):
                self._journal = self._files.open_file(LATEST)
        if (journal := self._journal) is not None:
            try:
                if hasattr(os, "pwrite"):  # a collection of garbage may write a span at any moment
                    os.pwrite(journal.fileno(), row, at)
                else:
                    journal.seek(at)
                    journal.write(row)
            except (OSError, ValueError):  # a full disk, or the end of the run
                with suppress(OSError):
                    journal.close()
                self._journal = None

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Write ``run.json``, with the time and the process that wrote it."""
        ended = facts.get("state", "running") != "running"
        if ended:  # from now on the next run may rename this one
            self._merge()
            self._pending, self._packed, self._merged, self._journaled = {}, {}, [], True
        content = {"tpunb": VERSION, **facts, "updated": time.time(), "written_by": holder_here()}
        self._files.put(RUN, json.dumps(content, indent=1).encode())
        self._ended = ended
        if ended and self._journal is not None and not facts.get("failure"):  # the parts have all that it has
            self._journal.close()
            with suppress(OSError):
                self._files.remove([LATEST] * (not self.has_journal_only))

    def beat(self) -> None:
        """Show readers that this process is at work: it may be stopped, or held up in C."""
        with suppress(OSError):
            self._files.beat()

    def standing(self, seen: Mapping[str, Any] | None) -> None:
        """Write what is seen of a training that stands still; None once it continues."""
        with suppress(OSError, TpunbError):  # a full disk may be why
            if seen is None:
                self._files.remove([STANDING])
            else:
                self._files.put(STANDING, json.dumps(seen, indent=1).encode())

    def part(self, number: int, tables: Mapping[str, pl.DataFrame]) -> None:
        """Write a part, any of the tables of `run_folder.TABLES`, with a number above the last; valid on return.

        Raises BadProfile for other columns, OSError or TpunbError; incomplete files are removed if possible.
        """
        if unknown := tables.keys() - TABLES.keys():
            raise ValueError(f"The tables of a part must be of {[*TABLES]}. Got {sorted(unknown)} instead.")
        if number <= self._last:
            raise ValueError(f"The number of a part must be above {self._last}. Got {number!r} instead.")
        frames = {name: tables.get(name, pl.DataFrame(schema=columns)) for name, columns in TABLES.items()}
        checked = {name: schema.check(frame, TABLES[name], name) for name, frame in frames.items()}
        written = {name: frame for name, frame in checked.items() if frame.height or name == "ticks"}
        try:
            self._files.put_folder(f"parts/{number:05d}", _pack(written))
        except NoAnswer:  # do not wait a second time
            self._pending, self._packed = {}, {}
            raise
        self._last = number
        if len(self._pending) == _TOGETHER:  # an earlier merge failed
            self._merge()
        if len(self._pending) == _TOGETHER:  # this part stays as it is, to bound memory
            self._single = number
            return
        self._pending[number] = written
        if len(self._pending) == _TOGETHER:
            self._merge()

    def tail(self, ticks: pl.DataFrame) -> None:
        """Write the ticks that no part holds yet, on a local disk: a kill leaves them."""
        if isinstance(self._files, LocalFiles):
            self._files.put(TAIL, parquet.pack(ticks, TABLES["ticks"]))

    def _merge(self) -> None:
        """Write the pending parts as one, then remove them; after a failure the next part or the end tries again."""
        try:
            if len(self._pending) > 1:
                numbers, parts = [*self._pending], [*self._pending.values()]
                frames = {name: [part[name] for part in parts if name in part] for name in TABLES}
                tables = {name: pl.concat(of_parts) for name, of_parts in frames.items() if of_parts}
                whole = f"{numbers[0]:05d}-{numbers[-1]:05d}"
                files = _pack(tables)
                self._files.put_folder(f"parts/{whole}", files)
                if self._packed and self._single > int([*self._packed][-1].rpartition("-")[2]):
                    self._packed = {}  # a part between them would be in their range
                self._packed[whole] = files
                for number, part in self._pending.items():  # the file that makes it valid first
                    self._merged += [f"parts/{number:05d}/{name}.parquet" for name in reversed([*part])]
                self._pending = {}
            if len(self._packed) == _TOGETHER:
                self._merge_packed()
            self._files.remove(self._merged)
            self._merged = []
        except NoAnswer:  # the server may still fail later and undo this attempt, so there is no second one
            self._pending, self._packed = {}, {}
        except (OSError, TpunbError):  # a disk without space for both, a server that refuses to remove: parts stay
            pass

    def _merge_packed(self) -> None:
        """Write merged parts as one, to be removed with the others; after a failure they stay as they are."""
        packed, self._packed = self._packed, {}
        sources = {
            name: [files[file] for files in packed.values() if (file := f"{name}.parquet") in files] for name in TABLES
        }
        tables = {name: parquet.read(files, TABLES[name]) for name, files in sources.items() if files}
        first, *_, last = packed
        self._files.put_folder(f"parts/{first.partition('-')[0]}-{last.rpartition('-')[2]}", _pack(tables))
        self._merged += [f"parts/{part}/{file}" for part, files in packed.items() for file in reversed([*files])]

    def raw(self, window: int, host: str, data: bytes) -> None:
        """Write a raw window, an XSpace or a Chrome trace, where XProf and TensorBoard find it."""
        name = raw_name(window, host, "trace.json" if storage.is_json(data) else "xplane.pb")
        self._files.put(name, data)
        self._raw.setdefault(window, set()).add(name)

    def unreduced(self, window: int, facts: Mapping[str, Any]) -> None:
        """Write what readers require to reduce a raw window that the capture did not."""
        self._files.put(unreduced_name(window), json.dumps(facts).encode())

    def program(self, data: bytes) -> str:
        """Write a compiled program, unless the run holds it, and return the name of its file."""
        name = hashlib.blake2b(data, digest_size=8).hexdigest()
        if name not in self._programs:
            self._files.put(program_name(name), gzip.compress(data, 1, mtime=0))
            self._programs.add(name)
        return name

    def drop_raw(self, window: int) -> None:
        """Remove the raw windows of that number of all hosts, if any."""
        self._files.remove(sorted(self._raw.get(window, ())))
        self._raw.pop(window, None)

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        try:
            self._merge()
        finally:
            if self._journal is not None:
                self._journal.close()
            self._files.close(ended=self._ended)


def _pack(tables: Mapping[str, pl.DataFrame]) -> dict[str, bytes]:
    """Return the files of a part, in the order of its tables."""
    return {f"{name}.parquet": parquet.pack(frame, TABLES[name]) for name, frame in tables.items()}
