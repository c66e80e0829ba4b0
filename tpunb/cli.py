"""The command line: capture an unchanged program; report on runs, compare, list and view them."""

from __future__ import annotations

import argparse
import codecs
import io
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import version
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, NoReturn

from tpunb.errors import BadProfile, ProfileNotFound, TpunbError, extras_named, install
from tpunb.profiler import child_capture
from tpunb.text import cut, duration, earlier_run, format_error, percent, plain, plural, relative, short_time

if TYPE_CHECKING:
    from tpunb.analysis.report import Report
    from tpunb.io.job_folder import Process

_USAGE = "tpunb run [options] [--] train.py [arguments]"
_FRAMEWORKS = " or ".join([", ".join(child_capture.FRAMEWORKS[:-1]), child_capture.FRAMEWORKS[-1]])
_ABOUT = (
    f"{_USAGE} captures each process that imports {_FRAMEWORKS}.",
    "The program's arguments, output, signals and exit code are unchanged; a line on stderr names the run at the end.",
    "",
    "  example: tpunb run -o runs/bert -- python -m bert.train --epochs 3",
    "  example: tpunb run -o runs/bert -- torchrun --nproc-per-node 4 train.py",
)
_WRONG_USAGE, _NOT_FOUND = 2, 127  # exit codes, as of a shell


_HELP = """Profile trainings, and report on their runs.

  tpunb run -- python train.py      capture an unchanged program
  tpunb attach 4711 --for 30s       observe a program that runs already, from outside
  tpunb report runs/bert            what took the time, what to do first, what is not known
  tpunb try runs/bert               what its remedies save, tried on the program that is not changed
  tpunb compare runs/a runs/b       whether run b is slower than run a, for certain
  tpunb steps runs/bert --explain   which rule and which events made a step, and its kind
  tpunb runs                        a table of the runs in a folder
  tpunb view runs/bert              open the run as a page in the browser
  tpunb mcp runs                    answer an assistant about the runs in a folder

tpunb COMMAND --help lists the options of a command, tpunb --version prints the version."""


class _WrongUsage(TpunbError):
    """The words of a command are not as its help says."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _WrongUsage(message, hint=f"{self.prog} --help lists the options")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code: of `tpunb run` that of the program, 2 for wrong usage."""
    words = [*(sys.argv[1:] if words is None else words)]
    sys.stdout, sys.stderr = map(_writable, (sys.stdout, sys.stderr))
    try:
        code = _answer(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:  # before the program began
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the pipe ended
        return 128 + signal.SIGPIPE
    except (TpunbError, ValueError, OSError) as error:
        _print(format_error(error))
        return _NOT_FOUND if isinstance(error, _NoProgram) else _WRONG_USAGE
    finally:
        for stream in (sys.stdout, sys.stderr):
            _settle(stream)


def _answer(words: list[str]) -> int:
    """Run the command that the words begin with, and return the exit code."""
    if words[:1] in ([], ["-h"], ["--help"], ["--version"]):
        print(f"tpunb {version('tpunb')}" if words[:1] == ["--version"] else _HELP)
        return 0
    if words[0] == "run":
        return _run(words[1:])
    if words[0] == "try":
        end = words.index("--") if "--" in words else len(words)
        return _read("try", [*words[1:end], *(["--command", shlex.join(words[end + 1 :])] * (end < len(words)))])
    if words[0] in _COMMANDS:
        return _read(words[0], words[1:])
    hint = "tpunb --help lists the commands"
    if close := get_close_matches(words[0], ["run", "try", *_COMMANDS], 1):
        hint = shlex.join(["tpunb", close[0], *words[1:]])
    elif shutil.which(words[0]) or Path(words[0]).exists():
        is_program = not Path(words[0]).is_dir()
        hint = _run_of(words) if is_program else shlex.join(["tpunb", "report", *words])
    raise TpunbError(f"unknown command {words[0]!r}", hint=hint)


def _run_of(words: Sequence[str]) -> str:
    """Return the command that captures a program."""
    return shlex.join(["tpunb", "run", "--", *["python"] * words[0].endswith(".py"), *words])


class _NoProgram(TpunbError):
    """The program cannot be started."""


def _parser() -> argparse.ArgumentParser:
    from tpunb.profiler.options import add_group

    parser = _Parser("tpunb run", usage=_USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true", dest="wants_help", help="show this help")
    example = "tpunb run {} -- python train.py"
    for name in ("source", "schedule", "keep"):
        add_group(parser, name, example, {"--run": ("-o", "--output")})
    parser.add_argument("--quiet", action="store_true", help="print nothing at the end")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def _run(words: list[str]) -> int:
    """Run a program with the hook in its Python processes, and show what they captured."""
    if not hasattr(os, "posix_spawnp"):
        raise TpunbError("tpunb run requires Linux or macOS", hint="capture it in the program: docs/capture.md")
    variables = dict(os.environ)  # before libraries add theirs
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _watched())  # before libraries start threads, which inherit it
    try:
        return _run_blocked(words, variables, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run_blocked(words: list[str], variables: Mapping[str, str], mask: Iterable[int]) -> int:
    from tpunb.io import storage
    from tpunb.io.job_folder import MEMBER
    from tpunb.io.run_folder import COMMAND, keep_refuted
    from tpunb.profiler.options import capture_arguments, default_folder, help_text

    end = words.index("--") if "--" in words else len(words)
    parser = _parser()
    options = parser.parse_args(words[:end])
    command = [*vars(options).pop("program")]
    command += words[end:] if command else words[end + 1 :]
    if options.wants_help:
        print(help_text(parser, "tpunb run", _ABOUT))
        return 0
    if not command:
        raise TpunbError(f"no program in {' '.join(['tpunb run', *words])!r}", hint=_USAGE)
    if command[0].endswith(".py") and shutil.which(command[0]) is None:
        command.insert(0, sys.executable)
    capture_arguments(options)  # refuses wrong ones
    target = storage.resolve(str(options.run or default_folder()))
    folder = target.rstrip("/") if isinstance(target, str) else str(target.absolute())
    rank = child_capture.rank()
    place = f"{folder}/rank{rank}" if rank else folder
    moved = _make_room(place)
    if rank:
        with suppress(OSError):  # a URL
            Path(place).rmdir()  # which a process of this rank takes
    with TemporaryDirectory(prefix="tpunb-run-", ignore_cleanup_errors=True) as hook:
        Path(hook, f"{child_capture.HOOK}.py").write_bytes(Path(child_capture.__file__).read_bytes())
        Path(hook, child_capture.REQUEST).write_text(json.dumps({"folder": folder, "options": vars(options)}))
        paths = [hook, *filter(None, [variables.get("PYTHONPATH")])]
        status = _wait(command, {**variables, "PYTHONPATH": os.pathsep.join(paths)}, mask)
        written = {file.name: file.read_text() for file in Path(hook).iterdir() if MEMBER.fullmatch(file.name)}
    captured = [name for name, path in written.items() if path]  # the others' captures did not begin
    with suppress(OSError):  # a URL
        Path(place).rmdir()  # if it is empty
    try:
        runs = _arrange(folder, captured)
        with suppress(OSError):  # a URL, or no run
            program, run = json.dumps({"command": command, "folder": str(Path.cwd())}).encode(), Path(folder)
            if run.is_dir():
                (run / COMMAND).write_bytes(program)
                same = [
                    path.parent
                    for path in run.parent.glob(f"*/{COMMAND}")
                    if path.is_file() and path.read_bytes() == program
                ]
                keep_refuted(run, (path for path in same if path != run))
        if not options.quiet and rank in ("", "0"):
            form = str if "://" in folder else Path
            earlier = None if moved is None else earlier_run(form(folder), form(moved))
            _print_end(folder, runs, _ending(status), earlier)
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001  the exit code is the program's
        _print(f"the captures in {folder} stay where they are: {format_error(error)}")
    return _exit_code(status)


def _make_room(folder: str) -> str | None:
    """Rename an earlier run or job in the folder, and return its new path; refuse a folder of another kind."""
    from tpunb.io.job_folder import MEMBER
    from tpunb.io.run_folder import RUN
    from tpunb.io.run_storage import FolderLock
    from tpunb.io.run_writer import RunWriter

    processes = [file.parent for file in Path(folder).glob(f"*/{RUN}") if MEMBER.fullmatch(file.parent.name)]
    if not processes:
        writer = RunWriter(folder)
        writer.open()
        writer.close()
        return writer.moved
    for process in processes:
        if lock := FolderLock.take(process):  # else a capture writes there
            lock.release()
    aside = next(free for n in count(1) if not (free := Path(f"{folder}-{n}")).exists())
    return str(Path(folder).rename(aside))


# -- the program ------------------------------------------------------------------------------------------------------

_FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")


def _watched() -> set[signal.Signals]:
    """Return the signals that are forwarded, without those that this process was started to ignore."""
    numbers = {getattr(signal, name) for name in _FORWARDED}
    return {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN} | {signal.SIGCHLD}


def _wait(command: list[str], variables: Mapping[str, str], mask: Iterable[int]) -> int:
    """Run the command with signals as without this process; return its status as of ``os.waitpid``."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what has arrived so far is for this process
    signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored one would not end the wait
    signal.pthread_sigmask(signal.SIG_BLOCK, watched := _watched())
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores
    try:
        process = os.posix_spawnp(command[0], command, variables, setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        raise _NoProgram(f"cannot run {command[0]!r}: {error.strerror}", hint=_run_of(["train.py"])) from None
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        number, is_direct = _next_signal(watched)
        if number != signal.SIGCHLD and is_direct:
            os.kill(process, number)
    while signal.sigpending() & watched:
        signal.sigwait(watched)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ended[1]


def _next_signal(watched: set[signal.Signals]) -> tuple[int, bool]:
    """Return the next signal and whether it was sent to this process; a terminal sends its to the program too."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        number = signal.sigwait(watched)
        return number, number not in (signal.SIGINT, signal.SIGQUIT)
    info = signal.sigwaitinfo(watched)
    return info.si_signo, info.si_code <= 0  # the kernel's are above


def _ending(status: int) -> str | None:
    """Return how the program ended, if not well."""
    if status == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    reason = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"the program ended {reason}"


def _exit_code(status: int) -> int:
    """Return the program's exit code; if a signal ended it, end by the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the program's
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


# -- the end ----------------------------------------------------------------------------------------------------------


def _arrange(folder: str, captured: Sequence[str]) -> dict[str, Process]:
    """Move processes to where they belong in the run, and remove those beside it; return those that are by their path.

    Behind a URL, and while one of them still writes, they stay where they are: readers find the run among them.
    """
    from tpunb.io import job_folder
    from tpunb.io.run_folder import LATEST, RUN, is_written
    from tpunb.io.storage import local

    if "://" in folder:
        return {f"{folder}/{name}": job_folder.Process(name, None, 0, 0) for name in captured}
    captured = [name for name in captured if Path(folder, name, RUN).is_file()]  # the others are in memory
    files = {f"{name}/{file}": local(Path(folder, name, file)) for name in captured for file in (RUN, LATEST)}
    processes = {name: job_folder.read(name, files) for name in captured}
    places = job_folder.places(processes.values())
    if any(is_written(Path(folder, name)) for name in captured):
        return {f"{folder}/{name}": processes[name] for name in places}
    for name in processes.keys() - places.keys():
        shutil.rmtree(Path(folder, name), ignore_errors=True)
    return {_move(Path(folder, name), place): processes[name] for name, place in places.items()}


def _move(process: Path, place: str) -> str:
    """Move the folder of a process to its place in the run, "" for the run itself; return its new path."""
    from tpunb.io.run_folder import RUN

    run = process.parent
    try:
        if place == "":
            # last the file that makes it a run
            names = sorted((path.name for path in process.iterdir()), key=lambda name: name == RUN)
            if any((run / name).exists() for name in names):
                return str(process)  # a program has its own files there
            for name in names:
                (process / name).rename(run / name)
            process.rmdir()
            return str(run)
        if place.startswith("-"):
            target = next(free for n in count(2) if not (free := run.with_name(f"{run.name}-{n}")).exists())
        else:
            target = run / place
            target.parent.mkdir(exist_ok=True)
        if not target.exists():
            return str(process.rename(target))
    except OSError as error:
        _print(f"a run stays in {relative(process)}: {format_error(error)}")
    return str(process)


def _print_end(folder: str, runs: Mapping[str, Process], ending: str | None, earlier: str | None) -> None:
    """Print what was captured, and the command that shows it: the job, else the run of most steps."""
    from tpunb.io.job_folder import RANK

    if not runs:
        rounds = "rounds of another library are steps by `with run.step(i):`, see docs/steps.md"
        _print(f"nothing was captured: no process that can be captured imported {_FRAMEWORKS}; {rounds}")
        return
    top, where = Path(folder), {path: Path(path) for path in runs}
    ranks = [path for path in runs if RANK.fullmatch(where[path].name) and where[path].parent == top]
    earlier_ranks = [path for path in runs if where[path].parent.parent == top and where[path].parent != top]
    attempts, is_job = {where[path].parent for path in earlier_ranks}, len(ranks) > 1
    shown = folder if is_job else max(runs, key=lambda path: runs[path].steps or 0)
    steps = [runs[path].steps for path in (ranks if is_job else [shown])]
    most = None if None in steps else plural(max(filter(None, steps), default=0), "step")
    others = [_shown(path) for path in runs if path not in (shown, *ranks, *earlier_ranks)]
    parts = [
        ending,
        None if most is None else f"{most} recorded{f' in {len(ranks)} processes' * is_job}",
        f"other processes were captured too: {', '.join(others)}" if others else None,
        f"{plural(len(attempts), 'earlier attempt')} of the job" if attempts else None,
        earlier,
        f"to see it: tpunb report {shlex.quote(_shown(shown))}",
    ]
    _print("; ".join(filter(None, parts)))
    if sys.stderr.isatty() and "://" not in shown and (sentence := _first_sentence(shown)):
        _print(sentence)


_REPORT_S = 20.0


def _first_sentence(run: str) -> str | None:
    """Return the verdict of a run's report; None if it takes long, or what reads runs is not installed."""
    report = [sys.executable, "-P", "-m", "tpunb", "report", run, "--json"]  # imports nothing of the working directory
    with suppress(OSError, subprocess.SubprocessError, ValueError, KeyError):
        shown = subprocess.run(report, capture_output=True, text=True, timeout=_REPORT_S).stdout
        return str(json.loads(shown)["verdict"]["sentence"])
    return None


def _shown(path: str) -> str:
    return path if "://" in path else relative(Path(path))


# -- commands that read runs ------------------------------------------------------------------------------------------

_USAGE_CODE, _DATA_CODE = 64, 65  # as in sysexits.h; 0, 1 and 2 are answers, and 3
_CODES = {False: 0, True: 1, None: 2}
_STANDS_CODE = 3  # the training stands still
_PATH = "path of a run, a profiler's file or folder, or a URL"


def _read(command: str, words: Sequence[str]) -> int:
    """Run a command that reads runs; a wrong command or an unreadable run is one line on stderr."""
    about, example, add_options, answer = _COMMANDS[command]
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(f"tpunb {command}", description=about, epilog=f"example: {example}", formatter_class=form)
    add_options(parser)
    try:
        options = parser.parse_args(words)
        with warnings.catch_warnings(), extras_named():
            warnings.showwarning = lambda message, *_: _print(str(message))
            code = answer(options)
            sys.stdout.flush()
        return code
    except SystemExit:  # of --help
        return 0
    except _WrongUsage as error:
        _print(format_error(error))
        return _USAGE_CODE
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  a traceback helps nobody at a terminal
        instead = [_instead(command, words, error)] * isinstance(error, (ProfileNotFound, BadProfile))
        _print("; ".join([format_error(error), *instead]))
        return _DATA_CODE


def _instead(command: str, words: Sequence[str], error: Exception) -> str:
    """Return a command that reads a run near the place that an error names, the latest; else one that records a run."""
    from tpunb.io.run_folder import RUN

    place = next((word for word in words if word in str(error)), "runs")
    for near in (Path(place), Path(place).parent, Path("runs")):
        with suppress(OSError, ValueError):
            runs = [file for file in near.glob(f"*/{RUN}") if str(file.parent) not in words and file.stat().st_size]
            run = max(runs, key=lambda file: file.stat().st_mtime).parent
            found = str(run.parent if command in ("runs", "watch", "mcp") else run)
            given = words if place in words else [*words, place]
            return shlex.join(["tpunb", command, *(found if word == place else word for word in given)])
    return _run_of(["train.py"])


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help=_PATH)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, see docs/report.md")
    form.add_argument("--markdown", action="store_true", help="print Markdown, such as for a comment")
    parser.add_argument(
        "--fail-below", metavar="goodput=SHARE", type=_goodput, help="exit 1 below this share of run time"
    )


def _goodput(text: str) -> float:
    name, _, share = text.partition("=")
    if name != "goodput" or not 0 < _number(share) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not goodput=SHARE, such as goodput=0.8")
    return _number(share)


def _number(text: str) -> float:
    """Return a share, such as 0.03 or 3%."""
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        return math.nan


def _report(options: argparse.Namespace) -> int:
    from tpunb.analysis import report

    found = report(options.run)
    if options.json or options.markdown:
        print(found.to_json(indent=_indent()) if options.json else found.to_markdown())
    else:
        _print_report(found)
    if found.stands:
        return _STANDS_CODE
    if options.fail_below is None:
        return 0
    below, why = found.is_below(options.fail_below)
    _print(why)
    return _CODES[below]


def _print_report(found: Report) -> None:
    print(found.to_text(bold="\x1b[1m{}\x1b[0m" if _is_styled() else "{}"))


def _attach_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "process", metavar="PID", type=_process, help="number of a Python process of this machine and user"
    )
    parser.add_argument(
        "--for", dest="seconds", metavar="TIME", type=_time, default=30.0, help="such as 10s or 5min: 30s"
    )
    parser.add_argument("-o", "--output", metavar="RUN", help="run folder or URL; runs/<date-time> if left out")


def _time(text: str) -> float:
    """Return a time such as 30s or 5min in seconds."""
    units = {"s": 1, "min": 60, "h": 3600}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    return _seconds(text.removesuffix(unit)) * units.get(unit, 1)


def _process(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a process: pgrep -af python lists them")
    return int(text)


def _attach(options: argparse.Namespace) -> int:
    from tpunb.analysis import report
    from tpunb.profiler.attach import attach
    from tpunb.profiler.options import default_folder

    run = attach(options.process, options.seconds, options.output or default_folder())
    found = report(run)
    _print_report(found)
    _print(f"to see it again: tpunb report {shlex.quote(_shown(str(run)))}")
    return _STANDS_CODE if found.stands else 0


def _try_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="run of tpunb run, whose command is run again")
    parser.add_argument("--command", help=argparse.SUPPRESS)
    parser.add_argument("--budget", metavar="TIME", type=_time, default=60.0, help="for all trials: 60s")
    parser.add_argument("--writes-again", action="store_true", help="let each run write where the program does")


def _try(options: argparse.Namespace) -> int:
    from tpunb.tuning.tried import try_remedies

    if options.run is None and not options.command:
        raise _WrongUsage("no run and no program", hint="tpunb try runs/bert, or tpunb try -- python train.py")
    command = shlex.split(options.command) if options.command else None
    try_remedies(options.run, command, budget_s=options.budget, writes_again=options.writes_again)
    return 0


def _compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help=f"baseline: {_PATH}")
    parser.add_argument("b", help="run that may be slower")
    parser.add_argument("--fail-slower", metavar="SHARE", type=_limit, default=0.03, help="slow-down that matters: 3%%")
    parser.add_argument("--json", action="store_true", help="print JSON, see docs/report.md")


def _limit(text: str) -> float:
    if not 0 < (limit := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0, such as 3%")
    if limit >= 1 and "%" not in text:  # as a share, no run would ever be slower
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1: write {text.strip()}% for percent")
    return limit


def _compare(options: argparse.Namespace) -> int:
    from tpunb.analysis import compare, slowdown

    compared = compare(options.a, options.b)
    found = slowdown(compared, options.fail_slower)
    code = _CODES[found.slower]
    content = {**found.content, "accounts": compared.seconds, "exit": code}
    text = "\n".join([found.sentence, *["b against a:"] * bool(compared.lines), *compared.lines])
    print(json.dumps(content, indent=_indent()) if options.json else text)
    return code


_EACH_KIND = -1  # no step has this number


def _steps_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help=_PATH)
    parser.add_argument(
        "--explain",
        nargs="?",
        type=int,
        const=_EACH_KIND,
        metavar="N",
        help="say which rule and which events made step N, and its kind; without N the first step of each kind",
    )


def _steps(options: argparse.Namespace) -> int:
    from tpunb.analysis.run import steps

    found = steps(options.run)
    if not found.are_counted:
        raise TpunbError(f"the steps of {found.name} were not counted: it was observed from outside", hint="tpunb run")
    kinds, first = found.frame["kind"].to_list(), found.frame.unique("kind", keep="first", maintain_order=True)
    if options.explain is None:
        lines = [plain(f"{kind}: {plural(kinds.count(kind), 'step')}") for kind in first["kind"]]
    else:
        lines = [*map(found.explain, first["step"] if options.explain == _EACH_KIND else [options.explain])]
    print("\n".join(lines))
    return 0


def _runs_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", help="folder of runs at any depth; runs if left out")
    parser.add_argument("--json", action="store_true", help="print JSON, a row of tpunb.schema.RUNS for each run")
    parser.add_argument(
        "--tried", action="store_true", help="list the remedies that `tpunb try` tried, and their gains"
    )


def _runs(options: argparse.Namespace) -> int:
    from tpunb.analysis import runs

    if options.tried:
        from tpunb.tuning.tried import tried

        found = tried(options.folder).to_dicts()
        if options.json:
            print(json.dumps(found, indent=_indent()))
            return 0
        heads = [("RUN", "CAUSE", "CHANGE", "DECISION", "OUTPUT", "PROMISED", "SAVED", "OF")]
        words = [[str(each[name]) for name in ("run", "cause", "change", "decision", "output")] for each in found]
        seconds = [[each[name] for name in ("promised_s", "saved_s", "before_s")] for each in found]
        shown_s = [["-" if time_s is None else f"{time_s:.2f} s" for time_s in row] for row in seconds]
        _print_table([*heads, *(tuple(map(plain, [*row, *more])) for row, more in zip(words, shown_s, strict=True))])
        return 0
    frame = runs(options.folder)
    if options.json:
        rows = frame.with_columns(started=frame["started"].dt.to_string("iso:strict")).to_dicts()
        print(json.dumps(rows, indent=_indent()))
        return 0
    titles = "STARTED", "RUN", "PROGRAM", "DEVICE", "TIME", "GOODPUT", "STEP", "STEPS", "PHASES"
    shown: list[tuple[str, ...]] = [(*titles, "SAMPLES/S", "TOKENS/S", "MFU", "STATE")]
    for started, name, program, device, wall_ps, share, step_ps, steps, phases, *rates, state in frame.iter_rows():
        when = "-" if started is None else f"{started:%Y-%m-%d %H:%M}"
        times = ("-" if wall_ps is None else duration(wall_ps), "-" if share is None else percent(share))
        step = "-" if step_ps is None else short_time(step_ps)
        names = (cut(plain(text or "-"), 32) for text in (program, device))
        counts = "-" if steps is None else f"{steps:,}", "-" if phases is None else f"{phases}"
        per_s = ("-" if rate is None else f"{rate:,.4g}" if rate < 1000 else f"{rate:,.0f}" for rate in rates[:2])
        mfu = "-" if rates[2] is None else percent(rates[2])
        shown.append((when, plain(name or "-"), *names, *times, step, *counts, *per_s, mfu, plain(state or "-")))
    _print_table(shown)
    return 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _watch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", help="local folder of runs at any depth; runs if left out")
    parser.add_argument("--once", action="store_true", help="print the runs that continue, and end")
    parser.add_argument("--every", metavar="SECONDS", type=_seconds, default=5.0, help="between two looks: 5")


def _seconds(text: str) -> float:
    if not 0 < (seconds := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 5")
    return seconds


def _watch(options: argparse.Namespace) -> int:
    """Print a line for each run that continues, and again as it changes, until none does."""
    from tpunb.analysis.live import live

    printed = dict[str, str]()
    while True:
        runs = live(options.folder)
        shown = [run for run in runs if run.state == "running" or run.name in printed]
        for run in shown:
            if printed.get(run.name) != run.line:
                print(run.line, flush=True)
                printed[run.name] = run.line
        going = [run for run in runs if run.state == "running"]
        if options.once or not going:
            if not shown:
                print(f"no run continues in {plain(options.folder)}")
            return _STANDS_CODE if any(run.stands for run in shown) else 0
        time.sleep(options.every)


def _view_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help=_PATH)
    parser.add_argument("-o", "--output", metavar="FILE", help="HTML file; a new one in a temporary folder if left out")


def _view(options: argparse.Namespace) -> int:
    from tpunb.widgets.summary import summary

    shown = summary(options.run)
    path = Path(options.output or Path(mkdtemp(prefix="tpunb-"), f"{Path(options.run).name or 'run'}.html"))
    page = shown.save(path) if shown.explorer is None else shown.explorer.save(path)
    print(page)
    if _has_display():
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
    return 0


def _mcp_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="local folder of runs; nothing outside it is read as a run")


def _mcp(options: argparse.Namespace) -> int:
    from tpunb.mcp_server import serve

    serve(options.folder)
    return 0


def _indent() -> int | None:
    """Return the indent of JSON: in one line for a program."""
    return 1 if sys.stdout.isatty() else None


def _has_display() -> bool:
    """Return whether a browser that opens is seen: not over ssh, nor where the output is no terminal."""
    if not sys.stdout.isatty() or any(name in os.environ for name in ("SSH_CONNECTION", "SSH_TTY")):
        return False
    return sys.platform in ("darwin", "win32") or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _is_styled() -> bool:
    """Return whether to print bold text: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_COMMANDS: dict[str, tuple[str, str, Callable[..., None], Callable[..., int]]] = {
    "report": (
        "Report on a run: what took the time, what to do first, what is not known.\n\n"
        "Exit code: 0; with --fail-below 1 if goodput is below it, 2 if it is unknown.\n"
        "3 if the training stands still. "
        "64 for wrong usage, 65 for a run that cannot be read.",
        "tpunb report runs/bert --json --fail-below goodput=0.8 | jq .verdict.sentence",
        _report_options,
        _report,
    ),
    "attach": (
        "Observe a training that was started without tpunb, from outside, and report on what was seen.\n"
        "Nothing runs in the process, and nothing stays there. Ctrl-C ends the observation. Steps are not counted.\n"
        f"Requires py-spy: {install('attach')}\n\n"
        "Exit code: 0; 3 if the training stands still.\n"
        "64 for wrong usage, 65 for a process that cannot be observed.",
        "tpunb attach 4711 --for 30s -o runs/bert",
        _attach_options,
        _attach,
    ),
    "try": (
        "Run a program in turns with and without each of the first remedies of its run, in fresh processes that write\n"
        "to a copy of its folder, and print what each saves and whether the output is equal.\n\n"
        "Exit code: 0; 64 for wrong usage, 65 for a program that fails.",
        "tpunb try --budget 2min -- python train.py",
        _try_options,
        _try,
    ),
    "compare": (
        "Decide whether the steps of run b are slower than those of run a, by a 99 % interval.\n\n"
        "Exit code: 0 if a slow-down by the limit is ruled out, 1 if b is slower, 2 if neither is certain.\n"
        "64 for wrong usage, 65 for runs that cannot be read or are not of one model.",
        "tpunb compare runs/main runs/change --fail-slower 3%",
        _compare_options,
        _compare,
    ),
    "steps": (
        "List the kinds of steps of a run, or say which rule and which events of the program make a step.",
        "tpunb steps runs/bert --explain 12",
        _steps_options,
        _steps,
    ),
    "watch": (
        "Follow the runs of a folder that continue: a line for each, again as it changes, until none does.\n\n"
        "Exit code: 0; 3 if a training stands still.\n64 for wrong usage, 65 for a folder that cannot be read.",
        "tpunb watch runs",
        _watch_options,
        _watch,
    ),
    "runs": ("List the runs in a folder.", "tpunb runs experiments", _runs_options, _runs),
    "view": (
        "Write a run as one page and open it; without a display, print its path.",
        "tpunb view runs/bert -o bert.html",
        _view_options,
        _view,
    ),
    "mcp": (
        "Answer a client of the Model Context Protocol, which starts this command, about the runs in a folder.\n"
        f"Nothing is written to the folder. Requires the package mcp: {install('mcp')}",
        "tpunb mcp /home/me/runs",
        _mcp_options,
        _mcp,
    ),
}


# -- output -----------------------------------------------------------------------------------------------------------

_SPELLED = {"←": "<-", "→": "->", "…": "...", "µ": "u", "·": "-", "–": "-", "×": "x", "≥": ">="}


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Return what an output shows for characters that its encoding lacks: JSON stays JSON."""
    assert isinstance(error, UnicodeEncodeError)  # the stream only writes
    lacking = error.object[error.start : error.end]
    return "".join(_SPELLED.get(char) or json.dumps(char)[1:-1] for char in lacking), error.end


codecs.register_error("tpunb", _spell)


def _writable(stream: Any) -> Any:
    """Return a stream that any text can be written to; what closed streams are given is dropped."""
    if getattr(stream, "closed", stream is None):
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  open as long as the process
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="tpunb")
    return stream


def _settle(stream: Any) -> None:
    """Write the rest of a stream; if nobody reads it, drop it, or the interpreter fails to as it ends."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(line: str) -> None:
    with suppress(OSError):  # nobody reads it
        print(f"tpunb: {plain(line)}", file=sys.stderr)
