"""Finds Python functions in a pipeline that keep state: called in parallel, or by trials, they return other values.

Their byte code is read, never run. What cannot be read, such as a function in C, is not reported, nor is what functions
of installed packages change.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import sysconfig
import types
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tpunb.instrument.tensorflow import python_function
from tpunb.text import plain
from tpunb.tfdata.effects import PYTHON, nodes_of
from tpunb.tfdata.stages import Stage

_CHANGES = {
    *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "clear", "update", "add"),
    *("discard", "setdefault", "sort", "reverse", "put", "fill"),
}
_CREATES = {"default_rng", "RandomState", "Generator", "SeedSequence", "PCG64", "Philox", "Random", "SystemRandom"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST")
_STORES = {"STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR"}
_SIZES = {"shape", "size", "ndim", "dtype"}
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = ("tensorflow", "keras", "numpy", "six", "wrapt")
_RANDOM_MODULES = (random, np.random)
_GLOBAL_GENERATORS = (random.random.__self__, np.random.random.__self__)  # type: ignore[attr-defined]
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)
_UNKNOWN, _UNBOUND = object(), object()
_UNNAMED = "a Python function"
GLOBAL = "draws from the global generator"


class Use(NamedTuple):
    """What a function does with an object outside of it."""

    name: str  # "self.rows" for an attribute of the object that a method is bound to
    value: Any
    owner: Any = None  # the object, if it is an attribute
    action: str = ""  # end of a sentence; "" where it is read, called or passed on


def functions_with_state(graph: Any, stages: tuple[Stage, ...]) -> Iterator[str]:
    """Yield a sentence for each stage that calls a Python function which keeps state."""
    library = {function.signature.name: function for function in graph.library.function}
    for stage in stages:
        for function in _python_functions(library, stage.functions):
            if reason := state_of(function):
                yield f"{stage.name} calls {plain(_name(function))}, which {reason}"
                break


def python_names(library: Mapping[str, Any], stage: Stage) -> list[str]:
    """Return the names of the Python functions that a stage calls, or of its generator."""
    every = {plain(_name(function)) for function in _python_functions(library, stage.functions)}
    return sorted(every - {_UNNAMED})


def state_of(function: Any) -> str:
    """Return what state a function keeps, as the end of a sentence; "" for none that is seen.

    >>> rows = iter(range(3))
    >>> state_of(lambda: next(rows)), state_of(lambda x: x + 1)
    ("draws from the iterator 'rows'", '')
    """
    return next((use.action for use in uses_of(function) if use.action), "")


def uses_of(*functions: Any) -> Iterator[Use]:
    """Yield what functions, and the functions and own methods that they call, do with objects outside of them."""
    seen = set[int]()
    for function in functions:
        yield from _uses(function, seen)


def _uses(function: Any, seen: set[int]) -> Iterator[Use]:
    function, owner = _unwrapped(function)
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    names = _closure(function)
    if not function.__module__ or function.__module__.partition(".")[0] not in _LIBRARIES:
        if owner is not None and function.__code__.co_varnames:
            names[function.__code__.co_varnames[0]] = owner
        is_installed = function.__code__.co_filename.startswith(("<frozen", *map(sysconfig.get_path, _INSTALLED)))
        for code in _codes(function.__code__):
            uses = _in_code(code, names, function.__globals__, _UNBOUND if owner is None else owner, seen)
            yield from (use for use in uses if not is_installed or use.action.startswith("draws"))
        return
    for value in names.values():  # TensorFlow's own functions around the program's
        yield from _uses(getattr(value, "_generator", value), seen)


def _in_code(
    code: types.CodeType, closure: dict[str, Any], module: dict[str, Any], owner: Any, seen: set[int]
) -> Iterator[Use]:
    """Yield the uses of outer objects in the code of a function that may be bound to an object."""
    loaded: dict[tuple[int | None, int | None], Use] = {}  # by their place in the source
    last: Use | None = None
    steps = [*dis.get_instructions(code)]
    for at, step in enumerate(steps):
        name, place = str(step.argval), _place(step)
        following = steps[min(at + 1, len(steps) - 1)]
        is_size = any((each.opname, each.argval) == ("LOAD_GLOBAL", "len") for each in steps[max(at - 2, 0) : at])
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and name in closure):
            yield Use(name, _UNKNOWN, action=f"changes the variable {name!r}")
        elif step.opname in _STORES and place in loaded:
            use = loaded[place]
            use = Use(f"self.{name}", None, owner) if use.value is owner and "ATTR" in step.opname else use
            yield use._replace(action=f"changes {use.name!r}")
        if step.opname in _ATTRIBUTES and last is not None:
            yield from _of_method(last, name)
            values = object_attributes(owner, name) if last.value is owner else []
            uses = [Use(f"self.{name}", value, owner) for value in values]
            last = Use(name, getattr(last.value, name, _UNKNOWN) if isinstance(last.value, types.ModuleType) else None)
            is_size = is_size or following.argval in _SIZES
        else:
            loads = step.argval if isinstance(step.argval, tuple) else (name,)  # some of Python 3.13 load two
            scope = closure if "FAST" in step.opname else ChainMap(closure, module)
            uses = [Use(each, scope[each]) for each in loads if step.opname.startswith(_LOADS) and each in scope]
            last, is_used = None, following.opname in _ATTRIBUTES | _STORES or is_size
            is_size = is_used and any(use.value is owner for use in uses)
            if len(loads) == 2 and loads[1] in scope and following.opname in _STORES:
                place = _place(following)  # what is changed is the second, the instruction's place is the first's
        for use in uses:
            last = use
            if place is not None and not isinstance(use.value, types.ModuleType):
                loaded[place] = use
            if not is_size:
                yield from _of_value(use, seen)


def _place(step: dis.Instruction) -> tuple[int | None, int | None] | None:
    return (step.positions.lineno, step.positions.col_offset) if step.positions else None


def object_attributes(owner: Any, name: str) -> list[Any]:
    """Return an attribute of an object; of a method or property, the functions of its class and of the bases."""
    if name in (attributes := getattr(owner, "__dict__", {})):
        return [attributes[name]]
    every = [vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)]
    every = [getattr(each, "fget", getattr(each, "func", each)) for each in every]
    return [
        types.MethodType(each, owner) if inspect.isfunction(each) else getattr(each, "__func__", each) for each in every
    ]


def _of_value(use: Use, seen: set[int]) -> Iterator[Use]:
    value, bound = use.value, getattr(use.value, "__self__", None)
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial) and not isinstance(bound, _RANDOM):
        yield from _uses(value, seen)
    elif isinstance(value, Iterator):
        yield use._replace(action=f"draws from the iterator {use.name!r}")
    elif isinstance(value, _RANDOM) or isinstance(bound, _RANDOM) or type(value).__module__.startswith("numpy.random"):
        is_global = any(bound is each for each in _GLOBAL_GENERATORS)  # from random import randint
        yield use._replace(action=f"{f'{GLOBAL} of' if is_global else 'draws random numbers from'} {use.name!r}")
    else:
        yield use


def _of_method(use: Use, method: str) -> Iterator[Use]:
    value = use.value
    if isinstance(value, list | dict | set | bytearray) or type(value).__name__ in ("deque", "Counter", "ndarray"):
        if method in _CHANGES:
            yield use._replace(action=f"changes {use.name!r}")
    elif any(value is module for module in _RANDOM_MODULES) and method not in _CREATES:
        yield use._replace(action=f"{GLOBAL} of {value.__name__}")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and those of the functions that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of outer functions that a function reads."""
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return contents


def _unwrapped(function: Any) -> tuple[Any, Any]:
    """Return the Python function of a callable, and the object that it is bound to, or None."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "_func", function)  # of py_function
    if isinstance(function, types.MethodType):
        return function.__func__, function.__self__
    if inspect.isfunction(function):
        return inspect.unwrap(function), None
    call = getattr(type(function), "__call__", None)  # noqa: B004  the function of a callable object
    return (call, function) if inspect.isfunction(call) else (None, None)


def _python_functions(library: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the Python functions that functions of a graph call."""
    called = (node for node in nodes_of(library, *names) if getattr(node, "op", "") in PYTHON)
    yield from (python_function(node.attr["token"].s.decode()) for node in called)


def _name(function: Any) -> str:
    function, owner = _unwrapped(function)
    if function is None:
        return _UNNAMED
    if (function.__module__ or "").startswith("tensorflow"):  # from_generator calls the program's
        generators = (getattr(value, "_generator", None) for value in (owner, *_closure(function).values()))
        return _name(next((generator for generator in generators if generator is not None), None))
    return type(owner).__name__ if owner is not None and function.__name__ == "__call__" else function.__name__
