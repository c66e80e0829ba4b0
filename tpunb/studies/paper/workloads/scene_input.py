"""Input of RetinaNet: images are decoded, resized, cropped and flipped with their boxes, and targets computed."""

from __future__ import annotations

from typing import Any

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.boxes import anchors, targets
from tpunb.studies.paper.workloads.image_input import normalised
from tpunb.studies.paper.workloads.records import Decode

_SMALLEST = 4.0  # pixels per side; smaller objects are dropped


def scenes(size: int, *, training: bool, seed: int) -> Decode:
    """Return the function from a record of `Scenes` to RetinaNet's input and targets.

    The image fits a black square, float32 of (size, size, 3); training scales it by 0.8 to 1.2, crops and flips it.
    """
    all_anchors = tf.constant(anchors(size))

    def prepare(number: Any, record: Any) -> tuple[Any, Any]:
        encoded, boxes, labels = _objects(record)
        draws = tf.random.stateless_uniform([4], tf.stack([tf.cast(seed, tf.int64), number]))
        image = normalised(tf.io.decode_jpeg(encoded, channels=3))
        if training and draws[0] < 0.5:
            image = tf.reverse(image, [1])
            boxes = tf.stack([boxes[:, 0], 1 - boxes[:, 3], boxes[:, 2], 1 - boxes[:, 1]], 1)
        factor = 0.8 + 0.4 * draws[1] if training else 1.0
        image, boxes = _fitted(image, boxes, size, factor, draws[2:])
        boxes = tf.clip_by_value(boxes, 0.0, float(size))
        visible = tf.reduce_all(boxes[:, 2:] - boxes[:, :2] >= _SMALLEST, 1)
        return image, targets(tf.boolean_mask(boxes, visible), tf.boolean_mask(labels, visible), all_anchors)

    return prepare


def _objects(record: Any) -> tuple[Any, Any, Any]:
    """Return the encoded image, relative boxes (ymin, xmin, ymax, xmax), and their labels from 0."""
    edges = [f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax")]
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/object/class/label": tf.io.VarLenFeature(tf.int64),
        **{edge: tf.io.VarLenFeature(tf.float32) for edge in edges},
    }
    parsed = tf.io.parse_single_example(record, features)
    boxes = tf.stack([parsed[edge].values for edge in edges], 1)
    return parsed["image/encoded"], boxes, tf.cast(parsed["image/object/class/label"].values, tf.int32) - 1


def _fitted(image: Any, boxes: Any, size: int, factor: Any, draws: Any) -> tuple[Any, Any]:
    """Return the image in a square and its boxes in pixels, scaled by `factor` from what fits."""
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    sides = tf.maximum(tf.cast(shape * factor * size / tf.reduce_max(shape), tf.int32), 1)
    begin = tf.cast(draws * tf.cast(tf.maximum(sides - size, 0) + 1, tf.float32), tf.int32)
    image = tf.image.resize(image, sides)[begin[0] : begin[0] + size, begin[1] : begin[1] + size]
    image = tf.image.pad_to_bounding_box(image, 0, 0, size, size)
    shift = tf.cast(tf.tile(begin, [2]), tf.float32)
    return tf.ensure_shape(image, [size, size, 3]), boxes * tf.cast(tf.tile(sides, [2]), tf.float32) - shift
