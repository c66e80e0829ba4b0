"""Folders of strangers: what is no file, has no end or names other things is one line, or skipped, never a hang."""

import ast
import gzip
import json
import os
import shutil
import stat
import struct
import sys
import threading
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from optional import lazy

import tpunb as tp
from tpunb import cli
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames.conversion import METADATA_BYTES, open_file, open_zip, read_file
from tpunb.io import goodput_events, riegeli, run_folder, run_storage, storage
from tpunb.io.formats import attempts
from tpunb.mcp_server import RunTools
from tpunb.training import snapshot

brotli, h5py, torch = lazy("brotli"), lazy("h5py"), lazy("torch")
ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "datasets" / "sample_profiles" / "keras_cnn"
TICKS = "parts/00000-00008/ticks.parquet"
LIMIT_S = 120  # that only a hang reaches
TRACE = b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "name": "a"}]}'


def link_to_pipe(path):
    os.mkfifo(path.with_name(".pipe"))
    path.symlink_to(path.with_name(".pipe"))


KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link to a pipe": link_to_pipe,
}
kinds = pytest.mark.parametrize("kind", KINDS)


def replaced(path, kind):
    """Put what is no file in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    return path


def ended(call, *args):
    """Return the result of a call, or its error, which has one line; fail where it waits for ever."""
    found = []

    def run():
        try:
            found.append(call(*args))
        except Exception as error:  # noqa: BLE001  asserted below
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert found, "it hangs"
    if isinstance(found[0], Exception):
        assert isinstance(found[0], (TpunbError, OSError)), repr(found[0])
        assert len(str(found[0]).splitlines()) == 1
    return found[0]


@pytest.fixture
def runs(tmp_path):
    """A folder with a run, and one that a test spoils."""
    for name in ("good", "bad"):
        shutil.copytree(SAMPLE, tmp_path / "runs" / name)
    return tmp_path / "runs"


# -- files ------------------------------------------------------------------------------------------------------------


@kinds
def test_only_files_are_opened(tmp_path, kind):
    path = replaced(tmp_path / "x", kind)
    for opened in (open_file, read_file, lambda path: open_zip(path).__enter__()):
        error = ended(opened, path)
        assert isinstance(error, BadProfile)
        assert str(path) in str(error)
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "link") == b"abc"


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    """Between the look at a path and its opening, another program may replace it."""
    (tmp_path / "x").write_bytes(b"abc")
    of_file = (tmp_path / "x").stat()
    replaced(tmp_path / "x", "pipe")
    monkeypatch.setattr(Path, "stat", lambda *_, **__: of_file)
    assert "not a file" in str(ended(open_file, tmp_path / "x"))


def test_a_file_is_read_within_its_limit(tmp_path):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)  # of no bytes on disk
    assert "1,099,511,627,776 bytes; of such a file at most 16,777,216" in str(ended(read_file, tmp_path / "x"))
    (tmp_path / "y").write_bytes(b"1234")
    assert read_file(tmp_path / "y", 4) == b"1234"
    with pytest.raises(BadProfile, match="at most 3 are read"):
        read_file(tmp_path / "y", 3)


READERS = [
    *(ROOT / "tpunb" / "io").glob("*.py"),
    *(ROOT / "tpunb" / "checkpoint").rglob("*.py"),
    *(ROOT / "tpunb" / "training").glob("*.py"),
    *(ROOT / "tpunb" / name for name in ("mcp_server.py", "analysis/machine.py", "profiler/sources/replay.py")),
]
OF_OWN = {("cache.py", "get"), ("cache.py", "put"), ("cache.py", "fill"), ("cache.py", "get_drawn")}
"""Functions that read files of the user's own cache, which are checked for damage."""


def readings(path):
    """Yield the functions of a module that read a file otherwise than by `open_file`."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and is_reading(node):
                    yield function.name


def is_reading(call):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    is_path = isinstance(call.func, ast.Name) or not ast.unparse(call.func).startswith(
        ("os.", "file.fs.", "self._files.")
    )
    writes = any(mode in ("a", "w", "x", "wb", "ab") for mode in modes)
    return name in ("read_bytes", "read_text", "FileIO", "ZipFile") or (name == "open" and is_path and not writes)


def test_readers_open_files_in_one_way():
    found = {(path.name, name) for path in READERS for name in readings(path)}
    writes = {("run_storage.py", "take"), ("run_storage.py", "open_file"), ("run_writer.py", "open")}  # of a capture
    members = {("keras.py", "_single")}  # of a zip file that `open_zip` opened
    assert found - OF_OWN - writes - members == set()


# -- runs -------------------------------------------------------------------------------------------------------------

COMMANDS = {
    "report": lambda bad: ["report", bad],
    "report --markdown": lambda bad: ["report", bad, "--markdown"],
    "compare": lambda bad: ["compare", bad.with_name("good"), bad],
    "view": lambda bad: ["view", bad, "-o", bad.parents[1] / "page.html"],
}


@kinds
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_run_that_is_no_file_is_one_line(runs, kind, command, capsys):
    replaced(runs / "bad" / "run.json", kind)
    assert ended(cli.main, [*map(str, COMMANDS[command](runs / "bad"))]) == 65
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "run.json" in shown.err


@kinds
def test_the_other_runs_of_a_folder_are_listed(runs, kind, capsys):
    replaced(runs / "bad" / "run.json", kind)
    assert ended(cli.main, ["runs", str(runs)]) == 0
    shown = capsys.readouterr()
    assert [line.split()[2] for line in shown.out.splitlines()[1:]] == ["good"]
    assert len(shown.err.splitlines()) == 1
    assert "1 run left out: bad: " in shown.err


@kinds
def test_the_other_runs_of_a_folder_are_named_and_attempts(runs, kind):
    replaced(runs / "bad" / "run.json", kind)
    assert "load one of good" in ended(tp.load, runs).hint
    assert len(ended(attempts, runs)) == 1


@kinds
def test_the_server_lists_the_other_runs_and_answers_the_next_call(runs, kind):
    replaced(runs / "bad" / "run.json", kind)
    tools = RunTools(str(runs))
    texts, failed = ended(tools.call, "list_runs", {})
    rows = {row["name"]: row for row in json.loads(texts[0])["runs"]["rows"]}
    assert not failed
    assert "steps" in rows["good"]
    assert "is neither a file nor a folder" in rows["bad"]["problem"] or "is a link" in rows["bad"]["problem"]
    (line,), failed = ended(tools.call, "report", {"run": "bad"})
    assert failed
    assert len(line.splitlines()) == 1
    assert ended(tools.call, "report", {"run": "good"})[1] is False


FILES = (TICKS, TICKS.replace("ticks", "ops"), TICKS.replace("ticks", "windows"), "ticks.parquet", "latest.bin")
FILES += ("device.json", ".lock", "plugins/profile/00001/vm.xplane.pb", "programs/0123456789abcdef.hlo.pb.gz")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", FILES)
def test_any_file_of_a_run_that_is_none_is_one_line_or_left_out(runs, kind, name):
    replaced(runs / "bad" / name, kind)
    for read in (tp.load, tp.report, tp.runs, lambda run: tp.load(run).events):
        ended(read, runs / "bad")
    assert ended(run_folder.is_written, runs / "bad") is False
    assert ended(tp.runs, runs)["name"].to_list()[-1] in ("good", "bad")


@pytest.mark.parametrize("name", ["run.json", "latest.bin", "ticks.parquet", TICKS])
def test_a_file_of_two_gib_takes_none_of_them(runs, name, tmp_path):
    with (runs / "bad" / name).open("ab") as file:
        file.truncate(1 << 31)
    before = peak_mib()
    ended(tp.load, runs / "bad")
    assert peak_mib() - before < 500
    steps = tp.load(runs / "good").stored
    if name == "latest.bin":
        assert tp.load(runs / "bad").stored.frame.equals(steps.frame)  # what a journal can hold is read


@kinds
@pytest.mark.parametrize("name", ["a.xplane.pb", "a.trace.json.gz", "a.jsonl", "a.csv", "x", "a.overview_page.json"])
def test_a_profile_of_any_form_that_is_no_file_is_one_line(tmp_path, kind, name):
    path = replaced(tmp_path / "logs" / name, kind)
    for url in (path, f"file://{path}", f"local://{path}", path.parent):
        assert isinstance(ended(tp.load, url), TpunbError)
    assert isinstance(ended(tp.load, [path]), TpunbError)
    assert isinstance(ended(goodput_events.attempts, storage.local(path)), TpunbError)


@kinds
def test_a_replay_of_what_is_no_file_is_one_line(tmp_path, kind):
    replaced(tmp_path / "1" / "vm.xplane.pb", kind)
    source = tp.sources.Replay(tmp_path)
    source.start()
    assert isinstance(ended(source.window, 0.0), TpunbError)


def test_a_lock_that_is_a_link_does_not_lead_a_capture_to_a_file_of_the_user(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(OSError, match="symbolic link"):
        run_storage.FolderLock.take(tmp_path / "run")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


# -- compression ------------------------------------------------------------------------------------------------------


def peak_mib():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


def hashed(packed):
    return struct.pack("<Q", int(riegeli.checksum(np.frombuffer(packed, np.uint8)))) + packed


def test_records_that_grow_without_bound_are_refused(tmp_path):
    values = brotli.compress(bytes(1 << 30), quality=1)
    data = b"b\0" + b"\x80\x80\x80\x80\x04" + values
    head = hashed(
        struct.pack("<QQQQ", len(data), int(riegeli.checksum(np.frombuffer(data, np.uint8))), ord("r") | 256, 1 << 30)
    )
    content = (ROOT / "tests" / "data" / "continuous.xplane.riegeli").read_bytes()[:64] + head + data
    file = tmp_path / "a.xplane.riegeli"
    file.write_bytes(with_block_headers(content))
    before = peak_mib()
    error = ended(tp.load, file)
    assert "bytes once decompressed" in str(error)
    assert peak_mib() - before < 200


def with_block_headers(content):
    """Return a file of chunks with the header of a block at every 64 KiB."""
    blocks = [content[:65_536], *(content[at : at + 65_512] for at in range(65_536, len(content), 65_512))]
    return b"".join([blocks[0], *(bytes(24) + block for block in blocks[1:])])


def test_zipped_traces_are_refused_above_a_ratio(tmp_path):
    file = tmp_path / "a.trace.json.gz"
    file.write_bytes(gzip.compress(TRACE + b" " * (200 << 20)))
    before = peak_mib()
    assert "a decompression bomb" in str(ended(tp.load, file))
    assert peak_mib() - before < 300


@pytest.mark.parametrize(
    ("name", "member"), [("a.keras", "model.weights.h5"), ("a.pt", "a/data.pkl"), ("a.pth", "a/data.pkl")]
)
def test_compressed_checkpoints_are_skipped(tmp_path, name, member):
    _ = h5py.File
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, bytes(64 << 20))
    (reason,) = ended(tp.checkpoints, tmp_path).skipped.values()
    assert "is compressed" in reason


# -- checkpoints ------------------------------------------------------------------------------------------------------

CHECKPOINTS = ("a.keras", "a.weights.h5", "a.pt", "a.ckpt", "checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001")
CHECKPOINTS += ("a.weights.json", "5/_CHECKPOINT_METADATA", "checkpoint-7/trainer_state.json", "tpunb-3/tpunb.json")


@kinds
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_that_are_no_files_are_skipped(tmp_path, kind, name):
    replaced(tmp_path / name, kind)
    assert isinstance(skipped := ended(tp.checkpoints, tmp_path).skipped, dict)
    assert f"{Path(name)}" in skipped
    assert skipped[name] == "is neither a file nor a folder"


def own(folder, **metadata):
    """Write a snapshot of a fit that lacks what no test reads."""
    folder.mkdir(parents=True)
    (folder / "variables.npz").write_bytes(b"12345")
    known = {"format": 1, "step": 3, "time": 1e9, "exact": True, "why": "", "holds": ["weights"], "fit": 0}
    known |= {"ended": [], "epoch": 0, "files": {"variables.npz": 5}, "fingerprints": "fingerprints-1.jsonl"}
    known = {name: value for name, value in {**known, **metadata}.items() if value is not None}
    (folder / snapshot.METADATA).write_text(json.dumps(known))
    return folder


def resumed(folder):
    with tp.resume(folder):
        pass


@kinds
@pytest.mark.parametrize("name", ["tpunb.json", "variables.npz", "part-model.pt", "part-model.json", "iterator.index"])
def test_no_snapshot_with_what_is_no_file_is_resumed(tmp_path, kind, name):
    folder = own(tmp_path / "tpunb-3")
    replaced(folder / name, kind)
    for call in (resumed, tp.checkpoint.restore, snapshot.read_metadata):
        assert isinstance(ended(call, folder), snapshot.BadSnapshot)
    assert len(ended(tp.checkpoints, tmp_path)) == 0


@kinds
def test_fingerprints_that_are_no_file_verify_nothing(tmp_path, kind):
    metadata = snapshot.read_metadata(own(tmp_path / "tpunb-3"))
    replaced(tmp_path / "fingerprints-1.jsonl", kind)
    read = tp.checkpoint.resume.Resumed.read
    assert ended(read, tmp_path / "tpunb-3", metadata, "warn").expected == {}
    for name in ("..", "", "../../x", "a\0b", "/dev/zero"):
        assert ended(read, tmp_path / "tpunb-3", metadata | {"fingerprints": name}, "warn").expected == {}


def test_a_folder_that_a_link_brings_into_a_snapshot_is_not_read(tmp_path):
    folder = own(tmp_path / "tpunb-3")
    (folder / "arrays").symlink_to("/dev")
    assert "arrays is a link to a folder" in str(ended(resumed, folder))


@pytest.mark.parametrize(
    "metadata",
    [
        *({name: value} for name in ("fit", "loop", "call", "epoch", "exact") for value in ("x", [], 1.5)),
        *({name: value} for name in ("why", "fingerprints", "varying", "trainer") for value in (3, ["x"], {})),
        *(
            {name: value}
            for name in ("holds", "parts", "random", "files", "block_random", "seeds")
            for value in (7, "x")
        ),
        *({name: None} for name in ("format", "step", "time", "exact", "files", "ended")),
        *({"step": value} for value in ("?", [], 1e400, "9" * 5000)),
        {"files": {"../../x": 1}},
        {"files": {"variables.npz": "x"}},
        {"fit": 3},
        {"exact": False, "why": None},
        {"block_random": []},
        {"block_random": [{"python": [3, [1], None], "numpy": 3}, None]},
        {"block_random": ["x", {}]},
    ],
    ids=str,
)
def test_metadata_of_other_types_are_one_line(tmp_path, metadata):
    error = ended(resumed, own(tmp_path / "tpunb-3", **metadata))
    assert isinstance(error, TpunbError)
    assert "tpunb.json" in str(error) or "the checkpoint cannot be resumed" in str(error) or "tpunb-3" in str(error)
    ended(tp.checkpoints, tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", "[" * 200_000, "\ud800", '{"format": 1e999}', '{"step": ' + "9" * 9999]
)
def test_metadata_that_are_no_object_are_one_line(tmp_path, text):
    folder = own(tmp_path / "tpunb-3")
    (folder / "tpunb.json").write_bytes(text.encode("utf8", "surrogatepass"))
    assert isinstance(error := ended(resumed, folder), snapshot.BadSnapshot)
    assert "set_int_max_str_digits" not in str(error)
    assert "tpunb-3" in ended(tp.checkpoints, tmp_path).skipped


@pytest.mark.parametrize("name", ["evilmod", "os", "transformers.trainer.x", "", "..x", "tpunb"])
def test_only_trainers_are_imported(tmp_path, monkeypatch, name):
    """A notebook's own folder is on the path: a file beside it could have any name."""
    (tmp_path / "evilmod.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*sys.modules}
    folder = own(tmp_path / "tpunb-3", fit=None, trainer=name, call=0, data={}, progress={}, random={})
    error = ended(resumed, folder)
    assert "no Trainer that is supported" in str(error)
    assert "evilmod" not in {*sys.modules} - before


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"PK\3\4"), lambda file: huge_array(file)])
def test_arrays_that_are_damaged_are_one_line(tmp_path, damage):
    folder = own(tmp_path / "tpunb-3")
    damage(folder / "variables.npz")
    assert "variables.npz cannot be read" in str(ended(snapshot.read_arrays, folder, {"weights": [np.zeros(3)]}))


def huge_array(file):
    """Write an array of no bytes that claims 2**63."""
    with zipfile.ZipFile(file, "w") as archive:
        head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,), }\n"
        archive.writestr("weights/0.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head)


def test_tensors_that_are_no_plain_ones_are_one_line(tmp_path):
    from tpunb.training import torch_state

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"value": Evil()}, tmp_path / "part-model.pt")
    assert "part-model.pt cannot be read" in str(ended(torch_state.read, tmp_path / "part-model"))
    (tmp_path / "part-model.pt").write_bytes(b"not a file of torch")
    assert "part-model.pt cannot be read" in str(ended(torch_state.read, tmp_path / "part-model"))
    assert not (tmp_path / "owned").exists()


def test_hdf5_that_leads_to_other_files_is_not_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file["layers"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/")
    with h5py.File(tmp_path / "b.weights.h5", "w") as file:
        file.create_dataset("layers/dense/vars/0", data=np.zeros(3))
        layout = h5py.VirtualLayout((3,), "int64", maxshape=(None,))
        layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(tmp_path / "pipe", "x", (3,), "int64", (None,))[
            : h5py.h5s.UNLIMITED
        ]
        file.create_virtual_dataset("optimizer/vars/0", layout)
    found = ended(tp.checkpoints, tmp_path)
    assert "is a link, which may lead to any file" in found.skipped["a.weights.h5"]
    assert [(each.path.name, each.step) for each in found] == [("b.weights.h5", None)]


@cache
def long_pickle():
    return b"\x80\x02}(X\x04\0\0\0stepL" + b"9" * 5000 + b"L\nu."


def test_what_no_writer_writes_is_skipped_in_words_for_people(tmp_path):
    with zipfile.ZipFile(tmp_path / "long.pt", "w") as archive:
        archive.writestr("long/data.pkl", long_pickle())
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / "trainer_state.json").write_text('{"global_step": 1e999}')
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "_CHECKPOINT_METADATA").write_text(json.dumps({"commit_timestamp_nsecs": 10**30}))
    own(tmp_path / "tpunb-3", time=1e300)
    found = ended(tp.checkpoints, tmp_path)
    assert len(found) == 0
    assert {*found.skipped} == {"long.pt", "checkpoint-7", "5", "tpunb-3"}
    assert "a number in it has too many digits" in found.skipped["long.pt"]
    assert all("set_int_max" not in reason and "\n" not in reason for reason in found.skipped.values())


def test_metadata_have_their_limit(tmp_path):
    assert METADATA_BYTES < 1 << 26
    folder = own(tmp_path / "tpunb-3")
    with (folder / "tpunb.json").open("ab") as file:
        file.truncate(1 << 33)
    assert "8,589,934,592 bytes" in str(ended(resumed, folder))
