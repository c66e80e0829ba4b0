"""Resume: an interrupted fit continues in a new process, bit for bit as the uninterrupted one."""

import json
import re
import shutil
import subprocess
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
import resumed_fits
from exact_fits import reused
from optional import lazy
from resumed_fits import BATCH, FITS, QUICK, arrays, chosen, is_edge, model, rows, saved
from warm_python import warm_python

import tpunb as tp
from tpunb import signals
from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.profiler.capture import Schedule
from tpunb.tfdata import graph
from tpunb.training import fit_data, snapshot

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live

OTHERS = [name for name in FITS if name not in QUICK]


def cut_and_resumed(top, names):
    """Return, by name, what the uninterrupted fits saw and what the resumed ones saw in a fresh process."""
    whole = {name: saved(top / name, name) for name in names}
    command = [*warm_python(), resumed_fits.__file__, top, *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -9, ended.stderr[-3000:]
    return top, whole, json.loads((top / "resumed.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return cut_and_resumed(tmp_path_factory.mktemp("runs"), QUICK)


@pytest.fixture(scope="module")
def other_runs(tmp_path_factory):
    return cut_and_resumed(tmp_path_factory.mktemp("other_runs"), OTHERS)


def same(runs, name):
    """Assert that the resumed fits of a name saw what the uninterrupted one saw from there on."""
    top, whole, resumed = runs
    known, at = whole[name], chosen(top / name)
    assert [one.exact for one in at] == [True] * len(at)
    assert {is_edge(one) for one in at} == {True, False}
    assert sorted(resumed[name]) == sorted(one.path.name for one in at)
    for one in at:
        seen = resumed[name][one.path.name]
        left = len(seen["losses"])
        assert 0 < left < len(known["losses"])
        assert seen["losses"] == known["losses"][-left:]
        assert seen["draws"] == known["draws"][-left:]
        assert seen["state"] == known["state"]
        assert seen["epochs"] == known["epochs"][-len(seen["epochs"]) :]
        for figure, values in seen["history"].items():
            assert values == known["history"][figure][-len(values) :]


@pytest.mark.parametrize("name", QUICK)
def test_a_resumed_fit_is_the_uninterrupted_one(runs, name):
    same(runs, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_resumed_fits_are_the_uninterrupted_ones(other_runs, name):
    same(other_runs, name)


def test_a_checkpoint_lists_its_parts(runs):
    top, _, _ = runs
    found = checkpoints(top / "shuffled")
    assert [one.step for one in found] == [6, 12, 18, 24, 30, 36]
    assert {one.holds for one in found} == {("weights", "optimizer", "metrics", "data position", "random state")}
    assert not [path for path in (top / "shuffled").glob(".*") if not path.name.startswith(".ends-")]


def test_an_epoch_of_unknown_length_is_saved_once_at_its_end(tmp_path):
    saved(tmp_path, "unknown length")
    found = checkpoints(tmp_path)
    assert [one.path.name for one in found] == [f"tpunb-{step}" for step in range(3, 28, 3)]
    assert [is_edge(one) for one in found] == [False, False, True] * 3


def test_the_final_state_is_restored_after_the_last_epoch(tmp_path):
    with checkpointing(tmp_path):
        whole = fit()
    with resume(tmp_path / "tpunb-12"):
        again = fit()
    assert again == whole


def test_counters_of_keras_callbacks_are_restored(tmp_path):
    def stopping():
        return keras.callbacks.EarlyStopping(monitor="loss", patience=4, min_delta=1e9)

    with checkpointing(tmp_path) as saved:
        fit(epochs=9, callbacks=[stopping()])
    assert len(saved.saved) == 5  # the first is the best, and four are waited for
    waited = stopping()
    with resume(saved.saved[2]), checkpointing(tmp_path / "on") as after:
        fit(epochs=9, callbacks=[waited])
    assert len(after.saved) == 2
    assert (waited.wait, waited.stopped_epoch) == (4, 4)


def small():
    made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def fit(data=None, made=None, **more):
    """Train a model, or the `reused` one; return its weights."""
    made = made or reused(small)
    made.fit(rows().batch(BATCH) if data is None else data, verbose=0, **more)
    return [weights.tolist() for weights in made.get_weights()]


def generated():
    pairs = list(zip(*arrays(), strict=True))
    spec = (tf.TensorSpec((6,)), tf.TensorSpec((1,)))
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec).batch(BATCH)


def negated(x):
    return -x


def diced(dice, x, y):
    return x + dice.normal(()), y


def within():
    return tf.data.Dataset.range(4).flat_map(lambda _: rows().shuffle(4, seed=1)).batch(BATCH)


NOT_EXACT = {
    "from_generator:0: the Python generator <lambda> feeds it, and cannot continue in the middle": generated,
    "map:1: it calls the Python function negated by tf.py_function, and may keep state": lambda: rows().map(
        lambda x, y: (tf.ensure_shape(tf.py_function(negated, [x], "float32"), (6,)), y)
    ),
    "map:1: it draws random numbers with RandomUniform": lambda: rows().map(
        lambda x, y: (x + tf.random.uniform(()), y)
    ),
    "map:1: it draws from a tf.random.Generator in parallel calls": lambda: rows().map(
        partial(diced, tf.random.Generator.from_seed(1)), num_parallel_calls=2
    ),
    "flat_map:1: it contains a shuffle, whose state cannot be saved": within,
}


@pytest.mark.parametrize("step", [14, 40], ids=["an earlier epoch", "the epoch of the backup"])
def test_a_fit_is_resumed_beside_a_backup_of_another_epoch(tmp_path, step):
    taken = []

    def fit(folder, dies_at=None):
        def count(batch, logs):  # a callback's own numbers would be those of the checkpoint
            taken.append(batch)
            if len(taken) == dies_at:
                raise RuntimeError("killed")

        taken.clear()
        keras.utils.set_random_seed(5)
        trained, data = model(), rows().shuffle(20, seed=2).batch(BATCH)  # twelve steps an epoch
        counts = keras.callbacks.LambdaCallback(on_train_batch_end=count)
        trained.fit(data, epochs=6, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(folder), counts])
        return trained.get_weights()

    whole = fit(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="killed"), checkpointing(tmp_path / "saved", every=2):
        fit(tmp_path / "backup", dies_at=42)
    with resume(checkpoints(tmp_path / "saved").before(step)) as resumed:
        again = fit(tmp_path / "backup")
    assert (resumed.step, len(taken)) == (step, 72 - step)
    assert all((one == other).all() for one, other in zip(whole, again, strict=True))


@pytest.mark.parametrize("reason", NOT_EXACT)
def test_a_stateful_op_in_the_data_warns_before_training(tmp_path, reason):
    data = NOT_EXACT[reason]()
    data = data.batch(BATCH) if reason.startswith("map") else data
    warned = []

    class Begins(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            warned.append(any("resuming will not be exact" in str(each.message) for each in caught))

    inexact = pytest.warns(UserWarning, match=rf"resuming will not be exact: {re.escape(reason)}")
    with inexact as caught, checkpointing(tmp_path, every=1):
        fit(data, callbacks=[Begins()])
    assert all(warned), "before the first step"
    assert {each.exact for each in checkpoints(tmp_path)} == {False}


def test_a_stateful_op_warns_even_if_the_options_ignore_it(tmp_path):
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    data = NOT_EXACT["map:1: it draws random numbers with RandomUniform"]().batch(BATCH).with_options(options)
    with (
        pytest.warns(UserWarning, match="it draws random numbers with RandomUniform"),
        checkpointing(tmp_path, every=5),
    ):
        fit(data)
    assert not checkpoints(tmp_path)[0].exact
    with warnings.catch_warnings(), checkpointing(tmp_path / "pure", every=5):
        warnings.filterwarnings("error", "the position")
        fit(rows().map(lambda x, y: (x + 1, y)).batch(BATCH).with_options(options))
    assert checkpoints(tmp_path / "pure")[0].exact


def test_an_inexact_checkpoint_needs_exact_false_and_draws_again(tmp_path):
    with pytest.warns(UserWarning, match="Python generator"), checkpointing(tmp_path, every=5):
        whole = fit(generated(), epochs=2)
    first = checkpoints(tmp_path)[0]
    with (
        pytest.raises(TpunbError, match="tpunb-5 cannot be resumed exactly: from_generator:0: the Python gen"),
        resume(first),
    ):
        pass
    with resume(first, exact=False):
        again = fit(generated(), epochs=2)  # this generator yields the same each time
    assert again == whole


def test_a_resumed_fit_can_be_saved_again(tmp_path):
    with checkpointing(tmp_path / "a", every=4):
        whole = fit()
    with resume(tmp_path / "a/tpunb-4"), checkpointing(tmp_path / "b", every=4) as saved:
        fit()
    assert [one.step for one in saved.saved] == [8, 12]
    with resume(saved.saved[0]):
        again = fit()
    assert again == whole


def test_earlier_checkpoints_are_kept_and_later_ones_preferred(tmp_path):
    for _ in range(2):
        with checkpointing(tmp_path, every=6):
            fit()
    found = checkpoints(tmp_path)
    assert sorted(one.path.name for one in found) == ["tpunb-12", "tpunb-12-2", "tpunb-6", "tpunb-6-2"]
    assert found.before(11).path.name == "tpunb-6-2"


def test_inner_evaluations_and_fits_are_ignored(tmp_path):
    data, inner = rows().batch(BATCH), small()

    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.evaluate(rows().batch(8), verbose=0)
            inner.fit(rows().batch(8), verbose=0)

        def on_epoch_end(self, epoch, logs=None):
            self.model.predict(rows().batch(8), verbose=0)

    with checkpointing(tmp_path, every=6):
        whole = fit(data, epochs=2, validation_data=rows().batch(8), callbacks=[Looks()])
    assert [one.step for one in checkpoints(tmp_path)] == [6, 12, 18, 24]
    with resume(tmp_path / "tpunb-18"):
        again = fit(data, epochs=2, validation_data=rows().batch(8), callbacks=[Looks()])
    assert again == whole


def test_each_epoch_is_saved_by_default(tmp_path):
    with checkpointing(tmp_path) as saved:
        fit(epochs=2)
    assert [one.step for one in saved.saved] == [12, 24]
    assert repr(saved).startswith(f"Saving({tmp_path}, 2 checkpoints, ")
    seconds = [json.loads((one.path / "tpunb.json").read_text())["seconds"] for one in saved.saved]
    assert 0 < sum(seconds) <= saved.seconds


def test_a_new_phase_is_saved_at_the_next_step(tmp_path):
    def tell_at(batch, logs=None):
        if batch == 4:
            thread = threading.Thread(target=signals.phase_opened.send, args=(1,))
            thread.start()
            thread.join()

    capturing = signals.spent.connect(lambda spent: None)
    with capturing, checkpointing(tmp_path, at_phases=True) as saved, warnings.catch_warnings():
        warnings.filterwarnings("error", "at_phases=True saves nothing")
        fit(callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=tell_at)])
    assert [one.step for one in saved.saved] == [5]


def phase_at(*steps):
    """Return a callback that reports a new phase at some steps."""

    def begin(batch, logs=None):
        if batch in steps:
            signals.phase_opened.send(1)

    return keras.callbacks.LambdaCallback(on_train_batch_begin=begin)


@pytest.mark.parametrize(
    ("phases", "at_phases", "steps"),
    [((), False, [11, 12]), ((4,), False, [4, 5, 11, 12]), ((4, 7), True, [5, 8])],
)
def test_the_last_checkpoints_and_those_of_phases_are_kept(tmp_path, phases, at_phases, steps):
    every = None if at_phases else 1
    with (
        warnings.catch_warnings(),
        signals.spent.connect(lambda spent: None),
        checkpointing(tmp_path, every=every, at_phases=at_phases, keep=2) as saving,
    ):
        whole = fit(callbacks=[phase_at(*phases)])
    found = checkpoints(tmp_path)
    assert [one.step for one in found] == [one.step for one in saving.saved] == steps
    with resume(found[0]):
        again = fit(callbacks=[phase_at(*phases)])
    assert again == whole


def test_checkpoints_of_other_blocks_are_not_removed(tmp_path):
    for keep in (None, 1):
        with checkpointing(tmp_path, every=6, keep=keep):
            fit()
    assert sorted(one.path.name for one in checkpoints(tmp_path)) == ["tpunb-12", "tpunb-12-2", "tpunb-6"]


def test_a_phase_detected_by_a_capture_is_saved(tmp_path):
    schedule, late = Schedule.fixed(0.1, 0.15), time.monotonic() + 120

    def stop(batch, logs):
        made.stop_training = bool(saved.saved) or time.monotonic() > late

    made, stopping = reused(small), keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with tp.capture(tmp_path / "run", schedule=schedule), checkpointing(tmp_path / "saved", at_phases=True) as saved:
        fit(rows().repeat().batch(BATCH), made, steps_per_epoch=10**6, callbacks=[stopping])
    found = checkpoints(tmp_path / "saved")
    assert [one.step for one in found] == [one.step for one in saved.saved]
    assert len(found) >= 1
    assert all(one.exact for one in found)


def test_at_phases_without_a_capture_warns(tmp_path):
    with pytest.warns(UserWarning, match="saves nothing without a capture"), checkpointing(tmp_path, at_phases=True):
        fit()
    assert len(checkpoints(tmp_path)) == 0


def test_keras_is_unpatched_after_the_block(tmp_path):
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    def known():
        return [
            keras.Model.fit,
            keras.Model.evaluate,
            keras.callbacks.CallbackList.on_epoch_end,
            TFEpochIterator.reset,
            TFEpochIterator._enumerate_iterator,
        ]

    before = known()
    with pytest.raises(ZeroDivisionError), checkpointing(tmp_path):
        assert known() != before
        1 / 0  # noqa: B018
    assert known() == before


def test_a_different_model_or_dataset_is_an_error(tmp_path):
    with checkpointing(tmp_path, every=5):
        fit()
    first = tmp_path / "tpunb-5"
    with pytest.raises(TpunbError, match=r"was saved with a different model: .* of its weights"), resume(first):
        fit(made=model())
    with pytest.raises(TpunbError, match="tpunb-5 was saved with a different dataset"), resume(first):
        fit(rows().batch(BATCH).shuffle(3, seed=1))
    with pytest.raises(TpunbError, match="the epoch has no step 5"), resume(first):
        fit(rows().batch(BATCH).take(3))
    turns = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    turns.compile("sgd", "mse", steps_per_execution=3)
    with pytest.raises(TpunbError, match="step 5 is not the first of a turn"), resume(first):
        fit(made=turns)
    with pytest.raises(TpunbError, match="the block called no fit"), resume(first):
        pass


def test_data_without_a_readable_graph_are_not_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_data, "graph_or_none", lambda dataset: None)
    with pytest.warns(UserWarning, match="graph of the data cannot be read"), checkpointing(tmp_path):
        fit()
    assert not checkpoints(tmp_path)[0].exact


def test_large_arrays_are_not_copied_where_memory_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "MAX_ARRAY_BYTES", 1000)
    monkeypatch.setattr(graph, "_COPIES", 1e15)
    with pytest.warns(UserWarning, match=r"arrays of 0 MB, .*\(give the arrays to fit"), checkpointing(tmp_path):
        fit()
    assert not checkpoints(tmp_path)[0].exact
    monkeypatch.setattr(graph, "MAX_ARRAY_BYTES", 10_000)
    with checkpointing(tmp_path / "small"):
        fit()
    assert checkpoints(tmp_path / "small")[0].exact


def test_only_checkpoints_of_tpunb_can_be_resumed(tmp_path):
    made = small()
    made.save_weights(tmp_path / "x.weights.h5")
    (other,) = checkpoints(tmp_path)
    with (
        pytest.raises(TpunbError, match="of keras without data position and random state"),
        resume(other),
    ):
        pass
    with pytest.raises(TpunbError, match="it is not a checkpoint of tpunb"), resume(tmp_path):
        pass


def test_a_killed_process_leaves_no_incomplete_checkpoint(runs):
    found = checkpoints(runs[0] / "killed")
    assert [one.step for one in found] == [6]
    assert list(found.skipped.values()) == ["was still being written"]
    assert len(resumed_fits.resumed(found[0], "plain")["losses"]) == 30


def test_a_full_disk_does_not_end_the_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    made = reused(small)
    monkeypatch.setattr(snapshot, "write_arrays", full)
    warned = pytest.warns(UserWarning, match=r"step 4 was not saved, and training continues: .*No space")
    with warned, checkpointing(tmp_path, every=4) as saved:
        fit(made=made)
    assert int(made.optimizer.iterations) == 12
    assert saved.saved == []
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_arrays_keep_their_bits(tmp_path):
    halves = np.asarray(tf.cast(tf.range(5), tf.bfloat16))
    snapshot.write_arrays(tmp_path, {"weights": [halves, np.arange(3)]})
    back = snapshot.read_arrays(tmp_path, {"weights": [halves * 0, np.arange(3) * 0]})["weights"]
    assert back[0].dtype == halves.dtype
    np.testing.assert_array_equal(back[0].astype("f"), np.arange(5))
    with pytest.raises(TpunbError, match=r"a variable of its weights was uint16 \(5,\), now float16 \(5,\)"):
        snapshot.read_arrays(tmp_path, {"weights": [np.zeros(5, "float16"), np.arange(3)]})


def test_wrong_arguments_are_errors(tmp_path):
    with pytest.raises(ValueError, match="every parameter of checkpointing must be an int of 1 or more"):
        checkpointing(tmp_path, every=0).__enter__()
    with pytest.raises(ValueError, match="keep parameter of checkpointing must be an int of 1 or more"):
        checkpointing(tmp_path, keep=0).__enter__()
    with pytest.raises(TypeError, match="at_phases"):
        checkpointing(tmp_path, at_phases=3).__enter__()
    with pytest.raises(TpunbError, match="is not on this machine"):
        checkpointing("gs://bucket/x").__enter__()
    shutil.rmtree(tmp_path)
    with pytest.raises(TpunbError, match="it is not a checkpoint of tpunb"):
        resume(tmp_path).__enter__()


def test_a_capture_accounts_for_saving(tmp_path):
    spans = []
    with tp.capture(schedule=Schedule.ticks()) as run, signals.spent.connect(spans.append):
        with checkpointing(tmp_path, every=4):
            fit()
        status = run.status
    saves = [span.end_ns - span.start_ns for span in spans if span.account == "checkpoint save"]
    assert len(saves) == 4  # the end of the fit, too
    assert status.saving == pytest.approx(sum(saves) / 1e9)
    assert status.overhead > 0


def test_later_epochs_keep_their_order_if_the_epoch_end_was_prefetched(tmp_path):
    def losses():
        keras.utils.set_random_seed(3)
        tf.random.set_seed(None)
        data = rows().shuffle(20, seed=3).batch(BATCH).prefetch(4)
        return reused(small).fit(data, epochs=4, verbose=0).history["loss"]

    with checkpointing(tmp_path, every=1) as saved:
        whole = losses()
    for step in (11, 23):
        with resume(saved.saved[step - 1]):
            assert losses() == whole  # with the history of the epochs before


def test_a_shuffle_in_a_later_part_of_concatenate_is_not_exact(tmp_path):
    data = rows().batch(BATCH).concatenate(rows().shuffle(9, seed=5).batch(BATCH))
    with pytest.warns(UserWarning, match=r"concatenate:3: it contains a shuffle"), checkpointing(tmp_path):
        fit(data)
    with warnings.catch_warnings(), checkpointing(tmp_path / "first", every=5):
        warnings.filterwarnings("error", "the position")
        fit(rows().shuffle(9, seed=5).batch(BATCH).concatenate(rows().batch(BATCH)))


def test_a_model_with_its_own_random_ops_is_not_exact(tmp_path):
    class Random(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x)) if training else x

    model = keras.Sequential([keras.Input((4,)), Random(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((16, 4), "f"), np.ones((16, 1), "f"))).batch(4)
    with checkpointing(tmp_path, every=2), pytest.warns(UserWarning, match="RandomStandardNormal") as told:
        model.fit(data, verbose=0)
    assert sum("RandomStandardNormal" in str(one.message) for one in told) == 1
    first = checkpoints(tmp_path)[0]
    assert not first.exact
    assert re.search(r"RandomStandardNormal in \S+/random\S*, whose state cannot be saved", first.reason)


def test_predictions_in_another_thread_are_ignored(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    begun, over = threading.Event(), threading.Event()

    def predict():
        while not over.is_set():
            other.predict(np.ones((4, 4), "f"), verbose=0)
            begun.set()

    beside = threading.Thread(target=predict)
    data = tf.data.Dataset.from_tensor_slices((np.ones((80, 4), "f"), np.ones((80, 1), "f"))).batch(2)
    with checkpointing(tmp_path, every=4) as saving:
        beside.start()
        try:
            assert begun.wait(60)
            model.fit(data, epochs=2, verbose=0)
        finally:
            over.set()
            beside.join()
    assert [saved.step for saved in saving.saved] == [*range(4, 80, 4), 80]
