"""The names that ``import tpunb as tp`` offers, and the errors."""

import inspect
import subprocess
from pathlib import Path

import pytest
from warm_python import NOTEBOOK, warm_python

import tpunb as tp

VERBS = [
    *("advise", "capture", "checkpointing", "checkpoints", "compare", "explore", "goodput", "hosts", "job", "load"),
    *("phases", "report", "resume", "roofline", "runs", "sample", "steps", "summary", "sweep", "tune", "tuning_panel"),
]
METHODS = ["DBSCAN", "HDBSCAN", "KMeans", "OLS", "OLSPlus"]
NOUNS = ["Phases", "Profile", "Steps"]
VALUES = ["Schedule"]
NAMESPACES = ["analysis", "charts", "checkpoint", "sources", "studies", "testing", "tuning"]
STUDIES = ["paper", "ranking", "scaling", "sweeps"]
DOOR = [*VERBS, *METHODS, *NOUNS, *VALUES, "TpunbError"]


def namespaces():
    """Return every module whose names are public, by the way to it from ``tp``."""
    found = {f"tp.{name}": getattr(tp, name) for name in NAMESPACES}
    return found | {f"tp.studies.{name}": getattr(tp.studies, name) for name in STUDIES}


def test_all_is_the_door_and_dir_shows_nothing_else():
    assert sorted(tp.__all__) == sorted([*DOOR, *NAMESPACES])
    assert sorted(dir(tp)) == sorted(tp.__all__)
    assert len(DOOR) <= 31


def test_every_name_has_a_docstring_and_its_kind():
    things = {name: getattr(tp, name) for name in DOOR}
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []
    assert {name for name, thing in things.items() if not inspect.isclass(thing)} == {*VERBS}


def test_every_namespace_is_a_module_that_lists_its_names():
    assert [name for name, namespace in namespaces().items() if not inspect.ismodule(namespace)] == []
    listed = [(namespace, name) for namespace in namespaces().values() for name in namespace.__all__]
    assert [(namespace, name) for namespace, name in listed if not hasattr(namespace, name)] == []


@pytest.mark.live
def test_exported_functions_are_callable_after_every_module_was_imported():
    """Importing a module that is named like a function must not replace the function on its package."""
    code = """
import importlib, inspect, pkgutil
import tpunb as tp
for module in pkgutil.walk_packages(tp.__path__, "tpunb."):
    importlib.import_module(module.name)
modules = ("analysis", "charts", "checkpoint", "sources", "studies", "testing", "tuning")
studies = ("paper", "ranking", "scaling", "sweeps")
for owner in (tp, *(getattr(tp, name) for name in modules), *(getattr(tp.studies, name) for name in studies)):
    for name in owner.__all__:
        thing = getattr(owner, name)
        module = name in (*modules, *studies, "machine", "paradnn")
        assert inspect.ismodule(thing) == module, (owner.__name__, name)
        assert callable(thing) or not name[0].islower() or module or name == "null_run", (owner.__name__, name)
"""
    subprocess.run([*warm_python(NOTEBOOK), "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="panel"):
        tp.panel  # noqa: B018


def test_no_module_has_the_name_of_an_exported_function():
    modules = {path.stem for path in Path(tp.__file__).parent.iterdir()}
    assert modules & set(DOOR) == set()
    assert {*NAMESPACES} - {"sources"} <= modules


def test_nouns_are_frozen():
    nouns = [getattr(tp, name) for name in NOUNS] + [tp.analysis.Hosts, tp.analysis.Roofline, tp.analysis.Goodput]
    assert [noun for noun in nouns if not noun.__dataclass_params__.frozen] == []


def test_one_class_to_catch_and_each_kind_a_built_in_too():
    from tpunb import errors

    kinds = {
        errors.ProfileNotFound: FileNotFoundError,
        errors.BadProfile: ValueError,
        errors.NoSteps: ValueError,
        errors.IncompatibleRuns: ValueError,
        errors.CaptureBusy: RuntimeError,
        errors.MissingExtra: ImportError,
    }
    for kind, builtin in kinds.items():
        assert issubclass(kind, tp.TpunbError)
        assert issubclass(kind, builtin)
        assert kind("what", hint="do this").__notes__ == ["Hint: do this"]


def test_a_missing_package_names_its_extra():
    from tpunb.errors import MissingExtra, need

    with pytest.raises(MissingExtra, match="no_such_package is not installed") as caught:
        need("no_such_package", extra="lab")
    assert caught.value.hint == "pip install 'tpunb[lab]'"
    line = "MissingExtra: no_such_package is not installed: pip install 'tpunb[lab]'"
    assert caught.value._render_traceback_() == [line]  # all that a notebook shows
