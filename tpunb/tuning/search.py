"""Searches: generators that propose parameter values and receive their cost in seconds per step.

``search(space)`` yields mappings of parameter names to values, and receives the cost of each; None if the trial failed
or changed the output. It need not find the best: values win if a race shows that they are faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tpunb.errors import check_whole, need
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning.parameters import DEPENDENCES, Kind, Parameter, Value
from tpunb.tuning.racing import GAIN
from tpunb.tuning.stage_costs import StageCost

Values = Mapping[str, Value]
Proposals = Generator[Values, float | None, None]

BUFFERS = (Kind.PREFETCH, Kind.BUFFER)
"""Kinds of parameters that count batches made ahead."""


@dataclass(frozen=True)
class StepCosts:
    """Costs of one step: seconds of the model alone, and of each stage of the pipeline alone."""

    model: float
    stages: tuple[StageCost, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Space(Mapping[str, tuple[Value, ...]]):
    """The search space: candidate values by parameter name.

    Parameters
    ----------
    parameters
        Parameters that are not locked.
    measure
        Function that measures `costs` when they are first needed.
    cores
        Cores of the machine that feeds the model.
    """

    parameters: tuple[Parameter, ...]
    measure: Callable[[], StepCosts]
    cores: int = 1

    @classmethod
    def of(
        cls, parameters: tuple[Parameter, ...], measure: Callable[[], StepCosts], *, cores: int, deepest: int
    ) -> Space:
        """Return the space of a pipeline, without buffers of over `deepest` batches, which a trial would find full."""
        free = [parameter for parameter in parameters if parameter.verdict != "locked"]
        return cls(tuple(_shallow(parameter, deepest) for parameter in free), measure, cores)

    def __getitem__(self, name: str) -> tuple[Value, ...]:
        return self._by_name[name].domain

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.parameters)

    def __repr__(self) -> str:
        return f"Space({', '.join(self)})"

    def of_kind(self, *kinds: Kind) -> list[Parameter]:
        """Return the parameters of some kinds."""
        return [parameter for parameter in self.parameters if parameter.kind in kinds]

    def partners(self, parameter: Parameter) -> list[tuple[Parameter, Callable[[int], int]]]:
        """Return the parameters that limit what another one gains, and their least value by its value."""
        return [
            (other, least)
            for kind, least in DEPENDENCES.get(parameter.kind, {}).items()
            for other in self.of_kind(kind)
            if other.stage == parameter.stage
        ]

    @cached_property
    def default(self) -> dict[str, Value]:
        """The values of the program."""
        return {parameter.name: parameter.current for parameter in self.parameters}

    @cached_property
    def autotune(self) -> dict[str, Value]:
        """AUTOTUNE for every parameter that accepts it, the program's values otherwise."""
        return {name: AUTOTUNE if AUTOTUNE in self[name] else value for name, value in self.default.items()}

    @cached_property
    def costs(self) -> StepCosts:
        """The costs of a step, measured on first use in a few seconds."""
        return self.measure()

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}


Search = Callable[[Space], Proposals]


def hill_climb(space: Space) -> Proposals:
    """Propose neighbours of one parameter after the other, continuing while they are better (paper VII.B).

    Parameters that depend on each other move together, up to the second value that gains nothing: one thread that reads
    ahead often does not.

    >>> space = Space((Parameter(Kind.PREFETCH, "end", 0, (0, 1, 2, 4), "safe", ""),), lambda: StepCosts(1.0))
    >>> climb = hill_climb(space)
    >>> next(climb), climb.send(9.0), climb.send(5.0)
    ({'end prefetch': 0}, {'end prefetch': 1}, {'end prefetch': 2})
    """
    best: dict[str, Value] = dict(space.default)
    cost = yield dict(best)
    for parameter in space.parameters:
        name, domain = parameter.name, parameter.domain
        if any(
            parameter is other
            for leader in space.parameters
            if not best[leader.name]
            for other, _ in space.partners(leader)
        ):
            continue  # what it depends on is off
        patience = 2 if space.partners(parameter) else 1
        for direction in (1, -1):
            start, at, misses = best, domain.index(best[name]), 0
            while misses < patience and 0 <= (at := at + direction) < len(domain):
                neighbour = joined(space, best | {name: domain[at]})
                neighbour_cost = yield dict(neighbour)
                misses += 1
                if is_better(neighbour_cost, cost):
                    best, cost, misses = neighbour, neighbour_cost, 0
            if best is not start:
                break


def joined(space: Space, values: Values) -> dict[str, Value]:
    """Return values in which the partners of a parameter that is on are large enough for it (`DEPENDENCES`)."""
    changed = dict(values)
    for parameter in space.parameters:
        for partner, least in space.partners(parameter):
            value = int(changed.get(parameter.name, parameter.current))
            if value > 0 and int(changed.get(partner.name, partner.current)) < least(value):
                changed[partner.name] = at_least(partner, least(value))
    return changed


def at_least(parameter: Parameter, wanted: float) -> Value:
    """Return the least value of a domain that is `wanted` or more, or the greatest."""
    values = sorted((value for value in parameter.domain if value != AUTOTUNE), key=int)
    return next((value for value in values if int(value) >= math.ceil(wanted)), values[-1])


def is_better(cost: float | None, than: float | None) -> bool:
    """Return whether a cost is lower by a relevant amount; None is no cost.

    >>> is_better(0.9, 1.0), is_better(0.99, 1.0), is_better(1.0, None), is_better(None, 1.0)
    (True, False, True, False)
    """
    return cost is not None and (than is None or cost * GAIN < than)


def optuna_search(*, trials: int = 24, seed: int = 0, sampler: Any = None) -> Search:
    """Return a search by Optuna (extra ``optuna``): ``tune(job, search=optuna_search(trials=30))``.

    Parameters
    ----------
    trials
        Number of proposals, the program's values first.
    seed
        Seed of the default sampler.
    sampler
        Sampler of Optuna's; its tree-structured Parzen estimator by default.

    Raises
    ------
    MissingExtra
        If Optuna is not installed.
    ValueError
        If `trials` is below 1, or `seed` below 0.
    """
    optuna = need("optuna", extra="optuna")
    trials, seed = check_whole("optuna_search", "trials", trials, 1), check_whole("optuna_search", "seed", seed, 0)

    def search(space: Space) -> Proposals:
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it logs that the study is new
        try:
            study = optuna.create_study(sampler=sampler or optuna.samplers.TPESampler(seed=seed))
        finally:
            optuna.logging.set_verbosity(verbosity)
        study.enqueue_trial(space.default)
        for _ in range(trials):
            trial = study.ask()
            cost = yield {name: trial.suggest_categorical(name, domain) for name, domain in space.items()}
            if cost is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, cost)

    return search


def _shallow(parameter: Parameter, deepest: int) -> Parameter:
    """Return a parameter without buffer sizes that a trial does not empty."""
    if parameter.kind not in BUFFERS:
        return parameter
    domain = tuple(value for value in parameter.domain if value == parameter.current or int(value) <= deepest)
    return replace(parameter, domain=domain)
