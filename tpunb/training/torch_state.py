"""State of a training of PyTorch: its parts as `torch.save` writes them, and what its DataLoader draws from.

What is read back is read with ``weights_only=True``: tensors, numbers and text, no code.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.frames.conversion import open_file, open_zip, read_file
from tpunb.instrument.torch import LIBRARY as TORCH
from tpunb.text import plain
from tpunb.training import seeds
from tpunb.training.callbacks import GENERATORS
from tpunb.training.snapshot import reading
from tpunb.training.state import as_array, is_from

_DEPTH, _ITEMS, _PARTS = 8, 64, 5000
"""Attributes of attributes that are searched for random generators, items of a list, and objects in all."""

_ROOTS = ("dataset", "collate_fn", "generator", "sampler", "batch_sampler")
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
_NOT_READ = ("torch.", "builtins")
_DRAWS = re.compile(  # names in functions that draw random numbers
    r"(?i)(?:^|_|\b)(?:rand|randn|randint|random|randrange|randperm|rng|shuffle|multinomial|bernoulli|normal|uniform|"
    r"choice|choices|sample|permutation|permuted|poisson|exponential|beta|gauss|dropout)(?:_|\b|$)|Random"
)


# -- parts of a state -------------------------------------------------------------------------------------------------


def is_part(part: Any) -> bool:
    """Return whether a part of a state has a ``state_dict``, as models and optimizers of PyTorch do."""
    has_state = all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))
    return has_state and TORCH.module() is not None and not isinstance(part, type)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return is_from(value, "torch") and hasattr(value, "detach")


def write_part(path: Path, part: Any) -> str:
    """Write a part with a ``state_dict``; return why it cannot be read back, or ""."""
    return write(path, {"state": part.state_dict(), "module": beside(part)})


def read_part(path: Path, part: Any) -> None:
    """Restore a part of `write_part` in place."""
    saved = read(path)
    part.load_state_dict(saved["state"])
    if saved["module"] is not None:
        restore_beside(part, saved["module"])


def write_values(path: Path, value: Any) -> str:
    """Write a tree of tensors, numbers and text, and the gradients of its tensors; return as `write_part`."""
    return write(path, {"value": value, "gradients": [each.grad if each.is_leaf else None for each in tensors(value)]})


def read_values(path: Path, value: Any) -> Any:
    """Restore the tensors of a tree in place; return the tree."""
    saved = read(path)
    for each, gradient in zip(tensors(saved["value"]), saved["gradients"], strict=True):
        each.grad = gradient
    return _merged(value, saved["value"])


def write_generator(path: Path, generator: Any) -> None:
    """Write the state of a random generator."""
    path.with_suffix(".json").write_text(json.dumps(encoded(generator)))


def read_generator(path: Path, generator: Any) -> None:
    """Restore a state of `write_generator`."""
    set_encoded(generator, json.loads(read_file(path.with_suffix(".json"))))


def write(path: Path, content: Any) -> str:
    """Write tensors, numbers and text; return why they cannot be read back, or ""."""
    import torch

    torch.save(content, path.with_suffix(".pt"))
    return unsafe(path)


def unsafe(path: Path) -> str:
    """Return why what `write` wrote cannot be read back, or ""."""
    import torch

    with reading(path.with_suffix(".pt")), open_zip(path.with_suffix(".pt")), _numpy_allowed():
        kinds = torch.serialization.get_unsafe_globals_in_checkpoint(path.with_suffix(".pt"))
    if not kinds:
        return ""
    name, kind = path.stem.removeprefix("part-"), plain(min(kinds))
    return f"{name}: a {kind} in its state is not read back (keep tensors, numbers and text there)"


def read(path: Path) -> Any:
    """Return what `write` wrote, on the CPU."""
    import torch

    file = path.with_suffix(".pt")
    with reading(file), open_zip(file), open_file(file) as content, _numpy_allowed():
        return torch.load(content, map_location="cpu", weights_only=True)


def _numpy_allowed() -> AbstractContextManager[Any]:
    import torch

    rebuild: list[Any] = [each.__reduce__()[0] for each in (np.float64(0), np.zeros(0))]
    kinds = [type(np.dtype(name)) for name in ("bool", "int32", "int64", "float32", "float64", "uint8", "uint32")]
    allowed: AbstractContextManager[Any] = torch.serialization.safe_globals([*rebuild, np.ndarray, np.dtype, *kinds])
    return allowed


def beside(module: Any) -> dict[str, Any] | None:
    """Return what a module's ``state_dict`` lacks: gradients, other buffers, modes, and metrics of torchmetrics."""
    import torch

    if not isinstance(module, torch.nn.Module):
        return None
    saved, parts = module.state_dict(), dict(module.named_modules())
    return {
        "buffers": {name: each for name, each in module.named_buffers() if name not in saved},
        "gradients": {name: each.grad for name, each in module.named_parameters() if each.grad is not None},
        "trainable": {name: each.requires_grad for name, each in module.named_parameters()},
        "training": {name: each.training for name, each in parts.items()},
        "metrics": {
            name: [each.metric_state, each._update_count]
            for name, each in parts.items()
            if hasattr(each, "metric_state")
        },
    }


def restore_beside(module: Any, saved: Mapping[str, Any]) -> None:
    """Restore what a module's ``state_dict`` lacks."""
    for name, value in saved["buffers"].items():
        owner, _, leaf = name.rpartition(".")
        buffers = module.get_submodule(owner)._buffers
        buffers[leaf] = _merged(buffers.get(leaf), value)
    for name, each in module.named_parameters():
        each.requires_grad_(saved["trainable"].get(name, each.requires_grad))
        gradient = saved["gradients"].get(name)
        each.grad = None if gradient is None else gradient.to(each.device)
    for name, each in module.named_modules():
        each.training = saved["training"].get(name, each.training)
        if name in saved["metrics"]:
            values, each._update_count = saved["metrics"][name]
            for attribute, value in values.items():
                is_one = is_tensor(value)
                setattr(each, attribute, value.to(each.device) if is_one else [part.to(each.device) for part in value])


def _merged(present: Any, saved: Any) -> Any:
    """Return a saved tree: in tensors, lists and dicts that are present, as others may hold them."""
    import torch

    if is_tensor(present) and is_tensor(saved) and present.shape == saved.shape and present.dtype == saved.dtype:
        with torch.no_grad():
            present.copy_(saved)
        if present.is_leaf:
            present.grad = None if saved.grad is None else saved.grad.to(present.device)
        return present
    if type(present) is type(saved) is dict:
        merged = {key: _merged(present.get(key), value) for key, value in saved.items()}
        present.clear()
        present.update(merged)
        return present
    if type(present) is type(saved) is list:
        present[:] = [_merged(*each) for each in zip([*present, *[None] * len(saved)], saved, strict=False)]
        return present
    if type(present) is type(saved) is tuple and len(present) == len(saved):
        return tuple(_merged(*each) for each in zip(present, saved, strict=True))
    if is_tensor(present) and is_tensor(saved):
        return saved.to(present.device)
    return saved


def tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in a tree."""
    if is_tensor(value):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(each)


def sample(parts: Iterable[Any], most: int) -> list[NDArray[Any]]:
    """Return some values of each of at most `most` tensors of a part, and the numbers in optimizers."""
    samples = []
    for part in parts:
        state = part.state_dict() if is_part(part) else part
        every = [*tensors(state), *(getattr(part, "buffers", list)())]
        for each in every[:: max(1, -(-len(every) // most))]:
            flat = each.detach().flatten()
            samples.append(as_array(flat[:: max(1, flat.numel() // most)]).copy())
        samples += [np.array(group["lr"], dtype=float) for group in getattr(part, "param_groups", ())]
    return samples


def missing(parts: Iterable[Any], optimizers: Iterable[Any]) -> str:
    """Return what the parts of a state, or those inside of wrappers, lack of optimizers that took a step, or ""."""
    parts = list(parts)
    modules = [each for each in parts if hasattr(each, "parameters")]
    saved = {id(each) for part in modules for each in part.parameters()} | {id(each) for each in tensors(parts)}
    others = [each for each in parts if not hasattr(each, "param_groups")]
    stepped = [_unwrapped(each) for each in parts if hasattr(each, "param_groups")]
    scheduled = [_unwrapped(getattr(getattr(each, "scheduler", each), "optimizer", None)) for each in others]
    for optimizer in optimizers:
        name = plain(type(optimizer).__name__)
        if not any(each is optimizer for each in stepped):
            return f"state lacks an optimizer that takes steps, {name} (give it in state)"
        if any(id(each) not in saved for group in optimizer.param_groups for each in group["params"]):
            return f"state lacks what {name} trains (give the model in state)"
        has_scheduler = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        if has_scheduler and not any(each is optimizer for each in scheduled):
            return f"state lacks the learning rate scheduler of {name} (give it in state)"
    return ""


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside of one of accelerate's, or another."""
    return getattr(optimizer, "optimizer", optimizer)


# -- sources of a DataLoader ------------------------------------------------------------------------------------------


class LoaderSources:
    """Generators that a DataLoader draws from, the global ones too, and numbers that its parts count."""

    def __init__(self, loader: Any) -> None:
        seen, codes = set[int](), set[int]()
        self._parts = {path: part for name in _ROOTS for path, part in _walk(name, getattr(loader, name, None), seen)}
        self.is_random = False  # the dataset or collate_fn: it has a generator, or a function names one that draws
        for path, part in [*self._parts.items()]:
            of_items = path.startswith(("dataset", "collate_fn"))
            self.is_random |= of_items and is_generator(part)
            for name, value in _names(part, codes):
                self.is_random |= of_items and (is_generator(value) or _DRAWS.search(name) is not None)
                if is_generator(value):
                    self._parts[f"{path}:{name}"] = value

    def capture(self) -> dict[str, Any]:
        """Return the present states as JSON values."""
        generators = {path: encoded(part) for path, part in self._parts.items() if is_generator(part)}
        counts = {
            f"{path}.{name}": value
            for path, part in self._parts.items()
            for name, value in getattr(part, "__dict__", {}).items()
            if type(value) in (int, float, bool) and not isinstance(part, type | FunctionType)
        }
        return {"global": seeds.host_random_state(), "generators": generators, "counts": counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set states of `capture`."""
        for path, part in self._parts.items():
            if is_generator(part) and path in state["generators"]:
                set_encoded(part, state["generators"][path])
        for name, value in state["counts"].items():
            path, _, attribute = name.rpartition(".")
            attributes = getattr(self._parts.get(path), "__dict__", {})
            if attributes.get(attribute, value) != value:
                attributes[attribute] = value
        seeds.set_host_random_state(state["global"])


def is_generator(part: Any) -> bool:
    """Return whether an object is a random generator."""
    return type(part) in GENERATORS or (is_from(part, "torch") and type(part).__name__ == "Generator")


def encoded(generator: Any) -> Any:
    """Return the state of a random generator as JSON values."""
    if type(generator) in GENERATORS:
        return _plain(GENERATORS[type(generator)][0](generator))
    return seeds.to_text(generator.get_state())


def set_encoded(generator: Any, state: Any) -> None:
    """Set a state of `encoded`."""
    if isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif type(generator) in GENERATORS:
        GENERATORS[type(generator)][1](generator, state)
    else:
        generator.set_state(seeds.from_text(state))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _walk(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a part of a DataLoader consists of, by path."""
    if id(value) in seen or path.count(".") > _DEPTH or len(seen) > _PARTS or is_tensor(value):
        return
    if isinstance(value, type | str | bytes | int | float | complex | np.ndarray | None):
        return
    seen.add(id(value))
    children: Mapping[Any, Any] = {}
    if isinstance(value, Mapping | list | tuple):
        children = value if isinstance(value, Mapping) else dict(zip(range(_ITEMS), value, strict=False))
    else:
        yield path, value
        if isinstance(value, FunctionType | MethodType | functools.partial):
            names = ("__self__", "__func__", "func", "args", "keywords", "__defaults__", "__closure__")
            children = {name: getattr(value, name, None) for name in names}
        elif isinstance(value, CellType):
            children = {"value": getattr(value, "cell_contents", None)} if value != CellType() else {}
        elif not is_generator(value):
            children = getattr(value, "__dict__", None) or {}
    for name, each in itertools.islice(children.items(), _ITEMS):
        yield from _walk(f"{path}.{name}", each, seen)


def _names(part: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield names, with their meaning, in a part's functions and those that they call in its class or module."""
    # PyTorch's own functions are not read
    kind = type(part)
    functions: list[Any] = (
        [part] if isinstance(part, FunctionType) else [getattr(kind, name, None) for name in _ENTRIES]
    )
    if not kind.__module__.startswith(_NOT_READ):
        yield kind.__name__, None
    while functions and len(seen) < _PARTS:
        function = functions.pop()
        if not isinstance(function, FunctionType) or (function.__module__ or "").startswith(_NOT_READ):
            continue
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            if id(code) in seen:
                continue
            seen.add(id(code))
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
            for name in code.co_names:
                value = function.__globals__.get(name, getattr(kind, name, None))
                functions.append(value)
                yield name, value
