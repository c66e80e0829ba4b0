"""Link runs on a device to their launches on the host, and launches to steps.

A launch and its run share a flow, a run id or a correlation id (:mod:`tpunb.io.event_ids`). From the launch, flows lead
back to the thread with the step annotations, because a run may start long after its step has ended.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

import polars as pl

from tpunb import schema

DEVICE = "/device:"
"""Prefix of the planes of devices."""

CPU = "/device:CPU:0"
"""XLA's CPU client, which runs programs on host threads: its operations are host events with an HLO instruction."""

_EXECUTE = r"Executable::ExecuteHelper"  # the host requests a run of a program from XLA
_PLANE = ["host", "plane"]
_BY_ID = {True: "run", False: "correlation"}  # the link by an id, on a TPU and elsewhere
_DEVICE = ["host", "device"]
_SYNC = r"((cuda|hip)(Stream|Device|Event)Synchronize|aten::(item|_local_scalar_dense))"  # the host waits for a device
_FRAME = r"^\$(?:.*[/\\])?([^/\\]+)\((\d+)\): (.+)$"  # of Python, in a trace of PyTorch
_LIBRARY = r"^\$(<|(.*[/\\])?((site|dist)-packages|torch)[/\\])"
_KERNEL_WAIT_PS = 30_000_000  # the threshold of HTA
_END_PS = pl.col("start_ps") + pl.col("dur_ps")
_HOPS = 8  # flows between a launch and the thread of the step; at most four were seen

_LAUNCHES: schema.Schema = {
    "host": pl.String(),
    "device": pl.String(),
    "start_ps": pl.Int64(),  # of the run on the device
    "end_ps": pl.Int64(),
    "link": pl.String(),
    "lane": pl.UInt32(),  # of the launch on the host
    "sent_ps": pl.Int64(),  # start of the launch, or null
    "stream": pl.UInt32(),  # lane of the run on the device, null for XLA's CPU client
    "correlation_id": pl.UInt64(),  # of the run, or null
}
"""One row per run of a module, or of a kernel, on a device."""


def any_device(events: pl.DataFrame) -> bool:
    """Return whether an event ran on a device, XLA's CPU client included."""
    if events["hlo_op"].null_count() < len(events):
        return True
    return bool(events.select(pl.col("plane").cat.starts_with(DEVICE).any()).item())


def on_devices(events: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return when each device ran each step, by launches during the step; `steps` of hosts have the result's columns.

    The busiest stream of a device says when its steps begin and end: others may run ahead of it, or behind.
    The second frame has the start of the last step of each kind that its busiest device ran: (host, kind, last_ps).
    """
    launches = _launches(events)
    runs = _of_steps(launches, events, steps)
    busy_ps = (pl.col("end_ps") - pl.col("start_ps")).sum()
    stream = [*_DEVICE, "stream"]
    streams = runs.group_by(stream).agg(busy_ps=busy_ps).sort("busy_ps", "stream").unique(_DEVICE, keep="last")
    streams = streams.select(*stream, main=pl.lit(value=True))
    runs = runs.join(streams, on=stream, how="left", nulls_equal=True)
    main = pl.col("main") | ~pl.col("main").any().over(*_DEVICE, "step")
    within = (pl.col("start_ps") >= pl.col("from_ps")) & (pl.col("end_ps") <= pl.col("until_ps"))
    rows = (
        runs.group_by("host", pl.col("device").alias("plane"), "step")
        .agg(
            *(pl.col("kind", "traced", "from_ps").first(), pl.col("start_ps").filter(main).min()),
            *(pl.col("end_ps").filter(main).max(), pl.col("until_ps").max()),
            *(within.all().alias("within"), pl.len().alias("runs"), busy_ps.alias("busy_ps")),
        )
        .sort("host", "plane", "start_ps", "step")
    )
    unlinked = launches.filter(pl.col("sent_ps").is_null()).group_by("host", plane="device")
    last = _last_recorded(rows.join(unlinked.agg(unlinked_ps=pl.col("start_ps").max()), on=_PLANE, how="left"), steps)
    # a device that always finishes within the step of the host has no intervals: the host waited for it
    rows = rows.filter(~pl.col("within").all().over(_PLANE)).drop("busy_ps", "within", "runs")
    if rows.is_empty():
        return rows.drop("from_ps", "until_ps"), last
    free_ps = pl.col("end_ps").cum_max().over("host", "device")
    before = launches.join(streams, on=stream, how="semi", nulls_equal=True).sort("start_ps", "end_ps")
    before = before.select("host", plane="device", run_ps="start_ps", free_ps=free_ps)
    rows = rows.sort("start_ps").join_asof(
        before, left_on="start_ps", right_on="run_ps", by=_PLANE, check_sortedness=False, allow_exact_matches=False
    )
    # a step begins when it has begun on the host and earlier runs are finished, at its first run at the latest
    begin = pl.min_horizontal("start_ps", pl.max_horizontal("from_ps", "free_ps"))
    rows = rows.with_columns(start_ps=begin).sort("host", "plane", "start_ps", "step")
    following = pl.col("start_ps").shift(-1).over(_PLANE)
    rows = rows.with_columns(end_ps=pl.coalesce(following, pl.max_horizontal("end_ps", "until_ps")))
    return rows.drop("from_ps", "until_ps", "run_ps", "free_ps"), last


def in_steps(events: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame | None:
    """Return the step that launched each kernel on GPUs with intervals, if any: (host, plane, correlation_id, step)."""
    gpu, key = intervals["plane"].str.starts_with("/device:GPU"), [*_PLANE, "correlation_id"]
    if not gpu.any():
        return None
    steps = intervals.filter(pl.col("plane").is_null(), pl.col("rule").is_not_null())
    runs = _of_steps(_launches(events), events, steps).rename({"device": "plane"})
    runs = runs.join(intervals.filter(gpu), on=_PLANE, how="semi")
    return runs.drop_nulls("correlation_id").unique(key).select(*key, "step")


def _of_steps(launches: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the launches in steps, with their (step, kind, traced, from_ps, until_ps)."""
    annotated = events["lane"].filter(events["step_num"].is_not_null()).unique()
    sent = _trace_back(launches.filter(pl.col("sent_ps").is_not_null()), events, annotated)
    begun = steps.select("host", "step", "kind", "traced", pl.col("start_ps").alias("from_ps"), until_ps="end_ps")
    return (
        sent.sort("sent_ps")
        .join_asof(begun.sort("from_ps"), left_on="sent_ps", right_on="from_ps", by="host", check_sortedness=False)
        .filter(pl.col("sent_ps") < pl.col("until_ps"))
    )


def _last_recorded(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return (host, kind, last_ps), see :func:`on_devices`."""
    start_ps, runs = pl.col("from_ps"), pl.col("runs")
    by_device = rows.sort("from_ps").group_by("host", "plane", "kind", maintain_order=True)
    of_device = by_device.agg(
        *(pl.col("busy_ps").sum(), pl.col("unlinked_ps").first(), start_ps.max().alias("last_ps")),
        *(start_ps.top_k(2).min().alias("before_ps"), (runs.last() < runs.head(pl.len() - 1).min()).alias("short")),
    )
    busiest = of_device.sort("busy_ps", "plane").unique(["host", "kind"], keep="last")
    busiest = busiest.filter((pl.col("unlinked_ps") > pl.col("last_ps")).fill_null(value=False).not_())
    busiest = busiest.join(steps.group_by("host", "kind").agg(end_ps=pl.col("start_ps").max()), on=["host", "kind"])
    cut = pl.col("short") & (pl.col("end_ps") > pl.col("last_ps"))
    return busiest.select("host", "kind", last_ps=pl.when(cut).then("before_ps").otherwise("last_ps"))


def clocks(events: pl.DataFrame) -> pl.DataFrame:
    """Return delays between launches and runs on each device, and its clock skew: ``tpunb.schema.CLOCKS``.

    No run starts before its launch: the largest delay below 0 is a lower bound of the clock skew.
    """
    if not any_device(events):
        return pl.DataFrame(schema=schema.CLOCKS)
    runs = _on_one_clock(events)
    linked = runs.drop_nulls("sent_ps")
    changes = (linked.select(*_DEVICE, at=at, by=by) for at, by in (("sent_ps", 1), ("start_ps", -1)))
    queues = pl.concat(changes).sort("at", "by").group_by(_DEVICE, maintain_order=True)
    rows = runs.group_by(_DEVICE).agg(
        link=pl.col("link").drop_nulls().mode().sort().first(),
        launches=pl.len(),
        linked=pl.col("sent_ps").count(),
        delay_ps=(pl.col("start_ps") - pl.col("sent_ps")).median().round().cast(pl.Int64),
        skew_ps=pl.col("skew_ps").first(),
    )
    rows = rows.join(queues.agg(queue_length=pl.col("by").cum_sum().max()), on=_DEVICE, how="left")
    return schema.check(rows.sort("host", "device"), schema.CLOCKS, "clocks")


def with_waits(devices: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.DEVICES`` with the idle time that devices with linked launches wait for host and kernel.

    By HTA's rules, but for the whole device: a gap is the host's if its run was launched after the one before ended.
    It is that of a wait of the host for the device if nothing was launched between them, up to the length of the wait.
    """
    begins = devices.group_by(_DEVICE).agg(begin_ps=pl.col("start_ps").min())
    runs = _on_one_clock(events).join(begins, on=_DEVICE).sort("start_ps", "sent_ps")
    runs = runs.filter(pl.col("sent_ps").is_not_null().any().over(_DEVICE))
    if runs.is_empty():
        return devices
    begin_ps = pl.coalesce(pl.col("end_ps").cum_max().shift().over(_DEVICE), "begin_ps")
    runs = _after_syncs(runs, events)
    gaps = runs.with_columns(begin_ps=begin_ps, gap_ps=pl.col("start_ps") - begin_ps).filter(pl.col("gap_ps") > 0)
    late, gap_ps = pl.col("sent_ps") > pl.col("begin_ps"), pl.col("gap_ps")
    causes = {
        "host_wait_ps": pl.when(late).then(gap_ps),
        "sync_wait_ps": pl.when(late & (pl.col("waited_ps") > 0)).then(pl.min_horizontal("gap_ps", "waited_ps")),
        "kernel_wait_ps": pl.when(~late & (gap_ps < _KERNEL_WAIT_PS)).then(gap_ps),
    }
    linked = devices.join(runs.select(_DEVICE).unique(), on=_DEVICE, how="semi")
    waits = _within(linked, gaps.select(*_DEVICE, "begin_ps", **causes), [*causes])
    return devices.drop(*causes).join(waits, on=[*_DEVICE, "step"], how="left", maintain_order="left")


def _syncs(events: pl.DataFrame) -> pl.DataFrame:
    """Return when hosts wait for their devices: (host, lane, name, start_ps, dur_ps, until_ps)."""
    names = events["name"].unique().cast(pl.String)
    names = names.filter(names.str.contains(rf"^{_SYNC}$"))
    waits = events[:0] if names.is_empty() else events.filter(pl.col("name").is_in(names.implode()))
    waits = waits.filter(~pl.col("plane").cat.starts_with(DEVICE))
    return waits.select("host", "lane", "name", "start_ps", "dur_ps", until_ps=_END_PS).sort("until_ps", "dur_ps")


def _after_syncs(runs: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Add `waited_ps`: how long the host waited for a device between the launch before that of each run and this."""
    syncs = _syncs(events).select("until_ps", host=pl.col("host").cast(pl.String), waited_ps="dur_ps")
    if syncs.is_empty():
        return runs.with_columns(waited_ps=pl.lit(None, pl.Int64))
    runs = runs.with_columns(at=pl.col("sent_ps") + pl.col("skew_ps"))
    sent = runs.select("host", "at").drop_nulls().unique().sort("at")
    sent = sent.with_columns(before=pl.col("at").shift().over("host").fill_null(-(2**62)))
    sent = sent.join_asof(syncs, left_on="at", right_on="until_ps", by="host", check_sortedness=False)
    sent = sent.filter(pl.col("until_ps") > pl.col("before"))
    return runs.join(sent.select("host", "at", "waited_ps"), on=["host", "at"], how="left", maintain_order="left")


def sync_place(events: pl.DataFrame) -> str | None:
    """Return the line of Python in which the host waits longest for its devices, None without frames of Python."""
    of_program = pl.col("name").str.contains(_FRAME) & ~pl.col("name").str.contains(_LIBRARY)
    frames = events.filter(pl.col("name").cat.starts_with("$"))
    frames = frames.select(pl.col("name").cast(pl.String), of="lane", at="start_ps", over=_END_PS).filter(of_program)
    longest = _syncs(events).sort("dur_ps").tail(100).drop("name").with_row_index()
    within = pl.col("at") <= pl.col("start_ps"), pl.col("over") >= pl.col("until_ps")
    around = longest.join_where(frames, pl.col("lane") == pl.col("of"), *within).sort("at")
    innermost = around.unique("index", keep="last").group_by("name").agg(pl.col("dur_ps").sum()).sort("dur_ps", "name")
    return re.sub(_FRAME, r"\1:\2 in \3", innermost["name"][-1]) if innermost.height else None


def _within(devices: pl.DataFrame, gaps: pl.DataFrame, causes: Sequence[str]) -> pl.DataFrame:
    """Return (host, device, step) and a column a cause: the time of gaps of the cause within each step."""
    edges = (devices.select(*_DEVICE, "step", at=at, sign=sign) for at, sign in (("start_ps", -1), (_END_PS, 1)))
    lengths = [pl.col(cause).fill_null(0) for cause in causes]
    sums = gaps.with_columns(
        *lengths, *((gap.cum_sum().over(_DEVICE) - gap).alias(f"{gap.meta.output_name()} before") for gap in lengths)
    )
    before = (
        pl.concat(edges)
        .sort("at")
        .join_asof(sums, left_on="at", right_on="begin_ps", by=_DEVICE, check_sortedness=False, coalesce=False)
    )
    inside = pl.col("at") - pl.col("begin_ps")
    until = {cause: pl.col(f"{cause} before") + pl.min_horizontal(inside, cause) for cause in causes}
    return before.group_by(*_DEVICE, "step").agg((pl.col("sign") * at).sum().alias(name) for name, at in until.items())


def _on_one_clock(events: pl.DataFrame) -> pl.DataFrame:
    """Return the launches of devices with `skew_ps`, `sent_ps` moved by it to the clock of the device."""
    skew = (pl.col("sent_ps") - pl.col("start_ps")).max().clip(0).over(_DEVICE)
    runs = _launches(events).filter(pl.col("device") != CPU).with_columns(skew_ps=skew)
    return runs.with_columns(pl.col("sent_ps") - pl.col("skew_ps"))


_LAST = dict[int, pl.DataFrame]()
"""Launches by the identity of their events, for as long as these live: steps, waits and clocks ask for them in turn."""


def _launches(events: pl.DataFrame) -> pl.DataFrame:
    """Return each run on a device with its launch on the host, ``_LAUNCHES``; those of the last events are kept."""
    found = _LAST.get(id(events))
    if found is None:
        found = _found(events)
        _LAST.clear()
        _LAST[id(events)] = found
        weakref.finalize(events, _LAST.pop, id(events), None)
    return found


def _found(events: pl.DataFrame) -> pl.DataFrame:
    linked = events.select("host", "plane", "lane", "start_ps", "dur_ps", "hlo_op", "correlation_id", "flow_in")
    linked = linked.filter(pl.any_horizontal(pl.col("correlation_id", "flow_in").is_not_null()))
    on_device = pl.col("plane").cat.starts_with(DEVICE)
    thunk = ~on_device & pl.col("hlo_op").is_not_null()
    if not linked.select((on_device | thunk).any()).item():  # a host alone
        return pl.DataFrame(schema=_LAUNCHES)
    senders = first_of(events, "flow_out").select(
        "host", flow_in="flow_out", by_flow_lane="lane", by_flow_sent_ps="start_ps"
    )
    launchers = first_of(linked.filter(~on_device & ~thunk), "correlation_id").select(
        "host", "correlation_id", by_launch_lane="lane", by_launch_sent_ps="start_ps"
    )
    runs = (
        linked.filter(on_device)
        .select("host", "start_ps", "dur_ps", "flow_in", "correlation_id", device="plane", stream="lane")
        .join(senders, on=["host", "flow_in"], how="left")
        .join(launchers, on=["host", "correlation_id"], how="left")
        .select(
            *("host", "device", "start_ps", "stream", "correlation_id"),
            end_ps=_END_PS,
            # devices record flow and run id of a run; kernels, without a line of modules, a correlation id
            link=pl.when(pl.col("by_flow_sent_ps").is_not_null())
            .then(pl.lit("flow"))
            .when(pl.col("by_launch_sent_ps").is_not_null())
            .then(pl.col("device").cat.starts_with("/device:TPU").replace_strict(_BY_ID)),
            lane=pl.coalesce("by_flow_lane", "by_launch_lane"),
            sent_ps=pl.coalesce("by_flow_sent_ps", "by_launch_sent_ps"),
        )
    )
    thunks = linked.filter(thunk & pl.col("correlation_id").is_not_null())
    if thunks.is_empty():
        return schema.check(runs, _LAUNCHES, "launches")
    by_run = (
        thunks.group_by("host", "correlation_id")
        .agg(pl.col("start_ps").min(), end_ps=_END_PS.max())
        .join(launchers, on=["host", "correlation_id"])
        .select(
            *("host", "start_ps", "end_ps"),
            lane="by_launch_lane",
            sent_ps="by_launch_sent_ps",
            device=pl.lit(CPU),
            link=pl.lit("run"),
        )
    )
    unlinked = _on_host_threads(thunks.join(launchers, on=["host", "correlation_id"], how="anti"), events)
    on_threads = (part.with_columns(stream=pl.lit(None), correlation_id=pl.lit(None)) for part in (by_run, unlinked))
    return pl.concat([schema.check(part, _LAUNCHES, "launches") for part in (runs, *on_threads)])


def _on_host_threads(thunks: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return runs of XLA's CPU client with their launches, paired in order: such runs have no id of a launch."""
    runs = (
        thunks.sort("start_ps")
        .group_by("host", "correlation_id", maintain_order=True)
        .agg(pl.col("lane").first(), pl.col("start_ps").first(), end_ps=_END_PS.max())
    )
    name = pl.col("name").cast(pl.String)
    requests = (
        events.filter(name.str.contains(_EXECUTE))
        .select("host", by_lane="lane", sent_ps="start_ps")
        .sort("sent_ps")
        .with_columns(place=pl.int_range(pl.len()).over("host"), requests=pl.len().cast(pl.Int64).over("host"))
    )
    if requests.is_empty():  # a flow may still lead to the thread of the step
        return runs.with_columns(device=pl.lit(CPU), link=pl.lit("flow"), sent_ps="start_ps")
    # the first runs were requested before the window began: as many as exceed the requests, and as many as would
    # otherwise start before their request
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("host")
    until = requests.select("host", requested_ps="sent_ps", before=pl.col("place") + 1).sort("requested_ps")
    numbered = (
        runs.with_columns(place=place, n=pl.len().cast(pl.Int64).over("host"))
        .join(requests.select("host", "requests").unique(), on="host")
        .sort("start_ps")
        .join_asof(until, left_on="start_ps", right_on="requested_ps", by="host", check_sortedness=False)
        .with_columns(early=(pl.col("place") + 1 - pl.col("before").fill_null(0)).max().over("host"))
    )
    earlier = pl.max_horizontal(pl.col("n") - pl.col("requests"), "early", 0)
    paired = numbered.with_columns(place=pl.col("place") - earlier).join(
        requests.drop("requests"), on=["host", "place"], how="left"
    )
    return paired.select(
        *("host", "start_ps", "end_ps", "sent_ps"),
        device=pl.lit(CPU),
        link=pl.lit("order"),
        lane=pl.coalesce("by_lane", "lane"),
    )


def first_of(events: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return (host, lane, start_ps, id) of the earliest of the events of a host with the same id."""
    rows = events.select("host", "lane", "start_ps", key).filter(pl.col(key).is_not_null()).sort("start_ps")
    return rows.unique(["host", key], keep="first", maintain_order=True)


def _trace_back(runs: pl.DataFrame, events: pl.DataFrame, annotated: pl.Series) -> pl.DataFrame:
    """Follow flows back from each launch to a lane with step annotations, or as far as they lead."""
    within = events.select("host", "lane", received_ps="start_ps", received="flow_in", over_ps=_END_PS)
    within = within.drop_nulls("received")
    if within.is_empty():
        return runs
    senders = first_of(events, "flow_out").select("host", received="flow_out", from_lane="lane", from_ps="start_ps")
    within = within.join(senders, on=["host", "received"]).drop("host").sort("received_ps")
    for _ in range(_HOPS):
        back = runs.sort("sent_ps").join_asof(
            within, left_on="sent_ps", right_on="received_ps", by="lane", check_sortedness=False
        )
        # an event without length only says where a thread started the work
        works = (pl.col("over_ps") >= pl.col("sent_ps")) | (pl.col("over_ps") == pl.col("received_ps"))
        moves = works & ~pl.col("lane").is_in(annotated.implode()) & (pl.col("from_ps") <= pl.col("sent_ps"))
        if not back.select(moves.any()).item():
            break
        runs = back.with_columns(
            lane=pl.when(moves).then("from_lane").otherwise("lane"),
            sent_ps=pl.when(moves).then("from_ps").otherwise("sent_ps"),
        ).select(runs.columns)
    return runs
