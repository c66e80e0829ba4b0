"""Rates in trackers, read back by their own readers."""

import os
import warnings
from types import SimpleNamespace

import pytest
from capture_loops import train
from optional import lazy

import tpunb as tp
from tpunb.profiler import trackers
from tpunb.profiler.session import Status
from tpunb.profiler.trackers import Trackers, live_metrics

tf, mlflow, wandb, parser = (lazy(name) for name in ("tensorflow", "mlflow", "wandb", "prometheus_client.parser"))
METRICS = {"workload/goodput_time": 12.5, "tpunb/tokens_per_second": 4096.0}


def test_names_of_trackers_are_checked_at_once():
    with pytest.raises(ValueError, match="to parameter of capture must be a list of tensorboard, mlflow"):
        Trackers(["aim"], None)
    with pytest.raises(ValueError, match="Got 'mlflow' instead"):
        Trackers("mlflow", None)
    assert not Trackers([], None)


@pytest.mark.live
def test_a_verdict_that_cannot_be_made_ends_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr("tpunb.analysis.report", lambda _: {}["no such thing"])
    with (
        pytest.warns(RuntimeWarning, match="the trackers get no verdict: KeyError"),
        tp.capture(tmp_path / "run", to=["prometheus"]) as run,
    ):
        train(run, range(3))
    assert tp.load(tmp_path / "run").state == "finished"


def test_prometheus_gets_a_text_file(tmp_path):
    sender = Trackers(["prometheus"], tmp_path / 'run"a')
    sender.send(METRICS, 5)
    sender.send({**METRICS, "tpunb/tokens_per_second": 5000.0}, 9, "Healthy.")
    text = (tmp_path / 'run"a' / "prometheus.prom").read_text()
    samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
    assert {(each.name, each.labels["run"], each.value) for each in samples} == {
        ("workload_goodput_time", "run'a", 12.5),
        ("tpunb_tokens_per_second", "run'a", 5000.0),
    }


def test_tensorboard_gets_scalars_and_the_verdict_by_tensorflow(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "loaded", lambda name: tf if name == "tensorflow" else None)
    _ = lazy("tensorboard.version").VERSION  # without which TensorFlow writes none
    Trackers([f"tensorboard:{tmp_path / 'events'}"], None).send(METRICS, 7, "Healthy.")
    (path,) = (tmp_path / "events").iterdir()
    found = {
        value.tag: (event.step, tf.make_ndarray(value.tensor).item())
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert found["tpunb/tokens_per_second"] == (7, 4096.0)
    assert found["tpunb/verdict"] == (7, b"Healthy.")


def test_mlflow_gets_metrics_in_the_active_run_of_another_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/m.db" if os.environ.get("MLFLOW_SQL") else (tmp_path / "m").as_uri())
    from threading import Thread

    sender = Trackers(["mlflow"], None)
    with mlflow.start_run() as run:
        thread = Thread(target=sender.send, args=(METRICS, 3))
        thread.start()
        thread.join()
        sender.send(METRICS, 4, "Healthy.")
    found = mlflow.MlflowClient().get_run(run.info.run_id)
    assert found.data.metrics["tpunb/tokens_per_second"] == 4096
    assert found.data.tags["tpunb/verdict"] == "Healthy."
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "tpunb/tokens_per_second")
    assert [metric.step for metric in history] == [3, 4]


@pytest.mark.live
def test_wandb_gets_metrics_without_a_step_of_its_own(tmp_path, monkeypatch):
    for name in ("WANDB_SILENT", "WANDB_MODE"):
        monkeypatch.setenv(name, {"WANDB_SILENT": "true", "WANDB_MODE": "offline"}[name])
    with wandb.init(dir=tmp_path, project="toy") as run:
        sender = Trackers(["wandb"], None)
        before = run.step
        sender.send(METRICS, 3)
        run.log({"loss": 1.0})
        sender.send(METRICS, 4, "Healthy.")
        assert run.step == before + 1
        assert run.summary["tpunb/verdict"] == "Healthy."
        assert run.summary["tpunb/tokens_per_second"] == 4096


def test_a_tracker_that_fails_costs_one_line_and_gets_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "loaded", lambda _: None)
    sender = Trackers(["mlflow", "wandb", "tensorboard", f"prometheus:{tmp_path / 'a.prom'}"], None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sender.send(METRICS, 1)
        sender.send(METRICS, 2)
    lines = [str(each.message) for each in caught]
    assert [line.partition(" ")[0] for line in lines] == ["mlflow", "wandb", "tensorboard"]
    assert lines[0].startswith("mlflow gets no rates: the program has not imported a client of mlflow")
    assert "\n" not in "".join(lines)
    assert (tmp_path / "a.prom").is_file()


def test_live_metrics_have_the_names_of_a_report():
    status = Status(9, None, None, 0, 0, 0, 0.0, None, 10.0, "running", productive=0.5, samples_per_s=8.0)
    found = live_metrics(status)
    assert found["workload/goodput_time"] == found["workload/badput_time"] == 5.0
    assert "tpunb/tokens_per_second" not in found
    assert {*found} <= {*tp.report(tp.sample("keras_cnn")).to_metrics(), "tpunb/samples_per_second"}
    assert live_metrics(SimpleNamespace(seconds=1.0, productive=None, samples_per_s=None, tokens_per_s=None)) == {
        "workload/total_elapsed_time": 1.0
    }


@pytest.mark.live
def test_a_capture_sends_its_verdict_at_the_end(tmp_path):
    path = tmp_path / "node" / "train.prom"
    with tp.capture(tmp_path / "run", to=[f"prometheus:{path}"]) as run:
        for number in range(5):
            with run.step(number):
                sum(range(1000))
    assert "tpunb_goodput{" in path.read_text()
