"""Read XProf's tables of a run, for runs without raw profiles: of steps, of operations and of memory.

A table is ``{"cols": [{"id": ...}], "rows": [{"c": [{"v": ...}]}], "p": {...}}``; a file has a list of them. The pod
viewer has an object per step and core instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Literal

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, not_kept
from tpunb.frames import Profile, Steps
from tpunb.frames.hardware import DEVICES
from tpunb.io.chrome_trace import parse
from tpunb.step_stats import op_names
from tpunb.text import cut, plural

_STEP_TABLES = ("overview_page.json", "input_pipeline.json", "input_pipeline_analyzer.json", "pod_viewer.json")
STEP_TABLES = (*_STEP_TABLES, *(f"{name}.gz" for name in _STEP_TABLES))
"""Endings of the names of tables with steps."""

OP_TABLES = ("hlo_stats.json", "roofline_model.json", "hlo_stats.json.gz", "roofline_model.json.gz")
"""Endings of the names of tables with operations; the first names programs and framework ops."""

MEMORY_TABLES = ("memory_profile.json", "memory_profile.json.gz")
"""Endings of the names of tables with allocations of memory."""

ENDINGS = (*STEP_TABLES, *OP_TABLES, *MEMORY_TABLES)
"""Endings of the names of tables of which `profile` reads those of one run together."""

_STAGES = {  # of the input pipeline
    "demanded_file_read_us": "read on demand",
    "advanced_file_read_us": "read in advance",
    "preprocessing_us": "preprocess",
    "enqueue_us": "enqueue",
    "unclassified_nonequeue_us": "other",
}
_APART = 0.25  # step times of two tables of one run differ less: one has the slowest core, another a mean
_POD = "podStatsSequence"
_MS, _US = 10**9, 10**6  # in picoseconds
_MOST_PS = 2**60  # 13 days: sums of several times still fit Int64
_MOST_CORES = 2**16
_GIB = 2**30
_MOST = 2**62  # sums of two still fit Int64
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")
_ZERO_UNKNOWN = "custom-call"  # whose work XProf writes as 0
Object = Mapping[str, Any]

_STATS = [
    *("dur_ps", "device_ps", "idle_ps", "infeed_ps", "outfeed_ps", "transfer_ps", "collective_ps"),
    *("input_ps", "compile_ps", "duty_cycle"),
]
_TYPES = {"step": pl.Int64(), **{name: schema.STEPS[name] for name in _STATS}}

_Stats = dict[str, int | float | None]


def is_table(data: bytes) -> bool:
    """Return whether JSON text looks like tables of XProf, without parsing it all.

    >>> is_table(b'[{"cols": [], "rows": []}]'), is_table(b'{"traceEvents": []}')
    (True, False)
    """
    if re.match(rb'(?:\xef\xbb\xbf)?\s*\[?\s*\{\s*"(cols|rows|p)"\s*:', data):
        return True
    is_object = re.match(rb"(?:\xef\xbb\xbf)?\s*\{", data)
    return is_object is not None and (f'"{_POD}"'.encode() in data or is_memory_table("", data))


def profile(tables: Mapping[str, bytes | BadProfile], name: str, source: Path | str) -> Profile:
    """Return the profile of XProf's tables of one run, by file name: stored steps one after the other.

    Step time and wait for input are those of the slowest core. 0.0 as a percentage means that XProf has no value.
    Operations, if a table has them, are `layers` of all steps together, whose number is null.
    """
    try:
        memory, damaged, others = _memory(tables)
        contents, skipped = _of_one_run(others)
        run = _Tables(contents)
        details = None if memory is None else partial(_only_memory, memory, name)
        layers = _layers(contents, None)
        if not run.has_steps and len(layers):
            of_operations = {file: tables[file] for file in contents if file.endswith(OP_TABLES)}
            return replace(op_profile(of_operations, name, source), read_details=details, skipped=skipped)
        if not run.has_steps and memory is None:
            if damaged:
                raise next(iter(damaged.values()))
            raise BadProfile(
                f"no table of {', '.join(sorted(contents)) or 'none'} has steps",
                hint=f"load the files of the run that end in {', '.join(_STEP_TABLES)}",
            )
        cores = run.cores
        steps, stages = _merge(run.steps, cores, run.host), run.input_stages()
    except BadProfile as error:
        folder = Path(source).parent if isinstance(source, Path) and source.name in tables else source
        raise BadProfile(f"{folder}: {error}", hint=error.hint) from error.__cause__
    skipped = (*skipped, *((file, str(error).removeprefix(f"{file}: ")) for file, error in damaged.items()))
    # the tables have one utilisation for the whole run: every step and device gets it
    of_run = {key: pl.lit(share, pl.Float64) for key, share in run.utilisation.items()}
    begins = steps.select("host", "step", "start_ps")
    devices = cores.join(begins, on=["host", "step"], how="inner", maintain_order="left").with_columns(**of_run)
    span_ps = int(steps.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0)
    size = sum(len(data) for file, data in tables.items() if file in contents and isinstance(data, bytes))
    counts = steps.group_by("host", maintain_order=True).len().rows() or [(run.host, 0)]
    rows = [(host, 0, 0, span_ps, span_ps, size, 0, count, None, None) for host, count in counts]
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    steps = steps.with_columns(**of_run)
    stored = Steps(steps, pl.DataFrame(schema=schema.OPS), devices, windows, name, input_stages=stages)
    if len(layers):
        stored = replace(stored, read_layers=lambda: layers, metadata={"device kind": run.kind} if run.kind else {})
    return Profile(name, source, windows, run.hardware(), span_ps, stored=stored, read_details=details, skipped=skipped)


def _memory(
    tables: Mapping[str, bytes | BadProfile],
) -> tuple[pl.DataFrame | None, dict[str, BadProfile], dict[str, bytes | BadProfile]]:
    """Return the memory profiles among tables as one frame, the errors of damaged ones, and the other tables."""
    frames, damaged, others = [], dict[str, BadProfile](), dict[str, bytes | BadProfile]()
    for file, data in sorted(tables.items()):
        if not is_memory_table(file, b"" if isinstance(data, BadProfile) else data):
            others[file] = data
            continue
        try:
            frames.append(memory(data, file))
        except BadProfile as error:
            damaged[file] = error
    return pl.concat(frames) if frames else None, damaged, others


def _only_memory(memory: pl.DataFrame, name: str, kind: str) -> pl.DataFrame:
    if kind != "memory":
        raise not_kept(name, kind)
    return memory


def _of_one_run(tables: Mapping[str, bytes | BadProfile]) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the contents of the files that agree on a run, and the names of the others with reasons."""
    contents: dict[str, Any] = {}
    read: dict[str, _Tables] = {}
    errors: dict[str, BadProfile] = {}
    for file, data in sorted(tables.items()):
        try:
            contents[file] = parsed(data, file)
            read[file] = _Tables({file: contents[file]})
            read[file].times_ps  # noqa: B018  raises if a step has none
        except BadProfile as error:
            errors[file] = error
            read.pop(file, None)
    if errors and not any(tables.has_steps for tables in read.values()):
        raise next(iter(errors.values()))
    reasons = {file: str(error).removeprefix(f"{file}: ") for file, error in errors.items()}
    against = {file: [other for other in read if read[file].differs(read[other])] for file in read}
    if read:  # the file that agrees with most others, then a table of steps, then the one with the most steps
        base = min(read, key=lambda file: (len(against[file]), not read[file].has_table, -len(read[file].times_ps)))
        reasons |= {file: f"{read[file].differs(read[base])}; left out for {base}" for file in against[base]}
    return {file: contents[file] for file in read if file not in reasons}, tuple(sorted(reasons.items()))


class _Tables:
    """The tables of one run, of one file or several."""

    def __init__(self, contents: Mapping[str, Any]) -> None:
        self._tables: list[Object] = []
        self._pod: Object = {}
        for file, top in contents.items():
            if isinstance(top, dict) and _POD in top:
                self._pod = top
                continue
            items = [item for item in (top if isinstance(top, list) else [top]) if "cols" in as_object(item)]
            if not items:
                raise BadProfile(f"{file}: JSON, but no table of XProf: a {type(top).__name__}")
            self._tables += items
        properties = [item for table in self._tables for item in as_object(table.get("p")).items()]
        self._properties = {
            key: value
            for key, value in reversed(properties)
            if isinstance(value, str) and value and not re.fullmatch(r"0(\.0*)?%", value)  # unset
        }
        self.has_table = any("stepnum" in columns(table) for table in self._tables)
        self.has_steps = self.has_table or bool(self._pod)

    def differs(self, other: _Tables) -> str:
        """Return why these tables are not of the same run as others; "" if they may be."""
        kinds, cores = (self.kind, other.kind), (self._core_count, other._core_count)
        if all(kinds) and kinds[0] not in kinds[1] and kinds[1] not in kinds[0]:
            return f"device type {kinds[0]} instead of {kinds[1]}"
        if cores[0] and cores[1] and cores[0] != cores[1]:
            return f"{plural(cores[0], 'core')} instead of {cores[1]}"
        if self._hosts and other._hosts and not self._hosts & other._hosts:
            return f"host {', '.join(sorted(self._hosts))} instead of {', '.join(sorted(other._hosts))}"
        ours, theirs = self.times_ps, other.times_ps
        if not ours or not theirs:
            return ""
        apart = [abs(ours[step] - theirs[step]) / max(ours[step], theirs[step], 1) for step in {*ours} & {*theirs}]
        if not apart:
            return f"steps from {min(ours)} instead of {min(theirs)}" if self._numbered and other._numbered else ""
        return f"other step times: {median(apart):.0%} apart" if median(apart) > _APART else ""

    @cached_property
    def times_ps(self) -> dict[int, int]:
        """Step times by step, of the slowest core; from the table if there is one."""
        frame = self.steps if self.has_table else self.cores.group_by("step").agg(pl.col("dur_ps").max())
        return dict(frame.select("step", "dur_ps").iter_rows())

    @property
    def _core_count(self) -> int | None:
        count = re.match("[0-9]{1,6}", self._properties.get("device_core_count", ""))
        return int(count[0]) if count else None

    @cached_property
    def _hosts(self) -> set[str]:
        listed = self._properties.get("hostnames", "").split(", ")
        return ({_host(core) for _, _, core in self._cores()} or {*listed}) - {"", "All-hosts-in-one-graph"}

    @property
    def host(self) -> str:
        """The host of the run; "" for several or an unnamed one."""
        return next(iter(self._hosts)) if len(self._hosts) == 1 else ""

    @property
    def kind(self) -> str:
        """The kind of the devices, "" if unknown."""
        of_pod = [as_object(self._pod.get("runEnvironment")).get("tpuType"), self._pod.get("deviceType")]
        named = [text(kind) for kind in of_pod] + [
            self._properties.get(key, "") for key in ("device_type", "hardware_type")
        ]
        return max(named, key=len)  # "GPU" says less than "Nvidia GPU (Volta)"

    @property
    def _family(self) -> str:
        family = re.search("TPU|GPU", self.kind)
        return family[0] if family else ""

    @cached_property
    def utilisation(self) -> dict[str, float | None]:
        """Utilisation of the whole run, 0 to 1."""
        hbm = _share(self._properties.get("memory_bw_utilization_relative_to_hw_limit"))
        return {
            "mxu_util": _share(self._properties.get("mxu_utilization_percent")),
            "hbm_util": self._hbm_util() if hbm is None else hbm,
        }

    def _hbm_util(self) -> float | None:
        """Return the share of peak memory bandwidth by ``hlo_stats``, which has GiB/s and percent of device time."""
        chip = next((chip for chip in DEVICES.values() if chip.of_kind(self.kind)), None)
        percent = "total_self_time_percent"
        tables = [table for table in self._tables if percent in columns(table) and "operation" not in columns(table)]
        rows = [row for table in tables for row in rows_of(table)]
        rows = [row for row in rows if row.get("category") != "copy-start"]  # copy-done has the same bytes
        rates, percents = ([_amount(row.get(key)) for row in rows] for key in ("hbm_bw", percent))
        used = sum(rate * share / 100 for rate, share in zip(rates, percents, strict=True))
        share = used * _GIB / (chip.bandwidth / chip.cores) if chip else 0.0
        return share if 0 < share <= 1 else None

    def input_stages(self) -> pl.DataFrame:
        """Return ``tpunb.schema.INPUT_STAGES``."""
        times = {stage: _ps(self._properties.get(key), _US) for key, stage in _STAGES.items()}
        recorded = {stage: time for stage, time in times.items() if time}
        rows = [(self.host, stage, time, time / sum(recorded.values())) for stage, time in recorded.items()]
        return pl.DataFrame(rows, schema=schema.INPUT_STAGES, orient="row")

    @cached_property
    def _step_rows(self) -> list[tuple[list[int] | None, list[Object]]]:
        """Numbers and rows of each table of steps, longest first; None for steps without distinct numbers."""
        tables = [[*rows_of(table)] for table in self._tables if "stepnum" in columns(table)]
        tables.sort(key=len, reverse=True)
        return [(_distinct([_last_number(row.get("stepnum")) for row in rows]), rows) for rows in tables]

    @cached_property
    def _pod_steps(self) -> tuple[list[int] | None, list[Object]]:
        """Numbers and contents of the steps of the pod viewer, which leaves out a number of 0."""
        steps = objects(as_object(self._pod.get(_POD)).get("podStatsMap"))
        numbers = [integer(stats.get("stepNum")) for stats in steps]
        if numbers.count(None) == 1:
            numbers = [position if number is None else number for position, number in enumerate(numbers)]
        return _distinct(numbers), steps

    @property
    def _numbered(self) -> bool:
        return all(numbers is not None for numbers, _ in [*self._step_rows, self._pod_steps])

    def _numbers(self, steps: Sequence[Object]) -> Sequence[int]:
        """Return numbers for steps without: those of a table with as many steps, else from 0."""
        tables = [numbers for numbers, _ in [*self._step_rows, self._pod_steps] if numbers is not None]
        return next((numbers for numbers in tables if len(numbers) == len(steps)), range(len(steps)))

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Statistics of steps: the first value that a table has, the longest table first; none from the pod viewer."""
        stats = []
        for numbers, rows in self._step_rows:
            steps = self._numbers(rows) if numbers is None else numbers
            stats += [{"step": step, **_step_stats(row)} for step, row in zip(steps, rows, strict=True)]
        frame = pl.DataFrame(stats, schema=_TYPES).group_by("step", maintain_order=True)
        return _idle_unset(frame.agg(pl.all().drop_nulls().first()))

    @cached_property
    def cores(self) -> pl.DataFrame:
        """Statistics of the pod viewer: one row per (host, device, step)."""
        timed = [row for row in self._cores() if number_of(row[2].get("totalDurationUs")) is not None]
        places = {(_host(core), key): (core.get("chipId"), core.get("nodeId")) for _, key, core in timed}
        ordinals, family = _ordinals(places), self._family or "TPU"
        events = objects(self._pod.get("stepBreakdownEvents"))
        names = {integer(event.get("id")): text(event.get("name")) for event in events}
        rows = []
        for step, key, core in timed:
            device = f"/device:{family}:{ordinals[_host(core), key]}"
            rows.append({"host": _host(core), "device": device, "step": step, **_core_stats(core, names)})
        frame = pl.DataFrame(rows, schema={"host": pl.String(), "device": pl.String(), **_TYPES})
        return _idle_unset(frame.unique(["host", "device", "step"], keep="first", maintain_order=True))

    def _cores(self) -> Iterator[tuple[int, str, Object]]:
        numbers, steps = self._pod_steps
        for step, stats in zip(self._numbers(steps) if numbers is None else numbers, steps, strict=True):
            for key, core in as_object(stats.get("podStatsPerCore")).items():
                yield step, key, as_object(core)

    def hardware(self) -> pl.DataFrame:
        """Return ``tpunb.schema.HARDWARE``: devices of the pod viewer, and of one host as many as in the overview."""
        rows = self.cores.select("host", "device").unique(maintain_order=True).rows()
        if self._family and (self.host or not rows):  # of GPUs, the pod viewer has one row for all
            count = min(self._core_count or 0, _MOST_CORES)
            named = dict.fromkeys([*rows, *((self.host, f"/device:{self._family}:{core}") for core in range(count))])
            rows = [*named][: max(count, len(rows))]
        kind, util = self.kind, self.utilisation["mxu_util"]
        rows = [(host, device, kind, None, None, util) for host, device in rows]
        return pl.DataFrame(rows, schema=schema.HARDWARE, orient="row")


def _merge(steps: pl.DataFrame, cores: pl.DataFrame, host: str) -> pl.DataFrame:
    """Return STEPS without operations: statistics of the table of steps, else those of the cores."""
    times = [name for name in _STATS if name not in ("dur_ps", "duty_cycle")]
    means = (
        cores.group_by("host", "step")
        .agg(pl.col("dur_ps").max(), pl.col(times).mean().round().cast(pl.Int64), pl.col("duty_cycle").mean())
        .sort("host", "step")
    )
    how: Literal["left", "inner"] = "left" if steps.is_empty() else "inner"
    both = means.join(steps, on="step", how=how, suffix="_table", maintain_order="left")
    rows = both.select("host", "step", *(pl.coalesce(f"{name}_table", name).alias(name) for name in _STATS))
    hosts = means.select(pl.col("host").unique(maintain_order=True)) if means.height else pl.DataFrame({"host": [host]})
    others = hosts.join(steps.join(means, on="step", how="anti", maintain_order="left"), how="cross")
    rows = pl.concat([rows, others.select(rows.columns)])
    if (whole := sum(rows["dur_ps"])) > 2 * _MOST_PS:
        raise BadProfile(f"steps of XProf's tables ({len(rows):,}) last {whole} ps, beyond Int64")
    ends = pl.col("dur_ps").cum_sum().over("host")
    return rows.with_columns(kind=pl.lit("step"), traced=pl.lit("full"), start_ps=ends - pl.col("dur_ps"))


def _idle_unset(frame: pl.DataFrame) -> pl.DataFrame:
    """Return statistics in which the times of a device are null if it is never busy: XProf writes 0 for unset."""
    used = (pl.col("device_ps") > 0).any()
    names = ("device_ps", "idle_ps", "duty_cycle")
    return frame.with_columns(pl.when(used).then(name).alias(name) for name in names)


def _step_stats(row: Object) -> _Stats:
    """Return the statistics of a row of a table of steps, of any version of XProf."""
    times = {key: _ps(value, _MS) for key, value in row.items() if key.endswith("TimeMs")}
    time = {key.removesuffix("TimeMs"): ps for key, ps in times.items() if ps is not None}
    whole, transfer = time.pop("step", None), time.pop("hostTransfer", None)  # both include other columns
    if whole is None and not time:
        raise BadProfile(f"step {row.get('stepnum')!r:.40} of XProf's table has no time; it has {sorted(row)!s:.200}")
    dur = sum(time.values()) if whole is None else whole
    if "deviceCompute" in time:  # a GPU, or a host alone
        busy = sum(ps for key, ps in time.items() if key.startswith("device"))
        # infeed is the wait for the pipeline with the copy to the device
        stats = {"input_ps": time.get("infeed"), "collective_ps": time.get("deviceCollectives")}
        return {"compile_ps": time.get("compile"), **stats, **_busy(dur, busy, busy)}
    idle = time.get("idle", time.get("tcIdle"))
    compute = sum(time.get(key, 0) for key in ("compute", "tcCompute", "scv0Compute"))
    return {
        "infeed_ps": time.get("input", time.get("tcInfeed", time.get("infeed"))),
        "outfeed_ps": time.get("tcOutfeed"),
        "transfer_ps": transfer,
        **_busy(dur, None if idle is None else dur - idle, compute),
    }


def _core_stats(core: Object, names: Mapping[int | None, str]) -> _Stats:
    """Return the statistics of the pod viewer of a step on one core, from fields or numbered parts."""
    ps = {key: _ps(value, _US) for key, value in core.items() if key.endswith("Us")}
    collective = _sum(ps.get("allReduceComputeDurationUs"), ps.get("allReduceSyncDurationUs"))
    parts = {names.get(integer(key), ""): _ps(us, _US) for key, us in as_object(core.get("stepBreakdownUs")).items()}
    dur = ps["totalDurationUs"] or 0
    busy = [part or 0 for name, part in parts.items() if name.startswith("Device")]
    return {
        "infeed_ps": ps.get("hostInfeedDurationUs"),
        "outfeed_ps": ps.get("hostOutfeedDurationUs"),
        "transfer_ps": _sum(ps.get("sendDurationUs"), ps.get("recvDurationUs")),
        "collective_ps": parts.get("Device collective communication", collective),
        **_busy(dur, sum(busy) if busy else None, sum(busy)),
    }


def _busy(dur: int, busy: int | None, working: int) -> _Stats:
    """Return the times of a device from step time, busy time, and busy time without waits for the host."""
    if max(dur, busy or 0) > 2 * _MOST_PS:
        raise BadProfile(f"a step of XProf's tables lasts {max(dur, busy or 0)} ps, beyond Int64")
    return {
        "dur_ps": dur,
        "device_ps": busy,
        "idle_ps": None if busy is None else max(dur - busy, 0),
        "duty_cycle": None if busy is None or not dur else min(working / dur, 1.0),
    }


def _ordinals(places: Mapping[tuple[str, str], tuple[Any, Any]]) -> Mapping[tuple[str, str], int | str]:
    """Return the number of each (host, core) among the devices of its host, by chip and core of the chip."""
    numbers = {core: (integer(chip), integer(node)) for core, (chip, node) in places.items()}
    per_chip = 1 + max((node or 0 for _, node in numbers.values()), default=0)
    ordinals = {
        core: chip * per_chip + node for core, (chip, node) in numbers.items() if chip is not None and node is not None
    }
    distinct = {(host, ordinal) for (host, _), ordinal in ordinals.items()}
    return ordinals if len(distinct) == len(places) else {core: core[1] for core in places}


def _host(core: Object) -> str:
    return text(core.get("hostName"))


def _distinct(numbers: Sequence[int | None]) -> list[int] | None:
    distinct = {number: None for number in numbers if number is not None}
    return [*distinct] if len(distinct) == len(numbers) else None


def _last_number(value: Any) -> int | None:
    number = re.search(r"([0-9]{1,15})[^0-9]*$", value) if isinstance(value, str) else None
    return int(number[1]) if number else integer(value)


def _share(percent: str | None) -> float | None:
    number = number_of((percent or "").removesuffix("%"))
    return float(number / 100) if number is not None and 0 <= number <= 100 else None


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


# -- tables of operations: ``hlo_stats`` and ``roofline_model`` --------------------------------------------------------


def op_profile(tables: Mapping[str, bytes | BadProfile], name: str, source: Path | str) -> Profile:
    """Return the profile of ``hlo_stats`` or ``roofline_model``: one step of all devices with `layers`, no operations.

    FLOPs and bytes are rates of the table times its total times; where one is 0 for a custom call, it is null.
    """
    contents = {file: parsed(data, file) for file, data in sorted(tables.items())}
    layers = _layers(contents, 0)
    if layers.is_empty():
        raise BadProfile(f"{source}: the tables have no operations", hint="XProf's tables of a CPU capture have none")
    busy = int(layers["self_ps"].sum())
    step = {"host": "", "step": 0, "kind": "whole", "start_ps": 0, "dur_ps": busy, "device_ps": busy, "idle_ps": None}
    frame = pl.DataFrame([step | {"traced": "full", "rule": "whole"}])
    firsts = [(objects(top) or [as_object(top)])[0] for top in contents.values()]
    kind = next(filter(None, (text(as_object(first.get("p")).get("device_type")) for first in firsts)), "")
    hardware = pl.DataFrame([("", "devices", kind, None, None, None)], schema=schema.HARDWARE, orient="row")
    metadata = {"device kind": kind} if kind else {}
    steps = Steps(frame, pl.DataFrame(schema=schema.OPS), name=name, read_layers=lambda: layers, metadata=metadata)
    windows = pl.DataFrame(schema=schema.WINDOWS)
    return Profile(name, source, windows, hardware if kind else hardware.clear(), busy, stored=steps)


def _layers(contents: Mapping[str, Any], step: int | None) -> pl.DataFrame:
    """Return ``tpunb.schema.LAYERS`` of a table of operations, of ``hlo_stats`` if there is one, under a step."""
    listed = ([*_operations(top, file)] for file, top in sorted(contents.items()) if file.endswith(OP_TABLES))
    layers = pl.DataFrame(next(filter(None, listed), []), schema=schema.LAYERS)
    return layers.with_columns(step=pl.lit(step, pl.Int64))


def _operations(top: Any, file: str) -> Iterator[Object]:
    """Return the rows of one file, without the number of a step."""
    for row in chain.from_iterable(map(rows_of, objects(top) or [as_object(top)])):
        hlo_op = row.get("hlo_op_name", row.get("operation"))
        if not isinstance(hlo_op, str) or row.get("category") in ("IDLE", "Program", None):
            continue
        if row.get("step", "Total") != "Total" or row.get("include_infeed_outfeed", True) is False:
            continue
        total_ps, self_ps = (_ps(row.get(name), _US, file) or 0 for name in ("total_time", "total_self_time"))
        seconds, unknown = total_ps / 1e12, row["category"] == _ZERO_UNKNOWN
        flops = _amount(row.get("model_flop_rate")) * 1e9 * seconds
        moved = _amount(row.get("measured_memory_bw")) * _GIB * seconds
        tf_op = text(row.get("tf_op_name")) or None
        shape = re.match(r"%?[^=]{1,400}= (\(.{0,400}?\)|\S{1,400}) ", str(row.get("hlo_op_expression", "")))
        yield dict.fromkeys(schema.LAYERS) | {
            **{"host": "", "side": "device", "category": str(row["category"]), "hlo_op": hlo_op},
            "program": _program(row.get("program_id", row.get("hlo_module_id"))),
            "tf_op": tf_op,
            "layer": op_names.layer(tf_op) if tf_op else None,
            "op": op_names.canonical("", tf_op) or op_names.canonical("", None, hlo_op),
            "count": int(_amount(row.get("occurrences"))),
            **{"total_ps": total_ps, "self_ps": self_ps},
            "flops": None if unknown and not flops else flops,
            "bytes": None if unknown and not moved else moved,
            "flops_source": "profiler",
            "shape": cut(shape[1], 120) if shape else None,
        }


def _program(value: Any) -> int | None:
    """Return the id of a program as Int64, as events refer to it."""
    written = re.fullmatch(r"\d{1,20}", str(value))
    return (int(written[0]) + 2**63) % 2**64 - 2**63 if written and int(written[0]) else None


# -- tables of memory --------------------------------------------------------------------------------------------------

_ALLOCATORS = "memoryProfilePerAllocator"
_LISTS = ("memoryProfileSnapshots", "sampledTimelineSnapshots")
_SIGNS = {"ALLOCATION": 1, "DEALLOCATION": -1}


def is_memory_table(name: str, data: bytes) -> bool:
    """Return whether a file is such a table, by its name or its first bytes.

    >>> is_memory_table("vm.memory_profile.json", b""), is_memory_table("a.json", b'{"memoryProfilePerAllocator":{}}')
    (True, True)
    """
    return name.endswith(MEMORY_TABLES) or f'"{_ALLOCATORS}"'.encode() in data[:4096]


def memory(data: bytes | BadProfile, name: str) -> pl.DataFrame:
    """Return the allocations of one host in order of time, ``tpunb.schema.MEMORY``; the host is the name's prefix."""
    top = parsed(data, name)
    allocators = top.get(_ALLOCATORS, {}) if isinstance(top, dict) else None
    if not isinstance(allocators, dict):
        raise BadProfile(f"{name}: JSON, but no memory profile of XProf: a {type(top).__name__}")
    host = next((name.removesuffix(ending) for ending in MEMORY_TABLES if name.endswith(ending)), "").removesuffix(".")
    snapshots = {row for allocator, table in allocators.items() for row in _snapshot_rows(allocator, table)}
    of_memory = {key: dtype for key, dtype in schema.MEMORY.items() if key != "host"}
    frame = pl.DataFrame([*snapshots], schema=of_memory, orient="row").with_columns(host=pl.lit(host))
    return schema.check(frame.sort("start_ps", "allocator", "in_use_bytes"), schema.MEMORY, "memory")


def _snapshot_rows(allocator: str, table: Any) -> Iterator[tuple[str | int | None, ...]]:
    """Yield (allocator, start_ps, size_bytes, in_use_bytes, peak_bytes, capacity_bytes, tf_op)."""
    for snapshot in (each for key in _LISTS for each in objects(as_object(table).get(key))):
        stats, activity = (as_object(snapshot.get(key)) for key in ("aggregationStats", "activityMetadata"))
        start = integer(snapshot.get("timeOffsetPs"))
        if start is None:
            continue
        size, sign = integer(activity.get("allocationBytes")), _SIGNS.get(text(activity.get("memoryActivity")))
        heap, stack, free = (integer(stats.get(f"{n}Bytes")) for n in ("heapAllocated", "stackReserved", "freeMemory"))
        used = None if heap is None else heap + (stack or 0)
        op, peak = text(activity.get("tfOpName")), integer(stats.get("peakBytesInUse"))
        change = sign * size if size and sign else None
        capacity = None if used is None or free is None else used + free
        yield allocator, start, change, used, peak, capacity, None if op in ("", "dummy") else op


# -- values of JSON, which may be of any type --------------------------------------------------------------------------


def parsed(data: bytes | BadProfile, file: str) -> Any:
    """Parse a file, or raise why it could not be read."""
    if isinstance(data, BadProfile):
        raise data
    return parse(data, file)


def as_object(value: Any) -> Object:
    """Return an object, empty if it is none."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Object]:
    """Return the items of a list, each as an object."""
    return [as_object(item) for item in value] if isinstance(value, list) else []


def text(value: Any) -> str:
    """Return text, empty if it is none."""
    return value if isinstance(value, str) else ""


def number_of(value: Any) -> Decimal | None:
    """Return a number, or one written as text (int64, or a percentage in some years); None for other values."""
    if type(value) in (int, Decimal):
        return Decimal(value)
    written = isinstance(value, str) and _NUMBER.fullmatch(value)
    return Decimal(written[0]) if written else None


def _amount(value: Any) -> float:
    """Return a number from 0; 0 for other values."""
    number = number_of(value)
    return float(number) if number is not None and 0 <= number < 10**30 else 0.0


def integer(value: Any) -> int | None:
    """Return a whole number from 0, which may be text; None for other values."""
    count = number_of(value)
    return int(count) if count is not None and 0 <= count < _MOST and count == int(count) else None


def columns(table: Object) -> list[str]:
    """Return the ids of the columns of a table."""
    return [text(column.get("id")) for column in objects(table.get("cols"))]


def rows_of(table: Object) -> Iterator[Object]:
    """Yield the rows of a table, by the ids of its columns."""
    ids = columns(table)
    for row in objects(table.get("rows")):
        yield dict(zip(ids, [cell.get("v") for cell in objects(row.get("c"))], strict=False))


def _ps(value: Any, unit: int, table: str = "a table of XProf") -> int | None:
    number = number_of(value)
    if number is None or number < 0:
        return None
    if number > _MOST_PS or number * unit > _MOST_PS:
        raise BadProfile(f"{table} has a time of {value!s:.40}, beyond Int64 picoseconds")
    return round(number * unit)
