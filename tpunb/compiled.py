"""Compile loops with numba, free of the interpreter lock, and keep them on disk for later processes.

To compile a loop takes longer than NumPy needs for a short run: `compiled_later` waits until it is worth it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numba import config as _config
from numba import njit
from numba.core.registry import CPUDispatcher

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST, _MOST_IN_PYTHON = 1_500_000, 100_000  # elements of the arguments of a call without compiling


def compiled(loop: Callable[_P, _R], *, signature: Any = None, fastmath: Sequence[str] = ()) -> Callable[_P, _R]:
    """Return a loop that is compiled as it is called, or now and for no other types than those of a signature."""
    kernel: Any = njit(nogil=True, error_model="numpy", fastmath={*fastmath})(loop)
    _keep_on_disk(kernel)
    if signature is not None:
        kernel.compile(signature)
        kernel.disable_compile()
    return kernel  # type: ignore[no-any-return]


def compiled_later(
    same: Callable[..., Any] | None = None, *, compiles_s: float = 0.25, fastmath: Sequence[str] = ()
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator of a loop that is compiled once inputs are large, or calls took as long as compiling does.

    Until then `same` is called, which gives the same with NumPy; without it, the loop as Python.
    """

    def decorate(loop: Callable[_P, _R]) -> Callable[_P, _R]:
        kernel: Any = compiled(loop, fastmath=fastmath)
        kernel.__class__, kernel.same, kernel.left_s = _Later, same or loop, compiles_s
        kernel.most = _MOST if same else _MOST_IN_PYTHON
        return kernel  # type: ignore[no-any-return]

    return decorate


class _Later(CPUDispatcher):
    """A loop that is not compiled yet."""

    same: Callable[..., Any]
    left_s: float
    most: int

    def __call__(self, *args: Any) -> Any:
        if self.left_s < 0 or _size(args) > self.most:
            self.__class__ = CPUDispatcher  # type: ignore[assignment]
            return self(*args)
        begun = time.perf_counter()
        with np.errstate(all="ignore"):  # as in compiled loops
            result = self.same(*args)
        self.left_s -= time.perf_counter() - begun
        return result


def _size(values: Any) -> int:
    """Return the elements of arrays, those in tuples too."""
    return sum(map(_size, values)) if isinstance(values, tuple) else getattr(values, "size", 0)


def _keep_on_disk(kernel: Any) -> None:
    """Keep what is compiled where numba may write, else in a folder of this user, else nowhere."""
    config: Any = _config
    chosen = config.CACHE_DIR
    for folder in (chosen, *_folders()):
        try:
            config.CACHE_DIR = str(folder)
            kernel.enable_caching()
        except (RuntimeError, OSError):  # no home, and an installation of another user
            continue
        finally:
            config.CACHE_DIR = chosen
        files = getattr(getattr(kernel, "_cache", None), "_cache_file", None)  # private: without it, numba's names
        if files is not None:
            files.save = partial(_save, files)
        return


def _folders() -> Iterator[Path]:
    """Find folders in which only this user can place code that this process loads."""
    cache = os.environ.get("TPUNB_CACHE")
    if cache == "off" or not hasattr(os, "getuid"):
        return
    with suppress(OSError):  # without a folder for temporary files
        temporary = Path(tempfile.gettempdir(), f"tpunb-{os.getuid()}")
        # not Path.expanduser, which raises for unknown users
        for folder in [Path(os.path.expanduser(cache), "compiled"), temporary] if cache else [temporary]:  # noqa: PTH111
            with suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                found = folder.lstat()
                if found.st_uid == os.getuid() and found.st_mode & 0o170077 == stat.S_IFDIR:
                    yield folder


def _save(files: Any, key: Any, code: Any) -> None:
    """Save code to a file that is named after its signature."""
    # numba numbers the files: two processes that save at one moment may choose the same (numba issues 4807, 10128)
    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")
    name = files._data_name(number)
    with suppress(OSError):  # a full disk: the code is compiled again in the next process
        files._save_data(name, code)
        files._save_index({**files._load_index(), key: name})
