"""``tpunb mcp``: what its tools answer, what they refuse, and a conversation with the protocol's client."""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb import cli, mcp_server, schema
from tpunb.errors import install
from tpunb.mcp_server import RunTools
from tpunb.testing import toy_steps

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "datasets" / "sample_profiles" / "keras_cnn"


@pytest.fixture
def folder(tmp_path):
    """A folder of runs: a sample twice, one below another folder, and one that is damaged; a secret is beside it."""
    (tmp_path / "secret").mkdir()
    shutil.copytree(SAMPLE, tmp_path / "secret" / "run")
    (tmp_path / "secret" / "train.py").write_text("password\n" * 9)
    folder = tmp_path / "runs"
    shutil.copytree(SAMPLE, folder / "a")
    shutil.copytree(SAMPLE, folder / "deep" / "b")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text('{"tpunb": 3')
    return folder


@pytest.fixture
def tools(folder):
    return RunTools(str(folder))


def answer(tools, name, /, **arguments):
    texts, failed = tools.call(name, arguments)
    assert not failed, texts
    return json.loads(texts[0])


def refusal(tools, name, /, **arguments):
    texts, failed = tools.call(name, arguments)
    assert failed
    (text,) = texts
    assert len(text.splitlines()) == 1
    assert len(text) <= 600
    return text


# -- answers ----------------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_what_is_wrong(tools, folder):
    listed = answer(tools, "list_runs")["runs"]
    rows = {row["name"]: row for row in listed["rows"]}
    assert listed["total"] == 3
    assert {*rows} == {"a", "deep/b", "damaged"}
    meant = tp.runs(SAMPLE).row(0, named=True)
    assert {name: rows["a"][name] for name in ("program", "wall_ps", "steps", "step_ps", "phases")} == {
        name: meant[name] for name in ("program", "wall_ps", "steps", "step_ps", "phases")
    }
    assert rows["damaged"]["problem"].startswith("damaged/run.json: not a run's run.json")
    assert len(answer(tools, "list_runs", limit=1)["runs"]["rows"]) == 1


def test_runs_are_listed_latest_start_first_whichever_file_changed_last(tools, folder):
    for name, hours in (("old", 2), ("new", 3)):
        copy = shutil.copytree(folder / "a", folder / name)
        facts = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps(facts | {"origin_ns": facts["origin_ns"] + hours * 3600 * 10**9}))
        os.utime(copy / "run.json", (10**9 - hours, 10**9 - hours))
    names = [row["name"] for row in answer(tools, "list_runs")["runs"]["rows"]]
    assert [name for name in names if name in ("a", "old", "new")] == ["new", "old", "a"]
    assert [row["name"] for row in answer(tools, "list_runs", limit=2)["runs"]["rows"]] == names[:2]


def test_a_cause_is_explained_by_its_id(tools):
    found = answer(tools, "cause", name="T104")
    assert found["name"] == "restarted workers"
    assert found["remedies"][0]["code"] == "DataLoader(..., persistent_workers=True)"
    assert "id or the name of a cause" in refusal(tools, "cause", name="T999")


def test_a_report_and_its_evidence_are_those_of_the_package(tools, folder):
    meant = tp.report(folder / "a")
    assert tools.call("report", {"run": "a"}) == ([meant.to_json()], False)
    for name, frame in meant.frames.items():
        assert answer(tools, "evidence", run="a", id=name)["rows"]["total"] == frame.height
    first = answer(tools, "evidence", run="a", id="accounts", limit=1)["rows"]["rows"]
    assert [row["time_ps"] for row in first] == meant.frames["accounts"]["time_ps"].head(1).to_list()
    assert "must be one of phases, actions, " in refusal(tools, "evidence", run="a", id="nothing")


def test_phases_and_operations_are_those_of_the_package(tools, folder):
    phases = tp.phases(folder / "a")
    rows = answer(tools, "phases", run="a")["phases"]["rows"]
    assert [row["phase"] for row in rows] == phases.frame["phase"].to_list()
    assert "device_ps" not in rows[0]  # not known
    for phase in (None, 2):
        found = answer(tools, "operations", run="a", phase=phase, n=3)
        label = phases.longest.id if phase is None else phase
        meant = phases.top(3, sources=False).filter(phase=label)
        assert (found["phase"], found["name"]) == (label, phases.names[label])
        assert [row["op"] for row in found["operations"]["rows"]] == meant["op"].to_list()
    assert refusal(tools, "operations", run="a", phase=9) == "KeyError: 'no phase 9; there are [-1, 0, 1, 2]'"


def test_a_comparison_with_itself_is_equal(tools):
    found = answer(tools, "compare", a="a", b="deep/b")
    assert found["slower"] is not True
    assert {row["change_ps"] for row in found["accounts"]["rows"]} == {0}
    assert [row["ratio"] for row in found["phases"]["rows"]] == [1.0] * 3


def test_what_a_run_does_not_hold_is_said_with_what_to_do(tools):
    assert refusal(tools, "roofline", run="a").endswith("load their XPlane")
    assert "its capture kept statistics only; capture again with" in refusal(
        tools, "source_line", run="a", operation="Conv2D"
    )


def test_a_roofline_is_that_of_the_package(tools, folder, real_profiles):
    shutil.copy(real_profiles / "gpu-mi300x_jax_conv.xplane.pb", folder)
    found = answer(tools, "roofline", run="gpu-mi300x_jax_conv.xplane.pb", by="op")
    meant = tp.roofline(folder / "gpu-mi300x_jax_conv.xplane.pb", "op").frame
    assert [row["what"] for row in found["rows"]["rows"]] == meant["what"].head(20).to_list()
    assert found["utilisation"] is None  # no peaks
    found = answer(tools, "roofline", run="gpu-mi300x_jax_conv.xplane.pb", device="TPU v5e")
    meant = tp.roofline(tp.phases(folder / "gpu-mi300x_jax_conv.xplane.pb"), device="TPU v5e").frame
    assert [row["headroom_ps"] for row in found["rows"]["rows"]] == meant["headroom_ps"].to_list()
    (folder / "gpu-mi300x_jax_conv.trace.json.gz").symlink_to(folder / "a" / "run.json")  # tp.load reads it too
    assert "is a link" in refusal(tools, "roofline", run="gpu-mi300x_jax_conv.xplane.pb")


def test_a_run_that_changed_is_read_again(tools, folder):
    assert answer(tools, "phases", run="a")["phases"]["total"] == 4
    shutil.rmtree(folder / "a" / "parts")
    assert answer(tools, "report", run="a")["run"]["steps"] < 480


def test_warnings_about_a_run_are_in_each_of_its_answers(tools, folder):
    path = next((folder / "a" / "parts").glob("*/stalls.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    for _ in range(2):
        texts, failed = tools.call("phases", {"run": "a"})
        assert not failed
        assert [text for text in texts[1:] if "stalls.parquet" in text and text.startswith("Warning: ")]


def with_sources(steps, source):
    """Return steps whose operations are of one source line."""
    base = {"side": "device", "layer": "dense", "source": source, "count": 1, "total_ps": 1, "self_ps": 1}
    rows = [base | row for row in steps.ops.select("host", "step", "op", "side").iter_rows(named=True)]
    frame = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS} for row in rows], schema=schema.LAYERS)
    return replace(steps, read_layers=lambda: frame)


@pytest.fixture
def sourced(tools, monkeypatch):
    """A function that gives all operations of run a, begun at 5 s, a source line, and returns what is found of one."""

    def found(source):
        phases = tp.phases(with_sources(toy_steps("aaabbb"), source))
        monkeypatch.setattr(mcp_server, "_grouped", lambda *_: (phases, [], 5 * 10**9))
        return answer(tools, "source_line", run="a", operation=str(phases.top(1)["op"][0]))

    return found


def test_a_source_line_is_shown_where_its_file_is_in_the_folder(sourced, folder):
    (folder / "train.py").write_text("".join(f"line\t{n}\u202e\n" for n in range(1, 10)))
    for seconds, changed in ((4, False), (6, True)):
        os.utime(folder / "train.py", (seconds, seconds))
        found = sourced("train.py:2")
        assert {(row["layer"], row["source"]) for row in found["lines"]["rows"]} == {("dense", "train.py:2")}
        lines = {str(n): f"line    {n}\ufffd" for n in range(1, 6)}
        assert found["code"] == [{"file": "train.py", "changed since the run": changed, "lines": lines}]


ELSEWHERE = ["../secret/train.py:2", "{secret}/train.py:2", "link.py:2", "linked/train.py:2"]
NOT_SHOWN = [".hidden/train.py:2", "big.py:2", "notes.txt:2", "missing.py:2", "train.py", "folder.py:1", "cell:6"]


@pytest.mark.parametrize("source", [*ELSEWHERE, *NOT_SHOWN, "\0.py:1", f"{'x' * 5000}.py:1"])
def test_no_other_file_is_opened_for_a_source_line(sourced, folder, source):
    secret = folder.parent / "secret"
    (folder / "link.py").symlink_to(secret / "train.py")
    (folder / "linked").symlink_to(secret)
    (folder / "folder.py").mkdir()
    (folder / ".hidden").mkdir()
    for name in (".hidden/train.py", "notes.txt"):
        (folder / name).write_text("password\n" * 9)
    (folder / "big.py").write_text("password\n" * 200_000)
    found = sourced(source.format(secret=secret))
    assert found["code"] == []
    assert "password" not in json.dumps(found)


# -- refusals ---------------------------------------------------------------------------------------------------------


UPWARDS = ["..", "../secret/run", "a/../../secret/run", "a/../a", "leak", "leak/run"]
ABSOLUTE = [
    "{secret}/run",
    "{secret}/../runs/a",
    "gs://bucket/run",
    "file://{secret}/run",
    "http::file://x",
    "~",
    "~root",
]


@pytest.mark.parametrize("name", [*UPWARDS, *ABSOLUTE, ".cache", "a/.lock", "a\0b", "x" * 5000])
def test_no_name_leads_out_of_the_folder(tools, folder, name):
    (folder / "leak").symlink_to(folder.parent / "secret")
    (folder / ".cache").mkdir()
    name = name.format(secret=folder.parent / "secret")
    for tool, arguments in (("report", {}), ("phases", {}), ("evidence", {"id": "phases"}), ("roofline", {})):
        text = refusal(tools, tool, run=name, **arguments)
        assert "is not a name in the folder; give a relative path" in text or "no run" in text
    refusal(tools, "compare", a=name, b="a")


def test_runs_behind_links_and_hidden_ones_are_not_listed(tools, folder):
    (folder / "leak").symlink_to(folder.parent / "secret")
    shutil.copytree(folder / "damaged", folder / ".hidden" / "damaged")
    assert answer(tools, "list_runs", limit=1)["runs"]["total"] == 3


@pytest.mark.parametrize("linked", ["parts", "run.json"])
def test_a_run_that_contains_links_is_refused(tools, folder, linked):
    shutil.move(folder / "a" / linked, folder.parent / "secret" / linked)
    (folder / "a" / linked).symlink_to(folder.parent / "secret" / linked)
    assert refusal(tools, "report", run="a") == f"'a/{linked}' is a link, which is not followed; copy the file it names"
    rows = {row["name"]: row for row in answer(tools, "list_runs")["runs"]["rows"]}
    assert "is a link" in rows["a"]["problem"]


def test_a_link_within_the_folder_names_a_run(tools, folder):
    (folder / "latest").symlink_to("a")
    assert tools.call("report", {"run": "latest"}) == tools.call("report", {"run": "a"})


def test_a_damaged_run_an_empty_folder_and_several_runs_are_refused_in_a_line(tools, folder):
    (folder / "empty").mkdir()
    assert refusal(tools, "report", run="damaged").startswith("damaged/run.json: not a run's run.json")
    assert "holds no profile" in refusal(tools, "report", run="empty")
    assert "run" in refusal(tools, "report", run=".")
    assert refusal(tools, "report", run="c") == "no run 'c' in the folder; call list_runs for the names of runs"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("report", {}, "report: run is required; parameters: run"),
        (
            "report",
            {"run": "a", "path": "b"},
            "report: path is no parameter; parameters: run",
        ),
        ("report", {"run": 3}, "report: run is 3, not of type string; parameters: run"),
        (
            "phases",
            {"run": "a", "limit": True},
            "phases: limit is True, not of type integer; parameters: run, limit",
        ),
        ("call", {}, "no tool 'call'; tools: list_runs, report"),
        ("roofline", {"run": "a", "by": "me"}, "ValueError: The by parameter of roofline must be one of run, phase"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(tools, name, arguments, said):
    assert refusal(tools, name, **arguments).startswith(said)


def test_answers_are_bounded_and_names_are_plain(tools, monkeypatch):
    names = [f"{n}\x1b[31m\u202e\n{'x' * 500}" for n in range(1000)]
    steps = toy_steps("aaabbb")
    ops = pl.concat([steps.ops.with_columns(op=pl.lit(name).cast(steps.ops.schema["op"])) for name in names])
    phases = tp.phases(replace(steps, ops=ops))
    monkeypatch.setattr(mcp_server, "_grouped", lambda *_: (phases, [], None))
    (text,), failed = tools.call("operations", {"run": "a", "n": 1000})
    assert not failed
    assert len(text) <= 20_000
    table = json.loads(text)["operations"]
    assert 0 < len(table["rows"]) < table["total"] <= 400
    assert all(len(row["op"]) <= 200 and row["op"].isprintable() for row in table["rows"])


def test_nothing_is_written_to_the_folder(tools, folder):
    before = {path: path.stat() for path in [folder, *folder.rglob("*")]}
    for name in ("report", "phases", "operations", "roofline"):
        tools.call(name, {"run": "a"})
    answer(tools, "list_runs")
    after = {path: path.stat() for path in [folder, *folder.rglob("*")]}
    assert [(path, info.st_mtime_ns, info.st_size) for path, info in before.items()] == [
        (path, info.st_mtime_ns, info.st_size) for path, info in after.items()
    ]


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_requires(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)  # not installed
    for words, code, said in [
        ([str(folder)], 65, f"mcp is not installed; {install('mcp')}"),
        ([str(folder / "none")], 65, "no folder at"),
        ([], 64, "required: folder; tpunb mcp --help lists the options"),
        (["a", "b"], 64, "unrecognized arguments: b"),
    ]:
        assert cli.main(["mcp", *words]) == code
        assert said in capsys.readouterr().err


@pytest.mark.live
def test_a_client_of_the_protocol_asks_a_process_over_stdio(folder):
    mcp = pytest.importorskip("mcp")
    asked = [("list_runs", {}), ("report", {"run": "a"}), ("phases", {"run": "deep/b"})]
    asked += [("report", {"run": "../secret/run"}), ("report", {"run": "damaged"}), ("report", {})]

    async def conversation():
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TPUNB_CACHE": "off"}
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "tpunb", "mcp", "runs"], env=paths, cwd=folder.parent
        )
        async with mcp.stdio_client(server) as streams, mcp.ClientSession(*streams) as client:
            about = await client.initialize()
            listed = await client.list_tools()
            return about, listed.tools, [await client.call_tool(*each) for each in asked]

    about, listed, answers = asyncio.run(conversation())
    assert about.server_info.name == "tpunb"
    assert about.instructions == mcp_server.INSTRUCTIONS
    assert [tool.name for tool in listed] == [tool["name"] for tool in RunTools(str(folder)).described()]
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed)
    assert {tool.name: tool.input_schema["required"] for tool in listed}["compare"] == ["a", "b"]
    texts = [[each.text for each in one.content] for one in answers]
    assert [one.is_error for one in answers] == [False, False, False, True, True, True]
    assert {row["name"] for row in json.loads(texts[0][0])["runs"]["rows"]} == {"a", "deep/b", "damaged"}
    assert texts[1] == [tp.report(folder / "a").to_json()]
    assert [row["phase"] for row in json.loads(texts[2][0])["phases"]["rows"]] == [0, 2, 1, -1]
    assert all(len(text) == 1 and "\n" not in text[0] for text in texts[3:])
    assert texts[3][0].startswith("'../secret/run' is not a name in the folder; ")


def test_the_page_describes_each_tool():
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    for tool in RunTools(str(ROOT)).described():
        parameters = ", ".join(tool["input_schema"]["properties"])
        assert f"`{tool['name']}({parameters})`" in page
