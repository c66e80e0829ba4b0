"""What every verb reads: a path, a noun or a result. What is missing is loaded, reduced and grouped."""

from __future__ import annotations

from copy import copy
from os import PathLike
from typing import Literal, Self

from tpunb.cluster import assign
from tpunb.errors import wrong_type
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.phases import PhaseMethod
from tpunb.io import load
from tpunb.step_stats import reduce
from tpunb.step_stats.reduce import StepRule


class OfRun:
    """A result that verbs take in place of the run that it is about."""

    made_of: Profile | Steps | Phases | None = None

    def about(self, run: Profile | Steps | Phases) -> Self:
        """Return a copy that is about this run: results that are cached do not hold it."""
        result = copy(self)
        object.__setattr__(result, "made_of", run)
        return result


Run = str | PathLike[str] | Profile | Steps | Phases | OfRun
"""A run: the path or URL that ``tp.load`` takes, or what was made of it."""

_HINT = "give its path, or what tp.load or a cell with %%tpupoint returned (tpu); of a comparison, its a or b"


def loaded(run: Run, verb: str, name: str = "run") -> Profile | Steps | Phases:
    """Return a run, loaded if it is a path; a TypeError that names the parameter of the verb if it is none."""
    noun = run.made_of if isinstance(run, OfRun) else run
    if isinstance(noun, str | PathLike):
        return load(noun)
    if not isinstance(noun, Profile | Steps | Phases):
        raise wrong_type(verb, name, "be the path of a run, a Profile, Steps or Phases", run, hint=_HINT)
    return noun


def steps(run: Run, by: StepRule | Literal["whole", "module"] | None = None) -> Steps:
    """Return the steps of a run; ``steps.frame["rule"]`` says how they were found.

    If no rule of :mod:`tpunb.step_stats.boundaries` finds a step, each run of a module is one, or the whole capture.

    Parameters
    ----------
    run
        Path of the run, or its Profile. Steps are returned as they are, of Phases those that were grouped.
    by
        Step rule: a function of the profile that returns one row per (host, step) with ``start_ps`` and ``dur_ps`` in
        picoseconds of the profile, optionally ``kind`` and ``traced``. "whole": the whole capture is one step a host.
        "module": each run of any compiled module is a step of that kind. Requires raw events.

    Raises
    ------
    TypeError
        When `run` is something else, or `by` is given for what is no profile.
    NoSteps
        When no rule finds a step and the profile holds no operations; the message lists the rules.
    ValueError
        When `by` is another text.
    TpunbError
        When `by` is given and the profile has no raw events.
    """
    found = loaded(run, "steps")
    if isinstance(found, Profile):
        return reduce.steps(found, by)
    if by is not None:
        raise wrong_type("steps", "run", "be a Profile or its path if by is given", run)
    return found.steps if isinstance(found, Phases) else found


def phases(run: Run, method: PhaseMethod | str | None = None) -> Phases:
    """Group the steps of a run into phases.

    The method labels the steps traced in full. Every other step takes the label of the nearest of them in time, by the
    middle of the step, that has its host and its kind, saved a checkpoint if it did, and is not an outlier; the earlier
    of two as near. If the clock timed the step, candidates of similar step time come first: without callbacks, and
    where it is known with and without input wait. If its host has no candidate, other hosts serve. A kind without
    candidates is a phase by itself, whose ``full`` is 0: in a run without windows, where the clock timed the steps,
    each kind.

    Steps of one kind are of several where the program marks that something else begins, by a call of ``fit``, by tuning
    in its midst, or by tracing or compiling a function again, and the median exclusive time of the steps is another:
    1.5 times as long or more, with three quarters of the steps above three quarters of the other, from 20 steps and 5 %
    of the time on.

    A step not traced in full is an outlier if it takes more than 5 times the median of its phase and more than 20 ms
    longer, both without callbacks and known input wait; `Phases.labelled` has its reason. Both bounds leave out noise:
    20 ms are time slices of a busy machine, and of short steps many take 5 times the median. The median is that of the
    steps traced in full, of all if there are none; of an even number the lower, so one slow step of two is found.

    Steps of several hosts are grouped once for each role, a set of hosts that run one program: a phase is a property of
    the job's step, and each host has the label of the step in which it takes part (:mod:`tpunb.cluster.assign`).

    Parameters
    ----------
    run
        Path of the run, its Profile, or Steps. Phases are returned as they are without a `method`, else grouped anew.
    method
        ``DBSCAN()`` by default; ``OLS()``, ``OLSPlus()``, ``KMeans()``, ``HDBSCAN()``, or the name of one, such as
        "olsplus"; or any function from `Steps` to one int per step, -1 for outliers.

    Raises
    ------
    TypeError
        If `run` is something else, or `method` is not a function of steps.
    ValueError
        If no method has that name.
    NoSteps
        If there are no steps, or none was traced in full or timed.
    BadProfile
        If the method does not return one int of -1 or more per step; if a host has two steps of the same number, or
        a step or an operation has no name.

    >>> from tpunb.testing import toy_steps
    >>> phases(toy_steps("aaabbb"))
    Phases(2 phases over 6 steps, DBSCAN(), top 3 cover 100.0 % of step time without waits)
    >>> phases(toy_steps("aaabbb"), lambda steps: range(len(steps))).labels.to_list()
    [0, 1, 2, 3, 4, 5]
    """
    found = loaded(run, "phases")
    if isinstance(found, Phases) and method is None:
        return found
    return assign.phases(steps(found), method)
