"""The live line: the status of a capture while its cell runs, then the summary in its place."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

from tpunb.text import plain
from tpunb.widgets.frontends import OutputTarget

if TYPE_CHECKING:
    from tpunb.profiler.capture import Run

_JOIN_S = 5.0  # the longest that the end of a cell waits for the thread


class LiveLine:
    """Follows a capture in a thread; its errors never reach the cell.

    Parameters
    ----------
    target
        Where it is shown.
    """

    def __init__(self, target: OutputTarget) -> None:
        self._target = target
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._capture: Run | None = None
        self._text: str | None = None
        self._error: Exception | None = None

    def __enter__(self) -> LiveLine:
        return self

    def follow(self, capture: Run) -> None:
        """Start to show the status of a capture."""
        if self._target.every_s is None:
            return
        self._capture = capture
        if self._target.lasts:
            self._update()
        self._thread = threading.Thread(target=self._follow, name="tpunb-live", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._target.lasts and not self._thread.is_alive():
                self._update()  # stays if no result can be shown
            self._target.close()
        if self._error is not None:
            warnings.warn(f"the live line stopped early: {self._error!r}", RuntimeWarning, stacklevel=2)

    def _follow(self) -> None:
        while self._error is None and not self._ended.wait(self._target.every_s):
            if self._update() != "running":
                return

    def _update(self) -> str | None:
        """Show the status if its text changed; return its state."""
        if self._capture is None or self._error is not None:
            return None
        try:
            status = self._capture.status
            text = plain(str(status))
            if text != self._text:
                self._target.line(text)
                self._text = text
            return status.state
        except Exception as error:  # noqa: BLE001  must not end the training; warned about at the end
            self._error = error
            return None
