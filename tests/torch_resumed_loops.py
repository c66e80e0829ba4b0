"""Loops of PyTorch that are saved, killed, and resumed in a new process: ``python torch_loops.py FOLDER NAME...``.

Each runs in processes that are forked from one that has imported PyTorch and computed nothing; ``FOLDER/outcomes.json``
has, by name, the losses and a digest of the state of the whole run and of the resumed one.
"""

import hashlib
import json
import os
import random
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

import tpunb as tp

ITEMS, BATCH, EVERY, EPOCHS = 44, 4, 3, 3
STEPS = EPOCHS * -(-ITEMS // BATCH)
DIE = {"at": 17}


def rows():
    return torch.linspace(-1, 1, ITEMS * 3).reshape(ITEMS, 3)


def pairs():
    return TensorDataset(rows(), rows().sum(1, keepdim=True))


class Noisy(Dataset):
    """Items with noise from the global generators of PyTorch, NumPy and Python."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, at):
        noise = torch.rand(3) + np.random.random() + random.random()
        return rows()[at] + noise, rows()[at].sum(0, keepdim=True)


class Drawing(Dataset):
    """Items with noise from a generator of the dataset, which also counts them."""

    def __init__(self):
        self.dice, self.calls = np.random.default_rng(3), 0

    def __len__(self):
        return ITEMS

    def __getitem__(self, at):
        self.calls += 1
        return rows()[at] + torch.from_numpy(self.dice.random(3, dtype="float32")), torch.tensor([self.calls / 100])


class Stream(IterableDataset):
    """Rows in a shuffled order, divided over workers."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        dice = random.Random(torch.initial_seed() if info else 5)
        order = list(range(first, ITEMS, step))
        dice.shuffle(order)
        for at in order:
            yield rows()[at], rows()[at].sum(0, keepdim=True)


class Mixing(IterableDataset):
    """Rows in an order that the global generator draws as it is read."""

    def __iter__(self):
        left = list(range(ITEMS))
        while left:
            at = left.pop(int(torch.randint(len(left), ())))
            yield rows()[at], rows()[at].sum(0, keepdim=True)


def generator():
    return torch.Generator().manual_seed(4)


LOADERS = {
    "order": lambda: DataLoader(pairs(), BATCH),
    "shuffled": lambda: DataLoader(pairs(), BATCH, shuffle=True),
    "shuffled, 2 workers": lambda: DataLoader(pairs(), BATCH, shuffle=True, num_workers=2),
    "shuffled, 2 lasting workers": lambda: DataLoader(
        pairs(), BATCH, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "generator": lambda: DataLoader(pairs(), BATCH, shuffle=True, generator=generator()),
    "generator, 2 workers": lambda: DataLoader(pairs(), BATCH, shuffle=True, generator=generator(), num_workers=2),
    "weighted": lambda: DataLoader(
        pairs(), BATCH, sampler=WeightedRandomSampler(torch.arange(1.0, ITEMS + 1), ITEMS, generator=generator())
    ),
    "replaced": lambda: DataLoader(pairs(), BATCH, sampler=RandomSampler(pairs(), replacement=True)),
    "without batches": lambda: DataLoader(pairs(), None, shuffle=True),
    "noisy": lambda: DataLoader(Noisy(), BATCH, shuffle=True),
    "noisy, 2 workers": lambda: DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2),
    "drawing": lambda: DataLoader(Drawing(), BATCH, shuffle=True),
    "drawing, 2 workers": lambda: DataLoader(Drawing(), BATCH, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "stream, 2 workers": lambda: DataLoader(Stream(), BATCH, num_workers=2),
}
TRAININGS = ("accumulated", "scaled", "bfloat16", "restarted", "averaged", "unfrozen", "plain tensors")


def model():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


def plain(run, loader, step):
    """Train with Adam and a schedule by epochs."""
    torch.manual_seed(2)
    net, batches = model(), loader()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    state = {"net": net, "optimizer": optimizer, "schedule": schedule}
    for _ in range(EPOCHS):
        net.train()
        for x, y in run.batches(batches, state=state):
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).mean() if x.ndim > 1 else ((net[0](x)[:1] - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            step(loss)
        schedule.step()
        net.eval()
        with torch.no_grad():
            [net(x) for x, _ in DataLoader(pairs(), BATCH)]
    return state


def trained(name, run, step):
    """Train in another way, by name."""
    torch.manual_seed(2)
    net, batches = model(), LOADERS["shuffled"]()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    state = {"net": net, "optimizer": optimizer, "step": 0}
    if name == "restarted":
        state["schedule"] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    if name == "averaged":
        state["averaged"] = torch.optim.swa_utils.AveragedModel(net)
        state["dice"], state["losses"], state["best"] = (
            torch.Generator().manual_seed(3),
            [],
            {"loss": torch.tensor(9.0)},
        )
    if name == "scaled":
        state["scaler"] = torch.amp.GradScaler("cpu", growth_interval=4)
    if name == "unfrozen":
        net[0].requires_grad_(False)
    if name == "plain tensors":
        weight = torch.zeros(3, 1, requires_grad=True)
        optimizer = torch.optim.Adam([weight], 0.05)
        state = {"weight": weight, "optimizer": optimizer, "step": 0}
    for _ in range(EPOCHS):
        for x, y in run.batches(batches, state=state):
            state["step"] += 1
            with torch.autocast("cpu", torch.bfloat16, enabled=name == "bfloat16"):
                guess = x @ weight if name == "plain tensors" else net(x)
                loss = ((guess.float() - y) ** 2).mean()
            if name == "averaged":
                loss = loss * torch.rand((), generator=state["dice"])
            if name == "unfrozen" and state["step"] == 8:
                net[0].requires_grad_(True)
            if name == "accumulated":
                (loss / 4).backward()
                if state["step"] % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            elif name == "scaled":
                state["scaler"].scale(loss).backward()
                state["scaler"].step(optimizer)
                state["scaler"].update()
                optimizer.zero_grad()
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if name == "restarted":
                state["schedule"].step()
            if name == "averaged":
                state["averaged"].update_parameters(net)
                state["losses"].append(float(loss.detach()))
                state["best"] = {"loss": torch.minimum(loss.detach(), state["best"]["loss"])}
            step(loss)
    return state


def digest(value):
    """Return a digest of all bits of a state."""
    hashed = hashlib.sha256()

    def add(part):
        if hasattr(part, "state_dict"):
            add(part.state_dict())
        elif isinstance(part, torch.Generator):
            add(part.get_state())
        elif isinstance(part, torch.Tensor):
            hashed.update(
                part.detach().contiguous().view(torch.uint8).numpy().tobytes()
                if part.ndim
                else repr(part.tolist()).encode()
            )
        elif isinstance(part, dict):
            for key, each in part.items():
                hashed.update(str(key).encode())
                add(each)
        elif isinstance(part, list | tuple):
            for each in part:
                add(each)
        else:
            hashed.update(repr(part).encode())

    add(value)
    return hashed.hexdigest()


def cell(name, run=tp.testing.null_run, die=None):
    """Train; return the losses of the steps, and the digest of the state."""
    losses = []

    def step(loss):
        losses.append(float(loss.detach()).hex())
        if len(losses) == die:
            os._exit(9)

    state = plain(run, LOADERS[name], step) if name in LOADERS else trained(name, run, step)
    return losses, digest([state, torch.get_rng_state(), list(random.getstate()[1])])


def saved(folder, name, die=None, start=None):
    """Train and save, from a checkpoint if one is given; return losses, digest and what resuming reports."""
    with ExitStack() as stack, warnings.catch_warnings(record=True) as caught:
        resumed = stack.enter_context(tp.resume(start)) if start is not None else None
        stack.enter_context(tp.checkpointing(folder, every=EVERY))
        losses, state = cell(name, die=die)
    return [
        losses,
        state,
        str(resumed),
        [str(each.message) for each in caught if "exact" in str(each.message)],
    ]


def forked(file, run, *args):
    """Return the result of a function in a forked process; its exit code if it was killed."""
    if not (process := os.fork()):
        code = 1
        try:
            random.seed(7)
            np.random.seed(7)
            file.write_text(json.dumps(run(*args)))
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return json.loads(file.read_text()) if code == 0 else code


def outcome(top, name):
    """Save, kill and resume a loop in processes of their own."""
    top.mkdir()
    whole = forked(top / "whole.json", saved, top / "whole", name)
    killed = forked(top / "killed.json", saved, top / "killed", name, DIE["at"])
    found = list(tp.checkpoints(top / "killed"))
    later = forked(top / "later.json", saved, top / "killed", name, None, found[-1])
    return {
        "whole": whole,
        "killed": killed,
        "later": later,
        "steps": [each.step for each in found],
        "reasons": [each.reason for each in found],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, _ = Path(sys.argv[1]), (tp.checkpointing, tp.resume, tp.checkpoints)  # imported before the processes fork
    results = {name: outcome(folder / name.replace(" ", "-"), name) for name in sys.argv[2:]}
    (folder / "outcomes.json").write_text(json.dumps(results))
