"""Recording a workload, and reading it back."""

import re

import pytest
from optional import lazy
from short_workloads import short
from stand_in import StandIn

import tpunb as tp
from tpunb.analysis import Device
from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.studies.paper import record, recorded, recorded_balances
from tpunb.studies.paper.workloads import catalogue
from tpunb.studies.paper.workloads.cost import Cost

tf = lazy("tensorflow")

EPOCH = ["train"] * 3 + ["eval"] * 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A workload's run of ten steps, on a CPU of known peaks."""
    pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "WORKLOADS", {"dcgan-mnist": short("dcgan-mnist")})
        patch.setattr(record.machine, "measured", lambda: Device("CPU", 2e12, 1e10, 1e9, "test"))
        record.record("dcgan-mnist", folder)
    return folder


@pytest.mark.live
def test_the_truth_agrees_with_the_capture(runs):
    run = recorded("dcgan-mnist", runs)
    assert run.truth["did"].to_list() == run.steps.frame["kind"].to_list() == 2 * EPOCH
    assert run.truth["step"].to_list() == run.steps.frame["step"].to_list()


@pytest.mark.live
def test_metadata_describe_the_recording(runs):
    run = recorded("dcgan-mnist", runs)
    assert run.workload.name == run.name == "dcgan-mnist"
    assert run.metadata["what"] == "DCGAN on MNIST"
    assert run.metadata["again"] == "python -m tpunb.studies.paper.record --scale 0 dcgan-mnist"
    assert run.metadata["seconds"] > 0
    assert run.metadata["matrix_flops"] == 2e12


@pytest.mark.live
def test_costs_of_training_and_evaluation_are_recorded(runs):
    costs = recorded("dcgan-mnist", runs).costs
    assert set(costs) == {"train", "eval"}
    assert all(isinstance(cost, Cost) for cost in costs.values())
    assert costs["train"].flops > costs["eval"].flops > 0


@pytest.mark.live
def test_only_statistics_are_kept(runs):
    assert tp.load(runs / "dcgan-mnist").observed > 0
    kinds = {path.suffix for path in (runs / "dcgan-mnist").rglob("*") if path.is_file()}
    assert kinds == {".json", ".parquet", ".toml"}
    assert b"/tmp" not in (runs / "dcgan-mnist" / "about.toml").read_bytes()


def test_a_run_without_workload_metadata_is_rejected(tmp_path):
    with pytest.raises(ProfileNotFound):
        recorded("bert-mrpc", tmp_path)
    with tp.capture(tmp_path / "bert-mrpc", source=StandIn(), keep="none") as run, run.step(0):
        pass
    with pytest.raises(ProfileNotFound, match=r"has no about\.toml") as caught:
        recorded("bert-mrpc", tmp_path)
    assert "tpunb.studies.paper.record" in caught.value.hint
    with pytest.raises(TpunbError, match="no workload is named 'bert'"):
        recorded("bert", tmp_path)
    with pytest.raises(ProfileNotFound, match="has no runs at balances"):
        recorded_balances(tmp_path)


@pytest.mark.live
def test_the_command_records_and_prints_the_folder(runs, monkeypatch, capsys):
    given = []
    monkeypatch.setattr(record, "record", lambda *names, **options: given.append((names, options)) or runs / names[0])
    record.main(["dcgan-mnist", "--to", "there", "--tpu", "local"])
    options = {"scale": 0.0, "data": None, "tpu": "local", "source": None}
    assert given == [(("dcgan-mnist", "there"), options)]
    assert re.fullmatch(r".*dcgan-mnist: Steps\(10 steps, .*\), \d+ kB\n", capsys.readouterr().out)


def test_the_command_lists_the_names(capsys):
    with pytest.raises(SystemExit):
        record.main(["--help"])
    message = capsys.readouterr().out
    assert all(name in message for name in (*catalogue.WORKLOADS, "--tpu", "--address"))


@pytest.mark.live  # a capture begins, with the profiler of this process if no other has
def test_a_folder_that_is_not_a_run_is_not_replaced(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(catalogue, "WORKLOADS", {"dcgan-mnist": short("dcgan-mnist")})
    (tmp_path / "dcgan-mnist").mkdir()
    (tmp_path / "dcgan-mnist" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="which holds something else"):
        record.record("dcgan-mnist", tmp_path)
    assert (tmp_path / "dcgan-mnist" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("tpu", "address", "source"),
    [
        (None, None, "None"),
        ("local", None, "None"),
        (None, "10.0.0.2:8466,10.0.0.3:8466", "Address('10.0.0.2:8466', '10.0.0.3:8466')"),
        ("my-tpu", "10.0.0.2:9012", "Address('10.0.0.2:9012')"),
        ("my-tpu", None, "TPU('my-tpu')"),
    ],
)
def test_the_source_follows_the_options(tpu, address, source):
    assert repr(record.source_of(tpu, address)) == source


@pytest.mark.live
def test_a_workload_trains_under_a_strategy(monkeypatch, tmp_path):
    """As on a Cloud TPU, whose strategy is found by address: here one of a device that is there."""
    seen = []

    def stand_in(tpu):
        seen.append(tpu)
        return tf.distribute.OneDeviceStrategy("/cpu:0").scope()

    monkeypatch.setattr(record, "strategy", stand_in)
    monkeypatch.setattr(catalogue, "WORKLOADS", {"dcgan-mnist": short("dcgan-mnist")})
    made = record.record("dcgan-mnist", tmp_path, tpu="my-tpu")
    assert seen == ["my-tpu"]
    assert recorded("dcgan-mnist", tmp_path).metadata["device"] == "TPU my-tpu"
    assert len(tp.steps(tp.load(made))) == 10
