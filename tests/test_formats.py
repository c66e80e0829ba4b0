"""Work that the caller of `load` gives for operations of which nobody knows it."""

import json

import polars as pl
import pytest

import tpunb as tp
from tpunb.errors import TpunbError


def at(ts, dur, name, cat=None, **args):
    return {"ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


@pytest.fixture
def torch(tmp_path):
    """A step with two calls of an operator that no rule knows, each of two kernels, and a matrix product."""
    events = [at(0, 100, "ProfilerStep#1", "user_annotation")]
    operands = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    for number, name in enumerate(["my::attention", "my::attention", "aten::mm"]):
        begin, call = 10 + 30 * number, {"External id": number + 1}
        events.append(at(begin, 20, name, "cpu_op", **call, **(operands if name == "aten::mm" else {})))
        kernels = [("k1", 0, 5), ("k2", 5, 15)] if name == "my::attention" else [("gemm", 0, 10)]
        for kernel, late, dur in kernels:
            launch = {"correlation": 10 * number + late + 1, **call}
            events.append(at(begin + 1 + late, 2, "cudaLaunchKernel", "cuda_runtime", **launch))
            events.append(at(begin + 5 + late, dur, kernel, "kernel", device=0, stream=7, **launch))
    (tmp_path / "a.trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return tmp_path / "a.trace.json"


def work(profile):
    events = profile.events.filter(pl.col("plane").cast(pl.String) != "/host:CPU")
    return events.select(pl.col("name").cast(pl.String), "flops", "bytes").rows()


def test_work_of_an_operator_is_that_of_its_kernels_by_their_time(torch):
    with pytest.warns(UserWarning, match="no operation of unknown work is named aten::mm"):
        profile = tp.load(torch, costs={"my::attention": (8e9, 4e6), "aten::mm": (1, 1)})
    kernels = [("k1", 2 * 10**9, 10**6), ("k2", 6 * 10**9, 3 * 10**6)]
    assert work(profile) == [*kernels, *kernels, ("gemm", 48, 104)]
    frame = tp.roofline(profile, "op").frame
    sources = dict(frame.select("what", "flops_source").rows())
    assert sources == {"my::attention": "given", "aten::mm": "shapes"}
    assert frame["flops"].sum() == 16e9 + 48


def test_work_of_a_kernel_may_be_known_in_part(torch):
    profile = tp.load(torch, costs={"k2": (5, None)})
    assert work(profile)[:2] == [("k1", None, None), ("k2", 5, None)]


def test_work_of_an_instruction_is_that_of_each_run(tmp_path):
    names = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((1, "/device:TPU:0"), (2, "/host:CPU"))
    ]
    call = {"hlo_category": "custom-call", "flops": 0, "bytes_accessed": 0}
    events = [at(10 * n, 5, "attention.3", **call) for n in range(3)] + [at(40, 5, "fusion.1", hlo_category="fusion")]
    thread = {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "XLA Ops"}}
    (tmp_path / "a.trace.json").write_text(json.dumps({"traceEvents": [*names, thread, *events]}))
    profile = tp.load(tmp_path / "a.trace.json", costs={"attention.3": (7, 9)})
    assert profile.events.select("flops", "bytes").rows() == [*[(7, 9)] * 3, (None, None)]


def test_a_name_that_no_operation_has_is_said(torch):
    with pytest.warns(UserWarning, match="a.trace.json: no operation of unknown work is named my::atention"):
        tp.load(torch, costs={"my::atention": (8e9, 4e6)})


@pytest.mark.parametrize("value", [8e9, (8e9,), (-1, 2), (8e9, "4e6"), (float("inf"), 1)])
def test_costs_are_two_numbers(torch, value):
    with pytest.raises(ValueError, match="The costs parameter of load must have FLOPs and bytes of a call"):
        tp.load(torch, costs={"my::attention": value})


def test_statistics_have_no_operations_to_cost(tmp_path):
    table = {"cols": [{"id": "stepnum"}, {"id": "stepTimeMs"}], "rows": [{"c": [{"v": "1"}, {"v": 2}]}]}
    (tmp_path / "overview_page.json").write_text(json.dumps([table]))
    with pytest.raises(TpunbError, match="it holds statistics only"):
        tp.load(tmp_path, costs={"a": (1, 1)})
