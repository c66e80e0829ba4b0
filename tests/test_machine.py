"""Peaks of this machine's CPU."""

import pytest
from stand_in import StandIn

import tpunb as tp
from tpunb.analysis import DEVICES, Device, machine
from tpunb.analysis.roofline import device_of
from tpunb.errors import ProfileNotFound


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    """Name the processor, whose name Python asks a program for."""
    monkeypatch.setattr(machine.platform, "processor", lambda: "toy")


def test_this_cpu_has_peaks_and_levels_that_are_faster_the_smaller(monkeypatch):
    monkeypatch.setattr(machine, "_MOST_S", 0.0)  # one round
    monkeypatch.setattr(machine, "_TRIAL_S", 1e-4)
    monkeypatch.setattr(machine, "_WORKING_SETS", [2**16, 2**18])
    cpu = machine.measured()
    assert (cpu.dtype, cpu.cores, [*cpu.peaks]) == ("f32", 1, ["f64"])
    assert min(cpu.peak_flops, cpu.bandwidth, cpu.memory) > 0
    rates = [*(level.bandwidth for level in cpu.levels), cpu.bandwidth]
    assert rates == sorted(rates, reverse=True)


def test_a_working_set_is_a_level_if_no_larger_one_is_about_as_fast(monkeypatch):
    rates = {2**18: 50.0, 2**20: 100.0, 2**22: 40.0, 2**24: 39.0, 2**26: 10.0, 2**28: 20.0}
    flops = {("f32", 128): 1.0, ("f32", 256): 8.0, ("f32", 512): 7.0} | {("f64", size): 4.0 for size in (128, 256, 512)}
    monkeypatch.setattr(machine, "_best", lambda trials, until: {**rates, **flops})
    cpu = machine.measured()
    assert (cpu.peak_flops, cpu.peaks, cpu.bandwidth) == (8.0, {"f64": 4.0}, 20.0)
    assert [(level.capacity, level.bandwidth) for level in cpu.levels] == [(2**20, 100.0), (2**24, 39.0)]
    assert cpu.levels[0].name == "working set of 1024 KiB"


def test_rounds_alternate_and_each_trial_keeps_its_best(monkeypatch):
    times, ran = iter(range(100)), []
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(times))
    rates = {"a": iter([1.0, 3.0, 2.0, 2.0]), "b": iter([5.0, 4.0, 6.0, 1.0])}

    def trial(name):
        return lambda: ran.append(name) or next(rates[name])

    assert machine._best({name: trial(name) for name in rates}, 4) == {"a": 3.0, "b": 6.0}
    assert ran == ["a", "b"] * 3


def test_the_peaks_that_were_measured_for_a_run_are_its_roof(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_best", lambda trials, until: dict.fromkeys(trials, 2e12))
    with pytest.raises(ProfileNotFound, match="no run folder at"):
        machine.measured(tmp_path)
    with tp.capture(tmp_path, source=StandIn(), keep="none") as run:
        for number in range(2):
            with run.step(number):
                pass
    assert tp.load(tmp_path).stored.device is None
    cpu = machine.measured(tmp_path)
    kept = tp.load(tmp_path).stored.device
    assert kept == cpu
    assert device_of(tp.steps(tp.load(tmp_path))) == cpu
    (tmp_path / "device.json").write_text('{"name": 1}')
    with pytest.warns(UserWarning, match=r"device\.json is ignored"):
        assert tp.load(tmp_path).stored.device is None


def test_every_device_comes_back_from_its_json():
    for device in DEVICES.values():
        assert Device.from_json(device.to_json()) == device
