"""``%load_ext tpunb``: ``%%tpupoint`` over a training cell, ``%tpupoint`` over a statement or an earlier run."""

from __future__ import annotations

import ast
import io
import keyword
import re
import shlex
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.core.magic_arguments import argument, argument_group, magic_arguments

from tpunb.cluster import OLS, phases
from tpunb.errors import NoSteps, TpunbError
from tpunb.frames import PhaseMethod, Profile
from tpunb.io import load
from tpunb.recorder import TPU, Address, Run, Schedule, Source, capture
from tpunb.stepping import steps
from tpunb.tuning.online import Online, tuned
from tpunb.widgets.knobs import METHODS
from tpunb.widgets.live_line import LiveLine, place
from tpunb.widgets.summary import Summary

_KEEP = ("none", "phases", "all")
_FLAGS = ("-h", "--help", "--continuous", "--tune", "--quiet")
_OF_A_TPU = ("zone", "project", "port")
_WHEN = ("budget", "window", "every", "continuous", "until")
_OF_A_RUN = ("address", "tpu", *_OF_A_TPU, *_WHEN, "run", "keep", "tune", "tune_budget")


class _Look(NamedTuple):
    """How a result is shown."""

    method: PhaseMethod
    var: str  # that gets it
    show: Callable[[object], None]
    online: Online | None = None  # what was tuned meanwhile


@magics_class
class TpupointMagics(Magics):
    """The magics of tpunb."""

    shell: Any  # IPython declares it as optional; a registered magic always has one

    @magic_arguments()
    @argument("statement", nargs="*", help="%%tpupoint: the statement to watch")
    @argument("-h", "--help", action="store_true", dest="wants_help", help="show this help")
    @argument_group("what is watched (default: this process)")
    @argument("--address", metavar="HOST:PORT", action="append", help="a profiler service; several by commas or again")
    @argument("--tpu", metavar="NAME", help="a Cloud TPU by its name, all its workers; local for this TPU VM")
    @argument("--zone", metavar="ZONE", help="of the TPU (default: this machine's)")
    @argument("--project", metavar="PROJECT", help="of the TPU (default: this machine's)")
    @argument("--port", metavar="PORT", type=int, help="of the TPU's profilers (default: 8466, on a TPU VM 9012)")
    @argument_group("when (default: as often as a slow-down of 2 % allows)")
    @argument("--budget", metavar="SHARE", type=float, help="slow-down to stay within (default: 0.02, which is 2 %%)")
    @argument("--window", metavar="SECONDS", type=float, help="watch this long each time, whatever it costs (1)")
    @argument("--every", metavar="SECONDS", type=float, help="watch this often, whatever it costs (10)")
    @argument("--continuous", action="store_true", help="watch back to back, as the paper did")
    @argument("--until", metavar="STEP", type=int, help="stop watching at this step; the cell goes on")
    @argument_group("what is changed (default: nothing)")
    @argument("--tune", action="store_true", help="tune the input pipeline of fit while it runs, the output unchanged")
    @argument("--tune-budget", metavar="SECONDS", type=float, help="for tuning (default: 5 %% of the run)")
    @argument_group("what stays")
    @argument("--run", metavar="DIR", help="the run folder or its URL (default: runs/<date and time>)")
    @argument("--keep", choices=_KEEP, help="raw windows, for XProf: none, one a phase (default), or all")
    @argument_group("what is shown")
    @argument("--method", choices=tuple(METHODS), default="dbscan", help="how steps are grouped (default: dbscan)")
    @argument("--threshold", metavar="X", type=float, help="similarity at which ols merges steps (default: 0.7)")
    @argument("--var", metavar="NAME", default="tpu", help="variable that gets the result (default: tpu)")
    @argument("--quiet", action="store_true", help="show nothing; the result is in the variable")
    @argument("--load", metavar="DIR", help="show an earlier run, here or at a URL; nothing is run")
    @no_var_expand
    @needs_local_scope
    @output_can_be_silenced
    @line_cell_magic
    def tpupoint(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Watch a cell or a statement, cut its steps into phases, and show them.

        The value of the last expression stays the cell's ``Out``; the result goes into the variable ``tpu``.

        Examples
        --------
        ::

            %%tpupoint --run runs/mnist
            model.fit(data, epochs=3)

        ::

            %tpupoint --load runs/mnist
        """
        __tracebackhide__ = True
        options, statement = self._options(line, is_cell=cell is not None)
        if options.wants_help:
            print(self.tpupoint.__doc__)
            return None
        method = _method(options)
        if options.load is not None:
            if statement or cell is not None:
                raise UsageError("--load shows an earlier run: it takes no code")
            if given := [f"--{name.replace('_', '-')}" for name in _OF_A_RUN if _given(getattr(options, name))]:
                raise UsageError(f"--load shows an earlier run: it takes no {', '.join(given)}")
            shown = LiveLine(place(self.shell, quiet=options.quiet)).show
            self._show(_load(options.load), _Look(method, options.var, shown))
            return None
        source = statement if cell is None else cell
        if not source.strip():
            raise UsageError("there is no code to watch (-h shows the options)")
        return self._watch(source, options, method, local_ns)

    def _options(self, line: str, *, is_cell: bool) -> tuple[Any, str]:
        """Split the line into options and, for the line magic, the statement as it was typed."""
        try:
            words, statement = (shlex.split(line, comments=True), "") if is_cell else _split(line)
        except ValueError as error:
            raise UsageError(f"cannot read the options {line!r}: {error}") from None
        parsed = self.tpupoint.parser.parse_args(words)
        if parsed.statement:
            raise UsageError(f"unknown: {' '.join(parsed.statement)} (the code of %%tpupoint goes on the next line)")
        if not parsed.var.isidentifier() or keyword.iskeyword(parsed.var):
            raise UsageError(f"--var must be a variable's name. Got {parsed.var!r} instead.")
        return parsed, statement

    def _watch(self, source: str, options: Any, method: PhaseMethod, local_ns: dict[str, Any] | None) -> Any:
        __tracebackhide__ = True  # a traceback shows the user's lines, not ours
        run: Run | None = None
        online: Online | None = None
        asked = _asked(options)
        code = self._compiled(source)
        line = LiveLine(place(self.shell, quiet=options.quiet))
        look = _Look(method, options.var, line.show)
        try:
            with line, _tuned(options) as online, capture(options.run or _dated(), **asked) as run:
                if online is not None:
                    online.run, online.folder = run, run.path if isinstance(run.path, Path) else None
                self.shell.user_ns[options.var] = run  # in reach of the code: `with tpu.step(i):`
                line.follow(run)
                value = self._execute(code, local_ns)
        except BaseException as error:
            if run is None and isinstance(error, (TpunbError, ValueError, OSError)):  # it cannot begin
                raise UsageError(_one_line(error)) from None
            if run is not None:
                note = f"the cell raised {type(error).__name__}: what was recorded before is here"
                try:
                    self._show(load(run), look._replace(online=online), run, note)
                except Exception as ours:  # noqa: BLE001  the user's exception is the one to see
                    error.add_note(f"the partial capture in {run.path} could not be shown: {ours!r}")
            raise
        self._show_if_possible(run, look._replace(online=online))
        return value

    def _show_if_possible(self, run: Run, look: _Look) -> None:
        """Show a run; what goes wrong in that is told, and the cell keeps its value."""
        try:
            state = run.status.state
            note = f"{state}: what the cell did after that was not watched" if state.startswith("stopped") else None
            self._show(load(run), look, run, note)
        except Exception as ours:  # noqa: BLE001  the cell did its work: its value must not be lost to ours
            warnings.warn(f"the capture in {run.path} could not be shown: {ours!r}", RuntimeWarning, stacklevel=2)

    def _compiled(self, source: str) -> tuple[Any, Any]:
        """Compile code as ``%%time`` does: its last expression apart, so that it can be the cell's value."""
        __tracebackhide__ = True
        shell = self.shell
        file = shell.compile.cache(source, shell.execution_count)  # so that tracebacks show the lines
        try:
            tree = shell.transform_ast(shell.compile.ast_parse(shell.transform_cell(source), filename=file))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            body = shell.compile(tree, file, "exec") if tree.body else None
            value = shell.compile(ast.Expression(last.value), file, "eval") if last is not None else None
        except SyntaxError as error:
            if "outside" in str(error) and ("await" in str(error) or "async" in str(error)):
                raise UsageError(f"{error.msg}: use `with tp.capture(...)` around code that awaits") from None
            raise
        return body, value

    def _execute(self, code: tuple[Any, Any], local_ns: dict[str, Any] | None) -> Any:
        __tracebackhide__ = True
        body, value = code
        if body is not None:
            exec(body, self.shell.user_ns, local_ns)
        return None if value is None else eval(value, self.shell.user_ns, local_ns)

    def _show(self, profile: Profile, look: _Look, run: Run | None = None, note: str | None = None) -> None:
        found, grouped = None, None
        try:
            found = steps(profile)
            grouped = phases(found, look.method)
        except NoSteps as error:
            reason = _one_line(error)
            note = f"{note}. {reason}" if note else reason
        summary = Summary(profile=profile, steps=found, phases=grouped, note=note, run=run, online=look.online)
        self.shell.user_ns[look.var] = summary
        look.show(summary)


_OPTION = re.compile(r"--(?=\s|$)|--[a-z]|-h(?=\s|$)")


def _split(line: str) -> tuple[list[str], str]:
    """Cut a line after its leading options, which ``--`` may end: what follows is code, not to be touched.

    >>> _split("--run 'a b' -3 + 5  # c")
    (['--run', 'a b'], '-3 + 5  # c')
    """
    words: list[str] = []
    rest = line.strip()
    while _OPTION.match(rest):
        word, rest = _word(rest)
        if word == "--":
            break
        words.append(word)
        if word not in _FLAGS and "=" not in word and rest:
            word, rest = _word(rest)
            words.append(word)
    return words, rest


def _word(text: str) -> tuple[str, str]:
    """Return the first word, as a shell reads it, and the rest as it is."""
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    word = lexer.get_token() or ""
    return word, text[stream.tell() :].lstrip()


def _method(options: Any) -> PhaseMethod:
    if options.threshold is not None and options.method != "ols":
        raise UsageError(f"--threshold is of --method ols. Got --method {options.method} instead.")
    try:
        return METHODS[options.method]() if options.threshold is None else OLS(options.threshold)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _asked(options: Any) -> dict[str, Any]:
    """Return what `capture` is asked for, apart from the folder."""
    try:
        return {
            "source": _source(options),
            "schedule": _schedule(options),
            "keep": options.keep or "phases",
            "until": options.until,
        }
    except ValueError as error:
        raise UsageError(str(error)) from None


def _given(value: object) -> bool:
    return value is not None and value is not False  # 0 was given


def _source(options: Any) -> Source | None:
    of_a_tpu = {name: value for name in _OF_A_TPU if (value := getattr(options, name)) is not None}
    if options.tpu is None and of_a_tpu:
        raise UsageError(f"--{next(iter(of_a_tpu))} is of --tpu NAME, which is not given")
    if options.tpu is None and options.address is None:
        return None
    if options.tpu is None:
        return Address(*(one.strip() for given in options.address for one in given.split(",")))
    if options.address is not None:
        raise UsageError("--tpu finds the addresses by itself: it takes no --address")
    return TPU(options.tpu, **of_a_tpu)


def _schedule(options: Any) -> Schedule:
    fixed = {name: value for name in ("window", "every") if (value := getattr(options, name)) is not None}
    if options.continuous and "every" in fixed:
        raise UsageError("--continuous watches back to back: it takes no --every")
    if options.budget is not None:
        if fixed or options.continuous:
            raise UsageError("--budget says when to watch: it takes no --window, --every or --continuous")
        return Schedule(budget=options.budget)
    if options.continuous:
        return Schedule.continuous(**fixed)
    return Schedule.fixed(**fixed) if fixed else Schedule()


def _tuned(options: Any) -> AbstractContextManager[Online | None]:
    if options.tune:
        return tuned(budget=options.tune_budget)
    if options.tune_budget is not None:
        raise UsageError("--tune-budget is of --tune, which is not given")
    return nullcontext()


def _dated() -> Path:
    """Return a run folder of now: a kernel that is killed leaves a run that can be loaded."""
    return Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}")


def _one_line(error: Exception) -> str:
    return "; ".join(filter(None, [str(error), getattr(error, "hint", None)]))


def _load(path: str) -> Profile:
    try:
        return load(path)
    except TpunbError as error:
        raise UsageError(_one_line(error)) from None


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Teach this shell ``%tpupoint`` and ``%%tpupoint``."""
    shell.register_magics(TpupointMagics)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Make the shell as it was."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tpupoint", None)
