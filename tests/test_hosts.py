"""Hosts that delay a job: spelled-out arrivals, simulated pods of known truth, and brute force as oracles."""

import numpy as np
import pod_tables
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pod_jobs import TWO, US, job, simulated
from simulate.pod import Fault, pod
from simulate.step_program import step_program

import tpunb as tp
from tpunb import schema
from tpunb.errors import NoSteps
from tpunb.testing import toy_steps

CAUSE = {"slow chip": "compute", "slow input": "input", "pause": "pause", "late start": "host", "compile": "compile"}


def costs(hosts):
    return {row["host"]: (row["costs_ps"] / US, row["last"]) for row in hosts.frame.iter_rows(named=True)}


def test_a_host_costs_the_time_from_the_second_last_arrival_to_its_own():
    found = tp.hosts(job([[[10, 20, 50], [30, 20, 10]], [[10, 20, 60], [10, 10, 10]]]))
    # h2 is last by 30 and 40, h0 by 10; three ways tied, none costs anything
    assert {host: cost for host, (cost, _) in costs(found).items()} == {"h2": 70, "h0": 10, "h1": 0}
    last = {host: share for host, (_, share) in costs(found).items()}
    assert last == {"h2": 0.5, "h0": 0.25, "h1": 0}  # the last three tie
    assert found.frame["together_ps"].to_list() == [70 * US, 90 * US, 90 * US]  # then the second waits for nobody
    assert found.span_ps == (50 + 30 + 60 + 10 + 40) * US
    assert found.by == "collectives"


def test_the_chain_of_a_step_names_who_was_waited_for():
    found = tp.hosts(job([[[10, 20, 50], [30, 20, 10]], [[10, 20, 60], [15, 10, 5]]], offset=[0, 500, -70]))
    rows = found.critical.with_columns(pl.col("op").cast(pl.String), pl.col("dur_ps", "gain_ps") // US).rows()
    chip = "/device:TPU:0"
    assert rows == [
        (0, 1, "h2", chip, "all-reduce.0", None, 30),
        (0, 2, "h0", chip, "all-reduce.1", 40, 10),
        (1, 1, "h2", chip, "all-reduce.0", 70, 40),
        (1, 2, "h0", chip, "all-reduce.1", 25, 5),
    ]


def test_lateness_is_that_against_the_median_host():
    found = tp.hosts(job([[[10, 20, 50], [30, 20, 10]]]))
    assert dict(found.lateness.select(pl.col("host").cast(pl.String), pl.col("late_ps") // US).rows()) == {
        "h0": -10 + 10, "h1": 0, "h2": 30 - 10,
    }  # fmt: skip


def test_clocks_are_compared_by_common_ends():
    offset, drift = np.array([0, 300, -200, 50, 0]), np.array([0, 5e-6, 0, -1e-5, 0])
    arrivals = np.random.default_rng(0).uniform(1000, 2000, (30, 2, 5))
    found = tp.hosts(job(arrivals, offset=offset, drift=drift)).frame.sort("host")
    middle = (arrivals.max(axis=2) + 10).sum() / 2
    assert found["drift_ppm"].to_list() == pytest.approx(drift * 1e6, abs=1e-3)
    assert (found["skew_ps"] / US).to_list() == pytest.approx(offset + drift * middle, abs=0.05)


@examples(33)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 1000), min_size=n, max_size=n), min_size=1, max_size=8)
    ),
    st.integers(-(10**6), 10**6),
)
def test_costs_are_those_of_brute_force_whatever_the_clocks_show(arrivals, shift):
    arrivals = np.array(arrivals)[:, None]
    found = tp.hosts(job(arrivals, offset=np.arange(arrivals.shape[2]) * shift))

    def length(without):
        kept = [host for host in range(arrivals.shape[2]) if f"h{host}" not in without]
        return arrivals[..., kept].max(axis=2).sum() * US

    for place, (host, alone, together) in enumerate(found.frame.select("host", "costs_ps", "together_ps").rows()):
        assert alone == length([]) - length([host])
        first = found.frame["host"][: min(place + 1, len(found) - 1)].to_list()
        assert together == length([]) - length(first)


@pytest.mark.parametrize("kind", CAUSE)
@pytest.mark.parametrize("every", [1, 3])
def test_the_host_at_fault_is_named_with_cost_and_cause(kind, every):
    made, found = simulated(Fault(kind, (5,), 0.2, every=every, device=2), steps=60)
    row = found.frame.row(0, named=True)
    assert found.frame["named"].to_list() == [True] + 15 * [False]
    assert row["host"] == "pod-0005"
    assert row["costs_ps"] == pytest.approx(made.cost_ps(5), rel=0.02)
    assert row["cause"] == CAUSE[kind]
    often = "every step" if every == 1 else "every 3 steps"
    assert row["recurrence"] == ("bursts" if kind == "pause" else often)
    assert (row["device"], row["op"]) == (("/device:TPU:2", "fusion") if kind == "slow chip" else (None, None))
    others = found.frame.filter(~pl.col("named"))
    assert others.select(pl.col("cause", "recurrence", "device", "op").is_null().all()).row(0) == (True,) * 4
    assert others["costs_ps"].max() <= 0.002 * found.span_ps


def test_the_operation_that_a_chip_is_slow_in():
    names = step_program(toy_steps("ccc"), collectives=2)
    _, found = simulated(Fault("slow chip", (5,), 0.2, device=1, op="c1"), program=names)
    assert found.frame.select("device", "op").row(0) == ("/device:TPU:1", "c1")


def test_a_single_pause_is_one_and_all_slow_chips_are_no_single_device():
    _, found = simulated(Fault("pause", (5,), 0.2), steps=20)
    assert found.frame.select("cause", "recurrence").row(0) == ("pause", "once")
    _, found = simulated(*(Fault("slow chip", (5,), 0.2, device=chip) for chip in range(4)))
    assert found.frame.select("cause", "device", "op").row(0) == ("compute", None, "fusion")


def test_equally_slow_hosts_are_named_together():
    made, found = simulated(Fault("slow chip", (3, 7, 20), 0.2), hosts=40)
    assert found.frame["named"].sum() == 3
    assert set(found.frame["host"][:3]) == {"pod-0003", "pod-0007", "pod-0020"}
    assert found.frame["costs_ps"].head(3).max() < 0.2 * found.frame["together_ps"][2]
    assert found.frame["together_ps"][2] == pytest.approx(made.cost_ps(3, 7, 20), rel=0.02)


@pytest.mark.parametrize("hosts", [4, 8, 64])
def test_a_sound_pod_names_no_host(hosts):
    assert sum(simulated(hosts=hosts, seed=seed, steps=10)[1].frame["named"].any() for seed in range(10)) == 0


def test_equal_hosts_cost_nothing_and_one_slow_copy_is_named():
    assert tp.hosts(job(np.full((5, 2, 8), 100))).frame.select(pl.col("costs_ps", "named").sum()).row(0) == (0, 0)
    assert repr(tp.hosts(job(np.full((5, 2, 8), 100)))) == "Hosts(8 hosts, none delays the others)"
    found = tp.hosts(job(np.where(np.arange(8) == 3, 125, np.full((5, 2, 8), 100))))
    assert found.frame.filter("named")["host"].to_list() == ["h3"]
    assert found.frame["costs_ps"][0] == 5 * 2 * 25 * US


def test_files_give_what_tables_give(tmp_path):
    made = pod(TWO, hosts=8, steps=20, faults=[Fault("slow chip", (2,), 0.2)], folder=tmp_path)
    files = tp.hosts(tp.steps(tp.load(tmp_path)))
    tables = tp.hosts(pod_tables.job_steps(made))
    assert files.frame.drop("op", "role").equals(tables.frame.drop("op", "role"))
    assert files.lateness.sort("host", "step").equals(tables.lateness.sort("host", "step"))


# -- replica groups -------------------------------------------------------------------------------------------------

SLICES, ACROSS = "{{0,1,2,3},{4,5,6,7}}", "{{0,4},{1,5},{2,6},{3,7}}"


def replay(work, groups, transfer=10, without=()):
    """Times of hosts that wait for their group: work (steps, collectives, hosts), groups of each collective."""
    now, rows = np.zeros(work.shape[2]), []
    for step, each in enumerate(work):
        for place, spent in enumerate(each):
            arrived, ended = now + spent, np.zeros(len(now))
            for group in groups[place]:
                waited = [host for host in group if host not in without] or group
                ended[group] = arrived[waited].max() + transfer
            rows += [(f"h{h}", step, place, arrived[h], ended[h] - arrived[h]) for h in range(len(now))]
            now = ended
    return now.max(), rows


def grouped(work, texts, recorded=None, gone=None):
    groups = [[[int(n) for n in g.split(",")] for g in text.strip("{}").split("},{")] for text in texts]
    _, rows = replay(work, groups)
    names = ["host", "step", "place", "start_ps", "dur_ps"]
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        (pl.col("start_ps", "dur_ps") * US).cast(pl.Int64)
    )
    shared = frame.with_columns(
        name=pl.format("all-gather.{}", "place"),
        groups=pl.col("place").replace_strict(dict(enumerate(recorded or texts))),
        program=None, instance=1, device=None,
    )  # fmt: skip
    lost = pl.DataFrame({"what": [f"run/{gone}.xplane.pb"] * (gone is not None), "reason": "empty"}, schema=schema.LOST)
    frame = job(np.full((len(work), 1, 8), 100)).by_host.frame.filter(pl.col("host") != (gone or ""))
    shared = shared.filter(pl.col("host") != (gone or ""))
    return tp.hosts(job(np.full((len(work), 1, 8), 100), collectives=shared, frame=frame, lost=lost)), groups


def test_a_victim_is_not_blamed_for_the_host_that_its_group_waits_for():
    """Slices gather, then hosts across slices reduce: after that, all of a pair are late for their slices."""
    rng = np.random.default_rng(0)
    work = rng.uniform(100, 101, (20, 2, 8))
    work[:, 1, 1] += 40  # late across slices: h5 is as late for its slice as h1 is
    found, groups = grouped(work, [SLICES, ACROSS])
    rows = {row["host"]: row for row in found.frame.iter_rows(named=True)}
    assert found.frame["host"][0] == "h1"
    assert [row["host"] for row in rows.values() if row["named"]] == ["h1"]
    whole = replay(work, groups)[0]
    for host in (1, 5):
        gain = whole - replay(work, groups, without=[host])[0]
        assert rows[f"h{host}"]["costs_ps"] / US == pytest.approx(gain, abs=1)
    assert rows["h1"]["costs_ps"] > 19 * 39 * US > 100 * rows["h5"]["costs_ps"]


def test_a_delay_of_one_group_costs_what_reaches_the_others():
    work = np.full((10, 2, 8), 100.0)
    work[:, 0, 1] += 40  # in the first slice
    work[:, 0, 6] += 30  # in the second, which is hidden
    found, _ = grouped(work, [SLICES, "{{0,1,2,3,4,5,6,7}}"])
    assert found.frame.select("host", pl.col("costs_ps", "together_ps") // US).rows()[:2] == [
        ("h1", 10 * 10, 10 * 10),
        ("h6", 0, 10 * 40),
    ]


def test_groups_are_counted_with_the_hosts_that_are_lost():
    rng = np.random.default_rng(0)
    work = rng.uniform(100, 101, (20, 1, 8))
    work[:, 0, 6] += 40
    found, _ = grouped(work, ["{{0,1,2,3},{4,5,6,7}}"], gone="h2")
    assert found.notes == ()
    assert found.frame.filter("named")["host"].to_list() == ["h6"]


def test_groups_that_do_not_fit_the_hosts_are_left_out_and_named():
    rng = np.random.default_rng(0)
    found, _ = grouped(rng.uniform(100, 200, (20, 2, 8)), [SLICES, "{{0,1,2,3,4,5,6,7}}"])
    assert found.notes == ()
    work = job(rng.uniform(100, 200, (20, 2, 8)), facts={"groups": "{{0,1,2},{3,4}}"})
    (note,) = tp.hosts(work).notes
    assert note == "collectives of the groups {{0,1,2},{3,4}} are left out: the groups do not fit the hosts"
    apart = job(rng.uniform(100, 200, (20, 2, 8)), facts={"groups": SLICES})  # yet all end together
    assert tp.hosts(apart).notes == ()
    pairs, _ = grouped(rng.uniform(100, 200, (20, 1, 8)), ["{{0,1},{2,3},{4,5},{6,7}}"])
    assert pairs.notes == ()
    wrong, _ = grouped(rng.uniform(100, 200, (20, 1, 8)), ["{{0,1},{2,3},{4,5},{6,7}}"], recorded=[SLICES])
    assert len(wrong.notes) == 1  # halves do not end together
    assert wrong.frame["costs_ps"].null_count() == 8


# -- what is not there ----------------------------------------------------------------------------------------------


def test_without_collectives_the_end_of_the_step_decides_and_that_is_said():
    steps = job(np.full((4, 1, 3), 100), collectives=pl.DataFrame(schema=schema.HOST_COLLECTIVES))
    slow = steps.by_host.frame.with_columns(
        dur_ps=100 * US + pl.when(pl.col("host") == "h1").then(20 * US).otherwise(0)
    )
    found = tp.hosts(job(np.full((4, 1, 3), 100), collectives=pl.DataFrame(schema=schema.HOST_COLLECTIVES), frame=slow))
    assert found.by == "step ends"
    assert "judged by step ends, as no collectives are recorded" in repr(found)
    assert found.frame.select("host", "costs_ps", "last").row(0) == ("h1", 4 * 20 * US, 1.0)
    assert found.frame.select(pl.col("skew_ps", "drift_ppm").is_null().all()).row(0) == (True, True)
    assert found.critical.select("step", "host", "op", "dur_ps").row(0) == (0, "h1", None, 120 * US)


def test_a_job_of_one_host_waits_for_nobody():
    found = tp.hosts(toy_steps("aabb"))
    assert found.frame.select("host", "named", "costs_ps", "last").rows() == [("toy", False, None, None)]
    assert found.critical.is_empty()
    assert repr(found) == "Hosts(1 host, none waits for another)"


def test_two_hosts_are_compared_but_none_is_named():
    found = tp.hosts(job([[[10, 50]]]))
    assert found.frame.select("host", "named", "costs_ps").row(0) == ("h1", False, 40 * US)
    most = "none delays the others more than their spread explains, h1 by 66.67 % of step time"
    assert repr(found) == f"Hosts(2 hosts, {most})"


def test_a_job_without_full_steps_or_of_another_type_is_refused():
    with pytest.raises(NoSteps, match="toy has no step that was traced in full"):
        tp.hosts(toy_steps("ab", traced="np"))
    with pytest.raises(TypeError, match="run parameter of hosts must be the path of a run, a Profile, Steps or Phases"):
        tp.hosts([1])


def test_a_host_that_misses_collectives_is_not_last_there():
    steps = job([[[10, 20, 50], [30, 20, 10]]])
    rows = steps.by_host.collectives.filter(~((pl.col("host") == "h2") & (pl.col("name") == "all-reduce.0")))
    found = tp.hosts(job([[[10, 20, 50], [30, 20, 10]]], collectives=rows))
    assert costs(found) == {"h1": (10, 0.5), "h0": (10, 0.5), "h2": (0, 0)}


def test_steps_that_a_host_traced_in_part_are_left_out():
    steps = job([[[10, 20, 50]], [[10, 20, 90]]])
    cut = pl.when((pl.col("host") == "h2") & (pl.col("step") == 1)).then(pl.lit("partial")).otherwise(pl.lit("full"))
    found = tp.hosts(job([[[10, 20, 50]], [[10, 20, 90]]], frame=steps.by_host.frame.with_columns(traced=cut)))
    assert costs(found)["h2"] == (30, 1.0)


def test_programs_with_other_ids_on_each_host_are_matched_in_order():
    steps = job(np.arange(24).reshape(2, 4, 3) % 7)
    rows = steps.by_host.collectives.with_columns(
        name=pl.lit("all-reduce.1"), number=pl.col("name").cast(pl.String).str.tail(1).cast(pl.Int64)
    )
    shared = rows.with_columns(instance=1 + pl.col("number") % 2, program=pl.col("number") // 2)
    apart = shared.with_columns(
        program=pl.col("program") + 100 * pl.col("host").cast(pl.String).str.tail(1).cast(pl.Int64)
    )
    same, other = (tp.hosts(job(np.zeros((2, 4, 3)), collectives=one)).frame for one in (shared, apart))
    assert same["costs_ps"].sum() > 0
    assert same.equals(other)


def test_point_to_point_transfers_are_left_out():
    plain = tp.hosts(job([[[10, 20, 50], [30, 20, 10]]]))
    rows = job([[[10, 20, 50], [30, 20, 10]]]).by_host.collectives
    name = pl.col("name").cast(pl.String).replace({"all-reduce.1": "collective-permute.1"})
    moved = tp.hosts(job([[[10, 20, 50], [30, 20, 10]]], collectives=rows.with_columns(name=name)))
    assert costs(plain)["h0"] == (10, 0.5)
    assert costs(moved)["h0"] == (0, 0)


def test_hosts_of_different_roles_do_not_wait_for_each_other():
    arrivals = [[[10, 20, 500, 600]]] * 3
    roles = {"h0": "train", "h1": "train", "h2": "input", "h3": "input"}
    found = tp.hosts(job(arrivals, roles=roles))
    assert {host: cost for host, (cost, _) in costs(found).items()} == {"h3": 300, "h1": 30, "h0": 0, "h2": 0}
    assert dict(found.frame.select("host", "role").rows()) == roles


def test_lost_hosts_are_rows_with_their_reason():
    lost = pl.DataFrame({"what": ["h9"], "reason": ["h9.xplane.pb is empty"]})
    found = tp.hosts(job([[[10, 20, 50]]], lost=lost))
    assert found.frame.filter(pl.col("lost").is_not_null()).select("host", "lost", "costs_ps").row(0) == (
        "h9",
        "h9.xplane.pb is empty",
        None,
    )
    assert repr(found).endswith("; 1 lost: h9)")


def test_names_are_not_trusted_and_the_sentence_has_its_base():
    names = ["evil\x1b[31m", *(f"h{number}" for number in range(1, 8))]
    found = tp.hosts(job(np.where(np.arange(8) == 0, 125, np.full((5, 2, 8), 100)), names=names))
    assert "\x1b" not in repr(found)
    assert repr(found).startswith(
        "Hosts(8 hosts, replace evil\ufffd[31m to gain 18.5 % of step time (cause unknown, every step)"
    )
    assert len(found) == 8


def draw(rng, program, n, steps, seed):
    """A pod with four faults of different kinds, each of which costs 3 to 25 %."""
    ops = program.runs["name"].to_list()
    while True:
        kinds, hosts = rng.choice([*CAUSE, "slow op"], 4, replace=False), rng.choice(n, 4, replace=False).tolist()
        faults = [
            Fault(
                "slow chip" if kind == "slow op" else str(kind), (host,), rng.uniform(0.05, 0.35),
                every=int(rng.integers(2, 6)) if kind in ("slow input", "compile") else 1,
                device=int(rng.integers(4)), op=str(rng.choice(ops)) if kind == "slow op" else None,
            )
            for kind, host in zip(kinds, hosts, strict=True)
        ]  # fmt: skip
        made = pod(program, hosts=n, steps=steps, seed=seed, faults=faults)
        shares = [made.cost_ps(host) / made.ends().max() for host in hosts]
        if min(shares) >= 0.03 and max(shares) <= 0.25:
            return made


@pytest.mark.parametrize(
    ("n", "steps", "collectives", "seeds"),
    [
        (100, 20, 3, 6),
        pytest.param(1000, 20, 3, 20, marks=pytest.mark.slow),
        pytest.param(1000, 500, 8, 3, marks=pytest.mark.slow),
    ],
)
def test_pods_of_known_truth(n, steps, collectives, seeds):
    first, causes, devices, named = 0, [], [], 0
    for seed in range(seeds):
        program = step_program(tp.sample("keras_cnn"), ops=60, collectives=collectives, seed=seed)
        rng = np.random.default_rng(seed)
        made = draw(rng, program, n, steps, seed)
        found = tp.hosts(pod_tables.job_steps(made))
        rows = {row["host"]: row for row in found.frame.iter_rows(named=True)}
        faulty = {f"pod-{fault.hosts[0]:04d}": fault for fault in made.faults}
        first += set(found.frame["host"][:4]) == set(faulty)
        for host, fault in faulty.items():
            assert rows[host]["costs_ps"] == pytest.approx(made.cost_ps(*fault.hosts), rel=0.05)
            causes.append(rows[host]["cause"] == CAUSE[fault.kind])
            if fault.kind == "slow chip":
                devices.append(rows[host]["device"] == f"/device:TPU:{fault.device}")
        assert all(row["costs_ps"] <= 0.002 * found.span_ps for host, row in rows.items() if host not in faulty)
        middle = made.ends().max() / 2
        clocks = made.offset_ps + made.drift_ppm * 1e-6 * middle
        skews = np.array([rows[host]["skew_ps"] for host in made.hosts])
        assert np.abs(skews - clocks + np.median(clocks)).max() < US + 500_000
        rack = tuple(rng.choice(n, 8, replace=False).tolist())
        made = pod(program, hosts=n, steps=steps, seed=seed, faults=[Fault("slow chip", rack, 0.12)])
        together = tp.hosts(pod_tables.job_steps(made)).frame["together_ps"][7]
        assert together == pytest.approx(made.cost_ps(*rack), rel=0.05)
        named += tp.hosts(pod_tables.job_steps(pod(program, hosts=n, steps=steps, seed=seed))).frame["named"].any()
    assert first >= 0.95 * seeds
    assert np.mean(causes) >= 0.95
    assert np.mean(devices) >= 0.95
    assert named <= 1
