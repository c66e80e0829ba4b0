"""Workers captured from another process by address, all at once, also while one misbehaves."""

import asyncio
import json
import re
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from capture_loops import facts, train, until
from fake_cloud import FakeCloud
from training_worker import STEP_NS, worker
from warm_python import warm_python

import tpunb as tp
from tpunb.profiler.capture import TPU, Address, Schedule
from tpunb.profiler.sources import address as address_module
from tpunb.testing import FakeProfiler

pytestmark = pytest.mark.live

SHORT = Schedule.continuous(window=0.1)
IPS = ["127.0.0.1", "127.0.0.2"]


@pytest.fixture
def workers():
    """Start stand-ins by what they do wrong; all end with the test."""
    with ExitStack() as stack:
        began_ns = time.time_ns()

        def start(*misbehaviours, **more):
            return [
                stack.enter_context(FakeProfiler(worker(f"vm-{i}", began_ns), misbehave=how, **more))
                for i, how in enumerate(misbehaviours)
            ]

        yield start


def of(*stand_ins):
    return Address(*(stand_in.address for stand_in in stand_ins))


def came(run, more=3):
    """Wait for so many more windows."""
    goal = run.status.windows + more
    until(lambda: run.status.windows >= goal)


def errors(profile, stand_in):
    return profile.windows.filter(pl.col("host") == stand_in.address)["error"]


def test_a_worker_at_its_address_is_captured(tmp_path, workers):
    (one,) = workers(None)
    with tp.capture(tmp_path / "run", source=of(one), schedule=SHORT) as run:
        came(run)
    profile = tp.load(run)
    steps = tp.steps(profile)
    assert set(steps.frame["host"]) == {one.address}
    numbers = steps.full().frame["step"]
    assert numbers.len() >= 15
    assert numbers.is_unique().all()
    assert steps.full().frame["dur_ps"].unique().to_list() == [STEP_NS * 1000]
    assert steps.full().ops.select("step", "op", "count").sort("step").rows() == [(n, "op_of_vm-0", 1) for n in numbers]
    apart = steps.full().frame.select(pl.col("start_ps") - pl.col("step") * STEP_NS * 1000).to_series()
    assert apart.n_unique() == 1  # the windows lie right in one time
    assert facts(run)["workers"] == [one.address]
    assert len(tp.phases(steps)) == 1


def test_several_workers_are_captured_side_by_side_into_one_run(tmp_path, workers):
    three = workers(None, None, None)
    with tp.capture(tmp_path / "run", source=of(*three), schedule=SHORT, keep="all") as run:
        came(run)
    profile = tp.load(run)
    hosts = [one.address for one in three]
    assert set(profile.windows["host"]) == set(hosts)
    assert profile.windows.height == 3 * profile.windows["window"].n_unique()
    assert profile.windows["error"].null_count() == profile.windows.height
    ops = tp.steps(profile).ops.select("host", pl.col("op").cast(pl.String)).unique().sort("host").rows()
    assert ops == sorted((host, f"op_of_vm-{i}") for i, host in enumerate(hosts))
    assert repr(profile).startswith("Profile(run, 3 hosts")
    assert len(list(Path(run).glob("plugins/profile/00000/*.xplane.pb"))) == 3
    assert set(profile.events["host"].cast(pl.String)) == set(hosts)
    assert set(tp.steps(profile).full().layers["host"].cast(pl.String)) == set(hosts)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("silent", "no answer|DEADLINE_EXCEEDED"),
        ("dies", "UNAVAILABLE"),
        ("busy", "Another profiling session active"),
        ("unauthorised", "UNAUTHENTICATED"),
        ("empty", "its answer is empty"),
    ],
)
def test_a_worker_that_fails_is_named_and_the_windows_of_the_others_are_all_there(
    tmp_path, workers, monkeypatch, how, reason
):
    monkeypatch.setattr(address_module, "LIMITS", replace(address_module.LIMITS, worker_trial_s=0.2))
    good, bad, fine = workers(None, how, None)
    source = of(good, bad, fine)
    if how == "silent":
        client, ask = source._workers[1].client, source._workers[1].client.window
        client.window = lambda seconds, session, timeout: ask(seconds, session, timeout=0.5)
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        came(run)
        train(run, range(10))
    profile = tp.load(run)
    assert errors(profile, bad).null_count() == 0
    assert re.search(f"{bad.address}: .*({reason})", errors(profile, bad)[0])
    for one in (good, fine):
        assert errors(profile, one).null_count() == errors(profile, one).len() >= 3
        assert len(tp.steps(profile).full().frame.filter(pl.col("host") == one.address)) >= 10
    assert facts(run)["state"] == "finished"
    ticks = profile.stored.frame.filter(pl.col("traced") == "none")
    assert ticks["step"].to_list() == list(range(10))


def test_a_worker_that_is_late_keeps_the_run_whole(tmp_path, workers):
    good, late = workers(None, None)
    late.misbehave, late.late_s = "late", 0.5
    with tp.capture(tmp_path / "run", source=of(good, late), schedule=SHORT) as run:
        came(run)
    profile = tp.load(run)
    assert profile.windows["error"].null_count() == profile.windows.height
    assert set(tp.steps(profile).full().frame["host"]) == {good.address, late.address}


@pytest.mark.slow
def test_a_window_past_the_services_limit_of_events_is_reduced_as_far_as_it_goes(tmp_path, workers):
    good, crowded = workers(None, "over-size")
    with tp.capture(tmp_path / "run", source=of(good, crowded), schedule=SHORT) as run:
        came(run, 1)
        crowded.misbehave = None
        came(run, 1)
    profile = tp.load(run)
    most = profile.windows.filter(pl.col("host") == crowded.address)["events"].max()
    assert most == 1_250_000
    assert errors(profile, crowded).null_count() == errors(profile, crowded).len()
    assert set(tp.steps(profile).full().frame["host"]) == {good.address, crowded.address}


def test_a_service_that_dies_in_the_run_and_comes_back_is_watched_again(tmp_path, workers):
    (one,) = workers(None)
    with tp.capture(tmp_path / "run", source=of(one), schedule=SHORT) as run:
        came(run)
        train(run, range(10))
        one.stop()
        failed = run.status.failed
        until(lambda: run.status.failed > failed)
        train(run, range(10, 20))
        one.start()
        came(run)
        train(run, range(20, 30))
    profile = tp.load(run)
    gone = profile.windows.with_columns(failed=pl.col("error").is_not_null()).sort("window")["failed"]
    assert gone.rle().struct.field("value").to_list() == [False, True, False]
    assert re.match(re.escape(one.address), errors(profile, one).drop_nulls()[0])
    ticks = profile.stored.frame.filter(pl.col("traced") == "none")
    assert ticks["step"].to_list() == list(range(30))
    assert facts(run)["state"] == "finished"


def test_where_no_worker_answers_the_capture_does_not_begin(tmp_path, workers, monkeypatch):
    (one,) = workers(None)
    one.stop()
    with (
        monkeypatch.context() as patch,
        pytest.raises(tp.TpunbError, match=f"no profiler service answered .* at {one.address}"),
    ):
        patch.setattr(address_module, "LIMITS", replace(address_module.LIMITS, ready_s=0.5))
        with tp.capture(tmp_path / "run", source=of(one)):
            pass
    one.start()
    with tp.capture(tmp_path / "run", source=of(one), schedule=SHORT) as run:
        came(run, 1)


def test_stop_ends_the_windows_of_all_workers_and_keeps_them(tmp_path, workers):
    two = workers(None, None)
    with tp.capture(tmp_path / "run", source=of(*two), schedule=Schedule.continuous(window=50)) as run:
        for one in two:
            one.wait_asked()
        time.sleep(0.2)  # something to be seen
        run.stop()
    profile = tp.load(run)
    assert profile.windows["dur_ps"].max() < 50 * 10**12
    assert len(tp.steps(profile).full().frame) >= 10


def test_a_tpu_by_its_name_is_captured_with_all_its_workers(tmp_path, workers, monkeypatch):
    pytest.importorskip("cloud_tpu_client")
    metadata = pytest.importorskip("google.auth.compute_engine._metadata")
    cloud = FakeCloud()
    try:
        for name in ("GOOGLE_APPLICATION_CREDENTIALS", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        # read from the environment when it was imported, which was maybe before this test
        monkeypatch.setattr(metadata, "_GCE_METADATA_HOST", cloud.host)
        (one,) = workers(None)
        bind = asyncio.start_server
        monkeypatch.setattr(asyncio, "start_server", lambda join, _, port: bind(join, "127.0.0.2", port))
        with FakeProfiler(worker("vm-1", time.time_ns()), port=one.port):
            cloud.add("pod", tensorflowVersion="2.18", networkEndpoints=[{"ipAddress": ip} for ip in IPS])
            with tp.capture(tmp_path / "run", source=TPU("pod", port=one.port), schedule=SHORT) as run:
                came(run)
    finally:
        cloud.close()
    run_json = facts(run)
    assert run_json["workers"] == [f"{ip}:{one.port}" for ip in IPS]
    assert run_json["tpu"] == f"TPU('pod', port={one.port})"
    assert set(tp.steps(tp.load(run)).full().frame["host"]) == {*run_json["workers"]}


# -- this very process at its address, and another one beside it ------------------------------------------------------

OWN = """
import json, os, socket, subprocess, sys, time
import tpunb as tp
from tpunb.profiler.capture import Address, Schedule

framework, folder = sys.argv[1], sys.argv[2]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
if framework == "jax":
    import jax
    server = jax.profiler.start_server(port)
    compute = jax.jit(lambda x: x @ x)
    data = jax.numpy.ones((64, 64))
    mark = lambda n: jax.profiler.StepTraceAnnotation("other", step_num=n)
else:
    import tensorflow as tf
    tf.profiler.experimental.server.start(port)
    compute = tf.function(lambda x: x @ x)
    data = tf.ones((64, 64))
    mark = lambda n: tf.profiler.experimental.Trace("other", step_num=n, _r=1)


def step():
    compute(data)
    time.sleep(0.004)


step()
if folder == "-":  # the other process: it trains on and on, and says where
    print(port, flush=True)
    for n in range(10_000, 1_000_000):
        with mark(n):
            step()

addresses, other = [f"127.0.0.1:{port}"], None
if sys.argv[3] == "beside":
    other = subprocess.Popen([*sys.argv[4:], __file__, framework, "-"], stdout=subprocess.PIPE)
    addresses.append(f"127.0.0.1:{int(other.stdout.readline())}")
try:
    with tp.capture(folder, source=Address(*addresses), schedule=Schedule.continuous(window=0.4)) as run:
        number, end = 500, time.monotonic() + 120
        while run.status.windows < 4 or run._session.recorder.full < 60:
            assert time.monotonic() < end, run.status
            with run.step(number, "mine"):
                step()
            number += 1
finally:
    if other is not None:
        other.kill()
        other.wait()
print(json.dumps({"host": socket.gethostname(), "addresses": addresses, "steps": number - 500}))
"""


def captured(tmp_path, framework, beside):
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    script = tmp_path / "train.py"
    script.write_text(OWN)
    command = [*warm_python(), str(script), framework, str(tmp_path / "run"), beside, *warm_python()]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert seen.returncode == 0, seen.stderr
    return json.loads(seen.stdout), tp.load(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_this_process_at_its_own_address_is_one_host_with_the_steps_of_its_own_clock(tmp_path, framework):
    report, profile = captured(tmp_path, framework, "alone")
    frame = profile.stored.frame
    assert set(frame["host"]) == {report["host"]} == set(profile.windows["host"])
    assert sorted(frame["step"]) == list(range(500, 500 + report["steps"]))
    assert set(frame["kind"]) == {"mine"}
    assert len(tp.steps(profile).full()) >= 60
    assert profile.windows["error"].null_count() == profile.windows.height


@pytest.mark.parametrize("framework", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_another_process_of_this_machine_is_another_host_and_its_steps_are_its_own(tmp_path, framework):
    report, profile = captured(tmp_path, framework, "beside")
    _, other = report["addresses"]
    frame = profile.stored.frame
    assert set(frame["host"]) == {report["host"], other}
    local, theirs = frame.filter(pl.col("host") == report["host"]), frame.filter(pl.col("host") == other)
    assert sorted(local["step"]) == list(range(500, 500 + report["steps"]))
    assert set(local["kind"]) == {"mine"}
    assert (local["traced"] == "full").any()
    assert theirs["step"].min() >= 10_000
    assert set(theirs["kind"]) == {"other"}
