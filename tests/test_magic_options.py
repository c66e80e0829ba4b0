"""Options of the magic: what they ask for, what is refused in one line before any code runs, and the help."""

import linecache
import re
import sys
import traceback
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from stand_in import StandIn

import tpunb as tp
from tpunb.errors import MissingExtra, NoSteps, TpunbError
from tpunb.profiler import capture
from tpunb.testing import toy_steps


@pytest.fixture
def shell(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    monkeypatch.setattr(capture, "Local", StandIn)  # whatever framework earlier tests of this process have used
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # which a shell replaces
    made = InteractiveShell.instance(config=config)
    made.run_line_magic("load_ext", "tpunb")
    yield made
    InteractiveShell.clear_instance()


@pytest.fixture
def magics(shell):
    """The magics of tpunb that the shell has registered."""
    (magics,) = [one for one in shell.magics_manager.registry.values() if hasattr(one, "tpupoint")]
    return magics


@pytest.fixture
def arguments(magics):
    """The arguments of `capture` for a line of options."""
    from tpunb.magic import _capture_arguments

    return lambda line: _capture_arguments(magics._options(line, is_cell=True)[0])


@pytest.fixture
def refused(shell):
    """What a line magic, or a cell with code, is refused with; no code has run then."""
    from IPython.core.error import UsageError

    def refused(line, cell="ran = True"):
        with pytest.raises(UsageError) as caught:
            if cell is None:
                shell.run_line_magic("tpupoint", line)
            else:
                shell.run_cell_magic("tpupoint", line, cell)
        assert "ran" not in shell.user_ns
        return str(caught.value)

    return refused


SCHEDULES = {
    "": {"window": 1.0, "every": 10.0, "burst": 3, "budget": "auto"},
    "--budget 0.1": {"window": 1.0, "every": 10.0, "burst": 3, "budget": 0.1},
    "--window 0.5": {"window": 0.5, "every": 10.0, "burst": 0, "budget": None},
    "--every 4": {"window": 1.0, "every": 4.0, "burst": 0, "budget": None},
    "--window 0.5 --every 2": {"window": 0.5, "every": 2.0, "burst": 0, "budget": None},
    "--continuous": {"window": 1.0, "every": 0.0, "burst": 0, "budget": None},
    "--continuous --window 0.2": {"window": 0.2, "every": 0.0, "burst": 0, "budget": None},
}


def test_options_give_the_schedule(arguments):
    assert {line: vars(arguments(line)["schedule"]) for line in SCHEDULES} == SCHEDULES


SOURCES = {
    "": "None",
    "--address a:1": "Address('a:1')",
    "--address a:1,b:2 --address=[::1]:3": "Address('a:1', 'b:2', '[::1]:3')",
    "--address 'a:1, b:2'": "Address('a:1', 'b:2')",
    "--tpu bert": "TPU('bert')",
    "--tpu bert --zone us-central2-b --project mine --port 9999": (
        "TPU('bert', zone='us-central2-b', project='mine', port=9999)"
    ),
}


def test_options_give_the_source(arguments):
    assert {line: repr(arguments(line)["source"]) for line in SOURCES} == SOURCES


KEPT = {"": ("phases", None), "--keep all --until 7": ("all", 7), "--keep none": ("none", None)}


def test_options_give_keep_and_until(arguments):
    assert {line: (arguments(line)["keep"], arguments(line)["until"]) for line in KEPT} == KEPT


WRONG = {
    "--window x": "invalid float value",
    "--window 0": "The window parameter of Schedule",
    "--budget 2": "The budget parameter of Schedule must be in [0, 1]",
    "--budget 0.1 --window 2": "--budget cannot be combined with --window",
    "--budget 0.1 --every 2 --continuous": "--budget cannot be combined with --every, --continuous",
    "--continuous --every 2": "--continuous cannot be combined with --every",
    "--until 0": "The until parameter of capture must be an int of 1 or more",
    "--until soon": "invalid int value",
    "--address nowhere": "The addresses parameter of Address must be 'host:port'",
    "--address a:1 --tpu bert": "--tpu cannot be combined with --address",
    "--zone here": "--zone requires --tpu",
    "--tpu bert --port 0": "The port parameter of TPU must be in [1, 65535]",
    "--keep some": "invalid choice",
    "--var not-a-name": "--var must be a variable name (got 'not-a-name')",
    "--threshold 0.5": "--threshold requires --method ols (got dbscan)",
    "--method ols --threshold 3": "must be in [0, 1]",
    "--nonsense": "unrecognized arguments",
    "x = 1": "unexpected text: x = 1 (put code on the line after %%tpupoint)",
    "--run 'unclosed": "cannot parse the options",
    "--load nowhere": "--load cannot be combined with code",
    "--tune --load here": "--load cannot be combined with code",
    "--tune --tune-budget 0": "The budget parameter of tuned must be above 0 seconds. Got 0.0 instead.",
    "--tune-budget 3": "--tune-budget requires --tune",
}
WRONG_WITHOUT_A_CELL = {
    "--address a:1 --load here": "--load cannot be combined with --address",
    "--tpu x --load here": "--load cannot be combined with --tpu",
    "--every 3 --load here": "--load cannot be combined with --every",
    "--continuous --load here": "--load cannot be combined with --continuous",
    "--until 0 --load here": "--load cannot be combined with --until",
    "--keep all --load here": "--load cannot be combined with --keep",
    "--load nowhere": "nothing is at",
    "--history nowhere": "nothing is at nowhere",
    "--history runs --load runs/x": "--history cannot be combined with --load",
    "--history runs --keep all": "--history cannot be combined with --keep",
    "--history runs model.fit()": "--history cannot be combined with code",
}


def test_wrong_options_are_usage_errors_and_run_nothing(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = {line: refused(line) for line in WRONG}
    assert {line: said for line, said in messages.items() if WRONG[line] not in said} == {}
    messages = {line: refused(line, None) for line in WRONG_WITHOUT_A_CELL}
    assert {line: said for line, said in messages.items() if WRONG_WITHOUT_A_CELL[line] not in said} == {}


def test_a_folder_that_holds_something_else_is_a_usage_error(refused, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "holds something else" in refused(f"--run {tmp_path} ran = True", None)


def test_a_second_capture_is_a_usage_error(refused, monkeypatch):
    first = SimpleNamespace(is_over=False, writer=SimpleNamespace(source="runs/first"))
    monkeypatch.setattr("tpunb.profiler.capture._running", [first])
    assert "a capture into runs/first is running; end it first" in refused("")


def test_a_source_that_cannot_begin_is_a_usage_error_of_one_line(refused, monkeypatch, tmp_path):
    for error in (TpunbError("no worker answered", hint="is it on?"), MissingExtra("x is not installed", hint="pip")):

        def refuse(_, error=error):
            raise error

        monkeypatch.setattr("tpunb.profiler.sources.address.Address.start", refuse)
        assert refused(f"--address a:1 --run {tmp_path / 'run'}") == f"{error}; {error.hint}"


def test_code_that_awaits_is_a_usage_error_that_says_what_to_do(refused):
    assert "with tp.capture" in refused("", "import asyncio\nawait asyncio.sleep(0)")


def test_an_empty_cell_is_a_usage_error(refused):
    assert "no code to profile" in refused("", "\n")


def test_without_keras_tuning_is_a_usage_error(refused, monkeypatch):
    from tpunb.instrument import keras

    keras.check_fit.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "keras", None)
    monkeypatch.setattr("tpunb.tuning.online.find_spec", lambda name: None)  # PyTorch is not installed either
    assert re.search(r"keras.*pip install", refused("--tune"))


def test_keras_on_another_backend_cannot_be_tuned_while_it_runs(refused, monkeypatch):
    from tpunb.instrument import keras

    keras.check_fit.cache_clear()
    monkeypatch.setattr(pytest.importorskip("keras").backend, "backend", lambda: "torch")
    problem = "Keras runs on torch: a running fit can be tuned or resumed on TensorFlow and JAX only"
    assert problem in refused("--tune")


def test_steps_without_a_time_name_longer_windows():
    steps = toy_steps("aaa", traced="ppp")
    steps = replace(steps, frame=steps.frame.with_columns(dur_ps=pl.lit(None, pl.Int64)))
    with pytest.raises(NoSteps) as caught:
        tp.phases(steps)
    assert "--window 10" in caught.value.hint


def test_help_is_plain_text_by_group_with_examples(shell, magics, capsys):
    from tpunb.magic import _split

    shell.run_line_magic("tpupoint", "-h")
    text = capsys.readouterr().out
    assert not re.search(r"``|::|<[\[{]", text)
    parser = magics.tpupoint.parser
    groups = [group for group in parser._action_groups if group.description]
    assert len(groups) == 6
    for group in groups:
        example = re.search(rf"{re.escape(group.title)}:\n(?:  .*\n)*?  example: %%?tpupoint (.*)\n", text)[1]
        options = parser.parse_args(_split(example)[0])  # which exits if it is wrong
        used = {action.dest for action in group._group_actions} & {key for key, value in vars(options).items() if value}
        assert used, example


def test_help_lists_the_options_each_with_what_it_does(shell, magics, capsys):
    actions = magics.tpupoint.parser._actions
    assert {"--address", "--tpu", "--every", "--budget", "--until", "--quiet", "--load"} < {
        word for action in actions for word in action.option_strings
    }
    assert all(action.help for action in actions)
    shell.run_line_magic("tpupoint", "-h")
    said = capsys.readouterr().out
    assert all(word in said for action in actions for word in action.option_strings)
    assert len(said.splitlines()) < 80
    assert "%%" not in said.replace("%%tpupoint", "")
    shell.run_line_magic("tpupoint", "--help")
    assert capsys.readouterr().out == said


def test_options_are_cut_from_the_statement_and_the_statement_left_alone():
    from tpunb.magic import _split

    assert _split("--run 'a b' --keep=all f(x)  # c") == (["--run", "a b", "--keep=all"], "f(x)  # c")
    assert _split("print('--run x')") == ([], "print('--run x')")
    assert _split("-h") == (["-h"], "")
    assert _split("--load there") == (["--load", "there"], "")
    assert _split("--run='r/with q' x = 1") == (["--run=r/with q"], "x = 1")
    assert _split("--run r -3 + 5") == (["--run", "r"], "-3 + 5")
    assert _split("--run r -- --x") == (["--run", "r"], "--x")
    for flag in ("--quiet", "--continuous"):
        assert _split(f"{flag} f(x)") == ([flag], "f(x)")
    with pytest.raises(ValueError, match="closing quotation"):
        _split("--run 'unclosed work()")


def test_unloading_removes_the_magics(shell):
    shell.extension_manager.unload_extension("tpunb")
    assert shell.find_cell_magic("tpupoint") is None
    assert shell.find_line_magic("tpupoint") is None


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%tpupoint --quiet\nWHERE", 2),
        ("%%tpupoint --quiet\n\n  \nWHERE", 4),  # IPython removes empty lines
        ("\n\n%%tpupoint --quiet\nx = 1\nWHERE", 5),
        ("%%capture\n%%tpupoint --quiet\nx = 1\nWHERE", 4),
        ("x = 1\ny = 2\n%tpupoint --quiet WHERE", 3),
    ],
)
def test_a_line_has_the_number_that_the_notebook_shows_beside_it(shell, tmp_path, monkeypatch, cell, line):
    monkeypatch.chdir(tmp_path)
    where = "seen = __import__('sys')._getframe().f_lineno"
    shell.run_cell(cell.replace("WHERE", where), store_history=True).raise_error()
    assert shell.user_ns["seen"] == line
    shell.run_cell(cell.replace("WHERE", "1 / 0"), store_history=True)
    *_, (frame, number) = traceback.walk_tb(sys.last_traceback)
    assert number == line
    assert linecache.getline(frame.f_code.co_filename, number).strip() == "1 / 0"  # as the traceback shows it
    shell.run_cell(cell.replace("WHERE", where))  # without a history
    assert shell.user_ns["seen"] >= 1
