"""Replaces attributes of others' classes, modules and objects for the time of a block, once these are imported.

What others set in the block stays: an attribute is restored only if it still holds what was set here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

_log = logging.getLogger(__name__)

Hook = Callable[[Callable[..., Any]], Callable[..., Any]]  # returns what is called in place of the original

_INHERITED: Any = object()
_ended = WeakKeyDictionary[Any, Any]()  # functions and classes whose blocks are over, with what each replaced


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute to a value made for the block; afterwards restore it, or the inherited one that it hid."""
    before = _without_ended(_attribute(owner, name))
    setattr(owner, name, value)
    try:
        yield
    finally:
        _restore(owner, name, value, before)


def around(hook: Callable[..., Any]) -> Hook:
    """Return a hook that calls `hook(original, ...)`."""
    return partial(partial, hook)


@contextmanager
def wrapped(owner: Any, name: str, hook: Hook) -> Iterator[None]:
    """Call what a hook returns in place of a function, method or property in the block.

    The wrapper stays where the program has put its own around it; after the block it calls the original.
    """
    before = _without_ended(_attribute(owner, name))
    original = _original(owner, name, before, getattr(owner, name))
    call = hook(original)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return call(*args, **kwargs) if kwargs else call(*args)  # the second is faster

    value: Any = _described(wrapper, original)
    if isinstance(before, property):
        value = before.getter(value)
    elif isinstance(before, staticmethod | classmethod):
        value = type(before)(value)
    # a function is pickled by its name in the module that defines it
    home = sys.modules.get(before.__module__) if isinstance(before, FunctionType) else None
    owners = [owner] if home is None or home is owner or _attribute(home, name) is not before else [owner, home]
    for each in owners:
        setattr(each, name, value)
    try:
        yield
    finally:
        call = original
        for each in owners:
            _restore(each, name, value, before)


def _attribute(owner: Any, name: str) -> Any:
    """Return the attribute of an owner itself."""
    return vars(owner).get(name, _INHERITED) if hasattr(owner, "__dict__") else getattr(owner, name, _INHERITED)


def _function(value: Any) -> Any:
    """Return the function of a property, a static method or a class method, and any other value as it is."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _without_ended(value: Any) -> Any:
    """Return what is below wrappers whose blocks are over."""
    while isinstance(key := _function(value), FunctionType | type) and key in _ended:
        value = _ended[key]
    return value


def _restore(owner: Any, name: str, value: Any, before: Any) -> None:
    if isinstance(key := _function(value), FunctionType | type):
        _ended[key] = before
    if _attribute(owner, name) is value:  # else the program has set it since
        before = _without_ended(before)
        delattr(owner, name) if before is _INHERITED else setattr(owner, name, before)


def _original(owner: Any, name: str, before: Any, found: Any) -> Callable[..., Any]:
    """Return a function that does what the attribute does; of a class, it takes the instance first."""
    function: Callable[..., Any] = _function(before)
    if function is not before or isinstance(before, FunctionType):
        return function
    if before is _INHERITED and isinstance(owner, type):  # a class between the owner and its base may have another

        def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return getattr(super(owner, self), name)(*args, **kwargs)

        return _described(inherited, found)
    bind = getattr(type(before), "__get__", None)
    if isinstance(owner, type) and (bind is None or isinstance(before, partial)):  # such as a mock: gets no instance

        def unbound(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (bind(before, self, owner) if bind else before)(*args, **kwargs)

        return _described(unbound, before)
    return found  # type: ignore[no-any-return]


def _described(function: Callable[..., Any], original: Any) -> Callable[..., Any]:
    for name in WRAPPER_ASSIGNMENTS:
        with suppress(AttributeError, TypeError):  # of a method in C++, some are no strings
            setattr(function, name, getattr(original, name))
    return update_wrapper(function, original, assigned=())


@contextmanager
def on_import(calls: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Call back in the block once a module of one of these names has been imported."""
    hook = ImportHook(calls)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        hook.calls = {}  # where the program has kept it
        with suppress(ValueError):
            sys.meta_path.remove(hook)


class ImportHook(MetaPathFinder):
    """Call back once a module of one of these names has been imported; find none itself."""

    def __init__(self, calls: Mapping[str, Callable[[], None]]) -> None:
        self.calls = calls

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the finders after this one, with a loader that calls back."""
        finders = list(sys.meta_path)
        if fullname not in self.calls or self not in finders:
            return None
        others = finders[finders.index(self) + 1 :]  # those before it, such as another hook, may ask this one
        finds = (getattr(finder, "find_spec", None) for finder in others)
        specs = (find(fullname, path, target) for find in finds if find is not None)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, partial(self._imported, fullname))
        return spec

    def _imported(self, name: str) -> None:
        if (call := self.calls.get(name)) is not None:  # else the block is over
            call()


class _CallbackLoader(Loader):
    """Load a module by its own loader, leave no trace in it, and call back when it is complete."""

    def __init__(self, loader: Any, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._call()
        except Exception as error:  # noqa: BLE001  the import has succeeded
            _log.info("%s is not watched: %s", module.__name__, error)
