"""Advice: each rule speaks of what it saw and stays silent about what it does not know."""

import string

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.cluster.advice import RULES, advise
from tpunb.cluster.facts import facts
from tpunb.frames import Phases, Steps
from tpunb.testing import toy_steps
from tpunb.testing.known_runs import KINDS, known_run

UNKNOWN = ["device", "idle", "infeed", "outfeed", "transfer", "collective", "input", "compile"]


def phased(pattern, *, seen=None, marks=None, host="toy", ops=None, **figures):
    """Return phases, one a letter, of toy steps of 1 ms, 2 ms, ...: times as shares of the step, others as they are.

    ``ops`` are (op, side, category, share of the step) a letter; what is not given is unknown.
    """
    toy = toy_steps(pattern, seen=seen, host=host)
    told = [figures.get(letter, {}) for letter in pattern]
    durs = toy.frame["dur_ps"].to_list()
    times = {
        f"{name}_ps": [None if name not in one else round(one[name] * dur) for one, dur in zip(told, durs, strict=True)]
        for name in UNKNOWN
    }
    utils = {name: [one.get(name) for one in told] for name in ("mxu_util", "flops_util", "hbm_util")}
    types = {name: schema.STEPS[name] for name in (*times, *utils)}
    frame = toy.frame.with_columns(pl.DataFrame({**times, **utils}, schema=types).get_columns())
    if marks is not None:
        frame = frame.with_columns(mark=pl.Series([marks.get(letter, "train") for letter in pattern]))
    rows = [
        (host, step, op, side, category, 1, round(part * durs[step]), round(part * durs[step]))
        for step, letter in enumerate(pattern)
        for op, side, category, part in (ops or {}).get(letter, [])
    ]
    steps = Steps(frame, pl.DataFrame(rows, schema=schema.OPS, orient="row"), windows=toy.windows, name="toy")
    return labelled(steps, [string.ascii_lowercase.index(letter) for letter in pattern])


def labelled(steps, labels):
    nowhere = pl.Series("distance", [None] * len(labels), dtype=pl.Float64)
    return Phases(steps, pl.Series("phase", labels, dtype=pl.Int64), lambda steps: labels, nowhere)


def fired(phases):
    return {(row["phase"], row["rule"]): row["saves"] for row in advise(phases).iter_rows(named=True)}


BUSY = {"device": 1.0, "idle": 0.0}
ROOFLESS = {**BUSY, "mxu_util": 0.35, "hbm_util": 0.8}
CASES = {
    "input": ({"infeed": 0.4}, [], 0.4),
    "idle": ({"device": 0.7, "idle": 0.3}, [], 0.3),
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
def test_one_figure_fires_one_rule_and_what_it_saves_is_what_was_spelled(rule, figures, ops, saves):
    assert fired(phased("aa", a=figures, ops={"a": ops})) == {(0, rule): pytest.approx(saves)}


def test_every_rule_is_tested_has_a_source_and_speaks_of_facts_that_there_are():
    assert [rule.name for rule in RULES if rule.name not in {*CASES, *ELSEWHERE}] == []
    assert len({rule.name for rule in RULES}) == len(RULES)
    known = {*facts(phased("a")).columns}
    for rule in RULES:
        spoken = {field for _, field, _, _ in string.Formatter().parse(rule.sentence) if field}
        assert rule.needs
        assert {*rule.needs, *spoken} <= known
        assert rule.source
        assert rule.knob


def test_a_sentence_carries_its_figures():
    phases = phased("aaaaab", a={"infeed": 0.41}, marks={"b": "test"})
    row = advise(phases).row(0, named=True)
    assert row["sentence"] == (
        "Phase 0 (train, 71.4 % of the run): it waits for input 41 % of its time: up to 29.3 % of the run."
    )
    assert row["saves_ps"] == round(0.41 * 5e9)
    assert "prefetch" in row["knob"]


def test_of_an_unknown_profile_nothing_is_said():
    answer = advise(phased("aab"))
    assert answer.schema == schema.ADVICE
    assert answer.is_empty()


@pytest.mark.parametrize(
    "figures",
    [
        {"infeed": 0.1},
        {"collective": 0.3},
        {"idle": 0.1, "device": 0.9},
        {**BUSY, "mxu_util": 0.3},  # of the memory nothing is known
        {**BUSY, "mxu_util": 0.3, "hbm_util": float("nan")},
        {**BUSY, "mxu_util": 0.6, "hbm_util": 0.2},
        {**BUSY, "mxu_util": 0.1, "hbm_util": 0.6},
        {"mxu_util": 0.1, "hbm_util": 0.1},  # whether it idles is unknown
        {"compile": 0.0, "input": 0.0, "outfeed": 0.0, "transfer": 0.0},
    ],
    ids=str,
)
def test_what_is_usual_or_unknown_goes_without_advice(figures):
    assert fired(phased("aa", a=figures)) == {}


def test_waiting_devices_are_not_told_to_take_larger_batches():
    slow = {**BUSY, "mxu_util": 0.1, "hbm_util": 0.1}
    assert (0, "batch") in fired(phased("aa", a=slow))
    assert fired(phased("aa", a={**slow, "infeed": 0.5})) == {(0, "input"): 0.5}
    copies = [("copy-done", "device", None, 0.9), ("fusion", "device", None, 0.1)]
    assert fired(phased("aa", a=slow, ops={"a": copies})) == {(0, "copies"): pytest.approx(0.9)}


def test_the_peak_stands_in_where_hardware_does_not_count_the_matrix_unit():
    assert fired(phased("a", a={**BUSY, "flops_util": 0.35, "hbm_util": 0.8})) == {(0, "memory"): pytest.approx(0.5)}


def test_a_host_that_waits_costs_what_its_device_idles_meanwhile():
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


def test_a_host_that_dequeues_an_outfeed_waits_for_its_device_and_not_the_other_way():
    ops = {"a": [("OutfeedDequeueTuple", "host", "transfer", 0.9)]}
    assert fired(phased("a", a={"idle": 0.3}, ops=ops)) == {(0, "idle"): 0.3}


@pytest.mark.parametrize(
    ("op", "category", "counts"),
    [
        ("Transpose", None, True),
        ("Copy", "copy", True),
        ("loop_transpose_fusion", "loop fusion", True),
        ("copy_bitcast_fusion", "loop fusion", True),
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


def test_device_time_is_shared_out_by_self_time_whatever_the_number_of_devices():
    ops = [("Reshape", "device", None, 4 * 0.2), ("fusion", "device", None, 4 * 0.2)]  # of four devices
    phases = phased("a", a={"device": 0.4, "idle": 0.05}, ops={"a": ops})
    assert fired(phases) == {(0, "formatting"): pytest.approx(0.2)}
    assert fired(phased("a", ops={"a": ops})) == {}  # how long they were busy is unknown


def test_the_first_step_of_a_mark_must_compile_and_others_must_not():
    once = {"a": {"compile": 0.9}, "b": {"compile": 0.0}}
    assert fired(phased("abbb", **once)) == {(0, "compile"): pytest.approx(0.9 / 7)}
    assert fired(phased("baba", **once)) == {(0, "recompile"): pytest.approx(0.9 * 2 / 6)}
    assert fired(phased("ba", marks={"b": "test"}, **once)) == {(0, "compile"): pytest.approx(0.9 / 3)}
    assert fired(phased("ba", seen="tf", **once)) == {(0, "recompile"): pytest.approx(0.9 / 3), (1, "unseen"): None}


def test_steps_that_also_save_are_charged_with_what_they_take_longer():
    saving = {"c": [("SaveV2", "host", None, 0.1)]}
    answer = advise(phased("aaac", ops=saving))  # 1 ms as a rule, 3 ms to save: 2 ms of 6 ms
    assert answer.select("phase", "rule", "saves_ps").rows() == [(2, "checkpoint", 2_000_000_000)]
    assert "costs 66.7 % of their time" in answer["sentence"].item()
    assert fired(phased("a" * 400 + "c", ops=saving)) == {}  # 0.5 % of the run: let them save
    assert fired(phased("aaac", marks={"c": "save checkpoint"})) == {(2, "checkpoint"): pytest.approx(0.5)}
    assert fired(phased("aaac", marks={"c": "summaries"})) == {(2, "summary"): pytest.approx(0.5)}
    assert fired(phased("aaac", marks={"c": "unsavoury"})) == {}


def test_a_phase_that_waits_longer_than_another_of_the_same_operations_is_named():
    same = [("fusion", "device", None, 0.5)]
    figures = {"a": {"infeed": 0.0, "idle": 0.0}, "c": {"infeed": 0.6, "idle": 0.0}}
    answer = advise(phased("aaaaaacaaa", ops={"a": same, "c": same}, **figures))
    assert set(answer["rule"]) == {"input", "stall"}
    row = answer.row(by_predicate=pl.col("rule") == "stall", named=True)
    assert (row["phase"], row["saves_ps"]) == (2, 1_800_000_000)
    assert (
        "run the operations of Phase 0, but take 3 ms instead of 1 ms, 1.8 ms of it waiting for input"
        in row["sentence"]
    )
    other = {"a": same, "c": [*same, ("Copy", "device", None, 0.01)]}
    assert fired(phased("aaaaaac", ops=other, **figures)) == {(2, "input"): pytest.approx(0.2)}
    working = figures | {"c": {"infeed": 0.1, "idle": 0.0}}  # longer, but not for waiting
    assert fired(phased("aaaaaac", ops={"a": same, "c": same}, **working)) == {}


def test_hosts_may_do_this_and_that_in_a_stall_where_a_device_tells_what_ran():
    same, more = ("fusion", "device", None, 0.5), ("Poll", "host", None, 0.1)
    figures = {"a": {"idle": 0.0}, "c": {"idle": 0.6}}
    answer = advise(phased("aaaaaac", ops={"a": [same], "c": [same, more]}, **figures))
    assert "on the device its steps" in answer.row(by_predicate=pl.col("rule") == "stall", named=True)["sentence"]
    assert "of it idling" in answer.row(by_predicate=pl.col("rule") == "stall", named=True)["sentence"]


def test_a_phase_known_by_the_clock_alone_comes_last_and_says_so():
    phases = phased("aab", seen="fft", marks={"b": "warm-up"}, a={"infeed": 0.2})
    answer = advise(phases)
    assert answer.select("phase", "rule", "saves").rows() == [(0, "input", 0.1), (1, "unseen", None)]
    assert answer["saves_ps"].to_list() == [400_000_000, None]
    assert answer["sentence"][1].startswith("Phase 1 (warm-up, 50 % of the run): no window saw a step of it in full")
    assert answer["sentence"][1].endswith("what it could save is unknown.")


def test_steps_seen_in_full_speak_for_the_others_of_their_phase():
    assert fired(phased("aaab", seen="fpft", a={"infeed": 0.4})) == {
        (0, "input"): pytest.approx(0.4 * 3 / 5),
        (1, "unseen"): None,
    }


def test_steps_that_know_speak_for_those_that_do_not():
    known, unknown = phased("a", a={"infeed": 0.4}).steps, phased("a", host="other").steps
    both = Steps(pl.concat([known.frame, unknown.frame]), pl.concat([known.ops, unknown.ops]))
    assert fired(labelled(both, [0, 0])) == {(0, "input"): pytest.approx(0.4)}


def test_advice_is_ranked_by_the_time_that_it_would_save():
    phases = phased("aaab", a={"infeed": 0.2, "outfeed": 0.3}, b={"infeed": 0.9})
    answer = advise(phases)
    assert answer.select("phase", "rule").rows() == [(1, "input"), (0, "outfeed"), (0, "input")]
    assert answer["saves_ps"].to_list() == [1_800_000_000, 900_000_000, 600_000_000]


def test_noise_is_advised_on_as_noise_and_no_share_is_too_large():
    steps = phased("ab", b={"infeed": 7.0}).steps
    row = advise(labelled(steps, [0, -1])).row(0, named=True)
    assert (row["phase"], row["saves"]) == (-1, pytest.approx(2 / 3))
    assert row["sentence"].startswith("Noise (train, 66.7 % of the run)")


def test_steps_of_no_time_and_runs_without_steps_pass():
    assert advise(phased("")).is_empty()
    still = phased("aa", a={"infeed": 0.4}).steps
    assert advise(labelled(Steps(still.frame.with_columns(dur_ps=0), still.ops), [0, 0])).is_empty()


def test_names_of_a_program_neither_command_nor_format_nor_run_on():
    op = "Transpose_" + "copy_" * 30 + "copy"
    ops = {"a": [(op, "device", "data formatting", 0.4), ("pure_callback \x1b[31m{share}\u202e\n", "host", None, 0.3)]}
    sentences = advise(phased("a", a=BUSY, ops=ops, marks={"a": "tr{name}ain\x1b]0;\u2028"}))["sentence"]
    assert len(sentences) == 1  # the device was busy throughout: the call back cost nothing
    assert "Phase 0 (tr{name}ain\ufffd]0;\ufffd, 100 % of the run)" in sentences[0]
    assert "Transpose_copy_copy_cop…" in sentences[0]
    called = advise(phased("a", ops=ops))["sentence"].item()
    assert "most of it pure_callback \ufffd[31m{share}\ufffd\ufffd:" in called


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


@given(
    st.text("abc", min_size=1, max_size=8),
    st.fixed_dictionaries(dict.fromkeys("abc", STEP)),
    st.fixed_dictionaries(dict.fromkeys("abc", OPS)),
    st.data(),
)
def test_whatever_is_known_advice_is_bounded_ranked_and_said_once(pattern, figures, ops, data):
    seen = data.draw(st.text("fpt", min_size=len(pattern), max_size=len(pattern)))
    figures = {
        letter: {name: value for name, value in one.items() if value is not None} for letter, one in figures.items()
    }
    phases = phased(pattern, seen=seen, ops=ops, **figures)
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


def test_the_stall_of_a_known_run_is_found_and_costs_its_infeed():
    run = known_run(20_000, 120)
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
    assert f"the operations of Phase {steady}," in rules["stall"]["sentence"]


def test_of_the_samples_it_says_what_their_script_does_badly():
    cnn = advise(tp.phases(tp.steps(tp.sample("keras_cnn"))))
    text = " ".join(cnn["sentence"])
    assert "compiles" in text
    assert cnn.filter(pl.col("sentence").str.contains("(test,", literal=True), pl.col("rule") == "input").height == 1
    transformer = advise(tp.phases(tp.steps(tp.sample("keras_transformer"))))
    assert "checkpoint" in transformer["rule"].to_list()


REAL = {
    "tpu-v2-8_resnet50.overview_page.json": {"memory"},
    "tpu-v6e-4_jax_host-offload.xplane.pb": {"copies"},
    "gpu-mi300x_jax_conv.xplane.pb": {"idle"},
    "gpu-v100_tf2_bert_steps.xplane.pb": {"input"},
    "cpu_tf2_keras.trace.json.gz": {"input"},
}


@pytest.mark.parametrize("name", REAL)
def test_of_real_captures_it_says_what_is_known_of_them(real_profiles, name):
    answer = advise(tp.phases(tp.steps(tp.load(real_profiles / name))))
    assert set(answer["rule"]) == REAL[name]
    assert answer["saves"].sum() > 0.2


def test_steps_are_no_phases():
    with pytest.raises(TypeError, match=r"phases parameter of advise must be Phases\. Got Steps") as caught:
        advise(toy_steps("ab"))
    assert caught.value.__notes__ == ["Hint: tp.phases(steps)"]
