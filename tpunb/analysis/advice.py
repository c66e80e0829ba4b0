"""What wastes the time of a run, ranked once by how much; advice is the list of what to do about it."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.analysis.calls import call_metrics
from tpunb.analysis.causes import CAUSES, LISTED_SHARE, NAMED_SHARE, SAVES, Cause
from tpunb.analysis.goodput import Goodput, goodput, totals
from tpunb.analysis.phase_metrics import phase_metrics
from tpunb.analysis.roofline import Roofline, roofline
from tpunb.analysis.run import Run, loaded
from tpunb.analysis.run import phases as phases_of
from tpunb.analysis.run_metrics import account_metrics, crowding_of_waits, importing_ps
from tpunb.analysis.scale_metrics import scale_metrics
from tpunb.analysis.stragglers import Hosts, slow_ranks, why
from tpunb.analysis.time_line import FEWEST_SAMPLES, FEWEST_TRACED, INSIDE_STEPS, OTHERS
from tpunb.analysis.traits import traits
from tpunb.costs.torch_cost import KINDS
from tpunb.errors import wrong_type
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import distinct_ops
from tpunb.schema import ACCOUNTS, PEERS
from tpunb.text import cut, duration, percent, plain, short, short_time

_LEAST_PART = 1 / 3  # of a waste that its remedy saves, if there is another
_COUNTED = 0.9  # share of busy time with known FLOPs below which utilisation is a lower bound
PLACES = 2
"""Places that are named, and are together most of an account."""
_FUNCTION = pl.col("place").str.extract(r"^(.+:\d+ in [^ ]+)", 1).str.replace(r":\d+", "")
FUNCTION_OF = _FUNCTION.fill_null(pl.col("place"))
"""File and function of a place."""
_OF_CAUSE = ("id", "rule", "wasted_ps", "saves_ps", "action", "trial")
_ONCE = ("preparation", "program startup", "checkpoint restore", "data loading", PEERS)  # also beside the training
_LATE = ("long startup", "preparation", "crowded steps")  # causes of what is paid once, or no fault of the program
_PARTLY = {remedy.action for each in CAUSES for remedy in each.remedies if remedy.is_part}  # tried: the rest may help
_LATE_ACCOUNTS = ("preparation", "program startup")
_NO_WASTE = ("productive", "profiler", "tuning", "resuming")
_SCHEMA = {
    **schema.ADVICE,
    "wasted_ps": pl.Int64(),
    "trial": pl.String(),
    "account": pl.String(),
    "late": pl.Boolean(),
}


def advise(
    run: Run, *, failure_every_h: float | None = None, roof: Roofline | None = None, hosts: Hosts | None = None
) -> pl.DataFrame:
    """Return advice on each phase and on the run, most time saved first: ``tpunb.schema.ADVICE``.

    One row per cause of :data:`tpunb.analysis.CAUSES` that applies, and per phase or call that it applies to. The time
    saved is an upper bound: all of the waste, or what the remedy can save of it. Rows of phases may concern the same
    time, so they do not add up; what the clock knows of the whole run is not listed again for its phases. Metrics of
    phases are those of the steps traced in full, extrapolated to all steps of the phase; causes with unknown metrics do
    not apply. Phases without metrics come last, with nulls. Outliers count as a phase. Wastes under 2 % of all step
    time are left out. Of a capture without steps, advice on calls is of the time of its devices.

    Parameters
    ----------
    run
        Path of a run, its Profile, Steps or Phases; steps are grouped by the default method.
    failure_every_h
        Mean time between failures of the job in hours: the checkpoint interval is compared with Young's.
    roof
        ``tp.roofline(phases)``: for savings bounded by its headroom, the measured time of weight updates, and the batch
        per device.
    hosts
        ``tp.hosts(steps)``, whose shares are of the step time of the job. By default that of ranks whose clocks
        recorded their waits.

    Raises
    ------
    TypeError
        If `run`, `roof` or `hosts` is something else.
    ValueError
        If `failure_every_h` is not a number above 0.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> print(advise(phases(toy_steps("aaabbb")))["sentence"][0])
    train could save up to 3 ms of 9 ms step time. The device is idle for 50 % of the phase's step time \
without a known cause.
    """
    phases = phases_of(loaded(run, "advise"))
    valid = isinstance(failure_every_h, Real) and not isinstance(failure_every_h, bool)
    if failure_every_h is not None and not (valid and 0 < failure_every_h < math.inf):
        raise ValueError(
            f"The failure_every_h parameter of advise must be a number above 0. Got {failure_every_h!r} instead."
        )
    if roof is not None and not (isinstance(roof, Roofline) and roof.by == "phase"):
        raise wrong_type("advise", "roof", "be a Roofline by phase", roof, hint="tp.roofline(phases)")
    if hosts is not None and not isinstance(hosts, Hosts):
        raise wrong_type("advise", "hosts", "be Hosts", hosts, hint="tp.hosts(steps)")
    asked = failure_every_h is not None or roof is not None or hosts is not None
    found = _candidates(phases, failure_every_h, roof, hosts) if asked else candidates(phases)
    rows = found.drop_nulls("action").sort("saves_ps", descending=True, nulls_last=True, maintain_order=True)
    return schema.check(rows.select(*schema.ADVICE), schema.ADVICE, "advice")


@memoised
def candidates(phases: Phases) -> pl.DataFrame:
    """Return what may waste the time of a run: advice with its account, ranked, and accounts without a known cause.

    What is paid once per run comes last.
    """
    return _candidates(phases, None, None, None)


def _candidates(
    phases: Phases, failure_every_h: float | None, roof: Roofline | None, hosts: Hosts | None
) -> pl.DataFrame:
    run = None if phases.steps.wall is None else goodput(phases)
    of_phases = _of_phases(phases, roof, run)
    if (hosts := slow_ranks(phases.steps) if hosts is None else hosts) is not None:
        of_phases = pl.concat([of_phases, _of_hosts(hosts, run)])
    if run is None or (metrics := account_metrics(phases, failure_every_h, run)).is_empty():
        return _ranked(of_phases, phases.steps)
    metrics = metrics.with_columns(phase=pl.lit(None, pl.Int64), typical_ps="wall_ps")
    of_run = _applied("run", metrics, float(run.wall_ps), run)
    if "slow rank" in of_phases["rule"]:  # which makes them uneven
        of_run = of_run.filter(pl.col("rule") != "uneven ranks")
    excused_waits = max(crowding_of_waits(run), metrics["awaiting_ps"].item() / max(metrics["loading_ps"].item(), 1))
    # the waits of evaluations have the cause of the others, and operations between steps that of those in them
    beside = {"evaluation": ("validating_ps", "slow input"), "program code": ("called_between_ps", "eager steps")}
    explained_ps = {key: metrics[of].item() for key, (of, rule) in beside.items() if rule in of_run["rule"]}
    general = _of_accounts(run, of_run, of_phases, excused_waits, explained_ps)
    # what the clock knows of an account is the same waste in its phases
    accounts = [*of_run.drop_nulls("account")["account"]]
    of_phases = of_phases.filter(pl.col("phase").is_null() | ~pl.col("account").is_in(accounts).fill_null(value=False))
    return _ranked(pl.concat([of_phases, of_run, general]), phases.steps)


def tried_on(steps: Steps) -> list[dict[str, Any]]:
    """Return the remedies that were tried on a run's program: "cause", "action", "change", "decision", "outcome"."""
    with suppress(ValueError, TypeError, AttributeError):  # a file that anybody may have written
        found = json.loads(steps.metadata.get("tried", "[]"))
        names = ("cause", "action", "change", "decision", "outcome")
        return [{name: str(each.get(name, "")) for name in names} for each in found]
    return []


def _ranked(rows: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """Return rows with what wastes most first, without remedies that saved nothing when they were tried."""
    refuted = [each for each in tried_on(steps) if each["decision"] == "not faster" and each["action"] not in _PARTLY]
    is_refuted = pl.any_horizontal(
        pl.lit(value=False),
        *((pl.col("id") == each["cause"]) & (pl.col("action") == each["action"]) for each in refuted),
    ).fill_null(value=False)
    rows = rows.with_columns(pl.when(~is_refuted).then(name).alias(name) for name in ("action", "trial"))
    return rows.sort("late", "wasted_ps", descending=[False, True], nulls_last=True, maintain_order=True)


def _of_hosts(hosts: Hosts, run: Goodput | None) -> pl.DataFrame:
    """Return the host that delays a job most."""
    named = hosts.frame.filter("named").head(1)
    metrics = named.select(
        *("host", "costs_ps", "cause"),
        why=pl.Series([why(row) for row in named.iter_rows(named=True)], dtype=pl.String),
        has_place=pl.col("place").is_not_null(),
        costs=pl.col("costs_ps") / max(hosts.span_ps, 1),
        typical_ps=pl.lit(float(hosts.span_ps)),
        phase=pl.lit(None, pl.Int64),
    )
    return _applied("host", metrics, float(hosts.span_ps), run)


def _idle_in_steps(run: Goodput) -> pl.DataFrame:
    """Return (phase, account_ps): time in which the devices idle in steps, without code of the program."""
    inside = run.frame.filter(account="device idle").drop_nulls("phase")
    return inside.group_by("phase").agg(account_ps=pl.col("time_ps").sum())


def advise_phases(phases: Phases) -> pl.DataFrame:
    """Return the advice on phases alone, which costs no account of the run."""
    found = _ranked(_of_phases(phases, None, None), phases.steps).select(*schema.ADVICE)
    return found.sort("saves_ps", descending=True, nulls_last=True, maintain_order=True)


def _of_phases(phases: Phases, roof: Roofline | None, run: Goodput | None) -> pl.DataFrame:
    metrics = scale_metrics(phase_metrics(phases), phases, roof)
    metrics = metrics.with_columns(pl.lit(text, pl.String).alias(name) for name, text in traits(phases.steps).items())
    if run is not None:  # no more than the account has
        most = (pl.col("account_ps") / pl.col("typical_ps")).fill_null(0.0)
        metrics = metrics.join(_idle_in_steps(run), on="phase", how="left", maintain_order="left")
        has_account = pl.col("idle").is_not_null() & (pl.col("full") >= FEWEST_TRACED)
        least = pl.when(has_account).then(pl.min_horizontal("idle", most)).otherwise("idle")
        metrics = metrics.with_columns(idle=least).drop("account_ps")
    run_ps = float(phases.aggregates["dur_ps"].sum())
    rows = [_applied("phase", metrics, run_ps), _applied("devices", metrics, run_ps)]
    if roof is not None:
        headroom = roof.frame.select(name="what", bound="bound", headroom=pl.col("headroom_ps") / pl.col("self_ps"))
        rows.append(_applied("roofline", metrics.join(headroom, on="name", how="left", maintain_order="left"), run_ps))
    of_pytorch = traits(phases.steps)["framework"] in ("PyTorch", None)
    of_pytorch &= bool(distinct_ops(phases.steps)["category"].cast(pl.String).is_in([*KINDS]).any())
    if roof is None and phases.steps.read_layers is not None and of_pytorch:
        roof = roofline(phases)
    if roof is None:
        return pl.concat(rows)
    metrics = metrics.with_columns(base=pl.lit("step time"))
    if (phases.steps.frame["rule"] == "whole").all():  # what surrounds the work on devices is the profiler's
        time = pl.col("typical_ps") * pl.col("busy")
        metrics = metrics.with_columns(base=pl.lit("device time"), typical_ps=time, busy=pl.lit(1.0))
        run_ps = float(metrics["typical_ps"].sum())
    return pl.concat([*rows, _applied("call", call_metrics(metrics, roof), run_ps)])


def _applied(level: str, sums: pl.DataFrame, run_ps: float, run: Goodput | None = None) -> pl.DataFrame:
    """Return a row for each cause of a level and each row of its sums that it applies to."""
    causes, rows = [cause for cause in CAUSES if cause.of == level], []
    applies = sums.select(
        (cause.when & pl.all_horizontal(pl.col(cause.needs).is_not_null())).alias(cause.id) for cause in causes
    )
    for cause in causes:
        if not applies[cause.id].any():
            continue
        applied = sums.with_columns(wasted=cause.wastes.fill_nan(0.0).clip(0, 1)).filter(applies[cause.id])
        applied = applied.with_columns(wasted_ps=pl.col("wasted") * pl.col("typical_ps"))
        applied = applied.filter((pl.col("wasted_ps") >= LISTED_SHARE * max(run_ps, 1)).fill_null(True))
        applied = _with_remedies(cause, applied)
        for row in applied.iter_rows(named=True):
            account = cause.account or row.get("account")
            remedy = None if row["remedy"] is None else cause.remedies[row["remedy"]]
            rows.append(
                {
                    "phase": row["phase"],
                    "id": cause.id,
                    "rule": cause.name,
                    "wasted_ps": row["wasted_ps"],
                    "saves_ps": row["saves_ps"],
                    "saves": None if row["saves_ps"] is None else row["saves_ps"] / max(run_ps, 1),
                    **_in_words(cause, row, run_ps, run),
                    "action": None if remedy is None else remedy.action,
                    "trial": None if remedy is None else remedy.trial,
                    "account": account,
                    "late": cause.name in _LATE or (cause.of == "account" and account in _LATE_ACCOUNTS),
                }
            )
    frame = pl.DataFrame(rows, schema=_SCHEMA)
    return frame.sort("wasted_ps", "phase", descending=[True, False], nulls_last=True, maintain_order=True)


def _with_remedies(cause: Cause, applied: pl.DataFrame) -> pl.DataFrame:
    """Add the number of the remedy of each row, the first whose evidence is there and that helps, and what it saves."""
    chosen, saved = pl.lit(None, pl.Int64), pl.col("wasted")
    for number, remedy in reversed([*enumerate(cause.remedies)]):
        fits = pl.lit(value=True) if remedy.when is None else remedy.when
        fits &= (remedy.saves > _LEAST_PART * pl.col("wasted")).fill_null(value=True)
        chosen = pl.when(fits).then(pl.lit(number, pl.Int64)).otherwise(chosen)
        saved = pl.when(fits).then(remedy.saves).otherwise(saved)
    saves_ps = pl.min_horizontal(saved.fill_nan(0.0), "wasted") * pl.col("typical_ps")
    return applied.with_columns(pl.col("wasted_ps").round().cast(pl.Int64), remedy=chosen).with_columns(
        saves_ps=pl.when(pl.col("wasted_ps").is_not_null()).then(saves_ps.round().cast(pl.Int64))
    )


def _of_accounts(
    run: Goodput, of_run: pl.DataFrame, of_phases: pl.DataFrame, excused_waits: float, beside_ps: dict[str, int]
) -> pl.DataFrame:
    """Return each account whose time has no known cause, as far as it has none, with the remedy of phases in it."""
    explained = dict(
        of_run.drop_nulls(["account", "wasted_ps"]).group_by("account").agg(pl.col("wasted_ps").sum()).rows()
    )
    crowded_ps = run.frame.filter(detail=OTHERS)["time_ps"].sum() / run.hosts
    rows = []
    for account, time_ps in totals(run).select(pl.col("account").cast(pl.String), "time_ps").iter_rows():
        if account in _NO_WASTE or is_once(run, account):
            continue
        explained_ps = explained.get(account, 0) + beside_ps.get(account, 0)
        explained_ps = max(explained_ps, crowded_ps * (account == "step time deviation"))
        if explained_ps >= min(NAMED_SHARE * run.wall_ps, time_ps / 2):
            continue
        rest_ps = time_ps - explained_ps
        row = {"account": account, "subject": ACCOUNTS[account].subject}
        rows.append({**row, "typical_ps": float(run.wall_ps), "rest": rest_ps / max(run.wall_ps, 1), "phase": None})
    columns = {"account": pl.String(), "subject": pl.String(), "typical_ps": pl.Float64()}
    sums = pl.DataFrame(rows, schema={**columns, "rest": pl.Float64(), "phase": pl.Int64()}, orient="row")
    excused = pl.when(account="data loading").then(excused_waits).otherwise(0.0)
    sums = sums.with_columns(excused=excused)
    general = _applied("account", sums, float(run.wall_ps), run)
    inside = of_phases.filter(pl.col("phase").is_not_null()).drop_nulls("account").unique("account", keep="first")
    inside = inside.select("account", *(pl.col(name).alias(f"{name}_in") for name in _OF_CAUSE))
    joined = general.join(inside, on="account", how="left", maintain_order="left")
    is_its = pl.col("wasted_ps_in") >= pl.col("wasted_ps") / 2
    return joined.with_columns(
        pl.when(is_its).then(f"{name}_in").otherwise(name).alias(name) for name in _OF_CAUSE
    ).select(*_SCHEMA)


def took(run: Goodput, time_ps: float) -> str:
    """Return a time beside that of the run, in words."""
    return f"{duration(time_ps)} of {duration(run.wall_ps)} ({percent(time_ps / max(run.wall_ps, 1))} of run time)"


def _in_words(cause: Cause, row: dict[str, Any], run_ps: float, run: Goodput | None) -> dict[str, str | None]:
    """Return the sentence, of what it is, the observation alone, and the place in it."""
    texts = {name: _text(name, value) for name, value in row.items()}
    if "mxu" in texts:  # a lower bound where the FLOPs of some operations are unknown
        counted = row["flops_counted"]
        texts["mxu"] = f"{'at least' if isinstance(counted, float) and counted < _COUNTED else 'only'} {texts['mxu']}"
    place, line, wasted_ps, saves_ps = "", "", row["wasted_ps"] or 0, row["saves_ps"]
    of: str | None = None
    if cause.of in ("run", "host", "account"):
        whole = f"{duration(wasted_ps)} of {duration(run_ps)} step time"
        texts["took"] = whole if run is None else took(run, wasted_ps)
        account = cause.account or "productive"
        if run is not None and cause.places is not None:
            run = replace(run, places=run.places.filter(cause.places))
        if run is not None and cause.of != "host":
            place = mostly(run, row["account"] if cause.of == "account" else account)
            line = next(iter(_sampled_places(run, account)), "")
            line = cut(plain(line), 80) if line and not _is_around(run, line) else ""
            texts |= {"mostly": f": mostly {place}" * bool(place), "also": f", mostly {place}" * bool(place)}
            texts["at"] = f", at {line}" * bool(line)
        text = cause.sentence if row.get("save_ps") else cause.sentence.replace(SAVES, "{mostly}")
        place = line if "{at}" in text else place if "{mostly}" in text or "{also}" in text else ""
        sentence = observed = f"{text.format(**texts)}."
    else:
        kinds = f" ({texts['kinds']})" if row["phase"] == -1 and row["kinds"] else ""
        of, observed, saved = f"{texts['name']}{kinds}", f"{cause.sentence.format(**texts)}.", ":"
        if saves_ps is not None:
            whole = f"{duration(run_ps)} {row.get('base') or 'step time'}"
            saved = f" could save up to {duration(saves_ps)} of {whole}."
        sentence = f"{of}{saved} {observed}"
    return {"sentence": sentence, "of": of, "observed": observed, "place": place or None}


def _text(name: str, value: object) -> str:
    """Return a metric as text.

    >>> _text("idle", 0.4137), _text("mxu", 4e-6), _text("step_ps", 18_340_000_000)
    ('41.4 %', 'under 0.1 %', '18.3 ms')
    """
    if isinstance(value, str):  # the program's: not to be trusted
        return cut(plain(value), 80 if name in ("reason", "why") else 48)
    if name.endswith("_ps") and isinstance(value, int | float):
        return short_time(value)
    if name in ("growth", "memory") and isinstance(value, float):
        return short(value / 2**30)
    if name in ("intensity", "ridge", "device_batch", "times", "each") and isinstance(value, float):
        return short(value)
    if isinstance(value, float):
        return percent(value, None)
    return str(value)


def is_once(run: Goodput, account: str) -> bool:
    """Return whether an account is that of what the run does before and after it trains, for less time than that."""
    imports_ps = importing_ps(run) if account == "preparation" else 0  # which a longer run pays once, too
    if account not in _ONCE or run.time_ps(account) - imports_ps > run.time_ps("productive"):
        return False
    if run.ideal_step_ps is None:  # it is not known when the first step was
        return False
    training = run.segments.filter(account="productive").drop_nulls("step").group_by("host", "step")
    starts = training.agg(pl.col("start_ps").min()).group_by("host")
    bounds = starts.agg(first=pl.col("start_ps").sort().slice(1).first(), last=pl.col("start_ps").max())
    between = run.segments.filter(account=account).join(bounds, on="host")
    between = between.filter(pl.col("start_ps").is_between("first", "last"))
    return int(between["dur_ps"].sum()) / run.hosts < NAMED_SHARE * run.wall_ps


def mostly(run: Goodput, account: str) -> str:
    """Return what took most of an account, and the place where the program was in most of it; "" if not known."""
    return ", ".join(cut(plain(name), 80) for name in _cause_of(run, account))


def _cause_of(run: Goodput, account: str) -> list[str]:
    half_ps = run.time_ps(account) / 2
    work = pl.col("detail").str.replace(" again for .*", " again")  # for one shape after the other
    works = totals(run, "detail").filter(pl.col("account") == account, pl.col("detail").ne_missing(INSIDE_STEPS))
    of = works.sort("time_ps").group_by(work.alias("work")).agg(pl.col("time_ps").sum(), pl.col("detail").last())
    at = run.stalls.filter(pl.col("kind") == account, pl.col("time_ps") > half_ps)
    details = [
        name for name in of.filter(pl.col("time_ps") > half_ps)["detail"].drop_nulls() if not _is_around(run, name)
    ]
    sampled = [place for place in _sampled_places(run, account, PLACES) if not _is_around(run, place)]
    stalled = [place for place in at["place"].drop_nulls() if not _is_around(run, place)]
    return [*details[:1], *[place for place in sampled or stalled[:1] if place not in details]]


def _is_around(run: Goodput, place: str) -> bool:
    return place.partition(" ← ")[0] in run.around


def _sampled_places(run: Goodput, account: str, most: int = 1) -> list[str]:
    """Return the places of most samples in an account, the most frequent line of each of `most` functions at most."""
    # none in steps slower than usual: their samples show where all steps are
    places = run.places.filter(account=account).drop_nulls("place")
    places = places.with_columns(share=pl.col("samples") / pl.col("samples").sum())
    by_function = places.group_by(FUNCTION_OF.alias("of"), maintain_order=True)
    functions = by_function.agg(pl.col("share").sum(), pl.col("place").first()).sort("share", descending=True)
    found = functions.head(1 + int((functions["share"].cum_sum() <= 0.5).sum()))
    is_named = places["samples"].sum() >= FEWEST_SAMPLES and account != "step time deviation"
    return [*found["place"]] if is_named and found.height <= most else []
