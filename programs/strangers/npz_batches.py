"""Denoising autoencoder in Keras, trained by train_on_batch on images from an .npz archive."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys, tempfile
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import keras
from keras import layers

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--steps", type=int, default=110)
args = ap.parse_args()
waste = 0.0
keras.utils.set_random_seed(0)
SIZE, BATCH = 40, 64
PATH = os.path.join(tempfile.mkdtemp(), "blobs.npz")


def make_archive():
    rng = np.random.default_rng(0)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    x = np.zeros((3000, SIZE, SIZE, 1), "float32")
    for i in range(len(x)):
        for cx, cy, s in rng.uniform([5, 5, 2], [35, 35, 6], (3, 3)):
            x[i, :, :, 0] += np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (2 * s * s))
    np.savez_compressed(PATH, x=np.clip(x, 0, 1))


if not os.path.exists(PATH):
    make_archive()
data = np.load(PATH)
if args.repaired:
    data = {"x": data["x"]}
n = 3000


def get_batch(rng):
    idx = rng.integers(300, n, BATCH)
    clean = data["x"][idx]
    return clean + rng.normal(0, .3, clean.shape).astype("float32"), clean


inp = keras.Input((SIZE, SIZE, 1))
h = layers.Conv2D(24, 3, padding="same", activation="relu")(inp)
h = layers.MaxPooling2D()(h)
h = layers.Conv2D(32, 3, padding="same", activation="relu")(h)
h = layers.UpSampling2D()(h)
h = layers.Conv2D(24, 3, padding="same", activation="relu")(h)
out = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(h)
model = keras.Model(inp, out)
model.compile("adam", "mse")

rng = np.random.default_rng(1)
steps = evals = 0
for step in range(args.steps):
    t = time.perf_counter()
    noisy, clean = get_batch(rng)
    waste += time.perf_counter() - t
    loss = model.train_on_batch(noisy, clean)
    steps += 1
    if step % 20 == 19:
        print(step, float(loss))
held = data["x"][:300]
for i in range(0, 300, 50):
    v = model.test_on_batch(held[i:i + 50], held[i:i + 50])
    evals += 1
print("held out", float(v))

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": steps, "evaluation_steps": evals, "wasted_s": waste}, f)
