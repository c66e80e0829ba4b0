"""Trainings that evaluate, by each library: what is a step of training and what is not.

A program is a function of a folder that it may write to; it returns the numbers of its steps, ``"train"``, and of the
batches that it evaluates, ``"eval"``, by the library's own counters where there are any. Whoever runs it may make it
waste time, by `WASTE`: for each row of its data, or after each update.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from programs import quiet

STEPS = 20
ROWS = 64  # of a batch
LEAST_S = 0.05  # that is wasted after an update

Counts = dict[str, int]


class Program(NamedTuple):
    """A training, and the package that it needs."""

    package: str
    train: Callable[[Path], Counts]


class Waste:
    """What a training wastes: where, and its time by its own clock.

    Its places are ``data``, for each row; and after each update ``log``, lines of JSON; ``save``, by a function of the
    library; ``sync``, numbers of an array one by one.
    """

    def __init__(self) -> None:
        self.place = ""
        self.seconds = 0.0
        self.folder = Path()

    def row(self, row: Any) -> Any:
        """Return the row."""
        if self.place == "data":
            begin_s = time.perf_counter()
            sum(json.loads(json.dumps([*range(500)])))
            self.seconds += time.perf_counter() - begin_s
        return row

    def update(self, array: Any = None, save: Callable[[Path], Any] | None = None) -> None:
        """Waste time after an update: with an array that it changed, or a function that saves."""
        begin_s = time.perf_counter()
        while self.place and time.perf_counter() < begin_s + LEAST_S:
            if self.place == "log":
                self.log()
            elif self.place == "sync":
                self.sync(array)
            elif self.place == "save" and save:
                save(self.folder / "state")
            else:
                break
        self.seconds += time.perf_counter() - begin_s

    def log(self) -> None:
        """Write what nobody reads."""
        with (self.folder / "log").open("a") as file:
            for number in range(1_000):
                file.write(json.dumps({"number": number, "now": time.time()}) + "\n")
                file.flush()

    def sync(self, array: Any) -> float:
        """Return the largest number."""
        return max(float(number) for number in array.reshape(-1)[:2_000])


WASTE = Waste()
PROGRAMS: dict[str, Program] = {}


def program(package: str) -> Callable[[Callable[[Path], Counts]], Callable[[Path], Counts]]:
    """Register a training, under the name of its function."""

    def register(train: Callable[[Path], Counts]) -> Callable[[Path], Counts]:
        PROGRAMS[train.__name__] = Program(package, train)
        return train

    return register


@program("jax")
def jax_loop(folder: Path) -> Counts:
    """Train with JAX alone, and evaluate after every fifth step."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def loss_of(weights: Any, x: Any) -> Any:
        return jnp.mean((x @ weights - 1) ** 2)

    @jax.jit
    def update(weights: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((x @ weights - 1) ** 2))(weights)
        return weights - 1e-3 * gradient, loss

    @jax.jit
    def evaluate(weights: Any, x: Any) -> Any:
        return jnp.abs(x @ weights - 1).mean()

    weights, x, losses = jnp.zeros((ROWS, 1)), jnp.ones((ROWS, ROWS)), []
    for number in range(STEPS):
        weights, loss = update(weights, x)
        losses.append(float(loss))
        if number % 5 == 4:
            losses += [float(evaluate(weights, x)) for _ in range(3)]
    return {"train": STEPS, "eval": 3 * STEPS // 5}


@program("flax")
def nnx_loop(folder: Path) -> Counts:
    """Train a model of NNX on Grain's batches, and evaluate on others after every tenth step."""
    import grain
    import numpy as np
    import optax
    from flax import nnx

    def batches(number: int) -> Iterator[Any]:
        data = grain.MapDataset.source(np.ones((number * 8, ROWS), "float32")).batch(8)
        return data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))

    def loss_of(model: Any, x: Any) -> Any:
        return ((model(x) - 1) ** 2).mean()

    @nnx.jit
    def train_step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(loss_of)(model, x)
        optimizer.update(model, gradients)
        return loss

    @nnx.jit
    def eval_step(model: Any, x: Any) -> Any:
        return loss_of(model, x)

    model = nnx.Linear(ROWS, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    losses = []
    for number, x in enumerate(batches(STEPS)):
        losses.append(float(train_step(model, optimizer, x)))
        if number % 10 == 9:
            losses += [float(eval_step(model, x)) for x in batches(4)]
    return {"train": int(optimizer.step[...]), "eval": 4 * STEPS // 10}


def _torch(workers: int = 0, batches: int = 1) -> Counts:
    """Train with PyTorch, where an update may take several batches, and evaluate after each of two epochs."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model, x = torch.nn.Linear(ROWS, 1), torch.ones((8 * STEPS // 2, ROWS))
    optimizer = torch.optim.Adam(model.parameters())
    train, valid = (DataLoader(TensorDataset(rows), batch_size=8, num_workers=workers) for rows in (x, x[:40]))
    for _ in range(2):
        for number, (rows,) in enumerate(train):
            ((model(rows) - 1) ** 2).mean().backward()
            if number % batches == batches - 1:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for (rows,) in valid:
                model(rows)
    (updates,) = {int(state["step"]) for state in optimizer.state.values()}
    return {"train": updates, "eval": 2 * 5}


@program("torch")
def torch_loop(folder: Path) -> Counts:
    """Train with PyTorch."""
    return _torch()


@program("torch")
def torch_workers(folder: Path) -> Counts:
    """Train with two workers of the DataLoader."""
    return _torch(workers=2)


@program("torch")
def torch_accumulated(folder: Path) -> Counts:
    """Train with gradients of two batches."""
    return _torch(batches=2)


@program("transformers")
def hugging_face(folder: Path) -> Counts:
    """Train with the Trainer of Transformers, with gradients of two batches, and evaluate twice."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(ROWS, 1)

        def forward(self, x: Any, labels: Any) -> Any:
            logits = self.linear(x)[:, 0]
            return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}

    torch.set_num_threads(1)
    data = [{"x": torch.ones(ROWS), "labels": torch.tensor(1.0)} for _ in range(2 * STEPS * 8)]
    more = {"gradient_accumulation_steps": 2, "num_train_epochs": 1, "per_device_eval_batch_size": 8}
    more |= {"eval_strategy": "steps", "eval_steps": STEPS // 2}
    trainer = quiet.hugging_face(folder, Model(), data, data[:40], per_device_train_batch_size=8, **more)
    trainer.train()
    return {"train": trainer.state.global_step, "eval": 2 * 5}


@program("lightning")
def lightning_fit(folder: Path) -> Counts:
    """Train with the Trainer of Lightning, with validation before the first step and after each of two epochs."""
    import torch
    from lightning import LightningModule
    from torch.utils.data import DataLoader, TensorDataset

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(ROWS, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return ((self.linear(batch[0]) - 1) ** 2).mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("valid", self.training_step(batch, number))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    x = torch.ones((8 * STEPS // 2, ROWS))
    trainer = quiet.lightning(folder, devices=1, max_epochs=2, num_sanity_val_steps=2)
    trainer.fit(Model(), *[DataLoader(TensorDataset(rows), batch_size=8) for rows in (x, x[:40])])
    return {"train": trainer.global_step, "eval": 2 + 2 * 5}


@program("keras")
def keras_fit(folder: Path) -> Counts:
    """Fit for two epochs with validation after each."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((8 * STEPS // 2, ROWS), "float32")
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, validation_data=(x[:40], x[:40, :1]))
    return {"train": int(model.optimizer.iterations), "eval": 2 * 5}
