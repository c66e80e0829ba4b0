"""The live line: one output in place, or a plain line per minute; its errors never stop the cell."""

import io
import queue
import re
import threading
from types import SimpleNamespace

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher

from tpunb.profiler.session import Status
from tpunb.widgets.frontends import CellOutput, LiveLine, OutputTarget, ResultOnly, TerminalOutput, output_target

BEGUN = Status(0, None, None, 0, 0, 0, 0.0, 0.0, 0.1, "running")
LATER = Status(1204, "train", 1, 3, 14, 0, 0.117, 0.0131, 130.0, "running")


class Run:
    """A run with the given statuses, one after another; the last one stays."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)

    @property
    def status(self):
        now = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(now, Exception):
            raise now
        return now


class Sheet:
    """A target that keeps every line."""

    lasts = True

    def __init__(self, every_s=0.001):
        self.every_s = every_s
        self.lines = queue.SimpleQueue()
        self.values = []

    def line(self, text):
        self.lines.put(text)

    def close(self):
        self.values.append("closed")

    def result(self, value):
        self.values.append(value)

    def all(self):
        return [self.lines.get() for _ in range(self.lines.qsize())]


def steps(n, state="running"):
    return BEGUN._replace(steps=n, state=state)


def ours():
    return [thread for thread in threading.enumerate() if thread.name == "tpunb-live"]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (BEGUN, "profiling · 0 steps · no phase yet · no window yet"),
        (
            LATER,
            "profiling · 1,204 steps, now train · phase 1, 3 so far · 14 windows cover 12 % of run time"
            " · cost of windows 1.3 % of run time (estimated)",
        ),
        (
            BEGUN._replace(steps=1, windows=1, observed=0.5, phase=0, phases=1),
            "profiling · 1 step · phase 0, 1 so far · 1 window covers 50 % of run time"
            " · cost of windows under 0.1 % of run time (estimated)",
        ),
        (
            BEGUN._replace(failed=2, state="stopped at step 100"),
            "stopped at step 100 · 0 steps · no phase yet · 0 windows cover 0 % of run time (2 failed)"
            " · cost of windows under 0.1 % of run time (estimated)",
        ),
    ],
)
def test_status_is_one_line(status, text):
    assert str(status) == text


def test_the_line_is_there_at_once_and_changes_with_the_run():
    sheet = Sheet()
    with LiveLine(sheet) as line:
        line.follow(Run(steps(0), steps(1), steps(2)))
        texts = [sheet.lines.get(timeout=20) for _ in range(3)]
    assert [text.split(" · ")[1] for text in texts] == ["0 steps", "1 step", "2 steps"]


def test_an_unchanged_status_is_not_shown_again():
    sheet, looks = Sheet(), threading.Semaphore(0)

    class Idle:
        @property
        def status(self):
            looks.release()
            return BEGUN

    with LiveLine(sheet) as line:
        line.follow(Idle())
        for _ in range(10):
            assert looks.acquire(timeout=20)
    assert len(sheet.all()) == 1


def test_the_target_limits_the_rate_of_lines():
    sheet = Sheet(every_s=3600)
    with LiveLine(sheet) as line:
        line.follow(Run(steps(0), steps(1)))
    assert [text.split(" · ")[1] for text in sheet.all()] == ["0 steps", "1 step"]  # the first and the last
    assert (CellOutput.every_s, TerminalOutput.every_s) == (1.0, 60.0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_thread_ends_with_the_block_whatever_ends_it(error):
    with pytest.raises(error), LiveLine(Sheet()) as line:
        line.follow(Run(BEGUN))
        assert ours()
        raise error
    assert not ours()


def test_after_the_run_was_stopped_the_line_says_so_and_rests():
    sheet = Sheet()
    with LiveLine(sheet) as line:
        line.follow(Run(steps(0), steps(7), steps(7, "stopped")))
        for thread in ours():
            thread.join(20)
        assert not ours()  # though the block goes on
        assert sheet.all()[-1].startswith("stopped · 7 steps")


def test_an_error_of_the_status_ends_the_line_and_not_the_block():
    sheet = Sheet()
    with pytest.warns(RuntimeWarning, match="the live line stopped early: OSError"), LiveLine(sheet) as line:
        line.follow(Run(steps(0), OSError("gone")))
        for thread in ours():
            thread.join(20)
        done = "the block went on"
    assert done
    assert len(sheet.all()) == 1


def test_an_error_of_the_target_ends_the_line_and_not_the_block():
    class Shut(Sheet):
        def line(self, text):
            raise OSError("closed")

    with pytest.warns(RuntimeWarning, match="closed"), LiveLine(Shut()) as line:
        line.follow(Run(BEGUN))
    assert not ours()


def test_without_lines_there_is_no_thread():
    for nothing in (OutputTarget(), ResultOnly()):
        with LiveLine(nothing) as line:
            line.follow(Run(AssertionError("looked at")))
            assert not ours()


class Publisher:
    """Keeps what is published, and its hooks."""

    def __init__(self):
        self.messages, self.hooks = [], []

    def publish(self, data, metadata, *, transient, update):
        self.messages.append((data, transient["display_id"], update))

    def register_hook(self, hook):
        self.hooks.append(hook)

    def unregister_hook(self, hook):
        if hook in self.hooks:
            self.hooks.remove(hook)


def test_in_a_cell_one_display_is_updated():
    publisher = Publisher()
    cell = CellOutput(SimpleNamespace(display_pub=publisher))
    cell.line("1 step")
    cell.line("2 steps")
    assert [update for _, _, update in publisher.messages] == [False, True]
    assert len({name for _, name, _ in publisher.messages}) == 1
    data, _, _ = publisher.messages[-1]
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/plain"] == "2 steps"
    assert re.search(r'<div class="tpunb-live" role="status" [^>]*>2 steps</div>', data["text/html"])
    assert "var(--jp-content-font-color1,currentColor)" in data["text/html"]
    assert "<script" not in data["text/html"]


def test_two_cells_have_two_displays():
    publisher = Publisher()
    for _ in range(2):
        CellOutput(SimpleNamespace(display_pub=publisher)).line("x")
    (_, first, _), (_, second, _) = publisher.messages
    assert first != second


def test_the_hook_is_removed_with_the_block():
    publisher = Publisher()
    with LiveLine(CellOutput(SimpleNamespace(display_pub=publisher))) as line:
        line.follow(Run(BEGUN))
        assert len(publisher.hooks) == 1
        message = {"header": {"msg_type": "clear_output"}}
        assert publisher.hooks[0](message) is message  # handed on
    assert publisher.hooks == []


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[2Jred\u202e"])
def test_names_of_marks_cannot_become_markup_or_terminal_commands(evil):
    publisher = Publisher()
    with LiveLine(CellOutput(SimpleNamespace(display_pub=publisher))) as line:
        line.follow(Run(LATER._replace(kind=evil)))
    data, *_ = publisher.messages[0]
    assert re.findall("<[a-z]+", data["text/html"]) == ["<div"]
    assert not re.search("[\x00-\x1f\u202e]", data["text/plain"])


def test_in_a_terminal_a_line_is_plain_and_only_between_begin_and_end():
    stream = io.StringIO()
    terminal = TerminalOutput(stream)
    with LiveLine(terminal) as line:
        line.follow(Run(steps(0), steps(1)))  # within the minute
    assert stream.getvalue() == ""
    terminal.every_s = 0.001
    written = threading.Event()
    stream.flush = written.set
    with LiveLine(terminal) as line:
        line.follow(Run(BEGUN))
        assert written.wait(20)
    assert stream.getvalue() == f"tpunb: {BEGUN}\n"


def test_the_line_in_a_terminal_stays_out_of_what_the_cell_collects():
    from contextlib import redirect_stderr

    outer, inner = io.StringIO(), io.StringIO()
    with redirect_stderr(outer):
        terminal = TerminalOutput()
    with redirect_stderr(inner):
        terminal.line("1 step")
    assert (outer.getvalue(), inner.getvalue()) == ("tpunb: 1 step\n", "")


def test_the_target_depends_on_the_shell():
    kernel = SimpleNamespace(kernel=object(), display_pub=Publisher())
    assert isinstance(output_target(kernel), CellOutput)
    assert isinstance(output_target(SimpleNamespace(display_pub=Publisher())), TerminalOutput)
    assert type(output_target(kernel, quiet=True)) is OutputTarget
    collecting = SimpleNamespace(kernel=object(), display_pub=CapturingDisplayPublisher())
    assert type(output_target(collecting)) is ResultOnly  # under %%capture
