"""A resumed fit is compared with the saved run: the steps verified, or the first that differs."""

import json
import warnings

import numpy as np
import pytest
from exact_fits import reused
from optional import lazy

from tpunb import signals
from tpunb.checkpoint import checkpointing
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.training import fingerprints

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live

FACTOR = {"value": 1.0}


def scaled(**compiled):
    """Return a model with a factor that is read from Python at each eager step."""

    class Scaled(keras.layers.Layer):
        def call(self, x):
            return x * FACTOR["value"]

    model = keras.Sequential([keras.Input((1,)), Scaled(), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mae", **compiled)
    return model


def train(file, *, callbacks=(), epochs=3, **compiled):
    """Train on 12 batches an epoch that are read from a file of lines."""
    data = tf.data.TextLineDataset(str(file)).map(tf.strings.to_number).map(lambda x: (x[None], x[None]))
    model = scaled(**compiled) if compiled else reused(scaled)
    model.fit(data.shuffle(9, seed=1).batch(8), epochs=epochs, verbose=0, callbacks=list(callbacks))
    return [weights.tolist() for weights in model.get_weights()]


@pytest.fixture
def numbers(tmp_path):
    file = tmp_path / "numbers.txt"
    file.write_text("\n".join(str(0.5 + at % 7) for at in range(96)))
    return file


def test_a_resumed_fit_is_verified(tmp_path, numbers):
    with checkpointing(tmp_path / "saved", every=20):
        whole = train(numbers)
    (file,) = (tmp_path / "saved").glob("fingerprints-*")
    steps = [json.loads(line)[0] for line in file.read_text().splitlines()]
    assert steps == [*range(20, 28)]  # epochs begin at 0, 12 and 24, and are saved at 20
    sentences = []
    with signals.resumed.connect(sentences.append), warnings.catch_warnings():
        warnings.filterwarnings("error", "the resumed run")
        with resume(tmp_path / "saved" / "tpunb-20", on_divergence="raise") as resumed:
            assert train(numbers) == whole
    assert sentences == [str(resumed)]
    assert resumed.verified_steps == 8
    assert str(resumed) == "resumed exactly at step 20, verified over 8 steps"


def test_the_first_step_of_each_later_epoch_is_verified(tmp_path, numbers):
    with checkpointing(tmp_path, every=12) as saving:
        train(numbers)
    assert [each.step for each in saving.saved] == [12, 24, 36]
    with resume(saving.saved[0]) as resumed:
        train(numbers)
    assert resumed.verified_steps == 16  # 12 to 19, and 24 to 31
    with checkpointing(tmp_path / "one", every=11) as saving:
        train(numbers, epochs=2)
    lines = (saving.folder / saving_file(saving)).read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == [*range(11, 19), 22, 23]
    with checkpointing(tmp_path / "rare", every=25) as saving:
        train(numbers, epochs=4)
    lines = (saving.folder / saving_file(saving)).read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == [*range(25, 33), 36]


def saving_file(saving):
    return json.loads((saving.saved[0].path / "tpunb.json").read_text())["fingerprints"]


@pytest.mark.parametrize("action", ["warn", "raise"])
def test_other_data_are_named_with_their_step(tmp_path, numbers, action):
    with checkpointing(tmp_path / "saved", every=5):
        train(numbers, epochs=1)
    numbers.write_text("\n".join(str(0.5 + at % 7 + (at > 90)) for at in range(96)))
    message = r"the data of step \d+ differ from those of the saved run"
    expected = pytest.raises(TpunbError, match=message) if action == "raise" else pytest.warns(match=message)
    with expected, resume(tmp_path / "saved" / "tpunb-5", on_divergence=action) as resumed:
        train(numbers, epochs=1)
    assert 3 <= resumed.verified_steps <= 6  # the shuffle draws nine numbers in advance
    assert (
        str(resumed)
        == f"resumed at step 5: the data of step {5 + resumed.verified_steps} differ from those of the saved run"
    )


@pytest.mark.parametrize("eager", [True, False])
def test_another_computation_is_named_with_its_step(tmp_path, numbers, eager, monkeypatch):
    monkeypatch.setitem(FACTOR, "value", 1.0)

    class Changing(keras.callbacks.Callback):
        """A callback that changes what no checkpoint holds."""

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 6 and eager:
                FACTOR["value"] += changed[0]
            elif batch == 6:
                self.model.layers[-1].kernel.assign(self.model.layers[-1].kernel + changed[0])

    def cell():
        return train(numbers, callbacks=[Changing()], epochs=1, **{"run_eagerly": True} if eager else {})

    changed = [0.0]
    with checkpointing(tmp_path / "saved", every=4):
        cell()
    changed[0] = 1.0
    message = "the computation of step 6 differs from that of the saved run, on the same data"
    with pytest.warns(match=message), resume(tmp_path / "saved" / "tpunb-4") as resumed:
        cell()
    assert resumed.verified_steps == 2
    assert str(resumed) == f"resumed at step 4: {message}"


def test_steps_of_several_batches_are_compared_by_their_logs(tmp_path, numbers):
    with checkpointing(tmp_path, every=6) as saving:
        train(numbers, steps_per_execution=3, epochs=2)
    with resume(saving.saved[0]) as resumed:
        train(numbers, steps_per_execution=3, epochs=2)
    assert resumed.verified_steps == 6  # turns that begin at 6, 9, 12, 15, 18 and 21


def test_without_fingerprints_a_resumed_fit_is_not_verified(tmp_path, numbers):
    with checkpointing(tmp_path, every=6) as saving:
        train(numbers, epochs=1)
    file = tmp_path / saving_file(saving)
    whole = file.read_text()
    for content, steps in ((whole[: len(whole) // 2], 3), ("[6, 7]", 0), ("", 0)):
        file.write_text(content)
        with resume(saving.saved[0]) as resumed:
            train(numbers, epochs=1)
        assert resumed.verified_steps == steps
    assert str(resumed) == "resumed exactly at step 6, not verified"


def test_an_error_in_a_fingerprint_leaves_the_fit_unchanged(tmp_path, numbers, monkeypatch):
    whole = train(numbers)
    for name in ("of_arrays", "digest", "_has_plain_batches"):
        with monkeypatch.context() as patch, pytest.warns(match="saving and tuning ended with an error"):
            patch.setattr(fingerprints, name, None)
            with checkpointing(tmp_path / name, every=5):
                assert train(numbers) == whole


def test_an_error_in_the_data_ends_the_fit_as_without_checkpoints(tmp_path, numbers):
    numbers.write_text("\n".join([*map(str, range(80)), "no number", *map(str, range(40))]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
        train(numbers, epochs=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no number"), checkpointing(tmp_path / "saved", every=1):
        train(numbers, epochs=1)


def test_samples_of_a_batch():
    def of(*arrays):
        return fingerprints.of_arrays(arrays)

    large = np.zeros((64, 4096), "f")
    changed = large.copy()
    changed[40, 3] = 1
    assert of(large) == of(large.copy()) != of(changed)
    assert of(large) != of(large.reshape(4096, 64))
    assert of([b"a", b"b"]) == of([b"a", b"b"]) != of([b"a", b"c"])
    assert of(np.float32(1)) != of(np.float64(1))


def test_on_divergence_is_checked():
    with (
        pytest.raises(ValueError, match="on_divergence parameter of resume must be 'warn' or 'raise'"),
        resume("missing", on_divergence="ignore"),
    ):
        pass
