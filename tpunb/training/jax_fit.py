"""State of a call of Keras' ``fit`` on JAX: its variables hold it when synced; its step is seen as a jaxpr."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.training import constants
from tpunb.training.fingerprints import Fingerprints
from tpunb.training.fit_state import Fit
from tpunb.training.jax_data import Feed, JaxData

PARTS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
"""Parts of the state of a step, in the order in which Keras passes them."""

_CALLBACKS = {"io_callback", "pure_callback", "python_callback", "infeed", "outfeed"}
"""Primitives whose results do not depend on their operands alone, or may not."""

_EAGER = (
    "the step runs Python code each time (run_eagerly=True, jit_compile=False or nnx), whose state is not seen: "
    "compile the model with jit_compile=True"
)


class JaxFit(Fit):
    """A call of ``fit`` on JAX and its position."""

    _unchecked: Mapping[str, Any] | None = None  # saved constants of the step

    def __post_init__(self) -> None:
        self.data: JaxData = JaxData(self.start)

    def sync(self) -> None:
        """Have the variables hold the state; Keras takes it from them again at the next step."""
        self.model.jax_state_sync()

    def write(self, folder: Path) -> dict[str, Any]:
        """Write everything that the next step depends on; return its metadata."""
        metadata = super().write(folder)
        return {**metadata, "batch": [[list(each.shape), str(each.dtype)] for each in _leaves(self._shapes)]}

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Fingerprints of its steps, which are compared with those of the saved run."""
        return _JaxFingerprints(None if self.start is None else self.start.resumed)

    @cached_property
    def hidden_state(self) -> str:
        """Sentence that names state of the step that is not saved, or ""; known after the first step."""
        self.sync()
        return "" if self._shapes is None else hidden_state(step_of(self.model, self._shapes))

    @cached_property
    def _constants(self) -> dict[str, str]:
        self.sync()
        step = None if self._shapes is None else step_of(self.model, self._shapes)
        return {"dataset": self.data.fingerprint, "model": "" if step is None else constants.of_jaxpr(step)}

    def _check_constants(self, saved: Mapping[str, str]) -> None:
        """Check those of the data, and those of the step after the first one, for which it is compiled."""
        self._check_constant("dataset", saved, self.data.fingerprint)
        self._unchecked = saved

    def _end_turn(self) -> None:
        saved, self._unchecked = self._unchecked, None
        if saved is not None:
            present = self.guarded(lambda: self._constants, default=dict[str, str]())
            self._check_constant("model", saved, present.get("model", saved.get("model", "")))

    def _watch_step(self, stack: ExitStack) -> None:
        """Watch nothing: eager steps are not exact."""

    def _build(self) -> bool:
        return True  # Keras has built it

    @cached_property
    def _shapes(self) -> Any:
        """Tree of the shapes and types of the first batch; resumed, as saved, so that constants are comparable."""
        import jax

        saved = [] if self.start is None else self.start.metadata.get("batch", [])
        struct: Any = jax.ShapeDtypeStruct
        leaves, tree = jax.tree.flatten(self.data.shapes)
        if len(saved) != len(leaves):
            return self.data.shapes
        return jax.tree.unflatten(tree, [struct(tuple(shape), dtype) for shape, dtype in saved])


class _JaxFingerprints(Fingerprints):
    """Fingerprints of a fit's steps on JAX, whose batches are noted as Keras draws them, after random callbacks."""

    _feed: Feed | None = None  # of the step

    def _is_drawn_before(self, iterator: Any) -> bool:
        if isinstance(iterator, Feed):
            self._feed, iterator.noted = iterator, []
        return False

    def _drawn(self) -> Any:
        feed, self._feed = self._feed, None
        if feed is None:
            return None
        noted, feed.noted = feed.noted, None
        return noted[0] if noted else None

    def _arrays(self, batch: Any) -> list[NDArray[Any]]:
        return [np.asarray(leaf) for leaf in _leaves(batch)]


def step_of(model: Any, shapes: Any) -> Any:
    """Return the jaxpr of a model's training step for a batch of some shapes; None if it is not compiled.

    The variables must hold the state. After a step with such a batch, nothing is traced again.
    """
    cells = (getattr(cell, "cell_contents", None) for cell in getattr(model.train_function, "__closure__", None) or ())
    step = next((part for part in cells if hasattr(part, "trace")), None)
    if step is None:
        return None
    return step.trace(model._get_jax_state(**dict.fromkeys(PARTS, True)), shapes).jaxpr


def hidden_state(step: Any) -> str:
    """Return a sentence that names state of a step that is not among its operands, or ""."""
    if step is None:
        return _EAGER
    names = (equation.primitive.name for part in constants.jaxprs(step) for equation in part.eqns)
    if (name := next((name for name in names if name in _CALLBACKS), None)) is None:
        return ""
    return f"the step calls {name}: what it returns or changes outside of the step cannot be saved"


def _leaves(tree: Any) -> list[Any]:
    import jax

    return [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
