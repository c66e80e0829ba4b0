"""What the panel says of phases: figures that are those of the frames, names that are text."""

import json
from dataclasses import replace

import polars as pl
import pytest

import tpunb as tp
from tpunb import charts, schema
from tpunb.frames import Phases, Steps
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps
from tpunb.text import short_time
from tpunb.widgets import exports, phase_view
from tpunb.widgets import table as tables
from tpunb.widgets.table import ROWS

EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
TEXT = "<img src=x onerror=alert(1)>\ufffd[31m\ufffd"


def cut(pattern="aabbbc", *, name=None, **more):
    """Phases by letter, with the first operation of each letter under another name."""
    steps = toy_steps(pattern, **more)
    if name:
        ops = steps.ops.with_columns(
            pl.format("{}{}", pl.lit(name), "op").cast(schema.NAME).alias("op"),
        )
        frame = steps.frame.with_columns(kind=pl.lit(name))
        steps = Steps(frame, ops, steps.devices, steps.windows, name=name)
    labels = pl.Series([ord(letter) - ord("a") for letter in pattern])
    return Phases(steps, labels, lambda steps: [], pl.Series([0.0] * len(pattern)))


def facts(phases, number, checkpoints=None):
    return dict(phase_view.describe(phases, number, checkpoints or {})["facts"]["rows"])


def test_rows_are_those_of_the_frame():
    phases = cut()
    shown = phase_view.phase_table(phases)
    assert shown["phases"] == phases.frame["phase"].to_list() == [1, 2, 0]
    assert shown["colours"] == [charts.colours(phases)[phase] for phase in (1, 2, 0)]
    assert dict(zip(shown["columns"], zip(*shown["rows"], strict=True), strict=True)) == {
        "Phase": tuple(phases.frame["name"]),
        "Share (%)": ("54.5", "27.3", "18.2"),
        "Step": ("2 ms", "3 ms", "1 ms"),
        "Steps": ("3", "1", "2"),
        "Traced": ("3", "1", "2"),
        "CV (%)": ("0.0", "0.0", "0.0"),
        "Idle (%)": ("50.0", "50.0", "50.0"),
        "Id": ("1", "2", "0"),
    }  # no capture measured the matrix unit


def test_twelve_rows_at_most():
    phases = cut("abcdefghijklmnop")
    shown, every = phase_view.phase_table(phases), phase_view.phase_table(phases, phase_view.PHASES)
    assert len(shown["phases"]) == ROWS == 12
    assert len(shown["rows"]) == ROWS + 1
    assert [shown["rows"][-1][at] for at in (0, 2, 3, 4)] == ["4 more", "–", "4", "4"]
    assert every["rows"][:12] == shown["rows"][:12]
    assert every["phases"] == [*range(15, -1, -1)]


def test_the_headline():
    assert cut().headline == "3 phases over 6 steps; top 3 cover 100.0 % of step time without waits"
    assert cut("a").headline.startswith("1 phase over 1 step;")


def test_the_facts_of_a_phase_are_its_row():
    assert facts(cut(), 1) == {
        "Steps": "3 (3 traced in full)",
        "Time": "6 ms without waits, 6 ms with them",
        "Share": "54.5 % of step time without waits",
        "Step": "2 ms (median)",
        "Variation": "0 % of mean step time",
        "Idle": "50 % of step time",
        "Representative": "step 2, 2 ms",
    }  # nothing that was not measured


def test_the_nearest_checkpoint_is_a_fact():
    checkpoints = {"one": 1, "five": 5}
    assert facts(cut(), 1, checkpoints)["Nearest checkpoint"] == "one (step 1)"
    assert facts(cut(), 2, checkpoints)["Nearest checkpoint"] == "five (step 5)"
    assert "Nearest checkpoint" not in facts(cut(), 2)


def test_operations_are_those_of_top():
    phases = cut()
    for shown, side in zip(phase_view.operations(phases, 1), ("device", "host"), strict=True):
        top = phases.top(5).filter(phase=1, side=side)
        assert [row[0] for row in shown["rows"]] == top["op"].cast(pl.String).to_list()
        assert [row[1] for row in shown["rows"]] == [f"{100 * share:.1f}" for share in top["share"]]
        assert [row[2] for row in shown["rows"]] == [short_time(self_ps) for self_ps in top["self_ps"]]
        assert [row[3] for row in shown["rows"]] == [str(count) for count in top["count"]]
        assert [length for _, length in shown["bars"]] == pytest.approx((top["share"] / top["share"][0]).to_list())
    assert [row[0] for row in phase_view.operations(phases, 1)[0]["rows"]] == ["b2", "b1", "b0"]


def test_operations_name_their_layer_and_source_line_in_panel_and_static_view():
    base = {"host": "toy", "side": "device", "op": "b0", "count": 1, "self_ps": 10**9, "layer": "dense<1>"}
    rows = [base | {"step": step, "source": "train.py:12"} for step in range(6)]
    layers = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS} for row in rows], schema=schema.LAYERS)
    phases = cut("aaabbb")
    phases = replace(phases, steps=replace(phases.steps, read_layers=lambda: layers))
    names = [row[0] for row in phase_view.explain(phases, 1)["ops"][0]["rows"]]
    assert names == ["b2", "b1", "b0\ndense<1> · train.py:12"]
    quick = phase_view.describe(phases, 1, {})["ops"][0]["rows"]  # raw events are slow
    assert [row[0] for row in quick] == ["b2", "b1", "b0"]
    static = exports.static_bundle(_selected(phases, 1))["text/html"]
    assert '<div class="tpunb-quiet">dense&lt;1&gt; · train.py:12</div>' in static
    assert "train.py" not in exports.static_bundle(_selected(phases, 1), live=True)["text/html"]


def lists(phases, number):
    return {each["caption"]: [text for (text,) in each["rows"]] for each in phase_view.explain(phases, number)["lists"]}


def _selected(phases, number):
    view = tp.explore(phases)
    view.phase = number
    return view.state


def test_distinguishing_operations_are_sentences():
    sentences = lists(cut("aaabbb"), 1)["Distinguishing operations"]
    assert not [sentence for sentence in sentences if "step time" in sentence]
    assert "b_host: in 100 % of steps (0 % in other phases)" in sentences
    assert len({*sentences}) == len(sentences)


def test_advice_names_its_phase_and_what_to_try():
    found = toy_steps("aaabbb")
    advice = lists(tp.phases(found), 1)["Bottleneck"]
    assert advice
    assert all(" Try: " in piece for piece in advice)
    assert not any(piece.startswith("train") for piece in advice)  # the facts have its name
    (every, _) = [text for (text,) in phase_view.advised(tp.advise(tp.phases(found)), tp.phases(found))["rows"]]
    assert every.startswith("train: The device is idle for 50 % of the phase's step time without a known cause. Try: ")
    assert every.endswith(". Saves up to 3 ms of 9 ms step time.")


def advice_of(phases, *rows):
    names = ("phase", "id", "rule", "saves_ps", "saves", "of", "observed", "action")
    frame = pl.DataFrame(rows, schema={name: schema.ADVICE[name] for name in names}, orient="row")
    frame = frame.with_columns(place=pl.lit(None, pl.String))
    return [text for (text,) in phase_view.advised(frame, phases)["rows"]]


def test_savings_are_seconds_of_the_run_time_from_one_percent_on():
    steps = replace(toy_steps("aaabbb"), wall=WallClock(10**13))
    phases = tp.phases(steps)
    shown = advice_of(
        phases,
        (
            None,
            "T403",
            "checkpoint saves",
            1_234 * 10**9,
            0.1,
            None,
            "Saving took 1.2 s of 10.0 s (12 % of run time): 2 ms each.",
            "go",
        ),
        (0, "T105", "input", 10**11, 0.5, "train", "It waits.", "go"),
        (0, "T501", "idle", 10**11 - 1, 0.5, "train", "It idles.", "go"),
        (1, "T307", "unseen", None, None, "train (slower)", "No step of it was traced in full.", "go"),
    )
    assert shown == [
        "Saving took 1.2 s of 10.0 s (12 % of run time): 2 ms each. Try: go. Saves up to 1.2 s of 10.0 s run time.",
        "train: It waits. Try: go. Saves up to 100 ms of 10.0 s run time.",
        "train (slower): No step of it was traced in full. Try: go.",
    ]


def test_code_of_an_action_is_below_it_to_paste():
    row = (None, "T101", "slow input", 10**9, 0.1, None, "Input took 1 ms of 9 ms.")
    phases = tp.phases(toy_steps("aaabbb"))
    action = "prefetch: `data = data.prefetch(2)`, `x<1`"
    (text,) = advice_of(phases, (*row, action))
    assert text.split("\n") == [
        "Input took 1 ms of 9 ms. Try: prefetch: data = data.prefetch(2), x<1. Saves up to 1 ms of 9 ms step time.",
        "data = data.prefetch(2)",
        "x<1",
    ]
    listed = phase_view.listed("What to do", [text])
    assert '<pre class="tpunb-paste"><code>data = data.prefetch(2)\nx&lt;1</code></pre>' in tables.html(listed)
    assert tables.text(listed)[-1] == "  x<1"


@pytest.mark.parametrize(
    "name",
    ["idle", "IDLE", "ProfilerStep#12", "train", "Optimizer.step#SGD.step", "torch/nn/modules/linear.py(12): forward"],
)
def test_what_is_no_operation_distinguishes_no_phase(name):
    steps = toy_steps("aaabbb")
    ops = steps.ops.with_columns(op=pl.col("op").cast(pl.String).replace("b_host", name).cast(schema.NAME))
    phases = tp.phases(replace(steps, ops=ops), lambda steps: [0, 0, 0, 1, 1, 1])
    sentences = lists(phases, 1)["Distinguishing operations"]
    assert sentences
    assert not [sentence for sentence in sentences if sentence.startswith(name)]


def test_operations_far_from_the_roof_are_sentences_where_the_device_is_known():
    base = {"host": "toy", "side": "device", "op": EVIL, "category": "fusion", "count": 1, "self_ps": 10**9}
    rows = [base | {"step": step, "hlo_op": EVIL, "flops": 459e9, "bytes": 1e6} for step in range(6)]
    layers = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS} for row in rows], schema=schema.LAYERS)
    phases = cut("aaabbb")
    known = replace(phases.steps, read_layers=lambda: layers, metadata={"device kind": "TPU v6 lite"})
    explained = lists(replace(phases, steps=known), 1)["Roofline"]
    assert explained == [
        "50 % of the peak of TPU v6e reached",
        f"{TEXT}: 50 % of attainable (compute), headroom 500 µs per step",
    ]
    unknown = replace(known, metadata={})
    assert "Roofline" not in lists(replace(phases, steps=unknown), 1)


def test_no_such_phase():
    with pytest.raises(KeyError, match="no phase 7"):
        phase_view.describe(cut(), 7, {})


def test_steps_known_by_the_clock_alone_are_a_phase_too():
    clock = toy_steps("aaabbb", traced="fffnnn")
    frame = clock.frame.with_columns(kind=pl.when(pl.col("traced") == "none").then(pl.lit("other")).otherwise("kind"))
    phases = tp.phases(Steps(frame, clock.ops, clock.devices, clock.windows))
    details = phase_view.describe(phases, 1, {"a": 4})
    assert dict(details["facts"]["rows"])["Steps"] == "3 (0 traced in full)"
    assert "Idle" not in dict(details["facts"]["rows"])
    assert details["ops"] == []
    json.dumps([details, phase_view.phase_table(phases)], allow_nan=False)


def test_noise_is_described_like_a_phase():
    phases = tp.phases(toy_steps("aaabbbz"), lambda steps: [0, 0, 0, 1, 1, 1, -1])
    details = phase_view.describe(phases, -1, {})
    assert details["name"] == "outliers"
    assert dict(details["facts"]["rows"])["Steps"].startswith("1 ")


def test_several_hosts_say_whose_step_represents():
    one, two = toy_steps("ab", host="h1"), toy_steps("ab", host="h2")
    steps = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    phases = tp.phases(steps, lambda steps: [0, 1])
    assert facts(phases, 0)["Representative"].startswith("step 0 of h")


def test_names_are_text_without_commands():
    phases = cut("aab", name=EVIL, host=EVIL)
    details = json.dumps(
        [phase_view.phase_table(phases), phase_view.describe(phases, 0, {EVIL: 1}), phases.headline],
        ensure_ascii=False,
    )
    assert "\x1b" not in details
    assert "\\u001b" not in details
    assert "\u202e" not in details
    device, _ = phase_view.operations(phases, 0)
    assert [row[0] for row in device["rows"]] == [f"{TEXT}a{i}" for i in (2, 1, 0)]
    assert facts(phases, 0, {EVIL: 1})["Nearest checkpoint"] == f"{TEXT} (step 1)"


def test_runs_are_the_timeline_as_a_table():
    phases = cut("aabba")
    shown = phase_view.runs(phases, (0.0, 1.0))
    assert shown["columns"] == ["Phase", "First step", "Last step", "From (s)", "To (s)"]
    assert shown["rows"] == [
        ["train (faster)", "0", "1", "0.0", "0.002"],
        ["train", "2", "3", "0.002", "0.006"],
        ["train (faster)", "4", "4", "0.006", "0.007"],
    ]
    assert [row[0] for row in phase_view.runs(phases, (0.0021, 0.003))["rows"]] == ["train"]
    assert phase_view.runs(phases, (5.0, 6.0))["rows"] == []


def test_a_long_table_keeps_its_longest_runs():
    rows = phase_view.runs(cut("ab" * 60 + "c"), (0.0, 1.0))["rows"]
    assert len(rows) == phase_view.RUNS == 100
    assert [row[0] for row in rows].count("train") == 60
    assert [float(row[3]) for row in rows] == sorted(float(row[3]) for row in rows)


def test_times_in_the_unit_that_suits():
    assert [short_time(1000**i) for i in range(5)] == ["0.001 ns", "1 ns", "1 µs", "1 ms", "1 s"]
    assert short_time(0) == "0 ns"


def test_phases_and_the_operations_of_the_longest():
    found = phase_view.tables(cut("aabb"))
    assert [each["caption"] for each in found] == [
        "Phases by share of step time without waits",
        "Top operations of train, device, 2 steps traced in full",
        "Top operations of train, host, 2 steps traced in full",
    ]
    assert found[0]["rows"][0] == ["train", "66.7", "2 ms", "2", "2", "0.0", "50.0", "1"]
    assert found[1]["rows"] == [
        ["b2", "50.0", "1 ms", "6"],
        ["b1", "33.3", "667 µs", "4"],
        ["b0", "16.7", "333 µs", "2"],
    ]


def test_no_operation_no_table():
    phases = cut("ab")
    bare = Steps(phases.steps.frame, phases.steps.ops.clear())
    found = phase_view.tables(Phases(bare, phases.labels, phases.method, phases.distances))
    assert [each["caption"] for each in found] == ["Phases by share of step time without waits"]
