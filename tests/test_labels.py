"""Labels: names that fit and stay apart, texts that do not meet."""

from itertools import pairwise

from chart_checks import EVIL
from hypothesis import given
from hypothesis import strategies as st

from tpunb.charts.style import lanes, listed, names_of
from tpunb.studies.paper.charts.measures import faded
from tpunb.text import plain

SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(1, 50)).map(lambda at: (at[0], at[0] + at[1])), max_size=12)


@given(st.lists(st.text(max_size=60), max_size=8))
def test_names_fit_can_be_printed_and_stay_apart(names):
    found = names_of(names)
    assert len(found) == len(names)
    assert len({*found}) == len(found)
    assert all(0 < len(name) <= 36 for name in found)
    assert [plain(name) for name in found] == found


def test_a_number_that_is_taken_is_not_given_again():
    assert names_of(["a", "a ", "a (2)", " a"]) == ["a", "a (2)", "a (2) (2)", "a (3)"]
    assert names_of(["", " "]) == ["unnamed", "unnamed (2)"]


def test_names_stay_text_without_what_commands():
    assert names_of([EVIL[0]]) == [EVIL[0]]
    assert names_of(["a\x1b[31mb\u202e\n\ud800"]) == ["a\ufffd[31mb\ufffd\ufffd\ufffd"]


@given(SPANS)
def test_no_two_texts_of_a_line_meet(spans):
    found = lanes(spans)
    for line in {*found}:
        ends = sorted(span for span, on in zip(spans, found, strict=True) if on == line)
        assert all(one[1] <= two[0] for one, two in pairwise(ends))


def test_the_lowest_line_is_taken():
    assert lanes([]) == []
    assert lanes([(10, 20), (0, 9), (15, 30), (16, 17), (20, 21)]) == [0, 0, 1, 2, 0]


def test_a_description_has_an_end():
    assert listed([]) == ""
    assert listed([str(i) for i in range(12)]).endswith("10; 11")
    assert listed([str(i) for i in range(14)]).endswith("11; and 2 more")


def test_a_faded_colour_is_that_colour():
    assert faded("#ff8000", 0.5) == "rgba(255, 128, 0, 0.5)"
