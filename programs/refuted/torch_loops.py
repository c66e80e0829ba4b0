"""Loops of PyTorch."""

from __future__ import annotations

import copy
import csv
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from programs.refuted import Clock, counted, drawn, healthy, wasteful


class Parts(NamedTuple):
    """A perceptron, its optimizer, its training batches and held-out batches."""

    model: Any
    optimizer: Any
    batches: Any
    held_out: Any


def perceptron(width: int, layers: int) -> Any:
    """Return a model that has as many outputs as inputs."""
    import torch

    return torch.nn.Sequential(
        *(module for _ in range(layers) for module in (torch.nn.Linear(width, width), torch.nn.ReLU()))
    )


def parts(width: int = 512, layers: int = 3, rows: int = 128, batches: int = 20) -> Parts:
    """Return what a loop needs; its batches are views of one tensor."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, examples = perceptron(width, layers), torch.randn(batches * rows, width)
    loaders = [
        torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data),
            sampler=torch.utils.data.BatchSampler(range(len(data)), rows, drop_last=False),
            batch_size=None,
        )
        for data in (examples, examples[: 5 * rows])
    ]
    return Parts(model, torch.optim.SGD(model.parameters(), 0.01), *loaders)


def loss_of(model: Any, batch: Any) -> Any:
    """Return how far the outputs are from the inputs."""
    return (model(batch) - batch).square().mean()


def descend(model: Any, optimizer: Any, batch: Any) -> Any:
    """Take one step."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def _averaged(average: Any, model: Any) -> None:
    import torch

    with torch.no_grad():
        weights = model.state_dict()
        for name, value in average.state_dict().items():
            value.copy_(value.detach() * 0.99 + weights[name].detach().clone() * 0.01)


@wasteful("program code", words="_averaged|copy_|state_dict")
def torch_averages_weights_in_python(clock: Clock) -> None:
    """Keep a moving average of the weights, tensor by tensor, in each step."""
    model, optimizer, batches, _ = parts(64, 60, 16)
    average = copy.deepcopy(model)
    for _ in range(15):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            with clock.waste():
                _averaged(average, model)
            clock.steps += 1


@wasteful("program code", words="_averaged|copy_|state_dict")
def torch_averages_weights_rarely(clock: Clock) -> None:
    """Keep a moving average of the weights in each fortieth step."""
    model, optimizer, batches, _ = parts(64, 60, 16)
    average = copy.deepcopy(model)
    for _ in range(20):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            clock.steps += 1
            if clock.steps % 40 == 0:
                with clock.waste():
                    _averaged(average, model)


class Metric:
    """Keeps all scores since it was reset, and sorts them when it is asked."""

    def __init__(self) -> None:
        self.scores: list[Any] = []

    def compute(self) -> float:
        """Return the median of the scores, by sorting them one by one."""
        return sorted(float(score) for scores in self.scores for score in scores)[len(self.scores) // 2]


def _trained_with_a_metric(clock: Clock, *, resets: bool) -> None:
    model, optimizer, batches, _ = parts()
    metric = Metric()
    for _ in range(14):
        for (batch,) in batches:
            loss = descend(model, optimizer, batch)
            metric.scores += [*(loss.detach() * batch[:, :16])]
            clock.steps += 1
        with clock.waste():
            metric.compute()
        if resets:
            metric.scores.clear()


@wasteful("program code", words="compute|Metric|sorted")
def torch_never_resets_its_metric(clock: Clock) -> None:
    """Compute a metric over all epochs so far after each epoch."""
    _trained_with_a_metric(clock, resets=False)


@wasteful("preparation", "data loading", words="[Pp]repar|input|__getitem__|sleep")
def torch_measures_slow_data_first(clock: Clock) -> None:
    """Pass over slow data before the training for their mean; nothing is evaluated."""
    import torch

    model, optimizer, batches, _ = parts()

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.006)
            return torch.ones(512) * index

    with clock.waste():
        mean = sum(example.mean() for example in torch.utils.data.DataLoader(Slow(), batch_size=None)) / 200
    for _ in range(15):
        for (batch,) in batches:
            descend(model, optimizer, batch - mean / 1e4)
            clock.steps += 1


@healthy
def torch_trains_on_random_rows(clock: Clock) -> None:
    """Draw the batch of each step, without a loader."""
    import torch

    model, optimizer, _, _ = parts()
    for _ in range(400):
        descend(model, optimizer, torch.rand(128, 512))
        clock.steps += 1


@counted
def torch_trains_two_models_in_threads(clock: Clock) -> None:
    """Train two models at once, each in a thread, as trials of a search do."""
    import torch

    def train(seed: int) -> None:
        model = perceptron(512, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        batch = torch.full((128, 512), float(seed))
        for _ in range(200):
            descend(model, optimizer, batch)

    torch.set_num_threads(1)
    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.steps = 400


@counted
def torch_updates_a_critic_more_often(clock: Clock) -> None:
    """Update a critic on each batch, and a generator on each fifth one, as Wasserstein GANs do."""
    import torch

    critic, optimizer, batches, _ = parts()
    generator = perceptron(512, 3)
    other = torch.optim.SGD(generator.parameters(), 0.01)
    for _ in range(14):
        for number, (batch,) in enumerate(batches):
            optimizer.zero_grad()
            with torch.no_grad():
                fake = generator(torch.randn_like(batch))
            (critic(fake).mean() - critic(batch).mean()).backward()
            optimizer.step()
            clock.steps += 1
            if number % 5 == 4:
                other.zero_grad()
                (-critic(generator(torch.randn_like(batch))).mean()).backward()
                other.step()


@counted
def torch_collects_moves(clock: Clock) -> None:
    """Ask the policy for a hundred moves in an environment of Python, then update it once: policy gradients."""
    import torch

    policy, optimizer, _, _ = parts(256, 2)
    state = torch.zeros(256)
    for _ in range(60):
        states = []
        for _ in range(100):
            with torch.no_grad():
                state = 0.9 * state + 0.1 * policy(state) + 0.1 * torch.randn(256)
            states.append(state)
        descend(policy, optimizer, torch.stack(states))
        clock.steps += 1


@counted
def torch_replays_moves(clock: Clock) -> None:
    """Take a move and then a step on moves that are remembered: Q-learning, with a second network for its aims."""
    import random

    import torch

    model, optimizer, _, _ = parts(256, 3)
    aims, memory, state = copy.deepcopy(model), list[Any](), torch.zeros(256)
    for number in range(600):
        with torch.no_grad():
            state = 0.9 * state + 0.1 * model(state) + 0.1 * torch.randn(256)
        memory.append(state)
        if number < 64:
            continue
        rows = torch.stack(random.sample(memory, 64))
        with torch.no_grad():
            aim = aims(rows).amax(1, keepdim=True)
        optimizer.zero_grad()
        (model(rows) - aim).square().mean().backward()
        optimizer.step()
        clock.steps += 1
        if clock.steps % 100 == 0:
            aims.load_state_dict(model.state_dict())


@healthy
def torch_adapts_to_tasks(clock: Clock) -> None:
    """Take two inner steps on each of four tasks by `torch.func`, and descend through them."""
    import torch

    model, optimizer, batches, _ = parts(256, 3)
    tasks = [batch for (batch,) in batches][:4]
    for _ in range(120):
        optimizer.zero_grad()
        for task in tasks:
            weights = dict(model.named_parameters())
            for _ in range(2):
                loss = (torch.func.functional_call(model, weights, (task,)) - task).square().mean()
                slopes = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
                weights = {
                    name: value - 0.01 * slope for (name, value), slope in zip(weights.items(), slopes, strict=True)
                }
            (torch.func.functional_call(model, weights, (task,)) - task).square().mean().backward()
        optimizer.step()
        clock.steps += 1


def _evaluated(clock: Clock, model: Any, batches: Any) -> float:
    import torch

    model.eval()
    total = 0.0
    with clock.account("evaluation"), torch.no_grad():
        for (batch,) in batches:
            total += loss_of(model, batch).item()
            clock.evaluations += 1
    model.train()
    return total


@counted
def torch_stops_early(clock: Clock) -> None:
    """Evaluate after each epoch, keep the best weights, and stop once they get better by under a thousandth."""
    model, optimizer, batches, held_out = parts()
    best, kept = float("inf"), None
    for epoch in range(14):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            clock.steps += 1
        total = _evaluated(clock, model, held_out)
        if epoch >= 9 and total > 0.999 * best:
            break
        best, kept = total, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)


@counted
def torch_evaluates_first(clock: Clock) -> None:
    """Evaluate the untrained model, then the trained one after each epoch."""
    model, optimizer, batches, held_out = parts()
    _evaluated(clock, model, held_out)
    for _ in range(12):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            clock.steps += 1
        _evaluated(clock, model, held_out)


@counted
def torch_evaluates_training_data(clock: Clock) -> None:
    """Evaluate all training batches after each epoch, by the loader of the training."""
    model, optimizer, batches, _ = parts()
    for _ in range(10):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            clock.steps += 1
        _evaluated(clock, model, batches)


@counted
def torch_evaluates_without_a_mode(clock: Clock) -> None:
    """Call the model on held-out batches after each epoch, with gradients that nobody asks for."""
    model, optimizer, batches, held_out = parts()
    for _ in range(12):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            clock.steps += 1
        with clock.account("evaluation"):
            for (batch,) in held_out:
                loss_of(model, batch).item()
                clock.evaluations += 1


@counted
def torch_cross_validates(clock: Clock) -> None:
    """Train a new model for each of five parts of the data, and evaluate it on that part."""
    import torch

    _, _, batches, _ = parts()
    rows = [*batches]
    for fold in range(5):
        model = perceptron(512, 3)
        optimizer = torch.optim.Adam(model.parameters())
        held_out = rows[4 * fold : 4 * fold + 4]
        for _ in range(3):
            for (batch,) in rows[: 4 * fold] + rows[4 * fold + 4 :]:
                descend(model, optimizer, batch)
                clock.steps += 1
        _evaluated(clock, model, held_out)


@healthy
def torch_accumulates_gradients(clock: Clock) -> None:
    """Update after each fourth batch."""
    model, optimizer, batches, _ = parts()
    for _ in range(14):
        for number, (batch,) in enumerate(batches):
            (loss_of(model, batch) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
                clock.steps += 1


def _sampled(number: int, pause_s: float) -> Iterator[Any]:
    import torch

    for _ in range(number):
        time.sleep(pause_s)
        yield torch.randn(128, 512)


@wasteful("data loading", words="_sampled|sleep|input")
def torch_waits_for_a_generator(clock: Clock) -> None:
    """Take batches from a generator that sleeps before each."""
    model, optimizer, _, _ = parts()
    for batch in clock.waited_for(_sampled(110, 0.02)):
        descend(model, optimizer, batch)
        clock.steps += 1


@healthy
def torch_takes_batches_of_a_generator(clock: Clock) -> None:
    """Take batches from a generator that has them at once."""
    model, optimizer, batches, _ = parts()
    rows = [batch for (batch,) in batches]
    for batch in (rows[number % 20] for number in range(300)):
        descend(model, optimizer, batch)
        clock.steps += 1


@wasteful("data loading", words="worker|input|load")
def torch_waits_for_each_fourth_batch(clock: Clock) -> None:
    """Load by four workers that are too slow: each fourth batch is waited for."""
    import torch

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 960

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.01)
            return torch.full((64,), float(index))

    model, optimizer, _, _ = parts(64)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=4, prefetch_factor=1)
    for batch in clock.waited_for(loader):
        descend(model, optimizer, batch)
        clock.steps += 1


@healthy
def torch_searches_along_a_line(clock: Clock) -> None:
    """Take steps of L-BFGS, each of which asks for the loss many times."""
    import torch

    model, _, batches, _ = parts(256, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8)
    batch = next(iter(batches))[0]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    for _ in range(12):
        optimizer.step(closure)
        clock.steps += 1


@healthy
def torch_descends_by_hand(clock: Clock) -> None:
    """Subtract the gradients without an optimizer."""
    import torch

    model, _, batches, _ = parts()
    for _ in range(15):
        for (batch,) in batches:
            model.zero_grad()
            loss_of(model, batch).backward()
            with torch.no_grad():
                for weights in model.parameters():
                    weights -= 0.01 * weights.grad
            clock.steps += 1


@counted
def torch_trains_in_two_stages(clock: Clock) -> None:
    """Train an autoencoder, then a classifier on what it makes of the data."""
    import torch

    model, optimizer, batches, _ = parts()
    for _ in range(8):
        for (batch,) in batches:
            descend(model, optimizer, batch)
            clock.steps += 1
    head = torch.nn.Linear(512, 10)
    second = torch.optim.Adam(head.parameters())
    for _ in range(8):
        for (batch,) in batches:
            with torch.no_grad():
                hidden = model(batch)
            second.zero_grad()
            torch.nn.functional.cross_entropy(head(hidden), torch.zeros(len(batch), dtype=torch.long)).backward()
            second.step()
            clock.steps += 1


@healthy
def torch_learns_from_a_teacher(clock: Clock) -> None:
    """Ask a fixed network in each step what the trained one has to answer."""
    import torch

    model, optimizer, batches, _ = parts()
    teacher = perceptron(512, 3).eval()
    for _ in range(15):
        for (batch,) in batches:
            with torch.no_grad():
                aim = teacher(batch)
            optimizer.zero_grad()
            (model(batch) - aim).square().mean().backward()
            optimizer.step()
            clock.steps += 1


@healthy
def torch_compares_pairs(clock: Clock) -> None:
    """Call the model twice in each step, on two views of a batch."""
    model, optimizer, batches, _ = parts()
    for _ in range(10):
        for (batch,) in batches:
            optimizer.zero_grad()
            (model(batch) - model(batch * 0.9)).square().mean().backward()
            optimizer.step()
            clock.steps += 1


@wasteful("program code", words="drawn")
def torch_draws_after_each_epoch(clock: Clock) -> None:
    """Draw the curve of the losses after each epoch."""
    model, optimizer, batches, _ = parts()
    losses = list[float]()
    for _ in range(8):
        for (batch,) in batches:
            losses.append(descend(model, optimizer, batch).item())
            clock.steps += 1
        with clock.waste():
            drawn(losses, 0.25)


@healthy
def torch_logs_each_step(clock: Clock) -> None:
    """Write a row of a table in each step."""
    model, optimizer, batches, _ = parts()
    with tempfile.TemporaryFile("w") as file:
        table = csv.writer(file)
        for _ in range(15):
            for (batch,) in batches:
                table.writerow([clock.steps, descend(model, optimizer, batch).item()])
                clock.steps += 1


@wasteful("checkpoint save", words="[Ss]av")
def torch_saves_in_each_step(clock: Clock) -> None:
    """Save model and optimizer in each step."""
    import torch

    model, optimizer, batches, _ = parts()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(10):
            for (batch,) in batches:
                descend(model, optimizer, batch)
                clock.steps += 1
                with clock.waste():
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, Path(folder, f"{clock.steps % 2}.pt"))


@counted
def torch_samples_after_each_epoch(clock: Clock) -> None:
    """Refine noise by fifty calls of the model after each epoch, as diffusion models do to show what they make."""
    import torch

    model, optimizer, batches, _ = parts()
    for _ in range(10):
        for (batch,) in batches:
            noise = torch.randn_like(batch)
            optimizer.zero_grad()
            (model(batch + noise) - noise).square().mean().backward()
            optimizer.step()
            clock.steps += 1
        with torch.no_grad():
            sample = torch.randn(64, 512)
            for _ in range(50):
                sample = sample - 0.02 * model(sample)
    clock.evaluations = None


@counted
def torch_compiles_its_model(clock: Clock) -> None:
    """Train a model by `torch.compile`, whose first call takes long."""
    import torch

    model, optimizer, batches, _ = parts()
    compiled = torch.compile(model, backend="eager")
    for _ in range(12):
        for (batch,) in batches:
            descend(compiled, optimizer, batch)
            clock.steps += 1


@counted
def torch_accumulates_by_accelerate(clock: Clock) -> None:
    """Let Accelerate say which batches update, and evaluate after each epoch by what it prepared."""
    import torch
    from accelerate import Accelerator

    model, optimizer, batches, held_out = parts()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loaders = [torch.utils.data.DataLoader(data.dataset, batch_size=128) for data in (batches, held_out)]
    model, optimizer, batches, held_out = accelerator.prepare(model, optimizer, *loaders)
    for _ in range(10):
        for (batch,) in batches:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
                clock.steps += accelerator.sync_gradients
        _evaluated(clock, model, held_out)
