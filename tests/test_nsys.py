"""Exports of Nsight Systems as SQLite: their work on devices, steps and processes."""

import gzip
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
from tpunb.io import gpu_exports

US = 1_000
STRINGS = {1: "gemm", 2: "cudaLaunchKernel", 3: "Buffer Flush", 4: "cudaMemcpyAsync"}
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, shortName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, correlationId, globalTid, nameId",
    "PROFILER_OVERHEAD": "start, end, globalTid, nameId",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid",
    "TARGET_INFO_GPU": "id, name",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "StringIds": "id, value",
}


def export(path, tables):
    """Write an export with the rows of some tables, in the order of `COLUMNS`."""
    with sqlite3.connect(path) as database:
        for table, rows in tables.items():
            database.execute(f"CREATE TABLE {table} ({COLUMNS[table]})")
            for row in rows:
                database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    database.close()
    return path


def process(pid, device, *, late=0, name="step {}"):
    """Rows of a process that marks three steps of 100 us: a launch each, whose kernel of 50 us begins 20 us later."""
    serial, rows = pid << 24, {table: [] for table in COLUMNS}
    for number in range(3):
        begin = (100 * number + late) * US
        rows["NVTX_EVENTS"].append((begin, begin + 99 * US, 59, name.format(number + 7), None, serial + 5))
        rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append((begin + 10 * US, begin + 15 * US, number + 1, serial + 5, 2))
        rows["CUPTI_ACTIVITY_KIND_KERNEL"].append((begin + 30 * US, begin + 80 * US, device, 7, number + 1, serial, 1))
    return rows


def both(*processes):
    """Rows of several processes, with names."""
    tables = {table: [row for rows in processes for row in rows[table]] for table in COLUMNS}
    return tables | {"StringIds": [*STRINGS.items()]}


@pytest.mark.parametrize("name", ["step {}", "iteration{}", "Train Step #{}", "batch_{}"])
def test_ranges_that_are_numbered_as_steps_mark_them(tmp_path, name):
    rows = both(process(100, 0, name=name)) | {"TARGET_INFO_GPU": [(0, "NVIDIA H100 80GB HBM3")]}
    profile = tp.load(export(tmp_path / "a.sqlite", rows | {"TARGET_INFO_SESSION_START_TIME": [(1_780_000 * 10**12,)]}))
    frame = tp.steps(profile).frame
    assert frame.select("step", "dur_ps", "device_ps", "rule").rows()[:2] == [
        (number, 99 * 10**6, 50 * 10**6, "annotation") for number in (7, 8)
    ]
    assert profile.hardware["kind"].to_list() == ["NVIDIA H100 80GB HBM3"]
    assert profile.clocks["delay_ps"].to_list() == [20 * 10**6]


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)])
def test_processes_that_mark_steps_are_hosts_with_devices_of_their_own(tmp_path, devices):
    rows = both(*(process(100 * (at + 1), device, late=30 * at) for at, device in enumerate(devices)))
    steps = tp.steps(tp.load(export(tmp_path / "a.sqlite", rows)))
    assert steps.windows.select("host", "events", "steps").rows() == [("process 100", 9, 3), ("process 200", 9, 3)]
    frame = steps.frame.sort("host", "step").select("host", "step", "device_ps")
    assert frame.rows() == [(f"process {pid}", n, 50 * 10**6) for pid in (100, 200) for n in (7, 8, 9)]


def test_ranges_of_operators_copies_and_overhead_have_their_names(tmp_path):
    rows = both(process(100, 0))
    thread = (100 << 24) + 5
    rows["NVTX_EVENTS"] += [(12 * US, 16 * US, 59, "aten::add, op_id = 314359", None, thread)]
    rows["NVTX_EVENTS"] += [(12 * US, None, 34, "a mark", None, thread), (12 * US, 13 * US, 59, None, 2, thread)]
    rows["CUPTI_ACTIVITY_KIND_MEMCPY"] += [(85 * US, 90 * US, 0, 7, 9, 100 << 24, 64, 1)]
    rows["PROFILER_OVERHEAD"] += [(91 * US, 95 * US, thread, 3)]
    events = tp.load(export(tmp_path / "a.sqlite", rows)).events
    names = events.select(pl.col("name", "category").cast(pl.String)).unique()
    assert {*names.rows()} >= {("aten::add", None), ("Buffer Flush", "profiler"), ("gemm", None)}
    assert "a mark" not in names["name"]
    assert names.filter(pl.col("name").str.starts_with("Memcpy HtoD")).height == 1


@pytest.mark.parametrize("name", ["a.sqlite", "a.sqlite.gz", "report.db"])
def test_an_export_is_one_by_its_content(tmp_path, name):
    content = export(tmp_path / "export", both(process(100, 0))).read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    profile = tp.load(tmp_path / name)
    assert len(tp.steps(profile)) == 3
    assert profile.read_details("instructions").is_empty()
    assert profile.read_details("calls").is_empty()


def parquet(folder, tables):
    """Write the tables of an export as a file each."""
    folder.mkdir()
    for table, rows in tables.items():
        frame = pl.DataFrame(rows, schema=COLUMNS[table].split(", "), orient="row", infer_schema_length=None)
        frame.write_parquet(folder / f"{table}.parquet")
    return folder


@pytest.mark.parametrize("part", ["", "NVTX_EVENTS.parquet"])
def test_a_folder_of_tables_is_read_as_the_database(tmp_path, part):
    rows = both(process(100, 0), process(200, 0)) | {"TARGET_INFO_GPU": [(0, "NVIDIA H100 80GB HBM3")]}
    rows["TARGET_INFO_SESSION_START_TIME"] = [(1_780_000 * 10**12,)]
    database = tp.load(export(tmp_path / "a.sqlite", rows))
    profile = tp.load(parquet(tmp_path / "a_pqtdir", rows) / part)
    assert profile.events.equals(database.events)
    assert profile.hardware.equals(database.hardware)
    assert profile.read_details("calls").is_empty()
    assert profile.read_details("instructions").is_empty()


def test_folders_of_tables_are_a_rank_each(tmp_path):
    for pid in (100, 200):
        parquet(tmp_path / f"rank{pid}", both(process(pid, 0)))
    assert tp.load(tmp_path).windows["host"].to_list() == ["rank100", "rank200"]


def test_a_damaged_table_is_refused(tmp_path):
    folder = parquet(tmp_path / "a", both(process(100, 0)))
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"no Parquet")
    with pytest.raises(BadProfile, match="a: damaged export: "):
        tp.load(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("another", "a.sqlite: a database without a table of Nsight Systems or rocprofv3"),
        ("cut", "a.sqlite: damaged database: "),
    ],
)
def test_another_database_or_a_damaged_one_is_refused(tmp_path, content, message):
    path = export(tmp_path / "a.sqlite", both(process(100, 0)) if content == "cut" else {"StringIds": []})
    if content == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(BadProfile, match=message):
        tp.load(path)


@examples(30)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20),
    kept=st.floats(0.2, 1) | st.just(1),
)
def test_any_damage_is_read_or_refused(changes, kept):
    with TemporaryDirectory() as folder:
        data = bytearray(export(Path(folder, "a.sqlite"), both(process(100, 0), process(200, 1))).read_bytes())
    for place, byte in changes:
        data[int(place * len(data))] = byte
    with suppress(BadProfile):
        gpu_exports.read(bytes(data[: int(kept * len(data))]), source="a")


def union_ms(rows):
    """Milliseconds that are covered by any of some rows."""
    busy = end = 0
    for start, until in sorted(zip(rows["start_ps"], rows["start_ps"] + rows["dur_ps"], strict=True)):
        busy, end = busy + max(0, until - max(start, end)), max(end, until)
    return busy / 1e9


@pytest.mark.parametrize(
    ("name", "busy_ms"),
    [
        ("healthy_1pct", {"/device:GPU:0": 400.0}),
        ("h100_2gpu_1s", {"/device:GPU:0": 22.385, "/device:GPU:1": 22.444}),
        ("mfu_2gpu_before", {"/device:GPU:0": 270.863, "/device:GPU:1": 264.325}),
    ],
)
def test_published_exports_have_the_busy_time_that_their_rows_cover(answers, name, busy_ms):
    profile = tp.load(answers / "nsys" / f"{name}.sqlite")
    kernels = profile.events.with_columns(pl.col("plane", "name").cast(pl.String)).filter(
        pl.col("plane").str.starts_with("/device:"), ~pl.col("name").str.contains("^Mem(cpy|set)")
    )
    found = {plane: union_ms(rows) for (plane,), rows in kernels.group_by("plane")}
    assert found == pytest.approx(busy_ms, abs=1e-3)


def test_a_percent_of_idle_time_is_nothing_to_advise(answers):
    assert tp.advise(tp.load(answers / "nsys" / "healthy_1pct.sqlite")).is_empty()
