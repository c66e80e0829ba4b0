"""Jobs with published answers: pipelines of ByteDance and MLPerf Storage, read from the folder in ``TPUNB_DATA``.

`measure` returns the figures of ``benchmarks/jobs.py`` that compare with them.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from simulate.pipeline import Pipeline

import tpunb as tp

CAUSES = {"AR": "worker", "ST": "stage"}
SIMULATED = {
    "worker": [Pipeline(worker={(1, 2): 1.6}), Pipeline(worker={(3, 0): 2.0}, seed=1)],
    "stage": [Pipeline(stage={3: 1.8}), Pipeline(stage={0: 1.7}, seed=2)],
    "sequence": [Pipeline(sequence=0.5), Pipeline(sequence=0.4, seed=3)],
    "none": [Pipeline(), Pipeline(jitter=0.03, seed=4)],
}
PARTS = {"optype": "operation", "dp_rank": "data-parallel rank", "stage": "stage"}
STORAGE = "unet3d_h100_15x"


def published(folder: Path, job: str, found: tp.analysis.Hosts) -> Iterator[tuple[str, float, float]]:
    """Yield (which, ours, published) of a job: "slowdown", and "by_type" for operations, stages, ranks and causes."""
    result = json.loads((folder / f"result-{job}.json").read_text())
    yield "slowdown", found.slowdown, result["blocking_slowdown"]
    ours = {(part, name): value for part, name, value in found.what_if.select("part", "name", "slowdown").rows()}
    for key, part in PARTS.items():
        for name, slowdown in result[f"blocking_decompose_by_{key}"].items():
            yield "by_type", ours[part, name.replace("pp-comm", "transfer").replace("d-tr", "d tr")], slowdown
    stages, ranks = (result[f"blocking_decompose_by_{key}"] for key in ("stage", "dp_rank"))
    for (part, name), slowdown in ours.items():
        if part == "worker":
            stage, rank = re.findall(r"(\d+)[,)]", name)
            yield "by_type", slowdown, min(stages[stage], ranks[rank])
    gains = {(part, name): gain / 1e12 for part, name, gain in found.what_if.select("part", "name", "gain_ps").rows()}
    last = max(found.what_if.filter(part="stage")["name"], key=int)
    for kind, part in (("mw", ("cause", "worker")), ("ms", ("stage", last))):
        answer = json.loads((folder / f"{kind}-{job}.json").read_text())
        yield "by_type", answer["tori"] - gains[part], answer["trem"]


def measure() -> dict[str, float]:
    """Return the worst error of each figure, and the seconds to load 117,216 operations."""
    data = Path(os.environ["TPUNB_DATA"]) / "answers"
    errors, right = {"slowdown": 0.0, "by_type": 0.0}, list[bool]()
    for job, cause in CAUSES.items():
        found = tp.hosts(data / "stragglers" / f"trace-{job}.parquet")
        for which, ours, theirs in published(data / "stragglers", job, found):
            errors[which] = max(errors[which], abs(ours / theirs - 1))
        right.append(found.cause == cause)
    with tempfile.TemporaryDirectory() as folder:
        for cause, jobs in SIMULATED.items():
            for job in jobs:
                job.table().write_parquet(Path(folder, "job.parquet"))
                right.append(tp.hosts(Path(folder, "job.parquet")).cause == cause)
    storage = data / "storage" / STORAGE
    right.append(not tp.hosts(storage).frame["named"].any())
    official = json.loads((storage / "summary.json").read_text())["metric"]["train_au_percentage"]
    epochs = tp.analysis.accelerator_utilisation(storage).group_by("epoch", maintain_order=True)
    ours = epochs.agg(pl.col("utilisation").mean() * 100)["utilisation"].to_list()
    begin = time.perf_counter()
    tp.steps(tp.load(data / "stragglers" / "trace-AR.parquet"))
    load_s = time.perf_counter() - begin
    au = max(abs(a - b) for a, b in zip(ours, official, strict=True))
    return {**errors, "causes": sum(right) / len(right), "au": au, "load_s": load_s}


warnings.simplefilter("ignore")
