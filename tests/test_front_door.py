"""The names that ``import tpunb as tp`` offers, and the errors."""

import inspect
import json
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from warm_python import NOTEBOOK, warm_python

import tpunb as tp

ROOT = Path(__file__).parents[1]

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
    from tpunb.errors import MissingExtra, install, need

    with pytest.raises(MissingExtra, match="no_such_package is not installed") as caught:
        need("no_such_package", extra="lab")
    assert caught.value.hint == install("lab")
    line = f"MissingExtra: no_such_package is not installed: {install('lab')}"
    assert caught.value._render_traceback_() == [line]  # all that a notebook shows


def test_a_missing_package_of_the_base_names_what_reads_or_shows_runs():
    from tpunb.errors import MissingExtra, extras_named, install

    for module, extra, use in [
        ("numba.core", "report", "to read runs"),
        ("altair", "notebook", "for charts and panels"),
    ]:
        message = f"^{module.partition('.')[0]} is not installed.*{use}"
        with pytest.raises(MissingExtra, match=message) as caught, extras_named():
            raise ModuleNotFoundError(name=module)
        assert caught.value.hint == install(extra)
    with pytest.raises(ModuleNotFoundError, match="theirs"), extras_named():
        raise ModuleNotFoundError("theirs", name="a_module_of_the_program")


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        (None, "pip install 'tpunb[lab]'"),
        ({"url": "file:///a/tpunb.whl"}, "pip install 'tpunb[lab] @ file:///a/tpunb.whl'"),
        (
            {"url": "https://a/b", "vcs_info": {"vcs": "git", "commit_id": "0a1"}},
            "pip install 'tpunb[lab] @ git+https://a/b@0a1'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_package_is_from(facts, command, monkeypatch, tmp_path):
    from importlib import metadata

    from tpunb import errors

    assert errors.install("lab") == f"pip install -e '{ROOT}[lab]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "tpunb" / "errors.py"))
    file = SimpleNamespace(read_text=lambda name: facts and json.dumps(facts))
    monkeypatch.setattr(metadata, "distribution", lambda name: file)
    assert errors.install("lab") == command


def test_every_package_beyond_the_base_has_its_extra():
    from tpunb.errors import _EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = metadata.packages_distributions()
    for extra in ("report", "notebook"):
        listed = {re.match(r"[\w-]+", each)[0] for each in extras[extra]} - {"tpunb", "tqdm"}  # a bar is no need
        named = {packages[module][0] for module, of in _EXTRAS.items() if of == extra} - {"traitlets"}
        assert listed == named
