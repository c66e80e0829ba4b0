"""Training loops over DataLoaders: each returns all that it came to, and what the generators give afterwards."""

import os
import random
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
from optional import lazy

from programs import quiet

torch = lazy("torch")

MAIN = os.getpid()
ROWS = 44  # eleven batches of four


def dataset(kind=None):
    """Return a dataset of rows; a kind changes what an item is."""

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(3))
            self.scale = 1.0

        def __len__(self):
            return ROWS

        def __getitem__(self, at):
            x = self.x[at] * self.scale
            return x if kind is None else kind(self, at, x)

    return Rows()


def loader(data=None, **options):
    return torch.utils.data.DataLoader(data or dataset(), **{"batch_size": 4, **options})


class Training:
    """A model with dropout and its optimizer, and what they came to."""

    def __init__(self):
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1)
        self.model, self.seen = torch.nn.Sequential(*layers), []
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

    def step(self, batch):
        x = batch["x"] if isinstance(batch, dict) else batch
        loss = ((self.model(x) - x.sum(-1, keepdim=True)) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen += [loss.item(), random.random()]  # a loop that draws numbers itself

    def evaluate(self, batches):
        with torch.no_grad():
            self.seen += [self.model(x).sum().item() for x in batches]

    def result(self, *generators):
        weights = [weight.tolist() for weight in self.model.parameters()]
        drawn = [torch.rand(1).item(), np.random.random(), random.random()]
        return self.seen, weights, drawn + [torch.rand(1, generator=each).item() for each in generators]


def epochs(data, count=2, *generators):
    """Train for some epochs."""
    training = Training()
    for _ in range(count):
        for batch in data() if callable(data) else data:
            training.step(batch)
    return training.result(*generators)


def weighted(**options):
    return torch.utils.data.WeightedRandomSampler([1.0, 2.0] * (ROWS // 2), ROWS, **options)


def shares_a_generator():
    generator = torch.Generator().manual_seed(2)
    training = Training()
    train, valid = (loader(shuffle=True, generator=generator) for _ in range(2))
    for _ in range(3):
        for number, batch in enumerate(train):
            training.step(batch)
            if number == 8:
                training.evaluate(valid)
    return training.result(generator)


def is_left_early():
    """Leave each epoch before its end, of which one is reached without asking for it."""
    generator = torch.Generator().manual_seed(2)
    data, training = loader(shuffle=True, generator=generator), Training()
    for count in (9, 11, 7):
        for batch in islice(data, count):
            training.step(batch)
    return training.result(generator)


def accumulates():
    data, training = loader(shuffle=True), Training()
    for _ in range(2):
        for number, x in enumerate(data):
            loss = training.model(x).mean()
            loss.backward()
            if number % 3 == 2:
                training.optimizer.step()
                training.optimizer.zero_grad()
            training.seen.append(loss.item())
    return training.result()


def zipped():
    training = Training()
    for _ in range(2):
        for one, two in zip(loader(shuffle=True), loader(), strict=True):
            training.step(one)
            training.step(two)
    return training.result()


def catches_errors():
    """Skip the batches that raise an error."""
    data, training = loader(dataset(_fails), shuffle=True), Training()
    for _ in range(3):
        batches = iter(data)
        while True:
            try:
                training.step(next(batches))
            except ValueError as error:
                training.seen.append(str(error))
            except StopIteration:
                break
    return training.result()


def _fails(data, at, x):
    if at == 3:
        raise ValueError(f"no row {at}")
    return x


def one_for_each_epoch():
    data = dataset()
    return epochs(lambda: loader(data, shuffle=True))


LOOPS = {
    "shuffled": lambda: epochs(loader(shuffle=True)),
    "in order": lambda: epochs(loader(batch_size=5)),
    "one made for each epoch": one_for_each_epoch,
    "weighted": lambda: epochs(loader(sampler=weighted())),
    "replaced": lambda: epochs(loader(sampler=torch.utils.data.RandomSampler(range(ROWS), replacement=True))),
    "without the last": lambda: epochs(loader(shuffle=True, batch_size=5, drop_last=True)),
    "not batched": lambda: epochs(loader(batch_size=None, shuffle=True), 1),
    "of batches": lambda: epochs(loader(batch_size=1, batch_sampler=[[at, 40 - at] for at in range(20)])),
    "of mappings": lambda: epochs(loader(dataset(lambda data, at, x: {"x": x, "name": str(at)}), shuffle=True)),
    "one worker": lambda: epochs(loader(shuffle=True, num_workers=1)),
    "one worker that stays": lambda: epochs(loader(shuffle=True, num_workers=1, persistent_workers=True), 3),
    "shares a generator": shares_a_generator,
    "is left early": is_left_early,
    "accumulates": accumulates,
}
"""Loops whose loader is tuned."""


def changes_its_dataset(workers=0):
    """Change what the items are in the midst of an epoch."""
    data, training = dataset(), Training()
    for _ in range(3):
        for number, batch in enumerate(loader(data, shuffle=True, num_workers=workers)):
            training.step(batch)
            if number % 8 == 7:
                data.scale *= 1.5
    return training.result()


def changes_its_dataset_between_epochs():
    data, training = dataset(), Training()
    for _ in range(3):
        for batch in loader(data, shuffle=True):
            training.step(batch)
        data.scale *= 1.5
    return training.result()


def of_kind(kind, count=2, **options):
    return epochs(loader(dataset(kind), shuffle=True, **options), count)


def _fails_elsewhere(data, at, x):
    if os.getpid() != MAIN and at > 20:
        raise OSError("not in this process")
    return x


def _ends_elsewhere(data, at, x):
    if os.getpid() != MAIN and at > 20:
        os._exit(3)
    return x


def _by_process(data, at, x):
    return x if os.getpid() == MAIN else x + 1


class Stream:
    """An iterable dataset, once torch is imported."""

    def __new__(cls):
        class Items(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield from dataset().x

        return Items()


class Chooses:
    """A sampler that draws each index when it is read."""

    def __len__(self):
        return ROWS

    def __iter__(self):
        for _ in range(ROWS):
            yield random.randrange(ROWS)


UNCHANGED = {
    "each worker would read all": lambda: epochs(loader(Stream())),
    "its sampler Chooses chooses indices while it is read": lambda: epochs(loader(sampler=Chooses())),
    "draw from PyTorch's global": lambda: of_kind(lambda data, at, x: x + torch.rand(4)),
    "draw from NumPy's global": lambda: of_kind(lambda data, at, x: x * float(np.random.random())),
    "draw from Python's global": lambda: of_kind(lambda data, at, x: x * random.random()),
    "in_order=False": lambda: epochs(loader(in_order=False)),
    "read between its batches": zipped,
}
"""Loops whose loader cannot be tuned, by a part of the reason."""

FAIL = {
    "not in this process": lambda: of_kind(_fails_elsewhere, 3),
    "exited unexpectedly": lambda: of_kind(_ends_elsewhere, 3),
    "changed its dataset": changes_its_dataset,
    "no row 3": catches_errors,
}
"""Loops in which other workers fail, by a part of what is reported."""


def of_hugging_face():
    """Train with the Trainer of Transformers, with gradients of two batches and an evaluation within each epoch."""

    class Model(torch.nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x, labels):
            logits = self.layers(x)
            return {"loss": ((logits[:, 0] - labels) ** 2).mean(), "logits": logits}

    training = Training()
    data = dataset(lambda data, at, x: {"x": x, "labels": x.sum()})
    with tempfile.TemporaryDirectory() as folder:
        more = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 2}
        more |= {"eval_strategy": "steps", "eval_steps": 7, "logging_steps": 1}
        trainer = quiet.hugging_face(Path(folder), Model(training.model), data, data, **more)
        trainer.train()
    numbers = ("loss", "eval_loss", "grad_norm")
    training.seen += [entry[name] for entry in trainer.state.log_history for name in numbers if name in entry]
    return training.result()


def of_lightning():
    """Train with the Trainer of Lightning, with a validation after each epoch."""
    import lightning

    training = Training()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = training.model

        def training_step(self, x, number):
            loss = ((self.layers(x) - x.sum(-1, keepdim=True)) ** 2).mean()
            training.seen.append(loss.item())
            return loss

        def validation_step(self, x, number):
            training.seen.append(self.layers(x).sum().item())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    with tempfile.TemporaryDirectory() as folder:
        quiet.lightning(Path(folder), devices=1, max_epochs=3).fit(Module(), loader(shuffle=True), loader())
    return training.result()


TRAINERS = {"transformers": of_hugging_face, "lightning": of_lightning}
"""Trainers by the package that they need."""
