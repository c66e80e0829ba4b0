import re
from dataclasses import FrozenInstanceError, replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from tpunb import charts, schema
from tpunb.frames import Phases, Profile, Steps
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
        name, Path("runs/toy"), windows, schema.empty(schema.HARDWARE), 2 * end, stored=steps, read_events=read_events
    )
    return Summary(profile, steps, phases, note)


def test_the_headline_is_the_run_in_one_line():
    summary = summary_of()
    assert summary.headline == (
        "2 phases over 6 steps; top 3 cover 100 %, homogeneity 1.00, noise 0 % of the time; "
        "observed 50 % of the run in 1 window"
    )
    assert summary_of("a").headline.startswith("1 phase over 1 step;")


def test_the_text_is_an_aligned_table():
    assert (
        repr(summary_of(note="the cell raised ValueError: partial capture"))
        == """\
2 phases over 6 steps; top 3 cover 100 %, homogeneity 1.00, noise 0 % of the time; observed 50 % of the run in 1 window
toy · raw windows: none (statistics only) · runs/toy
! the cell raised ValueError: partial capture

Phases, longest first
  Phase    Marks  Steps  In full   Share  Step (ms)  Spread  Idle
  Phase 1  train      3        3  66.7 %      2.000     0 %  50 %
  Phase 0  train      3        3  33.3 %      1.000     0 %  50 %

Top operations of Phase 1, device
  Operation  Self time     ms  Calls
  b2            50.0 %  1.500      9
  b1            33.3 %  1.000      6
  b0            16.7 %  0.500      3

Top operations of Phase 1, host
  Operation  Self time     ms  Calls
  b_host       100.0 %  1.500      6

What would save time, at most
  Phase 1 (train, 66.7 % of the run): the device idles 50 % of its time, and no known wait explains it: up to 33.3 % \
of the run. Try: more steps a call (Keras' steps_per_execution, a lax.scan), fewer values fetched by the host.
  Phase 0 (train, 33.3 % of the run): the device idles 50 % of its time, and no known wait explains it: up to 16.7 % \
of the run. Try: more steps a call (Keras' steps_per_execution, a lax.scan), fewer values fetched by the host."""
    )


def test_the_bundle_has_html_text_and_the_ribbon():
    bundle = summary_of()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", "image/png"}
    page = Tags(bundle["text/html"])
    assert {"table", "svg", "caption", "style"} <= page.tags
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert "Phase 1" in page.text
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


def test_kept_raw_windows_are_told():
    assert "raw windows: kept" in repr(summary_of(read_events=lambda: schema.empty(schema.EVENTS)))


WHERE = ", for XProf: plugins/profile of the run folder"


def test_where_xprof_finds_the_raw_windows_is_told_where_it_does(tmp_path):
    summary = summary_of(read_events=lambda: schema.empty(schema.EVENTS))
    run, logdir = tmp_path / "run", tmp_path / "traces"
    (run / "plugins" / "profile").mkdir(parents=True)
    logdir.mkdir()
    for source, said in ((run, True), (logdir, False), ("gs://bucket/run", True), ("memory://tpunb/1", False)):
        assert (WHERE in repr(Summary(replace(summary.profile, source=source)))) is said, source


def test_a_run_in_memory_has_no_place():
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
    return Summary(Profile("toy", Path("toy"), frame, schema.empty(schema.HARDWARE), 10 * 10**12, overhead=0.0131))


def test_why_windows_were_taken_and_what_it_cost_is_one_line():
    why = ["start", "start", "start", "evenly", "new phase", "evenly", "under-sampled"]
    text = repr(windows(*(("a", i, 0.5, None, reason) for i, reason in enumerate(why))))
    assert (
        "\nwindows: 3 at the start, 2 evenly, 1 for a new phase, 1 for steps hardly seen yet"
        " · watching slowed it by an estimated 1.3 %\n"
    ) in text


def test_a_window_of_two_hosts_was_asked_for_once():
    summary = windows(("b", 0, 0.5, None, "start"), ("a", 0, 0.5, None, "start"))
    assert "observed 5 % of the run in 1 window" in summary.headline
    assert "windows: 1 at the start ·" in repr(summary)
    assert "· 2 hosts: a, b\n" in repr(summary)


def test_what_is_not_known_of_windows_is_not_said():
    profile = replace(windows(("a", 0, 0.5, None, None)).profile, overhead=None)
    assert "windows: " not in repr(Summary(profile)).replace("raw windows: ", "")
    assert "slowed" not in repr(Summary(profile))


def test_a_slow_down_too_small_to_tell_is_not_none():
    for overhead in (0.0, 0.0004):
        profile = replace(windows(("a", 0, 0.5, None, None)).profile, overhead=overhead)
        assert "watching slowed it by an estimated 0.1 % at most" in repr(Summary(profile))
    assert "10.0 %" in repr(Summary(replace(profile, overhead=0.1)))


def test_failed_windows_are_counted_by_their_reason():
    summary = summary_of(errors=["deadline exceeded", "refused", "deadline exceeded"])
    for text in (repr(summary), Tags(summary._repr_html_()).text):
        assert "2 of 4 windows failed: deadline exceeded" in text
        assert "1 of 4 windows failed: refused" in text


def test_windows_that_were_given_up_did_not_fail():
    summary = summary_of(errors=["given up: tensorflow was profiling"] * 2)
    assert "! 2 of 3 windows given up: tensorflow was profiling\n" in repr(summary)


def test_hosts_that_failed_are_told_by_name_and_moments_do_not_part_reasons():
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
    assert "Profile 0 of h00 " in text
    assert "16 more failed for 16 other reasons" in text


def test_a_phase_known_by_the_clock_alone_is_marked():
    summary = summary_of("aab")
    frame = summary.steps.frame.with_columns(
        seen=pl.Series(["full", "tick", "tick"]).cast(summary.steps.frame["seen"].dtype)
    )
    steps = Steps(frame, summary.steps.ops, summary.steps.devices, summary.steps.windows)
    phases = Phases(steps, pl.Series([0, 0, 1]), lambda s: [], pl.Series([0.0, None, None]))
    text = repr(Summary(summary.profile, steps, phases))
    assert re.search(r"Phase 0 +train +2 +1 ", text)
    assert re.search(r"Phase 1 +train +1 +clock alone ", text)


def test_without_steps_the_windows_and_the_note_are_shown():
    full = summary_of(errors=["refused"])
    summary = Summary(full.profile, None, None, "no steps: nothing marked them")
    bundle = summary._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    for text in (bundle["text/plain"], Tags(bundle["text/html"]).text):
        assert "no steps; observed 50 % of the run in 1 window" in text
        assert "no steps: nothing marked them" in text
        assert "Profile 0" in text
        assert "refused" in text
    assert "6 steps, no phases" in Summary(full.profile, full.steps).headline


def test_no_windows_at_all_is_fine():
    profile = Profile("x", Path("x"), schema.empty(schema.WINDOWS), schema.empty(schema.HARDWARE), 0)
    assert "observed 0 % of the run in 0 windows" in repr(Summary(profile))
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


def test_noise_only_and_unknown_idle_time_draw():
    assert "Noise" in repr(summary_of("aab", labels=[-1, -1, -1]))
    summary = summary_of("ab")
    frame = summary.steps.frame.with_columns(device_ps=pl.lit(None, pl.Int64), idle_ps=pl.lit(None, pl.Int64))
    steps = Steps(frame, summary.steps.ops, windows=summary.steps.windows)
    phases = Phases(steps, pl.Series([0, 1]), lambda s: [], pl.Series([None, None], dtype=pl.Float64))
    assert re.search(r"Phase 1 .*–$", repr(Summary(summary.profile, steps, phases)), re.M)


def test_many_phases_are_cut_and_counted():
    summary = summary_of("a" * 20, labels=list(range(20)))
    assert "8 more" in repr(summary)
    assert "8 more" in Tags(summary._repr_html_()).text


def test_a_summary_is_frozen():
    with pytest.raises(FrozenInstanceError):
        summary_of().note = "new"
