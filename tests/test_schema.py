"""The vocabulary: a frame has the columns of its schema, in order and type, or says what it lacks."""

import polars as pl
import pytest

from tpunb import schema
from tpunb.errors import BadProfile

SPANS = {"host": pl.String(), "step": pl.Int64(), "seen": schema.SEEN}
SCHEMAS = {name: value for name, value in vars(schema).items() if name.isupper() and isinstance(value, dict)}


def test_a_frame_that_fits_is_handed_on_as_it_is():
    frame = pl.DataFrame([("a", 1, "full")], schema=SPANS, orient="row")
    assert schema.check(frame, SPANS, "steps") is frame


def test_columns_come_in_the_order_and_the_types_of_the_schema_and_others_go():
    frame = pl.DataFrame(
        {"seen": ["tick", "full"], "extra": [0.5, 0.5], "step": [3, 4], "host": ["a", "b"]},
        schema_overrides={"step": pl.UInt8, "host": pl.Categorical},
    )
    checked = schema.check(frame, SPANS, "steps")
    assert checked.schema == SPANS
    assert list(checked.schema) == ["host", "step", "seen"]
    assert checked.rows() == [("a", 3, "tick"), ("b", 4, "full")]
    assert frame.columns == ["seen", "extra", "step", "host"]  # the caller's frame did not change


def test_nulls_stay_null():
    frame = pl.DataFrame({"seen": [None], "step": [None], "host": [None]})
    assert schema.check(frame, SPANS, "steps").row(0) == (None, None, None)


def test_what_lacks_is_named_with_what_is_there_and_where_to_look():
    with pytest.raises(BadProfile) as caught:
        schema.check(pl.DataFrame({"step": [1], "hosts": ["a"]}), SPANS, "steps")
    assert str(caught.value) == "the steps frame lacks ['host', 'seen']; it has ['step', 'hosts']"
    assert caught.value.hint == "its columns are listed in tpunb.schema.STEPS"


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("step", ["seven"]),
        ("step", [2**64 - 1]),
        ("step", [[1, 2]]),
        ("seen", ["half"]),
        ("seen", [True]),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused_in_one_line(column, values):
    columns = {"host": ["a"], "step": [1], "seen": ["full"]} | {column: pl.Series(column, values)}
    with pytest.raises(BadProfile, match=r"the ops frame has a column of the wrong type: .+") as caught:
        schema.check(pl.DataFrame(columns), SPANS, "ops")
    assert "\n" not in str(caught.value)


def test_there_are_schemas_and_each_has_an_empty_frame_that_passes_its_own_check():
    assert {"EVENTS", "STEPS", "OPS", "DEVICES", "HARDWARE", "WINDOWS", "PHASES", "TOP"} <= set(SCHEMAS)
    for name, columns in SCHEMAS.items():
        frame = schema.empty(columns)
        assert frame.height == 0
        assert frame.schema == columns
        assert schema.check(frame, columns, name.lower()) is frame


def test_every_time_is_whole_picoseconds():
    times = {(name, column): dtype for name, columns in SCHEMAS.items() for column, dtype in columns.items()}
    units = {dtype for (_, column), dtype in times.items() if column.endswith("_ps")}
    assert units == {pl.Int64()}


def test_a_step_cut_anywhere_counts_as_less_seen_than_one_in_full():
    seen = pl.Series(["full", "partial", "tick"], dtype=schema.SEEN)
    assert seen.sort(descending=True).to_list() == ["tick", "partial", "full"]
    assert seen.head(2).max() == "partial"
