"""Compare what ``tpunb run`` records of launched trainings with what their processes record themselves.

``python benchmarks/launchers.py [--quick] [--launches "torchrun 1,MPI",...] [--slow NAME,...] [--pairs N]``: unchanged
programs of ``programs/launched`` run as each launcher's documentation starts them, plainly and under ``tpunb
run -o RUN --``. Each process that trains writes its steps to a file of its own. Launchers that are not installed are
left out; SLURM's and MPI's are stand-ins that set their variables. ``--quick`` runs six launches and a job with a slow
rank, two at a time, without the overhead. The last line is one JSON object; most are counts, right of tried:

``processes``
    The processes that trained have a run each, and no other process has one.
``steps``
    Each of these has the steps that the process counted; one that was killed may have begun another.
``job``
    ``tp.load(RUN)`` is one run of the process that trained, or one job of hosts with the numbers of its ranks;
    ``tp.job(RUN)`` has the attempts of a restarted job; trials and jobs of a search are RUN, RUN-2 and so on.
``codes``
    The exit code is the same, and the output, but for its order and, of some launchers, times and process numbers.
``slow_rank``
    ``tp.hosts`` names the rank that delays the others, and no other, of jobs with one slow rank.
``false_alarms``
    Number of jobs without a slow rank of which ``tp.hosts`` names one.
``overhead``
    Step time under ``tpunb run`` divided by that without, of 100 ms steps on one rank and on two: the worse median of
    the pairs, by the programs' clocks. ``overhead_cpu`` is that of the processor time of the process, mean over steps,
    which other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import polars as pl

import tpunb as tp
from programs.launched.truth import FOLDER
from tpunb.errors import TpunbError

PROGRAMS = Path(__file__).parents[1] / "programs" / "launched"
LIMIT_S = 240  # of a launch


class Launch(NamedTuple):
    """A command that starts a training."""

    command: str  # with {programs}, {port}, and {capture} where the command is not captured as a whole
    job: str = "run"  # what is trained: "run", "ranks", "attempts" or "runs"
    processes: int = 1  # that train
    runs: int = 1  # or attempts
    needs: tuple[str, ...] = ("torch",)  # packages, or programs on the path
    prints_times: bool = False

    @property
    def missing(self) -> list[str]:
        """Packages and programs that are not installed."""
        return [name for name in self.needs if not (find_spec(name) or shutil.which(name))]


_TORCHRUN = "torchrun --standalone --nproc-per-node"
_ACCELERATE = "accelerate launch --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port {port}"
_START = "python {programs}/torch_loop.py --port {port} --start"
_EACH = """bash -c 'for i in 0 1; do {} & done; wait -n && wait -n'"""
"""Command that starts two processes, and fails as one of them does."""
_SLURM = "SLURM_JOB_ID=1 SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NTASKS=2 MASTER_PORT={port}"
_MPI = "OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_LOCAL_RANK=$i OMPI_COMM_WORLD_SIZE=2 MASTER_PORT={port}"
_LOOP = "python {programs}/torch_loop.py"

LAUNCHES = {
    "torchrun 1": Launch(f"{_TORCHRUN} 1 {{programs}}/torch_loop.py"),
    "torchrun 2": Launch(f"{_TORCHRUN} 2 {{programs}}/torch_loop.py", "ranks", 2),
    "torchrun restart": Launch(  # with a store for each attempt: gloo connects to addresses of the last one otherwise
        f"env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {_TORCHRUN} 2 --max-restarts 1 {{programs}}/torch_loop.py --fail 1",
        *("attempts", 4, 2),
    ),
    "accelerate 1": Launch(
        f"{_ACCELERATE} --cpu --num_processes 1 {{programs}}/accelerate_loop.py", needs=("accelerate",)
    ),
    "accelerate 2": Launch(
        f"{_ACCELERATE} --multi_gpu --num_processes 2 {{programs}}/accelerate_loop.py",
        *("ranks", 2, 1, ("accelerate",)),
    ),
    "deepspeed": Launch(
        "deepspeed --num_accelerators 2 --master_port {port} {programs}/deepspeed_loop.py",
        *("ranks", 2, 1, ("deepspeed",), True),
    ),
    "Lightning": Launch("python {programs}/lightning_fit.py", "ranks", 2, 1, ("lightning",)),
    "torchrun Lightning": Launch(f"{_TORCHRUN} 2 {{programs}}/lightning_fit.py", "ranks", 2, 1, ("lightning",)),
    "mp.spawn": Launch(f"{_START} torch", "ranks", 2),
    "mp.Process fork": Launch(f"{_START} fork", "ranks", 2),
    "mp.Process spawn": Launch(f"{_START} spawn", "ranks", 2),
    "mp.Process forkserver": Launch(f"{_START} forkserver", "ranks", 2),
    "Ray Train": Launch("python {programs}/ray_train.py", "ranks", 2, 1, ("ray",), True),
    "Ray Tune": Launch("python {programs}/ray_tune.py", "runs", 2, 2, ("ray",), True),
    "jax.distributed": Launch(_EACH.format("python {programs}/jax_loop.py $i 2 {port}"), "ranks", 2, 1, ("jax",)),
    "SLURM": Launch(_EACH.format(f"{_SLURM} {_LOOP}"), "ranks", 2),
    "SLURM srun tpunb run": Launch(_EACH.format(f"{_SLURM} {{capture}} {_LOOP}"), "ranks", 2),
    "MPI": Launch(_EACH.format(f"{_MPI} {_LOOP}"), "ranks", 2),
    "bash -c": Launch("bash -c 'cd / && python {programs}/plain_loop.py; exit 7'"),
    "nohup": Launch("nohup python {programs}/plain_loop.py"),
    "papermill": Launch("papermill --kernel python3 plain_loop.ipynb out.ipynb", needs=("torch", "papermill")),
    "jupyter execute": Launch("jupyter execute plain_loop.ipynb", needs=("torch", "nbclient")),
    "Hydra multirun": Launch(
        "python {programs}/search.py -m +lr=0.01,0.001,0.0001", "runs", 1, 3, ("torch", "hydra"), True
    ),
    "Optuna": Launch("python {programs}/search.py optuna", needs=("torch", "optuna")),
    "make": Launch("make -f {programs}/Makefile train", needs=("torch", "make")),
    "uv run": Launch("uv run --offline --no-project --active python {programs}/plain_loop.py", needs=("torch", "uv")),
    "conda run": Launch("conda run python {programs}/plain_loop.py", needs=("torch", "conda")),
}
QUICK = ("torchrun 1", "torchrun 2", "mp.spawn", "mp.Process fork", "jax.distributed", "bash -c")

SLOW = {
    "torchrun 2, rank 1 reads": (1, f"{_TORCHRUN} 2 {{programs}}/torch_loop.py --slow 1 --place data"),
    "torchrun 2, rank 0 computes": (0, f"{_TORCHRUN} 2 {{programs}}/torch_loop.py --slow 0 --place compute"),
    "torchrun 4, rank 2 waits": (2, f"{_TORCHRUN} 4 {{programs}}/torch_loop.py --slow 2 --place hook"),
    "torchrun 2, rank 1 waits, all_reduce": (
        1,
        f"{_TORCHRUN} 2 {{programs}}/torch_loop.py --slow 1 --place hook --reduce",
    ),
    "mp.spawn 2, rank 0 reads": (0, f"{_START} torch --slow 0 --place data"),
    "mp.spawn 4, rank 3 reads": (3, f"{_START} torch --ranks 4 --slow 3 --place data"),
    "fork 2, rank 1 computes, all_reduce": (1, f"{_START} fork --slow 1 --place compute --reduce"),
    "Lightning 2, rank 1 waits": (1, "python {programs}/lightning_fit.py 1"),
}
"""Jobs with a slow rank: its number, and the command."""
SLOW_STEPS = 150
STEP_S = 0.1


class Trained(NamedTuple):
    """A process that trained, by its own record."""

    process: int
    rank: int
    steps: int
    is_killed: bool
    step_s: list[float]  # wall time
    cpu_s: list[float]  # processor time of the process, in each step

    def allows(self, steps: int) -> bool:
        """Return whether so many steps may be recorded: a killed process may have begun another one."""
        return self.steps <= steps <= self.steps + self.is_killed


class Outcome(NamedTuple):
    """What a launch left behind."""

    code: int
    output: str
    messages: str
    seconds: float
    trained: list[Trained]
    folder: Path

    @property
    def run(self) -> Path:
        """Where ``tpunb run`` was to write."""
        return self.folder / "run"

    def characters(self, *, prints_times: bool) -> Counter[str]:
        """Return how often the output has each character: concurrent processes write in any order."""
        text = self.output.replace(str(self.folder), "")
        return Counter(re.sub(r"\d+", "", text) if prints_times else text)


def launch(command: str, folder: Path, *, captured: bool) -> Outcome:
    """Run a command in a folder, plainly or captured."""
    for name in ("truth", "home"):
        (folder / name).mkdir(parents=True)
    cell = {"cell_type": "code", "source": (PROGRAMS / "plain_loop.py").read_text(), "metadata": {}, "outputs": []}
    notebook = {"cells": [cell | {"execution_count": None}], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "plain_loop.ipynb").write_text(json.dumps(notebook))
    capture = shlex.join([sys.executable, "-m", "tpunb", "run", "-o", str(folder / "run"), "--"]) if captured else ""
    whole = command if "{capture}" in command else f"{{capture}} {command}"
    words = shlex.split(whole.format(programs=PROGRAMS, port=_free_port(), capture=capture))
    begin_s = time.perf_counter()
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            words, cwd=folder, env=_variables(folder), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait()
    output, messages = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    trained = [*_trained(folder / "truth")]
    return Outcome(code, output, messages, time.perf_counter() - begin_s, trained, folder)


def _variables(folder: Path) -> dict[str, str]:
    """Return the environment of a launch: programs of this interpreter, and this version of tpunb."""
    paths = [str(Path(tp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": sys.prefix,
        "PYTHONPATH": ":".join([*filter(None, paths), str(PROGRAMS)]),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        FOLDER: str(folder / "truth"),
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _trained(folder: Path) -> Iterator[Trained]:
    """Yield the processes that trained; several trainings of a process are one."""
    records = defaultdict[int, list[dict[str, Any]]](list)
    for file in sorted(folder.glob("*.jsonl")):
        records[int(file.name.partition("-")[0])] += map(json.loads, file.read_text().splitlines())
    for process, lines in records.items():
        ends = [(line["end_s"], line["cpu_s"]) for line in lines if "end_s" in line]
        is_killed = any(line["error"] for line in lines if "error" in line) or "error" not in lines[-1]
        wall, cpu = ([after[clock] - before[clock] for before, after in pairwise(ends)] for clock in (0, 1))
        yield Trained(process, lines[0]["rank"], len(ends), is_killed, wall, cpu)


# -- what was recorded ------------------------------------------------------------------------------------------------


def recorded(outcome: Outcome) -> dict[Path, int]:
    """Return the run folders that a launch left, and the processes that wrote them."""
    files = [file for file in outcome.folder.rglob("run.json") if b'"tpunb"' in file.read_bytes()]
    return {file.parent: json.loads(file.read_text())["process"] for file in files}


def steps(run: Path | tp.Profile) -> dict[str, int]:
    """Return the number of training steps of each host of a run; of several trainings, those of all."""
    try:
        found = tp.steps(run).frame.filter(pl.col("kind").str.starts_with("train"))
    except TpunbError:
        return {}
    return dict(found.group_by("host").len().iter_rows())


def wrong_processes(outcome: Outcome) -> str:
    """Return what is wrong with the processes that have a run."""
    trained, writers = {each.process for each in outcome.trained}, recorded(outcome)
    others = [str(run.relative_to(outcome.folder)) for run, process in writers.items() if process not in trained]
    missed = len(trained - {*writers.values()})
    return "; ".join(
        [f"{missed} of {len(trained)} not recorded"] * (missed > 0) + [f"none trained {run}" for run in others]
    )


def wrong_steps(outcome: Outcome) -> str:
    """Return what is wrong with the steps of processes that trained."""
    found = Counter[int]()
    for run, process in recorded(outcome).items():
        found[process] += sum(steps(run).values())
    wrong = [each for each in outcome.trained if not each.allows(found[each.process])]
    return "; ".join(f"rank {each.rank}: {found[each.process]} of {each.steps} steps" for each in wrong)


def wrong_job(outcome: Outcome, job: str, runs: int) -> str:
    """Return what is wrong with the runs as they are loaded together."""
    try:
        if job == "attempts":
            count = tp.job(outcome.run).attempts.height
            return f"{count} of {runs} attempts" if count != runs else ""
        if job == "runs":
            count = len([run for run in recorded(outcome) if steps(run)])
            return f"{count} of {runs} runs" if count != runs else ""
        by_host = steps(tp.load(outcome.run))
    except TpunbError as error:
        return str(error)
    if job == "run":
        elsewhere = [run for run in recorded(outcome) if run != outcome.run]
        return f"{len(elsewhere)} runs elsewhere" if elsewhere else f"{len(by_host)} hosts" if len(by_host) != 1 else ""
    truth = {each.rank: each.steps for each in outcome.trained}
    is_right = len(by_host) == len(truth) and {rank_of(host): count for host, count in by_host.items()} == truth
    return "" if is_right else f"steps by host {by_host}"


def rank_of(host: str) -> int | None:
    """Return the rank in the name of a host."""
    match = re.search(r"rank(\d+)$", host)
    return int(match[1]) if match else None


def slow_ranks(outcome: Outcome) -> list[int | None]:
    """Return the ranks that are named as those that delay the others."""
    try:
        return [rank_of(host) for host in tp.hosts(outcome.run).frame.filter("named")["host"]]
    except TpunbError:
        return []


# -- the measures -----------------------------------------------------------------------------------------------------


def compared(name: str, folder: Path) -> dict[str, bool]:
    """Run a launch plainly and captured, print what is wrong, and return which of the measures are right."""
    it = LAUNCHES[name]
    plain = launch(it.command, folder / "plain", captured=False)
    outcome = launch(it.command, folder / "captured", captured=True)
    wrong = {
        "processes": wrong_processes(outcome),
        "steps": wrong_steps(outcome),
        "job": wrong_job(outcome, it.job, it.runs),
        "codes": _wrong_codes(plain, outcome, prints_times=it.prints_times),
    }
    counts = [len(each.trained) for each in (plain, outcome)]
    if counts != [it.processes] * 2:  # without which nothing else is right
        wrong["processes"] = f"{counts[0]} processes trained, {counts[1]} captured: {outcome.messages[-300:]}"
    alarms = slow_ranks(outcome) if it.job == "ranks" else []
    marks = "  ".join(f"{measure} {'no ' if text else 'yes'}" for measure, text in wrong.items())
    lines = [f"{name:22} {marks}  {plain.seconds:5.1f} s, captured {outcome.seconds:5.1f} s"]
    lines += [f"    {measure}: {text}" for measure, text in wrong.items() if text]
    lines += [f"    named as slow: rank {rank}" for rank in alarms]
    lines += [f"    {line}" for line in outcome.messages.splitlines() if line.startswith("tpunb: ")]
    print("\n".join(lines), flush=True)
    return {measure: not text for measure, text in wrong.items()} | {"alarm": bool(alarms)}


def _wrong_codes(plain: Outcome, outcome: Outcome, *, prints_times: bool) -> str:
    """Return what is different in exit code and output."""
    if plain.code != outcome.code:
        return f"exit code {outcome.code}, not {plain.code}: {outcome.messages[-300:]}"
    if plain.characters(prints_times=prints_times) != outcome.characters(prints_times=prints_times):
        return f"output {outcome.output[:300]!r}, not {plain.output[:300]!r}"
    return ""


def names_slow(name: str, folder: Path) -> bool:
    """Return whether the slow rank of a job is named."""
    rank, command = SLOW[name]
    size = f"--steps {SLOW_STEPS}" if "torch_loop" in command else ""
    outcome = launch(f"{command} {size}", folder, captured=True)
    ranks = slow_ranks(outcome)
    try:
        sentence = tp.hosts(outcome.run).sentence
    except TpunbError as error:
        sentence = str(error)
    print(f"{name:38} named {ranks or 'none'}, {outcome.seconds:.1f} s: {sentence}", flush=True)
    return ranks == [rank]


def overhead(ranks: int, pairs: int, steps: int, folder: Path) -> tuple[float, float]:
    """Return the ratios of wall and processor time of steps of 100 ms, captured and plain."""
    command = f"{_TORCHRUN} {ranks} {{programs}}/torch_loop.py --steps {steps} --batch"

    def step_s(batch: int, name: str, *, captured: bool) -> tuple[float, float]:
        trained = launch(f"{command} {batch}", folder / name, captured=captured).trained
        wall = statistics.median(time_s for each in trained for time_s in each.step_s[3:])
        return wall, statistics.mean(time_s for each in trained for time_s in each.cpu_s[3:])

    batch = 1024
    batch = round(batch * STEP_S / step_s(batch, "calibration", captured=False)[1])  # holds on a busy machine, too
    wall, cpu = [], []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        times = {captured: step_s(batch, f"{number}-{captured}", captured=captured) for captured in order}
        wall.append(times[True][0] / times[False][0])
        cpu.append(times[True][1] / times[False][1])
        milliseconds = f"{1e3 * times[False][0]:.0f} ms, of which processor {1e3 * times[False][1]:.0f} ms"
        print(f"{ranks} ranks, steps of {milliseconds}: ratio {wall[-1]:.3f}, processor {cpu[-1]:.3f}", flush=True)
    return statistics.median(wall), statistics.median(cpu)


def _file_name(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def main() -> None:
    """Print the table, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="six launches that need torch and jax alone")
    parser.add_argument("--launches", help="names, separated by commas; all if left out")
    parser.add_argument("--slow", help="names of jobs with a slow rank, separated by semicolons; all if left out")
    parser.add_argument("--pairs", type=int, default=3, help="of a captured and a plain run, for the overhead")
    parser.add_argument("--folder", type=Path, help="where to keep the runs")
    options = parser.parse_args()
    names = options.launches.split(",") if options.launches is not None else QUICK if options.quick else [*LAUNCHES]
    slow = options.slow.split(";") if options.slow is not None else [*SLOW][: 1 if options.quick else None]
    left_out = {name: ", ".join(LAUNCHES[name].missing) for name in names if name and LAUNCHES[name].missing}
    tried = [name for name in names if name and name not in left_out]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary,
        ThreadPoolExecutor(2 if options.quick else 1) as pool,
    ):
        top = options.folder or Path(temporary)
        measured = pool.map(lambda name: compared(name, top / _file_name(name)), tried)
        judged = pool.map(lambda name: names_slow(name, top / _file_name(name)), filter(None, slow))
        rows, named = [*measured], [*judged]
        pairs = 0 if options.quick else options.pairs
        ratios = [overhead(ranks, pairs, 100, top / f"overhead-{ranks}") for ranks in (1, 2) if pairs]
    for name, packages in left_out.items():
        print(f"left out: {name}, as {packages} is not installed")
    if options.quick:
        print(f"left out: overhead; {', '.join(name for name in LAUNCHES if name not in names)}")
    last: dict[str, Any] = {}
    for measure in ("processes", "steps", "job", "codes"):
        last[measure] = f"{sum(row[measure] for row in rows)} of {len(rows)}"
    last["slow_rank"] = f"{sum(named)} of {len(named)}"
    last["false_alarms"] = sum(row["alarm"] for row in rows)
    for clock, measure in enumerate(("overhead", "overhead_cpu")):
        last[measure] = round(max(ratio[clock] for ratio in ratios), 3) if ratios else None
    print(json.dumps(last))


if __name__ == "__main__":
    main()
