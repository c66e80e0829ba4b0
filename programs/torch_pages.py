"""Programs after the documentation of PyTorch: loops over a DataLoader, whose batches come from ``run.batches``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import tpunb as tp
from programs import Script, images, labels, program, table, tokens

batches = tp.testing.null_run.batches
Count = Callable[[], None]


def pictures(count: int = 48, side: int = 8, channels: int = 1) -> Any:
    """Return images as PyTorch orders them."""
    return torch.from_numpy(images(count, side, channels)).permute(0, 3, 1, 2).contiguous()


def classes(count: int = 48) -> Any:
    """Return class numbers."""
    return torch.from_numpy(labels(count))


def rows(count: int = 48) -> TensorDataset:
    """Return rows of numbers, each with one to predict."""
    return TensorDataset(*map(torch.from_numpy, table(count)))


def updated(optimizer: Any, loss: Any) -> float:
    """Take a step; return the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@program("DataLoader", "torch")
def torch_quickstart(folder: Path) -> Script:
    """Classify images (https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        training = DataLoader(TensorDataset(pictures(), classes()), batch_size=8)
        testing = DataLoader(TensorDataset(pictures(16), classes(16)), batch_size=8)
        for _ in range(3):
            model.train()
            for x, y in batches(training, state={"model": model, "optimizer": optimizer}):
                step(updated(optimizer, functional.cross_entropy(model(x), y)))
            model.eval()
            with torch.no_grad():
                sum((model(x).argmax(1) == y).sum().item() for x, y in testing)
        return [model, optimizer]

    return Script(train)


@program("DataLoader shuffle, custom Dataset", "torch")
def torch_datasets(folder: Path) -> Script:
    """Read a dataset of one's own (https://docs.pytorch.org/tutorials/beginner/basics/data_tutorial.html)."""

    class Clothes(Dataset):
        def __init__(self, transform: Callable[[Any], Any]) -> None:
            self.images, self.labels, self.transform = pictures(), classes(), transform

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, at: int) -> Any:
            return self.transform(self.images[at]), int(self.labels[at])

    def train(step: Callable[[float], None]) -> list[Any]:
        loader = DataLoader(Clothes(lambda image: image * 2 - 1), batch_size=8, shuffle=True)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            for x, y in batches(loader, state={"model": model, "optimizer": optimizer}):
                step(updated(optimizer, functional.cross_entropy(model(x), y)))
        return [model, optimizer]

    return Script(train)


@program("DataLoader shuffle, validation each epoch", "torch")
def torch_training(folder: Path) -> Script:
    """Train, validate and keep the best (https://docs.pytorch.org/tutorials/beginner/introyt/trainingyt.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        training = DataLoader(TensorDataset(pictures(), classes()), batch_size=8, shuffle=True)
        validation = DataLoader(TensorDataset(pictures(16), classes(16)), batch_size=8, shuffle=False)
        best = 1e6
        for epoch in range(3):
            model.train(True)
            for x, y in batches(training, state={"model": model, "optimizer": optimizer}):
                step(updated(optimizer, functional.cross_entropy(model(x), y)))
            model.eval()
            with torch.no_grad():
                loss = float(sum(functional.cross_entropy(model(x), y) for x, y in validation))
            if loss < best:
                best = loss
                torch.save(model.state_dict(), folder / f"model_{epoch}")
        return [model, optimizer]

    return Script(train)


@program("DataLoader shuffle, 2 workers", "torch")
def torch_cifar10(folder: Path) -> Script:
    """Classify images with workers (https://docs.pytorch.org/tutorials/beginner/blitz/cifar10_tutorial.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        model = nn.Sequential(
            *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 3)),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        loader = DataLoader(TensorDataset(pictures(48, 8, 3), classes()), batch_size=4, shuffle=True, num_workers=2)
        for _ in range(2):
            for x, y in batches(loader, state={"net": model, "optimizer": optimizer}):
                step(updated(optimizer, functional.cross_entropy(model(x), y)))
        return [model, optimizer]

    return Script(train)


@program("DataLoader shuffle, 2 workers, random transforms of PyTorch", "torch")
def torch_transfer_learning(folder: Path) -> Script:
    """Tune a pretrained model (https://docs.pytorch.org/tutorials/beginner/transfer_learning_tutorial.html)."""

    class RandomFlip:
        def __call__(self, image: Any) -> Any:
            return image.flip(-1) if torch.rand(1) < 0.5 else image

    class RandomCrop:
        def __call__(self, image: Any) -> Any:
            top, left = torch.randint(0, 3, (2,)).tolist()
            return image[:, top : top + 6, left : left + 6]

    class Insects(Dataset):
        def __init__(self, count: int, *transforms: Any) -> None:
            self.images, self.labels, self.transforms = pictures(count, 8, 3), classes(count), transforms

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, at: int) -> Any:
            image = self.images[at]
            for transform in self.transforms:
                image = transform(image)
            return image, self.labels[at]

    def train(step: Callable[[float], None]) -> list[Any]:
        body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        model = nn.Sequential(body, nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        data = {"train": Insects(48, RandomCrop(), RandomFlip()), "val": Insects(16)}
        loaders = {name: DataLoader(part, batch_size=4, shuffle=True, num_workers=2) for name, part in data.items()}
        for _ in range(3):
            model.train()
            for x, y in batches(loaders["train"], state=state):
                step(updated(optimizer, functional.cross_entropy(model(x), y)))
            scheduler.step()
            model.eval()
            with torch.no_grad():
                for x, _ in loaders["val"]:
                    model(x)
        return [model, optimizer, scheduler]

    return Script(train)


@program("DataLoader shuffle, 2 workers, random transforms of NumPy", "torch")
def torch_data_loading(folder: Path) -> Script:
    """Crop pictures at random places (https://docs.pytorch.org/tutorials/beginner/data_loading_tutorial.html)."""

    class Faces(Dataset):
        def __init__(self) -> None:
            self.images, self.points = pictures(), torch.from_numpy(table(48, 4)[0])

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, at: int) -> Any:
            top, left = np.random.randint(0, 3, 2)
            return {"image": self.images[at][:, top : top + 6, left : left + 6], "landmarks": self.points[at]}

    def train(step: Callable[[float], None]) -> list[Any]:
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(Faces(), batch_size=4, shuffle=True, num_workers=2)
        for _ in range(2):
            for batch in batches(loader, state={"model": model, "optimizer": optimizer}):
                step(updated(optimizer, functional.mse_loss(model(batch["image"]), batch["landmarks"])))
        return [model, optimizer]

    return Script(train)


@program("DataLoader shuffle, two optimizers, noise", "torch")
def torch_dcgan(folder: Path) -> Script:
    """Train two models against each other (https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        torch.manual_seed(999)
        net_g = nn.Sequential(nn.ConvTranspose2d(5, 4, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 1, 5))
        net_d = nn.Sequential(nn.Conv2d(1, 4, 5), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 4), nn.Sigmoid(), nn.Flatten(0))
        options: dict[str, Any] = {"lr": 0.0002, "betas": (0.5, 0.999)}
        optimizer_d = torch.optim.Adam(net_d.parameters(), **options)
        optimizer_g = torch.optim.Adam(net_g.parameters(), **options)
        state = {"net_g": net_g, "net_d": net_d, "optimizer_g": optimizer_g, "optimizer_d": optimizer_d}
        loader = DataLoader(TensorDataset(pictures()), batch_size=8, shuffle=True, num_workers=1)
        for _ in range(3):
            for (real,) in batches(loader, state=state):
                ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
                net_d.zero_grad()
                functional.binary_cross_entropy(net_d(real), ones).backward()
                fake = net_g(torch.randn(len(real), 5, 1, 1))
                functional.binary_cross_entropy(net_d(fake.detach()), zeros).backward()
                optimizer_d.step()
                net_g.zero_grad()
                loss = functional.binary_cross_entropy(net_d(fake), ones)
                loss.backward()
                optimizer_g.step()
                step(float(loss.detach()))
        return [*state.values()]

    return Script(train)


@program("DataLoader, mixed precision, gradients of 2 batches", "torch")
def torch_amp(folder: Path) -> Script:
    """Train in mixed precision (https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        state: dict[str, Any] = {"net": model, "opt": optimizer, "scaler": scaler, "done": 0}
        for _ in range(3):
            for x, y in batches(DataLoader(rows(), batch_size=8), state=state):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = functional.mse_loss(model(x).float(), y)
                scaler.scale(loss / 2).backward()
                state["done"] += 1
                if state["done"] % 2 == 0:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                step(float(loss.detach()))
        return [model, optimizer, scaler]

    return Script(train)


@program("DataLoader with a sampler, teacher forcing", "torch")
def torch_seq2seq(folder: Path) -> Script:
    """Translate by attention (https://docs.pytorch.org/tutorials/intermediate/seq2seq_translation_tutorial.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        encoder, decoder = nn.GRU(8, 8, batch_first=True), nn.GRUCell(8, 8)
        words, out = nn.Embedding(20, 8), nn.Linear(8, 20)
        models = {"encoder": encoder, "decoder": decoder, "words": words, "out": out}
        optimizers = {
            "encoder_optimizer": torch.optim.Adam([*encoder.parameters(), *words.parameters()], 0.01),
            "decoder_optimizer": torch.optim.Adam([*decoder.parameters(), *out.parameters()], 0.01),
        }
        data = TensorDataset(torch.from_numpy(tokens()), torch.from_numpy(tokens()[:, ::-1].copy()))
        loader = DataLoader(data, sampler=torch.utils.data.RandomSampler(data), batch_size=8)
        for _ in range(3):
            for source, target in batches(loader, state={**models, **optimizers}):
                hidden = encoder(functional.dropout(words(source), 0.1))[1][0]
                given, loss = torch.zeros(len(source), dtype=torch.long), torch.zeros(())
                for at in range(target.shape[1]):
                    hidden = decoder(words(given), hidden)
                    guess = out(hidden)
                    loss = loss + functional.cross_entropy(guess, target[:, at])
                    given = target[:, at] if random.random() < 0.5 else guess.argmax(1).detach()
                for optimizer in optimizers.values():
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers.values():
                    optimizer.step()
                step(float(loss.detach()))
        return [*models.values(), *optimizers.values()]

    return Script(train)


@program("DataLoader with weights", "torch")
def torch_weighted(folder: Path) -> Script:
    """Balance classes by a sampler (https://docs.pytorch.org/docs/stable/data.html)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        y = classes()
        weights = 1 / torch.bincount(y)[y]
        sampler = WeightedRandomSampler(weights, 48, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(TensorDataset(pictures(), y), batch_size=8, sampler=sampler)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        optimizer = torch.optim.RMSprop(model.parameters())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, epochs=3, steps_per_epoch=6)
        for _ in range(3):
            for x, target in batches(loader, state={"m": model, "o": optimizer, "s": scheduler}):
                step(updated(optimizer, functional.cross_entropy(model(x), target)))
                scheduler.step()
        return [model, optimizer, scheduler]

    return Script(train)


@program("DataLoader of a stream, 2 workers", "torch")
def torch_stream(folder: Path) -> Script:
    """Divide a stream over workers (https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset)."""

    class Numbers(IterableDataset):
        def __init__(self, start: int, end: int) -> None:
            self.start, self.end = start, end

        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            first, every = (0, 1) if info is None else (info.id, info.num_workers)
            for number in range(self.start + first, self.end, every):
                yield torch.full((5,), number / 48) + torch.randn(5)

    def train(step: Callable[[float], None]) -> list[Any]:
        model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.2), nn.Linear(5, 1))
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(Numbers(0, 48), batch_size=4, num_workers=2)
        for _ in range(3):
            for x in batches(loader, state={"model": model, "optimizer": optimizer}):
                step(updated(optimizer, (model(x) ** 2).mean()))
        return [model, optimizer]

    return Script(train)


@program("DataLoader shuffle, averaged weights", "torch")
def torch_averaging(folder: Path) -> Script:
    """Average weights (https://pytorch.org/blog/pytorch-1.6-now-includes-stochastic-weight-averaging/)."""

    def train(step: Callable[[float], None]) -> list[Any]:
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        averaged = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedulers = {
            "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3),
            "constant": torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01),
        }
        state = {"model": model, "averaged": averaged, "optimizer": optimizer, **schedulers}
        loader = DataLoader(rows(), batch_size=8, shuffle=True)
        for epoch in range(4):
            for x, y in batches(loader, state=state):
                step(updated(optimizer, functional.mse_loss(model(x), y)))
            if epoch >= 2:
                averaged.update_parameters(model)
                schedulers["constant"].step()
            else:
                schedulers["cosine"].step()
        torch.optim.swa_utils.update_bn(loader, averaged)
        return [*state.values()]

    return Script(train)
