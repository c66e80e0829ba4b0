"""The raw events around a typical step of a phase, as a trace that any viewer opens."""

import gzip
import json
from dataclasses import replace

import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.errors import TpunbError
from tpunb.frames import Profile
from tpunb.testing import toy_events, toy_steps

HOST, CHIP = "/host:CPU", "/device:TPU:0"


def phases_of(*durs, kept=None, labels=None, **more):
    """Phases of steps of some durations in microseconds, 100 µs apart, with one operation each."""
    rows = []
    for step, dur in enumerate(durs):
        rows += [(HOST, "python", "train", 100 * step, dur, step), (CHIP, "XLA Ops", f"dot.{step}", 100 * step + 1, 5)]
    events = toy_events(*rows)
    steps = tp.steps(profile_of(events, **more))
    if kept is not None:
        raw = events.filter(pl.col("name").cast(pl.String).is_in(kept))
        steps = replace(steps, read_events=lambda: raw)
    return tp.phases(steps, lambda _: labels or [0] * len(durs))


def profile_of(events, **more):
    windows = more.pop("windows", pl.DataFrame(schema=schema.WINDOWS))
    hardware = pl.DataFrame(schema=schema.HARDWARE)
    return Profile("toy", more.pop("source", "toy"), windows, hardware, 10**9, read_events=lambda: events, **more)


def names(path):
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [event["name"] for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]


def test_the_representative_step_of_the_longest_phase_is_written_with_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = tp.analysis.open_trace(phases_of(40, 50, 60, 55, 99))
    assert (found.step, found.dur_ps, found.host) == (2, 60_000_000, "toy")
    assert found.path.name == "train-step-2.trace.json.gz"
    assert names(found.path) == ["train", "train", "dot.2", "train", "dot.3"]
    assert repr(found).splitlines() == [
        "step 2 of train (60 µs) is in train-step-2.trace.json.gz",
        "Perfetto: open https://ui.perfetto.dev and drop the file there",
    ]


def test_a_step_whose_raw_events_were_not_kept_gives_way_to_the_next_in_length(tmp_path):
    found = tp.analysis.open_trace(phases_of(40, 50, 60, 55, 99, kept=["dot.1", "dot.4"]), path=tmp_path / "t.json")
    assert found.step == 1
    assert names(found.path) == ["dot.1"]
    kept_of_other = phases_of(40, 50, 60, 55, kept=["dot.0"], labels=[0, 0, 1, 1])
    with pytest.raises(TpunbError, match=r"toy kept no raw events of a step of phase 1, .*\n?.*keep='all'"):
        tp.analysis.open_trace(kept_of_other, 1)


def test_a_run_of_statistics_has_no_trace():
    with pytest.raises(TpunbError, match="toy holds no raw events: its capture kept statistics only"):
        tp.analysis.open_trace(tp.phases(toy_steps("aab")))


def test_xprof_opens_a_run_folder_at_the_window_of_the_step(tmp_path):
    (tmp_path / "plugins" / "profile" / "00002").mkdir(parents=True)
    us = 10**6
    rows = [{"host": "toy", "window": n, "start_ps": 100 * n * us, "dur_ps": 100 * us} for n in range(4)]
    windows = pl.DataFrame([{name: row.get(name) for name in schema.WINDOWS} for row in rows], schema=schema.WINDOWS)
    found = tp.analysis.open_trace(
        phases_of(40, 50, 60, 55, 99, source=tmp_path, windows=windows), path=tmp_path / "t.json"
    )
    assert (found.step, found.window) == (2, 2)
    assert repr(found).splitlines()[-1] == f"XProf: tensorboard --logdir {tmp_path}, then choose 00002"


def test_xprof_opens_the_folder_above_the_plugins(tmp_path):
    capture = tmp_path / "log" / "plugins" / "profile" / "2026" / "host.xplane.pb"
    assert tp.analysis.open_trace(phases_of(5, 5, source=capture), path=tmp_path / "t.json").logdir == str(
        tmp_path / "log"
    )
    assert (
        tp.analysis.open_trace(phases_of(5, 5, source=tmp_path / "host.xplane.pb"), path=tmp_path / "t.json").logdir
        is None
    )
