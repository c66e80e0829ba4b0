"""DataLoaders of PyTorch with other settings, and their tuning."""

from __future__ import annotations

import pytest
from optional import lazy

from tpunb.torchdata.loader import Settings, independent, is_loader, settings_of, shut_down, with_settings

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
