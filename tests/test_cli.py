"""``tpunb run``: what a program sees of it, which of its processes are runs, and what is printed at the end."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from capture_loops import facts, train
from stand_in import StandIn

import tpunb as tp
from tpunb import cli
from tpunb.analysis.verdict import verdict
from tpunb.io.run_writer import RunWriter
from tpunb.profiler import child_capture

ROOT = Path(__file__).parents[1]
MARKS = ("TPUNB", "WORLD_SIZE", *child_capture._RANKS)
needs_keras = pytest.mark.skipif(not (find_spec("keras") and find_spec("jax")), reason="keras or jax is not installed")


@pytest.fixture
def folder(tmp_path):
    """A folder with a stand-in for PyTorch beside the programs, whose import takes no time."""
    (tmp_path / "torch.py").write_text("")
    return tmp_path


def environment(*paths):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(MARKS)}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])), "KERAS_BACKEND": "jax"}


def start(folder, *words, **more):
    more = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    return subprocess.Popen([sys.executable, *words], cwd=folder, **more)


def ended(process, text=None):
    """Return what a process printed, and its return code."""
    out, errors = process.communicate(text, timeout=600)
    return out, errors, process.returncode


def run(folder, *words, options=("-o", "run"), **more):
    """Run a program under ``tpunb run``."""
    return ended(start(folder, "-m", "tpunb", "run", *options, "--", sys.executable, *words, **more))


def written(folder, code, name="program.py"):
    (folder / name).write_text(code)
    return name


# -- usage ------------------------------------------------------------------------------------------------------------

WRONG = {
    "walk -- python": "unknown command 'walk'",
    "run": "no program in 'tpunb run'",
    "run --quiet --": "no program in 'tpunb run --quiet --'",
    "run --nonsense -- python": "unrecognized arguments: --nonsense",
    "run --window x -- python": "invalid float value",
    "run --window 0 -- python": "The window parameter of Schedule",
    "run --budget 0.1 --window 2 -- python": "--budget cannot be combined with --window",
    "run --threshold 0.5 -- python": "unrecognized arguments: --threshold",
    "run -o docs -- python": "docs",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_is_one_line_and_runs_nothing(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs", "text").touch()
    assert cli.main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert WRONG[line] in shown.err
    assert shown.err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["docs"]


SAY = {  # what a wrong use is answered by: the words to type next
    "reprot good": "tpunb report good",
    "good": "tpunb report good",
    "train.py --epochs 3": "tpunb run -- python train.py --epochs 3",
    "run": "tpunb run [options] [--] train.py [arguments]",
    "report nowhere --json": "tpunb report good --json",
    "report empty": "tpunb report good",
    "report train.py": "tpunb report good",
    "report several": "tpunb report several/again",
    "report cut": "tpunb report good",
    "compare good nowhere": "tpunb run -- python train.py",
    "compare several/again nowhere": "tpunb compare several/again good",
    "watch nowhere": "tpunb watch .",
    "runs": "tpunb runs .",
    "runs empty": "tpunb runs .",
    "try --": "tpunb try -- python train.py",
    "try good": "tpunb try good -- python train.py",
    "attach trainer": "pgrep -af python",
}


@pytest.mark.live
@pytest.mark.parametrize("line", SAY)
def test_wrong_use_is_one_line_that_says_what_to_type(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "cut"):
        Path(name).mkdir()
    for name in ("good", "several/again"):
        shutil.copytree(ROOT / "datasets" / "sample_profiles" / "keras_cnn", name)
    for name in ("train.py", "cut/run.json"):
        Path(name).touch()
    assert cli.main(line.split()) != 0
    shown = capsys.readouterr().err
    assert SAY[line] in shown
    assert shown.count("\n") == 1


def test_help_lists_the_options_with_examples(capsys):
    assert cli.main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("tpunb run -o runs/bert -- python -m bert.train", "--output DIR", "--budget", "--keep", "--quiet"):
        assert word in shown
    assert "%" not in shown.replace("2 %", "")
    assert len(shown.splitlines()) < 60


# -- ranks ------------------------------------------------------------------------------------------------------------

RANKS = {
    "": "",
    "RANK=0 WORLD_SIZE=1": "",
    "RANK=0 WORLD_SIZE=2": "0",
    "RANK=01": "1",
    "JAX_PROCESS_ID=3": "3",
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4": "2",
    "SLURM_PROCID=0": "",
    "SLURM_PROCID=0 SLURM_NTASKS=2": "0",
}


@pytest.mark.parametrize("variables", RANKS)
def test_the_rank_is_that_of_the_launcher(variables, monkeypatch):
    for name in (*child_capture._RANKS, *child_capture._RANKS.values()):
        monkeypatch.delenv(name, raising=False)
    for each in variables.split():
        monkeypatch.setenv(*each.split("="))
    assert child_capture.rank() == RANKS[variables]


def test_a_folder_of_ranks_loads_as_one_job(tmp_path):
    for name, steps in (("rank0", 4), ("rank1", 4), ("rank10", 3), ("rank0-1", 9), ("other", 9)):
        with tp.capture(tmp_path / "job" / name, source=StandIn(), schedule=tp.Schedule.ticks()) as capture:
            train(capture, range(steps))
    job = tp.load(tmp_path / "job")
    assert (job.name, job.source) == ("job", tmp_path / "job")
    assert sorted(job.stored.frame.group_by("host").len()["len"]) == [3, 4, 4]


def test_an_earlier_job_in_the_folder_is_renamed(tmp_path):
    for rank in (0, 1):
        RunWriter(tmp_path / "job" / f"rank{rank}").facts({"name": f"rank{rank}"})
    assert cli._make_room(str(tmp_path / "job")) == str(tmp_path / "job-1")
    assert sorted(path.name for path in (tmp_path / "job-1").iterdir()) == ["rank0", "rank1"]
    with tp.capture(tmp_path / "job" / "rank0", source=StandIn()), pytest.raises(tp.TpunbError, match="being written"):
        cli._make_room(str(tmp_path / "job"))


# -- what the program sees --------------------------------------------------------------------------------------------

STATE = """
import json, os, sys
import torch
where = sys.stdin.read()
hidden = {"PYTHONPATH", "TPUNB_RUN_ANCESTOR", "KINETO_LOG_LEVEL"}
print(json.dumps([where, sys.argv, __name__, globals().get("__file__"), sys.path, torch.__file__,
    type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__,
    getattr(sys, "mark", None), sys.stdout.isatty(), sys.flags.ignore_environment,
    {name: value for name, value in os.environ.items() if name not in hidden}]))
sys.exit(3)
"""


@pytest.mark.live
def test_the_program_sees_what_it_sees_without_a_capture(folder):
    written(folder, STATE)
    (folder / "user").mkdir()
    written(folder / "user", "import sys\nsys.mark = 'of the user'\n", "sitecustomize.py")
    for number, words in enumerate((["program.py", "--x", "a b"], ["-m", "program", "--", "y"], ["-c", STATE, "z"])):
        more = {"env": environment(folder / "user"), "stdin": subprocess.PIPE}
        plain = ended(start(folder, *words, **more), "typed")
        process = start(
            folder, "-m", "tpunb", "run", "-o", f"run{number}", "--quiet", "--", sys.executable, *words, **more
        )
        captured = ended(process, "typed")
        assert json.loads(captured[0])[8] == "of the user"
        assert captured == plain
        assert captured[2] == 3
        assert facts(folder / f"run{number}")["state"] == "finished"


PROCESSES = """
import multiprocessing, os, subprocess, sys
import torch

def work(x):
    import torch
    return x + 1

if __name__ == "__main__":
    helper = [sys.executable, "-c", "import torch"]
    subprocess.run(helper, check=True)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(work, [1]) == [2]
    size = int(sys.argv[1])
    jobs = [{"RANK": str(rank), "WORLD_SIZE": str(size)} for rank in range(size)]
    ranks = [subprocess.Popen(helper, env=os.environ | job) for job in jobs]
    assert [rank.wait() for rank in ranks] == [0] * len(ranks)
    raise KeyError("at the end")
"""


@pytest.mark.live
def test_workers_and_helpers_are_no_runs(folder):
    _, errors, code = run(folder, written(folder, PROCESSES), "0")
    assert code == 1
    assert "KeyError: 'at the end'" in errors
    assert "sitecustomize" not in errors.partition("KeyError")[0]
    assert "the program ended with exit code 1" in errors
    assert errors.endswith("to see it: tpunb report run\n")
    assert [str(path.parent.relative_to(folder)) for path in folder.rglob("run.json")] == ["run"]
    assert facts(folder / "run")["state"] == "ended by KeyError"


@pytest.mark.live
def test_each_rank_is_a_run_of_one_job(folder):
    _, errors, _ = run(folder, written(folder, PROCESSES), "2")
    assert sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("rank*/run.json")) == [
        "run/rank0",
        "run/rank1",
    ]
    assert errors.endswith("to see it: tpunb report run\n")
    assert tp.load(folder / "run").name == "run"


@pytest.mark.live
def test_two_programs_of_a_shell_are_two_runs(folder):
    command = (
        f"{sys.executable} -c 'import torch'; {sys.executable} -c 'import torch'; {sys.executable} -c 'import json'"
    )
    _, errors, code = ended(start(folder, "-m", "tpunb", "run", "-o", "run", "--", "sh", "-c", command))
    assert code == 0
    assert "other processes were captured too: run-2" in errors
    assert sorted(path.parent.name for path in folder.rglob("run.json")) == ["run", "run-2"]


@pytest.mark.live
def test_a_program_without_a_framework_is_named_in_one_line(folder):
    out, errors, code = run(folder, "-c", "print('fine')")
    assert (out, code) == ("fine\n", 0)
    message = "nothing was captured: no process that can be captured imported jax, keras, tensorflow or torch"
    assert errors.startswith(f"tpunb: {message}; ")
    assert errors.count("\n") == 1
    assert not (folder / "run").exists()
    out, errors, code = ended(start(folder, "-m", "tpunb", "run", "--", "no-such-program"))
    assert (out, code) == ("", 127)
    assert errors.startswith("tpunb: cannot run 'no-such-program': No such file or directory; ")


@needs_keras
@pytest.mark.live
def test_a_terminal_gets_the_first_sentence_too(tmp_path):
    code = "import jax\nstep, x = jax.jit(lambda x: x @ x), jax.numpy.ones((64, 64)) / 64\n"
    written(tmp_path, f"{code}for _ in range(50):\n    x = step(x).block_until_ready()\n")
    terminal, end = pty.openpty()
    process = start(tmp_path, "-m", "tpunb", "run", "-o", "run", "program.py", stderr=end)
    process.communicate(timeout=600)
    os.close(end)
    shown = b""
    with suppress(OSError):  # of Linux, at the end of a terminal that nobody writes to
        while part := os.read(terminal, 1024):
            shown += part
    os.close(terminal)
    recorded, sentence = [line.removeprefix("tpunb: ") for line in shown.decode().splitlines() if "tpunb: " in line]
    assert recorded.endswith("to see it: tpunb report run")
    assert sentence == verdict(tp.phases(tp.load(tmp_path / "run"))).sentence


@pytest.mark.live
@pytest.mark.parametrize("words", [["program.py"], ["--", "program.py"], [sys.executable, "program.py"]])
def test_a_program_needs_no_dashes_and_no_interpreter(folder, words):
    written(folder, "import sys\nprint(sys.executable, sys.argv[1:])\n")
    shown, _, code = ended(start(folder, "-m", "tpunb", "run", "-o", "run", *words, "--epochs", "3", "--", "-o", "x"))
    assert (shown, code) == (f"{sys.executable} {['--epochs', '3', '--', '-o', 'x']}\n", 0)


@pytest.mark.live
def test_a_capture_that_cannot_begin_leaves_the_program_alone(folder):
    written(folder, "raise ImportError('not here')\n", "tpunb.py")
    program = written(folder, "import torch\nprint('fine')\n")
    out, errors, code = ended(start(folder, "-P", "-m", "tpunb", "run", "-o", "run", "--", sys.executable, program))
    assert (out, code) == ("fine\n", 0)
    first, second = errors.splitlines()
    assert first.startswith("tpunb: the capture of process ")
    assert first.endswith(" failed: ImportError: not here")
    assert second.startswith("tpunb: nothing was captured: ")


@pytest.mark.live
def test_a_program_may_capture_itself(folder):
    code = "import torch, tpunb as tp\nwith tp.capture('mine'):\n    print('fine')\n"
    out, errors, code = run(folder, written(folder, code), options=("-o", "run", "--quiet"))
    assert (out, errors, code) == ("fine\n", "", 0)
    assert {name: facts(folder / name)["state"] for name in ("run", "mine")} == {"run": "finished", "mine": "finished"}


SIGNALS = """
import signal, sys, time
import torch
seen = []
for number in (signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, _: seen.append(number))
print("ready", flush=True)
while len(seen) < 2:
    time.sleep(0.01)
print(seen, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
time.sleep(600)
"""


@pytest.mark.live
def test_signals_reach_the_program_once_and_end_both_alike(folder):
    words = ["-m", "tpunb", "run", "-o", "run", "--quiet", "--", sys.executable, written(folder, SIGNALS)]
    process = start(folder, *words)
    assert process.stdout.readline() == "ready\n"
    for number in (signal.SIGINT, signal.SIGUSR1):
        process.send_signal(number)
        time.sleep(0.2)  # in this order, or the list is another
    assert process.stdout.readline() in ("[2, 10]\n", "[10, 2]\n")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == ("", "", -signal.SIGTERM)
    assert facts(folder / "run")["state"] == "running"  # as of any run that is killed


TERMINATED = """
import signal, sys
import torch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.live
def test_a_program_that_is_asked_to_end_is_named_in_one_line(folder):
    process = start(folder, "-m", "tpunb", "run", "-o", "run", "--", sys.executable, written(folder, TERMINATED))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, errors, code = ended(process)
    assert (out, code) == ("", 7)
    assert errors == "tpunb: the program ended with exit code 7; 0 steps recorded; to see it: tpunb report run\n"
    assert facts(folder / "run")["state"] == "finished"  # by its own exit


# -- what is recorded -------------------------------------------------------------------------------------------------

TRAINING = """
import os, signal, sys
from pathlib import Path
import keras, numpy as np
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((96, 8), "float32"), np.ones((96, 1), "float32")
for _ in range(2):
    model.fit(*rows, batch_size=32, verbose=0)
if "kill" in sys.argv:
    import polars as pl
    while sum(pl.read_parquet(file).height for file in Path("run").rglob("parts/[0-9]*/ticks.parquet")) < 3:
        model.fit(*rows, batch_size=32, verbose=0)
    os.kill(os.getpid(), signal.SIGKILL)
print("fine")
"""


@needs_keras
@pytest.mark.live
def test_every_step_of_an_unchanged_training_is_recorded(folder):
    out, errors, code = run(folder, written(folder, TRAINING), options=("-o", "runs/short", "--keep", "none"))
    assert (out, code) == ("fine\n", 0)
    profile = tp.load(folder / "runs" / "short")
    assert profile.stored.frame["kind"].to_list() == ["train"] * 6
    assert facts(folder / "runs" / "short")["state"] == "finished"
    assert "tpunb: 6 steps recorded; " in errors
    assert errors.endswith("to see it: tpunb report runs/short\n")
    assert "Traceback" not in errors


@needs_keras
@pytest.mark.live
def test_a_killed_training_is_shown_as_far_as_it_was_recorded(folder):
    out, errors, code = run(folder, written(folder, TRAINING), "kill")
    assert (out, code) == ("", -signal.SIGKILL)
    assert "the program ended by SIGKILL" in errors
    assert errors.endswith("to see it: tpunb report run\n")
    assert len(tp.load(folder / "run").stored) >= 3
