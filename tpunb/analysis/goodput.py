"""Goodput: every picosecond of a run in one account.

The terms are those of Google's ml-goodput-measurement (https://github.com/AI-Hypercomputer/ml-goodput-measurement),
which wants a program that logs them; here they follow from the host clock and the traced windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Real
from typing import NamedTuple

import polars as pl

from tpunb import schema
from tpunb.analysis.barriers import aligned
from tpunb.analysis.causes import LISTED_SHARE, NAMED_SHARE
from tpunb.analysis.run import OfRun, Run, loaded, phases
from tpunb.analysis.time_line import BUSY, COMPUTING, DRAWN, INSIDE_STEPS, HostRun, segments
from tpunb.errors import NoSteps, wrong_type
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.steps import NO_STEPS, WallClock
from tpunb.step_stats.reduce import from_rules
from tpunb.step_stats.sample_places import line_of
from tpunb.text import cut, duration, percent, plain, plural

_OF_CPU = 0.7  # of the work of XLA on a CPU: 0.73 to 0.96 of loops that never wait are recorded
_MOST_ACCOUNTS, _MOST_DETAILS = 4, 2  # that are named; details of one account
_FULL = 0.9  # share of the processors in use where a thread waits for one


@dataclass(frozen=True, eq=False, repr=False)
class Goodput(OfRun):
    """Where the wall time of a run went.

    Parameters
    ----------
    frame
        One row per (host, account, phase, detail); each host adds up to `wall_ps`: ``tpunb.schema.GOODPUT``.
    stalls
        Places in the program where steps were held up, most time first: ``tpunb.schema.GOODPUT_STALLS``.
    segments
        The same time in order, one row per stretch of one account: ``tpunb.schema.GOODPUT_SEGMENTS``.
    load
        Load of the process and the machine by second: ``tpunb.schema.LOAD``.
    wall_ps
        Wall time of the captured block in picoseconds.
    ideal_step_ps
        Median step time without waits, callbacks and stalls, in picoseconds; None if no steps were found.
    notes
        What the run has no record of, one line each.
    places
        Where the thread that trains was, by account, most samples first: ``tpunb.schema.GOODPUT_PLACES``.
    around
        Lines of the program that contain its training, such as that of ``model.fit``: they explain no account.
    """

    frame: pl.DataFrame
    stalls: pl.DataFrame
    segments: pl.DataFrame
    load: pl.DataFrame
    wall_ps: int
    ideal_step_ps: int | None
    notes: tuple[str, ...] = ()
    places: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.GOODPUT_PLACES))
    around: frozenset[str] = frozenset()

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return max(self.frame["host"].n_unique(), 1)

    @property
    def ratio(self) -> float:
        """Productive time as a share of wall time, mean over hosts, 0 to 1."""
        return self.time_ps("productive") / max(self.wall_ps, 1)

    def time_ps(self, account: str) -> int:
        """Return the time in an account, mean over hosts, in picoseconds.

        Raises
        ------
        ValueError
            If there is no such account.
        """
        if account not in schema.ACCOUNTS:
            raise wrong_type("time_ps", "account", f"be one of {', '.join(schema.ACCOUNTS)}", account)
        return self._times.get(account, 0) // self.hosts

    @cached_property
    def _times(self) -> dict[str, int]:
        return dict(self.frame.group_by("account").agg(pl.col("time_ps").sum()).rows())

    def cost(self, *, per_hour: float) -> pl.DataFrame:
        """Return what each account cost, dearest first: columns ``account``, ``time_ps`` and ``cost``.

        Parameters
        ----------
        per_hour
            Price of all hosts for one hour, in any currency.

        Raises
        ------
        ValueError
            If the price is not a number of 0 or more.
        """
        if isinstance(per_hour, bool) or not isinstance(per_hour, Real) or not 0 <= float(per_hour) < math.inf:
            raise ValueError(f"The per_hour parameter of cost must be a number of 0 or more. Got {per_hour!r} instead.")
        times = self.frame.group_by("account").agg((pl.col("time_ps").sum() // self.hosts).alias("time_ps"))
        priced = times.with_columns(cost=pl.col("time_ps") / 3.6e15 * float(per_hour))
        return priced.sort("cost", "account", descending=[True, False])

    @property
    def sentence(self) -> str:
        """Where the time went, in one sentence."""
        return _sentence(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentence})"


def totals(goodput: Goodput, *by: str) -> pl.DataFrame:
    """Return (account, *by, time_ps, count, share): time of each account, mean over hosts, most first."""
    share = pl.col("time_ps") / max(goodput.wall_ps, 1)
    times = goodput.frame.drop_nulls("time_ps").group_by("account", *by, maintain_order=True)
    summed = times.agg(pl.col("time_ps").sum() / goodput.hosts, pl.col("count").sum())
    return summed.filter(pl.col("time_ps") > 0).with_columns(share=share).sort("time_ps", descending=True)


def works(goodput: Goodput) -> pl.DataFrame:
    """Return `totals` by detail; what is traced or compiled for one shape after the other is one."""
    again = pl.col("detail").str.replace(" again for .*", " again")
    return totals(replace(goodput, frame=goodput.frame.with_columns(again)), "detail").drop_nulls("detail")


def _sentence(goodput: Goodput) -> str:
    """Return where the wall time went: productive time, then the accounts that took most of the rest."""
    accounts = {str(row["account"]): row for row in totals(goodput).iter_rows(named=True)}
    productive = accounts.pop("productive", {"time_ps": 0.0})["time_ps"]
    mean = f" (mean of {plural(goodput.hosts, 'host')})" if goodput.hosts > 1 else ""
    first = f"{duration(goodput.wall_ps)}{mean}: {duration(productive)} productive ({percent(goodput.ratio)})"
    parts = []
    if accounts.get("other", {"share": 0.0})["share"] >= NAMED_SHARE:  # which the sentence begins with
        notes = "; ".join(cut(plain(note), 160) for note in goodput.notes[:2])
        parts = [f"{duration(accounts.pop('other')['time_ps'])} other" + f" ({notes})" * bool(notes)]
    named = [(name, row["time_ps"]) for name, row in accounts.items() if row["share"] >= LISTED_SHARE]
    for name, time_ps in named[:_MOST_ACCOUNTS]:
        details = ", ".join(_details(goodput, name, duration(time_ps)))
        parts.append(f"{duration(time_ps)} {schema.ACCOUNTS[name].phrase or name}" + f": {details}" * bool(details))
    return ", ".join([first, *(["; ".join(parts)] if parts else [])])


def _details(goodput: Goodput, account: str, whole: str) -> Iterator[str]:
    """Yield the largest details of an account, each with its time unless that is the whole."""
    rows = works(goodput).filter(pl.col("account") == account, pl.col("share") >= LISTED_SHARE / 4)
    for row in rows.head(_MOST_DETAILS).iter_rows(named=True):
        time = duration(row["time_ps"])
        yield cut(plain(row["detail"]), 80) + f" {time}" * (time != whole)


def busy(goodput: Goodput) -> str | None:
    """Return that other programs kept the machine busy, or None if they did not or there is no record of it."""
    others = others_used(goodput)
    return None if others is None else f"the machine was busy: {others}"


def others_used(goodput: Goodput) -> str | None:
    """Return the share of the processors that other programs used on a busy machine, in words; else None."""
    share = (goodput.load["machine_cpu"] - goodput.load["cpu"]).drop_nulls().drop_nans().mean()
    if not isinstance(share, float) or share <= BUSY:
        return None
    return f"other programs used {percent(share)} of its processors"


def crowding(load: pl.DataFrame) -> float:
    """Return the share of the processors that other programs used while none was free, 0 to 1, mean over seconds."""
    others = (pl.col("machine_cpu") - pl.col("cpu")).clip(0, 1)
    return float(load.select(pl.when(pl.col("machine_cpu") > _FULL).then(others).otherwise(0.0).mean()).item() or 0.0)


def computing(steps: Steps) -> float | None:
    """Return the share of its processors that the job used from its first step to its last, 0 to 1; None if unknown."""
    if steps.wall is None or steps.frame.is_empty():
        return None
    begin, end = steps.frame["start_ps"].min(), (steps.frame["start_ps"] + steps.frame["dur_ps"]).max()
    shares = steps.wall.load.filter(pl.col("start_ps").is_between(begin, end))["cpu"].drop_nulls()
    if shares.is_empty():
        return None
    counts = [steps.metadata.get(name, "") for name in ("machine_processors", "processors")]
    of_machine, usable = (int(each) if each.isdecimal() and int(each) else 1 for each in counts)
    share = float(shares.to_numpy().mean())  # of the machine
    return min(share * max(of_machine / usable, 1.0), 1.0)


def goodput(run: Run) -> Goodput:
    """Account for the wall time of a run: productive steps, and everything else by cause.

    Every picosecond of a host is in one account of ``tpunb.schema.ACCOUNTS``. The *exclusive time* of a step is its
    duration without input wait, callbacks, checkpoints and so on. It is productive; but what is beyond the median of
    comparable steps, those of one phase by the default method, is the profiler's as far as that was busy, program
    startup if the step traced or compiled, and, if the step takes over 1.5 times that median, step time deviation (for
    seconds in which other programs used a quarter of the processors by name). Of what is left, the time of traced
    devices is productive, and samples divide the rest. Input wait of steps that no clock measured is the mean of their
    kind.

    Parameters
    ----------
    run
        Path of a run, its Profile, Steps or Phases; steps are grouped by the default method.

    Raises
    ------
    TypeError
        If `run` is something else.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> rows = goodput(phases(toy_steps("aaabbb"))).frame.drop_nulls("time_ps")  # whose device idles half of each step
    >>> rows.select("account", "phase", "time_ps").rows()[:2]
    [('productive', 1, 3000000000), ('productive', 0, 1500000000)]
    """
    found = loaded(run, "goodput")
    result = of_stretches(stretches(found)) if isinstance(found, Profile) else _of_phases(phases(found))
    return result.about(found)


@memoised
def _of_phases(run: Phases) -> Goodput:
    found = of_stretches(stretches(run))
    return replace(found, around=_around_training(run.steps, found.stalls))


def _around_training(steps: Steps, stalls: pl.DataFrame) -> frozenset[str]:
    """Return the lines where a library takes gradients, and fetches or updates; or that call a method that trains."""
    if steps.read_run_events is None or (run := steps.read_run_events()).events.is_empty():  # of an earlier version
        return frozenset(place.partition(" ← ")[0] for place in stalls.filter(kind="fit")["place"].drop_nulls())
    learns, marks = (pl.col("event") == event for event in ("gradient", "mark"))
    others = pl.col("event").is_in(["update", "fetch"])
    fits = marks & pl.col("what").is_in(run.names.filter(pl.col("name").str.ends_with(".fit"))["id"].implode())
    trains = (learns.any() & others.any()) | fits.any()
    lines = run.events.group_by("host", id="place").agg(trains=trains).filter("trains")
    lines = lines.join(run.places, on=["host", "id"]).select("file", "line", "function")
    return frozenset(line_of(*line) for line in lines.iter_rows())


class Stretches(NamedTuple):
    """The time of a run in order, before it is summed."""

    frame: pl.DataFrame  # (host, start_ps, dur_ps, account, detail, step, phase, unit, source, complete)
    steps: pl.DataFrame  # `tpunb.schema.STEPS` and phase
    wall: WallClock  # of which stalls, samples and load are used
    wall_ps: int
    notes: tuple[str, ...]
    before: int | None = None  # as `Steps.steps_before`
    counted: bool = True  # as `Steps.are_counted`


def stretches(run: Profile | Phases) -> Stretches:
    """Return the time of a run in stretches of one account; the phases of steps name them, and change none."""
    if isinstance(run, Phases):
        steps, labels, span_ps = run.steps, run.labels, None
    else:
        try:
            steps = from_rules(run)
        except NoSteps:  # time without steps has accounts, too
            steps = NO_STEPS if run.stored is None else run.stored
        labels, span_ps = _alike(steps), run.span_ps if run.stored is None else None
    time = _time_line(steps, span_ps)
    phase = time.steps.select("host", "step", phase=labels.cast(pl.Int64))
    phased = time.frame.join(phase.unique(["host", "step"]), on=["host", "step"], how="left", maintain_order="left")
    phased = phased.with_columns(pl.when(pl.col("alike").is_not_null()).then("phase")).drop("alike")
    return time._replace(frame=phased, steps=time.steps.with_columns(phase["phase"]))


def _alike(steps: Steps) -> pl.Series:
    """Return the number of the steps that each is compared with: its phase by the default method, else its kind."""
    try:
        return phases(steps).labels
    except NoSteps:
        return steps.frame["kind"].fill_null("").rank("dense").cast(pl.Int64) - 1


@memoised
def _time_line(steps: Steps, span_ps: int | None) -> Stretches:
    """Return the time of a run, with `alike` in place of phases; `span_ps` is its length if it has no clock."""
    frame = steps.frame.with_columns(alike=_alike(steps).cast(pl.Int64))
    wall = steps.wall if span_ps is None else WallClock(span_ps)
    turn = [aligned(frame), "kind"]  # of the ranks of a job, the one that came last waits least
    beyond = pl.col("peers_ps") - pl.col("peers_ps").min().over(turn)
    beyond_ps = frame.select("host", pl.when(pl.col("peers_ps").count().over(turn) > 1).then(beyond))
    if wall is None:
        wall = WallClock(0)
        ends = frame.select(low=pl.col("start_ps").min(), high=(pl.col("start_ps") + pl.col("dur_ps")).max())
        low, high = (int(value or 0) for value in ends.row(0))
    else:
        low, high = 0, wall.span_ps
    hosts = sorted({*frame["host"].drop_nulls(), *wall.spans["host"].drop_nulls()}) or [""]
    pieces, notes = [], []
    for host in hosts:
        of_host, peers_ps = frame.filter(host=host), beyond_ps.filter(host=host)["peers_ps"]
        clocked = steps.wall is not None and bool(
            (of_host["traced"] != "full").any() or wall.spans["host"].is_in([host]).any()
        )
        complete = wall.complete and clocked
        run = HostRun(
            of_host,
            wall.spans.filter(host=host),
            wall.stalls.filter(host=host),
            steps.windows.filter(host=host),
            start_ps=low,
            end_ps=max(high, low),
            clocked=clocked,
            complete=complete,
            samples=wall.samples.filter(host=host),
            load=wall.load.filter(host=host),
            traced_devices=steps.devices.height > 0,
            recorded=_OF_CPU if steps.metadata.get("device kind") == "CPU" else 1.0,
            first_compiles=bool((of_host["rule"].head(1) == "event").any()),
            peers_ps=peers_ps.fill_null(0).to_numpy() if peers_ps.count() else None,
            read_work=partial(_work, steps, host),
        )
        pieces.append(segments(run).with_columns(host=pl.lit(host), complete=pl.lit(complete)))
        notes += _notes(host if len(hosts) > 1 else "", clocked=clocked, complete=complete)
    notes = list(dict.fromkeys(notes))
    span_ps = max(high - low, 0)
    return Stretches(pl.concat(pieces), frame, wall, span_ps, tuple(notes), steps.steps_before, steps.are_counted)


def _work(steps: Steps, host: str) -> pl.DataFrame:
    """Return (step, work_ps) of the steps of a host traced in full: time of devices, else of all operations."""
    full = steps.full()
    if steps.devices.height:
        return full.frame.filter(host=host).select("step", work_ps=pl.col("device_ps").cast(pl.Float64))
    ops = full.ops.filter(pl.col("host").cast(pl.String) == host, pl.col("category").ne_missing("compile"))
    return ops.group_by("step").agg(work_ps=pl.col("self_ps").sum().cast(pl.Float64))


def of_stretches(time: Stretches) -> Goodput:
    """Return the goodput of stretches, which add up to the wall time on each host."""
    rows, wall = time.frame, time.wall
    return Goodput(
        frame=_totals(rows, time.steps, time.wall_ps),
        stalls=_stalls(wall.stalls),
        segments=schema.check(rows.select(*schema.GOODPUT_SEGMENTS), schema.GOODPUT_SEGMENTS, "goodput_segments"),
        load=wall.load,
        places=_places(wall.samples, rows),
        wall_ps=time.wall_ps,
        ideal_step_ps=_ideal(rows, time.steps) if time.counted else None,
        notes=time.notes,
    )


def _notes(host: str, *, clocked: bool, complete: bool) -> list[str]:
    if complete:
        return []
    of = f" of {host}" if host else ""
    if clocked:
        return [f"the run{of} did not record callbacks, checkpoints, startup and the profiler's share"]
    return [f"the clock{of} was not recorded: time outside of traced steps is other"]


def _totals(stretches: pl.DataFrame, steps: pl.DataFrame, wall_ps: int) -> pl.DataFrame:
    """Return GOODPUT from the stretches, with a row of null for each account that a host has no record of."""
    key = ["host", "account", "phase", "detail"]
    units = stretches.group_by(*key, "unit").agg(pl.col("dur_ps").sum(), pl.col("source").last())
    rows = units.group_by(key).agg(
        time_ps=pl.col("dur_ps").sum(),
        count=pl.len().cast(pl.Int64),
        median_ps=pl.col("dur_ps").median().floor().cast(pl.Int64),
        # the least certain source
        source=pl.col("source").replace_strict({"clock": 0, "windows": 1, "estimated": 2}, return_dtype=pl.Int8).max(),
    )
    names = {0: "clock", 1: "windows", 2: "estimated"}
    rows = rows.with_columns(pl.col("source").replace_strict(names, return_dtype=pl.String))
    clocked = [name for name, account in schema.ACCOUNTS.items() if account.clocked]
    unknown = pl.DataFrame({"account": clocked}).join(
        stretches.filter(~pl.col("complete")).select("host").unique(), how="cross"
    )
    unknown = unknown.join(rows, on=["host", "account"], how="anti")
    rows = _intervals(rows, units, steps)
    rows = pl.concat([rows, unknown], how="diagonal").with_columns(share=pl.col("time_ps") / max(wall_ps, 1))
    order = pl.col("account").cast(pl.Enum([*schema.ACCOUNTS]))
    rows = rows.sort("host", order, pl.col("time_ps"), "phase", "detail", descending=[False, False, True, False, False])
    return schema.check(rows, schema.GOODPUT, "goodput")


def _intervals(rows: pl.DataFrame, units: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the 95 % interval of input waits that were taken from the other steps of their phase."""
    waits = steps.group_by("host", "phase").agg(
        mean=pl.col("input_ps").mean(), error=pl.col("input_ps").std() / pl.col("input_ps").count().sqrt()
    )
    guessed = (
        units.filter((pl.col("account") == "data loading") & (pl.col("source") == "estimated"))
        .group_by("host", "phase")
        .agg(n=pl.len())
        .join(waits, on=["host", "phase"])
        .select("host", "phase", pl.lit("data loading").alias("account"), off=1.96 * pl.col("error") * pl.col("n"))
    )
    off = pl.col("off").round().cast(pl.Int64)
    joined = rows.join(guessed, on=["host", "account", "phase"], how="left", nulls_equal=True)
    return joined.with_columns(low_ps=(pl.col("time_ps") - off).clip(0), high_ps=pl.col("time_ps") + off).drop("off")


def _ideal(stretches: pl.DataFrame, steps: pl.DataFrame) -> int | None:
    """Return the median exclusive time of steps of kind "train", of all if there are none."""
    parts = ["productive", "device idle", "evaluation", "step time deviation"]
    exclusive = (
        stretches.filter(pl.col("account").is_in(parts) & pl.col("step").is_not_null())
        .group_by("host", "step")
        .agg(pl.col("dur_ps").sum())
        .join(steps.select("host", "step", "kind"), on=["host", "step"])
    )
    train = exclusive.filter(kind="train")
    middle = (train if train.height else exclusive)["dur_ps"].median()
    return None if middle is None else int(middle)  # type: ignore[arg-type]  # of ints


def _places(samples: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Return GOODPUT_PLACES: a sample has the account of the stretch it is in, in steps that of what it shows."""
    order = stretches.select("host", "start_ps", "account", "detail", "step").sort("start_ps")
    found = samples.sort("start_ps").join_asof(order, on="start_ps", by="host", check_sortedness=False)
    drawn = pl.col("detail").eq_missing(DRAWN)
    inside = pl.col("account").is_in(COMPUTING) | pl.col("detail").eq_missing(INSIDE_STEPS)
    inside |= drawn & pl.col("step").is_not_null()
    between = (pl.col("account") == "program code") | drawn
    shown = (
        pl.when("evaluates")
        .then(pl.lit("evaluation"))
        .when((inside | between) & pl.col("loads"))
        .then(pl.lit("data loading"))
        .when(between & pl.col("launches"))
        .then(pl.lit("productive"))
        .when(inside & pl.col("code"))
        .then(pl.lit("program code"))
        .when(inside & between)
        .then(pl.lit("productive"))
        .when(drawn)
        .then(pl.lit("program code"))
        .otherwise("account")
    )
    # while devices compute, a thread does what it likes; in steps it waits there for what they compute
    away = pl.col("computes").fill_null(value=False) & ~pl.col("evaluates") & (shown != "productive")
    found = found.with_columns(account=shown, place=pl.when(~away).then("place"))
    rows = (
        found.drop_nulls("account")
        .group_by("account", "place")
        .agg(pl.col("worked").mean(), samples=pl.len().cast(pl.Int64))
    )
    rows = rows.with_columns(share=pl.col("samples") / pl.col("samples").sum().over("account"))
    rows = rows.sort("samples", "account", "place", descending=[True, False, False])
    return schema.check(rows.select(*schema.GOODPUT_PLACES), schema.GOODPUT_PLACES, "goodput_places")


def _stalls(stalls: pl.DataFrame) -> pl.DataFrame:
    """Return GOODPUT_STALLS."""
    rows = (
        stalls.with_columns(time_ps=(pl.col("dur_ps") * pl.col("share")).round().cast(pl.Int64))
        .group_by("place", "kind")
        .agg(
            pl.col("time_ps").sum(),
            count=pl.len().cast(pl.Int64),
            median_ps=pl.col("dur_ps").median().round().cast(pl.Int64),
            locked=pl.col("locked").any(),
        )
        .sort("time_ps", "place", "kind", descending=[True, False, False])
    )
    return schema.check(rows, schema.GOODPUT_STALLS, "goodput_stalls")
