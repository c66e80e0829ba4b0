"""Compiled programs as graphs: nodes, edges and computations, and the numbers that TpuGraphs has of each node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.costs import hlo
from tpunb.costs.hlo_graph import Instructions, grouped, spans
from tpunb.errors import BadProfile, TpunbError, wrong_type
from tpunb.frames import Profile
from tpunb.io import hlo_names
from tpunb.protobuf.table import Ints, Messages, integer, text
from tpunb.step_stats import ops
from tpunb.studies.ranking.columns import COMPUTATIONS, EDGES, NODES
from tpunb.studies.ranking.node_features import OPCODES, Floats32, Padding, node_features
from tpunb.text import plain, plural

# tags of xla/service/hlo.proto and xla/xla_data.proto
_MODULE, _COMPUTATIONS, _INSTRUCTIONS = text(1), text(3), text(2)
_NAME, _LAYOUT, _WINDOW, _CONVOLUTION, _DOT = text(1), text(5), text(15), text(16), text(30)
_ENTRY, _COMPUTATION_ID = integer(6), integer(5)
_SPACE, _TILES = integer(8), text(6)
_DOT_FIELDS = {"lhs_batch_dims": 3, "lhs_contracting_dims": 1, "rhs_batch_dims": 4, "rhs_contracting_dims": 2}
_SIDES = (("b", 7, "f", 8, 11), ("i", 3, "o", 4, 6), ("b", 9, "f", 10, 12))  # of a convolution: input, kernel, output


@dataclass(frozen=True, eq=False, repr=False)
class ProgramGraph:
    """Graph of a compiled program; an edge leads from a node to one whose result it uses.

    Parameters
    ----------
    name
        Name of the program.
    protos
        The program, as one ``HloProto``.
    self_times
        Self time of instructions in picoseconds, by their names; empty without a capture.
    """

    name: str
    protos: Messages
    self_times: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def instructions(self) -> Instructions:
        """The instructions as columns."""
        return Instructions(self.protos)

    @cached_property
    def nodes(self) -> pl.DataFrame:
        """The instructions: ``NODES``."""
        graph = self.instructions
        rows, shapes = graph.rows, graph.shapes.messages
        kind, layout = shapes.columns(integer(2), _LAYOUT)
        dtypes = [hlo.TYPES.get(each, "tuple" if each == hlo.TUPLE else None) for each in kind.tolist()]
        of_shape = {
            "dtype": pl.Series(dtypes, dtype=schema.NAME),
            "dims": pl.Series(grouped(*shapes.numbers(3), len(shapes)), dtype=pl.List(pl.Int64())),
            "layout": pl.Series(_layouts(shapes.at(layout)), dtype=schema.NAME),
        }
        named = hlo_names.ops(self.protos)
        layers = ops.map_names(named["tf_op"], lambda name: hlo_names.place(name)[0])
        names = named["hlo_op"].cast(pl.String)
        times = [self.self_times.get(name) for name in names] if self.self_times else None
        (convolution,) = rows.columns(_CONVOLUTION)
        (dot,) = rows.columns(_DOT)
        numbers = _texts(rows, convolution, _convolution).zip_with(
            pl.Series(convolution > 0), _texts(rows, dot, _products)
        )
        columns = {
            "node": np.arange(graph.n),
            "computation": graph.computation,
            "hlo_op": named["hlo_op"],
            "opcode": pl.Series(graph.opcodes, dtype=schema.NAME).gather(graph.opcode),
            **{name: column.gather(graph.shape) for name, column in of_shape.items()},
            "window": _texts(rows, rows.columns(_WINDOW)[0], _window),
            "dimension_numbers": numbers,
            "layer": layers,
            "part": named["part"],
            "self_ps": pl.Series(times or [None] * graph.n, dtype=pl.Int64),
        }
        return pl.DataFrame(columns, schema=NODES)

    @cached_property
    def edges(self) -> pl.DataFrame:
        """The uses of results, each once and by consumer: ``EDGES``."""
        graph = self.instructions
        inside = graph.operands < graph.n
        roots = np.append(graph.root, graph.n)[graph.callee]
        called = roots < graph.n
        pairs = [
            np.unique(graph.user[inside].astype(np.int64) * graph.n + graph.operands[inside]),
            graph.caller[called].astype(np.int64) * graph.n + roots[called],
        ]
        kind = pl.Series(["operand", "call"], dtype=EDGES["kind"]).gather(np.repeat([0, 1], [*map(len, pairs)]))
        pair = np.concatenate(pairs)
        order = np.argsort(pair, kind="stable")
        columns = {"consumer": pair // max(graph.n, 1), "producer": pair % max(graph.n, 1), "kind": kind}
        return pl.DataFrame(columns, schema=EDGES)[order]

    @cached_property
    def computations(self) -> pl.DataFrame:
        """The computations: ``COMPUTATIONS``."""
        graph, modules = self.instructions, self.protos.sub(_MODULE)
        rows = modules.sub(_COMPUTATIONS)
        ids, names = rows.columns(_COMPUTATION_ID, _NAME)
        first, count = spans(graph.computation, len(rows))
        columns = {
            "computation": np.arange(len(rows)),
            "name": rows.text(names),
            "entry": ids == modules.columns(_ENTRY)[0][rows.parent],
            "first": first,
            "nodes": count,
            "root": pl.Series(graph.root).replace(graph.n, None),
        }
        return pl.DataFrame(columns, schema=COMPUTATIONS)

    def edge_index(self, *, flow: bool = False) -> npt.NDArray[np.int32]:
        """Return the edges, shape (m, 2), from consumer to producer as published; along the data if `flow`."""
        pairs = self.edges.select("consumer", "producer").to_numpy().astype(np.int32)
        return pairs[:, ::-1] if flow else pairs

    @cached_property
    def opcodes(self) -> npt.NDArray[np.int32]:
        """The dataset's number of the opcode of each node, shape (n,), 0 of one that it does not have."""
        numbers = np.array([OPCODES.get(name, 0) for name in self.instructions.opcodes], np.int32)
        return numbers[self.instructions.opcode]

    def features(self, *, padding: Padding = 0) -> Floats32:
        """Return the 140 numbers of each node, shape (n, 140): ``tpunb.studies.ranking.NODE_FEATURES``.

        Parameters
        ----------
        padding
            Value of the elements of a list that has fewer: 0 as published, or -1, which differs from dimension 0.
        """
        if padding not in (0, -1):
            raise ValueError(f"The padding parameter of features must be 0 or -1. Got {padding!r} instead.")
        return node_features(self.instructions, padding)

    def __repr__(self) -> str:
        parts = [plural(self.instructions.n, "node"), plural(len(self.edges), "edge")]
        return f"ProgramGraph({plain(self.name)}, {', '.join(parts)}, {plural(len(self.computations), 'computation')})"


def graph(source: Any, program: str | int | None = None) -> ProgramGraph:
    """Return the graph of a compiled program.

    Parameters
    ----------
    source
        Profile that holds programs; ``jax.jit(f).lower(...)``, also compiled; or a serialised ``HloProto`` or
        ``HloModuleProto``.
    program
        Name or id of a program of a profile; that with the most self time on devices if None.

    Raises
    ------
    TpunbError
        If a profile holds no program, or no program of that name.
    BadProfile
        If bytes are no program, or a damaged one.
    TypeError
        If `source` is something else.

    >>> graph(b"")
    Traceback (most recent call last):
    tpunb.errors.BadProfile: 0 bytes are no HloProto and no HloModuleProto
    """
    if isinstance(source, Profile):
        return _of_profile(source, program)
    if program is not None:
        raise ValueError("program can be combined with a profile only")
    if isinstance(source, bytes):
        return of_bytes(source)
    if hasattr(source, "runtime_executable") or hasattr(source, "compiler_ir"):
        return of_bytes(module_of(source))
    raise wrong_type("graph", "source", "be a Profile, a lowered or compiled JAX function, or bytes", source)


def module_of(stage: Any) -> bytes:
    """Return the ``HloModuleProto`` of a lowered or a compiled JAX function."""
    compiled = getattr(stage, "runtime_executable", None)
    module: Any = stage.compiler_ir("hlo") if compiled is None else compiled().hlo_modules()[0]
    return bytes((getattr(module, "as_serialized_hlo_module_proto", None) or module.as_serialized_hlo_module)())


def of_bytes(data: bytes, self_times: Mapping[str, int] | None = None) -> ProgramGraph:
    """Return the graph of a serialised ``HloProto`` or ``HloModuleProto``."""
    protos = Messages.of(data, source="the program")
    with suppress(BadProfile):  # the name of a module is no message
        if len(modules := protos.sub(_MODULE)) == 1 and len(modules.sub(_COMPUTATIONS)):
            return ProgramGraph(modules.text(modules.columns(_NAME)[0])[0], protos, self_times or {})
    if not len(protos.sub(_COMPUTATIONS).sub(_INSTRUCTIONS)):
        raise BadProfile(f"{plural(len(data), 'byte')} are no HloProto and no HloModuleProto")
    return of_bytes(joined([data]))


def joined(modules: list[bytes]) -> bytes:
    """Return ``HloModuleProto`` messages as one field 1 each of a message."""
    return b"".join(b"\x0a" + _varint(len(module)) + module for module in modules)


def _varint(number: int) -> bytes:
    low = bytes([number & 127])
    return low if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _of_profile(profile: Profile, program: str | int | None) -> ProgramGraph:
    protos = profile.protos
    if protos.is_empty():
        raise TpunbError(
            f"{plain(profile.name)} holds no compiled program",
            hint="capture code that XLA compiles: jax.jit, or Keras with jit_compile=True",
        )
    device = ops.find(profile.events).filter(pl.col("side") == "device", pl.col("hlo_op").is_not_null())
    times = device.group_by("host", "program", hlo_op=pl.col("hlo_op").cast(pl.String)).agg(pl.col("self_ps").sum())
    by_program = times.group_by("host", "program").agg(pl.col("self_ps").sum())
    ranked = protos.with_columns(pl.col("host").cast(schema.NAME)).join(
        by_program.with_columns(pl.col("host").cast(schema.NAME)), on=["host", "program"], how="left"
    )
    ranked = ranked.sort("self_ps", descending=True, nulls_last=True, maintain_order=True)
    if program is not None:
        ranked = ranked.filter(pl.col("module" if isinstance(program, str) else "program") == program)
    if ranked.is_empty():
        names = ", ".join(plain(name) for name in protos["module"].unique(maintain_order=True)[:8])
        raise TpunbError(f"no program {program!r} in {plain(profile.name)}", hint=f"choose one of {names}")
    host, number, _, proto = ranked.row(0)[:4]
    of_program = times.filter(pl.col("host").cast(pl.String) == host, pl.col("program") == number)
    return of_bytes(proto, dict(of_program.select("hlo_op", "self_ps").iter_rows()))


def _texts(rows: Messages, refs: Ints, write: Callable[[Messages], str]) -> pl.Series:
    """Return messages of rows as text, each distinct one written once; null of rows without."""
    code, _ = rows.distinct(refs)
    firsts = np.unique(code, return_index=True)[1].tolist()
    texts = [write(rows.at(refs[row : row + 1])) if refs[row] & 0xFFFFFFFF else None for row in firsts]
    return pl.Series(texts, dtype=schema.NAME).gather(code)


def _braces(numbers: Ints) -> str:
    return ",".join(map(str, numbers.tolist()))


def _layouts(layouts: Messages) -> list[str | None]:
    """Return layouts as HLO text, with the tiles and the memory space of a TPU."""
    tiles = layouts.sub(_TILES)
    tiled = [""] * len(layouts)
    for row, dims in zip(tiles.parent.tolist(), grouped(*tiles.numbers(1), len(tiles)), strict=True):
        tiled[row] += f"({','.join(map(str, dims))})"
    texts: list[str | None] = []
    spaces = layouts.columns(_SPACE)[0].tolist()
    for order, tile, space in zip(grouped(*layouts.numbers(1), len(layouts)), tiled, spaces, strict=True):
        parts = (f"T{tile}" if tile else "") + (f"S({space})" if space else "")
        body = ",".join(map(str, order)) + (f":{parts}" if parts else "")
        texts.append(f"{{{body}}}" if body else None)
    return texts


def _window(window: Messages) -> str:
    """Return a window as HLO text, without what is 1 or 0 in all dimensions."""
    size, stride, low, high, dilation, base, reversal = window.sub(text(1)).columns(*map(integer, range(1, 8)))
    pads = np.array([f"{a}_{b}" for a, b in zip(low.tolist(), high.tolist(), strict=True)])
    parts: list[tuple[str, Any, Any]] = [("size", size, True), ("stride", stride, (stride != 1).any())]
    parts += [("pad", pads, (low | high).any()), ("lhs_dilate", base, (base != 1).any())]
    parts += [("rhs_dilate", dilation, (dilation != 1).any()), ("rhs_reversal", reversal, reversal.any())]
    return " ".join(f"{name}={'x'.join(map(str, values))}" for name, values, shown in parts if shown)


def _convolution(numbers: Messages) -> str:
    """Return the dimension numbers of a convolution as HLO text, such as "b01f_01io->b01f"."""
    sides = []
    for first, first_field, second, second_field, spatial in _SIDES:
        at = {
            int(column[0]): name
            for name, column in zip(
                (first, second), numbers.columns(integer(first_field), integer(second_field)), strict=True
            )
        }
        at |= {place: str(k) for k, place in enumerate(numbers.numbers(spatial)[1].tolist())}
        sides.append("".join(at[place] for place in sorted(at)))
    return f"{sides[0]}_{sides[1]}->{sides[2]}"


def _products(numbers: Messages) -> str:
    """Return the dimension numbers of a product as HLO text."""
    lists = {name: numbers.numbers(tag)[1] for name, tag in _DOT_FIELDS.items()}
    return " ".join(f"{name}={{{_braces(values)}}}" for name, values in lists.items() if values.size)
