"""The commands that read runs: what is printed where, exit codes, and runs that cannot be read."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_parts import begun, tables
from timed_runs import noisy, timed_run

import tpunb as tp
from tpunb import cli

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "datasets" / "sample_profiles"
SAMPLE = str(SAMPLES / "keras_cnn")


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """Two equal runs, one that is 10 % slower, and two of few noisy steps."""
    folder = tmp_path_factory.mktemp("timed")
    timed_run(folder / "a", noisy(1))
    timed_run(folder / "b", noisy(2))
    timed_run(folder / "slow", noisy(3, slower=0.1))
    timed_run(folder / "short", [10.0, 14.0, 9.0] * 12)
    return folder


def run(capsys, *words):
    code = cli.main([*map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_report_is_text_json_or_markdown(capsys):
    report = tp.report(SAMPLE)
    assert run(capsys, "report", SAMPLE) == (0, f"{report}\n", "")
    assert run(capsys, "report", SAMPLE, "--markdown") == (0, f"{report.to_markdown()}\n", "")
    code, out, errors = run(capsys, "report", SAMPLE, "--json")
    assert (code, json.loads(out), errors) == (0, report.content, "")
    assert len(out.encode()) <= 4001


@pytest.mark.parametrize(("share", "code"), [("0.8", 1), ("30%", 0)])
def test_goodput_below_a_share_is_exit_code_1(share, code, capsys):
    done, out, errors = run(capsys, "report", SAMPLE, "--json", "--fail-below", f"goodput={share}")
    assert done == code
    assert json.loads(out)["productive"]["share"] == 0.3561
    assert re.fullmatch(r"tpunb: goodput 35\.6 % of run time is (not )?below \d+ %\n", errors)


def test_unknown_goodput_is_exit_code_2(tmp_path, capsys):
    writer = begun(tmp_path / "run")
    writer.facts({"state": "finished", "span_ps": 10**12})
    writer.close()
    code, _, errors = run(capsys, "report", tmp_path / "run", "--fail-below", "goodput=0.5")
    assert (code, errors) == (2, "tpunb: goodput is unknown: the run has no record of it\n")


@pytest.mark.parametrize(
    ("b", "code", "begins"),
    [("b", 0, "Not slower by 3 %: "), ("slow", 1, "Slower: "), ("short", 2, "Unknown")],
)
def test_the_exit_code_of_compare_follows_the_interval(timed, b, code, begins, capsys):
    a = "short" if b == "short" else "a"
    done, out, errors = run(capsys, "compare", timed / a, timed / b, "--fail-slower", "3%")
    assert (done, errors) == (code, "")
    assert out.startswith(begins)
    first, *changes = out.splitlines()
    changed = tp.compare(timed / a, timed / b)
    assert changes == ["b against a:", *changed.lines]
    done, out, errors = run(capsys, "compare", timed / a, timed / b, "--json")
    content = json.loads(out)
    assert (done, errors, content["exit"]) == (code, "", code)
    assert content["slower"] is {0: False, 1: True, 2: None}[code]
    assert content["sentence"] == first
    for row, account in zip(content["accounts"], changed.accounts.iter_rows(named=True), strict=True):
        assert row["account"] == account["account"]
        assert row["b"] - row["a"] == pytest.approx(row["change"], abs=2e-6)
        assert row["change"] == pytest.approx(account["change_ps"] / 1e12, abs=1e-6)


def test_runs_of_other_models_are_no_answer(capsys):
    code, out, errors = run(capsys, "compare", SAMPLE, SAMPLES / "keras_transformer")
    assert (code, out) == (65, "")
    assert "not of one model" in errors
    assert errors.count("\n") == 1


def test_runs_are_a_table_and_json(timed, capsys):
    code, out, errors = run(capsys, "runs", timed)
    lines = out.splitlines()
    assert (code, errors) == (0, "")
    assert lines[0].split() == [
        "STARTED",
        "RUN",
        "PROGRAM",
        "DEVICE",
        "TIME",
        "GOODPUT",
        "STEP",
        "STEPS",
        "PHASES",
        *("SAMPLES/S", "TOKENS/S", "MFU"),
        "STATE",
    ]
    assert sorted(re.split(" {2,}", line)[1] for line in lines[1:]) == ["a", "b", "short", "slow"]
    code, out, errors = run(capsys, "runs", timed, "--json")
    rows = json.loads(out)
    assert [row["name"] for row in rows] == tp.runs(timed)["name"].to_list()
    assert {row["steps"] for row in rows} == {600, 36}


def test_a_damaged_run_among_others_is_a_line_on_stderr(timed, tmp_path, capsys):
    shutil.copytree(timed / "a", tmp_path / "good")
    shutil.copytree(timed / "a", tmp_path / "bad")
    (tmp_path / "bad" / "run.json").write_text("{")
    code, out, errors = run(capsys, "runs", tmp_path)
    assert (code, len(out.splitlines())) == (0, 2)
    assert errors.startswith("tpunb: ")
    assert "1 run left out: bad: " in errors
    assert errors.count("\n") == 1


def test_view_writes_a_page_and_opens_it_only_on_a_display(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "page.html"
    assert run(capsys, "view", SAMPLE, "-o", page) == (0, f"{page}\n", "")
    assert page.read_text().startswith("<!doctype html>")
    assert opened == []
    code, out, _ = run(capsys, "view", SAMPLE)
    assert (code, Path(out.strip()).name) == (0, "keras_cnn.html")
    shutil.rmtree(Path(out.strip()).parent)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert cli.main(["view", SAMPLE, "-o", str(page)]) == 0
    assert opened == [page.as_uri()]
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    assert cli.main(["view", SAMPLE, "-o", str(page)]) == 0
    assert len(opened) == 1


def test_text_is_bold_on_a_terminal_without_no_color(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def printed():
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert cli.main(["report", SAMPLE]) == 0
        return sys.stdout.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert printed().startswith("\x1b[1mkeras_cnn: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed()


# -- usage ------------------------------------------------------------------------------------------------------------

WRONG = {
    "report": "the following arguments are required: run",
    "report a b": "unrecognized arguments: b",
    "report a --json --markdown": "not allowed with argument --json",
    "report a --fail-below 0.8": "'0.8' is not goodput=SHARE, such as goodput=0.8",
    "report a --fail-below goodput=80": "is not goodput=SHARE",
    "report a --fail-below goodput=": "is not goodput=SHARE",
    "compare a": "the following arguments are required: b",
    "compare a b --fail-slower fast": "'fast' is not a share above 0, such as 3%",
    "compare a b --fail-slower 0": "is not a share above 0",
    "compare a b --fail-slower nan": "is not a share above 0",
    "runs --nonsense": "unrecognized arguments: --nonsense",
    "view": "the following arguments are required: run",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_is_one_line_and_64(line, capsys):
    code, out, errors = run(capsys, *line.split())
    assert (code, out) == (64, "")
    assert WRONG[line] in errors
    assert errors.endswith(f"tpunb {line.split()[0]} --help lists the options\n")
    assert errors.count("\n") == 1


def test_help_has_an_example_and_the_exit_codes(capsys):
    code, overview, _ = run(capsys, "--help")
    assert code == 0
    for command in ("report", "compare", "runs", "view"):
        assert f"  tpunb {command}" in overview
        code, out, errors = run(capsys, command, "--help")
        assert (code, errors) == (0, "")
        assert f"example: tpunb {command} " in out
        assert len(out.splitlines()) < 30
    assert run(capsys, "compare", "--help")[1].count("64 for wrong usage") == 1


def damaged(folder):
    shutil.copytree(SAMPLE, folder)
    for part in folder.rglob("*.parquet"):
        part.write_bytes(part.read_bytes()[:100])


def later(folder):
    shutil.copytree(SAMPLE, folder)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "tpunb": 99}))


def torn(folder):
    folder.mkdir()
    (folder / "run.json").write_text('{"tpunb": 3, "na')


BROKEN = {
    "missing": (lambda folder: None, "nothing is at"),
    "empty": (Path.mkdir, "run"),
    "damaged": (damaged, "run"),
    "later": (later, "run folder of version 99, by a later tpunb"),
    "torn": (torn, "not a run's run.json"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", ["report", "compare", "runs", "view"])
def test_a_run_that_cannot_be_read_is_one_line_and_65(kind, command, tmp_path, capsys):
    make, message = BROKEN[kind]
    make(tmp_path / "run")
    words = [command, tmp_path / "run", *([SAMPLE] if command == "compare" else [])]
    code, out, errors = run(capsys, *words)
    assert (code, out) == (65, "")
    assert message in errors
    assert all(line.startswith("tpunb: ") for line in errors.splitlines())


def test_a_run_that_is_being_written_is_reported_so_far(tmp_path, capsys):
    writer = begun(tmp_path / "run")
    writer.part(0, tables(0, 1, 2))
    code, out, errors = run(capsys, "report", tmp_path / "run")
    writer.facts({"name": "toy", "state": "finished"})
    writer.close()
    assert (code, errors) == (0, "")
    assert "the rest of the run: it is still being written (report again when it has ended)" in out


@pytest.mark.live
def test_a_closed_pipe_ends_it_without_a_traceback(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    report = subprocess.Popen(
        [sys.executable, "-m", "tpunb", "report", SAMPLE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    report.stdout.close()
    errors = report.stderr.read()
    assert (report.wait(300), errors) == (141, b"")


# -- docs/speed.yml ----------------------------------------------------------------------------------------------------

WORKFLOW = ROOT / "docs" / "speed.yml"


def workflow():
    """The commands of each step of the workflow by its name."""
    text = WORKFLOW.read_text()
    steps = {}
    for step in text.split("      - name: ")[1:]:
        name, _, rest = step.partition("\n")
        if block := re.search(r"^        run: \|\n((?:          .*\n)+)", rest, re.MULTILINE):
            steps[name] = re.sub(r"^ {10}", "", block[1], flags=re.MULTILINE)
        elif line := re.search(r"^        run: (.+)$", rest, re.MULTILINE):
            steps[name] = f"{line[1]}\n"
    return steps


def test_the_workflow_is_yaml_with_its_steps():
    assert [*workflow()] == ["Install", "Train", "Fetch the baseline", "Report", "Compare"]
    yaml = pytest.importorskip("yaml")
    assert [*yaml.safe_load(WORKFLOW.read_text())["jobs"]] == ["speed"]


@pytest.mark.live
@pytest.mark.parametrize(("b", "code"), [("b", 0), ("slow", 1), ("short", 0)])
def test_the_commands_of_the_workflow_run_on_two_runs(timed, b, code, tmp_path):
    shutil.copytree(timed / ("short" if b == "short" else "a"), tmp_path / "runs" / "baseline")
    shutil.copytree(timed / b, tmp_path / "runs" / "change")
    tool = tmp_path / "bin" / "tpunb"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tpunb "$@"\n')
    tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    commands = workflow()
    for step, ends in (("Report", 0), ("Compare", code)):
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", commands[step]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (ends, "")
    assert ("::warning::Unknown" in done.stdout) == (b == "short")
    assert json.loads((tmp_path / "report.json").read_text())["format"] == 1
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("**timed: ")
    compared = (tmp_path / "compare.txt").read_text().splitlines()
    assert [line[4:] for line in summary.splitlines()[-len(compared) :]] == compared
