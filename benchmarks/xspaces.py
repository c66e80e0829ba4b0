"""XSpaces to load: a synthetic one of any size, written in seconds, and one recorded of a real training.

NumPy writes the events, a column of bytes at a time: the protobuf library would take minutes for a million messages.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

DEVICES, THREADS, OPS, OPS_A_STEP = 8, 16, 3000, 1000
_STEP_PS = 25_000_000_000
_NAMES = [
    *("device_offset_ps", "device_duration_ps", "bytes_accessed", "occupancy", "delta", "tf_op", "hlo_category"),
    *("flops", "step_num", "group_id", "run_id", "device_ordinal", "_pt", "_p", "_ct", "_c", "id", "iter_num"),
    "deduplicated_name",
]
_ID = {name: number for number, name in enumerate(_NAMES, 1)}
_WORDS = range(100, 400)  # ids of strings in statistics
_DOUBLE, _UINT64, _INT64, _REF = 0x11, 0x18, 0x20, 0x38
_KINDS = ["fusion", "convolution", "copy", "all-reduce", "dot", "reshape", "infeed", "outfeed", "transpose", "reduce"]
_HOST_OPS = ["Iterator::Prefetch", "Iterator::ParallelMapV2", "ThreadpoolListener::Record", "layer_{0}/MatMul:MatMul"]

Numbers = npt.NDArray[np.int64] | int


def xplane_pb2() -> ModuleType:
    """Return the protobuf classes of XPlane without importing TensorFlow."""
    name = "tensorflow.tsl.profiler.protobuf.xplane_pb2"
    root = importlib.util.find_spec("tensorflow")
    if root is None or root.submodule_search_locations is None:
        sys.exit("this benchmark reads XPlanes by TensorFlow's protobuf classes: pip install tensorflow")
    file = Path(root.submodule_search_locations[0], *name.split(".")[1:]).with_suffix(".py")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Bytes of n messages: the `used` of each row of `data`."""

    data: npt.NDArray[np.uint8]
    used: npt.NDArray[np.bool_]

    def __bytes__(self) -> bytes:
        return self.data[self.used].tobytes()


def join(*parts: Ragged) -> Ragged:
    """Return the concatenated parts of each row."""
    return Ragged(np.hstack([part.data for part in parts]), np.hstack([part.used for part in parts]))


def byte(value: Numbers, n: int) -> Ragged:
    """Return one byte per row."""
    return Ragged(np.full((n, 1), np.reshape(value, (-1, 1)), np.uint8), np.ones((n, 1), bool))


def varint(values: npt.NDArray[np.int64]) -> Ragged:
    """Return numbers as varints; negative ones take ten bytes.

    >>> bytes(varint(np.array([1, 300]))).hex()
    '01ac02'
    """
    groups = values.astype(np.uint64)[:, None] >> (np.uint64(7) * np.arange(10, dtype=np.uint64))
    used = groups != 0
    used[:, 0] = True
    width = int(used.any(axis=0).sum())
    more = np.hstack([used[:, 1:], np.zeros((len(used), 1), bool)])
    return Ragged(((groups & 0x7F) | more * np.uint64(0x80)).astype(np.uint8)[:, :width], used[:, :width])


def message(tag: int, content: Ragged) -> Ragged:
    """Return sub-messages: tag, length, content."""
    n = len(content.data)
    return join(byte(tag, n), varint(content.used.sum(axis=1)), content)


def stat(
    key: Numbers, tag: Numbers, value: npt.NDArray[np.int64], where: npt.NDArray[np.bool_] | None = None
) -> Ragged:
    """Return a statistic per event: `key` < 128, `tag` of its type, `value` (the bits of a double)."""
    n = value.size
    payload = varint(value)
    double = np.broadcast_to(np.asarray(tag) == _DOUBLE, n)
    if double.any():
        room = ((0, 0), (0, max(0, 8 - payload.data.shape[1])))
        payload = Ragged(np.pad(payload.data, room), np.pad(payload.used, room))
        payload.data[double, :8] = value[double, None].view(np.uint8)
        payload.used[double] = np.arange(payload.data.shape[1]) < 8
    whole = message(0x22, join(byte(0x08, n), byte(key, n), byte(tag, n), payload))
    return whole if where is None else Ragged(whole.data, whole.used & where[:, None])


def _some_stats(rng: np.random.Generator, n: int, names: list[str]) -> list[Ragged]:
    """Return 0 to 4 statistics per event: 40 bits, a double, a signed number, a reference."""
    count, turn = rng.integers(0, 5, n), rng.integers(0, 4, n)
    small, reals = rng.integers(0, 1 << 40, n), rng.random(n).view(np.int64)
    signed = np.where(rng.random(n) < 0.05, -small, small >> 20)
    values = np.stack([small, reals, signed, rng.integers(_WORDS[0], _WORDS[-1] + 1, n)])
    keys, tags = np.array([_ID[name] for name in names]), np.array([_UINT64, _DOUBLE, _INT64, _REF])
    kinds = [(turn + slot) % 4 for slot in range(4)]
    return [stat(keys[kind], tags[kind], values[kind, np.arange(n)], count > slot) for slot, kind in enumerate(kinds)]


def _line(name: str, number: int, columns: tuple[Numbers, Numbers, Numbers], stats: list[Ragged]) -> bytes:
    """Return a line as a field of its plane, from metadata ids, offsets, durations and statistics of its events."""
    n = stats[0].data.shape[0]
    parts: list[Ragged] = []
    for tag, column in zip((0x08, 0x10, 0x18), columns, strict=True):
        parts += [byte(tag, n), varint(np.broadcast_to(np.asarray(column, np.int64), n))]
    head = xplane_pb2().XLine(id=number, name=name, timestamp_ns=1_000_000).SerializeToString()
    content = head + bytes(message(0x22, join(*parts, *stats)))
    return b"\x1a" + bytes(varint(np.array([len(content)]))) + content


def _plane(name: str, number: int, names: list[tuple[str, str]], ops: int = 0) -> bytes:
    """Return a plane without lines from (full, short) names of events; the first `ops` are HLO instructions."""
    plane = xplane_pb2().XPlane(id=number, name=name)
    for key, word in [*((key, word) for word, key in _ID.items()), *((k, f"jit(f)/layer_{k}/dot:") for k in _WORDS)]:
        plane.stat_metadata[key].id, plane.stat_metadata[key].name = key, word
    for key, (full, short) in enumerate(names, 1):
        entry = plane.event_metadata[key]
        entry.id, entry.name, entry.display_name = key, full, short
        if key <= ops:
            entry.stats.add(metadata_id=_ID["hlo_category"], str_value=short.partition(".")[0])
            entry.stats.add(metadata_id=_ID["flops"], uint64_value=key * 1_000_003)
            entry.stats.add(metadata_id=_ID["tf_op"], str_value=f"jit(f)/jit(main)/layer_{key}/dot_general:")
    return bytes(plane.SerializeToString())


def _device(rng: np.random.Generator, number: int, steps: int, ops: int) -> bytes:
    """Return the plane of a TPU, with the lines Steps, XLA Modules and XLA Ops."""
    kinds = [_KINDS[op % len(_KINDS)] for op in range(ops)]
    shape = "bf16[1024,{0}]{{1,0:T(8,128)(2,1)}}"
    text = (
        f"%{{1}}.{{0}} = {shape} {{1}}({shape} %p.{{0}}, f32[1024]{{{{0}}}} %q.{{0}}), kind=kOutput, calls=%fused.{{0}}"
    )
    names = [(text.format(op, kind), f"{kind}.{op}") for op, kind in enumerate(kinds)]
    names += [("jit_train_step(9646411105960254074)", ""), *((str(step), "") for step in range(steps))]
    each, n = np.arange(steps), steps * OPS_A_STEP
    begin = each * _STEP_PS + 2_000_000_000
    dur = rng.integers(500_000, 38_000_000, n)
    ends = (dur + rng.integers(1_000, 50_000, n)).reshape(steps, OPS_A_STEP).cumsum(axis=1)
    start = (begin[:, None] + ends).ravel() - dur
    op = (each[:, None] * 3 // steps * OPS_A_STEP + np.arange(OPS_A_STEP)).ravel() % ops + 1
    times = [stat(_ID["device_offset_ps"], _UINT64, start + 10**9), stat(_ID["device_duration_ps"], _UINT64, dur)]
    ran = [stat(_ID["run_id"], _UINT64, each), stat(_ID["_ct"], _INT64, np.full(steps, 12))]
    ran.append(stat(_ID["_c"], _UINT64, each * DEVICES + number))
    lasts = ends[:, -1]
    return (
        _plane(f"/device:TPU:{number}", number + 2, names, ops)
        + _line("Steps", 1, (ops + 2 + each, begin, lasts), [stat(_ID["group_id"], _INT64, each)])
        + _line("XLA Modules", 2, (ops + 1, begin, lasts), ran)
        + _line("XLA Ops", 3, (op, start, dur), times + _some_stats(rng, n, [*_NAMES[2:5], "deduplicated_name"]))
    )


def _host(rng: np.random.Generator, steps: int, n: int) -> bytes:
    """Return the plane of the host: step annotations, launches on the devices, and `n` events of 16 threads."""
    texts = [_HOST_OPS[k % 4].format(k) + ("" if k % 4 == 3 else f"#{k}") for k in range(800)]
    plane = _plane("/host:CPU", 0, [*((text, "") for text in texts), ("train", ""), ("DoEnqueueProgram", "")])
    each = np.arange(steps)
    plane += _line("main", 1, (801, each * _STEP_PS, _STEP_PS - 1_000), [stat(_ID["step_num"], _INT64, each)])
    run, ordinal = np.repeat(each, DEVICES), np.tile(np.arange(DEVICES), steps)
    launch = [stat(_ID["run_id"], _INT64, run), stat(_ID["device_ordinal"], _INT64, ordinal)]
    launch += [stat(_ID["_pt"], _INT64, np.full(run.size, 12)), stat(_ID["_p"], _UINT64, run * DEVICES + ordinal)]
    at = run * _STEP_PS + 1_000_000 * (ordinal + 1)
    plane += _line("tpu-launch", 2, (802, at, 900_000), launch)
    for thread, rows in enumerate(np.array_split(np.arange(n), THREADS)):
        i = np.arange(rows.size)
        slot = max(_STEP_PS * steps // max(rows.size, 1), 2)
        dur = np.where(i % 8 == 0, slot * 8 - slot // 8, slot * 3 // 4)  # one of eight contains the others
        flows = i % 16 < 2  # sends to the next thread, or receives
        sends, ident = i % 2 == 0, (thread + i % 2) % THREADS << 32 | i // 2
        keys = [np.where(flows, np.where(sends, _ID[s], _ID[r]), _ID[x]) for s, r, x in _FIXED]
        fixed = [stat(keys[0], _INT64, np.where(flows, 15, i)), stat(keys[1], _UINT64, ident)]
        tail = _some_stats(rng, rows.size, ["id", "occupancy", "delta", "tf_op"])
        columns = (rng.integers(1, 801, rows.size), i * slot, dur)
        plane += _line(f"tf_Compute/{thread}", (1 << 31) + thread, columns, fixed + tail) if rows.size else b""
    return plane


_FIXED = [("_pt", "_ct", "iter_num"), ("_p", "_c", "group_id")]


def made_up(events: int, host: str = "pod-0") -> bytes:
    """Return the XSpace of a host of a TPU pod: 8 chips and 16 threads, 2 to 6 statistics on most events.

    Parameters
    ----------
    events
        How many, 10,000 or more: one training step for each 10,000.
    host
        Name of the host.
    """
    rng = np.random.default_rng(0)
    steps = events // (10 * OPS_A_STEP)
    planes = [_device(rng, number, steps, min(OPS, 30 * steps)) for number in range(DEVICES)]
    planes.append(_host(rng, steps, events - steps * (DEVICES * (OPS_A_STEP + 3) + 1)))
    top = xplane_pb2().XSpace(hostnames=[host]).SerializeToString()
    return bytes(top) + b"".join(b"\x0a" + bytes(varint(np.array([len(plane)]))) + plane for plane in planes)


def recorded(folder: Path, steps: int) -> Path:
    """Record a training in Keras with tf.data on the CPU, about 1600 events per step; return the XSpace's path."""
    import tensorflow as tf

    def image(seed):
        return tf.random.stateless_uniform((16, 16, 3), [seed, 1]), seed % 10

    data = tf.data.Dataset.range(1 << 20).map(image, num_parallel_calls=2).batch(8).prefetch(2)
    layers = [
        layer for _ in range(8) for layer in (tf.keras.layers.Conv2D(4, 3, padding="same"), tf.keras.layers.ReLU())
    ]
    model = tf.keras.Sequential(
        [tf.keras.Input((16, 16, 3)), *layers, tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    batches = iter(data)
    model.train_on_batch(*next(batches))  # compiles
    tf.profiler.experimental.start(str(folder), tf.profiler.experimental.ProfilerOptions(host_tracer_level=2))
    for step in range(steps):
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            model.train_on_batch(*next(batches))
    tf.profiler.experimental.stop()
    return next(folder.rglob("*.xplane.pb"))
