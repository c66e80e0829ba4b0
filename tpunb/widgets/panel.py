"""Base of the widgets: a page that asks, a kernel that answers, and errors that are shown."""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anywidget
from traitlets import TraitError, Unicode

from tpunb.charts.render import VEGA_LITE
from tpunb.frames.conversion import write_atomically
from tpunb.io import cache as file_cache
from tpunb.text import format_error

_BROWSER = Path(__file__).parent / "browser"

Answer = tuple[dict[str, Any], list[bytes]]
"""An answer to the page: JSON values and bytes."""


def module(*files: str) -> str:
    """Return JavaScript files of ``widgets/browser`` as one module, page.js first, without comments."""
    lines = "\n".join((_BROWSER / file).read_text(encoding="utf-8") for file in ("page.js", *files)).splitlines()
    bare = (line.strip() for line in lines)
    return "\n".join(line for line in bare if line and not line.startswith("// "))


def packed(code: str) -> str:
    """Return a module that unpacks and imports `code`: less than half as long in a saved notebook."""
    data = base64.b64encode(zlib.compress(code.encode(), 9)).decode()
    return (
        f'const data = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));\n'
        'const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));\n'
        'const code = new Blob([await new Response(stream).text()], { type: "text/javascript" });\n'
        "const url = URL.createObjectURL(code);\n"
        "const { default: widget } = await import(url);\n"
        "URL.revokeObjectURL(url);\n"
        "export default widget;"
    )


def asset(file: str) -> str:
    """Return a file of ``widgets/browser``."""
    return (_BROWSER / file).read_text(encoding="utf-8")


class Refused(TraitError, ValueError):
    """A value that a trait cannot have; traitlets restores the previous one."""

    hint = None  # its message is a sentence already


def no_such(noun: str, value: object, names: Sequence[object]) -> Refused:
    """Return the error of a value that is not one of `names`."""
    return Refused(f"There is no {noun} {value!r}; there are {[*names] or 'none'}.")


class Panel(anywidget.AnyWidget):
    """A widget whose page asks for what it needs and shows what a callback raises.

    Front ends may run callbacks in another thread than the cell: one at a time holds the lock.
    """

    error = Unicode("", help="last error, in a line").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._turn = threading.RLock()
        self._unanswered = ""  # error of the last question
        super().__init__(**traits)
        self.on_msg(self._asked)

    def answers(self) -> Mapping[str, Callable[..., Answer | None]]:
        """Return the page's questions and their answers: functions by name, which return None for an action."""
        return {"vega": lambda: ({}, [bundle()])}

    def prepare(self) -> None:
        """Make what the page's changes need."""

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take the page's changes; show an error and restore the page where one is refused."""
        with self._turn:
            try:
                self.error = ""
                self.prepare()
                super().set_state({name: value for name, value in sync_data.items() if _settable(name)})
            except Exception as error:  # noqa: BLE001  the front end would not show it
                self.error = format_error(error)
                self.send_state([name for name in self.keys if name in sync_data])

    def _asked(self, _: Any, content: Any, buffers: list[memoryview]) -> None:
        if not isinstance(content, dict) or "ask" not in content:
            return
        with self._turn:
            try:
                answer, parts = self.answers()[content["ask"]](**content.get("with", {})) or ({}, [])
                if self.error == self._unanswered:  # a refused value's error stays until a value is taken
                    self.error = ""
            except Exception as error:  # noqa: BLE001  the front end would not show it
                self.error = self._unanswered = format_error(error)
                answer, parts = {"error": self.error}, []
        self.send({**answer, "answer": content.get("id")}, parts)


def _settable(name: str) -> bool:
    """Return whether a page may set a trait: the kernel's begin with an underscore."""
    return not name.startswith("_") or name == "_view_count"


_END = b"\n// whole"


@cache
def bundle() -> bytes:
    """Return Vega, Vega-Lite and vega-embed as one JavaScript module that sets ``globalThis.tpunbVega``; 0.9 MB.

    Made in a second or two, in which no other thread of the kernel runs, and kept for the kernels to come in a cache
    folder (README, ``TPUNB_CACHE``) that no other user can enter: it runs in notebooks and pages.
    """
    kept = _place()
    if kept is not None:
        with suppress(OSError):
            if (found := kept.read_bytes()).endswith(_END):
                return found
    import vl_convert

    made = vl_convert.javascript_bundle("globalThis.tpunbVega = { vegaEmbed };", vl_version=VEGA_LITE).encode() + _END
    if kept is not None:
        with suppress(OSError):  # a disk that is full, or a folder not to be written
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(kept, made)
    return made


def _place() -> Path | None:
    """Return where it is kept; None where nothing is to be."""
    folder = file_cache.private_folder("vega")
    return None if folder is None else folder / f"vega-{VEGA_LITE}-{version('vl-convert-python')}.js"
