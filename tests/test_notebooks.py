"""The notebooks run from top to bottom, on a machine with no network beyond itself, and leave no output empty."""

import ast
import io
import re
import sys
import warnings
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from notebook_results import PAGE, RESULTS, markdown, page
from tracked import tracked
from warm_python import TENSORFLOW, warm_kernels

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PAPER = [f"paper/{path.name}" for path in tracked("notebooks/paper", ending=".ipynb")]
BOOKS = [path.name for path in tracked("notebooks", ending=".ipynb") if path.parent == NOTEBOOKS]
READING = ("05_pods.ipynb", "paper/4_datasets.ipynb")
"""Those that only read what comes with tpunb: their cells run in the process of the test, without a kernel."""

# these tune and measure for minutes, or their results are computed by other tests
SLOW = ("03_tune.ipynb", "04_sweep.ipynb", "06_rank.ipynb", *PAPER, *READING)
BY_README = ("altair", "IPython", "keras", "numpy", "polars", "tensorflow", "tpunb")
EXECUTED = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.live) for name in BOOKS + PAPER]


def read(name):
    import nbformat

    return nbformat.read(NOTEBOOKS / name, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook by its name, run once, and the folder that it ran in."""
    from nbclient import NotebookClient

    variables = {"TPUNB_CACHE": str(tmp_path_factory.mktemp("cache"))}  # of Vega, for all kernels
    variables |= {"SWEEP_SECONDS": "20", "RANK_SECONDS": "10"}

    @cache
    def run(name):
        book, folder = read(name), tmp_path_factory.mktemp(Path(name).stem)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in {**variables, **warm_kernels(TENSORFLOW)}.items():
                patch.setenv(variable, value)
            NotebookClient(book, timeout=1800, resources={"metadata": {"path": str(folder)}}).execute()
        return book, folder

    return run


@pytest.fixture(scope="module")
def tour(executed):
    return executed("00_tour.ipynb")


@cache
def read_here(name):
    """Return the values that the cells of a notebook end in, and the text that they print and these show."""
    names, values, printed = {"display": print}, [], io.StringIO()
    with warnings.catch_warnings(action="error"), redirect_stdout(printed):
        for cell in code(read(name)):
            tree = ast.parse(cell.source)
            last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{name}:{cell.id}", "exec"), names)
            if last is not None:
                values.append(eval(compile(last, f"{name}:{cell.id}", "eval"), names))
                print(repr(values[-1]))
    return values, printed.getvalue()


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def data(cell):
    return [output["data"] for output in cell.outputs if "data" in output]


def shown(book):
    """All that is shown as text, by cells and by what they print."""
    outputs = [output for cell in code(book) for output in cell.outputs]
    return "\n".join(str(output.get("text") or output.get("data", {}).get("text/plain")) for output in outputs)


@pytest.mark.parametrize("name", EXECUTED)
def test_a_notebook_runs_without_an_error_or_a_warning(executed, name):
    book, folder = executed(name)
    outputs = [output for cell in code(book) for output in cell.outputs]
    assert {path.name for path in folder.iterdir()} <= {"runs"}  # which git ignores
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.parametrize(
    "name", [READING[0], *(pytest.param(name, marks=pytest.mark.slow) for name in READING[1:])]
)  # the result of the others, which takes 15 s, is computed once for their first cell
def test_a_notebook_that_only_reads_runs_without_a_kernel(name):
    values, printed = read_here(name)
    assert len(values) > (5 if name in PAPER else 9)
    assert printed


@pytest.mark.parametrize("name", BOOKS + PAPER)
def test_a_notebook_opens_with_its_result(name):
    """Its first cell states what the runs that come with tpunb give now: else run tests/notebook_results.py."""
    first = read(name).cells[0]
    title, result = first.source.split("\n\n", 1)
    assert title.startswith("# ")
    assert result.startswith(markdown(name))


def test_the_page_on_the_paper_has_the_observations_of_the_recorded_runs():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text)


def test_every_notebook_has_a_result():
    assert sorted(RESULTS) == sorted(BOOKS + PAPER)


@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_names_in_its_first_cell_what_it_needs(name):
    """Beyond the README's command; it begins to use that with a line that says what to install."""
    first, python = read(name).cells[0].source, [cell.source for cell in code(read(name)) if cell.source[0] != "%"]
    assert "what the README's command installs" in first
    nodes = [node for source in python for node in ast.parse(source).body]
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    more = {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names, *BY_README}
    assert more <= {"jax"}
    for name in more:
        assert f"pip install -e '.[{name}]'" in first
        used = [at for at, source in enumerate(python) if re.search(rf"\b{name}\b", source)]
        assert f'{name} = need("{name}", extra="{name}")' in python[used[0]]


@pytest.mark.parametrize("name", BOOKS + PAPER)
def test_the_log_of_tensorflow_is_quiet_before_it_is_imported(name):
    """The kernels of these tests are quiet in any case."""
    lines = "\n".join(cell.source for cell in code(read(name))).splitlines()
    imports = [n for n, line in enumerate(lines) if re.match(r"(import|from) (tensorflow|keras|jax)\b", line)]
    quiet = [n for n, line in enumerate(lines) if line.startswith('os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")')]
    assert not imports or quiet[0] < imports[0]


@pytest.mark.parametrize("name", [each for each in EXECUTED if each.values != ("00_tour.ipynb",)])
# the tour shows something in every cell: it is below
def test_a_cell_that_ends_in_an_expression_shows_something(executed, name):
    book, _ = executed(name)
    python = [cell for cell in code(book) if not cell.source.startswith("%")]
    ending = [cell for cell in python if isinstance(ast.parse(cell.source).body[-1], ast.Expr)]
    assert len(ending) > (5 if name in PAPER else 9)
    for cell in ending:
        assert cell.outputs, cell.source


@pytest.mark.live
def test_every_cell_that_ends_in_a_value_shows_it(tour):
    book, _ = tour
    assert code(book)[0].outputs == []
    for cell in code(book)[2:]:  # the first two prepare
        assert data(cell), cell.source


@pytest.mark.live
def test_the_tour_ends_with_phases_coverage_and_top_ops(tour):
    book, _ = tour
    shown = "\n".join(str(bundle.get("text/plain")) for cell in code(book) for bundle in data(cell))
    assert "Phases(" in shown
    assert "top 3 cover" in shown
    assert "self time (ms)" in shown


@pytest.mark.live
def test_training_and_evaluation_are_separate_phases(tour):
    import tpunb as tp

    _, folder = tour
    steps = tp.steps(tp.load(folder / "runs" / "tour"))
    assert steps.frame["kind"].value_counts().sort("kind").rows() == [("eval", 80), ("train", 400)]
    phases = tp.phases(steps)
    names = phases.labelled.join(phases.frame.select("phase", "name"), on="phase")
    most = {kind: names.filter(kind=kind)["name"].value_counts(sort=True)["name"][0] for kind in ("train", "eval")}
    assert most["train"].partition(" ")[0] == "train"  # "train (slower)" on a busy machine
    # a machine may be so slow that windows, within their budget, have too few steps of the evaluation for a phase
    if steps.full().frame.filter(kind="eval").height >= 10:
        assert most["eval"].partition(" ")[0] == "evaluation"


@pytest.mark.parametrize(
    ("name", "least"),
    [
        pytest.param(name, least, marks=pytest.mark.slow if name in SLOW else pytest.mark.live)
        for name, least in [
            *(("00_tour.ipynb", 7), ("01_read_a_profile.ipynb", 2), ("02_phases.ipynb", 4), ("03_tune.ipynb", 1)),
            *(("04_sweep.ipynb", 4), ("05_pods.ipynb", 2), ("06_rank.ipynb", 3)),
            *(("paper/2_phases.ipynb", 7), ("paper/3_operators.ipynb", 3), ("paper/4_datasets.ipynb", 3)),
            ("paper/5_tuning.ipynb", 3),
        ]
    ],
)
def test_pictures_are_static_and_need_no_network(executed, name, least):
    book, _ = executed(name)
    pictures = [bundle for cell in code(book) for bundle in data(cell) if "image/png" in bundle]
    assert len(pictures) >= least
    for bundle in pictures:
        assert "<svg" in bundle["text/html"] or 'src="data:image/svg+xml;base64,' in bundle["text/html"]
        assert "<script" not in bundle["text/html"]
        assert 'src="http' not in bundle["text/html"]


@pytest.mark.live
def test_a_profile_is_read_down_to_its_layers(executed):
    book, folder = executed("01_read_a_profile.ipynb")
    text = shown(book)
    assert "Steps(300 steps" in text  # of the capture that the notebook makes
    frames = [bundle["text/html"] for cell in code(book) for bundle in data(cell) if "text/html" in bundle]
    assert any("jit(train)/jvp(hidden)/dot_general" in frame for frame in frames)
    assert {"phases.json", "csv", "ops.parquet", "logs", "mlp"} <= {path.name for path in (folder / "runs").iterdir()}


@pytest.mark.live
def test_the_panel_is_set_from_python_and_made_static(executed):
    book, folder = executed("02_phases.ipynb")
    text = shown(book)
    assert "tp.phases(steps, tp.OLS(threshold=0.8))" in text
    assert (folder / "runs" / "phases.html").stat().st_size > 100_000
    widget = "application/vnd.jupyter.widget-view+json"
    bundles = [bundle for cell in code(book) for bundle in data(cell)]
    panels = [widget in bundle for bundle in bundles if bundle["text/plain"] == ""]
    assert panels == [True, True, False]  # two live panels; the third is frozen
    stills = [bundle for bundle in bundles if "How phases were found" in bundle.get("text/html", "")]
    assert ["image/png" in bundle for bundle in stills] == [False, False, True]


@pytest.mark.slow
def test_a_fit_resumes_exactly_and_is_tuned(executed):
    book, folder = executed("03_tune.ipynb")
    by_id = {cell.id: cell for cell in code(book)}
    assert data(by_id["tune-08"])[0]["text/plain"] == "True"  # the weights of the resumed run
    assert data(by_id["tune-16"])[0]["text/plain"] == "[True, True, True]"  # the elements of the tuned data
    summary = by_id["tune-20"].outputs[0]["text"]  # what was gained, if anything, differs from machine to machine
    assert "tuning included; steps" in summary or "Tuning changed nothing." in summary
    assert {"saved", "waits", "tuned"} <= {path.name for path in (folder / "runs").iterdir()}
    assert (folder / "runs" / "tuning" / "tuning.jsonl").is_file()


@pytest.mark.slow
def test_a_sweep_answers_and_is_read_again(executed):
    text = shown(executed("04_sweep.ipynb")[0])
    assert "batch 16,384 is the largest measured, and throughput still rises" in text  # as published
    assert "2.78 times the examples per second" in text
    assert text.count("by the graph:") == 3
    assert "Rank correlation of FLOPs and latency:" in text


def test_the_hosts_that_delay_a_pod_are_named():
    _, text = read_here("05_pods.ipynb")
    assert "replace pod-0003" in text
    assert "pod-0011" in text
    assert "{'pod-0003': 0.0885, 'pod-0011': 0.0392}" in text


def test_what_more_chips_bought_is_answered():
    _, text = read_here("05_pods.ipynb")
    assert "resnet tpu-v3-N 0.6.0: 16 to 1,024 chips, 32.9 times as fast to quality" in text
    assert "of the step on 1,024 chips is serial" in text
    assert "1.52" in text


@pytest.mark.slow
def test_three_layouts_are_timed_of_24(executed):
    book, folder = executed("06_rank.ipynb")
    text = shown(book)
    assert (
        "attention: 4 of 24 configurations timed; " in text or "attention: 3 of 24 " in text
    )  # the default was among 3
    assert "tau of the halves: " in text
    assert "ProgramGraph(jit_attention, " in text
    assert (folder / "runs" / "attention.parquet").is_file()


def test_notebooks_are_stored_without_outputs_and_paths():
    for name in BOOKS + PAPER:
        assert all(cell.outputs == [] and cell.execution_count is None for cell in code(read(name))), name
