"""Programs of JAX, with loops of their own."""

from __future__ import annotations

import csv
import functools
import gc
import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from programs.wastes import program, rows, waste


def jax_step(width: int = 128) -> tuple[Any, Any, Any]:
    """Return a compiled step, weights and a batch."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        return weights - 1e-3 * jnp.tanh(weights @ x), (weights @ x).sum()

    return step, jnp.ones((width, width)) / width, jnp.ones((width, width)) / width


def perceptron(layers: int = 8, width: int = 128) -> tuple[Callable[[Any, Any], Any], Any]:
    """Return a step that is not compiled, and its weights."""
    import jax
    import jax.numpy as jnp

    def loss_of(weights: Any, x: Any) -> Any:
        for each in weights:
            x = jnp.tanh(x @ each)
        return (x**2).mean()

    def step(weights: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        return jax.tree.map(lambda value, gradient: value - 1e-3 * gradient, weights, gradients), loss

    return step, [jnp.asarray(rows(width, width)) / width for _ in range(layers)]


@program("program code", "time.sleep", measures=True)
def jax_sleeps_in_each_step(run: Any, repaired: bool) -> None:
    """Sleep in a function that each step calls."""
    step, weights, x = jax_step()
    for number in range(200):
        with run.step(number):
            if not repaired:
                with waste():
                    time.sleep(0.02)
            weights, loss = step(weights, x)
            float(loss)


@program("", r"float64")
def jax_computes_in_double(run: Any, repaired: bool) -> None:
    """Train in double precision."""
    import jax

    jax.config.update("jax_enable_x64", not repaired)
    step, weights = perceptron(layers=4, width=512)
    kind, step = "float32" if repaired else "float64", jax.jit(step)
    weights, x = [each.astype(kind) for each in weights], rows(256, 512).astype(kind)
    for _ in range(200):
        weights, loss = step(weights, x)
        float(loss)


@program("program code", "time.sleep", measures=True)
def jax_sleeps_in_each_fifth_step(run: Any, repaired: bool) -> None:
    """Sleep in each fifth step."""
    step, weights, x = jax_step(700)
    for number in range(250):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
            if number % 5 == 0 and not repaired:
                with waste():
                    time.sleep(0.05)


@program("program code", "time.sleep", measures=True)
def jax_does_nothing_but_sleep(run: Any, repaired: bool) -> None:
    """Train nothing."""
    for number in range(150):
        with run.step(number), waste():
            time.sleep(0.0 if repaired else 0.03)


@program("program startup", r"new function|anew|once")
def jax_jit_in_each_step(run: Any, repaired: bool) -> None:
    """Wrap the function of the step anew in each step."""
    import jax
    import jax.numpy as jnp

    def wrapped() -> Any:
        return jax.jit(lambda weights: weights - 1e-3 * jnp.tanh(weights @ weights))

    once, weights = wrapped(), jnp.ones((64, 64))
    for number in range(60):
        with run.step(number):
            weights = (once if repaired else wrapped())(weights)
            jax.block_until_ready(weights)


@program("program startup", r"shape")
def jax_many_shapes(run: Any, repaired: bool) -> None:
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
            weights, loss = step(weights, np.ones((64 if repaired else 5 + number % 60, 64), "float32"))
            float(loss)


@program("step time deviation", r"[Gg]arbage|gc\.", measures=True)
def jax_collects_garbage(run: Any, repaired: bool) -> None:
    """Collect garbage by hand in each tenth step, beside many objects."""
    step, weights, x = jax_step()
    kept = [[number] for number in range(1_000_000)]
    for number in range(300):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
            if number % 10 == 0 and not repaired:
                with waste():
                    gc.collect()
    del kept


@program(None, r"[Mm]emory")
def jax_keeps_arrays(run: Any, repaired: bool) -> None:
    """Keep an array of each step."""
    step, weights, x = jax_step(700)
    kept = []
    for number in range(1600):
        with run.step(number):
            weights, loss = step(weights, x)
            kept.append((float(loss), None if repaired else np.ones(200_000)))


@program("program code", r"json|parse", measures=True)
def jax_parses_json(run: Any, repaired: bool) -> None:
    """Parse the lines of a batch in each step, the same in each epoch."""
    step, weights, _ = jax_step(300)
    line = json.dumps({"x": rows(1, 300)[0].tolist()})

    def parse(batch: int) -> Any:
        with waste():
            return np.array([json.loads(each)["x"] for each in [line] * 300], "float32") / 300

    parse = functools.cache(parse) if repaired else parse
    for number in range(200):
        with run.step(number):
            weights, loss = step(weights, parse(number % 10))
            float(loss)


@program(None, r"jit")
def jax_without_jit(run: Any, repaired: bool) -> None:
    """Take steps that are not compiled."""
    import jax

    step, weights = perceptron()
    step = jax.jit(step) if repaired else step
    x = jax.numpy.ones((32, 128))
    for number in range(200):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)


@program("", r"largest|float|read an array once", measures=True)
def jax_reads_numbers_one_by_one(run: Any, repaired: bool) -> None:
    """Look for the largest weight in Python after each step."""
    step, weights, x = jax_step()

    def largest(array: Any) -> float:
        return max(float(each) for each in (np.asarray(array) if repaired else array))

    for number in range(150):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
            with waste():
                largest(weights.reshape(-1)[:2000])


@program("program startup", r"static|value of|Python (number|value)|=")
def jax_static_learning_rate(run: Any, repaired: bool) -> None:
    """Pass a learning rate that decays as a static argument."""
    import jax

    @functools.partial(jax.jit, static_argnums=() if repaired else (2,))
    def step(weights: Any, x: Any, rate: float) -> Any:
        hidden = jax.numpy.tanh(x @ weights)
        return weights - rate * x.T @ hidden, hidden.sum()

    weights, x = jax.numpy.ones((300, 300)) / 300, jax.numpy.ones((300, 300))
    for number in range(40):
        with run.step(number):
            weights, loss = step(weights, x, 1e-3 * 0.99**number)
            float(loss)


@program("program code|device idle", r"device_put|transfer|upload", measures=True)
def jax_uploads_all_data(run: Any, repaired: bool) -> None:
    """Put all data on the device in each step, and take a batch of them there."""
    import jax

    step, weights, _ = jax_step(512)
    images = np.random.default_rng(0).random((20_000, 512))
    on_device = jax.device_put(images)
    for number in range(60):
        with run.step(number):
            if not repaired:
                with waste():
                    on_device = jax.block_until_ready(jax.device_put(images))
            weights, loss = step(weights, on_device[number : number + 512] / 512)
            float(loss)


@program("program code", r"log_weights|write|csv", measures=True)
def jax_logs_weights(run: Any, repaired: bool) -> None:
    """Write all weights to a table in each tenth step."""
    step, weights, x = jax_step(300)

    def log_weights(file: Any) -> None:
        with waste():
            csv.writer(file).writerows(np.asarray(weights).tolist())
            file.flush()

    with tempfile.TemporaryFile("w") as file:
        for number in range(300):
            with run.step(number):
                weights, loss = step(weights, x)
                float(loss)
                if number % (150 if repaired else 10) == 9:
                    log_weights(file)


@program("checkpoint save", r"[Ss]av")
def jax_saves_often(run: Any, repaired: bool) -> None:
    """Save a checkpoint with Orbax in each fifth step, and wait for it."""
    import orbax.checkpoint as ocp

    step, weights, x = jax_step(600)
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as saver:
        for number in range(120):
            with run.step(number):
                weights, loss = step(weights, x)
                float(loss)
            if number % (60 if repaired else 5) == 0:
                saver.save(Path(folder, str(number)), {"weights": weights})
                saver.wait_until_finished()


@program("evaluation|program code", r"evaluat", measures=True)
def jax_evaluates_often(run: Any, repaired: bool) -> None:
    """Evaluate on all held out batches in each fifth step."""
    import jax

    step, weights, x = jax_step(500)
    held_out = [jax.numpy.asarray(rows(500, 500)) for _ in range(20)]
    loss_of = jax.jit(lambda weights, x: (weights @ x).mean())
    float(loss_of(weights, x))

    def evaluate() -> float:
        with waste():
            return sum(float(loss_of(weights, each)) for each in held_out) / len(held_out)

    for number in range(150):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
        if number % (50 if repaired else 3) == 0:
            evaluate()


@program("program code", r"urlopen|report|recv|socket|network", measures=True)
def jax_reports_over_the_network(run: Any, repaired: bool) -> None:
    """Send the loss of each step to a tracker on this machine, and wait for its answer."""

    class Tracker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.02)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    step, weights, x = jax_step(500)
    with HTTPServer(("127.0.0.1", 0), Tracker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def report(losses: list[float]) -> None:
            with waste(), direct.open(f"http://127.0.0.1:{server.server_port}", json.dumps(losses).encode()) as answer:
                answer.read()

        losses = []
        for number in range(150):
            with run.step(number):
                weights, loss = step(weights, x)
                losses.append(float(loss))
                if not repaired or number % 50 == 49:
                    report(losses)
                    losses = []
        server.shutdown()


@program("program startup", r"a new function|while_loop|anew")
def jax_line_search(run: Any, repaired: bool) -> None:
    """Search the step size in a loop of JAX, whose body is a new function in each step."""
    import jax
    import jax.numpy as jnp

    def search(weights: Any, x: Any) -> Any:
        def size_is_too_large(size: Any) -> Any:
            return ((weights - size * jnp.tanh(weights @ x)) ** 2).mean() > (weights**2).mean()

        size = jax.lax.while_loop(size_is_too_large, lambda size: size / 2, 1.0)
        return weights - 1e-3 * size * jnp.tanh(weights @ x)

    search = jax.jit(search) if repaired else search
    weights = x = jnp.ones((100, 100)) / 100
    for number in range(60):
        with run.step(number):
            weights = jax.block_until_ready(search(weights, x))


@program()
def jax_healthy(run: Any, repaired: bool) -> None:
    """Train in a loop that runs ahead."""
    import jax

    step, weights, x = jax_step(900)
    for number in range(250):
        with run.step(number):
            weights, _ = step(weights, x)
    jax.block_until_ready(weights)


@program()
def jax_healthy_batches(run: Any, repaired: bool) -> None:
    """Train for twenty epochs on batches in memory, and print each fiftieth loss."""
    step, weights, _ = jax_step(600)
    batches = [rows(600, 600) / 600 for _ in range(60)]
    for _ in range(20):
        for number, x in enumerate(run.batches(batches)):
            weights, loss = step(weights, x)
            if number % 50 == 0:
                print("loss", float(loss))
    weights.block_until_ready()


@program()
def jax_healthy_scan(run: Any, repaired: bool) -> None:
    """Take twenty steps at a time in a compiled loop, and save the weights at the end."""
    import jax

    step, weights, x = jax_step(400)
    steps = jax.jit(lambda weights, x: jax.lax.scan(lambda weights, _: step(weights, x), weights, length=20))
    for number in range(250):
        with run.step(number):
            weights, losses = steps(weights, x)
            float(losses[-1])
    with tempfile.TemporaryFile() as file:
        np.save(file, weights)


@program()
def jax_healthy_perceptron(run: Any, repaired: bool) -> None:
    """Train a compiled perceptron, and evaluate it twice."""
    import jax

    step, weights = perceptron(4, 512)
    step, x = jax.jit(step), jax.numpy.asarray(rows(256, 512))
    for number in range(300):
        with run.step(number):
            weights, loss = step(weights, x)
            float(loss)
        if number % 150 == 149:
            step(weights, x)[1].item()
