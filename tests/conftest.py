"""What several test files share: the option --slow, and where real captures lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # machines are busy with other things too
settings.load_profile("unhurried")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TPUNB_CACHE", "off")  # nobody's own cache is filled or asked


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes too")


def pytest_collection_modifyitems(config, items):
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
