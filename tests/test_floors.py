"""Who may import whom: a room sees, at module level, only the floors below its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "tpunb"
FLOORS = [
    {"errors", "hardware"},
    {"schema", "op_names", "self_time", "ids", "news", "saved_steps"},
    {"links"},
    {"step_rules"},
    {"export"},
    {"frames"},
    {"operations"},
    {"step_facts"},
    {"io", "stepping", "cluster", "checkpoint", "what_if", "marking", "neighbours", "schedule", "forks"},
    {"sources", "windows", "resuming"},
    {"recording"},
    {"watcher"},
    {"recorder", "tuning"},
    {"pictures"},
    {"charts"},
    {"widgets", "workloads"},
    {"magic", "paper"},
    {"__init__", "testing"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ONLY_IN = {
    "altair": {"pictures", "charts", "widgets", "magic"},
    "vl_convert": {"pictures", "widgets"},
    "IPython": {"magic", "widgets"},
    "grpc": {"io", "testing"},
    "numba": {"io", "self_time", "frames", "cluster"},
}
NEVER_AT_THE_TOP = {"tensorflow", "keras", "jax", "sklearn", "hdbscan", "pandas", "scipy", "kneed"}


def imports(tree):
    """Yield the modules that are imported when the file is: not inside functions, not for typing alone."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += ast.iter_child_nodes(node)


def violations(room, source):
    for name in imports(ast.parse(source)):
        top, *rest = name.split(".")
        if top in NEVER_AT_THE_TOP:
            yield f"{room} imports {top} at module level: import it inside the function that needs it"
        elif room not in ONLY_IN.get(top, {room}):
            yield f"{room} imports {top}, which is for {sorted(ONLY_IN[top])}"
        elif top == "tpunb":
            other = rest[0] if rest and rest[0] in FLOOR else "__init__"
            if other != room and FLOOR[other] >= FLOOR[room]:
                yield f"{room} (floor {FLOOR[room] + 1}) imports {other} (floor {FLOOR[other] + 1})"


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_from_below(path):
    assert room_of(path) in FLOOR, "a new room needs a floor"
    assert list(violations(room_of(path), path.read_text())) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("frames", "from tpunb.stepping import steps"),
        ("stepping", "from tpunb import cluster"),
        ("io", "import tpunb.recorder"),
        ("errors", "import tpunb"),
        ("recorder", "import tensorflow as tf"),
        ("cluster", "from sklearn.cluster import KMeans"),
        ("frames", "try:\n    import altair\nexcept ImportError:\n    pass"),
        ("stepping", "class A:\n    import keras"),
        ("io", "from tpunb.stepping import steps"),
    ],
)
def test_a_planted_violation_is_found(room, source):
    assert list(violations(room, source))


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("recorder", "def f():\n    import tensorflow"),
        ("frames", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tpunb.io import load"),
        ("cluster", "from tpunb.cluster import ols\nfrom tpunb.frames import Steps"),
    ],
)
def test_what_is_allowed_is_let_be(room, source):
    assert list(violations(room, source)) == []


def test_no_file_asks_to_be_two():
    long = {path.name: lines for path in FILES if (lines := len(path.read_text().splitlines())) > 400}
    assert long == {}


def test_import_tpunb_is_light():
    heavy = [
        "tensorflow",
        "keras",
        "jax",
        "altair",
        "sklearn",
        "hdbscan",
        "IPython",
        "pandas",
        "numba",
        "grpc",
    ]
    code = f"import sys, tpunb; print([name for name in {heavy} if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
