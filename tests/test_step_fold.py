"""Steps from lists of events, and from the events of the recorded corpus."""

import random
import zipfile
from collections import Counter
from functools import partial
from itertools import count, cycle
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb import cli, schema
from tpunb.errors import TpunbError
from tpunb.frames.steps import RunEvents
from tpunb.instrument.events import NAMED
from tpunb.instrument.sink import Signature, What
from tpunb.io import parquet
from tpunb.io.run_folder import TABLES
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock
from tpunb.step_stats import recorded_steps, step_fold
from tpunb.step_stats.recorded_steps import steps_of
from tpunb.step_stats.step_fold import Event, StepFold

CORPUS = Path(__file__).parent / "corpus"
SAMPLE = Path(__file__).parents[1] / "datasets" / "sample_profiles" / "keras_cnn"
SCHEMAS = {"events": schema.RUN_EVENTS, **NAMED}
STATE = "float32[9,9], float32[9]"
TAKES_STATE = Signature(f"{STATE}, float32[4,9]", f"{STATE}, float32[]")
RETURNS_NUMBERS = Signature(f"{STATE}, float32[4,9]", "float32[]")


def events(*kinds, **facts):
    """Return events of a millisecond each, one after the other: the kind and the key of each, as "fetch data"."""
    made = []
    for number, text in enumerate(kinds):
        kind, _, key = text.partition(" ")
        made.append(Event(kind, number * 1000, number * 1000 + 999, key=key or None, **facts.get(key, {})))
    return made


def folded(made):
    fold = StepFold()
    return [step for event in made for step in fold.add(event)] + fold.finish()


def kinds(made):
    return dict(Counter(step.kind for step in folded(made)))


def test_a_step_names_its_rule_its_reason_and_the_events_that_make_it():
    steps = folded(events(*["fetch data", "gradient", "gradient", "update sgd"] * 3))
    assert [(step.kind, step.rule) for step in steps] == [("train", "optimizer")] * 3
    assert steps[0].reason == "an optimizer updates the parameters"
    assert [event.event for event in steps[1].events] == ["fetch", "gradient", "gradient", "update"]
    assert (steps[1].start, steps[1].end, steps[1].input) == (4000, 7999, 999)


def test_a_function_that_takes_the_state_and_returns_numbers_evaluates_whatever_its_name():
    facts = {"f": {"arrays": TAKES_STATE}, "train_more": {"arrays": RETURNS_NUMBERS}}
    assert kinds(events(*["call f", "call train_more"] * 5, **facts)) == {"train": 5, "eval": 5}


def test_a_function_that_fetches_for_itself_steps_again_after_the_batch_of_another():
    logged = ["fetch data", "call loss", *["call step"] * 5] * 4
    assert kinds(events("gradient step", *["call step"] * 3, *logged))["train"] == 23
    # after a trial, several of its calls may be for one batch
    assert kinds(events("gradient step", "call step", *logged)) == {"train": 5}


def test_what_the_program_marks_is_a_step_and_what_it_calls_there_is_none():
    mark = {"what": What("tpunb", "tpunb.profiler.capture", "Run.step"), "key": "train"}
    made = []
    for start in range(0, 3000, 1000):
        made += [
            Event("fetch", start, start + 100, key="data"),
            Event("mark", start + 200, start + 200, edge="begin", **mark),
            Event("call", start + 300, start + 400, key="f"),
            Event("mark", start + 200, start + 900, edge="end", **mark),
        ]
    steps = folded(made)
    facts = [(step.kind, step.rule, step.start, step.end, step.input) for step in steps]
    assert facts[0] == ("train", "mark", 200, 900, None)  # only now it is known that the program marks its steps
    assert facts[1:] == [("train", "mark", start, start + 900, 100) for start in (1000, 2000)]
    assert [event.event for event in steps[1].events] == ["fetch", "call", "mark"]


def test_what_evaluates_at_the_end_of_an_annotated_step_is_no_part_of_it():
    mark = {"what": What("jax", "jax.profiler", "StepTraceAnnotation"), "key": "train"}
    made = [Event("call", at, at + 900, key="eval_step") for at in range(-5000, 0, 1000)]  # before the training
    for start in range(0, 40_000, 10_000):
        made.append(Event("mark", start, start, edge="begin", **mark))
        made.append(Event("call", start + 100, start + 200, key="train_step"))
        made += [Event("call", start + at, start + at + 900, key="eval_step") for at in range(1000, 6000, 1000)]
        made.append(Event("mark", start, start + 9000, edge="end", **mark))
    made += [Event("mark", 40_000, 40_000, edge="begin", **mark), Event("mark", 40_000, 40_100, edge="end", **mark)]
    steps = folded(made)  # the last finds the end of the data
    assert Counter(step.kind for step in steps) == {"train": 4, "eval": 25}
    assert {step.end - step.start for step in steps if step.kind == "train"} == {1000}


def test_the_end_of_data_that_a_library_marks_begins_no_step():
    fetch = Event("fetch", 0, 10, What("keras", "keras", "EpochIterator.__next__"), "data")
    assert folded([fetch, fetch, fetch, fetch]) == []


@pytest.fixture
def recorded(tmp_path):
    def load(name):
        with zipfile.ZipFile(CORPUS / f"{name}.zip") as archive:
            archive.extractall(tmp_path / name)
        return tp.load(tmp_path / name)

    return load


ENTRIES = ["jax_evaluates_often", "keras_validates_often", "tensorflow_healthy", "torch_validates_often"]
ENTRIES += ["refuted_jax_accumulates_gradients", "refuted_jax_updates_actor_and_critic", "trainer_plain_torch_save"]


@pytest.mark.parametrize("name", ENTRIES)
def test_recorded_events_make_the_steps_that_the_capture_found(recorded, monkeypatch, name):
    made = tp.steps(recorded(name)).frame
    monkeypatch.setattr("tpunb.io.run_folder.are_whole", lambda run: False)
    found = tp.steps(recorded(name)).frame
    assert made.drop("dur_ps").equals(found.drop("dur_ps"))
    # an earlier version did not record which marks end with the last launch
    assert (made["dur_ps"] - found["dur_ps"]).abs().max() < 1e9


@pytest.mark.parametrize("name", ENTRIES)
def test_other_names_of_what_a_program_has_change_nothing_but_names(recorded, name):
    run = recorded(name).run_events
    words = pl.int_range(pl.len()).map_elements(lambda number: f"f{number:04}", pl.String)
    functions = pl.col("library").ne("keras") & ~pl.col("name").str.contains(r"^Module\.")
    names = run.names.with_columns(name=pl.when(functions).then(words).otherwise("name"))
    keys = run.keys.with_columns(
        name=pl.when(pl.col("name").is_in(["train", "eval", "predict"])).then("name").otherwise(words)
    )
    places = run.places.with_columns(file=words, function=words)
    renamed = RunEvents(run.events, names, places, keys, run.signatures)
    before, after = steps_of(run), steps_of(renamed)
    assert [(step.rule, step.start, step.end) for step in after] == [
        (step.rule, step.start, step.end) for step in before
    ]
    roles = [(old.kind, new.kind) for old, new in zip(before, after, strict=True)]
    assert len({old for old, _ in roles}) == len({new for _, new in roles}) == len({*roles})


@pytest.mark.parametrize("seed", range(5))
def test_events_of_two_threads_make_the_same_steps_in_any_order_of_theirs(recorded, seed):
    run = recorded("torch_validates_often").run_events
    of_one = run.events
    other = of_one.with_columns(thread=pl.col("thread") + 1)
    rows = [of_one, other]
    taken, parts, choose = [0, 0], [], random.Random(seed)
    while any(taken[which] < rows[which].height for which in (0, 1)):
        which = choose.choice([which for which in (0, 1) if taken[which] < rows[which].height])
        length = choose.randint(1, 40)
        parts.append(rows[which].slice(taken[which], length))
        taken[which] += length
    mixed, alone = (
        [(step.kind, step.rule, step.input, step.events) for step in steps]
        for steps in (steps_of(run._replace(events=pl.concat(parts))), steps_of(run) * 2)
    )
    assert sorted(mixed, key=repr) == sorted(alone, key=repr)


class Result:
    """What a device is asked for, ready at one of the first times that it is looked at."""

    def __init__(self, times):
        self.times = times

    def is_ready(self):
        self.times -= 1
        return self.times <= 0

    def block_until_ready(self):
        self.times = 0


def test_a_loop_records_the_steps_that_its_events_make_at_load(monkeypatch):
    """Each signal of a library is an event of the run, from which alone the same steps follow, with their times."""
    now_ns = [10**18]

    def clock():
        now_ns[0] += 1_000_000
        return now_ns[0]

    for module in ("loop", "step_clock"):
        monkeypatch.setattr(f"tpunb.profiler.{module}.monotonic_ns", clock)
    recording = StepClock(lambda kind, number: None)
    recording.events.origin_ns, recording.in_flight.clock = now_ns[0], clock
    loop, choose = Loop(recording), random.Random(1)
    train, evaluate = (What("", "train", name) for name in ("step", "score"))
    modes = {on: What("torch", "torch.nn", f"Module.{'eval' if on else 'train'}") for on in (True, False)}
    program = ""
    for number in range(400):
        recording.drain()  # what was seen by then, and what not yet, is the same in each run of the test
        if number % 20 == 0:
            program = choose.choice(["calls", "calls", "updates", "marks", "keras", "fetches"])
        loop.fetched("data", clock(), clock())
        if program == "calls":
            loop.called("step", clock(), clock(), Result(choose.randint(1, 3)), what=train, signature=TAKES_STATE)
            if number % 5 == 0:
                loop.called("score", clock(), clock(), Result(1), what=evaluate, signature=RETURNS_NUMBERS)
        elif program == "updates":
            loop.learned(clock())
            loop.updated("sgd", clock(), clock(), None)
        elif program == "marks":
            with_mark = recording.begin("train", step=choose.choice([None, number]), explicit=True, rule="mark")
            loop.called("step", clock(), clock(), Result(choose.randint(1, 3)), what=train)
            with_mark.lasts = choose.choice([True, False])
            recording.end(with_mark)
            if choose.choice([True, False]):
                recording.drain()
                loop.called("step", clock(), clock(), Result(2), what=train)
        elif program == "keras":
            recording.begin("predict", complete=number % 20 != 19)  # the last finds the end of the data
            recording.exit(done=True)
        else:
            loop.evaluates(on=number % 2 == 0, what=modes[number % 2 == 0])
    loop.close()
    live = recording.take(final=True)
    recording.close()
    tables = recording.events.take().tables("host")
    empty = {name: pl.DataFrame(schema=columns) for name, columns in SCHEMAS.items()}
    run = RunEvents(**{name: tables.get(name, frame) for name, frame in empty.items()})
    recorded, origin_ns = {}, recording.events.origin_ns
    for step in live:
        start_ps, end_ps = (1000 * (ns - origin_ns) for ns in (step.start_ns, step.end_ns))
        if step.step in recorded:  # the end of Keras' data is of the step before
            *facts, _, _ = recorded[step.step]
            recorded[step.step] = *facts, end_ps, 0
        else:
            recorded[step.step] = step.step, step.kind, step.rule, start_ps, end_ps, 1000 * (step.input_ns or 0)
    steps = steps_of(run)
    folded = [(step.number, step.kind, step.rule, step.start, step.end, step.input or 0) for step in steps]
    assert folded == [*recorded.values()]
    assert len({step.rule for step in live}) >= 4


def test_a_recorded_step_is_explained_by_its_rule_and_events(recorded, tmp_path, capsys):
    steps, path = tp.steps(recorded("torch_validates_often")), str(tmp_path / "torch_validates_often")
    text = steps.explain(1)
    assert text.startswith('step 1 is "train" by the rule "optimizer": an optimizer updates the parameters')
    assert "torch_loops.py" in text
    assert "Adam.step" in text
    with pytest.raises(TpunbError, match="has no step 100000"):
        steps.explain(100_000)
    with pytest.raises(TpunbError, match="holds no events"):
        tp.steps(SAMPLE).explain(0)
    assert cli.main(["steps", path]) == 0
    assert capsys.readouterr().out == "train: 300 steps\n"
    assert cli.main(["steps", path, "--explain"]) == 0
    assert capsys.readouterr().out == f"{steps.explain(0)}\n"


def test_gradients_after_an_update_are_of_the_next_step():
    first, second = folded(events(*["gradient", "update sgd"] * 2))
    assert [event.event for event in first.events] == [event.event for event in second.events] == ["gradient", "update"]


def test_gradients_that_an_epoch_leaves_join_the_step_before_its_evaluation():
    left, held = ["fetch a", "gradient"], ["fetch b"] * 4
    step = [*left, *left, "update sgd"]
    steps = folded(events(*[*step, *step, *left, *held] * 3))
    assert Counter(step.kind for step in steps) == {"train": 6, "eval": 12}
    assert [round((step.end - step.start) / 1000) for step in steps if step.kind == "train"] == [5, 7] * 3


def test_a_pass_over_data_of_the_training_without_gradients_is_an_evaluation():
    step = ["fetch a", "gradient", "update sgd"]
    whole, end = ["fetch a"] * 5, Event("fetch", 0, 0, key="a", end_of="data")
    passes = [*step * 5, end, *whole, end, *step * 4, "fetch a", end]  # the last batch of a training is left out
    made = [e if isinstance(e, Event) else events(e)[0] for e in passes]
    made = [event._replace(start=1000 * at, end=1000 * at + 999) for at, event in enumerate(made)]
    assert kinds(made) == {"train": 9, "eval": 5}


def test_batches_for_a_function_without_gradients_where_another_takes_them_are_an_evaluation():
    rounds = [*["fetch a", "call learn"] * 5, *["fetch b", "call forward"] * 4] * 2
    assert kinds(events("gradient learn", *rounds)) == {"train": 10, "eval": 8}
    assert kinds(events(*rounds)) == {"train": 10, "forward": 8}


@pytest.mark.parametrize("moves", [2, 100])
def test_moves_of_a_policy_before_one_update_are_of_its_step(moves):
    facts = {"act": {"arrays": Signature(f"{STATE}, float32[9]", "int32[9]")}, "learn": {"arrays": TAKES_STATE}}
    rounds = [*["call act"] * moves, "gradient learn", "call learn"]
    steps = folded(events(*rounds * 5, **facts))
    assert [step.kind for step in steps] == ["train"] * 5
    assert [step.start for step in steps] == [turn * (moves + 2) * 1000 for turn in range(5)]


def test_a_policy_that_returns_its_state_does_not_train_where_another_function_takes_gradients():
    acts = Signature(f"{STATE}, float32[9]", f"{STATE}, int32[]")
    facts = {"act": {"arrays": acts}, "learn": {"arrays": TAKES_STATE}}
    move = ["call act", "call learn"]
    moves = ["call act", "gradient learn", "call learn", *move, "call learn", *move * 8]
    assert kinds(events(*moves, **facts)) == {"train": 11}


def test_calls_before_several_updates_are_no_moves_of_a_policy():
    facts = {"embed": {"arrays": Signature(f"{STATE}, float32[9]", "int32[9]")}, "learn": {"arrays": TAKES_STATE}}
    turns = [*["call embed"] * 4, *["gradient learn", "call learn"] * 6]
    assert kinds(events(*turns * 3, **facts))["embed"] >= 9


def test_each_thread_that_trains_has_steps_of_its_own(monkeypatch):
    """So two models are trained in threads of one process."""
    clock, times, thread = StepClock(lambda kind, number: None), count(10**18), cycle([1, 2])
    loop = Loop(clock)
    for _ in range(50):
        current = next(thread)
        monkeypatch.setattr("tpunb.profiler.loop.get_ident", partial(int, current))
        loop.fetched(f"data of {current}", next(times), next(times))
        loop.updated("sgd", next(times), next(times), None)
    loop.close()
    assert [step.kind for step in clock.take(final=True)] == ["train"] * 50


# -- steps of recorded runs, by the rules of today ---------------------------------------------------------------------


@pytest.fixture
def folder(recorded, tmp_path):
    recorded("torch_validates_often")
    return tmp_path / "torch_validates_often"


def record(folder, *tables, **changed):
    """Let tables of the run folder hold something else."""
    for table in tables:
        for path in folder.rglob(f"{table}.parquet"):
            frame = (parquet.scan if table == "ops" else parquet.read)([path], TABLES[table]).lazy().collect()
            path.write_bytes(parquet.pack(frame.with_columns(**changed), TABLES[table]))


def facts(folder):
    steps = tp.steps(tp.load(folder))
    assert steps.full().count > 0
    return steps.frame.select("step", "kind", "rule", "start_ps", "dur_ps", "input_ps", "traced")


def test_steps_that_were_recorded_with_wrong_roles_are_judged_again(folder):
    right = facts(folder)
    record(folder, "ticks", kind=pl.lit("predict"))
    assert facts(folder).equals(right)


def test_steps_that_were_recorded_as_one_are_told_apart_again(folder):
    right = facts(folder)
    record(folder, "ticks", "steps", "ops", step=pl.col("step") // 2)
    again = tp.steps(tp.load(folder))
    columns = "step", "kind", "rule"
    assert again.frame.select(columns).equals(right.select(columns))
    assert again.ops.is_empty()  # what a window measured is of two steps


def test_a_rule_that_changes_changes_the_steps_of_recorded_runs(folder, monkeypatch):
    before = tp.steps(tp.load(folder)).frame
    assert set(before["rule"]) == {"optimizer"}
    monkeypatch.setitem(step_fold.HANDLERS, "update", lambda fold, event: None)
    steps = tp.steps(tp.load(folder))
    assert set(steps.frame["rule"]) == {"gradients"}
    assert "no optimizer is known" in steps.explain(0)


def test_steps_whose_events_are_not_whole_are_as_recorded(folder, monkeypatch):
    record(folder, "ticks", kind=pl.lit("predict"))
    monkeypatch.setattr(recorded_steps, "MOST_NAMES", 1)
    assert set(tp.steps(tp.load(folder)).frame["kind"]) == {"predict"}


def test_steps_of_a_run_whose_events_are_damaged_are_as_recorded(folder):
    record(folder, "ticks", kind=pl.lit("predict"))
    for path in folder.rglob("events.parquet"):
        path.write_bytes(path.read_bytes()[:1000])
    assert set(tp.steps(tp.load(folder)).frame["kind"]) == {"predict"}
