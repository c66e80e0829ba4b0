"""``tp.sweep``: one model family at many sizes, measured in rounds."""

from __future__ import annotations

import inspect
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import polars as pl

from tpunb.analysis import machine
from tpunb.errors import IncompatibleRuns, wrong_type
from tpunb.frames.hardware import DEVICES, Device
from tpunb.studies.step_times import StepTime, step_times
from tpunb.studies.sweeps.points import Request, Setup
from tpunb.studies.sweeps.process import PointProcess
from tpunb.studies.sweeps.results import Sweep
from tpunb.text import plain, plural

_PATIENCE_S = 60.0
"""Seconds for the first steps of a point, at least: it is built and compiled."""

_ROUND_S = 0.1  # for the blocks of a cheap point in a round
_BLOCKS = 5  # at most
_FEWEST_ROUNDS, _MOST_ROUNDS = 8, 60  # rounds, if the budget lasts
_SIX = 6  # rounds, of which the least and the greatest contain the median at 95 %
_NARROW = 0.02  # width of an interval by its median, at which all is known
_CROWDED = 0.6  # share of the memory limit at which the points that are built are dropped

Mode = Literal["train", "predict"]


def sweep(
    build: Callable[..., tuple[Any, Any]],
    *,
    budget: float = 60.0,
    mode: Mode = "train",
    watts: Callable[[], float] | None = None,
    step: Callable[[Any, Any], Any] | None = None,
    into: str | Path | None = None,
    **grid: Iterable[Any],
) -> Sweep:
    """Measure a model at all combinations of some parameters: where throughput saturates, what a size costs.

    Each round measures every point once, in random order, so that a slow minute affects all. Points run in a process of
    their own, in which one that needs too much memory or ends the process costs nothing but itself. Steps are taken on
    one batch in memory: the input pipeline is not measured.

    Parameters
    ----------
    build
        ``build(**point)`` returns (model, data): a compiled Keras model on any backend, and data whose first batch
        counts; arrays (x, y) are one batch. It is sent to the process by value.
    budget
        Seconds, after the start of the process and before 5 s for the peaks of a CPU; a sweep ends sooner when its
        intervals are within 2 %. One point is measured in any case.
    mode
        "train", or "predict", in which every prediction is waited for: its times are latencies.
    watts
        Power of the device now, for `joules`; null without it.
    step
        ``step(model, batch)`` for a loop without Keras: changes `model` in place, and returns the loss.
    into
        Parquet file of the sweep, written after each round. If there is one of the same grid, the sweep continues it.
    **grid
        Values of each parameter of `build`.

    Returns
    -------
    Sweep
        A row for each point, also for those that failed or were not reached. An interrupt returns what was measured.

    Raises
    ------
    ValueError
        When the grid is empty, names a parameter that `build` does not have, or `mode` is another.
    BadProfile
        When a parameter has the name of a column of a sweep or its answers, such as "dtype" or "value".
    TypeError
        When `build` is no function.
    IncompatibleRuns
        When the file `into` is of another grid or mode.
    """
    if not callable(build):
        raise wrong_type("sweep", "build", "be a function of the parameters that returns (model, data)", build)
    if mode not in ("train", "predict"):
        raise ValueError(f"The mode parameter of sweep must be 'train' or 'predict'. Got {mode!r} instead.")
    if not budget > 0:
        raise ValueError(f"The budget parameter of sweep must be above 0 seconds. Got {budget!r} instead.")
    points = _points(build, grid)
    measuring = _Measuring(Setup(build, step, mode, 0), tuple(grid), [_Point(values) for values in points], watts)
    measuring.result()  # raises what is wrong with the names and values of the grid, before anything runs
    if into is not None and Path(into).exists():
        measuring.continue_from(Sweep.read(into))
    measuring.run(float(budget), None if into is None else Path(into))
    return measuring.result()


def _points(build: Callable[..., Any], grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of a grid; a value alone is a list of one."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # of a function without a signature
        parameters = inspect.signature(build).parameters
    takes_any = not parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for name in () if takes_any else grid:
        if name not in parameters:
            close = get_close_matches(name, list(parameters), 1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"build has no parameter {name!r}, only {', '.join(parameters) or 'none'}.{meant}")
    values = {name: _values(each) for name, each in grid.items()}
    if not values or not all(values.values()):
        empty = next((name for name, each in values.items() if not each), "")
        problem = f"The {empty} parameter has no values." if empty else "No parameter was given."
        raise ValueError(f"The grid of sweep must have a point. {problem}")
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def _values(given: Any) -> list[Any]:
    if isinstance(given, str | bytes | tuple) or not isinstance(given, Iterable):
        return [given]
    return list(dict.fromkeys(given))


@dataclass
class _Point:
    """A point, and what was measured there."""

    values: Mapping[str, Any]
    state: str = "not reached"
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: dict[int, float] = field(default_factory=dict)  # seconds of a step
    single: list[float] = field(default_factory=list)  # of steps that were waited for alone
    watts: list[float] = field(default_factory=list)

    def add(self, number: int, reply: Mapping[str, Any]) -> None:
        """Keep the reply of a round."""
        if reply["state"] != "ok":
            if not self.rounds:
                self.state = reply["state"]
            return
        self.state = "ok"
        self.facts |= reply["facts"] or {}
        ordered = sorted(reply["blocks"])
        self.rounds[number] = ordered[len(ordered) // 2]
        self.single += reply["single"]
        self.watts += [] if reply["watts"] is None else [reply["watts"]]

    @property
    def is_open(self) -> bool:
        """Whether it is worth another round."""
        return self.state in ("ok", "not reached")


class _Measuring:
    """The rounds of a sweep."""

    def __init__(
        self, setup: Setup, names: Sequence[str], points: list[_Point], watts: Callable[[], float] | None
    ) -> None:
        self.setup, self.names, self.points = setup, tuple(names), points
        self._process = PointProcess(setup, watts)
        self._number = 0
        self._cpu: Device | None = None  # its peaks, once measured

    def continue_from(self, saved: Sweep) -> None:
        """Keep the rounds of a saved sweep of the same grid."""
        modes = set(saved.frame["mode"].drop_nulls()) - {self.setup.mode}
        rows = saved.frame.to_dicts()
        if saved.parameters != self.names or modes or len(rows) != len(self.points):
            raise IncompatibleRuns(
                "the saved sweep is of another grid or mode", hint="give another file, or the same parameters and mode"
            )
        for point, row in zip(self.points, rows, strict=True):
            if {name: row[name] for name in self.names} != _plain(point.values):
                raise IncompatibleRuns("the saved sweep is of another grid", hint="give another file")
            rounds = row["rounds_ps"] or []
            point.rounds = {number: turn / 1e12 for number, turn in enumerate(rounds) if turn is not None}
            point.state = row["state"]
            point.facts = {name: row[name] for name in _FACTS}
            self._number = max(self._number, len(rounds))

    def run(self, budget: float, into: Path | None) -> None:
        """Measure in rounds for some seconds, or until all is known; an interrupt ends it."""
        from tqdm.auto import tqdm

        with tqdm(total=round(budget), unit="s", leave=False, desc="sweep") as bar:
            try:
                self._process.start()
                begun = time.monotonic()
                while not self._is_decided and time.monotonic() < begun + budget:
                    self._round(begun + budget, lambda: _show(bar, time.monotonic() - begun, self._open))
                    if into is not None:
                        self.result().save(into)
            except KeyboardInterrupt:
                pass  # what was measured is returned
            finally:
                self._process.close()
            if self._is_cpu:
                bar.set_postfix_str("peaks of this CPU")
                self._cpu = self._cpu or machine.measured()
                if into is not None:
                    self.result().save(into)

    def _round(self, until: float, show: Callable[[], None]) -> None:
        number, self._number = self._number, self._number + 1
        order = [place for place, point in enumerate(self.points) if point.is_open]
        random.shuffle(order)
        order.sort(key=lambda place: bool(self.points[place].rounds))  # those that a budget has not reached, first
        is_crowded = False
        for place in order:
            if (left := until - time.monotonic()) <= 0:
                return
            point = self.points[place]
            last = min(point.rounds.values(), default=_ROUND_S)
            blocks = max(1, min(int(_ROUND_S / last), _BLOCKS))
            request = Request(place, point.values, blocks, is_crowded)
            patience = max(_PATIENCE_S, 100 * last) if point.rounds else _PATIENCE_S
            is_first = not any(each.rounds for each in self.points)
            reply = self._process.ask(request, patience if is_first else min(patience, left))
            if left < patience and not is_first and reply["state"].startswith("failed: no answer"):
                return  # the budget has ended, not the patience with this point
            is_crowded = reply.get("rss", 0) > _CROWDED * self._process.limit
            point.add(number, reply)
            show()

    @property
    def _is_cpu(self) -> bool:
        return any(point.facts.get("device") == "CPU" and point.facts.get("flops") for point in self.points)

    @property
    def _open(self) -> int:
        return sum(point.is_open for point in self.points)

    @property
    def _is_decided(self) -> bool:
        """Whether all intervals are narrow, or no point is left."""
        open_points = [point for point in self.points if point.is_open]
        if any(len(point.rounds) < _FEWEST_ROUNDS for point in open_points):
            return False
        times = step_times(self._seconds())
        widths = [each.high - each.low <= _NARROW * each.median for each in times if each.median > 0]
        return all(widths) or self._number >= _MOST_ROUNDS

    def _seconds(self) -> list[list[float]]:
        """Return the seconds of a step by round and point; NaN where a point was not reached."""
        return [[point.rounds.get(number, float("nan")) for point in self.points] for number in range(self._number)]

    def result(self) -> Sweep:
        """Return the sweep so far."""
        times = step_times(self._seconds()) if self._number else [None] * len(self.points)
        rows = []
        for point, taken in zip(self.points, times, strict=True):
            row = {**_plain(point.values), **{name: point.facts.get(name) for name in _FACTS}, "mode": self.setup.mode}
            row |= {"state": point.state, "rounds": len(point.rounds)}
            row["rounds_ps"] = [
                round(point.rounds[number] * 1e12) if number in point.rounds else None for number in range(self._number)
            ]
            if point.rounds and taken is not None:
                single = sorted(point.single)
                p95 = single[int(0.95 * len(single))] if len(single) >= 20 else None
                watts = sum(point.watts) / len(point.watts) if point.watts else None
                row |= _figures(taken, row, self._cpu) | {
                    "p95_ps": None if p95 is None else round(p95 * 1e12),
                    "joules": None if watts is None else watts * taken.median,
                }
            rows.append(row)
        endless = [str(dict(point.values)) for point in self.points if point.facts.get("finite") is False]
        notes = {"loss is not finite": "; ".join(map(plain, endless))} if endless else {}
        return Sweep(pl.DataFrame(rows, infer_schema_length=None), self.names, chip=self._cpu, metadata=notes)


_FACTS = ("device", "framework", "version", "dtype", "weights", "examples", "flops", "bytes", "peak_bytes")
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


def _figures(taken: StepTime, row: Mapping[str, Any], cpu: Device | None) -> dict[str, Any]:
    """Return what follows from the time of a step and the facts of a point."""
    figures: dict[str, Any] = {
        "step_ps": round(taken.median * 1e12),
        "low_ps": round(taken.low * 1e12) if row["rounds"] >= _SIX else None,
        "high_ps": round(taken.high * 1e12) if row["rounds"] >= _SIX else None,
        "examples_per_s": row["examples"] / taken.median if row["examples"] else None,
    }
    others = (each for each in DEVICES.values() if each.of_kind(row["device"]))
    device = cpu if row["device"] == "CPU" else next(others, None)
    dtype = _DTYPES.get(row["dtype"] or "")
    peak = None if device is None else {device.dtype: device.peak_flops, **device.peaks}.get(dtype or "")
    if device is not None and peak and row["flops"]:
        figures["flops_util"] = row["flops"] / taken.median / peak
        figures["device"] = device.name
        if row["bytes"]:
            is_compute = row["flops"] / row["bytes"] >= peak / device.bandwidth
            figures["bound"] = "compute" if is_compute else "memory"
    return figures


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a point as a frame can hold them."""
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
    }


def _show(bar: Any, seconds: float, points: int) -> None:
    bar.set_postfix_str(plural(points, "point"), refresh=False)
    bar.update(min(round(seconds), bar.total) - bar.n)
