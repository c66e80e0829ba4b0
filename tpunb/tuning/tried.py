"""Remedies that were tried: the program in turns with and without each, in fresh processes, from the same seeds."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tpunb.analysis.advice import candidates
from tpunb.analysis.causes import CAUSES, cause
from tpunb.analysis.goodput import goodput
from tpunb.analysis.run import phases
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.instrument.remedies import CHANGES, Trial
from tpunb.io.run_folder import COMMAND, RUN, TRIED, keep_tried
from tpunb.io.run_folder import tried as tried_on_disk
from tpunb.text import cut, format_error, plain, plural
from tpunb.training.fit_start import CheckpointPath
from tpunb.training.seeds import RandomState, ensured_keras_generator
from tpunb.training.tried_process import OUTPUT, REFUSED, TRIAL, Plan
from tpunb.tuning.job import Job
from tpunb.tuning.racing import FEWEST_PAIRS, MOST_PAIRS, Race, RaceResult
from tpunb.tuning.results import Tried, Tuning
from tpunb.tuning.trial import TrialRunner

BUDGET_S = 60.0
_MOST = 3  # remedies of a run
_PART = 4  # a run of a program that takes longer than this part of the budget is stopped
_STOPS_S = 20.0  # after an interrupt
_LARGEST = 10_000_000  # bytes of a file that is copied into the scratch folder, rather than linked
_MOST_FILES = 20_000  # of the working directory
_LEAST_S = 1.0  # in which a round begins
_BEFORE = ("preparation", "profiler", "other")  # accounts
_AGAIN = Trial.NONE.value  # the program as it is, built once more
_UNBUILT = ": give a function that builds the model and its data"
_VARIES = 1e-12  # relative difference of outputs below which only their last bits differ


class _Outcome(NamedTuple):
    """One run of the program."""

    run: Path
    is_whole: bool  # it ended by itself
    error: str  # why it failed
    refused: tuple[str, ...]  # paths that it may not write
    output: Path

    @property
    def ends_s(self) -> list[float]:
        """Time from the begin of the run to the end of each step; and of all of it, if it is whole."""
        steps = phases(self.run).steps
        ends = (steps.frame["start_ps"] + steps.frame["dur_ps"]).sort().to_list()
        if self.is_whole:
            found = goodput(steps)
            return [*(end / 1e12 for end in ends), (found.wall_ps - found.time_ps("profiler")) / 1e12]
        return [end / 1e12 for end in ends]

    @property
    def prepares_s(self) -> float:
        """Time until it compiles, reads or trains: of imports, which no remedy changes and each run takes anew."""
        run = goodput(phases(self.run))
        is_before = pl.col("account").is_in(_BEFORE).cum_min().over("host")
        before = run.segments.sort("start_ps").filter(is_before, account="preparation")
        return float(before["dur_ps"].sum()) / run.hosts / 1e12

    @property
    def values(self) -> list[np.ndarray[Any, Any]]:
        """What it computed."""
        if not self.output.exists():
            return []
        with np.load(self.output, allow_pickle=False) as file:
            return [file[name] for name in file.files]


class _Executions(NamedTuple):
    """Steps of a job: seconds of one, and what they computed."""

    ends_s: list[float]
    values: list[np.ndarray[Any, Any]]
    error: str = ""
    is_whole: bool = True
    prepares_s: float = 0.0


class _Program:
    """A program that is run again and again, in a folder that stands for its own."""

    def __init__(self, command: Sequence[str], home: Path, folder: Path, *, writes: bool) -> None:
        self._command, self._home, self._folder, self._writes = [*command], home.resolve(), folder, writes
        self._count = 0

    def run(self, change: str = "", seconds: float | None = None) -> _Outcome:
        """Run the program with a change, for so many seconds at most."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        scratch = self._home if self._writes else folder / self._home.name
        if not self._writes:
            _mirror(self._home, scratch)
        plan = Plan(str(folder), str(scratch), str(self._home), change, self._writes)
        words = [
            word.replace(str(self._home), str(scratch)) if word.startswith(str(self._home)) else word
            for word in self._command
        ]
        capture = [sys.executable, "-m", "tpunb", "run", "-o", str(folder / "run"), "--budget", "0.01", "--quiet", "--"]
        made = CHANGES[Trial(change) if change else Trial.NONE]
        variables = {name: value for name, value in os.environ.items() if name not in made.unset}
        variables |= {name: text.format(folder=self._folder) for name, text in made.variables}
        variables.setdefault("PYTHONHASHSEED", "0")  # for the same order of sets in all runs
        with (folder / "output.txt").open("wb") as log:
            process = subprocess.Popen(
                [*capture, *words],
                cwd=scratch,
                env={**variables, TRIAL: json.dumps(plan._asdict())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stopped = _wait(process, seconds)
        text = (folder / "output.txt").read_text(errors="replace").strip()
        failed = process.returncode != 0 and not stopped
        error = plain(cut(text.splitlines()[-1] if text else f"exit code {process.returncode}", 200)) if failed else ""
        refused = folder / REFUSED
        paths = tuple(json.loads(refused.read_text())) if refused.exists() else ()
        if not failed and not (folder / "run" / RUN).exists():
            error = f"it took no step in {seconds:.0f} s" if stopped and seconds else "nothing was captured"
        return _Outcome(folder / "run", not stopped, error, paths, folder / OUTPUT)


def _wait(process: subprocess.Popen[bytes], seconds: float | None) -> bool:
    """Wait for a process, interrupt it after so many seconds, and return whether it was; leave none that it started."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOPS_S)
        return True
    finally:
        with suppress(ProcessLookupError, PermissionError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _mirror(home: Path, scratch: Path) -> None:
    """Make a folder like another: folders, copies of small files, links to large ones and to hidden folders."""
    left = [(home, scratch)]
    count = 0
    while left:
        folder, copy = left.pop()
        copy.mkdir()
        for entry in os.scandir(folder):
            target, path = copy / entry.name, Path(entry.path)
            if path in scratch.parents:
                continue
            count += 1
            if count > _MOST_FILES:
                raise TpunbError(
                    f"{home} holds over {plural(_MOST_FILES, 'file')}, and each trial runs in a copy of it",
                    hint="run it from the folder of the program, or with --writes-again",
                )
            with suppress(OSError):  # a socket, or a file that goes meanwhile
                is_folder = entry.is_dir(follow_symlinks=False)
                is_apart = entry.name.startswith(".") or any((path / name).exists() for name in (RUN, "pyvenv.cfg"))
                if is_folder and not is_apart:
                    left.append((path, target))
                elif not is_folder and entry.is_file() and entry.stat().st_size <= _LARGEST:
                    shutil.copy2(entry, target)
                else:
                    target.symlink_to(path)


def try_remedies(
    run: Any = None,
    command: Sequence[str] | None = None,
    *,
    budget_s: float = BUDGET_S,
    writes_again: bool = False,
    say: Callable[[str], object] = print,
) -> list[Tried]:
    """Try the first remedies of a run on its program, and show what each saves in a line.

    Parameters
    ----------
    run
        Path of a run of ``tpunb run``; None to capture one first.
    command
        The program and its arguments, run in the working directory; None for that of the run.
    budget_s
        Seconds for all trials.
    writes_again
        Whether the program may write where it does, again in each run; else it is run in a copy of its folder, and
        ends where it would write elsewhere.
    say
        Called with each line.

    Returns
    -------
    list of Tried
        Also in ``tried.json`` in the folder of the run, which reports and advice read.

    Raises
    ------
    TpunbError
        If the command is not known, or the program fails or would write elsewhere.
    """
    begun_s = time.monotonic()
    words, home = (list(command), Path.cwd()) if command else _command(run)
    say(f"runs in turns in {'copies of ' * (not writes_again)}{plain(str(home))}: {plain(cut(shlex.join(words), 200))}")
    with tempfile.TemporaryDirectory(prefix="tpunb-try-", ignore_cleanup_errors=True) as folder:
        program = _Program(words, home, Path(folder), writes=writes_again)
        first = program.run(seconds=budget_s / _PART)
        _check(first)
        grouped = phases(run if run is not None else first.run)
        rows = _chosen(grouped)
        for row in rows[_MOST:]:
            say(f"not tried, beyond the first {_MOST}: {row['action']}")
        trials = _Trials(program, first, begun_s + budget_s, None if first.is_whole else budget_s / _PART)
        found = []
        for row in rows[:_MOST]:
            found.append(tried := trials.of(row))
            say(str(tried))
        if not rows:
            say(f"no remedy of this run can be tried without a change of the program: {_first_sentence(grouped)}")
    if run is not None:
        _keep(found, run)
    return found


class JobTrials:
    """Remedies that are tried on steps of a job, as a `Tuner` tries values: `trials` yields each once it is decided.

    `remedies` and `grouped` are the arguments "remedies" and "phases" of `tpunb.tuning.tuner.tune`; the result is added
    to a `tuning`.
    """

    def __init__(
        self,
        job: Job,
        remedies: Any,
        start: CheckpointPath | None,
        budget_s: float,
        grouped: Phases | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self._job, self._start, self._budget_s, self._run = job, start, budget_s, grouped
        self._rows = asked(remedies, grouped)
        self.tuning = tuning or Tuning(())
        self.messages = self.tuning.messages

    def trials(self) -> Generator[Tried, None, None]:
        """Yield what was tried; the run of the phases keeps it."""
        end_s = time.monotonic() + self._budget_s
        with ExitStack() as stack:
            program = _JobSteps(self._job, self._start, stack)
            for left, row in zip(range(len(self._rows), 0, -1), self._rows, strict=True):
                first = program.changed(row["trial"])
                until_s = time.monotonic() + max((end_s - time.monotonic()) / left, _LEAST_S)
                trials = _Trials(program, first, until_s, None)
                tried = replace(trials.of({**row, "saves_ps": row["step_ps"]}), unit="step")
                if tried.output == "differs" and (note := program.regroups):
                    tried = replace(tried, output="unknown", difference=None, note=note)
                elif tried.output == "differs" and program.varies(first):
                    tried = replace(tried, output="not repeatable")
                self.tuning = replace(self.tuning, tried=(*self.tuning.tried, tried))
                yield tried
        if self._run is not None and self._run.steps.source:
            _keep(self.tuning.tried, self._run.steps.source)


class _JobSteps:
    """Steps of a job from one place, without and with changes, each of a model and data that are made anew."""

    def __init__(self, job: Job, start: CheckpointPath | None, stack: ExitStack) -> None:
        self._job, self._start, self._stack = job, start, stack
        self._runners, self._reached = dict[str, TrialRunner](), set[str]()
        stack.callback(RandomState.capture().restore)
        stack.enter_context(ensured_keras_generator())  # which all models share
        self._random = RandomState.capture()
        if reason := self._built(""):
            raise TpunbError(f"no remedy can be tried on this job: {reason}")
        self._runners[""].calibrate()

    def changed(self, change: str) -> _Executions:
        """Return steps without a change; those with it will be as many."""
        steps = self._runners[""].training.steps
        self._error = self._built(change)
        self._unit = math.lcm(steps, self._runners[change].training.steps) if not self._error else steps
        least = self._unit // steps  # executions
        self._steps = [math.ceil(each / least) * self._unit for each in self._runners[""].sizes]
        return self.run()

    @property
    def regroups(self) -> str:
        """Why steps cannot be compared, of which a change makes more in one call; else ""."""
        return "an epoch may end within a call" * (self._unit != self._runners[""].training.steps)

    def varies(self, first: _Executions) -> bool:
        """Return whether the job, built once more without a change, computes something else."""
        self._error = self._built(_AGAIN)
        return bool(self._error) or _difference(first.values, self.run(_AGAIN).values) != 0

    def _built(self, change: str) -> str:
        """Build the job anew, and return why it cannot be run, or ""."""
        self._random.restore()
        try:
            with self._with(change):
                runner = self._stack.enter_context(TrialRunner(Job(self._job.build, self._job.step), self._start))
                self._runners[change] = runner
                reason = runner.pipeline.refusal or runner.untracked_state()
                if change and not reason:
                    runner.sample()
        except Exception as error:  # noqa: BLE001  whatever it is, the change does not suit this program
            return format_error(error)
        if not reason and change and change not in self._reached:
            return "its steps ask for nothing that this changes" + _UNBUILT * isinstance(self._job.build, tuple)
        return reason

    @contextmanager
    def _with(self, change: str) -> Iterator[None]:
        made = CHANGES[Trial(change or _AGAIN)]
        if made.variables:
            raise TpunbError("it is set before a program starts", hint="tpunb try -- python train.py")
        if change == _AGAIN:
            self._reached.add(change)
        with ExitStack() as stack:
            made.apply(stack, partial(self._reached.add, change))
            yield

    def run(self, change: str = "", seconds: float | None = None) -> _Executions:
        """Run steps with a change, however long they take."""
        if change and self._error:
            return _Executions([math.inf], [], self._error)
        runner = self._runners[change]
        steps = runner.training.steps
        runner.keeps = self._unit // steps
        try:
            with self._with(change):
                result = runner._run({}, *(each // steps for each in self._steps))
        except Exception as error:  # noqa: BLE001  as above
            return _Executions([math.inf], [], format_error(error))
        return _Executions([result.seconds], runner.values)


def asked(remedies: Any, grouped: Phases | None) -> list[dict[str, Any]]:
    """Return rows of advice that can be tried: all of a run, those of a frame, or those of some causes."""
    trials = {(each.id, remedy.action): remedy.trial for each in CAUSES for remedy in each.remedies if remedy.trial}
    advice = [] if grouped is None else candidates(grouped).to_dicts()
    if isinstance(remedies, pl.DataFrame):
        advice = remedies.to_dicts()
    elif remedies is not True:
        ids = [cause(name).id for name in ([remedies] if isinstance(remedies, str) else remedies)]
        named = {row["id"] for row in advice if (row["id"], row["action"]) in trials}
        advice = [row for row in advice if row["id"] in ids]
        advice += [{"id": id_, "action": action} for id_, action in trials if id_ in ids and id_ not in named]
    elif grouped is None:
        raise TpunbError(
            "the remedies of which run to try is not known", hint="tp.tune(job, remedies=True, phases=...)"
        )
    found = dict[str, dict[str, Any]]()
    for row in advice:
        if trial := trials.get((row["id"], row["action"])):
            saves_ps, steps = row.get("saves_ps"), 0 if grouped is None else _steps(grouped, row.get("phase"))
            step_ps = None if saves_ps is None or not steps else saves_ps / steps
            found.setdefault(trial, {**row, "trial": trial, "step_ps": step_ps})
    if not found:
        raise TpunbError("no remedy of these can be tried on a job", hint="docs/causes.md says which can")
    return [*found.values()]


def _steps(grouped: Phases, phase: int | None) -> int:
    """Return the number of steps in which advice saves its time."""
    return grouped.steps.count if phase is None else grouped[phase].steps.height


def _keep(found: Sequence[Tried], run: Any) -> None:
    """Write what was tried into a run on a local disk."""
    keep_tried(Path(str(run)), [{**asdict(each), "outcome": each.outcome} for each in found])


def _first_sentence(grouped: Phases) -> str:
    found = candidates(grouped)
    return str(found["sentence"][0]) if found.height else "there is none"


def _command(run: Any) -> tuple[list[str], Path]:
    path = Path(str(run), COMMAND)
    try:
        words = json.loads(path.read_text())
        return [*map(str, words["command"])], Path(words["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        raise TpunbError(
            f"{run}: the command of this run is not known: it is not of tpunb run",
            hint=f"tpunb try {shlex.quote(str(run))} -- python train.py",
        ) from None


def _check(first: _Outcome) -> None:
    if first.refused:
        raise TpunbError(
            f"the program writes {', '.join(map(plain, first.refused[:3]))}: a trial would write there again",
            hint="--writes-again allows it",
        )
    if first.error and not first.is_whole:
        raise TpunbError(f"the program was stopped: {first.error}", hint="--budget 10min")
    if first.error:
        raise TpunbError(f"the program fails: {first.error}", hint="run it alone; then tpunb try it")


def _chosen(grouped: Phases) -> list[dict[str, Any]]:
    """Return the advice that can be tried, each change once."""
    rows = candidates(grouped).drop_nulls(["action", "trial"]).unique("trial", keep="first", maintain_order=True)
    return rows.to_dicts()


class _Trials:
    """Trials of one program, whose runs without a change they share."""

    def __init__(
        self, program: _Program | _JobSteps, first: _Outcome | _Executions, until_s: float, seconds: float | None
    ) -> None:
        self._program, self._until_s, self._seconds = program, until_s, seconds
        self._plain = [first]

    def of(self, row: dict[str, Any]) -> Tried:
        """Try a remedy until it is decided, or the time is over."""
        change = CHANGES[Trial(row["trial"])]
        promised_s = None if row["saves_ps"] is None else row["saves_ps"] / 1e12
        tried = Tried(row["id"], row["action"], change.about, change.loses, promised_s)
        if change.variables:  # what is kept is made first
            self._program.run(row["trial"], self._seconds)
        race, result, with_it, times = Race(), None, list[_Outcome | _Executions](), list[tuple[float, float]]()
        for number in self._rounds():
            if number % 2:
                with_it.append(self._program.run(row["trial"], self._limit))
            if len(self._plain) <= number:
                self._plain.append(self._program.run(seconds=self._seconds))
            if not number % 2:
                with_it.append(self._program.run(row["trial"], self._limit))
            if error := with_it[-1].error or self._plain[number].error:
                return replace(tried, note=error)
            times.append(_compared(self._plain[number], with_it[-1]))
            result = race.add(*times[-1])
            before_s = sum(plain for plain, _ in times) / len(times)
            if result.decision == "not faster" and before_s * (1 - 1 / result.high) >= (promised_s or math.inf):
                result = replace(result, decision="undecided")  # it may save what was promised
            if result.decision != "undecided":
                break
        if result is None:
            return replace(tried, note="the budget is used; a larger one is needed")
        return replace(_timed(tried, result, times), **_output(self._plain[:2], with_it[0]))

    @property
    def _limit(self) -> float | None:
        """Seconds for a run with a change: one that takes three times as long helps nobody."""
        return self._seconds or 3 * max(self._plain[0].ends_s) + _STOPS_S

    def _rounds(self) -> Iterator[int]:
        """Yield numbers of rounds while there is time for one more."""
        number, longest_s = 0, 0.0
        while number == 0 or (number < MOST_PAIRS and time.monotonic() + longest_s < self._until_s):
            begun_s = time.monotonic()
            if number == 0 and begun_s > self._until_s:
                return
            yield number
            longest_s = max(longest_s, time.monotonic() - begun_s)
            number += 1


def _compared(one: _Outcome | _Executions, other: _Outcome | _Executions) -> tuple[float, float]:
    """Return the times of two runs to the same step, or to their ends, as if both had prepared as long as the first."""
    longer_s = other.prepares_s - one.prepares_s
    ends = one.ends_s, [end_s - longer_s for end_s in other.ends_s]
    if one.is_whole and other.is_whole:
        return ends[0][-1], ends[1][-1]
    last = min(map(len, ends)) - 1
    if last < 1:
        raise TpunbError("the program takes no two steps within the budget", hint="--budget SECONDS")
    return ends[0][last], ends[1][last]


def _timed(tried: Tried, result: RaceResult, times: Sequence[tuple[float, float]]) -> Tried:
    before_s, after_s = (sum(column) / len(times) for column in zip(*times, strict=True))
    low, high = (
        (None, None) if result.pairs < FEWEST_PAIRS else (before_s * (1 - 1 / end) for end in (result.low, result.high))
    )
    tried = replace(tried, before_s=before_s, after_s=after_s, low_s=low, high_s=high)
    return replace(tried, pairs=result.pairs, decision=result.decision)


def _output(plain_runs: Sequence[_Outcome | _Executions], with_it: _Outcome | _Executions) -> dict[str, Any]:
    """Return whether a program computed the same with a change, and by how much not."""
    runs = [*plain_runs, with_it]
    if not all(each.is_whole for each in runs):
        return {"output": "unknown", "note": "the runs were stopped"}
    arrays = [each.values for each in runs]
    if not (arrays[0] and arrays[-1]):
        return {"output": "unknown", "note": "no parameters were seen"}
    difference = _difference(arrays[0], arrays[-1])
    if difference == 0:
        return {"output": "equal"}
    repeats = len(arrays) < 3 or _difference(arrays[0], arrays[1]) == 0
    return {"output": "differs" if repeats else "not repeatable", "difference": difference}


def _difference(one: Sequence[np.ndarray[Any, Any]], other: Sequence[np.ndarray[Any, Any]]) -> float | None:
    """Return the norm of the difference by the norm; 0 only for equal bits, None for arrays of other shapes."""
    if [each.shape for each in one] != [each.shape for each in other]:
        return None
    if all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)):
        return 0.0
    pairs = [(a.astype("f8").ravel(), b.astype("f8").ravel()) for a, b in zip(one, other, strict=True)]
    norms = [
        float(np.sqrt(sum(np.sum(part**2) for part in parts)))
        for parts in ([a - b for a, b in pairs], [a for a, _ in pairs])
    ]
    return max(norms[0] / max(norms[1], 1e-300), _VARIES)


_NUMBERS = ("promised_s", "before_s", "after_s", "low_s", "high_s", "difference")
_COLUMNS: dict[str, Any] = {
    "run": pl.String,
    **{each.name: pl.Float64 if each.name in _NUMBERS else pl.String for each in fields(Tried)},
    "pairs": pl.Int64,
}


def tried(folder: Any = "runs") -> pl.DataFrame:
    """Return a row for each remedy that was tried on runs below a local folder: the fields of `Tried`, and `run`."""
    rows = list[dict[str, Any]]()
    for path in sorted(Path(str(folder)).rglob(TRIED)):
        found = [each for each in tried_on_disk(path.parent) if not each.get("earlier")]
        rows += [{**each, "run": path.parent.name} for each in found]
    kinds = {name: str if kind is pl.String else (int, float) for name, kind in _COLUMNS.items()}
    rows = [{name: each[name] if isinstance(each.get(name), kinds[name]) else None for name in kinds} for each in rows]
    frame = pl.DataFrame(rows, schema=_COLUMNS, strict=False)
    return frame.with_columns(saved_s=pl.col("before_s") - pl.col("after_s"))
