"""TPUPoint for notebooks: profile a whole training run, and group its steps into phases.

Data flows in one direction: capture → load → steps → phases → explore; from a phase's checkpoint on: resume, tune.
Names are those of ``__init__.pyi``, and are imported when they are first used.

>>> import tpunb as tp
>>> tp.phases(tp.sample("keras_cnn")).coverage(3) > 0.9
True
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from tpunb import signals
from tpunb.errors import extras_named

_import_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        with extras_named():
            return _import_name(name)
    from importlib import metadata

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError as error:  # a copy of the sources
        raise AttributeError("__version__") from error


def _reduce_window(*window: Any) -> Any:
    from tpunb.profiler.reducer import reduce_window

    return reduce_window(*window)


signals.window_reducers.append(_reduce_window)


def load_ipython_extension(shell: Any) -> None:
    """Add ``%tpupoint`` and ``%%tpupoint`` to a shell: what ``%load_ext tpunb`` calls."""
    from tpunb import magic

    magic.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove what `load_ipython_extension` added."""
    from tpunb import magic

    magic.unload_ipython_extension(shell)
