"""The timeline: its rows by hand on spelled runs, and against a loop; one drawing, live and still."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.charts import render, timeline, timeline_rows
from tpunb.charts.style import PHASE_COLOURS, colours
from tpunb.charts.timeline import live_timeline
from tpunb.charts.timeline_rows import PACE, SHADES, Timeline, layout
from tpunb.frames import Phases, Steps
from tpunb.testing import toy_steps

MS = 10**9
KINDS = ("full", "partial", "none")


def spelled(*rows, windows=()):
    """Steps of (host, start, length, kind) in milliseconds, and the profiler's windows as (host, start, length)."""
    hosts, starts, lengths, seen = zip(*rows, strict=True)
    frame = pl.DataFrame(
        {
            "host": hosts,
            "step": range(len(rows)),
            "kind": ["train"] * len(rows),
            "start_ps": [start * MS for start in starts],
            "dur_ps": [length * MS for length in lengths],
            "device_ps": pl.Series([None] * len(rows), dtype=pl.Int64),
            "idle_ps": pl.Series([None] * len(rows), dtype=pl.Int64),
            "traced": seen,
        }
    )
    rows = [
        (host, i, start * MS, length * MS, 0, 0, 0, 0, None, None) for i, (host, start, length) in enumerate(windows)
    ]
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    return Steps(frame, pl.DataFrame(schema=schema.OPS), windows=windows)


def cut(steps, labels):
    """Phases of given labels, one a row of the sorted frame."""
    return Phases(steps, pl.Series(labels), lambda steps: [], pl.Series([0.0] * len(labels)))


def by_letter(pattern, **more):
    return cut(toy_steps(pattern, **more), [ord(letter) - ord("a") for letter in pattern])


def drawn(phases, within=None, chosen=None):
    return Timeline(phases.steps, within).rows(phases, chosen)


def digits(table, name):
    """The numbers of a column of digits, as a page unpacks them."""
    many = len(table["step" if "step" in table else "after"])
    text = table[name] if len(table[name]) == many else table[name] * many
    return [int(digit, 36) for digit in text]


def stacked(table):
    """The rows that share slices, as a page unpacks them: (slice, rank, seen, low, high)."""
    rows, place, high = [], 0, 0
    columns = (table["after"], table["part"], digits(table, "rank"), digits(table, "traced"))
    for after, part, rank, seen in zip(*columns, strict=True):
        place, low = place + after, 0 if after else high
        high = low + part
        rows.append((place, rank, seen, low, high))
    return rows


@pytest.fixture
def in_slices(monkeypatch):
    """Steps share slices however few they are, 4 to the whole."""
    monkeypatch.setattr(timeline_rows, "_EACH", 0)
    monkeypatch.setattr(timeline_rows, "SLICES", 4)


def test_few_steps_are_drawn_one_by_one():
    rows = drawn(by_letter("aab", traced="fpn"))
    assert rows["timeline"] == {
        "start": [0.0, 0.001, 0.002],
        "end": [0.001, 0.002, 0.004],
        "lane": [0, 0, 0],
        "rank": "001",
        "traced": "012",
        "step": [0, 1, 2],
    }
    names = ["train", "train (slower)", "others", "outliers"]
    assert rows["ranks"] == {"phase": [0, 1, None, -1], "shade": [0, 1, 12, 13], "name": names}
    assert rows["numbers"] == {"at": [0.001, 0.003], "y": [8, 8], "name": ["train", "train (slower)"], "phase": [0, 1]}


def test_each_host_has_its_lane():
    steps = spelled(("h2", 0, 1, "full"), ("h1", 0, 2, "full"), ("h1", 2, 2, "full"))
    rows = drawn(cut(steps, [0, 0, 1]))  # sorted by host and start
    assert rows["timeline"]["lane"] == [0, 0, 1]
    assert rows["timeline"]["end"] == [0.002, 0.004, 0.001]
    assert rows["timeline"]["step"] == [1, 2, 0]
    assert Timeline(steps).hosts == ["h1", "h2"]
    assert rows["numbers"]["y"] == [8, layout(1)["lane"] + 8]


def test_more_than_eight_hosts_are_cut_off():
    steps = spelled(*((f"h{i}", 0, 1, "full") for i in range(10)))
    assert Timeline(steps).hosts == [f"h{i}" for i in range(8)]
    assert drawn(cut(steps, [0] * 10))["timeline"]["lane"] == list(range(8))


def test_a_step_ends_where_the_next_of_its_host_begins():
    steps = spelled(("h", 0, 5, "full"), ("h", 2, 1, "full"), ("h", 6, 1, "full"))
    assert drawn(cut(steps, [0, 1, 0]))["timeline"]["end"] == [0.002, 0.003, 0.007]


def test_a_zoom_cuts_what_its_edges_cross():
    rows = drawn(by_letter("abab"), (0.002, 0.0035))
    assert rows["timeline"]["start"] == [0.002, 0.003]
    assert rows["timeline"]["end"] == [0.003, 0.0035]
    assert rows["timeline"]["step"] == [1, 2]


@pytest.mark.parametrize("within", [(5.0, 6.0), (-2.0, -1.0)])
@pytest.mark.parametrize("each", [600, 0])
def test_a_stretch_without_steps_is_empty(monkeypatch, within, each):
    monkeypatch.setattr(timeline_rows, "_EACH", each)
    phases = by_letter("aabb")
    empty = Timeline(phases.steps, within)
    rows = empty.rows(phases)
    assert not any(column for name in ("timeline", "numbers") for column in rows[name].values())
    assert all(column == [] for column in empty.windows().values())
    assert all(column == [] for column in empty.checkpoints({"a": 0.001}).values())


def test_the_whole_run_holds_its_windows():
    steps = spelled(("h", 2, 1, "full"), windows=[("h", 1, 4), ("h", 9, 1)])
    assert Timeline(steps).whole == (0.0, 0.010)
    windows = Timeline(steps).windows()
    assert (windows["start"], windows["end"]) == ([0.001, 0.009], [0.005, 0.010])
    assert len({*windows["y"]}) == 1
    assert windows["y2"][0] - windows["y"][0] == 8
    assert Timeline(toy_steps("ab")).whole == (0.0, 0.003)


def test_many_windows_fill_their_slices(in_slices):
    steps = spelled(("h", 0, 8, "full"), windows=[("h", 0, 2), ("h", 2, 1), ("h", 6, 1)])
    windows = Timeline(steps).windows()
    assert (windows["start"], windows["end"]) == ([0.0, 0.002, 0.006], [0.002, 0.004, 0.008])
    assert [low - high for low, high in zip(windows["y2"], windows["y"], strict=True)] == [8, 4, 4]


def test_slices_hold_their_phases_the_longest_first(in_slices):
    phases = by_letter("abca")  # 1, 2, 3 and 1 ms: slices of 1.75 ms
    rows = drawn(phases)["timeline"]
    assert phases.frame["phase"].to_list() == [2, 0, 1]
    assert stacked(rows) == [
        (0, 1, 0, 0, 57),
        (0, 2, 0, 57, 100),
        (1, 0, 0, 0, 29),
        (1, 2, 0, 29, 100),
        (2, 0, 0, 0, 100),
        (3, 0, 0, 0, 43),
        (3, 1, 0, 43, 100),
    ]


def test_steps_too_short_to_be_seen_are_not_drawn(in_slices):
    phases = by_letter("aabb")
    rows = drawn(phases, (0.0, 1e6))
    assert rows["timeline"]["after"] == rows["numbers"]["at"] == []


def test_marks_stand_on_every_lane():
    steps = spelled(("h1", 0, 4, "full"), ("h2", 0, 4, "full"))
    marks = Timeline(steps).checkpoints({"a\u202e": 0.001, "far": 9.0})
    assert marks["at"] == [0.001, 0.001]
    assert marks["about"] == ["checkpoint a\ufffd"] * 2
    assert marks["y"][1] - marks["y"][0] == layout(1)["lane"]


def test_more_phases_than_colours_are_others():
    phases = by_letter("aabbccddeeffgghhiijjkkllmmnnoo")
    real = phases.frame["phase"].to_list()  # o, the longest, first
    rows = drawn(phases)
    assert rows["ranks"]["phase"] == [*real[:12], None, -1]
    assert rows["ranks"]["shade"] == [*range(14)]
    shown = {
        real.index(label): SHADES[rows["ranks"]["shade"][rank]]
        for label, rank in zip(phases.labels, digits(rows["timeline"], "rank"), strict=True)
    }
    assert shown == {at: colours(phases)[phase] for at, phase in enumerate(real)}
    assert rows["ranks"]["name"][12:] == ["others", "outliers"]


def test_the_chosen_one_of_the_others_is_drawn_as_itself():
    phases = by_letter("aabbccddeeffgghhiijjkkllmmnnoo")
    plain, rows = drawn(phases), drawn(phases, chosen=0)
    assert rows["ranks"]["phase"] == [*range(14, 2, -1), 0, None, -1]
    assert rows["ranks"]["shade"] == [*range(12), 12, 12, 13]  # in the colour of the others
    assert [rows["ranks"]["phase"][rank] for rank in digits(rows["timeline"], "rank")[:4]] == [0, 0, None, None]
    assert drawn(phases, chosen=14) == drawn(phases, chosen=99) == plain


def test_outliers_have_their_own_shade():
    rows = drawn(cut(toy_steps("aaz"), [0, 0, -1]))
    assert [rows["ranks"]["phase"][rank] for rank in digits(rows["timeline"], "rank")] == [0, 0, -1]
    assert rows["ranks"]["shade"] == [0, 12, 13]
    assert rows["numbers"]["name"] == ["train"]  # accounts explain the others
    assert drawn(cut(toy_steps("az"), [-1, -1]))["timeline"]["rank"] == "1"


def test_a_second_run_wears_the_colours_of_the_first():
    phases = by_letter("aabbcc")
    rows = Timeline(phases.steps).rows(phases, alias={2: (1, "1 → 2"), 0: (0, "0 → 0")})
    assert rows["ranks"]["phase"] == [2, 1, 0, None, -1]
    assert rows["ranks"]["shade"] == [1, 12, 0, 12, 13]
    assert rows["numbers"]["name"] == [
        "0 → 0",
        "train (faster)",
        "1 → 2",
    ]  # of the one that was matched with none its own
    assert Timeline(phases.steps).rows(phases, alias={2: (99, "99 → 2")})["ranks"]["shade"][0] == len(PHASE_COLOURS)


def test_a_name_without_room_is_left_out():
    rows = drawn(cut(toy_steps("a" * 20 + "bb" + "a" * 20), [0] * 20 + [1] * 2 + [0] * 20))
    assert rows["numbers"]["name"] == ["train", "train"]
    assert rows["ranks"]["name"][1].startswith("train ")


STEP = st.tuples(
    st.sampled_from(["h1", "h2"]), st.integers(0, 40), st.integers(0, 9), st.sampled_from(KINDS), st.integers(-1, 7)
)
EDGES = st.none() | st.tuples(st.integers(-5, 30), st.integers(1, 40)).map(lambda one: (one[0] / 1e3, sum(one) / 1e3))


def by_a_loop(steps, labels, ranks, edges):
    """The parts of each slice that steps of each rank took, by how they were seen."""
    taken, slices = {}, timeline_rows.SLICES // len(Timeline(steps).hosts)
    width = (edges[1] - edges[0]) / slices
    rows = list(steps.frame.select("host", "start_ps", "dur_ps", "traced").iter_rows())
    rank = {phase: at for at, phase in enumerate(ranks["phase"])}
    for i, (host, start, length, seen) in enumerate(rows):
        follows = [rows[i + 1][1]] if i + 1 < len(rows) and rows[i + 1][0] == host else []
        start, end = start / 1e12, min([start + length, *follows]) / 1e12
        for at in range(slices):
            low = edges[0] + at * width
            part = (min(end, low + width) - max(start, low)) / width
            if part > 1e-9:  # an end may lie an ulp beyond
                key = Timeline(steps).hosts.index(host) * slices + at, rank.get(labels[i], rank[None])
                taken.setdefault(key, [0, 0, 0])[KINDS.index(seen)] += part
    return taken


@given(st.lists(STEP, min_size=1, max_size=30), EDGES)
@example([("h1", 3, 1, "full", 0)], (0.0, 0.003))
def test_slices_add_up_to_what_a_loop_finds(rows, within):
    steps = spelled(*(row[:4] for row in rows))
    labels = [row[4] for row in sorted(rows, key=lambda row: row[:2])]
    phases = cut(steps, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_rows, "_EACH", 0)
        patch.setattr(timeline_rows, "SLICES", 7)
        told = Timeline(steps, within)
        found = told.rows(phases)
        expected = by_a_loop(steps, labels, found["ranks"], told.edges)
    if "after" not in found["timeline"]:  # no step is there
        assert not expected
        return
    parts = {}
    for place, rank, seen, low, high in stacked(found["timeline"]):
        parts[place, rank] = high - low
        assert expected[place, rank][seen] == pytest.approx(max(expected[place, rank]))  # as most of it was seen
    assert {key for key, kinds in expected.items() if sum(kinds) > 0.011} <= {*parts} <= {*expected}
    assert all(abs(part - 100 * sum(expected[key])) <= 1.2 for key, part in parts.items())
    tops = {place: high for place, *_, high in stacked(found["timeline"])}
    for place, top in tops.items():
        told = sum(sum(kinds) for key, kinds in expected.items() if key[0] == place and key in parts)
        assert abs(top - 100 * told) <= 3


def long_run(hosts, n=112_590, seed=0):
    """A run as long as the longest known, in phases of a few hundred steps."""
    each = n // hosts
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(-1, 9, each // 300 + 1), 300)[:each]
    frames = [
        toy_steps("a", host=f"h{i}")
        .frame.drop("step", "start_ps")
        .join(pl.DataFrame({"step": range(each), "start_ps": np.arange(each) * MS}), how="cross")
        for i in range(hosts)
    ]
    return frames, np.tile(labels, hosts)


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_longest_run_is_100_kb_at_most_and_the_same_in_any_order_of_hosts(hosts):
    frames, labels = long_run(hosts)
    found = []
    for order in (frames, frames[::-1]):
        phases = cut(Steps(pl.concat(order, how="diagonal"), pl.DataFrame(schema=schema.OPS)), labels)
        found.append(drawn(phases))
    assert found[0] == found[1]
    assert len(json.dumps(found[0])) <= 100_000
    assert max(high for *_, high in stacked(found[0]["timeline"])) == 100


@pytest.mark.parametrize("hosts", [1, 4, 8])
def test_phases_that_are_strewn_over_the_longest_run_are_100_kb_at_most(hosts):
    frames, labels = long_run(hosts)
    random = np.random.default_rng(1)
    frame = pl.concat(frames, how="diagonal")
    frame = frame.with_columns(traced=pl.Series([KINDS[i] for i in random.integers(0, 3, len(frame))], dtype=pl.String))
    strewn = random.integers(-1, 9, len(labels))
    assert len(json.dumps(drawn(cut(Steps(frame, pl.DataFrame(schema=schema.OPS)), strewn)))) <= 100_000


def test_the_chart_names_its_tables_and_draws_them():
    names = ["<img src=x onerror=alert(1)>", "b\x1b[31m"]
    spec = render.spec(live_timeline(names))
    assert {param["name"] for param in spec["params"]} >= {"low", "high", "chosen", "brush"}
    tables = {layer["data"]["name"] for layer in spec["layer"]}
    assert {"timeline", "numbers", "windows", "checkpoints"} <= tables
    assert "\x1b" not in json.dumps(spec, ensure_ascii=False)
    picture = render.svg(live_timeline(names))
    assert "<img" not in picture
    assert "&lt;img src=x" in picture


def test_live_and_still_pictures_are_one_drawing():
    still = timeline(by_letter("aabb", traced="fpnf")).to_dict()["layer"]
    live = live_timeline(["h"]).to_dict()["layer"][: len(still)]
    for a, b in zip(still, live, strict=True):
        b["mark"]["clip"] = a["mark"].get("clip")
        assert ({"clip": None, **a["mark"]}, a.get("transform")) == (b["mark"], b.get("transform"))
        looks = [
            {name: encoding[name].get("scale") for name in ("color", "opacity") if name in encoding}
            for encoding in (a["encoding"], b["encoding"])
        ]
        assert looks[0] == looks[1]


def test_the_layout_describes_the_rows_for_the_page():
    assert {"slices", "lane", "top", "height"} <= set(layout(1))
    assert json.loads(json.dumps(layout(2))) == layout(2)


def test_the_lane_of_accounts_has_their_colours_and_marks_name_saves_and_stalls():
    phases = tp.phases(tp.sample("keras_cnn"))
    segments = tp.goodput(phases).segments
    axis = Timeline(phases.steps).axis({}, segments)
    picture = render.svg(timeline(phases, segments))
    for account in ("productive", "program startup", "profiler"):
        assert [*schema.ACCOUNTS].index(account) in axis["accounts"]["code"]
        assert schema.ACCOUNTS[account].colour.lower() in picture.lower()
    assert {*axis["events"]["sign"]} == {"◆", "▼"}
    assert [about for about in axis["events"]["about"] if about.endswith("CheckpointManager.save")]
    assert max(axis["pace"]["height"]) <= PACE[1]
