"""Write the files of a run to a local folder or to a URL that fsspec supports, memory included."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakSet

from tpunb.errors import CaptureBusy, ProfileNotFound, TpunbError
from tpunb.frames.conversion import read_file, write_atomically
from tpunb.io import storage
from tpunb.io.run_folder import ALIVE_S, LOCK, RUN
from tpunb.text import format_error

_MOVES = 16  # objects moved or removed in parallel

_T = TypeVar("_T")


class LocalFiles:
    """A local folder: files and parts are written under a temporary name and renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: FolderLock | None = None

    def open(self) -> str | None:
        """Lock the folder for a new run, and return the new path of an earlier run."""
        moved = None
        while True:
            self._refuse_other_content()
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"{self._folder}: no run can be written there: {error.strerror or error}"
                raise TpunbError(message, hint="choose a folder that you may write to") from error
            try:
                lock = FolderLock.take(self._folder)
            except FileNotFoundError:  # another capture has just renamed it
                continue
            if not (self._folder / RUN).is_file():
                self._lock = lock
                return moved
            moved = str(self._move_aside(lock))
            if lock is not None:
                lock.release()

    def put(self, name: str, data: bytes) -> None:
        """Write a file, replacing one of that name."""
        write_atomically(self._folder / name, data)

    def open_file(self, name: str) -> FileIO:
        """Return a new file, to be written in place."""
        return FileIO(self._folder / name, "w")

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write a folder of files."""
        folder = self._folder / name
        aside = folder.with_name(f".{folder.name}.{uuid4().hex[:8]}")
        try:
            aside.mkdir(parents=True)
            for file, data in files.items():
                (aside / file).write_bytes(data)
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and folders that become empty."""
        for name in names:
            path = self._folder / name
            path.unlink(missing_ok=True)
            for parent in path.relative_to(self._folder).parents[:-1]:
                try:
                    (self._folder / parent).rmdir()
                except OSError:  # not empty, or missing
                    break

    def beat(self) -> None:
        """Show readers that this process is at work."""
        if self._lock is not None:
            self._lock.beat()

    def close(self, *, ended: bool = True) -> None:
        """Release the lock, if held; its file shows readers that nobody writes a run whose ``run.json`` has no end."""
        if self._lock is not None:
            self._lock.release(remove=ended)
            self._lock = None

    def _refuse_other_content(self) -> None:
        """Raise if the folder has content that is not a run; remains of a killed capture are ignored."""
        with suppress(FileNotFoundError):
            is_folder = self._folder.is_dir() or not self._folder.exists()
            names = {path.name for path in self._folder.iterdir()} if is_folder else {""}
            others = any(name != LOCK and not name.startswith(f".{RUN}.") for name in names - {RUN})
            if others and not (self._folder / RUN).is_file():  # a listing may miss what is replaced meanwhile
                raise refused(str(self._folder))

    def _move_aside(self, lock: FolderLock | None) -> Path:
        """Rename an earlier run to the next free name."""
        if lock is None:  # the file system has no locks
            refuse_if_running(str(self._folder), read_file(self._folder / RUN))
        number = 1
        while (aside := self._folder.with_name(f"{self._folder.name}-{number}")).exists():
            number += 1
        self._folder.rename(aside)
        if lock is not None:
            lock.moved(aside)
        return aside


class RemoteFiles:
    """A folder behind a URL; an object store writes each file atomically."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs: Any = None
        self._path = ""

    def open(self) -> str | None:
        """Refuse a folder with a running capture; return the new URL of an earlier run."""
        import fsspec

        if self._url.partition(":")[0].lower() not in fsspec.available_protocols():
            raise ValueError(
                f"The dir parameter of capture must be a folder or a URL that fsspec knows. Got {self._url!r} instead."
            )
        if storage.is_anonymous(self._url):
            raise TpunbError(f"{self._url}: there are no Google credentials to write with", hint=storage.LOGIN)
        try:
            location = storage.find(self._url)
            files = location.below() if location.is_folder else {"": location}
        except ProfileNotFound:
            files = {}
        self._fs, self._path = fsspec.core.url_to_fs(self._url)
        if not files:
            return None
        if RUN not in files:
            raise refused(self._url)
        refuse_if_running(self._url, storage.read_small(files[RUN]))
        return self._bounded(lambda: self._move_aside(sorted(files)))

    def put(self, name: str, data: bytes) -> None:
        """Write a file, replacing one of that name."""
        self._bounded(lambda: self._put(name, data))

    def put_folder(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write files one after the other; the last one makes the folder valid."""
        names = [f"{name}/{file}" for file in files]

        def put() -> None:
            try:
                for path, data in zip(names, files.values(), strict=True):
                    self._put(path, data)
            except BaseException:
                with suppress(Exception):  # report the first error
                    self._remove(reversed(names))
                raise

        self._bounded(put)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files in parallel."""
        if paths := [*names]:
            self._bounded(lambda: self._remove_all(paths))

    def beat(self) -> None:
        """Do nothing: a store has no clock of its own."""

    def close(self, *, ended: bool = True) -> None:
        """Do nothing: ``run.json`` says that the run has ended."""

    def forget(self) -> None:
        """Remove all files."""
        if self._fs is not None:
            for path in self._fs.find(self._path):
                self._fs.rm_file(path)

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._path}/{name}"
        try:
            self._fs.pipe_file(path, data)
        except FileNotFoundError:
            above = self._fs._parent(self._path)
            if not above.strip("/") or not self._fs.exists(above):  # never create a bucket
                raise
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            self._fs.pipe_file(path, data)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._path}/{name}")

    def _remove_all(self, names: list[str]) -> None:
        with ThreadPoolExecutor(_MOVES) as pool:
            [*pool.map(lambda name: self._remove([name]), names)]

    def _move_aside(self, names: list[str]) -> str:
        """Rename an earlier run to the next free name, with ``run.json`` as the last file."""
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
            self._remove_all(names)
            self._remove([RUN])
        return f"{self._url}-{number}"

    def _bounded(self, work: Callable[[], _T]) -> _T:
        """Return the result of work on a server in bounded time; its errors, of any type, become `TpunbError`."""
        try:
            return storage.bounded(work, self._url, _NETWORK)
        except (TpunbError, MemoryError):
            raise
        except Exception as error:
            raise TpunbError(f"{self._url}: cannot be written: {format_error(error)}", hint=_NETWORK) from error


_NETWORK = "check the address, the network and your permission to write"


def refused(folder: str) -> ValueError:
    """Return the error for a folder with content that is not a run."""
    return ValueError(
        f"The dir parameter of capture must be a new folder or an earlier run's. Got {folder!r} instead, "
        "which holds something else."
    )


def refuse_if_running(folder: str, run_json: bytes) -> None:
    """Raise `CaptureBusy` if ``run.json`` says that the run is running, and is recent."""
    try:
        facts = json.loads(run_json)
        running = facts["state"] == "running" and time.time() - facts["updated"] < ALIVE_S
    except (ValueError, KeyError, TypeError, RecursionError):  # not written by a capture
        return
    if running:
        holder = facts.get("written_by", "another process")
        hint = f"choose another folder; a run whose writer died is free {ALIVE_S / 60:g} minutes later"
        raise CaptureBusy(f"{folder} is being written by {holder}", hint=hint)


_MOMENT_S = 0.02
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # errors of file systems without locks


class FolderLock:
    """A lock of a folder, returned by `take`."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file: FileIO | None = file
        _locks.add(self)

    @classmethod
    def take(cls, folder: Path) -> FolderLock | None:
        """Acquire the lock of a folder; None where the file system or the platform has no locks.

        Raises CaptureBusy if this or another process holds it, FileNotFoundError if the folder was removed meanwhile.
        """
        try:
            import fcntl
        except ImportError:  # Windows
            return None
        path, tries = folder / LOCK, 2
        while True:
            file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, path):
                    break
            except BlockingIOError:
                if (tries := tries - 1) > 0:  # `is_written` may hold it for a moment
                    file.close()
                    time.sleep(_MOMENT_S)
                    continue
                holder = file.read(200).decode("utf-8", "replace") or "another process"
                file.close()
                raise CaptureBusy(
                    f"{folder} is being written by {holder}", hint="choose another folder, or end that capture"
                ) from None
            except OSError as error:
                file.close()
                if error.errno in _UNSUPPORTED:
                    path.unlink(missing_ok=True)
                    return None
                raise
            file.close()  # the previous holder renamed the folder or removed the file: try again
        file.truncate(0)
        file.write(holder_here().encode())
        return cls(path, file)

    def beat(self) -> None:
        """Show readers that this process is at work: the file was changed now."""
        if self._file is not None:
            os.utime(self._file.fileno())

    def release(self, *, remove: bool = True) -> None:
        """Release the lock; a second call, or one in a forked process, does nothing."""
        if (file := self._file) is None:
            return
        import fcntl

        self._file = None
        with file:
            if remove and _is_at(file, self._path):
                with suppress(OSError):  # an empty file does no harm
                    self._path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)

    def moved(self, folder: Path) -> None:
        """Update the path after the folder was renamed."""
        self._path = folder / LOCK


def holder_here() -> str:
    """Return this process as text."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def _is_at(file: FileIO, path: Path) -> bool:
    """Return whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


_locks: WeakSet[FolderLock] = WeakSet()


def _close_in_child() -> None:
    """Close the locks of a forked process: else they would last as long as any child lives."""
    for lock in list(_locks):
        if lock._file is not None:
            lock._file.close()
            lock._file = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
