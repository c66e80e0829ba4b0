"""Kaggle-style Keras kernel: Conv1D on signals, macro-F1 callback on the validation set."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import keras
from keras import layers
from sklearn.metrics import f1_score

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--epochs", type=int, default=3)
args = ap.parse_args()
waste = 0.0
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
n, T = 1400, 256
label = rng.integers(0, 5, n)
phase = rng.uniform(0, 6, (n, 1))
X = np.sin(np.linspace(0, 12, T) * (1 + .25 * label[:, None]) + phase) + rng.normal(0, .5, (n, T))
X = X[..., None].astype("float32")
Xtr, ytr, Xva, yva = X[:960], label[:960], X[1280:], label[1280:]
Xva, yva = Xva[:40], yva[:40]
count = {"steps": 0, "evals": 0, "predicts": 0}


class MacroF1(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        global waste
        t = time.perf_counter()
        if args.repaired:
            pred = self.model.predict(Xva, verbose=0).argmax(1)
            count["predicts"] += 2
        else:
            pred = []
            for x in Xva:
                p = self.model.predict(x[np.newaxis], verbose=0)
                pred.append(p.argmax())
                count["predicts"] += 1
        waste += time.perf_counter() - t
        print(f"epoch {epoch} f1 {f1_score(yva, pred, average='macro'):.4f}")


class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        count["steps"] += 1

    def on_test_batch_end(self, batch, logs=None):
        count["evals"] += 1


model = keras.Sequential([keras.Input((T, 1)),
                          layers.Conv1D(64, 7, padding="same", activation="relu"),
                          layers.Conv1D(64, 7, padding="same", activation="relu"), layers.MaxPooling1D(2),
                          layers.Conv1D(96, 5, padding="same", activation="relu"), layers.GlobalAveragePooling1D(),
                          layers.Dense(5, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(Xtr, ytr, batch_size=32, epochs=args.epochs, validation_data=(Xva, yva), verbose=2,
          callbacks=[MacroF1(), Count()])

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": count["steps"], "evaluation_steps": count["evals"], "wasted_s": waste}, f)
