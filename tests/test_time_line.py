"""Stretches of a host cover its wall time exactly once, whatever the clock recorded."""

import sys
import zipfile

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from judged_runs import CORPUS
from sampled_stacks import samples_of

import tpunb as tp
from tpunb import schema
from tpunb.analysis.time_line import HostRun, covered, segments
from tpunb.analysis.verdict import verdict

SPAN_ACCOUNTS = [
    *("callbacks", "checkpoint save", "evaluation", "fit", "garbage collection", "profiler", "program startup"),
    *("resuming", "tuning"),
]
MS = 10**9


def host(steps=(), spans=(), stalls=(), windows=(), *, end_ms=100, clocked=True, complete=True, start_ms=0):
    """A host from (step, kind, start, dur, input, callbacks, phase), (start, dur, account, detail), ... in ms."""
    columns = {
        **{"step": pl.Int64, "kind": pl.String, "start_ps": pl.Int64, "dur_ps": pl.Int64},
        **{"input_ps": pl.Int64, "callbacks_ps": pl.Int64, "alike": pl.Int64, "traced": pl.String},
    }
    times = ("start_ps", "dur_ps", "input_ps", "callbacks_ps")
    rows = [(*step, "none")[:8] for step in steps]
    spent = {"start_ps": pl.Int64, "dur_ps": pl.Int64, "account": pl.String, "detail": pl.String}
    stalled = {"start_ps": pl.Int64, "dur_ps": pl.Int64, "kind": pl.String, "place": pl.String, "share": pl.Float64}
    traced = {"start_ps": pl.Int64, "dur_ps": pl.Int64}
    scaled = [pl.col("start_ps", "dur_ps") * MS]
    return HostRun(
        pl.DataFrame(rows, schema=columns, orient="row").with_columns(pl.col(times) * MS, host=pl.lit("h")),
        pl.DataFrame(spans, schema=spent, orient="row").with_columns(*scaled),
        pl.DataFrame(stalls, schema=stalled, orient="row").with_columns(*scaled),
        pl.DataFrame(windows, schema=traced, orient="row").with_columns(*scaled),
        start_ps=start_ms * MS,
        end_ps=end_ms * MS,
        clocked=clocked,
        complete=complete,
    )


def accounts(run):
    """Milliseconds by account."""
    times = segments(run).group_by("account").agg(pl.col("dur_ps").sum() // MS)
    return {account: ms for account, ms in times.rows() if ms}


TIME = st.integers(-50, 150)
MAYBE = st.none() | st.integers(-5, 60)
STEP = st.tuples(
    st.integers(0, 9), st.sampled_from(["train", "eval", "predict"]), st.none() | TIME, MAYBE, MAYBE, MAYBE,
    st.none() | st.integers(-1, 2),
)  # fmt: skip
SPAN = st.tuples(TIME, st.integers(-5, 200), st.sampled_from(SPAN_ACCOUNTS), st.none() | st.just("x"))
STALL = st.tuples(
    TIME, st.integers(0, 90), st.none() | st.just("fit"), st.none() | st.just("a.py:1 in f"), st.just(1.0)
)
WINDOW = st.tuples(TIME, st.integers(0, 90))


@examples(50)
@given(
    steps=st.lists(STEP, max_size=12),
    spans=st.lists(SPAN, max_size=12),
    stalls=st.lists(STALL, max_size=4),
    windows=st.lists(WINDOW, max_size=4),
    end_ms=st.integers(0, 120),
    clocked=st.booleans(),
    complete=st.booleans(),
)
def test_any_records_cover_the_run_once_in_order(steps, spans, stalls, windows, end_ms, clocked, complete):
    steps = sorted(steps, key=lambda step: (step[2] is not None, step[2] or 0))
    run = host(steps, spans, stalls, windows, end_ms=end_ms, clocked=clocked, complete=complete)
    stretches = segments(run)
    assert (stretches["dur_ps"] >= 0).all()
    assert stretches["dur_ps"].sum() == end_ms * MS
    ends = (stretches["start_ps"] + stretches["dur_ps"]).to_list()
    assert [0, *ends] == [*stretches["start_ps"], end_ms * MS]
    assert set(stretches["account"]) <= set(schema.ACCOUNTS)
    assert stretches["source"].is_in(["clock", "windows", "estimated"]).all()


def train(step, start, dur, wait=0, calls=0, phase=0):
    return step, "train", start, dur, wait, calls, phase


def test_a_step_is_split_into_what_is_known_of_it():
    steps = [train(0, 0, 10), train(1, 10, 10, wait=4), train(2, 20, 40, calls=15), train(3, 60, 14)]
    assert accounts(host(steps, end_ms=74)) == {
        "productive": 42,  # 10 + 6 + 12, the median of 10, 6, 25 and 14, + 14
        "data loading": 4,
        "callbacks": 15,
        "step time deviation": 13,
    }


@pytest.mark.parametrize(
    ("busy", "sleeps", "expected"),
    [
        (7, 0, {"productive": 280, "device idle": 120}),
        (12, 0, {"productive": 400}),  # the device works on while the host does something else
        (7, 10, {"productive": 280, "device idle": 20, "program code": 100}),
        (7, 30, {"productive": 280, "program code": 120}),  # code while devices compute costs nothing
    ],
    ids=["idle", "busy", "code", "hidden code"],
)
def test_where_devices_are_traced_productive_is_what_they_compute_in_the_traced_steps_of_a_phase(
    busy, sleeps, expected
):
    steps = [(*train(step, 10 * step, 10), "full" if step % 5 == 0 else "none") for step in range(40)]
    run = host(steps, end_ms=400)
    device_ps = pl.when(traced="full").then(pl.lit(busy * MS))
    code = [number < sleeps for number in range(40)]
    samples = pl.DataFrame(
        {"start_ps": range(0, 400 * MS, 10 * MS), "place": "f", "loads": False, "code": code, "evaluates": False}
    ).with_columns(launches=False, python=False)
    run = run._replace(steps=run.steps.with_columns(device_ps=device_ps), samples=samples, traced_devices=True)
    assert accounts(run) == expected


def test_steps_that_ran_ahead_while_they_were_traced_do_not_say_that_devices_were_idle_in_others():
    steps = [(*train(step, 10 * step, 1 if step < 10 else 10), "full" if step < 10 else "none") for step in range(40)]
    device_ps = pl.when(traced="full").then("dur_ps")
    run = host(steps, end_ms=400)
    run = run._replace(steps=run.steps.with_columns(device_ps=device_ps), traced_devices=True)
    assert accounts(run) == {"productive": 310, "program code": 90}


def test_the_profiler_has_what_it_holds_up_between_steps():
    steps = [train(step, 30 * step, 10) for step in range(4)]
    spans = [(10, 200, "profiler", "window"), (40, 20, "profiler", "begin or end of a window")]
    assert accounts(host(steps, spans, end_ms=100)) == {"productive": 40, "program code": 40, "profiler": 20}


def test_steps_ahead_of_their_device_do_not_deviate_where_those_around_them_make_up_for_it():
    late = [
        train(step, 10 * step + 8 * (step % 6 == 3), 10 + (8 if step % 6 == 2 else -8 * (step % 6 == 3)))
        for step in range(30)
    ]
    stalls = [*late[:-1], train(29, 290, 60)]
    run = host(stalls, end_ms=350)
    assert accounts(run._replace(traced_devices=False))["step time deviation"] == 5 * 8 + 50
    with_work = run.steps.with_columns(device_ps=pl.lit(None, pl.Int64))
    assert (
        accounts(run._replace(steps=with_work, traced_devices=True))["step time deviation"] == 58
    )  # the last has none after it


def test_what_runs_beside_a_policy_that_acts_is_code_of_the_program():
    steps = [train(0, 0, 10), train(1, 110, 10)]
    spans = [(10, 100, "evaluation", None)]  # a model is in the mode to evaluate, and no batch is fetched
    columns = ("toy", "env.py:3 in step", False, False, False, False, None)
    rows = [(columns[0], at * MS, *columns[1:], at % 2 == 0) for at in range(12, 108)]
    run = host(steps, spans, end_ms=120)._replace(samples=samples_of(rows).drop("host"))
    assert accounts(run) == {"productive": 20, "evaluation": 50, "program code": 50}
    measured = host([*steps, (2, "eval", 120, 10, 0, 0, 0)], spans, end_ms=130)._replace(samples=run.samples)
    assert accounts(measured)["evaluation"] == 110


def test_nested_spans_belong_to_the_inner_account():
    steps = [train(0, 0, 10), train(1, 10, 70), train(2, 80, 10)]
    spans = [(0, 90, "fit", "fit"), (20, 60, "callbacks", "A.on_epoch_end"), (30, 20, "checkpoint save", "save")]
    assert accounts(host(steps, spans, end_ms=90)) == {"productive": 30, "callbacks": 40, "checkpoint save": 20}


def test_the_data_of_an_evaluation_are_part_of_it_and_what_it_compiles_is_not():
    spans = [
        (0, 90, "fit", "fit"),
        (10, 50, "evaluation", "predict"),
        (12, 5, "program startup", "tracing Dataset_map_grab"),
        (20, 8, "program startup", "tracing the step of predict"),
        (30, 10, "data loading", "a new iterator at the end of an epoch"),
        (70, 10, "data loading", None),
    ]
    found = accounts(host([train(0, 0, 90)], spans, end_ms=90))
    assert found == {"productive": 30, "evaluation": 42, "program startup": 8, "data loading": 10}


def test_garbage_collection_is_deviation_even_where_it_is_typical():
    steps = [train(number, 10 * number, 10) for number in range(3)]
    spans = [(10 * number + 2, 6, "garbage collection", "generation 2") for number in range(3)]
    stretches = segments(host(steps, spans, end_ms=30))
    assert accounts(host(steps, spans, end_ms=30)) == {"productive": 12, "step time deviation": 18}
    assert set(stretches.filter(account="step time deviation")["detail"]) == {"garbage collection"}


def test_garbage_collection_between_steps_is_none_of_what_samples_show_after_it():
    steps = [train(number, 20 * number, 10) for number in range(3)]
    spans = [(20 * number + 12, 6, "garbage collection", "generation 2") for number in range(2)]
    found = accounts(host(steps, spans, end_ms=50))
    assert found == {"productive": 30, "step time deviation": 12, "program code": 8}
    beside = [*spans, (11, 8, "callbacks", "A.on_epoch_end"), (55, 4, "garbage collection", "generation 2")]
    found = accounts(host(steps, beside, end_ms=60))
    assert found == {"productive": 30, "step time deviation": 6, "program code": 6, "callbacks": 8, "preparation": 10}


def test_garbage_collection_in_a_callback_is_time_of_the_callback():
    spans = [(2, 8, "callbacks", "A.on_epoch_end"), (3, 6, "garbage collection", "generation 2")]
    assert accounts(host([train(0, 0, 10)], spans, end_ms=10)) == {"productive": 2, "callbacks": 8}


def test_gaps_are_between_steps_in_a_loop_and_preparation_around_it():
    steps = [train(0, 10, 10), train(1, 25, 10)]
    assert accounts(host(steps, end_ms=50)) == {"preparation": 25, "program code": 5, "productive": 20}
    spans = [(5, 17, "fit", "fit"), (24, 20, "fit", "fit")]
    assert accounts(host(steps, spans, end_ms=50)) == {"preparation": 30, "productive": 20}


def test_runs_without_spans_have_other_time():
    steps = [train(0, 10, 10), train(1, 25, 10)]
    assert accounts(host(steps, end_ms=50, complete=False))["other"] == 5
    assert accounts(host(steps, end_ms=50, complete=False, clocked=False))["other"] == 30


def test_waits_are_not_extrapolated_where_the_clock_measures_them():
    stalled = [train(0, 0, 20, wait=15), train(1, 20, 5, wait=None), train(2, 25, 5, wait=None)]
    assert accounts(host(stalled, end_ms=30)) == {"data loading": 15, "productive": 15}
    by_windows = [(*step, traced) for step, traced in zip(stalled, ("full", "none", "none"), strict=True)]
    assert accounts(host(by_windows, end_ms=30))["data loading"] == 25


def test_a_stall_beside_the_reduction_of_a_window_is_not_the_profilers():
    steps = [*(train(number, 10 * number, 10) for number in range(4)), train(4, 40, 60)]
    spans = [(30, 40, "profiler", "reduction of a window")]
    assert accounts(host(steps, spans, end_ms=100)).get("profiler", 0) <= 25
    window = [(40, 40, "profiler", "window")]
    assert accounts(host(steps, window, end_ms=100))["profiler"] == 40


@pytest.mark.parametrize(
    ("kind", "reason"), [(None, "a.py:1 in f"), ("fit", "a.py:1 in f"), ("callbacks", None), ("data loading", None)]
)
def test_the_reason_of_a_slow_step_is_a_stall_of_its_own_time(kind, reason):
    steps = [*(train(number, 10 * number, 10) for number in range(4)), train(4, 40, 60)]
    stretches = segments(host(steps, stalls=[(45, 50, kind, "a.py:1 in f", 1.0)], end_ms=100))
    assert stretches.filter(account="step time deviation")["detail"].to_list() == [reason]


def test_a_wait_for_input_has_the_place_of_its_stall():
    steps = [train(0, 0, 10, wait=2), train(1, 10, 60, wait=50)]
    stretches = segments(host(steps, stalls=[(15, 40, "data loading", "data.py:7 in read", 1.0)], end_ms=70))
    waits = stretches.filter(account="data loading").select("step", pl.col("dur_ps") // MS, "detail")
    assert waits.rows() == [(0, 2, None), (1, 50, "data.py:7 in read")]


def test_covered_counts_overlaps_once():
    import numpy as np

    intervals = pl.DataFrame({"start_ps": [0, 5, 40], "end_ps": [10, 20, 50]})
    assert covered(intervals, np.array([0, 15]), np.array([45, 30])).tolist() == [25, 5]


def samples(*rows):
    """Samples of (moment in ms, whether a generator ran, whether code of the program did, whether it evaluated)."""
    data = [("h", ms * MS, "a.py:1 in f", loads, code[:1] == [True], code[1:] == [True]) for ms, loads, *code in rows]
    return samples_of(data)


def test_samples_split_time_between_steps_into_waits_for_a_generator():
    steps = [(number, "train", 20 * number, 10, None, None, 0) for number in range(21)]
    run = host(steps, end_ms=410)
    found = samples(*((20 * number + 15, number < 15) for number in range(20)), (45, True))  # the last is in a step
    run = run._replace(samples=found)
    assert accounts(run) == {"productive": 210, "program code": 50, "data loading": 150}
    estimated = segments(run).filter(account="data loading")
    assert estimated.select("detail", "source").unique().rows() == [("a generator of the program", "estimated")]
    few = run._replace(samples=found[16:])
    assert accounts(few) == {"productive": 210, "program code": 200}


def test_samples_in_functions_that_evaluate_are_evaluation_in_steps_and_between_them():
    steps = [train(9 * turn + at, 200 * turn + 20 * at, 20 + 60 * (at == 4)) for turn in range(8) for at in range(5)]
    # each turn: four steps, one that also evaluates for 60 ms, and 40 ms of evaluation after it
    found = samples(*((200 * turn + at, False, False, at >= 100) for turn in range(8) for at in range(5, 200, 10)))
    divided = accounts(host(steps, end_ms=1580)._replace(samples=found))
    assert divided["evaluation"] == pytest.approx(8 * 80 + 7 * 20, abs=40)
    assert divided["productive"] == pytest.approx(8 * 100, abs=40)


def test_samples_in_steps_show_how_long_code_of_the_program_ran_in_them():
    steps = [(number, "train", 20 * number, 20, None, None, number % 2) for number in range(40)]  # two phases by turns
    coded = samples(*((20 * number + 5, False, number % 2 == 0 and number % 8 != 0) for number in range(40)))
    run = host(steps, end_ms=800)._replace(samples=coded)
    assert accounts(run) == {"productive": 500, "program code": 300}
    inside = segments(run).filter(account="program code")
    assert inside.select("alike", "detail", "source").unique().rows() == [(0, "inside steps", "estimated")]
    assert accounts(run._replace(samples=coded[:8])) == {"productive": 800}  # four of each phase


def test_batches_that_are_drawn_in_steps_are_waits_for_input():
    steps = [(number, "train", 20 * number, 20, None, None, 0) for number in range(40)]
    drawn = samples(*((20 * number + 5, number % 4 < 2, number % 4 > 0) for number in range(40)))
    run = host(steps, end_ms=800)._replace(samples=drawn)
    assert accounts(run) == {"data loading": 400, "program code": 400}


def test_looks_that_wait_for_code_to_give_up_the_interpreter_lock_do_not_make_it_shorter():
    steps = [(number, "train", 20 * number, 20, None, None, 0) for number in range(100)]
    due = [number * 37 % 100 / 5 for number in range(100)]  # anywhere in a step, of which the first 8 ms are code
    looks = [each + 2 * (each < 8) for each in due]  # at its end for six of ten samples of code, else of what follows
    coded = samples(*((int(20 * number + look), False, look < 8) for number, look in enumerate(looks)))
    assert coded["code"].mean() == 0.3
    assert accounts(host(steps, end_ms=2000)._replace(samples=coded))["program code"] == pytest.approx(800, abs=60)


def test_code_in_slow_steps_of_an_evaluation_is_divided_too():
    steps = [(number, "eval", 100 * number, 100 if number % 5 == 0 else 10, None, None, 0) for number in range(30)]
    coded = samples(*((500 * number + 20 + 10 * place, False, True) for number in range(6) for place in range(5)))
    divided = accounts(host(steps, end_ms=2910)._replace(samples=coded))
    assert divided["evaluation"] == 300
    assert divided["program code"] == accounts(host(steps, end_ms=2910))["program code"] + 540
    assert "step time deviation" not in divided


def test_code_that_makes_some_steps_slower_is_what_they_deviate_for():
    steps = [(number, "train", 20 * number, 10 if number % 5 else 20, None, None, 0) for number in range(20)]
    coded = samples(*((20 * number + 12 * (number % 5 == 0), False, number % 5 == 0) for number in range(20)))
    run = host(steps, end_ms=400)
    before = accounts(run)
    assert before["step time deviation"] == 40
    divided = accounts(run._replace(samples=coded))
    assert "step time deviation" not in divided
    assert divided["program code"] == before["program code"] + 48  # a fifth of the time in steps
    assert divided["productive"] == 200 - 8


def test_a_long_wait_of_a_traced_step_is_not_the_profilers_without_others_to_compare():
    steps = [(0, "train", 0, 60, 50, None, 0), *((n, "train", 50 + 10 * n, 10, 1, None, 0) for n in range(1, 5))]
    assert accounts(host(steps, windows=[(0, 60)], end_ms=100))["data loading"] == 54


def test_a_slow_step_beside_a_reduction_is_slowed_by_half_of_it_where_code_of_the_program_hardly_runs():
    steps = [*(train(number, 10 * number, 10) for number in range(4)), train(4, 40, 60)]
    run = host(steps, [(50, 40, "profiler", "reduction of a window")])
    assert accounts(run) == {"productive": 50, "profiler": 20, "step time deviation": 30}
    coded = run._replace(samples=samples((5, False, False), (50, False, True)))
    assert accounts(coded) == {"productive": 50, "step time deviation": 50}


@pytest.mark.parametrize(("machine", "profiler"), [(0.5, 20), (0.9, 0)])
def test_the_profiler_is_not_blamed_for_what_other_programs_take(machine, profiler):
    steps = [*(train(number, 10 * number, 10) for number in range(4)), train(4, 40, 60)]
    run = host(steps, [(50, 40, "profiler", "reduction of a window")])
    run = run._replace(load=pl.DataFrame([("h", 0, 0.3, machine, 0)], schema.LOAD, orient="row"))
    expected = {"productive": 50, "profiler": profiler, "step time deviation": 50 - profiler}
    assert accounts(run) == {name: time for name, time in expected.items() if time}


def test_where_most_steps_beside_a_reduction_are_slow_the_slowest_are_too():
    durs = [10] * 8 + [30] * 4 + [70]
    steps = [train(number, sum(durs[:number]), dur) for number, dur in enumerate(durs)]
    spans = [(80, 190, "profiler", "reduction of a window")]
    assert accounts(host(steps, spans, end_ms=270)) == {"productive": 130, "profiler": 140}


@pytest.mark.parametrize(("work_ms", "productive"), [([3, 4, 5], 16), ([], 80), ([90], 80)])
def test_where_each_step_traces_it_takes_what_its_operations_take_and_the_rest_is_a_first_run(work_ms, productive):
    steps = [train(number, 25 * number, 25) for number in range(4)]
    spans = [(25 * number, 5, "program startup", "tracing step again for a new function") for number in range(4)]
    work = pl.DataFrame({"step": range(len(work_ms)), "work_ps": [ms * 1.0 * MS for ms in work_ms]})
    run = host(steps, spans)._replace(read_work=lambda: work.cast({"step": pl.Int64, "work_ps": pl.Float64}))
    assert accounts(run) == {"productive": productive, "program startup": 100 - productive}


def test_code_in_steps_that_all_trace_is_no_first_run():
    steps = [train(number, 50 * number, 50) for number in range(4)]
    spans = [(50 * number, 5, "program startup", "tracing step again for a new function") for number in range(4)]
    work = pl.DataFrame({"step": [0, 1], "work_ps": [5.0 * MS] * 2})
    seen = samples(*((6 + 4 * n, False, n % 5 < 3) for n in range(48) if (6 + 4 * n) % 50 > 5))
    run = host(steps, spans, end_ms=200)._replace(read_work=lambda: work, samples=seen)
    found = accounts(run)
    assert found["program code"] == pytest.approx(0.6 * 180, abs=8)
    assert found["productive"] == 20


@pytest.mark.parametrize(("first", "startup"), [(60, 50), (20, 0)])
def test_a_first_step_slower_than_nearly_all_others_starts_up(first, startup):
    durs = [first, *([10] * 9 + [20]) * 4]
    run = host([train(number, 100 * number, dur) for number, dur in enumerate(durs)], end_ms=4100)
    assert accounts(run).get("program startup", 0) == startup


def test_data_that_an_evaluation_reads_are_its_own():
    steps = [train(0, 0, 10), train(1, 90, 10)]
    seen = [(10 + 2 * n, n % 2 == 0, False, n < 20) for n in range(40)]  # half of the time evaluates; both halves read
    run = host(steps)._replace(samples=samples(*seen))
    expected = {"productive": 20, "evaluation": 40, "data loading": 20, "program code": 20}
    assert accounts(run) == pytest.approx(expected, abs=2)


def test_steps_are_slow_for_other_programs_in_seconds_in_which_these_use_the_machine():
    steps = [train(number, 1000 * number, 1000 if number in (1, 3) else 400) for number in range(5)]
    load = [("h", 1000 * second * MS, 0.3, 0.9 if second == 1 else 0.4, 0) for second in range(5)]
    run = host(steps, end_ms=5000)._replace(load=pl.DataFrame(load, schema.LOAD, orient="row"))
    slow = segments(run).filter(account="step time deviation")
    assert slow.select("step", pl.col("dur_ps") // MS, "detail").rows() == [(1, 600, "other programs"), (3, 600, None)]


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_steps_that_run_other_lines_are_not_slow_for_other_programs(others, alone):
    """So a policy acts in its environment before each eighth update."""
    steps = [train(number, 1000 * number, 900 if number % 8 == 0 else 50) for number in range(24)]
    load = [("h", 1000 * second * MS, 0.5, 1.0 if others else 0.5, 0) for second in range(24)]
    places = ["train.py:9 in learn", "train.py:4 in act" if alone else "train.py:9 in learn"]
    looks = [
        (1000 * number + at) * MS for number in range(24) for at in (10, *range(100, 900, 20)[: 40 * (number % 8 == 0)])
    ]
    rows = [("h", at, places[at // MS % 1000 >= 100], False, False, False) for at in looks]
    run = host(steps, end_ms=24_000)._replace(
        load=pl.DataFrame(load, schema.LOAD, orient="row"), samples=samples_of(rows)
    )
    details = segments(run).filter(account="step time deviation")["detail"].unique().to_list()
    assert details == ["lines that other steps do not run" if alone else "other programs" if others else None]


@pytest.mark.parametrize("trains", [False, True])
def test_what_predictions_set_up_beside_a_training_is_evaluation(trains):
    steps = [(0, "train" if trains else "predict", 0, 10, None, None, 0), (1, "predict", 60, 10, None, None, 1)]
    spans = [(20, 60, "fit", "predict"), (30, 10, "program startup", "tracing Dataset_map_f")]
    spans.append((45, 5, "data loading", "a new iterator at the end of an epoch"))
    found = accounts(host(steps, spans, end_ms=80))
    assert found.get("evaluation", 0) == (60 if trains else 0)


def test_evaluations_of_several_sizes_do_not_deviate():
    steps = [(number, "eval", 100 * number, 60 if number % 3 == 0 else 10, None, None, -1) for number in range(30)]
    assert accounts(host(steps, end_ms=3000))["evaluation"] == 10 * 60 + 20 * 10
    trained = [(*step[:1], "train", *step[2:]) for step in steps]
    assert accounts(host(trained, end_ms=3000))["step time deviation"] == 10 * 50


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of three kinds of steps, with windows, samples and stalls."""
    folder = tmp_path_factory.mktemp("recorded")
    with zipfile.ZipFile(CORPUS / "torch_validates_often.zip") as entry:
        entry.extractall(folder)
    return tp.load(folder)


def times(goodput):
    """Time by host, account and detail, and all stretches of them."""
    summed = goodput.frame.group_by("host", "account", "detail").agg(pl.col("time_ps").sum())
    return sorted(map(str, summed.rows())), goodput.segments.rows()


@examples(12)
@given(st.data())
def test_phases_change_no_account_of_a_run(recorded, data):
    steps = tp.steps(recorded)
    labels = st.lists(st.integers(-1, 3), min_size=len(steps.full()), max_size=len(steps.full()))
    others = tp.phases(steps, lambda full: data.draw(labels)[: len(full)])
    assert times(tp.goodput(others)) == times(tp.goodput(recorded))


@pytest.mark.parametrize("method", [tp.OLS(0.2), tp.KMeans(2), tp.KMeans(5)], ids=str)
def test_methods_of_phases_change_no_account_of_a_run(recorded, method):
    assert times(tp.goodput(tp.phases(recorded, method))) == times(tp.goodput(recorded))


def test_the_time_line_of_a_run_is_made_once(recorded, monkeypatch):
    made, module = [], sys.modules["tpunb.analysis.goodput"]
    monkeypatch.setattr(module, "segments", lambda run: made.append(run) or segments(run))
    run = tp.load(recorded.source)
    tp.report(run)
    tp.advise(run)
    verdict(tp.phases(run, tp.OLS(0.2)))
    tp.goodput(run)
    assert len(made) == 1
