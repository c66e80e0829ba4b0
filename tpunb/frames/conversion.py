"""Frames in other forms: for pandas, and as files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import polars as pl

from tpunb.errors import need

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Convert a frame to a pandas DataFrame (requires the extra ``pandas``)."""
    need("pandas", extra="pandas")
    need("pyarrow", extra="pandas")
    return frame.to_pandas()


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
