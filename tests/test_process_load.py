"""The load of the process and the machine, once a second."""

import time
from types import SimpleNamespace

import psutil
import pytest

from tpunb import schema
from tpunb.profiler.stall_sampler import ProcessLoad

SECOND = 1_000_000_000


class FakeWorker:
    """A child process that uses half a processor, unless it has ended."""

    def __init__(self, pid, *, ended=False):
        self.pid, self.ended = pid, ended

    def cpu_percent(self):
        if self.ended:
            raise psutil.NoSuchProcess(self.pid)
        return 50.0


class FakeProcess:
    """A process that uses two and a half of the machine's four processors, and one worker's."""

    def cpu_percent(self):
        return 250.0

    def children(self, *, recursive):
        assert recursive
        return [FakeWorker(7), FakeWorker(8, ended=True)]

    def memory_info(self):
        return SimpleNamespace(rss=5_000)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(psutil, "Process", FakeProcess)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 80.0)


def test_one_row_a_second_from_the_second_call(machine):
    load = ProcessLoad()
    for tenth in range(26):
        load.sample(10 * SECOND + tenth * SECOND // 10)
    frame = load.take("a", 9 * SECOND)
    assert dict(frame.schema) == schema.LOAD
    assert frame.rows() == [("a", 10**12, 0.75, 0.8, 5_000), ("a", 2 * 10**12, 0.75, 0.8, 5_000)]
    assert load.take("a", 9 * SECOND).rows() == []


def test_figures_that_the_system_hides_end_the_sampling(machine, monkeypatch):
    def hidden():
        raise psutil.AccessDenied

    load = ProcessLoad()
    load.sample(SECOND)
    monkeypatch.setattr(psutil, "cpu_percent", hidden)
    load.sample(2 * SECOND)
    load.sample(3 * SECOND)
    assert isinstance(load.failure, psutil.AccessDenied)
    assert load.take("a", 0).rows() == []


def test_real_figures_of_this_process():
    load = ProcessLoad()
    load.sample(0)
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    load.sample(SECOND)
    (row,) = load.take("a", 0).iter_rows(named=True)
    assert 0 < row["cpu"] <= 1
    assert 0 < row["machine_cpu"] <= 1
    assert row["rss_bytes"] > 10_000_000
