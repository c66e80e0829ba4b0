"""The Python of the documentation runs, block after block, as a reader would type it."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_python_runs_in_order(name, tmp_path, monkeypatch):
    for run in ("a", "b"):  # what pages call runs of the reader's own
        shutil.copytree(ROOT / "datasets" / "sample_profiles" / "keras_cnn", tmp_path / "runs" / run)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / name
    text = page.read_text(encoding="utf-8")
    blocks = [(found[1], text.count("\n", 0, found.start(1))) for found in PYTHON.finditer(text)]
    assert blocks
    names = {}
    for code, line in blocks:
        exec(compile("\n" * line + code, page, "exec"), names)  # a traceback names the line of the page
