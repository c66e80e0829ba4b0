"""TensorFlow's own global seed, and how far operations that are not compiled have drawn by it.

Both lie in no public place: where TensorFlow keeps them otherwise than is known here, they are left alone.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def state() -> Any:
    """Return the seed, and the state of what draws by it; None where TensorFlow is not there."""
    context = _context()
    if context is None:
        return None
    return context._seed, context._rng.getstate() if isinstance(context._rng, random.Random) else None


def put_back(state: Any) -> None:
    """Make both what they were."""
    context = _context()
    if context is None or state is None:
        return
    seed, drawn = state
    context._seed = seed
    context._rng = None
    if drawn is not None:
        context._rng = random.Random()
        context._rng.setstate(drawn)


def _context() -> Any:
    if "tensorflow" not in sys.modules:
        return None
    try:
        from tensorflow.python.eager.context import context
    except ImportError:
        return None
    now = context()
    return now if hasattr(now, "_seed") and hasattr(now, "_rng") else None
