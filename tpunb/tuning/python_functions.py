"""Finds Python functions in a pipeline that keep state: called in parallel, or by trials, they return other values.

Their byte code is read, never run. What cannot be read, such as a function in C, is not reported.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpunb.text import plain
from tpunb.tfdata.effects import PYTHON, called_functions
from tpunb.tfdata.stages import Stage

_CHANGES = {
    *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "clear", "update", "add"),
    *("discard", "setdefault", "sort", "reverse", "put", "fill"),
}
_CREATES = {"default_rng", "RandomState", "Generator", "SeedSequence", "PCG64", "Philox", "Random", "SystemRandom"}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_LIBRARIES = ("tensorflow", "keras", "numpy", "six", "wrapt")
_RANDOM_MODULES = (random, np.random)
_UNKNOWN = object()


def functions_with_state(graph: Any, stages: tuple[Stage, ...]) -> Iterator[str]:
    """Yield a sentence for each stage that calls a Python function which keeps state."""
    library = {function.signature.name: function for function in graph.library.function}
    for stage in stages:
        for function in _python_functions(library, stage.functions):
            if reason := state_of(function):
                yield f"{stage.name} calls {plain(_name(function))}, which {reason}"
                break


def state_of(function: Any) -> str:
    """Return what state a function keeps, as the end of a sentence; "" for none that is seen.

    >>> rows = iter(range(3))
    >>> state_of(lambda: next(rows)), state_of(lambda x: x + 1)
    ("draws from the iterator 'rows'", '')
    """
    return next(_states(function, set()), "")


def _states(function: Any, seen: set[int]) -> Iterator[str]:
    function, owner = _unwrapped(function)
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    names = _closure(function)
    if not function.__module__ or function.__module__.partition(".")[0] not in _LIBRARIES:
        if owner is not None and function.__code__.co_varnames:
            names[function.__code__.co_varnames[0]] = owner
        for code in _codes(function.__code__):
            yield from _in_code(code, names, function.__globals__, seen)
        return
    for value in names.values():  # TensorFlow's own functions around the program's
        yield from _states(getattr(value, "_generator", value), seen)


def _in_code(
    code: types.CodeType, closure: Mapping[str, Any], module: Mapping[str, Any], seen: set[int]
) -> Iterator[str]:
    """Yield the state that a function's code reads in order, or changes, outside of it."""
    loaded: dict[tuple[int | None, int | None], tuple[str, Any]] = {}  # outer objects by their place in the source
    last: tuple[str, Any] | None = None
    for step in dis.get_instructions(code):
        name, place = str(step.argval), (step.positions.lineno, step.positions.col_offset) if step.positions else None
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and name in closure):
            yield f"changes the variable {name!r}"
        elif step.opname in ("STORE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR") and place in loaded:
            yield f"changes {loaded[place][0]!r}"
        if step.opname in _ATTRIBUTES and last is not None:
            yield from _of_method(last, name)
            last = name, getattr(last[1], name, _UNKNOWN) if isinstance(last[1], types.ModuleType) else _UNKNOWN
            continue
        last = None
        if step.opname in _LOADS:
            found = closure.get(name, module.get(name, _UNKNOWN) if "FAST" not in step.opname else _UNKNOWN)
            if found is not _UNKNOWN:
                last = name, found
                if place is not None and not isinstance(found, types.ModuleType):
                    loaded[place] = last
                yield from _of_value(name, found, seen)


def _of_value(name: str, value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, Iterator):
        yield f"draws from the iterator {name!r}"
    elif isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random"):
        yield f"draws random numbers from {name!r}"
    elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        yield from _states(value, seen)


def _of_method(owner: tuple[str, Any], method: str) -> Iterator[str]:
    name, value = owner
    if isinstance(value, list | dict | set | bytearray) or type(value).__name__ in ("deque", "Counter", "ndarray"):
        if method in _CHANGES:
            yield f"changes {name!r}"
    elif any(value is module for module in _RANDOM_MODULES) and method not in _CREATES:
        yield f"draws from the global generator of {value.__name__}"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and those of the functions that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of outer functions that a function reads."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return found


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
    from tensorflow.python.ops import script_ops

    todo, seen = [*names], set(names)
    while todo:
        definition = library.get(todo.pop())
        for node in definition.node_def if definition is not None else ():
            if node.op in PYTHON:
                yield script_ops._py_funcs._funcs.get(node.attr["token"].s.decode())
            further = [other for other in called_functions(node) if other not in seen]
            todo += further
            seen.update(further)


def _name(function: Any) -> str:
    function, owner = _unwrapped(function)
    if function is None or (function.__module__ or "").startswith("tensorflow"):
        return "a Python generator"
    return type(owner).__name__ if owner is not None and function.__name__ == "__call__" else function.__name__
