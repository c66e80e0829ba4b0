"""What is found out of steps, remembered for as long as they live: to cut a run anew is to look at it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from tpunb.frames.steps import Steps

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Asked: TypeAlias = Callable[Concatenate[Steps, _P], _R]


def remembered(make: _Asked[_P, _R]) -> _Asked[_P, _R]:
    """Return `make`, which from now on works out each of its answers once for as long as the steps live.

    Steps are told apart by who they are, the other arguments by what they are. The steps are held weakly: an answer
    must not hold them, or both would live for ever.

    Parameters
    ----------
    make
        A function of steps and of values that can be hashed. What it raises is not remembered.
    """
    return _remembering(make, forgets=False)


def last_remembered(make: _Asked[_P, _R]) -> _Asked[_P, _R]:
    """Return `make`, which remembers of each steps its last answer alone: for answers that take much memory.

    Parameters
    ----------
    make
        As for `remembered`.
    """
    return _remembering(make, forgets=True)


def _remembering(make: _Asked[_P, _R], forgets: bool) -> _Asked[_P, _R]:
    known: WeakKeyDictionary[Steps, dict[Hashable, tuple[_R]]] = WeakKeyDictionary()

    @wraps(make)
    def remembering(steps: Steps, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        asked = (args, tuple(kwargs.items()))
        answers = known.setdefault(steps, {})
        if (told := answers.get(asked)) is not None:
            return told[0]
        if forgets:
            answers.clear()  # before the next is made: there is no room for two
        answer = make(steps, *args, **kwargs)
        answers[asked] = (answer,)  # so that None is an answer too
        return answer

    return remembering
