"""What PyTorch launched each kernel of a trace for: its operator, modules, direction, shapes and work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import polars as pl

from tpunb.costs.torch_cost import HEAVY, Call, Cost, cost, described, element

OPERATORS = frozenset(("cpu_op", "Operator"))
WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
MODULE = "nn.Module: "
_ENGINE = "autograd::engine::evaluate_function: "  # the engine runs the backward function of an operator
_DERIVATIVE = re.compile(r"\w+Backward\d*")  # AddmmBackward0
_UPDATE = "Optimizer.step"
_CHECKPOINT = r"torch/utils/checkpoint\.py\(\d+\): (recompute_fn|backward)$"
_ON_HOST_LINK = re.compile(r"[HP]2D|D2[HP]|Host|Pageable|Pinned|HtoD|DtoH", re.IGNORECASE)
_DEVICE_KINDS = ("kernel", "gpu_", "memcpy", "memset", "mtia_")
_DEEPEST = 32  # modules within modules
_MOST_TEXT = 400  # characters of the operators around another

_Args = Mapping[str, Any]


class Span(Protocol):
    """An event as it is written."""

    name: Any
    cat: Any
    pid: Any
    tid: Any
    args: Any


TEXTS = ("operator", "parents", "module", "part", "shape", "dtype")
"""Columns that describe a call: parents are the operators around it, outermost first."""

_COLUMNS: Mapping[str, pl.DataType] = {
    **{"row": pl.Int64(), **dict.fromkeys(TEXTS, pl.String())},
    **{"kind_of_work": pl.String(), "work": pl.Int64(), "moved": pl.Int64()},
}


class _Node:
    """A span of a host thread: an operator, a module, an update, or a launch."""

    __slots__ = (
        *("around", "divided", "in_backward", "is_derivative", "module", "name", "op", "origin"),
        *("parents", "part", "row", "sequence", "within", "work"),
    )

    def __init__(self, row: int, name: str, op: _Args | None, around: _Node | None) -> None:
        self.row, self.name, self.op, self.around = row, name, op, around
        self.module: str | None = around.module if around else None
        self.part: str | None = around.part if around else None
        self.in_backward: bool = around is not None and around.in_backward
        self.divided = False  # operators within have its work
        self.parents: str = around.inside() if around else ""
        self.within: str | None = None  # what `inside` returns
        self.work: _Work | None = None
        self.origin: _Node | None = None  # operator whose backward function it is
        number, thread = (op or {}).get("Sequence number"), (op or {}).get("Fwd thread id")
        self.sequence = number if type(number) is int and number >= 0 else None
        self.is_derivative = self.sequence is not None and type(thread) is int and thread > 0

    def inside(self) -> str:
        """Return the operators around one within it, outermost first."""
        if self.within is None:
            text = f"{self.parents} > {self.name}" if self.parents else self.name
            self.within = self.parents if self.op is None else text[-_MOST_TEXT:]
        return self.within

    def layer(self) -> str | None:
        """Return the path of the modules around it, of a backward function those around its operator."""
        each: _Node | None = self
        while each is not None:
            if each.origin is not None:
                return each.origin.module
            if each.op is None:
                return each.module
            each = each.around
        return None


def _args(span: Span) -> _Args:
    return span.args if isinstance(span.args, dict) else {}


def links(spans: Sequence[Span], columns: pl.DataFrame) -> pl.DataFrame:
    """Return what is known of the kernels among events that a device ran, else of the operators that the host ran.

    Columns are ``row``, the number of the event, `TEXTS` of its call, and its part of the work of that by time:
    ``kind_of_work``, ``work`` in FLOPs and ``moved`` in bytes.

    A kernel is of the operator around its launch, else of that with its external id. `columns` of the events are
    ``kind``, ``name``, ``start_ps``, ``dur_ps``, and ``owner``, their process where several launch work.
    """
    return pl.DataFrame(_links(spans, columns), schema=_COLUMNS, orient="row")


def _links(spans: Sequence[Span], columns: pl.DataFrame) -> list[tuple[Any, ...]]:
    on_device = pl.col("kind").str.to_lowercase().is_in([*WORK])
    kernels = columns.select(pl.arg_where(on_device)).to_series().to_list()
    if not kernels and not any("Input Dims" in _args(span) for span in spans if span.cat in OPERATORS):
        return []
    tree = _Tree(spans, columns)
    if not kernels:
        return _on_host(tree)
    found = [(row, node) for row in kernels if (node := tree.operator(row)) is not None]
    for _, node in found:
        each: _Node | None = node
        while each is not None and ((work := tree.cost(each)) is None or work.kind not in HEAVY):
            each = each.around
        if each is not None:
            _divide(each)
    calls = dict[int, list[tuple[int, _Node]]]()
    for row, node in found:
        calls.setdefault((worker := tree.worker(node)).row, []).append((row, worker))
    return [row for kernels_of in calls.values() for row in _linked(kernels_of, tree)]


def _on_host(tree: _Tree) -> list[tuple[Any, ...]]:
    """Return what is known of operators that the host ran; work is of the innermost that has most of it."""
    within = Counter[int]()  # bytes that operators within one move
    for node in reversed(tree.nodes):  # those around an operator came before it
        work, inner = tree.cost(node), within[node.row]
        if work is not None and not node.divided:
            is_heavy, size = work.kind in HEAVY, work.bytes or 0
            node.divided = not is_heavy and 0 < size <= 2 * inner
            inner = max(inner, size)
            if is_heavy:
                _divide(node)
        if node.around is not None:
            within[node.around.row] += inner
    return [row for node in tree.nodes for row in _linked([(node.row, node)], tree)]


def _divide(node: _Node) -> None:
    """Leave the work of operators around one to it."""
    each = node.around
    while each is not None and not each.divided:
        each.divided, each = True, each.around


def _linked(calls: Sequence[tuple[int, _Node]], tree: _Tree) -> list[tuple[Any, ...]]:
    """Return the kernels of one call, each with its part of the work, by time."""
    node = calls[0][1]
    module, (call, work, shape, dtype) = tree.module(node), tree.work(node)
    if work is not None and work.bytes is None:
        work = cost(call._replace(element=element(str(tree.spans[calls[0][0]].name))))
    shares = dict[int, tuple[Any, ...]]()
    if work is not None and not node.divided:
        kind, *sizes = work
        times = {row: max(tree.durs[row], 1) for row, _ in calls if not _is_transfer(tree.spans[row])}
        total, done = sum(times.values()), 0
        for row, time in times.items():
            begin, done = done, done + time
            flops, size = (of and of * done // total - of * begin // total for of in sizes)
            shares[row] = kind, flops or 0, size
    texts = node.name or None, node.parents or None, module, node.part, shape, dtype
    return [(row, *texts, *shares.get(row, (None, None, None))) for row, _ in calls]


def _is_transfer(span: Span) -> bool:
    """Return whether a copy is between a device and its host, which the memory of the device does not bound."""
    return "memcpy" in str(span.cat).lower() and _ON_HOST_LINK.search(str(span.name)) is not None


def _call(name: str, args: _Args) -> Call:
    dims, kinds, strides, concrete = (
        value if isinstance(value := args.get(key), list) else [] for key in ("Input Dims", *_OPERANDS)
    )
    if not dims and isinstance(older := args.get("Input dims"), list):
        dims = older
    return Call(name, dims, kinds, strides, concrete)


_OPERANDS = ("Input type", "Input Strides", "Concrete Inputs")
_CALL = ("Input Dims", "Input dims", *_OPERANDS)


class _Work(NamedTuple):
    """A call, and what is computed from it: its work if known, its tensors as text, and their data type."""

    call: Call
    cost: Cost | None
    shape: str | None
    dtype: str | None


class _Tree:
    """The spans of host threads, each within another, and the launches among them."""

    def __init__(self, spans: Sequence[Span], columns: pl.DataFrame) -> None:
        self.spans = spans
        self._starts: list[int] = columns["start_ps"].to_list()
        self.durs: list[int] = columns["dur_ps"].to_list()
        self._owners = columns["owner"].to_list() if columns["owner"].null_count() < len(columns) else None
        self._launched = dict[tuple[str | None, str, str], _Node | None]()
        self._named = dict[tuple[str | None, str], _Node]()
        self._works = dict[str, _Work]()
        self._forward = dict[tuple[str, int], list[_Node]]()  # operators by the number of their backward function
        self._derived = list[tuple[str, _Node]]()
        self._paths = dict[str, str]()  # of modules
        self.nodes = list[_Node]()  # that are operators
        of_frame = pl.col("kind") == "python_function"
        self._frames = columns.select(of_frame.any()).item()
        is_named = pl.col("name").str.starts_with(MODULE) | pl.col("name").str.contains(_CHECKPOINT)
        rows = columns.select(pl.arg_where(is_named | ~of_frame.fill_null(value=False))).to_series()
        threads = dict[tuple[str, str], list[int]]()
        for row in rows.to_list():
            span, owner = spans[row], self._owner(row)
            if _is_node(span) or _is_launch(span):
                threads.setdefault((str(owner or span.pid), str(span.tid)), []).append(row)
        for (process, _), thread in threads.items():
            self._sweep(process, thread)
        for process, node in self._derived:
            begin = self._starts[node.row]
            before = [op for op in self._forward.get((process, node.sequence or 0), ()) if self._begin(op) < begin]
            node.origin = max(before, key=self._begin, default=None)

    def _owner(self, row: int) -> str | None:
        return None if self._owners is None else self._owners[row]

    def _begin(self, node: _Node) -> int:
        return self._starts[node.row]

    def _sweep(self, process: str, rows: list[int]) -> None:
        """Put the spans of one thread into the tree."""
        rows.sort(key=lambda row: (self._starts[row], -self.durs[row]))
        stack = list[tuple[int, _Node]]()
        for row in rows:
            begin, span = self._starts[row], self.spans[row]
            while stack and stack[-1][0] <= begin:
                stack.pop()
            around, owner = stack[-1][1] if stack else None, self._owner(row)
            if not _is_node(span):
                for id_ in _ids(span):
                    self._launched.setdefault((owner, *id_), around)
                continue
            node = self._node(row, around)
            if node.op is not None:
                self.nodes.append(node)
                self._named.setdefault((owner, str(node.op.get("External id"))), node)
                if node.is_derivative:
                    self._derived.append((process, node))
                elif node.sequence is not None:
                    self._forward.setdefault((process, node.sequence), []).append(node)
            end = begin + self.durs[row]
            stack.append((min(end, stack[-1][0]) if stack else end, node))

    def _node(self, row: int, around: _Node | None) -> _Node:
        span = self.spans[row]
        name = str(span.name or "")
        is_operator = span.cat in OPERATORS and not name.startswith(MODULE)
        node = _Node(row, name, _args(span) if is_operator else None, around)
        if node.op is not None:
            if node.is_derivative or name.startswith(_ENGINE) or _DERIVATIVE.fullmatch(name):
                node.part, node.in_backward = "backward", True
            elif node.sequence is not None and node.in_backward and not self._frames:
                # it keeps operands for a backward function: the forward pass runs again
                node.part, node.in_backward = "recomputation", False
            elif node.sequence is not None:
                node.part = node.part or "forward"
        elif name.startswith(MODULE):
            path = node.module.split("/") if node.module else []
            path = [*path, name.removeprefix(MODULE)][:_DEEPEST]
            node.module = "/".join(path)
            self._paths[path[-1]] = max(node.module, self._paths.get(path[-1], ""), key=len)
            node.part = node.part or "forward"
        elif name.startswith(_UPDATE):
            node.part = "update"
        else:
            node.part, node.in_backward = "recomputation", False
        return node

    def work(self, node: _Node) -> _Work:
        """Return the call of an operator, and its work; of equal calls it is computed once."""
        if node.work is None:
            args = node.op or {}
            key = node.name + repr([args.get(name) for name in _CALL])
            if (found := self._works.get(key)) is None:
                call = _call(node.name, args)
                found = self._works[key] = _Work(call, cost(call), *described(call))
            node.work = found
        return node.work

    def cost(self, node: _Node) -> Cost | None:
        """Return the work of an operator, None if it is unknown."""
        return None if node.op is None else self.work(node).cost

    def worker(self, node: _Node) -> _Node:
        """Return the innermost operator whose work is known, else the innermost."""
        each: _Node | None = node
        while each is not None and (self.cost(each) is None or each.divided):
            if each.divided or each.name.startswith(_ENGINE):
                return node
            each = each.around
        return each or node

    def module(self, node: _Node) -> str | None:
        """Return the path of the modules around a call; a forward pass that runs again begins within some."""
        path = node.layer()
        outermost, slash, rest = (path or "").partition("/")
        return self._paths.get(outermost, outermost) + slash + rest or None

    def operator(self, row: int) -> _Node | None:
        """Return the operator that launched a kernel."""
        span, owner = self.spans[row], self._owner(row)
        node = next((self._launched[key] for id_ in _ids(span) if (key := (owner, *id_)) in self._launched), None)
        while node is not None and node.op is None:
            node = node.around
        args = _args(span)
        return node or self._named.get((owner, str(args.get("external id", args.get("External id", "")))))


def _is_node(span: Span) -> bool:
    """Return whether a span is an operator, a module, an update of the parameters, or the forward pass run again."""
    category, name = span.cat, str(span.name)
    if category == "python_function":
        return True  # others are left out
    return category in OPERATORS or (name.startswith((MODULE, _UPDATE)) and not _on_device(span))


def _is_launch(span: Span) -> bool:
    """Return whether a span of the host launches work on a device."""
    return span.cat != "python_function" and not _on_device(span) and bool(_ids(span))


def _on_device(span: Span) -> bool:
    return str(span.cat).lower().startswith(_DEVICE_KINDS)


def _ids(span: Span) -> list[tuple[str, str]]:
    """Return what a launch and its kernels share: a correlation id, where it was written, else an external id."""
    args = _args(span)
    ids = [("correlation", str(args[key])) for key in ("correlation_id", "correlation") if args.get(key)]
    return ids or [("External id", str(args[key])) for key in ("External id",) if key in args]
