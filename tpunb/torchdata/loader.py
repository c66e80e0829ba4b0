"""A DataLoader of PyTorch with other settings: the same dataset, order and batches, made by other worker processes.

It is copied and changed by its attributes, as PyTorch forbids some changes: the first use verifies that this version
holds them as expected.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError, need
from tpunb.instrument.torch import LIBRARY as TORCH
from tpunb.text import format_error

PREFETCH_FACTOR = 2
"""Batches that PyTorch has each worker make ahead by default."""

_MOST_SENT = 64 << 20  # bytes of a dataset that may be sent to each worker process that is not forked


def is_loader(data: object) -> bool:
    """Return whether data are a DataLoader, or pass for one as those of accelerate do, without importing torch."""
    module = TORCH.module("torch.utils.data")
    return module is not None and isinstance(data, module.DataLoader)


@dataclass(frozen=True)
class Settings:
    """How a DataLoader makes its batches; without workers, only `pin_memory` has an effect."""

    workers: int = 0  # processes; 0 makes the batches in this one
    prefetch_factor: int | None = None  # batches that each worker makes ahead
    pin_memory: bool = False  # copied to memory from which a device reads faster
    persistent_workers: bool = False  # they stay for the next epoch
    start_method: str | None = None  # of workers: "fork", "forkserver" or "spawn"; None for Python's default

    @property
    def ahead(self) -> int:
        """Batches that are made ahead."""
        return self.workers * (self.prefetch_factor or PREFETCH_FACTOR)

    def consistent(self) -> Settings:
        """Return the settings that PyTorch accepts: without workers, those of workers are their defaults.

        >>> Settings(0, 4, persistent_workers=True).consistent() == Settings(), Settings(2).consistent().prefetch_factor
        (True, 2)
        """
        if not self.workers:
            return Settings(pin_memory=self.pin_memory)
        return self if self.prefetch_factor is not None else replace(self, prefetch_factor=PREFETCH_FACTOR)


def settings_of(loader: Any) -> Settings:
    """Return the settings of a DataLoader."""
    context = loader.multiprocessing_context
    return Settings(
        int(loader.num_workers),
        loader.prefetch_factor,
        bool(loader.pin_memory),
        bool(loader.persistent_workers),
        None if context is None else context.get_start_method(),
    )


def with_settings(loader: Any, settings: Settings) -> Any:
    """Return a DataLoader of the same class and contents with other settings, which has not begun.

    It draws the same random numbers in this process, except that workers that stay draw no seed for a later epoch.
    """
    _self_check()
    return _changed(loader, settings.consistent())


def independent(loader: Any) -> Any:
    """Return a DataLoader with samplers and generators of its own, in the state of the given one's."""
    shared = {id(each): each for each in (loader.dataset, loader.collate_fn)}
    try:
        samplers = copy.deepcopy(
            {name: getattr(loader, name) for name in ("sampler", "batch_sampler", "generator")}, shared
        )
    except Exception as error:
        raise TpunbError(
            f"the sampler of the DataLoader cannot be copied: {error}",
            hint="give it a sampler that copy.deepcopy takes",
        ) from error
    return _copied(loader, _iterator=None, **samplers)


def shut_down(iterator: Any) -> None:
    """End the worker processes of an iterator over a DataLoader, also of one whose workers stay."""
    if hasattr(iterator, "close"):  # a generator around PyTorch's iterator
        iterator.close()
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def start_method(loader: Any) -> str:
    """Return how the workers of a DataLoader are started, without choosing Python's default for the program."""
    default = multiprocessing.get_start_method(allow_none=True)
    return settings_of(loader).start_method or default or multiprocessing.get_all_start_methods()[0]


def start_obstacle(loader: Any, method: str) -> str | None:
    """Return why workers cannot be started by a method; None if they can."""
    if method == "fork":
        return None
    if runs_main_again():
        name = Path(sys.modules["__main__"].__file__ or "").name
        return f"{method} runs {name} again, which has no line if __name__ == '__main__'"
    try:
        _Counter().dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except Exception as error:  # noqa: BLE001  whatever a class of the program raises
        return f"{method} sends the dataset to the workers, which fails: {format_error(error)}"
    return None


def runs_main_again() -> bool:
    """Return whether a process that imports the main module would run the program again."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return file is not None and "__main__" not in Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:  # it is within an archive
        return False


class _Counter(pickle.Pickler):
    """Pickles to nowhere, and counts the bytes, of arrays without reading them; raises if they are too many."""

    def __init__(self) -> None:
        super().__init__(self)  # it is its own file
        self.size = 0

    def write(self, data: Any) -> None:
        """Count what is pickled."""
        self._add(len(data))

    def persistent_id(self, value: Any) -> str | None:
        nbytes = getattr(value, "nbytes", None)
        if not isinstance(nbytes, int):
            return None
        self._add(nbytes)
        return "array"

    def _add(self, size: int) -> None:
        self.size += size
        if self.size > _MOST_SENT:
            raise ValueError(f"it has over {_MOST_SENT >> 20} MB")


def batches_of(loader: Any) -> int | None:
    """Return the batches of an epoch; None if the dataset or the sampler has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def is_iterable(loader: Any) -> bool:
    """Return whether the dataset of a DataLoader is iterated, by each worker, in place of being read by indices."""
    return isinstance(loader.dataset, need("torch.utils.data", extra="torch").IterableDataset)


def _changed(loader: Any, settings: Settings) -> Any:
    if (inner := _inner(loader)) is not None:
        return _copied(loader, base_dataloader=_changed(inner, settings))
    again = _copied(
        loader,
        num_workers=settings.workers,
        prefetch_factor=settings.prefetch_factor,
        pin_memory=settings.pin_memory,
        persistent_workers=settings.persistent_workers,
        timeout=loader.timeout if settings.workers else 0,
        _iterator=None,
    )
    if settings.start_method != settings_of(loader).start_method:
        again.multiprocessing_context = settings.start_method
    return again


def _inner(loader: Any) -> Any:
    """Return the DataLoader inside of one of accelerate's; None for others."""
    return vars(loader).get("base_dataloader")


def _copied(loader: Any, **attributes: Any) -> Any:
    """Return a copy of a DataLoader with other attributes; some may not be assigned, and some classes not be copied."""
    again = object.__new__(type(loader))
    vars(again).update(vars(loader))
    vars(again).update(attributes)
    return again


@cache
def _self_check() -> None:
    """Change the settings of a tiny DataLoader, once per process, without starting a worker."""
    torch = need("torch", extra="torch")
    settings = Settings(2, 3, persistent_workers=True, start_method=torch.multiprocessing.get_all_start_methods()[0])
    try:
        tiny = torch.utils.data.DataLoader([1, 2, 3], batch_size=2, generator=torch.Generator())  # draws from no other
        again = _changed(tiny, settings)
        if settings_of(again) != settings or settings_of(tiny) != Settings():
            raise TypeError("its attributes are others")
        if [batch.tolist() for batch in _changed(again, Settings())] != [[1, 2], [3]]:
            raise TypeError("a changed DataLoader gives other batches")
    except Exception as error:
        raise TpunbError(
            f"the DataLoader of PyTorch {torch.__version__} is not supported: {error}",
            hint="set num_workers in your code",
        ) from error
