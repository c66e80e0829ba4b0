"""DataLoaders of PyTorch with other settings, and their tuning."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
import re
import sys
import time
import uuid
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from optional import lazy

import tpunb as tp
import tpunb.tuning.trial as trial
from tpunb.errors import TpunbError
from tpunb.torchdata import loader as loader_module
from tpunb.torchdata.effects import digest, examine
from tpunb.torchdata.loader import (
    Settings,
    independent,
    is_loader,
    settings_of,
    shut_down,
    start_obstacle,
    with_settings,
)
from tpunb.tuning.loader import LoaderPipeline
from tpunb.tuning.model_based import model_based, predicted
from tpunb.tuning.parameters import Kind
from tpunb.tuning.position import Beginning
from tpunb.tuning.search import Space, StepCosts
from tpunb.tuning.stage_costs import StageCost
from tpunb.tuning.trial import TrialError, TrialRunner

torch = lazy("torch")
ROWS = range(23)


def loader(**options):
    return torch.utils.data.DataLoader(ROWS, **{"batch_size": 4, **options})


def weighted():
    return torch.utils.data.WeightedRandomSampler([1.0, 2.0] * 11 + [3.0], 23)


def read(data, epochs=2):
    """Return the batches of some epochs, and what the global generator gives afterwards."""
    torch.manual_seed(4)
    return [[torch.as_tensor(batch).tolist() for batch in data] for _ in range(epochs)], torch.rand(1).item()


LOADERS = {
    "in order": loader,
    "shuffled": lambda: loader(shuffle=True),
    "own generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(1)),
    "weighted": lambda: loader(sampler=weighted()),
    "batch sampler": lambda: torch.utils.data.DataLoader(
        ROWS, batch_sampler=torch.utils.data.BatchSampler(weighted(), 5, drop_last=True)
    ),
    "not batched": lambda: torch.utils.data.DataLoader(ROWS, batch_size=None, shuffle=True),
    "with a timeout": lambda: loader(num_workers=1, timeout=60),
}


@pytest.mark.live
@pytest.mark.parametrize("name", LOADERS)
def test_the_same_batches_whatever_the_workers(name):
    program = LOADERS[name]()
    expected = read(independent(program))
    assert read(independent(program)) == expected  # the program's generator has not moved
    for settings in (Settings(), Settings(2, 1), Settings(1, 4)):
        assert read(with_settings(independent(program), settings)) == expected


def test_settings_are_those_that_torch_accepts():
    assert Settings(0, 4, persistent_workers=True, start_method="fork").consistent() == Settings()
    assert settings_of(with_settings(loader(), Settings(3))) == Settings(3, 2)
    changed = Settings(2, 1, persistent_workers=True, start_method="spawn")
    program = loader(num_workers=3, timeout=9)
    assert settings_of(with_settings(program, changed)) == changed
    assert with_settings(program, Settings()).timeout == 0
    assert settings_of(program) == Settings(3, 2)


def test_what_a_loader_is():
    assert is_loader(loader())
    assert not is_loader(ROWS)
    assert not is_loader(torch.utils.data.TensorDataset(torch.arange(3)))


def test_a_subclass_keeps_its_class_and_attributes():
    class Mine(torch.utils.data.DataLoader):
        def __iter__(self):
            return map(self.change, super().__iter__())

    program = Mine(ROWS, batch_size=4)
    program.change = lambda batch: batch + 1
    changed = with_settings(program, Settings(pin_memory=True))
    assert type(changed) is Mine
    assert changed.change is program.change


@pytest.mark.live
def test_workers_end_when_they_are_shut_down():
    iterator = iter(with_settings(loader(), Settings(2, persistent_workers=True)))
    next(iterator)
    workers = iterator._workers
    shut_down(iterator)
    assert not any(worker.is_alive() for worker in workers)
    shut_down(iter([]))


# ---- what batches depend on


class Rows:
    def __init__(self, rows=40):
        self.rows = np.arange(float(rows))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def jitter(row):
    row = row + 1
    return row + torch.rand(1).item()


class Augmented(Rows):
    def __getitem__(self, index):
        return jitter(self.rows[index])


class PythonDrawn(Rows):
    def __getitem__(self, index):
        return random.random()


class NumPyDrawn(Rows):
    def __getitem__(self, index):
        return np.random.rand()


class OwnGenerator(Rows):
    def __init__(self):
        super().__init__()
        self.dice = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.dice.random()


class Cached(Rows):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def __getitem__(self, index):
        return self.cache.setdefault(index, self.rows[index])


class Timed(Rows):
    def __getitem__(self, index):
        return time.time()


class ByWorker(Rows):
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return 0 if info is None else info.id


class ByProcess(Rows):
    def __getitem__(self, index):
        return os.getpid()


class Unique(Rows):
    def __getitem__(self, index):
        return str(uuid.uuid4())


class InPlace(Rows):
    def __getitem__(self, index):
        row = self.rows[index : index + 1]
        row += 1
        return row[0]


class Ordered(Rows):
    last: ClassVar = [0]

    def __getitem__(self, index):
        self.last[0] += 1
        return self.last[0]


class Opened(Rows):
    file = None

    def __getitem__(self, index):
        self.file = self.file or [1]
        time.time()
        torch.utils.data.get_worker_info()
        return self.rows[index]


class Failing(Rows):
    def __getitem__(self, index):
        raise ValueError(f"no row {index}")


class Ending(Rows):
    def __getitem__(self, index):
        os._exit(3)


class LazyIndices:
    def __len__(self):
        return 40

    def __iter__(self):
        return (int(torch.randint(23, (1,))) for _ in range(40))


def noisy_collation(rows):
    return torch.as_tensor(np.stack(rows)) + torch.rand(1)


def seeds_dataset(worker):
    torch.utils.data.get_worker_info().dataset.dice = np.random.default_rng(worker)


def of(rows, **options):
    return lambda: torch.utils.data.DataLoader(rows(), **{"batch_size": 8, **options})


SAFE = {
    "rows": of(Rows),
    "a file opened by the first item, and a clock that is not used": of(Opened),
    "tensors": lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(9)), batch_size=2),
    "one item": of(lambda: [5]),
    "no item": of(list),
    "shuffled by a sampler": lambda: loader(sampler=weighted()),
    "sampled with replacement": lambda: loader(sampler=torch.utils.data.RandomSampler(ROWS, replacement=True)),
}
REFUSED = {
    r"^jitter \(test_loader_tuning\.py:\d+\) draws from torch's global generator: give it .* seeded by the index": of(
        Augmented
    ),
    r"^PythonDrawn.__getitem__ .* draws from Python's global": of(PythonDrawn),
    r"^NumPyDrawn.__getitem__ .* draws from NumPy's global": of(NumPyDrawn),
    r"^OwnGenerator.__getitem__ .* draws from self.dice, of which each worker": of(OwnGenerator),
    r"^Cached.__getitem__ .* changes self.cache": of(Cached),
    r"^Timed.__getitem__ .* calls time.time, which differs": of(Timed),
    r"^ByWorker.__getitem__ .* calls get_worker_info": of(ByWorker),
    r"^ByProcess.__getitem__ .* calls os.getpid": of(ByProcess),
    r"^Unique.__getitem__ .* calls uuid4": of(Unique),
    r"^InPlace.__getitem__ .* changes self.rows": of(InPlace),
    r"^Ordered.__getitem__ .* gives other values when an index is read again": of(Ordered),
    r"^reading Failing in a worker process fails: ValueError: no row 0": of(Failing),
    r"^reading Ending in a worker process fails: the process ended": of(Ending),
    r"^LazyIndices draws indices during the epoch": lambda: loader(sampler=LazyIndices()),
    r"^noisy_collation .* draws from torch's": of(Rows, collate_fn=noisy_collation),
    r"^OwnGenerator.__getitem__ .* self.dice": of(OwnGenerator, num_workers=2, worker_init_fn=seeds_dataset),
    r"^in_order=False": of(Rows, num_workers=2, in_order=False),
    r"^jitter .*torch's global": lambda: torch.utils.data.DataLoader(
        torch.utils.data.Subset(Augmented(), range(9)), batch_size=2, num_workers=1
    ),
}


@pytest.mark.live
@pytest.mark.parametrize("name", SAFE)
def test_batches_that_depend_on_their_indices_alone(name):
    assert examine(SAFE[name]()).dependence is None


@pytest.mark.live
@pytest.mark.parametrize("sentence", REFUSED)
def test_what_batches_depend_on_is_named_with_the_function(sentence):
    assert re.search(sentence, examine(REFUSED[sentence]()).dependence)


@pytest.mark.live
def test_the_program_is_as_it_was_after_its_batches_are_read():
    data = of(Cached, shuffle=True, generator=torch.Generator().manual_seed(3))()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    examine(data)
    examine(of(Augmented)())
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert data.dataset.cache == {}
    assert data.generator.get_state().tolist() == torch.Generator().manual_seed(3).get_state().tolist()
    assert not multiprocessing.active_children()


class Chain:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, row):
        for transform in self.transforms:
            row = transform(row)
        return row


class Waits:
    def __call__(self, row):
        time.sleep(0.004)
        return row


def decode(row):
    time.sleep(0.004)
    return row


class Images(Rows):
    transform = Chain(Waits())

    def __getitem__(self, index):
        return self.transform(decode(self.rows[index]))


@pytest.mark.live
def test_the_cost_of_a_batch_is_split_among_transforms_and_functions():
    reading = examine(of(Images)())
    assert {"Waits", "decode"} <= {*reading.parts}
    assert sum(reading.parts.values()) == pytest.approx(reading.seconds)
    assert reading.seconds >= 8 * 0.008


DIFFERENT = {
    "tensors": lambda: (torch.ones(3), torch.zeros(3)),
    "types": lambda: (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float16)),
    "text": lambda: ({"text": ["a"]}, {"text": ["b"]}),
    "keys": lambda: ({"a": 1}, {"b": 1}),
    "nesting": lambda: ([[1], [1]], [[1, 1], []]),
    "objects": lambda: (np.array(["a", None]), np.array(["a", "b"], object)),
    "attributes": lambda: (SimpleNamespace(x=torch.ones(3)), SimpleNamespace(x=torch.zeros(3))),
    "sparse": lambda: (torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse()),
    "gradients": lambda: (torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_digest_is_of_all_that_a_batch_holds(name):
    (one, other), (again, _) = DIFFERENT[name](), DIFFERENT[name]()
    assert digest(one) == digest(again)
    assert digest(one) != digest(other)


# ---- parameters


class Iterated:
    """An iterable dataset, made when torch is there."""

    def __new__(cls):
        kind = type("Iterated", (torch.utils.data.IterableDataset,), {"__iter__": lambda self: iter(range(40))})
        return kind()


def parameters(data):
    return {parameter.kind: parameter for parameter in LoaderPipeline(data).parameters}


def test_parameters_of_a_loader():
    found = parameters(of(Rows, num_workers=3, prefetch_factor=7)())
    assert (found[Kind.WORKERS].current, found[Kind.PREFETCH_FACTOR].current) == (3, 7)
    assert {0, 1, 2, 3, 4} <= {*found[Kind.WORKERS].domain}
    assert max(found[Kind.WORKERS].domain) <= 5  # batches of an epoch
    assert 7 in found[Kind.PREFETCH_FACTOR].domain
    assert all(found[kind].verdict == "verify" for kind in (Kind.WORKERS, Kind.PREFETCH_FACTOR))
    if not torch.accelerator.is_available():
        assert found[Kind.PINNED].reason == "there is no device to copy to"


def test_workers_stay_only_if_no_other_random_numbers_change():
    dice = torch.Generator()
    assert parameters(of(Rows)())[Kind.PERSISTENT].verdict == "locked"
    assert parameters(of(Rows, shuffle=True, generator=dice)())[Kind.PERSISTENT].verdict == "locked"
    assert parameters(of(Rows, generator=dice)())[Kind.PERSISTENT].verdict == "verify"
    changing = type("Changing", (Rows,), {"set_epoch": lambda self, epoch: None})
    assert "set_epoch" in parameters(of(changing, generator=dice)())[Kind.PERSISTENT].reason
    staying = parameters(of(Rows, num_workers=2, persistent_workers=True)())
    assert staying[Kind.PERSISTENT].verdict == "locked"
    assert 0 not in staying[Kind.WORKERS].domain


def test_workers_of_an_iterable_dataset_are_locked():
    found = parameters(of(Iterated, num_workers=2)())
    assert found[Kind.WORKERS].verdict == "locked"
    assert found[Kind.PREFETCH_FACTOR].verdict == "verify"
    assert LoaderPipeline(of(Iterated, num_workers=2)()).refusal is None
    if not torch.accelerator.is_available():
        assert "each worker iterates" in LoaderPipeline(of(Iterated)()).refusal


def test_workers_that_would_run_the_program_again_are_not_started(tmp_path, monkeypatch):
    program = tmp_path / "train.py"
    program.write_text("train()")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    assert "runs train.py again" in start_obstacle(of(Rows)(), "spawn")
    assert start_obstacle(of(Rows)(), "fork") is None
    program.write_text("if __name__ == '__main__':\n    train()")
    assert start_obstacle(of(Rows)(), "spawn") is None
    assert "sends the dataset" in start_obstacle(of(lambda: [lambda: 0])(), "spawn")
    assert "over 64 MB" in start_obstacle(of(lambda: np.zeros(9_000_000))(), "spawn")
    monkeypatch.setattr(loader_module, "_MOST_SENT", 1 << 20)
    assert "over 1 MB" in start_obstacle(of(lambda: [bytes([n]) * 2**17 for n in range(20)])(), "spawn")  # no arrays
    program.write_text("import logging\nlogging.getLogger(__name__)\ntrain()")
    assert "runs train.py again" in start_obstacle(of(Rows)(), "spawn")


def test_code_to_paste():
    pipeline = LoaderPipeline(of(Rows)())
    assert pipeline.as_code({"loader workers": 4, "loader prefetch factor": 4}) == (
        "num_workers=4, prefetch_factor=4,  # of DataLoader(...)"
    )
    assert pipeline.as_code({"loader workers": 0}) == ""
    assert "without arguments" in LoaderPipeline(of(Rows, num_workers=2)()).as_code({"loader workers": 0})
    assert settings_of(pipeline.build({"loader workers": 4})) == Settings(4, 2)
    with pytest.raises(TpunbError, match="is locked at False"):
        pipeline.build({"loader persistent workers": True})
    with pytest.raises(TypeError, match="must be a torch"):
        LoaderPipeline([1, 2])


# ---- trials


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine workers take long to start: no trial of a test is too slow."""
    monkeypatch.setattr(trial, "_HICCUP", 600.0)


def trained(data):
    """Return a job of a small module with dropout and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def step(parts, batch):
        model, optimizer = parts
        loss = (model(batch[:, None].float()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return tp.tuning.Job(((model, optimizer), data), step=step)


@pytest.mark.live
def test_trials_of_any_workers_train_alike_and_leave_no_trace():
    data = of(Rows, shuffle=True, generator=torch.Generator().manual_seed(3))()
    job = trained(data)
    (model, optimizer), _ = job.parts
    weights = [parameter.tolist() for parameter in model.parameters()]
    before = torch.get_rng_state().tolist()
    with TrialRunner(job, sizes=(3, 4)) as runner:
        baseline = runner.calibrate()
        digests = {runner.trial({"loader workers": workers}).digest for workers in (0, 1, 2)}
        assert runner.first_difference({"loader workers": 2, "loader prefetch factor": 1}, 11) is None
    assert digests == {baseline.digest}
    assert [parameter.tolist() for parameter in model.parameters()] == weights
    assert optimizer.state_dict()["state"] == {}
    assert torch.get_rng_state().tolist() == before
    assert data.generator.get_state().tolist() == torch.Generator().manual_seed(3).get_state().tolist()
    assert not multiprocessing.active_children()


class Later(Rows):
    """Depends on the worker after the batches that are read first."""

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return self.rows[index] + (index == 60 and info is not None)


@pytest.mark.live
def test_batches_are_compared_beyond_those_of_a_trial():
    data = of(lambda: Later(80))()
    assert LoaderPipeline(data).refusal is None
    with TrialRunner(tp.tuning.Job((None, data), step=lambda model, batch: None), sizes=(1, 1)) as runner:
        baseline = runner.calibrate()
        assert runner.trial({"loader workers": 1}).digest == baseline.digest
        assert runner.first_difference({"loader workers": 1}, 7) is None
        assert runner.first_difference({"loader workers": 1}, 20) == 8


@pytest.mark.live
def test_other_batches_are_another_output():
    with TrialRunner(tp.tuning.Job((None, of(ByWorker)()), step=lambda model, batch: None), sizes=(1, 2)) as runner:
        runner.position = Beginning(runner.pipeline)
        baseline = runner.calibrate()
        assert runner.trial({"loader workers": 2}).digest != baseline.digest


class FailsInWorker(Rows):
    def __getitem__(self, index):
        if index > 30 and torch.utils.data.get_worker_info() is not None:
            raise OSError("no handle")
        return self.rows[index]


@pytest.mark.live
def test_a_failing_worker_is_a_failed_trial():
    job = tp.tuning.Job((None, of(FailsInWorker)()), step=lambda model, batch: None)
    with TrialRunner(job, sizes=(3, 3)) as runner:
        runner.position = Beginning(runner.pipeline)
        runner.calibrate()
        with pytest.raises(TrialError, match="no handle"):
            runner.trial({"loader workers": 2})
    gc.collect()
    assert not multiprocessing.active_children()


def test_a_model_on_a_loader_requires_a_step():
    with pytest.raises(TpunbError, match="requires the step") as raised:
        tp.tune(torch.nn.Linear(1, 1), of(Rows)())
    assert "tp.tuning.Job(((model, optimizer), loader), step=step)" in raised.value.hint


def test_an_optimizer_from_outside_is_refused():
    model = torch.nn.Linear(1, 1)
    optimizer, criterion = torch.optim.SGD(model.parameters()), torch.nn.MSELoss()

    def step(model, batch):
        criterion(model(batch), batch).backward()
        optimizer.step()

    def inside(parts, batch):
        criterion(parts[0](batch), batch).backward()
        parts[1].step()

    assert "'optimizer' from outside" in tp.tuning.Job((model, of(Rows)()), step=step).training.untracked_state(
        iter(())
    )
    job = tp.tuning.Job(((model, optimizer), of(Rows)()), step=inside)
    assert job.training.untracked_state(iter(())) == ""


def costed(seconds, busy, most, *, model=0.0, cores=2, **options):
    """Return the space of a loader whose batches take `seconds`."""
    costs = StepCosts(model, (StageCost("loader", seconds, busy, most=most),))
    return Space.of(LoaderPipeline(loader(batch_size=1, **options)).parameters, lambda: costs, cores=cores, deepest=8)


@pytest.mark.parametrize(
    ("space", "workers"),
    [
        (lambda: costed(0.03, 0.02, 99.0, model=0.01), 8),  # waits: one and a half times what keeps up with the model
        (lambda: costed(0.03, 1.0, 99.0), 2),  # computes: one worker a core
        (lambda: costed(0.03, 0.02, 3.5), 4),  # each worker takes time to start
        (lambda: costed(0.03, 0.02, 0.5, num_workers=2), 0),  # an epoch takes less than a worker's start
        (lambda: costed(0.001, 0.5, 99.0, model=0.01), 1),  # made while the model computes
    ],
)
def test_the_workers_that_a_batch_needs(space, workers):
    assert predicted(space())["loader workers"] == workers


def test_the_search_ends_without_workers_and_with_more():
    proposed = list(itertools.islice(answered(costed(0.03, 1.0, 99.0, num_workers=2)), 9))
    assert [values.get("loader workers", 2) for values in proposed] == [2, 4, 1, 0, 2]
    assert proposed[-1] == {"loader prefetch factor": 4}


def answered(space):
    """Yield the proposals of a search that never finds a better one."""
    search = model_based(space)
    values = next(search)
    while True:
        yield values
        try:
            values = search.send(1.0)
        except StopIteration:
            return


@pytest.mark.live
@pytest.mark.slow
def test_a_loader_that_waits_is_tuned():
    data = of(lambda: Images(400), shuffle=True)()
    tuning = tp.tune(data, budget=60)
    assert tuning.best.get("loader workers", 2) > 1
    assert any("Batches are equal" in str(message) for message in tuning.messages) == bool(tuning.best)
    assert any("decode" in str(message) for message in tuning.messages)
    assert read(tuning.apply(of(lambda: Images(40), shuffle=True)())) == read(of(lambda: Images(40), shuffle=True)())


@pytest.mark.live
def test_a_loader_that_draws_is_not_tuned():
    (message,) = tp.tune(of(Augmented)()).messages
    assert str(message).startswith("Not tuned: jitter (test_loader_tuning.py:")
