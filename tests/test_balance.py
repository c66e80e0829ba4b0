"""A workload at a balance: its width, its input of full size, and its threads on cores of their own."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optional import lazy
from warm_python import warm_python

from tpunb.errors import TpunbError
from tpunb.studies.paper import WORKLOADS, workload
from tpunb.studies.paper.workloads import balance

tf, keras = lazy("tensorflow"), lazy("keras")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the tests of this file write examples, once for all."""
    return tmp_path_factory.mktemp("records")


# -- widths


@pytest.mark.parametrize(
    ("wanted", "width"), [(1, 96), (4, 48), (96**2, 1), (0.25, 192), (17.0, 23), (100 * (1 + 1e-9), 10)]
)
def test_width_falls_with_the_root_of_the_balance(wanted, width):
    assert balance.width(wanted, 96) == width
    at = workload("resnet-imagenet", balance=wanted)
    assert at.spec.width == balance.width(wanted, 128) == round(128 / wanted**0.5)
    assert at.balance == (128 / at.spec.width) ** 2  # of a whole width
    assert workload("resnet-imagenet").balance is None


def test_a_balance_beyond_width_1_is_rejected():
    with pytest.raises(TpunbError, match=r"cannot reach balance 5000: its least width, 1, is balance 1600") as caught:
        workload("dcgan-cifar10", balance=5000)
    assert caught.value.hint == "use at most 1600"


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True])
def test_a_balance_that_is_none_is_rejected(wrong):
    with pytest.raises(ValueError, match="balance parameter of Workload must be above 0"):
        workload("dcgan-cifar10", balance=wrong)


def test_a_run_has_the_steps_that_are_given_and_its_share_of_the_data():
    whole, half = (workload(name).at_balance(4, epoch_steps=30).plan() for name in ("qanet-squad", "qanet-squad-half"))
    assert (whole.epochs, whole.epoch_steps, whole.examples) == (2, 30, 512)
    assert (half.epochs, half.epoch_steps, half.examples) == (2, 15, 256)
    assert workload("qanet-squad").at_balance(4).plan(1) == workload("qanet-squad", balance=4).plan(0)


# -- models


def weights(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("bert-squad", {"tokens": (128,), "segments": (128,)}),
        ("dcgan-mnist", {"image": (8, 8, 1)}),
        ("qanet-squad", {"context": (400, 300), "question": (50, 300)}),
        ("retinanet-coco", {"image": (640, 640, 3)}),
        ("resnet-imagenet", {"image": (224, 224, 3)}),
    ],
)
def test_the_width_is_that_of_the_model_and_its_input_stays(name, inputs):
    of = WORKLOADS[name]
    models = [of.at_balance((of.spec.UNIT / width) ** 2).spec.model(0.0) for width in (1, 3)]
    for model in models:
        given = keras.tree.flatten(getattr(model, "discriminator", model).input)
        assert {each.name: tuple(each.shape[1:]) for each in given} == inputs
    assert weights(models[1]) > weights(models[0])


@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "scalars"),  # of an example
    [
        ("bert-squad", {"tokens": (128,), "segments": (128,)}),
        ("dcgan-mnist", (28, 28, 1)),
        ("dcgan-cifar10", (32, 32, 3)),
        ("qanet-squad", {"context": (400, 300), "question": (50, 300)}),
        ("retinanet-coco", (640, 640, 3)),
        ("resnet-cifar10", (224, 224, 3)),
    ],
)
def test_a_narrow_model_learns_from_its_full_size_input(name, scalars, kept):
    of = WORKLOADS[name].at_balance(WORKLOADS[name].spec.UNIT ** 2, epoch_steps=1)
    of = replace(of, _run=replace(of.plan(), batch=2, examples=2))
    x, y = next(iter(of.training(folder=kept, naive=True)))
    assert keras.tree.map_structure(lambda each: tuple(each.shape[1:]), x) == scalars
    keras.utils.set_random_seed(0)
    model = of.spec.model(0.0)
    model.run_eagerly = True
    before = [each.numpy() for each in model.trainable_variables]
    losses = model.train_on_batch(x, y, return_dict=True)
    assert all(np.isfinite(value) for value in losses.values())
    changed = [(old != new.numpy()).any() for old, new in zip(before, model.trainable_variables, strict=True)]
    assert sum(changed) > len(changed) / 2


def batches(data):
    return [tf.nest.map_structure(lambda each: each.tolist(), batch) for batch in data.as_numpy_iterator()]


def test_both_forms_give_the_same_batches_and_work_in_one_private_thread(kept):
    of = workload("resnet-cifar10").at_balance(128**2, epoch_steps=2)
    naive, tuned = (of.training(folder=kept, naive=naive) for naive in (True, False))
    assert batches(naive) == batches(tuned)
    assert [data.options().threading.private_threadpool_size for data in (naive, tuned)] == [1, 1]
    optimization = naive.options().experimental_optimization
    assert (optimization.map_and_batch_fusion, optimization.inject_prefetch) == (False, False)
    assert WORKLOADS["resnet-cifar10"].training(folder=kept).options().threading.private_threadpool_size is None


def test_answers_of_questions_are_found_among_the_vectors(kept):
    x, y = next(iter(workload("qanet-squad", balance=128**2).training(folder=kept)))
    filled = np.any(x["context"].numpy() != 0, axis=-1)
    assert filled[:, 0].all()
    assert (np.diff(filled.astype(int), axis=1) <= 0).all()  # words, then zeros
    assert (filled[np.arange(len(filled)), y["end"].numpy()]).all()


# -- cores


class FakeMachine:
    """A machine with some cores, of which each pair shares a physical one if `hyperthreads`."""

    def __init__(self, monkeypatch, tmp_path, cores, *, hyperthreads=False, allowed=None):
        for core in range(cores):
            topology = tmp_path / f"cpu{core}" / "topology"
            topology.mkdir(parents=True)
            pair = core // 2 * 2
            (topology / "thread_siblings_list").write_text(f"{pair}-{pair + 1}\n" if hyperthreads else f"{core}\n")
        monkeypatch.setattr(balance, "_CORES", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed or range(cores)), raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)


def test_two_cores_are_used_of_many_and_named(monkeypatch, tmp_path):
    FakeMachine(monkeypatch, tmp_path, 8, allowed=[2, 3, 5])
    assert str(balance.choose()) == "core 2 computes, core 3 prepares input, of 3"


def test_the_two_cores_share_no_physical_one_if_there_are_others(monkeypatch, tmp_path):
    FakeMachine(monkeypatch, tmp_path, 8, hyperthreads=True)
    assert balance.choose() == balance.Cores(0, 2, 8)


def test_two_threads_of_one_core_are_better_than_none(monkeypatch, tmp_path):
    FakeMachine(monkeypatch, tmp_path, 2, hyperthreads=True)
    assert balance.choose() == balance.Cores(0, 1, 2)


def test_one_core_is_refused(monkeypatch, tmp_path):
    FakeMachine(monkeypatch, tmp_path, 4, allowed=[3])
    with pytest.raises(TpunbError, match=r"requires two processor cores, and this process may use one, number 3"):
        balance.choose()


def test_a_system_without_affinity_calls_is_named(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert balance.choose() == balance.Cores(None, None, 4)
    assert str(balance.choose()) == "not pinned: no affinity calls on this system"
    assert balance.strays(balance.choose()) == []


def test_a_device_of_its_own_leaves_threads_where_they_are():
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():  # as on a TPU
        assert str(balance.pin.__wrapped__()) == "not pinned: the device has its own"


TWO = hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1
PINNED = """
import os
import tensorflow as tf
from tpunb.studies.paper.workloads import balance
cores = balance.pin()
print(cores)
png = tf.io.encode_png(tf.zeros([64, 64, 3], tf.uint8))
def decode(number):
    return tf.image.resize(tf.io.decode_png(png), [32, 32]) + tf.cast(number, tf.float32)
data = tf.data.Dataset.range(10**9).map(decode, num_parallel_calls=2).batch(8).prefetch(2)
options = tf.data.Options()
options.threading.private_threadpool_size = 1
tf.function(lambda n: tf.reduce_sum(n), jit_compile=True)(tf.ones([3]))
before = {*os.listdir("/proc/self/task")}
numbers = iter(data.with_options(options))
next(numbers)
started = {*os.listdir("/proc/self/task")} - before
assert len(started) >= 2  # one prefetches, one decodes
assert {frozenset(os.sched_getaffinity(int(task))) for task in started} == {frozenset([cores.input])}
assert os.sched_getaffinity(0) == {cores.input}
computes = []
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm") as file:
        if file.read().strip() == "tf_Compute":
            computes.append(os.sched_getaffinity(int(task)))
assert computes, "they have another name now"
assert all(found == {cores.device} for found in computes)
assert balance.strays(cores) == []
os.sched_setaffinity(0, {cores.device, cores.input})
assert len(balance.strays(cores)) == 1
assert os.sched_getaffinity(0) == {cores.input}
"""


@pytest.mark.live
@pytest.mark.skipif(not TWO, reason="needs two cores, and affinity calls")
def test_threads_of_input_and_of_tensorflow_are_each_on_one_core():
    pytest.importorskip("tensorflow")
    env = os.environ | {"PYTHONPATH": str(Path(balance.__file__).parents[4])}
    done = subprocess.run([*warm_python(), "-c", PINNED], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "computes, core" in done.stdout


@pytest.mark.skipif(not TWO, reason="needs two cores, and affinity calls")
def test_tensorflow_that_has_started_is_refused():
    tf.constant(1)
    before = os.sched_getaffinity(0)
    with pytest.raises(TpunbError, match="TensorFlow has started its threads already"):
        balance.pin.__wrapped__()
    assert os.sched_getaffinity(0) == before
