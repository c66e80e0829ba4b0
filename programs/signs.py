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
)
"""Names of a training step, most of which hold a word that stands for something else."""


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


@program
def jax_trains_and_measures() -> Truth:
    """Evaluate after each epoch by a function whose name says nothing."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def update(weights: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)
        return weights - 0.1 * gradient, loss

    @jax.jit
    def quality(weights: Any, batch: Any) -> Any:
        return jnp.mean((batch @ weights) ** 2)

    weights, batch = jnp.ones((256, 256)), jnp.ones((256, 256))
    for _ in range(4):
        for _ in range(20):
            weights, loss = update(weights, batch)
            float(loss)
        for _ in range(5):
            float(quality(weights, batch))
    return {"steps": 80, "evaluations": 20}


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
