"""A search from measured stage costs: each stage gets the calls it needs to keep up with the model.

tf.data has one thread per core, which waiting calls block: a stage that waits can run more calls than there are cores
only with more threads. So moving one parameter at a time fails here. Threads that read for Grain need room in its
buffer, and share one core where functions in Python compute, which worker processes do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning.parameters import Kind, Parameter, Value
from tpunb.tuning.search import BUFFERS, Proposals, Space, Values, at_least, is_better, joined
from tpunb.tuning.stage_costs import StageCost

_HEADROOM = 1.5  # calls by those that just suffice: some take longer than others
_NEAR = 1.05  # step time by the least possible one at which the search ends

CALLS = (Kind.CALLS, Kind.READ_THREADS, Kind.WORKERS)
"""Kinds of parameters that count what runs at once."""


def model_based(space: Space) -> Proposals:
    """Propose the predicted values, then neighbours of the best so far in a few directions, while steps get faster."""
    best, least = predicted(space), least_step(space)
    cost = yield dict(best)
    for move in _LOADER_MOVES if space.of_kind(Kind.WORKERS, Kind.PREFETCH_FACTOR, Kind.PINNED) else _MOVES:
        while (neighbour := move(space, best)) != best:
            if cost is not None and cost < _NEAR * least:
                return
            neighbour_cost = yield dict(neighbour)
            if not is_better(neighbour_cost, cost):
                break
            best, cost = neighbour, neighbour_cost


def predicted(space: Space) -> dict[str, Value]:
    """Return values with which every stage keeps up with the model.

    A stage that mostly waits (`StageCost.waits`) gets one and a half times the calls that it needs, and the pipeline
    gets threads for all of them; a stage that computes gets at most one call per core. Two batches are prefetched.
    What a parameter depends on is raised with it (`joined`).
    """
    values: dict[str, Value] = {}
    for cost in space.costs.stages:
        parameter = _calls_of(space, cost)
        if parameter is not None and (calls := _calls(space, cost, parameter)) != parameter.current:
            values[parameter.name] = calls
    for buffer in space.of_kind(*BUFFERS):
        if buffer.current in (0, 1):
            values[buffer.name] = at_least(buffer, 2)
    return joined(space, _with_threads(space, values))


def least_step(space: Space) -> float:
    """Return the least seconds of a step: of the model, or of a stage that cannot run in parallel."""
    costs = [] if space.of_kind(Kind.PROCESSES) else space.costs.stages  # which run all stages
    serial = [cost.seconds for cost in costs if cost.certain and _calls_of(space, cost) is None]
    return max(space.costs.model, *serial, 1e-4)


def _calls_of(space: Space, cost: StageCost) -> Parameter | None:
    """Return the parameter for the parallel calls of a stage."""
    return next((parameter for parameter in space.of_kind(*CALLS) if parameter.stage == cost.stage), None)


def _calls(space: Space, cost: StageCost, parameter: Parameter) -> Value:
    """Return the number of calls with which a stage keeps up with the model and the serial stages."""
    needed = _HEADROOM * cost.seconds / least_step(space)
    if parameter.kind is Kind.WORKERS:  # at most as many as keep all cores busy, and perhaps fewer than now
        needed = min(max(needed, 1), space.cores / max(cost.busy, 0.01), cost.most)
        return at_least(parameter, needed if needed >= 1 else 0)
    if (needed <= 1 and parameter.current != 0) or (parameter.current == AUTOTUNE and not cost.waits):
        return parameter.current
    calls = at_least(parameter, max(needed, 1) if cost.waits else min(needed, space.cores))
    is_slowed = parameter.kind is Kind.READ_THREADS and not cost.waits  # more threads of Python than cores compete
    return calls if is_slowed else max(calls, parameter.current, key=int)


def _with_threads(space: Space, values: Values) -> dict[str, Value]:
    """Return values with threads for all calls that wait, if these exceed the cores."""
    waiting = [_calls_of(space, cost) for cost in space.costs.stages if cost.waits]
    calls = sum(
        int(values.get(parameter.name, 0)) for parameter in waiting if parameter and parameter.kind is Kind.CALLS
    )
    changed = dict(values)
    for pool in space.of_kind(Kind.POOL):
        changed.pop(pool.name, None)
        if calls > space.cores:
            changed[pool.name] = max(at_least(pool, calls), pool.current)
    return changed


def _scaled_calls(space: Space, best: Values, factor: float) -> dict[str, Value]:
    """Return values with a multiple of the calls of every stage, and threads for them."""
    changed = dict(best)
    for parameter in space.of_kind(*CALLS):
        value = best.get(parameter.name, AUTOTUNE)
        if value != AUTOTUNE:
            changed[parameter.name] = at_least(parameter, max(int(value) * factor, 1))
    return joined(space, _with_threads(space, changed))


def _more_threads(space: Space, best: Values) -> dict[str, Value]:
    pools = [pool for pool in space.of_kind(Kind.POOL) if best.get(pool.name)]
    return {**best, **{pool.name: at_least(pool, 2 * int(best[pool.name])) for pool in pools}}


def _autotuned_calls(space: Space, best: Values) -> dict[str, Value]:
    """Return values that leave the calls to AUTOTUNE, and keep the threads."""
    calls = [parameter for parameter in space.of_kind(*CALLS) if parameter.name in best]
    return {**best, **{parameter.name: AUTOTUNE for parameter in calls if AUTOTUNE in parameter.domain}}


def _deeper_buffers(space: Space, best: Values) -> dict[str, Value]:
    return {**best, **{buffer.name: at_least(buffer, 4) for buffer in space.of_kind(*BUFFERS)}}


def _deeper_reads(space: Space, best: Values) -> dict[str, Value]:
    """Return values with more room for what is read, if reading waits: for longer at times, perhaps."""
    waiting = {cost.stage for cost in space.costs.stages if cost.waits}
    buffers = [buffer for buffer in space.of_kind(Kind.ELEMENTS) if buffer.stage in waiting]
    sizes = {buffer: int(best.get(buffer.name, buffer.current)) for buffer in buffers}
    return {**best, **{buffer.name: at_least(buffer, 4 * size) for buffer, size in sizes.items() if size > 1}}


def _serial_reads(space: Space, best: Values) -> dict[str, Value]:
    """Return values that read in the step itself, where no thread computes beside another."""
    computing = [_calls_of(space, cost) for cost in space.costs.stages if not cost.waits]
    return {**best, **{each.name: 0 for each in computing if each and each.kind is Kind.READ_THREADS}}


def _in_processes(space: Space, best: Values) -> dict[str, Value]:
    """Return values with a process per core, if functions in Python compute more than a step leaves time for."""
    if sum(cost.busy * cost.seconds for cost in space.costs.stages) < least_step(space):
        return dict(best)
    processes = {parameter.name: at_least(parameter, space.cores) for parameter in space.of_kind(Kind.PROCESSES)}
    return joined(space, {**best, **processes})


def _scaled_workers(space: Space, best: Values, factor: float) -> dict[str, Value]:
    """Return values with a multiple of the workers, at least one; or without workers."""
    changed = dict(best)
    for workers in space.of_kind(Kind.WORKERS):
        count = int(best.get(workers.name, workers.current))
        changed[workers.name] = at_least(workers, max(count * factor, 1) if factor else 0)
    return changed


def _with(space: Space, best: Values, kind: Kind, value: Value) -> dict[str, Value]:
    """Return values with another one for a kind, if it may be set."""
    return {**best, **{parameter.name: value for parameter in space.of_kind(kind) if value in parameter.domain}}


_LOADER_MOVES: tuple[Callable[[Space, Values], dict[str, Value]], ...] = (
    partial(_scaled_workers, factor=2),
    partial(_scaled_workers, factor=0.5),
    partial(_scaled_workers, factor=0),
    partial(_with, kind=Kind.PREFETCH_FACTOR, value=4),
    partial(_with, kind=Kind.PINNED, value=True),
    partial(_with, kind=Kind.PERSISTENT, value=True),
)
"""Each doubles, halves or sets one parameter of a DataLoader; a worker that is not needed costs memory."""

_MOVES: tuple[Callable[[Space, Values], dict[str, Value]], ...] = (
    _deeper_reads,  # before processes, whose trials take seconds to start
    _in_processes,
    partial(_scaled_calls, factor=2),
    partial(_scaled_calls, factor=0.5),
    _serial_reads,
    _autotuned_calls,
    _deeper_buffers,
    _more_threads,
)
