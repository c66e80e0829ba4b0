"""Load profiles of any format, and the samples recorded by this project."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import polars as pl

from tpunb.errors import BadProfile, ProfileNotFound, TpunbError, warn_user, wrong_type
from tpunb.frames import Profile
from tpunb.frames.conversion import read_file
from tpunb.frames.hardware import Device
from tpunb.frames.hardware import device as device_named
from tpunb.frames.profile import device_kinds
from tpunb.io import (
    goodput_events,
    host_files,
    job_folder,
    logdir,
    operation_table,
    run_folder,
    run_writer,
    storage,
    storage_benchmark,
    xprof_json,
)
from tpunb.io.host_files import ENDINGS, stem
from tpunb.io.storage import Location, PathLike
from tpunb.text import cut, plain, plural

MANY = 64
"""Files above which a profile is reduced to statistics while it is loaded."""


def load(
    path: PathLike | Iterable[PathLike],
    *,
    device: str | None = None,
    client: Any = None,
    costs: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path
        Run folder of ``tp.capture``, folder with those of a job's ranks (``rank0``, ``rank1``, ...), logdir of a
        profiler, one ``*.xplane.pb``, ``*.xplane.riegeli`` or ``*.trace.json`` (each also gzipped), or a list of such
        files, one per host; local, or the URL of any file system that fsspec supports, such as ``gs://bucket/logdir``.
        All sessions of a logdir are read, and the XPlane where a session has both forms. Without a raw profile, exports
        of Nsight Systems (``*.sqlite``, a folder of ``*.parquet``) and rocprofv3 (``*_results.json``,
        ``*_results.db``), XProf's tables (``*.overview_page.json`` and others), goodput events (``*.jsonl``), the
        ``N_output.json`` of DLIO or a table of operations of a job with pipeline parallelism (Parquet or CSV) are read.
        A list may also have run folders of one job, one per process.
    device
        Name of the device in ``tpunb.analysis.DEVICES``, for files that do not name it: gives its kind and peaks.
    client
        ``distributed.Client``, or the address of a scheduler: its workers read the files, which they must see under the
        same names, and return statistics. Without a client more than 64 files are reduced likewise in this process.
    costs
        FLOPs and bytes of one call, for operations of which neither the profiler nor a rule knows them: by name of the
        kernel, HLO instruction or operator, such as ``{"my::attention": (2e9, 3e6)}``. None for what is unknown.

    Returns
    -------
    Profile
        Of several files, damaged ones, copies and those of another run are left out, with a warning: see ``skipped``.
        The Chrome trace of a capture is read where its XPlane is damaged. With a client, or more than 64 files, the
        steps are those of the job (``Steps.by_host`` has its hosts) and raw events are not kept.

    Raises
    ------
    ProfileNotFound
        When there is no profile at the path.
    BadProfile
        When a file is empty, truncated, corrupt or of another format, and no other can be read; the message names it.
    ValueError
        When the device is unknown, or the profile has none that may be of this kind.
    MissingExtra
        When the package for the protocol of a URL, or for ``*.xplane.riegeli``, is not installed.
    TpunbError
        When a server or the scheduler cannot be reached, or its workers have other versions.
    """
    named = None if device is None else device_named(device)
    if client is None:
        profile = _load(path, None)
    else:
        from tpunb.io import dask_engine

        with dask_engine.connected(client) as engine:
            profile = _load(path, engine)
    if profile.skipped:
        warn_user(logdir.skip_message(profile.name, profile.skipped), stacklevel=2)
    if profile.notes:
        warn_user("; ".join(profile.notes[:3]), stacklevel=2)
    profile = profile if costs is None else _costed(profile, costs)
    return profile if named is None else _on(named, profile)


def _load(path: PathLike | Iterable[PathLike], engine: Any = None) -> Profile:
    if not isinstance(path, (str, os.PathLike)):
        return _load_list(path, engine)
    location = storage.find(path)
    if location.is_folder and not location.url and (runs := _runs_in(Path(location.path))):
        raise _not_a_run(location, runs)
    files = location.below() if location.is_folder else {location.name: location}
    for form in FORMATS:
        fitting = [file for name, file in files.items() if name.endswith(form.endings)]
        if fitting and (profile := form.read(fitting, location, files, engine)) is not None:
            return profile
    if location.is_folder:
        raise _no_profile(location)
    return _by_content(location)


def run_at(path: PathLike) -> Location | None:
    """Return the location of a local run folder; None for another profile."""
    location = storage.find(path)
    return None if location.url or not run_folder.is_run(Path(location.path)) else location


class Format(NamedTuple):
    """A form in which profiles are stored."""

    endings: tuple[str, ...]
    """Ends of the names of its files."""
    read: Callable[[Sequence[Location], Location, Mapping[str, Location], Any], Profile | None]
    """Function of the fitting files, the file or folder to load, all its files by name, and the engine of a cluster;
    None if they are something else after all."""


def _run(fitting: Sequence[Location], folder: Location, files: Mapping[str, Location], engine: Any) -> Profile | None:
    """Read a run folder, or those of a job's processes in a folder; a folder of other runs is refused."""
    if run_folder.RUN in files and folder.is_folder:
        return run_folder.read(folder, files, run_writer.keeper(str(folder)))
    if members := job_folder.members(files):
        top = str(folder).rstrip("/")
        job = _load_list([f"{top}/{name}" for name in members], engine)
        earlier = {name.partition("/")[0] for name in files if job_folder.ATTEMPT.match(name)}
        notes = [f"{plural(len(earlier), 'earlier attempt')} of the job: tp.job({top!r}) reads all"] * bool(earlier)
        notes += filter(None, [job_folder.missing(members, files)])
        stored = None if job.stored is None else replace(job.stored, name=folder.name)
        return replace(job, name=folder.name, source=folder.source, stored=stored, notes=[*job.notes, *notes])
    if runs := _runs(files):
        raise _not_a_run(folder, runs)
    return None


def attempts(runs: PathLike | Iterable[PathLike | Profile]) -> list[Profile]:
    """Return the attempts of a job: of a folder of runs, a file of goodput events, or a list of those and Profiles."""
    if not isinstance(runs, (str, os.PathLike)):
        if isinstance(runs, (bytes, bytearray)) or not isinstance(runs, Iterable):
            raise wrong_type("job", "runs", "be a path or a list of runs", runs)
        found = [each for run in runs for each in ([run] if isinstance(run, Profile) else attempts(run))]
        if not found:
            raise ProfileNotFound("the list of attempts is empty")
        return found
    location = storage.find(runs)
    if not location.is_folder:
        return goodput_events.attempts(location) or [load(runs)]
    files = location.below()
    below = {_MEMBERS.sub("", name) for name in _runs(files)}
    earlier = sorted(filter(job_folder.ATTEMPT.fullmatch, below), key=lambda name: (len(name), name))
    if run_folder.RUN in files or "" in below:
        return [*(load(f"{str(location).rstrip('/')}/{name}") for name in earlier), _load(runs)]
    below |= {name for name in files if name.endswith(goodput_events.ENDING)}
    if not below:
        raise _no_profile(location)
    top, events = str(location).rstrip("/"), goodput_events.ENDING  # whose attempts have names
    of_names = [(name, each) for name in sorted(below) for each in attempts(f"{top}/{name}")]
    return [each if name.endswith(events) else replace(each, name=name) for name, each in of_names]


_MEMBERS = re.compile(rf"(^|/)({job_folder.MEMBER.pattern})$")


def _not_a_run(folder: Location, runs: Sequence[str]) -> ProfileNotFound:
    number = plural(len(runs), "run") if len(runs) < _MANY_RUNS else f"{_MANY_RUNS} runs or more"
    return ProfileNotFound(
        f"{str(folder)!r} is not a run folder; it contains {number}", hint=f"load one of {', '.join(runs[:8])}"
    )


_MANY_RUNS = 256


def _runs_in(top: Path) -> list[str]:
    """Return the runs below a local folder that is neither one nor that of a job's ranks; of many the first."""
    runs = list[str]()
    if run_folder.is_run(top):
        return runs
    for parent, folders, names in os.walk(top):
        folders.sort(key=lambda name: (job_folder.MEMBER.fullmatch(name) is None, name))
        if run_folder.RUN in names:
            name = Path(parent).relative_to(top).as_posix()
            if job_folder.MEMBER.fullmatch(name):
                return []
            with suppress(OSError, BadProfile):
                runs += [name] * (b'"tpunb"' in read_file(Path(parent, run_folder.RUN)))
                folders.clear()
        if len(runs) == _MANY_RUNS:
            break
    return runs


def _raw(fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any) -> Profile:
    if not where.is_folder:
        return logdir.read(fitting, where.name, where.source)
    return _raw_files(_best_forms(files), where.name, where.source, engine)


def _exports(fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any) -> Profile:
    return logdir.read(fitting, where.name, where.source)


def _parquet(fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any) -> Profile:
    """Read exports that are a folder each."""
    return logdir.read(_unique([file.parent for file in fitting]), where.name, where.source)


def _step_tables(fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any) -> Profile:
    """Read XProf's tables, of a file also those of the same prefix beside it."""
    if where.is_folder:
        return _tables([file for name, file in files.items() if name.endswith(xprof_json.ENDINGS)], where)
    ending = next(ending for ending in xprof_json.ENDINGS if where.name.endswith(ending))
    family = [where.name.removesuffix(ending) + other for other in xprof_json.ENDINGS]
    return _tables([child for child in where.parent.children() if child.name in family] or [where], where)


def _op_tables(fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any) -> Profile:
    return _tables(fitting, where, xprof_json.op_profile)


def _operations(
    fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any
) -> Profile | None:
    tables = [(file, operation_table.profile(file, where.name, where.source)) for file in fitting[:_MOST_TABLES]]
    found = [(file.name, profile) for file, profile in tables if profile is not None]
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise ProfileNotFound(f"{where} holds {len(found)} tables of operations", hint=f"load one of {names}")
    return found[0][1] if found else None


def _storage_benchmark(
    fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any
) -> Profile:
    folders = sorted({str(file.parent) for file in fitting})
    if len(folders) > 1:
        raise ProfileNotFound(
            f"{where} holds results of {len(folders)} runs of DLIO", hint=f"load one of {', '.join(folders[:8])}"
        )
    names = (storage_benchmark.EPOCHS, *[storage_benchmark.SUMMARY] * where.is_folder)
    beside = [file for file in fitting[0].parent.children() if file.name.endswith(names)]
    contents = {file.name: storage.read(file).tobytes() for file in [*fitting, *beside]}
    return storage_benchmark.profile(contents, where.name, where.source)


_MOST_TABLES = 8  # of a folder, which may hold any others


def _tables_of_2020(
    fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any
) -> NoReturn:
    raise BadProfile(
        f"{min(fitting, key=str)}: a table of XProf in the binary form of 2020, which is not supported",
        hint=f"load the run's *.xplane.pb, or XProf's tables as JSON ({', '.join(xprof_json.STEP_TABLES[:2])})",
    )


FORMATS = (
    Format((run_folder.RUN,), _run),
    Format(ENDINGS, _raw),  # XPlanes and Chrome traces
    Format(host_files.DATABASES, _exports),
    Format(host_files.PARQUET, _parquet),
    Format((*xprof_json.STEP_TABLES, *xprof_json.MEMORY_TABLES), _step_tables),
    Format(xprof_json.OP_TABLES, _op_tables),
    Format(("overview_page.pb", "input_pipeline.pb", "pod_viewer.pb"), _tables_of_2020),
    Format((storage_benchmark.ENDING,), _storage_benchmark),
    Format((goodput_events.ENDING,), goodput_events.read),
    Format(host_files.RESULTS, _exports),
    Format(operation_table.ENDINGS, _operations),
)
"""Formats in the order in which `load` asks for their files."""


def _by_content(file: Location) -> Profile:
    """Read a file of another name: a raw profile, or a table of XProf."""
    if file.name.endswith(".parquet"):
        raise BadProfile(f"{file} is a table, not a profile", hint="load a run (a sweep: Sweep.read in Python)")
    try:
        return logdir.read([file], file.name, file.source)
    except BadProfile:
        data = storage.read(file).tobytes()
        if not xprof_json.is_table(data):
            raise
        return xprof_json.profile({file.name: data}, file.name, file.source)


def _no_profile(folder: Location) -> ProfileNotFound:
    return ProfileNotFound(
        f"{folder} holds no profile: no run.json and no file ending in {', '.join(ENDINGS)}", hint=folder.holds()
    )


def _raw_files(files: Sequence[Location], name: str, source: Path | str, engine: Any, forms: bool = True) -> Profile:
    """Read raw files with their events, or as statistics where they are many or read by a cluster."""
    if engine is None and len(files) <= MANY:
        return logdir.read(files, name, source, forms=forms)
    from tpunb.io import cluster_load

    return cluster_load.read(files, name, source, engine)


def _runs(files: Mapping[str, Location]) -> list[str]:
    """Return the paths of the runs in a folder, at any depth; a ``run.json`` of another program is none."""
    runs = []
    for name in sorted(files):
        if name.endswith(f"/{run_folder.RUN}"):
            with suppress(BadProfile):
                if b'"tpunb"' in storage.read_small(files[name]):
                    runs.append(name.rpartition("/")[0])
    return runs


def _costed(profile: Profile, costs: Mapping[str, tuple[float | None, float | None]]) -> Profile:
    """Return a profile whose events have the work that the caller gave, where none is known."""
    if profile.read_events is None:
        raise TpunbError(f"costs cannot be applied to {profile.name}: it holds statistics only", hint="load raw events")
    given, found = dict[str, tuple[float | None, float | None]](), {*_names(profile.events).unique()}
    for name, work in costs.items():
        if not (isinstance(work, tuple) and len(work) == 2 and all(map(_is_work, work))):
            raise ValueError(
                f"The costs parameter of load must have FLOPs and bytes of a call. Got {work!r} of {name!r} instead."
            )
        if name in found:
            given[name] = work
        else:
            warn_user(f"{profile.name}: no operation of unknown work is named {cut(plain(name))}", stacklevel=3)
    read, batches = profile.read_events, profile.read_batches
    if not given:
        return profile
    return replace(
        profile,
        given=frozenset(given),
        read_events=lambda: _with_work(read(), given),
        read_batches=[lambda each=each: _with_work(each(), given) for each in batches],  # type: ignore[misc]
    )


_MOST_WORK = 2**62
_NAMED_BY = ("hlo_op", "tf_op", "name")
_ON_DEVICE = pl.col("plane").cast(pl.String).str.starts_with("/device:")


def _is_work(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and 0 <= value < _MOST_WORK)


def _is_unknown(events: pl.DataFrame) -> pl.Expr:
    """Return whether nobody knows the work of an event of a device, or of the host if there is none."""
    unset = (pl.col("category").cast(pl.String) == "custom-call") & (pl.col("flops") == 0)
    here = _ON_DEVICE if events.select(_ON_DEVICE.any()).item() else ~_ON_DEVICE
    return here & (pl.col("flops").is_null() | unset.fill_null(value=False))


def _names(events: pl.DataFrame) -> pl.Series:
    """Return names of operations whose work is unknown."""
    unknown = events.filter(_is_unknown(events))
    return pl.concat([unknown[name].cast(pl.String).unique() for name in _NAMED_BY])


def _with_work(events: pl.DataFrame, given: Mapping[str, tuple[float | None, float | None]]) -> pl.DataFrame:
    """Return events with given work, that of an instruction or operator divided among its kernels by their time."""
    rows = events.with_columns(pl.col(name).cast(pl.String).alias(f"by_{name}") for name in _NAMED_BY)
    here = _is_unknown(rows)
    calls = rows.filter(~_ON_DEVICE).group_by("host", by_tf_op="by_name").len("calls")
    rows = rows.join(calls, on=["host", "by_tf_op"], how="left", maintain_order="left")
    instruction, operator = ["host", "plane", "program", "by_hlo_op"], ["host", "by_tf_op"]
    # in each run, every kernel of an instruction runs once or more often
    runs = pl.len().over(*instruction, "by_name").min().over(instruction)
    per_ps = {
        "hlo_op": runs / pl.col("dur_ps").filter(here).sum().over(instruction),
        "tf_op": pl.col("calls") / pl.col("dur_ps").filter(here).sum().over(operator),
        "name": 1 / pl.col("dur_ps"),
    }
    work = {}
    for at, column in enumerate(("flops", "bytes")):
        values = {name: costs[at] for name, costs in given.items()}
        amounts = {
            name: pl.col(f"by_{name}").replace_strict(values, default=None, return_dtype=pl.Float64)
            for name in _NAMED_BY
        }
        amount = pl.coalesce(amount * per_ps[name] * pl.col("dur_ps") for name, amount in amounts.items())
        work[column] = pl.when(here & amount.is_finite()).then(amount.round()).cast(pl.Int64, strict=False)
        work[column] = pl.coalesce(work[column], column)
    return rows.with_columns(**work).select(events.columns)


def _on(chip: Device, profile: Profile) -> Profile:
    """Return a profile with the kind and the peaks of its devices where the files do not name them."""
    family = "TPU" if chip.name.startswith("TPU") else "GPU"
    kind = pl.col("kind").fill_null("")
    nameless = kind.is_in(["", family]) | kind.str.contains(rf"^\S+ {family}( \(compute|$)")
    unnamed = nameless | kind.is_in([chip.name, *chip.kinds])
    unnamed &= pl.col("device").str.starts_with(f"/device:{family}:")
    if profile.hardware.filter(unnamed).is_empty():
        kinds = device_kinds(profile.hardware) or "no device"
        raise ValueError(f"The device parameter of load must fit the profile. Got {chip.name!r} for {kinds}.")
    peaks = {"peak_flops": chip.peak_flops / chip.cores, "hbm_bandwidth": chip.bandwidth / chip.cores}
    hardware = profile.hardware.with_columns(
        kind=pl.when(unnamed & nameless).then(pl.lit(chip.name)).otherwise("kind"),
        **{name: pl.when(unnamed).then(pl.col(name).fill_null(peak)).otherwise(name) for name, peak in peaks.items()},
    )
    stored = profile.stored
    if stored is not None:
        stored = replace(stored, metadata={**stored.metadata, "device kind": device_kinds(hardware)})
    return replace(profile, hardware=hardware, stored=stored)


def _load_list(paths: Iterable[PathLike], engine: Any) -> Profile:
    """Read several logdirs and files, or several run folders, as one profile."""
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise wrong_type("load", "path", "be a path or a list of paths", paths)
    profiles, runs = list[Location](), dict[Location, Mapping[str, Location]]()
    for location in map(storage.find, paths):
        tables = {"XProf": (*xprof_json.ENDINGS, *xprof_json.OP_TABLES), "DLIO": (storage_benchmark.ENDING,)}
        for tool, endings in tables.items():
            if location.name.endswith(endings):
                raise TpunbError(f"{location} is a table of {tool}, not a raw profile", hint="load its folder")
        if not location.is_folder:
            profiles.append(location)
        elif run_folder.RUN in (files := location.below()):
            runs[location] = files
        else:
            found = _best_forms(files)
            if not found:
                raise _no_profile(location)
            profiles += found
    if profiles and runs:
        raise TpunbError(
            f"{next(iter(runs))} is a run, not a raw profile", hint="load runs and raw profiles one by one"
        )
    if not profiles and not runs:
        raise ProfileNotFound("the list of profiles is empty")
    if runs and engine is None and len(runs) <= MANY:
        return host_files.together(*_without_copies([run_folder.read(folder, files) for folder, files in runs.items()]))
    found = _unique(profiles or [*runs])
    return _raw_files(found, found[0].name, found[0].parent.source, engine, len(found) > 1)


def _without_copies(runs: Sequence[Profile]) -> tuple[list[Profile], list[tuple[str, str]]]:
    """Return the runs that are no copies of an earlier one, and each copy with the reason why it is left out."""
    kept, copies = list[Profile](), list[tuple[str, str]]()
    for run in runs:
        same = (each for each in kept if each.origin_ns == run.origin_ns is not None and _equal_steps(each, run))
        if (first := next(same, None)) is None:
            kept.append(run)
        else:
            copies.append((str(run.source), f"a copy of {first.source}"))
    return kept, copies


def _equal_steps(a: Profile, b: Profile) -> bool:
    return a.stored is not None and b.stored is not None and a.stored.frame.equals(b.stored.frame)


def _best_forms(files: Mapping[str, Location]) -> list[Location]:
    """Return the raw profiles of a logdir, in the best form of each."""
    best: dict[str, Location] = {}
    for ending in ENDINGS:
        for name in sorted(files):
            if name.endswith(ending):
                best.setdefault(stem(name), files[name])
    return _unique([best[name] for name in sorted(best)])


def _unique(files: Sequence[Location]) -> list[Location]:
    """Return each file once, links resolved."""
    return list({file.url or os.path.realpath(file.path): file for file in reversed(files)}.values())[::-1]


def _tables(files: Sequence[Location], location: Location, read: Callable[..., Profile] | None = None) -> Profile:
    """Read XProf's tables of one session."""
    folders = sorted({str(file.parent) for file in files})
    if len(folders) > 1:
        raise ProfileNotFound(
            f"{location} holds no raw profile, but tables of {len(folders)} sessions",
            hint=f"load one of {', '.join(folders[:8])}",
        )
    plain = {file.name.removesuffix(".gz"): file for file in sorted(files, key=lambda file: file.name, reverse=True)}
    tables: dict[str, bytes | BadProfile] = {}
    for file in plain.values():
        try:
            tables[file.name] = storage.read(file).tobytes()
        except BadProfile as error:
            tables[file.name] = BadProfile(str(error).replace(str(file), file.name), hint=error.hint)
    return (read or xprof_json.profile)(tables, location.name, location.source)


def sample(name: str) -> Profile:
    """Load a run recorded by this project; an unknown name raises an error that lists all samples.

    >>> sample("keras_cnn").name
    'keras_cnn'
    """
    if run_folder.is_run(samples() / name):
        return _load(samples() / name)
    names = sorted(path.name for path in samples().glob("*") if run_folder.is_run(path))
    raise ProfileNotFound(f"no sample is named {name!r}", hint=f"samples: {', '.join(names) or 'none'}")


def samples() -> Path:
    """Return the folder of the runs recorded by this project: of the package, or of its source tree."""
    here = Path(__file__).resolve().parents[1]
    return here / "_samples" if (here / "_samples").exists() else here.parent / "datasets" / "sample_profiles"
