"""ResNet (He et al., 2015): bottleneck blocks with residual connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tpunb.studies.frameworks import keras
from tpunb.studies.paper.workloads.image_input import cropped
from tpunb.studies.paper.workloads.images import Images
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.sizes import Plan, between, rate
from tpunb.studies.paper.workloads.workload import WorkloadSpec

_BLOCKS = (3, 4, 6, 3)  # ResNet-50
_STEPS, _BATCH = 112590, 1024


@dataclass(frozen=True)
class Size:
    """Size of the model."""

    blocks: tuple[int, ...]  # of the four stages
    filters: int  # of the first stage; each next stage has twice as many
    image: int  # side, in pixels
    stem: int = 2  # stride of the first convolution

    @classmethod
    def at(cls, scale: float) -> Size:
        """Return the size at a scale, up to ResNet-50 at 1.

        >>> Size.at(1), Size.at(1).depth
        (Size(blocks=(3, 4, 6, 3), filters=64, image=224, stem=2), 50)
        """
        blocks = tuple(between(1, count, scale) for count in _BLOCKS)
        return cls(blocks, filters=between(16, 64, scale, of=8), image=between(96, 224, scale, of=32))

    @classmethod
    def beside_input(cls, width: int) -> Size:
        """Return the size for images of the paper's side: one block a stage, after a coarse stem."""
        return cls((1, 1, 1, 1), filters=width, image=224, stem=8)

    @property
    def depth(self) -> int:
        """Layers with weights: three per block, the first and the last."""
        return 3 * sum(self.blocks) + 2


@dataclass(frozen=True)
class ResNet(WorkloadSpec):
    """ResNet on one dataset, whose images are cropped and resized as those of ImageNet."""

    data: Images
    examples: int  # of training

    SIZE: ClassVar[type[Size]] = Size
    UNIT: ClassVar[int] = 128
    RUN: ClassVar[Plan] = Plan(8, epochs=2, epoch_steps=20, eval_steps=4, examples=128)

    def facts(self) -> Mapping[str, object]:
        """Return the parameters in Table I."""
        return {
            "default network depth": Size.at(1).depth,
            "train steps": self.plan(1).steps,
            "default batch size": self.plan(1).batch,
        }

    def plan(self, scale: float) -> Plan:
        """Return the plan, which grows with the scale to 90 epochs of 1251 steps, one pass over ImageNet each, at 1."""
        epochs = between(4, 90, scale)
        batch, examples = between(16, _BATCH, scale), between(384, self.examples, scale)
        return Plan(batch, epochs, between(150, _STEPS // 90, scale), between(12, 49, scale), examples)

    def factory(self, scale: float) -> Images:
        """Return the generator of images of the real sizes; the classes grow from 10."""
        return replace(self.data, classes=between(10, self.data.classes, scale))

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return the function from a record to input and target."""
        return cropped(self.size(scale).image, training=split == "train", seed=seed)

    def model(self, scale: float) -> Any:
        """Return the compiled model, with momentum and three drops of the learning rate to a tenth."""
        plan, top = self.plan(scale), rate(0.02, 0.1 * _BATCH / 256, scale)
        falls = [plan.steps * epoch // 90 for epoch in (30, 60, 80)]
        steps = keras.optimizers.schedules.PiecewiseConstantDecay(falls, [top, top / 10, top / 100, top / 1000])
        model = classifier(self.size(scale), self.factory(scale).classes)
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(steps, momentum=0.9), crossentropy, metrics=["accuracy"])
        return model


def classifier(size: Size, classes: int) -> Any:
    """Return ResNet as a classifier: logits of shape (batch, classes)."""
    image = keras.Input((size.image, size.image, 3), name="image")
    last = backbone(image, size)[-1]
    pooled = keras.layers.GlobalAveragePooling2D()(last)
    logits = keras.layers.Dense(classes, name="classes")(pooled)
    return keras.Model(image, logits, name="resnet")


def backbone(image: Any, size: Size) -> list[Any]:
    """Return the outputs of the four stages: a quarter of the image's side at most, then half of the stage before."""
    hidden = convolved(image, size.filters, 7, stride=size.stem, name="stem")
    hidden = keras.layers.MaxPooling2D(3, strides=2, padding="same")(hidden)
    outputs = []
    for stage, count in enumerate(size.blocks):
        for number in range(count):
            stride = 2 if stage and not number else 1
            hidden = _block(
                hidden, size.filters * 2**stage, stride, first=not number, name=f"stage_{stage}_block_{number}"
            )
        outputs.append(hidden)
    return outputs


def convolved(hidden: Any, filters: int, kernel: int, *, stride: int = 1, relu: bool = True, name: str) -> Any:
    """Return a convolution without bias, with batch normalisation."""
    convolution = keras.layers.Conv2D(
        filters, kernel, strides=stride, padding="same", use_bias=False, kernel_initializer="he_normal", name=name
    )
    hidden = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(convolution(hidden))
    return keras.ops.relu(hidden) if relu else hidden


def _block(hidden: Any, filters: int, stride: int, *, first: bool, name: str) -> Any:
    """Return a bottleneck block: convolutions of 1x1, 3x3 and 1x1, the last with four times the filters."""
    wide, shortcut = 4 * filters, hidden
    if first:
        shortcut = convolved(hidden, wide, 1, stride=stride, relu=False, name=f"{name}_beside")
    hidden = convolved(hidden, filters, 1, name=f"{name}_1")
    hidden = convolved(hidden, filters, 3, stride=stride, name=f"{name}_2")
    hidden = convolved(hidden, wide, 1, relu=False, name=f"{name}_3")
    return keras.ops.relu(shortcut + hidden)
