"""Clusters that alternate, against steps that something disturbed."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import tpunb as tp
from tpunb.cluster import dbscan
from tpunb.cluster.paces import alternate
from tpunb.testing import spelled_steps

MS = 10**9
OPS = ("conv", "grad", "relu", "update")


def steps(factors, *, noise=0.0, disturbed=None, seed=0):
    """Return steps whose operations take 1 ms times a factor; `disturbed` steps have 4 ms more in one of them."""
    random = np.random.default_rng(seed)
    rows = []
    for at, factor in enumerate(factors):
        times = factor * MS * random.lognormal(0, noise, len(OPS))
        if disturbed is not None and disturbed[at]:
            times[random.integers(len(OPS))] += 4 * MS
        rows.append(({}, dict(zip(OPS, times.astype(int).tolist(), strict=True))))
    durs = [sum(host.values()) for _, host in rows]
    spelled = spelled_steps(*rows)
    starts = np.cumsum([0, *durs[:-1]])
    return replace(spelled, frame=spelled.frame.with_columns(start_ps=starts, dur_ps=pl.Series(durs)))


def judged(of, labels):
    return alternate(of, np.arange(len(labels)), np.array(labels))


def test_more_data_that_alternates_is_other_work():
    assert judged(steps([1, 2, 1, 1, 2, 2, 1, 2, 1, 2]), [0, 1, 0, 0, 1, 1, 0, 1, 0, 1])


def test_slow_steps_in_one_stretch_are_not():
    assert not judged(steps([1] * 8 + [2] * 8 + [1] * 8), [0] * 8 + [1] * 8 + [0] * 8)


def test_steps_with_one_operation_lengthened_are_not():
    slow = [at % 3 == 0 for at in range(60)]
    assert not judged(steps([1] * 60, disturbed=slow), [int(each) for each in slow])


@pytest.mark.parametrize("labels", [[0] * 10, [0, 1, 0, 0, 1, 0, 0, 0, 0, 0], [-1] * 10])
def test_one_cluster_and_a_few_steps_are_not(labels):
    assert not judged(steps([1 + (label == 1) for label in labels]), labels)


def test_paces_that_overlap_or_are_close_are_not():
    assert not judged(steps([1, 1.3] * 10), [0, 1] * 10)
    assert not judged(steps([1, 2, 3, 2, 1, 4, 3, 5] * 4), [0, 1] * 16)


def test_noisy_batches_of_three_lengths_are_three_phases():
    which = np.random.default_rng(3).integers(0, 3, 60)
    labels = tp.phases(steps(np.array([1, 2.4, 6])[which], noise=0.4, seed=1)).labels.to_numpy()
    assert len(set(labels[labels >= 0].tolist())) == 3
    assert all(len({label for label in labels[which == each].tolist() if label >= 0}) == 1 for each in range(3))


def test_one_range_is_chosen_where_two_begin_at_one_distance(monkeypatch):
    ranges = {"low": [0.3, 0.3, 1.0], "high": [0.3, 0.9, 1.0], "clusters": [3, 2, 1], "inside": [0.95, 1.0, 1.0]}
    found = pl.DataFrame(ranges | {"eps": [None, None, 1.0], "chosen": [False, False, True]})
    monkeypatch.setattr(dbscan, "eps_candidates", lambda *_: found)
    monkeypatch.setattr(dbscan, "alternate", lambda *_: True)
    assert tp.DBSCAN()(steps([1, 2] * 10)).sweeps["eps"]["chosen"].to_list() == [False, True, False]
