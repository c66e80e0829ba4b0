"""Paces of one kind of steps, between the marks of a program."""

from dataclasses import replace

import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.cluster.paces import kinds_of
from tpunb.frames import Steps
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps

MS = 10**9


FIT = ("fit", "fit")
TRACED = ("program startup", "tracing f")


def timed(
    *stretches: tuple[int, float], mark: tuple[str, str] | None = FIT, traced: int = 0, marked_ms: int = 200
) -> Steps:
    """Return a run of stretches of (steps, milliseconds each), the first `traced` steps of each in full."""
    pattern = "a" * sum(steps for steps, _ in stretches)
    letters = "".join("f" * traced + "n" * (steps - traced) for steps, _ in stretches)
    steps = toy_steps(pattern, traced=letters)
    durs = [round(ms * MS) + i % 5 * MS // 20 for count, ms in stretches for i in range(count)]  # a little noise
    starts = [sum(durs[:i]) for i in range(len(durs))]
    firsts = [sum(count for count, _ in stretches[:i]) for i in range(len(stretches))]
    spans = pl.DataFrame(
        [("toy", starts[first], marked_ms * MS, *mark) for first in firsts if mark], schema.SPANS, orient="row"
    )
    frame = steps.frame.with_columns(dur_ps=pl.Series(durs), start_ps=pl.Series(starts), kind=pl.lit("train"))
    return replace(steps, frame=frame, wall=WallClock(sum(durs), complete=True, spans=spans))


@pytest.mark.parametrize("mark", [FIT, TRACED])
def test_calls_of_another_pace_are_other_kinds(mark):
    assert kinds_of(timed((40, 3), (40, 5), mark=mark)).tolist() == [0] * 40 + [1] * 40
    assert kinds_of(timed((40, 5), (40, 3), mark=mark)).tolist() == [1] * 40 + [0] * 40


def test_a_function_traced_again_for_other_shapes_is_known_by_its_name():
    steps = timed((40, 3), (40, 5), mark=TRACED)
    for second in ("tracing f again for (8,)", "tracing f…float32[8]"):
        spans = steps.wall.spans.with_columns(detail=pl.Series(["tracing f", second]))
        assert set(kinds_of(replace(steps, wall=replace(steps.wall, spans=spans))).tolist()) == {0, 1}


def test_a_helper_that_is_compiled_or_another_function_is_no_mark():
    assert set(kinds_of(timed((40, 3), (40, 5), mark=TRACED, marked_ms=30)).tolist()) == {0}
    steps = timed((40, 3), (40, 5), mark=TRACED)
    spans = steps.wall.spans.with_columns(detail=pl.Series(["tracing train_step", "tracing test_step"]))
    assert set(kinds_of(replace(steps, wall=replace(steps.wall, spans=spans))).tolist()) == {0}


@pytest.mark.parametrize(
    ("stretches", "mark"),
    [
        (((40, 3), (40, 5)), None),  # a machine slows down
        (((40, 3), (40, 4)), FIT),  # less than 1.5 times
        (((400, 3), (19, 6)), FIT),  # too few to have a pace
        (((4000, 3), (20, 6)), FIT),  # hardly any time
    ],
)
def test_one_kind_without_marks_or_another_pace(stretches, mark):
    assert set(kinds_of(timed(*stretches, mark=mark)).tolist()) == {0}


def test_paces_that_overlap_are_one():
    steps = timed((40, 3), (40, 5))
    mixed = steps.frame.with_columns(dur_ps=pl.Series([3 * MS, 6 * MS, 7 * MS] * 13 + [MS] + [7 * MS, 5 * MS] * 20))
    assert set(kinds_of(replace(steps, frame=mixed)).tolist()) == {0}


def test_input_wait_and_callbacks_are_no_pace():
    steps = timed((40, 3), (40, 5))
    waiting = pl.when(pl.int_range(pl.len()) >= 40).then(2 * MS).otherwise(0)
    for column in ("input_ps", "callbacks_ps"):
        assert set(kinds_of(replace(steps, frame=steps.frame.with_columns(waiting.alias(column)))).tolist()) == {0}


def test_traced_steps_have_the_kind_of_their_stretch():
    full = timed((40, 3), (40, 5), traced=10).full()
    assert kinds_of(full).tolist() == [0] * 10 + [1] * 10


def test_calls_of_one_program_at_two_paces_are_two_phases():
    found = tp.phases(timed((40, 3), (40, 5), traced=10))
    assert found.labels.to_list() == [0] * 40 + [1] * 40
    assert found.frame["name"].to_list() == ["train", "train (faster)"]


def test_a_pace_that_no_window_saw_is_a_phase_by_the_clock():
    steps = timed((40, 3), (40, 5), (40, 9), traced=10)
    gone = pl.when(pl.int_range(pl.len()) >= 80).then(pl.lit("none")).otherwise("traced").alias("traced")
    frame = steps.frame.with_columns(gone.cast(steps.frame["traced"].dtype))
    found = tp.phases(replace(steps, frame=frame))
    assert found.labels.to_list() == [0] * 40 + [1] * 40 + [2] * 40
    assert found.frame.filter(phase=2)["full"].item() == 0
