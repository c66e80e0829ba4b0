"""Checks of arguments that several doors share: what is let in, and in which sentence the rest is refused."""

import numpy as np
import pytest

from tpunb.errors import share, whole, wrong


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_come_back_as_pythons(value):
    found = whole("KMeans", "k", value, 1)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, np.True_, np.float64(2), float("nan"), None, "3", [3]])
def test_whole_refuses_other_types_and_small_numbers(value):
    with pytest.raises(ValueError, match="The k parameter") as caught:
        whole("KMeans", "k", value, 1)
    assert str(caught.value) == f"The k parameter of KMeans must be an int of 1 or more. Got {value!r} instead."


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_a_share_is_from_0_to_1(value):
    assert share("OLS", "threshold", value) == value


@pytest.mark.parametrize("value", [-0.1, 1.3, True, False, float("nan"), float("inf"), None, "0.5", 1j])
def test_share_refuses_numbers_outside_0_to_1(value):
    with pytest.raises(ValueError, match="The threshold parameter") as caught:
        share("OLS", "threshold", value)
    assert str(caught.value) == f"The threshold parameter of OLS must be in [0, 1]. Got {value!r} instead."


def test_a_wrong_kind_is_named_with_what_to_do_next():
    error = wrong("phases", "steps", "be Steps", "bert", hint="tp.steps(profile)")
    assert str(error) == "The steps parameter of phases must be Steps. Got 'bert' instead."
    assert error.__notes__ == ["Hint: tp.steps(profile)"]
    assert not hasattr(wrong("phases", "steps", "be Steps", 3), "__notes__")
