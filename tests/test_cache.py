"""The cache of what was decoded: it comes back as it was, stays in its bounds, and never fails a load."""

import json
import os
import stat
from pathlib import Path

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from stand_in import xspace

import tpunb as tp
from tpunb import schema
from tpunb.io import cache as module
from tpunb.io import logdir, storage
from tpunb.io.cache import Decoded

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("TPUNB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


@pytest.fixture
def slow(monkeypatch):
    """Whatever is decoded took long."""
    monkeypatch.setattr(logdir, "SLOW_S", -1)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(window())
    return file


def window(op="MatMul"):
    return xspace(T0, T0 + 9 * MS, [(0, T0, T0 + 2 * MS)], [(op, T0, T0 + MS)])


def entries(cache):
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def a_part(host="größe", events=None):
    hardware = pl.DataFrame([(host, "/device:TPU:0", "TPU v6 Lite", 9.1e14, None, 0.25)], schema.HARDWARE, orient="row")
    return Decoded(host, pl.DataFrame(schema=schema.EVENTS) if events is None else events, hardware, 99, T0, None)


# -- what comes back ------------------------------------------------------------------------------------------


def test_what_was_slow_comes_back_as_it_was(file, cache, slow):
    first, second = tp.load(file), tp.load(file)
    assert (first.reused, second.reused) == (False, True)
    assert repr(second) == repr(first)[:-1] + ", reused)"
    assert second.events.equals(first.events)
    assert second.events.schema == schema.EVENTS
    assert second.windows.equals(first.windows)
    assert second.origin_ns == first.origin_ns == T0
    assert tp.steps(second).frame.equals(tp.steps(first).frame)


def test_what_was_fast_and_near_is_not_kept(file, cache):
    tp.load(file)
    assert not tp.load(file).reused
    assert entries(cache) == []


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                name: texts if dtype == schema.NAME else st.none() | st.integers(0, 2**32 - 1)
                for name, dtype in schema.EVENTS.items()
            }
        ),
        max_size=5,
    ),
    host=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
@examples(20)
def test_any_part_comes_back_as_it_was(tmp_path_factory, rows, host):
    part = a_part(host, pl.DataFrame(rows, schema=schema.EVENTS))
    entry = tmp_path_factory.mktemp("cache") / "decoded" / "key"
    module.put(entry, part)
    kept = module.get(entry)
    assert (kept.host, kept.size, kept.start_ns, kept.stop_ns, kept.reused) == (host, 99, T0, None, True)
    assert kept.events.equals(part.events)
    assert kept.events.schema == schema.EVENTS
    assert kept.hardware.equals(part.hardware)


def test_real_captures_come_back_as_they_were(real_profiles, cache, slow):
    files = [*real_profiles.glob("*.xplane.pb"), *real_profiles.glob("*.trace.json.gz")]
    assert len(files) >= 5
    first, second = tp.load(files), tp.load(files)
    assert second.reused
    assert second.events.equals(first.events)
    assert second.hardware.equals(first.hardware)
    assert second.windows.equals(first.windows)


# -- when it is decoded anew ----------------------------------------------------------------------------------


def test_a_file_that_changed_is_decoded_anew(file, slow):
    tp.load(file)
    before = file.stat().st_mtime_ns
    file.write_bytes(window("Relu__"))  # of the same size
    os.utime(file, ns=(before + 1, before + 1))
    profile = tp.load(file)
    assert (set(profile.events["name"]), profile.reused) == ({"train", "Relu__"}, False)


def test_what_another_decoder_made_is_not_read(file, slow, monkeypatch):
    tp.load(file)
    with monkeypatch.context() as patch:
        patch.setattr(module, "DECODER", module.DECODER + 1)
        assert not tp.load(file).reused
    assert tp.load(file).reused


def test_what_has_other_columns_is_not_read(file, slow, monkeypatch):
    tp.load(file)
    kept = module.entry(storage.find(file))
    assert kept.is_dir()
    monkeypatch.setitem(schema.EVENTS, "later", pl.Int64())
    assert not module.entry(storage.find(file)).exists()
    assert module.get(kept) is None


@pytest.mark.parametrize("lost", ["events.parquet", "facts.json", None])
@given(kept=st.floats(0, 1, exclude_max=True))
@examples(10)
def test_an_entry_cut_anywhere_is_dropped(tmp_path_factory, lost, kept):
    entry = tmp_path_factory.mktemp("cache") / "decoded" / "key"
    module.put(entry, a_part())
    for name in [lost] if lost else ["events.parquet", "facts.json"]:
        path = entry / name
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * kept)])
    assert module.get(entry) is None
    assert not entry.exists()
    module.put(entry, a_part())
    assert module.get(entry).host == "größe"


@pytest.mark.parametrize("name", ["events.parquet", "facts.json"])
def test_an_entry_that_lost_a_file_is_decoded_again(file, cache, slow, name):
    tp.load(file)
    (cache / entries(cache)[0] / name).unlink()
    assert not tp.load(file).reused
    assert tp.load(file).reused


@pytest.mark.parametrize("facts", ["", "{}", "null", "[]", "[1, 2]", '["a", [[1]], 3, 4, 5, 0]', "[" * 100_000])
def test_facts_of_another_kind_are_dropped(tmp_path, facts):
    entry = tmp_path / "decoded" / "key"
    module.put(entry, a_part())
    (entry / "facts.json").write_text(facts)
    assert module.get(entry) is None


# -- nothing here fails a load --------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_written_keeps_nothing(file, tmp_path, slow, monkeypatch):
    (tmp_path / "taken").write_text("a file, where the cache should be")
    monkeypatch.setenv("TPUNB_CACHE", str(tmp_path / "taken"))
    assert not tp.load(file).reused
    assert not tp.load(file).reused


def test_a_full_disk_keeps_nothing_and_leaves_nothing(file, cache, slow, monkeypatch):
    def full(frame, path):
        Path(path).write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", full)
        assert set(tp.load(file).events["name"]) == {"train", "MatMul"}
    assert entries(cache) == []
    tp.load(file)
    assert tp.load(file).reused


def test_a_cache_that_may_only_be_read_is_read(file, slow, monkeypatch):
    tp.load(file)

    def refuses(*_, **__):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuses)
    assert tp.load(file).reused


def test_two_who_keep_the_same_leave_one(tmp_path):
    entry = tmp_path / "decoded" / "key"
    module.put(entry, a_part("first"))
    module.put(entry, a_part("second"))
    assert module.get(entry).host == "first"
    assert entries(entry.parent) == ["key"]


# -- where, and how much --------------------------------------------------------------------------------------


def test_it_can_be_turned_off(file, cache, slow, monkeypatch):
    monkeypatch.setenv("TPUNB_CACHE", "off")
    tp.load(file)
    assert not tp.load(file).reused
    assert entries(cache) == []


def test_unset_it_is_in_the_cache_folder_of_the_user(file, slow, monkeypatch, tmp_path):
    monkeypatch.delenv("TPUNB_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "caches" / name)
    tp.load(file)
    assert tp.load(file).reused
    assert len(entries(tmp_path / "caches" / "tpunb" / "decoded")) == 1


def test_it_is_the_users_alone(file, cache, slow):
    tp.load(file)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_entries_do_not_contain_paths_of_files(file, cache, slow):
    tp.load(file)
    (entry,) = cache.iterdir()
    assert len(entry.name) == 64
    assert "a.xplane.pb" not in json.dumps((entry / "facts.json").read_text())


def size(entry):
    return sum(path.stat().st_size for path in entry.iterdir())


A = 64 * "a"  # entries are named by 64 digits of a hash


def test_what_was_not_used_for_longest_goes_first(tmp_path, monkeypatch):
    folder = tmp_path / "decoded"
    for age, key in enumerate("abc"):
        module.put(folder / (64 * key), a_part())
        os.utime(folder / (64 * key), ns=(10**18 + age, 10**18 + age))
    module.get(folder / A)  # used now
    monkeypatch.setenv("TPUNB_CACHE_LIMIT", str(3 * size(folder / A)))
    module.put(folder / (64 * "d"), a_part())
    assert [name[0] for name in entries(folder)] == ["a", "c", "d"]


def test_what_is_larger_than_the_limit_alone_does_not_drive_out_the_rest(tmp_path, monkeypatch):
    folder = tmp_path / "decoded"
    module.put(folder / A, a_part())
    monkeypatch.setenv("TPUNB_CACHE_LIMIT", str(2 * size(folder / A)))
    events = pl.DataFrame({name: [None] for name in schema.EVENTS}, schema=schema.EVENTS)
    names = pl.DataFrame({"name": [f"{n:x}" * 9 for n in range(5000)]}, schema={"name": schema.NAME})
    module.put(
        folder / (64 * "b"),
        a_part(events=schema.check(pl.concat([events, names], how="diagonal"), schema.EVENTS, "events")),
    )
    assert entries(folder) == [A]


def test_what_others_put_into_the_folder_is_theirs(tmp_path, monkeypatch):
    folder = tmp_path / "decoded"
    theirs = folder / "my_results" / "thesis.bin"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(bytes(10_000))
    (folder / ".DS_Store").write_bytes(b"x")
    monkeypatch.setenv("TPUNB_CACHE_LIMIT", "1")
    module.put(folder / A, a_part())
    assert theirs.is_file()
    assert entries(folder) == [".DS_Store", "my_results"]  # our own was beyond the limit


def test_a_flipped_bit_of_an_entry_is_noticed(tmp_path):
    module.put(tmp_path / A, a_part())
    path = tmp_path / A / "events.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert module.get(tmp_path / A) is None
    assert not (tmp_path / A).exists()


@pytest.mark.parametrize("facts", ['[1, [], 2, "x", null, 138]', '[{"a": 1}, [], 2, null, null, 0]', "[]", "7"])
def test_facts_of_other_kinds_are_no_entry(tmp_path, facts):
    module.put(tmp_path / A, a_part())
    (tmp_path / A / "facts.json").write_text(facts)
    assert module.get(tmp_path / A) is None
