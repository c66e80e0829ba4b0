"""``collect``: time a JAX function with several layouts of its arguments and compile options."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

from tpunb.errors import TpunbError, check_whole, need, warn_user, wrong_type
from tpunb.studies.ranking.columns import CONFIGURATIONS
from tpunb.studies.ranking.graphs import module_of
from tpunb.studies.ranking.measured import Measured, of_programs
from tpunb.studies.step_times import step_times
from tpunb.text import format_error, plain, plural

Order = tuple[int, ...]

_RUNS = 3  # in a round, of which the fastest counts
_FEWEST_ROUNDS, _MOST_ROUNDS = 6, 100  # rounds
_EQUAL = 0.01  # relative difference of times that nobody needs to separate
_CHANGING = re.compile(
    "fast|precision|approx|denormal|excess|relax|reassoc|bf16|f16|tf32|determin|quant|autocast", re.I
)
"""Compile options that may change results."""


@dataclass(frozen=True)
class Configuration:
    """Orders of the dimensions of each argument, major to minor, and compile options; orders are None for AUTO."""

    orders: tuple[Order, ...] | None
    options: Mapping[str, Any] | None = None


class Function:
    """A JAX function and arguments for it, checked: one device, fixed shapes, no effects, nothing donated."""

    def __init__(self, f: Any, args: Sequence[Any]) -> None:
        jax = need("jax", extra="jax")
        self._layouts = import_module("jax.experimental.layout")
        if not hasattr(self._layouts, "Format"):
            raise TpunbError(f"JAX {jax.__version__} has no formats of arrays", hint="install jax 0.7 or later")
        if not callable(f):
            raise wrong_type("collect", "f", "be a JAX function or a Keras model on JAX", f)
        if isinstance(args, str) or not isinstance(args, Sequence):
            given = type(args).__name__
            raise wrong_type("collect", "args", "be a sequence of arrays", given, hint="write collect(f, (x, y))")
        self.name = plain(getattr(f, "__name__", None) or getattr(f, "name", None) or type(f).__name__)
        if hasattr(f, "stateless_call"):
            f, args = self._of_keras(f, args)
        self.f, self.args, self._jax = f, tuple(args), jax
        self.leaves, self._tree = jax.tree.flatten(self.args)
        shapes = [getattr(leaf, "shape", None) for leaf in self.leaves]
        if not any(shapes) or not all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes):
            raise self._refused("its arguments are not arrays of fixed shapes", "pass arrays")
        try:
            traced = jax.jit(f).trace(*self.args)
            donated = jax.tree.leaves(getattr(f, "lower", jax.jit(f).lower)(*self.args).args_info)
        except (TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise self._refused(format_error(error), "pass a function of arrays whose shapes are fixed") from error
        if traced.jaxpr.effects:
            names = ", ".join(sorted({type(effect).__name__ for effect in traced.jaxpr.effects}))
            raise self._refused(f"it has side effects: {names}", "remove callbacks and prints")
        if not jax.tree.leaves(traced.out_info):
            raise self._refused("it returns no array", "return what it computes")
        if any(info.donated for info in donated):
            raise self._refused("it donates arguments, which can be used once", "jit it without donate_argnums")
        devices = {device for leaf in self.leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
        if len(devices) > 1:
            raise self._refused(f"its arguments are on {len(devices)} devices", "pass arrays of one device")
        self._place = jax.sharding.SingleDeviceSharding(next(iter(devices), jax.devices()[0]))
        self.hlo = module_of(traced.lower())

    def _of_keras(self, model: Any, args: Sequence[Any]) -> tuple[Callable[..., Any], Sequence[Any]]:
        backend = need("keras", extra="tensorflow").backend.backend()
        if backend != "jax":
            raise self._refused(f"Keras runs on {backend}", "set KERAS_BACKEND=jax before keras is imported")
        weights, state = (
            [each.value for each in group] for group in (model.trainable_variables, model.non_trainable_variables)
        )
        return lambda weights, *inputs: model.stateless_call(weights, state, *inputs)[0], (weights, *args)

    def _refused(self, why: str, hint: str) -> TpunbError:
        return TpunbError(f"{self.name} cannot be ranked: {why}", hint=hint)

    def configurations(
        self, layouts: int, options: Sequence[Mapping[str, Any]] | None, seed: int
    ) -> list[Configuration]:
        """Return the default, other orders of the arguments at random, and the default with each set of options."""
        for name in (name for each in options or () for name in each):
            if _CHANGING.search(name):
                raise self._refused(f"the option {name!r} may change results", "leave it out")
        spaces = [[*itertools.permutations(range(np.ndim(leaf)))] for leaf in self.leaves]
        default = tuple(space[0] for space in spaces)
        check_whole("collect", "layouts", layouts, 1)
        chosen = dict.fromkeys([default])
        drawn = random.Random(seed)
        every: Iterable[tuple[Order, ...]] = (tuple(map(drawn.choice, spaces)) for _ in itertools.count())
        if math.prod(map(len, spaces)) <= 4 * layouts:
            every = sorted(itertools.product(*spaces), key=lambda _: drawn.random())
        for orders in every:
            if len(chosen) >= layouts:
                break
            chosen[orders] = None
        return [
            *(Configuration(orders) for orders in chosen),
            *(Configuration(default, each) for each in options or ()),
        ]

    def compile(self, configuration: Configuration) -> Any:
        """Return the compiled function."""
        formats = [*map(self._format, configuration.orders or [None] * len(self.leaves))]
        jitted = self._jax.jit(self.f, in_shardings=self._jax.tree.unflatten(self._tree, formats))
        options = dict(configuration.options or {})
        try:
            return jitted.lower(*self.args).compile(compiler_options=options or None)
        except (RuntimeError, ValueError) as error:  # an option that this XLA does not have
            chosen = f" with {plain(json.dumps(options, default=str))}" if options else ""
            raise self._refused(f"it does not compile{chosen}: {format_error(error)}", "leave it out") from error

    def auto(self) -> tuple[Order, ...]:
        """Return the orders that the compiler chooses when it may."""
        formats = self._jax.tree.leaves(
            self.compile(Configuration(None)).input_formats[0], is_leaf=lambda each: hasattr(each, "layout")
        )
        ranks = map(np.ndim, self.leaves)  # an argument that is not used has no layout
        return tuple(
            tuple(each.layout.major_to_minor if each.layout else range(rank))
            for each, rank in zip(formats, ranks, strict=True)
        )

    def runner(self, configuration: Configuration, compiled: Any) -> Callable[[], Any]:
        """Return a function that runs a compiled one to its end, on arguments of its layouts."""
        pairs = zip(self.leaves, configuration.orders or (), strict=True)
        placed = [self._jax.device_put(leaf, self._format(order)) for leaf, order in pairs]
        args = self._jax.tree.unflatten(self._tree, placed)
        return lambda: self._jax.block_until_ready(compiled(*args))

    def _format(self, order: Order | None) -> Any:
        if order is not None and len(order) < 2:
            return self._place
        layout = self._layouts.Layout
        return self._layouts.Format(layout.AUTO if order is None else layout(order), self._place)


class Trials:
    """Compiled configurations of a function, timed in rounds."""

    def __init__(self, function: Function, configurations: Sequence[Configuration], *, seed: int = 0) -> None:
        self.function, self._random = function, random.Random(seed)
        self.rounds: list[list[float]] = []
        self.configurations: list[Configuration] = []
        self.programs: list[bytes] = []
        self.equal: list[str] = []
        self._runs: list[Callable[[], Any]] = []
        expected, differing = None, 0
        for configuration in configurations:
            compiled = function.compile(configuration)
            run = function.runner(configuration, compiled)
            outputs = [np.asarray(each) for each in function._jax.tree.leaves(run())]
            expected = outputs if expected is None else expected
            equal = _equality(expected, outputs)
            if equal is None:
                differing += 1
                continue
            self.configurations.append(configuration)
            self.programs.append(module_of(compiled))
            self.equal.append(equal)
            self._runs.append(run)
        if differing:
            warn_user(
                f"{function.name}: {plural(differing, 'configuration')} left out, whose outputs differ", stacklevel=3
            )

    def round(self) -> None:
        """Time every configuration once, in random order."""
        times = [math.nan] * len(self._runs)
        for place in self._random.sample(range(len(times)), len(times)):
            for _ in range(_RUNS):
                begun = time.perf_counter()
                self._runs[place]()
                times[place] = float(np.fmin(times[place], time.perf_counter() - begun))
        self.rounds.append(times)

    def run(self, budget: float) -> None:
        """Time in rounds until the best three are separated, or for some seconds."""
        end = time.monotonic() + budget
        while not self.rounds or (len(self.rounds) < _MOST_ROUNDS and time.monotonic() < end and not self._separated):
            self.round()

    @property
    def _separated(self) -> bool:
        pairs = itertools.pairwise(sorted(step_times(self.rounds))[:4])
        return len(self.rounds) >= _FEWEST_ROUNDS and all(
            a.high < b.low or max(a.high, b.high) < (1 + _EQUAL) * min(a.low, b.low) for a, b in pairs
        )

    def measured(self, family: str | None = None, *, auto: tuple[Order, ...] | None = None) -> Measured:
        """Return the configurations with their times."""
        times, enough = step_times(self.rounds), len(self.rounds) >= _FEWEST_ROUNDS
        picoseconds = np.round(np.array(self.rounds) * 1e12).astype(np.int64)
        rows = [
            {
                "configuration": number,
                "layouts": [[*order] for order in configuration.orders or ()],
                "options": json.dumps(dict(configuration.options)) if configuration.options else None,
                "default": number == 0,
                "auto": None if auto is None else configuration.orders == auto and not configuration.options,
                "equal": equal,
                "time_ps": round(taken.median * 1e12),
                "low_ps": round(taken.low * 1e12) if enough else None,
                "high_ps": round(taken.high * 1e12) if enough else None,
                "default_ps": round(times[0].median * 1e12),
                "rounds_ps": picoseconds[:, number].tolist(),
            }
            for number, (configuration, equal, taken) in enumerate(
                zip(self.configurations, self.equal, times, strict=True)
            )
        ]
        frame = pl.DataFrame(
            rows,
            schema={name: dtype for name, dtype in CONFIGURATIONS.items() if name not in ("bytes", "tile")},
        )
        return of_programs(self.function.name, family or self.function.name, frame, self.function.hlo, self.programs)


def collect(
    f: Any,
    args: Sequence[Any],
    *,
    layouts: int = 24,
    options: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
    budget: float = 60.0,
) -> Measured:
    """Time a JAX function with several layouts of its arguments.

    All configurations are compiled, and their outputs compared with those of the default; what differs is left out.
    Rounds then time each once, in random order, until the best three are separated or the budget ends.

    Parameters
    ----------
    f
        Function of arrays, or a Keras model on JAX, which runs as in prediction with its weights as first arguments.
    args
        Arguments of `f`: arrays, or trees of arrays. They are copied once per configuration.
    layouts
        Number of orders of the dimensions of all arguments: the default, that which the compiler chooses if it may
        (AUTO), and others at random.
    options
        Sets of compile options, each tried with the default layouts. Those that may change results are refused.
    seed
        Seed of the choice and of the order in rounds.
    budget
        Seconds of timing, after compilation.

    Raises
    ------
    TpunbError
        If the function has side effects, donates arguments, needs dynamic shapes, or runs on several devices.
    """
    function = Function(f, args)
    configurations = function.configurations(layouts, options, seed)
    auto = function.auto()
    if auto not in [each.orders for each in configurations]:
        configurations.insert(1, Configuration(auto))
    trials = Trials(function, configurations, seed=seed)
    trials.run(budget)
    return trials.measured(auto=auto)


def _equality(expected: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    """Return how equal outputs are to those of the default: "bitwise", "close", or None."""
    pairs = [*zip(expected, outputs, strict=True)]
    if all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs):
        return "bitwise"
    for a, b in pairs:
        if not np.issubdtype(a.dtype, np.integer) and a.dtype != bool:
            wide = a.astype(np.complex128)
            size = float(np.max(np.abs(wide), initial=0, where=np.isfinite(wide)))
            precision = 2.0**-7 if a.dtype.itemsize == 2 else 1e-4
            if np.allclose(wide, b.astype(np.complex128), precision, precision * size, equal_nan=True):
                continue
        if a.tobytes() != b.tobytes():
            return None
    return "close"
