"""Trainings that stand still after some steps, each at the line that ends in ``# here``, and healthy ones that pause.

``python standstills.py NAME`` runs one. It writes when it begins to stand still to the file that ``STANDS`` names.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

STEPS = 60
LONG_S = 600


def stands() -> None:
    """Write down that the training stands still from now on."""
    Path(os.environ.get("STANDS", os.devnull)).write_text(repr(time.time()))


def network() -> Any:
    """Return a model of PyTorch, its optimizer, and a batch."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 8)
    return model, torch.optim.SGD(model.parameters(), 1e-3), torch.ones(16, 64)


def train(steps: int = STEPS, parts: Any = None) -> Any:
    """Train for some steps; return model, optimizer and batch."""
    model, optimizer, batch = parts = parts or network()
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
    return parts


def empty_queue() -> None:
    """Wait for a queue that nobody fills."""
    train()
    stands()
    queue.Queue[int]().get()  # here


def lock_taken_twice() -> None:
    """Wait for a lock that this thread holds."""
    train()
    lock = threading.Lock()
    stands()
    with lock:
        lock.acquire()  # here


def worker_killed() -> None:
    """Wait for a worker that was killed, as code without a timeout does."""
    train()
    results: Any = multiprocessing.get_context("fork").Queue()
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LONG_S,), daemon=True)
    worker.start()
    time.sleep(2)
    os.kill(worker.pid or 0, signal.SIGKILL)
    stands()
    results.get()  # here


def callback_of_device() -> None:
    """Wait within a step of JAX for a callback to the host."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def watch(step: Any) -> Any:
        if int(step) == STEPS:
            stands()
            threading.Event().wait(LONG_S)  # here
        return np.float32(0)

    @jax.jit
    def train_step(weights: Any, x: Any, step: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)
        return weights - 1e-3 * gradient, loss + jax.pure_callback(watch, jax.ShapeDtypeStruct((), jnp.float32), step)

    weights, x = jnp.ones((64, 64)), jnp.ones((64, 64))
    for step in range(STEPS + 1):
        weights, loss = train_step(weights, x, step)
        float(loss)
        time.sleep(0.01)


def endless_callback() -> None:
    """Compute without an end in a callback of Keras."""
    import keras
    import numpy as np

    class Endless(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.01)
            if batch == STEPS:
                stands()
                while True:
                    sum(range(1000))  # here

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8 * 100, 8), "float32")
    model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, callbacks=[Endless()])


def stopped() -> None:
    """Stop the process, as a scheduler or a terminal does."""
    train()
    stands()
    os.kill(os.getpid(), signal.SIGSTOP)


def pipe_without_writer() -> None:
    """Read from a pipe into which nobody writes."""
    train()
    path = Path(tempfile.mkdtemp(), "pipe")
    os.mkfifo(path)
    stands()
    path.read_text()  # here


def barrier_mismatch() -> None:
    """Wait at a barrier for a thread that never comes."""
    train()
    barrier = threading.Barrier(2)
    stands()
    barrier.wait()  # here


def logger_after_fork() -> None:
    """Fork while another thread holds the lock of a handler, and wait for the child."""
    train()
    handler = logging.StreamHandler()
    assert handler.lock is not None
    handler.lock.acquire()
    child = os.fork()
    if child == 0:
        threading.Event().wait(LONG_S)
    handler.lock.release()
    stands()
    os.waitpid(child, 0)  # here


def prompt() -> None:
    """Ask a question that nobody answers."""
    train()
    stands()
    read, _ = os.pipe()  # a terminal at which nobody is
    sys.stdin = os.fdopen(read)
    input("continue? ")  # here


def full_disk() -> None:
    """Try again and again to save to a disk without room."""
    import torch

    model, *_ = train()
    stands()
    while True:
        with contextlib.suppress(OSError, RuntimeError):
            torch.save(model.state_dict(), "/dev/full")
            return
        time.sleep(1)  # here


def name_server() -> None:
    """Wait for an answer that never comes, as of a name server."""
    train()
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        stands()
        client.recv(1)  # here


def wait_for_child() -> None:
    """Wait for a process that does not end."""
    train()
    child = subprocess.Popen(["sleep", str(LONG_S)])
    stands()
    os.waitpid(child.pid, 0)  # here


def thread_join() -> None:
    """Wait for a thread that does not end."""
    train()
    thread = threading.Thread(target=threading.Event().wait, args=(LONG_S,), daemon=True)
    thread.start()
    stands()
    thread.join()  # here


def pool_lost_a_process() -> None:
    """Wait for a result of a pool whose process was killed, of a pool that does not notice."""
    train()
    pool = multiprocessing.get_context("fork").Pool(1)
    result = pool.apply_async(time.sleep, (LONG_S,))
    time.sleep(1)
    for child in multiprocessing.active_children():
        os.kill(child.pid or 0, signal.SIGKILL)
    stands()
    result.get()  # here


def endless_iterator() -> None:
    """Skip rows of a dataset without an end."""
    import torch

    class Rows(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            for number in range(100):
                if number == STEPS:
                    stands()
                    while True:
                        sum(range(1000))  # here
                yield torch.ones(64)

    model, optimizer, _ = network()
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=None):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)


def lock_file() -> None:
    """Wait for the lock of a checkpoint that nobody releases."""
    train()
    path = Path(tempfile.mkdtemp(), "lock")
    path.touch()
    stands()
    while path.exists():
        time.sleep(0.1)  # here


def silent_program() -> None:
    """Run another program that does not end."""
    train()
    stands()
    subprocess.run(["sleep", str(LONG_S)], check=True)  # here


def endless_collection() -> None:
    """Collect garbage without an end."""
    train()
    keep = [[] for _ in range(1_000_000)]
    stands()
    while keep:
        gc.collect()  # here


def asleep() -> None:
    """Sleep in the loading of a shard."""
    train()

    def load_shard() -> None:
        time.sleep(LONG_S)  # here

    stands()
    load_shard()


STANDSTILLS = {
    each.__name__: each
    for each in (
        *(empty_queue, lock_taken_twice, worker_killed, callback_of_device, endless_callback, stopped),
        *(pipe_without_writer, barrier_mismatch, logger_after_fork, prompt, full_disk, name_server, wait_for_child),
        *(thread_join, pool_lost_a_process, endless_iterator, lock_file, silent_program, endless_collection, asleep),
    )
}
"""Trainings that stand still."""


def evaluates_in_python() -> None:
    """Compute in Python for long between steps."""
    parts = train()
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + PAUSE_S:
        sum(json.loads(json.dumps([*range(1000)])))
    train(parts=parts)


def compiles() -> None:
    """Compile a large program after some steps."""
    import jax
    import jax.numpy as jnp

    parts = train()
    begin_s, depth = time.monotonic(), 100
    while time.monotonic() < begin_s + PAUSE_S:

        @jax.jit
        def deep(x: Any, depth: int = depth) -> Any:
            for number in range(depth):
                x = jnp.sin(x @ x) + number
            return x

        deep.lower(jnp.ones((8, 8))).compile()
        depth += 100
    train(parts=parts)


def workers_begin_again() -> None:
    """Begin workers that read for long before their first batch."""
    import torch

    class Rows(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            begin_s = time.monotonic()
            while time.monotonic() < begin_s + PAUSE_S:
                sum(json.loads(json.dumps([*range(1000)])))
            yield from (torch.ones(64) for _ in range(STEPS))

    parts = model, optimizer, _ = train()
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    train(parts=parts)


def saves() -> None:
    """Write a large checkpoint to a slow disk."""
    import torch

    parts = train()
    begin_s, data = time.monotonic(), torch.zeros(5_000_000)
    while time.monotonic() < begin_s + PAUSE_S:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(data, Path(folder, "state"))
    train(parts=parts)


def long_steps() -> None:
    """Take steps of three seconds."""
    model, optimizer, batch = network()
    for _ in range(round(PAUSE_S / 3) + 3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        time.sleep(3)
        optimizer.step()


def loads_first() -> None:
    """Prepare data before the first step."""
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + PAUSE_S:
        sum(json.loads(json.dumps([*range(1000)])))
    train()


def evaluates() -> None:
    """Evaluate batches for long."""
    import torch

    parts = train()
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + PAUSE_S:
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(torch.ones(64, 64), batch_size=8):
                parts[0](batch)
    train(parts=parts)


PAUSE_S = 60.0
PAUSES = {
    each.__name__: each
    for each in (evaluates_in_python, compiles, workers_begin_again, saves, long_steps, loads_first, evaluates)
}
"""Healthy trainings that take no step for a while."""

if __name__ == "__main__":
    (STANDSTILLS | PAUSES)[sys.argv[1]]()
