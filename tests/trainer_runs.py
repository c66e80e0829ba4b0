"""Trainings that do not know of a capture, each captured without windows, and what is found of them.

``python trainer_runs.py FOLDER NAME...`` captures some and writes ``FOLDER/found.json``: trainings with evaluations, of
`KINDS`, and programs with a waste, of ``programs/trainers``, which measure what they waste.
"""

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
STEPS, WASTE_S = 20, 0.03
ROWS = 64  # of a batch


def of_jax(folder):
    """Train with JAX alone, and evaluate after every fifth step."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def loss_of(weights, x):
        return jnp.mean((x @ weights - 1) ** 2)

    @jax.jit
    def update(weights, x):
        loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((x @ weights - 1) ** 2))(weights)
        return weights - 1e-3 * gradient, loss

    @jax.jit
    def evaluate(weights, x):
        return jnp.abs(x @ weights - 1).mean()

    weights, x, losses = jnp.zeros((ROWS, 1)), jnp.ones((ROWS, ROWS)), []
    for number in range(STEPS):
        weights, loss = update(weights, x)
        losses.append(float(loss))
        if number % 5 == 4:
            losses += [float(evaluate(weights, x)) for _ in range(3)]
    return {"train": STEPS, "eval": 3 * STEPS // 5}


def of_nnx(folder):
    """Train a model of NNX on Grain's batches, and evaluate on others after every tenth step."""
    import grain
    import numpy as np
    import optax
    from flax import nnx

    def batches(number):
        data = grain.MapDataset.source(np.ones((number * 8, ROWS), "float32")).batch(8)
        return data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))

    def loss_of(model, x):
        return ((model(x) - 1) ** 2).mean()

    @nnx.jit
    def train_step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(loss_of)(model, x)
        optimizer.update(model, gradients)
        return loss

    @nnx.jit
    def eval_step(model, x):
        return loss_of(model, x)

    model = nnx.Linear(ROWS, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    losses = []
    for number, x in enumerate(batches(STEPS)):
        losses.append(float(train_step(model, optimizer, x)))
        if number % 10 == 9:
            losses += [float(eval_step(model, x)) for x in batches(4)]
    return {"train": int(optimizer.step[...]), "eval": 4 * STEPS // 10}


def of_torch(folder, workers=0, batches=1):
    """Train with PyTorch, where an update may take several batches, and evaluate after each of two epochs."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model, x = torch.nn.Linear(ROWS, 1), torch.ones((8 * STEPS // 2, ROWS))
    optimizer = torch.optim.Adam(model.parameters())
    train, valid = (DataLoader(TensorDataset(rows), batch_size=8, num_workers=workers) for rows in (x, x[:40]))
    for _ in range(2):
        for number, (rows,) in enumerate(train):
            ((model(rows) - 1) ** 2).mean().backward()
            if number % batches == batches - 1:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for (rows,) in valid:
                model(rows)
    (updates,) = {int(state["step"]) for state in optimizer.state.values()}
    return {"train": updates, "eval": 2 * 5}


def of_torch_workers(folder):
    """Train with two workers of the DataLoader."""
    return of_torch(folder, workers=2)


def of_torch_accumulated(folder):
    """Train with gradients of two batches."""
    return of_torch(folder, batches=2)


def of_hugging_face(folder):
    """Train with the Trainer of Transformers, with gradients of two batches, and evaluate twice."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(ROWS, 1)

        def forward(self, x, labels):
            logits = self.linear(x)[:, 0]
            return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}

    torch.set_num_threads(1)
    data = [{"x": torch.ones(ROWS), "labels": torch.tensor(1.0)} for _ in range(2 * STEPS * 8)]
    options = TrainingArguments(
        str(folder / "checkpoints"),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        eval_strategy="steps",
        eval_steps=STEPS // 2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), options, train_dataset=data, eval_dataset=data[:40])
    trainer.train()
    return {"train": trainer.state.global_step, "eval": 2 * 5}


def of_lightning(folder):
    """Train with the Trainer of Lightning, with validation before the first step and after each of two epochs."""
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(ROWS, 1)

        def training_step(self, batch, number):
            return ((self.linear(batch[0]) - 1) ** 2).mean()

        def validation_step(self, batch, number):
            self.log("valid", self.training_step(batch, number))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    x = torch.ones((8 * STEPS // 2, ROWS))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        num_sanity_val_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    trainer.fit(Model(), *[DataLoader(TensorDataset(rows), batch_size=8) for rows in (x, x[:40])])
    return {"train": trainer.global_step, "eval": 2 + 2 * 5}


def of_keras(folder):
    """Fit for two epochs with validation after each."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((8 * STEPS // 2, ROWS), "float32")
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, validation_data=(x[:40], x[:40, :1]))
    return {"train": int(model.optimizer.iterations), "eval": 2 * 5}


def maxtext_command(folder, **options):
    """Return the arguments of MaxText's trainer for a small model on synthetic data; checkpoints are in `folder`."""
    config = next(Path(find_spec("maxtext").submodule_search_locations[0]).rglob("base.yml"))
    small = {
        **{"run_name": "small", "base_output_directory": folder / "out", "hardware": "cpu"},
        **{"dataset_type": "synthetic", "attention": "dot_product", "skip_jax_distributed_system": True},
        **{"base_emb_dim": 64, "base_mlp_dim": 128, "base_num_decoder_layers": 2, "head_dim": 32, "vocab_size": 256},
        **{"base_num_query_heads": 2, "base_num_kv_heads": 2, "max_target_length": 64, "per_device_batch_size": 2},
        **{"enable_checkpointing": True, "async_checkpointing": False},
        **options,
    }
    return ["train", str(config), *[f"{name}={value}" for name, value in small.items()]]


KINDS = {
    "jax": of_jax,
    "nnx": of_nnx,
    "torch": of_torch,
    "torch workers": of_torch_workers,
    "torch accumulated": of_torch_accumulated,
    "hugging face": of_hugging_face,
    "lightning": of_lightning,
    "keras": of_keras,
}
"""Trainings with evaluations, which return how many steps of each kind they took."""


def waste(name, folder):
    """Run a program of the benchmark with a waste, ``"plain_jax data"``; return what it measures."""
    sys.path.insert(0, str(BENCHMARKS))
    import programs.trainers

    program, place = name.split()
    programs.trainers.WASTE_S = WASTE_S
    module = importlib.import_module(f"programs.trainers.{program}")
    module.main(["--waste", place, "--steps", str(STEPS), "--folder", str(folder)])
    truth = json.loads((folder / "truth.json").read_text())
    return {"train": truth["steps"], "injected_s": truth["injected_s"][place]}


def captured(name, folder):
    """Capture a run; return its truth, its steps by kind and rule, and its accounts in seconds."""
    import tpunb as tp
    from tpunb.schema import ACCOUNTS

    folder.mkdir(parents=True)
    with tp.capture(folder / "run", schedule=tp.Schedule.ticks(), keep="none"):
        truth = KINDS[name](folder) if name in KINDS else waste(name, folder)
    profile = tp.load(folder / "run")
    steps = tp.steps(profile).frame.group_by("kind", "rule").len().rows()
    goodput = tp.goodput(profile)
    accounts = {account: goodput.time_ps(account) / 1e12 for account in ACCOUNTS}
    return {"truth": truth, "steps": steps, "accounts": accounts}


def found(folder, *names, **environment):
    """Capture runs in a process of their own; return what is found of each."""
    command = [sys.executable, __file__, str(folder), *names]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    package = os.pathsep.join([str(BENCHMARKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, **quiet, "PYTHONPATH": package, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


if __name__ == "__main__":
    top = Path(sys.argv[1])
    report = {name: captured(name, top / name.replace(" ", "-")) for name in sys.argv[2:]}
    (top / "found.json").write_text(json.dumps(report))
