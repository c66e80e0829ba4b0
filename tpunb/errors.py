"""Everything that can go wrong, named once.

::

    TpunbError
    ├── ProfileNotFound  (FileNotFoundError)  nothing to read at that path
    ├── BadProfile       (ValueError)         bytes or columns that cannot be trusted
    ├── NoSteps          (ValueError)         a profile without steps
    ├── Unlike           (ValueError)         runs that are not to be compared unasked
    ├── CaptureBusy      (RuntimeError)       two captures at once
    └── MissingExtra     (ImportError)        an optional package is not installed

Wrong arguments are plain ``ValueError`` or ``TypeError``, in scikit-learn's sentence; some are asked for so often that
their check stands here.
"""

from __future__ import annotations

from importlib import import_module
from numbers import Integral, Real
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


def wrong(owner: str, name: str, must: str, got: object, *, hint: str | None = None) -> TypeError:
    """Return the error for an argument of the wrong kind; ``hint`` says what to do next.

    >>> wrong("phases", "steps", "be Steps", 3)
    TypeError('The steps parameter of phases must be Steps. Got 3 instead.')
    """
    error = TypeError(f"The {name} parameter of {owner} must {must}. Got {got!r} instead.")
    if hint is not None:
        error.add_note(f"Hint: {hint}")
    return error


def whole(owner: str, name: str, value: object, least: int) -> int:
    """Return a parameter that is a whole number of `least` or more: Python's or NumPy's, but no bool.

    Raises
    ------
    ValueError
        When it is not.

    >>> whole("KMeans", "k", 3, 1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"The {name} parameter of {owner} must be an int of {least} or more. Got {value!r} instead.")
    return int(value)


def share(owner: str, name: str, value: object) -> float:
    """Return a parameter that is a number from 0 to 1, but no bool.

    Raises
    ------
    ValueError
        When it is not.

    >>> share("OLS", "threshold", 0.7)
    0.7
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"The {name} parameter of {owner} must be in [0, 1]. Got {value!r} instead.")
    return float(value)
