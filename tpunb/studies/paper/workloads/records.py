"""Examples as TFRecord files, and the input pipelines that read them.

A pipeline has a tuned form, that of the paper's workloads, with parallel calls and prefetching; and a naive form with
neither (paper VII.C). Both give the same batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpunb.errors import TpunbError
from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.sizes import Plan

SHARDS = 4
"""Files of a split, which are read in turn."""

_BUFFER = 1024  # examples in the shuffle buffer

Decode = Callable[[Any, Any], tuple[Any, Any]]
"""(number of the example, its record) -> (input, target), in TensorFlow operations."""


def example(features: Mapping[str, bytes | str | int | Sequence[int] | Sequence[float]]) -> bytes:
    """Return a serialised ``tf.train.Example`` of texts, bytes, integers and lists of numbers."""

    def feature(value: Any) -> Any:
        values = [value] if isinstance(value, bytes | str | int) else list(value)
        if values and isinstance(values[0], bytes | str):
            data = [each.encode() if isinstance(each, str) else each for each in values]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=data))
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    named = tf.train.Features(feature={name: feature(value) for name, value in features.items()})
    return bytes(tf.train.Example(features=named).SerializeToString())


def write(folder: Path, split: str, examples: Iterator[bytes], count: int) -> list[Path]:
    """Return the `SHARDS` files of a split, and write them with `count` examples if missing."""
    paths = [folder / f"{split}-{shard:05}-of-{SHARDS:05}.tfrecord" for shard in range(SHARDS)]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    temporaries = [path.with_suffix(f".{os.getpid()}") for path in paths]
    writers = [tf.io.TFRecordWriter(str(path)) for path in temporaries]
    for number, record in enumerate(islice(examples, count)):
        writers[number % SHARDS].write(record)
    for writer, temporary, path in zip(writers, temporaries, paths, strict=True):
        writer.close()
        temporary.replace(path)
    return paths


def find(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder with real data, sorted; `TpunbError` if there are none."""
    paths = sorted(path for path in folder.glob(f"{split}*") if path.is_file())
    if not paths:
        raise TpunbError(
            f"{folder} contains no records of the split {split!r}",
            hint=f"name the TFRecord files {split}-00000-of-00004.tfrecord and so on; use the features of the "
            "synthetic records",
        )
    return paths


@cache
def temporary() -> TemporaryDirectory[str]:
    """Return a folder for records that is removed when this process ends."""
    return TemporaryDirectory(prefix="tpunb-workloads-")


def pipeline(files: Sequence[Path], decode: Decode, plan: Plan, split: str, *, naive: bool, seed: int) -> Any:
    """Return the ``tf.data.Dataset`` of one pass over a split: read, shuffled, decoded, batched, prefetched.

    Training examples are shuffled, then numbered; number and seed determine all random operations, so that each epoch
    crops an example differently, and a seed gives the same run again.
    """
    calls = None if naive else tf.data.AUTOTUNE
    data = tf.data.Dataset.from_tensor_slices([str(path) for path in files])
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=SHARDS, num_parallel_calls=calls).repeat()
    if split == "train":  # after repeat, so that the order does not depend on reading ahead
        data = data.shuffle(min(_BUFFER, plan.examples), seed=seed)
    data = data.enumerate().map(decode, num_parallel_calls=calls)
    data = data.batch(plan.batch, drop_remainder=True).take(plan.steps_of(split))
    options = tf.data.Options()
    if naive:  # tf.data adds no parallel calls and no buffers, in which it would work ahead
        options.experimental_optimization.map_parallelization = False
        options.experimental_optimization.map_and_batch_fusion = False
        options.experimental_optimization.inject_prefetch = False
    else:
        data = data.prefetch(tf.data.AUTOTUNE)
    return data.with_options(options)


def in_private_thread(data: Any) -> Any:
    """Return a dataset that works in one private thread."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return data.with_options(options)
