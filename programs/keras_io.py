"""Programs after examples and guides of keras.io."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from programs import Training, images, labels, program, table, text_files, texts, tokens
from programs.tensorflow_org import AUTOTUNE, Slices, classifier, compiled


def flat(count: int = 48) -> Any:
    """Return flattened images."""
    return images(count).reshape(count, 64)


# -- steps of fit --------------------------------------------------------------------------------------------


@program("fit on arrays, class_weight")
def imbalanced_classification(folder: Path) -> Training:
    """Weigh classes (https://keras.io/examples/structured_data/imbalanced_classification/)."""
    x, _ = table()
    model = compiled(layers.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(1, "sigmoid"))
    return Training(model, (x, x[:, :1] > 1), arguments={"batch_size": 8, "class_weight": {0: 0.1, 1: 0.9}})


@program("from_tensor_slices batch map prefetch", "tune")
def classification_from_scratch(folder: Path) -> Training:
    """Augment in the pipeline (https://keras.io/examples/vision/image_classification_from_scratch/)."""
    augment = [layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)]

    def augmented(image: Any, label: Any) -> tuple[Any, Any]:
        for layer in augment:
            image = layer(image, training=True)
        return image, label

    data = Slices((images(channels=3), labels())).batch(8).map(augmented, AUTOTUNE).prefetch(AUTOTUNE)
    separable = (layers.SeparableConv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D())
    return Training(classifier(layers.Input((8, 8, 3)), *separable), data)


@program("from_tensor_slices shuffle map batch prefetch", "callback", "tune")
def three_dimensional_images(folder: Path) -> Training:
    """Classify volumes with decay and early stopping (https://keras.io/examples/vision/3D_image_classification/)."""
    volumes = images(48, 8, 8)

    def expand(volume: Any, label: Any) -> tuple[Any, Any]:
        return tf.expand_dims(volume, 3), label

    data = Slices((volumes, labels(classes=2))).shuffle(48).map(expand).batch(8).prefetch(2)
    decay = keras.optimizers.schedules.ExponentialDecay(1e-3, 10, 0.96, staircase=True)
    model = classifier(
        layers.Input((8, 8, 8, 1)), layers.Conv3D(2, 3), layers.BatchNormalization(), layers.GlobalAveragePooling3D(),
        layers.Dropout(0.3), classes=2, optimizer=keras.optimizers.Adam(decay),
    )  # fmt: skip
    stops = keras.callbacks.EarlyStopping(monitor="loss", patience=15)
    return Training(model, data, epochs=3, arguments={"callbacks": [stops]})


@program("from_tensor_slices shuffle batch from_tensor_slices shuffle batch zip map prefetch", "tune")
def mixup(folder: Path) -> Training:
    """Mix two shuffles with random weights (https://keras.io/examples/vision/mixup/)."""
    one, two = (Slices((images(), np.eye(3, dtype="f")[labels()])).shuffle(100).batch(8) for _ in range(2))

    def mixed(first: Any, second: Any) -> tuple[Any, Any]:
        share = tf.reshape(tf.random.gamma((8,), 0.2), (8, 1))
        return first[0] * share[..., None, None] + second[0], first[1] * share + second[1]

    model = compiled(layers.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(3))
    return Training(model, tf.data.Dataset.zip((one, two)).map(mixed, AUTOTUNE).prefetch(AUTOTUNE))


@program("from_tensor_slices map batch prefetch", "tune")
def captcha(folder: Path) -> Training:
    """Read characters with recurrent layers (https://keras.io/examples/vision/captcha_ocr/)."""

    def encode(image: Any, label: Any) -> tuple[Any, Any]:
        return tf.transpose(image[..., 0]), label

    data = Slices((images(), tokens(48, 8, 5))).map(encode, AUTOTUNE).batch(8).prefetch(AUTOTUNE)
    recurrent = layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.25))
    return Training(classifier(layers.Input((8, 8)), recurrent, classes=5), data)


@program("from_tensor_slices map take batch", "tune")
def deeplab(folder: Path) -> Training:
    """Segment with dilated convolutions (https://keras.io/examples/vision/deeplabv3_plus/)."""
    data = (
        Slices(images())
        .map(lambda image: (image, tf.cast(image > 0.5, tf.int32)))
        .take(40)
        .batch(8, drop_remainder=True)
    )
    dilated = [layers.Conv2D(4, 3, dilation_rate=rate, padding="same", use_bias=False) for rate in (1, 2)]
    return Training(classifier(layers.Input((8, 8, 1)), *dilated, layers.BatchNormalization()), data)


@program("from_tensor_slices batch map map cache prefetch", "tune")
def text_from_scratch(folder: Path) -> Training:
    """Vectorise standardised text (https://keras.io/examples/nlp/text_classification_from_scratch/)."""
    raw = Slices((texts(), labels(classes=2))).batch(8)
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=7)
    vectorize.adapt(texts())
    lowered = raw.map(lambda text, label: (tf.strings.lower(text), label))
    data = lowered.map(lambda text, label: (vectorize(tf.expand_dims(text, -1)), label)).cache().prefetch(10)
    convolution = layers.Conv1D(4, 3, padding="valid", activation="relu", strides=3)
    model = classifier(
        layers.Embedding(20, 8), layers.Dropout(0.5), convolution, layers.GlobalMaxPooling1D(), classes=2
    )
    return Training(model, data)


@program("from_tensor_slices flat_map shuffle batch map prefetch", "callback", "tune")
def miniature_gpt(folder: Path) -> Training:
    """Generate text after each epoch (https://keras.io/examples/generative/text_generation_with_miniature_gpt/)."""

    class Generator(keras.callbacks.Callback):
        """Appends the next token of a prompt."""

        def __init__(self) -> None:
            super().__init__()
            self.prompt = [1, 2, 3, 4, 5, 6]

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Predict and append."""
            scores = self.model.predict(np.array([self.prompt[-6:]]), verbose=0)
            self.prompt.append(int(scores[0, -1].argmax()))

    lines = tf.data.TextLineDataset(text_files(folder)).shuffle(256).batch(6)
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=7)
    vectorize.adapt(texts())

    def shifted(text: Any) -> tuple[Any, Any]:
        ids = vectorize(text)
        return ids[:, :-1], ids[:, 1:]

    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    model = keras.Model(inputs, layers.Dense(20)(layers.Dropout(0.1)(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = lines.map(shifted, AUTOTUNE).prefetch(AUTOTUNE)
    return Training(model, data, epochs=3, arguments={"callbacks": [Generator()]})


@program("from_tensor_slices batch map shuffle prefetch cache", "tune")
def translation_with_transformer(folder: Path) -> Training:
    """Cache shuffled batches (https://keras.io/examples/nlp/neural_machine_translation_with_transformer/)."""

    def pair(source: Any, target: Any) -> tuple[Any, Any]:
        return source, target[:, :1]

    data = Slices((tokens(), tokens())).batch(8).map(pair).shuffle(2048).prefetch(16).cache()
    return Training(classifier(layers.Embedding(20, 8), layers.LSTM(4), classes=20), data)


@program("from_tensor_slices batch repeat", "callback", "tune")
def series_classification(folder: Path) -> Training:
    """Train with three callbacks (https://keras.io/examples/timeseries/timeseries_classification_from_scratch/)."""
    convolution = (layers.Conv1D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU())
    model = classifier(layers.Input((64, 1)), *convolution, layers.GlobalAveragePooling1D())
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True, monitor="loss"),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping(monitor="loss", patience=5),
    ]
    data = Slices((flat()[..., None], labels())).batch(8).repeat()
    return Training(model, data, epochs=4, arguments={"callbacks": callbacks, "steps_per_epoch": 5})


@program(
    "from_tensors repeat range from_tensors repeat zip map zip map "
    "from_tensors repeat range from_tensors repeat zip map zip map zip prefetch batch",
    "tune",
)
def weather(folder: Path) -> Training:
    """Slice windows from an array (https://keras.io/examples/timeseries/timeseries_weather_forecasting/)."""
    x, y = table(60)
    data = keras.utils.timeseries_dataset_from_array(x, y, sequence_length=6, sampling_rate=2, batch_size=8)
    return Training(compiled(layers.Input((3, 5)), layers.LSTM(4), layers.Dense(1)), data)


@program("from_tensor_slices skip shuffle batch", "tune")
def collaborative_filtering(folder: Path) -> Training:
    """Embed users and films (https://keras.io/examples/structured_data/collaborative_filtering_movielens/)."""

    class Recommender(keras.Model):
        """Product of embeddings, and biases."""

        def __init__(self) -> None:
            super().__init__()
            regular = keras.regularizers.l2(1e-6)
            self.users, self.films = (layers.Embedding(20, 4, embeddings_regularizer=regular) for _ in range(2))
            self.bias = layers.Embedding(20, 1)

        def call(self, pair: Any) -> Any:
            """Return ratings."""
            product = ops.sum(self.users(pair[:, 0]) * self.films(pair[:, 1]), 1, keepdims=True)
            return ops.sigmoid(product + self.bias(pair[:, 0]))

    model = Recommender()
    model.compile(keras.optimizers.Adam(0.001), "binary_crossentropy")
    return Training(model, Slices((tokens(56, 2), labels(56, 2)[:, None])).skip(8).shuffle(100).batch(8))


@program("from_tensor_slices shuffle prefetch batch", "tune")
def structured_data(folder: Path) -> Training:
    """Cross features of a dict (https://keras.io/examples/structured_data/structured_data_classification_from_scratch/)."""
    x, y = table()
    inputs = {name: keras.Input((1,), name=name) for name in ("age", "thal")}
    hidden = layers.Dense(8, "relu")(layers.Concatenate()(list(inputs.values())))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.Dropout(0.5)(hidden)))
    model.compile("adam", "mse", metrics=["mae"])
    return Training(model, Slices(({"age": x[:, :1], "thal": x[:, 1:2]}, y)).shuffle(48).prefetch(2).batch(8))


@program("from_tensor_slices map from_tensor_slices zip shuffle batch map prefetch", "tune")
def speaker_recognition(folder: Path) -> Training:
    """Add random noise to audio (https://keras.io/examples/audio/speaker_recognition_using_cnn/)."""
    audio = Slices(flat()).map(lambda wave: wave[:, None])
    data = tf.data.Dataset.zip((audio, Slices(labels()))).shuffle(40, seed=43).batch(8)

    def noisy(wave: Any, label: Any) -> tuple[Any, Any]:
        return wave + tf.random.uniform(tf.shape(wave)), label

    data = data.map(noisy, AUTOTUNE).prefetch(AUTOTUNE)
    return Training(classifier(layers.Input((64, 1)), layers.Conv1D(2, 3), layers.Flatten()), data)


@program("from_tensor_slices map padded_batch prefetch", "tune")
def speech_recognition(folder: Path) -> Training:
    """Pad spectrograms (https://keras.io/examples/audio/ctc_asr/)."""

    def spectrum(wave: Any, label: Any) -> tuple[Any, Any]:
        return tf.abs(tf.signal.stft(wave, 16, 8, 16)) ** 0.5, label

    data = Slices((flat(), tokens(48, 7, 5))).map(spectrum, AUTOTUNE).padded_batch(8).prefetch(AUTOTUNE)
    recurrent = layers.GRU(4, return_sequences=True)
    return Training(classifier(layers.Input((None, 9)), layers.BatchNormalization(), recurrent, classes=5), data)


@program("from_tensor_slices flat_map map map shuffle batch prefetch", "tune")
def tfrecords(folder: Path) -> Training:
    """Read examples from several files (https://keras.io/examples/keras_recipes/creating_tfrecords/)."""
    for number in range(2):
        with tf.io.TFRecordWriter(str(folder / f"file_{number}.tfrec")) as writer:
            for image in (255 * images(24)).astype("uint8"):
                writer.write(tf.io.encode_png(image).numpy())
    records = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrec"))), num_parallel_reads=None)
    decoded = records.map(lambda record: tf.cast(tf.ensure_shape(tf.io.decode_png(record, 1), (8, 8, 1)), tf.float32))
    data = decoded.map(lambda image: (image, tf.reduce_sum(image) / 5000)).shuffle(80).batch(8).prefetch(AUTOTUNE)
    return Training(compiled(layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(1)), data)


@program("from_tensor_slices map group_by_window prefetch", "tune")
def sequence_buckets(folder: Path) -> Training:
    """Batch sentences of similar length (https://keras.io/examples/nlp/ner_transformers/)."""
    ids = Slices((tokens(), np.random.default_rng(6).integers(2, 7, 48))).map(
        lambda row, size: (row[:size], row[:size])
    )
    data = ids.bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [4, 6], [4, 4, 4]).prefetch(1)
    return Training(classifier(layers.Embedding(20, 8, mask_zero=False), layers.Dropout(0.1), classes=20), data)


@program("from_tensor_slices skip map batch", "tune")
def reproducibility(folder: Path) -> Training:
    """Train with a seed for all (https://keras.io/examples/keras_recipes/reproducibility_recipes/)."""
    keras.utils.set_random_seed(812)
    data = Slices((images(), labels())).skip(8).map(lambda image, label: (image / 2, label)).batch(8)
    model = classifier(layers.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.Dropout(0.5), layers.Flatten())
    return Training(model, data, epochs=3)


@program("fit on a PyDataset")
def metric_learning(folder: Path) -> Training:
    """Draw anchors and positives in Python (https://keras.io/examples/vision/metric_learning/)."""

    class Pairs(keras.utils.PyDataset):
        """Random pairs of images."""

        def __len__(self) -> int:
            return 6

        def __getitem__(self, at: int) -> tuple[Any, Any]:
            chosen = np.random.randint(0, 48, 8)
            return images()[chosen], labels()[chosen]

    return Training(classifier(layers.Input((8, 8, 1)), layers.Flatten()), Pairs())


@program("fit on a PyDataset by its indices")
def image_sequence(folder: Path) -> Training:
    """Read batches by their indices, permuted between epochs (https://keras.io/api/utils/python_utils/)."""

    class Images(keras.utils.PyDataset):
        """Batches of images."""

        def __init__(self) -> None:
            super().__init__(workers=2)
            self.images, self.labels, self.order = images(), labels(), np.arange(48)

        def __len__(self) -> int:
            return 6

        def __getitem__(self, at: int) -> tuple[Any, Any]:
            chosen = self.order[8 * at : 8 * at + 8]
            return self.images[chosen], self.labels[chosen]

        def on_epoch_end(self) -> None:
            """Permute the images."""
            np.random.shuffle(self.order)

    return Training(classifier(layers.Input((8, 8, 1)), layers.Flatten(), layers.Dropout(0.3)), Images(), epochs=3)


# -- steps and callbacks of their own ------------------------------------------------------------------------


class EarlyStoppingAtMinLoss(keras.callbacks.Callback):
    """Stops when the loss no longer falls; keeps the best weights."""

    def __init__(self, patience: int = 0) -> None:
        super().__init__()
        self.patience, self.best_weights = patience, None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count."""
        self.wait, self.best = 0, np.inf

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        """Keep the weights, or wait."""
        if np.less(logs["loss"], self.best):
            self.best, self.wait, self.best_weights = logs["loss"], 0, self.model.get_weights()
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.model.stop_training = True
            self.model.set_weights(self.best_weights)


@program("from_tensor_slices batch cache", "callback", "tune")
def own_callbacks(folder: Path) -> Training:
    """Stop early by a callback of its own (https://keras.io/guides/writing_your_own_callbacks/)."""
    data = Slices((flat(), labels())).batch(8).cache()
    model = classifier(layers.Input((64,)), layers.Dense(3), optimizer=keras.optimizers.RMSprop(0.1))
    return Training(model, data, epochs=4, arguments={"callbacks": [EarlyStoppingAtMinLoss(2)]})


class CustomModel(keras.Model):
    """A step with metrics of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take one step."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean((y_pred - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self) -> list[Any]:
        """Metrics that are reset in each epoch."""
        return [self.loss_tracker, self.mae_metric]


@program("from_tensor_slices shuffle take batch", "own step", "tune")
def custom_train_step(folder: Path) -> Training:
    """Override train_step (https://keras.io/guides/custom_train_step_in_tensorflow/)."""
    inputs = keras.Input((5,))
    model = CustomModel(inputs, layers.Dense(1)(layers.Dropout(0.2)(inputs)))
    model.compile(optimizer="adam")
    return Training(model, Slices(table()).shuffle(30).take(40).batch(8), epochs=3)


class Distiller(keras.Model):
    """A student that learns from a teacher."""

    def __init__(self, teacher: Any, student: Any) -> None:
        super().__init__()
        self.teacher, self.student = teacher, student

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
        """Return the loss on labels and on the teacher's outputs."""
        soft = ops.softmax(self.teacher(x, training=False) / 3, axis=1)
        hard = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
        return 0.1 * ops.mean(hard) + 0.9 * ops.mean(keras.losses.kl_divergence(soft, ops.softmax(y_pred / 3, axis=1)))

    def call(self, x: Any) -> Any:
        """Return the student's logits."""
        return self.student(x)


@program("from_tensor_slices skip batch", "own step", "tune")
def knowledge_distillation(folder: Path) -> Training:
    """Distil a teacher (https://keras.io/examples/vision/knowledge_distillation/)."""
    teacher, student = (keras.Sequential([layers.Input((64,)), layers.Dense(size), layers.Dense(3)]) for size in (8, 4))
    model = Distiller(teacher, student)
    model.compile("adam", metrics=["sparse_categorical_accuracy"])
    return Training(model, Slices((flat(), labels())).skip(8).batch(8))


class Contrastive(keras.Model):
    """An encoder with a contrastive loss, and a probe with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.augmenter = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomBrightness(0.2, (0, 1))])
        self.encoder = keras.Sequential([layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(8, "relu")])
        self.probe = keras.Sequential([layers.Input((8,)), layers.Dense(3)])
        self.tracker = keras.metrics.Mean(name="c_loss")

    def compile(self, optimizer: Any, probe_optimizer: Any, **more: Any) -> None:
        """Set both optimizers."""
        super().compile(optimizer=optimizer, **more)
        self.probe_optimizer = probe_optimizer

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take a step of the encoder, and one of the probe."""
        (unlabelled,), (labelled, y) = data
        with tf.GradientTape() as tape:
            views = [self.encoder(self.augmenter(unlabelled, training=True)) for _ in range(2)]
            similar = ops.matmul(ops.normalize(views[0], axis=1), ops.transpose(ops.normalize(views[1], axis=1)))
            rows = ops.arange(ops.shape(similar)[0])
            loss = ops.mean(keras.losses.sparse_categorical_crossentropy(rows, similar, from_logits=True))
        weights = self.encoder.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            scores = self.probe(self.encoder(labelled))
            probing = ops.mean(keras.losses.sparse_categorical_crossentropy(y, scores, from_logits=True))
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probing, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"c_loss": self.tracker.result(), "p_loss": probing}


@program("from_tensor_slices batch from_tensor_slices batch zip prefetch", "own step", "tune")
def simclr(folder: Path) -> Training:
    """Train an encoder and a probe (https://keras.io/examples/vision/semisupervised_simclr/)."""
    unlabelled, labelled = Slices((images(),)).batch(6), Slices((images(24), labels(24))).batch(3)
    model = Contrastive()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    return Training(model, tf.data.Dataset.zip((unlabelled, labelled)).prefetch(AUTOTUNE))


class Siamese(keras.Model):
    """Distances of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.Sequential([layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(4)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, pair: Any) -> Any:
        """Return the distances in pairs."""
        return ops.sum((self.embedding(pair[0]) - self.embedding(pair[1])) ** 2, -1)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take one step."""
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.maximum(self(data[:2]) - self((data[0], data[2])) + 0.5, 0.0))
        gradients = tape.gradient(loss, self.embedding.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.embedding.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


@program(
    "from_tensor_slices from_tensor_slices from_tensor_slices shuffle zip shuffle map batch prefetch",
    "own step",
    "tune",
)
def siamese_network(folder: Path) -> Training:
    """Train on triplets (https://keras.io/examples/vision/siamese_network/)."""
    anchors, positives, negatives = (Slices(images()[at:]) for at in range(3))
    triplets = tf.data.Dataset.zip((anchors, positives, negatives.shuffle(100))).shuffle(64)
    data = triplets.map(lambda *each: tuple(image * 2 - 1 for image in each)).batch(8, drop_remainder=False).prefetch(8)
    model = Siamese()
    model.compile(optimizer=keras.optimizers.Adam(0.0001))
    return Training(model, data)


class Masked(keras.Model):
    """Predicts masked tokens."""

    def train_step(self, inputs: Any) -> dict[str, Any]:
        """Take one step, weighed by the mask."""
        features, targets, weights = inputs
        with tf.GradientTape() as tape:
            scores = self(features, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(targets, scores, from_logits=True)
            loss = ops.sum(losses * weights) / (ops.sum(weights) + 1)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@program("from_tensor_slices shuffle batch map", "own step", "tune")
def masked_language_model(folder: Path) -> Training:
    """Predict masked tokens (https://keras.io/examples/nlp/masked_language_modeling/)."""

    def masked(ids: Any) -> tuple[Any, Any, Any]:
        mask = ids % 7 == 0
        return tf.where(mask, tf.zeros_like(ids), ids), ids, tf.cast(mask, tf.float32)

    inputs = keras.Input((6,), dtype="int64")
    model = Masked(inputs, layers.Dense(20)(layers.Dropout(0.1)(layers.Embedding(20, 8)(inputs))))
    model.compile("adam")
    return Training(model, Slices(tokens()).shuffle(1000).batch(8).map(masked))


class VAE(keras.Model):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Input((64,)), layers.Dense(8)])
        self.decoder = keras.Sequential([layers.Input((4,)), layers.Dense(64, "sigmoid")])
        self.seeds = keras.random.SeedGenerator(1337)
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "kl_loss")]

    @property
    def metrics(self) -> list[Any]:
        """Metrics that are reset in each epoch."""
        return self.trackers

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take one step."""
        with tf.GradientTape() as tape:
            mean, variance = ops.split(self.encoder(data), 2, axis=1)
            z = mean + ops.exp(0.5 * variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)
            kl = ops.mean(-0.5 * (1 + variance - mean**2 - ops.exp(variance)))
            loss = ops.mean((self.decoder(z) - data) ** 2) + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for tracker, value in zip(self.trackers, (loss, kl), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


@program("from_tensor_slices from_tensor_slices concatenate batch", "own step", "tune")
def variational_autoencoder(folder: Path) -> Training:
    """Train on both splits (https://keras.io/examples/generative/vae/)."""
    model = VAE()
    model.compile(optimizer=keras.optimizers.Adam())
    return Training(model, Slices(flat()).concatenate(Slices(flat(16))).batch(8), epochs=3)


class GAN(keras.Model):
    """A generator and a discriminator with an optimizer each."""

    def __init__(self, discriminator_steps: int = 1, classes: int = 0) -> None:
        super().__init__()
        self.discriminator_steps, self.classes = discriminator_steps, classes
        self.generator = keras.Sequential([layers.Input((4 + classes,)), layers.Dense(64), layers.LeakyReLU()])
        self.discriminator = keras.Sequential(
            [layers.Input((64 + classes,)), layers.Dense(8), layers.LeakyReLU(), layers.Dropout(0.2), layers.Dense(1)]
        )
        self.seeds = keras.random.SeedGenerator(1337)
        self.trackers = [keras.metrics.Mean(name=name) for name in ("d_loss", "g_loss")]

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        """Set both optimizers."""
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self) -> list[Any]:
        """Metrics that are reset in each epoch."""
        return self.trackers

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take steps of the discriminator, and one of the generator."""
        images, kinds = data if isinstance(data, tuple) else (data, None)
        size = ops.shape(images)[0]

        def generated() -> Any:
            noise = keras.random.normal((size, 4), seed=self.seeds)
            return self.generator(noise if kinds is None else ops.concatenate([noise, kinds], 1), training=True)

        def judged(each: Any) -> Any:
            return self.discriminator(each if kinds is None else ops.concatenate([each, kinds], 1), training=True)

        for _ in range(self.discriminator_steps):
            fake = generated()
            with tf.GradientTape() as tape:
                d_loss = ops.mean(ops.softplus(judged(fake))) + ops.mean(ops.softplus(-judged(images)))
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = ops.mean(ops.softplus(-judged(generated())))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        for tracker, value in zip(self.trackers, (d_loss, g_loss), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


class Monitor(keras.callbacks.Callback):
    """Draws samples after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(42)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Generate images."""
        self.model.generator(keras.random.normal((2, 4), seed=self.seed_generator))


def gan(model: GAN) -> GAN:
    """Return a compiled GAN."""
    model.compile(keras.optimizers.Adam(0.0001), keras.optimizers.Adam(0.0001))
    return model


@program("from_tensor_slices batch map", "own step", "callback", "tune")
def dcgan_train_step(folder: Path) -> Training:
    """Train a GAN that draws after each epoch (https://keras.io/examples/generative/dcgan_overriding_train_step/)."""
    data = Slices(255 * flat()).batch(8).map(lambda image: image / 255.0)
    return Training(gan(GAN()), data, arguments={"callbacks": [Monitor()]})


@program("from_tensor_slices take cache batch", "own step", "tune")
def wgan(folder: Path) -> Training:
    """Train the discriminator three times a step (https://keras.io/examples/generative/wgan_gp/)."""
    return Training(gan(GAN(discriminator_steps=3)), Slices(flat()).take(40).cache().batch(8))


@program("from_tensor_slices shuffle batch", "own step", "tune")
def conditional_gan(folder: Path) -> Training:
    """Train a GAN on classes (https://keras.io/examples/generative/conditional_gan/)."""
    data = Slices((flat(), np.eye(3, dtype="f")[labels()])).shuffle(1024).batch(8)
    return Training(gan(GAN(classes=3)), data)


class Diffusion(keras.Model):
    """A denoising network, and its moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = keras.Sequential(
            [layers.Input((8, 8, 1)), layers.Conv2D(4, 3, padding="same"), layers.Conv2D(1, 1)]
        )
        self.ema_network = keras.models.clone_model(self.network)
        self.noise_loss = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self) -> list[Any]:
        """Metrics that are reset in each epoch."""
        return [self.noise_loss]

    def train_step(self, images: Any) -> dict[str, Any]:
        """Take one step, and move the average."""
        images = self.normalizer(images, training=True)
        noises = keras.random.normal(shape=ops.shape(images))
        rates = keras.random.uniform(shape=(ops.shape(images)[0], 1, 1, 1))
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.abs(self.network(rates * images + (1 - rates) * noises, training=True) - noises))
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss.update_state(loss)
        for weight, ema in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema.assign(0.99 * ema + 0.01 * weight)
        return {metric.name: metric.result() for metric in self.metrics}


@program("from_tensor_slices map cache repeat shuffle batch prefetch", "own step", "tune")
def diffusion(folder: Path) -> Training:
    """Train a diffusion model with a moving average (https://keras.io/examples/generative/ddim/)."""
    data = Slices(images()).map(lambda image: tf.clip_by_value(image, 0.0, 1.0), AUTOTUNE).cache().repeat(2)
    data = data.shuffle(480).batch(8, drop_remainder=True).prefetch(AUTOTUNE)
    model = Diffusion()
    model.normalizer.adapt(images())
    model.compile(optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4))
    return Training(model, data)


class NeRF(keras.Model):
    """A network over rays."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.tracker = keras.metrics.Mean(name="psnr")

    def train_step(self, inputs: Any) -> dict[str, Any]:
        """Take one step."""
        pixels, (origins, directions) = inputs
        with tf.GradientTape() as tape:
            loss = ops.mean((self.network(ops.concatenate([origins, directions], -1)) - pixels) ** 2)
        gradients = tape.gradient(loss, self.network.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables, strict=True))
        self.tracker.update_state(-10 * ops.log10(loss))
        return {"loss": loss, "psnr": self.tracker.result()}


class Losses(keras.callbacks.Callback):
    """Keeps the loss of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_list: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Append the loss, and lower the rate by their number."""
        self.loss_list.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.01 / len(self.loss_list)


@program("from_tensor_slices from_tensor_slices map zip shuffle batch prefetch", "own step", "callback", "tune")
def nerf(folder: Path) -> Training:
    """Train on rays (https://keras.io/examples/vision/nerf/)."""
    rays = Slices(table()[0]).map(lambda pose: (pose[:3], pose[2:]), AUTOTUNE)
    data = (
        tf.data.Dataset.zip((Slices(images()[:, 0, 0]), rays))
        .shuffle(8)
        .batch(8, drop_remainder=True, num_parallel_calls=2)
    )
    model = NeRF(keras.Sequential([layers.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1)]))
    model.compile(optimizer=keras.optimizers.Adam())
    return Training(model, data.prefetch(AUTOTUNE), epochs=3, arguments={"callbacks": [Losses()]})


@program("from_tensor_slices map filter batch", "own step", "tune")
def zero_dce(folder: Path) -> Training:
    """Train without targets on images that pass a filter (https://keras.io/examples/vision/zero_dce/)."""

    class ZeroDCE(keras.Model):
        """Curves that brighten an image."""

        def __init__(self) -> None:
            super().__init__()
            self.curves = keras.Sequential(
                [layers.Input((8, 8, 1)), layers.Conv2D(2, 3, padding="same"), layers.Conv2D(1, 1)]
            )

        def train_step(self, data: Any) -> dict[str, Any]:
            """Take one step."""
            with tf.GradientTape() as tape:
                curve = ops.tanh(self.curves(data))
                exposure = ops.mean((data + curve * (data**2 - data) - 0.6) ** 2)
                loss = exposure + 0.1 * ops.mean(tf.image.total_variation(curve))
            gradients = tape.gradient(loss, self.curves.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.curves.trainable_weights, strict=True))
            return {"total_loss": loss, "exposure_loss": exposure}

    data = Slices(images()).map(lambda image: image * 0.8).filter(lambda image: tf.reduce_mean(image) > 0.38).batch(4)
    model = ZeroDCE()
    model.compile(optimizer=keras.optimizers.Adam(1e-4))
    return Training(model, data)


@program("from_tensor_slices batch take", "own step", "tune")
def trainer_pattern(folder: Path) -> Training:
    """Wrap a model in a trainer (https://keras.io/examples/keras_recipes/trainer_pattern/)."""

    class Trainer(keras.Model):
        """Trains a model that it is given."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()

        def train_step(self, data: Any) -> dict[str, Any]:
            """Take one step."""
            x, y = data
            with tf.GradientTape() as tape:
                scores = self.model(x, training=True)
                loss = self.loss_fn(y, scores)
            weights = self.model.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.accuracy.update_state(y, scores)
            return {"loss": loss, "accuracy": self.accuracy.result()}

        def call(self, x: Any) -> Any:
            """Return logits."""
            return self.model(x)

    trainer = Trainer(keras.Sequential([layers.Input((64,)), layers.Dense(8, "relu"), layers.Dense(3)]))
    trainer.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    return Training(trainer, Slices((flat(), labels())).batch(8).take(5))


@program("from_tensor_slices batch cache prefetch", "own step", "tune")
def vector_quantized(folder: Path) -> Training:
    """Train an autoencoder with a codebook (https://keras.io/examples/generative/vq_vae/)."""

    class Quantizer(layers.Layer):
        """Nearest embeddings, straight through."""

        def __init__(self) -> None:
            super().__init__()
            self.embeddings = self.add_weight(shape=(4, 6), initializer="random_uniform", trainable=True)

        def call(self, x: Any) -> Any:
            """Return the nearest embedding of each row."""
            distances = (
                ops.sum(x**2, 1, keepdims=True) + ops.sum(self.embeddings**2, 0) - 2 * ops.matmul(x, self.embeddings)
            )
            codes = ops.matmul(ops.one_hot(ops.argmin(distances, 1), 6), ops.transpose(self.embeddings))
            self.add_loss(ops.mean((ops.stop_gradient(codes) - x) ** 2) + ops.mean((codes - ops.stop_gradient(x)) ** 2))
            return x + ops.stop_gradient(codes - x)

    model = compiled(layers.Input((64,)), layers.Dense(4), Quantizer(), layers.Dense(64))
    return Training(model, Slices((flat(), flat())).batch(8).cache().prefetch(2))
