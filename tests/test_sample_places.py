"""What sampled stacks mean: the place, and whether the program loads data, runs code of its own, or evaluates."""

import importlib
import queue
import sys
import threading
from types import SimpleNamespace

import polars as pl
import pytest
from capture_loops import until
from sampled_stacks import Sampled, imported

from tpunb import schema
from tpunb.profiler import stacks as raw
from tpunb.step_stats.sample_places import Stacks, placed_samples, placed_stalls
from tpunb.training.program import is_user_code

CODE = """\
import json
import queue
import time

def through(call, *args):
    return call(*args)

def spin(stop):
    while not stop.is_set():
        pass

def wait(box):
    return box.get(timeout=600)

def rest(stop):
    while not stop.is_set():
        time.sleep(0.05)
"""


@pytest.fixture
def sampled():
    return Sampled()


def evaluates(sampled, number, *launched):
    """Return whether a sample evaluates, as steps were launched in these stacks."""
    stacks = sampled.stacks
    for other in launched:
        stacks.launched(other, "update")
    return stacks.evaluates(stacks.stack(number))


def is_code(sampled, number):
    return sampled.stacks.is_code(sampled.stack(number))


def test_names_of_functions_within_the_loop_tell_what_is_no_training(tmp_path, own_name, sampled):
    source = "\n".join(
        [
            "def validate(look, *args):\n    return look(*args)",
            "def loop_of_evaluations(look):\n    return validate(look)",
            "def fit_valid_model(look):\n    return passing(look)",
            "def passing(look):\n    return look()",
        ]
    )
    program = imported(tmp_path / "program.py", source, own_name)
    assert evaluates(sampled, program.validate(sampled))
    assert evaluates(sampled, program.fit_valid_model(sampled))
    assert not evaluates(sampled, program.passing(sampled))
    launched = program.fit_valid_model(sampled)
    assert not evaluates(sampled, launched, launched)
    assert evaluates(sampled, program.loop_of_evaluations(sampled), launched)


def test_a_call_within_a_function_that_may_evaluate_is_no_sign_of_the_loop(tmp_path, own_name, sampled):
    source = "def train(look):\n    return look(), validate(look)\n\ndef validate(look):\n    return look()\n"
    program = imported(tmp_path / "program.py", source, own_name)
    trained, validated = program.train(sampled)
    for event, evaluation in (("call", True), ("gradient", False)):
        stacks = sampled.stacks
        stacks.launched(trained, "call")
        stacks.launched(validated, event)
        assert stacks.evaluates(stacks.stack(validated)) is evaluation


@pytest.mark.parametrize(("library", "evaluation"), [("torch/nn/modules/module.py", True), ("trainer/loop.py", False)])
def test_a_model_that_pytorch_calls_is_of_the_evaluation_around_it(tmp_path, own_name, sampled, library, evaluation):
    calls = imported(
        tmp_path / "site-packages" / library, "def call(function):\n    return function()\n", f"{own_name}_library"
    )
    source = (
        "def evaluate(call, look):\n    return call(lambda: forward(look))\n\ndef forward(look):\n    return look()\n"
    )
    program = imported(tmp_path / "program.py", source, own_name)
    assert evaluates(sampled, program.evaluate(calls.call, sampled)) is evaluation


@pytest.mark.parametrize(
    ("asks", "loads"),
    [
        ("next(batches(look))", True),
        ("[batch for batch in batches(look)][0]", sys.version_info >= (3, 12)),  # before, of another function
        ("sum(batches(look), ())", False),  # a call of the loop
        ("draw(batches(look))", True),
        ("logged(look)", False),
    ],
)
def test_a_generator_prepares_a_batch_where_the_loop_draws_from_it(tmp_path, own_name, sampled, asks, loads):
    source = f"""
def batches(look):
    yield (look(),)

def draw(found):
    return next(found)

def logged(look):
    return max((look(),) for _ in range(1))

def loop(look):
    return {asks}[0], look()
"""
    program = imported(tmp_path / "program.py", source, own_name)
    drawn, launched = program.loop(sampled)
    stacks = sampled.stacks
    stacks.launched(launched, "update")
    assert stacks.loads(stacks.stack(drawn)) is loads
    assert not stacks.loads(stacks.stack(launched))


def test_a_for_loop_draws_from_generators_within_those_of_libraries_unless_the_loop_is_in_one(
    tmp_path, own_name, sampled
):
    bars = "def bar(of):\n    for each in of:\n        yield each\n"
    bar = imported(tmp_path / "site-packages" / "bars.py", bars, f"{own_name}_library").bar
    source = """
def batches(look):
    yield look()

def loop(look, bar):
    for number in bar(batches(look)):
        return number, look()
"""
    drawn, launched = imported(tmp_path / "program.py", source, own_name).loop(sampled, bar)
    stacks = sampled.stacks
    assert not stacks.loads(stacks.stack(drawn))  # by a function that launches no step
    stacks.launched(launched, "update")
    assert stacks.loads(stacks.stack(drawn))
    stacks.launched(drawn, "update")
    assert not stacks.loads(stacks.stack(drawn))


def calls_code(sampled, call, *callees):
    """Return whether each of these names, in place of what calls the function, is code of the program."""
    facts = []

    def look():
        frame = sys._getframe(1)
        facts.extend((name, *raw._scope(frame.f_code, frame.f_globals, name.partition(".")[0])) for name in callees)
        return sampled.table.add(raw.outwards(frame))

    number = call(look)
    frame, *_ = sampled.stack(number)
    names = ("callee", "callee_scope", "callee_module")
    return [sampled.stacks.calls_code(frame._replace(**dict(zip(names, each, strict=True)))) for each in facts]


def test_calls_of_the_standard_library_and_of_arrays_of_the_host_are_code_of_the_program(tmp_path, own_name, sampled):
    program = imported(tmp_path / "program.py", CODE, own_name)
    program.framework = imported(tmp_path / "site-packages" / "framework.py", "", "framework")
    names = ["json.dumps", "time.sleep", "json.JSONEncoder().encode", "labels.count", "….items"]
    assert all(calls_code(sampled, program.through, *names))
    # the builtins may wait for a device, and what a framework does is to compute
    names = ["framework.call", "float", "print", "call", "json", "tensor.sort", "count", ""]
    assert not any(calls_code(sampled, program.through, *names))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_random_numbers_of_the_host_are_code_of_the_program(tmp_path, own_name, monkeypatch, sampled, framework):
    """Generators of JAX, Flax and TensorFlow have methods of the same names."""
    program = imported(tmp_path / "program.py", CODE, own_name)
    program.framework = imported(tmp_path / "site-packages" / "it.py", "def call(look):\n    look()", f"{own_name}_it")
    monkeypatch.setattr(program.framework, "__name__", f"{framework}.random")
    program.framework.call(sampled)  # what runs in the program, as its stacks show
    drawn = calls_code(sampled, program.through, "self.rng.normal", "rng.integers")
    assert drawn == [framework == "torch"] * 2
    assert not any(calls_code(sampled, program.through, "framework.normal", "normal", "tensor.normal_"))


def test_what_the_standard_library_calls_back_is_code_of_the_program(tmp_path, own_name, sampled):
    class_in_library = (
        "class Tensor:\n    def __init__(self, look):\n        self.look = look\n"
        "    def __deepcopy__(self, memo):\n        return self.look()\n"
    )
    framework = imported(tmp_path / "site-packages" / "framework.py", class_in_library, "framework")
    program = imported(
        tmp_path / "program.py", "import copy\ndef average(model):\n    return copy.deepcopy(model)\n", own_name
    )
    assert is_code(sampled, program.average(framework.Tensor(sampled)))


@pytest.mark.parametrize(("package", "code"), [("pandas", True), ("framework", False)])
def test_what_libraries_of_the_host_do_in_python_is_code_of_the_program(
    tmp_path, own_name, monkeypatch, sampled, package, code
):
    library = imported(tmp_path / "site-packages" / "library.py", "def read(look):\n    return look()\n", own_name)
    monkeypatch.setattr(library, "__name__", f"{package}.io")
    program = imported(tmp_path / "program.py", "def load(read, look):\n    return read(look)\n", f"{own_name}_program")
    assert is_code(sampled, program.load(library.read, sampled)) is code


def test_modules_that_a_function_imports_are_seen_where_they_are_called(tmp_path, own_name, sampled):
    source = (
        "def outer(look):\n    import numpy as np\n    import json\n    signal = object()\n"
        "    def inner():\n        np, json\n        return look()\n    return look()\n"
        "def closure(look):\n    import numpy as np\n    import json\n"
        "    def inner():\n        np, json\n        return look()\n    return inner()\n"
    )
    program = imported(tmp_path / "program.py", source, own_name)
    names = ("np.stack", "json.dumps", "signal.mean")
    assert calls_code(sampled, program.outer, *names) == [True, True, False]
    assert calls_code(sampled, program.closure, *names) == [True, False, False]


@pytest.mark.parametrize("name", ["spin", "rest", "wait"])
def test_a_thread_that_runs_python_sleeps_or_waits_for_another_runs_code(tmp_path, own_name, sampled, name):
    program = imported(tmp_path / "program.py", CODE, own_name)
    stop, box = threading.Event(), queue.Queue()
    thread = threading.Thread(target=getattr(program, name), args=(box if name == "wait" else stop,), daemon=True)
    thread.start()
    try:
        until(lambda: is_code(sampled, sampled.table.add(raw.stacks()[thread.ident])))
    finally:
        stop.set()
        box.put(None)
        thread.join(60)


def test_imports_within_a_call_are_named_and_not_those_around_the_program(tmp_path, monkeypatch, own_name, sampled):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "lazy.py").write_text("import sys\ndef call():\n    import lazy_part\n")
    (installed / "lazy_part.py").write_text(f"import sys\nsys.modules['{own_name}'].look()\n")
    (tmp_path / "program.py").write_text(f"import sys, lazy\nsys.modules['{own_name}'].look()\nlazy.call()\n")
    for folder in (installed, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    numbers = []

    def look():
        numbers.append(sampled.table.add(raw.outwards(sys._getframe(1))))

    monkeypatch.setitem(sys.modules, own_name, SimpleNamespace(look=look))
    for name in ("program", "lazy", "lazy_part"):
        monkeypatch.setitem(sys.modules, name, None)  # which is undone, whatever is imported meanwhile
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("program")
    places = [sampled.stacks.meaning(number, (), None, False).place for number in numbers]
    assert [place.partition(" ← ")[2] for place in places] == ["….look", "lazy.call (imports)"]


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/a/train.py", True),
        ("train.py", True),
        ("<stdin>", True),
        ("<frozen importlib._bootstrap>", False),
        ("<__array_function__ internals>", False),
        ("/home/a/venv/lib/python3.12/site-packages/keras/src/models/model.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/tmp/__autograph_generated_filex1.py", False),
        ("/hook/sitecustomize.py", False),
        (threading.__file__, False),
        (schema.__file__, False),
        (__file__, True),
    ],
)
def test_user_code_is_what_is_not_installed(file, user):
    assert is_user_code(file) is user


# -- tables ----------------------------------------------------------------------------------------------------------

SHARED = {
    "host": "vm",
    "first_line": 1,
    "module": "m",
    "generator": False,
    "hidden": False,
    "converted": False,
    "operation": "CALL",
}


def table(*rows):
    """Return STACKS of (caller, file, function, callee, home), numbered in order; others are the same for all."""
    names = ("caller", "file", "function", "callee", "home")
    rows = [{**SHARED, "stack": n, "line": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)]
    return pl.DataFrame(rows, schema=schema.STACKS)


STACKS = table(
    (None, "/home/a/train.py", "main", "train", None),
    (0, "/home/a/train.py", "train", "step", None),
    (1, "/venv/lib/python3.11/site-packages/jax/api.py", "step", None, "python"),
    (0, "/home/a/train.py", "evaluate", "time.sleep", None),
    (None, "/usr/lib/python3.11/threading.py", "run", None, "python"),
    (4, "/home/a/data.py", "produce", "read", None),
)


def looks(*rows):
    """Return STACK_SAMPLES of (time, stack, others, event, samples, whether work is in flight)."""
    names = ("start_ps", "stack", "others", "event", "stands_for", "computes")
    rows = [{"host": "vm", "thread": 1, "late": False, **dict(zip(names, row, strict=True))} for row in rows]
    return pl.DataFrame(rows, schema=schema.STACK_SAMPLES)


@pytest.mark.parametrize(("worked", "code"), [(0.9, True), (0.1, False), (None, False)])
def test_a_builtin_is_code_where_the_thread_works_and_does_not_wait_for_a_device(worked, code):
    stacks = table((None, "/home/a/train.py", "push", "max", None)).with_columns(callee_scope=pl.lit("global"))
    seen = looks((10, 0, [], None, 1, False)).with_columns(worked=pl.lit(worked, pl.Float64))
    samples = placed_samples(seen, Stacks(stacks, seen))
    assert samples.select("code", "worked").rows() == [(code, worked)]


@pytest.mark.parametrize(("method", "code"), [("log.flush", True), ("log.write", True), ("model.forward", False)])
def test_a_method_of_files_is_code_however_long_it_waits(method, code):
    stacks = table((None, "/home/a/train.py", "push", method, None)).with_columns(callee_scope=pl.lit("local"))
    seen = looks((10, 0, [], None, 1, False)).with_columns(worked=pl.lit(0.1))
    assert placed_samples(seen, Stacks(stacks, seen))["code"].to_list() == [code]


def test_samples_mean_what_their_stacks_do():
    seen = looks(
        (10, 2, [], None, 1, False),
        (20, 2, [5], None, 2, False),  # no library has started that thread
        (30, 3, [], None, 1, False),
        (40, 1, [], "update", 0, False),
        (50, 3, [], None, 1, True),
        (60, 2, [], None, 1, True),
        (70, 9, [], None, 1, False),  # its stack is lost
        (80, None, [], None, 1, True),
    )
    samples = placed_samples(seen, Stacks(STACKS, seen))
    assert dict(samples.schema) == schema.SAMPLES
    assert samples["python"].to_list() == [False, False, False, True, False, False, False]
    samples = samples.drop("launches", "model", "python", "worked", "computes")
    computes, sleeps = "train.py:1 in train ← step", "train.py:3 in evaluate ← time.sleep"
    assert samples.rows() == [
        ("vm", 10, computes, False, False, False),
        ("vm", 20, computes, False, False, False),
        ("vm", 20, computes, False, False, False),
        ("vm", 30, sleeps, False, False, True),
        ("vm", 50, sleeps, False, False, True),
        ("vm", 60, computes, False, False, False),
        ("vm", 80, None, False, False, False),
    ]


def test_samples_are_in_a_call_that_launches_steps_at_its_line_alone():
    rows = table(
        (None, "/home/a/train.py", "main", "step", None),
        (None, "/home/a/train.py", "main", None, None),  # right after the call
        (None, "/home/a/train.py", "main", "print", None),
    )
    stacks = Stacks(rows.with_columns(line=pl.lit(7), first_line=pl.lit(1)))
    assert not stacks.launches(stacks.stack(0))
    stacks.launched(0, "call")
    assert [stacks.launches(stacks.stack(number)) for number in range(3)] == [True, True, False]


def test_the_line_that_calls_a_model_is_the_outermost_one():
    module = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
    rows = table(
        (None, "/home/a/train.py", "main", "teacher", None),
        (0, module, "Module._call_impl", None, None),
        (1, "/home/a/model.py", "Net.forward", "self.layer", None),
        (2, module, "Module._call_impl", None, None),
        (None, "/venv/lib/python3.11/site-packages/transformers/trainer.py", "train", None, None),
        (4, module, "Module._call_impl", None, None),
    )
    stacks = Stacks(rows)
    models = [stacks.meaning(number, (), None, False).model for number in (0, 3, 5)]
    assert models == [None, "train.py:0 in main ← teacher", None]


def test_what_autograph_converted_has_the_place_of_its_source_and_is_of_a_library():
    rows = table(
        (None, "/home/a/train.py", "train", "step", None),
        (0, "/home/a/train.py", "step", None, None),
        (1, "/venv/lib/python3.11/site-packages/tensorflow/autograph/api.py", "converted_call", None, None),
    )
    stacks = Stacks(rows.with_columns(converted=pl.col("function") == "step"))
    assert stacks.meaning(2, (), None, False)[:4] == ("train.py:1 in step", False, False, False)
    assert stacks.meaning(1, (), None, False)[:4] == ("train.py:1 in step", False, False, False)


def test_a_thread_that_the_training_waits_for_is_the_place_of_its_samples():
    waits = looks((10, 2, [5], None, 1, False)).with_columns(account=pl.lit("data loading"))
    assert placed_samples(waits, Stacks(STACKS))["place"].to_list() == ["data.py:5 in produce ← read"]


LOCKS = table(
    (None, "/home/a/train.py", "log", None, None),
    (0, "/usr/lib/python3.11/queue.py", "get", None, "python"),
    (None, "/usr/lib/python3.11/threading.py", "run", None, "python"),
    (2, "/home/a/data.py", "write", "time.sleep", None),
    (2, "/home/a/data.py", "count", None, None),
)


@pytest.mark.parametrize(
    ("operation", "others", "place"),
    [
        ("BEFORE_WITH", [3], "train.py:0 in log waits for data.py:3 in write ← time.sleep"),
        ("BEFORE_WITH", [4, 3], "train.py:0 in log waits for data.py:3 in write ← time.sleep"),  # one waits, too
        ("BEFORE_WITH", [], "train.py:0 in log"),
        ("CALL", [3], "train.py:0 in log"),
    ],
)
def test_where_the_training_waits_for_a_lock_the_thread_that_holds_it_is_named(operation, others, place):
    waiting = pl.col("stack").is_in([0, 4])
    rows = LOCKS.with_columns(operation=pl.when(waiting).then(pl.lit(operation)).otherwise("operation"))
    assert Stacks(rows).place(0, others, None) == place
    assert Stacks(rows).place(0, others, "callbacks") == "train.py:0 in log"


def test_a_thread_that_fills_a_queue_of_the_program_is_named_where_the_training_waits_for_it():
    of_python = LOCKS.with_columns(module=pl.col("file").str.extract(r"(\w+)\.py$"))
    assert Stacks(of_python).place(1, [3], None) == "train.py:0 in log ← get waits for data.py:3 in write ← time.sleep"


def stalls(*rows):
    """Return STACK_STALLS of (start, stack, samples, locked), of a stall of a hundred samples each."""
    names = ("start_ps", "stack", "samples", "locked")
    rows = [
        {"host": "vm", "dur_ps": 9, "others": [], "share": row[2] / 100, **dict(zip(names, row, strict=True))}
        for row in rows
    ]
    return pl.DataFrame(rows, schema=schema.STACK_STALLS)


def test_stacks_of_one_place_are_one_row_of_a_stall():
    rows = stalls((20, 0, 40, False), (20, 2, 30, False), (20, 1, 30, True), (10, 3, 100, False))
    found = placed_stalls(rows, Stacks(STACKS))
    assert dict(found.schema) == schema.STALLS
    at = "train.py:1 in train ← step"
    assert found.select("start_ps", "place", "samples", "share", "locked").rows() == [
        (10, "train.py:3 in evaluate ← time.sleep", 100, 1.0, False),
        (20, at, 60, pytest.approx(0.6), True),
        (20, "train.py:0 in main ← train", 40, 0.4, False),
    ]


def test_a_stall_keeps_the_places_with_most_samples():
    lines = table(*((None, "/home/a/train.py", "f", None, None) for _ in range(20)))
    found = placed_stalls(stalls(*((0, line, 1 + (line >= 10), False) for line in range(20))), Stacks(lines))
    assert found["samples"].to_list() == [2] * 8
    assert found["place"].to_list() == [f"train.py:{line} in f" for line in range(10, 18)]


def test_without_rows_there_are_none():
    assert dict(placed_samples(looks(), Stacks(STACKS)).schema) == schema.SAMPLES
    assert dict(placed_stalls(stalls(), Stacks(STACKS.clear())).schema) == schema.STALLS
    assert placed_samples(looks((10, 2, [], None, 1, False)), Stacks(STACKS.clear())).is_empty()


def test_a_damaged_table_of_stacks_ends():
    circle = table((1, "a.py", "f", None, None), (0, "a.py", "g", None, None), (1, "a.py", "h", None, None))
    assert [frame.function for frame in Stacks(circle).stack(2)] == ["h", "g", "f"]
    endless = looks((10, 2, None, None, 10**12, None))
    assert len(placed_samples(endless, Stacks(circle))) == 100
