"""Keras' thread-local state, copied to another thread so that trials there run as in the caller's.

It holds the random number generator, the precision policy and the like, and is internal to Keras.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from tpunb.instrument import keras


def copy_thread_locals() -> Callable[[], None]:
    """Return a function that gives its calling thread Keras' state of this thread.

    The random number generator is shared, since trials restore it; lists and mappings are copied.
    """
    if keras.LIBRARY.module() is None:
        return lambda: None
    try:
        module = keras.global_state()
        state = vars(module.GLOBAL_STATE_TRACKER).items()
        values = {name: copy.copy(value) if isinstance(value, list | dict) else value for name, value in state}
        set_value = module.set_global_attribute
    except (ImportError, AttributeError, TypeError) as error:
        hint = "tune in the cell itself: tuning = tp.tune(job, ...)"
        raise keras.unsupported("the thread-local state of Keras {} is", hint) from error

    def restore() -> None:
        for name, value in values.items():
            set_value(name, value)

    return restore
