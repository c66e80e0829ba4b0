import re
from dataclasses import FrozenInstanceError, replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb import charts, schema
from tpunb.errors import ProfileNotFound
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.steps import WallClock
from tpunb.profiler.capture import null_run
from tpunb.testing import toy_steps
from tpunb.widgets.summary import Summary

EVIL = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[31mred\u202e")


class Tags(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def summary_of(pattern="aaabbb", *, labels=None, note=None, names=None, name="toy", errors=(), read_events=None):
    steps = toy_steps(pattern)
    if names:
        ops = steps.ops.with_columns(pl.col("op").cast(pl.String).replace(names).cast(schema.NAME))
        steps = Steps(steps.frame, ops, steps.devices, steps.windows, name=name)
    labels = pl.Series(labels or [ord(letter) - ord("a") for letter in pattern])
    phases = Phases(steps, labels, lambda s: [], pl.Series([0.0] * len(pattern)))
    end = steps.windows["dur_ps"][0]
    failed = [("toy", i, end, 0, 1, 0, 0, 0, error, "evenly") for i, error in enumerate(errors, 1)]
    windows = pl.concat([steps.windows, pl.DataFrame(failed, schema=schema.WINDOWS, orient="row")])
    profile = Profile(
        name,
        Path("runs/toy"),
        windows,
        pl.DataFrame(schema=schema.HARDWARE),
        2 * end,
        stored=steps,
        read_events=read_events,
    )
    return Summary(profile, steps, phases, note)


def test_the_headline_is_the_run_in_one_line():
    summary = summary_of()
    assert summary.headline == (
        "2 phases over 6 steps; top 3 cover 100.0 % of step time without waits; explained variance 1.00"
    )
    assert summary_of("a").headline.startswith("1 phase over 1 step;")


def test_a_loop_written_for_the_magic_runs_on_its_result_and_on_the_null_run():
    for tpu in (null_run, summary_of()):
        done = []
        for batch in tpu.batches([3, 4], kind="eval"):
            with tpu.step(7, kind="train") as nothing:
                done.append((batch, nothing))
        assert done == [(3, None), (4, None)]


def test_the_text_is_an_aligned_table():
    assert (
        repr(summary_of(note="the cell raised ValueError: partial capture"))
        == """\
2 phases over 6 steps; top 3 cover 100.0 % of step time without waits; explained variance 1.00
! the cell raised ValueError: partial capture

What to do
  train: The device is idle for 50 % of the phase's step time without a known cause. Try: run more steps per call, \
fetch fewer values on the host. Saves up to 3 ms of 9 ms step time.
  train (faster): The device is idle for 50 % of the phase's step time without a known cause. Try: run more steps per \
call, fetch fewer values on the host. Saves up to 1.5 ms of 9 ms step time.

Phases by share of step time without waits
  Phase           Share (%)  Step  Steps  Traced  CV (%)  Idle (%)  Id
  train                66.7  2 ms      3       3     0.0      50.0   1
  train (faster)       33.3  1 ms      3       3     0.0      50.0   0

Top operations of train, device, 3 steps traced in full
  Operation  % of self time  Self time  Calls
  b2                   50.0     1.5 ms      9
  b1                   33.3       1 ms      6
  b0                   16.7     500 µs      3

Top operations of train, host, 3 steps traced in full
  Operation  % of self time  Self time  Calls
  b_host              100.0     1.5 ms      6

How this was measured
  1 window covers 50 % of run time
  toy · raw windows: none (statistics only) · runs/toy"""
    )


def test_the_bundle_has_html_text_and_the_timeline():
    bundle = summary_of()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", "image/png"}
    page = Tags(bundle["text/html"])
    assert {"table", "svg", "caption", "style"} <= page.tags
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert "train (faster)" in page.text
    assert charts.colours(summary_of().phases)[1] in bundle["text/html"]
    assert not re.search(r"src=|href=|@import|url\(", bundle["text/html"])
    assert set(re.findall(r"https?://[^\"'\s]+", bundle["text/html"])) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_it_follows_the_colours_of_the_page():
    html = summary_of()._repr_html_()
    assert "var(--jp-content-font-color1,currentColor)" in html
    assert not re.search(r"[{;]background(-color)?:(#fff|white)", html)


def test_kept_raw_windows_are_listed():
    assert "raw windows: kept" in repr(summary_of(read_events=lambda: pl.DataFrame(schema=schema.EVENTS)))


WHERE = "raw windows for XProf: plugins/profile in the run folder"


def test_the_folder_of_raw_windows_for_xprof_is_shown_if_there_is_one(tmp_path):
    summary = summary_of(read_events=lambda: pl.DataFrame(schema=schema.EVENTS))
    run, logdir = tmp_path / "run", tmp_path / "traces"
    (run / "plugins" / "profile").mkdir(parents=True)
    logdir.mkdir()
    for source, known in ((run, True), (logdir, False), ("gs://bucket/run", True), ("memory://tpunb/1", False)):
        assert (WHERE in repr(Summary(replace(summary.profile, source=source)))) is known, source


def test_a_run_in_memory_has_no_path():
    profile = replace(summary_of().profile, source="memory://tpunb/0123", name="in memory")
    assert "in memory · raw windows: none (statistics only)\n" in repr(Summary(profile)) + "\n"


def windows(*rows):
    """Windows spelled out: (host, window, watched seconds, error, why), one second after another."""
    columns = {name: [] for name in schema.WINDOWS}
    for host, window, seconds, error, why in rows:
        values = (host, window, window * 10**12, int(seconds * 10**12), 10**12, 1, 1, 1, error, why)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    frame = pl.DataFrame(columns, schema=schema.WINDOWS)
    return Summary(
        Profile("toy", Path("toy"), frame, pl.DataFrame(schema=schema.HARDWARE), 10 * 10**12, overhead=0.0131)
    )


def test_reasons_of_windows_and_overhead_are_one_line():
    why = ["start", "start", "start", "evenly", "new phase", "evenly", "under-sampled"]
    text = repr(windows(*(("a", i, 0.5, None, reason) for i, reason in enumerate(why))))
    assert (
        "\n  7 windows cover 35 % of run time: 3 at the start, 2 evenly spaced, 1 for a new phase,"
        " 1 for under-sampled steps"
        " · cost of windows: 1.3 % of run time (estimated)\n"
    ) in text


def test_a_window_of_two_hosts_counts_once():
    summary = windows(("b", 0, 0.5, None, "start"), ("a", 0, 0.5, None, "start"))
    assert "\n  1 window covers 5 % of run time: 1 at the start · " in repr(summary)
    assert "· 2 hosts: a, b\n" in repr(summary)


def test_unknown_reasons_and_overhead_are_left_out():
    profile = replace(windows(("a", 0, 0.5, None, None)).profile, overhead=None)
    assert "\n  1 window covers 5 % of run time\n" in repr(Summary(profile))
    assert "overhead" not in repr(Summary(profile))


def test_a_small_overhead_is_not_zero():
    for overhead in (0.0, 0.0004):
        profile = replace(windows(("a", 0, 0.5, None, None)).profile, overhead=overhead)
        assert "cost of windows: under 0.1 % of run time (estimated)" in repr(Summary(profile))
    assert "10.0 %" in repr(Summary(replace(profile, overhead=0.1)))


def test_failed_windows_are_counted_by_their_reason():
    summary = summary_of(errors=["deadline exceeded", "refused", "deadline exceeded"])
    for text in (repr(summary), Tags(summary._repr_html_()).text):
        assert "2 of 4 windows failed: deadline exceeded" in text
        assert "1 of 4 windows failed: refused" in text


def test_windows_that_were_given_up_did_not_fail():
    summary = summary_of(errors=["given up: tensorflow was profiling"] * 2)
    assert "! 2 of 3 windows given up: tensorflow was profiling\n" in repr(summary)


def test_failures_are_grouped_by_host_and_reason_without_times():
    away = "b: UNAVAILABLE: connection refused"
    errors = [away, f"{away}; asked again in 1 s", f"{away}; asked again in 30 s"]
    slow = [f"c: no answer yet, {n} s after it was asked" for n in (61, 122)]
    text = repr(
        windows(
            *(("a", i, 0.5, None, "evenly") for i in range(3)),
            *(("b", i, 0, error, "evenly") for i, error in enumerate(errors)),
            *(("c", i, 0, error, "evenly") for i, error in enumerate(slow)),
        )
    )
    assert (
        "! 3 of 3 windows of b failed: UNAVAILABLE: connection refused\n! 2 of 2 windows of c failed: no answer" in text
    )
    assert "3 hosts: a, b, c" in text


def test_many_hosts_and_reasons_are_cut_and_counted():
    rows = [(f"h{i:02d}", 0, 0, f"reason {i}", "start") for i in range(20)]
    text = repr(windows(*rows))
    assert "20 hosts: h00, h01, h02, h03, h04, h05, h06, h07 and 12 more" in text
    assert text.count("failed: reason") == 4
    assert "Window 0 of h00 " in text
    assert "16 more failed for 16 other reasons" in text


def test_a_phase_without_traced_steps_is_marked():
    summary = summary_of("aab")
    frame = summary.steps.frame.with_columns(
        traced=pl.Series(["full", "none", "none"]).cast(summary.steps.frame["traced"].dtype)
    )
    steps = Steps(frame, summary.steps.ops, summary.steps.devices, summary.steps.windows)
    phases = Phases(steps, pl.Series([0, 0, 1]), lambda s: [], pl.Series([0.0, None, None]))
    text = repr(Summary(summary.profile, steps, phases))
    assert re.search(r"train +[\d.]+ +1 ms +2 +1 ", text)
    assert re.search(r"train \(slower\) +[\d.]+ +2 ms +1 +clock only ", text)


def test_without_steps_the_windows_and_the_note_are_shown():
    full = summary_of(errors=["refused"])
    summary = Summary(full.profile, None, None, "no steps: nothing marked them")
    bundle = summary._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    for text in (bundle["text/plain"], Tags(bundle["text/html"]).text):
        assert "1 window covers 50 % of run time" in text
        assert "no steps: nothing marked them" in text
        assert "Window 0" in text
        assert "refused" in text
    assert "6 steps, no phases" in Summary(full.profile, full.steps).headline


def test_no_windows_at_all_is_fine():
    profile = Profile("x", Path("x"), pl.DataFrame(schema=schema.WINDOWS), pl.DataFrame(schema=schema.HARDWARE), 0)
    assert "0 windows cover 0 % of run time" in repr(Summary(profile))
    assert Tags(Summary(profile)._repr_html_()).tags


@pytest.mark.parametrize("evil", EVIL)
def test_names_cannot_become_markup_or_terminal_commands(evil):
    names = {"b0": evil, "b_host": evil}
    summary = summary_of(names=names, name=evil, note=evil, errors=[evil])
    page = Tags(summary._repr_html_())
    assert page.tags.isdisjoint({"script", "img"})
    assert not [name for name in page.attributes if name.startswith("on") or name == "src"]
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", repr(summary))
    if evil.startswith("<"):
        assert evil in page.text


def test_outliers_only_and_unknown_idle_time_draw():
    assert "outliers" in repr(summary_of("aab", labels=[-1, -1, -1]))
    summary = summary_of("ab")
    frame = summary.steps.frame.with_columns(device_ps=pl.lit(None, pl.Int64), idle_ps=pl.lit(None, pl.Int64))
    steps = Steps(frame, summary.steps.ops, windows=summary.steps.windows)
    phases = Phases(steps, pl.Series([0, 1]), lambda s: [], pl.Series([None, None], dtype=pl.Float64))
    assert "Idle" not in repr(Summary(summary.profile, steps, phases))


def test_many_phases_are_cut_and_counted():
    summary = summary_of("a" * 20, labels=list(range(20)))
    assert "8 more" in repr(summary)
    assert "8 more" in Tags(summary._repr_html_()).text


def test_a_summary_is_frozen():
    with pytest.raises(FrozenInstanceError):
        summary_of().note = "new"


MS = 10**9


def clocked(load=()):
    """Six steps of 9 ms in all, then a callback of 10 ms, in a run of 20 ms; (own, all) load by second."""
    steps = summary_of().steps
    spans = pl.DataFrame([("toy", 9 * MS, 10 * MS, "callbacks", EVIL[0])], schema=schema.SPANS, orient="row")
    rows = [("toy", at * 10**12, *shares, 1) for at, shares in enumerate(load)]
    wall = WallClock(20 * MS, complete=True, spans=spans, load=pl.DataFrame(rows, schema=schema.LOAD, orient="row"))
    steps = replace(steps, wall=wall)
    phases = Phases(steps, summary_of().phases.labels, lambda s: [], pl.Series([0.0] * 6))
    return Summary(replace(summary_of().profile, stored=steps, span_ps=20 * MS), steps, phases)


SENTENCE = f"20 ms: 4.5 ms productive (22 %), 10 ms in callbacks: {EVIL[0]}; 4.5 ms of an idle device; 1 ms preparation"


def test_it_begins_with_the_verdict_then_evidence_then_method():
    summary = clocked()
    first, second, *_ = repr(summary).splitlines()
    assert first.startswith("Callbacks took 10 ms of 20 ms (50 % of run time)")
    assert second == SENTENCE
    assert repr(summary).endswith("runs/toy")
    html = summary._repr_html_()
    assert SENTENCE not in html  # the bar has the times
    order = ("Callbacks took", "Where the time went", "Timeline", "<table", "How this was measured")
    places = [*map(html.index, order), html.rindex("2 phases over 6 steps")]  # the picture names them, too
    assert places == sorted(places)
    assert "script" not in Tags(html).tags


def test_below_a_cell_how_phases_were_found_is_folded():
    assert clocked().explorer._frame["folded"]
    assert not tp.explore(clocked().phases)._frame["folded"]


def test_a_run_without_phases_begins_with_its_wall_time_too():
    full = clocked()
    assert repr(Summary(full.profile, full.steps, None, "no phases")).startswith("20 ms: 4.5 ms productive (22 %), ")


def test_a_busy_machine_is_a_note():
    note = "he machine was busy: other programs used 45 % of its processors"
    assert f"! t{note}" in repr(clocked(load=[(0.5, 0.95)] * 3))
    assert f"T{note}" in Tags(clocked(load=[(0.5, 0.95)] * 3)._repr_html_()).text
    assert "busy" not in repr(clocked(load=[(0.5, 0.6)]))


def test_a_summary_of_a_profile_is_saved_as_one_page(tmp_path):
    shown = tp.summary(tp.sample("keras_cnn"), method="ols")
    path = shown.save(tmp_path / "run.html")
    page = path.read_text()
    assert shown._lines[0].split(" (")[0] in page
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert repr(shown) == repr(tp.summary(shown.profile, method=tp.OLS()))
    assert tp.summary(shown.phases)._lines == shown._lines
    with pytest.raises(TypeError, match="run parameter of summary must be the path of a run"):
        tp.summary(3)
    with pytest.raises(ProfileNotFound):
        tp.summary(tmp_path / "none")
