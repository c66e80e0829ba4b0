"""Peaks of this machine's CPU, measured."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from tpunb.errors import ProfileNotFound
from tpunb.frames.conversion import read_file, write_atomically
from tpunb.frames.hardware import Device, Level, cpu_threads, this_cpu
from tpunb.io import cache, run_folder
from tpunb.text import plain

_SIZES = 128, 256, 512  # of square matrices
_DTYPES: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f64": np.float64}
_WORKING_SETS = [2**exponent for exponent in (18, 20, 22, 24, 26, 28)]  # bytes of all threads
_TRIAL_S, _MOST_S = 0.005, 4.5
_SETTLED_S, _RISE = 1.0, 1.01  # without a rate that rose by 1 %: on an idle machine the rounds end then
_FASTER = 1.1  # times the bandwidth of the next: a memory of its own

Trial = Callable[[], float]


def measured(run: str | Path | None = None) -> Device:
    """Measure this CPU as a device: the best rates of interleaved trials of all threads, in 5 seconds at most.

    Peaks are the FLOP/s of NumPy's matrix product in float32 and float64. Bandwidths are those of sums and maxima of
    arrays, in working sets of 256 KiB to 256 MiB; a working set whose bandwidth exceeds that of all larger ones by 10 %
    is a level. Other work of the machine lowers the figures: each is the sum of the best trial of each thread. The
    result replaces the peaks that ``tp.roofline`` measured and kept for runs of this CPU.

    Parameters
    ----------
    run
        Run folder in which to keep the result: ``tp.roofline`` of this run, loaded afterwards, needs no device.

    Raises
    ------
    ProfileNotFound
        If there is no run folder at `run`.
    """
    if run is not None and not run_folder.is_run(Path(run)):
        raise ProfileNotFound(f"no run folder at {plain(str(run))!r}")
    until = time.perf_counter() + _MOST_S
    threads = cpu_threads()
    with ThreadPoolExecutor(threads) as pool, threadpool_limits(1):  # a thread of BLAS waits for no other one
        products = {
            (dtype, size): _product(size, _DTYPES[dtype], threads, pool) for dtype in _DTYPES for size in _SIZES
        }
        streams = {size: _stream(size, threads, pool) for size in _WORKING_SETS}
        trials: dict[Any, Trial] = {**products, **streams}
        best = _best(trials, until)
    flops = {dtype: max(best[dtype, size] for size in _SIZES) for dtype in _DTYPES}
    rates = [max(best[size] for size in _WORKING_SETS[place:]) for place in range(len(_WORKING_SETS))]
    levels = [
        Level(f"working set of {size >> 10} KiB", float(size), rate)
        for size, rate, larger in zip(_WORKING_SETS[:-1], rates, rates[1:], strict=False)
        if rate > _FASTER * larger
    ]
    cpu = Device(
        this_cpu(),
        flops.pop("f32"),
        float(psutil.virtual_memory().total),
        rates[-1],
        "measured by tpunb.analysis.machine",
        dtype="f32",
        peaks=flops,
        levels=tuple(levels),
    )
    if run is not None:
        write_atomically(Path(run) / run_folder.DEVICE, cpu.to_json().encode())
    _MEASURED[cpu.name] = cpu
    if (file := _file(cpu.name)) is not None:
        with suppress(OSError):  # a full or read-only disk: this process has it
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(file, cpu.to_json().encode())
    return cpu


_MEASURED: dict[str, Device] = {}


def kept() -> tuple[Device, str]:
    """Return this CPU with its peaks, which are measured once and kept for the user, and a note on when."""
    if (cpu := found()) is not None:
        return cpu, "peaks of this CPU measured earlier"
    begun = time.perf_counter()
    return measured(), f"peaks of this CPU measured in {time.perf_counter() - begun:.0f} s, kept"


def found() -> Device | None:
    """Return this CPU with its peaks, None if they were not measured for the user."""
    name = this_cpu()
    if name not in _MEASURED and (file := _file(name)) is not None:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            _MEASURED[name] = Device.from_json(read_file(file))
    return _MEASURED.get(name)


def _file(name: str) -> Path | None:
    """Return the file of the peaks of a CPU; None if nothing is kept on disk."""
    folder = cache.folder()
    return None if folder is None else folder / "peaks" / f"{re.sub('[^A-Za-z0-9.]+', '-', name)[:100]}.json"


def _best(trials: dict[Any, Trial], until: float) -> dict[Any, float]:
    """Return the best rate of each trial, in rounds until a moment, or until none has risen for a while."""
    best, rose = dict.fromkeys(trials, 0.0), 0.0
    while True:
        for name, trial in trials.items():
            rate, now = trial(), time.perf_counter()
            rose = now if rate > _RISE * best[name] else rose
            best[name] = max(best[name], rate)
            if all(best.values()) and (now > until or now - rose > _SETTLED_S):
                return best


def _product(size: int, dtype: type[np.floating[Any]], threads: int, pool: ThreadPoolExecutor) -> Trial:
    """Return a trial of a product of matrices by each thread."""
    matrices = [np.ones((3, size, size), dtype) for _ in range(threads)]
    fastest = [0.0] * threads

    def work(thread: int) -> None:
        left, right, out = matrices[thread]
        begun = time.perf_counter()
        while (at := time.perf_counter()) - begun < _TRIAL_S:  # short products fit between other work of the machine
            np.matmul(left, right, out=out)
            fastest[thread] = max(fastest[thread], 2 * size**3 / (time.perf_counter() - at))

    def trial() -> float:
        [*pool.map(work, range(threads))]
        return sum(fastest)

    return trial


def _stream(size: int, threads: int, pool: ThreadPoolExecutor) -> Trial:
    """Return a trial of arrays of `size` bytes in all, read or read and written by all threads at a time."""
    each = max(size // threads // 12, 1)  # three arrays of float32 a thread
    arrays = [np.ones((3, each), np.float32) for _ in range(threads)]
    calls = max(int(_TRIAL_S * 5e9 // (12 * each)), 1)
    start, fastest = threading.Barrier(threads), [0.0] * threads

    def work(thread: int) -> None:
        left, right, out = arrays[thread]
        start.wait()
        begun = time.perf_counter()
        for _ in range(calls):
            np.add(left, right, out=out)
        added = time.perf_counter()
        for _ in range(calls):
            left.max(), right.max(), out.max()
        shortest = min(added - begun, time.perf_counter() - added)
        fastest[thread] = max(fastest[thread], calls * 12 * each / shortest)

    def trial() -> float:
        [*pool.map(work, range(threads))]
        return sum(fastest)

    return trial
