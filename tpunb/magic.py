"""``%load_ext tpunb``: ``%%tpupoint`` profiles a cell, ``%tpupoint`` a statement; ``--load`` shows an earlier run."""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
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
from IPython.core.magic_arguments import ArgDecorator, argument, argument_group, magic_arguments

from tpunb import charts
from tpunb.analysis import runs
from tpunb.charts import render
from tpunb.charts.style import names_of
from tpunb.errors import TpunbError, warn_user
from tpunb.frames import Profile
from tpunb.io import load
from tpunb.profiler.capture import Run, capture
from tpunb.profiler.options import (
    OF_CAPTURE,
    add_group,
    capture_arguments,
    default_folder,
    help_text,
    phase_method,
    reject,
)
from tpunb.text import duration, format_error, percent, plural
from tpunb.tuning.online import Online, tuned
from tpunb.widgets.frontends import LiveLine, OutputTarget, hide_profiler_log, in_kernel, output_target
from tpunb.widgets.summary import summary
from tpunb.widgets.table import Table, block, table, text

_FLAGS = ("-h", "--help", "--continuous", "--no-stacks", "--tune", "--quiet")
_OF_CAPTURE = (*OF_CAPTURE, "tune", "tune_budget")


class _group(ArgDecorator):  # noqa: N801  named like IPython's decorators
    """Options that the magic shares with ``tpunb run``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def add_to_parser(self, parser: argparse.ArgumentParser, group: Any) -> Any:
        return add_group(parser, self._name, "%%tpupoint {}")


@magics_class
class TpupointMagics(Magics):
    """The magics of tpunb."""

    shell: Any  # IPython declares it as optional; a registered magic always has one

    @magic_arguments()
    @argument("statement", nargs="*", help="the statement that %%tpupoint profiles")
    @argument("-h", "--help", action="store_true", dest="wants_help", help="show this help")
    @_group("source")
    @_group("schedule")
    @argument_group("what to change (default: nothing)", description="%%tpupoint --tune --tune-budget 60")
    @argument("--tune", action="store_true", help="tune the input pipeline during fit, with unchanged results")
    @argument("--tune-budget", metavar="SECONDS", type=float, help="time for tuning (default: 5 %% of run time)")
    @_group("keep")
    @_group("show")
    @argument("--var", metavar="NAME", default="tpu", help="variable for the result (default: tpu)")
    @argument("--quiet", action="store_true", help="show nothing; the result is in the variable")
    @argument_group("earlier runs, without code", description="%tpupoint --load runs/bert")
    @argument("--load", metavar="DIR", help="show an earlier run from a folder or URL")
    @argument("--history", metavar="FOLDER", nargs="?", const="runs", help="show the runs of a folder (default: runs)")
    @no_var_expand
    @needs_local_scope
    @output_can_be_silenced
    @line_cell_magic
    def tpupoint(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Profile a cell or a statement, group its steps into phases, and show them.

        The value of the last expression is still the cell's ``Out``; the result is stored in the variable ``tpu``.

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
            print(help_text(self.tpupoint.parser, "%tpupoint", _ABOUT))
            return None
        with _usage_errors():
            options.method = phase_method(options)
        target = output_target(self.shell, quiet=options.quiet)
        if reads := next((f"--{name}" for name in ("load", "history") if getattr(options, name) is not None), None):
            if statement or cell is not None:
                raise UsageError(f"{reads} cannot be combined with code")
            _reject(options, _OF_CAPTURE, f"{reads} cannot be combined with {{}}")
            if options.history is not None:
                _reject(options, ["load"], "--history cannot be combined with {}")
                with _usage_errors():
                    target.result(History(runs(options.history)))
                return None
            with _usage_errors():
                profile = load(options.load)
            self._show(profile, options, target)
            return None
        source = statement if cell is None else cell
        if not source.strip():
            raise UsageError("no code to profile (-h lists the options)")
        return self._profile(source, options, target, local_ns)

    def _options(self, line: str, *, is_cell: bool) -> tuple[Any, str]:
        """Split the line into options and, for the line magic, the statement as it was typed."""
        try:
            words, statement = (shlex.split(line, comments=True), "") if is_cell else _split(line)
        except ValueError as error:
            raise UsageError(f"cannot parse the options {line!r}: {error}") from None
        parsed = self.tpupoint.parser.parse_args(words)
        if parsed.statement:
            raise UsageError(f"unexpected text: {' '.join(parsed.statement)} (put code on the line after %%tpupoint)")
        if not parsed.var.isidentifier() or keyword.iskeyword(parsed.var):
            raise UsageError(f"--var must be a variable name (got {parsed.var!r})")
        return parsed, statement

    def _profile(self, source: str, options: Any, target: OutputTarget, local_ns: dict[str, Any] | None) -> Any:
        __tracebackhide__ = True  # tracebacks show the lines of the user alone
        run: Run | None = None
        online: Online | None = None
        arguments = _capture_arguments(options)
        folder = options.run or default_folder()
        code = self._compiled(source, _lines_above(self.shell, source))
        try:
            with LiveLine(target) as line, _tuned(options) as online, capture(folder, **arguments) as run:
                run.variable = options.var
                if online is not None:
                    online.run, online.folder = run, run.path if isinstance(run.path, Path) else None
                self.shell.user_ns[options.var] = run  # for `with tpu.step(i):` in the cell
                line.follow(run)
                with nullcontext() if online is None else online.timed():
                    value = self._execute(code, local_ns)
        except BaseException as error:
            if run is None and isinstance(error, (TpunbError, ValueError, OSError)):  # not started
                raise UsageError(format_error(error)) from None
            if run is not None:
                note = f"the cell raised {type(error).__name__}; this is what was recorded before it"
                try:
                    self._show(load(run), options, target, run, online, note)
                except Exception as failure:  # noqa: BLE001  the exception of the cell must not be hidden
                    error.add_note(f"the partial capture in {run.path} could not be shown: {failure!r}")
            raise
        try:
            state = run.status.state
            stopped = f"{state}: the rest of the cell was not profiled" if state.startswith("stopped") else None
            self._show(load(run), options, target, run, online, stopped)
        except Exception as failure:  # noqa: BLE001  the value of the cell must not be lost
            warn_user(f"the capture in {run.path} could not be shown: {failure!r}", RuntimeWarning, stacklevel=2)
        return value

    def _compiled(self, source: str, above: int) -> tuple[Any, Any]:
        """Compile code as ``%%time`` does, the last expression as the cell's value; so many lines are `above` it."""
        __tracebackhide__ = True
        shell = self.shell
        blank = re.match(r"(?:[ \t]*\n)*", source).group()  # type: ignore[union-attr]  # IPython removes these lines
        above += blank.count("\n")
        code = source[len(blank) :]
        file = shell.compile.cache("\n" * above + code, shell.execution_count)  # so that tracebacks show the lines
        try:
            lines = "\n" * above + shell.transform_cell(code)
            tree = shell.transform_ast(shell.compile.ast_parse(lines, filename=file))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            body = shell.compile(tree, file, "exec") if tree.body else None
            value = shell.compile(ast.Expression(last.value), file, "eval") if last is not None else None
        except SyntaxError as error:
            if "outside" in str(error) and ("await" in str(error) or "async" in str(error)):
                raise UsageError(f"{error.msg}: use `with tp.capture(...)` for code that awaits") from None
            raise
        return body, value

    def _execute(self, code: tuple[Any, Any], local_ns: dict[str, Any] | None) -> Any:
        __tracebackhide__ = True
        body, value = code
        if body is not None:
            exec(body, self.shell.user_ns, local_ns)
        return None if value is None else eval(value, self.shell.user_ns, local_ns)

    def _show(
        self,
        profile: Profile,
        options: Any,
        target: OutputTarget,
        run: Run | None = None,
        online: Online | None = None,
        note: str | None = None,
    ) -> None:
        shown = summary(profile, method=options.method, note=note)
        note = None if shown.note is None else _of_variable(shown.note, options.var)
        shown = replace(shown, note=note, run=run, online=online)
        self.shell.user_ns[options.var] = shown
        target.result(shown)


_ABOUT = (
    "%%tpupoint [options] profiles the cell below it, %tpupoint [options] CODE a statement.",
    "The value of the last expression is still the cell's Out; the result is in the variable tpu.",
)
_OPTION = re.compile(r"--(?=\s|$)|--[a-z]|-h(?=\s|$)")


def _split(line: str) -> tuple[list[str], str]:
    """Split a line after its leading options, which ``--`` may end, from the code that follows.

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


def _lines_above(shell: Any, source: str) -> int:
    """Return how many lines of the running cell are above `source`; 1, the line of the magic, without a history."""
    history: list[str] = getattr(shell.history_manager, "input_hist_raw", [])
    cell, code = ["", *history][-1].rstrip(), source.rstrip()
    if cell.endswith("\n" + code):
        return cell.count("\n", 0, len(cell) - len(code))
    lines = [at for at, line in enumerate(cell.split("\n")) if "%tpupoint" in line and line.rstrip().endswith(code)]
    return lines[0] if lines else 1


def _word(text: str) -> tuple[str, str]:
    """Return the first word as a shell reads it, and the unchanged rest."""
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    word = lexer.get_token() or ""
    return word, text[stream.tell() :].lstrip()


def _capture_arguments(options: Any) -> dict[str, Any]:
    with _usage_errors():
        return capture_arguments(options)


def _reject(options: Any, names: Iterable[str], message: str) -> None:
    with _usage_errors():
        reject(options, names, message)


def _tuned(options: Any) -> AbstractContextManager[Online | None]:
    if options.tune:
        return tuned(budget=options.tune_budget)
    _reject(options, ["tune_budget"], "{} requires --tune")
    return nullcontext()


def _of_variable(note: str, variable: str) -> str:
    """Return a note whose hint names the variable of the magic in place of ``run``."""
    return re.sub(r"\brun\.(?=(?:step|batches)\()", f"{variable}.", note)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except (TpunbError, ValueError) as error:
        raise UsageError(format_error(error)) from None


_on_unload: list[Callable[[], None]] = []


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%tpupoint`` and ``%%tpupoint`` in this shell."""
    shell.register_magics(TpupointMagics)
    if in_kernel() and hasattr(sys.stderr, "register_hook") and not _on_unload:
        _on_unload.append(hide_profiler_log(sys.stderr))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove the magics from this shell."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tpupoint", None)
    while _on_unload:
        _on_unload.pop()()


_HEADER = ["Run", "Started (UTC)", "Program", "Device", "Run time", "Goodput", "Step time", "Steps", "Phases"]


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Runs of a folder (``tpunb.schema.RUNS``), shown with the last first."""

    runs: pl.DataFrame

    @property
    def _table(self) -> Table:
        names = names_of(self.runs["name"])
        rows = [
            [
                name,
                "–" if run["started"] is None else f"{run['started']:%Y-%m-%d %H:%M}",
                run["program"] or "–",
                run["device"] or "–",
                _cell(run["wall_ps"], duration),
                _cell(run["goodput"], percent),
                _cell(run["step_ps"], duration),
                _cell(run["steps"], "{:,}".format),
                _cell(run["phases"], "{:,}".format),
            ]
            for name, run in zip(names, self.runs.iter_rows(named=True), strict=True)
        ]
        return table("Runs, the last first", _HEADER, rows[::-1])

    @property
    def _headline(self) -> str:
        return plural(self.runs.height, "run")

    def __repr__(self) -> str:
        return "\n".join([self._headline, *text(self._table)[1:]])

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        picture = render.inline(charts.history(self.runs))
        page = block([self._headline], [], picture, [self._table], [])
        return {"text/html": page, "text/plain": repr(self)}


def _cell(value: Any, form: Any) -> str:
    return "–" if value is None else str(form(value))
