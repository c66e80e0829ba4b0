"""The magic: a cell runs as it always does, and what was recorded is shown whatever happened."""

import ast
import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

INIT = """
import sys
sys.path.insert(0, {tests!r})
from stand_in import StandIn
from tpunb import recorder
recorder.Local = StandIn  # a source that needs no framework
%load_ext tpunb
"""

WORK = "import time\nfor i in range(8):\n    with tpu.step(i):\n        time.sleep(0.01)\n"


@pytest.fixture
def notebook(tmp_path):
    """Run cells in a kernel of their own; returns the notebook and what stopped it, if anything did."""

    def run(*cells):
        init = INIT.format(tests=str(__file__).rsplit("/", 1)[0])
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (init, *cells)])
        client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
        stopped = None
        try:
            client.execute()
        except CellExecutionError as error:
            stopped = error
        return book.cells[1:], stopped

    return run


def text(cell, kind="stream"):
    return "".join(output.text for output in cell.outputs if output.output_type == kind)


def results(cell):
    return [output["data"]["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]


def shown(cell):
    return [output["data"] for output in cell.outputs if output.output_type == "display_data"]


def errors(cell):
    return [output for output in cell.outputs if output.output_type == "error"]


def test_the_cells_value_stays_its_out_and_the_summary_is_shown(notebook):
    (cell, after), stopped = notebook(
        f"%%tpupoint --window 0.05\n{WORK}answer = 41\nanswer + 1", "print(answer, tpu.phases)"
    )
    assert stopped is None
    assert results(cell) == ["42"]
    (summary,) = shown(cell)
    assert {"text/html", "text/plain"} <= set(summary)
    assert text(after).startswith("41 Phases(")


def test_a_semicolon_silences_the_value(notebook):
    (cell,), _ = notebook("%%tpupoint --window 0.05\n6 * 7;")
    assert results(cell) == []


def test_a_raising_cell_stops_run_all_with_one_traceback_and_the_partial_capture(notebook):
    (cell, after), stopped = notebook(f"%%tpupoint --window 0.05\n{WORK}raise ValueError('at step 8')", "print('ran')")
    assert stopped is not None
    assert [error.evalue for error in errors(cell)] == ["at step 8"]
    (error,) = errors(cell)
    told = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert told.count("Traceback (most recent call last)") == 1
    assert "raise ValueError('at step 8')" in told  # the user's line, not ours
    assert "recorder.py" not in told
    (summary,) = shown(cell)
    assert "raised ValueError" in summary["text/plain"]
    assert "8 steps" in summary["text/plain"]
    assert after.outputs == []


def test_an_interrupt_propagates_and_keeps_what_was_recorded(notebook):
    (cell, after), stopped = notebook(f"%%tpupoint --window 0.05\n{WORK}raise KeyboardInterrupt", "print('ran')")
    assert stopped is not None
    assert "KeyboardInterrupt" in errors(cell)[0].ename
    assert "8 steps" in shown(cell)[0]["text/plain"]
    assert after.outputs == []


def test_multi_line_strings_and_nested_magics_survive(notebook):
    (cell, check), stopped = notebook(
        "%%tpupoint --window 0.05\nwords = '''a\n  b'''\n%time x = 1\nhere = !echo hi", "print([words, x, list(here)])"
    )
    assert stopped is None
    assert ast.literal_eval(text(check)) == ["a\n  b", 1, ["hi"]]
    assert text(cell).count("Wall time") == 1


def test_a_statement_is_watched_by_the_line_magic(notebook):
    (cell,), stopped = notebook("%tpupoint --window 0.05 sum(i for i in range(10) if i != '#')")
    assert stopped is None
    assert results(cell) == ["45"]


def test_an_earlier_run_is_shown_again_and_nothing_is_run(notebook):
    (_, cell, after), stopped = notebook(
        f"%%tpupoint --window 0.05 --run here\n{WORK}", "%tpupoint --load here --var again", "print(len(again.steps))"
    )
    assert stopped is None
    assert len(shown(cell)) == 1
    assert text(after).strip() == "8"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--window x", "invalid float value"),
        ("--window 0", "The window parameter of Schedule"),
        ("--keep some", "invalid choice"),
        ("--var not-a-name", "must be a variable's name"),
        ("--threshold 0.5", "--threshold is of --method ols"),
        ("--method ols --threshold 3", "must be in [0, 1]"),
        ("--nonsense", "unrecognized arguments"),
        ("x = 1", "goes on the next line"),
        ("--run 'unclosed", "cannot read the options"),
        ("--load nowhere", "takes no code"),
    ],
)
def test_bad_options_are_usage_errors_and_run_nothing(shell, line, said):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("tpupoint", line, "ran = True")
    assert said in str(caught.value)
    assert "ran" not in shell.user_ns


def test_a_folder_that_holds_something_else_is_a_usage_error(shell, tmp_path):
    from IPython.core.error import UsageError

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds something else"):
        shell.run_line_magic("tpupoint", f"--run {tmp_path} 1 + 1")


def test_a_second_capture_is_busy_in_the_magic_too(shell, monkeypatch):
    from tpunb.errors import CaptureBusy

    monkeypatch.setattr("tpunb.recorder._running", ["runs/first"])
    with pytest.raises(CaptureBusy, match="a capture into runs/first is running"):
        shell.run_cell_magic("tpupoint", "", "ran = True")
    assert "ran" not in shell.user_ns


def test_top_level_await_is_a_usage_error_that_says_what_to_do(shell):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match=r"with tp\.capture"):
        shell.run_cell_magic("tpupoint", "", "import asyncio\nawait asyncio.sleep(0)")


BREAK = "import tpunb.magic\ndef broken(*_):\n    raise RuntimeError('ours')\ntpunb.magic.phases = broken"


def test_what_goes_wrong_in_showing_never_hides_the_users_exception(notebook):
    (_, cell), stopped = notebook(BREAK, f"%%tpupoint --window 0.05\n{WORK}raise KeyError('mine')")
    assert stopped is not None
    (error,) = errors(cell)
    assert error.ename == "KeyError"
    told = "\n".join(error.traceback)
    assert told.count("Traceback (most recent call last)") == 1
    assert "could not be shown: RuntimeError('ours')" in told


def test_what_goes_wrong_in_showing_never_takes_the_cells_value(notebook):
    (_, cell), stopped = notebook(BREAK, f"%%tpupoint --window 0.05\n{WORK}6 * 7")
    assert stopped is None
    assert results(cell) == ["42"]
    assert "could not be shown" in text(cell)


def test_a_run_that_is_not_there_is_a_usage_error(shell, tmp_path):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match="nothing is at"):
        shell.run_line_magic("tpupoint", f"--load {tmp_path / 'nowhere'}")


def test_an_empty_cell_is_a_usage_error(shell):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match="no code to watch"):
        shell.run_cell_magic("tpupoint", "", "\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_options(shell, capsys, flag):
    shell.run_line_magic("tpupoint", flag)
    said = capsys.readouterr().out
    for option in ("--run", "--window", "--every", "--keep", "--method", "--threshold", "--var", "--load"):
        assert option in said


def test_options_are_cut_from_the_statement_and_the_statement_left_alone():
    from tpunb.magic import _split

    assert _split("--run 'a b' --keep=all f(x)  # c") == (["--run", "a b", "--keep=all"], "f(x)  # c")
    assert _split("print('--run x')") == ([], "print('--run x')")
    assert _split("-h") == (["-h"], "")
    assert _split("--load there") == (["--load", "there"], "")
    assert _split("--run='r/with q' x = 1") == (["--run=r/with q"], "x = 1")
    assert _split("--run r -3 + 5") == (["--run", "r"], "-3 + 5")
    assert _split("--run r -- --x") == (["--run", "r"], "--x")
    with pytest.raises(ValueError, match="closing quotation"):
        _split("--run 'unclosed work()")


def test_unloading_makes_the_shell_as_it_was(shell):
    shell.extension_manager.unload_extension("tpunb")
    assert shell.find_cell_magic("tpupoint") is None
    assert shell.find_line_magic("tpupoint") is None


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    made = InteractiveShell.instance(config=config)
    made.run_line_magic("load_ext", "tpunb")
    yield made
    InteractiveShell.clear_instance()
