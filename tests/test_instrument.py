"""Modules of libraries: what they declare is there, and what is not is named in the report on the run."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
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
