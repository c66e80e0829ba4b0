"""Memoisation of what is computed of steps or phases, with weak keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

_N = TypeVar("_N")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_OfNoun: TypeAlias = Callable[Concatenate[_N, _P], _R]


def memoised(function: _OfNoun[_N, _P, _R], *, last_only: bool = False) -> _OfNoun[_N, _P, _R]:
    """Cache each result of `function` for as long as its steps or phases live; with `last_only` the last result alone.

    These are compared by identity. Results must not hold them, or neither is freed; exceptions are not cached.
    """
    cache: WeakKeyDictionary[_N, dict[Hashable, _R]] = WeakKeyDictionary()

    @wraps(function)
    def cached(noun: _N, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        key = (args, tuple(kwargs.items()))
        results = cache.setdefault(noun, {})
        if key not in results:
            if last_only:
                results.clear()  # before the next one is made: there is no room for two
            results[key] = function(noun, *args, **kwargs)
        return results[key]

    return cached


def memoised_last(function: _OfNoun[_N, _P, _R]) -> _OfNoun[_N, _P, _R]:
    """Cache the last result of `function` alone."""
    return memoised(function, last_only=True)
