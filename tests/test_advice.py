"""Advice: which rules apply, what they say, and what they do with unknown metrics."""

import string
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from advised_runs import (
    BUSY,
    SAVES,
    UNKNOWN,
    S,
    accounted,
    fired,
    labelled,
    of_run,
    padded,
    phased,
    run_events,
    slowing,
)
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sampled_stacks import samples_of
from simulate.synthetic_runs import KINDS, synthetic_run

import tpunb as tp
from tpunb import schema
from tpunb.analysis import CAUSES
from tpunb.analysis.advice import advise
from tpunb.analysis.phase_metrics import phase_metrics
from tpunb.analysis.run_metrics import account_metrics
from tpunb.analysis.traits import traits
from tpunb.errors import BadProfile
from tpunb.frames import Steps
from tpunb.frames.hardware import Device
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps

CASES = {
    "input": ({"infeed": 0.4}, [], 0.4),
    "idle": ({"device": 0.7, "idle": 0.3}, [], 0.3),
    "reads": (
        {"device": 0.6, "idle": 0.4, "sync_wait": 0.4},
        [("aten::item", "host", None, 0.6), ("cudaStreamSynchronize", "host", None, 0.5)],
        0.36,  # one of ten is read
    ),
    "formatting": ({**BUSY}, [("fusion", "device", "loop fusion", 0.6), ("Reshape", "device", None, 0.2)], 0.25),
    "copies": ({**BUSY}, [("fusion", "device", None, 0.1), ("copy-done", "device", "copy-done", 0.9)], 0.9),
    "outfeed": ({"outfeed": 0.15}, [], 0.15),
    "transfer": ({"transfer": 0.2}, [], 0.2),
    "collectives": ({"collective": 0.35}, [], 0.35),
    "callbacks": ({}, [("debug_print", "host", None, 0.06)], 0.06),
    "checkpoint": ({}, [("SaveV2", "host", None, 0.5), ("MergeV2Checkpoints", "host", None, 0.25)], 0.75),
    "summary": ({}, [("WriteScalarSummary", "host", None, 0.5)], 0.5),
    "memory": ({**BUSY, "mxu_util": 0.35, "hbm_util": 0.8}, [], 0.5),
    "batch": ({**BUSY, "mxu_util": 0.14, "hbm_util": 0.2}, [], 0.8),
}
ELSEWHERE = {"compile", "recompile", "stall", "unseen"}  # they need more than one step, and have tests of their own


@pytest.mark.parametrize(("rule", "figures", "ops", "saves"), [(rule, *case) for rule, case in CASES.items()])
def test_one_metric_applies_one_rule_and_saves_its_share(rule, figures, ops, saves):
    assert fired(phased("aa", a=figures, ops={"a": ops})) == {(0, rule): pytest.approx(saves)}


@pytest.mark.parametrize(("iterators", "callbacks"), [(0.0, 0.6), (0.2, 0.4), (0.9, None)])
def test_python_functions_of_the_input_pipeline_are_no_callbacks_of_the_step(iterators, callbacks):
    ops = [("PyFunc", "host", None, 0.6), ("Iterator::Root::Map", "host", None, iterators)]
    assert fired(phased("aa", ops={"a": ops})) == (
        {} if callbacks is None else {(0, "callbacks"): pytest.approx(callbacks)}
    )


@pytest.mark.parametrize(
    "stage", ["Iterator::Root::ParallelMapV2", "Iterator::Root::MapAndBatch", "ParallelMapProduce"]
)
def test_beside_a_parallel_input_pipeline_python_functions_are_its_own(stage):
    ops = [("PyFuncStateless", "host", None, 0.8), (stage, "host", None, 0.01)]
    assert fired(phased("aa", ops={"a": ops})) == {}


@pytest.mark.parametrize(("python", "action"), [(0.3, "map in parallel"), (0.1, "prefetch")])
def test_functions_in_python_are_what_makes_a_pipeline_slow_if_they_take_half_of_it(python, action):
    ops = [("EagerPyFunc", "host", None, python), ("Iterator::Root::Map", "host", None, 0.4)]
    phases = phased("aa", a={"infeed": 0.5}, ops={"a": ops})
    phases = replace(phases, steps=replace(phases.steps, metadata={"data": "tf.data"}))
    assert advise(phases).filter(rule="input")["action"].item().startswith(action)


def of_level(level):
    return [cause for cause in CAUSES if cause.of == level]


def has_known_sums(cause, known):
    fields = {field for _, field, _, _ in string.Formatter().parse(cause.sentence) if field}
    of = [each for remedy in cause.remedies for each in (remedy.when, remedy.saves) if each is not None]
    return {*cause.needs, *fields, *(name for each in of for name in each.meta.root_names())} <= {*known, "wasted"}


def test_every_cause_of_phases_is_tested_and_has_known_sums():
    assert [cause.name for cause in of_level("phase") if cause.name not in {*CASES, *ELSEWHERE}] == []
    known = [*phase_metrics(phased("a")).columns, *traits(toy_steps("a"))]
    assert [cause.id for cause in of_level("phase") if not has_known_sums(cause, known)] == []


def test_a_sentence_has_its_percentages():
    phases = phased("aaaaab", a={"infeed": 0.41}, kinds={"b": "eval"})
    row = advise(phases).row(0, named=True)
    assert row["sentence"] == (
        "train could save up to 2.05 ms of 7 ms step time. Waiting for input takes 41 % of the phase's step time."
    )
    assert row["saves_ps"] == round(0.41 * 5e9)
    assert "ahead of the steps" in row["action"]


def test_a_profile_without_metrics_has_no_advice():
    answer = advise(phased("aab"))
    assert answer.schema == schema.ADVICE
    assert answer.is_empty()


@pytest.mark.parametrize(
    "figures",
    [
        {"infeed": 0.1},
        {"collective": 0.019},
        {"idle": 0.019, "device": 0.981},
        {**BUSY, "mxu_util": 0.3},  # of the memory nothing is known
        {**BUSY, "mxu_util": 0.3, "hbm_util": float("nan")},
        {**BUSY, "mxu_util": 0.6, "hbm_util": 0.2},
        {**BUSY, "mxu_util": 0.1, "hbm_util": 0.6},
        {"mxu_util": 0.1, "hbm_util": 0.1},  # whether it idles is unknown
        {"compile": 0.0, "input": 0.0, "outfeed": 0.0, "transfer": 0.0},
    ],
    ids=str,
)
def test_usual_or_unknown_metrics_give_no_advice(figures):
    assert fired(phased("aa", a=figures)) == {}


def test_waiting_devices_are_not_advised_to_use_larger_batches():
    slow = {**BUSY, "mxu_util": 0.1, "hbm_util": 0.1}
    assert (0, "batch") in fired(phased("aa", a=slow))
    assert fired(phased("aa", a={**slow, "infeed": 0.5})) == {(0, "input"): 0.5}
    copies = [("copy-done", "device", None, 0.9), ("fusion", "device", None, 0.1)]
    assert fired(phased("aa", a=slow, ops={"a": copies})) == {(0, "copies"): pytest.approx(0.9)}


def test_flops_by_peak_replace_an_unknown_mxu_utilisation():
    assert fired(phased("a", a={**BUSY, "flops_util": 0.35, "hbm_util": 0.8})) == {(0, "memory"): pytest.approx(0.5)}


def test_utilisation_is_a_lower_bound_where_flops_are_unknown():
    def sentence(**figures):
        return advise(phased("a", a={**BUSY, "hbm_util": 0.8, **figures}))["sentence"].item().partition(". ")[2]

    known = "Memory-bound: 80 % of HBM bandwidth, but only 35 % of MXU peak used."
    assert sentence(flops_util=0.35) == sentence(flops_util=0.35, flops_time_share=0.9) == known
    assert sentence(flops_util=0.35, flops_time_share=0.6) == known.replace("only", "at least")
    assert sentence(mxu_util=0.35, flops_time_share=0.6) == known  # counted by the hardware


def test_host_waits_count_as_far_as_the_device_idles():
    assert fired(phased("a", a={"input": 0.5})) == {(0, "input"): 0.5}  # no device is known
    assert fired(phased("a", a={"input": 0.5, "idle": 0.2})) == {(0, "input"): 0.2}
    assert fired(phased("a", a={"input": 0.5, "idle": 0.0})) == {}
    assert fired(phased("a", a={"input": 0.5, "idle": 0.2, "infeed": 0.3})) == {(0, "input"): 0.5}
    assert fired(phased("a", a={"input": 0.3, "idle": 0.5})) == {(0, "input"): 0.3, (0, "idle"): 0.2}
    saving = {"a": [("SaveV2", "host", None, 0.4)]}
    assert fired(phased("a", a={"idle": 0.4}, ops=saving)) == {(0, "checkpoint"): 0.4}
    assert fired(phased("a", a={"idle": 0.0}, ops=saving)) == {}  # in the background
    transfers = {"a": [("TransferBufferToInfeedLocked", "host", "transfer", 0.6)]}
    assert fired(phased("a", a={"idle": 0.4}, ops=transfers)) == {(0, "transfer"): 0.4}
    assert fired(phased("a", a={"idle": 0.4, "input": 0.4}, ops=transfers)) == {(0, "input"): 0.4}


@pytest.mark.parametrize("name", ["transfer", "collective"])
def test_what_computation_hides_saves_nothing(name):
    assert fired(phased("aa", a={name: 0.8, f"exposed_{name}": 0.0})) == {}
    rule = {"transfer": "transfer", "collective": "collectives"}[name]
    assert fired(phased("aa", a={name: 0.8, f"exposed_{name}": 0.62})) == {(0, rule): pytest.approx(0.62)}


def test_what_the_host_reads_late_is_no_idle_time_without_a_cause():
    ops = [("aten::item", "host", None, 0.6), ("IteratorGetNext", "host", "input wait", 0.3)]
    figures = {"device": 0.3, "idle": 0.7, "input": 0.3, "sync_wait": 0.6}  # of 0.7, 0.3 are of the input
    answer = advise(phased("aa", a=figures, ops={"a": ops}))
    assert fired(phased("aa", a=figures, ops={"a": ops})) == {(0, "input"): 0.3, (0, "reads"): pytest.approx(0.36)}
    assert "The host waits for the device in aten::item, and launches" in answer["sentence"][0]


@pytest.mark.parametrize("share", [0.01, 0.4])
def test_advice_reads_raw_windows_only_for_a_place_that_it_names_and_needs_none(share):
    asked = []

    def damaged():
        asked.append(share)
        raise BadProfile("window 0 is damaged")

    phases = phased("aa", a={"device": 1 - share, "idle": share, "sync_wait": share})
    names = {name for _, name in fired(labelled(replace(phases.steps, read_events=damaged), [0, 0]))}
    assert ("reads" in names, len(asked)) == ((True, 1) if share == 0.4 else (False, 0))


@pytest.mark.parametrize(
    ("op", "words"),
    [("aten::mm", "torch.compile, CUDA graphs"), ("PjitFunction", "lax.scan"), ("ReadVariableOp", None), ("f", None)],
)
def test_advice_speaks_of_the_framework_of_the_run(op, words):
    idle = {"device": 0.3, "idle": 0.7}
    (action,) = advise(phased("aa", a=idle, ops={"a": [(op, "host", None, 0.1)]}))["action"]
    names = ["torch", "scan", "steps_per_execution"]
    assert [name for name in names if name in action] == [name for name in names if words and name in words]


def test_keras_says_that_it_runs_its_steps_unless_they_are_of_pytorch():
    def action(op):
        phases = phased("aa", a={"device": 0.3, "idle": 0.7}, ops={"a": [(op, "host", None, 0.1)]})
        frame = phases.steps.frame.with_columns(rule=pl.lit("keras", schema.RULE))
        return advise(labelled(replace(phases.steps, frame=frame), [0, 0]))["action"].item()

    assert "steps_per_execution" in action("PjitFunction")
    assert "torch.compile" in action("aten::mm")  # Keras runs one step at a time there


@pytest.mark.parametrize(
    ("late", "cause"), [(0.6, "since the host launches its work late"), (0.2, "without a known cause")]
)
def test_idle_time_before_late_launches_has_a_cause(late, cause):
    answer = advise(phased("aa", a={"device": 0.3, "idle": 0.7, "host_wait": late}))
    assert answer["sentence"][0].endswith(f"The device is idle for 70 % of the phase's step time {cause}.")


def test_idle_time_in_which_the_profiler_of_a_trace_works_is_not_to_be_saved():
    flush = ("Activity Buffer Request", "host", "profiler", 0.3)
    answer = advise(phased("aa", a={"device": 0.5, "idle": 0.5, "host_wait": 0.5}, ops={"a": [flush]}))
    assert answer["sentence"][0].endswith(
        "idle for 20 % of the phase's step time since the host launches its work late."
    )


def test_short_kernels_whose_launches_are_late_are_counted():
    phases = phased("aa", a={"device": 0.3, "idle": 0.7, "host_wait": 0.6}, ops={"a": [("k", "device", None, 0.3)]})
    steps = phases.steps
    gpu = pl.DataFrame({"host": "", "step": 0, "device": "/device:GPU:0"})
    gpu = pl.concat([pl.DataFrame(schema=schema.DEVICES), gpu.cast({"device": schema.NAME})], how="diagonal_relaxed")
    steps = replace(steps, ops=steps.ops.with_columns(count=pl.lit(100, pl.Int64)), devices=gpu)
    text = advise(labelled(steps, [0, 0]))["sentence"][0]
    assert text.endswith("step time since 100 kernels of 3.0 us are launched late.")


def test_the_idle_time_around_a_whole_capture_is_not_advised_upon():
    phases = phased("a", a={"device": 0.1, "idle": 0.9})
    assert fired(phases) == {(0, "idle"): pytest.approx(0.9)}
    frame = phases.steps.frame.with_columns(rule=pl.lit("whole", schema.RULE))
    assert fired(labelled(replace(phases.steps, frame=frame), [0])) == {}


def test_dequeuing_an_outfeed_is_not_a_transfer_wait():
    ops = {"a": [("OutfeedDequeueTuple", "host", "transfer", 0.9)]}
    assert fired(phased("a", a={"idle": 0.3}, ops=ops)) == {(0, "idle"): 0.3}


@pytest.mark.parametrize(
    ("op", "category", "counts"),
    [
        ("Transpose", None, True),
        ("Copy", "copy", True),
        ("loop_transpose_fusion", "loop fusion", True),
        ("wrapped_transpose", "loop fusion", True),
        ("copy_bitcast_fusion", None, False),
        ("fusion", "data formatting", True),
        ("CopyDeviceToDevice", "device copy", True),
        ("broadcast_add_fusion", "loop fusion", False),
        ("transpose_dot_fusion", "output fusion", False),
        ("copy-start", "copy-start", False),
        ("TransposeMyWeights", None, False),
    ],
)
def test_which_operations_format_data(op, category, counts):
    phases = phased("a", a=BUSY, ops={"a": [(op, "device", category, 0.5), ("fusion", "device", None, 0.5)]})
    assert fired(phases) == ({(0, "formatting"): pytest.approx(0.5)} if counts else {})


def test_device_time_is_divided_by_self_time_for_any_number_of_devices():
    ops = [("Reshape", "device", None, 4 * 0.2), ("fusion", "device", None, 4 * 0.2)]  # of four devices
    phases = phased("a", a={"device": 0.4, "idle": 0.01}, ops={"a": ops})
    assert fired(phases) == {(0, "formatting"): pytest.approx(0.2)}
    assert fired(phased("a", ops={"a": ops})) == {}  # how long they were busy is unknown


def test_compilation_of_first_steps_and_of_later_steps():
    once = {"a": {"compile": 0.9}, "b": {"compile": 0.0}}
    assert fired(phased("abbb", **once)) == {(0, "compile"): pytest.approx(0.9 / 7)}
    assert fired(phased("baba", **once)) == {(0, "recompile"): pytest.approx(0.9 * 2 / 6)}
    assert fired(phased("ba", kinds={"b": "eval"}, **once)) == {(0, "compile"): pytest.approx(0.9 / 3)}
    assert fired(phased("ba", traced="nf", **once)) == {(0, "recompile"): pytest.approx(0.9 / 3), (1, "unseen"): None}


def test_a_phase_that_takes_no_time_wastes_none():
    phases = phased("abb", a={"compile": 0.9}, b={"input": 0.5})
    no_time = [pl.when(step=0).then(0).otherwise(name).alias(name) for name in ("dur_ps", "compile_ps")]
    steps = replace(phases.steps, frame=phases.steps.frame.with_columns(no_time))
    assert tp.advise(labelled(steps, [0, 1, 1]))["phase"].to_list() == [1]


def test_steps_that_save_are_charged_with_their_extra_time():
    saving = {"c": [("SaveV2", "host", None, 0.1)]}
    answer = advise(phased("aaac", ops=saving))  # 1 ms as a rule, 3 ms to save: 2 ms of 6 ms
    assert answer.select("phase", "rule", "saves_ps").rows() == [(2, "checkpoint", 2_000_000_000)]
    assert "takes 66.7 % of the phase's step time" in answer["sentence"].item()
    assert fired(phased("a" * 400 + "c", ops=saving)) == {}  # 0.5 % of the run: let them save
    assert fired(phased("aaac", kinds={"c": "save checkpoint"})) == {(2, "checkpoint"): pytest.approx(0.5)}
    assert fired(phased("aaac", kinds={"c": "summaries"})) == {(2, "summary"): pytest.approx(0.5)}
    assert fired(phased("aaac", kinds={"c": "unsavoury"})) == {}


def test_a_stall_is_measured_against_the_longest_phase_of_the_same_operations():
    same = [("fusion", "device", None, 0.5)]
    figures = {"a": {"infeed": 0.0, "idle": 0.0}, "c": {"infeed": 0.6, "idle": 0.0}}
    answer = advise(phased("aaaaaacaaa", ops={"a": same, "c": same}, **figures))
    assert set(answer["rule"]) == {"input", "stall"}
    row = answer.row(by_predicate=pl.col("rule") == "stall", named=True)
    assert (row["phase"], row["saves_ps"]) == (2, 1_800_000_000)
    assert (
        "run the same device operations as those of train, but take 3 ms instead of 1 ms; "
        "1.8 ms of this is waiting for input" in row["sentence"]
    )
    other = {"a": same, "c": [*same, ("Copy", "device", None, 0.01)]}
    assert fired(phased("aaaaaac", ops=other, **figures)) == {(2, "input"): pytest.approx(0.2)}
    working = figures | {"c": {"infeed": 0.1, "idle": 0.0}}  # longer, but not for waiting
    assert fired(phased("aaaaaac", ops={"a": same, "c": same}, **working)) == {}


def test_host_operations_do_not_matter_to_a_stall_of_a_device():
    same, more = ("fusion", "device", None, 0.5), ("Poll", "host", None, 0.1)
    figures = {"a": {"idle": 0.0}, "c": {"idle": 0.6}}
    answer = advise(phased("aaaaaac", ops={"a": [same], "c": [same, more]}, **figures))
    assert "the same device operations" in answer.row(by_predicate=pl.col("rule") == "stall", named=True)["sentence"]
    assert "of this is idling" in answer.row(by_predicate=pl.col("rule") == "stall", named=True)["sentence"]


def test_a_phase_without_traced_steps_comes_last():
    phases = phased("aab", traced="ffn", kinds={"b": "warm-up"}, a={"infeed": 0.2})
    answer = advise(phases)
    assert answer.select("phase", "rule", "saves").rows() == [(0, "input", 0.1), (1, "unseen", None)]
    assert answer["saves_ps"].to_list() == [400_000_000, None]
    assert answer["sentence"][1].startswith("warm-up: No step of it was traced in full.")


def test_metrics_of_full_steps_are_extrapolated_to_the_phase():
    assert fired(phased("aaab", traced="fpfn", a={"infeed": 0.4})) == {
        (0, "input"): pytest.approx(0.4 * 3 / 5),
        (1, "unseen"): None,
    }


def test_metrics_of_steps_that_have_them_are_extrapolated():
    known, unknown = phased("a", a={"infeed": 0.4}).steps, phased("a", host="other").steps
    both = Steps(pl.concat([known.frame, unknown.frame]), pl.concat([known.ops, unknown.ops]))
    assert fired(labelled(both, [0, 0])) == {(0, "input"): pytest.approx(0.4)}


def test_advice_is_ranked_by_time_saved():
    phases = phased("aaab", a={"infeed": 0.2, "outfeed": 0.3}, b={"infeed": 0.9})
    answer = advise(phases)
    assert answer.select("phase", "rule").rows() == [(1, "input"), (0, "outfeed"), (0, "input")]
    assert answer["saves_ps"].to_list() == [1_800_000_000, 900_000_000, 600_000_000]


def test_outliers_count_as_a_phase_and_shares_are_capped():
    steps = phased("ab", b={"infeed": 7.0}).steps
    row = advise(labelled(steps, [0, -1])).row(0, named=True)
    assert (row["phase"], row["saves"]) == (-1, pytest.approx(2 / 3))
    assert row["sentence"].startswith("outliers (train) could save up to 2 ms of 3 ms step time. ")


def test_steps_of_no_time_and_runs_without_steps_pass():
    assert advise(phased("")).is_empty()
    still = phased("aa", a={"infeed": 0.4}).steps
    assert advise(labelled(Steps(still.frame.with_columns(dur_ps=0), still.ops), [0, 0])).is_empty()


def test_names_of_a_program_are_made_safe_and_cut():
    op = "Transpose_" + "copy_" * 30 + "copy"
    ops = {"a": [(op, "device", "data formatting", 0.4), ("pure_callback \x1b[31m{share}\u202e\n", "host", None, 0.3)]}
    sentences = advise(phased("a", a=BUSY, ops=ops, kinds={"a": "tr{name}ain\x1b]0;\u2028"}))["sentence"]
    assert len(sentences) == 1  # the device was busy throughout: the call back cost nothing
    assert "tr{name}ain\ufffd]0;\ufffd could save up to " in sentences[0]
    assert "Transpose_copy_copy_cop…" in sentences[0]
    called = advise(phased("a", ops=ops))["sentence"].item()
    assert "mostly pure_callback \ufffd[31m{share}\ufffd\ufffd." in called


SHARE = st.none() | st.floats(0, 1.5)
STEP = st.fixed_dictionaries(
    dict.fromkeys(UNKNOWN, SHARE) | dict.fromkeys(("mxu_util", "flops_util", "hbm_util"), SHARE)
)
OPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["SaveV2", "Reshape", "copy-done", "debug_print", "fusion", "TransferToDevice", "WriteSummary"]
        ),
        st.sampled_from(["host", "device"]),
        st.sampled_from([None, "transfer", "data formatting"]),
        st.floats(0, 2),
    ),
    max_size=4,
    unique_by=lambda op: op[:2],
)


@examples(33)
@given(
    st.text("abc", min_size=1, max_size=8),
    st.fixed_dictionaries(dict.fromkeys("abc", STEP)),
    st.fixed_dictionaries(dict.fromkeys("abc", OPS)),
    st.data(),
)
def test_advice_is_bounded_ranked_and_unique(pattern, figures, ops, data):
    seen = data.draw(st.text("fpn", min_size=len(pattern), max_size=len(pattern)))
    figures = {
        letter: {name: value for name, value in one.items() if value is not None} for letter, one in figures.items()
    }
    phases = phased(pattern, traced=seen, ops=ops, **figures)
    answer = advise(phases)
    assert answer.schema == schema.ADVICE
    assert answer.select("phase", "rule").is_unique().all()
    rows = answer.join(phases.frame, on="phase", how="left", maintain_order="left")
    assert (rows["saves_ps"].drop_nulls() <= rows.drop_nulls("saves_ps")["dur_ps"]).all()
    assert answer["saves"].drop_nulls().is_between(0.001, 1 + 1e-9).all()
    saved = answer["saves_ps"].drop_nulls()
    assert saved.to_list() == sorted(saved, reverse=True)
    assert answer["saves_ps"][len(saved) :].is_null().all()
    assert set(answer.filter(pl.col("saves").is_null())["rule"]) <= {"unseen"}
    assert not answer["sentence"].str.contains(r"None|nan|inf\b").any()
    waits = answer.filter(pl.col("rule").is_in(["idle", "input"])).group_by("phase").agg(pl.col("saves_ps").sum())
    waits = waits.join(phases.frame.select("phase", "dur_ps"), on="phase")
    if all(one.get("infeed") is None for one in figures.values()):  # shares of one idle time
        assert (waits["saves_ps"] <= waits["dur_ps"] + 2).all()


def test_the_stall_of_a_synthetic_run_costs_its_infeed():
    run = synthetic_run(6000, 120)
    phases = tp.phases(run.steps)
    stalled = run.phase == KINDS.index("input stall")
    number = int(np.bincount(phases.labels.to_numpy()[stalled]).argmax())
    answer = advise(phases)
    assert answer.row(0, named=True)["phase"] == number
    rules = {row["rule"]: row for row in answer.filter(pl.col("phase") == number).iter_rows(named=True)}
    assert set(rules) == {"input", "stall"}
    infeed_ps = phases[number].steps["infeed_ps"].sum()
    assert rules["input"]["saves_ps"] == pytest.approx(infeed_ps, rel=1e-9)
    assert rules["input"]["saves"] == pytest.approx(infeed_ps / run.steps.frame["dur_ps"].sum(), rel=1e-9)
    steady = int(np.bincount(phases.labels.to_numpy()[run.phase == KINDS.index("steady")]).argmax())
    assert f"operations as those of {phases.names[steady]}," in rules["stall"]["sentence"]


def test_advice_for_the_samples():
    cnn = advise(tp.phases(tp.steps(tp.sample("keras_cnn"))))
    text = " ".join(cnn["sentence"])
    assert "ompilation" in text
    assert {"checkpoint saves", "input"} <= {*cnn["rule"]}
    transformer = advise(tp.phases(tp.steps(tp.sample("keras_transformer"))))
    assert "checkpoint saves" in transformer["rule"].to_list()


REAL = {
    "tpu-v2-8_resnet50.overview_page.json": {"memory"},
    "tpu-v6e-4_jax_host-offload.xplane.pb": {"copies"},
    "gpu-mi300x_jax_conv.xplane.pb": {"idle", "formatting"},
    "gpu-v100_tf2_bert_steps.xplane.pb": {"input"},
    "cpu_tf2_keras.trace.json.gz": {"input"},
}


@pytest.mark.parametrize("name", REAL)
def test_advice_for_real_captures(real_profiles, name):
    answer = advise(tp.phases(tp.steps(tp.load(real_profiles / name))))
    assert set(answer["rule"]) == REAL[name]
    assert answer["saves"].sum() > 0.2


def test_steps_are_grouped_and_what_is_no_run_is_refused():
    steps = toy_steps("aaabbb")
    assert advise(steps).equals(advise(tp.phases(steps)))
    with pytest.raises(TypeError, match=r"run parameter of advise must be the path of a run, .* Got 7"):
        advise(7)


# accounts of the run

FIT = (0, 100, "fit", "fit")
EVAL = [*["train"] * 3, *["eval"] * 7]
RETRACED = [(41, 5, "program startup", "tracing f"), (50, 6, "program startup", "tracing f again for (8,)")]
COMPILED = [(41 + 5 * i, 4, "program startup", detail) for i, detail in enumerate(["tracing g", "compiling g"] * 2)]
OF_RUN = {
    "slow input": ([], {}, 12),
    "new iterators": (
        [(41 + 5 * i, 2, "data loading", "a new iterator at the end of an epoch") for i in range(4)],
        {},
        8,
    ),
    "ended iterators": ([(at, 2, "data loading", "end of the data") for at in (4, 12, 24, 41)], {}, 8),
    "restarted workers": ([(41 + 5 * i, 2, "data loading", "start of workers") for i in range(4)], {}, 6),
    "program code": ([], {}, 16),
    "waits for another thread": ([], {}, 16),
    "garbage collection": ([(10, 20, "garbage collection", "generation 2")], {}, 20),
    "slowing steps": ([], {}, sum(n - 3.5 for n in range(4, 25))),
    "growing memory": ([], {}, None),
    "slow callbacks": ([(41, 10, "callbacks", "Slow.on_epoch_end"), (60, 2, "callbacks", "B.on_train_end")], {}, 12),
    "checkpoint saves": (SAVES, {}, 9),  # one of ten remains
    # 2 s to save, a failure in 10 s: one in 6.3 s; in 100 s: one in 20 s, as it is; in 10,000 s: one in 200 s
    "checkpoint interval": (SAVES, {"failure_every_h": 10_000 / 3600}, 10 * (1 - 20 / 200)),
    "rare checkpoints": (SAVES, {"failure_every_h": 10 / 3600}, None),
    "retracing": (RETRACED, {}, 6),
    "rebuilt models": ([(41 + 5 * i, 4, "program startup", "tracing the step of fit") for i in range(4)], {}, 12),
    "long startup": ([(41, 50, "program startup", "loading")], {}, 50),
    "long evaluation": ([], {}, 22.4),  # one of five remains
    "scoring": ([(41, 40, "evaluation", None)], {}, 40),  # beside 28 s in batches
    "mode to evaluate": ([(41, 20, "evaluation", None)], {}, 20),
    "fits of one batch": ([(4 * i, 20, "fit", "fit") for i in range(10)], {}, 16),
    "eager steps": ([], {}, 30),  # a quarter in operations
    "short steps": ([], {}, 30),
    "numbers read one by one": ([], {}, 40),
    "debugging": ([], {}, None),
    "frozen model": ([], {}, 30),
    "double precision": ([], {}, 20),
    "few threads": ([], {}, None),
    "padding": ([], {}, 30),
    "uneven ranks": ([(41, 20, "waiting for other ranks", "barrier")], {}, 20),
    "preparation": ([FIT], {}, 60),
}


def sampled(phases, *rows):
    """Phases with samples of (second, place, whether code of the program ran)."""
    data = [("toy", at * S, place, False, code, False) for at, place, code in rows]
    samples = samples_of(data)
    return replace(phases, steps=replace(phases.steps, wall=replace(phases.steps.wall, samples=samples)))


CODE = {"program code": "a.py:3 in f", "waits for another thread": "a.py:3 in f ← ready.get waits for b.py:1 in fill"}


def with_facts(rule, phases):
    """Phases with what a rule follows from, beside spans."""
    if rule in CODE:  # two fifths of the samples in steps, whose devices are not traced
        phases = replace(phases, steps=replace(phases.steps, devices=phases.steps.devices.clear()))
        return sampled(phases, *((at, CODE[rule], at % 5 < 2) for at in range(40)))
    if rule == "eager steps":
        steps = phases.steps
        ops = steps.ops.unique(["host", "step"]).with_columns(self_ps=pl.lit(S, pl.Int64))
        return replace(
            phases, steps=replace(steps, devices=steps.devices.clear(), ops=ops, metadata={"eager": "Keras"})
        )
    if rule == "numbers read one by one":
        reads = {"host": "toy", "event": "wait", "what": 1, "start_ps": 0, "end_ps": 0, "count": 400}
        names, places = [("toy", 1, "jax", "", "_value")], [("toy", 2, "/home/a.py", 3, "f")]
        events = run_events(names=names, places=places, events=[{**reads, "place": 2}])
        steps = replace(phases.steps, read_run_events=lambda: events, devices=phases.steps.devices.clear())
        return sampled(replace(phases, steps=steps), *((at, "a.py:3 in f ← float", False) for at in range(40)))
    if rule == "short steps":
        steps = phases.steps
        frame, ops = steps.frame.with_columns(rule=pl.lit("keras")), steps.ops.unique(["host", "step"])
        name = pl.lit("ReadVariableOp").cast(ops.schema["op"])
        ops, devices = ops.with_columns(op=name, self_ps=pl.lit(S, pl.Int64)), steps.devices.clear()
        metadata = {"device kind": "CPU"}
        return replace(phases, steps=replace(steps, devices=devices, ops=ops, frame=frame, metadata=metadata))
    if rule == "ended iterators":
        return replace(phases, steps=replace(phases.steps, metadata={"data": "tf.data"}))
    if rule == "debugging":
        return replace(phases, steps=replace(phases.steps, metadata={"debug": "torch.autograd.set_detect_anomaly"}))
    if rule == "frozen model":
        return with_frozen_model(phases)
    if rule == "double precision":
        return replace(phases, steps=replace(phases.steps, metadata={"dtype": "float64"}))
    if rule == "padding":
        return padded(phases)
    if rule == "few threads":
        steps, metadata = phases.steps, {"threads": "1", "processors": "2"}
        ops = steps.ops.unique(["host", "step"]).with_columns(self_ps=pl.lit(S, pl.Int64))
        return replace(phases, steps=replace(steps, devices=steps.devices.clear(), ops=ops, metadata=metadata))
    if rule == "slowing steps":
        return slowing()
    if rule == "growing memory":
        return loaded(phases, [2**30 + n * 2**26 for n in range(40)])
    return phases


def with_frozen_model(phases, *, gradients_s=10, backward=4, trains="a.py:4 in g"):
    """Phases with 30 s in a call of a model, half of whose operations have `backward` / 4 gradients; one `trains`."""
    times = [("aten::addmm", 4), ("AddmmBackward0", backward)]
    ops = [("toy", step, op, "host", None, count, S, S) for step in range(10) for op, count in times]
    rows = [("toy", at * S, "a.py:9 in f", False, False, False, False, "a.py:3 in g") for at in range(30)]
    rows += [("toy", at * S, "a.py:8 in f", False, False, False, False, trains) for at in range(30, 40)]
    gradients = {"host": "toy", "event": "gradient", "start_ps": 0, "end_ps": gradients_s * S, "count": 1}
    steps = replace(
        phases.steps,
        ops=pl.DataFrame(ops, schema.OPS, orient="row"),
        devices=phases.steps.devices.clear(),
        wall=replace(phases.steps.wall, samples=samples_of(rows)),
        read_run_events=lambda: run_events(events=[gradients]),
    )
    return replace(phases, steps=steps)


@pytest.mark.parametrize(
    ("cache", "advised", "setting"),
    [
        ("none", "keep programs", "jax_compilation_cache_dir"),
        ("slow", "compile within a second", "min_compile_time_secs"),
        ("all", "kept already", None),
    ],
)
def test_a_cache_of_programs_that_is_set_is_not_advised(cache, advised, setting):
    phases = accounted((41, 50, "program startup", "compiling jit(step)"))
    ops = phases.steps.ops.with_columns(op=pl.lit("PjitFunction").cast(phases.steps.ops.schema["op"]))
    phases = replace(phases, steps=replace(phases.steps, ops=ops, metadata={"cache": cache}))
    action = advise(phases).filter(rule="long startup")["action"].item()
    assert advised in action
    assert setting is None or setting in action
    assert ("cache_dir" in action) == (cache == "none")


def test_a_model_is_named_frozen_only_if_it_takes_no_gradients_and_longer_than_these():
    assert "frozen model" not in of_run(with_frozen_model(accounted(), gradients_s=35))
    assert "frozen model" not in of_run(with_frozen_model(accounted(), backward=8))
    assert "frozen model" not in of_run(with_frozen_model(accounted(), trains="a.py:3 in g"))  # the only one


def test_state_in_double_precision_is_known_from_what_functions_take():
    def of(takes):
        signatures = [("toy", 1, takes, "float64[2]", "returned")]
        steps = replace(accounted().steps, read_run_events=lambda: run_events(signatures=signatures))
        return of_run(labelled(steps, [0] * 10))

    assert "double precision" in of("float64[2], float64[8,2]")
    assert "double precision" not in of("float64[2], float32[8,2]")


def loaded(phases, rss_bytes):
    """Phases with the memory of the process in each second."""
    load = [("toy", second * S, 0.3, 0.3, rss) for second, rss in enumerate(rss_bytes)]
    wall = replace(phases.steps.wall, load=pl.DataFrame(load, schema.LOAD, orient="row"))
    return replace(phases, steps=replace(phases.steps, wall=wall))


@pytest.mark.parametrize(
    "rss_mb",
    [
        [630, 810, 870, 1280, 1390, *[1400 + n / 10 for n in range(35)]],  # libraries are loaded as they are first used
        [400] * 20 + [600 + n / 10 for n in range(20)],  # one buffer
        [400] * 40 + [400 + 20 * n for n in range(40)],  # after the steps
        [600 + n / 10 + 300 * (n > 30) for n in range(40)],  # a window of the profiler
    ],
    ids=["start", "step", "end", "window"],
)
def test_memory_that_does_not_grow_steadily_in_the_training_is_no_leak(rss_mb):
    assert "growing memory" not in of_run(loaded(accounted(), [round(mb * 2**20) for mb in rss_mb]))


@pytest.mark.parametrize("rule", OF_RUN)
def test_an_account_applies_its_rule_and_saves_at_most_its_time(rule):
    spans, options, saves = OF_RUN[rule]
    waited_ps = 12 * S // 10 if rule == "slow input" else None
    phases = accounted(*spans, kinds=EVAL if rule in ("long evaluation", "scoring") else None, input_ps=waited_ps)
    phases = with_facts(rule, phases)
    assert of_run(phases, **options)[rule] == (None if saves is None else pytest.approx(saves))


def test_files_of_a_save_and_the_wait_for_it_are_one_save():
    files = {41: "torch.save", 41.6: "torch.save", 43: "AsyncCheckpointer.wait_until_finished"}
    spans = [(at + 10 * i, 0.5, "checkpoint save", name) for i in range(5) for at, name in files.items()]
    metrics = account_metrics(accounted(*spans))
    assert metrics["save_every_ps"].item() == 20 * S
    assert metrics["save_ps"].item() == 1.5 * S


def test_every_cause_of_the_run_is_tested_and_has_known_sums():
    assert {cause.name for cause in of_level("run")} == {
        *OF_RUN,
        "crowded steps",
        "standing still",
    }  # their tests: test_verdict, test_standing
    known = [*account_metrics(accounted()).columns, "took", "mostly", "also", "at"]
    assert [cause.id for cause in of_level("run") if not has_known_sums(cause, known)] == []


def test_a_sentence_on_the_run_has_the_class_and_hook_that_took_most():
    row = advise(accounted(*OF_RUN["slow callbacks"][0])).filter(rule="slow callbacks").row(0, named=True)
    assert row["sentence"] == "Callbacks took 12.0 s of 100.0 s (12 % of run time): mostly Slow.on_epoch_end."
    assert row["phase"] is None
    assert row["saves"] == pytest.approx(0.12)


def test_models_that_are_built_again_are_counted():
    row = advise(accounted(*OF_RUN["rebuilt models"][0])).filter(rule="rebuilt models").row(0, named=True)
    assert row["sentence"].startswith("Tracing and compiling the steps of 4 models took 12.0 s of 100.0 s")


def test_the_best_checkpoint_interval_is_young_s():
    row = advise(accounted(*SAVES), failure_every_h=10_000 / 3600).filter(rule="checkpoint interval").row(0, named=True)
    assert "saved once in 20 s, each in 2 s; least time is lost with one in 200 s" in row["sentence"]
    assert {"checkpoint saves", "checkpoint interval", "rare checkpoints"} & {
        *of_run(accounted(*SAVES), failure_every_h=100 / 3600)
    } == set()


def test_first_traces_are_no_retracing():
    first = [(41 + i, 1, "program startup", f"{work} f") for i, work in enumerate(("tracing", "lowering", "compiling"))]
    unnamed = [(50 + i, 1, "program startup", "compiling <lambda>") for i in range(5)]
    two_models = [(60 + 5 * i, 5, "program startup", "tracing the step of fit") for i in range(2)]  # of TensorFlow
    found = of_run(accounted(*first, *unnamed, *two_models))
    assert not {"retracing", "rebuilt models"} & {*found}
    assert of_run(accounted(*COMPILED))["retracing"] == 8


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("another static argument", "pass the Python value as a tensor or an array"),
        ("float32[9] (before: float32[8])", "use batches of one shape"),
        ("a new function", "wrap the function"),
    ],
)
def test_the_reason_of_a_trace_chooses_its_remedy(reason, action):
    again = [(50 + 2 * at, 2, "program startup", f"tracing f again for {reason}") for at in range(3)]
    traced = [(41, 5, "program startup", "tracing f"), *again]
    row = advise(accounted(*traced)).filter(rule="retracing").row(0, named=True)
    assert row["action"].startswith(action)


def test_what_phases_compile_again_is_advised_once():
    phases = phased("baba", a={"compile": 0.9}, b={"compile": 0.9})
    assert "recompile" in {*advise(phases)["rule"]}
    steps = replace(phases.steps, wall=accounted(*RETRACED).steps.wall)
    rules = {*advise(replace(phases, steps=steps))["rule"]}
    assert {"recompile", "retracing"} & rules == {"retracing"}


def test_a_run_without_a_clock_has_no_advice_on_accounts():
    phases = accounted(*SAVES)
    assert of_run(labelled(replace(phases.steps, wall=None), [0] * 10)) == {}
    old = WallClock(100 * S)  # recorded before spans were
    assert of_run(labelled(replace(phases.steps, wall=old), [0] * 10)) == {}


@pytest.mark.parametrize("hours", [0, -1, float("nan"), float("inf"), True, "day"])
def test_a_time_between_failures_is_above_0(hours):
    with pytest.raises(ValueError, match="The failure_every_h parameter of advise must be a number above 0"):
        advise(phased("a"), failure_every_h=hours)


# -- rules of a roofline ---------------------------------------------------------------------------------------------

UNIT = Device("unit", 1e12, 1e9, 1e12, "none")  # 1 FLOP and 1 byte a picosecond


def roofed(flops, bytes_, *, busy=0.8):
    """One phase of a step of 1 ms, whose device runs one instruction of 500 us."""
    phases = phased("a", a={"device": busy})
    row = {"host": "toy", "step": 0, "side": "device", "hlo_op": "dot", "category": "fusion", "count": 1}
    row |= {"self_ps": 500 * 10**6, "flops": flops, "bytes": bytes_}
    layers = pl.DataFrame([{name: row.get(name) for name in schema.LAYERS}], schema=schema.LAYERS)
    return labelled(replace(phases.steps, read_layers=lambda: layers), [0])


@pytest.mark.parametrize(
    ("flops", "bytes_", "rule", "saves"),
    [
        (200e6, 100e6, "compute headroom", 0.8 * 0.6),
        (100e6, 300e6, "memory headroom", 0.8 * 0.4),
        (450e6, 100e6, None, None),  # 10 %
        (None, None, None, None),
    ],
)
def test_headroom_bounds_what_a_phase_can_save(flops, bytes_, rule, saves):
    phases = roofed(flops, bytes_)
    roof = tp.roofline(phases, "phase", device=UNIT)
    names = {cause.name for cause in of_level("roofline")}
    found = {row["rule"]: row for row in advise(phases, roof=roof).iter_rows(named=True) if row["rule"] in names}
    assert [*found] == [*filter(None, [rule])]
    if rule:
        assert found[rule]["saves"] == pytest.approx(saves)
        assert f"{round(100 * saves / 0.8)} % of their self time at the roof" in found[rule]["sentence"]
    assert not names & {*advise(phases)["rule"]}


def test_advice_takes_a_roofline_by_phase():
    phases = roofed(200e6, 100e6)
    for roof in ("TPU v3", tp.roofline(phases, "op", device=UNIT)):
        with pytest.raises(TypeError, match="The roof parameter of advise must be a Roofline by phase"):
            advise(phases, roof=roof)


def test_workers_that_start_anew_in_each_pass_are_named_apart_from_slow_input():
    starts = [(10 * n, 1, "data loading", "start of workers") for n in range(4)]
    phases = accounted(*starts, wall_s=41, input_ps=S // 2)
    frame = phases.steps.frame.with_columns(
        input_ps=pl.when(pl.col("step") % 5 == 2).then(3 * S).otherwise("input_ps"), idle_ps=pl.lit(None, pl.Int64)
    )
    phases = replace(phases, steps=replace(phases.steps, frame=frame))
    assert [*advise(phases)["rule"]] == ["restarted workers", "slow input"]  # and no input of the phase
    rows = of_run(phases)
    assert rows["restarted workers"] == pytest.approx(
        3 * 1 + 2 * 2.5
    )  # in steps 2 and 7, in which two of the three start
    assert rows["slow input"] > 0
    assert "restarted workers" not in of_run(accounted(*starts[:1], wall_s=41, input_ps=3 * S))


def test_loops_over_examples_of_pytorch_are_told_from_large_operations():
    def of(count, us, parameters=2):
        gradients = ("torch::autograd::AccumulateGrad", "host", None, parameters, 0, 10**6)
        ops = [("toy", step, "aten::mm", "host", None, count, 0, count * us * 10**6) for step in range(10)]
        ops += [("toy", step, *gradients) for step in range(10)]
        steps = accounted(wall_s=41).steps
        frame = pl.DataFrame(ops, schema=schema.OPS, orient="row").with_columns(total_ps="self_ps")
        return of_run(labelled(replace(steps, ops=frame, devices=steps.devices.clear()), [0] * 10))

    assert of(5000, 3)["eager steps"] == pytest.approx(40)
    assert of(5000, 300)["eager steps"] == pytest.approx(40 - 10 * 1.5)  # what runs in them is no waste
    assert "eager steps" not in of(5000, 500)  # of steps of 4 s
    assert "eager steps" not in of(5000, 3, parameters=200)  # a model of many layers
    assert "eager steps" not in of(100, 3)


@pytest.mark.parametrize(
    ("rule", "place", "remedy"),
    [
        ("garbage collection", "a.py:1 in train ← gc.collect", "remove gc.collect()"),
        ("garbage collection", "a.py:1 in train ← loss.backward", "call `gc.freeze()`"),
        ("slow callbacks", "a.py:1 in on_epoch_end ← self.model", "call it less often, and the model"),
        ("slow callbacks", "a.py:1 in on_epoch_end ← np.save", "call it less often, or"),
    ],
)
def test_the_remedy_is_for_the_line_that_samples_show(rule, place, remedy):
    spans, _, _ = OF_RUN[rule]
    rows = advise(sampled(accounted(*spans), *((at, place, False) for at in range(60)))).filter(rule=rule)
    assert rows["action"].item().startswith(remedy)


def test_one_sample_at_a_collection_by_hand_does_not_make_all_collections_the_program_s():
    places = ["a.py:1 in train ← gc.collect", *["a.py:2 in train ← loss.backward"] * 59]
    phases = sampled(
        accounted(*OF_RUN["garbage collection"][0]), *((at, place, False) for at, place in enumerate(places))
    )
    assert advise(phases).filter(rule="garbage collection")["action"].item().startswith("call `gc.freeze()`")


def test_a_wait_for_another_thread_and_predict_in_a_loop_have_remedies_of_their_own():
    def of(place, kind, *spans):
        steps = accounted(*spans, kinds=["train"] * 3 + [kind] * 7, wall_s=60).steps
        rows = [("toy", n * S, place, False, True, False) for n in range(40)]
        wall = replace(steps.wall, samples=samples_of(rows))
        rows = advise(labelled(replace(steps, wall=wall, devices=steps.devices.clear()), [0] * 10))
        return dict(rows.filter(pl.col("phase").is_null()).select("rule", "action").iter_rows())

    long = (41, 19, "evaluation", "predict")
    waits = of("a.py:1 in f ← self.ready.get", "train")
    assert waits["waits for another thread"].startswith("make what it waits for faster")
    assert "program code" not in waits
    assert of("a.py:1 in f ← time.sleep", "train")["program code"].startswith("do it less often")
    assert of("a.py:1 in f", "predict", long)["long evaluation"].startswith("call the model on its batch")
    assert of("a.py:1 in f", "eval", long)["long evaluation"].startswith("evaluate every few epochs")
