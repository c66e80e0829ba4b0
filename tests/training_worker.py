"""A worker that trains on and on, as a profiler service shows it."""

import time

from tpunb.testing import toy_window

STEP_NS = 10_000_000


def worker(name, began_ns):
    """Return what a `FakeProfiler` answers for such a worker: its steps last 10 ms each, and run one operation."""

    def window(seconds):
        now = time.time_ns()
        start = now - round(seconds * 1e9)
        first, last = (start - began_ns) // STEP_NS + 1, (now - began_ns) // STEP_NS
        steps = [(n, began_ns + n * STEP_NS, began_ns + (n + 1) * STEP_NS) for n in range(max(first, 0), last)]
        ops = [(f"op_of_{name}", begin + 1000, end - 1000) for _, begin, end in steps]
        return toy_window(start, now, steps, ops, host=name)

    return window
