"""What is made once for the whole run of the tests, by the first worker that needs it: data, and servers."""

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

FOLDER = "TPUNB_TESTS_FOLDER"
"""Environment variable with the folder of this run, which the process sets that starts the workers."""


def made(name, make):
    """Return the folder ``name``, which ``make(folder)`` filled once; what it raises is raised, and it is tried again.

    What is in the folder is read by other tests at the same time: nobody may change it.
    """
    top = Path(os.environ[FOLDER])
    place = top / name
    with FileLock(top / f"{name}.lock"):
        if not place.exists():
            new = Path(tempfile.mkdtemp(dir=top))
            make(new)
            new.rename(place)
    return place


def start(folder, command, **options):
    """Start a server that lives until the end of the run; its output is in ``log`` of a folder that is made now."""
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, **options)
    (folder / "pid").write_text(str(server.pid))
    return server


def close():
    """End the servers of this run."""
    for file in Path(os.environ[FOLDER]).glob("*/pid"):
        with suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGTERM)
