"""A stand-in for the parts of PyTorch that its capture source uses; its profiler writes traces in Kineto's format."""

import json
import sys
import threading
import time
import types
from contextlib import contextmanager
from pathlib import Path

BASE_NS = 1_700_000_000_000_000_000  # from which traces count


class FakeTorch(types.ModuleType):
    """A module ``torch`` whose operators a running session records, of all threads if its configuration says so."""

    def __init__(self, *, all_threads=True, refuses=None):
        super().__init__("torch")
        self.__version__ = "2.9.0"
        self.Tensor = type("Tensor", (), {})  # which SciPy compares arrays with
        self.refuses = refuses  # message of the error with which sessions fail to start
        self.sessions = []  # that run now
        self.configurations = []
        torch = self

        class Configuration:
            def __init__(self, **options):
                if not all_threads and options:
                    raise TypeError("unexpected keyword argument 'profile_all_threads'")
                self.options = options

        class Session:
            """As ``torch.profiler.profile``."""

            def __init__(self, activities=None, record_shapes=False, with_stack=False, experimental_config=None):
                options = {} if experimental_config is None else experimental_config.options
                self.all_threads = options.get("profile_all_threads", False)
                self.activities, self.record_shapes = activities, record_shapes
                torch.configurations.append(options)

            def start(self):
                if torch.refuses:
                    raise RuntimeError(torch.refuses)
                torch.autograd.profiler._prepare_profiler()
                if torch.sessions:
                    raise RuntimeError("Profiler is already enabled")
                self.events, self.thread = [], threading.get_ident()
                torch.sessions.append(self)

            def stop(self):
                torch.autograd.profiler._disable_profiler()
                torch.sessions.remove(self)

            def step(self):
                pass

            def record(self, name, category, start_ns, end_ns):
                if self.all_threads or threading.get_ident() == self.thread:
                    times = {"ts": (start_ns - BASE_NS) / 1e3, "dur": (end_ns - start_ns) / 1e3}
                    place = {"pid": 7, "tid": threading.get_ident()}
                    self.events.append({"ph": "X", "cat": category, "name": name, **place, **times, "args": {}})

            def export_chrome_trace(self, path):
                trace = {
                    "schemaVersion": 1,
                    "deviceProperties": [],
                    "baseTimeNanoseconds": BASE_NS,
                    "traceEvents": self.events,
                }
                Path(path).write_text(json.dumps(trace), encoding="utf-8")

        self.profiler = types.SimpleNamespace(
            profile=Session,
            _ExperimentalConfig=Configuration,
            ProfilerActivity=types.SimpleNamespace(CPU="CPU", CUDA="CUDA"),
            record_function=lambda name: self.op(name, "user_annotation"),
        )
        self.save = self.load = lambda *_: None
        self.cuda = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)

        def _prepare_profiler():
            pass

        def _disable_profiler():
            pass

        functions = {"_prepare_profiler": _prepare_profiler, "_disable_profiler": _disable_profiler}
        self.autograd = types.SimpleNamespace(profiler=types.SimpleNamespace(**functions))

    @contextmanager
    def op(self, name, category="cpu_op"):
        """Run an operator: the block."""
        session, start_ns = next(iter(self.sessions), None), time.time_ns()
        try:
            yield
        finally:
            if session in self.sessions:  # else it began before the session, or ended after it
                session.record(name, category, start_ns, time.time_ns())


def install(monkeypatch, **options):
    """Make it the module ``torch`` of this process, in which no other framework is in use."""
    fake = FakeTorch(**options)
    monkeypatch.setitem(sys.modules, "torch", fake)
    for name in ("tensorflow", "jax", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return fake
