"""How many samples and tokens a batch holds, by its recorded signature."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import polars as pl

from tpunb.instrument.batches import MASK, NOTHING, is_ids
from tpunb.instrument.sink import Signature


class Size(NamedTuple):
    """Samples and tokens, each None if unknown; without integer ids there are no tokens."""

    samples: int | None
    tokens: int | None


class _Array(NamedTuple):
    name: str
    kind: str
    dims: tuple[int, ...]


def size_of(signature: Signature | None, kept: int | None = None) -> Size:
    """Return the size of a batch, of whose mask so many elements are not 0.

    Samples are the dimension that all arrays begin with. Integer ids of two dimensions are tokens, of which a mask of
    the same shape leaves padding out. Ids beside features are tokens if their name says so: others may be labels.

    >>> ids = "input_ids:int64[8,128], labels:int64[8,128]"
    >>> size_of(Signature("", ids)), size_of(Signature("", ids + ", attention_mask:int64[8,128]"), 700)
    (Size(samples=8, tokens=1024), Size(samples=8, tokens=700))
    >>> size_of(Signature("", "0:float32[32,28,28], 1:int64[32]"))
    Size(samples=32, tokens=None)
    """
    if signature == NOTHING:
        return Size(0, 0)
    arrays = () if signature is None else _arrays(signature.returns)
    leading = {array.dims[0] if array.dims else None for array in arrays}
    samples = leading.pop() if len(leading) == 1 else None
    return Size(samples, None if samples is None else _tokens(arrays, kept))


def padding_of(signature: str, count: int, kept: int) -> tuple[int, int, int] | None:
    """Return width, positions and padding of batches of one signature, whose masks keep so many elements; or None.

    >>> padding_of("ids:int64[8,128], attention_mask:int64[8,128]", 2, 1024)
    (128, 2048, 1024)
    """
    arrays = _arrays(signature)
    ids = next((each.dims for each in arrays if not MASK.fullmatch(each.name) and is_ids(each.kind, each.dims)), None)
    tokens = None if ids is None else _tokens(arrays, 0)
    if ids is None or tokens is None or _tokens(arrays, None) is not None:
        return None
    return ids[1], count * prod(ids), kept if tokens else count * prod(ids) - kept


def added(sizes: Sequence[Size | None]) -> Size:
    """Return the size of several batches: unknown if that of any is."""
    columns = ([None if size is None else size[at] for size in sizes] for at in range(2))
    return Size(*(None if None in numbers else sum(filter(None, numbers)) for numbers in columns))


def throughput() -> list[pl.Expr]:
    """Return samples and tokens per second of all hosts of steps (``tpunb.schema.STEPS``), of those whose are known.

    >>> steps = pl.DataFrame({"host": ["a"] * 2, "dur_ps": [10**12] * 2, "samples": [8, 6], "tokens": [800, None]})
    >>> steps.select(throughput()).row(0)
    (7.0, 800.0)
    """
    exprs = []
    for name in Size._fields:
        time_ps = pl.col("dur_ps").filter(pl.col(name).is_not_null()).sum() / pl.col("host").n_unique()
        exprs.append(pl.when(time_ps > 0).then(pl.col(name).sum() / time_ps * 1e12).alias(f"{name}_per_s"))
    return exprs


@lru_cache(4_096)
def _arrays(text: str) -> tuple[_Array, ...]:
    """Return the arrays of a signature, none if one cannot be read."""
    found = [re.fullmatch(r"([\w.]*):(\w+)\[([\d,]*)\]", part) for part in text.split(", ")]
    arrays = (_Array(of[1], of[2], tuple(map(int, filter(None, of[3].split(","))))) for of in found if of)
    return tuple(arrays) if all(found) else ()


def _tokens(arrays: tuple[_Array, ...], kept: int | None) -> int | None:
    masks = [array for array in arrays if MASK.fullmatch(array.name)]
    ids = next((array for array in arrays if array not in masks and is_ids(array.kind, array.dims)), None)
    if ids is None:
        return None
    has_features = any("float" in array.kind and len(array.dims) > 1 for array in arrays if array not in masks)
    if has_features and not re.search(r"(^|[._])(input_)?ids?$|token", ids.name):
        return None
    if not masks:
        return prod(ids.dims)
    what = (MASK.fullmatch(masks[0].name) or [""])[1] or ""
    if masks[0].dims != ids.dims or what not in _KEPT or kept is None or kept < 0:
        return None  # what it masks is not clear
    return prod(ids.dims) - kept if what.startswith("key") else kept


_KEPT = {"attention_", "input_", "token_", "key_padding_", "padding_"}
