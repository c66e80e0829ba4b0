"""Who writes a folder: a lock that is gone when its holder is, however that ends."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from io import FileIO
from pathlib import Path
from weakref import WeakSet

from tpunb.errors import CaptureBusy

LOCK = ".lock"

_UNKNOWN = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems answer that know no locks."""


class FolderLock:
    """The lock of a folder, held; `take` gives one."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file: FileIO | None = file
        _held.add(self)

    @classmethod
    def take(cls, folder: Path) -> FolderLock | None:
        """Return the lock of a folder; None where the file system or the platform knows none.

        Raises
        ------
        CaptureBusy
            When a process holds it, this one too.
        FileNotFoundError
            When the folder went away meanwhile.
        """
        try:
            import fcntl
        except ImportError:  # Windows
            return None
        path = folder / LOCK
        while True:
            file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, path):
                    break
            except BlockingIOError:
                holder = file.read(200).decode("utf-8", "replace") or "another process"
                file.close()
                raise CaptureBusy(
                    f"{folder} is being written by {holder}", hint="give this capture another folder, or end that one"
                ) from None
            except OSError as error:
                file.close()
                if error.errno in _UNKNOWN:
                    path.unlink(missing_ok=True)
                    return None
                raise
            file.close()  # whoever had it took the folder aside or the file away: once more
        file.truncate(0)
        file.write(holder_here().encode())
        return cls(path, file)

    def release(self) -> None:
        """Free the folder; a second time, or in a process forked since, does nothing."""
        if (file := self._file) is None:
            return
        import fcntl

        self._file = None
        with file:
            if _is_at(file, self._path):
                with suppress(OSError):  # an empty file that stays is in nobody's way
                    self._path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)

    def moved(self, folder: Path) -> None:
        """Say that the folder is elsewhere now."""
        self._path = folder / LOCK

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def holder_here() -> str:
    """Return this process in words."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def _is_at(file: FileIO, path: Path) -> bool:
    """Say whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


_held: WeakSet[FolderLock] = WeakSet()


def _leave_to_the_parent() -> None:
    """Close, in a process just forked, what it has of locks: else they would be held as long as any child lives."""
    for lock in list(_held):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
