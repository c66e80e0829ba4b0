"""Our figures against XProf's on the same files; where they differ on purpose, a test says by how much and why."""

import json
import os
import subprocess
from functools import cache
from importlib.util import find_spec

import polars as pl
import pytest
from optional import lazy
from warm_python import warm_python
from xprof_oracle import Oracle

import tpunb as tp
from tpunb.io import xprof_json

tf = lazy("tensorflow")

TPU, V100, MI300X = "tpu-v6e-4_jax_host-offload", "gpu-v100_tf2_bert_steps", "gpu-mi300x_jax_conv"
JULIA_GPU, JULIA_CPU = "gpu-1080ti_julia", "cpu_julia"


class Case:
    """One capture as both see it."""

    def __init__(self, file, folder):
        self.profile = tp.load(file)
        self.whole = tp.steps(self.profile, by="whole")
        self.xprof = Oracle.of(file, folder)

    def device_ops(self, by):
        """Our operations of devices, told by a column of the layers, in the file as a whole."""
        rows = self.whole.layers.filter(pl.col("side").cast(pl.String) == "device").drop_nulls(by)
        if by == "tf_op":  # on purpose, copies have the op of what uses them; XProf says Unknown
            named = self.profile.events.drop_nulls("tf_op").select("program", "hlo_op").unique()
            rows = rows.join(named, on=["program", "hlo_op"], how="semi", nulls_equal=True)
        sums = pl.col("count", "total_ps", "self_ps", "flops", "bytes").sum()
        return rows.group_by(pl.col(by).cast(pl.String).str.split(":").list.first()).agg(sums)

    def spans(self, *lines):
        """From the first to the last event of these lines of each device: device, span_ps."""
        end_ps = pl.col("start_ps") + pl.col("dur_ps")
        named = pl.col("line").cast(pl.String)
        rows = self.profile.events.filter(pl.col("plane").cast(pl.String).str.starts_with("/device:"))
        rows = rows.filter(named.is_in(lines) | named.str.contains("^Stream #"))
        return rows.group_by(device=pl.col("plane").cast(pl.String)).agg(
            span_ps=end_ps.max() - pl.col("start_ps").min()
        )

    def busy_share(self, *lines):
        both = self.whole.devices.join(self.spans(*lines), on="device", validate="1:1")
        return both["device_ps"].sum() / both["span_ps"].sum()


@pytest.fixture(scope="session")
def case(real_profiles, tmp_path_factory):
    """The Case of a name, made once."""
    return cache(lambda name: Case(real_profiles / f"{name}.xplane.pb", tmp_path_factory.mktemp(name)))


def gaps(ours, theirs, *columns, on):
    """Return the largest relative difference in each column; every row has to have its like."""
    assert sorted(ours[on]) == sorted(theirs[on])
    both = theirs.join(ours, on=on, suffix="_ours", validate="1:1")
    assert all(both[f"{name}_ours"].null_count() == both[name].null_count() == 0 for name in columns)
    return {name: ((both[f"{name}_ours"] - both[name]).abs() / both[name].abs().clip(1)).max() for name in columns}


# operations of devices


@pytest.mark.parametrize("name", [TPU, MI300X, JULIA_GPU])
def test_each_hlo_op_runs_as_often_and_as_long(case, name):
    ours, theirs = case(name).device_ops("hlo_op"), case(name).xprof.hlo_ops
    assert gaps(ours, theirs, "count", on="hlo_op") == {"count": 0}
    assert max(gaps(ours, theirs, "total_ps", "self_ps", on="hlo_op").values()) <= 0.005


@pytest.mark.parametrize("name", [TPU, MI300X, JULIA_GPU])
def test_each_hlo_op_is_of_the_same_category(case, name):
    rows = case(name).whole.layers.drop_nulls("hlo_op").filter(pl.col("side").cast(pl.String) == "device")
    words = rows.select(pl.col("hlo_op", "category").cast(pl.String)).unique().sort("hlo_op")
    assert words.rows() == case(name).xprof.hlo_ops.select("hlo_op", "category").sort("hlo_op").rows()


def test_flops_and_bytes_of_each_hlo_op_of_a_tpu(case):
    found = gaps(case(TPU).device_ops("hlo_op"), case(TPU).xprof.hlo_ops, "flops", "bytes", on="hlo_op")
    assert max(found.values()) <= 0.005


@pytest.mark.parametrize("name", [TPU, MI300X, JULIA_GPU])
def test_each_framework_op_runs_as_long(case, name):
    ours = case(name).device_ops("tf_op").rename({"tf_op": "op"})
    # XProf names what has no framework op by its HLO instruction, of type Unknown
    theirs = case(name).xprof.framework_ops.filter(~pl.col("type").is_in(["IDLE", "Unknown"]), side="device")
    assert max(gaps(ours, theirs, "total_ps", "self_ps", on="op").values()) <= 0.005


def test_a_framework_op_is_counted_by_all_its_kernels_where_xprof_counts_its_most_frequent(case):
    """On purpose: 1200 runs of three fusions are one op's 1200 runs; XProf says 400, the most of the three."""
    ours = case(TPU).device_ops("tf_op").filter(pl.col("tf_op").str.ends_with("/add"))
    theirs = case(TPU).xprof.framework_ops.filter(op=ours["tf_op"][0])
    fusions = case(TPU).xprof.hlo_ops.filter(tf_op=ours["tf_op"][0])
    assert (ours["count"].item(), theirs["count"].item()) == (1200, 400)
    assert (fusions["count"].sum(), fusions["count"].max()) == (1200, 400)


def test_kernels_without_an_hlo_op_are_operations_too(case):
    """On purpose: the V100's kernels name a TensorFlow op by their annotation alone; XProf lists no op of them."""
    theirs = case(V100).xprof
    assert theirs.framework_ops.filter(side="device")["op"].to_list() == ["IDLE"]
    assert theirs.hlo_ops.is_empty()
    ours = case(V100).whole.layers.filter(pl.col("side").cast(pl.String) == "device")
    # 226 copies beside the kernels: XProf has no table of them
    copies = on_streams(case(V100), "Memcpy")
    assert copies["count"].sum() == 226
    assert ours["count"].sum() - 226 == theirs.kernels["count"].sum() == 2 * 665
    kernels_ps = ours["self_ps"].sum() - copies["total_ps"].sum()
    assert kernels_ps == pytest.approx(theirs.kernels["total_ps"].sum(), rel=0.005)


def test_each_kernel_of_the_v100_runs_as_often_and_as_long(case):
    ours, theirs = on_streams(case(V100), "Compute"), case(V100).xprof.kernels
    assert gaps(ours, theirs, "count", "total_ps", on="name") == {"count": 0, "total_ps": 0}


def on_streams(found, kind):
    """What ran on a GPU's streams of a kind: name, count, total_ps."""
    line = pl.col("line").cast(pl.String)
    events = found.profile.events.filter(line.str.starts_with("Stream #") & line.str.contains(kind))
    return events.group_by(pl.col("name").cast(pl.String)).agg(count=pl.len(), total_ps=pl.col("dur_ps").sum())


# idle and busy


def test_the_idle_share_of_a_tpu(case):
    assert 1 - case(TPU).busy_share("XLA Ops") == pytest.approx(case(TPU).xprof.idle_share(), abs=0.002)
    assert case(TPU).xprof.idle_share() == pytest.approx(
        case(TPU).xprof.overview("device_idle_time_percent"), abs=0.001
    )


def test_the_duty_cycle_of_a_tpu(case):
    ours = case(TPU).busy_share("XLA Ops", "XLA Modules")
    assert ours == pytest.approx(case(TPU).xprof.overview("device_duty_cycle_percent"), abs=0.002)


def test_a_gpu_is_as_idle_as_xprof_says_and_busy_where_it_copies(case):
    """On purpose: a copy is work. XProf counts kernels alone, yet in a time that copies make longer."""
    spans, devices = case(MI300X).spans(), case(MI300X).whole.devices
    busy = dict(devices.select("device", "device_ps").rows())
    # the first device does nothing but copy, for 0.889 ms: 2.04 % of the time of both
    copies = busy.pop("/device:GPU:0")
    (kernels,) = busy.values()
    idle = 1 - kernels / spans["span_ps"].sum()
    assert idle == pytest.approx(case(MI300X).xprof.idle_share(), abs=0.002)
    assert 1 - case(MI300X).busy_share() == pytest.approx(idle - 0.0204, abs=0.0002)
    assert copies / 1e9 == pytest.approx(0.889, abs=0.001)


def test_the_matrix_unit(case):
    """On purpose: where the hardware did not count, we say nothing; XProf prints 0.0 % for the V100 too."""
    assert case(TPU).xprof.overview("mxu_utilization_percent") == 0
    assert set(case(TPU).whole.devices["mxu_util"]) == {0.0}
    assert case(V100).xprof.overview("mxu_utilization_percent") == 0
    assert set(case(V100).whole.devices["mxu_util"]) == {None}


def test_the_work_of_a_tpu(case):
    """A copy between the host and a TPU has a start and an end, and both bear its bytes: HBM saw them once."""
    devices, theirs = case(TPU).whole.devices, case(TPU).xprof.work
    peaks = devices.select("device", "hbm_util", "flops_util", "dur_ps").join(case(TPU).profile.hardware, on="device")
    seconds = pl.col("dur_ps") / 1e12
    ours = peaks.select(
        flops=(pl.col("flops_util") * seconds * pl.col("peak_flops")).sum(),
        hbm_bytes=(pl.col("hbm_util") * seconds * pl.col("hbm_bandwidth")).sum(),
    ).row(0, named=True)
    assert ours == pytest.approx(theirs, rel=0.005)
    assert devices["flops"].sum() == pytest.approx(theirs["flops"], rel=0.005)
    assert devices["bytes"].sum() == pytest.approx(1.5 * theirs["hbm_bytes"], rel=0.005)


def test_memory_bandwidth_of_xprofs_tables(case):
    """The overview prints 0.0 % for the bandwidth of this file; hlo_stats has it, as XProf's roofline says."""
    xprof = case(TPU).xprof
    assert xprof.overview("memory_bw_utilization_relative_to_hw_limit") == 0
    (program, *_), facts = xprof.tables("roofline_model")[0]["rows"], xprof.tables("roofline_model")[0]["p"]
    ids = [column["id"] for column in xprof.tables("roofline_model")[0]["cols"]]
    theirs = program["c"][ids.index("hbm_bw")]["v"] / float(facts["peak_hbm_bw"])
    step = {"cols": [{"id": "stepnum"}, {"id": "stepTimeMs"}], "rows": [{"c": [{"v": "0"}, {"v": 1}]}]}
    pages = {"overview_page.json": [step, *xprof.tables("overview_page")], "hlo_stats.json": xprof.tables("hlo_stats")}
    tables = {name: json.dumps(page).encode() for name, page in pages.items()}
    frame = xprof_json.profile(tables, "toy", "toy").stored.frame
    assert frame["hbm_util"].to_list() == pytest.approx([theirs], rel=0.005)
    assert frame["mxu_util"].to_list() == [None]


# steps


def test_the_step_of_the_v100(case):
    """XProf's one step is that of the device that took longest; on GPU:4 the same step took 19.865 ms."""
    steps, theirs = tp.steps(case(V100).profile), case(V100).xprof.steps
    assert steps.frame["dur_ps"].to_list() == theirs["dur_ps"].to_list() == [21_310_352_000]
    of_device = dict(steps.devices.drop_nulls("device_ps").select("device", "dur_ps").rows())
    assert of_device["/device:GPU:4"] == 19_865_491_000
    assert of_device["/device:GPU:6"] == 21_310_352_000


def test_the_busy_time_in_the_step_of_the_v100(case):
    """On purpose: ours is the mean of both devices, and all they do; XProf's is what GPU:6 did for this step."""
    steps, theirs = tp.steps(case(V100).profile), case(V100).xprof.steps
    of_device = dict(steps.devices.select("device", "device_ps").rows())
    assert of_device["/device:GPU:6"] == pytest.approx(theirs["device_ps"].item(), rel=0.005)
    mean = (of_device["/device:GPU:4"] + of_device["/device:GPU:6"]) / 2
    assert steps.frame["device_ps"].item() == pytest.approx(mean, abs=1)


def test_steps_where_xprof_sees_none(case):
    """On purpose: a module that runs, or a function that is called, time and again; XProf asks for marks."""
    steps = tp.steps(case(TPU).profile)
    assert case(TPU).xprof.steps.is_empty()
    assert len(steps) == 100
    assert case(MI300X).xprof.steps.is_empty()
    assert len(tp.steps(case(MI300X).profile)) == 10
    # each run of jit_f on each of four devices runs each of its instructions once
    instructions = steps.layers.filter(pl.col("hlo_op").cast(pl.String) == "broadcast_add_fusion")
    assert instructions["count"].to_list() == [4] * 100


@pytest.mark.parametrize("name", [JULIA_GPU, JULIA_CPU])
def test_the_whole_capture_is_a_step_where_there_are_none(case, name):
    assert case(name).xprof.steps.is_empty()
    with pytest.warns(UserWarning, match="the whole capture is one step"):
        steps = tp.steps(case(name).profile)
    assert steps.frame.select("step", "rule").rows() == [(0, "whole")]


PROGRAMS = {
    "jax": """
import sys, jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = step(jnp.ones((200, 200))).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for i in range(int(sys.argv[2])):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            x = step(x).block_until_ready()
""",
    "tensorflow": """
import sys, tensorflow as tf
step = tf.function(lambda x: tf.reduce_sum(tf.tanh(tf.matmul(x, x))))
rows = iter(tf.data.Dataset.range(100).map(lambda i: tf.ones((64, 64)) * tf.cast(i, tf.float32)).prefetch(1))
step(next(rows))
with tf.profiler.experimental.Profile(sys.argv[1]):
    for i in range(int(sys.argv[2])):
        with tf.profiler.experimental.Trace("train", step_num=i, _r=1):
            step(next(rows)).numpy()
""",
}


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The Case of a program of a framework that runs here and now, in a process of its own, for so many steps."""

    @cache
    def of(framework, steps):
        if find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
        folder = tmp_path_factory.mktemp("run")
        command = [*warm_python(), "-c", PROGRAMS[framework], str(folder / "logs"), str(steps)]
        on_cpu = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
        subprocess.run(command, check=True, capture_output=True, timeout=120, env=on_cpu)
        (file,) = (folder / "logs").rglob("*.xplane.pb")
        return Case(file, folder)

    return of


@pytest.mark.live
@pytest.mark.parametrize("framework", PROGRAMS)
def test_marked_steps_of_a_cpu_take_as_long_and_none_is_dropped(run, framework):
    """On purpose: of more than five steps XProf drops the first and the last, whole or not; ours are all there."""
    ours, theirs = tp.steps(run(framework, 10).profile).frame, run(framework, 10).xprof.steps
    assert ours["step"].to_list() == list(range(10))
    assert theirs["step"].to_list() == [f"train {i}" for i in range(1, 9)]
    assert ours["dur_ps"].to_list()[1:9] == pytest.approx(theirs["dur_ps"].to_list(), abs=10**6)


@pytest.mark.live
def test_of_five_steps_neither_drops_any(run):
    ours, theirs = tp.steps(run("jax", 5).profile).frame, run("jax", 5).xprof.steps
    assert len(ours) == len(theirs) == 5
    assert ours["dur_ps"].to_list() == pytest.approx(theirs["dur_ps"].to_list(), abs=10**6)


@pytest.mark.live
def test_waiting_for_input(run):
    ours, theirs = tp.steps(run("tensorflow", 10).profile).frame, run("tensorflow", 10).xprof.steps
    assert theirs["input_ps"].min() > 0
    assert ours["input_ps"].to_list()[1:9] == pytest.approx(theirs["input_ps"].to_list(), abs=10**6)


# operations of the host


def host_ops(found):
    """Our operations of the host that TensorFlow names, as XProf names them, without iterators."""
    name = pl.col("tf_op").cast(pl.String)
    rows = found.whole.layers.filter(pl.col("side").cast(pl.String) == "host").drop_nulls("tf_op")
    rows = rows.filter(~name.str.starts_with("Iterator::"))
    return rows.group_by(op=name.str.split(":").list.first()).agg(pl.col("count", "total_ps", "self_ps").sum())


def framework_ops(found):
    """XProf's, but for what it counts beside operations: idle time, iterators, and allocations by op."""
    rows = found.xprof.framework_ops.filter(side="host")
    return rows.filter(~pl.col("type").is_in(["IDLE", "Dataset", ""]))


@pytest.mark.live
def test_ops_of_the_host_of_a_real_run(run):
    ours, theirs = host_ops(run("tensorflow", 10)), framework_ops(run("tensorflow", 10))
    assert {"MatMul", "Tanh", "Sum"} <= set(theirs["op"])
    assert gaps(ours, theirs, "count", "total_ps", on="op") == pytest.approx({"count": 0, "total_ps": 0}, abs=0.005)


def test_ops_of_the_host_of_the_v100(case):
    """On purpose: to XProf memory that an op allocates or frees is one more run of it, of 0 ps; ours are its runs.

    And from the time of an op XProf takes only ops nested in it, we whatever is: here, mostly, launches of kernels.
    """
    theirs = framework_ops(case(V100))  # the 500 that take longest
    ours = host_ops(case(V100)).join(theirs, on="op", how="semi")
    assert gaps(ours, theirs, "total_ps", on="op")["total_ps"] <= 0.005
    both = theirs.join(ours, on="op", suffix="_ours")
    assert (both["count"] >= both["count_ours"]).all()
    assert (both["self_ps"] >= both["self_ps_ours"]).all()


def test_stages_of_the_input_pipeline_are_xprofs(case):
    found = dict(case(V100).whole.input_stages.select("stage", "time_ps").rows())
    assert case(V100).xprof.input_stages() == {"preprocessing_us": pytest.approx(found.pop("preprocess"), rel=0.005)}
    assert not found


@pytest.mark.live
def test_stages_of_a_pipeline_that_reads_files_are_xprofs(tmp_path):
    files = [str(tmp_path / f"{number}.tfrecord") for number in range(4)]
    for file in files:
        with tf.io.TFRecordWriter(file) as writer:
            for _ in range(64):
                writer.write(bytes(1000))
    ahead = tf.data.Dataset.from_tensor_slices(files).interleave(tf.data.TFRecordDataset).batch(4).prefetch(2)
    on_demand = tf.data.TFRecordDataset(files).map(tf.strings.length).batch(8)
    with tf.profiler.experimental.Profile(str(tmp_path / "logs")):
        for batches in (ahead, on_demand):
            for step, _ in zip(range(20), batches, strict=False):
                with tf.profiler.experimental.Trace("train", step_num=step):
                    pass
    capture = next((tmp_path / "logs").rglob("*.xplane.pb"))
    stages = tp.steps(tp.load(capture), by="whole").input_stages
    found = dict(stages.select("stage", "time_ps").rows())
    keys = {"read on demand": "demanded_file_read_us", "read in advance": "advanced_file_read_us"}
    keys |= {"preprocess": "preprocessing_us"}
    assert set(found) == set(keys)
    theirs = Oracle.of(capture, tmp_path).input_stages()
    assert {keys[stage]: time for stage, time in found.items()} == pytest.approx(theirs, rel=0.005)
    assert stages["share"].sum() == pytest.approx(1)
