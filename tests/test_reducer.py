"""The response of a source becomes steps in the run's time, under the right host; raw windows to keep."""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.errors import TpunbError
from tpunb.profiler.reducer import Reducer, reduce_window
from tpunb.profiler.step_clock import StepRecord
from tpunb.profiler.windows import LOCAL, RawWindowPolicy, WindowResponse, window_facts
from tpunb.step_stats import reduce as module
from tpunb.step_stats.numbering import StepNumbering
from tpunb.testing import toy_window

MS = 1_000_000  # nanoseconds
ORIGIN = 1_700_000_000_000_000_000
HERE = "notebook"


def at(ms):
    return ORIGIN + round(ms * MS)


def window(start_ms, stop_ms, steps=(), *, host=HERE, op="MatMul"):
    """A window whose steps, (number, begin, end) in milliseconds, run one operation each."""
    kinds = [(number, at(begin), at(end)) for number, begin, end in steps]
    return toy_window(at(start_ms), at(stop_ms), kinds, [(op, begin, end) for _, begin, end in kinds], host=host)


def answer(number, workers, start_ms=0, stop_ms=100):
    return WindowResponse(number, "evenly", at(start_ms), at(stop_ms + 20), workers)


def ticks(*steps, kind="train"):
    return [StepRecord(number, kind, at(begin), at(end)) for number, begin, end in steps]


def rows(reduced, *columns):
    return reduced.tables()["steps"].select(*columns).sort(columns).rows()


STEPS = [(3, 10, 20), (4, 20, 40)]


def test_local_window_is_placed_by_the_host_clock():
    reducer = Reducer(HERE, ORIGIN)
    reduced = reducer.reduce(answer(0, {LOCAL: window(0, 100, STEPS)}), ticks(*STEPS, kind="fit"))
    assert rows(reduced, "step", "host", "kind", "start_ps", "dur_ps", "traced") == [
        (3, HERE, "fit", 10_000 * MS, 10_000 * MS, "full"),
        (4, HERE, "fit", 20_000 * MS, 20_000 * MS, "full"),
    ]
    (row,) = reduced.tables()["windows"].rows(named=True)
    assert (row["host"], row["window"], row["reason"], row["error"]) == (HERE, 0, "evenly", None)
    assert (row["start_ps"], row["dur_ps"], row["latency_ps"]) == (0, 100_000 * MS, 120_000 * MS)
    assert (row["steps"], row["events"], row["bytes"]) == (2, 4, len(window(0, 100, STEPS)))
    assert reduced.traced_ps == 100_000 * MS
    assert dict(reduced.full) == {"fit": 2}


def test_a_window_left_to_readers_gives_the_same_tables():
    records = [*ticks(*STEPS), StepRecord(5, "train", at(40), at(60), launches_ns=(at(21), at(22)), done=False)]
    response = answer(7, {LOCAL: window(0, 100, STEPS)})
    facts = json.loads(json.dumps(window_facts(response, records)))
    tables, _ = reduce_window(facts, {HERE: response.workers[LOCAL]}, HERE, ORIGIN)
    expected = Reducer(HERE, ORIGIN).reduce(response, records).tables()
    assert tables.keys() == expected.keys()
    assert all(tables[name].sort(pl.all()).equals(frame.sort(pl.all())) for name, frame in expected.items())
    failed = window_facts(answer(8, {"a": window(0, 100, STEPS), "b": TpunbError("gone")}), [])
    tables, _ = reduce_window(json.loads(json.dumps(failed)), {"a": window(0, 100, STEPS)}, HERE, ORIGIN)
    assert tables["windows"].select("host", "steps", "error").rows() == [("a", 2, None), ("b", 0, "gone")]


def test_later_window_is_later_in_the_runs_time():
    reduced = Reducer(HERE, ORIGIN).reduce(answer(7, {LOCAL: window(500, 600, [(9, 510, 520)])}, 500, 600), [])
    assert rows(reduced, "step", "start_ps") == [(9, 510_000 * MS)]
    assert reduced.windows[0]["start_ps"] == 500_000 * MS


def test_steps_that_a_window_cuts_are_partial_and_those_it_saw_nothing_of_are_left_out():
    noted = ticks((1, -90, 5), (2, 5, 30), (3, 30, 130))
    ops = [("MatMul", at(begin), at(begin + 2)) for begin in (10, 20, 70)]
    data = toy_window(at(0), at(100), [(2, at(5), at(30))], ops, host=HERE)
    reduced = Reducer(HERE, ORIGIN).reduce(answer(0, {LOCAL: data}), noted)
    assert rows(reduced, "step", "traced") == [(2, "full"), (3, "partial")]
    assert reduced.full == {"train": 1}


def ahead(*steps):
    """Records of steps that the host launched one millisecond after the other, from 0 on."""
    launched = {number: (at(place), at(place + 1)) for place, (number, *_) in enumerate(steps)}
    return [record._replace(launches_ns=launched[record.step]) for record in ticks(*steps)]


def test_steps_that_the_host_launched_long_before_are_what_ran_during_them_on_a_cpu():
    steps = [(number, 20 * number, 20 * number + 20) for number in range(20)]
    ops = [("MatMul", at(begin), at(end)) for _, begin, end in steps if 200 <= begin < 300]
    data = toy_window(at(200), at(300), [], ops, host=HERE)  # no launch is in this window
    reduced = Reducer(HERE, ORIGIN).reduce(answer(0, {LOCAL: data}, 200, 300), ahead(*steps))
    assert rows(reduced, "step", "start_ps", "dur_ps", "traced") == [
        (number, begin * 1000 * MS, 20 * 1000 * MS, "full") for number, begin, _ in steps if 200 <= begin < 300
    ]


def test_steps_whose_work_is_not_done_are_not_taken_for_what_runs_as_they_are_launched():
    done, undone = ahead((0, 0, 30), (1, 30, 60)), ticks((2, 60, 61), (3, 61, 62))
    records = [*done, *(record._replace(done=False) for record in undone)]
    ops = [("MatMul", at(begin), at(begin + 30)) for begin in (0, 30, 60)]
    data = toy_window(at(0), at(90), [], ops, host=HERE)
    reduced = Reducer(HERE, ORIGIN).reduce(answer(0, {LOCAL: data}, 0, 90), records)
    assert rows(reduced, "step", "traced") == [(0, "full"), (1, "full")]


def test_several_workers_are_several_hosts_by_their_addresses():
    reducer = Reducer(HERE, ORIGIN)
    pair = {"10.0.0.2:1": window(0, 100, STEPS, host="vm-a"), "10.0.0.3:1": window(0, 90, STEPS, host="vm-b")}
    for number in range(2):
        reduced = reducer.reduce(answer(number, pair), [])
        assert [row["host"] for row in reduced.windows] == [*pair]
        steps = (3, 4) if number == 0 else (5, 6)  # the same numbers again go on
        assert rows(reduced, "host", "step") == [(host, step) for host in pair for step in steps]
        assert set(reduced.raw) == set(pair)
        assert reduced.traced_ps == 100_000 * MS
        assert reduced.full == {"train": 2}  # of the first host alone


def test_failed_worker_is_reported_by_name():
    reducer = Reducer(HERE, ORIGIN)
    reducer.reduce(answer(0, {"127.0.0.1:1": window(0, 100, STEPS)}), ticks(*STEPS))
    reduced = reducer.reduce(answer(1, {"127.0.0.1:1": TpunbError("it is gone"), "10.0.0.3:1": TpunbError("so")}), [])
    assert [(row["host"], row["error"], row["dur_ps"]) for row in reduced.windows] == [
        ("127.0.0.1:1", "it is gone", 0),
        ("10.0.0.3:1", "so", 0),
    ]
    assert reduced.traced_ps == 0
    assert set(reduced.tables()) == {"windows"}


def test_invalid_xspace_is_reported_and_the_others_are_reduced():
    reduced = Reducer(HERE, ORIGIN).reduce(
        answer(5, {"a:1": b"nothing of the kind", "b:1": window(0, 100, STEPS, host="vm")}), []
    )
    errors = [row["error"] for row in reduced.windows]
    assert "window 5 of a:1" in errors[0]
    assert errors[1] is None
    assert rows(reduced, "host", "step") == [("b:1", 3), ("b:1", 4)]


def test_failed_reduction_is_reported_and_the_others_are_kept(monkeypatch):
    reduce, calls = module.reduce, []

    def first(*args):
        calls.append(args)
        if len(calls) == 1:
            raise ZeroDivisionError("a bug")
        return reduce(*args)

    monkeypatch.setattr(module, "reduce", first)
    pair = {"a:1": window(0, 100, STEPS, host="vm-a"), "b:1": window(0, 100, STEPS, host="vm-b")}
    reduced = Reducer(HERE, ORIGIN).reduce(answer(5, pair), [])
    assert [row["error"] for row in reduced.windows] == [
        "window 5 could not be reduced: ZeroDivisionError('a bug')",
        None,
    ]
    assert set(reduced.raw) == {"b:1"}


# -- which of the workers is this process -------------------------------------------------------------------------


def test_worker_with_the_annotations_of_this_process_is_local():
    reducer = Reducer(HERE, ORIGIN)
    reduced = reducer.reduce(answer(0, {"127.0.0.1:9": window(0, 100, STEPS)}), ticks(*STEPS, kind="fit"))
    assert reducer.local_worker == "127.0.0.1:9"  # of whom `run.json` tells the host
    assert rows(reduced, "host", "step", "kind") == [("127.0.0.1:9", 3, "fit"), ("127.0.0.1:9", 4, "fit")]


def test_a_worker_on_another_machine_with_the_same_numbers_is_not_this_process():
    reducer = Reducer(HERE, ORIGIN)
    reduced = reducer.reduce(answer(0, {"10.0.0.2:1": window(0, 100, STEPS, host="vm")}), ticks(*STEPS, kind="fit"))
    assert reducer.local_worker is None
    assert rows(reduced, "host", "step", "kind") == [("10.0.0.2:1", 3, "train"), ("10.0.0.2:1", 4, "train")]


@pytest.mark.parametrize("first", [True, False])
def test_another_process_of_this_machine_is_a_host_of_its_own_whichever_is_listed_first(first):
    reducer = Reducer(HERE, ORIGIN)
    other, local = window(0, 100, [(50, 5, 15), (51, 15, 25)]), window(0, 100, STEPS)
    workers = {"127.0.0.1:1": local, "127.0.0.1:2": other} if first else {"127.0.0.1:2": other, "127.0.0.1:1": local}
    reduced = reducer.reduce(answer(0, workers), ticks(*STEPS))
    assert reducer.local_worker == "127.0.0.1:1"
    assert sorted(rows(reduced, "host", "step")) == [
        *(("127.0.0.1:1", 3), ("127.0.0.1:1", 4)),
        *(("127.0.0.1:2", 50), ("127.0.0.1:2", 51)),
    ]


@pytest.mark.parametrize("first", [True, False])
def test_local_worker_among_processes_in_lockstep(first):
    reducer = Reducer(HERE, ORIGIN)
    other, local = window(0, 100, [(3, 14, 24), (4, 24, 44)]), window(0, 100, STEPS)  # 4 ms behind us
    workers = {"127.0.0.1:1": local, "127.0.0.1:2": other} if first else {"127.0.0.1:2": other, "127.0.0.1:1": local}
    reduced = reducer.reduce(answer(0, workers), ticks(*STEPS))
    assert reducer.local_worker == "127.0.0.1:1"
    assert sorted(rows(reduced, "host", "start_ps")) == [
        *(("127.0.0.1:1", 10_000 * MS), ("127.0.0.1:1", 20_000 * MS)),
        *(("127.0.0.1:2", 14_000 * MS), ("127.0.0.1:2", 24_000 * MS)),
    ]


# -- steps that only the profile tells of ---------------------------------------------------------------------------


def intervals(*steps):
    return pl.DataFrame({"step": list(steps)}, schema={"step": pl.Int64})


def numbered(*windows):
    numbering = StepNumbering()
    return [numbering.renumber(intervals(*steps), rule)["step"].to_list() for rule, *steps in windows]


def test_annotated_steps_keep_rising_numbers():
    assert numbered(("annotation", 3, 4), ("annotation", 4, 5), ("annotation", 9)) == [[3, 4], [4, 5], [9]]


def test_a_program_that_counts_every_epoch_from_0_has_its_steps_numbered_on():
    assert numbered(("annotation", 0, 1, 2), ("annotation", 0, 1), ("annotation", 2, 3)) == [
        [0, 1, 2],
        [3, 4],
        [5, 6],
    ]


@pytest.mark.parametrize("rule", ["module", "calls", "module, calls"])
def test_inferred_steps_are_numbered_down_from_minus_1(rule):
    assert numbered((rule, 0, 1), (rule,), (rule, 0, 1, 2)) == [[-1, -2], [], [-3, -4, -5]]


def test_window_with_a_wrong_clock_starts_at_its_request():
    reduced = Reducer(HERE, ORIGIN).reduce(answer(0, {"a:1": window(-86_400_000, -86_399_900, host="vm")}), [])
    row = reduced.windows[0]
    assert row["dur_ps"] == 100_000 * MS
    assert 0 <= row["start_ps"] < 1_000_000 * MS


# -- the phases that the scan follows --------------------------------------------------------------------------------


def test_new_phase_is_reported_once():
    reducer = Reducer(HERE, ORIGIN)
    one, two = window(0, 100, STEPS, op="MatMul"), window(0, 100, [(5, 10, 20), (6, 20, 30)], op="Softmax")
    opened = [reducer.reduce(answer(i, {LOCAL: data}), []) for i, data in enumerate([one, one, two, two, one])]
    assert [reduced.opened for reduced in opened] == [True, False, True, False, False]
    assert [dict(reduced.phases) for reduced in opened] == [{0: 2}, {0: 2}, {1: 2}, {1: 2}, {0: 2}]
    assert reducer.phase == 0


def test_window_without_a_full_step_keeps_the_phase():
    reducer = Reducer(HERE, ORIGIN)
    reducer.reduce(answer(0, {LOCAL: window(0, 100, STEPS)}), [])
    reduced = reducer.reduce(answer(1, {LOCAL: window(0, 100)}), [])
    assert (reduced.opened, dict(reduced.phases), reducer.phase) == (False, {}, 0)


# -- which raw windows stay ------------------------------------------------------------------------------------------


def test_steps_of_one_phase_at_two_paces_have_a_raw_window_each():
    reducer, kept = Reducer(HERE, ORIGIN), RawWindowPolicy()
    fast, slow = [(3, 10, 20), (4, 20, 31), (5, 31, 40)], [(6, 0, 30), (7, 30, 60)]
    reduced = [
        reducer.reduce(answer(number, {LOCAL: window(0, 100, steps)}), [])
        for number, steps in enumerate([fast, slow, fast])
    ]
    assert [dict(each.phases) for each in reduced] == [{0: 3}, {0: 2}, {0: 3}]
    assert [kept.offer(number, each.paces) for number, each in enumerate(reduced)] == [
        (True, []),
        (True, []),
        (False, []),
    ]


def test_the_first_window_with_enough_steps_of_a_phase_stays():
    kept = RawWindowPolicy()
    assert kept.offer(0, {0: 5}) == (True, [])
    assert kept.offer(1, {0: 4}) == (False, [])
    assert kept.offer(2, {0: 12}) == (True, [0])
    assert kept.offer(3, {0: 30}) == (True, [2])
    assert kept.offer(4, {0: 500}) == (False, [])
    assert kept.offer(5, {}) == (False, [])


def test_a_window_of_two_phases_goes_when_neither_needs_it():
    kept = RawWindowPolicy()
    assert kept.offer(0, {0: 5, 1: 5}) == (True, [])
    assert kept.offer(1, {0: 25}) == (True, [])  # window 0 is still the one of phase 1
    assert kept.offer(2, {1: 25}) == (True, [0])
    assert kept.offer(3, {0: 40, 1: 40}) == (False, [])


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(1, 40), max_size=3), max_size=30))
def test_at_most_one_window_a_phase_stays_and_every_phase_has_one(offers):
    kept, there, phases_seen = RawWindowPolicy(), set(), set()
    for window, phases in enumerate(offers):
        stays, free = kept.offer(window, phases)
        assert set(free) <= there
        there = (there - set(free)) | ({window} if stays else set())
        phases_seen |= set(phases)
        assert len(there) <= max(len(phases_seen), 1)
        assert all(any(phase in offers[one] for one in there) for phase in phases_seen)


def test_without_phases_the_first_raw_window_is_kept_until_one_has_a_phase():
    kept = RawWindowPolicy()
    assert [kept.offer(0, {}), kept.offer(1, {})] == [(True, []), (False, [])]
    assert kept.offer(2, {0: 3}) == (True, [0])
    assert kept.offer(3, {}) == (False, [])
