"""Logs of MLPerf Training as a row per run; the parser of ``mlperf-logging`` reads their lines."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import polars as pl

from tpunb.errors import ProfileNotFound, need
from tpunb.studies.scaling.columns import SCALING_RUNS
from tpunb.text import cut, format_error, plain, plural

_MARK, _OLD = ":::MLL", ":::MLL "  # lines of ruleset 0.6.0; those of later ones are JSON after ":::MLLOG "
_ROUNDS = "0.6.0 2019-07-10 0.7.0 2020-07-29 1.0.0 2021-06-30 1.1.0 2021-12-01 2.0.0 2022-06-29 2.1.0 2022-11-09 "
_ROUNDS += "3.0.0 2023-06-27 3.1.0 2023-11-08 4.0.0 2024-06-12 4.1.0 2024-11-13 5.0.0 2025-06-04 5.1.0 2025-11-12 "
_PUBLISHED: dict[str, str] = dict(re.findall(r"(\S+) (\S+)", _ROUNDS + "6.0.0 2026-06-16 6.1.0 later"))
"""When MLCommons (https://mlcommons.org) published the round of each ruleset: its runs are earlier."""
_FOLDER = re.compile(r"(?:.*[_-])?v(\d\.\d)\Z")  # v0.6, training_results_v4.0
_ALIASES = {"mask": "maskrcnn"}
_UNITS = {"resnet": "epochs", "ssd": "epochs", "maskrcnn": "epochs", "gpt3": "tokens"}
"""What logs count in ``epoch_num`` and ``epoch_count``; in those of other benchmarks it is blocks or steps."""


class _Event(NamedTuple):
    s: float
    key: str
    value: Any
    part: float | None  # number of the block or evaluation
    about: Mapping[str, Any]


def read(folder: Path, chips: Mapping[str, int], ruleset: str | None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the runs of all logs below a folder, and what was not as expected; see `analysis.scaling.mlperf`."""
    need("mlperf_logging", extra="mlperf")
    if ruleset not in (None, *_PUBLISHED):
        names = ", ".join(_PUBLISHED)
        raise ValueError(f"The ruleset parameter of mlperf must be one of {names}. Got {ruleset!r} instead.")
    files = sorted(folder.rglob("result_*.txt")) or sorted((*folder.rglob("*.txt"), *folder.rglob("*.log")))
    notes: list[str] = []
    rows = [row for path in files for row in _runs_of(path, folder, ruleset, notes)]
    if not rows:
        reason = notes[0] if notes else f"{plural(len(files), 'text file')} without lines of :::MLLOG"
        hint = "give a folder of files result_*.txt, as mllog writes them"
        raise ProfileNotFound(f"no MLPerf run in {plain(str(folder))!r}: {reason}", hint=hint)
    systems = sorted({row["system"] for row in rows})
    if unknown := sorted({*chips} - {*systems}):
        raise ValueError(f"The chips parameter of mlperf must name systems of {systems}. Got {unknown[0]!r} instead.")
    for row in rows:
        row["chips"] = chips.get(row["system"], row["chips"])
        row["cores"] = row["chips"] * row["cores"] if row["chips"] and row["cores"] else None
    return pl.DataFrame(rows, schema=SCALING_RUNS), tuple(notes)


def _runs_of(path: Path, folder: Path, ruleset: str | None, notes: list[str]) -> list[dict[str, Any]]:
    """Return the runs of one log, usually one, with the cores of a chip as ``cores``."""
    name = plain(str(path.relative_to(folder)))
    lines = [line for line in path.read_text(encoding="latin-1").splitlines() if _MARK in line]
    old = sum(_OLD in line for line in lines) * 2 > len(lines)
    events, bad = _events(lines, "0.6.0" if old else ruleset or [*_PUBLISHED][-1])
    runs, problem = _split(events)
    benchmark = next((str(event.value) for event in events if event.key == "submission_benchmark"), path.parent.name)
    benchmark = _ALIASES.get(benchmark, benchmark)
    of_folder = next((match[1] + ".0" for each in path.resolve().parents if (match := _FOLDER.match(each.name))), None)
    stated = "0.6.0" if old else of_folder if of_folder in [*_PUBLISHED][1:] else _by_date(runs)
    problems = {
        f"{plural(len(bad), 'bad line')} left out, the first: {(bad or [''])[0]}": bad,
        f"left out: {problem}": problem and lines,
        f"{len(runs)} runs": len(runs) > 1,
        f"is of ruleset {stated}, unlike its folder's {of_folder}": runs and of_folder not in (None, stated),
    }
    notes += [f"{name}: {text}" for text, applies in problems.items() if applies]
    facts = {"benchmark": benchmark, "ruleset": ruleset or stated} | (_system(path, benchmark, notes) if runs else {})
    names = [name if len(runs) == 1 else f"{name} ({number})" for number in range(1, len(runs) + 1)]
    return [{**facts, "run": each, **_figures(run, benchmark)} for each, run in zip(names, runs, strict=True)]


def _by_date(runs: list[list[_Event]]) -> str:
    """Return the first ruleset of JSON lines whose round was published after the run."""
    day = datetime.fromtimestamp(runs[0][0].s if runs else 0, UTC).date().isoformat()
    return next(ruleset for ruleset, published in _PUBLISHED.items() if day < published and ruleset != "0.6.0")


def _events(lines: list[str], ruleset: str) -> tuple[list[_Event], list[str]]:
    """Return the events of lines by time, those that several processes wrote once, and why lines were not read."""
    parser = import_module(f"mlperf_logging.compliance_checker.mlp_parser.ruleset_{ruleset.replace('.', '')}")
    events, bad = {}, []
    for line in lines:
        try:
            parsed, failed = parser.parse_generator([line])
            if not parsed:
                raise ValueError(failed[0][1] if failed else "in the form of another ruleset")
            s = float(parsed[0].timestamp) / (1 if ruleset == "0.6.0" else 1000)
            if not 0 <= s < 4e9:
                raise ValueError(f"a time of {s} s")
            about = {**(parsed[0].value.get("metadata") or {})}
            part = _float(about.get("first_epoch_num", about.get("epoch_num")))
            event = _Event(s, str(parsed[0].key), parsed[0].value["value"], part, about)
            events[s, event.key, part, str(event.value)] = event
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            bad.append(cut(format_error(error), 80))
    return sorted(events.values(), key=lambda event: event.s), bad


def _split(events: list[_Event]) -> tuple[list[list[_Event]], str | None]:
    """Return the events of each run, or why it is unknown which events are of one run."""
    timed = [event for event in events if event.s > 0]  # lines of time 0 were added after the run
    starts = [place for place, event in enumerate(timed) if event.key == "run_start"]
    cuts = [0] if starts else []
    for before, after in pairwise(starts):
        keys = [event.key for event in timed[before:after]]
        if "run_stop" not in keys:
            return [], "a second run_start before the run_stop of the first run"
        begun = [place for place, key in enumerate(keys) if key == "init_start"]
        cuts.append(before + begun[-1] if begun else after)
    return [timed[first:last] for first, last in pairwise([*cuts, len(timed)])], None if starts else "no run_start"


def _system(path: Path, benchmark: str, notes: list[str]) -> dict[str, Any]:
    """Return the facts of the system that its folder and its description hold; names of systems may count cores."""
    folder = path.parent.parent if _ALIASES.get(path.parent.name, path.parent.name) == benchmark else path.parent
    places = (parent / "systems" / f"{folder.name}.json" for parent in path.parents)
    described = _json(next((place for place in places if place.is_file()), None), notes)
    return {
        "submitter": str(described["submitter"]) if "submitter" in described else None,
        "system": folder.name,
        "chips": _product(described, "number_of_nodes", "accelerators_per_node"),
        "cores": _product(described, "accelerator_core_count"),
        "official_factor": _float(_json(path.parent / "scaling.json", notes).get("scaling_factor")),
    }


def _json(path: Path | None, notes: list[str]) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes()) if path is not None and path.is_file() else {}
    except ValueError as error:
        facts, note = None, f"{plain(path.name if path else '')} is no JSON: {format_error(error)}"
        notes += [] if note in notes else [note]
    return facts if isinstance(facts, dict) else {}


def _product(facts: Mapping[str, Any], *names: str) -> int | None:
    """Return the product of whole numbers, often texts; None if one is missing, "-" or 0."""
    texts = [str(facts.get(name, "")).strip() for name in names]
    return math.prod(map(int, texts)) or None if all(re.fullmatch(r"\d{1,9}", text) for text in texts) else None


def _figures(events: list[_Event], benchmark: str) -> dict[str, Any]:
    """Return the figures of one run, null where the log does not have them."""
    start = next(event.s for event in events if event.key == "run_start")
    stop = next((event for event in events if event.key == "run_stop" and event.s >= start), None)
    begun = next((event.s for event in events if event.key == "init_start" and event.s <= start), None)
    status = "not finished" if stop is None else str(stop.about.get("status", "unknown"))
    batch, unit = _number(events, "global_batch_size"), _UNITS.get(benchmark)
    sequence = _number(events, "max_sequence_length")
    examples = _number(events, "train_samples", "num_train_examples") if unit == "epochs" else sequence and 1 / sequence
    count, seconds = _blocks(events)
    rate = count * examples / seconds if unit and count and examples and seconds else None
    reached = [e.part for e in events if e.key == "eval_accuracy" and stop is not None and e.s <= stop.s]
    return {
        "status": "aborted" if status == "abort" else status,
        "minutes": None if stop is None else (stop.s - start) / 60,
        "batch": batch and int(batch),
        "block_s": seconds,
        "step_ps": round(batch / rate * 1e12) if batch and rate and batch / rate < 1e6 else None,
        "examples_per_s": rate,
        "startup_minutes": None if begun is None else (start - begun) / 60,
        "evaluation_minutes": _evaluation_minutes(events, start, stop, seconds),
        "to_quality": reached[-1] if status == "success" and unit and reached else None,
        "unit": unit,
    }


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e12 else None


def _number(events: list[_Event], *keys: str) -> float | None:
    values = (_float(event.value) for event in events if event.key in keys)
    return next((value for value in values if value is not None and value > 0), None)


def _blocks(events: list[_Event]) -> tuple[float | None, float | None]:
    """Return the usual length of blocks in epochs or tokens, and the median seconds from their start to the next."""
    # a block may be evaluated while the next is trained; the first, which includes the warm-up, is left out
    starts = {e.s if e.part is None else e.part: e for e in reversed(events) if e.key == "block_start"}
    ordered = sorted(starts.values(), key=lambda event: event.s)
    pairs = [(_float(a.about.get("epoch_count")), b.s - a.s) for a, b in pairwise(ordered) if b.s > a.s]
    pairs = pairs[1:] or pairs
    usual = Counter(count for count, _ in pairs).most_common(1)
    return (usual[0][0], median(s for count, s in pairs if count == usual[0][0])) if usual else (None, None)


def _evaluation_minutes(events: list[_Event], start: float, stop: _Event | None, block_s: float | None) -> float | None:
    """Return the time in which an evaluation runs; None where the log's evaluations begin with the training before."""
    ends = ([event.s for event in events if event.key == key] for key in ("eval_start", "eval_stop"))
    spans = [*zip(*ends, strict=False)]  # in order, since some are numbered wrongly
    if not spans or stop is None or (block_s and median(end - first for first, end in spans) >= block_s):
        return None
    total, until = 0.0, start
    for first, end in spans:
        total += max(min(end, stop.s) - max(first, until), 0)
        until = max(until, end)
    return total / 60
