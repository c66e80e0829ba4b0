"""Next-item recommendation in Keras; each example is a user's history out of a table of events."""
import json
import time

BEGAN = time.perf_counter()
import math
import os

import keras
import numpy as np
import pandas as pd
from keras import layers

REPAIRED = os.environ.get("REPAIRED") == "1"
USERS, ITEMS, HISTORY = 1800, 1000, 30
BUILT = 0.0


def events(count=60_000, seed=0):
    rng = np.random.default_rng(seed)
    user = rng.integers(0, USERS, count)
    item = (user * 7 + rng.integers(0, 60, count)) % ITEMS + 1
    frame = pd.DataFrame({"user": user, "item": item, "time": rng.integers(0, 10**9, count),
                          "device": rng.choice(["phone", "tablet", "tv"], count),
                          "seconds": rng.exponential(60, count)})
    return frame.sample(frac=1, random_state=0).reset_index(drop=True)


class Histories(keras.utils.PyDataset):
    """Batches of the last HISTORY items of users and the item that followed."""

    def __init__(self, frame, users, batch, shuffle, **kwargs):
        super().__init__(**kwargs)
        self.frame, self.users, self.batch, self.shuffle = frame, np.array(users), batch, shuffle
        self.rng = np.random.default_rng(1)
        self.groups = None
        if REPAIRED:
            ordered = frame.sort_values("time")
            self.groups = {u: g for u, g in ordered.groupby("user")["item"].agg(np.array).items()}

    def __len__(self):
        return math.ceil(len(self.users) / self.batch)

    def history(self, user):
        if self.groups is not None:
            return self.groups[user]
        rows = self.frame[self.frame["user"] == user].sort_values("time")
        return rows["item"].to_numpy()

    def __getitem__(self, index):
        global BUILT
        began = time.perf_counter()
        x = np.zeros((self.batch, HISTORY), "int32")
        y = np.zeros(self.batch, "int32")
        users = self.users[index * self.batch:(index + 1) * self.batch]
        for row, user in enumerate(users):
            items = self.history(user)
            past = items[-HISTORY - 1:-1]
            x[row, HISTORY - len(past):] = past
            y[row] = items[-1]
        BUILT += time.perf_counter() - began
        return x[:len(users)], y[:len(users)]

    def on_epoch_end(self):
        if self.shuffle:
            self.rng.shuffle(self.users)


class Counter(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        Counter.steps += 1


def build():
    inputs = keras.Input((HISTORY,), dtype="int32")
    x = layers.Embedding(ITEMS + 1, 64)(inputs)
    for _ in range(2):
        x = layers.Conv1D(96, 5, padding="causal", activation="relu")(x)
        x = layers.LayerNormalization()(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(ITEMS + 1)(x))
    rate = keras.optimizers.schedules.CosineDecay(2e-3, 300)
    model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=[keras.metrics.SparseTopKCategoricalAccuracy(10, name="top10")])
    return model


def main():
    keras.utils.set_random_seed(0)
    frame = events()
    users = np.arange(USERS)
    train = Histories(frame, users[:-200], 32, True)
    valid = Histories(frame, users[-200:], 100, False)
    model = build()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=16, restore_best_weights=True)
    model.fit(train, validation_data=valid, epochs=16, callbacks=[stop, Counter()], verbose=2)
    truth = {"train_steps": Counter.steps, "evaluation_steps": None, "wasted_s": BUILT}
    with open(os.environ["TRUTH_FILE"], "w") as file:
        json.dump(truth, file)


if __name__ == "__main__":
    main()
