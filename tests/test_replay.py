"""Replay returns the raw windows of an earlier run in their order, unchanged."""

import gzip
import math
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.profiler.sources.replay import Replay


def put(folder, **files):
    """Write files by their paths, of which `__` is a slash."""
    for name, data in files.items():
        path = folder / f"{name.replace('__', '/')}.xplane.pb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def started(*args, **more):
    source = Replay(*args, **{"pace": 0, **more})
    source.start()
    return source


def all_of(source, seconds=1.0):
    return [source.window(seconds) for _ in range(len(source))]


def test_the_windows_come_in_their_order_and_then_no_more(tmp_path):
    run = tmp_path / "run"
    for number in (10, 9, 2, 0):
        put(run / "plugins" / "profile" / str(number), host=b"window %d" % number)
    source = started(run)
    assert all_of(source) == [b"window 0", b"window 2", b"window 9", b"window 10"]
    for _ in range(2):
        with pytest.raises(TpunbError, match=r"^no more windows: .*run held 4") as caught:
            source.window(1)
    assert "loop=True" in caught.value.hint


def test_in_a_loop_the_first_comes_after_the_last(tmp_path):
    source = started(put(tmp_path, a__h=b"1", b__h=b"2"), loop=True)
    assert [source.window(1) for _ in range(5)] == [b"1", b"2", b"1", b"2", b"1"]


def test_starting_again_begins_again(tmp_path):
    source = started(put(tmp_path, a__h=b"1", b__h=b"2"))
    source.window(1)
    source.start()
    assert source.window(1) == b"1"


def test_one_file_is_one_window_also_zipped(tmp_path):
    put(tmp_path, h=b"window")
    zipped = tmp_path / "z.xplane.pb.gz"
    zipped.write_bytes(gzip.compress(b"zipped"))
    assert all_of(started(tmp_path / "h.xplane.pb")) == [b"window"]
    assert all_of(started(str(zipped))) == [b"zipped"]


def test_several_hosts_give_one_each_and_those_without_say_so(tmp_path):
    source = started(put(tmp_path, s1__a=b"a1", s1__b=b"b1", s2__a=b"a2"))
    first, second = all_of(source)
    assert first == {"a": b"a1", "b": b"b1"}
    assert second["a"] == b"a2"
    assert str(second["b"]) == "b: not recorded in this window"
    assert source.facts() == {"replayed": str(tmp_path), "workers": ["a", "b"]}


def test_sessions_of_one_host_each_are_windows_one_after_another(tmp_path):
    source = started(put(tmp_path, s1__a=b"1", s2__b=b"2"))
    assert all_of(source) == [b"1", b"2"]
    assert source.facts() == {"replayed": str(tmp_path)}


def test_other_files_are_ignored(tmp_path):
    put(tmp_path, w__h=b"1")
    put(tmp_path / ".00003.aside", h=b"half written")
    (tmp_path / "w" / "h.trace.json").write_bytes(b"[]")
    assert all_of(started(tmp_path)) == [b"1"]


def test_a_run_folder_with_raw_windows_of_its_own_numbering_is_replayed(tmp_path):
    put(tmp_path, windows__00000__raw=b"0", windows__00001__raw=b"1")
    (tmp_path / "run.json").write_text("{}")
    assert all_of(started(tmp_path)) == [b"0", b"1"]


def test_run_without_raw_windows_raises_with_a_hint(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ProfileNotFound, match="holds no raw window") as caught:
        Replay(tmp_path).start()
    assert caught.value.hint == "capture with keep='all' to keep the windows"


def test_missing_folder_raises(tmp_path):
    with pytest.raises(ProfileNotFound, match="nowhere"):
        Replay(tmp_path / "nowhere").start()


def test_unreadable_window_raises_and_the_next_follows(tmp_path):
    source = started(put(tmp_path, a__h=b"1", b__h=b"2"))
    (tmp_path / "a" / "h.xplane.pb").unlink()
    with pytest.raises(TpunbError, match=r"h\.xplane\.pb"):
        source.window(1)
    assert source.window(1) == b"2"


def test_of_several_hosts_the_one_that_cannot_be_read_is_named(tmp_path):
    source = started(put(tmp_path, s__a=b"1", s__b=b"2"))
    (tmp_path / "s" / "b.xplane.pb").unlink()
    answers = source.window(1)
    assert answers["a"] == b"1"
    assert "b.xplane.pb" in str(answers["b"])


def test_window_takes_the_requested_time_at_pace_1(tmp_path, monkeypatch):
    waited, here, others = [], threading.get_ident(), threading.Event.wait

    def wait_here(event, seconds=None):
        if threading.get_ident() != here:
            return others(event, seconds)
        return waited.append((seconds, event.is_set()))

    monkeypatch.setattr(threading.Event, "wait", wait_here)
    for pace in (1.0, 0.5, 0):
        source = started(put(tmp_path, h=b"1"), pace=pace)
        source.stop()  # which ended what was before, and not what comes
        source.window(10)
    assert waited == [(10, False), (5, False)]


def test_stop_ends_the_wait_and_the_window_comes(tmp_path):
    source = started(put(tmp_path, h=b"1"), pace=1)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        while not window.done():  # it may not wait yet
            source.stop()
            wait([window], timeout=0.05)
        assert window.result() == b"1"


def test_hundreds_of_windows_take_the_memory_of_one(tmp_path):
    for number in range(4):
        put(tmp_path / str(number), h=bytes(1_000_000))
    source = started(tmp_path, loop=True)
    tracemalloc.start()
    for _ in range(400):
        source.window(1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("pace", [-1, math.inf, math.nan, "1", None, True])
def test_a_pace_that_is_none_is_refused(pace):
    with pytest.raises(ValueError, match=r"^The pace parameter of Replay must be in \[0, inf\)\. Got .* instead\.$"):
        Replay("run", pace=pace)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (Replay("run"), "Replay('run')"),
        (Replay("run", loop=True, pace=0), "Replay('run', loop=True, pace=0)"),
        (Replay(Path("run")), "Replay(PosixPath('run'))"),
    ],
)
def test_the_repr_is_the_call_that_makes_it(source, text):
    assert repr(source) == text
