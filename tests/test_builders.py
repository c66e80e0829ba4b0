"""Builders of windows and steps against the decoder and TensorFlow's own messages."""

import subprocess
import sys

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tpunb.io import xplane
from tpunb.testing import toy_steps, toy_window
from tpunb.testing.builders import crowded_window

SEC = 1_000_000_000  # nanoseconds
THEN = 1_700_000_000 * SEC


@pytest.mark.live
def test_builders_do_not_import_grpc():
    code = "import sys, tpunb.testing; print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


def test_an_unknown_name_is_an_import_error():
    with pytest.raises(ImportError, match="nonsense"):
        from tpunb.testing import nonsense  # noqa: F401


def test_toy_steps_have_one_window_without_error():
    [window] = toy_steps("aab").windows.to_dicts()
    assert (window["steps"], window["dur_ps"], window["error"]) == (3, 4 * SEC // 1000 * 1000, None)


def test_a_toy_window_reads_back():
    data = toy_window(
        THEN,
        THEN + SEC,
        steps=[(7, THEN + 10, THEN + 30), (8, THEN + 30, THEN + 70)],
        ops=[("MatMul", THEN + 12, THEN + 20), ("Relu", THEN + 20, THEN + 21), ("MatMul", THEN + 32, THEN + 60)],
        host="worker-3",
    )
    events, facts = xplane.read(data, source="toy")
    assert events.select("line", "name", "step_num", "start_ps", "dur_ps").rows() == [
        ("python", "train", 7, 10_000, 20_000),
        ("python", "train", 8, 30_000, 40_000),
        ("worker", "MatMul", None, 12_000, 8_000),
        ("worker", "Relu", None, 20_000, 1_000),
        ("worker", "MatMul", None, 32_000, 28_000),
    ]
    assert events["host"].unique().to_list() == ["worker-3"]
    assert (facts.hosts, facts.start_ns, facts.stop_ns) == (["worker-3"], THEN, THEN + SEC)


def test_an_empty_toy_window_has_no_events():
    events, facts = xplane.read(toy_window(THEN, THEN + 5), source="toy")
    assert (events.height, facts.stop_ns - facts.start_ns) == (0, 5)


def test_a_step_that_starts_before_its_window_has_a_negative_start():
    events = xplane.read(toy_window(THEN, THEN + SEC, [(1, THEN - 5, THEN + 5)]), source="toy")[0]
    assert events.select("start_ps", "dur_ps").row(0) == (-5_000, 10_000)


def test_an_operation_may_have_the_name_of_steps():
    events = xplane.read(toy_window(THEN, THEN + 9, [(1, THEN, THEN + 5)], [("train", THEN, THEN + 1)]), source="toy")[
        0
    ]
    assert events.select("name", "step_num").rows() == [("train", 1), ("train", None)]


def by_tensorflow(start_ns, stop_ns, steps, ops):
    """The same window, spelled by TensorFlow's protobuf."""
    pb = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    space = pb.XSpace(hostnames=["toy"])
    cpu = space.planes.add(name="/host:CPU")
    cpu.stat_metadata[1].CopyFrom(pb.XStatMetadata(id=1, name="step_num"))
    names = {}
    for name in ["train", *(name for name, *_ in ops)]:
        number = names.setdefault(name, len(names) + 1)
        cpu.event_metadata[number].CopyFrom(pb.XEventMetadata(id=number, name=name))
    python, worker = cpu.lines.add(id=1, name="python"), cpu.lines.add(id=2, name="worker")
    for line, events in (python, [("train", a, b) for _, a, b in steps]), (worker, ops):
        for name, begin, end in events:
            event = line.events.add(metadata_id=names[name], offset_ps=(begin - start_ns) * 1000)
            event.duration_ps = (end - begin) * 1000
    for event, (number, *_) in zip(python.events, steps, strict=True):
        event.stats.add(metadata_id=1, int64_value=number)
    task = space.planes.add(name="Task Environment")
    for i, (name, value) in enumerate([("profile_start_time", start_ns), ("profile_stop_time", stop_ns)], start=1):
        task.stat_metadata[i].CopyFrom(pb.XStatMetadata(id=i, name=name))
        task.stats.add(metadata_id=i, uint64_value=value)
    return pb, space


MOMENT = st.integers(-(10**12), 10**12).map(lambda ns: THEN + ns)
NAME = st.sampled_from(["MatMul", "Relu", "ein Wörtchen", "x" * 30, "train"])


@examples(30)
@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), MOMENT, st.integers(0, 10**12)), max_size=4),
    st.lists(st.tuples(NAME, MOMENT, st.integers(0, 10**12)), max_size=4),
    st.integers(0, 10**12),
)
def test_tensorflow_reads_a_toy_window(steps, ops, length):
    steps = [(number, begin, begin + dur) for number, begin, dur in steps]
    ops = [(name, begin, begin + dur) for name, begin, dur in ops]
    pb, meant = by_tensorflow(THEN, THEN + length, steps, ops)
    data = toy_window(THEN, THEN + length, steps, ops)
    assert pb.XSpace.FromString(data) == meant
    theirs, ours = (xplane.read(one, source="toy")[0] for one in (meant.SerializeToString(), data))
    assert_frame_equal(theirs, ours)


def test_a_crowded_window_has_back_to_back_events():
    events, facts = xplane.read(crowded_window(THEN, THEN + SEC, 1000), source="crowd")
    assert events["start_ps"].to_list() == [i * SEC for i in range(1000)]
    assert events["dur_ps"].unique().to_list() == [SEC]
    assert events["name"].unique().to_list() == ["Crowd"]
    assert facts.stop_ns - facts.start_ns == SEC
