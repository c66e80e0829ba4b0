"""Tables of the hosts of a job: sums over steps, and the device of each host that came last to a collective."""

import polars as pl
import pytest
from planes import US, Plane, op

import tpunb as tp
from tpunb import schema
from tpunb.step_stats.merge_hosts import host_tables, last_arrivals


def runs(*rows, groups=None):
    """Collectives of step 0 from (host, device, start, duration) in microseconds."""
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("host", "device", "start_ps", "dur_ps"))}
    facts = {"step": 0, "op": "all-reduce", "program": 7, "name": "all-reduce.1", "instance": 1, "groups": groups}
    frame = pl.DataFrame(columns).with_columns(pl.col("start_ps", "dur_ps") * US)
    absent = {name: None for name in schema.COLLECTIVES if name not in (*columns, *facts)}
    frame = frame.with_columns(**{name: pl.lit(value) for name, value in (facts | absent).items()})
    return schema.check(frame, schema.COLLECTIVES, "collectives")


def arrivals(frame):
    texts = pl.col("host", "device").cast(pl.String)
    return last_arrivals(frame).select(texts, pl.col("start_ps", "dur_ps") // US).rows()


@pytest.mark.parametrize("groups", [None, "{}", "{{0,1,2,3}}", "[1,4]<=[4]"])
def test_the_device_with_the_shortest_run_came_last(groups):
    rows = runs(("a", "0", 10, 40), ("a", "1", 30, 20), ("b", "0", 5, 31), ("b", "1", 6, 32), groups=groups)
    assert arrivals(rows) == [("a", "1", 30, 20), ("b", "0", 5, 31)]


@pytest.mark.parametrize("groups", ["{{0,2},{1,3}}", "[2,2]<=[2,2]T(1,0)"])
def test_devices_of_several_groups_last_from_the_latest_start_to_the_latest_end(groups):
    # the groups of devices 0 end at 50, those of devices 1 at 90, since device 1 of host a is late
    rows = runs(("a", "0", 10, 40), ("a", "1", 80, 10), ("b", "0", 40, 10), ("b", "1", 30, 60), groups=groups)
    assert arrivals(rows) == [("a", "1", 80, 10), ("b", "0", 40, 50)]


def test_tables_of_two_raw_hosts(xplane_pb2, tmp_path):
    text, name, facts = op("all-reduce.1", "all-reduce", "{{0,1,2,3}}")
    for host, starts in {"a": (10, 30), "b": (20, 15)}.items():
        space = xplane_pb2.XSpace(hostnames=[host])
        Plane(space, "/host:CPU").line("python", *(("train", 100 * n, 100, {"step_num": n}) for n in (0, 1)))
        for number, start in enumerate(starts):
            tpu = Plane(space, f"/device:TPU:{number}")
            events = [(text, 100 * n + start, 50 - start, facts) for n in (0, 1)]
            tpu.line("XLA Ops", *events)
            tpu.plane.event_metadata[tpu.key(text, tpu.plane.event_metadata)].display_name = name
        (tmp_path / f"{host}.xplane.pb").write_bytes(space.SerializeToString())
    tables = host_tables(tp.steps(tp.load(tmp_path)))
    assert tables.frame.select("host", "step").rows() == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    sums = tables.ops.filter(side="device").select(pl.col("host", "op").cast(pl.String), "count", "self_ps")
    assert sums.rows() == [("a", "all-reduce", 4, 120 * US), ("b", "all-reduce", 4, 130 * US)]
    device = pl.col("device").cast(pl.String).str.tail(1)
    rows = tables.collectives.select(pl.col("host").cast(pl.String), "step", "instance", device, "dur_ps")
    assert rows.rows() == [
        *(("a", 0, 1, "1", 20 * US), ("a", 1, 1, "1", 20 * US)),
        *(("b", 0, 1, "0", 30 * US), ("b", 1, 1, "0", 30 * US)),
    ]


def test_statistics_alone_have_steps_and_operations_but_no_collectives():
    steps = tp.steps(tp.sample("keras_cnn"))
    tables = host_tables(steps)
    assert tables.collectives.is_empty()
    assert tables.frame.height == len(steps)
    assert tables.ops["self_ps"].sum() == steps.ops["self_ps"].sum()
