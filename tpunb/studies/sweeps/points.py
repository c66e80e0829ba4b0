"""Points of a sweep in a process of their own: built when first asked for, and measured with a batch in memory.

Requests and replies are pickles on standard input and output; what the program prints goes to standard error.
"""

from __future__ import annotations

import gc
import os
import pickle
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import psutil

from tpunb.errors import TpunbError
from tpunb.text import cut, format_error, plain
from tpunb.training.graph_work import graph_work
from tpunb.training.state import arrays
from tpunb.tuning.job import Job, are_arrays

_BLOCK_S = 0.02
"""Seconds of steps that are waited for together: shorter steps follow each other as in ``fit``."""

_MOST_BLOCK_STEPS = 1000  # steps of a block


class Setup(NamedTuple):
    """What all points have in common."""

    build: Callable[..., Any]
    step: Callable[[Any, Any], Any] | None
    mode: str
    memory: int  # bytes that the process may use


class Request(NamedTuple):
    """A point to measure, and the blocks to take."""

    point: int
    values: Mapping[str, Any]
    blocks: int
    forget: bool = False  # drop all other points first


class _Point:
    """A model with a batch."""

    def __init__(self, setup: Setup, values: Mapping[str, Any]) -> None:
        self.mode = setup.mode
        made = setup.build(**values)
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(f"build must return (model, data). Got {cut(repr(made))} instead.")
        self.model, data = made
        self.batch = data if are_arrays(data) else _first(data)
        self.is_keras = hasattr(self.model, "compute_output_shape") and hasattr(self.model, "count_params")
        if setup.step is None and not self.is_keras:
            raise TypeError(f"build must return a Keras model, or step= be given. Got {type(self.model).__name__}.")
        self.steps = 1  # of an execution
        self._execute = self._executed(setup.step)
        self.last = self._execute()
        self._wait()
        self.block(2)
        self.seconds = self.block(1)[0]

    def _executed(self, step: Callable[[Any, Any], Any] | None) -> Callable[[], Any]:
        """Return one step as ``fit`` takes it, or one prediction."""
        model, batch = self.model, self.batch
        if step is not None:
            return lambda: step(model, batch)
        if self.mode == "predict":
            inputs = batch[0] if isinstance(batch, tuple) else batch
            return lambda: model.predict_on_batch(inputs)
        if not model.compiled:
            raise TypeError("the model is not compiled")
        if _backend() == "torch" or find_spec("tensorflow") is None:
            parts = batch if isinstance(batch, tuple) else (batch,)
            return lambda: model.train_on_batch(*parts)
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        training, iterator = Job((model, dataset)).training, iter(dataset)
        self.steps = training.steps
        return lambda: training.execute(iterator)

    def _wait(self) -> None:
        for _ in arrays([self.last]):  # converts it, and so waits
            pass

    def block(self, steps: int) -> list[float]:
        """Take executions that are waited for together; return the seconds of a step."""
        begun = time.perf_counter()
        for _ in repeat(None, steps):
            self.last = self._execute()
        self._wait()
        return [(time.perf_counter() - begun) / (steps * self.steps)]

    def measured(self, blocks: int) -> dict[str, Any]:
        """Return the seconds of a step in each block, and those of steps that were waited for alone."""
        steps = max(1, min(int(_BLOCK_S / max(self.seconds * self.steps, 1e-9)), _MOST_BLOCK_STEPS))
        if self.mode == "predict":
            single = [self.block(1)[0] for _ in range(blocks * steps)]
            taken = [statistics.median(single)]
        else:
            taken = [self.block(steps)[0] for _ in range(blocks)]
            single = taken if steps * self.steps == 1 else []
        self.seconds = statistics.median(taken)
        return {"blocks": taken, "single": single}

    def facts(self) -> dict[str, Any]:
        """Return what is known of the point besides its time."""
        first = next(arrays(self.batch), None)
        flops, size = self._work()
        outputs = [value for value in arrays([self.last]) if value.dtype.kind == "f"]
        return {
            **_software(self.model, is_keras=self.is_keras),
            "weights": int(self.model.count_params()) if self.is_keras else None,
            "examples": int(first.shape[0]) if first is not None and first.ndim else None,
            "flops": flops,
            "bytes": size,
            "peak_bytes": _peak_bytes(),
            "finite": all(bool((value == value).all()) for value in outputs),
        }

    def _work(self) -> tuple[float | None, float | None]:
        """Return FLOPs and bytes of the matrix products and convolutions of a step; None where they are unknown."""
        try:
            if self.is_keras and _backend() == "tensorflow":
                return _tensorflow_work(self.model, self.batch, self.mode)
            if self.is_keras and _backend() == "jax" and self.mode == "train":
                return _jax_work(self.model, self.batch)
        except Exception:  # noqa: BLE001  a figure that is missing must not cost the measurement
            return None, None
        return None, None


def _first(data: Any) -> Any:
    batch = next(iter(data), None)
    if batch is None:
        raise TypeError("the data hold no batch")
    return batch


def _backend() -> str:
    import keras

    return str(keras.backend.backend())


def _tensorflow_work(model: Any, batch: Any, mode: str) -> tuple[float | None, float | None]:
    import tensorflow as tf

    def predicted(data: Any) -> Any:
        return model(data[0] if isinstance(data, tuple) else data, training=False)

    spec = tf.nest.map_structure(lambda part: tf.TensorSpec.from_tensor(tf.convert_to_tensor(part)), batch)
    graph = tf.function(model.train_step if mode == "train" else predicted).get_concrete_function(spec).graph
    if any(op.type in ("While", "StatelessWhile", "If", "StatelessIf") for op in graph.get_operations()):
        return None, None  # how often their bodies run is not known
    return graph_work(graph)


def _jax_work(model: Any, batch: Any) -> tuple[float | None, float | None]:
    import jax

    parts = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
    model.jax_state_sync()
    state = model._get_jax_state(**dict.fromkeys(parts, True))
    numbers = jax.tree.map(lambda part: jax.numpy.asarray(part), batch)
    cost = jax.jit(model.train_step).lower(state, numbers).cost_analysis() or {}
    return cost.get("flops"), cost.get("bytes accessed")


def _software(model: Any, *, is_keras: bool) -> dict[str, str | None]:
    """Return names of the device, the framework and its version, and the type that a model computes with."""
    loaded = next((name for name in ("jax", "torch", "tensorflow") if name in sys.modules), "Python")
    backend = _backend() if is_keras else loaded
    version = getattr(sys.modules.get(backend), "__version__", platform.python_version())
    if not is_keras:
        return {"device": _device(backend), "framework": backend, "version": version, "dtype": None}
    import keras

    compiled = ", XLA" if backend == "tensorflow" and model.jit_compile else ""
    return {
        "device": _device(backend),
        "framework": f"Keras on {backend}{compiled}",
        "version": f"{keras.__version__}, {version}",
        "dtype": str(model.dtype_policy.compute_dtype),
    }


def _device(backend: str) -> str:
    """Return the kind of the first accelerator, or "CPU"."""
    if backend == "jax":
        import jax

        first = jax.devices()[0]
        return "CPU" if first.platform == "cpu" else plain(first.device_kind)
    if backend == "tensorflow":
        import tensorflow as tf

        chips = [*tf.config.list_physical_devices("GPU"), *tf.config.list_physical_devices("TPU")]
        if chips:
            return plain(tf.config.experimental.get_device_details(chips[0]).get("device_name", chips[0].device_type))
    return "CPU"


def _peak_bytes() -> int | None:
    """Return the bytes that the accelerator had in use at most; None on a CPU, which counts none."""
    if (jax := sys.modules.get("jax")) is not None and jax.devices()[0].platform != "cpu":
        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if (tf := sys.modules.get("tensorflow")) is not None and tf.config.list_logical_devices("GPU"):
        peak = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        tf.config.experimental.reset_memory_stats("GPU:0")
        return peak
    return None


def _reply(setup: Setup, points: dict[int, _Point], request: Request) -> dict[str, Any]:
    try:
        if request.forget:
            points.clear()
            gc.collect()
        facts = None
        if request.point not in points:
            points[request.point] = point = _Point(setup, request.values)
            facts = point.facts()
        measured = points[request.point].measured(request.blocks)
        return {"state": "ok", "facts": facts, "rss": psutil.Process().memory_info().rss, **measured}
    except TpunbError as error:
        return {"state": f"failed: {format_error(error)}"}
    except Exception as error:  # noqa: BLE001  it is a result
        points.pop(request.point, None)
        return {"state": "out of memory" if _is_memory(error) else f"failed: {format_error(error)}"}


def _is_memory(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}"
    return isinstance(error, MemoryError) or any(
        sign in text for sign in ("ResourceExhausted", "RESOURCE_EXHAUSTED", "OutOfMemory", "out of memory")
    )


def _limit_memory(size: int) -> None:
    """Let larger allocations fail; drivers of accelerators reserve more than they use."""
    if sys.platform == "linux" and not any(Path("/dev").glob("nvidia*")) and not any(Path("/dev").glob("accel*")):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Read the path of imports and the `Setup`, reply that it is ready, and then to each `Request`."""
    sys.path[:] = pickle.load(requests)
    setup: Setup = pickle.load(requests)
    _limit_memory(setup.memory)
    points: dict[int, _Point] = {}
    pickle.dump("ready", replies)
    replies.flush()
    while True:
        try:
            request: Request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(_reply(setup, points, request), replies)
        replies.flush()


def main() -> None:
    """Serve on standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the program that sweeps
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
