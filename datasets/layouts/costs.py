"""Fit ``tpunb.studies.ranking.loops.COSTS``: ``python datasets/layouts/costs.py [--runs 40]``.

It times small kernels with arguments in several orders on one core, counts what their loops do, and prints the
nanoseconds of each by non-negative least squares of relative errors. No kernel reads arrays in an order that cannot be
seen: what a byte of those costs stays as it is.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time

CORE = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORE})  # before JAX counts the cores
os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from scipy.optimize import nnls

from tpunb.protobuf.table import Messages, text
from tpunb.studies.ranking.graphs import joined, module_of
from tpunb.studies.ranking.kernels import Kernels
from tpunb.studies.ranking.loops import COSTS
from tpunb.studies.ranking.metrics import kendall

FUNCTIONS = {
    "scale": lambda a: a * 2.0,
    "negate": lambda a: -a,
    "transpose": lambda a: jnp.transpose(a, range(a.ndim)[::-1]),
    "add": lambda a, b: a + b,
    "scale and add": lambda a, b: a * 2.0 + b,
    "multiply and add": lambda a, b, c: a * b + c,
    "scale, multiply and add": lambda a, b, c: a * 2.0 + b * c,
    "two results": lambda a, b, c: (a * 2.0 + b, b * c + a),
    "moments": lambda a, b, c: (a * 0.9 + b * 0.1, c * 0.9 + b * b * 0.1),
}
SHAPES = [
    *((64, 64, 64), (48, 80, 56), (8, 256, 128), (128, 32, 48), (30, 1000, 10), (4, 64, 576)),
    *((16, 16, 16, 64), (28, 28, 16, 16), (24, 24, 24, 16), (256, 512), (200, 300)),
]
MOST = 12  # orders of the arguments of a function


def measured(f, shape: tuple[int, ...], orders: list[tuple[int, ...]], runs: int) -> tuple[float, bytes]:
    """Return the shortest time of a function in nanoseconds, and its program."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    formats = tuple(Format(Layout(order), device) for order in orders)
    arrays = [jax.device_put(jnp.ones(shape, "f4"), each) for each in formats]
    compiled = jax.jit(f, in_shardings=formats).lower(*arrays).compile()
    best = math.inf
    for _ in range(runs):
        begun = time.perf_counter_ns()
        jax.block_until_ready(compiled(*arrays))
        best = min(best, time.perf_counter_ns() - begun)
    return best, module_of(compiled)


def main() -> None:
    """Time and fit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=40)
    given = options.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    draw = np.random.default_rng(0)
    times, programs, groups = [], [], []
    for shape in SHAPES:
        permutations = [*itertools.permutations(range(len(shape)))]
        for name, f in FUNCTIONS.items():
            count = f.__code__.co_argcount
            for _ in range(min(MOST, len(permutations) ** count)):
                orders = [permutations[k] for k in draw.integers(0, len(permutations), count)]
                taken, program = measured(f, shape, orders, given.runs)
                times.append(taken)
                programs.append(program)
                groups.append((name, shape))
        print(f"{shape}: {len(times)} kernels", flush=True)
    protos = Messages.of(joined([joined([each]) for each in programs]), source="programs").sub(text(1))
    counts = Kernels(protos).compiled()
    taken, seen = np.array(times), [k for k, name in enumerate(COSTS) if name != "unseen bytes"]
    costs = np.array([*COSTS.values()])
    costs[seen] = nnls(counts[:, seen] / taken[:, None], np.ones(len(taken)))[0]
    predicted = counts @ costs
    for name, cost in zip(COSTS, costs, strict=True):
        print(f"{name}: {cost:.3g} ns (now {COSTS[name]:.3g})")
    rows = {group: [k for k, other in enumerate(groups) if other == group] for group in groups}
    taus = [kendall(predicted[each], taken[each]) for each in rows.values()]
    print(f"median relative error {np.median(np.abs(predicted / taken - 1)):.2f}, ", end="")
    print(f"mean tau within a function and shape {np.mean([tau for tau in taus if tau is not None]):.2f}")


if __name__ == "__main__":
    sys.exit(main())
