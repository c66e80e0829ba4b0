"""The front end at hand: whether it shows widgets, and where outputs go.

In a notebook one output is updated in place; in a terminal a plain line comes once a minute. Everything goes over the
kernel's own channel.
"""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO
from uuid import uuid4

from tpunb.widgets.html_tables import safe

_LOOK = (
    "color:var(--jp-content-font-color1,currentColor);font-size:13px;line-height:1.45;"
    "font-variant-numeric:tabular-nums;overflow-wrap:anywhere"
)


def in_kernel() -> bool:
    """Return whether this process is a kernel, whose front end may show widgets."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def only_ipywidgets() -> bool:
    """Return whether the front end loads no other packages' widgets: ``TPUNB_WIDGETS=plain``."""
    return os.environ.get("TPUNB_WIDGETS") == "plain"


class DisplayHandles:
    """The outputs in which a panel is shown, so that they can be updated."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def show(self, panel: Any) -> None:
        """Show the panel in a new output."""
        display_id = f"tpunb-{uuid4().hex}"
        data, metadata = panel._repr_mimebundle_() or ({}, {})
        _display().publish_display_data(data, metadata, transient={"display_id": display_id})
        self.add(display_id)

    def add(self, display_id: str) -> None:
        """Add an output in which the panel is shown."""
        self._ids.append(display_id)

    def update(self, data: dict[str, str]) -> None:
        """Replace the panel by `data` in all outputs."""
        for display_id in self._ids:
            _display().publish_display_data(data, {}, transient={"display_id": display_id}, update=True)


class OutputTarget:
    """Where a cell shows the live line, and then its result; this one shows nothing."""

    every_s: float | None = None
    """Seconds between two lines; None for no lines."""
    lasts = False
    """Whether the line is visible from start to end."""

    def line(self, text: str) -> None:
        """Show a line; callable from any thread."""

    def close(self) -> None:
        """End the lines; called in the cell's thread."""

    def result(self, value: object) -> None:
        """Show the result; called in the cell's thread."""


class ResultOnly(OutputTarget):
    """Shows the result without lines: where outputs are collected, each update would be one more."""

    def result(self, value: object) -> None:
        """Show the result."""
        _display().display(value)


class TerminalOutput(ResultOnly):
    """Writes a plain line per minute.

    Parameters
    ----------
    stream
        Where to write; by default today's standard error, even if the cell redirects it later.
    """

    every_s = 60.0

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def line(self, text: str) -> None:
        """Write a line."""
        print(f"tpunb: {text}", file=self._stream, flush=True)


class CellOutput(OutputTarget):
    """Updates one output of the cell in place.

    Parameters
    ----------
    shell
        Shell of a kernel.
    """

    every_s = 1.0
    lasts = True

    def __init__(self, shell: Any) -> None:
        # kept: the cell may replace it for a while, to collect outputs
        self._publisher: Any = shell.display_pub
        self._display_id = f"tpunb-{uuid4().hex}"
        self._shown = False
        self._cleared = False

    def line(self, text: str) -> None:
        """Show a line; the first time from the cell's thread."""
        # `off`: a screen reader must not read out every second
        html = f'<div class="tpunb-live" role="status" aria-live="off" style="{_LOOK}">{safe(text)}</div>'
        self._publish({"text/html": html, "text/plain": text})
        if not self._shown:
            self._shown = True
            if hasattr(self._publisher, "register_hook"):
                self._publisher.register_hook(self._on_message)

    def close(self) -> None:
        """Remove the hook of this output."""
        if hasattr(self._publisher, "unregister_hook"):
            self._publisher.unregister_hook(self._on_message)

    def result(self, value: object) -> None:
        """Show the result in place of the line, or in a new output if the cell cleared its output."""
        update = self._shown and not self._cleared
        if self._shown and self._cleared:  # perhaps a widget's output was cleared, and the line is still visible
            self._publish({})
            self._display_id = f"tpunb-{uuid4().hex}"
        _display().display(value, display_id=self._display_id, update=update)
        if hasattr(value, "shown_at"):
            value.shown_at(self._display_id)

    def _publish(self, data: dict[str, str]) -> None:
        where = {"display_id": self._display_id}
        self._publisher.publish(data=data, metadata={}, transient=where, update=self._shown)

    def _on_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Note whether the cell cleared its output; pass the message on."""
        self._cleared = self._cleared or message["header"]["msg_type"] == "clear_output"
        return message


def output_target(shell: Any, *, quiet: bool = False) -> OutputTarget:
    """Return where a cell of this shell shows its line and its result."""
    from IPython.core.displaypub import CapturingDisplayPublisher

    if quiet:
        return OutputTarget()
    if isinstance(shell.display_pub, CapturingDisplayPublisher):
        return ResultOnly()
    return CellOutput(shell) if getattr(shell, "kernel", None) is not None else TerminalOutput()


def _display() -> Any:
    from IPython import display

    return display
