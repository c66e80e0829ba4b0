"""DCGAN (Radford et al., 2016): an image generator, and a discriminator of real and generated images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from tpunb.studies.frameworks import keras, tf
from tpunb.studies.paper.workloads.image_input import small
from tpunb.studies.paper.workloads.images import Images
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.sizes import Plan, between
from tpunb.studies.paper.workloads.workload import WorkloadSpec

_STEPS, _EVERY, _BATCH, _MAX_STEPS_PER_EXECUTION = 10_000, 1000, 1024, 100
_LEARNING_RATE = 2e-4
_SHARDS = 8  # TPU cores in the paper


@dataclass(frozen=True)
class Size:
    """Size of the model."""

    side: int  # of an image
    channels: int
    filters: int  # of the layer at the image; each layer further away has twice as many
    noise: int = 100  # size of the noise vector

    @classmethod
    def at(cls, scale: float, images: Images) -> Size:
        """Return the size at a scale, up to 64 filters."""
        return cls(images.height, images.channels, between(16, 64, scale, of=8))

    @classmethod
    def beside_input(cls, width: int, images: Images) -> Size:
        """Return the size for images of the dataset, which are averaged to 8 x 8 pixels."""
        return cls(8, images.channels, filters=width, noise=width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Filters of the discriminator's layers, each of which halves the side."""
        layers = 3 if self.side % 8 == 0 else 2
        return tuple(self.filters * 2**layer for layer in range(layers))


@dataclass(frozen=True)
class Dcgan(WorkloadSpec):
    """DCGAN on one dataset."""

    data: Images
    examples: int  # of training

    UNIT: ClassVar[int] = 40
    RUN: ClassVar[Plan] = Plan(256, epochs=2, epoch_steps=20, eval_steps=4, examples=4096)

    def facts(self) -> Mapping[str, object]:
        """Return the parameters in Table I."""
        plan = self.plan(1)
        return {
            "batch size": plan.batch,
            "num shards": _SHARDS,
            "train steps": plan.steps,
            "train steps per eval": plan.epoch_steps,
            "iterations per loop": _steps_per_execution(1),
            "learning rate": _LEARNING_RATE,
        }

    def plan(self, scale: float) -> Plan:
        """Return the plan: batch, steps and examples grow with the scale."""
        batch = between(128, _BATCH, scale)
        epochs = between(5, _STEPS // _EVERY, scale)
        return Plan(batch, epochs, between(100, _EVERY, scale), 8, between(4096, self.examples, scale))

    def size(self, scale: float) -> Size:
        """Return the size of the model."""
        return Size.at(scale, self.data) if self.width is None else Size.beside_input(self.width, self.data)

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return the function from a record to input and target."""
        return small(self.data.height, self.data.width, self.data.channels)

    def model(self, scale: float) -> Any:
        """Return the compiled model, with 1 to 100 steps per execution."""
        size = self.size(scale)
        gan = _gan()(generator(size), discriminator(size))
        adam = keras.optimizers.Adam(_LEARNING_RATE, beta_1=0.5)  # shared by both parts
        gan.compile(adam, steps_per_execution=_steps_per_execution(scale))
        return gan


def generator(size: Size) -> Any:
    """Return the generator: a dense layer, then transposed convolutions that double the side."""
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
    """Return the discriminator: convolutions that halve the side, then one logit."""
    image = keras.Input((size.side, size.side, size.channels), name="image")
    hidden = image
    for number, filters in enumerate(size.widths):
        hidden = keras.layers.Conv2D(filters, 5, strides=2, padding="same", use_bias=number == 0)(hidden)
        if number:
            hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.LeakyReLU(negative_slope=0.2)(hidden)
    logit = keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    return keras.Model(image, logit, name="discriminator")


@cache
def _gan() -> type[Any]:
    """Return the class of models that train a generator against a discriminator, on TensorFlow."""
    crossentropy = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)

    class Gan(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, generator: Any, discriminator: Any) -> None:
            super().__init__(name="dcgan")
            self.generator, self.discriminator = generator, discriminator
            self.seeds = keras.random.SeedGenerator()
            self.generator_loss = keras.metrics.Mean("generator_loss")
            self.discriminator_loss = keras.metrics.Mean("discriminator_loss")
            self.built = True  # as both parts are

        @property
        def metrics(self) -> list[Any]:
            return [self.generator_loss, self.discriminator_loss]

        def call(self, noise: Any, training: bool = False) -> Any:
            return self.generator(noise, training=training)

        def losses_on(self, images: Any, training: bool) -> tuple[Any, Any]:
            """Return the loss of both parts on a batch of real images, averaged to the side of the model."""
            side = self.generator.output_shape[1]
            if (stride := images.shape[1] // side) > 1:
                images = keras.ops.average_pool(images, images.shape[1] - stride * (side - 1), stride)
            noise = keras.random.normal((tf.shape(images)[0], self.generator.input_shape[-1]), seed=self.seeds)
            fakes = self.generator(noise, training=training)
            real = self.discriminator(images, training=training)
            fake = self.discriminator(fakes, training=training)
            on_real, on_fake = crossentropy(tf.ones_like(real), real), crossentropy(tf.zeros_like(fake), fake)
            return crossentropy(tf.ones_like(fake), fake), on_real + on_fake

        def train_step(self, data: Any) -> dict[str, Any]:
            weights = [part.trainable_variables for part in (self.generator, self.discriminator)]
            with tf.GradientTape(persistent=True) as tape:
                losses = self.losses_on(data[0], training=True)
            gradients = [
                tape.gradient(loss, [v.value for v in part]) for loss, part in zip(losses, weights, strict=True)
            ]
            self.optimizer.apply(gradients[0] + gradients[1], weights[0] + weights[1])
            return self._update_metrics(losses)

        def test_step(self, data: Any) -> dict[str, Any]:
            return self._update_metrics(self.losses_on(data[0], training=False))

        def _update_metrics(self, losses: tuple[Any, Any]) -> dict[str, Any]:
            for metric, loss in zip(self.metrics, losses, strict=True):
                metric.update_state(loss)
            return {metric.name: metric.result() for metric in self.metrics}

    return Gan


def _steps_per_execution(scale: float) -> int:
    return between(1, _MAX_STEPS_PER_EXECUTION, scale)
