"""The chart of trials: one dot each with an interval that fits, its verdict by colour and shape."""

import json
import math

import pytest
from chart_checks import EVIL, rows_of, texts_of

from tpunb import charts
from tpunb.charts import render
from tpunb.errors import TpunbError
from tpunb.tuning.results import Speedup, Trial, Tuning

CALLS = {"map:1 parallel calls": 8}
TRIALS = (
    Trial(0, {}, "default", 0.016, equal=True),
    Trial(1, CALLS, "faster", 0.004, 0, 4.0, 3.5, 4.5, 3, True),
    Trial(2, {"map:1 parallel calls": 16}, "undecided", 0.004, 1, 1.0, None, None, 1, True),
    Trial(3, {"end prefetch": 2}, "failed", against=1, error="ValueError: no"),
    Trial(4, {"batch:2 parallel copy": True}, "different output", against=1, equal=False),
    Trial(5, {"end prefetch": 4}, "not faster", 0.005, 1, 0.8, 0.7, 0.9, 3, True),
)
TUNING = Tuning(TRIALS, CALLS, Speedup(4.0, 3.5, 4.5))


def layers(chart):
    """The rows of each layer: the line, intervals, dots, those at the foot, the ring."""
    spec = chart.to_dict()
    return [spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]]


def domain(chart):
    return chart.to_dict()["layer"][2]["encoding"]["y"]["scale"]["domain"]


def test_a_trial_is_a_dot_with_its_interval():
    line, intervals, dots, foot, ring = layers(charts.trials(TUNING))
    assert [row["ratio"] for row in line] == [1]
    assert [(row["trial"], row["low"], row["high"]) for row in intervals] == [
        (1, pytest.approx(3.5), pytest.approx(4.5)),
        (5, pytest.approx(2.649, abs=1e-3), pytest.approx(3.780, abs=1e-3)),  # of two races
    ]
    assert [(row["trial"], row["ratio"]) for row in dots] == [(0, 1), (1, 4), (2, 4), (5, 3.2)]
    assert [(row["trial"], row["verdict"]) for row in foot] == [(3, "failed"), (4, "different output")]
    assert [row["trial"] for row in ring] == [1]


def test_each_dot_describes_its_trial():
    about = {row["trial"]: row["about"] for row in rows_of(charts.trials(TUNING)) if "trial" in row}
    assert about[0] == "trial 0, default: as written"
    assert about[1] == "trial 1, faster: map:1 parallel calls = 8; 4.00x [3.50, 4.50], by 3 pairs of runs with trial 0"
    assert about[2].endswith("4.00x, by 1 pair of runs with trial 1")
    assert about[3].endswith("end prefetch = 2; ValueError: no")


def test_trials_are_against_the_program_whichever_they_raced():
    chain = Tuning(
        (
            TRIALS[0],
            Trial(1, {"a": 2}, "faster", None, 0, 2.0, 1.6, 2.5, 3, True),
            Trial(2, {"a": 4}, "faster", None, 1, 3.0, 2.4, 3.75, 3, True),
            Trial(3, {"a": 8}, "failed", None, 2),
            Trial(4, {"a": 9}, "not faster", None, 2, 0.5, None, None, 1, True),
        )
    )
    first, second, third, failed, last = chain.speedups
    assert first == (1, 1, 1)
    assert second == pytest.approx((2, 1.6, 2.5))
    wide = math.exp(math.sqrt(2) * math.log(1.25))  # both intervals are 25 % to each side
    assert third == pytest.approx((6, 6 / wide, 6 * wide))
    assert failed is None
    assert last == (3, 0, math.inf)


@pytest.mark.parametrize(
    ("speedup", "words"),
    [((2, 1.5, 2.2), "2.00x [1.50, 2.20]"), ((2, 1.5, 2.3), "at least 1.50x"), ((2, 0.5, 9), "2.00x [0.50, 9.00]")],
)
def test_a_gain_with_a_wide_interval_is_its_lower_end(speedup, words):
    assert charts.trials(Tuning(TRIALS[:1], CALLS, Speedup(*speedup))).description.endswith(
        f"chosen (ring): {words} vs the program's values."
    )


def test_verdicts_differ_in_colour_and_in_shape():
    encoding = charts.trials(TUNING).to_dict()["layer"][2]["encoding"]
    for channel in ("color", "shape"):
        scale = encoding[channel]["scale"]
        assert set(scale["domain"]) == {trial.verdict for trial in TRIALS}
        assert len(set(scale["range"])) == len(scale["domain"])
    assert encoding["y"]["scale"]["type"] == "log"


def test_the_title_has_the_speedup():
    chart = charts.trials(TUNING)
    assert "chosen (ring): 4.00x [3.50, 4.50] vs the program's values" in chart.description
    assert "chosen (ring): 4.00x" in texts_of(chart)
    assert render.png(chart)
    none = charts.trials(Tuning(TRIALS[:1]))
    assert "1 trial, the values stay as they are" in none.description
    assert layers(none)[4] == []


def test_a_wide_interval_does_not_stretch_the_axis():
    wide = Tuning((TRIALS[0], Trial(1, CALLS, "undecided", 0.01, 0, 1.5, 0.0, math.inf, 2, True)))
    chart = charts.trials(wide)
    low, high = domain(chart)
    assert 0.4 < low < 0.5
    assert 3 < high < 3.5
    assert [(row["low"], row["high"]) for row in layers(chart)[1]] == [(low, high)]
    json.dumps(chart.to_dict(), allow_nan=False)
    assert render.svg(chart)


@pytest.mark.parametrize("ratio", [1e-6, 0.999, 1.001, 1e6])
def test_every_dot_is_inside(ratio):
    chart = charts.trials(Tuning((TRIALS[0], Trial(1, CALLS, "undecided", 0.01, 0, ratio, ratio, ratio, 3, True))))
    low, high = domain(chart)
    assert low < min(ratio, 1) <= max(ratio, 1) < high
    assert render.svg(chart)


def test_no_trials_raise():
    with pytest.raises(TpunbError, match="has no trials") as caught:
        charts.trials(Tuning(()))
    assert caught.value.hint


@pytest.mark.parametrize("evil", EVIL)
def test_names_and_errors_stay_text(evil):
    chart = charts.trials(Tuning((Trial(0, {evil: 1}, "failed", error=evil),)))
    texts_of(chart)
    about = rows_of(chart)[-1]["about"]
    assert evil[:9] in about
    assert about.isprintable()
