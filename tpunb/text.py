"""Text for people: counts, percentages, errors in a line, names that are not trusted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

_FRAMING = re.compile(r"Graph execution error:|Detected at node|File \"|\[\[|Traceback|\(\d+\) [A-Z]+:|\d+ root error")
_RAISED = re.compile(r"[A-Z]\w*(Error|Exception): ")
"""In TensorFlow's multi-line messages: the lines around the reason, and what Python raised."""


def format_error(error: BaseException) -> str:
    r"""Return an error in one line that is safe to show: its type, what happened, and the hint if it has one.

    >>> format_error(FileNotFoundError("no such file\nin the second line")), format_error(KeyError())
    ('FileNotFoundError: no such file', 'KeyError')
    """
    lines = [line.strip() for line in str(getattr(error, "message", None) or error).splitlines()]
    lines = [line for line in lines if line and not _FRAMING.match(line)]
    raised = [line for line in lines if _RAISED.match(line)]
    line = cut(plain((raised or lines or [""])[0]), 300)
    if "set_int_max_str_digits" in line:  # Python's hint, of no use for a file
        line = "a number in it has too many digits"
    if hasattr(error, "hint"):  # a TpunbError: its message says what kind it is
        return "; ".join(filter(None, [line, plain(error.hint or "")]))
    return line if raised else ": ".join(filter(None, [type(error).__name__, line]))


def percent(share: float, digits: int | None = 0) -> str:
    """Return a share as a percentage with so many decimals; with three digits in all if None. What is there is not 0.

    >>> percent(0.256), percent(0.0312, 1), percent(0.1234, None), percent(0.0)
    ('26 %', '3.1 %', '12.3 %', '0 %')
    >>> percent(0.0021), percent(0.0004, 1), percent(4e-6, None)
    ('under 1 %', 'under 0.1 %', 'under 0.1 %')
    """
    decimals = 1 if digits is None else digits
    if share > 0 and not round(100 * share, decimals):
        return f"under {10.0**-decimals:.{decimals}f} %"
    return f"{short(100 * share) if digits is None else f'{100 * share:.{digits}f}'} %"


def estimated_overhead(share: float, interval: tuple[float, float] | None = None) -> str:
    """Return the estimated cost of windows with its base, and its 95 % interval if there is one.

    >>> estimated_overhead(0.013), estimated_overhead(0.0001, (0.0, 0.021))
    ('1.3 % of run time (estimated)', 'under 0.1 % of run time (estimated, 0.0 to 2.1 %)')
    """
    bounds = "" if interval is None else f", {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
    return f"{percent(max(share, 1e-9), 1)} of run time (estimated{bounds})"


OF_STEPS = "of step time without waits"
"""Base of the size of phases, and of their coverage; "productive" is an account of the run time."""


def share_of_steps(share: float) -> str:
    """Return a share with the base of the size of phases.

    >>> share_of_steps(0.0231)
    '2.3 % of step time without waits'
    """
    return f"{percent(share, 1)} {OF_STEPS}"


def coverage(share: float) -> str:
    """Return how much of all step time without waits the three longest phases cover."""
    return f"top 3 cover {share_of_steps(share)}"


def phases_over(phases: int, steps: int) -> str:
    """Return the size of a clustering.

    >>> phases_over(1, 1200)
    '1 phase over 1,200 steps'
    """
    return f"{plural(phases, 'phase')} over {plural(steps, 'step')}"


def windows_cover(windows: int, share: float) -> str:
    """Return how much of the run time windows cover.

    >>> windows_cover(1, 0.05)
    '1 window covers 5 % of run time'
    """
    verb = "covers" if windows == 1 else "cover"
    return f"{plural(windows, 'window')} {verb} {percent(share)} of run time"


def relative(where: Path | str) -> str:
    """Return a path relative to the working directory if it is below: absolute paths contain user names."""
    here = Path.cwd()
    return str(where.relative_to(here) if isinstance(where, Path) and where.is_relative_to(here) else where)


def earlier_run(folder: Path | str, moved: Path | str) -> str:
    """Return where the earlier run of a folder is now."""
    return f"the earlier run in {relative(folder)} is now in {relative(moved)}"


def plural(n: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "step"), plural(1200, "step"), plural(2, "batch")
    ('1 step', '1,200 steps', '2 batches')
    """
    ending = "" if n == 1 else "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{n:,} {noun}{ending}"


_LISTED = 8


def enumerated(values: Iterable[object]) -> str:
    """Return values in words; of many the first.

    >>> enumerated([0, 1]), enumerated(range(9))
    ('0, 1', '0, 1, 2, 3, 4, 5, 6, 7, …')
    """
    texts = [str(value) for value in values]
    return ", ".join([*texts[:_LISTED], *["…"] * (len(texts) > _LISTED)])


def count(n: int) -> str:
    """Return a number in three digits.

    >>> count(999), count(1_234_567)
    ('999', '1.23M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{short(n / size)}{letter}"
    return str(n)


def short(number: float) -> str:
    """Return a number in three digits, never with an exponent."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"  # never 1.23e+03


def short_time(picoseconds: float) -> str:
    """Return a time in three digits, from nanoseconds to seconds.

    >>> short_time(1_500_000_000), short_time(2_000_000_000_000)
    ('1.5 ms', '2 s')
    """
    size, unit = next((unit for unit in _UNITS if picoseconds >= 0.9995 * unit[0]), _UNITS[-1])
    return f"{short(picoseconds / size)} {unit}"


_UNITS = [(1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns")]


def duration(picoseconds: float) -> str:
    """Return a time in milliseconds, seconds, minutes or hours.

    >>> duration(24_200_000_000_000), duration(2_500_000_000), duration(150 * 10**12), duration(0)
    ('24.2 s', '2.5 ms', '2.5 min', '0 s')
    """
    seconds = picoseconds / 1e12
    if 0 < seconds < 0.9995:
        return f"{short(1e3 * seconds)} ms"
    size, unit = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    return f"{seconds / size:.1f} {unit}" if seconds else "0 s"


def plain(text: str) -> str:
    """Return `text` without the characters that command a terminal, turn a line around or end it."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)


_WORD = re.compile(r"(?P<code>(?<![^\s(])`[^`]+`(?=[,.;:)]*(?:\s|$)))|(?<!\S)\((?=`)|\S+")
_MARKUP = re.compile(
    r"[<>`*|~#@\\$^]|\[(?!\d)|\](?=\S)|(?<![^\W_])_|_(?![^\W_])|://|www\.|:[\w+-]+:|&#?\w+;|!\d|%\w|GH-\d|^[-+=]+$"
)
"""Words of a text for Markdown, code spans among them; and what is markup, a mention or a link in a word."""


def markdown(text: str) -> str:
    r"""Return Markdown that shows a text as it is: words that would be markup or mention somebody are code.

    >>> markdown("see @all: <img src=x> ![p](http://a/p.png) keras_cnn, `tp.load(x)`")
    'see `@all:` `<img` `src=x>` `![p](http://a/p.png)` keras_cnn, `tp.load(x)`'
    """

    def shown(match: re.Match[str]) -> str:
        word = match[0]
        if match["code"] or not _MARKUP.search(word):
            return word
        fence = "`" * (1 + max(map(len, re.findall("`+", word)), default=0))
        return f"{fence} {word} {fence}" if "`" in word else f"{fence}{word}{fence}"

    return _WORD.sub(shown, plain(text))


def cut(text: str, limit: int = 48) -> str:
    """Return `text` in `limit` characters, without its middle where it is longer.

    >>> cut("abcdefghij", 6)
    'ab…hij'
    """
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}…{text[-limit // 2 :]}"
