"""Variables of the program that a loop changes, such as a total, a counter or a list of losses.

They are saved with a checkpoint and handed back when the loop is resumed, or skipped as it had ended: what the program
computes from them is what it would have been.
"""

from __future__ import annotations

import ctypes
import dis
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import CO_GENERATOR, getfile
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpunb.instrument.jax import LIBRARY as JAX
from tpunb.instrument.torch import LIBRARY as TORCH
from tpunb.text import plain
from tpunb.training import torch_state
from tpunb.training.callbacks import CONSTANT, CallbackState, restored_value
from tpunb.training.fingerprints import of_arrays
from tpunb.training.program import is_user_code, place_of, user_frame
from tpunb.training.state import is_from

_SMALL, _LARGE = 2**16, 2**24
"""Bytes of an array that is always saved, and of one that is saved if the program reads it later."""

_DEPTH = 3  # objects within objects of the program
_SCALARS = (bool, int, float, complex, str, type(None))
_ADDS = {"LIST_APPEND", "SET_ADD", "MAP_ADD"}
_ACCESS = re.compile(r"(LOAD|STORE)_(?:FAST|NAME|GLOBAL|DEREF|CLOSURE)")


class _Slot(NamedTuple):
    """What may change in a loop."""

    owner: dict[str, Any] | None  # attributes that have it; None for a variable
    key: str  # its name there
    value: Any


class LoopVariables:
    """Variables of the frame that runs a loop, beside the `state` that the loop saves itself."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self._code: CodeType | None = None  # of the frame that draws the first batch
        self._line = ""
        self._needed: frozenset[str] | None = None  # names that are read after the loop or carried from step to step
        self._collects = False  # whether a comprehension draws the batches
        self._before: dict[str, Any] = {}  # fingerprints at the begin
        self._restored = set[str]()
        self._counted = set[str]()  # those that seem to number the batches

    def begin(self) -> None:
        """Note the variables before the first batch."""
        frame = _loop_frame()
        if frame is None:
            return
        self._code, self._line = frame.f_code, place_of(frame)
        self._needed, self._collects = _names_needed(frame.f_code, frame.f_lasti)
        present = self._present(frame)
        self._before = {name: _fingerprint(_Values(self._state), value) for name, (_, _, value) in present.items()}

    def changed(self) -> tuple[dict[str, Any], list[NDArray[Any]], str]:
        """Return the variables that the loop has changed, their arrays, and why one cannot be saved, or ""."""
        frame = _loop_frame()
        if frame is None or frame.f_code is not self._code:
            return {}, [], "" if self._code is None else f"the loop of {self._line} is read elsewhere"
        values, saved, unsaved = _Values(self._state), dict[str, Any](), ""
        if self._collects:
            unsaved = f"{self._line} collects results in one expression, which cannot be saved (use a for loop)"
        for name, (_, _, value) in self._present(frame).items():
            if name not in self._restored and self._before.get(name) == _fingerprint(_Values(self._state), value):
                continue
            is_needed = self._needed is None or re.split(r"[.:]", name)[0] in self._needed
            values.limit = _LARGE if is_needed else _SMALL
            before = len(values.arrays)
            try:
                saved[name] = values.encoded(value)
            except TypeError:
                del values.arrays[before:]
                if is_needed and name not in self._restored:
                    what = plain(f"{name} ({type(value).__name__})")
                    unsaved = unsaved or f"{self._line} changes {what}, which cannot be saved (give it in state)"
        return saved, values.arrays, unsaved

    def restore(self, saved: Mapping[str, Any], arrays: Sequence[NDArray[Any]], drawn: int) -> None:
        """Set the variables of `changed` in the frame that draws the next batch, the first after so many."""
        frame = _loop_frame()
        if frame is None:
            return
        present, variables = self._present(frame), dict[str, Any]()
        assigned = {name for _, (access, name) in _accesses(frame.f_code) if access == "STORE"}
        for name, encoded in saved.items():
            if name not in present and (name.startswith("_") or name not in assigned):
                continue  # a function or a module, or a name that the loop does not set
            slot = present.get(name, _Slot(None, name, None))
            value = _restored(slot.value, encoded, arrays, self._state)
            if slot.owner is not None:
                slot.owner[slot.key] = value
            elif name.isidentifier():
                variables[name] = value
            if encoded == ["value", drawn - 1] and drawn > 1 and type(encoded[1]) is int:
                self._counted.add(name)
        _assign(frame, variables)
        self._restored = {*saved}

    def restarted(self) -> str:
        """Return, after the first step of a resumed loop, the variable that numbers the batches from 0 again, or ""."""
        counted, self._counted = self._counted, set()
        frame = _loop_frame() if counted else None
        if frame is None:
            return ""
        present = self._present(frame)
        name = next(
            (name for name in counted if name in present and present[name].value == 0 and self._is_read(name)), ""
        )
        return name and f"{plain(name)} of {self._line} numbers the batches from 0 again (count in state instead)"

    def _is_read(self, name: str) -> bool:
        return self._code is None or any(each == ("LOAD", name) for _, each in _accesses(self._code))

    def _present(self, frame: FrameType) -> dict[str, _Slot]:
        """Return what may change: variables of a frame and its module, attributes, counts in the parts of `state`."""
        names, slots = {*frame.f_code.co_names}, dict[str, _Slot]()
        of_module = [*frame.f_globals.items()]
        variables = {name: each for name, each in of_module if name in names or isinstance(each, _SCALARS)}
        seen = {id(self._state), *map(id, self._state.values())}
        for name, value in {**variables, **frame.f_locals}.items():
            if not name.startswith("_") and value is not self._state and not isinstance(value, CONSTANT):
                slots[name] = _Slot(None, name, value)
                slots |= _attributes(name, value, seen)
        for name, part in self._state.items():
            modules = part.named_modules() if _has(part, "named_modules") else [("", part)]
            for path, each in modules if _has(part, "state_dict") or _is_of_program(part) else ():
                attributes = getattr(each, "__dict__", {})
                counts = {attribute: value for attribute, value in attributes.items() if isinstance(value, _SCALARS)}
                slots |= {f"state.{name}:{path}:{key}": _Slot(attributes, key, value) for key, value in counts.items()}
        return slots


def _loop_frame() -> FrameType | None:
    """Return the frame of the program that runs the loop, not one of an iterator that hands the batches on."""
    frame = user_frame()
    while frame is not None and frame.f_back is not None and frame.f_code.co_name != "<genexpr>":
        is_user = is_user_code(frame.f_code.co_filename)
        if is_user and not frame.f_code.co_flags & CO_GENERATOR and frame.f_code.co_name != "__next__":
            break
        frame = frame.f_back
    return frame


def _attributes(path: str, value: Any, seen: set[int]) -> dict[str, _Slot]:
    """Return the attributes of an object of the program, and of those that it holds, by path."""
    slots: dict[str, _Slot] = {}
    if id(value) not in seen and _is_of_program(value) and not _has(value, "state_dict") and path.count(".") < _DEPTH:
        seen.add(id(value))
        attributes = getattr(value, "__dict__", {})
        for name, each in attributes.items():
            if not isinstance(each, CONSTANT):
                slots[f"{path}.{name}"] = _Slot(attributes, name, each)
                slots |= _attributes(f"{path}.{name}", each, seen)
    return slots


def _is_of_program(value: Any) -> bool:
    """Return whether the program has defined the class of an object."""
    kind = type(value)
    if kind.__module__ == "__main__":
        return True
    try:
        return is_user_code(getfile(kind))
    except (OSError, TypeError):  # of no file
        return False


def _has(part: Any, *names: str) -> bool:
    """Return whether the class of an object has attributes; some objects seem to have any."""
    return all(hasattr(type(part), name) for name in names)


class _Values(CallbackState):
    """Encoded variables; arrays and parts of the state by their place there, since they are restored with it."""

    limit = _LARGE

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__()
        self._parts = {id(part): name for name, part in state.items() if not isinstance(part, _SCALARS)}
        self._leaves = {id(leaf): at for at, leaf in enumerate(_leaves(state))}

    def encoded(self, value: Any) -> list[Any]:
        """Return a value as JSON values, in which an array is its number in `arrays`; TypeError if that is not so."""
        try:
            return self._encoded(value)
        except Exception as error:  # values are of any kind
            raise TypeError(str(error)) from error

    def _encoded(self, value: Any) -> list[Any]:
        if id(value) in self._parts:
            return ["part", self._parts[id(value)]]
        if id(value) in self._leaves:
            return ["leaf", self._leaves[id(value)]]
        if torch_state.is_generator(value):
            return ["generator", torch_state.encoded(value)]
        if _has(value, "nbytes") and value.nbytes > self.limit:
            raise TypeError
        if isinstance(value, list | set | deque) and len(value) > 1 and all(type(each) is float for each in value):
            self.arrays.append(np.array([*value]))
            return [f"floats in a {type(value).__name__}", len(self.arrays) - 1]
        if type(value) in (set, deque):
            return [type(value).__name__, [self._encoded(each) for each in value]]
        return super()._encoded(value)


def _fingerprint(values: _Values, value: Any) -> Any:
    """Return what differs once a variable has changed; of one that cannot be saved, which object it is."""
    if isinstance(value, _SCALARS):
        return type(value), value if value == value else "nan"
    try:
        encoded = values.encoded(value)
    except TypeError:
        return id(value), getattr(value, "_version", None)
    return json.dumps(encoded), of_arrays(values.arrays)


def _leaves(state: Mapping[str, Any]) -> list[Any]:
    """Return the arrays and tensors in the parts of a state, in an order that depends on the state alone."""
    leaves: list[Any] = []
    for part in state.values():
        if _has(part, "parameters", "buffers"):
            leaves += [*part.parameters(), *part.buffers()]
        elif TORCH.module() is not None and (tensors := [*torch_state.tensors(part)]):
            leaves += tensors
        elif (jax := JAX.module()) is not None and not is_from(part, "torch", "keras", "tensorflow"):
            leaves += [leaf for leaf in jax.tree.leaves(part) if isinstance(leaf, jax.Array)]
    return leaves


def _restored(present: Any, encoded: Any, arrays: Sequence[NDArray[Any]], state: Mapping[str, Any]) -> Any:
    """Return an encoded value: in the object that is present where it can be changed, as others may hold it."""
    kind, value = encoded

    def again(present: Any, encoded: Any) -> Any:
        return _restored(present, encoded, arrays, state)

    match kind:
        case "part":
            return state[value]
        case "leaf":
            return _leaves(state)[value]
        case "generator" if torch_state.is_generator(present):
            torch_state.set_encoded(present, value)
            return present
        case "floats in a list" | "list" | "floats in a deque" | "deque" | "floats in a set" | "set":
            if kind.startswith("floats"):
                items = [float(each) for each in arrays[value]]
            else:
                items_there = [*present] if type(present) is list else []
                items = [again(*each) for each in zip([*items_there, *[None] * len(value)], value, strict=False)]
            return _refilled(present, {"list": list, "deque": deque, "set": set}[kind.rpartition(" ")[2]], items)
        case "tuple":
            return tuple(again(None, each) for each in value)
        case "dict":
            there = present if isinstance(present, dict) else {}
            pairs = [(again(None, key), each) for key, each in value]
            merged = {key: again(there.get(key), each) for key, each in pairs}
            there.clear()
            there.update(merged)
            return there
        case "array" if isinstance(present, np.ndarray) and present.flags.writeable:
            if (present.shape, present.dtype) == (arrays[value].shape, arrays[value].dtype):
                present[...] = arrays[value]
                return present
        case "torch" if torch_state.is_tensor(present):
            tensor = restored_value(encoded, arrays)
            if (present.shape, present.dtype) == (tensor.shape, tensor.dtype) and present.is_leaf:
                present.data.copy_(tensor)
                return present
            return tensor
    return restored_value(encoded, arrays)


def _refilled(present: Any, kind: Callable[..., Any], items: list[Any]) -> Any:
    if type(present) is not kind:
        return kind(items)
    present.clear()
    (present.update if isinstance(present, set) else present.extend)(items)
    return present


def _assign(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Set variables of a running frame, and those of its module that it reads."""
    code = frame.f_code
    attributes = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    is_module = frame.f_locals is frame.f_globals
    local = {name: value for name, value in values.items() if is_module or name in attributes}
    frame.f_globals.update({name: value for name, value in values.items() if name not in local})
    variables = frame.f_locals
    variables.update(local)
    if sys.version_info < (3, 13) and not is_module:  # as debuggers do; from 3.13 on `f_locals` writes through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _accesses(code: CodeType) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield each read and assignment of a variable in a function: its place in the code, and its name."""
    for each in dis.get_instructions(code):
        if isinstance(each.argval, CodeType):
            yield from ((each.offset, ("LOAD", name)) for name in (*each.argval.co_names, *each.argval.co_freevars))
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        for access, name in zip(_ACCESS.findall(each.opname), names, strict=False):
            if isinstance(name, str):
                yield each.offset, (access, name)


@lru_cache(256)
def _names_needed(code: CodeType, at: int) -> tuple[frozenset[str] | None, bool]:
    """Return what is read after a loop, or in it before it is set (None: no `for`), and if a comprehension loops."""
    instructions = [*dis.get_instructions(code)]
    head = [each for each in instructions if each.offset <= at][-1]
    if head.opname != "FOR_ITER":
        return None, False
    body, other, assigned = set[str](), set[str](), set[str]()
    for offset, (access, name) in _accesses(code):
        if not head.offset < offset < head.argval:
            other |= {name} if access == "LOAD" else set()
        elif access == "STORE":
            assigned.add(name)
        elif name not in assigned:
            body.add(name)
    within = [each for each in instructions if head.offset < each.offset < head.argval]
    inner = [range(each.offset, each.argval) for each in within if each.opname == "FOR_ITER"]
    direct = [each for each in within if not any(each.offset in loop for loop in inner)]
    adds = any(each.opname in _ADDS and each.arg != 1 for each in direct)  # 1 is that of a call with *arguments
    yields = code.co_name == "<genexpr>" and any(each.opname == "YIELD_VALUE" for each in direct)
    return frozenset(body | other), adds or yields
