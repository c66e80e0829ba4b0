"""The few steps to look at: which they are, what they say of the run, and that their interval holds."""

import sys
import tracemalloc

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.frames import Phases, Steps
from tpunb.testing import toy_steps

OPS = ["a", "b", "c"]


def run_of(*rows, traced=None):
    """Steps spelled as (phase, step time, self time of a, of b, of c), grouped as spelled."""
    n = len(rows)
    start = np.cumsum([0, *(row[1] for row in rows)])[:n]
    frame = pl.DataFrame(
        {
            "host": ["toy"] * n,
            "step": range(n),
            "kind": ["train"] * n,
            "start_ps": start,
            "dur_ps": [row[1] for row in rows],
            "device_ps": [None] * n,
            "idle_ps": [None] * n,
            "traced": [{"f": "full", "n": "none"}[letter] for letter in traced or "f" * n],
        }
    )
    ops = [
        ("toy", i, op, "device", 1, own, own)
        for i, row in enumerate(rows)
        for op, own in zip(OPS, row[2:], strict=True)
        if own and (traced or "f" * n)[i] == "f"
    ]
    columns = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}
    steps = Steps(frame, pl.DataFrame(ops, schema=columns, orient="row"))
    far = pl.Series([None] * n, dtype=pl.Float64)
    return Phases(steps, pl.Series([row[0] for row in rows], dtype=pl.Int64), "by hand", far)


def toy_phases(pattern, labels, traced=None):
    steps = toy_steps(pattern, traced=traced)
    return Phases(steps, pl.Series(labels, dtype=pl.Int64), "by hand", pl.Series([0.0] * len(steps), dtype=pl.Float64))


def skewed(random, n=400):
    """A run whose step times are skewed, in one phase have two modes, and whose noise is anything."""
    rows = []
    for phase, share, scale in ((0, 0.6, 1.0), (1, 0.25, 4.0), (2, 0.1, 0.3), (-1, 0.05, 6.0)):
        m = round(n * share)
        wide = {0: 0.5, 1: 0.3, 2: 0.1, -1: 1.2}[phase]
        time = random.lognormal(np.log(scale), wide, m) * np.where((phase == 1) & (random.random(m) < 0.1), 3, 1)
        own = random.dirichlet([6, 3, 1] if phase >= 0 else [1, 1, 1], m) * time[:, None]
        rows += [(phase, int(t * 1e9), *(int(x * 1e9) for x in op)) for t, op in zip(time, own, strict=True)]
    return run_of(*(rows[i] for i in random.permutation(n)))


SPELLED = run_of(
    # phase, step time, a, b, c
    (0, 100, 60, 30, 10),
    (0, 100, 50, 40, 10),
    (0, 100, 40, 50, 10),
    (1, 300, 0, 100, 200),
    (-1, 50, 0, 0, 50),
)


def test_one_representative_per_phase_and_for_outliers():
    chosen = tp.analysis.representatives(SPELLED)
    assert chosen.frame.schema == schema.REPRESENTATIVES
    assert chosen.frame.select("phase", "step", "weight").rows() == [(0, 1, 3.0), (1, 3, 1.0), (-1, 4, 1.0)]
    assert len(chosen) == 3
    assert (chosen.missing, chosen.interval) == (0.0, None)


def test_estimates_by_hand():
    chosen = tp.analysis.representatives(SPELLED)
    assert chosen.profile.schema == schema.REPRESENTED
    assert chosen.profile.rows() == [
        # side, op, self, low, high, true, share
        ("device", "c", 280, None, None, 280, 280 / 650),
        ("device", "b", 220, None, None, 220, 220 / 650),
        ("device", "a", 150, None, None, 150, 150 / 650),
    ]
    assert (chosen.error, chosen.time_error, chosen.time_ps) == (0.0, 0.0, 650)
    assert repr(chosen) == "Representatives(3 of 5 steps, op profile within 0.0 %)"


def test_step_times_calibrate_and_the_error_is_the_sum_of_what_is_wrong():
    # the one step that is looked at ran 40 of 100 in a: so did 300 ps of the phase, it is held
    run = run_of((0, 100, 40, 60, 0), (0, 200, 140, 60, 0), traced="ff")
    chosen = tp.analysis.representatives(run)
    step = chosen.frame["step"].item()
    a = {0: 120, 1: 210}[step]
    assert chosen.profile.sort("op")["self_ps"].to_list() == [a, 300 - a]
    assert chosen.profile.sort("op")["true_ps"].to_list() == [180, 120]
    assert chosen.error == pytest.approx(2 * abs(a - 180) / 300)
    assert chosen.time_ps == {0: 200, 1: 400}[step]
    assert chosen.time_error == pytest.approx(1 / 3)


def test_more_steps_go_to_large_phases_that_vary():
    rows = [(0, 100, 50 + i % 7, 50 - i % 7, 0) for i in range(40)] + [(1, 100, 0, 0, 100)] * 40
    frame = tp.analysis.representatives(run_of(*rows), 12).frame
    assert frame.group_by("phase").len().sort("phase").rows() == [(0, 11), (1, 1)]
    assert frame["weight"].sum() == pytest.approx(80)


def test_of_equal_steps_the_earliest_are_chosen():
    phases = toy_phases("aaabbbb", [0, 0, 0, 1, 1, 1, 1])
    assert tp.analysis.representatives(phases).frame["step"].to_list() == [3, 0]
    assert tp.analysis.representatives(phases, 5).frame["step"].to_list() == [3, 4, 5, 6, 0]
    assert sorted(tp.analysis.representatives(phases, 99).frame["step"].to_list()) == list(range(7))


def test_fewer_than_there_are_phases_are_of_the_longest_and_say_what_lacks():
    chosen = tp.analysis.representatives(toy_phases("aaabbb", [0, 0, 0, 1, 1, 1]), 1)
    assert chosen.frame["phase"].to_list() == [1]
    assert chosen.missing == pytest.approx(1 / 3)
    assert chosen.profile["self_ps"].sum() == pytest.approx(chosen.profile["true_ps"].sum(), rel=1e-6)
    assert repr(chosen).endswith("none for 33.3 % of step time)")
    drawn = tp.analysis.representatives(toy_phases("aaabbb", [0, 0, 0, 1, 1, 1]), 1, seed=0)
    assert drawn.interval is None
    assert drawn.profile["low_ps"].null_count() == drawn.profile.height


def test_a_phase_that_no_window_saw_has_none():
    chosen = tp.analysis.representatives(toy_phases("aabb", [0, 0, 1, 1], traced="ffnn"))
    assert chosen.frame["phase"].to_list() == [0]
    assert chosen.missing == pytest.approx(2 / 3)
    assert chosen.time_error == 0.0


def test_the_steps_that_no_window_saw_count_by_their_time():
    run = run_of((0, 100, 60, 40, 0), (0, 100, 0, 0, 0), (1, 50, 0, 0, 50), (0, 200, 0, 0, 0), traced="fnfn")
    chosen = tp.analysis.representatives(run)
    assert chosen.frame.select("step", "weight").rows() == [(0, 3.0), (2, 1.0)]
    assert chosen.profile.sort("op")["self_ps"].to_list() == [240, 160, 50]
    assert chosen.error == 0.0
    assert chosen.time_ps == 450
    assert chosen.time_error == 0.0  # the unseen ran otherwise, but the clock knows their time


def test_outliers_alone_have_a_representative():
    chosen = tp.analysis.representatives(toy_phases("ab", [-1, -1]))
    assert chosen.frame["phase"].to_list() == [-1]
    assert chosen.missing == 0.0


def test_steps_without_operations_or_time_are_no_trouble():
    for run in (run_of((0, 10, 0, 0, 0), (0, 20, 0, 0, 0)), run_of((0, 0, 0, 0, 0)), run_of((0, 0, 5, 0, 0))):
        for seed in (None, 0):
            chosen = tp.analysis.representatives(run, 3, seed=seed)
            assert chosen.error == 0.0
            assert chosen.profile["self_ps"].to_list() == chosen.profile["true_ps"].to_list()


def test_steps_of_two_hosts_are_separate():
    one, two = toy_steps("aab", host="one"), toy_steps("abb", host="two")
    steps = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    phases = Phases(steps, pl.Series([0, 0, 1, 0, 1, 1]), "by hand", pl.Series([0.0] * 6))
    chosen = tp.analysis.representatives(phases)
    assert chosen.frame.select("host", "step", "weight").rows() == [("two", 1, 3.0), ("one", 0, 3.0)]
    assert chosen.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("name", "value"), [("n", 0), ("n", True), ("n", 2.0), ("seed", -1), ("seed", True)])
def test_invalid_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"The {name} parameter of representatives must be an int of . or more"):
        tp.analysis.representatives(SPELLED, **{name: value})


def test_the_same_seed_draws_the_same_steps_and_another_others():
    run = skewed(np.random.default_rng(0))
    steps = [tuple(tp.analysis.representatives(run, 12, seed=seed).frame["step"]) for seed in (1, 1, 2)]
    assert steps[0] == steps[1] != steps[2]


def test_those_that_stand_best_are_better_than_those_that_are_drawn():
    run = skewed(np.random.default_rng(1))
    drawn = [tp.analysis.representatives(run, 12, seed=seed).error for seed in range(40)]
    assert tp.analysis.representatives(run, 12).error < np.quantile(drawn, 0.05)
    assert tp.analysis.representatives(run, 40).error < tp.analysis.representatives(run, 4).error


# -- the interval ---------------------------------------------------------------------------------------------


def draws_of(run, counts, times, random):
    """Return the estimates of many draws, by the formulas and nothing of ours: the ops' times, and the run's time."""
    frame = run.steps.frame.with_columns(phase=run.labels)
    own = (
        run.steps.ops.pivot("op", index="step", values="self_ps", aggregate_function="sum")
        .join(frame.select("step"), on="step", how="right")
        .sort("step")
        .select(OPS)
        .fill_null(0)
        .to_numpy()
        .astype(float)
    )
    dur, phase = frame["dur_ps"].to_numpy().astype(float), frame["phase"].to_numpy()
    ops, time = np.zeros((times, 3)), np.zeros(times)
    for label, m in counts.items():
        rows = np.flatnonzero(phase == label)
        drawn = rows[random.random((times, len(rows))).argsort(axis=1)[:, :m]]
        by_step = dur[drawn].sum(axis=1)
        ops += dur[rows].sum() * own[drawn].sum(axis=1) / by_step[:, None]
        time += len(rows) * by_step / m
    return ops, time, own.sum(axis=0), dur.sum()


@pytest.mark.parametrize("n", [4, 5, 8, 12, 30, 100])
def test_the_interval_holds_in_95_of_100_draws(n):
    random = np.random.default_rng(n)
    run = skewed(random)
    chosen = [tp.analysis.representatives(run, n, seed=seed) for seed in range(20)]
    counts = dict(chosen[0].frame.group_by("phase").len().iter_rows())
    ops, time, true_ops, true_time = draws_of(run, counts, 10_000, random)
    # the interval is as wide for every draw, where it is not cut at nothing: that of some tells those of all
    below, above = (max(abs(one.interval[i] - one.time_ps) for one in chosen) for i in (0, 1))
    held = ((time - below <= true_time) & (true_time <= time + above)).mean()
    assert 0.94 <= held <= 0.97
    assert below + above <= 1.15 * 2 * 1.96 * time.std()  # and it is no wider than it need be
    profiles = [one.profile.sort("op") for one in chosen]
    low, high = (
        np.max([abs(one[name] - one["self_ps"]).to_numpy() for one in profiles], axis=0)
        for name in ("low_ps", "high_ps")
    )
    held = ((ops - low <= true_ops) & (true_ops <= ops + high)).mean(axis=0)
    assert ((held >= 0.94) & (held <= 0.97)).all()


def test_every_draw_has_the_interval_and_most_hold_the_truth():
    run = skewed(np.random.default_rng(7))
    truth = run.steps.frame["dur_ps"].sum()
    chosen = [tp.analysis.representatives(run, 9, seed=seed) for seed in range(300)]
    widths = [one.interval[1] - one.interval[0] for one in chosen if one.interval[0] > 0]
    assert max(widths) - min(widths) <= 1
    held = np.mean([one.interval[0] <= truth <= one.interval[1] for one in chosen])
    assert 0.9 <= held <= 0.99
    inside = pl.concat(one.profile for one in chosen).select(pl.col("true_ps").is_between("low_ps", "high_ps"))
    assert 0.92 <= inside.to_series().mean() <= 0.98
    assert np.mean([one.time_ps for one in chosen]) == pytest.approx(truth, rel=0.05)  # right on average


@pytest.mark.parametrize(("n", "pool"), [(20, 2000), (20, 200), (200, 2000), (200, 150)])
def test_of_steps_that_vary_as_if_by_chance_the_interval_is_that_of_the_books(n, pool, monkeypatch):
    # of phases longer than it a part is drawn from
    monkeypatch.setattr(sys.modules["tpunb.analysis.representatives"], "_POOL", pool)
    time = (np.random.default_rng(3).normal(1, 0.1, 300) * 1e9).astype(int)
    run = run_of(*((0, t, t // 2, t // 2, 0) for t in time.tolist()))
    chosen = tp.analysis.representatives(run, n, seed=0)
    variance = 300**2 * (1 - n / 300) * time.var(ddof=1) / n  # Cochran 1977, equation 2.9
    width = chosen.interval[1] - chosen.interval[0]
    assert width == pytest.approx(2 * 1.96 * np.sqrt(variance), rel=0.12)


def test_when_all_steps_are_looked_at_nothing_is_left_to_chance():
    run = skewed(np.random.default_rng(5), n=40)
    chosen = tp.analysis.representatives(run, 40, seed=0)
    assert chosen.interval[1] - chosen.interval[0] <= 1
    assert chosen.interval[0] <= run.steps.frame["dur_ps"].sum() <= chosen.interval[1]
    assert chosen.error == pytest.approx(0, abs=1e-6)


# -- properties -----------------------------------------------------------------------------------------------


@given(
    labels=st.lists(st.integers(-1, 3), min_size=1, max_size=12),
    traced=st.lists(st.sampled_from("ffn"), min_size=12, max_size=12),
    n=st.integers(1, 14) | st.none(),
    seed=st.integers(0, 9) | st.none(),
)
@examples(50)
def test_whatever_the_phases_the_books_balance(labels, traced, n, seed):
    pattern, traced = "abcdabcdabcd"[: len(labels)], "".join(traced[: len(labels)])
    phases = toy_phases(pattern, labels, traced=traced)
    chosen = tp.analysis.representatives(phases, n, seed=seed)
    full = {step for step, how in enumerate(traced) if how == "f"}
    there = {labels[step] for step in full}
    assert set(chosen.frame["step"]) <= full
    assert chosen.frame["step"].n_unique() == len(chosen)
    assert len(chosen) == min(len(there) if n is None else n, len(full))
    stands_for = sum(labels.count(phase) for phase in set(chosen.frame["phase"]))
    assert chosen.frame["weight"].sum() == pytest.approx(stands_for)
    left = phases.steps.frame.filter(~pl.Series(labels).is_in(list(set(chosen.frame["phase"]))))
    assert chosen.missing == pytest.approx(left["dur_ps"].sum() / phases.steps.frame["dur_ps"].sum())
    assert (chosen.interval is None) == (seed is None or len(chosen) < len(there))
    if n is not None and n >= len(full):
        assert chosen.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["keras_cnn", "keras_transformer"])
def test_the_interval_of_a_sample_holds_though_a_part_of_its_steps_was_not_seen(name):
    steps = tp.steps(tp.sample(name))
    assert len(steps.full()) < len(steps)
    phases, whole = tp.phases(steps), steps.frame["dur_ps"].sum()
    inside = [
        low <= whole <= high
        for low, high in (tp.analysis.representatives(phases, 20, seed=i).interval for i in range(200))
    ]
    assert np.mean(inside) >= 0.9


def test_thousands_of_phases_take_no_square_of_memory():
    phases = toy_phases("ab" * 2000, [*range(4000)])
    tracemalloc.start()
    assert phases.explained_variance == pytest.approx(1.0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 40e6  # 4000 x 4000 numbers would be 128 MB


@pytest.mark.parametrize("name", ["keras_cnn", "keras_transformer"])
def test_the_representative_of_one_phase_is_that_of_all(name):
    found = tp.phases(tp.steps(tp.sample(name)))
    every = tp.analysis.representatives(found).frame
    for phase in found.frame["phase"]:
        assert tp.analysis.representative(found, phase).rows() == every.filter(pl.col("phase") == phase).rows()
    with pytest.raises(KeyError, match="99"):
        tp.analysis.representative(found, 99)


def test_of_a_phase_that_no_window_saw_in_full_no_step_is_its_representative():
    assert tp.analysis.representative(toy_phases("aab", [0, 0, 1], "ffn"), 1).is_empty()
