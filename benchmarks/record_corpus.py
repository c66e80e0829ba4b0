"""Record programs with what is true of them into the corpus that ``tests/test_corpus.py`` judges again.

``python benchmarks/record_corpus.py [--programs PATTERN] [--folder tests/corpus]``: each program of `programs.wastes`,
with its waste and without, of `programs.trainers`, with each waste and none, of `programs.evaluated`, those of
libraries with one of the wastes, too, of `signs`, `refuted` and `strangers`, and of public pages, in a process of its
own, one after the other: nothing else should run on the machine. An entry is a zip file with the run folder and
``truth.json``; ``tests/judged_runs.py`` documents its keys. Programs whose packages are missing are left out. The last
line is one JSON object with the number of entries recorded and their bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import trainers
from verdicts import warm_up, windows_s

import tpunb as tp
from programs import PROGRAMS as PAGES
from programs import Loop, Script, Steps, Training, evaluated, refuted, signs, wastes
from programs.refuted import jax_loops, keras_fits, torch_loops  # noqa: F401  they register their programs

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
STRANGERS = Path(__file__).parents[1] / "programs" / "strangers"
STEPS = 100  # of a trainer
Program = Callable[[Path, Any], dict[str, Any]]
"""Trains in an empty folder, in a capture; returns what is true of it: values, or functions of `windows_s`."""


class CountedRun:
    """Capture that a program marks its steps in, which counts them."""

    def __init__(self, run: Any) -> None:
        self._run, self.steps = run, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    @contextlib.contextmanager
    def step(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Mark a step."""
        self.steps += 1
        with self._run.step(*arguments, **options) as step:
            yield step


def wasteful(name: str, *, repaired: bool) -> Program:
    """Return a program of `programs.wastes`."""
    program = wastes.PROGRAMS[name]
    warm_up(name.partition("_")[0])

    def train(folder: Path, run: Any) -> dict[str, Any]:
        counted, updates = CountedRun(run), []
        with _counted_updates(updates) if name.startswith("torch") else contextlib.nullcontext():
            program.train(counted, repaired)
        cause = {"accounts": program.accounts, "words": program.words} if program.words else None
        return {
            "steps": counted.steps or len(updates) or None,
            "cause": None if repaired else cause,
            "not_cause": cause if repaired else None,
            "healthy": cause is None,
            "wasted_s": wastes.wasted_s if program.measures and not repaired else None,
        }

    return train


@contextlib.contextmanager
def _counted_updates(updates: list[int]) -> Iterator[None]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    hook = register_optimizer_step_post_hook(lambda *_: updates.append(1))
    try:
        yield
    finally:
        hook.remove()


def trainer(name: str, waste: str) -> Program:
    """Return a program of `programs.trainers`, which has run: imports and compilations are of no interest."""
    with tempfile.TemporaryDirectory() as temporary:
        trainers.run_program(name, "none", 3, Path(temporary, "first"))

    def train(folder: Path, run: Any) -> dict[str, Any]:
        truth = trainers.run_program(name, waste, STEPS, folder / "program")
        accounts = list(trainers.accounts(name, waste)) if waste != "none" else []
        return {
            "steps": truth["steps"],
            "cause": {"accounts": accounts} if accounts else None,  # not the largest in so short a run
            "wasted_s": truth["injected_s"][waste] if accounts else None,
        }

    return train


def sign(name: str, train: Callable[[], dict[str, Any]]) -> Program:
    """Return a program of `programs.signs`."""
    warm_up(name.partition("_")[0])
    return lambda folder, run: train()


def evaluates(train: Callable[[Path], dict[str, int]], place: str = "") -> Program:
    """Return a program of `programs.evaluated`, which has run before it wastes time in a place."""
    if place:
        with tempfile.TemporaryDirectory() as temporary:
            train(Path(temporary))

    def captured(folder: Path, run: Any) -> dict[str, Any]:
        evaluated.WASTE.place, evaluated.WASTE.folder, evaluated.WASTE.seconds = place, folder, 0.0
        counts = train(folder)
        truth = {"steps": counts["train"], "evaluations": counts.get("eval")}
        accounts = [*trainers.ACCOUNTS[place], *["program code"] * (place in ("data", "save"))] if place else []
        cause = {"accounts": accounts, "words": _WORDS[place]} if place else None
        return {**truth, "cause": cause, "wasted_s": evaluated.WASTE.seconds if place else None}

    return captured


_WORDS = {"data": "evaluated.py", "log": "evaluated.py", "sync": "evaluated.py", "save": "[Ss]av"}


def page(name: str) -> Program:
    """Return a program of a public page."""

    def train(folder: Path, run: Any) -> dict[str, Any]:
        program, steps = PAGES[name].make(folder), 0
        if isinstance(program, Script):
            losses = list[float]()
            program.train(losses.append)
            steps = len(losses)
        elif isinstance(program, Loop):
            for _ in range(program.steps):
                program.step(program.parts)
            steps = program.steps
        elif isinstance(program, Steps):
            for _ in range(program.epochs):
                for batch in program.data:
                    program.step(program.state, batch)
                    steps += 1
        elif isinstance(program, Training):
            steps = _fit(program)
        return {"steps": steps}

    return train


def _fit(program: Training) -> int:
    """Fit a model; return the number of batches: its optimizer counts one more where the data end inside a function."""
    import keras

    ends = list[int]()
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
    callbacks = [*program.arguments.get("callbacks", []), counter]
    program.model.fit(program.data, epochs=program.epochs, verbose=0, **program.arguments | {"callbacks": callbacks})
    return len(ends)


def refuted_program(name: str) -> Program:
    """Return a program of `programs.refuted`."""
    framework = name.partition("_")[0]
    warm_up(framework)
    if framework in ("keras", "tensorflow"):  # what Keras imports when it trains first
        model, rows = keras_fits.network(1, 8), keras_fits.examples(1, 8)
        model.fit(rows, rows, verbose=0)
    return lambda folder, run: refuted.PROGRAMS[name].run()


def stranger(name: str, cause: dict[str, Any]) -> Program:
    """Return a program of `programs.strangers`, which runs as it does from a terminal."""

    def train(folder: Path, run: Any) -> dict[str, Any]:
        file = STRANGERS / f"{name}.py"
        os.environ["TRUTH_FILE"], sys.argv = str(folder / "truth.json"), [str(file)]
        runpy.run_path(str(file), run_name="__main__")
        seen = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
        counts = {"steps": seen["train_steps"], "evaluations": seen["evaluation_steps"]}
        if "not_words" in cause:  # what it wastes is not recorded, but something else was named
            return {**counts, "not_cause": {"accounts": [], "words": cause["not_words"]}}
        return {**counts, "cause": cause, "wasted_s": seen["wasted_s"]}

    return train


def _wastes() -> Iterator[tuple[str, Callable[[], Program]]]:
    for module in ("jax_loops", "keras_fits", "torch_loops"):
        importlib.import_module(f"programs.wastes.{module}")
    for name, each in wastes.PROGRAMS.items():
        yield name, partial(wasteful, name, repaired=False)
        if each.words:
            yield f"{name}_repaired", partial(wasteful, name, repaired=True)


def _trainers() -> Iterator[tuple[str, Callable[[], Program]]]:
    for name, program in trainers.PROGRAMS.items():
        if importlib.util.find_spec(program.package):
            for waste in ("none", *program.places):
                yield f"trainer_{name}_{waste}", partial(trainer, name, waste)


def _evaluated() -> Iterator[tuple[str, Callable[[], Program]]]:
    importlib.import_module("programs.libraries")
    for name, program in evaluated.PROGRAMS.items():
        if importlib.util.find_spec(program.package):
            yield f"evaluated_{name}", partial(evaluates, program.train)
            if place := trainers.LIBRARIES.get(name):
                yield f"evaluated_{name}_{place}", partial(evaluates, program.train, place)


def _strangers() -> Iterator[tuple[str, Callable[[], Program]]]:
    about = tomllib.loads((STRANGERS / "about.toml").read_text(encoding="utf-8"))
    return ((f"stranger_{name}", partial(stranger, name, cause)) for name, cause in about.items())


def _pages() -> Iterator[tuple[str, Callable[[], Program]]]:
    for module in ("jax_docs", "keras_io", "nnx_pages", "tensorflow_org", "torch_pages", "torch_trainers", "tutorials"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"programs.{module}")
    return ((f"page_{name}", partial(page, name)) for name in PAGES)


FAMILIES: dict[str, Callable[[], Iterable[tuple[str, Callable[[], Program]]]]] = {
    "": _wastes,
    "trainer": _trainers,
    "signs": lambda: ((f"signs_{name}", partial(sign, name, train)) for name, train in signs.PROGRAMS.items()),
    "refuted": lambda: ((f"refuted_{name}", partial(refuted_program, name)) for name in refuted.PROGRAMS),
    "evaluated": _evaluated,
    "stranger": _strangers,
    "page": _pages,
}
"""What makes the programs of the corpus, with the names of their entries, by what these begin with."""


def make(name: str) -> Program:
    """Return a program by the name of its entry; import no other family."""
    return dict(FAMILIES.get(name.partition("_")[0], _wastes)())[name]()


def record(name: str, corpus: Path) -> None:
    """Record a program in this process."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    match = re.match(r"trainer_(\w+)_[a-z]+$", name)
    os.environ["KERAS_BACKEND"] = trainers.PROGRAMS[match[1]].backend if match else "tensorflow"
    train = make(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder, run_folder = Path(temporary, "program"), Path(temporary, "run")
        folder.mkdir()
        begin_s = time.perf_counter()
        with tp.capture(run_folder, keep="none") as run:
            truth = train(folder, run)
        truth["wall_s"] = round(time.perf_counter() - begin_s, 3)
        windows = windows_s(run_folder)  # reduces those that the capture left
        truth = {key: value(windows) if callable(value) else value for key, value in truth.items()}
        with zipfile.ZipFile(corpus / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as entry:
            for file in sorted(path for path in run_folder.rglob("*") if path.is_file()):
                entry.write(file, file.relative_to(run_folder))
            entry.writestr("truth.json", json.dumps(truth, indent=1))


def main() -> None:
    """Record the programs that are asked for, each in a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", help="regular expression of names; all if left out")
    parser.add_argument("--folder", type=Path, default=CORPUS, help="where to write the entries")
    parser.add_argument("--missing", action="store_true", help="only those without an entry")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        record(options.program, options.folder)
        return
    options.folder.mkdir(exist_ok=True)
    recorded = []
    names = [name for family in FAMILIES.values() for name, _ in family()]
    for name in filter(re.compile(options.programs or "").match, names):
        entry = options.folder / f"{name}.zip"
        if options.missing and entry.exists():
            continue
        command = [sys.executable, __file__, "--program", name, "--folder", str(options.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            recorded.append(entry)
        print(f"{name}: {entry.stat().st_size if done.returncode == 0 else done.stderr[-400:]}", flush=True)
    print(json.dumps({"entries": len(recorded), "bytes": sum(entry.stat().st_size for entry in recorded)}))


if __name__ == "__main__":
    main()
