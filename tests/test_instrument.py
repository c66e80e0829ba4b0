"""Modules of libraries: what they declare is there, and what is not is named in the report on the run."""

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType, SimpleNamespace

import pytest
from stand_in import StandIn

import tpunb as tp
from tpunb import instrument
from tpunb.instrument.registry import Library, Priority, around


def modules():
    """Return the modules of the room that declare a library."""
    found = (import_module(f"tpunb.instrument.{each.name}") for each in iter_modules(instrument.__path__))
    return [module for module in found if hasattr(module, "LIBRARY")]


def test_each_library_that_is_declared_is_listened_to():
    assert [
        each.LIBRARY.name for each in modules() if hasattr(each, "listen") and each not in instrument.LIBRARIES
    ] == []


@pytest.mark.parametrize("name", sorted(each.LIBRARY.name for each in modules()))
def test_attributes_of_an_installed_library_are_as_declared(name):
    library = next(each.LIBRARY for each in modules() if each.LIBRARY.name == name)
    try:
        version(library.package)
    except PackageNotFoundError:  # the folder `datasets` of this repository is no library
        pytest.skip(f"{library.package} is not installed")
    for attribute in library.attributes:
        try:
            import_module(attribute.home)
        except ImportError:
            assert attribute.optional, attribute
        assert attribute.places() or attribute.optional, attribute
    assert library.misfits() == []


# -- a library that one file and one line add --------------------------------------------------------------------------


@pytest.fixture
def added(monkeypatch):
    """A module for a trainer of one function that takes a step, and another that its version lacks."""
    name = "trainer_of_steps"
    trainer = ModuleType(name)
    trainer.take_step = lambda number: number
    trainer.__spec__ = SimpleNamespace(_initializing=False)
    library = Library(name, "pytest", ("1.0", "1.2"))
    step, save = library.attribute(name, "take_step", "number"), library.attribute(name, "save")

    def listen(sink, stack):
        def marks(original, number):
            opened = sink.clock.begin("train", step=number, explicit=True, rule="annotation")
            try:
                return original(number)
            finally:
                sink.clock.end(opened)

        library.on_import(
            stack,
            lambda part: step.listen(around(marks), Priority.CAPTURE, part),
            lambda part: save.listen(around(marks), Priority.CAPTURE, part),
        )

    module = SimpleNamespace(LIBRARY=library, listen=listen, trainer=trainer)
    monkeypatch.setitem(sys.modules, name, trainer)
    monkeypatch.setattr(instrument, "LIBRARIES", (*instrument.LIBRARIES, module))
    return module


def test_steps_of_an_added_library_are_recorded_and_what_its_version_lacks_is_not_known(added, tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=tp.Schedule.ticks(), stacks=False):
        for number in range(5):
            assert added.trainer.take_step(number) == number
    run = tp.load(tmp_path / "run")
    assert tp.steps(run).frame["step"].to_list() == [0, 1, 2, 3, 4]
    line = f"trainer_of_steps {pytest.__version__} (tried with 1.0 to 1.2): trainer_of_steps.save is missing"
    assert run.misfits == [line]
    unknown = [each["what"] for each in tp.report(run).content["unknown"]]
    assert line in unknown


@pytest.mark.live
def test_processes_that_do_not_train_import_modules_of_libraries_in_no_time():
    code = "import sys, tpunb.instrument; print({'polars', 'importlib.metadata'} & {*sys.modules})"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout == "set()\n"


SETTINGS = """
import json, sys
import tpunb as tp

def settings(name, train):
    folder = f"{sys.argv[1]}/{name}"
    with tp.capture(folder):
        train()
    return json.load(open(f"{folder}/run.json"))["metadata"]

def torch_steps():
    import torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.ones(4, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()

def jax_steps():
    import jax, jax.numpy as jnp
    jax.config.update("jax_compilation_cache_dir", f"{sys.argv[1]}/cache")
    step = jax.jit(lambda weights: weights - 0.1)
    weights = jnp.ones((4, 4))
    for _ in range(5):
        weights = step(weights)

print(json.dumps([settings("torch", torch_steps), settings("jax", jax_steps)]))
"""


@pytest.mark.live
@pytest.mark.skipif(find_spec("torch") is None or find_spec("jax") is None, reason="torch or jax is not installed")
def test_settings_that_decide_how_fast_a_library_computes_are_recorded(tmp_path):
    command = [sys.executable, "-c", SETTINGS, str(tmp_path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    of_torch, of_jax = json.loads(out.splitlines()[-1])
    assert (of_torch["threads"], of_torch["dtype"]) == ("1", "float64")
    assert int(of_torch["processors"]) >= 1
    assert of_jax["cache"] == "slow"  # by default, JAX keeps what took a second to compile
