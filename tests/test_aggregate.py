"""The steps of a run from the tables of its parts, against one group and one join of them all."""

import hypothesis.strategies as st
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from polars.testing import assert_frame_equal

from tpunb import schema
from tpunb.io.run_folder import TABLES
from tpunb.step_stats.aggregate import merge, merge_steps, over_windows, total

KEY = ["host", "step"]
BY_CLOCK = ["input_ps", "callbacks_ps", "dispatch_ps", "peers_ps", "samples", "tokens"]


def joined(ticks, steps):
    """STEPS by a group of each table and a full join."""
    traced = steps.group_by(KEY).agg(over_windows("STEPS", [*schema.STEPS][2:]))
    kind, found_by = pl.col("kind").sort_by("start_ps").first(), pl.col("found_by").first()
    ends = pl.col("start_ps").min(), pl.col("end_ps").max()
    clocked = ticks.group_by(KEY).agg(kind, *ends, found_by, *map(total, BY_CLOCK))
    both = clocked.join(traced, on=KEY, how="full", coalesce=True, suffix="_traced")
    full, clock_ps = pl.col("traced") == "full", pl.col("end_ps") - pl.col("start_ps")
    by_clock = pl.when(clock_ps.is_not_null()).then(pl.lit("clock"))
    return both.select(
        *KEY,
        kind=pl.coalesce("kind", "kind_traced"),
        start_ps=pl.when(full).then("start_ps_traced").otherwise(pl.coalesce("start_ps", "start_ps_traced")),
        dur_ps=pl.when(full).then("dur_ps").otherwise(pl.coalesce(clock_ps, "dur_ps")),
        traced=pl.col("traced").fill_null("none"),
        rule=pl.coalesce("found_by", pl.col("rule").cast(pl.String), by_clock),
        **{name: pl.coalesce(name, f"{name}_traced") for name in BY_CLOCK},
        idle_ps="idle_ps",
        mxu_util="mxu_util",
    )


times = st.integers(0, 9).map(lambda time: 1000 * time)
tick = st.tuples(
    *(st.sampled_from(["a", "b"]), st.integers(0, 6), st.sampled_from(["train", "test"]), times, times),
    *[st.none() | times] * 3,
    st.sampled_from([None, "keras"]),
    *[st.none() | times] * 3,
)
begins = times.map(lambda time: time + 500)  # never that of a tick, whose part an unfinished step may be
step = st.tuples(
    *(st.sampled_from(["a", "b"]), st.integers(0, 6), begins, times),
    *(st.sampled_from(["full", "partial"]), st.none() | times, st.none() | st.sampled_from([0.25, 0.5])),
)


@pytest.mark.parametrize("hosts", ["a", "ab"])
@given(ticks=st.lists(tick, max_size=8), steps=st.lists(step, max_size=8))
@examples(100)
def test_steps_of_one_row_and_of_several_are_what_one_join_says(hosts, ticks, steps):
    ticks = pl.DataFrame([row for row in ticks if row[0] in hosts], TABLES["ticks"], orient="row")
    names = ["host", "step", "start_ps", "dur_ps", "traced", "idle_ps", "mxu_util"]
    rows = pl.DataFrame([row for row in steps if row[0] in hosts], dict.fromkeys(names), orient="row", strict=False)
    rows = rows.with_columns(kind=pl.lit("train"), rule=pl.lit("annotation"), device_ps=pl.lit(None))
    tables = {name: pl.DataFrame(schema=columns) for name, columns in TABLES.items()}
    tables |= {"ticks": ticks, "steps": schema.check(rows, schema.STEPS, "steps")}
    expected = joined(ticks, tables["steps"])
    found = merge(tables)[0].select(expected.columns).with_columns(pl.col("traced", "rule").cast(pl.String))
    expected = expected.with_columns(pl.col("traced").cast(pl.String))
    assert_frame_equal(found, expected, check_row_order=False, check_exact=True)


@pytest.mark.parametrize(("is_over", "steps"), [(True, [0, 1]), (False, [0, 1, 2])], ids=["over", "killed"])
def test_the_step_that_was_open_in_the_last_window_is_one_if_the_run_was_killed(is_over, steps):
    names = ["host", "step", "kind", "start_ps", "dur_ps", "traced", "rule", "device_ps", "idle_ps"]
    rows = [("a", step, "train", 1000 * step + 500, 100, "partial", "clock", 0, 0) for step in (1, 2)]
    ticks = [("a", step, "train", 1000 * step, 1000 * step + 900, *[None] * 7) for step in (0, 1)]
    tables = {name: pl.DataFrame(schema=columns) for name, columns in TABLES.items()}
    tables["steps"] = schema.check(pl.DataFrame(rows, names, orient="row"), schema.STEPS, "steps")
    tables["ticks"] = pl.DataFrame(ticks, TABLES["ticks"], orient="row")
    assert merge_steps(tables, is_over=is_over)[0].sort("step")["step"].to_list() == steps


@given(several=st.lists(st.integers(0, 5), max_size=6))
@examples(50)
def test_operations_of_a_step_in_several_windows_are_added(several):
    tables = {name: pl.DataFrame(schema=columns) for name, columns in TABLES.items()}
    windows = [("a", step, "train", 0, 1, "full", 0, 0) for step in several]
    names = ["host", "step", "kind", "start_ps", "dur_ps", "traced", "device_ps", "idle_ps"]
    tables["steps"] = schema.check(pl.DataFrame(windows, names, orient="row", strict=False), schema.STEPS, "steps")
    rows = [("a", step, "dot", "host", None, 1, 7, 5) for step in several]
    tables["ops"] = pl.DataFrame(rows, schema.OPS, orient="row")
    ops = merge(tables)[1]
    assert sorted(ops.select("step", "count", "total_ps").rows()) == [
        (step, several.count(step), 7 * several.count(step)) for step in sorted(set(several))
    ]


def test_columns_without_values_take_no_memory():
    rows = pl.DataFrame({"step": range(1000), "flops": pl.Series([None] * 1000, dtype=pl.Float64)})
    assert schema.compact(rows).equals(rows)
    assert schema.compact(rows).schema == rows.schema
    assert schema.compact(rows.drop("step")).equals(rows.drop("step"))
