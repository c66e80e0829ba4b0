"""The verdict on a run: what took its time, what to do first, and what that would save at most."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from tpunb.analysis.advice import ACCOUNT_RULES, RULES, SAME_LINE, advise
from tpunb.analysis.goodput import Goodput, crowding, goodput, others_used, totals
from tpunb.analysis.metrics import IMPORTS
from tpunb.analysis.stragglers import slow_ranks, why
from tpunb.analysis.time_line import COMPUTING, INSIDE_STEPS, OTHERS
from tpunb.errors import wrong_type
from tpunb.frames import Phases
from tpunb.schema import ACCOUNTS, PEERS
from tpunb.text import cut, duration, percent, plain

_FEWEST_SAMPLES = 3  # in an account whose place is named
_ALSO = ["growing memory", "debugging"]  # rules that are said beside what took most
_OF_STEPS = {"eager steps": "The steps run operation by operation", "slowing steps": "The steps take longer and longer"}
_LOADED = 0.25  # share of run time that other programs may take of a healthy run
_LEAST_SHARE = 0.1  # share of run time that an account takes, or advice saves, to be named
_LEAST_EVALUATION = 0.2  # of an evaluation that the program asks for
_ONCE = ("preparation", "program startup", "checkpoint restore", "data loading", PEERS)  # also beside the training
_TRAINED = 2  # steps, after which it trains


@dataclass(frozen=True)
class Verdict:
    """What took the time of a run, and what to do first.

    Parameters
    ----------
    sentence
        Both in words, with shares of run time (wall time).
    account
        The account outside of productive steps that took most, of ``tpunb.schema.ACCOUNTS``; None if none took a tenth.
    action
        What to do first; None if no advice saves a tenth of the run time.
    saves_ps
        What this would save at most, in picoseconds; None without an action.
    healthy
        Whether nothing of the program took the time from its training.
    """

    sentence: str
    account: str | None = None
    action: str | None = None
    saves_ps: int | None = None
    healthy: bool = False

    def __str__(self) -> str:
        return self.sentence


def verdict(phases: Phases) -> Verdict | None:
    """Return the verdict on a run; None if there is no record of its wall time.

    The action is the one of `tp.advise` that saves most, and a tenth of the run time at least; of those on what took
    most, if there are any. Where steps vary most without a known cause and other programs kept the machine busy, it is
    to measure again; a run that they slowed by less than a quarter is healthy.

    Parameters
    ----------
    phases
        Phases of a run.

    Raises
    ------
    TypeError
        If `phases` is something else.
    """
    if not isinstance(phases, Phases):
        raise wrong_type("verdict", "phases", "be Phases", phases, hint="tp.phases(steps)")
    if phases.steps.wall is None or phases.steps.wall.span_ps <= 0:
        return None
    advice = advise(phases)
    run = goodput(phases)
    found = _of_time(phases, advice, run)
    also = [text.removeprefix("The run: ") for text in advice.filter(pl.col("rule").is_in(_ALSO))["sentence"]]
    if (ours_ps := run.time_ps("profiler")) >= _LEAST_SHARE * run.wall_ps:
        took = f"{duration(ours_ps)} ({percent(ours_ps / run.wall_ps)} of run time)"
        also.append(f"The profiler took {took}: --budget 0.02 lowers it, and a run over a minute has that by default.")
    return replace(found, sentence=" ".join([found.sentence, *also]))


def _of_time(phases: Phases, advice: pl.DataFrame, run: Goodput) -> Verdict:
    """Return what took most of the run time, and the advice on it, or else the first."""
    of = {rule.name: rule.account for rule in (*ACCOUNT_RULES, *RULES)}
    half_ps = {name: run.time_ps(account) / 2 for name, account in of.items() if account}
    most = pl.col("saves_ps") >= pl.col("rule").replace_strict(half_ps, default=None)
    mostly = advice.filter(pl.col("saves_ps") > 0, most)  # what saves most of an account is advice on it
    advice = advice.filter(pl.col("saves_ps") >= _LEAST_SHARE * run.wall_ps)
    imports = run.places.filter(pl.col("account") == "preparation", pl.col("place").str.contains(IMPORTS))
    advised = {of.get(rule) for rule in [*advice["rule"], *mostly["rule"]]}
    account, cause, first = _headline(run, advised, imports=imports["share"].sum() > 0.5)
    time_ps, others = run.time_ps(account or "other"), others_used(run)
    if (slow := _slow_rank(phases, run, 0 if account in (None, PEERS) else time_ps)) is not None:
        return slow
    computing_ps = sum(map(run.time_ps, COMPUTING))  # with what steps compile
    eager, most = pl.col("rule") == "eager steps", pl.col("saves_ps") >= computing_ps / 2  # not in operations
    of_steps = advice.head(1).filter(pl.col("rule").is_in([*_OF_STEPS]), ~eager | most)
    if of_steps.height:
        of_ps = of_steps["saves_ps"].item()
        if of_steps["rule"].item() == "eager steps":
            of_ps = max(computing_ps, of_ps)
        first = f"{_OF_STEPS[of_steps['rule'].item()]}, {duration(of_ps)} of {duration(run.wall_ps)}"
    elif account == "step time deviation" and others is not None and cause in (None, f"mostly {OTHERS}"):
        first = first.removesuffix(f": {cause}")
        again = "measure again on an idle machine"
        if time_ps < _LOADED * run.wall_ps:
            return Verdict(f"{_healthy(run)}. {first}, as the machine was busy: {others}.", account, healthy=True)
        sentence = f"{first}. The machine was busy, {others}: {again}, saves up to {duration(time_ps)}."
        return Verdict(sentence, account, again, time_ps)
    of_account = pl.col("rule").is_in([name for name in of if of[name] == account])
    on_it = of_steps if of_steps.height else advice.filter(of_account)
    on_it = on_it if on_it.height else mostly.filter(of_account)
    if advice.is_empty() and on_it.is_empty():
        return Verdict(f"{first}.", account, healthy=account is None)
    best = (on_it if on_it.height else advice).row(0, named=True)
    if on_it.height and cause is None and best["rule"] == "retracing":
        first += f": again {best['sentence'].partition('mostly ')[2].removesuffix('.')}"
    action, saves = best["action"].partition(";")[0], f"saves up to {duration(best['saves_ps'])}"
    do = f"{action[0].upper()}{action[1:]}: {saves}"
    if not on_it.height:  # it is about something else
        other = ACCOUNTS.get(of[best["rule"]] or "")
        about = f"In {phases.names.get(best['phase'], 'the run')}" if other is None else other.subject
        do = f"{about}: {action}, {saves}"
    healthy = account is None and of_steps.is_empty()
    return Verdict(f"{first}. {do}.", account, action, best["saves_ps"], healthy)


def _slow_rank(phases: Phases, run: Goodput, least_ps: int) -> Verdict | None:
    """Return the rank that costs a job most, its line and cause, if that is a tenth of step time, and a least time."""
    ranks = slow_ranks(phases.steps)
    if ranks is None or (named := ranks.frame.filter("named").drop_nulls("place")).is_empty():
        return None
    row, cost_ps = named.row(0, named=True), int(named["costs_ps"][0])
    if cost_ps < max(least_ps, _LEAST_SHARE * ranks.span_ps):
        return None
    took = f"{duration(cost_ps)} of {duration(run.wall_ps)} ({percent(cost_ps / run.wall_ps)} of run time)"
    first = f"{cut(plain(row['host']))} delays the other ranks by {took}: {why(row)}"
    more = f", and {named.height - 1} more do" * (named.height > 1)
    do = f"{SAME_LINE[0].upper()}{SAME_LINE[1:]}: saves up to {duration(cost_ps)}"
    return Verdict(f"{first}{more}. {do}.", PEERS, SAME_LINE, cost_ps)


def _healthy(run: Goodput) -> str:
    productive = f"{duration(run.time_ps('productive'))} of {duration(run.wall_ps)} ({percent(run.ratio)} of run time)"
    return f"Healthy: {productive} is productive training"


def _headline(run: Goodput, advised: set[str | None], *, imports: bool) -> tuple[str | None, str | None, str]:
    """Return the account that took most, if a tenth, its cause, and both in words; what imports take comes last."""
    ours = pl.col("account").is_in(["productive", "profiler"])  # nothing that the program wastes
    of_evaluation = _LEAST_SHARE if "evaluation" in advised else _LEAST_EVALUATION
    of_input = _LEAST_SHARE / max(1 - crowding(run.load) * ("data loading" not in advised), _LEAST_SHARE)
    least = (
        pl.col("account")
        .cast(pl.String)
        .replace_strict({"evaluation": of_evaluation, "data loading": of_input}, default=_LEAST_SHARE)
    )
    most = totals(run).filter(~ours, pl.col("share") >= least)
    once = [name for name in most["account"] if name not in advised and _is_once(run, name)]
    most = most.filter(~pl.col("account").is_in(once))
    if imports and most.height > 1:  # they are needed, and paid once
        most = most.filter(pl.col("account") != "preparation")
    most = most.head(1)
    if most.is_empty():
        why = dict.fromkeys(once, "once per run")
        if run.time_ps("data loading") >= _LEAST_SHARE * run.wall_ps and (others := others_used(run)):
            why["data loading"] = f"as the machine was busy: {others}"
        rest = [f". {ACCOUNTS[name].subject} took {duration(run.time_ps(name))}, {text}" for name, text in why.items()]
        return None, None, _healthy(run) + "".join(rest)
    account, time_ps, share = most.select(pl.col("account").cast(pl.String), "time_ps", "share").row(0)
    cause = _cause(run, account)
    took = f"{duration(time_ps)} of {duration(run.wall_ps)} ({percent(share)} of run time)"
    return account, cause, f"{ACCOUNTS[account].subject} took {took}" + (f": {cause}" if cause else "")


def _is_once(run: Goodput, account: str) -> bool:
    """Return whether an account is that of what the run does before and after it trains, for less time than that."""
    if account not in _ONCE or run.time_ps(account) > run.time_ps("productive"):
        return False
    training = run.segments.filter(account="productive").drop_nulls("step").group_by("host", "step")
    starts = training.agg(pl.col("start_ps").min()).group_by("host")
    bounds = starts.agg(first=pl.col("start_ps").sort().slice(_TRAINED).first(), last=pl.col("start_ps").max())
    between = run.segments.filter(account=account).join(bounds, on="host")
    between = between.filter(pl.col("start_ps").is_between("first", "last"))
    return int(between["dur_ps"].sum()) / run.hosts < _LEAST_SHARE * run.wall_ps


def _cause(run: Goodput, account: str) -> str | None:
    """Return what took most of an account, and the place where the program was in most of it."""
    half_ps = run.time_ps(account) / 2
    work = pl.col("detail").str.replace(" again for .*", " again")  # for one shape after the other
    works = totals(run, "detail").filter(pl.col("account") == account, pl.col("detail").ne_missing(INSIDE_STEPS))
    of = works.sort("time_ps").group_by(work.alias("work")).agg(pl.col("time_ps").sum(), pl.col("detail").last())
    at = run.stalls.filter(pl.col("kind") == account, pl.col("time_ps") > half_ps)
    details = [*of.filter(pl.col("time_ps") > half_ps)["detail"].drop_nulls()]
    places = [*_sampled_place(run, account), *at["place"].drop_nulls()]
    names = [*details[:1], *[place for place in places[:1] if place not in details]]
    return f"mostly {', '.join(cut(plain(name), 80) for name in names)}" if names else None


def _sampled_place(run: Goodput, account: str) -> list[str]:
    """Return the place of most samples in an account: a line, or the most frequent of a function's lines."""
    # none while devices compute, nor in steps slower than usual: their samples show where all steps are
    function = pl.col("place").str.extract(r"^(.+:\d+ in [^ ]+)", 1).str.replace(r":\d+", "")
    places = run.places.filter(account=account).drop_nulls("place")
    places = places.with_columns(share=pl.col("samples") / pl.col("samples").sum())
    places = places.with_columns(of_function=pl.col("share").sum().over(function))
    if places["samples"].sum() < _FEWEST_SAMPLES or account == "step time deviation":
        return []
    most = places.filter(pl.max_horizontal("share", "of_function") > 0.5)
    return most["place"].head(1).to_list()
