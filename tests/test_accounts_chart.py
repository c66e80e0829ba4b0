"""The wall time of a run as one bar."""

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from goodput_rows import SLOW, goodput_of

import tpunb as tp
from tpunb import charts, schema, widgets
from tpunb.charts import render
from tpunb.charts.accounts import account_rows
from tpunb.charts.style import GREY, NOISE, OTHERS, PHASE_COLOURS
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps

EVIL = "<script>alert(1)</script>\x1b\u202e"


def test_the_parts_follow_each_other_longest_first_and_unknown_time_last():
    rows = account_rows(
        goodput_of([("productive", None, 3.0), ("other", None, 6.0), ("callbacks", "A.on_epoch_end", 7.0)])
    )
    assert rows.select("account", "before", "until", "time", "text").rows() == [
        ("callbacks", 0.0, 7.0, "7.0 s", "44 %"),
        ("productive", 7.0, 10.0, "3.0 s", "19 %"),
        ("other", 10.0, 16.0, "6.0 s", "38 %"),
    ]


def test_a_tooltip_names_account_time_share_and_its_base_and_details():
    (about,) = account_rows(goodput_of(SLOW)).filter(account="callbacks")["about"]
    assert about == (
        "callbacks: 14.0 s, 57.9 % of wall time; Slow.on_epoch_end 10.0 s; Slow.on_train_batch_end 4.0 s;"
        " History.on_epoch_end 1 ms"
    )
    many = [("productive", None, 1.0), *(("callbacks", f"C{i}.on_epoch_end", 1.0 + i) for i in range(5))]
    assert account_rows(goodput_of(many))["about"][0].endswith("C3.on_epoch_end 4.0 s; C2.on_epoch_end 3.0 s; 2 more")


def test_hosts_are_averaged_and_phases_are_summed():
    found = goodput_of([("a", "productive", None, 4.0), ("b", "productive", None, 2.0), ("b", "other", None, 2.0)])
    assert account_rows(found).select("account", "until").rows() == [("productive", 3.0), ("other", 4.0)]
    assert "mean of 2 hosts" in charts.accounts(found).to_dict()["title"]["subtitle"][0]


def test_the_picture_has_a_legend_with_times_and_says_its_base():
    chart = charts.accounts(goodput_of(SLOW))
    root = ElementTree.fromstring(render.svg(chart))
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"callbacks · 14.0 s", "productive · 3.6 s", "58 %", "24.2 s wall time"} <= {*texts}
    assert chart.description.startswith("Wall time by account: 24.2 s wall time. callbacks · 14.0 s; ")


def linear(colour):
    part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(light):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ light
    x, y, z = np.cbrt(xyz / [0.9505, 1.0, 1.0888])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


COLOURS = [account.colour for account in schema.ACCOUNTS.values()]
READERS = {  # of Machado, Oliveira and Fernandes, 2009, three rows of three each
    "all cones": [1, 0, 0, 0, 1, 0, 0, 0, 1],
    "no green": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
    "no red": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
}


def seen(colours, reader="all cones"):
    """Return what a reader sees, in L*a*b*."""
    return [lab(np.clip(np.reshape(READERS[reader], (3, 3)) @ linear(colour), 0, 1)) for colour in colours]


@pytest.mark.parametrize("reader", READERS)
def test_every_account_has_a_colour_that_differs_from_the_others(reader):
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen(COLOURS, reader), 2)) > 15


@pytest.mark.parametrize("reader", READERS)
def test_every_phase_has_a_colour_that_differs_from_the_others(reader):
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen(PHASE_COLOURS, reader), 2)) > 15


@pytest.mark.parametrize(("reader", "least"), zip(READERS, (15, 8, 8), strict=True))
def test_no_phase_has_the_colour_of_an_account_or_of_outliers(reader, least):
    others = seen([*COLOURS, NOISE, OTHERS, GREY], reader)
    found = {
        colour: min(np.linalg.norm(phase - other) for other in others)
        for colour, phase in zip(PHASE_COLOURS, seen(PHASE_COLOURS, reader), strict=True)
    }
    assert {colour: distance for colour, distance in found.items() if distance <= least} == {}


def test_the_longest_phases_differ_in_grey():
    lightness = sorted(colour[0] for colour in seen(PHASE_COLOURS[:6]))
    assert min(np.diff(lightness)) > 8


def test_controls_bars_and_curves_have_the_colour_of_text_not_that_of_a_phase_or_an_account():
    taken = {colour.lower() for colour in (*COLOURS, *PHASE_COLOURS)}
    curve = charts.sweep_curve(tp.phases(toy_steps("aaaabbbbcz")))
    ratios = charts.compared(tp.compare(toy_steps("aaabbb"), toy_steps("aaabbb")))
    drawn = [curve.to_json(), ratios.to_json()]
    drawn += [path.read_text(encoding="utf-8") for path in (Path(widgets.__file__).parent / "browser").glob("*.*s")]
    assert len(drawn) > 10
    for text in drawn:
        assert {colour.lower() for colour in re.findall("#[0-9a-fA-F]{6}", text)} & taken == set()


def test_colours_stand_out_from_light_and_dark_pages():
    for colour in (*COLOURS, *PHASE_COLOURS):
        bright = linear(colour) @ [0.2126, 0.7152, 0.0722]
        assert 1.05 / (bright + 0.05) > 1.4, colour
        assert (bright + 0.05) / (0.0056 + 0.05) > 1.5, colour  # #111111


def test_names_cannot_become_markup():
    svg = render.svg(charts.accounts(goodput_of([("productive", None, 1.0), ("callbacks", EVIL, 1.0)])))
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert "\x1b" not in svg
    assert "\u202e" not in svg


def test_a_run_without_time_is_an_error():
    with pytest.raises(TpunbError, match="no time to draw"):
        charts.accounts(goodput_of([]))


def test_accounts_under_half_a_percent_are_other():
    found = goodput_of(
        [
            *(("productive", None, 0.01), ("callbacks", "A.on_epoch_end", 0.09), ("checkpoint save", None, 0.1)),
            *(("evaluation", None, 19.0), ("data loading", None, 0.8)),
        ]
    )
    rows = account_rows(found)
    assert rows["account"].to_list() == ["evaluation", "data loading", "checkpoint save", "productive", "other"]
    assert rows["time"][-1] == "90 ms"
    assert rows["about"][-1] == "other: 90 ms, 0.5 % of wall time; callbacks 90 ms"
    assert rows["until"][-1] == 20.0


def test_one_account_alone_fills_the_bar():
    rows = account_rows(goodput_of([("other", None, 2.0)]))
    assert rows.select("before", "until", "text").rows() == [(0.0, 2.0, "100 %")]
    assert rows.schema["account"] == pl.String
