"""Loops of PyTorch over a DataLoader, saved and resumed: bit for bit, or with a reason."""

import json
import random
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from examples import is_thorough
from optional import lazy
from warm_python import TORCH, warm_python

import tpunb as tp
from tpunb.checkpoint import checkpointing, checkpoints, restore, save
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.training import seeds, torch_state

torch = lazy("torch")
pytestmark = pytest.mark.live
batches = tp.testing.null_run.batches


@pytest.fixture(scope="module")
def programs():
    pytest.importorskip("torch")
    import torch_resumed_loops

    before, threads = seeds.host_random_state(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch_resumed_loops
    torch.set_num_threads(threads)
    seeds.set_host_random_state(before)


def saved(folder, run, **more):
    """Run in a block that saves; return the result."""
    with warnings.catch_warnings(), checkpointing(folder, **more):
        warnings.simplefilter("ignore")
        return run()


def seeded():
    random.seed(3)
    np.random.seed(3)


LOADERS = (
    *("order", "shuffled", "shuffled, 2 workers", "shuffled, 2 lasting workers", "generator", "generator, 2 workers"),
    *("weighted", "replaced", "without batches", "noisy", "noisy, 2 workers", "drawing", "drawing, 2 workers"),
    *("stream", "stream, 2 workers"),
)
TRAININGS = ("accumulated", "scaled", "bfloat16", "restarted", "averaged", "unfrozen", "plain tensors")


KILLED = "noisy, 2 workers"
"""The loop that is also killed, and resumed in a new process."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == KILLED)) for name in (*LOADERS, *TRAININGS)]
)
def test_a_loop_resumes_exactly_in_any_epoch(tmp_path, programs, name):
    seeded()
    losses, state = saved(tmp_path, lambda: programs.cell(name), every=3)
    found = checkpoints(tmp_path)
    steps = len(losses)
    assert [one.step for one in found] == list(range(3, steps + 1, 3))
    chosen = (found[0], found[2], found[-2]) if is_thorough() else (found[2],)
    for one in chosen:  # in the first epoch, or its end, and the last
        assert one.exact, one.reason
        assert {"weights", "optimizer", "data position"} <= {*one.holds}
        with resume(one) as resumed:
            later, state_later = programs.cell(name)
        assert later == losses[one.step :]
        assert state_later == state
        assert resumed.verified_steps == steps - one.step, resumed
        is_slow = "stream" in name or name in ("noisy, 2 workers", "drawing, 2 workers")
        assert ("drawn again" in str(resumed)) == (is_slow and one.step % -(-steps // 3) != 0)


def test_the_loops_are_all_tested(programs):
    assert {*LOADERS} == {*programs.LOADERS}
    assert {*TRAININGS} == {*programs.TRAININGS}


@pytest.mark.parametrize("name", ["shuffled", "shuffled, 2 lasting workers"])
def test_checkpoints_at_the_end_of_epochs(tmp_path, programs, name):
    seeded()
    losses, state = saved(tmp_path, lambda: programs.cell(name))
    for one in checkpoints(tmp_path):
        with resume(one):
            assert programs.cell(name) == (losses[one.step :], state)


def test_killed_loops_resume_in_new_processes(tmp_path, programs):
    names = [KILLED, *["accumulated"] * is_thorough()]
    command = [*warm_python(TORCH), programs.__file__, tmp_path, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert [*outcomes] == names
    for name, outcome in outcomes.items():
        losses, state, *_ = outcome["whole"]
        later = outcome["later"]
        assert outcome["killed"] == 9
        assert outcome["steps"] == [3, 6, 9, 12, 15]
        assert later[:2] == [losses[15:], state], name
        assert later[2].startswith("resumed exactly at step 15")


def small(loader=None, *, lacks=(), more=None):
    """Train a small model; return a function that trains it, whose state lacks some parts."""

    def cell():
        torch.manual_seed(1)
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        state = {"net": net, "optimizer": optimizer, "schedule": schedule, **(more or {})}
        data = loader() if loader else torch.utils.data.DataLoader(torch.ones(24, 3), 4)
        for _ in range(2):
            for batch in batches(data, state={name: part for name, part in state.items() if name not in lacks}):
                optimizer.zero_grad()
                net(batch).square().mean().backward()
                optimizer.step()
                schedule.step()
        return net.weight.tolist()

    return cell


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ({"optimizer", "schedule"}, "state lacks an optimizer that takes steps, SGD (give it in state)"),
        ({"optimizer"}, "state lacks an optimizer that takes steps, SGD (give it in state)"),
        ({"net"}, "state lacks what SGD trains (give the model in state)"),
        ({"schedule"}, "state lacks the learning rate scheduler of SGD (give it in state)"),
    ],
)
def test_a_part_that_the_state_lacks_is_named(tmp_path, lacks, reason):
    pytest.importorskip("torch")
    cell = small(lacks=lacks)
    with pytest.warns(UserWarning, match="resuming will not be exact: state lacks"), checkpointing(tmp_path, every=4):
        cell()
    one = checkpoints(tmp_path)[0]
    assert (one.exact, one.reason) == (False, reason)
    with pytest.raises(TpunbError, match="cannot be resumed exactly: state lacks"), resume(one):
        pass
    with resume(one, exact=False):
        cell()
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks


def test_a_wrapped_optimizer_and_its_scheduler_are_in_the_state():
    pytest.importorskip("torch")
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    wrapped = SimpleNamespace(optimizer=optimizer, param_groups=optimizer.param_groups)
    assert torch_state.missing([net, wrapped], [optimizer]) == ""
    schedule = SimpleNamespace(scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 5))
    assert "lacks the learning rate scheduler" in torch_state.missing([net, wrapped], [optimizer])
    assert torch_state.missing([net, wrapped, schedule], [optimizer]) == ""


class Kept:
    """An object whose state cannot be read back safely."""

    def state_dict(self):
        return {"path": Kept}

    def load_state_dict(self, state):
        raise AssertionError


def test_a_state_that_only_pickle_restores_is_inexact(tmp_path):
    pytest.importorskip("torch")
    saved(tmp_path, small(more={"kept": Kept()}), every=4)
    one = checkpoints(tmp_path)[0]
    assert (
        one.reason
        == "kept: a test_torch_resume.Kept in its state is not read back (keep tensors, numbers and text there)"
    )


def rows(**more):
    return torch.utils.data.DataLoader(torch.ones(24, 3), 4, **more)


def test_other_data_are_refused(tmp_path):
    pytest.importorskip("torch")
    saved(tmp_path, small(), every=4)
    one = checkpoints(tmp_path)[0]
    for loader, problem in {
        lambda: torch.utils.data.DataLoader(torch.ones(23, 3), 4): "its items were 24, now 23",
        lambda: torch.utils.data.DataLoader(torch.ones(24, 3), 2): "its items in a batch were 4, now 2",
        lambda: rows(shuffle=True): "its sampler were SequentialSampler, now RandomSampler",
        lambda: [torch.ones(4, 3)] * 6: "the data are of another kind",
    }.items():
        with pytest.raises(TpunbError, match=problem), resume(one):
            small(loader)()


def mixing():
    import torch_resumed_loops

    return torch.utils.data.DataLoader(torch_resumed_loops.Mixing(), 4)


def test_a_stream_that_shares_the_global_generator_with_the_training_is_inexact(tmp_path, programs):
    def cell(rate):
        torch.manual_seed(1)
        net, dropout = torch.nn.Linear(3, 1), torch.nn.Dropout(rate)
        optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
        for x, y in batches(mixing(), state={"net": net, "optimizer": optimizer}):
            loss = (dropout(net(x)) - y).square().mean() if rate else (net(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return losses

    saved(tmp_path / "dropout", lambda: cell(0.5), every=4)
    assert checkpoints(tmp_path / "dropout")[0].reason.startswith("Mixing: it draws from global generators, as the")
    losses = saved(tmp_path / "alone", lambda: cell(0), every=4)
    with resume(checkpoints(tmp_path / "alone")[0]):
        assert cell(0) == losses


def test_workers_that_no_position_restores_make_a_checkpoint_inexact(tmp_path, programs):
    options = {"num_workers": 1, "persistent_workers": True}
    lasting = small(lambda: torch.utils.data.DataLoader(programs.Drawing(), 4, collate_fn=firsts, **options))
    saved(tmp_path / "lasting", lasting, every=5)
    assert "set persistent_workers=False" in checkpoints(tmp_path / "lasting")[0].reason
    saved(tmp_path / "any order", small(lambda: rows(num_workers=1, in_order=False)), every=5)
    assert "set in_order=True" in checkpoints(tmp_path / "any order")[0].reason


def firsts(items):
    return torch.stack([first for first, _ in items])


def test_random_functions_are_seen_in_a_dataset(programs):
    def is_random(name):
        return torch_state.LoaderSources(programs.LOADERS[name]()).is_random

    assert [name for name in LOADERS if is_random(name)] == [
        *("noisy", "noisy, 2 workers", "drawing", "drawing, 2 workers", "stream", "stream, 2 workers")
    ]


@pytest.mark.parametrize("kind", [random.Random, np.random.RandomState, np.random.default_rng, "mt19937", "torch"])
def test_states_of_generators_are_json_values(kind):
    pytest.importorskip("torch")
    make = {
        "torch": lambda seed: torch.Generator().manual_seed(seed),
        "mt19937": lambda seed: np.random.Generator(np.random.MT19937(seed)),
    }.get(kind, kind)
    generator, other = make(1), make(2)

    def draw(dice):
        return torch.rand((), generator=dice).item() if kind == "torch" else float(dice.random())

    draw(generator)
    state = json.loads(json.dumps(torch_state.encoded(generator)))
    torch_state.set_encoded(other, state)
    assert draw(other) == draw(generator)


def test_an_error_in_the_sources_does_not_end_the_training(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    expected = small()()
    with monkeypatch.context() as patch:
        patch.setattr(torch_state.LoaderSources, "capture", lambda self: 1 / 0)
        assert saved(tmp_path / "capture", small(), every=4) == expected
    with monkeypatch.context() as patch:
        patch.setattr("tpunb.checkpoint.resume.loop_data.LoaderSources", lambda loader: 1 / 0)
        assert saved(tmp_path / "begin", small(), every=4) == expected
    for name in ("capture", "begin"):
        one = checkpoints(tmp_path / name)[0]
        assert not one.exact
        assert "ZeroDivisionError" in one.reason


def test_parts_saved_by_hand_are_restored(tmp_path):
    pytest.importorskip("torch")
    net, dice = torch.nn.Linear(2, 1), torch.Generator().manual_seed(1)
    parts = {"net": net, "dice": dice, "mean": torch.ones(2), "seen": 3}
    one = save(tmp_path, 3, **parts)
    weights, drawn, noise = net.weight.tolist(), torch.rand((), generator=dice), torch.rand(())
    with torch.no_grad():
        net.weight.zero_()
        parts["mean"].zero_()
    values = restore(one, **parts)
    assert (net.weight.tolist(), values["seen"]) == (weights, 3)
    assert values["mean"] is parts["mean"]
    assert parts["mean"].tolist() == [1, 1]
    assert (torch.rand((), generator=dice), torch.rand(())) == (drawn, noise)
    assert one.holds == ("weights", "random state")


def test_metrics_and_other_buffers_are_restored(tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")
    net, mean = torch.nn.Linear(2, 1), torchmetrics.MeanMetric()
    net.register_buffer("count", torch.zeros(1), persistent=False)
    net.eval()
    mean.update(3.0)
    net.count += 5
    one = save(tmp_path, 3, net=net, mean=mean)
    mean.update(9.0)
    net.count += 5
    net.train()
    restore(one, net=net, mean=mean)
    assert (mean.compute().item(), net.count.item(), net.training) == (3, 5, False)


def test_batches_of_any_type_have_fingerprints(tmp_path):
    pytest.importorskip("torch")
    kinds = [torch.ones(2, dtype=torch.bfloat16), torch.eye(2).to_sparse(), {"text": ["a"], "of": (torch.ones(1), 2)}]
    net = torch.nn.Linear(1, 1)
    with checkpointing(tmp_path, every=1):
        for _ in batches(torch.utils.data.DataLoader(kinds, None), state={"net": net}):
            pass
    with resume(checkpoints(tmp_path)[0]) as resumed:
        for _ in batches(torch.utils.data.DataLoader(kinds, None), state={"net": net}):
            pass
    assert resumed.verified_steps == 2


def test_a_loader_that_keeps_its_position_is_asked_for_it(tmp_path, programs):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def cell(**options):
        torch.manual_seed(1)
        return small(lambda: stateful.StatefulDataLoader(torch.arange(72.0).view(24, 3), 4, **options))()

    for number, options in enumerate([{}, {"shuffle": True}, {"shuffle": True, "num_workers": 2}]):
        whole = saved(tmp_path / str(number), lambda options=options: cell(**options), every=4)
        for one in checkpoints(tmp_path / str(number)):
            assert one.exact, one.reason
            with resume(one) as resumed:
                assert cell(**options) == whole
            assert "drawn again" not in str(resumed)
            assert resumed.verified_steps == 12 - one.step
