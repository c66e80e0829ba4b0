"""Another device, modelled: by its roofline, and with the same waiting."""

import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.analysis.roofline import what_if
from tpunb.errors import TpunbError
from tpunb.frames import Steps
from tpunb.frames.hardware import DEVICES, Device
from tpunb.testing import toy_steps

SLOW = Device("slow", 10e12, 1e9, 1e12, "none", ("Toy",))
FAST = Device("fast", 20e12, 1e9, 1e12, "none")
WIDE = Device("wide", 10e12, 1e9, 4e12, "none")


def run(flops, bytes_, *, busy=600, dur=1000, kind=None):
    """One step of `dur` ns, for `busy` of which its device computes."""
    toy = toy_steps("a")
    row = {"host": toy.frame["host"][0], "device": "/device:TPU:0", "step": 0, "start_ps": 0}
    row |= {"dur_ps": dur * 1000, "device_ps": busy * 1000, "flops": flops, "bytes": bytes_}
    devices = pl.DataFrame([{name: row.get(name) for name in schema.DEVICES}], schema=schema.DEVICES)
    return Steps(toy.frame, toy.ops, devices, metadata={} if kind is None else {"device kind": kind})


def test_compute_is_scaled_and_waits_are_not():
    (row,) = what_if(run(6e6, 0), FAST, of=SLOW).iter_rows(named=True)  # 600 ns at the peak of the slow one
    assert (row["dur_ps"], row["device_ps"]) == (1_000_000, 600_000)
    assert (row["modelled_dur_ps"], row["modelled_device_ps"]) == (700_000, 300_000)
    assert row["idle"] == pytest.approx(0.4)
    assert row["modelled_idle"] == pytest.approx(4 / 7)  # Observation 5
    assert row["flops_util"] == pytest.approx(0.6)
    assert row["modelled_flops_util"] == pytest.approx(6 / 14)


def test_memory_bound_steps_are_scaled_by_bandwidth():
    (row,) = what_if(run(1e3, 6e5), WIDE, of=SLOW).iter_rows(named=True)
    assert row["modelled_device_ps"] == 150_000
    (row,) = what_if(run(1e3, 6e5), FAST, of=SLOW).iter_rows(named=True)
    assert row["modelled_device_ps"] == 600_000


def test_steps_without_flops_are_not_modelled():
    (row,) = what_if(run(None, 6e5), FAST, of=SLOW).iter_rows(named=True)
    assert (row["modelled_dur_ps"], row["modelled_idle"], row["dur_ps"]) == (None, None, 1_000_000)
    (row,) = what_if(run(0.0, 0.0), FAST, of=SLOW).iter_rows(named=True)  # it was busy with something else
    assert row["modelled_device_ps"] == 600_000


@given(st.sampled_from([*DEVICES.values()]), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 1000))
def test_the_same_device_changes_nothing(one, flops, bytes_, busy):
    (row,) = what_if(run(float(flops), float(bytes_), busy=busy), one, of=one).iter_rows(named=True)
    assert row["modelled_dur_ps"] == row["dur_ps"]
    assert row["modelled_idle"] == row["idle"]


def test_the_device_is_taken_from_metadata():
    assert what_if(run(1.0, 1.0, kind="TPU v6 Lite"), "TPU v3").height == 1
    with pytest.raises(TpunbError, match="the run does not name its device"):
        what_if(run(1.0, 1.0), "TPU v3")
    with pytest.raises(TpunbError, match="unknown device 'abacus'"):
        what_if(run(1.0, 1.0, kind="abacus"), "TPU v3")
    with pytest.raises(TypeError, match="The other parameter of what_if must be a Device"):
        what_if(run(1.0, 1.0), 3)


@pytest.mark.skipif("TPUNB_DATA" not in os.environ, reason="TPUNB_DATA is not set: real captures are not here")
def test_a_real_capture_of_a_tpu_v6e():
    path = Path(os.environ["TPUNB_DATA"], "profiles", "tpu-v6e-4_jax_host-offload.xplane.pb")
    steps = tp.steps(tp.load(path))
    rows = what_if(steps, "TPU v5e", of="TPU v6e")
    assert rows["modelled_dur_ps"].null_count() == 0 < rows.height
    assert (rows["modelled_dur_ps"] >= rows["dur_ps"]).all()  # half the memory's speed
    assert (rows["modelled_idle"] <= rows["idle"]).all()
