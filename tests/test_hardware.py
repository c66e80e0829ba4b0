"""Devices and their peaks."""

import pytest

from tpunb.frames.hardware import DEVICES, device


def test_devices_of_what_if_exist():
    assert {"TPU v2", "TPU v3", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e"} < set(DEVICES)
    assert all(one.source.startswith(("https://", "ParaDnn, https://")) for one in DEVICES.values())
    assert all(name == one.name for name, one in DEVICES.items())


def test_four_chips_have_the_peaks_of_the_published_board():
    v2 = DEVICES["TPU v2"]
    assert (4 * v2.peak_flops, 4 * v2.bandwidth) == (180e12, 2400e9)


def test_a_device_by_its_name():
    assert device("h100 sxm") is DEVICES["H100 SXM"]
    with pytest.raises(
        ValueError, match=r"unknown device 'TPU v7'; did you mean 'TPU v\d\w*'\? known devices: TPU v2, .*H200 SXM"
    ):
        device("TPU v7")
    with pytest.raises(ValueError, match="unknown device 'abacus'; known devices: TPU v2, "):
        device("abacus")
