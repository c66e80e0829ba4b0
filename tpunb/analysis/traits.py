"""What is known of a program: its data, its framework, and what computes its operations."""

from __future__ import annotations

import polars as pl

from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import distinct_ops, of_ops

_FRAMEWORKS = {
    "PyTorch": r"^(aten::|autograd::|torch[.:]|Torch-Compiled)",
    "JAX": r"^(PjitFunction|jit_|jit\()",
    "TensorFlow": r"^(Eager[A-Z]|IteratorGetNext|(Read|Assign\w*)VariableOp|Resource(Apply|Gather)|tf\.)",
}
"""Operations that only one framework has; the first that has any wins."""

_PIPELINE = ("PyFunc", "^Iterator::")  # operations of tf.data's functions in Python, and of its stages


@memoised
def traits(steps: Steps) -> dict[str, str | None]:
    """Return what a program is, as far as it is known.

    ``data``, ``framework``, ``backend`` of operations, ``cache``, the programs that JAX keeps, and ``processors``
    that it may use. Data are "tuned tf.data" after trials, and "Python tf.data" where functions in Python take half
    of the pipeline.
    """
    data, named = steps.metadata.get("data"), distinct_ops(steps)
    ops = named["op"].unique().cast(pl.String)
    tuned = steps.wall is not None and bool((steps.wall.spans["account"] == "tuning").any())
    backend = next((name for name, pattern in _FRAMEWORKS.items() if ops.str.contains(pattern).any()), None)
    if backend is None and steps.read_run_events is not None and "jax" in steps.read_run_events().names["library"]:
        backend = "JAX"  # no step was traced
    framework = backend
    if framework != "PyTorch" and (steps.frame["rule"] == "keras").any():  # on any backend with such parameters
        framework = "Keras"
    if framework is None and (steps.frame["rule"] == "gradients").any():
        framework = "PyTorch"
    if data and tuned:
        data = f"tuned {data.removesuffix(' with workers')}"
    elif data == "tf.data":
        op = pl.col("op").cast(pl.String)
        of_kinds = (of_ops(steps, named.filter(op.str.contains(kind)), ["self_ps"]) for kind in _PIPELINE)
        in_python, all_ps = (int(rows["self_ps"].sum()) for rows in of_kinds)
        in_step = steps.metadata.get("python") == "step"  # not of the input
        data = "Python tf.data" if in_python > all_ps / 2 and not in_step else data
    recorded = {name: steps.metadata.get(name) for name in ("cache", "processors")}
    return {"data": data, "framework": framework, "backend": backend, **recorded}
