"""Variables of a program that a loop changes: saved at a step, and set in another run of the same function."""

import json
from collections import deque

import numpy as np
import pytest

from tpunb.training.variables import LoopVariables


class Batches:
    """Numbers, whose loop saves its variables before one of them, or begins with those of another."""

    def __init__(self, count, *, state=None, save_at=None, start=None):
        self.variables = LoopVariables({} if state is None else state)
        self.next, self.count, self.save_at, self.start = 0, count, save_at, start
        self.saved = None
        self.restarted = ""

    def __iter__(self):
        return self

    def __next__(self):
        if self.saved is None and self.next == 0:
            self.variables.begin()
            if self.start is not None:
                values, arrays, self.next = self.start
                self.variables.restore(values, arrays, self.next)
        elif self.start is not None and not self.restarted:
            self.restarted = self.variables.restarted()
        if self.next in (self.save_at, self.count) and self.saved is None:
            values, arrays, unsaved = self.variables.changed()
            self.saved = json.loads(json.dumps(values)), [array.copy() for array in arrays], self.next
            self.unsaved = unsaved
        if self.next == self.count:
            raise StopIteration
        self.next += 1
        return self.next


def resumed(function, at, count=6):
    """Return what a function computes from all numbers, and from those after the one at which it was saved."""
    first = Batches(count, save_at=at)
    whole = function(first)
    assert first.unsaved == ""
    return whole, function(Batches(count, start=first.saved))


class Meter:
    """An object of the program, with another in it and one that cannot be saved."""

    def __init__(self):
        self.total, self.last, self.lock, self.inner = 0, None, object(), None


def numbers(batches):
    total, last = 0.0, None
    for batch in batches:
        total, last = total + batch, batch
    return total, last


def containers(batches):
    losses, seen, by_name, window = [], set(), {"sum": 0, "all": []}, deque(maxlen=3)
    outer = [losses, by_name]
    for batch in batches:
        losses.append(float(batch))
        seen.add(batch)
        by_name["sum"] += batch
        by_name["all"].append([batch, str(batch)])
        window.append(batch)
    return outer, sorted(seen), [*window]


def arrays(batches):
    sums, view = np.zeros(3), None
    kept = view = sums
    for batch in batches:
        sums += batch
        squares = sums**2
    return kept.tolist(), view is sums, squares.tolist()


def objects(batches):
    meter = Meter()
    meter.inner = Meter()
    for batch in batches:
        meter.total += batch
        meter.inner.last = [meter.inner.last, batch][-1]
    return meter.total, meter.inner.last


def generators(batches):
    dice, drawn = np.random.default_rng(1), []
    for _ in batches:
        drawn.append(float(dice.random()))  # noqa: PERF401
    return drawn


def closures(batches):
    count = 0

    def add(batch):
        nonlocal count
        count += batch

    for batch in batches:
        add(batch)
    return count


TOTAL = 0


def module_variables(batches):
    global TOTAL
    TOTAL = 0
    for batch in batches:
        TOTAL += batch
    return TOTAL


def first_steps(batches):
    best = None
    for batch in batches:
        best = batch if best is None else max(best, batch)
    return best


@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize(
    "function", [numbers, containers, arrays, objects, generators, closures, module_variables, first_steps]
)
def test_a_function_computes_what_it_does_without_an_interruption(function, at):
    whole, again = resumed(function, at)
    assert again == whole


def test_variables_of_a_script_are_those_of_its_module(tmp_path):
    script = "total = 0\nfor batch in batches:\n    total += batch\n"
    file = tmp_path / "script.py"
    file.write_text(script)
    first, names = Batches(6, save_at=4), {}
    exec(compile(script, str(file), "exec"), {"batches": first})
    names["batches"] = Batches(6, start=first.saved)
    exec(compile(script, str(file), "exec"), names)
    assert names["total"] == 21


def test_what_a_loop_does_not_change_is_that_of_the_program():
    def function(batches, rate):
        meter = Meter()
        meter.rate, settings, total = rate, {"rate": rate}, 0
        for batch in batches:
            total += batch * rate
            meter.total += 1
        return meter.rate, settings["rate"], total

    first = Batches(6, save_at=3)
    function(first, 2)
    assert function(Batches(6, start=first.saved), 5) == (5, 5, 6 * 2 + 15 * 5)


def test_what_cannot_be_saved_is_named_if_it_is_read_later():
    def function(batches, *, reads):
        for batch in batches:
            result = object() if batch else None
            ignored = iter([batch])
            del ignored
        return result if reads else None

    def unread(batches):
        for batch in batches:
            result = object() if batch else None
            del result

    batches = Batches(3, save_at=2)
    function(batches, reads=True)
    assert "test_variables.py" in batches.unsaved
    assert "changes result (object), which cannot be saved" in batches.unsaved
    batches = Batches(3, save_at=2)
    unread(batches)
    assert batches.unsaved == ""


def test_results_of_a_comprehension_cannot_be_saved():
    batches = Batches(3, save_at=2)
    _ = [batch for batch in batches]  # noqa: C416
    assert "collects results in one expression" in batches.unsaved
    batches = Batches(3, save_at=2)
    sum(batch * 2 for batch in batches)
    assert "collects results in one expression" in batches.unsaved


def test_a_comprehension_in_the_loop_is_none_that_draws_the_batches():
    def function(batches):
        total = 0
        for batch in batches:
            total += sum([number * batch for number in range(3)])
            print(*[batch], end="")
        return total

    whole, again = resumed(function, 2)
    assert again == whole


def test_numbers_of_enumerate_that_begin_again_are_named():
    def function(batches):
        total = 0
        for number, batch in enumerate(batches):
            total += number * batch
        return total

    first = Batches(6, save_at=3)
    function(first)
    again = Batches(6, start=first.saved)
    function(again)
    assert again.restarted.startswith("number of test_variables.py")


def test_a_saved_value_replaces_no_function_of_the_program():
    def function(batches):
        total = 0
        for batch in batches:
            total += abs(batch)
        return total, numbers.__name__

    first = Batches(6, save_at=3)
    function(first)
    values, *rest = first.saved
    values |= {"numbers": ["value", "x"], "_TOTAL": ["value", 3], "abs": ["value", 1], "not a name": ["value", 1]}
    assert function(Batches(6, start=(values, *rest))) == (21, "numbers")
