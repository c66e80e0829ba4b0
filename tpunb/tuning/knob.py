"""One adjustable parameter of an input pipeline: where it is, what it may be, and whether the output stays the same."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from tpunb.errors import TpunbError

Verdict = Literal["proved", "to be verified", "refused"]
Value = int | bool | str

AUTOTUNE = -1
"""tf.data chooses, and goes on choosing while it runs."""

_STRICTER: tuple[Verdict, ...] = ("proved", "to be verified", "refused")


@dataclass(frozen=True)
class Knob:
    """An adjustable parameter of a pipeline.

    Attributes
    ----------
    name
        Where it is and what it is, in words: "map:1(parse) parallel calls". Unique within its pipeline.
    stage
        The stage it belongs to, counted from the source: "map:1(parse)"; "end" and "options" for what belongs to none.
    present
        Its value as the program was written.
    domain
        Values worth trying, the present one among them; empty where it is refused.
    verdict
        "proved" not to change the output; "to be verified" by comparing outputs; "refused".
    why
        The reason for the verdict, in a sentence.
    """

    name: str
    stage: str
    present: Value
    domain: tuple[Value, ...]
    verdict: Verdict
    why: str

    def check(self, value: Value) -> Value:
        """Return a value for this knob: one of the domain, or a whole number between its ends.

        Raises
        ------
        TpunbError
            When the knob is refused and the value is not the present one.
        ValueError
            When the value is not one that this knob can take.
        """
        if type(value) is type(self.present) and value == self.present:
            return value
        if self.verdict == "refused":
            raise TpunbError(f"{self.name} stays at {self.present!r}: {self.why}", hint="leave it out of the values")
        if any(type(value) is type(known) and value == known for known in self.domain):
            return value
        numbers = [int(n) for n in self.domain if _is_number(n) and n != AUTOTUNE]
        if numbers and _is_number(value) and min(numbers) <= int(value) <= max(numbers):
            return int(value)
        raise ValueError(f"The value of {self.name!r} must be {self._must(numbers)}. Got {value!r} instead.")

    def _must(self, numbers: list[int]) -> str:
        if not numbers:
            return f"one of {', '.join(map(repr, self.domain))}"
        auto = f" or {AUTOTUNE} (AUTOTUNE)" if AUTOTUNE in self.domain else ""
        return f"a whole number from {min(numbers)} to {max(numbers)}{auto}"


def checked(knobs: Iterable[Knob], values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that differ from the present ones, each checked by its knob, in the order of the knobs.

    Raises
    ------
    ValueError
        When a name is none of a knob, or a value none that its knob can take.
    TpunbError
        When a refused knob would change.
    """
    named = {knob.name: knob for knob in knobs}
    if strange := sorted(set(values) - set(named)):
        raise ValueError(f"no knob is named {strange[0]!r}; there are {', '.join(map(repr, named)) or 'none'}")
    taken = {name: knob.check(values[name]) for name, knob in named.items() if name in values}
    return {name: value for name, value in taken.items() if value != named[name].present}


def strictest(*verdicts: Verdict) -> Verdict:
    """Return the one of the verdicts that allows least.

    >>> strictest("proved", "to be verified")
    'to be verified'
    """
    return max(verdicts, key=_STRICTER.index)


def calls(present: int | None, most: int | None = None) -> tuple[int, ...]:
    """Return numbers of parallel calls worth trying: up to eight a core, AUTOTUNE last; none above `most`.

    >>> calls(3, most=4)[-2:]
    (4, -1)
    """
    cores = os.cpu_count() or 1
    tried = {1, 2, cores, 2 * cores, 4 * cores, 8 * cores, 8, 16} | ({present} if present else set())
    if most is not None:
        tried = {min(n, most) for n in tried}
    return (*sorted(tried - {AUTOTUNE}), AUTOTUNE)


def buffers(present: int) -> tuple[int, ...]:
    """Return sizes of a prefetch buffer worth trying, 0 (none) first and AUTOTUNE last.

    >>> buffers(3)
    (0, 1, 2, 3, 4, 8, 16, -1)
    """
    return (*sorted({0, 1, 2, 4, 8, 16, present} - {AUTOTUNE}), AUTOTUNE)


def threads(present: int) -> tuple[int, ...]:
    """Return sizes of a private thread pool worth trying; 0 is the pool that all pipelines share."""
    cores = os.cpu_count() or 1
    return tuple(sorted({0, cores, 4 * cores, 16 * cores, present}))


def _is_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
