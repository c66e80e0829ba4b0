"""Everything that can go wrong, named once.

::

    TpunbError
    ├── ProfileNotFound  (FileNotFoundError)  nothing to read at that path
    ├── BadProfile       (ValueError)         bytes or columns that cannot be trusted
    ├── NoSteps          (ValueError)         a profile without steps
    ├── Unlike           (ValueError)         runs that are not to be compared unasked
    ├── CaptureBusy      (RuntimeError)       two captures at once
    └── MissingExtra     (ImportError)        an optional package is not installed

Wrong arguments are plain ``ValueError`` or ``TypeError``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class TpunbError(Exception):
    """The one class to catch; ``hint`` says what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint is not None:
            self.add_note(f"Hint: {hint}")


class ProfileNotFound(TpunbError, FileNotFoundError):
    """No profile lies at the given path."""


class BadProfile(TpunbError, ValueError):
    """The file or the frame is not what a profile must be."""


class NoSteps(TpunbError, ValueError):
    """The profile holds no steps."""


class Unlike(TpunbError, ValueError):
    """The runs are of another model or another precision: what differs between them is no change."""


class CaptureBusy(TpunbError, RuntimeError):
    """A capture already runs in this process, or the profiler is taken."""


class MissingExtra(TpunbError, ImportError):
    """An optional package is needed and not installed."""


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional package.

    Raises
    ------
    MissingExtra
        When it is not installed; the hint names the extra that brings it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed", hint=f"pip install 'tpunb[{extra}]'") from error
