"""A DataLoader of PyTorch as adjustable parameters: workers, what they make ahead, pinned memory.

Parameters that need workers have no effect without them.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from tpunb.errors import need, wrong_type
from tpunb.text import plural
from tpunb.torchdata.effects import Reading, examine
from tpunb.torchdata.loader import (
    PREFETCH_FACTOR,
    batches_of,
    independent,
    is_iterable,
    is_loader,
    settings_of,
    start_method,
    start_obstacle,
    with_settings,
)
from tpunb.tuning.parameters import Kind, Parameter, Value, changes

STAGE = "loader"
"""Stage of all parameters of a DataLoader."""

_WORKERS = (0, 1, 2, 4, 8, 16)
_AHEAD = (1, 2, 4)
SEND = 5e-4
"""Seconds that a worker takes to send a small batch, measured: batches that take less are faster without workers."""

_START, _IMPORT = {"fork": 0.03}, 2.0
"""Seconds to start a worker by forking, and in a new process that imports torch, measured on two cores."""

_SAME = "PyTorch keeps the order of the batches, but datasets are Python, whose effects are unknown"
_FIELDS = {  # field of the settings, and argument of the DataLoader
    Kind.WORKERS: ("workers", "num_workers"),
    Kind.PREFETCH_FACTOR: ("prefetch_factor", "prefetch_factor"),
    Kind.PINNED: ("pin_memory", "pin_memory"),
    Kind.PERSISTENT: ("persistent_workers", "persistent_workers"),
    Kind.START: ("start_method", "multiprocessing_context"),
}


class LoaderPipeline:
    """The adjustable parameters of a DataLoader, and the same loader with other values."""

    unsafe: tuple[str, ...] = ()

    def __init__(self, loader: Any) -> None:
        if not is_loader(loader):
            raise wrong_type("LoaderPipeline", "loader", "be a torch.utils.data.DataLoader", loader)
        self.loader, self.batches, self._settings = loader, batches_of(loader), settings_of(loader)

    def __repr__(self) -> str:
        adjustable = sum(parameter.verdict != "locked" for parameter in self.parameters)
        return f"LoaderPipeline({adjustable} of {plural(len(self.parameters), 'parameter')} adjustable)"

    @cached_property
    def reading(self) -> Reading:
        """What was seen when processes read the first batches, on first use."""
        return examine(self.loader)

    @cached_property
    def refusal(self) -> str | None:
        """Why no value is tried; None if some may be."""
        if "base_dataloader" in vars(self.loader):
            return "the DataLoader is one of accelerate's: tune the one that is given to accelerator.prepare"
        if all(parameter.verdict == "locked" for parameter in self.parameters):
            return f"the workers are locked, as {self.parameters[0].reason}"
        return self.reading.dependence

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Workers, batches ahead of each, pinned memory, whether workers stay, how they start."""
        now, method = self._settings, start_method(self.loader)
        methods = {each: start_obstacle(self.loader, each) for each in multiprocessing.get_all_start_methods()}
        startable = tuple(each for each, obstacle in methods.items() if obstacle is None or each == method)
        locked = next((reason for reason in self._worker_obstacles() if reason), "")
        unused = "" if now.workers or not locked else "there are no workers"
        single = next((obstacle for obstacle in methods.values() if obstacle), "there is no other")
        ahead = PREFETCH_FACTOR if now.prefetch_factor is None else now.prefetch_factor
        rows: list[tuple[Kind, Value, tuple[Value, ...], str]] = [
            (Kind.WORKERS, now.workers, self._worker_counts(), locked),
            (Kind.PREFETCH_FACTOR, ahead, tuple(sorted({*_AHEAD, ahead})), unused),
            (Kind.PINNED, now.pin_memory, (False, True), "" if _has_device() else "there is no device to copy to"),
            (Kind.PERSISTENT, now.persistent_workers, (False, True), unused or self._persistence_obstacle()),
            (Kind.START, method, startable, unused or (single if len(startable) < 2 else "")),
        ]
        return tuple(
            Parameter(kind, STAGE, current, (), "locked", obstacle)
            if obstacle
            else Parameter(kind, STAGE, current, domain, "verify", _SAME)
            for kind, current, domain, obstacle in rows
        )

    def build(self, values: Mapping[str, Value]) -> Any:
        """Return a DataLoader of the same class with the same batches and other values, which has not begun."""
        changed = {_FIELDS[parameter.kind][0]: value for parameter, value in changes(self.parameters, values).items()}
        settings: Any = replace(self._settings, **changed)  # type: ignore[arg-type]
        return with_settings(self.loader, settings)

    in_place = build

    def in_flight(self, values: Mapping[str, Value]) -> int:
        """Return the batches that workers make ahead."""
        return settings_of(self.build(values)).ahead

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the arguments of the DataLoader that set these values."""
        changed = changes(self.parameters, values)
        workers = next((value for parameter, value in changed.items() if parameter.kind is Kind.WORKERS), None)
        if workers == 0:
            return "num_workers=0,  # of DataLoader(...), without arguments that need workers"
        arguments = ", ".join(f"{_FIELDS[parameter.kind][1]}={value!r}" for parameter, value in changed.items())
        return f"{arguments},  # of DataLoader(...)" if arguments else ""

    @property
    def most_workers(self) -> float:
        """Workers with which an epoch takes least, if they only wait: each takes time to start, and all share it."""
        seconds, start = self.reading.seconds, _START.get(start_method(self.loader), _IMPORT)
        if self.batches is None or seconds < SEND:
            return math.inf if seconds > SEND else 0.0
        return math.sqrt(self.batches * seconds / start)

    def _worker_counts(self) -> tuple[Value, ...]:
        """Return candidate numbers of workers: no more than there are batches, and not 0 if workers stay."""
        now = self._settings
        counts = {count for count in {*_WORKERS, os.cpu_count() or 1} if self.batches is None or count <= self.batches}
        return tuple(sorted({*counts, now.workers} - ({0} if now.persistent_workers else set())))

    def _worker_obstacles(self) -> tuple[str | None, ...]:
        """Return why the number of workers must stay."""
        iterated = "each worker iterates over the dataset, and would repeat or share its items in another way"
        return iterated if is_iterable(self.loader) else None, start_obstacle(self.loader, start_method(self.loader))

    def _persistence_obstacle(self) -> str:
        """Return why workers may not stay, or must: they get no later seeds, and see no later change of the data."""
        generator, samplers = self.loader.generator, [self.loader.sampler, self.loader.batch_sampler]
        samplers.append(getattr(self.loader.batch_sampler, "sampler", None))
        shared = any(part is generator for each in samplers for part in getattr(each, "__dict__", {}).values())
        if self._settings.persistent_workers or generator is None or shared:
            return "workers that stay draw no seed for later epochs, so that other random numbers of these would change"
        if hasattr(self.loader.dataset, "set_epoch"):
            return "workers that stay do not see what set_epoch changes"
        return ""


def trial_loader(pipeline: LoaderPipeline, values: Mapping[str, Value], timeout: float) -> Any:
    """Return a loader for a trial, with its own samplers and a timeout, which does not choose Python's start method."""
    loader = independent(pipeline.build(values))
    settings = settings_of(loader)
    if settings.workers:
        loader = with_settings(loader, replace(settings, start_method=start_method(loader)))
        loader.timeout = loader.timeout or timeout
    return loader


def _has_device() -> bool:
    torch = need("torch", extra="torch")
    return bool(torch.accelerator.is_available()) and torch.accelerator.current_accelerator().type != "mps"
