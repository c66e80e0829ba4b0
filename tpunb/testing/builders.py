"""Builders of small steps, events and windows whose content is spelled out: no TPU, no network, no randomness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.frames import Steps

_MS = 1_000_000_000  # picoseconds
_US = 1_000_000
_OPS = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}
_STEP_NUM = 1  # id of the statistic in its plane


def toy_steps(pattern: str = "aaabbb", *, host: str = "toy", traced: str | None = None) -> Steps:
    """Return one step per letter, 1 ms apart; each letter runs operations of its own.

    Letter ``a`` runs device ops ``a0 a1 a2`` and host op ``a_host`` in 1 ms, ``b`` its ops in 2 ms, and so on. Steps of
    a letter are identical. The device is busy for half of each step.

    Parameters
    ----------
    pattern
        Letters from a to z, one per step.
    host
        Name of the host.
    traced
        One letter per step: f(ull), p(artial) or n(one); all full by default.

    >>> toy_steps("aab").frame["dur_ps"].to_list()
    [1000000000, 1000000000, 2000000000]
    """
    words = {"f": "full", "p": "partial", "n": "none"}
    traces = [words[letter] for letter in traced or "f" * len(pattern)]
    durs = [_MS * (ord(letter) - ord("a") + 1) for letter in pattern]
    busy = [dur // 2 if trace == "full" else None for dur, trace in zip(durs, traces, strict=True)]
    frame = _frame(host, [sum(durs[:i]) for i in range(len(durs))], durs, busy, traces)
    rows = [
        row
        for step, (letter, dur) in enumerate(zip(pattern, durs, strict=True))
        if traces[step] != "none"
        for row in [
            *((host, step, f"{letter}{i}", "device", i + 1, dur // 8 * (i + 1), dur // 12 * (i + 1)) for i in range(3)),
            (host, step, f"{letter}_host", "host", 2, dur // 4, dur // 4),
        ]
    ]
    devices = frame.filter(pl.col("traced") == "full").select(
        "host", "step", "start_ps", "dur_ps", "device_ps", "idle_ps", device=pl.lit("/device:TOY:0")
    )
    window = {
        "host": host,
        "window": 0,
        "start_ps": 0,
        "dur_ps": sum(durs),
        "latency_ps": sum(durs),
        "bytes": 1000,
        "events": len(rows),
        "steps": traces.count("full"),
    }
    windows = pl.DataFrame([window], schema=schema.WINDOWS)  # the other columns are null
    return Steps(frame, pl.DataFrame(rows, schema=_OPS, orient="row"), devices, windows, name="toy")


_LAYERS = (  # layer, framework op, instruction, kernel, category, microseconds, GFLOP, MB, shape
    ("conv", "jvp(conv)/conv", "cudnn-conv.1", "sm90_xmma_fprop", "custom-call", 400, 300, 120, "bf16[256,56,56,64]"),
    ("conv", "jvp(conv)/transpose", "transpose.3", "transpose_3", "data formatting", 60, 0, 120, "bf16[256,64,56,56]"),
    ("conv", "transpose(jvp(conv))", "cudnn-bw.2", "sm90_xmma_wgrad", "custom-call", 700, 300, 150, "bf16[3,3,64]"),
    ("dense", "jvp(dense)/dot", "gemm.1", "nvjet_hsh", "custom-call", 120, 80, 30, "bf16[256,4096]"),
    ("dense", "transpose(jvp(dense))", "gemm.2", "nvjet_hsh", "custom-call", 260, 160, 60, "bf16[4096,4096]"),
    ("norm", "jvp(norm)/add", "add_fusion", "loop_add_fusion", "loop fusion", 100, 0.05, 250, "bf16[256,4096]"),
    (None, "sgd/mul", "multiply_fusion", "loop_multiply_fusion", "loop fusion", 80, 0.1, 200, "f32[4096,4096]"),
    (None, None, None, "MemcpyH2D", "host to device copy", 50, None, None, None),
)  # fmt: skip


def toy_layers(steps: int = 3) -> Steps:
    """Return equal steps of 2 ms of a small network on an H100, with the work of each instruction in `layers`.

    >>> toy_layers().layers.select("layer", "hlo_op", "flops").row(0)
    ('conv', 'cudnn-conv.1', 300000000000.0)
    """
    toy = toy_steps("b" * steps)
    names = ("layer", "tf_op", "hlo_op", "kernel", "category", "self_ps", "flops", "bytes", "shape")
    base: dict[str, object] = {"host": toy.frame["host"][0], "side": "device", "count": 1}
    rows = []
    for step in range(steps):
        for *texts, time, work, moved, shape in _LAYERS:
            values = (
                *texts,
                time * _US,
                None if work is None else work * 1e9,
                None if moved is None else moved * 1e6,
                shape,
            )
            row = base | dict(zip(names, values, strict=True)) | {"step": step, "op": texts[2] or texts[3]}
            program = {"program": 1, "flops_source": "program"} if texts[2] else {}
            rows.append(row | program | {"total_ps": time * _US})
    layers = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS} for row in rows], schema=schema.LAYERS)
    metadata = {"device kind": "NVIDIA H100 80GB HBM3", "batch": "256"}
    return replace(toy, read_layers=lambda: layers, metadata=metadata, name="toy network")


def spelled_steps(*self_times: tuple[Mapping[str, int], Mapping[str, int]], host: str = "toy") -> Steps:
    """Return steps of 10 ps, each from two mappings of op name to self time: on the device and on the host.

    >>> spelled_steps(({"matmul": 7}, {"feed": 2}), ({}, {})).ops["self_ps"].to_list()
    [7, 2]
    """
    n = len(self_times)
    frame = _frame(host, range(0, 10 * n, 10), [10] * n, [5] * n, ["full"] * n)
    rows = [
        (host, step, op, side, 1, self_ps, self_ps)
        for step, sides in enumerate(self_times)
        for side, ops in zip(("device", "host"), sides, strict=True)
        for op, self_ps in ops.items()
    ]
    return Steps(frame, pl.DataFrame(rows, schema=_OPS, orient="row"))


def _frame(
    host: str, starts: Sequence[int], durs: Sequence[int], busy: Sequence[int | None], traces: Sequence[str]
) -> pl.DataFrame:
    """Return the frame of training steps numbered from 0, as long idle on the device as busy."""
    columns = {
        "host": [host] * len(durs),
        "step": range(len(durs)),
        "kind": ["train"] * len(durs),
        "start_ps": starts,
        "dur_ps": durs,
        "device_ps": busy,
        "idle_ps": busy,
        "traced": traces,
    }
    return pl.DataFrame(columns, schema_overrides={name: schema.STEPS[name] for name in ("device_ps", "idle_ps")})


def toy_events(
    *rows: tuple[str, str, str, int, int] | tuple[str, str, str, int, int, int], host: str = "toy"
) -> pl.DataFrame:
    """Return events from (plane, line, name, start, duration) in microseconds; a sixth value is the step number.

    >>> toy_events(("/host:CPU", "python", "train", 0, 10, 7)).select("name", "step_num", "dur_ps").row(0)
    ('train', 7, 10000000)
    """
    lanes: dict[tuple[str, str], int] = {}
    spelled = [
        (
            host,
            plane,
            line,
            lanes.setdefault((plane, line), len(lanes)),
            name,
            *number,
            start * _US,
            dur * _US,
        )
        for plane, line, name, start, dur, *number in (row if len(row) == 6 else (*row, None) for row in rows)
    ]
    columns = ["host", "plane", "line", "lane", "name", "step_num", "start_ps", "dur_ps"]
    frame = pl.DataFrame(spelled, schema={name: schema.EVENTS[name] for name in columns}, orient="row")
    return schema.check(frame.with_columns(tf_op=None, hlo_op=None), schema.EVENTS, "events")


def toy_window(
    start_ns: int,
    stop_ns: int,
    steps: Sequence[tuple[int, int, int]] = (),
    ops: Sequence[tuple[str, int, int]] = (),
    *,
    host: str = "toy",
) -> bytes:
    """Return the XSpace that a profiler records from `start_ns` to `stop_ns`, in protobuf's wire format.

    Steps are annotated ``train`` on the host's line ``python``, operations run on its line ``worker``, and the plane
    ``Task Environment`` holds the start and stop time, as in the windows of TensorFlow and JAX.

    Parameters
    ----------
    start_ns, stop_ns
        Start and end of the window; all times are nanoseconds since 1970.
    steps
        (number, begin, end) of each step.
    ops
        (name, begin, end) of each operation.
    host
        Name of the host.

    >>> from tpunb.io import xplane
    >>> events, facts = xplane.read(toy_window(5_000, 9_000, [(7, 6_000, 8_000)]), source="toy")
    >>> events.select("name", "step_num", "start_ps", "dur_ps").row(0), facts.stop_ns
    (('train', 7, 1000000, 2000000), 9000)
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(["train", *(name for name, *_ in ops)]), start=1)}
    annotations = (
        _event(names["train"], begin - start_ns, end - begin, _stat(_STEP_NUM, 4, number))
        for number, begin, end in steps
    )
    calls = (_event(names[name], begin - start_ns, end - begin) for name, begin, end in ops)
    cpu = plane(
        "/host:CPU", [_line(1, "python", annotations), _line(2, "worker", calls)], names, {"step_num": _STEP_NUM}
    )
    return xspace(cpu, start_ns, stop_ns, host)


def crowded_window(start_ns: int, stop_ns: int, events: int) -> bytes:
    """Return the XSpace of a window with many back-to-back events of one name and one length."""
    dur_ps = max(1, (stop_ns - start_ns) * 1000 // max(1, events))
    rows = np.zeros((events, 22), np.uint8)  # all of one size, so that numpy can write a million of them
    rows[:, :5] = list(b"\x22\x14\x08\x01\x10")  # an event of 20 bytes, name id 1, then its offset
    rows[:, 5:13] = varints(np.arange(events, dtype=np.uint64) * np.uint64(dur_ps))
    rows[:, 13] = 0x18  # its duration
    rows[:, 14:] = varints(np.full(events, dur_ps, np.uint64))
    line = field(1, 1) + field(2, b"worker") + rows.tobytes()
    return xspace(plane("/host:CPU", [line], {"Crowd": 1}, {}), start_ns, stop_ns, "toy")


def xspace(planes: bytes, start_ns: int, stop_ns: int, host: str) -> bytes:
    """Return the XSpace of a window: its planes, its start and stop time, and the name of its host."""
    return planes + _task(start_ns, stop_ns) + field(4, host.encode())


def varints(values: npt.NDArray[np.uint64], width: int = 8) -> npt.NDArray[np.uint8]:
    """Return numbers below 2 ** (7 * width) as varints padded to `width` bytes, a row each.

    >>> varints(np.array([300], np.uint64), 3).tobytes().hex()
    'ac8200'
    """
    groups = values[:, None] >> np.arange(0, 7 * width, 7, dtype=np.uint64) & np.uint64(127)
    groups[:, :-1] |= np.uint64(128)
    return groups.astype(np.uint8)


def plane(
    name: str, lines: Iterable[bytes], events: Mapping[str, int], stats: Mapping[str, int], values: bytes = b""
) -> bytes:
    """Return a plane of the XSpace; `events` and `stats` map names to ids, `values` are its statistics."""
    content = [field(2, name.encode()), *(field(3, line) for line in lines)]
    for of, names in ((4, events), (5, stats)):
        content += [field(of, _entry(number, name)) for name, number in names.items()]
    return field(1, b"".join(content) + values)


def _entry(number: int, name: str) -> bytes:
    """Return an entry of a plane's map from id to name."""
    return field(1, number) + field(2, field(1, number) + field(2, name.encode()))


def _task(start_ns: int, stop_ns: int) -> bytes:
    """Return the plane that holds the start and stop time of the window."""
    names = {"profile_start_time": 1, "profile_stop_time": 2}
    times = (field(6, _stat(number, 3, time)) for number, time in enumerate((start_ns, stop_ns), start=1))
    return plane("Task Environment", [], {}, names, b"".join(times))


def _line(number: int, name: str, events: Iterable[bytes]) -> bytes:
    return field(1, number) + field(2, name.encode()) + b"".join(field(4, event) for event in events)


def _event(name: int, offset_ns: int, dur_ns: int, stat: bytes | None = None) -> bytes:
    event = field(1, name) + field(2, offset_ns * 1000) + field(3, dur_ns * 1000)
    return event if stat is None else event + field(4, stat)


def _stat(name: int, kind: int, value: int) -> bytes:
    """Return an integer statistic; `kind` is 3 for unsigned, 4 for signed."""
    return field(1, name) + field(kind, value)


def field(number: int, value: int | bytes) -> bytes:
    """Return a protobuf field: an integer, or bytes with their length before them.

    >>> field(1, 150).hex(), field(2, b"abc").hex()
    ('089601', '1203616263')
    """
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # two's complement
    spelled = bytearray()
    while value > 127:
        spelled.append(value & 127 | 128)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)
