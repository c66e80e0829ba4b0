"""Files of TpuGraphs: every kind is read, one graph at a time, and what is damaged is named."""

import os
import pickle
import random
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tpunb.errors import BadProfile, ProfileNotFound, TpunbError
from tpunb.studies.ranking import CostModel, columns, read_tpugraphs
from tpunb.studies.ranking.tpugraphs import TpuGraph


@pytest.fixture(scope="session")
def tpu_graphs():
    """The folder with the test data of the dataset's repository."""
    root = os.environ.get("TPUNB_DATA")
    if not root:
        pytest.skip("TPUNB_DATA is unset: the dataset's files are not part of the project")
    return Path(root) / "seeds" / "tpu_graphs"


def tile(n=3, c=4, **changed):
    """Return the arrays of a tile npz."""
    draw = np.random.default_rng(0)
    bounds = draw.integers(1, 9, (c, 24)).astype(np.float32)
    return {
        "node_feat": np.arange(n * 140, dtype=np.float32).reshape(n, 140),
        "node_opcode": np.arange(n, dtype=np.int32),
        "edge_index": np.array([[1, 0], [2, 1]], np.int32),
        "config_feat": bounds,
        "config_runtime": np.array([30, 20, 50, 40][:c], np.int64),
        "config_runtime_normalizers": np.full(c, 25, np.int64),
        **changed,
    }


def layout(n=5, c=4, k=2, **changed):
    """Return the arrays of a layout npz: the first tensor of the first node is in the order of each configuration."""
    numbers = np.full((c, k, 18), -1, np.float32)
    numbers[:, :, :2] = [1, 0]
    numbers[1::2, 0, :2] = [0, 1]
    arrays = {name: values for name, values in tile(n).items() if not name.startswith("config")}
    arrays["node_feat"][:5, 28] = [0, 10, 30, 0, 0]
    return arrays | {
        "node_config_ids": np.array([1, 2], np.int32),
        "node_config_feat": numbers,
        "config_runtime": np.array([100, 130, 101, 131][:c], np.int32),
        "node_splits": np.array([[0, 3]]),
        **changed,
    }


def saved(folder, arrays, name="alexnet_train_batch_32_-12345", write=np.savez):
    path = folder / f"{name}.npz"
    write(path, **arrays)
    return path


def test_a_tile_file_is_a_graph_with_its_configurations(tmp_path):
    (found,) = read_tpugraphs(saved(tmp_path, tile(), write=np.savez_compressed))
    assert (found.name, found.family) == ("alexnet_train_batch_32_-12345", "alexnet_train_batch_32")
    assert found.frame.schema == columns.CONFIGURATIONS
    assert found.frame["time_ps"].to_list() == [30_000, 20_000, 50_000, 40_000]  # nanoseconds in the file
    assert found.frame["tile"].to_list() == tile()["config_feat"][:, 15].tolist()
    assert found.frame["default"].to_list() == [None] * 4  # only its time is in the file
    assert isinstance(found.graph, TpuGraph)
    assert found.graph.edge_index().tolist() == [[1, 0], [2, 1]]
    assert found.graph.edge_index(flow=True).tolist() == [[0, 1], [1, 2]]
    assert found.graph.features()[1, 0] == 140
    assert found.graph.opcodes.tolist() == [0, 1, 2]


def test_times_on_several_machines_are_relative_to_the_default_on_each(tmp_path):
    slow = tile(config_runtime_normalizers=np.array([25, 25, 50, 50]))
    (found,) = read_tpugraphs(saved(tmp_path, slow))
    assert found.frame["time_ps"].to_list() == [30_000, 20_000, 50_000, 40_000]
    assert (found.times / found.times[1]).tolist() == [1.5, 1.0, 1.25, 1.0]


def test_a_layout_file_has_the_share_of_elements_in_another_order(tmp_path):
    (found,) = read_tpugraphs(saved(tmp_path, layout(), name="unet3d"))
    assert (found.name, found.family, found.numbers.shape) == ("unet3d", "unet3d", (4, 2, 18))
    # 10 of 40 elements are in the node whose layout changes; the rest is relative to the median
    np.testing.assert_allclose(found.inputs["graph"][:, 0], [-0.125, 0.125, -0.125, 0.125])
    model = CostModel("graph").fit(found)
    assert np.argsort(model.predict(found), kind="stable").tolist() == [0, 2, 1, 3]


def test_a_folder_is_read_file_by_file(tmp_path):
    saved(tmp_path, tile(), name="a")
    (tmp_path / "below").mkdir()
    saved(tmp_path / "below", layout(), name="b")
    (tmp_path / "notes.txt").write_text("no data")
    graphs = read_tpugraphs(tmp_path)
    assert next(graphs).name == "a"
    assert [each.name for each in graphs] == ["b"]
    with pytest.raises(ProfileNotFound, match=r"no \.npz and no \.pb"):
        next(read_tpugraphs(tmp_path / "nothing"))


def test_one_graph_is_in_memory_at_a_time(tmp_path):
    for name in "abcd":
        saved(tmp_path, layout(n=2000, c=800, k=200, **large(2000, 800, 200)), name=name)
    largest = 800 * 200 * 18 * 4
    tracemalloc.start()
    try:
        names = [each.name for each in read_tpugraphs(tmp_path)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert names == [*"abcd"]
    assert peak < 2 * 1.5 * largest  # the last one is held while the next is read


def large(n, c, k):
    draw = np.random.default_rng(0)
    return {
        "node_feat": np.ones((n, 140), np.float32),
        "node_opcode": np.zeros(n, np.int32),
        "node_config_ids": np.arange(k, dtype=np.int32),
        "node_config_feat": draw.integers(-1, 6, (c, k, 18)).astype(np.float32),
        "config_runtime": draw.integers(1000, 2000, c).astype(np.int32),
    }


def without(arrays, name):
    return {key: value for key, value in arrays.items() if key != name}


NAN = np.where(np.arange(96).reshape(4, 24) == 7, np.nan, 1).astype(np.float32)
BAD = {
    "another width": (tile(node_feat=np.zeros((3, 139), np.float32)), r"node_feat has shape \(3, 139\)"),
    "another rank": (tile(config_feat=np.zeros((4, 2, 24), np.float32)), r"config_feat has shape \(4, 2, 24\)"),
    "fewer times": (tile(config_runtime=np.array([3, 4])), "config_feat has shape"),
    "fewer nodes": (
        layout(node_config_feat=np.zeros((4, 1, 18), np.float32)),
        r"node_config_feat has shape \(4, 1, 18\)",
    ),
    "an unknown node": (layout(node_config_ids=np.array([1, 9], np.int32)), "node_config_ids has nodes outside 0 to 4"),
    "an unknown end": (tile(edge_index=np.array([[3, 0]], np.int32)), "edge_index has nodes outside 0 to 2"),
    "no times": (without(tile(), "config_runtime"), "no array config_runtime"),
    "no numbers": (without(tile(), "config_feat"), "no array config_feat"),
    "a time of 0": (tile(config_runtime=np.array([30, 0, 50, 40])), "a time of 0 ps"),
    "a negative time": (tile(config_runtime=np.array([30, -5, 50, 40])), "a time of -5000 ps"),
    "NaN": (tile(config_feat=NAN), "numbers that are not finite"),
    "text": (tile(node_opcode=np.array(["a", "b", "c"])), "node_opcode of shape"),
    "objects": (tile(config_feat=np.array([[{}] * 24] * 4, dtype=object)), "config_feat of shape"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_named_in_a_line(tmp_path, kind):
    arrays, problem = BAD[kind]
    with pytest.raises(BadProfile, match=problem) as caught:
        next(read_tpugraphs(saved(tmp_path, arrays)))
    assert "\n" not in str(caught.value)
    assert "alexnet" in str(caught.value)


def test_a_pickle_is_not_run(tmp_path):
    class Run:
        def __reduce__(self):
            return Path(tmp_path / "ran").touch, ()

    path = saved(tmp_path, tile(node_opcode=np.array([Run()] * 3, dtype=object)))
    with pytest.raises(BadProfile, match=r"no \.npz of TpuGraphs"):
        next(read_tpugraphs(path))
    path.write_bytes(pickle.dumps(Run()))
    with pytest.raises(BadProfile, match=r"no \.npz of TpuGraphs"):
        next(read_tpugraphs(path))
    assert not (tmp_path / "ran").exists()


def test_a_header_of_more_than_the_file_holds_allocates_nothing(tmp_path):
    path = saved(tmp_path, without(tile(), "node_opcode"))
    with zipfile.ZipFile(path, "a") as archive, archive.open("node_opcode.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<i4", "fortran_order": False, "shape": (1 << 40,)})
    with pytest.raises(BadProfile, match=r"node_opcode of shape \(1099511627776,\)"):
        next(read_tpugraphs(path))


def test_damaged_files_end_in_bad_profile_or_are_read(tmp_path):
    draw = random.Random(0)
    whole = saved(tmp_path, tile()).read_bytes()
    path = tmp_path / "damaged.npz"
    for _ in range(60):
        data = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(1, 6)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        with suppress(BadProfile):
            assert len(next(read_tpugraphs(path))) == 4


# -- the dataset's own test data --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels(tpu_graphs):
    return [*read_tpugraphs(tpu_graphs / "op_tuning_data.pb")]


def test_the_kernels_of_the_fixture_are_those_that_were_derived_from_it(kernels, tpu_graphs):
    assert len(kernels) == 15
    assert sum(map(len, kernels)) == 752
    derived = np.load(tpu_graphs / "tpugraphs_tile_fixture.npz")
    for each in kernels:
        np.testing.assert_array_equal(each.numbers, derived[f"{each.name}/config_feat"])
        assert each.frame["time_ps"].to_list() == (derived[f"{each.name}/config_runtime"] * 1000).tolist()
        edges = {*map(tuple, each.graph.edge_index().tolist())}
        assert {*map(tuple, derived[f"{each.name}/edge_index"].tolist())} <= edges  # which leaves out calls
    bounds = kernels[1].numbers
    np.testing.assert_array_equal(bounds[:, 14], bounds[:, 8:14].sum(axis=1))
    products = np.where(bounds[:, 8:14] > 0, bounds[:, 8:14], 1).prod(axis=1)
    np.testing.assert_array_equal(bounds[:, 15], products)


def test_the_time_counts_never_the_cycles(kernels):
    defaults = [each.times[each.frame["default"].to_numpy()] for each in kernels]
    assert [len(each) for each in defaults] == [1] * 15
    assert sum(each[0] for each in defaults) / sum(each.times.min() for each in kernels) == pytest.approx(
        1.0716, abs=5e-5
    )
    assert (kernels[1].name, len(kernels[1])) == ("fusion.191", 579)
    assert (kernels[1].times.min(), kernels[1].times.max()) == (137_344_000, 3_963_794_000)


def test_the_layout_module_is_read_and_refused_for_training(tpu_graphs):
    (module,) = read_tpugraphs(tpu_graphs / "module_tuning_data_layout.pb")
    assert (len(module), module.numbers.shape, module.graph.instructions.n) == (112, (112, 62, 18), 3163)
    assert module.times.max() / module.times.min() < 1.017
    with pytest.raises(TpunbError, match=r"spread below repeatability: 1\.6 % of 2\.0 %"):
        CostModel("graph").fit(module)


def test_a_tuning_proto_with_fewer_layouts_than_nodes_is_refused(tpu_graphs, tmp_path):
    data = (tpu_graphs / "module_tuning_data_layout.pb").read_bytes()
    path = tmp_path / "more.pb"
    path.write_bytes(data + b"\x20\x05")  # one configurable node more
    with pytest.raises(BadProfile, match="6944 layouts in 112 runs of 63 nodes"):
        next(read_tpugraphs(path))
    for size in (0, 1, 100, len(data) // 2):
        path.write_bytes(data[:size])
        with pytest.raises(BadProfile):
            [*read_tpugraphs(path)]


def test_within_a_kernel_the_order_is_learnt(kernels):
    found = CostModel("graph").evaluate([kernels[1]], by="configuration")
    assert "half of the configurations of the same graph" in str(found)
    model = found.frame.row(by_predicate=pl.col("method") == "model", named=True)
    assert model["tau"] >= 0.85
    assert model["top5"] <= 0.02


def test_across_kernels_the_table_shows_what_is_better(kernels):
    found = CostModel("graph").evaluate(kernels, by="kernel")
    rows = {row["method"]: row for row in found.frame.rows(named=True)}
    tile_errors = [rows["largest tile"][f"top{k}"] for k in (1, 5, 10)]
    np.testing.assert_allclose(tile_errors, [0.096, 0.016, 0.007], atol=5e-4)
    assert rows["default"]["top1"] == pytest.approx(0.0189, abs=5e-5)
    assert rows["model"]["graphs"] == 15
    assert rows["model"]["top1"] < rows["largest tile"]["top1"]
    assert rows["model"]["top1"] > rows["default"]["top1"]  # the compiler's choice is not beaten
    assert "bytes moved" not in rows
    assert "repeat ceiling" not in rows  # nothing was repeated
