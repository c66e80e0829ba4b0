"""A Python whose heavy modules are imported already: a server that forks, and a program that stands for its child.

Importing TensorFlow takes four seconds of a core; a fork takes none. A test gives `warm_python(...)` in place of
``[sys.executable]``: the child has the arguments, environment, working directory and files of such a process, its exit
status, and gets its signals. What has not been imported by the server, such as tpunb, is imported by the child anew.
"""

import faulthandler
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

NOTEBOOK = ("altair", "anywidget", "hdbscan", "ipykernel.kernelapp", "ipywidgets", "numba", "polars", "sklearn.cluster")
TENSORFLOW = (*NOTEBOOK, "tensorflow")
JAX = (*NOTEBOOK, "jax")
TORCH = ("polars", "torch")
"""Modules that can be imported before a fork: they start no thread that is needed after it."""


def warm_python(modules=TENSORFLOW, **environment):
    """Return the beginning of a command that stands for ``[sys.executable]``.

    Parameters
    ----------
    modules
        What is imported; one server of each kind is started in a run of the tests.
    environment
        Variables that matter as the modules are imported, such as KERAS_BACKEND.
    """
    import once

    if not hasattr(os, "pidfd_open"):
        return [sys.executable]
    name = "-".join(["warm", modules[-1], *environment.values()])
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment

    def make(folder):
        server = once.start(folder, [sys.executable, __file__, "--serve", folder / "socket", *modules], env=variables)
        while not (folder / "ready").exists():
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)

    folder = once.made(name, make)
    return [sys.executable, "-S", "-E", __file__, str(folder / "socket")]


def warm_kernels(modules=NOTEBOOK, **environment):
    """Return the variables by which Jupyter starts its kernel "python3" from a warm Python."""
    import once

    def make(folder):
        command = [*warm_python(modules, **environment), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        kernel = folder / "kernels" / "python3" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        kernel.write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))

    return environment | {
        "JUPYTER_PATH": str(once.made("-".join(["kernels", modules[-1], *environment.values()]), make))
    }


def serve(path, modules):
    """Fork a child for each connection, send its exit status, and kill it if the connection ends; return in a child."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    selector, links = selectors.DefaultSelector(), {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    selector.register(listener, selectors.EVENT_READ)
    Path(path).with_name("ready").touch()
    runner = int((Path(path).parents[1] / "runner").read_text())
    while True:
        events = selector.select(timeout=5)
        if not events:
            os.kill(runner, 0)  # raises when the run of the tests has ended without ending this
        for key, _ in events:
            if key.fileobj is listener:
                link, _ = listener.accept()
                length, files, *_ = socket.recv_fds(link, 4, 3)
                request = json.loads(_read(link, *struct.unpack("!i", length)))
                pid = os.fork()
                if pid == 0:
                    for open_file in (listener, selector, link, *links):
                        open_file.close()
                    return become, request, files
                for file in files:
                    os.close(file)
                links[link] = pid
                with suppress(OSError):  # it has ended already
                    link.sendall(struct.pack("!i", pid))
                selector.register(link, selectors.EVENT_READ)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, link)
            elif key.data is None:  # the program that stands for the child has ended before it
                if key.fileobj in links:  # else the child ended at the same moment
                    selector.unregister(key.fileobj)
                    os.kill(links[key.fileobj], signal.SIGKILL)
            else:
                link, status = key.data, os.waitpid(links.pop(key.data), 0)[1]
                if link in selector.get_map():
                    selector.unregister(link)
                    with suppress(OSError):  # it has ended, too
                        link.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                link.close()


def become(request, files):
    """Run, in a child, what a new Python would run."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    faulthandler.enable()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[0:1] = paths
    option, *arguments = request["arguments"]
    if option == "-c":
        sys.argv, sys.path[:0] = ["-c", *arguments[1:]], [""]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    elif option == "-m":
        sys.argv, sys.path[:0] = arguments, [""]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [option, *arguments], [str(Path(option).parent)]
        runpy.run_path(option, run_name="__main__")


def stand_in_for_child(path, arguments):
    """Have a child run, forward signals to it, and end as it ends."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    text = json.dumps(request).encode()
    socket.send_fds(link, [struct.pack("!i", len(text))], [0, 1, 2])
    link.sendall(text)
    (pid,) = struct.unpack("!i", _read(link, 4))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    (status,) = struct.unpack("!i", _read(link, 4))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def _read(link, length):
    data = b""
    while len(data) < length:
        part = link.recv(length - len(data))
        if not part:
            sys.exit("the server of warm Pythons has ended")
        data += part
    return data


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _run, *_given = serve(sys.argv[2], sys.argv[3:])
        _run(*_given)
    else:
        stand_in_for_child(sys.argv[1], sys.argv[2:])
