"""DCGAN (Radford et al., 2016): a generator of images, and a discriminator that tells them from real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tpunb.errors import need
from tpunb.workloads.image_input import small
from tpunb.workloads.images import Images
from tpunb.workloads.records import Decode
from tpunb.workloads.scaling import Plan, between

_STEPS, _EVERY, _BATCH, _LOOP = 10_000, 1000, 1024, 100
_LEARNING_RATE = 2e-4
_SHARDS = 8  # cores of the TPU of the paper, each with its part of a batch


@dataclass(frozen=True)
class Size:
    """How large the model is.

    Attributes
    ----------
    side, channels
        Of an image.
    filters
        Next to the image; each layer further from it has twice as many.
    noise
        Numbers from which an image is made.
    """

    side: int
    channels: int
    filters: int
    noise: int = 100

    @classmethod
    def at(cls, scale: float, images: Images) -> Size:
        """Return the size at a scale: what grows is the filters, up to 64."""
        return cls(images.height, images.channels, between(16, 64, scale, of=8))

    @property
    def widths(self) -> tuple[int, ...]:
        """Filters of the discriminator's layers, each of which halves the side while that goes into whole pixels."""
        layers = 3 if self.side % 8 == 0 else 2
        return tuple(self.filters * 2**layer for layer in range(layers))


@dataclass(frozen=True)
class Dcgan:
    """DCGAN on one dataset: what `tpunb.workloads.Workload` asks of a recipe.

    Attributes
    ----------
    images
        What the dataset holds.
    examples
        Of its training data.
    """

    images: Images
    examples: int

    def facts(self) -> Mapping[str, object]:
        """Return its parameters, as in Table I."""
        return {
            "batch size": self.plan(1).batch,
            "num shards": _SHARDS,
            "train steps": self.plan(1).steps,
            "train steps per eval": self.plan(1).epoch_steps,
            "iterations per loop": _loop(1),
            "learning rate": _LEARNING_RATE,
        }

    def plan(self, scale: float) -> Plan:
        """Return how long it trains: what grows with the scale is the batch, the steps and the examples."""
        batch = between(128, _BATCH, scale)
        epochs = between(5, _STEPS // _EVERY, scale)
        return Plan(batch, epochs, between(100, _EVERY, scale), 8, between(4096, self.examples, scale))

    def made(self, scale: float) -> Images:
        """Return what makes records: images of the real size at any scale."""
        return self.images

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return what turns a record into input and target."""
        return small(self.images.height, self.images.width, self.images.channels)

    def model(self, scale: float) -> Any:
        """Return the compiled model; from scale 0 to 1, 1 to 100 of its steps run as one."""
        keras = need("keras", extra="tensorflow")
        size = Size.at(scale, self.images)
        gan = _gan()(generator(size), discriminator(size))
        adam = keras.optimizers.Adam(_LEARNING_RATE, beta_1=0.5)  # of both parts: it treats each weight by itself
        gan.compile(adam, steps_per_execution=_loop(scale))
        return gan


def generator(size: Size) -> Any:
    """Return what makes images from noise: a dense layer, then transposed convolutions that double the side."""
    import keras

    *rest, widest = size.widths
    start = size.side // 2 ** len(size.widths)
    noise = keras.Input((size.noise,), name="noise")
    hidden = keras.layers.Dense(start * start * 2 * widest, use_bias=False)(noise)
    hidden = keras.layers.Reshape((start, start, 2 * widest))(hidden)
    hidden = keras.ops.relu(keras.layers.BatchNormalization()(hidden))
    for filters in (widest, *reversed(rest[1:])):
        hidden = keras.layers.Conv2DTranspose(filters, 5, strides=2, padding="same", use_bias=False)(hidden)
        hidden = keras.ops.relu(keras.layers.BatchNormalization()(hidden))
    image = keras.layers.Conv2DTranspose(size.channels, 5, strides=2, padding="same", activation="tanh")(hidden)
    return keras.Model(noise, image, name="generator")


def discriminator(size: Size) -> Any:
    """Return what tells real images from made ones: convolutions that halve the side, then one logit."""
    import keras

    image = keras.Input((size.side, size.side, size.channels), name="image")
    hidden = image
    for number, filters in enumerate(size.widths):
        hidden = keras.layers.Conv2D(filters, 5, strides=2, padding="same", use_bias=number == 0)(hidden)
        if number:  # not on the image itself
            hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.LeakyReLU(negative_slope=0.2)(hidden)
    logit = keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    return keras.Model(image, logit, name="discriminator")


@cache
def _gan() -> type[Any]:
    """Return the class of models that train a generator and a discriminator against each other, on TensorFlow."""
    import keras
    import tensorflow as tf

    crossentropy = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)

    class Gan(keras.Model):  # type: ignore[misc]
        def __init__(self, maker: Any, judge: Any) -> None:
            super().__init__(name="dcgan")
            self.generator, self.discriminator = maker, judge
            self.seeds = keras.random.SeedGenerator()
            self.made = keras.metrics.Mean("generator_loss")
            self.told = keras.metrics.Mean("discriminator_loss")
            self.built = True  # both parts are

        @property
        def metrics(self) -> list[Any]:
            return [self.made, self.told]

        def call(self, noise: Any, training: bool = False) -> Any:
            return self.generator(noise, training=training)

        def losses_on(self, images: Any, training: bool) -> tuple[Any, Any]:
            """Return the loss of each part on a batch of real images."""
            noise = keras.random.normal((tf.shape(images)[0], self.generator.input_shape[-1]), seed=self.seeds)
            fakes = self.generator(noise, training=training)
            real = self.discriminator(images, training=training)
            fake = self.discriminator(fakes, training=training)
            judged = crossentropy(tf.ones_like(real), real) + crossentropy(tf.zeros_like(fake), fake)
            return crossentropy(tf.ones_like(fake), fake), judged

        def train_step(self, data: Any) -> dict[str, Any]:
            makes, judges = self.generator.trainable_variables, self.discriminator.trainable_variables
            with tf.GradientTape() as making, tf.GradientTape() as judging:
                losses = self.losses_on(data[0], training=True)
            slopes = making.gradient(losses[0], _values(makes)) + judging.gradient(losses[1], _values(judges))
            self.optimizer.apply(slopes, makes + judges)
            return self.noted(losses)

        def test_step(self, data: Any) -> dict[str, Any]:
            return self.noted(self.losses_on(data[0], training=False))

        def noted(self, losses: tuple[Any, Any]) -> dict[str, Any]:
            """Return the mean losses up to now."""
            self.made.update_state(losses[0])
            self.told.update_state(losses[1])
            return {metric.name: metric.result() for metric in self.metrics}

    return Gan


def _values(variables: list[Any]) -> list[Any]:
    return [variable.value for variable in variables]


def _loop(scale: float) -> int:
    return between(1, _LOOP, scale)
