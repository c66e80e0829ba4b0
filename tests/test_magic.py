"""The magic: a cell runs as it always does, and what was recorded is shown whatever happened."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import polars as pl
import pytest
from jupyter_client import KernelManager
from kernel_client import Client
from nbclient.exceptions import CellExecutionError

import tpunb as tp
from tpunb.errors import NoSteps
from tpunb.testing import toy_steps

INIT = """
%reset -f
import os, sys
os.chdir({folder!r})
sys.path.insert(0, {tests!r})
from stand_in import StandIn
from tpunb.profiler import capture as capture_module
from tpunb.widgets import frontends
capture_module.Local = StandIn  # a source that needs no framework
frontends.CellOutput.every_s = 0.01  # not to wait for a second each time
%load_ext tpunb
"""

WORK = "import time\nfor i in range(8):\n    with tpu.step(i):\n        time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def shared_kernel():
    """One kernel for the cells of all tests that leave it as it was: each begins with an empty namespace."""
    manager = KernelManager()
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path, request):
    """Run cells in the shared kernel, or in a new one; returns the notebook and what stopped it, if anything did."""

    def run(*cells, new_kernel=False):
        init = INIT.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (init, *cells)])
        kernel = None if new_kernel else request.getfixturevalue("shared_kernel")
        client = Client(book, km=kernel, timeout=120)
        stopped = None
        try:
            client.execute()
        except CellExecutionError as error:
            stopped = error
        run.messages = client.messages
        return book.cells[1:], stopped

    return run


def text(cell, kind="stream"):
    return "".join(output.text for output in cell.outputs if output.output_type == kind)


def results(cell):
    return [output["data"]["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]


def shown(cell):
    """What a cell displays, without the panels below it."""
    data = [output["data"] for output in cell.outputs if output.output_type == "display_data"]
    return [bundle for bundle in data if bundle["text/plain"]]


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


def test_one_loop_runs_before_in_and_after_the_magic(notebook):
    loop = "for batch in tpu.batches([3, 4]):\n    print(batch)\nwith tpu.step(8):\n    print('step')"
    (before, cell, after), stopped = notebook(
        f"import tpunb as tp\ntpu = tp.null_run\n{loop}", f"%%tpupoint\n{loop}", loop
    )
    assert stopped is None
    assert [text(each) for each in (before, cell, after)] == ["3\n4\nstep\n"] * 3


OPERATIONS = """
import time
from tpunb.testing import toy_window
class Operations(StandIn):
    def window(self, seconds):
        start = time.time_ns()
        super().window(seconds)
        return toy_window(start, time.time_ns(), [], [("MatMul", start, start + 3_000_000)])
capture_module.Local = Operations
"""


def test_a_cell_without_steps_shows_a_table_of_its_operations(notebook):
    (_, cell, after), stopped = notebook(
        OPERATIONS,
        "%%tpupoint --continuous --window 0.05\nimport time\ntime.sleep(0.3)",
        "import tpunb as tp\ntp.steps(tpu.profile, by='whole')",
    )
    assert stopped is None
    (summary,) = shown(cell)
    assert re.search(r"! .* has no steps: .*", summary["text/plain"])
    assert re.search(r"MatMul +100.0 +3.000 +1", summary["text/plain"])
    assert "MatMul" in after.outputs[0]["data"]["text/html"]


LONG = """
import time
from tpunb.widgets import frontends
shown, line = [], frontends.CellOutput.line
frontends.CellOutput.line = lambda target, text, shown=shown, line=line: (shown.append(text), line(target, text))
def train(tpu, numbers, lines):  # steps until so many lines were shown
    until = len(shown) + lines
    for i in numbers:
        with tpu.step(i):
            time.sleep(0.01)
        if len(shown) >= until:
            return i
    raise AssertionError("no line came")
"""


def lines(messages):
    """What the kernel sent of one display after another: texts by display."""
    displays = {}
    for kind, content in messages:
        if kind in ("display_data", "update_display_data") and "display_id" in content.get("transient", {}):
            displays.setdefault(content["transient"]["display_id"], []).append(content["data"].get("text/plain"))
    return {name: texts for name, texts in displays.items() if texts != [""]}  # without the panel


def test_one_line_is_updated_while_the_cell_runs_and_the_summary_takes_its_place(notebook):
    (_, cell, after), stopped = notebook(
        LONG,
        "%%tpupoint --window 0.05\ntrain(tpu, range(2000), 5)\nprint('done')",
        "import threading\nprint([t.name for t in threading.enumerate() if 'tpunb' in t.name])",
    )
    assert stopped is None
    ((first, *updates, summary),) = lines(notebook.messages).values()
    assert first == "profiling · 0 steps · no phase yet · no window yet"
    assert len(updates) >= 5
    assert all(" step" in text for text in updates)  # the second may be at 1 step
    (saved,) = shown(cell)
    assert saved["text/plain"] == summary
    assert "top 3 cover" in summary
    assert text(cell) == "done\n"
    assert text(after) == "[]\n"  # nobody goes on


def test_after_an_exception_the_partial_summary_takes_the_lines_place(notebook):
    (_, cell), stopped = notebook(LONG, "%%tpupoint --window 0.05\ntrain(tpu, range(2000), 3)\n1 / 0")
    assert stopped is not None
    (saved,) = shown(cell)
    assert "raised ZeroDivisionError" in saved["text/plain"]
    assert len(errors(cell)) == 1


def test_quiet_shows_nothing_and_the_result_is_in_the_variable(notebook):
    (cell, after, again, last), stopped = notebook(
        f"%%tpupoint --quiet --window 0.05 --run here\n{WORK}",
        "print(len(tpu.steps), tpu.phases is not None)",
        "%tpupoint --load here --quiet --var earlier",
        "print(len(earlier.steps))",
    )
    assert stopped is None
    assert cell.outputs == []
    assert text(after) == "8 True\n"
    assert again.outputs == []
    assert text(last) == "8\n"


def test_output_collected_by_the_cell_has_no_live_line(notebook):
    (_, cell, after), stopped = notebook(
        LONG,
        "%%tpupoint --window 0.05\nfrom IPython.utils.capture import capture_output\n"
        "with capture_output() as kept:\n    print('mine')\n    train(tpu, range(2000), 3)",
        "print(repr(kept.stdout), kept.outputs, repr(kept.stderr))",
    )
    assert stopped is None
    assert text(after) == "'mine\\n' [] ''\n"
    assert "top 3 cover" in shown(cell)[0]["text/plain"]


def test_under_capture_the_summary_is_collected_and_no_line(notebook):
    (cell, after), stopped = notebook(
        f"%%capture kept\n%%tpupoint --window 0.05\n{WORK}",
        "print(len(kept.outputs), kept.outputs[0].data['text/plain'])",
    )
    assert stopped is None
    assert cell.outputs == []
    assert text(after).startswith("1 ")
    assert "8 steps" in text(after)


def test_a_cell_that_clears_its_output_still_ends_with_the_summary(notebook):
    (_, cell), stopped = notebook(
        LONG,
        "%%tpupoint --window 0.05\nfrom IPython.display import clear_output\ntrain(tpu, range(2000), 2)\n"
        "clear_output()\ntrain(tpu, range(2000, 4000), 2)",
    )
    assert stopped is None
    (saved,) = shown(cell)
    assert "top 3 cover" in saved["text/plain"]


def test_a_stopped_capture_shows_its_last_step(notebook):
    (cell, stop), stopped = notebook(
        f"%%tpupoint --until 5 --run here\n{WORK}i", f"%%tpupoint --run there\n{WORK}tpu.stop()\nprint('went on')"
    )
    assert stopped is None
    assert results(cell) == ["7"]  # the cell went on
    (summary,) = shown(cell)
    assert "! stopped at step 5: the rest of the cell was not profiled" in summary["text/plain"]
    assert "5 steps" in summary["text/plain"]
    assert "! stopped: the rest" in shown(stop)[0]["text/plain"]
    assert text(stop) == "went on\n"


def test_run_folders_are_named_by_date_by_default(notebook, tmp_path):
    (cell,), stopped = notebook(f"%%tpupoint --window 0.05\n{WORK}")
    assert stopped is None
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}", run.name)
    assert str(run.relative_to(tmp_path)) in shown(cell)[0]["text/plain"]


@pytest.mark.parametrize(
    ("line", "schedule"),
    [
        ("", {"window": 1.0, "every": 10.0, "burst": 3, "budget": "auto"}),
        ("--budget 0.1", {"window": 1.0, "every": 10.0, "burst": 3, "budget": 0.1}),
        ("--window 0.5", {"window": 0.5, "every": 10.0, "burst": 0, "budget": None}),
        ("--every 4", {"window": 1.0, "every": 4.0, "burst": 0, "budget": None}),
        ("--window 0.5 --every 2", {"window": 0.5, "every": 2.0, "burst": 0, "budget": None}),
        ("--continuous", {"window": 1.0, "every": 0.0, "burst": 0, "budget": None}),
        ("--continuous --window 0.2", {"window": 0.2, "every": 0.0, "burst": 0, "budget": None}),
    ],
)
def test_options_give_the_schedule(arguments, line, schedule):
    assert vars(arguments(line)["schedule"]) == schedule


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("", "None"),
        ("--address a:1", "Address('a:1')"),
        ("--address a:1,b:2 --address=[::1]:3", "Address('a:1', 'b:2', '[::1]:3')"),
        ("--address 'a:1, b:2'", "Address('a:1', 'b:2')"),
        ("--tpu bert", "TPU('bert')"),
        (
            "--tpu bert --zone us-central2-b --project mine --port 9999",
            "TPU('bert', zone='us-central2-b', project='mine', port=9999)",
        ),
    ],
)
def test_options_give_the_source(arguments, line, source):
    assert repr(arguments(line)["source"]) == source


@pytest.mark.parametrize(
    ("line", "keep", "until"), [("", "phases", None), ("--keep all --until 7", "all", 7), ("--keep none", "none", None)]
)
def test_options_give_keep_and_until(arguments, line, keep, until):
    assert (arguments(line)["keep"], arguments(line)["until"]) == (keep, until)


@pytest.fixture
def arguments(shell):
    """The arguments of `capture` for a line of options."""
    from tpunb.magic import _capture_arguments

    (magics,) = [one for one in shell.magics_manager.registry.values() if hasattr(one, "tpupoint")]
    return lambda line: _capture_arguments(magics._options(line, is_cell=True)[0])


def test_a_semicolon_silences_the_value(notebook):
    (cell,), _ = notebook("%%tpupoint --window 0.05\n6 * 7;")
    assert results(cell) == []


def test_a_raising_cell_stops_run_all_with_one_traceback_and_the_partial_capture(notebook):
    (cell, after), stopped = notebook(f"%%tpupoint --window 0.05\n{WORK}raise ValueError('at step 8')", "print('ran')")
    assert stopped is not None
    assert [error.evalue for error in errors(cell)] == ["at step 8"]
    (error,) = errors(cell)
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert traceback.count("Traceback (most recent call last)") == 1
    assert "raise ValueError('at step 8')" in traceback  # the user's line, not ours
    assert "capture.py" not in traceback
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


def test_the_line_magic_profiles_a_statement(notebook):
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
    ("line", "message"),
    [
        ("--window x", "invalid float value"),
        ("--window 0", "The window parameter of Schedule"),
        ("--budget 2", "The budget parameter of Schedule must be in [0, 1]"),
        ("--budget 0.1 --window 2", "--budget cannot be combined with --window"),
        ("--budget 0.1 --every 2 --continuous", "--budget cannot be combined with --every, --continuous"),
        ("--continuous --every 2", "--continuous cannot be combined with --every"),
        ("--until 0", "The until parameter of capture must be an int of 1 or more"),
        ("--until soon", "invalid int value"),
        ("--address nowhere", "The addresses parameter of Address must be 'host:port'"),
        ("--address a:1 --tpu bert", "--tpu cannot be combined with --address"),
        ("--zone here", "--zone requires --tpu"),
        ("--tpu bert --port 0", "The port parameter of TPU must be in [1, 65535]"),
        ("--keep some", "invalid choice"),
        ("--var not-a-name", "--var must be a variable name (got 'not-a-name')"),
        ("--threshold 0.5", "--threshold requires --method ols (got dbscan)"),
        ("--method ols --threshold 3", "must be in [0, 1]"),
        ("--nonsense", "unrecognized arguments"),
        ("x = 1", "unexpected text: x = 1 (put code on the line after %%tpupoint)"),
        ("--run 'unclosed", "cannot parse the options"),
        ("--load nowhere", "--load cannot be combined with code"),
    ],
)
def test_wrong_options_are_usage_errors_and_run_nothing(shell, line, message):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("tpupoint", line, "ran = True")
    assert message in str(caught.value)
    assert "ran" not in shell.user_ns


def test_a_folder_that_holds_something_else_is_a_usage_error(shell, tmp_path):
    from IPython.core.error import UsageError

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds something else"):
        shell.run_line_magic("tpupoint", f"--run {tmp_path} 1 + 1")


def test_a_second_capture_is_a_usage_error(shell, monkeypatch):
    from IPython.core.error import UsageError

    first = SimpleNamespace(is_over=False, writer=SimpleNamespace(source="runs/first"))
    monkeypatch.setattr("tpunb.profiler.capture._running", [first])
    with pytest.raises(UsageError, match="a capture into runs/first is running; end it first"):
        shell.run_cell_magic("tpupoint", "", "ran = True")
    assert "ran" not in shell.user_ns


def test_a_source_that_cannot_begin_is_a_usage_error_of_one_line(shell, monkeypatch, tmp_path):
    from IPython.core.error import UsageError

    from tpunb.errors import MissingExtra, TpunbError

    for error in (TpunbError("no worker answered", hint="is it on?"), MissingExtra("x is not installed", hint="pip")):

        def refuse(_, error=error):
            raise error

        monkeypatch.setattr("tpunb.profiler.sources.address.Address.start", refuse)
        with pytest.raises(UsageError) as caught:
            shell.run_cell_magic("tpupoint", f"--address a:1 --run {tmp_path / 'run'}", "ran = True")
        assert str(caught.value) == f"{error}; {error.hint}"
        assert "ran" not in shell.user_ns


@pytest.mark.parametrize("option", ["--address a:1", "--tpu x", "--every 3", "--continuous", "--until 0", "--keep all"])
def test_load_cannot_be_combined_with_options_of_a_capture(shell, option):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match=f"--load cannot be combined with {option.split()[0]}"):
        shell.run_line_magic("tpupoint", f"{option} --load here")


def test_top_level_await_is_a_usage_error_that_says_what_to_do(shell):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match=r"with tp\.capture"):
        shell.run_cell_magic("tpupoint", "", "import asyncio\nawait asyncio.sleep(0)")


BREAK = "import tpunb.magic\ndef broken(*_, **__):\n    raise RuntimeError('ours')\ntpunb.magic.summary = broken"


def test_an_error_in_showing_never_hides_the_exception_of_the_cell(notebook):
    (_, cell), stopped = notebook(BREAK, f"%%tpupoint --window 0.05\n{WORK}raise KeyError('mine')", new_kernel=True)
    assert stopped is not None
    (error,) = errors(cell)
    assert error.ename == "KeyError"
    traceback = "\n".join(error.traceback)
    assert traceback.count("Traceback (most recent call last)") == 1
    assert "could not be shown: RuntimeError('ours')" in traceback


def test_an_error_in_showing_never_loses_the_value_of_the_cell(notebook):
    (_, cell), stopped = notebook(BREAK, f"%%tpupoint --window 0.05\n{WORK}6 * 7", new_kernel=True)
    assert stopped is None
    assert results(cell) == ["42"]
    assert "could not be shown" in text(cell)


def test_a_run_that_is_not_there_is_a_usage_error(shell, tmp_path):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match="nothing is at"):
        shell.run_line_magic("tpupoint", f"--load {tmp_path / 'nowhere'}")


def test_an_empty_cell_is_a_usage_error(shell):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match="no code to profile"):
        shell.run_cell_magic("tpupoint", "", "\n")


@pytest.mark.parametrize(("option", "name"), [("", "tpu"), ("--var mine ", "mine")])
def test_hints_name_the_variable_of_the_magic(notebook, option, name):
    (cell,), stopped = notebook(f"%%tpupoint {option}--run runs/empty\npass")
    assert stopped is None
    summary = shown(cell)[0]["text/plain"]
    assert f"`with {name}.step(i):` or `for batch in {name}.batches(data):`" in summary
    assert "run.step" not in summary


def test_a_folder_used_again_says_where_the_earlier_run_is(notebook):
    cells, stopped = notebook(*[f"%%tpupoint --run runs/x\n{WORK}"] * 3)
    assert stopped is None
    moved = [re.findall("the earlier run .*", shown(cell)[0]["text/plain"]) for cell in cells]
    assert moved == [
        [],
        ["the earlier run in runs/x is now in runs/x-1"],
        ["the earlier run in runs/x is now in runs/x-2"],
    ]


def test_a_run_in_memory_names_its_variable_when_asked_to_save(notebook):
    _, stopped = notebook("%%tpupoint --run memory://x --var mine\nmine.save(3)")
    assert "give one: mine.save(step, dir, ...)" in str(stopped)


FIVE = "import time\nfor i in range(5):\n    with tpu.step(i):\n        time.sleep(0.02)\n"


def test_the_remedy_for_steps_without_operations_works(notebook):
    (first, second), stopped = notebook(f"%%tpupoint\n{FIVE}", f"%%tpupoint --continuous\n{FIVE}")
    assert stopped is None
    assert "trace from the start: --continuous" in shown(first)[0]["text/plain"]
    assert "step times only" not in shown(second)[0]["text/plain"]


def test_steps_without_a_time_name_longer_windows():
    steps = toy_steps("aaa", traced="ppp")
    steps = replace(steps, frame=steps.frame.with_columns(dur_ps=pl.lit(None, pl.Int64)))
    with pytest.raises(NoSteps) as caught:
        tp.phases(steps)
    assert "--window 10" in caught.value.hint


def test_help_is_plain_text_by_group_with_examples(shell, capsys):
    from tpunb.magic import _split

    shell.run_line_magic("tpupoint", "-h")
    text = capsys.readouterr().out
    assert not re.search(r"``|::|<[\[{]", text)
    (magics,) = [each for each in shell.magics_manager.registry.values() if hasattr(each, "tpupoint")]
    groups = [group for group in magics.tpupoint.parser._action_groups if group.description]
    assert len(groups) == 6
    for group in groups:
        example = re.search(rf"{re.escape(group.title)}:\n(?:  .*\n)*?  example: %%?tpupoint (.*)\n", text)[1]
        options = magics.tpupoint.parser.parse_args(_split(example)[0])  # which exits if it is wrong
        used = {action.dest for action in group._group_actions} & {key for key, value in vars(options).items() if value}
        assert used, example


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_options_each_with_what_it_does(shell, capsys, flag):
    shell.run_line_magic("tpupoint", flag)
    said = capsys.readouterr().out
    (magics,) = [one for one in shell.magics_manager.registry.values() if hasattr(one, "tpupoint")]
    actions = magics.tpupoint.parser._actions
    assert {"--address", "--tpu", "--every", "--budget", "--until", "--quiet", "--load"} < {
        word for action in actions for word in action.option_strings
    }
    assert all(action.help for action in actions)
    assert all(word in said for action in actions for word in action.option_strings)
    assert len(said.splitlines()) < 80
    assert "%%" not in said.replace("%%tpupoint", "")


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


def test_a_notebook_does_not_show_the_log_of_the_profiler(notebook):
    log = "I0000 00:00:1795.5 31 profiler_session.cc:117] Profiler session initializing."
    cells = [f"import sys\n_ = sys.stderr.write({text!r})" for text in (f"{log}\n", f"mine\n{log}\nagain\n")]
    (hidden, kept), stopped = notebook(*cells)
    assert stopped is None
    assert hidden.outputs == []
    assert [output["text"] for output in kept.outputs] == ["mine\nagain\n"]


def test_unloading_removes_the_magics(shell):
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


TUNES = """
import tensorflow as tf
from slow_jobs import at_hand, little
from test_online import StepCosts, Won, others
from tpunb.tuning import live, online
online._SECONDS, online._SOON, online._ENOUGH, online._FIRST, online.model_based = 0.0, 0.0, 1e6, 5, others
online._TunableFit.rest = lambda *_: 1e6
live.LiveTuning._costs = lambda *_: StepCosts(1.0)
live.Race, live.WARM, live.WINDOW = Won, 1, 1
"""


def test_a_cell_is_tuned_while_it_runs_and_the_values_are_shown(notebook):
    (_, cell, after), stopped = notebook(
        TUNES,
        "%%tpupoint --tune --tune-budget 60 --run here\nhistory = little().fit(at_hand(), epochs=3, verbose=0).history",
        "again = little().fit(at_hand(), epochs=3, verbose=0).history\n"
        "print(tpu.tuning.best['end prefetch'], tpu.job, history == again)\n"
        "print(tpu.steps.frame.filter(tpu.steps.frame['kind'] == 'tune').height)",
        new_kernel=True,
    )
    assert stopped is None
    (summary,) = shown(cell)
    for form in summary["text/plain"], summary["text/html"]:
        assert re.search(r"Tuned: about [\d.]+ s → [\d.]+ s, tuning included; steps at least 1\.50 times as fast", form)
        assert re.search("output equal: .*end prefetch = AUTOTUNE", form)
    assert summary["text/plain"].startswith("Tuned: ")
    assert text(after).endswith("-1 Job(little, tf.data, 1 model) True\n0\n")  # Keras warns before it


def test_the_summary_explains_why_nothing_was_tuned(notebook):
    (cell, after), stopped = notebook(f"%%tpupoint --tune --window 0.05\n{WORK}", "print(tpu.tuning)")
    assert stopped is None
    assert "Tuning changed nothing. No fit was seen." in shown(cell)[0]["text/plain"]
    assert text(after) == "None\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tune --tune-budget 0", "The budget parameter of tuned must be above 0 seconds. Got 0.0 instead."),
        ("--tune-budget 3", "--tune-budget requires --tune"),
        ("--tune --load here", "--load cannot be combined with code"),
    ],
)
def test_wrong_options_of_tuning_are_usage_errors(shell, line, message):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("tpupoint", line, "ran = True")
    assert message in str(caught.value)
    assert "ran" not in shell.user_ns


def test_without_keras_tuning_is_a_usage_error(shell, monkeypatch):
    from IPython.core.error import UsageError

    from tpunb.training import keras_hooks

    keras_hooks._check_keras.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "keras", None)
    with pytest.raises(UsageError, match=r"keras.*pip install"):
        shell.run_cell_magic("tpupoint", "--tune", "ran = True")
    assert "ran" not in shell.user_ns


def test_keras_on_another_backend_cannot_be_tuned_while_it_runs(shell, monkeypatch):
    from IPython.core.error import UsageError

    from tpunb.training import keras_hooks

    keras_hooks._check_keras.cache_clear()
    monkeypatch.setattr(pytest.importorskip("keras").backend, "backend", lambda: "torch")
    problem = "Keras runs on torch: a running fit can be tuned or resumed on TensorFlow and JAX only"
    with pytest.raises(UsageError, match=problem):
        shell.run_cell_magic("tpupoint", "--tune", "ran = True")
    assert "ran" not in shell.user_ns
