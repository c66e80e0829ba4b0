"""Events of libraries: what is added is what a run folder and its journal hold, at any rate, from any thread."""

import gc
import io
import signal
import subprocess
import sys
import time
from threading import Thread
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from capture_loops import until
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

import tpunb as tp
from tpunb import schema, signals
from tpunb.instrument import events as events_module
from tpunb.instrument.events import MOST_A_SECOND, EventLog
from tpunb.instrument.sink import Signature, What
from tpunb.io import run_folder
from tpunb.io.run_folder import LATEST_EVENTS
from tpunb.io.run_writer import RunWriter
from tpunb.training.program import user_frame

keras, jax, torch = map(lazy, ("keras", "jax", "torch"))

US, S = 10**6, 10**12  # in picoseconds
STEP = What("torch", "torch.optim.sgd", "SGD.step")
NOT_YET = {"import", "move"}  # kinds that no module records so far


def frame_at(line):
    """Return what stands for a frame of the program."""
    code = SimpleNamespace(co_filename="/a/train.py", co_qualname="main")
    return SimpleNamespace(f_code=code, f_lineno=line, f_lasti=2 * line)


def a_log(line=7):
    log = EventLog(lambda: frame_at(line))
    log.origin_ns = 0
    return log


def tables(log, host="a"):
    """Return the tables of what a log holds, each, also those without rows."""
    empty = {"events": schema.RUN_EVENTS, **events_module.NAMED}
    found = log.take().tables(host)
    return {name: found.get(name, pl.DataFrame(schema=columns)) for name, columns in empty.items()}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
whats = st.builds(What, texts, texts, texts)
added = st.fixed_dictionaries(
    {
        "event": st.sampled_from([*schema.RUN_EVENT_KINDS]),
        "what": st.none() | whats,
        "key": st.none() | texts | st.integers(),
        "start_ns": st.integers(0, 10**15),
        "dur_ns": st.integers(0, 10**12),
        "arrays": st.none() | st.builds(Signature, texts, texts, st.none() | texts),
        "end_of": st.none() | texts,
        "number": st.none() | st.integers(0, 2**62),
        "line": st.integers(1, 9),
    }
)


def resolved(found):
    """Return each event with what its numbers stand for."""
    names = {
        name: {number: values for _, number, *values in found[name].rows()}
        for name in ("names", "places", "keys", "signatures")
    }
    for row in found["events"].rows(named=True):
        what, place, key, arrays = (
            None if row[column] is None else tuple(names[table][row[column]])
            for column, table in (("what", "names"), ("place", "places"), ("key", "keys"), ("arrays", "signatures"))
        )
        yield row["event"], what, place, key, arrays, row["end_of"], row["number"], row["start_ps"], row["end_ps"]


@given(calls=st.lists(added, max_size=20))
@examples(100)
def test_what_was_added_is_what_is_taken(calls):
    lines = [call["line"] for call in calls]
    log = EventLog(lambda: frame_at(lines[0]))
    log.origin_ns = 0
    expected = []
    for call in calls:
        line, dur_ns = call.pop("line"), call.pop("dur_ns")
        end_ns = call["start_ns"] + dur_ns
        log.add(**call, end_ns=end_ns)
        lines.pop(0)
        key, times = call["key"], (call["start_ns"] // 1000 * US, end_ns // 1000 * US)
        place = "/a/train.py", line, "main"
        known_key = None if key is None else (key if isinstance(key, str) else None,)
        expected.append(
            (call["event"], call["what"], place, known_key, call["arrays"], call["end_of"], call["number"], *times)
        )
    assert log.failure is None
    assert [*resolved(tables(log))] == expected


@given(times_us=st.lists(st.integers(0, 3_000_000), max_size=400), most=st.integers(1, 50))
@examples(50)
def test_events_that_are_too_frequent_are_counted_and_summed(times_us, most):
    log, durs_us = a_log(), [1 + at % 7 for at, _ in enumerate(times_us)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_module, "MOST_A_SECOND", most)
        for end_us, dur_us in zip(sorted(times_us), durs_us, strict=True):
            log.add("fetch", STEP, "data", (end_us - dur_us) * 1000, end_us * 1000)
        log.close()
    frame = tables(log)["events"].with_columns(second=pl.col("end_ps") // S)
    assert frame["count"].sum() == len(times_us)
    assert frame.filter(pl.col("count") == 1).group_by("second").len()["len"].max() in (None, *range(most + 2))
    assert frame.filter(pl.col("count") > 1)["busy_ps"].null_count() == 0
    busy_ps = pl.coalesce("busy_ps", pl.col("end_ps") - pl.col("start_ps"))
    assert frame.filter(pl.col("start_ps") > 0).select(busy_ps.sum()).item() <= sum(durs_us) * US
    if times_us and min(times_us) > 7:
        assert frame.select(busy_ps.sum()).item() == sum(durs_us) * US


def test_each_kind_key_and_thread_has_its_own_rate():
    log = a_log()
    for at in range(MOST_A_SECOND):
        for event, key in (("fetch", "a"), ("fetch", "b"), ("call", "a")):
            log.add(event, None, key, at, at)
    other = Thread(target=lambda: [log.add("fetch", None, "a", at, at) for at in range(MOST_A_SECOND)])
    other.start()
    other.join()
    log.close()
    frame = tables(log)["events"]
    assert frame["count"].to_list() == [1] * (4 * MOST_A_SECOND)
    assert frame["thread"].n_unique() == 2


@pytest.mark.parametrize("fault", ["event", "key", "time", "frame"])
def test_a_log_never_raises(fault):
    def frame():
        raise ZeroDivisionError

    log = EventLog(frame if fault == "frame" else user_frame)
    event, key, time_ns = (
        "no such" if fault == "event" else "fetch",
        [] if fault == "key" else 1,
        None if fault == "time" else 7,
    )
    log.add(event, None, key, time_ns, time_ns)
    assert tables(log)["events"].height == 0
    assert log.failure is not None
    log.add("fetch", None, 1, 7, 7)
    assert tables(log)["events"].height == 0


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(events_module, "MOST_ROWS", 10)
    monkeypatch.setattr(events_module, "MOST_NAMES", 4)
    log = a_log()
    for at in range(25):
        log.add("fetch", What("a", "b", str(at)), at, at, at)
    found = tables(log)
    assert (found["events"].height, log.lost) == (10, 15)
    assert found["events"]["what"].to_list() == [1, 2, 3, 4, *[None] * 6]
    assert found["names"]["name"].to_list() == ["0", "1", "2", "3"]
    assert found["keys"].height == 4
    assert len(log._rates) <= 5
    assert log.failure is None


def test_threads_and_collections_of_garbage_add_events_at_once():
    log, threads, times = EventLog(user_frame), 4, 3000
    interval = sys.getswitchinterval()

    def collected(phase, _):
        log.add("collect", None, phase, time.monotonic_ns(), time.monotonic_ns())

    def work(key):
        for at in range(times):
            log.add("call", What("a", "b", str(at % 50)), key, at, at)
            [[] for _ in range(50)]  # makes garbage collections happen

    gc.callbacks.append(collected)
    sys.setswitchinterval(1e-5)
    try:
        workers = [Thread(target=work, args=(key,)) for key in range(threads)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            taken = log.take()
            assert taken.tables("a") is not None
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
        gc.callbacks.remove(collected)
    log.close()
    found = tables(log)
    assert log.failure is None
    counts = found["events"].filter(pl.col("event") == "call").group_by("key").agg(pl.col("count").sum())["count"]
    assert counts.to_list() == [times] * threads
    assert sorted(found["names"]["name"].to_list(), key=int) == [str(at) for at in range(50)]
    assert found["names"]["id"].n_unique() == 50


def test_what_was_not_written_is_taken_again():
    log = a_log()
    log.add("fetch", STEP, 1, 1000, 2000)
    first = log.take()  # whose part cannot be written
    log.add("fetch", STEP, 2, 3000, 4000)
    second = log.take()
    assert second.tables("a")["events"]["start_ps"].to_list() == [US, 3 * US]
    assert second.tables("a")["names"].height == 1
    log.forget(second)
    assert first.rows == second.rows[:1]
    log.add("fetch", STEP, 2, 5000, 6000)
    assert {name: frame.height for name, frame in log.take().tables("a").items()} == {"events": 1}


def write_part(writer, number, log, ticks=()):
    taken = log.take()
    frame = pl.DataFrame([("a", step, "train", 0, 9, *[None] * 7) for step in ticks], run_folder.TICKS, orient="row")
    writer.part(number, {**taken.tables("a"), "ticks": frame})
    log.forget(taken)


def test_a_run_folder_has_the_events_of_its_parts_and_of_its_journal(tmp_path):
    log, writer = a_log(), RunWriter(tmp_path / "run")
    writer.open()
    writer.facts({"name": "run", "host": "a", "origin_ns": 1, "journal_origin_ns": 1})
    log.add("fetch", STEP, "data", 1000, 2000)
    writer.events(log)
    write_part(writer, 0, log, ticks=[0])  # both have the first
    log.add("compile", What("jax", "m", "f"), "f", 3000, 9000, arrays=Signature("int32[]", "int32[]"), end_of="shapes")
    log.add("fetch", STEP, "data", 10_000, 12_000)
    writer.events(log)
    found = tp.load(tmp_path / "run").run_events
    writer.close()
    assert found.events.select("event", "start_ps", "end_ps", "end_of").rows() == [
        ("fetch", US, 2 * US, None),
        ("compile", 3 * US, 9 * US, "shapes"),
        ("fetch", 10 * US, 12 * US, None),
    ]
    assert found.names.select("id", "library", "module", "name").rows() == [(1, *STEP), (2, "jax", "m", "f")]
    assert found.places.rows() == [("a", 1, "/a/train.py", 7, "main")]
    assert found.keys["name"].to_list() == ["data", "f"]
    assert found.signatures.rows() == [("a", 1, "int32[]", "int32[]", None)]


def test_a_run_that_was_recorded_before_has_no_events(tmp_path):
    writer = RunWriter(tmp_path)
    writer.open()
    writer.part(0, {"ticks": pl.DataFrame([("a", 0, "train", 0, 9, *[None] * 7)], run_folder.TICKS, orient="row")})
    writer.facts({"name": "run", "host": "a", "origin_ns": 1, "state": "finished", "span_ps": 9})
    writer.close()
    assert not {*tmp_path.rglob("events.parquet")}
    found = tp.load(tmp_path).run_events
    assert [frame.height for frame in found] == [0] * 5
    assert found.events.schema == schema.RUN_EVENTS


def test_the_journal_keeps_the_latest_events(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "MOST_A_SECOND", 10**9)
    log, writer = a_log(), RunWriter(tmp_path)
    writer.open()
    writer.facts({"name": "run", "host": "a", "origin_ns": 1, "journal_origin_ns": 1})
    for at in range(LATEST_EVENTS + 100):
        log.add("call", None, None, at * 1000, at * 1000)
        if at % 777 == 0:
            writer.events(log)
    writer.events(log)
    events = tp.load(tmp_path).run_events.events
    writer.close()
    assert events["start_ps"].to_list() == [at * US for at in range(100, LATEST_EVENTS + 100)]


@given(data=st.binary(max_size=300), at=st.integers(0, 1000))
@examples(50)
def test_rows_that_hold_no_event_are_left_out(data, at):
    log = a_log()
    log.add("fetch", STEP, 1, 1000, 2000)
    packed = bytes(64) + log.take().rows[0] + data
    frame = events_module.frame_of(packed, "a", {})
    assert frame.schema == schema.RUN_EVENTS
    assert frame.row(0)[2:5] == (US, 2 * US, "fetch")
    tables, reasons = events_module.named_of([data, b"names\t1\ta\tb\tc", data[at:]], "a")
    assert ("a", 1, "a", "b", "c") in tables["names"].rows()
    assert all(isinstance(number, int) for number in reasons)


def test_the_line_of_an_instruction_is_looked_for_once():
    """Python counts lines from the first of a function on."""

    class Frame:
        f_code, f_lasti, looks = frame_at(7).f_code, 14, 0

        @property
        def f_lineno(self):
            Frame.looks += 1
            return 7

    log = EventLog(Frame)
    assert [log.add("fetch", STEP, 1, 1000, 2000) for _ in range(3)] == [1, 1, 1]
    assert Frame.looks == 1


def test_nothing_is_recorded_after_the_end():
    log = a_log()
    log.add("fetch", STEP, 1, 1000, 2000)
    log.close()
    log.add("fetch", STEP, 1, 3000, 4000)
    assert tables(log)["events"].height == 1


# -- of real programs ------------------------------------------------------------------------------------------------

_LOOP = """
import sys, time
import tpunb as tp
from tpunb.profiler.sources.replay import Replay
with tp.capture(sys.argv[1], schedule=tp.Schedule.ticks()) as run:
    number = 0
    while True:
        with run.step(number, "train"):
            time.sleep(0.02)
        number += 1
        print(number, flush=True)
"""


@pytest.mark.live
def test_a_kill_leaves_the_events_of_all_steps_that_ended(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_LOOP)
    child = subprocess.Popen([sys.executable, str(script), str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        ended = [int(next(child.stdout)) for _ in range(20)]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    with pytest.warns(UserWarning, match="its process was killed"):
        found = tp.load(tmp_path / "run").run_events
    marks = found.events.filter(pl.col("event") == "mark").join(found.places, left_on="place", right_on="id")
    assert marks["number"].to_list()[: len(ended)] == [number - 1 for number in ended]
    assert {*marks["file"]} == {str(script)}
    whats = found.names.filter(pl.col("id").is_in(marks["what"].implode()))
    assert whats.select("library", "module", "name").rows() == [("tpunb", "tpunb.profiler.capture", "Run.step")]


class Sleeps:
    """A callback of Keras."""

    @staticmethod
    def of():
        class Sleep(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                time.sleep(0.01)

        return Sleep()


def train_by_torch(folder):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    rows = torch.utils.data.TensorDataset(torch.ones(8, 4))
    for _ in range(2):
        model.train()
        for (batch,) in torch.utils.data.DataLoader(rows, batch_size=4):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
        model.eval()
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save(model.state_dict(), io.BytesIO())  # which is no file
    torch.load(folder / "model.pt")


def train_by_jax():
    @jax.jit
    def update_of_events(weights, batch):
        slope = jax.grad(lambda weights: ((batch @ weights) ** 2).mean())(weights)
        return weights - 0.1 * slope

    weights = jax.numpy.ones((4, 4))
    for _ in range(5):
        weights = update_of_events(weights, np.ones((2, 4), "float32"))
    jax.block_until_ready(weights)


def train_by_keras():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((8, 4)), np.ones((8, 1))
    model.fit(*rows, batch_size=4, verbose=0, callbacks=[Sleeps.of()])
    model.evaluate(*rows, verbose=0)
    model.predict(rows[0], verbose=0)


@pytest.mark.live
def test_each_kind_of_event_is_recorded_of_some_training(tmp_path):
    with tp.capture(tmp_path / "run", schedule=tp.Schedule.continuous(0.1)) as run:
        train_by_torch(tmp_path)
        train_by_jax()
        train_by_keras()
        with signals.spending("tuning"):  # as the tuner does
            pass
        garbage = [[at] for at in range(300_000)]
        for each in garbage:
            each.append(each)
        del garbage, each
        gc.collect()
        until(lambda: run.status.windows)
    found = tp.load(tmp_path / "run").run_events
    assert {*found.events["event"]} == {*schema.RUN_EVENT_KINDS} - NOT_YET
    assert {*found.names["library"]} >= {"torch", "jax", "keras"}
    updates = found.events.filter(pl.col("event") == "update").join(found.names, left_on="what", right_on="id")
    assert {*updates["name"]} >= {"SGD.step"}
    calls = found.events.join(found.names, left_on="what", right_on="id").filter(
        pl.col("name").str.ends_with("update_of_events")
    )
    assert calls.filter(pl.col("event") == "call")["count"].sum() == 5
    assert calls["arrays"].null_count() < calls.height  # of the first calls
    assert __file__ in {*found.places["file"]}
