"""Checkpoints of ``tf.train``: an ``.index`` file and ``.data`` files with the same prefix."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpunb.checkpoint.catalog import Checkpoint, Skipped
from tpunb.checkpoint.formats import last_number, of_files, size_of, step_in
from tpunb.errors import MissingExtra, need
from tpunb.frames.conversion import open_file
from tpunb.text import format_error
from tpunb.training.state import DATA, OPTIMIZER, RANDOM, WEIGHTS

_DATA = re.compile(r"(?P<prefix>.+)\.data-(?P<shard>\d{5})-of-(?P<shards>\d{5})\Z")
_TEMPORARY = re.compile(r"part-\d{5}-of-\d{5}\Z")  # until the parts are merged
_MAGIC = bytes.fromhex("57fb808b247547db")  # at the end of every index
_MAX_PROBE = 2**24  # bytes of a tensor that is read to check that the data are complete

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
            yield Skipped(path, "has .data but no .index")
        elif not shards[prefix]:
            if _is_index(folder / f"{prefix}.index"):  # other programs use that suffix too
                yield Skipped(path, "has an .index but no .data")
        else:
            yield _read(path, shards[prefix])


def _is_index(path: Path) -> bool:
    with open_file(path) as content:
        content.seek(max(0, path.stat().st_size - len(_MAGIC)))
        return content.read() == _MAGIC


def _read(path: Path, shards: set[tuple[int, int]]) -> Checkpoint | Skipped:
    """Return the checkpoint of a prefix; its variables are listed, and few of them read."""
    number = max(shards)[1]
    if missing := set(range(number)) - {shard for shard, _ in shards}:
        return Skipped(path, f"has {number - len(missing)} of its {number} .data files")
    data = [path.with_name(f"{path.name}.data-{shard:05}-of-{number:05}") for shard in range(number)]
    files = [path.with_name(f"{path.name}.index"), *data]
    try:
        tf = need("tensorflow", extra="tensorflow")
    except MissingExtra as error:
        return Skipped(path, f"needs a library: {error}; {error.hint}")
    try:
        reader = tf.train.load_checkpoint(str(path))
        names = sorted(reader.get_variable_to_shape_map())
        _check_complete(reader, names, size_of(data))
        step = _step(reader, names, path.name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # the errors of the reader
        return Skipped(path, f"cannot be read: {format_error(error)}")
    return of_files(path, files, "tensorflow", {*map(_part, names)}, step)


def _check_complete(reader: Any, names: Sequence[str], size: int) -> None:
    """Raise if the data are shorter than the variables, which are stored in the order of names, before the graph."""
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    sizes = {name: math.prod(shapes[name]) * (types[name].size or 0) for name in names}
    if size < sum(sizes.values()):
        raise ValueError(f"its data are truncated: {size} bytes of at least {sum(sizes.values())}")
    last = _GRAPH if _GRAPH in names else max(names, default=None)
    if last is not None and sizes[last] <= _MAX_PROBE:
        reader.get_tensor(last)


def _step(reader: Any, names: Sequence[str], name: str) -> tuple[int | None, str]:
    """Return the step and its source; a name that ``CheckpointManager`` numbered by saves does not contain it."""
    for source, pattern in (("optimizer", _ITERATIONS), ("counter", _COUNTER)):
        values = [reader.get_tensor(key) for key in names if pattern.search(key)]
        if steps := [int(value) for value in values if value.shape == () and value.dtype.kind in "iu"]:
            return max(steps), source
    stated = step_in(name)
    if stated is None:
        stated = last_number(name)
        if _SAVES in names and stated == int(reader.get_tensor(_SAVES)):
            stated = None
    return stated, "" if stated is None else "name"


def _part(name: str) -> str:
    if name.endswith(_POSITION):
        return DATA
    if _RANDOM.search(name):
        return RANDOM
    if _COUNTER.search(name) or name in (_SAVES, _GRAPH):
        return ""
    in_model = "/_trainable_variables/" in name  # optimizers refer to the weights that they train
    if not in_model and (_OPTIMIZER.search(name) or _OPTIMIZER_PATH.search(name)):
        return OPTIMIZER
    return WEIGHTS
