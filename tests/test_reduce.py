"""Steps: found by marks, a Steps line, repeated modules or a rule; reduced with every instant counted once."""

from dataclasses import replace

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.errors import BadProfile, NoSteps
from tpunb.frames import Profile
from tpunb.step_stats import boundaries, reduce
from tpunb.testing import toy_events, toy_steps

CPU, TPU = "/host:CPU", "/device:TPU:0"
US = 1_000_000

WINDOWS = {name: dtype for name, dtype in schema.WINDOWS.items() if name != "reason"}


def reduced(events):
    return reduce.reduce(events, boundaries.find(events)[0])


def table(steps):
    """{(step, side, op): (count, total, self)} in microseconds."""
    return {
        (row["step"], row["side"], row["op"]): (row["count"], row["total_ps"] // US, row["self_ps"] // US)
        for row in steps.ops.iter_rows(named=True)
    }


def profile_of(events):
    return Profile(
        "toy",
        None,
        pl.DataFrame(schema=schema.WINDOWS),
        pl.DataFrame(schema=schema.HARDWARE),
        0,
        read_events=lambda: events,
    )


MARKED = toy_events(
    (CPU, "python", "train", 0, 100, 7),
    (CPU, "python", "train", 100, 50, 8),
    (CPU, "worker", "MatMul", 10, 40),
    (CPU, "worker", "Mul", 20, 10),
    (CPU, "worker", "MatMul", 110, 20),
    (CPU, "worker", "MatMul", 500, 20),  # after the last step: of no step
)


def test_marks_make_steps():
    steps = reduced(MARKED)
    assert steps.frame.select("step", "kind", "start_ps", "dur_ps", "traced").rows() == [
        (7, "train", 0, 100 * US, "full"),
        (8, "train", 100 * US, 50 * US, "full"),
    ]


def test_ops_are_counted_with_total_and_self_time():
    assert table(reduced(MARKED)) == {
        (7, "host", "MatMul"): (1, 40, 30),
        (7, "host", "Mul"): (1, 10, 10),
        (8, "host", "MatMul"): (1, 20, 20),
    }


def test_device_time_is_unknown_without_a_device():
    assert reduced(MARKED).frame["device_ps"].to_list() == [None, None]


def test_numbers_that_come_again_are_numbered_on():
    events = toy_events(
        *((CPU, "python", "train", 1000 * epoch + 10 * k, 9, k) for epoch in range(3) for k in range(4))
    )
    frame = reduced(events).frame
    assert frame["step"].to_list() == list(range(12))
    assert set(frame["dur_ps"]) == {9 * US}


def test_a_training_and_an_evaluation_step_of_one_number_are_two():
    events = toy_events(
        (CPU, "python", "train", 0, 10, 0), (CPU, "python", "train", 10, 10, 1), (CPU, "python", "eval", 20, 10, 0)
    )
    assert reduced(events).frame.select("step", "kind").rows() == [(0, "train"), (1, "train"), (2, "eval")]


def test_a_step_marked_on_two_threads_is_one():
    events = toy_events((CPU, "python", "train", 0, 100, 3), (CPU, "worker", "train", 20, 100, 3))
    assert reduced(events).frame.select("step", "start_ps", "dur_ps").rows() == [(3, 0, 120 * US)]


def test_a_step_ends_where_the_next_begins_though_its_annotation_is_longer():
    events = toy_events((CPU, "python", "train", 0, 120, 3), (CPU, "worker", "train", 100, 50, 4))
    assert reduced(events).frame.select("step", "start_ps", "dur_ps").rows() == [
        (3, 0, 100 * US),
        (4, 100 * US, 50 * US),
    ]


def test_a_step_of_the_clock_is_traced_in_full_if_its_annotation_begins_within_it():
    events = toy_events((CPU, "python", "train", 5, 50, 3), (CPU, "python", "train", 9000, 50, 4))
    ticks = pl.DataFrame({"step": [3, 4], "kind": "train", "start_ps": [0, 60 * US], "end_ps": [60 * US, 100 * US]})
    ticks = ticks.with_columns(found_by=pl.lit("mark"))
    steps = boundaries.from_clock(events, ticks)
    assert steps.select("step", "traced", "annotation_ps").rows() == [(3, "full", 50 * US), (4, "partial", None)]


def test_a_run_with_only_failed_windows_names_the_first_error():
    windows = pl.DataFrame([("toy", 0, 0, 0, 1, 0, 0, 0, "busy")], schema=WINDOWS, orient="row")
    failed = Profile("toy", None, windows, pl.DataFrame(schema=schema.HARDWARE), 0, stored=toy_steps(""))
    with pytest.raises(NoSteps, match="1 window failed, the first with 'busy'"):
        tp.steps(failed)


def test_a_run_whose_windows_wait_for_a_framework_has_no_other_profiler_to_stop():
    windows = pl.DataFrame([("toy", 0, 0, 0, 1, 0, 0, 0, "PyTorch: step times only")], schema=WINDOWS, orient="row")
    waited = Profile("toy", None, windows, pl.DataFrame(schema=schema.HARDWARE), 0, stored=toy_steps(""))
    with pytest.raises(NoSteps, match="none was marked") as caught:
        tp.steps(waited)
    assert "mark them in the program" in caught.value.hint


def test_marks_come_before_modules():
    events = toy_events(
        (CPU, "python", "train", 0, 100, 3),
        (TPU, "XLA Modules", "jit_f(1)", 0, 10),
        (TPU, "XLA Modules", "jit_f(1)", 10, 10),
        (TPU, "XLA Ops", "fusion.1", 2, 10),
    )
    intervals, rule = boundaries.find(events)
    assert rule == "annotation"
    steps = reduce.reduce(events, intervals)
    assert steps.frame.select("step", "device_ps", "idle_ps").rows() == [(3, 10 * US, 90 * US)]


@pytest.mark.parametrize("name", ["4", "train 4", "step 4"])
def test_a_steps_line_makes_steps(name):
    events = toy_events((TPU, "Steps", name, 10, 100), (TPU, "XLA Ops", "fusion", 20, 30), (CPU, "main", "Send", 15, 5))
    steps = reduced(events)
    assert boundaries.find(events)[1] == "steps line"
    assert table(steps) == {(4, "device", "fusion"): (1, 30, 30), (4, "host", "Send"): (1, 5, 5)}
    assert steps.frame.select("dur_ps", "device_ps", "idle_ps").row(0) == (100 * US, 30 * US, 70 * US)


def test_repeated_modules_make_steps_from_one_run_to_the_next():
    events = toy_events(
        (TPU, "XLA Modules", "jit_init(9)", 0, 5),
        *((TPU, "XLA Modules", "jit_f(1)", 10 + 20 * i, 15) for i in range(3)),
        *((TPU, "XLA Ops", f"fusion.{i}", 10 + 20 * i, 12) for i in range(3)),
    )
    steps = reduced(events)
    assert boundaries.find(events)[1] == "module"
    assert steps.frame.select("step", "kind").rows() == [(0, "jit_f"), (1, "jit_f"), (2, "jit_f")]
    # the wait between two runs is the earlier one's; the last ends with its run
    assert [ps // US for ps in steps.frame["dur_ps"]] == [20, 20, 15]
    assert [ps // US for ps in steps.frame["idle_ps"]] == [8, 8, 3]


def test_repeated_calls_of_a_compiled_function_make_steps_from_one_call_to_the_next():
    name = "PjitFunction(step)"
    events = toy_events(
        *((CPU, "python", name, 10 * i, 3) for i in range(3)),
        *((CPU, "python", name, 10 * i + 1, 1) for i in range(3)),  # the profiler notes each call twice
        (CPU, "python", "PjitFunction(init)", 40, 9),  # longer, but once
        (CPU, "worker", "MatMul", 12, 4),
    )
    assert boundaries.find(events)[1] == "calls"
    steps = reduced(events)
    assert steps.frame.select("step", "kind", "start_ps", "dur_ps").rows() == [
        (0, "step", 0, 10 * US),
        (1, "step", 10 * US, 10 * US),
        (2, "step", 20 * US, 3 * US),
    ]
    assert table(steps)[1, "host", "MatMul"] == (1, 4, 4)


def test_eight_skewed_cores_make_one_step_not_eight():
    rows = []
    for core in range(8):
        for run in range(20):
            start = 1000 * run + 150 * core
            rows.append((f"/device:TPU:{core}", "XLA Modules", "jit_f(1)", start, 900))
            rows.append((f"/device:TPU:{core}", "XLA Ops", "fusion.7", start, 800))
    steps = reduced(toy_events(*rows))
    assert len(steps) == 20
    assert steps.devices.height == 160
    assert table(steps)[3, "device", "fusion"] == (8, 8 * 800, 8 * 800)
    assert steps.frame["device_ps"].unique().to_list() == [800 * US]  # the mean over the cores, not their sum


def test_a_core_that_missed_the_first_run_lines_up_with_the_others():
    rows = [("/device:TPU:0", "XLA Modules", "jit_f(1)", 1000 * run, 900) for run in range(6)]
    rows += [("/device:TPU:1", "XLA Modules", "jit_f(1)", 1000 * run + 20, 900) for run in range(1, 6)]
    rows += [("/device:TPU:1", "XLA Ops", "copy", 1000 * run + 20, 1) for run in range(1, 6)]
    assert reduced(toy_events(*rows)).devices["step"].to_list() == [1, 2, 3, 4, 5]


def test_lanes_that_repeat_each_other_are_counted_once():
    events = toy_events(
        (TPU, "Steps", "0", 0, 100),
        (TPU, "XLA Ops", "fusion.1", 0, 50),
        (TPU, "TensorFlow Ops", "MatMul", 0, 50),
        (TPU, "TensorFlow Name Scope", "dense", 0, 50),
        (TPU, "Async XLA Ops", "async-copy", 0, 50),
        (TPU, "XLA Modules", "jit_f(1)", 0, 50),
    )
    assert table(reduced(events)) == {(0, "device", "fusion"): (1, 50, 50)}


def test_streams_of_a_gpu_are_merged_into_one_busy_time():
    gpu = "/device:GPU:0"
    events = toy_events(
        (gpu, "Steps", "0", 0, 100),
        (gpu, "Stream #1(Compute)", "gemm", 0, 50),
        (gpu, "Stream #2(MemcpyH2D)", "MemcpyH2D", 40, 30),
        (gpu, "TensorFlow Ops", "MatMul", 0, 50),
    )
    steps = reduced(events)
    assert steps.frame.select("device_ps", "idle_ps").row(0) == (70 * US, 30 * US)
    assert set(table(steps)) == {(0, "device", "gemm"), (0, "device", "MemcpyH2D")}


def test_noise_is_no_operation():
    events = toy_events(
        (CPU, "python", "train", 0, 100, 0),
        (CPU, "python", "EagerLocalExecute: __inference_f_12", 1, 90),
        (CPU, "worker", "ThreadpoolListener::Record", 3, 0),
        (CPU, "worker", "ExecutorState::Process", 4, 80),
        (CPU, "worker", "Iterator::Prefetch", 5, 10),
        (CPU, "worker", "end: hlo", 5, 0),
        (CPU, "worker", "$threading.py:637 wait", 5, 40),
    )
    assert set(table(reduced(events))) == {(0, "host", "Iterator::Prefetch")}


def test_a_profile_without_steps_lists_the_rules():
    with pytest.raises(NoSteps, match=r"step_num.*Steps line.*module") as caught:
        tp.steps(profile_of(toy_events((CPU, "main", "end: hlo", 0, 10))))  # no operation
    assert "StepTraceAnnotation" in caught.value.hint
    assert "host, step, start_ps and dur_ps" in caught.value.hint


CAPTURE = toy_events(
    (CPU, "python", "aten::linear", 10, 40),
    (CPU, "python", "cudaLaunchKernel", 12, 1),
    ("/device:GPU:0", "Stream #7", "gemm", 30, 50),
)


def test_without_any_rule_the_whole_capture_is_one_step_and_says_so():
    with pytest.warns(UserWarning, match=r"the whole capture is one step; .*torch\.profiler\.schedule and prof\.step"):
        steps = tp.steps(profile_of(CAPTURE))
    figures = steps.frame.select("step", "kind", "rule", "start_ps", "dur_ps", "device_ps").rows()
    assert figures == [(0, "capture", "whole", 10 * US, 70 * US, 50 * US)]
    assert repr(steps) == "Steps(1 step, 3 ops, 1 traced in full, inferred from the whole capture)"
    assert len(tp.phases(steps)) == 1


def test_the_whole_capture_and_each_module_run_can_be_asked_for():
    events = toy_events(
        *((TPU, "XLA Modules", f"jit_{name}(1)", start, 10) for name, start in (("f", 0), ("g", 10), ("f", 30))),
        *((TPU, "XLA Ops", "fusion.1", start, 10) for start in (0, 10, 30)),
        *(("/device:TPU:1", "XLA Modules", f"jit_{name}(1)", start + 2, 9) for name, start in (("f", 0), ("f", 30))),
    )
    whole = tp.steps(profile_of(events), by="whole").frame
    assert whole.select("rule", "dur_ps", "device_ps").rows() == [("whole", 41 * US, 30 * US)]
    modules = tp.steps(profile_of(events), by="module").frame
    assert modules.select("step", "kind", "rule", "device_ps").rows() == [
        (0, "jit_f", "module", 10 * US),
        (1, "jit_g", "module", 10 * US),
        (2, "jit_f", "module", 10 * US),
    ]
    with pytest.raises(NoSteps, match="by the rule 'module'"):
        tp.steps(profile_of(CAPTURE), by="module")
    with pytest.raises(ValueError, match=r"must be a function, 'whole' or 'module'\. Got 'modules' instead"):
        tp.steps(profile_of(CAPTURE), by="modules")


def test_each_run_of_a_module_is_a_step_where_none_ran_twice():
    modules = [("jit_step", 100, 50), ("jit_add", 150, 1), ("jit_sample", 160, 5)]
    events = toy_events(
        (CPU, "python", "load", 0, 90),  # before the program: no idle time of a step
        *((TPU, "XLA Modules", f"{name}(1)", start, dur) for name, start, dur in modules),
        *((TPU, "XLA Ops", "fusion.1", start, dur) for _, start, dur in modules),
        (CPU, "python", "save", 200, 800),
    )
    with pytest.warns(UserWarning, match="each run of a module is one step"):
        steps = tp.steps(profile_of(events))
    assert steps.frame.select("kind", "dur_ps", "idle_ps", "rule").rows() == [
        ("jit_step", 60 * US, 9 * US, "module"),  # up to the next, with the primitive between them
        ("jit_sample", 5 * US, 0, "module"),
    ]


@pytest.mark.parametrize("name", ["convert_element_type", "add", "_threefry_split", "broadcast_in_dim", "true_divide"])
def test_a_primitive_outside_jit_makes_no_steps_beside_a_function(name):
    def calls(*functions):
        spelled = ((CPU, "python", f"PjitFunction({f})", 10 * i, 9 - 8 * (f == "dot")) for i, f in enumerate(functions))
        return boundaries.find(toy_events(*spelled))[0]["kind"].to_list()

    assert calls(name, name, "dot", name, "dot") == ["dot", "dot"]
    assert calls(name, "train_step", name) == []  # rather the whole capture than a step a primitive
    assert calls(name, name) == [name, name]

    def runs(*functions):
        spelled = ((TPU, "XLA Modules", f"jit_{f}(3)", 10 * i, 9 - 8 * (f == "f")) for i, f in enumerate(functions))
        return boundaries.find(toy_events(*spelled))[0]["kind"].to_list()

    assert runs(name, name, "f", name, "f") == ["jit_f", "jit_f"]


def test_each_host_has_the_steps_that_it_has_alone():
    rows = {
        "a": [("f", 0, 9), ("f", 10, 9), ("g", 20, 1)],
        "b": [("f", 0, 1), ("g", 10, 5), ("g", 20, 5), ("g", 30, 5)],
    }
    alone = [
        toy_events(*((TPU, "XLA Modules", f"jit_{f}(1)", start, dur) for f, start, dur in spelled), host=host)
        for host, spelled in rows.items()
    ]
    together = boundaries.find(pl.concat([alone[0], alone[1].with_columns(pl.col("lane") + 1)]))[0]
    apart = pl.concat([boundaries.find(events)[0] for events in alone])
    columns = ["host", "step", "kind", "start_ps", "end_ps", "rule"]
    assert together.select(columns).sort(columns).equals(apart.select(columns).sort(columns))
    assert apart["kind"].to_list() == ["jit_f"] * 2 + ["jit_g"] * 3


def test_the_duration_of_an_annotation_stays_beside_the_step_time():
    assert reduced(MARKED).frame.select("rule", "annotation_ps").rows() == [
        ("annotation", 100 * US),
        ("annotation", 50 * US),
    ]
    ticks = pl.DataFrame(
        {"step": [7, 9], "kind": ["train"] * 2, "start_ps": [0, 150 * US], "end_ps": [120 * US, 900 * US]}
    )
    steps = reduce.reduce(MARKED, boundaries.from_clock(MARKED, ticks.with_columns(found_by=pl.lit("mark")))).frame
    assert steps.select("step", "rule", "annotation_ps").rows() == [(7, "clock", 100 * US), (9, "clock", None)]


def test_the_callers_rule_makes_steps():
    rule = lambda profile: pl.DataFrame({"host": ["toy"], "step": [5], "start_ps": [0], "dur_ps": [60 * US]})  # noqa: E731
    steps = tp.steps(profile_of(MARKED), by=rule)
    assert table(steps) == {(5, "host", "MatMul"): (1, 40, 30), (5, "host", "Mul"): (1, 10, 10)}
    assert steps.frame["rule"].to_list() == ["caller"]


def test_a_rule_without_a_required_column_is_refused():
    with pytest.raises(BadProfile, match=r"returned no \['dur_ps'\]"):
        tp.steps(profile_of(MARKED), by=lambda _: pl.DataFrame({"host": [], "step": [], "start_ps": []}))


def test_stored_steps_are_handed_on_and_a_rule_needs_raw_events():
    stored = Profile(
        "toy",
        None,
        pl.DataFrame(schema=schema.WINDOWS),
        pl.DataFrame(schema=schema.HARDWARE),
        0,
        stored=toy_steps("ab"),
    )
    assert tp.steps(stored) is stored.stored
    with pytest.raises(tp.TpunbError, match="statistics only") as caught:
        tp.steps(stored, by=lambda _: pl.DataFrame())
    assert "keep='all'" in caught.value.hint


def test_a_step_cut_by_the_windows_edge_is_partial():
    ticks = pl.DataFrame(
        {"step": [6, 7, 8, 9], "kind": ["train"] * 4, "start_ps": [-50 * US, 0, 100 * US, 150 * US]}
    ).with_columns(end_ps=pl.Series([0, 100 * US, 150 * US, 900 * US]))
    steps = reduce.reduce(MARKED, boundaries.from_clock(MARKED, ticks.with_columns(found_by=pl.lit("mark"))))
    # of step 6 the window recorded nothing, though it said it watched
    assert dict(steps.frame.select("step", "traced").iter_rows()) == {7: "full", 8: "full", 9: "partial"}
    assert (9, "host", "MatMul") in table(steps)  # what was seen of it is kept
    assert steps.full().frame["step"].to_list() == [7, 8]


@examples(25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([CPU, TPU]),
            st.sampled_from(["python", "XLA Ops", "XLA Modules", "Steps"]),
            st.sampled_from(["fusion.1", "jit_f(3)", "7", "train"]),
            st.integers(0, 50),
            st.integers(0, 20),
            st.one_of(st.none(), st.integers(-3, 5)),
        ),
        max_size=15,
    )
)
def test_any_events_reduce_to_steps_that_add_up(rows):
    steps = reduced(toy_events(*rows))
    assert steps.frame.select("host", "step").is_unique().all()
    assert steps.ops.select("host", "step", "op", "side").is_unique().all()
    assert (steps.ops["self_ps"] >= 0).all()
    assert (steps.ops["self_ps"] <= steps.ops["total_ps"]).all()
    assert (steps.devices["idle_ps"] >= 0).all()
    assert (steps.devices["device_ps"] >= 0).all()


def test_a_real_tpu_capture_has_a_step_a_module_run(real_profiles):
    steps = tp.steps(tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"))
    assert len(steps) == 100
    assert steps.frame["kind"].unique().to_list() == ["jit_f"]
    assert steps.devices.group_by("device").len().sort("device").rows() == [(f"/device:TPU:{i}", 100) for i in range(4)]
    device = steps.ops.filter(pl.col("side") == "device").group_by("op").agg(pl.col("self_ps").sum())
    assert device.sort("self_ps")["op"][-1] == "copy-done"
    assert device.filter(pl.col("op") == "copy-done")["self_ps"].item() > 0.9 * device["self_ps"].sum()


def test_a_real_gpu_capture_has_its_stored_step(real_profiles):
    steps = tp.steps(tp.load(real_profiles / "gpu-v100_tf2_bert_steps.xplane.pb"))
    assert steps.frame.select("step", "traced").rows() == [(0, "full")]
    # a step lasts as long as on its slowest device
    assert {device: round(ps / 1e9, 3) for device, ps in steps.devices.select("device", "dur_ps").iter_rows()} == {
        "/device:GPU:4": 19.865,
        "/device:GPU:6": 21.31,
    }
    assert steps.frame["dur_ps"].item() == steps.devices["dur_ps"].max()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "returned a NoneType, not a frame"),
        ([("toy", 0, None, 5)], r"returned a null: \('toy', 0, None, 5"),
        ([("toy", 0, 0, -5)], "returned a step below 0 ps"),
        ([("toy", 0, 0, 5), ("toy", 0, 9, 5)], "returned one step twice"),
        ([("toy", 0, "soon", 5)], "wrong type"),
    ],
    ids=["nothing", "null", "negative", "twice", "text"],
)
def test_a_rule_with_invalid_steps_is_refused(rows, said):
    frame = rows and pl.DataFrame(rows, schema=["host", "step", "start_ps", "dur_ps"], orient="row")
    with pytest.raises(BadProfile, match=said):
        tp.steps(profile_of(MARKED), by=lambda _: frame)


def test_a_rule_may_answer_lazily_and_with_nothing():
    rows = pl.DataFrame({"host": ["toy"], "step": [3], "start_ps": [0], "dur_ps": [100 * US]})
    assert tp.steps(profile_of(MARKED), by=lambda _: rows.lazy()).frame["step"].to_list() == [3]
    with pytest.raises(NoSteps, match="by the rule"):
        tp.steps(profile_of(MARKED), by=lambda _: rows.clear())


def test_each_host_uses_the_first_rule_that_finds_its_steps():
    marked = toy_events((CPU, "python", "train", 0, 10, 1), (CPU, "python", "train", 10, 10, 2), host="a")
    modules = toy_events(*((TPU, "XLA Modules", "jit_f(1)", 20 * i, 5) for i in range(3)), host="b")
    modules = modules.with_columns(pl.col("lane") + 10)
    found, rule = boundaries.find(pl.concat([marked, modules]))
    assert rule == "annotation, module"
    assert sorted(found.select("host", "step").rows()) == [("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


def test_a_host_without_annotations_keeps_its_operations():
    marked = toy_events((CPU, "python", "train", 0, 10, 1), (CPU, "python", "MatMul", 2, 3), host="a")
    modules = toy_events(
        *((TPU, "XLA Modules", "jit_f(1)", 20 * i, 5) for i in range(2)), (CPU, "python", "Relu", 3, 2), host="b"
    )
    ops = reduced(pl.concat([marked, modules.with_columns(pl.col("lane") + 10)])).ops
    assert sorted(ops.select("host", "step", "op").rows()) == [("a", 1, "MatMul"), ("b", 0, "Relu")]


TWICE = [(0, 0), (1, 10), (0, 30), (1, 40), (2, 60)]  # training counts 0 1, evaluation 0 1, training 2: number and time


def test_numbers_that_come_again_on_a_steps_line_are_other_steps():
    events = toy_events(*((TPU, "Steps", str(number), begin, 8) for number, begin in TWICE))
    assert reduced(events).frame.select("step", "start_ps").rows() == [
        (step, begin * US) for step, (_, begin) in enumerate(TWICE)
    ]


def test_a_steps_line_and_marks_whose_numbers_come_again_meet_in_their_order():
    kinds = [
        (CPU, "python", "train" if i < 2 or i > 3 else "eval", begin, 9, number)
        for i, (number, begin) in enumerate(TWICE)
    ]
    step_events = [(TPU, "Steps", str(number), begin + 100, 8) for number, begin in TWICE]
    ops = [(TPU, "XLA Ops", "fusion.1", begin + 100, 1 + i) for i, (_, begin) in enumerate(TWICE)]
    steps = reduced(toy_events(*kinds, *step_events, *ops))
    assert steps.frame.select("step", "kind", "device_ps").rows() == [
        (step, kind, (1 + step) * US) for step, kind in enumerate(["train", "train", "eval", "eval", "train"])
    ]


def test_metadata_has_the_device_kind():
    devices = [("a", CPU, "CPU", None, None, None), ("a", TPU, "TPU v2", None, None, None)]
    hardware = pl.DataFrame(devices, schema=schema.HARDWARE, orient="row")
    assert tp.steps(replace(profile_of(MARKED), hardware=hardware)).metadata == {"device kind": "TPU v2"}
    assert tp.steps(profile_of(MARKED)).metadata == {}
