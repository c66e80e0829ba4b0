"""Goodput of a job over its attempts: runs that were killed, resumed and resized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.analysis.goodput import Goodput, Stretches, of_stretches, stretches
from tpunb.analysis.time_line import INSIDE_STEPS
from tpunb.errors import BadProfile, IncompatibleRuns, wrong_type
from tpunb.frames import Profile
from tpunb.frames.steps import WallClock, trained
from tpunb.io import goodput_events
from tpunb.io.formats import attempts
from tpunb.io.storage import PathLike
from tpunb.text import cut, duration, plain, plural

_APART = 2**40  # between the numbers of steps and units of two attempts
_LOST = "lost progress"
_CLOCKS = ("stalls", "load", "samples")  # what clocks record, besides the spans of accounts


@dataclass(frozen=True, eq=False, repr=False)
class JobGoodput(Goodput):
    """Where the wall time of a job went, from the start of its first attempt to the end of its last.

    It has the frames of :class:`Goodput`, without phases. The hosts of an attempt are numbered in the order of their
    names: "host 0" is the first of each.

    Parameters
    ----------
    attempts
        One row per attempt: ``tpunb.schema.ATTEMPTS``.
    """

    attempts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.ATTEMPTS))

    @property
    def sentence(self) -> str:
        """Where the time went, in one sentence."""
        return f"{plural(self.attempts.height, 'attempt')} in {super().sentence}"


@dataclass(frozen=True, eq=False)
class _Attempt:
    """An attempt, in the time and with the hosts of the job; its steps and units have numbers of their own."""

    name: str
    origin_ns: int
    start_ps: int
    hosts: int
    time: Stretches
    steps: pl.DataFrame  # (host, trained, number, start_ps, end_ps) of training steps: `number` in the job, if known
    first: int | None  # of these numbers

    @property
    def end_ps(self) -> int:
        return self.start_ps + self.time.wall_ps


def job(runs: PathLike | Iterable[PathLike | Profile]) -> JobGoodput:
    """Account for the wall time of a job over all its attempts.

    The wall time of an attempt is in the accounts of ``tp.goodput``, but for *lost progress*: from its first training
    step that a later attempt trained again, because it resumed from an earlier checkpoint, to its end. Before each
    other attempt is *downtime*. Where the attempts run on different numbers of hosts, the time of the hosts that an
    attempt does not run on is *resizing*.

    The number of a step in the job is that of the program (``run.step(number)``, step annotations, event records), in
    a fit of Keras that of its optimizer. Where it is unknown, so is the lost progress, and productive time is the most
    that it may be: `notes` say so. The record of an attempt that was killed ends with its last step or window.

    Parameters
    ----------
    runs
        A folder with a run folder per attempt, which may hold those of its ranks; a file of goodput events; or a list
        of what ``tp.load`` takes, of files of goodput events, and of Profiles.

    Returns
    -------
    JobGoodput
        Each host adds up to the time from the start of the first attempt to the end of the last, to the picosecond.

    Raises
    ------
    ProfileNotFound
        If there is no attempt.
    BadProfile
        If attempts overlap in time, or one has no time of day.
    IncompatibleRuns
        If attempts trained different models.
    TypeError
        If an attempt is something else.
    """
    profiles = attempts(runs)
    for profile in profiles:
        if profile.origin_ns is None:
            raise BadProfile(f"{profile.name}: an attempt without a time of day", hint="give runs of tp.capture")
    profiles.sort(key=lambda profile: profile.origin_ns or 0)
    _check_model(profiles)
    found = [_attempt(profile, profiles[0].origin_ns or 0, at) for at, profile in enumerate(profiles)]
    if found[-1].end_ps >= 2**63:
        days = round(found[-1].start_ps / 8.64e16)
        raise BadProfile(f"{found[-1].name} starts {days:,} days after {found[0].name}: a job has at most 106")
    for a, b in pairwise(found):
        if b.start_ps < a.end_ps:
            early, hint = duration(a.end_ps - b.start_ps), "to read the hosts of one run: tp.load([...])"
            raise BadProfile(
                f"{b.name} starts {early} before {a.name} ends: attempts of a job do not overlap", hint=hint
            )
    notes = [note for profile in profiles for note in profile.notes]
    cuts = [_cut(found[at:]) for at in range(len(found))]
    rows = [_rows(attempt, cut) for attempt, cut in zip(found, cuts, strict=True)]
    clocks: dict[str, Any] = {name: pl.concat([getattr(each.time.wall, name) for each in found]) for name in _CLOCKS}
    goodput = of_stretches(
        Stretches(
            pl.concat([*rows, _idle(found, max(each.hosts for each in found) or 1)]).sort("host", "start_ps"),
            pl.concat([each.time.steps for each in found]),
            WallClock(found[-1].end_ps, **clocks),
            found[-1].end_ps,
            tuple(dict.fromkeys([*notes, *_notes(found, cuts)])),
        )
    )
    frame = goodput.frame
    if None in cuts:
        unknown = frame.select("host").unique().with_columns(account=pl.lit(_LOST, frame.schema["account"]))
        frame = pl.concat([frame, unknown], how="diagonal")
    table = [_row(at, found, *each) for at, each in enumerate(zip(cuts, rows, strict=True))]
    parts = {each.name: getattr(goodput, each.name) for each in fields(goodput)}
    parts |= {"frame": frame, "segments": goodput.segments.with_columns(pl.col("step") % _APART)}
    return JobGoodput(**parts, attempts=pl.DataFrame(table, schema=schema.ATTEMPTS, orient="row"))


def _check_model(profiles: Sequence[Profile]) -> None:
    """Raise if attempts trained different models."""
    stored = [(each.name, each.stored.metadata) for each in profiles if each.stored is not None]
    for fact in ("job", "model", "weights"):
        for (a, of_a), (b, of_b) in pairwise([(name, facts[fact]) for name, facts in stored if fact in facts]):
            if of_a != of_b:
                texts = f"{fact} {cut(plain(of_a), 80)} and {cut(plain(of_b), 80)}"
                message = f"{a} and {b} are not attempts of one job: {texts}"
                raise IncompatibleRuns(message, hint="give the attempts of one training")


def _attempt(profile: Profile, origin_ns: int, at: int) -> _Attempt:
    start_ns, time = profile.origin_ns or 0, stretches(profile)
    start_ps, hosts = (start_ns - origin_ns) * 1000, time.frame["host"].unique().sort()
    names = {name: f"host {number}" for number, name in enumerate(hosts)}

    def moved(frame: pl.DataFrame, *numbers: str) -> Any:
        later = [pl.col("start_ps") + start_ps, *(pl.col(number) + at * _APART for number in numbers)]
        return frame.with_columns(pl.col("host").replace(names), *later)

    steps = moved(time.steps).with_columns(trained(), end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    if (steps["kind"] == "train").any():
        steps = steps.filter(kind="train")
    in_job = pl.col("trained") + pl.lit(time.before, pl.Int64)
    steps = steps.select("host", "trained", "start_ps", "end_ps", number=in_job)
    wall = replace(time.wall, **{name: moved(getattr(time.wall, name)) for name in _CLOCKS})
    time = time._replace(frame=moved(time.frame, "step", "unit"), steps=moved(time.steps, "step"), wall=wall)
    return _Attempt(profile.name, start_ns, start_ps, len(hosts), time, steps, steps.select(pl.min("number")).item())


def _cut(found: Sequence[_Attempt]) -> int | None:
    """Return the first step of an attempt that a later one trained again, or one after all; None if unknown."""
    firsts = [each.first for each in found if each.steps.height]
    if not found[0].steps.height or len(firsts) < 2:
        return _APART
    return None if None in firsts else min(first or 0 for first in firsts[1:])


def _rows(attempt: _Attempt, cut: int | None) -> pl.DataFrame:
    """Return the stretches of an attempt, those of lost progress as such."""
    end_ps, lost_ps, after_cut = pl.col("end_ps"), pl.col("lost_ps"), pl.col("number") >= pl.lit(cut, pl.Int64)
    begins = attempt.steps.filter(after_cut).group_by("host").agg(lost_ps=pl.col("start_ps").min())
    rows = attempt.time.frame.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"), phase=pl.lit(None, pl.Int64))
    rows = rows.join(begins, on="host", how="left").with_columns(lost_ps.fill_null(end_ps))
    kept = rows.filter(pl.col("start_ps") < lost_ps).with_columns(end_ps=pl.min_horizontal(end_ps, lost_ps))
    lost = rows.filter(end_ps > lost_ps).with_columns(
        start_ps=pl.max_horizontal("start_ps", lost_ps), account=pl.lit(_LOST), detail="account"
    )
    cells = pl.concat([kept, lost]).with_columns(dur_ps=end_ps - pl.col("start_ps"))
    return cells.drop("lost_ps", "end_ps")


def _idle(found: Sequence[_Attempt], hosts: int) -> pl.DataFrame:
    """Return the downtime before attempts, and the time of hosts that an attempt does not run on."""
    cells: list[tuple[str, int, int, str, str | None]] = []
    for a, b in pairwise(found):
        before, after = a.hosts, b.hosts or a.hosts
        detail = None if before == after else f"from {plural(before, 'host')} to {after}"
        cells += [(f"host {i}", a.end_ps, b.start_ps - a.end_ps, "downtime", detail) for i in range(hosts)]
    for each in filter(lambda each: each.time.wall_ps, found):
        detail = f"an attempt on {each.hosts} of {plural(hosts, 'host')}"
        cells += [(f"host {i}", each.start_ps, each.time.wall_ps, "resizing", detail) for i in range(each.hosts, hosts)]
    rows = pl.DataFrame(cells, schema=["host", "start_ps", "dur_ps", "account", "detail"], orient="row")
    columns = found[0].time.frame.schema
    missing = [pl.lit(None, columns[name]).alias(name) for name in ("step", "phase")]
    idle = rows.cast({name: columns[name] for name in rows.columns}).with_columns(
        *missing, unit=-1 - pl.int_range(pl.len(), dtype=pl.Int64), source=pl.lit("clock"), complete=pl.lit(value=True)
    )
    return idle.filter(pl.col("dur_ps") > 0).select([*columns])


def _notes(found: Sequence[_Attempt], cuts: Sequence[int | None]) -> list[str]:
    notes, last = [note for attempt in found for note in attempt.time.notes], -1
    if None in cuts:
        unknown = ", ".join([each.name for each in found if each.steps["number"].has_nulls()][:3])
        problem = f"the numbers of the steps of {unknown} in the job are unknown, and so is what was trained twice"
        notes.append(f"{problem}: number them by run.step(number)")
    for steps in (attempt.steps["number"].drop_nulls().sort() for attempt in found):
        if len(steps) and -1 < last < steps[0] - 1:
            notes.append(f"steps {last + 1} to {steps[0] - 1} are in no attempt")
        last = max([last, *steps.tail(1)])
    return notes


def _row(at: int, found: Sequence[_Attempt], cut: int | None, rows: pl.DataFrame) -> tuple[Any, ...]:
    """Return a row of ATTEMPTS."""
    attempt, trained = found[at], pl.col("trained")
    steps, lost_ps = attempt.steps, rows.filter(account=_LOST)["dur_ps"].sum() // max(attempt.hosts, 1)
    startup_ps = steps.filter(trained == trained.min()).select(pl.max("end_ps") - attempt.start_ps).item()
    again = steps.filter(pl.col("number") >= pl.lit(cut, pl.Int64))["trained"].n_unique()
    return (
        *(at, attempt.name, datetime.fromtimestamp(attempt.origin_ns / 1e9, UTC), attempt.time.wall_ps),
        *(attempt.start_ps - found[at - 1].end_ps if at else None, startup_ps, attempt.hosts),
        *(steps["trained"].n_unique(), attempt.first, *((None, None) if cut is None else (again, lost_ps))),
    )


_OF_DETAIL = {
    goodput_events.DEVICES: "TPU_INITIALIZATION",
    goodput_events.SCALE_UP: "ELASTIC_SCALE_UP",
    goodput_events.ANEW: "ELASTIC_REINITIALIZATION",
}
_CUSTOM, _SYNC, _ASYNC = "CUSTOM_BADPUT_EVENTS", "DATA_LOADING_SYNC", "DATA_LOADING_ASYNC"


def categories(goodput: Goodput, exclude: Iterable[tuple[datetime, datetime]] = ()) -> pl.DataFrame:
    """Return the wall time in the categories of ml-goodput-measurement 0.2.3.

    There, all time from a step to the next is goodput but for the first run, saves and custom events: also waits for
    input, which is why ``DATA_LOADING_ASYNC`` is within ``GOODPUT``; ``DATA_LOADING_SYNC`` is outside of steps.

    Parameters
    ----------
    goodput
        Goodput of a run, or of a job.
    exclude
        Begin and end of times to leave out, such as planned maintenance, with time zones; of a job only.

    Returns
    -------
    polars.DataFrame
        ``tpunb.schema.CATEGORIES``, most time first, without those that took no time.
    """
    rows = goodput.segments.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    for times in exclude:
        if not isinstance(goodput, JobGoodput):
            raise wrong_type("categories", "exclude", "be empty for a run; use tp.job([run])", times)
        begin_ps, until_ps = (
            (time - goodput.attempts["started"][0]) // timedelta(microseconds=1) * 10**6 for time in times
        )
        before = rows.with_columns(pl.col("end_ps").clip(upper_bound=begin_ps))
        rows = pl.concat([before, rows.with_columns(pl.col("start_ps").clip(until_ps))])
        rows = rows.filter(pl.col("end_ps") > pl.col("start_ps"))
    account, detail = pl.col("account").cast(pl.String), pl.col("detail")
    custom = (account == "program code") & detail.ne_missing(INSIDE_STEPS) & detail.is_not_null()
    of_account = account.replace_strict({name: each.category for name, each in schema.ACCOUNTS.items()})
    category = (
        pl.when(custom)
        .then(pl.lit(_CUSTOM))
        .when((account == "data loading") & pl.col("step").is_null())
        .then(pl.lit(_SYNC))
        .when(account.is_in(["preparation", "resizing"]))
        .then(detail.replace_strict(_OF_DETAIL, default=of_account))
        .otherwise(of_account)
    )
    rows = rows.select(category=category, detail="detail", time_ps=pl.col("end_ps") - pl.col("start_ps"))
    rows = rows.with_columns(detail=pl.when(category=_CUSTOM).then("detail"), within=pl.lit(None, pl.String))
    loading = rows.filter(category=_ASYNC)
    goodputs = loading.with_columns(category=pl.lit("GOODPUT"))
    rows = pl.concat([rows, goodputs]).with_columns(within=pl.when(category=_ASYNC).then(pl.lit("GOODPUT")))
    wall_ps = rows.filter(pl.col("within").is_null())["time_ps"].sum()
    summed = rows.group_by("category", "detail", "within").agg(pl.col("time_ps").sum() // goodput.hosts)
    summed = summed.with_columns(share=pl.col("time_ps") * goodput.hosts / max(wall_ps, 1))
    rows = summed.select([*schema.CATEGORIES]).sort("time_ps", "category", "detail", descending=[True, False, False])
    return schema.check(rows, schema.CATEGORIES, "categories")
