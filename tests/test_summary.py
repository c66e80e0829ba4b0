import re
from dataclasses import FrozenInstanceError
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
    failed = [("toy", i, end, 0, 1, 0, 0, 0, error) for i, error in enumerate(errors, 1)]
    windows = pl.concat([steps.windows, pl.DataFrame(failed, schema=schema.WINDOWS, orient="row")])
    profile = Profile(
        name, Path("runs/toy"), windows, schema.empty(schema.HARDWARE), 2 * end, stored=steps, read_events=read_events
    )
    return Summary(profile, steps, phases, note)


def test_the_headline_is_the_run_in_one_line():
    summary = summary_of()
    assert summary.headline == "2 phases over 6 steps; top 3 cover 100 %; observed 50 % of the run in 1 window"
    assert summary_of("a").headline.startswith("1 phase over 1 step;")


def test_the_text_is_an_aligned_table():
    assert (
        repr(summary_of(note="the cell raised ValueError: partial capture"))
        == """\
2 phases over 6 steps; top 3 cover 100 %; observed 50 % of the run in 1 window
toy · raw windows: none (statistics only) · runs/toy
! the cell raised ValueError: partial capture

Phases, longest first
  Phase    Marks  Steps   Share  Step (ms)  Idle
  Phase 1  train      3  66.7 %      2.000  50 %
  Phase 0  train      3  33.3 %      1.000  50 %

Top operations of Phase 1, device
  Operation  Self time     ms  Calls
  b2            50.0 %  1.500      9
  b1            33.3 %  1.000      6
  b0            16.7 %  0.500      3

Top operations of Phase 1, host
  Operation  Self time     ms  Calls
  b_host       100.0 %  1.500      6"""
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


def test_failed_windows_are_counted_and_the_first_reason_shown():
    summary = summary_of(errors=["deadline exceeded", "refused"])
    said = "2 of 3 windows failed; the first: deadline exceeded"
    assert said in repr(summary)
    assert said in Tags(summary._repr_html_()).text


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
