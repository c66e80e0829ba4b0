"""A source of windows that needs no framework, and the bytes of a window spelled out."""

import threading
import time

import pytest

pb = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")


def xspace(start_ns, stop_ns, steps=(), ops=()):
    """The bytes of a window: steps are (number, begin_ns, end_ns) and ops (name, begin_ns, end_ns), since the epoch."""
    space = pb.XSpace(hostnames=["stand-in"])
    cpu = space.planes.add(name="/host:CPU")
    cpu.stat_metadata[1].CopyFrom(pb.XStatMetadata(id=1, name="step_num"))
    names = {name: i for i, name in enumerate(["train", *(name for name, *_ in ops)], start=1)}
    for name, i in names.items():
        cpu.event_metadata[i].CopyFrom(pb.XEventMetadata(id=i, name=name))
    python, worker = cpu.lines.add(id=1, name="python"), cpu.lines.add(id=2, name="worker")
    for number, begin, end in steps:
        event = python.events.add(metadata_id=names["train"], offset_ps=(begin - start_ns) * 1000)
        event.duration_ps = (end - begin) * 1000
        event.stats.add(metadata_id=1, int64_value=number)
    for name, begin, end in ops:
        event = worker.events.add(metadata_id=names[name], offset_ps=(begin - start_ns) * 1000)
        event.duration_ps = (end - begin) * 1000
    task = space.planes.add(name="Task Environment")
    for i, (name, value) in enumerate([("profile_start_time", start_ns), ("profile_stop_time", stop_ns)], start=1):
        task.stat_metadata[i].CopyFrom(pb.XStatMetadata(id=i, name=name))
        task.stats.add(metadata_id=i, uint64_value=value)
    return space.SerializeToString()


class StandIn:
    """A source that watches our marks itself: no framework, no waiting beyond what the test asks for."""

    def __init__(self, *answers):
        self.answers = list(answers)  # what window 0, 1, ... does: None for its best, bytes, or an exception
        self.asked = threading.Semaphore(0)
        self.marks = []
        self.stopped = threading.Event()

    def start(self):
        return {"framework": "none", "framework_version": "0", "devices": ["/device:CPU:0"]}

    def window(self, seconds):
        start = time.time_ns()
        self.asked.release()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        self.stopped.wait(seconds)
        self.stopped.clear()
        stop = time.time_ns()
        inside = [(n, a, b) for n, a, b in self.marks if a >= start and b <= stop]
        return answer or xspace(start, stop, inside, [("MatMul", a, b) for _, a, b in inside])

    def stop(self):
        self.stopped.set()

    def step(self, mark, number):
        source = self

        class Annotation:
            def __enter__(self):
                self.begin = time.time_ns()

            def __exit__(self, *_):
                source.marks.append((number, self.begin, time.time_ns()))

        return Annotation()

    def wait_asked(self, times=1):
        for _ in range(times):
            assert self.asked.acquire(timeout=20)
