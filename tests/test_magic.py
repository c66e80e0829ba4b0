"""The magic: a cell runs as it always does, and what was recorded is shown whatever happened."""

import ast
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from warm_python import TENSORFLOW, warm_kernels

pytestmark = pytest.mark.live

SAMPLE = Path(__file__).parents[1] / "datasets" / "sample_profiles" / "keras_cnn"
WORK = "import time\nfor i in range(8):\n    with tpu.step(i):\n        time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def kernels():
    """Start a kernel from a Python that has imported what tpunb imports, or TensorFlow too; all end with the file."""
    from jupyter_client import KernelManager

    managers = []

    def start(*modules):
        manager = KernelManager()
        managers.append(manager)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUPYTER_PATH", warm_kernels(*modules)["JUPYTER_PATH"])
            manager.start_kernel(env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)})
        return manager

    yield start
    for manager in managers:
        manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def shared_kernel(kernels):
    """One kernel for the cells of all tests: each begins with an empty namespace."""
    return kernels()


@pytest.fixture
def notebook(tmp_path, request):
    """Run cells in the shared kernel or in another; returns the cells and what stopped them, if anything did.

    A summary has its pictures and its panel only if they are to be ``drawn``: they take most of the time of a cell.
    """
    from kernel_client import Client
    from nbclient.exceptions import CellExecutionError
    from nbformat import v4

    def run(*cells, kernel=None, drawn=False):
        begin = f"%reset -f\nimport kernel_setup\nkernel_setup.begin({str(tmp_path)!r}, drawn={drawn})\n%load_ext tpunb"
        book = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in (begin, *cells)])
        client = Client(book, km=kernel or request.getfixturevalue("shared_kernel"), timeout=120)
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
        f"%%tpupoint --window 0.05\n{WORK}answer = 41\nanswer + 1", "print(answer, tpu.phases)", drawn=True
    )
    assert stopped is None
    assert results(cell) == ["42"]
    (summary,) = shown(cell)
    assert {"text/html", "text/plain"} <= set(summary)
    assert "<path" in summary["text/html"]
    assert text(after).startswith("41 Phases(")


def test_one_loop_runs_before_in_and_after_the_magic(notebook):
    loop = "for batch in tpu.batches([3, 4]):\n    print(batch)\nwith tpu.step(8):\n    print('step')"
    (before, cell, after), stopped = notebook(
        f"import tpunb as tp\ntpu = tp.testing.null_run\n{loop}", f"%%tpupoint\n{loop}", loop
    )
    assert stopped is None
    assert [text(each) for each in (before, cell, after)] == ["3\n4\nstep\n"] * 3


OPERATIONS = """
import time
from stand_in import StandIn
from tpunb.profiler import capture as capture_module
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
        "%%tpupoint --continuous --window 0.05\nimport time\nwhile tpu.status.windows < 2:\n    time.sleep(0.01)",
        "import tpunb as tp\ntp.steps(tpu.profile, by='whole')",
    )
    assert stopped is None
    (summary,) = shown(cell)
    assert re.search(r"! .* has no steps: .*", summary["text/plain"])
    assert re.search(r"MatMul +100.0 +3 ms +1", summary["text/plain"])
    assert "MatMul" in after.outputs[0]["data"]["text/html"]


LONG = """
import time
from itertools import count
from tpunb.widgets import frontends
shown, line = [], frontends.CellOutput.line
frontends.CellOutput.line = lambda target, text, shown=shown, line=line: (shown.append(text), line(target, text))
def train(tpu, lines, first=0):  # steps until so many lines were shown
    until, end = len(shown) + lines, time.monotonic() + 100
    for i in count(first):
        with tpu.step(i):
            time.sleep(0.01)
        if len(shown) >= until:
            return
        assert time.monotonic() < end, "no line came"
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
        "%%tpupoint --window 0.05\ntrain(tpu, 5)\nprint('done')",
        "import threading\nprint([t.name for t in threading.enumerate() if 'tpunb' in t.name])",
        drawn=True,
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
    (_, cell), stopped = notebook(LONG, "%%tpupoint --window 0.05\ntrain(tpu, 3)\n1 / 0")
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
        "with capture_output() as kept:\n    print('mine')\n    train(tpu, 3)",
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
        "%%tpupoint --window 0.05\nfrom IPython.display import clear_output\ntrain(tpu, 2)\n"
        "clear_output()\ntrain(tpu, 2, first=1_000_000)",
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


BREAK = "import tpunb.magic\ndef broken(*_, **__):\n    raise RuntimeError('ours')\ntpunb.magic.summary = broken"


def test_an_error_in_showing_never_hides_the_exception_of_the_cell(notebook):
    (_, cell), stopped = notebook(BREAK, f"%%tpupoint --window 0.05\n{WORK}raise KeyError('mine')")
    assert stopped is not None
    (error,) = errors(cell)
    assert error.ename == "KeyError"
    traceback = "\n".join(error.traceback)
    assert traceback.count("Traceback (most recent call last)") == 1
    assert "could not be shown: RuntimeError('ours')" in traceback


def test_an_error_in_showing_never_loses_the_value_of_the_cell(notebook):
    (_, cell), stopped = notebook(BREAK, f"%%tpupoint --window 0.05\n{WORK}6 * 7")
    assert stopped is None
    assert results(cell) == ["42"]
    assert "could not be shown" in text(cell)


def test_hints_name_the_variable_of_the_magic(notebook):
    cells, stopped = notebook("%%tpupoint --run runs/a\npass", "%%tpupoint --var mine --run runs/b\npass")
    assert stopped is None
    for cell, name in zip(cells, ("tpu", "mine"), strict=True):
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


NEVER = """from tpunb.profiler.schedule import WindowScheduler
WindowScheduler._most_informative = lambda *_: (float("inf"), "start")  # nor does a slow run get a window"""
STEPS = """
import time
from itertools import count
for i in count():
    with tpu.step(i):
        time.sleep(0.01)
    if i >= 5 and tpu.status.windows >= {windows}:
        break
"""


def test_the_remedy_for_steps_without_operations_works(notebook):
    steps = [STEPS.format(windows=windows) for windows in (0, 2)]
    (_, first, second), stopped = notebook(NEVER, f"%%tpupoint\n{steps[0]}", f"%%tpupoint --continuous\n{steps[1]}")
    assert stopped is None
    assert "trace from the start: --continuous" in shown(first)[0]["text/plain"]
    assert "step times only" not in shown(second)[0]["text/plain"]


@pytest.mark.parametrize(
    "log",
    [
        "I0000 00:00:1795.5 31 profiler_session.cc:117] Profiler session initializing.",
        "I0000 00:00:1795.5 31 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    ],
)
def test_a_notebook_does_not_show_what_tensorflow_logs_of_its_start_and_of_its_profiler(notebook, log):
    cells = [f"import sys\n_ = sys.stderr.write({text!r})" for text in (f"{log}\n", f"mine\n{log}\nagain\n")]
    (hidden, kept), stopped = notebook(*cells)
    assert stopped is None
    assert hidden.outputs == []
    assert [output["text"] for output in kept.outputs] == ["mine\nagain\n"]


TUNES = """
import forced_tuning, pytest
from slow_jobs import at_hand, little
forced_tuning.force(pytest.MonkeyPatch(), 5)
"""


def test_a_cell_is_tuned_while_it_runs_and_the_values_are_shown(notebook, kernels):
    (_, cell, after), stopped = notebook(
        TUNES,
        "%%tpupoint --tune --tune-budget 60 --run here\nhistory = little().fit(at_hand(), epochs=3, verbose=0).history",
        "again = little().fit(at_hand(), epochs=3, verbose=0).history\n"
        "print(tpu.tuning.best['end prefetch'], tpu.job, history == again)\n"
        "print(tpu.steps.frame.filter(tpu.steps.frame['kind'] == 'tune').height)",
        kernel=kernels(TENSORFLOW),
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


def test_the_history_is_a_chart_and_a_table_the_last_run_first(notebook, tmp_path):
    for number, name in enumerate(("runs/first", "runs/second", "elsewhere/third"), 1):
        shutil.copytree(SAMPLE, tmp_path / name)
        facts = tmp_path / name / "run.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "origin_ns": number * 10**18}))
    cells, stopped = notebook("%tpupoint --history", "%tpupoint --history elsewhere", drawn=True)
    assert stopped is None
    (default,), (named,) = map(shown, cells)
    assert [line.split()[0] for line in default["text/plain"].splitlines()] == ["2", "Run", "second", "first"]
    assert "<svg" in default["text/html"]
    assert default["text/html"].rindex(">second<") < default["text/html"].rindex(">first<")
    assert "third" in named["text/plain"]
