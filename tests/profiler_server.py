"""The profiler server of TensorFlow in this process, as a program opens it for others to connect to."""

import socket
from functools import cache

import pytest


@cache
def address_of_tensorflow():
    """Return its address; it listens until the process ends."""
    tf = pytest.importorskip("tensorflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tf.profiler.experimental.server.start(port)
    return f"127.0.0.1:{port}"
