"""Searches: generators that propose values of knobs and are sent what they cost, in seconds a step.

``search(space)`` yields mappings of knobs to values; those that it leaves out stay as they are. It is sent the cost of
each, or None where the values were refused or changed the output. What is best is no affair of a search: values win
that a race has shown to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tpunb.tuning.knob import AUTOTUNE, Knob, Value
from tpunb.tuning.loads import Load
from tpunb.tuning.race import GAIN

Values = Mapping[str, Value]
Proposals = Generator[Values, float | None, None]


@dataclass(frozen=True)
class Needs:
    """What the data and the model take for a step, each alone: seconds of the model, and the load of each stage."""

    model: float
    loads: tuple[Load, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Space(Mapping[str, tuple[Value, ...]]):
    """What may be tried: the values worth trying by the name of the knob.

    Parameters
    ----------
    knobs
        That may change without the output changing, or may be tried to see.
    measure
        Finds `needs` when they are asked for.
    cores
        Of the machine that feeds the model.
    """

    knobs: tuple[Knob, ...]
    measure: Callable[[], Needs]
    cores: int = 1

    @classmethod
    def of(cls, knobs: tuple[Knob, ...], measure: Callable[[], Needs], *, cores: int, deepest: int) -> Space:
        """Return the space of a pipeline's knobs, less what a short trial cannot tell.

        That is other orders of stages and caches, which pay in the next epoch; and buffers of more than `deepest`
        batches, which a trial would find filled.
        """
        free = [knob for knob in knobs if knob.verdict != "refused" and not _is_order(knob)]
        return cls(tuple(_shallow(knob, deepest) for knob in free), measure, cores)

    def __getitem__(self, name: str) -> tuple[Value, ...]:
        return self._named[name].domain

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self.knobs)

    def __repr__(self) -> str:
        return f"Space({', '.join(self)})"

    @cached_property
    def default(self) -> dict[str, Value]:
        """The values of the program."""
        return {knob.name: knob.present for knob in self.knobs}

    @cached_property
    def autotune(self) -> dict[str, Value]:
        """AUTOTUNE wherever a knob takes it, the values of the program elsewhere."""
        return {knob.name: AUTOTUNE if AUTOTUNE in knob.domain else knob.present for knob in self.knobs}

    @cached_property
    def needs(self) -> Needs:
        """What the data and the model take, measured when it is first asked for, in a few seconds."""
        return self.measure()

    @cached_property
    def _named(self) -> dict[str, Knob]:
        return {knob.name: knob for knob in self.knobs}


Search = Callable[[Space], Proposals]


def hill_climb(space: Space) -> Proposals:
    """Propose the neighbours of one parameter after the other, going on in a direction while it helps (paper VII.B).

    If no neighbour is better than the present value, that stays.

    >>> space = Space((Knob("prefetch", "end", 0, (0, 1, 2, 4), "proved", ""),), lambda: Needs(1.0))
    >>> climb = hill_climb(space)
    >>> next(climb), climb.send(9.0), climb.send(5.0)
    ({'prefetch': 0}, {'prefetch': 1}, {'prefetch': 2})
    """
    best: dict[str, Value] = dict(space.default)
    cost = yield dict(best)
    for name, domain in space.items():
        for direction in (1, -1):
            at = domain.index(best[name]) + direction
            moved = False
            while 0 <= at < len(domain):
                neighbour = best | {name: domain[at]}
                told = yield dict(neighbour)
                if not is_better(told, cost):
                    break
                best, cost, moved = neighbour, told, True
                at += direction
            if moved:
                break


def is_better(cost: float | None, than: float | None) -> bool:
    """Say whether a cost is lower by more than a change is worth; None is no cost at all.

    >>> is_better(0.9, 1.0), is_better(0.99, 1.0), is_better(1.0, None), is_better(None, 1.0)
    (True, False, True, False)
    """
    return cost is not None and (than is None or cost * GAIN < than)


def _is_order(knob: Knob) -> bool:
    return knob.name.endswith((" order", " cached")) or " before " in knob.name


def _shallow(knob: Knob, deepest: int) -> Knob:
    """Return a knob without the buffers that hold more batches than a trial empties."""
    if knob.name != "end prefetch" and not knob.name.startswith("prefetch:"):
        return knob
    domain = tuple(value for value in knob.domain if value == knob.present or int(value) <= deepest)
    return Knob(knob.name, knob.stage, knob.present, domain, knob.verdict, knob.why)
