"""Programs that patch libraries in a block, and blocks that are left in another order than they were entered."""

import functools
import gc
import inspect
import os
import pickle
import subprocess
import sys
import weakref
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from types import FunctionType

import numpy as np
import polars as pl
import pytest
from optional import lazy
from warm_python import JAX, warm_python

import tpunb as tp
from tpunb.instrument import listening, registry
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock
from tpunb.tuning.online import tuned

torch, jax, keras = lazy("torch"), lazy("jax"), lazy("keras")
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.live


# -- patches in the block ---------------------------------------------------------------------------------------------


def loop_of_torch():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(32, 4)), batch_size=4)
    model.train()
    for (x,) in data:
        optimizer.zero_grad()
        torch.autograd.backward(model(x).mean())
        optimizer.step()


def loop_of_jax():
    @jax.jit
    def train_step(w):
        return w - 0.1 * w

    w = jax.numpy.ones(8)
    for number in range(8):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            w = train_step(w)
    jax.block_until_ready(x=w)
    w.block_until_ready()
    return float(w[0])


def model_of_keras():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(model, steps=8):
    x = np.ones((4 * steps, 4), np.float32)
    return model.fit(x, x[:, :1], batch_size=4, verbose=0)


def epoch_iterator():
    """Return the class of the backend that draws the batches of a fit."""
    keras.Model  # noqa: B018  imports it, or skips the test
    from keras.src.trainers.epoch_iterator import EpochIterator

    return EpochIterator.__subclasses__()[0]


LIBRARIES = {
    "torch": (
        loop_of_torch,
        lambda: {
            "backward": torch.autograd,
            "train": torch.nn.Module,
            "__iter__": torch.utils.data.DataLoader,
            "__next__": torch.utils.data.dataloader._BaseDataLoaderIter,
        },
    ),
    "jax": (
        loop_of_jax,
        lambda: {
            "block_until_ready": jax,
            "__init__": jax.profiler.StepTraceAnnotation,
            "__enter__": jax.profiler.StepTraceAnnotation,  # inherited from a class in C++
            "__exit__": jax.profiler.StepTraceAnnotation,
        },
    ),
    "keras": (
        lambda: fit(model_of_keras()),
        lambda: {
            "fit": keras.Model,  # inherited
            "on_train_batch_end": keras.callbacks.CallbackList,
            "__next__": epoch_iterator(),
        },
    ),
}


def patch(owner, name, calls):
    """Wrap an attribute as a library's ``autolog`` does."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)

    setattr(owner, name, patched)
    return patched


@pytest.fixture
def library(request):
    """The training loop of a library, with the owners of what it calls, which are restored after the test."""
    train, owners = LIBRARIES[request.param]
    owners = owners()
    before = {name: vars(owner).get(name) for name, owner in owners.items()}
    yield train, owners
    for name, owner in owners.items():
        if before[name] is not None:
            setattr(owner, name, before[name])
        elif name in vars(owner):  # it is inherited
            delattr(owner, name)


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_patches_of_the_program_stay_and_refer_to_no_capture(library, tmp_path):
    train, owners = library
    calls = []
    with tp.capture(tmp_path / "run", schedule=tp.Schedule.ticks()) as run:  # a window would annotate steps, too
        train()
        patched = {name: patch(owner, name, calls) for name, owner in owners.items()}
        train()
        session = weakref.ref(run._session)
    inside = sorted(calls)
    assert {*inside} == {*owners}
    assert {name: vars(owner)[name] for name, owner in owners.items()} == patched
    calls.clear()
    train()
    assert sorted(calls) == inside
    del run
    gc.collect()
    assert session() is None
    assert len(tp.steps(tmp_path / "run").frame) >= 16


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_wrappers_look_like_the_originals_and_leave_nothing(library, tmp_path):
    train, owners = library
    train()
    before = attributes()
    functions = {name: getattr(owner, name) for name, owner in owners.items()}
    signatures = {name: inspect.signature(each) for name, each in functions.items() if isinstance(each, FunctionType)}
    with tp.capture(tmp_path / "run"):
        train()
        assert {name: inspect.signature(getattr(owners[name], name)) for name in signatures} == signatures
        for name, owner in owners.items():
            if isinstance(owner, type):
                assert pickle.loads(pickle.dumps(owner)) is owner
            else:
                assert pickle.loads(pickle.dumps(getattr(owner, name))) is getattr(owner, name)
    after = attributes()
    assert [place for place in before if before[place] is not after.get(place)] == []


def attributes():
    """Return the functions of the libraries that are imported, and of their classes, by place."""
    found = {}
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in ("torch", "jax", "keras", "tensorflow", "orbax", "grain"):
            for attribute, value in [*getattr(module, "__dict__", {}).items()]:
                if isinstance(value, FunctionType):
                    found[name, attribute] = value
                elif isinstance(value, type) and type.__getattribute__(value, "__module__") == name:
                    found |= {
                        (name, attribute, inner): each
                        for inner, each in [*vars(value).items()]
                        if isinstance(each, FunctionType | property | staticmethod | classmethod)
                    }
    return found


def test_functions_of_torch_can_be_sent_to_a_process_that_is_spawned(tmp_path):
    with tp.capture(tmp_path / "run"):
        loop_of_torch()
        collate = functools.partial(print, torch.save, torch.load)  # of a DataLoader
        assert pickle.loads(pickle.dumps(collate)).args == collate.args


def test_function_that_the_program_has_put_in_place_of_fit_keeps_any_name(tmp_path, monkeypatch):
    original = keras.Model.fit

    def own(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", own)
    with tp.capture(tmp_path / "run"):
        assert len(fit(model_of_keras()).history["loss"]) == 1
    assert keras.Model.fit is own
    assert len(tp.steps(tmp_path / "run").frame) == 8


def test_hundred_captures_beneath_one_patch_of_the_program_add_no_wrappers(monkeypatch):
    depths = []

    class Model(torch.nn.Module):
        def train(self, mode=True):
            return super().train(mode)

    class Part(torch.nn.Module):
        def children(self):
            depths.append(len(inspect.stack(0)))
            return super().children()

    def block():
        clock = StepClock(lambda kind, number: None)
        stack = ExitStack()
        stack.enter_context(listening(Loop(clock)))
        return stack

    monkeypatch.setattr(torch.nn.Module, "train", torch.nn.Module.train)
    Part().train()
    with block():
        patch(torch.nn.Module, "train", [])
    for _ in range(100):
        with block():
            pass
        Part().train()
    plain, *after = depths
    assert {*after} == {plain + 2}  # the program's function, and the wrapper that it wrapped


# -- blocks left in another order -------------------------------------------------------------------------------------

BLOCKS = {
    "capture": lambda folder: tp.capture(folder / "run"),
    "saving": lambda folder: tp.checkpointing(folder / "saved", every=4),
}


@pytest.mark.parametrize("entered", [*permutations(BLOCKS)])
@pytest.mark.parametrize("left", [*permutations(BLOCKS)])
def test_fit_is_saved_and_captured_whichever_block_ends_first(tmp_path, entered, left):
    before, model, open_blocks = vars(keras.Model).get("fit"), model_of_keras(), {}
    fit(model)
    for name in entered:
        open_blocks[name] = ExitStack()
        open_blocks[name].enter_context(BLOCKS[name](tmp_path))
    fit(model)
    open_blocks[left[0]].close()
    fit(model)
    open_blocks[left[1]].close()
    fit(model)
    assert vars(keras.Model).get("fit") is before
    saved = sorted(int(path.name.partition("-")[2]) for path in (tmp_path / "saved").glob("tpunb-*"))
    assert saved == ([12, 16] if left[0] == "saving" else [12, 16, 20, 24])
    assert len(tp.steps(tmp_path / "run").frame) == (8 if left[0] == "capture" else 16)


ALL = {**BLOCKS, "tuning": lambda folder: tuned(budget=1e6)}


def losses_of(run, epochs):
    """Train a model of PyTorch on one DataLoader; return the losses."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(32, 4)), batch_size=4, shuffle=True)
    losses = []
    for _ in range(epochs):
        for (x,) in run.batches(data, state={"model": model, "optimizer": optimizer}):
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("entered", [*permutations(ALL)])
@pytest.mark.parametrize("crossed", [False, True])
def test_one_loader_is_captured_saved_and_tuned_in_any_order_of_the_blocks(tmp_path, entered, crossed):
    loader = torch.utils.data.DataLoader
    before, plain = vars(loader)["__iter__"], losses_of(tp.testing.null_run, 3)
    open_blocks, values = {name: ExitStack() for name in entered}, {}
    for name in entered:
        values[name] = open_blocks[name].enter_context(ALL[name](tmp_path))
    wrapper = vars(loader)["__iter__"]
    assert wrapper.__wrapped__ is before
    priorities = {priority for priority, _ in registry._wrappers[wrapper].listeners}
    assert priorities == {registry.Priority.CAPTURE, registry.Priority.TUNING}  # no Trainer is imported
    assert losses_of(values["capture"], 3) == plain
    for name in entered if crossed else entered[::-1]:
        open_blocks[name].close()
    assert vars(loader)["__iter__"] is before
    assert losses_of(tp.testing.null_run, 3) == plain
    assert sorted(int(path.name.partition("-")[2]) for path in (tmp_path / "saved").glob("tpunb-*")) == [
        *range(4, 25, 4)
    ]
    assert tp.steps(tmp_path / "run").frame.filter(pl.col("kind") == "train").height == 24
    assert values["tuning"].messages


TORCH = """
import torch
OWNERS = (torch.utils.data.DataLoader, "__iter__"), (torch.nn.Module, "train")
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(32, 4)), batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(run):
    for (x,) in run.batches(data, state={"model": model, "optimizer": optimizer}):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""

KERAS = """
import keras, numpy as np
OWNERS = (keras.Model, "fit"), (keras.callbacks.CallbackList, "on_epoch_end")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((32, 4), np.float32)

def train(run):
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
"""

BOTH = """
from contextlib import ExitStack
import tpunb as tp
run = tp.testing.null_run
with ExitStack() as stack:
    for block in ORDER:
        if block == "saving":
            stack.enter_context(tp.checkpointing("saved", every=4))
        else:
            run = stack.enter_context(tp.capture("own"))
    train(run)
train(tp.testing.null_run)
wrappers = [vars(owner).get(name) for owner, name in OWNERS]
print("left:", [each for each in wrappers if "tpunb" in str(getattr(each, "__code__", ""))])
"""


def run_of(folder, code, *words):
    """Run a program, behind the words of a command; return what it printed."""
    (folder / "program.py").write_text(code)
    names = {name: value for name, value in os.environ.items() if not name.startswith("TPUNB_RUN")}
    environment = names | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [*([sys.executable] if words else warm_python(JAX)), *words, "program.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


RUN = ("-m", "tpunb", "run", "-o", "run", "--", sys.executable)


@pytest.mark.parametrize("order", [*permutations(BLOCKS)])
@pytest.mark.parametrize("library", ["torch", pytest.param("keras", marks=pytest.mark.slow)])
def test_under_tpunb_run_a_capture_of_the_program_ends_that_of_the_whole_and_no_other_block(tmp_path, library, order):
    pytest.importorskip(library)
    code = {"torch": TORCH, "keras": KERAS}[library]
    out = run_of(tmp_path, f"{code}\nORDER = {order}\n{BOTH}", *RUN)
    assert "left: []" in out
    assert {path.name for path in (tmp_path / "saved").glob("tpunb-*")} == {"tpunb-4", "tpunb-8"}
    assert len(tp.steps(tmp_path / "own").frame) == 8


# -- what else is global ----------------------------------------------------------------------------------------------


def test_program_may_change_the_finders_before_a_framework_is_imported(tmp_path):
    (tmp_path / "torch.py").write_text("imported = True")
    code = """
import sys

class Finder:
    def __init__(self, finder):
        self.find_spec = finder.find_spec

sys.meta_path[:] = [Finder(each) if hasattr(each, "find_spec") else each for each in sys.meta_path]
import torch
print("imported:", torch.imported)
"""
    assert "imported: True" in run_of(tmp_path, code, *RUN)


def test_what_the_program_clears_or_sets_for_the_whole_process_stays(tmp_path):
    pytest.importorskip("jax")
    code = """
import gc, sys, jax, tpunb as tp
interval = sys.getswitchinterval()
with tp.capture("run") as run:
    for number in range(4):
        with run.step(number):
            jax.numpy.ones(3).block_until_ready()
    gc.callbacks.clear()
    jax.monitoring.clear_event_listeners()
    sys.meta_path = [finder for finder in sys.meta_path if "tpunb" not in str(type(finder))]
    finders = [*sys.meta_path]
    sys.setswitchinterval(0.002)
print("kept:", sys.meta_path == finders, gc.callbacks, sys.getswitchinterval())
"""
    assert "kept: True [] 0.002" in run_of(tmp_path, code)
    assert len(tp.steps(tmp_path / "run").frame) == 4
