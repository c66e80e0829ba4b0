"""Datasets as graphs, and graphs as datasets."""

from __future__ import annotations

import numpy as np
import pytest
from optional import lazy

from tpunb.errors import TpunbError
from tpunb.instrument.tensorflow import op_def
from tpunb.tfdata import graph as module
from tpunb.tfdata.graph import array_bytes, check_dataset, from_graph, to_graph

tf = lazy("tensorflow")


@pytest.fixture
def unchecked():
    """The check of TensorFlow, not run yet."""
    module._check_tensorflow.cache_clear()
    yield
    module._check_tensorflow.cache_clear()


def values(dataset):
    return [np.asarray(element).tolist() for element in dataset.as_numpy_iterator()]


def test_a_pipeline_survives_a_round_trip():
    dataset = tf.data.Dataset.range(7).map(lambda x: x * x).batch(3)
    again = from_graph(to_graph(dataset), dataset.element_spec)
    assert again.element_spec == dataset.element_spec
    assert values(again) == [[0, 1, 4], [9, 16, 25], [36]]


def test_ragged_elements_keep_their_spec():
    dataset = tf.data.Dataset.range(3).map(tf.range).ragged_batch(2)
    again = from_graph(to_graph(dataset), dataset.element_spec)
    assert [batch.to_list() for batch in again] == [[[], [0]], [[0, 1]]]


def test_array_bytes_need_no_serialisation():
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((10, 4), np.float32), np.zeros(10, np.int64)))
    assert array_bytes(dataset.map(lambda x, y: x).batch(2)) == 160 + 80
    assert array_bytes(tf.data.Dataset.from_tensor_slices(["ab", "cde"])) == 5
    assert array_bytes(tf.data.Dataset.range(10)) == 0


def test_array_bytes_include_captured_arrays():
    rows = tf.zeros((100, 2), tf.float64)
    dataset = tf.data.Dataset.range(100).map(lambda i: tf.gather(rows, i))
    assert array_bytes(dataset) == 1600
    assert array_bytes(tf.data.Dataset.zip(dataset, dataset)) == 3200  # the graph holds it twice


def test_array_bytes_of_a_deep_chain_of_zips_are_fast():
    dataset = tf.data.Dataset.from_tensors(np.zeros(2, np.int32))
    for _ in range(12):
        dataset = tf.data.Dataset.zip(dataset, dataset).map(lambda x, y: x)
    assert array_bytes(dataset) == 8 * 2**12


def test_too_large_arrays_are_an_error_before_serialisation(monkeypatch):
    monkeypatch.setattr(module, "MAX_ARRAY_BYTES", 1000)
    monkeypatch.setattr(module, "_serialise", lambda dataset: pytest.fail("it was serialised"))
    monkeypatch.setattr(module, "_check_tensorflow", lambda: None)
    with pytest.raises(TpunbError, match="arrays of 0 MB") as raised:
        to_graph(tf.data.Dataset.from_tensor_slices(np.zeros(126)))
    assert "files" in raised.value.hint


def test_a_pipeline_that_cannot_be_serialised_is_an_error(monkeypatch):
    def fails(variant):
        raise tf.errors.UnimplementedError(None, None, "no such thing\nas this")

    to_graph(tf.data.Dataset.range(1))
    monkeypatch.setattr(module, "_serialise", fails)
    with pytest.raises(TpunbError, match=r"cannot serialise this pipeline: UnimplementedError: no such thing\nHint"):
        to_graph(tf.data.Dataset.range(1))


def test_an_invalid_graph_is_an_error():
    with pytest.raises(TpunbError, match="cannot rebuild"):
        from_graph(tf.compat.v1.GraphDef(), tf.TensorSpec((), tf.int64))


@pytest.mark.parametrize("op", ["ParallelMapDatasetV2", "ParallelInterleaveDatasetV4", "ShuffleDatasetV3"])
def test_a_tensorflow_with_other_inputs_is_not_supported(monkeypatch, unchecked, op):
    known = module.op_def
    monkeypatch.setattr(module, "op_def", lambda name: None if name == op else known(name))
    with pytest.raises(TpunbError, match=f"are not supported: TypeError: {op} has other inputs") as raised:
        to_graph(tf.data.Dataset.range(1))
    assert raised.value.hint is not None


def test_a_tensorflow_that_rebuilds_other_elements_is_not_supported(monkeypatch, unchecked):
    rebuild = module._rebuild
    monkeypatch.setattr(module, "_rebuild", lambda graph, spec: rebuild(graph, spec).skip(1))
    with pytest.raises(TpunbError, match="it rebuilt other elements"):
        to_graph(tf.data.Dataset.range(1))


def test_tensorflow_is_checked_once(monkeypatch, unchecked):
    runs = []
    checks = module._round_trip
    monkeypatch.setattr(module, "_round_trip", lambda tf: runs.append(1) or checks(tf))
    to_graph(tf.data.Dataset.range(1))
    to_graph(tf.data.Dataset.range(1))
    assert runs == [1]


def test_an_unknown_operation_has_no_definition():
    assert op_def("NoSuchOp") is None
    assert op_def("Mul").name == "Mul"


def test_check_dataset_rejects_other_objects():
    with pytest.raises(TypeError, match=r"must be a tf\.data\.Dataset\. Got \[1\]"):
        check_dataset([1])
