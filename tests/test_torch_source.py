"""The capture source of PyTorch: sessions of its profiler, one for each window."""

import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import polars as pl
import pytest
from fake_torch import install

import tpunb as tp
from tpunb.errors import MissingExtra, TpunbError
from tpunb.frames.hardware import this_cpu
from tpunb.io import chrome_trace
from tpunb.profiler.capture import Schedule
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.reducer import decode
from tpunb.profiler.sources import torch as torch_source
from tpunb.profiler.sources.between_steps import BetweenSteps
from tpunb.profiler.sources.frameworks import NotInUse
from tpunb.testing import check_source

ONLY_TIMES = "PyTorch: step times only; load a torch.profiler trace for operations"


def train(torch, run, steps=10, *, first=0):
    for i in range(first, first + steps):
        with run.step(i):
            with torch.op("aten::addmm"):
                time.sleep(0.004)
            with torch.op("aten::relu"):
                time.sleep(0.002)


@pytest.fixture
def threads(monkeypatch):
    """A loop of operators in a thread of the program, as a training is beside the capture."""
    torch, over = install(monkeypatch), threading.Event()

    def loop():
        while not over.is_set():
            with torch.op("aten::mm"):
                time.sleep(0.001)

    thread = threading.Thread(target=loop)
    thread.start()
    yield torch
    over.set()
    thread.join()


def test_it_is_a_source(threads):
    check_source(tp.sources.Torch())


def test_a_window_is_a_session_over_all_threads(threads):
    source = tp.sources.Torch()
    source.start()
    began_ns = time.time_ns()
    events, facts = decode(source.window(0.2), "window")
    assert threads.configurations == [{"profile_all_threads": True}]
    assert set(events["name"].cast(pl.String)) == {"aten::mm"}
    assert began_ns - 1000 <= facts.start_ns <= facts.stop_ns <= time.time_ns() + 1000
    assert threads.sessions == []
    facts = {"framework": "torch", "framework_version": "2.9.0", "devices": ["/device:CPU:0"], "cpu": this_cpu()}
    assert source.facts() == facts


def test_beside_tensorflow_a_session_waits_until_the_program_has_imported_what_it_imports(threads, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.setattr(torch_source.torch, "find_spec", lambda name: None)
    assert torch_source.torch.profiles_all_threads()
    monkeypatch.setattr(torch_source.torch, "find_spec", lambda name: name == "triton")
    assert not torch_source.torch.profiles_all_threads()
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    assert torch_source.torch.profiles_all_threads()


def test_shapes_are_recorded_in_the_first_window_and_in_the_first_of_a_phase(threads, monkeypatch):
    source, session, shapes = tp.sources.Torch(), threads.profiler.profile, []

    def profile(**options):
        shapes.append(options["record_shapes"])
        return session(**options)

    monkeypatch.setattr(threads.profiler, "profile", profile)
    for reason in ("start", "evenly", "new phase", "under-sampled"):
        source.announce(reason)
        source.window(0.01)
    assert shapes == [True, False, True, False]


@pytest.mark.parametrize(
    ("boundaries", "compiles", "recorded"), [(2, False, True), (0, False, False), (2, True, False)]
)
def test_modules_are_recorded_after_a_first_step_without_compilation(
    threads, monkeypatch, boundaries, compiles, recorded
):
    source, hooks = tp.sources.Torch(), []
    monkeypatch.setattr(torch_source.torch, "compiles", lambda: compiles)
    monkeypatch.setattr(torch_source.Modules, "start", lambda self, spans: hooks.append("added"))
    monkeypatch.setattr(torch_source.Modules, "stop", lambda self: hooks.append("removed"))
    for _ in range(boundaries):
        source.boundary()
    source.announce("start")
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 0.01)
        while not window.done():
            time.sleep(0.001)
            if source.is_due:
                source.boundary()
    assert window.result()
    assert (hooks[:1] == ["added"]) == recorded
    assert hooks[-1] == "removed"


@pytest.mark.parametrize("source", [None, tp.sources.Torch()], ids=["found", "chosen"])
def test_a_loop_has_traced_steps_with_operators_and_raw_windows(monkeypatch, tmp_path, source):
    torch = install(monkeypatch)
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule.continuous(window=0.2), keep="all") as run:
        train(torch, run, 80)
    profile = tp.load(run)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == list(range(80))
    assert len(steps.full()) > 30
    assert {"aten::addmm", "aten::relu"} <= set(steps.full().ops["op"].cast(pl.String))
    assert profile.windows["error"].null_count() == profile.windows.height
    raw = sorted((tmp_path / "run" / "plugins").rglob("*.trace.json"))
    assert len(raw) >= 2
    assert "aten::addmm" in set(profile.events["name"].cast(pl.String))
    assert tp.steps(tp.load(raw[1])).frame["rule"].unique().to_list() == ["annotation"]
    assert tp.phases(steps).steps is steps
    assert tp.runs(tmp_path)["device"].to_list() == ["CPU"]


def test_the_profiler_of_the_program_comes_first(monkeypatch, tmp_path):
    torch = install(monkeypatch)
    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(window=0.2)) as run:
        train(torch, run, 40)
        own = torch.profiler.profile()
        own.start()  # which would raise while a window records
        train(torch, run, 10, first=40)
        own.stop()
        train(torch, run, 40, first=50)
    assert "ProfilerStep" not in str(own.events)  # ours are in our windows
    steps = tp.steps(tp.load(run))
    traced = steps.full().frame["step"]
    assert len(steps) == 90
    assert traced.is_between(0, 39).any()
    assert not traced.is_between(41, 48).any()


@pytest.mark.parametrize("options", [{"all_threads": False}, {"refuses": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"}])
def test_without_its_profiler_the_training_goes_through_and_the_message_names_it(monkeypatch, tmp_path, options):
    torch = install(monkeypatch, **options)
    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(window=0.05)) as run:
        train(torch, run)
    profile = tp.load(run)
    assert tp.steps(profile).frame["step"].to_list() == list(range(10))
    assert profile.windows["error"].unique().to_list() == [ONLY_TIMES]


def test_a_profiler_that_fails_later_is_named(threads):
    source = tp.sources.Torch()
    source.window(0.05)
    threads.refuses = "out of memory"
    with pytest.raises(TpunbError, match="the profiler of PyTorch failed: RuntimeError: out of memory"):
        source.window(0.05)


def test_where_steps_have_boundaries_a_session_begins_and_ends_at_them_in_the_thread_that_trains(threads):
    source, answers = tp.sources.Torch(), []
    source.start()
    source.boundary()
    window = threading.Thread(target=lambda: answers.append(source.window(0.05)))
    window.start()
    while not source.is_due:
        time.sleep(0.001)
    assert threads.sessions == []  # it waits
    source.boundary()
    (session,) = threads.sessions
    assert session.thread == threading.get_ident()
    while not source.is_due:
        time.sleep(0.001)
    assert threads.sessions == [session]
    source.boundary()
    assert threads.sessions == []
    window.join()
    assert decode(answers[0], "window")[0].height > 0


def test_a_window_whose_trace_would_be_large_is_shorter_from_the_first_on(threads, monkeypatch):
    monkeypatch.setattr(torch_source, "LIMITS", replace(LIMITS, largest_trace=1))
    source = tp.sources.Torch()
    source.start()
    source.boundary()
    source.boundary()
    for sessions in (2, 3):  # the first of a step alone
        with ThreadPoolExecutor(1) as pool:
            window = pool.submit(source.window, LIMITS.longest_window_s)
            while not window.done():
                time.sleep(0.002)
                if all(session.events for session in threads.sessions):  # each step has an operator
                    source.boundary()
        assert decode(window.result(), "window")[0].height > 0
        assert len(threads.configurations) == sessions


def test_a_window_at_the_start_ends_once_it_has_enough_steps(threads):
    source = tp.sources.Torch()
    source.start()
    source.announce("start")
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, LIMITS.longest_window_s)  # due before any step: none has been timed
        while not threads.sessions:
            time.sleep(0.001)
        steps = 0
        while not window.done():
            time.sleep(0.002)
            source.boundary()
            steps += 1
    assert decode(window.result(), "window")[0].height > 0
    assert steps >= LIMITS.enough_steps


def test_an_evaluation_without_steps_ends_a_window_at_the_start(threads):
    source = tp.sources.Torch()
    source.start()
    source.boundary()
    source.announce("start")
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, LIMITS.longest_window_s)
        while not source.is_due:
            time.sleep(0.001)
        source.boundary()  # the last one: a text is generated from here on
        boundaries = source.between.boundaries
        while not window.done():
            time.sleep(0.002)
            source._evaluates()
    assert decode(window.result(), "window")[0].height > 0
    assert source.between.boundaries == boundaries


def test_a_source_that_is_stopped_in_its_first_step_returns_that(threads):
    source = tp.sources.Torch()
    source.start()
    source.boundary()
    source.boundary()
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, LIMITS.longest_window_s)
        while not threads.sessions:
            time.sleep(0.002)
            source.boundary()
        while not threads.sessions[0].events:
            time.sleep(0.001)
        source.stop()
        while not window.done():
            time.sleep(0.002)
            source.boundary()
    assert decode(window.result(), "window")[0].height > 0
    assert len(threads.configurations) == 1


def test_an_interrupt_as_a_session_begins_frees_the_thread_that_waits_for_it():
    between = BetweenSteps()
    between.boundary()  # so somebody calls it

    def interrupted():
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(between.call, interrupted, threading.Event())
        with pytest.raises(KeyboardInterrupt):
            while True:
                between.boundary()
        with pytest.raises(TpunbError, match="the program was interrupted as a window began or ended"):
            answer.result()


def test_a_session_that_no_boundary_ends_ends_once_the_source_is_stopped(threads, monkeypatch):
    monkeypatch.setattr("tpunb.profiler.sources.between_steps.LIMITS", replace(LIMITS, boundary_s=0.0))
    source, answers = tp.sources.Torch(), []
    source.start()
    source.boundary()
    window = threading.Thread(target=lambda: answers.append(source.window(60)))
    window.start()
    while not source.is_due:
        time.sleep(0.001)
    source.boundary()
    source.stop()
    window.join()
    assert threads.sessions == []
    assert len(answers) == 1


def test_before_its_import_windows_wait(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    source = tp.sources.Torch()
    with pytest.raises(MissingExtra, match="torch is not installed"):
        source.start()
    timer = threading.Timer(0.3, source.stop)
    timer.start()
    with pytest.raises(NotInUse):
        source.window(0.05)


def test_windows_wait_while_a_part_of_it_is_imported(threads, monkeypatch):
    part = ModuleType("torch._dynamo")
    part.__spec__ = ModuleSpec("torch._dynamo", None)
    part.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "torch._dynamo", part)
    source = tp.sources.Torch()
    timer = threading.Timer(0.3, source.stop)
    timer.start()
    with pytest.raises(NotInUse):
        source.window(0.05)
    assert threads.sessions == []
    part.__spec__._initializing = False
    assert decode(source.window(0.1), "window")[0].height


def test_the_origin_of_a_trace_is_known_in_both_formats_of_pytorch():
    now = 1_610_366_662_254_362
    event = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": %s, "dur": 4}'
    old = f'{{"schemaVersion": 1, "traceEvents": [{event % now}]}}'
    new = f'{{"schemaVersion": 1, "baseTimeNanoseconds": {now * 1000 - 5000}, "traceEvents": [{event % "5.000"}]}}'
    unknown = f'{{"schemaVersion": 1, "traceEvents": [{event % 17}]}}'
    origins = [chrome_trace.read(text.encode(), source="toy")[2] for text in (old, new, unknown)]
    assert origins == [now * 1000, now * 1000, None]


@pytest.mark.parametrize(("line", "shown"), [("--source torch", "Torch()"), ("--source local", "None")])
def test_the_magic_chooses_it(line, shown):
    from tpunb.magic import TpupointMagics, _capture_arguments

    options = TpupointMagics.tpupoint.parser.parse_args(line.split())
    assert repr(_capture_arguments(options)["source"]) == shown


def test_it_cannot_be_combined_with_other_machines():
    from IPython.core.error import UsageError

    from tpunb.magic import TpupointMagics, _capture_arguments

    for other in ("--address a:1", "--tpu bert"):
        options = TpupointMagics.tpupoint.parser.parse_args(f"--source torch {other}".split())
        with pytest.raises(UsageError, match="cannot be combined with --source"):
            _capture_arguments(options)


@pytest.mark.live
def test_real_pytorch_is_captured(tmp_path):
    pytest.importorskip("torch")
    code = f"""
import torch
import tpunb as tp
model, rows = torch.nn.Linear(64, 64), torch.ones(32, 64)
with tp.capture({str(tmp_path / "run")!r}, schedule=tp.Schedule.continuous(window=0.3)) as run:
    for i in range(2000):
        with run.step(i):
            model(rows).sum().backward()
steps = tp.steps(tp.load(run))
print(len(steps), len(steps.full()) > 20, "aten::addmm" in set(steps.full().ops["op"].cast(str)))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2000", "True", "True"]


def test_filters_of_warnings_that_the_program_sets_while_a_window_waits_stay(monkeypatch):
    install(monkeypatch)
    source = tp.sources.Torch()
    source.boundary()
    with warnings.catch_warnings(record=True) as seen, ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("always")
        window = pool.submit(source.window, 0.01)
        while not source.is_due:
            time.sleep(0.001)
        warnings.warn("of the program", UserWarning, stacklevel=1)
        warnings.filterwarnings("ignore", message="tiresome")
        while not window.done():
            source.boundary()
            time.sleep(0.001)
        assert "tiresome" in str(warnings.filters[0])
    assert [str(each.message) for each in seen] == ["of the program"]
