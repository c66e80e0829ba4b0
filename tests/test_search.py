"""Searches, and the tournament of their proposals: with given costs, and a clock that sums them."""

from __future__ import annotations

import math
import sys

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tpunb.errors import MissingExtra
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tuning.model_based import least_step, model_based, predicted
from tpunb.tuning.parameters import Kind, Parameter
from tpunb.tuning.search import Space, StepCosts, hill_climb, joined, optuna_search
from tpunb.tuning.stage_costs import StageCost
from tpunb.tuning.tournament import Budget, Tournament
from tpunb.tuning.trial import TrialError, TrialResult

READ, MAP, END, THREADS = (
    "interleave:1 parallel calls",
    "map:2 parallel calls",
    "end prefetch",
    "options private threads",
)
OWN = {READ: 1, MAP: 1, END: 0, THREADS: 0}


def parameters():
    calls = (1, 2, 4, 8, AUTOTUNE)
    return (
        Parameter(Kind.CALLS, "interleave:1", 1, calls, "safe", ""),
        Parameter(Kind.CALLS, "map:2", 1, calls, "safe", ""),
        Parameter(Kind.PREFETCH, "end", 0, (0, 1, 2, 4, 16, AUTOTUNE), "safe", ""),
        Parameter(Kind.POOL, "options", 0, (0, 2, 8, 32), "safe", ""),
    )


def space(model=10.0, read=(40.0, 0.1), mapped=(30.0, 0.9), cores=2):
    costs = (StageCost("interleave:1", *read), StageCost("map:2", *mapped))
    return Space.of(parameters(), lambda: StepCosts(model, costs), cores=cores, deepest=8)


def waiting(values):
    """Return the cost of a step that waits: calls help only when there are threads for them."""
    full = OWN | values
    calls = full[READ] if full[READ] != AUTOTUNE else 2
    at_once = min(calls, max(full[THREADS], 2))
    return 10 + 40 / at_once + (0 if full[END] else 5)


class Toy:
    """Runs trials of given costs; a run takes ten steps of the clock."""

    def __init__(self, cost=waiting, refuses=(), spoils=()):
        self.cost, self.refuses, self.spoils = cost, refuses, spoils
        self.now, self.ran = 0.0, []

    def clock(self):
        return self.now

    def run(self, values):
        self.ran.append(dict(values))
        self.now += 1
        if any(item in values.items() for item in self.refuses):
            raise TrialError("no such luck")
        seconds = self.cost(values)
        self.now += 10 * seconds
        digest = "another" if any(item in values.items() for item in self.spoils) else "same"
        return TrialResult(seconds, digest, 1 + 10 * seconds)


AMPLE = Budget(1e9)


def tournament(toy, search, budget=AMPLE):
    default = toy.run({})
    one = Tournament(toy.run, default, budget, clock=toy.clock, started=0.0)
    return one, list(one.play(search, space()))


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


# ---- rules for all searches


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
    one, trials = tournament(toy, search, Budget(float(seconds)))
    assert toy.now <= seconds
    assert trials == one.trials


@pytest.mark.parametrize(
    ("grace", "seconds", "pairs"), [(1.0, 3306.0, 3), (1.0, 3305.0, 0), (1.25, 2700.0, 3), (1.25, 2600.0, 0)]
)
def test_the_first_race_may_take_longer_than_the_budget(grace, seconds, pairs):
    toy = Toy(lambda values: 55.0)  # a run takes 551 s
    one = Tournament(toy.run, toy.run({}), Budget(seconds), clock=toy.clock, started=0.0, grace=grace)
    trials = list(one.play(halving, space()))
    assert [trial.pairs for trial in trials[1:]] == [pairs] * bool(pairs)
    assert one.needed == (0 if pairs else 6 * 551)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_search_stays_in_its_number_of_trials(search, most):
    _, trials = tournament(Toy(), search, Budget(1e9, trials=most))
    assert 1 <= len(trials) <= most


@pytest.mark.parametrize("search", SEARCHES)
def test_the_default_and_autotune_are_in_the_race(search):
    _, trials = tournament(Toy(), search)
    assert (trials[0].values, trials[0].verdict) == ({}, "default")
    assert trials[2].values == {READ: AUTOTUNE, MAP: AUTOTUNE, END: AUTOTUNE}
    assert trials[1].against == 0


def test_autotune_is_tried_though_a_search_proposes_nothing():
    def default(space):
        yield {}

    _, trials = tournament(Toy(), default)
    assert [trial.values for trial in trials] == [{}, {READ: AUTOTUNE, MAP: AUTOTUNE, END: AUTOTUNE}]


@pytest.mark.parametrize("search", SEARCHES)
def test_the_best_is_the_cheapest_and_has_won_against_the_default(search):
    one, trials = tournament(Toy(), search)
    cheapest = min(trial.seconds for trial in trials)
    assert one.winner.seconds <= cheapest * 1.02
    assert one.winner.against == 0
    assert one.speedup.ratio == pytest.approx(waiting({}) / waiting(one.winner.values))
    assert one.speedup.low <= one.speedup.ratio <= one.speedup.high


@pytest.mark.parametrize("search", SEARCHES)
def test_the_default_stays_if_no_neighbour_is_better(search):
    one, trials = tournament(Toy(lambda values: 10.0 + len(values)), search)
    assert len(trials) > 1
    assert one.winner is trials[0]
    assert one.speedup == (1, 1, 1)
    assert {trial.verdict for trial in trials[1:]} == {"not faster"}


@pytest.mark.parametrize("search", [hill_climb, model_based])
def test_values_that_fail_or_change_the_output_never_win(search):
    refuses = [(READ, value) for value in (4, 8)]
    one, trials = tournament(Toy(refuses=refuses, spoils=[(END, 2)]), search)
    verdicts = {trial.verdict for trial in trials}
    assert verdicts & {"failed", "different output"}
    assert one.winner.values.get(READ) not in (4, 8)
    assert one.winner.values.get(END) != 2
    for trial in trials:
        if trial.verdict == "failed":
            assert (trial.error, trial.seconds, trial.equal) == ("no such luck", None, None)
        if trial.verdict == "different output":
            assert (trial.seconds, trial.equal) == (None, False)


@examples(30)
@given(st.dictionaries(st.sampled_from(list(OWN)), st.floats(0.3, 3), max_size=4), st.floats(50, 3000))
def test_whatever_the_costs_nothing_slower_wins(weights, seconds):
    def cost(values):
        return 10 * math.prod([weights.get(name, 1.0) for name in values])

    toy, slowest = Toy(cost), 1 + 10 * 10 * 3.0**4
    one, _ = tournament(toy, hill_climb, Budget(float(seconds)))
    assert cost(one.winner.values) <= cost({})
    assert toy.now <= max(seconds, 101) + slowest, "what nobody has run yet may take longer than was thought"


def test_known_proposals_are_not_run_again_and_end_a_search_that_knows_no_end():
    def stubborn(space):
        while True:
            yield {END: 2}

    toy = Toy()
    _, trials = tournament(toy, stubborn)
    assert [trial.values for trial in trials].count({END: 2}) == 1
    assert len(trials) == 4, "the default, AUTOTUNE and its last race besides"


def test_a_winner_over_other_proposals_races_the_default_again():
    def two(space):
        yield {READ: 2}
        yield {READ: 8, THREADS: 8}

    one, trials = tournament(Toy(), two)
    assert [(trial.verdict, trial.against) for trial in trials[1:]] == [
        ("faster", 0),
        ("faster", 1),
        ("faster", 2),
        ("faster", 0),
    ]
    assert one.winner.values == {READ: 8, THREADS: 8}
    assert one.winner.number == trials[-1].number


def test_the_first_race_reuses_the_run_of_the_default():
    toy = Toy()

    def two(space):
        yield {READ: 2}
        yield {READ: 4}

    one, _ = tournament(toy, two, Budget(1e9, trials=2))
    assert one.trials[1].pairs == 3
    assert toy.ran == [{}, {READ: 2}, {}, {READ: 2}, {READ: 2}, {}]


def test_proposals_are_mappings():
    with pytest.raises(TypeError, match="search parameter"):
        tournament(Toy(), lambda space: iter_of("prefetch"))


def iter_of(*values):
    yield from values


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"seconds": True}, {"trials": 0}])
def test_invalid_budgets_raise(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Budget(**wrong)


# ---- hill climbing


def test_a_climb_continues_in_a_direction_while_it_improves():
    bowl = {1: 9.0, 2: 5.0, 4: 3.0, 8: 4.0, AUTOTUNE: 9.0}
    of = Space((parameters()[0],), lambda: StepCosts(1.0))
    asked = costs(hill_climb, of, lambda values: bowl[values[READ]])
    assert [values[READ] for values in asked] == [1, 2, 4, 8]


def test_a_climb_tries_both_neighbours():
    of = Space((Parameter(Kind.STAGE, "a", 2, (1, 2, 4), "safe", ""),), lambda: StepCosts(1.0))
    assert [values["a"] for values in costs(hill_climb, of, lambda values: 5.0)] == [2, 4, 1]
    assert [values["a"] for values in costs(hill_climb, of, lambda values: float(values["a"]))] == [2, 4, 1]


# ---- parameters that depend on each other


READ_THREADS, BUFFER, PROCESSES, AHEAD = "read threads", "read buffer", "worker processes", "worker buffer"


def reading(threads, buffer, share=0.02, processes=(0, 1, 2)):
    """Return the space of a pipeline of Grain whose reading takes 100, of which a share is computed."""
    counts = (0, 1, 2, 4, 8, 16, 32)
    parameters = (
        Parameter(Kind.READ_THREADS, "read", threads, counts, "verify", ""),
        Parameter(Kind.ELEMENTS, "read", buffer, tuple(sorted({1, 2, 4, 16, 64, 500, buffer})), "verify", ""),
        Parameter(Kind.PROCESSES, "worker", 0, processes, "verify", ""),
        Parameter(Kind.ELEMENTS, "worker", 1, (1, 2, 4, 16), "verify", ""),
    )
    return Space(parameters, lambda: StepCosts(0.1, (StageCost("read", 100.0, share),)), cores=2)


def at_once(of, share=0.02):
    """Return the cost of values: threads read at once what the buffer has room for, processes compute at once."""

    def cost(values):
        full = of.default | values
        reading = max(min(full[READ_THREADS], full[BUFFER]), 1) * max(full[PROCESSES], 1)
        step = max(100 / reading, share * 100 / max(full[PROCESSES], 1))
        return step * (1.2 if full[PROCESSES] and full[AHEAD] < 2 else 1)

    return cost


@pytest.mark.parametrize("search", [hill_climb, model_based])
@pytest.mark.parametrize(("threads", "buffer"), [(0, 0), (1, 1), (16, 2), (1, 500)])
def test_threads_and_their_buffer_are_raised_together(search, threads, buffer):
    of = reading(threads, buffer, processes=(0,))
    cost = at_once(of)
    asked = costs(search, of, cost)
    assert min(map(cost, asked)) == 100 / 32
    for values in asked[1:]:
        full = of.default | values
        assert full[BUFFER] >= full[READ_THREADS]


@pytest.mark.parametrize("search", [hill_climb, model_based])
def test_what_computes_in_python_gets_processes_with_room_for_what_they_make(search):
    of = reading(0, 0, share=1.0)
    asked = costs(search, of, at_once(of, share=1.0))
    assert min(asked, key=at_once(of, share=1.0))[PROCESSES] == 2
    assert all((of.default | values)[AHEAD] > 1 for values in asked if values.get(PROCESSES))


def test_what_a_parameter_that_is_off_would_limit_is_not_tried_alone():
    of = reading(0, 0, processes=(0,))
    asked = costs(hill_climb, of, lambda values: 5.0)
    assert {values[AHEAD] for values in asked} == {1}
    assert [values[BUFFER] for values in asked if not values[READ_THREADS]] == [0]


def test_what_a_parameter_depends_on_is_moved_with_it():
    moved = joined(reading(0, 0), {READ_THREADS: 8})
    assert moved == {READ_THREADS: 8, BUFFER: 16}
    assert joined(reading(32, 16), {BUFFER: 64}) == {BUFFER: 64}
    assert joined(reading(4, 64), {PROCESSES: 2}) == {PROCESSES: 2, AHEAD: 2}


# ---- Optuna


def test_optuna_proposes_by_the_same_shape():
    pytest.importorskip("optuna")
    one, trials = tournament(Toy(refuses=[(READ, 4)]), optuna_search(trials=30))
    assert one.winner.seconds < waiting({}) / 2
    assert any(trial.verdict == "failed" for trial in trials)
    _, again = tournament(Toy(refuses=[(READ, 4)]), optuna_search(trials=30))
    assert [trial.values for trial in again] == [trial.values for trial in trials]
    with pytest.raises(ValueError, match="trials parameter"):
        optuna_search(trials=0)


def test_without_optuna_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match="optuna is not installed"):
        optuna_search()


# ---- the model-based search


def test_a_waiting_stage_gets_calls_and_threads_a_computing_one_gets_cores():
    assert predicted(space()) == {READ: 8, MAP: 2, END: 2, THREADS: 8}


def test_stages_that_keep_up_stay_as_they_are():
    assert predicted(space(read=(5.0, 0.1), mapped=(4.0, 0.9))) == {END: 2}
    assert predicted(space(model=1e3)) == {END: 2}


def test_no_stage_needs_to_be_faster_than_a_serial_one():
    mapped = StageCost("map:2", 240.0, 0.1)
    of = Space(
        parameters(), lambda: StepCosts(0.1, (StageCost("from_generator:0", 120.0, 0.1, certain=True), mapped)), cores=2
    )
    assert least_step(of) == 120.0
    assert predicted(of) == {MAP: 4, END: 2, THREADS: 8}
    unsure = Space(parameters(), lambda: StepCosts(0.1, (StageCost("from_generator:0", 120.0, 0.1), mapped)), cores=2)
    assert least_step(unsure) == 0.1
    assert predicted(unsure)[MAP] == 8


def test_a_step_near_its_least_time_ends_the_search():
    of = space(model=20.0, read=(40.0, 0.1))
    assert len(costs(model_based, of, lambda values: 20.5)) == 1
    assert len(costs(model_based, of, lambda values: 30.0)) > 3
    assert len(costs(model_based, of, lambda values: None)) > 3, "failed"


def test_autotune_stays_for_a_stage_that_computes():
    of = Space(
        (Parameter(Kind.CALLS, "map:2", AUTOTUNE, (1, 2, 4, AUTOTUNE), "safe", ""),),
        lambda: StepCosts(10.0, (StageCost("map:2", 90.0, 1.0),)),
        cores=2,
    )
    assert predicted(of) == {}


def test_the_model_based_search_finds_what_a_climb_cannot():
    climbed, _ = tournament(Toy(), hill_climb)
    modelled, trials = tournament(Toy(), model_based)
    assert modelled.winner.values[READ] == 8
    assert modelled.winner.values[THREADS] >= 8
    assert modelled.winner.seconds <= climbed.winner.seconds
    assert len(trials) < 10


def test_the_space_omits_what_short_trials_cannot_measure():
    size = Parameter(Kind.BATCH_SIZE, "batch:3", 4, (), "locked", "")
    of = Space.of((*parameters(), size), lambda: StepCosts(1.0), cores=2, deepest=4)
    assert list(of) == [READ, MAP, END, THREADS]
    assert of[END] == (0, 1, 2, 4, AUTOTUNE)
    assert of.default == OWN
    assert repr(of).startswith("Space(interleave:1 parallel calls, ")
