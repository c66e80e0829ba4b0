"""Compile loops with numba, free of the interpreter lock, and keep them on disk for later processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from numba import njit

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(loop: Callable[_P, _R], *, signature: Any = None, fastmath: Sequence[str] = ()) -> Callable[_P, _R]:
    """Return a loop that is compiled as it is called, or now and for no other types than those of a signature."""
    kernel: Any = njit(signature, nogil=True, cache=True, error_model="numpy", fastmath={*fastmath})(loop)
    files = getattr(getattr(kernel, "_cache", None), "_cache_file", None)  # private: without it, numba's names
    if files is not None:
        files.save = partial(_save, files)
    return kernel  # type: ignore[no-any-return]


def _save(files: Any, key: Any, code: Any) -> None:
    """Save code to a file that is named after its signature.

    numba numbers the files, so that two processes which save different signatures at one moment may choose the same:
    the index then names the code of the other (numba issues 4807, 10128).
    """
    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")
    name = files._data_name(number)
    files._save_data(name, code)
    files._save_index({**files._load_index(), key: name})
