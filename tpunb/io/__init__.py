"""Reading profiles, wherever they come from: one verb, and the samples this project recorded itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.frames import Profile
from tpunb.io import raw_files, run_folder
from tpunb.io.raw_files import ENDINGS, nearby

PathLike = str | os.PathLike[str]


def load(path: PathLike | Iterable[PathLike]) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path
        A run folder that ``tp.capture`` wrote, a profiler's logdir, one ``*.xplane.pb`` or ``*.trace.json`` (each also
        gzipped), or a list of such files, one a host. Where a session of a logdir holds both forms of a host's
        profile, the XPlane is read; of several sessions, all.

    Raises
    ------
    ProfileNotFound
        Nothing is there, or nothing that is a profile.
    BadProfile
        A file is empty, cut, corrupt or something else; the message names it and what was seen.
    """
    if not isinstance(path, (str, os.PathLike)):
        return _load_list(path)
    where = Path(path).expanduser()
    if not where.exists():
        raise ProfileNotFound(f"nothing is at {where}", hint=nearby(where))
    if where.is_file():
        return raw_files.read([where], where.name, where)
    if run_folder.is_run(where):
        return run_folder.read(where, raw_files.windows)
    if runs := sorted(path.parent.name for path in where.glob(f"*/{run_folder.RUN}")):
        raise ProfileNotFound(f"{where} is no run but holds {len(runs)}", hint=f"load one of {', '.join(runs[:8])}")
    return raw_files.read(_files_below(where), where.name, where)


def _load_list(paths: Iterable[PathLike]) -> Profile:
    """Read several logdirs and files as one profile."""
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise TypeError(f"The path parameter of load must be a path or a list of paths. Got {paths!r} instead.")
    files: list[Path] = []
    for path in (Path(one).expanduser() for one in paths):
        if run_folder.is_run(path):
            raise TpunbError(f"{path} is a run: a list holds raw profiles", hint="load runs one by one")
        files += _files_below(path) if path.is_dir() else [path]
    if not files:
        raise ProfileNotFound("the list of profiles is empty")
    return raw_files.read(files, files[0].name, files[0].parent)


def _files_below(folder: Path) -> list[Path]:
    """Return the profiles of a logdir, in the best form of each."""
    every = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    files = sorted(file for file in every if file.name.endswith(ENDINGS))
    if not files:
        raise ProfileNotFound(
            f"{folder} holds no profile: no run.json and no file ending in {', '.join(ENDINGS)}", hint=nearby(folder)
        )
    best: dict[tuple[Path, str], Path] = {}
    for ending in ENDINGS:
        for file in files:
            if file.name.endswith(ending):
                best.setdefault(raw_files.stem(file), file)
    return sorted(best.values())


def sample(name: str) -> Profile:
    """Load a run that this project recorded itself; an unknown name raises and lists those there are.

    >>> sample("keras_cnn").name
    'keras_cnn'
    """
    here = Path(__file__).resolve().parents[1]
    places = [here / "_samples", here.parent / "datasets" / "sample_profiles"]
    names: set[str] = set()
    for place in places:
        if run_folder.is_run(place / name):
            return load(place / name)
        names |= {path.name for path in place.glob("*") if run_folder.is_run(path)}
    raise ProfileNotFound(f"no sample is named {name!r}", hint=f"there are {', '.join(sorted(names)) or 'none'}")
