"""The runs of a folder that continue, for a terminal that follows them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tpunb.analysis.history import run_row
from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.io.formats import load
from tpunb.io.job_folder import MEMBER
from tpunb.io.run_folder import RUN
from tpunb.text import cut, duration, format_error, percent, plain, plural, short_time


class Live(NamedTuple):
    """A run at this moment.

    Parameters
    ----------
    name
        Its folder; of the ranks of a job, that of the job.
    state
        "running", "finished", "cut", or how it ended; None if it cannot be read now.
    stands
        Whether its training stands still, or did until it was killed.
    line
        What is known of it in one line.
    """

    name: str
    state: str | None
    stands: bool
    line: str


def live(folder: str | os.PathLike[str]) -> list[Live]:
    """Return the runs in a local folder, at any depth, in order of their names.

    Raises
    ------
    ProfileNotFound
        If there is no such folder.
    """
    top = Path(folder).expanduser()
    if not top.is_dir():
        raise ProfileNotFound(f"{os.fspath(folder)!r} is no folder", hint="give a local one that holds runs")
    return [_at(path, path.relative_to(top).as_posix()) for path in sorted(set(_folders(top)))]


def _folders(top: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if RUN in files:
            folders.clear()
            path = Path(parent)
            yield path.parent if MEMBER.fullmatch(path.name) else path


def _at(path: Path, name: str) -> Live:
    name = plain(path.name if name in (".", "..") else name)
    try:
        with warnings.catch_warnings(action="ignore"):
            profile = load(path)
            row = run_row(profile, flops=False)
    except (TpunbError, OSError) as error:
        return Live(name, None, stands=False, line=f"{name}: {cut(format_error(error), 120)}")
    parts = ["steps were not counted" if row["steps"] is None else plural(row["steps"], "step")]
    if row.get("step_ps"):
        parts.append(f"{short_time(row['step_ps'])} each")
    parts += [f"{row[f'{name}_per_s']:,.4g} {name}/s" for name in ("samples", "tokens") if row.get(f"{name}_per_s")]
    if row.get("goodput") is not None:
        parts.append(f"{percent(row['goodput'])} of {duration(row['wall_ps'])} productive")
    return Live(name, profile.state, profile.standing is not None, plain(f"{name}: {', '.join(parts)}; {row['state']}"))
