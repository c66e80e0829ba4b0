"""Phases and their operations as tables that a spreadsheet opens."""

import csv
from dataclasses import replace

import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.testing import toy_steps
from tpunb.text import plain


def phases_of(pattern, **names):
    """Return a phase for each letter, of steps whose operations have other names."""
    steps = toy_steps(pattern)
    ops = steps.ops.with_columns(pl.col("op").cast(pl.String).replace(names).cast(schema.NAME))
    return tp.phases(replace(steps, ops=ops), lambda _: [ord(letter) - ord("a") for letter in pattern])


def test_csv_headers_name_the_units_and_times_are_milliseconds(tmp_path):
    paths = phases_of("aaab").to_csv(tmp_path / "out")
    assert [p.name for p in paths] == ["phases.csv", "operations_host.csv", "operations_device.csv"]
    phases, host, device = (list(csv.DictReader(p.open(newline=""))) for p in paths)
    assert [(row["phase"], row["steps"], row["total time (ms)"]) for row in phases] == [
        ("0", "3", "3.0"),
        ("1", "1", "2.0"),
    ]
    assert host[0] == {
        "phase": "0",
        "rank": "1",
        "operation": "a_host",
        "calls": "6",
        "total time (ms)": "0.75",
        "self time (ms)": "0.75",
        "share of self time (%)": "100.0",
        "layer": "",
        "source line": "",
    }
    assert [row["operation"] for row in device] == ["a2", "a1", "a0", "b2", "b1", "b0"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(tmp_path, name):
    device = phases_of("ab", a2=name).to_csv(tmp_path)[2]
    assert next(row["operation"] for row in csv.DictReader(device.open(newline=""))) == "'" + name


def test_a_name_with_a_comma_and_a_quote_comes_back(tmp_path):
    device = phases_of("ab", a2='x,"y"z').to_csv(tmp_path)[2]
    assert next(csv.DictReader(device.open(newline="")))["operation"] == 'x,"y"z'


@pytest.mark.parametrize(
    "name", ["\x1b]0;title\x07x", "a\r\nb", "\tx", "\x9b31m", "\u202egnp.exe", "a\u2028b", "\u200b"]
)
def test_a_cell_has_no_characters_that_command_a_terminal_or_turn_text(tmp_path, name):
    device = phases_of("ab", a2=name).to_csv(tmp_path)[2]
    assert plain(name) != name
    assert next(csv.DictReader(device.open(newline="")))["operation"] == plain(name)
