"""Numbers of nodes and configurations by the published description of TpuGraphs.

Phothilimthana et al.: TpuGraphs: A Performance Prediction Dataset on Large Tensor Computational Graphs (2023),
https://arxiv.org/abs/2308.13490; README of https://github.com/google-research-datasets/tpu_graphs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tpunb.costs.hlo_graph import Instructions, spans
from tpunb.protobuf.table import Ints, Messages, integer, text

Floats32 = npt.NDArray[np.float32]
Padding = Literal[0, -1]

_TYPES = {  # number in xla_data.proto
    **{"invalid_type": 0, "pred": 1, "s8": 2, "s16": 3, "s32": 4, "s64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9},
    **{"f16": 10, "f32": 11, "f64": 12, "bf16": 16, "c64": 15, "c128": 18, "tuple": 13, "opaque_type": 14, "token": 17},
}
_WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")  # fields 1 to 6
_CONVOLUTION = {  # field, and 4 of a list
    **{"input_batch_dim": (7, 0), "input_feature_dim": (8, 0), "input_spatial_dims": (11, 4)},
    **{"kernel_input_feature_dim": (3, 0), "kernel_output_feature_dim": (4, 0), "kernel_spatial_dims": (6, 4)},
    **{"output_batch_dim": (9, 0), "output_feature_dim": (10, 0)},
}
_OPCODES = """abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad batch-norm-inference
batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky clamp collective-permute count-leading-zeros
compare complex concatenate conditional constant convert convolution copy copy-done copy-start cosine custom-call divide
domain dot dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor fusion gather
get-dimension-size set-dimension-size get-tuple-element imag infeed iota is-finite log log-plus-one and not or xor map
maximum minimum multiply negate outfeed pad parameter partition-id popcnt power real recv recv-done reduce
reduce-precision reduce-window remainder replica-id reshape reverse rng rng-get-and-update-state rng-bit-generator
round-nearest-afz rsqrt scatter select select-and-scatter send send-done shift-left shift-right-arithmetic
shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose triangular-solve tuple tuple-select while
cbrt all-gather collective-permute-start collective-permute-done logistic dynamic-reshape all-reduce-start
all-reduce-done reduce-scatter all-gather-start all-gather-done opt-barrier async-start async-update async-done
round-nearest-even stochastic-convert tan"""
OPCODES = {name: number for number, name in enumerate(_OPCODES.split(), 1)}
"""The dataset's number of each opcode; 0 is any other."""


def _names(*lists: str, of: int = 6, ends: str = "sum product") -> list[str]:
    return [f"{name}_{place}" for name in lists for place in (*range(of), *ends.split())]


NODE_FEATURES: tuple[str, ...] = (
    *("is_root", "element_size_in_bits", *(f"shape_element_type_is_{name}" for name in _TYPES)),
    *(*_names("shape_dimensions"), "shape_tuple_shapes_size", "parameter_number", *_names("dimensions", ends="")),
    *_names(*(f"window_{name}" for name in _WINDOW)),
    *_names("window_window_reversal", ends="true_count false_count"),
    *(
        name
        for field, (_, of) in _CONVOLUTION.items()
        for name in (_names(field, of=of, ends="") if of else [field])
        for name in [f"convolution_dim_numbers_{name}"]
    ),
    *("feature_group_count", "batch_group_count"),
    *_names("slice_dims_start", "slice_dims_stride", "slice_dims_limit", "dynamic_slice_sizes", of=2),
    *_names("padding_config_edge_padding_low", "padding_config_edge_padding_high", of=2),
    *("is_stable", *_names("layout_minor_to_major", ends="")),
)
"""The 140 numbers of a node."""

TILE_FEATURES: tuple[str, ...] = tuple(_names("kernel_bounds", "output_bounds", "input_bounds"))
"""The 24 numbers of a tile configuration."""

LAYOUT_FEATURES: tuple[str, ...] = tuple(_names("output_layout", "input_layout", "kernel_layout", ends=""))
"""The 18 numbers of the layouts of a node; -1 where a tensor has fewer than 6 dimensions."""


class Numbers:
    """Columns of numbers of `count` rows."""

    def __init__(self, count: int, padding: int) -> None:
        self._count, self._padding = count, padding
        self._columns: list[npt.NDArray[np.float32]] = []

    @property
    def table(self) -> Floats32:
        """The columns side by side."""
        return np.concatenate(self._columns, axis=1)

    def add(self, *columns: npt.ArrayLike) -> None:
        """Add a column of each, one value a row."""
        self._columns.append(np.stack([np.asarray(column) for column in columns], axis=1).astype(np.float32))

    def add_list(self, owner: Ints, values: Ints, of: int = 6, *, sums: bool = True, empty: int = 1) -> None:
        """Add the first values of the list of each row, then their sum and product; of no values it is `empty`."""
        first, length = spans(owner, self._count)
        place = np.arange(owner.size) - first[owner]
        inside = place < of
        block = np.full((self._count, of), self._padding, np.float32)
        block[owner[inside], place[inside]] = values[inside]
        self._columns.append(block)
        if sums:
            product = np.where(length > 0, 1.0, empty)
            np.multiply.at(product, owner, values)
            self.add(np.bincount(owner, values, self._count), product)


def node_features(graph: Instructions, padding: Padding = 0) -> Floats32:
    """Return the 140 numbers of the nodes of a graph, (n, 140).

    `padding` stands for the elements that a list lacks: 0 as published, or -1, which differs from dimension 0.
    """
    rows, n = graph.rows, graph.n
    shapes = _shape_numbers(graph, padding)[graph.shape]
    fields = (integer(9), text(15), text(16), integer(50), integer(58), integer(60), text(21))
    parameter, window, convolution, *groups, stable, pad = rows.columns(*fields)
    out = Numbers(n, padding)
    out.add(np.isin(np.arange(n), graph.root), np.zeros(n), *shapes[:, :-6].T, parameter)
    out.add_list(*rows.numbers(14), sums=False)
    windows = rows.at(window).sub(text(1))
    for values in _lists(windows, *range(1, len(_WINDOW) + 1)):
        out.add_list(*values)
    ((owner, reversed_),) = _lists(windows, 7)
    out.add_list(owner, reversed_, sums=False)
    count = np.bincount(owner, reversed_, n)
    out.add(count, spans(owner, n)[1] - count)
    numbers = rows.at(convolution)
    for field, of in _CONVOLUTION.values():
        if of:
            out.add_list(*numbers.numbers(field), of, sums=False)
        else:
            out.add(*numbers.columns(integer(field)))
    out.add(*groups)
    for values in (*_lists(rows.sub(text(17)), 1, 3, 2), rows.numbers(20), *_lists(rows.at(pad).sub(text(1)), 1, 2)):
        out.add_list(*values, 2)
    out.add(stable, *shapes[:, -6:].T)
    return out.table


def _lists(messages: Messages, *fields: int) -> list[tuple[Ints, Ints]]:
    """Return (row, value) of fields of the messages that rows have."""
    return [(messages.parent.astype(np.int64), column) for column in messages.columns(*map(integer, fields))]


def _shape_numbers(graph: Instructions, padding: int) -> Floats32:
    """Return the numbers of distinct shapes: type, dimensions, size of a tuple, layout."""
    shapes = graph.shapes.messages
    kind, layout = shapes.columns(integer(2), text(5))
    out = Numbers(len(shapes), padding)
    out.add(*(kind == number for number in _TYPES.values()))
    out.add_list(*shapes.numbers(3))
    out.add(np.bincount(shapes.sub(text(4)).parent, minlength=len(shapes)))
    out.add_list(*shapes.at(layout).numbers(1), sums=False)
    return out.table


def tile_features(bounds: Messages, n: int) -> Floats32:
    """Return the 24 numbers of tile configurations, shape (n, 24), from a ``TileSizeConfig`` of each row or less."""
    out = Numbers(n, 0)
    for field in (1, 2, 3):
        owner, values = bounds.numbers(field)
        out.add_list(bounds.parent[owner].astype(np.int64), values, empty=0)
    return out.table


def layout_features(nodes: Messages) -> Floats32:
    """Return the 18 numbers of the layouts of nodes, shape (n, 18), from a ``NodeLayoutConfig`` each."""
    tensors = nodes.sub(text(1))
    of_tensors = Numbers(len(tensors), -1)
    of_tensors.add_list(*tensors.numbers(1), sums=False)
    out = np.full((len(nodes), 3, 6), -1, np.float32)
    node = tensors.parent.astype(np.int64)
    out[node, np.arange(node.size) - np.searchsorted(node, node)] = of_tensors.table
    return out.reshape(len(nodes), len(LAYOUT_FEATURES))
