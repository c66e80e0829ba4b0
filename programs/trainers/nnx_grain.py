"""Train a model of Flax NNX with Optax, fed by Grain and saved by Orbax."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from programs.trainers import Truth, reduced, truth_of, work

WIDTH, BATCH = 768, 128
LARGE = 4_000_000  # numbers of a state that is saved
RULE = optax.adam(1e-3)  # made once: train_step is compiled for it


class Source:
    """Examples that take time to read."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def __len__(self) -> int:
        return self.truth.steps * BATCH

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 8 == 0:
            time.sleep(self.truth.seconds("data", 4 / 8))  # two threads, and the training computes meanwhile
        return {"x": np.full(WIDTH, index % 7, "float32"), "label": np.int32(index % 10)}


class Model(nnx.Module):
    """A perceptron."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.middle = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.out = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return logits."""
        return self.out(nnx.relu(self.middle(nnx.relu(self.hidden(x)))))


def loss_of(model: Model, batch: Any) -> Any:
    """Return the mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["label"]).mean()


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, batch: Any) -> Any:
    """Update the model, and return the loss."""
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


def norms(truth: Truth, model: Model) -> list[float]:
    """Return the largest value of each parameter, in Python."""
    values = jax.block_until_ready(jax.tree.leaves(nnx.state(model, nnx.Param)))
    with truth("read"):
        return [reduced(np.asarray(value)) for value in values]


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    truth = truth_of(arguments)
    data = grain.MapDataset.source(Source(truth)).shuffle(seed=1).batch(BATCH)
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, RULE, wrt=nnx.Param)
    batches = data.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=2))
    average, losses = jnp.zeros(LARGE), []
    with ocp.CheckpointManager(truth.folder / "checkpoints") as manager, truth.training():
        for number, batch in enumerate(truth.fetches(iter(batches))):
            losses.append(float(train_step(model, optimizer, batch)))
            with truth("hook"):
                work(truth.seconds("hook"))
            if truth.waste == "read":
                norms(truth, model)
            if truth.saves_after(number):
                with truth("save"):
                    state = {"model": nnx.state(model), "average": average}
                    manager.save(number, args=ocp.args.StandardSave(state))
            truth.stepped()
        with truth("save"):
            manager.wait_until_finished()
    truth.write(int(optimizer.step[...]), in_thread=False)


if __name__ == "__main__":
    main(sys.argv[1:])
