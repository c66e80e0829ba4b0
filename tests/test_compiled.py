"""Compiled loops, kept on disk for later processes."""

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.registry import CPUDispatcher
from warm_python import NOTEBOOK, warm_python

from tpunb.cluster import kernels
from tpunb.compiled import compiled_later
from tpunb.frames import phase_sums, sparse_loops

LOOP = """
from tpunb.compiled import compiled

@compiled
def total(values):
    result = values[0] - values[0]
    for value in values:
        result += value
    return result
"""


def _process(path):
    """Return the loop as a further process would have it."""
    spec = importlib.util.spec_from_file_location("loops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.total


def test_processes_that_compile_a_loop_for_different_types_at_one_moment_keep_both_apart(tmp_path, monkeypatch):
    path = tmp_path / "loops.py"
    path.write_text(LOOP, encoding="utf-8")
    one, other = _process(path), _process(path)
    for process in (one, other):  # each reads the index before the other has written it
        monkeypatch.setattr(process._cache._cache_file, "_load_index", dict)
    assert one(np.array([1, 2])) == 3
    assert other(np.array([0.25, 0.5])) == 0.75
    assert len([*Path(one._cache.cache_path).glob("*.nbc")]) == 2
    later = _process(path)
    assert later(np.array([0.25, 0.5])) == 0.75
    assert later(np.array([1, 2])) == 3
    assert sum(later.stats.cache_hits.values()) == 1  # the other's entry was lost, not its code mixed up


def test_a_later_process_compiles_nothing(tmp_path):
    path = tmp_path / "loops.py"
    path.write_text(LOOP, encoding="utf-8")
    first = _process(path)
    first(np.array([1, 2])), first(np.array([0.5]))
    later = _process(path)
    assert later(np.array([1, 2])) == 3
    assert later(np.array([0.5])) == 0.5
    assert sum(later.stats.cache_hits.values()) == 2
    assert not later.stats.cache_misses


# -- what a short run calls instead -----------------------------------------------------------------------------------


def sparse(random):
    """Return random entries of steps × operations, as `int_arrays` has them: row ends, columns, single values."""
    steps, ops = random.integers(0, 30), random.integers(0, 12)
    ran = random.random((steps, ops)) < random.random()
    values = random.random(int(ran.sum()), dtype=np.float32) * np.float32(random.choice([1, 1e6]))
    return np.append(0, ran.sum(axis=1).cumsum()), np.nonzero(ran)[1].astype(np.int32), values, ops


def grouped(random):
    """Return the phase of each step, and what depends on the steps alone."""
    n = random.integers(0, 60)
    phase, time = random.integers(0, 3, n), random.integers(0, 9, n) * 10**9
    order = np.argsort(time, kind="stable")
    flags, varies = random.integers(0, 4, n), random.integers(0, 3, n).astype(np.int8)
    sums, mxu = random.integers(-5, 9, (n, 3)), random.random(n)
    median = random.integers(0, 9, n) * 10**9
    return phase, phase_sums.StepValues(flags, sums, mxu, time, varies, time, median, order, np.arange(n), order)


def entries(random):
    indptr, columns, _, ops = sparse(random)
    n, order = columns.size, random.permutation(columns.size) if random.random() < 0.5 else np.arange(columns.size)
    figures = (random.integers(-3, 10**12, n) for _ in range(3))
    rows = np.sort(random.choice(indptr.size - 1, random.integers(0, indptr.size), replace=False))
    found = phase_sums._Entries(indptr, columns, order.astype(np.uint32), *figures)
    return rows, random.integers(0, 3, rows.size), found, np.zeros((3, ops, 5), np.int64)


def root_sums(random):
    indptr, columns, values, ops = sparse(random)
    rows = np.sort(random.choice(indptr.size - 1, random.integers(0, indptr.size), replace=False))
    return rows, random.integers(0, 3, rows.size), random.random(rows.size), indptr, columns, values, np.zeros((3, ops))


def of_rows(random, name):
    """Return the arguments of a loop over entries, by its name."""
    indptr, columns, values, ops = sparse(random)
    size, rows = values.size, np.repeat(np.arange(indptr.size - 1, dtype=np.int32), np.diff(indptr))
    mean, weight = (random.random(ops, dtype=np.float32) for _ in range(2))
    place = random.permutation(np.append(np.arange(ops // 2), np.full(ops - ops // 2, -1)))
    first = random.integers(0, indptr.size)
    return {
        "first_rows": (random.integers(0, 9, size).astype(np.uint32),),
        "places": (random.integers(3, 9, size), 3, 8),
        "in_order": (rows, columns if random.random() < 0.5 else random.permutation(columns)),
        "values": (random.integers(-9, 10**13, size + 1), random.permutation(size).astype(np.uint32), 1e-6),
        "column_sums": (values, columns, mean, int(random.integers(1, 3)), int(random.integers(1, 50))),
        "counts": (columns, ops),
        "of_sides": (indptr, columns, values, random.integers(0, 2, ops), random.random(indptr.size - 1)),
        "names_of_rows": (indptr, columns, random.random((indptr.size - 1, 2)), ops),
        "folded": (indptr, columns, values, place, mean, weight),
        "add_dense": (indptr[first:], columns, values, place, np.zeros((indptr.size - 1 - first, ops // 2))),
        "_sums": (random.integers(0, 3, indptr.size - 1), indptr, columns, values, np.zeros((3, ops))),
        "shared_ops": (indptr, columns, np.zeros(indptr.size - 1, np.int64)),
    }[name]


def of_steps(random, name):
    phase, steps = grouped(random)
    size = np.bincount(phase, minlength=3)
    return {
        "phase_sums": (phase, 3, 4, steps),
        "phase_deviations": (phase, steps, np.array([1, 2, 1]), random.random(3), np.array([-1, 5, 10**9]), 1.5),
        "middle_values": (phase, steps.by_time, steps.time, size),
        "phase_ends": (phase, steps, size),
        "part_sums": (phase, phase, np.arange(phase.size), phase % 2, random.random(phase.size), 3, np.zeros((9, 2))),
        "renumbered": (phase - 1, random.permutation(phase.size), 3),
    }[name]


def borders(random):
    n = random.integers(0, 20)
    core = np.flatnonzero(random.random(n) < 0.5)
    label = random.integers(-1, 3, n)
    label[core] = random.integers(0, 3, core.size)
    return random.random((n, n)) < 0.3, core, label


def scanned(random):
    """Return steps of few sets of operations and similar times, so that phases accept them: also more than slots."""
    ops, n = random.integers(1, 8), random.integers(1, 40)
    kinds = random.random((3, ops)) < 0.7
    ran = kinds[random.integers(0, 3, n)] ^ (random.random((n, ops)) < 0.05)
    indptr, columns = np.append(0, ran.sum(axis=1).cumsum()), np.nonzero(ran)[1].astype(np.int32)
    time = (random.random(columns.size) * random.choice([1, 100]) - 0.1).astype(np.float64) + columns
    order = random.permutation(columns.size).astype(np.uint32)
    rows = kernels.Rows(indptr, columns, order, time, int(random.integers(0, ops + 1)))
    starts = np.append([True], random.random(n - 1) < 0.1)
    limits = np.array([random.choice([0.0, 0.5, 0.97, 1.0]), random.choice([0.0, 0.5, 0.8, 1.0])])
    return rows, np.arange(n), np.ones(n), starts, limits, kernels.new_leaders(4, ops), np.zeros(n, np.int64)


LOOPS = {
    **{
        name: lambda random, name=name: of_rows(random, name)
        for name in (
            *("first_rows", "places", "in_order", "values", "column_sums", "counts", "of_sides", "names_of_rows"),
            *("folded", "add_dense", "_sums", "shared_ops"),
        )
    },
    **{
        name: lambda random, name=name: of_steps(random, name)
        for name in ("phase_sums", "phase_deviations", "middle_values", "phase_ends", "part_sums", "renumbered")
    },
    "_totals": entries,
    "_root_sums": root_sums,
    "join_borders": borders,
    "scan": scanned,
}
MODULES = (sparse_loops, phase_sums, kernels)


def loops():
    return {name: loop for module in MODULES for name, loop in vars(module).items() if hasattr(loop, "same")}


def flat(values):
    parts = values if isinstance(values, tuple) else (values,)
    return [each for part in parts for each in (flat(part) if isinstance(part, tuple) else [np.asarray(part)])]


@pytest.mark.parametrize("name", LOOPS)
def test_what_a_short_run_calls_gives_what_the_compiled_loop_gives(name):
    loop = loops()[name]
    for seed in range(200):
        args = LOOPS[name](np.random.default_rng(seed))
        results = []
        for call in (loop.same, lambda *args: CPUDispatcher.__call__(loop, *args)):
            own = copy.deepcopy(args)
            with np.errstate(all="ignore"):
                results.append(flat((call(*own), own)))
        for ours, compiled in zip(*results, strict=True):
            assert ours.shape == compiled.shape
            if name == "scan" and ours.dtype.kind == "f":  # any order: labels are equal
                np.testing.assert_allclose(ours, compiled, rtol=1e-9, atol=1e-9)
            else:
                assert ours.tolist() == compiled.tolist()


def test_every_loop_that_is_compiled_later_is_compared():
    assert {*loops()} == {*LOOPS, "join"}  # which scan calls for each step


def test_a_short_run_compiles_nothing_and_a_long_one_does():
    loop = compiled_later(lambda values: values.sum())(lambda values: values[0])  # unequal, to tell them apart
    assert loop(np.arange(4)) == 6
    assert not loop.signatures
    assert loop(np.ones(2_000_000)) == 1.0
    assert len(loop.signatures) == 1
    assert loop(np.array([5, 1])) == 5  # from then on


def test_a_loop_that_is_called_often_is_compiled():
    loop = compiled_later(lambda values: values.sum(), compiles_s=-1.0)(lambda values: values[0])
    assert loop(np.array([5, 1])) == 5


FIRST = """
import sys
import tpunb as tp
from numba.core.dispatcher import Dispatcher
from tpunb.cluster import kernels
from tpunb.frames import phase_sums, sparse_loops
from simulate.synthetic_runs import synthetic_run

def refuse(loop, signature):
    raise AssertionError(f"{loop.py_func.__name__} is compiled")

Dispatcher.compile = refuse
for module in (kernels, phase_sums, sparse_loops):
    for loop in vars(module).values():
        if hasattr(loop, "left_s"):
            loop.left_s = 1e9  # however slow the machine is
for sample in ("keras_cnn", "keras_transformer"):
    str(tp.report(tp.sample(sample)))
    tp.explore(tp.sample(sample)).value
for method in ("dbscan", "hdbscan", "kmeans", "ols", "olsplus"):
    tp.phases(synthetic_run(1_000, 60).steps, method)
"""


@pytest.mark.live
def test_the_first_report_and_each_method_on_a_short_run_compile_nothing():
    benchmarks = Path(__file__).parents[1] / "benchmarks"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(benchmarks), *sys.path])}
    done = subprocess.run([*warm_python(NOTEBOOK), "-c", FIRST], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
