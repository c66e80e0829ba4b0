"""Names of strangers on each surface: Markdown, CSV, terminal and pages show them as text and as nothing else."""

import csv
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

import tpunb as tp
from tpunb import cli
from tpunb.text import markdown, plain

markdown_it = lazy("markdown_it")
SAMPLE = Path(__file__).parents[2] / "datasets" / "sample_profiles" / "keras_cnn"
PAYLOADS = [
    "<script>window.hit=1</script>",
    '"><img src=x onerror="window.hit=2">',
    "![p](http://evil.example/p.png)",
    "[click](javascript:alert(1))",
    "[click][1]",
    "[a]: http://evil.example",
    "@everyone",
    "see #12, GH-12 and !34",
    "http://evil.example www.evil.example mail@evil.example",
    "<http://evil.example>",
    "<!-- hidden",
    "&lt;script&gt;",
    "**bold** _it_ __init__ ~~gone~~ *x*",
    "# Heading",
    "- item",
    "a | b |",
    "`",
    "``` `` `",
    "\\`<img src=x>`",
    "`a`](http://evil.example)",
    "`a`<img src=x>`b`",
    "x `` ` <img> `y` ``",
    "$x^2$ :smile:",
    "\x1b]0;title\x07\x1b[31mred\x9b31m",
    "\u202egnp.exe\u2066\u200b",
    "a\n# b\r\n<b>",
]
LINES = [
    "`data = tp.tune(data).apply(data)`, or in a notebook %%tpupoint --tune",
    "collect values in a list (`losses.append(loss)`), not in an array that grows",
    "keep programs: `jax.config.update('jax_compilation_cache_dir', 'compiled')`; paid once per run",
    "record.py:95 in record ← model.fit 2.4 s [2.2 s, 2.6 s] (25 % of run time)",
]


def rendered(text):
    """Return the tokens of an item of a list; links and mentions that GitHub finds in text are looked for in that."""
    return markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(f"- **{text}**\n")


def pieces(text):
    """Return the texts and the code in rendered Markdown, which holds nothing else beside the item and its bold."""
    found = []
    for token in rendered(text):
        allowed = ("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close")
        assert token.type in (*allowed, "paragraph_open", "paragraph_close", "inline"), token.type
        for child in token.children or ():
            assert child.type in ("text", "code_inline", "strong_open", "strong_close"), (child.type, child.content)
            if child.content:
                found.append((child.type, child.content))
    return found


@pytest.mark.parametrize("text", [*PAYLOADS, *LINES])
def test_markdown_shows_a_name_as_it_is(text):
    shown = pieces(markdown(f"at {text}"))
    assert re.sub(r"[\s`]", "", "".join(content for _, content in shown)) == re.sub(r"[\s`]", "", plain(f"at {text}"))
    for kind, content in shown:
        if kind == "text":
            assert not re.search(r"@\w|#\d|://|www\.|<|GH-\d|!\d|:\w+:", content)


@given(st.text(st.sampled_from("ab 1`\\<>[]()!*_~#@$&;:/|.-\n"), max_size=40))
def test_no_text_is_markup(text):
    for kind, content in pieces(markdown(f"at {text}.")):
        if kind == "text":
            assert not re.search(r"@|#|://|www\.|[<>*~$|\\`]", content)


def test_code_in_a_sentence_is_copied_as_it_is():
    for line in LINES[:3]:
        (code,) = re.findall("`(.+?)`", line)
        assert ("code_inline", code) in pieces(markdown(line))
    assert markdown(LINES[3]) == LINES[3]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose names of operations, places, steps and facts are payloads."""
    folder = tmp_path_factory.mktemp("runs") / "hostile"
    shutil.copytree(SAMPLE, folder)
    for path in folder.rglob("*.parquet"):
        frame = pl.read_parquet(path)
        for name in frame.columns:
            if frame.schema[name] == pl.String and name != "account":
                values = frame[name].unique().drop_nulls().sort().to_list()
                names = {value: f"{PAYLOADS[at % len(PAYLOADS)]} {at}" for at, value in enumerate(values)}
                frame = frame.with_columns(pl.col(name).replace(names))
        frame.write_parquet(path)
    facts = (
        (folder / "run.json").read_text().replace("Sequential of", "<img src=x> @all ![p](http://evil.example/p.png)")
    )
    (folder / "run.json").write_text(facts)
    return folder


def test_a_comment_on_a_change_has_no_markup_of_the_run(hostile, capsys):
    assert cli.main(["report", str(hostile), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "![p](http://evil.example/p.png)" in "\n".join(lines)  # as code
    for line in filter(None, lines):
        text = line.removeprefix("- ") if line.startswith("- ") else line.removeprefix("**").removesuffix("**")
        for kind, content in pieces(text):
            assert kind == "code_inline" or not re.search(r"@|<|://|!\[", content)


def test_terminal_and_csv_have_no_characters_that_command(hostile, tmp_path, capsys):
    for command in ("report", "runs"):
        assert cli.main([command, str(hostile if command == "report" else hostile.parent)]) == 0
        shown = capsys.readouterr()
        assert all(line.isprintable() for line in [*shown.out.splitlines(), *shown.err.splitlines()])
    for path in tp.phases(tp.load(hostile)).to_csv(tmp_path):
        cells = [cell for row in csv.reader(path.open(newline="")) for cell in row]
        assert all(plain(cell) == cell and not cell.startswith(("=", "+", "@")) for cell in cells)
        assert not any(cell.startswith("-") and not re.fullmatch(r"-?[\d.]+", cell) for cell in cells)


def test_pages_have_no_markup_of_the_run(hostile, tmp_path, capsys):
    assert cli.main(["view", str(hostile), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "window.hit" in page  # the names are there, as text
    for markup in ("<script>window.hit", "<img src=x", "<!-- hidden", "<http:"):
        assert markup not in page
