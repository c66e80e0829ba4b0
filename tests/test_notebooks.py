"""The notebooks run from top to bottom, on a machine with no network beyond itself, and leave no output empty."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    book = nbformat.read(NOTEBOOKS / "00_tour.ipynb", as_version=4)
    folder = tmp_path_factory.mktemp("tour")
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return book, folder


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def data(cell):
    return [output["data"] for output in cell.outputs if "data" in output]


def test_the_tour_runs_without_an_error(tour):
    book, _ = tour
    assert [output for cell in code(book) for output in cell.outputs if output.output_type == "error"] == []


def test_every_cell_that_ends_in_a_value_shows_it(tour):
    book, _ = tour
    for cell in code(book)[2:]:  # the first two prepare
        assert data(cell), cell.source


def test_the_tour_ends_with_phases_coverage_and_top_ops(tour):
    book, _ = tour
    shown = "\n".join(str(bundle.get("text/plain")) for cell in code(book) for bundle in data(cell))
    assert "Phases(" in shown
    assert "top 3 cover" in shown
    assert "self time (ms)" in shown


def test_training_and_evaluation_are_told_apart(tour):
    import tpunb as tp

    _, folder = tour
    steps = tp.steps(tp.load(folder / "runs" / "tour"))
    assert len(steps) == 480
    labelled = tp.phases(steps).labelled
    most = {mark: labelled.filter(mark=mark, seen="full")["phase"].mode()[0] for mark in ("train", "test")}
    assert most["train"] != most["test"]


def test_pictures_are_static_and_ask_no_network(tour):
    book, _ = tour
    pictures = [bundle for cell in code(book) for bundle in data(cell) if "image/png" in bundle]
    assert len(pictures) >= 7
    for bundle in pictures:
        assert "<svg" in bundle["text/html"]
        assert "<script" not in bundle["text/html"]
        assert 'src="http' not in bundle["text/html"]


def test_notebooks_are_kept_without_outputs_and_paths():
    for path in NOTEBOOKS.rglob("*.ipynb"):
        book = nbformat.read(path, as_version=4)
        assert all(cell.outputs == [] and cell.execution_count is None for cell in code(book)), path
