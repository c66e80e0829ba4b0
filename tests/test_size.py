"""The ledger: how large a room may be. Who needs more raises its number in the same commit, with the reason."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

import tpunb as tp

ROOT = Path(__file__).parents[1] / "tpunb"
CODE = {  # most lines of code per room, without docstrings, comments and blank lines
    "analysis": 6_555,
    "charts": 1_675,
    "checkpoint": 1_875,
    "cluster": 2_070,
    "costs": 1_260,
    "frames": 1_660,
    "instrument": 2_810,
    "io": 6_025,
    "profiler": 5_490,
    "protobuf": 390,
    "root": 2_695,
    "step_stats": 3_325,
    "testing": 630,
    "tfdata": 1_100,
    "torchdata": 1_025,
    "training": 3_320,
    "tuning": 3_825,
    "widgets": 2_475,
}
STUDIES = {"paper": 2_320, "ranking": 1_730, "scaling": 530, "sweeps": 1_370}
LINES, FILES = 68_250, 287  # of the package without studies: all lines; modules
DOOR = 31  # names beside the namespaces
README_WORDS, PAGES, WORDS = 700, 12, 18_050  # of README; of docs beside what is generated or for machines
GENERATED = {"SKILL.md", "causes.md", "glossary.md", "index.md", "wrapped.md"}

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source):
    """Return the number of lines that hold code.

    >>> code_lines('"What it does."' + chr(10) + "x = 1  # one" + chr(10) * 2 + "# two" + chr(10))
    1
    """
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, node.end_lineno + 1)}
    return len(lines)


def files(folder):
    return [path for ending in ("py", "pyi") for path in sorted(folder.rglob(f"*.{ending}"))]


def test_every_room_is_in_the_ledger():
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and [*path.rglob("*.py")]}
    assert rooms == {*CODE, "studies"} - {"root"}
    assert {path.name for path in (ROOT / "studies").iterdir() if path.is_dir() and files(path)} == {*STUDIES}


@pytest.mark.parametrize("room", [*CODE, *(f"studies/{study}" for study in STUDIES)])
def test_no_room_is_larger_than_its_ceiling(room):
    paths = [*ROOT.glob("*.py")] if room == "root" else (ROOT / room).rglob("*.py")
    lines = sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)
    most = STUDIES[room.partition("/")[2]] if "/" in room else CODE[room]
    assert lines <= most
    assert lines > 0.9 * most, "lower the ceiling: it holds nothing"


def test_the_package_without_studies_is_no_larger_than_its_ceiling():
    paths = [path for path in files(ROOT) if "studies" not in path.relative_to(ROOT).parts]
    assert len([path for path in paths if path.suffix == ".py"]) <= FILES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths) <= LINES


def test_the_door_has_no_more_names_than_it_may():
    namespaces = {"analysis", "charts", "checkpoint", "sources", "studies", "testing", "tuning"}
    assert len({*tp.__all__} - namespaces) <= DOOR


def test_readme_and_docs_are_no_longer_than_they_may():
    pages = [page for page in (ROOT.parent / "docs").glob("*.md") if page.name not in GENERATED]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in [ROOT.parent / "README.md", *pages]}
    assert words.pop("README.md") <= README_WORDS
    assert len(words) <= PAGES, words
    assert sum(words.values()) <= WORDS, words
