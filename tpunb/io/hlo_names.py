"""Names of HLO instructions: the framework op that each computes, completed from what is in and around it."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.costs import hlo
from tpunb.costs.hlo_graph import Instructions, Mask, grouped
from tpunb.protobuf.table import Ints, Messages
from tpunb.step_stats import op_names

OPS: schema.Schema = {"proto": pl.UInt32()} | {
    name: schema.INSTRUCTIONS[name] for name in ("hlo_op", "tf_op", "part", "category")
}
"""One row per instruction; several framework ops are joined by ";", as in the metadata of HLO."""

_PART_NAMES = [None, "forward", "backward", "update", op_names.MIXED]
_FORWARD, _BACKWARD, _UPDATE = 1, 2, 3
_CONTAINS = ("fusion", "call", "async-start")
_COMPUTES = ("dot", "convolution", "custom-call")
_INPUTS = ("parameter", "constant")  # whose names are of arguments, and of any user of an equal constant
_FORMATTING = (*_INPUTS, "bitcast", "broadcast", "convert", "copy", "get-tuple-element", "iota", "reshape", "transpose")
_LEVELS = 2  # of computations in computations that name an instruction
_MOST_FRAMEWORK_OPS = 8  # of one instruction
_NEAR = 16  # instructions of an update, and operands of each, that are searched for the parameter
_JVP = re.compile(r"jvp\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def ops(protos: Messages) -> pl.DataFrame:
    """Return framework op, part and category of the instructions of programs: ``OPS``, in their order."""
    return hlo.undamaged(protos, _ops, OPS)


def _ops(protos: Messages) -> pl.DataFrame:
    rows = hlo.read_instructions(protos)
    names = rows["tf_op"].cast(pl.String).to_list()
    graph = _Named(protos, names)
    tf_op = pl.Series(names, dtype=pl.String).cast(schema.NAME)
    part = pl.Series([_PART_NAMES[number] for number in graph.parts], dtype=schema.INSTRUCTIONS["part"])
    return rows.with_columns(tf_op=tf_op, part=part).select(*OPS)


class _Named(Instructions):
    """Instructions with the names of framework ops, which this completes, and their parts."""

    def __init__(self, protos: Messages, names: list[str | None]) -> None:
        super().__init__(protos)
        self.names = names
        for row in np.flatnonzero(self.where(*_INPUTS)).tolist():
            names[row] = None
        for _ in range(_LEVELS):
            self._name_by_contents()
        edges = self.operands < self.n
        order = np.argsort(self.operands[edges], kind="stable")
        self._users = grouped(self.operands[edges][order], self.user[edges][order], self.n)
        self._uses = grouped(self.user[edges], self.operands[edges], self.n)
        self.parts = [_PART_NAMES.index(place(name or "")[1]) for name in names]
        self._find_updates()
        inputs = self.where(*_INPUTS).tolist()
        self._name_by_users(update=False)
        self._name_gradients()
        self._name_by_users(update=False)
        self._spread([row for row in range(self.n) if names[row] and not inputs[row]], self._users)
        self._name_by_users(update=True)

    def _name_by_contents(self) -> None:
        """Name instructions by the ops in their computation that are of other layers or parts than their own."""
        contains = self.where(*_CONTAINS)[self.caller] & (self.callee < self.computations)
        used: Mask = np.isin(self.computation, self.callee[contains])
        works = (~self.where(*_FORMATTING)).tolist()
        inside, other = dict[int, Counter[str]](), dict[int, Counter[str]]()
        for row in np.flatnonzero(used).tolist():
            if name := self.names[row]:
                counted = (inside if works[row] else other).setdefault(int(self.computation[row]), Counter())
                counted[name] += 1
        for row, computation in zip(self.caller[contains].tolist(), self.callee[contains].tolist(), strict=True):
            fused = inside.get(computation) or (None if self.names[row] else other.get(computation))
            if fused:
                self.names[row] = _joined(self.names[row], (name for name, _ in fused.most_common()))

    def _find_updates(self) -> None:
        """Set the part of what depends on gradients and is itself neither forward nor backward."""
        pending = deque(row for row, part in enumerate(self.parts) if part in (_BACKWARD, len(_PART_NAMES) - 1))
        seen = set(pending)
        while pending:
            for user in self._users[pending.popleft()]:
                if user not in seen:
                    seen.add(user)
                    pending.append(user)
                    if self.names[user] and not self.parts[user]:
                        self.parts[user] = _UPDATE

    def _spread(self, named: Iterable[int], neighbours: list[list[int]]) -> None:
        """Give instructions without a name that of the nearest named one, breadth first."""
        pending = deque(named)
        while pending:
            row = pending.popleft()
            for other in neighbours[row]:
                if self.names[other] is None:
                    self.names[other], self.parts[other] = self.names[row], self.parts[row]
                    pending.append(other)

    def _name_by_users(self, *, update: bool) -> None:
        named = (row for row in range(self.n) if self.names[row] and (update or self.parts[row] != _UPDATE))
        self._spread([*named], self._uses)

    def _name_gradients(self) -> None:
        """Name products that only an update uses by the forward op that uses the same parameter as the update."""
        computes = self.where(*_COMPUTES)
        contains = self.where("fusion")[self.caller] & (self.callee < self.computations)
        fused = np.isin(self.callee, self.computation[computes]) & contains
        leaves = self.where(*_FORMATTING).tolist()
        products: Ints = np.union1d(np.flatnonzero(computes), self.caller[fused])
        for row in products.tolist():
            if self.names[row] is None and (found := self._updated(row, leaves)) is not None:
                self.names[row] = _gradient(found)
                self.parts[row] = _BACKWARD

    def _updated(self, row: int, leaves: list[bool]) -> str | None:
        """Return the forward op whose parameter the users of a gradient update; None unless it is of one layer."""
        pending, seen, found = deque([row]), {row}, dict[str | None, str]()
        while pending and len(seen) < _NEAR:
            for user in self._users[pending.popleft()][:_NEAR]:
                if user in seen or not (self.parts[user] == _UPDATE or self.names[user] is None):
                    continue
                seen.add(user)
                pending.append(user)
                for operand in self._uses[user][:_NEAR] if self.parts[user] == _UPDATE else ():
                    name = self.names[operand]
                    if name and leaves[operand] and self.parts[operand] == _FORWARD:
                        found.setdefault(place(name)[0], name)
        return next(iter(found.values())) if len(found) == 1 else None


@lru_cache(1 << 14)
def place(name: str) -> tuple[str | None, str | None]:
    """Return layer and part of a framework op."""
    return op_names.layer(name), op_names.part(name)


def _joined(main: str | None, names: Iterable[str]) -> str:
    """Return framework ops of different layers or parts, joined; `main` first."""
    kept = dict[tuple[str | None, str | None], str]()
    for joined in (*([main] if main else []), *names):
        for name in joined.split(";"):
            if len(kept) < _MOST_FRAMEWORK_OPS:
                kept.setdefault(place(name), name)
    return ";".join(kept.values())


def _gradient(name: str) -> str:
    """Return the framework op of the gradient of an op.

    >>> _gradient("model/conv2d/convolution"), _gradient("jit(f)/jvp(Model)/Conv_0/conv")
    ('gradient_tape/model/conv2d/convolution', 'jit(f)/transpose(jvp(Model))/Conv_0/conv')
    """
    first = name.partition(";")[0]
    gradient, count = _JVP.subn(r"transpose(jvp(\1))", first)
    return gradient if count else f"gradient_tape/{first}"
