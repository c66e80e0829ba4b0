"""Where the files of a run go: a local folder, or a URL that fsspec knows, memory too."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from tpunb.errors import CaptureBusy, ProfileNotFound, TpunbError
from tpunb.io import places
from tpunb.io.folder_lock import LOCK, FolderLock
from tpunb.io.run_folder import RUN

ALIVE_S = 180.0
"""How old the last sign of a run's writer may be where nothing else tells whether it still writes."""

_MOVES = 16  # objects that are moved or removed side by side

_T = TypeVar("_T")


class NoAnswer(TpunbError):
    """A server does not say in time whether it did what it was asked for; it may still do it."""


class LocalFiles:
    """A local folder: each file and each part is written to the side and renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: FolderLock | None = None

    def open(self) -> str | None:
        """Lock the folder for a new run, and return where an earlier run of it went."""
        moved = None
        while True:
            self._refuse_what_is_no_run()
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = FolderLock.take(self._folder)
            except FileNotFoundError:  # another capture has just moved it away
                continue
            if not (self._folder / RUN).is_file():
                self._lock = lock
                return moved
            moved = str(self._move_aside(lock))
            if lock is not None:
                lock.release()

    def put(self, name: str, data: bytes) -> None:
        """Write a file over one of that name."""
        aside = self._folder / f".{RUN}.{uuid4().hex[:8]}"
        (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(aside, data)
            aside.replace(self._folder / name)
        except BaseException:
            with suppress(OSError):  # the first error is the one to hear of
                aside.unlink(missing_ok=True)
            raise

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write a folder of files."""
        folder = self._folder / name
        aside = folder.with_name(f".{folder.name}.{uuid4().hex[:8]}")
        try:
            aside.mkdir(parents=True)
            for file, data in files.items():
                _write(aside / file, data)
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, and the folders that they leave empty."""
        for name in names:
            path = self._folder / name
            path.unlink(missing_ok=True)
            for parent in path.relative_to(self._folder).parents[:-1]:
                try:
                    (self._folder / parent).rmdir()
                except OSError:  # not empty, or gone
                    break

    def close(self) -> None:
        """Free the lock; a second time does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _refuse_what_is_no_run(self) -> None:
        """Look before anything is written there; what a kill left before the first ``run.json`` is nothing."""
        with suppress(FileNotFoundError):
            is_folder = self._folder.is_dir() or not self._folder.exists()
            names = {path.name for path in self._folder.iterdir()} if is_folder else {""}
            if RUN not in names and any(name != LOCK and not name.startswith(f".{RUN}.") for name in names):
                raise refused(str(self._folder))

    def _move_aside(self, lock: FolderLock | None) -> Path:
        """Give an earlier run the next free name."""
        if lock is None:  # no locks here: its own word counts
            refuse_the_living(str(self._folder), (self._folder / RUN).read_bytes())
        number = 1
        while (aside := self._folder.with_name(f"{self._folder.name}-{number}")).exists():
            number += 1
        self._folder.rename(aside)
        if lock is not None:
            lock.moved(aside)
        return aside


def _write(path: Path, data: bytes) -> None:
    """Write by Python's own means: a full disk is an `OSError`."""
    with path.open("xb") as file:
        file.write(data)


class RemoteFiles:
    """A folder behind a URL; in an object store a file is there in whole or not at all."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs: Any = None
        self._path = ""

    def open(self) -> str | None:
        """Refuse a place where somebody still writes; return where an earlier run of it went."""
        import fsspec

        if self._url.partition(":")[0].lower() not in fsspec.available_protocols():
            raise ValueError(
                f"The dir parameter of capture must be a folder or a URL that fsspec knows. Got {self._url!r} instead."
            )
        try:
            place = places.find(self._url)
            files = place.below() if place.is_folder else {"": place}
        except ProfileNotFound:
            files = {}
        self._fs, self._path = fsspec.core.url_to_fs(self._url)
        if not files:
            return None
        if RUN not in files:
            raise refused(self._url)
        refuse_the_living(self._url, places.read(files[RUN]).tobytes())
        return self._bounded(lambda: self._move_aside(sorted(files)))

    def put(self, name: str, data: bytes) -> None:
        """Write a file over one of that name."""
        self._bounded(lambda: self._put(name, data))

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write files one after the other, so that the last one says that all are there."""
        names = [f"{name}/{file}" for file in files]

        def put() -> None:
            try:
                for path, data in zip(names, files.values(), strict=True):
                    self._put(path, data)
            except BaseException:
                with suppress(Exception):  # the first error is the one to hear of
                    self._remove(reversed(names))
                raise

        self._bounded(put)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, side by side; folders are only names there."""
        every = [*names]

        def remove() -> None:
            with ThreadPoolExecutor(_MOVES) as pool:
                [*pool.map(lambda name: self._remove([name]), every)]

        if every:
            self._bounded(remove)

    def close(self) -> None:
        """Do nothing: the run's own word says that it has ended."""

    def forget(self) -> None:
        """Remove all that lies there."""
        if self._fs is not None:
            for path in self._fs.find(self._path):
                self._fs.rm_file(path)

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._path}/{name}"
        try:
            self._fs.pipe_file(path, data)
        except FileNotFoundError:
            above = self._fs._parent(self._path)
            if not above.strip("/") or not self._fs.exists(above):  # no bucket of a mistyped name is made
                raise
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            self._fs.pipe_file(path, data)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._path}/{name}")

    def _move_aside(self, names: list[str]) -> str:
        """Give an earlier run the next free name, ``run.json`` last: without it nothing passes for a run."""
        from fsspec import AbstractFileSystem

        number = 1
        while self._fs.exists(f"{self._path}-{number}"):
            number += 1
        path = f"{self._path}-{number}"
        if type(self._fs).mv is not AbstractFileSystem.mv and not self._fs.async_impl:  # it can rename a folder
            self._fs.mv(self._path, path)
        else:
            names = [name for name in names if name != RUN]
            with ThreadPoolExecutor(_MOVES) as pool:
                [*pool.map(lambda name: self._fs.cp_file(f"{self._path}/{name}", f"{path}/{name}"), names)]
                self._fs.cp_file(f"{self._path}/{RUN}", f"{path}/{RUN}")
                [*pool.map(lambda name: self._remove([name]), names)]
                self._remove([RUN])
        return f"{self._url}-{number}"

    def _bounded(self, work: Callable[[], _T]) -> _T:
        """Return what comes of work on a server, in bounded time; what it raises is of any kind."""
        answer: Future[_T] = Future()

        def do() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # noqa: BLE001  raised where it was asked for
                answer.set_exception(error)

        if self._url.startswith("memory://"):  # which always answers
            do()
        else:
            threading.Thread(target=do, daemon=True).start()
        if not places.awaited([answer], places.PATIENCE_S):
            raise NoAnswer(f"{self._url}: no answer within {places.PATIENCE_S:g} s", hint=_NETWORK)
        try:
            return answer.result()
        except (TpunbError, MemoryError):
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise TpunbError(f"{self._url}: cannot be written: {reason}", hint=_NETWORK) from error


_NETWORK = "check the address, the network and whether you may write there"


def refused(place: str) -> ValueError:
    """Return the error of a place that is no run's."""
    return ValueError(
        f"The dir parameter of capture must be a new folder or an earlier run's. Got {place!r} instead, "
        "which holds something else."
    )


def refuse_the_living(place: str, run_json: bytes) -> None:
    """Raise `CaptureBusy` where a run says that it goes on, and said so lately."""
    try:
        facts = json.loads(run_json)
        going_on = facts["state"] == "running" and time.time() - facts["updated"] < ALIVE_S
    except (ValueError, KeyError, TypeError, RecursionError):  # nobody's who still writes
        return
    if going_on:
        holder = facts.get("written_by", "another process")
        hint = f"give this capture another place; a run whose writer died is free {ALIVE_S / 60:g} minutes later"
        raise CaptureBusy(f"{place} is being written by {holder}", hint=hint)
