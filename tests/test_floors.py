"""Who may import whom: a room sees only the floors below its own, at module level and inside functions."""

import ast
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "tpunb"
parse = cache(ast.parse)
FLOORS = {  # from the top; what each room is for, as CONTRIBUTING prints it
    ("__init__", "__main__", "testing"): "the front door, lazy; builders, a fake profiler, conformance tests",
    ("cli", "magic"): "the command line `tpunb`; `%tpupoint`, `%%tpupoint`",
    ("studies",): "many runs made on purpose: sweeps, rankings, scaling, the paper",
    ("mcp_server", "widgets"): "`tpunb mcp`; panels, live line, summary",
    ("charts",): "frames to Altair: a chart is a value that is returned, never shown",
    ("profiler", "tuning"): "capture a run; tune its input pipeline",
    (
        "analysis",
        "checkpoint",
    ): "advice, comparison, quality, roofline; find checkpoints and resume",
    ("cluster", "io", "training"): "steps to phases; read and write; the state of a training",
    (
        "costs",
        "step_stats",
        "tfdata",
        "torchdata",
    ): "FLOPs and bytes of operations; events to steps; what a tf.data pipeline is, and a DataLoader",
    ("frames",): "the nouns `Profile`, `Steps`, `Phases`, and the matrix of steps and operations",
    ("instrument",): "what the libraries of a program are asked to do: one module a library",
    ("protobuf", "schema"): "protobuf messages as arrays; the columns of every frame, their types and units",
    (
        "compiled",
        "errors",
        "signals",
        "text",
    ): "compiled loops; what can go wrong; signals between rooms; text for people",
}
FLOOR = {room: floor for floor, rooms in enumerate(reversed(FLOORS)) for room in rooms}
ONLY_IN = {
    "altair": {"charts", "widgets", "magic", "studies"},
    "vl_convert": {"charts", "widgets"},
    "IPython": {"magic", "widgets"},
    "grpc": {"profiler", "testing"},
    "numba": {"compiled", "protobuf", "step_stats"},
}
NEVER_AT_THE_TOP = {
    "tensorflow",
    "keras",
    "jax",
    "sklearn",
    "hdbscan",
    "pandas",
    "scipy",
    "kneed",
    "dask",
    "distributed",
}


def imports(tree):
    """Yield (name of the outermost function or None, module) of every import, those for type checking alone too."""
    todo = [(None, node, False) for node in tree.body]
    while todo:
        function, node, typing = todo.pop()
        if isinstance(node, ast.Import):
            yield from ((function, alias.name, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "tpunb":
                yield from ((function, f"tpunb.{alias.name}", typing) for alias in node.names)
            else:
                yield function, node.module, typing
        else:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function = function or node.name
            typing = typing or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
            todo += [(function, child, typing) for child in ast.iter_child_nodes(node)]


def violations(module, source):
    """Yield what a module of the package imports and must not, in a line each."""
    room = module.partition(".")[0]
    for function, name, typing in imports(parse(source)):
        top, _, rest = name.partition(".")
        if top == "tpunb":
            other = rest.partition(".")[0] if rest.partition(".")[0] in FLOOR else "__init__"
            if room not in ("__init__", other) and FLOOR[other] >= FLOOR[room]:
                yield f"{module} (floor {FLOOR[room] + 1}) imports {other} (floor {FLOOR[other] + 1})"
        elif function is None and not typing and top in NEVER_AT_THE_TOP:
            yield f"{module} imports {top} at module level: import it inside the function that needs it"
        elif function is None and not typing and room not in ONLY_IN.get(top, {room}):
            yield f"{module} imports {top}, which is for {sorted(ONLY_IN[top])}"


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(ROOT.rglob("*.py"))


def test_a_room_imports_only_from_lower_floors():
    modules = {module_of(path): path for path in FILES}
    assert {room for module in modules if (room := module.partition(".")[0]) not in FLOOR} == set(), "a floor is needed"
    assert [each for module, path in modules.items() for each in violations(module, path.read_text())] == []


def test_the_root_holds_what_the_house_names_and_nothing_else():
    modules = {path.stem for path in ROOT.glob("*.py")}
    doors, nouns = {"__init__", "__main__", "cli", "magic", "mcp_server"}, {"schema"}
    assert modules == doors | nouns | {"compiled", "errors", "text", "signals"}
    assert len(FLOORS) <= 13


def reads(tree, modules):
    """Return the modules that a module reads, in functions and for types too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule.removeprefix("tpunb.") in modules else node.module)
    return {name.removeprefix("tpunb.") for name in names if name.startswith("tpunb.")} & modules


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_of(path): path for path in FILES if module_of(path) != "__init__"}
    read = {module: reads(parse(path.read_text()), {*modules}) for module, path in modules.items()}
    done = set()

    def visit(module, way):
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for other in sorted(read[module]):
                visit(other, [*way, module])
            done.add(module)

    for module in modules:
        visit(module, [])


def test_contributing_prints_these_floors():
    printed = (ROOT.parent / "CONTRIBUTING.md").read_text()
    assert table() in printed, f"CONTRIBUTING.md should hold:\n{table()}"


def table():
    """Return the floors as a table in Markdown, from the top."""
    rows = ["| floor | rooms | what is there |", "|---|---|---|"]
    for floor, (rooms, what) in zip(range(len(FLOORS), 0, -1), FLOORS.items(), strict=True):
        rows.append(f"| {floor} | {', '.join(f'`{room}`' for room in rooms)} | {what} |")
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("frames.steps", "from tpunb.step_stats.reduce import steps"),
        ("step_stats.reduce", "from tpunb import cluster"),
        ("io", "import tpunb.profiler.capture"),
        ("errors", "import tpunb"),
        ("errors", "from tpunb.text import plural"),
        ("profiler.capture", "import tensorflow as tf"),
        ("cluster.kmeans", "from sklearn.cluster import KMeans"),
        ("frames.steps", "try:\n    import altair\nexcept ImportError:\n    pass"),
        ("step_stats.reduce", "class A:\n    import keras"),
        ("cluster.kmeans", "from tpunb.io import load"),
        ("frames.phases", "class A:\n    def to_csv(self):\n        from tpunb.io.storage import find"),
        ("tuning.tuner", "def f():\n    from tpunb.profiler.capture import capture"),
        ("frames.steps", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tpunb.io import load"),
    ],
)
def test_a_planted_violation_is_found(module, source):
    assert list(violations(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("profiler.capture", "def f():\n    import tensorflow"),
        ("frames.phases", "class A:\n    def to_csv(self):\n        from tpunb.frames.export import csv"),
        ("frames.steps", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas"),
        ("cluster.kmeans", "from tpunb.cluster import ols\nfrom tpunb.frames import Steps"),
    ],
)
def test_what_is_allowed_passes(module, source):
    assert list(violations(module, source)) == []


@pytest.mark.parametrize(("room", "other"), [("checkpoint", "tuning"), ("tuning", "checkpoint")])
def test_checkpoint_and_tuning_do_not_import_each_other(room, other):
    names = {
        name for path in FILES if module_of(path).startswith(room) for _, name, _ in imports(parse(path.read_text()))
    }
    assert [name for name in names if name.startswith(f"tpunb.{other}")] == []


def test_no_room_is_on_two_floors():
    assert len(FLOOR) == sum(len(rooms) for rooms in FLOORS)
    assert all(FLOOR[low[0]] < FLOOR[high[0]] for high, low in pairwise(FLOORS))


@pytest.mark.live
def test_import_tpunb_is_light():
    heavy = [
        "tensorflow",
        "keras",
        "jax",
        "altair",
        "sklearn",
        "hdbscan",
        "IPython",
        "ipywidgets",
        "anywidget",
        "pandas",
        "numba",
        "grpc",
    ]
    code = f"import sys, tpunb; print([name for name in {heavy} if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


def test_only_the_front_door_names_studies():
    """Studies build on the package, never the other way."""
    reads = {
        module_of(path)
        for path in FILES
        for _, name, _ in imports(parse(path.read_text()))
        if name.startswith("tpunb.studies")
    }
    assert {module for module in reads if not module.startswith("studies")} <= {"__init__"}


# -- what is not ours --------------------------------------------------------------------------------------------------

WRAPS = {  # modules that wrap, or set, what belongs to others, and why
    "values in objects that the program has handed in": {
        *("checkpoint.resume.custom_loops", "checkpoint.resume.trainers", "training.fit_state"),
        *("training.torch_state", "tuning.pipeline"),
    },
}
LOOKS = {  # modules that look into `sys.modules`, and why
    "the standard library, and the program itself": {
        *("profiler.child_capture", "profiler.step_clock", "torchdata.loader"),
    },
    "what a study itself has imported": {"studies.sweeps.points", "studies.sweeps.process"},
}


def wraps(tree):
    """Return whether a module wraps attributes of others, or sets some by name."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Name) and call.id in ("setattr", "delattr") for call in calls) or any(
        isinstance(node, ast.ImportFrom)
        and node.module == "tpunb.instrument.registry"
        and {alias.name for alias in node.names} & {"wrapped", "replaced"}
        for node in ast.walk(tree)
    )


def looks(tree):
    """Return whether a module looks into ``sys.modules``."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "modules" and ast.unparse(node.value) == "sys")
        or (isinstance(node, ast.ImportFrom) and node.module == "sys" and "modules" in {x.name for x in node.names})
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize(("does", "exceptions"), [(wraps, WRAPS), (looks, LOOKS)], ids=["wraps", "looks"])
def test_only_instrument_touches_what_is_not_ours(does, exceptions):
    found = {module for path in FILES if does(parse(path.read_text())) and (module := module_of(path))}
    found = {module for module in found if module.partition(".")[0] != "instrument"}
    listed = set().union(*exceptions.values())
    assert found - listed == set(), "declare the attribute in a module of `instrument`, and listen to it"
    assert listed - found == set(), "these need to be no exceptions any more"


@pytest.mark.parametrize(
    ("does", "source"),
    [
        (wraps, "from tpunb.instrument.registry import wrapped"),
        (wraps, "def f(owner):\n    setattr(owner, 'fit', None)"),
        (looks, "import sys\ndef f():\n    return sys.modules.get('torch')"),
        (looks, "from sys import modules"),
    ],
)
def test_planted_touch_of_a_library_is_found(does, source):
    assert does(parse(source))
