"""Records of Riegeli files, in which JAX stores continuous captures (``*.xplane.riegeli``).

A file holds chunks: 40 bytes with checksums and the kind, then data of records. At every 64 KiB a block header of 24
bytes interrupts them: https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md. Checksums are
HighwayHash, https://arxiv.org/abs/1612.06257. Each record is an XSpace of some seconds.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tpunb.compiled import compiled
from tpunb.errors import BadProfile, need
from tpunb.protobuf.kernels import Bytes

_BLOCK, _BLOCK_HEADER, _HEADER = 1 << 16, 24, 40
_USABLE = _BLOCK - _BLOCK_HEADER
_CHUNK = np.dtype(
    [("hash", "<u8"), ("size", "<u8"), ("data_hash", "<u8"), ("kind", "S1"), ("records", "V7"), ("decoded", "<u8")]
)
_SILENT = b"smp"  # signature, metadata and padding: chunks without records
_UNSUPPORTED = {b"z": "by Zstd", b"s": "by Snappy", b"t": "a transposed chunk"}


def records(data: Bytes, *, source: str, limit: int) -> list[bytes]:
    """Return the contents of the chunks of records, each some records one after the other: `limit` bytes at most.

    Raises BadProfile if a checksum differs or the file is cut, MissingExtra without the package of its compression.
    """
    stream = np.concatenate([data[at + _BLOCK_HEADER : at + _BLOCK] for at in range(0, len(data), _BLOCK)])
    found, at, left = list[bytes](), 0, limit
    while at < len(stream):
        head = stream[at : at + _HEADER]
        if len(head) < _HEADER:
            _damaged(source, at, f"only {len(head)} bytes of its header are there")
        if int(checksum(head[8:])) != (header := head.view(_CHUNK)[0])["hash"]:
            _damaged(source, at, "the checksum of its header differs")
        size, kind, decoded = int(header["size"]), bytes(header["kind"]), int(header["decoded"])
        content = stream[at + _HEADER : at + _HEADER + size]
        if len(content) < size:
            _damaged(source, at, f"only {len(content)} of its {size} bytes are there")
        if int(checksum(content)) != header["data_hash"]:
            _damaged(source, at, "the checksum of its data differs")
        if kind not in _SILENT:
            if (left := left - decoded) < 0:
                raise BadProfile(f"{source}: more than {limit} bytes once decompressed; a profile has less")
            found.append(_values(kind, content.tobytes(), decoded, source, at))
        at = max(at + _HEADER + size, _end(at, int.from_bytes(header["records"].tobytes(), "little")))
    return found


def _damaged(source: str, at: int, problem: str) -> NoReturn:
    block, within = divmod(at, _USABLE)
    raise BadProfile(
        f"{source}: the chunk at byte {block * _BLOCK + _BLOCK_HEADER + within} is damaged: {problem}",
        hint="copy the file again; it was truncated or changed while written or copied",
    )


def _end(at: int, records: int) -> int:
    """Return the least end of a chunk, which takes a byte of the file for each record, also in block headers."""
    block, within = divmod(at, _USABLE)
    block, within = divmod(block * _BLOCK + (within and within + _BLOCK_HEADER) + records, _BLOCK)
    return block * _USABLE + (within and max(within - _BLOCK_HEADER, 1))


def _values(kind: bytes, content: bytes, decoded: int, source: str, at: int) -> bytes:
    """Return the records of a simple chunk; their sizes, which come before, are not needed."""
    compression = content[:1]
    if kind != b"r" or compression not in (b"\0", b"b"):
        how = _UNSUPPORTED.get(compression, f"by {compression!r}")
        how = f"a chunk compressed {how}" if kind == b"r" else _UNSUPPORTED.get(kind, f"a chunk of kind {kind!r}")
        problem = f"{source}: {how}, which is not supported"
        raise BadProfile(problem, hint="write it in simple chunks compressed by Brotli, as JAX does")
    skipped, begin = _varint(content, 1)
    values = content[begin + skipped :]
    if compression == b"b":
        brotli = need("brotli", extra="riegeli")
        size, begin = _varint(values, 0)
        stream = brotli.Decompressor()
        try:
            values = stream.process(values[begin:], output_buffer_limit=decoded + 1)
        except brotli.error:
            size = -1
        if size != decoded or not stream.is_finished():
            _damaged(source, at, "it cannot be decompressed")
    if len(values) != decoded:
        _damaged(source, at, f"it has {len(values)} bytes instead of {decoded}")
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the position after it; 0 after the end."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at


# -- HighwayHash with the key of Riegeli ------------------------------------------------------------------------------

Words = npt.NDArray[np.uint64]
_KEY = np.frombuffer(b"Riegeli/records\nRiegeli/records\n", np.uint64)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_MULTIPLIERS = np.array(  # of the hash: digits of pi
    [
        [0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3],
        [0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377],
    ],
    np.uint64,
)
_STATE = np.vstack([_MULTIPLIERS[0] ^ _KEY, _MULTIPLIERS[1] ^ (_KEY >> _HALF | _KEY << _HALF), _MULTIPLIERS])
_ZIPPER = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])  # order of bytes of two words


@compiled
def checksum(data: Bytes) -> np.uint64:
    """Return the hash of 64 bits of some bytes."""
    state, packet = _STATE.copy(), np.zeros(32, np.uint8)
    rest = data.size % 32
    for at in range(0, data.size - rest, 32):
        packet[:] = data[at : at + 32]
        _update(state, packet.view(np.uint64))
    if rest:
        few, left, right = rest % 4, np.uint64(rest), np.uint64(32 - rest)
        packet[:] = 0
        packet[: rest - few] = data[data.size - rest : data.size - few]
        if rest >= 16:
            packet[28:] = data[data.size - 4 :]
        elif few:
            packet[16], packet[17], packet[18] = data[-few], data[few // 2 - few], data[-1]
        for k in range(4):
            state[0, k] += (left << _HALF) + left
            low, high = state[1, k] & _LOW, state[1, k] >> _HALF
            state[1, k] = ((high << left | high >> right) & _LOW) << _HALF | (low << left | low >> right) & _LOW
        _update(state, packet.view(np.uint64))
    for _ in range(4):
        turned = np.roll(state[0], 2)
        _update(state, turned >> _HALF | turned << _HALF)
    return np.uint64(state[:, 0].sum())


@compiled
def _update(state: Words, words: Words) -> None:
    """Mix four words into the state."""
    for k in range(4):
        state[1, k] += state[2, k] + words[k]
        state[2, k] ^= (state[1, k] & _LOW) * (state[0, k] >> _HALF)
        state[0, k] += state[3, k]
        state[3, k] ^= (state[0, k] & _LOW) * (state[1, k] >> _HALF)
    for to in range(2):
        mixed = state[1 - to].copy().view(np.uint8)
        for k in range(4):
            word = np.uint64(0)
            for byte in range(8):
                word |= np.uint64(mixed[k // 2 * 16 + _ZIPPER[k % 2 * 8 + byte]]) << np.uint64(8 * byte)
            state[to, k] += word
