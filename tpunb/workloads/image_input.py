"""What the image models read: records parsed, decoded, cropped, resized and turned over."""

from __future__ import annotations

from typing import Any

from tpunb.workloads.records import Decode

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's colours, from 0 to 255."""

_MARGIN = 32  # pixels around the centre that is read in evaluation


def cropped(size: int, *, training: bool, seed: int) -> Decode:
    """Return what turns a record of `tpunb.workloads.images.Images` into ResNet's input and a label.

    In training a part of the image at random is decoded (8 to 100 % of it), resized and turned over every other time;
    in evaluation its centre. The input is float32 of shape (size, size, 3).
    """
    import tensorflow as tf

    def prepare(number: Any, record: Any) -> tuple[Any, Any]:
        encoded, label = _labelled(record)
        draw = tf.stack([tf.cast(seed, tf.int64), number])
        shape = tf.image.extract_jpeg_shape(encoded)
        window = _part(shape, draw) if training else _centre(shape, size)
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.resize(image, [size, size], method="bicubic")
        if training:
            image = tf.image.stateless_random_flip_left_right(image, draw)
        return normal(tf.ensure_shape(image, [size, size, 3])), label

    return prepare


def small(height: int, width: int, channels: int) -> Decode:
    """Return what turns a record of `tpunb.workloads.images.Images` into an image alone, from -1 to 1.

    The label goes with it, and is not used: DCGAN learns from images.
    """
    import tensorflow as tf

    def decode(_: Any, record: Any) -> tuple[Any, Any]:
        encoded, label = _labelled(record)
        image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        return tf.cast(tf.ensure_shape(image, [height, width, channels]), tf.float32) / 127.5 - 1, label

    return decode


def normal(image: Any) -> Any:
    """Return an image less ImageNet's mean colour, in its deviations."""
    import tensorflow as tf

    return (tf.cast(image, tf.float32) - tf.constant(MEAN)) / tf.constant(DEVIATION)


def _labelled(record: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    told = tf.io.parse_single_example(record, features)
    return told["image/encoded"], tf.cast(told["image/class/label"], tf.int32)


def _part(shape: Any, draw: Any) -> Any:
    """Return a window at random: top, left, height, width."""
    import tensorflow as tf

    whole = tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4])
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape, whole, draw, min_object_covered=0.1, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0)
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


def _centre(shape: Any, size: int) -> Any:
    """Return the window in the middle, less a margin: top, left, height, width."""
    import tensorflow as tf

    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.cast(shorter * size / (size + _MARGIN), tf.int32)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
