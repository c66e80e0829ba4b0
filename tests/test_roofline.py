"""Roofline of a run at every level, and on another device."""

import gzip
import socket
from dataclasses import replace

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from layer_rows import AGAIN, CALL, COPY, DENSE, NORM, UNIT, layers

import tpunb as tp
from tpunb import schema
from tpunb.analysis import machine
from tpunb.analysis.roofline import library
from tpunb.errors import TpunbError
from tpunb.frames import Steps
from tpunb.frames.hardware import DEVICES, Device, Level, this_cpu
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


def modelled(steps, other, of):
    """Busy time of the one step on another device, in picoseconds."""
    return tp.roofline(steps, "step", device=of).on(other).frame["self_ps"].item()


def test_compute_is_scaled():
    assert modelled(run(6e6, 0.0), FAST, SLOW) == 300_000  # 600 ns at the peak of the slow one


def test_memory_bound_steps_are_scaled_by_bandwidth():
    assert modelled(run(1e3, 6e5), WIDE, SLOW) == 150_000
    assert modelled(run(1e3, 6e5), FAST, SLOW) == 600_000


def test_time_without_known_work_stays():
    assert modelled(run(0.0, 0.0), FAST, SLOW) == 600_000  # it was busy with something else
    steps = layers(DENSE, COPY, CALL)
    rows = tp.roofline(steps, "instruction", device=UNIT).on(Device("twice", 2e12, 1e9, 2e12, "none")).frame
    assert dict(rows.select("what", "self_ps").iter_rows()) == {"dot": 50, "copy-done": 10, "call": 70}
    assert dict(rows.select("what", "headroom_ps").iter_rows()) == {"dot": 10, "copy-done": None, "call": None}


@examples(50)
@given(
    *(st.sampled_from([*DEVICES.values(), SLOW, FAST, WIDE]),) * 2,
    *(st.integers(0, 10**18), st.integers(0, 10**15), st.integers(0, 10**9)),
)
def test_a_step_is_scaled_by_the_least_times_of_the_chips(one, other, flops, bytes_, busy):
    """As ``what_if`` did, to the picosecond: chip for chip, also where profiles list the cores of a chip."""
    measured = tp.roofline(run(float(flops), float(bytes_), busy=busy), "step", device=one)
    least = [max(flops / chip.peak_flops, bytes_ / bandwidth(chip, bytes_)) for chip in (one, other)]
    expected = busy * 1000 * (least[1] / least[0]) if least[0] else busy * 1000
    there = measured.on(other)
    assert there.frame["self_ps"].item() == round(expected)
    assert there.device.cores == one.cores
    back = there.on(one).frame["self_ps"].item()
    assert back == pytest.approx(busy * 1000, abs=1 + max(1, least[0] / least[1] if least[1] else 0))
    assert measured.on(one).frame.equals(measured.frame)


def bandwidth(chip, bytes_):
    return next((level.bandwidth for level in chip.levels if bytes_ <= level.capacity), chip.bandwidth)


def test_the_device_is_taken_from_metadata():
    assert tp.roofline(run(1.0, 1.0, kind="TPU v6 Lite")).device.name == "TPU v6e"
    with pytest.raises(TypeError, match="The device parameter of roofline must be a Device"):
        tp.roofline(run(1.0, 1.0), device=3)
    with pytest.raises(ValueError, match="unknown device 'TPU v0'"):
        tp.roofline(run(1.0, 1.0), device=SLOW).on("TPU v0")


OF_PEAKS = ["bound", "attainable", "efficiency", "headroom_ps", "above"]
OTHERS = [name for name in schema.ROOFLINE if name not in OF_PEAKS]


@pytest.mark.parametrize("by", ["run", "category", "layer", "op", "instruction"])
def test_what_needs_no_peaks_is_known_without_a_device(by):
    steps = layers(DENSE, AGAIN, NORM, COPY, CALL)
    known, unknown = tp.roofline(steps, by, device=UNIT), tp.roofline(steps, by)
    assert (known.note, unknown.device) == (None, None)
    assert unknown.frame.schema == schema.ROOFLINE
    for name in OF_PEAKS:
        assert unknown.frame[name].null_count() == len(unknown.frame)
    keys = ["what", "program", "part"]
    without_dtype = [name for name in OTHERS if name != "dtype"]  # of a device, its own where none is named
    assert unknown.frame.select(without_dtype).sort(keys).equals(known.frame.select(without_dtype).sort(keys))
    assert unknown.frame["self_ps"].is_sorted(descending=True)
    assert unknown.utilisation is None


def test_a_note_says_why_there_are_no_peaks():
    unnamed = tp.roofline(run(1.0, 1.0))
    assert unnamed.note == "the run does not name its device; device= gives them"
    assert repr(unnamed) == (
        "Roofline(1 row by run, unknown peaks, 0.0006 ms self time; "
        "the run does not name its device; device= gives them)"
    )
    assert tp.roofline(run(1.0, 1.0, kind="abacus")).note == "no peaks of the device 'abacus'; device= gives them"
    with pytest.raises(
        TpunbError, match="unknown peaks cannot be modelled on another device: the run does not"
    ) as error:
        unnamed.on("TPU v4")
    assert error.value.hint == "give the device of the run, as in roofline(..., device='TPU v3')"


def of_cpu(cpu, host=None):
    steps = run(6e6, 3e5, kind="CPU")
    host = pl.lit(host or socket.gethostname())
    frames = {name: getattr(steps, name).with_columns(host=host) for name in ("frame", "devices")}
    return replace(steps, **frames, metadata={"device kind": "CPU", "cpu": cpu})


def test_the_peaks_of_a_cpu_are_those_measured_if_the_run_is_of_this_machine(monkeypatch):
    monkeypatch.setattr(machine, "kept", lambda: (SLOW, "peaks of this CPU measured in 2 s, kept"))
    roof = tp.roofline(of_cpu(this_cpu()))
    assert (roof.device, roof.frame["efficiency"].item()) == (SLOW, 1)
    assert repr(roof).endswith("ms self time; peaks of this CPU measured in 2 s, kept)")
    assert tp.roofline(of_cpu(this_cpu()), device=FAST).note is None
    another = "another machine; device= gives them"
    assert tp.roofline(of_cpu("CPU abacus, 3 threads")).note == f"no peaks of CPU abacus, 3 threads of {another}"
    assert tp.roofline(of_cpu(this_cpu(), "elsewhere")).note == f"no peaks of {this_cpu()} of {another}"
    assert tp.roofline(run(1.0, 1.0, kind="CPU")).note == "no peaks of the device 'CPU'; device= gives them"


def test_advice_on_a_roofline_without_peaks_is_that_without_one():
    phases = tp.phases(layers(DENSE, AGAIN, NORM))
    assert tp.advise(phases, roof=tp.roofline(phases)).equals(tp.advise(phases))


def test_statistics_only_have_a_roofline_of_whole_steps():
    steps = run(6e6, 3e5)
    (row,) = tp.roofline(steps, "step", device=SLOW).frame.rows(named=True)
    assert (row["what"], row["self_ps"], row["rate"], row["intensity"]) == ("0", 600_000, 1e13, 20)
    assert tp.roofline(steps, device=SLOW).frame["efficiency"].item() == 1
    with pytest.raises(TpunbError, match="its capture kept statistics only"):
        tp.roofline(steps, "layer", device=SLOW)


def test_a_real_capture_of_a_tpu_v6e(real_profiles):
    steps = tp.steps(tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"))
    roof = tp.roofline(steps, "step")
    assert len(roof) == steps.layers["step"].n_unique()
    assert roof.frame["self_ps"].sum() == tp.roofline(steps).frame["self_ps"].item()
    other = roof.on("TPU v5e").frame
    assert (other["self_ps"].sort() >= roof.frame["self_ps"].sort()).all()  # half the memory's speed


# -- roofline ---------------------------------------------------------------------------------------------------------

LEVELS = ["run", "step", "category", "layer", "op", "instruction", "library", "kernel"]


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
    assert tp.roofline(phases, device=UNIT).by == "phase"
    assert tp.roofline(steps, device=UNIT).by == "run"
    assert len(tp.roofline(steps, "phase", device=UNIT).frame) == len(tp.phases(steps).frame)


@examples(25)
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
    with pytest.raises(ValueError, match=r"one of run, phase, step, .*, instruction\. Got 'model'"):
        tp.roofline(steps, "model", device=UNIT)
    with pytest.raises(TypeError, match="The run parameter of roofline must be the path of a run"):
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
    assert roof.utilisation is None  # FLOPs of 70 % of the time


# -- utilisation, data types, levels of memory, kernels ----------------------------------------------------------------


def test_utilisation_leaves_out_what_claims_more_than_the_roof_or_counts_it_at_the_roof():
    steps = layers(DENSE, (0, "dense", "call", "custom-call", 100, 400.0, 1.0))  # 4 times the peak
    roof = tp.roofline(steps, device=UNIT)
    assert roof.utilisation == pytest.approx((80 / 200, 180 / 200))
    assert roof.frame["above"].item() == "custom call whose author's estimate exceeds the peak 4.0 times"
    memory = (0, "norm", "add", "loop fusion", 100, 40.0, 200.0)  # 20 FLOPs would take these 100 ps at the roof
    assert tp.roofline(layers(DENSE, memory), device=UNIT).utilisation == pytest.approx((80 / 200, 100 / 200))


def test_utilisation_needs_the_work_of_nine_tenths_of_the_time():
    call = (0, "dense", "call", "custom-call", 11, None, None)
    assert tp.roofline(layers(DENSE, call), device=UNIT).utilisation == pytest.approx((0.8, 0.8))
    assert tp.roofline(layers(DENSE, call, (1, *call[1:])), device=UNIT).utilisation is None
    assert tp.roofline(layers(), device=UNIT).utilisation is None
    assert tp.roofline(layers((0, "dense", "dot", "convolution", 0, 8.0, 4.0)), device=UNIT).utilisation is None


@pytest.mark.parametrize(
    ("product", "shape", "dtype", "peak"),
    [
        (None, "bf16[8,8]{1,0}", "bf16", 1e12),
        (None, "(f32[8]{0}, pred[])", "f32", 0.5e12),
        (None, "f8e4m3fn[8]{0}", "fp8", 2e12),
        (None, "s8[8]", "int8", 4e12),
        (None, "f64[8]", "bf16", 1e12),  # without a peak of its own
        (None, None, "bf16", 1e12),
        ("bf16", "f32[8,8]{1,0}", "bf16", 1e12),
        ("u8", "s32[8]", "int8", 4e12),
    ],
)
def test_the_peak_is_that_of_the_type_of_the_products_else_of_the_result(product, shape, dtype, peak):
    chip = Device("typed", 1e12, 1e9, 1e12, "none", peaks={"f32": 0.5e12, "fp8": 2e12, "int8": 4e12})
    (row,) = tp.roofline(layers(DENSE, shape=shape, dtype=product), "instruction", device=chip).frame.rows(named=True)
    assert (row["dtype"], row["attainable"]) == (dtype, min(peak, 2 * chip.bandwidth))


def test_data_that_fits_a_faster_memory_has_its_bandwidth():
    chip = Device("cached", 1e15, 1e9, 1e12, "none", levels=(Level("L2", 50, 4e12), Level("L3", 100, 2e12)))
    sizes = {"small": 50.0, "middle": 100.0, "large": 200.0}
    rows = [(0, None, name, "loop fusion", 1000, 0.0, size) for name, size in sizes.items()]
    frame = tp.roofline(layers(*rows), "instruction", device=chip).frame
    least = {row["what"]: row["self_ps"] - row["headroom_ps"] for row in frame.rows(named=True)}
    assert least == {"small": 12, "middle": 50, "large": 200}
    twice = layers(*((*row[:-1], 2 * row[-1]) for row in rows), count=2)  # a run of each moves as much as before
    frame = tp.roofline(twice, "instruction", device=chip).frame
    assert {row["what"]: row["self_ps"] - row["headroom_ps"] for row in frame.rows(named=True)} == {
        **{"small": 25, "middle": 100, "large": 400}
    }


def test_parts_have_rows_where_the_run_knows_them():
    steps = layers(DENSE, NORM)
    with pytest.raises(TpunbError, match="the layers of the run have no part"):
        tp.roofline(steps, "part", device=UNIT)


def test_an_instruction_of_several_kernels_ran_once_and_the_longest_has_its_work():
    gemm, col = "Cijk_Ailk_Bljk", "Im3d2Col"
    call = (0, "conv", "cudnn-conv.1", "custom-call", 100, 80.0, 40.0)
    steps = layers(call, kernel=gemm)
    changed = {"kernel": col, "self_ps": 30, "flops": None, "bytes": None}
    other = steps.layers.with_columns(**{name: pl.lit(value, schema.LAYERS[name]) for name, value in changed.items()})
    both = Steps(steps.frame, steps.ops, read_layers=lambda: pl.concat([steps.layers, other]))
    names = ["count", "self_ps", "flops"]
    assert rows_of(both, "instruction", of=names) == {"cudnn-conv.1": (1, 130, 80.0)}
    assert rows_of(both, "kernel", of=names) == {gemm: (1, 100, 80.0), col: (1, 30, None)}
    assert rows_of(both, "library", of=names) == {"hipBLAS": (1, 100, 80.0), "MIOpen": (1, 30, None)}


@pytest.mark.parametrize(
    ("kernel", "hlo_op", "found"),
    [
        ("volta_sgemm_128x64_nn", None, "cuBLAS"),
        ("sm80_xmma_fprop_implicit_gemm_f16", None, "cuDNN"),
        ("void cudnn::bn_fw_tr_1C11_kernel", None, "cuDNN"),
        ("ncclDevKernel_AllReduce_Sum_bf16", None, "NCCL"),
        ("void at::native::elementwise_kernel<128>", None, "PyTorch"),
        ("void tensorflow::functor::FillPhiloxRandomKernelLaunch<Eigen::half>", None, "TensorFlow"),
        ("void Eigen::internal::EigenMetaKernel<Eigen::half>", None, "Eigen"),
        (None, "ynn_fusion.1", "YNNPACK"),
        ("loop_add_fusion", "loop_add_fusion", "XLA"),
        ("my_kernel", None, None),
        (None, None, None),
    ],
)
def test_libraries_by_the_names_of_kernels(kernel, hlo_op, found):
    assert library(kernel, hlo_op) == found
    assert library(None, "custom-call.1", category="custom-call") is None


@pytest.mark.parametrize(("size", "cause"), [(4097, "its sizes are misaligned"), (4096, "its shape does not say why")])
def test_a_product_far_from_its_roof_is_said(answers, tmp_path, size, cause):
    with gzip.open(answers / "tracelens/faults/gemm_03_compute_misaligned.json.gz", "rt") as file:
        published = file.read()
    trace = tmp_path / "trace.json"
    trace.write_text(published.replace("4097", str(size)))
    sentence = tp.advise(tp.load(trace, device="MI300X"))["sentence"][0]
    assert f"bf16[{size},{size}] takes 100 % of the phase's device time, 3.49 times its time at the roof" in sentence
    assert cause in sentence
