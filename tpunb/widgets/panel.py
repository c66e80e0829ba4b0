"""What the widgets share: a page that asks, a kernel that answers, and errors that are seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
from traitlets import TraitError, Unicode

from tpunb.errors import TpunbError
from tpunb.frames.words import plain
from tpunb.widgets.vega import bundle

_BROWSER = Path(__file__).parent / "browser"

Answer = tuple[dict[str, Any], list[bytes]]
"""What goes to the page: values of JSON, and bytes."""


def module(*files: str) -> str:
    """Return JavaScript files of ``widgets/browser`` as one module, what they share first, without comments.

    Every widget that is saved with a notebook bears it.
    """
    lines = "\n".join((_BROWSER / file).read_text(encoding="utf-8") for file in ("page.js", *files)).splitlines()
    bare = (line.strip() for line in lines)
    return "\n".join(line for line in bare if line and not line.startswith("// "))


def asset(file: str) -> str:
    """Return a file of ``widgets/browser``."""
    return (_BROWSER / file).read_text(encoding="utf-8")


class Refused(TraitError, ValueError):
    """A value that a trait cannot have: a wrong argument like any other, which traitlets takes back."""


class Panel(anywidget.AnyWidget):
    """A widget whose page asks for what it needs; what goes wrong in a callback is shown on it.

    Front ends may run callbacks in a thread of their own, beside the cell: one at a time holds the lock.
    """

    error = Unicode("", help="what went wrong last, in a line").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._turn = threading.RLock()
        self._unanswered = ""  # the error of the question before
        super().__init__(**traits)
        self.on_msg(self._asked)

    def answers(self) -> Mapping[str, Callable[..., Answer]]:
        """Return what the page may ask for: functions of what it says, by name."""
        return {"vega": lambda: ({}, [bundle()])}

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take what the page changed; where that is refused, say so on the page and show what holds."""
        with self._turn:
            try:
                self.error = ""
                super().set_state({name: value for name, value in sync_data.items() if _theirs(name)})
            except Exception as error:  # noqa: BLE001  the front end would not show it
                self.error = told(error)
                self.send_state([name for name in self.keys if name in sync_data])

    def _asked(self, _: Any, content: Any, buffers: list[memoryview]) -> None:
        if not isinstance(content, dict) or "ask" not in content:
            return
        with self._turn:
            try:
                answer, parts = self.answers()[content["ask"]](**content.get("with", {}))
                if self.error == self._unanswered:  # what was refused stays said until something is taken
                    self.error = ""
            except Exception as error:  # noqa: BLE001  the front end would not show it
                self.error = self._unanswered = told(error)
                answer, parts = {"error": self.error}, []
        self.send({**answer, "answer": content.get("id")}, parts)


def _theirs(name: str) -> bool:
    """Return whether a page may set a trait: the kernel's own begin with a line below, as does the count of views."""
    return not name.startswith("_") or name == "_view_count"


def told(error: Exception) -> str:
    """Return an error in a line."""
    hint = getattr(error, "hint", None) if isinstance(error, TpunbError) else None
    kind = "" if isinstance(error, (TpunbError, ValueError, TraitError)) else f"{type(error).__name__}: "
    return plain("; ".join(filter(None, [f"{kind}{error}", hint])))
