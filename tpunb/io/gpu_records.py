"""What profilers of GPUs record, in nanoseconds, as the events of a trace of PyTorch: work, calls and ranges."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import polars as pl

from tpunb.errors import BadProfile
from tpunb.io.chrome_trace import Event
from tpunb.text import format_error

Row = Mapping[str, Any]
Tables = Mapping[str, Callable[[], Iterator[Row]]]
"""Rows of the tables of an export, by name."""

_STEP = re.compile(r"((?:[A-Za-z]+[ _])*(?:step|iter|iteration|batch))[\s_#:=.-]*(\d{1,18})", re.IGNORECASE)
_OPERATOR = re.compile(r"(aten::\w+)\b.*")  # of PyTorch's emit_nvtx, with the number of the call
_DAMAGE = (
    *(sqlite3.DatabaseError, pl.exceptions.PolarsError, pl.exceptions.PanicException),
    *(AttributeError, TypeError, LookupError, ValueError, ArithmeticError),
)


@contextmanager
def reading(source: str, form: str, hint: str) -> Iterator[None]:
    """Raise what values of other types cause as a BadProfile."""
    try:
        yield
    except BadProfile:
        raise
    except _DAMAGE as error:
        raise BadProfile(f"{source}: damaged {form}: {format_error(error)}", hint=hint) from error


def rows(tables: Tables, table: str) -> Iterator[Row]:
    """Return the rows of a table, none if it is absent."""
    return tables[table]() if table in tables else iter(())


def event(category: str, name: str, place: tuple[str, str], times: tuple[int, int], args: Mapping[str, Any]) -> Event:
    """Return an event of a process and thread, from its begin and end."""
    start, end = times
    return Event("X", category, name, *place, _microseconds(start), _microseconds(end - start), args)


def _microseconds(ns: int) -> str:
    return f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def work(category: str, name: str, process: int, times: tuple[int, int], args: Mapping[str, Any]) -> Event:
    """Return work on a device; `args` are of PyTorch: device, stream and correlation."""
    return event(category, name, (f"{process} GPU", str(args["stream"])), times, args)


def mark(name: str, place: tuple[str, str], times: tuple[int, int]) -> Event:
    """Return a range of a thread: a step if it is named and numbered as one, or an operator."""
    operator, step = _OPERATOR.fullmatch(name), _STEP.fullmatch(name)
    args = {"step_num": step[2]} if step else {}
    category = "cpu_op" if operator else "user_annotation"
    return event(category, operator[1] if operator else step[1] if step else name, place, times, args)
