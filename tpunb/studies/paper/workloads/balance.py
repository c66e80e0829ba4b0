"""Balance between input and device on one machine: each on a processor core of its own.

The model, compiled by XLA, is the device: it computes in one thread on one core. The input pipeline, in one private
thread, is the host, with Python: both on another core. Threads inherit the core of the thread that starts them.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpunb.errors import TpunbError
from tpunb.studies.frameworks import tf

_COMPUTES = "tf_"  # begins the names of TensorFlow's threads; those of longer names have none
_TASKS = Path("/proc/self/task")
_CORES = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cores:
    """Processor cores of a balance, by number; None where the system cannot pin threads."""

    device: int | None
    input: int | None
    available: int

    def __str__(self) -> str:
        if self.device is None:
            return "not pinned: " + ("no affinity calls on this system" if self.available else "the device has its own")
        return f"core {self.device} computes, core {self.input} prepares input, of {self.available}"


def width(balance: float, unit: int) -> int:
    """Return the width of a model at a balance, if it is `unit` at 1: matrix products grow with the square of it.

    >>> width(16, 64)
    16
    """
    if isinstance(balance, bool) or not 0 < balance < math.inf:
        raise ValueError(f"The balance parameter of Workload must be above 0. Got {balance!r} instead.")
    if balance > (1 + 1e-9) * unit**2:
        raise TpunbError(
            f"the model cannot reach balance {balance:g}: its least width, 1, is balance {unit**2}",
            hint=f"use at most {unit**2}",
        )
    return max(1, round(unit / math.sqrt(balance)))


def choose() -> Cores:
    """Return the first core that this process may use, and another that shares no physical core with it."""
    can_pin = hasattr(os, "sched_setaffinity")
    allowed = sorted(os.sched_getaffinity(0)) if can_pin else list(range(os.cpu_count() or 1))
    if len(allowed) < 2:
        raise TpunbError(
            f"a balance requires two processor cores, and this process may use one, number {allowed[0]}",
            hint="use a machine with two, or record without a balance",
        )
    if not can_pin:
        return Cores(None, None, len(allowed))
    apart = [core for core in allowed[1:] if core not in _siblings(allowed[0])]
    return Cores(allowed[0], (apart or allowed[1:])[0], len(allowed))


def _siblings(core: int) -> set[int]:
    """Return the logical cores of a core's physical core, as far as the system names them."""
    file = _CORES / f"cpu{core}" / "topology" / "thread_siblings_list"
    parts = file.read_text().strip().split(",") if file.exists() else []
    ranges = [(part.partition("-")[0], part.rpartition("-")[2]) for part in parts]
    return {number for low, high in ranges for number in range(int(low), int(high) + 1)}


@cache
def pin() -> Cores:
    """Let TensorFlow compute in one thread on one core, and this thread and what it starts work on another.

    This holds for the rest of the process, unless the device is a GPU or that of a distribution strategy.
    """
    if tf.distribute.has_strategy() or tf.config.list_physical_devices("GPU"):
        return Cores(None, None, 0)
    chosen = choose()
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError as error:
        raise TpunbError(
            "TensorFlow has started its threads already: a balance requires one thread for operations",
            hint="build the workload first in a new process",
        ) from error
    if chosen.device is None or chosen.input is None:
        return chosen
    os.sched_setaffinity(0, {chosen.device})
    tf.function(lambda: tf.reduce_sum(tf.ones([8])), jit_compile=True)()  # starts the threads of TensorFlow and XLA
    os.sched_setaffinity(0, {chosen.input})
    strays(chosen)
    return chosen


def strays(cores: Cores) -> list[str]:
    """Return the names of threads that were not on a core of the two, or computed on that of the input; move them."""
    if cores.device is None or cores.input is None:
        return []
    names = []
    for task in _TASKS.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            name, number = (task / "comm").read_text().strip(), int(task.name)
            computes = name.startswith(_COMPUTES)
            if os.sched_getaffinity(number) not in ([{cores.device}] if computes else [{cores.device}, {cores.input}]):
                os.sched_setaffinity(number, {cores.device if computes else cores.input})
                names.append(name)
    return sorted(names)
