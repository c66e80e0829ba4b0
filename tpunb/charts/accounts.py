"""The wall time of a run as one bar: how long each account took."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import altair as alt
import polars as pl

from tpunb.analysis.goodput import Goodput, totals
from tpunb.charts.render import LayerPicture
from tpunb.charts.style import WIDTH, cleaned, hue, rows_of
from tpunb.errors import TpunbError
from tpunb.schema import ACCOUNTS
from tpunb.text import cut, duration, percent, plural

_DETAILS = 3  # at most in a tooltip
_ROOM = 0.06  # share of wall time, for a number in its part of the bar
_LEAST = 0.005  # share of wall time of an account that is not in "other"
_BRIGHT = 0.18  # relative luminance of a colour on which text is black, or white below: either has a contrast of 4.5


def accounts(goodput: Goodput) -> LayerPicture:
    """Return the wall time of a run as one bar of its accounts, mean over hosts, with a legend of their times.

    Raises
    ------
    TpunbError
        When no time was recorded.
    """
    rows = account_rows(goodput)
    labels = {row["account"]: f"{row['account']} · {row['time']}" for row in rows.iter_rows(named=True)}
    colours = {name: ACCOUNTS[name].colour for name in labels}
    look: dict[str, Any] = {"columns": 4, "title": None, "symbolType": "square", "symbolStrokeWidth": 0, "offset": 6}
    colour = hue("account", colours, **look, labelExpr=f"{json.dumps(labels)}[datum.label]")
    n, wall = goodput.hosts, f"{duration(goodput.wall_ps)} wall time"
    mean = f", mean of {plural(n, 'host')}" if n > 1 else ""
    return _bar(
        rows_of(rows),
        colour,
        title=alt.TitleParams("Wall time by account", subtitle=[f"{wall}{mean}"]),
        description=f"Wall time by account: {wall}{mean}. {'; '.join(labels.values())}.",
        width=WIDTH,
    )


def account_rows(goodput: Goodput) -> pl.DataFrame:
    """Return the parts of the bar, longest first, unknown time last: account, before and until (s), time and others."""
    goodput = folded(goodput)
    rows = totals(goodput).with_columns(pl.col("account").cast(pl.String))
    rows = rows.sort(pl.col("account") == "other", -pl.col("time_ps"), maintain_order=True)
    if rows.is_empty():
        raise TpunbError("no time to draw", hint="pass the goodput of a run with a duration")
    details, until = totals(goodput, "detail"), pl.col("time_ps").cum_sum() / 1e12
    about = [
        f"{name}: {duration(time)}, {percent(part, 1)} of wall time{_listed(details.filter(account=name))}"
        for name, time, part in rows["account", "time_ps", "share"].iter_rows()
    ]
    colours = [ACCOUNTS[name].colour for name in rows["account"]]
    return rows.select(
        "account",
        colour=pl.Series(colours),
        before=(until - pl.col("time_ps") / 1e12).round(6),
        until=until.round(6),
        share="share",
        time=pl.Series([duration(time) for time in rows["time_ps"]]),
        text=pl.Series([percent(part) if part >= _ROOM else "" for part in rows["share"]]),
        dark=pl.Series([_luminance(colour) > _BRIGHT for colour in colours]),
        about=pl.Series(about),
    )


def folded(goodput: Goodput) -> Goodput:
    """Return the goodput with accounts under 0.5 % of wall time in "other", each as a detail of it."""
    name = pl.col("account").cast(pl.String)
    small = totals(goodput).filter(pl.col("share") < _LEAST, name != "productive").select(name).to_series()

    def fold(frame: pl.DataFrame) -> pl.DataFrame:
        other, is_small = pl.lit("other").cast(frame.schema["account"]), name.is_in(small.to_list())
        account, detail = pl.when(is_small).then(other), pl.when(is_small).then(name)
        return frame.with_columns(account=account.otherwise("account"), detail=detail.otherwise("detail"))

    return replace(goodput, frame=fold(goodput.frame), segments=fold(goodput.segments))


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as "#0072B2", 0 to 1 (WCAG 2)."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    light = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), light, strict=True))


def _listed(details: pl.DataFrame) -> str:
    """Return the largest details of an account with their times."""
    named = details.drop_nulls("detail").sort("time_ps", descending=True)
    texts = [f"{cut(cleaned(d), 80)} {duration(t)}" for d, t in named["detail", "time_ps"].head(_DETAILS).iter_rows()]
    more = [f"{named.height - _DETAILS} more"] if named.height > _DETAILS else []
    return "".join(f"; {text}" for text in (*texts, *more))


def _bar(base: alt.Chart, colour: alt.Color, **more: Any) -> LayerPicture:
    """Return the parts of the bar and the numbers in them."""
    x = alt.X("before:Q", title="wall time (s)", axis=alt.Axis(grid=False, tickCount=10)).scale(nice=False)
    number = base.transform_calculate(middle="(datum.before + datum.until) / 2").encode(x="middle:Q", text="text:N")
    layers = [base.mark_rect().encode(x=x, x2="until:Q", color=colour)]
    for dark, ink in (("datum.dark", "black"), ("!datum.dark", "white")):
        layers.append(number.transform_filter(dark).mark_text(color=ink, fontWeight="bold", tooltip=None))
    return LayerPicture(layer=layers, height=30, **more)
