"""Naive input pipelines and what a careful user writes instead; short jobs; and twelve small pipelines.

A batch of the naive ones takes longer than a step of the model: `KINDS`. Each has a variant with AUTOTUNE for every
call and a prefetch at its end, as TensorFlow's guide advises. `SHORT` adds five that compute or wait in other ways, as
programs of tutorials do. The twelve contain every common dataset operation,
including those on which the tuner of the original TPUPoint crashed or changed the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tpunb.tuning.job import Job

PICTURES, SHARDS, BATCH = 256, 16, 16
SIDE, SIZE = 64, 32  # pixels of the images on disk, and of the model's input
FEATURES = SIZE * SIZE * 3


@dataclass(frozen=True)
class Kind:
    """A kind of naive pipeline.

    Attributes
    ----------
    about
        What it is, in words.
    data
        ``data(folder, auto)`` returns its dataset, endless; where `auto` is AUTOTUNE, as a careful user writes it.
    job
        ``job(build)`` with ``build()`` that returns the dataset: the training on it.
    """

    about: str
    data: Callable[[Path, Any], Any]
    job: Callable[[Callable[[], Any]], Job]


def pictures(folder: Path) -> list[str]:
    """Return files of small JPEG images, written if missing."""
    import tensorflow as tf

    paths = [folder / f"{number:03d}.jpg" for number in range(PICTURES)]
    dice = np.random.default_rng(0)
    for path in paths:
        if not path.exists():
            picture = dice.integers(0, 255, (SIDE, SIDE, 3), dtype="uint8")
            path.write_bytes(tf.io.encode_jpeg(picture).numpy())
    return [str(path) for path in paths]


def shards(folder: Path) -> list[str]:
    """Return TFRecord files, each with all images, written if missing."""
    import tensorflow as tf

    paths = [folder / f"{shard:02d}.tfrecord" for shard in range(SHARDS)]
    for path in paths:
        if not path.exists():
            with tf.io.TFRecordWriter(str(path)) as writer:
                for picture in pictures(folder):
                    writer.write(Path(picture).read_bytes())
    return [str(path) for path in paths]


def late(seconds: float, rows: Any) -> Any:
    """Return a dataset of texts that each take some time to arrive, without using a core, like a disk."""
    import tensorflow as tf

    slow = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(rows),
        sleep_microseconds=tf.constant(round(seconds * 1e6), tf.int64),
        output_types=[tf.string],
        output_shapes=[[]],
    )
    return tf.data.experimental.from_variant(slow, rows.element_spec)


def decoded(record: Any, resized: int = 1) -> Any:
    """Return the pixels of an image and its mean colour; repeated resizing only takes time."""
    import tensorflow as tf

    picture = tf.cast(tf.io.decode_jpeg(record, channels=3), tf.float32)
    for turn in range(resized):
        picture = tf.image.resize(picture, [(2 + turn % 2) * SIZE] * 2)
    picture = tf.image.resize(picture, [SIZE, SIZE]) / 255
    return tf.reshape(picture, [FEATURES]), tf.reduce_mean(picture, axis=[0, 1])


def asked(seconds: float, number: Any) -> Any:
    """Return the result of a slow Python function of a number, and its label."""
    import tensorflow as tf

    def wait(number: Any) -> Any:
        time.sleep(seconds)
        return np.random.default_rng(int(number)).random(FEATURES, "float32")

    row = tf.ensure_shape(tf.numpy_function(wait, [number], tf.float32), [FEATURES])
    return row, row[:3]


def checked(seconds: float, record: Any, number: Any) -> Any:
    """Return a record after a slow Python function."""
    import tensorflow as tf

    def look(number: Any) -> Any:
        time.sleep(seconds)
        return number

    with tf.control_dependencies([tf.numpy_function(look, [number], tf.int64)]):
        return tf.identity(record)


def from_far(folder: Path, auto: Any) -> Any:
    """Return images from files that take 3 ms to arrive, like from a bucket or a shared disk.

    It is fetched in a map. In an ``interleave`` AUTOTUNE does well by itself: its readers have threads of their own.
    """
    import tensorflow as tf

    def fetched(path: Any) -> Any:
        arrived = late(
            0.0015, tf.data.Dataset.from_tensors(path)
        ).get_single_element()  # waits twice: for the element and for the end
        return decoded(tf.io.read_file(arrived))

    paths = tf.data.Dataset.from_tensor_slices(pictures(folder)).shuffle(PICTURES, seed=5).repeat()
    return _ended(paths.map(fetched, num_parallel_calls=auto), auto)


def from_python(_: Path, auto: Any) -> Any:
    """Return rows that a Python function reads in 4 ms each."""
    import tensorflow as tf

    numbers = tf.data.Dataset.range(2**20)
    return _ended(numbers.map(partial(asked, 0.004), num_parallel_calls=auto), auto)


def computed(folder: Path, auto: Any) -> Any:
    """Return images whose decoding and resizing keeps the cores busy."""
    import tensorflow as tf

    records = _files(folder).interleave(tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=auto)
    pictures = records.shuffle(128, seed=5).map(partial(decoded, resized=64), num_parallel_calls=auto)
    return _ended(pictures, auto)


def mixed(folder: Path, auto: Any) -> Any:
    """Return decoded images that take 1.5 ms to arrive and 2 ms in Python."""
    import tensorflow as tf

    def arriving(file: Any) -> Any:
        return late(0.0015, tf.data.TFRecordDataset(file))

    records = _files(folder).interleave(arriving, cycle_length=8, num_parallel_calls=auto)
    verified = records.enumerate().map(lambda n, record: checked(0.002, record, n), num_parallel_calls=auto)
    return _ended(verified.shuffle(128, seed=5).map(decoded, num_parallel_calls=auto), auto)


def of_the_original(_: Path, auto: Any) -> Any:
    """Return the example of the original TPUPoint: a generator of 15 ms, a map of 30 ms, batches of 8."""
    import tensorflow as tf

    def read(rows: int) -> Any:
        time.sleep(0.03)
        for row in range(rows):
            time.sleep(0.015)
            yield (row,)

    def worked_on(row: Any) -> Any:
        tf.py_function(lambda: time.sleep(0.03), [], ())
        return row

    rows = tf.data.Dataset.from_generator(read, args=(300,), output_signature=tf.TensorSpec((1,), tf.int64))
    batches = rows.map(worked_on, num_parallel_calls=auto).batch(8)
    return batches.prefetch(3 if auto is None else auto).repeat()


def packed(folder: Path, auto: Any) -> Any:
    """Return rows of 64 KB, decoded from examples in TFRecord files."""
    import tensorflow as tf

    path = folder / "examples.tfrecord"
    if not path.exists():
        dice = np.random.default_rng(1)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(PICTURES):
                row = dice.random((8, FEATURES), "float32")
                features = {
                    "row": tf.train.Feature(bytes_list=tf.train.BytesList(value=[row.tobytes()])),
                    "label": tf.train.Feature(float_list=tf.train.FloatList(value=[number / PICTURES] * 3)),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())

    spec = {"row": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([3], tf.float32)}

    def parsed(record: Any) -> Any:
        example = tf.io.parse_single_example(record, spec)
        row = tf.reshape(tf.io.decode_raw(example["row"], tf.float32), [8, FEATURES])
        return tf.reduce_mean(tf.math.tanh(row), axis=0), example["label"]

    records = tf.data.TFRecordDataset(str(path)).repeat()
    return _ended(records.map(parsed, num_parallel_calls=auto), auto)


def lines(folder: Path, auto: Any) -> Any:
    """Return rows parsed from the lines of CSV files, which arrive in 1 ms each."""
    import tensorflow as tf

    path, columns = folder / "rows.csv", FEATURES // 4
    if not path.exists():
        rows = np.random.default_rng(2).random((PICTURES, columns))
        np.savetxt(path, rows, delimiter=",", fmt="%.4f")

    def parsed(line: Any) -> Any:
        arrived = late(0.0005, tf.data.Dataset.from_tensors(line)).get_single_element()
        row = tf.stack(tf.io.decode_csv(arrived, [0.0] * columns))
        return tf.tile(row, [4]), row[:3]

    arriving = tf.data.TextLineDataset(str(path)).repeat()
    return _ended(arriving.map(parsed, num_parallel_calls=auto), auto)


def tokens(_: Path, auto: Any) -> Any:
    """Return texts, split into words and numbered in Python."""
    import tensorflow as tf

    words = [f"word{number}" for number in range(5000)]
    numbers = {word: number for number, word in enumerate(words)}

    def numbered(seed: Any) -> Any:
        text = " ".join(words[(int(seed) * 7919 + at * at) % len(words)] for at in range(3000))
        row = np.zeros(FEATURES, "float32")
        for at, word in enumerate(text.split()):
            row[at] = numbers[word] / len(words)
        return row

    def tokenised(seed: Any) -> Any:
        row = tf.ensure_shape(tf.numpy_function(numbered, [seed], tf.float32), [FEATURES])
        return row, row[:3]

    return _ended(tf.data.Dataset.range(2**20).map(tokenised, num_parallel_calls=auto), auto)


def augmented(_: Path, auto: Any) -> Any:
    """Return images that NumPy turns, mirrors and blurs, by random numbers that are seeded by their place."""
    import tensorflow as tf

    def turned(number: Any) -> Any:
        dice = np.random.default_rng(int(number))
        image = np.rot90(dice.random((4 * SIDE, 4 * SIDE, 3)), dice.integers(4))
        image = image[:, ::-1] if dice.random() < 0.5 else image
        blurred = sum(np.roll(image, step, axis) for step in range(-2, 3) for axis in (0, 1)) / 10
        return np.ascontiguousarray(blurred[: 8 * SIZE : 8, : 8 * SIZE : 8], "float32").reshape(FEATURES)

    def both(number: Any) -> Any:
        row = tf.ensure_shape(tf.numpy_function(turned, [number], tf.float32), [FEATURES])
        return row, row[:3]

    return _ended(tf.data.Dataset.range(2**20).map(both, num_parallel_calls=auto), auto)


def generated(_: Path, auto: Any) -> Any:
    """Return rows of a Python generator that waits 2 ms for each, scaled in a map."""
    import tensorflow as tf

    def rows() -> Any:
        for number in range(2**20):
            time.sleep(0.002)
            yield np.full(FEATURES, number % 7, "float32")

    def scaled(row: Any) -> Any:
        return row / 7, row[:3]

    data = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((FEATURES,), tf.float32))
    return _ended(data.map(scaled, num_parallel_calls=auto), auto)


def fitted(name: str, folder: Path) -> tuple[Any, Any]:
    """Return a model and its naive dataset for ``fit``, of a name in `KINDS` or `SHORT`."""
    kind = (KINDS | SHORT)[name]
    model, data = kind.job(lambda: kind.data(folder, None)).parts
    return (model or _taking(), data)


def _taking() -> Any:
    """Return a model that only takes batches."""
    import keras
    import tensorflow as tf

    class Taking(keras.Model):
        def train_step(self, batch: Any) -> Any:
            return {
                "loss": tf.reduce_sum([tf.reduce_sum(tf.cast(part, tf.float32)) for part in tf.nest.flatten(batch)])
            }

    model = Taking()
    model.compile()
    return model


def dense(width: int, build: Callable[[], Any]) -> Job:
    """Return the training of three dense layers of one width in Keras on such data."""

    def both() -> tuple[Any, Any]:
        import keras

        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dropout(0.1), keras.layers.Dense(3)])
        model.compile("adam", "mse", jit_compile=False)
        return model, build()

    return Job(both)


def taken(build: Callable[[], Any]) -> Job:
    """Return a loop that only takes batches, like the example of the original."""
    return Job(lambda: ({}, build()), step=lambda _, batch: batch)


KINDS = {
    "io": Kind("each picture takes 3 ms to arrive", from_far, partial(dense, 384)),
    "python": Kind("each row takes 4 ms in Python", from_python, partial(dense, 384)),
    "cpu": Kind("decoding and resizing keep the cores busy", computed, partial(dense, 384)),
    "mixed": Kind("1.5 ms to arrive, 2 ms in Python, and decoding", mixed, partial(dense, 384)),
    "original": Kind("the original's: read 15 ms, map 30 ms, batch 8", of_the_original, taken),
}

SHORT = {
    "tfrecord": Kind("examples of TFRecord files are decoded", packed, partial(dense, 384)),
    "csv": Kind("lines arrive in 1 ms and are parsed", lines, partial(dense, 384)),
    "tokens": Kind("texts are numbered word by word in Python", tokens, partial(dense, 384)),
    "augmented": Kind("NumPy turns, mirrors and blurs images", augmented, partial(dense, 384)),
    "generator": Kind("a generator waits 2 ms for each row", generated, partial(dense, 384)),
}
"""With `KINDS`, the ten jobs of which short fits are tuned while they run."""


def _files(folder: Path) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(shards(folder)).repeat()


def _ended(rows: Any, auto: Any) -> Any:
    """Return batches, with a prefetch for a careful user."""
    batches = rows.batch(BATCH, drop_remainder=True)
    return batches if auto is None else batches.prefetch(auto)


# -- twelve small pipelines ------------------------------------------------------------------------------------------


def twelve(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what makes each of twelve small pipelines, by its name.

    Those that the original TPUPoint crashed on, or whose output it changed, are the first ten; batches are of 8, and
    the last one holds fewer.
    """
    import tensorflow as tf

    data = tf.data.Dataset
    files = _lines(folder)
    generator = tf.random.Generator.from_seed(3)

    def twenty() -> Any:
        return data.range(20).map(lambda x: 2 * x)

    def counted() -> Any:
        yield from range(20)

    def as_options(one: Any) -> Any:
        options = tf.data.Options()
        options.threading.private_threadpool_size = 2
        options.experimental_optimization.map_and_batch_fusion = False
        return one.with_options(options)

    return {
        "range, enumerate, unbatch": lambda: twenty().enumerate(3).map(lambda n, x: n * x).batch(6).unbatch().batch(8),
        "from_tensor_slices, nested": lambda: (
            data.from_tensor_slices({"x": np.eye(20), "y": np.arange(20)})
            .map(lambda row: (row["x"] * 2, {"y": (row["y"],)}))
            .batch(8)
        ),
        "padded_batch": lambda: twenty().map(lambda x: tf.range(x % 5)).padded_batch(8),
        "filter, scan, take_while": lambda: (
            twenty()
            .filter(lambda x: x % 3 == 0)
            .scan(np.int64(0), lambda total, x: (total + x, total))
            .take_while(lambda x: x < 90)
            .map(lambda x: x + 1)
            .batch(8)
        ),
        "from_generator": lambda: (
            data.from_generator(counted, output_signature=tf.TensorSpec((), tf.int64)).map(lambda x: 2 * x).batch(8)
        ),
        "TFRecord, interleave": lambda: (
            data.from_tensor_slices(files)
            .interleave(tf.data.TFRecordDataset, cycle_length=3)
            .map(tf.strings.length)
            .shuffle(6, seed=1)
            .batch(8)
        ),
        "zip, concatenate, sample_from_datasets": lambda: data.zip(
            twenty().concatenate(twenty().map(lambda x: x + 1)),
            data.sample_from_datasets([twenty(), twenty().batch(1).unbatch()], [0.3, 0.7], seed=4),
        ).batch(8),
        "cache, repeat": lambda: twenty().cache().shuffle(20, seed=1).repeat(2).batch(8).prefetch(2),
        "with_options, window, flat_map": lambda: as_options(
            twenty().window(4, shift=2).flat_map(lambda window: window.batch(4)).map(lambda x: x + 1)
        ),
        "shuffle, take and skip between map and batch": lambda: (
            twenty().shuffle(7, seed=2).skip(2).take(13).map(lambda x: x - 1).batch(8)
        ),
        "a map with a random state": lambda: twenty().map(lambda x: x + generator.uniform((), 0, 9, tf.int64)).batch(8),
        "a cache in a file": lambda: twenty().cache(str(folder / "cache")).batch(8),
    }


def _lines(folder: Path) -> list[str]:
    """Return four small TFRecord files."""
    import tensorflow as tf

    paths = [folder / f"small-{shard}.tfrecord" for shard in range(4)]
    for shard, path in enumerate(paths):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in range(5):
                writer.write(b"x" * (5 * shard + row))
    return [str(path) for path in paths]
