"""What is slow about single calls of PyTorch's operators, by their shapes and their time at the roof."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from tpunb.analysis.roofline import Roofline
from tpunb.costs.torch_cost import ATTENTION, CONVOLUTION, ELEMENTWISE, EXPERTS, PRODUCT, Call, matrices

_SLOW = 0.5  # efficiency below which a call is slow: as XProf calls a utilisation under 50 % low
_LEAST = 0.05  # share of step time of a call worth a sentence
_CHAIN = 0.2  # share of step time of elementwise operations worth a fusion
_AGAIN = 0.1  # share of step time of forward passes that run again
_TILE = 128  # rows and columns of a result that one unit computes at a time: tiles of cuBLAS, hipBLASLt and CUTLASS
_THIN = 64  # rows or columns of a product below which its factors are read for little work
_SMALL = 64  # positions of a result below which a convolution of many channels is a product with few rows
_MANY = 512  # channels
_SHORT, _LONG = 512, 4096  # lengths of sequences
_LINE = 16  # bytes of a row to which tensor cores and vector loads align
_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "fp8": 1, "int8": 1}
_MOST = 3  # calls of a phase in advice


def call_metrics(metrics: pl.DataFrame, roof: Roofline) -> pl.DataFrame:
    """Return one row per phase and slow call, with the metrics of the phase, most time first.

    ``fault``, the name of a cause of calls; ``call``, ``operator`` and ``operands``; ``time``, share of
    ``base``; ``times``, its time as a multiple of that at the roof; ``gain``, share of step time that is lost to the
    fault; ``call_ps``, mean time of a call; and sizes: ``tiles``, ``units``, ``smallest``, ``odd``, ``length``,
    ``positions``, ``channels``, ``each`` (rows of an expert).
    """
    of_calls, total = roof.calls(), roof.work.group_by("what").agg(all_ps=pl.col("self_ps").sum())
    rows = of_calls.join(total, on="what").join(metrics.select("name", "busy"), left_on="what", right_on="name")
    rows = rows.with_columns(time=pl.col("busy") * pl.col("self_ps") / pl.col("all_ps")).sort("time", descending=True)
    found = list[dict[str, Any]]()
    for (phase,), calls in rows.group_by("what", maintain_order=True):
        again = float(calls["time"].filter(calls["recomputed"]).sum())
        if again > _AGAIN:
            found.append({"name": phase, "fault": "recomputation", "time": again, "gain": again})
        calls = calls.filter(~pl.col("recomputed"))  # their sentence is that one
        faults = (_with_fault(row, roof) for row in calls.filter(pl.col("time") > _LEAST).iter_rows(named=True))
        found += [{"name": phase, **fault} for fault in [*filter(None, faults)][:_MOST]]
        chain = calls.filter(pl.col("category") == ELEMENTWISE)
        if len(chain) > 1 and (time := float(chain["time"].sum())) > _CHAIN:
            # two that are fused read and write about as much as one of them
            found.append(
                {"name": phase, "fault": "unfused", "time": time, "gain": time / 2, "operator": chain["call"][0]}
            )
    frame = pl.DataFrame(found, schema=_COLUMNS, orient="row")
    return metrics.join(frame, on="name", how="inner", maintain_order="right")


_COLUMNS = {
    **dict.fromkeys(("name", "fault", "operator", "operands"), pl.String()),
    **dict.fromkeys(("time", "times", "gain", "each"), pl.Float64()),
    **dict.fromkeys(("call_ps", "tiles", "units", "smallest", "odd", "length", "positions", "channels"), pl.Int64()),
}


def _with_fault(row: Mapping[str, Any], roof: Roofline) -> dict[str, Any] | None:
    """Return a call with what is slow about it, None if nothing is known to be."""
    operator, _, operands = row["call"].partition(" ")
    tensors = [[int(size) for size in sizes.split(",") if size] for sizes in re.findall(r"\[([\d,]*)\]", operands)]
    roof_ps = row["roof_ps"]
    efficiency = min(roof_ps / row["self_ps"], 1.0) if roof_ps is not None and row["self_ps"] else None
    units = roof.device.units if roof.device else None
    sizes = _sizes(row, operator, operands, tensors, units) or {"fault": "far from its roof"}
    if (efficiency is not None and efficiency >= _SLOW) or (efficiency is None and "each" not in sizes):
        return None
    gain = row["time"] * ((1 - efficiency / 0.7) if efficiency is not None else 1 - sizes["each"] / _TILE)
    return {
        "operator": operator,
        "operands": operands,
        "time": row["time"],
        "times": 1 / efficiency if efficiency else None,
        "gain": gain,
        "call_ps": round(row["self_ps"] / max(row["count"], 1)),
        "units": units,
        **sizes,
    }


def _sizes(
    row: Mapping[str, Any], operator: str, operands: str, tensors: list[list[int]], units: int | None
) -> dict[str, Any]:
    """Return the fault of a slow call by its shapes, with the sizes that show it; empty if they do not."""
    try:
        if row["category"] == PRODUCT:
            return _of_product(row, matrices(Call(operator, tensors, ["float"] * len(tensors), [], [])), units)
        if row["category"] == CONVOLUTION:
            return _of_convolution(row, operands, *_convolved(operator, tensors))
        if row["category"] == ATTENTION:
            length = max(tensors[-1][-2:-1] + tensors[0][-2:-1])
            return (
                {"fault": "short attention" if length <= _SHORT else "long attention", "length": length}
                if (length <= _SHORT or length >= _LONG)
                else {}
            )
        if row["category"] == EXPERTS:
            (tokens, _), (experts, *_), _, (_, routes) = tensors
            each = tokens * routes / max(experts, 1)
            return {"fault": "sparse experts", "each": each} if each < _TILE // 2 else {}
    except (IndexError, KeyError, ValueError):  # shapes of another form of the operator
        return {}
    return {"fault": "slow memory"} if row["category"] == ELEMENTWISE else {}


def _of_product(row: Mapping[str, Any], sizes: tuple[int, int, int, int], units: int | None) -> dict[str, Any]:
    batch, rows, columns, inner = sizes
    tiles, odd = batch * math.ceil(rows / _TILE) * math.ceil(columns / _TILE), _odd(row["dtype"], (inner, columns))
    if min(rows, columns) < _THIN and row["memory_ps"] > row["compute_ps"]:
        return {"fault": "thin product", "smallest": min(rows, columns)}
    if units is not None and tiles < units // 2:
        return {"fault": "few tiles", "tiles": tiles}
    return {"fault": "odd sizes", "odd": odd} if odd else {}


def _convolved(operator: str, tensors: list[list[int]]) -> tuple[list[int], list[int]]:
    at = 1 if operator.endswith("_backward") else 0
    return tensors[at], tensors[at + 1]


def _of_convolution(row: Mapping[str, Any], operands: str, x: list[int], weight: list[int]) -> dict[str, Any]:
    positions, channels = math.prod(x[2:]), max(weight[:2])
    if operands.endswith("transposed"):
        return {"fault": "transposed convolution"}
    if weight[1] == 1 and x[1] > 1:
        return {"fault": "depthwise convolution", "channels": x[1]}
    if positions <= _SMALL and channels >= _MANY:
        return {"fault": "small images", "positions": positions, "channels": channels}
    odd = _odd(row["dtype"], weight[:2])
    return {"fault": "odd sizes", "odd": odd} if odd else {}


def _odd(dtype: str, sizes: Iterable[int]) -> int | None:
    """Return a size whose rows do not end at a multiple of 16 bytes."""
    return next((size for size in sizes if size * _BYTES.get(dtype, _LINE) % _LINE), None)
