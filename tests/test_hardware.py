"""Devices and their peaks."""

import math

import pytest

from tpunb.frames.hardware import DEVICES, Device, Level, device


def test_tpus_and_gpus_have_sources():
    assert {"TPU v2", "TPU v3", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e", "TPU v7"} < set(DEVICES)
    assert {"H200 SXM", "B200", "MI300X", "MI325X"} < set(DEVICES)
    assert all(one.source.startswith(("https://", "ParaDnn, https://")) for one in DEVICES.values())
    assert all(name == one.name for name, one in DEVICES.items())


def test_four_chips_have_the_peaks_of_the_published_board():
    v2 = DEVICES["TPU v2"]
    assert (4 * v2.peak_flops, 4 * v2.bandwidth) == (180e12, 2400e9)


def test_a_device_by_its_name():
    assert device("h100 sxm") is DEVICES["H100 SXM"]
    with pytest.raises(
        ValueError, match=r"unknown device 'TPU v8'; did you mean 'TPU v\d\w*'\? known devices: TPU v2, .*H200 SXM"
    ):
        device("TPU v8")
    with pytest.raises(ValueError, match="unknown device 'abacus'; known devices: TPU v2, "):
        device("abacus")


@pytest.mark.parametrize("peak", [0, -1.0, math.nan])
def test_peaks_of_0_or_nan_are_refused(peak):
    with pytest.raises(ValueError, match="peak_flops of device 'd' must be above 0"):
        Device("d", peak, 1e9, 1e9, "none")
    with pytest.raises(ValueError, match="bandwidth of device 'd' must be above 0"):
        Device("d", 1.0, 1e9, peak, "none")
    with pytest.raises(ValueError, match="int8 of device 'd' must be above 0"):
        Device("d", 1.0, 1e9, 1e9, "none", peaks={"int8": peak})
    with pytest.raises(ValueError, match="L2 of device 'd' must be above 0"):
        Device("d", 1.0, 1e9, 1e9, "none", levels=(Level("L2", 1e6, peak),))


def test_narrower_types_are_no_slower():
    for chip in DEVICES.values():
        peaks = {chip.dtype: chip.peak_flops, **chip.peaks}
        ordered = [peaks[dtype] for dtype in ("f32", "bf16", "fp8") if dtype in peaks]
        assert ordered == sorted(ordered), chip.name
