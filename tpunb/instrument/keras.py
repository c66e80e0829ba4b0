"""Keras: the steps of fit, evaluate and predict with their causes, the model that they run, updates of other loops."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from threading import Thread, get_ident
from time import monotonic_ns
from types import GeneratorType
from typing import Any

import numpy as np

from tpunb.errors import TpunbError, need
from tpunb.instrument.batches import MASK, NOTHING, Batches, arrays_of, way_name
from tpunb.instrument.registry import Attribute, Evidence, Hook, Library, Priority, around
from tpunb.instrument.sink import END_OF_DATA, Clock, Holds, Sink, What
from tpunb.signals import DATA_END, NEW_ITERATOR, Spent

LIBRARY = Library("keras", "keras", ("3.6", "3.15.1"))

_KINDS = {"train": "train", "test": "eval", "predict": "predict"}  # Keras' word in the names of hooks: kind of step
_METHODS = {"fit": ("train", "fit"), "evaluate": ("eval", "evaluation"), "predict": ("predict", "fit")}
"""Kind of the steps, and account of the time around them, of each method."""
_EVENTS = {"fit": "mark", "evaluate": "evaluate", "predict": "predict"}
_FILES = {"save": "save", "save_weights": "save", "load_weights": "restore"}  # events of methods
STEP_FUNCTION = "multi_step_on_iterator"  # that a method traces and calls

METHODS = {
    name: LIBRARY.attribute("keras", f"Model.{name}", evidence=Evidence(event, f"Trainer.{name}"))
    for name, event in _EVENTS.items()
}
TEST = LIBRARY.attribute("keras", "Model.test_on_batch")
FILES = {name: LIBRARY.attribute("keras", f"Model.{name}", evidence=Evidence(_FILES[name])) for name in _FILES}
HOOKS = {  # of all callbacks: they run in the training thread even if Keras calls callbacks in another
    name: LIBRARY.attribute(
        *("keras.callbacks", f"CallbackList.{name}", *(("batch", "logs") if "_batch_" in name else ())),
        evidence=Evidence("callback"),
    )
    for name in (
        *(f"on_{word}_{at}" for word in _KINDS for at in ("begin", "end", "batch_begin", "batch_end")),
        *("on_epoch_begin", "on_epoch_end"),
    )
}
EPOCH_NEXT = LIBRARY.attribute(
    *("keras.src.trainers.epoch_iterator", "EpochIterator.__next__"), subclasses=True, evidence=Evidence("fetch")
)
EPOCH_END = LIBRARY.attribute(
    "keras.src.trainers.epoch_iterator", "EpochIterator.catch_stop_iteration", subclasses=True
)
LOAD_MODEL = LIBRARY.attribute("keras.src.saving.saving_lib", "load_model", evidence=Evidence("restore"))
UPDATE = LIBRARY.attribute("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", evidence=Evidence("update"))

TRAINS = (LIBRARY.attribute("keras", "optimizers.Optimizer.__init__"),)
"""What is called first where a process trains."""

_running: list[str] = []
"""The marked methods of Keras models that run now, from the outermost."""


_testing: set[int] = set()
"""Threads in which a batch is tested."""


def called_as(name: str) -> str:
    """Return the name of a compiled function, of which Keras has one for batches to train on and to test."""
    return TEST.path.rpartition(".")[2] if get_ident() in _testing else name


def keras_runs() -> bool:
    """Return whether a marked method of a Keras model runs now."""
    return bool(_running)


def running_method() -> str | None:
    """Return the name of the innermost marked method that runs now."""
    return _running[-1] if _running else None


def running_backend() -> str | None:
    """Return the name of the library that Keras computes with while a marked method runs, else None."""
    keras = LIBRARY.module() if _running else None
    return None if keras is None else str(keras.config.backend())


def _steps(sink: Sink, stack: ExitStack) -> None:
    """Mark every batch of ``fit``, ``evaluate`` and ``predict``, and time every callback."""
    clock = sink.clock

    def hook(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            if timing.hook is not None:  # within another, whose time it is
                return original(self, *args, **kwargs)
            if type(self.callbacks) is list:
                self.callbacks = _TimedCallbacks(self.callbacks, timing)
            timing.hook = name
            try:
                return original(self, *args, **kwargs)
            finally:
                timing.hook = None
                if name == "on_train_end":
                    timing.ended_ns = monotonic_ns()

        return patched

    def batch_hook(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        kind, begins, what = _KINDS[name.split("_")[1]], name.endswith("begin"), What.of("keras", original)
        timed = hook(name, original)

        def patched(self: Any, batch: Any, logs: Any = None) -> None:
            if begins:
                clock.begin_batch(kind, NEW_ITERATOR, what)
                if timing.first and kind == "train":
                    timing.first = False
                    clock.steps_before = _steps_before(self) if clock.steps_before is None else clock.steps_before
            else:
                clock.computed()
            callbacks = self.callbacks
            idle = type(callbacks) is _TimedCallbacks and callbacks.acts.get(name) is False
            (original if idle else timed)(self, batch, logs)
            if begins:
                clock.dispatched()

        return patched

    def describe(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        with suppress(TypeError):  # arguments that Keras is about to refuse
            described = keras_metadata(model, *args[:3], **kwargs)
            clock.metadata = clock.metadata | described  # a new one: another thread may read it

    def method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            done = False
            before = clock.metadata
            if not _running and (name == "fit" or not before):
                describe(self, args, kwargs)
            if not _running and name == "fit":
                clock.fitted = self, args[0] if args else kwargs.get("x")
            _running.append(name)
            hook, timing.hook = timing.hook, None  # called by a callback, it has callbacks of its own
            try:
                # a prediction in a callback of a training evaluates it
                account, what = _METHODS[name][1] if len(_running) == 1 else "evaluation", What.of("keras", original)
                with clock.within(account, name, event=_EVENTS[name], what=what, key=_METHODS[name][0]):
                    value = original(self, *args, **kwargs)
                    if name == "fit" and len(_running) == 1 and timing.ended_ns:  # it has freed its iterator since
                        spent = Spent("data loading", DATA_END, timing.ended_ns, monotonic_ns())
                        clock.on_spent(spent, end_of=END_OF_DATA)
                done = True
            finally:
                timing.hook = hook
                _running.pop()
                if clock.metadata is not before and "weights" not in clock.metadata:  # made by the first batch
                    describe(self, args, kwargs)
                if name == "fit" and not _running:
                    sink.fitted(self)
                if not _running or not done:  # what follows an evaluation in a callback counts towards its last step
                    clock.exit(done=done)
            return value

        return patched

    def test(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        _testing.add(get_ident())
        try:
            return original(self, *args, **kwargs)
        finally:
            _testing.discard(get_ident())

    def file(name: str, event: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            kind = type(self)
            with clock.during(event, What(LIBRARY.name, kind.__module__, f"{kind.__name__}.{name}")):
                return original(self, *args, **kwargs)

        return patched

    def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with clock.during("restore", What(LIBRARY.name, LOAD_MODEL.home, LOAD_MODEL.path)):
            return original(*args, **kwargs)

    def kind() -> str | None:
        return _METHODS[_running[-1]][0] if _running and clock.trains_here else None

    timing = _Timing(clock)
    stack.callback(timing.end)
    hooks: dict[Attribute, Hook] = {
        **{HOOKS[name]: partial(batch_hook if "_batch_" in name else hook, name) for name in HOOKS},
        **{METHODS[name]: partial(method, name) for name in METHODS},
        TEST: around(test),
        **{FILES[name]: partial(file, name, _FILES[name]) for name in FILES},
        LOAD_MODEL: around(load),
        **{EPOCH_NEXT: partial(timed, clock, kind), EPOCH_END: ended},
    }
    for attribute, listener in hooks.items():
        attribute.listen(listener, Priority.CAPTURE, stack)


def _updates(sink: Sink, stack: ExitStack) -> None:
    """Record updates in eager loops of TensorFlow; in a compiled function they happen at its tracing alone."""

    def apply(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = monotonic_ns()
        value = original(self, *args, **kwargs)
        if sink.is_training() and (tf := sys.modules.get("tensorflow")) is not None and tf.executing_eagerly():
            sink.clock.metadata.setdefault("eager", "TensorFlow")
            sink.updated(id(self), begun_ns, monotonic_ns(), None, what=What.of("keras", original))
        return value

    UPDATE.listen(around(apply), Priority.CAPTURE, stack)


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    LIBRARY.on_import(stack, partial(_steps, sink), partial(_updates, sink))


class _Timing:
    """Which hook of all callbacks runs now in the thread that trains, if any."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock | None = clock
        self.hook: str | None = None
        self.ended_ns = 0  # end of the last training's last hook
        self.first = True  # whether no training step has begun

    def end(self) -> None:
        self.clock = None


def _acts(callback: Any, hook: str) -> bool:
    """Return whether a callback has more than the base class's empty hook, which may call that of an earlier name."""
    import keras

    names = {hook, hook.replace("_train_batch_", "_batch_")}
    base = keras.callbacks.Callback
    return any(getattr(getattr(callback, name), "__func__", None) is not getattr(base, name) for name in names)


_iterate = list.__iter__  # faster than by `super()`


class _TimedCallbacks(list[Any]):
    """Callbacks that are timed while a hook goes through them."""

    def __init__(self, callbacks: list[Any], timing: _Timing) -> None:
        super().__init__(callbacks)
        self._timing = timing
        self.acts: dict[str, bool] = {}  # whether any of them does something in a hook

    def __iter__(self) -> Iterator[Any]:
        hook, clock = self._timing.hook, self._timing.clock
        if hook is None or clock is None or not clock.trains_here:
            return _iterate(self)
        if hook == "on_train_end":  # as its fit returns, a framework may take long to free what it read
            clock.exit(done=True)
        if hook not in self.acts:
            self.acts[hook] = any(_acts(callback, hook) for callback in _iterate(self))
        return clock.calls(_iterate(self), hook) if self.acts[hook] else _iterate(self)


def keras_metadata(
    model: Any, x: object = None, y: object = None, batch_size: object = None, **_: object
) -> dict[str, str]:
    """Return the properties of a Keras model and its training that are available; data are not iterated.

    "model" is its class and the kinds of its layers, not its name: Keras numbers the models of a process.
    """
    properties: dict[str, Callable[[], object]] = {
        "model": lambda: _architecture(model),
        "weights": lambda: model.count_params() if model.built else None,
        "dtype": lambda: _dtype(model),
        "optimizer": lambda: None if model.optimizer is None else type(model.optimizer).__name__,
        "batch": lambda: _batch_size(x, batch_size),
        "data": lambda: _data_kind(x),
        "eager": lambda: "Keras" if model.run_eagerly or _functions_run_eagerly() else None,
    }
    metadata: dict[str, str] = {}
    for name, read in properties.items():
        with suppress(Exception):  # a user's model may raise anything, and its training must continue
            if (value := read()) is not None:
                metadata[name] = str(value)
    return metadata


def _functions_run_eagerly() -> bool:
    """Return whether Keras computes with TensorFlow, and this runs its functions eagerly."""
    is_backend = sys.modules["keras"].config.backend() == "tensorflow"
    return is_backend and bool(sys.modules["tensorflow"].config.functions_run_eagerly())


def _steps_before(callbacks: Any) -> int | None:
    """Return the training steps before the first of a fit by its optimizer; None if it may count others."""
    with suppress(Exception):  # an optimizer or a list of callbacks of another version
        optimizer, batches = callbacks._model.optimizer, callbacks.params["steps"]
        if (taken := int(optimizer.iterations)) == 0:
            return 0
        at_once = callbacks._model.steps_per_execution
        # at the end of data of unknown length, Keras counts a step that was not taken
        if batches is not None and batches % at_once == 0 and not optimizer.gradient_accumulation_steps:
            return taken // int(at_once)
    return None


def _layers(model: Any) -> Iterator[Any]:
    """Yield the layers that hold no others."""
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _layers(layer)
        elif type(layer).__name__ != "InputLayer":
            yield layer


def _architecture(model: Any) -> str:
    kinds = Counter(type(layer).__name__ for layer in _layers(model))
    return f"{type(model).__name__} of {', '.join(f'{number} {kind}' for kind, number in kinds.items())}"


def _dtype(model: Any) -> str:
    """Return the policy of most layers with weights: layers may differ from their model."""
    policies = Counter(layer.dtype_policy.name for layer in _layers(model) if layer.weights)
    return str((policies.most_common(1) or [(model.dtype_policy.name, 1)])[0][0])


def _data_kind(x: object) -> str | None:
    """Return the kind of the data, as a remedy for waits depends on it; None if it is of another."""
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(x).__mro__}
    kinds = {"torch.DataLoader": "DataLoader", "keras.PyDataset": "PyDataset", "grain.MapDataset": "Grain"}
    kinds |= {"grain.IterDataset": "Grain", "grain.DataLoader": "Grain"}
    found = next((kind for name, kind in kinds.items() if name in names), None)
    if found is not None or x is None:
        return found
    if hasattr(x, "element_spec"):
        return "tf.data"
    return "generator" if isinstance(x, GeneratorType) else "arrays" if hasattr(x, "shape") else None


def _batch_size(x: Any, batch_size: object) -> object:
    """Return the samples per batch; None if they are unknown before the data are iterated."""
    if batch_size is not None:
        return batch_size
    if hasattr(x, "batch_size"):  # a loader
        return x.batch_size
    if not hasattr(x, "element_spec"):
        return 32 if hasattr(x, "shape") else None  # Keras' default for arrays
    spec = x.element_spec  # of a dataset
    while isinstance(spec, (tuple, list, dict)):
        spec = next(iter(spec.values() if isinstance(spec, dict) else spec))
    return spec.shape[0]


_ITERATOR = "_tpunb_iterator"
_LAST = "_tpunb_last_batch"
_TURNS = "_tpunb_turns"
_FLAT = "_tpunb_flat"
_PYTHON = (GeneratorType, map, zip)  # batches that a train function draws itself


def timed(clock: Clock, kind: Callable[[], str | None], original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``EpochIterator.__next__`` so that it begins a step and records its wait for data."""
    what, batches = What.of("keras", original), Batches()

    def holds(stream: Hashable, turned: Any) -> Holds:
        first, last, data = turned
        if isinstance(data, _PYTHON):
            return NOTHING, None
        if isinstance(data, list) and len(data) == 1:  # of PyTorch
            return batches.of(stream, data[0])
        spec = getattr(data, "_type_spec", None) if first == last else None
        read = getattr(spec, "holds", None)  # of batches that are drawn here, not of several replicas
        return (None, None) if read is None else read(batches, stream, data)

    def draw(epochs: Any) -> Any:
        first, last, data = original(epochs)
        is_of_tensorflow = _is_of_tensorflow(data.__class__)
        if is_of_tensorflow and getattr(getattr(epochs, _ITERATOR, None), "iterator", None) is not data:
            setattr(epochs, _ITERATOR, _Ending(data))
        if first == last and is_of_tensorflow:  # else steps draw their batches in the graph
            data = _drawn()(data)
            setattr(epochs, _LAST, data)
        return first, last, data

    def turn(epochs: Any) -> Any:
        running = kind()
        if running is None:  # the iterator of another loop
            return original(epochs)
        if _is_over(epochs):  # no step begins: Keras replaces the iterator, whose end waits for what it prepares
            with clock.within("data loading", NEW_ITERATOR, what=what):
                return original(epochs)
        clock.request(running, what)
        first, last, data = clock.draw(draw, epochs, what, holds)
        if first != last and _is_of_tensorflow(data.__class__):
            clock.forget_input()
        return first, last, _TimedBatches(data, clock) if isinstance(data, _PYTHON) else data

    return turn


class _Ending:
    """An iterator of TensorFlow whose end waits for what it prepares: in another thread than the one that trains."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __del__(self) -> None:
        with suppress(Exception):  # as the interpreter ends
            Thread(target=list.clear, args=([vars(self).pop("iterator")],), name="tpunb-ending", daemon=True).start()


def _is_over(epochs: Any) -> bool:
    """Count the turns of an epoch, and return whether it has had all, where their number is known."""
    epoch, turns = getattr(epochs, _TURNS, (None, 0))
    turns = turns if epoch is epochs._epoch_iterator else 0
    setattr(epochs, _TURNS, (epochs._epoch_iterator, turns + 1))
    return epochs.num_batches is not None and turns * epochs.steps_per_execution >= epochs.num_batches


@cache
def _is_of_tensorflow(kind: type) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and issubclass(kind, tf.data.Iterator)


class _TimedBatches:
    """Batches that a train function draws itself in Python, with the wait for each."""

    def __init__(self, batches: Iterator[Any], clock: Clock) -> None:
        self._batches, self._clock, self._sizes = batches, clock, Batches()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._clock.draw(next, self._batches, What.of("keras", type(self._batches)), self._sizes.of)


def _flat(specs: list[Any]) -> tuple[list[Any], list[tuple[int | None, ...] | None]]:
    """Return the types and the shapes of the tensors of a batch."""
    parts = [part for spec in specs for part in spec._flat_tensor_specs]
    shapes = [None if part.shape.rank is None else tuple(part.shape.as_list()) for part in parts]
    return [part.dtype for part in parts], shapes


@cache
def _drawn() -> type[Any]:
    """Return the class of iterators that hold one batch, which has been drawn."""
    import tensorflow as tf

    class BatchSpec(tf.TypeSpec):  # type: ignore[misc]  # TensorFlow is untyped
        def __init__(self, element_spec: Any) -> None:
            self.element_spec, self._optional_spec = element_spec, tf.OptionalSpec(element_spec)
            self._hash = hash((type(self), self._optional_spec))  # TensorFlow asks for it with each call
            self._parts = {way_name(way): part for way, part in arrays_of(element_spec)}
            self._flat = [part.dtype for part in self._parts.values()], [part.shape for part in self._parts.values()]
            is_whole = len(self._parts) == len(tf.nest.flatten(element_spec, expand_composites=True))
            self._has_parts = is_whole and all(type(part) is tf.TensorSpec for part in self._parts.values())
            is_static = self._has_parts and all(part.shape.is_fully_defined() for part in self._parts.values())
            self._static: Holds | None = None
            if is_static and not any(map(MASK.fullmatch, self._parts)):
                self._static = Batches().of(None, self._parts)

        def holds(self, batches: Batches, stream: Hashable, data: Any) -> Holds:
            """Return what a batch holds: if shapes are not known before, by its tensors, in 20 µs."""
            if self._static is not None or not self._has_parts:
                return self._static or (None, None)
            try:
                types, shapes = self._flat
                optional = data.optional._variant_tensor
                tensors = tf.raw_ops.OptionalGetValue(optional=optional, output_types=types, output_shapes=shapes)
            except (AttributeError, tf.errors.OpError):  # the end of the data
                return None, None
            return batches.of(stream, dict(zip(self._parts, tensors, strict=True)))

        def __hash__(self) -> int:
            return self._hash

        # the next three are as those of each specification, but take no 60 µs a call

        def __eq__(self, other: object) -> bool:
            return self is other or super().__eq__(other)

        def to_tensors(self, value: Any) -> list[Any]:
            return [*self._optional_spec._to_components(value.optional)]

        def cast(self, value: Any, context: Any) -> Any:
            return value if value._type_spec is self else super().cast(value, context)

        @property
        def value_type(self) -> type[Any]:
            return Batch

        def _serialize(self) -> tuple[Any, ...]:
            return (self.element_spec,)

        @property
        def _component_specs(self) -> Any:
            return self._optional_spec

        def _to_components(self, value: Any) -> Any:
            return value.optional

        def _from_components(self, components: Any) -> Any:
            return Batch.of(components, self)

    class Batch(tf.data.Iterator):  # type: ignore[misc]
        _type_spec: Any = None  # of each batch, in place of a property that makes one

        def __init__(self, iterator: Any) -> None:
            # not `get_next_as_optional`, which has TensorFlow ask each TensorShape for its length: it takes an
            # interrupt that arrives there for an unknown length, and writes past the end of a buffer
            resource = getattr(iterator, "_iterator_resource", None)
            if resource is None:  # of another kind
                self.optional = iterator.get_next_as_optional()
                self._type_spec = BatchSpec(self.optional.element_spec)
                return
            if (flat := getattr(iterator, _FLAT, None)) is None:
                flat = *_flat(tf.nest.flatten(iterator.element_spec)), BatchSpec(iterator.element_spec)
                setattr(iterator, _FLAT, flat)
            types, shapes, self._type_spec = flat
            with tf.device(resource.device):
                optional = tf.raw_ops.IteratorGetNextAsOptional(
                    iterator=resource, output_types=types, output_shapes=shapes
                )
            self.optional = self._type_spec._optional_spec._from_components([optional])

        @classmethod
        def of(cls, optional: Any, spec: Any) -> Any:
            batch = cls.__new__(cls)
            batch.optional, batch._type_spec = optional, spec
            return batch

        @property
        def element_spec(self) -> Any:
            return self.optional.element_spec

        def get_next(self) -> Any:
            return self.optional.get_value()

        def get_next_as_optional(self) -> Any:
            return self.optional

        def __next__(self) -> Any:
            if not self.optional.has_value():
                raise StopIteration
            return self.get_next()

    return Batch


def ended(original: Callable[[Any], AbstractContextManager[None]]) -> Callable[[Any], AbstractContextManager[None]]:
    """Return ``catch_stop_iteration`` so that it knows the end of the data: of TensorFlow's, a batch without value."""

    @contextmanager
    def catch(epochs: Any) -> Iterator[None]:
        with original(epochs):
            try:
                yield
            except Exception as error:
                batch = getattr(epochs, _LAST, None)
                if batch is None or type(error).__name__ != "InvalidArgumentError" or batch.optional.has_value():
                    raise
                raise StopIteration from None

    return catch


# -- fits that are saved, resumed and tuned ----------------------------------------------------------------------------

_EPOCHS = {"tensorflow": "TFEpochIterator", "jax": "JAXEpochIterator"}
"""Class that iterates over the epochs of a fit, by backend."""


EPOCH_RESET, EPOCH_TURNS = (
    {
        backend: LIBRARY.attribute(f"keras.src.backend.{backend}.trainer", f"{kind}.{method}")
        for backend, kind in _EPOCHS.items()
    }
    for method in ("reset", "_enumerate_iterator")
)
_ADAPTERS = "keras.src.trainers.data_adapters"
_HINT = "save a custom loop with tpunb.checkpoint.save"


def array_adapter() -> Any:
    """Return the class in which a fit holds arrays."""
    return import_module(f"{_ADAPTERS}.array_data_adapter").ArrayDataAdapter


def dataset_adapter() -> Any:
    """Return the class in which a fit holds a dataset of ``tf.data``."""
    return import_module(f"{_ADAPTERS}.tf_dataset_adapter").TFDatasetAdapter


def sliceable(inputs: Any) -> Any:
    """Return the arrays of a fit as Keras slices them, in NumPy."""
    return import_module(f"{_ADAPTERS}.array_slicing").convert_to_sliceable(inputs, target_backend="numpy")


def distribute(batch: Any) -> Any:
    """Return a batch on the devices of JAX, as a fit puts it there."""
    return import_module(EPOCH_RESET["jax"].home)._distribute_data(batch)


def global_state() -> Any:
    """Return the module of what Keras holds for each thread."""
    return import_module("keras.src.backend.common.global_state")


def seed_modules() -> tuple[Any, Any]:
    """Return the modules of global attributes, and of the global seed generator that is one of them."""
    try:
        state, generator = global_state(), import_module("keras.src.random.seed_generator")
        _ = state.get_global_attribute, state.set_global_attribute
        _ = generator.global_seed_generator, generator.GLOBAL_SEED_GENERATOR
    except (ImportError, AttributeError) as error:
        raise unsupported("the global seed generator of Keras {} is", "use an earlier Keras") from error
    return state, generator


def unsupported(subject: str, hint: str = _HINT) -> TpunbError:
    """Return the error that a part of this version of Keras is not as it was tried."""
    return TpunbError(f"{subject.format(import_module('keras').__version__)} not supported", hint=hint)


@cache
def check_fit() -> None:
    """Raise TpunbError unless a fit is as checkpoints and tuning need it: an epoch of three batches is run once."""
    keras = need("keras", extra="tensorflow")
    if (backend := keras.backend.backend()) not in _EPOCHS:
        problem = f"Keras runs on {backend}: a running fit can be tuned or resumed on TensorFlow and JAX only"
        raise TpunbError(problem, hint=f"{_HINT}; tune a loop of your own with tp.tuning.Job(build, step=step)")
    seed_modules()
    try:
        works = _try_epoch(backend) and "data_batch" in inspect.signature(keras.Model._symbolic_build).parameters
    except (ImportError, AttributeError, TypeError, ValueError, NotImplementedError):
        works = False
    if not works:
        raise unsupported("the internals of fit in Keras {} are")


class _Counted:
    """Data that count their iterators."""

    def __init__(self, data: Any) -> None:
        self.data, self.iterators = data, 0

    def __iter__(self) -> Iterator[Any]:
        self.iterators += 1
        return iter(self.data)


def _try_epoch(backend: str) -> bool:
    """Return whether an epoch of three batches creates two iterators, yields three turns and counts them."""
    kind: Any = getattr(LIBRARY.module(EPOCH_RESET[backend].home), _EPOCHS[backend])
    if backend == "jax":
        epochs, data = kind(x=np.zeros((3, 1)), batch_size=1), _Counted(range(3))
        epochs._get_iterator = lambda: data
        epochs.reset()
    else:
        import tensorflow as tf

        epochs = kind(x=tf.data.Dataset.range(3), shuffle=False, distribute_strategy=tf.distribute.get_strategy())
        epochs.reset()
        data = epochs._distributed_dataset = _Counted(epochs._distributed_dataset)
    turns = [(first, last, epochs._steps_seen) for first, last, _ in epochs._enumerate_iterator()]
    return bool(
        turns == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
        and (data.iterators, epochs._steps_seen, epochs._num_batches, epochs.steps_per_epoch) == (2, 0, 3, None)
        and epochs._current_iterator is not None
    )
