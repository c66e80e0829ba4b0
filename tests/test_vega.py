"""Vega for the page: made once, kept where it may be kept, never half of it."""

from importlib.metadata import version

import pytest
import vl_convert

from tpunb.widgets import panel

MADE = "globalThis.tpunbVega = {};"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """How often it was made; without waiting for it."""
    calls = []
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda *args, **more: calls.append(args) or MADE)
    monkeypatch.setenv("TPUNB_CACHE", str(tmp_path / "cache"))
    panel.bundle.cache_clear()
    yield calls
    panel.bundle.cache_clear()


def another_kernel():
    panel.bundle.cache_clear()
    return panel.bundle()


def test_it_is_made_once_and_kept(made, tmp_path):
    first = panel.bundle()
    assert first.startswith(MADE.encode())
    assert panel.bundle() is first
    assert another_kernel() == first
    assert len(made) == 1
    (kept,) = (tmp_path / "cache" / "vega").iterdir()
    assert kept.read_bytes() == first
    assert kept.name == f"vega-{panel.VEGA_LITE}-{version('vl-convert-python')}.js"
    assert kept.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [lambda whole: whole[:10], lambda whole: b"", lambda whole: b"<html>no</html>"])
def test_a_damaged_file_is_made_anew(made, tmp_path, damage):
    whole = panel.bundle()
    (kept,) = (tmp_path / "cache" / "vega").iterdir()
    kept.write_bytes(damage(whole))
    assert another_kernel() == whole
    assert kept.read_bytes() == whole
    assert len(made) == 2


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_what_others_may_have_put_there_does_not_run(made, tmp_path, mode):
    whole = panel.bundle()
    (kept,) = (tmp_path / "cache" / "vega").iterdir()
    kept.write_bytes(b"steal(); // whole")
    kept.parent.chmod(mode)
    assert another_kernel() == whole
    assert kept.read_bytes() == b"steal(); // whole"  # nor is anything written where others may look


def test_a_link_to_a_folder_of_others_is_not_followed(made, tmp_path):
    (tmp_path / "others").mkdir(mode=0o700)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "vega").symlink_to(tmp_path / "others")
    assert panel.bundle().startswith(MADE.encode())
    assert [*(tmp_path / "others").iterdir()] == []


def test_a_folder_that_is_none_does_no_harm(made, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("TPUNB_CACHE", str(tmp_path / "file"))
    assert panel.bundle().startswith(MADE.encode())
    assert (tmp_path / "file").read_text() == "mine"


def test_what_cannot_be_put_in_place_leaves_nothing_behind(made, tmp_path):
    panel._place().parent.mkdir(mode=0o700, parents=True)
    panel._place().mkdir()
    assert panel.bundle().startswith(MADE.encode())
    assert [*(tmp_path / "cache" / "vega").iterdir()] == [panel._place()]


def test_a_disk_that_is_full_does_no_harm(made, tmp_path, monkeypatch):
    def full(path, content):
        with path.open("wb") as file:
            file.write(content[:5])
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert panel.bundle().startswith(MADE.encode())
    assert [*(tmp_path / "cache" / "vega").iterdir()] == []


def test_off_keeps_nothing(made, tmp_path, monkeypatch):
    monkeypatch.setenv("TPUNB_CACHE", "off")
    another_kernel()
    another_kernel()
    assert len(made) == 2
    assert not (tmp_path / "cache").exists()


def test_without_a_word_it_is_kept_where_the_system_keeps_such_things(monkeypatch, tmp_path):
    monkeypatch.delenv("TPUNB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert panel._place().parent == tmp_path / "tpunb" / "vega"


def test_the_real_one_is_one_module_that_a_page_can_bear():
    code = panel.bundle().decode()
    assert "globalThis.tpunbVega" in code
    assert "vegaEmbed" in code
    assert len(code) < 2_000_000
    assert "<!--" not in code or "<script" not in code  # within a script element that pair hides its end
