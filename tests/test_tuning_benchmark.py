"""The benchmark of tuning: its grid, its ratios, and what it counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from optional import lazy

from tpunb.tuning.parameters import Kind, Parameter

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"

tf = lazy("tensorflow")


@pytest.fixture
def tuning(monkeypatch):
    """The benchmark of tuning, on fewer files."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import tuning

    for name, count in {"PICTURES": 24, "SHARDS": 2, "BATCH": 4}.items():
        monkeypatch.setattr(tuning.pipelines, name, count)
    return tuning


def parameter(kind, stage, *domain, verdict="safe"):
    return Parameter(kind, stage, domain[0], domain, verdict, "")


def test_a_grid_takes_each_value_with_each_up_to_its_bounds(tuning):
    parameters = [
        parameter(Kind.CALLS, "interleave:1", 1, 4, -1),
        parameter(Kind.CALLS, "map:2", 1, 4, 16, 32, -1),
        parameter(Kind.ELEMENTS, "shuffle:3", 7, verdict="locked"),
        parameter(Kind.PREFETCH, "end", 0, 2, 8, -1),
        parameter(Kind.POOL, "options", 0, 8, 64),
    ]
    points = tuning.grid(parameters, tuning.Plan())
    assert len(points) == 4 * 2 * 3 == len({tuple(point.values()) for point in points})
    assert {tuple(point.values())[:2] for point in points} == {(1, 1), (4, 4), (4, 16), (-1, -1)}
    assert {point["options private threads"] for point in points} == {0, 8}
    assert {point["end prefetch"] for point in points} == {0, 2, -1}
    assert tuning.grid(parameters, tuning.Plan((16,), (64,), (8,))) == [
        {
            "interleave:1 parallel calls": 4,
            "map:2 parallel calls": 16,
            "options private threads": 64,
            "end prefetch": 8,
        }
    ]


def test_ratios_of_tuning_are_of_the_same_turn(tuning):
    taken = {"naive": [50.0, 100.0, 60.0], "autotune": [25.0, 50.0, 30.0], "grid": [9.0, 21.0, 9.0]}
    assert tuning.ratios(taken | {"ours": [10.0, 20.0, 10.0]}) == {
        "vs_naive": [5.0, 5.0, 6.0],
        "vs_autotune": [2.5, 2.5, 3.0],
        "of_best": [0.9, 0.9, 1.05],
    }


def test_twelve_pipelines_are_rewritten_or_refused(tuning, tmp_path, capsys):
    assert tuning.small_ones(tmp_path, tries=1) == {"rewritten": 10, "refused": 2, "crashed": 0, "different": 0}
    assert "a cache in a file: refused, cache:2 caches in files" in capsys.readouterr().out


def test_differing_and_crashing_pipelines_are_counted(tuning, monkeypatch):
    def make(n=20):
        return tf.data.Dataset.range(n).map(lambda x: x + 1).batch(8)

    assert tuning.judged(make)[0] == "rewritten"
    monkeypatch.setattr(tuning.Pipeline, "build", lambda self, values: make(16))
    assert tuning.judged(make)[0] == "different"
    monkeypatch.setattr(tuning.Pipeline, "build", lambda self, values: 1 / 0)
    assert tuning.judged(make) == ("crashed", "ZeroDivisionError: division by zero")


def test_a_careful_user_trains_on_the_same_data(tuning, tmp_path):
    for kind in (tuning.pipelines.KINDS | tuning.pipelines.SHORT).values():
        naive, auto = (kind.data(tmp_path, calls).take(2).as_numpy_iterator() for calls in (None, -1))
        for one, other in zip(naive, auto, strict=True):
            parts = zip(np.atleast_1d(one), np.atleast_1d(other), strict=True) if isinstance(one, np.ndarray) else ()
            assert all(np.array_equal(*both) for both in parts or zip(one, other, strict=True))


def test_short_fits_are_counted_by_their_medians(tuning, monkeypatch, tmp_path, capsys):
    seconds = {"io": (20.0, 10.0), "cpu": (20.0, 20.5), "csv": (20.0, 21.0)}

    def fit(name, folder, steps, *, tuned):
        return (steps / 10 if steps < 30 else seconds[name][tuned]), None

    monkeypatch.setattr(tuning, "_fit_once", fit)
    assert tuning.short_fits(seconds, tmp_path, seconds=20, turns=2) == {"sooner": 1, "later": 1}
    assert "io: 20.0 s, tuned 10.0 s" in capsys.readouterr().out


@pytest.mark.live
@pytest.mark.parametrize("name", ["original", "tfrecord"])
def test_short_jobs_can_be_fitted(tuning, name, tmp_path):
    model, data = tuning.pipelines.fitted(name, tmp_path)
    history = model.fit(data.take(1), verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_pipelines_of_grain_give_the_same_with_every_point_of_the_grid(tuning):
    import grain_pipelines

    from tpunb.tuning.grain import GrainPipeline

    assert len(grain_pipelines.RECIPES) == 10
    for recipe in grain_pipelines.RECIPES.values():
        pipeline = GrainPipeline(recipe.data())
        points = grain_pipelines.points(pipeline.parameters)
        assert len(points) == len({tuple(point.items()) for point in points})
        assert grain_pipelines.changed(recipe.data(), pipeline.build(points[0]), 2) == 0


def test_batches_of_grain_that_differ_are_counted(tuning):
    import grain_pipelines

    one, other = (Closable(np.full(4, number) for number in numbers) for numbers in ([1, 2, 3], [1, 5, 6]))
    assert grain_pipelines.changed(one, other, 2) == 1
    assert grain_pipelines.seconds(Closable([*one] * 10), None, burst=2, window=0.0) > 0


def test_loaders_give_the_same_with_other_workers_and_differences_are_counted(tuning):
    torch = pytest.importorskip("torch")
    import loaders

    assert len(loaders.RECIPES) == 10
    one = loaders.shuffled(loaders.Rows(16))
    assert loaders.changed(loaders.shuffled(loaders.Rows(16)), loaders.changed_to(one, 0, 2)) == 0
    rows = torch.arange(4)
    assert loaders.changed([rows, rows, rows], [rows, rows + 1, rows]) == 2  # in two epochs


class Closable(list):
    """Batches whose iterator can be closed."""

    def __iter__(self):
        return (batch for batch in [*super().__iter__()])
