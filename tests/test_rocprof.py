"""Results of rocprofv3, JSON and databases: their work on devices, calls, steps and processes."""

import gzip
import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.errors import BadProfile
from tpunb.io import gpu_exports, rocprof

US = 1_000
BEGIN = 63_857_982_000_000  # since the machine started
KINDS = [  # and the operations of each
    ("HIP_RUNTIME_API", ["hipLaunchKernel"]),
    ("MARKER_CORE_RANGE_API", ["roctxThreadRangeA"]),
    ("MEMORY_COPY", ["MEMORY_COPY_HOST_TO_DEVICE"]),
    ("KERNEL_DISPATCH", ["KERNEL_DISPATCH_COMPLETE"]),
]
TABLES = {
    "string": "id, string",
    "info_process": "id, pid, environment",
    "info_thread": "id, tid",
    "info_agent": "id, pid, type, type_index, product_name",
    "info_kernel_symbol": "id, kernel_name, display_name",
    "event": "id, category_id, stack_id, extdata",
    "kernel_dispatch": "id, pid, tid, agent_id, kernel_id, queue_id, stream_id, start, end, event_id",
    "memory_copy": "id, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, queue_id, stream_id, event_id",
    "region": "id, pid, tid, start, end, name_id, event_id",
}
TRACKS = {  # where the tables of the schema 4.1 differ
    "kernel_dispatch": "id, track_id, kernel_id, start, end, event_id",
    "memory_copy": "id, track_id, start, end, name_id, dst_agent_id, src_agent_id, event_id",
    "region": "id, track_id, start, end, name_id, event_id",
    "track": "id, pid, tid, agent_id, queue_id, stream_id",
    "info_category": "id, name",
}


def records(late=0):
    """Yield kind, times, correlation and message of three steps of 100 us: a launch, its kernel 20 us later, a copy."""
    for number in range(3):
        begin, id_ = BEGIN + (100 * number + late) * US, 10 * number + 1
        yield 1, begin, begin + 99 * US, id_, f"step {number + 7}"
        yield 0, begin + 10 * US, begin + 15 * US, id_ + 1, None
        yield 3, begin + 30 * US, begin + 80 * US, id_ + 1, None
        yield 2, begin + 82 * US, begin + 85 * US, id_ + 2, None


def process(pid, gpu, late=0):
    """Return a process of JSON, which runs on one of two GPUs."""
    agents = [{"id": {"handle": 7}, "type": 1}, *({"id": {"handle": 8 + n}, "type": 2} for n in range(2))]
    buffers = {kind: [] for kind in ("hip_api", "marker_api", "memory_copy", "kernel_dispatch")}
    for kind, start, end, id_, _ in records(late):
        row = {"kind": kind, "operation": 0, "thread_id": pid + 1, "correlation_id": {"internal": id_, "external": 0}}
        row |= {"start_timestamp": start, "end_timestamp": end}
        info = {"agent_id": {"handle": 8 + gpu}, "queue_id": {"handle": 3}, "kernel_id": 1}
        row |= {"dispatch_info": info, "stream_id": {"handle": 0}} if kind == 3 else {}
        row |= {"dst_agent_id": {"handle": 8 + gpu}, "src_agent_id": {"handle": 7}} if kind == 2 else {}
        buffers[[*buffers][kind]].append(row)
    strings = {"buffer_records": [{"kind": kind, "operations": names} for kind, names in KINDS]}
    strings["marker_api"] = [{"key": id_, "value": text} for _, _, _, id_, text in records() if text]
    symbols = [{"kernel_id": 1, "formatted_kernel_name": "gemm"}]
    facts = {"metadata": {"pid": pid}, "strings": strings, "kernel_symbols": symbols}
    return {**facts, "agents": [{**agent, "product_name": "AMD Instinct MI300X"} for agent in agents]} | {
        "buffer_records": buffers
    }


def write_json(path, *processes):
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process(*each) for each in processes]}))
    return path


def write_database(path, *processes, tracks=False, environment="{}"):
    """Write a database of the schema 3.0, or 4.1, with tables of its own for each process."""
    with sqlite3.connect(path) as database:
        for number, each in enumerate(processes):
            for table, columns in {**TABLES, **(TRACKS if tracks else {})}.items():
                database.execute(f"CREATE TABLE rocpd_{table}_00ab_{number} ({columns})")
            for table, *row in rows(*each, tracks=tracks, environment=environment):
                marks = ", ".join("?" * len(row))
                database.execute(f"INSERT INTO rocpd_{table}_00ab_{number} VALUES ({marks})", row)
    database.close()
    return path


def rows(pid, gpu, late=0, *, tracks=False, environment="{}"):
    texts = [text for kind, names in KINDS for text in (kind, *names)]
    yield from (("string", number, text) for number, text in enumerate(texts, 1))
    yield from (("info_category", number, text) for number, text in enumerate(texts, 1) if tracks)
    yield "info_process", pid, pid, environment
    yield "info_thread", pid + 1, pid + 1
    yield "info_agent", 0, pid, "CPU", 0, "EPYC"
    yield from (("info_agent", 1 + n, pid, "GPU", n, "AMD Instinct MI300X") for n in range(2))
    yield "info_kernel_symbol", 1, "_Zgemm", "gemm"
    if tracks:
        yield "track", 1, pid, pid + 1, 1 + gpu, 3, 4
    for number, (kind, start, end, id_, text) in enumerate(records(late), 1):
        yield "event", number, 2 * kind + 1, id_, json.dumps({"message": text} if text else {})
        place, last = (1,) if tracks else (pid, pid + 1), () if tracks else (3, 4)
        if kind == 3 and tracks:
            yield "kernel_dispatch", number, 1, 1, start, end, number
        elif kind == 3:
            yield "kernel_dispatch", number, *place, 1 + gpu, 1, *last, start, end, number
        elif kind == 2:
            yield "memory_copy", number, *place, start, end, 2 * kind + 2, 1 + gpu, 0, *last, number
        else:
            yield "region", number, *place, start, end, 2 * kind + 2, number


WRITERS = {
    "1_results.json": write_json,
    "1_results.db": write_database,
    "4.db": lambda path, *processes: write_database(path, *processes, tracks=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_results_have_steps_launches_and_devices(tmp_path, name):
    profile = tp.load(WRITERS[name](tmp_path / name, (100, 1)))
    frame = tp.steps(profile).frame
    assert frame.select("step", "dur_ps", "device_ps", "rule").rows()[:2] == [
        (number, 99 * 10**6, 53 * 10**6, "annotation") for number in (7, 8)
    ]
    assert profile.hardware.select("device", "kind").rows() == [("/device:GPU:1", "AMD Instinct MI300X")]
    assert profile.clocks["delay_ps"].to_list() == [20 * 10**6]
    names = profile.events.filter(pl.col("plane").cast(pl.String) == "/device:GPU:1")["name"].cast(pl.String)
    assert {*names} == {"gemm", "Memcpy HtoD"}


def test_copies_between_hosts_are_no_work_of_a_device(tmp_path):
    path = write_json(tmp_path / "1_results.json", (100, 1))
    content = json.loads(path.read_text())
    for row in content["rocprofiler-sdk-tool"][0]["buffer_records"]["memory_copy"]:
        row["dst_agent_id"] = {"handle": 7}
    path.write_text(json.dumps(content))
    assert tp.steps(tp.load(path)).frame["device_ps"].to_list()[:2] == [50 * 10**6] * 2


@pytest.mark.parametrize("gpus", [(0, 1), (0, 0)])
@pytest.mark.parametrize("name", WRITERS)
def test_processes_that_mark_steps_are_hosts_with_devices_of_their_own(tmp_path, name, gpus):
    path = WRITERS[name](tmp_path / name, (100, gpus[0]), (200, gpus[1], 30))
    frame = tp.steps(tp.load(path)).frame.sort("host", "step").select("host", "step", "device_ps")
    assert frame.rows() == [(f"process {pid}", n, 53 * 10**6) for pid in (100, 200) for n in (7, 8, 9)]


def test_a_rank_names_the_host_of_a_database(tmp_path):
    path = write_database(tmp_path / "a_results.db", (100, 0), environment='{"RANK": "3"}')
    assert tp.load(path).events["host"].cast(pl.String).unique().to_list() == ["rank 3"]


@pytest.mark.parametrize("name", ["1_results.json", "1_results.db"])
def test_results_in_a_folder_are_a_rank_each(tmp_path, name):
    for pid in (100, 200):
        WRITERS[name](tmp_path / f"{pid}{name[1:]}", (pid, 0))
    assert tp.load(tmp_path).windows["host"].n_unique() == 2


def test_a_gzipped_result_is_one_by_its_content(tmp_path):
    content = write_json(tmp_path / "a.json", (100, 0)).read_bytes()
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(content))
    profile = tp.load(tmp_path / "b.json.gz")
    assert len(tp.steps(profile)) == 3
    assert profile.read_details("instructions").is_empty()
    assert profile.read_details("calls").is_empty()


@pytest.mark.parametrize("content", ['{"rocprofiler-sdk-tool": [{"metadata": 1}]}', '{"rocprofiler-sdk-tool": 7}'])
def test_a_damaged_result_is_refused(tmp_path, content):
    (tmp_path / "a_results.json").write_text(content)
    with pytest.raises(BadProfile, match=r"a_results.json: damaged result of rocprofv3: "):
        tp.load(tmp_path / "a_results.json")


@pytest.mark.parametrize("name", WRITERS)
@examples(30)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20),
    kept=st.floats(0.2, 1) | st.just(1),
)
def test_any_damage_is_read_or_refused(name, changes, kept):
    with TemporaryDirectory() as folder:
        data = bytearray(WRITERS[name](Path(folder, name), (100, 0), (200, 1)).read_bytes())
    for place, byte in changes:
        data[int(place * len(data))] = byte
    with suppress(BadProfile):
        (rocprof if name.endswith("json") else gpu_exports).read(bytes(data[: int(kept * len(data))]), source="a")
