"""Remedies that can be applied to a program that is not changed, for a trial of what they save."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum, auto
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tpunb.instrument import jax, keras, python, tensorflow, torch
from tpunb.instrument.registry import Attribute, Priority, around

_WORKERS = 2  # as in the code that is advised
_NTH = 5  # evaluation that remains
_SAVE = 10  # checkpoint that remains
_READ = 10  # number of the device that is read
_HERE = str(Path(__file__).parents[1])

LOADER = torch.LIBRARY.attribute(torch.LOADER_ITER.home, "DataLoader.__init__", "num_workers", "persistent_workers")
FETCH_ROWS = torch.LIBRARY.attribute("torch.utils.data._utils.fetch", "_MapDatasetFetcher.fetch")
NUMBERS = [torch.LIBRARY.attribute("torch", f"Tensor.{name}") for name in ("item", "__float__")]
THREADS = torch.LIBRARY.attribute("torch", "set_num_threads")
ANOMALIES = torch.LIBRARY.attribute("torch.autograd.anomaly_mode", "set_detect_anomaly.__init__", "mode")
ANOMALIES_WITHIN = torch.LIBRARY.attribute("torch.autograd.anomaly_mode", "detect_anomaly.__enter__")
JIT = jax.LIBRARY.attribute("jax", "jit")
SETTINGS = jax.LIBRARY.attribute("jax", "config.update")
FUNCTION = tensorflow.LIBRARY.attribute("tensorflow", "function", "func")
ITERATE = tensorflow.LIBRARY.attribute("tensorflow.python.data.ops.dataset_ops", "DatasetV2.__iter__")
MAP = tensorflow.LIBRARY.attribute("tensorflow.python.data.ops.dataset_ops", "DatasetV2.map", "num_parallel_calls")
EAGERLY = tensorflow.LIBRARY.attribute("tensorflow", "config.run_functions_eagerly")
COMPILE = keras.LIBRARY.attribute("keras", "Model.compile", "run_eagerly", "steps_per_execution")
FLOATS = keras.LIBRARY.attribute("keras", "config.set_floatx")
ADAPT = keras.LIBRARY.attribute("keras.src.trainers.data_adapters.py_dataset_adapter", "PyDatasetAdapter.__init__", "x")
COLLECT = python.LIBRARY.attribute("gc", "collect")


class Trial(StrEnum):
    """What a remedy can be tried by."""

    NONE = auto()
    WORKERS = auto()
    KEPT_WORKERS = auto()
    ROWS_AT_ONCE = auto()
    PARALLEL_MAPS = auto()
    NO_AUTOTUNING = auto()
    PYDATASET_WORKERS = auto()
    STEPS_PER_CALL = auto()
    COMPILED = auto()
    CALLED_MODEL = auto()
    RARE_EVALUATION = auto()
    RARE_SAVES = auto()
    KEPT_PROGRAMS = auto()
    WRAPPED_ONCE = auto()
    NO_COLLECT = auto()
    NO_COLLECTION = auto()
    NO_ANOMALY_DETECTION = auto()
    ALL_THREADS = auto()
    SINGLE_PRECISION = auto()
    COMPILED_MODULE = auto()
    CHANNELS_LAST = auto()
    RARE_READS = auto()


class Change(NamedTuple):
    """What a program runs with that is not changed itself."""

    about: str
    hooks: Mapping[Attribute, Callable[..., Any]] = {}  # in place of an attribute; each takes the original first
    loses: str = ""  # what the program would lack
    variables: tuple[tuple[str, str], ...] = ()  # of the environment; "{folder}" is one that is kept between runs
    unset: tuple[str, ...] = ()
    begin: Callable[[ExitStack, Callable[[], object]], object] | None = None  # sets what is of the process

    def apply(self, stack: ExitStack, reached: Callable[[], object] = int) -> None:
        """Change what the program asks of its libraries until the stack is closed; call `reached` where it does."""
        for attribute, hook in self.hooks.items():
            stack.enter_context(attribute.listening(around(partial(_noted, reached, hook)), Priority.TUNING))
        if self.begin is not None:
            self.begin(stack, reached)


def _noted(reached: Callable[[], object], hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    reached()
    return hook(*args, **kwargs)


def _with(values: Mapping[str, Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with these values of parameters, whatever the program gives."""
    __tracebackhide__ = True
    call = inspect.signature(original).bind(*args, **kwargs)
    names, rest = call.signature.parameters, dict[str, Any]()
    for name, value in values.items():
        (call.arguments if name in names else rest)[name] = value
    return original(*call.args, **call.kwargs, **rest)


def _nothing(original: Callable[..., Any], *_: Any, **__: Any) -> int:
    return 0


def _workers(original: Callable[..., Any], self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(original).bind(self, dataset, *args, **kwargs).arguments
    values = {"num_workers": _WORKERS, "persistent_workers": True}
    # each worker would read all of data without indices
    is_read_alone = not given.get("num_workers") and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return _with(values if is_read_alone else {}, original, self, dataset, *args, **kwargs)


def _kept_workers(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    return _with({"persistent_workers": bool(given.get("num_workers"))}, original, *args, **kwargs)


def _rows(original: Callable[..., Any], self: Any, index: Any) -> Any:
    import torch as library

    data = library.utils.data
    is_plain = type(self.dataset) is data.TensorDataset and self.collate_fn is data.default_collate
    if is_plain and self.auto_collation and isinstance(index, list):
        return [tensor[index] for tensor in self.dataset.tensors]
    return original(self, index)


def _prefetched(original: Callable[..., Any], self: Any) -> Any:
    return original(self.prefetch(-1))  # tf.data.AUTOTUNE


def _without_autotune(original: Callable[..., Any], self: Any) -> Any:
    import tensorflow as library

    options = library.data.Options()
    options.autotune.enabled = False
    return original(self.with_options(options))


def _each(number: int) -> Callable[..., Any]:
    """Return a hook that makes only each call of this number."""
    calls = [0]

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return original(*args, **kwargs) if calls[0] % number == 0 else None

    return hook


def _evaluated_rarely(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _with({"validation_freq": _NTH}, original, *args, **kwargs)


def _called(original: Callable[..., Any], self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(original).bind(self, x, *args, **kwargs).arguments
    most = given.get("batch_size") or 32
    if not hasattr(x, "shape") or len(x) > most or given.get("callbacks"):
        return original(self, x, *args, **kwargs)
    import keras as library

    return library.ops.convert_to_numpy(self(x, training=False))


def _read_ahead(original: Callable[..., Any], self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    x.workers, x.use_multiprocessing, x.max_queue_size = 4, True, 16
    return original(self, x, *args, **kwargs)


def _in_single_precision(original: Callable[..., Any], name: str, value: Any) -> Any:
    return None if name == "jax_enable_x64" else original(name, value)


def _once() -> Callable[..., Any]:
    """Return a hook that wraps a function that the program makes again as it was wrapped first."""
    wrapped_before: dict[Any, tuple[Any, Any]] = {}

    def hook(original: Callable[..., Any], function: Any = None, **kwargs: Any) -> Any:
        if not isinstance(function, FunctionType):
            return original(function, **kwargs) if function is not None else partial(hook, original, **kwargs)
        key = _code_of(function), repr(sorted(kwargs.items()))
        if key not in wrapped_before:
            wrapped_before[key] = function, original(function, **kwargs)  # what is named by its id stays
        return wrapped_before[key][1]

    return hook


def _code_of(function: FunctionType, depth: int = 4) -> Any:
    """Return what a function computes from: its code, its defaults, and what it holds from where it was made."""

    def value_of(value: Any) -> Any:
        if isinstance(value, FunctionType) and depth:
            return _code_of(value, depth - 1)
        return (type(value), value) if isinstance(value, int | float | str | bool | None) else id(value)

    cells = function.__closure__ or ()
    return (
        function.__code__,
        tuple(value_of(cell.cell_contents) for cell in cells),
        tuple(map(value_of, function.__defaults__ or ())),
    )


def _without_collection(stack: ExitStack, reached: Callable[[], object]) -> None:
    reached()
    if gc.isenabled():
        gc.disable()
        stack.callback(gc.enable)


def _of_torch(change: Callable[..., object], stack: ExitStack, reached: Callable[[], object]) -> None:
    """Change what is of PyTorch once it is imported."""
    torch.LIBRARY.on_import(stack, partial(change, reached))


def _with_all_threads(reached: Callable[[], object], stack: ExitStack) -> None:
    import torch as library

    threads, processors = library.get_num_threads(), os.cpu_count() or 1
    if 2 * threads < processors + 1:  # else PyTorch has one for each core
        stack.callback(THREADS.unwrapped(), threads)
        THREADS.unwrapped()(processors)
        reached()


def _on_first_model(change: Callable[[Any], object], reached: Callable[[], object], stack: ExitStack) -> None:
    """Call a function with the first module that trains parameters."""
    import torch as library

    def called(module: Any, _: Any) -> None:
        if module.training and library.is_grad_enabled() and next(module.parameters(), None) is not None:
            handle.remove()
            reached()
            change(module)

    handle = library.nn.modules.module.register_module_forward_pre_hook(called)
    stack.callback(handle.remove)


def _with_channels_last(module: Any) -> None:
    import torch as library

    def inputs(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        images = (isinstance(each, library.Tensor) and each.ndim == 4 for each in given)
        pairs = zip(given, images, strict=True)
        return tuple(each.to(memory_format=library.channels_last) if is_image else each for each, is_image in pairs)

    module.to(memory_format=library.channels_last)
    module.register_forward_pre_hook(inputs)


@cache
def _expression(code: CodeType, instruction: int) -> Any:
    """Return the place of an expression, which its instructions share."""
    return code, next(islice(code.co_positions(), instruction // 2, None))


def _read_rarely() -> Callable[..., Any]:
    """Return a hook that reads each so many-th number at a place of the program, and else returns the last."""
    last: dict[Any, tuple[int, Any]] = {}

    def hook(original: Callable[..., Any], tensor: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        place = _expression(frame.f_code, frame.f_lasti)
        count, value = last.get(place, (0, None))
        last[place] = count + 1, original(tensor) if count % _READ == 0 else value
        return last[place][1]

    return hook


_SAVES = (torch.SAVE, *(keras.FILES[name] for name in ("save", "save_weights")))

CHANGES: dict[Trial, Change] = {
    Trial.NONE: Change("the program as it is"),
    Trial.WORKERS: Change("DataLoaders have two workers, which are kept", {LOADER: _workers}),
    Trial.KEPT_WORKERS: Change("workers of DataLoaders are kept", {LOADER: _kept_workers}),
    Trial.ROWS_AT_ONCE: Change("a batch of a TensorDataset is read at once", {FETCH_ROWS: _rows}),
    Trial.PARALLEL_MAPS: Change(
        "tf.data maps in parallel and prefetches",
        {MAP: partial(_with, {"num_parallel_calls": -1}), ITERATE: _prefetched},
    ),
    Trial.NO_AUTOTUNING: Change("tf.data does not tune itself", {ITERATE: _without_autotune}),
    Trial.PYDATASET_WORKERS: Change("a PyDataset has 4 processes", {ADAPT: _read_ahead}),
    Trial.STEPS_PER_CALL: Change("16 steps per call", {COMPILE: partial(_with, {"steps_per_execution": 16})}),
    Trial.COMPILED: Change(
        "the model is compiled", {COMPILE: partial(_with, {"run_eagerly": False}), EAGERLY: _nothing}
    ),
    Trial.CALLED_MODEL: Change("the model is called on its batch, not by predict", {keras.METHODS["predict"]: _called}),
    Trial.RARE_EVALUATION: Change(
        "one evaluation in five epochs", {keras.METHODS["fit"]: _evaluated_rarely}, "the other evaluations"
    ),
    Trial.RARE_SAVES: Change(
        "one save of ten", {each: _each(_SAVE) for each in _SAVES}, "up to nine saves' time after a failure"
    ),
    Trial.KEPT_PROGRAMS: Change(
        "programs are kept from one run to the next",
        variables=(
            ("JAX_COMPILATION_CACHE_DIR", "{folder}/programs"),
            ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
            ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0"),
        ),
    ),
    Trial.WRAPPED_ONCE: Change("a function is wrapped once", {JIT: _once(), FUNCTION: _once()}),
    Trial.NO_COLLECT: Change("gc.collect() does nothing", {COLLECT: _nothing}),
    Trial.NO_COLLECTION: Change(
        "no garbage collection", loses="memory, where objects refer to each other in circles", begin=_without_collection
    ),
    Trial.NO_ANOMALY_DETECTION: Change(
        "anomalies are not looked for", {ANOMALIES: partial(_with, {"mode": False}), ANOMALIES_WITHIN: _nothing}
    ),
    Trial.ALL_THREADS: Change(
        "PyTorch uses all processors",
        {THREADS: _nothing},
        unset=("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
        begin=partial(_of_torch, _with_all_threads),
    ),
    Trial.SINGLE_PRECISION: Change(
        "float32 in place of float64", {SETTINGS: _in_single_precision, FLOATS: _nothing}, unset=("JAX_ENABLE_X64",)
    ),
    Trial.COMPILED_MODULE: Change(
        "torch.compile of the model",
        begin=partial(_of_torch, partial(_on_first_model, lambda model: model.compile())),
    ),
    Trial.CHANNELS_LAST: Change(
        "the model and its images are channels-last",
        begin=partial(_of_torch, partial(_on_first_model, _with_channels_last)),
    ),
    Trial.RARE_READS: Change(
        "one number of ten is read from the device", {each: _read_rarely() for each in NUMBERS}, "the other numbers"
    ),
}
"""What a trial changes."""
