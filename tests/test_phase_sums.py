"""What operations add up to in each phase, held against a group by of the same rows."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import lazy

from tpunb.frames import Steps, phase_sums
from tpunb.frames.op_matrix import op_matrix
from tpunb.frames.phase_sums import root_sums, sums, totals
from tpunb.testing import toy_steps

sparse = lazy("scipy.sparse")

PATTERN = "aabbcabcc"
LABELS = np.array([0, 0, 2, 2, -1, 0, 2, -1, -1])


def by_hand(steps, labels):
    """Totals as Polars has them."""
    columns = op_matrix(steps).ops.with_row_index("column")
    phase_of_step = steps.frame.select("host", "step", phase=pl.Series(labels, dtype=pl.Int64))
    rows = steps.ops.join(phase_of_step, on=["host", "step"]).join(columns, on=["side", "op"])
    return (
        rows.group_by("phase", pl.col("column").cast(pl.Int64))
        .agg(
            pl.col("step").n_unique().cast(pl.Int64).alias("ran"),
            pl.col("count", "total_ps", "self_ps").sum(),
            pl.col("self_ps").clip(0).sum().alias("spent_ps"),
        )
        .sort("phase", "column")
    )


def with_ops(change):
    steps = toy_steps(PATTERN)
    return Steps(steps.frame, change(steps.ops))


WAYS = {
    "as they are": lambda ops: ops,
    "shuffled": lambda ops: ops.sample(fraction=1.0, shuffle=True, seed=1),
    "backwards": lambda ops: ops.reverse(),
    "told twice": lambda ops: pl.concat([ops, ops.head(7)]),
    "of other steps too": lambda ops: pl.concat([ops, ops.head(3).with_columns(step=pl.lit(99, dtype=pl.Int64))]),
    "null and below 0": lambda ops: ops.with_columns(
        self_ps=pl.when(pl.int_range(pl.len()) % 3 == 0).then(None).otherwise(5 - pl.int_range(pl.len()) % 9)
    ),
    "beyond float64": lambda ops: ops.with_columns(self_ps=pl.lit(2**53 + 1)),
    "in pieces": lambda ops: pl.concat([ops.head(5), ops.slice(5)], rechunk=False),
    "none": lambda ops: ops.clear(),
}


@pytest.mark.parametrize("way", WAYS)
def test_totals_are_exact(way):
    steps = with_ops(WAYS[way])
    assert totals(steps, LABELS).equals(by_hand(steps, LABELS))


def test_phases_are_added_up_a_few_at_a_time(monkeypatch):
    steps = toy_steps(PATTERN)
    each = np.arange(len(PATTERN)) * 3 - 1
    whole = totals(steps, each)
    monkeypatch.setattr(phase_sums, "_NUMBERS", 2 * op_matrix(steps).ops.height)  # two phases
    assert totals(steps, each).equals(whole)
    assert whole.equals(by_hand(steps, each))


def test_of_no_steps_there_are_none():
    assert totals(toy_steps(""), np.zeros(0, dtype=np.int64)).rows() == []


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 6), st.integers(1, 5))
@settings(deadline=None)
def test_sums_of_values_are_those_of_the_dense_matrix(seed, n, d, phases):
    random = np.random.default_rng(seed)
    dense = np.where(random.random((n, d)) < 0.5, random.random((n, d)), 0).astype(np.float32)
    phase, weight = random.integers(0, phases, n), random.random(n)
    found = sums(sparse.csr_array(dense), phase, phases)
    assert found == pytest.approx(np.array([dense[phase == k].sum(axis=0, dtype=float) for k in range(phases)]))
    phase[random.random(n) < 0.3] = -1
    rooted = np.zeros((phases, d))
    for first, some in root_sums(sparse.csr_array(dense), phase, weight):
        rooted[first : first + len(some)] = some
    by_root = np.sqrt(dense) * weight[:, None]
    assert rooted == pytest.approx(np.array([by_root[phase == k].sum(axis=0) for k in range(phases)]))


STEP = {"phase": pl.Int64, "value": pl.Int64, "chosen": pl.Boolean, "usual": pl.Boolean}
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 999), st.booleans(), st.booleans()), max_size=80)


@given(STEPS)
def test_the_sums_ends_medians_and_variances_of_phases_are_those_of_polars(given_steps):
    rows = pl.DataFrame(given_steps, schema=STEP, orient="row").with_row_index("row")
    phase, value, row = (rows[name].to_numpy().astype(np.int64) for name in ("phase", "value", "row"))
    chosen, usual = (rows[name].to_numpy().copy() for name in ("chosen", "usual"))
    ascending = np.argsort(value, kind="stable")
    varies = np.where(chosen, np.where(usual, 1, 2), 0).astype(np.int8)
    order = ascending[chosen[ascending]]
    values = phase_sums.StepValues(
        1 * usual, np.stack([value, row], axis=1), value / 7, value, varies, value, 0 * value + 100, order, order, order
    )
    counts, added, floats = phase_sums.phase_sums(phase, 4, 2, values)
    size = np.bincount(phase[order], minlength=4)
    middle = phase_sums.middle_values(phase, order, value, size)
    ends, tenth, tenths = phase_sums.phase_ends(phase, values, size)
    expected = pl.DataFrame({"phase": phase[order], "row": order})
    for (at,), group in rows.partition_by("phase", as_dict=True).items():
        assert counts[at].tolist() == [(~group["usual"]).sum(), group["usual"].sum()]
        assert added[at].tolist() == [group["value"].sum(), group["row"].sum()]
        assert floats[at, 0] == pytest.approx(group["value"].sum() / 7)
        timed = group.filter("chosen")
        among = timed.filter("usual") if timed["usual"].any() else timed
        of = 1 if timed["usual"].any() else 2
        assert floats[at, of] == among["value"].sum()
        mean = np.full(4, among["value"].mean() or 0.0)
        deviations = phase_sums.phase_deviations(phase, values, np.full(4, of), mean, np.full(4, -1), 1.5)
        assert deviations[0][at] == sum(100 if one > 150 else one for one in group["value"])
        assert deviations[1][at] == pytest.approx(((among["value"] - mean[at]) ** 2).sum())
        assert middle[at].sum() / 2 == (timed["value"].median() or 0)
        ordered = expected.filter(phase=at)["row"].to_list()
        part = -(-len(ordered) // 10)
        assert ends[at].tolist() == ([ordered[0], ordered[-1]] if ordered else [-1, -1])
        last = ordered[len(ordered) - part :]
        assert np.flatnonzero(tenth == 2 * at + 1).tolist() == sorted(last)
        assert np.flatnonzero(tenth == 2 * at).tolist() == sorted({*ordered[:part]} - {*last})
        assert tenths[2 * at + 1] == sum(value[last] > 0)
    assert ((tenth >= 0) <= chosen).all()


def test_part_sums_add_the_values_of_each_row_at_the_number_of_its_step():
    out = np.zeros((4, 2))
    rows, kinds = np.array([0, 1, 1]), np.array([0, 1, 1])
    phase_sums.part_sums(np.array([0, 0, 1]), np.array([1, 0]), rows, kinds, np.array([1.0, 2.0, 4.0]), 2, out)
    assert out.tolist() == [[0, 2], [1, 0], [0, 4], [0, 0]]
