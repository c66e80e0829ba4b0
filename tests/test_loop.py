"""Steps of loops without marks, from fetches, calls, gradients and updates on a simulated clock."""

import sys
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from tpunb.instrument import jax, tensorflow, torch
from tpunb.instrument.sink import Signature, What
from tpunb.profiler import loop as loop_module
from tpunb.profiler import step_clock
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock


class Program:
    """A program that takes time on a simulated clock only, and whose framework is asked for something."""

    def __init__(self):
        self.now_ns = 10**18
        self.clock = StepClock(lambda kind, number: None)
        self.loop = Loop(self.clock)

    def __call__(self):
        self.now_ns += 1000
        return self.now_ns

    def _spend(self, ms):
        begun_ns = self()
        self.now_ns += ms * 1_000_000
        return begun_ns, self()

    def fetch(self, stream, *, over=False):
        self.loop.fetched(stream, *self._spend(1), over=over)

    def call(self, function, **options):
        self.loop.called(function, *self._spend(5), None, **options)

    def call_library(self, function):
        self.loop.called(function, *self._spend(1), None, what=What("jax", "jax.numpy", function))

    def evaluate(self, *, on):
        self.loop.evaluates(on=on, what=What("torch", "torch.nn", "Module.eval" if on else "Module.train"))

    def learn(self):
        self.loop.learned(self._spend(2)[0])

    def update(self, optimizer="sgd"):
        self.loop.updated(optimizer, *self._spend(2), None)

    def kinds(self):
        """Return the number of steps of each kind."""
        self.loop.close()
        assert self.loop.failure is None
        steps = self.clock.take(final=True)
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(steps))
        return dict(Counter(step.kind for step in steps))


@pytest.fixture
def program(monkeypatch):
    program = Program()
    for module in (loop_module, step_clock):
        monkeypatch.setattr(module, "monotonic_ns", program)
    return program


def test_between_the_modes_to_evaluate_and_to_train_is_an_evaluation_unless_the_model_learns(program):
    def step(*, frozen=False):
        program.fetch("data")
        if frozen:  # a part of it is in the mode to evaluate
            program.evaluate(on=True)
        program.learn()
        program.update()
        program.evaluate(on=False)

    program.loop.prepared()
    for number in range(6):
        step(frozen=number % 2 == 0)
    program.evaluate(on=True)
    program.now_ns += 50_000_000
    program.evaluate(on=False)
    step()
    spans = program.clock.take_spans()
    assert [(span.account, (span.end_ns - span.start_ns) // 10**6) for span in spans] == [("evaluation", 50)]


def test_the_last_evaluation_lasts_to_the_end_of_the_block(program):
    program.loop.prepared()
    program.evaluate(on=True)
    program.now_ns += 50_000_000
    program.loop.close()
    assert [(span.end_ns - span.start_ns) // 10**6 for span in program.clock.take_spans()] == [50]


def test_a_copy_that_is_set_to_evaluate_before_a_model_is_called_is_no_evaluation(program):
    """So a moving average of the weights is made."""
    program.evaluate(on=True)
    program.evaluate(on=False)
    assert program.clock.take_spans() == []
    program.loop.prepared()
    program.evaluate(on=True)
    program.evaluate(on=False)
    assert len(program.clock.take_spans()) == 1


@pytest.mark.parametrize("named", [False, True])
def test_the_mode_of_a_model_is_set_as_pytorch_sets_it(program, monkeypatch, named):
    class Module:
        def train(self, mode=True):
            self.mode = mode
            return self

    parts = {"nn": SimpleNamespace(Module=Module), "autograd": SimpleNamespace(backward=print)}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**parts))
    with ExitStack() as stack:
        torch._gradients(program.loop, stack)
        model = Module()
        program.loop.prepared()
        assert (model.train(mode=False) if named else model.train(False)) is model
        assert model.mode is False
        program.now_ns += 50_000_000
        assert model.train() is model
        assert model.mode is True
    assert [span.account for span in program.clock.take_spans()] == ["evaluation"]


def test_what_the_library_computes_after_a_pause_is_of_no_step(program):
    """So a program prepares a batch for the next step."""
    for _ in range(10):
        program.call("step")  # 5 ms
        program.call_library("convert")  # reads the loss
        program.now_ns += 30_000_000
        for _ in range(2):
            program.call_library("multiply")
    program.loop.close()
    durs_ms = [(step.end_ns - step.start_ns) // 10**6 for step in program.clock.take(final=True)]
    assert durs_ms == [6] * 10


@pytest.mark.parametrize("fetches", [False, True])
def test_a_step_lasts_as_long_where_keras_predicts_after_it(program, fetches):
    """So loops of `train_on_batch`, and of compiled functions, evaluate and predict."""
    for _ in range(10):
        if fetches:
            program.fetch("data")  # 1 ms
        program.call("step")  # 5 ms
        program.clock.begin("predict")
        program.now_ns += 30_000_000
        program.clock.exit(done=True)
    program.loop.close()
    steps = [step for step in program.clock.take(final=True) if step.kind == "train"]
    durs_ms = [(step.end_ns - step.start_ns) // 10**6 for step in steps]
    assert durs_ms[3:] == [5 + fetches] * 7


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("ahead", [0, 1])
def test_an_update_is_a_step_however_many_batches_it_accumulates(program, batches, ahead):
    for _ in range(ahead):
        program.fetch("data")
    for number in range(10 * batches):
        program.fetch("data", over=number >= 10 * batches - ahead)
        program.learn()
        if number % batches == batches - 1:
            program.update()
    if not ahead:
        program.fetch("data", over=True)
    assert program.kinds() == {"train": 10}


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5, 8])
def test_batches_that_are_fetched_at_once_are_one_step(program, batches):
    """So Hugging Face accumulates, with one batch ahead."""
    program.fetch("data")
    for update in range(10):
        for number in range(batches):
            program.fetch("data", over=update == 9 and number == batches - 1)
        for _ in range(batches):
            program.learn()
        program.update()
    assert program.kinds() == {"train": 10}


@pytest.mark.parametrize("sanity", [0, 2])
@pytest.mark.parametrize("every", [1, 3, 10])
def test_validation_on_other_data_is_evaluation(program, sanity, every):
    for _ in range(sanity):
        program.fetch("validation")
    for number in range(20):
        program.fetch("data")
        program.learn()
        program.update()
        if number % every == every - 1:
            for _ in range(3):
                program.fetch("validation")
            program.fetch("validation", over=True)
    program.fetch("data", over=True)
    kinds = program.kinds()
    assert kinds["train"] == 20
    assert kinds["eval"] >= 3 * (20 // every)


@pytest.mark.parametrize("batches", [1, 3, 100])
def test_an_evaluation_on_the_data_of_the_training_is_no_part_of_its_steps(program, batches):
    """So a learning-rate finder validates on what it trains on; the model trains again after the next fetch."""
    for number in range(20):
        program.fetch("data")
        program.evaluate(on=False)
        program.learn()
        program.update()
        if number % 5 == 4:
            program.evaluate(on=True)
            for _ in range(batches):
                program.fetch("data")
                program.now_ns += 10_000_000
            program.fetch("data", over=True)
    program.loop.close()
    assert program.loop.failure is None
    steps = program.clock.take(final=True)
    trained = [step for step in steps if step.kind == "train"]
    assert len(trained) == 20
    assert max(step.end_ns - step.start_ns for step in trained) < 10_000_000
    assert len(steps) - len(trained) in (4 * batches, 4 * batches - 1)  # the last fetch may begin no step


def test_data_that_nothing_computes_with_are_no_evaluation(program):
    """So a trainer maps a dataset row by row before it trains."""
    for _ in range(200):
        program.fetch("rows")
    program.fetch("rows", over=True)
    program.loop.prepared()
    for _ in range(10):
        program.fetch("data")
        program.learn()
        program.update()
    assert program.kinds() == {"train": 10}


def test_batches_that_are_fetched_ahead_in_an_evaluation_are_of_the_training(program):
    """So Hugging Face's Trainer fetches those of a step before it sets the model to train."""
    program.loop.prepared()
    for _ in range(3):
        for number in range(5):
            program.fetch("data")
            program.fetch("data")
            if number == 0:
                program.fetch("data")  # one ahead
            program.evaluate(on=False)
            program.learn()
            program.learn()
            program.update()
        program.fetch("data", over=True)
        program.evaluate(on=True)
        for _ in range(4):
            program.fetch("validation")
        program.fetch("validation", over=True)
    assert program.kinds() == {"train": 15, "eval": 12}


def test_evaluations_are_told_from_steps_whose_optimizer_is_not_known(program):
    """So fastai updates by an optimizer of its own."""
    program.loop.prepared()
    for _ in range(4):
        program.evaluate(on=False)
        for _ in range(20):
            program.fetch("data")
            program.learn()
        program.fetch("data", over=True)
        program.evaluate(on=True)
        for _ in range(5):
            program.fetch("validation")
        program.fetch("validation", over=True)
    assert program.kinds() == {"train": 80, "eval": 20}


def test_an_evaluation_may_set_its_mode_after_each_fetch(program):
    """So Ignite evaluates, here on the data of the training and on others."""
    for _ in range(3):
        for _ in range(8):
            program.fetch("data")
            program.evaluate(on=False)
            program.learn()
            program.update()
        program.fetch("data", over=True)
        for stream, batches in (("data", 8), ("validation", 3)):
            for _ in range(batches):
                program.fetch(stream)
                program.evaluate(on=True)
    assert program.kinds() == {"train": 24, "eval": 33}


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_an_evaluation_may_end_without_the_end_of_its_data(program, batches):
    """So Lightning validates: it knows the number of batches."""
    for _ in range(2):
        program.fetch("validation")
        program.loop.prepared()
    for _ in range(3):
        for _ in range(10):
            program.fetch("data")
            program.learn()
            program.update()
        for _ in range(batches):
            program.fetch("validation")
    assert program.kinds() == {"train": 30, "eval": 2 + 3 * batches}


@pytest.mark.parametrize("every", [1, 2])
def test_batches_of_two_streams_may_be_those_of_one_step(program, every):
    for number in range(20):
        program.fetch("labelled")
        if number % every == every - 1:
            program.fetch("others")
        program.learn()
        program.update()
    assert program.kinds() == {"train": 20}


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_an_evaluation_after_the_training_has_all_its_batches(program, batches):
    for _ in range(10):
        program.fetch("data")
        program.learn()
        program.update()
    program.fetch("data", over=True)
    for _ in range(batches):
        program.fetch("validation")
    program.fetch("validation", over=True)
    assert program.kinds() == {"train": 10, "eval": batches}


def test_two_optimizers_in_turn_update_in_one_step(program):
    for _ in range(20):
        program.fetch("data")
        for optimizer in ("discriminator", "generator"):
            program.learn()
            program.update(optimizer)
    program.fetch("data", over=True)
    assert program.kinds() == {"train": 20}


@pytest.mark.parametrize(("in_turn", "steps"), [(False, {"train": 20}), (True, {"train": 20, "train 2": 20})])
def test_two_optimizers_of_one_loss_update_in_one_step(program, in_turn, steps):
    """So PyTorch's translation tutorial updates its encoder and its decoder; losses of their own train in turn."""
    for _ in range(20):
        for optimizer in ("encoder", "decoder"):
            if in_turn or optimizer == "encoder":
                program.learn()
            program.update(optimizer)
    assert program.kinds() == steps


@pytest.mark.parametrize("batches", [1, 4])
def test_a_loop_without_fetches_has_a_step_an_update(program, batches):
    for number in range(10 * batches):
        program.learn()
        if number % batches == batches - 1:
            program.update()
    assert program.kinds() == {"train": 10}


def test_steps_of_a_loop_are_found_in_another_thread_unless_a_window_runs(program):
    places = []
    program.clock.boundary = lambda: places.append(threading.get_ident())

    def step():
        program.call("step")

    for _ in range(8):
        step()
    assert program.clock.count < 7  # those of the first calls, at which stacks are recorded
    other = threading.Thread(target=program.clock.take)
    other.start()
    other.join()
    assert (program.clock.count, places) == (7, [])
    program.clock.is_traced = lambda: True
    step()
    assert (program.clock.count, places) == (8, [threading.get_ident()])


def test_a_window_has_its_boundaries_where_events_are_far_apart(program):
    """Where a batch takes longer than the rest after which events are written: no window began there."""
    boundaries = []
    program.clock.boundary = lambda: boundaries.append(program.now_ns)
    program.clock.is_traced = lambda: True
    for _ in range(4):
        program.now_ns += 10 * LIMITS.events_rest_ns
        program.call("step")
    assert len(boundaries) >= 3


def test_a_loop_folds_its_events_itself_where_nothing_takes_steps(program, monkeypatch):
    monkeypatch.setattr(loop_module, "LIMITS", replace(LIMITS, most_noted=10, few_noted=0))
    for _ in range(100):
        program.call("step")
    assert len(program.loop._noted) <= 10
    assert program.clock.count >= 89


def test_steps_that_last_are_handed_on_as_they_end(program):
    handed = []
    program.clock.on_step = handed.append
    for number in range(20):
        program.fetch("data")
        program.now_ns += 10_000_000
        program.learn()
        program.update()
        assert len(handed) == number


def test_a_loop_without_an_optimizer_has_a_step_a_backward_pass(program):
    """So PyTorch's word language model updates its parameters by hand."""
    for _ in range(100):
        program.learn()
    assert len(program.clock.untaken()) >= 98  # once known, they do not wait: windows are reduced with those so far
    assert program.kinds() == {"train": 100}


@pytest.mark.parametrize("batches", [1, 4, 40])
def test_backward_passes_are_accumulated_where_an_optimizer_follows(program, batches):
    for number in range(5 * batches):
        program.learn()
        if number % batches == batches - 1:
            program.update()
    assert program.kinds() == {"train": 5}


@pytest.mark.parametrize("fetches", [False, True])
@pytest.mark.parametrize("measurements", [1, 2])
def test_a_function_of_the_state_that_returns_numbers_evaluates(program, measurements, fetches):
    state = "float32[2,3], float32[3]"
    policy = Signature(f"{state}, float32[8]", "int32[9]")
    update, accuracy = Signature(f"{state}, int, int", state), Signature(f"{state}, float32[9,2], int", "float32[]")
    for _ in range(20):
        if fetches:
            program.fetch("data")
        program.call("policy", signature=policy)
        program.call("update", signature=update)
        for _ in range(measurements):
            program.call("accuracy", signature=accuracy)
    assert program.kinds() == {"train": 20, "eval": 20 * measurements}


@pytest.mark.parametrize("functions", [["update"], ["gradients", "apply"], ["discriminate", "generate"]])
def test_functions_in_turn_are_called_once_in_a_step(program, functions):
    for _ in range(20):
        for function in functions:
            program.call(function)
    assert program.kinds() == {"train": 20}


def test_a_function_that_is_called_repeatedly_in_between_has_steps_of_its_own(program):
    for number in range(20):
        program.call("update")
        if number % 5 == 4:
            for _ in range(5):
                program.call("score")
    assert program.kinds() == {"train": 20, "score": 20}


GRADIENTS = Signature("6 float32[2,3]", "6 float32[2,3]")
ACCUMULATED = GRADIENTS._replace(repeats="taken")
APPLY = Signature("8 float32[2,3]", "8 float32[2,3]")


def test_a_part_of_the_training_that_is_called_elsewhere_evaluates(program):
    for number in range(20):
        program.call("gradients", signature=GRADIENTS)
        program.call("apply", signature=APPLY)
        if number % 5 == 4:
            program.loop.called("gradients", program(), program(), None)
    assert program.kinds() == {"train": 20, "eval": 4}


@pytest.mark.parametrize("fetches", [False, True])
@pytest.mark.parametrize("evaluated", [0, 3])
def test_gradients_of_compiled_functions_are_accumulated(program, evaluated, fetches):
    for number in range(20):
        for _ in range(4 + (evaluated if number % 5 == 4 else 0)):  # an evaluation on the same line comes before
            if fetches:
                program.fetch("data")
            program.call("gradients", signature=ACCUMULATED)
        program.call("apply", signature=APPLY)
    assert program.kinds() == {"train": 20, **({"gradients": 4 * evaluated} if evaluated else {})}


def test_a_function_that_takes_its_state_again_is_told_from_one_that_was_tried_out_first():
    weights, batch, later = np.zeros((3, 4)), np.ones((2, 3)), np.full((3, 4), 2.0)
    gradients, step = jax._States(), jax._States()
    assert [gradients.repeats("f", [weights, batch], [np.ones((3, 4))]) for _ in range(2)] == [None, "taken"]
    assert gradients.repeats("f", [later, batch], []) is None  # another has updated it
    assert [step.repeats("f", [weights, batch], [later]) for _ in range(2)] == [None, "taken"]
    assert step.repeats("f", [later, batch], [np.ones((3, 4))]) == "returned"
    assert gradients.are_clear("f")
    slotted = type("Slotted", (), {"__slots__": (), "size": 9, "shape": (9,), "dtype": "f4"})()
    assert jax._States().repeats("f", [slotted], [slotted]) is None
    assert not gradients.are_clear("g")


def test_a_function_that_never_updates_has_steps(program):
    for _ in range(200):
        program.call("gradients", signature=ACCUMULATED)
    taken = len(program.clock.take())
    assert taken > 100
    assert program.kinds() == {"train": 200 - taken}


def test_functions_of_the_library_begin_no_step(program):
    for _ in range(3):
        program.call_library("_truncated_normal")
    for _ in range(20):
        program.fetch("data")
        program.call("update")
    program.fetch("data", over=True)
    assert program.kinds() == {"train": 20}


def test_the_end_of_an_iterator_that_waits_for_its_threads_is_data_loading(program, monkeypatch):
    class Resource:
        def __del__(self):
            program._spend(500)

    class Batches:
        def __init__(self):
            self.resource = Resource()

        def __next__(self):
            return 0

    monkeypatch.setattr(tensorflow, "monotonic_ns", program)
    program.clock.adopt()
    batches = Batches()
    following = tensorflow._ending(program.loop, Batches.__next__)
    assert [following(batches), following(batches)] == [0, 0]
    del batches
    (spent,) = program.clock.take_spans()
    assert (spent.account, spent.detail) == ("data loading", "end of the data")
    assert (spent.end_ns - spent.start_ns) // 1_000_000 == 500


def test_what_a_function_fetches_as_it_is_traced_is_no_fetch(monkeypatch):
    eager, fetched = [False], []
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(executing_eagerly=lambda: eager[0]))
    following = tensorflow._eagerly(lambda original: fetched.append)(lambda iterator: "a symbol")
    assert following("an iterator") == "a symbol"
    eager[0] = True
    following("an iterator")
    assert fetched == ["an iterator"]


@pytest.mark.xfail(reason="the first function that is called again is taken for the training", strict=True)
def test_a_function_that_makes_parameters_is_no_training(program):
    for _ in range(3):
        program.call("init_layer")
    for _ in range(20):
        program.call("update")
    assert program.kinds()["train"] == 20
