"""The run folder: whatever ends a capture, and wherever in a write, what lies there loads."""

import gzip
import json
import re
import shutil
import tempfile
from itertools import accumulate
from pathlib import Path

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pod_jobs import TWO
from polars.testing import assert_frame_equal
from simulate.pod import Fault, pod

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Steps
from tpunb.io import logdir, parquet, run_folder, run_writer, storage
from tpunb.io.run_writer import RunWriter
from tpunb.testing import toy_steps
from tpunb.testing import toy_window as xspace

MS = 1_000_000_000
TABLES = ["steps", "ops", "ticks", "windows"]


def ticks(*rows, host="toy"):
    """What our own clock noted: (step, start, end) in milliseconds."""
    spelled = [(host, step, "train", start * MS, end * MS, *[None] * 7) for step, start, end in rows]
    return pl.DataFrame(spelled, schema=run_folder.TICKS, orient="row")


def ticks_of(steps):
    end_ps = pl.col("start_ps") + pl.col("dur_ps")
    unknown = dict.fromkeys(("input_ps", "callbacks_ps", "dispatch_ps"), pl.lit(None, pl.Int64))
    unknown |= {"found_by": pl.lit(None, pl.String), "peers_ps": pl.lit(None, pl.Int64)}
    return steps.frame.select("host", "step", "kind", "start_ps", end_ps=end_ps, **unknown)


def watched(number, start=0, dur=10, *, host="toy", events=7, error=None):
    """What a part says of a window, in milliseconds."""
    row = (host, number, start * MS, dur * MS, dur * MS, 100, events, 1, error, "evenly")
    return pl.DataFrame([row], schema=schema.WINDOWS, orient="row")


def write(folder, number, steps=None, clock=None, **more):
    """Write a part: the steps of its windows, the ticks of our own clock, and other tables."""
    tables = {} if steps is None else {"steps": steps.frame, "ops": steps.ops, "devices": steps.devices}
    RunWriter(folder).part(number, tables | {"ticks": ticks() if clock is None else clock} | more)


def say(folder, **more):
    RunWriter(folder).facts({"name": "toy", "host": "toy", "origin_ns": 1, "state": "finished"} | more)


def part(steps, numbers, traced="full"):
    """Some steps of a run, as one window saw them."""
    mine = pl.col("step").is_in(numbers)
    frame = steps.frame.filter(mine).with_columns(pl.lit(traced, schema.TRACED).alias("traced"))
    return Steps(frame, steps.ops.filter(mine), steps.devices.filter(mine))


def a_run(folder):
    """Two parts, of steps 0 and 1, and of step 2."""
    steps = toy_steps("aab")
    for number, numbers in enumerate([[0, 1], [2]]):
        mine = part(steps, numbers)
        write(folder, number, mine, ticks_of(mine), windows=watched(number, 2 * number, 2))
    say(folder, span_ps=5 * MS)
    return steps


@pytest.fixture
def job(tmp_path):
    """Steps of four hosts that wait for the second at collectives, from raw files."""
    faults = [Fault("slow chip", (1,), 0.3)]
    pod(TWO, hosts=4, chips=2, steps=4, faults=faults, folder=tmp_path / "raw")
    return tp.steps(tp.load(tmp_path / "raw"))


def test_collectives_of_a_run_are_those_that_were_written(tmp_path, job):
    write(tmp_path / "run", 0, job, windows=job.windows, collectives=job.collectives)
    say(tmp_path / "run")
    back = tp.steps(tp.load(tmp_path / "run"))
    assert_frame_equal(back.collectives, job.collectives, check_row_order=False)
    assert tp.hosts(back).by == "collectives"
    assert tp.hosts(back).frame.equals(tp.hosts(job).frame)


@pytest.mark.parametrize("many", [64, 1])
def test_collectives_of_one_run_per_host_are_put_together(tmp_path, job, monkeypatch, many):
    monkeypatch.setattr("tpunb.io.formats.MANY", many)
    hosts = job.frame["host"].unique(maintain_order=True)
    for host in hosts:
        mine = Steps(**{name: getattr(job, name).filter(host=host) for name in ("frame", "ops", "devices")})
        tables = {name: getattr(job, name).filter(host=host) for name in ("windows", "collectives")}
        write(tmp_path / host, 0, mine, **tables)
        say(tmp_path / host, host=host)
    found = tp.hosts(tp.steps(tp.load([tmp_path / host for host in hosts])))
    assert found.frame.drop("role").equals(tp.hosts(job).frame.drop("role"))


def test_a_run_without_collectives_is_judged_by_the_ends_of_steps(tmp_path, job):
    write(tmp_path / "run", 0, job, windows=job.windows)
    say(tmp_path / "run")
    steps = tp.steps(tp.load(tmp_path / "run"))
    assert tp.hosts(steps).by == "step ends"
    with pytest.raises(tp.TpunbError, match="holds no collectives"):
        steps.collectives  # noqa: B018


def sums(steps):
    """{(step, op, side): (count, total, self)}"""
    return {
        (row["step"], row["op"], row["side"]): (row["count"], row["total_ps"], row["self_ps"])
        for row in steps.ops.iter_rows(named=True)
    }


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# -- reading what a kill left ---------------------------------------------------------------------------------


def test_a_run_of_two_windows_reads_back_whole(tmp_path):
    steps = a_run(tmp_path)
    profile = tp.load(tmp_path)
    assert profile.stored.frame.drop("rule").rows() == steps.frame.drop("rule").rows()
    assert profile.stored.frame["rule"].unique().to_list() == ["clock"]
    assert sums(profile.stored) == sums(steps)
    assert profile.stored.devices.sort("step").rows() == steps.devices.sort("step").rows()
    assert profile.windows.select("host", "window", "start_ps", "dur_ps").rows() == [
        ("toy", 0, 0, 2 * MS),
        ("toy", 1, 2 * MS, 2 * MS),
    ]
    assert (profile.name, profile.origin_ns, profile.span_ps) == ("toy", 1, 5 * MS)
    assert repr(profile) == "Profile(toy, 1 host, 14 events, 0.005 s, 80% of the run observed)"


@pytest.mark.parametrize(
    ("written", "flops"),
    [(1e9, 1e9), (2, 2.0), (None, None), (0, None), (float("nan"), None), ("1e9", None), ([], None)],
)
def test_steps_of_a_training_have_the_flops_of_its_graph(tmp_path, written, flops):
    a_run(tmp_path)
    say(tmp_path, span_ps=5 * MS, step_flops=written)
    assert tp.load(tmp_path).stored.frame["flops"].to_list() == [flops] * 3


def test_a_run_that_is_still_being_written_loads_as_far_as_it_is(tmp_path):
    steps = a_run(tmp_path)
    say(tmp_path, state="running")
    (tmp_path / "parts" / ".00002.0badcafe").mkdir()  # a part on its way
    (tmp_path / "parts" / ".00002.0badcafe" / "ops.parquet").write_bytes(b"PAR1")
    (tmp_path / ".run.json.0badcafe").write_bytes(b"{")
    profile = tp.load(tmp_path)
    assert sums(profile.stored) == sums(steps)
    assert profile.windows.height == 2
    assert profile.span_ps == 4 * MS  # until the last thing known, since nobody came to write how long it took
    assert len(tp.phases(tp.steps(profile))) >= 1


def test_a_run_killed_before_its_first_part_loads_without_steps(tmp_path):
    say(tmp_path, state="running")
    profile = tp.load(tmp_path)
    assert (len(profile.stored), profile.span_ps, profile.observed) == (0, 0, 0.0)
    with pytest.raises(tp.TpunbError, match="toy has no steps"):
        tp.steps(profile)


def test_a_window_without_steps_still_gives_its_ticks(tmp_path):
    a_run(tmp_path)
    refused = watched(2, 4, 0, error="INTERNAL: refused", events=0)
    write(tmp_path, 2, clock=ticks((3, 4, 5)), windows=refused)
    profile = tp.load(tmp_path)
    assert profile.stored.frame.select("step", "traced").rows()[-1] == (3, "none")
    assert profile.windows["error"].to_list() == [None, None, "INTERNAL: refused"]


@pytest.mark.parametrize("lost", TABLES)
def test_a_part_that_lost_a_table_still_loads_but_without_ticks_it_is_not_whole(tmp_path, lost):
    a_run(tmp_path)
    (tmp_path / "parts" / "00001" / f"{lost}.parquet").unlink()
    profile = tp.load(tmp_path)
    last = {"steps": ["none"], "ticks": []}.get(lost, ["full"])
    assert profile.stored.frame["traced"].to_list() == ["full", "full", *last]
    assert profile.windows.height == (1 if lost in ("windows", "ticks") else 2)


def test_parts_follow_one_another_by_their_numbers(tmp_path):
    for number, step in [(100_000, 2), (99_999, 1), (7, 0)]:
        write(tmp_path, number, clock=ticks((0, step, step + 1), host=f"host {step}"))
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame["host"].to_list() == ["host 0", "host 1", "host 2"]


def test_a_part_within_the_range_of_a_whole_one_does_not_count(tmp_path):
    for number, step in enumerate([5, 0, 1, 6]):
        write(tmp_path, number, clock=ticks((step, step, step + 1)))
    (tmp_path / "parts" / "00000").rename(tmp_path / "parts" / "00001-00002")
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame["step"].to_list() == [5, 6]
    (tmp_path / "parts" / "00001-00002" / "ticks.parquet").unlink()
    assert tp.load(tmp_path).stored.frame["step"].to_list() == [0, 1, 6]


@pytest.mark.parametrize(
    ("there", "count"),
    [
        ([], []),
        (["00000", "00001"], ["00000", "00001"]),
        (["00001", "00000-00001", "00000"], ["00000-00001"]),
        (["00000-00003", "00000-00001", "00002-00003", "00004"], ["00000-00003", "00004"]),
        (["00002-00003", "00000", "00001", "00002"], ["00000", "00001", "00002-00003"]),
        (["99999", "100000-100001", "00002-99998", "100000"], ["00002-99998", "99999", "100000-100001"]),
    ],
)
def test_parts_that_count_are_those_that_lie_within_no_other(there, count):
    files = [f"parts/{part}/{table}.parquet" for part in there for table in TABLES]
    files += [
        "run.json",
        "parts/00007-/ticks.parquet",
        "parts/00008/ops.parquet",
        "parts/.00009.0badcafe/ticks.parquet",
    ]
    assert run_folder.parts(files) == count
    assert {path.split("/")[1] for path in run_folder.statistics(dict.fromkeys(files)) if "/" in path} == set(count)


@pytest.mark.parametrize(
    ("before", "after", "is_settled"),
    [
        ([], [], True),
        ([], ["00000"], True),
        (["00000"], ["00000", "00001"], True),
        (["00000-00001", "00002"], ["00000-00001", "00002"], True),
        ([], ["00000-00001"], False),  # both were there, and missed by a listing while they became one
        (["00000"], ["00000-00001"], False),
        (["00000", "00002"], ["00000", "00001", "00002"], False),
        (["00000", "00001"], ["00000"], False),
        (["00000"], ["00000", "00001-00002"], False),
    ],
)
def test_a_run_is_settled_if_parts_only_came_behind_those_read(before, after, is_settled):
    assert run_folder.is_settled(before, after) is is_settled


def test_several_hosts_of_a_window_are_a_row_each(tmp_path):
    rows = [watched(number, 10 * number, host=host) for number, host in [(1, "a"), (1, "b"), (0, "b"), (0, "a")]]
    write(tmp_path, 0, windows=pl.concat(rows[:2]))
    write(tmp_path, 1, windows=pl.concat(rows[2:]))  # which took longer to come
    say(tmp_path)
    assert tp.load(tmp_path).windows.select("window", "host").rows() == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


@pytest.mark.parametrize(("said", "known"), [({}, None), ({"overhead": None}, None), ({"overhead": 0.02}, 0.02)])
def test_the_overhead_is_what_the_run_says(tmp_path, said, known):
    say(tmp_path, **said)
    assert tp.load(tmp_path).overhead == known
    assert tp.load(tmp_path).overhead_interval is None  # runs recorded before have none


def test_the_interval_of_the_overhead_is_loaded(tmp_path):
    say(tmp_path, overhead=0.02, overhead_interval=[0.01, 0.04])
    assert tp.load(tmp_path).overhead_interval == (0.01, 0.04)


def test_metadata_of_a_run_is_read_if_recorded(tmp_path):
    a_run(tmp_path)
    assert tp.steps(tp.load(tmp_path)).metadata == {}
    say(tmp_path, metadata={"model": "Sequential of 1 Dense", "weights": 3}, devices=["/device:CPU:0"])
    assert tp.steps(tp.load(tmp_path)).metadata == {
        "model": "Sequential of 1 Dense",
        "weights": "3",
        "device kind": "CPU",
    }
    say(tmp_path, devices=["cpu:0"], cpu="CPU toy, 2 threads")
    assert tp.steps(tp.load(tmp_path)).metadata == {"device kind": "CPU", "cpu": "CPU toy, 2 threads"}
    device = dict.fromkeys(schema.HARDWARE) | {"host": "toy", "device": "/device:TPU:0", "kind": "TPU v2"}
    say(tmp_path, cpu="CPU toy, 2 threads", hardware=[device, device], devices=["/device:CPU:0", "/device:TPU:0"])
    steps = tp.steps(tp.load(tmp_path))
    assert steps.metadata == {"device kind": "TPU v2"}
    assert steps.full().metadata == steps.metadata


def test_the_name_of_a_run_may_hold_any_letter(tmp_path):
    for name in ["lr=0.1", "run[1]", "a*b?", "größe 2", "{x}"]:
        steps = a_run(tmp_path / name)
        assert sums(tp.load(tmp_path / name).stored) == sums(steps)


def test_raw_windows_are_read_from_where_they_began(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path)
    for number, host, raw in [(0, "a", b"one"), (2, "b/c", b"three"), (2, "a", b"two")]:
        writer.raw(number, host, raw)
    for number in range(3):
        hosts = [watched(number, 5 + 10 * number, host=host) for host in ("a", "b/c")]
        write(tmp_path, number, windows=pl.concat(hosts))
    say(tmp_path)
    asked = []

    def read_raw(files, origin_ns, begins, kind, skipped):
        assert kind == "events"
        asked.extend((key, file.source.read_bytes(), begins[key]) for key, file in files.items())
        return pl.DataFrame(schema=schema.EVENTS)

    monkeypatch.setattr(logdir, "windows", read_raw)
    profile = tp.load(tmp_path)
    assert asked == []  # nothing is decoded before it is asked for
    assert profile.events.is_empty()
    assert asked == [
        ((0, "a"), b"one", 5 * MS),
        ((2, "a"), b"two", 25 * MS),
        ((2, "b/c"), b"three", 25 * MS),
    ]


def test_raw_windows_have_the_hosts_of_the_statistics(tmp_path):
    writer = RunWriter(tmp_path)
    for number, host in [(0, "a"), (0, "b"), (1, "a")]:
        begin = 1 + 1000 * number
        writer.raw(number, host, xspace(begin, begin + 900, [(number, begin, begin + 500)]))
    say(tmp_path)
    kinds = tp.load(tmp_path).events
    assert kinds.select("host", "step_num", "start_ps").rows() == [("a", 0, 0), ("b", 0, 0), ("a", 1, 1_000_000)]
    assert kinds["lane"].n_unique() == 3


def test_a_damaged_raw_window_is_named_and_the_others_are_read(tmp_path):
    writer = RunWriter(tmp_path)
    for number in range(3):
        begin = 1 + 1000 * number
        writer.raw(
            number, "a", xspace(begin, begin + 900, [(number, begin, begin + 500)])[: -9 if number == 1 else None]
        )
    say(tmp_path)
    for profile in (tp.load(tmp_path), tp.load(tmp_path)):  # a file that was damaged once is found so again
        assert profile.skipped == []
        with pytest.warns(UserWarning, match="toy: 1 file skipped: 00001/a.xplane.pb: no whole protobuf") as warned:
            assert profile.events["step_num"].to_list() == [0, 2]
        assert len(warned) == 1
        assert profile.memory.is_empty()  # read from the others, without a second warning
        assert [name for name, _ in profile.skipped] == ["00001/a.xplane.pb"]
        assert repr(profile).endswith("1 file skipped)")


def test_raw_windows_that_are_all_damaged_are_an_error(tmp_path):
    RunWriter(tmp_path).raw(0, "a", b"raw")
    say(tmp_path)
    with pytest.raises(BadProfile, match=r"a\.xplane\.pb: no whole protobuf"):
        tp.load(tmp_path).events  # noqa: B018


# -- one row a step -------------------------------------------------------------------------------------------


def test_a_step_of_several_ticks_is_one(tmp_path):
    write(tmp_path, 0, clock=ticks((0, 0, 2), (0, 3, 4)))
    write(tmp_path, 1, clock=ticks((0, 5, 9), (1, 9, 10)))
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame.select("step", "kind", "start_ps", "dur_ps").rows() == [
        (0, "train", 0, 9 * MS),
        (1, "train", 9 * MS, 1 * MS),
    ]


def test_a_step_that_no_window_traced_has_null_device_time(tmp_path):
    write(tmp_path, 0, clock=ticks((0, 0, 2)))
    say(tmp_path)
    profile = tp.load(tmp_path)
    known = {"host": "toy", "step": 0, "kind": "train", "start_ps": 0, "dur_ps": 2 * MS, "traced": "none"}
    assert profile.stored.frame.row(0, named=True) == dict.fromkeys(schema.STEPS) | known | {"rule": "clock"}
    assert profile.stored.ops.is_empty()


def test_a_step_cut_by_two_windows_is_partial_and_its_ops_add_up(tmp_path):
    first, second = toy_steps("a", traced="p"), toy_steps("a", traced="p")
    write(tmp_path, 0, first)
    write(tmp_path, 1, second, ticks((0, 0, 3)))
    say(tmp_path)
    stored = tp.load(tmp_path).stored
    assert stored.frame.select("step", "dur_ps", "traced").rows() == [(0, 3 * MS, "partial")]
    assert sums(stored) == {key: tuple(2 * n for n in row) for key, row in sums(first).items()}
    assert len(stored.full()) == 0


def test_a_step_that_began_but_was_none_is_of_the_one_before(tmp_path):
    """A loop asked for more data, a window ended, and there was no more."""
    steps = toy_steps("ab")  # 1 ms each, one after the other
    write(tmp_path, 0, part(steps, [0]), ticks((0, 0, 1)))
    write(tmp_path, 1, part(steps, [1], traced="partial"), ticks((0, 1, 5)))
    say(tmp_path)
    stored = tp.load(tmp_path).stored
    assert stored.frame.select("step", "dur_ps", "traced").rows() == [(0, 5 * MS, "partial")]
    assert {step for step, _, _ in sums(stored)} == {0}
    assert stored.devices["step"].unique().to_list() == [0]


def test_a_step_cut_by_a_kill_stays(tmp_path):
    steps = toy_steps("ab")
    write(tmp_path, 0, part(steps, [0]), ticks((0, 0, 1)))
    write(tmp_path, 1, part(steps, [1], traced="partial"), ticks())
    say(tmp_path)
    seen = tp.load(tmp_path).stored.frame.select("step", "dur_ps", "traced").rows()
    assert seen == [(0, MS, "full"), (1, 2 * MS, "partial")]


def test_device_time_is_summed_over_parts_that_have_it(tmp_path):
    whole = toy_steps("a")
    known = part(whole, [0], traced="partial")  # busy for 0.5 ms
    unknown = Steps(known.frame.with_columns(device_ps=pl.lit(None), idle_ps=pl.lit(None)), known.ops)
    for number, window in enumerate([known, unknown, known]):
        write(tmp_path, number, window)
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame.select("device_ps", "traced").row(0) == (MS, "partial")


def cut_in_two(first, second):
    """A step that two windows cut: each knows facts of it, the first for 1 ms, the second for 3 ms."""
    steps = toy_steps("a")
    for facts_known, dur in ((first, 1), (second, 3)):
        known = {name: pl.lit(value, schema.STEPS[name]) for name, value in facts_known.items()}
        on_devices = {name: value for name, value in known.items() if name in schema.DEVICE_FACTS}
        yield Steps(
            steps.frame.with_columns(dur_ps=pl.lit(dur * MS), **known),
            steps.ops,
            steps.devices.with_columns(dur_ps=pl.lit(dur * MS), **on_devices),
        )


@pytest.mark.parametrize(
    ("fact", "first", "second", "whole"),
    [
        ("infeed_ps", 2, 3, 5),
        ("infeed_ps", 2, None, 2),
        ("infeed_ps", None, None, None),
        ("collective_ps", 0, 7, 7),
        ("input_ps", 1, 1, 2),
        ("compile_ps", None, 4, 4),
        ("imbalance_ps", 1, 2, 3),
        ("annotation_ps", None, 8, 8),
        ("rule", "module", "module", "module"),
        ("flops_time_share", 1.0, 0.5, 0.625),
        ("flops", 1e12, 2e12, 3e12),
        ("bytes", None, 5.0, 5.0),
        ("duty_cycle", 1.0, 0.5, 0.625),  # 1 ms of the one, 3 ms of the other
        ("mxu_util", 0.3, None, 0.3),
        ("flops_util", None, None, None),
        ("hbm_util", 0.7, 0.7, 0.7),  # to the last bit
    ],
)
def test_facts_of_a_step_cut_by_two_windows_are_summed_or_weighed_by_time(tmp_path, fact, first, second, whole):
    for number, window in enumerate(cut_in_two({fact: first}, {fact: second})):
        write(tmp_path, number, window)
    say(tmp_path)
    stored = tp.load(tmp_path).stored
    assert stored.frame[fact].to_list() == [whole]
    if fact in schema.DEVICE_FACTS:
        assert stored.devices[fact].to_list() == [whole]


def test_an_operation_is_of_the_category_that_most_of_its_self_time_is_of(tmp_path):
    steps = toy_steps("a")
    for number, (category, self_ps) in enumerate([("copy", 3), (None, 9), ("fusion", 5)]):
        ops = steps.ops.head(1).with_columns(category=pl.lit(category, schema.NAME), self_ps=pl.lit(self_ps))
        write(tmp_path, number, Steps(steps.frame, ops))
    say(tmp_path)
    assert tp.load(tmp_path).stored.ops.select("category", "self_ps").rows() == [("fusion", 17)]


def test_clocks_of_the_windows_are_one_row_a_link(tmp_path):
    rows = [
        [("a", "/device:TPU:0", "flow", 10, 10, 400, 3, 6), ("a", "/device:TPU:1", None, 5, 0, None, None, None)],
        [("a", "/device:TPU:0", "flow", 40, 30, 800, 1, 2), ("a", "/device:TPU:1", None, 2, 0, None, None, None)],
    ]
    for number, window in enumerate(rows):
        clocks = pl.DataFrame(window, schema=schema.CLOCKS, orient="row")
        write(tmp_path, number, clocks=clocks)
    write(tmp_path, 2, clock=None)
    say(tmp_path)
    assert tp.load(tmp_path).clocks.rows() == [
        ("a", "/device:TPU:0", "flow", 50, 40, 700, 3, 6),  # (10 x 400 + 30 x 800) / 40
        ("a", "/device:TPU:1", None, 7, 0, None, None, None),
    ]


def test_clocks_recorded_without_the_length_of_queues_have_none(tmp_path):
    clocks = pl.DataFrame([("a", "/device:TPU:0", "flow", 10, 10, 400, 3, 6)], schema=schema.CLOCKS, orient="row")
    write(tmp_path, 0, clocks=clocks.drop("queue_length"))
    say(tmp_path)
    assert tp.load(tmp_path).clocks.rows() == [("a", "/device:TPU:0", "flow", 10, 10, 400, 3, None)]


def test_a_run_that_noted_no_clocks_has_none_stored(tmp_path):
    a_run(tmp_path)
    assert tp.load(tmp_path).stored_clocks is None


@pytest.mark.parametrize("input_of_window", [None, 3])
def test_input_time_is_that_of_the_clock_else_of_the_window(tmp_path, input_of_window):
    steps = toy_steps("a")
    known = Steps(steps.frame.with_columns(input_ps=pl.lit(input_of_window, pl.Int64)), steps.ops)
    clock = ticks((0, 0, 1), (0, 1, 2), (1, 2, 3)).with_columns(input_ps=pl.Series([5, None, 7]))
    write(tmp_path, 0, known, clock)
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame["input_ps"].to_list() == [5, 7]


def test_steps_that_only_windows_saw_are_there_too(tmp_path):
    steps = toy_steps("ab")
    write(tmp_path, 0, steps)
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame.rows() == steps.frame.rows()


@given(pattern=st.text("abc", min_size=1, max_size=6), data=st.data())
@examples(15)
def test_steps_cut_into_windows_give_their_sums_back(pattern, data):
    steps = toy_steps(pattern)
    windows = [[] for _ in range(3)]  # what each saw: (step, rows of ops, "full" or "partial")
    cut = set()
    for step in range(len(pattern)):
        rows = steps.ops.filter(pl.col("step") == step)
        window = data.draw(st.integers(0, 2), label=f"window of step {step}")
        kept = data.draw(st.none() if window == 2 else st.none() | st.integers(0, 4), label="cut at")
        if kept is None:
            windows[window].append((step, rows, "full"))
        else:  # each count and time is shared out between two windows
            cut.add(step)
            numbers = ["count", "total_ps", "self_ps"]
            before = rows.with_columns(pl.col(numbers) * kept // 4)
            after = rows.with_columns(pl.col(name) - before[name] for name in numbers)
            windows[window].append((step, before, "partial"))
            windows[window + 1].append((step, after, "partial"))
    with tempfile.TemporaryDirectory() as folder:
        for number, seen in enumerate(windows):
            parts = [part(steps, [step], how).frame for step, _, how in seen]
            frame = pl.concat([pl.DataFrame(schema=schema.STEPS), *parts])
            ops = pl.concat([pl.DataFrame(schema=schema.OPS), *(rows for _, rows, _ in seen)])
            write(Path(folder), number, Steps(frame, ops))
        say(Path(folder))
        stored = tp.load(folder).stored
    assert sums(stored) == sums(steps)
    assert stored.frame["step"].to_list() == list(range(len(pattern)))
    assert set(stored.frame.filter(pl.col("traced") == "partial")["step"]) == cut
    assert stored.frame["dur_ps"].to_list() == steps.frame["dur_ps"].to_list()


# -- tables as few bytes --------------------------------------------------------------------------------------

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    pl.String: st.text(max_size=5),
    pl.Categorical: st.sampled_from(["MatMul", "größe", "a/b", ""]),
    pl.Enum: st.sampled_from(["host", "device"]),
    pl.Int64: INT64 | st.integers(-5, 5).map(lambda thousands: 1000 * thousands),
    pl.Float64: st.floats(allow_nan=False),
    pl.Boolean: st.booleans(),
    pl.List: st.lists(INT64, max_size=3),
}


@st.composite
def tables(draw):
    """A table of a part: any rows, of which some columns are null throughout."""
    name = draw(st.sampled_from([*run_folder.TABLES]))
    columns = run_folder.TABLES[name]
    rows = draw(st.integers(0, 4))
    unit = draw(st.sampled_from([1, 1000]))
    values = {}
    for column, dtype in columns.items():
        one = st.sampled_from(dtype.categories.to_list()) if isinstance(dtype, pl.Enum) else VALUES[type(dtype)]
        if unit == 1000 and column.endswith("_ps"):
            one = st.integers(-(2**63) // 1000 + 1, 2**63 // 1000 - 1).map(lambda number: 1000 * number)
        if column not in {"host", "step", "op", "side", "total_ps", "self_ps"}:  # which are always known
            one = draw(st.sampled_from([one, one | st.none(), st.none()]))
        values[column] = draw(st.lists(one, min_size=rows, max_size=rows))
    return name, pl.DataFrame(values, schema=columns)


@given(table=tables())
@examples(50)
def test_a_table_that_was_packed_is_what_it_was(table):
    name, frame = table
    columns = run_folder.TABLES[name]
    back = parquet.read([parquet.pack(frame, columns)], columns)
    assert back.schema == columns
    assert sorted(back.rows(), key=repr) == sorted(frame.rows(), key=repr)
    if name != "ops":  # whose rows have no order
        assert back.rows() == frame.rows()


@given(
    parts=st.lists(tables(), min_size=1, max_size=9),
    gaps=st.lists(st.integers(1, 3), min_size=9, max_size=9),
    together=st.integers(2, 5),
    is_closed=st.booleans(),
)
@examples(15)
def test_what_was_written_in_parts_is_what_is_read(parts, gaps, together, is_closed):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_writer, "_TOGETHER", together)
        writer = RunWriter(folder)
        for number, (name, frame) in zip(accumulate(gaps), parts, strict=False):
            writer.part(number, {name: frame})
        if is_closed:
            writer.close()
        whole, left = divmod(len(parts), together)
        whole, left = (whole + 1, 0) if is_closed and left > 1 else (whole, left)
        assert len(names(Path(folder, "parts"))) == sum(divmod(whole, together)) + left
        files = storage.local(folder).below()
        for table, read in run_folder._tables(run_folder._fetch(files), files)[0].items():
            written = [row for name, frame in parts if name == table for row in frame.rows()]
            read = read.lazy().collect()  # operations are a scan
            assert sorted(read.rows(), key=repr) == sorted(written, key=repr)
            if table != "ops":  # whose rows have no order
                assert read.rows() == written


def test_a_table_on_disk_holds_small_numbers_and_no_empty_columns():
    times = pl.col("total_ps", "self_ps") // 1000 * 1000  # whole nanoseconds
    ops = toy_steps("ab").ops.with_columns(times)
    file = pl.read_parquet(parquet.pack(ops, schema.OPS))
    assert file["unit_ps"].unique().to_list() == [1000]
    assert "category" not in file.columns
    lowest, rest = file["total_units_byte0"].cast(pl.Int64), file["total_units"] * 256
    assert ((rest + file["total_units_byte1"]) * 256 + lowest).sum() * 1000 == ops["total_ps"].sum()
    odd = ops.with_columns(pl.col("self_ps") + 1)
    assert pl.read_parquet(parquet.pack(odd, schema.OPS))["unit_ps"].unique().to_list() == [1]


# -- samples --------------------------------------------------------------------------------------------------


def rows(columns, *values, **shared):
    """Return rows of a table: those columns that are not given are null, or the same for all."""
    return pl.DataFrame([{"host": "toy", **shared, **value} for value in values], schema=columns)


def test_samples_and_stalls_are_placed_as_a_run_is_loaded_by_the_stacks_of_all_its_parts(tmp_path):
    a_run(tmp_path)
    main = rows(schema.STACKS, {"stack": 0, "file": "train.py", "line": 3, "function": "main", "callee": "sleeps"})
    sleeps = {"stack": 1, "caller": 0, "file": "util.py", "line": 7, "function": "sleeps", "callee": "time.sleep"}
    looks = [{"start_ps": at * MS, "stack": at % 2, "others": [], "stands_for": 1} for at in (2, 3)]
    stall = {"start_ps": MS, "dur_ps": 3 * MS, "stack": 1, "others": [], "share": 1.0, "samples": 5, "locked": False}
    write(tmp_path, 2, stacks=main, stack_samples=rows(schema.STACK_SAMPLES, looks[0]))
    write(
        tmp_path,
        3,
        stacks=rows(schema.STACKS, sleeps),
        stack_samples=rows(schema.STACK_SAMPLES, looks[1]),
        stack_stalls=rows(schema.STACK_STALLS, stall),
    )
    wall = tp.load(tmp_path).stored.wall
    outer, inner = "train.py:3 in main ← sleeps", "util.py:7 in sleeps ← time.sleep"
    assert wall.samples.select("start_ps", "place").rows() == [(2 * MS, outer), (3 * MS, inner)]
    assert wall.stalls.select("start_ps", "place", "samples").rows() == [(MS, inner, 5)]


def test_samples_and_stalls_that_an_earlier_version_placed_are_read_as_they_are(tmp_path):
    a_run(tmp_path)
    place = "train.py:12 in main ← read"
    samples = rows(schema.SAMPLES, {"start_ps": MS, "place": place, "loads": True, "code": False, "evaluates": False})
    stalls = rows(schema.STALLS, {"start_ps": MS, "dur_ps": MS, "place": place, "share": 1.0, "samples": 2})
    write(tmp_path, 2, samples=samples, stalls=stalls)
    wall = tp.load(tmp_path).stored.wall
    assert_frame_equal(wall.samples, samples)
    assert_frame_equal(wall.stalls, stalls)


# -- damage ---------------------------------------------------------------------------------------------------


def other_columns(whole):
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pl.DataFrame({"a": [1]}).write_parquet(file.name)
        return Path(file.name).read_bytes()


@pytest.mark.parametrize("file", TABLES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1],
        lambda whole: b"PAR1",
        lambda whole: b"no parquet at all" * 9,
        other_columns,
    ],
    ids=["empty", "half", "one byte short", "magic only", "text", "other columns"],
)
def test_a_damaged_file_is_named(tmp_path, file, damage):
    a_run(tmp_path)
    broken = tmp_path / "parts" / "00001" / f"{file}.parquet"
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.warns(UserWarning, match=f"1 file skipped: parts/00001/{file}.parquet: cannot be read: ") as caught:
        profile = tp.load(tmp_path)
    assert "\n" not in str(caught[0].message)
    together = ("steps", "ops", "devices")
    (name, reason), last = profile.skipped[0], profile.stored.frame.filter(pl.col("step") == 2)
    assert name == f"parts/00001/{file}.parquet"
    for table in together:
        assert (f" {table}" in reason) is (file == "ticks" or (file in together and file != table))
    assert last["traced"].to_list() == {"ticks": []}.get(file, ["none" if file in together else "full"])
    assert (2 in profile.stored.ops["step"]) is (file not in (*together, "ticks"))
    assert profile.stored.frame["traced"].to_list()[:2] == ["full", "full"]
    assert not profile.stored.wall.complete


def changed(path, columns, **values):
    """Change values of the last row of a table on disk."""
    frame = parquet.read([path], columns)
    last = pl.int_range(pl.len()) == pl.len() - 1
    new = [pl.when(last).then(pl.lit(value)).otherwise(pl.col(name)).alias(name) for name, value in values.items()]
    path.write_bytes(parquet.pack(frame.with_columns(new), columns))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        *(
            ("ticks", name, -MS)
            for name in ("start_ps", "end_ps", "input_ps", "callbacks_ps", "dispatch_ps", "peers_ps")
        ),
        *(("ticks", name, 2**63 - 1) for name in ("start_ps", "end_ps", "input_ps")),
        *(("ticks", "step", number) for number in (-1, 10**15, 2**62, 2**63 - 1)),
        *(("steps", name, -MS) for name in ("dur_ps", "device_ps", "idle_ps")),
        *(("steps", name, 2**63 - 1) for name in ("start_ps", "dur_ps", "step")),
        *(("windows", name, -5) for name in ("dur_ps", "events", "bytes", "steps", "window")),
    ],
)
def test_rows_of_values_that_cannot_be_are_left_out_and_counted(tmp_path, table, column, value):
    a_run(tmp_path)
    changed(tmp_path / "parts" / "00000" / f"{table}.parquet", run_folder.TABLES[table], **{column: value})
    rows = "1 of 2 rows" if table == "windows" else "1 of 3 rows"
    with pytest.warns(UserWarning, match=f"^{rows} of {table} left out: {column} is {value:,}$"):
        profile = tp.load(tmp_path)
    assert len(profile.stored) == 3
    assert profile.stored.frame["dur_ps"].is_between(0, 10 * MS).all()
    assert len(tp.phases(profile).steps) == len(profile.stored)
    assert tp.goodput(profile).frame["time_ps"].sum() == 5 * MS


@pytest.mark.parametrize(("column", "value"), [("count", -3), ("total_ps", -MS), ("self_ps", -MS), ("step", 2**62)])
def test_operations_of_values_that_cannot_be_are_left_out_as_they_are_read(tmp_path, column, value):
    a_run(tmp_path)
    changed(tmp_path / "parts" / "00001" / "ops.parquet", schema.OPS, **{column: value})
    profile = tp.load(tmp_path)
    with pytest.warns(UserWarning, match=f"^1 of [0-9]+ rows of ops left out: {column} is {value:,}$"):
        ops = profile.stored.ops
    assert ops["count"].min() > 0
    assert ops.select(pl.col("total_ps", "self_ps", "step").min() >= 0).row(0) == (True, True, True)


@pytest.mark.parametrize(
    ("column", "value"), [("unit_ps", 0), ("unit_ps", -1), ("start_units", 2**63 - 1), ("end_units", -(2**62))]
)
def test_a_file_whose_times_are_no_numbers_of_picoseconds_is_left_out(tmp_path, column, value):
    a_run(tmp_path)
    file = tmp_path / "parts" / "00001" / "ticks.parquet"
    frame = pl.read_parquet(file)
    frame.with_columns(pl.lit(value, frame.schema[column]).alias(column)).write_parquet(file)
    with pytest.warns(UserWarning, match="1 file skipped: parts/00001/ticks.parquet: cannot be read: ") as caught:
        profile = tp.load(tmp_path)
    assert "\n" not in str(caught[0].message)
    assert profile.stored.frame["step"].to_list() == [0, 1]


def test_rows_of_the_journal_that_cannot_be_are_left_out(tmp_path):
    a_run(tmp_path)
    say(tmp_path, state="running", origin_ns=1000, journal_origin_ns=77)
    steps = [(5, "train", 77, 100), (6, "train", 2**63 - 1, 2**63 - 1), (7, "train", 90, 2**62), (8, "train", 50, 99)]
    journal = (run_folder.JournalRow(*step, found_by="mark", before=0, peers_ns=7) for step in steps)
    rows = [run_folder.step_row(row)[0] for row in journal]
    (tmp_path / "latest.bin").write_bytes(b"".join(rows))
    frame = tp.load(tmp_path).stored.frame.filter(pl.col("step") > 2)
    assert frame.select("step", "start_ps", "dur_ps", "peers_ps").rows() == [(5, 0, 23_000, 7000)]


def test_a_journal_of_an_earlier_version_has_its_steps(tmp_path):
    a_run(tmp_path)
    say(tmp_path, state="running", origin_ns=1000, journal_origin_ns=77)
    row = run_folder.step_row(run_folder.JournalRow(5, "train", 77, 100, found_by="mark", before=0))[0]
    (tmp_path / "latest.bin").write_bytes(row.replace(b"\tNone ", b" " * 6))
    frame = tp.load(tmp_path).stored.frame.filter(pl.col("step") > 2)
    assert frame.select("step", "start_ps", "dur_ps", "peers_ps").rows() == [(5, 0, 23_000, None)]


def test_what_is_left_out_of_a_host_is_named_with_it(tmp_path):
    for name in ("a", "b"):
        a_run(tmp_path / name)
    changed(tmp_path / "b" / "parts" / "00000" / "ticks.parquet", run_folder.TICKS, start_ps=-MS)
    with pytest.warns(UserWarning, match="1 of 3 rows of ticks left out"):
        profile = tp.load([tmp_path / "a", tmp_path / "b"])
    assert len(profile.notes) == 1


def test_a_run_whose_parts_are_all_damaged_is_refused(tmp_path):
    a_run(tmp_path)
    for part in ("00000", "00001"):
        (tmp_path / "parts" / part / "ticks.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadProfile, match=r"parts/00000/ticks\.parquet: cannot be read"):
        tp.load(tmp_path)


@given(kept=st.floats(0, 1, exclude_max=True))
@examples(20)
def test_a_file_cut_anywhere_is_named(kept):
    with tempfile.TemporaryDirectory() as folder:
        a_run(Path(folder))
        broken = Path(folder, "parts", "00001", "ops.parquet")
        whole = broken.read_bytes()
        broken.write_bytes(whole[: int(len(whole) * kept)])
        with pytest.warns(UserWarning, match=r"1 file skipped: parts/00001/ops\.parquet"):
            tp.load(folder)


def test_operations_are_those_at_the_time_of_loading(tmp_path):
    a_run(tmp_path)
    expected, profile = tp.load(tmp_path).stored.ops, tp.load(tmp_path)
    assert "ops" not in vars(profile.stored)  # most of a long run: not read yet
    shutil.rmtree(tmp_path)
    assert profile.stored.ops.equals(expected)
    assert profile.stored.ops is profile.stored.ops


def test_operations_that_are_damaged_inside_are_named_when_they_are_read(tmp_path):
    a_run(tmp_path)
    file = tmp_path / "parts" / "00001" / "ops.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + bytes(16) + whole[20:])
    profile = tp.load(tmp_path)
    assert len(profile.stored) == 3
    with pytest.raises(BadProfile, match="damaged operations"):
        _ = profile.stored.ops


def test_a_panic_of_the_parquet_reader_is_a_bad_profile(tmp_path, monkeypatch):
    a_run(tmp_path)

    def stumbles(path, **_):
        raise pl.exceptions.PanicException("range end index 9 out of range")

    monkeypatch.setattr(pl, "scan_parquet", stumbles)
    with pytest.raises(BadProfile, match=r"steps\.parquet: cannot be read: PanicException: range end index"):
        tp.load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "\x00\x01",
        "[" * 100_000,
        '{"tpunb": "1"}',
        '{"tpunb": null}',
        '{"tpunb": 2, "hardware": 4}',
        '{"tpunb": 2, "span_ps": "long"}',
        '{"tpunb": 2, "span_ps": 1e999}',
        '{"tpunb": 2, "overhead": "little"}',
        '{"tpunb": 2, "overhead": []}',
        '{"tpunb": 2, "overhead_interval": [0.1]}',
        '{"tpunb": 2, "overhead_interval": "narrow"}',
        '{"tpunb": 2, "about": ["a model"]}',
        '{"tpunb": 2, "devices": [1]}',
        *(f'{{"tpunb": 3, "span_ps": {span}}}' for span in (2**70, 2**63, -1, 10**400)),
        *(f'{{"tpunb": 3, "{name}_ns": {2**70}}}' for name in ("origin", "journal_origin")),
        f'{{"tpunb": 3, "steps_before": {2**70}}}',
        '{"tpunb": 3, "clock_jumps": [3]}',
        '{"tpunb": 3, "clock_jumps": [["a", "b"]]}',
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_run_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadProfile, match=re.escape(f"{tmp_path / 'run.json'}: not a run's run.json")) as caught:
        tp.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "whose", "hint"),
    [
        (run_folder.VERSION + 1, "a later", "install a later tpunb"),
        (1, "an earlier", "record it again, or read it with the tpunb that wrote it"),
    ],
)
def test_a_run_of_another_version_has_a_hint(tmp_path, version, whose, hint):
    (tmp_path / "run.json").write_text(json.dumps({"tpunb": version}))
    said = f"run.json: run folder of version {version}, by {whose} tpunb; this one reads 2 and {run_folder.VERSION}"
    with pytest.raises(BadProfile, match=re.escape(said)) as caught:
        tp.load(tmp_path)
    assert caught.value.hint == hint


def test_flops_that_no_number_holds_are_unknown(tmp_path):
    a_run(tmp_path)
    say(tmp_path, span_ps=5 * MS, step_flops=10**400)
    assert tp.load(tmp_path).stored.frame["flops"].is_null().all()


def test_inferred_steps_count_on_hosts_without_annotated_ones(tmp_path):
    steps = toy_steps("aab")
    below = {
        name: frame.with_columns(step=-1 - pl.col("step"))
        for name, frame in {"steps": steps.frame, "ops": steps.ops, "devices": steps.devices}.items()
    }
    writer = RunWriter(tmp_path / "unmarked")
    writer.part(0, below)
    writer.facts({"name": "toy"})
    read = tp.load(tmp_path / "unmarked").stored
    assert read.frame["step"].to_list() == [0, 1, 2]
    assert set(read.ops["step"]) == {0, 1, 2}
    noted = pl.DataFrame([("toy", 0, "train", 10**13, 2 * 10**13, *[None] * 7)], schema=run_folder.TICKS, orient="row")
    writer = RunWriter(tmp_path / "marked")
    writer.part(0, {**below, "ticks": noted})
    writer.facts({"name": "toy"})
    read = tp.load(tmp_path / "marked").stored
    assert read.frame.select("step", "kind", "start_ps", "traced").rows() == [(0, "train", 10**13, "none")]
    assert read.ops.is_empty()


def test_the_capturing_worker_is_read_under_the_name_of_its_host(tmp_path):
    steps = toy_steps("ab", host="127.0.0.1:9")
    tick = ("here", 1, "train", 0, 10**9, *[None] * 7)
    noted = pl.DataFrame([tick], schema=run_folder.TICKS, orient="row")
    writer = RunWriter(tmp_path)
    writer.part(0, {"steps": steps.frame, "ops": steps.ops, "windows": steps.windows, "ticks": noted})
    writer.facts({"name": "toy", "host": "here", "own_worker": "127.0.0.1:9"})
    profile = tp.load(tmp_path)
    assert profile.windows["host"].to_list() == ["here"]
    assert profile.stored.frame.select("host", "step").rows() == [("here", 0), ("here", 1)]


# -- layout 2 -------------------------------------------------------------------------------------------------


def test_a_run_folder_of_layout_2_loads_under_the_names_of_today():
    """Its columns were mark, seen, why and answer_ps, its metadata "about", its kinds "test" and "tick"."""
    folder = Path(__file__).with_name("data") / "run_layout_2"
    disk = {"ticks": "mark", "steps": "seen", "windows": "why"}
    for table, column in disk.items():
        assert column in pl.read_parquet_schema(folder / "parts" / "00000" / f"{table}.parquet")
    profile = tp.load(folder)
    steps = tp.steps(profile)
    assert dict(steps.frame["kind"].value_counts().rows()) == {"train": 400, "eval": 80}
    assert dict(steps.frame["traced"].value_counts().rows()) == {"full": 413, "partial": 9, "none": 58}
    assert profile.windows["latency_ps"].to_list()[:2] == [1056092721000, 1500084622000]
    assert profile.windows["reason"].to_list() == 5 * ["continuous"]
    assert steps.metadata["optimizer"] == "Adam"
    assert (profile.name, profile.span_ps) == ("keras_cnn", 5944467938000)


def test_columns_that_a_run_was_recorded_without_are_null(tmp_path):
    new = ["rule", "imbalance_ps", "annotation_ps", "flops_time_share"]
    write(tmp_path, 0, toy_steps("ab"))
    for file in tmp_path.rglob("*.parquet"):
        frame = pl.read_parquet(file)
        frame.drop(new, strict=False).write_parquet(file)
    say(tmp_path)
    assert tp.load(tmp_path).stored.frame.select(new).rows() == [(None,) * 4] * 2


KEYS = st.text(st.characters(codec="utf-8"), min_size=1)


@examples(100)
@given(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.text(" \t\r\n").map(str.encode),
    st.dictionaries(KEYS, st.integers() | st.lists(st.integers(), max_size=2), max_size=3),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_a_chrome_trace_may_begin_with_a_mark_and_white_space(mark, space, top, indent, as_list):
    text = json.dumps([top] if as_list else top, indent=indent, ensure_ascii=False)
    assert storage.is_json(mark + space + text.encode())


def test_a_chrome_trace_of_pytorch_2_13_is_one():
    assert storage.is_json(b' \n{\n  "schemaVersion": 1,\n  "traceEvents": []\n}')


def tagged(field, content):
    return bytes([field << 3 | 2, len(content)]) + content


@examples(200)
@given(st.sampled_from([b" ", b"\t", b"\r", b"\n", b"{", b"["]), st.data())
def test_no_xspace_is_a_chrome_trace_whatever_the_length_of_its_first_plane(length, data):
    """The lengths are white space and braces; planes begin with any of their fields, default values left out."""
    entry = st.sampled_from([b"", b"\x08\x7b", b"\x12\x00", b"\x08\x22\x12\x03\x08\x22{"])
    name = st.binary(max_size=4).map(lambda text: tagged(2, text))
    line = st.sampled_from([b"", b"\x08\x01", b"\x12\x01{"]).map(lambda line: tagged(3, line))
    entries = st.integers(4, 5).flatmap(lambda field: entry.map(lambda entry: tagged(field, entry)))
    stat = st.sampled_from([b"\x08\x01\x18\x22", b"\x08\x22\x2a\x01{"]).map(lambda stat: tagged(6, stat))
    first = data.draw(st.just(b"\x08\x7b") | name | line | entries | stat)
    rest = length[0] - len(first)
    plane = first + (tagged(2, bytes(rest - 2)) if rest > 1 else b"")
    space = tagged(1, plane) + tagged(4, b"host")
    assert not storage.is_json(space)


def test_real_xspaces_are_none_whatever_the_length_of_the_first_plane_would_be(real_profiles):
    for path in sorted(real_profiles.glob("*.xplane.pb")):
        data = path.read_bytes()[:4096]
        assert not storage.is_json(data)
        lengths = [b"\n" + bytes([size]) + data[3:] for size in b"\t\n\r [{"]
        assert not any(map(storage.is_json, lengths))
    for path in sorted(real_profiles.glob("*.trace.json.gz")):
        with gzip.open(path) as file:
            assert storage.is_json(file.read(64))
