"""Networks of any size: their weights are those of formulas, and they train on seeded data."""

import os
import subprocess

import numpy as np
import pytest
from optional import lazy
from warm_python import warm_python

from tpunb.studies.sweeps import cnn, fc, rnn, transformer
from tpunb.studies.sweeps.generators import VOCABULARY

tf = lazy("tensorflow")

FC = [
    {"layers": layers, "nodes": nodes, "input": wide, "output": out, "batch": 2}
    for layers in (1, 4, 9)
    for nodes in (32, 200)
    for wide, out in ((2000, 1000), (17, 3))
]
CNN = [
    ("residual", (2, 2, 2, 2), 64, 1000),
    ("residual", 1, 16, 7),
    ("residual", (3,), 8, 10),
    ("residual", (1, 2), 5, 2),
    ("bottleneck", (3, 4, 6, 3), 64, 1000),
    ("bottleneck", (1, 1), 16, 10),
    ("bottleneck", 2, 4, 5),
    ("bottleneck", (2,), 1, 1),
]
RNN = [
    (cell, layers, size, embedding)
    for cell in ("rnn", "lstm", "gru")
    for layers, size, embedding in ((1, 8, 20), (3, 16, 16), (2, 1, 5), (5, 30, 7))
]
TRANSFORMER = [(1, 8, 1), (2, 8, 4), (3, 24, 8), (4, 64, 2), (1, 1, 1), (2, 100, 10), (6, 16, 16), (3, 30, 5)]
assert len(FC) + len(CNN) + len(RNN) + len(TRANSFORMER) == 40


@pytest.mark.parametrize("point", FC, ids=str)
def test_fc_has_the_weights_of_the_formula(point):
    layers, nodes, wide, out, _ = point.values()
    hidden = wide * nodes + nodes + (layers - 1) * (nodes**2 + nodes)
    assert fc(**point)[0].count_params() == hidden + nodes * out + out


def test_fc_has_the_published_number_of_weights():
    assert fc(layers=4, nodes=512, input=2000, output=1000)[0].count_params() == 2_325_480


def convolution(kernel, before, after):
    return kernel**2 * before * after + 4 * after  # with the four weights of the normalisation of each filter


def blocks_of(kind, groups, filters):
    before, weights = filters, 0
    for group, number in enumerate(groups):
        inside = filters * 2**group
        after = inside * (4 if kind == "bottleneck" else 1)
        for block in range(number):
            if kind == "bottleneck":
                weights += convolution(1, before, inside) + convolution(3, inside, inside)
                weights += convolution(1, inside, after)
            else:
                weights += convolution(3, before, inside) + convolution(3, inside, after)
            if before != after or (group and not block):
                weights += convolution(1, before, after)
            before = after
    return weights, before


@pytest.mark.parametrize(("kind", "blocks", "filters", "classes"), CNN, ids=str)
def test_cnn_has_the_weights_of_the_formula(kind, blocks, filters, classes):
    groups = [blocks] * 4 if isinstance(blocks, int) else blocks
    inside, last = blocks_of(kind, groups, filters)
    model, _ = cnn(kind, blocks=blocks, filters=filters, image=32, classes=classes, batch=1)
    assert model.count_params() == convolution(7, 3, filters) + inside + last * classes + classes


def test_a_cnn_is_resnet_50():
    model, data = cnn("bottleneck", blocks=(3, 4, 6, 3), filters=64, image=224, classes=1000, batch=2)
    assert model.count_params() == pytest.approx(25.6e6, rel=0.005)
    theirs = tf.keras.applications.ResNet50(weights=None).count_params()
    assert model.count_params() == pytest.approx(theirs, rel=0.005)  # theirs have biases that are not needed
    assert data.element_spec[0].shape == (2, 224, 224, 3)


@pytest.mark.parametrize(("cell", "layers", "size", "embedding"), RNN, ids=str)
def test_rnn_has_the_weights_of_the_formula(cell, layers, size, embedding):
    gates, biases = {"rnn": (1, 1), "lstm": (4, 1), "gru": (3, 2)}[cell]
    inputs = [embedding] + [size] * (layers - 1)
    hidden = sum(gates * size * (wide + size + biases) for wide in inputs)
    model, _ = rnn(cell=cell, layers=layers, size=size, length=4, embedding=embedding, batch=2)
    assert model.count_params() == VOCABULARY * embedding + hidden + size * VOCABULARY + VOCABULARY


@pytest.mark.parametrize(("layers", "width", "heads"), TRANSFORMER, ids=str)
def test_transformer_has_the_weights_of_the_formula(layers, width, heads):
    model, _ = transformer(layers=layers, width=width, heads=heads, length=4, batch=2)
    blocks = layers * (12 * width**2 + 13 * width)
    assert model.count_params() == blocks + 2 * width + 2 * VOCABULARY * width + VOCABULARY


SMALL = {
    "fc": lambda: fc(layers=1, nodes=8, input=4, output=3, batch=2),
    "cnn": lambda: cnn(blocks=(1,), filters=4, image=16, classes=3, batch=2),
    "rnn": lambda: rnn(size=8, length=3, embedding=4, batch=2),
    "transformer": lambda: transformer(layers=1, width=8, heads=2, length=4, batch=2),
}


@pytest.mark.live
@pytest.mark.parametrize("name", SMALL)
def test_models_train_and_data_are_endless_and_seeded(name):
    (model, data), (_, again) = SMALL[name](), SMALL[name]()
    batches = list(data.take(3))
    for batch, other in zip(batches, again.take(3), strict=True):
        for mine, theirs in zip(batch, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert len(batches) == 3
    model.run_eagerly = True
    history = model.fit(data, steps_per_epoch=4, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]  # one batch is learnt by heart
    assert model.predict(data.take(1), verbose=0).shape[0] == 2


@pytest.mark.live
def test_on_jax_the_data_are_endless_too():
    pytest.importorskip("jax")
    code = """
from tpunb.studies.sweeps import fc
model, data = fc(layers=1, nodes=4, input=3, output=2, batch=2)
assert data.num_batches is None and data[0][0].shape == (2, 3), data
loss = model.fit(data, steps_per_epoch=5, verbose=0).history["loss"]
assert len(loss) == 1 and loss[0] > 0, loss
"""
    command = [*warm_python(KERAS_BACKEND="jax"), "-c", code]
    subprocess.run(command, check=True, env={**os.environ, "KERAS_BACKEND": "jax"}, timeout=600)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fc(layers=0), "The layers parameter of fc must be an int of 1 or more. Got 0 instead"),
        (lambda: fc(nodes=2.5), "The nodes parameter of fc must be an int of 1 or more. Got 2.5 instead"),
        (lambda: cnn("plain"), "The kind parameter of cnn must be one of residual, bottleneck. Got 'plain' instead"),
        (lambda: cnn(blocks=()), "The blocks parameter of cnn must be an int of 1 or more. Got 0 instead"),
        (lambda: cnn(blocks=(1, -1)), "The blocks parameter of cnn must be an int of 1 or more. Got -1 instead"),
        (lambda: rnn(cell="mamba"), "The cell parameter of rnn must be one of rnn, lstm, gru. Got 'mamba' instead"),
        (lambda: transformer(width=10, heads=3), "must divide width. Got 3 for 10 instead"),
    ],
)
def test_wrong_sizes_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
