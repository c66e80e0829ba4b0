"""Where the host meets the device: which launch on the host each run on a device answers to.

A launch and its run share an id: a hand-over that one event sends and another receives (``_p`` and ``_c``), the
number of a run on a device (``run_id``), or a correlation id; see :mod:`tpunb.ids`. From the launch the way leads
back, hand-over by hand-over, to the thread that marks the steps: a run may start long after its step has ended.
"""

from __future__ import annotations

import polars as pl

from tpunb import schema

DEVICE = "/device:"
"""How the planes of devices are named."""

CPU = "/device:CPU:0"
"""What runs XLA programs on the host's own threads: its operations are events of the host with an HLO instruction."""

_EXECUTE = r"Executable::ExecuteHelper"  # the host asks XLA for a run of a program
_PLANE = ["host", "plane"]
_HOPS = 8  # hand-overs between a launch and the thread of the step; four were the most seen

_LAUNCHES: schema.Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "start_ps": pl.Int64(),  # of the run on the device
    "end_ps": pl.Int64(),
    "link": pl.String(),
    "lane": pl.UInt32(),  # of the event of the host that launched it,
    "sent_ps": pl.Int64(),  # and its start; null where none is found
}
"""One row a run of a module, or of a kernel, on a device."""


def any_device(events: pl.DataFrame) -> bool:
    """Say whether an event ran on a device, or for one on the host's own threads."""
    if events["hlo_op"].null_count() < len(events):
        return True
    return bool(events.select(pl.col("plane").cat.starts_with(DEVICE).any()).item())


def on_devices(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return when each device worked for each step, by the launches made in its time.

    A step's time on a device begins once the host has begun it and the device is done with all it did before, at its
    first run at the latest; it lasts until the next one's. The last one's lasts until its runs and the host's step are
    over. A device that has always finished before the host's step was over has no time of its own: the host waited for
    it, and the host's steps are its.

    Parameters
    ----------
    events
        ``tpunb.schema.EVENTS``.
    steps
        (host, step, mark, start_ps, end_ps, seen), of the host: not overlapping.

    Returns
    -------
    pl.DataFrame
        (host, plane, step, mark, start_ps, end_ps, seen), one row a step and device with a time of its own.
    """
    marks = events.filter(pl.col("step_num").is_not_null())["lane"].unique()
    launches = _launches(events)
    sent = _traced_back(launches.filter(pl.col("sent_ps").is_not_null()), events, marks)
    begun = steps.select("host", "step", "mark", "seen", pl.col("start_ps").alias("from_ps"), until_ps="end_ps")
    runs = (
        sent.sort("sent_ps")
        .join_asof(begun.sort("from_ps"), left_on="sent_ps", right_on="from_ps", by="host", check_sortedness=False)
        .filter(pl.col("sent_ps") < pl.col("until_ps"))
    )
    own = (
        runs.group_by("host", pl.col("device").alias("plane"), "step")
        .agg(pl.col("mark", "seen", "from_ps").first(), pl.col("start_ps").min(), pl.col("end_ps", "until_ps").max())
        .filter(
            ~((pl.col("start_ps") >= pl.col("from_ps")) & (pl.col("end_ps") <= pl.col("until_ps"))).all().over(_PLANE)
        )
        .sort("host", "plane", "start_ps", "step")
    )
    if own.is_empty():
        return own.drop("from_ps", "until_ps")
    before = launches.sort("start_ps", "end_ps").select(
        "host",
        pl.col("device").alias("plane"),
        run_ps="start_ps",
        free_ps=pl.col("end_ps").cum_max().over("host", "device"),
    )
    own = own.sort("start_ps").join_asof(
        before,
        left_on="start_ps",
        right_on="run_ps",
        by=_PLANE,
        check_sortedness=False,
        allow_exact_matches=False,
    )
    begin = pl.min_horizontal("start_ps", pl.max_horizontal("from_ps", "free_ps"))
    own = own.with_columns(start_ps=begin).sort("host", "plane", "start_ps", "step")
    following = pl.col("start_ps").shift(-1).over(_PLANE)
    whole = own.with_columns(end_ps=pl.coalesce(following, pl.max_horizontal("end_ps", "until_ps")))
    return whole.drop("from_ps", "until_ps", "run_ps", "free_ps")


def clocks(events: pl.DataFrame) -> pl.DataFrame:
    """Return how launches meet their runs on each device, and how far its clock is behind: ``tpunb.schema.CLOCKS``.

    No run can start before it was launched: the most that one seems to is what the clocks disagree by, at least.
    """
    if not any_device(events):
        return schema.empty(schema.CLOCKS)
    delay = pl.col("start_ps") - pl.col("sent_ps")
    found = _launches(events).filter(pl.col("device") != CPU)
    skew = (-delay.min()).clip(0)
    rows = found.group_by("host", "device").agg(
        link=pl.col("link").drop_nulls().mode().sort().first(),
        launches=pl.len(),
        linked=pl.col("sent_ps").count(),
        delay_ps=(delay + skew).median().round().cast(pl.Int64),
        skew_ps=skew,
    )
    return schema.check(rows.sort("host", "device"), schema.CLOCKS, "clocks")


def _launches(events: pl.DataFrame) -> pl.DataFrame:
    """Return each run on a device with the event of the host that launched it, ``_LAUNCHES``."""
    known = events.filter(pl.col("launch").is_not_null() | pl.col("receives").is_not_null())
    on_device = pl.col("plane").cat.starts_with(DEVICE)
    thunk = ~on_device & pl.col("hlo_op").is_not_null()
    if not known.select((on_device | thunk).any()).item():  # a host alone
        return schema.empty(_LAUNCHES)
    senders = _first_of(events, "sends").select(
        "host", receives="sends", by_flow_lane="lane", by_flow_sent_ps="start_ps"
    )
    launchers = _first_of(known.filter(~on_device & ~thunk), "launch").select(
        "host", "launch", by_launch_lane="lane", by_launch_sent_ps="start_ps"
    )
    runs = (
        known.filter(on_device)
        .select("host", pl.col("plane").alias("device"), "start_ps", "dur_ps", "receives", "launch")
        .join(senders, on=["host", "receives"], how="left")
        .join(launchers, on=["host", "launch"], how="left")
        .select(
            "host",
            "device",
            "start_ps",
            end_ps=pl.col("start_ps") + pl.col("dur_ps"),
            # a device tells both numbers of one run; a kernel, which has no line of modules, a correlation id
            link=pl.when(pl.col("by_flow_sent_ps").is_not_null())
            .then(pl.lit("flow"))
            .when(pl.col("by_launch_sent_ps").is_not_null())
            .then(
                pl.when(pl.col("device").cat.starts_with("/device:TPU"))
                .then(pl.lit("run"))
                .otherwise(pl.lit("correlation"))
            ),
            lane=pl.coalesce("by_flow_lane", "by_launch_lane"),
            sent_ps=pl.coalesce("by_flow_sent_ps", "by_launch_sent_ps"),
        )
    )
    thunks = known.filter(thunk & pl.col("launch").is_not_null())
    by_run = (
        thunks.group_by("host", "launch")
        .agg(pl.col("start_ps").min(), end_ps=(pl.col("start_ps") + pl.col("dur_ps")).max())
        .join(launchers, on=["host", "launch"])
        .select(
            *("host", "start_ps", "end_ps"),
            lane="by_launch_lane",
            sent_ps="by_launch_sent_ps",
            device=pl.lit(CPU),
            link=pl.lit("run"),
        )
    )
    untold = _on_own_threads(thunks.join(launchers, on=["host", "launch"], how="anti"), events)
    return pl.concat([schema.check(part, _LAUNCHES, "launches") for part in (runs, by_run, untold)])


def _on_own_threads(thunks: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of programs on the host's own threads with their launches: one after another, in one order.

    A run that waits for the one before it bears no trace of who asked for it. A window that saw more runs than launches
    missed launches before it began; one that saw more launches than runs ended before these were run.
    """
    runs = (
        thunks.sort("start_ps")
        .group_by("host", "launch", maintain_order=True)
        .agg(
            pl.col("lane").first(),
            pl.col("start_ps").first(),
            end_ps=(pl.col("start_ps") + pl.col("dur_ps")).max(),
        )
    )
    name = pl.col("name").cast(pl.String)
    asked = (
        events.filter(name.str.contains(_EXECUTE))
        .select("host", by_lane="lane", sent_ps="start_ps")
        .sort("sent_ps")
        .with_columns(place=pl.int_range(pl.len()).over("host"), asked=pl.len().cast(pl.Int64).over("host"))
    )
    if asked.is_empty():  # the thread that took the work up may still tell who handed it over
        return runs.with_columns(device=pl.lit(CPU), link=pl.lit("flow"), sent_ps="start_ps")
    # the first runs were asked for before the window began: as many as there are too many, and as leave no run that
    # would start before it was asked for
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("host")
    until = asked.select("host", asked_ps="sent_ps", before=pl.col("place") + 1).sort("asked_ps")
    numbered = (
        runs.with_columns(place=place, n=pl.len().cast(pl.Int64).over("host"))
        .join(asked.select("host", "asked").unique(), on="host")
        .sort("start_ps")
        .join_asof(until, left_on="start_ps", right_on="asked_ps", by="host", check_sortedness=False)
        .with_columns(early=(pl.col("place") + 1 - pl.col("before").fill_null(0)).max().over("host"))
    )
    earlier = pl.max_horizontal(pl.col("n") - pl.col("asked"), "early", 0)
    paired = numbered.with_columns(place=pl.col("place") - earlier).join(
        asked.drop("asked"), on=["host", "place"], how="left"
    )
    return paired.select(
        *("host", "start_ps", "end_ps", "sent_ps"),
        device=pl.lit(CPU),
        link=pl.lit("order"),
        lane=pl.coalesce("by_lane", "lane"),
    )


def _first_of(events: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return, of the events of a host that bear the same id, the earliest."""
    rows = events.filter(pl.col(key).is_not_null()).sort("start_ps")
    return rows.unique(["host", key], keep="first", maintain_order=True)


def _traced_back(runs: pl.DataFrame, events: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
    """Follow hand-overs back from each launch until a lane that marks steps, or as far as they lead."""
    within = events.filter(pl.col("receives").is_not_null()).select(
        "host", "lane", received_ps="start_ps", received="receives", over_ps=pl.col("start_ps") + pl.col("dur_ps")
    )
    senders = _first_of(events, "sends").select("host", received="sends", from_lane="lane", from_ps="start_ps")
    within = within.join(senders, on=["host", "received"]).drop("host").sort("received_ps")
    if within.is_empty():
        return runs
    for _ in range(_HOPS):
        back = runs.sort("sent_ps").join_asof(
            within, left_on="sent_ps", right_on="received_ps", by="lane", check_sortedness=False
        )
        # an event without length only marks where a thread took the work up
        works = (pl.col("over_ps") >= pl.col("sent_ps")) | (pl.col("over_ps") == pl.col("received_ps"))
        moves = works & ~pl.col("lane").is_in(marks.implode()) & (pl.col("from_ps") <= pl.col("sent_ps"))
        moves = moves.fill_null(False)
        if not back.select(moves.any()).item():
            break
        runs = back.with_columns(
            lane=pl.when(moves).then("from_lane").otherwise("lane"),
            sent_ps=pl.when(moves).then("from_ps").otherwise("sent_ps"),
        ).select(runs.columns)
    return runs
