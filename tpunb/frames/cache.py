"""Per-Steps memoisation with weak keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from tpunb.frames.steps import Steps

_P = ParamSpec("_P")
_R = TypeVar("_R")
_OfSteps: TypeAlias = Callable[Concatenate[Steps, _P], _R]


def memoised(function: _OfSteps[_P, _R], *, last_only: bool = False) -> _OfSteps[_P, _R]:
    """Cache each result of `function` for as long as its steps live; with `last_only` the last result alone.

    Steps are compared by identity. Results must not hold the steps, or neither is freed; exceptions are not cached.
    """
    cache: WeakKeyDictionary[Steps, dict[Hashable, _R]] = WeakKeyDictionary()

    @wraps(function)
    def cached(steps: Steps, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        key = (args, tuple(kwargs.items()))
        results = cache.setdefault(steps, {})
        if key not in results:
            if last_only:
                results.clear()  # before the next one is made: there is no room for two
            results[key] = function(steps, *args, **kwargs)
        return results[key]

    return cached


memoised_last = partial(memoised, last_only=True)
