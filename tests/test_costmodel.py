"""The cost model: metrics, splits without leaks, the shipped collection, and functions of JAX that are ranked."""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import shipped_runs
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tpunb as tp
from tpunb.errors import BadProfile, TpunbError
from tpunb.studies.ranking import (
    CostModel,
    Measured,
    collect,
    collecting,
    kendall,
    ordered_pairs,
    read_collection,
    recorded,
    top_error,
    write_collection,
)
from tpunb.studies.ranking.collecting import Configuration, Function, Trials
from tpunb.studies.ranking.columns import CONFIGURATIONS, EVALUATION, JUDGED, RANKED
from tpunb.studies.ranking.evaluation import METHODS, splits
from tpunb.studies.ranking.metrics import random_error

TIMES = st.lists(st.integers(1, 10**9), min_size=2, max_size=30)


# -- metrics ----------------------------------------------------------------------------------------------------------


@examples(150)
@given(times=TIMES, draw=st.randoms(use_true_random=False))
def test_tau_is_scipys_and_follows_from_the_pairs(times, draw):
    predicted = draw.sample(range(100), len(times))
    tau = kendall(predicted, times)
    expected = stats.kendalltau(predicted, times)[0]
    assert (tau is None) == math.isnan(expected)
    if tau is not None:
        assert tau == pytest.approx(expected)
    if len({*times}) == len(times):  # no ties
        assert ordered_pairs(predicted, times) == pytest.approx((1 + tau) / 2)
    assert kendall(times, times) in (None, pytest.approx(1))


def test_published_pairs_give_the_published_tau():
    pairs, tau = 0.76969, 0.53938  # of the dataset's own tables
    assert tau == pytest.approx(2 * pairs - 1)


@examples(60)
@given(times=st.lists(st.integers(1, 99), min_size=1, max_size=7), k=st.integers(1, 8))
def test_the_error_at_random_is_the_mean_over_all_choices(times, k):
    chosen = [*combinations(times, min(k, len(times)))]
    expected = np.mean([min(each) / min(times) - 1 for each in chosen])
    assert random_error(times, k) == pytest.approx(expected, abs=1e-12)


def test_a_perfect_order_has_no_error():
    times = [30, 10, 20]
    assert [top_error(times, times, k) for k in (1, 3, 5)] == [0, 0, 0]
    assert top_error([1, 3, 2], times, 1) == 2
    assert kendall([0, 0, 0], times) is None
    assert ordered_pairs([1, 2], [5, 5]) is None


# -- measured configurations ------------------------------------------------------------------------------------------


def made_up(name="graph 1", family="graph", times=(10, 20, 30, 40), noise=0.0, **columns):
    """Return a graph whose inputs are its times, with four rounds."""
    draw = np.random.default_rng(len(name))
    rounds = [[round(time * 1e6 * (1 + noise * draw.normal())) for _ in range(4)] for time in times]
    frame = pl.DataFrame(
        {
            "configuration": range(len(times)),
            "default": [number == 0 for number in range(len(times))],
            "time_ps": [int(np.median(each)) for each in rounds],
            "rounds_ps": rounds,
            **columns,
        },
        schema_overrides={"time_ps": pl.Int64},
    )
    missing = [pl.lit(None).alias(each) for each in CONFIGURATIONS if each not in frame.columns]
    inputs = {"graph": np.array(times, float)[:, None] - np.median(times)}
    return Measured(name, family, frame.with_columns(missing), inputs)


@pytest.mark.parametrize(
    ("times", "noise", "reason"),
    [
        ((10,), 0, "one configuration: nothing to rank"),
        ((10, 10, 10), 0, "all times are equal: nothing to rank"),
        ((1000, 1001, 1002), 0.05, "spread below repeatability"),
    ],
)
def test_what_cannot_be_ranked_is_named_and_not_fitted(times, noise, reason):
    data = made_up(times=times, noise=noise)
    with pytest.raises(TpunbError, match=f"nothing to fit: graph 1: {reason}"):
        CostModel("graph").fit(data)
    CostModel("graph").fit([data, made_up("other")])  # the rest is


@pytest.mark.parametrize("time", [0, -1])
def test_times_of_nothing_are_refused(time):
    with pytest.raises(BadProfile, match="times are above 0"):
        made_up(times=(10, time))


def test_inputs_must_fit_the_configurations():
    good = made_up()
    with pytest.raises(BadProfile, match="3 rows of 4 configurations"):
        Measured("a", "b", good.frame, {"graph": np.zeros((3, 1))})
    with pytest.raises(BadProfile, match="not finite of 4 configurations"):
        Measured("a", "b", good.frame, {"graph": np.full((4, 1), np.nan)})


def test_the_halves_of_the_rounds_give_the_ceiling_and_the_repeatability():
    rounds = [[100, 104, 102, 104], [200, 204, 202, 204], [150, 156, 154, 156]]
    data = made_up(times=(1, 2, 3), rounds_ps=rounds, time_ps=[103, 203, 155])
    even, odd = data.halves
    assert even.tolist() == [101, 201, 152]
    assert odd.tolist() == [104, 204, 156]
    assert data.repeatability == pytest.approx(np.median([3 / 103, 3 / 203, 4 / 155]))
    assert made_up(rounds_ps=[None] * 4).repeatability == 0.02  # assumed


# -- fit and evaluate -------------------------------------------------------------------------------------------------


def several(count=6, families=3):
    draw = np.random.default_rng(0)
    return [
        made_up(f"graph {k}", f"family {k % families}", tuple(draw.integers(10, 99, 12).tolist())) for k in range(count)
    ]


@examples(40)
@given(
    graphs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=2, max_size=12, unique=True),
    by=st.sampled_from(["graph", "kernel", "family"]),
)
def test_no_split_has_a_graph_on_both_sides(graphs, by):
    data = [made_up(f"graph {family} {number}", f"family {family}") for family, number in graphs]
    if by == "family" and len({each.family for each in data}) < 2:
        with pytest.raises(TpunbError, match="one family only"):
            [*splits(data, by)]
        return
    judged = []
    for train, test in splits(data, by):
        judged.append(test.name)
        assert test.name not in [each.name for each in train]
        if by == "family":
            assert test.family not in [each.family for each in train]
        else:
            assert len(train) == len(data) - 1
    assert sorted(judged) == sorted(each.name for each in data)


def test_half_of_the_configurations_is_judged_by_the_other():
    data = made_up(times=tuple(range(10, 22)))
    for (train,), test in splits([data], "configuration"):
        held = {*train.frame["configuration"]}
        assert held | {*test.frame["configuration"]} == {*range(12)}
        assert not held & {*test.frame["configuration"]}
        assert len(train.inputs["graph"]) == len(held)


def test_an_order_that_is_in_the_inputs_is_learnt_and_named():
    found = CostModel("graph").evaluate(several(), by="family")
    rows = {row["method"]: row for row in found.frame.rows(named=True)}
    assert [*rows] == [name for name in METHODS if name in rows]
    assert (rows["model"]["top1"], rows["model"]["graphs"]) == (0, 6)
    assert rows["model"]["tau"] == pytest.approx(1)
    assert rows["repeat ceiling"]["tau"] == pytest.approx(1)
    assert rows["random"]["tau"] == 0
    assert rows["default"]["tau"] is None
    assert rows["default"]["top1"] == rows["default"]["top10"] > 0
    assert "leave one family of graphs out, 6 graphs, from the graph" in str(found)
    assert found.frame.schema == EVALUATION
    assert found.graphs.schema == JUDGED


def test_a_rule_that_is_better_is_shown():
    draw = np.random.default_rng(1)
    data = [
        made_up(f"graph {k}", f"family {k % 3}", times, bytes=[float(time) for time in times])
        for k in range(6)
        for times in [tuple(draw.integers(10, 99, 12).tolist())]
    ]
    data = [Measured(each.name, each.family, each.frame, {"graph": draw.normal(size=(12, 2))}) for each in data]
    found = CostModel("graph").evaluate(data, by="graph")
    rows = {row["method"]: row for row in found.frame.rows(named=True)}
    assert rows["bytes moved"]["tau"] == pytest.approx(1)
    assert rows["model"]["tau"] < 0.5
    assert rows["model"]["tau_low"] < rows["model"]["tau"] < rows["model"]["tau_high"]
    assert "by bytes moved 0" in str(found)


def test_another_estimator_of_scikit_learn_is_fitted():
    from sklearn.ensemble import ExtraTreesRegressor

    model = CostModel("graph", ExtraTreesRegressor(20, random_state=0))
    fitted = model.fit(several())
    assert model.fitted is None  # a model is never changed
    assert isinstance(fitted.fitted, ExtraTreesRegressor)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="features of CostModel must be 'program' or 'graph'"):
        CostModel("compiled")
    with pytest.raises(
        ValueError, match="by parameter of evaluate must be one of graph, kernel, family, configuration"
    ):
        CostModel("graph").evaluate(several(), by="all")
    with pytest.raises(TpunbError, match="the model is not fitted"):
        CostModel("graph").predict(made_up())
    with pytest.raises(TpunbError, match="graph 1 has no program features") as caught:
        CostModel().fit(made_up())
    assert caught.value.hint == "use CostModel('graph')"
    with pytest.raises(TypeError, match="must be what collect and read_tpugraphs return"):
        CostModel().fit([3])


# -- the collection ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped():
    return recorded()


def test_the_collection_is_what_it_states(shipped):
    folder = Path(tp.studies.ranking.__file__).parent
    assert len(shipped) >= 20
    assert len({each.family for each in shipped}) >= 6
    assert min(map(len, shipped)) >= 16
    assert (folder / "layouts.parquet").stat().st_size <= 300_000
    facts = (folder / "about.toml").read_text()
    assert 'licence = "Apache-2.0"' in facts
    for each in shipped:
        assert each.frame["default"].to_list() == [True, *[False] * (len(each) - 1)]
        assert {*each.frame["equal"]} <= {"bitwise", "close"}
        assert each.frame["auto"].sum() == 1  # that of a CPU is the default
        assert each.halves is not None
        assert not any(b"/home" in program or b".py" in program for program in each.programs)


@pytest.mark.parametrize(("features", "of_ceiling", "off"), [("program", 0.85, 0.01), ("graph", 0.7, 0.02)])
def test_a_family_that_was_left_out_is_ranked(features, of_ceiling, off):
    rows = {row["method"]: row for row in shipped_runs.ranked(features).rows(named=True)}
    assert rows["model"]["tau"] >= of_ceiling * rows["repeat ceiling"]["tau"]
    assert rows["model"]["top3"] <= off
    assert rows["model"]["top3"] < rows["default"]["top3"] < rows["random"]["top5"]


def test_a_collection_is_written_and_read(shipped, tmp_path):
    path = tmp_path / "two.parquet"
    write_collection(path, shipped[:2])
    for before, after in zip(shipped[:2], read_collection(path), strict=True):
        assert after.frame.equals(before.frame)
        assert (after.name, after.family) == (before.name, before.family)
        np.testing.assert_array_equal(after.inputs["program"], before.inputs["program"])
    path.write_bytes(path.read_bytes()[:999])
    with pytest.raises(BadProfile, match="damaged, or no Parquet file"):
        read_collection(path)
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(BadProfile, match="collection frame lacks"):
        read_collection(path)


# -- functions of JAX -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jnp():
    return pytest.importorskip("jax.numpy")


def scaled(a, b):
    return a * 2 + b.T


def arrays(jnp, *shapes):
    return [jnp.arange(math.prod(shape), dtype="float32").reshape(shape) for shape in shapes]


def test_all_orders_of_a_function_are_timed(jnp, monkeypatch):
    monkeypatch.setattr(collecting, "_MOST_ROUNDS", 6)
    data = collect(scaled, arrays(jnp, (8, 16), (16, 8)), layouts=24, budget=600)
    assert (data.name, data.family, len(data)) == ("scaled", "scaled", 4)
    orders = [tuple(map(tuple, each)) for each in data.frame["layouts"]]
    assert {*orders} == {((a, 1 - a), (b, 1 - b)) for a in (0, 1) for b in (0, 1)}
    assert orders[0] == ((0, 1), (0, 1))
    assert data.frame["equal"].to_list() == ["bitwise"] * 4
    assert data.frame["default"].to_list() == [True, False, False, False]
    assert [*map(len, data.frame["rounds_ps"])] == [6] * 4
    assert (data.frame["low_ps"] <= data.frame["time_ps"]).all()
    assert data.frame["bytes"].null_count() == 0
    assert data.inputs["program"].shape == data.inputs["graph"].shape == (4, 15)  # their sum, and 14 costs
    assert data.graph.nodes["opcode"].cast(pl.String).is_in(["parameter"]).sum() >= 2


def test_the_same_seed_draws_the_same_orders(jnp):
    def cube(a, b):
        return a + b

    function = Function(cube, arrays(jnp, (4, 5, 6, 7), (4, 5, 6, 7)))
    first, again, other = (function.configurations(24, None, seed) for seed in (0, 0, 1))
    assert len(first) == 24 == len({each.orders for each in first})
    assert first == again != other
    assert first[0] == other[0] == Configuration(((0, 1, 2, 3), (0, 1, 2, 3)))


def test_compile_options_are_configurations_unless_they_may_change_results(jnp):
    options = [{"xla_cpu_enable_concurrency_optimized_scheduler": True}]
    data = collect(scaled, arrays(jnp, (8, 16), (16, 8)), layouts=1, options=options, budget=0.2)
    assert data.frame["options"].to_list() == [None, json.dumps(options[0])]
    with pytest.raises(TpunbError, match="option 'xla_cpu_enable_fast_math' may change results"):
        collect(scaled, arrays(jnp, (8, 16), (16, 8)), options=[{"xla_cpu_enable_fast_math": True}])


def test_arguments_are_trees(jnp):
    def dense(parameters, x):
        return {"y": x @ parameters["w"] + parameters["b"]}

    w, b, x = arrays(jnp, (8, 4), (4,), (3, 8))
    data = collect(dense, ({"w": w, "b": b}, x), layouts=4, budget=0.2)
    assert [[len(order) for order in each] for each in data.frame["layouts"]] == [[1, 2, 2]] * 4


def test_a_configuration_whose_output_differs_is_left_out(jnp, monkeypatch):
    function = Function(scaled, arrays(jnp, (8, 16), (16, 8)))
    kept = function.compile
    wrong = function.configurations(4, None, 0)[2]

    def compile_(configuration):
        compiled = kept(configuration)
        return Broken(compiled) if configuration == wrong else compiled

    class Broken:
        def __init__(self, compiled):
            self.compiled = compiled

        def __getattr__(self, name):
            return getattr(self.compiled, name)

        def __call__(self, *args):
            return self.compiled(*args) * 1.01

    monkeypatch.setattr(function, "compile", compile_)
    with pytest.warns(UserWarning, match="scaled: 1 configuration left out, whose outputs differ"):
        trials = Trials(function, function.configurations(4, None, 0))
    assert wrong not in trials.configurations
    assert len(trials.configurations) == 3


def printing(a):
    import jax

    jax.debug.print("{}", a[0])
    return a


def silent(a):
    return None


def donating():
    import jax

    return jax.jit(lambda a: a + 1, donate_argnums=0)


def dynamic(a):
    return a[a > 0]


def branching(a):
    return a if a.sum() > 0 else -a


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: printing, "it has side effects: DebugEffect"),
        (lambda: silent, "it returns no array"),
        (donating, "it donates arguments"),
        (lambda: dynamic, "NonConcreteBooleanIndexError"),
        (lambda: branching, "TracerBoolConversionError"),
    ],
)
def test_what_cannot_be_ranked_is_refused_in_a_line(jnp, function, problem):
    with pytest.raises(TpunbError, match=problem) as caught:
        collect(function(), [jnp.ones((4, 4))])
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_an_option_that_xla_does_not_have_is_refused(jnp):
    with pytest.raises(TpunbError, match=r'it does not compile with {"xla_no": true}: ') as caught:
        collect(scaled, arrays(jnp, (8, 16), (16, 8)), layouts=1, options=[{"xla_no": True}])
    assert "\n" not in str(caught.value)


def test_an_argument_that_is_not_used_keeps_its_order(jnp):
    function = Function(lambda a, b: a + 1, arrays(jnp, (4, 8), (8, 4)))
    assert function.auto() == ((0, 1), (0, 1))


def test_arguments_that_are_no_arrays_are_refused(jnp):
    with pytest.raises(TpunbError, match="not arrays of fixed shapes"):
        collect(scaled, ["a", "b"])
    with pytest.raises(TypeError, match=r"must be a sequence of arrays. Got 'ArrayImpl'"):
        collect(scaled, jnp.ones(3))
    with pytest.raises(TypeError, match="must be a JAX function or a Keras model"):
        collect(3, [jnp.ones(3)])
    with pytest.raises(ValueError, match="layouts parameter of collect must be an int of 1 or more"):
        collect(scaled, arrays(jnp, (8, 16), (16, 8)), layouts=0)


def test_a_keras_model_on_another_backend_is_refused(jnp):
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "jax":
        pytest.skip("Keras runs on JAX here")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(TpunbError, match="Keras runs on tensorflow") as caught:
        collect(model, [jnp.ones((3, 4))])
    assert "KERAS_BACKEND=jax" in caught.value.hint


class FakeKeras:
    """A model with the attributes of Keras that are used."""

    name = "dense"

    def __init__(self, w):
        self.trainable_variables, self.non_trainable_variables = [type("Variable", (), {"value": w})], []

    def __call__(self, x):
        raise AssertionError("the stateless form is used")

    def stateless_call(self, weights, state, x):
        return x @ weights[0], state


def test_a_keras_model_on_jax_is_called_with_its_weights(jnp, monkeypatch):
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    data = collect(FakeKeras(jnp.ones((8, 4))), arrays(jnp, (3, 8)), layouts=4, budget=0.2)
    assert data.name == "dense"
    assert len(data.frame["layouts"][0]) == 2  # of the weights, and of x


# -- rank -------------------------------------------------------------------------------------------------------------


def heads(q, k):
    import jax.numpy as jnp

    return jnp.einsum("bqhd,bkhd->bhqk", q, k)


@pytest.mark.parametrize("features", ["program", "graph"])
def test_only_the_first_and_the_default_are_timed(jnp, shipped, features, monkeypatch):
    model = CostModel(features).fit(shipped[:9])
    compiled = []
    kept = Function.compile
    monkeypatch.setattr(Function, "compile", lambda self, each: compiled.append(each) or kept(self, each))
    ranking = model.rank(heads, arrays(jnp, (2, 16, 4, 8), (2, 16, 4, 8)), k=3, layouts=6, budget=1)
    assert ranking.frame.schema == RANKED
    assert ranking.frame["rank"].to_list() == [1, 2, 3, 4, 5, 6]
    assert ranking.frame["predicted"].is_sorted()
    timed = ranking.frame.drop_nulls("time_ps")
    expected = {*ranking.frame.filter(pl.col("rank") <= 3)["configuration"], 0}
    assert {*timed["configuration"]} == expected
    default = timed.filter("default").row(0, named=True)
    assert default["ratio"] == 1
    assert len({*compiled} if features == "program" else compiled) == (7 if features == "program" else len(expected))
    assert f"heads: {len(timed)} of 6 configurations timed" in str(ranking)


def test_the_interval_of_a_ranking_states_what_is_certain(jnp, shipped):
    frame = pl.DataFrame(
        {
            "rank": [1, 2, 3],
            "configuration": [4, 0, 2],
            "predicted": [-1.0, 0.0, 1.0],
            "layouts": [[[1, 0]], [[0, 1]], [[1, 0]]],
            "default": [False, True, False],
            "time_ps": [1_000_000_000, 1_300_000_000, None],
            "ratio": [1.3, 1.0, None],
            "low": [1.2, 1.0, None],
            "high": [1.4, 1.0, None],
        }
    )
    ranking = tp.studies.ranking.Ranking("f", "program", frame)
    assert str(ranking) == (
        "f: 2 of 3 configurations timed; layouts 10 take 1 ms, 1.30x [1.20, 1.40] faster than the default"
    )
    unclear = tp.studies.ranking.Ranking("f", "program", frame.with_columns(low=pl.lit(0.9)))
    assert "not distinguishable from the default" in str(unclear)
    best = tp.studies.ranking.Ranking("f", "program", frame.with_columns(time_ps=pl.Series([1400, 1300, None])))
    assert "the default is fastest" in str(best)


# -- charts -----------------------------------------------------------------------------------------------------------


def test_charts_state_what_they_show(shipped):
    model = CostModel().fit(shipped[3:])
    chart = tp.studies.ranking.charts.ranking(shipped[2], model)
    assert chart.title.text == "Predicted rank and time · attention 3"
    assert "24 configurations, from the program" in chart.title.subtitle
    spec = json.dumps(chart.to_dict())
    assert '"default"' in spec
    assert '"fastest"' in spec
    errors = tp.studies.ranking.charts.top_errors(CostModel("graph").evaluate(several(), by="family"))
    assert "leave one family of graphs out; 6 graphs" in errors.title.subtitle[0]
    assert "model, first 3: 0.00 %" in errors.description
    table = tp.studies.ranking.charts.graph_table(shipped[0].graph)
    assert "self time unknown: no capture" in table.title.subtitle[0]
    for wrong in (
        lambda: tp.studies.ranking.charts.ranking(3, model),
        lambda: tp.studies.ranking.charts.top_errors(3),
        lambda: tp.studies.ranking.charts.graph_table(3),
    ):
        with pytest.raises(TypeError, match="must be"):
            wrong()
    with pytest.raises(ValueError, match="computation must be 0 to"):
        tp.studies.ranking.charts.graph_table(shipped[0].graph, 99)


def test_names_in_a_table_of_nodes_are_not_trusted(shipped):
    hlo_pb2 = pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")
    module = hlo_pb2.HloModuleProto.FromString(shipped[0].hlo)
    module.name = "evil\x1b[31m\u202e"
    for one in module.computations[-1].instructions:
        one.name = "x\x00\u202e" + one.name
    table = tp.studies.ranking.charts.graph_table(tp.studies.ranking.graph(module.SerializeToString()))
    text = json.dumps(table.to_dict(), ensure_ascii=False)
    assert not {"\x00", "\x1b", "\u202e"} & {*text}
