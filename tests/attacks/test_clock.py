"""The system clock jumps during a run: durations are by the monotonic clock, and the jump is named."""

import ast
import json
import re
import shutil
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from capture_loops import SHORT, traced, train_until, until
from optional import lazy
from stand_in import StandIn

import tpunb as tp
from tpunb.analysis import GoodputRecorder
from tpunb.io import goodput_events

torch, jax, keras = lazy("torch"), lazy("jax"), lazy("keras")
S = 10**12
PACKAGE = Path(tp.__file__).parent
MOMENTS = {  # where the system clock is read, and the moment that it names
    "profiler/recorder.py": "start of a run, beside the monotonic clock",
    "profiler/options.py": "name of a run's folder",
    "profiler/attach.py": "begin of an observation",
    "profiler/standing.py": "since when a training stands still, and when that was seen",
    "io/run_writer.py": "last update of run.json",
    "io/run_storage.py": "age of run.json",
    "io/run_folder.py": "age of run.json",
    "io/standing.py": "age of the last sign of work",
    "io/goodput_events.py": "start of a recorder",
    "training/snapshot.py": "save of a checkpoint",
    "studies/paper/about.py": "day of a recording",
    "testing/fake_profiler.py": "events of a profiler, which records by the system clock",
}


class SystemClock:
    """The system clock of this process, which a test sets."""

    def __init__(self, monkeypatch):
        self.by_s, seconds, nanoseconds = 0, time.time, time.time_ns
        set_clock = {seconds: lambda: seconds() + self.by_s, nanoseconds: lambda: nanoseconds() + self.by_s * 10**9}
        modules = [module for name, module in sys.modules.items() if name == "time" or name.startswith("tpunb")]
        for module in modules:  # also where a function was imported by name
            for name in [name for name, value in vars(module).items() if value is seconds or value is nanoseconds]:
                monkeypatch.setattr(module, name, set_clock[getattr(module, name)])


@pytest.fixture
def system_clock(monkeypatch):
    return SystemClock(monkeypatch)


def loaded(run):
    """Return a run, and what loading it warns of."""
    with pytest.warns(UserWarning, match="the system clock jumped") as caught:
        profile = tp.load(run)
    return profile, "; ".join(str(warning.message) for warning in caught)


def check_times(profile, outer_s):
    """Check that the times of a run fit into the time that it took, in order."""
    frame = profile.stored.frame.sort("step")
    assert frame["step"].to_list() == list(range(len(frame)))
    assert 0 < profile.span_ps <= outer_s * S
    assert (frame["dur_ps"] > 0).all()
    assert (frame["start_ps"].diff().drop_nulls() > 0).all()
    assert frame["start_ps"][0] >= 0
    assert frame["start_ps"][-1] + frame["dur_ps"][-1] <= profile.span_ps
    goodput = tp.goodput(profile)
    assert goodput.frame["time_ps"].sum() == goodput.wall_ps == profile.span_ps
    assert goodput.frame["time_ps"].min() >= 0


@pytest.mark.parametrize("by_s", [-3600, -5, 5, 86_400])
def test_windows_after_a_jump_are_those_of_the_steps_in_them(tmp_path, system_clock, by_s):
    begun_s = time.monotonic()
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=SHORT, keep="all") as run:
        before = train_until(run, lambda: traced(run) >= 5)
        system_clock.by_s, asked = by_s, run._session._requests
        train_until(run, lambda: run.status.windows + run.status.failed >= asked + 5, first=before)
    profile, text = loaded(run)
    check_times(profile, time.monotonic() - begun_s)
    way = {-3600: "back by 60.0 min", -5: "back by 5.0 s", 5: "ahead by 5.0 s", 86_400: "ahead by 24.0 h"}[by_s]
    assert re.search(
        rf"the system clock jumped {way} after [\d.]+ m?s of the run: it was set, or the machine suspended", text
    )
    failed = profile.windows.filter(dur_ps=0)
    assert {*failed["error"]} <= {"the system clock, by which profilers record, jumped"}
    full = tp.steps(profile).full().frame
    assert (full["step"] > before).sum() > 1
    # raw events are on the time line of the steps, whichever clock the profiler read
    events = profile.events.drop_nulls("step_num").select("step_num", begin_ps="start_ps")
    both = full.join(events, left_on="step", right_on="step_num")
    assert len(both) >= len(full)
    assert (both["start_ps"] - both["begin_ps"]).abs().max() < S


def test_a_window_in_which_the_clock_jumps_is_left_out(tmp_path, system_clock):
    class Source(StandIn):
        def window(self, seconds):
            data = super().window(seconds)
            system_clock.by_s = 100
            return data

    with tp.capture(tmp_path / "run", source=Source(), schedule=SHORT) as run:
        train_until(run, lambda: run.status.windows >= 1)
    errors = loaded(run)[0].windows["error"].to_list()
    assert errors[0] == "the system clock, by which profilers record, jumped"
    assert None in errors[1:]


def test_a_run_killed_after_a_jump_has_its_steps(tmp_path, system_clock):
    begun_s = time.monotonic()
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=tp.Schedule.ticks()) as run:
        before = train_until(run, lambda: run.status.steps >= 5)
        system_clock.by_s = -3600
        done = train_until(run, lambda: run.status.steps >= before + 20, first=before)
        left = shutil.copytree(run.path, tmp_path / "left", ignore=shutil.ignore_patterns("ticks.parquet", "parts"))
    profile = tp.load(left)  # the journal alone
    assert profile.stored.frame["step"].to_list() == list(range(done))
    check_times(profile, time.monotonic() - begun_s)


def test_goodput_events_are_as_far_apart_as_they_were(tmp_path, system_clock, monkeypatch):
    class Moment(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(seconds=system_clock.by_s)

    monkeypatch.setattr(goodput_events, "datetime", Moment)
    recorder, begun_s = GoodputRecorder(tmp_path / "events.jsonl"), time.monotonic()
    recorder.record_job_start_time()
    system_clock.by_s = -3600
    recorder.record_step_start_time(0)
    recorder.record_job_end_time()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    times = [next(value for name, value in event.items() if name.endswith("_time")) for event in events]
    assert times == sorted(times)
    assert times[-1] - times[0] <= time.monotonic() - begun_s


def in_torch(run, jump):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for step in range(80):
        if step == 40:
            until(lambda: run.status.windows)
            jump()
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        time.sleep(0.01)
    assert np.isfinite(losses).all()


def in_jax(run, jump):
    step_of = jax.jit(lambda w, x: w - 0.01 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
    weights, data = np.ones((8, 1), "float32"), np.ones((4, 8), "float32")
    for step in range(80):
        if step == 40:
            until(lambda: run.status.windows)
            jump()
        with run.step(step):
            weights = step_of(weights, data)
            time.sleep(0.01)


def in_keras(run, jump):
    class Jump(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.01)
            if batch == 40:
                until(lambda: run.status.windows)
                jump()

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((320, 8)), np.ones((320, 1)), batch_size=4, verbose=0, callbacks=[Jump()])


@pytest.mark.live
@pytest.mark.parametrize(("training", "by_s"), [(in_torch, -3600), (in_jax, 86_400), (in_keras, -3600)])
def test_a_training_across_a_jump_has_its_steps_and_its_length(tmp_path, system_clock, training, by_s):
    def jump():
        system_clock.by_s = by_s

    begun_s = time.monotonic()
    with tp.capture(tmp_path / "run", schedule=tp.Schedule.fixed(window=0.2, every=0.3)) as run:
        training(run, jump)
    outer_s = time.monotonic() - begun_s
    profile, text = loaded(run)
    check_times(profile, outer_s)
    assert len(profile.stored.frame) == 80
    assert profile.span_ps >= 0.8 * S  # eighty sleeps of 10 ms
    assert "the system clock jumped " + ("ahead by 24.0 h" if by_s > 0 else "back by 60.0 min") in text
    assert profile.windows["dur_ps"].is_between(0, outer_s * S).all()


def reads_system_clock(path):
    """Yield the lines of a module that read the system clock."""
    names = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for name in node.names if name.name in ("time", "time_ns"))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from [node.lineno] * (f"{node.value.id}.{node.attr}" in names)


def test_the_system_clock_is_read_for_moments_alone():
    modules = {str(path.relative_to(PACKAGE)): [*reads_system_clock(path)] for path in PACKAGE.rglob("*.py")}
    modules.pop("torchdata/effects.py")  # a table of functions whose values change
    assert {module for module, lines in modules.items() if lines} == {*MOMENTS}
