"""Replaces attributes of others' classes, modules and objects for the time of a block, once these are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_INHERITED = object()


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute in the block; afterwards restore it, or the inherited one that it hid."""
    original = vars(owner).get(name, _INHERITED)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextmanager
def on_import(calls: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Call back in the block once a module of one of these names has been imported."""
    hook = ImportHook(calls)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        hook.exit()


class ImportHook(MetaPathFinder):
    """Call back once a module of one of these names has been imported; find none itself."""

    def __init__(self, calls: Mapping[str, Callable[[], None]]) -> None:
        self._calls = calls

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the finders after this one, with a loader that calls back."""
        finders = list(sys.meta_path)
        if fullname not in self._calls or self not in finders:
            return None
        others = finders[finders.index(self) + 1 :]  # those before it, such as another hook, may ask this one
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, self._calls[fullname])
        return spec

    def exit(self) -> None:
        """Remove the hook."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


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
        self._call()
