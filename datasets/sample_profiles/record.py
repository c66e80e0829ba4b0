"""Record the sample runs again: ``python datasets/sample_profiles/record.py [NAME ...]``.

``keras_cnn`` and ``keras_transformer`` are real Keras trainings on this machine's CPU, with an evaluation after every
epoch and periodic checkpoints, captured with back-to-back windows. ``pod`` is simulated: 24 hosts of which two are slow
(``benchmarks/simulate``). All are statistics only. Each replaces ``datasets/sample_profiles/NAME``.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import polars as pl
import tensorflow as tf
from keras import layers

import tpunb as tp
from tpunb.io.run_writer import RunWriter
from tpunb.profiler.capture import Schedule

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
EPOCHS, TRAIN, TEST = 4, 100, 20  # steps per epoch
SAVES = 10  # training steps between checkpoints


def keras_cnn() -> tuple[keras.Model, tf.data.Dataset, tf.data.Dataset]:
    """Build a small convolutional classifier of synthetic 32x32 images, with flips and crops in the input pipeline."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32 * TRAIN, 36, 36, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 32 * TRAIN)

    def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, (32, 32, 3)))
        return tf.cast(image, tf.float32) / 255.0, label

    model = keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(32 * TRAIN, seed=0)
    train = data.map(augment, num_parallel_calls=2).batch(32).prefetch(2)
    test = tf.data.Dataset.from_tensor_slices((images[: 32 * TEST], labels[: 32 * TEST])).map(augment).batch(32)
    return model, train, test


def keras_transformer() -> tuple[keras.Model, tf.data.Dataset, tf.data.Dataset]:
    """Build one encoder block of a Transformer that classifies synthetic sentences of 32 tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 1000, (32 * TRAIN, 32))
    labels = rng.integers(0, 2, 32 * TRAIN)
    words = layers.Input((32,), dtype="int32")
    x = layers.Embedding(1000, 64)(words)
    attended = layers.MultiHeadAttention(4, 16)(x, x)
    x = layers.LayerNormalization()(x + attended)
    hidden = layers.Dense(64)(layers.Dense(128, activation="gelu")(x))
    x = layers.LayerNormalization()(x + hidden)
    model = keras.Model(words, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    train = tf.data.Dataset.from_tensor_slices((tokens, labels)).shuffle(32 * TRAIN, seed=0).batch(32).prefetch(2)
    test = tf.data.Dataset.from_tensor_slices((tokens[: 32 * TEST], labels[: 32 * TEST])).batch(32)
    return model, train, test


MODELS = {"keras_cnn": keras_cnn, "keras_transformer": keras_transformer}


def record(name: str) -> None:
    """Train the model of a sample under a capture, and describe the recording in ``about.toml``."""
    keras.utils.set_random_seed(0)
    build = MODELS[name]
    model, train, test = build()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)

        def save(batch: int, logs: object) -> None:
            if batch % SAVES == SAVES - 1:
                manager.save()

        with tp.capture(target, schedule=Schedule.continuous(), keep="none") as run:
            model.fit(
                train,
                validation_data=test,
                epochs=EPOCHS,
                verbose=0,
                shuffle=False,  # the dataset shuffles itself
                callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=save)],
            )
    steps = tp.steps(tp.load(run))
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    (target / "about.toml").write_text(
        f'name = "{name}"\n'
        f'what = "{(build.__doc__ or "").removeprefix("Build ")}"\n'
        f'run = "{EPOCHS} epochs of {TRAIN} training steps of 32 samples, {TEST} evaluation steps after each, '
        f'a tf.train checkpoint after every {SAVES}th training step"\n'
        f'recorded = "{datetime.now(UTC):%Y-%m-%d}"\n'
        f'device = "CPU, {os.cpu_count()} cores, {platform.machine()}"\n'
        f'versions = "tensorflow {tf.__version__}, keras {keras.__version__}, python {platform.python_version()}"\n'
        f"train_steps = {TRAIN}\n"
        f"test_steps = {TEST}\n"
        f"saves_every = {SAVES}\n"
        f"steps = {len(steps)}\n"
        f"seen_in_full = {len(steps.full())}\n"
        'keeps = "statistics only"\n'
        f'again = "python datasets/sample_profiles/record.py {name}"\n'
    )
    print(f"{name}: {steps}, {size / 1e3:.0f} kB")


HOSTS, CHIPS, STEPS = 24, 4, 40
POD_OPS, POD_COLLECTIVES = 40, 3  # of a step


def pod(name: str) -> None:
    """Simulate a pod with two slow hosts, write its XPlane files, and keep their statistics."""
    from simulate.pod import Fault
    from simulate.pod import pod as simulated_pod
    from simulate.step_program import step_program

    program = step_program(tp.sample("keras_cnn"), ops=POD_OPS, collectives=POD_COLLECTIVES)
    faults = [Fault("slow chip", (3,), 0.15, device=2), Fault("slow input", (11,), 0.08, every=4)]
    with tempfile.TemporaryDirectory() as folder:
        made = simulated_pod(program, hosts=HOSTS, chips=CHIPS, steps=STEPS, faults=faults, folder=folder)
        profile = tp.load(folder)
        steps = tp.steps(profile)
        tables = {name: getattr(steps, name) for name in ("ops", "devices", "collectives")}
        windows = profile.windows.with_columns(window=pl.lit(0, pl.Int64))  # one of all hosts
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    writer = RunWriter(target)
    writer.open()
    writer.part(0, {**tables, "steps": steps.frame, "windows": windows})
    writer.facts(
        {
            "name": name,
            "origin_ns": profile.origin_ns,
            "span_ps": profile.span_ps,
            "hardware": profile.hardware.to_dicts(),
            "devices": profile.hardware["device"].unique().sort().to_list(),
            "simulated": "benchmarks/simulate",
            "state": "finished",
        }
    )
    writer.close()
    span_ps, size = float(made.ends().max()), sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    truth = "".join(
        "\n[[fault]]\n"
        f'host = "{made.hosts[host]}"\n'
        f'kind = "{fault.kind}"\n'
        + (f'device = "/device:TPU:{fault.device}"\n' if fault.kind == "slow chip" else "")
        + f"every = {fault.every}  # steps\n"
        f"share = {fault.share}  # extra time by step time, mean over steps\n"
        f"gain = {made.cost_ps(host) / span_ps:.4f}  # step time of the pod without it, of step time\n"
        for fault in faults
        for host in fault.hosts
    )
    (target / "about.toml").write_text(
        f'name = "{name}"\n'
        'what = "a simulated pod in which two hosts are slow"\n'
        f'run = "{STEPS} training steps of {POD_OPS} operations, drawn from the sample keras_cnn, and '
        f'{POD_COLLECTIVES} all-reduces at which all hosts wait for the last"\n'
        "simulated = true\n"
        f'recorded = "{datetime.now(UTC):%Y-%m-%d}"\n'
        f'device = "none: {HOSTS} hosts of {CHIPS} chips are simulated"\n'
        f'versions = "tpunb {version("tpunb")}, numpy {np.__version__}, python {platform.python_version()}"\n'
        f"hosts = {HOSTS}\n"
        f"chips = {CHIPS}  # of each host\n"
        f"steps = {len(steps)}  # of all hosts\n"
        f"seen_in_full = {len(steps.full())}\n"
        'keeps = "statistics only"\n'
        f'again = "python datasets/sample_profiles/record.py {name}"\n{truth}'
    )
    print(f"{name}: {tp.hosts(tp.steps(tp.load(target)))}, {size / 1e3:.0f} kB")


SAMPLES = {**dict.fromkeys(MODELS, record), "pod": pod}

if __name__ == "__main__":
    for sample in sys.argv[1:] or SAMPLES:
        SAMPLES[sample](sample)
