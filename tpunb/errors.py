"""Errors of tpunb, and checks of arguments.

::

    TpunbError
    ├── ProfileNotFound   (FileNotFoundError)  no profile at a path
    ├── BadProfile        (ValueError)         invalid data or columns
    ├── NoSteps           (ValueError)         a profile without steps
    ├── IncompatibleRuns  (ValueError)         a comparison of runs of different models
    ├── CaptureBusy       (RuntimeError)       two captures at once
    └── MissingExtra      (ImportError)        an optional package that is not installed

Wrong arguments are plain ``ValueError`` or ``TypeError`` in scikit-learn's sentence.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from types import ModuleType
from typing import Any


class TpunbError(Exception):
    """Base class of all errors; ``hint`` says what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint is not None:
            self.add_note(f"Hint: {hint}")


class ProfileNotFound(TpunbError, FileNotFoundError):
    """There is no profile at the given path."""


class BadProfile(TpunbError, ValueError):
    """The file or the frame is not a valid profile."""


class NoSteps(TpunbError, ValueError):
    """The profile has no steps."""


class IncompatibleRuns(TpunbError, ValueError):
    """The runs have different models or precisions, so their difference is not the effect of a change."""


class CaptureBusy(TpunbError, RuntimeError):
    """A capture already runs in this process, or another program uses the profiler."""


class MissingExtra(TpunbError, ImportError):
    """A required optional package is not installed."""

    def _render_traceback_(self) -> list[str]:
        """Return the one line that IPython shows: the traceback would not help."""
        return [": ".join([type(self).__name__, *map(str, filter(None, [self, self.hint]))])]


_EXTRAS = {  # of what is imported without `need`
    **dict.fromkeys(("hdbscan", "kneed", "msgspec", "numba"), "report"),
    **dict.fromkeys(("platformdirs", "scipy", "sklearn", "threadpoolctl"), "report"),
    **dict.fromkeys(("altair", "anywidget", "cloudpickle", "ipywidgets", "traitlets", "vl_convert"), "notebook"),
}


def install(extra: str) -> str:
    """Return the command that installs an extra from where this package is from: a clone, a URL or an index."""
    if (root := Path(__file__).parents[1]).joinpath("pyproject.toml").is_file():
        return f"pip install -e '{root}[{extra}]'"
    origin = ""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError, KeyError, ValueError):  # PEP 610
        facts = json.loads(metadata.distribution("tpunb").read_text("direct_url.json") or "{}")
        vcs = facts.get("vcs_info")
        origin = f" @ {vcs['vcs']}+{facts['url']}@{vcs['commit_id']}" if vcs else f" @ {facts['url']}"
    return f"pip install 'tpunb[{extra}]{origin}'"


@contextmanager
def extras_named() -> Iterator[None]:
    """Raise MissingExtra, whose hint installs it, where the block does not find a package of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _EXTRAS:
            raise
        use = "to read runs" if _EXTRAS[name] == "report" else "for charts and panels"
        raise MissingExtra(f"{name} is not installed, which is needed {use}", hint=install(_EXTRAS[name])) from error


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional package; MissingExtra, whose hint installs the extra, if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed", hint=install(extra)) from error


def warn_user(message: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Warn the program; where its filters make an error of that, print the line instead: no warning ends a training."""
    try:
        warnings.warn(message, category, stacklevel + 1)
    except Exception:  # noqa: BLE001  a filter, or the program's own showwarning
        with suppress(Exception):  # without stderr, or a closed one
            print(f"tpunb: {message}", file=sys.stderr)


@contextmanager
def library_warnings_ignored() -> Iterator[None]:
    """Ignore, where filters make errors of warnings, what libraries that tpunb calls in the block say to developers."""
    if all(action != "error" for action, *_ in warnings.filters):
        yield  # without a change of the filters, after which what was shown once is shown again
        return
    with warnings.catch_warnings():
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        yield


def wrong_type(owner: str, name: str, must: str, got: object, *, hint: str | None = None) -> TypeError:
    """Return the error for an argument of the wrong type; ``hint`` says what to do next.

    >>> wrong_type("phases", "steps", "be Steps", 3)
    TypeError('The steps parameter of phases must be Steps. Got 3 instead.')
    """
    error = TypeError(f"The {name} parameter of {owner} must {must}. Got {brief(got)} instead.")
    if hint is not None:
        error.add_note(f"Hint: {hint}")
    return error


class _Brief(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 160

    def repr1(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple) and shape:
            return f"{type(x).__name__} of shape {tuple(shape)}"
        return super().repr1(x, level)


def brief(value: object) -> str:
    """Return a value in one line of at most 300 characters, with arrays as their shapes.

    >>> brief("a name"), brief({"x": [*range(100)]})
    ("'a name'", "{'x': [0, 1, 2, 3, 4, 5, ...]}")
    """
    line = " ".join(_Brief().repr(value).split())
    return line if len(line) <= 300 else f"{line[:299]}…"


def check_whole(owner: str, name: str, value: object, least: int) -> int:
    """Return a parameter that is an integer of at least `least`, of Python or NumPy, but not a bool.

    >>> check_whole("KMeans", "k", 3, 1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(
            f"The {name} parameter of {owner} must be an int of {least} or more. Got {brief(value)} instead."
        )
    return int(value)


def check_share(owner: str, name: str, value: object) -> float:
    """Return a parameter that is a number from 0 to 1, but not a bool.

    >>> check_share("OLS", "threshold", 0.7)
    0.7
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"The {name} parameter of {owner} must be in [0, 1]. Got {brief(value)} instead.")
    return float(value)


KEEP_ALL = "capture again with --keep all (in Python: keep='all')"


def not_kept(name: str, what: str, *, job: bool = False) -> TpunbError:
    """Return the error for data that only raw events contain; of a job, these are where its files are."""
    if job:
        reason = f"{name or 'this job'} holds no {what}: its hosts were reduced to statistics where their files are"
        return TpunbError(reason, hint="load the files of a few hosts")
    return TpunbError(
        f"{name or 'this run'} holds no {what}: its capture kept statistics only",
        hint=f"{KEEP_ALL}; for XProf's tables, load their XPlane",
    )
