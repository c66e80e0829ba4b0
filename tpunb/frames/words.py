"""How nouns speak of themselves in a line."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import polars as pl

from tpunb.errors import TpunbError, need

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Return a frame as pandas' (needs the extra ``pandas``)."""
    need("pandas", extra="pandas")
    need("pyarrow", extra="pandas")
    return frame.to_pandas()


def plural(n: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "step"), plural(3, "step")
    ('1 step', '3 steps')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def count(n: int) -> str:
    """Return a number in three digits.

    >>> count(999), count(1_234_567)
    ('999', '1.23M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{short(n / size)}{letter}"
    return str(n)


def short(number: float) -> str:
    """Return a number in three digits, never with an exponent."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"  # never 1.23e+03


def plain(text: str) -> str:
    """Return `text` without the characters that command a terminal, turn a line around or end it."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)


def cut(text: str, limit: int = 48) -> str:
    """Return `text` in `limit` characters, without its middle where it is longer.

    >>> cut("abcdefghij", 6)
    'ab…hij'
    """
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}…{text[-limit // 2 :]}"


def kinds(hardware: pl.DataFrame) -> str:
    """Return what devices ``tpunb.schema.HARDWARE`` tells of, hosts aside: "" where of none.

    >>> kinds(pl.DataFrame({"kind": ["TPU v2", "CPU", "TPU v2"]}))
    'TPU v2'
    """
    return " and ".join(sorted({*hardware["kind"].drop_nulls()} - {"CPU"}))


def not_kept(name: str, what: str) -> TpunbError:
    """Return the error for what only raw events tell."""
    return TpunbError(
        f"{name or 'this run'} holds no {what}: its capture kept statistics only",
        hint="capture with keep='all' (in the magic: --keep all); for XProf's tables, load their XPlane",
    )
