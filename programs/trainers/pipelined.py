"""Loops that run ahead of their device, marked in several ways, and loops that wait in each step for comparison.

JAX dispatches asynchronously; PyTorch and TensorFlow compute on a CPU before a call returns, so that a loop is as good
as its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from programs.trainers import work

MARKS = ("none", "dispatch", "read", "batches", "annotation")
"""No marks, ``run.step`` around the dispatch alone or the read too, ``run.batches``, and the framework's annotation."""

READS = {"each": 1, "tenth": 10, "never": 0}
"""After how many steps the loss is read."""

STEP_S, PYTHON_S = 0.025, 0.0002  # of compute, of Python between

Parts = tuple[Callable[[Any], Any], Any, Callable[[int], AbstractContextManager[Any]], Callable[[Any], Any]]
"""A function of a state that returns the next and a loss, the state, the annotation of a step, and a wait for both."""


def of_jax(width: int) -> Parts:
    """Return a step of JAX."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def train_step(weights: Any) -> Any:
        hidden = jnp.tanh(weights @ weights)
        return weights + 1e-6 * hidden, hidden.sum()

    def annotation(number: int) -> Any:
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    return train_step, jnp.full((width, width), 1 / width), annotation, jax.block_until_ready


def of_torch(width: int) -> Parts:
    """Return a step of PyTorch; its annotation is that of its own profiler, which is left out."""
    import torch

    torch.set_num_threads(1)
    weights = torch.full((width, width), 1 / width, requires_grad=True)
    optimizer = torch.optim.SGD([weights], 1e-6)

    def train_step(weights: Any) -> Any:
        loss = torch.tanh(weights @ weights).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return weights, loss.detach()

    return train_step, weights, lambda _: nullcontext(), lambda values: values


def of_tensorflow(width: int) -> Parts:
    """Return a step of TensorFlow."""
    import tensorflow as tf

    @tf.function
    def train_step(weights: Any) -> Any:
        hidden = tf.tanh(weights @ weights)
        return weights + 1e-6 * hidden, tf.reduce_sum(hidden)

    def annotation(number: int) -> Any:
        return tf.profiler.experimental.Trace("train", step_num=number, _r=1)

    return train_step, tf.fill((width, width), 1 / width), annotation, lambda values: [each.numpy() for each in values]


FRAMEWORKS: dict[str, Callable[[int], Parts]] = {"jax": of_jax, "torch": of_torch, "tensorflow": of_tensorflow}


def train(parts: Parts, steps: int, run: Any, mark: str, read: int, *, waits: bool = False) -> None:
    """Train in a loop that reads its loss after every `read` steps, and waits for each step if it is the twin."""
    train_step, state, annotation, wait = parts
    numbers: Iterator[int] = run.batches(range(steps)) if mark == "batches" else iter(range(steps))
    total = 0.0
    for number in numbers:
        reads = read > 0 and number % read == read - 1
        around = {
            "dispatch": run.step,
            "read": run.step,
            "annotation": annotation,
        }.get(mark, lambda _: nullcontext())
        with around(number):
            state, loss = train_step(state)
            if waits:
                wait((state, loss))
            if mark == "read" and reads:
                total += float(loss)
        if mark != "read" and reads:
            total += float(loss)
        work(PYTHON_S)
    wait(state)


def calibrated(make: Callable[[int], Parts]) -> Parts:
    """Return a step of about `STEP_S`."""
    import time

    width = 256
    while True:
        parts = make(width)
        times_s = []
        for _ in range(5):
            begin_s = time.perf_counter()
            parts[3](parts[0](parts[1]))
            times_s.append(time.perf_counter() - begin_s)
        if min(times_s) >= STEP_S * 0.7:
            return parts
        width = int(width * min(2.0, max(1.15, (STEP_S / min(times_s)) ** (1 / 3))))
