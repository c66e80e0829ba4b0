"""XProf's tables as stored steps."""

import json

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, NoSteps
from tpunb.io import xprof_json

MS, US = 10**9, 10**6


def read(**tables):
    contents = {f"{name}.json": json.dumps(table).encode() for name, table in tables.items()}
    return xprof_json.profile(contents, "toy", "toy")


def table(rows, **properties):
    """Spell a table by its rows, dictionaries of one order."""
    ids = dict.fromkeys(key for row in rows for key in row)
    cells = [{"c": [{"v": row.get(key)} for key in ids]} for row in rows]
    return {"cols": [{"id": key, "label": key, "type": "number"} for key in ids], "rows": cells, "p": properties}


def core(total, **more):
    return {"hostName": "a", "chipId": 0, "nodeId": 0, "totalDurationUs": total} | more


def pod(*steps, **more):
    stats = [{"stepNum": number, "podStatsPerCore": cores} for number, cores in enumerate(steps)]
    return {"podStatsSequence": {"podStatsMap": stats}} | more


def known(row, *without):
    return {key: value for key, value in row.items() if value is not None and key not in without}


ALWAYS = ("host", "kind", "traced", "start_ps")
STEP = {"stepnum": "0", "stepTimeMs": 1}
SMALLEST = 2.2250738585072014e-308


# -- what a step has, by its year -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        (
            {"noninfeedTimeMs": 70, "infeedTimeMs": 30},
            {"dur_ps": 100 * MS, "infeed_ps": 30 * MS},
        ),
        (
            {"noninfeedTimeMs": 70, "tcInfeedTimeMs": 20, "bcComputeTimeMs": 10},
            {"dur_ps": 100 * MS, "infeed_ps": 20 * MS},
        ),
        (
            {"computeTimeMs": 80, "inputTimeMs": 15, "idleTimeMs": 5, "infeedPercentMax": SMALLEST},
            {"dur_ps": 100 * MS, "device_ps": 95 * MS, "idle_ps": 5 * MS, "infeed_ps": 15 * MS, "duty_cycle": 0.8},
        ),
        (
            {
                **{"tcComputeTimeMs": 70, "scv0ComputeTimeMs": 10, "scv0InfeedTimeMs": 0, "tcInfeedTimeMs": 10},
                **{"tcOutfeedTimeMs": 5, "tcIdleTimeMs": 5, "hostTransferTimeMs": 44, "tooltip": "step 7"},
            },
            {
                **{"dur_ps": 100 * MS, "device_ps": 95 * MS, "idle_ps": 5 * MS, "infeed_ps": 10 * MS},
                **{"outfeed_ps": 5 * MS, "transfer_ps": 44 * MS, "duty_cycle": 0.8},
            },
        ),
        (
            {
                **{"deviceComputeTimeMs": 50, "deviceToDeviceTimeMs": 5, "deviceCollectivesTimeMs": 10},
                **{"hostComputeTimeMs": 1, "kernelLaunchTimeMs": 2, "infeedTimeMs": 20, "outfeedTimeMs": 3},
                **{"compileTimeMs": 4, "otherTimeMs": 5, "stepTimeMs": 100},
            },
            {
                **{"dur_ps": 100 * MS, "device_ps": 65 * MS, "idle_ps": 35 * MS, "collective_ps": 10 * MS},
                **{"input_ps": 20 * MS, "compile_ps": 4 * MS, "duty_cycle": 0.65},
            },
        ),
        ({"stepTimeMs": SMALLEST}, {"dur_ps": 0}),
        ({"stepTimeMs": 0.0000000014}, {"dur_ps": 1}),
        ({"computeTimeMs": 7, "inputTimeMs": -0.5, "idleTimeMs": None}, {"dur_ps": 7 * MS}),
    ],
)
def test_steps_are_read_from_the_columns_of_any_version(row, facts):
    steps = tp.steps(read(overview_page=[table([{"stepnum": "7", **row}])]))
    assert known(steps.frame.row(0, named=True), *ALWAYS) == {"step": 7} | facts


def test_columns_are_found_by_their_ids():
    rows = [{"idleTimeMs": 5, "infeedPercentMax": 9, "stepnum": "3", "inputTimeMs": 15, "computeTimeMs": 80}]
    frame = tp.steps(read(overview_page=[table([{"category": "x"}]), table(rows)])).frame
    assert frame.select("step", "dur_ps", "infeed_ps", "idle_ps").row(0) == (3, 100 * MS, 15 * MS, 5 * MS)


def test_steps_lie_end_to_end():
    profile = read(input_pipeline=[table([{"stepnum": str(n), "stepTimeMs": n} for n in (3, 1, 2)])])
    assert profile.stored.frame.select("step", "start_ps", "dur_ps").rows() == [
        (3, 0, 3 * MS),
        (1, 3 * MS, 1 * MS),
        (2, 4 * MS, 2 * MS),
    ]
    assert (profile.span_ps, profile.observed) == (6 * MS, 1.0)
    assert profile.windows.select("host", "window", "start_ps", "dur_ps", "steps").rows() == [("", 0, 0, 6 * MS, 3)]
    assert set(profile.stored.frame["traced"]) == {"full"}
    assert tp.steps(profile) is profile.stored


@pytest.mark.parametrize(
    ("labels", "steps"),
    [(["train 11", "train 12"], [11, 12]), ([4, 5], [4, 5]), (["5", "5"], [0, 1]), (["5", "unknown"], [0, 1])],
)
def test_steps_without_numbers_are_counted(labels, steps):
    rows = [{"stepnum": word, "stepTimeMs": 1} for word in labels]
    assert read(overview_page=[table(rows)]).stored.frame["step"].to_list() == steps


def test_a_run_of_no_steps_says_so():
    empty = {"cols": [{"id": "stepnum"}, {"id": "computeTimeMs"}], "rows": []}
    profile = read(overview_page=[empty])
    assert len(profile.stored) == 0
    with pytest.raises(NoSteps):
        tp.steps(profile)


def test_steps_only_in_the_pod_viewer_are_ignored_beside_a_table():
    profile = read(overview_page=[table([STEP])], pod_viewer=pod({"0": core(900)}, {"0": core(900)}))
    assert profile.stored.frame["step"].to_list() == profile.stored.devices["step"].to_list() == [0]


# -- the pod viewer, cores and hardware -----------------------------------------------------------------------


def test_cores_are_read_from_the_pod_viewer():
    parts = {"hostOutfeedDurationUs": 0, "allReduceComputeDurationUs": 6, "allReduceSyncDurationUs": 4}
    cores = {
        "1": core(90, hostInfeedDurationUs=1, sendDurationUs=2, recvDurationUs=3, **parts),
        "3": core(100, nodeId=1, hostInfeedDurationUs=3, sendDurationUs="0", recvDurationUs=1, **parts),
    }
    profile = read(pod_viewer=pod(cores, runEnvironment={"tpuType": "TPU v2"}))
    devices = profile.stored.devices
    assert known(devices.row(0, named=True)) == {
        **{"host": "a", "device": "/device:TPU:0", "step": 0, "start_ps": 0, "dur_ps": 90 * US},
        **{"infeed_ps": US, "outfeed_ps": 0, "transfer_ps": 5 * US, "collective_ps": 10 * US},
    }
    assert devices["device"].to_list() == ["/device:TPU:0", "/device:TPU:1"]
    # a step lasts as long as on its slowest core, and is else their mean
    facts = {"infeed_ps": 2 * US, "outfeed_ps": 0, "transfer_ps": 3 * US, "collective_ps": 10 * US}
    assert known(profile.stored.frame.row(0, named=True), *ALWAYS) == {"step": 0, "dur_ps": 100 * US} | facts
    assert profile.hardware.rows() == [
        ("a", "/device:TPU:0", "TPU v2", None, None, None),
        ("a", "/device:TPU:1", "TPU v2", None, None, None),
    ]


def test_the_table_of_steps_wins_over_the_pod_viewer():
    rows = [{"stepnum": str(n), "computeTimeMs": 8, "inputTimeMs": 2, "idleTimeMs": 0} for n in (0, 5)]
    profile = read(overview_page=[table(rows)], pod_viewer=pod({"0": core(9000, hostInfeedDurationUs=1000)}))
    facts = profile.stored.frame.select("host", "step", "start_ps", "dur_ps", "infeed_ps", "device_ps")
    assert facts.rows() == [("a", 0, 0, 10 * MS, 2 * MS, 10 * MS), ("a", 5, 10 * MS, 10 * MS, 2 * MS, 10 * MS)]
    assert profile.stored.devices.select("step", "dur_ps", "infeed_ps").rows() == [(0, 9 * MS, MS)]


def test_numbered_parts_of_a_core_are_matched_by_name():
    names = ["Device compute", "Device to device", "Device collective communication", "All others"]
    events = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
    parts = {"2": 5, "4": 35, "1": 50, "3": 10}
    found = read(pod_viewer=pod({"1": core(100, stepBreakdownUs=parts)}, stepBreakdownEvents=events, deviceType="GPU"))
    facts = {"dur_ps": 100 * US, "device_ps": 65 * US, "idle_ps": 35 * US, "collective_ps": 10 * US, "duty_cycle": 0.65}
    own = {"host": "a", "device": "/device:GPU:0", "step": 0, "start_ps": 0}
    assert known(found.stored.devices.row(0, named=True)) == own | facts
    assert known(found.stored.frame.row(0, named=True), *ALWAYS) == {"step": 0} | facts


def test_hosts_have_steps_of_their_own():
    cores = {"0": core(10), "1": core(30, hostName="b"), "2": core(20, hostName="b", nodeId=1)}
    profile = read(pod_viewer=pod(cores, cores))
    assert profile.stored.frame.select("host", "step", "start_ps", "dur_ps").rows() == [
        ("a", 0, 0, 10 * US),
        ("a", 1, 10 * US, 10 * US),
        ("b", 0, 0, 30 * US),
        ("b", 1, 30 * US, 30 * US),
    ]
    assert profile.windows["host"].to_list() == ["a", "b"]
    assert profile.hardware.select("host", "device").rows() == [
        ("a", "/device:TPU:0"),
        ("b", "/device:TPU:0"),
        ("b", "/device:TPU:1"),
    ]


def test_cores_of_one_chip_are_distinct_by_key():
    found = read(pod_viewer=pod({"4": core(1), "9": core(1)}))
    assert found.hardware["device"].to_list() == ["/device:TPU:4", "/device:TPU:9"]


@pytest.mark.parametrize(
    ("properties", "devices", "mxu_util", "hbm_util"),
    [
        ({"device_type": "TPU v2", "device_core_count": "8 (Replica count = 8)"}, 8, 0.488, 0.703),
        ({"hardware_type": "TPU", "device_core_count": "2"}, 2, 0.488, 0.703),
        ({"device_type": "Nvidia GPU (Volta)", "device_core_count": "4"}, 4, 0.488, 0.703),
        ({"device_type": "CPU", "device_core_count": "4"}, 0, 0.488, 0.703),
        ({"device_type": "TPU v2", "device_core_count": "many"}, 0, 0.488, 0.703),
        ({"device_type": "TPU v2", "device_core_count": "999999999999"}, 65536, 0.488, 0.703),
    ],
)
def test_hardware_is_read_from_the_overview(properties, devices, mxu_util, hbm_util):
    shares = {"mxu_utilization_percent": "48.8%", "memory_bw_utilization_relative_to_hw_limit": "70.3%"}
    profile = read(overview_page=[table([STEP]), table([], **properties), table([], **shares)])
    assert profile.hardware.height == devices
    assert profile.hardware["mxu_util"].to_list() == [mxu_util] * devices
    assert profile.stored.frame.select("mxu_util", "hbm_util").row(0) == (mxu_util, hbm_util)


@pytest.mark.parametrize(
    ("names", "host"), [("All-hosts-in-one-graph, 10.0.0.1", "10.0.0.1"), ("All-hosts-in-one-graph, a, b", "")]
)
def test_a_host_is_named_where_it_is_the_only_one(names, host):
    assert read(input_pipeline=[table([STEP]), table([], hostnames=names)]).stored.frame["host"].to_list() == [host]


# -- 0 means unset ---------------------------------------------------------------------------------------------


def hlo(*rows):
    return table([dict(zip(["category", "hbm_bw", "total_self_time_percent"], row, strict=True)) for row in rows])


@pytest.mark.parametrize("device", ["TPU v6 Lite", "Nvidia GPU (Volta)"])
def test_a_percentage_of_zero_is_unset(device):
    properties = {"device_type": device, "device_core_count": "1", "device_tf_op_percent": "99.7%"}
    unset = {"mxu_utilization_percent": "0.0%", "memory_bw_utilization_relative_to_hw_limit": "0.0%"}
    steps = [{"stepnum": str(n), "tcComputeTimeMs": 0, "tcIdleTimeMs": 5, "tcInfeedTimeMs": 0} for n in range(2)]
    profile = read(overview_page=[table([], **unset), table(steps), table([], **properties)])
    assert profile.hardware["mxu_util"].to_list() == [None]
    names = ["mxu_util", "hbm_util", "duty_cycle", "device_ps", "idle_ps"]
    assert profile.stored.frame.select(names).null_count().row(0) == (2, 2, 2, 2, 2)
    assert profile.stored.frame["dur_ps"].to_list() == [5 * MS, 5 * MS]
    assert tp.advise(tp.phases(profile.stored, lambda steps: [0] * len(steps))).is_empty()


def test_steps_without_work_stay_where_others_have_some():
    rows = [{"stepnum": str(n), "computeTimeMs": busy, "idleTimeMs": 10 - busy} for n, busy in enumerate([0, 4])]
    frame = read(overview_page=[table(rows)]).stored.frame
    assert frame.select("device_ps", "idle_ps", "duty_cycle").rows() == [(0, 10 * MS, 0.0), (4 * MS, 6 * MS, 0.4)]


@pytest.mark.parametrize(
    ("device", "rows", "share"),
    [
        ("TPU v6 Lite", [("loop fusion", 1638e9 / 2**30, 30), ("copy-done", 1638e9 / 2**30 / 2, 40)], 0.5),
        ("TPU v2", [("loop fusion", 300e9 / 2**30, 25)], 0.25),  # two cores share 600 GB/s
        # a start and an end of a copy have its bytes: they count once
        ("TPU v6 Lite", [("copy-start", 1e9, 1), ("copy-done", 1638e9 / 2**30, 10)], 0.1),
        ("TPU v6 Lite", [("loop fusion", 0, 100)], None),
        ("TPU v6 Lite", [("loop fusion", 1638e9, 100)], None),
        ("TPU v6 Lite", [("loop fusion", None, None)], None),
        ("Nvidia GPU (Volta)", [("loop fusion", 100, 50)], None),
    ],
)
def test_memory_bandwidth_is_read_from_hlo_stats(device, rows, share):
    overview = [table([STEP]), table([], device_type=device, memory_bw_utilization_relative_to_hw_limit="0.0%")]
    found = read(overview_page=overview, hlo_stats=hlo(*rows)).stored.frame["hbm_util"].to_list()
    assert found == [pytest.approx(share)] if share else found == [None]


def test_the_overview_wins_over_hlo_stats():
    overview = [table([STEP]), table([], device_type="TPU v2", memory_bw_utilization_relative_to_hw_limit="70.3%")]
    frame = read(overview_page=overview, hlo_stats=hlo(("loop fusion", 1, 50))).stored.frame
    assert frame["hbm_util"].to_list() == [0.703]


# -- several tables --------------------------------------------------------------------------------------------


def test_tables_of_one_run_add_up():
    rows = [{"stepnum": str(n), "stepTimeMs": 10} for n in (11, 12)]
    more = [{"stepnum": str(n), "computeTimeMs": 8, "idleTimeMs": 2} for n in (12, 13)]
    cores = pod({"0": core(10_000, sendDurationUs=1, recvDurationUs=2)}, {"0": core(10_000)})
    for number, stats in zip((11, 12), cores["podStatsSequence"]["podStatsMap"], strict=True):
        stats["stepNum"] = number
    overview = [table(rows), table([], device_type="TPU v2", mxu_utilization_percent="0.0%")]
    pipeline = [table(more), table([], mxu_utilization_percent="48.8%")]
    profile = read(overview_page=overview, input_pipeline=pipeline, pod_viewer=cores)
    assert profile.skipped == ()
    assert profile.stored.frame.select("host", "step", "dur_ps", "device_ps", "transfer_ps", "mxu_util").rows() == [
        ("a", 11, 10 * MS, None, 3 * US, 0.488),
        ("a", 12, 10 * MS, 8 * MS, None, 0.488),
        ("a", 13, 10 * MS, 8 * MS, None, 0.488),
    ]


def test_steps_without_numbers_take_those_of_another_table():
    rows = [{"stepnum": "unknown", "stepTimeMs": 10, "inputTimeMs": 1} for _ in range(2)]
    cores = pod({"0": core(10_000)}, {"0": core(10_000)})
    for number, stats in zip((100, 101), cores["podStatsSequence"]["podStatsMap"], strict=True):
        stats["stepNum"] = number
    profile = read(overview_page=[table(rows)], pod_viewer=cores)
    assert profile.stored.frame.select("step", "infeed_ps").rows() == [(100, MS), (101, MS)]
    assert profile.stored.devices["step"].to_list() == [100, 101]


def test_a_pod_viewer_without_numbers_takes_those_of_the_table():
    rows = [{"stepnum": f"train {number}", "stepTimeMs": 10} for number in (11, 12)]
    cores = pod({"0": core(9_000)}, {"0": core(9_000)})
    for stats in cores["podStatsSequence"]["podStatsMap"]:
        del stats["stepNum"]
    profile = read(overview_page=[table(rows)], pod_viewer=cores)
    assert profile.skipped == ()
    assert profile.stored.devices.select("step", "dur_ps").rows() == [(11, 9 * MS), (12, 9 * MS)]


def test_the_most_specific_kind_of_device_is_kept():
    overview = [table([STEP]), table([], device_type="Nvidia GPU (Volta)")]
    profile = read(overview_page=overview, pod_viewer=pod({"0": core(1000)}, deviceType="GPU"))
    assert profile.hardware.select("device", "kind").rows() == [("/device:GPU:0", "Nvidia GPU (Volta)")]


@pytest.mark.parametrize(("hosts", "devices"), [("aa", [0, 5, 1, 2]), ("ab", [0, 5])])
def test_devices_of_the_overview_stay_beside_the_pod_viewer(hosts, devices):
    cores = pod({str(5 * n): core(1000, hostName=host, chipId=None) for n, host in enumerate(hosts)}, deviceType="GPU")
    profile = read(overview_page=[table([STEP]), table([], device_core_count="4")], pod_viewer=cores)
    assert profile.hardware["device"].to_list() == [f"/device:GPU:{device}" for device in devices]


def test_a_step_that_the_pod_viewer_lacks_is_one_of_every_host():
    cores = pod({"0": core(10_000), "1": core(10_000, hostName="b")})
    rows = [{"stepnum": str(n), "stepTimeMs": 10} for n in range(2)]
    frame = read(overview_page=[table(rows)], pod_viewer=cores).stored.frame
    assert frame.select("host", "step").rows() == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("steps", "properties", "reason"),
    [
        ((0, 1), {"device_core_count": "16"}, "16 cores instead of 8"),
        ((0, 1), {"device_type": "TPU v4"}, "device type TPU v4 instead of TPU v2"),
        ((0, 1), {"hostnames": "c"}, "host c instead of a"),
        ((7, 8), {}, "steps from 7 instead of 0"),
        ((0, 1), {"slow": 2}, "other step times: 50% apart"),
    ],
)
def test_a_table_of_another_run_is_named_and_left_out(steps, properties, reason):
    slow = properties.pop("slow", 1)
    rows = [{"stepnum": str(n), "stepTimeMs": 10} for n in (0, 1, 2)]
    others = [{"stepnum": str(n), "stepTimeMs": 10 * slow, "inputTimeMs": 1} for n in steps]
    one = [table(rows), table([], device_type="TPU v2", device_core_count="8", hostnames="a")]
    profile = read(input_pipeline=[table(others), table([], **properties)], overview_page=one)
    assert profile.skipped == (("input_pipeline.json", f"{reason}; left out for overview_page.json"),)
    assert profile.stored.frame.select("step", "dur_ps", "infeed_ps").rows() == [(n, 10 * MS, None) for n in range(3)]
    assert repr(profile).endswith("100% of the run observed, 1 file skipped)")


def test_the_table_that_two_others_contradict_is_left_out():
    rows = [{"stepnum": str(n), "stepTimeMs": 10} for n in range(2)]
    long = [{"stepnum": str(n), "stepTimeMs": 90} for n in range(5)]
    profile = read(overview_page=[table(long)], input_pipeline=[table(rows)], pod_viewer=pod({"0": core(10_000)}))
    assert [name for name, _ in profile.skipped] == ["overview_page.json"]
    assert profile.stored.frame["step"].to_list() == [0, 1]


def test_damaged_tables_beside_a_sound_one_are_named():
    sound = json.dumps([table([STEP])]).encode()
    tables = {"a.json": sound, "b.json": sound[:-9], "c.json": b"", "d.json": BadProfile("d.json: cannot be read")}
    profile = xprof_json.profile(tables, "toy", "toy")
    assert [name for name, _ in profile.skipped] == ["b.json", "c.json", "d.json"]
    assert dict(profile.skipped)["d.json"] == "cannot be read"
    assert profile.windows["bytes"].to_list() == [len(sound)]
    del tables["a.json"]
    with pytest.raises(BadProfile, match=r"b\.json: not JSON"):
        xprof_json.profile(tables, "toy", "toy")


# -- stages of the input pipeline ------------------------------------------------------------------------------


def test_stages_of_the_input_pipeline():
    properties = {"preprocessing_us": "7.500", "demanded_file_read_us": "2.500", "enqueue_us": "0.000"}
    stages = read(input_pipeline=[table([STEP]), table([], hostnames="a", **properties)]).stored.input_stages
    assert stages.schema == schema.INPUT_STAGES
    assert stages.rows() == [("a", "read on demand", 2_500_000, 0.25), ("a", "preprocess", 7_500_000, 0.75)]
    assert read(overview_page=[table([STEP])]).stored.input_stages.is_empty()


# -- what is no table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b'[{"cols": []', True),
        (b' \n{ "rows" : 3}', True),
        (b'[{"p":{}}]', True),
        (b'\xef\xbb\xbf[{"p":{}}]', True),
        (b'{"hloInfoMap":{},"podStatsSequence":{}}', True),
        (b"", False),
        (b"[]", False),
        (b'{"traceEvents": []}', False),
        (b'[{"ph": "X", "name": "podStatsSequence"}]', False),
        (b"\x0a\x05abc", False),
    ],
)
def test_a_table_is_detected_by_its_beginning(data, looks):
    assert xprof_json.is_table(data) is looks


def pages(*tables):
    return json.dumps(tables).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "a.json: the file is empty"),
        (b"\x0a\x05abc", "a.json: not JSON"),
        (b'[{"cols": [', "a.json: not JSON: it ends at byte 11: expected value"),
        (b"3", "a.json: JSON, but no table of XProf: a int"),
        (b"[]", "a.json: JSON, but no table of XProf: a list"),
        (b'{"traceEvents": []}', "a.json: JSON, but no table of XProf"),
        (pages(table([{"opName": "Iterator", "count": 3}])), "no table of a.json has steps"),
        (pages(table([{"stepnum": "4", "tooltip": "x"}])), "step '4' .* has no time"),
        (pages(table([{"stepnum": "0", "stepTimeMs": 1e10}])), "has a time of 1.*, beyond Int64"),
        (pages(table([{"stepnum": "0", **{f"{n}TimeMs": 1e9 for n in range(3)}}])), "lasts .* beyond Int64"),
        (pages(table([{"stepnum": "0", "stepTimeMs": 1e300}])), "beyond Int64"),
        (
            pages(table([{"stepnum": str(n), "stepTimeMs": 1e9} for n in range(3)])),
            r"steps of XProf's tables \(3\) last .* beyond Int64",
        ),
        (json.dumps(pod({"0": core(1e17)})).encode(), "beyond Int64"),
        (json.dumps(pod({"0": core(1, sendDurationUs=1e13, recvDurationUs=0)})).encode(), "beyond Int64"),
    ],
)
def test_an_invalid_table_is_described(data, said):
    with pytest.raises(BadProfile, match=said) as caught:
        xprof_json.profile({"a.json": data}, "toy", "toy")
    assert "\n" not in str(caught.value)


def test_no_tables_at_all_is_a_bad_profile():
    with pytest.raises(BadProfile, match="no table of none has steps"):
        xprof_json.profile({}, "toy", "toy")


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.integers(0, 9).map(str)
ANY = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner))
COLUMNS = ["stepnum", "computeTimeMs", "tcIdleTimeMs", "stepTimeMs", "deviceComputeTimeMs", "infeedTimeMs"]
TIMES = st.floats(0, 100) | ANY
TABLE = st.fixed_dictionaries(
    {
        "cols": st.just([{"id": column} for column in COLUMNS]) | ANY,
        "rows": st.lists(st.fixed_dictionaries({"c": st.lists(st.fixed_dictionaries({"v": TIMES}), max_size=6)})) | ANY,
    },
    optional={"p": st.dictionaries(st.sampled_from(["device_type", "device_core_count", "hostnames"]), ANY)},
)
CORE = st.dictionaries(
    st.sampled_from(["totalDurationUs", "hostName", "chipId", "nodeId", "sendDurationUs", "stepBreakdownUs"]), TIMES
)
STATS = st.fixed_dictionaries(
    {"podStatsPerCore": st.dictionaries(st.text(max_size=2), CORE | ANY) | ANY}, optional={"stepNum": ANY}
)
POD = st.fixed_dictionaries(
    {"podStatsSequence": st.fixed_dictionaries({"podStatsMap": st.lists(STATS | ANY, max_size=3)}) | ANY},
    optional={
        "stepBreakdownEvents": st.lists(st.fixed_dictionaries({"id": st.just(1), "name": ANY})) | ANY,
        "runEnvironment": ANY,
        "deviceType": ANY,
    },
)


HLO = st.fixed_dictionaries(
    {
        "cols": st.just([{"id": "hbm_bw"}, {"id": "total_self_time_percent"}, {"id": "category"}]),
        "rows": st.lists(st.fixed_dictionaries({"c": st.lists(st.fixed_dictionaries({"v": TIMES}), max_size=3)})) | ANY,
        "p": st.dictionaries(st.sampled_from(["device_type", "preprocessing_us"]), ANY | st.just("TPU v2")),
    }
)


@given(one=st.lists(TABLE, max_size=2) | ANY, other=POD | TABLE, hlo=HLO)
@examples(30)
def test_any_json_is_a_profile_or_a_bad_profile(one, other, hlo):
    try:
        profile = read(overview_page=one, pod_viewer=other, hlo_stats=hlo)
        found = (profile.stored.frame.schema, profile.stored.devices.schema, profile.hardware.schema)
        assert profile.span_ps >= 0
        assert profile.stored.frame["dur_ps"].null_count() == 0
    except BadProfile:
        found = (schema.STEPS, schema.DEVICES, schema.HARDWARE)
    assert found == (schema.STEPS, schema.DEVICES, schema.HARDWARE)


# -- a real run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet(real_profiles):
    files = sorted(real_profiles.glob("tpu-v2-8_resnet50.*.json"))
    assert len(files) == 3
    return {file.name: file.read_bytes() for file in files}


def test_the_steps_of_a_real_run(resnet):
    assert all(map(xprof_json.is_table, resnet.values()))
    profile = xprof_json.profile(resnet, "resnet50", "toy")
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == [0, 1, 2]
    assert (steps.frame["dur_ps"] / MS).round(2).to_list() == [313.53, 313.54, 314.29]
    assert (steps.frame["infeed_ps"] / MS).round(2).to_list() == [0.04, 0.04, 0.0]
    assert (steps.frame["idle_ps"] / MS).round(2).to_list() == [0.0, 0.0, 0.03]
    assert steps.frame["mxu_util"].to_list() == [0.488] * 3
    assert steps.frame["host"].unique().to_list() == ["10.240.1.50"]
    assert repr(profile) == "Profile(resnet50, 1 host, 8 TPUs, 0 events, 0.941 s, 100% of the run observed)"
    assert steps.ops.is_empty()


def test_the_cores_of_a_real_run(resnet):
    profile = xprof_json.profile(resnet, "resnet50", "toy")
    devices = profile.stored.devices
    assert devices.height == 3 * 8
    assert profile.hardware["device"].to_list() == [f"/device:TPU:{core}" for core in range(8)]
    assert profile.hardware["kind"].unique().to_list() == ["TPU v2"]
    slowest = devices.group_by("step", maintain_order=True).agg(pl.col("dur_ps").max())["dur_ps"]
    assert (slowest - profile.stored.frame["dur_ps"]).abs().max() <= 1  # the overview says the same
    # and it names the core that waits longest for its input: "10.240.1.50:6"
    waits = devices.filter(pl.col("step") == 0).sort("infeed_ps", descending=True)
    assert waits["device"][0] == "/device:TPU:6"
    assert (profile.stored.frame["collective_ps"] / MS).round(1).to_list() == [2.8, 3.0, 3.2]
    # the file's operations say it too: 7 iterators of category Preprocessing
    assert profile.stored.input_stages.rows() == [("10.240.1.50", "preprocess", 3_720_194_088_000, 1.0)]


def test_each_table_alone_has_the_steps(resnet):
    whole = xprof_json.profile(resnet, "resnet50", "toy").stored.frame
    for file, data in resnet.items():
        alone = xprof_json.profile({file: data}, "resnet50", "toy").stored.frame
        assert (alone["dur_ps"] - whole["dur_ps"]).abs().max() <= 1
