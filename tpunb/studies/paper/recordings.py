"""Recorded runs of workloads: those of this project, or yours in the same form."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from tpunb.errors import ProfileNotFound
from tpunb.frames import Profile, Steps
from tpunb.io import load, sample
from tpunb.io.formats import samples
from tpunb.step_stats.reduce import steps
from tpunb.studies.paper.workloads.catalogue import workload
from tpunb.studies.paper.workloads.cost import Cost
from tpunb.studies.paper.workloads.workload import Workload

ABOUT, TRUTH = "about.toml", "truth.parquet"
"""Files in a run folder: facts about the recording, and the kind of each step."""
BALANCES, PLAN = "balances", "plan.json"
"""Folder of the runs at balances of input and device, within that of the other runs; file with their marked widths."""
PACKED = "balances.parquet"
"""File with the runs at balances in a clone: ``file``, a path in `BALANCES`, and its ``content``."""
NAIVE, HAND, TUNED = "naive", "hand-optimised", "tuned"
"""Forms of the input pipeline of a run: one call at a time without prefetching; as the workload has it; tuned by us."""
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A recorded run of a workload.

    Attributes
    ----------
    name
        Name of the run.
    workload
        Workload that was trained.
    profile
        Profile of the run.
    metadata
        Facts about the recording: "seconds" of training, "device", "recorded"; at a balance also what
        ``datasets/sample_profiles/record_balances.py`` writes.
    folder
        Folder of the run.
    """

    name: str
    workload: Workload = field(repr=False)
    profile: Profile = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    folder: Path = field(repr=False)

    @cached_property
    def steps(self) -> Steps:
        """Steps of the run."""
        return steps(self.profile)

    @property
    def costs(self) -> Mapping[str, Cost]:
        """Cost of a step by kind, "train" or "eval"; empty if unknown."""
        return {kind: Cost(**facts) for kind, facts in self.metadata.get("cost", {}).items()}

    @cached_property
    def mark(self) -> str | None:
        """Device of the paper that has the balance of the run, of `tpunb.studies.paper.FASTER`; None without one."""
        plan = self.folder.parent / PLAN
        marks = json.loads(plan.read_text(encoding="utf-8"))["marks"] if plan.exists() else {}
        return next((mark for mark, width in marks.items() if width == self.metadata.get("width")), None)

    @cached_property
    def truth(self) -> pl.DataFrame:
        """Kind of each step from Keras' callbacks: ``step``, ``did``."""
        return pl.read_parquet(self.folder / TRUTH).with_columns(pl.col("did").replace({"test": "eval"}))  # older runs


def recorded(name: str, folder: PathLike | None = None) -> RecordedRun:
    """Return a run recorded by ``python -m tpunb.studies.paper.record``.

    Parameters
    ----------
    name
        Name of a workload.
    folder
        Folder of the runs; by default those of a clone.

    Raises
    ------
    TpunbError
        No workload has that name.
    ProfileNotFound, BadProfile
        The run does not exist, or cannot be read.

    >>> recorded("bert-mrpc")
    RecordedRun(name='bert-mrpc')
    """
    spec = workload(name)
    return _read(sample(name) if folder is None else load(Path(folder) / name), spec)


def recorded_balances(folder: PathLike | None = None, name: str = "*") -> list[RecordedRun]:
    """Return the runs recorded at balances of input and device by ``datasets/sample_profiles/record_balances.py``.

    Parameters
    ----------
    folder
        Folder of the runs; by default those of a clone.
    name
        Name of the workload; by default all.

    Raises
    ------
    ProfileNotFound, BadProfile
        There are no such runs, or one cannot be read.
    """
    home = samples() if folder is None else Path(folder)
    if folder is None and not (home / BALANCES).exists() and (home / PACKED).exists():
        home = Path(_unpacked(home / PACKED).name)
    files = sorted((home / BALANCES).glob(f"{name}/*/{ABOUT}"))
    if not files:
        raise ProfileNotFound(
            f"{home} has no runs at balances", hint="use a clone, or record them by record_balances.py"
        )
    return [_read(load(each.parent)) for each in files]


def unpack(file: Path, folder: Path) -> None:
    """Write the runs at balances of a file to a folder."""
    for name, content in pl.read_parquet(file).iter_rows():
        target = folder / BALANCES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


@cache
def _unpacked(file: Path) -> TemporaryDirectory[str]:
    """Return a folder with the runs of a file, which is removed as the process ends."""
    folder = TemporaryDirectory(prefix="tpunb-")
    unpack(file, Path(folder.name))
    return folder


def _read(profile: Profile, spec: Workload | None = None) -> RecordedRun:
    """Return a run with the facts about it."""
    source = Path(profile.source)
    if not (about := source / ABOUT).exists():
        raise ProfileNotFound(f"{source} has no {ABOUT}", hint="record runs of workloads by tpunb.studies.paper.record")
    metadata = tomllib.loads(about.read_text(encoding="utf-8"))
    return RecordedRun(source.name, spec or workload(metadata["workload"]), profile, metadata, source)
