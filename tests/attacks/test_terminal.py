"""Attacks on the commands: encodings, closed streams, pipes without a reader, and what they advise."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import polars as pl
import pytest
from capture_loops import train
from stand_in import StandIn

import tpunb as tp
from tpunb import cli
from tpunb.profiler import session
from tpunb.profiler.reducer import Reducer

ROOT = Path(__file__).parents[2]
SAMPLE = str(ROOT / "datasets" / "sample_profiles" / "keras_cnn")
COMMANDS = {
    "report": ["report", SAMPLE],
    "json": ["report", SAMPLE, "--json"],
    "markdown": ["report", SAMPLE, "--markdown"],
    "compare": ["compare", SAMPLE, SAMPLE],
    "runs": ["runs", str(Path(SAMPLE).parent / "pod")],
    "help": ["--help"],
    "wrong": ["report"],
}
CODES = {"compare": 2, "wrong": 64}


def of_stream(encoding):
    """A stream as Python makes one for a pipe of that encoding."""
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def tpunb(words, redirected="", **variables):
    """Run a command in a shell, and return it as it ended."""
    command = ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-m", "tpunb", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, env=environment, capture_output=True, timeout=600)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "utf-8"])
@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_complete_in_every_encoding(name, encoding, monkeypatch):
    out, errors = of_stream(encoding), of_stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    assert cli.main(COMMANDS[name]) == CODES.get(name, 0)
    text = out.buffer.getvalue().decode(encoding)
    if name == "json":
        arrow = "←" if encoding == "utf-8" else "<-"
        expected = json.loads(tp.report(SAMPLE).to_json())
        assert json.loads(text) == json.loads(json.dumps(expected, ensure_ascii=False).replace("←", arrow))
    assert bool(text) == (name != "wrong")
    assert bool(errors.buffer.getvalue()) == (name == "wrong")


@pytest.mark.parametrize("text", ["é", "名前", "\U0001f600", "\udcff", "a\u2028b"])
def test_names_in_json_are_the_same_in_ascii(text):
    out = cli._writable(of_stream("ascii"))
    out.write(json.dumps({"name": text}, ensure_ascii=False))
    out.flush()
    assert json.loads(out.buffer.getvalue()) == {"name": text}


@pytest.mark.live
@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(redirected):
    shown = tpunb(COMMANDS["runs"], redirected)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert bool(shown.stdout) == (redirected == "2>&-")
    wrong = tpunb(COMMANDS["wrong"], redirected)
    assert (wrong.returncode, wrong.stdout) == (64, b"")


@pytest.mark.live
@pytest.mark.parametrize("name", ["runs", "help"])
def test_a_pipe_without_a_reader_ends_a_command_quietly(name):
    shown = tpunb(COMMANDS[name], "| (exec <&-; sleep 1); exit ${PIPESTATUS[0]}")
    assert (shown.returncode in (0, 141), shown.stderr) == (True, b"")
    wrong = tpunb(COMMANDS["wrong"], "2>&1 >&- | (exec <&-; sleep 1); exit ${PIPESTATUS[0]}")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (64, b"", b"")


@pytest.mark.live
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line_and_65():
    shown = tpunb(COMMANDS["runs"], ">/dev/full")
    assert (shown.returncode, shown.stderr.count(b"\n")) == (65, 1)
    assert shown.stderr.startswith(b"tpunb: OSError: ")


@pytest.mark.live
@pytest.mark.parametrize("redirected", ["", ">&-", "2>&-", "2>&1 | (exec <&-; sleep 1); exit ${PIPESTATUS[0]}"])
def test_the_exit_code_of_a_program_is_its_own_whatever_the_streams(redirected, tmp_path):
    (tmp_path / "program.py").write_text("import sys; sys.exit(3)")
    words = ["run", "-o", str(tmp_path / "run"), "--", sys.executable, str(tmp_path / "program.py")]
    assert tpunb(words, redirected).returncode == 3


def test_the_version_is_that_of_the_package(capsys, monkeypatch):
    assert tp.__version__ == metadata.version("tpunb")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tpunb {tp.__version__}\n"
    assert cli.main([]) == 0
    assert "tpunb run -- python train.py" in capsys.readouterr().out

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert not hasattr(tp, "__version__")


@pytest.mark.parametrize("share", ["3", "1", "1.0", "300", " 3"])
def test_a_bare_number_above_one_is_no_share(share, capsys):
    assert cli.main(["compare", SAMPLE, SAMPLE, "--fail-slower", share]) == 64
    shown = capsys.readouterr()
    assert f"write {share.strip()}%" in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("share", ["3%", "0.03", "150%", "3 %"])
def test_a_share_is_a_ratio_or_a_percentage(share, capsys):
    assert cli.main(["compare", SAMPLE, SAMPLE, "--fail-slower", share]) in (0, 2)


def without_steps(folder):
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("parts"))
    return folder


def attempts(folder):
    folder.mkdir()
    times = [("job_start_time", 1.0), ("job_end_time", 2.0), ("job_start_time", 3.0)]
    lines = [json.dumps({"job_name": "j", event: time}) for event, time in times]
    (folder / "events.jsonl").write_text("\n".join(lines))
    return folder / "events.jsonl"


def sweep(folder):
    folder.mkdir()
    pl.DataFrame({"x": [1]}).write_parquet(folder / "sweep.parquet")
    return folder / "sweep.parquet"


@pytest.mark.parametrize(("make", "code"), [(without_steps, 0), (attempts, 65), (sweep, 65)])
def test_a_hint_at_the_terminal_is_no_call_of_python(make, code, tmp_path, capsys):
    assert cli.main(["report", str(make(tmp_path / "run"))]) == code
    shown = capsys.readouterr()
    hint = re.search(r"; (mark them in the program|load )(.*)", shown.out + shown.err)
    assert "tp." not in hint[2].partition("in Python")[0]


# -- the end of a program ---------------------------------------------------------------------------------------------


def deferred(folder, source, monkeypatch=None):
    """Capture steps as ``tpunb run`` does, and end in a window, and with `monkeypatch` while another is reduced."""
    with tp.capture(folder, source=source, schedule=tp.Schedule.fixed(window=60, every=0.001)) as run:
        run._session.defers = True
        source.wait_asked()
        if monkeypatch is not None:
            monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, deferred_collect_s=1.0))
            monkeypatch.setattr(Reducer, "reduce", lambda *_: threading.Event().wait(600))
            train(run, range(3))
            source.stop()
            source.wait_asked()
        train(run, range(3, 6))


@pytest.mark.live
def test_a_window_that_the_end_cuts_short_is_reduced_by_the_reader(tmp_path):
    deferred(tmp_path / "run", StandIn())
    profile = tp.load(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "unreduced").iterdir()] == ["00000.json"]
    assert profile.windows.select("window", "steps", "error").rows() == [(0, 3, None)]
    assert profile.stored.frame.select("step", "traced").rows() == [(3, "full"), (4, "full"), (5, "full")]
    assert profile.stored.ops["op"].unique().to_list() == ["MatMul"]
    assert profile.skipped == []
    assert tp.phases(profile).frame["steps"].sum() == 3


@pytest.mark.live
def test_the_end_does_not_wait_for_a_reduction(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        deferred(tmp_path / "run", StandIn(), patch)
    profile = tp.load(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"
    assert profile.windows["window"].to_list() == [0, 1]
    assert profile.stored.frame.select("step", "traced").rows() == [(step, "full") for step in range(6)]


@pytest.mark.live
@pytest.mark.parametrize("content", [b"", b"[]", b'{"number": 0}', b'{"number": "x"}', b"\xff", b"[" * 10**6])
def test_a_damaged_window_leaves_the_rest_of_the_run(content, tmp_path):
    deferred(tmp_path / "run", StandIn())
    (tmp_path / "run" / "unreduced" / "00000.json").write_bytes(content)
    with pytest.warns(UserWarning, match="1 file skipped"):
        profile = tp.load(tmp_path / "run")
    assert [path for path, _ in profile.skipped] == ["unreduced/00000.json"]
    assert profile.stored.frame["step"].to_list() == [3, 4, 5]


# -- what a capture costs at its entry --------------------------------------------------------------------------------


def test_a_run_begins_with_its_entry_and_books_it(tmp_path):
    class Slow(StandIn):
        def start(self):
            self.began_ns = time.time_ns()
            time.sleep(0.05)
            self.ended_ns = time.time_ns()

    source = Slow()
    with tp.capture(tmp_path / "run", source=source, schedule=tp.Schedule.ticks()) as run:
        train(run, range(3))
    profile = tp.load(tmp_path / "run")
    entry = profile.stored.wall.spans.filter(account="profiler", detail="begin of the capture")
    start_ps, dur_ps = entry.select("start_ps", "dur_ps").row(0)
    assert start_ps == 0
    assert profile.origin_ns <= source.began_ns
    assert profile.origin_ns + dur_ps // 1000 >= source.ended_ns
    assert tp.goodput(profile).time_ps("profiler") >= (source.ended_ns - source.began_ns) * 1000


@pytest.mark.live
def test_the_entry_loads_nothing_that_only_windows_need():
    code = (
        "import sys, tpunb.profiler.capture; print({'numba', 'grpc', 'sklearn', 'altair', 'msgspec'} & {*sys.modules})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "set()\n"
