"""Kill, resume and tune programs after public pages, and compare with the runs that were left alone, bit for bit.

``python benchmarks/exactness.py [--quick] [--programs a,b] [--jobs N] [--seed N]``: the programs of ``programs/``, each
run in processes of its own, forked from a parent that has imported the frameworks and run nothing. One process trains
to the end and saves checkpoints; one continues from the first of them, saves too, and is killed (SIGKILL) at a random
step; a third continues from the last that is left. Final variables and the history, or the losses of a loop, are
compared with those of the first. Programs on tf.data and ``fit`` are also trained with the same seed as they are, with
``tp.tuning.tuned``, and with another value for each parameter that tuning calls safe. ``--quick`` runs 8 programs, two
of them tuned, in under three minutes. The last line is one JSON object:

``resume``
    Number of programs that are identical; refused, because their checkpoints are listed as inexact; unrepeatable, whose
    runs with one seed differ without this package too; silent, which were called exact and differ; and crashed.
``tune``
    Number of programs that are faster, with other values; changed, whose result differs; and crashed.
``torch``
    As ``resume``, of the programs on PyTorch, which ``resume`` does not count; those of Hugging Face and Lightning are
    left out if these are not installed.
``nnx``
    As ``resume``, of the loops of Flax NNX, which are not in it.
``refused_identical``
    Number of programs that are refused, and whose first checkpoint resumes identically with ``exact=False``.
``cost_1gb``
    Time of a fit over 1 GB of arrays with ``tp.checkpointing``, divided by its time without; null with ``--quick``.
``save_mb``, ``save_s``
    Size and seconds of a checkpoint of ``shuffle(10_000)`` of images of 49 KB; null with ``--quick``.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import numpy as np

import tpunb as tp
from programs import PROGRAMS, Loop, Program, Script, Steps, Training

QUICK = ("quickstart_beginner", "load_text", "imbalanced_data", "dcgan_train_step")
QUICK += ("mlp_core", "data_performance", "jax_neural_network", "image_classification")
QUICK_TUNED = ("load_text", "image_classification")
EVERY = 3  # steps from one checkpoint to the next
LIMIT_S = 300  # of one process
IDENTICAL = "identical if it need not be exact: "
REPEATS = 10  # runs that show whether a program repeats itself, if it differs from another run


class Result(NamedTuple):
    """What a process of a program left."""

    arrays: list[Any]  # final state
    history: dict[str, list[float]]  # by epoch, or the losses of a loop by step
    note: str = ""  # what the package said
    refused: bool = False
    operations: str = ""
    faster: bool = False


class Outcome(NamedTuple):
    """What became of a program."""

    name: str
    resume: str
    reason: str
    tune: str = "-"
    tune_reason: str = ""


# -- one process ---------------------------------------------------------------------------------------------


def killed_after(step: int | None) -> Callable[[], None]:
    """Return a function that kills this process when it was called `step` times."""
    calls = iter(range(1, 1 << 30))

    def count() -> None:
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def fitted(training: Training, count: Callable[[], None]) -> Result:
    """Train; return the final variables and the history."""
    import keras

    original = keras.callbacks.CallbackList.on_train_batch_end

    def end(callbacks: Any, batch: int, logs: Any = None) -> None:
        original(callbacks, batch, logs)
        count()

    keras.callbacks.CallbackList.on_train_batch_end = end
    model, data = training.model, training.data
    data = data if isinstance(data, tuple) else (data,)
    history = model.fit(*data, epochs=training.epochs, verbose=0, **training.arguments).history
    optimizer = [] if model.optimizer is None else model.optimizer.variables
    state = [np.asarray(keras.ops.convert_to_numpy(each)) for each in (*model.variables, *optimizer)]
    return Result(state, {name: [float(np.sum(each)) for each in values] for name, values in history.items()})


def looped(loop: Loop, folder: Path | None, start: Any, count: Callable[[], None], exact: bool = True) -> Result:
    """Run a loop that saves its parts; return them at its end, and the losses."""
    parts, losses, begin = loop.parts, list[float](), 0
    if start is not None:
        parts |= tp.checkpoint.restore(start, exact=exact, **parts)
        begin = start.step
    for step in range(begin, loop.steps):
        losses.append(float(loop.step(parts)))
        if folder is not None and (step + 1) % EVERY == 0:
            tp.checkpoint.save(folder, step + 1, **parts)
        count()
    return Result([array for part in parts.values() for array in arrays_of(part)], {"loss": losses})


def scripted(script: Script, count: Callable[[], None]) -> Result:
    """Train by a script of PyTorch; return the states of its parts, and the losses."""
    losses = list[float]()

    def step(loss: float) -> None:
        losses.append(loss)
        count()

    parts = script.train(step)
    states = [part.state_dict() if hasattr(part, "state_dict") else part for part in parts]
    return Result([array for state in states for array in tensors_of(state)], {"loss": losses})


def tensors_of(state: Any) -> Iterator[Any]:
    """Yield the tensors and numbers in a state of PyTorch."""
    if isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors_of(part)
    elif hasattr(state, "detach"):
        yield np.asarray(state.detach())
    elif isinstance(state, int | float):
        yield np.asarray(state)


def stepped(made: Steps, count: Callable[[], None]) -> Result:
    """Run a loop over the batches that are saved; return its state at the end, and the losses."""
    losses = []
    for _ in range(made.epochs):
        for batch in tp.testing.null_run.batches(made.data, state=made.state):
            losses.append(float(made.step(made.state, batch)))
            count()
    return Result([array for part in made.state.values() for array in arrays_of(part)], {"loss": losses})


def arrays_of(part: Any) -> Iterator[Any]:
    """Yield the arrays in a part of a loop; iterators have none."""
    if type(part).__module__.startswith(("flax", "programs.nnx")):
        import jax
        from flax import nnx

        every = jax.tree.leaves(nnx.state(part))
        yield from (
            np.asarray(jax.random.key_data(each) if each.dtype.name.startswith("key") else each) for each in every
        )
        return
    if hasattr(part, "__next__") or hasattr(part, "get_state"):
        return
    variables = getattr(part, "variables", [part] if hasattr(part, "assign") else None)
    if variables is None and hasattr(getattr(part, "state", None), "assign"):
        variables = [part.state]  # of a seed generator
    if variables is not None:
        yield from (np.asarray(each) for each in variables)
        return
    import jax

    yield from (np.asarray(each) for each in jax.tree.leaves(part))


def operations_of(data: Any) -> str:
    """Return the sequence of operations of a dataset."""
    from tpunb.tfdata.graph import graph_or_none
    from tpunb.tfdata.stages import stages

    graph = graph_or_none(data)
    return "" if graph is None else " ".join(each.kind for each in stages(graph) if each.kind != "options")


def saving_run(program: Program, folder: Path, to: str, start: Any, kill: int | None, exact: bool = True) -> Result:
    """Run a program that saves to a folder, from a checkpoint if one is given, and is killed after some steps."""
    made, count, resumed = program.make(folder), killed_after(kill), None
    if isinstance(made, Loop):
        result = looped(made, folder / to, start, count, exact)
        batches = made.parts.get("batches")
        data = getattr(batches, "_dataset", None)
    elif isinstance(made, Script):
        data = None
        with ExitStack() as stack:
            if start is not None:
                resumed = stack.enter_context(tp.resume(start))
            stack.enter_context(tp.checkpointing(folder / to, every=EVERY))
            result = scripted(made, count)
    else:
        data = made.data
        with ExitStack() as stack:
            if start is not None:
                resumed = stack.enter_context(tp.resume(start, exact=exact))
            stack.enter_context(tp.checkpointing(folder / to, every=EVERY))
            result = stepped(made, count) if isinstance(made, Steps) else fitted(made, count)
    operations = operations_of(data) if hasattr(data, "element_spec") else ""
    return result._replace(note="" if resumed is None else str(resumed), operations=operations)


def tuned_run(program: Program, folder: Path, tuned: bool, budget: float) -> Result:
    """Run a program with a seed, tuned or not."""
    import keras

    keras.utils.set_random_seed(7)
    made = program.make(folder)
    assert isinstance(made, Training)
    with tp.tuning.tuned(budget=budget) if tuned else nullcontext() as online:
        result = fitted(made, killed_after(None))
    return result if online is None else result._replace(note=online.headline, faster=bool(online.values))


def changed_run(program: Program, folder: Path) -> Result:
    """Run a program with a seed, and with another value for each parameter that tuning calls safe."""
    import keras

    from tpunb.tuning.pipeline import Pipeline

    keras.utils.set_random_seed(7)
    made = program.make(folder)
    assert isinstance(made, Training)
    safe = [each for each in Pipeline(made.data).parameters if each.verdict == "safe"]
    values = {each.name: other[-1] for each in safe if (other := [one for one in each.domain if one != each.current])}
    result = fitted(replace(made, data=tp.tuning.Tuning((), values).apply(made.data)), killed_after(None))
    return result._replace(note=f"{len(values)} safe parameters changed", faster=bool(values))


# -- forks ---------------------------------------------------------------------------------------------------


def forked(folder: Path, name: str, run: Callable[..., Result], *args: Any) -> Result | str | None:
    """Return the result of a function in a forked process; its error as text, or None if it was killed."""
    file, log = folder / f"{name}.pickle", folder / f"{name}.log"
    if not (process := os.fork()):
        try:
            signal.alarm(LIMIT_S)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            random.seed(7)  # the seed of Keras' initial values; each page decides on the others
            warnings.simplefilter("ignore")
            try:
                result: Any = run(*args)
            except tp.TpunbError as error:
                result = Result([], {}, f"{type(error).__name__}: {error}", refused=True)
            except BaseException as error:  # noqa: BLE001  the process ends
                traceback.print_exc()
                result = f"{type(error).__name__}: {error}".partition("\n")[0]
            file.write_bytes(pickle.dumps(result))
        except BaseException:  # noqa: BLE001  the process ends
            traceback.print_exc()
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status == -signal.SIGALRM:
        return f"no end after {LIMIT_S} s"
    return pickle.loads(file.read_bytes()) if file.exists() else None if status == -signal.SIGKILL else f"exit {status}"


def same(whole: Result, later: Result) -> str:
    """Return what differs in a resumed run, or ""."""
    for at, (a, b) in enumerate(zip(whole.arrays, later.arrays, strict=True)):
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            return f"variable {at} of {len(whole.arrays)} differs"
    for name, values in later.history.items():
        if name.startswith("val_") and "results of validation may differ" in later.note:
            continue
        if not np.array_equal(whole.history[name][len(whole.history[name]) - len(values) :], values, equal_nan=True):
            return f"the history of {name} differs"
    return ""


def inexact_in(found: Any) -> str:
    """Return why one of some checkpoints is not exact, or ""; a loop may have no data."""
    return next((each.reason for each in found if not each.exact and not each.reason.startswith("no iterator")), "")


def resumed(program: Program, folder: Path, dice: random.Random) -> tuple[str, str]:
    """Save, kill and resume a program; return the outcome and its reason."""
    whole = forked(folder, "whole", saving_run, program, folder, "whole", None, None)
    if not isinstance(whole, Result) or whole.refused:
        return "crashed", f"saving: {whole}"
    is_given = program.operations.startswith(("fit ", "nnx"))
    if whole.operations and not is_given and whole.operations != program.operations:
        return "crashed", f"its operations are {whole.operations}"
    saved = tp.checkpoints(folder / "whole")
    if inexact := inexact_in(saved):
        later = forked(folder, "inexact", saving_run, program, folder, "inexact", saved[0], None, False)
        identical = isinstance(later, Result) and not later.refused and not same(whole, later)
        return "refused", f"{IDENTICAL if identical else ''}{inexact}"
    first, last = saved[0], saved[-1]
    kill = dice.randrange(1, max(2, (last.step or 0) - (first.step or 0) + 1))
    killed = forked(folder, "killed", saving_run, program, folder, "killed", first, kill)
    if killed is not None:
        return ("refused", killed.note) if isinstance(killed, Result) and killed.refused else ("crashed", f"{killed}")
    left = tp.checkpoints(folder / "killed") if (folder / "killed").exists() else ()
    if inexact := inexact_in(left):
        return "refused", inexact
    start = left[-1] if left else first
    later = forked(folder, "resumed", saving_run, program, folder, "resumed", start, None)
    if not isinstance(later, Result):
        return "crashed", f"resuming: {later}"
    if later.refused:
        return "refused", later.note
    where = f"killed after step {(first.step or 0) + kill}, resumed at {start.step}"
    differs = same(whole, later)
    if differs and "tune" in program.tags and not repeats(program, folder):
        return "unrepeatable", f"{differs}, as without this package; {where}; {later.note}"
    return "silent" if differs else "identical", "; ".join(filter(None, (differs, where, later.note)))


def repeats(program: Program, folder: Path) -> bool:
    """Return whether runs of a program with a seed, without this package, are the same.

    TensorFlow sums a loss by several threads: its last bit may differ in one run of five.
    """
    first, *others = (forked(folder, "plain", tuned_run, program, folder, False, 0.0) for _ in range(REPEATS))
    return isinstance(first, Result) and all(isinstance(each, Result) and not same(first, each) for each in others)


def tuned(program: Program, folder: Path, budget: float) -> tuple[str, str]:
    """Train a program with and without tuning; return the outcome and its reason."""
    plain = forked(folder, "plain", tuned_run, program, folder, False, budget)
    if not isinstance(plain, Result):
        return "crashed", f"without tuning: {plain}"
    result = forked(folder, "tuned", tuned_run, program, folder, True, budget)
    if not isinstance(result, Result):
        return "crashed", f"{result}"
    changed = forked(folder, "changed", changed_run, program, folder)
    if not isinstance(changed, Result):
        return "crashed", f"with other values: {changed}"
    note = f"{result.note} {changed.note}"
    if differs := same(plain, result) or (not changed.refused and same(plain, changed)):
        if not repeats(program, folder):
            return "unrepeatable", f"{differs}, as without this package. {note}"
        return "changed", f"{differs}; {note}"
    return "faster" if result.faster else "unchanged", note


def measured(name: str, top: Path, seed: int, *, with_tuning: bool, budget: float) -> Outcome:
    """Return the outcome of a program."""
    program, folder = PROGRAMS[name], top / name
    folder.mkdir(parents=True)
    outcome = Outcome(name, *resumed(program, folder, random.Random(f"{seed} {name}")))
    if with_tuning and "tune" in program.tags:
        outcome = outcome._replace(**dict(zip(("tune", "tune_reason"), tuned(program, folder, budget), strict=True)))
    for path in (folder / "whole", folder / "killed", folder / "resumed"):
        shutil.rmtree(path, ignore_errors=True)
    (folder / "outcome.json").write_text(json.dumps(outcome))
    return outcome


def all_measured(names: list[str], top: Path, options: argparse.Namespace) -> list[Outcome]:
    """Return the outcomes of programs, several of which run at a time; print each when it is known."""
    running, todo, done = dict[int, str](), list(reversed(names)), list[Outcome]()
    while todo or running:
        while todo and len(running) < options.jobs:
            name = todo.pop()
            if not (process := os.fork()):
                try:
                    tuning = not options.quick or name in QUICK_TUNED
                    measured(name, top, options.seed, with_tuning=tuning, budget=options.budget)
                except BaseException:  # noqa: BLE001  the process ends
                    traceback.print_exc()
                finally:
                    os._exit(0)
            running[process] = name
        name = running.pop(os.wait()[0])
        file = top / name / "outcome.json"
        outcome = Outcome(*json.loads(file.read_text())) if file.exists() else Outcome(name, "crashed", "the benchmark")
        done.append(outcome)
        print(f"{name}: {outcome.resume}: {outcome.reason}", flush=True)
        if outcome.tune != "-":
            print(f"{name}: tuning: {outcome.tune}: {outcome.tune_reason}", flush=True)
    return done


# -- cost ----------------------------------------------------------------------------------------------------


def cost(gigabytes: float, folder: Path) -> Result:
    """Measure the time of a fit over arrays with checkpoints, and one save of a large shuffle."""
    import keras
    import tensorflow as tf

    def fit(where: Path | None) -> float:
        x = np.zeros((int(gigabytes * 2**30 / 4096), 1024), "float32")
        model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x[:64], x[:64, :1], verbose=0)
        begun = time.perf_counter()
        with nullcontext() if where is None else tp.checkpointing(where):
            model.fit(x, x[:, :1], batch_size=1024, verbose=0)
        return time.perf_counter() - begun

    def ratio(turn: int) -> float:
        if turn % 2:
            return fit(folder / str(turn)) / fit(None)
        return 1 / (fit(None) / fit(folder / str(turn)))

    ratios = [ratio(turn) for turn in range(8)][1:]  # what is done once in a process is in the first
    pictures = tf.constant(np.random.default_rng(0).integers(0, 255, (64, 128, 128, 3), "uint8"))
    data = tf.data.Dataset.range(20_000).map(lambda at: (pictures[at % 64], 0)).shuffle(10_000).batch(8)
    model = keras.Sequential([keras.Input((128, 128, 3)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with tp.checkpointing(folder / "shuffle", every=5) as saving:
        model.fit(data.take(8), verbose=0)
    size, seconds = saving.saved[0].size / 2**20, saving.seconds / len(saving.saved)
    return Result([np.median(ratios), size, seconds], {})


# -- the benchmark -------------------------------------------------------------------------------------------


def main() -> None:
    """Print a line per program, and the counts over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 programs, two of them tuned")
    parser.add_argument("--programs", help="names, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="programs that run at a time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the steps at which programs are killed")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of tuning")
    parser.add_argument("--keep", type=Path, help="folder to keep the logs in")
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    import_all()
    names = options.programs.split(",") if options.programs else list(QUICK if options.quick else PROGRAMS)
    if options.quick:
        print(f"quick: left out: {', '.join(sorted({*PROGRAMS} - {*names}))}; cost_1gb, save_mb, save_s")
    with tempfile.TemporaryDirectory() as temporary:
        top = options.keep or Path(temporary)
        done = all_measured(names, top, options)
        figures: list[float | None] = [None, None, None]
        if not options.quick and not options.programs:
            measure = forked(top, "cost", cost, 1.0, top)
            if not isinstance(measure, Result) or measure.refused:
                raise RuntimeError(f"the cost was not measured: {measure}")
            figures = [round(float(each), 3) for each in measure.arrays]
    kinds = {each.name: next(iter({"torch", "nnx"} & PROGRAMS[each.name].tags), "") for each in done}
    resumes, of_torch, of_nnx = (
        Counter(each.resume for each in done if kinds[each.name] == kind) for kind in ("", "torch", "nnx")
    )
    tunings = Counter(each.tune for each in done if kinds[each.name] != "torch")
    print(f"tuning: {dict(tunings)}")
    last = {
        "resume": {name: resumes[name] for name in ("identical", "refused", "unrepeatable", "silent", "crashed")},
        "refused_identical": sum(each.reason.startswith(IDENTICAL) for each in done),
        "nnx": {name: of_nnx[name] for name in ("identical", "refused", "silent", "crashed")},
        "tune": {name: tunings[name] for name in ("faster", "changed", "crashed")},
        "torch": {name: of_torch[name] for name in ("identical", "refused", "silent", "crashed")},
        **dict(zip(("cost_1gb", "save_mb", "save_s"), figures, strict=True)),
    }
    print(json.dumps(last))


def import_all() -> None:
    """Import the programs and the frameworks, so that forked processes need not."""
    import programs.jax_docs
    import programs.keras_io
    import programs.nnx_pages
    import programs.tensorflow_org
    import programs.tutorials

    if find_spec("torch"):
        import torch

        import programs.torch_pages
        import programs.torch_trainers  # noqa: F401

        torch.set_num_threads(1)


if __name__ == "__main__":
    main()
