"""Fits of a Keras PyDataset: resumed bit for bit where batches depend on their index, else inexact with the reason."""

import random
import warnings

import numpy as np
import pytest
from exact_fits import BATCH, refuses, resumes, rows, saved, trained
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.training import py_dataset
from tpunb.training.py_dataset import PyDatasetState

tf, data = lazy("tensorflow"), lazy("py_datasets")


def seeded(batches, **more):
    random.seed(1)
    np.random.seed(1)
    return trained(batches, **more)


def validated_by_itself():
    batches = data.Permuted()
    return seeded(batches, validation_data=batches)


CELLS = {
    "shuffled": lambda: seeded(data.Rows()),
    "permuted": lambda: seeded(data.Permuted()),
    "by workers": lambda: seeded(data.Permuted(workers=3, max_queue_size=2)),
    "one iterator": lambda: seeded(data.Rows(), steps_per_epoch=5, epochs=4),
    "endless": lambda: seeded(data.Endless(), steps_per_epoch=5),
    "weighted": lambda: seeded(data.Labelled(), class_weight={0: 1.0, 1: 3.0}),
    "validated": lambda: seeded(data.Rows(), validation_data=data.Permuted(), validation_freq=2, epochs=4),
    "validated by itself": validated_by_itself,
}


@pytest.mark.live
@pytest.mark.filterwarnings("error::UserWarning:tpunb")
@pytest.mark.parametrize("name", CELLS)
def test_batches_by_index_resume_exactly(tmp_path, name):
    resumes(tmp_path, CELLS[name], every=4)


@pytest.mark.live
@pytest.mark.parametrize("name", ["shuffled", "by workers"])
def test_a_saved_fit_is_the_one_that_is_not_saved(tmp_path, name):
    assert saved(tmp_path, CELLS[name]) == CELLS[name]()


@pytest.mark.live
def test_a_resumed_fit_reads_no_batch_before_its_position(tmp_path, monkeypatch):
    read, original = [], np.random.default_rng
    saved(tmp_path, lambda: seeded(data.Rows(), shuffle=False, epochs=1))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: read.append(seed) or original(seed))
    with resume(tmp_path / "tpunb-6"):
        seeded(data.Rows(), shuffle=False, epochs=1)
    assert read == [7, 0, 1, 6], "7 for the rows, 0 and 1 for the types of the batches"


@pytest.mark.live
def test_other_data_are_an_error(tmp_path):
    saved(tmp_path, CELLS["shuffled"])
    for cell in (
        lambda: seeded(data.Rows(scale=2)),
        lambda: seeded(data.Rows(), shuffle=False),
        lambda: seeded(rows(28).batch(BATCH)),
    ):
        with pytest.raises(TpunbError, match="was saved with a different dataset"), resume(tmp_path / "tpunb-3"):
            cell()


def test_state_beside_the_index_is_named_with_a_way_out():
    reasons = {start: PyDatasetState(make(), None).reason for start, make in data.STATES.items()}
    assert {start: reason for start, reason in reasons.items() if not reason.startswith(start)} == {}


def test_numbers_text_arrays_and_functions_are_no_state():
    for value in (np.ones(3), {"a": [1, ("b", None)]}, {1, 2}, print, np, int, 2j, tf.constant(1)):
        assert PyDatasetState(data.having(value, data.Zoomed), None).reason == "", value


@pytest.mark.live
def test_a_py_dataset_with_state_is_refused_and_read_as_before(tmp_path):
    refuses(
        tmp_path, lambda: trained(data.Noisy(), epochs=1), "Noisy.__getitem__ draws from the global generator of numpy"
    )
    with pytest.raises(TpunbError, match="cannot be resumed exactly: Noisy"), resume(tmp_path / "tpunb-3"):
        trained(data.Noisy())
    with resume(tmp_path / "tpunb-3", exact=False):
        losses, *_ = trained(data.Noisy(), epochs=1)
    assert len(losses) == data.COUNT - 3


@pytest.mark.parametrize("seed", [None, 3])
def test_the_first_batch_is_read_twice(seed):
    tf.random.set_seed(seed)
    before = random.getstate()
    reason = PyDatasetState(data.Hidden(), None).probe()
    assert reason.startswith("Hidden.__getitem__ is not the same when it is called again (a batch must depend")
    assert PyDatasetState(data.Rows(), None).probe() == ""
    assert random.getstate() == before


def test_workers_that_read_for_the_next_epoch_are_refused():
    assert "its workers leave batches to the next epoch" in PyDatasetState(data.Rows(workers=2), 5).reason
    assert PyDatasetState(data.Rows(workers=2), data.COUNT).reason == ""
    assert "may change while its batches are read" in PyDatasetState(data.Permuted(), 5).reason


def generated():
    while True:
        yield np.ones((BATCH, 3)), np.ones((BATCH, 1))


VALIDATIONS = {
    "validation_data: Noisy.__getitem__ draws": lambda: {"validation_data": data.Noisy()},
    "validation_data: Python code feeds it (generator; give arrays or a tf.data.Dataset)": lambda: {
        "validation_data": generated(),
        "validation_steps": 2,
    },
}


@pytest.mark.live
@pytest.mark.parametrize("reason", VALIDATIONS)
def test_results_of_a_validation_by_python_code_with_state_may_differ_and_nothing_else(tmp_path, reason):
    with warnings.catch_warnings(record=True) as caught, checkpointing(tmp_path, every=3):
        warnings.simplefilter("always")
        trained(rows().batch(BATCH), epochs=2, **VALIDATIONS[reason]())
    said = [str(one.message) for one in caught if reason in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith("resuming is exact but for the results of validation: ")
    assert all(one.exact for one in checkpoints(tmp_path))


@pytest.mark.live
def test_an_unexpected_keras_makes_a_checkpoint_inexact(tmp_path, monkeypatch):
    monkeypatch.setattr(py_dataset.PyDatasetBatches, "_order", lambda batches: iter(range(data.COUNT)))
    with warnings.catch_warnings(), checkpointing(tmp_path, every=3):
        warnings.simplefilter("ignore")
        trained(data.Rows(), epochs=1)
    assert {one.step: one.exact for one in checkpoints(tmp_path)} == {3: False, 6: False}
