"""What producers and judges agree on is a name in one room: no text with a space stands in two."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "tpunb"
SHARED = Path(__file__).with_name("shared_literals.txt")  # those that still do; the list may only shrink


def literals(source):
    """Yield the string literals of a module with a space between words, without docstrings."""
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
        if is_text and " " in node.value.strip():
            yield node.value


def in_several_rooms():
    rooms = {}
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for text in literals(path.read_text(encoding="utf-8")):
            rooms.setdefault(text, set()).add(room)
    return {repr(text) for text, where in rooms.items() if len(where) > 1}


def test_texts_that_rooms_share_become_fewer():
    known, shared = {*SHARED.read_text(encoding="utf-8").splitlines()}, in_several_rooms()
    assert shared - known == set(), "name it in a room that both import, such as tpunb.schema"
    assert known - shared == set(), "run python tests/test_literals.py"


if __name__ == "__main__":
    kept = in_several_rooms() & {*SHARED.read_text(encoding="utf-8").splitlines()}
    SHARED.write_text("".join(f"{text}\n" for text in sorted(kept)), encoding="utf-8")
