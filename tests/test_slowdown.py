"""Whether a run is slower: equal runs are not, 3 % is found, and what is uncertain is said to be so."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from timed_runs import noisy, timed_run

import tpunb as tp
from tpunb import schema
from tpunb.analysis import compare, slowdown
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps


def run_of(times_ms, **more):
    """Steps of one kind, of which a clock knows the time alone."""
    durs = np.round(np.asarray(times_ms) * 1e9).astype(np.int64)
    steps = toy_steps("a" * len(durs), traced=more.pop("traced", None) or "n" * len(durs))
    frame = steps.frame.with_columns(start_ps=pl.Series(np.cumsum(durs) - durs), dur_ps=pl.Series(durs))
    return tp.phases(replace(steps, frame=frame, **more), lambda full: [0] * len(full))


def judged(a, b, limit=0.03):
    return slowdown(compare(a, b), limit)


@pytest.mark.parametrize("seed", range(5))
def test_equal_runs_are_not_slower_and_three_percent_is(seed):
    a, b, slow = (run_of(noisy(3 * seed + n, slower=0.03 * (n == 2))) for n in range(3))
    assert judged(a, b).slower is not True
    assert judged(a, slow).slower is True
    assert judged(a, slow).sentence.startswith("Slower: step time +")


def test_a_faster_run_is_not_slower():
    found = judged(run_of(noisy(1, slower=0.1)), run_of(noisy(2)))
    assert (found.slower, found.ratio) == (False, pytest.approx(0.91, abs=0.01))
    assert found.sentence.startswith("Not slower by 3 %: step time -")


def test_a_small_slow_down_is_below_the_limit():
    a, b = run_of(noisy(1)), run_of(noisy(2, slower=0.03))
    assert judged(a, b, 0.10).slower is False
    assert judged(a, b, 0.03).slower is True


def test_few_steps_cannot_decide_and_name_how_many_would():
    random = np.random.default_rng(0)
    a, b = (run_of(10 * np.exp(random.normal(0, 0.2, 60))) for _ in range(2))
    found = judged(a, b)
    assert found.slower is None
    assert 60 < found.needed < 20_000
    assert f"about {found.needed:,} steps of each would decide" in found.sentence
    more_a, more_b = (run_of(10 * np.exp(random.normal(0, 0.2, 2 * found.needed))) for _ in range(2))
    assert judged(more_a, more_b).slower is False


def test_a_drift_within_the_runs_is_not_taken_for_certain():
    drift = np.repeat([10.0, 10.0, 11.0, 11.0], 150) * np.exp(np.random.default_rng(1).normal(0, 0.01, 600))
    assert judged(run_of(drift[:300].repeat(2)), run_of(drift)).slower is None


def test_rare_slow_steps_count():
    slow = noisy(2, 4000)
    slow[::10] *= 2
    a, b = run_of(noisy(1, 4000)), run_of(slow)
    assert judged(a, b).slower is True


def test_steps_in_and_beside_windows_and_at_the_start_are_left_out():
    times, traced = np.full(400, 10.0), ["n"] * 400
    for number in range(40, 400, 40):
        times[number - 1 : number + 2] = 30.0
        traced[number] = "f"
    times[:20] = 50.0
    found = judged(run_of(np.full(400, 10.0)), run_of(times, traced="".join(traced)))
    assert (found.slower, found.ratio) == (False, pytest.approx(1))
    assert found.steps == (380, 380 - 9 * 3)


def test_too_little_in_common_is_unknown():
    found = judged(tp.phases(toy_steps("ab" * 5)), tp.phases(toy_steps("ab" * 5)))
    assert (found.slower, found.ratio, found.covered) == (None, None, 0)
    assert found.sentence == "Unknown: only 0 % of step time is in phases with 20 steps in both runs."


def loaded(steps, machine):
    rows = [("toy", n * 10**12, 0.1, machine, 10**9) for n in range(6)]
    load = pl.DataFrame(rows, schema=schema.LOAD, orient="row")
    span_ps = int((steps.frame["start_ps"] + steps.frame["dur_ps"]).max())
    return replace(steps, wall=WallClock(span_ps, complete=True, load=load))


def test_other_programs_that_filled_the_processors_leave_it_open():
    quiet, slow = run_of(noisy(1)), run_of(noisy(2, slower=0.2))
    busy = replace(slow, steps=loaded(slow.steps, 1.0))
    idle = replace(slow, steps=loaded(slow.steps, 0.3))
    assert judged(quiet, idle).slower is True
    assert judged(quiet, busy).slower is None
    assert "other programs filled the processors in run b: repeat it" in judged(quiet, busy).sentence
    assert judged(busy, quiet).slower is None  # a slower baseline hides a slow-down
    assert judged(busy, quiet).busy == (True, False)


def test_hosts_of_a_job_are_one_series():
    pod = tp.phases(tp.sample("pod"))
    found = judged(pod, pod)
    assert (found.slower, found.ratio, found.busy) == (False, 1.0, (False, False))
    assert found.steps[0] <= pod.steps.frame["step"].n_unique()


def test_the_content_is_json_with_the_same_figures(tmp_path):
    import json

    found = judged(timed_run(tmp_path / "a", noisy(1)), timed_run(tmp_path / "b", noisy(2)))
    content = json.loads(json.dumps(found.content))
    assert content["slower"] is found.slower
    assert content["ratio"]["value"] == pytest.approx(found.ratio, abs=1e-5)
    assert content["ratio"]["confidence"] == 0.99
    assert content["steps"] == {"a": found.steps[0], "b": found.steps[1]}


def test_wrong_arguments():
    compared = compare(toy_steps("aab"), toy_steps("aab"))
    with pytest.raises(TypeError, match="must be what tp\\.compare returns"):
        slowdown(3)
    for limit in (0, -1, float("nan"), True, "3%"):
        with pytest.raises(ValueError, match="must be a number above 0"):
            slowdown(compared, limit)
