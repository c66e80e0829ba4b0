"""Reduce the windows of a capture to statistics of the run, without threads or files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import log
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from tpunb.cluster.ols import OnlineOLS
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Steps
from tpunb.io import run_folder
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.step_clock import StepRecord
from tpunb.profiler.windows import LOCAL, ReducedWindow, WindowResponse
from tpunb.step_stats import boundaries, launches, reduce
from tpunb.step_stats.numbering import StepNumbering

if TYPE_CHECKING:
    from tpunb.io.xplane import XSpaceFacts


class Reducer:
    """Reduce the windows of one run in order: name hosts, number steps without annotation, scan phases."""

    def __init__(self, host: str, origin_ns: int) -> None:
        self.host, self.origin_ns = host, origin_ns
        self.hardware: dict[str, list[dict[str, Any]]] = {}
        self.scan = OnlineOLS(recall=0.7)
        self.phase: int | None = None  # of the last fully traced step
        self.local_worker: str | None = None  # the worker that is this process: the host clock records its steps
        self._scanned: str | None = None  # the host whose phases are scanned
        self._steps_of: Counter[int] = Counter()  # fully traced, by phase
        self._windows_of: Counter[int] = Counter()  # by the phase they end in
        self._paces: defaultdict[int, list[float]] = defaultdict(list)  # step times by phase
        self._numbering: defaultdict[str, StepNumbering] = defaultdict(StepNumbering)  # by host

    @property
    def phases(self) -> int:
        """The number of phases so far."""
        return len(self.scan)

    def reduce(self, response: WindowResponse, records: Sequence[StepRecord]) -> ReducedWindow:
        """Return the statistics of a window; `records` are the steps of the host clock that may overlap it."""
        reduced, decoded = ReducedWindow(), dict[str, _Decoded]()
        errors = {worker: str(data) for worker, data in response.workers.items() if isinstance(data, TpunbError)}
        for worker, data in response.workers.items():
            if not isinstance(data, TpunbError):
                source = f"window {response.number}" + (f" of {worker}" if worker else "")
                with _collect_error(worker, response, errors):
                    decoded[worker] = _Decoded(*decode(data, source), response, records)
        self._find_local_worker(decoded)
        for worker, data in response.workers.items():
            row: dict[str, Any] = {
                "host": worker or self.host,  # of the local worker `run.json` gives the host
                "window": response.number,
                "start_ps": (response.requested_ns - self.origin_ns) * 1000,
                "dur_ps": 0,
                "latency_ps": (response.received_ns - response.requested_ns) * 1000,
                "bytes": 0 if isinstance(data, TpunbError) else len(data),
                "events": 0,
                "steps": 0,
                "reason": response.reason,
            }
            if worker in decoded:
                with _collect_error(worker, response, errors):
                    row |= self._reduce_worker(worker, decoded[worker], reduced)
                    reduced.raw[row["host"]] = bytes(response.workers[worker])  # type: ignore[arg-type]  # no error
            reduced.windows.append({**row, "error": errors.get(worker)})
        self._scan(reduced)
        return reduced

    def start(self) -> None:
        """Do nothing: there is no process to start."""

    end = close = start

    @staticmethod
    def programs(data: bytes, ran: Mapping[int, set[str]]) -> dict[int, tuple[str, bytes]]:
        """Return name and bytes of the programs in `ran` that an XSpace holds, by id; not of others with such an id."""
        from tpunb.costs import hlo
        from tpunb.io import xplane

        found = dict[int, tuple[str, bytes]]()
        with suppress(BadProfile):  # damaged ones
            programs = xplane.programs(data, source="programs")
            for program in ran.keys() & programs.keys():
                name, proto = programs[program]
                shared = ran[program] & {*hlo.instructions(proto)["hlo_op"].cast(pl.String)}
                if len(shared) >= LIMITS.program_share * len(ran[program]):
                    found[program] = name, proto.buffer[proto.start[0] : proto.stop[0]].tobytes()
        return found

    def _find_local_worker(self, decoded: Mapping[str, _Decoded]) -> None:
        """Find the worker that is this process: on this machine, with annotations nearest to the host clock's steps."""
        if self.local_worker is None and LOCAL in decoded:
            self.local_worker = LOCAL
        elif self.local_worker is None:
            offsets = {worker: xspace.offset_ps() for worker, xspace in decoded.items() if self.host in xspace.hosts}
            near = {worker: ps for worker, ps in offsets.items() if ps is not None and ps < LIMITS.same_clock_ps}
            self.local_worker = min(near, key=near.__getitem__, default=None)

    def _reduce_worker(self, worker: str, xspace: _Decoded, reduced: ReducedWindow) -> dict[str, Any]:
        """Add the statistics of a worker; return its entries of the row in WINDOWS."""
        host, events, facts = worker or self.host, xspace.events, xspace.facts
        if worker == self.local_worker and xspace.records.height:
            intervals = boundaries.from_clock(events, xspace.records, by_time=xspace.by_time)
        else:
            intervals = self._numbering[host].renumber(*boundaries.find(events))
        steps = reduce.reduce(events, intervals, facts.hardware)
        start_ps, name = (xspace.start_ns - self.origin_ns) * 1000, pl.lit(host)
        reduced.messages += [*facts.errors, *facts.warnings, *facts.notes]
        if facts.hardware.height:
            self.hardware.setdefault(host, facts.hardware.with_columns(host=name).to_dicts())
        reduced.steps[host] = Steps(
            steps.frame.with_columns(pl.col("start_ps") + start_ps, host=name),
            steps.ops.with_columns(host=name),
            steps.devices.with_columns(pl.col("start_ps") + start_ps, host=name),
        )
        reduced.ran[host] = events.select("program", "hlo_op").drop_nulls().unique()
        reduced.clocks.append(launches.clocks(events).with_columns(host=name))
        return {
            "host": host,
            "start_ps": start_ps,
            "dur_ps": (xspace.stop_ns - xspace.start_ns) * 1000,
            "events": events.height,
            "steps": steps.frame.filter(pl.col("traced") == "full").height,
        }

    def _scan(self, reduced: ReducedWindow) -> None:
        """Feed the scan the fully traced steps of one host: the first that ever responded."""
        self._scanned = self._scanned or next(iter(reduced.steps), None)
        if self._scanned not in reduced.steps:
            return
        reduced.scanned = reduced.steps[self._scanned]
        full, phases = reduced.scanned.full(), len(self.scan)
        ops = full.ops.group_by("step").agg(pl.col("op").cast(pl.String).alias("ops"))
        in_order = full.frame.select("step", "kind", "dur_ps").join(ops, on="step", maintain_order="left")
        times: defaultdict[int, list[int]] = defaultdict(list)
        for kind, names, dur_ps in in_order.select("kind", "ops", "dur_ps").iter_rows():
            self.phase = self.scan.feed(names, kind or "")
            reduced.full[kind or ""] += 1
            reduced.phases[self.phase] += 1
            times[self.phase].append(max(dur_ps or 0, 1))
        for phase, each in times.items():
            reduced.paces[phase, self._pace(phase, median(each))] += len(each)
        if self.phase is not None and reduced.phases:
            self._steps_of.update(reduced.phases)
            self._windows_of[self.phase] += 1
            reduced.opened = self.phase >= phases
            few = self._steps_of[self.phase] < LIMITS.enough_steps
            reduced.undersampled = few and self._windows_of[self.phase] <= LIMITS.phase_tries and not reduced.opened

    def _pace(self, phase: int, time_ps: float) -> int:
        """Return the number of a pace of a phase: the nearest within a factor, or a new one."""
        paces = self._paces[phase]
        near = [abs(log(time_ps / pace)) for pace in paces]
        if not near or min(near) > log(LIMITS.pace_ratio):
            paces.append(time_ps)
            return len(paces) - 1
        return near.index(min(near))


def decode(data: bytes, source: str) -> tuple[pl.DataFrame, XSpaceFacts]:
    """Return the events and the facts of a window: an XSpace, or a Chrome trace of PyTorch."""
    from tpunb.io import chrome_trace, storage, xplane

    if not storage.is_json(data):
        return xplane.read(data, source=source)
    trace = chrome_trace.read(data, source=source)
    last_ps, start_ns = trace.events.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0, trace.origin_ns
    stop_ns = None if start_ns is None else start_ns + int(last_ps) // 1000
    return trace.events, xplane.XSpaceFacts([], start_ns, stop_ns, trace.hardware, notes=trace.notes)


def reduce_window(
    facts: Mapping[str, Any], data: Mapping[str, bytes], host: str, origin_ns: int
) -> tuple[dict[str, pl.DataFrame], list[dict[str, Any]]]:
    """Return the tables of a window that its capture did not reduce, and the hardware; `facts` are `window_facts`."""
    workers = {
        worker: data[worker or host] if error is None else TpunbError(error)
        for worker, error in facts["workers"].items()
    }
    names = "number", "reason", "requested_ns", "received_ns", "lead_ns"
    response = WindowResponse(**{name: facts[name] for name in names}, workers=workers)
    reducer = Reducer(host, origin_ns)
    tables = reducer.reduce(response, [StepRecord(*record) for record in facts["records"]]).tables()
    return tables, [row for rows in reducer.hardware.values() for row in rows]


class _Decoded:
    """The events of one worker, and the host clock's steps at that time, in the window's own time."""

    def __init__(
        self, events: pl.DataFrame, facts: XSpaceFacts, response: WindowResponse, records: Sequence[StepRecord]
    ) -> None:
        self.events, self.facts, self.hosts = events, facts, facts.hosts
        start_ns = response.requested_ns if facts.start_ns is None else facts.start_ns - response.lead_ns
        stop_ns = response.received_ns if facts.stop_ns is None else facts.stop_ns - response.lead_ns
        if not response.requested_ns - LIMITS.most_skew_ns < start_ns < response.received_ns + LIMITS.most_skew_ns:
            start_ns, stop_ns = response.requested_ns, response.requested_ns + stop_ns - start_ns
        self.start_ns, self.stop_ns = start_ns, stop_ns
        # the host may launch a step while devices compute earlier ones: its work is what was launched during it, or
        # what ran during it, where nothing says when that was launched
        launched = self._overlapping([(record, record.launches_ns or _times(record)) for record in records])
        ahead = any(record.launches_ns is not None or not record.done for record in records)
        self.by_time = ahead and not (launched and events.select(boundaries.on_device().any()).item())
        done = [(record, _times(record)) for record in records if record.done]
        overlapping = self._overlapping(done) if self.by_time else launched
        columns = {name: run_folder.TICKS[name] for name in ("step", "kind", "start_ps", "end_ps", "found_by")}
        self.records = pl.DataFrame(overlapping, schema=columns, orient="row")

    def _overlapping(self, times: list[tuple[StepRecord, tuple[int, int]]]) -> list[tuple[int, str, int, int, str]]:
        """Return the records whose times overlap the window, in its own time."""
        start_ns, stop_ns = self.start_ns, self.stop_ns
        return [
            (record.step, record.kind, (begin_ns - start_ns) * 1000, (end_ns - start_ns) * 1000, record.rule)
            for record, (begin_ns, end_ns) in times
            if end_ns > start_ns and begin_ns < stop_ns
        ]

    def offset_ps(self) -> float | None:
        """Return the median offset of its annotations from the host clock's steps; None without common numbers."""
        annotated = self.events.filter(pl.col("step_num").is_not_null()).select("step_num", "start_ps")
        common = annotated.join(self.records.select("step", clock_ps="start_ps"), left_on="step_num", right_on="step")
        return common.select((pl.col("start_ps") - pl.col("clock_ps")).abs().median()).item()  # type: ignore[no-any-return]


def _times(record: StepRecord) -> tuple[int, int]:
    return record.start_ns, record.end_ns


@contextmanager
def _collect_error(worker: str, response: WindowResponse, errors: dict[str, str]) -> Iterator[None]:
    """Record why the window of a worker cannot be used; those of the others can."""
    try:
        yield
    except BadProfile as error:
        errors[worker] = str(error)
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  the others can be reduced
        errors[worker] = f"window {response.number} could not be reduced: {error!r}"
