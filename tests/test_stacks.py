"""Stacks are raw facts, each frame once below its caller, in bounded memory."""

import dis
import gc
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from sampled_stacks import Sampled, imported
from warm_python import NOTEBOOK, warm_python

from tpunb import schema
from tpunb.profiler import stacks as raw
from tpunb.profiler.stacks import StackTable, outwards, stacks


def test_a_stack_is_its_innermost_frame_and_shares_those_around_it():
    sampled = Sampled()

    def one():
        return sampled()

    def both():
        return one(), one(), sampled()

    first, second, outer = both()
    table = sampled.table.unwritten("vm")
    assert dict(table.schema) == schema.STACKS
    rows = {row["stack"]: row for row in table.iter_rows(named=True)}
    assert rows[first]["function"].endswith("one")
    assert first == second  # the facts are the same
    assert rows[rows[first]["caller"]]["function"] == rows[outer]["function"]
    assert rows[outer]["file"] == __file__
    assert rows[outer]["callee"] == "sampled"
    assert rows[outer]["first_line"] == both.__code__.co_firstlineno
    assert table["stack"].to_list() == [*range(len(table))]
    assert (table["caller"] < table["stack"]).all()
    assert sampled.table.unwritten("vm").equals(table)
    sampled.table.written(len(table))
    assert sampled.table.unwritten("vm").is_empty()


def test_instructions_of_one_line_of_a_library_are_one_frame(tmp_path, own_name):
    library = imported(tmp_path / "site-packages" / "two.py", "def twice(call):\n    return call(), call()\n", own_name)
    table = StackTable()
    first, second = library.twice(lambda: table.add(outwards(sys._getframe(1))))
    assert first == second


def test_a_full_table_takes_no_stack_more_and_keeps_those_it_has(monkeypatch):
    sampled = Sampled()

    def known():
        return sampled()

    def later():
        return sampled()

    number = known()
    monkeypatch.setattr(raw, "LIMITS", replace(raw.LIMITS, most_frames=len(sampled.table.unwritten("vm"))))
    assert later() is None
    assert len(sampled.table.unwritten("vm")) == raw.LIMITS.most_frames
    assert number is not None


def test_a_table_forgets_instructions_not_frames(monkeypatch):
    sampled = Sampled()

    def known():
        return sampled()

    numbers = []
    for _ in range(3):
        numbers.append(known())
        monkeypatch.setattr(raw, "LIMITS", replace(raw.LIMITS, most_frames=len(sampled.table.unwritten("vm")) + 1))
        sampled.table._numbers.clear()
    assert len({*numbers}) == 1


def test_names_that_are_not_unicode_or_endless_are_kept_as_text(tmp_path):
    code = compile("\ndef f(look): return look()", "a\udcff" + "b" * 5000, "exec")
    names = {"__name__": object()}
    exec(code, names)
    table = StackTable()
    number = names["f"](lambda: table.add(outwards(sys._getframe(1))))
    row = table.unwritten("vm").row(number, named=True)
    assert row["file"].startswith("a?bbb")
    assert len(row["file"]) == 1000
    assert row["module"] is None


def test_what_a_name_of_the_program_is(tmp_path, own_name):
    source = (
        "import json\ndef outer(look):\n    import numpy as np\n    import csv\n    signal = object()\n"
        "    def inner():\n        np, csv\n        return look()\n    return look(), inner(), np, csv, signal\n"
    )
    program = imported(tmp_path / "program.py", source, own_name)

    def look():
        frame = sys._getframe(1)
        return {name: raw._scope(frame.f_code, frame.f_globals, name) for name in ("np", "csv", "signal", "json", "x")}

    of_outer, of_inner, *_ = program.outer(look)
    assert of_outer == {
        "np": ("module", "numpy"),
        "csv": ("module", "csv"),
        "signal": ("local", None),
        "json": ("module", "json"),
        "x": ("global", None),
    }
    assert (of_inner["np"], of_inner["csv"]) == (("free", None), ("free", None))


def test_a_value_of_the_program_that_raises_has_no_module(tmp_path, own_name):
    source = "class Raises:\n    @property\n    def __module__(self):\n        raise KeyError\nvalue = Raises()\n"
    program = imported(tmp_path / "program.py", source, own_name)
    program.float = float
    code = compile("value.count()", "program.py", "exec")
    assert raw._scope(code, vars(program), "value") == ("global", None)
    assert raw._scope(code, vars(program), "float") == ("global", "builtins")


def test_what_a_collection_of_garbage_calls_is_not_where_a_thread_is():
    entered, stop = threading.Event(), threading.Event()

    def on_collection(phase, facts):
        if threading.current_thread() is thread:
            entered.set()
            stop.wait(60)

    def busy():
        gc.collect()

    thread = threading.Thread(target=busy)
    gc.callbacks.append(on_collection)
    thread.start()
    try:
        assert entered.wait(60)
        assert stacks()[thread.ident][0].f_code.co_name == "busy"
    finally:
        gc.callbacks.remove(on_collection)
        stop.set()
        thread.join(60)


_COLLECTING = """
import gc, threading, time
from tpunb.profiler.stacks import stacks

gc.callbacks.append(lambda phase, facts: time.sleep(0.001))  # lets other threads run
end_s = time.monotonic() + 0.5
threads = [threading.Thread(target=lambda: [stacks() for _ in iter(lambda: time.monotonic() < end_s, False)])
           for _ in range(2)]
gc.set_threshold(1)
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(gc.isenabled())
"""


@pytest.mark.live
def test_garbage_is_not_collected_while_stacks_are_read():
    # before Python 3.11.9 all threads would stop forever
    command = [*warm_python(NOTEBOOK), "-c", _COLLECTING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "True", done.stderr


_LEAVING = """
import gc, threading, time
from tpunb.profiler.stacks import stacks

gc.callbacks.append(lambda phase, facts: time.sleep(0.0001))  # lets the other thread leave its frames
end_s = time.monotonic() + 2

def leaf(*values):
    return len([*values]) + len({"a": values})

def nested(depth):
    return nested(depth - 1) + leaf(*"abcdefgh") if depth else leaf("a")

def work():
    while time.monotonic() < end_s:
        nested(time.monotonic_ns() % 40)

thread = threading.Thread(target=work)
thread.start()
gc.set_threshold(1)
names = set()
while time.monotonic() < end_s:
    names |= {frame.f_code.co_name for frame in stacks().get(thread.ident, ())}
thread.join()
print(*sorted(names & {"work", "run", "_bootstrap"}))
"""


@pytest.mark.live
def test_the_frames_of_a_thread_that_leaves_them_are_read_while_garbage_is_collected():
    # before Python 3.12 these would be others, or none: the process ended
    command = [*warm_python(NOTEBOOK), "-c", _LEAVING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["_bootstrap", "run", "work"], done.stderr


def test_each_import_of_a_statement_is_named():
    code = compile("import json, os.path as path\nfrom math import pi\npi()", "train.py", "exec")
    named = [raw._imported(code, each.offset) for each in dis.get_instructions(code)]
    assert [each for each in named if each] == ["import json", "import os.path", "import math"]


GUARDS = """
import sys, threading
from tpunb.profiler.stacks import stacks
ended, over = set(), threading.Event()
class Guard:
    def __del__(self):
        ended.add(threading.get_ident())
def guarded():
    guard = Guard()
    return sum(range(50)), guard is None
def sample():
    while not over.is_set():
        stacks()
sampler = threading.Thread(target=sample)
sys.setswitchinterval(1e-5)
sampler.start()
for _ in range(100_000):
    guarded()
over.set()
sampler.join()
sys.exit(ended != {threading.get_ident()})
"""


@pytest.mark.live
def test_variables_of_a_sampled_function_end_in_its_own_thread():
    """So guards do, such as those of PyTorch: in another thread they reset its state, and leave that of their own.

    A process of its own, and without the audit hook of the tests, which would run between two frames.
    """
    assert subprocess.run([sys.executable, "-c", GUARDS], check=False).returncode == 0
