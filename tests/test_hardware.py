"""Devices and their peaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.hardware import DEVICES, Device, device

some = st.sampled_from([*DEVICES.values()])
amounts = st.integers(0, 10**18)


def test_the_devices_of_the_what_if_are_there():
    assert {"TPU v2", "TPU v3", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e"} < set(DEVICES)
    assert all(one.source.startswith(("https://", "ParaDnn, https://")) for one in DEVICES.values())
    assert all(name == one.name for name, one in DEVICES.items())


def test_four_chips_are_the_board_that_is_told_of():
    v2 = DEVICES["TPU v2"]
    assert (4 * v2.peak_flops, 4 * v2.bandwidth) == (180e12, 2400e9)


def test_a_device_by_its_name():
    assert device("h100 sxm") is DEVICES["H100 SXM"]
    with pytest.raises(ValueError, match=r"no device is called 'TPU v7'; is it 'TPU v\d"):
        device("TPU v7")
    with pytest.raises(ValueError, match="no device is called 'abacus'; known are TPU v2, "):
        device("abacus")


@given(some, amounts, amounts)
def test_the_roofline(one: Device, flops, bytes_):
    seconds = one.least_seconds(flops, bytes_)
    assert seconds * one.peak_flops >= flops * (1 - 1e-12)
    assert seconds * one.bandwidth >= bytes_ * (1 - 1e-12)
    assert one.least_seconds(2 * flops, 2 * bytes_) == pytest.approx(2 * seconds)
    bound_by_the_chip = flops / one.peak_flops >= bytes_ / one.bandwidth
    assert bound_by_the_chip == (seconds == flops / one.peak_flops)
