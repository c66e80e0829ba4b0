"""RetinaNet (Lin et al., 2017): a pyramid of features above a ResNet, and at each cell boxes and their classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tpunb.errors import need
from tpunb.workloads import resnet
from tpunb.workloads.boxes import IGNORED, PER_CELL
from tpunb.workloads.images import Scenes
from tpunb.workloads.records import Decode
from tpunb.workloads.scaling import Plan, between, rate
from tpunb.workloads.scene_input import scenes

_EPOCHS, _EXAMPLES, _BATCH = 15, 120_000, 64
_ALPHA, _GAMMA, _DELTA = 0.25, 2.0, 0.1  # of the focal loss, and of Huber's
_BOX_WEIGHT = 50.0
_PRIOR = 0.01  # share of the anchors that have an object, as the model believes at first


@dataclass(frozen=True)
class Size:
    """How large the model is.

    Attributes
    ----------
    backbone
        The ResNet below, and the side of the image.
    channels
        Of the pyramid and of the heads.
    head
        Convolutions of each head before its last.
    """

    backbone: resnet.Size
    channels: int
    head: int

    @classmethod
    def at(cls, scale: float) -> Size:
        """Return the size at a scale, up to ResNet-50 and images of 640 x 640 at 1.

        >>> Size.at(1).backbone.image, Size.at(1).backbone.depth, Size.at(1).channels
        (640, 50, 256)
        """
        backbone = replace(resnet.Size.at(scale), image=between(128, 640, scale, of=128))
        return cls(backbone, channels=between(32, 256, scale, of=8), head=between(2, 4, scale))


@dataclass(frozen=True)
class RetinaNet:
    """RetinaNet on COCO, or on a share of it: what `tpunb.workloads.Workload` asks of a recipe.

    Attributes
    ----------
    scenes
        What the dataset holds.
    share
        Of the dataset that is read; an epoch has that share of the steps (paper VI.C).
    """

    scenes: Scenes
    share: float = 1.0

    def facts(self) -> Mapping[str, object]:
        """Return its parameters, as in Table I."""
        return {
            "train batch size": self.plan(1).batch,
            "image size": Size.at(1).backbone.image,
            "num epochs": self.plan(1).epochs,
            "num examples per epoch": self.plan(1).examples,
        }

    def plan(self, scale: float) -> Plan:
        """Return how long it trains: what grows with the scale is the batch, the epochs, their steps and the examples.

        At scale 1 an epoch is the dataset once.
        """
        examples = round(between(256, _EXAMPLES, scale) * self.share)
        steps = round(between(120, _EXAMPLES // _BATCH, scale) * self.share)
        batch = between(4, _BATCH, scale)
        return Plan(batch, between(4, _EPOCHS, scale), steps, between(12, 5000 // _BATCH, scale), examples)

    def made(self, scale: float) -> Scenes:
        """Return what makes records: images of the real sizes at any scale; their classes grow from 4."""
        return replace(self.scenes, classes=between(4, self.scenes.classes, scale))

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return what turns a record into input and target."""
        return scenes(Size.at(scale).backbone.image, training=split == "train", seed=seed)

    def model(self, scale: float) -> Any:
        """Return the compiled model: momentum, and a learning rate that falls to a tenth twice."""
        keras = need("keras", extra="tensorflow")
        plan, top = self.plan(scale), rate(0.01, 0.08, scale)
        falls = [plan.steps * 2 // 3, plan.steps * 8 // 9]
        steps = keras.optimizers.schedules.PiecewiseConstantDecay(falls, [top, top / 10, top / 100])
        model = detector(Size.at(scale), self.made(scale).classes)
        focal, huber = _losses()
        optimizer = keras.optimizers.SGD(steps, momentum=0.9, global_clipnorm=10.0)
        model.compile(optimizer, {"class": focal(name="class_loss"), "box": huber(name="box_loss")})
        return model


def detector(size: Size, classes: int) -> Any:
    """Return RetinaNet.

    Its outputs are, for each anchor, ``class``: logits of shape (batch, anchors, classes), and ``box``: of shape
    (batch, anchors, 4), where its object lies, in sizes of the anchor.
    """
    import keras

    image = keras.Input((size.backbone.image, size.backbone.image, 3), name="image")
    levels = _pyramid(resnet.backbone(image, size.backbone.blocks, size.backbone.filters), size.channels)
    rare = keras.initializers.Constant(-math.log((1 - _PRIOR) / _PRIOR))
    outputs = {
        "class": _head(levels, size, classes, "class", bias=rare),
        "box": _head(levels, size, 4, "box", bias="zeros"),
    }
    return keras.Model(image, outputs, name="retinanet")


def _pyramid(found: list[Any], channels: int) -> list[Any]:
    """Return the levels 3 to 7, all with as many channels: from the top down, each added to the one below."""
    import keras

    above = None
    levels: list[Any] = []
    for number, hidden in reversed(list(enumerate(found[1:], 3))):
        hidden = keras.layers.Conv2D(channels, 1, name=f"lateral_{number}")(hidden)
        if above is not None:
            hidden = hidden + keras.layers.UpSampling2D(2, name=f"larger_{number}")(above)
        above = hidden
        levels.insert(0, keras.layers.Conv2D(channels, 3, padding="same", name=f"level_{number}")(hidden))
    levels.append(keras.layers.Conv2D(channels, 3, strides=2, padding="same", name="level_6")(levels[-1]))
    further = keras.layers.Conv2D(channels, 3, strides=2, padding="same", name="level_7")
    return [*levels, further(keras.ops.relu(levels[-1]))]


def _head(levels: list[Any], size: Size, values: int, name: str, *, bias: Any) -> Any:
    """Return so many values for each anchor: convolutions that all levels share."""
    import keras

    init = keras.initializers.RandomNormal(stddev=0.01)
    layers = [
        keras.layers.Conv2D(size.channels, 3, padding="same", activation="relu", name=f"{name}_{number}")
        for number in range(size.head)
    ]
    layers.append(
        keras.layers.Conv2D(
            PER_CELL * values, 3, padding="same", kernel_initializer=init, bias_initializer=bias, name=f"{name}_last"
        )
    )
    told = []
    for level in levels:
        for layer in layers:
            level = layer(level)
        told.append(keras.layers.Reshape((-1, values))(level))
    return keras.ops.concatenate(told, axis=1)


@cache
def _losses() -> tuple[type[Any], type[Any]]:
    """Return the focal loss of classes and Huber's of boxes: of an image, by how many of its anchors have an object."""
    import keras

    ops = keras.ops

    class Focal(keras.losses.Loss):  # type: ignore[misc]
        def call(self, kind: Any, logits: Any) -> Any:
            kind = ops.cast(kind, "int32")
            wanted = ops.one_hot(kind, logits.shape[-1])  # all zeros where there is no object
            entropy = ops.softplus(logits) - wanted * logits
            sure = ops.exp(-entropy)
            weight = _ALPHA * wanted + (1 - _ALPHA) * (1 - wanted)
            losses = ops.sum(weight * (1 - sure) ** _GAMMA * entropy, axis=-1)
            counted = ops.cast(ops.not_equal(kind, IGNORED), losses.dtype)
            objects = ops.sum(ops.cast(kind >= 0, losses.dtype), axis=-1)
            return ops.sum(losses * counted, axis=-1) / (objects + 1)

    class Huber(keras.losses.Loss):  # type: ignore[misc]
        def call(self, wanted: Any, told: Any) -> Any:
            wanted, has = ops.cast(wanted[..., :4], told.dtype), ops.cast(wanted[..., 4], told.dtype)
            away = ops.abs(wanted - told)
            losses = ops.where(away <= _DELTA, away**2 / 2, _DELTA * (away - _DELTA / 2))
            return _BOX_WEIGHT * ops.sum(ops.mean(losses, axis=-1) * has, axis=-1) / (ops.sum(has, axis=-1) + 1)

    return Focal, Huber
