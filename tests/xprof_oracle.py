"""Tables of XProf's tools for a capture, as Polars frames with times in picoseconds."""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
import pytest

US, MS = 10**6, 10**9  # in picoseconds


@dataclass(frozen=True)
class Oracle:
    """XProf's tables of a copy of one ``*.xplane.pb``, as XProf writes a cache next to it."""

    file: Path

    @classmethod
    def of(cls, capture, folder):
        pytest.importorskip("xprof", reason="XProf is the oracle: pip install xprof")
        return cls(Path(shutil.copy(capture, folder / "host.xplane.pb")))

    def tables(self, tool):
        from xprof.convert.raw_to_tool_data import xspace_to_tool_data

        data, _ = xspace_to_tool_data([str(self.file)], tool, {})
        found = json.loads(data)
        return found if isinstance(found, list) else [found]

    @cached_property
    def hlo_ops(self):
        """One row a HLO instruction: hlo_op, category, tf_op, count, total_ps, self_ps, flops, bytes."""
        table = _frame(self.tables("hlo_stats")[0])
        seconds = pl.col("total_time") / 1e6
        return table.select(
            hlo_op="hlo_op_name",
            category="category",
            tf_op=_name("tf_op_name"),
            count=pl.col("occurrences").cast(pl.Int64),
            total_ps=_ps("total_time", US),
            self_ps=_ps("total_self_time", US),
            flops=pl.col("model_flop_rate") * 1e9 * seconds,
            bytes=pl.col("measured_memory_bw") * 2**30 * seconds,
        )

    @cached_property
    def framework_ops(self):
        """One row a framework op and side: side, op, type, count, total_ps, self_ps; idle time is the op IDLE."""
        table = _frame(self.tables("framework_op_stats")[0])
        return table.select(
            side=pl.col("host_or_device").str.to_lowercase(),
            op="operation",
            type="type",
            count=pl.col("occurrences").cast(pl.Int64),
            total_ps=_ps("total_time", US),
            self_ps=_ps("total_self_time", US),
        )

    @cached_property
    def kernels(self):
        """One row a GPU kernel: name, count, total_ps."""
        table = _frame(self.tables("kernel_stats")[0])
        rows = table.select(
            name="kernel_name", count=pl.col("occurrences").cast(pl.Int64), total_ps=_ps("total_duration_us", US)
        )
        return rows.group_by("name").agg(pl.col("count", "total_ps").sum())

    @cached_property
    def steps(self):
        """One row a step: step (its name), dur_ps, device_ps, input_ps."""
        table = next(found for found in self.tables("overview_page") if _has(found, "stepnum"))
        rows = _frame(table)
        if "stepTimeMs" not in rows.columns:  # a TPU's table has other columns; none of ours has a row
            assert rows.is_empty()
            return pl.DataFrame(schema={"step": pl.String, "dur_ps": pl.Int64, "device_ps": pl.Int64})
        return rows.select(
            step="stepnum",
            dur_ps=_ps("stepTimeMs", MS),
            device_ps=_ps("deviceComputeTimeMs", MS),
            input_ps=_ps("infeedTimeMs", MS),
        )

    @cached_property
    def work(self):
        """What all devices did in the file: flops, and bytes of the device's main memory (HBM)."""
        root = self.tables("op_profile")[0]["byProgramExcludeIdle"]["metrics"]
        return {"flops": root["rawFlops"], "hbm_bytes": root["rawBytesAccessedArray"][0]}

    def input_stages(self):
        """Time of the input pipeline by stage, in picoseconds, without those of 0."""
        tables = [table.get("p", {}) for table in self.tables("input_pipeline_analyzer")]
        facts = next(facts for facts in tables if "enqueue_us" in facts)
        return {key: round(float(facts[key]) * US) for key in sorted(facts) if float(facts[key])}

    def overview(self, fact):
        """Return a percentage that the overview page prints, 0 to 1, or None."""
        facts = {name: text for table in self.tables("overview_page") for name, text in table.get("p", {}).items()}
        return float(facts[fact].removesuffix("%")) / 100 if fact in facts else None

    def idle_share(self):
        """Return the share of the devices' time that XProf calls idle, exactly: overview_page rounds it."""
        device = self.framework_ops.filter(side="device")
        return device.filter(op="IDLE")["self_ps"].sum() / device["self_ps"].sum()


def _has(table, column):
    return any(found["id"] == column for found in table.get("cols", []))


def _frame(table):
    # columns go by their ids: their places change with XProf's version
    types = {"number": pl.Float64, "boolean": pl.Boolean}
    names = {found["id"]: types.get(found["type"], pl.String) for found in table["cols"]}
    cells = [[cell and cell.get("v") for cell in row["c"]] for row in table["rows"]]
    return pl.DataFrame(cells, schema=names, orient="row")


def _ps(column, unit_ps):
    return (pl.col(column) * unit_ps).round().cast(pl.Int64)


def _name(column):
    """The name of a framework op without its type: ``jit(f)/add:`` is ``jit(f)/add``; null where there is none."""
    name = pl.col(column).cast(pl.String).str.split(":").list.first()
    return pl.when(name != "").then(name)
