"""Compare the first sentence of the verdict with the cause of a waste that was put into a program, or with none.

``python benchmarks/verdicts.py [--quick] [--programs NAME,...] [--busy]``: each program runs in a process of its own
and measures what it wastes; its framework is imported before. ``--busy`` runs it beside a process that computes;
``--quick`` runs six of them. The last line is one JSON object:

``cause``
    Share of the programs with a waste whose first sentence names it: the account, and words that tell the cause.
``amount``
    Share of the programs that measure their waste in which the account is within a tenth of run time of it.
``false_alarms``
    Number of programs without a waste that are not called healthy, of those that ran.
``deviation``
    Largest share of run time in "step time deviation" without a cause, of all programs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

import tpunb as tp
from tpunb.analysis.verdict import verdict

wasted_s = [0.0]


@contextmanager
def waste() -> Iterator[None]:
    """Measure the block."""
    begin_s = time.perf_counter()
    try:
        yield
    finally:
        wasted_s[0] += time.perf_counter() - begin_s


class Program(NamedTuple):
    """A program, and what its verdict has to say."""

    train: Callable[[Any], None]  # of the capture
    account: str | None  # that the waste is in; None without a waste
    words: str = ""  # in the first sentence or the action
    measures: bool = False  # whether it measures its waste


PROGRAMS: dict[str, Program] = {}


def program(account: str | None, words: str = "", *, measures: bool = False) -> Callable[..., Any]:
    """Add a program."""

    def added(train: Callable[[Any], None]) -> Callable[[Any], None]:
        PROGRAMS[train.__name__] = Program(train, account, words, measures)
        return train

    return added


def jax_step(width: int = 128) -> tuple[Any, Any, Any]:
    """Return a compiled step of JAX, weights and a batch."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        return weights - 1e-3 * jnp.tanh(weights @ x), (weights * x).sum()

    return step, jnp.ones((width, width)) / width, jnp.ones((width, width)) / width


def keras_model(layers: int = 2, **options: Any) -> Any:
    """Return a compiled model of Keras."""
    import keras

    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse", **options)
    return model


def rows(number: int) -> Any:
    """Return examples for it."""
    import numpy as np

    return np.random.default_rng(0).random((number, 64), "float32")


@program("program code", "time.sleep", measures=True)
def jax_sleeps_in_each_step(run: Any) -> None:
    """Sleep in a function that each step calls."""
    step, weights, x = jax_step()
    for number in range(200):
        with run.step(number):
            with waste():
                time.sleep(0.02)
            weights, loss = step(weights, x)
            float(loss)


@program("program code", "time.sleep", measures=True)
def jax_sleeps_in_each_fifth_step(run: Any) -> None:
    """Sleep in each fifth step."""
    step, weights, x = jax_step(700)
    for number in range(250):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
            if number % 5 == 0:
                with waste():
                    time.sleep(0.05)


@program("program code", "time.sleep", measures=True)
def nothing_but_sleep(run: Any) -> None:
    """Train nothing."""
    for number in range(150):
        with run.step(number), waste():
            time.sleep(0.03)


@program("program startup", "a new function")
def jax_jit_in_each_step(run: Any) -> None:
    """Wrap the function of the step anew in each step."""
    import jax
    import jax.numpy as jnp

    weights = jnp.ones((64, 64))
    for number in range(40):
        with run.step(number):
            step = jax.jit(lambda weights: weights - 1e-3 * jnp.tanh(weights @ weights))
            weights = step(weights)
            jax.block_until_ready(weights)


@program("program startup", "batches of one shape")
def jax_many_shapes(run: Any) -> None:
    """Train with batches of sixty lengths."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ weights)
        return weights - 1e-3 * x.T @ hidden, hidden.sum()

    weights = jnp.ones((64, 64)) / 64
    for number in range(120):
        with run.step(number):
            weights, loss = step(weights, jnp.ones((5 + number % 60, 64)))
            float(loss)


@program("program startup", "epoch = ")
def tensorflow_python_number(run: Any) -> None:
    """Pass the number of the epoch to a compiled function."""
    import tensorflow as tf

    model = keras_model(4)
    optimizer, x = model.optimizer, tf.constant(rows(32))

    @tf.function
    def train_step(x: Any, epoch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2) / (1.0 + epoch)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    optimizer.build(model.trainable_variables)
    for number in range(200):
        with run.step(number):
            float(train_step(x, number // 10))


@program("program startup", "one model")
def keras_ten_models(run: Any) -> None:
    """Build and fit ten models."""
    x = rows(320)
    for _ in range(10):
        keras_model().fit(x, x[:, :1], batch_size=32, verbose=0)


@program(None, "run_eagerly")
def keras_eager(run: Any) -> None:
    """Leave eager execution on."""
    x = rows(32 * 60)
    keras_model(6, run_eagerly=True).fit(x, x[:, :1], batch_size=32, verbose=0)


@program("evaluation", "predict")
def keras_predicts_in_each_step(run: Any) -> None:
    """Predict in a callback after each batch."""
    import keras

    x = rows(32 * 60)

    class Predicts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.predict(x[:32], verbose=0)

    keras_model().fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=[Predicts()])


@program("callbacks", "Slow.on_train_batch_end", measures=True)
def keras_slow_callback(run: Any) -> None:
    """Sleep in a callback after each batch."""
    import keras

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            with waste():
                time.sleep(0.02)

    x = rows(32 * 100)
    keras_model().fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=[Slow()])


@program("data loading", "DataLoader workers", measures=True)
def torch_slow_dataset(run: Any) -> None:
    """Sleep in the data set, which a DataLoader reads without workers."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 800

        def __getitem__(self, index: int) -> Any:
            with waste():
                time.sleep(0.003)
            return torch.ones(64)

    torch_loop(DataLoader(Slow(), batch_size=8))


@program("step time deviation", "gc.freeze", measures=True)
def jax_collects_garbage(run: Any) -> None:
    """Collect garbage by hand in each tenth step, beside many objects."""
    import gc

    step, weights, x = jax_step()
    kept = [[number] for number in range(1_000_000)]
    for number in range(300):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
            if number % 10 == 0:
                with waste():
                    gc.collect()
    del kept


@program("program code", "memory of the process grows")
def jax_keeps_arrays(run: Any) -> None:
    """Keep an array of each step."""
    import numpy as np

    step, weights, x = jax_step()
    kept = []
    for number in range(700):
        with run.step(number):
            weights, loss = step(weights, x)
            kept.append((float(loss), np.ones(250_000)))
            time.sleep(0.02)


def torch_loop(batches: Any, width: int = 64) -> None:
    """Train a model of PyTorch."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for x in batches:
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


@program(None)
def torch_healthy(run: Any) -> None:
    """Train with PyTorch on a batch in memory."""
    import torch

    torch_loop([torch.randn(512, 64)] * 1500, width=2048)


@program(None)
def jax_healthy(run: Any) -> None:
    """Train with JAX, in a loop that runs ahead."""
    import jax

    step, weights, x = jax_step(900)
    for number in range(250):
        with run.step(number):
            weights, _ = step(weights, x)
    jax.block_until_ready(weights)


@program(None)
def keras_healthy(run: Any) -> None:
    """Fit a model of Keras for one epoch of many steps."""
    x = rows(256 * 2500)
    keras_model(4).fit(x, x[:, :1], batch_size=256, verbose=0)


QUICK = (
    *("jax_sleeps_in_each_step", "jax_jit_in_each_step", "tensorflow_python_number"),
    *("torch_slow_dataset", "torch_healthy", "jax_healthy"),
)


def measure(name: str) -> dict[str, Any]:
    """Capture a program in this process, print its verdict, and return its figures."""
    each = PROGRAMS[name]
    importlib.import_module(name.partition("_")[0] if not name.startswith("nothing") else "jax")
    with tempfile.TemporaryDirectory() as folder:
        with tp.capture(Path(folder, "run"), keep="none") as run:
            each.train(run)
        phases = tp.phases(tp.load(Path(folder, "run")))
    answer, goodput = verdict(phases), tp.goodput(phases)
    wall_s = goodput.wall_ps / 1e12
    healthy = each.account is None and not each.words
    named = each.words in str(answer) and (each.account in (None, answer.account if answer else None))
    figures: dict[str, Any] = {"healthy": str(answer).startswith("Healthy")} if healthy else {"cause": named}
    if each.measures:
        measured_s = goodput.time_ps(each.account or "other") / 1e12
        figures["amount"] = abs(measured_s - wasted_s[0]) <= 0.1 * wall_s
    unnamed = goodput.frame.filter(pl.col("account") == "step time deviation", pl.col("detail").is_null())
    figures["deviation"] = float(unnamed["time_ps"].sum()) / goodput.wall_ps
    shown = ", ".join(
        f"{key} {value:.3f}" if key == "deviation" else f"{key} {value}" for key, value in figures.items()
    )
    print(f"{name}: {shown}; wasted {wasted_s[0]:.2f} of {wall_s:.2f} s\n  {answer}")
    return figures


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} of the programs")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--busy", action="store_true", help="beside a process that computes")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if options.program:
        print(json.dumps(measure(options.program)))
        return
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    done = []
    try:
        for name in QUICK if options.quick else options.programs.split(","):
            command = [sys.executable, __file__, "--program", name]
            *shown, last = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
            print("\n".join(shown), flush=True)
            done.append(json.loads(last))
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    shares = {key: [each[key] for each in done if key in each] for key in ("cause", "amount")}
    last = {key: round(sum(values) / max(1, len(values)), 3) for key, values in shares.items()}
    last["false_alarms"] = sum(not each["healthy"] for each in done if "healthy" in each)
    last["deviation"] = round(max(each["deviation"] for each in done), 3)
    print(json.dumps(last))


if __name__ == "__main__":
    main()
