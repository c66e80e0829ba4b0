"""Recorded runs of workloads: those of this project, or yours in the same form."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from tpunb.errors import ProfileNotFound
from tpunb.frames import Profile, Steps
from tpunb.io import load, sample
from tpunb.step_stats.reduce import steps
from tpunb.workloads.catalogue import workload
from tpunb.workloads.cost import Cost
from tpunb.workloads.workload import Workload

ABOUT, TRUTH = "about.toml", "truth.parquet"
"""Files in a run folder: facts about the recording, and the kind of each step."""
NAIVE, TUNED = "naive", "tuned"
FORMS = (NAIVE, TUNED)
"""Forms of a run with the naive input pipeline: as it is, or tuned."""
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
    form
        Form of the input pipeline: None, "naive" or "tuned".
    profile
        Profile of the run.
    metadata
        Facts about the recording: "seconds" of training, "device", "recorded"; of a tuned run the "tuning_seconds"
        before, the "speedup" of a step with its interval, the events of "tuning" and the "values".
    folder
        Folder of the run.
    """

    name: str
    workload: Workload = field(repr=False)
    form: str | None = field(repr=False)
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
    def truth(self) -> pl.DataFrame:
        """Kind of each step from Keras' callbacks: ``step``, ``did``."""
        return pl.read_parquet(self.folder / TRUTH).with_columns(pl.col("did").replace({"test": "eval"}))  # older runs


def recorded(name: str, folder: PathLike | None = None) -> RecordedRun:
    """Return a run recorded by ``python -m tpunb.workloads.record``.

    Parameters
    ----------
    name
        Name of a workload, followed by "-naive" or "-tuned" for a run of that form.
    folder
        Folder of the runs; by default those of this package.

    Raises
    ------
    TpunbError
        No workload has that name.
    ProfileNotFound, BadProfile
        The run does not exist, or cannot be read.

    >>> recorded("bert-mrpc")
    RecordedRun(name='bert-mrpc')
    """
    spec, form = parted(name)
    profile = sample(name) if folder is None else load(Path(folder) / name)
    source = Path(profile.source)
    about = source / ABOUT
    if not about.exists():
        raise ProfileNotFound(f"{source} has no {ABOUT}", hint="record runs of workloads by tpunb.workloads.record")
    return RecordedRun(name, spec, form, profile, tomllib.loads(about.read_text(encoding="utf-8")), source)


def parted(name: str) -> tuple[Workload, str | None]:
    """Return the workload and the form of a run from its name.

    >>> run, form = parted("qanet-squad-naive")
    >>> run.name, form
    ('qanet-squad', 'naive')
    """
    for form in FORMS:
        if name.endswith(f"-{form}"):
            return workload(name.removesuffix(f"-{form}")), form
    return workload(name), None
