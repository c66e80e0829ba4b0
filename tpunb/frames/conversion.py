"""What all nouns with a frame can do: their length, and conversion for other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
