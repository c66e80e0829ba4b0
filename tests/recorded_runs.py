"""Real trainings that are captured once for the whole run of the tests, each in a process of its own."""

import subprocess

from once import made
from warm_python import JAX, warm_python

LOOPS_OF_JAX = """
import json, sys, time
from itertools import count
from pathlib import Path
import tpunb as tp
from tpunb.profiler.capture import Schedule
import jax, jax.numpy as jnp

FOLDER, SCHEDULE = Path(sys.argv[1]), Schedule.continuous(window=0.2)
batches = [jnp.full((384, 384), i / 100) for i in range(50)]
update = jax.jit(lambda w, x: w - 1e-4 * jnp.tanh(x @ w))
weights = update(jnp.ones((384, 384)), batches[0]).block_until_ready()  # compiled before the capture


def data(run, kind):
    '''Yield batches until two more windows were written and 20 steps of this kind were traced in full.'''
    windows, until = run.status.windows + 2, time.monotonic() + 120
    while run.status.windows < windows or run._session.scheduler._full[kind] < 20:
        assert time.monotonic() < until, run.status
        yield from batches


with tp.capture(FOLDER / "run", schedule=SCHEDULE, keep="phases") as run:
    for number, batch in zip(count(), data(run, "train")):
        with run.step(number):
            weights = update(weights, batch).block_until_ready()
    for batch in run.batches(data(run, "tune"), kind="tune"):
        weights = update(weights, batch).block_until_ready()
with tp.capture(FOLDER / "statistics", schedule=SCHEDULE, keep="none") as statistics:
    for batch in statistics.batches(data(statistics, "train")):
        weights = update(weights, batch).block_until_ready()
report = {"train": number + 1, "steps": run.status.steps, "tensorflow": "tensorflow" in sys.modules}
(FOLDER / "report.json").write_text(json.dumps(report))
"""


def trained(code, folder, python):
    """Run a program that captures into a folder."""
    done = subprocess.run([*python, "-c", code, str(folder)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def loops_of_jax():
    """Return a folder with two loops of JAX in "run", one in "statistics" with keep="none", and "report.json"."""
    return made("loops-of-jax", lambda folder: trained(LOOPS_OF_JAX, folder, warm_python(JAX)))
