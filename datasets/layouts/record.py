"""Record how long functions take with several entry layouts: ``python datasets/layouts/record.py [--rounds 30]``.

It writes ``tpunb/studies/ranking/layouts.parquet``, and ``about.toml`` beside it. All functions are compiled first;
each round then times every configuration of every function once, in random order: a slow minute slows all. The process
is pinned to one core and XLA runs in one thread. The machine should be idle: the repeat ceiling that is printed at
the end shows how far the times can be trusted.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

CORE = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORE})  # before JAX counts the cores
os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "TF_CPP_MIN_LOG_LEVEL": "3"}

import jax
import numpy as np
from functions import FUNCTIONS
from tensorflow.compiler.xla.service import hlo_pb2

from tpunb.studies.ranking.collecting import Function, Trials
from tpunb.studies.ranking.collection_files import HERE, write_collection
from tpunb.studies.ranking.measured import Measured
from tpunb.studies.ranking.metrics import kendall
from tpunb.text import plural

LAYOUTS = 24
NOT_KEPT = ("metadata", "frontend_attributes", "sharding", "statistics_viz", "original_value")
NOT_KEPT_OF_MODULES = ("stack_frame_index", "frontend_attributes", "schedule", "profile_info", "host_program_shape")


def bare(program: bytes) -> bytes:
    """Return a program without names of source files, and without what no feature is computed from."""
    module = hlo_pb2.HloModuleProto.FromString(program)
    for name in NOT_KEPT_OF_MODULES:
        module.ClearField(name)
    for computation in module.computations:
        for instruction in computation.instructions:
            for name in NOT_KEPT:
                instruction.ClearField(name)
            if instruction.opcode != "while":  # whose configuration has the number of iterations
                instruction.ClearField("backend_config")
            if instruction.literal.ByteSize() > 64:
                instruction.ClearField("literal")
    return module.SerializeToString(deterministic=True)


def prepared(seed: int) -> list[tuple[str, str, Trials, tuple]]:
    """Return (name, family, trials, AUTO) of each function and size, compiled."""
    found = []
    for f, sizes in FUNCTIONS.items():
        for number, shapes in enumerate(sizes):
            draw = np.random.default_rng(seed + number)
            function = Function(f, [jax.numpy.asarray(draw.normal(size=shape).astype("f4")) for shape in shapes])
            trials = Trials(function, function.configurations(LAYOUTS, None, seed + number), seed=seed + number)
            family = f.__name__.replace("_", " ")
            found.append((f"{family} {number + 1}", family, trials, function.auto()))
            print(f"{family} {number + 1}: {plural(len(trials.configurations), 'configuration')}", flush=True)
    return found


def measured(name: str, family: str, trials: Trials, auto: tuple) -> Measured:
    """Return what was measured, with bare programs."""
    trials.programs, trials.function.hlo = [bare(each) for each in trials.programs], bare(trials.function.hlo)
    return replace(trials.measured(family, auto=auto), name=name)


def main() -> None:
    """Record."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    group = prepared(given.seed)
    trials = [each for _, _, each, _ in group]
    for number in range(given.rounds):
        for each in random.Random(number).sample(trials, len(trials)):
            each.round()
        print(f"round {number + 1} of {given.rounds}", flush=True)
    data = [measured(*each) for each in group]
    write_collection(HERE, data)
    for each in data:
        loss = each.times[0] / each.times.min() - 1
        print(f"{each.name}: default {loss:.1%} off the best, repeat ceiling {kendall(*each.halves):.2f}")
    ceiling = np.mean([kendall(*each.halves) for each in data])
    print(f"{HERE.name}: {HERE.stat().st_size / 1000:.0f} KB, mean ceiling {ceiling:.3f}")
    facts = {
        "what": "times of common layers in JAX with up to 24 orders of the dimensions of their arguments",
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "origin": "recorded by this project",
        "licence": "Apache-2.0",
        "device": f"CPU, one core of {os.cpu_count()}, {platform.machine()}, XLA in one thread",
        "versions": f"jax {version('jax')}, jaxlib {version('jaxlib')}, python {platform.python_version()}",
        "functions": len(group),
        "rounds": given.rounds,
        "load": f"{os.getloadavg()[2]:.1f} processes ran on the machine, on average, at the end",
        "again": f"python datasets/layouts/record.py --rounds {given.rounds}",
    }
    lines = [f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"' for key, value in facts.items()]
    HERE.with_name("about.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
