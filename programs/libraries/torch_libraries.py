"""Libraries that train with PyTorch: steps and evaluated batches by the library's own counters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from programs.evaluated import WASTE, Counts, program

ROWS, WIDTH, CLASSES, BATCH = 640, 32, 4, 32
EPOCHS, HELD = 3, ROWS // 5


def examples() -> tuple[Any, Any]:
    """Return rows and their classes."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = torch.randn(ROWS, WIDTH)
    return rows, (rows[:, 0] > 0).long()


def loaders() -> tuple[Any, Any]:
    """Return a DataLoader of rows to train with, and one of those held out."""
    from torch.utils.data import DataLoader, TensorDataset

    class Rows(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return WASTE.row(super().__getitem__(index))

    rows, labels = examples()
    train, held = Rows(rows[HELD:], labels[HELD:]), TensorDataset(rows[:HELD], labels[:HELD])
    return DataLoader(train, batch_size=BATCH, shuffle=True), DataLoader(held, batch_size=BATCH)


def save(path: Path) -> None:
    """Save a state of 16 MB."""
    import torch

    torch.save({"average": torch.zeros(4_000_000)}, path)


def weights(model: Any) -> Any:
    """Return the first parameters of a model."""
    return next(iter(model.parameters())).detach()


def network() -> Any:
    """Return a classifier."""
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))


@program("accelerate")
def accelerate_loop(folder: Path) -> Counts:
    """Train with gradients of two batches and save the state in each epoch, as in Accelerate's quick tour."""
    import torch
    from accelerate import Accelerator

    (train, held), model = loaders(), network()
    optimizer = torch.optim.AdamW(model.parameters())
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model, optimizer, train, held = accelerator.prepare(model, optimizer, train, held)
    updates = batches = 0
    for epoch in range(EPOCHS):
        model.train()
        for rows, labels in train:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.cross_entropy(model(rows), labels))
                optimizer.step()
                optimizer.zero_grad()
            updates += accelerator.sync_gradients
            WASTE.update(weights(model), save)
        model.eval()
        for rows, labels in held:
            with torch.no_grad():
                accelerator.gather_for_metrics((model(rows).argmax(-1), labels))
            batches += 1
        accelerator.save_state(str(folder / f"epoch-{epoch}"))
    return {"train": updates, "eval": batches}


@program("lightning")
def fabric_loop(folder: Path) -> Counts:
    """Train with Fabric, as in Lightning's conversion of a PyTorch loop."""
    import torch
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    (train, held), model = fabric.setup_dataloaders(*loaders()), network()
    model, optimizer = fabric.setup(model, torch.optim.Adadelta(model.parameters()))
    updates = batches = 0
    for _ in range(EPOCHS):
        model.train()
        for rows, labels in train:
            optimizer.zero_grad()
            fabric.backward(torch.nn.functional.cross_entropy(model(rows), labels))
            optimizer.step()
            updates += 1
            WASTE.update(weights(model), save)
        model.eval()
        with torch.no_grad():
            for rows, labels in held:
                torch.nn.functional.cross_entropy(model(rows), labels).item()
                batches += 1
    fabric.save(folder / "model.ckpt", {"model": model})
    return {"train": updates, "eval": batches}


@program("fastai")
def fastai_cycle(folder: Path) -> Counts:
    """Train by ``fit_one_cycle`` with a metric."""
    import fastai.callback.schedule  # noqa: F401  it adds `fit_one_cycle`
    from fastai.callback.core import Callback
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner
    from fastai.metrics import accuracy
    from torch import nn

    counts = {True: 0, False: 0}

    class Counter(Callback):
        def after_batch(self) -> None:
            counts[bool(self.training)] += 1
            if self.training:
                WASTE.update(weights(self.model), save)

    train, held = (each.dataset for each in loaders())
    data = DataLoaders(DataLoader(train, bs=BATCH, shuffle=True), DataLoader(held, bs=BATCH))
    learner = Learner(data, network(), nn.CrossEntropyLoss(), metrics=accuracy, cbs=Counter(), path=folder)
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(EPOCHS, 1e-3)
    return {"train": counts[True], "eval": counts[False]}


@program("ignite")
def ignite_engines(folder: Path) -> Counts:
    """Train with Ignite's engines; after each epoch evaluate on both sets."""
    import torch
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    (train, held), model = loaders(), network()
    loss, counts = torch.nn.CrossEntropyLoss(), {"train": 0, "eval": 0}
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), 0.01), loss)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(loss)})

    def count(kind: str) -> None:
        counts[kind] += 1
        if kind == "train":
            WASTE.update(weights(model), save)

    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: count("train"))
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: count("eval"))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: (evaluator.run(train), evaluator.run(held)))
    trainer.run(train, max_epochs=EPOCHS)
    return counts


@program("skorch")
def skorch_classifier(folder: Path) -> Counts:
    """Fit a classifier of skorch, which holds out a fifth of the rows, and predict."""
    import torch
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback

    counts = {True: 0, False: 0}

    class Counter(Callback):
        def on_batch_end(self, net: Any, batch: Any = None, *, training: bool = False, **_: Any) -> None:
            counts[training] += 1
            if training:
                WASTE.update(weights(net.module_), save)

    rows, labels = (each.numpy() for each in examples())
    classifier = NeuralNetClassifier(
        network(), criterion=torch.nn.CrossEntropyLoss, max_epochs=EPOCHS, batch_size=BATCH, callbacks=[Counter()]
    )
    classifier.set_params(verbose=0).fit(rows, labels)
    classifier.predict_proba(rows[:HELD])
    return {"train": counts[True], "eval": counts[False] + HELD // BATCH}


@program("torch_geometric")
def graphs(folder: Path) -> Counts:
    """Classify graphs of different sizes, as in PyG's introduction."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    examples()

    def graph() -> Any:
        nodes = int(torch.randint(10, 40, ()))
        return Data(torch.randn(nodes, WIDTH), torch.randint(0, nodes, (2, 4 * nodes)), y=torch.randint(0, 2, (1,)))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(WIDTH, 64), GCNConv(64, 64)
            self.last = torch.nn.Linear(64, CLASSES)

        def forward(self, batch: Any) -> Any:
            nodes = self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)
            return self.last(global_mean_pool(nodes, batch.batch))

    data = [graph() for _ in range(ROWS // 2)]
    train, held, model = DataLoader(data[64:], BATCH, shuffle=True), DataLoader(data[:64], BATCH), Network()
    optimizer, updates, batches = torch.optim.Adam(model.parameters(), 0.01), 0, 0
    for _ in range(EPOCHS):
        model.train()
        for batch in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), batch.y).backward()
            optimizer.step()
            updates += 1
            WASTE.update(weights(model), save)
        model.eval()
        with torch.no_grad():
            for batch in held:
                (model(batch).argmax(-1) == batch.y).sum().item()
                batches += 1
    return {"train": updates, "eval": batches}


def pictures() -> tuple[Any, Any]:
    """Return pictures to train with, and those held out."""
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    examples()
    return FakeData(256, (3, 32, 32), CLASSES, ToTensor()), FakeData(64, (3, 32, 32), CLASSES, ToTensor())


@program("timm")
def timm_script(folder: Path) -> Counts:
    """Train as timm's script: a schedule of its updates, an average of the weights, validation of both, its saver."""
    import torch
    from timm import create_model, utils
    from timm.data import create_loader
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    sets, model = pictures(), create_model("test_resnet", num_classes=CLASSES)
    sizes = {"input_size": (3, 32, 32), "batch_size": 8, "use_prefetcher": False, "num_workers": 0}
    train, held = (create_loader(each, is_training=each is sets[0], **sizes) for each in sets)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3)
    average = utils.ModelEmaV3(model, decay=0.99)
    schedule = CosineLRScheduler(optimizer, t_initial=EPOCHS * len(train), t_in_epochs=False)
    saver = utils.CheckpointSaver(model, optimizer, model_ema=average, checkpoint_dir=str(folder), max_history=1)
    updates = batches = 0
    for epoch in range(EPOCHS):
        model.train()
        losses = utils.AverageMeter()
        for rows, labels in train:
            loss = torch.nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            updates += 1
            average.update(model, step=updates)
            optimizer.zero_grad()
            losses.update(loss.item(), rows.size(0))
            schedule.step_update(num_updates=updates)
            WASTE.update(weights(model), save)
        for network in (model, average):
            network.eval()
            with torch.no_grad():
                for rows, labels in held:
                    utils.accuracy(network(rows), labels, topk=(1, 2))
                    batches += 1
        saver.save_checkpoint(epoch, metric=losses.avg)
    return {"train": updates, "eval": batches}


@program("torchvision")
def torchvision_reference(folder: Path) -> Counts:
    """Train as torchvision's reference scripts: a logger yields the batches to both loops."""
    import torch
    from torchvision.models import mobilenet_v3_small

    class Logger:
        def __init__(self) -> None:
            self.losses = list[float]()

        def log_every(self, data: Any, number: int) -> Any:
            for at, batch in enumerate(data):
                yield batch
                if at % number == 0:
                    str(torch.tensor(self.losses).median().item())

    train, held = (torch.utils.data.DataLoader(each, batch_size=8) for each in pictures())
    model = mobilenet_v3_small(num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    updates = batches = 0
    for epoch in range(2):
        model.train()
        log = Logger()
        for rows, labels in log.log_every(train, 10):
            loss = torch.nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.losses.append(loss.item())
            updates += 1
            WASTE.update(weights(model), save)
        model.eval()
        log = Logger()
        with torch.inference_mode():
            for rows, labels in log.log_every(held, 100):
                log.losses.append(torch.nn.functional.cross_entropy(model(rows), labels).item())
                batches += 1
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"model_{epoch}.pth")
    return {"train": updates, "eval": batches}


@program("ultralytics")
def ultralytics_detector(folder: Path) -> Counts:
    """Train a detector on pictures of squares: gradients of more and more batches, validation after each epoch."""
    import numpy as np
    from PIL import Image
    from ultralytics import YOLO

    examples()
    draw = np.random.default_rng(0)
    for part, count in (("train", 64), ("val", 16)):
        for place in ("images", "labels"):
            (folder / place / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture, (x, y) = draw.integers(0, 120, (64, 64, 3)).astype("uint8"), draw.integers(0, 40, 2)
            picture[y : y + 20, x : x + 20] = 240
            Image.fromarray(picture).save(folder / "images" / part / f"{number}.jpg")
            label = f"0 {(x + 10) / 64} {(y + 10) / 64} 0.3125 0.3125\n"
            (folder / "labels" / part / f"{number}.txt").write_text(label)
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: square\n")
    model, batches = YOLO("yolo11n.yaml", verbose=False), list[Any]()
    model.add_callback("on_train_batch_end", lambda trainer: WASTE.update(weights(trainer.model), save))
    model.add_callback("on_val_batch_end", batches.append)
    options = {"imgsz": 64, "batch": 4, "workers": 0, "device": "cpu", "plots": False, "verbose": False}
    updates = _updates(lambda: model.train(data=str(data), epochs=2, project=str(folder), exist_ok=True, **options))
    return {"train": updates, "eval": len(batches)}


@program("deepspeed")
def deepspeed_engine(folder: Path) -> Counts:
    """Train by DeepSpeed's engine with gradients of two batches and a partitioned optimizer, in one process."""
    import os

    import deepspeed
    import torch

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
    config = {"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": 2, "steps_per_print": 10**9}
    config |= {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}, "zero_optimization": {"stage": 1}}
    (train, held), model = loaders(), network()
    engine, _, train, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=train.dataset, config=config
    )
    batches = 0
    for _ in range(EPOCHS):
        engine.train()
        for rows, labels in train:
            engine.backward(torch.nn.functional.cross_entropy(engine(rows), labels))
            engine.step()
            WASTE.update(weights(model), save)
        engine.eval()
        with torch.no_grad():
            for rows, labels in held:
                (engine(rows).argmax(-1) == labels).sum().item()
                batches += 1
    return {"train": engine.global_steps, "eval": batches}


@program("torch")
def compiled_model(folder: Path) -> Counts:
    """Train a model by ``torch.compile`` without code generation."""
    import torch

    (train, held), model = loaders(), network()
    optimizer, compiled = torch.optim.AdamW(model.parameters()), torch.compile(model, backend="aot_eager")
    updates = batches = 0
    for _ in range(EPOCHS):
        model.train()
        for rows, labels in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(compiled(rows), labels).backward()
            optimizer.step()
            updates += 1
            WASTE.update(weights(model), save)
        model.eval()
        with torch.no_grad():
            for rows, labels in held:
                (compiled(rows).argmax(-1) == labels).sum().item()
                batches += 1
    return {"train": updates, "eval": batches}


def moved(*_: Any) -> bool:
    """Go on after a move of the policy."""
    WASTE.update()
    return True


def _updates(train: Any) -> int:
    """Return how many updates of parameters a function makes."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    updates = list[int]()
    hook = register_optimizer_step_post_hook(lambda *_: updates.append(1))
    try:
        train()
    finally:
        hook.remove()
    return len(updates)


@program("stable_baselines3")
def ppo(folder: Path) -> Counts:
    """Train by PPO: 4 rollouts of 256 moves, each with 4 updates in 2 epochs."""
    from stable_baselines3 import PPO

    examples()
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, n_epochs=2, seed=0, device="cpu")
    return {"train": _updates(lambda: model.learn(1024, moved))}


@program("stable_baselines3")
def dqn(folder: Path) -> Counts:
    """Train by DQN: an update after each fourth move."""
    from stable_baselines3 import DQN

    examples()
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, train_freq=4, seed=0, device="cpu")
    return {"train": _updates(lambda: model.learn(900, moved))}


@program("keras")
def keras_on_torch(folder: Path) -> Counts:
    """Fit and evaluate with Keras on PyTorch; its backend is chosen before it is imported."""
    import os

    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"
    import keras

    rows, labels = (each.numpy() for each in examples())
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    held = rows[:HELD], labels[:HELD]
    each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda number, logs: WASTE.update())
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "callbacks": [each]}
    model.fit(rows[HELD:], labels[HELD:], validation_data=held, **options)
    model.evaluate(*held, batch_size=BATCH, verbose=0)
    return {"train": EPOCHS * (ROWS - HELD) // BATCH, "eval": (EPOCHS + 1) * HELD // BATCH}
