"""Every shared real capture: it gives steps, phases and advice, its figures agree, and no output names a person."""

import gzip
import json
import re
import warnings
from functools import cache

import polars as pl
import polars.selectors as cs
import pytest

import tpunb as tp
from tpunb.step_stats import launches
from tpunb.text import plain

PROFILES = [
    "cpu_julia.trace.json.gz",
    "cpu_julia.xplane.pb",
    "cpu_tf2_keras.trace.json.gz",
    "gpu-1080ti_julia.trace.json.gz",
    "gpu-1080ti_julia.xplane.pb",
    "gpu-b200_pytorch_vllm.trace.json.gz",
    "gpu-mi300x_jax08_gemm.xplane.pb",
    "gpu-mi300x_jax_conv.xplane.pb",
    "gpu-v100_pytorch_resnet50-workers0.pt.trace.json.gz",
    "gpu-v100_tf2_bert_steps.xplane.pb",
    "tpu-v2-8_resnet50.overview_page.json",
    "tpu-v6e-4_jax_host-offload.xplane.pb",
    "tpu_vllm-qwen3.trace.json.gz",
]
TRACES = [name for name in PROFILES if not name.endswith("overview_page.json")]
"""Without XProf's tables, which hold no events."""
RULES = ["calls", "calls", "annotation", "steps line", None, "module", "module"]
"""Of those below: all others have one step, the whole capture."""
BY_RULE = [PROFILES[i] for i in (6, 7, 8, 9, 10, 11, 12)]


def steps_of(profile, by=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the whole capture is one step
        return tp.steps(profile, by=by)


@pytest.fixture(scope="module")
def captures(real_profiles):
    """Return a profile and its steps by name, loaded once."""

    @cache
    def of(name):
        profile = tp.load(real_profiles / name)
        return profile, steps_of(profile)

    return of


@pytest.fixture(scope="module")
def phases(captures):
    """Return the phases of a capture by name, found once."""
    return cache(lambda name: tp.phases(captures(name)[1]))


def test_no_shared_capture_is_left_out(real_profiles):
    names = {path.name for path in real_profiles.iterdir()}
    assert names - {f"tpu-v2-8_resnet50.{table}.json" for table in ("input_pipeline", "pod_viewer")} == {*PROFILES}


@pytest.mark.parametrize("name", PROFILES)
def test_a_capture_gives_steps_phases_and_advice(captures, phases, name):
    profile, steps = captures(name)
    assert len(steps) >= 1
    assert len(phases(name)) >= 1
    advice = tp.advise(phases(name))
    assert tp.goodput(profile) is not None
    rule = dict(zip(BY_RULE, RULES, strict=True)).get(name, "annotation" if name == PROFILES[2] else "whole")
    assert steps.frame["rule"].unique().to_list() == [rule]
    assert rule != "whole" or "idle" not in advice["rule"]
    words = {"torch": "pytorch", "lax.scan": "jax", "steps_per_execution": "keras"}
    assert all(of in name for word, of in words.items() if word in " ".join(advice["action"]))


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("by", [None, "whole"])
def test_figures_of_devices_agree(captures, name, by):
    profile, steps = captures(name)
    steps = steps if by is None else steps_of(profile, by)
    devices = steps.devices
    assert (devices["device_ps"] <= devices["dur_ps"]).all()
    assert (devices["device_ps"] + devices["idle_ps"] == devices["dur_ps"]).all()
    waits = devices["host_wait_ps"] + devices["kernel_wait_ps"]
    assert (waits.drop_nulls() >= 0).all()
    assert (waits <= devices["idle_ps"]).all()
    known = steps.frame.drop_nulls("device_ps")
    explained = known["device_ps"] + known["idle_ps"] + known["imbalance_ps"].fill_null(0)
    assert (explained - known["dur_ps"]).abs().max() in (None, *range(4))  # three columns, each rounded
    # two streams of a GPU may overlap; a TPU's own clock, by which operations count, differs from the host's
    ops = steps.ops.filter(pl.col("side") == "device").join(devices, on=["host", "step"], how="semi")
    assert ops["self_ps"].sum() <= 1.005 * devices["device_ps"].sum()
    held = set(profile.hardware.filter(pl.col("kind") != "CPU")["device"])
    used = set(devices["device"]) - {launches.CPU}
    assert used == held if by == "whole" else used <= held


def test_one_call_after_another_is_one_phase_though_the_profilers_buffer_filled_up(captures):
    _, steps = captures("gpu-mi300x_jax_conv.xplane.pb")
    assert steps.frame["device_ps"].is_null().to_list() == [False] * 5 + [True] * 5
    assert steps.frame["traced"].to_list() == ["full"] * 5 + ["partial"] * 5
    assert steps.frame["device_ps"].drop_nulls().to_list() == pytest.approx([400e6] * 5, rel=0.2)
    assert tp.phases(steps).labels.to_list() == [0] * 10


def test_steps_of_a_program_without_jit_are_its_calls_of_dot(captures):
    _, steps = captures("gpu-mi300x_jax08_gemm.xplane.pb")
    assert steps.frame["kind"].to_list() == ["dot"] * 18


def test_files_loaded_together_have_the_steps_of_each(real_profiles, captures):
    rules = zip(BY_RULE[:-1], RULES[:-1], strict=True)  # the last has steps only if no other file has any
    names = [name for name, rule in rules if rule in {"calls", "module"}] + [PROFILES[2]]
    figures = ["kind", "rule", "step", "traced", "dur_ps", "device_ps", "idle_ps"]
    together = tp.steps(tp.load([real_profiles / name for name in names])).frame.select(figures)
    apart = pl.concat([captures(name)[1].frame.select(figures) for name in names])
    assert together["rule"].n_unique() == 3
    assert together.sort(figures).equals(apart.sort(figures))


def test_both_times_of_a_pytorch_step(captures):
    """The device runs behind the host: a step of the host takes as long as its annotation, one of the device less."""
    profile, steps = captures("gpu-v100_pytorch_resnet50-workers0.pt.trace.json.gz")
    annotations = profile.events.drop_nulls("step_num").sort("step_num")
    assert steps.frame["annotation_ps"].to_list() == annotations["dur_ps"].to_list()
    assert (steps.frame["annotation_ps"] != steps.frame["dur_ps"]).all()


def test_each_module_of_one_forward_pass_is_a_step(captures):
    profile, steps = captures("tpu_vllm-qwen3.trace.json.gz")
    assert steps.frame.equals(tp.steps(profile, by="module").frame)
    whole = steps_of(profile, "whole")
    assert [round(ps / 1e9, 2) for ps in steps.frame.select("dur_ps", "idle_ps").row(0)] == [66.98, 0.05]
    assert tp.advise(tp.phases(steps))["rule"].to_list() == ["collectives", "formatting"]  # 5 and 2 % of step time
    assert steps.frame["kind"].to_list() == [
        *("jit_step_fun", "jit__select_from_array_fn", "jit_compute_logits_func", "jit_sample")
    ]
    assert steps.frame["device_ps"].sum() == pytest.approx(whole.frame["device_ps"].sum(), rel=0.001)
    assert tp.compare(tp.phases(steps), tp.phases(steps)) is not None
    # custom calls take a quarter of the busy time, and the file knows nothing of what they compute
    events = profile.events.filter(pl.col("line") == "XLA Ops")
    unknown = events.filter(pl.col("category") == "custom-call")["dur_ps"].sum() / events["dur_ps"].sum()
    assert whole.frame["flops_time_share"].item() == pytest.approx(1 - unknown, abs=0.005)
    assert 0.2 < unknown < 0.3


# -- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACES)
def test_the_trace_of_a_step_is_read_back_as_it_is(captures, phases, name, tmp_path):
    found = tp.analysis.open_trace(phases(name), path=tmp_path / "step.trace.json.gz")
    start = phases(name).steps.frame.filter(host=found.host, step=found.step)["start_ps"].item()
    again, at = tp.load(found.path).events, pl.col("start_ps")
    end = at + pl.col("dur_ps")
    around = (at < start + 2 * found.dur_ps) & (end > start - found.dur_ps) & (pl.col("host") == found.host)
    of_capture = captures(name)[0].events.filter(around)
    assert again.height == of_capture.height > 0
    assert again["plane"].cast(pl.String).sort().to_list() == of_capture["plane"].cast(pl.String).sort().to_list()
    written = json.loads(gzip.decompress(found.path.read_bytes()))["traceEvents"]
    names = [event["name"] for event in written if event["ph"] == "X"]
    assert sorted(names) == sorted(plain(name) for name in of_capture["name"].cast(pl.String))
    assert abs(again["dur_ps"].sum() - of_capture["dur_ps"].sum()) <= 1000 * again.height


PRIVATE = re.compile(r"/home/|/mnt/|/Users/")


def private(frame):
    texts = frame.select(cs.string() | cs.categorical()).unique()
    return {text for column in texts for text in column.cast(pl.String).unique() if text and PRIVATE.search(text)}


@pytest.mark.parametrize("name", TRACES)
def test_no_output_has_a_private_path(captures, phases, name, tmp_path):
    """People's folders are in source locations of programs."""
    profile, steps = captures(name)
    assert private(profile.events) == private(profile.instructions) == set()
    assert private(steps.layers) == private(steps.ops) == set()
    written = [*phases(name).to_csv(tmp_path), phases(name).to_chrome_trace(tmp_path / "trace.json")]
    written.append(tp.analysis.open_trace(phases(name), path=tmp_path / "step.json").path)
    assert not [file for file in written if PRIVATE.search(file.read_text(encoding="utf-8"))]


def test_sources_are_lines_of_their_programs_without_folders(captures):
    found = {}
    for name in (
        "tpu-v6e-4_jax_host-offload.xplane.pb",
        "gpu-mi300x_jax_conv.xplane.pb",
        "tpu_vllm-qwen3.trace.json.gz",
    ):
        known = captures(name)[0].instructions.filter(pl.col("source").is_not_null())
        assert known["source"].cast(pl.String).str.contains(r":[0-9]+$").all()
        found[name[:5]] = known["source"].cast(pl.String).unique().sort().to_list()
    assert found["tpu-v"] == [f"host_offload_stress_test.py:{line}" for line in (29, 37, 38)]
    assert "jax_conv_profiling.py:77" in found["gpu-m"]
    assert {"attention.py:262", "torchax/ops/jaten.py:583"} <= {*found["tpu_v"]}
