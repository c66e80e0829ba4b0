"""Writing a run: anywhere, whole or not at all, one writer at a time, whatever ends it."""

import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from capture_loops import steps_of
from run_parts import FILES, MS, begun, below, finished, folders_of, tables, ticks, window
from warm_python import warm_python

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, CaptureBusy, ProfileNotFound
from tpunb.io import parquet, run_folder, run_storage, run_writer, storage
from tpunb.io.run_storage import LOCK, FolderLock
from tpunb.io.run_writer import RunWriter, keeper
from tpunb.testing import toy_steps
from tpunb.testing import toy_window as xspace


@pytest.fixture
def memory():
    """fsspec's memory, empty."""
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()


@pytest.fixture(scope="module")
def store():
    """A server on loopback that speaks the protocol of Google's object store."""
    pytest.importorskip("gcsfs")
    server = pytest.importorskip("gcp_storage_emulator.server").create_server(
        "127.0.0.1", 0, in_memory=True, default_bucket="bucket"
    )
    server.start()
    server._api._httpd.socket.listen(128)  # of 5 a client that fetches side by side loses its sixth, for a second
    yield server
    server.stop()


@pytest.fixture
def bucket(store, monkeypatch):
    """A bucket, empty: the names of its objects when called."""
    from fsspec.config import conf
    from fsspec.registry import _registry
    from gcsfs.core import GCSFileSystem

    address = "http://{}:{}".format(*store._api._httpd.server_address)
    monkeypatch.setitem(conf, "gs", {"token": "anon", "endpoint_url": address})
    monkeypatch.setitem(_registry, "gs", GCSFileSystem)  # gcsfs' default one speaks gRPC besides, the server does not

    def objects():
        fs = GCSFileSystem()
        fs.invalidate_cache()
        return sorted(path.removeprefix("bucket/") for path in fs.find("bucket"))

    yield objects
    store._storage.wipe(keep_buckets=True)


@pytest.fixture(params=["folder", "memory", pytest.param("bucket", marks=pytest.mark.live)])
def where(request, tmp_path):
    """A place for a run: a local one, fsspec's memory, an object store."""
    if request.param == "folder":
        return str(tmp_path / "runs" / "toy")
    request.getfixturevalue(request.param)
    return {"memory": "memory://runs/toy", "bucket": "gs://bucket/runs/toy"}[request.param]


# -- anywhere -------------------------------------------------------------------------------------------------


def test_a_run_is_read_while_it_is_written(where):
    writer = begun(where)
    assert steps_of(where) == []
    for number in range(3):
        writer.part(number, tables(number))
        assert steps_of(where) == [*range(number + 1)]
    writer.part(3, {"ticks": ticks(3)})  # steps that no window saw
    writer.facts({"name": "done", "state": "finished", "span_ps": 9 * MS, "overhead": 0.01})
    writer.close()
    profile = tp.load(where)
    assert (profile.name, profile.span_ps, profile.overhead) == ("done", 9 * MS, 0.01)
    assert profile.stored.frame["traced"].to_list() == ["full"] * 3 + ["none"]
    assert profile.windows["window"].to_list() == [0, 1, 2]
    assert profile.clocks["launches"].to_list() == [3]
    expected = toy_steps("abc").ops.sort("step", "op").rows()
    assert [row[:4] + row[5:] for row in profile.stored.ops.sort("step", "op").rows()] == [
        row[:4] + row[5:] for row in expected
    ]


def test_the_writer_has_source_and_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert (RunWriter("~/runs/bert").source, RunWriter("~/runs/bert").name) == (tmp_path / "runs" / "bert", "bert")
    assert RunWriter(Path("bert")).source == tmp_path / "bert"
    assert RunWriter(f"file://{tmp_path}/a%20b").source == tmp_path / "a b"
    assert (RunWriter("gs://b/runs/bert/").source, RunWriter("gs://b/runs/bert/").name) == ("gs://b/runs/bert", "bert")
    assert RunWriter(None).name == "in memory"
    assert RunWriter(None).source != RunWriter(None).source


@pytest.mark.parametrize("wrong", ["", b"run", 3, Path("gs://bucket/run")])
def test_an_invalid_folder_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        RunWriter(wrong)


def test_an_unknown_protocol_is_a_wrong_argument():
    with pytest.raises(ValueError, match=r"must be a folder or a URL that fsspec knows. Got 'gopher://x/y' instead"):
        RunWriter("gopher://x/y").open()


@pytest.mark.parametrize("name", ["lr=0.1 größe 2 {x} 50%", "run[1] a*b?"])
@pytest.mark.parametrize("root", ["", "memory://runs"])
def test_the_name_of_a_run_may_hold_any_letter(memory, tmp_path, root, name):
    where = f"{root or tmp_path}/{name}"
    for number in range(3):
        writer = begun(where)
        writer.part(0, tables(number))
        writer.raw(0, "10.0.0.2:84/66", b"raw")
        assert steps_of(where) == [number]
        assert tp.load(where).read_events is not None
        writer.drop_raw(0)
        assert tp.load(where).read_events is None
        writer.facts({"state": "finished"})
        writer.close()
    assert [steps_of(f"{where}-{number}") for number in (1, 2)] == [[0], [1]]


def test_a_table_that_is_none_or_has_other_columns_is_refused(tmp_path):
    writer = begun(tmp_path / "run")
    with pytest.raises(ValueError, match=r"The tables of a part must be of .* Got \['layers'\] instead"):
        writer.part(0, {"layers": ticks(0)})
    with pytest.raises(BadProfile, match="the steps frame lacks"):
        writer.part(0, {"steps": ticks(0)})
    assert below(tmp_path / "run") == [LOCK, "run.json"]


# -- whole or not at all --------------------------------------------------------------------------------------


def test_a_part_is_a_folder_of_its_tables_and_nothing_is_left_aside(tmp_path):
    finished(tmp_path / "run")
    assert below(tmp_path / "run") == sorted(["run.json", *(f"parts/00000/{file}" for file in FILES)])
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["tpunb"] == run_folder.VERSION
    assert said["written_by"].startswith(f"process {os.getpid()} on ")
    assert 0 <= time.time() - said["updated"] < 600


def test_tables_without_rows_are_left_out_but_for_the_ticks(tmp_path):
    writer = begun(tmp_path / "run")
    writer.part(0, {name: frame.clear() for name, frame in tables(0).items()})
    writer.part(1, {})
    assert below(tmp_path / "run" / "parts") == ["00000/ticks.parquet", "00001/ticks.parquet"]
    assert steps_of(tmp_path / "run") == []


def test_a_reader_during_the_write_of_a_part_sees_the_parts_before(tmp_path, monkeypatch):
    writer, write, seen = begun(tmp_path / "run"), Path.write_bytes, []
    writer.part(0, tables(0))

    def watched(path, data):
        write(path, data)
        seen.append(steps_of(tmp_path / "run"))

    monkeypatch.setattr(Path, "write_bytes", watched)
    writer.part(1, tables(1))
    assert seen == [[0]] * len(FILES)
    assert steps_of(tmp_path / "run") == [0, 1]


def test_of_objects_a_part_counts_once_its_ticks_are_there(memory, monkeypatch):
    writer, put, seen = begun("memory://run"), type(memory).pipe_file, []

    def watched(fs, path, data, **more):
        put(fs, path, data, **more)
        seen.append((path.rpartition("/")[2], steps_of("memory://run")))

    monkeypatch.setattr(type(memory), "pipe_file", watched)
    writer.part(0, tables(0))
    assert seen == [*((file, []) for file in FILES[:-1]), ("ticks.parquet", [0])]


@pytest.mark.parametrize("written", range(len(FILES)))
def test_a_part_whose_writing_broke_off_is_not_there_and_the_next_one_is(tmp_path, monkeypatch, written):
    writer, write, left = begun(tmp_path / "run"), Path.write_bytes, [written]
    writer.part(0, tables(0))
    before = below(tmp_path / "run")

    def breaks(path, data):
        if not left[0]:
            write(path, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        left[0] -= 1
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", breaks)
        with pytest.raises(OSError, match="No space left"):
            writer.part(1, tables(1))
    assert below(tmp_path / "run") == before
    assert [path.name for path in (tmp_path / "run" / "parts").iterdir()] == ["00000"]
    writer.part(1, tables(2))
    assert steps_of(tmp_path / "run") == [0, 2]


@pytest.mark.parametrize("written", range(len(FILES)))
def test_a_part_whose_objects_broke_off_is_not_there(memory, monkeypatch, written):
    writer, put, left = begun("memory://run"), type(memory).pipe_file, [written]
    before = memory.find("/run")

    def breaks(fs, path, data, **more):
        if not left[0]:
            raise RuntimeError("quota exceeded\nand much more")
        left[0] -= 1
        put(fs, path, data, **more)

    monkeypatch.setattr(type(memory), "pipe_file", breaks)
    with pytest.raises(tp.TpunbError, match=r"^memory://run: cannot be written: RuntimeError: quota exceeded\n"):
        writer.part(0, tables(0))
    assert memory.find("/run") == before


def test_run_json_is_the_old_one_until_the_new_one_is_whole(tmp_path, monkeypatch):
    writer, write, seen = begun(tmp_path / "run", name="old"), Path.write_bytes, []

    def watched(path, data):
        write(path, data)
        seen.append(tp.load(tmp_path / "run").name)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", watched)
        writer.facts({"name": "new"})
    assert (seen, tp.load(tmp_path / "run").name) == (["old"], "new")

    def half(path, data):
        write(path, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left"):
        writer.facts({"name": "newest"})
    assert tp.load(tmp_path / "run").name == "new"
    assert below(tmp_path / "run") == [LOCK, "run.json"]


# -- parts that become one ------------------------------------------------------------------------------------


def once_each(profile, count):
    """Whether all of so many windows are there, and none twice."""
    return (profile.windows["window"].to_list(), profile.clocks["launches"].sum()) == ([*range(count)], count)


def test_sixteen_parts_become_one_and_at_the_end_what_is_left(where):
    writer = begun(where)
    for number in range(15):
        writer.part(number, window(number))
    apart = tp.load(where)
    assert folders_of(where) == [f"{number:05d}" for number in range(15)]
    for number in range(15, 19):
        writer.part(number, window(number))
        assert once_each(tp.load(where), number + 1)
    assert folders_of(where) == ["00000-00015", "00016", "00017", "00018"]
    writer.facts({"name": "toy", "state": "finished"})
    assert folders_of(where) == ["00000-00015", "00016-00018"]
    writer.close()
    profile = tp.load(where)
    assert once_each(profile, 19)
    for name in ("frame", "ops", "devices"):
        before, after = (getattr(one.stored, name).filter(pl.col("step") < 15) for one in (apart, profile))
        assert sorted(after.rows()) == sorted(before.rows())


def test_what_has_become_one_does_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(run_writer, "_TOGETHER", 2)
    writer = begun(tmp_path)
    for number in range(11):
        writer.part(number, window(number))
        assert once_each(tp.load(tmp_path), number + 1)
    writer.close()
    writer.close()
    assert folders_of(tmp_path) == ["00000-00003", "00004-00007", "00008-00009", "00010"]
    assert once_each(tp.load(tmp_path), 11)


def test_no_part_spans_one_that_has_to_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(run_writer, "_TOGETHER", 3)
    put_folder, writer = run_storage.LocalFiles.put_folder, begun(tmp_path)

    def full(files, name, data):
        if "-" in name:
            raise OSError(28, "No space left on device")
        put_folder(files, name, data)

    for number in range(16):
        with monkeypatch.context() as patch:
            if 3 <= number <= 6:
                patch.setattr(run_storage.LocalFiles, "put_folder", full)
            writer.part(number, window(number))
        assert once_each(tp.load(tmp_path), number + 1)
    writer.close()
    assert folders_of(tmp_path) == ["00000-00002", "00003-00005", "00006", "00007-00015"]


@pytest.mark.parametrize("then", ["stays", "another", "removed", "goes on"])
def test_operations_of_a_long_run_are_read_later_and_of_no_other_run(tmp_path, monkeypatch, then):
    monkeypatch.setattr(run_folder, "_MOST_KEPT", 0)
    run, expected = tmp_path / "run", tables(*range(9))["ops"]
    writer = begun(run)
    writer.part(0, tables(*range(9)))
    writer.facts({"name": "toy", "state": "running" if then == "goes on" else "finished"})
    steps = tp.load(run).stored
    if then != "goes on":
        writer.close()
    if then == "another":
        assert finished(run).moved is not None
    elif then == "removed":
        shutil.rmtree(run)
    elif then == "goes on":
        writer.part(1, tables(20))
        writer.close()
        assert folders_of(run) == ["00000-00001"]
    if then in ("another", "removed"):
        with pytest.raises(BadProfile, match=f"{run}: the run that was loaded is not there any more"):
            _ = steps.ops
    else:
        assert sorted(steps.ops.rows()) == sorted(expected.rows())


def test_the_range_of_numbers_with_gaps_is_from_the_first_to_the_last(tmp_path):
    writer = begun(tmp_path)
    for number in (2, 5, 100_000):
        writer.part(number, {"ticks": ticks(number)})
    writer.close()
    assert folders_of(tmp_path) == ["00002-100000"]
    assert steps_of(tmp_path) == [2, 5, 100_000]
    assert below(tmp_path / "parts") == ["00002-100000/ticks.parquet"]


def test_numbers_of_parts_rise(tmp_path):
    writer = begun(tmp_path)
    writer.part(3, {})
    for number in (3, 2):
        with pytest.raises(ValueError, match=rf"The number of a part must be above 3. Got {number} instead"):
            writer.part(number, {})


@pytest.fixture
def four(monkeypatch):
    """Four parts become one, in place of sixteen."""
    monkeypatch.setattr(run_writer, "_TOGETHER", 4)


@pytest.fixture(params=["folder", "memory"])
def no_room(request, tmp_path, monkeypatch, memory):
    """A place where parts cannot become one as long as the list holds something."""
    no_room, kind = [True], {"folder": run_storage.LocalFiles, "memory": run_storage.RemoteFiles}[request.param]
    method = {"folder": "put_folder", "memory": "_put"}[request.param]
    write = getattr(kind, method)

    def fails(files, name, data):
        if no_room and "-" in name:
            raise OSError(28, "No space left on device")
        write(files, name, data)

    monkeypatch.setattr(kind, method, fails)
    return str(tmp_path / "run") if request.param == "folder" else "memory://run", no_room


def test_parts_that_cannot_become_one_stay_as_they_are_and_few_are_kept_in_memory(no_room):
    where, left = no_room
    writer = begun(where)
    for number in range(20):
        writer.part(number, window(number))
        assert len(writer._pending) <= 16
    assert once_each(tp.load(where), 20)
    assert folders_of(where) == [f"{number:05d}" for number in range(20)]
    left.clear()
    for number in range(20, 25):
        writer.part(number, window(number))
    assert folders_of(where) == ["00000-00015", *(f"{number:05d}" for number in range(16, 25))]
    writer.close()
    assert folders_of(where) == ["00000-00015", *(f"{number:05d}" for number in range(16, 20)), "00020-00024"]
    assert once_each(tp.load(where), 25)


def test_parts_that_could_not_become_one_do_at_the_end_where_they_can(no_room, four):
    where, left = no_room
    writer = begun(where)
    for number in range(4):
        writer.part(number, window(number))
    left.clear()
    writer.close()
    assert folders_of(where) == ["00000-00003"]
    assert once_each(tp.load(where), 4)


def test_an_end_at_which_parts_cannot_become_one_is_an_end(no_room):
    where, _ = no_room
    writer = begun(where)
    for number in range(2):
        writer.part(number, window(number))
    writer.close()
    assert once_each(tp.load(where), 2)
    assert LOCK not in folders_of(where)


@pytest.mark.parametrize("allowed", range(0, 12, 5))
def test_parts_that_cannot_be_removed_once_they_are_one_count_no_more(where, monkeypatch, allowed):
    monkeypatch.setattr(run_writer, "_TOGETHER", 2)
    kind = run_storage.RemoteFiles if "://" in where else run_storage.LocalFiles
    remove, left = kind.remove, [allowed]

    def denied(files, names):
        remove(files, [*names][: left[0]])
        raise tp.TpunbError("403: may not remove")

    writer = begun(where)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "remove", denied)
        for number in range(4):
            writer.part(number, window(number))
            assert once_each(tp.load(where), number + 1)
    assert {"00000-00001", "00001", "00002-00003", "00003"} <= set(folders_of(where))
    writer.facts({"state": "finished"})
    assert folders_of(where) == ["00000-00003"]
    assert once_each(tp.load(where), 4)


@pytest.mark.live
def test_parts_stay_where_a_server_does_not_say_whether_they_have_become_one(bucket, monkeypatch, four):
    kind, go_on, failed = run_storage.RemoteFiles, threading.Event(), threading.Event()
    put, put_folder, writer = kind._put, kind.put_folder, begun("gs://bucket/run")

    def hangs(files, name, data):
        if "-" in name:
            go_on.wait(60)
        if "-" in name and name.endswith("ticks.parquet"):
            failed.set()
            raise ConnectionResetError("by peer")
        put(files, name, data)

    def soon_given_up(files, name, contents):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "PATIENCE_S", 0.2 if "-" in name else 60)
            put_folder(files, name, contents)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "_put", hangs)
        patch.setattr(kind, "put_folder", soon_given_up)
        for number in range(4):
            writer.part(number, window(number))
        go_on.set()  # long after it was given up it fails, and takes back what it wrote
        assert failed.wait(60)
    writer.close()
    assert {f"{number:05d}" for number in range(4)} <= set(folders_of("gs://bucket/run"))
    assert once_each(tp.load("gs://bucket/run"), 4)


@pytest.mark.live
def test_a_server_that_timed_out_is_not_tried_again(bucket, monkeypatch):
    writer, waited = begun("gs://bucket/run"), []
    called, go_on = threading.Event(), threading.Event()
    for number in range(2):
        writer.part(number, window(number))

    def hangs(files, name, data):
        waited.append(name)
        called.set()
        go_on.wait(60)
        raise ConnectionResetError("by peer")

    monkeypatch.setattr(run_storage.RemoteFiles, "_put", hangs)
    monkeypatch.setattr(storage, "PATIENCE_S", 0.2)
    with pytest.raises(tp.TpunbError, match="no answer within"):
        writer.part(2, window(2))
    writer.close()
    assert called.wait(60)  # its thread may have begun later than it was given up
    assert waited == ["parts/00002/steps.parquet"]
    go_on.set()


class Reading:
    """Reads a run again and again, beside whoever writes it."""

    def __init__(self, where, load):
        self.where, self.load, self.done, self.seen = where, load, threading.Event(), []
        self.thread = threading.Thread(target=self._go_on)
        self.error = None

    def __enter__(self):
        self.thread.start()
        return self

    def _go_on(self):
        try:
            while not self.done.is_set():
                self.seen.append(self.load(self.where))
        except BaseException as error:  # noqa: BLE001  raised in the test
            self.error = error

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        if self.error is not None:
            raise self.error


@pytest.mark.live
def test_who_reads_while_parts_become_one_misses_none_and_sees_none_twice(tmp_path, four):
    writer, written = begun(tmp_path), [0]

    def load(folder):
        at_least = written[0]
        return at_least, tp.load(folder), written[0] + 1

    with Reading(tmp_path, load) as reading:
        while written[0] < 33 or len(reading.seen) < 5:
            writer.part(written[0], window(written[0]))
            written[0] += 1
            assert reading.error is None
    for at_least, profile, at_most in reading.seen:
        count = profile.windows.height
        assert at_least <= count <= at_most
        assert once_each(profile, count)


@pytest.mark.live
def test_who_reads_objects_while_they_become_one_misses_none_and_sees_none_twice(bucket, four):
    writer, written = begun("gs://bucket/run"), [0]

    def load(where):
        at_least = written[0]
        return at_least, tp.load(where), written[0] + 1

    with Reading("gs://bucket/run", load) as reading:
        while written[0] < 9 or len(reading.seen) < 3:
            writer.part(written[0], window(written[0]))
            written[0] += 1
            assert reading.error is None
    for at_least, profile, at_most in reading.seen:
        count = profile.windows.height
        assert at_least <= count <= at_most
        assert once_each(profile, count)


def three(where):
    """A run of which the next part is the fourth."""
    writer = begun(where)
    for number in range(3):
        writer.part(number, window(number))
    return writer


@pytest.mark.parametrize("table", run_folder.TABLES)
def test_a_reader_whose_parts_become_one_between_two_tables_reads_anew(tmp_path, monkeypatch, four, table):
    writer, stack, turns = three(tmp_path), run_folder._stack, [3]

    def stacked(parts, name):
        if name == table and turns:
            writer.part(turns.pop(), window(3))
        return stack(parts, name)

    monkeypatch.setattr(run_folder, "_stack", stacked)
    assert once_each(tp.load(tmp_path), 4)


@pytest.mark.parametrize("missed", ["all", "some"])
def test_a_listing_that_missed_what_became_one_is_made_anew(where, monkeypatch, four, missed):
    three(where).part(3, window(3))
    kept, turns = 0 if missed == "all" else 2, [True] * (2 if "://" in where else 1)  # of objects it is asked twice

    def misses(files):
        """As if parts were removed, and the whole put there, behind and before the place that was just listed."""
        if turns:
            turns.pop()
            return [f"{number:05d}" for number in range(kept)]
        return listed(files)

    listed = run_folder.parts
    monkeypatch.setattr(run_folder, "parts", misses)
    assert once_each(tp.load(where), 4)


@pytest.mark.parametrize("scheme", ["memory", pytest.param("bucket", marks=pytest.mark.live)])
def test_a_reader_of_objects_that_become_one_before_they_are_fetched_lists_them_anew(
    request, monkeypatch, four, scheme
):
    request.getfixturevalue(scheme)
    where = {"memory": "memory://run", "bucket": "gs://bucket/run"}[scheme]
    writer, fetch, turns = three(where), storage.fetch, [3]

    def fetched(files):
        if turns:
            writer.part(turns.pop(), window(3))
        return fetch(files)

    monkeypatch.setattr(storage, "fetch", fetched)
    assert once_each(tp.load(where), 4)


def test_a_run_that_changes_too_fast_is_an_error(where, monkeypatch):
    three(where)
    monkeypatch.setattr(run_folder, "is_settled", lambda *_: False)
    with pytest.raises(tp.TpunbError, match=rf"^{re.escape(where)}: changes faster than it can be read") as caught:
        tp.load(where)
    assert caught.value.hint == "load it again"


# -- raw windows ----------------------------------------------------------------------------------------------


def test_raw_windows_come_and_go(where):
    writer = begun(where)
    for number, host in [(0, "a"), (7, "a"), (7, "b")]:
        begin = 1 + number
        writer.raw(number, host, xspace(begin, begin + 9, [(number, begin, begin + 5)]))
    events = tp.load(where).events
    assert events.select("host", "step_num").rows() == [("a", 0), ("a", 7), ("b", 7)]
    writer.drop_raw(7)
    writer.drop_raw(8)  # which is not there
    assert tp.load(where).events["step_num"].to_list() == [0]
    writer.drop_raw(0)
    writer.drop_raw(0)
    with pytest.raises(tp.TpunbError, match="statistics only"):
        tp.load(where).events  # noqa: B018


def test_the_run_folder_is_a_logdir_of_profiles(tmp_path):
    writer = begun(tmp_path)
    writer.raw(7, "vm", xspace(1, 9, [(0, 1, 5)]))
    assert below(tmp_path) == [LOCK, "plugins/profile/00007/vm.xplane.pb", "run.json"]
    assert tp.load(tmp_path / "plugins" / "profile").events["step_num"].to_list() == [0]
    writer.drop_raw(7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "run.json"]


# -- an earlier run -------------------------------------------------------------------------------------------


def test_earlier_runs_are_renamed_one_after_the_other(where):
    moved = [finished(where, name=f"run {number}").moved for number in range(3)]
    assert moved == [None, f"{where}-1", f"{where}-2"]
    assert [tp.load(place).name for place in (f"{where}-1", f"{where}-2", where)] == ["run 0", "run 1", "run 2"]
    assert [steps_of(place) for place in (f"{where}-1", f"{where}-2", where)] == [[0]] * 3


def test_a_new_or_an_empty_folder_is_free(tmp_path):
    assert finished(tmp_path).moved is None
    assert finished(tmp_path / "new" / "run").moved is None


def test_what_a_writer_left_that_was_killed_before_its_first_word_is_nothing(tmp_path):
    (tmp_path / LOCK).touch()
    (tmp_path / ".run.json.0badcafe").touch()
    assert finished(tmp_path).moved is None


def test_what_is_not_a_run_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ValueError, match=re.escape(f"Got {str(place)!r} instead, which holds something else")):
            RunWriter(place).open()
    assert below(tmp_path) == ["thesis.txt"]


def test_objects_that_are_no_run_are_refused_and_untouched(memory):
    memory.pipe("/work/thesis.txt", b"years of work")
    for place in ("memory://work", "memory://work/thesis.txt"):
        with pytest.raises(ValueError, match=re.escape(f"Got {place!r} instead, which holds something else")):
            RunWriter(place).open()
    assert memory.find("") == ["/work/thesis.txt"]


def test_a_run_that_loses_its_writer_while_it_moves_is_in_one_place_whole(memory, monkeypatch):
    finished("memory://run")
    remove = type(memory).rm_file

    def dies(fs, path):
        if path.endswith("ops.parquet"):
            raise RuntimeError("the machine was taken")
        remove(fs, path)

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "rm_file", dies)
        with pytest.raises(tp.TpunbError, match="the machine was taken"):
            RunWriter("memory://run").open()
    assert steps_of("memory://run-1") == [0]
    assert finished("memory://run").moved == "memory://run-2"  # what was left of it
    assert [steps_of(f"memory://{name}") for name in ("run", "run-1")] == [[0], [0]]


# -- one writer at a time -------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_the_first_continues(tmp_path):
    first = begun(tmp_path / "run")
    with pytest.raises(CaptureBusy, match=rf"run is being written by process {os.getpid()} on \S+\n") as caught:
        RunWriter(tmp_path / "run").open()
    assert caught.value.hint == "choose another folder, or end that capture"
    first.part(0, tables(0))
    assert steps_of(tmp_path / "run") == [0]
    first.close()
    first.close()
    assert begun(tmp_path / "run").moved == str(tmp_path / "run-1")
    assert LOCK not in below(tmp_path / "run-1")


def test_a_writer_that_was_dropped_holds_nothing(tmp_path):
    begun(tmp_path / "run")
    gc.collect()
    begun(tmp_path / "run")


CHILD = """
import os, sys
sys.path.insert(0, sys.argv[2])
import run_parts as own
from tpunb.errors import CaptureBusy
from tpunb.io import run_writer
print(os.getpid(), flush=True)
def main():
    {body}
try:
    main()
except CaptureBusy as busy:
    print("busy", busy, flush=True)
"""


class Child:
    """A process of its own that does something to a run, at `where`; it ends with the block."""

    def __init__(self, where, body):
        code = CHILD.format(body=body.replace("\n", "\n    "))
        command = [*warm_python(), "-c", code, str(where), str(Path(__file__).parent)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        self.pid = int(self.line())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def line(self):
        return self.process.stdout.readline()

    def tell(self, text):
        print(text, file=self.process.stdin, flush=True)

    def kill(self):
        """Kill it, and return what it had printed."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(60)
        return self.process.stdout.read()


HOLD = """writer = own.begun(sys.argv[1])
print("began", flush=True)
sys.stdin.readline()
writer.close()"""


@pytest.mark.live
def test_another_process_is_refused_and_a_killed_one_holds_nothing(tmp_path):
    with Child(tmp_path / "run", HOLD) as holder:
        assert holder.line() == "began\n"
        with pytest.raises(CaptureBusy, match=f"being written by process {holder.pid} on "):
            RunWriter(tmp_path / "run").open()
        holder.kill()
    assert finished(tmp_path / "run").moved == str(tmp_path / "run-1")
    assert tp.load(tmp_path / "run-1").name == "toy"


@pytest.mark.live
def test_of_processes_that_want_one_folder_at_once_one_gets_it(tmp_path):
    finished(tmp_path / "run", name="earlier")  # so that each has to move it away first
    with ExitStack() as stack:
        children = [stack.enter_context(Child(tmp_path / "run", "sys.stdin.readline()\n" + HOLD)) for _ in range(3)]
        for one in children:
            one.tell("go")
        said = sorted(one.line().split()[0] for one in children)
        for one in children:
            one.process.communicate("end\n", timeout=60)
    assert said == ["began", "busy", "busy"]
    assert tp.load(tmp_path / "run-1").name == "earlier"
    assert not (tmp_path / "run-2").exists()


FORK = """import time
writer = own.begun(sys.argv[1])
if not os.fork():
    writer.close()  # as would whatever a child runs at its end
    print("child", flush=True)
    sys.stdin.readline()
    os._exit(0)
time.sleep(600)"""


@pytest.mark.live
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_neither_frees_the_folder_nor_holds_it_after_its_parent(tmp_path):
    with Child(tmp_path / "run", FORK) as holder:
        assert holder.line() == "child\n"
        assert (tmp_path / "run" / LOCK).exists()
        with pytest.raises(CaptureBusy):
            RunWriter(tmp_path / "run").open()
        os.kill(holder.pid, signal.SIGKILL)
        holder.process.wait(60)
        finished(tmp_path / "run")  # while the child still lives


def test_a_lock_of_a_folder_that_was_moved_away_meanwhile_is_none(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    flock, moves = fcntl.flock, [True]
    (tmp_path / "run").mkdir()

    def moved_first(file, how):
        if moves:
            moves.pop()
            (tmp_path / "run").rename(tmp_path / "run-1")
            (tmp_path / "run").mkdir()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", moved_first)
    lock = FolderLock.take(tmp_path / "run")
    with pytest.raises(CaptureBusy):
        FolderLock.take(tmp_path / "run")
    lock.release()
    assert below(tmp_path / "run") == []


def test_without_locks_the_state_in_run_json_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderLock, "take", lambda folder: None)
    begun(tmp_path / "run")
    with pytest.raises(CaptureBusy, match=f"being written by process {os.getpid()}"):
        RunWriter(tmp_path / "run").open()
    assert not (tmp_path / "run-1").exists()
    monkeypatch.setattr(run_storage, "ALIVE_S", 0.0)
    assert finished(tmp_path / "run").moved == str(tmp_path / "run-1")
    assert finished(tmp_path / "run").moved == str(tmp_path / "run-2")


def test_a_file_system_without_locks_is_written(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    finished(tmp_path / "run")
    assert LOCK not in below(tmp_path / "run")


@pytest.mark.parametrize(
    ("state", "age_s", "is_busy"),
    [("running", 0, True), ("running", 170, True), ("running", 190, False), ("finished", 0, False)],
)
@pytest.mark.parametrize("scheme", ["memory", pytest.param("bucket", marks=pytest.mark.live)])
def test_behind_a_url_a_run_is_busy_while_its_writer_gives_signs_of_life(request, scheme, state, age_s, is_busy):
    request.getfixturevalue(scheme)
    where = {"memory": "memory://run", "bucket": "gs://bucket/run"}[scheme]
    with pytest.MonkeyPatch.context() as patch:
        now = time.time()
        patch.setattr(time, "time", lambda: now - age_s)
        begun(where, state=state)
    if not is_busy:
        assert begun(where).moved == f"{where}-1"
        return
    with pytest.raises(CaptureBusy, match=rf"^{where} is being written by process {os.getpid()} on ") as caught:
        RunWriter(where).open()
    assert caught.value.hint == "choose another folder; a run whose writer died is free 3 minutes later"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"state": "running"}', b'{"state": "running", "updated": "now"}'])
def test_an_unreadable_state_does_not_block_a_capture(memory, text):
    memory.pipe("/run/run.json", text)
    assert finished("memory://run").moved == "memory://run-1"


# -- in memory ------------------------------------------------------------------------------------------------


def test_a_run_in_memory_lives_as_long_as_anybody_may_want_it(memory):
    writer = begun(None)
    source = writer.source
    writer.part(0, tables(0))
    writer.raw(0, "toy", xspace(1, 9, [(0, 1, 5)]))
    assert keeper(source) is writer.keeper
    profile = tp.load(source)
    del writer
    gc.collect()
    assert profile.events["step_num"].to_list() == [0]  # read only now
    assert steps_of(source) == [0]
    del profile
    gc.collect()
    assert memory.find("") == []
    assert keeper(source) is None
    with pytest.raises(ProfileNotFound):
        tp.load(source)


def test_a_run_in_the_users_own_memory_stays(memory):
    finished("memory://mine")
    gc.collect()
    assert steps_of("memory://mine") == [0]


# -- servers that fail ----------------------------------------------------------------------------------------


@pytest.mark.live
def test_a_server_that_does_not_answer_is_given_up(bucket, monkeypatch):
    writer = begun("gs://bucket/run")
    go_on = threading.Event()

    def hangs(*_):
        go_on.wait(60)
        raise ConnectionResetError("by peer")  # or the next file of the part would be written, into another test

    monkeypatch.setattr(run_storage.RemoteFiles, "_put", hangs)
    monkeypatch.setattr(storage, "PATIENCE_S", 0.2)
    with pytest.raises(tp.TpunbError, match=r"^gs://bucket/run: no answer within 0\.2 s"):
        writer.part(0, tables(0))
    go_on.set()


@pytest.mark.live
def test_a_bucket_that_is_not_there_is_not_made(bucket):
    writer = RunWriter("gs://no-such/runs/toy")
    with pytest.raises(tp.TpunbError, match="gs://no-such/runs/toy"):
        writer.open()
        writer.facts({})
    with pytest.raises(ProfileNotFound):
        tp.load("gs://no-such/runs/toy")


# -- whatever ends a process ----------------------------------------------------------------------------------

WRITE = """run_writer._TOGETHER = {together}
writer = own.begun(sys.argv[1])
for number in range(100_000):
    writer.raw(number, "toy", b"raw")
    writer.part(number, own.window(number))
    print(number, flush=True)"""


@pytest.mark.live
@pytest.mark.parametrize("turn", [*range(3), *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(3, 20))])
def test_every_part_that_was_written_before_a_kill_loads_and_none_is_half(tmp_path, turn):
    at = random.Random(turn)
    with Child(tmp_path / "run", WRITE.format(together=(2, 16, 3)[turn % 3])) as writer:
        assert writer.line() == "0\n"
        time.sleep(at.uniform(0, 0.5))  # the moment is what is tried
        printed = [0, *map(int, re.findall(r"(\d+)\n", writer.kill()))]
    assert printed == [*range(len(printed))]
    profile = tp.load(tmp_path / "run")
    assert profile.windows.height in (len(printed), len(printed) + 1)  # the last may be whole and not yet printed
    assert once_each(profile, profile.windows.height)
    assert set(profile.stored.frame["step"]) >= set(printed)
    parts = run_folder.parts(storage.find(tmp_path / "run").below())
    for part in parts:
        assert sorted(file.name for file in (tmp_path / "run" / "parts" / part).iterdir()) == sorted(FILES)
    raw = run_folder.raw_windows(storage.find(tmp_path / "run").below())
    assert [number for number, _ in raw][: len(printed)] == printed
    assert all(file.info["size"] == 3 for file in raw.values())
    assert finished(tmp_path / "run").moved == str(tmp_path / "run-1")


FULL = """import resource
writer = own.begun(sys.argv[1])
writer.part(0, own.tables(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for write in (lambda: writer.part(1, own.tables(1)), lambda: writer.raw(1, "toy", bytes(2000))):
    try:
        write()
    except OSError as error:
        print(error.errno, flush=True)
writer.facts({"name": "limited"})  # which is small enough
writer.close()"""


@pytest.mark.live
def test_a_file_that_grows_too_large_is_an_error_and_leaves_nothing(tmp_path):
    with Child(tmp_path / "run", FULL) as limited:
        assert limited.process.stdout.read() == "27\n27\n"
    assert steps_of(tmp_path / "run") == [0]
    assert tp.load(tmp_path / "run").name == "limited"
    assert below(tmp_path / "run") == sorted([".lock", "run.json", *(f"parts/00000/{file}" for file in FILES)])


TOO_LARGE = """import resource
from pathlib import Path
writer = own.begun(sys.argv[1])
for number in range(15):
    writer.part(number, own.window(number))
largest = max(file.stat().st_size for file in Path(sys.argv[1]).glob("parts/*/*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 100, resource.RLIM_INFINITY))
for number in range(15, 20):
    writer.part(number, own.window(number))
    print(number, flush=True)
writer.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(own.folders_of(sys.argv[1]) == ["%05d" % number for number in range(20)], flush=True)
writer.facts({"name": "limited", "state": "finished"})"""


@pytest.mark.live
def test_parts_that_would_be_one_file_too_large_stay_as_they_are_until_they_may(tmp_path):
    with Child(tmp_path / "run", TOO_LARGE) as limited:
        assert limited.process.stdout.read() == "15\n16\n17\n18\n19\nTrue\n"
    assert once_each(tp.load(tmp_path / "run"), 20)
    assert folders_of(tmp_path / "run") == ["00000-00015", *(f"{number:05d}" for number in range(16, 20))]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 96 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tpunb", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk may be mounted here: {error}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.live
def test_a_full_disk_is_an_error_and_what_was_written_loads(small_disk):
    writer = begun(small_disk / "run")
    written = 0
    with pytest.raises(OSError, match="No space left on device"):
        for number in range(100):
            writer.part(number, tables(number))
            written += 1
    assert written > 0
    assert steps_of(small_disk / "run") == [*range(written)]
    assert not [path for path in (small_disk / "run").rglob(".*") if path.name != LOCK]
    writer.close()


# -- as few bytes ---------------------------------------------------------------------------------------------


def test_the_statistics_of_many_steps_take_few_bytes(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        ("toy", step, f"op{op}", "host", None, 1, int(ns) * 1000, int(ns * (1 if op % 8 else 0.7)) * 1000)
        for op in range(40)
        for step, ns in enumerate(rng.lognormal(9 + op % 4, 0.2, 150))
    ]
    ops = pl.DataFrame(rows, schema=schema.OPS, orient="row")
    plain = tmp_path / "plain.parquet"
    ops.sample(fraction=1.0, shuffle=True, seed=0).write_parquet(plain)
    assert len(parquet.pack(ops, schema.OPS)) < 0.4 * plain.stat().st_size
