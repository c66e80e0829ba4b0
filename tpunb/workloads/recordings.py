"""Runs of workloads as they were recorded: this project's own, or yours in the same form."""

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
from tpunb.stepping import steps
from tpunb.workloads.catalogue import workload
from tpunb.workloads.cost import Cost
from tpunb.workloads.workload import Workload

ABOUT, TRUTH = "about.toml", "truth.parquet"
"""Beside a run: how it was made, and what each step did."""
NAIVE, TUNED = "naive", "tuned"
FORMS = (NAIVE, TUNED)
"""Of a run whose input pipeline is the naive one: as it is, or tuned."""
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Recording:
    """A whole run of a workload.

    Attributes
    ----------
    name
        Of the run.
    workload
        What ran.
    form
        None, "naive" or "tuned", of the input pipeline.
    profile
        What was recorded.
    about
        How it was made: "seconds" the training took, "device", "recorded"; of a tuned one "tuning_seconds" before it,
        the "speedup" of a step and its interval, what was "tuning" and the "values" it went with.
    folder
        Where it is.
    """

    name: str
    workload: Workload = field(repr=False)
    form: str | None = field(repr=False)
    profile: Profile = field(repr=False)
    about: Mapping[str, Any] = field(repr=False)
    folder: Path = field(repr=False)

    @cached_property
    def steps(self) -> Steps:
        """What ran in each of its steps."""
        return steps(self.profile)

    @property
    def costs(self) -> Mapping[str, Cost]:
        """What a step costs by its mark, "train" or "test"; nothing where it is not known."""
        known = self.about.get("cost", {})
        marks = {"train": "train", "eval": "test"}
        return {marks[split]: Cost(**facts) for split, facts in known.items()}

    @cached_property
    def truth(self) -> pl.DataFrame:
        """What each step did, by Keras' own callbacks: ``step``, ``did``."""
        return pl.read_parquet(self.folder / TRUTH)


def recorded(name: str, folder: PathLike | None = None) -> Recording:
    """Return a run that ``python -m tpunb.workloads.record`` wrote.

    Parameters
    ----------
    name
        Of a workload, with "-naive" or "-tuned" behind it where it is the run of that form.
    folder
        That of the runs; those that come with this package, if None.

    Raises
    ------
    TpunbError
        When no workload is called so.
    ProfileNotFound, BadProfile
        When there is no such run, or it cannot be read.

    >>> recorded("bert-mrpc")
    Recording(name='bert-mrpc')
    """
    of, form = parted(name)
    profile = sample(name) if folder is None else load(Path(folder) / name)
    where = Path(profile.source)
    about = where / ABOUT
    if not about.exists():
        raise ProfileNotFound(
            f"{where} has no {ABOUT}", hint="runs of workloads are recorded by tpunb.workloads.record"
        )
    return Recording(name, of, form, profile, tomllib.loads(about.read_text(encoding="utf-8")), where)


def parted(name: str) -> tuple[Workload, str | None]:
    """Return the workload and the form that the name of a run tells.

    >>> of, form = parted("qanet-squad-naive")
    >>> of.name, form
    ('qanet-squad', 'naive')
    """
    for form in FORMS:
        if name.endswith(f"-{form}"):
            return workload(name.removesuffix(f"-{form}")), form
    return workload(name), None
