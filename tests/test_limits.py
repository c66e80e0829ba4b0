"""Thresholds stand in the ``Limits`` of their room, each with its evidence."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from tpunb.cluster import limits as of_cluster
from tpunb.profiler import limits as of_profiler

ROOT = Path(__file__).parents[1] / "tpunb"
ELSEWHERE = {  # constants that are no thresholds
    "units": {"_US"},
    "rounding of floats": {"_ROUNDING", "_ROUNDED"},
    "sizes in memory": {"_ROWS", "_CHUNK", "_ENTRIES", "_BLOCK", "_PENDING", "_SPOTS", "_STALLS", "_DEPTH", "_SOURCE"},
    "letters of a line": {"_TEXT"},
    "constants of a hash": {"_STEP"},
    "the paper's and the sweep's values": {"SWEEP"},
    "ports of Cloud TPUs": {"NODE_PORT", "VM_PORT", "_MASTER_PORT"},
}


def is_number(node):
    """Return whether an expression consists of numbers."""
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Tuple)):
        parts = (ast.operator, ast.unaryop, ast.expr_context)
        return all(is_number(child) for child in ast.iter_child_nodes(node) if not isinstance(child, parts))
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def numbers(path):
    """Return the module-level names that are bound to numbers."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_number(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


@pytest.mark.parametrize("room", ["cluster", "profiler"])
def test_no_module_has_a_threshold_of_its_own(room):
    found = {f"{path.stem}.{name}" for path in (ROOT / room).rglob("*.py") for name in numbers(path)}
    assert {each for each in found if each.partition(".")[2] not in set().union(*ELSEWHERE.values())} == set()


@pytest.mark.parametrize("module", [of_cluster, of_profiler])
def test_every_threshold_has_its_evidence(module):
    source = Path(module.__file__).read_text()
    for field in dataclasses.fields(module.Limits):
        assert re.search(rf'^    {field.name}: [^\n]* = [^\n]*(  # \w|\n    """\w)', source, re.M), field.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(module.LIMITS, dataclasses.fields(module.Limits)[0].name, 0)
