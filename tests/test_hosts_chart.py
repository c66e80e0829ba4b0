"""The chart of hosts by step, and the explorer of a job of many hosts."""

import json
from dataclasses import replace

import numpy as np
import pod_tables
import pytest
from pod_jobs import TWO, job, simulated
from simulate.pod import Fault, pod

import tpunb as tp
from tpunb import charts
from tpunb.charts import render
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps
from tpunb.widgets import exports

EVIL = "<script>alert(1)</script>\x1b\u202e"


def rows_of(chart, layer):
    spec = chart.to_dict()
    return spec["datasets"][spec["layer"][layer].get("data", spec.get("data"))["name"]]


def test_cells_are_how_late_a_host_is_in_its_cause():
    arrivals = np.full((6, 1, 8), 90)
    arrivals[1::2, 0, 3] = 140  # of 100 and 150 us; half of the steps
    found = tp.hosts(job(arrivals))
    chart = charts.hosts(found)
    cells = [(row["label"], row["first"], row["last"], row["until"], row["late"]) for row in rows_of(chart, 0)]
    assert cells == [("h3", step, step, step + 1, 0.4) for step in (1, 3, 5)]  # 50 us of a mean step of 125 us
    assert {row["cause"] for row in rows_of(chart, 0)} == {"unknown"}
    facts = {row["label"]: row["fact"] for row in rows_of(chart, 1)}
    assert facts["h3"] == "20.0 % · unknown · every 2 steps"
    assert facts["h0"] == "0.0 %"
    assert chart.to_dict()["title"]["subtitle"] == [
        "8 hosts, 8 shown; 1 straggler, without which the job would gain 20.0 % of step time",
        "right: gain if replaced, of step time",
    ]
    assert charts.hosts(found).to_dict() == chart.to_dict()


def test_a_thousand_hosts_in_five_hundred_steps_are_few_cells():
    faults = [Fault("slow chip", tuple(range(40)), 0.2), Fault("pause", (77,), 0.2)]
    _, found = simulated(*faults, hosts=1000, steps=500)
    chart = charts.hosts(found)
    assert len(json.dumps(chart.to_dict())) < 1_000_000
    assert len(rows_of(chart, 1)) == 24
    assert max(row["last"] for row in rows_of(chart, 0)) == 499
    assert "1,000 hosts, 24 shown; 41 stragglers" in chart.to_dict()["title"]["subtitle"][0]


def test_names_of_hosts_are_text_and_the_chart_draws_itself():
    found = tp.hosts(job(np.where(np.arange(8) == 0, 125, np.full((5, 2, 8), 100)), names=[EVIL, *"abcdefg"]))
    chart = charts.hosts(found)
    assert "\x1b" not in json.dumps(chart.to_dict(), ensure_ascii=False)
    assert render.png(chart)[:4] == b"\x89PNG"
    svg = render.svg(chart)
    assert "<script" not in svg
    assert "pause" not in svg


def test_what_is_no_job_is_refused():
    with pytest.raises(TypeError, match="found parameter of hosts must be Hosts"):
        charts.hosts(toy_steps())
    with pytest.raises(TpunbError, match="no host waits for another") as caught:
        charts.hosts(tp.hosts(toy_steps()))
    assert caught.value.hint == "load the profiles of all hosts of the job"


def test_the_explorer_of_a_job_shows_its_hosts_below_one_lane():
    tables = pod_tables.pod_tables(pod(TWO, hosts=20, steps=6, faults=[Fault("pause", (3,), 0.3)]))
    steps = replace(toy_steps("aaabbb"), by_host=tables)
    view = tp.explore(steps)
    hosts = view.state.frame()["hosts"]
    assert "20 hosts, 10 shown; 1 straggler" in hosts["title"]["subtitle"][0]
    one = tp.explore(toy_steps("aaabbb"))
    assert view.state.frame()["timeline"]["height"] == one.state.frame()["timeline"]["height"]
    page = exports.page(view.state).decode()
    assert "Hosts that others wait for" in page
    assert "Hosts that others wait for" in exports.static_html(view.state)


@pytest.mark.parametrize("steps", [toy_steps("aab"), replace(toy_steps("aab"), by_host=None)])
def test_the_explorer_of_one_host_has_no_such_chart(steps):
    assert tp.explore(steps).state.hosts is None
