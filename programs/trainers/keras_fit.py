"""Train a model of Keras with ``fit``, fed by a PyDataset, with a callback, on any backend."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np

from programs.trainers import Truth, reduced, truth_of, work

WIDTH, BATCH, LAYERS = 512, 64, 4


class Batches(keras.utils.PyDataset):
    """Batches that take time to make."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth = truth

    def __len__(self) -> int:
        return self.truth.steps

    def __getitem__(self, index: int) -> Any:
        with self.truth("data"):
            time.sleep(self.truth.seconds("data"))
        return np.full((BATCH, WIDTH), index % 7, "float32"), np.zeros((BATCH, 1), "float32")


class Hooks(keras.callbacks.Callback):
    """What the program does after each step."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth = truth

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Waste time, read the parameters, or save."""
        truth = self.truth
        with truth("hook"):
            work(truth.seconds("hook"))
        if truth.waste == "read":
            with truth("read"):
                [reduced(keras.ops.convert_to_numpy(each)) for each in self.model.trainable_variables]
        if truth.saves_after(batch):
            with truth("save"):
                self.model.save(truth.folder / f"step-{batch}.keras")
        truth.stepped()


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    truth = truth_of(arguments)
    layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with truth.training(), contextlib.redirect_stdout(io.StringIO()) as log:
        model.fit(Batches(truth), shuffle=False, verbose=2, callbacks=[Hooks(truth)])
    if logged := re.search(r"(\d+)ms/step", log.getvalue()):  # with the compilation in the first
        truth.own_s["training"] = truth.steps * int(logged[1]) / 1000
    truth.write(int(model.optimizer.iterations), in_thread=keras.backend.backend() != "tensorflow")


if __name__ == "__main__":
    main(sys.argv[1:])
