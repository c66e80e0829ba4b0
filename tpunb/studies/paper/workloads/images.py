"""Synthetic images with the sizes of the real datasets: smooth backgrounds, grain, and ellipses.

Labels can be learned: ellipses of a class have one hue.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.records import example

_GRAIN = 10.0  # of 255; makes files as large as those of photographs


@dataclass(frozen=True)
class Images:
    """Images with a class: the shape of ImageNet, CIFAR-10 and MNIST; `height` and `width` in pixels."""

    height: int
    width: int
    classes: int
    channels: int = 3  # or 1 for grey
    file: str = "jpeg"  # or "png"

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``image/encoded`` and ``image/class/label``, from 0."""
        while True:
            label = int(numbers.integers(self.classes))
            image = backdrop(numbers, self.height, self.width)
            for _ in range(3):
                paint(image, _random_box(numbers, self.height, self.width), hue(label, self.classes, numbers))
            data = encoded(image, numbers, self.channels, self.file)
            yield example({"image/encoded": data, "image/class/label": label})


@dataclass(frozen=True)
class Scenes:
    """Images with objects in boxes: the shape of COCO; `height`, `width` in pixels, `classes` of objects."""

    height: int
    width: int
    classes: int

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``image/encoded``, ``image/object/bbox/ymin`` and so on.

        Edges are relative to the image, and ``image/object/class/label`` starts at 1, as in the real records.
        """
        while True:
            image = backdrop(numbers, self.height, self.width)
            count = int(np.clip(numbers.poisson(7), 1, 20))  # the mean of COCO
            boxes = [_random_box(numbers, self.height, self.width) for _ in range(count)]
            labels = [int(label) for label in numbers.integers(self.classes, size=count)]
            for box, label in zip(boxes, labels, strict=True):
                paint(image, box, hue(label, self.classes, numbers))
            edges = np.array(boxes) / np.array([self.height, self.width] * 2)
            named = zip(("ymin", "xmin", "ymax", "xmax"), edges.T.tolist(), strict=True)
            yield example(
                {
                    "image/encoded": encoded(image, numbers, 3, "jpeg"),
                    "image/object/class/label": [label + 1 for label in labels],
                    **{f"image/object/bbox/{name}": values for name, values in named},
                }
            )


def backdrop(numbers: np.random.Generator, height: int, width: int) -> Any:
    """Return a smooth image from 0 to 255, float32 of shape (height, width, 3)."""
    coarse = numbers.uniform(60, 196, size=(6, 8, 3)).astype("float32")
    rows, columns = _interpolation(height, 6), _interpolation(width, 8)
    return np.einsum("hr,rcd,wc->hwd", rows, coarse, columns, optimize=True).astype("float32")


def paint(image: Any, box: tuple[float, float, float, float], colour: Any) -> None:
    """Fill the ellipse in a box (ymin, xmin, ymax, xmax, in pixels) with a colour."""
    top, left, bottom, right = box
    rows = np.arange(int(top), int(np.ceil(bottom)))[: image.shape[0]]
    columns = np.arange(int(left), int(np.ceil(right)))[: image.shape[1]]
    across = (columns + 0.5 - (left + right) / 2) / ((right - left) / 2)
    down = (rows + 0.5 - (top + bottom) / 2) / ((bottom - top) / 2)
    inside = (down[:, None] ** 2 + across[None] ** 2) < 1
    part = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    part[inside] = colour


def hue(label: int, classes: int, numbers: np.random.Generator) -> Any:
    """Return a colour from 0 to 255, with the hue of the class and a random brightness."""
    return 255 * np.array(colorsys.hsv_to_rgb(label / classes, 0.9, numbers.uniform(0.6, 1.0)), "float32")


def encoded(image: Any, numbers: np.random.Generator, channels: int, file: str) -> bytes:
    """Return an image with grain as a JPEG or PNG file."""
    grain = numbers.standard_normal(image.shape[:2], dtype="float32")[..., None] * _GRAIN
    pixels = np.clip(image + grain, 0, 255).astype("uint8")
    if channels == 1:
        pixels = pixels.max(2, keepdims=True)
    data = tf.io.encode_png(pixels) if file == "png" else tf.io.encode_jpeg(pixels, quality=92)
    return bytes(data.numpy())


def _random_box(numbers: np.random.Generator, height: int, width: int) -> tuple[float, float, float, float]:
    """Return a random box in an image, in pixels."""
    tall, wide = numbers.uniform(0.15, 0.6, size=2) * (height, width)
    top, left = numbers.uniform(0, height - tall), numbers.uniform(0, width - wide)
    return top, left, top + tall, left + wide


def _interpolation(size: int, coarse: int) -> Any:
    """Return the matrix that interpolates `coarse` values linearly to `size`."""
    at = np.linspace(0, coarse - 1, size)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse))).astype("float32")
