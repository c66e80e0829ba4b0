"""One line that says how a capture stands while its cell runs, and where it stood, the summary.

In a notebook one output is updated in place, at most once a second; in a terminal a plain line comes once a minute.
Nothing listens anywhere: the kernel's own channel carries it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TextIO
from uuid import uuid4

from IPython import display as ipython
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from tpunb.frames.words import plain
from tpunb.watcher import Status
from tpunb.widgets.tables import safe

_LOOK = (
    "color:var(--jp-content-font-color1,currentColor);font-size:13px;line-height:1.45;"
    "font-variant-numeric:tabular-nums;overflow-wrap:anywhere"
)
_display: Callable[..., object] = ipython.display  # IPython gives it no type
_LAST_S = 5.0  # how long the end of a cell waits for the thread


class Watched(Protocol):
    """What can be followed: a `tpunb.recorder.Run`."""

    @property
    def status(self) -> Status:
        """How it stands."""


class Place(Protocol):
    """Where the line stands, and after it the result."""

    every_s: float | None
    """How often a new line may come; None for never."""
    lasts: bool
    """Whether the line is there from the first moment to the last."""

    def line(self, text: str) -> None:
        """Show how it stands; from any thread."""

    def over(self) -> None:
        """Hear that the code of the cell is over; from its thread."""

    def result(self, value: object) -> None:
        """Show what came out; from the thread of the cell."""


class LiveLine:
    """Follows a capture from a thread of its own; what goes wrong in it never reaches the cell.

    Parameters
    ----------
    place
        Where it is shown.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._run: Watched | None = None
        self._text: str | None = None
        self._broken: Exception | None = None

    def __enter__(self) -> LiveLine:
        return self

    def follow(self, run: Watched) -> None:
        """Begin to show how `run` stands."""
        if self._place.every_s is None:
            return
        self._run = run
        if self._place.lasts:
            self._look()
        self._thread = threading.Thread(target=self._follow, name="tpunb-live", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LAST_S)
            if self._place.lasts and not self._thread.is_alive():
                self._look()  # what is left where no result can be shown
            self._place.over()
        if self._broken is not None:
            warnings.warn(f"the live line ended early: {self._broken!r}", RuntimeWarning, stacklevel=2)

    def show(self, value: object) -> None:
        """Show the result, where the line stood."""
        self._place.result(value)

    def _follow(self) -> None:
        while self._broken is None and not self._ended.wait(self._place.every_s):
            if self._look() != "running":
                return

    def _look(self) -> str | None:
        """Show how the run stands, if it reads otherwise than before; return its state."""
        if self._run is None or self._broken is not None:
            return None
        try:
            status = self._run.status
            text = plain(str(status))
            if text != self._text:
                self._place.line(text)
                self._text = text
            return status.state
        except Exception as broken:  # noqa: BLE001  must not end the training; told at the end
            self._broken = broken
            return None


class InCell:
    """One output of the cell, updated in place.

    Parameters
    ----------
    shell
        Of a kernel.
    """

    every_s: float | None = 1.0
    lasts = True

    def __init__(self, shell: InteractiveShell) -> None:
        # kept: code of the cell may put another in its place for a while, to collect outputs of its own
        self._publisher: Any = shell.display_pub
        self._name = f"tpunb-{uuid4().hex}"
        self._shown = False
        self._cleared = False

    def line(self, text: str) -> None:
        """Show how it stands; the first time from the thread of the cell."""
        # steps go by every second: `off` keeps a screen reader from saying each
        html = f'<div class="tpunb-live" role="status" aria-live="off" style="{_LOOK}">{safe(text)}</div>'
        self._publish({"text/html": html, "text/plain": text})
        if not self._shown:
            self._shown = True
            if hasattr(self._publisher, "register_hook"):
                self._publisher.register_hook(self._notice)

    def over(self) -> None:
        """Listen no more."""
        if hasattr(self._publisher, "unregister_hook"):
            self._publisher.unregister_hook(self._notice)

    def result(self, value: object) -> None:
        """Show what came out in the line's place; anew where the cell cleared its output."""
        update = self._shown and not self._cleared
        if self._shown and self._cleared:  # it may have been the output of a widget, and the line still there
            self._publish({})
            self._name = f"tpunb-{uuid4().hex}"
        _display(value, display_id=self._name, update=update)
        if hasattr(value, "shown_at"):
            value.shown_at(self._name)

    def _publish(self, data: dict[str, str]) -> None:
        self._publisher.publish(data=data, metadata={}, transient={"display_id": self._name}, update=self._shown)

    def _notice(self, message: dict[str, Any]) -> dict[str, Any]:
        """Hand on a message of the cell, and remember whether it cleared the output."""
        self._cleared = self._cleared or message["header"]["msg_type"] == "clear_output"
        return message


class InTerminal:
    """A plain line a minute.

    Parameters
    ----------
    stream
        Where it is written; the standard error of now unless given, whatever the cell redirects later.
    """

    every_s: float | None = 60.0
    lasts = False

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def line(self, text: str) -> None:
        """Write how it stands."""
        print(f"tpunb: {text}", file=self._stream, flush=True)

    def over(self) -> None:
        """Do nothing."""

    def result(self, value: object) -> None:
        """Show what came out."""
        _display(value)


class AtTheEnd:
    """No line, but the result: where outputs are collected, each update would be one more."""

    every_s: float | None = None
    lasts = False

    def line(self, text: str) -> None:
        """Show nothing."""

    def over(self) -> None:
        """Do nothing."""

    def result(self, value: object) -> None:
        """Show what came out."""
        _display(value)


class Nowhere(AtTheEnd):
    """No line, and no result either."""

    def result(self, value: object) -> None:
        """Show nothing."""


def place(shell: InteractiveShell, *, quiet: bool = False) -> Place:
    """Return where a cell of this shell shows its line and its result."""
    if quiet:
        return Nowhere()
    if isinstance(shell.display_pub, CapturingDisplayPublisher):
        return AtTheEnd()
    return InCell(shell) if getattr(shell, "kernel", None) is not None else InTerminal()
