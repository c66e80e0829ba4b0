"""Places: bytes of any size and zip in one bounded array, folders without end, and profiles behind URLs."""

import gzip
import http.server
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in import xspace

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, MissingExtra, ProfileNotFound, install
from tpunb.io import logdir, storage
from tpunb.io.run_writer import RunWriter
from tpunb.protobuf.table import Messages
from tpunb.testing import toy_steps

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TPUNB_CACHE", str(folder))
    return folder


def window(op="MatMul", begin=T0, step=0):
    return xspace(begin, begin + 9 * MS, [(step, begin, begin + 2 * MS)], [(op, begin, begin + MS)])


def trace(op="Relu"):
    return json.dumps([{"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "name": op}]).encode()


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names(profile):
    return set(profile.events["name"])


# -- bytes ----------------------------------------------------------------------------------------------------


class Stream:
    """A file system of one file, of which a listing says one size and that has another."""

    def __init__(self, data, listed_size):
        self.data, self.listed_size = data, listed_size

    def info(self, path):
        return {"type": "file", "size": self.listed_size}

    def open(self, path, **_):
        return storage.io.BytesIO(self.data)


def read(data, listed_size=None):
    return storage.read(storage.Location(Stream(data, listed_size), "a", "toy://a"))


def holds(array, data):
    """The array is these bytes, and zeros lie behind them."""
    base = array.base
    return (
        array.tobytes() == data
        and base.size == len(data) + storage.PADDING
        and base.ctypes.data == array.ctypes.data
        and not base[len(data) :].any()
    )


@given(
    parts=st.lists(st.binary(max_size=200), min_size=1, max_size=4),
    repeated=st.integers(1, 2000),
    listed_size=st.none() | st.integers(0, 5000),
)
@settings(deadline=None)
def test_all_bytes_are_read_plain_or_zipped_for_any_listed_size(parts, repeated, listed_size):
    data = b"a" + b"".join(parts) * repeated  # which is no zip by its first bytes
    assert holds(read(data, listed_size), data)
    assert holds(read(gzip.compress(data), listed_size), data)
    members = [part * repeated for part in parts]
    assert holds(read(b"".join(map(gzip.compress, members)), listed_size), b"".join(members))


@pytest.mark.parametrize("listed_size", [None, 0, 5, 17, 18, 19, 1000])
def test_a_file_that_grew_or_shrank_since_it_was_listed_is_read_as_it_is(listed_size):
    assert holds(read(b"eighteen bytes now", listed_size), b"eighteen bytes now")


def test_what_was_read_is_decoded_without_a_copy(tmp_path):
    data = storage.read(storage.find(put(tmp_path / "a.xplane.pb", window())))
    assert np.shares_memory(Messages.of(data, source="toy").buffer, data)


def test_a_local_file_is_read_in_blocks_with_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_PIECE", 2_500)
    read_bytes = []
    data = storage.read(storage.find(put(tmp_path / "a", b"x" * 45_000)), read_bytes.append)
    assert (data.size, sum(read_bytes)) == (45_000, 45_000)
    assert max(read_bytes) <= 10_000


@given(kept=st.floats(0, 1, exclude_max=True))
@examples(50)
def test_a_zip_cut_anywhere_is_a_bad_profile(kept):
    data = gzip.compress(random.Random(1).randbytes(5000))
    cut = data[: 2 + int((len(data) - 2) * kept)]  # the first two bytes say that it is one
    with pytest.raises(BadProfile, match=r"^toy://a: cannot be read: "):
        read(cut, len(cut))


@given(at=st.integers(20, 5000), byte=st.integers(1, 255))
@examples(50)
def test_a_damaged_zip_is_a_bad_profile(at, byte):
    data = bytearray(gzip.compress(random.Random(1).randbytes(5000)))
    data[at] ^= byte  # of what was stored, and not of its first bytes: some bits of those mean nothing
    with pytest.raises(BadProfile, match=r"^toy://a: cannot be read: "):
        read(bytes(data), len(data))


def test_a_file_unzips_to_a_bounded_multiple_of_its_size(monkeypatch, tmp_path):
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    monkeypatch.setattr(storage, "FREE", 2 << 20)
    with pytest.raises(
        BadProfile, match=r"host\.trace\.json\.gz: 2 MiB or more once unzipped, of 4,\d+ bytes: a dec"
    ) as caught:
        tp.load(path)
    assert caught.value.hint == "if it is a profile, unzip it and load the result"
    monkeypatch.setattr(storage, "FREE", 5 << 20)
    assert len(storage.read(storage.find(path))) == 4 << 20
    monkeypatch.setattr(storage, "FREE", 0)
    monkeypatch.setattr(storage, "RATIO", 2000)
    assert len(storage.read(storage.find(path))) == 4 << 20


def test_a_bomb_is_refused_in_bounded_memory(monkeypatch):
    bomb = gzip.compress(bytes(100 << 20))
    monkeypatch.setattr(storage, "LIMIT", 1 << 20)
    monkeypatch.setattr(storage, "_PIECE", 1 << 14)
    tracemalloc.start()
    with pytest.raises(BadProfile, match="2 GiB or more once unzipped, of 101,941 bytes: a decompression bomb"):
        read(bomb, len(bomb))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # the limit of 1 MiB, and what is in buffers, of which gzip's has 128 KiB from Python 3.12 on
    assert peak < (3 << 19 if sys.version_info < (3, 12) else 2 << 20)


@pytest.mark.parametrize("listed_size", [None, 3000])
def test_a_file_beyond_the_limit_is_refused(monkeypatch, listed_size):
    monkeypatch.setattr(storage, "LIMIT", 1000)
    assert read(bytes(999), listed_size and 999).size == 999
    with pytest.raises(BadProfile, match="2 GiB"):
        read(bytes(3000), listed_size)


def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.xplane.pb")
    for where in (tmp_path, tmp_path / "a.xplane.pb"):
        with pytest.raises(BadProfile, match=r"a\.xplane\.pb: neither a file nor a folder"):
            tp.load(where)


# -- folders --------------------------------------------------------------------------------------------------


def test_links_to_folders_are_followed_and_circles_end(tmp_path):
    put(tmp_path / "elsewhere" / "a.xplane.pb", window())
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "linked").symlink_to(tmp_path / "elsewhere")
    (logs / "again").symlink_to(logs)
    (logs / "up").symlink_to(tmp_path)
    assert tp.load(logs).windows.height == 1


def test_a_folder_without_permission_is_named_in_the_hint(tmp_path, monkeypatch):
    def refuses(self, path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage._Local, "ls", refuses)
    with pytest.raises(ProfileNotFound, match="holds no profile") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == f"{tmp_path} cannot be listed: PermissionError: [Errno 13] Permission denied"


@pytest.mark.parametrize("name", ["\0", "x" * 5000, "a" * 300 + "/b", "~nobody-of-this-name/x"])
def test_an_impossible_path_is_a_tpunb_error(name):
    with pytest.raises((BadProfile, ProfileNotFound)):
        tp.load(name)


def test_a_broken_link_is_named(tmp_path):
    (tmp_path / "a.xplane.pb").symlink_to(tmp_path / "gone")
    with pytest.raises(ProfileNotFound, match=r"nothing is at .*a\.xplane\.pb"):
        tp.load(tmp_path)


@pytest.mark.live
def test_local_paths_do_not_import_fsspec(tmp_path):
    put(tmp_path / "a.xplane.pb", window())
    # a progress bar is imported where loading takes long, as on a busy machine: this one asks for none
    code = f"import sys, tpunb; tpunb.load({str(tmp_path)!r}); print('fsspec' in sys.modules)"
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# -- tables of XProf ------------------------------------------------------------------------------------------


TABLES = ["overview_page.json", "input_pipeline.json", "pod_viewer.json"]
PROFILE = SimpleNamespace(skipped=(), notes=())


@pytest.fixture
def asked(monkeypatch):
    """What the reader of tables was asked for."""
    asked = []

    def profile(tables, name, source):
        asked.append((sorted(tables), name, source))
        return PROFILE

    monkeypatch.setattr(tp.io.xprof_json, "profile", profile)
    monkeypatch.setattr(tp.io.xprof_json, "is_table", lambda data: data.startswith(b'[{"cols"'))
    return asked


def test_a_table_is_read_with_tables_of_its_prefix(tmp_path, asked):
    for name in [*(f"a.{table}" for table in TABLES), f"b.{TABLES[0]}", "a.other.json", f"below/a.{TABLES[0]}"]:
        put(tmp_path / name, b"[]")
    file = tmp_path / "a.overview_page.json"
    assert tp.load(file) is PROFILE
    assert asked == [(sorted(f"a.{table}" for table in TABLES), file.name, file)]


def test_a_folder_of_tables_alone_is_read(tmp_path, asked):
    session = tmp_path / "plugins" / "profile" / "one"
    put(session / "a.overview_page.json", b"[]")
    put(session / "b.pod_viewer.json", b"{}")
    assert tp.load(tmp_path) is PROFILE
    assert asked == [(["a.overview_page.json", "b.pod_viewer.json"], tmp_path.name, tmp_path)]
    put(session / "a.xplane.pb", window())
    assert names(tp.load(tmp_path)) == {"train", "MatMul"}


def test_gzipped_tables_are_read_with_the_others(tmp_path, asked):
    for name in ("a.overview_page.json.gz", "a.pod_viewer.json", "a.pod_viewer.json.gz", "a.hlo_stats.json.gz"):
        put(tmp_path / name, gzip.compress(b"[]") if name.endswith("gz") else b"[]")
    read = ["a.hlo_stats.json.gz", "a.overview_page.json.gz", "a.pod_viewer.json"]
    for path in (tmp_path, tmp_path / "a.pod_viewer.json", tmp_path / "a.overview_page.json.gz"):
        tp.load(path)
    assert [names for names, _, _ in asked] == [read, read, read]


def test_tables_without_steps_are_no_profile(tmp_path, asked):
    put(tmp_path / "a.hlo_stats.json", b"[]")
    with pytest.raises(BadProfile, match="the tables have no operations"):
        tp.load(tmp_path)
    assert asked == []


@pytest.mark.parametrize("name", ["10.0.0.1.overview_page.pb", "10.0.0.1.input_pipeline.pb"])
def test_binary_tables_of_2020_are_refused_by_name(tmp_path, name):
    file = put(tmp_path / "plugins" / "profile" / "one" / name, b"\x0a\x02")
    for path in (file, tmp_path):
        with pytest.raises(BadProfile, match=f"{name}: a table of XProf in the binary form of 2020") as caught:
            tp.load(path)
        assert "*.xplane.pb" in caught.value.hint
    put(file.parent / "a.xplane.pb", window())
    assert names(tp.load(tmp_path)) == {"train", "MatMul"}


def test_tables_of_two_sessions_are_not_one_profile(tmp_path, asked):
    for session in ("one", "two"):
        put(tmp_path / session / "a.overview_page.json", b"[]")
    with pytest.raises(ProfileNotFound, match="no raw profile, but tables of 2 sessions") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == f"load one of {tmp_path / 'one'}, {tmp_path / 'two'}"
    assert asked == []


def test_a_table_of_any_name_is_detected_by_its_content(tmp_path, asked):
    file = put(tmp_path / "downloaded.json", b'[{"cols": []}]')
    assert tp.load(file) is PROFILE
    with pytest.raises(BadProfile, match="no Chrome trace"):
        tp.load(put(tmp_path / "other.json", b'{"rows": []}'))
    with pytest.raises(BadProfile, match="no Chrome trace"):  # by its name it is a trace
        tp.load(put(tmp_path / "a.trace.json", b'[{"cols": []}]'))
    assert len(asked) == 1


def test_real_tables_load(real_profiles):
    profile = tp.load(real_profiles / "tpu-v2-8_resnet50.overview_page.json")
    assert len(tp.steps(profile)) >= 3


# -- URLs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def memory():
    """fsspec's own file system in memory, empty."""
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


def test_a_file_url_is_a_local_path(tmp_path):
    file = put(tmp_path / "größe 1%.xplane.pb", window())
    for url in (file.as_uri(), f"file://{tmp_path}/größe 1%25.xplane.pb"):
        assert tp.load(url).source == file


def test_a_file_behind_a_url_keeps_it_as_its_source(memory):
    memory.pipe("/bucket/a.xplane.pb", window())
    profile = tp.load("memory://bucket/a.xplane.pb")
    assert (profile.name, profile.source) == ("a.xplane.pb", "memory://bucket/a.xplane.pb")
    assert names(profile) == {"train", "MatMul"}


def test_a_list_may_mix_urls_and_paths(memory, tmp_path):
    memory.pipe("/bucket/logs/plugins/profile/one/a.xplane.pb", window("Relu"))
    here = put(tmp_path / "b.xplane.pb", window())
    profile = tp.load(["memory://bucket/logs", here])
    assert names(profile) == {"train", "MatMul", "Relu"}
    assert profile.source == "memory://bucket/logs/plugins/profile/one"


def test_profiles_inside_a_zip_archive_load(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("plugins/profile/one/a.xplane.pb", window())
    assert names(tp.load(f"zip://plugins/profile/one/a.xplane.pb::{tmp_path}/all.zip")) == {"train", "MatMul"}


def test_an_unknown_protocol_is_a_wrong_argument():
    with pytest.raises(ValueError, match=r"must be a path or a URL that fsspec knows. Got 'gopher://x/y' instead"):
        tp.load("gopher://x/y")


@pytest.mark.parametrize(
    ("url", "package", "hint"),
    [("gs://b/x", "gcsfs", install("gcs")), ("s3://b/x", "s3fs", "install the package named above")],
)
def test_a_protocol_without_its_package_has_an_install_hint(monkeypatch, url, package, hint):
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.setattr(storage, "is_anonymous", lambda url: False)
    monkeypatch.setitem(sys.modules, package, None)
    for protocol in ("gs", "s3"):
        monkeypatch.delitem(registry._registry, protocol, raising=False)
    with pytest.raises(MissingExtra, match=rf"^{url}: .*{package}") as caught:
        tp.load(url)
    assert caught.value.hint == hint


def test_an_error_of_a_file_system_is_a_tpunb_error(memory, monkeypatch):
    memory.pipe("/bucket/a.xplane.pb", window())

    def stumbles(*_, **__):
        raise RuntimeError("token expired\nand much more")

    monkeypatch.setattr(type(memory), "open", stumbles)
    with pytest.raises(
        tp.TpunbError, match=r"^memory://bucket/a\.xplane\.pb: cannot be read: RuntimeError: token expired"
    ):
        tp.load("memory://bucket/a.xplane.pb")


@pytest.fixture
def web(tmp_path):
    """A web server of the test's folder, and its URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.live
def test_the_web_gives_files_and_the_folders_it_lists(tmp_path, web):
    put(tmp_path / "logs" / "one" / "a.xplane.pb", window())
    put(tmp_path / "logs" / "two" / "a.trace.json.gz", gzip.compress(trace()))
    assert tp.load(f"{web}/logs/one/a.xplane.pb?token=1").name == "a.xplane.pb"
    assert names(tp.load(f"{web}/logs/")) == {"train", "MatMul", "Relu"}
    with pytest.raises(ProfileNotFound, match="nothing is at http"):
        tp.load(f"{web}/logs/three.xplane.pb")


@pytest.mark.live
def test_a_table_on_the_web_is_read_alone(tmp_path, web, asked):
    for table in TABLES:
        put(tmp_path / f"a.{table}", b"[]")
    tp.load(f"{web}/a.{TABLES[0]}")
    assert asked == [([f"a.{TABLES[0]}"], f"a.{TABLES[0]}", f"{web}/a.{TABLES[0]}")]


@pytest.mark.live
def test_a_server_that_never_answers_is_given_up(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(storage, "PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.xplane.pb"
        with pytest.raises(tp.TpunbError, match=rf"^{url}: no answer within 0\.3 s"):
            tp.load(url)


# -- the bar --------------------------------------------------------------------------------------------------


@pytest.fixture
def bars(monkeypatch):
    """The bars that were shown, by a stand-in of tqdm."""
    bars = []

    class Bar:
        def __init__(self, total, initial, **_):
            self.total, self.done, self.open = total, initial, True
            bars.append(self)

        def update(self, count):
            self.done += count

        def close(self):
            self.open = False

    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=Bar))
    return bars


def test_a_long_load_shows_one_bar_of_all_its_bytes(tmp_path, monkeypatch, bars):
    files = [put(tmp_path / f"{host}.xplane.pb", window()) for host in "abc"]
    tp.load(files)
    assert bars == []  # too short
    monkeypatch.setattr(logdir, "_BAR_AFTER_S", -1)
    tp.load(files)
    (bar,) = bars
    assert (bar.done, bar.total, bar.open) == (3 * len(window()), 3 * len(window()), False)


def test_a_load_that_fails_closes_its_bar(tmp_path, monkeypatch, bars):
    monkeypatch.setattr(logdir, "_BAR_AFTER_S", -1)
    with pytest.raises(BadProfile):
        tp.load(put(tmp_path / "a.xplane.pb", b"no profile"))
    assert [bar.open for bar in bars] == [False]


# -- an object store ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store():
    """A server on loopback that speaks the protocol of Google's object store."""
    pytest.importorskip("gcsfs")
    server = pytest.importorskip("gcp_storage_emulator.server").create_server(
        "127.0.0.1", 0, in_memory=True, default_bucket="bucket"
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def bucket(store, monkeypatch):
    """A bucket, empty: call it with a path and bytes to put an object there, from outside; with None to remove it."""
    from fsspec.config import conf
    from fsspec.registry import _registry
    from gcsfs.core import GCSFileSystem

    address = "http://{}:{}".format(*store._api._httpd.server_address)
    monkeypatch.setitem(conf, "gs", {"token": "anon", "endpoint_url": address})
    monkeypatch.setitem(_registry, "gs", GCSFileSystem)  # gcsfs' default one speaks gRPC besides, the server does not

    def change(path, data):
        if data is None:
            request = urllib.request.Request(
                f"{address}/storage/v1/b/bucket/o/{urllib.parse.quote(path, safe='')}", method="DELETE"
            )
        else:
            request = urllib.request.Request(f"{address}/bucket/{path}", data=data, method="PUT")
        urllib.request.urlopen(request).close()

    yield change
    store._storage.wipe(keep_buckets=True)


@pytest.mark.live
def test_a_logdir_of_two_hosts_loads_from_a_bucket_and_is_reused(bucket):
    session = "logs/plugins/profile/2024_01_01"
    bucket(f"{session}/a.xplane.pb", window())
    bucket(f"{session}/b.xplane.pb.gz", gzip.compress(window("Relu", T0 + 3 * MS)))
    bucket("logs/train/events.out.tfevents.1", b"scalars")
    first = tp.load("gs://bucket/logs")
    assert (first.name, first.source, first.reused) == ("logs", "gs://bucket/logs", False)
    assert names(first) == {"train", "MatMul", "Relu"}
    assert first.windows["start_ps"].to_list() == [0, 3 * MS * 1000]
    second = tp.load("gs://bucket/logs/")
    assert repr(second) == repr(first)[:-1] + ", reused)"
    assert second.events.equals(first.events)
    assert second.events.schema == schema.EVENTS
    assert second.windows.equals(first.windows)


@pytest.mark.live
def test_an_object_that_changed_is_decoded_anew(bucket):
    for op in ("MatMul", "Relu__"):
        bucket("a.xplane.pb", window(op))
        profile = tp.load("gs://bucket/a.xplane.pb")
        assert (names(profile), profile.reused) == ({"train", op}, False)
    assert tp.load("gs://bucket/a.xplane.pb").reused


@pytest.mark.live
def test_a_profile_of_which_one_host_is_new_is_not_called_reused(bucket):
    bucket("logs/a.xplane.pb", window())
    tp.load("gs://bucket/logs")
    bucket("logs/b.xplane.pb", window("Relu"))
    profile = tp.load("gs://bucket/logs")
    assert (names(profile), profile.reused) == ({"train", "MatMul", "Relu"}, False)


def a_run(folder, put_object):
    """A run of two parts, the second's window raw too, put under runs/toy."""
    steps = toy_steps("ab")
    end_ps = pl.col("start_ps") + pl.col("dur_ps")
    unknown = {"input_ps": pl.lit(None, pl.Int64), "found_by": pl.lit(None, pl.String)}
    ticks = steps.frame.select("host", "step", "kind", "start_ps", end_ps=end_ps, **unknown)
    writer = RunWriter(folder)
    writer.part(0, {"steps": steps.frame, "ops": steps.ops, "devices": steps.devices, "ticks": ticks})
    writer.part(1, {})
    writer.raw(1, "toy", window())
    writer.facts({"name": "toy"})
    for path in folder.rglob("*"):
        if path.is_file():
            put_object(f"runs/toy/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return steps


@pytest.mark.live
def test_a_run_folder_loads_from_a_bucket_and_its_raw_windows_when_asked(bucket, tmp_path):
    steps = a_run(tmp_path, bucket)
    profile = tp.load("gs://bucket/runs/toy")
    assert (profile.name, profile.source) == ("toy", "gs://bucket/runs/toy")
    by_clock = steps.frame.with_columns(rule=pl.lit("clock", schema.RULE))
    assert profile.stored.frame.rows() == by_clock.rows()
    assert profile.stored.ops.height == steps.ops.height
    assert names(profile) == {"train", "MatMul"}
    bucket("runs/toy/plugins/profile/00001/toy.xplane.pb", None)
    listed = tp.load("gs://bucket/runs/toy")
    assert listed.read_events is None  # no raw window any more
    with pytest.raises(ProfileNotFound, match=r"is not a run folder; it contains 1 run") as caught:
        tp.load("gs://bucket/runs")
    assert caught.value.hint == "load one of toy"


@pytest.mark.live
def test_a_raw_window_of_a_run_in_a_bucket_is_not_fetched_before_it_is_asked_for(bucket, tmp_path):
    a_run(tmp_path, bucket)
    profile = tp.load("gs://bucket/runs/toy")
    bucket("runs/toy/plugins/profile/00001/toy.xplane.pb", None)
    with pytest.raises(
        ProfileNotFound, match=r"nothing is at gs://bucket/runs/toy/plugins/profile/00001/toy\.xplane\.pb"
    ):
        profile.events  # noqa: B018


@pytest.mark.live
def test_a_damaged_file_of_a_run_in_a_bucket_is_named(bucket, tmp_path):
    a_run(tmp_path, bucket)
    bucket("runs/toy/parts/00000/ops.parquet", b"PAR1")
    with pytest.warns(UserWarning, match=r"^toy: 1 file skipped: parts/00000/ops\.parquet: cannot be read"):
        tp.load("gs://bucket/runs/toy")


@pytest.mark.live
def test_a_missing_object_lists_its_bucket(bucket):
    bucket("runs/bert/a.xplane.pb", window())
    bucket("runs/resnet/a.xplane.pb", window())
    with pytest.raises(ProfileNotFound, match=r"^nothing is at gs://bucket/runs/brt") as caught:
        tp.load("gs://bucket/runs/brt")
    assert caught.value.hint == "gs://bucket/runs holds bert, resnet"
    with pytest.raises(ProfileNotFound, match=r"^nothing is at gs://no-such/runs"):
        tp.load("gs://no-such/runs")
    bucket("other/notes.txt", b"words")
    with pytest.raises(ProfileNotFound, match=r"^gs://bucket/other holds no profile") as caught:
        tp.load("gs://bucket/other")
    assert caught.value.hint == "gs://bucket/other holds notes.txt"


@pytest.mark.parametrize("data", [b"", gzip.compress(b"")], ids=["plain", "zipped"])
def test_an_empty_file_behind_a_url_is_a_bad_profile(memory, data):
    memory.pipe("/bucket/a.xplane.pb", data)
    with pytest.raises(BadProfile, match=r"^memory://bucket/a\.xplane\.pb: the file is empty"):
        tp.load("memory://bucket/a.xplane.pb")


@pytest.mark.live
def test_a_store_that_cannot_be_reached_ends_in_bounded_time(bucket, nowhere, monkeypatch):
    from fsspec.config import conf

    monkeypatch.setitem(conf, "gs", {"token": "anon", "endpoint_url": f"http://{nowhere}"})
    monkeypatch.setattr(storage, "PATIENCE_S", 1.0)  # its client tries six times, for half a minute
    with pytest.raises(tp.TpunbError, match=r"^gs://bucket/logs: no answer within 1 s") as caught:
        tp.load("gs://bucket/logs")
    assert caught.value.hint.startswith("check the address, the network")


@pytest.fixture
def no_credentials(monkeypatch):
    """A machine without Google credentials, and a store at the address that is given."""
    auth = pytest.importorskip("google.auth")
    from fsspec.config import conf

    def missing():
        raise auth.exceptions.DefaultCredentialsError("none")

    monkeypatch.setattr(auth, "default", missing)
    return lambda address: monkeypatch.setitem(conf, "gs", {"endpoint_url": address})


@pytest.mark.live
@pytest.mark.parametrize("answers", [True, False])
def test_a_bucket_without_credentials_fails_in_one_line(no_credentials, nowhere, monkeypatch, capfd, answers):
    pytest.importorskip("gcsfs")

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    no_credentials("http://{}:{}".format(*server.server_address) if answers else f"http://{nowhere}")
    monkeypatch.setattr(storage, "_ANONYMOUS_S", 60.0 if answers else 0.5)
    with pytest.raises(
        tp.TpunbError, match=r"^gs://bucket/runs: there are no Google credentials, and without"
    ) as caught:
        tp.load("gs://bucket/runs")
    server.shutdown()
    server.server_close()
    assert "\n" not in str(caught.value)
    assert "gcloud auth application-default login" in caught.value.hint
    assert "Traceback" not in capfd.readouterr().err
    with (
        pytest.warns(RuntimeWarning, match="no Google credentials to write with"),
        tp.capture("gs://bucket/runs") as run,
    ):
        pass
    assert str(run.path).startswith("memory://")


def test_without_credentials_at_most_5_seconds_are_waited():
    assert storage._CREDENTIALS_S + storage._ANONYMOUS_S < 5


@pytest.mark.live
def test_a_search_for_credentials_that_takes_too_long_is_given_up(monkeypatch):
    auth = pytest.importorskip("google.auth")
    never = threading.Event()
    monkeypatch.setattr(auth, "default", never.wait)
    monkeypatch.setattr(storage, "_CREDENTIALS_S", 0.2)
    assert storage.is_anonymous("gs://bucket")
    never.set()
    monkeypatch.setattr(storage, "_CREDENTIALS_S", 60)
    assert not storage.is_anonymous("gs://bucket")
    assert not storage.is_anonymous("memory://bucket")


# -- what happens to loads in the wild ------------------------------------------------------------------------


@pytest.mark.live
def test_large_files_load_from_a_server_without_ranges(tmp_path, web, monkeypatch):
    monkeypatch.setattr(storage, "_BLOCK", 100)  # files of many blocks
    put(tmp_path / "a.xplane.pb", window())
    assert names(tp.load(f"{web}/a.xplane.pb")) == {"train", "MatMul"}


@pytest.mark.live
def test_a_server_that_is_not_there_is_not_called_an_empty_place(nowhere):
    with pytest.raises(tp.TpunbError, match="cannot be reached") as caught:
        tp.load(f"http://{nowhere}/a.xplane.pb")
    assert not isinstance(caught.value, ProfileNotFound)


def test_a_folder_below_that_may_not_be_read_ends_the_load(tmp_path, monkeypatch):
    put(tmp_path / "one" / "a.xplane.pb", window())
    put(tmp_path / "two" / "b.xplane.pb", window())
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("two"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(BadProfile, match="Permission denied"):
        tp.load(tmp_path)


def test_sessions_a_season_apart_are_no_one_profile(tmp_path):
    day = 86_400 * 10**9
    put(tmp_path / "spring" / "a.xplane.pb", window())
    put(tmp_path / "summer" / "a.xplane.pb", window(begin=T0 + 107 * day))
    with pytest.raises(tp.TpunbError, match="107 days apart") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == "load one of spring, summer"


def test_a_file_counts_once_by_whatever_names(tmp_path):
    path = put(tmp_path / "a.xplane.pb", window())
    (tmp_path / "latest.xplane.pb").symlink_to(path)
    once = tp.load(path).events.height
    assert tp.load(tmp_path).events.height == tp.load([path, path]).events.height == once


@pytest.mark.parametrize("path", ["", Path("gs://bucket/logdir")], ids=["empty", "a Path of a URL"])
def test_an_invalid_path_is_refused(path):
    with pytest.raises((ValueError, ProfileNotFound)) as caught:
        tp.load(path)
    assert "Got ''" in str(caught.value) or "as text" in caught.value.hint


@pytest.mark.live
def test_an_interrupt_ends_a_load_at_once(tmp_path):
    """The main thread waits for others that read: an interrupt has to reach it while they do."""
    code = """
import os, signal, sys, threading, time
import tpunb as tp
from tpunb.io import storage
def slowly(file, tell):
    threading.Thread(target=interrupt, daemon=True).start()
    for _ in range(3000):
        time.sleep(0.1)
        tell(1)
def interrupt():  # again and again: one that arrives in a callback of Python's is dropped
    while True:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
storage.read = slowly
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
try:
    tp.load(sys.argv[1])
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted")
"""
    path = put(tmp_path / "a.xplane.pb", window())
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert run.stdout == "interrupted\n", run.stderr[-2000:]


@pytest.mark.live
def test_an_interrupt_that_comes_while_threads_start_ends_a_load(tmp_path, monkeypatch):
    reports = []

    def slowly(file, tell):
        for count in range(600):
            time.sleep(0.1)
            reports.append(count)
            tell(1)

    def interrupted(pool, *work):
        submit(pool, *work)
        raise KeyboardInterrupt

    submit = ThreadPoolExecutor.submit
    monkeypatch.setattr(storage, "read", slowly)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tp.load(put(tmp_path / "a.xplane.pb", window()))
    assert len(reports) < 600  # it ends at a report of progress
