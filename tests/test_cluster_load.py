"""Many hosts reduced while they are loaded: in this process and on the workers of a Dask cluster."""

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
from simulate.pod import LOSSES, Fault, pod
from simulate.step_program import step_program

import tpunb as tp
from tpunb.errors import NoSteps, install
from tpunb.io import cluster_load, dask_engine, formats, storage
from tpunb.io.host_files import HostFile, distinct, strangers
from tpunb.step_stats.merge_hosts import of_job
from tpunb.testing import toy_steps, toy_window

SAMPLES = Path(__file__).parents[1] / "datasets" / "sample_profiles"
T0, MS = 1_700_000_000_000_000_000, 10**6  # nanoseconds
FAULTS = [
    *(Fault(kind, (number,)) for number, kind in enumerate(LOSSES, start=3)),
    *(Fault("slow chip", (10,), 0.2), Fault("late start", (11,), 0.3)),
]


@pytest.fixture(scope="module")
def program():
    return step_program(toy_steps("a" * 6), collectives=3)


@pytest.fixture(scope="module")
def lossy(program, tmp_path_factory):
    """The files of twelve hosts, of which six cannot be used."""
    folder = tmp_path_factory.mktemp("pod") / "lossy"
    pod(program, hosts=12, chips=2, steps=8, faults=FAULTS, folder=folder)
    return folder


@pytest.fixture
def few(monkeypatch):
    """Profiles of more than two files are reduced, three files at a time."""
    monkeypatch.setattr(formats, "MANY", 2)
    monkeypatch.setattr(cluster_load, "_FILES", 3)


def quietly(path, **options):
    with pytest.warns(UserWarning, match="5 files skipped"):
        return tp.load(path, **options)


def is_same(one, two):
    """Whether two jobs have the same tables, to the row."""
    tables = {name: (getattr(one, name), getattr(two, name)) for name in ("frame", "ops", "devices", "lost")}
    tables |= {f"hosts' {name}": (getattr(one.by_host, name), getattr(two.by_host, name)) for name in ("frame", "ops")}
    tables["collectives"] = one.by_host.collectives, two.by_host.collectives
    different = [name for name, (a, b) in tables.items() if not a.equals(b)]
    assert all(a.height for name, (a, _) in tables.items() if name != "lost")
    return not different and one.by_host.roles == two.by_host.roles, different


def test_what_is_reduced_on_loading_is_what_is_reduced_later(lossy, few, monkeypatch):
    reduced = tp.steps(quietly(lossy))
    assert reduced.frame["step"].to_list() == [*range(8)]
    assert reduced.by_host.roles.keys() == {f"pod-{number:04d}" for number in (0, 1, 2, 7, 9, 10, 11)}
    monkeypatch.setattr(formats, "MANY", 64)
    assert is_same(reduced, of_job(tp.steps(quietly(lossy)))) == (True, [])


@pytest.mark.parametrize("many", [2, 64])
def test_each_lost_host_has_its_reason_and_the_others_are_read(lossy, few, monkeypatch, many):
    monkeypatch.setattr(formats, "MANY", many)
    profile = quietly(lossy)
    job = of_job(tp.steps(profile))
    reasons = dict(job.by_host.lost.iter_rows())
    assert reasons.keys() == {f"pod-{number:04d}{ending}" for number, ending in enumerate(
        ["", ".xplane.pb", ".xplane.pb", ".xplane.pb", ".copy.xplane.pb", ".xplane.pb"], start=3
    )}  # fmt: skip
    assert reasons["pod-0003"] == "no file, but hosts before and after it have one"
    assert reasons["pod-0004.xplane.pb"] == "the file is empty"
    assert all("is cut or corrupt" in reasons[f"pod-000{number}.xplane.pb"] for number in (5, 6))
    assert reasons["pod-0007.copy.xplane.pb"] == "a copy of pod-0007.xplane.pb"
    assert reasons["pod-0008.xplane.pb"] == "of another run: traced 24.0 h after the others"
    assert profile.windows["host"].n_unique() == 7
    assert profile.span_ps < 10**12


def test_raw_events_stay_where_they_are(lossy, few):
    profile = quietly(lossy)
    steps = tp.steps(profile)
    for ask in (lambda: profile.events, lambda: profile.instructions, lambda: steps.layers, lambda: steps.collectives):
        with pytest.raises(tp.TpunbError, match=r"holds no .*: its hosts were reduced to statistics") as caught:
            ask()
        assert caught.value.hint == "load the files of a few hosts"
    assert tp.phases(steps).labels.to_list() == [0] * 8
    assert "7 hosts, 14 TPUs" in repr(profile)


SLOW = {
    "input": [Fault("slow input", (3,), 0.1, every=4)],
    "chip": [Fault("slow chip", (3,), 0.1, every=4)],
    "two": [Fault("slow chip", (3,), 0.1), Fault("late start", (5,), 0.1, every=3)],
    "pause": [Fault("pause", (3,), 0.1), Fault("compile", (7,), 0.1, every=6)],
}


@pytest.fixture(scope="module")
def sound(program, tmp_path_factory):
    """The files of twelve hosts without a fault."""
    folder = tmp_path_factory.mktemp("sound")
    pod(program, hosts=12, chips=2, steps=30, folder=folder)
    return folder


@pytest.mark.parametrize("many", [2, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("faults", SLOW)
def test_slow_hosts_change_no_phase_of_a_pod(program, sound, few, monkeypatch, tmp_path, many, faults):
    monkeypatch.setattr(formats, "MANY", many)
    pod(program, hosts=12, chips=2, steps=30, faults=SLOW[faults], folder=tmp_path)
    found = []
    for folder in (sound, tmp_path):
        steps = tp.steps(tp.load(folder))
        found.append(tp.phases(steps).labels.to_list())
    times = of_job(steps).frame["dur_ps"]
    assert times.max() > 1.2 * times.median()  # all hosts wait in some steps
    assert found[0] == found[1]


def test_no_table_of_a_job_has_a_row_per_host_step_and_operation(lossy, few):
    steps = tp.steps(quietly(lossy))
    hosts, count, ops = 7, 8, steps.ops.select("op", "side").n_unique()
    assert steps.ops.height == count * ops
    assert steps.by_host.ops.height == hosts * ops
    assert steps.by_host.frame.height == hosts * count
    assert steps.by_host.collectives.height == hosts * count * 3
    assert steps.devices.height == 2 * count


def test_files_above_the_limit_are_reduced_and_others_keep_their_events(program, tmp_path):
    pod(program, hosts=65, chips=1, steps=3, folder=tmp_path)
    many = tp.load(tmp_path)
    assert many.stored is not None
    assert many.windows.height == 65
    (tmp_path / "pod-0064.xplane.pb").unlink()
    assert tp.load(tmp_path).stored is None


def window(host, start_ns, first=0, n=4):
    steps = [(first + k, start_ns + k * MS, start_ns + (k + 1) * MS) for k in range(n)]
    return toy_window(
        start_ns, start_ns + n * MS, steps, [("MatMul", begin, begin + MS // 2) for _, begin, _ in steps], host=host
    )


def test_two_sessions_of_one_host_are_one_host(tmp_path, few):
    for session, first in (("s1", 0), ("s2", 10)):
        for host in "ab":
            (tmp_path / session).mkdir(exist_ok=True)
            (tmp_path / session / f"{host}.xplane.pb").write_bytes(window(host, T0 + first * MS, first))
    job = tp.steps(tp.load(tmp_path))
    assert job.frame["step"].to_list() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert set(job.by_host.roles) == {"a", "b"}
    assert job.frame["start_ps"].to_list()[4] == 10 * 10**9
    assert job.by_host.ops.filter(pl.col("op") == "MatMul")["count"].to_list() == [8, 8]
    assert job.windows["window"].to_list() == [0, 1]


def test_hosts_of_one_name_are_kept_apart(tmp_path, few):
    for number in range(40):
        (tmp_path / f"{number:03d}.xplane.pb").write_bytes(window("localhost", T0 + number))
    job = tp.steps(tp.load(tmp_path))
    assert len(job.by_host.roles) == 40
    assert set(job.by_host.roles.values()) == {f"localhost {tmp_path.name} 0 and 39 more"}
    assert job.by_host.frame.height == 160


def test_a_host_without_steps_is_lost_and_the_others_are_read(tmp_path, few):
    for number in range(4):
        n = 4 * (number != 2)
        (tmp_path / f"h{number}.xplane.pb").write_bytes(window(f"h{number}", T0, n=n))
    with pytest.warns(UserWarning, match="1 file skipped: h2.xplane.pb: no steps found"):
        job = tp.steps(tp.load(tmp_path))
    assert set(job.by_host.roles) == {"h0", "h1", "h3"}


def test_a_job_without_steps_says_why_and_what_to_do(tmp_path, few):
    for number in range(4):
        (tmp_path / f"h{number}.xplane.pb").write_bytes(window(f"h{number}", T0, n=0))
    with pytest.warns(UserWarning, match="4 files skipped"):
        job = tp.load(tmp_path)
    with pytest.raises(NoSteps, match=r"holds no steps: 4 files skipped, h0.xplane.pb: no steps found") as caught:
        tp.steps(job)
    assert caught.value.hint.startswith("annotate them: jax.profiler.StepTraceAnnotation")


def test_only_damaged_files_are_an_error_of_the_first(tmp_path, few):
    for number in range(3):
        (tmp_path / f"{number}.xplane.pb").write_bytes(b"")
    with pytest.raises(tp.TpunbError, match=r"0.xplane.pb: the file is empty") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == "check the files: each is empty, damaged or no profile"


def test_a_pod_behind_a_url(lossy, few):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for file in lossy.iterdir():
        memory.pipe(f"/pods/lossy/{file.name}", file.read_bytes())
    job = tp.steps(quietly("memory://pods/lossy"))
    assert is_same(job, tp.steps(quietly(lossy))) == (True, [])
    assert job.source == "memory://pods/lossy"


# -- run folders, one per process ----------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    for number in range(3):
        copy = shutil.copytree(SAMPLES / "keras_cnn", tmp_path / f"process-{number}")
        facts = json.loads((copy / "run.json").read_bytes())  # a millisecond later each: no copy of another
        (copy / "run.json").write_text(json.dumps(facts | {"origin_ns": facts["origin_ns"] + number * MS}))
    return [tmp_path / f"process-{number}" for number in range(3)]


@pytest.mark.parametrize("many", [2, 64])
def test_run_folders_of_one_job_are_one_profile(runs, monkeypatch, many):
    monkeypatch.setattr(formats, "MANY", many)
    profile = tp.load(runs)
    assert profile.windows["host"].unique().sort().to_list() == [f"vm process-{number}" for number in range(3)]
    steps = tp.steps(profile)
    of_one = tp.phases(tp.steps(tp.load(runs[0]))).labelled.sort("step")["phase"].to_list()
    labels = tp.phases(steps).labelled.sort("host", "step")["phase"].to_list()
    assert labels == of_one * (1 if many == 2 else 3)
    assert tp.goodput(tp.phases(steps)).hosts == (1 if many == 2 else 3)
    assert len(of_job(steps).by_host.roles) == 3


# -- names of hosts, and files that are none of the job -------------------------------------------------------------


def file(name, start=T0, *, host="h", session="s", events=9, steps=(), role=""):
    return HostFile(f"{name}.xplane.pb", session, host, start, start + MS, events, frozenset(steps), role)


def test_a_file_is_of_another_run_only_beside_most_others():
    hour = 3_600 * 10**9
    together = [file("a"), file("b", T0 + MS), file("c", T0 + 30 * 10**9), file("d", T0 + 4 * hour)]
    assert strangers(together) == {3: "of another run: traced 4.0 h after the others"}
    assert strangers([file("a"), file("d", T0 + hour)]) == {}  # which of them is?
    assert strangers([file("a"), file("b", T0 + hour), file("c", T0 + 4 * hour)]) == {}
    sessions = [file(name, T0 + hour * (session == "t"), session=session) for session in "st" for name in "abc"]
    assert strangers(sessions) == {}


def test_a_copy_has_a_derived_name_and_the_same_facts():
    assert strangers([file("a"), file("a (1)")]) == {1: "a copy of a.xplane.pb"}
    assert strangers([file("a.copy"), file("a")]) == {1: "a copy of a.copy.xplane.pb"}
    assert strangers([file("a1"), file("a10")]) == {}
    assert strangers([file("a"), file("a.copy", events=8)]) == {}


def test_files_of_one_host_in_two_roles_are_two_hosts():
    numbered = [file("a", steps=[1], session="s"), file("b", steps=[2], session="t")]
    assert distinct(numbered) == ["h", "h"]
    assert distinct([numbered[0], file("b", steps=[2], session="t", role="x")]) == ["h s", "h t"]


# -- on a cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    """A cluster of two processes on loopback."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.live
def test_a_cluster_gives_the_same_to_the_row(lossy, few, client):
    assert is_same(tp.steps(quietly(lossy, client=client)), tp.steps(quietly(lossy))) == (True, [])
    assert is_same(tp.steps(quietly(lossy, client=client.scheduler.address)), tp.steps(quietly(lossy))) == (True, [])


@pytest.mark.live
def test_a_cluster_reduces_few_files_and_run_folders_too(lossy, runs, client):
    files = [lossy / f"pod-000{number}.xplane.pb" for number in range(2)]
    job = tp.steps(tp.load(files, client=client))
    assert set(job.by_host.roles) == {"pod-0000", "pod-0001"}
    assert set(tp.steps(tp.load(runs, client=client)).by_host.roles) == {f"vm process-{number}" for number in range(3)}


@pytest.mark.live
def test_the_slow_host_of_a_pod_is_named_from_files_on_a_cluster(program, client, tmp_path):
    truth = pod(program, hosts=12, chips=2, steps=8, faults=[Fault("slow chip", (3,), 0.2, device=1)], folder=tmp_path)
    found = tp.hosts(tp.steps(tp.load(tmp_path, client=client)))
    first = found.frame.row(0, named=True)
    assert (first["host"], first["cause"], first["device"]) == ("pod-0003", "compute", "/device:TPU:1")
    assert (first["named"], first["recurrence"], first["last"]) == (True, "every step", 1.0)
    assert first["costs_ps"] == pytest.approx(truth.cost_ps(3), rel=0.05)
    assert found.frame["named"].sum() == 1
    here = tp.hosts(tp.steps(tp.load(tmp_path)))  # with raw events
    assert found.frame["host", "costs_ps", "cause"].equals(here.frame["host", "costs_ps", "cause"])


@pytest.mark.live
def test_files_that_workers_do_not_see_are_named(lossy, client):
    hidden = [storage.local(f"/nowhere/{number}.xplane.pb") for number in range(2)]
    for location in hidden:
        location._info.update({"type": "file", "size": 1})
    with pytest.raises(tp.TpunbError, match=r"/nowhere/0.xplane.pb: nothing is at"):
        cluster_load.read(hidden, "pod", "pod", dask_engine.DaskEngine(client))


@pytest.mark.live
def test_workers_of_another_version_are_refused(lossy, client, monkeypatch):
    monkeypatch.setattr(dask_engine, "version", lambda name: "9.9")
    with pytest.raises(
        tp.TpunbError, match=r"^worker tcp://127\S+ has tpunb \S+, polars \S+, this process has"
    ) as caught:
        tp.load(lossy, client=client)
    assert caught.value.hint == "install the same versions on the workers"


@pytest.mark.live
def test_a_scheduler_that_is_not_there_is_an_error_in_one_line(lossy, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_engine, "_CONNECT_S", 0.3)
    with pytest.raises(tp.TpunbError, match=r"the scheduler tcp://127.0.0.1:9 cannot be reached") as caught:
        tp.load(lossy, client="tcp://127.0.0.1:9")
    assert "\n" not in str(caught.value)
    assert "dask scheduler" in caught.value.hint


def test_without_distributed_the_extra_is_named(lossy, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(tp.TpunbError, match="distributed is not installed") as caught:
        tp.load(lossy, client="tcp://127.0.0.1:9")
    assert caught.value.hint == install("dask")


@pytest.mark.parametrize("wrong", [5, object()], ids=["number", "object"])
def test_what_is_no_client_is_refused(lossy, wrong):
    pytest.importorskip("distributed")
    with pytest.raises(TypeError, match=r"The client parameter of load must be a synchronous distributed.Client"):
        tp.load(lossy, client=wrong)


@pytest.mark.live
def test_a_closed_client_and_a_cluster_without_workers_are_named(lossy, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(dask_engine, "_CONNECT_S", 0.3)
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        client = distributed.Client(cluster)
        with pytest.raises(tp.TpunbError, match="has no workers"):
            tp.load(lossy, client=client)
        client.close()
        with pytest.raises(tp.TpunbError, match="the client is closed"):
            tp.load(lossy, client=client)


class Deadly(dask_engine.DaskEngine):
    """An engine without a cluster, in which some files kill their worker."""

    def __init__(self, *names):
        self.names, self.client, self.sizes = names, self, []

    def cancel(self, futures):
        pass

    def _submit(self, chunk):
        class Future:
            def release(self):
                pass

            @staticmethod
            def result():
                if any(Path(str(path)).name.startswith(self.names) for _, path in chunk):
                    raise sys.modules["distributed"].KilledWorker("task", None, 3)
                self.sizes += [len(chunk)]
                return cluster_load.reduced([(number, str(path)) for number, path in chunk], "job")

        return Future()

    def _wait(self, futures):
        pass


def test_a_file_that_kills_its_worker_is_lost_and_those_of_its_part_are_read(program, few, tmp_path):
    pytest.importorskip("distributed")
    pod(program, hosts=9, chips=1, steps=4, folder=tmp_path)
    files = [storage.local(file) for file in sorted(tmp_path.iterdir())]
    engine = Deadly("pod-0004")
    job = tp.steps(cluster_load.read(files, "pod", tmp_path, engine))
    assert job.by_host.lost.rows() == [("pod-0004.xplane.pb", "killed its worker 4 times")]
    assert len(job.by_host.roles) == 8
    assert engine.sizes == [3, 3, 1, 1]  # the files of the killer are read when all else is done
    kept = [file for file in files if "0004" not in str(file)]
    assert is_same(job, tp.steps(cluster_load.read(kept, "pod", tmp_path)))[1] == ["lost"]


KILLER = """
import os
from tpunb.io import storage
def reads(file, *args, read=getattr(storage.read, "real", storage.read)):  # a preload runs twice
    if "0004" in file.name and (not {once} or not os.path.exists({flag!r})):
        open({flag!r}, "w").close()
        os._exit(1)
    return read(file, *args)
reads.real, storage.read = getattr(storage.read, "real", storage.read), reads
"""


@pytest.mark.slow
@pytest.mark.parametrize("once", [True, False], ids=["a worker dies once", "a file kills its workers"])
def test_workers_that_are_killed(program, few, tmp_path, once):
    distributed = pytest.importorskip("distributed")
    pod(program, hosts=9, chips=1, steps=4, folder=tmp_path / "pod")
    script = tmp_path / "killer.py"
    script.write_text(KILLER.format(once=once, flag=str(tmp_path / "killed")))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "preload": [str(script)]}
    lost = nullcontext() if once else pytest.warns(UserWarning, match="pod-0004.xplane.pb: killed its worker 4 times")
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client, lost:
        profile = tp.load(tmp_path / "pod", client=client)
    assert (tmp_path / "killed").exists()
    assert [*profile.skipped] == [("pod-0004.xplane.pb", "killed its worker 4 times")] * (not once)
    files = [storage.local(file) for file in sorted((tmp_path / "pod").iterdir()) if once or "0004" not in file.name]
    expected = tp.steps(cluster_load.read(files, "pod", tmp_path / "pod"))
    assert is_same(tp.steps(profile), expected)[1] == ["lost"] * (not once)
