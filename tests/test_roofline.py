"""Roofline of a run at every level, and another device, modelled: by its roofline, and with the same waiting."""

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


# -- roofline ---------------------------------------------------------------------------------------------------------

LEVELS = ["run", "category", "layer", "op", "instruction"]
UNIT = Device("unit", 1e12, 1e9, 1e12, "none")  # 1 FLOP and 1 byte a picosecond


def layers(*rows):
    """Steps with layers: (step, layer, instruction, category, self_ps, flops, bytes) each, of program 7."""
    toy = toy_steps("aab")
    names = ["step", "layer", "hlo_op", "category", "self_ps", "flops", "bytes"]
    base = {"host": toy.frame["host"][0], "side": "device", "program": 7, "count": 1, "flops_source": "program"}
    made = [base | {"op": row[2]} | dict(zip(names, row, strict=True)) for row in rows]
    frame = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS} for row in made], schema=schema.LAYERS)
    return Steps(toy.frame, toy.ops, read_layers=lambda: frame)


DENSE = (0, "dense", "dot", "convolution", 100, 80.0, 40.0)
AGAIN = (1, "dense", "dot", "convolution", 120, 80.0, 40.0)
NORM = (0, "norm", "add", "loop fusion", 100, 10.0, 50.0)
COPY = (0, None, "copy-done", "copy-done", 10, 0.0, 40.0)
CALL = (0, "dense", "call", "custom-call", 70, None, None)


def rows_of(steps, by, **columns):
    roof = tp.roofline(steps, by, device=UNIT)
    assert roof.frame.schema == schema.ROOFLINE
    return {row["what"]: tuple(row[name] for name in columns["of"]) for row in roof.frame.iter_rows(named=True)}


def test_each_instruction_has_its_time_at_the_roof():
    names = ["self_ps", "headroom_ps", "efficiency", "bound", "above"]
    why = "asynchronous copy or collective: it continues outside its self time"
    assert rows_of(layers(DENSE, AGAIN, NORM, COPY, CALL), "instruction", of=names) == {
        "dot": (220, 60, 160 / 220, "compute", None),
        "add": (100, 50, 0.5, "memory", None),
        "copy-done": (10, None, None, None, why),  # it waits: no roof says how long that has to be
        "call": (70, None, None, None, None),
    }


def test_a_layer_is_the_sum_of_its_instructions_and_the_rest_is_unattributed():
    names = ["count", "self_ps", "flops", "headroom_ps", "flops_time_share", "rate", "attainable", "intensity"]
    found = rows_of(layers(DENSE, AGAIN, NORM, COPY, CALL), "layer", of=names)
    assert found["dense"] == pytest.approx((3, 290, 160.0, 60, 220 / 290, 160 / 220 * 1e12, 1e12, 2.0))
    assert found["unattributed"] == (1, 10, 0.0, None, 0.0, None, None, None)
    assert [*found] == ["dense", "norm", "unattributed"]  # most headroom first


def test_phases_have_their_own_rows():
    steps = layers(DENSE, AGAIN, (2, "norm", "add", "loop fusion", 100, 10.0, 50.0))
    phases = tp.phases(steps, lambda _: [0, 0, 1])
    found = {
        row[0]: row[1:]
        for row in tp.roofline(phases, "phase", device=UNIT).frame.select("what", "count", "self_ps").rows()
    }
    assert found == {phases.names[0]: (2, 220), phases.names[1]: (1, 100)}
    with pytest.raises(TypeError, match="must be Phases for by='phase'"):
        tp.roofline(steps, "phase", device=UNIT)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([None, "dense", "norm"]),
            st.sampled_from([None, "dot", "add", "copy"]),
            st.sampled_from([None, "custom-call", "copy-start", "loop fusion"]),
            st.integers(0, 10**12),
            st.none() | st.floats(0, 1e18),
            st.none() | st.floats(0, 1e18),
        ),
        max_size=12,
    )
)
def test_every_level_has_the_same_sums_and_no_share_leaves_0_to_1(rows):
    steps = layers(*rows)
    sums = {by: tp.roofline(steps, by, device=UNIT).frame for by in LEVELS}
    for frame in sums.values():
        assert frame["efficiency"].drop_nulls().is_between(0, 1 + 1e-12).all()
        assert frame["flops_time_share"].drop_nulls().is_between(0, 1).all()
        assert (frame["headroom_ps"] <= frame["self_ps"]).all()
        assert (frame["headroom_ps"] >= 0).all()
        for name in ("self_ps", "count", "flops", "bytes"):
            assert frame[name].sum() == pytest.approx(sums["instruction"][name].sum())
    instructions = sums["instruction"]["headroom_ps"].sum()
    assert sums["run"]["headroom_ps"].sum() == pytest.approx(instructions, abs=len(rows) + 1)


def test_a_chip_of_two_cores_has_half_its_peaks_in_each():
    pair = Device("pair", 2e12, 1e9, 2e12, "none", (), 2)
    one, two = (tp.roofline(layers(DENSE, NORM), device=chip).frame for chip in (UNIT, pair))
    assert one.equals(two)


def test_what_is_missing_is_named():
    steps = layers(DENSE)
    with pytest.raises(TpunbError, match="the run does not name its device") as error:
        tp.roofline(steps)
    assert "device=" in error.value.hint
    with pytest.raises(ValueError, match=r"one of run, phase, category, layer, op, instruction\. Got 'kernel'"):
        tp.roofline(steps, "kernel", device=UNIT)
    with pytest.raises(TypeError, match="The data parameter of roofline must be Steps or Phases"):
        tp.roofline(steps.frame)
    with pytest.raises(TpunbError, match="its capture kept statistics only"):
        tp.roofline(toy_steps("a"), device=UNIT)


def test_a_run_without_operations_has_no_rows_and_unknown_work_no_headroom():
    empty = tp.roofline(layers(), device=UNIT)
    assert repr(empty) == "Roofline(0 rows by run, unit, no operations on devices)"
    unknown = tp.roofline(layers(CALL), device=UNIT)
    assert repr(unknown) == "Roofline(1 row by run, unit, no FLOPs and bytes known)"
    assert repr(tp.roofline(layers(NORM), "op", device=UNIT)) == (
        "Roofline(1 row by op, unit, headroom 5e-08 ms of 1e-07 ms self time)"
    )


def test_convolution_fusions_of_a_real_tpu_reach_82_percent_of_its_peak(real_profiles):
    steps = tp.steps(tp.load(real_profiles / "tpu_vllm-qwen3.trace.json.gz"), by="whole")
    roof = tp.roofline(steps, "category", device="TPU v6e")
    rows = {row["what"]: row for row in roof.frame.iter_rows(named=True)}
    assert rows["convolution fusion"]["rate"] / 918e12 == pytest.approx(0.824, abs=0.002)
    assert rows["convolution fusion"]["intensity"] == pytest.approx(715, abs=1)
    assert rows["custom-call"]["rate"] is rows["custom-call"]["headroom_ps"] is None
