"""The options of a capture as words, for the magic and for ``tpunb run``: their definitions, and what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from tpunb.cluster import METHODS, OLS
from tpunb.errors import TpunbError
from tpunb.frames.phases import PhaseMethod
from tpunb.profiler.schedule import Schedule
from tpunb.profiler.sources import TPU, Address, Source, Torch

OF_TPU = ("zone", "project", "port")
_TIMES = ("window", "every", "continuous")
OF_CAPTURE = ("source", "address", "tpu", *OF_TPU, "budget", *_TIMES, "no_stacks", "until", "run", "keep", "to")
"""Names of the options that change a capture or its folder."""


_Option = tuple[str, dict[str, Any]]


def _option(name: str, help: str, **settings: Any) -> _Option:  # noqa: A002  as argparse names it
    return name, {"help": help, **settings}


_SECONDS = {"metavar": "SECONDS", "type": float}
_FLAG = {"action": "store_true"}
GROUPS: dict[str, tuple[str, str, list[_Option]]] = {
    "source": (
        "what to profile (default: the process that trains)",
        "--address 10.0.0.2:8466",
        [
            _option("--source", "torch: by torch.profiler (default: the framework in use)", choices=("local", "torch")),
            _option(
                "--address",
                "profiler service; several: by commas, or repeat",
                metavar="HOST:PORT",
                action="append",
            ),
            _option("--tpu", "Cloud TPU with all its workers; local for this TPU VM", metavar="NAME"),
            _option("--zone", "zone of the TPU (default: this machine's)", metavar="ZONE"),
            _option("--project", "project of the TPU (default: this machine's)", metavar="PROJECT"),
            _option("--port", "port of the TPU's profilers (default: 8466; TPU VM: 9012)", metavar="PORT", type=int),
        ],
    ),
    "schedule": (
        "when to profile (default: within an overhead of 2 % of run time, more in a run under a minute)",
        "--budget 0.05",
        [
            _option("--budget", "largest overhead, share of run time (default: by age)", metavar="SHARE", type=float),
            _option("--window", "length of each window, without a budget (default: 1)", **_SECONDS),
            _option("--every", "time between windows, without a budget (default: 10)", **_SECONDS),
            _option("--continuous", "windows back to back, as in the paper", **_FLAG),
            _option("--no-stacks", "do not sample the Python stack in steps that take too long", **_FLAG),
            _option("--until", "stop profiling at this step; the training continues", metavar="STEP", type=int),
        ],
    ),
    "keep": (
        "what to keep",
        "--run runs/bert --keep all",
        [
            _option("--run", "run folder or its URL (default: runs/<date and time>)", metavar="DIR"),
            _option("--to", "tracker that gets the rates: tensorboard, mlflow, wandb or prometheus", action="append"),
            _option("--keep", "raw windows for XProf (default: one per phase)", choices=("none", "phases", "all")),
        ],
    ),
    "show": (
        "what to show",
        "--method ols --threshold 0.8",
        [
            _option("--method", "clustering of the steps (default: dbscan)", choices=tuple(METHODS), default="dbscan"),
            _option("--threshold", "similarity at which ols merges steps (default: 0.7)", metavar="X", type=float),
        ],
    ),
}
"""Title, example and options of each group."""


def add_group(
    parser: argparse.ArgumentParser, name: str, example: str, aliases: Mapping[str, Sequence[str]] | None = None
) -> argparse._ArgumentGroup:
    """Add a group of options to a parser, and return it; `example` has a place for the group's."""
    title, words, options = GROUPS[name]
    group = parser.add_argument_group(title, description=example.format(words))
    for option, settings in options:
        group.add_argument(option, *(aliases or {}).get(option, ()), **settings)
    return group


def help_text(parser: argparse.ArgumentParser, program: str, lines: Iterable[str]) -> str:
    """Return the options as plain text by group, each group with an example, below `lines`."""
    parts = [*lines]
    for group in parser._action_groups:
        formatter = argparse.HelpFormatter(program, max_help_position=26, width=100)
        formatter.start_section(group.title)
        formatter.add_arguments(action for action in group._group_actions if action.option_strings)
        formatter.end_section()
        if text := formatter.format_help().rstrip():
            parts += ["", text] + [f"  example: {group.description}"] * bool(group.description)
    return "\n".join(parts)


def default_folder() -> Path:
    """Return a new run folder: date and time, with a number if there is one already."""
    folder = Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}")
    return next(free for n in count(1) if not (free := Path(f"{folder}-{n}" if n > 1 else folder)).exists())


def phase_method(options: Any) -> PhaseMethod:
    """Return the method that groups the steps."""
    if options.method != "ols":
        reject(options, ["threshold"], f"{{}} requires --method ols (got {options.method})")
    return METHODS[options.method]() if options.threshold is None else OLS(options.threshold)


def capture_arguments(options: Any) -> dict[str, Any]:
    """Return the arguments of `capture`, apart from the folder; TpunbError or ValueError for wrong options."""
    source, schedule = _source(options), _schedule(options)
    stacks = {"stacks": False} if options.no_stacks else {}
    stacks |= {"to": options.to} if options.to else {}
    return {"source": source, "schedule": schedule, "keep": options.keep or "phases", "until": options.until, **stacks}


def _given(options: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the options that were given; 0 is a value."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def reject(options: Any, names: Iterable[str], message: str) -> None:
    """Refuse options that were given; the message has a place for them."""
    if given := [f"--{name.replace('_', '-')}" for name in _given(options, names)]:
        raise TpunbError(message.format(", ".join(given)))


def _source(options: Any) -> Source | None:
    if options.tpu is not None:
        reject(options, ["address", "source"], "--tpu cannot be combined with {}")
        return TPU(options.tpu, **_given(options, OF_TPU))
    reject(options, OF_TPU, "{} requires --tpu")
    if options.address is None:
        return Torch() if options.source == "torch" else None
    reject(options, ["source"], "--address cannot be combined with {}")
    return Address(*(address.strip() for part in options.address for address in part.split(",")))


def _schedule(options: Any) -> Schedule:
    fixed = _given(options, ("window", "every"))
    if options.budget is not None:
        reject(options, _TIMES, "--budget cannot be combined with {}")
        return Schedule(budget=options.budget)
    if options.continuous:
        reject(options, ["every"], "--continuous cannot be combined with {}")
        return Schedule.continuous(**fixed)
    return Schedule.fixed(**fixed) if fixed else Schedule()
