"""Peak performance of devices, with sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

_GIB = 2**30
_CLOUD = "https://cloud.google.com/tpu/docs/"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"


@dataclass(frozen=True)
class Device:
    """Peaks of one chip.

    Parameters
    ----------
    name
        Name by its maker.
    peak_flops
        Peak FLOP/s of dense matrices in bfloat16, or float16 without bfloat16.
    memory
        Main memory in bytes.
    bandwidth
        Memory bandwidth in bytes per second.
    source
        Source of the peaks.
    kinds
        Names in profiles.
    cores
        Cores of the chip that profiles list as devices.
    """

    name: str
    peak_flops: float
    memory: float
    bandwidth: float
    source: str
    kinds: tuple[str, ...] = ()
    cores: int = 1

    def of_kind(self, kind: str) -> bool:
        """Return whether profiles call this device `kind`, such as "TPU v6 Lite"."""
        return kind in (self.name, *self.kinds)


_DEVICES = (
    # published for the board of four chips: 180 TFLOP/s, 64 GB, 2,400 GB/s
    Device("TPU v2", 45e12, 16 * _GIB, 600e9, "ParaDnn, https://arxiv.org/abs/1907.10701", ("TPU v2",), 2),
    Device("TPU v3", 123e12, 32 * _GIB, 900e9, _CLOUD + "v3", ("TPU v3",), 2),
    Device("TPU v4", 275e12, 32 * _GIB, 1200e9, _CLOUD + "v4", ("TPU v4",)),
    Device("TPU v5e", 197e12, 16e9, 819e9, _CLOUD + "v5e", ("TPU v5 lite", "TPU v5 Lite")),
    Device("TPU v5p", 459e12, 95e9, 2765e9, _CLOUD + "v5p", ("TPU v5p", "TPU v5")),
    Device("TPU v6e", 918e12, 32e9, 1638e9, _CLOUD + "v6e", ("TPU v6 lite", "TPU v6 Lite")),
    Device("V100", 125e12, 32e9, 900e9, _NVIDIA + "v100/", ("Tesla V100-SXM2-32GB",)),
    Device("T4", 65e12, 16e9, 320e9, _NVIDIA + "tesla-t4/", ("Tesla T4",)),
    Device("A100 80GB", 312e12, 80e9, 2039e9, _NVIDIA + "a100/", ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB")),
    Device("L4", 121e12, 24e9, 300e9, _NVIDIA + "l4/", ("NVIDIA L4",)),
    Device("H100 SXM", 989e12, 80e9, 3350e9, _NVIDIA + "h100/", ("NVIDIA H100 80GB HBM3",)),
    Device("H200 SXM", 989e12, 141e9, 4800e9, _NVIDIA + "h200/", ("NVIDIA H200",)),
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
    names = {known.casefold(): known for known in DEVICES}
    if name.casefold() not in names:
        near = get_close_matches(name.casefold(), names, n=1)
        hint = f"did you mean {names[near[0]]!r}? " if near else ""
        raise ValueError(f"unknown device {name!r}; {hint}known devices: {', '.join(DEVICES)}")
    return DEVICES[names[name.casefold()]]
