"""Samples and tokens of batches, as they are fetched and in the steps that they are of."""

import numpy as np
import pytest
from optional import lazy

import tpunb as tp
from tpunb.instrument.batches import NOTHING, Batches, described
from tpunb.instrument.sink import Signature, What
from tpunb.step_stats.batch_size import Size, added, size_of
from tpunb.step_stats.step_fold import Event, StepFold

torch, tf, jax, keras = lazy("torch"), lazy("tensorflow"), lazy("jax"), lazy("keras")


def size(batch, batches=None):
    signature, kept = (batches or Batches()).of("a", batch)
    return size_of(signature, None if kept is None else int(kept.__index__()))


IDS = np.ones((4, 16), np.int64)
MASK = np.arange(64).reshape(4, 16) % 4 > 0


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((np.zeros((32, 28, 28), "f"), np.zeros(32, "i8")), (32, None)),
        ((np.zeros((28, 28), "f"), np.int64(7)), (None, None)),  # one sample
        (IDS, (4, 64)),
        ({"input_ids": IDS, "attention_mask": MASK}, (4, 48)),
        ({"input_ids": IDS, "key_padding_mask": MASK}, (4, 16)),
        ({"input_ids": IDS, "mask": MASK}, (4, None)),  # of padding, or of what is to be predicted
        ({"input_ids": IDS, "attention_mask": np.ones((4, 1, 16, 16))}, (4, None)),
        ((np.zeros((32, 784), "u1"), np.zeros(32, "i8")), (32, None)),
        ((np.zeros((32, 20), "f"), np.zeros((32, 10), "i8")), (32, None)),  # labels beside features
        ({"pixels": np.zeros((4, 20), "f"), "input_ids": IDS}, (4, 64)),
        ((np.zeros((32, 3)), np.zeros((8, 3))), (None, None)),
        (["a text", "another"], (None, None)),
        (object(), (None, None)),
    ],
)
def test_a_batch_has_samples_and_tokens_by_its_arrays(batch, expected):
    assert size(batch) == expected


def test_batches_of_one_stream_may_differ_in_shape_mask_and_structure():
    batches = Batches()
    for rows in (8, 8, 3):
        ids = np.ones((rows, 16), np.int64)
        assert size({"input_ids": ids, "attention_mask": ids > 0}, batches) == (rows, 16 * rows)
    assert size((np.zeros((5, 2)),), batches) == (5, None)
    assert size({"input_ids": IDS, "attention_mask": MASK}, batches) == (4, 48)


@pytest.mark.parametrize("make", ["torch.from_numpy", "tf.constant", "jax.numpy.asarray"])
def test_arrays_of_libraries_are_read_without_computing(make):
    library, _, path = make.partition(".")
    function = {"torch": torch, "tf": tf, "jax": jax}[library]
    for name in path.split("."):
        function = getattr(function, name)
    batch = {"input_ids": function(IDS.astype("int32")), "attention_mask": function(MASK)}
    batches = Batches()
    assert [size(batch, batches) for _ in range(3)] == [(4, 48)] * 3
    assert batches.of("a", batch)[0].returns == "input_ids:int32[4,16], attention_mask:bool[4,16]"


def test_a_signature_that_is_cut_or_of_another_kind_is_unknown():
    assert size_of(Signature("", "ids:int64[8,128], la…")) == (None, None)
    assert size_of(Signature("float32[8]", "float32[8]")) == (None, None)
    assert size_of(None) == (None, None)
    assert added([Size(1, 2), size_of(NOTHING)]) == (1, None) or size_of(NOTHING) == (0, 0)
    assert added([Size(1, 2), Size(3, None)]) == (4, None)


def fetched(at, stream, rows=8, **more):
    holds = described({"ids": ("int64", (rows, 10))})
    return Event("fetch", at, at + 1, What("torch", "", "next"), stream, arrays=holds, **more)


def test_steps_have_the_batches_that_led_to_their_update():
    fold, steps = StepFold(), []
    for number, rows in enumerate([8, 8, 8, 3]):
        steps += fold.add(fetched(10 * number, 1, rows))
        steps += fold.add(Event("gradient", 10 * number + 3, 10 * number + 4))
        if number % 2:
            steps += fold.add(Event("update", 10 * number + 5, 10 * number + 6, None, 7))
    steps += fold.add(fetched(40, 1, end_of="the data")) + fold.finish()
    assert [(step.kind, step.size) for step in steps] == [("train", (16, 160)), ("train", (11, 110))]


def test_a_marked_step_has_the_batch_fetched_before_it_and_those_within():
    fold, program = StepFold(), What("tpunb", "", "Run.step")
    steps = []
    for at in (0, 100):
        steps += fold.add(Event("mark", at, at, program, "train", edge="begin"))
        steps += fold.add(fetched(at + 1, 1, 3))
        steps += fold.add(fetched(at + 3, 1, 4))
        steps += fold.add(Event("mark", at, at + 9, program, "train", edge="end"))
        steps += fold.add(fetched(at + 10, 2, 5))
    assert [step.size for step in steps] == [(7, 70), (12, 120)]


@pytest.mark.live
@pytest.mark.parametrize("data", ["arrays", "tf.data"])
def test_a_fit_counts_each_sample_with_the_last_short_batch(tmp_path, data):
    model = keras.Sequential([keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((23, 6), "i8"), np.zeros(23, "f")
    of = (x, y) if data == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)).batch(8),)
    with tp.capture(tmp_path / "run") as run:
        model.fit(*of, epochs=2, verbose=0, **({"batch_size": 8} if data == "arrays" else {}))
        live = [record.size for record in run._session.recorder._unwritten]
    steps = tp.steps(tmp_path / "run").frame
    assert steps["samples"].to_list() == [8, 8, 7] * 2
    assert steps["tokens"].to_list() == [48, 48, 42] * 2
    assert set(live) <= {(8, 48), (7, 42)}


@pytest.mark.live
def test_an_accumulating_loop_counts_tokens_without_padding(tmp_path):
    ids = torch.ones(22, 6, dtype=torch.long)
    mask = (torch.arange(22)[:, None] > torch.arange(6)).long()
    rows = [{"input_ids": each, "attention_mask": kept} for each, kept in zip(ids, mask, strict=True)]
    model = torch.nn.Embedding(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counted = [0, 0]
    with tp.capture(tmp_path / "run"):
        for number, batch in enumerate(torch.utils.data.DataLoader(rows, batch_size=4), 1):
            counted[0] += len(batch["input_ids"])
            counted[1] += int(batch["attention_mask"].sum())
            model(batch["input_ids"]).sum().backward()
            if number % 3 == 0:
                optimizer.step()
    steps = tp.steps(tmp_path / "run").frame.filter(kind="train")
    assert [steps["samples"].sum(), steps["tokens"].sum()] == counted
    assert len(steps) == 2
