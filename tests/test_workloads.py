"""The paper's workloads: what Table I says comes out of them, they train, and a seed is a run."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from optional import lazy
from short_workloads import short

import tpunb as tp
from tpunb.errors import TpunbError
from tpunb.studies.paper import WORKLOADS, Workload, table_1, workload
from tpunb.studies.paper.workloads import bert, dcgan, qanet, resnet, retinanet
from tpunb.studies.paper.workloads.cost import cost
from tpunb.studies.paper.workloads.images import Images
from tpunb.studies.paper.workloads.sizes import Plan, between, rate
from tpunb.training.state import OPTIMIZER, digest
from tpunb.tuning.pipeline import Pipeline

tf, keras = lazy("tensorflow"), lazy("keras")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the tests of this file write examples, once for all."""
    return tmp_path_factory.mktemp("records")


def trained(of, folder, steps, *, run_eagerly=False, **how):
    model, data = of.build(folder=folder, **how)
    model.run_eagerly = run_eagerly
    losses = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(dict(logs)))
    model.fit(data.take(steps), callbacks=[note], shuffle=False, verbose=0)
    return losses


# ---- Table I


def test_table_1_equals_the_papers():
    table = table_1()
    assert table["workload"].to_list() == [
        *("bert-squad", "bert-mrpc", "bert-mnli", "bert-cola"),
        *("dcgan-cifar10", "dcgan-mnist"),
        *("qanet-squad", "retinanet-coco", "resnet-imagenet"),
    ]
    sizes = dict(table.select("dataset", "size_mib").iter_rows())
    assert {name: round(size, 2) for name, size in sizes.items()} == {
        **{"SQuAD": 422.27, "MRPC": 2.85, "MNLI": 430.61, "CoLA": 1.44},
        **{"CIFAR-10": 178.87, "MNIST": 56.21, "COCO": round(48.49 * 1024, 2), "ImageNet": round(143.38 * 1024, 2)},
    }
    assert dict(table.select("model", "parameters").iter_rows()) == {
        "BERT": "max seq length: 128\ntrain batch size: 32\nlearning rate: 2e-05\nnum train epochs: 3",
        "DCGAN": "batch size: 1024\nnum shards: 8\ntrain steps: 10000\ntrain steps per eval: 1000\n"
        "iterations per loop: 100\nlearning rate: 0.0002",
        "QANet": "train batch size: 32\nsteps per epoch: 20000\nnum epochs: 5",
        "RetinaNet": "train batch size: 64\nimage size: 640\nnum epochs: 15\nnum examples per epoch: 120000",
        "ResNet": "default network depth: 50\ntrain steps: 112590\ndefault batch size: 1024",
    }


def test_reduced_workloads_are_those_of_section_6c():
    reduced = {name: one for name, one in WORKLOADS.items() if one.reduced}
    assert [*reduced] == ["qanet-squad-half", "retinanet-coco-half", "resnet-cifar10"]
    for name in ("qanet-squad", "retinanet-coco"):
        whole, half = WORKLOADS[name], reduced[f"{name}-half"]
        for scale in (0, 1):
            assert abs(2 * half.plan(scale).examples - whole.plan(scale).examples) <= 1
            assert abs(2 * half.plan(scale).epoch_steps - whole.plan(scale).epoch_steps) <= 1
        assert half.plan(1).batch == whole.plan(1).batch


def weights(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        # 30522 + 512 + 2 rows, 12 layers of 7,087,872, a pooler, and two classes: 109,482,240 are BERT-Base's own
        (lambda: bert.classifier(bert.Size.at(1), 2), 109_482_240 + 2 * 768 + 2),
        (lambda: bert.span(bert.Size.at(1)), 109_482_240 - (768 * 768 + 768) + 2 * 768 + 2),
        (lambda: resnet.classifier(resnet.Size.at(1), 1000), 25_557_032),  # torchvision counts as many
        # torchvision has 34,014,999 for 91 classes, and counts no normalisation of the backbone
        (lambda: retinanet.detector(retinanet.Size.at(1), 90), 34_014_999 + 53_120 - 9 * (9 * 256 + 1)),
    ],
    ids=["bert-classes", "bert-span", "resnet-50", "retinanet-50"],
)
def test_a_model_at_scale_1_has_the_published_size(make, count):
    with keras.StatelessScope():  # shapes alone, no values
        assert weights(make()) == count


@pytest.mark.parametrize("scale", [0, 0.5, 1])
def test_output_shapes_are_right_at_any_scale(scale):
    with keras.StatelessScope():
        size = qanet.Size.at(scale)
        assert {one.shape for one in qanet.span(size).outputs} == {(None, size.context)}
        for images in (Images(32, 32, 10), Images(28, 28, 10, 1)):
            small = dcgan.Size.at(scale, images)
            shape = (None, images.height, images.width, images.channels)
            assert dcgan.generator(small).output_shape == dcgan.discriminator(small).input_shape == shape
        side = retinanet.Size.at(scale).backbone.image
        cells = sum((side // 2**level) ** 2 for level in range(3, 8))
        shapes = [one.shape for one in retinanet.detector(retinanet.Size.at(scale), 7).outputs]
        assert sorted(shapes) == [(None, 9 * cells, 4), (None, 9 * cells, 7)]


# ---- scales


def test_between_starts_and_ends_at_its_bounds():
    assert [between(3, 112_590, scale) for scale in (0, 1)] == [3, 112_590]
    assert between(16, 64, 0.4, of=8) % 8 == 0
    assert rate(1e-3, 2e-5, 0) == 1e-3
    assert rate(1e-2, 1e-4, 0.5) == pytest.approx(1e-3)


@pytest.mark.parametrize("name", WORKLOADS)
def test_plans_grow_with_the_scale(name):
    plans = [WORKLOADS[name].plan(scale) for scale in (0, 0.3, 0.7, 1)]
    for small, large in pairwise(plans):
        for what in ("batch", "epochs", "epoch_steps", "eval_steps", "examples"):
            assert 1 <= getattr(small, what) <= getattr(large, what), what
    assert plans[0].steps >= 200, "there is something to cut into phases"


def test_a_plan_counts_steps_and_records():
    plan = Plan(batch=4, epochs=3, epoch_steps=10, eval_steps=5, examples=16)
    assert plan.steps == 30
    assert [plan.steps_of(split) for split in ("train", "eval")] == [10, 5]
    assert [plan.records_of(split) for split in ("train", "eval")] == [16, 16]


# ---- names and arguments


def test_workloads_are_found_by_name_and_unknown_names_rejected():
    assert workload("ResNet-ImageNet") is WORKLOADS["resnet-imagenet"]
    assert isinstance(workload("bert-cola"), Workload)
    with pytest.raises(TpunbError, match="no workload is named 'bert-mrcp'") as raised:
        workload("bert-mrcp")
    assert raised.value.hint == "use 'bert-mrpc'"
    with pytest.raises(TpunbError, match="�") as raised:
        workload("\x1b[31m")
    assert "dcgan-mnist" in raised.value.hint


@pytest.mark.parametrize("how", [{"scale": 2}, {"scale": -0.1}, {"scale": True}, {"seed": -1}, {"seed": 0.5}])
def test_wrong_arguments_are_rejected_before_anything_is_written(how, tmp_path):
    with pytest.raises(ValueError, match="parameter of Workload must be"):
        workload("bert-cola").build(folder=tmp_path, **how)
    assert not any(tmp_path.iterdir())


# ---- training


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_each_workload_trains(name, kept):
    losses = trained(short(name), kept, 2)
    assert len(losses) == 2
    assert all(np.isfinite(value) for logs in losses for value in logs.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dcgan-cifar10", "bert-squad", "qanet-squad", "retinanet-coco"])
def test_a_model_trains_eagerly_and_its_step_is_traced(name, kept):
    """Apart from each other, as a graph is optimized and run in twice the time of both."""
    model, data = short(name).build(folder=kept)
    model.run_eagerly = True
    history = model.fit(data.take(2), shuffle=False, verbose=0).history
    assert all(np.isfinite(value) for (value,) in history.values())
    assert cost(model, data).flops > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("bert-mrpc", 26), ("resnet-cifar10", 16)])
def test_labels_can_be_learned(name, steps, tmp_path):
    losses = [logs["loss"] for logs in trained(workload(name), tmp_path, steps)]  # means up to each step
    assert losses[-1] < 0.9 * losses[3]


@pytest.mark.live
def test_a_seed_reproduces_a_run_and_another_differs(kept, tmp_path):
    of = short("dcgan-mnist")
    once = trained(of, kept, 2, run_eagerly=True)
    assert trained(of, tmp_path, 2, naive=True, run_eagerly=True) == once
    other, same = of.training(folder=tmp_path, seed=1), of.training(folder=kept)
    assert batches(other, 1) != batches(same, 1)


def batches(data, count=3):
    return [tf.nest.map_structure(lambda one: one.tolist(), batch) for batch in data.take(count).as_numpy_iterator()]


@pytest.mark.parametrize("name", ["bert-squad", "qanet-squad", "retinanet-coco-half", "resnet-cifar10", "dcgan-mnist"])
def test_the_naive_form_gives_the_same_batches(name, kept):
    tuned, naive = (short(name).training(folder=kept, naive=naive) for naive in (False, True))
    assert batches(tuned) == batches(naive)
    assert len(tuned) == len(naive) == 3


def test_epochs_are_shuffled_differently(kept):
    of = short("dcgan-mnist")
    data = of.training(folder=kept)
    assert batches(data, 1) != batches(data, 1)
    asked = of.evaluation(folder=kept)
    assert batches(asked) == batches(asked)


@pytest.mark.parametrize("name", ["bert-mrpc", "qanet-squad", "retinanet-coco-half", "resnet-cifar10", "dcgan-mnist"])
def test_the_naive_form_can_be_tuned(name, kept):
    data = short(name).training(folder=kept, naive=True)
    parameters = {parameter.name.split("(")[0]: parameter for parameter in Pipeline(data).parameters}
    for parameter_name, present in (("interleave:1 parallel calls", 1), ("end prefetch", 0)):
        assert (parameters[parameter_name].current, parameters[parameter_name].verdict) == (present, "safe")
    (mapped,) = (
        parameter
        for parameter in Pipeline(data).parameters
        if parameter.name.startswith("map:") and "calls" in parameter.name
    )
    assert (mapped.current, mapped.verdict) == (1, "safe")


@pytest.mark.live
def test_a_job_takes_steps_and_is_restored(kept):
    job = short("dcgan-mnist").job(folder=kept, naive=True)
    assert isinstance(job, tp.tuning.Job)
    assert repr(job) == "Job(dcgan-mnist, not built yet)"
    training, data = job.training, job.parts[1]
    state = training.state()
    first = digest(training.values([training.execute(iter(data))]))
    training.restore(state)
    # the shuffle of the data goes on: the same batch is a new dataset's first
    again = short("dcgan-mnist").training(folder=kept, naive=True)
    training.restore(state)
    assert digest(training.values([training.execute(iter(again))])) == first


# ---- whole runs


@pytest.mark.live
@pytest.mark.parametrize(("name", "every"), [("dcgan-mnist", 1), pytest.param("bert-cola", 2, marks=pytest.mark.slow)])
def test_a_whole_run_evaluates_and_saves(name, every, tmp_path):
    history = short(name, every).fit(tmp_path).history
    losses = {key: values for key, values in history.items() if "loss" in key}
    assert {len(values) for key, values in losses.items() if not key.startswith("val_")} == {2}
    assert {len(values) for key, values in losses.items() if key.startswith("val_")} == {2 // every}
    assert all(np.isfinite(value) for values in losses.values() for value in values)
    saved = tp.checkpoints(tmp_path / "checkpoints")
    assert [one.step for one in saved] == [3, 6]
    assert all(OPTIMIZER in one.holds for one in saved)


def test_a_folder_of_real_data_is_read(kept, tmp_path):
    of = short("bert-cola")
    data = of.training(folder=kept)
    (written,) = kept.glob("bert-cola-*")
    assert batches(of.training(data=written, folder=tmp_path)) == batches(data)
    assert not any(tmp_path.iterdir())
    with pytest.raises(TpunbError, match="contains no records of the split 'train'") as raised:
        workload("bert-cola").build(data=tmp_path)
    assert "train-00000-of-00004.tfrecord" in raised.value.hint
