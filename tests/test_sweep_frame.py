"""Sweep: its columns and file, and its answers on points whose answers are visible."""

import json
from contextlib import suppress
from dataclasses import FrozenInstanceError

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from toy_sweeps import CHIP, KNEE, MS, grid, sweep

import tpunb as tp
from tpunb.errors import BadProfile, IncompatibleRuns, TpunbError
from tpunb.studies.sweeps import Sweep, columns

# -- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_schema_after_the_parameters():
    assert KNEE.frame.columns == ["batch", *columns.SWEEP]
    assert KNEE.frame["examples_per_s"].to_list() == [16e3, 32e3, 64e3, 64e3]
    assert KNEE.frame["joules"].null_count() == len(KNEE) == 4
    with pytest.raises(FrozenInstanceError):
        KNEE.frame = None


@pytest.mark.parametrize(
    ("frame", "parameters", "message"),
    [
        ({"batch": [1], "state": ["ok"]}, (), "a sweep has no parameters"),
        ({"batch": [1]}, ("batch",), r"the sweep frame lacks \['state'\]"),
        ({"state": ["ok"]}, ("batch",), r"the sweep frame lacks the parameter 'batch'; it has \['state'\]"),
        ({"dtype": ["f"], "state": ["ok"]}, ("dtype",), "'dtype' has the name of another column"),
        ({"ratio": [1], "state": ["ok"]}, ("ratio",), "'ratio' has the name of another column"),
        ({"batch": [1], "state": ["ok"]}, ("batch", "batch"), "'batch' has the name of another column"),
        ({"batch": [1, 1], "state": ["ok", "ok"]}, ("batch",), "two rows of one point"),
        ({"batch": [[1]], "state": ["ok"]}, ("batch",), "of type List"),
        ({"batch": [1], "state": ["ok"], "step_ps": ["long"]}, ("batch",), "a column of the wrong type"),
    ],
)
def test_frames_that_are_no_sweep_are_refused_in_one_line(frame, parameters, message):
    with pytest.raises(BadProfile, match=message) as caught:
        Sweep(pl.DataFrame(frame), parameters)
    assert "\n" not in str(caught.value)


def test_filter_selects_points_by_value_or_values():
    both = grid(lambda batch, width: batch)
    assert both.filter(width=8, batch=[16, 64]).frame.select("batch", "width").rows() == [(16, 8), (64, 8)]
    assert len(both.filter(width=9)) == 0
    with pytest.raises(
        ValueError, match=r"filter: unknown parameter 'widht'; did you mean 'width'\? parameters: batch, "
    ):
        both.filter(widht=8)
    for value in ("large", [None, "large"]):
        with pytest.raises(ValueError, match=r"filter: width is of Int64\. Got "):
            both.filter(width=value)


# -- saturation -------------------------------------------------------------------------------------------------------


def test_saturation_is_the_smallest_value_that_is_enough():
    answer = KNEE.saturation("batch")
    assert (answer.value, answer.rising) == (64, False)
    assert answer.frame.rows() == [(64.0, False, 64e3, 32.0, 0.5, True)]
    assert answer.sentences == ("batch 64 is enough", "at 32 you give away 50 %")
    assert isinstance(answer.value, int)


def test_rising_is_said_where_only_the_largest_is_enough():
    answer = sweep([1, 1, 1, 1]).saturation("batch")
    assert (answer.value, answer.rising) == (128, True)
    assert answer.sentences[0] == "batch 128 is the largest measured, and throughput still rises"


def test_within_is_the_share_that_may_be_lost():
    almost = sweep([1, 1, 1, 1.9])  # 64 gives 95.0 % of 67.4
    assert almost.saturation("batch", within=0.06).value == 64
    assert almost.saturation("batch", within=0.04).value == 128
    assert almost.saturation("batch", within=1).value == 16
    with pytest.raises(ValueError, match="The within parameter of saturation must be in"):
        almost.saturation("batch", within=5)


def test_an_interval_that_reaches_is_enough():
    times = [1, 1, 1, 1.8]  # 64 gives 90 %
    assert sweep(times).saturation("batch").value == 128
    assert sweep(times, spread=0.1).saturation("batch").value == 64


def test_points_that_did_not_run_are_left_out_and_one_alone_answers_nothing():
    assert sweep([1, 1, None, None]).saturation("batch").value == 32
    answer = sweep([1, None, None, None]).saturation("batch")
    assert (answer.value, answer.rising) == (None, None)
    assert answer.frame.height == 1
    assert answer.sentences == ("batch: fewer than two values ran",)


def test_saturation_is_per_combination_of_the_others_and_its_value_one_that_was_measured():
    several = grid(lambda batch, width: max(1, batch / (32 if width == 8 else 64)))
    answer = several.saturation("batch")
    assert answer.frame.select("width", "value", "rising").rows() == [(8, 32.0, False), (16, 64.0, False)]
    assert answer.value == 64  # the larger of the middle two
    assert answer.sentences[0] == "batch 64 is enough (median of 2 combinations of the other parameters)"


def test_a_value_that_is_the_largest_in_its_combination_is_still_rising():
    several = grid(lambda batch, width: max(1, batch / 32) if width == 8 else 1)
    answer = several.saturation("batch")
    assert answer.frame.select("width", "value", "rising").rows() == [(8, 32.0, False), (16, 128.0, True)]
    assert (answer.value, answer.rising) == (128, True)


def test_saturation_needs_a_parameter_of_numbers():
    cells = Sweep(pl.DataFrame({"cell": ["gru", "lstm"], "state": ["ok", "ok"]}), ("cell",))
    with pytest.raises(ValueError, match=r"must have numbers as values\. Got 'cell' instead"):
        cells.saturation("cell")
    with pytest.raises(ValueError, match="saturation: unknown parameter 'batch'"):
        cells.saturation("batch")


def measured(rng, knee, rounds=15):
    """A sweep of medians and their intervals, of rounds with drift in which 30 % of times are outliers."""
    batches = 2 ** np.arange(4, 12)
    true = np.maximum(1.0, batches / knee)
    drift = np.linspace(1, rng.uniform(0.7, 1.5), rounds)[:, None]
    noise = rng.normal(1, 0.01, (rounds, len(batches)))
    outliers = np.where(rng.random((rounds, len(batches))) < 0.3, rng.uniform(1.5, 10, (rounds, len(batches))), 1)
    times = np.sort(true * drift * noise * outliers / np.median(drift), axis=0)
    frame = {"batch": batches, "examples": batches, "state": ["ok"] * len(batches)}
    for name, row in (("low_ps", 3), ("step_ps", 7), ("high_ps", 11)):  # 95 % of the median of 15, by ranks
        frame[name] = (times[row] * MS).round().astype(int)
    return Sweep(pl.DataFrame(frame), ("batch",))


def test_a_known_knee_is_found_under_outliers_and_drift():
    rng = np.random.default_rng(0)
    knees = [int(2 ** rng.integers(6, 11)) for _ in range(20)]
    found = [measured(np.random.default_rng(seed), knee).saturation("batch").value for seed, knee in enumerate(knees)]
    assert sum(value == knee for value, knee in zip(found, knees, strict=True)) >= 19


# -- sensitivity ------------------------------------------------------------------------------------------------------


def test_sensitivity_is_scikit_learns_regression_of_standardised_columns():
    from sklearn.linear_model import LinearRegression

    points = grid(lambda batch, width: 1 + batch * width**2 / 1000, widths=(8, 16, 40))
    answer = points.sensitivity("examples_per_s")
    columns = points.frame.select("batch", "width", "examples_per_s").to_numpy().astype(float)
    scaled = (columns - columns.mean(0)) / columns.std(0)
    model = LinearRegression().fit(scaled[:, :2], scaled[:, 2])
    assert dict(answer.frame.rows()) == pytest.approx(dict(zip(("batch", "width"), model.coef_, strict=True)))
    assert answer.r_squared == pytest.approx(model.score(scaled[:, :2], scaled[:, 2]))
    assert answer.r_squared <= points.sensitivity("examples_per_s", order=2).r_squared


def test_logarithms_make_a_power_law_exact():
    answer = grid(lambda batch, width: batch * width**2).sensitivity("step_ps", log=True)
    assert answer.r_squared == pytest.approx(1)
    weights = dict(answer.frame.rows())
    spread = np.std(np.log([16, 32, 64, 128])) / np.std(np.log([8, 16]))
    assert weights["width"] / weights["batch"] == pytest.approx(2 / spread)


def test_products_enter_at_order_2():
    answer = grid(lambda batch, width: batch * width, widths=(8, 16, 24)).sensitivity("step_ps", order=2)
    assert answer.frame["term"].to_list() == ["batch", "width", "batch x batch", "batch x width", "width x width"]
    assert answer.r_squared == pytest.approx(1)


def test_text_is_one_term_per_value_and_a_constant_has_no_weight():
    frame = {"cell": ["gru", "lstm", "gru", "lstm", "gru", "lstm"], "size": [1, 1, 2, 2, 3, 3], "one": [7] * 6}
    frame |= {"step_ps": [1, 5, 2, 6, 3, 7], "state": ["ok"] * 6}
    answer = Sweep(pl.DataFrame(frame), ("cell", "size", "one")).sensitivity("step_ps")
    assert answer.frame["term"].to_list() == ["cell=lstm", "size", "one"]
    assert answer.frame["weight"][2] is None
    assert answer.r_squared == pytest.approx(1)


def test_too_few_points_and_unknown_columns_are_refused():
    with pytest.raises(TpunbError, match="too few points for a regression: 2 points of different step_ps for 1 term"):
        sweep([1, 2, None, None]).sensitivity("step_ps")
    with pytest.raises(TpunbError, match="too few points"):
        KNEE.sensitivity("joules")
    with pytest.raises(ValueError, match=r"must be one of weights, .* Got 'state' instead"):
        KNEE.sensitivity("state")
    with pytest.raises(ValueError, match=r"must be 1 or 2\. Got 3 instead"):
        KNEE.sensitivity("step_ps", order=3)
    with pytest.raises(ValueError, match="log=True requires values above 0; batch has 0"):
        sweep([1, 2, 3, 5], batches=(0, 1, 2, 3)).sensitivity("step_ps", log=True)


# -- speed-up ---------------------------------------------------------------------------------------------------------


def test_speedup_joins_equal_points_and_a_by_b_is_the_inverse_of_b_by_a():
    fast, slow = sweep([1, 1, 2, None]), sweep([2, 4, 2, 3])
    answer = fast.speedup(slow)
    assert answer.frame.select("batch", "ratio").rows() == [(16, 2.0), (32, 4.0), (64, 1.0)]
    assert answer.geometric_mean == pytest.approx(2)
    assert slow.speedup(fast).geometric_mean == pytest.approx(0.5)


def test_numbers_of_another_type_are_equal_points_where_they_are_equal():
    halves = sweep([1, 1, 1, 1], batches=(16.0, 32.5, 64.0, 128.0))
    assert (
        KNEE.speedup(halves).frame["batch"].to_list() == halves.speedup(KNEE).frame["batch"].to_list() == [16, 64, 128]
    )
    texts = Sweep(KNEE.frame.with_columns(batch=pl.col("batch").cast(pl.String)), ("batch",))
    assert len(KNEE.speedup(texts)) == 4


def test_faster_is_only_said_if_the_interval_excludes_1():
    base = sweep([1, 1, 1, 1], spread=0.04)
    clear = sweep([2, 2, 2, 2], spread=0.04, device="other")
    assert base.speedup(clear).sentences[0].startswith("toy with JAX 0.7 is faster than other with JAX 0.7: ratio 2.00")
    assert clear.speedup(base).sentences[0].startswith("other with JAX 0.7 is slower than")
    assert base.speedup(clear).interval == pytest.approx((1.92 / 1.04, 2.08 / 0.96))
    close = base.speedup(sweep([1.05] * 4, spread=0.04))
    assert close.frame["verdict"].unique().to_list() == ["not distinguishable"]
    assert "not distinguishable" in str(close)
    unknown = base.speedup(sweep([2, 2, 2, 2]))
    assert unknown.frame["verdict"].null_count() == 4
    assert "faster" not in str(unknown)


def test_two_sweeps_of_one_thing_are_not_distinguishable():
    rng = [np.random.default_rng(seed) for seed in range(80)]
    pairs = [(measured(a, 64), measured(b, 64)) for a, b in zip(rng[::2], rng[1::2], strict=True)]
    intervals = [a.speedup(b).interval for a, b in pairs]
    assert sum(low <= 1 <= high for low, high in intervals) >= 38


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"dtype": "float32"}, "dtype (float32 and bfloat16)"),
        ({"mode": "predict"}, "mode (predict and train)"),
        ({"weights": 110}, "workload (weights differ by a factor of 1.1)"),
        ({"flops": 2e6}, "workload (flops differ by a factor of 2)"),
    ],
)
def test_unequal_runs_are_refused_unless_allowed(facts, name):
    base = {"dtype": "bfloat16", "mode": "train", "weights": 100, "flops": 1e6}
    a, b = sweep([1, 1, 1, 1], **{**base, **facts}), sweep([2, 2, 2, 2], **base)
    with pytest.raises(IncompatibleRuns) as caught:
        a.speedup(b)
    assert str(caught.value) == f"the sweeps differ in {name}"
    trait = name.split()[0]
    assert f"allow_different=({trait!r},)" in caught.value.hint
    answer = a.speedup(b, allow_different=trait)
    assert answer.geometric_mean == pytest.approx(2)
    assert any(sentence.startswith(trait) for sentence in answer.sentences)  # it stays in the answer


def test_what_was_not_recorded_does_not_differ():
    assert len(sweep([1] * 4).speedup(sweep([1] * 4, dtype="float32", mode="train", weights=9, flops=3.0))) == 4


def test_other_parameters_and_points_are_no_comparison():
    with pytest.raises(IncompatibleRuns, match="different parameters"):
        KNEE.speedup(grid(lambda batch, width: 1), allow_different=("dtype", "mode", "workload"))
    with pytest.raises(IncompatibleRuns, match="no point in common that ran"):
        KNEE.speedup(sweep([1, 1], batches=(1, 2)))
    with pytest.raises(TypeError, match="The other parameter of speedup must be a Sweep"):
        KNEE.speedup(KNEE.frame)
    with pytest.raises(ValueError, match=r"must be of dtype, mode, workload. Got \['device'\] instead"):
        KNEE.speedup(KNEE, allow_different=["device"])


def test_the_software_is_named_beside_the_device():
    other = sweep([1, 1, 1, 1], framework="TensorFlow", version="1.14", device="V100")
    text = str(KNEE.speedup(other))
    assert "toy with JAX 0.7 has 0.84 times the examples per second of V100 with TensorFlow 1.14" in text
    assert "the software differs, so the ratio is not of the devices alone" in text
    assert "software" not in str(KNEE.speedup(KNEE))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=3, max_size=12))
def test_rank_correlation_is_that_of_scipy(pairs):
    flops, steps = zip(*pairs, strict=True)
    frame = {
        "n": range(len(pairs)),
        "flops": [float(each) for each in flops],
        "step_ps": steps,
        "state": ["ok"] * len(pairs),
    }
    found = Sweep(pl.DataFrame(frame), ("n",)).rank_correlation
    if len({*flops}) == 1 or len({*steps}) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(flops, steps).statistic, abs=1e-9)


# -- sentences --------------------------------------------------------------------------------------------------------


def test_the_answer_is_a_sentence():
    points = grid(lambda batch, width: max(1, batch / 64) * (width / 8) ** 1.5)
    assert points.sentences == (
        "batch 64 is enough (median of 2 combinations of the other parameters)",
        "at 32 you give away 50 %",
        "twice the width costs 2.8x",
    )
    assert str(points) == f"toy, JAX 0.7: {'; '.join(points.sentences)}"
    assert points._repr_html_().startswith("<p>toy, JAX 0.7: batch 64 is enough")
    assert repr(points) == "Sweep(8 points of batch, width, 8 ok, toy, JAX 0.7)"


def test_points_that_did_not_run_are_counted():
    assert sweep([1, 1, None, None]).sentences[-1] == "2 of 4 points ran, 2 out of memory"


def test_names_are_not_trusted():
    evil = sweep([1, 1, 1, 1], device="<b>\x1b[31m")
    assert "\x1b" not in str(evil)
    assert "<b>" not in evil._repr_html_().split("</p>")[0]
    assert "\x1b" not in str(evil.speedup(KNEE))


def test_a_sweep_in_which_nothing_ran_still_prints():
    empty = sweep([None] * 4)
    assert str(empty) == "toy, JAX 0.7: 0 of 4 points ran, 4 out of memory"
    assert empty.saturation("batch").value is None
    assert empty.rank_correlation is None
    assert len(Sweep(pl.DataFrame(schema={"batch": pl.Int64, "state": pl.String}), ("batch",))._repr_html_()) > 0


# -- roofline ---------------------------------------------------------------------------------------------------------


def test_points_are_rows_of_a_roofline():
    points = grid(lambda batch, width: 1, widths=(8,), bytes=1e6, dtype="float32")
    roof = points.roofline(CHIP)
    assert roof.frame["what"].to_list() == ["batch 16", "batch 32", "batch 64", "batch 128"]
    assert roof.frame["rate"].to_list() == [16e6 * 8 * 1e3, 32e6 * 8 * 1e3, 64e6 * 8 * 1e3, 128e6 * 8 * 1e3]
    assert roof.frame["dtype"].to_list() == ["f32"] * 4
    assert grid(lambda batch, width: 1, bytes=1e6, device="H100 SXM").roofline().device.name == "H100 SXM"
    with pytest.raises(TpunbError, match="no peaks of the device 'toy'"):
        points.roofline()


# -- file -------------------------------------------------------------------------------------------------------------


def test_a_saved_sweep_is_loaded_with_all_it_holds(tmp_path):
    saved = Sweep(grid(lambda batch, width: batch).frame, ("batch", "width"), CHIP, {"origin": "here"})
    path = saved.save(tmp_path / "new" / "sweep.parquet")
    loaded = Sweep.read(path)
    assert isinstance(loaded, Sweep)
    assert loaded.frame.equals(saved.frame)
    assert (loaded.parameters, loaded.chip, loaded.metadata) == (saved.parameters, CHIP, {"origin": "here"})
    assert [each.name for each in path.parent.iterdir()] == ["sweep.parquet"]
    with pytest.raises(BadProfile, match=r"sweep.parquet is a table, not a profile"):
        tp.load(path)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (None, "is a Parquet file, but no sweep"),
        ({"format": 2}, "is a sweep of format 2; this version reads 1"),
        ({"format": 1, "parameters": ["batch"], "chip": None}, "is a Parquet file, but no sweep"),
        ({"format": 1, "parameters": ["width"], "chip": None, "metadata": {}}, "lacks the parameter 'width'"),
        ({"format": 1, "parameters": ["batch"], "chip": 7, "metadata": {}}, "is damaged, or no Parquet file"),
    ],
)
def test_other_parquet_files_are_refused_by_name(facts, message, tmp_path):
    path = tmp_path / "x.parquet"
    KNEE.frame.write_parquet(path, metadata=None if facts is None else {"tpunb.sweep": json.dumps(facts)})
    with pytest.raises(BadProfile, match=message):
        Sweep.read(path)


@given(data=st.data())
def test_no_bytes_end_in_anything_but_a_sweep_or_bad_profile(data, tmp_path_factory):
    path = KNEE.save(tmp_path_factory.getbasetemp() / "whole.parquet")
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5)):
        content[at] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(BadProfile):
        assert isinstance(Sweep.read(content), Sweep)
