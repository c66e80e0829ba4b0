"""The results that the notebooks open with: a sentence and a table, from the runs that come with tpunb.

``python tests/notebook_results.py`` writes them into the first cells, and the observations into ``paper/README.md``.
"""

import json
from pathlib import Path

import polars as pl
import shipped_runs
from shipped_runs import measured

import tpunb as tp
from tpunb.studies.paper import FASTER, OTHER_DATA, observations, published, table_1
from tpunb.studies.paper.balances import V2, V3
from tpunb.studies.sweeps import paradnn

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PAGE = NOTEBOOKS / "paper" / "README.md"
BEGIN, END = "<!-- observations: written by tests/notebook_results.py -->", "<!-- end -->"
BERT, DCGAN = ("bert-squad", "bert-mrpc", "bert-mnli", "bert-cola"), ("dcgan-cifar10", "dcgan-mnist")
RUNS = (*BERT, *DCGAN, "qanet-squad", "retinanet-coco", "resnet-imagenet")
LESS = {
    run: others for run, others in OTHER_DATA.items() if run in ("qanet-squad", "retinanet-coco", "resnet-imagenet")
}


def percent(share):
    return f"{share:.1%}".replace("%", " %")


def tour():
    phases = tp.phases(tp.sample("keras_cnn"))
    rows = [(row["name"], row["steps"], percent(row["share"])) for row in phases.frame.iter_rows(named=True)]
    return (
        "the steps of a training become phases with names. A run like the one below, which comes with tpunb:",
        [("phase", "steps", "share of step time without waits"), *rows],
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
    found = tp.hosts(tp.steps(tp.sample("pod")))
    named = found.frame.filter("named").select("host", "cause", "recurrence", pl.col("costs_ps") / found.span_ps)
    rows = [(host, cause, recurrence, percent(gain)) for host, cause, recurrence, gain in named.rows()]
    return (
        "hosts that delay a job are named, with cause and gain. Of a simulated pod of 24 hosts, two of them slow:",
        [("host", "cause", "when", "gain of step time"), *rows],
    )


def rank():
    means = shipped_runs.ranked()
    rows = [(row["method"], percent(row["top3"])) for row in means.rows(named=True)]
    return (
        "a cost model chooses three of 24 layouts to time, of functions of families that it was not fitted to. "
        f"On average over {means['graphs'].max()} recorded functions, on one core of a CPU:",
        [("method", "best of the first three, slower than the fastest by"), *rows],
    )


def workloads():
    models = table_1().group_by("model", maintain_order=True).agg(pl.col("dataset"))
    rows = [(model, ", ".join(datasets)) for model, datasets in models.rows()]
    return "five models on nine datasets, built in Keras with the sizes of Table I.", [("model", "datasets"), *rows]


def paper_phases():
    shares = shipped_runs.phases().pivot("method", index="run", values="coverage")
    rows = [(run, *map(percent, covered)) for run, *covered in shares.rows()]
    least = percent(published("coverage")["value"].item())
    return (
        f"three phases cover most of each run. Paper, on TPU v2: at least {least} by every method.",
        [("share of step time without waits in the three longest phases", "OLS", "DBSCAN", "k-means"), *rows],
    )


def marked(measure, mark, names=(*OTHER_DATA,)):
    """The mean of a measure of the naive program over workloads, at a mark."""
    rows = measured()[0].filter(pl.col("run").is_in(names), form="naive", measure=measure, mark=mark)
    return percent(rows["value"].mean()) if len(rows) else "not reached"


def operators():
    here = {mark: marked("idle", mark) for mark in (V2, V3)}
    rows = [
        (name, *(marked(measure, mark) for mark in (V2, V3)), *map(percent, published(measure).head(2)["value"]))
        for measure, name in (("idle", "idle time"), ("mxu", "use of the matrix unit"))
    ]
    return (
        f"with input of full size beside a core as device, its idle time is {here[V2]} at the balance of TPU v2, and "
        f"{here[V3]} when the device is {FASTER[V3]:.2f} times as fast, measured.",
        [("mean of five workloads", "at that of TPU v2", "of TPU v3", "paper, TPU v2", "paper, TPU v3"), *rows],
    )


def datasets():
    rows = [(run, marked("idle", V2, [run]), other, marked("idle", V2, [other])) for run, (other, *_) in LESS.items()]
    (row,) = observations(*measured()).filter(observation=6).rows(named=True)
    return (
        f"{row['sentence'].split(': ', 1)[1]} In the paper it idles more on all.",
        [("run", "idle time", "on other data", "idle time there"), *rows],
    )


def tuning():
    tuned = measured()[1].filter(form="tuned").sort("run", "balance")
    rows = [
        (
            row["run"],
            row["mark"] or "less idle",
            f"{row['value']:.2f}x",
            f"{row['low']:.2f} to {row['high']:.2f}",
        )
        for row in tuned.iter_rows(named=True)
    ]
    (row,) = observations(*measured()).filter(observation=4).rows(named=True)
    equal = "equal, bit for bit" if tuned["equal"].all() else "NOT equal"
    mean = published("speed-up")["value"].item()
    return (
        f"{row['sentence'].split(': ', 1)[1]} Outputs are {equal}. Paper, on TPU v2: {mean:.2f}x on average.",
        [("run", "balance", "speed-up of the whole run", "of three rounds"), *rows],
    )


def of_paper():
    """The rows of Observations 3 to 6 in notebooks/paper/README.md."""
    rows = []
    for row in observations(*measured()).iter_rows(named=True):
        shown = f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        paper = "" if row["paper"] is None else f"{row['paper']:.4g}"
        rows.append(
            (f"{row['observation']}. {TITLES[row['observation']]}", row["figure"], paper, shown, row["sentence"])
        )
    header = ("observation", "figure", "paper", "here, with its interval", "recorded runs")
    return table([header, *rows])


TITLES = {
    3: "Data preparation and exchange is a significant overhead",
    4: "Making data exchange efficient is the key",
    5: "The overhead grows with faster compute",
    6: "The bottleneck can change with the dataset",
}


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


def table(rows):
    """Return a table as Markdown, of a header and rows."""
    header, *rest = rows
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [header, ["---"] * len(header), *rest])


def markdown(name):
    """Return the result of a notebook as Markdown."""
    sentence, rows = RESULTS[name]()
    return f"**Result:** {sentence}\n\n{table(rows)}"


def page(text):
    """Return a page with the table of observations that the runs at balances give now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{of_paper()}\n{END}{rest.split(END)[1]}"


def write():
    """Write the results under the titles of the notebooks, and into notebooks/paper/README.md."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
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
