"""Layers spelled out in rows, and a device on which they take round times."""

import polars as pl

from tpunb import schema
from tpunb.frames import Steps
from tpunb.frames.hardware import Device
from tpunb.testing import toy_steps

UNIT = Device("unit", 1e12, 1e9, 1e12, "none")  # 1 FLOP and 1 byte a picosecond


def layers(*rows, **more):
    """Steps with layers: (step, layer, instruction, category, self_ps, flops, bytes) each, of program 7."""
    toy = toy_steps("aab")
    names = ["step", "layer", "hlo_op", "category", "self_ps", "flops", "bytes"]
    base = {"host": toy.frame["host"][0], "side": "device", "program": 7, "count": 1, "flops_source": "program"}
    made = [base | {"op": row[2]} | dict(zip(names, row, strict=True)) | more for row in rows]
    frame = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS} for row in made], schema=schema.LAYERS)
    return Steps(toy.frame, toy.ops, read_layers=lambda: frame)


DENSE = (0, "dense", "dot", "convolution", 100, 80.0, 40.0)
AGAIN = (1, "dense", "dot", "convolution", 120, 80.0, 40.0)
NORM = (0, "norm", "add", "loop fusion", 100, 10.0, 50.0)
COPY = (0, None, "copy-done", "copy-done", 10, 0.0, 40.0)
CALL = (0, "dense", "call", "custom-call", 70, None, None)
