"""Phases of a job: a phase is a property of the job's step, whatever the number of its hosts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.cluster import METHODS
from tpunb.frames import Steps
from tpunb.step_stats import job_tables, roles
from tpunb.step_stats.merge_hosts import gaps, of_job
from tpunb.testing import spelled_steps, toy_steps

TABLES = ("frame", "ops", "devices", "windows")
MS = 10**9  # picoseconds


def joined(*hosts):
    return Steps(*(pl.concat([getattr(host, table) for host in hosts]) for table in TABLES), name="job")


def host_of(one, name, slowdown=1.0, first=0):
    """A host that runs the steps of another, slower, from some step on."""

    def table(rows):
        times = [pl.col(column) for column in rows.columns if column.endswith("_ps")]
        rows = rows.with_columns((time * slowdown).round().cast(pl.Int64) for time in times)
        rows = rows.with_columns(host=pl.lit(name))
        return rows.filter(pl.col("step") >= first) if {"step", "dur_ps"} <= {*rows.columns} else rows

    tables = {name: table(getattr(one, name)) for name in TABLES}
    return Steps(**tables | {"ops": tables["ops"].filter(pl.col("step") >= first)})


def copies(one, n):
    return joined(*(host_of(one, f"host-{number:04d}") for number in range(n)))


def by_step(phases, host=None):
    rows = phases.labelled if host is None else phases.labelled.filter(host=host)
    return rows.sort("host", "step")["phase"].to_list()


@pytest.fixture(scope="module")
def one():
    return replace(tp.steps(tp.sample("keras_cnn")), wall=None, windows=pl.DataFrame(schema=schema.WINDOWS))


@pytest.mark.parametrize("method", METHODS)
def test_copies_of_a_host_have_its_labels(one, method):
    expected = by_step(tp.phases(one, method))
    assert len(set(expected)) > 2
    assert by_step(tp.phases(copies(one, 4), method)) == expected * 4


@pytest.mark.parametrize("n", [64, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_copies_of_a_host_have_its_labels(one, n):
    expected = tp.phases(one)
    found = tp.phases(copies(one, n))
    assert by_step(found) == by_step(expected) * n
    assert len(found) == len(expected)
    assert found.confidence == expected.confidence


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factors", [(1.25, 1, 1, 1), (1, 1.25)], ids=str)
def test_a_slow_host_changes_no_label(one, method, factors):
    hosts = joined(*(host_of(one, f"host{number}", factor) for number, factor in enumerate(factors)))
    assert by_step(tp.phases(hosts, method)) == by_step(tp.phases(one, method)) * len(factors)


def test_a_host_that_missed_steps_does_not_move_the_others(one):
    expected = by_step(tp.phases(one))
    found = tp.phases(joined(host_of(one, "a"), host_of(one, "b"), host_of(one, "late", first=50)))
    assert by_step(found, "a") == by_step(found, "b") == expected
    assert by_step(found, "late") == expected[-len(by_step(found, "late")) :]


@pytest.mark.parametrize("method", METHODS)
def test_a_job_of_two_roles_has_the_phases_of_both(method):
    trainers = [toy_steps("aaaabbbbaaaa" * 3, host=f"trainer-{number}") for number in range(3)]
    reader = toy_steps("ccccddddcccc" * 3, host="reader")
    fed = Steps(reader.frame, reader.ops.filter(pl.col("side") == "host"))  # which has no device
    found = tp.phases(joined(*trainers, fed), method)
    alone = [by_step(tp.phases(each, method)) for each in (trainers[0], fed)]
    assert {tuple(by_step(found, f"trainer-{number}")) for number in range(3)} == {
        tuple(label + max(alone[1]) + 1 for label in alone[0])  # the reader is the first by name
    }
    assert by_step(found, "reader") == alone[1]


def test_stages_of_a_pipeline_that_have_operations_in_common_are_two_roles():
    stages = [spelled_steps(*[({"dot": 4, "copy": 2, op: 1}, {})] * 12, host=op) for op in ("embed", "softmax")]
    both = joined(*stages, host_of(stages[0], "embed 2"))
    assert set(of_job(both).by_host.roles.values()) == {"embed and 1 more", "softmax"}
    assert tp.phases(both).labels.to_list() == [0] * 24 + [1] * 12


def test_the_figures_of_a_job_are_those_that_the_schema_declares():
    one = toy_steps("ab", host="one")
    facts = {"collective_ps": MS // 4, "flops": 6.0, "input_ps": 10, "mxu_util": 0.25}
    two = host_of(one, "two", 1.5)
    frames = [one.frame.with_columns(**{name: pl.lit(fact) for name, fact in facts.items()})]
    facts |= {"collective_ps": MS // 8, "input_ps": 30, "mxu_util": 0.75}
    frames += [two.frame.with_columns(**{name: pl.lit(fact) for name, fact in facts.items()})]
    job = of_job(Steps(pl.concat(frames), pl.concat([one.ops, two.ops]), pl.concat([one.devices, two.devices])))
    assert job.frame["host"].unique().to_list() == ["one and 1 more"]
    first = job.frame.row(0, named=True)
    assert (first["start_ps"], first["dur_ps"]) == (0, 1_500_000_000)  # the lower start of two, the longer step
    assert (first["device_ps"], first["flops"], first["input_ps"], first["mxu_util"]) == (625_000_000, 12.0, 30, 0.5)
    # 1 ms - 0.25 ms against 1.5 ms - 0.125 ms
    assert (first["step_skew_ps"], first["slowest_host"]) == (625_000_000, "two")
    op = job.ops.filter(pl.col("step") == 0, pl.col("op") == "a0").row(0, named=True)
    assert (op["count"], op["total_ps"]) == (1, 156_250_000)  # of one host: 125 us and 187.5 us
    assert job.devices["device_ps"].to_list() == [625_000_000, 1_250_000_000]
    assert job.by_host.frame.sort("host", "step").equals(pl.concat(frames).pipe(schema.check, schema.STEPS, "steps"))
    assert of_job(job) is job
    assert of_job(one) is one


def test_a_host_that_a_window_cut_counts_only_where_no_other_is_in_full():
    one, cut = toy_steps("aa", host="one"), toy_steps("aa", host="two", traced="fp")
    job = of_job(joined(one, host_of(cut, "two", 2.0)))
    assert job.frame["dur_ps"].to_list() == [2 * MS, MS]
    assert job.frame["slowest_host"].to_list() == ["two", None]
    assert job.ops.filter(pl.col("op") == "a0")["total_ps"].to_list() == [187_500_000, 125_000_000]


# -- hosts whose steps the program did not number ----------------------------------------------------------------


def by_order(ends, host, *, first=0, clock_ps=0, rule="module"):
    """Steps of one operation by their ends, counted from 0 on each host, and the collectives that end them."""
    ends = np.asarray(ends)[first:] + clock_ps
    n = len(ends)
    toy = toy_steps("a" * n, host=host)
    start = np.append(2 * ends[0] - ends[1], ends[:-1])
    frame = toy.frame.with_columns(rule=pl.lit(rule), start_ps=pl.Series(start), dur_ps=pl.Series(ends - start))
    runs = pl.DataFrame({"host": host, "step": range(n), "start_ps": ends - 10, "dur_ps": 10, "instance": 1})
    texts = {"device": "/device:TPU:0", "op": "all-reduce", "name": "all-reduce.1", "program": 1}
    return replace(toy, frame=frame), runs.with_columns(**{name: pl.lit(text) for name, text in texts.items()})


def unnumbered(*hosts):
    """A job of hosts without numbers, and its collectives."""
    frames = {name: pl.concat([getattr(host, name) for host, _ in hosts]) for name in TABLES}
    runs = pl.concat([rows for _, rows in hosts], how="diagonal")
    empty = {name: pl.lit(None, dtype).alias(name) for name, dtype in schema.COLLECTIVES.items()}
    runs = runs.with_columns(empty[name] for name in empty if name not in runs.columns)
    return Steps(**frames, name="job", read_collectives=lambda: runs)


def uneven(n, seed=0):
    """Ends of steps of some 100 ms that differ by 1 ms."""
    return np.cumsum(np.random.default_rng(seed).normal(100 * MS, MS, n)).astype(np.int64)


@examples(20)
@given(
    first=st.integers(0, 8), clock=st.integers(-(10**12), 10**12), seed=st.integers(0, 99), jitter=st.integers(0, 10**6)
)
def test_ends_of_collectives_align_hosts_whatever_their_clocks(first, clock, seed, jitter):
    ends = uneven(20, seed)
    late = ends + np.random.default_rng(seed).integers(0, jitter + 1, 20)
    steps = unnumbered(by_order(ends, "a"), by_order(late, "b", first=first, clock_ps=clock))
    job = of_job(steps)
    assert set(job.by_host.roles.values()) == {"a and 1 more"}
    numbers = job.by_host.frame.filter(host="b")["step"].to_list()
    assert numbers == [*range(first, 20)]
    assert job.by_host.collectives.filter(pl.col("host") == "b")["step"].to_list() == numbers
    assert len(job) == 20


def test_steps_of_equal_length_are_aligned_by_the_clocks():
    ends = np.arange(1, 21) * 100 * MS
    near = of_job(unnumbered(by_order(ends, "a"), by_order(ends, "b", first=3, clock_ps=MS)))
    assert near.by_host.frame.filter(host="b")["step"].min() == 3
    with pytest.warns(UserWarning, match=r"^job: steps of 1 host could not be matched with those of others: b$"):
        far = of_job(unnumbered(by_order(ends, "a"), by_order(ends, "b", first=3, clock_ps=50 * MS)))
    assert far.by_host.roles == {"a": "a", "b": "b"}


def test_hosts_that_do_not_run_in_step_stay_apart():
    with pytest.warns(UserWarning, match="steps of 1 host could not be matched"):
        job = of_job(unnumbered(by_order(uneven(20, 1), "a"), by_order(uneven(20, 2) * 5 // 4, "b")))
    assert job.by_host.roles == {"a": "a", "b": "b"}


def test_real_captures_as_four_hosts_have_the_phases_of_one(real_profiles, tmp_path):
    for name in ("gpu-mi300x_jax08_gemm", "tpu-v6e-4_jax_host-offload", "gpu-mi300x_jax_conv"):
        data = (real_profiles / f"{name}.xplane.pb").read_bytes()
        folder = tmp_path / name
        folder.mkdir()
        for number in range(4):
            (folder / f"host-{number}.xplane.pb").write_bytes(data)
        expected = tp.phases(tp.steps(tp.load(real_profiles / f"{name}.xplane.pb"))).labels.to_list()
        assert tp.phases(tp.steps(tp.load(folder))).labels.to_list() == expected * 4


# -- merging -------------------------------------------------------------------------------------------------------


@examples(10)
@given(cuts=st.sets(st.integers(1, 7)), seed=st.integers(0, 9))
def test_parts_merge_to_the_same_job_wherever_they_are_cut(cuts, seed):
    rng = np.random.default_rng(seed)
    hosts = [
        host_of(toy_steps("aabbab"), f"host-{n}", 1 + 0.1 * rng.random(), int(rng.integers(0, 4))) for n in range(8)
    ]
    runs = pl.DataFrame(schema=schema.HOST_COLLECTIVES)
    whole = job_tables.job(job_tables.tables(joined(*hosts), runs))
    edges = [0, *sorted(cuts), 8]
    parts = [job_tables.tables(joined(*hosts[a:b]), runs) for a, b in pairwise(edges)]
    merged = job_tables.job(job_tables.merge(parts))
    for table in ("frame", "ops", "devices"):
        assert getattr(merged, table).equals(getattr(whole, table)), table
    for table in ("frame", "ops"):
        assert getattr(merged.by_host, table).equals(getattr(whole.by_host, table)), table
    assert merged.by_host.roles == whole.by_host.roles


def test_fingerprints_differ_where_operations_or_their_counts_do():
    steps = spelled_steps(({"dot": 5, "add": 1}, {"x": 1}), ({"dot": 9, "add": 2}, {"y": 1}), ({"dot": 5}, {}))
    twice = steps.ops.with_columns(count=pl.when(pl.col("step") == 1, pl.col("op") == "dot").then(2).otherwise("count"))
    one = roles.fingerprints(steps.ops, steps.devices).sort("step")["print"]
    two = roles.fingerprints(twice, steps.devices).sort("step")["print"]
    assert one[0] == one[1] != one[2]
    assert two[0] == one[0]
    assert two[1] != one[1]


def test_addresses_have_no_gaps():
    assert gaps({"10.0.0.1", "10.0.0.2", "10.0.0.4"}) == []
    assert gaps({"w-1", "w-2", "w-4", "w-5"}) == ["w-3"]
    assert gaps({"w-1", "w-2", "w-4", "w-5"}, {"w-3"}) == []
