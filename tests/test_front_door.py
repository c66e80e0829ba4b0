"""The front door: what ``import tpunb as tp`` offers, whole, and nothing that is not true yet."""

import inspect
from pathlib import Path

import pytest

import tpunb as tp

VERBS = [
    *("capture", "checkpointing", "checkpoints", "compare", "explore", "load", "phases", "resume", "sample", "steps"),
    *("tune", "tuning_panel"),
]
METHODS = ["DBSCAN", "HDBSCAN", "KMeans", "OLS", "OLSPlus"]
NOUNS = ["Job", "Phases", "Profile", "Steps", "TpunbError", "Tuning"]


def test_all_is_the_door():
    assert sorted(tp.__all__) == sorted(VERBS + METHODS + NOUNS)


@pytest.mark.parametrize("name", tp.__all__)
def test_every_name_is_there_and_says_what_it_is(name):
    thing = getattr(tp, name)
    assert inspect.getdoc(thing)
    assert inspect.isclass(thing) == (name not in VERBS)


def test_what_is_not_on_the_door_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'panel'"):
        tp.panel  # noqa: B018


def test_dir_lists_the_door():
    assert set(tp.__all__) <= set(dir(tp))


def test_no_module_hides_behind_a_name():
    """``import tpunb.x as x`` must give the module, so no module bears the name of a verb."""
    modules = {path.stem for path in Path(tp.__file__).parent.iterdir()}
    assert modules & set(tp.__all__) == set()


@pytest.mark.parametrize("noun", ["Phases", "Profile", "Steps"])
def test_nouns_are_frozen(noun):
    assert getattr(tp, noun).__dataclass_params__.frozen


def test_one_class_to_catch_and_each_kind_a_built_in_too():
    from tpunb import errors

    kinds = {
        errors.ProfileNotFound: FileNotFoundError,
        errors.BadProfile: ValueError,
        errors.NoSteps: ValueError,
        errors.Unlike: ValueError,
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
