"""Remedies that are tried on a program that is not changed: `tpunb try`."""

import gc
import json
import math
import os
import random
import shutil
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
from capture_loops import until
from stand_in import StandIn

import tpunb as tp
from tpunb.analysis import CAUSES, advice
from tpunb.analysis.advice import candidates
from tpunb.instrument import registry, remedies
from tpunb.io import run_folder
from tpunb.io.run_folder import COMMAND, TRIED
from tpunb.mcp_server import RunTools
from tpunb.profiler import child_capture
from tpunb.training import tried_process
from tpunb.training.tried_process import Guard, Plan
from tpunb.tuning import trial
from tpunb.tuning import tried as trials
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.tried import Tried

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def changed():
    with ExitStack() as stack:
        yield lambda name: remedies.CHANGES[remedies.Trial[name]].apply(stack)


# -- what is changed ---------------------------------------------------------------------------------------------------


def test_remedies_and_changes_name_each_other():
    named = {remedy.trial for cause in CAUSES for remedy in cause.remedies} - {None}
    assert named == {*remedies.CHANGES} - {remedies.Trial.NONE}


@pytest.mark.live
def test_a_loader_gets_workers_and_gives_the_same_batches(changed):
    data = pytest.importorskip("torch.utils.data")
    before = [[*map(int, batch)] for batch in data.DataLoader(range(10), batch_size=4)]
    changed("WORKERS")
    loader = data.DataLoader(range(10), batch_size=4)
    assert (loader.num_workers, loader.persistent_workers) == (2, True)
    assert [[*map(int, batch)] for batch in loader] == before


def test_data_without_indices_and_own_workers_stay(changed):
    data = pytest.importorskip("torch.utils.data")

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    changed("WORKERS")
    assert data.DataLoader(Stream()).num_workers == 0
    assert data.DataLoader(range(3), num_workers=1).num_workers == 1


def test_workers_are_kept_where_there_are_some(changed):
    data = pytest.importorskip("torch.utils.data")
    changed("KEPT_WORKERS")
    assert data.DataLoader(range(3), num_workers=1).persistent_workers
    assert not data.DataLoader(range(3)).persistent_workers


def test_rows_of_tensors_are_read_at_once(changed):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    before = [*loader]
    changed("ROWS_AT_ONCE")
    for one, other in zip(before, loader, strict=True):
        assert all(map(torch.equal, one, other))


def test_settings_of_pytorch(changed):
    torch = pytest.importorskip("torch")
    changed("ALL_THREADS")
    threads = torch.get_num_threads()
    changed("NO_ANOMALY_DETECTION")
    torch.set_num_threads(threads + 1)
    torch.autograd.set_detect_anomaly(True)
    assert torch.get_num_threads() == threads
    assert not torch.is_anomaly_enabled()


def test_the_first_model_that_trains_is_compiled(changed, monkeypatch):
    torch = pytest.importorskip("torch")
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(self))
    changed("COMPILED_MODULE")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    torch.nn.ReLU()(torch.ones(2))  # has nothing to train
    model.eval()(torch.ones(2))
    for _ in range(2):
        model.train()(torch.ones(2))
    assert compiled == [model]


def test_images_are_channels_last(changed):
    torch = pytest.importorskip("torch")
    model, images = torch.nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8)
    before = model(images)
    changed("CHANNELS_LAST")
    for _ in range(2):
        after = model(images)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert after.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(after, before)


def test_one_number_of_ten_is_read(changed):
    torch = pytest.importorskip("torch")
    changed("RARE_READS")
    tensors = [torch.tensor(float(number)) for number in range(12)]
    read = [(each.item(), (each + 1).item(), float(-each)) for each in tensors]
    assert read == [(0.0, 1.0, 0.0)] * 10 + [(10.0, 11.0, -10.0)] * 2


def test_one_save_of_ten(changed, tmp_path):
    torch = pytest.importorskip("torch")
    changed("RARE_SAVES")
    for number in range(20):
        torch.save({}, tmp_path / f"{number}.pt")
    assert {path.stem for path in tmp_path.iterdir()} == {"9", "19"}


def test_a_function_of_one_code_is_wrapped_once_and_another_is_not(changed):
    jax = pytest.importorskip("jax")
    changed("WRAPPED_ONCE")
    rate, names = 1.0, []

    def make(rate):
        return jax.jit(lambda x: x * rate)

    names = [make(1.0), make(1.0), make(2.0)]
    assert names[0] is names[1]
    assert names[0] is not names[2]
    assert [float(each(3.0)) for each in names] == [3.0, 3.0, 6.0]
    assert float(jax.jit(lambda x: x + rate)(1.0)) == 2.0


def test_collections(changed):
    changed("NO_COLLECT")
    assert gc.collect() == 0
    changed("NO_COLLECTION")
    assert not gc.isenabled()


def test_collections_are_back_after_the_block():
    with ExitStack() as stack:
        remedies.CHANGES[remedies.Trial.NO_COLLECTION].apply(stack)
    assert gc.isenabled()


def test_fits_of_keras(changed):
    keras = pytest.importorskip("keras")
    for name in ("COMPILED", "RARE_EVALUATION", "CALLED_MODEL", "STEPS_PER_CALL"):
        changed(name)
    evaluations = []

    class Counts(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            evaluations.append(1)

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    x, y = np.ones((64, 2), "float32"), np.ones((64, 1), "float32")
    model.fit(x, y, epochs=5, validation_data=(x, y), verbose=0, callbacks=[Counts()])
    assert not model.run_eagerly
    assert model.steps_per_execution == 16
    assert len(evaluations) == 1
    np.testing.assert_allclose(model.predict(x[:8], verbose=0), model(x[:8]), rtol=1e-6)
    assert model.predict(x, verbose=0).shape == (64, 1)  # two batches


def test_maps_of_tensorflow_give_the_same_elements(changed):
    tf = pytest.importorskip("tensorflow")
    for name in ("PARALLEL_MAPS", "NO_AUTOTUNING"):
        changed(name)
    assert [int(each) for each in tf.data.Dataset.range(20).map(lambda n: n * n)] == [n * n for n in range(20)]


def test_generators_begin_alike(monkeypatch):
    monkeypatch.setattr(registry.Library, "on_import", lambda *_: None)  # other tests draw from TensorFlow's
    before = random.getstate(), np.random.get_state()
    try:
        drawn = []
        for _ in range(2):
            tried_process._seed(ExitStack())
            drawn.append((random.random(), np.random.rand()))
        assert drawn[0] == drawn[1]
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def test_both_ends_name_one_variable():
    assert child_capture.TRIAL == tried_process.TRIAL


@pytest.mark.live
def test_what_a_trial_started_ends_with_it(tmp_path):
    program = f"trap '' INT; sleep 600 & echo $! > {tmp_path}/child; touch {tmp_path}/begun; wait; sleep 600"
    process = subprocess.Popen(["sh", "-c", program], start_new_session=True)
    until((tmp_path / "begun").exists)
    with patch.object(trials, "_STOPS_S", 0.0):
        assert trials._wait(process, 0.0)
    until(lambda: is_over(int((tmp_path / "child").read_text())))


def is_over(process):
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- what a trial may write --------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path, monkeypatch):
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.mkdir()
    (home / "train.py").write_text("x")
    (home / "large.bin").write_bytes(b"y" * 100)
    (home / ".git").mkdir()
    (home / "data" / "deep").mkdir(parents=True)
    kept.mkdir()
    monkeypatch.setattr(trials, "_LARGEST", 50)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    trials._mirror(home, kept / "home")
    return home, kept / "home", Guard(Plan(str(kept), str(kept / "home"), str(home)))


def test_a_folder_is_mirrored(places):
    home, scratch, _ = places
    assert {path.name for path in scratch.iterdir()} == {path.name for path in home.iterdir()}
    assert (scratch / "train.py").read_text() == "x"
    assert not (scratch / "train.py").is_symlink()
    assert (scratch / "large.bin").is_symlink()
    assert (scratch / ".git").is_symlink()
    assert (scratch / "data" / "deep").is_dir()


def test_a_folder_that_holds_its_own_copy_is_mirrored_once(places):
    home, _, _ = places
    (home / "trial").mkdir()
    trials._mirror(home, home / "trial" / "home")
    assert not (home / "trial" / "home" / "trial").exists()
    assert (home / "trial" / "home" / "train.py").exists()


def test_a_folder_of_many_files_is_not_copied(places, monkeypatch):
    home, scratch, _ = places
    monkeypatch.setattr(trials, "_MOST_FILES", 2)
    with pytest.raises(tp.TpunbError, match="over 2 files"):
        trials._mirror(home, scratch.with_name("other"))


def test_a_trial_writes_in_its_folder(places):
    home, scratch, guard = places
    for path in (scratch / "new.pt", scratch / "data" / "x", Path("/dev/null")):
        guard.check(str(path))
    guard.check(str(scratch / "large.bin"))
    (scratch / "large.bin").write_bytes(b"z")
    assert (home / "large.bin").read_bytes() == b"y" * 100
    assert guard.refused == []


@pytest.mark.parametrize("name", ["model.pt", "data/x", ".git/config"])
def test_a_trial_writes_nothing_of_the_user(places, name):
    home, scratch, guard = places
    refused = scratch / name if name.startswith(".git") else home / name
    with pytest.raises(PermissionError, match="--writes-again"):
        guard.check(str(refused))
    assert guard.refused == [str(refused)]


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", ("{}/x", "w", 0o1 | 0o100)),
        ("os.mkdir", ("{}/x", 0o777, -1)),
        ("os.remove", ("{}/train.py", -1)),
        ("os.rename", ("/dev/null", "{}/x", -1, -1)),
        ("shutil.rmtree", ("{}", None)),
    ],
)
def test_what_is_refused(places, event, arguments):
    home, _, guard = places
    given = tuple(each.format(home) if isinstance(each, str) else each for each in arguments)
    with pytest.raises(PermissionError):
        guard.audit(event, given)


@pytest.mark.parametrize("event", ["open", "os.chmod", "os.truncate"])
def test_a_link_that_leads_to_a_file_of_the_user_is_refused(places, tmp_path, event):
    home, _, guard = places
    link = tmp_path / "temporary"
    link.mkdir()
    (link / "to").symlink_to(home / "train.py")
    arguments = (str(link / "to"), "w", 0o1) if event == "open" else (str(link / "to"), 0, -1)
    with pytest.raises(PermissionError):
        guard.audit(event, arguments)
    guard.audit("os.remove", (str(link / "to"), -1))  # of the link alone


def test_reading_is_allowed(places):
    home, _, guard = places
    guard.audit("open", (str(home / "train.py"), "r", 0))
    assert guard.opened(str(home / "train.py"), "r") == str(home / "train.py")
    assert guard.refused == []


def test_a_program_that_is_stopped_before_its_first_step_is_not_said_to_fail():
    first = trials._Outcome(Path("run"), False, "it took no step in 15 s", (), Path("output"))
    with pytest.raises(tp.TpunbError, match="stopped: it took no step in 15 s") as caught:
        trials._check(first)
    assert "--budget" in caught.value.hint


# -- what is said ------------------------------------------------------------------------------------------------------

_FASTER = Tried("T101", "give workers", "with workers", before_s=10.0, after_s=7.0, promised_s=3.5, pairs=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"decision": "faster", "low_s": 2.9, "high_s": 3.1, "output": "equal"},
            "saves 3.0 s of 10.0 s (95 %: 2.9 s to 3.1 s), 3.5 s promised; output equal, bit for bit",
        ),
        (
            {"decision": "not faster", "after_s": 9.9, "output": "differs", "difference": 0.01},
            "no gain: 9.9 s with it, 10.0 s without, 3.5 s promised; output differs by 0.01 of its norm",
        ),
        (
            {"decision": "undecided", "output": "unknown", "note": "the runs were stopped", "loses": "saves"},
            "not certain after 3 of each: 3.0 s of 10.0 s, 3.5 s promised; a larger budget decides; output not "
            "compared: the runs were stopped; without saves",
        ),
        ({"before_s": None, "note": "ValueError: x"}, "failed: ValueError: x"),
    ],
)
def test_outcomes_in_words(changes, words):
    assert Tried(**{**asdict(_FASTER), **changes}).outcome == words


@pytest.mark.parametrize(
    ("after_s", "decision"),
    [([11.0, 11.1], "not faster"), ([6.0, 15.0, 16.0, 5.0, 14.0, 15.0], "undecided"), ([7.0, 7.1, 6.9], "faster")],
)
def test_a_remedy_that_may_save_what_was_promised_is_not_refuted(after_s, decision):
    class Program:
        left = iter(after_s)

        def run(self, change="", seconds=None):
            return trials._Executions([next(self.left) if change else 10.0], [np.ones(1)])

    row = {"trial": "no_collect", "id": "T303", "action": "x", "saves_ps": 3e12}
    tried = trials._Trials(Program(), Program().run(), math.inf, None).of(row)
    assert (tried.decision, tried.pairs) == (decision, len(after_s))


def test_outputs_are_compared_bit_for_bit():
    ones = [np.ones(4, "float32")]
    near = [np.nextafter(ones[0], 2)]
    assert trials._difference(ones, [ones[0].copy()]) == 0
    assert 0 < trials._difference(ones, near) < 1e-6
    assert trials._difference(ones, [np.ones(5, "float32")]) is None
    assert trials._difference([np.full(2, math.nan)], [np.full(2, math.nan)]) == 0


# -- what becomes of it ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    with zipfile.ZipFile(CORPUS / "torch_slow_dataset.zip") as entry:
        entry.extractall(tmp_path)
    return tmp_path


def tries(run, **changes):
    [row] = candidates(tp.phases(run)).filter(trial="workers").to_dicts()
    each = Tried(row["id"], row["action"], "with workers", **{"before_s": 9.0, "after_s": 8.9, "pairs": 3, **changes})
    (run / TRIED).write_text(json.dumps([{**asdict(each), "outcome": each.outcome}]))
    return row["action"]


def test_a_remedy_that_helped_says_how_much(run):
    action = tries(run, decision="faster", output="equal")
    [found] = [each for each in tp.report(run).content["actions"] if each["try"] == action]
    assert found["tried"].startswith("with workers: saves")
    assert found["tried"] in tp.report(run).to_text()
    assert trials.tried(run).select("run", "cause", "decision").rows() == [(run.name, "T101", "faster")]


def test_a_remedy_that_was_refuted_is_advised_no_more(run):
    action = tries(run, decision="not faster")
    assert action not in tp.advise(run)["action"].to_list()
    [refuted] = tp.report(run).content["refuted"]
    assert (refuted["id"], refuted["try"]) == ("T101", action)
    assert refuted["tried"].startswith("no gain: 8.9 s with it, 9.0 s without")
    assert refuted["tried"] in tp.report(run).to_text()
    assert "refuted" in RunTools(str(run.parent)).call("report", {"run": run.name})[0][0]
    assert "Waiting for input" in tp.report(run).content["verdict"]["sentence"]


def test_a_remedy_of_which_a_part_saved_nothing_is_advised_still(run):
    action = tries(run, decision="not faster")
    with patch.object(advice, "_PARTLY", {action}):
        assert action in tp.advise(run)["action"].to_list()
        [found] = [each for each in tp.report(run).content["actions"] if each["try"] == action]
    assert found["tried"].startswith("with workers: no gain")
    assert any(remedy.is_part for remedy in tp.analysis.cause("T101").remedies)


@pytest.mark.live
def test_a_run_ends_beside_a_folder_whose_command_is_a_pipe(tmp_path):
    pytest.importorskip("torch")
    program = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(9):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()"""
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "command.json")
    command = [sys.executable, "-m", "tpunb", "run", "-o", "run", "--", sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300, capture_output=True)
    assert (tmp_path / "run" / "command.json").is_file()


def test_a_remedy_that_was_refuted_is_not_advised_in_later_runs_of_the_program(run):
    action = tries(run, decision="not faster")
    later, last = (run.with_name(f"{run.name}-{name}") for name in ("later", "last"))
    shutil.copytree(run, later, ignore=lambda *_: [TRIED])
    assert action in tp.advise(later)["action"].to_list()
    run_folder.keep_refuted(later, [run])
    assert action not in tp.advise(later)["action"].to_list()
    assert [each["earlier"] for each in run_folder.tried(later)] == [run.name]
    assert trials.tried(later).is_empty()  # it was tried once
    shutil.copytree(run, last, ignore=lambda *_: [TRIED])
    (run / TRIED).unlink()
    tries(run, decision="faster")  # at last
    os.utime(later / TRIED, (0, 0))
    run_folder.keep_refuted(last, [run, later])
    assert action in tp.advise(last)["action"].to_list()


def test_a_run_in_the_folder_of_an_earlier_one_knows_what_was_refuted(tmp_path):
    for number in range(2):
        with tp.capture(tmp_path / "run", source=StandIn()) as capture:
            for step in range(3):
                with capture.step(step):
                    pass
        if not number:
            (tmp_path / "run" / TRIED).write_text('[{"cause": "T101", "action": "x", "decision": "not faster"}]')
    [row] = run_folder.tried(tmp_path / "run")
    assert (row["cause"], row["decision"]) == ("T101", "not faster")


@pytest.mark.live
def test_a_run_of_the_same_command_knows_what_was_refuted(tpunb):
    rows = '[{"cause": "T101", "action": "x", "decision": "not faster"}]'
    commands = {"same": [sys.executable, "train.py"], "other": [sys.executable, "other.py"]}
    for name, command in commands.items():
        folder = tpunb.folder / name
        folder.mkdir()
        (folder / COMMAND).write_text(json.dumps({"command": command, "folder": str(tpunb.folder)}))
        (folder / "run.json").write_text("{}")
        (folder / TRIED).write_text(rows.replace("T101", f"T101 {name}"))
    tpunb("log.txt", "run", "-o", "run", "--", sys.executable, "train.py")
    assert [row["cause"] for row in run_folder.tried(tpunb.folder / "run")] == ["T101 same"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"cause": {}}]', "\0"])
def test_a_damaged_record_of_trials_is_left_out(run, text):
    (run / TRIED).write_text(text)
    assert tp.advise(run).height
    assert trials.tried(run).height <= 1


def test_a_run_without_its_command_says_what_to_type(run):
    with pytest.raises(tp.TpunbError, match="command"):
        trials.try_remedies(run)


_PROGRAM = """
import time, torch
from pathlib import Path

class Slow:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((4,), float(index))

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for x in torch.utils.data.DataLoader(Slow(), batch_size=8, shuffle=True):
    model(x).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
Path({path!r}).write_text("x")
"""


@pytest.fixture
def tpunb(tmp_path):
    """A program that writes to `path`, and the command line in its folder."""
    pytest.importorskip("torch")
    folder = tmp_path / "program"
    folder.mkdir()

    def start(path, *words):
        (folder / "train.py").write_text(_PROGRAM.format(path=str(path)))
        command = [sys.executable, "-m", "tpunb", *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    start.folder = folder
    return start


@pytest.mark.live
def test_a_program_that_writes_elsewhere_is_not_tried(tpunb):
    path = tpunb.folder / "log.txt"
    done = tpunb(path, "try", "--budget", "200s", "--", sys.executable, "train.py")
    assert "a trial would write there again" in done.stderr
    assert str(path) in done.stderr
    assert not path.exists()
    assert not (tpunb.folder / "model.pt").exists()


@pytest.mark.live
@pytest.mark.slow
def test_a_program_is_tried_and_its_files_stay(tpunb):
    tpunb("log.txt", "run", "-o", "run", "--", sys.executable, "train.py")
    assert json.loads((tpunb.folder / "run" / COMMAND).read_text())["command"] == [sys.executable, "train.py"]
    before = {path.name: path.stat().st_mtime_ns for path in tpunb.folder.iterdir() if path.is_file()}
    command = [sys.executable, "-m", "tpunb", "try", "run", "--budget", "100s"]
    done = subprocess.run(command, cwd=tpunb.folder, capture_output=True, text=True, check=False)
    after = {path.name: path.stat().st_mtime_ns for path in tpunb.folder.iterdir() if path.is_file()}
    assert after == before, done.stderr
    [row] = trials.tried(tpunb.folder).filter(change="DataLoaders have two workers, which are kept").to_dicts()
    assert row["output"] == "equal", done.stdout
    assert "output equal, bit for bit" in done.stdout


# -- steps of a job ----------------------------------------------------------------------------------------------------


def decided(self, baseline, candidate):
    return RaceResult("faster", 2.0, 1.8, 2.2, 3)


@pytest.fixture
def quick(monkeypatch):
    """Let the first turn decide, after a few short steps."""
    monkeypatch.setattr(trials.Race, "add", decided)
    monkeypatch.setattr(trial, "_SECONDS", 0.01)


SEEDS = []  # of the next builds


def eager():
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    keras.utils.set_random_seed(SEEDS.pop() if SEEDS else 0)
    x = np.linspace(0, 1, 8192, dtype="float32").reshape(2048, 4)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    return model, tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(64).batch(4)


def collecting():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return (model, torch.optim.SGD(model.parameters(), 0.1)), torch.utils.data.DataLoader(torch.rand(64, 4), 4)


def collects(parts, batch):
    gc.collect()
    model, optimizer = parts
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.live
def test_remedies_are_tried_on_steps_of_a_job(quick, capsys):
    one = tp.tuning.Job(eager)
    model = one.parts[0]
    before = [value.copy() for value in model.get_weights()]
    tuning = tp.tune(one, remedies=["eager steps", "T501"])
    assert {(each.cause, each.change, each.decision, each.output, each.unit) for each in tuning.tried} == {
        ("T301", "the model is compiled", "faster", "equal", "step"),
        ("T501", "16 steps per call", "faster", "equal", "step"),
        ("T301", "torch.compile of the model", "failed", "unknown", "step"),  # of Keras on TensorFlow
    }
    assert "a step" in capsys.readouterr().out
    assert repr(tuning) == "Tuning(T301 faster, T301 failed, T501 faster)"
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.live
def test_jobs_that_vary_are_not_said_to_change(quick, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SEEDS", [3, 2, 1])
    tried = tp.tune(tp.tuning.Job(eager), remedies="T301").tried[0]
    assert tried.output == "not repeatable"


@pytest.mark.live
def test_remedies_are_tried_from_a_checkpoint(quick, tmp_path):
    model, data = eager()
    with tp.checkpointing(tmp_path, every=8):
        model.fit(data, epochs=1, verbose=0, steps_per_epoch=20)
    start = tp.checkpoints(tmp_path)[0]
    tried = tp.tune(tp.tuning.Job(eager), remedies="T301", start=start).tried[0]
    assert (tried.decision, tried.output) == ("faster", "equal")
    with pytest.raises(tp.TpunbError, match="custom loop"):
        tp.tune(tp.tuning.Job(collecting, collects), remedies="T303", start=start)


@pytest.mark.live
def test_what_a_job_does_not_ask_for_is_not_tried(quick):
    tried = tp.tune(tp.tuning.Job(collecting, collects), remedies=["T303", "T306", "T203"]).tried
    assert {each.change: each.decision for each in tried} == {
        "programs are kept from one run to the next": "failed",
        "gc.collect() does nothing": "faster",
        "no garbage collection": "faster",
        "anomalies are not looked for": "failed",
    }
    assert any("ask for nothing" in each.note for each in tried)
    assert any("before a program starts" in each.note for each in tried)
    assert gc.isenabled()


@pytest.mark.live
def test_a_model_that_exists_is_not_compiled_anew(quick):
    tried = tp.tune(*eager(), remedies="T301").tried[0]
    assert tried.note.endswith("give a function that builds the model and its data")


@pytest.mark.live
def test_steps_that_compute_something_else_say_by_how_much(quick):
    def step(parts, batch):
        return collects(parts, batch + gc.isenabled())

    _, changed = tp.tune(tp.tuning.Job(collecting, step), remedies="T303").tried
    assert changed.output == "differs"
    assert changed.difference > 0.001


@pytest.mark.live
def test_what_was_tried_on_a_job_stays_with_the_run(run, quick):
    grouped = tp.phases(run)
    [promised] = candidates(grouped).filter(trial="workers")["saves_ps"]
    (run / TRIED).write_text('[{"cause": "T999", "action": "x"}]')
    [tried] = tp.tune(tp.tuning.Job(collecting, collects), remedies=True, phases=grouped).tried
    assert tried.promised_s == pytest.approx(promised / 1e12 / grouped.steps.count)
    assert [each["cause"] for each in json.loads((run / TRIED).read_text())] == ["T999", "T101"]
    assert any("a step" in each.get("tried", "") for each in tp.report(run).content["actions"])


def test_remedies_need_a_run_or_a_cause():
    with pytest.raises(tp.TpunbError, match="of which run"):
        tp.tune(tp.tuning.Job(collecting, collects), remedies=True)
    with pytest.raises(tp.TpunbError, match="no remedy of these"):
        tp.tune(tp.tuning.Job(collecting, collects), remedies="T601")
    with pytest.raises(ValueError, match="T999"):
        tp.tune(tp.tuning.Job(collecting, collects), remedies=["T999"])
