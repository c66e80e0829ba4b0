"""Named-entity tagging in Keras with the entity-level F1 that papers report."""
import json
import time

BEGAN = time.perf_counter()
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

REPAIRED = os.environ.get("REPAIRED") == "1"
WASTED = 0.0
TAGS, LENGTH, VOCAB = 9, 80, 3000  # O, then B- and I- of four kinds


NAMES = ["O"] + [f"{p}-{kind}" for kind in ("PER", "LOC", "ORG", "MISC") for p in "BI"]


def ends(before, tag, kind_before, kind):
    if before == "O":
        return False
    return tag in ("B", "O") or kind_before != kind


def starts(before, tag, kind_before, kind):
    if tag == "O":
        return False
    return tag == "B" or before == "O" or kind_before != kind


def spans(row):
    """The entities of a sentence, as conlleval counts them."""
    found, begin, before, kind_before = set(), 0, "O", ""
    for i, name in enumerate([NAMES[t] for t in row] + ["O"]):
        tag, kind = name[0], name.split("-")[-1]
        if ends(before, tag, kind_before, kind):
            found.add((kind_before, begin, i - 1))
        if starts(before, tag, kind_before, kind):
            begin = i
        before, kind_before = tag, kind
    return found


def entity_f1(truth, guess):
    global WASTED
    began = time.perf_counter()
    right = wanted = given = 0
    for t, g in zip(truth.tolist(), guess.tolist()):
        a, b = spans(t), spans(g)
        right, wanted, given = right + len(a & b), wanted + len(a), given + len(b)
    WASTED += time.perf_counter() - began
    return np.float32(2 * right / max(1, wanted + given))


def span_f1(y_true, y_pred):
    guess = tf.argmax(y_pred, -1, output_type=tf.int32)
    score = tf.numpy_function(entity_f1, [tf.cast(y_true, tf.int32), guess], tf.float32)
    return tf.ensure_shape(score, [])


def sentences(count, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(100, VOCAB, (count, LENGTH))
    tags = np.zeros((count, LENGTH), "int32")
    for row in range(count):
        at = 0
        while at < LENGTH - 5:
            at += rng.integers(1, 5)
            kind, size = rng.integers(0, 4), rng.integers(1, 4)
            tags[row, at] = 2 * kind + 1
            tags[row, at + 1:at + size] = 2 * kind + 2
            words[row, at:at + size] = 10 * kind + rng.integers(0, 10, len(words[row, at:at + size]))
            at += size
    return words.astype("int32"), tags


class Count(keras.callbacks.Callback):
    total = 0

    def on_train_batch_end(self, batch, logs=None):
        Count.total += 1


def build():
    model = keras.Sequential([
        keras.Input((LENGTH,), dtype="int32"),
        layers.Embedding(VOCAB, 32),
        layers.Conv1D(32, 5, padding="same", activation="relu"),
        layers.Dropout(0.1),
        layers.Conv1D(32, 5, padding="same", activation="relu"),
        layers.Dense(TAGS),
    ])
    model.compile(optimizer=keras.optimizers.AdamW(1e-3),
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"] if REPAIRED else ["accuracy", span_f1])
    return model


def main(epochs=14, batch=128):
    keras.utils.set_random_seed(0)
    x, y = sentences(6400, 0)
    vx, vy = sentences(512, 1)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(6400).batch(batch).prefetch(2)
    valid = tf.data.Dataset.from_tensor_slices((vx, vy)).batch(batch).cache()
    model = build()
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=2)
    model.fit(train, validation_data=valid, epochs=epochs, verbose=2, callbacks=[plateau, Count()])
    guess = model.predict(vx, verbose=0).argmax(-1)
    print(f"entity F1 {entity_f1(vy, guess):.3f}")
    truth = {"train_steps": Count.total, "evaluation_steps": None, "wasted_s": WASTED}
    with open(os.environ["TRUTH_FILE"], "w") as file:
        json.dump(truth, file)


main()
