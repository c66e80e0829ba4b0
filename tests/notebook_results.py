"""The results that the notebooks open with: a sentence and a table, from the runs that come with tpunb.

``python tests/notebook_results.py`` writes them into the first cells.
"""

import json
import tempfile
from pathlib import Path

import polars as pl

import tpunb as tp
from tpunb.testing import Fault, pod, step_program
from tpunb.workloads import paradnn, recorded, table_1
from tpunb.workloads.paper import published, speedups, utilisation
from tpunb.workloads.record import COMPARED

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
BERT, DCGAN = ("bert-squad", "bert-mrpc", "bert-mnli", "bert-cola"), ("dcgan-cifar10", "dcgan-mnist")
RUNS = (*BERT, *DCGAN, "qanet-squad", "retinanet-coco", "resnet-imagenet")
PAIRS = {
    "qanet-squad": "qanet-squad-half",
    "retinanet-coco": "retinanet-coco-half",
    "resnet-imagenet": "resnet-cifar10",
}


def percent(share):
    return f"{share:.1%}".replace("%", " %")


def tour():
    phases = tp.phases(tp.sample("keras_cnn"))
    rows = [(row["name"], row["steps"], percent(row["share"])) for row in phases.frame.iter_rows(named=True)]
    return (
        "the steps of a training become phases with names. A run like the one below, which comes with tpunb:",
        [("phase", "steps", "share of productive time"), *rows],
    )


def read():
    frame = tp.steps(tp.sample("keras_cnn")).frame
    kinds = frame.group_by("kind").agg(pl.len(), pl.col("dur_ps").median(), pl.col("input_ps").median()).sort("kind")
    rows = [(kind, count, f"{step / 1e9:.2f}", f"{wait / 1e9:.2f}") for kind, count, step, wait in kinds.rows()]
    return (
        "every step of a run as a row, with its time and its waits; the same holds for operations and layers.",
        [("kind", "steps", "median step (ms)", "median wait for input (ms)"), *rows],
    )


def phases():
    steps = tp.steps(tp.sample("keras_cnn"))
    rows = []
    for name in ("dbscan", "hdbscan", "kmeans", "ols", "olsplus"):
        found = tp.phases(steps, name)
        rows.append((name, len(found), percent(found.coverage(3)), percent(found.noise)))
    return (
        "five methods find two to seven phases in one run; the panel changes their parameters by a slider.",
        [("method", "phases", "coverage of the three longest", "outliers"), *rows],
    )


def tune():
    return (
        "a fit resumes from a checkpoint with the same bits, and a faster input pipeline delivers the same elements. "
        "The cells below verify both on your machine.",
        [
            ("what is compared", "result"),
            ("weights of the resumed run, with those of the run that was not interrupted", "equal, bit for bit"),
            ("elements of the tuned data, with those of the program's own", "equal, bit for bit"),
        ],
    )


def sweep():
    rows = []
    for name in ("TPU v2", "V100"):
        answer = paradnn.measured(name).filter(layers=4, nodes=512, input=2000, output=1000).saturation("batch")
        rows.append((name, f"{answer.value:,}", "still rises" if answer.rising else "is enough"))
    return (
        "where throughput stops growing depends on the device. Four layers of 512 nodes, as published:",
        [("device", "batch within 5 % of the best throughput", "throughput there"), *rows],
    )


def pods():
    program = step_program(tp.sample("keras_cnn"), ops=60, collectives=3)
    faults = [Fault("slow chip", (3,), 0.12, device=2), Fault("slow input", (11,), 0.08, every=4)]
    with tempfile.TemporaryDirectory() as folder:
        pod(program, hosts=24, steps=20, faults=faults, folder=folder)
        found = tp.hosts(tp.steps(tp.load(folder)))
    named = found.frame.filter("named").select("host", "cause", "recurrence", pl.col("costs_ps") / found.span_ps)
    rows = [(host, cause, recurrence, percent(gain)) for host, cause, recurrence, gain in named.rows()]
    return (
        "hosts that delay a job are named, with cause and gain. Of a simulated pod of 24 hosts, two of them slow:",
        [("host", "cause", "when", "gain of step time"), *rows],
    )


def rank():
    collection = tp.costmodel.recorded()
    means = tp.costmodel.CostModel().evaluate(collection, by="family").frame
    rows = [(row["method"], percent(row["top3"])) for row in means.rows(named=True)]
    return (
        "a cost model chooses three of 24 layouts to time, of functions of families that it was not fitted to. "
        f"On average over {len(collection)} recorded functions, on one core of a CPU:",
        [("method", "best of the first three, slower than the fastest by"), *rows],
    )


def workloads():
    models = table_1().group_by("model", maintain_order=True).agg(pl.col("dataset"))
    rows = [(model, ", ".join(datasets)) for model, datasets in models.rows()]
    return "five models on nine datasets, built in Keras with the sizes of Table I.", [("model", "datasets"), *rows]


def paper_phases():
    methods = (tp.OLS(0.7), tp.DBSCAN.paper(), tp.KMeans.paper())
    rows = [(run, *(percent(tp.phases(recorded(run).steps, method).coverage(3)) for method in methods)) for run in RUNS]
    least = percent(published("coverage")["value"].item())
    return (
        f"three phases cover most of each run. Paper, on TPU v2: at least {least} by every method.",
        [("share of productive time in the three longest phases", "OLS", "DBSCAN", "k-means"), *rows],
    )


def operators():
    used = utilisation(recorded(run) for run in RUNS)
    rows = []
    for measure, name in (("idle", "idle time"), ("mxu", "use of the matrix unit")):
        here = used.filter(measure=measure)
        of_paper = published(measure).filter(pl.col("run").is_null())["value"]
        rows.append((name, f"{percent(here['value'].mean())} ({here['how'][0]})", *map(percent, of_paper)))
    return (
        "on a CPU, steps hardly wait for input, so the paper's idle time is not reproduced.",
        [("mean of nine runs", "here, CPU", "paper, TPU v2", "paper, TPU v3"), *rows],
    )


def datasets():
    idle = [utilisation(map(recorded, names)).filter(measure="idle")["value"] for names in (PAIRS, PAIRS.values())]
    rows = [(run, *map(percent, shares)) for run, *shares in zip(PAIRS, *idle, strict=True)]
    return (
        "with less data, two of three models wait longer for input, as in the paper; ResNet does not.",
        [("idle time", "its dataset", "a smaller one"), *rows],
    )


def tuning():
    faster = speedups([recorded(f"{name}-{form}") for form in ("naive", "tuned") for name in COMPARED])
    rows = [(run, f"{value:.2f}x") for run, value in faster.select("run", "value").rows()]
    mean = published("speed-up")["value"].item()
    return (
        f"on two cores no value was faster, so all values stay. Paper, on TPU v2: {mean:.2f}x on average.",
        [("run", "speed-up of a step"), *rows],
    )


RESULTS = {
    "00_tour.ipynb": tour,
    "01_read_a_profile.ipynb": read,
    "02_phases.ipynb": phases,
    "03_tune.ipynb": tune,
    "04_sweep.ipynb": sweep,
    "05_pods.ipynb": pods,
    "06_rank.ipynb": rank,
    "paper/1_workloads.ipynb": workloads,
    "paper/2_phases.ipynb": paper_phases,
    "paper/3_operators.ipynb": operators,
    "paper/4_datasets.ipynb": datasets,
    "paper/5_tuning.ipynb": tuning,
}


def markdown(name):
    """Return the result of a notebook as Markdown."""
    sentence, (header, *rows) = RESULTS[name]()
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"**Result:** {sentence}", "", *(f"| {' | '.join(map(str, line))} |" for line in lines)])


def write():
    """Write the results under the titles of the notebooks."""
    for name in RESULTS:
        path = NOTEBOOKS / name
        book = json.loads(path.read_text(encoding="utf-8"))
        title, *rest = "".join(book["cells"][0]["source"]).split("\n\n")
        if rest[0].startswith("**Result:**"):
            rest = rest[2:]
        text = "\n\n".join([title, markdown(name), *rest])
        book["cells"][0]["source"] = text.splitlines(keepends=True)
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
