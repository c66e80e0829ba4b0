"""PyTorch's operators, modules and directions behind kernels, spelled out and against the JSON of real captures."""

import gzip
import json
from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.io import chrome_trace

HOST, DEVICE = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}
MATRICES = {"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]}


def span(ts, dur, name, cat="cpu_op", place=HOST, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **place, "args": args}


def module(ts, dur, name, place=HOST):
    return span(ts, dur, f"nn.Module: {name}", "python_function", place)


def launch(ts, number, place=HOST):
    return span(ts, 1, "cudaLaunchKernel", "cuda_runtime", place, correlation=number)


def kernel(number, dur=9, **args):
    place = DEVICE | {"ts": 1000 + 100 * number}
    return span(1000, dur, f"kernel_{number}", "kernel", place, device=0, stream=7, correlation=number, **args) | place


def calls(*spans):
    """Return what is known of each kernel, by its number."""
    data = json.dumps({"schemaVersion": 1, "traceEvents": [*spans]}).encode()
    rows = chrome_trace.read(data, source="test").calls.drop("host", "device", "start_ps")
    return {int(row.pop("kernel").removeprefix("kernel_")): row for row in rows.iter_rows(named=True)}


def work(*spans):
    """Return FLOPs and bytes of each kernel, by its number."""
    data = json.dumps({"schemaVersion": 1, "traceEvents": [*spans]}).encode()
    rows = chrome_trace.read(data, source="test").events.filter(pl.col("name").cat.starts_with("kernel_"))
    names = rows["name"].cast(pl.String).str.extract(r"(\d+)").cast(pl.Int64)
    return dict(zip(names, rows.select("flops", "bytes").rows(), strict=True))


def test_a_kernel_is_of_the_operators_and_modules_around_its_launch():
    found = calls(
        module(0, 100, "Net_0"),
        module(10, 20, "Linear_0"),
        span(11, 15, "aten::linear"),
        span(12, 10, "aten::addmm", **MATRICES),
        launch(15, 1),
        span(40, 5, "aten::add"),
        launch(41, 2),
        span(150, 5, "aten::mul"),
        launch(151, 3),
        launch(160, 4),
        *map(kernel, (1, 2, 3, 4, 5)),
    )
    assert found == {
        1: {
            "operator": "aten::addmm",
            "parents": "aten::linear",
            "module": "Net_0/Linear_0",
            "part": "forward",
            "shape": "f32[4,8] f32[8,2]",
            "dtype": "f32",
        },
        2: dict.fromkeys(found[2]) | {"operator": "aten::add", "module": "Net_0", "part": "forward"},
        3: dict.fromkeys(found[3]) | {"operator": "aten::mul"},
    }


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=9), st.integers(0, 60))
def test_modules_are_the_frames_that_run_when_the_kernel_is_launched(frames, sent):
    """Frames of one thread are nested: of two that overlap, the one that began later ends with the other at most."""
    ends = []
    for begin, dur in sorted(frames, key=lambda frame: (frame[0], -frame[1])):
        around = [end for start, end in ends if start <= begin < end]
        ends.append((begin, min([begin + dur, *around])))
    rows = [module(a, b - a, f"M_{number}") for number, (a, b) in enumerate(ends)]
    expected = "/".join(f"M_{number}" for number, (begin, end) in enumerate(ends) if begin <= sent < end)
    found = calls(*rows, span(sent, 1, "aten::mm"), launch(sent, 1), kernel(1))
    assert found[1]["module"] == (expected or None)


ENGINE = {"pid": 1, "tid": 2}


def training(**frame):
    """A step of two modules on one thread and its backward pass on another, in which one runs again."""
    again = [span(420, 60, "torch/utils/checkpoint.py(1500): recompute_fn", "python_function", ENGINE)] if frame else []
    forward, backward = {"Fwd thread id": 0}, {"Fwd thread id": 1}
    return calls(
        module(0, 100, "Net_0"),
        module(10, 20, "Linear_0"),
        span(12, 10, "aten::linear", **{"Sequence number": 5}, **forward),
        span(13, 8, "aten::addmm", **{"Sequence number": 5}, **forward),
        launch(15, 1),
        module(50, 20, "Linear_1"),
        span(52, 10, "aten::addmm", **{"Sequence number": 6}, **forward),
        launch(55, 2),
        span(
            400,
            99,
            "autograd::engine::evaluate_function: AddmmBackward0",
            place=ENGINE,
            **{"Sequence number": 6},
            **backward,
        ),
        *again,
        module(425, 50, "Linear_1", ENGINE),
        span(430, 20, "aten::addmm", place=ENGINE, **{"Sequence number": 1}, **forward),
        launch(435, 3, ENGINE),
        span(490, 5, "aten::mm", place=ENGINE),
        launch(491, 4, ENGINE),
        span(500, 90, "AddmmBackward0", place=ENGINE, **{"Sequence number": 5}, **backward),
        span(510, 20, "aten::mm", place=ENGINE),
        launch(511, 5, ENGINE),
        span(600, 50, "Optimizer.step#SGD.step", "user_annotation"),
        span(610, 20, "aten::add_"),
        launch(611, 6),
        *map(kernel, range(1, 7)),
    )


@pytest.mark.parametrize("frame", [{}, {"frame": True}], ids=["by sequence numbers", "by Python's frames"])
def test_what_runs_backward_again_and_as_update_is_of_the_module_of_its_operator(frame):
    found = {number: (call["part"], call["module"]) for number, call in training(**frame).items()}
    if not frame:  # frames of Python without that of a checkpoint: derivatives of derivatives may be recorded likewise
        assert found[3] == ("backward", "Net_0/Linear_1")
    assert found | {3: None} == {
        1: ("forward", "Net_0/Linear_0"),
        2: ("forward", "Net_0/Linear_1"),
        3: None,
        4: ("backward", "Net_0/Linear_1"),
        5: ("backward", "Net_0/Linear_0"),
        6: ("update", None),
    }
    assert not frame or found[3] == ("recomputation", "Net_0/Linear_1")


def test_without_frames_of_python_what_keeps_operands_within_the_backward_pass_runs_again():
    backward = {"Sequence number": 3, "Fwd thread id": 1}
    found = calls(
        span(0, 99, "autograd::engine::evaluate_function: AddmmBackward0", **backward),
        span(10, 10, "aten::addmm", **{"Sequence number": 9, "Fwd thread id": 0}),
        launch(11, 1),
        span(30, 10, "aten::mm"),
        launch(31, 2),
        kernel(1),
        kernel(2),
    )
    assert [found[number]["part"] for number in (1, 2)] == ["recomputation", "backward"]


def test_the_work_of_a_call_is_divided_among_its_kernels_by_time():
    found = work(span(0, 9, "aten::mm", **MATRICES), launch(1, 1), launch(2, 2), kernel(1, dur=3), kernel(2, dur=1))
    assert found == {1: (96, 168), 2: (32, 56)}  # 2 x 4 x 8 x 2 FLOPs; (32 + 16 + 8) x 4 bytes


def test_an_operator_has_the_work_of_those_within_only_if_none_of_them_has_it():
    attention = {"Input Dims": [[1, 1, 8, 4]] * 3, "Input type": ["float"] * 3, "Concrete Inputs": [""] * 4 + ["False"]}
    name = "aten::_scaled_dot_product_flash_attention"
    found = work(span(0, 9, name, **attention), span(1, 7, "aten::_flash_attention_forward"), launch(2, 1), kernel(1))
    assert found == {1: (2 * 8 * 8 * (4 + 4), 4 * 8 * 4 * 4)}
    divided = (span(5, 2, "aten::bmm", **MATRICES | {"Input Dims": [[1, 8, 4], [1, 4, 8]]}), launch(6, 2), kernel(2))
    found = work(span(0, 9, name, **attention), span(1, 2, "aten::masked"), launch(2, 1), kernel(1), *divided)
    assert found == {1: (None, None), 2: (512, 512)}


def test_copies_to_and_from_the_host_have_no_work():
    args = {"Input Dims": [[8], [8]], "Input type": ["float", "float"]}
    copies = [kernel(n) | {"cat": "gpu_memcpy"} for n in (1, 2)]
    copies[0]["name"], copies[1]["name"] = "Memcpy HtoD (Pageable -> Device)", "kernel_2 DtoD"
    found = work(span(0, 9, "aten::copy_", **args), launch(1, 1), launch(2, 2), *copies)
    assert found == {2: (0, 64)}


def test_damaged_arguments_leave_work_and_shapes_unknown():
    for dims, kinds in (([[4, -8], [8, 2]], ["float"] * 2), (["x"], ["float"]), ([[4, 8], [8, 2]], [None, 1]), (3, 4)):
        args = {"Input Dims": dims, "Input type": kinds, "Input Strides": [["a"]], "Concrete Inputs": [{}]}
        assert work(span(0, 9, "aten::mm", **args), launch(1, 1), kernel(1)) == {1: (None, None)}


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
