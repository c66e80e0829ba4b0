"""Keras' global seed generator, from which whatever has no generator of its own draws.

It lies in no public place: where Keras keeps it otherwise than is known here, `TpunbError` says so.
"""

from __future__ import annotations

import sys
from typing import Any

from tpunb.errors import TpunbError


def generator() -> Any:
    """Return the generator; None where Keras has made none yet, or is not there."""
    if "keras" not in sys.modules:
        return None
    global_state, seeds = _inside()
    return global_state.get_global_attribute(seeds.GLOBAL_SEED_GENERATOR)


def make() -> Any:
    """Return the generator, made if it was not there: by Python's random numbers, as Keras makes it."""
    return _inside()[1].global_seed_generator()


def forget() -> None:
    """Let Keras make another when it next needs one."""
    global_state, seeds = _inside()
    global_state.set_global_attribute(seeds.GLOBAL_SEED_GENERATOR, None)


def _inside() -> tuple[Any, Any]:
    try:
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator

        _ = global_state.get_global_attribute, global_state.set_global_attribute
        _ = seed_generator.global_seed_generator, seed_generator.GLOBAL_SEED_GENERATOR
    except (ImportError, AttributeError) as error:
        import keras

        raise TpunbError(
            f"Keras {keras.__version__} keeps its seeds otherwise than tpunb knows", hint="use an earlier Keras"
        ) from error
    return global_state, seed_generator
