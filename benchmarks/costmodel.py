"""Measure graphs of programs, and a cost model on the collection that tpunb ships.

``python benchmarks/costmodel.py [--quick]``. ``--quick`` takes a program of fewer layers and a smaller file. The last
line is one JSON object:

- ``vs_protobuf``: CPU time of a loop over the protobuf library's messages by that of ``ranking.graph``, from
  the bytes of a transformer's training step to its nodes with layer and part, edges and 140 numbers a node; median
  of pairs
- ``fit_s``: CPU seconds from the programs of 312 configurations to a fitted model
- ``rank_s``: CPU seconds of the order of 1,000 configurations whose programs were read
- ``memory``: by how much reading a made-up layout ``.npz`` of 20,000 nodes and 10,000 configurations raises the peak
  memory of a process, by the file's largest array
- ``tau``, ``ceiling``, ``top3``: means over the functions of the shipped collection, leaving one family out, from the
  compiled program: Kendall's tau, that of the measurement with itself, and how much slower the best of the first three
  is than the fastest (0.01 is 1 %)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TPUNB_CACHE": "off"}

import numpy as np
import polars as pl

import tpunb as tp
from tpunb.io import hlo_names
from tpunb.step_stats import op_names
from tpunb.studies.ranking import CostModel, Evaluation, Measured, read_tpugraphs
from tpunb.studies.ranking.measured import of_programs

BLOCKS, QUICK_BLOCKS = 24, 8  # of the transformer
PAIRS = 11
NODES, CONFIGURATIONS, CONFIGURABLE, QUICK_CONFIGURABLE = 20_000, 10_000, 400, 100
WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")


def training_step(blocks: int) -> bytes:
    """Return the compiled program of a training step of a transformer."""
    import jax
    import jax.numpy as jnp

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

    compiled = jax.jit(step).lower(shapes, jax.ShapeDtypeStruct((8, 32, 64), "float32")).compile()
    return compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()


def padded(values: list, of: int = 6, *, sums: bool = True) -> list[float]:
    """Return the first values of a list, then their sum and product."""
    first = [*values[:of], *[0] * (of - len(values[:of]))]
    if not sums:
        return first
    product = 1
    for value in values:
        product *= value
    return [*first, sum(values), product]


def by_loop(data: bytes) -> tuple[list, list, np.ndarray]:
    """Return nodes, edges and numbers of nodes by the protobuf library."""
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloModuleProto.FromString(data)
    types = [*range(13), 16, 15, 18, 13, 14, 17]
    place: dict[tuple[int, int], int] = {}
    for computation in module.computations:
        for one in computation.instructions:
            place[computation.id, one.id] = len(place)
    roots = {each.id: place[each.id, each.root_id] for each in module.computations}
    nodes, edges, rows = [], [], []
    for computation in module.computations:
        for one in computation.instructions:
            node, shape, window = len(nodes), one.shape, one.window.dimensions
            name, order = one.metadata.op_name, [*shape.layout.minor_to_major]
            layer, part = op_names.layer(name), op_names.part(name)
            nodes.append((node, one.name, one.opcode, shape.element_type, [*shape.dimensions], order, layer, part))
            edges += [(node, place[computation.id, each]) for each in {*one.operand_ids}]
            edges += [(node, roots[each]) for each in one.called_computation_ids]
            row = [one.id == computation.root_id, 0, *(shape.element_type == kind for kind in types)]
            row += [*padded([*shape.dimensions]), len(shape.tuple_shapes), one.parameter_number]
            row += padded([*one.dimensions], sums=False)
            for field in WINDOW:
                row += padded([getattr(each, field) for each in window])
            turned = [each.window_reversal for each in window]
            row += [*padded(turned, sums=False), sum(turned), len(turned) - sum(turned)]
            of = one.convolution_dimension_numbers
            row += [of.input_batch_dimension, of.input_feature_dimension]
            row += padded([*of.input_spatial_dimensions], 4, sums=False)
            row += [of.kernel_input_feature_dimension, of.kernel_output_feature_dimension]
            row += padded([*of.kernel_spatial_dimensions], 4, sums=False)
            row += [of.output_batch_dimension, of.output_feature_dimension]
            row += [one.feature_group_count, one.batch_group_count]
            for field in ("start", "stride", "limit"):
                row += padded([getattr(each, field) for each in one.slice_dimensions], 2)
            row += padded([*one.dynamic_slice_sizes], 2)
            for field in ("edge_padding_low", "edge_padding_high"):
                row += padded([getattr(each, field) for each in one.padding_config.dimensions], 2)
            rows.append([*row, one.is_stable, *padded(order, sums=False)])
    return nodes, edges, np.array(rows, np.float32)


def ours(data: bytes) -> tuple[pl.DataFrame, pl.DataFrame, np.ndarray]:
    """Return nodes, edges and numbers of nodes by tpunb; names that were seen before are forgotten."""
    hlo_names.place.cache_clear()
    graph = tp.studies.ranking.graph(data)
    return graph.nodes, graph.edges, graph.features()


def cpu_s(function: Callable, *args) -> float:
    """Return the CPU seconds of one call."""
    begun = time.process_time()
    function(*args)
    return time.process_time() - begun


def again(each: Measured) -> Measured:
    """Return a graph with its inputs computed from its programs once more."""
    return of_programs(each.name, each.family, each.frame, each.hlo, each.programs)


def memory(configurable: int) -> float:
    """Return the peak memory of reading a layout file, in a process of its own, by its largest array."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for name, nodes, count, chosen in (("small", 10, 10, 2), ("large", NODES, CONFIGURATIONS, configurable)):
            layouts = draw.integers(-1, 6, (count, chosen, 18), dtype=np.int8).astype(np.float32)
            np.savez(
                Path(folder, f"{name}.npz"),
                node_feat=np.ones((nodes, 140), np.float32),
                node_opcode=np.zeros(nodes, np.int32),
                edge_index=draw.integers(0, nodes, (2 * nodes, 2), dtype=np.int32),
                node_config_ids=np.arange(chosen, dtype=np.int32),
                node_config_feat=layouts,
                config_runtime=draw.integers(10**6, 10**7, count, dtype=np.int32),
            )
        peak = subprocess.run([sys.executable, __file__, "--read", folder], capture_output=True, text=True, check=True)
        largest = layouts.nbytes
    return int(peak.stdout) / largest


def read_both(folder: str) -> int:
    """Return by how many bytes the memory of this process rises when a large file is read after a small one."""
    peaks = []
    for name in ("small", "large"):
        (measured,) = read_tpugraphs(Path(folder, f"{name}.npz"))
        assert len(measured) == measured.numbers.shape[0]
        status = Path("/proc/self/status").read_text()  # getrusage would count the process that started this one
        peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
    return peaks[1] - peaks[0]


def row_of(found: Evaluation, method: str) -> dict:
    """Return the means of a method."""
    return found.frame.row(by_predicate=pl.col("method") == method, named=True)


def main() -> None:
    """Print what each part takes, and the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a smaller program and a smaller file")
    options.add_argument("--read", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.read:
        print(read_both(given.read))
        return
    data = training_step(QUICK_BLOCKS if given.quick else BLOCKS)
    theirs, mine = by_loop(data), ours(data)
    assert len(theirs[0]) == len(mine[0])
    assert sorted(theirs[1]) == mine[1].select("consumer", "producer").rows()
    np.testing.assert_array_equal(theirs[2], mine[2])
    pairs = []
    for _ in range(PAIRS):
        took = {each: cpu_s(each, data) for each in random.sample([by_loop, ours], 2)}
        pairs.append((took[by_loop], took[ours]))
    loop, graph = (median(pair[k] for pair in pairs) * 1e3 for k in (0, 1))
    print(f"{len(mine[0]):,} nodes, {len(mine[1]):,} edges: loop {loop:.1f} ms, tpunb {graph:.1f} ms CPU", flush=True)

    collection = tp.studies.ranking.recorded()
    part = collection[:13]
    CostModel().fit(part)  # imports scikit-learn
    fit_s = cpu_s(lambda: CostModel().fit(map(again, part)))
    model = CostModel().fit(collection)
    inputs = np.concatenate([each.inputs["program"] for each in collection] * 2)[:1000]
    frame = pl.concat([each.frame for each in collection] * 2)[:1000]
    thousand = Measured("a thousand", "any", frame, {"program": inputs})
    rank_s = median(cpu_s(lambda: np.argsort(model.predict(thousand))) for _ in range(5))
    print(
        f"fit to {sum(map(len, part))} configurations {fit_s:.2f} s, order of {len(thousand):,} {rank_s:.4f} s CPU",
        flush=True,
    )

    found = {features: CostModel(features).evaluate(collection, by="family") for features in ("program", "graph")}
    for evaluation in found.values():
        print(evaluation, flush=True)
    if given.quick:
        print(f"left out: {BLOCKS} blocks, {CONFIGURABLE} configurable nodes")
    program = found["program"]
    figures = {
        "vs_protobuf": round(median(pair[0] / pair[1] for pair in pairs), 2),
        "fit_s": round(fit_s, 3),
        "rank_s": round(rank_s, 5),
        "memory": round(memory(QUICK_CONFIGURABLE if given.quick else CONFIGURABLE), 3),
        "tau": round(row_of(program, "model")["tau"], 4),
        "ceiling": round(row_of(program, "repeat ceiling")["tau"], 4),
        "top3": round(row_of(program, "model")["top3"], 5),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
