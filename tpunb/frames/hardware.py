"""Peak performance of devices, with sources."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tpunb.text import plain, plural

_GIB = 2**30
_PARADNN = "ParaDnn, https://arxiv.org/abs/1907.10701"
_CLOUD = "https://cloud.google.com/tpu/docs/"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/mi300/"


@dataclass(frozen=True)
class Level:
    """A memory that is faster and smaller than the main memory, such as a cache: bytes, and bytes per second."""

    name: str
    capacity: float
    bandwidth: float


@dataclass(frozen=True)
class Device:
    """Peaks of one chip.

    Parameters
    ----------
    name
        Name by its maker.
    peak_flops
        Peak FLOP/s of dense matrices of the type `dtype`.
    memory
        Main memory in bytes.
    bandwidth
        Memory bandwidth in bytes per second, infinite if unknown.
    source
        Source of the peaks.
    kinds
        Names in profiles.
    cores
        Parts of the chip that profiles list as devices, each with an equal share of its peaks.
    dtype
        Type of `peak_flops`: "bf16", "f16", "f32", "f64", "fp8" or "int8".
    peaks
        Peak operations per second of other types; of types without one, `peak_flops` is the peak.
    levels
        Faster memories, smallest first.
    units
        Streaming multiprocessors or compute units, each of which computes tiles of a result; None if unknown.

    Raises
    ------
    ValueError
        If a peak is not above 0.
    """

    name: str
    peak_flops: float
    memory: float
    bandwidth: float
    source: str
    kinds: tuple[str, ...] = ()
    cores: int = 1
    dtype: str = "bf16"
    peaks: Mapping[str, float] = field(default_factory=dict, hash=False)
    levels: tuple[Level, ...] = ()
    units: int | None = None

    def __post_init__(self) -> None:
        peaks = {"peak_flops": self.peak_flops, "bandwidth": self.bandwidth, **self.peaks}
        for name, peak in (*peaks.items(), *((level.name, level.bandwidth) for level in self.levels)):
            if not peak > 0:  # NaN neither
                raise ValueError(f"{name} of device {self.name!r} must be above 0. Got {peak!r} instead.")

    def to_json(self) -> str:
        """Return the device as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> Device:
        """Return the device that `to_json` wrote; raises ValueError, TypeError or KeyError for another text."""
        facts = json.loads(text)
        levels = tuple(Level(**level) for level in facts.pop("levels"))
        return Device(**facts | {"kinds": tuple(facts["kinds"]), "levels": levels})

    def of_kind(self, kind: str) -> bool:
        """Return whether profiles call this device `kind`, such as "TPU v6 Lite"."""
        return kind in (self.name, *self.kinds)


# dense matrices; f32 on GPUs of NVIDIA from A100 on is TF32, in which XLA multiplies f32 by default;
# f64 of T4 and L4 is 1/32 and 1/64 of their f32 without TF32 (architectures Turing and Ada), of B200 that of HGX B200
_A100 = {"f16": 312e12, "f32": 156e12, "f64": 19.5e12, "int8": 624e12}
_L4 = {"f16": 121e12, "f32": 60e12, "f64": 0.473e12, "fp8": 242e12, "int8": 242e12}
_HOPPER = {"f16": 989e12, "f32": 494e12, "f64": 67e12, "fp8": 1979e12, "int8": 1979e12}
_B200 = {"f16": 2250e12, "f32": 1125e12, "f64": 37e12, "fp8": 4500e12, "int8": 4500e12}
_CDNA3 = {"f16": 1307.4e12, "f32": 163.4e12, "f64": 163.4e12, "fp8": 2614.9e12, "int8": 2614.9e12}
_CDNA3_LEVELS = (Level("Infinity Cache", 256 * 2**20, 17.2e12),)  # https://rocm.docs.amd.com, MI300 series

_DEVICES = (
    # published for the board of four chips: 180 TFLOP/s, 64 GB, 2,400 GB/s
    Device("TPU v2", 45e12, 16 * _GIB, 600e9, _PARADNN, ("TPU v2",), 2),
    Device("TPU v2 board", 180e12, 64 * _GIB, 2400e9, _PARADNN),
    Device("TPU v3", 123e12, 32 * _GIB, 900e9, _CLOUD + "v3", ("TPU v3",), 2),
    Device("TPU v4", 275e12, 32 * _GIB, 1200e9, _CLOUD + "v4", ("TPU v4",), peaks={"int8": 275e12}),
    Device("TPU v5e", 197e12, 16e9, 819e9, _CLOUD + "v5e", ("TPU v5 lite", "TPU v5 Lite"), peaks={"int8": 393e12}),
    Device("TPU v5p", 459e12, 95e9, 2765e9, _CLOUD + "v5p", ("TPU v5p", "TPU v5")),
    Device("TPU v6e", 918e12, 32e9, 1638e9, _CLOUD + "v6e", ("TPU v6 lite", "TPU v6 Lite"), peaks={"int8": 1836e12}),
    # Ironwood: each chip is two devices
    Device("TPU v7", 2307e12, 192 * _GIB, 7380e9, _CLOUD + "tpu7x", ("TPU7x", "TPU v7x"), 2, peaks={"fp8": 4614e12}),
    Device(
        *("V100", 125e12, 32e9, 900e9, _NVIDIA + "v100/", ("Tesla V100-SXM2-32GB",)),
        dtype="f16",
        peaks={"f32": 15.7e12, "f64": 7.8e12},
        units=80,
    ),
    Device(
        *("T4", 65e12, 16e9, 320e9, _NVIDIA + "tesla-t4/", ("Tesla T4",)),
        dtype="f16",
        peaks={"f32": 8.1e12, "f64": 0.253e12, "int8": 130e12},
        units=40,
    ),
    Device(
        *("A100 80GB", 312e12, 80e9, 2039e9, _NVIDIA + "a100/", ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB")),
        peaks=_A100,
        units=108,
    ),
    Device("A100 40GB", 312e12, 40e9, 1555e9, _NVIDIA + "a100/", ("NVIDIA A100-SXM4-40GB",), peaks=_A100, units=108),
    Device("L4", 121e12, 24e9, 300e9, _NVIDIA + "l4/", ("NVIDIA L4",), peaks=_L4, units=58),
    Device("H100 SXM", 989e12, 80e9, 3350e9, _NVIDIA + "h100/", ("NVIDIA H100 80GB HBM3",), peaks=_HOPPER, units=132),
    Device("H200 SXM", 989e12, 141e9, 4800e9, _NVIDIA + "h200/", ("NVIDIA H200",), peaks=_HOPPER, units=132),
    Device("B200", 2250e12, 180e9, 8000e9, _NVIDIA + "dgx-b200/", ("NVIDIA B200",), peaks=_B200, units=148),
    Device(
        *("MI300X", 1307.4e12, 192e9, 5300e9, _AMD + "mi300x.html", ("AMD Instinct MI300X", "AMD Instinct MI300X VF")),
        peaks=_CDNA3,
        levels=_CDNA3_LEVELS,
        units=304,
    ),
    Device(
        *("MI325X", 1307.4e12, 256e9, 6000e9, _AMD + "mi325x.html", ("AMD Instinct MI325X",)),
        peaks=_CDNA3,
        levels=_CDNA3_LEVELS,
        units=304,
    ),
)
DEVICES: Mapping[str, Device] = MappingProxyType({chip.name: chip for chip in _DEVICES})
"""Devices by name."""


def device(name: str) -> Device:
    """Return a device by its name; case does not matter.

    Raises
    ------
    ValueError
        If the device is unknown.

    >>> device("tpu V5E").peak_flops
    197000000000000.0
    """
    names = {listed.casefold(): listed for listed in DEVICES}
    if name.casefold() not in names:
        near = get_close_matches(name.casefold(), names, n=1)
        hint = f"did you mean {names[near[0]]!r}? " if near else ""
        raise ValueError(f"unknown device {name!r}; {hint}known devices: {', '.join(DEVICES)}")
    return DEVICES[names[name.casefold()]]


@cache
def _cpu_model() -> str:
    """Return the model of this machine's CPU."""
    with suppress(OSError):  # of Linux
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if model := re.search(r"^(?:model name|cpu model|Model)\s*:\s*(\S.*)$", text, re.MULTILINE):
            return plain(model[1])
    return platform.processor() or platform.machine() or "unknown"


def cpu_threads() -> int:
    """Return the number of threads of the CPU that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_cpu() -> str:
    """Return the model of this machine's CPU, and the number of its threads that this process may use."""
    return f"CPU {_cpu_model()}, {plural(cpu_threads(), 'thread')}"
