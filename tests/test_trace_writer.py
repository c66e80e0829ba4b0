import gzip
import json
from dataclasses import replace

import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.frames import Phases, Steps
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps

WINDOWS = {name: dtype for name, dtype in schema.WINDOWS.items() if name != "reason"}


def phases_of(pattern, labels=None, **changes):
    steps = replace(toy_steps(pattern), **changes)
    labels = pl.Series(labels or [ord(letter) - ord("a") for letter in pattern], dtype=pl.Int64)
    return Phases(steps, labels, lambda s: [], pl.Series([0.0] * len(pattern)))


def windows_of(*rows):
    return pl.DataFrame(rows, schema=WINDOWS, orient="row")


def events_of(path, thread=None):
    events = json.loads(path.read_text())["traceEvents"]
    tids = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    return [e for e in events if e["ph"] == "X" and (thread is None or e["tid"] == tids[thread])]


def test_runs_of_a_phase_become_one_event_each_in_microseconds(tmp_path):
    path = phases_of("aabbba").to_chrome_trace(tmp_path / "new" / "trace.json")
    found = [(e["name"], e["ts"], e["dur"]) for e in events_of(path, "Phase breakdown")]
    assert found == [("train (faster)", 0, 2000), ("train", 2000, 6000), ("train (faster)", 8000, 1000)]


def test_an_event_of_a_phase_describes_it(tmp_path):
    path = phases_of("aaab").to_chrome_trace(tmp_path / "trace.json")
    args = events_of(path, "Phase breakdown")[0]["args"]
    assert (args["phase"], args["first step"], args["last step"], args["steps"]) == (0, 0, 2, 3)
    assert args["share of step time without waits (%)"] == 60
    assert args["median step time (ms)"] == 1
    assert args["top host operations"] == ["a_host (100.0 %)"]
    assert args["top device operations"] == ["a2 (50.0 %)", "a1 (33.3 %)", "a0 (16.7 %)"]


def test_windows_have_steps_or_an_error(tmp_path):
    windows = windows_of(
        ("toy", 0, 0, 2_000_000_000, 1, 10, 20, 2, None), ("toy", 1, 3_000_000_000, 0, 1, 0, 0, 0, "deadline")
    )
    path = phases_of("aab", windows=windows).to_chrome_trace(tmp_path / "trace.json")
    first, second = events_of(path, "Profile breakdown")
    assert (first["name"], first["ts"], first["dur"]) == ("Profile 0", 0, 2000)
    assert first["args"] == {"bytes": 10, "events": 20, "steps traced": 2}
    assert (second["ts"], second["dur"], second["args"]) == (3000, 0, {"error": "deadline"})


def test_a_host_is_a_process_with_two_named_threads(tmp_path):
    one, two = toy_steps("ab", host="b-host"), toy_steps("ab", host="a-host")
    steps = replace(one, frame=pl.concat([one.frame, two.frame]), ops=pl.concat([one.ops, two.ops]))
    phases = Phases(steps, pl.Series([0, 1, 0, 1]), lambda s: [], pl.Series([0.0] * 4))
    events = json.loads(phases.to_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"} == {"a-host": 1, "b-host": 2}
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1] == [
        "Profile breakdown",
        "Phase breakdown",
    ]
    assert [e["pid"] for e in events if e["name"] == "train"] == [1, 2]


def test_events_of_a_thread_are_sorted_and_never_overlap(tmp_path):
    steps = toy_steps("ababab")
    late = steps.frame.with_columns(dur_ps=pl.col("dur_ps") + 700_000_001)  # each outlasts the start of the next
    windows = windows_of(*[("toy", i, i * 1_000, 1_500, 1, 1, 1, 1, None) for i in range(4)])
    path = phases_of("ababab", frame=late, windows=windows).to_chrome_trace(tmp_path / "trace.json")
    for thread in ("Phase breakdown", "Profile breakdown"):
        events = events_of(path, thread)
        ends = [round(1000 * (e["ts"] + e["dur"])) for e in events]
        starts = [round(1000 * e["ts"]) for e in events]
        assert starts == sorted(starts)
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert len(events_of(path, "Phase breakdown")) == 6


def test_label_minus_one_is_called_outliers_and_no_number_is_nan(tmp_path, monkeypatch):
    phases = phases_of("aab", [0, 0, -1])
    top = phases.top().with_columns(share=pl.lit(float("nan")))
    monkeypatch.setattr(Phases, "top", lambda self, n: top)
    path = phases.to_chrome_trace(tmp_path / "t.json")
    assert events_of(path)[-1]["name"] == "outliers"
    assert "NaN" not in path.read_text()


def test_a_phase_names_its_nearest_checkpoint(tmp_path):
    path = phases_of("aaabbb").to_chrome_trace(tmp_path / "t.json", {"ckpt/1": 1, "ckpt/9": 9})
    named = [event["args"].get("nearest checkpoint") for event in events_of(path, "Phase breakdown")]
    assert named == ["ckpt/1 (step 1)", "ckpt/1 (step 1)"]  # 3 is nearer to 1 than 5 to 9
    path = phases_of("aaabbb").to_chrome_trace(tmp_path / "t.json", [1, 7])
    named = [event["args"].get("nearest checkpoint") for event in events_of(path, "Phase breakdown")]
    assert named == ["step 1 (step 1)", "step 1 (step 1)"]  # of two as near the earlier
    path = phases_of("aaabbb").to_chrome_trace(tmp_path / "t.json")
    assert "nearest checkpoint" not in path.read_text()
    with pytest.raises(TypeError, match="checkpoints parameter of to_chrome_trace"):
        phases_of("ab").to_chrome_trace(tmp_path / "t.json", 3)


def test_a_trace_ending_in_gz_is_gzipped_and_no_scrap_stays(tmp_path):
    phases = phases_of("ab")
    plain, packed = (phases.to_chrome_trace(tmp_path / name) for name in ("t.json", "t.json.gz"))
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json", "t.json.gz"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text("old")

    def fail(self, other):
        raise OSError("disk full")

    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        phases_of("ab").to_chrome_trace(path)
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    assert path.read_text() == "old"


def test_no_steps_and_no_windows_still_make_a_trace(tmp_path):
    steps = Steps(pl.DataFrame(schema=schema.STEPS), pl.DataFrame(schema=schema.OPS))
    phases = Phases(steps, pl.Series([], dtype=pl.Int64), lambda s: [], pl.Series([], dtype=pl.Float64))
    assert events_of(phases.to_chrome_trace(tmp_path / "t.json")) == []


def test_accounts_that_are_given_are_a_track(tmp_path):
    callback = [("toy", 9_000_000_000, 4_000_000_000, "callbacks", "Slow.on_epoch_end\x1b")]
    spans = pl.DataFrame(callback, schema=schema.SPANS, orient="row")
    phases = phases_of("aaabbb", wall=WallClock(15_000_000_000, complete=True, spans=spans))
    steps = replace(phases.steps, devices=phases.steps.devices.clear())
    accounts = tp.goodput(replace(phases, steps=steps)).segments
    events = events_of(phases.to_chrome_trace(tmp_path / "trace.json", accounts=accounts), "accounts")
    assert [(e["name"], e["ts"], e["dur"]) for e in events] == [
        ("productive", 0, 9000),
        ("callbacks", 9000, 4000),
        ("preparation", 13000, 2000),
    ]
    assert events[0]["args"] == {"detail": None, "first step": 0, "last step": 5}
    assert events[1]["args"] == {"detail": "Slow.on_epoch_end\ufffd", "first step": None, "last step": None}
    names = json.loads(phases_of("ab").to_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    assert "accounts" not in [e["args"].get("name") for e in names]


def test_a_top_operation_names_its_layer_and_source_line(tmp_path, monkeypatch):
    phases = phases_of("aab")
    top = phases.top().with_columns(layer=pl.lit("dense"), source=pl.lit("model.py:7"))
    monkeypatch.setattr(Phases, "top", lambda self, n: top)
    path = phases.to_chrome_trace(tmp_path / "t.json")
    assert "a2 (50.0 %, dense, model.py:7)" in events_of(path, "Phase breakdown")[0]["args"]["top device operations"]
