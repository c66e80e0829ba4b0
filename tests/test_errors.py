"""Checks of arguments that several doors share: what is let in, and in which sentence the rest is refused."""

import ast
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tpunb as tp
from tpunb.errors import check_share, check_whole, warn_user, wrong_type


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_come_back_as_pythons(value):
    found = check_whole("KMeans", "k", value, 1)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, np.True_, np.float64(2), float("nan"), None, "3", [3]])
def test_whole_refuses_other_types_and_small_numbers(value):
    with pytest.raises(ValueError, match="The k parameter") as caught:
        check_whole("KMeans", "k", value, 1)
    assert str(caught.value) == f"The k parameter of KMeans must be an int of 1 or more. Got {value!r} instead."


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_a_share_is_from_0_to_1(value):
    assert check_share("OLS", "threshold", value) == value


@pytest.mark.parametrize("value", [-0.1, 1.3, True, False, float("nan"), float("inf"), None, "0.5", 1j])
def test_share_refuses_numbers_outside_0_to_1(value):
    with pytest.raises(ValueError, match="The threshold parameter") as caught:
        check_share("OLS", "threshold", value)
    assert str(caught.value) == f"The threshold parameter of OLS must be in [0, 1]. Got {value!r} instead."


COUNTED = re.compile(
    r"\{\} (?:batches|checkpoints|cores|devices|epochs|examples|files|hosts|labels|operations|others|parameters|"
    r"phases|programs|rows|samples|sessions|stages|steps|threads|trials|variables|windows|workers)\b"
)
MANY = {  # of which there are always several, or a column's name
    "; {} of {} hosts shown",
    "{} hosts: {}{}",
    "{} of {} steps",
    "{} steps",
    "top {} operations",
    "{} steps vary in too many ways: similar ones are merged by {} of {} components, which loses {} of the variance",
    "{} steps are too different to merge: {} micro-clusters lose {} of the variance",
    "{} holds no raw profile, but tables of {} sessions",
    "every {} steps",
    "its arguments are on {} devices",
    "{} examples/s",
    "about {} steps of each would decide",
}


def test_counts_have_their_noun_in_singular_or_plural():
    """A count before a plural noun goes through `tpunb.text.plural`."""
    found = set()
    for path in Path(tp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                found |= {text} if COUNTED.search(text) else set()
    assert found - MANY == set()


def test_a_wrong_kind_is_named_with_what_to_do_next():
    error = wrong_type("phases", "steps", "be Steps", "bert", hint="tp.steps(profile)")
    assert str(error) == "The steps parameter of phases must be Steps. Got 'bert' instead."
    assert error.__notes__ == ["Hint: tp.steps(profile)"]
    assert not hasattr(wrong_type("phases", "steps", "be Steps", 3), "__notes__")


@pytest.mark.parametrize("closed", [False, True])
def test_a_warning_that_is_an_error_is_one_line_on_stderr(capsys, monkeypatch, closed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if closed:
            monkeypatch.setattr(sys, "stderr", None)
        warn_user("nothing was saved", RuntimeWarning)
    assert closed or capsys.readouterr().err == "tpunb: nothing was saved\n"


def test_all_warnings_go_through_the_function_that_cannot_raise():
    modules = [path for path in Path(tp.__file__).parent.rglob("*.py") if "warnings.warn(" in path.read_text()]
    assert [path.name for path in modules] == ["errors.py"]


def test_a_warning_names_the_line_of_the_program():
    with pytest.warns(UserWarning, match="nothing was saved") as caught:
        warn_user("nothing was saved")
    assert caught[0].filename == __file__
