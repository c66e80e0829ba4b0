"""The corpus: recorded trainings are judged again, by today's rules."""

import pytest
from judged_runs import entries, judged, known_wrong

KNOWN = known_wrong()


@pytest.mark.parametrize("name", entries())
def test_what_is_true_of_a_program_is_what_its_run_says(name):
    checks, sentence = judged(name)
    print(name, checks, sentence)
    wrong = {check for check, is_right in checks.items() if not is_right}
    assert wrong == KNOWN.get(name, {}).keys(), sentence


def test_what_is_known_to_be_wrong_has_an_entry():
    assert KNOWN.keys() <= {*entries()}
