"""The benchmarks: what they feed both sides is sound, and they run."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.io import xplane

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def modules():
    """The benchmarks' own modules: xspaces, rivals, loading."""
    if importlib.util.find_spec("tensorflow") is None:  # whose import would take seconds
        pytest.skip("no tensorflow: its protobuf classes are the other side")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import loading
        import rivals
        import xspaces

        yield xspaces, rivals, loading


@pytest.fixture(scope="module")
def pod(modules):
    """The bytes of a made-up XSpace of two steps."""
    return modules[0].made_up(20_000)


@given(numbers=st.lists(st.tuples(INT64, st.floats(allow_nan=False)), min_size=1, max_size=20))
def test_statistics_are_written_as_the_protobuf_library_writes_them(modules, numbers):
    xspaces, _, _ = modules
    whole, real = np.array([n for n, _ in numbers]), np.array([x for _, x in numbers])
    value = np.concatenate([whole, real.view(np.int64)])
    tag = np.repeat([0x20, 0x11], len(numbers))  # int64_value, double_value
    written = bytes(xspaces.stat(7, tag, value))
    event = xspaces.xplane_pb2().XEvent()
    for n, _ in numbers:
        event.stats.add(metadata_id=7, int64_value=n)
    for _, x in numbers:
        event.stats.add(metadata_id=7, double_value=x)
    assert xspaces.xplane_pb2().XEvent.FromString(written) == event
    assert len(written) == event.ByteSize()


def test_a_statistic_is_left_out_where_an_event_has_none(modules):
    xspaces, _, _ = modules
    some = xspaces.stat(7, 0x20, np.array([1, 2]), np.array([False, True]))
    assert bytes(some) == b"\x22\x04\x08\x07\x20\x02"


def test_the_made_up_host_is_as_described(modules, pod):
    xspaces, _, _ = modules
    space = xspaces.xplane_pb2().XSpace.FromString(pod)
    assert [plane.name for plane in space.planes] == [*(f"/device:TPU:{n}" for n in range(8)), "/host:CPU"]
    threads = [line.name for line in space.planes[-1].lines if line.name.startswith("tf_Compute")]
    assert len(threads) == 16
    events = [event for plane in space.planes for line in plane.lines for event in line.events]
    assert len(events) == 20_000
    assert 3.5 < sum(len(event.stats) for event in events) / len(events) < 4.5
    assert {len(event.stats) for event in events} >= {2, 3, 4, 5, 6}
    kinds = {stat.WhichOneof("value") for event in events for stat in event.stats}
    assert kinds == {"int64_value", "uint64_value", "double_value", "ref_value"}
    assert any(stat.int64_value < 0 for event in events for stat in event.stats)
    assert all(event.metadata_id in space.planes[0].event_metadata for event in space.planes[0].lines[2].events)


def test_its_steps_come_out(pod, tmp_path):
    file = tmp_path / "pod.xplane.pb"
    file.write_bytes(pod)
    steps = tp.steps(tp.load(file))
    assert steps.frame["step"].to_list() == [0, 1]
    assert steps.frame["mark"].to_list() == ["train"] * 2
    assert steps.devices.select("device", "step").n_unique() == 16
    assert steps.ops.filter(pl.col("side") == "device")["count"].sum() == 16_000


def test_both_sides_say_the_same(modules, pod, tmp_path):
    _, rivals, loading = modules
    ours, theirs = xplane.events(pod, source="test"), rivals.messages(pod)
    loading._check_same(ours, theirs)
    for column, stats in {
        "flops": ["shared_flops"],
        "bytes": ["bytes_accessed"],
        "category": ["shared_hlo_category"],
    }.items():
        of_device = pl.col("plane").cast(pl.String).str.starts_with("/device")
        told = theirs.select(pl.when(of_device).then(pl.coalesce(stats)).cast(ours.schema[column])).to_series()
        assert told.cast(pl.String).equals(ours[column].cast(pl.String))
    with pytest.raises(AssertionError, match="dur_ps"):
        loading._check_same(ours, theirs.with_columns(pl.col("dur_ps") + 1))


def test_the_program_in_c_finds_all_and_refuses_what_is_cut(modules, pod, tmp_path):
    xspaces, rivals, _ = modules
    if not rivals.compiled(tmp_path / "decoder.so"):
        pytest.skip("no gcc")
    decode = rivals.in_c(tmp_path / "decoder.so")
    space = xspaces.xplane_pb2().XSpace.FromString(pod)
    events = [event for plane in space.planes for line in plane.lines for event in line.events]
    assert decode(pod) == (len(events), sum(len(event.stats) for event in events))
    for size in (len(pod) - 1, len(pod) // 2, 3):
        with pytest.raises(ValueError, match="corrupt"):
            decode(pod[:size])


def test_the_worse_of_two_inputs_counts(modules):
    _, _, loading = modules
    assert loading.worse({"vs_xprof": 5, "of_c": 2}, {"vs_xprof": 4, "of_c": 1, "cold_s": 1}) == {
        "vs_xprof": 4,
        "of_c": 2,
        "cold_s": 1,
    }


@pytest.mark.slow
def test_the_quick_benchmark_ends_in_its_ratios():
    pytest.importorskip("xprof")
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, FOLDER / "loading.py", "--quick"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert list(last) == [
        *("vs_protobuf", "vs_profile_data", "vs_xprof", "vs_chrome"),
        *("of_c", "memory_of_file", "cold_s", "steps_s"),
    ]
    assert last["vs_protobuf"] > 1
