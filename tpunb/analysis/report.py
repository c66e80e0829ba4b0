"""One report on a run, for people, for CI and for programs that read text: every figure with its base and evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from tpunb.analysis.advice import advise, tried_on
from tpunb.analysis.goodput import Goodput, goodput, others_used, totals, works
from tpunb.analysis.kinds import MOST_KINDS, kinds_of
from tpunb.analysis.rates import Rates, phase_rates, rate_figures, rate_lines, rate_metrics, rates_of, run_cost
from tpunb.analysis.run import OfRun, Run, loaded, phases
from tpunb.analysis.time_line import INSIDE_STEPS
from tpunb.analysis.verdict import verdict
from tpunb.errors import NoSteps, TpunbError
from tpunb.frames import Phases, Profile
from tpunb.io.run_folder import is_written
from tpunb.schema import ACCOUNTS, MEMORY
from tpunb.step_stats.step_fold import EVALUATION
from tpunb.text import cut, duration, format_error, markdown, percent, plain, plural, short_time

FORMAT = 1
"""Version of the JSON; its schema is ``docs/report.schema.json``."""

_ACCOUNTS, _CAUSES, _PHASES, _ACTIONS, _OPS = 9, 2, 5, 4, 3  # most that are listed
_LEAST_SHARE = 0.01  # of run time, of an account or a saving
_TEXT = 110  # characters of a text of the program
_BYTES = 4000  # of the JSON; what is least in the longest list is left out beyond that
_LISTS = ("phases", "kinds", "accounts", "actions", "operations", "unknown")
_ENDS = ("low", "high")
_CAPTURE = "capture the run: tpunb run, tp.capture or %%tpupoint"


@dataclass(frozen=True, eq=False, repr=False)
class Report(OfRun):
    """What took the time of a run, what to do first, and how sure that is.

    Parameters
    ----------
    content
        What `to_json` returns, as Python values: ``docs/report.md`` describes each.
    frames
        Frames behind the figures, by the id that a figure has as its evidence.
    rates
        Rates of the run and its phases, as ``tp.analysis.rates`` returns them; None without steps.
    """

    content: Mapping[str, Any]
    frames: Mapping[str, pl.DataFrame]
    rates: Rates | None = None

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"Report({self.content['run']['name']}: {self.content['verdict']['sentence']})"

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def evidence(self, id: str) -> pl.DataFrame:  # noqa: A002  as in the JSON
        """Return the frame behind figures of this evidence.

        Raises
        ------
        ValueError
            If no frame has this id.
        """
        if id not in self.frames:
            raise ValueError(
                f"The id parameter of evidence must be one of {', '.join(self.frames)}. Got {id!r} instead."
            )
        return self.frames[id]

    @property
    def stands(self) -> bool:
        """Whether the training stands still, or did until it was killed."""
        return "standing" in self.content["run"]

    @property
    def productive(self) -> float | None:
        """Productive training as a share of run time, 0 to 1; None without a record of that."""
        share: float | None = self.content["productive"]["share"]
        return share

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the report as JSON of the schema in ``docs/report.schema.json``."""
        if indent is None:
            return _json(self.content)
        return json.dumps(self.content, ensure_ascii=False, allow_nan=False, indent=indent)

    def to_metrics(self) -> dict[str, float]:
        """Return the figures that are known by the names of trackers, those of ml-goodput where it has one."""
        return rate_metrics(self.content)

    def cost(self, per_hour: float) -> dict[str, float | None]:
        """Return what the run costs: ``{"run": 12.5, "million tokens": 0.08}``, None if that is unknown.

        Parameters
        ----------
        per_hour
            Price of an hour of all that the run uses, in any currency.

        Raises
        ------
        ValueError
            If the price is not above 0.
        """
        run = self.content["run time"]
        seconds = None if run is None else run["value"]
        found = (None, None) if seconds is None or self.rates is None else run_cost(self.rates, seconds, per_hour)
        return dict(zip(("run", "million tokens"), found, strict=True))

    def is_below(self, goodput: float) -> tuple[bool | None, str]:
        """Return whether goodput, the share of productive training, is below a share, and why in one line.

        None if the run has no record of it, or its interval has the share within it.
        """
        figure, limit = self.content["productive"], percent(goodput, None)
        if figure["share"] is None:
            return None, "goodput is unknown: the run has no record of it"
        shares = [figure["share"] / max(figure["value"], 1e-30) * figure.get(end, figure["value"]) for end in _ENDS]
        low, high = shares if figure["value"] else (0.0, 0.0)
        interval = f" [{percent(low, None)}, {percent(high, None)}]" if low < high else ""
        below = True if high < goodput else False if low >= goodput else None
        verb = {True: "is below", False: "is not below", None: "may be below"}[below]
        return below, f"goodput {percent(figure['share'], None)}{interval} of run time {verb} {limit}"

    def to_text(self, *, bold: str = "{}") -> str:
        """Return the report as lines for a terminal, headings in the format `bold`."""
        return "\n".join(_lines(self.content, str, bold=bold, item="  {}"))

    def to_markdown(self) -> str:
        """Return the report as Markdown, such as a comment on a change."""
        return "\n".join(_lines(self.content, markdown, bold="**{}**", item="- {}"))


def report(run: Run, *, tokens_per_step: int | None = None) -> Report:
    """Report on a run: verdict, accounts, phases, bottlenecks, what to do first, and what is not known.

    Parameters
    ----------
    run
        Path of a run, its Profile, Steps or Phases; steps are grouped by the default method.
    tokens_per_step
        Tokens of a training step, of all hosts, in place of those of its batches.

    Raises
    ------
    TypeError
        If `run` is something else.

    >>> from tpunb.testing import toy_steps
    >>> report(toy_steps("aaabbb")).content["phases"][0]["step"]
    {'value': 0.002, 'unit': 's', 'evidence': 'phases'}
    """
    found = loaded(run, "report")
    try:
        grouped = phases(found)
    except NoSteps as error:
        if not isinstance(found, Profile):
            raise
        return _without_steps(found, error).about(found)
    return _Writer(grouped, found if isinstance(found, Profile) else None, tokens_per_step).report.about(found)


class _Writer:
    """The parts of a report on phases."""

    def __init__(self, grouped: Phases, profile: Profile | None, tokens_per_step: int | None = None) -> None:
        self.source = grouped.steps.source if profile is None else profile.source
        self.profile = profile
        self.phases, wall = grouped, grouped.steps.wall
        self.rates = rates_of(grouped, profile, tokens_per_step=tokens_per_step)
        self.goodput: Goodput | None = None if wall is None or wall.span_ps <= 0 else goodput(grouped)
        self.base = "step time" if self.goodput is None else "run time"
        step_ps = round(int(grouped.frame["dur_ps"].sum()) / self._hosts)
        self.whole_ps = step_ps if self.goodput is None else self.goodput.wall_ps

    @property
    def report(self) -> Report:
        frames = {"phases": self.phases.frame, "actions": self._advice, "operations": self._ops}
        frames |= {"rates": self.rates.frame, "kinds": kinds_of(self.phases)}
        if self.goodput is not None:
            frames |= {"accounts": self.goodput.frame, "stalls": self.goodput.stalls, "places": self.goodput.places}
            frames |= {"load": self.goodput.load}
        content = {
            "format": FORMAT,
            "run": self._run,
            "verdict": self._verdict,
            "run time": None if self.goodput is None else _time(self.whole_ps, "accounts"),
            "productive": self._productive,
            "accounts": [*self._accounts],
            "rates": rate_figures(self.rates),
            "phases": [*self._phases],
            **({"kinds": kinds} if (kinds := [*self._kinds]) else {}),
            "operations": [*self._operations],
            "memory": {"host": self._host_memory, "device": self._device_memory},
            "actions": [*self._actions],
            **({"refuted": refuted} if (refuted := [*self._refuted]) else {}),
            "unknown": [*self._unknown],
        }
        return Report(_fitted(content), frames | {"memory": self._allocators}, self.rates)

    @property
    def _run(self) -> dict[str, Any]:
        steps, metadata = self.phases.steps, self.phases.steps.metadata
        facts = {"program": metadata.get("model"), "device": metadata.get("device kind"), "data": metadata.get("data")}
        evaluated = steps.frame.filter(kind=EVALUATION)["host"].value_counts()["count"].max()
        return {
            "name": plain(cut(steps.name or "", _TEXT)),
            **_standing(self.profile),
            **{name: plain(cut(str(fact), _TEXT)) for name, fact in facts.items() if fact},
            "hosts": self._hosts,
            "steps": steps.count if steps.are_counted else None,
            **({"evaluations": evaluated} if evaluated and steps.are_counted else {}),
            "traced": steps.full().count,
        }

    @cached_property
    def _advice(self) -> pl.DataFrame:
        return advise(self.phases)

    @cached_property
    def _ops(self) -> pl.DataFrame:
        return self.phases.top(_OPS, sources=False)

    @property
    def _verdict(self) -> dict[str, Any]:
        judged = verdict(self.phases)
        if judged is None:
            return {"sentence": "The run time was not recorded: shares are of step time.", "healthy": None}
        return {
            "sentence": judged.sentence,
            "healthy": judged.healthy,
            "account": judged.account,
            "cause": judged.cause,
            "action": judged.action,
            "saves": None if judged.saves_ps is None else self._part(judged.saves_ps, "actions", bound="at most"),
        }

    @property
    def _productive(self) -> dict[str, Any]:
        if self.goodput is None:
            return {"value": None, "unit": "s", "share": None, "base": self.base, "evidence": "phases"}
        return self._of_account(self.goodput, "productive")

    def _of_account(self, run: Goodput, account: str) -> dict[str, Any]:
        """Return the time of an account, with its interval if it has one, and whether it is an estimate."""
        rows = run.frame.filter(account=account)
        bounds = rows.drop_nulls(["low_ps", "high_ps"])
        ends = {end: _seconds(rows[f"{end}_ps"].fill_null(rows["time_ps"]).sum() / run.hosts) for end in _ENDS}
        estimated = {"by": "estimate"} if (rows["source"] != "clock").any() else {}
        return self._part(run.time_ps(account), "accounts", **(ends if bounds.height else {}), **estimated)

    def _part(self, time_ps: Any, evidence: str, **more: Any) -> dict[str, Any]:
        """Return a time and its share of the run."""
        share = {"share": _rounded(time_ps / max(self.whole_ps, 1)), "base": self.base}
        return {**_time(time_ps, evidence), **share, **more}

    @property
    def _accounts(self) -> Iterator[dict[str, Any]]:
        if self.goodput is None:
            return
        details = works(self.goodput)
        most = totals(self.goodput).filter(pl.col("share") >= _LEAST_SHARE).head(_ACCOUNTS)
        for account in most["account"]:
            causes = details.filter(pl.col("account") == account, pl.col("share") >= _LEAST_SHARE).head(_CAUSES)
            places = self.goodput.places.filter(account=account).drop_nulls("place").head(1)
            yield {
                "account": account,
                "time": self._of_account(self.goodput, account),
                **({"causes": [_cause(row) for row in causes.iter_rows(named=True)]} if causes.height else {}),
                **({"place": plain(cut(places["place"][0], _TEXT))} if places.height else {}),
            }

    @property
    def _phases(self) -> Iterator[dict[str, Any]]:
        rates = phase_rates(self.rates)
        for row in self.phases.frame.head(_PHASES * self.phases.steps.are_counted).iter_rows(named=True):
            waits = {name: row[name] for name in ("input", "idle") if row[name] is not None}
            yield {
                "phase": row["phase"],
                "name": plain(cut(row["name"])),
                "steps": math.ceil(row["steps"] / self._hosts),
                "traced": math.ceil(row["full"] / self._hosts),
                "time": self._part(row["dur_ps"] / self._hosts, "phases"),
                "step": _time(row["step_ps"], "phases"),
                **(
                    {"varies": _share(row["step_time_cv"], "mean step time")} if row["step_time_cv"] is not None else {}
                ),
                **{name: _share(share, "its step time") for name, share in waits.items()},
                **({"rates": rates[row["phase"]]} if rates.get(row["phase"]) else {}),
            }

    @property
    def _kinds(self) -> Iterator[dict[str, Any]]:
        for kind, count, time_ps, every_ps in kinds_of(self.phases).head(MOST_KINDS).iter_rows():
            times = {"time": self._part(time_ps, "kinds"), "every": _time(every_ps, "kinds")}
            yield {"kind": plain(cut(kind, _TEXT)), "count": count, **times}

    @property
    def _hosts(self) -> int:
        return max(self.phases.steps.frame["host"].n_unique(), 1)

    @property
    def _operations(self) -> Iterator[dict[str, Any]]:
        """Yield the operations with most self time of the longest phase."""
        rows = self._ops.filter(pl.col("phase") == self.phases.longest.id)
        for side in ("device", "host"):
            for row in rows.filter(side=side).iter_rows(named=True):
                share = {"share": _rounded(row["share"]), "base": f"{side} self time of the longest phase"}
                yield {"operation": plain(cut(str(row["op"]))), **share, "evidence": "operations"}
            if rows.filter(side=side).height:
                return

    @cached_property
    def _allocators(self) -> pl.DataFrame:
        """Return the most memory in use of each device, the fullest first: (host, allocator, bytes, capacity_bytes)."""
        try:
            memory = pl.DataFrame(schema=MEMORY) if self.profile is None else self.profile.memory
        except TpunbError:  # the capture kept statistics only
            memory = pl.DataFrame(schema=MEMORY)
        of_devices = memory.filter(~pl.col("allocator").cast(pl.String).str.contains("host"))
        most = pl.max_horizontal(pl.col("peak_bytes").max(), pl.col("in_use_bytes").max())
        found = of_devices.group_by("host", "allocator").agg(bytes=most, capacity_bytes=pl.col("capacity_bytes").max())
        return found.drop_nulls().sort(
            pl.col("bytes") / pl.col("capacity_bytes"), "allocator", descending=[True, False]
        )

    @property
    def _device_memory(self) -> dict[str, Any] | None:
        for row in self._allocators.head(1).iter_rows(named=True):
            name = f"device {row['allocator']}" if row["allocator"].isdigit() else row["allocator"]
            base = f"{_gib(row['capacity_bytes'])} GiB of {plain(cut(name, _TEXT))}"
            share = {"share": _rounded(row["bytes"] / max(row["capacity_bytes"], 1)), "base": base}
            return {"value": row["bytes"], "unit": "B", "evidence": "memory", **share}
        return None

    @property
    def _host_memory(self) -> dict[str, Any] | None:
        most = None if self.goodput is None else self.goodput.load["rss_bytes"].max()
        return None if most is None else {"value": most, "unit": "B", "evidence": "load"}

    @property
    def _actions(self) -> Iterator[dict[str, Any]]:
        saves = pl.col("saves_ps") >= _LEAST_SHARE * self.whole_ps
        hosts = pl.when(pl.col("phase").is_null()).then(1).otherwise(self._hosts)  # of a phase it is a sum over them
        advice = self._advice.with_columns(pl.col("saves_ps") / hosts)
        tried = {
            (each["cause"], each["action"]): f"{each['change']}: {each['outcome']}"
            for each in tried_on(self.phases.steps)
        }
        worth = advice.filter(saves | (pl.col("saves_ps").is_null() & (pl.col("rule") != "unseen")))
        for row in worth.unique("action", keep="first", maintain_order=True).head(_ACTIONS).iter_rows(named=True):
            yield {
                "id": row["id"],
                "rule": row["rule"],
                **({} if row["phase"] is None else {"phase": row["phase"]}),
                "try": row["action"],
                "saves": None if row["saves_ps"] is None else self._part(row["saves_ps"], "actions", bound="at most"),
                **(
                    {"tried": plain(cut(outcome, 2 * _TEXT))}
                    if (outcome := tried.get((row["id"], row["action"])))
                    else {}
                ),
            }

    @property
    def _refuted(self) -> Iterator[dict[str, Any]]:
        advised = {*self._advice["action"]}
        found = [each for each in tried_on(self.phases.steps) if each["decision"] == "not faster"]
        for each in [each for each in found if each["action"] not in advised][:_ACTIONS]:
            words = {"try": each["action"], "tried": each["outcome"]}
            yield {"id": plain(cut(each["cause"])), **{name: plain(cut(text, _TEXT)) for name, text in words.items()}}

    @property
    def _unknown(self) -> Iterator[dict[str, str]]:
        steps = self.phases.steps
        yield from _unrecorded(self.source, self.profile)
        if self.goodput is None:
            yield _missing("run time, and what ran between steps", _CAPTURE)
        else:
            for note in self.goodput.notes[:1]:
                more = f" (and {len(self.goodput.notes) - 1} more)" if len(self.goodput.notes) > 1 else ""
                yield _missing(note + more, _CAPTURE)
            if (others := others_used(self.goodput)) is not None:
                yield _missing(f"times without other load: {others}", "run again on an idle machine")
        if steps.are_counted and (unseen := self.phases.frame.filter(pl.col("full") == 0, pl.col("phase") >= 0).height):
            yield _missing(
                f"operations of {unseen} of {plural(len(self.phases), 'phase')}", "more windows: --window 10"
            )
        if steps.devices.is_empty():
            yield _missing("time of devices, apart from the host's", "a device that the profiler traces")


def _without_steps(profile: Profile, error: NoSteps) -> Report:
    """Return the report on a run in which no steps were found."""
    run = goodput(profile)
    found = {"sentence": f"No steps were found: {format_error(error)}.", "healthy": None}
    rows = totals(run).filter(pl.col("share") >= _LEAST_SHARE).head(_ACCOUNTS)
    accounts = [
        {"account": account, "time": {**_time(time_ps, "accounts"), "share": _rounded(share), "base": "run time"}}
        for account, time_ps, share in rows.select("account", "time_ps", "share").iter_rows()
    ]
    content = {
        "format": FORMAT,
        "run": {
            "name": plain(cut(profile.name or "", _TEXT)),
            **_standing(profile),
            **{"hosts": run.hosts, "steps": 0, "traced": 0},
        },
        "verdict": found,
        "run time": _time(run.wall_ps, "accounts"),
        "productive": {"value": None, "unit": "s", "share": None, "base": "run time", "evidence": "accounts"},
        "accounts": accounts,
        "rates": None,
        "phases": [],
        "operations": [],
        "memory": {"host": None, "device": None},
        "actions": [],
        "unknown": [*_unrecorded(profile.source, profile), _missing("steps", "mark them: with run.step(i)")],
    }
    return Report(_fitted(content), {"accounts": run.frame})


def _standing(profile: Profile | None) -> dict[str, str]:
    """Return that a training stands still, or did until it was killed."""
    standing = None if profile is None else profile.standing
    return {} if standing is None else {"standing": plain(cut(str(standing), 2 * _TEXT))}


def _fitted(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content in 4 kB: the last entries of lists that concern the least time are counted instead."""
    left_out = dict.fromkeys(_LISTS, 0)
    while len(_json({**content, "left out": left_out}).encode()) > _BYTES:
        if rates := [each for each in content["phases"] if "rates" in each]:
            del rates[-1]["rates"]
            continue
        if causes := [each["causes"] for each in content["accounts"] if len(each.get("causes", [])) > 1]:
            causes[-1].pop()  # first what is only said of an entry
            continue
        if not (long := [name for name in _LISTS if len(content.get(name, ())) > 1]):
            break
        least = min(long, key=lambda name: _concerns(content[name][-1]))
        content[least].pop()
        left_out[least] += 1
    more = {name: count for name, count in left_out.items() if count}
    return {**content, "left out": more} if more else content


def _concerns(entry: Mapping[str, Any]) -> float:
    """Return the share of time that an entry concerns; what is not known stays."""
    if "what" in entry:
        return math.inf
    figure = entry.get("time") or entry.get("saves") or {}
    return float(figure.get("share", 0.0))


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _unrecorded(source: Path | str, profile: Profile | None) -> Iterator[dict[str, str]]:
    for line in () if profile is None else profile.misfits:
        what, _, shown_by = line.partition("\t")
        yield _missing(what, shown_by or "a later tpunb, which knows it")
    if isinstance(source, Path) and is_written(source):
        yield _missing("the rest of the run: it is still being written", "report again when it has ended")


def _missing(what: str, shown_by: str) -> dict[str, str]:
    return {"what": plain(cut(what, _TEXT)), "shown by": shown_by}


def _cause(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"cause": plain(cut(row["detail"], _TEXT)), "time": _time(row["time_ps"], "accounts")}


def _share(share: float, base: str) -> dict[str, Any]:
    return {"share": _rounded(share), "base": base, "evidence": "phases"}


def _time(time_ps: float, evidence: str) -> dict[str, Any]:
    return {"value": _seconds(time_ps), "unit": "s", "evidence": evidence}


def _seconds(time_ps: Any) -> float:
    return float(f"{time_ps / 1e12:.6g}")  # more digits than any text, which is rounded again


def _gib(size: Any) -> str:
    return f"{size / 2**30:.3g}"


def _rounded(share: float) -> float:
    return round(share, 4)


def _lines(content: Mapping[str, Any], text: Callable[[str], str], *, bold: str, item: str) -> Iterator[str]:
    """Yield the lines of a report, each a `text` in a format; names of the program were made plain before."""
    run = content["run"]
    facts = ["Steps were not counted"]
    if run["steps"] is not None:
        evaluated = f", {run['evaluations']:,} of them evaluation" if "evaluations" in run else ""
        facts = [f"{plural(run['steps'], 'step')}{evaluated}, {run['traced']:,} traced in full"]
    facts += [str(run[name]) for name in ("program", "device", "data") if name in run]
    if "standing" in run:
        yield bold.format(text(f"{run['name'] or 'Run'} {run['standing']}."))
        yield ""
    yield bold.format(text(f"{run['name'] or 'Run'}: {content['verdict']['sentence']}"))
    yield ""
    yield text(f"{', '.join(facts)}.")
    if content["accounts"]:
        yield from ("", bold.format(f"Where {_text(content['run time'])} went"))
        for each in content["accounts"]:
            why = [f"{cause['cause']} {_text(cause['time'])}" for cause in each.get("causes", [])]
            named = [cause for cause in each.get("causes", []) if cause["cause"] != INSIDE_STEPS]
            why += [f"at {each['place']}"] if "place" in each and not named else []
            account = ACCOUNTS[each["account"]].phrase or each["account"]
            yield item.format(text(f"{_figure(each['time'])} {account}{_list(why)}"))
    if content["phases"]:
        yield from ("", bold.format("Phases"))
        for each in content["phases"]:
            waits = [f"{name} {percent(each[name]['share'])} of it" for name in ("input", "idle") if name in each]
            steps = f"{plural(each['steps'], 'step')} of {_text(each['step'])}"
            yield item.format(text(", ".join([f"{_figure(each['time'])} {each['name']}: {steps}", *waits])))
    if "kinds" in content:
        yield from ("", bold.format("Kinds of steps"))
        for each in content["kinds"]:
            yield item.format(
                text(f"{_figure(each['time'])} {each['kind']}: {each['count']:,}, once in {_text(each['every'])}")
            )
    if content["rates"]:
        yield from (
            "",
            bold.format(f"Rates over {content['rates']['base']}"),
            *(item.format(text(line)) for line in rate_lines(content["rates"])),
        )
    if of := [f"{name} {_size(figure)}" for name, figure in content["memory"].items() if figure is not None]:
        yield from ("", text(f"Memory at most: {', '.join(of)}."))
    if content["actions"]:
        yield from ("", bold.format("What to do"))
        for each in content["actions"]:
            saves = "" if each["saves"] is None else f": saves at most {_figure(each['saves'])}"
            tried = f"; tried: {each['tried']}" if "tried" in each else ""
            yield item.format(text(f"{each['try']}{saves}{tried}"))
    if "refuted" in content:
        yield from ("", bold.format("Tried without gain"))
        yield from (item.format(text(f"{each['try']}: {each['tried']}")) for each in content["refuted"])
    if content["unknown"]:
        yield from ("", bold.format("Not known"))
        yield from (item.format(text(f"{each['what']} ({each['shown by']})")) for each in content["unknown"])


def _list(causes: list[str]) -> str:
    return f": {', '.join(causes)}" if causes else ""


def _text(figure: Mapping[str, Any]) -> str:
    time_ps = figure["value"] * 1e12
    return duration(time_ps) if time_ps >= 1e12 else short_time(time_ps)


def _size(figure: Mapping[str, Any]) -> str:
    share = f" ({percent(figure['share'])} of {figure['base']})" if "share" in figure else ""
    return f"{_gib(figure['value'])} GiB{share}"


def _figure(figure: Mapping[str, Any]) -> str:
    ends = [_text({"value": figure[end]}) for end in _ENDS if end in figure]
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{_text(figure)}{interval} ({percent(figure['share'])} of {figure['base']})"
