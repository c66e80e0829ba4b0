"""Facts about a recorded run, in ``about.toml`` of its folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tpunb.frames.conversion import write_atomically
from tpunb.step_stats.reduce import steps
from tpunb.studies.paper.recordings import ABOUT
from tpunb.studies.paper.workloads.cost import Cost
from tpunb.studies.paper.workloads.sizes import Plan
from tpunb.studies.paper.workloads.workload import Workload
from tpunb.text import plural


def facts(workload: Workload, profile: Any, seconds: float, scale: float = 0.0) -> dict[str, Any]:
    """Return the facts of any recorded run of a workload: a training of some seconds."""
    recorded = steps(profile)
    return {
        "name": profile.name,
        "what": f"{workload.model} on {workload.dataset}",
        "run": _describe(workload.plan(scale)),
        "workload": workload.name,
        "scale": scale,
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": f"tensorflow {version('tensorflow')}, keras {version('keras')}, python {platform.python_version()}",
        "seconds": round(seconds, 2),
        "steps": len(recorded),
        "seen_in_full": len(recorded.full()),
        "keeps": "statistics only",
    }


def _describe(plan: Plan) -> str:
    """Return the plan of a run as a sentence."""
    every = "each" if plan.eval_every == 1 else f"every {plan.eval_every}"
    return (
        f"{plural(plan.epochs, 'epoch')} of {plural(plan.epoch_steps, 'training step')} of "
        f"{plural(plan.batch, 'example')}, "
        f"{plural(plan.eval_steps, 'evaluation step')} after {every}, a checkpoint at the end of each epoch"
    )


def write(folder: Path, metadata: Mapping[str, Any], costs: Mapping[str, Cost]) -> None:
    """Write facts and costs as TOML: strings, numbers and lists of strings are written as in JSON; None is left out."""
    entries = {key: value for key, value in metadata.items() if value is not None}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()]
    for split, counts in costs.items():
        numbers = {"flops": counts.flops, "bytes": counts.bytes, "roof_s": counts.roof_s}
        lines += ["", f"[cost.{split}]", *(f"{key} = {value!r}" for key, value in numbers.items() if value is not None)]
    write_atomically(folder / ABOUT, ("\n".join(lines) + "\n").encode())
