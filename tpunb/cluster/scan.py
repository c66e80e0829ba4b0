"""Phases while the run still goes: the online scan, with phases that come back recognised."""

from __future__ import annotations

from collections.abc import Iterable

from tpunb.cluster.ols import OnlineOLS

_ALIKE = 0.7  # Jaccard similarity at which a new stretch of steps is a phase that was there before
_MOST = 256  # phases; a run that would have more has none


class PhaseScan:
    """A rough cut of a run in progress, to decide by what is worth another window, and which windows to keep.

    Where :class:`~tpunb.cluster.ols.OnlineOLS` (paper equation 1) or another mark opens a phase, its operations are
    held against those of the phases before: if it is one of them, its number comes back.

    >>> scan = PhaseScan()
    >>> [scan.feed("train", ops) for ops in ("ab", "ab", "xy", "ab")]
    [0, 0, 1, 0]
    """

    def __init__(self, threshold: float = 0.7) -> None:
        self._scan = OnlineOLS(threshold)
        self._stretch: tuple[int, str] | None = None
        self._phase = -1
        self._known: list[tuple[str, frozenset[str]]] = []

    def __len__(self) -> int:
        return len(self._known)

    def feed(self, mark: str, ops: Iterable[str]) -> int:
        """Return the phase of the next step: one seen before, or the next number."""
        now = frozenset(ops)
        stretch = self._scan.feed(now), mark
        if stretch != self._stretch:
            self._stretch = stretch
            self._phase = self._find(mark, now)
        self._known[self._phase] = mark, now
        return self._phase

    def _find(self, mark: str, ops: frozenset[str]) -> int:
        alike = [len(ops & known) / max(len(ops | known), 1) if own == mark else -1.0 for own, known in self._known]
        best = max(range(len(alike)), key=alike.__getitem__, default=-1)
        if best >= 0 and (alike[best] >= _ALIKE or len(self._known) == _MOST):
            return best
        self._known.append((mark, ops))
        return len(self._known) - 1
