"""The table of causes: ids that stay, one page of it, one entry each."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tpunb.analysis import CAUSES, cause
from tpunb.analysis.causes import page
from tpunb.schema import ACCOUNTS

PAGE = Path(__file__).parents[1] / "docs" / "causes.md"


def test_the_page_of_causes_is_the_table_printed():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/test_causes.py"


def test_every_cause_has_an_id_and_a_name_of_its_own_and_is_whole():
    for names in ([each.id for each in CAUSES], [each.name for each in CAUSES]):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    for each in CAUSES:
        assert each.account is None or each.account in ACCOUNTS
        assert each.sentence
        assert each.remedies or each.name in ("no known cause", "standing still")
        assert each.evidence
        assert each.source
        assert each.no_fault


@pytest.mark.parametrize("each", CAUSES, ids=lambda each: each.id)
def test_code_of_a_remedy_is_code(each):
    for remedy in each.remedies:
        for code in (remedy.code, remedy.before):
            ast.parse(code.removeprefix("%"))


def test_a_cause_is_found_by_its_id_and_its_name():
    assert cause("T101") is cause("slow input")
    with pytest.raises(ValueError, match=r"must be the id or the name of a cause\. Got 'T999' instead"):
        cause("T999")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
