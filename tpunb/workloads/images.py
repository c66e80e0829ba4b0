"""Images with the sizes of the real datasets, smooth and a little grainy as photographs are, each with its class.

What can be learned is the colour and the place of ellipses: those of a class are of one hue.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpunb.workloads.records import example

_GRAIN = 10.0  # of 255; so much that files are as large as photographs' of that size


@dataclass(frozen=True)
class Images:
    """Images of one class each: the shape of ImageNet, CIFAR-10 and MNIST.

    Attributes
    ----------
    height, width
        Pixels.
    classes
        How many labels there are.
    channels
        3, or 1 for grey.
    file
        "jpeg", or "png" where small images are kept as they are.
    """

    height: int
    width: int
    classes: int
    channels: int = 3
    file: str = "jpeg"

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``image/encoded`` and ``image/class/label``, from 0."""
        while True:
            label = int(numbers.integers(self.classes))
            image = backdrop(numbers, self.height, self.width)
            size = (self.height, self.width)
            for _ in range(3):
                paint(image, _anywhere(numbers, *size), hue(label, self.classes, numbers))
            yield example(
                {"image/encoded": encoded(image, numbers, self.channels, self.file), "image/class/label": label}
            )


@dataclass(frozen=True)
class Scenes:
    """Images with some objects each, in boxes: the shape of COCO.

    Attributes
    ----------
    height, width
        Pixels.
    classes
        How many labels there are.
    """

    height: int
    width: int
    classes: int

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``image/encoded``, and of the objects ``image/object/bbox/ymin`` and so on.

        Edges are shares of the image, and ``image/object/class/label`` counts from 1, as in the real records.
        """
        while True:
            image = backdrop(numbers, self.height, self.width)
            count = int(np.clip(numbers.poisson(7), 1, 20))  # COCO has 7 on average
            boxes = [_anywhere(numbers, self.height, self.width) for _ in range(count)]
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
    """Return an image of soft colours, float32 of shape (height, width, 3), from 0 to 255."""
    coarse = numbers.uniform(60, 196, size=(6, 8, 3)).astype("float32")
    rows, columns = _stretching(height, 6), _stretching(width, 8)
    return np.einsum("hr,rcd,wc->hwd", rows, coarse, columns, optimize=True).astype("float32")


def paint(image: Any, box: tuple[float, float, float, float], colour: Any) -> None:
    """Fill the ellipse within a box (ymin, xmin, ymax, xmax, in pixels) of an image with a colour."""
    top, left, bottom, right = box
    rows = np.arange(int(top), int(np.ceil(bottom)))[: image.shape[0]]
    columns = np.arange(int(left), int(np.ceil(right)))[: image.shape[1]]
    across = (columns + 0.5 - (left + right) / 2) / ((right - left) / 2)
    down = (rows + 0.5 - (top + bottom) / 2) / ((bottom - top) / 2)
    inside = (down[:, None] ** 2 + across[None] ** 2) < 1
    part = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    part[inside] = colour


def hue(label: int, classes: int, numbers: np.random.Generator) -> Any:
    """Return a colour of a class, from 0 to 255: its hue is the class, its brightness at random."""
    return 255 * np.array(colorsys.hsv_to_rgb(label / classes, 0.9, numbers.uniform(0.6, 1.0)), "float32")


def encoded(image: Any, numbers: np.random.Generator, channels: int, file: str) -> bytes:
    """Return an image as a JPEG or PNG file, with grain."""
    import tensorflow as tf

    grain = numbers.standard_normal(image.shape[:2], dtype="float32")[..., None] * _GRAIN
    pixels = np.clip(image + grain, 0, 255).astype("uint8")
    if channels == 1:
        pixels = pixels.max(2, keepdims=True)
    made = tf.io.encode_png(pixels) if file == "png" else tf.io.encode_jpeg(pixels, quality=92)
    return bytes(made.numpy())


def _anywhere(numbers: np.random.Generator, height: int, width: int) -> tuple[float, float, float, float]:
    """Return a box within an image, in pixels."""
    tall, wide = numbers.uniform(0.15, 0.6, size=2) * (height, width)
    top, left = numbers.uniform(0, height - tall), numbers.uniform(0, width - wide)
    return top, left, top + tall, left + wide


def _stretching(size: int, coarse: int) -> Any:
    """Return the matrix that stretches `coarse` values to `size`, linearly between them."""
    at = np.linspace(0, coarse - 1, size)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse))).astype("float32")
