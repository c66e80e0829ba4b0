"""Training loops without marks whose steps are hard to find: names that mislead, and uncommon orders of calls.

A program is a function without arguments; it returns what is true of it: the number of its training steps, and of
batches that it evaluates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

Truth = dict[str, Any]
PROGRAMS: dict[str, Callable[[], Truth]] = {}
NAMES = (
    *("train_step", "variational_inference_step", "retrieval_step", "latest_step", "contest", "validate_and_update"),
    *("next_token_prediction_step", "random_features_step", "reduce_loss_step", "threefry_augmented_step"),
    *("convert_inputs_step", "iota_embedding_step", "predictor_corrector_step", "test_time_training_step"),
    *("eval_free_step", "invalidate_cache_step", "greatest_descent_step", "squeeze_and_excite_step"),
)
"""Names of a training step, most of which hold a word that stands for something else."""
HARDEST_NAMES = ("test_time_training_step", "predictor_corrector_step", "validate_and_update", "evaluate_policy")
"""Names of a training step, for the other frameworks."""
EVALUATIONS = ("quality", "forward", "run_batch", "score", "step")
"""Names of an evaluation that do not say so."""


def program(train: Callable[[], Truth]) -> Callable[[], Truth]:
    """Register a program."""
    PROGRAMS[train.__name__] = train
    return train


def jax_step_named(name: str) -> Truth:
    """Take steps by a compiled function of this name."""
    import jax
    import jax.numpy as jnp

    def step(weights: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)
        return weights - 0.1 * gradient, loss

    step.__name__ = step.__qualname__ = name
    compiled, weights = jax.jit(step), jnp.ones((256, 256))
    for _ in range(60):
        weights, loss = compiled(weights, jnp.ones((256, 256)))
        float(loss)
        time.sleep(0.002)
    return {"steps": 60, "evaluations": 0}


PROGRAMS |= {f"jax_{name}": partial(jax_step_named, name) for name in NAMES}


def jax_evaluation_named(name: str) -> Truth:
    """Evaluate after each epoch by a compiled function of this name."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def update(weights: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)
        return weights - 0.1 * gradient, loss

    def measure(weights: Any, batch: Any) -> Any:
        return jnp.mean((batch @ weights) ** 2)

    measure.__name__ = measure.__qualname__ = name
    compiled, weights, batch = jax.jit(measure), jnp.ones((256, 256)), jnp.ones((256, 256))
    for _ in range(4):
        for _ in range(20):
            weights, loss = update(weights, batch)
            float(loss)
        for _ in range(5):
            float(compiled(weights, batch))
    return {"steps": 80, "evaluations": 20}


PROGRAMS |= {f"jax_measures_by_{name}": partial(jax_evaluation_named, name) for name in EVALUATIONS}


def _torch() -> tuple[Any, Any, Any, Any]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    data = torch.utils.data.DataLoader(torch.randn(480, 64), batch_size=16)
    return torch, model, torch.optim.SGD(model.parameters(), 0.01), data


@program
def torch_overfits_one_batch() -> Truth:
    """Train on the first batch again and again."""
    _, model, optimizer, data = _torch()
    batch = next(iter(data))
    for _ in range(200):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return {"steps": 200, "evaluations": 0}


@program
def torch_leaves_gradients_before_an_evaluation() -> Truth:
    """Accumulate gradients of four batches, of which an epoch leaves two, and evaluate after it."""
    torch, model, optimizer, data = _torch()
    updates = 0
    for _ in range(5):
        model.train()
        for number, batch in enumerate(data):
            model(batch).square().mean().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
        model.eval()
        with torch.no_grad():
            sum(model(batch).sum().item() for batch in data)
    return {"steps": updates, "evaluations": 5 * len(data)}


@program
def torch_trains_in_a_thread() -> Truth:
    """Train in a thread of the program, without an optimizer."""
    from threading import Thread

    torch, model, _, data = _torch()

    def train() -> None:
        for _ in range(3):
            for batch in data:
                model.zero_grad()
                model(batch).square().mean().backward()
                with torch.no_grad():
                    for weights in model.parameters():
                        weights -= 0.01 * weights.grad

    thread = Thread(target=train)
    thread.start()
    thread.join()
    return {"steps": 3 * len(data), "evaluations": 0}


@program
def torch_reads_statistics_first() -> Truth:
    """Pass over the data without a model before the training."""
    _, model, optimizer, data = _torch()
    mean = sum(batch.mean().item() for batch in data) / len(data)
    for _ in range(3):
        for batch in data:
            optimizer.zero_grad()
            model(batch - mean).square().mean().backward()
            optimizer.step()
    return {"steps": 3 * len(data), "evaluations": 0}


@program
def torch_trains_two_networks() -> Truth:
    """Update a second network in each step, as GANs do."""
    torch, model, optimizer, data = _torch()
    second = torch.nn.Linear(64, 64)
    other = torch.optim.SGD(second.parameters(), 0.01)
    for _ in range(3):
        for batch in data:
            other.zero_grad()
            model(second(batch)).square().mean().backward()
            other.step()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return {"steps": 3 * len(data), "evaluations": 0}


def torch_step_named(name: str) -> Truth:
    """Take steps by a function of this name, of a model of this name."""
    torch, model, optimizer, data = _torch()

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    step.__name__ = step.__qualname__ = name
    model.__class__ = type(name, (torch.nn.Sequential,), {})
    for _ in range(4):
        for batch in data:
            step(batch)
    return {"steps": 4 * len(data), "evaluations": 0}


def torch_evaluation_named(name: str) -> Truth:
    """Evaluate after each epoch by a function of this name, without a mode of the model."""
    torch, model, optimizer, data = _torch()

    @torch.no_grad()
    def measure(batch: Any) -> float:
        return model(batch).square().mean().item()

    measure.__name__ = measure.__qualname__ = name
    for _ in range(4):
        for batch in data:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        for batch in data:
            measure(batch)
    return {"steps": 4 * len(data), "evaluations": 4 * len(data)}


def _tensorflow() -> tuple[Any, Any, Any]:
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    return tf, model, tf.data.Dataset.from_tensor_slices(tf.random.normal((480, 64))).batch(16)


def _compiled(name: str, function: Callable[[Any], Any]) -> Any:
    import tensorflow as tf

    function.__name__ = function.__qualname__ = name
    return tf.function(function)


def _descent(model: Any) -> Callable[[Any], Any]:
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    def descend(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return descend


@program
def tensorflow_fetches_within_its_step() -> Truth:
    """Take steps by a function that fetches its batch, as Orbit does, and evaluate by another."""
    tf, model, data = _tensorflow()
    descend, mean = _descent(model), tf.keras.metrics.Mean()

    @tf.function
    def train_step(batches: Any) -> None:
        descend(next(batches))

    @tf.function
    def eval_step(batches: Any) -> None:
        mean.update_state(model(next(batches)))

    batches = iter(data.repeat())
    for _ in range(4):
        for _ in range(len(data)):
            train_step(batches)
        held = iter(data)
        for _ in range(len(data)):
            eval_step(held)
        mean.result().numpy()
    return {"steps": 4 * len(data), "evaluations": 4 * len(data)}


def tensorflow_step_named(name: str) -> Truth:
    """Take steps by a compiled function of this name."""
    _, model, data = _tensorflow()
    step = _compiled(name, _descent(model))
    for _ in range(4):
        for batch in data:
            float(step(batch))
    return {"steps": 4 * len(data), "evaluations": 0}


def tensorflow_evaluation_named(name: str) -> Truth:
    """Evaluate after each epoch by a compiled function of this name."""
    tf, model, data = _tensorflow()
    step = _compiled("descend", _descent(model))
    measure = _compiled(name, lambda batch: tf.reduce_mean(model(batch, training=False) ** 2))
    for _ in range(4):
        for batch in data:
            float(step(batch))
        for batch in data:
            float(measure(batch))
    return {"steps": 4 * len(data), "evaluations": 4 * len(data)}


def keras_model_named(name: str) -> Truth:
    """Fit a model of this name, by a step of its own."""
    import keras

    tf, inner, data = _tensorflow()

    class Named(keras.Model):
        def __init__(self) -> None:
            super().__init__(name=name)
            self.inner = inner

        def call(self, batch: Any, training: bool = False) -> Any:
            return self.inner(batch)

        def train_step(self, batch: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(batch, training=True) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Named()
    model.compile("sgd")
    model.fit(data, epochs=4, verbose=0)
    return {"steps": 4 * len(data), "evaluations": 0}


for hardest in HARDEST_NAMES:
    PROGRAMS |= {
        f"torch_{hardest}": partial(torch_step_named, hardest),
        f"tensorflow_{hardest}": partial(tensorflow_step_named, hardest),
    }
PROGRAMS["keras_validation_model"] = partial(keras_model_named, "validation_model")
for neutral in ("forward", "run_batch"):
    PROGRAMS |= {
        f"torch_measures_by_{neutral}": partial(torch_evaluation_named, neutral),
        f"tensorflow_measures_by_{neutral}": partial(tensorflow_evaluation_named, neutral),
    }
