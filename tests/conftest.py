"""Shared by test files: the option --slow, the folder of real captures, and Jupyter in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# no deadlines: machines may be busy
settings.register_profile("the same", deadline=None, derandomize=True)  # reproducible
settings.register_profile("others", deadline=None)  # other examples each time with --slow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TPUNB_CACHE", "off")  # the user's cache is not used


def pytest_configure(config):
    settings.load_profile("others" if config.getoption("--slow") else "the same")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Begin each test with the global seeds of a new process, whatever earlier tests of this process have set."""
    if "tensorflow" in sys.modules:
        from tpunb.training import seeds

        sys.modules["tensorflow"].random.set_seed(None)
        seeds.forget_keras_generator()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    # Playwright keeps an event loop in the thread of the tests, so calls of asyncio.run go first
    items.sort(key=lambda item: "browser" in getattr(item, "fixturenames", ()))
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


@pytest.fixture(scope="session")
def real_profiles():
    """The folder of real public captures; tests that need it skip where TPUNB_DATA is unset."""
    root = os.environ.get("TPUNB_DATA")
    if not root:
        pytest.skip("TPUNB_DATA is unset: real captures are not part of the project")
    return Path(root) / "profiles"


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    """Debian's Chromium, with no network beyond the machine; without one, the tests of pages skip."""
    from jupyter_pages import CHROMIUM, LAUNCH

    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    return {**browser_type_launch_args, **LAUNCH}


@pytest.fixture(scope="session")
def jupyter(browser, tmp_path_factory):
    """One Jupyter server and one page for all tests; see `jupyter_pages.Jupyter`."""
    from jupyter_pages import VIEWPORT, Jupyter, listened, served

    folder = tmp_path_factory.mktemp("jupyter")
    with served(folder) as address:
        page = listened(browser.new_page(viewport=VIEWPORT))
        shown = Jupyter(address, folder, page)
        yield shown
        shown.close()
        page.close()


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
