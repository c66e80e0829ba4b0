"""A source of windows that needs no framework."""

import threading
import time

from tpunb.testing import toy_window as xspace


class StandIn:
    """A source that watches our marks itself: no framework, no waiting beyond what the test asks for."""

    def __init__(self, *answers):
        self.answers = list(answers)  # what window 0, 1, ... does: None for its best, bytes, or an exception
        self.asked = threading.Semaphore(0)
        self.kinds = []
        self.stopped = threading.Event()

    def __repr__(self):
        return "StandIn()"

    def start(self):
        pass

    def facts(self):
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
        inside = [(n, a, b) for n, a, b in self.kinds if a >= start and b <= stop]
        return answer or xspace(start, stop, inside, self.ops(inside))

    def ops(self, steps):
        return [("MatMul", begin, end) for _, begin, end in steps]

    def stop(self):
        self.stopped.set()

    def step(self, kind, number):
        source = self

        class Annotation:
            def __enter__(self):
                self.begin = time.time_ns()

            def __exit__(self, *_):
                source.kinds.append((number, self.begin, time.time_ns()))

        return Annotation()

    def wait_asked(self, times=1):
        for _ in range(times):
            assert self.asked.acquire(timeout=60)
