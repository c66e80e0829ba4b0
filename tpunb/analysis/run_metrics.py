"""Metrics of a run: what its accounts hold, and what is known of the program."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import numpy as np
import polars as pl

from tpunb.analysis.causes import HANDOVER_PS, NAMED_SHARE, WAITS
from tpunb.analysis.goodput import Goodput, computing, crowding, goodput, others_used, totals
from tpunb.analysis.time_line import EACH, FEWEST_SAMPLES, FEWEST_TRACED, FIRST, OTHERS, VALIDATING, acts
from tpunb.analysis.traits import traits
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.exclusive_time import covered
from tpunb.frames.phase_rows import FEWEST_DRIFTING
from tpunb.frames.steps import WallClock
from tpunb.instrument.sink import END_OF_DATA, NEW_FUNCTION, What
from tpunb.schema import ACCOUNTS
from tpunb.signals import DATA_END, NEW_ITERATOR, WORKERS_START
from tpunb.step_stats.batch_size import padding_of
from tpunb.step_stats.boundaries import is_primitive
from tpunb.step_stats.sample_places import WORKS, line_of
from tpunb.step_stats.step_fold import EVALUATION, LOOP_CALLS
from tpunb.text import plural

_FEWEST_LOADS, _STEADY, _GROWN = 3, 0.75, 0.2  # seconds of load; share of them in which memory grows; by how much
_RISES = 0.7  # rank correlation of the processor time of steps with their number
_IMPORTS = r" ← import | \(imports\)$"
_SLEEP = " ← time.sleep"  # which no processor shortens
_COLLECTS = r" ← (gc\.)?collect$"
_CALLS = r" ← .*\bmodel(\.predict|\.predict_on_batch)?$"  # in a callback
_TEXTS = {  # metrics of the run that are no figures
    *("callback", "retraced", "reason", "changed", "models", "data", "saves", "waits", "evaluates", "eager", "debug"),
    *("again", "framework", "backend", "collects", "calls", "others", "frozen_at", "cache", "threads", "processors"),
    *("awaited_at", "read_at"),
}
_EAGER_CALLS = 40  # of compiled functions of JAX in a step, most of them single operations
_SMALL_PS = 10e6  # of an operation of PyTorch on a CPU: 3 us each in loops over examples
_MANY_OPS = 200  # for each gradient of a parameter: 20 to 45 in models of any depth, 800 in a loop over examples
_GRADIENT, _BACKWARD = "torch::autograd::AccumulateGrad", r"^(.*)Backward\d*$"
_OF_PYTORCH = r"^aten::|Backward\d*$"
_FROZEN = 0.2  # of the operations of a kind, without gradients
_LARGE_PS = 100e6  # of an operation of PyTorch that several threads compute faster


def importing_ps(run: Goodput) -> int:
    """Return the time of imports, by samples of preparation."""
    imports = run.places.filter(pl.col("account") == "preparation", pl.col("place").str.contains(_IMPORTS))
    return round(run.time_ps("preparation") * imports["share"].sum())


def account_metrics(phases: Phases, failure_every_h: float | None = None, run: Goodput | None = None) -> pl.DataFrame:
    """Return one row of metrics of the whole run, none without a record of its wall time; null if unknown.

    ``wall_ps``; of each account by its ``metric`` in ``tpunb.schema.ACCOUNTS``, of ``retracing`` (tracing and compiling
    a function after its first time, within startup) and of ``rebuilding`` (tracing the step of three models or more,
    but for the first), of ``first`` (the rest of startup), ``compiling`` (of startup), ``collecting`` (garbage),
    ``anew`` (iterators of Keras, with ``awaiting``, the waits for their first batches, and ``of_arrays``, those of
    arrays), ``validating`` (waits for input of evaluations), ``scoring`` (evaluations outside of their batches),
    ``ended`` (iterators of tf.data), ``starting`` and ``restarting`` (workers of a DataLoader, in its first pass and
    later), ``importing`` (modules, by samples of preparation), ``refitting`` (around and before the steps of fits of
    one batch), ``stepping`` (steps without waits), ``working`` (with code and callbacks), ``handing`` (batches over, if
    workers did), ``dispatching`` (of steps, what a compiled one would not take, and ``called_between`` them; see
    ``eager``), ``calling`` (of compiled steps of Keras, without operations), ``reading`` (numbers of arrays of JAX one
    by one, most at ``read_at``; ``read_between`` steps), ``slowing`` (of steps, beyond those of the first quarter) and
    ``frozen`` (a model without gradients, called at ``frozen_at``), ``padding`` (of batches that all have one width),
    ``double`` (what double precision costs at most) and ``unthreaded`` (what ``processors`` beyond the ``threads`` of
    PyTorch would save at most) the share of wall time, 0 to 1, and the time such as ``callbacks_ps``; ``growth`` of
    memory in bytes an hour, if steady, to ``memory`` in bytes; ``crowding``, the share of the processors that other
    programs used while none was free; ``computing``, that which the job used while it trained; ``eager``, what runs
    steps operation by operation; ``debug``, what checks each operation; ``data``, the kind of the data; ``waits``,
    "collector" if code between steps collects garbage; ``awaited_at``, what it waits for, ``waited``; ``collects``,
    "program" if that collects garbage itself; ``calls``, "model" if callbacks mostly call one; ``evaluates``:
    "predict", "mode" if no batch is evaluated, or "batches"; ``saves``, "background" if Orbax does not hold up the
    training for them; ``callback`` and ``retraced``, what took most of it, with ``callback_ps``, the ``reason`` of
    retracing, how often ``again``, and what had ``changed``: function, value, shape or growth; ``models``, how many
    steps of models were traced; ``unplanned``, ``saving`` without a known time between failures; ``save_ps``, time to
    save once; ``save_every_ps``, wall time by number of saves; ``save_best_ps``, the interval of least loss by Young.

    Parameters
    ----------
    phases
        Phases of the run.
    failure_every_h
        Mean time between failures in hours, if known.
    run
        ``tp.goodput(phases)``, if it is at hand.
    """
    if phases.steps.wall is None:
        return pl.DataFrame()
    run = run or goodput(phases)
    times = dict(totals(run).select("account", pl.col("time_ps").round().cast(pl.Int64)).iter_rows())
    row: dict[str, object] = {"wall_ps": run.wall_ps}
    retraced, reason, retracing_ps, again = _retraced(phases.steps, run.hosts)
    if retraced is not None:
        startup = run.segments.filter(account="program startup")
        again_in = startup.filter(pl.col("detail").str.contains(" again")).drop_nulls("step")
        first = startup.filter(pl.col("detail") == FIRST).join(again_in, on=["host", "step"], how="semi")
        each = startup.filter(pl.col("detail") == EACH)
        retracing_ps += int(pl.concat([first, each])["dur_ps"].sum()) // run.hosts
    taken = {account.metric: times.get(name, 0) for name, account in ACCOUNTS.items()}
    models, rebuilding_ps = _rebuilt(phases.steps, run.hosts)
    taken |= {"retracing": min(retracing_ps, taken["startup"]), "rebuilding": min(rebuilding_ps, taken["startup"])}
    taken["first"] = taken["startup"] - max(taken["retracing"], taken["rebuilding"])
    collecting = run.frame.filter(account="step time deviation", detail="garbage collection")
    compiles = pl.col("detail").str.starts_with("compiling ") & ~pl.col("detail").str.contains(" again")
    compiling = run.frame.filter(compiles, account="program startup")
    taken["compiling"] = int(compiling["time_ps"].sum()) // run.hosts
    anew = run.frame.filter(account="data loading", detail=NEW_ITERATOR)
    taken["anew"] = int(anew["time_ps"].sum()) // run.hosts
    ends = run.frame.filter(account="data loading", detail=DATA_END)
    taken["ended"] = int(ends["time_ps"].sum()) // run.hosts if _reads_tf_data(phases.steps) else 0
    most_ps = taken["loading"] - taken["anew"] - taken["ended"]
    workers = _starts(phases.steps, WORKERS_START).with_columns(
        pl.sum_horizontal("span_ps", "wait_ps").alias("time_ps")
    )
    begun_ps = {
        "starting": workers.filter(~pl.col("later"))["time_ps"].sum(),
        "restarting": workers.filter("later")["time_ps"].sum() + _ends_ps(phases.steps, workers.filter("later")),
        "awaiting": _starts(phases.steps, NEW_ITERATOR)["wait_ps"].sum(),
    }
    for name, time_ps in begun_ps.items():
        taken[name] = min(int(time_ps) // run.hosts, most_ps)
        most_ps -= taken[name]
    taken["anew"] += taken["awaiting"]
    validating = run.frame.filter(account="evaluation", detail=VALIDATING)
    taken["validating"] = int(validating["time_ps"].sum()) // run.hosts
    scoring = run.segments.filter(pl.col("step").is_null(), account="evaluation")["dur_ps"].sum() // run.hosts
    taken["scoring"] = scoring if (phases.steps.frame["kind"] == EVALUATION).any() else 0
    taken["of_arrays"] = taken["anew"] if traits(phases.steps)["data"] == "arrays" else 0  # Keras' own, no slow input
    taken["importing"] = importing_ps(run)
    waited = run.places.filter(WAITS, account="program code")
    taken["waited"] = round(taken["code"] * waited["share"].sum())
    awaited = waited["place"].str.extract(r" waits for .* in (\w+)").drop_nulls()  # those with most samples are first
    awaited_at = f"{awaited[0]} in another thread" if len(awaited) else "another thread or process"
    fits = phases.steps.wall.spans.filter(account="fit", detail="fit").height
    is_fitted = 1 < phases.steps.frame.filter(kind="train").height <= fits
    around_ps = int(run.frame.filter(account="preparation", detail="fit")["time_ps"].sum()) // run.hosts
    taken["refitting"] = around_ps + taken["loading"] if is_fitted else 0
    taken["stepping"] = taken["productive"] + taken["idle"] + times.get("step time deviation", 0)
    taken["working"] = taken["stepping"] + taken["code"] + taken["callbacks"]
    batches = phases.steps.frame.filter(pl.col("rule").ne_missing("whole")).height
    taken["handing"] = round(HANDOVER_PS * batches) // run.hosts
    eager = _eager(phases.steps)
    lines = _lines_of_jax(phases.steps, "wait")
    read_at, in_steps_ps, taken["read_between"] = _at_lines(run, lines)
    taken["reading"] = in_steps_ps + taken["read_between"]
    called = {*_lines_of_jax(phases.steps, "call")} - {*lines} if eager == "JAX" else ()
    _, _, taken["called_between"] = _at_lines(run, called)
    dispatching_ps = round(taken["stepping"] * (1 - _in_kernels(phases.steps, eager)))
    taken["dispatching"] = max(dispatching_ps - in_steps_ps, 0) + taken["called_between"]
    taken["calling"] = 0 if eager else _calling_ps(phases.steps, taken["productive"] + taken["idle"], run.hosts)
    frozen_at, taken["frozen"] = _frozen(run, phases.steps)
    taken["padding"] = round(taken["productive"] * _padding(phases.steps))
    taken["double"] = taken["productive"] // 2 if _is_double(phases.steps) else 0
    taken["unthreaded"] = round(taken["productive"] * _unthreaded(phases.steps))
    taken["collecting"] = int(collecting["time_ps"].sum()) // run.hosts
    taken["slowing"] = _slowing_ps(phases.steps) // run.hosts
    others, slow = others_used(run), run.frame.filter(account="step time deviation")
    unknown_ps = slow.filter(pl.col("detail").is_null() | (pl.col("detail") == OTHERS))["time_ps"].sum() // run.hosts
    slow_ps = slow["time_ps"].sum() // run.hosts
    taken["crowded"] = slow_ps if others is not None and 2 * unknown_ps >= slow_ps else 0
    for name, time_ps in taken.items():
        row |= {f"{name}_ps": time_ps, name: time_ps / max(run.wall_ps, 1)}
    most = totals(run, "detail").filter(account="callbacks").drop_nulls("detail").head(1).to_dicts()
    saves = _saves(phases.steps) / run.hosts
    row |= {
        "callback": most[0]["detail"] if most else None,
        "callback_ps": round(most[0]["time_ps"]) if most else None,
        "retraced": retraced,
        "again": "once" if again == 1 else plural(again, "time"),
        "reason": reason or "arguments that were not seen",
        "changed": next(
            (cause for pattern, cause in _CHANGED.items() if re.search(pattern, f"{retraced}: {reason}")), None
        ),
        **_growth(phases.steps),
        "crowding": crowding_of_waits(run),
        "computing": computing(phases.steps),
        "others": others,
        "eager": eager,
        "debug": phases.steps.metadata.get("debug"),
        **traits(phases.steps),
        "models": str(models),
        "frozen_at": frozen_at,
        "threads": phases.steps.metadata.get("threads"),
        "saves": phases.steps.metadata.get("saves"),
        "waits": "collector" if _is_mostly_at(run.places, "program code", _COLLECTS) else None,
        "read_at": read_at,
        "awaited_at": awaited_at,
        "evaluates": _evaluates(phases.steps),
        "collects": "program" if _collects(phases.steps, run) else None,
        "calls": "model" if _is_mostly_at(run.places, "callbacks", _CALLS) else None,
        "save_ps": taken["saving"] / saves if saves else None,
        "save_every_ps": run.wall_ps / saves if saves else None,
        "save_best_ps": None,
        "unplanned": row["saving"] if failure_every_h is None else None,
    }
    if failure_every_h is not None and saves:
        row["save_best_ps"] = math.sqrt(2 * taken["saving"] / saves * failure_every_h * 3.6e15)
    return pl.DataFrame([row], schema={name: pl.String() if name in _TEXTS else pl.Float64() for name in row})


def crowding_of_waits(run: Goodput) -> float:
    """Return `crowding` of the time in which the program waits for input, but for its sleeps and its own work.

    Others slow that work as they slow the steps; they keep what is prepared beside these from being ready.
    """
    places = run.places.filter(account="data loading").drop_nulls("place")
    is_not_excused = pl.col("place").str.ends_with(_SLEEP) | (pl.col("worked") > WORKS).fill_null(value=False)
    return crowding(run.load) * (
        1 - int(places.filter(is_not_excused)["samples"].sum()) / max(int(places["samples"].sum()), 1)
    )


def _is_mostly_at(places: pl.DataFrame, account: str, pattern: str) -> bool:
    """Return whether most samples in an account are at places of a pattern."""
    sampled = places.filter(account=account).drop_nulls("place")
    return bool(sampled.filter(pl.col("place").str.contains(pattern))["samples"].sum() > sampled["samples"].sum() / 2)


def _collects(steps: Steps, run: Goodput) -> bool:
    """Return whether most of the time of collections is of lines that call gc.collect(), where a sample saw that."""
    seen = run.places.filter(pl.col("place").str.contains(_COLLECTS))
    if steps.read_run_events is None:  # of an earlier version
        share = int(seen["samples"].sum()) / max(int(run.places["samples"].sum()), 1)
        collecting = run.frame.filter(account="step time deviation", detail="garbage collection")
        return bool(2 * share * run.wall_ps > int(collecting["time_ps"].sum()) / run.hosts)
    lines = seen["place"].str.replace(_COLLECTS, "").to_list()
    found = steps.read_run_events()
    places = {(host, number): line_of(*place) for host, number, *place in found.places.rows()}
    time = pl.col("end_ps") - pl.col("start_ps")
    events = found.events.filter(pl.col("event") == "collect").select("host", "place", time=time)
    there_ps = sum(time_ps for host, place, time_ps in events.rows() if places.get((host, place)) in lines)
    return bool(2 * there_ps > events["time"].sum())


def _evaluates(steps: Steps) -> str:
    """Return "predict" if that takes most, "mode" if models are in their mode for it without a batch, or "batches"."""
    times = dict(steps.frame.group_by("kind").agg(pl.col("dur_ps").sum()).iter_rows())
    if times.get("predict", 0) > times.get("eval", 0):
        return "predict"
    return "mode" if steps.wall is not None and acts(steps.wall.spans, steps.frame) else "batches"


def _reads_tf_data(steps: Steps) -> bool:
    """Return whether batches come from tf.data, as those do that Keras on TensorFlow makes of other data."""
    of = traits(steps)
    return (of["data"] or "").endswith("tf.data") or of["framework"] in ("TensorFlow", "Keras")


def _starts(steps: Steps, what: str) -> pl.DataFrame:
    """Return (host, start_ps, later, span_ps, wait_ps) of each start of what gives batches.

    Its time, and the wait for the first batch beyond a usual one, of steps that train; the first start on a host is not
    later.
    """
    wall, waits = steps.wall or WallClock(0), steps.frame.drop_nulls("input_ps").filter(pl.col("kind") != "eval")
    beyond = (pl.col("input_ps") - pl.col("input_ps").median().over("host")).clip(0).cast(pl.Int64)
    until = pl.col("start_ps") + pl.col("input_ps")
    waits = waits.select("host", "step", wait_ps=beyond, start_ps=until).sort("start_ps")
    starts = wall.spans.filter(detail=what).sort("start_ps")
    starts = starts.with_columns(later=pl.int_range(pl.len()).over("host") > 0, span_ps="dur_ps")
    found = starts.join_asof(waits, on="start_ps", by="host", strategy="forward", check_sortedness=False)
    is_first = pl.struct("host", "step").is_first_distinct()  # of several starts before one batch
    return found.select("host", "start_ps", "later", "span_ps", wait_ps=pl.when(is_first).then("wait_ps"))


def _ends_ps(steps: Steps, restarts: pl.DataFrame) -> int:
    """Return the time of the ends of passes over data that are followed by a restart of workers, which end in them."""
    if steps.read_run_events is None or restarts.is_empty():
        return 0
    ends = steps.read_run_events().events.filter(event="fetch", end_of=END_OF_DATA).sort("start_ps")
    ends = ends.select("host", "start_ps", "end_ps", at="start_ps")
    last = restarts.sort("start_ps").join_asof(ends, on="start_ps", by="host", check_sortedness=False)
    last = last.drop_nulls("at").unique(["host", "at"])
    return int((last["end_ps"] - last["at"]).sum())


def _lines_of_jax(steps: Steps, event: str) -> list[str]:
    """Return the lines of the program at which JAX reads many numbers, or calls many operations, in each step."""
    if steps.read_run_events is None:
        return []
    run = steps.read_run_events()
    names = run.names.rename({"id": "what"})
    is_part = [What(*what).is_part_of_steps for what in names.select("library", "module", "name").iter_rows()]
    names = names.filter(pl.Series(is_part, dtype=pl.Boolean)) if event == "call" else names.filter(library="jax")
    found = run.events.filter(event=event).join(names, on=["host", "what"], how="semi")
    counts = found.group_by("host", "place").agg(pl.col("count").sum())
    many = counts.filter(pl.col("count") >= _EAGER_CALLS * steps.frame.height)
    lines = run.places.rename({"id": "place"}).join(many, on=["host", "place"], how="semi").drop("host", "place")
    return [line for place in lines.rows() if (line := line_of(*place))]


def _at_lines(run: Goodput, lines: Collection[str]) -> tuple[str | None, int, int]:
    """Return which of some lines takes most time, and that of all in steps and between them; None for none."""
    times_ps = {name: float(run.time_ps(name)) for name in ("productive", "device idle", "program code")}
    places = run.places.filter(pl.col("account").is_in([*times_ps]))
    time_ps = pl.col("share") * pl.col("account").cast(pl.String).replace_strict(times_ps, default=0.0)
    line = pl.col("place").str.split(" ← ").list.first()
    found = places.select("account", line=line, time_ps=time_ps).filter(pl.col("line").is_in([*lines]))
    if found.is_empty():
        return None, 0, 0
    most = found.group_by("line").agg(pl.col("time_ps").sum()).sort("time_ps", descending=True)["line"][0]
    between_ps = int(found.filter(account="program code")["time_ps"].sum())
    return most, int(found["time_ps"].sum()) - between_ps, between_ps


def _operations(steps: Steps) -> float:
    """Return how many compiled functions of JAX itself a step calls: single operations."""
    if steps.read_run_events is None:
        calls = steps.full().ops.filter(pl.col("op") == "PjitFunction")["count"].sum()
        return float(calls) / max(len(steps.full()), 1)
    run = steps.read_run_events()
    named = run.names.rename({"id": "what"}).join(run.events.filter(event="call"), on=["host", "what"])
    of_library = [What(*what).is_part_of_steps for what in named.select("library", "module", "name").iter_rows()]
    return int(named.filter(pl.Series(of_library, dtype=pl.Boolean))["count"].sum()) / max(steps.frame.height, 1)


def _padding(steps: Steps) -> float:
    """Return the share of padding in the batches of a run, as their masks have it; 0 where they differ in width."""
    if steps.read_run_events is None:
        return 0.0
    run = steps.read_run_events()
    texts = run.signatures.select("host", "returns", arrays="id")
    fetched = run.events.filter(event="fetch").drop_nulls("number").join(texts, on=["host", "arrays"])
    sums = fetched.group_by("returns").agg(pl.len(), pl.col("number").sum())
    found = [each for row in sums.iter_rows() if (each := padding_of(*row)) is not None]
    positions = sum(each[1] for each in found)
    return sum(each[2] for each in found) / positions if len({each[0] for each in found}) == 1 else 0.0


@memoised
def _eager(steps: Steps) -> str | None:
    """Return what runs the steps operation by operation: "Keras", "TensorFlow" or "JAX"; "PyTorch" if they are tiny."""
    full = steps.full()
    if steps.metadata.get("eager") or _operations(steps) >= _EAGER_CALLS:
        return steps.metadata.get("eager") or "JAX"
    ops = _of_pytorch(full)
    # an operation that takes as much in one call loops itself, such as that of a recurrent layer
    whole = (ops["total_ps"] / ops["count"]).max() or 0.0
    gradients = full.ops.filter(pl.col("op") == _GRADIENT)["count"].sum()
    many = ops["count"].sum() >= _MANY_OPS * gradients > 0 and not steps.devices.height
    many &= float(whole) * len(full) < NAMED_SHARE * float(ops["self_ps"].sum())  # type: ignore[arg-type]
    return "PyTorch" if many and _in_kernels(steps, "PyTorch") < 0.5 else None


def _frozen(run: Goodput, steps: Steps) -> tuple[str | None, int]:
    """Return the line that calls a model of PyTorch without gradients in steps, and its time; None for none.

    No forward pass takes longer than its gradients: a call that does so has none, if operations without any are traced
    of each kind that takes a tenth of the time: gradients themselves call some kinds, but not all.
    """
    full = steps.full()
    trained = full.frame.filter(pl.col("kind") != "eval").select("host", "step")
    of_op = full.ops.join(trained, on=["host", "step"], how="semi").group_by(pl.col("op").cast(pl.String))
    ops = of_op.agg(pl.col("count", "self_ps").sum())
    back = pl.col("op").str.extract(_BACKWARD).str.to_lowercase()
    backward = ops.select(name=back, back=pl.col("count") / 2).drop_nulls()  # each has an event of the engine around it
    name = pl.col("op").str.strip_prefix("aten::").str.replace_all("_", "")
    forward = ops.filter(pl.col("op").str.starts_with("aten::")).with_columns(name=name).join(backward, on="name")
    kinds = forward.filter(pl.col("self_ps") > NAMED_SHARE * pl.col("self_ps").sum())
    without = kinds.select((1 - pl.col("back") / pl.col("count")).min()).item()
    gradients = ops.filter(pl.col("op") == _GRADIENT)["count"].sum()
    of_pytorch = ops.filter(pl.col("op").str.contains(_OF_PYTORCH))["count"].sum()
    moves = of_pytorch >= _MANY_OPS * gradients > 0  # of a policy, whose inputs follow from what it returns
    if steps.read_run_events is None or moves or not (without or 0) > _FROZEN:
        return None, 0
    events = steps.read_run_events().events.filter(pl.col("event") == "gradient")
    gradients_ps = int(events.select((pl.col("end_ps") - pl.col("start_ps")).sum()).item())
    order = run.segments.select("host", "start_ps", "account").sort("start_ps")
    samples = (steps.wall or WallClock(0)).samples.sort("start_ps")
    samples = samples.join_asof(order, on="start_ps", by="host", check_sortedness=False).filter(account="productive")
    each_ps = run.time_ps("productive") * run.hosts / max(samples.height, 1)
    lines = samples.drop_nulls("model").group_by("model").agg(n=pl.len(), time_ps=pl.len() * each_ps)
    if lines.filter(pl.col("n") >= FEWEST_SAMPLES).height < 2:  # the model that trains is called, too
        return None, 0
    lines = lines.drop("n")
    most = lines.filter(pl.col("time_ps") > gradients_ps).sort("time_ps", "model", descending=True).head(1).rows()
    return (most[0][0], round(most[0][1]) // run.hosts) if most and gradients_ps else (None, 0)


def _is_double(steps: Steps) -> bool:
    """Return whether a training is in double precision throughout: its parameters, or the state that JAX updates."""
    if steps.metadata.get("dtype") == "float64" or steps.read_run_events is None:
        return steps.metadata.get("dtype") == "float64"
    takes = steps.read_run_events().signatures.filter(repeats="returned")["takes"]
    single = takes.str.contains_any(["float32[", "float16["])
    return bool((takes.str.contains("float64[", literal=True) & ~single).any())


def _unthreaded(steps: Steps) -> float:
    """Return the share of steps of PyTorch on a CPU that all of its processors would save, of its large operations."""
    threads, processors = (steps.metadata.get(name, "") for name in ("threads", "processors"))
    ops = steps.full().ops.group_by("op").agg(pl.col("count", "self_ps").sum()).filter(pl.col("count") > 0)
    if not (threads.isdecimal() and processors.isdecimal() and ops.height) or steps.devices.height:
        return 0.0
    large = ops.filter(pl.col("self_ps") > _LARGE_PS * pl.col("count"))["self_ps"]
    return (
        float(large.sum())
        / max(float(ops["self_ps"].sum()), 1.0)
        * max(0.0, 1 - int(threads) / max(int(processors), 1))
    )


def _of_pytorch(full: Steps) -> pl.DataFrame:
    """Return count and times of PyTorch's operations, and of one in the step that other programs held up least."""
    ops = full.ops.filter(pl.col("op").cast(pl.String).str.contains(_OF_PYTORCH), pl.col("count") > 0)
    each = (pl.col("self_ps") / pl.col("count")).min()
    return ops.group_by("op").agg(pl.col("count", "self_ps", "total_ps").sum(), each=each)


def _in_kernels(steps: Steps, eager: str | None) -> float:
    """Return the share of the steps in which operations run, of PyTorch large ones: a compiled step runs them, too."""
    full = steps.full()
    if eager is None or not len(full):
        return 0.0
    ops = full.ops.filter(side="device") if eager == "JAX" else full.ops
    if eager == "PyTorch":
        ops = _of_pytorch(full).filter(pl.col("each") >= _SMALL_PS)
    kernels = full.frame["device_ps"] if full.devices.height else ops["self_ps"]
    return min(float(kernels.sum()) / max(float(full.frame["dur_ps"].sum()), 1.0), 1.0)


def _calling_ps(steps: Steps, computing_ps: int, hosts: int) -> int:
    """Return the time of steps of Keras, compiled by TensorFlow for a CPU, in which no operation runs."""
    full, of = steps.full(), traits(steps)
    on_cpu = steps.metadata.get("device kind") == "CPU" and not full.devices.height
    if (of["framework"], of["backend"]) != ("Keras", "TensorFlow") or not on_cpu or len(full) < FEWEST_TRACED:
        return 0
    kernels_ps = float(full.ops["self_ps"].sum()) / len(full)
    return max(computing_ps - round(kernels_ps * steps.frame.height / hosts), 0)


def _saves(steps: Steps) -> int:
    """Return how often the hosts saved: the files of one save follow one another at once, without a step between."""
    if steps.wall is None or not steps.are_counted:  # short ones may not have been seen
        return 0
    waits = pl.col("detail").str.ends_with("wait_until_finished").fill_null(value=False)
    spans = steps.wall.spans.filter(pl.col("account") == "checkpoint save", ~waits).sort("start_ps")
    begun = steps.frame.select("host", "start_ps", "step").sort("start_ps")
    found = spans.join_asof(begun, on="start_ps", by="host", check_sortedness=False)
    start, dur, before = pl.col("start_ps"), pl.col("dur_ps"), pl.col("step").shift()
    same = pl.col("step").eq_missing(before) & (start - (start + dur).shift() <= dur.shift())
    return int(found.select((~same.fill_null(value=False)).over("host").sum()).item())


def _slowing_ps(steps: Steps) -> int:
    """Return how much longer steps beside no profiler take than at first, if their processor time rises."""
    wall, slower_ps = steps.wall or WallClock(0), 0
    computes = pl.col("dur_ps") - pl.sum_horizontal(pl.col("input_ps", "callbacks_ps").fill_null(0))
    profiler = _profiling(wall).with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    for host, rows in steps.frame.filter(kind="train").with_columns(exclusive_ps=computes).group_by("host"):
        start, dur = (rows[name].fill_null(0).to_numpy() for name in ("start_ps", "dur_ps"))
        beside = covered(profiler.filter(host=host[0]).select("start_ps", "end_ps"), start, start + dur)
        rows = rows.filter(pl.Series(beside == 0))
        of_host = wall.load.filter(host=host[0]).sort("start_ps").select("start_ps", "cpu")
        rows = rows.sort("start_ps").join_asof(of_host, on="start_ps", strategy="nearest")
        rows = rows.drop_nulls(["exclusive_ps", "cpu"])
        if len(rows) < FEWEST_DRIFTING:
            continue
        exclusive_ps, quarter = rows["exclusive_ps"].to_numpy(), len(rows) // 4
        work = exclusive_ps * rows["cpu"].to_numpy()
        rank = np.corrcoef(np.argsort(np.argsort(work)), np.arange(len(rows)))[0, 1]
        if rank > _RISES and np.median(work[-quarter:]) >= 2 * np.median(work[:quarter]):
            slower_ps += int((exclusive_ps - np.median(exclusive_ps[:quarter])).clip(0).sum())
    return slower_ps


def _growth(steps: Steps) -> dict[str, object]:
    """Return by how many bytes an hour the host memory that grows fastest grows steadily, and what it has."""
    # seconds beside the profiler, whose events take memory too, are left out
    grown: dict[str, object] = {"growth": None, "memory": None}
    wall, end = steps.wall or WallClock(0), (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")
    profiler = pl.concat([each.select("host", "start_ps", end) for each in (_profiling(wall), steps.windows)])
    begin = pl.col("start_ps").min()
    trained = steps.frame.group_by("host").agg(begin=begin + (end.max() - begin) // 3, end=end.max())
    training = wall.load.join(trained, on="host").filter(pl.col("start_ps").is_between("begin", "end"))  # after loading
    for host, rows in training.drop_nulls("rss_bytes").sort("start_ps").group_by("host"):
        if len(rows) < _FEWEST_LOADS:
            continue
        rss, start = rows["rss_bytes"].to_numpy().astype(float), rows["start_ps"].to_numpy()
        until = np.append(start[1:], start[-1] + 10**12)
        apart = covered(profiler.filter(host=host[0]), start, until)[1:] == 0
        rises, hours = np.where(apart, np.diff(rss), 0.0), ((until - start)[1:] * apart).sum() / 3.6e15
        steady = apart.any() and (rises[apart] > 0).mean() >= _STEADY
        later, but_one = rises[len(rises) // 2 :].sum(), rises.sum() - rises.max()  # once is no leak
        steady &= min(later, but_one) > _GROWN * rss[0] / 3
        if steady and rises.sum() > _GROWN * rss[0] and rises.sum() / hours > float(grown["growth"] or 0):  # type: ignore[arg-type]
            grown = {"growth": float(rises.sum() / hours), "memory": float(rss[-1])}
    return grown


def _profiling(wall: WallClock) -> pl.DataFrame:
    return wall.spans.filter(account="profiler")


_CHANGED = {
    r"^jit\((append|concatenate|[hv]?stack)\): ": "growth",
    ": a new function": "function",
    r": .*\w[\[(]": "shape",
    r": .* = |: another static argument": "value",
}
"""What has changed, by patterns of a function and the reasons why it is compiled again."""


def _retraced(steps: Steps, hosts: int) -> tuple[str | None, str | None, int, int]:
    """Return which function was traced or compiled again, the last reason, the time of all per host, and how often."""
    if steps.wall is None:
        return None, None, 0, 0
    work, again = r"^(tracing|lowering|compiling) ", r" again for (.*)$"
    spans = (
        steps.wall.spans.filter(pl.col("account") == "program startup", pl.col("detail").str.contains(work))
        .sort("start_ps")
        .with_columns(work=pl.col("detail").str.replace(again, ""), reason=pl.col("detail").str.extract(again))
        .with_columns(name=pl.col("work").str.replace(work, ""))
    )
    # JAX says why it compiles again, once it has traced
    traces, jitted = pl.col("work").str.starts_with("tracing "), pl.col("name").str.replace(r"^jit\((.*)\)$", "$1")
    following = pl.when(~traces).then(pl.col("reason").fill_null("")).backward_fill().over("host", jitted)
    spans = spans.with_columns(reason=pl.coalesce("reason", pl.when(traces & (following != "")).then(following)))
    # TensorFlow's are marked; JAX compiles as well, and functions without a name of their own are many
    compiled = pl.col("detail").str.starts_with("compiling").any().over("host", "name")
    repeated = compiled & (pl.int_range(pl.len()).over("host", "work") > 0) & ~pl.col("name").str.contains("^<|^a func")
    # what makes parameters is compiled for the shape of each, once, and operations on their own for that of each layer
    begun = steps.frame["start_ps"].drop_nulls().sort()
    of_library = pl.Series(
        map(is_primitive, spans["name"].str.extract(r"^jit\((.*)\)$").fill_null("")), dtype=pl.Boolean
    )
    first, later = (begun.slice(at).first() for at in (0, LOOP_CALLS))
    loops = pl.col("start_ps") >= pl.when(of_library).then(later).otherwise(first or 0)
    more = spans.filter(loops, repeated | pl.col("reason").is_not_null()).group_by("name", maintain_order=True)
    often = pl.struct("host", "work").unique_counts().max()
    times = more.agg(pl.col("dur_ps").sum(), pl.col("reason").drop_nulls().last(), often=often)
    # a library has functions of one name for training, evaluation and prediction
    is_other = (pl.col("reason") == NEW_FUNCTION).fill_null(value=False) & (pl.col("often") < LOOP_CALLS)
    times = times.filter(~is_other).sort("dur_ps", descending=True, maintain_order=True)
    if times.is_empty():
        return None, None, 0, 0
    return times["name"][0], times["reason"][0], int(times["dur_ps"].sum()) // hosts, times["often"][0]


def _rebuilt(steps: Steps, hosts: int) -> tuple[int, int]:
    """Return of how many models a step was traced, and the time of all but the first, per host; 0 s for one or two."""
    if steps.wall is None:
        return 0, 0
    spans = steps.wall.spans.filter(account="program startup", detail="tracing the step of fit").sort("start_ps")
    later = spans.filter(pl.int_range(pl.len()).over("host") > 0)
    models = spans.height // hosts
    return models, int(later["dur_ps"].sum()) // hosts if models > 2 else 0
