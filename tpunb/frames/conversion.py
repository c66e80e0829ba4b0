"""Frames in other forms, for pandas; and local files: what is written whole, and read only within bounds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4
from zipfile import ZIP_STORED, ZipFile

import polars as pl

from tpunb.errors import BadProfile, need

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Convert a frame to a pandas DataFrame (requires the extra ``pandas``)."""
    need("pandas", extra="pandas")
    need("pyarrow", extra="pandas")
    return frame.to_pandas()


METADATA_BYTES = 16 << 20
"""Bytes of a file of facts, such as ``run.json``, that are read at most: real ones have less than one MiB."""


class Tabular:
    """A noun whose rows are those of its `frame`."""

    frame: pl.DataFrame

    def __len__(self) -> int:
        return self.frame.height

    def to_pandas(self) -> pd.DataFrame:
        """Convert `frame` to a pandas DataFrame (requires the extra ``pandas``)."""
        return to_pandas(self.frame)


def write_atomically(path: Path, content: bytes) -> Path:
    """Write a temporary file and rename it, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    finally:
        with suppress(OSError):  # report the first error
            aside.unlink(missing_ok=True)
    return path


def check_file(path: str | os.PathLike[str], status: os.stat_result | None = None) -> None:
    """Raise BadProfile for what is no file: a pipe would be waited for, and a device may have no end."""
    if not stat.S_ISREG((status or Path(path).stat()).st_mode):
        raise BadProfile(f"{os.fspath(path)}: a pipe, a device or a folder, not a file", hint="remove it")


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a local file for reading, and nothing but a file, also where links lead to it."""
    check_file(path)  # first: to open some devices has effects
    wait = getattr(os, "O_NONBLOCK", 0)  # not for what replaces it in between
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | wait))  # noqa: SIM115
    try:
        check_file(path, os.fstat(file.fileno()))
    except BadProfile:
        file.close()
        raise
    return file


@contextmanager
def open_zip(path: str | os.PathLike[str]) -> Iterator[ZipFile]:
    """Open a zip file without compression, as frameworks write theirs: compressed members might have any size."""
    with open_file(path) as file, ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != ZIP_STORED:
                raise BadProfile(f"{os.fspath(path)}: {member.filename!r} in it is compressed, which no framework does")
        yield archive


def read_file(path: str | os.PathLike[str], limit: int = METADATA_BYTES) -> bytes:
    """Return the contents of a local file; raise BadProfile if there are more than `limit` bytes."""
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise BadProfile(f"{os.fspath(path)}: {size:,} bytes; of such a file at most {limit:,} are read")
        return file.read(size)
