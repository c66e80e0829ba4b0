"""The one owner of what is not ours: each attribute of a library is wrapped once, for all that listen to it.

A module of this room names a `Library` and its `Attribute` objects. Rooms listen to these in blocks, as soon as the
program has imported the library: those with a higher priority are called first, and call the others through the
original that their hook is given. What the program sets in a block stays: an attribute is restored only if it still
holds what was set here, and otherwise the wrapper only passes calls on.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tpunb.text import format_error

_log = logging.getLogger("tpunb")

Hook = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns what is called in place of the original; it may be asked again as others begin and end to listen."""

_INHERITED: Any = object()


class Priority(IntEnum):
    """Who is called first: a capture records what the others do, too."""

    TUNING = 0
    CHECKPOINTS = 1
    CAPTURE = 2


# -- libraries and their attributes ------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """The event that a call of an attribute is, for hooks, and for those who see the call in a stack."""

    event: str  # of ``tpunb.schema.RUN_EVENT_KINDS``
    function: str = ""  # end of module and qualified name in stacks, if that is not the path
    data: str = ""  # kind of the data that a fetch is from


@dataclass(frozen=True)
class Library:
    """A library of the program: its package, and the versions that the attributes were tried with, first and last."""

    name: str
    package: str
    tried: tuple[str, str]
    attributes: list[Attribute] = field(default_factory=list, compare=False)  # those that this room listens to
    unfit: dict[str, str] = field(default_factory=dict, compare=False)  # why, by attribute

    def module(self, name: str = "") -> Any | None:
        """Return the module of this name, or the library; None if the program has not imported it."""
        return loaded(name or self.name)

    def attribute(
        self,
        module: str,
        path: str,
        *takes: str,
        optional: bool = False,
        subclasses: bool = False,
        evidence: Evidence | None = None,
    ) -> Attribute:
        """Return an attribute of this library: see `Attribute`."""
        self.attributes.append(attribute := Attribute(self, module, path, takes, optional, subclasses, evidence))
        return attribute

    @property
    def is_installed(self) -> bool:
        """Whether the program has imported it, or can."""
        return self.module() is not None or (
            sys.modules.get(self.name, "") is not None and find_spec(self.name) is not None
        )

    @property
    def version(self) -> str:
        """The version of the library that the program has imported."""
        return str(sys.modules[self.name].__version__)

    def on_import(self, stack: ExitStack, *parts: Callable[[ExitStack], object]) -> None:
        """Call each part with a stack once the library is imported, until `stack` is closed, which closes theirs."""
        for part in parts:
            stack.enter_context(watching(self.name, part))

    def misfits(self) -> list[str]:
        """Return a line for each attribute that this version of the library has not as it was tried."""
        from importlib import metadata  # which takes as long to import as all of this room

        try:
            version = metadata.version(self.package) if self.unfit else ""
        except metadata.PackageNotFoundError:  # a module of the program that has the name of the library
            return []
        tried = f"tried with {self.tried[0]} to {self.tried[1]}"
        return [f"{self.name} {version} ({tried}): {path} {reason}" for path, reason in sorted(self.unfit.items())]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a library: module, and path in it, such as ``"DataLoader.__iter__"``.

    `takes` are parameters that hooks read or hand in: without them, the attribute is not wrapped. An `optional` one
    is not in all versions that were tried. With `subclasses`, it is wrapped in each that has its own. Its `evidence` is
    what a call of it is, if that is an event.
    """

    library: Library
    home: str
    path: str
    takes: tuple[str, ...] = ()
    optional: bool = False
    subclasses: bool = False
    evidence: Evidence | None = None

    def __str__(self) -> str:
        return f"{self.home}.{self.path}"

    def listening(self, hook: Hook, priority: Priority = Priority.CAPTURE) -> AbstractContextManager[None]:
        """Call what a hook returns in place of the attribute, in the block and once its module is imported."""
        return watching(self.home, partial(self.listen, hook, priority))

    def listen(self, hook: Hook, priority: Priority, stack: ExitStack) -> bool:
        """Listen until a stack is closed to an attribute whose module is imported; return whether it fits."""
        for owner, name in (places := self.places()):
            stack.enter_context(wrapped(owner, name, hook, priority))
        return bool(places)

    def unwrapped(self) -> Callable[..., Any]:
        """Return the function without those who listen, for what this package itself asks of a library."""
        [(owner, name)] = self.places()
        found = getattr(owner, name)
        return _wrappers[found].original if found in _wrappers else found

    def before_next(self, call: Callable[[], None]) -> None:
        """Call a function once, before the next call of the attribute, to which those may listen who begin then."""
        stack = ExitStack()

        def hook(original: Callable[..., Any]) -> Callable[..., Any]:
            def first(*args: Any, **kwargs: Any) -> Any:
                is_last = getattr(owner, name) is wrapper  # else the program has its own around it
                stack.close()
                call()
                return (getattr(owner, name) if is_last else original)(*args, **kwargs)

            return first

        self.listen(hook, Priority.CAPTURE, stack)
        for owner, name in self.places():
            wrapper = getattr(owner, name)

    def places(self) -> list[tuple[Any, str]]:
        """Return the owners of the attribute, with its name there; none if it does not fit."""
        *path, name = self.path.split(".")
        try:
            owner = attrgetter(".".join(path))(sys.modules[self.home]) if path else sys.modules[self.home]
            if not self.subclasses:
                self._try(getattr(owner, name))
                return [(owner, name)]
        except (AttributeError, KeyError, TypeError) as error:
            if not self.optional:
                reason = str(error) if isinstance(error, TypeError) else "is missing"
                self.library.unfit[str(self)] = reason
            return []
        return [(kind, name) for kind in dict.fromkeys(_subclasses(owner)) if name in vars(kind)]

    def _try(self, found: Any) -> None:
        """Raise TypeError for what cannot be called, or with other parameters."""
        function = found.fget if isinstance(found, property) else found
        if not callable(function):
            raise TypeError("is no function")
        if self.takes:
            parameters = inspect.signature(function).parameters
            takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())  # such as one of the program
            if missing := [name for name in self.takes if name not in parameters and not takes_any]:
                raise TypeError(f"does not take {', '.join(missing)}")


def _subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _subclasses(each)


# -- wrappers ----------------------------------------------------------------------------------------------------------


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
def wrapped(owner: Any, name: str, hook: Hook, priority: Priority = Priority.CAPTURE) -> Iterator[None]:
    """Call what a hook returns in place of a function, method or property in the block.

    An attribute has one wrapper: of the hooks, that of the highest priority is called first, of equal ones the latest.
    The wrapper stays where the program has put its own around it; after the last block it calls the original.
    """
    with _locked():
        found = _function(_attribute(owner, name))
        wrapper = _wrappers.get(found) if isinstance(found, FunctionType) else None
        if wrapper is None or wrapper.owners[0] is not owner:
            wrapper = _Wrapper(owner, name)
        listener = (priority, hook)
        wrapper.change([*wrapper.listeners, listener])
    try:
        yield
    finally:
        with _locked():
            wrapper.change([each for each in wrapper.listeners if each is not listener])


class _Wrapper:
    """What stands in place of an attribute while anyone listens to it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.before = before = _without_ended(_attribute(owner, name))
        original = _original(owner, name, before, getattr(owner, name))
        self.name, self.original, self.listeners = name, original, list[tuple[Priority, Hook]]()
        call = [original]  # a cell of its own: a wrapper that the program keeps refers to nothing else

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return call[0](*args, **kwargs) if kwargs else call[0](*args)  # the second is faster

        self._call = call
        self.function: Any = _described(wrapper, original)
        self.value: Any = self.function
        if isinstance(before, property):
            self.value = before.getter(self.function)
        elif isinstance(before, staticmethod | classmethod):
            self.value = type(before)(self.function)
        # a function is pickled by its name in the module that defines it
        home = sys.modules.get(before.__module__) if isinstance(before, FunctionType) else None
        self.owners = (
            [owner] if home is None or home is owner or _attribute(home, name) is not before else [owner, home]
        )

    def change(self, listeners: list[tuple[Priority, Hook]]) -> None:
        """Call the hooks of these listeners; without any, restore the attribute."""
        call = self.original
        for at, (_, hook) in enumerate(sorted(listeners, key=lambda each: each[0])):
            call = hook(_layer(call, self.original) if at else call)
        is_first, self.listeners, self._call[0] = not self.listeners, listeners, call
        if is_first and listeners:
            _wrappers[self.function] = self
            for owner in self.owners:
                setattr(owner, self.name, self.value)
        elif not listeners:
            _wrappers.pop(self.function, None)
            for owner in self.owners:
                _restore(owner, self.name, self.value, self.before)


_lock, _process = threading.RLock(), os.getpid()  # a hook may import
_wrappers = dict[Any, _Wrapper]()  # by their functions
_ended = WeakKeyDictionary[Any, Any]()  # functions and classes whose blocks are over, with what each replaced


def _locked() -> threading.RLock:
    """Return the lock of this process: a thread that has none in a fork may hold that of the parent."""
    global _lock, _process
    if _process != os.getpid():
        _lock, _process = threading.RLock(), os.getpid()
    return _lock


def _attribute(owner: Any, name: str) -> Any:
    """Return the attribute of an owner itself."""
    return vars(owner).get(name, _INHERITED) if hasattr(owner, "__dict__") else getattr(owner, name, _INHERITED)


def _function(value: Any) -> Any:
    """Return the function of a property, a static method or a class method, and any other value as it is."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _layer(call: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return what a hook above others is given as the original."""

    def layer(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return call(*args, **kwargs)

    return _described(layer, original)


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


# -- imports -----------------------------------------------------------------------------------------------------------

_IMPORTS = "_initializing"  # of the specification of a module that is being imported


def loaded(name: str) -> Any | None:
    """Return a module that the program has imported; None before, and while it is being imported."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, _IMPORTS, False) else module


@contextmanager
def watching(name: str, patch: Callable[[ExitStack], object]) -> Iterator[None]:
    """Call `patch` in the block once a module and its library are imported, with a stack that the block's end closes.

    A failure is logged and kept from the program, since its import has succeeded.
    """
    with ExitStack() as stack:
        waiting = _Waiting(name, patch, stack)
        with _locked():
            if waiting.is_due():
                waiting.end()
            else:
                _waiting.append(waiting)
                _watch_imports()
        try:
            yield
        finally:
            with _locked():
                if waiting in _waiting:
                    _waiting.remove(waiting)
                    _watch_imports()


@dataclass(eq=False, slots=True)
class _Waiting:
    """A block that waits for a module."""

    name: str
    patch: Callable[[ExitStack], object]
    stack: ExitStack

    @property
    def names(self) -> set[str]:
        """The module, and its library."""
        return {self.name, self.name.partition(".")[0]}

    def is_due(self, imported: str = "") -> bool:
        """Return whether both are imported, or are about to be with the one that was just `imported`."""
        return all(name == imported or loaded(name) is not None for name in self.names)

    def end(self) -> None:
        """Patch the module."""
        try:
            self.patch(self.stack)
        except Exception as error:  # noqa: BLE001  of another version: the program must go on
            _log.info("%s is not watched: %s", self.name, format_error(error))


_waiting: list[_Waiting] = []
_hooks: list[ImportHook] = []  # of all blocks that wait: at most one


def check_imports(imported: str = "") -> None:
    """Patch what has been imported since the last call, such as what was being imported as a block began."""
    with _locked():
        due = [each for each in _waiting if each.is_due(imported)]
        for each in due:
            _waiting.remove(each)
            each.end()
        if due:
            _watch_imports()


def _watch_imports() -> None:
    """Let one hook call back for all modules that blocks wait for; remove it after the last."""
    if not _waiting:
        while _hooks:
            _hooks.pop().leave()
        return
    if not _hooks or _hooks[0] not in sys.meta_path:
        _hooks[:] = [ImportHook({})]
        sys.meta_path.insert(0, _hooks[0])
    calls = _hooks[0].calls
    for name in {*_waiting[-1].names} - calls.keys() if calls else {name for each in _waiting for name in each.names}:
        calls[name] = partial(check_imports, name)


class ImportHook(MetaPathFinder):
    """Call back once a module of one of these names has been imported; find none itself."""

    def __init__(self, calls: dict[str, Callable[[], None]]) -> None:
        self.calls = calls

    def leave(self) -> None:
        """Find nothing more, even where the program has kept this."""
        self.calls = {}
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the finders after this one, with a loader that calls back."""
        finders = list(sys.meta_path)
        if fullname not in self.calls or self not in finders:
            return None
        library = fullname.partition(".")[0]
        if library != fullname and loaded(library) is None:  # which calls back for its modules
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
            _log.info("%s is not watched: %s", module.__name__, format_error(error))
