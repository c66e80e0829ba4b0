"""Packages that may be missing: imported at their first use, so that collecting the tests imports none of them."""

import pytest


class _Module:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # pytest asks what each name of a file wraps
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)

    def __bool__(self):
        return bool(pytest.importorskip(self._name))


def lazy(name):
    """Return what stands for a module: its first use imports it, and skips the test where it is not installed."""
    return _Module(name)
