"""Programs whose checkpoints were exact by mistake: each is resumed bit for bit, or its checkpoints say why not."""

import numpy as np
import pytest
from exact_fits import BATCH, refuses, resumes, rows, sampled, saved, small, trained, twice
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import restore, resume, save
from tpunb.errors import TpunbError
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.results import Tuning

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live


def loose(data, *, deterministic=False, fusion=True):
    options = tf.data.Options()
    options.deterministic = deterministic
    options.experimental_optimization.shuffle_and_repeat_fusion = fusion
    return data.with_options(options)


def checked(x, y):
    return tf.debugging.check_numerics(x, "not a number"), y


def by_numpy(x, y):
    return tf.ensure_shape(tf.numpy_function(np.negative, [x], "float32", stateful=False), (3,)), y


@pytest.mark.parametrize("function", [checked, by_numpy])
def test_functions_that_compute_from_their_input_alone_resume_exactly(tmp_path, function):
    resumes(tmp_path, lambda: trained(rows().map(function).shuffle(9).batch(BATCH).prefetch(2)))


def test_a_check_of_numbers_does_not_hide_a_variable(tmp_path):
    scale = tf.Variable(2.0)
    data = rows().map(checked).map(lambda x, y: (x * scale, y)).batch(BATCH)
    refuses(tmp_path, lambda: trained(data, epochs=2), "map:2: it reads a variable, whose value is not saved")


def augmented(data, *layers, **more):
    """Return data that pass through layers of random augmentation, as images of 3 x 1 pixels."""

    def augment(x, y):
        image = tf.reshape(x, (3, 1, 1))
        for layer in layers:
            image = layer(image, training=True)
        return tf.reshape(image, (3,)), y

    return data.map(augment, **more)


def flips():
    return [keras.layers.RandomFlip("vertical", seed=2), keras.layers.GaussianNoise(0.1, seed=3)]


DRAWING = {
    "plain": lambda: augmented(rows(), *flips()).batch(BATCH),
    "prefetched": lambda: augmented(rows(), *flips()).batch(BATCH).prefetch(3),
    "two maps": lambda: augmented(augmented(rows(), *flips()), keras.layers.RandomBrightness(0.2, seed=1)).batch(BATCH),
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_layers_in_a_sequential_map_resume_exactly(tmp_path, name):
    resumes(tmp_path, lambda: trained(DRAWING[name]()))


def test_random_layers_in_repeated_data_resume_exactly(tmp_path):
    resumes(tmp_path, lambda: trained(augmented(rows(), *flips()).repeat().batch(BATCH).prefetch(2), steps_per_epoch=5))


def test_batches_that_draw_are_never_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setattr("tpunb.training.positions.LARGE", 0)
    resumes(tmp_path, lambda: trained(DRAWING["prefetched"]()))


def test_a_random_layer_in_parallel_calls_is_named_with_a_way_out(tmp_path):
    data = augmented(rows(), *flips(), num_parallel_calls=2).batch(BATCH)
    refuses(
        tmp_path, lambda: trained(data, epochs=2), "changes a variable in parallel calls (put random layers into the"
    )
    assert checkpoints(tmp_path)[0].reason.startswith("map:1(augment): random_flip")


@pytest.mark.parametrize("above", [lambda data: data.take(3), lambda data: data.cache(), lambda data: data.shuffle(3)])
def test_random_layers_below_other_stages_are_refused(tmp_path, above):
    data = above(augmented(rows(), *flips()).batch(BATCH).prefetch(2))
    refuses(
        tmp_path,
        lambda: trained(data, epochs=2),
        "changes a variable (put random layers into the model",
        every=2,
    )


def test_a_seed_generator_that_other_data_share_makes_later_checkpoints_inexact(tmp_path):
    layers = flips()

    def cell():
        other = augmented(rows(8), *layers).batch(BATCH)
        return trained(augmented(rows(), *layers).batch(BATCH), epochs=2, validation_data=other)

    saved(tmp_path, cell)
    assert all(not one.exact for one in checkpoints(tmp_path)), [one.reason for one in checkpoints(tmp_path)]


def test_tuning_leaves_data_that_draw_unchanged():
    assert {each.verdict for each in Pipeline(DRAWING["prefetched"]()).parameters} <= {"locked"}


def chosen():
    parts = [rows().shuffle(9, seed=1).repeat(10), rows().repeat(10)]
    return tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(2).repeat(16))


REFUSED = {
    "take:3: it may not read repeat:2 to its end, which begins shuffle:1 again": lambda: (
        rows().shuffle(9, seed=3).repeat().take(48).batch(BATCH)
    ),
    "take:3: it may not read cache:2 to its end": lambda: rows().shuffle(9).cache().take(28).batch(BATCH),
    "choose_from_datasets:3: it may not read 1/repeat:2 to its end": lambda: chosen().batch(BATCH),
    "with these options, how often its shuffles begin is unknown": lambda: loose(
        rows(16).shuffle(9).repeat(2).batch(BATCH), deterministic=True, fusion=False
    ),
    "map:1(twice): the order of its elements": lambda: loose(rows().map(twice, num_parallel_calls=2).batch(BATCH)),
    "map:1(twice): the order": lambda: (
        rows().map(twice, num_parallel_calls=2, deterministic=False).shuffle(9, seed=1).batch(BATCH)
    ),
    "interleave:1: the order of its elements": lambda: loose(
        tf.data.Dataset.range(4).interleave(lambda at: rows().take(8), num_parallel_calls=2).batch(BATCH)
    ),
    "from_generator:0: the Python generator <lambda> feeds it, and cannot": lambda: (
        generated().cache().shuffle(99).batch(BATCH)
    ),
}


def generated():
    spec = (tf.TensorSpec((3,)), tf.TensorSpec((1,)))
    dice = np.random.default_rng()
    return tf.data.Dataset.from_generator(
        lambda: ((dice.normal(size=3), dice.normal(size=1)) for _ in range(32)), output_signature=spec
    )


@pytest.mark.parametrize("reason", REFUSED)
def test_a_stage_that_no_position_restores_makes_a_checkpoint_inexact(tmp_path, reason):
    refuses(tmp_path, lambda: trained(REFUSED[reason](), epochs=2), reason)


def test_a_shuffle_above_repeat_or_cache_resumes_exactly(tmp_path):
    resumes(tmp_path, lambda: trained(rows(16).repeat(2).cache().shuffle(9, seed=3).batch(8)))
    loosened = loose(rows().batch(8).prefetch(2), deterministic=True)
    resumes(tmp_path / "options", lambda: trained(loosened.map(twice, num_parallel_calls=2)))


def test_sampling_without_a_seed_gets_one_that_is_saved(tmp_path):
    losses, _, _ = trained(sampled(), epochs=2)
    assert losses[:16] != losses[16:]
    resumes(tmp_path, lambda: trained(sampled(), epochs=2), every=5)
    once = [saved(tmp_path / name, lambda: trained(sampled(), epochs=1), every=16) for name in "ab"]
    assert once[0] != once[1]


def test_endless_samples_of_shuffles_resume_exactly(tmp_path):
    def data():
        parts = [rows().shuffle(9).repeat(), rows().map(twice).shuffle(9, seed=3).repeat()]
        return tf.data.Dataset.sample_from_datasets(parts).batch(BATCH)

    resumes(tmp_path, lambda: trained(data(), steps_per_epoch=12, epochs=2), every=5)


def halving():
    class Halving(keras.callbacks.ReduceLROnPlateau):
        """A subclass of Keras' with state of its own."""

        def __init__(self):
            super().__init__(monitor="loss", patience=1, factor=0.5, min_delta=1e9)
            self.scale = np.float32(1)
            self.dice, self.draws = np.random.default_rng(3), keras.random.SeedGenerator(4)
            self.seen = []

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.seen.append(float(logs["loss"]))
            self.scale *= np.float32(self.dice.uniform(0.8, 1)) * np.float32(keras.random.uniform((), seed=self.draws))
            self.model.layers[-1].kernel.assign(self.model.layers[-1].kernel * self.scale * len(self.seen))

    return Halving()


def swinging():
    class Swinging(keras.callbacks.Callback):
        """A callback that gives and takes its state."""

        def __init__(self):
            super().__init__()
            self.turn = iter(range(99))
            self.at = 0

        def on_train_batch_end(self, batch, logs=None):
            self.at += 1
            self.model.optimizer.learning_rate = 0.01 / self.at

        def get_state(self):
            return {"at": self.at, "name": ("swing", None)}

        def set_state(self, state):
            self.at = state["at"]

    return Swinging()


@pytest.mark.parametrize("callback", [halving, swinging])
def test_state_of_callbacks_is_restored(tmp_path, callback):
    resumes(tmp_path, lambda: trained(rows().batch(BATCH), callbacks=[callback()]))


def test_the_best_weights_of_early_stopping_are_restored(tmp_path):
    def cell():
        stops = keras.callbacks.EarlyStopping("loss", patience=3, min_delta=1e9, restore_best_weights=True)
        return trained(rows().batch(BATCH), epochs=5, callbacks=[stops])

    resumes(tmp_path, cell, every=6)


def measuring():
    class Measuring(keras.callbacks.Callback):
        """A callback with state that cannot be saved."""

        def __init__(self):
            super().__init__()
            self.mean = keras.metrics.Mean()
            self.called = twice
            self.data = rows().batch(2)

    return Measuring()


MEASURING = (
    "the attribute Measuring.mean (Mean) cannot be saved (keep numbers, text, arrays or random generators there, or "
    "give the callback get_state and set_state)"
)


def test_a_callback_with_other_state_makes_a_checkpoint_inexact(tmp_path):
    refuses(tmp_path, lambda: trained(rows().batch(BATCH), callbacks=[measuring()]), MEASURING)
    shown = checkpoints(tmp_path)[0]
    assert "data position" in shown.holds
    with pytest.raises(TpunbError, match=r"cannot be resumed exactly: .*Measuring\.mean"), resume(shown):
        pass
    losses, *_ = trained(rows().batch(BATCH), callbacks=[measuring()])
    with resume(shown, exact=False):
        assert trained(rows().batch(BATCH), callbacks=[measuring()])[0] == losses[shown.step :]


def eager(draw, seed):
    """Train an eager model with a layer that draws with TensorFlow's own random operations."""

    class Noisy(keras.layers.Layer):
        def call(self, x, training=False):
            return x + draw() if training else x

    tf.random.set_seed(seed)
    return trained(rows(16).batch(BATCH), small(Noisy(), run_eagerly=True), epochs=2)


def test_eager_seeds_are_saved(tmp_path):
    resumes(tmp_path, lambda: eager(lambda: tf.random.normal((3,)), 5), every=2)


@pytest.mark.parametrize("draw", ["no seed", "its own seed", "generator"])
def test_other_eager_random_numbers_make_a_checkpoint_inexact(tmp_path, draw):
    dice = tf.random.Generator.from_seed(1)
    draws = {
        "no seed": (lambda: tf.random.normal((3,)), None, "an eager step draws random numbers"),
        "its own seed": (lambda: tf.random.normal((3,), seed=2), 5, "an eager step draws random numbers"),
        "generator": (lambda: dice.normal((3,)), 5, "RngReadAndSkip, whose state cannot be saved"),
    }
    function, seed, reason = draws[draw]
    refuses(tmp_path, lambda: eager(function, seed), reason, every=2)


def test_an_eager_step_that_changes_another_variable_makes_a_checkpoint_inexact(tmp_path):
    count = tf.Variable(0.0)
    refuses(tmp_path, lambda: eager(lambda: count.assign_add(1.0), 5), "changes a variable that is not", every=2)


class Watching:
    """A mixin for callbacks that read the logs of an epoch."""

    def on_epoch_end(self, epoch, logs=None):
        pass


READERS = {
    "; EarlyStopping may use": lambda: keras.callbacks.EarlyStopping("val_loss", patience=9),
    "; ReduceLROnPlateau may use": lambda: keras.callbacks.ReduceLROnPlateau("val_loss", patience=9),
    "; LambdaCallback.on_epoch_end may use": lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None),
    "; Reader.on_epoch_end may use": lambda: type("Reader", (Watching, keras.callbacks.Callback), {})(),
}


@pytest.mark.parametrize("reason", READERS)
def test_validation_that_varies_makes_a_checkpoint_inexact_if_a_callback_may_use_it(tmp_path, reason):
    def cell():
        return trained(rows().batch(8), epochs=2, validation_data=generated().batch(8), callbacks=[READERS[reason]()])

    refuses(tmp_path, cell, reason)
    assert checkpoints(tmp_path)[0].reason.startswith(
        "validation_data: from_generator:0: the Python generator <lambda>"
    )


def test_validation_that_varies_leaves_the_training_exact(tmp_path):
    stops = keras.callbacks.EarlyStopping("loss", patience=9)

    def cell():
        return trained(rows().batch(8), epochs=3, validation_data=generated().batch(8), callbacks=[stops])

    warned = pytest.warns(UserWarning, match="exact but for the results of validation: validation_data: from_generator")
    with warned, checkpointing(tmp_path, every=3):
        losses, history, weights = cell()
    for one in checkpoints(tmp_path)[:2]:
        assert one.exact
        with resume(one) as resumed:
            later, ended, final = cell()
        assert (later, final) == (losses[one.step :], weights)
        assert ended["loss"] == history["loss"][-len(ended["loss"]) :]
        assert "; results of validation may differ (validation_data: from_generator:0: the Python gen" in str(resumed)


def test_validation_of_the_same_elements_resumes_exactly(tmp_path):
    held = rows().shuffle(9, seed=1, reshuffle_each_iteration=False).batch(8)
    resumes(tmp_path, lambda: trained(rows().batch(8), validation_data=held, validation_steps=4))


def test_each_validation_begins_at_the_first_batch(tmp_path):
    held = rows().batch(8).repeat()
    resumes(tmp_path, lambda: trained(rows().batch(8), validation_data=held, validation_steps=3))


@pytest.mark.parametrize("data", ["no seed", "generator", "not in order"])
def test_an_iterator_that_is_not_restored_is_saved_as_inexact(tmp_path, data):
    made = {
        "no seed": (lambda: rows().shuffle(9), "shuffle:1: it has no seed"),
        "generator": (lambda: generated().cache(), "from_generator:0: the Python generator <lambda> feeds it"),
        "not in order": (lambda: loose(rows().map(twice)), "map:1(twice): the order of its elements"),
    }
    function, reason = made[data]
    batches = iter(function())
    next(batches)
    with pytest.warns(UserWarning, match="resuming is not exact") as caught:
        one = save(tmp_path, 1, batches=batches)
    assert not one.exact
    assert reason in str(caught[0].message)
    with pytest.raises(TpunbError, match="cannot be resumed exactly"):
        restore(one, batches=iter(function()))


def test_an_iterator_that_repeats_a_seeded_shuffle_is_exact(tmp_path):
    def data():
        return iter(rows(8).shuffle(5, seed=1).repeat(3).batch(3))

    batches = data()
    for _ in range(4):
        next(batches)
    one = save(tmp_path, 4, batches=batches)
    assert one.exact
    again = data()
    restore(one, batches=again)
    np.testing.assert_array_equal(
        [x.numpy().tolist() for x, _ in again], [x.numpy().tolist() for x, _ in batches], strict=True
    )


@pytest.mark.parametrize("seed", [3, None])
def test_a_shuffle_below_a_shuffle_resumes_exactly(tmp_path, seed):
    def data():
        files = tf.data.Dataset.range(8).shuffle(8, seed=seed)
        return files.interleave(lambda at: rows().skip(4 * at).take(4), cycle_length=2).shuffle(5, seed=1).batch(BATCH)

    resumes(tmp_path, lambda: trained(data()))


def test_samples_below_a_shuffle_resume_exactly(tmp_path):
    resumes(tmp_path, lambda: trained(sampled().unbatch().shuffle(9).batch(BATCH), epochs=2), every=5)


def looked(*, before=1, during=False):
    data = rows().shuffle(9, seed=3).batch(BATCH)
    for _ in data.take(before):
        pass
    for _ in range(before):
        next(iter(data))
    looking = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: next(iter(data)))
    return trained(data, callbacks=[looking] * during)


def test_data_that_are_looked_at_before_the_fit_resume_exactly(tmp_path):
    resumes(tmp_path, looked)
    for step, before, times in ((3, 0, 0), (12, 2, 3)):
        problem = f"its shuffle had begun 2 times before the fit, now {times}"
        with pytest.raises(TpunbError, match=problem), resume(tmp_path / f"tpunb-{step}"):
            looked(before=before)


def test_data_that_a_callback_begins_too_are_inexact_from_then_on(tmp_path):
    whole, *_ = saved(tmp_path, lambda: looked(during=True))
    found = checkpoints(tmp_path)
    assert [one.exact for one in found] == [True, True] + [False] * (len(found) - 2)
    assert "another iterator began the seeded shuffle" in found[-1].reason
    with resume(found[1]):
        later, *_ = looked(during=True)
    assert later == whole[6:]


def adapted(seed):
    normal = keras.layers.Normalization()
    normal.adapt(rows().map(lambda x, y: x).shuffle(32, seed=seed).batch(BATCH).take(3))
    return trained(rows().batch(BATCH), small(normal))


def split(seed):
    x = np.random.default_rng(7).normal(size=(32, 3)).astype("f")
    x = x[np.random.default_rng(seed).permutation(32)]
    return trained(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(9).batch(BATCH))


@pytest.mark.parametrize(("program", "part"), [(adapted, "model"), (split, "dataset")])
def test_a_program_with_other_constants_is_an_error(tmp_path, program, part):
    resumes(tmp_path / "same", lambda: program(1))
    with checkpointing(tmp_path, every=3):
        program(1)
    for step in (3, 8, 15) if part == "dataset" else (3, 15):
        one = checkpoints(tmp_path).before(step)
        with pytest.raises(TpunbError, match=f"was saved with a different {part}: its constants differ"), resume(one):
            program(2)


def test_tuned_data_continue_a_shuffle_that_has_begun():
    def orders(apply):
        data = rows().map(twice).shuffle(9, seed=3).batch(BATCH)
        for _ in range(2):
            next(iter(data))
        if apply:
            data = Tuning((), {"map:1(twice) parallel calls": 2}).apply(data)
        return [[x.numpy().tolist() for x, _ in data] for _ in range(2)]

    assert orders(True) == orders(False)


def test_a_callback_that_unfreezes_makes_later_checkpoints_inexact(tmp_path):
    def cell():
        frozen = keras.layers.Dense(2, kernel_initializer="ones", trainable=False)

        def unfreeze(epoch, logs):
            frozen.trainable = epoch > 0  # the compiled step does not notice it

        callback = keras.callbacks.LambdaCallback(on_epoch_begin=unfreeze)
        return trained(rows().batch(BATCH), small(frozen), callbacks=[callback])

    whole, *_ = saved(tmp_path, cell, every=4)
    by_step = {one.step: one for one in checkpoints(tmp_path)}
    assert [step for step, one in by_step.items() if one.exact] == [4, 8]
    assert "a callback changed which variables are trainable" in by_step[12].reason
    with resume(by_step[4]):
        assert cell()[0] == whole[4:]
    with pytest.raises(TpunbError, match="a callback changed which variables are trainable"), resume(by_step[8]):
        cell()
