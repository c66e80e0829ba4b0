"""Compare what a capture finds in unchanged trainers with what these measure themselves.

``python benchmarks/trainers.py [--quick] [--programs plain_jax,nnx_grain,...] [--steps N] [--pairs N]``: each program
of ``programs/trainers`` runs in a process of its own, without waste and with a waste in each of four places: data,
hook, save and read. It does not import the capture, and writes the number of its steps by the trainer's counter and the
time that it wastes. The least account of the runs without waste is what the program spends itself. The loops of
``pipelined.py`` run ahead of their device, marked in several ways, beside twins that wait in each step. ``--step-s``
adds computation to each step. Other programs on the machine add to every account. Trainings of libraries, of
``programs/libraries``, count their steps and evaluated batches, too, and run without waste and with one of four.
``--quick`` runs JAX, NNX with Grain, and PyTorch, with a waste in one or two places each, in under 50 seconds on two
idle processors. ``--latest`` installs the newest releases of the libraries whose attributes a capture wraps, each
beside this environment, and prints which of them no longer fit. The last line is one JSON object:

``steps``
    Share of the true steps of kind "train" found, in the worst run: 1.0 if all are, and none too many.
``worst_account``
    Largest |measured - injected| as a share of wall time: of data in "data loading", of a hook or a read in "callbacks"
    and "program code", of saves in "checkpoint save". Data of a generator of the program count as "program code",
    too.
``named``
    Share of the injected wastes that the verdict's first sentence names: the account, and the callback, or file and
    line where Python wastes the time in the thread that trains. Wastes count that take a tenth of wall time, and longer
    than any account outside of steps, such as the compilation of the program.
``trainers``
    How many programs have run, those of libraries with them.
``evaluations``
    Share of the batches that libraries evaluate which are found, in the worst run.
``overhead``
    Median step time of a captured run divided by that of a plain one, of 400 steps or more each, 120 with ``--quick``,
    in the worst program; the program measures both. In the first seconds of a run, windows may take a tenth of it, by
    the schedule's default.
``own``
    Largest difference, as a share of wall time, between what a trainer logs itself and what is found: Hugging Face's
    ``train_runtime``, the epoch of Lightning's profiler and Keras' ``ms/step`` of all steps against the time from the
    first step to the end of the last, the waits for input of Lightning's profiler against the account.
``pipelined``
    Largest difference between a loop that runs ahead and its twin in the share of wall time that is in steps:
    "productive" plus "step time deviation", of wall time without "profiler". Which of the two a slower step counts as
    depends on other programs. Windows follow one another, so that work is often launched in one and done in another.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import tpunb as tp
from programs import evaluated
from programs.trainers import PLACES, PRODUCTS, pipelined, product
from tpunb import instrument
from tpunb.analysis.verdict import verdict


class Program(NamedTuple):
    """A program of ``programs/trainers``, and where it wastes time."""

    package: str  # that it needs
    backend: str = "tensorflow"  # of Keras
    places: tuple[str, ...] = PLACES
    generates: bool = False  # its batches come of a generator, which no capture can tell from other code


PROGRAMS = {
    "plain_jax": Program("jax", generates=True),
    "nnx_grain": Program("flax"),
    "plain_torch": Program("torch"),
    "torch_workers": Program("torch"),
    "keras_jax": Program("keras", "jax"),
    "keras_tensorflow": Program("tensorflow", places=("hook", "save", "read")),  # data are made beside the steps
    "hugging_face": Program("transformers"),
    "lightning_fit": Program("lightning"),
}
LIBRARIES = {
    **{"accelerate_loop": "save", "fabric_loop": "sync", "fastai_cycle": "data", "ignite_engines": "log"},
    **{"skorch_classifier": "sync", "graphs": "save", "compiled_model": "data", "ppo": "log", "dqn": "log"},
    **{"sentence_embeddings": "save", "adapter": "log", "fine_tuning": "sync", "preferences": "save", "rewards": "log"},
    **{"keras_on_torch": "log", "equinox_steps": "sync", "haiku_state": "data", "linen_epochs": "log"},
    **{"scanned_epochs": "save", "tunix_trainer": "log", "levanter_trainer": "sync", "orbit_controller": "save"},
    **{"timm_script": "save", "torchvision_reference": "log", "ultralytics_detector": "log"},
    **{"deepspeed_engine": "save"},
}
"""Programs of ``programs/libraries``, and what each wastes."""
QUICK = {"plain_jax": ("hook", "save"), "plain_torch": ("data", "save"), "nnx_grain": ("data",)}
"""Programs, and places in them, of the quick run."""

ACCOUNTS = {
    "data": ("data loading",),
    "hook": ("callbacks", "program code"),
    "save": ("checkpoint save",),
    "read": ("program code", "callbacks"),
    "log": ("program code", "callbacks"),
    "sync": ("program code", "callbacks"),
}
PAIR_STEPS = {False: 400, True: 120}  # at least, of a run whose step times are compared; by whether it is quick
LEAST_SHARE = 0.12  # of wall time that a waste takes, to count as one that is to be named


def accounts(name: str, place: str) -> tuple[str, ...]:
    """Return the accounts that a waste of a program belongs to."""
    return (*ACCOUNTS[place], *["program code"] * (place == "data" and PROGRAMS[name].generates))


class Captured(NamedTuple):
    """A captured run of a program: what was found, and the truth."""

    name: str
    truth: dict[str, Any]
    steps: int
    goodput: tp.analysis.Goodput
    verdict: str
    account: str | None
    own_s: dict[str, float]

    def seconds(self, place: str) -> float:
        """Return the time of the accounts that a place belongs to."""
        return sum(self.goodput.time_ps(account) for account in accounts(self.name, place)) / 1e12

    @property
    def own_error(self) -> float:
        """Return the largest difference from what the trainer itself logs, as a share of wall time."""
        return max((abs(self.own_s[each] - s) for each, s in self.truth["own_s"].items()), default=0.0) / self.wall_s

    @property
    def wall_s(self) -> float:
        """Return the wall time."""
        return self.goodput.wall_ps / 1e12

    def is_due(self, place: str) -> bool:
        """Return whether the waste of a place is what the verdict has to name."""
        injected_s, wall_s = self.truth["injected_s"][place], self.goodput.wall_ps / 1e12
        others = {*tp.schema.ACCOUNTS} - {"productive", *accounts(self.name, place)}
        most_s = max(self.goodput.time_ps(account) / 1e12 for account in others)
        return bool(injected_s >= max(LEAST_SHARE * wall_s, most_s))

    def names(self, place: str) -> bool:
        """Return whether the first sentence of the verdict names the waste of a place."""
        first = self.verdict.split(". ")[0]
        if self.account not in accounts(self.name, place):
            return False
        if self.account == "callbacks" and "mostly Hooks." in first:
            return True
        lines = self.truth["lines"].get(place) if place != "save" else None
        at = [(file, int(number)) for file, number in _PLACE.findall(first)]
        return lines is None or any(
            found == file and begin <= number <= end for found, number in at for file, begin, end in lines
        )


_PLACE = re.compile(r"(\w+\.py):(\d+) ")


def run_program(name: str, waste: str, steps: int, folder: Path) -> dict[str, Any]:
    """Run a program in this process, and return its truth."""
    folder.mkdir(parents=True)
    module = importlib.import_module(f"programs.trainers.{name}")
    module.main(["--waste", waste, "--steps", str(steps), "--folder", str(folder)])
    return dict(json.loads((folder / "truth.json").read_text()))


def captured(name: str, waste: str, steps: int, folder: Path) -> Captured:
    """Capture a run of a program."""
    with tp.capture(folder / "run", keep="none"):
        truth = run_program(name, waste, steps, folder / "program")
    profile = tp.load(folder / "run")
    found = tp.steps(profile)
    sentence = verdict(tp.phases(found))
    frame, goodput = found.frame.filter(kind="train"), tp.goodput(profile)
    span_ps = (frame["start_ps"] + frame["dur_ps"]).max() - frame["start_ps"].min()
    own_s = {"training": span_ps / 1e12, "input": goodput.time_ps("data loading") / 1e12}
    return Captured(name, truth, frame.height, goodput, str(sentence), sentence and sentence.account, own_s)


def measure(name: str, steps: int, pairs: int, places: tuple[str, ...], *, quick: bool) -> dict[str, Any]:
    """Run one program in this process with each waste, print what is found, and return its figures."""
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        run_program(name, "none", 3, top / "first")  # imports, and compiles
        wasted = {place: captured(name, place, steps, top / place) for place in places}
        clean, ratios = [], []
        long = max(steps, PAIR_STEPS[quick]) if pairs and PRODUCTS not in os.environ else steps
        for number in range(max(1, pairs)):
            plain = run_program(name, "none", long, top / f"plain-{number}a") if number % 2 and pairs else None
            clean.append(captured(name, "none", long, top / f"captured-{number}"))
            if pairs:
                plain = plain or run_program(name, "none", long, top / f"plain-{number}b")
                ratios.append(statistics.median(clean[-1].truth["step_s"]) / statistics.median(plain["step_s"]))
    runs = [*wasted.values(), *clean]
    shares = [1 - abs(run.steps - run.truth["steps"]) / run.truth["steps"] for run in runs]
    step_ms = 1e3 * statistics.median(each for run in clean for each in run.truth["step_s"])
    print(
        f"{name}: steps of {step_ms:.0f} ms, found "
        + ", ".join(f"{run.steps} of {run.truth['steps']}" for run in runs)
        + "; step times, captured / plain: "
        + ", ".join(f"{ratio:.3f}" for ratio in ratios)
    )
    for run in runs if clean[0].truth["own_s"] else ():
        theirs, ours = ({key: round(s[key], 4) for key in run.truth["own_s"]} for s in (run.truth["own_s"], run.own_s))
        print(f"  its own log in seconds: {theirs}, of tpunb: {ours}, {100 * run.own_error:.1f} % of wall time apart")
    errors, named = {}, {}
    for place, run in wasted.items():
        wall_s, injected_s = run.goodput.wall_ps / 1e12, run.truth["injected_s"][place]
        itself_s = min(each.seconds(place) - each.truth["injected_s"][place] for each in clean) * steps / long
        errors[place] = abs(run.seconds(place) - injected_s - itself_s) / wall_s
        if run.is_due(place):
            named[place] = run.names(place)
        mark = {True: "named", False: "not named", None: "not the longest"}[named.get(place)]
        print(
            f"  {place:5} wall {wall_s:5.2f} s, injected {injected_s:6.3f} s, measured {run.seconds(place):6.3f} s, "
            f"without waste {itself_s:6.3f} s, error {100 * errors[place]:4.1f} %; {mark}: {run.verdict}"
        )
    return {
        "steps": min(shares),
        "worst_account": max(errors.values(), default=0.0),
        "named": [*named.values()],
        "overhead": statistics.median(ratios) if ratios else None,
        "own": max(run.own_error for run in runs),
    }


def measure_library(name: str, place: str) -> dict[str, Any]:
    """Run a training of a library in this process, without waste and with it, and return its figures."""
    importlib.import_module("programs.libraries")
    train, waste = evaluated.PROGRAMS[name].train, evaluated.WASTE
    lines, begin = inspect.getsourcelines(evaluated.Waste)
    with tempfile.TemporaryDirectory() as temporary:
        waste.folder = Path(temporary)

        def run(folder: str) -> Path:
            path = waste.folder / folder
            path.mkdir()
            return path

        train(run("first"))  # imports, and compiles
        shares: dict[str, list[float]] = {"train": [], "eval": []}
        for waste.place in ("", place):
            waste.seconds, folder = 0.0, run(f"with-{waste.place}")
            with tp.capture(folder / "run", keep="none"):
                truth = train(folder)
            profile = tp.load(folder / "run")
            steps = tp.steps(profile)
            for kind, count in truth.items():
                shares[kind].append(1 - abs(steps.frame.filter(kind=kind).height - count) / max(count, 1))
            sentence, goodput = verdict(tp.phases(steps)), tp.goodput(profile)
            print(f"{name} {waste.place or 'without'}: {shares}, {waste.seconds:.2f} s: {sentence}", flush=True)
    # a save by another library than one for checkpoints is code of the program
    wall_s, among = goodput.wall_ps / 1e12, (*ACCOUNTS[place], *["program code"] * (place in ("data", "save")))
    due = waste.seconds >= LEAST_SHARE * wall_s
    first = str(sentence).split(". ")[0]
    places = [int(line) for file, line in _PLACE.findall(first) if file == "evaluated.py"]
    is_there = any(begin <= line < begin + len(lines) for line in places) or place in ("data", "save")
    named = bool(sentence and sentence.account in among and is_there)
    answer = "named" if named else "not named" if due else "too little"
    print(f"  {place}: {waste.seconds:.2f} of {wall_s:.2f} s; {answer}")
    return {
        "steps": min(shares["train"]),
        "evaluations": min(shares["eval"], default=1.0),
        "named": [named] * due,
        "overhead": None,
    }


def pipelines(framework: str, steps: int, *, brief: bool) -> dict[str, Any]:
    """Run the loops of one framework, print their productive shares, and return the largest difference."""

    def share(mark: str, read: int, folder: Path, *, waits: bool = False) -> tuple[float, int]:
        with tp.capture(folder, schedule=tp.Schedule.continuous(window=0.3), keep="none") as run:
            pipelined.train(parts, steps, run, mark, read, waits=waits)
        profile = tp.load(folder)
        goodput = tp.goodput(profile)
        in_steps_ps = goodput.time_ps("productive") + goodput.time_ps("step time deviation")
        return in_steps_ps / (goodput.wall_ps - goodput.time_ps("profiler")), tp.steps(profile).frame.filter(
            kind="train"
        ).height

    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        parts = pipelined.calibrated(pipelined.FRAMEWORKS[framework])
        share("read", 1, top / "first")
        twin = statistics.median(share("read", 0, top / f"twin{n}", waits=True)[0] for n in range(1 if brief else 3))
        print(f"{framework}: {100 * twin:.1f} % in steps where each is waited for")
        worst, found = 0.0, 1.0
        for mark in ("none", "read") if brief else pipelined.MARKS:
            if mark == "annotation" and framework == "torch":
                continue
            line = []
            for read, every in pipelined.READS.items():
                if brief and read == "tenth":
                    continue
                productive, count = share(mark, every, top / f"{mark}-{read}")
                worst, found = max(worst, abs(productive - twin)), min(found, 1 - abs(count - steps) / steps)
                line.append(f"{read} {100 * productive:.1f} % ({count} of {steps})")
            print(f"  marks {mark}, loss read {', '.join(line)}")
    return {"pipelined": worst, "steps": found}


CHECK = """
import json, sys
from contextlib import suppress
from importlib import import_module, metadata
import tpunb as tp
from tpunb import instrument
library = next(each.LIBRARY for each in instrument.LIBRARIES if each.LIBRARY.package == sys.argv[1])
with tp.capture(None, schedule=tp.Schedule.ticks()):
    import_module(library.name)
    for attribute in library.attributes:
        with suppress(ImportError):
            import_module(attribute.home)
    print(json.dumps([metadata.version(library.package), len(library.attributes), library.misfits()]))
"""
"""What prints the version of a library, how many of its attributes are wrapped, and those that no longer fit."""


def checked(package: str, install: Sequence[str]) -> tuple[list[Any] | None, str]:
    """Return what `CHECK` prints of a newest release, or None and why not."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", folder, *install]
        path = os.pathsep.join([folder, str(Path(__file__).parents[1])])
        for command in (pip, [sys.executable, "-c", CHECK, package]):
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                return None, done.stderr.strip().rpartition("\n")[2][:160]
    return json.loads(done.stdout.splitlines()[-1]), ""


def latest(packages: Sequence[str]) -> dict[str, Any]:
    """Install the newest release of each library beside this environment, print what of it no longer fits, and sum."""
    table, unfit = list[tuple[str, ...]](), 0
    for package in packages:
        names = [package, *["jaxlib"] * (package == "jax")]
        for options in (["--no-deps"], []):  # with this environment's, if that suffices
            answer, error = checked(package, [*options, *names])
            if answer:
                break
        version, attributes, lines = answer or ("?", "?", [error])
        unfit += len(lines) if answer else 0
        table.append((package, version, str(attributes), "; ".join(lines) or "all fit"))
        print("  ".join(table[-1]), flush=True)
    failed = [row[0] for row in table if row[1] == "?"]
    return {"libraries": len(table), "unfit": unfit, "failed": failed}


def isolated(*arguments: str, backend: str = "tensorflow") -> dict[str, Any]:
    """Run a part in a fresh process, and return its figures."""
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    *shown, last = done.stdout.splitlines()
    print("\n".join(shown), flush=True)
    return dict(json.loads(last))


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a place or two in each of three trainers, and pipelined loops in JAX"
    )
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--steps", type=int, help="of each run")
    parser.add_argument("--pairs", type=int, help="of a captured and a plain run")
    parser.add_argument("--step-s", type=float, help="seconds of computation that are added to each step")
    parser.add_argument("--frameworks", default=",".join(pipelined.FRAMEWORKS), help="of the pipelined loops")
    parser.add_argument("--places", default=",".join(PLACES), help="of the wastes")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="names, separated by commas")
    parser.add_argument(
        "--latest",
        nargs="?",
        const="all",
        metavar="PACKAGES",
        help="try the newest releases of what is wrapped, instead",
    )
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--framework", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    steps = options.steps or (40 if options.quick else 200)
    pairs = (1 if options.quick else 5) if options.pairs is None else options.pairs
    if options.step_s:
        os.environ[PRODUCTS] = str(round(options.step_s / min(timeit.repeat(lambda: product(100), number=1)) * 100))
    if options.latest:
        packages = [each.LIBRARY.package for each in instrument.LIBRARIES if each.LIBRARY.package != "python"]
        print(json.dumps(latest(packages if options.latest == "all" else options.latest.split(","))))
        return
    if options.program:
        places = tuple(place for place in options.places.split(",") if place in PROGRAMS[options.program].places)
        print(json.dumps(measure(options.program, steps, pairs, places, quick=options.quick)))
        return
    if options.library:
        print(json.dumps(measure_library(options.library, LIBRARIES[options.library])))
        return
    if options.framework:
        print(json.dumps(pipelines(options.framework, steps, brief=options.quick)))
        return
    quick = ["--quick"] * options.quick
    chosen = QUICK if options.quick else dict.fromkeys(options.programs.split(","), options.places.split(","))
    chosen.pop("", None)
    importlib.import_module("programs.libraries")
    packages = {name: each.package for name, each in [*PROGRAMS.items(), *evaluated.PROGRAMS.items()]}
    libraries = [] if options.quick else [name for name in options.libraries.split(",") if name]
    missing = [name for name in (*chosen, *libraries) if importlib.util.find_spec(packages[name]) is None]
    sizes = ["--steps", str(steps), "--pairs", str(pairs), *quick]
    done = [
        isolated("--program", name, "--places", ",".join(places), *sizes, backend=PROGRAMS[name].backend)
        for name, places in chosen.items()
        if name not in missing
    ]
    done += [
        isolated("--library", name, backend="torch" if name == "keras_on_torch" else "jax")
        for name in libraries
        if name not in missing
    ]
    frameworks = "jax" if options.quick else options.frameworks
    ahead = [isolated("--framework", name, "--steps", "40", *quick) for name in frameworks.split(",") if name]
    if options.quick:
        others = ", ".join(name for name in PROGRAMS if name not in chosen)
        print(f"left out: {others}; libraries; marks and reads of pipelined")
    if missing:
        print(f"left out, as a package is missing: {', '.join(missing)}")
    named = [each for one in done for each in one["named"]]
    last = {
        "trainers": len(done),
        "steps": round(min(each["steps"] for each in [*done, *ahead]), 4),
        "evaluations": round(min(each.get("evaluations", 1.0) for each in done), 4),
        "worst_account": round(max(each.get("worst_account", 0.0) for each in done), 3),
        "named": round(sum(named) / max(1, len(named)), 3),
        "overhead": max((round(each["overhead"], 3) for each in done if each["overhead"]), default=None),
        "own": round(max(each.get("own", 0.0) for each in done), 3),
        "pipelined": round(max((each["pipelined"] for each in ahead), default=0.0), 3),
    }
    print(json.dumps(last))


if __name__ == "__main__":
    main()
