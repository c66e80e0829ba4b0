"""Base of the phase methods: a short repr, labels in order of time, and the declaration of a slider."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import check_whole
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Ints


def in_order(labels: NDArray[np.integer[Any]], steps: Steps) -> Ints:
    """Renumber labels 0, 1, 2, ... by first appearance in time; -1, outliers, stays.

    >>> from tpunb.testing import toy_steps
    >>> in_order(np.array([7, -1, 3, 7]), toy_steps("abca")).tolist()
    [0, -1, 1, 0]
    """
    from tpunb.cluster.kernels import renumbered  # compiled

    return renumbered(labels.astype(np.int64, copy=False), _by_start(steps), int(labels.max(initial=-1)) + 1)


@memoised
def _by_start(steps: Steps) -> Ints:
    return np.argsort(steps.frame["start_ps"].to_numpy(), kind="stable")


def of_one_kind(labels: Ints, kinds: Ints) -> Ints:
    """Return labels without two kinds of steps, such as training and evaluation, under one; -1 stays.

    >>> of_one_kind(np.array([0, 0, -1, 1]), np.array([0, 1, 1, 1])).tolist()
    [0, 1, -1, 3]
    """
    return np.where(labels < 0, -1, labels * (int(kinds.max(initial=0)) + 1) + kinds)


@dataclass(frozen=True)
class Curve:
    """One plot of a sweep: a column of it over the swept parameter.

    Parameters
    ----------
    column
        Column of the sweep. Integers are drawn as counts.
    title
        Title of the axis; for counts the plural of what is counted. The column's name if empty.
    percent_of
        Base of a share from 0 to 1, which is drawn in percent of it ("steps").
    """

    column: str
    title: str = ""
    percent_of: str = ""


@dataclass(frozen=True)
class SliderSpec:
    """Slider of a phase method, declared by the method's class as its attribute ``slider``.

    The method is a frozen dataclass. The curve over the slider is drawn from ``Labels.sweeps[parameter]``, a frame with
    a column of that name, one for each curve, and ``chosen``; a method without that sweep has a slider and no curve.

    Parameters
    ----------
    parameter
        Field of the method, and name of its sweep.
    label
        Name beside the slider and on the axis.
    step
        Distance between two positions; 1 or more for integers.
    least, most
        First and last position; the largest swept value if `most` is None.
    title
        Title of the chart.
    curves
        Plots of the sweep, from top to bottom.
    rules
        Names of Boolean columns that mark what other rules would choose, by column.
    fixed
        Other parameters that keep the value chosen from their sweeps while the slider moves.

    Raises
    ------
    ValueError
        When neither `most` nor a curve says where the slider ends.

    >>> SliderSpec("threshold", "similarity threshold", step=0.01, least=0.0, most=1.0).parameter
    'threshold'
    """

    parameter: str
    label: str
    step: float
    least: float
    most: float | None = None
    title: str = ""
    curves: tuple[Curve, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.most is None and not self.curves:
            raise ValueError(
                "The most parameter of SliderSpec must be given when there are no curves. Got None instead."
            )


class Parameters:
    """Parameters of a phase method, with a repr of those that are not the default."""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]  # every child is a dataclass
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def _hold_whole(self, **least: int) -> None:
        """Convert parameters to ints of `least` or more each; None stays if it is the default."""
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name) is not None:
                object.__setattr__(self, name, check_whole(type(self).__name__, name, value, low))


def knee(
    x: Sequence[int], y: Sequence[float], *, direction: Literal["decreasing", "increasing"] = "decreasing"
) -> int | None:
    """Return the x of the knee of a convex curve, or None if it has none.

    The Kneedle algorithm (Satopaa et al. 2011) of the package kneed; `x` ascends. A knee at 0 is a knee: test
    ``is None``.

    >>> knee(range(1, 8), [100, 40, 10, 9, 8, 7, 6])
    3
    >>> knee([0, 1, 2, 3], [4, 3, 2, 1]) is None
    True
    """
    xs, ys = np.asarray(x, dtype=np.int64), np.asarray(y, dtype=np.float64)
    if len(xs) != len(ys):
        raise ValueError(f"The y parameter of knee must be as long as x, {len(xs)}. Got {len(ys)} instead.")
    if len(xs) < 4 or not np.isfinite(ys).all() or np.ptp(ys) == 0:
        return None
    bend = np.interp(xs, xs[[0, -1]], ys[[0, -1]]) - ys  # from the curve up to the line between its ends
    if bend.max() <= 1e-9 * np.ptp(ys):
        return None  # kneed finds knees in the rounding of a straight line, and at the ends of the opposite shape

    from kneed import KneeLocator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "No knee/elbow found" is the answer None
        elbow = KneeLocator(xs, ys, curve="convex", direction=direction).knee
    return None if elbow is None else int(elbow)
