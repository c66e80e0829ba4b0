"""Updates by an optimizer: of PyTorch by its hooks, of TensorFlow's eager loops by Keras' optimizers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic_ns, thread_time_ns
from typing import Any

from tpunb.instrument.registry import around, wrapped
from tpunb.profiler import dynamo
from tpunb.profiler.in_flight import Result
from tpunb.profiler.loop import Loop


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
        if cuda.is_available() and cuda.is_initialized() and not cuda.is_current_stream_capturing():
            return _CudaEvent(cuda)
    return None


def _dynamo(loop: Loop, stack: ExitStack) -> None:
    dynamo.watch(stack, lambda: loop.prepared() if loop.is_training() else None)


def _torch(loop: Loop, stack: ExitStack) -> None:
    torch = sys.modules["torch"]
    optimizer = sys.modules["torch.optim.optimizer"]
    begun: dict[int, int] = {}
    is_compiling = dynamo.is_compiling()

    def before(each: Any, *_: Any) -> None:
        if not is_compiling():
            begun[id(each)] = monotonic_ns()

    def after(each: Any, *_: Any) -> None:
        if is_compiling():
            return
        now_ns = monotonic_ns()
        loop.updated(id(each), begun.pop(id(each), now_ns), now_ns, _in_flight(torch))

    for register, hook in (
        (optimizer.register_optimizer_step_pre_hook, before),
        (optimizer.register_optimizer_step_post_hook, after),
    ):
        stack.callback(register(hook).remove)

    def prepare(*_: Any) -> None:
        if loop.is_training():
            remove()
            loop.prepared()

    # where no batch is fetched, the first step begins with the first call of a model
    remove = dynamo.add_hook("register_module_forward_pre_hook", prepare)
    stack.callback(remove)

    def learn(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return backward(*args, **kwargs)
        begun_ns = monotonic_ns()
        shared = loop.clock.has_peers and not torch.cuda.is_initialized()  # whose streams wait, not the host
        worked_ns = thread_time_ns() if shared else 0
        value = backward(*args, **kwargs)
        if shared:
            loop.clock.waited(begun_ns, worked_ns)
        loop.adopt_if_idle()
        if loop.is_training():
            loop.learned(begun_ns)
            if torch.is_anomaly_enabled():
                loop.clock.metadata["debug"] = "torch.autograd.set_detect_anomaly"
        return value

    stack.enter_context(wrapped(torch.autograd, "backward", around(learn)))
    within = [False]

    def train(original: Callable[..., Any], self: Any, mode: bool = True) -> Any:
        if is_compiling() or within[0] or not loop.is_training():  # of a part of the model
            return original(self, mode)
        within[0] = True
        try:
            return original(self, mode)
        finally:
            within[0] = False
            loop.evaluates(on=not mode)

    stack.enter_context(wrapped(torch.nn.Module, "train", around(train)))


def _keras(loop: Loop, stack: ExitStack) -> None:
    """Record updates in eager loops; in a compiled function they happen at its tracing alone."""
    base = getattr(sys.modules.get("keras.src.optimizers.base_optimizer"), "BaseOptimizer", None)
    tf = sys.modules.get("tensorflow")
    if base is None or tf is None or "apply" not in vars(base):
        return

    def apply(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = monotonic_ns()
        value = original(self, *args, **kwargs)
        if loop.is_training() and tf.executing_eagerly():
            loop.clock.metadata.setdefault("eager", "TensorFlow")
            loop.updated(id(self), begun_ns, monotonic_ns(), None)
        return value

    stack.enter_context(wrapped(base, "apply", around(apply)))


PATCHES = {"torch": _torch, "torch._dynamo.eval_frame": _dynamo, "keras": _keras}
