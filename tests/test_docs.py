"""The documentation: its Python runs, block after block, as a reader would type it; its links lead somewhere."""

import re
import shutil
import sys
import time
import tomllib
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest
from fake_cloud import FakeCloud
from IPython.core.interactiveshell import InteractiveShell
from test_remote_capture import worker
from traitlets.config import Config

from tpunb.io.profiler_service import ProfilerClient
from tpunb.recorder import Status
from tpunb.sources import address as address_module
from tpunb.testing import ProfilerStandIn

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "bash", "text", ""}  # of blocks: what is not Python is not run
NO_HISTORY = Config({"HistoryManager": {"enabled": False}})
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def called(page):
    return page.name


def prose(page):
    """The text of a page without its blocks of code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


# -- its Python -------------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder of a reader's own, with what pages call runs of theirs; whatever was seeded before is not."""
    for run in ("a", "b"):
        shutil.copytree(ROOT / "datasets" / "sample_profiles" / "keras_cnn", tmp_path / "runs" / run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(None)


def run_blocks(page, names):
    """Run a page from top to bottom; what begins with a magic as a cell, the rest as a program."""
    text = page.read_text(encoding="utf-8")
    blocks = [(found[1], text.count("\n", 0, found.start(1))) for found in PYTHON.finditer(text)]
    assert blocks
    shell = InteractiveShell(user_ns=names, config=NO_HISTORY) if any(code[0] == "%" for code, _ in blocks) else None
    for code, line in blocks:
        if code[0] == "%":
            shell.run_cell(code).raise_error()
        else:
            exec(compile("\n" * line + code, page, "exec"), names)  # a traceback names the line of the page


APART = {"README.md", "capture.md"}  # they want more than an empty folder: see below
ALONE = [page for page in PAGES if page.name not in APART and PYTHON.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("document", ALONE, ids=called)
def test_every_block_of_python_runs_in_order(document, reader):
    run_blocks(document, {})


@pytest.mark.parametrize("document", PAGES, ids=called)
def test_a_block_says_what_it_is(document):
    opened = re.findall(r"^ *```(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(opened[::2]) <= KINDS
    assert set(opened[1::2]) <= {""}  # none is left open


def test_the_blocks_of_the_readme_run_with_a_model_and_data_of_the_readers_own(reader):
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")

    def build():
        keras.utils.set_random_seed(3)
        rows = tf.reshape(tf.range(1600 * 4, dtype="float32"), (1600, 4)) / 6400
        data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).shuffle(64, seed=1).batch(8)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model, data

    model, data = build()
    names = {"model": model, "data": data, "build": build}
    run_blocks(ROOT / "README.md", names)
    assert len(names["tpu"].steps) == len(names["steps"]) == 600
    assert names["start"].step == 1000  # the cell of the notebook took 600 steps, the program goes on to 1200
    assert names["tuning"].said  # what was found, or why nothing was tried
    assert [spec.dtype for spec in names["data"].element_spec] == [tf.float32, tf.float32]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Two workers at the addresses that the page names, and a cloud that knows a TPU of them; all on loopback."""
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
        there = {f"{ip}:8466": stack.enter_context(ProfilerStandIn(worker(ip, began_ns))) for ip in ips}
        monkeypatch.setattr(address_module, "ProfilerClient", lambda address: ProfilerClient(there[address].address))
        yield there


def test_the_blocks_on_capturing_run_with_workers_at_the_addresses_that_they_name(reader, elsewhere):
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
TOPS = ("tpunb", "tests", "benchmarks", "datasets", "docs", "notebooks")


def anchors(page):
    """What the headings of a page are called in links, as GitHub calls them."""
    words = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("document", PAGES, ids=called)
def test_every_link_leads_to_a_file_and_a_heading(document):
    lost = []
    for found in LINK.finditer(prose(document)):
        target = found[1] or found[2]
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = document.parent / path if path else document
        if not file.exists() or (heading and heading not in anchors(file)):
            lost.append(target)
    assert lost == []


@pytest.mark.parametrize("document", PAGES, ids=called)
def test_every_file_of_the_project_that_is_named_is_there(document):
    told = {found[1] for found in NAMED.finditer(prose(document))}
    named = {name for name in told if name.split("/")[0] in TOPS or "/" not in name}
    assert [name for name in sorted(named) if not list(ROOT.glob(name.rstrip("/")))] == []


def test_the_map_names_every_page():
    pages = {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}
    assert pages == {found[1] for found in LINK.finditer(prose(ROOT / "docs" / "index.md")) if "/" not in found[1]}


def test_messages_that_are_explained_are_those_of_the_code():
    page = (ROOT / "docs" / "capture.md").read_text(encoding="utf-8")
    table = page[page.index("| it says |") :].partition("\n\n")[0].splitlines()[2:]
    said = [message for row in table for message in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(said) >= 15
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tpunb").rglob("*.py"))
    assert [message for message in said if message.lower() not in code.lower()] == []


def test_the_live_line_that_is_shown_is_one():
    status = Status(412, "train", 1, 2, 3, 0, 0.61, 0.014, 9.0, "running")
    assert f"```text\n{status}\n```" in (ROOT / "docs" / "start.md").read_text(encoding="utf-8")


def test_versions_that_are_told_are_those_that_the_project_asks_for():
    asked = {*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())}
    told = re.findall(r"`([\w.-]+>=[\d.]+)`", prose(ROOT / "docs" / "faq.md"))
    assert len(told) >= 4
    assert set(told) <= asked
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or later" in prose(ROOT / "README.md")


def test_the_extras_that_are_told_are_those_there_are():
    told = {name for page in PAGES for name in re.findall(r"'(?:tpunb|\.)\[([\w,]+)\]'", page.read_text("utf-8"))}
    assert {name for names in told for name in names.split(",")} <= set(PROJECT["optional-dependencies"])
    assert told


# -- what goes with it ------------------------------------------------------------------------------------------------


def test_the_license_is_the_whole_of_it():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert [number for number in range(1, 10) if f"\n   {number}. " not in text] == []
    assert "APPENDIX: How to apply the Apache License to your work." in text


def test_one_version_is_told_everywhere():
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["explorer-light.png", "explorer-dark.png"])
def test_a_picture_is_small(name):
    assert (ROOT / "docs" / "pictures" / name).stat().st_size < 200_000
