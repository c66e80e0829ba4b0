"""Examples as TFRecord files: written once, and read as an input pipeline, in its tuned and in its naive form.

The tuned form is the one that the paper's workloads came with: calls in parallel, and batches made ahead. The naive
form is what one writes first (paper VII.C): one call at a time, nothing ahead. Both give the same batches.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError, need
from tpunb.workloads.scaling import Plan

SHARDS = 4
"""Files of a split, and how many are read in turn."""

_BUFFER = 1024  # examples among which is shuffled

Decode = Callable[[Any, Any], tuple[Any, Any]]
"""(number of the example, its record) -> (input, target), as TensorFlow's operations."""


def example(features: Mapping[str, bytes | str | int | Sequence[int] | Sequence[float]]) -> bytes:
    """Return a serialised ``tf.train.Example``: texts and bytes, whole numbers, and lists of numbers."""
    tf = need("tensorflow", extra="tensorflow")

    def feature(value: Any) -> Any:
        values = [value] if isinstance(value, bytes | str | int) else list(value)
        if values and isinstance(values[0], bytes | str):
            told = [one.encode() if isinstance(one, str) else one for one in values]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=told))
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    kept = tf.train.Features(feature={name: feature(value) for name, value in features.items()})
    return bytes(tf.train.Example(features=kept).SerializeToString())


def written(folder: Path, split: str, examples: Iterator[bytes], count: int) -> list[Path]:
    """Return the files of a split, written unless they are there: `count` examples in `SHARDS` files."""
    tf = need("tensorflow", extra="tensorflow")
    paths = [folder / f"{split}-{shard:05}-of-{SHARDS:05}.tfrecord" for shard in range(SHARDS)]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = [path.with_suffix(f".{os.getpid()}") for path in paths]
    writers = [tf.io.TFRecordWriter(str(path)) for path in unfinished]
    for number, record in enumerate(islice(examples, count)):
        writers[number % SHARDS].write(record)
    for writer, begun, path in zip(writers, unfinished, paths, strict=True):
        writer.close()
        begun.replace(path)
    return paths


def found(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder of somebody's own, sorted.

    Raises
    ------
    TpunbError
        There are none.
    """
    paths = sorted(path for path in folder.glob(f"{split}*") if path.is_file())
    if not paths:
        raise TpunbError(
            f"{folder} holds no records of the split {split!r}",
            hint=f"name the TFRecord files {split}-00000-of-00004.tfrecord and so on; their features are those of "
            "the workload's own records",
        )
    return paths


@cache
def temporary() -> Path:
    """Return a folder for records that lives as long as this process."""
    _kept.append(kept := tempfile.TemporaryDirectory(prefix="tpunb-workloads-"))
    return Path(kept.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []  # its finalizer removes it when the process ends


def pipeline(files: Sequence[Path], decode: Decode, plan: Plan, split: str, *, naive: bool, seed: int) -> Any:
    """Return the ``tf.data.Dataset`` of one pass over a split: read, shuffled, decoded, batched, made ahead.

    Training data are shuffled before they are numbered, and what a step draws at random is drawn by that number and
    the seed: an example is cropped anew in each epoch, and yet every run with a seed sees the same.
    """
    tf = need("tensorflow", extra="tensorflow")
    calls = None if naive else tf.data.AUTOTUNE
    data = tf.data.Dataset.from_tensor_slices([str(path) for path in files])
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=SHARDS, num_parallel_calls=calls).repeat()
    if split == "train":  # above the repetition, so that no order hangs on how far was read ahead
        data = data.shuffle(min(_BUFFER, plan.examples), seed=seed)
    data = data.enumerate().map(decode, num_parallel_calls=calls)
    data = data.batch(plan.batch, drop_remainder=True).take(plan.steps_of(split))
    return data.with_options(_as_written()) if naive else data.prefetch(tf.data.AUTOTUNE)


def _as_written() -> Any:
    """Return the options under which tf.data puts in no parallel calls and no buffer of its own."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    return options
