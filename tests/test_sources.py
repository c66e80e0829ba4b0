"""Sources: this process by TensorFlow's own profiler server, opened once and reached by loopback."""

import sys

import pytest

from tpunb.errors import CaptureBusy, MissingExtra
from tpunb.sources import Local


def test_the_server_is_opened_once_a_process():
    pytest.importorskip("tensorflow")
    first, second = Local(), Local()
    first.start()
    address = Local._address
    second.start()
    assert Local._address == address
    assert address.startswith("127.0.0.1:")


def test_starting_says_with_what():
    tf = pytest.importorskip("tensorflow")
    said = Local().start()
    assert said == {
        "framework": "tensorflow",
        "framework_version": tf.__version__,
        "devices": [device.name for device in tf.config.list_logical_devices()],
    }


def test_without_tensorflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingExtra, match="tensorflow is not installed") as caught:
        Local().start()
    assert caught.value.hint == "pip install 'tpunb[tensorflow]'"


def test_a_server_that_does_not_answer_is_told_and_not_kept(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    monkeypatch.setattr(Local, "_address", None)
    monkeypatch.setattr("tpunb.sources._READY_SECONDS", 0.3)
    monkeypatch.setattr(tf.profiler.experimental.server, "start", lambda port: None)
    with pytest.raises(CaptureBusy, match="no profiler service answered"):
        Local().start()
    assert Local._address is None


def test_a_step_is_annotated_for_the_profiler():
    pytest.importorskip("tensorflow")
    source = Local()
    source.start()
    with source.step("train", 7) as annotation:
        assert type(annotation).__name__ == "Trace"
