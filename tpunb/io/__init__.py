"""Load profiles of any format, and the samples recorded by this project."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tpunb.errors import BadProfile, ProfileNotFound, TpunbError
from tpunb.frames import Profile
from tpunb.io import logdir, run_folder, run_writer, storage, xprof_json
from tpunb.io.logdir import ENDINGS
from tpunb.io.storage import Location, PathLike
from tpunb.text import plural


def load(path: PathLike | Iterable[PathLike]) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path
        Run folder of ``tp.capture``, logdir of a profiler, one ``*.xplane.pb`` or ``*.trace.json`` (each also gzipped),
        or a list of such files, one per host; local, or the URL of any file system that fsspec supports, such as
        ``gs://bucket/logdir``. All sessions of a logdir are read, and the XPlane where a session has both forms.
        Without a raw profile, XProf's tables (``*.overview_page.json`` and others) are read.

    Raises
    ------
    ProfileNotFound
        When there is no profile at the path.
    BadProfile
        When a file is empty, truncated, corrupt or of another format; the message names it.
    MissingExtra
        When the package for the protocol of a URL is not installed.
    TpunbError
        When a server cannot be reached.
    """
    if not isinstance(path, (str, os.PathLike)):
        return _load_list(path)
    location = storage.find(path)
    if not location.is_folder:
        return _file(location)
    files = location.below()
    if run_folder.RUN in files:
        return run_folder.read(location, files, run_writer.keeper(str(location)))
    if runs := sorted(name.partition("/")[0] for name in files if re.fullmatch(rf"[^/]+/{run_folder.RUN}", name)):
        raise ProfileNotFound(
            f"{str(location)!r} is not a run folder; it contains {plural(len(runs), 'run')}",
            hint=f"load one of {', '.join(runs[:8])}",
        )
    tables = [file for name, file in files.items() if name.endswith(xprof_json.ENDINGS)]
    if tables and not _raw(files):
        return _tables(tables, location)
    return logdir.read(_profiles(location, files), location.name, location.source)


def _load_list(paths: Iterable[PathLike]) -> Profile:
    """Read several logdirs and files as one profile."""
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise TypeError(f"The path parameter of load must be a path or a list of paths. Got {paths!r} instead.")
    profiles: list[Location] = []
    for location in map(storage.find, paths):
        if location.name.endswith(xprof_json.ENDINGS):
            raise TpunbError(f"{location} is a table of XProf, not a raw profile", hint="load its folder")
        if not location.is_folder:
            profiles.append(location)
            continue
        files = location.below()
        if run_folder.RUN in files:
            raise TpunbError(f"{location} is a run, not a raw profile", hint="load runs one by one")
        profiles += _profiles(location, files)
    if not profiles:
        raise ProfileNotFound("the list of profiles is empty")
    profiles = _unique(profiles)
    return logdir.read(profiles, profiles[0].name, profiles[0].parent.source)


def _profiles(folder: Location, files: Mapping[str, Location]) -> list[Location]:
    """Return the raw profiles of a logdir, in the best form of each."""
    if profiles := _raw(files):
        return profiles
    raise ProfileNotFound(
        f"{folder} holds no profile: no run.json and no file ending in {', '.join(ENDINGS)}", hint=folder.holds()
    )


def _raw(files: Mapping[str, Location]) -> list[Location]:
    best: dict[str, Location] = {}
    for ending in ENDINGS:
        for name in sorted(files):
            if name.endswith(ending):
                best.setdefault(logdir.stem(name), files[name])
    return _unique([best[name] for name in sorted(best)])


def _unique(files: Sequence[Location]) -> list[Location]:
    """Return each file once, links resolved."""
    return list({file.url or os.path.realpath(file.path): file for file in reversed(files)}.values())[::-1]


def _file(file: Location) -> Profile:
    """Read one file: a raw profile, or a table of XProf with tables of the same prefix beside it."""
    if ending := next((ending for ending in xprof_json.ENDINGS if file.name.endswith(ending)), None):
        family = [file.name.removesuffix(ending) + other for other in xprof_json.ENDINGS]
        return _tables([child for child in file.parent.children() if child.name in family] or [file], file)
    try:
        return logdir.read([file], file.name, file.source)
    except BadProfile:
        data = b"" if file.name.endswith(ENDINGS) else storage.read(file).tobytes()
        if not xprof_json.is_table(data):
            raise
        return xprof_json.profile({file.name: data}, file.name, file.source)


def _tables(files: Sequence[Location], location: Location) -> Profile:
    """Read XProf's tables of one session."""
    folders = sorted({str(file.parent) for file in files})
    if len(folders) > 1:
        raise ProfileNotFound(
            f"{location} holds no raw profile, but tables of {len(folders)} sessions",
            hint=f"load one of {', '.join(folders[:8])}",
        )
    tables = {file.name: storage.read(file).tobytes() for file in files}
    return xprof_json.profile(tables, location.name, location.source)


def sample(name: str) -> Profile:
    """Load a run recorded by this project; an unknown name raises an error that lists all samples.

    >>> sample("keras_cnn").name
    'keras_cnn'
    """
    here = Path(__file__).resolve().parents[1]
    names: set[str] = set()
    for folder in (here / "_samples", here.parent / "datasets" / "sample_profiles"):
        if run_folder.is_run(folder / name):
            return load(folder / name)
        names |= {path.name for path in folder.glob("*") if run_folder.is_run(path)}
    raise ProfileNotFound(f"no sample is named {name!r}", hint=f"samples: {', '.join(sorted(names)) or 'none'}")
