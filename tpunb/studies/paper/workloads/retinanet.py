"""RetinaNet (Lin et al., 2017): a feature pyramid on a ResNet, with heads for classes and boxes of anchors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from tpunb.studies.frameworks import keras
from tpunb.studies.paper.workloads import resnet
from tpunb.studies.paper.workloads.boxes import IGNORED, LEVELS, PER_CELL
from tpunb.studies.paper.workloads.images import Scenes
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.scene_input import scenes
from tpunb.studies.paper.workloads.sizes import Plan, between, rate
from tpunb.studies.paper.workloads.workload import WorkloadSpec

_EPOCHS, _EXAMPLES, _BATCH = 15, 120_000, 64
_ALPHA, _GAMMA, _DELTA = 0.25, 2.0, 0.1  # of the focal loss, and of the Huber loss
_BOX_WEIGHT = 50.0
_PRIOR = 0.01  # initial share of anchors with an object


@dataclass(frozen=True)
class Size:
    """Size of the model."""

    backbone: resnet.Size  # with the size of the image
    channels: int  # of the pyramid and the heads
    head: int  # convolutions of each head before its last

    @classmethod
    def at(cls, scale: float) -> Size:
        """Return the size at a scale, up to ResNet-50 and images of 640 x 640 at 1.

        >>> Size.at(1).backbone.image, Size.at(1).backbone.depth, Size.at(1).channels
        (640, 50, 256)
        """
        backbone = replace(resnet.Size.at(scale), image=between(128, 640, scale, of=128))
        return cls(backbone, channels=between(32, 256, scale, of=8), head=between(2, 4, scale))

    @classmethod
    def beside_input(cls, width: int) -> Size:
        """Return the size for images of 640 x 640, with the levels 5 to 7 only."""
        return cls(replace(resnet.Size.beside_input(width), image=640), channels=2 * width, head=2)

    @property
    def first_level(self) -> int:
        """Lowest level of the pyramid: 3, unless the stem of the backbone is coarse."""
        return LEVELS[0] + int(math.log2(self.backbone.stem)) - 1


@dataclass(frozen=True)
class RetinaNet(WorkloadSpec):
    """RetinaNet on COCO, or on a share of it."""

    SIZE: ClassVar[type[Size]] = Size
    UNIT: ClassVar[int] = 144
    RUN: ClassVar[Plan] = Plan(1, epochs=2, epoch_steps=20, eval_steps=4, examples=64)

    data: Scenes
    share: float = 1.0  # of the dataset that is read; an epoch has that share of the steps (paper VI.C)

    def facts(self) -> Mapping[str, object]:
        """Return the parameters in Table I."""
        return {
            "train batch size": self.plan(1).batch,
            "image size": Size.at(1).backbone.image,
            "num epochs": self.plan(1).epochs,
            "num examples per epoch": self.plan(1).examples,
        }

    def plan(self, scale: float) -> Plan:
        """Return the plan, which grows with the scale; at 1 an epoch is one pass over the dataset."""
        examples = round(between(256, _EXAMPLES, scale) * self.share)
        steps = round(between(120, _EXAMPLES // _BATCH, scale) * self.share)
        batch = between(4, _BATCH, scale)
        return Plan(batch, between(4, _EPOCHS, scale), steps, between(12, 5000 // _BATCH, scale), examples)

    def factory(self, scale: float) -> Scenes:
        """Return the generator of scenes of the real sizes; the classes grow from 4."""
        return replace(self.data, classes=between(4, self.data.classes, scale))

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return the function from a record to input and target."""
        return scenes(self.size(scale).backbone.image, training=split == "train", seed=seed)

    def model(self, scale: float) -> Any:
        """Return the compiled model, with momentum and two drops of the learning rate to a tenth."""
        plan, top = self.plan(scale), rate(0.01, 0.08, scale)
        falls = [plan.steps * 2 // 3, plan.steps * 8 // 9]
        steps = keras.optimizers.schedules.PiecewiseConstantDecay(falls, [top, top / 10, top / 100])
        model = detector(self.size(scale), self.factory(scale).classes)
        focal, huber = _losses()
        optimizer = keras.optimizers.SGD(steps, momentum=0.9, global_clipnorm=10.0)
        model.compile(optimizer, {"class": focal(name="class_loss"), "box": huber(name="box_loss")})
        return model


def detector(size: Size, classes: int) -> Any:
    """Return RetinaNet, with two outputs per anchor.

    ``class``: logits, (batch, anchors, classes); ``box``: position relative to the anchor, (batch, anchors, 4).
    """
    image = keras.Input((size.backbone.image, size.backbone.image, 3), name="image")
    levels = _pyramid(resnet.backbone(image, size.backbone), size)
    rare = keras.initializers.Constant(-math.log((1 - _PRIOR) / _PRIOR))
    outputs = {
        "class": _head(levels, size, classes, "class", bias=rare),
        "box": _head(levels, size, 4, "box", bias="zeros"),
    }
    return keras.Model(image, outputs, name="retinanet")


def _pyramid(stages: list[Any], size: Size) -> list[Any]:
    """Return the levels up to 7; from the top down, each is upsampled and added to the one below."""
    channels, first, above = size.channels, size.first_level, None
    levels: list[Any] = []
    for number, hidden in reversed(list(enumerate(stages[1:], first))):
        hidden = keras.layers.Conv2D(channels, 1, name=f"lateral_{number}")(hidden)
        if above is not None:
            hidden = hidden + keras.layers.UpSampling2D(2, name=f"larger_{number}")(above)
        above = hidden
        levels.insert(0, keras.layers.Conv2D(channels, 3, padding="same", name=f"level_{number}")(hidden))
    for number in range(first + len(levels), LEVELS.stop):
        below = keras.ops.relu(levels[-1]) if number == LEVELS[-1] else levels[-1]
        levels.append(keras.layers.Conv2D(channels, 3, strides=2, padding="same", name=f"level_{number}")(below))
    return levels


def _head(levels: list[Any], size: Size, values: int, name: str, *, bias: Any) -> Any:
    """Return `values` numbers per anchor, by convolutions shared between levels."""
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
    outputs = []
    for level in levels:
        for layer in layers:
            level = layer(level)
        outputs.append(keras.layers.Reshape((-1, values))(level))
    return keras.ops.concatenate(outputs, axis=1)


@cache
def _losses() -> tuple[type[Any], type[Any]]:
    """Return the focal loss of classes and the Huber loss of boxes, per image and anchor with an object."""
    ops = keras.ops

    class Focal(keras.losses.Loss):  # type: ignore[misc, name-defined]
        def call(self, labels: Any, logits: Any) -> Any:
            labels = ops.cast(labels[:, -logits.shape[1] :], "int32")  # of the levels that the model has
            target = ops.one_hot(labels, logits.shape[-1])  # zeros if there is no object
            entropy = ops.softplus(logits) - target * logits
            weight = _ALPHA * target + (1 - _ALPHA) * (1 - target)
            losses = ops.sum(weight * (1 - ops.exp(-entropy)) ** _GAMMA * entropy, axis=-1)
            counted = ops.cast(ops.not_equal(labels, IGNORED), losses.dtype)
            objects = ops.sum(ops.cast(labels >= 0, losses.dtype), axis=-1)
            return ops.sum(losses * counted, axis=-1) / (objects + 1)

    class Huber(keras.losses.Loss):  # type: ignore[misc, name-defined]
        def call(self, target: Any, boxes: Any) -> Any:
            target = ops.cast(target[:, -boxes.shape[1] :], boxes.dtype)
            target, weight = target[..., :4], target[..., 4]
            error = ops.abs(target - boxes)
            losses = ops.where(error <= _DELTA, error**2 / 2, _DELTA * (error - _DELTA / 2))
            return _BOX_WEIGHT * ops.sum(ops.mean(losses, axis=-1) * weight, axis=-1) / (ops.sum(weight, axis=-1) + 1)

    return Focal, Huber
