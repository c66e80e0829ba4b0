"""What the libraries of a program are asked to do: one module a library, and one owner of their attributes.

Nothing here knows an account, a cause or a sentence, and no other room wraps an attribute of a library, or looks for
its module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType

from tpunb.instrument.sink import Sink

LIBRARIES: tuple[ModuleType, ...] = tuple(
    import_module(f"{__name__}.{name}")
    for name in (
        "keras",
        "torch",
        "jax",
        "tensorflow",
        "grain",
        "datasets",
        "python",
        "orbax",
        "safetensors",
        "transformers",
        "lightning",
    )
)
"""The modules of this room that a capture listens to: each has a `LIBRARY` and a function `listen`."""


@contextmanager
def listening(sink: Sink, libraries: Iterable[ModuleType] = ()) -> Iterator[None]:
    """Listen to these libraries, or all, while the block runs: to each as soon as the program has imported it."""
    with ExitStack() as stack:
        for library in libraries or LIBRARIES:
            library.listen(sink, stack)
        yield


def misfits() -> list[str]:
    """Return what of the libraries that the program has imported is not as it was tried, in a line each."""
    return [line for library in LIBRARIES for line in library.LIBRARY.misfits()]
