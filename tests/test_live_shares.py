"""The coverage while it changes."""

import tpunb as tp
from tpunb import pictures
from tpunb.charts.live_shares import live_coverage
from tpunb.testing import toy_steps
from tpunb.widgets import described


def test_it_names_its_table_and_its_signals():
    spec = pictures.spec(live_coverage())
    assert {"name": "phases"} in [layer["data"] for layer in spec["layer"]]
    assert {param["name"]: param["value"] for param in spec["params"]} == {"chosen": None, "top3": 0}
    assert "datasets" not in spec or not any(len(rows) > 1 for rows in spec["datasets"].values())


def test_it_draws_what_the_panel_tells_of_the_phases():
    rows = described.rows(tp.phases(toy_steps("aaabbbc"), tp.KMeans(k=3)))
    table = [
        {
            **{name: row[name] for name in ("name", "colour", "phase")},
            "share": 100 * row["share"],
            "until": 100 * row["until"],
        }
        for row in rows
    ]
    picture = pictures.svg(live_coverage(), {"phases": table})
    assert [row["name"] in picture for row in rows] == [True] * 3
    assert all(row["colour"].lower() in picture.lower() for row in rows)
    assert f"{100 * rows[0]['share']:.1f} %" in picture
