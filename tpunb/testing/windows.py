"""The bytes of a window, spelled out: an XSpace as a profiler service answers it, without any framework's protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_STEP_NUM = 1  # the id of the statistic in its plane


def toy_window(
    start_ns: int,
    stop_ns: int,
    steps: Sequence[tuple[int, int, int]] = (),
    ops: Sequence[tuple[str, int, int]] = (),
    *,
    host: str = "toy",
) -> bytes:
    """Return the XSpace of a window that a profiler watched from `start_ns` to `stop_ns`.

    Steps are marked ``train`` on the host's line ``python``, operations run on its line ``worker``, and the plane
    ``Task Environment`` says when the profiler watched, as TensorFlow's and JAX's do.

    Parameters
    ----------
    start_ns
        Nanoseconds since 1970.
    stop_ns
        The same.
    steps
        (number, begin, end) each, in nanoseconds since 1970.
    ops
        (name, begin, end) each, in nanoseconds since 1970.
    host
        Its name.

    >>> from tpunb.io import xplane
    >>> events, facts = xplane.read(toy_window(5_000, 9_000, [(7, 6_000, 8_000)]), source="toy")
    >>> events.select("name", "step_num", "start_ps", "dur_ps").row(0), facts.stop_ns
    (('train', 7, 1000000, 2000000), 9000)
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(["train", *(name for name, *_ in ops)]), start=1)}
    marks = (
        _event(names["train"], begin - start_ns, end - begin, _stat(_STEP_NUM, 4, number))
        for number, begin, end in steps
    )
    calls = (_event(names[name], begin - start_ns, end - begin) for name, begin, end in ops)
    cpu = _plane("/host:CPU", [_line(1, "python", marks), _line(2, "worker", calls)], names, {"step_num": _STEP_NUM})
    return cpu + _task(start_ns, stop_ns) + _field(4, host.encode())


def crowded_window(start_ns: int, stop_ns: int, events: int) -> bytes:
    """Return the XSpace of a window with very many events of one name, back to back and all of one length."""
    dur_ps = max(1, (stop_ns - start_ns) * 1000 // max(1, events))
    rows = np.zeros((events, 22), np.uint8)  # all are spelled alike, so that numpy can write a million of them
    rows[:, :5] = list(b"\x22\x14\x08\x01\x10")  # an event of 20 bytes: its name is 1; its offset comes next
    rows[:, 5:13] = _wide(np.arange(events, dtype=np.uint64) * np.uint64(dur_ps))
    rows[:, 13] = 0x18  # its duration
    rows[:, 14:] = _wide(np.full(events, dur_ps, np.uint64))
    line = _field(1, 1) + _field(2, b"worker") + rows.tobytes()
    return _plane("/host:CPU", [line], {"Crowd": 1}) + _task(start_ns, stop_ns) + _field(4, b"toy")


def _wide(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return numbers below 2**56 as varints of eight bytes each, the last ones maybe empty."""
    groups = values[:, None] >> np.arange(0, 56, 7, dtype=np.uint64) & np.uint64(127)
    groups[:, :-1] |= np.uint64(128)
    return groups.astype(np.uint8)


def _plane(name: str, lines: Iterable[bytes], events: dict[str, int], stats: dict[str, int] | None = None) -> bytes:
    """Return a plane of the XSpace; names of events and statistics by their ids."""
    content = [_field(2, name.encode()), *(_field(3, line) for line in lines)]
    for field, names in ((4, events), (5, stats or {})):
        content += [_field(field, _entry(number, name)) for name, number in names.items()]
    return _field(1, b"".join(content))


def _entry(number: int, name: str) -> bytes:
    """Return an entry of a plane's map from ids to names."""
    return _field(1, number) + _field(2, _field(1, number) + _field(2, name.encode()))


def _task(start_ns: int, stop_ns: int) -> bytes:
    """Return the plane that says when the profiler watched."""
    names = {"profile_start_time": 1, "profile_stop_time": 2}
    told = (_field(6, _stat(number, 3, time)) for number, time in enumerate((start_ns, stop_ns), start=1))
    entries = (_field(5, _entry(number, name)) for name, number in names.items())
    return _field(1, _field(2, b"Task Environment") + b"".join([*entries, *told]))


def _line(number: int, name: str, events: Iterable[bytes]) -> bytes:
    return _field(1, number) + _field(2, name.encode()) + b"".join(_field(4, event) for event in events)


def _event(name: int, offset_ns: int, dur_ns: int, stat: bytes | None = None) -> bytes:
    event = _field(1, name) + _field(2, offset_ns * 1000) + _field(3, dur_ns * 1000)
    return event if stat is None else event + _field(4, stat)


def _stat(name: int, kind: int, value: int) -> bytes:
    """Return a statistic of a whole number: `kind` is 3 without a sign, 4 with one."""
    return _field(1, name) + _field(kind, value)


def _field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protobuf message: a whole number, or bytes with their length before them."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # a number below 0 is its two's complement
    spelled = bytearray()
    while value > 127:
        spelled.append(value & 127 | 128)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)
