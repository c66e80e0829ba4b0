"""The verdict: what took the time of a run, what to do first, and what it would save."""

from dataclasses import replace

import polars as pl
import pytest
from advised_runs import SAVES, S, accounted, padded, run_events, slowing
from sampled_stacks import samples_of

import tpunb as tp
from tpunb import schema
from tpunb.analysis import verdict
from tpunb.testing import toy_steps


@pytest.mark.parametrize(
    ("spans", "options", "sentence"),
    [
        (
            [],
            {"input_ps": 3 * S, "wall_s": 42},
            "Waiting for input took 30.0 s of 42.0 s (71 % of run time). Prepare batches in parallel and ahead of the "
            "steps, cache what every epoch reads: saves up to 30.0 s.",
        ),
        (
            [(41, 10, "callbacks", "Slow.on_epoch_end"), (60, 2, "callbacks", "B.on_train_end")],
            {"wall_s": 60},
            "Callbacks took 10.0 s of 60.0 s (17 % of run time): mostly Slow.on_epoch_end. Call it less often, or do "
            "its work in another thread or after training: saves up to 10.0 s.",
        ),
        ([], {"wall_s": 41}, "Healthy: 40.0 s of 41.0 s (98 % of run time) is productive training."),
    ],
)
def test_the_verdict_says_what_took_the_time_and_what_to_do(spans, options, sentence):
    assert verdict(accounted(*spans, **options)).sentence == sentence


def test_advice_on_something_else_names_it():
    again = (65, 10, "program startup", "tracing f again for (8,)")
    found = verdict(accounted((41, 20, "other", "fit"), (61, 4, "program startup", "tracing f"), again, wall_s=75))
    assert found.account == "other"
    assert found.sentence == (
        "Time of unknown cause took 20.0 s of 75.0 s (27 % of run time): mostly fit. Tracing and compiling again "
        "took 10.0 s of 75.0 s (13 % of run time): mostly f, once, for (8,). Compile once: make "
        "functions outside of the loop, use few shapes (padding, buckets), pass no Python numbers: saves up to 10.0 s."
    )
    assert (found.action, found.cause) == (None, "T001")


def test_what_is_paid_once_before_the_training_is_not_a_fault_of_it():
    assert verdict(accounted((41, 1, "callbacks", "A.on_train_end"), wall_s=60)).sentence == (
        "Healthy: 40.0 s of 60.0 s (67 % of run time) is productive training. Preparation before and between trainings "
        "took 19.0 s, once per run."
    )


@pytest.mark.parametrize(("seconds", "account"), [(9, None), (15, "evaluation")])
def test_an_evaluation_is_what_the_program_asks_for_unless_it_takes_a_fifth(seconds, account):
    assert verdict(accounted((41, seconds, "evaluation", "fit"), wall_s=41 + seconds)).account == account


def test_steps_that_vary_on_a_busy_machine_are_to_be_measured_again():
    steps = accounted(wall_s=76).steps
    late = steps.frame.with_columns(dur_ps=pl.when(pl.col("step") == 9).then(40 * S).otherwise("dur_ps"))
    load = pl.DataFrame([("toy", n * S, 0.3, used, 0) for n, used in enumerate([0.9, 0.8])], schema.LOAD, orient="row")
    quiet = tp.phases(replace(steps, frame=late), lambda _: [0] * 10)
    busy = tp.phases(replace(steps, frame=late, wall=replace(steps.wall, load=load)), lambda _: [0] * 10)
    assert verdict(busy).sentence == (
        "Steps slower than usual took 36.0 s of 76.0 s (47 % of run time): the machine was busy, other programs used "
        "55 % of its processors. Measure again on an idle machine: saves up to 36.0 s."
    )
    assert verdict(busy).saves_ps == 36 * S
    assert verdict(quiet).action != verdict(busy).action
    assert verdict(quiet).account == "step time deviation"


def test_steps_slower_for_a_known_cause_are_not_to_be_measured_again():
    steps = accounted((36, 30, "garbage collection", "generation 2")).steps
    late = steps.frame.with_columns(dur_ps=pl.when(pl.col("step") == 9).then(40 * S).otherwise("dur_ps"))
    load = pl.DataFrame([("toy", 0, 0.1, 0.9, 0)], schema.LOAD, orient="row")
    found = verdict(tp.phases(replace(steps, frame=late, wall=replace(steps.wall, load=load)), lambda _: [0] * 10))
    assert "for the garbage collection of Python" in found.sentence
    assert found.action == "call `gc.freeze()` once all is built"


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("float32[{}, 64] (before: float32[0, 64])", "Use batches of one shape"),
        ("x = float32({}, 64) (before: float32(0, 64))", "Use batches of one shape"),
        ("epoch = {} (before: 0)", "Pass the Python value"),
        ("a new function", "Wrap the function"),
        ("float32[{}] (before: float32[0])", "Collect values in a list"),
    ],
)
def test_the_cause_of_retracing_is_named_with_its_remedy(reason, action):
    function = "jit(append)" if "list" in action else "f"
    why = [f"compiling {function} again for {reason.format(n)}" for n in range(6)]
    retraced = [(40 + 8 * n, 7 + n // 5, "program startup", detail) for n, detail in enumerate(why)]
    found = verdict(accounted(*retraced))
    assert f"mostly {function}, 6 times, for {why[-1].partition(' for ')[2]}. {action}" in found.sentence


def test_what_compiles_again_is_named_before_what_compiles_once():
    once = [(41 + n, 1, "program startup", f"compiling f{n}") for n in range(44)]
    again = [
        (85 + n, 1, "program startup", f"compiling g again for float32[{n}] (before: float32[0])") for n in range(28)
    ]
    found = verdict(accounted(*once, *again, wall_s=113))
    assert found.sentence == (
        "Tracing and compiling again took 28.0 s of 113.0 s (25 % of run time): mostly g, 28 times, for float32[27] "
        "(before: float32[0]). Use batches of one shape, or of few (drop_remainder, padding, buckets of lengths): "
        "`data.batch(32, drop_remainder=True)`: saves up to 28.0 s."
    )


@pytest.mark.parametrize(("cpu", "slower"), [(lambda n: 0.5, True), (lambda n: 1 / (1 + n), False)])
def test_steps_that_take_longer_and_longer_are_not_those_of_a_machine_that_is_busier_and_busier(cpu, slower):
    found = verdict(slowing(cpu))
    assert ("The steps take longer and longer" in found.sentence) is slower
    assert ("grows with each step" in found.sentence) is slower


def test_a_graph_that_is_kept_is_a_remedy_for_steps_of_gradients():
    phases = slowing()
    assert "a graph that is kept" not in verdict(phases).sentence
    frame = phases.steps.frame.with_columns(rule=pl.lit("gradients"))
    assert "a graph that is kept" in verdict(replace(phases, steps=replace(phases.steps, frame=frame))).sentence


def without_kernels(phases):
    steps = replace(phases.steps, devices=phases.steps.devices.clear(), ops=phases.steps.ops.clear())
    return replace(phases, steps=steps)


@pytest.mark.parametrize(("account", "named"), [("profiler", True), ("callbacks", False)])
def test_what_the_profiler_took_is_no_reason_against_eager_steps(account, named):
    phases = accounted((41, 100, account, "begin or end of a window"), wall_s=141)
    found = verdict(with_facts(without_kernels(phases), eager="Keras"))
    assert found.sentence.startswith("The steps run operation by operation") is named


@pytest.mark.parametrize(
    ("starts", "sentence"),
    [
        (range(8), "The steps run operation by operation, 32.0 s of 100.0 s (32 % of run time). Compile"),
        (
            range(41, 91),
            "Tracing and compiling again took 50.0 s of 100.0 s (50 % of run time)",
        ),
    ],
    ids=["the layers", "in each step"],
)
def test_operations_on_their_own_are_compiled_again_after_the_first_steps(starts, sentence):
    phases = accounted(*((at, 1, "program startup", f"compiling jit(add) again for f32[{at}]") for at in starts))
    assert verdict(with_facts(without_kernels(phases), eager="JAX")).sentence.startswith(sentence)


def test_steps_whose_time_is_that_of_operations_are_not_eager():
    phases = with_facts(accounted(wall_s=50), eager="JAX")
    assert phases.steps.frame["device_ps"].sum() > phases.steps.frame["dur_ps"].sum() / 2
    assert "operation by operation" not in verdict(phases).sentence


@pytest.mark.parametrize(("used", "account"), [(1.0, None), (0.8, "data loading")])
def test_waits_for_input_on_a_full_machine_are_not_the_program_s(used, account):
    phases = accounted(input_ps=S // 2, wall_s=41)
    load = pl.DataFrame([("toy", n * S, 0.4, used, 0) for n in range(40)], schema.LOAD, orient="row")
    found = verdict(replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, load=load))))
    assert found.account == account
    assert found.healthy is (account is None)
    if account is None:
        assert found.sentence.endswith(
            "Waiting for input took 5.0 s, as the machine was busy: other programs used 60 % of its processors."
        )


def test_what_compiles_before_the_first_step_is_not_compiled_again():
    spans = [(8 * n, 7, "program startup", f"compiling jit(_normal) again for shape {n}") for n in range(6)]
    phases = accounted(*((40 + at, *rest) for at, *rest in spans))
    assert "retracing" in tp.advise(phases)["rule"]
    frame = phases.steps.frame.with_columns(pl.col("start_ps") + 90 * S)
    assert "retracing" not in tp.advise(replace(phases, steps=replace(phases.steps, frame=frame)))["rule"]


def with_samples(phases, *rows):
    """Phases with samples of (second, place)."""
    data = [("toy", at * S, place, False, False, False) for at, place in rows]
    samples = samples_of(data)
    return replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, samples=samples)))


def test_imports_come_last_and_no_library_is_advised_away():
    places = [(54 + at, "a.py:1 in <module> ← import x") for at in range(40)]
    fit = (41, 59, "fit", "fit")
    assert (
        verdict(with_samples(accounted(fit, (42, 11, "callbacks", "Slow.on_epoch_end")), *places)).account
        == "callbacks"
    )
    alone = verdict(with_samples(accounted(fit), *places))
    assert (alone.account, alone.action, alone.cause) == (None, None, None)
    assert alone.sentence.startswith("Healthy once it trains: 40.0 s of 100.0 s (40 % of run time) is productive")
    assert alone.sentence.endswith("took 60.0 s, once per run: mostly fit, a.py:1 in <module> ← import x.")


@pytest.mark.parametrize(
    ("events", "contains"),
    [
        ([("gradient", "torch", "Tensor.backward"), ("update", "torch", "SGD.step")], True),
        ([("mark", "keras", "TensorFlowTrainer.fit")], True),
        ([("gradient", "torch", "Tensor.backward")], False),
        ([("mark", "keras", "CallbackList.on_train_batch_begin")], False),
    ],
    ids=["a trainer", "fit", "gradients", "a step"],
)
def test_a_line_that_contains_the_training_is_no_place(events, contains):
    spans = [(41, 20, "evaluation", "fit"), (61, 20, "program startup", None), (81, 9, "data loading", None)]
    everywhere = [(at, "a.py:9 in main ← trainer.train") for at in range(41, 90)]
    phases = with_samples(accounted(*spans), *everywhere)
    run = run_events(
        names=[("toy", number, library, "", name) for number, (_, library, name) in enumerate(events)],
        events=[("toy", 1, 0, 0, event, number, 7, *[None] * 6) for number, (event, *_) in enumerate(events)],
        places=[("toy", 7, "/home/a.py", 9, "main")],
    )
    phases = replace(phases, steps=replace(phases.steps, read_run_events=lambda: run))
    assert ("trainer.train" in verdict(phases).sentence) is not contains


@pytest.mark.parametrize(
    ("widths", "kept", "named"), [((128, 128), 128, True), ((128, 64), 128, False), ((128,), 500, False)]
)
def test_padding_is_a_waste_where_all_batches_have_one_width(widths, kept, named):
    found = verdict(padded(accounted(wall_s=41), widths, kept))
    assert (found.cause == "T311") is named
    assert ("30.0 s of 41.0 s" in found.sentence) is named


@pytest.mark.parametrize(
    ("place", "worked", "healthy"),
    [
        ("a.py:9 in read ← time.sleep", None, False),
        ("a.py:9 in read", None, True),
        ("a.py:9 in read", 0.1, True),
        ("a.py:9 in read", 0.9, False),
    ],
)
def test_other_programs_excuse_no_sleep_and_no_work_of_the_thread_that_trains(place, worked, healthy):
    phases = with_samples(accounted((40, 6, "data loading", None), wall_s=46), *((at, place) for at in range(40, 46)))
    samples = phases.steps.wall.samples.with_columns(worked=pl.lit(worked, pl.Float64))
    phases = replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, samples=samples)))
    load = pl.DataFrame([("toy", n * S, 0.4, 1.0, 0) for n in range(40)], schema.LOAD, orient="row")
    wall = replace(phases.steps.wall, load=load)
    assert verdict(replace(phases, steps=replace(phases.steps, wall=wall))).healthy is healthy


def test_less_than_half_of_a_run_is_not_healthy_whatever_used_the_machine():
    phases = accounted(input_ps=2 * S, wall_s=41)
    load = pl.DataFrame([("toy", n * S, 0.1, 1.0, 0) for n in range(40)], schema.LOAD, orient="row")
    found = verdict(replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, load=load))))
    assert not found.healthy
    assert found.sentence.startswith("20.0 s of 41.0 s (49 % of run time) is productive training. Waiting for input")


def test_other_programs_excuse_no_wait_for_input_that_is_longer_than_the_steps():
    load = pl.DataFrame([("toy", n * S, 0.1, 1.0, 0) for n in range(40)], schema.LOAD, orient="row")
    phases = accounted(input_ps=5 * S // 2, wall_s=41)
    found = verdict(replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, load=load))))
    assert found.sentence.startswith("Waiting for input took 25.0 s of 41.0 s (61 % of run time). Prepare batches")


def test_calls_that_launch_steps_are_no_code_between_them():
    def of(launches):
        phases = accounted((50, 10, "program code", None), wall_s=60)
        rows = [("toy", at * S, "a.py:7 in main ← step", False, False, False, launches) for at in range(50, 60)]
        return verdict(
            replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, samples=samples_of(rows))))
        )

    assert of(launches=False).account == "program code"
    assert of(launches=True).account is None


def test_samples_while_devices_compute_do_not_hide_the_place_of_the_others():
    place = "a.py:3 in <module> ← jnp.asarray"
    rows = [("toy", (41 + at) * S, place if at % 4 == 0 else None, False, False, False) for at in range(40)]
    phases = accounted((40, 60, "program code", None))
    wall = replace(phases.steps.wall, samples=samples_of(rows))
    assert f"mostly {place}. " in str(verdict(replace(phases, steps=replace(phases.steps, wall=wall))))


@pytest.mark.parametrize("at", [[41, 43, 45], [4, 12, 24]], ids=["after", "between"])
def test_what_an_iterator_takes_to_end_is_named_after_the_last_training_too(at):
    spans = [(second, 2, "data loading", "end of the data") for second in at]
    found = verdict(with_facts(accounted(*spans, wall_s=50), data="tf.data"))
    assert found.sentence.startswith("Iterators of tf.data that end, and wait for the thread of its autotuning, took 6")
    assert "`options.autotune.enabled = False`: saves up to 6.0 s" in found.sentence


def with_facts(phases, **facts):
    return replace(phases, steps=replace(phases.steps, metadata=facts))


def test_steps_that_run_eagerly_are_named_before_what_they_cause():
    phases = accounted((41, 20, "callbacks", "Slow.on_epoch_end"), wall_s=62)
    steps = replace(phases.steps, devices=phases.steps.devices.clear(), ops=phases.steps.ops.clear())
    phases = replace(phases, steps=steps)
    found = verdict(with_facts(phases, eager="Keras", debug="torch.autograd.set_detect_anomaly"))
    assert found.sentence.startswith(
        "The steps run operation by operation, 40.0 s of 62.0 s (65 % of run time). Compile the model without run_eager"
    )
    assert found.sentence.endswith("set_detect_anomaly is on, and checks each operation.")
    assert found.saves_ps == 40 * S


@pytest.mark.parametrize(
    ("data", "spans", "action"),
    [
        ("tf.data", [], "prefetch, map in parallel, cache (in a notebook"),
        ("tf.data", [(41, 1, "tuning", "trials")], "the pipeline is tuned already: "),
        ("DataLoader", [], "give the DataLoader workers"),
        ("DataLoader with workers", [], "give it more workers (num_workers=)"),
        ("DataLoader with workers", [(41, 1, "tuning", "trials")], "its workers are tuned already"),
        ("arrays", [], "use larger batches"),
        ("unheard of", [], "prepare batches in parallel"),
    ],
)
def test_the_remedy_for_waits_is_one_of_the_data_of_the_program(data, spans, action):
    found = verdict(with_facts(accounted(*spans, input_ps=3 * S, wall_s=42), data=data))
    assert found.account == "data loading"
    assert found.action.startswith(action)


def computing(phases, cpu):
    """Return phases of a job that uses a share of the machine's processors."""
    load = [("toy", at * S, cpu, cpu, 2**30) for at in range(42) if cpu]
    wall = replace(phases.steps.wall, load=pl.DataFrame(load, schema.LOAD, orient="row"))
    return replace(phases, steps=replace(phases.steps, wall=wall))


@pytest.mark.parametrize(
    ("cpu", "usable", "action", "saves_s"),
    [
        (0.1, "4", "prefetch, map in parallel", 30),  # a quarter of the wait remains, in the time of the steps
        (1.0, "4", "cache what is prepared", 30),
        (0.25, "1", "cache what is prepared", 30),  # of a machine with four
    ],
)
def test_threads_are_advised_where_a_processor_is_free(cpu, usable, action, saves_s):
    phases = computing(accounted(input_ps=3 * S, wall_s=42), cpu)
    found = verdict(with_facts(phases, data="tf.data", processors=usable, machine_processors="4"))
    assert found.action.startswith(action)
    assert found.saves_ps == pytest.approx(saves_s * S, abs=0.05 * S)


@pytest.mark.parametrize(("cpu", "saves_s"), [(0.5, 20), (0.05, 25), (None, 25)])  # one of two processors; it sleeps
def test_workers_promise_what_two_of_them_save(cpu, saves_s):
    found = verdict(with_facts(computing(accounted(input_ps=3 * S, wall_s=42), cpu), data="DataLoader"))  # of each 4 s
    assert found.observed.startswith("Waiting for input took 30.0 s")
    assert found.saves_ps == pytest.approx(saves_s * S, abs=0.05 * S)


def test_no_workers_where_they_take_as_long_to_hand_a_batch_over():
    phases = accounted(input_ps=3 * S, wall_s=42)
    times = pl.col("start_ps", "dur_ps", "input_ps", "device_ps")
    frame, wall = phases.steps.frame.with_columns(times // 1000), replace(phases.steps.wall, span_ps=42 * S // 1000)
    phases = replace(phases, steps=replace(phases.steps, frame=frame, wall=wall))
    assert verdict(with_facts(phases, data="DataLoader", processors="2")).action.startswith("prepare each example once")


def test_memory_that_grows_is_said():
    phases = accounted(wall_s=41)
    load = [("toy", n * S, 0.3, 0.3, 2**30 + n * 2**26) for n in range(40)]
    grown = pl.DataFrame(load, schema.LOAD, orient="row")
    flat = grown.with_columns(rss_bytes=2**30)

    def of(load, *traced_s):
        windows = [("toy", n, n * S, S // 2, S // 2, 1, 1, 1, None, None) for n in traced_s]
        windows = pl.DataFrame(windows, schema.WINDOWS, orient="row")
        wall = replace(phases.steps.wall, load=load)
        return verdict(replace(phases, steps=replace(phases.steps, wall=wall, windows=windows))).sentence

    said = "The memory of the process grows steadily, by 225 GiB an hour, to 3.44 GiB."
    assert of(grown).endswith(said)
    assert of(grown, 3, 20).endswith(said)
    assert "memory" not in of(flat)
    # what grows in the seconds of windows alone is what the profiler records
    while_traced = pl.Series([2**30 + max(n - 20, 0) * 2**26 for n in range(40)])
    assert "memory" in of(grown.with_columns(rss_bytes=while_traced), 3)
    assert "memory" not in of(grown.with_columns(rss_bytes=while_traced), *range(18, 40))
    assert "memory" not in of(grown, *range(40))


def test_what_saves_less_than_a_tenth_is_not_the_first_thing_to_do():
    found = verdict(accounted(*SAVES[:1], wall_s=44))
    assert (found.action, found.saves_ps) == (None, None)


def test_evaluation_shorter_than_training_has_no_advice_but_is_named():
    found = verdict(accounted(kinds=[*["eval"] * 3, *["train"] * 7], wall_s=41))
    assert found.sentence.startswith("Evaluation took 12.0 s of 41.0 s (29 % of run time)")


def test_names_of_the_program_are_plain_text():
    evil = "x\x1b[31m\n" + "y" * 500
    assert verdict(accounted((41, 40, "callbacks", evil))).sentence.isprintable()


def test_no_record_of_wall_time_no_verdict():
    assert verdict(tp.phases(toy_steps("aab"))) is None


def test_wrong_arguments():
    with pytest.raises(TypeError, match="must be Phases"):
        verdict(toy_steps("aab"))


def sampled(*places):
    phases = accounted((41, 20, "callbacks", "Slow.on_epoch_end"), wall_s=62)
    rows = [("toy", (41 + number) * S, place, False, False, False) for number, place in enumerate(places)]
    samples = samples_of(rows)
    return verdict(
        replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, samples=samples)))
    ).sentence


def test_the_line_of_most_samples_is_named_beside_the_callback():
    assert "Slow.on_epoch_end, a.py:3 in f ← sleep." in sampled(*["a.py:3 in f ← sleep"] * 4, "b.py:1 in g")
    assert "mostly Slow.on_epoch_end. " in sampled(*["a.py:3 in f ← sleep"] * 4)  # too few


def test_of_lines_of_one_function_the_most_frequent_is_named():
    lines = ["a.py:3 in f", "a.py:4 in f", "a.py:4 in f", "b.py:1 in g", "c.py:1 in h", "a.py:5 in f"]
    assert "Slow.on_epoch_end, a.py:4 in f." in sampled(*lines)
    assert "mostly Slow.on_epoch_end. " in sampled("a.py:3 in f", "b.py:1 in g", "c.py:1 in h", "d.py:1 in i")


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ({"a.py:3 in f ← step": 37, "a.py:2 in f": 3}, ""),  # the step itself
        ({"a.py:3 in f": 24, "a.py:2 in f": 16}, " Of that, 60 % at a.py:3 in f and 40 % at a.py:2 in f."),
        (
            {"a.py:3 in f": 16, "a.py:2 in f": 8, "b.py:1 in g": 12},
            " Of that, 67 % around a.py:3 in f and 33 % at b.py:1 in g.",
        ),
        ({"a.py:3 in f ← backward": 30, None: 10}, " Of that, 75 % at a.py:3 in f ← backward."),
        ({None: 36, "a.py:3 in f": 4}, ""),  # while devices compute
        ({"a.py:3 in f": 2, "a.py:2 in f": 2}, ""),  # too few
    ],
    ids=str,
)
def test_a_healthy_run_names_the_lines_that_take_its_steps(samples, words):
    places = [place for place, number in samples.items() for _ in range(number)]
    phases = with_samples(accounted(wall_s=42), *enumerate(places))
    found = verdict(phases).sentence
    assert found == f"Healthy: 40.0 s of 42.0 s (95 % of run time) is productive training.{words}"


def test_what_a_run_pays_once_has_its_line():
    phases = with_samples(
        accounted((41, 1, "fit", "fit"), wall_s=60), *((43 + at, "a.py:9 in read ← open") for at in range(10))
    )
    assert verdict(phases).sentence.endswith("once per run: mostly a.py:9 in read ← open.")
