"""Charts of many runs: the sweeps that they chose from, and the coverage of their longest phases."""

import polars as pl
import pytest
from chart_checks import EVIL, SWEEPS, phases_of, texts_of
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.charts import render
from tpunb.errors import TpunbError
from tpunb.studies.paper import charts
from tpunb.studies.paper.charts.runs import longest, swept
from tpunb.testing import toy_steps

TWELVE = [f"run {i}" for i in range(12)]


def by(parameter, *names, sweep=None):
    """Runs that all swept one parameter, by name."""
    return {name: phases_of(sweeps={parameter: SWEEPS[parameter] if sweep is None else sweep}) for name in names}


def counts(*phases, at=0.7):
    """A sweep of OLS over as many thresholds from 0 to 1 as counts are given."""
    thresholds = [i / (len(phases) - 1) for i in range(len(phases))]
    return pl.DataFrame({"threshold": thresholds, "phases": phases, "chosen": [x == at for x in thresholds]})


def layers(chart):
    spec = chart.to_dict()
    return [{**layer, "rows": spec["datasets"][layer["data"]["name"]]} for layer in spec["layer"]]


# -- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "points", "chosen", "label"),
    [
        ("k", [(1, 100), (2, 22.222222), (3, 11.111111)], 2, "bert · 2: 22.2 %"),
        ("min_samples", [(5, 0), (30, 25)], 30, "bert · 30: 25.0 %"),
        ("threshold", [(0.5, 1), (0.7, 2), (0.9, 6)], 0.7, "bert · 0.7: 2"),
    ],
)
def test_a_run_is_a_line_with_its_choice_as_a_mark(parameter, points, chosen, label):
    chart = charts.sweeps(by(parameter, "bert", "dcgan"))
    lines, kinds = layers(chart)
    assert [(row["at"], row["value"]) for row in lines["rows"] if row["run"] == label] == points
    assert [row["at"] for row in kinds["rows"]] == [chosen, chosen]
    assert lines["encoding"]["stroke"]["scale"]["domain"] == [label, label.replace("bert", "dcgan")]
    assert label in chart.description
    assert label in texts_of(chart)
    assert render.png(chart)


def test_twelve_runs_differ_in_more_than_colour():
    lines, kinds = layers(charts.sweeps(by("k", *TWELVE)))
    dashes, colours = (lines["encoding"][channel]["scale"]["range"] for channel in ("strokeDash", "stroke"))
    assert len({(colour, *dash) for colour, dash in zip(colours, dashes, strict=True)}) == 12
    shapes, fills = (kinds["encoding"][channel]["scale"]["range"] for channel in ("shape", "fill"))
    # without colours: the strength of the filling and the shape
    strengths = [fill.split(",")[-1] for fill in fills]
    assert len({*zip(shapes, strengths, strict=True)}) == 12
    assert all(channel["legend"] for channel in (lines["encoding"]["stroke"], kinds["encoding"]["shape"]))


def test_more_runs_than_looks_still_draw():
    assert render.svg(charts.sweeps(by("min_samples", *(f"run {i}" for i in range(75)))))


def test_the_run_under_the_pointer_stands_out():
    chart = charts.sweeps(by("k", "bert", "dcgan"))
    (pointed,) = chart.to_dict()["params"]
    assert pointed["select"]["fields"] == ["run"]
    assert (pointed["select"]["on"], pointed["bind"]) == ("pointerover", {"legend": "pointerover"})
    assert all(layer["encoding"]["opacity"]["condition"][0]["param"] == "pointed" for layer in layers(chart))


@pytest.mark.parametrize(("most", "scale"), [(50, None), (51, "log")])
def test_counts_that_span_much_are_on_a_logarithmic_axis(most, scale):
    lines, _ = layers(charts.sweeps(by("threshold", "bert", sweep=counts(1, 7, most))))
    assert lines["encoding"]["y"].get("scale", {}).get("type") == scale
    assert {row["value"] for row in lines["rows"]} == {1, 7, most}


@given(st.lists(st.integers(1, 5), min_size=2, max_size=40))
def test_changes_are_enough_for_the_curve_of_ols(found):
    sweep = counts(*found)
    kept = swept(by("threshold", "bert", sweep=sweep))
    whole = sweep.select(at=pl.col("threshold").round(6)).join_asof(kept.select("at", "value"), on="at")
    assert whole["value"].to_list() == found
    assert kept["at"].to_list()[:: max(kept.height - 1, 1)] == [0, 1]


def test_a_missing_choice_is_shown_and_equal_steps_have_no_distance():
    none = SWEEPS["k"].with_columns(chosen=pl.lit(False))
    assert "bert · none chosen" in charts.sweeps(by("k", "bert", sweep=none)).description
    alike = tp.phases(toy_steps("aaa"), tp.KMeans())
    assert swept({"alike": alike}).rows() == [("alike", 1, 0, True)]
    assert render.svg(charts.sweeps({"alike": alike}))


def test_squared_distances_need_those_of_one_cluster():
    given_k = SWEEPS["k"].filter(pl.col("k") == 2)
    with pytest.raises(TpunbError, match="bert has no squared distances at k = 1") as caught:
        charts.sweeps(by("k", "bert", sweep=given_k))
    assert caught.value.hint


def test_all_runs_are_by_one_method_that_has_such_a_curve():
    steps = toy_steps("aaabbb")
    two = {"bert": tp.phases(steps, tp.KMeans()), "dcgan": tp.phases(steps, tp.OLS())}
    with pytest.raises(ValueError, match=r"one method of KMeans, DBSCAN, OLS\. Got KMeans\(\) for bert; OLS\(\) for d"):
        charts.sweeps(two)
    with pytest.raises(ValueError, match=r"Got HDBSCAN\(\) for bert instead"):
        charts.sweeps({"bert": tp.phases(steps, tp.HDBSCAN())})


@pytest.mark.parametrize("chart", [charts.sweeps, charts.coverages])
def test_runs_are_phases_by_name(chart):
    for runs in ([phases_of()], {"bert": 3}, {3: phases_of()}, phases_of()):
        with pytest.raises(TypeError, match=f"The runs parameter of {chart.__name__} must be a mapping of names"):
            chart(runs)
    with pytest.raises(TpunbError, match="no run to draw") as caught:
        chart({})
    assert caught.value.hint


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("chart", [charts.sweeps, charts.coverages])
def test_names_of_runs_stay_text(chart, evil):
    made = chart(by("k", evil, "x" * 400 + "end", "x" * 401 + "end"))
    said = texts_of(made)
    assert evil[:9] in said
    assert evil[:9] in made.description
    assert made.description.isprintable()
    assert "xend" in said  # Vega has not cut it
    assert "xend (2)" in said  # nor are the two one
    assert len(made.description) < 400


@pytest.mark.parametrize("method", [tp.KMeans(), tp.DBSCAN(), tp.OLS(), tp.KMeans.paper(), tp.DBSCAN.paper()])
def test_sweeps_of_all_methods_can_be_drawn(method):
    runs = {pattern: tp.phases(toy_steps(pattern), method) for pattern in ("aaabbbab", "abcdefghij")}
    assert render.svg(charts.sweeps(runs))
    assert render.svg(charts.coverages(runs))


# -- coverages --------------------------------------------------------------------------------------------------------


def parts(runs, n=3):
    return [(run, part, round(a, 6), round(b, 6)) for run, _, part, a, b in longest(runs, n).iter_rows()]


def test_a_run_is_a_bar_of_its_longest_phases_and_the_rest():
    assert parts({"bert": phases_of("abcd"), "dcgan": phases_of("ab")}) == [
        ("bert", "longest", 0, 40),
        ("bert", "second", 40, 70),
        ("bert", "third", 70, 90),
        ("bert", "other phases", 90, 100),
        ("dcgan", "longest", 0, pytest.approx(200 / 3)),
        ("dcgan", "second", pytest.approx(200 / 3), 100),
    ]
    assert [part for _, part, *_ in parts({"bert": phases_of("abcdef")}, n=5)] == [
        *("longest", "second", "third", "no. 4", "no. 5", "other phases")
    ]


def test_outliers_come_last():
    assert parts({"bert": phases_of("abcd", [0, 1, -1, 3])}) == [
        ("bert", "longest", 0, 40),  # 4 of 10 ms
        ("bert", "second", 40, 60),
        ("bert", "third", 60, 70),
        ("bert", "outliers", 70, 100),
    ]
    last = {"bert": phases_of("abcd", [-1, 1, 2, 3])}
    assert parts(last)[-1] == ("bert", "outliers", 90, 100)
    looks = layers(charts.coverages(last))[0]["encoding"]
    assert looks["strokeDash"]["scale"]["domain"] == ["longest", "second", "third", "outliers"]
    assert looks["strokeDash"]["scale"]["range"] == [[1, 0], [1, 0], [1, 0], [3, 2]]
    assert len({*looks["fill"]["scale"]["range"]}) == 4


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-1, 5)), min_size=1, max_size=15),
    st.integers(1, 7),
)
def test_parts_are_all_the_time_and_the_first_are_the_coverage(steps, n):
    run = phases_of("".join(letter for letter, _ in steps), [label for _, label in steps])
    found = longest({"run": run}, n)
    assert found["before"][0] == pytest.approx(0)
    assert found["until"][-1] == pytest.approx(100)
    assert found["before"][1:].to_list() == pytest.approx(found["until"][:-1].to_list())
    of = {part: until - before for _, _, part, before, until in found.iter_rows()}
    assert of.get("outliers", 0) == pytest.approx(100 * run.noise)
    first = found.filter(pl.col("rank") < n)
    assert (first["until"] - first["before"]).sum() == pytest.approx(100 * run.coverage(n))


def test_coverage_is_beside_the_bars_and_compared_with_the_paper():
    chart = charts.coverages({"bert": phases_of("abcd"), "dcgan": phases_of("ab")})
    *_, rule, name, head, ends = layers(chart)
    assert [(row["run"], row["text"]) for row in ends["rows"]] == [("bert", "90.0 %"), ("dcgan", "100.0 %")]
    assert ends["encoding"]["x"] == {"value": "width"}
    assert (rule["mark"]["type"], rule["rows"][0]["before"]) == ("rule", 95)
    assert name["rows"][0]["about"] == "95 %: the paper, section VI.A"
    assert head["rows"][0]["about"] == "3 longest"
    assert chart.to_dict()["title"]["subtitle"] == ["95 % or more in 1 of 2 runs"]
    assert "bert 90.0 %; dcgan 100.0 %" in chart.description
    said = texts_of(chart)
    assert all(text in said for text in ("90.0 %", "100.0 %", "40.0 %", "longest", "other phases"))
    two = layers(charts.coverages({"bert": phases_of("abcd")}, 2))
    assert [layer["rows"][0].get("about") for layer in two[-3:-1]] == [
        "95 %: the paper, for 3 phases, section VI.A",
        "2 longest",
    ]


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_n_is_a_count(n):
    with pytest.raises(ValueError, match="The n parameter of coverages must be an int of 1 or more"):
        charts.coverages({"bert": phases_of()}, n)


def test_a_run_without_time_is_named_and_such_runs_alone_raise():
    none = phases_of("")
    chart = charts.coverages({"bert": phases_of("ab"), "empty": none})
    assert [(row["run"], row["text"]) for row in layers(chart)[-1]["rows"]] == [
        ("bert", "100.0 %"),
        ("empty", "no time"),
    ]
    assert "no time" in texts_of(chart)
    with pytest.raises(TpunbError, match="no run has a step") as caught:
        charts.coverages({"empty": none})
    assert caught.value.hint


def test_outliers_alone_are_a_bar():
    chart = charts.coverages({"bert": phases_of("aaa", [-1, -1, -1])})
    assert [row["part"] for row in layers(chart)[0]["rows"]] == ["outliers"]
    assert render.svg(chart)
