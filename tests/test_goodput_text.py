"""Goodput in words: the sentence that a summary begins with."""

import polars as pl
import pytest
from goodput_rows import SLOW, goodput_of

from tpunb import schema
from tpunb.analysis.goodput import Goodput, busy


def test_the_sentence_begins_with_the_waste_and_the_place_to_change():
    assert goodput_of(SLOW).sentence == (
        "24.2 s: 3.6 s productive (15 %), 14.0 s in callbacks: Slow.on_epoch_end 10.0 s, Slow.on_train_batch_end 4.0 s;"
        " 2.1 s program startup; 1.5 s data loading; 1.2 s preparation: before the first step"
    )


def test_tracing_again_for_one_shape_after_the_other_is_named_once():
    again = [("program startup", f"tracing step again for float32[{rows}, 64]", 0.5) for rows in range(8)]
    rows = [("productive", None, 5.0), ("program startup", "tracing step", 1.0), *again]
    assert goodput_of(rows).sentence == (
        "10.0 s: 5.0 s productive (50 %), 5.0 s program startup: tracing step again 4.0 s, tracing step 1.0 s"
    )


def test_accounts_below_2_percent_of_wall_time_are_left_out():
    rows = [("productive", None, 9.8), ("callbacks", "A.on_epoch_end", 0.19), ("other", None, 0.01)]
    assert goodput_of(rows).sentence == "10.0 s: 9.8 s productive (98 %)"


def test_a_large_other_comes_first_with_its_reason():
    rows = [("productive", None, 4.0), ("other", None, 1.0), ("callbacks", None, 5.0)]
    text = goodput_of(rows, notes=["the run recorded no waits for input"]).sentence
    assert (
        text == "10.0 s: 4.0 s productive (40 %), 1.0 s other (the run recorded no waits for input); 5.0 s in callbacks"
    )
    assert "1.0 s other; 5.0 s" in goodput_of(rows).sentence


def test_other_under_a_tenth_is_an_account_like_any():
    rows = [("productive", None, 8.5), ("other", None, 0.5), ("callbacks", None, 1.0)]
    assert goodput_of(rows).sentence.endswith("(85 %), 1.0 s in callbacks; 500 ms other")


def test_a_detail_of_several_phases_is_one_and_hosts_are_averaged():
    rows = [
        ("a", "productive", None, 6.0),
        ("b", "productive", None, 8.0),
        ("a", "callbacks", "Slow.on_epoch_end", 3.0),
        ("a", "callbacks", "Slow.on_epoch_end", 1.0),
        ("b", "data loading", None, 2.0),
    ]
    assert goodput_of(rows).sentence == (
        "10.0 s (mean of 2 hosts): 7.0 s productive (70 %), 2.0 s in callbacks: Slow.on_epoch_end; 1.0 s data loading"
    )


def test_times_that_are_unknown_and_runs_without_time_have_a_sentence():
    known = goodput_of([("productive", None, 1.0)])
    unknown = known.frame.with_columns(account=pl.lit("callbacks").cast(schema.GOODPUT["account"]), time_ps=None)
    both = Goodput(pl.concat([known.frame, unknown.cast(known.frame.schema)]), *(
        getattr(known, name) for name in ("stalls", "segments", "load", "wall_ps", "ideal_step_ps")
    ))  # fmt: skip
    assert both.sentence == "1.0 s: 1.0 s productive (100 %)"
    assert goodput_of([]).sentence == "0 s: 0 s productive (0 %)"


@pytest.mark.parametrize("evil", ["\x1b[31mred\u202e", "a\nb"])
def test_names_and_notes_cannot_command_a_terminal(evil):
    rows = [("productive", None, 1.0), ("callbacks", evil, 1.0), ("other", None, 1.0)]
    assert goodput_of(rows, notes=[evil]).sentence.isprintable()


def test_long_places_lose_their_middle():
    rows = [("productive", None, 1.0), ("program code", "x" * 500, 1.0)]
    assert len(goodput_of(rows).sentence) < 150


def test_a_busy_machine_is_one_phrase():
    loaded = goodput_of([("productive", None, 3.0)], load=[(0.5, 0.9), (0.5, 1.0), (None, None)])
    assert busy(loaded) == "the machine was busy: other programs used 45 % of its processors"
    assert busy(goodput_of([("productive", None, 3.0)], load=[(0.5, 0.75)])) is None
    assert busy(goodput_of([("productive", None, 3.0)])) is None
