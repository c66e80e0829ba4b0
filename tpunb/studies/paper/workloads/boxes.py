"""Anchors and their matching to objects: the targets of RetinaNet, computed in the input pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpunb.studies.frameworks import tf

LEVELS = range(3, 8)
"""Levels of the pyramid: level ``n`` has a cell every ``2**n`` pixels."""

PER_CELL = 9
"""Anchors per cell: three sizes, three shapes."""

BACKGROUND, IGNORED = -1, -2
"""Class of an anchor without an object, and of one whose overlap is too small to match."""


def anchors(image: int) -> Any:
    """Return all anchors of a square image: (ymin, xmin, ymax, xmax) in pixels, float32 of shape (anchors, 4)."""
    boxes = []
    for level in LEVELS:
        stride = 2**level
        centres = (np.arange(image // stride) + 0.5) * stride
        at = np.stack(np.meshgrid(centres, centres, indexing="ij"), axis=-1).reshape(-1, 1, 2)
        sizes = 4 * stride * 2 ** (np.arange(3) / 3)
        halves = [(size * shape**0.5 / 2, size / shape**0.5 / 2) for size in sizes for shape in (0.5, 1, 2)]
        boxes.append(np.concatenate([at - halves, at + halves], axis=-1).reshape(-1, 4))
    return np.concatenate(boxes).astype("float32")


def overlaps(first: Any, second: Any) -> Any:
    """Return intersection over union of each pair of boxes, as a tensor (first, second)."""
    begin = tf.maximum(first[:, None, :2], second[None, :, :2])
    end = tf.minimum(first[:, None, 2:], second[None, :, 2:])
    both = tf.reduce_prod(tf.maximum(end - begin, 0), -1)
    areas = [tf.reduce_prod(tf.maximum(boxes[:, 2:] - boxes[:, :2], 0), -1) for boxes in (first, second)]
    return both / tf.maximum(areas[0][:, None] + areas[1][None] - both, 1e-6)


def targets(boxes: Any, labels: Any, all_anchors: Any) -> dict[str, Any]:
    """Return the class of each anchor, and the position of its object relative to it.

    An anchor matches the object with the largest overlap if that is at least 0.5; it is ignored from 0.4. Each object
    also matches the anchor with the largest overlap. The objects, in pixels, may be none.

    The targets are ``class``, int32 of shape (anchors,), and ``box``, float32 of shape (anchors, 5): centre and
    logarithm of size relative to the anchor, and 1; zeros if there is no object.
    """
    boxes = tf.concat([boxes, [[0.0, 0.0, 0.0, 0.0]]], 0)  # a box without overlap, so that there is always one
    labels = tf.concat([labels, [BACKGROUND]], 0)
    overlap = overlaps(all_anchors, boxes)
    best, most = tf.argmax(overlap, 1, output_type=tf.int32), tf.reduce_max(overlap, 1)
    classes = tf.where(most >= 0.5, tf.gather(labels, best), tf.where(most >= 0.4, IGNORED, BACKGROUND))
    forced = tf.argmax(overlap[:, :-1], 0, output_type=tf.int32)
    best = tf.tensor_scatter_nd_update(best, forced[:, None], tf.range(tf.size(forced)))
    classes = tf.tensor_scatter_nd_update(classes, forced[:, None], labels[:-1])
    relative = tf.pad(_relative(tf.gather(boxes, best), all_anchors), [[0, 0], [0, 1]], constant_values=1.0)
    return {"class": classes, "box": tf.where(classes[:, None] >= 0, relative, 0.0)}


def _relative(boxes: Any, all_anchors: Any) -> Any:
    sizes, scales = boxes[:, 2:] - boxes[:, :2], all_anchors[:, 2:] - all_anchors[:, :2]
    moved = (boxes[:, 2:] + boxes[:, :2] - all_anchors[:, 2:] - all_anchors[:, :2]) / 2 / scales
    return tf.concat([moved, tf.math.log(tf.maximum(sizes, 1e-3) / scales)], 1)
