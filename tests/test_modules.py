"""PyTorch's operators and modules behind kernels, spelled out and against the JSON of real captures."""

import gzip
import json
from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.step_stats.ops import scoped, split
from tpunb.testing import toy_events

CPU, GPU = "/host:CPU", "/device:GPU:0"


def with_ids(events, ids, ops):
    return events.with_columns(correlation_id=pl.Series(ids, dtype=pl.UInt64), tf_op=pl.Series(ops, dtype=schema.NAME))


def paths(events):
    on_device = pl.col("plane").cast(pl.String) == GPU
    ops = scoped(events).filter(on_device)["tf_op"].cast(pl.String)
    return [(None, None) if op is None else split(op) for op in ops]


def test_a_kernel_is_in_the_modules_around_its_launch():
    events = toy_events(
        (CPU, "python", "$nn.Module: Net_0", 0, 100),
        (CPU, "python", "$nn.Module: Conv2d_0", 10, 20),
        (CPU, "python", "$train.py(3): step", 0, 200),
        (CPU, "python", "launch", 15, 1),
        (CPU, "python", "launch", 30, 1),  # Conv2d_0 has ended
        (CPU, "python", "launch", 150, 1),
        (CPU, "autograd", "launch", 16, 1),  # another thread
        *((GPU, "Stream #7", f"kernel {number}", 100 + 10 * number, 9) for number in range(5)),
    )
    ops = [None] * 7 + ["aten::conv2d", "aten::add", "aten::add", "aten::mul", None]
    assert paths(with_ids(events, [None] * 3 + [1, 2, 3, 4, 1, 2, 3, 4, 1], ops)) == [
        ("Net_0/Conv2d_0", "aten::conv2d"),
        ("Net_0", "aten::add"),
        (None, "aten::add"),
        (None, "aten::mul"),
        ("Net_0/Conv2d_0", None),
    ]


def test_events_without_modules_stay_as_they_are():
    events = toy_events((CPU, "python", "launch", 15, 1), (GPU, "Stream #7", "kernel", 20, 9))
    assert scoped(events) is events
    assert paths(with_ids(events, [1, 1], [None, "aten::add"])) == [(None, "aten::add")]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=9), st.integers(0, 60))
def test_modules_are_the_frames_that_run_when_the_kernel_is_launched(frames, sent):
    """Frames of one thread are nested: of two that overlap, the one that began later ends with the other at most."""
    ends = []
    for begin, dur in sorted(frames, key=lambda frame: (frame[0], -frame[1])):
        around = [end for start, end in ends if start <= begin < end]
        ends.append((begin, min([begin + dur, *around])))
    rows = [(CPU, "python", f"$nn.Module: M_{number}", a, b - a) for number, (a, b) in enumerate(ends)]
    events = toy_events(*rows, (CPU, "python", "launch", sent, 1), (GPU, "Stream #7", "kernel", 99, 9))
    expected = "/".join(f"M_{number}" for number, (begin, end) in enumerate(ends) if begin <= sent < end)
    found = paths(with_ids(events, [None] * len(rows) + [1, 1], [None] * events.height))
    assert found == [(expected or None, None)]


@pytest.mark.parametrize(
    ("name", "linked"),
    [("gpu-v100_pytorch_resnet50-workers0.pt.trace.json.gz", 9180), ("gpu-b200_pytorch_vllm.trace.json.gz", 927)],
)
def test_operators_and_modules_are_those_of_the_json(real_profiles, name, linked):
    items = [
        item
        for item in json.loads(gzip.decompress((real_profiles / name).read_bytes()))["traceEvents"]
        if item["ph"] == "X"
    ]
    ops = {item["args"]["External id"]: item for item in items if item["cat"] in {"Operator", "cpu_op"}}
    frames = [item for item in items if item["name"].startswith("nn.Module: ")]
    expected = Counter()
    for kernel in items:
        if kernel["cat"].lower().removeprefix("gpu_") not in {"kernel", "memcpy", "memset"}:
            continue
        op = ops.get(kernel["args"].get("External id", kernel["args"].get("external id")))
        around = [] if op is None else [frame for frame in frames if _within(op, frame)]
        path = "/".join(frame["name"].removeprefix("nn.Module: ") for frame in sorted(around, key=lambda f: f["ts"]))
        expected[path or None, op and op["name"]] += 1
    assert sum(count for (_, op), count in expected.items() if op) == linked
    layers = tp.steps(tp.load(real_profiles / name), by="whole").layers.filter(pl.col("side") == "device")
    counts = layers.group_by(pl.col("layer", "tf_op").cast(pl.String)).agg(pl.col("count").sum())
    assert {row[:2]: row[2] for row in counts.rows()} == expected


def _within(op, frame):
    return op["tid"] == frame["tid"] and frame["ts"] <= op["ts"] < frame["ts"] + frame["dur"]
