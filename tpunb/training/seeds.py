"""Random state of the process: Python, NumPy, PyTorch, Keras' global seed generator and TensorFlow's global seed.

The last two are private: a moved generator raises `TpunbError`, a moved seed is left alone.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tpunb.instrument.keras import LIBRARY as KERAS
from tpunb.instrument.keras import seed_modules
from tpunb.instrument.tensorflow import eager_context
from tpunb.instrument.torch import LIBRARY as TORCH
from tpunb.training.snapshot import reading


@dataclass(frozen=True, eq=False)
class RandomState:
    """Random state of the process at one moment."""

    host: Mapping[str, Any]  # of Python's, NumPy's and PyTorch's random numbers, as `host_random_state` returns it
    keras: NDArray[Any] | None  # of Keras' global seed generator; None if there was none
    tensorflow: Any  # of TensorFlow's eager seeds, as `tensorflow_random_state` returns it

    @classmethod
    def capture(cls) -> Self:
        """Return the present random state."""
        seeds = None
        if (generator := keras_generator()) is not None:
            import keras

            seeds = np.array(keras.ops.convert_to_numpy(generator.state))
        return cls(host_random_state(), seeds, tensorflow_random_state())

    def restore(self) -> None:
        """Restore it."""
        generator = keras_generator()
        if generator is not None and self.keras is not None:
            generator.state.assign(self.keras)
        elif generator is not None:  # Keras created it since
            forget_keras_generator()
        set_host_random_state(self.host)
        set_tensorflow_random_state(self.tensorflow)


def host_random_state() -> dict[str, Any]:
    """Return the state of the random numbers of Python, NumPy and, if it is imported, PyTorch, as JSON values."""
    version, numbers, gauss = random.getstate()
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(name), np.asarray(key).tolist(), int(position), int(has_gauss), float(cached)],
        **{name: [to_text(each) for each in states()] for name, (states, _) in _torch_generators().items()},
    }


_SAVED = Path("the checkpoint", "its random state")


@reading(_SAVED)
def set_host_random_state(state: Mapping[str, Any]) -> None:
    """Restore a state of `host_random_state`."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.array(key, dtype=np.uint32), *rest))
    for device, (_, restore) in _torch_generators().items():
        if device in state:
            restore([from_text(each) for each in state[device]])


def _torch_generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return how the states of PyTorch's global generators are read and set, of those devices that were used."""
    if (torch := TORCH.module()) is None:
        return {}
    devices: dict[str, tuple[Any, Any]] = {
        "torch": (lambda: [torch.get_rng_state()], lambda states: torch.set_rng_state(states[0]))
    }
    if torch.cuda.is_initialized():
        devices["cuda"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    if torch.backends.mps.is_available():
        devices["mps"] = (lambda: [torch.mps.get_rng_state()], lambda states: torch.mps.set_rng_state(states[0]))
    return devices


def to_text(state: Any) -> str:
    """Return the state of a generator of PyTorch as text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def from_text(state: str) -> Any:
    """Return a state of `to_text`."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)


def tensorflow_random_state() -> Any:
    """Return TensorFlow's global seed and the state of its eager seeds as JSON values; None without TensorFlow."""
    if (context := eager_context()) is None:
        return None
    drawn = context._rng.getstate() if isinstance(context._rng, random.Random) else None
    return [context._seed, None if drawn is None else [drawn[0], list(drawn[1]), drawn[2]]]


@reading(_SAVED)
def set_tensorflow_random_state(state: Any) -> None:
    """Restore a state of `tensorflow_random_state`, and the operations that hold eager seeds drawn since."""
    if (context := eager_context()) is None or state in (None, tensorflow_random_state()):
        return
    seed, drawn = state
    if drawn is not None and hasattr(context, "_set_global_seed"):
        context._set_global_seed(seed)  # removes the operations
    context._seed, context._rng = seed, None
    if drawn is not None:
        context._rng = random.Random()
        context._rng.setstate((drawn[0], tuple(drawn[1]), drawn[2]))


def keras_generator() -> Any:
    """Return Keras' global seed generator; None if Keras is not imported or has not created it."""
    if KERAS.module() is None:
        return None
    global_state, seed_generator = seed_modules()
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def make_keras_generator() -> Any:
    """Return Keras' global seed generator; if there is none, Keras creates it from Python's random numbers."""
    return seed_modules()[1].global_seed_generator()


def forget_keras_generator() -> None:
    """Let Keras create a new global seed generator when it next needs one."""
    global_state, seed_generator = seed_modules()
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


@contextmanager
def ensured_keras_generator() -> Iterator[bool]:
    """Have Keras' global seed generator in the block; yield whether it was created for the block and is then removed.

    A generator that the first trial creates could not be restored before the next: compiled functions would hold it.
    """
    created = KERAS.module() is not None and keras_generator() is None
    if created:
        make_keras_generator()
    try:
        yield created
    finally:
        if created:
            forget_keras_generator()
