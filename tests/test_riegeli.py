"""Continuous captures of JAX: records of a Riegeli file, each an XSpace of some seconds."""

import gzip
import struct
import sys
from itertools import chain, repeat
from pathlib import Path

import fsspec
import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

import tpunb as tp
from tpunb.errors import BadProfile, MissingExtra, install
from tpunb.io import riegeli, storage, xplane
from tpunb.io.host_files import ENDINGS
from tpunb.testing import toy_window

brotli = lazy("brotli")

CAPTURE = Path(__file__).parent / "data" / "continuous.xplane.riegeli"
"""JAX 0.12.0 on two cores of a CPU: twelve products of 64 x 64 matrices, jitted, annotated "train", 0.75 s apart, with
``advanced_configuration = {"enable_continuous_profiling": True}`` and ``python_tracer_level = 0``: four records."""

OF_XPROF = {  # calls and total time in picoseconds in the trace viewer of XProf 2.24.2
    ("python", "AllocateOutputBuffersWithInputReuse"): (12, 179_887_000),
    ("python", "CommonPjRtBuffer::Await"): (22, 23_237_000),
    ("python", "CommonPjRtClient::CreateOutputs"): (12, 48_229_000),
    ("python", "CommonPjRtLoadedExecutable::CheckBufferCompatibilities"): (12, 15_279_000),
    ("python", "CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice"): (12, 1_447_013_000),
    ("python", "CommonPjRtLoadedExecutable::ExecutePrepare"): (12, 484_196_000),
    ("python", "Handle input event recording"): (12, 16_330_000),
    ("python", "Handle inputs"): (12, 135_155_000),
    ("python", "ParseArguments"): (12, 66_665_000),
    ("python", "PjitFunction(<lambda>)"): (24, 5_691_166_000),
    ("python", "PythonRefManager::CollectGarbage"): (12, 50_773_000),
    ("python", "Wait for donation holds"): (12, 2_134_000),
    ("python", "Wait for usage holds"): (12, 2_447_000),
    ("tf_XLAExecute/-3889076783765196640", "ThunkExecutor::Execute (wait for completion)"): (11, 841_000),
    ("tf_XLAExecute/-3889076783765196640", "end: ynn_fusion"): (11, 7_536_000),
    ("tf_XLAExecute/-3889076783765196640", "ynn_fusion"): (11, 792_409_000),
    ("tf_XLAExecute/-8840642640349858664", "ThunkExecutor::Execute (wait for completion)"): (1, 60_000),
    ("tf_XLAExecute/-8840642640349858664", "end: ynn_fusion"): (1, 742_000),
    ("tf_XLAExecute/-8840642640349858664", "ynn_fusion"): (1, 74_019_000),
}
STEPS_OF_XPROF = [
    *(4_745_648_000, 576_251_000, 402_865_000, 306_034_000, 397_866_000, 2_369_764_000),
    *(1_152_581_000, 617_849_000, 394_460_000, 417_874_000, 372_729_000, 417_893_000),
]


def test_events_have_the_calls_and_times_that_xprof_reads():
    _ = brotli.Decompressor
    profile = tp.load(CAPTURE)
    named = profile.events.filter(~pl.col("name").cast(pl.String).str.starts_with("ThreadpoolListener"))
    steps = named.filter(pl.col("step_num").is_not_null()).sort("step_num")
    assert steps["dur_ps"].to_list() == STEPS_OF_XPROF
    rest = named.filter(pl.col("step_num").is_null()).group_by("line", "name")
    rows = rest.agg(pl.len(), pl.col("dur_ps").sum()).rows()
    assert {row[:2]: row[2:] for row in rows} == OF_XPROF
    assert profile.events["lane"].n_unique() == 3  # the four records have seven lines
    assert len(profile.windows) == 1


def test_steps_of_all_records_are_steps_of_one_run(tmp_path):
    _ = brotli.Decompressor
    session = tmp_path / "plugins" / "profile" / "2026"
    session.mkdir(parents=True)
    (session / "vm.xplane.riegeli.gz").write_bytes(gzip.compress(CAPTURE.read_bytes()))
    steps = tp.steps(tp.load(tmp_path))
    assert steps.frame["step"].to_list() == [*range(12)]
    assert set(steps.frame["traced"]) == {"full"}
    fsspec.filesystem("memory").pipe_file("/continuous/vm.xplane.riegeli", CAPTURE.read_bytes())
    assert tp.steps(tp.load("memory://continuous")).frame["dur_ps"].equals(steps.frame["dur_ps"])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brotli", None)
    with pytest.raises(MissingExtra, match="brotli is not installed") as caught:
        tp.load(CAPTURE)
    assert caught.value.hint == install("riegeli")


# -- damage ------------------------------------------------------------------------------------------------------------


@examples(60)
@given(st.data())
def test_no_changed_byte_goes_unnoticed(data):
    whole = CAPTURE.read_bytes()
    place, changed = data.draw(st.integers(16, len(whole) - 1) | st.integers(64, 4_900)), bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    if place < 24:  # of the block header, which is only for seeking
        read(changed)
        return
    with pytest.raises(BadProfile, match=r"toy: the chunk at byte \d+ is damaged: the checksum of its (header|data)"):
        read(changed)


def read(data):
    _ = brotli.Decompressor
    return riegeli.records(np.frombuffer(bytes(data), np.uint8), source="toy", limit=1 << 20)


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (70, "at byte 64 is damaged: only 6 bytes of its header are there"),
        (4_000, "at byte 64 is damaged: only 3896 of its 4798 bytes are there"),
        (5_000, "at byte 4902 is damaged: only 58 of its 60594 bytes are there"),
    ],
)
def test_a_cut_file_is_named_with_what_is_there(tmp_path, size, problem):
    _ = brotli.Decompressor
    path = tmp_path / "vm.xplane.riegeli"
    path.write_bytes(CAPTURE.read_bytes()[:size])
    with pytest.raises(BadProfile, match=problem) as caught:
        tp.load(path)
    assert str(caught.value).startswith(str(path))
    assert "copy the file again" in caught.value.hint


def test_a_capture_without_records_is_empty(tmp_path):
    path = tmp_path / "vm.xplane.riegeli"
    path.write_bytes(CAPTURE.read_bytes()[:64])
    with pytest.raises(BadProfile, match="the file is empty"):
        tp.load(path)


# -- files of this test ------------------------------------------------------------------------------------------------


def hashed(rest):
    return struct.pack("<Q", int(riegeli.checksum(np.frombuffer(rest, np.uint8)))) + rest


def chunk(kind, data, records=0, decoded=0):
    """Return a chunk without padding."""
    of_data = int(riegeli.checksum(np.frombuffer(data, np.uint8)))
    return hashed(struct.pack("<QQQQ", len(data), of_data, kind[0] | records << 8, decoded)) + data


def simple(*records, compression=b"\0", sizes=None):
    """Return a chunk of records, none of them longer than 127 bytes where sizes are left out."""
    sizes = bytes(map(len, records)) if sizes is None else sizes
    values = b"".join(records)
    return chunk(b"r", compression + bytes([len(sizes)]) + sizes + values, len(records), len(values))


def written(*chunks):
    """Return a file: a block header of 24 bytes at every 64 KiB, and chunks as long as they have records."""
    file = bytearray(CAPTURE.read_bytes()[:64])
    for each in chunks:
        begin, headers, left = len(file), [], len(each)
        least = begin + int.from_bytes(each[25:32], "little")
        least += max(25 - least % 65_536, 0) if least % 65_536 else 0  # not in a block header, nor just after one
        for byte in chain(each, repeat(0)):
            if len(file) >= least and not left:
                break
            left -= left > 0
            if len(file) % 65_536 == 0:
                headers.append(len(file))
                file += bytes(24)
            file.append(byte)
        for at in headers:
            file[at : at + 24] = hashed(struct.pack("<QQ", at - begin, len(file) - at))
    return bytes(file)


@examples(40)
@given(st.lists(st.lists(st.integers(0, 2), max_size=300), max_size=6), st.integers(0, 200))
def test_chunks_are_found_wherever_block_headers_interrupt_them(sizes, shift):
    """The records of a chunk may outnumber its bytes, and its end falls anywhere about that of a block."""
    chunks = [simple(*(bytes([7 + n]) * n for n in each)) for each in sizes]
    filling = chunk(b"p", bytes(65_536 - 24 - 80 - 40 - shift))
    assert riegeli.records(np.frombuffer(written(filling, *chunks), np.uint8), source="toy", limit=1 << 20) == [
        b"".join(bytes([7 + n]) * n for n in each) for each in sizes
    ]


def test_a_chunk_of_more_records_than_bytes_ends_after_as_many():
    """65,500 records of no bytes, whose sizes take as many: the next chunk begins in the next block."""
    sizes = chunk(b"r", b"\0\0", 65_500, 0)
    data = np.frombuffer(written(sizes, simple(b"abc")), np.uint8)
    assert riegeli.records(data, source="toy", limit=3) == [b"", b"abc"]


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (chunk(b"t", b"b123", 1, 3), "toy: a transposed chunk, which is not supported"),
        (chunk(b"x", b"z123", 1, 3), "toy: a chunk of kind b'x', which is not supported"),
        (chunk(b"r", b"z123", 1, 3), "toy: a chunk compressed by Zstd, which is not supported"),
        (chunk(b"r", b"?123", 1, 3), r"toy: a chunk compressed by b'\?', which is not supported"),
        (chunk(b"r", b"\0\1\3ab", 1, 3), "at byte 64 is damaged: it has 2 bytes instead of 3"),
        (chunk(b"r", b"b\0\3abc", 1, 3), "at byte 64 is damaged: it cannot be decompressed"),
        (simple(*[bytes(100)] * 11), "toy: more than 1000 bytes once decompressed; a profile has less"),
    ],
)
def test_what_cannot_be_read_is_named(file, problem):
    _ = brotli.Decompressor
    with pytest.raises(BadProfile, match=problem):
        riegeli.records(np.frombuffer(written(file), np.uint8), source="toy", limit=1000)


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def of_device(begin):
    """Return an XSpace with an event of a TPU on a line with id 5."""
    event = b"\x08\x01\x10" + bytes([begin]) + b"\x18\x02"
    line = b"\x08\x05" + field(4, event)
    metadata = field(4, b"\x08\x01" + field(2, b"\x08\x01" + field(2, b"dot")))
    return field(1, field(2, b"/device:TPU:0") + metadata + field(3, line)) + field(1, field(2, b"/device:TPU:1"))


def test_a_device_of_several_records_is_one_with_one_line(tmp_path):
    path = tmp_path / "vm.xplane.riegeli"
    path.write_bytes(written(simple(of_device(3)), simple(of_device(70))))
    profile = tp.load(path)
    assert profile.hardware["device"].to_list() == ["/device:TPU:0"]
    assert profile.events.select("name", "lane", "start_ps", "dur_ps").rows() == [("dot", 0, 3, 2), ("dot", 0, 70, 2)]
    data = storage.read(storage.local(path))
    assert xplane.extent(data, source="toy")[0].lanes == 1


def test_a_run_of_several_hosts_may_have_a_continuous_capture_each(tmp_path):
    for number, host in enumerate(["a", "b"]):
        begin = 10**15 + number
        times = [(n, begin + 100 * n, begin + 100 * n + 90) for n in range(3)]
        parts = [toy_window(begin, begin + 900, [step], host=host) for step in times]
        sizes = b"".join(bytes([len(part) & 127 | 128, len(part) >> 7]) for part in parts)
        (tmp_path / f"{host}.xplane.riegeli").write_bytes(written(simple(*parts, sizes=sizes)))
    steps = tp.steps(tp.load(tmp_path))
    assert sorted(steps.frame.select("host", "step").rows()) == [(host, n) for host in ("a", "b") for n in range(3)]


def test_the_endings_of_one_capture_are_its_forms():
    assert ENDINGS.index(".xplane.pb.gz") < ENDINGS.index(".xplane.riegeli") < ENDINGS.index(".trace.json")
