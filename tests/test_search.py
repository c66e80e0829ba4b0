"""Searches, and the contest of what they propose: by spelled-out costs, with a clock that is the sum of them."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpunb.errors import MissingExtra
from tpunb.tuning.contest import Budget, Contest
from tpunb.tuning.knob import AUTOTUNE, Knob
from tpunb.tuning.loads import Load
from tpunb.tuning.model_based import least_step, model_based, predicted
from tpunb.tuning.optuna_search import optuna_search
from tpunb.tuning.refused import Refused
from tpunb.tuning.search import Needs, Space, hill_climb
from tpunb.tuning.trial import Outcome

READ, MAP, END, THREADS = (
    "interleave:1 parallel calls",
    "map:2 parallel calls",
    "end prefetch",
    "options private threads",
)
OWN = {READ: 1, MAP: 1, END: 0, THREADS: 0}


def knobs():
    calls = (1, 2, 4, 8, AUTOTUNE)
    domains = {READ: calls, MAP: calls, END: (0, 1, 2, 4, 16, AUTOTUNE), THREADS: (0, 2, 8, 32)}
    return tuple(Knob(name, name.split()[0], OWN[name], domain, "proved", "") for name, domain in domains.items())


def space(model=10.0, read=(40.0, 0.1), mapped=(30.0, 0.9), cores=2):
    loads = (Load("interleave:1", *read), Load("map:2", *mapped))
    return Space.of(knobs(), lambda: Needs(model, loads), cores=cores, deepest=8)


def waiting(values):
    """Return the cost of a step that waits: calls help only when there are threads for them."""
    full = OWN | values
    calls = full[READ] if full[READ] != AUTOTUNE else 2
    at_once = min(calls, max(full[THREADS], 2))
    return 10 + 40 / at_once + (0 if full[END] else 5)


class Toy:
    """A track of spelled-out costs; a run takes ten steps of the clock."""

    def __init__(self, cost=waiting, refuses=(), spoils=()):
        self.cost, self.refuses, self.spoils = cost, refuses, spoils
        self.now, self.ran = 0.0, []

    def clock(self):
        return self.now

    def run(self, values):
        self.ran.append(dict(values))
        self.now += 1
        if any(item in values.items() for item in self.refuses):
            raise Refused("no such luck")
        seconds = self.cost(values)
        self.now += 10 * seconds
        digest = "another" if any(item in values.items() for item in self.spoils) else "same"
        return Outcome(seconds, digest, 1 + 10 * seconds)


AMPLE = Budget(1e9)


def contest(toy, search, budget=AMPLE):
    default = toy.run({})
    one = Contest(toy, default, budget, clock=toy.clock, begun=0.0)
    return one, list(one.run(search, space()))


def costs(search, of, cost):
    """Return what a search proposes, told the costs."""
    asked, proposals = [], search(of)
    try:
        values = next(proposals)
        while True:
            asked.append(dict(values))
            values = proposals.send(cost(values))
    except StopIteration:
        return asked


# ---- the rules for searches, ours and yours


def halving(space):
    values = sorted(space[END])
    while len(values) > 1:
        low, high = values[: len(values) // 2], values[len(values) // 2 :]
        values = low if (yield {END: low[-1]}) <= (yield {END: high[0]}) else high


SEARCHES = [hill_climb, model_based, halving]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seconds", [700, 5_000, 10_000, 40_000])
def test_a_search_stays_in_its_budget(search, seconds):
    toy = Toy()
    one, trials = contest(toy, search, Budget(float(seconds)))
    assert toy.now <= seconds
    assert trials == one.trials


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_search_stays_in_its_number_of_trials(search, most):
    _, trials = contest(Toy(), search, Budget(1e9, trials=most))
    assert 1 <= len(trials) <= most


@pytest.mark.parametrize("search", SEARCHES)
def test_the_default_and_autotune_are_in_the_race(search):
    _, trials = contest(Toy(), search)
    assert (trials[0].values, trials[0].verdict) == ({}, "default")
    assert trials[2].values == {READ: AUTOTUNE, MAP: AUTOTUNE, END: AUTOTUNE}
    assert trials[1].against == 0


def test_autotune_is_tried_though_a_search_proposes_nothing():
    def default(space):
        yield {}

    _, trials = contest(Toy(), default)
    assert [trial.values for trial in trials] == [{}, {READ: AUTOTUNE, MAP: AUTOTUNE, END: AUTOTUNE}]


@pytest.mark.parametrize("search", SEARCHES)
def test_the_best_is_the_cheapest_and_has_won_against_the_default(search):
    one, trials = contest(Toy(), search)
    cheapest = min(trial.seconds for trial in trials)
    assert one.best.seconds <= cheapest * 1.02
    assert one.best.against == 0
    assert one.speedup.ratio == pytest.approx(waiting({}) / waiting(one.best.values))
    assert one.speedup.low <= one.speedup.ratio <= one.speedup.high


@pytest.mark.parametrize("search", SEARCHES)
def test_where_no_neighbour_is_better_the_default_stays(search):
    one, trials = contest(Toy(lambda values: 10.0 + len(values)), search)
    assert len(trials) > 1
    assert one.best is trials[0]
    assert one.speedup == (1, 1, 1)
    assert {trial.verdict for trial in trials[1:]} == {"not faster"}


@pytest.mark.parametrize("search", [hill_climb, model_based])
def test_what_is_refused_or_changes_the_output_never_wins(search):
    refuses = [(READ, value) for value in (4, 8)]
    one, trials = contest(Toy(refuses=refuses, spoils=[(END, 2)]), search)
    verdicts = {trial.verdict for trial in trials}
    assert verdicts & {"refused", "other output"}
    assert one.best.values.get(READ) not in (4, 8)
    assert one.best.values.get(END) != 2
    for trial in trials:
        if trial.verdict == "refused":
            assert (trial.error, trial.seconds, trial.equal) == ("no such luck", None, None)
        if trial.verdict == "other output":
            assert (trial.seconds, trial.equal) == (None, False)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(list(OWN)), st.floats(0.3, 3), max_size=4), st.floats(50, 3000))
def test_whatever_the_costs_nothing_slower_wins(weights, seconds):
    def cost(values):
        return 10 * math.prod([weights.get(name, 1.0) for name in values])

    toy, slowest = Toy(cost), 1 + 10 * 10 * 3.0**4
    one, _ = contest(toy, hill_climb, Budget(float(seconds)))
    assert cost(one.best.values) <= cost({})
    assert toy.now <= max(seconds, 101) + slowest, "what nobody has run yet may take longer than was thought"


def test_known_proposals_are_not_run_again_and_end_a_search_that_knows_no_end():
    def stubborn(space):
        while True:
            yield {END: 2}

    toy = Toy()
    _, trials = contest(toy, stubborn)
    assert [trial.values for trial in trials].count({END: 2}) == 1
    assert len(trials) == 4, "the default, AUTOTUNE and its last race besides"


def test_what_wins_over_another_meets_the_default_once_more():
    def two(space):
        yield {READ: 2}
        yield {READ: 8, THREADS: 8}

    one, trials = contest(Toy(), two)
    assert [(trial.verdict, trial.against) for trial in trials[1:]] == [
        ("faster", 0),
        ("faster", 1),
        ("faster", 2),
        ("faster", 0),
    ]
    assert one.best.values == {READ: 8, THREADS: 8}
    assert one.best.number == trials[-1].number


def test_the_run_of_the_default_that_is_there_spares_the_first_race_one():
    toy = Toy()

    def two(space):
        yield {READ: 2}
        yield {READ: 4}

    one, _ = contest(toy, two, Budget(1e9, trials=2))
    assert one.trials[1].pairs == 3
    assert toy.ran == [{}, {READ: 2}, {}, {READ: 2}, {READ: 2}, {}]


def test_proposals_are_mappings():
    with pytest.raises(TypeError, match="search parameter"):
        contest(Toy(), lambda space: iter_of("prefetch"))


def iter_of(*values):
    yield from values


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"seconds": True}, {"trials": 0}])
def test_wrong_budgets_are_told(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Budget(**wrong)


# ---- hill climbing


def test_a_climb_goes_on_in_a_direction_while_it_helps():
    bowl = {1: 9.0, 2: 5.0, 4: 3.0, 8: 4.0, AUTOTUNE: 9.0}
    of = Space((knobs()[0],), lambda: Needs(1.0))
    asked = costs(hill_climb, of, lambda values: bowl[values[READ]])
    assert [values[READ] for values in asked] == [1, 2, 4, 8]


def test_a_climb_tries_both_neighbours():
    of = Space((Knob("a", "a", 2, (1, 2, 4), "proved", ""),), lambda: Needs(1.0))
    assert [values["a"] for values in costs(hill_climb, of, lambda values: 5.0)] == [2, 4, 1]
    assert [values["a"] for values in costs(hill_climb, of, lambda values: float(values["a"]))] == [2, 4, 1]


# ---- Optuna


def test_optuna_proposes_by_the_same_shape():
    pytest.importorskip("optuna")
    one, trials = contest(Toy(refuses=[(READ, 4)]), optuna_search(trials=30))
    assert one.best.seconds < waiting({}) / 2
    assert any(trial.verdict == "refused" for trial in trials)
    _, again = contest(Toy(refuses=[(READ, 4)]), optuna_search(trials=30))
    assert [trial.values for trial in again] == [trial.values for trial in trials]
    with pytest.raises(ValueError, match="trials parameter"):
        optuna_search(trials=0)


def test_without_optuna_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match="optuna is not installed"):
        optuna_search()


# ---- the model-based search


def test_who_waits_gets_calls_and_threads_who_computes_gets_cores():
    assert predicted(space()) == {READ: 8, MAP: 2, END: 2, THREADS: 8}


def test_who_keeps_up_is_let_be():
    assert predicted(space(read=(5.0, 0.1), mapped=(4.0, 0.9))) == {END: 2}
    assert predicted(space(model=1e3)) == {END: 2}


def test_no_stage_needs_to_be_faster_than_one_that_goes_one_by_one():
    mapped = Load("map:2", 240.0, 0.1)
    of = Space(knobs(), lambda: Needs(0.1, (Load("from_generator:0", 120.0, 0.1, certain=True), mapped)), cores=2)
    assert least_step(of) == 120.0
    assert predicted(of) == {MAP: 4, END: 2, THREADS: 8}
    unsure = Space(knobs(), lambda: Needs(0.1, (Load("from_generator:0", 120.0, 0.1), mapped)), cores=2)
    assert least_step(unsure) == 0.1
    assert predicted(unsure)[MAP] == 8


def test_a_step_that_is_as_short_as_it_can_be_ends_the_search():
    of = space(model=20.0, read=(40.0, 0.1))
    assert len(costs(model_based, of, lambda values: 20.5)) == 1
    assert len(costs(model_based, of, lambda values: 30.0)) > 3
    assert len(costs(model_based, of, lambda values: None)) > 3, "refused"


def test_autotune_is_let_be_where_the_stage_computes():
    name = "map:2 parallel calls"
    of = Space(
        (Knob(name, "map:2", AUTOTUNE, (1, 2, 4, AUTOTUNE), "proved", ""),),
        lambda: Needs(10.0, (Load("map:2", 90.0, 1.0),)),
        cores=2,
    )
    assert predicted(of) == {}


def test_the_model_based_search_finds_what_a_climb_cannot():
    climbed, _ = contest(Toy(), hill_climb)
    modelled, trials = contest(Toy(), model_based)
    assert modelled.best.values[READ] == 8
    assert modelled.best.values[THREADS] >= 8
    assert modelled.best.seconds <= climbed.best.seconds
    assert len(trials) < 10


def test_the_space_leaves_out_what_a_short_trial_cannot_tell():
    order = Knob("shuffle:1 order", "shuffle:1", "as written", ("as written", "after map:2"), "proved", "")
    fixed = Knob("batch:3 size", "batch:3", 4, (), "refused", "another training")
    of = Space.of((*knobs(), order, fixed), lambda: Needs(1.0), cores=2, deepest=4)
    assert list(of) == [READ, MAP, END, THREADS]
    assert of[END] == (0, 1, 2, 4, AUTOTUNE)
    assert of.default == OWN
    assert repr(of).startswith("Space(interleave:1 parallel calls, ")
