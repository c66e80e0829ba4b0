"""The run folder: whatever ends a capture, and wherever in a write, what lies there loads."""

import json
import re
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Steps
from tpunb.io import raw_files, run_folder
from tpunb.testing import toy_steps

MS = 1_000_000_000
FILES = ["steps.parquet", "ops.parquet", "devices.parquet", "ticks.parquet"]


def ticks(*rows, host="toy"):
    """What our own clock noted: (step, start, end) in milliseconds."""
    spelled = [(host, step, "train", start * MS, end * MS) for step, start, end in rows]
    return pl.DataFrame(spelled, schema=run_folder.TICKS, orient="row")


def ticks_of(steps):
    return steps.frame.select("host", "step", "mark", "start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))


def entry(number, start=0, dur=10, **more):
    """What run.json says of a window, in milliseconds."""
    return {
        "window": number,
        "start_ps": start * MS,
        "dur_ps": dur * MS,
        "answer_ps": dur * MS,
        "bytes": 100,
        "events": 7,
        "steps": 1,
        "error": None,
    } | more


def facts(*entries, **more):
    return {"name": "toy", "host": "toy", "origin_ns": 1, "state": "finished", "windows": list(entries)} | more


def part(steps, numbers, seen="full"):
    """Some steps of a run, as one window saw them."""
    mine = pl.col("step").is_in(numbers)
    frame = steps.frame.filter(mine).with_columns(pl.lit(seen, schema.SEEN).alias("seen"))
    return Steps(frame, steps.ops.filter(mine), steps.devices.filter(mine))


def a_run(folder):
    """Two windows, of steps 0 and 1, and of step 2."""
    steps = toy_steps("aab")
    run_folder.write_window(folder, 0, part(steps, [0, 1]), ticks_of(part(steps, [0, 1])), None)
    run_folder.write_window(folder, 1, part(steps, [2]), ticks_of(part(steps, [2])), None)
    run_folder.write_run(folder, facts(entry(0, 0, 2), entry(1, 2, 2), span_ps=5 * MS))
    return steps


def sums(steps):
    """{(step, op, side): (count, total, self)}"""
    return {
        (row["step"], row["op"], row["side"]): (row["count"], row["total_ps"], row["self_ps"])
        for row in steps.ops.iter_rows(named=True)
    }


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# -- writing: in whole or not at all --------------------------------------------------------------------------


def test_a_window_is_a_folder_of_its_files_and_leaves_nothing_aside(tmp_path):
    a_run(tmp_path)
    assert names(tmp_path) == ["run.json", "windows"]
    assert names(tmp_path / "windows") == ["00000", "00001"]
    assert names(tmp_path / "windows" / "00000") == sorted(FILES)


def test_raw_bytes_lie_beside_the_statistics_untouched(tmp_path):
    run_folder.write_window(tmp_path, 7, None, ticks((0, 0, 1)), b"\x00raw\xff")
    assert names(tmp_path / "windows" / "00007") == ["raw.xplane.pb", "ticks.parquet"]
    assert (tmp_path / "windows" / "00007" / "raw.xplane.pb").read_bytes() == b"\x00raw\xff"


def test_a_reader_in_the_midst_of_a_write_sees_the_windows_before(tmp_path, monkeypatch):
    steps = a_run(tmp_path)
    write, seen = pl.DataFrame.write_parquet, []

    def watched(frame, file):
        write(frame, file)
        seen.append(tp.load(tmp_path).stored.frame["step"].to_list())

    monkeypatch.setattr(pl.DataFrame, "write_parquet", watched)
    late = part(steps, [2])
    run_folder.write_window(tmp_path, 2, late, ticks((3, 4, 5)), b"raw")
    assert seen == [[0, 1, 2]] * len(FILES)
    assert tp.load(tmp_path).stored.frame["step"].to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize("written", range(len(FILES)))
def test_a_window_whose_writing_broke_off_is_not_there_and_the_run_loads(tmp_path, monkeypatch, written):
    steps = a_run(tmp_path)
    write, left = pl.DataFrame.write_parquet, [written]

    def breaks(frame, file):
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        write(frame, file)

    with monkeypatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", breaks)
        with pytest.raises(OSError, match="No space left"):
            run_folder.write_window(tmp_path, 2, part(steps, [2]), ticks((3, 4, 5)), None)
    assert not (tmp_path / "windows" / "00002").exists()
    stored = tp.load(tmp_path).stored
    assert stored.frame["step"].to_list() == [0, 1, 2]
    assert sums(stored) == sums(steps)


def test_run_json_is_the_old_one_until_the_new_one_is_whole(tmp_path, monkeypatch):
    run_folder.write_run(tmp_path, facts(name="old"))
    write, replace, seen = Path.write_text, Path.replace, []

    def watched(path, target):
        seen.append(tp.load(tmp_path).name)
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", watched)
        run_folder.write_run(tmp_path, facts(name="new"))
    assert seen == ["old"]
    assert tp.load(tmp_path).name == "new"

    def half(path, text, **how):
        write(path, text[: len(text) // 2], **how)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        run_folder.write_run(tmp_path, facts(name="newest"))
    assert tp.load(tmp_path).name == "new"


# -- reading what a kill left ---------------------------------------------------------------------------------


def test_a_run_of_two_windows_reads_back_whole(tmp_path):
    steps = a_run(tmp_path)
    profile = tp.load(tmp_path)
    assert profile.stored.frame.rows() == steps.frame.rows()
    assert sums(profile.stored) == sums(steps)
    assert profile.stored.devices.sort("step").rows() == steps.devices.sort("step").rows()
    assert profile.windows.select("host", "window", "start_ps", "dur_ps").rows() == [
        ("toy", 0, 0, 2 * MS),
        ("toy", 1, 2 * MS, 2 * MS),
    ]
    assert (profile.name, profile.origin_ns, profile.span_ps) == ("toy", 1, 5 * MS)
    assert repr(profile) == "Profile(toy, 1 host, 14 events, 0.005 s, 80% of the run observed)"


def test_what_lies_on_disk_counts_not_what_run_json_had_come_to_list(tmp_path):
    steps = a_run(tmp_path)
    run_folder.write_run(tmp_path, facts(entry(0, 0, 2), state="running"))
    profile = tp.load(tmp_path)
    assert sums(profile.stored) == sums(steps)
    assert profile.windows.height == 1
    assert profile.span_ps == 4 * MS  # until the last thing known, since nobody came to write how long it took
    assert len(tp.phases(tp.steps(profile))) >= 1


def test_a_run_killed_before_its_first_window_loads_and_says_it_holds_no_steps(tmp_path):
    run_folder.write_run(tmp_path, facts(state="running"))
    profile = tp.load(tmp_path)
    assert (len(profile.stored), profile.span_ps, profile.observed) == (0, 0, 0.0)
    with pytest.raises(tp.TpunbError, match="toy holds no steps"):
        tp.steps(profile)


def test_a_window_without_steps_still_gives_its_ticks(tmp_path):
    a_run(tmp_path)
    run_folder.write_window(tmp_path, 2, None, ticks((3, 4, 5)), None)
    run_folder.write_run(tmp_path, facts(entry(0), entry(2, 4, 0, error="INTERNAL: refused", events=0, steps=0)))
    profile = tp.load(tmp_path)
    assert profile.stored.frame.select("step", "seen").rows()[-1] == (3, "tick")
    assert profile.windows["error"].to_list() == [None, "INTERNAL: refused"]


@pytest.mark.parametrize("lost", FILES)
def test_a_window_that_lost_a_file_still_loads(tmp_path, lost):
    a_run(tmp_path)
    (tmp_path / "windows" / "00001" / lost).unlink()
    stored = tp.load(tmp_path).stored
    assert stored.frame["step"].to_list() == [0, 1, 2]
    assert stored.frame["seen"].to_list() == ["full", "full", "tick" if lost == "steps.parquet" else "full"]


def test_the_name_of_a_run_may_hold_any_letter(tmp_path):
    for name in ["lr=0.1", "run[1]", "a*b?", "größe 2", "{x}"]:
        steps = a_run(tmp_path / name)
        assert sums(tp.load(tmp_path / name).stored) == sums(steps)


def test_raw_windows_are_read_from_where_they_began(tmp_path, monkeypatch):
    for number, raw in enumerate([b"one", None, b"two"]):
        run_folder.write_window(tmp_path, number, None, ticks(), raw)
    run_folder.write_run(tmp_path, facts(entry(0, 5), entry(1, 15), entry(2, 25)))
    asked = []

    def read_raw(files, origin_ns, begins):
        asked.extend((file.source.read_bytes(), begins[number]) for number, file in files.items())
        return schema.empty(schema.EVENTS)

    monkeypatch.setattr(raw_files, "windows", read_raw)
    profile = tp.load(tmp_path)
    assert asked == []  # nothing is decoded before it is asked for
    assert profile.events.is_empty()
    assert asked == [(b"one", 5 * MS), (b"two", 25 * MS)]


# -- one row a step -------------------------------------------------------------------------------------------


def test_a_step_of_several_ticks_is_one(tmp_path):
    run_folder.write_window(tmp_path, 0, None, ticks((0, 0, 2), (0, 3, 4)), None)
    run_folder.write_window(tmp_path, 1, None, ticks((0, 5, 9), (1, 9, 10)), None)
    run_folder.write_run(tmp_path, facts())
    assert tp.load(tmp_path).stored.frame.select("step", "mark", "start_ps", "dur_ps").rows() == [
        (0, "train", 0, 9 * MS),
        (1, "train", 9 * MS, 1 * MS),
    ]


def test_a_step_that_no_window_saw_is_a_tick_of_unknown_device_time(tmp_path):
    run_folder.write_window(tmp_path, 0, None, ticks((0, 0, 2)), None)
    run_folder.write_run(tmp_path, facts())
    profile = tp.load(tmp_path)
    known = {"host": "toy", "step": 0, "mark": "train", "start_ps": 0, "dur_ps": 2 * MS, "seen": "tick"}
    assert profile.stored.frame.row(0, named=True) == dict.fromkeys(schema.STEPS) | known
    assert profile.stored.ops.is_empty()


def test_a_step_cut_by_two_windows_is_partial_and_its_ops_add_up(tmp_path):
    first, second = toy_steps("a", seen="p"), toy_steps("a", seen="p")
    run_folder.write_window(tmp_path, 0, first, ticks(), None)
    run_folder.write_window(tmp_path, 1, second, ticks((0, 0, 3)), None)
    run_folder.write_run(tmp_path, facts(entry(0), entry(1, 10)))
    stored = tp.load(tmp_path).stored
    assert stored.frame.select("step", "dur_ps", "seen").rows() == [(0, 3 * MS, "partial")]
    assert sums(stored) == {key: tuple(2 * n for n in row) for key, row in sums(first).items()}
    assert len(stored.full()) == 0


def test_device_time_of_the_parts_adds_up_and_an_unknown_part_adds_nothing(tmp_path):
    whole = toy_steps("a")
    known = part(whole, [0], seen="partial")  # busy for 0.5 ms
    unknown = Steps(known.frame.with_columns(device_ps=pl.lit(None), idle_ps=pl.lit(None)), known.ops)
    for number, window in enumerate([known, unknown, known]):
        run_folder.write_window(tmp_path, number, window, ticks(), None)
    run_folder.write_run(tmp_path, facts())
    assert tp.load(tmp_path).stored.frame.select("device_ps", "seen").row(0) == (MS, "partial")


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
        run_folder.write_window(tmp_path, number, window, ticks(), None)
    run_folder.write_run(tmp_path, facts())
    stored = tp.load(tmp_path).stored
    assert stored.frame[fact].to_list() == [whole]
    if fact in schema.DEVICE_FACTS:
        assert stored.devices[fact].to_list() == [whole]


def test_an_operation_is_of_the_category_that_most_of_its_self_time_is_of(tmp_path):
    steps = toy_steps("a")
    for number, (category, self_ps) in enumerate([("copy", 3), (None, 9), ("fusion", 5)]):
        ops = steps.ops.head(1).with_columns(category=pl.lit(category, schema.NAME), self_ps=pl.lit(self_ps))
        run_folder.write_window(tmp_path, number, Steps(steps.frame, ops), ticks(), None)
    run_folder.write_run(tmp_path, facts())
    assert tp.load(tmp_path).stored.ops.select("category", "self_ps").rows() == [("fusion", 17)]


def test_clocks_of_the_windows_are_one_row_a_link(tmp_path):
    rows = [
        [("a", "/device:TPU:0", "flow", 10, 10, 400, 3), ("a", "/device:TPU:1", None, 5, 0, None, None)],
        [("a", "/device:TPU:0", "flow", 40, 30, 800, 1), ("a", "/device:TPU:1", None, 2, 0, None, None)],
    ]
    for number, window in enumerate(rows):
        clocks = pl.DataFrame(window, schema=schema.CLOCKS, orient="row")
        run_folder.write_window(tmp_path, number, None, ticks(), None, clocks=clocks)
    run_folder.write_window(tmp_path, 2, None, ticks(), None)
    run_folder.write_run(tmp_path, facts())
    assert tp.load(tmp_path).clocks.rows() == [
        ("a", "/device:TPU:0", "flow", 50, 40, 700, 3),  # (10 x 400 + 30 x 800) / 40
        ("a", "/device:TPU:1", None, 7, 0, None, None),
    ]


def test_a_run_that_noted_no_clocks_has_none_stored(tmp_path):
    a_run(tmp_path)
    assert tp.load(tmp_path).stored_clocks is None


@pytest.mark.parametrize("old", [{0}, {1}, {0, 1}], ids=["first", "second", "both"])
def test_windows_of_an_earlier_version_lack_facts_and_load(tmp_path, old):
    steps = a_run(tmp_path)
    for number in old:
        window = tmp_path / "windows" / f"{number:05d}"
        for file, known in [
            ("steps", ["host", "step", "mark", "start_ps", "dur_ps", "device_ps", "idle_ps", "seen"]),
            ("ops", ["host", "step", "op", "side", "count", "total_ps", "self_ps"]),
            ("devices", ["host", "device", "step", "start_ps", "dur_ps", "device_ps", "idle_ps"]),
        ]:
            frame = pl.read_parquet(window / f"{file}.parquet")
            frame.select(known).write_parquet(window / f"{file}.parquet")
    stored = tp.load(tmp_path).stored
    assert sums(stored) == sums(steps)
    assert stored.frame["dur_ps"].to_list() == steps.frame["dur_ps"].to_list()
    assert stored.frame.schema == schema.STEPS
    assert stored.devices.height == steps.devices.height


def test_steps_that_only_windows_saw_are_there_too(tmp_path):
    steps = toy_steps("ab")
    run_folder.write_window(tmp_path, 0, steps, ticks(), None)
    run_folder.write_run(tmp_path, facts(entry(0)))
    assert tp.load(tmp_path).stored.frame.rows() == steps.frame.rows()


@given(pattern=st.text("abc", min_size=1, max_size=6), data=st.data())
@settings(max_examples=30, deadline=None)
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
            frame = pl.concat([schema.empty(schema.STEPS), *parts])
            ops = pl.concat([schema.empty(schema.OPS), *(rows for _, rows, _ in seen)])
            run_folder.write_window(Path(folder), number, Steps(frame, ops), ticks(), None)
        run_folder.write_run(Path(folder), facts())
        stored = tp.load(folder).stored
    assert sums(stored) == sums(steps)
    assert stored.frame["step"].to_list() == list(range(len(pattern)))
    assert set(stored.frame.filter(pl.col("seen") == "partial")["step"]) == cut
    assert stored.frame["dur_ps"].to_list() == steps.frame["dur_ps"].to_list()


# -- making way -----------------------------------------------------------------------------------------------


def test_earlier_runs_are_renamed_one_after_the_other(tmp_path):
    run = tmp_path / "run"
    moved = []
    for number in range(3):
        moved.append(run_folder.make_way(run))
        run_folder.write_run(run, facts(name=f"run {number}"))
    assert moved == [None, tmp_path / "run-1", tmp_path / "run-2"]
    assert [tp.load(tmp_path / name).name for name in ("run-1", "run-2", "run")] == ["run 0", "run 1", "run 2"]


def test_a_new_or_an_empty_folder_is_free(tmp_path):
    assert run_folder.make_way(tmp_path) is None
    assert run_folder.make_way(tmp_path / "new") is None
    assert names(tmp_path) == []


def test_what_is_not_a_run_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ValueError, match=re.escape(f"Got {str(place)!r} instead, which holds something else")):
            run_folder.make_way(place)
    assert names(tmp_path) == ["thesis.txt"]


# -- damage ---------------------------------------------------------------------------------------------------


def other_columns(whole):
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pl.DataFrame({"a": [1]}).write_parquet(file.name)
        return Path(file.name).read_bytes()


@pytest.mark.parametrize("file", FILES)
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
    broken = tmp_path / "windows" / "00001" / file
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.raises(BadProfile, match=re.escape(str(broken))) as caught:
        tp.load(tmp_path)
    assert "\n" not in str(caught.value)


@given(kept=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_is_a_bad_profile(kept):
    with tempfile.TemporaryDirectory() as folder:
        a_run(Path(folder))
        broken = Path(folder, "windows", "00001", "ops.parquet")
        whole = broken.read_bytes()
        broken.write_bytes(whole[: int(len(whole) * kept)])
        with pytest.raises(BadProfile, match=re.escape(str(broken))):
            tp.load(folder)


def test_bytes_that_the_parquet_reader_itself_stumbles_over_are_a_bad_profile(tmp_path, monkeypatch):
    a_run(tmp_path)

    def stumbles(path, **_):
        raise pl.exceptions.PanicException("range end index 9 out of range")

    monkeypatch.setattr(pl, "read_parquet", stumbles)
    with pytest.raises(BadProfile, match=r"ticks\.parquet: cannot be read: range end index"):
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
        '{"tpunb": 1, "windows": null}',
        '{"tpunb": 1, "windows": [3]}',
        '{"tpunb": 1, "windows": [{"window": "first"}]}',
        '{"tpunb": 1, "hardware": 4}',
        '{"tpunb": 1, "span_ps": "long"}',
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_run_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadProfile, match=re.escape(f"{tmp_path / 'run.json'}: not a run's run.json")) as caught:
        tp.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_run_of_a_later_version_says_how_to_read_it(tmp_path):
    later = run_folder.VERSION + 1
    (tmp_path / "run.json").write_text(json.dumps({"tpunb": later}))
    with pytest.raises(BadProfile, match=rf"run\.json: a run folder of version {later}, by a later tpunb") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == "pip install --upgrade tpunb"
