"""Programs after pages of tensorflow.org and keras.io whose data have orders of all kinds, or come from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from programs import Training, csv_file, images, labels, program, table, text_files, texts

Slices = tf.data.Dataset.from_tensor_slices


def compiled(*parts: Any, loss: str = "mse") -> keras.Model:
    """Return a compiled sequential model."""
    model = keras.Sequential(parts)
    model.compile("adam", loss)
    return model


def classifier(*parts: Any) -> keras.Model:
    """Return a compiled classifier."""
    return compiled(*parts, layers.Flatten(), layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")


def pictures(folder: Path, **arguments: Any) -> Any:
    """Return the pictures of a folder with three classes, as Keras reads them."""
    for at, (image, label) in enumerate(zip((255 * images()).astype("uint8"), labels(), strict=True)):
        file = folder / "pictures" / str(label) / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tf.io.encode_png(image).numpy())
    arguments |= {"image_size": (8, 8), "color_mode": "grayscale", "batch_size": 4, "verbose": False}
    return keras.utils.image_dataset_from_directory(folder / "pictures", **arguments)


@program("fit on files of images")
def flowers(folder: Path) -> Training:
    """Cache and shuffle a folder of images (https://www.tensorflow.org/tutorials/load_data/images#configure_the_dataset_for_performance)."""
    parts = [pictures(folder, validation_split=0.25, subset=each, seed=123) for each in ("training", "validation")]
    training = parts[0].cache().shuffle(1000).prefetch(tf.data.AUTOTUNE)
    model = classifier(layers.Rescaling(1 / 255), layers.RandomFlip(), layers.Conv2D(4, 3), layers.Dropout(0.2))
    return Training(model, training, arguments={"validation_data": parts[1].cache().prefetch(tf.data.AUTOTUNE)})


@program("fit on files of images, without a seed")
def unseeded_folder(folder: Path) -> Training:
    """Read a folder in a random order (https://keras.io/api/data_loading/image)."""
    return Training(classifier(layers.Rescaling(1 / 255)), pictures(folder).prefetch(2), epochs=3)


@program("fit on a split of images")
def own_split(folder: Path) -> Training:
    """Split a shuffle by take and skip (https://www.tensorflow.org/tutorials/load_data/images#shuffle_the_data)."""
    whole = Slices((images(), labels())).shuffle(48, reshuffle_each_iteration=False)
    training = whole.skip(12).cache().shuffle(1000).batch(4).prefetch(tf.data.AUTOTUNE)
    validation = whole.take(12).cache().shuffle(1000).batch(4).prefetch(tf.data.AUTOTUNE)
    return Training(classifier(layers.Conv2D(4, 3)), training, arguments={"validation_data": validation})


@program("fit on one order")
def same_order(folder: Path) -> Training:
    """Shuffle once for all epochs (https://www.tensorflow.org/api_docs/python/tf/data/Dataset#shuffle)."""
    data = Slices(table()).shuffle(48, seed=3, reshuffle_each_iteration=False).batch(8)
    return Training(compiled(layers.Dense(8, "relu"), layers.Dense(1)), data, epochs=3)


def packed(columns: Any, label: Any) -> tuple[Any, Any]:
    """Return the columns of a batch as one tensor."""
    return tf.stack(list(columns.values()), 1), label[:, None]


@program("fit on make_csv_dataset")
def titanic(folder: Path) -> Training:
    """Read a CSV file in batches (https://www.tensorflow.org/tutorials/load_data/csv#tfdataexperimentalmake_csv_dataset)."""
    data = tf.data.experimental.make_csv_dataset(csv_file(folder), 8, label_name="label", num_epochs=1)
    return Training(compiled(layers.Dense(8, "relu"), layers.Dense(1)), data.map(packed))


@program("fit on make_csv_dataset without end")
def endless_csv(folder: Path) -> Training:
    """Read a CSV file again and again (https://www.tensorflow.org/guide/data#consuming_csv_data)."""
    data = tf.data.experimental.make_csv_dataset(csv_file(folder), 8, label_name="label", shuffle_seed=4)
    model = compiled(layers.Dense(8, "relu"), layers.Dense(1))
    return Training(model, data.map(packed), arguments={"steps_per_epoch": 9})


@program("fit on a cache in a file")
def cached_file(folder: Path) -> Training:
    """Cache in a file (https://www.tensorflow.org/tutorials/load_data/images#tfdata_a_finer_control)."""
    data = Slices((images(), labels())).cache(str(folder / "images.cache")).shuffle(48).batch(8).prefetch(2)
    return Training(classifier(layers.Conv2D(4, 3)), data)


@program("fit on a repeated shuffle")
def repeated(folder: Path) -> Training:
    """Repeat a shuffle (https://www.tensorflow.org/guide/data#processing_multiple_epochs)."""
    data = Slices((images(), labels())).shuffle(100).batch(8).repeat(2)
    return Training(classifier(layers.Conv2D(4, 3)), data, epochs=3)


@program("fit on files of texts")
def reviews(folder: Path) -> Training:
    """Vectorise and cache a shuffle of lines (https://www.tensorflow.org/tutorials/load_data/text#prepare_the_dataset_for_training)."""
    lines = tf.data.TextLineDataset(text_files(folder)).shuffle(50, reshuffle_each_iteration=False)
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    vectorize.adapt(texts())
    labelled = lines.map(lambda line: (vectorize(line), tf.strings.length(line) % 3)).cache()
    training, validation = labelled.skip(16).shuffle(50).batch(4).prefetch(1), labelled.take(16).batch(4)
    return Training(classifier(layers.Embedding(20, 4)), training, arguments={"validation_data": validation})


class Head(keras.Sequential):
    """A model of which the last layer is trained."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take a step of the last layer."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        weights = self.layers[-1].trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@program("fit of the last layer", "own step")
def last_layer(folder: Path) -> Training:
    """Train a part of the variables (https://keras.io/guides/custom_train_step_in_tensorflow)."""
    model = Head([layers.Dense(8, "relu"), layers.Dense(1)])
    model.compile("adam", "mse")
    return Training(model, Slices(table()).batch(8), epochs=3)


@program("fit with a generator of validation")
def validated_by_generator(folder: Path) -> Training:
    """Validate on a Python generator (https://keras.io/guides/training_with_built_in_methods#using_a_validation_dataset)."""
    rows = list(zip(*table(16), strict=True))
    spec = tf.TensorSpec((5,)), tf.TensorSpec((1,))
    held = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec).batch(8)
    data = Slices(table()).shuffle(48).batch(8)
    return Training(compiled(layers.Dense(8, "relu"), layers.Dense(1)), data, arguments={"validation_data": held})


@program("fit with a shuffled validation")
def stopped_by_validation(folder: Path) -> Training:
    """Stop by a validation that shuffles (https://keras.io/api/callbacks/early_stopping)."""
    held = Slices(table(16)).shuffle(16).batch(8)
    stops = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    model = compiled(layers.Dense(8, "relu"), layers.Dense(1))
    arguments = {"validation_data": held, "callbacks": [stops]}
    return Training(model, Slices(table()).shuffle(48).batch(8), epochs=4, arguments=arguments)
