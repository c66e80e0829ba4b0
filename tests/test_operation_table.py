"""Tables of operations as profiles: columns, units, and what is missing."""

import contextlib
import gzip
import random

import polars as pl
import pytest
from simulate.pipeline import Pipeline
from test_damaged import flipped

import tpunb as tp
from tpunb.errors import BadProfile, ProfileNotFound

SMALL = Pipeline(stages=2, ranks=2, microbatches=2, steps=3)


@pytest.fixture(scope="module")
def table():
    return SMALL.table()


def saved(table, folder, name="job.parquet"):
    path = folder / name
    data = table.write_csv() if ".csv" in name else None
    if data is None:
        table.write_parquet(path)
    else:
        path.write_bytes(gzip.compress(data.encode()) if name.endswith(".gz") else data.encode())
    return path


@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of what other tests left
@pytest.mark.parametrize("name", ["job.parquet", "job.csv", "job.csv.gz"])
def test_a_table_is_a_profile_of_a_host_for_each_rank(table, tmp_path, name):
    profile = tp.load(saved(table, tmp_path, name))
    steps = tp.steps(profile)
    assert steps.frame["host"].unique().sort().to_list() == [
        f"rank{2 * stage + rank} (stage {stage}, dp {rank})" for stage in (0, 1) for rank in (0, 1)
    ]
    whole = (table["start"] + table["duration"]).max()
    assert profile.span_ps == pytest.approx(whole * 1e12)
    first = steps.frame.filter(pl.col("host").str.starts_with("rank0 "), step=1).row(0, named=True)
    own = table.filter(rank=0, step=1)
    assert first["start_ps"] == pytest.approx(own["start"].min() * 1e12)
    assert first["dur_ps"] == pytest.approx(((own["start"] + own["duration"]).max() - own["start"].min()) * 1e12)
    ops = dict(
        steps.ops.filter(pl.col("host").str.starts_with("rank0 "), step=1)
        .select(pl.col("op").cast(str), "count")
        .rows()
    )
    assert ops == dict(own.group_by("optype").len().rows())
    assert tp.phases(profile).frame["steps"].sum() == 12
    assert len(steps.pipeline) == len(table)


def test_names_of_published_traces_and_a_folder_are_read(table, tmp_path):
    (tmp_path / "other.csv").write_text("epoch,loss\n1,0.5\n")
    saved(table.rename({"start": "start_ts"}).with_columns(mc=-1), tmp_path)
    assert tp.load(tmp_path).name == tmp_path.name
    saved(table, tmp_path, "again.csv")
    with pytest.raises(ProfileNotFound, match="holds 2 tables of operations") as caught:
        tp.load(tmp_path)
    assert caught.value.hint == "load one of again.csv, job.parquet"


def test_a_rank_without_data_parallel_rank_gets_its_place_in_the_stage(table, tmp_path):
    steps = tp.steps(tp.load(saved(table.drop("dp_rank"), tmp_path)))
    assert steps.pipeline.select("stage", "dp_rank").unique().sort("stage", "dp_rank").rows() == [
        (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip


def test_missing_columns_are_named_with_those_present(table, tmp_path):
    with pytest.raises(
        BadProfile, match="no column stage, start; it has step, rank, dp_rank, optype, duration"
    ) as caught:
        tp.load(saved(table.drop("stage", "start"), tmp_path))
    assert caught.value.hint == "it needs step, rank, stage, optype, start, duration; times are in seconds"


def test_other_tables_are_no_profiles(table, tmp_path):
    with pytest.raises(BadProfile, match="is a table, not a profile"):
        tp.load(saved(table.select("step", "rank"), tmp_path))
    with pytest.raises(BadProfile, match="ranks are in several stages"):
        tp.load(saved(table.with_columns(stage=pl.col("step") % 2), tmp_path))
    with pytest.raises(BadProfile, match="the table cannot be read"):
        tp.load(saved(table.with_columns(step=pl.lit("x")), tmp_path))
    with pytest.raises(BadProfile, match="holds no operations"):
        tp.load(saved(table.clear(), tmp_path))
    (tmp_path / "job.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadProfile, match="the table cannot be read"):
        tp.load(tmp_path / "job.parquet")


def test_rows_without_values_are_left_out_and_counted(table, tmp_path):
    bad = table.with_columns(
        duration=pl.when(pl.int_range(pl.len()) == 0).then(float("nan")).otherwise("duration"),
        step=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise("step"),
    )
    with pytest.warns(UserWarning, match="2 rows without valid values"):
        profile = tp.load(saved(bad, tmp_path))
    assert profile.windows["events"].sum() == len(table) - 2


def test_times_relative_to_the_step_are_placed_one_after_the_other(table, tmp_path):
    relative = table.with_columns(pl.col("start") - pl.col("start").min().over("step"))
    with pytest.warns(UserWarning, match="times are relative to their step"):
        steps = tp.steps(tp.load(saved(relative, tmp_path)))
    expected = tp.steps(tp.load(saved(table, tmp_path)))
    assert (steps.frame["start_ps"] - expected.frame["start_ps"]).abs().max() < 1000
    assert (steps.frame["dur_ps"] - expected.frame["dur_ps"]).abs().max() < 1000


def test_a_step_that_is_cut_is_traced_in_part(table, tmp_path):
    end = table.filter(step=2)["start"].median()
    cut = table.filter((pl.col("step") < 2) | (pl.col("start") < end))
    with pytest.warns(UserWarning, match="1 step without all operations: 2"):
        steps = tp.steps(tp.load(saved(cut, tmp_path)))
    assert dict(steps.frame.group_by("step").agg(pl.col("traced").cast(str).unique().first()).rows()) == {
        0: "full", 1: "full", 2: "partial",
    }  # fmt: skip
    found = tp.hosts(steps)
    assert found.critical["step"].unique().sort().to_list() == [0, 1]


def test_a_missing_rank_is_lost(table, tmp_path):
    steps = tp.steps(tp.load(saved(table.filter(pl.col("rank") != 2), tmp_path)))
    assert steps.lost.rows() == [("stage 1, dp 0", "no rank of this stage has operations")]
    assert tp.hosts(steps).frame["lost"].drop_nulls().len() == 1


def test_ranks_beside_others_are_noted(table, tmp_path):
    tensor = pl.concat([table, table.with_columns(pl.col("rank") + 100)])
    with pytest.warns(UserWarning, match="4 ranks beside others"):
        assert tp.load(saved(tensor, tmp_path)).windows.height == 4


@pytest.mark.parametrize("name", ["job.parquet", "job.csv"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_tables_end_in_a_profile_or_an_error(table, tmp_path, name):
    path, rng = saved(table, tmp_path, name), random.Random(0)
    whole = path.read_bytes()
    for number in range(60):
        path.write_bytes(flipped(whole, rng) if number % 3 else whole[: rng.randrange(len(whole))])
        with contextlib.suppress(BadProfile):
            tp.steps(tp.load(path))
