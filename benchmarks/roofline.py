"""Measure how fast and how exactly the work of programs is counted, and how fast the roofline of a run is.

``python benchmarks/roofline.py [--quick]``. ``--quick`` takes a program of fewer layers and a tenth of the events. The
last line is one JSON object:

- ``vs_protobuf``: CPU time of a loop over the protobuf library's messages by that of `tpunb.costs.hlo_cost.work`, from
  the bytes of a transformer's training step to FLOPs and bytes of its instructions; median of interleaved pairs
- ``roofline_s``: CPU seconds of ``tp.roofline(steps, "instruction")`` after ``tp.steps`` of a million events of a TPU
- ``flops_error``, ``bytes_error``: largest relative difference from XLA's own ``cost_analysis`` over the programs
- ``overhead``: CPU time of captured trainings with their programs kept by that of others without: median of interleaved
  pairs, and its interval as in `benchmarks/overhead.py`, which measures what a capture costs in all
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TPUNB_CACHE": "off"}

import jax
import jax.numpy as jnp
import overhead
import polars as pl
import xspaces
from jax import lax
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

import tpunb as tp
from programs import trainings
from tpunb.costs.hlo_cost import work
from tpunb.profiler.sources.local import Local
from tpunb.protobuf.table import Messages

EVENTS, QUICK_EVENTS = 1_000_000, 100_000
BLOCKS, QUICK_BLOCKS = 24, 6  # of the transformer
PAIRS = 11
CAPTURES, QUICK_CAPTURES = 12, 2  # pairs of captured trainings
NO_WORK = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"}
NO_FLOPS = NO_WORK | {"copy", "reshape", "transpose", "broadcast", "slice", "concatenate", "pad", "iota", "reverse"}
TRANSCENDENTAL = {"tanh", "exponential", "log", "sqrt", "rsqrt", "power", "logistic", "exponential-minus-one"}
BITS = {value: int("".join(filter(str.isdigit, name)) or 8) for name, value in xla_data_pb2.PrimitiveType.items()}


def transformer(blocks: int):
    """Return a training step of blocks of attention and an MLP, and its arguments' shapes."""
    names = {"qkv": (64, 192), "out": (64, 64), "up": (64, 256), "down": (256, 64)}
    shapes = [{name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in names.items()} for _ in range(blocks)]

    def forward(params, x):
        for block in params:
            q, k, v = jnp.split((x @ block["qkv"]).reshape(8, 32, 4, 48), 3, axis=-1)
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4, -1)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(8, 32, 64) @ block["out"]
            x = x + jax.nn.gelu(x @ block["up"]) @ block["down"]
        return (x**2).mean()

    def step(params, x):
        return jax.tree.map(lambda value, grad: value - 0.1 * grad, params, jax.grad(forward)(params, x))

    return step, (shapes, jax.ShapeDtypeStruct((8, 32, 64), "float32"))


def programs(blocks: int):
    """Return functions and their arguments, by name; the first is the one that is timed."""

    def of(*shapes):
        return tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)

    def convolution(x, kernel):
        out = lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (out**2).sum()

    def pooled(x):
        return (lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2).sum()

    images = (8, 28, 28, 16)
    indices = jax.ShapeDtypeStruct((50,), "int32")
    return {
        "transformer": transformer(blocks),
        "gradient of a convolution": (jax.grad(convolution, (0, 1)), of(images, (3, 3, 16, 32))),
        "gradient of pooling": (jax.grad(pooled), of(images)),
        "gradient of an embedding": (jax.grad(lambda a, i: (a[i] ** 2).sum()), (*of((1000, 64)), indices)),
        "scan": (
            lambda h, xs: lax.scan(lambda h, x: (jnp.tanh(h @ h + x), h.sum()), h, xs),
            of((16, 16), (20, 16, 16)),
        ),
        "sort": (jnp.sort, of((1000,))),
    }


def compiled(function: Callable, shapes: tuple) -> tuple[bytes, dict[str, float], set[str]]:
    """Return the bytes of a program, what XLA counts for it, and the names of the instructions of its entry."""
    program = jax.jit(function).lower(*shapes).compile()
    proto = program.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    module = hlo_pb2.HloModuleProto.FromString(proto)
    entry = next(each for each in module.computations if each.id == module.entry_computation_id)
    names = {instruction.name for instruction in entry.instructions}
    return hlo_pb2.HloProto(hlo_module=module).SerializeToString(), program.cost_analysis(), names


def ours(data: bytes) -> pl.DataFrame:
    """Return the work of instructions by tpunb."""
    return work(Messages.of(data, source="program"))


def by_loop(data: bytes) -> dict[str, tuple[float, float]]:
    """Return FLOPs and bytes of instructions by the protobuf library, of the opcodes of the transformer alone."""
    module = hlo_pb2.HloProto.FromString(data).hlo_module
    computations = {each.id: each for each in module.computations}
    totals: dict[int, float] = {}
    found: dict[str, tuple[float, float]] = {}

    def elements(shape):
        return math.prod(shape.dimensions)

    def size(shape):
        return sum(map(size, shape.tuple_shapes)) or elements(shape) * BITS[shape.element_type] / 8

    def flops(one, operands):
        out, called = elements(one.shape), [total(each) for each in one.called_computation_ids]
        if one.opcode == "dot":
            sizes = operands[0].shape.dimensions
            return 2 * out * math.prod(sizes[k] for k in one.dot_dimension_numbers.lhs_contracting_dimensions)
        if one.opcode in ("fusion", "call"):
            return called[0]
        if one.opcode == "reduce":
            return called[0] * max(elements(operands[0].shape) - out, 0)
        return 0 if one.opcode in NO_FLOPS | TRANSCENDENTAL else out

    def total(number):
        if number not in totals:
            of = {one.id: one for one in computations[number].instructions}
            totals[number] = 0.0
            for one in of.values():
                operands = [of[each] for each in one.operand_ids]
                moved = 0 if one.opcode in NO_WORK else size(one.shape) + sum(size(each.shape) for each in operands)
                found[one.name] = (flops(one, operands), moved)
                totals[number] += found[one.name][0]
        return totals[number]

    for number in computations:
        total(number)
    return found


def cpu_s(function: Callable, *args) -> float:
    """Return the CPU seconds of one call."""
    begun = time.process_time()
    function(*args)
    return time.process_time() - begun


def kept(pairs: int) -> list[float]:
    """Return the ratio of the CPU time of a captured training with its programs kept to that without."""
    request, (train, step_s) = Local.programs, overhead.calibrated(trainings.by_jax, 0.005)

    def captured_s(programs: bool, folder: str) -> float:
        Local.programs = request if programs else lambda _: b""
        begun = time.process_time()
        with tp.capture(folder) as run:
            train(round(3 / step_s), run)
        assert Path(folder, "programs").is_dir() == programs
        return time.process_time() - begun

    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        captured_s(True, f"{folder}/first")
        for pair in range(pairs):
            took = {each: captured_s(each, f"{folder}/{pair}-{each}") for each in random.sample([True, False], 2)}
            ratios.append(took[True] / took[False])
    Local.programs = request
    return [round(value, 3) for value in overhead.interval(ratios)]


def main() -> None:
    """Print what each part takes, and the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a smaller program and fewer events")
    quick = options.parse_args().quick
    errors: dict[str, list[float]] = {"flops": [], "bytes": []}
    timed = b""
    for name, (function, shapes) in programs(QUICK_BLOCKS if quick else BLOCKS).items():
        data, by_xla, entry = compiled(function, shapes)
        timed = timed or data
        rows = ours(data).filter(pl.col("hlo_op").cast(pl.String).is_in([*entry]))
        for kind, key in (("flops", "flops"), ("bytes", "bytes accessed")):
            expected = by_xla.get(key, 0.0)
            errors[kind].append(abs(rows[kind].sum() - expected) / expected if expected else 0.0)
        print(f"{name}: FLOPs {errors['flops'][-1]:.1e}, bytes {errors['bytes'][-1]:.1e} from XLA's", flush=True)
    loop, table = by_loop(timed), ours(timed)
    same = abs(sum(flops for flops, _ in loop.values()) / table["flops"].sum() - 1)
    print(f"{len(table)} instructions; the loop's FLOPs differ by {same:.1e}", flush=True)
    pairs = [(cpu_s(by_loop, timed), cpu_s(ours, timed)) for _ in range(PAIRS)]
    print(f"loop {median(p[0] for p in pairs) * 1e3:.1f} ms, ours {median(p[1] for p in pairs) * 1e3:.1f} ms CPU")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.xplane.pb")
        path.write_bytes(xspaces.made_up(QUICK_EVENTS if quick else EVENTS))
        steps = tp.steps(tp.load(path))
        roofline_s = cpu_s(lambda: tp.roofline(steps, "instruction", device="TPU v5e"))
    if quick:
        print(f"left out: {EVENTS:,} events, {BLOCKS} blocks, {CAPTURES} pairs of captures")
    figures = {
        "vs_protobuf": round(median(theirs / mine for theirs, mine in pairs), 2),
        "roofline_s": round(roofline_s, 3),
        "flops_error": max(errors["flops"]),
        "bytes_error": max(errors["bytes"]),
        "overhead": kept(QUICK_CAPTURES if quick else CAPTURES),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
