"""Programs of several stages that write files between them: saved, killed at a step, and resumed in a new process.

``python staged_programs.py FOLDER NAME...`` writes ``FOLDER/outcomes.json``: by name, what the whole run left, and for
each place where one was killed what there was before and after it was resumed.
"""

import csv
import hashlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch

import tpunb as tp

BATCHES, EPOCHS = 6, 5
STEPS = BATCHES * EPOCHS
KILLED = (0.35, 0.6, 0.9)  # of the steps of the whole run


class Dies:
    """Counts steps, and ends the process as a machine does that fails."""

    def __init__(self, at=None):
        self.at, self.steps = at, 0

    def __call__(self):
        self.steps += 1
        if self.steps == self.at:
            os._exit(9)


def rows():
    return torch.linspace(-1, 1, 6 * BATCHES).reshape(2 * BATCHES, 3)


def loader():
    data = torch.utils.data.TensorDataset(rows(), rows().square().sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, 2, shuffle=True)


def network(seed=1):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    return net, torch.optim.Adam(net.parameters(), 0.02)


def trained(net, opt, x, y, step):
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step()
    return loss.item()


def measured(net):
    net.eval()
    with torch.no_grad():
        value = (net(rows()) - rows().square().sum(1, keepdim=True)).square().mean().item()
    net.train()
    return value


batches = tp.testing.null_run.batches


def files_of_epochs(files, step):
    """Write a file for each epoch, and the best of them."""
    net, opt = network()
    state, data, best = {"net": net, "opt": opt}, loader(), 1e9
    for epoch in range(EPOCHS):
        for x, y in batches(data, state=state):
            trained(net, opt, x, y, step)
        torch.save(net.state_dict(), files / f"epoch_{epoch}.pt")
        torch.save(net.state_dict(), files / "last.pt")
        if (loss := measured(net)) < best:
            best = loss
            torch.save(net.state_dict(), files / "best.pt")
    net.load_state_dict(torch.load(files / "best.pt"))
    return net, best


def early_stopping(files, step):
    """Stop by the sum of an epoch's losses, which local variables hold."""
    net, opt = network()
    state, data, best, patience = {"net": net, "opt": opt}, loader(), 1e9, 0
    for epoch in range(3 * EPOCHS):
        total = 0.0
        for x, y in batches(data, state=state):
            total += trained(net, opt, x, y, step)
        best, patience = (total, 0) if total < best - 0.1 else (best, patience + 1)
        (files / f"result_{epoch}.json").write_text(json.dumps([best, patience]))
        if patience == 2:
            break
    return net, best


def two_optimizers(files, step):
    """Train two networks in turns, each in a loop of its own, and export both."""
    (one, opt), (other, second) = network(1), network(2)
    state, data = {"one": one, "opt": opt, "other": other, "second": second}, loader()
    for epoch in range(EPOCHS // 2 + 1):
        for x, y in batches(data, state=state):
            trained(one, opt, x, y, step)
        for x, _ in batches(data, state=state):
            trained(other, second, x, one(x).detach(), step)
        torch.save([one.state_dict(), other.state_dict()], files / f"pair_{epoch}.pt")
    return torch.nn.ModuleList([one, other]), epoch


def folds(files, step):
    """Train a network for each fold, whose best state goes to the same file and is loaded again."""
    scores = []
    for fold in range(3):
        net, opt = network(fold)
        state, data, best = {"net": net, "opt": opt}, loader(), 1e9
        for _ in range(2):
            for x, y in batches(data, state=state):
                trained(net, opt, x, y, step)
            if (loss := measured(net)) < best:
                best = loss
                torch.save(net.state_dict(), files / "best.pt")
        net.load_state_dict(torch.load(files / "best.pt"))
        scores.append(measured(net))
    (files / "scores.json").write_text(json.dumps(scores))
    return net, scores


def tuned(files, step):
    """Warm up a part, then train the whole with another optimizer from the file that the first stage wrote."""
    net, opt = network()
    net[0].requires_grad_(False)
    state, data = {"net": net, "opt": opt}, loader()
    for _ in range(2):
        for x, y in batches(data, state=state):
            trained(net, opt, x, y, step)
    torch.save(net.state_dict(), files / "warm.pt")
    second, _ = network(5)
    second.load_state_dict(torch.load(files / "warm.pt"))
    slow = torch.optim.SGD(second.parameters(), 0.01, momentum=0.9)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(slow, EPOCHS)
    for epoch in range(3):
        for x, y in batches(data, state={"net": second, "opt": slow, "rate": rate}):
            trained(second, slow, x, y, step)
        rate.step()
        torch.save(second.state_dict(), files / f"tuned_{epoch}.pt")
    return second, measured(second)


def table(files, step):
    """Write a table with a row for each epoch."""
    net, opt = network()
    state, data = {"net": net, "opt": opt}, loader()
    with (files / "log.csv").open("w", newline="") as file:
        csv.writer(file).writerow(["epoch", "loss"])
    for epoch in range(EPOCHS):
        losses = []
        for x, y in batches(data, state=state):
            losses.append(trained(net, opt, x, y, step))
        with (files / "log.csv").open("a", newline="") as file:
            csv.writer(file).writerow([epoch, sum(losses) / len(losses)])
    return net, losses


def open_table(files, step):
    """Write a table through one open file."""
    net, opt = network()
    state, data = {"net": net, "opt": opt}, loader()
    with (files / "log.csv").open("w", newline="") as file:
        for epoch in range(EPOCHS):
            for x, y in batches(data, state=state):
                loss = trained(net, opt, x, y, step)
            csv.writer(file).writerow([epoch, loss])
            file.flush()
    return net, loss


def appended(files, step):
    """Append a line to a file that other programs write, too."""
    net, opt = network()
    state, data = {"net": net, "opt": opt}, loader()
    for epoch in range(EPOCHS):
        for x, y in batches(data, state=state):
            loss = trained(net, opt, x, y, step)
        with (files / "all.log").open("a") as file:
            file.write(f"{epoch} {loss}\n")
    return net, loss


def decided(files, step):
    """Change the rate by the last loss of an epoch, and leave out every third epoch's export."""
    net, opt = network()
    state, data, last = {"net": net, "opt": opt}, loader(), 1e9
    for epoch in range(EPOCHS):
        for x, y in batches(data, state=state):
            loss = trained(net, opt, x, y, step)
        if loss > last:
            for group in opt.param_groups:
                group["lr"] *= 0.5
        else:
            torch.save(net.state_dict(), files / f"better_{epoch}.pt")
        last = loss
    return net, last


def replaced(files, step):
    """Replace a file at once, and remove the one before."""
    net, opt = network()
    state, data, history = {"net": net, "opt": opt}, loader(), []
    for epoch in range(EPOCHS):
        for x, y in batches(data, state=state):
            trained(net, opt, x, y, step)
        history.append(measured(net))
        torch.save(net.state_dict(), files / "last.tmp")
        (files / "last.tmp").replace(files / "last.pt")
        (files / "history.json").write_text(json.dumps(history))
        torch.save(net.state_dict(), files / f"epoch_{epoch}.pt")
        if epoch > 1:
            (files / f"epoch_{epoch - 2}.pt").unlink()
    return net, history


class Accumulating:
    """An optimizer that takes a step with every third gradient: its count is in no ``state_dict``."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def step(self):
        self.count += 1
        if self.count % 3 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)

    @property
    def param_groups(self):
        return self.optimizer.param_groups


def accumulated(files, step):
    """Accumulate gradients in a wrapper, over epochs that end within a group of them."""
    net, inner = network()
    opt, data = Accumulating(inner), loader()
    state = {"net": net, "opt": opt, "inner": inner}
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(batches(data, state=state)):
            (net(x) - y).square().mean().backward()
            opt.step()
            step()
            del number
        torch.save(net.state_dict(), files / f"epoch_{epoch}.pt")
    return net, opt.count


def broken_off(files, step):
    """Leave each epoch before its end, and count steps in an object of the program."""

    class Meter:
        def __init__(self):
            self.values = []

    net, opt = network()
    state, data, meter, seen = {"net": net, "opt": opt}, loader(), Meter(), 0
    for epoch in range(EPOCHS):
        for x, y in batches(data, state=state):
            meter.values.append(trained(net, opt, x, y, step))
            seen += len(x)
            if seen % 10 == 0:
                break
        torch.save([net.state_dict(), meter.values], files / f"epoch_{epoch}.pt")
    return net, [seen, *meter.values]


def fits(files, step):
    """Fit twice with callbacks that keep the best model and stop early, and export between."""
    import keras
    import numpy as np

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step()

    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
    x = np.linspace(-1, 1, 6 * BATCHES, dtype="float32").reshape(-1, 3)
    options = {"batch_size": 2, "verbose": 0, "validation_data": (x, x[:, :1])}
    lows = []
    for stage, rate in enumerate((0.05, 0.01)):
        model.compile(keras.optimizers.Adam(rate), "mse")
        stops = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
        best = keras.callbacks.ModelCheckpoint(str(files / "best.keras"), save_best_only=True)
        history = model.fit(x, x[:, :1], epochs=3, callbacks=[Steps(), stops, best], **options)
        lows.append([min(history.history["val_loss"]), stops.best, best.best])
        model.save_weights(files / f"stage_{stage}.weights.h5")
        lows.append(keras.saving.load_model(files / "best.keras").get_weights()[0].tolist())
    return model, lows


PROGRAMS = {
    each.__name__: each
    for each in (
        *(files_of_epochs, early_stopping, two_optimizers, folds, tuned, table, open_table, appended, decided),
        *(replaced, accumulated, broken_off, fits),
    )
}


def digests(files):
    """Return a digest of what each file holds: of archives, whose bytes have times, the parts."""
    import zipfile

    def content(path):
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as parts:
                return b"".join(parts.read(name) for name in sorted(parts.namelist()) if name.endswith(".h5"))
        return path.read_bytes()

    return {each.name: hashlib.sha256(content(each)).hexdigest()[:12] for each in sorted(files.iterdir())}


def weights(net):
    parts = net.get_weights() if hasattr(net, "get_weights") else [each.detach().numpy() for each in net.parameters()]
    return hashlib.sha256(b"".join(each.tobytes() for each in parts)).hexdigest()[:12]


def run(top, name, at=None, start=None):
    """Run a program, from a checkpoint if one is given; return its result, its files, and what ended it."""
    files, step = top / "files", Dies(at)
    files.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if start is None:
                with tp.checkpointing(top / "saved", every=4):
                    net, value = PROGRAMS[name](files, step)
            else:
                with tp.resume(start) as resumed, tp.checkpointing(top / "saved", every=4):
                    net, value = PROGRAMS[name](files, step)
        except tp.TpunbError as error:
            return {"refused": str(error), "files": digests(files)}
    said = "" if start is None else str(resumed)
    return {"result": [weights(net), value], "files": digests(files), "steps": step.steps, "said": said}


def forked(file, function, *arguments):
    """Return the result of a function in a process of its own; None if that was killed."""
    if not (process := os.fork()):
        code = 1
        try:
            torch.set_num_threads(1)
            file.write_text(json.dumps(function(*arguments)))
            code = 0
        except BaseException:  # noqa: BLE001  it is shown
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, 9), code
    return json.loads(file.read_text()) if code == 0 else None


def outcome(top, name):
    top.mkdir(parents=True)
    (top / "whole").mkdir()
    whole, killed = forked(top / "whole.json", run, top / "whole", name), []
    for share in KILLED:
        folder = top / str(share)
        folder.mkdir()
        assert forked(folder / "killed.json", run, folder, name, int(whole["steps"] * share)) is None
        before, start = digests(folder / "files"), max(tp.checkpoints(folder / "saved"), key=lambda each: each.time)
        after = forked(folder / "after.json", run, folder, name, None, start)
        killed.append({"before": before, "after": after, "exact": start.exact, "reason": start.reason})
    return {"whole": whole, "killed": killed}


if __name__ == "__main__":
    # imported before the processes fork
    top, _ = Path(sys.argv[1]), (tp.checkpointing, tp.resume, tp.checkpoints, network())
    if "fits" in sys.argv:
        import keras  # noqa: F401
    outcomes = {name: outcome(top / name, name) for name in sys.argv[2:]}
    (top / "outcomes.json").write_text(json.dumps(outcomes))
