"""What Keras keeps for each thread by itself, carried to another: a trial there is as one in the program's own.

The generator of its random numbers, the policy of precision and its like lie in no public place. Where Keras keeps them
otherwise, nothing is carried, and `TpunbError` says so.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

from tpunb.errors import TpunbError


def carried() -> Callable[[], None]:
    """Return a function that gives the thread that calls it what Keras keeps of this thread as it is now.

    The generator itself is shared: it is put back with the rest of the state. Lists and mappings, to which either
    thread adds, are copied.

    Raises
    ------
    TpunbError
        When Keras keeps it otherwise than is known here.
    """
    if "keras" not in sys.modules:
        return lambda: None
    try:
        from keras.src.backend.common import global_state

        kept = {name: _own(value) for name, value in vars(global_state.GLOBAL_STATE_TRACKER).items()}
        give = global_state.set_global_attribute
    except (ImportError, AttributeError, TypeError) as error:
        import keras

        raise TpunbError(
            f"Keras {keras.__version__} keeps the state of a thread otherwise than tpunb knows",
            hint="tune in the cell itself: tuning = tp.tune(job, ...)",
        ) from error

    def carry() -> None:
        for name, value in kept.items():
            give(name, value)

    return carry


def _own(value: object) -> object:
    return copy.copy(value) if isinstance(value, list | dict) else value
