"""Trials: from the same place, with the same output, and without a trace."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from slow_jobs import TWO_READERS, at_hand, broken, counting, job, little, noisy, reading, shuffled

from tpunb.checkpoint import checkpoints
from tpunb.errors import TpunbError
from tpunb.resuming import checkpointing
from tpunb.resuming import save as save_loop
from tpunb.tuning import trial
from tpunb.tuning.job import Job
from tpunb.tuning.knob import AUTOTUNE
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.place import Feed, TfPlace
from tpunb.tuning.refused import Refused, in_words
from tpunb.tuning.trial import Track

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

CALLS = "map:1(fetched) parallel calls"


def everything(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [variable.numpy().tolist() for variable in variables], random.getstate(), np.random.get_state()[1].tolist()


def folders():
    return set(Path(tempfile.gettempdir()).glob("tpunb-*"))


def built(one):
    """Return the model of a job, whose optimizer has its variables, as at the first step of fit."""
    _ = one.training
    return one.parts[0]


def test_trials_of_any_values_give_the_same_output():
    with Track(job(), warm=2, window=3) as track:
        default = track.run({})
        others = [track.run(values) for values in ({}, {CALLS: 8, "end prefetch": 2}, {CALLS: AUTOTUNE})]
    assert {other.digest for other in others} == {default.digest}
    assert default.spent > 5 * default.seconds > 0


def test_another_output_is_seen():
    with Track(job(counting), warm=1, window=2) as track:
        assert track.run({}).digest != track.run({}).digest


def test_nothing_is_left_of_trials():
    one = job(shuffled)
    model, data = built(one), one.parts[1]
    keras.utils.set_random_seed(9)
    before, files = everything(model), folders()
    with Track(one, warm=1, window=2) as track:
        track.settle()
        track.run({"map:2(fetched) parallel calls": 4})
        track.alone()
        assert everything(model) != before
    assert everything(model) == before
    assert folders() <= files
    first = [batch[0].numpy().tolist() for batch in data]
    assert sorted(np.concatenate(first)[:, 0].tolist()) == sorted(np.sin(np.arange(64, dtype="f")).tolist())


def test_the_shuffle_of_the_program_does_not_go_on():
    def seeded():
        return tf.data.Dataset.range(20).shuffle(20, seed=1).map(lambda x: tf.ones(4) * tf.cast(x, tf.float32)).batch(4)

    def orders(data):
        return [[batch[:, 0].numpy().tolist() for batch in data] for _ in range(3)]

    tf.random.set_seed(5)  # as little() does: it goes into every seed
    data = seeded()
    pairs = data.map(lambda x: (x, tf.reduce_sum(x, 1, keepdims=True)))
    with Track(Job(lambda: (little(), pairs)), warm=1, window=7) as track:
        track.run({})
    assert orders(data) == orders(seeded())


def test_an_interrupt_leaves_nothing_either():
    one = job()
    model = built(one)
    before = everything(model)
    with pytest.raises(KeyboardInterrupt), Track(one) as track:
        track.run({})
        raise KeyboardInterrupt
    assert everything(model) == before


def test_what_raises_is_refused_in_words():
    with Track(job(broken), warm=1, window=2) as track:
        assert track.run({}).seconds > 0
        with pytest.raises(Refused, match=r"^ValueError: no more than one reader"):
            track.run(TWO_READERS)
        with pytest.raises(Refused, match="no knob is named"):
            track.run({"warp": 9})


def test_a_turn_of_the_model_alone_draws_one_batch():
    read = []

    def note(i):
        read.append(i)
        return np.full(4, i, "f")

    def data():
        rows = tf.data.Dataset.range(400).map(lambda i: tf.ensure_shape(tf.numpy_function(note, [i], tf.float32), [4]))
        return rows.map(lambda x: (x, tf.reduce_sum(x, keepdims=True))).batch(4)

    with Track(job(data), warm=1, window=2) as track:
        read.clear()
        assert track.alone(turns=50) > 0
        assert len(read) < 4 * 50 / 2


def test_global_seeds_that_the_first_trial_would_make_are_put_back_and_leave_nothing():
    def fitted(model):
        return model.fit(at_hand(), epochs=1, verbose=0).history["loss"]

    tf.random.set_seed(None)
    fresh = fitted(noisy())
    model = noisy()
    with Track(Job(lambda: (model, at_hand())), warm=1, window=2) as track:
        assert track.run({}).digest == track.run({}).digest
    assert fitted(model) == fresh


def test_data_that_fail_by_themselves_are_told():
    def fails():
        return reading().map(lambda x, y: (tf.debugging.check_numerics(x / 0, "no number"), y))

    with pytest.raises(TpunbError, match=r"the data fail as they are: .*no number"), Track(job(fails)):
        pass


def test_windows_are_as_long_as_can_be_measured():
    with Track(job(at_hand)) as track:
        track.settle()
        assert 3 <= track.window <= 100
    with Track(job(), warm=2, window=3) as track:
        track.settle()
        assert (track.warm, track.window) == (2, 3)


class Clock:
    """Stands in for the module `time`: a turn takes two seconds, and three of processor time."""

    def __init__(self):
        self.turns = 0

    def perf_counter(self):
        return 2.0 * self.turns

    def process_time(self):
        return 3.0 * self.turns

    def turn(self):
        self.turns += 1
        return self.turns


def test_a_window_is_timed_by_the_clock_and_by_the_processors(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trial, "time", clock)
    timed = trial._timed(clock.turn, 2, 3)
    assert (timed.seconds, timed.busy, timed.told) == (2.0, 1.5, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(("limit", "turns"), [(5, 3), (7, 4)])
def test_what_takes_too_long_is_ended_between_two_turns(monkeypatch, limit, turns):
    clock = Clock()
    monkeypatch.setattr(trial, "time", clock)
    with pytest.raises(TpunbError, match=f"{turns} turns took over {limit} s: that is much too slow"):
        trial._timed(clock.turn, 2, 30, limit=limit)
    assert clock.turns == turns


def test_values_that_are_much_too_slow_are_refused_and_never_the_programs_own(monkeypatch):
    monkeypatch.setattr(trial, "_PATIENCE", 0)
    monkeypatch.setattr(trial, "_HICCUP", 0)
    with Track(job(), warm=1, window=2) as track:
        assert track.run({"end prefetch": 2}).seconds > 0, "the limit is not known yet"
        for _ in range(2):
            assert track.run({}).seconds > 0
        with pytest.raises(Refused, match="much too slow"):
            track.run({"end prefetch": 2})


def test_a_short_window_is_timed_once_more_after_the_output(monkeypatch):
    with Track(job(at_hand)) as track:
        expected = track.settle().digest
        taken = []
        turn = track.training.turn
        monkeypatch.setattr(track.training, "turn", lambda iterator: taken.append(1) or turn(iterator))
        monkeypatch.setattr(track, "_short", float("inf"))
        assert track.run({"end prefetch": 2}).digest == expected
        assert len(taken) > 2 * track.warm + track.window


def test_the_first_trial_of_slow_turns_is_like_the_others(monkeypatch):
    monkeypatch.setattr(trial, "_SLOW", 0.0)
    monkeypatch.setattr(trial, "_SECONDS", 0.0)
    with Track(job()) as track:
        assert track.settle().digest == track.run({}).digest
        assert (track.warm, track.window) == (3, 3)


def test_epochs_that_are_over_begin_anew():
    with Track(job(at_hand, n=8), warm=1, window=12) as track:
        assert track.run({}).digest == track.run({"end prefetch": 2}).digest
    with pytest.raises(TpunbError, match="no batch"), Track(job(at_hand, n=0)):
        pass


# ---- from a checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with checkpointing(folder, every=6):
        little().fit(at_hand().shuffle(6), epochs=2, verbose=0)
    return checkpoints(folder)


def shuffled_at_hand():
    return at_hand().shuffle(6)


def test_a_trial_from_a_checkpoint_goes_on_as_the_run_did(saved, tmp_path):
    losses = []
    checkpoint = saved[2]
    assert checkpoint.step == 18, "in the second epoch"

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]).hex())

    from tpunb.resuming import resume

    with resume(checkpoint):
        little().fit(shuffled_at_hand(), epochs=2, verbose=0, callbacks=[Note()])
    one = job(shuffled_at_hand)
    model = built(one)
    before = everything(model)
    with Track(one, checkpoint, warm=2, window=3) as track:
        told = []
        turn = track.training.turn
        track.training.turn = lambda iterator: told.append(turn(iterator)) or told[-1]
        track.run({"end prefetch": 2})
    assert [float(one["loss"]).hex() for one in told] == losses[:5]
    assert everything(model) == before


def test_what_does_not_hold_all_is_no_start(saved, tmp_path):
    loop = save_loop(tmp_path, 3, numbers=np.ones(2))
    with pytest.raises(TpunbError, match="is of a loop"):
        Track(job(), loop)
    keras_file = tmp_path / "model.weights.h5"
    little().save_weights(keras_file)
    (other,) = checkpoints(tmp_path).found[-1:]
    if other.kind == "keras":
        with pytest.raises(TpunbError, match="does not hold all that a trial needs: it is of keras"):
            Track(job(), other)
    with pytest.raises(TpunbError, match="is of a fit"):
        Track(Job(little, print), saved[0])
    with pytest.raises(TypeError, match="start parameter"):
        Track(job(), tmp_path)
    with pytest.raises(TypeError, match="job parameter"):
        Track(little)


def test_a_checkpoint_of_another_job_is_told(saved):
    other = Job(lambda: (little(9), shuffled_at_hand()))
    before = everything(built(other))
    with pytest.raises(TpunbError, match="of another model"), Track(other, saved[0]):
        pass
    assert everything(other.parts[0]) == before


# ---- places


class Draws:
    """A training whose turn is the batch that it draws."""

    steps = 1

    def turn(self, iterator):
        return next(iterator).numpy().tolist()


@pytest.mark.parametrize(("begun", "drawn"), [(0, 1), (0, 3), (2, 2), (1, 19)])
def test_a_place_is_after_what_was_drawn(tmp_path, begun, drawn):
    def data():
        return tf.data.Dataset.range(66).shuffle(7, seed=1).map(lambda x: x + 1).batch(3)

    own = data()
    for _ in range(begun):
        iter(own)
    iterator = iter(own)
    rest = [batch.numpy().tolist() for batch in iterator][drawn:]
    place = TfPlace(Pipeline(data()), tmp_path, begun=begun, drawn=drawn)
    assert place.why == ""
    for values in ({}, {"map:2 parallel calls": 4, "end prefetch": 2}, {"options private threads": 8}):
        feed = place.feed(values)
        assert [feed.turn(Draws()) for _ in rest] == rest


def test_another_order_is_put_to_a_place_near_the_beginning(tmp_path):
    data = tf.data.Dataset.range(12).shuffle(5, seed=1).map(lambda x: x * 2).batch(3)
    pipeline = Pipeline(data)
    (order,) = (knob for knob in pipeline.knobs if knob.name.endswith("order"))
    other = next(value for value in order.domain if value != order.present)
    near = TfPlace(pipeline, tmp_path)
    assert near.feed({order.name: other}).turn(Draws()) == near.feed({}).turn(Draws())
    folder = tmp_path / "far"
    folder.mkdir()
    far = TfPlace(pipeline, folder, begun=1, drawn=2)
    with pytest.raises(TpunbError, match="another order of stages"):
        far.feed({order.name: other})


def test_data_that_are_over_begin_anew_and_empty_ones_are_told():
    data = tf.data.Dataset.range(2)
    feed = Feed(data, iter(data))
    assert [feed.turn(Draws()) for _ in range(5)] == [0, 1, 0, 1, 0]
    with pytest.raises(TpunbError, match="no batch"):
        Feed((), iter(())).turn(Draws())


def test_grain_is_tried_too():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(40).map(lambda x: np.float32(x)).batch(4)
    own = {"sum": np.zeros(1)}

    def step(model, batch):
        model["sum"] = model["sum"] * 0.9 + np.mean(batch)
        return model["sum"]

    with Track(Job(lambda: (own, data), step), warm=1, window=3) as track:
        default = track.run({})
        assert track.run({"read threads": 2, "read buffer": 4}).digest == default.digest
        assert track.alone() > 0
    assert own["sum"].tolist() == [0]


def test_errors_are_told_in_a_line():
    assert in_words(TpunbError("too\x1b[31m red")) == "too\ufffd[31m red"
    assert in_words(ValueError()) == "ValueError"
    assert len(in_words(ValueError("x" * 999))) == 300
    assert repr(Track(job())) == "Track(Job(<lambda>, not built yet) at its beginning, 8 + 3 turns a trial)"
