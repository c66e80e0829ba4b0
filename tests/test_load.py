"""One verb reads them all: run folders, logdirs, files of every form, one host or several; and the samples."""

import gzip
import json
import os
import re
import shutil
import threading
import time
import tomllib
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from stand_in import xspace

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, ProfileNotFound
from tpunb.io import formats, logdir, storage
from tpunb.io.run_writer import RunWriter
from tpunb.studies.paper import WORKLOADS as RECORDED
from tpunb.testing import toy_steps

T0 = 1_700_000_000_000_000_000  # when the toys began, in nanoseconds since 1970
MS = 1_000_000  # nanoseconds
OWN = ["keras_cnn", "keras_transformer"]
LOADERS = ["slow_loader", "slow_loader_repaired"]
SAMPLES = sorted([*OWN, *LOADERS, "pod", *RECORDED])


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Every file is decoded."""
    monkeypatch.setenv("TPUNB_CACHE", "off")


def window(host="a", begin=T0, steps=(0, 1), op="MatMul"):
    """The XSpace of a host that watched for 10 ms: steps of 2 ms, each with an operation of 1 ms."""
    spans = [(n, begin + i * 2 * MS, begin + (i + 1) * 2 * MS) for i, n in enumerate(steps)]
    data = xspace(begin, begin + 10 * MS, spans, [(op, a, a + MS) for _, a, _ in spans], host=host)
    return data if host else data.removesuffix(b"\x22\x00")  # without a name


def trace(op="Relu", steps=(0, 1)):
    """The same as a Chrome trace, which names no host; in microseconds."""
    kinds = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": i * 2000, "dur": 2000, "name": "train", "args": {"step_num": str(n)}}
        for i, n in enumerate(steps)
    ]
    ops = [{"ph": "X", "pid": 1, "tid": 2, "ts": i * 2000, "dur": 1000, "name": op} for i in range(len(steps))]
    host = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/host:CPU"}}
    return json.dumps({"traceEvents": [host, *kinds, *ops]}).encode()


def zipped(data):
    """The same bytes at any time of the day."""
    return gzip.compress(data, mtime=0)


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def ops(profile):
    return sorted(set(tp.steps(profile).ops["op"]))


# -- one file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "op"),
    [
        ("a.xplane.pb", window(), "MatMul"),
        ("a.xplane.pb.gz", zipped(window()), "MatMul"),
        ("a.xplane.pb", zipped(window()), "MatMul"),  # the first bytes tell, not the name
        ("a.trace.json", trace(), "Relu"),
        ("a.trace.json.gz", zipped(trace()), "Relu"),
        ("worker0.pt.trace.json", trace(), "Relu"),
        ("exported.json", trace(), "Relu"),
        ("exported.json.gz", zipped(b"\n " + trace()), "Relu"),
    ],
    ids=["xplane", "xplane.gz", "xplane gzipped", "json", "json.gz", "torch", "any json", "any json.gz"],
)
def test_a_file_of_every_form_loads_and_gives_its_steps(tmp_path, name, data, op):
    file = put(tmp_path / name, data)
    profile = tp.load(file)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == [0, 1]
    assert ops(profile) == [op]
    assert (profile.name, profile.source) == (name, file)
    assert profile.events.schema == schema.EVENTS
    assert profile.windows.select("window", "error").rows() == [(0, None)]


def test_a_path_may_be_a_string_or_anything_that_is_one(tmp_path):
    class Location:
        def __fspath__(self):
            return str(file)

    file = put(tmp_path / "a.xplane.pb", window())
    assert repr(tp.load(str(file))) == repr(tp.load(file)) == repr(tp.load(Location()))


def test_a_file_has_start_and_duration_of_its_trace(tmp_path):
    data = window()
    profile = tp.load(put(tmp_path / "a.xplane.pb", data))
    assert profile.origin_ns == T0
    assert profile.span_ps == 10 * MS * 1000
    assert profile.windows.row(0) == ("a", 0, 0, 10 * MS * 1000, 10 * MS * 1000, len(data), 4, 2, None, None)
    assert repr(profile) == "Profile(a.xplane.pb, 1 host, 4 events, 0.01 s, 100% of the run observed)"


def test_a_trace_that_does_not_say_was_watched_until_its_last_event(tmp_path):
    span = {"ph": "X", "pid": 1, "tid": 1, "ts": 30, "dur": 10, "name": "a"}
    profile = tp.load(put(tmp_path / "a.trace.json", json.dumps([span]).encode()))
    assert profile.origin_ns is None
    assert profile.windows.select("start_ps", "dur_ps").row(0) == (0, 40_000_000)
    assert profile.observed == 1


def test_a_trace_of_no_events_is_an_empty_profile(tmp_path):
    profile = tp.load(put(tmp_path / "a.trace.json", b'{"traceEvents": []}'))
    assert profile.events.is_empty()
    assert (profile.span_ps, profile.observed) == (0, 0.0)
    with pytest.raises(tp.TpunbError, match="holds no steps"):
        tp.steps(profile)


# -- several files --------------------------------------------------------------------------------------------


def two_hosts(tmp_path):
    """Host b began 3 ms after host a."""
    first = put(tmp_path / "a.xplane.pb", window("a"))
    second = put(tmp_path / "b.xplane.pb", window("b", T0 + 3 * MS, op="Relu"))
    return first, second


@pytest.mark.parametrize("order", [1, -1])
def test_two_hosts_are_one_profile_on_one_clock(tmp_path, order):
    profile = tp.load(two_hosts(tmp_path)[::order])
    assert set(profile.events["host"]) == {"a", "b"}
    assert profile.windows.sort("host").select("host", "start_ps", "dur_ps").rows() == [
        ("a", 0, 10 * MS * 1000),
        ("b", 3 * MS * 1000, 10 * MS * 1000),
    ]
    assert profile.windows["window"].to_list() == [0, 1]
    begins = profile.events.group_by("host").agg(pl.col("start_ps").min()).sort(pl.col("host").cast(pl.String))
    assert begins["start_ps"].to_list() == [0, 3 * MS * 1000]
    assert (profile.origin_ns, profile.span_ps) == (T0, 13 * MS * 1000)
    assert profile.observed == pytest.approx(10 / 13)
    assert repr(profile).split(", ")[1] == "2 hosts"


def test_lanes_of_two_hosts_do_not_collide(tmp_path):
    events = tp.load(two_hosts(tmp_path)).events
    lanes = events.select("host", "plane", "line", "lane").unique()
    assert lanes.height == lanes["lane"].n_unique() == 4  # a thread of marks and one of operations, each host


def test_steps_of_two_hosts_stay_apart(tmp_path):
    steps = tp.steps(tp.load(two_hosts(tmp_path)))
    assert steps.frame.select("host", "step").rows() == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert set(steps.ops.select("host", "op").rows()) == {("a", "MatMul"), ("b", "Relu")}


@pytest.mark.parametrize(
    ("ending", "data"),
    [(".trace.json.gz", zipped(trace())), (".xplane.pb", window(host=""))],
    ids=["trace", "xplane"],
)
def test_hosts_without_names_are_named_after_their_files(tmp_path, ending, data):
    files = [put(tmp_path / f"{name}{ending}", data) for name in ("tpu-0", "tpu-1")]
    profile = tp.load(files)
    assert profile.windows["host"].to_list() == ["tpu-0", "tpu-1"]
    steps = tp.steps(profile)
    assert steps.frame.select("host", "step").rows() == [("tpu-0", 0), ("tpu-0", 1), ("tpu-1", 0), ("tpu-1", 1)]
    assert steps.ops["count"].to_list() == [1] * 4
    assert set(tp.load(files[0]).events["host"]) == {""}  # one alone needs no name


def test_devices_of_two_hosts_are_distinct(tmp_path):
    device = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:TPU:0"}}
    data = json.dumps([device, {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "name": "dot"}]).encode()
    profile = tp.load([put(tmp_path / f"{host}.trace.json", data) for host in "ab"])
    assert profile.hardware.select("host", "device").rows() == [("a", "/device:TPU:0"), ("b", "/device:TPU:0")]
    assert "2 hosts, 2 TPUs" in repr(profile)


def test_any_collection_of_paths_will_do(tmp_path):
    files = two_hosts(tmp_path)
    assert repr(tp.load(str(file) for file in files)) == repr(tp.load(tuple(files)))


def test_hosts_are_decoded_side_by_side(tmp_path, monkeypatch):
    together = threading.Barrier(3)
    decode = logdir.decoded

    def waits_for_the_others(file, data):
        together.wait(timeout=60)
        return decode(file, data)

    monkeypatch.setattr(logdir, "decoded", waits_for_the_others)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    files = [put(tmp_path / f"{host}.xplane.pb", window(host)) for host in "cab"]
    assert tp.load(files).windows["host"].to_list() == ["c", "a", "b"]


class Trickle:
    """A file system whose files come a byte at a time, for a minute."""

    def __init__(self):
        self.came = 0

    def info(self, path):
        return {"type": "file", "size": 60_000}

    def open(self, path, **_):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def readinto(self, buffer):
        time.sleep(0.001)
        self.came += 1
        return 1


@pytest.mark.live
def test_what_is_still_being_read_stops_when_a_host_fails(tmp_path):
    slow, gone = Trickle(), storage.Location(storage.find(tmp_path).fs, str(tmp_path / "a.xplane.pb"))
    with pytest.raises(ProfileNotFound, match=r"a\.xplane\.pb"):
        logdir.read([gone, storage.Location(slow, "b.xplane.pb", "slow://b.xplane.pb")], "toy", tmp_path)
    assert slow.came < 60_000


# -- damaged members ------------------------------------------------------------------------------------------


def ten_hosts(folder):
    """Ten hosts, three of them damaged: cut, empty, and a gzip that is none."""
    for number in range(10):
        put(folder / f"{number}.xplane.pb", window(f"host{number}"))
    put(folder / "2.xplane.pb", window()[:-9])
    put(folder / "5.xplane.pb", b"")
    (folder / "7.xplane.pb").unlink()
    put(folder / "7.xplane.pb.gz", b"\x1f\x8b" + window())


def test_damaged_files_of_a_folder_are_named_and_the_others_read(tmp_path):
    ten_hosts(tmp_path)
    with pytest.warns(
        UserWarning, match=r"3 files skipped: 2\.xplane\.pb: .*; 5\.xplane\.pb: the file is empty"
    ) as seen:
        profile = tp.load(tmp_path)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert [name for name, _ in profile.skipped] == ["2.xplane.pb", "5.xplane.pb", "7.xplane.pb.gz"]
    assert str(tmp_path) not in str(profile.skipped)
    assert profile.windows["host"].to_list() == [f"host{number}" for number in (0, 1, 3, 4, 6, 8, 9)]
    assert tp.steps(profile).frame.height == 14
    assert "7 hosts" in repr(profile)
    assert repr(profile).endswith("3 files skipped)")


def test_many_small_files_are_read_together_and_a_damaged_one_among_them_is_named(tmp_path):
    for number in range(35):
        put(tmp_path / f"{number:02}.xplane.pb", window(f"host{number}"))
    whole = tp.load(tmp_path)
    steps = tp.steps(whole).frame
    put(tmp_path / "13.xplane.pb", window()[:-9])
    with pytest.warns(UserWarning, match=r"1 file skipped: 13\.xplane\.pb: no whole protobuf"):
        profile = tp.load(tmp_path)
    others = pl.col("host") != "host13"
    columns = ["host", "start_ps", "dur_ps", "bytes", "events", "steps"]
    assert_frame_equal(profile.windows.select(columns), whole.windows.filter(others).select(columns))
    assert_frame_equal(tp.steps(profile).frame, steps.filter(others))
    for row, (begin, dur) in enumerate(profile.windows.select("start_ps", "dur_ps").rows()):
        alone = tp.load(tmp_path / f"{row + (row >= 13):02}.xplane.pb").windows
        assert (begin, dur) == tuple(alone.select("start_ps", "dur_ps").row(0))


def test_instructions_of_a_file_that_became_damaged_are_left_out(tmp_path):
    for host in ("a", "b"):
        put(tmp_path / f"{host}.xplane.pb", window(host))
    profile, alone = tp.load(tmp_path), tp.load(tmp_path / "b.xplane.pb")
    put(tmp_path / "b.xplane.pb", window()[:-9])
    with pytest.warns(UserWarning, match="instructions without those of b.xplane.pb: no whole protobuf"):
        assert profile.instructions.is_empty()  # these windows have no device
    with pytest.raises(BadProfile, match="no whole protobuf"):
        _ = alone.instructions


def test_mangled_bytes_beside_a_sound_trace(tmp_path):
    put(tmp_path / "a.xplane.pb", window().decode("utf8", "replace").encode())
    put(tmp_path / "b.trace.json", trace())
    with pytest.warns(UserWarning, match="1 file skipped: a.xplane.pb"):
        assert tp.load(tmp_path).windows.height == 1


def test_the_trace_of_a_host_is_read_where_its_xplane_is_damaged(tmp_path):
    put(tmp_path / "a.xplane.pb", window()[:-9])
    put(tmp_path / "a.trace.json.gz", zipped(trace()))
    with pytest.warns(UserWarning, match=r"1 file skipped: a.xplane.pb: .*; a.trace.json.gz is read instead"):
        profile = tp.load(tmp_path)
    assert ops(profile) == ["Relu"]
    put(tmp_path / "b.xplane.pb", window("b"))
    with pytest.warns(UserWarning, match="a.trace.json.gz is read instead"):
        profile = tp.load(tmp_path)
    assert profile.windows["host"].to_list() == ["a", "b"]
    assert ops(profile) == ["MatMul", "Relu"]
    with pytest.raises(BadProfile, match="no whole protobuf"):  # named alone, it is an error
        tp.load(tmp_path / "a.xplane.pb")
    put(tmp_path / "a.trace.json.gz", b"")
    with pytest.warns(UserWarning, match="1 file skipped: a.xplane.pb: no whole protobuf") as seen:
        assert tp.load(tmp_path).windows["host"].to_list() == ["b"]
    assert "read instead" not in str(seen[0].message)


def test_hosts_beyond_the_limit_are_decoded_again_some_at_a_time(tmp_path, monkeypatch):
    for number in range(6):
        put(tmp_path / f"{number}.xplane.pb", window(f"host{number % 4}", T0 + number * 10 * MS, (number, number + 10)))
    held = tp.load(tmp_path)
    monkeypatch.setattr(logdir, "_MOST_EVENTS", 3)
    monkeypatch.setattr(logdir, "_BATCH", 5)
    few = tp.load(tmp_path)
    assert few.windows.equals(held.windows)
    batches = [batch["host"].unique(maintain_order=True).to_list() for batch in few.batches()]
    assert batches == [["host0"], ["host1"], ["host2", "host3"]]  # a host is never cut
    steps, others = tp.steps(few), tp.steps(held)
    assert "events" not in vars(few)  # only some at a time
    for name in ("frame", "ops", "devices", "input_stages"):
        assert_frame_equal(getattr(steps, name), getattr(others, name), check_row_order=False)
    assert few.events.equals(held.events)
    assert next(few.batches()) is few.events


def test_a_damaged_table_of_a_folder_is_named(tmp_path):
    table = {"cols": [{"id": "stepnum"}, {"id": "stepTimeMs"}], "rows": [{"c": [{"v": "0"}, {"v": 1}]}]}
    put(tmp_path / "a.overview_page.json", json.dumps([table]).encode())
    put(tmp_path / "a.input_pipeline.json.gz", b"\x1f\x8b" + bytes(9))
    with pytest.warns(UserWarning, match=r"1 file skipped: a\.input_pipeline\.json\.gz: cannot be read"):
        profile = tp.load(tmp_path)
    assert str(tmp_path) not in str(profile.skipped)
    with pytest.raises(BadProfile, match="cannot be read"):
        tp.load(put(tmp_path / "alone" / "a.input_pipeline.json.gz", b"\x1f\x8b" + bytes(9)))


def test_a_damaged_file_is_named_with_its_session(tmp_path):
    for session in ("monday", "tuesday"):
        put(tmp_path / session / "a.xplane.pb", window() if session == "monday" else b"")
    with pytest.warns(UserWarning, match="1 file skipped: tuesday/a.xplane.pb: the file is empty"):
        tp.load(tmp_path)


def test_a_folder_of_damaged_files_alone_is_an_error(tmp_path):
    for host in "ab":
        put(tmp_path / f"{host}.xplane.pb", b"")
    with pytest.raises(BadProfile, match=re.escape(str(tmp_path / "a.xplane.pb")) + ": the file is empty"):
        tp.load(tmp_path)


# -- the device of a file that does not name it ---------------------------------------------------------------


def device_trace(device):
    """A trace of one device; with one operation of 1 ms."""
    rows = json.loads(trace())["traceEvents"]
    rows += [
        {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": device}},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 1, "args": {"name": "XLA Ops"}},
        {"ph": "X", "pid": 9, "tid": 1, "ts": 0, "dur": 1000, "name": "fusion"},
    ]
    return json.dumps({"traceEvents": rows}).encode()


def test_a_named_device_gives_kind_and_peaks(tmp_path):
    file = put(tmp_path / "a.trace.json", device_trace("/device:TPU:0"))
    assert tp.load(file).hardware.select("kind", "peak_flops").row(0) == ("TPU", None)
    profile = tp.load(file, device="tpu V6e")
    assert profile.hardware.select("kind", "peak_flops", "hbm_bandwidth").row(0) == ("TPU v6e", 918e12, 1638e9)
    assert tp.steps(profile).metadata == {"device kind": "TPU v6e"}
    # a core is half a chip
    assert tp.load(file, device="TPU v2").hardware.select("peak_flops", "hbm_bandwidth").row(0) == (22.5e12, 300e9)


def test_a_named_device_of_stored_steps(tmp_path):
    table = {"cols": [{"id": "stepnum"}, {"id": "stepTimeMs"}], "rows": [{"c": [{"v": "0"}, {"v": 1}]}]}
    overview = {"cols": [], "rows": [], "p": {"hardware_type": "TPU", "device_core_count": "2"}}
    file = put(tmp_path / "a.overview_page.json", json.dumps([table, overview]).encode())
    profile = tp.load(file, device="TPU v5e")
    assert profile.hardware.select("kind", "peak_flops").rows() == [("TPU v5e", 197e12)] * 2
    assert tp.steps(profile).metadata == {"device kind": "TPU v5e"}


@pytest.mark.parametrize(
    ("device", "named", "seen"),
    [
        (
            "/device:TPU:0",
            "TPU v9",
            "unknown device 'TPU v9'; did you mean 'TPU v\\d\\w*'[?] known devices: TPU v2, .*H200",
        ),
        ("/device:TPU:0", "abacus", "unknown device 'abacus'; known devices: TPU v2, .*H200"),
        ("/device:GPU:0", "TPU v6e", "must fit the profile. Got 'TPU v6e' for GPU"),
        ("/host:CPU", "TPU v6e", "Got 'TPU v6e' for no device"),
    ],
)
def test_a_device_that_does_not_fit_is_an_error(tmp_path, device, named, seen):
    file = put(tmp_path / "a.trace.json", device_trace(device))
    with pytest.raises(ValueError, match=seen):
        tp.load(file, device=named)


def test_a_file_that_names_its_device_keeps_it(real_profiles):
    file = real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"
    assert tp.load(file, device="TPU v6e").hardware.equals(tp.load(file).hardware)
    with pytest.raises(ValueError, match="Got 'TPU v4' for TPU v6 Lite"):
        tp.load(file, device="TPU v4")


# -- folders --------------------------------------------------------------------------------------------------


def test_a_run_folder_loads_what_the_capture_stored(tmp_path):
    steps = toy_steps("ab")
    writer = RunWriter(tmp_path)
    writer.part(0, {"steps": steps.frame, "ops": steps.ops, "devices": steps.devices})
    writer.facts({"name": "toy"})
    profile = tp.load(tmp_path)
    assert profile.source == tmp_path
    assert tp.steps(profile).frame.rows() == steps.frame.rows()
    with pytest.raises(tp.TpunbError, match="toy holds no raw events: its capture kept statistics only"):
        profile.events  # noqa: B018


def test_raw_windows_of_a_run_lie_where_they_were_watched(tmp_path):
    writer = RunWriter(tmp_path)
    for number in range(2):
        known = {"host": "toy", "window": number, "start_ps": number * 10**12, "dur_ps": 10**10, "events": 2}
        writer.part(number, {"windows": pl.DataFrame([known], schema=schema.WINDOWS)})
        writer.raw(number, "toy", window(steps=[number]))
    writer.facts({"name": "toy"})
    events = tp.load(tmp_path).events
    kinds = events.filter(pl.col("step_num").is_not_null())
    assert kinds.select("step_num", "start_ps").rows() == [(0, 0), (1, 10**12)]
    assert events["lane"].n_unique() == 4


def test_a_logdir_gives_every_host_of_its_session(tmp_path):
    session = tmp_path / "logs" / "plugins" / "profile" / "2024_01_01_00_00_00"
    put(session / "a.xplane.pb", window("a"))
    put(session / "b.xplane.pb", window("b"))
    put(session / "a.input_pipeline.json", b"{}")  # other files of a session are no profiles
    put(tmp_path / "logs" / "train" / "events.out.tfevents.1", b"scalars")
    profile = tp.load(tmp_path / "logs")
    assert profile.windows["host"].to_list() == ["a", "b"]
    assert (profile.name, profile.source) == ("logs", tmp_path / "logs")


def test_hosts_whose_session_folders_are_named_seconds_apart_are_one_job(tmp_path):
    for host, late in (("a", 0), ("b", 2)):
        folder = tmp_path / "plugins" / "profile" / f"2026_11_25_21_53_{25 + late}"
        put(folder / f"{host}.xplane.pb", window(host, T0 + late * 1000 * MS, steps=[4, 5]))
    profile = tp.load(tmp_path)
    assert profile.windows.select("host", "start_ps").rows() == [("a", 0), ("b", 2 * 10**12)]
    frame = tp.steps(profile).frame
    assert frame.select("step", "host").sort("step", "host").rows() == [(4, "a"), (4, "b"), (5, "a"), (5, "b")]


def test_the_sessions_of_a_logdir_follow_one_another(tmp_path):
    for number in range(2):
        put(
            tmp_path / "plugins" / "profile" / f"session {number}" / "a.xplane.pb",
            window("a", T0 + number * 1000 * MS, steps=[number]),
        )
    profile = tp.load(tmp_path)
    assert profile.windows.select("host", "start_ps").rows() == [("a", 0), ("a", 1000 * MS * 1000)]
    assert tp.steps(profile).frame.select("step", "start_ps").rows() == [(0, 0), (1, 1000 * MS * 1000)]
    assert profile.gaps.rows() == [("a", 10 * MS * 1000, 990 * MS * 1000)]


def cycle(folder, numbers, begin_us, *, rank=None):
    """A trace as PyTorch's `tensorboard_trace_handler` writes it for each cycle: of one process, or of a rank."""
    begins = [begin_us + 100 * at for at in range(len(numbers))]
    items = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 7, "tid": 7, "ts": ts, "dur": 100}
        for n, ts in zip(numbers, begins, strict=True)
    ]
    facts = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": items}
    of_rank = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    name = f"node7_{1234 + (rank or 0)}.{begin_us}000.pt.trace.json"
    put(folder / name, json.dumps(facts | of_rank).encode())


def test_the_cycles_of_a_process_are_windows_of_one_host(tmp_path):
    begin_us = 1_700_000_000_000_000
    for number in range(3):
        cycle(tmp_path, [10 * number, 10 * number + 1], begin_us + 3_600_000_000 * number)  # hours apart
    profile = tp.load(tmp_path)
    hour_ps = 3_600 * 10**12
    assert profile.windows.select("host", "start_ps").rows() == [("node7_1234", n * hour_ps) for n in range(3)]
    steps = tp.steps(profile).frame.select("step", "start_ps").rows()
    assert steps == [(10 * n + at, n * hour_ps + at * 10**8) for n in range(3) for at in range(2)]
    assert (profile.notes, profile.skipped) == ((), ())


def test_the_cycles_of_ranks_are_windows_of_two_hosts_by_one_clock(tmp_path):
    for rank, late_us in ((0, 0), (1, 30)):
        for number in range(2):
            cycle(tmp_path, [10 * number], 1_700_000_000_000_000 + 1000 * number + late_us, rank=rank)
    profile = tp.load(tmp_path)
    frame = tp.steps(profile).frame.sort("host", "step").select("host", "step", "start_ps")
    us = 10**6
    assert frame.rows() == [
        *(("rank 0", 10 * n, 1000 * n * us) for n in range(2)),
        *(("rank 1", 10 * n, (1000 * n + 30) * us) for n in range(2)),
    ]


def test_cycles_of_a_process_that_overlap_are_said(tmp_path):
    for number in range(2):
        cycle(tmp_path, [10 * number, 10 * number + 1], 1_700_000_000_000_000 + 150 * number)
    with pytest.warns(UserWarning, match="begins 0.05 ms before an earlier trace of its host ends"):
        tp.load(tmp_path)


def test_sessions_with_the_same_step_numbers_are_distinct_hosts(tmp_path):
    for number in range(2):
        put(
            tmp_path / "plugins" / "profile" / f"session {number}" / "a.xplane.pb",
            window("a", T0 + number * 1000 * MS, steps=[7]),
        )
    steps = tp.steps(tp.load(tmp_path))
    assert steps.frame.select("host", "step").rows() == [("a session 0", 7), ("a session 1", 7)]
    assert steps.ops["host"].unique().sort().to_list() == ["a session 0", "a session 1"]


def test_a_folder_of_runs_at_any_depth_names_them(tmp_path, monkeypatch):
    for name in ("runs/march/bert", "runs/april/first/resnet"):
        RunWriter(tmp_path / name).facts({"name": name})
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "run.json").write_text('{"id": "of another program"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileNotFound, match=r"^'runs' is not a run folder; it contains 2 runs\n") as caught:
        tp.load("runs")
    assert caught.value.hint == "load one of april/first/resnet, march/bert"


def test_a_folder_of_many_runs_is_not_searched_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_MANY_RUNS", 2)
    monkeypatch.setattr(storage.Location, "below", None)
    for name in ("group/a", "group/b", "group/c"):
        RunWriter(tmp_path / name).facts({"name": name})
    with pytest.raises(ProfileNotFound, match="is not a run folder; it contains 2 runs or more") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == "load one of group/a, group/b"


@pytest.mark.parametrize("target", ["nowhere", "link.xplane.pb"], ids=["dangling", "looping"])
def test_a_link_that_leads_nowhere_is_named_and_the_rest_read(tmp_path, target):
    (tmp_path / "sound.xplane.pb").write_bytes(window())
    (tmp_path / "link.xplane.pb").symlink_to(tmp_path / target)
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.warns(UserWarning, match="1 file skipped: link.xplane.pb: ") as caught:
        profile = tp.load(tmp_path)
    assert "\n" not in str(caught[0].message)
    assert len(tp.steps(profile)) > 0
    with pytest.raises(tp.TpunbError, match=r"link\.xplane\.pb"):
        tp.load(tmp_path / "link.xplane.pb")


def test_a_folder_of_runs_names_them(tmp_path):
    for name in ("bert", "resnet"):
        RunWriter(tmp_path / name).facts({"name": name})
    with pytest.raises(ProfileNotFound, match="is not a run folder; it contains 2 runs") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == "load one of bert, resnet"


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (("a.xplane.pb", window()), ("a.trace.json.gz", zipped(trace()))),
        (("a.xplane.pb.gz", zipped(window())), ("a.trace.json", trace())),
        (("a.xplane.pb", window()), ("a.xplane.pb.gz", zipped(window()))),
    ],
    ids=["json.gz", "json", "packed"],
)
def test_a_twin_of_the_same_host_is_not_counted_again(tmp_path, better, worse):
    for name, data in (worse, better):
        put(tmp_path / name, data)
    profile = tp.load(tmp_path)
    assert profile.windows.height == 1
    assert ops(profile) == ["MatMul"]
    assert tp.steps(profile).ops["count"].to_list() == [1, 1]


def test_a_trace_without_a_twin_is_read_beside_the_xplanes(tmp_path):
    put(tmp_path / "a.xplane.pb", window("a"))
    put(tmp_path / "b.trace.json.gz", zipped(trace()))
    put(tmp_path / "elsewhere" / "a.trace.json.gz", zipped(trace()))  # another session's: no twin
    assert sorted(tp.load(tmp_path).windows["host"]) == sorted([f"a {tmp_path.name}", "a elsewhere", "b"])


# -- what cannot be read --------------------------------------------------------------------------------------


def test_a_missing_path_lists_its_parent_folder(tmp_path):
    for name in ("bert", "resnet"):
        (tmp_path / name).mkdir()
    with pytest.raises(ProfileNotFound) as caught:
        tp.load(tmp_path / "brt")
    assert str(caught.value) == f"nothing is at {tmp_path / 'brt'}"
    assert caught.value.hint == f"{tmp_path} holds bert, resnet"
    with pytest.raises(FileNotFoundError) as caught:
        tp.load(tmp_path / "no" / "where")
    assert caught.value.hint == f"{tmp_path / 'no'} is not a folder"


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ProfileNotFound, match=r"holds no profile: no run\.json and no file ending in") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == f"{tmp_path} is empty"


def test_a_folder_without_profiles_lists_its_contents(tmp_path):
    put(tmp_path / "model.keras", b"weights")
    with pytest.raises(ProfileNotFound, match="holds no profile") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == f"{tmp_path} holds model.keras"


@pytest.mark.parametrize("empty", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_an_empty_list_is_an_error(empty):
    with pytest.raises(ProfileNotFound, match="the list of profiles is empty"):
        tp.load(empty)


def test_the_one_missing_file_of_a_list_is_named(tmp_path):
    here = put(tmp_path / "a.xplane.pb", window())
    with pytest.raises(ProfileNotFound, match=re.escape(f"nothing is at {tmp_path / 'b.xplane.pb'}")) as caught:
        tp.load([here, tmp_path / "b.xplane.pb"])
    assert caught.value.hint == f"{tmp_path} holds a.xplane.pb"


PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
ZIPPED = zipped(window())


@pytest.mark.parametrize(
    ("name", "data", "seen"),
    [
        ("a.xplane.pb", b"", "the file is empty"),
        ("a.xplane.pb", window()[:-9], "bytes"),
        ("a.xplane.pb", PNG, "PNG"),
        ("a.xplane.pb", b"plain words", "plain words"),
        ("a.xplane.pb.gz", ZIPPED[: len(ZIPPED) // 2], "cannot be read"),
        ("a.xplane.pb.gz", ZIPPED[:-8] + bytes(8), "cannot be read"),
        ("a.xplane.pb.gz", zipped(b""), "the file is empty"),
        ("a.trace.json", b"", "the file is empty"),
        ("a.trace.json", trace()[:-9], "not JSON"),
        ("a.trace.json.gz", zipped(trace())[:-12], "cannot be read"),
        ("a.trace.json", b'{"rows": 1}', r"no Chrome trace: an object with \['rows'\]"),
        ("plot.png", PNG, r"not a profile by its name or its first bytes b'\\x89PNG"),
        ("notes.txt", b"plain words", r"first bytes b'plain wo'"),
        ("empty.bin", b"", r"first bytes b''"),
        ("notes.txt", b"[not json]", r"first bytes b'\[not jso'"),
        ("notes.txt", b'\xef\xbb\xbf [{"not json', "not JSON"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_an_invalid_profile_is_named_with_its_content(tmp_path, name, data, seen):
    file = put(tmp_path / name, data)
    for where in (file, [file]):
        with pytest.raises(BadProfile, match=re.escape(str(file)) + ".*" + seen) as caught:
            tp.load(where)
        assert "\n" not in str(caught.value)


def test_a_list_may_hold_logdirs(tmp_path):
    put(tmp_path / "one" / "a.xplane.pb", window("a"))
    put(tmp_path / "b.xplane.pb", window("b"))
    assert tp.load([tmp_path / "one", tmp_path / "b.xplane.pb"]).windows["host"].to_list() == ["a", "b"]


def test_an_empty_logdir_in_a_list_is_an_error(tmp_path):
    with pytest.raises(ProfileNotFound, match=re.escape(str(tmp_path)) + " holds no profile"):
        tp.load([tmp_path])


def test_a_run_in_a_list_of_raw_profiles_is_an_error(tmp_path):
    RunWriter(tmp_path / "bert").facts({"name": "bert"})
    with pytest.raises(tp.TpunbError, match="is a run"):
        tp.load([tmp_path / "bert", put(tmp_path / "a.xplane.pb", window())])


@pytest.mark.parametrize("wrong", [None, 5, b"runs/bert"])
def test_a_wrong_argument_is_refused_in_one_sentence(wrong):
    with pytest.raises(TypeError, match="The path parameter of load must be a path or a list of paths"):
        tp.load(wrong)


# -- real captures --------------------------------------------------------------------------------------------


def test_a_real_capture_has_hosts_and_hardware(real_profiles):
    profile = tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb")
    assert repr(profile) == (
        "Profile(tpu-v6e-4_jax_host-offload.xplane.pb, 1 host, 4 TPUs, 26.7k events, 98.6 s, 100% of the run observed)"
    )
    assert profile.hardware["kind"].unique().to_list() == ["TPU v6 Lite"]
    assert (profile.hardware["peak_flops"] > 1e14).all()


def test_a_folder_of_real_captures_is_read_with_one_window_a_host(real_profiles):
    profile = tp.load(real_profiles)
    captures = {
        path.name.partition(".")[0] for kind in ("*.xplane.pb", "*.trace.json.gz") for path in real_profiles.glob(kind)
    }
    assert len(captures) >= 5
    assert profile.windows.height == len(captures)
    assert profile.events.height == profile.windows["events"].sum()


# -- samples --------------------------------------------------------------------------------------------------


sample = cache(tp.sample)


def folder_of(name):
    return sample(name).source


def test_an_unknown_sample_lists_all_samples():
    with pytest.raises(ProfileNotFound, match="no sample is named 'kears_cnn'") as caught:
        tp.sample("kears_cnn")
    assert caught.value.hint == f"samples: {', '.join(SAMPLES)}"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_small_and_holds_statistics_only(name):
    files = [path for path in folder_of(name).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".toml", ".parquet"}
    assert sum(path.stat().st_size for path in files) < 1_000_000
    with pytest.raises(tp.TpunbError, match="statistics only"):
        sample(name).events  # noqa: B018


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_described_by_its_about_toml(name):
    about = tomllib.loads((folder_of(name) / "about.toml").read_text(encoding="utf-8"))
    steps = tp.steps(sample(name))
    assert about["name"] == sample(name).name == name
    assert (about["steps"], about["seen_in_full"]) == (len(steps), len(steps.full()))
    assert {"what", "run", "recorded", "device", "versions"} <= set(about)
    python, *script, which = about["again"].split()
    assert (python, which) == ("python", name)
    if name not in RECORDED:
        assert (Path(tp.__file__).parents[1] / script[0]).is_file()
    else:
        assert script == ["-m", "tpunb.studies.paper.record", "--scale", "0"]


def test_the_slow_hosts_of_the_simulated_sample_are_named():
    about = tomllib.loads((folder_of("pod") / "about.toml").read_text(encoding="utf-8"))
    assert about["simulated"]
    chip, data = about["fault"]
    found = tp.hosts(tp.steps(sample("pod")))
    present = found.frame.select("host", "named", "cause", "device", "recurrence").head(3).rows()
    assert present[:2] == [
        (chip["host"], True, "compute", chip["device"], "every step"),
        (data["host"], True, "input", None, f"every {data['every']} steps"),
    ]
    assert not present[2][1]
    gains = [cost / found.span_ps for cost in found.frame["costs_ps"].head(2)]
    assert gains == pytest.approx([chip["gain"], data["gain"]], abs=0.001)
    assert found.by == "collectives"


def test_all_samples_together_are_small():
    assert sum(path.stat().st_size for name in SAMPLES for path in folder_of(name).rglob("*") if path.is_file()) < 15e6


def words(value):
    """Every string of a JSON or TOML value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from words(one)
    elif isinstance(value, list):
        for one in value:
            yield from words(one)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_has_no_data_of_its_machine(name):
    folder = folder_of(name)
    texts = [
        *words(json.loads((folder / "run.json").read_text(encoding="utf-8"))),
        *words(tomllib.loads((folder / "about.toml").read_text(encoding="utf-8"))),
    ]
    for file in folder.rglob("*.parquet"):
        frame = pl.read_parquet(file).select(
            pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String).unique().implode()
        )
        texts += [text for column in frame.row(0) for text in column if text is not None]
    assert len(texts) > 100
    absolute = re.compile(r"(?:^|[\s'\"=(])(?:/(?!device:|host:)|~|[A-Za-z]:\\|file:)")
    assert [text for text in texts if absolute.search(text)] == []


@pytest.mark.parametrize("name", OWN)
def test_phases_of_a_sample_keep_training_and_testing_apart(name):
    phases = tp.phases(tp.steps(sample(name)))
    counts = phases.labelled.group_by("kind", "phase").len().sort("len")
    kinds = {kind: counts.filter(pl.col("kind") == kind) for kind in counts["kind"].unique()}
    assert set(kinds) == {"train", "eval"}
    homes = {kind: rows["phase"][-1] for kind, rows in kinds.items()}
    assert -1 not in homes.values()
    assert homes["train"] != homes["eval"]
    for rows in kinds.values():
        assert rows["len"][-1] / rows["len"].sum() > 0.5


def test_a_copy_of_a_run_is_left_out_of_a_list_of_runs(tmp_path):
    sample = tp.sample("keras_cnn")
    copy = shutil.copytree(sample.source, tmp_path / "copy")
    with pytest.warns(UserWarning, match=r"1 file skipped: .*copy: a copy of .*keras_cnn"):
        profile = tp.load([sample.source, copy])
    assert profile.windows["host"].n_unique() == 1
    assert len(tp.steps(profile)) == len(tp.steps(sample))


def test_the_slow_sample_has_a_waste_a_line_and_a_remedy_and_the_repaired_one_what_it_gained():
    slow, repaired = map(tp.sample, LOADERS)
    judged = tp.analysis.verdict(tp.phases(slow))
    assert (judged.cause, judged.account, judged.healthy) == ("T101", "data loading", False)
    assert "mostly train.py:21 in __getitem__ ← urlopen. Give the DataLoader workers: `DataLoader(" in judged.sentence
    line = (folder_of("slow_loader").parent / "train.py").read_text().splitlines()[20]
    assert "urlopen(" in line
    assert tp.analysis.verdict(tp.phases(repaired)).healthy
    changed = tp.compare(slow, repaired)
    gained = -changed.accounts.row(0, named=True)["change_ps"]
    assert changed.accounts["account"][0] == "data loading"
    assert 0.8 * judged.saves_ps < gained <= judged.saves_ps
    assert changed.b.steps.wall.span_ps < 0.6 * changed.a.steps.wall.span_ps
