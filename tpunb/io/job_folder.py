"""The processes that ``tpunb run`` captured into one folder: which of them are the run, and where each belongs.

While they run, each has a folder of its own (``process1``, ``rank0``, ...). What a process was is decided by what it
recorded: those that trained are the run, a launcher or a driver beside them is not.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tpunb.errors import TpunbError
from tpunb.io import run_folder, storage
from tpunb.io.storage import Location
from tpunb.text import enumerated

MEMBER = run_folder.MEMBER
RANK = re.compile(r"rank[0-9]+")
"""Names of folders of a job's ranks."""
ATTEMPT = re.compile(r"attempt[0-9]+")
"""Names of folders that hold the ranks of an earlier attempt of a job."""


_EVALUATIONS = {"eval", "predict"}
_SHOWN_SIZE = 2**20  # more is no number of processes


class Process(NamedTuple):
    """What a process recorded; times in nanoseconds since the epoch."""

    folder: str
    steps: int | None  # None where it was killed, and made some
    start_ns: int
    end_ns: int
    rank: int | None = None
    size: int | None = None
    attempt: int | None = None
    spawned_by: str | None = None
    trains: bool = True  # False if all its steps are evaluations


def places(processes: Iterable[Process]) -> dict[str, str]:
    """Return by folder where the processes that are the run belong, relative to the run.

    "" is the run itself, ``rank0`` a rank of it, ``attempt0/rank0`` one of an earlier attempt, and ``-2`` the second of
    several runs. Without a process that trained, these are the ranks, or the one that began first.

    >>> places([Process("process1", 0, 0, 9), Process("process2", 300, 1, 8)])
    {'process2': ''}
    """
    by_start = sorted(processes, key=lambda process: (process.start_ns, process.folder))
    ranked = [process for process in by_start if process.rank is not None]
    working = [process for process in by_start if process.steps != 0] or ranked or by_start
    working.sort(key=lambda process: not process.trains)
    training = [process for process in working if process.trains] or working
    ranks = [process for process in working if process.rank is not None]
    if not ranks and _is_group(training):
        ranks = [process._replace(rank=number) for number, process in enumerate(training)]
    if not ranks and len({process.attempt for process in working} - {None}) > 1:  # a job of one process, restarted
        ranks = [process._replace(rank=0) for process in working if process.attempt is not None]
    of_job = {process.folder for process in ranks}
    alone = [process for process in working if process.folder not in of_job]
    suffixes = [""] * (not ranks) + [f"-{number}" for number in range(2, len(alone) + 2)]
    return {**_rank_places(ranks), **{process.folder: place for process, place in zip(alone, suffixes, strict=False)}}


def members(files: Mapping[str, Location]) -> list[str]:
    """Return the folders of the processes that are the run, or the job, in a folder; ranks are in order."""
    ending = f"/{run_folder.RUN}"
    names = [name.removesuffix(ending) for name in files if name.endswith(ending)]
    names = sorted(filter(MEMBER.fullmatch, names), key=lambda name: (len(name), name))
    if all(map(RANK.fullmatch, names)):
        return names
    found = places(read(name, files) for name in names)
    runs = {place: name for name, place in found.items() if RANK.fullmatch(place)} or {"": next(iter(found))}
    return [runs[place] for place in sorted(runs, key=lambda place: (len(place), place))]


def missing(names: Iterable[str], files: Mapping[str, Location]) -> str:
    """Return which ranks of a job are not in these folders, "" if none, or if the size of the job is unknown."""
    processes = [read(name, files) for name in names]
    size = max((process.size or 0 for process in processes if process.rank is not None), default=0)
    ranks = sorted({*range(min(size, _SHOWN_SIZE))} - {process.rank for process in processes})
    if not ranks or size > _SHOWN_SIZE:
        return ""
    return f"{len(ranks)} of {size} ranks were not captured, or not into this folder: {enumerated(ranks)}"


def read(folder: str, files: Mapping[str, Location]) -> Process:
    """Return the process of a folder by its facts; of one that was killed the journal shows that it made steps."""
    try:
        facts = json.loads(storage.read_small(files[f"{folder}/{run_folder.RUN}"]))
    except (TpunbError, OSError, ValueError, RecursionError):
        facts = None
    facts = facts if isinstance(facts, dict) else {}
    group = group if isinstance(group := facts.get("group"), dict) else {}
    listed = kinds if isinstance(kinds := facts.get("kinds"), list) else []
    kinds = {str(kind).partition(" ")[0] for kind in listed}  # "eval 2" is of a second training
    has_journal = False
    with suppress(KeyError, TpunbError, OSError):
        has_journal = run_folder.holds_steps(storage.read(files[f"{folder}/{run_folder.LATEST}"]).tobytes())
    return Process(
        folder,
        None if has_journal and facts.get("state") == "running" else _whole(facts.get("steps")) or 0,
        _whole(facts.get("origin_ns")) or 0,
        int(updated * 1e9) if isinstance(updated := facts.get("updated"), float) and math.isfinite(updated) else 0,
        rank=_whole(group.get("rank")),
        size=_whole(group.get("size")),
        attempt=_whole(group.get("attempt")),
        spawned_by=str(group.get("spawned_by") or "") or None,
        trains=not kinds or not kinds <= _EVALUATIONS,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _is_group(processes: Sequence[Process]) -> bool:
    """Return whether processes of no known rank are those of one job: one program started them, to run together."""
    parents = {process.spawned_by for process in processes}
    if len(processes) < 2 or len(parents) > 1 or parents == {None}:
        return False
    return max(process.start_ns for process in processes) < min(process.end_ns for process in processes)


def _rank_places(ranks: Sequence[Process]) -> dict[str, str]:
    """Return the places of ranks in order of their starts: those of the last attempt are the job."""
    begun, attempts = Counter[int | None](), dict[str, int]()  # attempts by rank, and that of each process
    for process in ranks:
        # one without steps is not here; and a launcher counts again from 0 for another program
        attempts[process.folder] = attempt = max(begun[process.rank], process.attempt or 0)
        begun[process.rank] = attempt + 1
    last = max(attempts.values(), default=0)
    earlier = {folder: f"attempt{attempt}/" for folder, attempt in attempts.items() if attempt != last}
    return {process.folder: f"{earlier.get(process.folder, '')}rank{process.rank}" for process in ranks}
