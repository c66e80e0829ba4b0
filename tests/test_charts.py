"""Charts of phases: marks, names and numbers of what is drawn."""

from dataclasses import replace
from itertools import cycle

import altair as alt
import polars as pl
import pytest
from chart_checks import ALL, CURVES, EVIL, phases_of, rows_of, texts_of

from tpunb import charts, schema
from tpunb.charts import render
from tpunb.errors import TpunbError
from tpunb.frames import Phases, Steps
from tpunb.testing import toy_steps

WINDOWS = {name: dtype for name, dtype in schema.WINDOWS.items() if name != "reason"}


def renamed(phases, **names):
    ops = phases.steps.ops.with_columns(pl.col("op").cast(pl.String).replace(names).cast(schema.NAME))
    return replace(phases, steps=replace(phases.steps, ops=ops))


def marks_of(chart):
    return [row for row in rows_of(chart) if "shade" in row]


@pytest.mark.parametrize("chart", ALL, ids=lambda c: c.__name__)
def test_a_chart_is_an_altair_value_that_says_what_it_is(chart, tmp_path):
    made = chart(phases_of())
    assert isinstance(made, alt.TopLevelMixin)
    spec = made.to_dict()
    assert spec["description"]
    again = made.properties(title="mine")
    assert type(again) is type(made)
    assert "mine" in render.svg(again)
    made.save(tmp_path / "chart.svg")
    assert "currentColor" not in (tmp_path / "chart.svg").read_text()


def test_the_timeline_merges_consecutive_steps_of_a_phase_in_seconds():
    marks = marks_of(charts.timeline(phases_of("aabbba")))
    assert sorted((row["start"], row["end"], row["phase"], row["step"], row["last"]) for row in marks) == [
        (0, 0.002, 0, 0, 1),
        (0.002, 0.008, 1, 2, 4),
        (0.008, 0.009, 0, 5, 5),
    ]


def test_the_timeline_names_phases_and_their_shares_in_its_legend():
    said = texts_of(charts.timeline(phases_of("aabbba", [0, 0, 1, 1, 1, -1])))
    assert all(f"{name} %" in said for name in ("train · 66.7", "train (faster) · 22.2", "outliers · 11.1"))
    assert "train, steps 2 to 4, traced in full: 0.002 s to 0.008 s" in said


def test_the_timeline_distinguishes_how_well_steps_were_traced():
    chart = charts.timeline(phases_of("aaaa", traced="fpnf"))
    assert [row["traced"] for row in sorted(marks_of(chart), key=lambda row: row["start"])] == [0, 1, 2, 0]
    assert all(name in texts_of(chart) for name in ("traced in full", "traced in part", "inferred"))


def test_steps_apart_by_less_than_can_be_seen_are_one_mark():
    steps = toy_steps("aaa")
    gaps = steps.frame.with_columns(dur_ps=pl.Series([10**9 - 10**5, 10**9 // 2, 10**9]))
    marks = marks_of(charts.timeline(phases_of("aaa", frame=gaps)))
    assert [(row["step"], row["last"]) for row in marks] == [(0, 1), (2, 2)]


def test_the_timeline_shows_windows_and_counts_failed_ones():
    windows = pl.DataFrame(
        [("toy", 0, 0, 10**9, 1, 1, 1, 1, None), ("toy", 1, 2 * 10**9, 0, 1, 0, 0, 0, "deadline")],
        schema=WINDOWS,
        orient="row",
    )
    chart = charts.timeline(phases_of("aab", windows=windows))
    (layer,) = (layer for layer in chart.to_dict()["layer"] if layer["mark"].get("tooltip") == "profiler window")
    assert [(r["start"], r["end"]) for r in chart.to_dict()["datasets"][layer["data"]["name"]]] == [(0, 0.001)]
    assert "1 of 2 windows failed" in chart.description


@pytest.mark.parametrize("hosts", [1, 12])
def test_a_long_run_keeps_the_timeline_small(hosts):
    n = 112_590 // hosts
    step = pl.DataFrame({"step": range(n)})
    frame = pl.concat(
        step.select(
            pl.lit(f"host {host}").alias("host"),
            "step",
            kind=pl.lit("train"),
            start_ps=pl.col("step") * 10**9,
            dur_ps=pl.lit(10**9),
            device_ps=pl.lit(None, pl.Int64),
            idle_ps=pl.lit(None, pl.Int64),
            traced=pl.when(pl.col("step") % 5 == 0).then(pl.lit("full")).otherwise(pl.lit("none")),
        )
        for host in range(hosts)
    )
    watched = pl.DataFrame({"window": range(9_000)}).select(
        pl.lit("host 0").alias("host"),
        "window",
        start_ps=pl.col("window") * 10**10,
        dur_ps=pl.lit(10**9),
        **{name: pl.lit(1) for name in ("latency_ps", "bytes", "events", "steps")},
        error=pl.lit(None),
    )
    steps = Steps(frame, pl.DataFrame(schema=schema.OPS), windows=watched)
    labels = pl.Series([*range(15), -1] * (len(steps) // 16 + 1)).head(len(steps))
    chart = charts.timeline(Phases(steps, labels, lambda s: [], pl.Series([None] * len(steps))))
    assert 100 < len(rows_of(chart)) < 5_000
    assert "3 other phases" in texts_of(chart)
    assert all(0 <= row["y"] <= row["y2"] + 1e-9 for row in marks_of(chart))
    assert len(render.svg(chart)) < 2_000_000


def test_slices_of_the_timeline_are_filled_by_time():
    n = 6_000
    labels = [0, 1, 1, 1] * (n // 4)
    area = {0: 0, 1: 0}
    for row in marks_of(charts.timeline(phases_of("a" * n, labels))):
        area[row["phase"]] += (row["end"] - row["start"]) * (row["y2"] - row["y"])
    assert area[1] / area[0] == pytest.approx(3, rel=0.02)


def test_coverage_stacks_the_shares_and_calls_out_the_top_three():
    chart = charts.coverage(phases_of("abcd"))
    assert [(r["name"], r["before"], r["until"]) for r in rows_of(chart) if "name" in r] == [
        ("train", 0, 40),
        ("train 4", 40, 70),
        ("train 3", 70, 90),
        ("train 2", 90, 100),
    ]
    assert rows_of(chart)[0]["about"] == "1 step, 40.0 % of step time without waits; 40.0 % with the longer ones"
    assert {"40.0 %", "30.0 %", "20.0 %", "10.0 %"} == {row["text"] for row in rows_of(chart) if "text" in row}
    texts = next(layer for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "text")
    assert texts["encoding"]["x"] == {"value": "width"}  # beside the plot, where no line is
    assert "top 3 cover 90.0 %" in chart.to_dict()["title"]["subtitle"][0]


def test_top_operations_are_of_the_longest_phase_unless_given():
    found = [(r["side"], r["op"], round(r["percent"], 1)) for r in rows_of(charts.top_ops(phases_of("aab"), n=2))]
    assert sorted(found) == [("device", "a1", 33.3), ("device", "a2", 50.0), ("host", "a_host", 100.0)]
    assert {r["op"] for r in rows_of(charts.top_ops(phases_of("aab"), 1, n=1))} == {"b2", "b_host"}
    with pytest.raises(KeyError):
        charts.top_ops(phases_of("aab"), 7)
    with pytest.raises(TpunbError, match=r"train \(slower\) has no operations") as caught:
        charts.top_ops(phases_of("aab", traced="ffp"), 1)
    assert caught.value.hint


def test_colours_are_of_the_longest_and_outliers_are_grey():
    found = charts.colours(phases_of("abcdefghijklmnop", [*range(15), -1]))
    assert len({found[phase] for phase in range(3, 15)}) == 12
    assert len({found[phase] for phase in range(-1, 15)}) == 14


def test_names_cannot_become_markup():
    phases = renamed(phases_of("aab", name=EVIL[0]), a0=EVIL[0], a1=EVIL[1], a_host=EVIL[2])
    assert EVIL[0] in texts_of(charts.timeline(phases))
    assert EVIL[2] in texts_of(charts.top_ops(phases))
    for chart, name in zip(CURVES, cycle(EVIL), strict=False):
        assert name[:9] in texts_of(chart(replace(phases, steps=replace(phases.steps, name=name))))
    for name in EVIL:
        assert name[:9] in texts_of(CURVES[0](replace(phases, steps=replace(phases.steps, name=name))))


def test_no_steps_and_one_step():
    none = Steps(pl.DataFrame(schema=schema.STEPS), pl.DataFrame(schema=schema.OPS))
    with pytest.raises(TpunbError, match="no steps"):
        charts.timeline(Phases(none, pl.Series([], dtype=pl.Int64), lambda s: [], pl.Series([], dtype=pl.Float64)))
    one = phases_of("a")
    assert render.svg(charts.timeline(one))
    assert render.svg(charts.coverage(phases_of("aaa", [-1, -1, -1])))
