"""Reading profiles, wherever they come from: one verb, and the samples this project recorded itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from tpunb.errors import BadProfile, ProfileNotFound, TpunbError
from tpunb.frames import Profile
from tpunb.io import places, raw_files, run_folder, run_writer, xprof_tables
from tpunb.io.places import PathLike, Place
from tpunb.io.raw_files import ENDINGS


def load(path: PathLike | Iterable[PathLike]) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path
        A run folder that ``tp.capture`` wrote, a profiler's logdir, one ``*.xplane.pb`` or ``*.trace.json`` (each also
        gzipped), or a list of such files, one a host; local, or the URL of any file system that fsspec knows, such as
        ``gs://bucket/logdir``. Where a session of a logdir holds both forms of a host's profile, the XPlane is read;
        of several sessions, all. Without a raw profile, XProf's tables (``*.overview_page.json`` and others) do.

    Raises
    ------
    ProfileNotFound
        Nothing is there, or nothing that is a profile.
    BadProfile
        A file is empty, cut, corrupt or something else; the message names it and what was seen.
    MissingExtra
        The package that speaks a URL's protocol is not installed.
    TpunbError
        A server cannot be reached.
    """
    if not isinstance(path, (str, os.PathLike)):
        return _load_list(path)
    where = places.find(path)
    if not where.is_folder:
        return _file(where)
    files = where.below()
    if run_folder.RUN in files:
        return _run(where, files)
    runs = sorted(found[1] for name in files if (found := re.fullmatch(rf"([^/]+)/{re.escape(run_folder.RUN)}", name)))
    if runs:
        raise ProfileNotFound(f"{where} is no run but holds {len(runs)}", hint=f"load one of {', '.join(runs[:8])}")
    tables = [file for name, file in files.items() if name.endswith(xprof_tables.ENDINGS)]
    if tables and not _raw(files):
        return _tables(tables, where)
    return raw_files.read(_found(where, files), where.name, where.source)


def _load_list(paths: Iterable[PathLike]) -> Profile:
    """Read several logdirs and files as one profile."""
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise TypeError(f"The path parameter of load must be a path or a list of paths. Got {paths!r} instead.")
    every: list[Place] = []
    for where in map(places.find, paths):
        if where.name.endswith(xprof_tables.ENDINGS):
            raise TpunbError(f"{where} is a table of XProf: a list holds raw profiles", hint="load its folder")
        if not where.is_folder:
            every.append(where)
            continue
        files = where.below()
        if run_folder.RUN in files:
            raise TpunbError(f"{where} is a run: a list holds raw profiles", hint="load runs one by one")
        every += _found(where, files)
    if not every:
        raise ProfileNotFound("the list of profiles is empty")
    every = _once(every)
    return raw_files.read(every, every[0].name, every[0].parent.source)


def _found(folder: Place, files: Mapping[str, Place]) -> list[Place]:
    """Return the profiles of a logdir, in the best form of each."""
    if found := _raw(files):
        return found
    raise ProfileNotFound(
        f"{folder} holds no profile: no run.json and no file ending in {', '.join(ENDINGS)}", hint=folder.holds()
    )


def _raw(files: Mapping[str, Place]) -> list[Place]:
    best: dict[str, Place] = {}
    for ending in ENDINGS:
        for name in sorted(files):
            if name.endswith(ending):
                best.setdefault(raw_files.stem(name), files[name])
    return _once([best[name] for name in sorted(best)])


def _once(files: Sequence[Place]) -> list[Place]:
    """Return each file once, by whatever names and links it is given."""
    return list({file.url or os.path.realpath(file.path): file for file in reversed(files)}.values())[::-1]


def _file(file: Place) -> Profile:
    """Read one file: a raw profile, or a table of XProf with those beside it that bear the same prefix."""
    if ending := next((ending for ending in xprof_tables.ENDINGS if file.name.endswith(ending)), None):
        family = [file.name.removesuffix(ending) + other for other in xprof_tables.ENDINGS]
        return _tables([one for one in file.parent.children() if one.name in family] or [file], file)
    try:
        return raw_files.read([file], file.name, file.source)
    except BadProfile:
        data = b"" if file.name.endswith(ENDINGS) else places.read(file).tobytes()
        if not xprof_tables.is_table(data):
            raise
        return xprof_tables.profile({file.name: data}, file.name, file.source)


def _tables(files: Sequence[Place], where: Place) -> Profile:
    """Read the tables that XProf made of one session."""
    folders = sorted({str(file.parent) for file in files})
    if len(folders) > 1:
        raise ProfileNotFound(
            f"{where} holds no raw profile, but the tables of {len(folders)} sessions",
            hint=f"load one of {', '.join(folders[:8])}",
        )
    tables = {file.name: places.read(file).tobytes() for file in files}
    return xprof_tables.profile(tables, where.name, where.source)


def _run(folder: Place, files: Mapping[str, Place]) -> Profile:
    """Read a run folder; of one behind a URL first all but the raw windows, those when they are asked for."""
    if not folder.url:
        return run_folder.read(Path(folder.path), run_folder.raw_windows(files), raw_files.windows)
    for _ in range(run_folder.TRIES):
        fetched, before = _fetched(files), run_folder.parts(files)
        files = places.find(folder.url).below()
        if fetched is not None and run_folder.is_settled(before, run_folder.parts(files)):
            break
    else:
        raise run_folder.restless(folder)
    # a run in memory is there as long as anybody may ask for its raw windows
    raw, read_raw = run_folder.raw_windows(files), partial(_kept_windows, run_writer.keeper(folder.url))
    with TemporaryDirectory(prefix="tpunb-") as aside:
        for name, data in fetched.items():
            path = Path(aside, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            return run_folder.read(Path(aside), raw, read_raw, source=folder.url)
        except BadProfile as error:
            raise BadProfile(str(error).replace(aside, str(folder)), hint=error.hint) from error


def _fetched(files: Mapping[str, Place]) -> dict[str, bytes] | None:
    """Return what `run_folder.read` reads of a run's files; None where any is gone since they were listed."""
    wanted = run_folder.statistics(files)
    came = {name: data for name, data in zip(wanted, places.fetch([*wanted.values()]), strict=True) if data is not None}
    return came if len(came) == len(wanted) else None


def _kept_windows(
    _: object,
    files: Mapping[tuple[int, str], Place],
    origin_ns: int | None,
    begins_ps: Mapping[tuple[int, str], int],
) -> pl.DataFrame:
    return raw_files.windows(files, origin_ns, begins_ps)


def sample(name: str) -> Profile:
    """Load a run that this project recorded itself; an unknown name raises and lists those there are.

    >>> sample("keras_cnn").name
    'keras_cnn'
    """
    here = Path(__file__).resolve().parents[1]
    known = [here / "_samples", here.parent / "datasets" / "sample_profiles"]
    names: set[str] = set()
    for folder in known:
        if run_folder.is_run(folder / name):
            return load(folder / name)
        names |= {path.name for path in folder.glob("*") if run_folder.is_run(path)}
    raise ProfileNotFound(f"no sample is named {name!r}", hint=f"there are {', '.join(sorted(names)) or 'none'}")
