"""Runs written part by part, and what is in their folders."""

import polars as pl

from tpunb import schema
from tpunb.io import run_folder, storage
from tpunb.io.run_writer import RunWriter
from tpunb.testing import toy_steps

MS = 1_000_000_000


def ticks(*numbers):
    """Steps of these numbers, 1 ms each."""
    rows = [("toy", number, "train", number * MS, (number + 1) * MS, *[None] * 7) for number in numbers]
    return pl.DataFrame(rows, schema=run_folder.TICKS, orient="row")


def tables(*numbers):
    """All tables of a part, of steps of these numbers."""
    steps = toy_steps("abc" * (max(numbers) // 3 + 1))
    mine = pl.col("step").is_in(numbers)
    window = ("toy", numbers[0], numbers[0] * MS, MS, MS, 1000, 7, 1, None, "evenly")
    return {
        "steps": steps.frame.filter(mine),
        "ops": steps.ops.filter(mine),
        "devices": steps.devices.filter(mine),
        "clocks": pl.DataFrame([("toy", "/device:TOY:0", "run", 1, 1, 0, 0, 1)], schema=schema.CLOCKS, orient="row"),
        "windows": pl.DataFrame([window], schema=schema.WINDOWS, orient="row"),
        "ticks": ticks(*numbers),
    }


def window(number):
    """All tables of a part, the one window of that number."""
    of_window = tables(number % 50)
    return of_window | {
        "windows": of_window["windows"].with_columns(window=pl.lit(number, pl.Int64)),
        "ticks": ticks(number),
    }


FILES = [f"{name}.parquet" for name in tables(0)]


def begun(where, **facts):
    """A writer of a run that goes on."""
    writer = RunWriter(where)
    writer.open()
    writer.facts({"name": "toy", "host": "toy", "origin_ns": 1, "state": "running", **facts})
    return writer


def finished(where, name="toy"):
    """A run of the step 0, whole."""
    writer = begun(where)
    writer.part(0, tables(0))
    writer.facts({"name": name, "state": "finished"})
    writer.close()
    return writer


def folders_of(where):
    """The names of the folders of parts, those too that do not count."""
    return sorted({path.split("/")[1] for path in storage.find(where).below() if path.startswith("parts/")})


def below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
