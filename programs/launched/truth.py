"""What a process trained, by its own clock: a line of JSON for each step, so that a kill loses nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "TRUTH_FOLDER"
"""Variable with the folder to write to."""


@contextmanager
def training(rank: int = 0) -> Iterator[Callable[[], None]]:
    """Record a training of this process; call the function that it yields after each step."""
    folder, process = Path(os.environ[FOLDER]), os.getpid()
    number = len(list(folder.glob(f"{process}-*")))
    with (folder / f"{process}-{number}.jsonl").open("w", buffering=1, encoding="utf-8") as file:

        def write(**record: Any) -> None:
            file.write(json.dumps(record) + "\n")

        write(process=process, rank=rank)
        begin_s, error = time.perf_counter(), ""
        try:
            yield lambda: write(end_s=time.perf_counter() - begin_s, cpu_s=time.process_time())
        except BaseException as failure:
            error = repr(failure)
            raise
        finally:
            write(wall_s=time.perf_counter() - begin_s, error=error)
