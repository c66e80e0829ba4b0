"""Trials: from the same position, with the same output, and without side effects."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from optional import lazy
from slow_jobs import TWO_READERS, at_hand, broken, counting, everything, job, little, noisy, reading, reused, shuffled

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint import save as save_loop
from tpunb.errors import TpunbError
from tpunb.text import format_error
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning import trial
from tpunb.tuning.job import Job, as_job
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.position import BatchSource, Beginning, TfPosition
from tpunb.tuning.trial import TrialError, TrialRunner

keras, tf = lazy("keras"), lazy("tensorflow")

CALLS = "map:1(fetched) parallel calls"


def built(one):
    """Return the model of a job, whose optimizer has its variables, as at the first step of fit."""
    _ = one.training
    return one.parts[0]


@pytest.mark.live
def test_trials_of_any_values_give_the_same_output():
    with TrialRunner(job(), sizes=(2, 3)) as runner:
        baseline = runner.calibrate()
        others = [runner.trial(values) for values in ({}, {CALLS: 8, "end prefetch": 2}, {CALLS: AUTOTUNE})]
    assert {other.digest for other in others} == {baseline.digest}


@pytest.mark.live
def test_another_output_is_seen():
    # what the pipeline had read ahead is the same in each trial: the window is longer
    with TrialRunner(job(counting, n=800), sizes=(1, 60)) as runner:
        baseline = runner.calibrate()
        assert baseline.digest != runner.trial({}).digest


@pytest.mark.live
def test_trials_leave_no_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = job(shuffled)
    model, data = built(one), one.parts[1]
    keras.utils.set_random_seed(9)
    before = everything(model)
    with TrialRunner(one, sizes=(1, 2)) as runner:
        runner.calibrate()
        runner.trial({"map:2(fetched) parallel calls": 4})
        runner.model_only_seconds()
        assert everything(model) != before
    assert everything(model) == before
    assert not [*tmp_path.iterdir()]
    first = [batch[0].numpy().tolist() for batch in data]
    assert sorted(np.concatenate(first)[:, 0].tolist()) == sorted(np.sin(np.arange(64, dtype="f")).tolist())


@pytest.mark.live
def test_the_shuffle_of_the_program_does_not_advance():
    def seeded():
        return tf.data.Dataset.range(20).shuffle(20, seed=1).map(lambda x: tf.ones(4) * tf.cast(x, tf.float32)).batch(4)

    def orders(data):
        return [[batch[:, 0].numpy().tolist() for batch in data] for _ in range(3)]

    tf.random.set_seed(5)  # as little() does: it goes into every seed
    data = seeded()
    pairs = data.map(lambda x: (x, tf.reduce_sum(x, 1, keepdims=True)))
    with TrialRunner(Job(lambda: (reused(), pairs)), sizes=(1, 7)) as runner:
        runner.calibrate()
    assert orders(data) == orders(seeded())


@pytest.mark.live
def test_an_interrupt_leaves_nothing_either():
    one = job()
    model = built(one)
    before = everything(model)
    with pytest.raises(KeyboardInterrupt), TrialRunner(one) as runner:
        runner.calibrate()
        raise KeyboardInterrupt
    assert everything(model) == before


@pytest.mark.live
def test_what_raises_is_refused_with_the_error():
    with TrialRunner(job(broken), sizes=(1, 40)) as runner:
        baseline = runner.calibrate()
        assert baseline.seconds > 0
        with pytest.raises(TrialError, match=r"^ValueError: no more than one reader"):
            runner.trial(TWO_READERS)
        with pytest.raises(TrialError, match="no parameter is named"):
            runner.trial({"warp": 9})


@pytest.mark.live
def test_the_model_alone_reads_one_batch():
    read = []

    def note(i):
        read.append(i)
        return np.full(4, i, "f")

    def data():
        rows = tf.data.Dataset.range(400).map(lambda i: tf.ensure_shape(tf.numpy_function(note, [i], tf.float32), [4]))
        return rows.map(lambda x: (x, tf.reduce_sum(x, keepdims=True))).batch(4)

    with TrialRunner(job(data), sizes=(1, 2)) as runner:
        read.clear()
        assert runner.model_only_seconds() > 0
        assert len(read) < 4 * (3 + trial._MODEL_EXECUTIONS)


@pytest.mark.live
def test_global_seeds_that_the_first_trial_creates_are_removed():
    def fitted(model):
        return model.fit(at_hand(), epochs=1, verbose=0).history["loss"]

    tf.random.set_seed(None)
    fresh = fitted(noisy())
    model = noisy()
    with TrialRunner(Job(lambda: (model, at_hand())), sizes=(1, 2)) as runner:
        baseline = runner.calibrate()
        assert baseline.digest == runner.trial({}).digest
    assert fitted(model) == fresh


@pytest.mark.live
def test_data_that_fail_by_themselves_raise():
    def fails():
        return reading().map(lambda x, y: (tf.debugging.check_numerics(x / 0, "no number"), y))

    with pytest.raises(TpunbError, match=r"the data fail as they are: .*no number"), TrialRunner(job(fails)):
        pass


@pytest.mark.live
def test_windows_are_long_enough_to_measure():
    with TrialRunner(job(at_hand)) as runner:
        runner.calibrate()
        assert 3 <= runner.sizes[1] <= 100
    with TrialRunner(job(), sizes=(2, 3)) as runner:
        runner.calibrate()
        assert runner.sizes == (2, 3)


class Clock:
    """Replaces the module `time`: an execution takes two seconds, and three of processor time."""

    def __init__(self):
        self.executions = 0

    def perf_counter(self):
        return 2.0 * self.executions

    def process_time(self):
        return 3.0 * self.executions

    def execute(self, _=None):
        self.executions += 1
        return self.executions


def test_a_window_is_timed_by_the_clock_and_by_the_processors(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trial, "time", clock)
    timed = trial._timed(clock.execute, 2, 3)
    assert (timed.seconds, timed.busy, timed.outputs) == (2.0, 1.5, [1, 2, 3, 4, 5])


@pytest.mark.live
def test_the_time_of_a_trial_is_that_of_all_its_executions(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trial, "time", clock)
    with TrialRunner(job(at_hand), sizes=(2, 3)) as runner:
        monkeypatch.setattr(runner.training, "execute", clock.execute)
        result = runner.calibrate()
    assert (result.seconds, result.spent, result.busy) == (2.0, 10.0, 1.5)


@pytest.mark.parametrize(("limit", "executions"), [(5, 3), (7, 4)])
def test_a_slow_trial_ends_between_two_executions(monkeypatch, limit, executions):
    clock = Clock()
    monkeypatch.setattr(trial, "time", clock)
    with pytest.raises(TpunbError, match=f"{executions} executions took over {limit} s: much too slow"):
        trial._timed(clock.execute, 2, 30, limit=limit)
    assert clock.executions == executions


@pytest.mark.live
def test_values_that_are_much_too_slow_fail_but_never_the_programs_own(monkeypatch):
    monkeypatch.setattr(trial, "_PATIENCE", 0)
    monkeypatch.setattr(trial, "_HICCUP", 0)
    with TrialRunner(job(), sizes=(1, 2)) as runner:
        runner.calibrate()
        assert runner.trial({}).seconds > 0
        with pytest.raises(TrialError, match="much too slow"):
            runner.trial({"end prefetch": 2})


@pytest.mark.live
def test_a_short_window_is_timed_once_more_after_the_output(monkeypatch):
    with TrialRunner(job(at_hand)) as runner:
        baseline = runner.calibrate()
        executed = []
        execute = runner.training.execute
        monkeypatch.setattr(runner.training, "execute", lambda iterator: executed.append(1) or execute(iterator))
        monkeypatch.setattr(runner, "_short", float("inf"))
        assert runner.trial({"end prefetch": 2}).digest == baseline.digest
        assert len(executed) > 2 * runner.sizes[0] + runner.sizes[1]


@pytest.mark.live
def test_the_sizing_trial_of_slow_executions_is_the_baseline(monkeypatch):
    monkeypatch.setattr(trial, "_SLOW", 0.0)
    monkeypatch.setattr(trial, "_SECONDS", 0.0)
    with TrialRunner(job()) as runner:
        baseline = runner.calibrate()
        assert baseline.digest == runner.trial({}).digest
        assert runner.sizes == (3, 3)


@pytest.mark.live
def test_epochs_that_end_start_again():
    with TrialRunner(job(at_hand, n=8), sizes=(1, 12)) as runner:
        baseline = runner.calibrate()
        assert baseline.digest == runner.trial({"end prefetch": 2}).digest
    with pytest.raises(TpunbError, match="no batch"), TrialRunner(job(at_hand, n=0)):
        pass


# ---- from a checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with checkpointing(folder, every=6):
        reused().fit(at_hand().shuffle(6), epochs=2, verbose=0)
    return checkpoints(folder)


def shuffled_at_hand():
    return at_hand().shuffle(6)


@pytest.mark.live
def test_a_trial_from_a_checkpoint_continues_as_the_run_did(saved, tmp_path):
    losses = []
    checkpoint = saved[2]
    assert checkpoint.step == 18, "in the second epoch"

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]).hex())

    from tpunb.checkpoint.resume import resume

    with resume(checkpoint):
        reused().fit(shuffled_at_hand(), epochs=2, verbose=0, callbacks=[Note()])
    one = job(shuffled_at_hand)
    model = built(one)
    before = everything(model)
    with TrialRunner(one, checkpoint, sizes=(2, 3)) as runner:
        runner.calibrate()
        outputs = []
        execute = runner.training.execute
        runner.training.execute = lambda iterator: outputs.append(execute(iterator)) or outputs[-1]
        runner.trial({"end prefetch": 2})
    assert [float(output["loss"]).hex() for output in outputs] == losses[:5]
    assert everything(model) == before


@pytest.mark.live
def test_incomplete_checkpoints_are_no_start(saved, tmp_path):
    loop = save_loop(tmp_path, 3, numbers=np.ones(2))
    with pytest.raises(TpunbError, match="is a checkpoint of a custom loop"):
        TrialRunner(job(), loop)
    keras_file = tmp_path / "model.weights.h5"
    reused().save_weights(keras_file)
    for other in (keras_file, tmp_path):
        with pytest.raises(TpunbError, match="it is not a checkpoint of tpunb"):
            TrialRunner(job(), other)
    with pytest.raises(TpunbError, match="it is of fit, and the job is a custom loop"):
        TrialRunner(Job(little, print), saved[0])
    with pytest.raises(TypeError, match="start parameter"):
        TrialRunner(job(), 6)
    with pytest.raises(TypeError, match="job parameter"):
        TrialRunner(little)


@pytest.mark.live
def test_a_checkpoint_of_another_job_raises(saved):
    other = Job(lambda: (little(9), shuffled_at_hand()))
    before = everything(built(other))
    with pytest.raises(TpunbError, match="with a different model"), TrialRunner(other, saved[0]):
        pass
    assert everything(other.parts[0]) == before


# ---- positions


class Draws:
    """A training whose output is the batch that it reads."""

    steps = 1

    def execute(self, iterator):
        return next(iterator).numpy().tolist()


@pytest.mark.parametrize(("begun", "drawn"), [(0, 1), (0, 3), (2, 2), (1, 19)])
def test_a_position_follows_the_batches_read(begun, drawn):
    def data():
        return tf.data.Dataset.range(66).shuffle(7, seed=1).map(lambda x: x + 1).batch(3)

    own = data()
    for _ in range(begun):
        iter(own)
    iterator = iter(own)
    rest = [batch.numpy().tolist() for batch in iterator][drawn:]
    position = TfPosition(Pipeline(data()), begun=begun, drawn=drawn)
    assert position.obstacle == ""
    for values in ({}, {"map:2 parallel calls": 4, "end prefetch": 2}, {"options private threads": 8}):
        source = position.source(values)
        assert [source.execute(Draws()) for _ in rest] == rest


def test_data_that_end_start_again_and_empty_data_raise():
    data = tf.data.Dataset.range(2)
    source = BatchSource(data, iter(data))
    assert [source.execute(Draws()) for _ in range(5)] == [0, 1, 0, 1, 0]
    with pytest.raises(TpunbError, match="no batch"):
        BatchSource((), iter(())).execute(Draws())


@pytest.mark.live
def test_trials_of_grain_data():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(40).map(lambda x: np.float32(x)).batch(4)
    own = {"sum": np.zeros(1)}

    def step(model, batch):
        model["sum"] = model["sum"] * 0.9 + np.mean(batch)
        return model["sum"]

    with TrialRunner(Job(lambda: (own, data), step), sizes=(1, 3)) as runner:
        baseline = runner.calibrate()
        assert runner.trial({"read threads": 2, "read buffer": 4}).digest == baseline.digest
        assert runner.model_only_seconds() > 0
    assert own["sum"].tolist() == [0]


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_a_trial_ends_what_reads_ahead_for_it(kind, monkeypatch):
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(2000).to_iter_dataset()
    if kind == "loader":
        sampler = grain.samplers.SequentialSampler(2000, grain.sharding.NoSharding())
        data = grain.DataLoader(data_source=range(2000), sampler=sampler)
    sources, source = [], Beginning.source
    monkeypatch.setattr(Beginning, "source", lambda *args: sources.append(source(*args)) or sources[-1])
    with TrialRunner(as_job(data), sizes=(1, 2)) as runner:
        runner.calibrate()
        runner.trial({"read buffer": 4})
        runner.sample()
        runner.model_only_seconds()
    assert len(sources) == 4
    for each in sources:
        with pytest.raises(ValueError, match="closed"):
            next(each.iterator)


@pytest.mark.parametrize(("threads", "window"), [(2, 3), (16, 32)])
def test_more_batches_are_timed_than_are_made_at_once(threads, window, monkeypatch):
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(4000).to_iter_dataset(grain.ReadOptions(num_threads=threads))
    monkeypatch.setattr(trial, "_SHORT", 1e-9)
    monkeypatch.setattr(trial, "_SECONDS", 0.0)
    monkeypatch.setattr(trial, "_RETIMED", 0.0)
    timed, sizes = trial._timed, []
    monkeypatch.setattr(trial, "_timed", lambda *args, **options: sizes.append(args[1:]) or timed(*args, **options))
    with TrialRunner(as_job(data)) as runner:
        runner.calibrate()
    assert sizes[-1] == (max(threads, 8), window)


def test_errors_are_formatted_in_one_line():
    assert format_error(TpunbError("too\x1b[31m red")) == "too\ufffd[31m red"
    assert format_error(ValueError()) == "ValueError"
    assert len(format_error(ValueError("x" * 999))) == 300 + len("ValueError: ")
    assert repr(TrialRunner(job())) == "TrialRunner(Job(<lambda>, not built yet) at its beginning)"
