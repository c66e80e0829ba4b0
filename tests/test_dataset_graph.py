"""Datasets as graphs, there and back."""

from __future__ import annotations

import numpy as np
import pytest

from tpunb.errors import TpunbError
from tpunb.tuning import dataset_graph
from tpunb.tuning.dataset_graph import back, is_dataset, memory_cache, op_def, seed_generator, there, weight

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def unchecked():
    """The self-check as if it had not run."""
    dataset_graph._self_check.cache_clear()
    yield
    dataset_graph._self_check.cache_clear()


def values(dataset):
    return [np.asarray(element).tolist() for element in dataset.as_numpy_iterator()]


def test_a_pipeline_comes_back_as_it_went():
    dataset = tf.data.Dataset.range(7).map(lambda x: x * x).batch(3)
    again = back(there(dataset), dataset.element_spec)
    assert again.element_spec == dataset.element_spec
    assert values(again) == [[0, 1, 4], [9, 16, 25], [36]]


def test_ragged_elements_keep_their_spec():
    dataset = tf.data.Dataset.range(3).map(tf.range).ragged_batch(2)
    again = back(there(dataset), dataset.element_spec)
    assert [batch.to_list() for batch in again] == [[[], [0]], [[0, 1]]]


def test_arrays_are_weighed_without_serialising():
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((10, 4), np.float32), np.zeros(10, np.int64)))
    assert weight(dataset.map(lambda x, y: x).batch(2)) == 160 + 80
    assert weight(tf.data.Dataset.from_tensor_slices(["ab", "cde"])) == 5
    assert weight(tf.data.Dataset.range(10)) == 0


def test_arrays_that_functions_capture_are_weighed_too():
    rows = tf.zeros((100, 2), tf.float64)
    dataset = tf.data.Dataset.range(100).map(lambda i: tf.gather(rows, i))
    assert weight(dataset) == 1600
    assert weight(tf.data.Dataset.zip(dataset, dataset)) == 3200  # the graph holds it twice


def test_a_deep_chain_of_zips_is_weighed_at_once():
    dataset = tf.data.Dataset.from_tensors(np.zeros(2, np.int32))
    for _ in range(12):
        dataset = tf.data.Dataset.zip(dataset, dataset).map(lambda x, y: x)
    assert weight(dataset) == 8 * 2**12


def test_too_large_arrays_are_declined_before_they_are_serialised(monkeypatch):
    monkeypatch.setattr(dataset_graph, "MOST_BYTES", 1000)
    monkeypatch.setattr(dataset_graph, "_there", lambda dataset: pytest.fail("it was serialised"))
    monkeypatch.setattr(dataset_graph, "_self_check", lambda: None)
    with pytest.raises(TpunbError, match="arrays of 0 MB") as raised:
        there(tf.data.Dataset.from_tensor_slices(np.zeros(126)))
    assert "files" in raised.value.hint


def test_what_cannot_be_serialised_is_declined(monkeypatch):
    def fails(variant):
        raise tf.errors.UnimplementedError(None, None, "no such thing\nas this")

    there(tf.data.Dataset.range(1))
    monkeypatch.setattr(dataset_graph, "_graph", fails)
    with pytest.raises(TpunbError, match=r"cannot write this pipeline down: no such thing\nHint"):
        there(tf.data.Dataset.range(1))


def test_a_graph_that_tensorflow_refuses_is_declined():
    with pytest.raises(TpunbError, match="does not rebuild"):
        back(tf.compat.v1.GraphDef(), tf.TensorSpec((), tf.int64))


@pytest.mark.parametrize("op", ["ParallelMapDatasetV2", "ParallelInterleaveDatasetV4", "ShuffleDatasetV3"])
def test_another_tensorflow_is_declined_with_a_sentence(monkeypatch, unchecked, op):
    known = dataset_graph.op_def
    monkeypatch.setattr(dataset_graph, "op_def", lambda name: None if name == op else known(name))
    with pytest.raises(TpunbError, match=f"otherwise than tpunb knows: {op} has other inputs") as raised:
        there(tf.data.Dataset.range(1))
    assert raised.value.hint is not None


def test_a_tensorflow_that_rebuilds_other_elements_is_declined(monkeypatch, unchecked):
    rebuild = dataset_graph._back
    monkeypatch.setattr(dataset_graph, "_back", lambda graph, spec: rebuild(graph, spec).skip(1))
    with pytest.raises(TpunbError, match="it rebuilt other elements"):
        there(tf.data.Dataset.range(1))


def test_the_self_check_runs_once(monkeypatch, unchecked):
    runs = []
    checks = dataset_graph._takes_apart
    monkeypatch.setattr(dataset_graph, "_takes_apart", lambda tf: runs.append(1) or checks(tf))
    there(tf.data.Dataset.range(1))
    there(tf.data.Dataset.range(1))
    assert runs == [1]


def test_every_generator_and_cache_is_a_new_one():
    made = [seed_generator(1, 2, reshuffle=True), seed_generator(1, 2, reshuffle=True), memory_cache(), memory_cache()]
    assert len({proto.SerializeToString() for proto, _ in made}) == 4


def test_an_unknown_operation_has_no_definition():
    assert op_def("NoSuchOp") is None
    assert op_def("Mul").name == "Mul"


def test_only_a_dataset_is_a_dataset():
    with pytest.raises(TypeError, match=r"must be a tf\.data\.Dataset\. Got \[1\]"):
        is_dataset([1])
