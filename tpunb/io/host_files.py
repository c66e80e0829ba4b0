"""Files of the hosts of a job: which belong to it, and how their hosts are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from tpunb.text import duration

ENDINGS = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
"""Endings of the names of profiles, best first: of two forms of one capture the first is read."""

_FAR_NS = 600 * 10**9  # between windows of one session
_LEAST = 3  # files that say when a session was
_COPY = re.compile(r"[ .(~]")  # what follows the name of the original


@dataclass(frozen=True)
class HostFile:
    """What is known of a file beside its statistics; times in nanoseconds since the epoch, None if unknown."""

    name: str
    session: str  # name of its folder
    host: str  # its name in the file
    start_ns: int | None
    stop_ns: int | None
    events: int
    steps: frozenset[int]  # numbers in step annotations
    role: str = ""


def stem(name: str) -> str:
    """Return the name without its ending, which is the same for all forms of one capture.

    >>> stem("s/a.xplane.pb.gz")
    's/a'
    """
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def strangers(files: Sequence[HostFile]) -> dict[int, str]:
    """Return which files are no further host of the job, each with the reason.

    A file is of another run if it was traced more than 10 minutes before or after most others of its
    session. It is a copy if
    host, times and number of events are those of another file, from whose name its name is derived.
    """
    reasons, sessions, seen = dict[int, str](), dict[str, list[int]](), dict[object, int]()
    for row, file in enumerate(files):
        if file.start_ns is None:
            continue
        sessions.setdefault(file.session, []).append(row)
        key = file.session, file.host, file.start_ns, file.stop_ns, file.events
        other = files[seen.setdefault(key, row)].name
        short, long = sorted((stem(other), stem(file.name)), key=len)
        if other != file.name and long.startswith(short) and _COPY.match(long, len(short)):
            reasons[row] = f"a copy of {other}"
    for rows in sessions.values():
        spans = {row: (files[row].start_ns or 0, files[row].stop_ns or files[row].start_ns or 0) for row in rows}
        if len(rows) < _LEAST:
            continue
        start, stop = (median_low(ends) for ends in zip(*spans.values(), strict=True))
        apart = {row: max(begin - stop, start - end) for row, (begin, end) in spans.items()}
        far = {row: ns for row, ns in apart.items() if ns > _FAR_NS}
        for row, ns in far.items() if 2 * len(far) < len(rows) else ():
            when = "before" if spans[row][0] < start else "after"
            reasons[row] = f"of another run: traced {duration(ns * 1000)} {when} the others"
    return reasons


def distinct(files: Sequence[HostFile]) -> list[str]:
    """Return names of hosts whose steps are distinct: after the file, then the folder of the session, then by number.

    Files of one host whose annotated steps have different numbers are one host.
    """
    names = [file.host or stem(file.name) for file in files]
    if len(files) == 1:
        return [files[0].host]
    for suffixes in ([file.session for file in files], [str(number) for number in range(len(files))]):
        by_name: dict[str, list[HostFile]] = {}
        for file, name in zip(files, names, strict=True):
            by_name.setdefault(name, []).append(file)
        clashing = {name for name, same in by_name.items() if _clash(same)}
        names = [f"{name} {suffix}" if name in clashing else name for name, suffix in zip(names, suffixes, strict=True)]
    return names


def _clash(files: Sequence[HostFile]) -> bool:
    """Return whether steps of files of one host share numbers, or have none, or the files have different roles."""
    steps = [file.steps for file in files]
    shared = not all(steps) or len(frozenset[int]().union(*steps)) < sum(map(len, steps))
    return len(files) > 1 and (shared or len({file.role for file in files}) > 1)
