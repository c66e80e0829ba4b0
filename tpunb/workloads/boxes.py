"""Anchors, and which of them is to find which object: RetinaNet's targets, computed in the input pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np

LEVELS = range(3, 8)
"""Of the pyramid: level ``n`` has a cell every ``2**n`` pixels."""

PER_CELL = 9
"""Anchors at each cell: three sizes, three shapes."""

BACKGROUND, IGNORED = -1, -2
"""The class of an anchor that has no object, and of one that is close to having one."""


def anchors(image: int) -> Any:
    """Return all anchors of a square image: (ymin, xmin, ymax, xmax) in pixels, float32 of shape (anchors, 4)."""
    found = []
    for level in LEVELS:
        stride = 2**level
        centres = (np.arange(image // stride) + 0.5) * stride
        at = np.stack(np.meshgrid(centres, centres, indexing="ij"), axis=-1).reshape(-1, 1, 2)
        sizes = 4 * stride * 2 ** (np.arange(3) / 3)
        halves = [(size * shape**0.5 / 2, size / shape**0.5 / 2) for size in sizes for shape in (0.5, 1, 2)]
        found.append(np.concatenate([at - halves, at + halves], axis=-1).reshape(-1, 4))
    return np.concatenate(found).astype("float32")


def overlaps(some: Any, others: Any) -> Any:
    """Return intersection over union of each box with each other, as TensorFlow's tensor (some, others)."""
    import tensorflow as tf

    begin = tf.maximum(some[:, None, :2], others[None, :, :2])
    end = tf.minimum(some[:, None, 2:], others[None, :, 2:])
    both = tf.reduce_prod(tf.maximum(end - begin, 0), -1)
    areas = [tf.reduce_prod(tf.maximum(boxes[:, 2:] - boxes[:, :2], 0), -1) for boxes in (some, others)]
    return both / tf.maximum(areas[0][:, None] + areas[1][None] - both, 1e-6)


def targets(boxes: Any, labels: Any, all_anchors: Any) -> dict[str, Any]:
    """Return the class of each anchor, and how its object lies to it.

    An anchor has the object that it overlaps most, by 0.5 or more; from 0.4 on it is ignored; each object has the
    anchor that overlaps it most in any case.

    Parameters
    ----------
    boxes, labels
        Of the objects of an image, in pixels; maybe none.
    all_anchors
        As `anchors` gives them.

    Returns
    -------
    dict
        ``class``, int32 of shape (anchors,), and ``box``, float32 of shape (anchors, 5): centre and logarithm of size,
        in sizes of the anchor, and 1; all zeros where there is no object.
    """
    import tensorflow as tf

    boxes = tf.concat([boxes, [[0.0, 0.0, 0.0, 0.0]]], 0)  # one that overlaps nothing: there is always one
    labels = tf.concat([labels, [BACKGROUND]], 0)
    overlap = overlaps(all_anchors, boxes)
    best, most = tf.argmax(overlap, 1, output_type=tf.int32), tf.reduce_max(overlap, 1)
    kind = tf.where(most >= 0.5, tf.gather(labels, best), tf.where(most >= 0.4, IGNORED, BACKGROUND))
    owned = tf.argmax(overlap[:, :-1], 0, output_type=tf.int32)
    best = tf.tensor_scatter_nd_update(best, owned[:, None], tf.range(tf.size(owned)))
    kind = tf.tensor_scatter_nd_update(kind, owned[:, None], labels[:-1])
    found = tf.pad(_relative(tf.gather(boxes, best), all_anchors), [[0, 0], [0, 1]], constant_values=1.0)
    return {"class": kind, "box": tf.where(kind[:, None] >= 0, found, 0.0)}


def _relative(boxes: Any, all_anchors: Any) -> Any:
    import tensorflow as tf

    sizes, own = boxes[:, 2:] - boxes[:, :2], all_anchors[:, 2:] - all_anchors[:, :2]
    moved = (boxes[:, 2:] + boxes[:, :2] - all_anchors[:, 2:] - all_anchors[:, :2]) / 2 / own
    return tf.concat([moved, tf.math.log(tf.maximum(sizes, 1e-3) / own)], 1)
