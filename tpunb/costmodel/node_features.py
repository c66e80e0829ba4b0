"""Numbers of nodes and configurations by the published description of TpuGraphs.

Phothilimthana et al.: TpuGraphs: A Performance Prediction Dataset on Large Tensor Computational Graphs (2023),
https://arxiv.org/abs/2308.13490; README of https://github.com/google-research-datasets/tpu_graphs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tpunb.io.hlo_graph import Instructions, spans
from tpunb.io.protobuf_table import Ints, Messages, integer, text

Floats32 = npt.NDArray[np.float32]
Padding = Literal[0, -1]

_DIMENSIONS = 6
_TYPES = (
    *("invalid_type", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "bf16"),
    *("c64", "c128", "tuple", "opaque_type", "token"),
)
_NUMBER_OF_TYPE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 15, 18, 13, 14, 17)  # in xla_data.proto
_WINDOW = {  # field of WindowDimension
    **{"size": 1, "stride": 2, "padding_low": 3, "padding_high": 4},
    **{"window_dilation": 5, "base_dilation": 6, "window_reversal": 7},
}
_CONVOLUTION = {  # field of ConvolutionDimensionNumbers, and how many numbers
    **{"input_batch_dim": (7, 0), "input_feature_dim": (8, 0), "input_spatial_dims": (11, 4)},
    **{"kernel_input_feature_dim": (3, 0), "kernel_output_feature_dim": (4, 0), "kernel_spatial_dims": (6, 4)},
    **{"output_batch_dim": (9, 0), "output_feature_dim": (10, 0)},
}
_SLICE, _PAD = {"start": 1, "stride": 3, "limit": 2}, {"edge_padding_low": 1, "edge_padding_high": 2}
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


def _list(name: str, width: int = _DIMENSIONS, ends: tuple[str, ...] = ("sum", "product")) -> list[str]:
    return [f"{name}_{place}" for place in (*range(width), *ends)]


NODE_FEATURES: tuple[str, ...] = (
    "is_root",
    "element_size_in_bits",
    *(f"shape_element_type_is_{name}" for name in _TYPES),
    *_list("shape_dimensions"),
    "shape_tuple_shapes_size",
    "parameter_number",
    *_list("dimensions", ends=()),
    *(each for name in [*_WINDOW][:-1] for each in _list(f"window_{name}")),
    *_list("window_window_reversal", ends=("true_count", "false_count")),
    *(
        each
        for name, (_, width) in _CONVOLUTION.items()
        for each in (
            _list(f"convolution_dim_numbers_{name}", width, ()) if width else [f"convolution_dim_numbers_{name}"]
        )
    ),
    "feature_group_count",
    "batch_group_count",
    *(each for name in _SLICE for each in _list(f"slice_dims_{name}", 2)),
    *_list("dynamic_slice_sizes", 2),
    *(each for name in _PAD for each in _list(f"padding_config_{name}", 2)),
    "is_stable",
    *_list("layout_minor_to_major", ends=()),
)
"""The 140 numbers of a node."""

TILE_FEATURES: tuple[str, ...] = tuple(
    each for name in ("kernel", "output", "input") for each in _list(f"{name}_bounds")
)
"""The 24 numbers of a tile configuration."""

LAYOUT_FEATURES: tuple[str, ...] = tuple(
    each for name in ("output", "input", "kernel") for each in _list(f"{name}_layout", ends=())
)
"""The 18 numbers of the layouts of a node; -1 where a tensor has fewer than 6 dimensions."""


class Numbers:
    """A table of `count` rows that is filled from its first column on."""

    def __init__(self, count: int, width: int, padding: int) -> None:
        self.table: Floats32 = np.zeros((count, width), np.float32)
        self._at, self._padding = 0, padding

    def add(self, *columns: npt.ArrayLike) -> None:
        """Add a column of each, one value a row."""
        for column in columns:
            self.table[:, self._at] = column
            self._at += 1

    def add_list(
        self, owner: Ints, values: Ints, width: int = _DIMENSIONS, *, sums: bool = True, empty: int = 1
    ) -> None:
        """Add the first values of the list of each row, then their sum and product; of no values it is `empty`."""
        count = len(self.table)
        first, length = spans(owner, count)
        place = np.arange(owner.size) - first[owner]
        block = self.table[:, self._at : self._at + width]
        block[:] = self._padding
        inside = place < width
        block[owner[inside], place[inside]] = values[inside]
        self._at += width
        if sums:
            product = np.where(length > 0, 1.0, empty)
            np.multiply.at(product, owner, values)
            self.add(np.bincount(owner, values, count), product)

    def add_flags(self, owner: Ints, values: Ints) -> None:
        """Add the first flags of the list of each row, then how many are set, and how many are not."""
        self.add_list(owner, values != 0, sums=False)
        length = spans(owner, len(self.table))[1]
        added = np.bincount(owner, values != 0, len(self.table))
        self.add(added, length - added)


def node_features(graph: Instructions, padding: Padding = 0) -> Floats32:
    """Return the 140 numbers of the nodes of a graph, shape (n, 140).

    Parameters
    ----------
    graph
        Instructions of one program.
    padding
        Value of the elements of a list that has fewer: 0 as published, or -1, which differs from dimension 0.
    """
    rows, n = graph.rows, graph.n
    shapes = _shape_numbers(graph, padding)[graph.shape]
    names = (integer(9), text(15), text(16), integer(50), integer(58), integer(60), text(21))
    parameter, window, convolution, feature_groups, batch_groups, stable, pad = rows.columns(*names)
    out = Numbers(n, len(NODE_FEATURES), padding)
    out.add(np.isin(np.arange(n), graph.root), np.zeros(n), *shapes[:, :-_DIMENSIONS].T, parameter)
    out.add_list(*rows.numbers(14), sums=False)
    fields = _of_messages(rows.at(window).sub(text(1)), *_WINDOW.values())
    for owner, values in fields[:-1]:
        out.add_list(owner, values)
    out.add_flags(*fields[-1])
    numbers = rows.at(convolution)
    for field, width in _CONVOLUTION.values():
        if width:
            out.add_list(*numbers.numbers(field), width, sums=False)
        else:
            out.add(*numbers.columns(integer(field)))
    out.add(feature_groups, batch_groups)
    for owner, values in _of_messages(rows.sub(text(17)), *_SLICE.values()):
        out.add_list(owner, values, 2)
    out.add_list(*rows.numbers(20), 2)
    for owner, values in _of_messages(rows.at(pad).sub(text(1)), *_PAD.values()):
        out.add_list(owner, values, 2)
    out.add(stable, *shapes[:, -_DIMENSIONS:].T)
    return out.table


def _of_messages(messages: Messages, *fields: int) -> list[tuple[Ints, Ints]]:
    """Return (row, value) of fields of the messages that rows have."""
    return [(messages.parent.astype(np.int64), column) for column in messages.columns(*map(integer, fields))]


def _shape_numbers(graph: Instructions, padding: int) -> Floats32:
    """Return the numbers of distinct shapes: type, dimensions, size of a tuple, layout."""
    shapes = graph.shapes.messages
    kind, layout = shapes.columns(integer(2), text(5))
    out = Numbers(len(shapes), len(_TYPES) + 2 * _DIMENSIONS + 3, padding)
    out.add(*(kind == number for number in _NUMBER_OF_TYPE))
    out.add_list(*shapes.numbers(3))
    out.add(np.bincount(shapes.sub(text(4)).parent, minlength=len(shapes)))
    out.add_list(*shapes.at(layout).numbers(1), sums=False)
    return out.table


def tile_features(kernel: tuple[Ints, Ints], output: tuple[Ints, Ints], given: tuple[Ints, Ints], n: int) -> Floats32:
    """Return the 24 numbers of tile configurations from (configuration, bound) of kernel, output and input."""
    out = Numbers(n, len(TILE_FEATURES), 0)
    for owner, values in (kernel, output, given):
        out.add_list(owner, values, empty=0)
    return out.table


def layout_features(node: Ints, tensor: Ints, dims: tuple[Ints, Ints], n: int) -> Floats32:
    """Return the 18 numbers of the layouts of nodes, shape (n, 18).

    Parameters
    ----------
    node, tensor
        Node, and number 0 to 2 among its tensors, of each tensor.
    dims
        (tensor, dimension) of the layouts, in order.
    n
        Number of nodes.
    """
    of_tensors = Numbers(node.size, _DIMENSIONS, -1)
    of_tensors.add_list(*dims, sums=False)
    out = np.full((n, len(LAYOUT_FEATURES) // _DIMENSIONS, _DIMENSIONS), -1, np.float32)
    out[node, tensor] = of_tensors.table
    return out.reshape(n, len(LAYOUT_FEATURES))
