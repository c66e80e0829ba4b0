"""Conformance tests: the project's sources, step rules, searches and checkpoint formats pass, broken ones fail."""

import threading
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import polars as pl
import pytest
from stand_in import StandIn

from tpunb.checkpoint.formats import keras, native, orbax, tensorflow
from tpunb.errors import TpunbError
from tpunb.profiler.sources import Address, Local, Replay
from tpunb.step_stats import boundaries
from tpunb.testing import (
    FakeProfiler,
    check_checkpoint_format,
    check_search,
    check_source,
    check_step_rule,
    toy_window,
)
from tpunb.tuning import optuna_search
from tpunb.tuning.model_based import model_based
from tpunb.tuning.search import hill_climb

# -- capture sources --------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_replay_is_a_source(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.xplane.pb").write_bytes(toy_window(1000, 9000, [(number, 2000, 3000)]))
    check_source(Replay(tmp_path / "0.xplane.pb", loop=True))


@pytest.mark.live
def test_address_is_a_source():
    with FakeProfiler() as first, FakeProfiler() as second:
        check_source(Address(first.address, second.address))


@pytest.mark.slow
def test_local_is_a_source():
    pytest.importorskip("tensorflow")
    check_source(Local())


@pytest.mark.live
def test_the_source_of_the_tests_is_a_source():
    check_source(StandIn())


class Broken(StandIn):
    """A source with some of its methods replaced."""

    def __init__(self, **methods):
        super().__init__()
        vars(self).update(methods)


@pytest.mark.live
@pytest.mark.parametrize(
    ("methods", "rule"),
    [
        ({"stop": None}, r"has start, facts, window, stop and step; got no stop"),
        ({"facts": lambda: {"devices": {1}}}, r"facts\(\) is a dict for JSON"),
        ({"facts": lambda: None}, r"facts\(\) is a dict for JSON; got None"),
        ({"window": lambda seconds: None}, r"window\(\) returns bytes or a mapping; got None"),
        ({"window": lambda seconds: {"a": "no"}}, r"a is bytes or a TpunbError; got no"),
        ({"window": lambda seconds: b"\xff\xff"}, r"window is an XSpace"),
        ({"window": lambda seconds: 1 / 0}, r"window\(\) returns bytes .* got ZeroDivisionError"),
        ({"step": lambda kind, number: None}, r"step\(\) returns a context manager; got None"),
        ({"step": lambda kind, number: suppress(KeyError)}, r"step\(\) raises what its block raises"),
    ],
)
def test_a_broken_source_fails(methods, rule):
    with pytest.raises(AssertionError, match=rule):
        check_source(Broken(**methods), seconds=0.01)


@pytest.mark.live
def test_a_source_that_does_not_stop_fails(monkeypatch):
    monkeypatch.setattr("tpunb.testing.conformance._STOP_S", 0.2)
    ended = threading.Event()

    def window(seconds):
        if seconds > 1:
            ended.wait(60)
        return toy_window(1, 2)

    with pytest.raises(AssertionError, match=r"stop\(\) ends the window under way"):
        check_source(Broken(stop=lambda: None, window=window), seconds=0.01)
    ended.set()


@pytest.mark.live
def test_a_source_may_fail_for_some_workers():
    def window(seconds):
        return {"a": toy_window(1, 2), "b": TpunbError("no answer")}

    check_source(Broken(window=window, step=lambda kind, number: nullcontext()), seconds=0.01)


# -- step rules -------------------------------------------------------------------------------------------------------


def rule_of(find):
    """Return a step rule from a function of events, with the interval of the host for each step."""

    def rule(profile):
        rows = find(profile.events).sort("start_ps").unique(["host", "step"], keep="first")
        return rows.select("host", "step", "kind", "start_ps", dur_ps=pl.col("end_ps") - pl.col("start_ps"))

    return rule


def test_the_default_step_rule_passes():
    check_step_rule(rule_of(lambda events: boundaries.find(events)[0]))


def annotated(profile):
    steps = profile.events.filter(pl.col("step_num").is_not_null())
    return steps.select("host", "start_ps", "dur_ps", step="step_num")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda profile: annotated(profile).drop("dur_ps"), r"returned no \['dur_ps'\]"),
        (lambda profile: annotated(profile).with_columns(step=pl.lit(None, pl.Int64)), "returned a null"),
        (lambda profile: annotated(profile).with_columns(step=pl.lit(1)), "returned one step twice"),
        (lambda profile: annotated(profile).with_columns(dur_ps=-pl.col("dur_ps")), "below 0 ps"),
        (lambda profile: annotated(profile).unique("step").with_columns(host=pl.lit("other")), "hosts are of"),
        (lambda profile: [1], "not a frame"),
        (
            lambda profile: pl.DataFrame({"host": ["one"], "step": [1], "start_ps": [0], "dur_ps": [1]}),
            "no steps without events",
        ),
    ],
)
def test_a_broken_step_rule_fails(rule, message):
    check_step_rule(annotated)
    with pytest.raises(AssertionError, match=message):
        check_step_rule(rule)


def test_a_step_rule_that_changes_its_mind_fails():
    calls = []

    def rule(profile):
        calls.append(profile)
        return annotated(profile).with_columns(dur_ps=pl.col("dur_ps") - len(calls))

    with pytest.raises(AssertionError, match="the same steps when called again"):
        check_step_rule(rule)


# -- searches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [hill_climb, model_based], ids=lambda search: search.__name__)
def test_the_searches_pass(search):
    check_search(search)


def test_the_search_by_optuna_passes():
    pytest.importorskip("optuna")
    check_search(optuna_search(trials=5))


def endless(space):
    while True:
        yield dict(space.default)


def unknown(space):
    yield {"nothing": 1}


def outside(space):
    yield dict.fromkeys(space, 10_000)


def by_cost(space):
    if not (yield {}) > 0:
        return


def changing(space):
    values = dict(space.default)
    for name, domain in space.items():
        yield values
        values[name] = domain[-1]
    yield values


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (lambda space: [], "a search is a generator"),
        (lambda space: (1 for _ in range(3)), "a proposal is a mapping; got 1"),
        (unknown, "names are of"),
        (outside, r"is in \("),
        (by_cost, "accepts any cost; TypeError"),
        (changing, "does not change later"),
    ],
)
def test_a_broken_search_fails(search, message):
    check_search(endless)
    with pytest.raises(AssertionError, match=message):
        check_search(search)


# -- checkpoint formats -----------------------------------------------------------------------------------------------


@pytest.fixture
def model():
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def test_the_formats_of_keras_pass(tmp_path, model):
    model.save(tmp_path / "step-3.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    check_checkpoint_format(keras, tmp_path)


def test_the_format_of_tensorflow_passes(tmp_path, model):
    import tensorflow as tf

    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "ckpt-3"))
    check_checkpoint_format(tensorflow, tmp_path)


def test_the_format_of_orbax_passes(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    import numpy as np

    ocp.PyTreeCheckpointer().save(tmp_path / "5", {"params": np.zeros(3)})
    check_checkpoint_format(orbax, tmp_path / "5")


@pytest.mark.live
def test_the_native_format_passes(tmp_path, model):
    import numpy as np

    import tpunb as tp

    with tp.checkpointing(tmp_path / "native", every=1):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    check_checkpoint_format(native, tp.checkpoints(tmp_path / "native")[-1].path)


class Listed:
    """A format that lists what a test gives it."""

    def __init__(self, change, damaged=None):
        self.change, self.damaged = change, damaged

    def find(self, folder, names):
        for name in names:
            data = (folder / name).read_bytes()
            if self.damaged and data != b"whole":
                raise self.damaged
            (found,) = keras_like(folder / name)
            for key, value in self.change.items():
                setattr(found, key, value)
            yield found


def keras_like(path):
    from datetime import UTC, datetime

    when = datetime(2026, 1, 1, tzinfo=UTC)
    yield SimpleNamespace(path=path, step=3, step_from="name", time=when, size=5, holds=("weights",))


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (lambda folder, names: [], "finds a checkpoint in"),
        (Listed({"path": "/elsewhere"}), "paths are in"),
        (Listed({"step": -1}), "a step is None or >= 0; got -1"),
        (Listed({"step": None}), "step_from names the step's source"),
        (Listed({"step_from": "guess"}), "step_from is one of"),
        (Listed({"size": 0}), "a size is the bytes of the files; got 0"),
        (Listed({}, OSError("truncated")), "a damaged ckpt is skipped; got OSError"),
    ],
)
def test_a_broken_checkpoint_format_fails(reader, message, tmp_path):
    (tmp_path / "ckpt").write_bytes(b"whole")
    check_checkpoint_format(Listed({}), tmp_path)
    with pytest.raises(AssertionError, match=message):
        check_checkpoint_format(reader, tmp_path)


def test_a_checkpoint_format_that_changes_files_fails(tmp_path):
    (tmp_path / "ckpt").write_bytes(b"whole")

    def find(folder, names):
        (folder / "log").write_text("seen")
        return (found for name in names if name == "ckpt" for found in keras_like(folder / name))

    with pytest.raises(AssertionError, match="no file is changed"):
        check_checkpoint_format(find, tmp_path)
