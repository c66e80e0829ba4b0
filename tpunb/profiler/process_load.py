"""Record the load of the process and the machine, once a second."""

from __future__ import annotations

from collections import deque

import polars as pl
import psutil

from tpunb import schema

_SECOND_NS = 1_000_000_000
_ROWS = 86_400  # at most between two takes


class ProcessLoad:
    """The load of this process and its machine; times are in nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._processors = psutil.cpu_count() or 1
        self._sampled_ns: int | None = None
        self._rows: deque[tuple[int, float, float, int]] = deque(maxlen=_ROWS)
        self.failure: Exception | None = None  # that ended the sampling

    def sample(self, now_ns: int) -> None:
        """Record the load since the last sample, if that was at least a second ago; for one thread."""
        start_ns = self._sampled_ns
        if self.failure is not None or (start_ns is not None and 0 <= now_ns - start_ns < _SECOND_NS):
            return
        try:  # both are shares of the time since the last call in this thread: the first has no meaning
            cpu = self._process.cpu_percent() / 100 / self._processors
            machine_cpu = psutil.cpu_percent() / 100
            rss_bytes = self._process.memory_info().rss
        except (psutil.Error, OSError, NotImplementedError) as error:  # a sandbox may hide the figures
            self.failure = error
            return
        self._sampled_ns = now_ns
        if start_ns is not None and start_ns < now_ns:  # the system clock may be set back
            self._rows.append((start_ns, min(cpu, 1.0), machine_cpu, rss_bytes))

    def take(self, host: str, origin_ns: int) -> pl.DataFrame:
        """Return the load since the last call as a frame of ``tpunb.schema.LOAD``."""
        taken = [self._rows.popleft() for _ in range(len(self._rows))]
        data = [(host, (start_ns - origin_ns) * 1000, *figures) for start_ns, *figures in taken]
        return pl.DataFrame(data, schema=schema.LOAD, orient="row")
