"""What is drawn of a run folder that was slow to group is drawn again without reading the run."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import tpunb as tp
from tpunb.io import cache
from tpunb.widgets import explorer, frontends

SAMPLE = Path(__file__).parents[1] / "datasets" / "sample_profiles" / "keras_cnn"
ASKED = ("figures", "reasons", "accounts", "hints")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Texts of all displays; whatever is grouped took long, and the cache is the test's own."""
    monkeypatch.setenv("TPUNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(explorer, "_SLOW_S", -1)
    shown = []
    publish = SimpleNamespace(publish_display_data=lambda data, *_, **__: shown.append(data["text/plain"]))
    monkeypatch.setattr(frontends, "_display", lambda: publish)
    return shown


@pytest.fixture
def run(tmp_path, texts):
    """A run folder that was shown."""
    shutil.copytree(SAMPLE, tmp_path / "run")
    tp.explore(tmp_path / "run")._ipython_display_()
    texts.clear()
    return tmp_path / "run"


def is_kept(run, **options):
    return "pending" not in tp.explore(run, **options).get_state()["_frame"]


def test_the_second_opening_draws_the_same_without_the_run(run, texts, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(explorer, "loaded", lambda *_: 1 / 0)
        view = tp.explore(str(run))
        view._ipython_display_()
        page, answers = view.get_state(), {name: view.answers()[name]()[0] for name in ASKED}
    expected = tp.explore(tp.load(run))
    assert texts == [repr(expected.value), ""]
    for drawn in (page, view.get_state() if view.value else {}):
        assert drawn["_frame"]["pictures"] == view.displays.name
        assert drawn["clustering"] == expected.clustering
        assert drawn["_clusters"] == expected._clusters
    assert answers == {name: json.loads(json.dumps(expected.answers()[name]()[0])) for name in ASKED}
    assert view.value.labels.equals(expected.value.labels)


def test_a_change_by_the_page_groups_the_steps_first(run):
    view = tp.explore(run)
    view.set_state({"clustering": {"method": "kmeans", "k": 2}})
    assert view.error == ""
    assert view.value.method == tp.KMeans(k=2)


def test_another_method_run_or_code_is_drawn_anew(run, tmp_path, monkeypatch):
    assert is_kept(run)
    assert not is_kept(run, method="kmeans")
    assert not is_kept(run, checkpoints=[3])
    assert not is_kept(shutil.copytree(run, tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_changed_ns", lambda: 0)
        assert not is_kept(run)
    facts = (run / "run.json").read_bytes()
    (run / "run.json").write_bytes(facts)
    assert not is_kept(run)


def test_a_run_that_changes_while_it_is_grouped_is_not_kept(tmp_path, texts, monkeypatch):
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    view, load = tp.explore(run), explorer.loaded
    monkeypatch.setattr(explorer, "loaded", lambda *given: ((run / "note.txt").write_text("new"), load(*given))[1])
    view._ipython_display_()
    assert not (tmp_path / "cache" / "drawn").exists()


def test_a_damaged_entry_is_removed(run, tmp_path):
    (entry,) = (tmp_path / "cache" / "drawn").iterdir()
    file = entry / "drawn.json"
    file.write_bytes(file.read_bytes().replace(b"train", b"tra1n"))
    assert not is_kept(run)
    assert not entry.exists()


def test_what_was_fast_is_not_kept(tmp_path, texts, monkeypatch):
    monkeypatch.setattr(explorer, "_SLOW_S", 1e9)
    tp.explore(shutil.copytree(SAMPLE, tmp_path / "run"))._ipython_display_()
    assert not (tmp_path / "cache" / "drawn").exists()


def test_what_others_may_have_drawn_is_not_shown(run, tmp_path):
    assert is_kept(run)
    (tmp_path / "cache" / "drawn").chmod(0o755)
    assert not is_kept(run)
