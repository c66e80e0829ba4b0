"""Columns of graphs of programs, their configurations, rankings and evaluations."""

from __future__ import annotations

import polars as pl

from tpunb.schema import NAME, PART, Column, frame

_INT, _FLOAT, _TEXT = pl.Int64(), pl.Float64(), pl.String()

NODES = frame(
    "NODES",
    "One row per node of the graph of a compiled program: an HLO instruction, in the order of the program.",
    __name__,
    node=Column(_INT, "Number of the node, from 0."),
    computation=Column(_INT, "Number of the computation of the node, from 0."),
    hlo_op=Column(NAME, "Name of the HLO instruction."),
    opcode=Column(NAME, 'Opcode of the HLO instruction, such as "dot".'),
    dtype=Column(NAME, 'Data type of the result, such as "bf16" or "tuple", or null.'),
    dims=Column(pl.List(pl.Int64()), "Dimensions of the result, empty for a scalar or a tuple."),
    layout=Column(NAME, 'Order of the dimensions in memory, minor to major, with tiles, such as "{1,0:T(8,128)}".'),
    window=Column(NAME, 'Window of a convolution or a reduction, such as "size=3x3 pad=1_1x1_1", or null.'),
    dimension_numbers=Column(NAME, 'Dimension numbers of a convolution or a product, such as "b01f_01io->b01f".'),
    layer=Column(NAME, 'Layer of the model, "mixed" for a fusion of several, or null.'),
    part=PART,
    self_ps=Column(_INT, "Self time in the capture in picoseconds, null if no event of the capture is of the node."),
)

EDGES = frame(
    "EDGES",
    "One row per pair of nodes of which one uses the result of the other.",
    __name__,
    consumer=Column(_INT, "Number of the node that uses the result."),
    producer=Column(_INT, "Number of the node whose result is used, of a called computation its root."),
    kind=Column(pl.Enum(["operand", "call"]), 'What links the nodes: "operand", or "call" of a computation.'),
)

COMPUTATIONS = frame(
    "COMPUTATIONS",
    "One row per computation of a compiled program, in its order.",
    __name__,
    computation=Column(_INT, "Number of the computation, from 0."),
    name=Column(_TEXT, "Name of the computation."),
    entry=Column(pl.Boolean(), "Whether a run of the program begins with it."),
    first=Column(_INT, "Number of its first node."),
    nodes=Column(_INT, "Number of its nodes."),
    root=Column(_INT, "Number of the node whose result it returns, or null."),
)

CONFIGURATIONS = frame(
    "CONFIGURATIONS",
    "One row per measured configuration of a graph.",
    __name__,
    configuration=Column(_INT, "Number of the configuration, from 0."),
    layouts=Column(pl.List(pl.List(pl.Int64())), "Order of the dimensions of each argument, major to minor, or null."),
    options=Column(_TEXT, "Compile options as JSON, or null."),
    default=Column(pl.Boolean(), "Whether it is the compiler's default, or null."),
    auto=Column(pl.Boolean(), "Whether the compiler chose these layouts when it could choose, or null."),
    equal=Column(_TEXT, 'Equality of the outputs with those of the default: "bitwise", "close", or null.'),
    time_ps=Column(_INT, "Time of a run, the median of the rounds, in picoseconds."),
    low_ps=Column(_INT, "Lower end of the 95 % interval of the time in picoseconds, or null."),
    high_ps=Column(_INT, "Upper end of the 95 % interval of the time in picoseconds, or null."),
    default_ps=Column(_INT, "Time of the default on the same machine in picoseconds, or null."),
    rounds_ps=Column(pl.List(pl.Int64()), "Time in each round in picoseconds, or null."),
    bytes=Column(_FLOAT, "Bytes that the compiled program reads and writes, by XLA's rules, or null."),
    tile=Column(_FLOAT, "Elements of the output tile, or null."),
)

RANKED = frame(
    "RANKED",
    "One row per configuration of a function, in the order in which a cost model would time them.",
    __name__,
    rank=Column(_INT, "Rank by the model, from 1."),
    configuration=Column(_INT, "Number of the configuration, 0 for the default."),
    predicted=Column(_FLOAT, "Prediction of the model, of which only the order counts."),
    layouts=Column(pl.List(pl.List(pl.Int64())), "Order of the dimensions of each argument, major to minor."),
    options=Column(_TEXT, "Compile options as JSON, or null."),
    default=Column(pl.Boolean(), "Whether it is the compiler's default."),
    auto=Column(pl.Boolean(), "Whether the compiler chose these layouts when it could choose, or null."),
    equal=Column(_TEXT, 'Equality of the outputs with those of the default: "bitwise", "close", null if not timed.'),
    time_ps=Column(_INT, "Median time of a run in picoseconds, null if not timed."),
    ratio=Column(_FLOAT, "Time of the default by that of the configuration, the median of rounds, null if not timed."),
    low=Column(_FLOAT, "Lower end of the interval of the ratio, of which all hold together at 95 %."),
    high=Column(_FLOAT, "Upper end of the interval of the ratio, or null."),
)

_TOP = {f"top{k}": f"the best of the first {k} in its order is slower than the fastest" for k in (1, 3, 5, 10)}

JUDGED = frame(
    "JUDGED",
    "One row per (graph, method) of an evaluation.",
    __name__,
    name=Column(_TEXT, "Name of the graph."),
    family=Column(_TEXT, "Name of its family."),
    method=Column(
        _TEXT, 'Method: "model", "bytes moved", "largest tile", "default", "AUTO", "random", "repeat ceiling".'
    ),
    configurations=Column(_INT, "Number of configurations."),
    tau=Column(_FLOAT, "Kendall's tau of its order and the measured one, -1 to 1, null for a single configuration."),
    **{name: Column(_FLOAT, f"How much {text}: 0.01 is 1 %.") for name, text in _TOP.items()},
)

EVALUATION = frame(
    "EVALUATION",
    "One row per method of an evaluation, as means over graphs.",
    __name__,
    method=Column(_TEXT, 'Method, such as "model", "default" or "repeat ceiling".'),
    graphs=Column(_INT, "Number of graphs."),
    **{
        f"{name}{end}": Column(_FLOAT, sentence.format(text))
        for name, text in {"tau": "Kendall's tau, -1 to 1", **{name: f"the error {name}" for name in _TOP}}.items()
        for end, sentence in {
            "": "Mean of {}.",
            "_low": "Lower end of the 95 % interval of the mean of {}.",
            "_high": "Upper end of the 95 % interval of the mean of {}.",
        }.items()
    },
)
