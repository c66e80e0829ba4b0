"""Lock of a folder that is released when its process ends, however that happens."""

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

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems without locks."""


class FolderLock:
    """A held lock of a folder, returned by `take`."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file: FileIO | None = file
        _held.add(self)

    @classmethod
    def take(cls, folder: Path) -> FolderLock | None:
        """Acquire the lock of a folder; None where the file system or the platform has no locks.

        Raises
        ------
        CaptureBusy
            When this or another process holds it.
        FileNotFoundError
            When the folder was removed in the meantime.
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

    def release(self) -> None:
        """Release the lock; a second call, or one in a forked process, does nothing."""
        if (file := self._file) is None:
            return
        import fcntl

        self._file = None
        with file:
            if _is_at(file, self._path):
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
    except FileNotFoundError:
        return False


_held: WeakSet[FolderLock] = WeakSet()


def _close_in_child() -> None:
    """Close the locks of a forked process: else they would be held as long as any child lives."""
    for lock in list(_held):
        if lock._file is not None:
            lock._file.close()
            lock._file = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
