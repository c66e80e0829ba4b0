"""The nouns: what they hold, what they say of themselves, and their figures by hand."""

import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, MissingExtra, TpunbError, install
from tpunb.frames import Phase, Phases, Profile, Steps
from tpunb.frames.phases import Labels
from tpunb.testing import toy_events, toy_steps

MS = 1_000_000_000

WINDOWS = {name: dtype for name, dtype in schema.WINDOWS.items() if name != "reason"}


def steps_of(*rows, ops=()):
    """Steps spelled as (host, step, kind, start, dur, device, idle, seen), operations without their categories."""
    columns = ["host", "step", "kind", "start_ps", "dur_ps", "device_ps", "idle_ps", "traced"]
    frame = pl.DataFrame(rows, schema={name: schema.STEPS[name] for name in columns}, orient="row")
    columns = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}
    return Steps(frame, pl.DataFrame(ops, schema=columns, orient="row"))


class Spelled:
    """A method with a name; the labels are given by hand."""

    def __repr__(self):
        return "Spelled()"


def phases_of(steps, labels, distance=None):
    far = pl.Series(distance or [0.0] * len(steps), dtype=pl.Float64)
    return Phases(steps, pl.Series(labels, dtype=pl.Int64), Spelled(), far)


def toy_phases(pattern, labels, traced=None):
    return phases_of(toy_steps(pattern, traced=traced), labels)


def profile_of(*windows, span=100, events=0, devices=(), **more):
    """A profile whose windows are spelled (host, start, dur), in picoseconds; its events are the first window's."""
    rows = [
        (host, i, start, dur, dur, 10, events if i == 0 else 0, 0, None) for i, (host, start, dur) in enumerate(windows)
    ]
    hardware = pl.DataFrame(
        [("a", name, "kind", None, None, None) for name in devices], schema=schema.HARDWARE, orient="row"
    )
    return Profile("toy", Path("toy"), pl.DataFrame(rows, schema=WINDOWS, orient="row"), hardware, span, **more)


# -- Steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "traced", "said"),
    [
        ("aab", None, "Steps(3 steps, 8 ops, 3 traced in full)"),
        ("aab", "fpn", "Steps(3 steps, 4 ops, 1 traced in full)"),
        ("a", "n", "Steps(1 step, 0 ops, 0 traced in full)"),
        ("", None, "Steps(0 steps, 0 ops, 0 traced in full)"),
    ],
)
def test_steps_say_how_many_and_how_well_they_were_traced(pattern, traced, said):
    steps = toy_steps(pattern, traced=traced)
    assert repr(steps) == said
    assert len(steps) == len(pattern)


def test_steps_are_sorted_by_host_and_time():
    steps = steps_of(
        ("b", 0, "train", 5, 1, None, None, "full"),
        ("a", 1, "train", 9, 1, None, None, "full"),
        ("a", 3, "train", 2, 1, None, None, "full"),
        ("a", 2, "train", 2, 1, None, None, "full"),
    )
    assert steps.frame.select("host", "step").rows() == [("a", 2), ("a", 3), ("a", 1), ("b", 0)]


@pytest.mark.parametrize("table", ["frame", "ops", "devices", "windows"])
def test_a_column_that_lacks_is_named(table):
    toy = toy_steps("a")
    tables = {name: getattr(toy, name) for name in ("frame", "ops", "devices", "windows")}
    tables[table] = tables[table].drop("host")
    what = "steps" if table == "frame" else table
    with pytest.raises(BadProfile, match=rf"^the {what} frame lacks \['host'\]; it has \['") as caught:
        Steps(**tables)
    assert caught.value.hint == f"its columns are listed in tpunb.schema.{what.upper()}"


def test_a_column_of_the_wrong_type_is_refused_and_one_that_fits_is_cast():
    toy = toy_steps("ab")
    with pytest.raises(BadProfile, match="the steps frame has a column of the wrong type"):
        Steps(toy.frame.with_columns(step=pl.Series(["first", "second"])), toy.ops)
    plain = Steps(toy.frame.cast({"traced": pl.String, "step": pl.UInt8}), toy.ops.cast({"op": pl.String}))
    assert plain.frame.schema == schema.STEPS
    assert plain.ops.schema == schema.OPS
    assert plain.frame.rows() == toy.frame.rows()


def test_full_selects_the_full_steps_with_their_operations():
    steps = toy_steps("aabb", traced="fpnf")
    full = steps.full()
    assert full.frame["step"].to_list() == [0, 3]
    assert set(full.ops["step"]) == {0, 3}
    assert full.devices["step"].to_list() == [0, 3]
    assert (full.windows.height, full.name) == (1, "toy")
    assert len(steps) == 4  # the steps themselves did not change
    assert full.full() is full


def test_steps_of_one_number_on_two_hosts_are_two():
    both = [("a", 0, "train", 0, 1, None, None, "full"), ("b", 0, "train", 0, 1, None, None, "none")]
    full = steps_of(*both, ops=[(host, 0, "dot", "device", 1, 1, 1) for host in "ab"]).full()
    assert full.frame["host"].to_list() == full.ops["host"].to_list() == ["a"]


# -- Profile --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (profile_of(span=0), "Profile(toy, 1 host, 0 events, 0 s, 0% of the run observed)"),
        (
            profile_of(("a", 0, 31 * 10**12), span=31 * 10**12, events=1_234_567, devices=["/device:TPU:0"]),
            "Profile(toy, 1 host, 1 TPU, 1.23M events, 31 s, 100% of the run observed)",
        ),
        (
            profile_of(
                ("a", 0, 10**12),
                ("b", 0, 10**12),
                span=2 * 10**12,
                events=999,
                devices=["/device:TPU:0", "/device:TPU:1", "/device:GPU:0", "/host:CPU", "/device:CPU:0"],
            ),
            "Profile(toy, 2 hosts, 1 GPU, 2 TPUs, 999 events, 2 s, 50% of the run observed)",
        ),
        (
            profile_of(("a", 0, 1), span=3_725 * 10**12, events=999_950),
            "Profile(toy, 1 host, 1000k events, 3725 s, 0% of the run observed)",
        ),
    ],
    ids=["empty", "one TPU", "two hosts", "an hour"],
)
def test_repr_of_a_profile(profile, said):
    assert repr(profile) == said


@pytest.mark.parametrize(
    ("windows", "gaps", "observed"),
    [
        ([], [("", 0, 100)], 0.0),
        ([("a", 0, 100)], [], 1.0),
        ([("a", 10, 20), ("a", 50, 30)], [("a", 0, 10), ("a", 30, 20), ("a", 80, 20)], 0.5),
        ([("a", 50, 30), ("a", 10, 20)], [("a", 0, 10), ("a", 30, 20), ("a", 80, 20)], 0.5),  # in any order
        ([("a", 0, 60), ("a", 40, 40)], [("a", 80, 20)], 0.8),  # they overlap
        ([("a", 0, 90), ("a", 10, 20), ("a", 95, 5)], [("a", 90, 5)], 0.95),  # one within another
        ([("a", 80, 40)], [("a", 0, 80)], 0.2),  # past the span
        ([("a", 0, 50), ("a", 150, 10)], [("a", 50, 50)], 0.5),  # wholly past it
        ([("a", -10, 20)], [("a", 10, 90)], 0.1),
        ([("a", 20, 0)], [("a", 0, 100)], 0.0),  # a window that failed watched nothing
        ([("a", 0, 100), ("b", 50, 50)], [("b", 0, 50)], 0.75),
        ([("b", 60, 40), ("a", 0, 60)], [("a", 60, 40), ("b", 0, 60)], 0.5),
        ([("a", 0, 100), ("b", 0, 0)], [("b", 0, 100)], 0.5),  # all windows of one host failed
    ],
)
def test_gaps_are_when_no_window_watched(windows, gaps, observed):
    profile = profile_of(*windows)
    assert profile.gaps.rows() == gaps
    assert profile.gaps.columns == ["host", "start_ps", "dur_ps"]
    assert profile.observed == pytest.approx(observed)


@given(windows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 120), st.integers(0, 60)), max_size=6))
@examples(50)
def test_every_instant_is_watched_or_in_a_gap(windows):
    profile = profile_of(*windows)
    hosts = {host for host, _, _ in windows} or {""}
    instants = [(host, at) for host in hosts for at in range(100)]
    watched = {
        (host, at) for host, at in instants for of, start, dur in windows if of == host and 0 <= at - start < dur
    }
    gaps = [(host, at) for host, start, dur in profile.gaps.rows() for at in range(start, start + dur)]
    assert sorted(gaps) == sorted(set(instants) - watched)
    assert profile.observed == pytest.approx(len(watched) / len(instants))


def test_events_are_decoded_once_on_access():
    asked = []

    def read():
        asked.append(1)
        return toy_events(("/host:CPU", "python", "train", 0, 10, 7))

    profile = profile_of(("a", 0, 100), events=10, read_events=read)
    assert "10 events" in repr(profile)
    assert asked == []
    assert profile.events.height == 1
    assert profile.events is profile.events
    assert asked == [1]


def test_without_raw_windows_events_say_how_to_keep_them():
    with pytest.raises(TpunbError, match="toy holds no instructions: its capture kept statistics only"):
        _ = profile_of().instructions
    with pytest.raises(TpunbError, match="toy holds no raw events: its capture kept statistics only") as caught:
        profile_of().events  # noqa: B018
    assert "keep='all'" in caught.value.hint


def test_a_profile_checks_its_tables():
    with pytest.raises(BadProfile, match="the windows frame lacks"):
        Profile("toy", Path("toy"), pl.DataFrame({"host": ["a"]}), pl.DataFrame(schema=schema.HARDWARE), 0)
    with pytest.raises(BadProfile, match="the hardware frame lacks"):
        Profile("toy", Path("toy"), pl.DataFrame(schema=schema.WINDOWS), pl.DataFrame({"host": ["a"]}), 0)


# -- Phases: the frame ----------------------------------------------------------------------------------------


SPELLED = steps_of(
    ("a", 0, "train", 0, 10, 4, 6, "full"),
    ("a", 1, "train", 10, 20, None, None, "none"),
    ("a", 2, "eval", 30, 12, 5, 7, "full"),
    ("a", 3, "eval", 42, 18, None, None, "partial"),
    ("a", 4, None, 60, 40, None, None, "full"),
)


def test_a_phase_has_its_numbers():
    frame = phases_of(SPELLED, [0, 0, 0, 1, -1]).frame
    assert frame.schema == schema.PHASES
    assert frame.rows() == [
        # phase, name, steps, full, kinds, first_step, start, dur, productive, share, step (median), device, idle,
        # input; then the share of input, spread, drift, as shares idle and MXU, and confidence
        (-1, "outliers", 1, 1, None, 4, 60, 40, 40, 40 / 92, 40, None, None, None, None, 0.0, *[None] * 4),
        # 10, 12 and 20, of which up to 12 is productive
        (
            *(0, "train and evaluation", 3, 2, "train, eval", 0, 0, 42, 34, 34 / 92, 12, 9, 13, None, None),
            *(pytest.approx((56 / 3) ** 0.5 / 14), None, 13 / 22, None, None),  # 10, 12 and 20 spread by 4.3
        ),
        (1, "evaluation", 1, 0, "eval", 3, 42, 18, 18, 18 / 92, 18, None, None, None, None, 0.0, *[None] * 4),
    ]


def test_phases_of_equal_length_come_in_the_order_of_their_numbers():
    assert toy_phases("aaa", [2, 0, 1]).frame["phase"].to_list() == [0, 1, 2]


def test_marks_of_equal_frequency_come_in_the_order_of_the_alphabet():
    rows = [("a", i, kind, i, 1, None, None, "full") for i, kind in enumerate(["train", "test", "eval", "train"])]
    assert phases_of(steps_of(*rows), [0] * 4).frame["kinds"].item() == "train, eval, test"


def test_the_first_step_is_the_first_in_time_not_the_lowest_number():
    rows = [("a", 9, "train", 0, 1, None, None, "full"), ("a", 2, "train", 5, 1, None, None, "full")]
    assert phases_of(steps_of(*rows), [0, 0]).frame["first_step"].item() == 9


def test_device_time_of_0_is_not_null():
    idle = steps_of(("a", 0, "train", 0, 10, 0, 10, "full"))
    assert phases_of(idle, [0]).frame.select("device_ps", "idle_ps").row(0) == (0, 10)


@pytest.mark.parametrize(("device_ps", "idle_ps", "share"), [(30, 70, 0.7), (1, 9, 0.9), (None, 70, 1.0), (6, 4, 0.4)])
def test_devices_idle_for_no_more_than_all_their_time(device_ps, idle_ps, share):
    """A step may end with its launch, and its device be idle until the next."""
    steps = steps_of(("a", 0, "train", 0, 10, device_ps, idle_ps, "full"))
    assert phases_of(steps, [0]).frame["idle"].item() == share


def test_steps_of_no_length_have_shares_too():
    still = steps_of(*[("a", i, "train", 0, 0, None, None, "full") for i in range(2)])
    assert phases_of(still, [0, 1]).frame["share"].to_list() == [0.0, 0.0]


def test_utilisation_is_the_mean_over_steps_that_have_it():
    run = steps_of(
        ("a", 0, "train", 0, 10, 4, 6, "full"),
        ("a", 1, "train", 10, 30, 12, 3, "full"),
        ("a", 2, "train", 40, 60, None, None, "none"),
    )
    run = Steps(run.frame.with_columns(mxu_util=pl.Series([0.8, 0.4, None]), input_ps=pl.Series([1, 2, None])), run.ops)
    known = phases_of(run, [0, 0, 0]).frame.select("idle", "mxu_util", "input_ps").row(0)
    assert known == pytest.approx((9 / 40, 0.5, 3))


def test_step_time_cv_is_over_full_steps():
    run = steps_of(*[("a", i, "train", 40 * i, dur, None, None, seen) for i, (dur, seen) in enumerate(TIMES)])
    spread = phases_of(run, [0, 0, 0, 1, 1]).frame.sort("phase")["step_time_cv"].to_list()
    assert spread == pytest.approx([5 / 15, 3 / 15])  # 10 and 20, but not 90; 12 and 18, none of them in full


TIMES = [(10, "full"), (20, "full"), (90, "partial"), (12, "none"), (18, "none")]


def test_outliers_are_not_covered():
    phases = phases_of(SPELLED, [0, 0, 0, 1, -1])
    assert [phases.coverage(n) for n in (1, 2, 3, 99)] == pytest.approx([34 / 92, 52 / 92, 52 / 92, 52 / 92])
    assert phases.coverage() == phases.coverage(3)


@pytest.mark.parametrize("n", [np.int64(9), 2**40, 2**70])
def test_more_than_there_are_is_all_of_them(n):
    phases = toy_phases("aab", [0, 0, 1])
    assert phases.coverage(n) == pytest.approx(1.0)
    assert phases.top(n).equals(phases.top(phases.steps.ops.height))
    assert (
        len(tp.analysis.representatives(phases, n))
        == len(tp.analysis.representatives(phases, n, seed=np.int64(1)))
        == 3
    )


def test_fitted_are_the_labels_of_full_steps():
    phases = phases_of(toy_steps("aabbc", traced="fnfpf"), [0, 1, 2, 3, -1])
    assert phases.fitted.to_list() == [0, 2, -1]
    assert phases.fitted.len() == len(phases.steps.full())


@pytest.mark.parametrize("what", ["coverage", "top"])
@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_is_refused_in_a_sentence(what, n):
    with pytest.raises(ValueError, match="parameter of") as caught:
        getattr(toy_phases("ab", [0, 1]), what)(n)
    assert str(caught.value) == f"The n parameter of {what} must be an int of 1 or more. Got {n} instead."


@given(labels=st.lists(st.integers(-1, 3), min_size=1, max_size=8))
@examples(50)
def test_every_step_is_in_one_phase(labels):
    pattern = "abcdefgh"[: len(labels)]
    phases = toy_phases(pattern, labels)
    assert phases.frame["steps"].sum() == len(labels)
    assert phases.frame["share"].sum() == pytest.approx(1)
    assert phases.coverage(len(labels)) == pytest.approx(1 - phases.noise)
    assert phases.frame["productive_ps"].is_sorted(descending=True)
    assert {phase.id: phase.steps["step"].to_list() for phase in phases} == {
        label: [i for i, one in enumerate(labels) if one == label] for label in set(labels)
    }
    assert len(phases) == len(set(labels) - {-1})


# -- Phases: one phase ----------------------------------------------------------------------------------------


def test_a_phase_is_its_steps_and_its_share():
    phase = toy_phases("aab", [0, 0, 1])[1]
    assert (phase.id, phase.steps["step"].to_list(), phase.share) == (1, [2], 0.5)
    assert phase.steps.drop("trained").schema == schema.STEPS
    assert phase.steps["trained"].to_list() == [2]
    assert repr(phase) == "Phase(1, 'train (slower)', 1 step, 50.0 % of step time without waits)"
    assert (
        repr(toy_phases("aab", [-1, -1, 0])[-1]) == "Phase(-1, 'outliers', 2 steps, 50.0 % of step time without waits)"
    )


def test_a_phase_that_is_not_there_lists_those_that_are():
    with pytest.raises(KeyError, match=r"no phase 9; there are \[-1, 0, 1\]"):
        toy_phases("aab", [1, 0, -1])[9]


def test_phases_come_by_productive_time():
    phases = toy_phases("aabc", [0, 0, -1, 1])  # 2 ms, the outlier's 2 ms, 3 ms
    assert [phase.id for phase in phases] == phases.frame["phase"].to_list() == [1, -1, 0]
    assert all(isinstance(phase, Phase) for phase in phases)


def test_the_longest_is_outliers_only_without_phases():
    assert toy_phases("zab", [-1, 0, 1]).longest.id == 1
    assert toy_phases("ab", [-1, -1]).longest.id == -1


@pytest.mark.parametrize(
    ("pattern", "labels", "said"),
    [
        (
            "aaabbb",
            [0, 0, 0, 1, 1, 1],
            "Phases(2 phases over 6 steps, Spelled(), top 3 cover 100.0 % of step time without waits)",
        ),
        ("a", [0], "Phases(1 phase over 1 step, Spelled(), top 3 cover 100.0 % of step time without waits)"),
        ("aa", [-1, -1], "Phases(0 phases over 2 steps, Spelled(), top 3 cover 0.0 % of step time without waits)"),
        (
            "aaaaa",
            [0, 1, 2, 3, 4],
            "Phases(5 phases over 5 steps, Spelled(), top 3 cover 60.0 % of step time without waits)",
        ),
    ],
)
def test_phases_say_how_many_by_which_method_and_how_much_they_cover(pattern, labels, said):
    assert repr(toy_phases(pattern, labels)) == said


# -- Phases: operations -------------------------------------------------------------------


def test_top_are_the_operations_of_the_most_self_time_by_hand():
    steps = steps_of(
        ("a", 0, "train", 0, 10, 4, 6, "full"),
        ("a", 1, "train", 10, 10, 4, 6, "full"),
        ("a", 2, "train", 20, 10, None, None, "partial"),
        ("b", 0, "eval", 0, 10, 4, 6, "full"),
        ops=[
            ("a", 0, "MatMul", "device", 2, 70, 60),
            ("a", 1, "MatMul", "device", 1, 10, 10),
            ("a", 1, "Mul", "device", 3, 99, 20),
            ("a", 0, "Relu", "device", 1, 10, 10),
            ("a", 0, "MatMul", "host", 1, 5, 5),  # a name runs on both sides
            ("a", 2, "Relu", "device", 9, 900, 900),  # in a step cut by a window's edge: not counted
            ("b", 0, "Sub", "device", 1, 8, 8),
            ("b", 0, "Add", "device", 1, 8, 8),
        ],
    )
    phases = phases_of(steps, [0, 0, 0, 1])
    top = phases.top(2)
    assert top.schema == schema.TOP
    assert top.rows() == [
        # phase, side, rank, op, count, total, self, share, layer, source
        (0, "host", 1, "MatMul", 1, 5, 5, 1.0, None, None),
        (0, "device", 1, "MatMul", 3, 80, 70, 0.7, None, None),
        (0, "device", 2, "Mul", 3, 99, 20, 0.2, None, None),
        (1, "device", 1, "Add", 1, 8, 8, 0.5, None, None),
        (1, "device", 2, "Sub", 1, 8, 8, 0.5, None, None),
    ]
    assert phases.top().filter(pl.col("side") == "device", pl.col("phase") == 0)["op"].to_list() == [
        "MatMul",
        "Mul",
        "Relu",
    ]


def test_layer_and_source_line_of_a_top_operation_are_those_with_its_most_self_time():
    dense = ("device", "a2", "dense", "model.py:7")
    lines = [
        (0, 10, *dense),  # 20 ps in two steps
        (1, 10, *dense),
        (0, 15, "device", "a2", "conv", "model.py:5"),
        (0, 1, "host", "a_host", None, None),
        (2, 99, "device", "a2", "conv", "model.py:5"),  # of another phase
        (3, 999, "device", "a2", "cut", None),  # in a step cut by a window's edge: not counted
    ]
    columns = ["step", "self_ps", "side", "op", "layer", "source"]
    frame = pl.DataFrame(lines, schema=columns, orient="row").with_columns(host=pl.lit("toy"))
    layers = frame.with_columns(pl.lit(None).alias(name) for name in set(schema.LAYERS) - set(frame.columns))
    steps = replace(toy_steps("aaaa", traced="fffp"), read_layers=lambda: layers)
    top = phases_of(steps, [0, 0, 1, 0]).top(1)
    assert top.select("phase", "op", "layer", "source").rows() == [
        (0, "a_host", None, None),
        (0, "a2", "dense", "model.py:7"),
        (1, "a_host", None, None),
        (1, "a2", "conv", "model.py:5"),
    ]
    unread = replace(steps, read_layers=lambda: pytest.fail("read"))
    assert phases_of(unread, [0, 0, 1, 0]).top(1, sources=False)["layer"].null_count() == 4


def test_outliers_have_top_operations():
    assert toy_phases("ab", [-1, 0]).top(1).filter(pl.col("phase") == -1)["op"].to_list() == ["a_host", "a2"]


def test_steps_that_no_window_saw_have_no_operations():
    top = toy_phases("ab", [0, 1], traced="nn").top()
    assert top.is_empty()
    assert top.schema == schema.TOP


def test_shares_of_operations_without_time_are_nought():
    steps = steps_of(("a", 0, "train", 0, 10, 4, 6, "full"), ops=[("a", 0, "Nothing", "device", 1, 0, 0)])
    assert phases_of(steps, [0]).top()["share"].to_list() == [0.0]


def test_labels_are_whole_numbers_with_their_sweeps():
    sweep = pl.DataFrame({"k": [2], "chosen": [True]})
    labels = Labels(pl.Series([0, 1, -1], dtype=pl.Int8), {"k": sweep})
    assert labels == [0, 1, -1]
    assert {type(label) for label in labels} == {int}
    assert labels.sweeps["k"] is sweep
    assert Labels([0]).sweeps == {}


# -- of all nouns ---------------------------------------------------------------------------------------------


NOUNS = {
    "Steps": (toy_steps("ab"), "frame"),
    "Profile": (profile_of(("a", 0, 10)), "windows"),
    "Phases": (toy_phases("aab", [0, 0, 1]), "frame"),
    "Representatives": (tp.analysis.representatives(toy_phases("aab", [0, 0, 1])), "frame"),
}


@pytest.mark.parametrize(
    ("noun", "field"),
    [
        (NOUNS["Steps"][0], "name"),
        (NOUNS["Profile"][0], "name"),
        (NOUNS["Phases"][0], "labels"),
        (NOUNS["Representatives"][0], "frame"),
        (Phase(0, None, 1.0), "id"),
    ],
    ids=["Steps", "Profile", "Phases", "Representatives", "Phase"],
)
def test_a_noun_never_changes(noun, field):
    with pytest.raises(FrozenInstanceError):
        setattr(noun, field, None)


@pytest.mark.parametrize(("noun", "table"), NOUNS.values(), ids=NOUNS)
def test_a_noun_leaves_as_pandas(noun, table):
    pandas = pytest.importorskip("pandas")
    frame = getattr(noun, table)
    left = noun.to_pandas()
    assert isinstance(left, pandas.DataFrame)
    assert list(left.columns) == frame.columns
    for column in ("start_ps", "dur_ps"):
        assert left[column].tolist() == frame[column].to_list()


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
@pytest.mark.parametrize(("noun", "table"), NOUNS.values(), ids=NOUNS)
def test_without_pandas_the_extra_is_named(noun, table, package, monkeypatch):
    if package == "pyarrow":
        pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"^{package} is not installed") as caught:
        noun.to_pandas()
    assert caught.value.hint == install("pandas")


def test_productive_time_is_own_time_up_to_the_median_as_in_goodput():
    # 2 ms each; one waits 5 ms for input, one has a callback of 7 ms, one stalls for 9 ms, one is an outlier
    frame = toy_steps("bbbbbbb").frame.with_columns(
        start_ps=pl.int_range(7, dtype=pl.Int64) * 20 * 10**9,
        dur_ps=pl.Series([2, 2, 7, 9, 11, 20, 2]) * 10**9,
        input_ps=pl.Series([0, 0, 5, 0, 0, 0, 0]) * 10**9,
        callbacks_ps=pl.Series([0, 0, 0, 7, 0, 0, None]) * 10**9,
    )
    labels = pl.Series([0, 0, 0, 0, 0, -1, 0])
    phases = Phases(Steps(frame, toy_steps("bbbbbbb").ops), labels, lambda _: labels, pl.Series([0.0] * 7))
    assert phases.frame.select("phase", "productive_ps").rows() == [(0, 12 * 10**9), (-1, 2 * 10**9)]
    assert phases.coverage(1) == pytest.approx(12 / 14)
    assert phases.noise == pytest.approx(2 / 14)
    productive = tp.goodput(phases).frame.filter(account="productive")
    assert productive.select("phase", "time_ps").rows() == [(0, 12 * 10**9), (-1, 2 * 10**9)]


def test_the_notebook_shows_the_operations_of_a_capture_that_is_one_step():
    steps = toy_steps("a")
    assert steps._repr_html_() is None
    whole = steps.frame.with_columns(rule=pl.lit("whole", schema.RULE))
    ops = steps.ops.with_columns(pl.col("op").cast(pl.String).replace({"a0": "<b>a0"}).cast(schema.NAME))
    html = Steps(whole, ops)._repr_html_()
    assert html.startswith("<p>Steps(1 step, ")
    assert "&lt;b&gt;a0" in html
    assert "<b>a0" not in html
