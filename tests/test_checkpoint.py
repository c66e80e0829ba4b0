"""Checkpoints as TensorFlow, Keras and Orbax write them: complete, incomplete, and the nearest to a phase."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.checkpoint import Checkpoint, Checkpoints, checkpoints
from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.frames import Phase
from tpunb.frames.nearest import nearest_checkpoint
from tpunb.training import snapshot


def the_only(folder):
    (one,) = checkpoints(folder)
    return one


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Checkpoints of a Keras model after 2 epochs of 4 batches, saved in every usual way."""
    import keras
    import tensorflow as tf

    top = tmp_path_factory.mktemp("written")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.zeros((8, 4)), tf.zeros((8, 1)))).batch(2)
    callbacks = [
        keras.callbacks.ModelCheckpoint(top / "each/{epoch:02d}.keras"),
        keras.callbacks.ModelCheckpoint(top / "weights/{epoch:02d}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(top / "backup", save_freq=3, delete_checkpoint=False),
    ]
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    model.save(top / "old.h5")
    (top / "sharded").mkdir()
    model.save_weights(top / "sharded/model.weights.json", max_shard_size=0.0000001)
    model.export(top / "served", verbose=False)
    counter = tf.Variable(30, dtype=tf.int64)
    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer, iterator=iter(data))
    tf.train.CheckpointManager(state, top / "manager", max_to_keep=3).save(checkpoint_number=30)
    tf.train.Checkpoint(step=counter, w=tf.Variable([1.0]), dice=tf.random.Generator.from_seed(1)).write(
        top / "counter/run"
    )
    tf.train.Checkpoint(w=tf.Variable([1.0])).write(top / "named/run-70")
    tf.train.CheckpointManager(tf.train.Checkpoint(w=tf.Variable([1.0])), top / "saves", max_to_keep=3).save()
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    (top / "bare").mkdir()
    plain.save_weights(top / "bare/model-step-12.weights.h5")
    plain.save_weights(top / "bare/epoch-03.weights.h5")
    return top


@pytest.fixture(scope="module")
def orbax(tmp_path_factory):
    """Checkpoints of Orbax' manager and checkpointer."""
    jnp = pytest.importorskip("jax.numpy")
    ocp = pytest.importorskip("orbax.checkpoint")
    grain = pytest.importorskip("grain.python")
    top = tmp_path_factory.mktemp("orbax")
    tree = {"params": {"w": jnp.ones((3, 3))}, "opt_state": {"mu": jnp.ones(3)}, "step": 5}
    with ocp.CheckpointManager(top / "manager") as manager:
        for step in (5, 10):
            manager.save(step, args=ocp.args.StandardSave(tree))
    batches = iter(grain.MapDataset.range(8).batch(2).to_iter_dataset())
    with ocp.CheckpointManager(top / "several", options=ocp.CheckpointManagerOptions(step_prefix="run")) as manager:
        args = {"state": ocp.args.StandardSave({"w": jnp.ones(3)}), "data": grain.PyGrainCheckpointSave(batches)}
        manager.save(7, args=ocp.args.Composite(**args))
    with ocp.StandardCheckpointer() as one:
        one.save(top / "single", {"w": jnp.ones(2)})
    return top


@pytest.mark.live
@pytest.mark.parametrize(
    ("folder", "listed"),
    [
        ("each", [("01.keras", 4, "optimizer", "keras"), ("02.keras", 8, "optimizer", "keras")]),
        ("weights", [("01.weights.h5", 4, "optimizer", "keras"), ("02.weights.h5", 8, "optimizer", "keras")]),
        ("backup", [("backup", 6, "optimizer", "backup")]),
        ("sharded", [("model.weights.json", 8, "optimizer", "keras")]),
        ("manager", [("ckpt-30", 8, "optimizer", "tensorflow")]),
        ("counter", [("run", 30, "counter", "tensorflow")]),
        ("named", [("run-70", 70, "name", "tensorflow")]),
        ("saves", [("ckpt-1", None, "", "tensorflow")]),  # the number is that of the save
        ("bare", [("model-step-12.weights.h5", 12, "name", "keras"), ("epoch-03.weights.h5", None, "", "keras")]),
        ("served", []),
    ],
)
def test_the_step_is_read_without_the_model(written, folder, listed):
    found = checkpoints(written / folder)
    assert [(one.path.name, one.step, one.step_from, one.kind) for one in found] == listed
    assert found.skipped == {}


@pytest.mark.live
@pytest.mark.parametrize(
    ("folder", "holds"),
    [
        ("backup", ("weights", "optimizer")),
        ("sharded", ("weights", "optimizer")),
        ("manager", ("weights", "optimizer", "data position")),
        ("counter", ("weights", "random state")),
        ("named", ("weights",)),
    ],
)
def test_the_parts_of_a_checkpoint_are_listed(written, folder, holds):
    one = the_only(written / folder)
    assert one.holds == holds
    assert not one.exact
    files = [path for path in (written / folder).iterdir() if path.name != "checkpoint"]
    assert one.size == sum(path.stat().st_size for path in files)
    assert timedelta(0) <= datetime.now(UTC) - one.time < timedelta(hours=1)


@pytest.mark.live
def test_a_whole_model_as_hdf5_has_a_step_too(written, tmp_path):
    shutil.copy(written / "old.h5", tmp_path)
    assert (the_only(tmp_path).step, the_only(tmp_path).holds) == (8, ("weights", "optimizer"))


@pytest.mark.live
def test_the_path_is_what_the_framework_restores_from(written):
    import tensorflow as tf

    assert tf.train.latest_checkpoint(written / "manager") == os.fspath(the_only(written / "manager"))


@pytest.mark.live
def test_a_backup_states_the_epoch_that_it_restarts(written):
    assert the_only(written / "backup").reason == "BackupAndRestore saved epoch 1, batch 1, and restarts that epoch"


def test_orbax_names_its_steps(orbax):
    found = checkpoints(orbax)
    assert [(one.path.name, one.step, one.holds) for one in found] == [
        ("5", 5, ("weights", "optimizer")),
        ("run_7", 7, ("weights", "data position")),
        ("10", 10, ("weights", "optimizer")),
        ("single", None, ("weights",)),
    ]
    assert {one.kind for one in found} == {"orbax"}


@pytest.mark.live
def test_checkpoints_are_in_order_of_step(written):
    found = checkpoints(written)
    steps = [one.step for one in found]
    assert steps == [4, 4, 6, *[8] * 5, 12, 30, 70, None, None]
    assert repr(found) == f"Checkpoints({written.name}, 13 checkpoints, steps 4 to 70)"
    assert found.frame["step"].to_list() == steps
    assert found.frame.schema["time"] == pl.Datetime("us", "UTC")
    assert repr(found[2]).startswith("Checkpoint(backup, step 6, backup, weights + optimizer, ")
    assert ", step 70 by its name, " in repr(found[10])
    assert ", step unknown, " in repr(found[-1])


def test_an_empty_folder_is_valid_and_a_missing_one_an_error(tmp_path):
    found = checkpoints(tmp_path)
    assert (len(found), found.skipped, found.before(5)) == (0, {}, None)
    assert found.frame.height == 0
    assert repr(found) == f"Checkpoints({tmp_path.name}, 0 checkpoints)"
    with pytest.raises(ProfileNotFound, match="no folder") as caught:
        checkpoints(tmp_path / "none")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(TpunbError, match="is a file"):
        checkpoints(tmp_path / "file")
    with pytest.raises(TpunbError, match="is not on this machine"):
        checkpoints("gs://bucket/run")


def halved(path):
    os.truncate(path, path.stat().st_size // 2)


def shortened(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.live
@pytest.mark.parametrize(
    ("source", "name", "harm", "reason"),
    [
        ("each", "01.keras", halved, "is not a complete .keras file"),
        ("each", "01.keras", shortened, "is not a complete .keras file"),
        ("weights", "01.weights.h5", halved, "truncated file"),
        ("weights", "01.weights.h5", shortened, "truncated file"),
        ("backup", "latest.weights.h5", halved, "truncated file"),
        ("backup", "training_metadata.json", halved, "training_metadata.json cannot be read"),
        ("sharded", "model_00001.weights.h5", Path.unlink, "lacks model_00001.weights.h5"),
        ("manager", "ckpt-30.index", Path.unlink, "has .data but no .index"),
        ("manager", "ckpt-30.index", halved, "cannot be read"),
        ("manager", "ckpt-30.data-00000-of-00001", Path.unlink, "has an .index but no .data"),
        ("manager", "ckpt-30.data-00000-of-00001", halved, "cannot be read"),
        ("manager", "ckpt-30.data-00000-of-00001", shortened, "cannot be read"),
    ],
)
def test_an_incomplete_checkpoint_is_skipped_with_a_reason(written, tmp_path, source, name, harm, reason):
    before = len(checkpoints(written / source))
    shutil.copytree(written / source, tmp_path / "run")
    harm(tmp_path / "run" / name)
    found = checkpoints(tmp_path)
    assert len(found) == before - 1
    ((skipped, why),) = found.skipped.items()
    assert skipped.startswith("run")
    assert reason in why
    assert "1 skipped" in repr(found)


@pytest.mark.live
def test_missing_shards_are_skipped(written, tmp_path):
    shutil.copy(written / "manager/ckpt-30.index", tmp_path / "ckpt-1.index")
    shutil.copy(written / "manager/ckpt-30.data-00000-of-00001", tmp_path / "ckpt-1.data-00001-of-00003")
    assert checkpoints(tmp_path).skipped == {"ckpt-1": "has 1 of its 3 .data files"}


@pytest.mark.live
def test_unfinished_tensorflow_checkpoints_are_skipped(written, tmp_path):
    aside = tmp_path / "ckpt-2_temp"
    aside.mkdir()
    shutil.copy(written / "manager/ckpt-30.data-00000-of-00001", aside / "part-00000-of-00001.data-00000-of-00001")
    assert checkpoints(tmp_path).skipped == {"ckpt-2_temp/part-00000-of-00001": "was still being written"}


def test_unfinished_orbax_checkpoints_are_skipped(orbax, tmp_path):
    shutil.copytree(orbax / "manager/5", tmp_path / "5.orbax-checkpoint-tmp-17")
    begun = shutil.copytree(orbax / "manager/5", tmp_path / "6")
    about = json.loads((begun / "_CHECKPOINT_METADATA").read_text())
    (begun / "_CHECKPOINT_METADATA").write_text(json.dumps({**about, "commit_timestamp_nsecs": None}))
    shutil.rmtree(shutil.copytree(orbax / "manager/5", tmp_path / "7") / "default")
    (shutil.copytree(orbax / "manager/5", tmp_path / "8") / "_CHECKPOINT_METADATA").write_text("{")
    found = checkpoints(tmp_path)
    assert len(found) == 0
    assert {name: reason.split(":")[0] for name, reason in found.skipped.items()} == {
        "5.orbax-checkpoint-tmp-17": "was still being written",
        "6": "was not committed",
        "7": "lacks default",
        "8": "_CHECKPOINT_METADATA cannot be read",
    }


def test_other_files_are_ignored(tmp_path):
    import h5py

    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["pixels"] = [1, 2, 3]
    (tmp_path / "words.index").write_bytes(b"not TensorFlow's")
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/x.keras").touch()
    assert (len(found := checkpoints(tmp_path)), found.skipped) == (0, {})


def own(folder, step, **about):
    folder.mkdir()
    (folder / "state.npz").write_bytes(b"12345")
    known = {"format": snapshot.FORMAT, "step": step, "time": 1e9, "exact": True, "holds": ["weights"]}
    (folder / snapshot.METADATA).write_text(json.dumps({**known, "files": {"state.npz": 5}, **about}))
    return folder


def test_native_checkpoints_state_whether_they_are_exact(tmp_path):
    own(tmp_path / "tpunb-3", 3)
    own(tmp_path / "tpunb-4", 4, exact=False, why="map is stateful")
    own(tmp_path / ".tpunb-5.1", 5)
    own(tmp_path / "tpunb-6", 6, format=99)
    own(tmp_path / "tpunb-7", 7, files={"state.npz": 6})
    own(tmp_path / "tpunb-8", "?")
    own(tmp_path / "tpunb-9", 9, files={"../tpunb-3/state.npz": 5})
    found = checkpoints(tmp_path)
    assert [(one.step, one.exact, one.reason, one.time.year) for one in found] == [
        (3, True, "", 2001),
        (4, False, "map is stateful", 2001),
    ]
    assert repr(found[0]).endswith("B, exact)")
    assert {name: reason.split(":")[0] for name, reason in found.skipped.items()} == {
        ".tpunb-5.1": "was still being written",
        "tpunb-6": "tpunb.json cannot be read",
        "tpunb-7": "lacks state.npz as it was written",
        "tpunb-8": "tpunb.json cannot be read",
        "tpunb-9": "tpunb.json cannot be read",
    }


def saved(step, name="x", *, exact=False):
    return Checkpoint(Path("/run") / name, step, datetime.now(UTC), 1, "tpunb", (), exact=exact)


def some(*found):
    return Checkpoints.of(Path("/run"), found)


def phase(*steps):
    return Phase(0, pl.DataFrame({"trained": pl.Series(steps, dtype=pl.Int64)}), 0.5)


@pytest.mark.parametrize(
    ("steps", "of", "nearest"),
    [
        ((10, 11, 12), (2, 9, 13), 9),  # of two as near the earlier
        ((10, 11, 12), (2, 12, 9), 12),
        ((10, 20), (15,), 15),
        ((0,), (None, 99), 99),
        ((0,), (None,), None),
        ((), (5,), None),
    ],
)
def test_the_nearest_checkpoint_to_a_phase(steps, of, nearest):
    one = some(*(saved(step, str(step)) for step in of)).nearest(phase(*steps))
    assert (None if one is None else one.step) == nearest


def test_an_exact_checkpoint_is_preferred():
    both = some(saved(5, "a"), saved(5, "b", exact=True), saved(5, "c"))
    assert both.nearest(phase(5)).path.name == "b"
    assert both.before(9).path.name == "b"


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_nearest_matches_a_search_over_all_pairs(steps, saves):
    best = None
    for number, save in enumerate(saves):
        for step in steps:
            if best is None or (abs(save - step), save, number) < best:
                best = abs(save - step), save, number
    assert nearest_checkpoint(steps, dict(enumerate(saves))) == (None if best is None else best[2])


@given(st.lists(st.integers(0, 30)), st.integers(0, 31))
def test_before_is_the_last_at_or_before_the_step(saves, step):
    one = some(*(saved(save, str(number)) for number, save in enumerate(saves))).before(step)
    assert (None if one is None else one.step) == max((save for save in saves if save <= step), default=None)


def test_before_requires_a_step():
    with pytest.raises(ValueError, match="The step parameter of before must be an int of 0 or more"):
        some().before(-1)
