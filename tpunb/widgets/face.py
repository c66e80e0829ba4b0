"""The face of a run: its answer, its rates, where its time went, and what to do, for pages and pictures alike.

Each is a tree: text, or a list of a tag, its attributes and its children. A page makes elements of it, `html` makes
HTML: names in it are text, never markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tpunb.analysis.advice import tried_on
from tpunb.analysis.goodput import Goodput
from tpunb.analysis.rates import Rates, rate_curves
from tpunb.analysis.verdict import Verdict, brief
from tpunb.charts.accounts import account_rows
from tpunb.frames import Phases, Steps
from tpunb.text import count, duration, percent, plain, plural, short, short_time
from tpunb.widgets.table import safe

Node = str | list[Any]
"""Text, or [tag, attributes, *children]."""

_ACTION = re.compile(r"(?P<text>.*?)(?:: `(?P<code>[^`]+)`)?", re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_LETTER, _MARGIN = 7.5, 20  # points: of a letter in the bar; beside a label
_BARS = (280, 560, 760, 1020)  # widths of the bar, below which parts of page.css have keys
_FOLLOWS = "The course is that of the step time: single steps are not known."
_TALL, _WIDE = 16, 96  # points of a course


def html(node: Node) -> str:
    """Return a tree as HTML that needs no script: its buttons are text, and those that copy are left out.

    >>> html(["p", {"class": "a"}, "1 < 2", ["button", {"data-copy": "x"}, "Copy"], ["button", {}, "b"]])
    '<p class="a">1 &lt; 2<span>b</span></p>'
    """
    if isinstance(node, str):
        return "\n".join(map(safe, node.split("\n")))
    tag, attributes, *children = node
    if "data-copy" in attributes:
        return ""
    if tag == "button":
        tag, attributes = "span", {name: attributes[name] for name in ("class", "style", "title") if name in attributes}
    listed = "".join(f' {name}="{safe(str(value))}"' for name, value in attributes.items())
    return f"<{tag}{listed}>{''.join(map(html, children))}</{tag}>"


def answer(judged: Verdict, weak: Sequence[str], steps: Steps) -> Node:
    """Return what took the time of a run, its line, the remedy, and below these, quietly, what weakens the answer."""
    notes = [*judged.notes, *(f"{text[:1].upper()}{text[1:].removesuffix('.')}." for text in weak)]
    return [
        "section",
        {"class": "tpunb-face", "aria-label": "Answer"},
        *_answer(judged.observed, judged.place),
        *([] if judged.action is None else [remedy(judged.action, judged.saves_ps, _tried(judged, steps))]),
        *([["p", {"class": "tpunb-quiet"}, *_inline(" ".join(notes))]] if notes else []),
    ]


def remedy(action: str, saves_ps: int | None, tried: str | None = None) -> Node:
    """Return what to try: a sentence with what it saves, and a block of code."""
    found = _ACTION.fullmatch(action)
    text, code = (found["text"], found["code"]) if found else (action, None)
    bound = "" if saves_ps is None else f" Saves up to {duration(saves_ps)}."
    saves = f" When it was tried: {tried}." if tried else bound
    return [
        "div",
        {"class": "tpunb-remedy"},
        ["p", {}, *_inline(f"{text[:1].upper()}{text[1:]}."), ["span", {"class": "tpunb-saves"}, saves]],
        *([] if code is None else [_pasted(code)]),
    ]


def todo(advice: pl.DataFrame, judged: Verdict | None) -> Node:
    """Return the advice that is not in the answer: the next two, and the others folded."""
    items: list[Node] = [
        ["li", {}, ["p", {}, *_placed(observed, place)], remedy(brief(action), saves_ps)]
        for saves_ps, observed, place, action in advice["saves_ps", "observed", "place", "action"].iter_rows()
        if judged is None or (observed, brief(action)) != (judged.observed, judged.action)
    ]
    if not items:
        return ["div", {"hidden": "hidden"}]
    title = "What could still help" if judged is not None and judged.healthy else "What to do"
    rest = [["details", {}, ["summary", {}, f"{len(items) - 2} more"], ["ol", {"start": "3"}, *items[2:]]]]
    return [
        "section",
        {"class": "tpunb-todo", "aria-label": "Advice"},
        ["h4", {"aria-level": "2"}, title if judged is None or judged.action is None else f"{title} next"],
        ["ol", {}, *items[:2]],
        *(rest if len(items) > 2 else []),
    ]


def spent(run: Goodput, advice: pl.DataFrame | None = None) -> Node:
    """Return where the wall time went: one bar of the accounts, longest first, with their remedies."""
    rows = () if advice is None else advice.drop_nulls("account").select("account", "action").iter_rows()
    remedies = dict(reversed([*rows]))  # the first of each
    parts, keys = list[Node](), list[Node]()
    for name, colour, time, share, dark, about in (
        account_rows(run).select("account", "colour", "time", "share", "dark", "about").iter_rows()
    ):
        label, unknown = f"{name} {time}", " tpunb-unknown" * (name == "other")
        action = f"\nTry: {brief(remedies[name]).replace('`', '')}" if name in remedies else ""
        look = f"flex:{share:.4f} 1 0;color:{'#000' if dark else '#fff'};background-color:{colour}"
        about = {"title": f"{about}{action}", "data-account": name, "style": look}
        part = {"type": "button", "class": f"tpunb-part{unknown}", **about}
        parts.append(["button", part, ["span", {}, label]])
        wide = (_LETTER * len(label) + _MARGIN) / max(share, 1e-9)  # bar in which the label fits
        chip = ["span", {"class": f"tpunb-chip{unknown}", "style": f"background-color:{colour}"}]
        for_bars = next((f"tpunb-below-{most}" for most in _BARS if wide <= most), "")
        keys.append(["span", {"class": for_bars}, chip, label])
    hosts = f" on each of {plural(run.hosts, 'host')}" if run.hosts > 1 else ""
    return [
        *("section", {"class": "tpunb-spent", "aria-label": "Where the time went"}),
        [
            "h4",
            {"aria-level": "2"},
            "Where the time went ",
            ["span", {"class": "tpunb-base"}, f"{duration(run.wall_ps)}{hosts}"],
        ],
        ["div", {"class": "tpunb-parts", "role": "group", "aria-label": "Accounts"}, *parts],
        ["p", {"class": "tpunb-keys", "aria-hidden": "true"}, *keys],
    ]


def rates(phases: Phases, run: Goodput | None, found: Rates) -> Node:
    """Return the rates of a run in a line, each with its course; a rate that is not known is left out."""
    row: Mapping[str, Any] = found.frame.row(0, named=True) if len(found) else {}
    curves = rate_curves(phases, found, run)
    counted = [unit for unit in ("samples", "tokens") if phases.steps.frame[unit].count()]
    measured = {"step_ps", "goodput", *(f"{unit}_per_s" for unit in counted)}
    shown = [
        ("step time, mean", row.get("step_ps"), short_time, "step_ps"),
        *((f"{unit}/s", row.get(f"{unit}_per_s"), _rate, f"{unit}_per_s") for unit in ("samples", "tokens")),
        ("MFU", row.get("mfu"), lambda share: percent(share, None), "mfu"),
        ("goodput", None if run is None else run.ratio, lambda share: percent(share, None), "goodput"),
    ]
    return [
        *("dl", {"class": "tpunb-rates", "aria-label": "Rates"}),
        *(
            [
                "div",
                {} if column in measured else {"title": _FOLLOWS},
                ["dt", {}, name + ", estimated" * (column in found.estimated)],
                ["dd", {}, text(value), _sparkline(curves[column].to_list())],
            ]
            for name, value, text, column in shown
            if value
        ),
    ]


def _rate(value: float) -> str:
    return count(round(value)) if value >= 999.5 else short(value)


def _sparkline(values: Sequence[float | None]) -> Node:
    """Return a curve from 0 to its highest value, with gaps where there is none."""
    most = max((value for value in values if value is not None), default=0) or 1
    width, points, before = _WIDE / max(len(values), 1), [], None
    for at, value in enumerate(values):
        if value is not None:
            y = _TALL - 1 - (_TALL - 2) * value / most
            points.append(f"{'M' if before is None else 'L'}{at * width:.1f} {y:.1f}H{(at + 1) * width:.1f}")
        before = value
    look = {"viewBox": f"0 0 {_WIDE} {_TALL}", "preserveAspectRatio": "none", "aria-hidden": "true"}
    return ["svg", {**look, "class": "tpunb-course"}, ["path", {"d": "".join(points)}]]


def _tried(judged: Verdict, steps: Steps) -> str | None:
    found = [
        each for each in tried_on(steps) if (each["cause"], brief(each["action"])) == (judged.cause, judged.action)
    ]
    return plain(found[0]["outcome"]) if found else None


def _answer(sentence: str, place: str | None) -> list[Node]:
    """Return what took the time, and below it the line of the program as code to copy."""
    text, word, rest = _divided(sentence, place)
    look = {"class": "tpunb-answer", "role": "heading", "aria-level": "1"}
    large: Node = ["p", look, *_inline(f"{text}." * (not text.endswith(".")) or text)]
    return [large] if not place else [large, ["p", {}, f"{word.capitalize()} ", ["code", {}, place], copy(place), rest]]


def _placed(sentence: str, place: str | None) -> list[Node]:
    """Return a sentence with its line of the program as code to copy."""
    text, word, rest = _divided(sentence, place)
    return _inline(text) if not place else [*_inline(f"{text}, {word} "), ["code", {}, place], copy(place), rest]


def _divided(sentence: str, place: str | None) -> tuple[str, str, str]:
    """Return a sentence up to the place in it, the word before that, and what comes after it.

    >>> _divided("It took 1 s: mostly a.py:3, for a new shape.", "a.py:3")
    ('It took 1 s', 'mostly', ', for a new shape')
    """
    if not place:
        return sentence, "", ""
    before, _, rest = sentence.partition(place)
    text, _, word = before.rstrip().rpartition(" ")
    return text.rstrip(":,"), word, rest.removesuffix(".")


def copy(text: str) -> Node:
    """Return a button that copies a text."""
    return [
        "button",
        {"type": "button", "class": "tpunb-copy", "data-copy": text, "aria-label": f"Copy {text}"},
        "Copy",
    ]


def _inline(text: str) -> list[Node]:
    """Return a text with what stands in backticks as code."""
    parts = _CODE.split(plain(text))
    return [["code", {}, part] if at % 2 else part for at, part in enumerate(parts) if part]


def _pasted(code: str) -> Node:
    return ["div", {"class": "tpunb-paste"}, ["pre", {}, ["code", {}, code]], copy(code)]
