"""Stretches of equal steps."""

from run_pairs import by_letter

from tpunb.frames.export import segments


def test_segments_are_the_runs_of_equal_columns():
    found = segments(by_letter("aabba").labelled, "phase")
    assert found.select("phase", "first_step", "last_step", "steps").rows() == [
        (0, 0, 1, 2),
        (1, 2, 3, 2),
        (0, 4, 4, 1),
    ]
    assert found["end_ps"].to_list() == [2_000_000_000, 6_000_000_000, 7_000_000_000]
