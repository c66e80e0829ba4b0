"""Peaks of this machine's CPU."""

import re

import pytest
from stand_in import StandIn

import tpunb as tp
from tpunb.analysis import DEVICES, Device, machine
from tpunb.analysis.roofline import device_of
from tpunb.errors import ProfileNotFound
from tpunb.frames import hardware


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    """Name the CPU, of which nothing has been measured in this process."""
    monkeypatch.setattr(machine, "this_cpu", lambda: "CPU toy (R), 2 threads")
    monkeypatch.setattr(machine, "_MEASURED", {})


@pytest.fixture
def no_arrays(monkeypatch):
    """Make no arrays for trials that are not run: those of the largest working set take a second."""
    for name in ("_product", "_stream"):
        monkeypatch.setattr(machine, name, lambda *_: None)


def test_this_cpu_has_peaks_and_levels_that_are_faster_the_smaller(monkeypatch):
    monkeypatch.setattr(machine, "_MOST_S", 0.0)  # one round
    monkeypatch.setattr(machine, "_TRIAL_S", 1e-4)
    monkeypatch.setattr(machine, "_WORKING_SETS", [2**16, 2**18])
    cpu = machine.measured()
    assert (cpu.dtype, cpu.cores, [*cpu.peaks]) == ("f32", 1, ["f64"])
    assert min(cpu.peak_flops, cpu.bandwidth, cpu.memory) > 0
    rates = [*(level.bandwidth for level in cpu.levels), cpu.bandwidth]
    assert rates == sorted(rates, reverse=True)


def test_a_working_set_is_a_level_if_no_larger_one_is_about_as_fast(monkeypatch, no_arrays):
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
    monkeypatch.setattr(machine, "_SETTLED_S", 100)
    rates = {"a": iter([1.0, 3.0, 2.0, 2.0]), "b": iter([5.0, 4.0, 6.0, 1.0])}

    def trial(name):
        return lambda: ran.append(name) or next(rates[name])

    assert machine._best({name: trial(name) for name in rates}, 4) == {"a": 3.0, "b": 6.0}
    assert ran == ["a", "b"] * 3


def test_rounds_end_a_while_after_the_last_rate_that_rose(monkeypatch):
    times, rates = iter(range(100)), iter([10.0, 20.0, 20.1, 20.3, 20.2, 20.2, 20.2])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(machine, "_SETTLED_S", 2)
    assert machine._best({"a": lambda: next(rates)}, 100) == {"a": 20.3}  # 1.5 % above 20, but 1 % above 20.1
    assert [*rates] == [20.2, 20.2]


def test_peaks_are_measured_once_and_kept_for_the_user(tmp_path, monkeypatch, no_arrays):
    monkeypatch.setenv("TPUNB_CACHE", str(tmp_path))
    rates = iter([1e12, 2e12, 3e12])
    monkeypatch.setattr(machine, "_best", lambda trials, until: dict.fromkeys(trials, next(rates)))
    cpu, note = machine.kept()
    assert cpu.peak_flops == 1e12
    assert re.fullmatch(r"peaks of this CPU measured in \d+ s, kept", note)
    assert machine.kept() == (cpu, "peaks of this CPU measured earlier")
    machine._MEASURED.clear()  # as in another process
    assert machine.kept() == (cpu, "peaks of this CPU measured earlier")
    (file,) = tmp_path.rglob("*.json")
    assert file.name == "CPU-toy-R-2-threads.json"
    assert machine.measured().peak_flops == 2e12  # on demand, and kept
    assert Device.from_json(file.read_bytes()).peak_flops == machine.kept()[0].peak_flops == 2e12
    machine._MEASURED.clear()
    file.write_text('{"name": 1')
    assert machine.kept()[0].peak_flops == 3e12
    assert Device.from_json(file.read_bytes()).peak_flops == 3e12


def test_peaks_are_kept_in_the_process_where_there_is_no_cache(monkeypatch, no_arrays):
    monkeypatch.setattr(machine, "_best", lambda trials, until: dict.fromkeys(trials, 2e12))
    assert machine.kept()[1].startswith("peaks of this CPU measured in")
    assert machine.kept()[1] == "peaks of this CPU measured earlier"


def test_this_cpu_has_a_model_and_threads():
    assert re.fullmatch(r"CPU \S.*, [0-9]+ threads?", hardware.this_cpu())


def test_the_peaks_that_were_measured_for_a_run_are_its_roof(tmp_path, monkeypatch, no_arrays):
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
