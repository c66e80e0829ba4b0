"""The benchmarks: what they feed both sides is sound, and they run."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandIn
from tracked import tracked

import tpunb as tp
from tpunb.io import xplane
from tpunb.profiler.capture import Schedule

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
COMPARED = FOLDER.parent / "docs" / "compared.md"
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def modules():
    """The benchmarks' own modules: xspaces, rivals, loading."""
    if find_spec("tensorflow") is None:  # whose import would take seconds
        pytest.skip("no tensorflow: its protobuf classes are the other side")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import loading
        import rivals
        import xspaces

        yield xspaces, rivals, loading


@pytest.fixture(scope="module")
def pod(modules):
    """The bytes of a made-up XSpace of two steps."""
    return modules[0].made_up(20_000)


def test_benchmarks_and_modules_of_tests_have_different_names():
    """Both folders are on the path of the tests."""
    benchmarks, tests = ({path.stem for path in folder.iterdir()} for folder in (FOLDER, Path(__file__).parent))
    assert benchmarks & tests <= {"__pycache__"}


@given(numbers=st.lists(st.tuples(INT64, st.floats(allow_nan=False)), min_size=1, max_size=20))
def test_statistics_are_encoded_like_the_protobuf_library(modules, numbers):
    xspaces, _, _ = modules
    whole, real = np.array([n for n, _ in numbers]), np.array([x for _, x in numbers])
    value = np.concatenate([whole, real.view(np.int64)])
    tag = np.repeat([0x20, 0x11], len(numbers))  # int64_value, double_value
    written = bytes(xspaces.stat(7, tag, value))
    event = xspaces.xplane_pb2().XEvent()
    for n, _ in numbers:
        event.stats.add(metadata_id=7, int64_value=n)
    for _, x in numbers:
        event.stats.add(metadata_id=7, double_value=x)
    assert xspaces.xplane_pb2().XEvent.FromString(written) == event
    assert len(written) == event.ByteSize()


def test_a_missing_statistic_is_omitted(modules):
    xspaces, _, _ = modules
    some = xspaces.stat(7, 0x20, np.array([1, 2]), np.array([False, True]))
    assert bytes(some) == b"\x22\x04\x08\x07\x20\x02"


def test_the_synthetic_host_is_as_documented(modules, pod):
    xspaces, _, _ = modules
    space = xspaces.xplane_pb2().XSpace.FromString(pod)
    assert [plane.name for plane in space.planes] == [*(f"/device:TPU:{n}" for n in range(8)), "/host:CPU"]
    threads = [line.name for line in space.planes[-1].lines if line.name.startswith("tf_Compute")]
    assert len(threads) == 16
    events = [event for plane in space.planes for line in plane.lines for event in line.events]
    assert len(events) == 20_000
    assert 3.5 < sum(len(event.stats) for event in events) / len(events) < 4.5
    assert {len(event.stats) for event in events} >= {2, 3, 4, 5, 6}
    kinds = {stat.WhichOneof("value") for event in events for stat in event.stats}
    assert kinds == {"int64_value", "uint64_value", "double_value", "ref_value"}
    assert any(stat.int64_value < 0 for event in events for stat in event.stats)
    assert all(event.metadata_id in space.planes[0].event_metadata for event in space.planes[0].lines[2].events)


def test_its_steps_are_read(pod, tmp_path):
    file = tmp_path / "pod.xplane.pb"
    file.write_bytes(pod)
    steps = tp.steps(tp.load(file))
    assert steps.frame["step"].to_list() == [0, 1]
    assert steps.frame["kind"].to_list() == ["train"] * 2
    assert steps.devices.select("device", "step").n_unique() == 16
    assert steps.ops.filter(pl.col("side") == "device")["count"].sum() == 16_000


def test_both_sides_agree(modules, pod, tmp_path):
    _, rivals, loading = modules
    ours, theirs = xplane.read(pod, source="test")[0], rivals.messages(pod)
    loading._check_same(ours, theirs)
    for column, stats in {
        "flops": ["shared_flops"],
        "bytes": ["bytes_accessed"],
        "category": ["shared_hlo_category"],
    }.items():
        of_device = pl.col("plane").cast(pl.String).str.starts_with("/device")
        told = theirs.select(pl.when(of_device).then(pl.coalesce(stats)).cast(ours.schema[column])).to_series()
        assert told.cast(pl.String).equals(ours[column].cast(pl.String))
    with pytest.raises(AssertionError, match="dur_ps"):
        loading._check_same(ours, theirs.with_columns(pl.col("dur_ps") + 1))


@pytest.mark.live
def test_the_c_program_counts_all_and_rejects_truncated_files(modules, pod, tmp_path):
    xspaces, rivals, _ = modules
    if not rivals.compiled(tmp_path / "decoder.so"):
        pytest.skip("no gcc")
    decode = rivals.in_c(tmp_path / "decoder.so")
    space = xspaces.xplane_pb2().XSpace.FromString(pod)
    events = [event for plane in space.planes for line in plane.lines for event in line.events]
    assert decode(pod) == (len(events), sum(len(event.stats) for event in events))
    for size in (len(pod) - 1, len(pod) // 2, 3):
        with pytest.raises(ValueError, match="corrupt"):
            decode(pod[:size])


def test_the_slower_of_two_inputs_counts(modules):
    _, _, loading = modules
    assert loading.worse({"vs_xprof": 5, "of_c": 2}, {"vs_xprof": 4, "of_c": 1, "cold_s": 1}) == {
        "vs_xprof": 4,
        "of_c": 2,
        "cold_s": 1,
    }


# -- what watching costs -------------------------------------------------------------------------------------------


@pytest.fixture
def overhead(monkeypatch):
    """The benchmark of what watching costs."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import overhead

    return overhead


@pytest.mark.parametrize(
    ("values", "low", "high"),  # as tables of the sign test have it: of 6 the extremes, of 9 the second from each end
    [([5], 5, 5), ([5, 3, 4], 3, 5), ([*range(1, 7)], 1, 6), ([*range(1, 10)], 2, 8), ([*range(20, 0, -1)], 6, 15)],
)
def test_the_interval_of_a_median_is_two_of_the_values(overhead, values, low, high):
    middle, *around = overhead.interval(values)
    assert middle == sorted(values)[len(values) // 2] or len(values) % 2 == 0
    assert around == [low, high]


def test_a_minute_is_extrapolated_by_the_cost_of_a_window(overhead):
    plain, watched = overhead.Took(10.0, 10.0), overhead.Took(10.6, 11.0, windows=2)
    assert overhead.minute(plain, watched) == pytest.approx(1 + 8 * 0.3 / 60)
    assert overhead.minute(plain, plain) == 1


@pytest.mark.parametrize("step_s", [0.005, 0.1])
def test_the_model_width_follows_the_step_time(overhead, monkeypatch, step_s):
    monkeypatch.setattr(overhead, "seconds", lambda width, steps: overhead.Took(steps * (0.001 + width**2 * 1e-8), 0))

    class Training(int):
        def __call__(self, steps, run):
            pass

    width, found_s = overhead.calibrated(Training, step_s)
    assert found_s == pytest.approx(0.001 + width**2 * 1e-8)
    assert step_s / 1.33 < found_s < step_s * 1.33


def test_a_pair_is_the_same_training_plain_and_captured(overhead, monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(overhead, "captured", lambda train, steps, *_: train(steps, "run") or overhead.Took(2, 2))
    case = overhead.Case("", Schedule(), 0.1, 3.0, 1)
    plain, watched = overhead.pair(case, lambda *told: trained.append(told), 0.1, tmp_path)
    assert sorted(trained, key=str) == [(30, "run"), (30, None)]
    assert plain.wall_s < 1 < watched.wall_s


def test_the_ratio_of_bytes_is_of_windows_to_parts(overhead, tmp_path, capsys):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule.continuous(0.05), keep="all") as run:
        for i in range(20):
            with run.step(i):
                source.wait_asked(1 + i // 10)
    windows = sum(file.stat().st_size for file in tmp_path.rglob("*.pb"))
    parts = sum(file.stat().st_size for file in tmp_path.glob("run/parts/*/*.parquet"))
    assert windows > 0
    assert overhead.kept([tmp_path / "run"]) == windows / parts
    assert "ticks" in capsys.readouterr().out


@pytest.mark.parametrize("quick", [True, False])
def test_a_report_marks_extrapolation_and_has_every_estimate(overhead, capsys, quick):
    case = overhead.Case("default_5ms", Schedule(), 0.005, 10.0, 2)
    pairs = [(overhead.Took(10.0, 8.0), overhead.Took(10.0 * ratio, 9.0, 0.1, None, 4)) for ratio in (1.02, 1.06)]
    told = overhead.report(case, 0.005, pairs, quick=quick)
    assert told == ([1.013, 1.007, 1.02] if quick else [1.04, 1.02, 1.06])
    said = capsys.readouterr().out
    assert ("extrapolated to a run of 60 s" in said) == quick
    assert "wall 1.040 [1.020, 1.060], cpu 1.125" in said
    assert "own estimate none yet" in said


NEEDS = {
    "attach.py": ("torch", "jax", "py-spy"),
    "costmodel.py": ("tensorflow", "jax"),
    "exactness.py": ("tensorflow", "grain"),
    "goodput.py": ("tensorflow", "jax", "orbax"),
    "jobs.py": ("TPUNB_DATA",),
    "launchers.py": ("torch", "jax"),
    "live_loader.py": ("torch",),
    "loading.py": ("xprof", "jax"),
    "overhead.py": ("tensorflow", "jax", "torch"),
    "paper.py": ("tensorflow", "two cores"),
    "pods.py": ("distributed", "xprof"),
    "repeatability.py": ("tensorflow", "jax"),
    "report.py": ("torch", "jax"),
    "roofline.py": ("tensorflow", "jax"),
    "slider.py": ("Chromium",),
    "sweep.py": ("tensorflow",),
    "torch_ops.py": ("torch", "TPUNB_DATA"),
    "trainers.py": ("torch", "jax", "flax"),
    "tuning.py": ("tensorflow",),
    "verdicts.py": ("tensorflow", "jax", "torch"),
}
"""What a script cannot do without even in short: packages, and what is in `FOUND`."""

FOUND = {
    "TPUNB_DATA": lambda: "TPUNB_DATA" in os.environ,
    "Chromium": lambda: any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    "py-spy": lambda: shutil.which("py-spy") is not None,
    "two cores": lambda: hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1,
}


def is_there(name):
    return FOUND[name]() if name in FOUND else find_spec(name) is not None


@cache
def quick(name):
    """Return what a benchmark says in short, and its last line; skip where something is missing that it needs."""
    if missing := [each for each in NEEDS.get(name, ()) if not is_there(each)]:
        pytest.skip(f"{name} needs {', '.join(missing)}")
    done = subprocess.run([sys.executable, FOLDER / name, "--quick"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    *said, last = done.stdout.splitlines()
    return "\n".join(said), json.loads(last)


def claimed(*pages):
    """Return the scripts that pages of the documentation name."""
    texts = (page.read_text(encoding="utf-8") for page in pages)
    return sorted({name for text in texts for name in re.findall(r"`(?:python )?benchmarks/(\w+\.py)", text)})


DOCUMENTED = claimed(*tracked("docs", ending=".md"))


def test_the_table_of_claims_names_scripts_that_exist():
    table = COMPARED.read_text(encoding="utf-8").partition("\n## Claims and how to reproduce them\n")[2]
    assert {*claimed(COMPARED)} == {*re.findall(r"`python benchmarks/(\w+\.py)`", table.partition("\n## ")[0])}
    assert len(claimed(COMPARED)) >= 19
    assert {*DOCUMENTED} <= {path.name for path in FOLDER.glob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_script_that_a_claim_names_runs_by_its_quick_form(name):
    _, last = quick(name)
    assert isinstance(last, dict)
    assert last


@pytest.mark.slow
def test_the_quick_overhead_benchmark_ends_in_its_ratios():
    said, last = quick("overhead.py")
    ratios = ["default_100ms", "default_5ms", "short_10s", "continuous_5ms", "ticker_5ms"]
    assert list(last) == [*ratios, "entry_s", "end_s", "gc", "bytes_ratio"]
    assert all(low <= median <= high for median, low, high in list(last.values())[:5])
    assert [*last["entry_s"]] == ["torch", "jax", "keras"]
    assert min(last["end_s"], last["gc"]) > 0
    assert last["bytes_ratio"] > 50
    assert "extrapolated" in said


@pytest.mark.slow
def test_the_quick_benchmark_ends_in_its_ratios():
    _, last = quick("loading.py")
    assert list(last) == [
        *("vs_protobuf", "vs_profile_data", "vs_xprof", "vs_chrome"),
        *("of_c", "memory_of_file", "cold_s", "steps_s"),
        *("file_ms", "many_mb", "large_vs_xprof"),
    ]
    assert last["vs_protobuf"] > 0


# -- what the phases are worth, and what they cost ------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_benchmark_of_phases_ends_in_its_ratios():
    said, last = quick("phases.py")
    assert list(last) == ["kmeans", "dbscan_cpu_s", "dbscan_mb", "ols", "ols_plus_us", "all_wall_s"]
    assert all(value > 0 for value in last.values())
    assert said.count("extrapolated") == 3  # k-means, scikit-learn's DBSCAN, Python's sets


@pytest.mark.slow
def test_the_quick_truth_benchmark_ends_in_its_figures_and_omissions():
    said, last = quick("truth.py")
    shares = ["ari", "noise_precision", "noise_recall", "ari_bic", "ari_ols_plus"]
    assert list(last) == [*shares, "error_10", "error_30"]
    assert all(0.5 < last[name] <= 1 for name in shares)
    assert 0 <= last["error_30"] <= last["error_10"] < 0.5
    assert "left out: [12, 13, 14, 15]" in said


@pytest.mark.slow
def test_the_quick_repeatability_benchmark_ends_in_its_shares_and_omissions():
    said, last = quick("repeatability.py")
    assert list(last) == ["same", "right", "false_changes", "longest_window_s"]
    assert all(0 <= last[name] <= 1 for name in ("same", "right", "false_changes"))
    assert last["longest_window_s"] > 0
    assert said.count("longest window") == 5  # four runs, and one with another layer
    assert "left out: buckets, checkpoints" in said


# -- how long a slider takes to redraw: in a page, tests/browser/test_benchmarks.py ----------------------------------


@pytest.fixture
def slider(monkeypatch):
    """The benchmark of the slider."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import slider

    return slider


def test_the_keys_move_where_most_changes(slider):
    import slider_cells

    assert slider_cells.busiest([5, 7, 8], range(1, 10), 3) == (3, 6)  # stops 4 to 7: those that 5 and 7 end
    assert slider_cells.busiest([], [0.5, 1.0], 20) == (0, 1)
    assert [next(keys) for keys in [slider.keys(2)] for _ in range(5)] == [
        *["ArrowRight"] * 2,
        *["ArrowLeft"] * 2,
        "ArrowRight",
    ]


@pytest.mark.slow
def test_the_quick_slider_benchmark_ends_in_its_figures_and_omissions():
    said, last = quick("slider.py")
    times = ["first_paint_s", "grouped_s"]
    assert list(last) == ["median_ms", "jupyterchart_ms", "blank_frames", "kb_per_move", *times, "notebook_kb"]
    assert min(last["median_ms"], last["jupyterchart_ms"], last["first_paint_s"]) > 0
    assert last["blank_frames"] == 0
    assert 0 < last["kb_per_move"] <= 100
    assert said.count("changed the picture") == 4
    assert "left out: JupyterChart with k-means and OLS" in said


# -- how near accounts are to the waste that programs inject ---------------------------------------------------------


@pytest.mark.slow
def test_the_quick_goodput_benchmark_ends_in_its_figures_and_omissions():
    said, last = quick("goodput.py")
    assert list(last) == ["worst_account", "other", "sum_error_ps", "places", "ticker_us"]
    assert last["sum_error_ps"] == 0
    assert 0 <= last["other"] < 0.9  # this, and the accounts, by the load of the machine
    assert 0 <= last["worst_account"] < float("inf")
    assert 0 < last["places"] <= 1
    assert "left out: function, keras_jax" in said


# -- how near a capture is to what unchanged trainers measure themselves ---------------------------------------------


@pytest.mark.slow
def test_the_quick_benchmark_of_trainers_ends_in_its_figures_and_omissions():
    said, last = quick("trainers.py")
    assert list(last) == ["trainers", "steps", "evaluations", "worst_account", "named", "overhead", "own", "pipelined"]
    assert (last["trainers"], last["steps"]) == (3, 1)
    assert all(0 <= last[name] <= 1 for name in ("worst_account", "named", "own", "pipelined"))
    assert last["overhead"] > 0
    assert "left out: torch_workers, keras_jax, " in said


# -- what reports name, and how slower runs are distinguished from equal ones ------------------------------------------


@pytest.mark.slow
def test_the_quick_benchmark_of_reports_ends_in_its_figures_and_omissions():
    said, last = quick("report.py")
    assert list(last) == ["named", "false_alarms", "bytes", "regressions", "equal"]
    assert 0 <= last["named"] <= 1  # this, and the false alarms, by the load of the machine
    assert last["bytes"] <= 4000
    assert last["regressions"] >= 0.9
    assert last["equal"] == 1
    assert "left out: " in said


# -- what is recorded of launched trainings ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_benchmark_of_launchers_ends_in_its_counts_and_omissions():
    said, last = quick("launchers.py")
    counts = ["processes", "steps", "job", "codes"]
    assert list(last) == [*counts, "slow_rank", "false_alarms", "overhead", "overhead_cpu"]
    assert all(last[measure].endswith(" of 6") for measure in counts)
    assert last["overhead"] is None
    assert "left out: overhead; torchrun restart, " in said


# -- how exactly and how fast the work of programs is counted ----------------------------------------------------------


@pytest.mark.slow
def test_the_quick_benchmark_of_pods_ends_in_its_figures():
    said, last = quick("pods.py")
    assert [*last] == ["cpu_s", "vs_xprof", "peak_mb", "dask_cpu", "dask_wall", "hosts_s"]
    assert all(value > 0 for value in last.values())
    assert "cpu_s is scaled to 1000 hosts" in said
    assert "equal frames" in said


@pytest.mark.slow
def test_the_quick_benchmark_of_a_long_run_ends_in_its_figures():
    said, last = quick("long_run.py")
    assert [*last] == ["open_s", "open_cpu_s", "peak_mb", "kept_mb", "growth"]
    assert all(value > 0 for value in last.values())
    assert "the whole: 522,240 steps in" in said


@pytest.mark.slow
def test_the_quick_roofline_benchmark_ends_in_its_figures_and_omissions():
    said, last = quick("roofline.py")
    assert list(last) == ["vs_protobuf", "roofline_s", "flops_error", "bytes_error", "overhead"]
    assert last["flops_error"] <= 1e-3
    assert last["bytes_error"] <= 1e-2
    assert min(last["vs_protobuf"], last["roofline_s"]) > 0
    assert "the loop's FLOPs differ by 0.0e+00" in said
    assert "left out: " in said
    middle, low, high = last["overhead"]
    assert 0 < low <= middle <= high


# -- how exactly programs are resumed and tuned ------------------------------------------------------------------------


def test_the_programs_are_after_different_pages_and_read_their_data_differently(monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.syspath_prepend(str(FOLDER))
    exactness = importlib.import_module("exactness")
    exactness.import_all()
    of_torch = [each for each in exactness.PROGRAMS.values() if "torch" in each.tags]
    assert len(of_torch) == (
        0 if not find_spec("torch") else 18 if find_spec("lightning") and find_spec("transformers") else 12
    )
    assert len({each.operations for each in of_torch}) == len(of_torch)
    programs = [each for each in exactness.PROGRAMS.values() if each not in of_torch]
    assert len(programs) >= 60
    assert len({each.page for each in programs}) == len(programs)
    assert len({each.operations for each in programs}) == len(programs)
    assert all(each.page.startswith("https://") for each in programs)
    assert sum(bool(each.tags & {"own step", "callback"}) for each in programs) >= 15
    assert {*exactness.QUICK} <= {each.name for each in programs}
    assert all("tune" in exactness.PROGRAMS[name].tags for name in exactness.QUICK_TUNED)


def test_a_difference_of_a_bit_is_named(monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.syspath_prepend(str(FOLDER))
    exactness = importlib.import_module("exactness")
    one = np.ones(3, "f")
    whole = exactness.Result([one, one], {"loss": [3.0, 2.0, float("nan")]})
    assert exactness.same(whole, exactness.Result([one, one], {"loss": [2.0, float("nan")]})) == ""
    other = exactness.Result([one, np.nextafter(one, np.float32(2))], {})
    assert exactness.same(whole, other) == "variable 1 of 2 differs"
    assert exactness.same(whole, exactness.Result([one, one], {"loss": [2.0, 1.0]})) == "the history of loss differs"


@pytest.mark.slow
def test_the_quick_exactness_benchmark_ends_in_its_counts_and_omissions():
    said, last = quick("exactness.py")
    assert list(last) == ["resume", "refused_identical", "nnx", "tune", "torch", "cost_1gb", "save_mb", "save_s"]
    assert sum(last["resume"].values()) == 8
    assert last["resume"]["silent"] == last["resume"]["crashed"] == 0
    assert last["resume"]["identical"] >= 4
    assert last["tune"]["changed"] == last["tune"]["crashed"] == 0
    assert said.count(": tuning: ") == 2
    assert "left out: actor_critic, " in said


@pytest.mark.slow
def test_the_quick_tuning_benchmark_ends_in_its_ratios_and_omissions():
    said, last = quick("tuning.py")
    assert list(last) == ["io", "original", "short", "grain", "loader", "pipelines"]
    for kind in ("io", "original"):
        assert list(last[kind]) == ["vs_naive", "vs_autotune", "of_best", "search_s"]
        assert min(last[kind].values()) > 0
    assert set(last["short"]) == {"sooner", "later"}
    for name in ("grain", "loader"):
        if last[name] is None:  # without its package
            continue
        assert last[name]["of"] == 1
        assert last[name]["changed"] == 0
    assert last["pipelines"] == {"rewritten": 10, "refused": 2, "crashed": 0, "different": 0}
    assert "left out: python, cpu, mixed, and the trial late in a run" in said


# -- an accelerator beside its host ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_paper_benchmark_ends_in_its_figures():
    said, last = quick("paper.py")
    assert list(last) == ["idle", "tuned", "equal"]
    assert len(last["idle"]) == 4
    assert all(0 <= share <= 1 for share in last["idle"])
    assert last["tuned"] > 0
    assert last["equal"] is True
    assert "computes, core" in said


# -- cost models -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_quick_benchmark_of_cost_models_ends_in_its_figures_and_omissions():
    said, last = quick("costmodel.py")
    assert list(last) == ["vs_protobuf", "fit_s", "rank_s", "memory", "tau", "ceiling", "top3"]
    assert last["vs_protobuf"] > 0
    assert last["memory"] <= 1.5
    assert 0 < last["tau"] <= last["ceiling"] < 1
    assert 0 <= last["top3"] <= 0.01
    assert min(last["fit_s"], last["rank_s"]) > 0
    assert said.count("leave one family of graphs out, 39 graphs, from the ") == 2  # program, and graph
    assert "left out: " in said
