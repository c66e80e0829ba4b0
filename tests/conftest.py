"""What all tests share: kinds of tests, their order and times, and what is made once for the whole run."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from once import FOLDER, close
from xdist.scheduler import LoadFileScheduling

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("POLARS_MAX_THREADS", "1")  # of each process: frames are small
os.environ.setdefault("TPUNB_CACHE", "off")  # the user's cache is not used
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # 200 processes need not compile the same modules
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a shell's job in the background; programs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# no deadlines: machines may be busy; few examples where they are the same ones in each run
settings.register_profile("reproducible", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("random", deadline=None)  # other examples each time with --slow

LONG = ("browser", "test_notebooks.py", "test_workloads.py", "test_online.py", "test_kills.py", "test_exactness.py")
"""Folders and files that take longest, which begin first so that no worker is left with one at the end."""

PACKAGE = Path(__file__).parents[1] / "tpunb"
COMPILED = """
import tpunb as tp
from tpunb.io import xplane
xplane.warm()
run = tp.steps(tp.sample("keras_cnn"))
tp.report(run)
tp.phases(run, "olsplus")
"""
"""Compiles the loops that most tests call, which numba keeps in the package."""
COLLECTED = ("-m", "pytest", "--collect-only", "-qq", "-n0", "-pno:cacheprovider", Path(__file__).parent)
"""Compiles the tests, which Python keeps beside them."""

LIVE_EXAMPLES = {"tpunb.testing.fake_profiler.FakeProfiler"}
"""Examples in docstrings, which carry no marker, that start a server."""

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.connect", "socket.bind"}
"""Audit events of what only a live test may do."""


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes too")


def pytest_configure(config):
    settings.load_profile("random" if config.getoption("--slow") else "reproducible")
    if FOLDER not in os.environ:  # in the process that the others are started by
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="tpunb-tests-")
        (Path(os.environ[FOLDER]) / "runner").write_text(str(os.getpid()))
        if config.getoption("numprocesses", None) and not [*PACKAGE.rglob("*.nbi")]:  # a fresh clone
            commands = [[sys.executable, *words] for words in (("-c", COMPILED), COLLECTED)]
            folder = {"cwd": PACKAGE.parent, "stdout": subprocess.DEVNULL}
            for process in [subprocess.Popen(command, **folder) for command in commands]:
                process.wait()  # else each worker compiles the same
        config.add_cleanup(_end_the_run)


def _end_the_run():
    close()
    shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def pytest_xdist_auto_num_workers():
    """Return two workers more than there are cores: most live tests wait for a browser, a process or a window."""
    return (os.cpu_count() or 1) + 2


class Scheduling(LoadFileScheduling):
    """Give each worker whole files, and all files of a browser to one, which has one JupyterLab."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "browser" if "/browser/" in file else file


def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)


def pytest_ignore_collect(collection_path):
    """Look for no examples in modules beside the tests: there are none, and some import what only programs need."""
    return True if collection_path.suffix == ".py" and not collection_path.name.startswith("test_") else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    def place(item):
        path = item.path
        return next((i for i, name in enumerate(LONG) if name in (path.name, path.parent.name)), len(LONG))

    items.sort(key=place)
    for item in items:
        if item.name in LIVE_EXAMPLES:
            item.add_marker("live")
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


_modules = 0
"""Number of modules that had been imported as garbage was last collected for good."""


def _freeze():
    """Let no later search for garbage look at what was imported."""
    global _modules
    _modules = len(sys.modules)
    gc.collect()
    gc.freeze()


_processor_s = 0.0
"""Processor time of this process, and of others that it waited for, when the last part of a test ended."""


def pytest_collection_finish():
    global _processor_s
    _processor_s = sum(os.times()[:4])
    _freeze()


_plain = None
"""The plain test that runs now."""


def _audit(event, _):
    if _plain is not None and event in STARTS and not _is_question():
        raise AssertionError(f"{_plain} is not marked live, and causes {event}")


def _is_question():
    """Return whether a library asks a program of the system for facts: as it is imported, or joblib for cores."""
    frame, asking = sys._getframe(), ("<frozen importlib._bootstrap>", "loky/backend/context.py")
    while frame is not None and not frame.f_code.co_filename.endswith(asking):
        frame = frame.f_back
    return frame is not None


sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Let a plain test start no process and open no connection, in its fixtures neither."""
    global _plain
    _plain = None if item.get_closest_marker("live") or item.get_closest_marker("slow") else item.nodeid
    try:
        return (yield)
    finally:
        _plain = None
        if len(sys.modules) > _modules + 500:  # of a framework
            _freeze()


@pytest.fixture(autouse=True)
def _reduces_here(monkeypatch):
    """Let captures reduce windows in the process of the test, where it may replace what does; programs do not."""
    from tpunb.profiler import recorder
    from tpunb.profiler.reducer import Reducer

    monkeypatch.setattr(recorder, "ReducerProcess", Reducer)


_jitter = random.Random()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Begin each test with the global seeds of a new process, which no thread of an earlier test draws from."""
    for name in ("gcsfs.core", "gcsfs.retry"):  # retries in a thread of its own, long after the test that gave it up
        if name in sys.modules:
            sys.modules[name].random = _jitter
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "tensorflow" in sys.modules:
        from tpunb.training import seeds

        sys.modules["tensorflow"].random.set_seed(None)
        seeds.forget_keras_generator()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Add to a report the processor time of its part of a test, which other workers do not change."""
    global _processor_s
    report, before = (yield), _processor_s
    _processor_s = sum(os.times()[:4])
    report.processor_s = _processor_s - before
    return report


def pytest_terminal_summary(terminalreporter):
    """Print where the time went: the files that took most of the processors, and the sum of each kind of tests."""
    files, kinds, counts, processors = Counter(), Counter(), Counter(), Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                kind = next((name for name in ("slow", "live") if name in report.keywords), "plain")
                files[report.nodeid.split("::")[0]] += report.duration
                processors[report.nodeid.split("::")[0]] += getattr(
                    report, "processor_s", 0.0
                )  # a worker that crashed has none
                kinds[kind] += report.duration
                counts[kind] += report.when == "call"
    if len(files) > 10:
        terminalreporter.section("time of tests, over all workers; of processors without programs of a warm Python")
        for name, seconds in processors.most_common(30):
            terminalreporter.line(f"{files[name]:7.1f} s, of processors {seconds:7.1f} s {name}")
        for kind, seconds in kinds.most_common():
            terminalreporter.line(f"{seconds:7.1f} s {counts[kind]} {kind} tests")


_numbers = count()


@pytest.fixture
def own_name(request):
    """A name that nothing else in this process has, for a module, a compiled function or a program."""
    return f"own_{next(_numbers)}_{re.sub(r'[^a-z0-9]+', '_', request.node.name.lower())[:40]}"


@pytest.fixture
def nowhere():
    """An address at which nothing listens, nor can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*held.getsockname())


@pytest.fixture(scope="session")
def real_profiles():
    """The folder of real public captures; tests that need it skip where TPUNB_DATA is unset."""
    return _data() / "profiles"


@pytest.fixture(scope="session")
def answers():
    """The folder of captures whose answers others published; tests that need it skip where TPUNB_DATA is unset."""
    return _data() / "answers"


def _data():
    root = os.environ.get("TPUNB_DATA")
    if not root:
        pytest.skip("TPUNB_DATA is unset: real captures are not part of the project")
    return Path(root)


@pytest.fixture(scope="session")
def hlo_pb2():
    """The messages of XLA's programs, by the protobuf library."""
    return pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")


@pytest.fixture(scope="session")
def xplane_pb2():
    """The messages of XPlanes, by the protobuf library."""
    return pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")


@pytest.fixture(scope="session")
def shots(tmp_path_factory):
    """The folder of screenshots: TPUNB_SHOTS if set."""
    folder = Path(os.environ.get("TPUNB_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
