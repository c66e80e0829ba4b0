"""The columns of every frame: types, definitions, aggregation, and the glossary that is generated from them."""

import ast
import re
import sys
from pathlib import Path

import polars as pl
import pytest

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.studies.ranking import columns as ranking
from tpunb.studies.scaling import columns as scaling
from tpunb.studies.sweeps import columns as sweeps

SPANS = {"host": pl.String(), "step": pl.Int64(), "traced": schema.TRACED}
MODULES = (schema, ranking, scaling, sweeps)
FRAMES = {  # in the order of the modules, whichever was imported first
    name: frame for module in MODULES for name, frame in schema.FRAMES.items() if frame.home == module.__name__
}
SCHEMAS = {name: getattr(sys.modules[frame.home], name) for name, frame in FRAMES.items()}
GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"
INTRO = """# Glossary

Every term of the frames that `tpunb` returns, in one sentence each. `tpunb.schema` holds the same definitions in code;
this page is generated from it by `python tests/test_schema.py`.

Times are whole picoseconds (columns that end in `_ps`). A figure that the profile does not contain is null, never 0.
"""
ACCOUNTS = """Of the time of a run; those of a host add up to its wall time. `tpunb.schema.ACCOUNTS`
"""


def test_check_returns_a_frame_that_fits_unchanged():
    frame = pl.DataFrame([("a", 1, "full")], schema=SPANS, orient="row")
    assert schema.check(frame, SPANS, "steps") is frame


def test_check_orders_and_casts_columns_and_drops_others():
    frame = pl.DataFrame(
        {"traced": ["none", "full"], "extra": [0.5, 0.5], "step": [3, 4], "host": ["a", "b"]},
        schema_overrides={"step": pl.UInt8, "host": pl.Categorical},
    )
    checked = schema.check(frame, SPANS, "steps")
    assert checked.schema == SPANS
    assert list(checked.schema) == ["host", "step", "traced"]
    assert checked.rows() == [("a", 3, "none"), ("b", 4, "full")]
    assert frame.columns == ["traced", "extra", "step", "host"]  # the caller's frame did not change


def test_nulls_stay_null():
    frame = pl.DataFrame({"traced": [None], "step": [None], "host": [None]})
    assert schema.check(frame, SPANS, "steps").row(0) == (None, None, None)


def test_check_names_missing_columns():
    with pytest.raises(BadProfile) as caught:
        schema.check(pl.DataFrame({"step": [1], "hosts": ["a"]}), SPANS, "steps")
    assert str(caught.value) == "the steps frame lacks ['host', 'traced']; it has ['step', 'hosts']"
    assert caught.value.hint == "its columns are listed in tpunb.schema.STEPS"


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("step", ["seven"]),
        ("step", [2**64 - 1]),
        ("step", [[1, 2]]),
        ("traced", ["half"]),
        ("traced", [True]),
    ],
    ids=str,
)
def test_check_refuses_values_of_another_type_in_one_line(column, values):
    columns = {"host": ["a"], "step": [1], "traced": ["full"]} | {column: pl.Series(column, values)}
    with pytest.raises(BadProfile, match=r"the ops frame has a column of the wrong type: .+") as caught:
        schema.check(pl.DataFrame(columns), SPANS, "ops")
    assert "\n" not in str(caught.value)


def test_an_empty_frame_of_every_schema_passes_its_check():
    assert {"EVENTS", "STEPS", "OPS", "DEVICES", "HARDWARE", "WINDOWS", "PHASES", "TOP"} <= set(SCHEMAS)
    for name, columns in SCHEMAS.items():
        frame = pl.DataFrame(schema=columns)
        assert schema.check(frame, columns, name.lower()) is frame


def test_every_time_is_whole_picoseconds():
    times = {(name, column): dtype for name, columns in SCHEMAS.items() for column, dtype in columns.items()}
    units = {dtype for (_, column), dtype in times.items() if column.endswith("_ps")}
    assert units == {pl.Int64(), pl.List(pl.Int64())}


def test_partial_sorts_after_full():
    seen = pl.Series(["full", "partial", "none"], dtype=schema.TRACED)
    assert seen.sort(descending=True).to_list() == ["none", "partial", "full"]
    assert seen.head(2).max() == "partial"


def test_every_frame_is_declared_with_its_columns():
    declared = {name: {column: spec.dtype for column, spec in frame.columns.items()} for name, frame in FRAMES.items()}
    assert declared == SCHEMAS


def test_every_schema_of_the_modules_is_a_declared_frame():
    schemas = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, dict) and name[0] != "_"
    }
    assert schemas - {"ACCOUNTS", "FRAMES", "RULES", "RUN_EVENT_KINDS", "TERMS"} == set(schema.FRAMES)


def sentences():
    yield from schema.TERMS.items()
    for name, frame in FRAMES.items():
        yield name, frame.row
        yield from ((f"{name}.{column}", spec.term) for column, spec in frame.columns.items())


def test_every_term_is_one_sentence():
    one = re.compile(r"(?!.*[.!?;] )[A-Z][^\n]{8,118}\.")
    assert {term: sentence for term, sentence in sentences() if not one.fullmatch(sentence)} == {}


UNITS = {  # by the end of a column's name
    "_ps": r"\bpicoseconds\b",
    "_s": r"\bseconds?\b",
    "_ppm": r"\bparts per million\b",
    "minutes": r"\bminutes\b",
    "bytes": r"\bbytes\b",
    "bandwidth": r"\bbytes per second\b",
    "flops": r"\bfloating-point operations\b",
    "_util": r"\b0 to 1\b",
}


def test_every_column_has_the_unit_that_its_name_ends_in():
    terms = [
        (f"{name}.{column}", spec.term) for name, frame in FRAMES.items() for column, spec in frame.columns.items()
    ]
    wrong = {
        column: term
        for column, term in terms
        for end, unit in UNITS.items()
        if column.endswith(end) and not re.search(unit, term, re.IGNORECASE)
    }
    assert wrong == {}
    assert [column for column, term in terms if "picosecond" in term and not column.endswith("_ps")] == []


def test_measured_columns_declare_how_they_are_aggregated():
    for name in ("STEPS", "DEVICES", "OPS"):
        keys = {"host", "step", "device", "op", "side"}
        assert {column for column, spec in FRAMES[name].columns.items() if spec.windows is None} <= keys
    steps = FRAMES["STEPS"].columns
    assert {column for column, spec in steps.items() if spec.devices} == set(schema.DEVICE_FACTS)
    means = {column for column, spec in steps.items() if spec.windows == "mean"}
    assert means == {"duty_cycle", "mxu_util", "flops_util", "flops_time_share", "hbm_util"}


def accounts():
    """Return the accounts as a table of Markdown."""
    rows = ["| account | content | detail |", "|---|---|---|"]
    rows += [f"| {name} | {account.content} | {account.detail} |" for name, account in schema.ACCOUNTS.items()]
    return "".join(f"{row}\n".replace("|  |", "| |") for row in rows)


def glossary():
    """Return the glossary as Markdown."""
    parts = [INTRO, "## Terms\n", *(f"- **{term}**: {sentence}" for term, sentence in schema.TERMS.items())]
    parts += ["\n## Accounts\n", ACCOUNTS, accounts().rstrip("\n")]
    for name, frame in FRAMES.items():
        parts += [f"\n## {name}\n", f"{frame.row} `{frame.home}.{name}`\n", "| column | definition |", "|---|---|"]
        parts += [f"| `{column}` | {spec.term} |" for column, spec in frame.columns.items()]
    return "\n".join(parts) + "\n"


def test_the_glossary_is_generated_from_the_schema():
    assert GLOSSARY.read_text(encoding="utf-8") == glossary(), "run python tests/test_schema.py"


def test_accounts_are_listed_once():
    for path in Path(schema.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                named = {key.value for key in node.keys if isinstance(key, ast.Constant)} & {*schema.ACCOUNTS}
                assert len(named) < 3, f"{path}:{node.lineno}: a property of accounts belongs in schema.ACCOUNTS"
    metrics = [account.metric for account in schema.ACCOUNTS.values()]
    assert len({*metrics}) == len(metrics)


if __name__ == "__main__":
    GLOSSARY.write_text(glossary(), encoding="utf-8")
