"""What tuning found beside the best of a grid, and beside the program: timed in turns, and counted over pipelines."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

NEAR, SLOWER = 0.95, 1.03
"""Least ratio of the grid's best time to the tuned one that is near it; least of the tuned to the program's: slower."""


def in_turns(data: Mapping[str, Any], seconds: Callable[[Any], float], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each, one figure a turn; in each turn, they run in random order."""
    taken: dict[str, list[float]] = {name: [] for name in data}
    for _ in range(turns):
        for name in random.sample(list(data), len(data)):
            taken[name].append(seconds(data[name]))
    return taken


def ratio(taken: Mapping[str, list[float]], name: str) -> float:
    """Return the median ratio of a time to the tuned one of the same turn."""
    return statistics.median(a / b for a, b in zip(taken[name], taken["ours"], strict=True))


def summary(found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the figures of all pipelines."""
    return {
        "of": len(found),
        "near_best": sum(each["of_best"] >= NEAR for each in found.values()),
        "slower": sum(each["vs_program"] < 1 / SLOWER for each in found.values()),
        "changed": sum(int(each["changed"]) for each in found.values()),
        "search_s": round(sum(each["search_s"] for each in found.values()), 1),
        "vs_program": {name: round(each["vs_program"], 2) for name, each in found.items()},
        "of_best": {name: round(each["of_best"], 3) for name, each in found.items()},
    }
