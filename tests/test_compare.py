"""Two runs compared: which phase is which, what changed, and intervals that hold."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from run_pairs import by_letter, matched, metadata_of, renamed, stretched
from simulate.synthetic_runs import KINDS, synthetic_run

import tpunb as tp
from tpunb import schema
from tpunb.analysis.compare import Comparison, compare
from tpunb.errors import IncompatibleRuns
from tpunb.frames import Phases, Steps
from tpunb.frames.steps import WallClock
from tpunb.profiler.capture import Schedule
from tpunb.step_stats import batch_means
from tpunb.testing import spelled_steps, toy_steps

MS = 1_000_000_000


# -- what is said -----------------------------------------------------------------------------------------------------


def test_a_run_is_as_itself():
    run = by_letter("aabbbbc")
    same = compare(run, run)
    assert matched(same) == [(0, 0), (1, 1), (2, 2)]
    assert same.frame["similarity"].to_list() == pytest.approx([1, 1, 1])
    assert same.frame["phase_a"][0] == 1  # the longest
    assert same.frame["ratio"].to_list() == [1, 1, 1]
    assert same.ratio == 1
    assert same.unmatched.is_empty()
    assert same.explained["change_ps"].to_list() == [0, 0, 0]
    assert same.explained["share"].null_count() == 3  # of no difference there are no shares
    assert set(same.ops["state"]) == {"both"}
    assert set(same.ops["change_ps"]) == {0}


def test_doubled_times_change_nothing_else():
    run = by_letter("aaabbbb")
    doubled = compare(run, stretched(run, 2))
    assert doubled.frame["ratio"].to_list() == pytest.approx([2, 2])
    assert doubled.ratio == 2
    row = doubled.frame.row(0, named=True)
    assert (row["steps_a"], row["steps_b"]) == (4, 4)
    assert (row["dur_a_ps"], row["dur_b_ps"]) == (8 * MS, 16 * MS)
    assert (row["step_a_ps"], row["step_b_ps"]) == (2 * MS, 4 * MS)
    assert (row["idle_a"], row["idle_b"], row["idle_change"]) == (0.5, 0.5, 0)
    assert (row["kinds"], row["by"]) == ("train", "operations")
    assert doubled.ops["self_b_ps"].to_list() == pytest.approx([2 * own for own in doubled.ops["self_a_ps"]], rel=1e-6)


def test_changes_add_up_to_the_difference_between_runs():
    a = tp.phases(toy_steps("aaabbz"), lambda steps: [0, 0, 0, 1, 1, -1])
    b = tp.phases(toy_steps("aaaac"), lambda steps: [0, 0, 0, 0, 1])
    outcome = compare(a, b)
    assert matched(outcome) == [(0, 0)]
    assert outcome.explained.select("phase_a", "phase_b", "steps_a", "steps_b", "change_ps").rows() == [
        (-1, -1, 1, 0, -26 * MS),
        (1, None, 2, 0, -4 * MS),
        (None, 1, 0, 1, 3 * MS),
        (0, 0, 3, 4, 1 * MS),
    ]
    assert outcome.explained["share"].sum() == pytest.approx(1)
    assert outcome.explained.row(3, named=True)["by_steps_ps"] == 1 * MS  # one more step of 1 ms, none longer
    assert outcome.explained["by_steps_ps"].null_count() == 3
    assert outcome.unmatched.select("phase_a", "phase_b").rows() == [(1, None), (None, 1)]
    assert outcome.ratio == pytest.approx(7 / 33)


def test_more_steps_and_longer_steps_are_separate():
    a, b = by_letter("aa"), stretched(by_letter("aaaa"), 3)
    row = compare(a, b).explained.row(0, named=True)
    assert row["change_ps"] == 10 * MS  # from 2 steps of 1 ms to 4 of 3 ms: 4 by their number, 6 by their length
    assert (row["by_steps_ps"], row["by_step_time_ps"]) == (4 * MS, 6 * MS)


def test_hosts_do_not_add_up():
    one = toy_steps("aabb")
    pair = [toy_steps("aabb", host=host) for host in ("x", "y")]
    two = Steps(*(pl.concat([getattr(run, name) for run in pair]) for name in ("frame", "ops", "devices", "windows")))
    outcome = compare(one, two)
    assert outcome.ratio == 1
    assert outcome.frame["steps_a"].to_list() == outcome.frame["steps_b"].to_list() == [2, 2]
    assert set(outcome.explained["change_ps"]) == {0}


def test_ops_gained_and_lost():
    run = by_letter("aaaa")
    swapped = renamed(run, pl.col("op").cast(pl.String) == "a0")
    outcome = compare(run, swapped)
    states = dict(outcome.ops.select("op", "state").rows())
    assert states == {"a0": "lost", "other_a0": "gained", "a1": "both", "a2": "both", "a_host": "both"}
    gained = outcome.ops.filter(pl.col("op") == "other_a0").row(0, named=True)
    assert gained["self_a_ps"] == 0
    assert gained["self_b_ps"] == gained["change_ps"] == pytest.approx(83_333_333, rel=1e-6)
    assert outcome.ops["change_ps"].abs().is_sorted(descending=True)


def test_repr_has_the_ratio_of_the_longest_phase():
    run, noisy = by_letter("aaabbb"), synthetic_run(400, 60)
    assert repr(compare(run, stretched(run, 2))) == (
        "Comparison(b against a: 2 phases matched, step time ratio of the longest 2.00)"
    )
    noisy = tp.phases(noisy.steps, lambda steps: noisy.phase)
    outcome = compare(noisy, stretched(noisy, 2))
    low, high = outcome.frame.select("ratio_low", "ratio_high").row(0)
    assert low < outcome.frame["ratio"][0] < high
    assert (
        repr(outcome)
        == f"Comparison(b against a: 6 phases matched, step time ratio of the longest 2.00 [{low:.2f}, {high:.2f}])"
    )
    nothing = tp.phases(toy_steps("abc"), lambda steps: [-1] * 3)
    assert (
        repr(compare(nothing, run))
        == "Comparison(b against a: 0 phases matched, unmatched: train only in b, train (faster) only in b)"
    )


def test_steps_are_cut_by_the_default_method_and_others_refused():
    steps = toy_steps("aaabbb")
    assert isinstance(compare(steps, tp.phases(steps)), Comparison)
    with pytest.raises(TypeError, match=r"a parameter of compare must be the path of a run, .* or Phases\. Got 7"):
        compare(7, steps)
    with pytest.raises(TypeError, match=r"b parameter of compare must be the path of a run, .* Got None"):
        compare(steps, None)


def test_the_lines_say_what_changed_by_account():
    changed = compare(tp.sample("qanet-squad"), tp.sample("qanet-squad-half"))
    assert changed.lines[:3] == [
        "  run time: 66.8 s → 42.1 s (-24.8 s)",
        "  productive: 31.6 s → 14.6 s (-17.0 s)",
        "  evaluation: 13.1 s → 10.4 s (-2.7 s)",
    ]
    assert compare(toy_steps("aab"), toy_steps("aab")).lines == []  # without a record of the wall time


def test_runs_are_compared_by_their_paths():
    sample = tp.sample("keras_cnn")
    assert compare(sample.source, str(sample.source)).frame.equals(compare(sample, sample).frame)


@given(st.text("abc", min_size=1, max_size=12), st.text("abc", min_size=1, max_size=12))
@examples(12)
def test_each_phase_is_listed_once_and_backwards_is_the_inverse(one, other):
    a, b = by_letter(one), by_letter(other)
    outcome, back = compare(a, b, allow_different_models=True), compare(b, a, allow_different_models=True)
    for run, column in ((a, "phase_a"), (b, "phase_b")):
        assert sorted(outcome.explained[column].drop_nulls()) == sorted(run.frame["phase"])
    assert outcome.explained["change_ps"].sum() == b.frame["dur_ps"].sum() - a.frame["dur_ps"].sum()
    assert sorted(matched(outcome)) == sorted((x, y) for y, x in matched(back))
    assert outcome.ratio == pytest.approx(1 / back.ratio)
    ratios = dict(zip(matched(outcome), outcome.frame.sort("phase_a")["ratio"], strict=True))
    for (y, x), ratio in zip(matched(back), back.frame.sort("phase_a")["ratio"], strict=True):
        assert ratio * ratios[x, y] == pytest.approx(1)
    for frame in (outcome.frame, outcome.ops, outcome.explained):
        assert not any(frame[name].is_nan().any() for name, dtype in frame.schema.items() if dtype == pl.Float64)


# -- what may not be compared -----------------------------------------------------------------------------------------


def test_another_model_is_refused_by_its_operations():
    run = by_letter("aaabb")
    with pytest.raises(IncompatibleRuns, match=r"operations in the longest phases is 0\.00.*b2, b1 in a") as caught:
        compare(run, renamed(run))
    assert caught.value.hint == "to compare them anyway: compare(a, b, allow_different_models=True)"
    assert "\n" not in str(caught.value)
    assert matched(compare(run, renamed(run), allow_different_models=True)) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("fact", "one", "other"),
    [("model", "Sequential of 2 Dense", "Sequential of 3 Dense"), ("dtype", "float32", "mixed_bfloat16")],
)
def test_another_model_is_refused_by_metadata(fact, one, other):
    run = by_letter("aaabb")
    with pytest.raises(IncompatibleRuns, match=f"{fact} is '{one}' in a, '{other}' in b"):
        compare(metadata_of(run, **{fact: one}), metadata_of(run, **{fact: other}))
    assert (
        len(compare(metadata_of(run, **{fact: one}), metadata_of(run, **{fact: other}), allow_different_models=True))
        == 2
    )
    assert len(compare(metadata_of(run, **{fact: one}), run)) == 2  # unknown does not differ
    assert len(compare(metadata_of(run, **{fact: one}), metadata_of(run, **{fact: one}))) == 2


def test_one_model_is_not_refused_though_its_operations_have_other_names():
    run = metadata_of(by_letter("aaabb"), model="Sequential of 2 Dense")
    assert set(compare(run, renamed(run)).frame["by"]) == {"kinds"}


def test_other_batches_and_optimizers_are_settings_not_refused():
    run = by_letter("aaabb")
    outcome = compare(metadata_of(run, batch="32", optimizer="Adam"), metadata_of(run, batch="64"))
    assert outcome.settings.rows() == [("batch", "32", "64"), ("optimizer", "Adam", None)]


# -- what is not known -------------------------------------------------------------------------------------------------


def test_one_step_has_no_interval():
    outcome = compare(by_letter("ab"), stretched(by_letter("ab"), 2))
    assert outcome.frame["ratio"].to_list() == pytest.approx([2, 2])
    for name in ("ratio_low", "ratio_high", "idle_low", "idle_high"):
        assert outcome.frame[name].null_count() == 2
    assert outcome.ops["low_ps"].null_count() == outcome.ops.height


def test_unknown_values_are_null():
    outcome = compare(by_letter("aab"), by_letter("aab"))
    for name in ("mxu_a", "mxu_b", "duty_a", "duty_b", "input_a", "input_b"):
        assert outcome.frame[name].null_count() == 2


def test_steps_of_no_time_have_no_ratio():
    run = by_letter("aab")
    still = stretched(run, 0)
    outcome = compare(still, run, allow_different_models=True)
    assert outcome.frame["ratio"].null_count() == 2
    assert outcome.frame["step_a_ps"].to_list() == [0, 0]
    assert outcome.frame["idle_a"].null_count() == 2
    assert outcome.ratio is None
    assert compare(run, still, allow_different_models=True).ratio == 0


def test_untraced_phases_are_compared_by_step_time():
    steps = toy_steps("aabbb", traced="ffnnn")
    steps = replace(steps, frame=steps.frame.with_columns(kind=pl.Series(["train"] * 2 + ["eval"] * 3)))
    run = tp.phases(steps, lambda full: [0] * len(full))
    outcome = compare(run, stretched(run, 2))
    assert (0, 0) in matched(outcome)
    assert set(outcome.ops["phase_a"]) <= {0}
    assert outcome.ratio == 2


def test_tables_without_operations_are_compared_by_marks():
    run = by_letter("aabbb")
    bare = replace(run, steps=replace(run.steps, ops=pl.DataFrame(schema=schema.OPS)))
    outcome = compare(bare, bare)
    assert set(outcome.frame["by"]) == {"kinds"}
    assert matched(outcome) == [(0, 0), (1, 1)]
    assert outcome.ops.is_empty()
    assert compare(bare, run).ops.is_empty()  # what is not outcome is not gained


def test_shares_are_of_the_steps_that_tell_them():
    run = by_letter("aaaa")
    mxu = pl.Series([0.2, None, 0.4, float("nan")])
    waits = pl.Series([0, MS // 2, MS // 4, None])
    outcome = replace(run, steps=replace(run.steps, frame=run.steps.frame.with_columns(mxu_util=mxu, input_ps=waits)))
    row = compare(run, outcome).frame.row(0, named=True)
    assert (row["mxu_a"], row["input_a"]) == (None, None)
    assert row["mxu_b"] == pytest.approx(0.3)
    assert row["input_b"] == pytest.approx(0.25)


def test_the_interval_of_an_operation_is_that_of_its_times_step_by_step():
    run = synthetic_run(400, 60, seed=8)
    a = tp.phases(run.steps, lambda steps: run.phase)
    b = stretched(a, 1.5)
    steady = KINDS.index("steady")
    row = compare(a, b).ops.filter((pl.col("phase_a") == steady) & (pl.col("op") == "infeed")).row(0, named=True)
    steps = a.labelled.filter(pl.col("phase") == steady).select("host", "step")
    own = steps.join(a.steps.ops.filter(pl.col("op") == "infeed"), on=["host", "step"], how="left")
    times = own.sort("step")["self_ps"].fill_null(0).to_numpy().astype(float)
    expected = batch_means.difference(times, times * 1.5)
    assert (row["change_ps"], row["low_ps"], row["high_ps"]) == pytest.approx(
        [float(end) for end in expected], rel=1e-4
    )


def test_a_collective_of_another_library_is_the_same_operation():
    def of(*collectives):
        others = {f"fusion_{name}": 80 for name in "abcdefgh"}
        return tp.phases(spelled_steps(*[(others | dict.fromkeys(collectives, 20), {})] * 12))

    nccl, custom = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "multimem_all_reduce_kernel"
    ops = compare(of(nccl), of(custom)).ops
    assert (set(ops["state"]), ops.height, nccl in ops["op"].to_list()) == ({"both"}, 9, True)
    gather = "ncclDevKernel_AllGather_RING_LL"
    ops = compare(of(nccl), of(custom, gather)).ops
    assert ops.filter(state="gained")["op"].to_list() == [gather]
    # which of two is the one by another name is not known
    ops = compare(of(nccl), of(custom, "cross_device_reduce_1stage")).ops
    assert ops.filter(state="lost")["op"].to_list() == [nccl]


# -- real runs -------------------------------------------------------------------------------------------------------


def test_the_samples_are_of_two_models():
    cnn, transformer = (tp.steps(tp.sample(name)) for name in ("keras_cnn", "keras_transformer"))
    allow_different_models = "^keras_cnn and keras_transformer are not of one model: "
    with pytest.raises(
        IncompatibleRuns,
        match=allow_different_models + "model is .*Conv2D.* in a, .*MultiHeadAttention.* in b",
    ):
        compare(cnn, transformer)
    with pytest.raises(
        IncompatibleRuns, match=allow_different_models + ".*Conv2D.* in a, .*BatchMatMulV2"
    ):  # by what ran, where no kind is recorded
        compare(replace(cnn, metadata={}), replace(transformer, metadata={}))
    outcome = compare(cnn, transformer, allow_different_models=True)
    kinds = dict(zip(matched(outcome), outcome.frame.sort("phase_a")["kinds"], strict=True))
    assert {"train", "eval"} == set(kinds.values())


def captured(folder, batch, policy="float32"):
    """A small CNN trained and tested on random images for two epochs, as its steps."""
    keras = pytest.importorskip("keras")
    layers, rows = keras.layers, np.random.default_rng(0)
    images, labels = rows.random((40 * batch, 16, 16, 3), dtype="float32"), rows.integers(0, 4, 40 * batch)
    form = [layers.Input((16, 16, 3)), *(layers.Conv2D(8, 3, activation="relu", dtype=policy) for _ in range(2))]
    model = keras.Sequential([*form, layers.Flatten(), layers.Dense(4, dtype=policy)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    test = images[: 20 * batch], labels[: 20 * batch]
    with tp.capture(folder, schedule=Schedule.continuous(window=0.5), keep="none") as run:
        model.fit(images, labels, batch_size=batch, epochs=3, validation_data=test, verbose=0)
    return tp.steps(tp.load(run))


@pytest.mark.slow
def test_a_real_training_with_another_batch_is_compared_and_with_another_precision_refused(tmp_path):
    small = captured(tmp_path / "small", 32)
    large = captured(tmp_path / "large", 64)
    outcome = compare(small, large)
    assert {"train", "eval"} <= set(outcome.frame["kinds"])
    assert set(outcome.frame["by"]) == {"operations"}
    settings = {fact: (a, b) for fact, a, b in outcome.settings.iter_rows()}
    assert settings["batch"] == ("32", "64")
    assert settings["dtype"] == ("float32", "float32")
    assert settings["model"] == ("Sequential of 2 Conv2D, 1 Flatten, 1 Dense",) * 2
    assert settings["device kind"] == ("CPU", "CPU")
    half = captured(tmp_path / "half", 32, "mixed_bfloat16")
    with pytest.raises(IncompatibleRuns, match="dtype is 'float32' in a, 'mixed_bfloat16' in b"):
        compare(small, half)
    assert isinstance(compare(small, half, allow_different_models=True), Comparison)


def test_given_phases_are_compared():
    run = by_letter("aaabbb")
    outcome = compare(run, run)
    assert outcome.a is run
    assert isinstance(outcome.b, Phases)
    assert outcome.frame.schema == schema.COMPARED
    assert outcome.ops.schema == schema.COMPARED_OPS
    assert outcome.explained.schema == schema.EXPLAINED
    assert outcome.to_pandas().shape == outcome.frame.shape


@pytest.mark.parametrize("pattern", ["a", "aaaabbbb", "abcdefghijklmnopqrst"])
def test_a_run_is_like_itself(pattern):
    run = tp.phases(toy_steps(pattern))
    assert compare(run, run).frame["similarity"].to_list() == pytest.approx([1.0] * len(run))


# accounts


def in_run(wall_s, *, complete=True, **spans):
    """Return a run of three steps of 1 s, then spans of so many seconds, by account."""
    steps = toy_steps("aaa", traced="ffn")
    times = pl.int_range(3, dtype=pl.Int64) * 10**12
    frame = steps.frame.with_columns(start_ps=times, dur_ps=pl.lit(10**12))
    rows = [
        ("toy", (4 + at) * 10**12, seconds * 10**12, account, None)
        for at, (account, seconds) in enumerate(spans.items())
    ]
    clock = WallClock(wall_s * 10**12, complete, pl.DataFrame(rows, schema=schema.SPANS, orient="row"))
    return tp.phases(replace(steps, frame=frame, wall=clock), lambda full: [0] * len(full))


def test_accounts_explain_the_difference_in_wall_time():
    # 6 s more: 4 s of callbacks and 2 s after the steps
    outcome = compare(in_run(10, callbacks=1), in_run(16, callbacks=5))
    rows = outcome.accounts.select("account", pl.col("time_a_ps", "time_b_ps", "change_ps") // 10**12, "share").rows()
    assert rows == [
        ("callbacks", 1, 5, 4, pytest.approx(4 / 6)),
        ("preparation", 6, 8, 2, pytest.approx(2 / 6)),
        ("productive", 3, 3, 0, 0.0),
    ]
    assert repr(outcome).endswith(", wall time +6.0 s: callbacks +4.0 s, preparation +2.0 s)")
    assert repr(compare(outcome.b, outcome.a)).endswith(", wall time -6.0 s: callbacks -4.0 s, preparation -2.0 s)")


def test_runs_that_do_not_differ_have_no_shares():
    outcome = compare(in_run(10), in_run(10))
    assert outcome.accounts["share"].null_count() == outcome.accounts.height == 2
    assert repr(outcome).endswith(", wall time +0 s)")


def test_an_account_that_a_run_did_not_record_is_null():
    outcome = compare(in_run(10, complete=False), in_run(10, callbacks=2))
    row = outcome.accounts.filter(account="callbacks").row(0, named=True)
    assert (row["time_a_ps"], row["time_b_ps"], row["change_ps"], row["share"]) == (None, 2 * 10**12, None, None)


def test_runs_without_a_clock_are_compared_by_productive_time():
    run = by_letter("aaabbb")
    assert "wall time" not in repr(compare(run, stretched(run, 2)))
    assert compare(run, stretched(run, 2)).accounts["account"].to_list() == ["productive", "device idle"]
