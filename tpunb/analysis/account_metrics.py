"""Metrics of a run's accounts that advice is based on."""

from __future__ import annotations

import math

import polars as pl

from tpunb.analysis.goodput import goodput
from tpunb.frames import Phases, Steps
from tpunb.frames.goodput import totals

_ACCOUNTS = {
    "productive": "productive",
    "data loading": "loading",
    "callbacks": "callbacks",
    "checkpoint save": "saving",
    "preparation": "preparation",
    "evaluation": "evaluation",
    "program startup": "startup",
}


def account_metrics(phases: Phases, failure_every_h: float | None = None) -> pl.DataFrame:
    """Return one row of metrics of the whole run, none without a record of its wall time; null if unknown.

    ``wall_ps``; of the accounts ``productive``, ``loading``, ``callbacks``, ``saving``, ``preparation``,
    ``evaluation``, ``startup``, ``retracing`` (tracing and compiling a function after its first time, within startup)
    and ``rebuilding`` (tracing the step of three models or more, but for the first) the share of wall time, 0 to 1, and
    the time such as ``callbacks_ps``; ``callback`` and ``retraced``, what took most of it, with ``callback_ps``;
    ``models``, how many steps of models were traced; ``unplanned``, ``saving`` without a known time between failures;
    ``save_ps``, time to save once; ``save_every_ps``, wall time by number of saves; ``save_best_ps``, the interval of
    least loss by Young.

    Parameters
    ----------
    phases
        Phases of the run.
    failure_every_h
        Mean time between failures in hours, if known.
    """
    if phases.steps.wall is None:
        return pl.DataFrame()
    run = goodput(phases)
    times = dict(totals(run).select("account", pl.col("time_ps").round().cast(pl.Int64)).iter_rows())
    row: dict[str, object] = {"wall_ps": run.wall_ps}
    retraced, retracing_ps = _retraced(phases.steps, run.hosts)
    taken = {name: times.get(account, 0) for account, name in _ACCOUNTS.items()}
    models, rebuilding_ps = _rebuilt(phases.steps, run.hosts)
    taken |= {"retracing": min(retracing_ps, taken["startup"]), "rebuilding": min(rebuilding_ps, taken["startup"])}
    for name, time_ps in taken.items():
        row |= {f"{name}_ps": time_ps, name: time_ps / max(run.wall_ps, 1)}
    most = totals(run, "detail").filter(account="callbacks").drop_nulls("detail").head(1).to_dicts()
    saves = run.frame.filter(account="checkpoint save")["count"].sum() / run.hosts
    row |= {
        "callback": most[0]["detail"] if most else None,
        "callback_ps": round(most[0]["time_ps"]) if most else None,
        "retraced": retraced,
        "models": str(models),
        "save_ps": taken["saving"] / saves if saves else None,
        "save_every_ps": run.wall_ps / saves if saves else None,
        "save_best_ps": None,
        "unplanned": row["saving"] if failure_every_h is None else None,
    }
    if failure_every_h is not None and saves:
        row["save_best_ps"] = math.sqrt(2 * taken["saving"] / saves * failure_every_h * 3.6e15)
    texts = dict.fromkeys(("callback", "retraced", "models"), pl.String())
    return pl.DataFrame([row], schema={name: texts.get(name, pl.Float64()) for name in row})


def _retraced(steps: Steps, hosts: int) -> tuple[str | None, int]:
    """Return which function was traced or compiled again, and the time of all of them per host."""
    if steps.wall is None:
        return None, 0
    work, again = r"^(tracing|lowering|compiling) ", r" again for .*$"
    spans = (
        steps.wall.spans.filter(pl.col("account") == "program startup", pl.col("detail").str.contains(work))
        .sort("start_ps")
        .with_columns(work=pl.col("detail").str.replace(again, ""))
        .with_columns(name=pl.col("work").str.replace(work, ""))
    )
    # TensorFlow's are marked; JAX compiles as well, and functions without a name of their own are many
    compiled = pl.col("detail").str.starts_with("compiling").any().over("host", "name")
    repeated = compiled & (pl.int_range(pl.len()).over("host", "work") > 0) & ~pl.col("name").str.contains("^<|^a func")
    more = spans.filter(repeated | pl.col("detail").str.contains(again)).group_by("name", maintain_order=True)
    times = more.agg(pl.col("dur_ps").sum()).sort("dur_ps", descending=True, maintain_order=True)
    return (times["name"][0], int(times["dur_ps"].sum()) // hosts) if times.height else (None, 0)


def _rebuilt(steps: Steps, hosts: int) -> tuple[int, int]:
    """Return of how many models a step was traced, and the time of all but the first, per host; 0 s for one or two."""
    if steps.wall is None:
        return 0, 0
    spans = steps.wall.spans.filter(account="program startup", detail="tracing the step of fit").sort("start_ps")
    later = spans.filter(pl.int_range(pl.len()).over("host") > 0)
    models = spans.height // hosts
    return models, int(later["dur_ps"].sum()) // hosts if models > 2 else 0
