"""Checkpoints of ``tf.train``: files that share a prefix, an ``.index`` and its ``.data``."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpunb.checkpoint.from_name import last_number, size_of, step_in, time_of
from tpunb.checkpoint.nouns import DATA, HOLDABLE, OPTIMIZER, RANDOM, WEIGHTS, Checkpoint, Skipped
from tpunb.errors import MissingExtra, need

_DATA = re.compile(r"(?P<prefix>.+)\.data-(?P<shard>\d{5})-of-(?P<shards>\d{5})\Z")
_TEMPORARY = re.compile(r"part-\d{5}-of-\d{5}\Z")  # until the parts are merged
_MAGIC = bytes.fromhex("57fb808b247547db")  # at the end of every index
_READ = 2**24  # bytes of a tensor that is read to see that the data are whole

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ITERATIONS = re.compile(rf"(^|/)(_iterations|iterations|iter){_VALUE}\Z")
_COUNTER = re.compile(rf"(^|/)(global_step|step|train_step)({_VALUE})?\Z")
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SAVES = f"save_counter{_VALUE}"
_OPTIMIZER = re.compile(r"(^|/)(_iterations|iter|_learning_rate|learning_rate|_velocities|_momentums|OPTIMIZER_SLOT)/")
_OPTIMIZER_PATH = re.compile(r"(^|/)[^/]*optim[^/]*/|\.OPTIMIZER_SLOT|/(adam|momentum|rmsprop)(_\d)?\Z", re.IGNORECASE)
_POSITION = "/.ATTRIBUTES/ITERATOR_STATE"
_RANDOM = re.compile(r"(^|/)(_state_var|seed_generator[^/]*|seed_generator_state)(/|\Z)")


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield TensorFlow's checkpoints among the files of a folder."""
    shards: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for name in files:
        if part := _DATA.match(name):
            shards[part["prefix"]].add((int(part["shard"]), int(part["shards"])))
    indexed = {name.removesuffix(".index") for name in files if name.endswith(".index")}
    for prefix in sorted(indexed | shards.keys()):
        path = folder / prefix
        if _TEMPORARY.match(prefix):
            yield Skipped(path, "was still being written")
        elif prefix not in indexed:
            yield Skipped(path, "has .data and no .index")
        elif not shards[prefix]:
            if _is_index(folder / f"{prefix}.index"):  # others have files of that name too
                yield Skipped(path, "has an .index and no .data")
        else:
            yield _read(path, shards[prefix])


def _is_index(path: Path) -> bool:
    content = path.open("rb")
    with content:
        content.seek(max(0, path.stat().st_size - len(_MAGIC)))
        return content.read() == _MAGIC


def _read(path: Path, shards: set[tuple[int, int]]) -> Checkpoint | Skipped:
    """Return the checkpoint of a prefix; its variables are looked up, and hardly any is read."""
    of = max(shards)[1]
    if missing := set(range(of)) - {shard for shard, _ in shards}:
        return Skipped(path, f"has {of - len(missing)} of its {of} .data files")
    data = [path.with_name(f"{path.name}.data-{shard:05}-of-{of:05}") for shard in range(of)]
    files = [path.with_name(f"{path.name}.index"), *data]
    try:
        tf = need("tensorflow", extra="tensorflow")
    except MissingExtra as error:
        return Skipped(path, f"needs a library: {error}; {error.hint}")
    try:
        reader = tf.train.load_checkpoint(str(path))
        names = sorted(reader.get_variable_to_shape_map())
        _check_whole(reader, names, size_of(data))
        step, step_from = _step(reader, names, path.name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # the reader's own kinds
        return Skipped(path, f"cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    return Checkpoint(path, step, time_of(files), size_of(files), "tensorflow", _holds(names), step_from=step_from)


def _check_whole(reader: Any, names: Sequence[str], size: int) -> None:
    """Raise where the data end before the variables do: they lie there in the order of names, the graph behind them."""
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    sizes = {name: math.prod(shapes[name]) * (types[name].size or 0) for name in names}
    if size < sum(sizes.values()):
        raise ValueError(f"its data are cut: {size} bytes of {sum(sizes.values())} or more")
    last = _GRAPH if _GRAPH in names else max(names, default=None)
    if last is not None and sizes[last] <= _READ:
        reader.get_tensor(last)


def _step(reader: Any, names: Sequence[str], name: str) -> tuple[int | None, str]:
    """Return the step and where it was read.

    A ``CheckpointManager`` numbers its files by the saves where the program gives it no number: such a name tells of no
    step.
    """
    for where, pattern in (("optimizer", _ITERATIONS), ("counter", _COUNTER)):
        read = [reader.get_tensor(key) for key in names if pattern.search(key)]
        if steps := [int(value) for value in read if value.shape == () and value.dtype.kind in "iu"]:
            return max(steps), where
    stated = step_in(name)
    if stated is None:
        stated = last_number(name)
        if _SAVES in names and stated == int(reader.get_tensor(_SAVES)):
            stated = None
    return stated, "" if stated is None else "name"


def _holds(names: Sequence[str]) -> tuple[str, ...]:
    held = {_held(name) for name in names}
    return tuple(one for one in HOLDABLE if one in held)


def _held(name: str) -> str:
    if name.endswith(_POSITION):
        return DATA
    if _RANDOM.search(name):
        return RANDOM
    if _COUNTER.search(name) or name in (_SAVES, _GRAPH):
        return ""
    in_model = "/_trainable_variables/" in name  # an optimizer refers to the weights that it trains
    if not in_model and (_OPTIMIZER.search(name) or _OPTIMIZER_PATH.search(name)):
        return OPTIMIZER
    return WEIGHTS
