"""The front end at hand: whether it shows widgets, and where outputs go.

In a notebook one output is updated in place; in a terminal a plain line comes once a minute. Everything goes over the
kernel's own channel.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO
from uuid import uuid4

from tpunb.errors import warn_user
from tpunb.text import plain
from tpunb.widgets.table import safe

if TYPE_CHECKING:
    from tpunb.profiler.capture import Run

_LOOK = (
    "color:var(--jp-content-font-color1,currentColor);font-size:13px;line-height:1.45;"
    "font-variant-numeric:tabular-nums;overflow-wrap:anywhere"
)
_TENSORFLOW_LOG = re.compile(
    r"^(?:[^\n]*\b(?:profiler_session|profiler_server|port|cudart_stub|cpu_feature_guard)\.cc:\d+\]"
    r"|WARNING: All log messages before absl::InitializeLog)[^\n]*\n?",
    re.MULTILINE,
)


def in_kernel() -> bool:
    """Return whether this process is a kernel, whose front end may show widgets."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def hide_profiler_log(stream: Any) -> Callable[[], None]:
    """Leave out of a kernel's stream what TensorFlow logs of its start, and of its profiler, four lines a window.

    Return a function that ends it. Hooks of a stream are those of its own thread.
    """

    def without(message: dict[str, Any]) -> dict[str, Any] | None:
        kept = _TENSORFLOW_LOG.sub("", message["content"]["text"])
        return {**message, "content": {**message["content"], "text": kept}} if kept else None

    stream.pub_thread.schedule(partial(stream.register_hook, without))
    return partial(stream.pub_thread.schedule, partial(stream.unregister_hook, without))


def only_ipywidgets() -> bool:
    """Return whether the front end loads no other packages' widgets: ``TPUNB_WIDGETS=plain``."""
    return os.environ.get("TPUNB_WIDGETS") == "plain"


class DisplayHandles:
    """The outputs in which a panel is shown, so that they can be updated.

    Pictures and tables, and below them the panel, which hides them while it lives: in a notebook that is opened without
    its kernel the pictures are visible, and the front end's error below them is not.
    """

    def __init__(self) -> None:
        self.name = f"tpunb-{uuid4().hex}"  # of the pictures, for the panel
        self._pictures: list[str] = []
        self._panels: list[str] = []

    def show(self, data: dict[str, Any], panel: dict[str, Any] | None = None) -> None:
        """Show data in a new output, and a panel in one below."""
        name = self._publish(data)
        self._pictures.append(name)
        if panel is not None:
            self.show_below(name, panel)

    def show_below(self, pictures: str, panel: dict[str, Any]) -> None:
        """Show a panel below the output with its pictures."""
        self._pictures = [*dict.fromkeys([*self._pictures, pictures])]
        self._panels.append(self._publish({"text/plain": "", **panel}))

    def _publish(self, data: dict[str, Any]) -> str:
        name = f"tpunb-{uuid4().hex}"
        _display().publish_display_data(data, {}, **_at(name))
        return name

    def marked(self, html: str) -> str:
        """Return pictures as HTML that a panel hides."""
        below = (
            f'.jp-OutputArea-child:has([data-tpunb="{self.name}"])+.jp-OutputArea-child .jupyter-widgets:not(:has(*))'
        )
        style, hint = f"<style>{below}{{display:none}}</style>", "Static view. For the panel, run this cell again."
        return f'<div data-tpunb="{self.name}">{style}<p style="opacity:.8">{hint}</p>{html}</div>'

    def redraw(self, data: dict[str, str]) -> None:
        """Replace the pictures by `data` in all outputs."""
        for name in self._pictures:
            _display().publish_display_data(data, {}, **_at(name), update=True)

    def update(self, data: dict[str, str]) -> None:
        """Replace pictures and panel by `data` in all outputs."""
        self.redraw(data)
        for name in self._panels:
            _display().publish_display_data({"text/plain": ""}, {}, **_at(name), update=True)


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
    """Writes a plain line per minute to today's standard error, even if the cell redirects it later."""

    every_s = 60.0

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def line(self, text: str) -> None:
        """Write a line."""
        print(f"tpunb: {text}", file=self._stream, flush=True)


class CellOutput(OutputTarget):
    """Updates one output of the cell in place."""

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

    def result(self, value: Any) -> None:
        """Show the result in place of the line, or in a new output if the cell cleared its output."""
        update = self._shown and not self._cleared
        if self._shown and self._cleared:  # perhaps a widget's output was cleared, and the line is still visible
            self._publish({})
            self._display_id = f"tpunb-{uuid4().hex}"
        if hasattr(value, "pictures"):
            _display().publish_display_data(value.pictures(), {}, **_at(self._display_id), update=update)
            value.shown_at(self._display_id)
        else:
            _display().display(value, display_id=self._display_id, update=update)

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


def _at(display_id: str) -> dict[str, Any]:
    return {"transient": {"display_id": display_id}}


def _display() -> Any:
    from IPython import display

    return display


_JOIN_S = 5.0  # the longest that the end of a cell waits for the thread


class LiveLine:
    """Follows a capture in a thread; its errors never reach the cell."""

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
        thread = threading.Thread(target=self._follow, name="tpunb-live", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many
            self._error = error
            return
        self._thread = thread

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._target.lasts and not self._thread.is_alive():
                self._update()  # stays if no result can be shown
            self._target.close()
        if self._error is not None:
            warn_user(f"the live line stopped early: {self._error!r}", RuntimeWarning, stacklevel=2)

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
