"""Attributes of others are wrapped for a block: what the program sets stays, and blocks may be left in any order."""

import functools
import gc
import inspect
import os
import pickle
import signal
import sys
import threading
import weakref
from contextlib import ExitStack
from importlib import import_module
from importlib.util import LazyLoader, find_spec, module_from_spec
from itertools import permutations
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest

from tpunb.instrument import registry
from tpunb.instrument.registry import Priority, around, replaced, watching, wrapped


class Base:
    """What a library would define."""

    def method(self, x, *, y=2):
        """Add."""
        return ["base", x, y]

    def inherited(self, x):
        return ["inherited", x]


class Library(Base):
    """A class of a library, with an attribute of each kind."""

    calls = functools.partial(lambda *args: [len(args)], "c")

    def method(self, x, *, y=2):
        """Add."""
        return ["method", x, y]

    @staticmethod
    def static(x):
        return ["static", x]

    @classmethod
    def of_class(cls, x):
        return [cls.__name__, x]

    @property
    def value(self):
        """A number."""
        return ["value"]

    @value.setter
    def value(self, value):
        self.kept = value

    def __iter__(self):
        return iter(["iter"])


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("switch",)

    def __init__(self):
        self.switch = lambda x: ["switch", x]


def logs(calls, name):
    """Return a hook that notes its calls and marks the result."""

    def hook(original):
        def called(*args, **kwargs):
            calls.append(name)
            return [name, *original(*args, **kwargs)]

        return called

    return hook


def module(name, **functions):
    made = ModuleType(name)
    for each, function in functions.items():
        function.__module__, function.__qualname__ = name, each
        setattr(made, each, function)
    return made


# -- nothing else patches ---------------------------------------------------------------------------------------------

USES = {
    "method": lambda it: it.method(1, y=3),
    "inherited": lambda it: it.inherited(1),
    "static": lambda it: it.static(1),
    "of_class": lambda it: it.of_class(1),
    "value": lambda it: it.value,
    "__iter__": lambda it: [*type(it).__iter__(it)],
    "calls": lambda it: it.calls(),
}


@pytest.mark.parametrize("name", USES)
def test_attribute_is_wrapped_in_the_block_and_the_same_object_afterwards(name):
    plain, before, calls = USES[name](Library()), vars(Library).get(name), []
    with wrapped(Library, name, logs(calls, "hook")):
        assert [*USES[name](Library())] == ["hook", *plain]
        assert type(before) in (type(vars(Library)[name]), type(None), functools.partial)  # a static method remains one
    assert calls == ["hook"]
    assert vars(Library).get(name) is before
    assert USES[name](Library()) == plain


def test_attribute_of_an_object_or_a_module_is_wrapped_without_the_object():
    slotted, library, of_library = Slotted(), Library(), module("of_library", save=lambda x: ["save", x])
    before, save = slotted.switch, of_library.save
    with ExitStack() as stack:
        for owner, name in ((slotted, "switch"), (library, "method"), (of_library, "save")):
            stack.enter_context(wrapped(owner, name, logs([], "hook")))
        assert slotted.switch(1) == ["hook", "switch", 1]
        assert library.method(1) == ["hook", "method", 1, 2]
        assert of_library.save(1) == ["hook", "save", 1]
        assert Library().method(1) == ["method", 1, 2]
    assert slotted.switch is before
    assert of_library.save is save
    assert "method" not in vars(library)


def test_wrapper_looks_like_the_original():
    with wrapped(Library, "method", logs([], "hook")), wrapped(Library, "value", logs([], "hook")):
        found, library = Library.method, Library()
        library.value = 3
        assert library.kept == 3
        assert (found.__name__, found.__qualname__, found.__doc__) == ("method", "Library.method", "Add.")
        assert str(inspect.signature(found)) == "(self, x, *, y=2)"
        assert Library.value.__doc__ == "A number."
        assert pickle.loads(pickle.dumps(found)) is found
        assert type(pickle.loads(pickle.dumps(library))) is Library


def test_function_that_a_package_shows_from_its_module_is_pickled_in_the_block(monkeypatch):
    inner = module("of_library.inner", save=lambda x: ["save", x])
    package, save = module("of_library"), inner.save
    package.save = save
    for each in (package, inner):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    with wrapped(package, "save", logs([], "hook")):
        assert pickle.loads(pickle.dumps(package.save))(1) == ["hook", "save", 1]
    assert package.save is inner.save is save


def test_hook_that_fails_leaves_the_attribute():
    before = Library.method
    with pytest.raises(ZeroDivisionError), wrapped(Library, "method", lambda original: 1 / 0):
        raise AssertionError
    assert Library.method is before


def test_around_gives_a_hook_the_original_first():
    with wrapped(Library, "method", around(lambda original, self, x: original(self, x + 1, y=0))):
        assert Library().method(1) == ["method", 2, 0]


# -- classes ----------------------------------------------------------------------------------------------------------


def test_class_between_the_owner_and_its_base_keeps_its_method():
    class Between(Base):
        def inherited(self, x):
            return ["between", *super().inherited(x)]

    class Own(Library, Between):
        def inherited(self, x):
            return ["own", *super().inherited(x)]

    plain = Own().inherited(1)
    with wrapped(Library, "inherited", logs([], "hook")):
        assert Own().inherited(1) == ["own", "hook", *plain[1:]]
    assert Own().inherited(1) == plain == ["own", "between", "inherited", 1]


def test_what_the_program_sets_in_a_base_is_called_through_the_wrapper(monkeypatch):
    with wrapped(Library, "inherited", logs([], "hook")):
        monkeypatch.setattr(Base, "inherited", lambda self, x: ["patched", x])
        assert Library().inherited(1) == ["hook", "patched", 1]
    assert Library().inherited(1) == ["patched", 1]


def test_mock_in_place_of_a_method_gets_no_instance():
    with mock.patch.object(Library, "method", return_value=["mock"]) as method:
        with wrapped(Library, "method", logs([], "hook")):
            assert Library().method(1, y=2) == ["hook", "mock"]
        method.assert_called_once_with(1, y=2)
        assert Library.method is method


def test_method_of_an_instance_that_the_program_sets_is_not_wrapped():
    library = Library()
    with wrapped(Library, "method", logs([], "hook")):
        library.method = lambda x: ["own", x]
        assert library.method(1) == ["own", 1]
    assert library.method(1) == ["own", 1]


# -- the program patches in the block ---------------------------------------------------------------------------------


def patch(owner, name, mark="program"):
    """Wrap an attribute as a program does."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args, **kwargs):
        return [mark, *original(*args, **kwargs)]

    setattr(owner, name, patched)
    return patched


@pytest.fixture
def library():
    """A class of its own, which a test may leave patched."""
    return type("Library", (Library,), {"method": lambda self: ["method"]})


def test_patch_of_the_program_stays_and_calls_the_original_afterwards(library):
    calls = []
    with wrapped(library, "method", logs(calls, "hook")):
        patched = patch(library, "method")
        assert library().method() == ["program", "hook", "method"]
    assert library.method is patched
    assert library().method() == ["program", "method"]
    assert calls == ["hook"]


def test_attribute_that_the_program_deletes_or_sets_anew_stays_so(library):
    with wrapped(library, "method", logs([], "hook")), wrapped(library, "inherited", logs([], "hook")):
        del library.method
        library.inherited = None
    assert library().method(1) == ["method", 1, 2]
    assert library.inherited is None


def test_patch_that_the_program_undoes_after_the_block_leaves_a_wrapper_that_the_next_block_removes(library):
    original = library.method
    with wrapped(library, "method", logs([], "hook")):
        ours = library.method
        patch(library, "method")
    library.method = ours
    assert library().method() == ["method"]
    with wrapped(library, "method", logs([], "next")):
        assert library().method() == ["next", "method"]
    assert library.method is original


def test_wrapper_that_is_left_refers_to_nothing_of_its_block(library):
    class Session:
        pass

    def hook(session, original):
        return lambda *args: [session, *original(*args)]

    session = Session()
    with wrapped(library, "method", functools.partial(hook, session)):
        kept, patched = library.method, patch(library, "method")
    session = weakref.ref(session)
    gc.collect()
    assert session() is None
    assert kept(library()) == ["method"]
    assert patched(library()) == ["program", "method"]


def frames():
    """Return the number of frames from here."""
    return len(inspect.stack(0))


@pytest.mark.parametrize("undone", [False, True])
def test_hundred_blocks_around_one_patch_add_no_wrappers(undone):
    library = SimpleNamespace(call=frames)
    plain = library.call()
    with wrapped(library, "call", around(lambda original: original())):
        ours = library.call

        def patched():
            return ours()

        library.call = patched
    depths = []
    for _ in range(100):
        with wrapped(library, "call", around(lambda original: original())):
            before = library.call
            library.call = lambda of=before: of()
        library.call = before if undone else patched
        depths.append(library.call())
    assert set(depths) == {plain + 3 if undone else plain + 2}  # the program's own, and the wrappers that it kept


# -- blocks left in another order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("name", ["method", "inherited", "static", "value"])
def test_blocks_may_be_left_in_any_order(name, order):
    before, plain = vars(Library).get(name), USES[name](Library())
    blocks = [ExitStack() for _ in range(3)]
    for number, block in enumerate(blocks):
        block.enter_context(wrapped(Library, name, logs([], number)))
    left = set()
    for number in order:
        assert USES[name](Library()) == [*sorted({0, 1, 2} - left, reverse=True), *plain]
        blocks[number].close()
        left.add(number)
    assert vars(Library).get(name) is before
    assert USES[name](Library()) == plain


def test_crossed_blocks_of_generators_end_with_the_original():
    def block(name):
        with wrapped(Library, "method", logs([], name)):
            yield

    before = Library.method
    outer, inner = block("outer"), block("inner")
    next(outer)
    next(inner)
    del outer  # its block ends as it is freed
    gc.collect()
    assert Library().method(1) == ["inner", "method", 1, 2]
    inner.close()
    assert Library.method is before


def test_replaced_values_may_be_left_in_any_order_too():
    owner = SimpleNamespace(call=len)
    first, second = ExitStack(), ExitStack()
    first.enter_context(replaced(owner, "call", lambda: 1))
    second.enter_context(replaced(owner, "call", lambda: 2))
    first.close()
    assert owner.call() == 2
    second.close()
    assert owner.call is len


def test_value_that_the_program_sets_in_the_block_stays():
    owner = SimpleNamespace(built=False)
    with replaced(owner, "built", True):
        owner.built = None
    assert owner.built is None


# -- imports ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def importable(tmp_path, monkeypatch, own_name):
    """The name of a module that can be imported once."""
    (tmp_path / f"{own_name}.py").write_text("imported = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield own_name
    sys.modules.pop(own_name, None)


def test_import_calls_back_once_in_the_block(importable):
    called, before = [], [*sys.meta_path]
    with watching(importable, lambda stack: called.append(importable)):
        assert import_module(importable).imported
    assert called == [importable]
    assert sys.meta_path == before


@pytest.mark.parametrize("change", ["cleared", "reversed", "replaced", "without the hook"])
def test_what_the_program_does_to_the_finders_stays(importable, change):
    with watching(importable, lambda stack: None):
        hook, *others = sys.meta_path
        if change == "replaced":
            sys.meta_path = [SimpleNamespace(), *others, hook]
        else:
            sys.meta_path[:] = {"cleared": [], "reversed": [*others[::-1], hook], "without the hook": others}[change]
        expected = [finder for finder in sys.meta_path if finder is not hook]
    assert sys.meta_path == expected


def test_finder_that_the_program_keeps_does_nothing_after_the_block(importable):
    called = []
    with watching(importable, lambda stack: called.append(1)):
        kept = [*sys.meta_path]
    sys.meta_path[:] = kept
    assert import_module(importable).imported
    assert called == []


def test_finders_of_the_program_may_have_no_find_spec(importable):
    called = []
    with watching(importable, lambda stack: called.append(1)):
        sys.meta_path.insert(1, SimpleNamespace())
        if sys.version_info < (3, 12):
            sys.meta_path.insert(1, SimpleNamespace(find_module=lambda *_: None))
        assert import_module(importable).imported
    assert called == [1]


def test_module_that_loads_after_the_block_calls_nothing(importable):
    called = []
    with watching(importable, lambda stack: called.append(1)):
        spec = find_spec(importable)
    spec.loader = LazyLoader(spec.loader)
    loading = module_from_spec(spec)
    spec.loader.exec_module(loading)
    assert loading.imported
    assert called == []


# -- attributes of libraries ------------------------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch, own_name):
    """A library of one module, with a class, its subclass and a function."""
    made = module(own_name, save=lambda file, data: ["save", file, data])
    made.Loader = type("Loader", (), {"draw": lambda self: ["draw"]})
    made.Special = type("Special", (made.Loader,), {"draw": lambda self: ["special"]})
    monkeypatch.setitem(sys.modules, own_name, made)
    made.__spec__ = SimpleNamespace(_initializing=False)
    return registry.Library(own_name, "pytest", ("1.0", "1.2"))


def test_all_who_listen_share_one_wrapper_and_are_called_by_priority(toy):
    save, calls = toy.attribute(toy.name, "save"), []
    library = sys.modules[toy.name]
    before = library.save
    with save.listening(logs(calls, "capture"), Priority.CAPTURE):
        wrapper = library.save
        with (
            save.listening(logs(calls, "tuning"), Priority.TUNING),
            save.listening(logs(calls, "checkpoints"), Priority.CHECKPOINTS),
        ):
            assert library.save is wrapper
            assert library.save(1, 2) == ["capture", "checkpoints", "tuning", "save", 1, 2]
        assert library.save(1, 2) == ["capture", "save", 1, 2]
    assert library.save is before
    assert toy.misfits() == []


def test_hook_below_others_has_the_signature_of_the_original(toy):
    seen = []

    def hook(original):
        seen.append(str(inspect.signature(original)))
        return original

    save = toy.attribute(toy.name, "save")
    with save.listening(around(lambda original, *args: original(*args)), Priority.TUNING), save.listening(hook):
        pass
    assert {*seen} == {"(file, data)"}


def test_attribute_is_wrapped_in_each_subclass_that_has_its_own(toy):
    library = sys.modules[toy.name]
    with toy.attribute(toy.name, "Loader.draw", subclasses=True).listening(logs([], "hook")):
        assert library.Special().draw() == ["hook", "special"]
        assert library.Loader().draw() == ["hook", "draw"]
    assert library.Special().draw() == ["special"]


@pytest.mark.parametrize(
    ("path", "takes", "reason"),
    [
        ("load", (), "is missing"),
        ("Loader.save", (), "is missing"),
        ("__name__", (), "is no function"),
        ("save", ("data", "format"), "does not take format"),
    ],
)
def test_attribute_that_does_not_fit_is_left_and_named_with_the_versions_that_were_tried(toy, path, takes, reason):
    before = vars(sys.modules[toy.name]).copy()
    with toy.attribute(toy.name, path, *takes).listening(logs([], "hook")):
        assert vars(sys.modules[toy.name]) == before
    version = f"{toy.name} {pytest.__version__} (tried with 1.0 to 1.2)"
    assert toy.misfits() == [f"{version}: {toy.name}.{path} {reason}"]


def test_module_of_the_program_that_has_the_name_of_a_library_is_no_misfit(toy):
    other = registry.Library(toy.name, f"no-{toy.name}", ("1.0", "1.2"))
    with other.attribute(toy.name, "load").listening(logs([], "hook")):
        assert other.unfit
        assert other.misfits() == []


def test_optional_attribute_may_be_missing(toy):
    with toy.attribute(toy.name, "load", optional=True).listening(logs([], "hook")):
        assert toy.misfits() == []


def test_module_of_a_library_is_none_until_it_is_imported(toy):
    assert toy.module() is sys.modules[toy.name]
    sys.modules[toy.name].__spec__._initializing = True
    assert toy.module() is None
    assert toy.module(f"{toy.name}.inner") is None


def test_attribute_of_a_library_that_is_imported_later_is_wrapped_then(tmp_path, monkeypatch, own_name):
    """A module of it is imported before the library itself is complete: its attribute is wrapped with the library."""
    (tmp_path / own_name).mkdir()
    (tmp_path / own_name / "inner.py").write_text("def save(file):\n    return ['save', file]\n")
    (tmp_path / own_name / "__init__.py").write_text("from .inner import save\nseen = save(1)\n")
    (tmp_path / own_name / "later.py").write_text("def load(file):\n    return ['load', file]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, library = [*sys.meta_path], registry.Library(own_name, own_name, ("1", "1"))
    with ExitStack() as stack:
        for name, path in (("inner", "save"), ("later", "load")):
            stack.enter_context(library.attribute(f"{own_name}.{name}", path).listening(logs([], "hook")))
        package = import_module(own_name)
        assert package.seen == ["save", 1]
        assert sys.modules[f"{own_name}.inner"].save(1) == ["hook", "save", 1]
        assert import_module(f"{own_name}.later").load(1) == ["hook", "load", 1]
        assert sys.meta_path == finders
    assert sys.modules[f"{own_name}.later"].load(1) == ["load", 1]


def test_next_call_of_an_attribute_goes_to_those_who_begin_to_listen_with_it(toy):
    save, calls, library, stack = toy.attribute(toy.name, "save"), [], sys.modules[toy.name], ExitStack()
    before = library.save

    def begin():
        calls.append("begin")
        save.listen(logs(calls, "capture"), Priority.CAPTURE, stack)

    save.before_next(begin)
    assert library.save(1, 2) == ["capture", "save", 1, 2]
    stack.close()
    assert library.save is before
    assert calls == ["begin", "capture"]


def test_next_call_through_a_function_of_the_program_calls_that_once(toy):
    save, calls, library = toy.attribute(toy.name, "save"), [], sys.modules[toy.name]
    save.before_next(lambda: calls.append("begin"))
    patch(library, "save")
    assert [library.save(1, 2) for _ in range(2)] == [["program", "save", 1, 2]] * 2
    assert calls == ["begin"]


def test_what_this_package_itself_asks_of_a_library_is_heard_by_none(toy):
    save, calls = toy.attribute(toy.name, "save"), []
    with save.listening(logs(calls, "capture")):
        assert save.unwrapped()(1, 2) == ["save", 1, 2]
    assert save.unwrapped()(1, 2) == ["save", 1, 2]
    assert calls == []


@pytest.mark.live
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_while_another_thread_wraps_may_wrap_too(toy):
    save, held, done = toy.attribute(toy.name, "save"), threading.Event(), threading.Event()

    def hold():
        with registry._locked():
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)  # a thread that the child does not have
    holder.start()
    held.wait(60)
    if (child := os.fork()) == 0:
        signal.alarm(120)
        with save.listening(logs([], "child")):
            os._exit(0 if sys.modules[toy.name].save(1, 2)[0] == "child" else 3)
    ended = os.waitpid(child, 0)[1]
    done.set()
    holder.join(60)
    assert ended == 0
