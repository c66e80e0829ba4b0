"""What was seen of a training that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from tpunb.text import duration, enumerated


class Standing(NamedTuple):
    """What a capture saw last of a training that stands still.

    Parameters
    ----------
    since
        When the last step had ended, in local time.
    seconds
        How long no step had ended when this was seen.
    step
        Number of the last step; None if none had ended.
    place
        Line of the program at which the thread that trains was, and what it called; None if unknown.
    ended
        Child processes that had ended, each with how.
    is_now
        Whether the run continues; False if its process was killed.
    rank
        Number of the process in its job; None if it is of none.
    waits
        Whether the thread that trains is in a library that may wait there for other ranks.
    is_counted
        Whether steps are counted; if not, it may have stood still before.
    """

    since: datetime
    seconds: float
    step: int | None
    place: str | None
    ended: tuple[str, ...]
    is_now: bool
    rank: int | None = None
    waits: bool = False
    is_counted: bool = True

    def __str__(self) -> str:
        """Return it in one sentence.

        >>> since = datetime(2026, 11, 30, 12, 3, 7)
        >>> str(Standing(since, 61, 600, "hang.py:7 in batch ← queue.get", ("worker 2: ended with signal 9",), True))
        'stands still since 12:03:07 (step 600): hang.py:7 in batch ← queue.get; worker 2: ended with signal 9'
        """
        step = "before the first step" if self.step is None else f"step {self.step:,}"
        if not self.is_counted:
            begin = f"stands still at least since {self.since:%H:%M:%S}"
            return "; ".join([begin + (f": {self.place}" if self.place else ""), *self.ended])
        how = "stands still" if self.is_now else f"stood still for {duration(self.seconds * 1e12)} until it was killed,"
        begin = f"{how} since {self.since:%H:%M:%S} ({step})"
        return "; ".join([begin + (f": {self.place}" if self.place else ""), *self.ended])


def of_ranks(standings: Sequence[Standing]) -> Standing | None:
    """Return what is seen of a job whose ranks stand still: which wait, and which of them never came.

    >>> since = datetime(2026, 11, 30, 12, 3, 7)
    >>> waits = [Standing(since, 61, 412, "a.py:9 ← all_reduce", (), True, rank, True) for rank in (0, 1, 3)]
    >>> of_ranks([*waits, Standing(since, 61, 411, "b.py:41 in load", (), True, 2)]).place
    'ranks 0, 1, 3 wait at a.py:9 ← all_reduce; rank 2 never came: b.py:41 in load'
    """
    if len(standings) < 2:
        return next(iter(standings), None)
    alone = [each for each in standings if not each.waits]
    if len(alone) == len(standings):  # by how far each came
        least = min(each.step or 0 for each in standings)
        behind = [each for each in standings if (each.step or 0) == least]
        alone = behind if len(behind) < len(standings) else []
    parts = [f"{_ranks(of_place)} at {place}" for place, of_place in _by_place(standings, alone)]
    parts += [f"rank {each.rank} never came: {each.place or 'its line is not known'}" for each in alone]
    longest = max(standings, key=lambda each: each.seconds)
    step = max((each.step for each in standings if each.step is not None), default=None)
    ended = tuple(line for each in standings for line in each.ended)
    is_now = any(each.is_now for each in standings)
    return Standing(longest.since, longest.seconds, step, "; ".join(parts), ended, is_now)


def _by_place(standings: Sequence[Standing], alone: Sequence[Standing]) -> list[tuple[str, list[Standing]]]:
    others = sorted(
        (each for each in standings if each not in alone), key=lambda each: (each.place or "", each.rank or 0)
    )
    return [(place or "a line that is not known", [*of]) for place, of in groupby(others, lambda each: each.place)]


def _ranks(standings: Sequence[Standing]) -> str:
    numbers = enumerated(each.rank for each in standings)
    return f"rank {numbers} waits" if len(standings) == 1 else f"ranks {numbers} wait"
