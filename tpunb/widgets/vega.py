"""Vega for the page: the one JavaScript file that draws charts there, from the kernel, never from a network."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tpunb.charts.render import VEGA_LITE
from tpunb.io import cache as file_cache
from tpunb.io.storage import write_atomically

_END = b"\n// whole"


@cache
def bundle() -> bytes:
    """Return Vega, Vega-Lite and vega-embed as one JavaScript module that sets ``globalThis.tpunbVega``; 0.9 MB.

    Made in a second or two, in which no other thread of the kernel runs, and kept in the user's cache folder (README,
    ``TPUNB_CACHE``) for the kernels to come.
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
    folder = file_cache.folder()
    return None if folder is None else folder / f"vega-{VEGA_LITE}-{version('vl-convert-python')}.js"
