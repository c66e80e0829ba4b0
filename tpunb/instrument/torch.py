"""PyTorch: batches, gradients and updates of loops, annotated steps, files, groups, its profiler, torch.compile.

Dynamo traces hooks and wrappers as a part of the program: with ``fullgraph=True`` these would end it, and a compiled
module warns of global hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from time import monotonic_ns, thread_time_ns
from typing import Any

from tpunb.instrument.batches import Batches
from tpunb.instrument.hooks import fetching
from tpunb.instrument.profiler_sessions import Sessions
from tpunb.instrument.registry import Evidence, Library, Priority, around, loaded, watching
from tpunb.instrument.sink import Clock, Result, Sink, What
from tpunb.signals import WORKERS_START

LIBRARY = Library("torch", "torch", ("2.7", "2.14"))

# -- batches -----------------------------------------------------------------------------------------------------------

LOADER_ITER = LIBRARY.attribute("torch.utils.data.dataloader", "DataLoader.__iter__")
LOADER_NEXT, *_READS = (
    LIBRARY.attribute(home, path, evidence=Evidence("fetch", data=data))
    for home, path, data in (
        ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", "DataLoader"),
        ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._next_data", "DataLoader with workers"),
        ("torch.utils.data.dataset", "TensorDataset.__getitem__", "TensorDataset"),
    )
)
"""What returns a batch; then what that calls, by the kind of the data."""


def _batches(sink: Sink, stack: ExitStack) -> None:
    """Record batches, and the start of iterators."""
    clock, tensors = sink.clock, sys.modules["torch"].utils.data.TensorDataset

    def start(original: Callable[[Any], Any], self: Any) -> Any:
        __tracebackhide__ = True
        if not sink.is_training():
            return original(self)
        workers = getattr(self, "num_workers", 0) > 0
        of_tensors = type(getattr(self, "dataset", None)) is tensors
        data = "DataLoader with workers" if workers else "TensorDataset" if of_tensors else "DataLoader"
        clock.metadata.setdefault("data", data)
        if clock.loads:
            return original(self)
        is_kept = getattr(self, "persistent_workers", True) and getattr(self, "_iterator", None) is not None
        anew = workers and not is_kept
        detail = WORKERS_START if anew else "start of a DataLoader"
        with clock.within("data loading", detail, what=What.of("torch", original)):
            return original(self)

    hook = fetching(sink, LOADER_NEXT, lambda batches: id(getattr(batches, "_dataset", batches)))
    LOADER_NEXT.listen(hook, Priority.CAPTURE, stack)
    LOADER_ITER.listen(around(start), Priority.CAPTURE, stack)


# -- gradients, modes and updates --------------------------------------------------------------------------------------

BACKWARD = LIBRARY.attribute("torch", "autograd.backward", evidence=Evidence("gradient"))
TRAIN_MODE = LIBRARY.attribute("torch", "nn.Module.train", "mode")
STEP = LIBRARY.attribute(  # which calls the step of an optimizer, and the hooks of all of them
    "torch.optim.optimizer",
    "Optimizer.profile_hook_step",
    evidence=Evidence("update", "Optimizer.profile_hook_step.<locals>.wrapper"),
)


class _CudaEvent:
    """What a device was asked to do until now."""

    def __init__(self, cuda: Any) -> None:
        self._event = cuda.Event(blocking=True)
        self._event.record()

    def is_ready(self) -> bool:
        return bool(self._event.query())

    def block_until_ready(self) -> None:
        self._event.synchronize()


def _in_flight(torch: Any) -> Result | None:
    with suppress(Exception):  # a device that fails reports it to the program
        cuda = torch.cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            return _CudaEvent(cuda)
    return None


def _settings(torch: Any, optimizer: Any) -> dict[str, str]:
    """Return what decides how fast steps compute: threads on a CPU, and double precision."""
    settings = dict[str, str]()
    with suppress(Exception):  # an optimizer of the program may hold anything
        settings = {"threads": str(torch.get_num_threads())}
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if parameters and all(each.dtype == torch.float64 for each in parameters):
            settings["dtype"] = "float64"
    return settings


def _updates(sink: Sink, stack: ExitStack) -> None:
    """Record updates by optimizers, and the first call of a model."""
    torch, optimizer = sys.modules["torch"], sys.modules["torch.optim.optimizer"]
    begun, compiling = dict[int, int](), is_compiling()
    steps = dict[type, What]()  # by class of optimizers
    model = What.of("torch", torch.nn.Module.__call__)

    def before(each: Any, *_: Any) -> None:
        if not compiling():
            begun[id(each)] = monotonic_ns()

    def after(each: Any, *_: Any) -> None:
        if compiling():
            return
        now_ns = monotonic_ns()
        if not steps:
            sink.clock.metadata.update(_settings(torch, each))
        what = steps.get(kind := type(each)) or steps.setdefault(kind, What.of("torch", kind.step))
        sink.updated(id(each), begun.pop(id(each), now_ns), now_ns, _in_flight(torch), what=what)

    for register, hook in (
        (optimizer.register_optimizer_step_pre_hook, before),
        (optimizer.register_optimizer_step_post_hook, after),
    ):
        stack.callback(register(hook).remove)

    def prepare(_: Any, inputs: Any) -> None:
        if sink.is_training():
            remove()
            sink.prepared(what=model, arrays=Batches().of(None, inputs)[0])

    # where no batch is fetched, the first step begins with the first call of a model
    remove = add_module_hook("register_module_forward_pre_hook", prepare)
    stack.callback(remove)


def _gradients(sink: Sink, stack: ExitStack) -> None:
    """Record gradients, and modes of the whole model."""
    torch, clock, compiling, is_within = sys.modules["torch"], sink.clock, is_compiling(), [False]
    backward_pass, trains = (What.of("torch", each) for each in (torch.autograd.backward, torch.nn.Module.train))
    evaluates = trains._replace(name="Module.eval")  # which calls the other

    def learn(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return backward(*args, **kwargs)
        begun_ns = monotonic_ns()
        shared = clock.has_peers and not torch.cuda.is_initialized()  # whose streams wait, not the host
        worked_ns = thread_time_ns() if shared else 0
        value = backward(*args, **kwargs)
        if shared:
            clock.waited(begun_ns, worked_ns, backward_pass)
        sink.adopt_if_idle()
        if sink.is_training():
            sink.learned(begun_ns, what=backward_pass)
            if torch.is_anomaly_enabled():
                clock.metadata["debug"] = "torch.autograd.set_detect_anomaly"
        return value

    def train(original: Callable[..., Any], self: Any, mode: bool = True) -> Any:
        if compiling() or is_within[0] or not sink.is_training():  # of a part of the model
            return original(self, mode)
        is_within[0] = True
        try:
            return original(self, mode)
        finally:
            is_within[0] = False
            sink.evaluates(on=not mode, what=trains if mode else evaluates)

    BACKWARD.listen(around(learn), Priority.CAPTURE, stack)
    TRAIN_MODE.listen(around(train), Priority.CAPTURE, stack)


def listen_to_optimizers(call: Callable[[Any], object], stack: ExitStack) -> None:
    """Call a function with each optimizer that has updated its parameters."""

    def register(stack: ExitStack) -> None:
        hook = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
        stack.callback(hook(lambda each, *_: call(each)).remove)

    stack.enter_context(watching("torch.optim.optimizer", register))


# -- steps that the program annotates ----------------------------------------------------------------------------------

PROFILER_STEP = LIBRARY.attribute("torch", "profiler.profile.step")
PROFILER_STOP = LIBRARY.attribute("torch", "profiler.profile.stop")


def _annotations(sink: Sink, stack: ExitStack) -> None:
    """Begin a step with each call of ``step`` of the program's own profiler."""
    clock, opened = sink.clock, list[Any]()

    def stepping(begins: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        while opened:
            clock.end(opened.pop())
        result = original(*args, **kwargs)
        if begins and clock.opened is None:
            opened.append(clock.begin("train", explicit=True, rule="annotation", what=What.of("torch", original)))
            if opened[-1] is not None:
                opened[-1].lasts = True
        return result

    for method, begins in ((PROFILER_STEP, True), (PROFILER_STOP, False)):
        method.listen(around(partial(stepping, begins)), Priority.CAPTURE, stack)


# -- what torch.compile must not see -----------------------------------------------------------------------------------

COMPILE = LIBRARY.attribute("torch._dynamo.eval_frame", "_TorchDynamoContext.__init__", "callback")

_handles = list[Any]()  # of global hooks of modules


def is_compiling() -> Callable[[], bool]:
    """Return a function that Dynamo takes for True, so that of a wrapper it traces the original alone."""
    return getattr(getattr(sys.modules["torch"], "compiler", None), "is_dynamo_compiling", None) or (lambda: False)


def add_module_hook(register: str, hook: Callable[..., Any], **options: Any) -> Callable[[], None]:
    """Add a global hook of modules, unless something is compiled; return what removes it."""
    if compiles():
        return lambda: None
    handle = getattr(sys.modules["torch"].nn.modules.module, register)(hook, **options)
    _handles.append(handle)

    def remove() -> None:
        handle.remove()
        with suppress(ValueError):
            _handles.remove(handle)

    return remove


def compiles() -> bool:
    """Return whether the program has asked torch.compile for something, as far as that can be known."""
    utils, frames = (sys.modules.get(f"torch._dynamo.{name}") for name in ("utils", "eval_frame"))
    if utils is None or frames is None:  # optimizers import them, too
        return False
    try:
        return bool(utils.counters.get("frames")) or any(map(callable, [*frames.cached_backends.values()]))
    except AttributeError:  # a version with other names
        return True


def _compilations(sink: Sink, stack: ExitStack) -> None:
    """Remove all hooks as the program asks torch.compile for something; the first compilation prepares a step."""

    def begin(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if callable(args[0] if args else kwargs.get("callback")):  # else it disables compilation
            while _handles:
                _handles.pop().remove()
        return original(self, *args, **kwargs)

    is_first, compilation = [True], What("torch", COMPILE.home, "optimize")

    def compiled(_: Any) -> None:  # stays: a list from which it were removed now would skip the next
        if is_first and is_first.pop() and sink.is_training():
            sink.prepared(what=compilation)

    COMPILE.listen(around(begin), Priority.CAPTURE, stack)
    with suppress(AttributeError, KeyError):  # a version with other names
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        handler.start_callbacks.append(compiled)
        stack.callback(lambda: compiled in handler.start_callbacks and handler.start_callbacks.remove(compiled))


# -- files -------------------------------------------------------------------------------------------------------------

SAVE, LOAD = (
    LIBRARY.attribute("torch", name, evidence=Evidence(event, f"torch.serialization.{name}"))
    for name, event in (("save", "save"), ("load", "restore"))
)


def _files(sink: Sink, stack: ExitStack) -> None:
    """Record what is saved to files and read from them; in memory, it is a part of what the program makes of it."""

    def call(event: str, what: What, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with nullcontext() if any(isinstance(each, BytesIO) for each in args) else sink.clock.during(event, what):
            return original(*args, **kwargs)

    for attribute, event in ((SAVE, "save"), (LOAD, "restore")):
        hook = around(partial(call, event, What(LIBRARY.name, attribute.home, attribute.path)))
        attribute.listen(hook, Priority.CAPTURE, stack)


# -- groups of processes -----------------------------------------------------------------------------------------------

BEGIN_GROUP = LIBRARY.attribute(
    *("torch", "distributed.init_process_group"),
    optional=True,
    evidence=Evidence("wait", "distributed_c10d.init_process_group"),
)
WAITS = tuple(
    LIBRARY.attribute(  # builds without it
        "torch", f"distributed.{name}", optional=True, evidence=Evidence("wait", f"distributed_c10d.{name}")
    )
    for name in (
        *("destroy_process_group", "new_group", "barrier", "monitored_barrier", "Work.wait"),
        *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "broadcast_object_list", "all_gather"),
        *("all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "gather", "gather_object", "scatter"),
        *("scatter_object_list", "all_to_all", "all_to_all_single", "reduce_scatter", "reduce_scatter_tensor"),
    )
)
"""Functions in which a rank waits for the others."""
WRAPS = tuple(
    LIBRARY.attribute("torch.nn.parallel.distributed", name, optional=True)
    for name in ("_verify_param_shape_across_processes", "_sync_module_states")
)
"""The like, as a DistributedDataParallel is made."""


def _groups(sink: Sink, stack: ExitStack) -> None:
    """Record calls in which a rank waits for the others."""
    clock, compiling = sink.clock, is_compiling()

    def wait(what: What, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if compiling() or not clock.has_peers:
            return original(*args, **kwargs)
        with clock.during("wait", what):
            return original(*args, **kwargs)

    def begin(what: What, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with clock.during("wait", what):
            value = original(*args, **kwargs)
        find_peers(clock)
        return value

    find_peers(clock)
    for attribute in (BEGIN_GROUP, *WAITS, *WRAPS):
        name = "DistributedDataParallel" if attribute in WRAPS else attribute.path.removeprefix("distributed.")
        what = What(LIBRARY.name, attribute.home, name)
        hook = around(partial(begin if attribute is BEGIN_GROUP else wait, what))
        attribute.listen(hook, Priority.CAPTURE, stack)


def process_group() -> tuple[int, int] | None:
    """Return rank and size of the group of processes that the program has initialised; None without one."""
    distributed = loaded("torch.distributed")
    with suppress(Exception):  # a group that ends meanwhile
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return None


def find_peers(clock: Clock) -> None:
    """Let a clock know that other ranks train with this process, once it has a group: that may end before the run."""
    group = process_group()
    clock.has_peers = clock.has_peers or (group is not None and group[1] > 1)


# -- the first signs of a training -------------------------------------------------------------------------------------

TRAINS = (
    LIBRARY.attribute("torch", "optim.Optimizer.__init__"),
    BEGIN_GROUP,
    BACKWARD,  # with an optimizer made before a fork, or none
)
"""What is called first where a process trains."""

# -- its profiler ------------------------------------------------------------------------------------------------------

SESSIONS = Sessions(  # which have no class: functions begin and end them
    LIBRARY,
    functions=(
        (
            LIBRARY.attribute("torch", "autograd.profiler._prepare_profiler"),
            LIBRARY.attribute("torch", "autograd.profiler._disable_profiler"),
        ),
    ),
)


def profiles_all_threads() -> bool:
    """Return whether the program has imported a version whose profiler records all threads, and may begin now.

    It imports Dynamo, as each optimizer does, and that Triton, which ends a process that has imported TensorFlow
    before. So a session waits there until the program has imported Dynamo itself.
    """
    if "tensorflow" in sys.modules and "torch._dynamo" not in sys.modules and find_spec("triton"):
        return False
    profiler = getattr(LIBRARY.module(), "profiler", None)
    config = getattr(profiler, "_ExperimentalConfig", None)
    if not callable(config) or not callable(getattr(profiler, "profile", None)):
        return False
    try:
        config(profile_all_threads=True)
    except Exception:  # noqa: BLE001  a version without it
        return False
    return True


def is_importing() -> bool:
    """Return whether another thread imports a part of it: its profiler imports some, which import each other."""
    parts = [module for name, module in sys.modules.copy().items() if name == "torch" or name.startswith("torch.")]
    return any(getattr(getattr(part, "__spec__", None), "_initializing", False) for part in parts)


def profiler_session(*, shapes: bool) -> Any:
    """Return a session of its profiler over all threads."""
    profiler = sys.modules["torch"].profiler
    kinds = profiler.ProfilerActivity
    activities = [kinds.CPU, *([kinds.CUDA] if has_cuda() else [])]
    config = profiler._ExperimentalConfig(profile_all_threads=True)
    return profiler.profile(activities=activities, record_shapes=shapes, experimental_config=config)


def has_cuda() -> bool:
    """Return whether it can compute on GPUs of CUDA."""
    cuda = getattr(sys.modules["torch"], "cuda", None)
    return cuda is not None and bool(cuda.is_available())


def devices() -> list[str]:
    """Return the names of its devices, as in profiles."""
    with suppress(Exception):  # a build without CUDA
        if found := [f"/device:GPU:{n}" for n in range(sys.modules["torch"].cuda.device_count())]:
            return found
    return ["/device:CPU:0"]


def annotation(kind: str, number: int) -> AbstractContextManager[Any]:
    """Return its annotation of a step, as its profiler names steps."""
    annotation: AbstractContextManager[Any] = sys.modules["torch"].profiler.record_function(f"ProfilerStep#{number}")
    return annotation


# -- what checkpoints and tuning need ----------------------------------------------------------------------------------

WRITE_FILE = LIBRARY.attribute("torch.serialization", "_open_zipfile_writer")


def on_updates(call: Callable[[Any], object], stack: ExitStack) -> bool:
    """Call with each optimizer that takes a step, until the stack is closed; return whether PyTorch is imported."""
    if (optimizers := LIBRARY.module("torch.optim.optimizer")) is None:
        return False
    stack.callback(optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: call(optimizer)).remove)
    return True


def become_worker(number: int, workers: int, seed: int, dataset: Any) -> None:
    """Have this process pass for a worker of a DataLoader."""
    module: Any = import_module("torch.utils.data._utils.worker")
    module._worker_info = module.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)


# ----------------------------------------------------------------------------------------------------------------------


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    LIBRARY.on_import(stack, *(partial(part, sink) for part in (_batches, _updates, _gradients, _annotations, _groups)))
    stack.enter_context(watching(COMPILE.home, partial(_compilations, sink)))
    stack.enter_context(watching("torch", partial(_files, sink)))
