"""What a batch holds: names, types and shapes of its arrays, and how many elements its mask keeps."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np

from tpunb.instrument.sink import Signature
from tpunb.text import cut, plain

MASK: Final = re.compile(r"(?:.*\.)?((?:attention|input|token|(?:.*_)?padding)_)?mask")
"""Names of arrays that may say which tokens are padding; the first group says it for certain."""

NOTHING: Final = Signature("", "")
"""What a fetch holds that yields no batch itself, but what draws them."""

_MOST_SIGNATURES: Final = 1_024  # of a run: batches of further shapes are unknown
_MOST_STREAMS: Final = 256
_MOST_ARRAYS, _DEEPEST = 32, 4
_MOST_ELEMENTS: Final = 1 << 15  # of a mask that is kept until it is counted, by another thread

Way = tuple[Hashable, ...]


class Kept:
    """Number of elements of a mask that are not 0, as an index; counted when first used, -1 if that fails."""

    __slots__ = ("_count", "_mask")

    def __init__(self, mask: Any) -> None:
        self._mask, self._count = mask, -1

    def __index__(self) -> int:
        if (mask := self._mask) is not None:
            with suppress(Exception):  # freed meanwhile
                self._count = int(np.count_nonzero(np.asarray(mask)))
            self._mask = None
        return self._count


class _Form:
    """How batches of a stream are read: the array by which they differ, their mask, and signatures by its shape."""

    mask: Way | None

    __slots__ = ("counts_at_once", "key", "mask", "signatures", "way")

    def __init__(self, way: Way, arrays: Mapping[Way, Any]) -> None:
        self.way, self.signatures = way, dict[Any, Signature | None]()
        self.key = _tensorflow_key if hasattr(arrays.get(way), "_datatype_enum") else _key
        found = ((way, array) for way, array in arrays.items() if MASK.fullmatch(way_name(way)) and _is_on_host(array))
        self.mask, mask = next(found, (None, None))
        self.counts_at_once = mask is not None and prod(mask.shape) > _MOST_ELEMENTS


class Batches:
    """Signatures of the batches of each stream."""

    def __init__(self) -> None:
        self._forms, self._count = dict[Hashable, _Form](), 0

    def of(self, stream: Hashable, batch: Any) -> tuple[Signature | None, Kept | None]:
        """Return the signature of a batch, None if it has no arrays, and what its mask keeps; never raise."""
        try:
            form = self._forms[stream]
            array = batch
            for key in form.way:
                array = array[key]
            signature = form.signatures[form.key(array)]
        except Exception:  # noqa: BLE001  the first of its kind
            try:
                form, signature = self._described(stream, batch)
            except Exception:  # noqa: BLE001  of the program's own class
                return None, None
        if form.mask is None:
            return signature, None
        try:
            mask = batch
            for key in form.mask:
                mask = mask[key]
            kept = Kept(mask)
            if form.counts_at_once:
                kept.__index__()
        except Exception:  # noqa: BLE001  a batch without it
            return signature, None
        return signature, kept

    def _described(self, stream: Hashable, batch: Any) -> tuple[_Form, Signature | None]:
        arrays = dict(arrays_of(batch))
        ids = (way for way, array in arrays.items() if is_ids(*_kind(array)) and not MASK.fullmatch(way_name(way)))
        way = next(ids, next(iter(arrays), ()))
        form = self._forms.get(stream)
        if form is None or form.way != way:
            if len(self._forms) >= _MOST_STREAMS:
                self._forms = {}
            form = self._forms[stream] = _Form(way, arrays)
        signature = None
        if arrays and self._count < _MOST_SIGNATURES:
            self._count += 1
            signature = described({way_name(way): _kind(array) for way, array in arrays.items()})
        if way in arrays:
            form.signatures[form.key(arrays[way])] = signature
        return form, signature


def described(arrays: Mapping[str, tuple[str, Sequence[Any]]]) -> Signature:
    """Return the signature of a batch by the names, types and shapes of its arrays.

    >>> described({"ids": ("int64", (8, 128)), "mask": ("bool", (8, 128))}).returns
    'ids:int64[8,128], mask:bool[8,128]'
    """
    texts = (f"{name}:{kind}[{','.join(map(str, dims))}]" for name, (kind, dims) in arrays.items())
    return Signature("", ", ".join(texts))


def _key(array: Any) -> Any:
    return array.shape, array.dtype


def _tensorflow_key(array: Any) -> Any:
    return array._shape_tuple(), array._datatype_enum()  # in a third of the time


def is_ids(kind: str, dims: tuple[Any, ...]) -> bool:
    """Return whether arrays of a type and shape may hold ids of tokens: whole numbers in two dimensions.

    >>> is_ids("int64", (8, 128)), is_ids("uint8", (8, 784)), is_ids("int32", (8,))
    (True, False, False)
    """
    return len(dims) == 2 and re.fullmatch(r"u?int(16|32|64)", kind) is not None


def _is_on_host(array: Any) -> bool:
    return isinstance(array, np.ndarray) or "cpu" in str(getattr(array, "device", "")).lower()


def arrays_of(batch: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield the arrays of a batch, each with the keys that lead to it."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield way, batch
    elif len(way) < _DEEPEST and isinstance(batch, Mapping | list | tuple):
        if len(batch) > _MOST_ARRAYS:
            raise ValueError("too many parts")
        for key, part in batch.items() if isinstance(batch, Mapping) else enumerate(batch):
            yield from arrays_of(part, (*way, key))


def _kind(array: Any) -> tuple[str, tuple[Any, ...]]:
    dtype = getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]
    return str(dtype), tuple(array.shape)


def way_name(way: Way) -> str:
    """Return the keys that lead to an array as a name."""
    return re.sub(r"[^\w.]", "_", cut(plain(".".join(map(str, way))), 60))
