"""A search that asks the stages first: each gets as many calls as it needs to keep up with the model.

A stage that takes 40 ms for a batch of which the model is done in 10 ms must run four at a time. One that waits may
run more calls than there are cores, but only on threads that are there: tf.data has one a core for all, so that calls
which wait hold up all others until they have threads of their own. That is why to move one parameter at a time finds
nothing here: more calls help once there are more threads, and the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tpunb.tuning.knob import AUTOTUNE, Value
from tpunb.tuning.loads import Load
from tpunb.tuning.search import Proposals, Space, Values, is_better

_AMPLE = 1.5
"""Calls by those that would just do: some take longer than others."""

_NEAR = 1.05
"""A step that takes less than so many times what it must take is fast enough."""

_CALLS = (" parallel calls", " threads")
_THREADS = "options private threads"


def model_based(space: Space) -> Proposals:
    """Propose what the stages need, then a few neighbours of the best so far, while there is something to gain."""
    best, least = predicted(space), least_step(space)
    cost = yield dict(best)
    for move in _MOVES:
        if cost is not None and cost < _NEAR * least:
            return
        neighbour = move(space, best)
        if neighbour != best:
            told = yield dict(neighbour)
            if is_better(told, cost):
                best, cost = neighbour, told


def predicted(space: Space) -> dict[str, Value]:
    """Return values by which every stage keeps up with the model.

    A stage that waits for over half of its time (`Load.waits`) gets one and a half times the calls that it needs, and
    the pipeline threads for all such calls; one that computes gets no more calls than there are cores. Two batches are
    kept ready.

    Returns
    -------
    dict
        By the names of knobs; those that are well as they are, are left out.
    """
    values: dict[str, Value] = {}
    for load in space.needs.loads:
        name = _calls_of(space, load)
        if name is not None and (calls := _calls(space, load, name)) != space.default[name]:
            values[name] = calls
    for name in _buffers(space):
        if space.default[name] in (0, 1):
            values[name] = _least(space[name], 2)
    return _with_threads(space, values)


def least_step(space: Space) -> float:
    """Return the seconds that a step takes at least: those of the model, or of a stage that goes one by one."""
    alone = [load.seconds for load in space.needs.loads if load.certain and _calls_of(space, load) is None]
    return max(space.needs.model, *alone, 1e-4)


def _calls_of(space: Space, load: Load) -> str | None:
    return next((name for name in (load.stage + ending for ending in _CALLS) if name in space), None)


def _calls(space: Space, load: Load, name: str) -> Value:
    """Return how many calls of a stage keep up with the model, and with what goes one by one."""
    present = space.default[name]
    needed = _AMPLE * load.seconds / least_step(space)
    if needed <= 1:
        return present
    if not load.waits:
        needed = min(needed, space.cores)
        if present == AUTOTUNE:
            return present
    return max(_least(space[name], needed), present)


def _with_threads(space: Space, values: Values) -> dict[str, Value]:
    """Return values with threads for all calls that wait, where they are more than the cores."""
    waiting = [name for load in space.needs.loads if load.waits and (name := _calls_of(space, load)) in values]
    calls = sum(int(values[name]) for name in waiting if name is not None and name.endswith(_CALLS[0]))
    without = {name: value for name, value in values.items() if name != _THREADS}
    if _THREADS not in space or calls <= space.cores:
        return without
    return without | {_THREADS: max(_least(space[_THREADS], calls), space.default[_THREADS])}


def _least(domain: tuple[Value, ...], wanted: float) -> int:
    """Return the least number of a domain that is as many as wanted, or the greatest."""
    numbers = sorted(int(value) for value in domain if value != AUTOTUNE)
    return next((number for number in numbers if number >= math.ceil(wanted)), numbers[-1])


def _more_calls(space: Space, best: Values) -> dict[str, Value]:
    return _scaled(space, best, 2)


def _fewer_calls(space: Space, best: Values) -> dict[str, Value]:
    return _scaled(space, best, 0.5)


def _scaled(space: Space, best: Values, by: float) -> dict[str, Value]:
    """Return values with so many times the calls of every stage, and threads for them."""
    changed = dict(best)
    for name, value in best.items():
        if name.endswith(_CALLS) and value != AUTOTUNE:
            changed[name] = _least(space[name], max(int(value) * by, 1))
    return _with_threads(space, changed)


def _more_threads(space: Space, best: Values) -> dict[str, Value]:
    now = int(best.get(_THREADS, 0))
    return {**best, _THREADS: _least(space[_THREADS], 2 * now)} if now else dict(best)


def _tuned_calls(space: Space, best: Values) -> dict[str, Value]:
    """Return values that leave the calls to AUTOTUNE, and keep the threads."""
    auto = {name: AUTOTUNE for name in best if name.endswith(_CALLS) and AUTOTUNE in space[name]}
    return {**best, **auto}


def _deeper_buffers(space: Space, best: Values) -> dict[str, Value]:
    return {**best, **{name: _least(space[name], 4) for name in _buffers(space)}}


def _buffers(space: Space) -> Iterator[str]:
    yield from (name for name in space if name == "end prefetch" or name.startswith("prefetch:"))


_MOVES: tuple[Callable[[Space, Values], dict[str, Value]], ...] = (
    _more_calls,
    _fewer_calls,
    _tuned_calls,
    _deeper_buffers,
    _more_threads,
)
