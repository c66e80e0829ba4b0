"""What devices could do at best: their peaks, each with its source."""

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
    """One chip, at its best.

    Attributes
    ----------
    name
        As its maker calls it.
    peak_flops
        Floating-point operations a second, of dense matrices in bfloat16, or float16 where there is no bfloat16.
    memory
        Bytes of its main memory.
    bandwidth
        Bytes a second between that and the chip.
    source
        Where the figures are from.
    kinds
        As profiles call it.
    """

    name: str
    peak_flops: float
    memory: float
    bandwidth: float
    source: str
    kinds: tuple[str, ...] = ()

    @property
    def ridge(self) -> float:
        """Operations a byte from which on the chip, not its memory, is the limit.

        >>> round(device("TPU v2").ridge)
        75
        """
        return self.peak_flops / self.bandwidth

    def least_seconds(self, flops: float, bytes: float) -> float:  # noqa: A002  the word for it
        """Return the seconds below which it cannot do so many operations on so many bytes: its roofline.

        >>> device("TPU v3").least_seconds(123e12, 0), device("TPU v3").least_seconds(0, 1800e9)
        (1.0, 2.0)
        """
        return max(flops / self.peak_flops, bytes / self.bandwidth)


def _named(*devices: Device) -> Mapping[str, Device]:
    return MappingProxyType({one.name: one for one in devices})


DEVICES = _named(
    # of the board of four chips, 180 TFLOP/s, 64 GB and 2,400 GB/s are told
    Device("TPU v2", 45e12, 16 * _GIB, 600e9, "ParaDnn, https://arxiv.org/abs/1907.10701", ("TPU v2",)),
    Device("TPU v3", 123e12, 32 * _GIB, 900e9, _CLOUD + "v3", ("TPU v3",)),
    Device("TPU v4", 275e12, 32 * _GIB, 1200e9, _CLOUD + "v4", ("TPU v4",)),
    Device("TPU v5e", 197e12, 16e9, 819e9, _CLOUD + "v5e", ("TPU v5 lite", "TPU v5 Lite")),
    Device("TPU v5p", 459e12, 95e9, 2765e9, _CLOUD + "v5p", ("TPU v5p", "TPU v5")),
    Device("TPU v6e", 918e12, 32e9, 1638e9, _CLOUD + "v6e", ("TPU v6 lite", "TPU v6 Lite")),
    Device("V100", 125e12, 32e9, 900e9, _NVIDIA + "v100/"),
    Device("T4", 65e12, 16e9, 320e9, _NVIDIA + "tesla-t4/"),
    Device("A100 80GB", 312e12, 80e9, 2039e9, _NVIDIA + "a100/"),
    Device("L4", 121e12, 24e9, 300e9, _NVIDIA + "l4/"),
    Device("H100 SXM", 989e12, 80e9, 3350e9, _NVIDIA + "h100/"),
    Device("H200 SXM", 989e12, 141e9, 4800e9, _NVIDIA + "h200/"),
)
"""By name."""


def device(name: str) -> Device:
    """Return the device of that name, whatever its capitals.

    Raises
    ------
    ValueError
        When it is not known.

    >>> device("tpu V5E").peak_flops
    197000000000000.0
    """
    known = {one.casefold(): one for one in DEVICES}
    if name.casefold() not in known:
        near = get_close_matches(name.casefold(), known, n=1)
        hint = f"; is it {known[near[0]]!r}?" if near else f"; known are {', '.join(DEVICES)}"
        raise ValueError(f"no device is called {name!r}{hint}")
    return DEVICES[known[name.casefold()]]
