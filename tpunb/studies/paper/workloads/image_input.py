"""Input of the image models: records are parsed, decoded, cropped, resized and flipped."""

from __future__ import annotations

from typing import Any

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.records import Decode

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and standard deviation of the colours of ImageNet, from 0 to 255."""

_MARGIN = 32  # pixels around the centre crop of evaluation


def cropped(size: int, *, training: bool, seed: int) -> Decode:
    """Return the function from a record of `Images` to ResNet's input and a label.

    The input is float32 of (size, size, 3): of a random crop of 8 to 100 % in training, half flipped; else the centre.
    """

    def prepare(number: Any, record: Any) -> tuple[Any, Any]:
        encoded, label = _labelled(record)
        draw = tf.stack([tf.cast(seed, tf.int64), number])
        shape = tf.image.extract_jpeg_shape(encoded)
        window = _random_crop(shape, draw) if training else _centre(shape, size)
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.resize(image, [size, size], method="bicubic")
        if training:
            image = tf.image.stateless_random_flip_left_right(image, draw)
        return normalised(tf.ensure_shape(image, [size, size, 3])), label

    return prepare


def small(height: int, width: int, channels: int) -> Decode:
    """Return the function from a record of `Images` to an image from -1 to 1 and a label."""

    def decode(_: Any, record: Any) -> tuple[Any, Any]:
        encoded, label = _labelled(record)
        image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        return tf.cast(tf.ensure_shape(image, [height, width, channels]), tf.float32) / 127.5 - 1, label

    return decode


def normalised(image: Any) -> Any:
    """Return an image normalised by the mean and deviation of ImageNet."""
    return (tf.cast(image, tf.float32) - tf.constant(MEAN)) / tf.constant(DEVIATION)


def _labelled(record: Any) -> tuple[Any, Any]:
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    return parsed["image/encoded"], tf.cast(parsed["image/class/label"], tf.int32)


def _random_crop(shape: Any, draw: Any) -> Any:
    """Return a random crop: top, left, height, width."""
    whole = tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4])
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape, whole, draw, min_object_covered=0.1, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0)
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


def _centre(shape: Any, size: int) -> Any:
    """Return the centre crop without the margin: top, left, height, width."""
    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.cast(shorter * size / (size + _MARGIN), tf.int32)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
