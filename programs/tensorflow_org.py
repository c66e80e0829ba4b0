"""Programs after guides and tutorials of tensorflow.org."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from programs import Loop, Training, csv_file, images, labels, program, table, text_files, texts, tokens

AUTOTUNE = tf.data.AUTOTUNE
Slices = tf.data.Dataset.from_tensor_slices


def compiled(*parts: object, optimizer: object = "adam", loss: str = "mse", **arguments: object) -> keras.Model:
    """Return a compiled sequential model."""
    model = keras.Sequential(parts)
    model.compile(optimizer, loss, **arguments)
    return model


def classifier(*parts: object, classes: int = 3, **arguments: object) -> keras.Model:
    """Return a compiled sequential classifier."""
    loss = "sparse_categorical_crossentropy"
    return compiled(*parts, layers.Dense(classes, "softmax"), loss=loss, metrics=["accuracy"], **arguments)


# -- fit on arrays and tf.data -------------------------------------------------------------------------------


@program("fit on arrays")
def quickstart_beginner(folder: Path) -> Training:
    """Train on arrays with dropout (https://www.tensorflow.org/tutorials/quickstart/beginner)."""
    model = classifier(layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(16, "relu"), layers.Dropout(0.2))
    return Training(model, (images(), labels()), arguments={"batch_size": 8})


@program("from_tensor_slices batch", "tune")
def classification(folder: Path) -> Training:
    """Train on batches of clothing images (https://www.tensorflow.org/tutorials/keras/classification)."""
    model = classifier(layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(16, "relu"))
    return Training(model, Slices((images(), labels())).batch(8))


@program("from_tensor_slices batch map cache prefetch", "tune")
def text_classification(folder: Path) -> Training:
    """Train on vectorised reviews (https://www.tensorflow.org/tutorials/keras/text_classification)."""
    raw = Slices((texts(), labels(classes=2))).batch(8)
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    vectorize.adapt(raw.map(lambda text, label: text))
    data = raw.map(lambda text, label: (vectorize(text), label)).cache().prefetch(AUTOTUNE)
    embedding = layers.Embedding(21, 8)
    model = classifier(embedding, layers.Dropout(0.2), layers.GlobalAveragePooling1D(), layers.Dropout(0.2), classes=2)
    return Training(model, data, epochs=3)


@program("fit on arrays, validation_split")
def regression(folder: Path) -> Training:
    """Train on normalised columns with a validation split (https://www.tensorflow.org/tutorials/keras/regression)."""
    x, y = table()
    normalizer = layers.Normalization()
    normalizer.adapt(x)
    model = compiled(normalizer, layers.Dense(16, "relu"), layers.Dense(1), loss="mae")
    return Training(model, (x, y), arguments={"validation_split": 0.2, "batch_size": 8})


@program("CsvDataset batch map map unbatch skip take cache shuffle repeat batch", "tune")
def overfit_and_underfit(folder: Path) -> Training:
    """Train on a CSV stream with decay (https://www.tensorflow.org/tutorials/keras/overfit_and_underfit)."""
    rows = tf.data.experimental.CsvDataset(csv_file(folder), [0.0] * 6, header=True)

    def pack(label: tf.Tensor, *columns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.stack(columns, 1), label

    packed = rows.batch(32).map(pack).unbatch()
    data = packed.skip(16).take(64).cache().shuffle(64).repeat().batch(8)
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.001, decay_steps=80, decay_rate=1, staircase=False)
    model = compiled(layers.Dense(8, "elu"), layers.Dense(1), optimizer=keras.optimizers.Adam(schedule))
    validation = packed.take(16).cache().batch(8)
    return Training(model, data, arguments={"steps_per_epoch": 8, "validation_data": validation})


@program("from_tensor_slices take batch", "callback", "tune")
def save_and_load(folder: Path) -> Training:
    """Train with ModelCheckpoint (https://www.tensorflow.org/tutorials/keras/save_and_load)."""
    model = classifier(layers.Input((64,)), layers.Dense(16, "relu"), layers.Dropout(0.2))
    data = Slices((images().reshape(-1, 64), labels())).take(40).batch(8)
    saves = keras.callbacks.ModelCheckpoint(
        folder / "best.weights.h5", "loss", save_weights_only=True, save_best_only=True
    )
    return Training(model, data, epochs=3, arguments={"callbacks": [saves]})


@program("from_tensor_slices shuffle take map cache shuffle batch prefetch", "tune")
def load_images(folder: Path) -> Training:
    """Train on files of images (https://www.tensorflow.org/tutorials/load_data/images)."""
    for number, image in enumerate((255 * images()).astype("uint8")):
        (folder / f"{number:02d}_{number % 3}.png").write_bytes(tf.io.encode_png(image).numpy())

    def process(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label = tf.strings.to_number(tf.strings.substr(path, -5, 1), tf.int32)
        return tf.io.decode_png(tf.io.read_file(path), 1), label

    files = Slices(sorted(map(str, folder.glob("*.png")))).shuffle(48, reshuffle_each_iteration=False)
    data = files.take(40).map(process, num_parallel_calls=AUTOTUNE).cache().shuffle(100).batch(8).prefetch(AUTOTUNE)
    pooled = (layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten())
    model = classifier(layers.Input((8, 8, 1)), layers.Rescaling(1 / 255), *pooled)
    return Training(model, data)


@program("from_tensor_slices shuffle interleave shuffle map batch prefetch", "tune")
def load_csv(folder: Path) -> Training:
    """Train on interleaved CSV files (https://www.tensorflow.org/tutorials/load_data/csv)."""
    lines = Path(csv_file(folder)).read_text().splitlines()[1:]
    for number in range(3):
        (folder / f"fonts{number}.csv").write_text("\n".join(lines[number::3]))
    names = Slices([str(folder / f"fonts{number}.csv") for number in range(3)]).shuffle(3)
    rows = names.interleave(lambda name: tf.data.TextLineDataset(name), cycle_length=3, num_parallel_calls=2)

    def parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label, *columns = tf.io.decode_csv(line, [0.0] * 6)
        return tf.stack(columns), label

    data = rows.shuffle(20).map(parse, num_parallel_calls=AUTOTUNE).batch(8).prefetch(1)
    return Training(compiled(layers.Input((5,)), layers.Dense(8, "relu"), layers.Dense(1)), data)


@program("from_tensor_slices map shuffle batch", "tune")
def load_dataframe(folder: Path) -> Training:
    """Train on columns in a dict (https://www.tensorflow.org/tutorials/load_data/pandas_dataframe)."""
    x, y = table()
    columns = {f"c{at}": x[:, at] for at in range(5)}
    data = Slices((columns, y)).map(lambda row, label: (tf.stack(list(row.values())), label)).shuffle(20).batch(2)
    return Training(compiled(layers.Input((5,)), layers.Dense(4, "relu"), layers.Dense(1)), data)


@program("from_tensor_slices flat_map map shuffle batch", "tune")
def load_tfrecord(folder: Path) -> Training:
    """Train on parsed tf.train.Example records (https://www.tensorflow.org/tutorials/load_data/tfrecord)."""
    with tf.io.TFRecordWriter(str(folder / "rows.tfrecord")) as writer:
        for x, y in zip(*table(), strict=True):
            lists = {name: tf.train.FloatList(value=each) for name, each in (("x", x), ("y", y))}
            features = {name: tf.train.Feature(float_list=each) for name, each in lists.items()}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    spec = {"x": tf.io.FixedLenFeature([5], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.io.parse_single_example(record, spec)
        return row["x"], row["y"]

    data = tf.data.TFRecordDataset(str(folder / "rows.tfrecord")).map(parse).shuffle(16).batch(6)
    return Training(compiled(layers.Input((5,)), layers.Dense(8, "relu"), layers.Dense(1)), data)


@program("from_tensor_slices flat_map map from_tensor_slices flat_map map concatenate shuffle map cache batch", "tune")
def load_text(folder: Path) -> Training:
    """Train on lines of several files (https://www.tensorflow.org/tutorials/load_data/text)."""
    first, second, _ = text_files(folder)
    labelled = [
        tf.data.TextLineDataset(name).map(lambda line, number=number: (line, tf.cast(number, tf.int64)))
        for number, name in enumerate((first, second))
    ]
    lines = labelled[0].concatenate(labelled[1]).shuffle(50, reshuffle_each_iteration=False)
    vectorize = layers.TextVectorization(max_tokens=20, output_mode="int", output_sequence_length=5)
    vectorize.adapt(labelled[0].map(lambda text, label: text))
    data = lines.map(lambda text, label: (vectorize(text), label)).cache().batch(4)
    convolution = layers.Conv1D(4, 3, activation="relu")
    model = classifier(layers.Embedding(20, 4), convolution, layers.GlobalMaxPooling1D(), classes=2)
    return Training(model, data)


@program("from_tensor_slices cache batch", "tune")
def convolutional_network(folder: Path) -> Training:
    """Train a small convolutional network (https://www.tensorflow.org/tutorials/images/cnn)."""
    convolutions = (
        layers.Conv2D(4, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(4, 2),
        layers.Flatten(),
    )
    model = classifier(layers.Input((8, 8, 3)), *convolutions)
    data = Slices((images(channels=3), labels())).cache().batch(8)
    validation = Slices((images(16, channels=3), labels(16))).batch(8)
    return Training(model, data, arguments={"validation_data": validation})


@program("from_tensor_slices batch cache shuffle prefetch", "tune")
def image_classification(folder: Path) -> Training:
    """Train with augmentation layers (https://www.tensorflow.org/tutorials/images/classification)."""
    augmentation = (layers.RandomFlip("horizontal"), layers.RandomRotation(0.1), layers.RandomZoom(0.1))
    rest = (layers.Conv2D(4, 3, activation="relu"), layers.Dropout(0.2), layers.Flatten())
    model = classifier(layers.Input((8, 8, 3)), *augmentation, *rest)
    data = Slices((images(channels=3), labels())).batch(4).cache().shuffle(1000).prefetch(AUTOTUNE)
    return Training(model, data, epochs=3)


class FineTuning(keras.callbacks.Callback):
    """Unfreezes the base of a model after an epoch."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Train the base from the second epoch on, more slowly."""
        if epoch == 1:
            self.model.layers[0].trainable = True
            self.model.optimizer.learning_rate = 1e-4


@program("from_tensor_slices batch prefetch", "callback", "tune")
def transfer_learning(folder: Path) -> Training:
    """Train a head, then its base too (https://www.tensorflow.org/tutorials/images/transfer_learning)."""
    base = keras.Sequential([layers.Conv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D()])
    base.trainable = False
    model = classifier(layers.Input((8, 8, 3)), base, layers.Dropout(0.2))
    data = Slices((images(channels=3), labels())).batch(8).prefetch(AUTOTUNE)
    return Training(model, data, epochs=3, arguments={"callbacks": [FineTuning()]})


@program("from_tensor_slices random random zip shuffle map batch prefetch", "tune")
def data_augmentation(folder: Path) -> Training:
    """Train on stateless random images (https://www.tensorflow.org/tutorials/images/data_augmentation)."""
    counter = tf.data.Dataset.random(seed=4)
    data = tf.data.Dataset.zip((Slices((images(), labels())), (counter, counter)))

    def augment(sample: tuple[tf.Tensor, tf.Tensor], seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = sample
        return tf.image.stateless_random_brightness(image, 0.5, tf.cast(seed, tf.int64)), label

    data = data.shuffle(1000).map(augment, num_parallel_calls=AUTOTUNE).batch(8).prefetch(AUTOTUNE)
    return Training(classifier(layers.Input((8, 8, 1)), layers.Flatten()), data)


@program("from_tensor_slices cache shuffle batch repeat map prefetch", "tune")
def segmentation(folder: Path) -> Training:
    """Train on images flipped in the pipeline (https://www.tensorflow.org/tutorials/images/segmentation)."""
    flip_images, flip_masks = (layers.RandomFlip(mode="horizontal", seed=42) for _ in range(2))

    def augment(image: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return flip_images(image, training=True), flip_masks(mask, training=True)

    masks = (images() > 0.5).astype("float32")
    data = Slices((images(), masks)).cache().shuffle(1000).batch(8).repeat().map(augment).prefetch(AUTOTUNE)
    model = compiled(
        layers.Input((8, 8, 1)), layers.Conv2D(4, 3, padding="same"), layers.Conv2D(1, 1, activation="sigmoid")
    )
    return Training(model, data, arguments={"steps_per_epoch": 6})


class SkipGrams(keras.Model):
    """Products of the embeddings of a word and its contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.context = layers.Embedding(20, 8, name="w2v"), layers.Embedding(20, 8)

    def call(self, pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Return logits of the contexts."""
        target, context = pair
        return tf.einsum("be,bce->bc", self.target(target), self.context(context))


@program("from_tensor_slices shuffle batch cache prefetch", "tune")
def word2vec(folder: Path) -> Training:
    """Train skip-grams with negative samples (https://www.tensorflow.org/tutorials/text/word2vec)."""
    words = tokens(48, 6)
    data = Slices(((words[:, 0], words[:, 1:5]), np.eye(4, dtype="int64")[labels(48, 4)]))
    data = data.shuffle(10_000).batch(8, drop_remainder=True).cache().prefetch(AUTOTUNE)
    model = SkipGrams()
    model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return Training(model, data)


class CustomTraining(keras.Sequential):
    """A model with a step of its own."""

    @tf.function
    def train_step(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Take one step, and return its loss."""
        features, targets = inputs
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=targets, y_pred=self(features, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@program("from_tensor_slices batch map shuffle batch prefetch", "own step", "tune")
def text_generation(folder: Path) -> Training:
    """Train a recurrent language model (https://www.tensorflow.org/tutorials/text/text_generation)."""
    sequences = Slices(tokens(1, 48 * 7)[0]).batch(7, drop_remainder=True)
    data = sequences.map(lambda ids: (ids[:-1], ids[1:])).shuffle(10_000).batch(8, drop_remainder=True)
    model = CustomTraining([layers.Embedding(20, 8), layers.GRU(8, return_sequences=True), layers.Dense(20)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Training(model, data.prefetch(AUTOTUNE))


@program("from_tensor_slices shuffle batch map prefetch", "tune")
def translation_with_attention(folder: Path) -> Training:
    """Train an encoder and a decoder (https://www.tensorflow.org/text/tutorials/nmt_with_attention)."""

    def process(source: tf.Tensor, target: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
        return (source, target[:, :-1]), target[:, 1:]

    data = Slices((tokens(), tokens()[:, ::-1].copy())).shuffle(48).batch(8).map(process, AUTOTUNE).prefetch(AUTOTUNE)
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    context = layers.Bidirectional(layers.GRU(4, return_sequences=True))(layers.Embedding(20, 8)(source))
    x = layers.GRU(8, return_sequences=True)(layers.Embedding(20, 8)(target))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(1, 8)(query=x, value=context))
    model = keras.Model((source, target), layers.Dense(20)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Training(model, data)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rises for some steps, then falls."""

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate."""
        step = tf.cast(step, tf.float32) + 1
        return tf.math.rsqrt(8.0) * tf.math.minimum(tf.math.rsqrt(step), step * 10**-1.5)


@program("from_tensor_slices shuffle batch prefetch", "tune")
def transformer(folder: Path) -> Training:
    """Train attention with a schedule (https://www.tensorflow.org/text/tutorials/transformer)."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True))
    model = keras.Model(inputs, layers.Dense(20)(layers.Dropout(0.1)(x)))
    optimizer = keras.optimizers.Adam(WarmUp(), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Training(model, Slices((tokens(), tokens())).shuffle(20_000).batch(8).prefetch(AUTOTUNE))


@program("from_tensor_slices map map unbatch shuffle padded_batch", "tune")
def image_captioning(folder: Path) -> Training:
    """Train on padded captions (https://www.tensorflow.org/text/tutorials/image_captioning)."""

    def pair(image: tf.Tensor, captions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.repeat(image[None], 3, 0), captions

    data = Slices((images(16).reshape(16, 64), tokens(48).reshape(16, 3, 6))).map(pair).unbatch().shuffle(20)
    data = data.padded_batch(8, padded_shapes=([64], [8]))
    model = compiled(layers.Input((64,)), layers.Dense(16, "relu"), layers.Dense(8))
    return Training(model, data)


@program("range window flat_map map map batch prefetch", "tune")
def time_series(folder: Path) -> Training:
    """Train on windows of a series (https://www.tensorflow.org/tutorials/structured_data/time_series)."""
    windows = tf.data.Dataset.range(60).window(7, shift=1, drop_remainder=True).flat_map(lambda part: part.batch(7))
    wave = windows.map(lambda part: tf.sin(tf.cast(part, tf.float32)))
    data = wave.map(lambda part: (part[:-1, None], part[-1:])).batch(8).prefetch(1)
    stops = keras.callbacks.EarlyStopping(monitor="loss", patience=2, mode="min")
    return Training(compiled(layers.LSTM(4), layers.Dense(1)), data, epochs=3, arguments={"callbacks": [stops]})


@program(
    "random batch map from_tensor_slices shuffle repeat from_tensor_slices shuffle repeat "
    "choose_from_datasets batch prefetch",
    "tune",
)
def imbalanced_data(folder: Path) -> Training:
    """Train on resampled classes (https://www.tensorflow.org/tutorials/structured_data/imbalanced_data)."""
    x, _ = table()
    parts = [
        Slices((x[at], np.full(len(x[at]), number))).shuffle(50).repeat()
        for number, at in enumerate((x[:, 0] > 1, x[:, 0] <= 1))
    ]
    data = tf.data.Dataset.sample_from_datasets(parts, weights=[0.5, 0.5]).batch(8).prefetch(2)
    model = compiled(
        layers.Input((5,)),
        layers.Dense(8, "relu"),
        layers.Dropout(0.5),
        layers.Dense(1, "sigmoid"),
        loss="binary_crossentropy",
        metrics=["auc"],
    )
    stops = keras.callbacks.EarlyStopping(monitor="loss", patience=2, mode="max", restore_best_weights=True)
    return Training(model, data, epochs=4, arguments={"steps_per_epoch": 6, "callbacks": [stops]})


@program("from_tensor_slices shuffle batch take", "tune")
def preprocessing_layers(folder: Path) -> Training:
    """Train on columns of a dict (https://www.tensorflow.org/tutorials/structured_data/preprocessing_layers)."""
    x, y = table()
    kinds = np.array(["cat", "dog", "fish"])[labels()]
    data = Slices(({"age": x[:, :1], "kind": kinds[:, None]}, y)).shuffle(48).batch(8).take(5)
    lookup = layers.StringLookup(vocabulary=["cat", "dog", "fish"], output_mode="multi_hot")
    age, kind = keras.Input((1,), name="age"), keras.Input((1,), name="kind", dtype="string")
    hidden = layers.Dense(8, "relu")(layers.Concatenate()([age, lookup(kind)]))
    model = keras.Model({"age": age, "kind": kind}, layers.Dense(1)(layers.Dropout(0.5)(hidden)))
    model.compile("adam", "mse")
    return Training(model, data)


@program("from_tensor_slices map batch", "tune")
def autoencoder(folder: Path) -> Training:
    """Train a denoising autoencoder (https://www.tensorflow.org/tutorials/generative/autoencoder)."""
    model = compiled(
        layers.Input((8, 8, 1)),
        layers.GaussianNoise(0.2),
        layers.Conv2D(2, 3, padding="same"),
        layers.Conv2D(1, 3, padding="same"),
    )
    return Training(model, Slices(images()).map(lambda image: (image, image)).batch(8))


@program("from_tensor_slices repeat batch", "tune")
def data_guide(folder: Path) -> Training:
    """Train on a repeated, then batched dataset (https://www.tensorflow.org/guide/data)."""
    model = classifier(layers.Input((8, 8, 1)), layers.Flatten())
    return Training(model, Slices((images(20), labels(20))).repeat(3).batch(8))


@program("range interleave map batch cache prefetch", "tune")
def data_performance(folder: Path) -> Training:
    """Train on a generator in an interleave (https://www.tensorflow.org/guide/data_performance)."""

    def rows(number: int) -> object:
        for at in range(8):
            yield np.float32([number, at, 1])

    def artificial(number: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((3,)), args=(number,))

    data = tf.data.Dataset.range(4).interleave(artificial, num_parallel_calls=2).map(lambda row: (row, row[:1]))
    return Training(compiled(layers.Input((3,)), layers.Dense(1)), data.batch(4).cache().prefetch(AUTOTUNE))


@program("from_tensor_slices shuffle map batch", "tune")
def random_numbers(folder: Path) -> Training:
    """Train on noise of a tf.random.Generator (https://www.tensorflow.org/guide/random_numbers)."""
    dice = tf.random.Generator.from_seed(1)
    data = Slices(table()).shuffle(20).map(lambda x, y: (x + dice.normal((5,)), y)).batch(8)
    return Training(compiled(layers.Input((5,)), layers.Dense(1)), data)


@program("from_tensor_slices map cache shuffle batch")
def distributed_keras(folder: Path) -> Training:
    """Train under MirroredStrategy (https://www.tensorflow.org/tutorials/distribute/keras)."""

    def scale(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(image, tf.float32) / 255, label

    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = classifier(layers.Input((8, 8, 1)), layers.Conv2D(2, 3, activation="relu"), layers.Flatten())
    decay = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-3 if epoch < 1 else 1e-4)
    data = Slices((images(), labels())).map(scale).cache().shuffle(100).batch(8)
    return Training(model, data, arguments={"callbacks": [decay]})


@program("from_tensor_slices map map cache shuffle prefetch batch", "tune")
def simple_audio(folder: Path) -> Training:
    """Train on spectrograms (https://www.tensorflow.org/tutorials/audio/simple_audio)."""
    waves = np.sin(np.linspace(0, 20, 48 * 64)).reshape(48, 64, 1).astype("float32")

    def squeeze(audio: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.squeeze(audio, -1), label

    def spectrogram(audio: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.abs(tf.signal.stft(audio, 16, 8))[..., None], label

    data = Slices((waves, labels())).map(squeeze).map(spectrogram).cache().shuffle(50).prefetch(AUTOTUNE).batch(8)
    model = classifier(layers.Input((7, 9, 1)), layers.Conv2D(2, 3), layers.Dropout(0.25), layers.Flatten())
    return Training(model, data)


# -- loops ---------------------------------------------------------------------------------------------------


def sparse_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the mean cross entropy of logits."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def gradient_loop(model: keras.Model, data: tf.data.Dataset, loss: object) -> Loop:
    """Return a loop with Adam over the batches of an endless dataset."""
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def take(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(*batch)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def step(parts: dict[str, object]) -> tf.Tensor:
        batch = next(parts["batches"])
        return take(*batch) if isinstance(batch, tuple) else take(batch)

    return Loop({"model": model, "optimizer": optimizer, "batches": iter(data)}, step)


@program("from_tensor_slices shuffle batch repeat", "own step")
def quickstart_advanced(folder: Path) -> Loop:
    """Train with a gradient tape (https://www.tensorflow.org/tutorials/quickstart/advanced)."""
    model = keras.Sequential([layers.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(3)])
    data = Slices((images(), labels())).shuffle(10_000, seed=1).batch(8).repeat()
    return gradient_loop(model, data, lambda x, y: sparse_loss(y, model(x, training=True)))


@program("from_tensor_slices shuffle repeat batch", "own step")
def dcgan(folder: Path) -> Loop:
    """Train a generator and a discriminator (https://www.tensorflow.org/tutorials/generative/dcgan)."""
    generator = keras.Sequential(
        [layers.Input((4,)), layers.Dense(64), layers.BatchNormalization(), layers.LeakyReLU()]
    )
    discriminator = keras.Sequential(
        [layers.Input((64,)), layers.Dense(8), layers.LeakyReLU(), layers.Dropout(0.3), layers.Dense(1)]
    )
    optimizers = [keras.optimizers.Adam(1e-4) for _ in range(2)]
    for model, optimizer in zip((generator, discriminator), optimizers, strict=True):
        optimizer.build(model.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    seeds = keras.random.SeedGenerator(3)

    @tf.function
    def take(real: tf.Tensor) -> tf.Tensor:
        noise = keras.random.normal((8, 4), seed=seeds)
        with tf.GradientTape() as one, tf.GradientTape() as two:
            fake = generator(noise, training=True)
            right, wrong = discriminator(real, training=True), discriminator(fake, training=True)
            ours = entropy(tf.ones_like(wrong), wrong)
            theirs = entropy(tf.ones_like(right), right) + entropy(tf.zeros_like(wrong), wrong)
        for tape, loss, model, optimizer in (
            (one, ours, generator, optimizers[0]),
            (two, theirs, discriminator, optimizers[1]),
        ):
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
        return ours + theirs

    data = Slices(images().reshape(-1, 64)).shuffle(48, seed=2).repeat().batch(8)
    parts = {"generator": generator, "discriminator": discriminator, "seeds": seeds, "batches": iter(data)}
    parts |= {"optimizer_g": optimizers[0], "optimizer_d": optimizers[1]}
    return Loop(parts, lambda parts: take(next(parts["batches"])))


@program("range from_tensor_slices map shuffle batch repeat take enumerate", "own step")
def pix2pix(folder: Path) -> Loop:
    """Train on pairs of images, counted by the data (https://www.tensorflow.org/tutorials/generative/pix2pix)."""
    model = keras.Sequential(
        [layers.Input((8, 8, 1)), layers.Conv2D(2, 3, padding="same"), layers.Conv2D(1, 3, padding="same")]
    )
    pairs = Slices(images()).map(lambda image: (image, 1 - image)).shuffle(40, seed=1).batch(4)
    data = pairs.repeat().take(40).enumerate()
    return gradient_loop(
        model, data, lambda step, pair: tf.reduce_mean(tf.abs(pair[1] - model(pair[0], training=True)))
    )


@program("from_tensor_slices cache map shuffle batch from_tensor_slices cache map shuffle batch zip repeat", "own step")
def cyclegan(folder: Path) -> Loop:
    """Train on unpaired images of two kinds (https://www.tensorflow.org/tutorials/generative/cyclegan)."""
    model = keras.Sequential([layers.Input((64,)), layers.Dense(8, "relu"), layers.Dense(64)])

    def kind(offset: float) -> tf.data.Dataset:
        return (
            Slices(images().reshape(-1, 64))
            .cache()
            .map(lambda image: image + offset)
            .shuffle(20, seed=int(offset))
            .batch(6)
        )

    def loss(horses: tf.Tensor, zebras: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.abs(model(model(horses)) - zebras))

    return gradient_loop(model, tf.data.Dataset.zip((kind(1.0), kind(2.0))).repeat(), loss)


@program("no dataset: one image", "own step")
def style_transfer(folder: Path) -> Loop:
    """Optimise the pixels of an image (https://www.tensorflow.org/tutorials/generative/style_transfer)."""
    image = tf.Variable(images(1, channels=3))
    optimizer = keras.optimizers.Adam(0.02, beta_1=0.99, epsilon=1e-1)
    optimizer.build([image])
    style = images(2, channels=3)[1:]

    @tf.function
    def take() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                (tf.einsum("bijc,bijd->cd", image, image) - tf.einsum("bijc,bijd->cd", style, style)) ** 2
            )
            loss += 30.0 * tf.reduce_sum(tf.image.total_variation(image))
        optimizer.apply_gradients([(tape.gradient(loss, image), image)])
        image.assign(tf.clip_by_value(image, 0.0, 1.0))
        return loss

    return Loop({"image": image, "optimizer": optimizer}, lambda parts: take())


@program("from_tensor_slices repeat batch prefetch", "own step")
def checkpoint_guide(folder: Path) -> Loop:
    """Train a linear model with a step counter (https://www.tensorflow.org/guide/checkpoint)."""
    model = keras.Sequential([layers.Input((1,)), layers.Dense(5)])
    x = np.arange(10, dtype="float32")[:, None]
    data = Slices({"x": x, "y": x * 5 + np.arange(5, dtype="float32")}).repeat().batch(2).prefetch(1)
    return gradient_loop(model, data, lambda row: tf.reduce_mean(tf.abs(model(row["x"]) - row["y"])))


class MLP(tf.Module):
    """Two dense layers of variables."""

    def __init__(self) -> None:
        super().__init__()
        dice = tf.random.Generator.from_seed(2)
        self.w1, self.w2 = tf.Variable(dice.normal((64, 8)) * 0.1), tf.Variable(dice.normal((8, 3)) * 0.1)
        self.rates = [tf.Variable(tf.zeros_like(each)) for each in (self.w1, self.w2)]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Return logits."""
        return tf.nn.relu(x @ self.w1) @ self.w2


@program("from_tensor_slices batch shuffle repeat", "own step")
def mlp_core(folder: Path) -> Loop:
    """Train a module with momentum of its own (https://www.tensorflow.org/guide/core/mlp_core)."""
    model = MLP()

    @tf.function
    def take(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = sparse_loss(y, model(x))
        weights = [model.w1, model.w2]
        for weight, rate, gradient in zip(weights, model.rates, tape.gradient(loss, weights), strict=True):
            rate.assign(0.9 * rate + gradient)
            weight.assign_sub(0.1 * rate)
        return loss

    data = Slices((images().reshape(-1, 64), labels())).batch(8).shuffle(10, seed=1).repeat()
    return Loop({"model": model, "batches": iter(data)}, lambda parts: take(*next(parts["batches"])))


@program("no dataset: an environment", "own step")
def actor_critic(folder: Path) -> Loop:
    """Train on episodes that NumPy draws (https://www.tensorflow.org/tutorials/reinforcement_learning/actor_critic)."""
    np.random.seed(5)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(8, "relu"), layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    def step(parts: dict[str, object]) -> tf.Tensor:
        state = np.random.normal(size=(6, 4)).astype("float32")
        actions, rewards = np.random.randint(0, 2, 6), np.random.random(6).astype("float32")
        with tf.GradientTape() as tape:
            scores = model(state)
            chosen = tf.gather(tf.nn.log_softmax(scores[:, :2]), actions, batch_dims=1)
            loss = tf.reduce_sum((rewards - scores[:, 2]) ** 2 - chosen * (rewards - scores[:, 2]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Loop({"model": model, "optimizer": optimizer}, step)
