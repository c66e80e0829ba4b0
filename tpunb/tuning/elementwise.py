"""Whether a map's function gives the same whether it is called for every element or once for a batch of them."""

from __future__ import annotations

from typing import Any

from tpunb.tuning.knob import Verdict

_SAME = {"Identity", "NoOp"}
_EXACT = {"Cast", "Neg", "Abs", "Sign", "LogicalNot", "Floor", "Ceil"}  # one operand, no rounding that could differ
_ROUNDS = {"Square"}
_COMPARES = {"Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr"}
_EXACT_PAIRS = {"Maximum", "Minimum"} | _COMPARES
_PAIRS = {"AddV2", "Add", "Sub", "Mul", "RealDiv"} | _EXACT_PAIRS
_ALONE = {"Identity"} | _EXACT | _ROUNDS


def elementwise(function: Any, ranks: list[int]) -> tuple[Verdict, str]:
    """Return whether a function works on each number by itself, and why: then batches may take the place of elements.

    Allowed are sums, products, comparisons, casts and their like, of inputs of the same rank and of constants that
    broadcast within an element. Sums and products of floats are "to be verified", since TensorFlow may simplify them
    differently for another shape.

    Parameters
    ----------
    function
        A FunctionDef.
    ranks
        The rank of each of its inputs, which are of known shape.
    """
    inputs = [arg.name for arg in function.signature.input_arg]
    if len(inputs) != len(ranks):
        return "refused", "its function uses tensors from outside"
    rank: dict[str, tuple[int, bool]] = {name: (rank, True) for name, rank in zip(inputs, ranks, strict=True)}
    rounds = False
    for node in _in_order(function):
        read = [_source(name) for name in node.input if not name.startswith("^")]
        result = _result(node, [rank.get(name) for name in read])
        if result is None:
            return "refused", f"its function does more than count each number by itself ({node.op})"
        rank[node.name] = result
        rounds |= result[1] and _may_round(node)
    if not all(rank.get(_source(name), (0, False))[1] for name in function.ret.values()):
        return "refused", "its function gives what does not depend on the element"
    if rounds:
        return "to be verified", "its function calculates with floats, number by number"
    return "proved", "its function works on each number by itself"


def _result(node: Any, of: list[tuple[int, bool] | None]) -> tuple[int, bool] | None:
    """Return the rank of what a node gives, and whether it depends on the element; None where that is not allowed."""
    if node.op == "Const":
        return len(node.attr["value"].tensor.tensor_shape.dim), False
    if node.op == "NoOp":
        return 0, False
    known = [one for one in of if one is not None]
    if len(known) != len(of):
        return None
    if node.op in _ALONE and len(known) == 1:
        return known[0]
    if node.op not in _PAIRS or len(known) != 2:
        return None
    (one, one_varies), (other, other_varies) = known
    if one_varies and other_varies:
        return (one, True) if one == other else None
    varying, constant = (one, other) if one_varies else (other, one)
    return (varying, True) if constant <= varying and (one_varies or other_varies) else None


def _may_round(node: Any) -> bool:
    import tensorflow as tf

    kind = node.attr["T"].type if "T" in node.attr else 0  # to ask for one that is not there would make it
    floats = bool(kind) and (tf.as_dtype(kind).is_floating or tf.as_dtype(kind).is_complex)
    return floats and node.op not in _EXACT | _EXACT_PAIRS | _SAME


def _source(name: str) -> str:
    return name.split(":")[0]


def _in_order(function: Any) -> list[Any]:
    """Return a function's nodes, each after those it reads."""
    todo = {node.name: node for node in function.node_def}
    done: list[Any] = []
    while todo:
        ready = [node for node in todo.values() if not any(_source(name.lstrip("^")) in todo for name in node.input)]
        if not ready:  # a loop in the old form: its nodes are refused one by one
            return done + list(todo.values())
        done += ready
        for node in ready:
            del todo[node.name]
    return done
