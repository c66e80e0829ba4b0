"""Texts for people use plain words: pages, notebooks, docstrings, messages and labels are searched for the dialect."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from tracked import tracked

ROOT = Path(__file__).parents[1]
DIALECT = {
    # what is searched for: what to write instead
    r"\bas (?!soon |long |well |far |many |much |few |little )(?:[\w-]+ ){1,2}as\b": "a number, 'equal to' or 'like'",
    r"\bby half\b": "'by 50 %' or 'much'",
    r"\ball the same\b": "'equal' or 'still'",
    r"\bof (?:ours|theirs|yours)\b": "'our', 'their', 'your', or the name of the owner",
    r"\bnone of\b": "'no' and the noun",
    r"\bh[au]ngs? on\b": "'depends on'",
    r"\bl(?:ies|ay)\b": "'is'",
    r"\bbears?\b": "'has'",
    r"\bgo(?:es|ing) on\b": "'continues' or 'resumes'",
    r"\b(?:is|are|was|were|be|been) told\b": "'is reported', 'is listed', 'see'",
    r"\btells?\b": "'states', 'shows', 'returns'",
    r"\bwhat would\b": "the noun",
    r"\bwho(?:so)?ever\b": "the noun",
}
ALLOWED = {
    # (file, sentence with the words): why they stay
}
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`|\]\([^)]*\)|<[^>]*>", re.MULTILINE | re.DOTALL)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
FILES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *tracked("docs", ending=".md"),
        *tracked("notebooks", ending=".ipynb"),
        *(ROOT / "tpunb").rglob("*.py"),
        *(ROOT / "tpunb").rglob("*.js"),
    ]
)


def findings(text):
    """Return each use of the dialect in a text, with its line and what to write instead."""
    found = []
    for pattern, instead in DIALECT.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE):
            around = " ".join(text[max(0, match.start() - 40) : match.end() + 30].split())
            found.append(f"{match[0]!r} in '{around}': write {instead}")
    return found


def texts(path):
    """Return the texts for people in a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = (cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown")
        return [CODE.sub("_", "".join(cell["source"])) for cell in cells]
    if path.suffix == ".md":
        return [CODE.sub("_", source)]
    if path.suffix == ".js":
        literals = (match[1] or match[2] or "" for match in LITERAL.finditer(source))
        return [literal for literal in literals if " " in literal]
    return python_texts(source)


def python_texts(source):
    """Return the docstrings and the strings of at least two words of a module, f-strings with `_` for values."""
    tree, joined, found = ast.parse(source), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            joined |= {id(part) for part in ast.walk(node)}
            found.append("".join(part.value if isinstance(part, ast.Constant) else "_" for part in node.values))
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    found += [node.value for node in strings if id(node) not in joined]
    return [re.sub(r"^ *>>>.*(?:\n.+)*|``[^`]*``|`[^`\n]*`", "_", text, flags=re.M) for text in found if " " in text]


def test_texts_for_people_use_plain_words():
    found = {}
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        allowed = [sentence for file, sentence in ALLOWED if file == name]
        wrong = [each for text in texts(path) for each in findings(text)]
        if wrong := [each for each in wrong if not any(sentence in each for sentence in allowed)]:
            found[name] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "it is as fast as the other",
        "faster by half",
        "they are all the same",
        "a step of ours",
        "none of\nthem",
        "it hangs on the seed",
        "the file lies there",
        "it bears the name",
        "the run goes on",
        "the error is told",
        "what it tells",
        "What would save time",
        "whoever reads it",
    ],
)
def test_the_dialect_is_found(text):
    assert len(findings(text)) == 1


@pytest.mark.parametrize("text", ["as soon as it ends", "as well as x", "as many as 5", "it relies on it", "untold"])
def test_plain_words_are_not_found(text):
    assert findings(text) == []


def test_texts_are_taken_from_every_kind_of_file(tmp_path):
    source = '"""Docstring here."""\nraise ValueError(f"the {x} is told")\nname = "label"\n# no comment\n'
    assert python_texts(source) == ["the _ is told", "Docstring here."]
    (tmp_path / "a.js").write_text('// a comment\nnode.title = "What would help"; x = `lies ${n} here`;\n')
    assert texts(tmp_path / "a.js") == ["What would help", "lies ${n} here"]
    (tmp_path / "a.md").write_text("Text with `code lies`.\n```python\nlies = 1\n```\n")
    assert texts(tmp_path / "a.md") == ["Text with _.\n_\n"]


def test_allowed_sentences_exist():
    for file, sentence in ALLOWED:
        assert any(sentence in each for text in texts(ROOT / file) for each in findings(text)), sentence


# -- identifiers ------------------------------------------------------------------------------------------------------

NAMELESS = {"told", "said", "heard", "known", "own", "fed", "held"}
"""Words that hide the content of a variable; name the content."""


def identifiers(source):
    """Yield each identifier of a module with its line: names, arguments, attributes, functions, classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno


@cache
def words(name):
    """Return the words that an identifier consists of."""
    return {word.lower() for word in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name)}


def nameless(source):
    """Return the identifiers of which a part is a word that says nothing."""
    return [(name, line) for name, line in identifiers(source) if words(name) & NAMELESS]


def test_identifiers_name_their_content():
    found = {path: nameless(path.read_text(encoding="utf-8")) for path in FILES if path.suffix == ".py"}
    assert {str(path.relative_to(ROOT)): names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("source", ["known = 1", "def f(own_ps): ...", "x.held", "class IsKnown: ...", "_OWN = 2"])
def test_an_identifier_that_hides_its_content_is_found(source):
    assert nameless(source)


def test_plurals_are_made_in_one_place():
    """A count with its noun is `tpunb.text.plural`: no "s" that is multiplied by a condition."""
    found = []
    for path in (path for path in FILES if path.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                found += [path.name] * (getattr(node.left, "value", None) in ("s", "es"))
    assert found == []
