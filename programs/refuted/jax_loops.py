"""Loops of JAX."""

from __future__ import annotations

import contextlib
import csv
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from programs.refuted import Clock, counted, drawn, healthy, wasteful


class Model(NamedTuple):
    """A perceptron that is trained by one compiled function and measured by another."""

    update: Callable[[Any, Any], tuple[Any, Any]]
    measure: Callable[[Any, Any], Any]
    weights: Any
    batches: list[Any]


def _loss_of(weights: Any, batch: Any) -> Any:
    import jax.numpy as jnp

    hidden = batch
    for layer in weights:
        hidden = jnp.tanh(hidden @ layer)
    return jnp.mean((hidden - batch) ** 2)


def _update(weights: Any, batch: Any, rate: float = 0.1) -> tuple[Any, Any]:
    import jax

    loss, gradient = jax.value_and_grad(_loss_of)(weights, batch)
    return jax.tree.map(lambda value, slope: value - rate * slope, weights, gradient), loss


def _weights(layers: int, width: int, seed: int = 0) -> list[Any]:
    import jax.numpy as jnp

    random = np.random.default_rng(seed)
    return [jnp.asarray(random.normal(0, width**-0.5, (width, width)), "float32") for _ in range(layers)]


def model(layers: int = 3, width: int = 512, rows: int = 128) -> Model:
    """Return a perceptron and twenty batches for it."""
    import jax

    random = np.random.default_rng(1)
    batches = [random.normal(size=(rows, width)).astype("float32") for _ in range(20)]
    return Model(jax.jit(_update), jax.jit(_loss_of), _weights(layers, width), batches)


def _evaluated(clock: Clock, measure: Callable[[Any, Any], Any], weights: Any, batches: list[Any]) -> float:
    """Return the sum of a measure; its first call, which compiles, is no time of evaluation."""
    total = 0.0
    for batch in batches:
        with clock.account("evaluation") if clock.evaluations else contextlib.nullcontext():
            total += float(measure(weights, batch))
            clock.evaluations += 1
    return total


@healthy
def jax_logs_each_tenth_step(clock: Clock) -> None:
    """Read the loss in each tenth step; the program waits for nothing else."""
    update, _, weights, batches = model()
    losses = list[float]()
    for number in range(300):
        weights, loss = update(weights, batches[number % 20])
        clock.steps += 1
        if number % 10 == 9:
            losses.append(float(loss))


@healthy
def jax_runs_ahead_of_long_steps(clock: Clock) -> None:
    """Launch long steps, and wait for all of them at the end."""
    update, _, weights, batches = model(layers=4, width=1024, rows=256)
    for number in range(25):
        weights, loss = update(weights, batches[number % 20])
        clock.steps += 1
    loss.block_until_ready()


@healthy
def jax_waits_at_the_end(clock: Clock) -> None:
    """Launch short steps, and wait for the last one only."""
    update, _, weights, batches = model()
    for number in range(300):
        weights, loss = update(weights, batches[number % 20])
        clock.steps += 1
    loss.block_until_ready()


@wasteful("program startup", words="[Cc]ompil|scan|loop")
def jax_unrolls_its_step(clock: Clock) -> None:
    """Repeat a layer 200 times in a loop of Python, which is compiled as 200 layers."""
    import jax
    import jax.numpy as jnp

    def unrolled(weights: Any, hidden: Any) -> Any:
        for _ in range(200):
            hidden = jnp.tanh(hidden @ weights) + 0.1 * jnp.roll(hidden, 1, 0)
        return hidden.sum()

    update = jax.jit(lambda weights, batch: weights - 1e-4 * jax.grad(unrolled)(weights, batch))
    weights, batch = 0.5 * jnp.eye(128), jnp.ones((64, 128))
    for number in range(80):
        with clock.waste() if number == 0 else contextlib.nullcontext():
            weights = update(weights, batch).block_until_ready()
        clock.steps += 1


@wasteful("program code", words="fsync")
def jax_syncs_its_log(clock: Clock) -> None:
    """Force each line of a log onto the disk."""
    update, _, weights, batches = model(width=256)
    with tempfile.TemporaryFile("w") as log:
        for number in range(500):
            weights, loss = update(weights, batches[number % 20])
            log.write(f"{number},{float(loss)}\n")
            with clock.waste():
                log.flush()
                os.fsync(log.fileno())
            clock.steps += 1


@healthy
def jax_calls_a_small_function_often(clock: Clock) -> None:
    """Call a tiny compiled function thirty thousand times: what the calls cost is theirs."""
    import jax
    import jax.numpy as jnp

    advance, state = jax.jit(lambda state: jnp.tanh(state @ state) * 0.01), jnp.ones((32, 32))
    for _ in range(1500):
        for _ in range(20):
            state = advance(state)
        state.block_until_ready()
    clock.steps = None


@counted
def jax_trains_in_two_stages(clock: Clock) -> None:
    """Train all layers, then the last one by another function."""
    import jax

    update, _, weights, batches = model()

    @jax.jit
    def refine(last: Any, first: Any, batch: Any) -> tuple[Any, Any]:
        loss, slope = jax.value_and_grad(lambda last: _loss_of([*first, last], batch))(last)
        return last - 0.1 * slope, loss

    for number in range(120):
        weights, loss = update(weights, batches[number % 20])
        float(loss)
        clock.steps += 1
    *first, last = weights
    for number in range(80):
        last, loss = refine(last, first, batches[number % 20])
        float(loss)
        clock.steps += 1


@counted
def jax_updates_actor_and_critic(clock: Clock) -> None:
    """Update two networks in each step, each by a function of its own."""
    import jax

    _, _, actor, batches = model()
    critic = _weights(3, 512, seed=2)

    @jax.jit
    def update_critic(critic: Any, actor: Any, batch: Any) -> tuple[Any, Any]:
        return _update(critic, batch + 0.01 * actor[0][0])

    @jax.jit
    def update_actor(actor: Any, critic: Any, batch: Any) -> tuple[Any, Any]:
        return _update(actor, batch - 0.01 * critic[0][0])

    for number in range(150):
        critic, first = update_critic(critic, actor, batches[number % 20])
        actor, second = update_actor(actor, critic, batches[number % 20])
        float(first + second)
        clock.steps += 1


@counted
def jax_evaluates_training_data(clock: Clock) -> None:
    """Measure the loss of all training batches after each epoch."""
    update, measure, weights, batches = model()
    for _ in range(8):
        for batch in batches:
            weights, loss = update(weights, batch)
            float(loss)
            clock.steps += 1
        _evaluated(clock, measure, weights, batches)


@healthy
def jax_accumulates_gradients(clock: Clock) -> None:
    """Add up the gradients of four batches before each update, by functions of their own."""
    import jax

    _, _, weights, batches = model()
    slopes = jax.jit(jax.value_and_grad(_loss_of))
    add = jax.jit(lambda total, gradient: jax.tree.map(lambda one, other: one + other, total, gradient))
    descend = jax.jit(lambda weights, total: jax.tree.map(lambda value, slope: value - 0.02 * slope, weights, total))
    for number in range(60):
        loss, total = slopes(weights, batches[4 * number % 20])
        for part in range(1, 4):
            more, gradient = slopes(weights, batches[(4 * number + part) % 20])
            loss, total = loss + more, add(total, gradient)
        weights = descend(weights, total)
        float(loss)
        clock.steps += 1


def _sampled(number: int, pause_s: float) -> Iterator[Any]:
    random = np.random.default_rng(3)
    for _ in range(number):
        time.sleep(pause_s)
        yield random.normal(size=(128, 512)).astype("float32")


@wasteful("data loading", words="_sampled|sleep|input")
def jax_waits_for_a_generator(clock: Clock) -> None:
    """Take batches from a generator that sleeps before each."""
    update, _, weights, _ = model()
    for batch in clock.waited_for(_sampled(100, 0.02)):
        weights, loss = update(weights, batch)
        float(loss)
        clock.steps += 1


@healthy
def jax_takes_batches_of_a_generator(clock: Clock) -> None:
    """Take batches from a generator that has them at once."""
    update, _, weights, batches = model()
    for batch in (batches[number % 20] for number in range(300)):
        weights, loss = update(weights, batch)
        float(loss)
        clock.steps += 1


def _produce(batches: list[Any], number: int, pause_s: float, into: queue.Queue[Any]) -> None:
    for each in range(number):
        time.sleep(pause_s)
        into.put(batches[each % 20])


def _train_from_a_queue(clock: Clock, number: int, pause_s: float) -> None:
    update, _, weights, batches = model()
    ready: queue.Queue[Any] = queue.Queue(4)
    producer = threading.Thread(target=_produce, args=(batches, number, pause_s, ready), daemon=True)
    producer.start()
    for _ in range(number):
        with clock.waste():
            batch = ready.get()
        weights, loss = update(weights, batch)
        float(loss)
        clock.steps += 1
    producer.join()


@wasteful("data loading", "program code", words="get|[Qq]ueue|_produce|input")
def jax_waits_for_a_queue(clock: Clock) -> None:
    """Take batches from a queue that a slow thread fills."""
    _train_from_a_queue(clock, 100, 0.035)


@wasteful("data loading", "program code", words="get|[Qq]ueue|_produce|input")
def jax_takes_batches_of_a_queue(clock: Clock) -> None:
    """Take batches from a queue that a fast thread fills."""
    _train_from_a_queue(clock, 300, 0.0)


@counted
def jax_collects_moves(clock: Clock) -> None:
    """Ask the policy for a hundred moves in an environment of Python, then update it once."""
    import jax
    import jax.numpy as jnp

    policy = jax.jit(lambda weights, state: jnp.tanh(state @ weights[0]) @ weights[1])
    update, _, weights, _ = model(layers=2)
    random, state = np.random.default_rng(4), np.zeros(512, "float32")
    for _ in range(40):
        states = []
        for _ in range(100):
            move = np.asarray(policy(weights, state))
            state = (0.9 * state + 0.1 * move + random.normal(size=512)).astype("float32")
            states.append(state)
        weights, loss = update(weights, np.stack(states))
        float(loss)
        clock.steps += 1


@healthy
def jax_adapts_to_tasks(clock: Clock) -> None:
    """Descend through an inner descent on each of four tasks: learning to learn."""
    import jax
    import jax.numpy as jnp

    _, _, weights, batches = model()

    @jax.jit
    def outer(weights: Any, tasks: Any) -> tuple[Any, Any]:
        def adapted(weights: Any) -> Any:
            return jnp.mean(jax.vmap(lambda task: _loss_of(_update(weights, task)[0], task))(tasks))

        loss, slopes = jax.value_and_grad(adapted)(weights)
        return jax.tree.map(lambda value, slope: value - 0.1 * slope, weights, slopes), loss

    tasks = np.stack([batch[:64] for batch in batches[:4]])
    for _ in range(120):
        weights, loss = outer(weights, tasks)
        float(loss)
        clock.steps += 1


@counted
def jax_stops_early(clock: Clock) -> None:
    """Measure held-out batches after each epoch, and stop once they get better by under a hundredth."""
    update, measure, weights, batches = model()
    best = float("inf")
    for _ in range(12):
        for batch in batches[:15]:
            weights, loss = update(weights, batch, 2.0)
            float(loss)
            clock.steps += 1
        held_out = _evaluated(clock, measure, weights, batches[15:])
        if clock.steps >= 90 and held_out > 0.99 * best:
            break
        best = held_out


@wasteful("program code", words="drawn")
def jax_draws_after_each_epoch(clock: Clock) -> None:
    """Draw the curve of the losses after each epoch."""
    update, _, weights, batches = model()
    losses = list[float]()
    for _ in range(8):
        for batch in batches:
            weights, loss = update(weights, batch)
            losses.append(float(loss))
            clock.steps += 1
        with clock.waste():
            drawn(losses, 0.25)


@healthy
def jax_logs_each_step(clock: Clock) -> None:
    """Write a row of a table in each step."""
    update, _, weights, batches = model()
    with tempfile.TemporaryFile("w") as file:
        table = csv.writer(file)
        for number in range(300):
            weights, loss = update(weights, batches[number % 20])
            table.writerow([number, float(loss)])
            clock.steps += 1


@wasteful("checkpoint save", "program code", words="[Ss]av")
def jax_saves_in_each_step(clock: Clock) -> None:
    """Write all weights to a file in each step."""
    update, _, weights, batches = model()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(120):
            weights, loss = update(weights, batches[number % 20])
            float(loss)
            clock.steps += 1
            with clock.waste():
                np.savez_compressed(Path(folder, "weights.npz"), weights[0][:128])


@counted
def jax_saves_by_orbax(clock: Clock) -> None:
    """Save the weights by Orbax ten times, and wait for each save."""
    import orbax.checkpoint

    update, _, weights, batches = model(width=1024, rows=64)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = orbax.checkpoint.StandardCheckpointer()
        for number in range(100):
            weights, loss = update(weights, batches[number % 20])
            float(loss)
            clock.steps += 1
            if number % 10 == 9:
                with clock.account("checkpoint save"):
                    checkpointer.save(Path(folder, str(number)), weights)
                    checkpointer.wait_until_finished()


@healthy
def jax_scans_over_an_epoch(clock: Clock) -> None:
    """Train an epoch by one call: a scan over its batches. A step of the program is an epoch."""
    import jax

    _, _, weights, batches = model()
    epoch = jax.jit(lambda weights, batches: jax.lax.scan(_update, weights, batches))
    stacked = np.stack(batches)
    for _ in range(16):
        weights, losses = epoch(weights, stacked)
        float(losses[-1])
        clock.steps += 1


@healthy
def jax_trains_inside_a_loop(clock: Clock) -> None:
    """Train a hundred steps by one call, a loop of the compiler; the program takes few of its own."""
    import jax
    import jax.numpy as jnp

    _, _, weights, batches = model()
    stacked = jnp.asarray(np.stack(batches))

    @partial(jax.jit, static_argnames="number")
    def trained(weights: Any, stacked: Any, number: int) -> Any:
        return jax.lax.fori_loop(0, number, lambda each, weights: _update(weights, stacked[each % 20])[0], weights)

    for _ in range(3):
        weights = trained(weights, stacked, number=100)
        jax.block_until_ready(weights)
        clock.steps += 1


@counted
def jax_cross_validates(clock: Clock) -> None:
    """Train five models on parts of the data, by one function, and measure each on the rest."""
    update, measure, _, batches = model()
    for fold in range(5):
        weights = _weights(3, 512, seed=fold)
        held_out = batches[4 * fold : 4 * fold + 4]
        for number in range(48):
            weights, loss = update(weights, batches[(4 * fold + 4 + number % 16) % 20])
            float(loss)
            clock.steps += 1
        _evaluated(clock, measure, weights, held_out)


@wasteful("program startup", words="new function|anew|once|[Cc]ompil")
def jax_cross_validates_by_new_functions(clock: Clock) -> None:
    """Compile the same step for each of twelve parts of the data."""
    import jax

    _, _, _, batches = model()
    for fold in range(12):
        weights = _weights(12, 128, seed=fold)
        update = jax.jit(lambda weights, batch: _update(weights, batch))
        with clock.waste():  # but for its first run, which takes a millisecond
            weights, loss = update(weights, batches[0][:, :128])
            float(loss)
        clock.steps += 1
        for batch in batches:
            weights, loss = update(weights, batch[:, :128])
            float(loss)
            clock.steps += 1


@counted
def jax_evaluates_first(clock: Clock) -> None:
    """Measure the untrained model, then the trained one after each epoch, by predictions and arrays of the host."""
    import jax

    update, _, weights, batches = model()

    def predictions(weights: Any, batch: Any) -> Any:
        for layer in weights:
            batch = jax.numpy.tanh(batch @ layer)
        return batch

    forward = jax.jit(predictions)

    def error(weights: Any, batch: Any) -> float:
        return ((np.asarray(forward(weights, batch)) - batch) ** 2).mean()

    for epoch in range(7):
        for batch in batches if epoch else []:
            weights, loss = update(weights, batch)
            float(loss)
            clock.steps += 1
        _evaluated(clock, error, weights, batches[:8])


class State(NamedTuple):
    """What a training by Optax carries from step to step."""

    number: Any
    weights: Any
    optimizer: Any


@healthy
def jax_carries_one_state(clock: Clock) -> None:
    """Train by Optax: one state goes in, and out with metrics."""
    import jax
    import jax.numpy as jnp
    import optax

    _, _, weights, batches = model()
    adam = optax.adam(1e-3)

    @jax.jit
    def apply_batch(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
        loss, slopes = jax.value_and_grad(_loss_of)(state.weights, batch)
        updates, optimizer = adam.update(slopes, state.optimizer)
        state = State(state.number + 1, optax.apply_updates(state.weights, updates), optimizer)
        return state, {"loss": loss, "norm": optax.global_norm(slopes)}

    state = State(jnp.zeros((), int), weights, adam.init(weights))
    for number in range(250):
        state, metrics = apply_batch(state, batches[number % 20])
        float(metrics["loss"])
        clock.steps += 1


@healthy
def jax_warms_up_its_rate(clock: Clock) -> None:
    """Give each step another learning rate, which is an argument like others."""
    update, _, weights, batches = model()
    for number in range(300):
        weights, loss = update(weights, batches[number % 20], min(1.0, number / 100) * 0.1)
        float(loss)
        clock.steps += 1


@healthy
def jax_trains_an_ensemble(clock: Clock) -> None:
    """Train four models at once by a mapped step, whose losses are arrays."""
    import jax
    import jax.numpy as jnp

    _, _, _, batches = model()
    members = jax.tree.map(lambda *layers: jnp.stack(layers), *(_weights(3, 256, seed) for seed in range(4)))
    together = jax.jit(jax.vmap(_update, in_axes=(0, None)))
    for number in range(250):
        members, losses = together(members, batches[number % 20][:, :256])
        np.asarray(losses)
        clock.steps += 1
