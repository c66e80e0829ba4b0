"""Positions in data with large buffers: these are saved once in a while, and the batches since are drawn again."""

import json
from itertools import count

import numpy as np
import pytest
from exact_fits import BATCH, resumes, rows, sampled, saved, trained, twice
from optional import lazy

from tpunb.checkpoint.resume import resume
from tpunb.tfdata.graph import graph_or_none
from tpunb.tfdata.restored import buffered_bytes
from tpunb.training import positions

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live


class Clock:
    """A clock that stands still, or proceeds by a second each time that it is read."""

    def __init__(self, stands):
        self.ticks = None if stands else count()

    def monotonic(self):
        return 0 if self.ticks is None else next(self.ticks)


@pytest.fixture(autouse=True)
def every_buffer_is_large(monkeypatch):
    monkeypatch.setattr(positions, "LARGE", 0)
    monkeypatch.setattr(positions, "_SHARE", 0.25)


def files():
    return tf.data.Dataset.range(8).shuffle(8).interleave(lambda at: rows().skip(4 * at).take(4), cycle_length=2)


CELLS = {
    "seeded": lambda: trained(rows().shuffle(9, seed=3).batch(BATCH).prefetch(2)),
    "unseeded": lambda: trained(rows().shuffle(9).map(twice, num_parallel_calls=2).batch(BATCH)),
    "repeated": lambda: trained(rows().shuffle(9).repeat().batch(BATCH), steps_per_epoch=7),
    "below a shuffle": lambda: trained(files().shuffle(5, seed=1).batch(BATCH)),
    "cached": lambda: trained(rows().cache().shuffle(9).batch(BATCH)),
    "unknown length": lambda: trained(rows(64).filter(lambda x, y: x[0] > 0).shuffle(9).batch(BATCH)),
    "sampled": lambda: trained(sampled().unbatch().shuffle(9).batch(BATCH), epochs=2),
    "looked at before": lambda: trained(looked()),
}


def looked():
    data = rows().shuffle(9, seed=3).batch(BATCH)
    for _ in data.take(1):
        pass
    next(iter(data))
    return data


@pytest.mark.parametrize("stands", [True, False], ids=["drawn again", "saved sometimes"])
@pytest.mark.parametrize("name", CELLS)
def test_data_with_large_buffers_resume_exactly(tmp_path, monkeypatch, name, stands):
    monkeypatch.setattr(positions, "time", Clock(stands))
    resumes(tmp_path, CELLS[name], every=2)


def contents(folder, every=2):
    """Return, by step, the batches to draw again, and the file with the buffers by its number on the disk."""
    found = {}
    for one in sorted(folder.glob("tpunb-*"), key=lambda path: int(path.name.split("-")[1])):
        about = json.loads((one / "tpunb.json").read_text())
        if about["live"]:
            data = [path.stat().st_ino for path in one.glob("iterator.data*")]
            found[about["step"]] = (about["position"]["redraw"], *data)
    return found


def test_buffers_are_written_once_and_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "time", Clock(stands=False))
    monkeypatch.setattr(positions, "_RATE", 64.0)  # 9 x 4 x 4 bytes are expected to take 2.25 seconds
    saved(tmp_path, lambda: trained(rows(96).shuffle(9, seed=3).batch(BATCH), epochs=1), every=1)
    found = contents(tmp_path)
    redraws = [redraw for redraw, *_ in found.values()]
    assert redraws == [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert not any(found[step][1:] for step in range(1, 9))
    assert found[9][1:] == found[10][1:] == found[12][1:] != found[13][1:] == found[14][1:]


def test_a_resumed_fit_continues_from_the_same_buffers(tmp_path, monkeypatch):
    def cell():
        return trained(rows(96).shuffle(9, seed=3).batch(BATCH), epochs=1)

    monkeypatch.setattr(positions, "time", Clock(stands=False))
    monkeypatch.setattr(positions, "_RATE", 64.0)
    losses, *_ = saved(tmp_path / "a", cell, every=1)
    monkeypatch.setattr(positions, "time", Clock(stands=True))
    first = next(step for step, (redraw, *data) in contents(tmp_path / "a").items() if data and redraw)
    with resume(tmp_path / "a" / f"tpunb-{first}"):
        later, *_ = saved(tmp_path / "b", cell, every=1)
    assert later == losses[first:]
    assert contents(tmp_path / "b")[first + 1][1:] == contents(tmp_path / "a")[first][1:]
    with resume(tmp_path / "b" / f"tpunb-{first + 1}"):
        assert cell()[0] == losses[first + 1 :]


def test_missing_buffers_are_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "time", Clock(stands=True))

    def remove(batch, logs):
        for path in tmp_path.glob("*/iterator.*"):
            path.unlink()

    def cell():
        removing = keras.callbacks.LambdaCallback(on_train_batch_end=remove)
        return trained(rows(16).shuffle(9, seed=3).batch(BATCH), epochs=1, callbacks=[removing])

    monkeypatch.setattr(positions, "_RATE", np.inf)  # buffers are written at once
    saved(tmp_path, cell, every=1)
    about = json.loads((tmp_path / "tpunb-3/tpunb.json").read_text())
    assert about["position"]["redraw"] == 0


class Hand:
    """A clock that is moved by hand: writing a position takes 2 seconds, a step 50."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        return self.now

    def slowly(self, write):
        def written(*arguments):
            self.now += 2
            return write(*arguments)

        return written

    def step(self, batch, logs):
        self.now += 50


def test_a_position_that_is_written_slowly_is_not_written_each_time(tmp_path, monkeypatch):
    """As where TensorFlow waits for the calls of a parallel map that are in flight."""
    hand = Hand()
    monkeypatch.setattr(positions, "LARGE", 10**9)
    monkeypatch.setattr(positions, "_SHARE", 0.01)
    monkeypatch.setattr(positions, "time", hand)
    monkeypatch.setattr(positions.position, "write", hand.slowly(positions.position.write))

    def cell():
        steps = keras.callbacks.LambdaCallback(on_train_batch_end=hand.step)
        return trained(rows().map(twice, num_parallel_calls=2).batch(BATCH), epochs=2, callbacks=[steps])

    losses, *_ = saved(tmp_path, cell, every=1)
    found = contents(tmp_path)
    assert [redraw for redraw, *_ in found.values()] == [0, 1, 2, 3, 0, 1, 2, 1, 2, 3, 0, 1, 2, 3]
    assert found[1][1:] == found[4][1:] != found[5][1:] == found[7][1:]
    assert [step for step in range(9, 12) if found[step][1:]] == [], "drawn again from the begin of the pass"
    for step in (3, 6, 10):
        with resume(tmp_path / f"tpunb-{step}"):
            later, *_ = cell()
        assert later == losses[step:]


def test_a_position_that_is_written_fast_is_written_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "LARGE", 10**9)
    monkeypatch.setattr(positions, "time", Clock(stands=True))
    saved(tmp_path, lambda: trained(rows().batch(BATCH), epochs=1), every=1)
    assert {redraw for redraw, *_ in contents(tmp_path).values()} == {0}


def test_bytes_in_buffers_are_those_of_shuffles():
    def size(data):
        return buffered_bytes(graph_or_none(data))

    assert size(rows()) == 0
    assert size(rows().shuffle(10)) == 10 * (3 + 1) * 4
    assert size(rows().shuffle(10).batch(2, drop_remainder=True).shuffle(3)) == 10 * 16 + 3 * 2 * 16
    assert size(rows().batch(2).shuffle(3)) == 0, "batches may be smaller"
