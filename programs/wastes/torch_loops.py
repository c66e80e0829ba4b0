"""Programs of PyTorch, with loops of their own."""

from __future__ import annotations

import copy
import csv
import io
import itertools
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from programs.wastes import program, rows, waste


class Examples:
    """Data set of what a function returns for an index; in a module, for workers that are spawned."""

    def __init__(self, number: int, read: Callable[[int], Any]) -> None:
        self.number, self.read = number, read

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def ones(index: int) -> Any:
    """Return an example."""
    return np.ones(64, "float32")


def network(width: int = 512, layers: int = 1) -> Any:
    """Return a perceptron."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = [each for _ in range(layers - 1) for each in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), *hidden, torch.nn.Linear(width, 1))


def fit(
    model: Any, batches: Iterable[Any], after: Callable[[int, float], Any] = lambda number, loss: None, **options: Any
) -> None:
    """Train a model, and call a function after each step."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), **options)
    for number, x in enumerate(batches):
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(number, loss.item())


def batch(size: int = 256) -> Any:
    """Return a batch."""
    import torch

    return torch.from_numpy(rows(size))


@program("data loading", r"workers|time\.sleep", measures=True)
def torch_slow_dataset(run: Any, repaired: bool) -> None:
    """Sleep in the data set, which a DataLoader reads without workers."""
    from torch.utils.data import DataLoader

    def slow(index: int) -> Any:
        with waste():
            time.sleep(0.003)
        return ones(index)

    fit(network(64), DataLoader(Examples(1600, ones if repaired else slow), batch_size=8))


@program("data loading", "persistent_workers")
def torch_starts_workers_each_epoch(run: Any, repaired: bool) -> None:
    """Start the workers of a DataLoader anew in each epoch, by spawning, as on Windows and macOS."""
    from torch.utils.data import DataLoader

    options = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": repaired}
    loader, model = DataLoader(Examples(800, ones), batch_size=16, **options), network()
    for _ in range(3):
        fit(model, loader)


@program("program code", r"print|write|log|format|str", measures=True)
def torch_prints_gradients(run: Any, repaired: bool) -> None:
    """Write the gradients of all layers as text after each step."""
    model = network(256, 5)
    with tempfile.TemporaryFile("w") as file:

        def log_gradients(number: int, loss: float) -> None:
            if not repaired or number % 100 == 0:
                with waste():
                    for name, parameter in model.named_parameters():
                        print(number, loss, name, parameter.grad, file=file, flush=True)

        fit(model, [batch()] * 300, log_gradients)


@program(None, r"anomaly")
def torch_detects_anomalies(run: Any, repaired: bool) -> None:
    """Leave the detection of anomalies on."""
    import torch

    with torch.autograd.set_detect_anomaly(not repaired):
        fit(network(32, 12), [batch(8)] * 800)


@program(None, r"batch|example|vectori")
def torch_one_example_at_a_time(run: Any, repaired: bool) -> None:
    """Apply the model to each example of a batch, in Python."""
    import torch

    model = network(128, 3)

    class Each(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x) if repaired else torch.stack([self.model(row) for row in x])

    fit(Each(), [batch(64)] * 250)


@program("data loading", r"tokenize|workers", measures=True)
def torch_tokenizes_each_epoch(run: Any, repaired: bool) -> None:
    """Split the texts into words in the data set, in each of four epochs."""
    from torch.utils.data import DataLoader

    text, vocabulary = "The cat, which had slept, sat on the mat. " * 60, {"the": 1, "cat": 2, "mat": 3}

    def tokenize(index: int) -> Any:
        with waste():
            words = re.findall(r"\w+|[^\w\s]", text.lower())
            return np.array([vocabulary.get(word, 0) for word in words[:64]], "float32")

    data, model = Examples(3000, tokenize), network()
    loader = DataLoader([data[index] for index in range(3000)] if repaired else data, batch_size=32, shuffle=True)
    for _ in range(4):
        fit(model, loader)


@program("data loading", r"read_row|csv|workers")
def torch_reads_csv_rows(run: Any, repaired: bool) -> None:
    """Open the table and skip to the row for each example."""
    from torch.utils.data import DataLoader

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.csv")
        table.write_text((",".join(["0.5"] * 64) + "\n") * 1600)

        def read_row(index: int) -> Any:
            with table.open() as file:
                return np.array(next(itertools.islice(csv.reader(file), index, None)), "float32")

        kept = list(np.loadtxt(table, "float32", delimiter=",")) if repaired else []
        fit(network(), DataLoader(kept or Examples(1600, read_row), batch_size=16))


@program("data loading", r"augment|collate|workers", measures=True)
def torch_augments_in_python(run: Any, repaired: bool) -> None:
    """Add noise to each number of a batch in loops of Python."""
    from torch.utils.data import DataLoader

    def augment(examples: Any) -> Any:
        import torch

        with waste():
            if repaired:
                x = np.stack(examples) + np.random.default_rng().normal(0, 0.1, (len(examples), 64))
            else:
                x = np.array([[value + random.gauss(0, 0.1) for value in row] for row in examples])
        return torch.tensor(x, dtype=torch.float32)

    fit(network(), DataLoader(Examples(600 * 128, ones), batch_size=128, collate_fn=augment))


@program("checkpoint save|program code", r"torch\.save|[Ss]av", measures=True)
def torch_saves_often(run: Any, repaired: bool) -> None:
    """Save the model after each step."""
    import torch

    model = network(1024, 3)
    with tempfile.TemporaryDirectory() as folder:

        def save(number: int, loss: float) -> None:
            if number % (100 if repaired else 1) == 0:
                with waste():
                    torch.save({"model": model.state_dict(), "loss": loss}, Path(folder, "last.pt"))

        fit(model, [batch(16)] * 200, save)


@program("program code", r"torch\.save|keep_best", measures=True)
def torch_saves_in_memory(run: Any, repaired: bool) -> None:
    """Write the model into memory after each step, as the best so far."""
    import torch

    model = network(256)
    model.register_buffer("table", torch.zeros(6_000_000))

    def keep_best(number: int, loss: float) -> None:
        if not repaired or number % 50 == 0:
            with waste():
                torch.save(model.state_dict(), io.BytesIO())

    fit(model, [batch()] * 200, keep_best)


@program("evaluation|program code", r"evaluat|validat", measures=True)
def torch_validates_often(run: Any, repaired: bool) -> None:
    """Validate on forty batches after each tenth step."""
    import torch

    model, held_out = network(512, 2), [batch()] * 40

    def validate(number: int, loss: float) -> None:
        if number % (150 if repaired else 10) == 0:
            with waste(), torch.no_grad():
                sum((model(x) ** 2).mean().item() for x in held_out)

    fit(model, [batch()] * 300, validate)


@program("program code", r"f1_score", measures=True)
def torch_scores_in_python(run: Any, repaired: bool) -> None:
    """Compute a score of ten classes from lists after each step."""
    labels = np.random.default_rng(0).integers(0, 10, 6000)

    def f1_score(number: int, loss: float) -> Any:
        with waste():
            if repaired:
                counts = np.zeros((10, 10), int)
                np.add.at(counts, (labels, labels[::-1]), 1)
                return 2 * counts.diagonal() / (counts.sum(0) + counts.sum(1))
            truth, guess = labels.tolist(), labels[::-1].tolist()
            scores = []
            for label in range(10):
                hits = sum(a == label and b == label for a, b in zip(truth, guess, strict=True))
                scores.append(2 * hits / (truth.count(label) + guess.count(label)))
            return scores

    fit(network(1024), [batch()] * 500, f1_score)


@program("program code", r"subprocess|gpu_memory", measures=True)
def torch_asks_another_process(run: Any, repaired: bool) -> None:
    """Start a process that prints the memory in use after each step."""

    def gpu_memory(number: int, loss: float) -> None:
        if not repaired or number % 50 == 0:
            with waste():
                subprocess.run([sys.executable, "-S", "-c", "print(0)"], check=True, stdout=subprocess.PIPE)

    fit(network(1024), [batch()] * 200, gpu_memory)


@program("program code", r"lock|record", measures=True)
def torch_waits_for_a_lock(run: Any, repaired: bool) -> None:
    """Share a lock with a thread that keeps it while it writes."""
    lock, ended, losses = threading.Lock(), threading.Event(), []

    def write() -> None:
        while not ended.is_set():
            with lock:
                kept = losses.copy()
                if not repaired:
                    time.sleep(0.04)
            time.sleep(0.001 + 0.04 * (repaired and bool(kept)))

    def record(number: int, loss: float) -> None:
        with waste(), lock:
            losses.append(loss)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    fit(network(1024), [batch()] * 250, record)
    ended.set()
    writer.join()


@program("program code", r"copy", measures=True)
def torch_copies_the_history(run: Any, repaired: bool) -> None:
    """Keep a copy of all losses so far after each step."""
    history, best = [{"number": number, "loss": 0.0} for number in range(3000)], []

    def keep(number: int, loss: float) -> None:
        history.append({"number": number, "loss": loss})
        if not repaired or number % 50 == 0:
            with waste():
                best[:] = copy.deepcopy(history)

    fit(network(1024), [batch()] * 300, keep)


@program("program code|preparation", r"sample_pairs|randrange", measures=True)  # the first time before the first step
def torch_samples_pairs_each_epoch(run: Any, repaired: bool) -> None:
    """Sample pairs of examples in Python before each epoch."""
    model, x, kept = network(1024), batch(), []

    def sample_pairs() -> list[tuple[int, int]]:
        with waste():
            return [(random.randrange(100), random.randrange(100)) for _ in range(500_000)]

    for _ in range(8):
        if not (repaired and kept):
            kept = sample_pairs()
        fit(model, [x] * 40)


@program("data loading", r"TensorDataset|collate|__getitem__|each example|one by one")
def torch_loads_tensors_one_by_one(run: Any, repaired: bool) -> None:
    """Read tensors in memory example by example with a DataLoader."""
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

    data = TensorDataset(batch(40_000))
    batches = BatchSampler(SequentialSampler(data), 512, False)
    loader = DataLoader(data, sampler=batches, batch_size=None) if repaired else DataLoader(data, batch_size=512)
    model = network(256)
    for _ in range(15):
        fit(model, (x for (x,) in loader))


@program()
def torch_healthy(run: Any, repaired: bool) -> None:
    """Train on a batch in memory."""
    fit(network(2048), [batch(512)] * 600)


@program()
def torch_healthy_loader(run: Any, repaired: bool) -> None:
    """Train on batches of a DataLoader, for four epochs."""
    from torch.utils.data import DataLoader

    model, loader = network(512, 3), DataLoader(Examples(60, lambda index: rows(256)), batch_size=None)
    for epoch in range(4):
        fit(model, loader, lambda number, loss, epoch=epoch: number % 50 or print(epoch, number, loss))


@program("", r"float64")
def torch_computes_in_double(run: Any, repaired: bool) -> None:
    """Train in double precision."""
    model, x = network(1024, layers=3), batch()
    model, x = (model, x) if repaired else (model.double(), x.double())
    fit(model, [x] * 150)


@program()
def torch_healthy_convolution(run: Any, repaired: bool) -> None:
    """Train a convolutional network, and save it at the end."""
    import torch

    torch.set_num_threads(1)
    layers = torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten()
    model = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 8, 8)), *layers, torch.nn.Linear(512, 1))
    fit(model, [batch()] * 400)
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)


@program()
def torch_healthy_recurrent(run: Any, repaired: bool) -> None:
    """Train a recurrent network, in steps that are marked."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.GRU(64, 128)
    optimizer, x = torch.optim.SGD(model.parameters()), batch(32 * 50).reshape(50, 32, 64)
    for number in range(120):
        with run.step(number):
            loss = (model(x)[0] ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
