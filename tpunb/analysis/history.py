"""Runs over time: one row per run of a folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.analysis.goodput import goodput
from tpunb.analysis.rates import rates_of
from tpunb.cluster import phases
from tpunb.errors import NoSteps, ProfileNotFound, TpunbError, warn_user
from tpunb.frames import Profile
from tpunb.io import run_folder, run_writer, storage
from tpunb.io.storage import Location, PathLike
from tpunb.step_stats.reduce import from_rules
from tpunb.text import format_error, plural

_SHOWN = 3  # runs that the warning names


def runs(folder: PathLike = "runs") -> pl.DataFrame:
    """Return a row for each run in a folder, at any depth, in order of their starts.

    A run costs the time of grouping its steps, and of reading its programs or windows for its MFU. Runs that are
    damaged, or that another program wrote, are left out, with a warning.

    Parameters
    ----------
    folder
        Folder of runs, or one run; local or the URL of any file system that fsspec supports.

    Returns
    -------
    polars.DataFrame
        ``tpunb.schema.RUNS``: null where a run has no record, as of its device.

    Raises
    ------
    ProfileNotFound
        When there is no such folder, or no readable run in it.
    """
    location = storage.find(folder)
    files = location.below() if location.is_folder else {}
    ending = f"/{run_folder.RUN}"
    names = sorted(name[: -len(ending)] for name in (f"/{file}" for file in files) if name.endswith(ending))
    rows, failures = [], list[str]()
    for name in (name.removeprefix("/") for name in names):
        try:
            rows.append({**run_row(_profile(location, files, name)), **({"name": name} if name else {})})
        except TpunbError as error:
            failures.append(f"{name or location.name}: {format_error(error)}")
    if failures:
        more = ["..."] * (len(failures) > _SHOWN)
        listed = "; ".join([*failures[:_SHOWN], *more])
        warn_user(f"{location}: {plural(len(failures), 'run')} left out: {listed}", stacklevel=2)
    if not rows:
        raise ProfileNotFound(f"'{location}' contains no {'readable ' * bool(failures)}run", hint=location.holds())
    return pl.DataFrame(rows, schema=schema.RUNS).sort("started", "name", nulls_last=True)


def _profile(folder: Location, files: dict[str, Location], name: str) -> Profile:
    """Return the run at a path within the folder, "" for the folder itself."""
    if not name:
        return run_folder.read(folder, files, run_writer.keeper(str(folder)))
    url = f"{folder.url.rstrip('/')}/{name}" if folder.url else ""
    run = Location(folder.fs, f"{folder.path.rstrip('/')}/{name}", url)
    below = {path[len(name) + 1 :]: file for path, file in files.items() if path.startswith(f"{name}/")}
    return run_folder.read(run, below, run_writer.keeper(str(run)))


def run_row(profile: Profile, *, flops: bool = True) -> dict[str, Any]:
    """Return a row of RUNS; a run without steps has no goodput and no phases, one without its FLOPs no MFU."""
    metadata = {} if profile.stored is None else profile.stored.metadata
    row = {
        "started": None if profile.origin_ns is None else datetime.fromtimestamp(profile.origin_ns / 1e9, UTC),
        "name": profile.name,
        "program": metadata.get("model"),
        "device": metadata.get("device kind"),
        "wall_ps": profile.span_ps or None,
        "steps": 0,
        "state": profile.state if profile.standing is None else str(profile.standing),
    }
    try:
        steps = from_rules(profile)
    except NoSteps:
        return row
    median = steps.frame.select(pl.col("dur_ps").median().round().cast(pl.Int64)).item()
    row |= {"steps": steps.count, "step_ps": median} if steps.are_counted else {"steps": None}
    try:
        grouped = phases(steps)
    except NoSteps:
        return row
    figures = rates_of(grouped, profile, flops=flops).frame.select("samples_per_s", "tokens_per_s", "mfu")
    share = goodput(grouped).ratio if profile.span_ps else None
    return {**row, "phases": len(grouped), "goodput": share, **next(figures.iter_rows(named=True), {})}
