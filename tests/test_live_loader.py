"""DataLoaders of running trainings: the loop goes on with other workers, and all that comes out is what it would be."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from itertools import islice

import pytest
from forced_tuning import Lost, Won, force
from optional import lazy
from test_faults import fault, parameters
from torch_loops import (
    FAIL,
    LOOPS,
    TRAINERS,
    UNCHANGED,
    Training,
    changes_its_dataset,
    changes_its_dataset_between_epochs,
    loader,
    of_kind,
)
from torch_loops import _by_process as by_process

from tpunb.torchdata import handover
from tpunb.tuning import live, live_torch, online
from tpunb.tuning.online import tuned

torch = lazy("torch")

# the threads in which multiprocessing feeds a queue end with those that read it, in any order
pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]

WORKERS = "loader workers"


def two_workers(space):
    """Propose two workers, and no more."""
    yield {WORKERS: 2}


def sentences(found):
    return [*map(str, found.messages)]


@cache
def untuned(name):
    return LOOPS[name]()


def force_loader(patch, step, race=Won):
    """Let DataLoaders be tuned at a step, by a race of single steps."""
    force(patch, step, race)
    patch.setattr(live_torch, "SEND", 0.0)
    patch.setattr(live_torch.LoaderFeed, "block", lambda feed, values: (1, 1))


def comes_out_the_same(patch, name, step, race=Won):
    """Tune a loop at a step, and return the trials, if its end did not come within the race."""
    force_loader(patch, step, race)
    plain = untuned(name)
    with tuned(budget=1e6, search=two_workers) as found:
        result = LOOPS[name]()
    assert not multiprocessing.active_children()
    assert found.tuning is not None, sentences(found)
    trials = found.tuning.trials[1:]
    assert all(trial.equal for trial in trials), sentences(found)
    assert trials or found.messages[-1].code == "fit ends", sentences(found)
    assert found.values == ({WORKERS: 2} if race is Won and trials else {}), sentences(found)
    assert result == plain
    return trials


@pytest.mark.parametrize("name", LOOPS)
def test_the_output_is_the_same(name, monkeypatch):
    assert comes_out_the_same(monkeypatch, name, 4)


@pytest.mark.parametrize("name", ["shuffled", "one worker", "is left early"])
def test_the_output_is_the_same_while_settings_alternate(name, monkeypatch):
    assert comes_out_the_same(monkeypatch, name, 3, Lost)


@pytest.mark.slow
@pytest.mark.parametrize("race", [Won, Lost])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 9, 10, 11, 12, 14])
@pytest.mark.parametrize("name", LOOPS)
def test_the_output_is_the_same_at_every_step(name, step, race, monkeypatch):
    comes_out_the_same(monkeypatch, name, step, race)


@pytest.mark.slow
@pytest.mark.parametrize("race", [Won, Lost])
@pytest.mark.parametrize("step", [2, 4, 9])
@pytest.mark.parametrize("package", TRAINERS)
def test_the_output_of_trainers_is_the_same(package, step, race, monkeypatch):
    pytest.importorskip(package)
    TRAINERS[package]()  # imports draw random numbers
    plain = TRAINERS[package]()
    force_loader(monkeypatch, step, race)
    with tuned(budget=1e6, search=two_workers) as found:
        assert TRAINERS[package]() == plain
    assert not multiprocessing.active_children()
    assert found.tuning is not None, sentences(found)
    assert all(trial.equal for trial in found.tuning.trials), sentences(found)
    if race is Won:
        assert found.values == {WORKERS: 2}, sentences(found)
        code = "dataloader_num_workers=2,  # of TrainingArguments" if package == "transformers" else "num_workers=2"
        assert found.tuning.as_code().startswith(code)


@pytest.mark.parametrize("reason", UNCHANGED)
def test_what_cannot_be_handed_over_stays_as_it_is(reason, monkeypatch):
    force_loader(monkeypatch, 4)
    plain = UNCHANGED[reason]()
    with tuned(budget=1e6, search=two_workers) as found:
        assert UNCHANGED[reason]() == plain
    assert found.values == {}
    assert any(reason in sentence for sentence in sentences(found)), sentences(found)


@pytest.mark.parametrize("race", [Won, Lost])
@pytest.mark.parametrize("reason", FAIL)
def test_what_other_workers_fail_at_the_program_does(reason, race, monkeypatch):
    force_loader(monkeypatch, 3, race)
    monkeypatch.setattr(handover, "_TIMEOUT", 1.0)
    plain = FAIL[reason]()
    with tuned(budget=1e6, search=two_workers) as found:
        assert FAIL[reason]() == plain
    assert not multiprocessing.active_children()
    reported = [*sentences(found), *(trial.error or "" for trial in (found.tuning.trials if found.tuning else ()))]
    assert sum(reason in sentence for sentence in reported) == 1, reported


def test_what_the_program_changes_between_epochs_is_changed(monkeypatch):
    force_loader(monkeypatch, 3)
    plain = changes_its_dataset_between_epochs()
    with tuned(budget=1e6, search=two_workers) as found:
        assert changes_its_dataset_between_epochs() == plain
    assert found.values == {WORKERS: 2}, sentences(found)


def test_workers_that_began_before_a_change_are_not_replaced(monkeypatch):
    force_loader(monkeypatch, 9)
    plain = changes_its_dataset(1)
    with tuned(budget=1e6, search=two_workers):
        assert changes_its_dataset(1) == plain


def test_other_batches_are_found_before_they_are_used(monkeypatch):
    force_loader(monkeypatch, 4)
    plain = of_kind(by_process)
    with tuned(budget=1e6, search=two_workers) as found:
        assert of_kind(by_process) == plain
    assert [trial.verdict for trial in found.tuning.trials] == ["default", "different output"]


def counted(data, at, x):
    data.count = getattr(data, "count", 0) + 1
    return x + data.count


def counted_in_a_list(data, at, x):
    data.__dict__.setdefault("calls", []).append(at)
    return x + len(data.calls)


@pytest.mark.parametrize("kind", [counted, counted_in_a_list])
def test_a_dataset_that_changes_itself_is_left_alone(kind, monkeypatch):
    force_loader(monkeypatch, 4)
    plain = of_kind(kind)
    with tuned(budget=1e6, search=two_workers) as found:
        assert of_kind(kind) == plain
    assert "its dataset changes while it is read" in sentences(found)[0]


def test_workers_that_stay_go_on_after_the_block(monkeypatch):
    force_loader(monkeypatch, 3)

    def run(block):
        data, training = loader(shuffle=True, num_workers=1, persistent_workers=True), Training()
        with block:
            for batch in islice(data, 7):
                training.step(batch)
        for _ in range(2):
            for batch in data:
                training.step(batch)
        return training.result()

    plain = run(nullcontext())
    assert run(tuned(budget=1e6, search=two_workers)) == plain


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("count", [5, 9, 11])
def test_a_loop_goes_on_after_the_block(workers, count, monkeypatch):
    force_loader(monkeypatch, 3)

    def run(block):
        training = Training()
        batches = iter(loader(shuffle=True, num_workers=workers))
        with block:
            for batch in islice(batches, count):
                training.step(batch)
        for batch in batches:
            training.step(batch)
        return training.result()

    plain = run(nullcontext())
    assert run(tuned(budget=1e6, search=two_workers)) == plain


def test_a_loader_of_another_thread_is_left_alone(monkeypatch):
    force_loader(monkeypatch, 3)
    with tuned(budget=1e6, search=two_workers) as found, ThreadPoolExecutor(1) as pool:
        pool.submit(LOOPS["shuffled"]).result()
    assert (found.tuning, found.messages) == (None, [])


def test_the_code_and_the_sentences(monkeypatch):
    force_loader(monkeypatch, 4)
    with tuned(budget=1e6, search=two_workers) as found:
        LOOPS["shuffled"]()
    assert "num_workers=2" in found.tuning.as_code()
    assert found.headline.startswith("Tuned: about ")


# ---- faults

PLACES = (
    *((handover.Handover, name) for name in ("__init__", "obstacle", "next", "ahead", "made_with", "use", "give_back")),
    *((handover.Handover, name) for name in ("_made", "_watch", "_unheld", "_iterator", "left", "in_flight", "ready")),
    *((handover.Handover, name) for name in ("leave", "_program", "_part", "settle")),
    (live_torch, "refusal"),
    *((handover, name) for name in ("_batches_ahead", "_lazy_sampler", "_random_states", "_stand", "_equal")),
    *((handover, name) for name in ("with_settings", "settings_of", "_Indices", "_in_flight", "_end")),
    *((handover._Indices, name) for name in ("__init__", "drawn")),
    *((live_torch.LoaderFeed, name) for name in ("__init__", "begin", "obstacle", "serves", "switch", "sampled")),
    *((live_torch.LoaderFeed, name) for name in ("early", "parameters", "stages")),
    *((live_torch.LoaderFeed, name) for name in ("pipeline", "within_epoch", "steps_left", "as_code", "_settings")),
    *((live_torch._Watched, name) for name in ("begun", "_asked", "close")),
    *((live_torch, name) for name in ("with_settings", "settings_of", "timed", "digest", "_called_from")),
    *((online.Online, name) for name in ("on_batch", "_begin", "_advance", "_end", "_obstacle", "_left")),
    *((online.Online, name) for name in ("_end_loaders", "_refusal")),
    *((live.Feed, name) for name in ("__init__", "is_due", "execution", "least_seconds")),
    *(
        (live.LiveTuning, name)
        for name in ("course", "_referenced", "raced", "_pairs", "_block", "_run_with", "tuning")
    ),
)


@pytest.mark.parametrize("loop", ["shuffled", pytest.param("one worker", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", parameters(PLACES))
def test_a_fault_does_not_affect_the_training(place, loop, monkeypatch):
    plain = untuned(loop)
    force_loader(monkeypatch, 3, Lost)
    fault(monkeypatch, place)
    with tuned(budget=1e6, search=two_workers) as found:
        assert LOOPS[loop]() == plain
    assert sum("injected" in sentence for sentence in sentences(found)) <= 1, sentences(found)
