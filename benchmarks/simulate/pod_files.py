"""Files of a simulated pod: an XPlane of each host as the profiler of a TPU writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulate.pod import Floats, Pod, before, launched, slow_time
from tpunb.testing.builders import field, plane, varints, xspace

Ints = npt.NDArray[np.int64]

_START_NS, _DAY_NS = 1_700_000_000_000_000_000, 86_400 * 10**9
_LEAD_PS = 5_000_000_000  # from the start of tracing to the first step
_NOISE = 0.01  # deviation of one run of an operation
_KEY = {"step_num": 1, "run_id": 2, "device_offset_ps": 3, "device_duration_ps": 4, "hlo_category": 5}
_CALLS = {"train": "step_num", "IteratorGetNext": "input", "backend_compile": "compile"}


def write(pod: Pod, folder: Path) -> None:
    """Write an XPlane of each host into a folder, with the losses among the faults."""
    folder.mkdir(parents=True, exist_ok=True)
    losses, ends = {host: fault.kind for fault in pod.faults for host in fault.hosts}, pod.ends()
    for number, name in enumerate(pod.hosts):
        loss = losses.get(number)
        data = b"" if loss in ("missing", "empty") else _xspace(pod, number, ends, another=loss == "other run")
        data = np.random.default_rng(number).bytes(len(data)) if loss == "garbage" else data
        data = data[: len(data) // 2] if loss == "cut" else data
        for copy in [] if loss == "missing" else ["", ".copy"][: 1 + (loss == "doubled")]:
            (folder / f"{name}{copy}.xplane.pb").write_bytes(data)


def local(pod: Pod, host: int | slice, time: Floats) -> Ints:
    """Return what the clock of a host shows at true times, in picoseconds since its profiler started."""
    axes = (-1, *[1] * (time.ndim - 1))
    rate, offset = ((values[host]).reshape(axes) for values in (pod.drift_ppm, pod.offset_ps))
    return np.rint(time * (1 + rate * 1e-6) + offset + _LEAD_PS).astype(np.int64)


def _xspace(pod: Pod, host: int, ends: Floats, *, another: bool) -> bytes:
    """Return the XPlane of a host; of `another` run, a day later and a million steps on."""
    order, starts, stops = _runs(pod, host, ends)
    steps, begins = len(ends), np.append(0.0, ends[:-1, -1])
    each, names = np.arange(steps) + another * 1_000_000, ["name", "category"]
    frames = (pod.program.runs.select(names), pod.program.collectives.select(names))
    entries = [_entry(*row) for frame in frames for row in frame.rows()]
    space = b""
    for chip, pair in enumerate(zip(starts, stops, strict=True)):
        start, stop = (local(pod, host, times) for times in pair)
        at, dur, module = start.ravel(), (stop - start).ravel(), np.full(steps, len(entries) + 1)
        times = {"device_offset_ps": at, "device_duration_ps": dur}
        lines = _line(3, "XLA Ops", np.tile(order + 1, steps), at, dur, times)
        lines += _line(2, "XLA Modules", module, start[:, 0], stop[:, -1] - start[:, 0], {"run_id": each})
        space += _xplane(f"/device:TPU:{chip}", lines, [*entries, _entry("jit_train_step(1)", None)])
    lines, spans = b"", {"step_num": (begins, ends[:, -1] - begins)}
    spans |= {"input": (begins, pod.waits["input"][host])}
    spans |= {"compile": (begins + pod.waits["input"][host], pod.waits["compile"][host])}
    for key, (since, lasts) in enumerate(spans.values(), 1):
        ran = lasts > 0
        at = local(pod, host, since[ran])
        facts = {"step_num": each} if key == 1 else {}
        lines += _line(key, "python", np.full(at.size, key), at, local(pod, host, (since + lasts)[ran]) - at - 1, facts)
    space += _xplane("/host:CPU", lines, [_entry(name, None) for name in _CALLS])
    start_ns = _START_NS + another * _DAY_NS
    stop_ns = start_ns + int(local(pod, host, ends).max() + _LEAD_PS) // 1000
    return xspace(space, start_ns, stop_ns, pod.hosts[host])


def _runs(pod: Pod, host: int, ends: Floats) -> tuple[Ints, Floats, Floats]:
    """Return number, start and end of runs and collectives in order; times have the shape (chips, steps, runs)."""
    segment = pod.program.runs["segment"].to_numpy()
    chips, steps, n = pod.arrivals.shape[1:]
    since, first = before(ends), launched(pod, host)
    noise = 1 + np.random.default_rng(host).normal(0, _NOISE, (chips, steps, len(segment)))
    share, of_segment = pod.program.runs["dur_ps"].to_numpy() * noise, (segment[:, None] == np.arange(n)).astype(float)
    slow = slow_time(pod, host)
    rest = (pod.arrivals[host] - first - slow @ of_segment) / np.maximum(share @ of_segment, 1)
    dur = share * rest[..., segment] + slow
    total = dur @ of_segment
    start = (since + first - total.cumsum(axis=2) + total)[..., segment] + dur.cumsum(axis=2) - dur
    arrived = since + pod.arrivals[host]
    stops = [start + dur, np.broadcast_to(ends + pod.late_ends[host], arrived.shape)]
    order = np.argsort([*segment, *range(n)], kind="stable")
    starts = np.concatenate([start, arrived], axis=2)
    return order, starts[..., order], np.concatenate(stops, axis=2)[..., order]


def _entry(name: str, category: str | None) -> bytes:
    """Return the metadata of an event, without its id."""
    if category is None:
        return field(2, name.encode())
    full = f"%{name} = f32[] {category.replace(' ', '-')}(), replica_groups={{}}"
    stat = field(1, _KEY["hlo_category"]) + field(5, category.encode())
    return field(2, full.encode()) + field(4, name.encode()) + field(5, stat)


def _xplane(name: str, lines: bytes, entries: list[bytes]) -> bytes:
    """Return a plane whose events have the numbers of `entries`, from 1."""
    numbered = ((field(1, key), field(2, field(1, key) + entry)) for key, entry in enumerate(entries, 1))
    return plane(name, [], {}, _KEY, lines + b"".join(field(4, key + value) for key, value in numbered))


def _line(number: int, name: str, ids: Ints, start: Ints, dur: Ints, stats: Mapping[str, Ints]) -> bytes:
    """Return a line of a plane: its events in columns."""
    parts: list[tuple[bytes, Ints, int]] = [(b"\x08", ids, 2), (b"\x10", start, 8), (b"\x18", dur, 8)]
    parts += [(bytes([0x22, 11, 8, _KEY[stat], 0x18]), values, 8) for stat, values in stats.items()]
    head = bytes([0x22, sum(len(tag) + width for tag, _, width in parts)])
    columns = [np.tile(np.frombuffer(head, np.uint8), (len(ids), 1))]
    for tag, values, width in parts:
        columns += [np.tile(np.frombuffer(tag, np.uint8), (len(ids), 1)), varints(values.astype(np.uint64), width)]
    return field(3, field(1, number) + field(2, name.encode()) + np.hstack(columns).tobytes())
