"""Libraries that train with TensorFlow: a step, or an evaluated batch, is a call of a function of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from programs.evaluated import WASTE, Counts, program
from programs.libraries.jax_libraries import BATCH, CLASSES, EVERY, STEPS, examples, save


@program("orbit")
def orbit_controller(folder: Path) -> Counts:
    """Train and evaluate by Orbit's controller, as in its example of a single task."""
    import orbit
    import tensorflow as tf
    import tf_keras

    rows, labels = examples()
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(BATCH)
    model = tf_keras.Sequential([tf_keras.layers.Dense(64, "relu"), tf_keras.layers.Dense(CLASSES)])
    optimizer, accuracy = tf_keras.optimizers.Adam(), tf_keras.metrics.SparseCategoricalAccuracy()

    class Trainer(orbit.StandardTrainer):
        def train_step(self, iterator: Any) -> None:
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        def train_loop_end(self) -> None:
            WASTE.update(model.layers[0].kernel.numpy(), save)

    class Evaluator(orbit.StandardEvaluator):
        def eval_step(self, iterator: Any) -> None:
            x, y = next(iterator)
            accuracy.update_state(y, model(x))

        def eval_end(self, *_: Any) -> dict[str, Any]:
            return {"accuracy": accuracy.result()}

    options = orbit.StandardTrainerOptions(use_tf_while_loop=False)  # else a loop of steps is one program
    controller = orbit.Controller(
        trainer=Trainer(data.repeat(), options),
        evaluator=Evaluator(data.take(5)),
        global_step=optimizer.iterations,
        steps_per_loop=5,
    )
    controller.train_and_evaluate(train_steps=STEPS, eval_steps=5, eval_interval=EVERY)
    return {"train": int(optimizer.iterations.numpy()), "eval": 5 * STEPS // EVERY}
