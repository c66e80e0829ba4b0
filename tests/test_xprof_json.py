"""XProf's tables as stored steps."""

import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, NoSteps
from tpunb.io import xprof_json

MS, US = 10**9, 10**6


def read(**tables):
    contents = {f"{name}.json": json.dumps(table).encode() for name, table in tables.items()}
    return xprof_json.profile(contents, "toy", "toy")


def table(rows, **told):
    """Spell a table by its rows, dictionaries of one order."""
    ids = dict.fromkeys(key for row in rows for key in row)
    cells = [{"c": [{"v": row.get(key)} for key in ids]} for row in rows]
    return {"cols": [{"id": key, "label": key, "type": "number"} for key in ids], "rows": cells, "p": told}


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
    ("told", "steps"),
    [(["train 11", "train 12"], [11, 12]), ([4, 5], [4, 5]), (["5", "5"], [0, 1]), (["5", "unknown"], [0, 1])],
)
def test_steps_without_numbers_are_counted(told, steps):
    rows = [{"stepnum": word, "stepTimeMs": 1} for word in told]
    assert read(overview_page=[table(rows)]).stored.frame["step"].to_list() == steps


def test_a_run_of_no_steps_says_so():
    empty = {"cols": [{"id": "stepnum"}, {"id": "computeTimeMs"}], "rows": []}
    profile = read(overview_page=[empty])
    assert len(profile.stored) == 0
    with pytest.raises(NoSteps):
        tp.steps(profile)


def test_steps_only_in_the_pod_viewer_are_ignored_beside_a_table():
    profile = read(overview_page=[table([STEP])], pod_viewer=pod({"0": core(9)}, {"0": core(9)}))
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
    ("told", "devices", "mxu_util", "hbm_util"),
    [
        ({"device_type": "TPU v2", "device_core_count": "8 (Replica count = 8)"}, 8, 0.488, 0.703),
        ({"hardware_type": "TPU", "device_core_count": "2"}, 2, 0.488, 0.703),
        ({"device_type": "Nvidia GPU (Volta)", "device_core_count": "4"}, 4, None, None),
        ({"device_type": "CPU", "device_core_count": "4"}, 0, None, None),
        ({"device_type": "TPU v2", "device_core_count": "many"}, 0, 0.488, 0.703),
        ({"device_type": "TPU v2", "device_core_count": "999999999999"}, 65536, 0.488, 0.703),
    ],
)
def test_hardware_is_read_from_the_overview(told, devices, mxu_util, hbm_util):
    shares = {"mxu_utilization_percent": "48.8%", "memory_bw_utilization_relative_to_hw_limit": "70.3%"}
    profile = read(overview_page=[table([STEP]), table([], **told), table([], **shares)])
    assert profile.hardware.height == devices
    assert profile.hardware["mxu_util"].to_list() == [mxu_util] * devices
    assert profile.stored.frame.select("mxu_util", "hbm_util").row(0) == (mxu_util, hbm_util)


@pytest.mark.parametrize(
    ("names", "host"), [("All-hosts-in-one-graph, 10.0.0.1", "10.0.0.1"), ("All-hosts-in-one-graph, a, b", "")]
)
def test_a_host_is_named_where_it_is_the_only_one(names, host):
    assert read(input_pipeline=[table([STEP]), table([], hostnames=names)]).stored.frame["host"].to_list() == [host]


# -- what is no table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b'[{"cols": []', True),
        (b' \n{ "rows" : 3}', True),
        (b'[{"p":{}}]', True),
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
        (b'[{"cols": [', "a.json: not JSON: .* 11 bytes"),
        (b"3", "a.json: JSON, but no table of XProf: a int"),
        (b"[]", "a.json: JSON, but no table of XProf: a list"),
        (b'{"traceEvents": []}', "a.json: JSON, but no table of XProf"),
        (pages(table([{"opName": "Iterator", "count": 3}])), "no table of a.json has steps"),
        (pages(table([{"stepnum": "4", "tooltip": "x"}])), "step '4' .* has no time"),
        (pages(table([{"stepnum": "0", "stepTimeMs": 1e10}])), "have a time of 1.*, beyond Int64"),
        (pages(table([{"stepnum": "0", **{f"{n}TimeMs": 1e9 for n in range(3)}}])), "lasts .* beyond Int64"),
        (pages(table([{"stepnum": "0", "stepTimeMs": 1e300}])), "beyond Int64"),
        (pages(table([{"stepnum": str(n), "stepTimeMs": 1e9} for n in range(3)])), "the 3 steps .* beyond Int64"),
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


@given(one=st.lists(TABLE, max_size=2) | ANY, other=POD | TABLE)
@settings(max_examples=300, deadline=None)
def test_any_json_is_a_profile_or_a_bad_profile(one, other):
    try:
        profile = read(overview_page=one, pod_viewer=other)
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


def test_each_table_alone_has_the_steps(resnet):
    whole = xprof_json.profile(resnet, "resnet50", "toy").stored.frame
    for file, data in resnet.items():
        alone = xprof_json.profile({file: data}, "resnet50", "toy").stored.frame
        assert (alone["dur_ps"] - whole["dur_ps"]).abs().max() <= 1
