"""Files of the TpuGraphs dataset: ``.npz`` of its tile and layout collections, and its raw tuning protos."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tpunb.errors import BadProfile, ProfileNotFound
from tpunb.protobuf.table import Messages, integer, text
from tpunb.studies.ranking.columns import CONFIGURATIONS
from tpunb.studies.ranking.graphs import of_bytes
from tpunb.studies.ranking.measured import Floats, Measured
from tpunb.studies.ranking.node_features import Floats32, layout_features, tile_features
from tpunb.text import format_error, plain

_ARRAYS = {  # n nodes, m edges, c configurations, k configurable nodes
    **{"node_feat": "n 140", "node_opcode": "n", "edge_index": "m 2", "config_runtime": "c"},
    **{"config_feat": "c 24", "config_runtime_normalizers": "c"},
    **{"node_config_ids": "k", "node_config_feat": "c k 18"},
}
_NAMES = [*_ARRAYS]
_OF_TILES, _OF_LAYOUTS = _NAMES[:6], _NAMES[:4] + _NAMES[6:]
_CHUNK = 1 << 22  # numbers of layouts at a time


@dataclass(frozen=True, eq=False)
class TpuGraph:
    """Graph of an ``.npz``, with what `ProgramGraph` has of a program."""

    node_feat: Floats32
    opcodes: Any
    edges: Any

    def features(self) -> Floats32:
        """Return the 140 numbers of each node as published, shape (n, 140)."""
        return self.node_feat

    def edge_index(self, *, flow: bool = False) -> Any:
        """Return the edges, shape (m, 2), from consumer to producer; along the data if `flow`."""
        return self.edges[:, ::-1] if flow else self.edges


def read_tpugraphs(path: str | PathLike[str]) -> Iterator[Measured]:
    """Yield the graphs of a file or a folder of TpuGraphs with their configurations, one in memory at a time.

    Parameters
    ----------
    path
        ``.npz`` of a tile or layout collection, ``.pb`` of a ``TuningData`` or ``ModuleTuningData``, or a folder of
        such files. Times are those in nanoseconds, never cycles. Runs with an error are left out.

    Raises
    ------
    ProfileNotFound
        If there is no such file.
    BadProfile
        If a file is damaged, holds Python objects, or has arrays of other shapes.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted(each for each in root.rglob("*") if each.suffix in (".npz", ".pb"))
    if not files:
        raise ProfileNotFound(f"no .npz and no .pb at {plain(str(path))}", hint="download a part of TpuGraphs first")
    for file in files:
        yield from (_npz(file),) if file.suffix == ".npz" else _protos(file)


def _bad(file: Path, problem: str) -> BadProfile:
    return BadProfile(f"{plain(str(file))}: {problem}", hint="copy the file again from the dataset")


def _npz(file: Path) -> Measured:
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in _NAMES if name in archive.files and _fits(archive, name)}
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise _bad(file, f"no .npz of TpuGraphs: {format_error(error)}") from error
    sizes: dict[str, int] = {}
    for name in _OF_LAYOUTS if "node_config_feat" in arrays else _OF_TILES:
        if name not in arrays:
            raise _bad(file, f"there is no array {name}")
        shape, wanted = arrays[name].shape, _ARRAYS[name].split()
        pairs = zip(shape, wanted, strict=False)
        fits = [size == (int(key) if key.isdigit() else sizes.setdefault(key, size)) for size, key in pairs]
        if len(shape) != len(wanted) or not all(fits):
            raise _bad(file, f"{name} has shape {shape}, not ({', '.join(wanted)}) with {sizes}")
    ids = arrays.get("node_config_ids", np.zeros(0, int))
    for name, nodes in (("edge_index", arrays["edge_index"]), ("node_config_ids", ids)):
        if nodes.size and not 0 <= nodes.min() <= nodes.max() < sizes["n"]:
            raise _bad(file, f"{name} has nodes outside 0 to {sizes['n'] - 1}")
    graph = TpuGraph(arrays["node_feat"], arrays["node_opcode"], arrays["edge_index"])
    numbers = arrays["node_config_feat" if "node_config_feat" in arrays else "config_feat"]
    return _measured(file.stem, graph, (numbers, ids), arrays["config_runtime"], arrays.get(_NAMES[5]))


def _fits(archive: Any, name: str) -> bool:
    """Raise ValueError unless a member of an archive has numbers, and the size that its header states."""
    with archive.zip.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    size = archive.zip.getinfo(f"{name}.npy").file_size
    if dtype.kind not in "iuf" or size < np.prod(shape, dtype=float) * dtype.itemsize:
        raise ValueError(f"{name} of shape {shape} and type {dtype} in {size} bytes")
    return True


def _protos(file: Path) -> Iterator[Measured]:
    """Yield the graphs of a TuningData, or that of a ModuleTuningData, by the tags of tuning.proto."""
    top = Messages.of(file.read_bytes(), source=plain(str(file)))
    modules = top if len(top.sub(text(3))) else top.sub(text(1))
    if not len(modules):
        raise _bad(file, "neither TuningData nor ModuleTuningData")
    for row in range(len(modules)):
        module = modules[row : row + 1]
        code, runs, ids = module.sub(text(1)), module.sub(text(3)), module.numbers(4)[1]
        if not len(code):
            raise _bad(file, f"module {row} has no program")
        graph = of_bytes(code.buffer[code.start[0] : code.stop[0]].tobytes())
        error, profile, default = runs.columns(integer(3), text(4), integer(5))
        times = runs.at(profile).columns(integer(4))[0]
        ran = (error == 0) & (times > 1)
        runs, times, default = runs[ran], times[ran], default[ran] > 0
        if ids.size:
            nodes = runs.at(runs.columns(text(2))[0]).sub(text(1)).sub(text(1))
            if len(nodes) != len(runs) * ids.size:
                raise _bad(file, f"{len(nodes)} layouts in {len(runs)} runs of {ids.size} nodes")
            numbers = layout_features(nodes).reshape(len(runs), ids.size, -1)
        else:
            numbers = tile_features(runs.at(runs.columns(text(1))[0]).sub(text(1)), len(runs))
        of_default = np.full(times.size, times[default][0]) if default.any() else None
        yield _measured(graph.name, graph, (numbers, ids), times, of_default, default)


def _measured(
    name: str, graph: Any, given: tuple[Any, Any], times: Any, default: Any, is_default: Any = None
) -> Measured:
    """Return a graph of the dataset with its configurations, from times in nanoseconds."""
    numbers, ids = given
    tiles = numbers.ndim == 2
    columns = {
        "configuration": np.arange(len(times)),
        "default": is_default,
        "time_ps": times.astype(np.int64) * 1000,
        "default_ps": None if default is None else default.astype(np.int64) * 1000,
        "tile": numbers[:, 15].astype(float) if tiles else None,
    }
    series = {key: pl.Series(value, dtype=CONFIGURATIONS[key]) for key, value in columns.items() if value is not None}
    frame = pl.DataFrame(series).with_columns(pl.lit(None).alias(key) for key in CONFIGURATIONS if key not in series)
    inputs = _of_tiles(numbers) if tiles else _of_layouts(numbers, graph.features()[ids, 28])
    family = re.sub(r"[._-]*-?\d+$", "", name) or name
    return Measured(name, family, frame, {"graph": inputs - np.median(inputs, axis=0)}, graph, numbers=numbers)


def _of_tiles(numbers: Floats32) -> Floats:
    """Return the logarithms of bounds, and their products in pairs."""
    logs = np.log1p(numbers.astype(float))
    pairs = combinations_with_replacement(range(logs.shape[1]), 2)
    return np.hstack([logs, np.stack([logs[:, i] * logs[:, j] for i, j in pairs], axis=1)])


def _of_layouts(numbers: Floats32, elements: Floats32) -> Floats:
    """Return of each tensor the share of elements in nodes whose minor dimension is not the last."""
    count, nodes = numbers.shape[:2]
    step = max(1, _CHUNK // (18 * max(1, nodes)))
    shares = [np.zeros((0, 3))]
    for begin in range(0, count, step):
        part = numbers[begin : begin + step].reshape(-1, nodes, 3, 6)
        shares.append(np.einsum("ckt,k->ct", part[..., 0] < part.max(-1), elements / max(float(elements.sum()), 1)))
    return np.concatenate(shares)
