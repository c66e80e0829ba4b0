"""Custom loops that are saved and resumed through ``batches(data, state=state)``: bit for bit, or with a reason."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import resumed_loops
from optional import lazy
from resumed_loops import BATCHES, DATA, EVERY, leaves, train
from stand_in import StandIn
from warm_python import JAX, warm_python

import tpunb as tp
from tpunb.checkpoint import checkpointing, checkpoints, restore
from tpunb.checkpoint.resume import loops, resume
from tpunb.errors import TpunbError
from tpunb.training import positions
from tpunb.training.fingerprints import Diverged

jax, keras, tf = lazy("jax"), lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def installed(request):
    """Skip kinds of data whose library is missing."""
    pytest.importorskip("orbax.checkpoint")
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name", "")
    for library in ("grain", "tensorflow"):
        if name and (library in name or (library == "tensorflow" and "tf" in name)):
            pytest.importorskip(library)


def saved(folder, data, **more):
    """Train and save; return the losses and the state."""
    with warnings.catch_warnings(), checkpointing(folder, **more):
        warnings.simplefilter("ignore")
        return train(data)


def resumes(checkpoint, data, whole, **more):
    """Assert that a loop over data continues from a checkpoint as the whole run did."""
    with resume(checkpoint, **more) as resumed:
        losses, state = train(data)
    assert losses == whole[0]  # those before the checkpoint are handed back
    assert leaves(state) == leaves(whole[1])
    assert not resumed.divergence
    return resumed


@pytest.mark.parametrize("name", ["list", "tf.data"])
def test_a_killed_loop_resumes_in_a_new_process(tmp_path, name):
    folder = tmp_path / "saved"
    python = warm_python() if name == "tf.data" else warm_python(JAX)
    killed = [*python, resumed_loops.__file__, folder, name, "22"]
    assert subprocess.run(killed, capture_output=True, timeout=600).returncode == 9
    assert [one.step for one in checkpoints(folder)] == [5, 10, 15, 20]
    if name == "list":
        subprocess.run([sys.executable, resumed_loops.__file__, folder, name], check=True, capture_output=True)
        losses, state, resumed, has_tensorflow = json.loads((folder / "resumed.json").read_text())
        assert not has_tensorflow
    else:
        losses, state, resumed = resumed_loops.cell(folder, name)  # in this process, which did not save it
    assert resumed.startswith("resumed exactly at step 20")
    assert [one.step for one in checkpoints(folder)] == [5, 10, 15, 20, 25, 30, 35]
    with resume(checkpoints(folder)[0]):  # of the process that was killed, as is the seed of its shuffle
        whole = train(DATA[name]())
    assert losses == whole[0]
    assert state == leaves(whole[1])


@pytest.mark.parametrize("name", DATA)
def test_a_loop_resumes_at_any_step_of_several_epochs(tmp_path, name):
    whole = saved(tmp_path, DATA[name](), every=EVERY)
    found = checkpoints(tmp_path)
    assert [one.step for one in found] == [5, 10, 15, 20, 25, 30, 35]
    assert [one.reason for one in found] == [""] * 7
    for one in found[::4]:
        resumed = resumes(one, DATA[name](), whole)
        assert resumed.verified_steps == 36 - one.step


@pytest.mark.parametrize("name", ["list", "tf.data"])
def test_the_end_of_each_epoch_is_saved_by_default(tmp_path, name):
    whole = saved(tmp_path, DATA[name]())
    found = checkpoints(tmp_path)
    assert [one.step for one in found] == [12, 24, 36]
    for one in found:
        resumes(one, DATA[name](), whole)


def test_large_buffers_are_shared_and_batches_read_again(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(positions, "LARGE", 0)
    monkeypatch.setattr(positions, "_RATE", 1e-3)
    whole = saved(tmp_path, DATA["tf.data"](), every=EVERY)
    for one in checkpoints(tmp_path)[1:4]:
        resumes(one, DATA["tf.data"](), whole)
    assert not [*tmp_path.glob("*/iterator*")]


@pytest.mark.parametrize("name", ["list", "tf.data"])
def test_a_resumed_loop_can_be_saved_and_resumed_again(tmp_path, name):
    whole = saved(tmp_path / "first", DATA[name](), every=10)
    with resume(checkpoints(tmp_path / "first")[0]):
        again = saved(tmp_path / "second", DATA[name](), every=8)
    assert [one.step for one in checkpoints(tmp_path / "second")] == [16, 24, 32]
    assert again[0] == whole[0]
    for one in checkpoints(tmp_path / "second"):
        resumes(one, DATA[name](), whole)


def drawn():
    """Yield the batches of a list from a generator."""
    yield from BATCHES


@pytest.mark.parametrize("make", [drawn, lambda: map(np.asarray, BATCHES)])
def test_the_position_in_a_generator_is_drawn_again_and_inexact(tmp_path, make):
    with (
        pytest.warns(UserWarning, match="(generator|map): the position in it cannot be saved"),
        checkpointing(tmp_path, every=EVERY),
    ):
        losses, _ = train(make(), epochs=1)
    one = checkpoints(tmp_path)[1]
    assert (one.exact, one.step) == (False, 10)
    with pytest.raises(TpunbError, match=r"cannot be resumed exactly: (generator|map)"), resume(one):
        pass
    with resume(one, exact=False) as resumed:
        again = train(make(), epochs=1)
    assert again[0] == losses
    assert str(resumed).startswith("resumed at step 10, not exactly:")
    with pytest.raises(TpunbError, match="it ends after batch 3"), resume(one, exact=False):
        train(iter(BATCHES[:3]), epochs=1)


def test_an_iterator_over_data_that_shuffle_again_is_inexact(tmp_path):
    pytest.importorskip("tensorflow")
    saved(tmp_path, iter(DATA["tf.data, seeded"]()), every=EVERY)
    assert "give the dataset" in checkpoints(tmp_path)[0].reason


def test_an_iterator_of_tensorflow_is_restored_in_place(tmp_path):
    pytest.importorskip("tensorflow")
    plain = resumed_loops._slices().batch(4)
    whole = saved(tmp_path / "plain", plain.as_numpy_iterator(), every=EVERY)
    resumes(checkpoints(tmp_path / "plain")[1], plain.as_numpy_iterator(), whole)


def test_last_checkpoints_are_kept(tmp_path):
    whole = saved(tmp_path, BATCHES, every=EVERY, keep=2)
    assert [one.step for one in checkpoints(tmp_path)] == [30, 35]
    resumes(checkpoints(tmp_path)[0], BATCHES, whole)


def test_a_loop_in_a_capture_marks_its_steps_and_is_saved(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run, checkpointing(tmp_path / "saved", every=EVERY):
        whole = train(BATCHES, run)
    assert run.status.steps == 36
    resumes(checkpoints(tmp_path / "saved")[2], BATCHES, whole)


def test_without_a_block_a_state_has_no_effect():
    assert type(tp.testing.null_run.batches([1], state={"a": 1})) is type(iter([1]))


@pytest.mark.parametrize("state", [[], {}, {"a/b": 1}, {1: 2}])
def test_another_state_is_an_error(state):
    with pytest.raises(TypeError, match="The state parameter of batches must be a dict"):
        tp.testing.null_run.batches([1], state=state)


def test_a_state_that_the_loop_does_not_assign_is_inexact(tmp_path):
    state = {"params": jax.numpy.ones(3)}
    with pytest.warns(UserWarning, match=r"assign state\[\.\.\.\] in the loop"), checkpointing(tmp_path, every=1):
        for _ in tp.testing.null_run.batches([1, 2], state=state):
            pass
    assert not checkpoints(tmp_path)[0].exact


def forgetful():
    """Train with a counter that the state lacks."""
    state = {"params": jax.numpy.ones(3)}
    for number, _ in enumerate(tp.testing.null_run.batches([1, 2, 3, 4], state=state)):
        state["params"] = state["params"] * (number + 2)


def test_what_the_state_lacks_is_a_divergence_that_is_named(tmp_path):
    with checkpointing(tmp_path, every=2):
        forgetful()
    one = checkpoints(tmp_path)[0]
    with pytest.warns(UserWarning, match=r"number of test_loops.py:\d+ numbers the batches from 0 again"), resume(one):
        forgetful()
    with pytest.raises(Diverged), resume(one, on_divergence="raise"):
        forgetful()


def test_other_data_are_an_error_or_a_divergence(tmp_path):
    whole = saved(tmp_path, BATCHES, every=EVERY)
    one = checkpoints(tmp_path)[0]
    with pytest.raises(TpunbError, match="it had 12 elements, now 11"), resume(one):
        train(BATCHES[:11])
    with pytest.raises(TpunbError, match="the data are of another kind"), resume(one):
        train(drawn())
    with pytest.warns(UserWarning, match="the data of step 5 differ"), resume(one):
        assert train(-BATCHES)[0] != whole[0][5:]


def test_calls_are_counted(tmp_path):
    saved(tmp_path, BATCHES, every=EVERY)
    one = checkpoints(tmp_path)[-1]
    with pytest.raises(TpunbError, match=r"\(data, state=\) 2 times, and the checkpoint is of call 3"), resume(one):
        train(BATCHES, epochs=2)
    with pytest.raises(TpunbError, match="opt_state"), resume(one):
        list(tp.testing.null_run.batches(BATCHES, state={"params": 1}))
    assert loops._block.users == 0
    assert loops._block.start is None


def test_an_error_while_saving_does_not_end_the_loop(tmp_path):
    (tmp_path / "file").write_text("")
    warned = pytest.warns(UserWarning, match="was not saved, and training continues")
    with warned as caught, checkpointing(tmp_path / "file", every=5):
        losses, _ = train(BATCHES)
    assert len(caught) == 1
    assert len(losses) == 36


def test_a_loop_by_hand_can_restore_its_state(tmp_path):
    state = {"a": jax.numpy.zeros(2), "n": np.float32(0), "count": 0}
    with checkpointing(tmp_path, every=2):
        for _ in tp.testing.null_run.batches([1, 2, 3], state=state):
            state |= {"a": state["a"] + 1, "n": np.float32(state["n"] + 2), "count": state["count"] + 1}
    found = restore(checkpoints(tmp_path)[0], **state)
    assert (found["a"].tolist(), found["n"], found["count"]) == ([2, 2], 4, 2)
    assert type(found["n"]) is np.float32


def test_a_tensorflow_loop_resumes_with_its_objects_in_place(tmp_path):
    def cell():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.4), keras.layers.Dense(1)])
        state = {"model": model, "optimizer": keras.optimizers.Adam(), "seen": 0, "variable": tf.Variable(0.0)}
        state["optimizer"].build(model.trainable_variables)
        losses, data = [], DATA["tf.data"]()
        for _ in range(2):
            for batch in tp.testing.null_run.batches(data, state=state):
                with tf.GradientTape() as tape:
                    noise = keras.random.normal((4, 4)) + tf.random.normal((4, 4)) + np.random.random()
                    loss = tf.reduce_mean(model(batch + noise, training=True) ** 2)
                state["optimizer"].apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                state["seen"] += 1
                state["variable"].assign_add(loss)
                losses.append(float(loss).hex())
        return losses, state["seen"], float(state["variable"]), [w.tolist() for w in model.get_weights()]

    with checkpointing(tmp_path, every=EVERY):
        losses, *rest = cell()
    assert rest[0] == 24
    for one in checkpoints(tmp_path)[::3]:
        assert one.exact, one.reason
        with resume(one) as resumed:
            again, *later = cell()
        assert again == losses
        assert later == rest
        assert resumed.verified_steps == 24 - one.step


def test_an_optax_loop_resumes_exactly(tmp_path):
    optax = pytest.importorskip("optax")

    def cell():
        optimizer, params = optax.adamw(optax.cosine_decay_schedule(0.1, 30)), {"w": jax.numpy.ones(4)}
        state, losses = {"params": params, "opt_state": optimizer.init(params)}, []
        for batch in tp.testing.null_run.batches(BATCHES, state=state):
            loss, gradients = jax.value_and_grad(lambda p, x: ((x @ p["w"]) ** 2).mean())(state["params"], batch)
            updates, state["opt_state"] = optimizer.update(gradients, state["opt_state"], state["params"])
            state["params"] = optax.apply_updates(state["params"], updates)
            losses.append(float(loss).hex())
        return losses

    with checkpointing(tmp_path, every=EVERY):
        whole = cell()
    with resume(checkpoints(tmp_path)[1]):
        assert cell() == whole
