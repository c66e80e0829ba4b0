"""The documentation: its Python blocks run in order and print what is shown; links, files and messages exist."""

import io
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules

import pytest
from examples import is_thorough
from fake_cloud import FakeCloud
from tracked import tracked
from training_worker import worker

import tpunb as tp
from tpunb import instrument
from tpunb.profiler.capture import Status
from tpunb.profiler.service_client import ProfilerClient
from tpunb.profiler.sources import address as address_module
from tpunb.testing import FakeProfiler

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *tracked("docs", ending=".md")]
PAGES += [ROOT / "SECURITY.md", ROOT / "notebooks" / "paper" / "README.md"]
ABOVE = re.compile(r"^<!-- (.*) -->\n```", re.MULTILINE)
"""What stands above a block that is not run here: what it needs, or "tests" above the command of README."""
PYTHON = re.compile(r"(?<!-->\n)^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
"""A block of Python and, if one follows directly, the block of its output."""
COMMANDS = re.compile(r"(?<!-->\n)^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "bash", "text", "yaml", ""}  # of blocks: what is not Python is not run
ORDER = (  # of the pages in the index
    *("start", "report", "causes", "steps", "capture", "process", "profiles", "phases", "resume", "tune", "pods"),
    *("studies", "compared", "glossary", "wrapped"),
)
BELOW = """[SKILL.md](SKILL.md) is for an assistant that has a terminal. See also the [README](../README.md),
[contributing](../CONTRIBUTING.md) and the [changelog](../CHANGELOG.md). The notebooks in `notebooks/` cover the same
ground with output. This page is written by `python tests/test_docs.py`.
"""
WRAPPED = """# Wrapped attributes

What tpunb wraps of libraries, with the versions that were tried; [how and why](process.md). This page is written by
`python tests/test_docs.py`.

"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def prose(page):
    """The text of a page without its blocks of code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


# -- its Python -------------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """An empty folder with two runs."""
    for run in ("a", "b"):
        shutil.copytree(ROOT / "datasets" / "sample_profiles" / "keras_cnn", tmp_path / "runs" / run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there


def run_blocks(page, names):
    """Run the blocks of a page in order, magics as cells, and compare what they print with the blocks of output.

    Without --slow, a search may take a fifth of the seconds on the page.
    """
    text = page.read_text(encoding="utf-8")
    if not is_thorough():
        text = re.sub(r"\bbudget=(\d+)", lambda match: f"budget={max(1, int(match[1]) // 5)}", text)
    blocks = [(match[1], match[2], text.count("\n", 0, match.start(1))) for match in PYTHON.finditer(text)]
    assert blocks
    shell = None
    if any(code[0] == "%" for code, *_ in blocks):
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        shell = InteractiveShell(user_ns=names, config=Config({"HistoryManager": {"enabled": False}}))
    for code, shown, line in blocks:
        if "import torch" in code and find_spec("torch") is None:
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            if code[0] == "%":
                shell.run_cell(code).raise_error()
            else:
                exec(compile("\n" * line + code, page, "exec"), names)  # a traceback names the line of the page
        assert shown is None or printed.getvalue() == shown, f"{page.name}:{line}"


WITH_FIXTURES = {"capture.md"}  # its blocks need workers: see below
LIVE = {"resume.md", "start.md", "steps.md", "studies.md", "tune.md"}  # which train, or measure
ALONE = [
    pytest.param(page, marks=pytest.mark.live if page.name in LIVE else (), id=page.name)
    for page in PAGES
    if page.name not in WITH_FIXTURES and PYTHON.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("document", ALONE)
def test_python_blocks_run_and_print_what_is_shown(document, reader):
    run_blocks(document, {})


TRAINING = """
import jax
import jax.numpy as jnp

step = jax.jit(lambda weights, batch: weights - 0.1 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(weights))
weights, batch = jnp.ones(8), jnp.ones((16, 8))
for number in range(200):
    weights = step(weights, batch)
"""
"""The `train.py` of the pages."""


@pytest.fixture
def terminal(reader, tmp_path, monkeypatch):
    """The folder of the reader at a terminal, with a program, and ``python`` and ``tpunb`` of this environment."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, words in {"python": "", "tpunb": "-m tpunb"}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tools / name).chmod(0o755)
    (tmp_path / "train.py").write_text(TRAINING)
    shutil.copytree(ROOT / "datasets" / "sample_profiles" / "slow_loader", tmp_path / "runs" / "slow")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.live
@pytest.mark.parametrize(
    "page", [page for page in PAGES if COMMANDS.search(page.read_text("utf-8"))], ids=lambda p: p.name
)
def test_commands_run_one_after_the_other(page, terminal):
    pytest.importorskip("jax")
    for block in COMMANDS.findall(page.read_text(encoding="utf-8")):
        for command in block.splitlines():
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            assert done.returncode < 64, (command, done.stderr)  # from there on: wrong usage, no such run or command
            assert "Traceback" not in done.stderr


def test_blocks_that_are_not_run_say_what_they_need():
    for page in PAGES:
        marks = ABOVE.findall(page.read_text(encoding="utf-8"))
        assert [mark for mark in marks if mark != "tests" and not mark.startswith("needs: ")] == [], page.name


def test_no_command_installs_tpunb_by_its_name():
    """It is on no index: a clone or a URL is installed."""
    by_name = re.compile(r"pip install[^\n]*[ ']tpunb\b(?!\.git)")
    assert {page.name: found for page in PAGES if (found := by_name.findall(page.read_text(encoding="utf-8")))} == {}


def test_blocks_import_tpunb_by_its_front_door():
    pages = (page.read_text(encoding="utf-8") for page in PAGES if page.name != "CONTRIBUTING.md")
    code = "".join(match[1] for page in pages for match in PYTHON.finditer(page))
    imports = re.findall(r"^ *((?:import|from) tpunb\b.*)$", code, re.MULTILINE)
    assert [each for each in imports if not re.match(r"import tpunb as tp$|from tpunb\.testing import ", each)] == []


def test_every_block_has_a_language():
    for page in PAGES:
        opened = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(opened[::2]) <= KINDS, page.name
        assert set(opened[1::2]) <= {""}, page.name  # none is left open


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Two workers at the addresses on the page, and a cloud API with a TPU of both; all on loopback."""
    metadata = pytest.importorskip("google.auth.compute_engine._metadata")
    cloud, began_ns = FakeCloud(), time.time_ns()
    ips = ["10.0.0.2", "10.0.0.3"]
    cloud.nodes["v1", "projects/my-project/locations/us-central2-b/nodes/my-tpu"] = {
        "state": "READY",
        "tensorflowVersion": "2.12.0",
        "networkEndpoints": [{"ipAddress": ip, "port": 8470} for ip in ips],
    }
    for name, value in {**cloud.environment(), "CLOUDSDK_CONFIG": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setattr(metadata, "_GCE_METADATA_HOST", cloud.host)  # read when it was imported
    with ExitStack() as stack:
        stack.callback(cloud.close)
        there = {f"{ip}:8466": stack.enter_context(FakeProfiler(worker(ip, began_ns))) for ip in ips}
        monkeypatch.setattr(address_module, "ProfilerClient", lambda address: ProfilerClient(there[address].address))
        yield there


@pytest.mark.live
def test_the_capture_page_runs_with_workers_at_its_addresses(reader, elsewhere):
    pytest.importorskip("cloud_tpu_client")
    names = {}
    run_blocks(ROOT / "docs" / "capture.md", names)
    asked = {address: [one.method for one in worker.asked].count("Profile") for address, worker in elsewhere.items()}
    assert min(asked.values()) >= 2, asked  # by their addresses, and by the name of their TPU
    tp = names["tp"]
    assert set(elsewhere) <= set(tp.load("runs/pod").windows["host"])
    assert set(elsewhere) <= set(tp.load("runs/tpu").windows["host"])
    assert len(tp.steps(tp.load("runs/bert"))) == 600


# -- its links, and what it names -------------------------------------------------------------------------------------

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
NAMED = re.compile(
    r"`(?:python |\.venv/bin/python -m pytest )?((?:\w+/)+[\w*.]*|[A-Z]+\.\w+|pyproject\.toml)(?: [^`]*)?`"
)
TOPS = ("tpunb", "tests", "benchmarks", "programs", "datasets", "docs", "notebooks")


def anchors(page):
    """Return the anchors of a page's headings, as GitHub forms them."""
    words = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in words}


def lost_links(page):
    for found in LINK.finditer(prose(page)):
        target = found[1] or found[2]
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        if not target.startswith("https://") and (not file.exists() or (heading and heading not in anchors(file))):
            yield target


def test_links_lead_to_files_and_headings():
    assert {page.name: lost for page in PAGES if (lost := [*lost_links(page)])} == {}


def test_named_files_exist():
    names = {match[1] for page in PAGES for match in NAMED.finditer(prose(page))}
    named = {name for name in names if name.split("/")[0] in TOPS or "/" not in name}
    assert [name for name in sorted(named) if not list(ROOT.glob(name.rstrip("/")))] == []


def index():
    """Return the page with the title and the first sentence of each page."""
    lines = ["# tpunb documentation\n\nBegin with [Read your first verdict](start.md).\n\n"]
    for name in ORDER:
        title, text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").removeprefix("# ").split("\n\n")[:2]
        sentence = re.match(r".*?[.?!](?= [A-Z`]|$)", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", " ".join(text.split())))[0]
        lines.append(f"- [{title}]({name}.md): {sentence}\n")
    return f"{''.join(lines)}\n{BELOW}"


def wrapped():
    """Return the page of what tpunb wraps of each library."""
    modules = (import_module(f"tpunb.instrument.{module.name}") for module in iter_modules(instrument.__path__))
    libraries = [module.LIBRARY for module in [*modules] if hasattr(module, "LIBRARY")]
    rows = ["| library | tried | attributes |", "|---|---|---|"]
    for library in libraries:
        paths = (each.path if "." in each.path else f"{each.home}.{each.path}" for each in library.attributes)
        names = ", ".join(f"`{path}`" for path in dict.fromkeys(paths))
        rows.append(f"| {library.package} | {' to '.join(dict.fromkeys(library.tried))} | {names} |")
    return WRAPPED + "\n".join(rows) + "\n"


def test_the_index_and_what_is_wrapped_are_generated():
    """If this fails: ``python tests/test_docs.py``."""
    assert {f"{name}.md" for name in ORDER} | {"index.md", "SKILL.md"} == {
        page.name for page in (ROOT / "docs").glob("*.md")
    }
    assert (ROOT / "docs" / "index.md").read_text(encoding="utf-8") == index()
    assert (ROOT / "docs" / "wrapped.md").read_text(encoding="utf-8") == wrapped()


def explained_messages(page):
    """Return the messages in the first column of a page's tables of messages."""
    tables = page.read_text(encoding="utf-8").split("| message | cause | what to do |\n|---|---|---|\n")[1:]
    rows = [row for table in tables for row in table.partition("\n\n")[0].splitlines()]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_explained_messages_occur_in_the_code():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tpunb").rglob("*.py")).lower()
    explained = {message for page in PAGES for message in explained_messages(page)}
    assert [message for message in explained if message.lower() not in code] == []


def test_the_capture_page_explains_its_messages():
    assert len(explained_messages(ROOT / "docs" / "capture.md")) >= 12


def test_the_status_line_on_the_page_is_a_real_one():
    status = Status(412, "train", 1, 2, 3, 0, 0.61, 0.014, 9.0, "running", overhead_interval=(0.008, 0.021))
    assert f"```text\n{status}\n```" in (ROOT / "docs" / "start.md").read_text(encoding="utf-8")


def test_versions_on_the_pages_are_those_of_pyproject():
    required = {*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())}
    stated = re.findall(r"`([\w.-]+>=[\d.]+)`", prose(ROOT / "docs" / "start.md"))
    assert len(stated) >= 4
    assert set(stated) <= required
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or later" in prose(ROOT / "README.md")


def test_extras_on_the_pages_exist():
    named = re.compile(r"'\.\[([\w,]+)\]'|\bextra `(\w+)`")
    stated = {"".join(names) for page in PAGES for names in named.findall(page.read_text(encoding="utf-8"))}
    assert {name for names in stated for name in names.split(",")} <= set(PROJECT["optional-dependencies"])
    assert stated


# -- what goes with it ------------------------------------------------------------------------------------------------


def test_the_license_is_complete():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert [number for number in range(1, 10) if f"\n   {number}. " not in text] == []
    assert "APPENDIX: How to apply the Apache License to your work." in text


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_pictures_show_what_the_sample_shows():
    """If this fails: ``python docs/pictures/draw.py``."""
    pictures = ROOT / "docs" / "pictures"
    spec = spec_from_file_location("draw", pictures / "draw.py")
    draw = module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert (pictures / "shown.txt").read_text().strip() == draw.shown()


def test_the_verdict_in_the_first_lines_is_that_of_the_sample():
    sentence = tp.analysis.verdict(tp.phases(tp.sample("slow_loader"))).sentence
    assert sentence in (ROOT / "README.md").read_text(encoding="utf-8")[:1500].replace("\n", " ")


def test_pictures_are_small():
    for name in ("explorer-light.png", "explorer-dark.png"):
        assert (ROOT / "docs" / "pictures" / name).stat().st_size < 200_000


if __name__ == "__main__":
    (ROOT / "docs" / "wrapped.md").write_text(wrapped(), encoding="utf-8")
    (ROOT / "docs" / "index.md").write_text(index(), encoding="utf-8")
