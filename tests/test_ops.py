"""Operations among events: each once, under its name, with the time that is its own, in the step it starts in."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tpunb import schema
from tpunb.step_stats import boundaries, ops
from tpunb.step_stats.aggregate import total
from tpunb.step_stats.op_names import FUNCTION_CALL
from tpunb.testing import toy_events

CPU, TPU, GPU = "/host:CPU", "/device:TPU:0", "/device:GPU:0"
US = 1_000_000


def named(*rows, **columns):
    events = toy_events(*rows).with_columns(
        **{name: pl.Series(values, dtype=schema.EVENTS[name], strict=False) for name, values in columns.items()}
    )
    return ops.find(events)


def test_a_framework_op_names_an_operation_before_its_instruction_and_that_before_its_event():
    found = named(
        (GPU, "Stream #1", "void gemm<float>(int)", 0, 1),
        (GPU, "Stream #1", "void gemm<float>(int)", 1, 1),
        (GPU, "Stream #1", "void gemm<float>(int)", 2, 1),
        tf_op=["model/fc/MatMul:MatMul", "jit(f)/dot_general", None],
        hlo_op=["fusion.1", "fusion.2", None],
    )
    assert found["op"].to_list() == ["MatMul", "fusion", "gemm"]


def test_noise_of_the_host_is_left_out_and_a_devices_events_never_are():
    found = named((CPU, "python", "ExecutorState::Process", 0, 9), (TPU, "XLA Ops", "ExecutorState::Process", 0, 9))
    assert found.select("side", "op").rows() == [("device", "ExecutorState::Process")]


def test_marks_of_steps_are_no_operations():
    assert named((CPU, "python", "train", 0, 9, 1)).is_empty()


def test_what_begins_at_once_nests_by_its_length_whatever_the_order_in_the_file():
    found = named(
        (CPU, "python", "late", 20, 5),
        (CPU, "python", "inner", 0, 4),
        (CPU, "python", "outer", 0, 10),
        (CPU, "python", "innermost", 0, 1),
    )
    own = dict(zip(found["op"], found["self_ps"] // US, strict=True))
    assert own == {"outer": 6, "inner": 3, "innermost": 1, "late": 5}


def test_a_category_of_the_device_wins_over_that_of_the_name():
    found = named(
        (TPU, "XLA Ops", "all-reduce.1", 0, 1), (TPU, "XLA Ops", "all-reduce.1", 1, 1), category=["custom fusion", None]
    )
    assert found["category"].to_list() == ["custom fusion", "all-reduce"]


def test_map_names_calls_the_function_once_per_name():
    asked = []
    column = pl.Series(["b", None, "a", "b"], dtype=schema.NAME)
    assert ops.map_names(column, lambda word: asked.append(word) or word.upper()).to_list() == ["B", None, "A", "B"]
    assert sorted(asked) == ["a", "b"]
    assert ops.map_names(column.clear(), str.upper).to_list() == []
    assert ops.map_names(pl.Series([None, None], dtype=schema.NAME), str.upper).to_list() == [None, None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(CPU, "python"), (CPU, "worker"), (TPU, "XLA Ops")]), st.integers(0, 50), st.integers(0, 9)
        ),
        max_size=30,
    )
)
def test_each_operation_is_in_the_step_in_which_it_starts(rows):
    steps = [(CPU, "python", "train", 10 * i, 8, i) for i in range(5)]  # with holes between them
    events = toy_events(*steps, *((*at, "op", start, dur) for at, start, dur in rows))
    found = ops.find(events)
    placed, places = ops.place(found, boundaries.find(events)[0])
    inside = ops.assign(placed, places)
    assigned = inside.join(places.select("at", "step", from_ps="start_ps"), on="at")
    assert sorted(assigned["start_ps"] // US) == sorted(start for _, start, _ in rows if start < 50 and start % 10 < 8)
    assert (assigned["start_ps"] // (10 * US) == assigned["step"]).all()
    assert (found["self_ps"] <= found["total_ps"]).all()


def test_totals_are_those_of_group_by_with_more_combinations_than_a_number_holds():
    many = [[(row * step) % 8192 for row in range(9000)] for step in (1, 3, 5, 7, 11)]  # 2**65 combinations
    rows = pl.DataFrame({f"key {n}": pl.Series(values, dtype=pl.Int64) for n, values in enumerate(many)})
    rows = rows.with_columns(
        side=pl.Series(["host", None, "device"] * 3000, dtype=schema.SIDE),
        op=pl.Series(["a", "b", None] * 3000, dtype=schema.NAME),
        part=pl.Series([None, "forward"] * 4500, dtype=pl.String),
        none=pl.lit(None, pl.String),
        dur=pl.Series([7, None, 2**62] * 3000, dtype=pl.Int64),
        flops=pl.Series([None, 0.5] * 4500),
    ).with_columns(pl.when(pl.col("key 0") > 3).then("key 0"))
    by = [name for name in rows.columns if name not in ("dur", "flops")]
    expected = rows.group_by(by).agg(pl.len().cast(pl.Int64).alias("count"), total("dur"), total("flops"))
    assert ops.totals(rows, by, ["dur", "flops"]).sort(by).equals(expected.sort(by))


def test_totals_of_no_rows_are_none():
    rows = pl.DataFrame(schema={"op": schema.NAME, "dur": pl.Int64})
    found = ops.totals(rows, ["op"], ["dur"])
    assert [*found.schema.items()] == [("op", schema.NAME), ("count", pl.Int64), ("dur", pl.Int64)]
    assert found.is_empty()


def test_a_framework_op_is_never_noise_unless_it_calls_a_whole_function():
    rows = [
        ("MemoryAllocation", "pool/MemoryAllocation:MemoryAllocation", False),
        ("MemoryAllocation", None, True),
        ("my_train_step", FUNCTION_CALL, True),
        ("my_train_step", None, False),
    ]
    events = pl.DataFrame(rows, {"name": schema.NAME, "tf_op": schema.NAME, "noise": pl.Boolean}, orient="row")
    assert events.select(ops._noise(events))["tf_op"].to_list() == events["noise"].to_list()
