"""Phases for charts to draw, and what a picture of them says."""

from dataclasses import replace
from xml.etree import ElementTree

import polars as pl

from tpunb import charts
from tpunb.cluster import DBSCAN, OLS, KMeans, OLSPlus
from tpunb.frames import Phases
from tpunb.testing import toy_steps

SWEEPS = {
    "k": pl.DataFrame(
        {
            "k": [1, 2, 3],
            "sse": [9.0, 2.0, 1.0],
            "bic": [-30.0, -12.0, -11.0],
            "by_elbow": [False, True, False],
            "by_log": [False, True, False],
            "by_bic": [False, False, True],
            "chosen": [False, True, False],
        }
    ),
    "eps": pl.DataFrame(
        {
            "low": [0.0, 0.5, 2.0],
            "high": [0.5, 2.0, 8.0],
            "clusters": [4, 2, 1],
            "inside": [0.6, 0.95, 1.0],
            "eps": [None, 1.0, None],
            "chosen": [False, True, False],
        }
    ),
    "min_samples": pl.DataFrame(
        {"min_samples": [5, 30], "noise": [0.0, 0.25], "clusters": [3, 2], "chosen": [False, True]}
    ),
    "threshold": pl.DataFrame({"threshold": [0.5, 0.7, 0.9], "phases": [1, 2, 6], "chosen": [False, True, False]}),
    "ops": pl.DataFrame(
        {"ops": [0.5, 0.9, 1.0], "phases": [1, 2, 5], "noise": [0.0, 0.05, 0.5], "chosen": [False, True, False]}
    ),
    "tree": pl.DataFrame(
        {
            "parent": [None, 0, 0, 2, 2],
            "child": [0, 1, 2, 3, 4],
            "lambda_val": [0.0, 0.25, 0.25, 1.0, 1.0],
            "steps": [100, 60, 38, 36, 1],
            "chosen": [False, True, False, True, False],
        }
    ),
}


def sweep_of(method):
    """The chart of the sweep that a method declares, of any phases."""

    def chart(phases):
        return charts.sweep_curve(replace(phases, method=method()))

    chart.__name__ = method.__name__
    return chart


CURVES = [*map(sweep_of, (KMeans, DBSCAN, OLS, OLSPlus)), charts.dbscan_eps, charts.hdbscan_tree]
ALL = [charts.timeline, charts.coverage, charts.top_ops, *CURVES]


def phases_of(pattern="aaabbb", labels=None, sweeps=SWEEPS, traced=None, **changes):
    steps = replace(toy_steps(pattern, traced=traced), **changes)
    labels = pl.Series(labels or [ord(letter) - ord("a") for letter in pattern], dtype=pl.Int64)
    return Phases(steps, labels, lambda s: [], pl.Series([0.0] * len(pattern)), sweeps)


def rows_of(chart):
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


EVIL = "<script>alert(1)</script>", '<img src=x onerror="alert(1)">\x00\x1b[31m\u202e', "]]>&amp;' --><!--"


def texts_of(chart):
    """What the picture of a chart says, when nothing in it is more than text."""
    html = chart._repr_mimebundle_()["text/html"]
    assert "<script" not in html
    root = ElementTree.fromstring(html)
    (image,) = (element for element in root if element.tag == "img")  # what untrusted notebooks show
    assert image.get("src").startswith("data:image/svg+xml;base64,")
    root.remove(image)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("div", "style", "svg", "g", "path", "rect", "line", "text", "title", "defs", "clipPath", "tspan"),
        *("linearGradient", "stop"),  # of legends
    }
    assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
    return " ".join(root.itertext())
