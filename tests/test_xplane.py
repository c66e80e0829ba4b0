"""The XPlane decoder against the protobuf library, on real captures, on toy ones and on damaged ones."""

import gzip
import os
import random
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from link_ids import flow_id, run_launch
from planes import Plane

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io import chrome_trace, storage, xplane
from tpunb.io.cache import Decoded
from tpunb.protobuf import kernels as protobuf_kernels
from tpunb.testing import toy_window

INT64 = st.integers(-(2**63), 2**63 - 1)


def captures(pattern):
    root = os.environ.get("TPUNB_DATA")
    return sorted(Path(root, "profiles").glob(pattern)) if root else []


def each_capture(pattern="*.xplane.pb"):
    """Parametrise a test over the real captures; skip it, saying why, where there are none."""
    found = captures(pattern) or [
        pytest.param(None, marks=pytest.mark.skip("real captures: set TPUNB_DATA to their folder"))
    ]
    return pytest.mark.parametrize("path", found, ids=lambda path: path.name if path else "none")


# -- the reference: plain loops over the protobuf library -----------------------------------------------------


def stat_values(stats, plane):
    values = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        if kind == "ref_value":
            value = plane.stat_metadata[value].name if value in plane.stat_metadata else None
        if stat.metadata_id in plane.stat_metadata:
            values[plane.stat_metadata[stat.metadata_id].name] = value
    return values


def word(value):
    return value or None if isinstance(value, str) else None


def whole(value):
    if isinstance(value, str):
        return int(value) if re.fullmatch("[0-9]{1,18}", value) else None
    return value if isinstance(value, int) and value < 2**63 else None


def framework_op(stats):
    tf_op = word((word(stats.get("tf_op")) or "").removesuffix(":").replace("XlaModule", ""))
    return tf_op or word((word(stats.get("annotation")) or "").partition("#")[0].removesuffix(":"))


def unsigned(value):
    return value % 2**64 if isinstance(value, int) else None


def signed(value):
    return (unsigned(value) + 2**63) % 2**64 - 2**63 if isinstance(value, int) else None


def hand_over(stats, kind, number):
    known = unsigned(stats.get(number))
    return None if known is None else flow_id(unsigned(stats.get(kind)) or 0, known)


def launch(stats, plane):
    ordinal = re.search(r":([0-9]{1,9})$", plane.name)
    device = plane.name.startswith("/device:")
    named = unsigned(stats.get("device_ordinal"))
    on_host = -1 if named is None or "hlo_op" in stats else named
    number = (int(ordinal[1]) if ordinal else 0) if device else on_host
    if correlation := unsigned(stats.get("correlation_id")):
        return correlation
    run = unsigned(stats.get("run_id"))
    return None if run is None or named == 2**64 - 1 else run_launch(run, number)


def first_whole(*places):
    return next((n for stats, name in places if (n := whole(stats.get(name))) is not None), None)


def expected_events(space):
    """Yield each event as a dictionary of what the profile itself says of it: not what its HLO adds."""
    lane = -1
    for plane in space.planes:
        metadata = dict(plane.event_metadata)
        device = plane.name.startswith("/device:")
        shared = {key: stat_values(one.stats, plane) for key, one in metadata.items()}
        for line in plane.lines:
            lane += 1
            for event in line.events:
                own = stat_values(event.stats, plane)
                one = metadata.get(event.metadata_id)
                stats = {**shared.get(event.metadata_id, {}), **own} if device else own
                name = (one.display_name or one.name) if one else ""
                row = {
                    "host": space.hostnames[0] if space.hostnames else "",
                    "plane": plane.name,
                    "line": line.display_name or line.name,
                    "lane": lane,
                    "name": name,
                    "tf_op": None,
                    "hlo_op": None if not device and unsigned(own.get("correlation_id")) else word(own.get("hlo_op")),
                    "category": None,
                    "program": signed(stats.get("program_id")),
                    "step_num": whole(own.get("step_num")),
                    "start_ps": line.timestamp_ns * 1000 + event.offset_ps,
                    "dur_ps": max(event.duration_ps, 0),
                    "device_dur_ps": whole(own.get("device_duration_ps")) if device else None,
                    "flops": None,
                    "bytes": None,
                    "flow_out": hand_over(own, "_pt", "_p"),
                    "flow_in": hand_over(own, "_ct", "_c"),
                    "correlation_id": launch(own, plane),
                }
                if not device:
                    scoped = one and re.fullmatch(r"[A-Za-z0-9._][\w./>\-\[\]]*:[A-Za-z_]\w*", one.name)
                    row["tf_op"] = "tf.function" if word(own.get("tf_function_call")) else one.name if scoped else None
                else:
                    row["tf_op"] = framework_op(own) or framework_op({"tf_op": stats.get("tf_op")})
                    row["category"] = word(stats.get("hlo_category"))
                    row["name"] = word(own.get("step_name")) or name
                    if row["category"]:
                        row["hlo_op"] = row["hlo_op"] or name
                    of_all = shared.get(event.metadata_id, {})
                    row["flops"] = first_whole(
                        (own, "model_flops"), (own, "flops"), (of_all, "model_flops"), (of_all, "flops")
                    )
                    row["bytes"] = first_whole((own, "bytes_accessed"), (of_all, "bytes_accessed"))
                yield row


def expected_hardware(space):
    for plane in space.planes:
        if plane.name.startswith("/device:") and any(line.events for line in plane.lines):
            stats = stat_values(plane.stats, plane)
            amd = "AMD GPU (compute capability 9.4)" if stats.get("device_vendor") == "AMD" else None
            named = stats.get("device_type_string") or stats.get("gpu_device_name") or amd
            kind = named or plane.name.split(":")[1]
            of_host = [p for p in space.planes if p.name == "/host:CPU"]
            used = [stat_values(p.stats, p).get("matrix_unit_utilization_percent") for p in of_host]
            flops, hbm = (
                stats.get("peak_teraflops_per_second"),
                stats.get("peak_hbm_bw_gigabytes_per_second"),
            )
            yield (
                space.hostnames[0] if space.hostnames else "",
                plane.name,
                kind,
                flops * 1e12 if flops else None,
                hbm * 1e9 if hbm else stats.get("memory_bandwidth"),
                next((percent / 100 for percent in used if percent is not None), None),
            )


def agrees(space, data):
    frame = xplane.read(data, source="test")[0]
    assert frame.schema == schema.EVENTS
    assert xplane.extent(data, source="test")[0] == Decoded("", frame, pl.DataFrame(schema=schema.HARDWARE), 0).extent
    expected = list(expected_events(space))
    assert frame.height == len(expected)
    for name in set(schema.EVENTS) - {"hbm_bytes"}:
        ours, theirs = frame[name].to_list(), [row[name] for row in expected]
        if name in ("tf_op", "category"):  # where the profile itself is silent, its HLO may know
            ours = [one if known is not None else None for one, known in zip(ours, theirs, strict=True)]
        assert ours == theirs, name


# -- real captures --------------------------------------------------------------------------------------------


@each_capture()
def test_events_of_real_captures_equal_the_protobuf_librarys(path, xplane_pb2):
    data = path.read_bytes()
    agrees(xplane_pb2.XSpace.FromString(data), data)


@each_capture()
def test_facts_of_real_captures_equal_the_protobuf_librarys(path, xplane_pb2):
    data = path.read_bytes()
    space, facts = xplane_pb2.XSpace.FromString(data), xplane.read(data, source=path.name)[1]
    assert facts.hardware.schema == schema.HARDWARE
    assert facts.hardware.rows() == list(expected_hardware(space))
    assert (facts.hosts, facts.errors) == (list(space.hostnames), list(space.errors))
    assert facts.warnings == list(space.warnings)
    watched = [stat_values(plane.stats, plane) for plane in space.planes if plane.name == "Task Environment"] or [{}]
    assert facts.start_ns == watched[0].get("profile_start_time")
    assert facts.stop_ns == watched[0].get("profile_stop_time")


def in_any_order(events):
    """Events as rows of text and numbers."""
    rows = events.drop("host", "lane").with_columns(pl.col(pl.Categorical).cast(pl.String))
    return rows.sort(rows.columns)


def test_captures_read_in_one_pass_are_those_read_one_by_one(real_profiles):
    files = sorted(real_profiles.glob("*.xplane.pb"))
    contents = [storage.read(storage.local(file)) for file in files]
    events, origin_ns, facts = xplane.read_many(contents, [file.name for file in files])
    assert origin_ns is None  # they are months apart
    assert events["lane"].n_unique() == sum(xplane.read(data, source="one")[0]["lane"].n_unique() for data in contents)
    for file, data, fact in zip(files, contents, facts, strict=True):
        own, known = xplane.read(data, source="one")
        mine = events.filter(pl.col("host") == file.name)
        assert in_any_order(mine).equals(in_any_order(own)), file.name
        assert (fact.hosts, fact.start_ns, fact.stop_ns) == (known.hosts, known.start_ns, known.stop_ns)
        assert fact.hardware.drop("host").equals(known.hardware.drop("host"))
        assert set(fact.hardware["host"]) <= {file.name}
    for data, (extent, fact) in zip(contents, xplane.extents(contents), strict=True):
        expected, known = xplane.extent(data, source="one")
        assert extent == expected
        assert (fact.hosts, fact.start_ns, fact.stop_ns) == (known.hosts, known.start_ns, known.stop_ns)
        assert fact.hardware.equals(known.hardware)


def test_times_of_files_read_in_one_pass_are_those_of_one_clock():
    first, second = (toy_window(5_000 + by, 9_000 + by, [(7, 6_000 + by, 8_000 + by)]) for by in (0, 300))
    contents = [np.frombuffer(data, np.uint8) for data in (second, first)]
    events, origin_ns, facts = xplane.read_many(contents, ["b", "a"])
    assert origin_ns == 5_000
    assert [fact.start_ns for fact in facts] == [5_300, 5_000]
    assert dict(events.select(pl.col("host").cast(pl.String), "start_ps").rows()) == {"b": 1_300_000, "a": 1_000_000}
    assert [extent.begin_ps for extent, _ in xplane.extents(contents)] == [1_000_000, 1_000_000]
    for read in (lambda files: xplane.read_many(files, ["b", "a"]), xplane.extents):
        with pytest.raises(BadProfile, match="files: no"):
            read([contents[0], contents[1][:-3]])
    with pytest.raises(BadProfile, match="files: no plane in one of several files"):
        xplane.read_many([contents[0], contents[1][:0]], ["b", "a"])


@each_capture("*_julia.xplane.pb")
def test_both_forms_of_one_run_give_the_same_events(path):
    chrome = gzip.decompress(path.with_name(path.name.replace(".xplane.pb", ".trace.json.gz")).read_bytes())
    key = [pl.col("plane", "line", "name").cast(pl.String), "start_ps", "dur_ps"]
    theirs = chrome_trace.read(chrome, source="json")[0].select(key)
    # XProf gives an event of no duration a picosecond, for viewers that drop it otherwise
    ours = xplane.read(path.read_bytes(), source="pb")[0].select(key).with_columns(pl.col("dur_ps").clip(1))
    assert theirs.join(ours, on=theirs.columns, how="anti").is_empty()
    lost = ours.join(theirs, on=theirs.columns, how="anti")["name"].unique().to_list()
    assert set(lost) <= {"MemoryAllocation", "MemoryDeallocation"}


# -- work and time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reported", "flops"), [(2**33, 2**33), (1_076_900_000, None), (None, None)])
@pytest.mark.parametrize("at", ["event", "metadata"])
def test_flops_of_a_custom_call_are_null_where_shapes_say_otherwise(xplane_pb2, reported, flops, at):
    text = "%c.1 = f32[2048,1024]{1,0} custom-call(f32[2048,2048]{1,0} %a, f32[2048,1024]{1,0} %b), target=x"
    stats = [] if reported is None else [("model_flops", "int64_value", reported)]
    category = [("hlo_category", "str_value", "custom-call")]
    on_event, shared = (stats, category) if at == "event" else ([], [*category, *stats])
    toy = toy_plane(xplane_pb2, event_stats=on_event, metadata_stats=shared, full=text, short="c.1")
    events = xplane.read(xplane_pb2.XSpace(planes=[toy]).SerializeToString(), source="toy")[0]
    assert events["flops"].to_list() == [flops]


@pytest.mark.parametrize(
    ("graph", "durs", "notes"),
    [
        (
            {},
            [10, 5, 2],
            ["1 kernel recorded as running when the next of the stream started: each ends there, 3.4 s less in all"],
        ),
        ({"cuda_graph_id": 3}, [3_400_000, 5, 2], []),
    ],
)
def test_a_kernel_ends_where_the_next_of_its_stream_begins(xplane_pb2, graph, durs, notes):
    space = xplane_pb2.XSpace()
    Plane(space, "/host:CPU").line("main", ("launch", 0, 9_000_000, {}), ("wait", 5, 3, {}))
    gpu = Plane(space, "/device:GPU:0")
    gpu.line("Stream #7(Compute)", ("gemm", 20, 5, graph), ("add", 10, 3_400_000, graph), id=1)
    gpu.line("Stream #8(Compute)", ("copy", 12, 2, {}), id=2)
    events, facts = xplane.read(space.SerializeToString(), source="toy")
    on_device = dict(events.filter(pl.col("plane") == "/device:GPU:0").select("name", pl.col("dur_ps") // 10**6).rows())
    assert [on_device[name] for name in ("add", "gemm", "copy")] == durs
    assert events["dur_ps"].max() // 10**6 == 9_000_000
    assert facts.notes == notes


# -- toy captures ---------------------------------------------------------------------------------------------


def toy_plane(
    xplane_pb2, name="/device:TPU:0", *, event_stats=(), metadata_stats=(), full="%dot.1 = f32[2]", short="dot.1"
):
    """One plane of one line of one event; a statistic is (name, kind of value, value)."""
    plane = xplane_pb2.XPlane(name=name)

    def add(stats, found):
        for stat, kind, value in found:
            names = {one.name: key for key, one in plane.stat_metadata.items()}
            key = names.setdefault(stat, len(names) + 1)
            plane.stat_metadata[key].name = stat
            if kind == "ref_value":
                text, value = value, 1000 + len(plane.stat_metadata)
                plane.stat_metadata[value].name = text
            stats.add(metadata_id=key, **{kind: value})

    plane.event_metadata[7].name, plane.event_metadata[7].display_name = full, short
    add(plane.event_metadata[7].stats, metadata_stats)
    line = plane.lines.add(name="XLA Ops", timestamp_ns=3)
    add(line.events.add(metadata_id=7, offset_ps=5, duration_ps=11).stats, event_stats)
    return plane


def toy_event(xplane_pb2, *args, **kwargs):
    data = xplane_pb2.XSpace(planes=[toy_plane(xplane_pb2, *args, **kwargs)]).SerializeToString()
    return xplane.read(data, source="toy")[0].row(0, named=True)


def test_an_event_starts_at_its_lines_time_plus_its_offset(xplane_pb2):
    event = toy_event(xplane_pb2)
    assert (event["start_ps"], event["dur_ps"]) == (3005, 11)
    assert (event["host"], event["plane"], event["line"], event["lane"]) == ("", "/device:TPU:0", "XLA Ops", 0)


def test_the_display_name_wins_and_the_full_name_stands_in(xplane_pb2):
    assert toy_event(xplane_pb2)["name"] == "dot.1"
    assert toy_event(xplane_pb2, short="")["name"] == "%dot.1 = f32[2]"


@pytest.mark.parametrize(
    ("event_stats", "metadata_stats", "tf_op"),
    [
        ([], [("tf_op", "str_value", "jit(f)/add:")], "jit(f)/add"),
        ([("tf_op", "ref_value", "XlaModule:")], [], None),
        ([("tf_op", "str_value", "a/MatMul:MatMul")], [("tf_op", "str_value", "b")], "a/MatMul:MatMul"),
        ([("annotation", "ref_value", "a/MatMul:MatMul#id=1#")], [], "a/MatMul:MatMul"),
        ([("annotation", "str_value", "b"), ("tf_op", "str_value", "a")], [], "a"),
        ([("tf_op", "str_value", "")], [("tf_op", "str_value", "c")], "c"),
        ([("tf_op", "bytes_value", b"a")], [], None),
        ([("tf_op", "int64_value", 3)], [], None),
        ([], [], None),
    ],
)
def test_the_stats_of_a_device_event_win(xplane_pb2, event_stats, metadata_stats, tf_op):
    assert toy_event(xplane_pb2, event_stats=event_stats, metadata_stats=metadata_stats)["tf_op"] == tf_op


def test_a_host_events_framework_op_is_its_full_name(xplane_pb2):
    event = toy_event(xplane_pb2, "/host:CPU", full="dense/MatMul:MatMul", short="MatMul")
    assert (event["name"], event["tf_op"]) == ("MatMul", "dense/MatMul:MatMul")
    event = toy_event(xplane_pb2, "/host:CPU", full="Execute", short="", event_stats=[("tf_op", "str_value", "x")])
    assert (event["name"], event["tf_op"]) == ("Execute", None)
    event = toy_event(xplane_pb2, "/host:CPU", full="Iterator::Prefetch::Map", short="Iterator::Map")
    assert (event["name"], event["tf_op"]) == ("Iterator::Map", "Iterator::Prefetch::Map")


def test_hlo_op_is_read_on_the_host_too_unless_it_is_launched_on_a_device(xplane_pb2):
    ran = [("hlo_op", "ref_value", "dot.3")]
    assert toy_event(xplane_pb2, "/host:CPU", event_stats=ran)["hlo_op"] == "dot.3"
    launched = toy_event(xplane_pb2, "/host:CPU", event_stats=[*ran, ("correlation_id", "uint64_value", 7)])
    assert (launched["hlo_op"], launched["correlation_id"]) == (None, 7)
    on_gpu = toy_event(xplane_pb2, "/device:GPU:0", event_stats=[*ran, ("correlation_id", "uint64_value", 7)])
    assert (on_gpu["hlo_op"], on_gpu["correlation_id"]) == ("dot.3", 7)


@pytest.mark.parametrize(
    ("kind", "value", "step"),
    [
        ("int64_value", 12, 12),
        ("int64_value", 0, 0),
        ("int64_value", -1, -1),
        ("uint64_value", 12, 12),
        ("uint64_value", 2**63, None),
        ("str_value", "12", 12),
        ("ref_value", "12", 12),
        ("str_value", "train 12", None),
        ("str_value", "9" * 30, None),
        ("double_value", 12.0, None),
    ],
)
def test_step_numbers_are_whole_numbers_or_digits(xplane_pb2, kind, value, step):
    assert toy_event(xplane_pb2, "/host:CPU", event_stats=[("step_num", kind, value)])["step_num"] == step


@pytest.mark.parametrize("spread", [-1, -(2**40), 1, 1 << 16, (1 << 16) + 1, 2**40, 2**53])
def test_ids_of_metadata_may_be_any_number(xplane_pb2, spread):
    plane = xplane_pb2.XPlane(name="/device:TPU:0")
    keys = [number * spread for number in range(-600, 600)]
    for key in keys:
        plane.event_metadata[key].name = f"op {key}"
    line = plane.lines.add()
    for key in (*keys[::7], 5 * spread + 1, 601 * spread):
        line.events.add(metadata_id=key)
    known = [f"op {key}" for key in keys[::7]]
    names = xplane.read(xplane_pb2.XSpace(planes=[plane, plane]).SerializeToString(), source="toy")[0]["name"].to_list()
    last = [f"op {5 * spread + 1}" if abs(spread) == 1 else "", ""]
    assert names == [*known, *last] * 2


def test_missing_metadata_is_an_empty_name(xplane_pb2):
    plane = toy_plane(xplane_pb2)
    plane.lines[0].events.add(metadata_id=99)
    frame = xplane.read(xplane_pb2.XSpace(planes=[plane]).SerializeToString(), source="toy")[0]
    assert frame["name"].to_list() == ["dot.1", ""]
    assert frame["tf_op"].to_list() == [None, None]


def test_lanes_number_lines_over_all_planes_the_empty_ones_too(xplane_pb2):
    first, second = toy_plane(xplane_pb2), toy_plane(xplane_pb2, "/device:TPU:1")
    first.lines.add(name="empty")
    space = xplane_pb2.XSpace(planes=[first, xplane_pb2.XPlane(name="none"), second], hostnames=["a", "b"])
    frame = xplane.read(space.SerializeToString(), source="toy")[0]
    assert frame["lane"].to_list() == [0, 2]
    assert frame["host"].to_list() == ["a", "a"]


def test_hardware_holds_devices_with_events_alone_and_unknown_peaks_are_null(xplane_pb2):
    idle, host = xplane_pb2.XPlane(name="/device:TPU:9"), toy_plane(xplane_pb2, "/host:CPU")
    gpu = toy_plane(xplane_pb2, "/device:GPU:0")
    gpu.stat_metadata[50].name = "peak_teraflops_per_second"
    gpu.stats.add(metadata_id=50, double_value=0.0)
    data = xplane_pb2.XSpace(planes=[idle, host, gpu]).SerializeToString()
    assert xplane.read(data, source="toy")[1].hardware.rows() == [("", "/device:GPU:0", "GPU", None, None, None)]


@pytest.mark.parametrize(
    ("stats", "kind"),
    [
        ({"device_vendor": "AMD", "compute_cap_major": 9, "compute_cap_minor": 4}, "AMD GPU (compute capability 9.4)"),
        ({"device_vendor": "AMD"}, "AMD GPU"),
        ({"compute_cap_major": 7}, "GPU"),
        ({"gpu_device_name": "NVIDIA L4", "device_vendor": "Nvidia", "compute_cap_major": 8}, "NVIDIA L4"),
    ],
)
def test_a_gpu_without_a_name_has_its_vendor_and_compute_capability(xplane_pb2, tmp_path, stats, kind):
    gpu = toy_plane(xplane_pb2, "/device:GPU:0")
    for number, (name, value) in enumerate(stats.items(), 50):
        gpu.stat_metadata[number].name = name
        gpu.stats.add(metadata_id=number, **{"str_value" if isinstance(value, str) else "int64_value": value})
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(xplane_pb2.XSpace(planes=[gpu]).SerializeToString())
    assert tp.load(file).hardware["kind"].to_list() == [kind]
    assert tp.load(file, device="L4").hardware["kind"].to_list() == ["NVIDIA L4" if "NVIDIA" in kind else "L4"]


def test_large_unused_stats_are_not_decoded(xplane_pb2):
    broken = b"\x80" * 1_000_000  # a varint without end: corrupt if it were decoded
    plane = toy_plane(
        xplane_pb2, metadata_stats=[("a large stat", "bytes_value", broken), ("Hlo Proto", "bytes_value", broken)]
    )
    data = xplane_pb2.XSpace(planes=[plane]).SerializeToString()
    assert xplane.read(data, source="toy")[0]["name"].to_list() == ["dot.1"]


def test_warm_leaves_nothing_to_compile(xplane_pb2):
    xplane.warm()
    kernels = [one for one in vars(protobuf_kernels).values() if hasattr(one, "signatures")]
    before = [len(kernel.signatures) for kernel in kernels]
    stats = [("tf_op", "str_value", "a"), ("hlo_op", "ref_value", "b"), ("step_num", "int64_value", 1)]
    space = xplane_pb2.XSpace(planes=[toy_plane(xplane_pb2, event_stats=stats)], hostnames=["a"], errors=["e"])
    data = space.SerializeToString()
    xplane.read(data, source="toy")
    assert [len(kernel.signatures) for kernel in kernels] == before
    assert any(before)


def test_decoding_lets_other_threads_run():
    kernels = {name: one for name, one in vars(protobuf_kernels).items() if hasattr(one, "targetoptions")}
    assert len(kernels) > 5
    assert [name for name, kernel in kernels.items() if not kernel.targetoptions.get("nogil")] == []


# -- random captures ------------------------------------------------------------------------------------------


@st.composite
def stats(draw, ids):
    kind = draw(
        st.sampled_from(["int64_value", "uint64_value", "double_value", "str_value", "bytes_value", "ref_value", None])
    )
    values = {
        "int64_value": INT64,
        "uint64_value": st.integers(0, 2**64 - 1),
        "double_value": st.floats(),
        "str_value": st.sampled_from(["", "12", "a/b:C", "x:", "é#y"]),
        "bytes_value": st.binary(max_size=5),
        "ref_value": st.integers(0, 9),
    }
    return {"metadata_id": draw(ids)} | ({kind: draw(values[kind])} if kind else {})


@st.composite
def spaces(draw, xplane_pb2):
    """An XSpace of at most three planes; ids are few, so that they meet, or anything at all."""
    ids = st.one_of(st.integers(0, 9), INT64)
    some = st.lists(stats(ids), max_size=4)
    words = st.sampled_from(["", "dot.1", "scope/name:Type", "Iterator::Map", "%long = f32[]", "日本"])
    space = xplane_pb2.XSpace(hostnames=draw(st.lists(words, max_size=2)))
    for _ in range(draw(st.integers(1, 3))):
        plane = space.planes.add(id=draw(INT64), name=draw(st.sampled_from(["/device:TPU:0", "/host:CPU", ""])))
        names = ["tf_op", "hlo_op", "step_num", "annotation", "", "other", "7", "_pt", "_p", "_ct", "_c", "run_id"]
        names += ["device_ordinal", "correlation_id", "hlo_category", "flops", "bytes_accessed", "step_name"]
        for name in draw(st.lists(st.sampled_from(names), unique=True)):
            plane.stat_metadata[draw(ids)].name = name
        for key in draw(st.lists(ids, max_size=4)):
            one = plane.event_metadata[key]
            one.name, one.display_name = draw(words), draw(words)
            one.ClearField("stats")
            for stat in draw(some):
                one.stats.add(**stat)
        for _ in range(draw(st.integers(0, 2))):
            time_ns = draw(st.integers(-(10**15), 10**15))
            line = plane.lines.add(id=draw(INT64), name=draw(words), display_name=draw(words), timestamp_ns=time_ns)
            for _ in range(draw(st.integers(0, 4))):
                offset = draw(st.integers(-(2**62), 2**62))
                event = line.events.add(
                    metadata_id=draw(ids), offset_ps=offset, duration_ps=draw(st.integers(-(2**63), 2**61))
                )
                for stat in draw(some):
                    event.stats.add(**stat)
    return space


def survives(data):
    outcomes = {}
    for part in ("events", "facts", "extents"):
        try:
            getattr(xplane._XSpace(data, "damaged"), part)()
        except BadProfile as error:
            outcomes[part] = said = str(error)
            assert said.startswith("damaged: ")
            assert "\n" not in said
    assert ("events" in outcomes) == ("extents" in outcomes)  # steps decode what `tp.load` only scanned
    if not outcomes:
        several = xplane.extents([np.frombuffer(data, np.uint8)] * 2)
        assert [extent for extent, _ in several] == [xplane.extent(data, source="damaged")[0]] * 2


@examples(100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_spaces_agree_with_the_protobuf_library(xplane_pb2, data):
    space = data.draw(spaces(xplane_pb2))
    agrees(space, space.SerializeToString(deterministic=True))
    xplane.read(space.SerializeToString(), source="random")


@examples(100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_spaces_decode_or_are_bad_profiles(xplane_pb2, data):
    whole_data = bytearray(data.draw(spaces(xplane_pb2)).SerializeToString(deterministic=True))
    for _ in range(data.draw(st.integers(0, 3))):
        whole_data[data.draw(st.integers(0, len(whole_data) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(whole_data[: data.draw(st.integers(0, len(whole_data)))]))


def test_damage_inside_any_event_is_found(xplane_pb2):
    plane = toy_plane(xplane_pb2)
    events = [event.SerializeToString() for line in plane.lines for event in line.events]
    for at in range(len(events)):
        data = xplane_pb2.XSpace(planes=[plane]).SerializeToString()
        damaged = data.replace(events[at], b"\x0b" + events[at][1:], 1)  # a group, which no profile has
        assert damaged != data
        for read in (xplane.read, xplane.extent):
            with pytest.raises(BadProfile, match=r"toy: no whole protobuf: the message at byte [1-9]"):
                read(damaged, source="toy")


@examples(100)
@given(data=st.binary(max_size=200))
def test_any_bytes_decode_or_are_bad_profiles(data):
    survives(data)


@pytest.mark.slow
@each_capture()
def test_thousands_of_damaged_real_captures_decode_or_are_bad_profiles(path):
    sound, chance = path.read_bytes(), random.Random(0)
    for _ in range(500):
        data = bytearray(sound)
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        survives(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]))


# -- what is no profile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "bad.pb: the file is empty"),
        (b'{"traceEvents": []}', r"bad.pb: no whole protobuf: .* first bytes are b'\{\"traceEvents"),
        (b"\x1f\x8b\x08\x00rest", "bad.pb: no whole protobuf"),
        (b"\x22\x01a", r"bad.pb: no plane in 3 bytes, the first b'\"\\x01a'"),
        (b"\x0a\x05abc", r"the message at byte 0 of 5 is cut or corrupt"),
        (b"\x0a" + b"\xff" * 400, "cut or corrupt"),
    ],
    ids=["empty", "json", "gzip", "no plane", "cut", "endless varint"],
)
def test_an_invalid_profile_is_described(data, said):
    with pytest.raises(BadProfile, match=said) as caught:
        xplane.read(data, source="bad.pb")
    assert caught.value.hint


@pytest.mark.parametrize(("time_ns", "offset"), [(1_747_325_045_706_893_896, 0), (-(2**63), 0), (9 * 10**15, 2**62)])
def test_a_start_beyond_int64_picoseconds_is_a_bad_profile(xplane_pb2, time_ns, offset):
    plane = toy_plane(xplane_pb2)
    plane.lines[0].timestamp_ns, plane.lines[0].events[0].offset_ps = time_ns, offset
    with pytest.raises(BadProfile, match=f"toy: an event starts at {time_ns} ns"):
        xplane.read(xplane_pb2.XSpace(planes=[plane]).SerializeToString(), source="toy")


def test_the_time_of_a_line_without_events_does_not_matter(xplane_pb2):
    plane = toy_plane(xplane_pb2)
    plane.lines.add(timestamp_ns=2**62)
    assert xplane.read(xplane_pb2.XSpace(planes=[plane]).SerializeToString(), source="toy")[0].height == 1
