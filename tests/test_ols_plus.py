"""The repaired scan: phases come back, supersets are no equals, times count; in bulk and online."""

import math

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy
from simulate.synthetic_runs import synthetic_run

from tpunb.cluster.limits import LIMITS
from tpunb.cluster.ols_plus import SWEEP, OLSPlus, OnlineOLSPlus
from tpunb.testing import spelled_steps, toy_steps

metrics = lazy("sklearn.metrics")

NAMES = st.sampled_from("abcdef")
SIDE = st.dictionaries(NAMES, st.sampled_from([0, 1, 2, 5, 40]), max_size=6)
STEPS = st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=40)
LIMIT = st.sampled_from([0.0, 0.5, 0.8, 0.97, 1.0]) | st.floats(0, 1)


def fed(step_ops, ops=0.97, time=0.8):
    scan = OnlineOLSPlus(ops, time)
    return [scan.feed(device, host) for device, host in step_ops]


def on_device(*step_ops):
    return [(device, {}) for device in step_ops]


def spelled_out(step_ops, ops, time):
    """Return what the scan answers, by the definitions alone: every phase keeps all of its steps."""
    phases, labels = [], []
    for step in step_ops:
        willing = [phase for phase in phases if will_have(phase, step, ops, time)]
        home = max(willing, key=lambda phase: (len(phase["steps"]), phase is phases[labels[-1]]), default=None)
        if home is None:
            home = {"steps": [], "apart": ([], [])}
            phases.append(home)
        if home["steps"]:
            for side in (0, 1):
                home["apart"][side].append(1 - times_alike(home, step, side))
        home["steps"].append(step)
        labels.append(next(i for i, phase in enumerate(phases) if phase is home))
    return labels


def will_have(phase, step, ops, time):
    sets = [{(side, op) for side in (0, 1) for op in one[side]} for one in (*phase["steps"], step)]
    n, now = len(phase["steps"]), sets.pop()
    often = {op: sum(op in one for one in sets) / n for op in now.union(*sets)}
    either = sum(max(often[op], op in now) for op in often)
    if either and sum(min(often[op], op in now) for op in often) / either < ops - 1e-9:
        return False
    for side in (0, 1):
        most = 1 - time
        if n > 10:
            most = min(most, max(8 * sum(phase["apart"][side]) / (n - 1), most / 4))
        if 1 - times_alike(phase, step, side) > most + 1e-9:
            return False
    return True


def times_alike(phase, step, side):
    """Return the cosine of the roots of a step's shares and their mean over a phase."""
    one, mean = roots(step[side]), {}
    for other in phase["steps"]:
        for op, root in roots(other[side]).items():
            mean[op] = mean.get(op, 0) + root
    if not mean:
        return 0.0 if one else 1.0
    return sum(root * mean.get(op, 0) for op, root in one.items()) / math.hypot(*mean.values())


def roots(ops):
    whole = sum(ops.values())
    return {op: math.sqrt(own / whole) for op, own in ops.items() if own}


# what is told from what


@pytest.mark.parametrize(
    ("pattern", "labels"),
    [("", []), ("a", [0]), ("aabba", [0, 0, 1, 1, 0]), ("abcab", [0, 1, 2, 0, 1]), ("zzz", [0, 0, 0])],
)
def test_phases_come_back(pattern, labels):
    assert OLSPlus()(toy_steps(pattern)) == labels


def test_a_superset_is_another_phase():
    train = {f"op{i}": 5 for i in range(20)}
    save = train | {"save": 1}
    step_ops = on_device(train, train, save, train, save)
    assert OLSPlus()(spelled_steps(*step_ops)) == fed(step_ops) == [0, 0, 1, 0, 1]
    assert OLSPlus(ops=0.95)(spelled_steps(*step_ops)) == [0, 0, 0, 0, 0]


def test_the_same_operations_in_other_times_are_another_phase():
    step_ops = on_device({"infeed": 1, "matmul": 9}, {"infeed": 9, "matmul": 1}, {"infeed": 1, "matmul": 8})
    assert OLSPlus()(spelled_steps(*step_ops)) == fed(step_ops) == [0, 1, 0]
    assert OLSPlus(time=0.5)(spelled_steps(*step_ops)) == [0, 0, 0]


def test_a_step_twice_as_long_is_no_other():
    step_ops = on_device({"infeed": 1, "matmul": 9}, {"infeed": 2, "matmul": 18})
    assert OLSPlus(time=1)(spelled_steps(*step_ops)) == fed(step_ops, time=1) == [0, 0]


def test_host_and_device_are_compared_separately():
    # nearly all time is the host's, and alike; on the device the two operations change places
    step_ops = [({"a": 9, "b": 1}, {"wait": 1000}), ({"a": 1, "b": 9}, {"wait": 1000})]
    assert OLSPlus()(spelled_steps(*step_ops)) == fed(step_ops) == [0, 1]


def test_a_host_op_is_not_a_device_op_of_its_name():
    step_ops = [({"a": 1}, {}), ({}, {"a": 1})]
    assert OLSPlus()(spelled_steps(*step_ops)) == fed(step_ops) == [0, 1]


def test_steps_without_operations_are_a_phase():
    step_ops = on_device({}, {}, {"a": 1}, {})
    assert OLSPlus()(spelled_steps(*step_ops)) == fed(step_ops) == [0, 0, 1, 0]


def test_operations_of_no_time_count_as_operations():
    step_ops = on_device({"a": 0}, {"a": 0}, {"b": 0}, {"a": float("nan")}, {"a": -3})
    assert fed(step_ops) == [0, 0, 1, 0, 0]


def test_a_phase_of_equal_steps_accepts_less():
    steady, shifted = {"a": 80, "b": 20}, {"a": 45, "b": 55}  # Bhattacharyya 0.932
    assert fed(on_device(*[steady] * 5, shifted)) == [0] * 6
    assert fed(on_device(*[steady] * 20, shifted)) == [0] * 20 + [1]


def test_a_phase_of_scattered_steps_accepts_more():
    shifted = {"a": 40, "b": 60}
    narrow, wide = ([{"a": 80 + by, "b": 20 - by} for by in (-x, x)] for x in (2, 15))
    assert fed(on_device(*narrow * 10, shifted)) == [0] * 20 + [1]
    assert fed(on_device(*wide * 10, shifted)) == [0] * 21


def test_a_step_joins_the_larger_of_two_phases():
    few, many, between = {"a": 1, "b": 9}, {"a": 9, "b": 1}, {"a": 5, "b": 5}
    step_ops = on_device(few, few, many, many, many, few, between)
    assert fed(step_ops, time=0.8) == [0, 0, 1, 1, 1, 0, 0]  # as many each: that of the step before
    assert fed(on_device(many, *(device for device, _ in step_ops)), time=0.8) == [0, 1, 1, 0, 0, 0, 1, 0]


# noise


def test_short_runs_have_no_outliers_by_default():
    assert OLSPlus()(toy_steps("aabac")) == [0, 0, 1, 0, 2]
    assert OLSPlus(least=2)(toy_steps("aabac")) == [0, 0, -1, 0, -1]
    assert OLSPlus(least=9)(toy_steps("aabac")) == [-1] * 5


def test_longer_runs_have():
    labels = OLSPlus()(toy_steps("a" * 120 + "b" + "c" * 129))
    assert labels[120] == -1
    assert set(labels) == {0, -1, 1}


@pytest.mark.parametrize(("seed", "hard"), [(1, False), (2, True), (3, True)])
def test_finds_the_phases_and_corrupted_steps_of_a_synthetic_run(seed, hard):
    run = synthetic_run(4000, 150, seed=seed, hard=hard)
    labels = np.array(OLSPlus()(run.steps))
    clean = run.phase >= 0
    assert metrics.adjusted_rand_score(run.phase[clean], labels[clean]) >= 0.98
    assert (labels[~clean] < 0).mean() >= 0.95
    assert (~clean)[labels < 0].mean() >= 0.8


# in bulk, online, spelled out


@examples(50)
@given(STEPS, LIMIT, LIMIT)
def test_bulk_equals_online_equals_the_definition(step_ops, ops, time):
    expected = spelled_out(step_ops, ops, time)
    assert fed(step_ops, ops, time) == expected
    assert OLSPlus(ops, time, least=1)(spelled_steps(*step_ops)) == expected


@examples(33)
@given(st.lists(st.sampled_from([2, 5, 10, 20, 40]), min_size=15, max_size=60))
def test_scatter_is_learnt_as_it_is_spelled_out(times):
    step_ops = [({"a": 50, "b": own}, {"c": own, "d": 9}) for own in times]
    assert fed(step_ops) == OLSPlus(least=1)(spelled_steps(*step_ops)) == spelled_out(step_ops, 0.97, 0.8)


@examples(33)
@given(STEPS, st.permutations("abcdef"))
def test_names_and_order_of_operations_do_not_matter(step_ops, names):
    other = dict(zip("abcdef", names, strict=True))
    renamed = [tuple({other[op]: own for op, own in reversed(side.items())} for side in step) for step in step_ops]
    assert OLSPlus()(spelled_steps(*renamed)) == OLSPlus()(spelled_steps(*step_ops))
    assert fed(renamed) == fed(step_ops)


def test_memory_is_bounded_and_large_phases_stay():
    train = {"matmul": 3}
    scan = OnlineOLSPlus()
    labels = [scan.feed(step) for i in range(1000) for step in (train, {f"op{i}": 1})]
    assert labels[::2] == [0] * 1000
    assert labels[1::2] == list(range(1, 1001))
    assert len(scan.steps) == LIMITS.most_phases
    assert scan.steps[0] == 1000
    assert scan.steps[1000] == 1
    assert 1 not in scan.steps
    step_ops = on_device(*(step for i in range(1000) for step in (train, {f"op{i}": 1})))
    assert OLSPlus(least=1)(spelled_steps(*step_ops)) == labels


# the sweep


def test_the_chosen_row_of_the_sweep_is_exact():
    run = synthetic_run(2000, 100, seed=4)
    labels = OLSPlus()(run.steps)
    sweep = labels.sweeps["ops"]
    assert sweep.schema == {"ops": pl.Float64, "phases": pl.Int64, "noise": pl.Float64, "chosen": pl.Boolean}
    assert sweep["ops"].to_list() == sorted({*SWEEP, 0.97})
    (chosen,) = sweep.filter("chosen").rows()
    assert chosen == (0.97, len(set(labels) - {-1}), pytest.approx(labels.count(-1) / 2000), True)


def test_the_sweep_agrees_with_other_values():
    run = synthetic_run(2000, 100, seed=4)
    sweep = OLSPlus()(run.steps).sweeps["ops"]
    for value in (0.6, 0.9, 0.99):
        labels = OLSPlus(value)(run.steps)
        (row,) = sweep.filter(pl.col("ops") == value).rows(named=True)
        assert row["phases"] == pytest.approx(len(set(labels) - {-1}), abs=1)
        assert row["noise"] == pytest.approx(labels.count(-1) / 2000, abs=0.01)


def test_the_sweep_of_many_stretches_goes_by_a_sample():
    step_ops = on_device(*[{"a": 1}, {"b": 1}] * 1500)  # 3,000 stretches
    sweep = OLSPlus()(spelled_steps(*step_ops)).sweeps["ops"]
    assert sweep["phases"].to_list() == [2] * len(sweep)
    assert sweep["noise"].to_list() == [0.0] * len(sweep)


def test_the_sweep_of_no_steps():
    sweep = OLSPlus()(toy_steps("")).sweeps["ops"]
    assert sweep["phases"].to_list() == [0] * len(sweep)
    assert sweep["noise"].to_list() == [0.0] * len(sweep)
    assert sweep["chosen"].sum() == 1


# wrong arguments


@pytest.mark.parametrize("value", [1.3, -0.1, float("nan"), "0.7", None, True])
@pytest.mark.parametrize("name", ["ops", "time"])
@pytest.mark.parametrize("method", [OLSPlus, OnlineOLSPlus])
def test_a_wrong_similarity(method, name, value):
    with pytest.raises(ValueError, match=rf"The {name} parameter of {method.__name__} must be in \[0, 1\]\. Got"):
        method(**{name: value})


@pytest.mark.parametrize("least", [0, -1, 2.5, "3", True])
def test_a_wrong_least(least):
    with pytest.raises(ValueError, match=r"The least parameter of OLSPlus must be an int of 1 or more\. Got"):
        OLSPlus(least=least)


def test_repr():
    assert repr(OLSPlus()) == "OLSPlus()"
    assert repr(OLSPlus(0.9, least=5)) == "OLSPlus(ops=0.9, least=5)"
