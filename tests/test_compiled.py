"""Compiled loops, kept on disk for later processes."""

import importlib.util
from pathlib import Path

import numpy as np

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
