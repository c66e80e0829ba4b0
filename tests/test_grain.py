"""Grain pipelines by the same protocol."""

from __future__ import annotations

import sys
import time
from itertools import islice

import numpy as np
import pytest
from optional import lazy

from tpunb.errors import TpunbError
from tpunb.tuning import grain as grain_module
from tpunb.tuning import tournament, trial, tuner
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.job import Job
from tpunb.tuning.parameters import Kind
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.stage_costs import stage_costs
from tpunb.tuning.tournament import Budget
from tpunb.tuning.tuner import tune

grain = lazy("grain")


def rows():
    return grain.MapDataset.range(23).shuffle(seed=4).map(lambda x: x * 3)


def elements(dataset):
    return [np.asarray(element).tolist() for element in dataset]


def clear(patch):
    """Let every candidate win its race, whatever the clock shows."""

    def won(pairs, narrow):
        return RaceResult("faster", 2.0, 1.8, 2.2, len(list(islice(pairs, 2))))

    patch.setattr(tournament, "race", won)
    patch.setattr(tuner, "_bound", lambda default, model: None)


def noisy(x, rng):
    return x + int(rng.integers(100))


PIPELINES = {
    "map dataset": lambda: rows().batch(4),
    "batched after reading": lambda: rows().to_iter_dataset(grain.ReadOptions(num_threads=1)).batch(4),
    "random map": lambda: rows().seed(3).random_map(noisy).to_iter_dataset().batch(5),
    "filtered": lambda: rows().filter(lambda x: x % 2 == 0).to_iter_dataset().filter(lambda x: x > 9).batch(2),
    "repeated": lambda: rows().repeat(2).to_iter_dataset().map(lambda x: x + 1),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("threads", "buffer"), [(0, 1), (1, 2), (4, 16), (2, 500)])
def test_the_same_elements_whatever_the_threads(name, threads, buffer):
    pipeline = GrainPipeline(PIPELINES[name]())
    built = pipeline.build({"read threads": threads, "read buffer": buffer})
    assert elements(built) == elements(PIPELINES[name]())


def test_one_state_restores_into_every_value():
    pipeline = GrainPipeline(PIPELINES["batched after reading"]())
    iterator = iter(pipeline.build({}))
    for _ in range(2):
        next(iterator)
    state, rest = iterator.get_state(), elements(iterator)
    assert len(rest) == 4
    for values in ({"read threads": 0}, {"read threads": 8, "read buffer": 16}):
        other = iter(pipeline.build(values))
        other.set_state(state)
        assert elements(other) == rest


def test_what_is_read_of_a_dataset():
    data = rows().to_iter_dataset(grain.ReadOptions(num_threads=3, prefetch_buffer_size=9)).batch(4)
    parameters = {parameter.name: parameter for parameter in GrainPipeline(data).parameters}
    assert {name: parameter.current for name, parameter in parameters.items()} == {
        "read threads": 3,
        "read buffer": 9,
        "worker processes": 0,
    }
    assert 3 in parameters["read threads"].domain
    assert parameters["read threads"].verdict == "verify"
    assert parameters["worker processes"].verdict == "locked"
    assert "BatchIterDataset" in parameters["worker processes"].reason


def test_workers_are_for_what_is_one_for_one_after_reading():
    (workers,) = (
        parameter for parameter in GrainPipeline(rows().batch(4)).parameters if parameter.name == "worker processes"
    )
    assert workers.verdict == "verify"
    assert workers.domain[0] == 0
    with pytest.raises(TpunbError, match="reads a slice"):
        GrainPipeline(rows().to_iter_dataset().batch(4)).build({"worker processes": 1})


@pytest.fixture
def parsed():
    """Says whether the flags of the command line count as parsed, for the time of a test."""
    from absl import flags

    before = flags.FLAGS.is_parsed()

    def kind(value):
        flags.FLAGS.mark_as_parsed() if value else flags.FLAGS.unparse_flags()

    yield kind
    kind(before)


def test_workers_that_grain_would_not_start_raise_with_a_hint(parsed):
    parsed(False)
    with pytest.raises(TpunbError, match="command-line flags") as raised:
        GrainPipeline(rows()).build({"worker processes": 1})
    assert "mark_as_parsed" in raised.value.hint


@pytest.mark.live
def test_worker_processes_give_the_same(parsed):
    parsed(True)
    pipeline = GrainPipeline(grain.MapDataset.range(23).shuffle(seed=4).batch(5))
    iterator = iter(pipeline.build({"worker processes": 2, "worker buffer": 4}))
    given = elements(iterator)
    iterator.close()
    assert given == elements(pipeline.build({}))


def test_workers_that_would_run_the_program_again_are_locked(monkeypatch, tmp_path):
    def workers():
        (found,) = (each for each in GrainPipeline(rows()).parameters if each.kind is Kind.PROCESSES)
        return found

    program = tmp_path / "train.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    program.write_text("train()")
    assert workers().verdict == "locked"
    assert "if __name__ == '__main__'" in workers().reason
    program.write_text("if __name__ == '__main__':\n    train()")
    assert workers().verdict == "verify"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert workers().verdict == "verify", "a notebook"


def decode(x):
    time.sleep(0.002)
    return x * 3


def test_each_stage_is_timed_in_batches_that_are_the_same():
    def make():
        data = grain.MapDataset.range(40).shuffle(seed=4).map(decode).map(lambda x: x + 1).batch(4)
        return data.to_iter_dataset(grain.ReadOptions(num_threads=2)).map(lambda x: time.sleep(0.004) or x)

    program = make()
    dataset, meters = GrainPipeline(program).metered()
    assert elements(dataset) == elements(make())
    found = {meter.stage: (meter.read, meter.elements) for meter in meters}
    read = ["range:0", "shuffle:1", "map:2(decode)", "map:3", "batch:4"]
    assert found == {name: ("read", 10 if name == "batch:4" else 40) for name in read} | {"map:5": ("", 10)}
    total, after = meters[4], meters[5]
    assert meters[2].alone[0] >= 40 * 0.002
    assert total.wall >= meters[2].alone[0]
    assert after.alone[0] >= 10 * 0.004
    assert elements(program) == elements(make()), "the program's own is read as before"


def test_a_read_costs_what_its_stages_do():
    data = grain.MapDataset.range(400).map(decode).batch(4).to_iter_dataset().map(lambda x: time.sleep(0.004) or x)
    read, after = stage_costs(GrainPipeline(data))
    assert (read.stage, after.stage, after.elements) == ("read", "map:3", 1)
    assert {part.stage: part.elements for part in read.parts} == {"range:0": 4, "map:1(decode)": 4, "batch:2": 1}
    assert read.seconds == sum(part.seconds for part in read.parts) >= 4 * 0.002
    assert after.seconds >= 0.004
    assert after.certain
    assert stage_costs(GrainPipeline(grain.MapDataset.range(0))) == ()


def test_the_stages_of_a_loader_are_timed_too():
    read, *_ = stage_costs(GrainPipeline(loader()))
    assert read.stage == "read"
    assert read.parts[0].stage.startswith("source:0")


@pytest.mark.live
@pytest.mark.parametrize(("threads", "buffer"), [(0, 0), (1, 1)])
def test_the_data_alone_are_tuned_by_threads_with_their_buffer(threads, buffer, monkeypatch):
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    data = grain.MapDataset.range(400).map(decode).batch(4).to_iter_dataset(options)
    clear(monkeypatch)
    found = tune(data, budget=Budget(600, trials=2))
    values = found.trials[1].values
    assert values["read buffer"] >= values["read threads"] > 1
    assert found.trials[1].equal
    stages = next(message for message in found.messages if message.code == "stages")
    assert "map:1(decode)" in str(stages)
    assert elements(found.apply(data)) == elements(data)


def drawn(x):
    return x + np.random.random()


def timed(x):
    return x + time.perf_counter_ns()


@pytest.mark.live
@pytest.mark.parametrize(("function", "code"), [(timed, "not repeatable"), (drawn, "none faster")])
def test_a_function_whose_result_varies_is_named(function, code, monkeypatch):
    monkeypatch.setattr(tuner, "_bound", lambda default, model: None)
    monkeypatch.setattr(trial, "_HICCUP", 600)
    data = grain.MapDataset.range(4000).shuffle(seed=1).map(decode).map(function).batch(4)
    data = data.to_iter_dataset(grain.ReadOptions(num_threads=0))
    job = Job((None, data), lambda model, batch: (batch, np.random.random()))  # between the batches, or after many
    found = tune(job, search=threads_search, budget=Budget(600, trials=2))
    assert found.best == {}
    codes = [message.code for message in found.messages]
    assert code in codes
    sentence = str(found.messages[codes.index("varying")])
    assert sentence.startswith(f"map:3({function.__name__}) gives another element")


def threads_search(space):
    yield {"read threads": 8, "read buffer": 64}


def test_a_slice_of_filtered_rows_would_come_in_another_order():
    (workers,) = (
        parameter
        for parameter in GrainPipeline(PIPELINES["filtered"]()).parameters
        if parameter.name == "worker processes"
    )
    assert workers.verdict == "locked"
    kept = GrainPipeline(rows().filter(lambda x: x % 2 == 0))
    assert "FilterMapDataset" in kept.parameters[-1].reason


def test_every_input_of_a_mix_is_read_by_its_own_threads():
    def make():
        return grain.IterDataset.mix([rows().to_iter_dataset(), grain.MapDataset.range(9).to_iter_dataset()])

    pipeline = GrainPipeline(make())
    names = [parameter.name for parameter in pipeline.parameters]
    assert names == ["1/read threads", "1/read buffer", "2/read threads", "2/read buffer", "worker processes"]
    assert elements(pipeline.build({"1/read threads": 0, "2/read threads": 2})) == elements(make())


def test_the_program_keeps_its_own():
    data = rows().to_iter_dataset(grain.ReadOptions(num_threads=1)).batch(4)
    GrainPipeline(data).build({"read threads": 0})
    assert {parameter.name: parameter.current for parameter in GrainPipeline(data).parameters}["read threads"] == 1


def test_code_to_paste():
    pipeline = GrainPipeline(rows().batch(4))
    assert pipeline.as_code({"read threads": 4, "read buffer": 16, "worker processes": 2}).splitlines() == [
        "ds = ds.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=16))",
        "ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))",
    ]
    ahead = pipeline.as_code({"worker processes": 2, "worker buffer": 4})
    assert ahead == "ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4))"
    assert pipeline.as_code({"worker buffer": 4}) == "", "without processes"
    assert pipeline.as_code({"read threads": 16}) == ""


def test_only_grain_datasets():
    with pytest.raises(TypeError, match="must be a dataset of Grain"):
        GrainPipeline([1, 2])


def test_an_unsupported_version_of_grain_raises(monkeypatch):
    grain_module._self_check.cache_clear()
    monkeypatch.setattr(grain_module, "_rebuilt", lambda node, options: node)
    with pytest.raises(TpunbError, match="this version of Grain is not supported"):
        GrainPipeline(rows())
    grain_module._self_check.cache_clear()


def loader(**options):
    sampler = grain.samplers.IndexSampler(
        num_records=23, shuffle=True, seed=4, num_epochs=2, shard_options=grain.sharding.NoSharding()
    )
    return grain.DataLoader(
        data_source=list(range(23)), sampler=sampler, operations=[grain.transforms.Batch(4)], **options
    )


@pytest.mark.parametrize(("threads", "buffer"), [(0, 1), (2, 3), (8, 64)])
def test_a_loader_gives_the_same_elements_and_takes_the_same_state(threads, buffer):
    given = loader()
    built = GrainPipeline(given).build({"read threads": threads, "read buffer": buffer})
    assert isinstance(built, grain.DataLoader)
    assert elements(built) == elements(loader())
    iterator = iter(given)
    next(iterator)
    other = iter(built)
    other.set_state(iterator.get_state())
    assert np.asarray(next(other)).tolist() == np.asarray(next(iterator)).tolist()
    assert given._dataset is GrainPipeline(given)._root, "the program's own stays as it is"


def test_what_is_read_of_a_loader():
    pipeline = GrainPipeline(loader(read_options=grain.ReadOptions(num_threads=3, prefetch_buffer_size=9)))
    parameters = {parameter.name: parameter for parameter in pipeline.parameters}
    assert {name: (parameter.current, parameter.verdict) for name, parameter in parameters.items()} == {
        "read threads": (3, "verify"),
        "read buffer": (9, "verify"),
        "worker processes": (0, "locked"),
    }
    code = pipeline.as_code({"read threads": 8})
    assert code == "read_options=grain.ReadOptions(num_threads=8, prefetch_buffer_size=9),  # of grain.DataLoader(...)"
    assert elements(loader(**eval(f"dict({code.partition('#')[0]})", {"grain": grain}))) == elements(loader())


def test_a_loader_with_workers_keeps_their_number(parsed):
    parsed(True)
    pipeline = GrainPipeline(loader(worker_count=2))
    found = {each.name: (each.current, each.verdict) for each in pipeline.parameters}
    assert found == {
        "read threads": (16, "verify"),
        "read buffer": (500, "verify"),
        "worker processes": (2, "locked"),
        "worker buffer": (1, "verify"),
    }
    assert pipeline.as_code({"worker buffer": 4}) == "worker_buffer_size=4,  # of grain.DataLoader(...)"
    again = GrainPipeline(pipeline.build({"worker buffer": 4, "read threads": 2}))
    assert {each.name: each.current for each in again.parameters} == {
        "read threads": 2,
        "read buffer": 500,
        "worker processes": 2,
        "worker buffer": 4,
    }
    assert stage_costs(pipeline) == (), "only processes make its batches"


def test_processes_of_the_program_are_adjustable_with_what_they_run(parsed):
    parsed(True)
    options = grain.MultiprocessingOptions(num_workers=3, per_worker_buffer_size=5)

    def make():
        return rows().to_iter_dataset(grain.ReadOptions(2, 8)).mp_prefetch(options, worker_init_fn=print).batch(4)

    pipeline = GrainPipeline(make())
    found = {each.name: (each.current, each.verdict) for each in pipeline.parameters}
    assert found == {
        "read threads": (2, "verify"),
        "read buffer": (8, "verify"),
        "worker processes": (3, "verify"),
        "worker buffer": (5, "verify"),
    }
    alone = pipeline.build({"worker processes": 0})
    assert elements(alone) == elements(rows().batch(4))
    other = GrainPipeline(pipeline.build({"worker processes": 1, "worker buffer": 2, "read threads": 4}))
    assert [each.current for each in other.parameters] == [4, 8, 1, 2]
    assert other._workers.start is print
    assert [each.current for each in pipeline.parameters] == [2, 8, 3, 5]
    code = pipeline.as_code({"worker processes": 1, "worker buffer": 2})
    assert code == "ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=2))"
    assert (
        pipeline.as_code({"worker processes": 0})
        == "ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=0, per_worker_buffer_size=5))"
    )
    read, _ = stage_costs(pipeline)
    assert [part.stage for part in read.parts] == ["range:0", "shuffle:1", "map:2"]


def test_batches_made_in_processes_keep_their_number():
    data = rows().to_iter_dataset().batch(4).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    *_, workers, ahead = GrainPipeline(data).parameters
    assert (workers.current, workers.verdict) == (2, "locked")
    assert "BatchIterDataset" in workers.reason
    assert ahead.verdict == "verify"


def test_workers_of_several_inputs_are_left_alone():
    options = grain.MultiprocessingOptions(num_workers=2)
    inputs = [rows().to_iter_dataset().mp_prefetch(options) for _ in range(2)]
    assert "several of its inputs have worker processes" in GrainPipeline(grain.IterDataset.mix(inputs)).refusal
    assert GrainPipeline(inputs[0]).refusal is None
