"""Advice for trainings on many devices: weight update, evaluation, batch per device, startup, straggling hosts."""

import string
from dataclasses import replace

import pod_tables
import polars as pl
import pytest
from advised_runs import BUSY, accounted, labelled, of_run, phased
from pod_jobs import TWO
from simulate.pod import Fault, pod

import tpunb as tp
from tpunb import schema
from tpunb.analysis import CAUSES, weight_update_ps
from tpunb.analysis.advice import advise
from tpunb.analysis.phase_metrics import phase_metrics
from tpunb.analysis.scale_metrics import scale_metrics
from tpunb.analysis.stragglers import Hosts
from tpunb.testing import toy_layers

REDUCE = [("all-reduce", "device", "all-reduce", 0.1), ("fusion", "device", None, 0.9)]
RESNET = {"weights": "25600000", "optimizer": "LARS", "device kind": "TPU v3"}  # 1.593 ms an update


def on_devices(phases, counts, **facts):
    """Return phases whose steps use so many devices each, with facts of the run."""
    steps = phases.steps
    rows = [
        {
            "host": host,
            "step": step,
            "device": f"/device:TPU:{n}",
            "device_ps": int(n < used),
            "dur_ps": 1,
            "start_ps": 0,
        }
        for (host, step), used in zip(steps.frame.select("host", "step").rows(), counts, strict=True)
        for n in range(8)
    ]
    devices = pl.DataFrame(rows, schema=schema.DEVICES)
    return labelled(replace(steps, devices=devices, metadata=facts), phases.labels.to_list())


def advice(phases, rule, **options):
    rows = advise(phases, **options).filter(rule=rule).to_dicts()
    return rows[0] if rows else None


def test_every_cause_of_devices_has_known_sums():
    known = {*scale_metrics(phase_metrics(phased("a")), phased("a")).columns}
    for cause in CAUSES:
        if cause.of == "devices":
            fields = {field for _, field, _, _ in string.Formatter().parse(cause.sentence) if field}
            assert {*cause.needs, *fields} <= known


# weight update


def test_the_modelled_weight_update_is_that_of_the_paper():
    resnet, transformer = (
        weight_update_ps(25_600_000, "lars", "TPU v3"),
        weight_update_ps(210_000_000, "Adam", "TPU v3"),
    )
    assert resnet / 1e9 == pytest.approx(1.59, abs=0.005)  # ms
    assert resnet / 25.2e9 == pytest.approx(0.063, abs=0.0005)
    assert transformer / 1e9 == pytest.approx(13.1, abs=0.05)
    assert transformer / 33.9e9 == pytest.approx(0.39, abs=0.005)
    assert weight_update_ps(10**6, "momentum", "TPU v4") == pytest.approx(4 * 10**6 * 5 / 1200e9 * 1e12)  # one core
    assert weight_update_ps(10**6, "adafactor", "TPU v3") is None
    with pytest.raises(ValueError, match="unknown device"):
        weight_update_ps(10**6, "adam", "TPU v99")


def replicated(ms="y", ops=REDUCE, devices=8, **facts):
    return on_devices(phased(ms * 2, ops={ms: ops}, **{ms: BUSY}), [devices] * 2, **{**RESNET, **facts})


def test_a_replicated_weight_update_saves_all_but_one_share():
    row = advice(replicated(), "replicated update")  # 1.593 of 25 ms
    assert row["saves"] == pytest.approx(1.593 / 25 * 7 / 8, rel=1e-3)
    assert "The weight update takes 6.37 % of the phase's step time (modelled) on each of 8 devices" in row["sentence"]
    assert advice(replicated(devices=2), "replicated update")["saves"] == pytest.approx(1.593 / 25 / 2, rel=1e-3)


@pytest.mark.parametrize(
    "phases",
    [
        replicated(devices=1),
        replicated(ops=[*REDUCE, ("reduce-scatter.1", "device", None, 0.1)]),  # it is sharded
        replicated(ops=[("fusion", "device", None, 0.9)]),  # nothing is reduced
        replicated(ops=[("all-reduce", "host", None, 0.9), ("fusion", "device", None, 0.9)]),
        replicated(weights=""),
        replicated(weights="many"),
        replicated(optimizer="Adafactor"),
        replicated(**{"device kind": "TPU v99"}),
        replicated(weights="2000000"),  # 0.5 % of the step
        replicated(ms="a"),  # 1.593 of 1 ms: the model does not hold
        on_devices(phased("yy", ops={"y": REDUCE}, kinds={"y": "eval"}, y=BUSY), [8, 8], **RESNET),
        phased("yy", ops={"y": REDUCE}, y=BUSY),  # without devices
    ],
    ids=range(12),
)
def test_no_advice_on_an_update_that_is_small_sharded_or_unknown(phases):
    assert advice(phases, "replicated update") is None


def with_layers(parts):
    """Return phases of toy layers on 4 devices, whose rows have these parts."""
    toy = toy_layers(2)
    rows = toy.layers.with_columns(part=pl.when(pl.col("layer") == "dense").then(pl.lit(parts)))
    ops = pl.DataFrame(
        [("toy", step, "AllReduce", "device", None, 1, 10, 10) for step in (0, 1)], schema=schema.OPS, orient="row"
    )
    toy = replace(toy, read_layers=lambda: rows, ops=pl.concat([toy.ops, ops]))
    return on_devices(labelled(toy, [0, 0]), [4, 4], **toy.metadata, weights="1000000000", optimizer="adam")


def test_a_measured_update_replaces_the_model():
    phases = with_layers("update")
    layers = phases.steps.layers
    share = layers.filter(layer="dense")["self_ps"].sum() / layers["self_ps"].sum() * 0.5  # the device is half busy
    row = advice(phases, "replicated update", roof=tp.roofline(phases))
    assert row["saves"] == pytest.approx(share * 3 / 4, rel=1e-6)
    assert "(measured) on each of 4 devices" in row["sentence"]
    assert advice(with_layers("forward"), "replicated update", roof=tp.roofline(with_layers("forward"))) is None
    assert advice(with_layers(None), "replicated update", roof=tp.roofline(with_layers(None))) is None  # 8 s of 2 ms


# evaluation


def test_evaluation_on_fewer_devices_could_be_distributed():
    phases = on_devices(phased("aaab", kinds={"b": "eval"}), [8, 8, 8, 2])
    row = advice(phases, "undistributed evaluation")
    assert row["saves_ps"] == 2e9 * 6 / 8
    assert "Evaluation uses 2 of the 8 devices that train" in row["sentence"]


@pytest.mark.parametrize(
    "phases",
    [
        on_devices(phased("aaab", kinds={"b": "eval"}), [8, 8, 8, 8]),
        on_devices(phased("aaab", kinds={"b": "predict"}), [8, 8, 8, 2]),
        on_devices(phased("bb", kinds={"b": "eval"}), [2, 2]),  # how many train is unknown
        phased("aaab", kinds={"b": "eval"}),  # devices are unknown
        on_devices(phased("aaab", kinds={"b": "eval"}, traced="fffn"), [8, 8, 8, 2]),
    ],
    ids=range(5),
)
def test_no_advice_on_evaluation_that_is_distributed_or_unknown(phases):
    assert advice(phases, "undistributed evaluation") is None


# batch per device


def small_batch(batch="16", devices=4, **facts):
    toy = replace(toy_layers(2), name="run")
    return on_devices(labelled(toy, [0, 0]), [devices] * 2, **{**toy.metadata, "batch": batch, **facts})


def test_a_small_batch_left_of_the_ridge_could_be_partitioned():
    phases = small_batch()
    roof = tp.roofline(phases, device=replace(tp.analysis.DEVICES["H100 SXM"], bandwidth=100e9))  # ridge at 9,890
    row = advice(phases, "small batch per device", roof=roof)
    assert row["saves_ps"] is None  # what the memory would then move is unknown
    assert "With 4 examples per device its operations do" in row["sentence"]
    assert "FLOP/byte, left of the ridge at 9890" in row["sentence"]
    assert advice(phases, "small batch per device") is None  # without a roofline


@pytest.mark.parametrize(
    ("phases", "bandwidth"),
    [(small_batch(), 1e15), (small_batch("256"), 100e9), (small_batch("None"), 100e9), (small_batch(devices=1), 100e9)],
    ids=["right of the ridge", "large batch", "unknown batch", "one device"],
)
def test_no_advice_on_a_batch_that_is_large_or_unknown(phases, bandwidth):
    roof = tp.roofline(phases, device=replace(tp.analysis.DEVICES["H100 SXM"], bandwidth=bandwidth))
    assert advice(phases, "small batch per device", roof=roof) is None


# hosts


def job(*rows, span_ps=4 * 10**9):
    """Return Hosts of (host, named, costs_ps, cause)."""
    columns = ("host", "named", "costs_ps", "cause")
    frame = pl.DataFrame([dict(zip(columns, row, strict=True)) for row in rows], schema=schema.HOSTS)
    return Hosts(frame, pl.DataFrame(schema=schema.CRITICAL), pl.DataFrame(schema=schema.LATENESS), span_ps)


def test_the_host_that_costs_most_is_named_with_its_cause():
    hosts = job(("h2", True, 400_000_000, "input"), ("h1", True, 10**8, "compute"), ("h3", False, 10, None))
    row = advice(phased("aab"), "straggling host", hosts=hosts)
    assert (row["phase"], row["saves_ps"], row["saves"]) == (None, 400_000_000, pytest.approx(0.1))
    assert row["sentence"] == ("Host h2 delays the others by 0.4 ms of 4 ms step time (cause: input).")


@pytest.mark.parametrize(
    "rows",
    [[], [("h1", False, 10**9, None)], [("h1", True, None, "input")], [("h1", True, 30_000_000, "input")]],
    ids=["no hosts", "within the spread", "unknown cost", "0.75 %"],
)
def test_hosts_that_cost_little_or_nothing_known_get_no_advice(rows):
    assert advice(phased("aab"), "straggling host", hosts=job(*rows)) is None


def test_the_slow_host_of_a_simulated_pod_is_named():
    made = pod(TWO, hosts=16, steps=40, seed=0, faults=[Fault("slow chip", (3,), 0.2)])
    hosts = tp.hosts(pod_tables.job_steps(made))
    row = advice(phased("aab"), "straggling host", hosts=hosts)
    worst = hosts.frame.row(0, named=True)
    assert f"Host {worst['host']} delays the others by" in row["sentence"]
    assert "(cause: compute)" in row["sentence"]
    assert row["saves"] == pytest.approx(worst["costs_ps"] / hosts.span_ps)


def test_something_else_is_no_hosts():
    with pytest.raises(TypeError, match="hosts parameter of advise must be Hosts"):
        advise(phased("a"), hosts=pl.DataFrame({"host": ["a"]}))


def test_a_startup_shorter_than_the_training_gets_no_advice():
    assert "long startup" not in of_run(accounted((41, 30, "program startup", "loading")))
