"""What a trial raised, told in a line."""

from __future__ import annotations

import re

from tpunb.errors import TpunbError
from tpunb.frames.words import cut, plain

_AROUND = re.compile(r"Graph execution error:|Detected at node|File \"|\[\[|Traceback|\(\d+\) [A-Z]+:|\d+ root error")
_RAISED = re.compile(r"[A-Z]\w*(Error|Exception): ")
"""Of the pages that TensorFlow tells: what stands around the reason, and what Python raised in it."""


class Refused(TpunbError):
    """A trial raised: its values are no longer adjustable (paper VII.A)."""


def in_words(error: BaseException) -> str:
    r"""Return an error in a line that is safe to show; of TensorFlow's pages, the line that tells what happened.

    >>> in_words(ValueError("no such file\nin the second line"))
    'ValueError: no such file'
    """
    kind = type(error).__name__
    lines = [line.strip() for line in str(getattr(error, "message", None) or error).splitlines()]
    lines = [line for line in lines if line and not _AROUND.match(line)]
    raised = [line for line in lines if _RAISED.match(line)]
    line = plain((raised or lines or [""])[0])
    if not isinstance(error, TpunbError) and not raised:
        line = f"{kind}: {line}" if line else kind
    return cut(line, 300)
