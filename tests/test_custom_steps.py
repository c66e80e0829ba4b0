"""Models with a step of their own, several optimizers or no ``call``: resumed bit for bit."""

import warnings

import pytest
from exact_fits import BATCH, resumes, rows, small, trained
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.training.state import OPTIMIZER, optimizers_of, variables_by_part

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live


def part(units, *layers):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, kernel_initializer="ones"), *layers])


def adversarial():
    class Adversarial(keras.Model):
        """Two parts with an optimizer each, and no ``call``."""

        def __init__(self):
            super().__init__()
            self.generator, self.critic = part(3), part(1, keras.layers.Dropout(0.2))
            self.mean, self.seeds = keras.metrics.Mean("loss"), keras.random.SeedGenerator(3)

        def compile(self, first, second):
            super().compile()
            self.first, self.second = first, second

        @property
        def metrics(self):
            return [self.mean]

        def train_step(self, data):
            x, _ = data
            noise = keras.random.normal(tf.shape(x), seed=self.seeds)
            for trained_part, optimizer in ((self.critic, self.second), (self.generator, self.first)):
                with tf.GradientTape() as tape:
                    made = self.critic(self.generator(noise), training=True)
                    loss = tf.reduce_mean((made - self.critic(x, training=True)) ** 2)
                variables = trained_part.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            self.mean.update_state(loss)
            return {"loss": self.mean.result()}

    made = Adversarial()
    made.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    return made


def outer():
    class Outer(keras.Model):
        """A model that trains a part of another one, and has no ``call``."""

        def __init__(self):
            super().__init__()
            self.inner = small(keras.layers.Dense(2, kernel_initializer="ones"))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.inner(x, training=True) - y) ** 2)
            variables = self.inner.trainable_variables[:1]
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    made = Outer()
    made.compile("adam")
    return made


@pytest.mark.parametrize("made", [adversarial, outer])
def test_a_model_with_a_step_of_its_own_resumes_exactly(tmp_path, made):
    resumes(tmp_path, lambda: trained(rows().shuffle(9).batch(BATCH), made()))


def test_every_optimizer_belongs_to_the_state():
    made = adversarial()
    assert optimizers_of(made) == [made.optimizer, made.first, made.second]
    assert len(variables_by_part(made)[OPTIMIZER]) == 3 * 2  # iteration and learning rate
    assert optimizers_of(small()) != []
    assert optimizers_of(keras.layers.Dense(1)) == []


def test_a_model_that_is_compiled_again_during_a_fit_is_inexact_from_then_on(tmp_path):
    def cell():
        layer = keras.layers.Dense(2, kernel_initializer="ones")
        layer.trainable = False
        model = small(layer)

        def unfreeze(epoch, logs):
            if epoch == 1:
                layer.trainable = True
                model.compile("adam", "mse")
                model.make_train_function()

        unfreezing = keras.callbacks.LambdaCallback(on_epoch_begin=unfreeze)
        return trained(rows().batch(BATCH), model, callbacks=[unfreezing])

    with warnings.catch_warnings(), checkpointing(tmp_path, every=5):
        warnings.simplefilter("ignore")
        losses, _, weights = cell()
    found = checkpoints(tmp_path)
    assert [one.exact for one in found if one.step < 8] == [True]
    assert {one.reason for one in found if one.step > 8} == {
        "the model was compiled again during the fit (compile it between two fits instead)"
    }
    with resume(found[0]):
        later, _, again = cell()
    assert (later, again) == (losses[5:], weights)
