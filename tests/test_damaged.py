"""Files cut, flipped and blown up: each ends in a frame or in BadProfile, and no byte outside is read."""

import gzip
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in import xspace

import tpunb as tp
from tpunb.errors import BadProfile
from tpunb.io import chrome_trace, rocprof, xplane, xprof_json

TRACE = b"""{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}},
 {"ph": "X", "pid": 1, "tid": 7, "ts": 1.5, "dur": 2, "name": "train", "args": {"step_num": "3"}}, {}]}"""
TORCH = rb"""{"schemaVersion": 1, "traceName": "C:\Users\me\w.json",
 "deviceProperties": [{"id": 0, "name": "MTIA"}],
 "traceEvents": [{"ph": "M", "pid": 9, "name": "process_labels", "args": {"labels": "MTIA 9"}},
 {"ph": "B", "pid": 1, "tid": 1, "cat": "user_annotation", "ts": "17.5", "name": "ProfilerStep#1"},
 {"ph": "X", "pid": 1, "tid": 1, "cat": "cuda_runtime", "ts": 18, "dur": 1,
  "name": "launch", "args": {"correlation": 5}},
 {"ph": "X", "pid": 2, "tid": 1, "cat": "cuda_runtime", "ts": 18, "dur": 1,
  "name": "launch", "args": {"correlation": 5}},
 {"ph": "X", "pid": 9, "tid": 3, "cat": "mtia_ccp_events", "ts": 20, "dur": 9,
  "args": {"stream": 1, "correlation": 5, "x": nan}},
 {"ph": "X", "pid": 9, "tid": 3, "cat": "kernel", "ts": 22, "dur": 9, "args": {"stream": 1, "graph node id": 3}},
 {"ph": "E", "pid": 1, "tid": 1, "ts": "40"},]}"""
NPU = b"""[{"ph": "M", "pid": 9, "tid": 3, "name": "process_name", "args": {"name": "Ascend Hardware"}},
 {"ph": "M", "pid": 9, "name": "process_labels", "args": {"labels": "NPU 3"}},
 {"ph": "M", "pid": 5, "name": "process_name", "args": {"name": "Overlap Analysis"}},
 {"ph": "X", "pid": 9, "tid": 3, "ts": "17.5", "dur": 2, "name": "MatMul", "args": {"Task Type": "AI_CORE"}},
 {"ph": "X", "pid": 9, "tid": 3, "ts": "20.5", "dur": 2, "args": {"direction": "HOST_TO_DEVICE"}},
 {"ph": "X", "pid": 5, "tid": 3, "ts": "17.5", "dur": 2, "name": "Computing"}]"""
RESULT = b"""{"rocprofiler-sdk-tool": [{"metadata": {"pid": 9}, "agents": [{"id": {"handle": 8}, "type": 2}],
 "strings": {"buffer_records": [{"kind": "KERNEL_DISPATCH", "operations": ["RUN"]}], "marker_api": []},
 "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "gemm"}], "buffer_records": {"kernel_dispatch":
 [{"kind": 0, "operation": 0, "thread_id": 3, "correlation_id": {"internal": 7}, "start_timestamp": 63857982592000,
 "end_timestamp": 63857982594840, "dispatch_info": {"agent_id": {"handle": 8}, "queue_id": {"handle": 6},
 "kernel_id": 1}}]}}]}"""
TABLE = b"""{"cols": [{"id": "stepnum", "type": "string"}, {"id": "computeTimeMs", "type": "number"},
 {"id": "idleTimeMs", "type": "number"}], "rows": [{"c": [{"v": "1"}, {"v": 12.5}, {"v": 0.5}]}], "p": {}}"""
XPLANE = [xplane.read, xplane.instructions, xplane.counters, xplane.memory]
TRACES = [chrome_trace.read, chrome_trace.instructions, chrome_trace.messages]
READERS = {
    "xplane.pb": lambda data: [read(data, source="damaged") for read in XPLANE],
    "trace.json": lambda data: [read(data, source="damaged") for read in TRACES],
    "pt.trace.json": lambda data: [read(data, source="damaged") for read in TRACES],
    "trace_view.json": lambda data: [read(data, source="damaged") for read in TRACES],
    "results.json": lambda data: rocprof.read(data, source="damaged"),
    "overview_page.json": lambda data: xprof_json.profile({"damaged.overview_page.json": data}, "damaged", "damaged"),
}


def small(kind):
    """Return a small whole file: a real one where they are at hand."""
    root = os.environ.get("TPUNB_DATA")
    if kind == "xplane.pb" and root:
        return Path(root, "profiles", "cpu_julia.xplane.pb").read_bytes()
    steps = [(i, 1000 * i, 1000 * i + 900) for i in range(5)]
    made = xspace(0, 10_000, steps, [("MatMul", begin, end) for _, begin, end in steps])
    made_of = {"trace.json": TRACE, "pt.trace.json": TORCH, "overview_page.json": TABLE, "trace_view.json": NPU}
    return {"xplane.pb": made, "results.json": RESULT, **made_of}[kind]


def flipped(data, rng):
    """Return a copy of which one to four bytes, or bits, are others."""
    copy = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(copy))
        copy[place] = rng.randrange(256) if rng.random() < 0.5 else copy[place] ^ 1 << rng.randrange(8)
    return bytes(copy)


def ends_well(read, data):
    """Say whether `data` was read; where it was not, the error is one line that names the file."""
    try:
        read(data)
    except BadProfile as error:
        said = str(error)
    else:
        return True
    assert said.startswith("damaged")
    assert "\n" not in said
    return False


def flips(read, data, n):
    rng = random.Random(0)
    return [ends_well(read, flipped(data, rng)) for _ in range(n)]


@pytest.mark.parametrize("kind", READERS)
def test_a_whole_file_is_read(kind):
    assert ends_well(READERS[kind], small(kind))


@pytest.mark.parametrize("kind", READERS)
def test_flipped_bytes_end_in_a_frame_or_a_bad_profile(kind):
    outcomes = flips(READERS[kind], small(kind), 150)
    assert True in outcomes  # some damage lies where nobody reads, or makes another sound file
    assert False in outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_ten_thousand_files_with_flipped_bytes(kind):
    flips(READERS[kind], small(kind), 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_every_beginning_of_a_file(kind):
    data = small(kind)
    outcomes = [ends_well(READERS[kind], data[:n]) for n in range(len(data))]
    assert not outcomes[0]


def test_some_beginnings_of_a_file():
    data = small("xplane.pb")
    rng = random.Random(1)
    for n in rng.sample(range(len(data)), 100):
        ends_well(READERS["xplane.pb"], data[:n])


def test_a_file_saved_as_text_is_detected(tmp_path):
    mangled = small("xplane.pb").decode("utf8", "replace").encode("utf8")
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(mangled)
    with pytest.raises(BadProfile, match=r"bytes of 0x80 and above were replaced by EF BF BD") as caught:
        tp.load(path)
    assert "saved as text" in caught.value.hint
    assert str(path) in str(caught.value)


def test_a_damaged_gzip_is_a_bad_profile(tmp_path):
    whole = gzip.compress(small("xplane.pb"), mtime=0)
    rng = random.Random(2)
    path = tmp_path / "host.xplane.pb.gz"
    for _ in range(40):
        path.write_bytes(flipped(whole, rng)[: rng.choice([len(whole), rng.randrange(len(whole))])])
        try:
            tp.load(path)
        except BadProfile as error:
            assert str(path) in str(error)  # noqa: PT017  either end is right


def subprocess_says(code, *args, **environment):
    run = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=570,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), **environment},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()


@pytest.mark.slow
def test_no_byte_is_read_outside_the_file(tmp_path):
    """The compiled loops once more, compiled with a check of every index."""
    code = """
import sys, test_damaged
kind = "xplane.pb"
outcomes = test_damaged.flips(test_damaged.READERS[kind], test_damaged.small(kind), 3000)
data = test_damaged.small(kind)
outcomes += [test_damaged.ends_well(test_damaged.READERS[kind], data[:n]) for n in range(0, len(data), 7)]
print(len(outcomes))
"""
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    assert int(subprocess_says(code, **checked)[-1]) > 3000


@pytest.mark.live
def test_memory_stays_below_64_times_the_file():
    """A file of nothing but empty events, two bytes each, which become rows."""
    code = """
import resource
from tpunb.io import xplane
def field(tag, content):
    size, n = b"", len(content)
    while n >= 128:
        size, n = size + bytes([n & 127 | 128]), n >> 7
    return bytes([tag]) + size + bytes([n]) + content
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
xplane.warm()
data = field(10, field(18, b"/device:TPU:0") + field(26, b"\\x22\\x00" * 4_000_000))
before = peak()
events = xplane.read(data, source="empty events")[0]
print(len(events), (peak() - before) / len(data))
"""
    rows, times = subprocess_says(code)
    assert int(rows) == 4_000_000
    assert float(times) < 64
