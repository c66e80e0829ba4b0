"""The lines that give a program other parameters of its pipeline, to be pasted into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tpunb.tuning.knob import AUTOTUNE, Value
from tpunb.tuning.stages import Stage

_FUNCTIONS = {"map", "interleave"}


def as_code(of: tuple[Stage, ...], changed: Mapping[str, Value], *, unfused: bool = False) -> str:
    """Return the lines of changed values: each where it stands in the chain, then what belongs at its end.

    Parameters
    ----------
    of
        The stages of the pipeline.
    changed
        Names of knobs and their new values.
    unfused
        Whether tf.data must be kept from fusing a shuffle with the repeat above it.
    """
    named = {stage.name: stage for stage in of if not stage.helper}
    inside = [line for name, value in changed.items() for line in _in_chain(named, name, value)]
    return "\n".join([*inside, *_at_end(changed, unfused)])


def _in_chain(named: Mapping[str, Stage], name: str, value: Value) -> Iterator[str]:
    stage = named.get(name.rsplit(" ", 2)[0]) or named.get(name.rsplit(" ", 1)[0])
    if name.endswith(" parallel calls") and stage is not None:
        yield _call(stage, value)
    elif name.endswith(" buffer") and stage is not None:
        yield f"ds = ds.prefetch({_number(value)})  # {_place(stage)}"
    elif name.endswith(" order"):
        moved = name.removesuffix(" order")
        yield f"# {moved}: {_order(str(value))}"
    elif name.endswith(" cached"):
        yield f"ds = ds.cache()  # right after {name.removesuffix(' cached')}"
    elif " before " in name:
        batch, mapped = name.split(" before ", 1)
        yield f"# call {batch} before {mapped}: the function then takes whole batches"


def _call(stage: Stage, value: Value) -> str:
    parameter = f"num_parallel_calls={_number(value)}"
    if stage.kind not in _FUNCTIONS:
        return f"ds = ds.{stage.kind}(..., {parameter})  # {_place(stage)}"
    own = stage.label.isidentifier() and not stage.label[0].isupper()  # not a class, whose object is called
    function = stage.label if own else "..."
    rest = ", ..." if stage.kind == "interleave" and function != "..." else ""
    return f"ds = ds.{stage.kind}({function}{rest}, {parameter})  # {_place(stage)}"


def _place(stage: Stage) -> str:
    where = f", of input {stage.branch}" if stage.branch else ""
    return f"stage {stage.number} from the source{where}"


def _order(value: str) -> str:
    where, _, kept = value.partition(", ")
    if where == "cached before it":
        return "call .cache() right before it"
    side, stage = where.split(" ", 1)
    return f"call it right {side} {stage}" + (f", and .cache() right after {stage}" if kept else "")


def _at_end(changed: Mapping[str, Value], unfused: bool) -> Iterator[str]:
    options = []
    if (pool := changed.get("options private threads")) is not None:
        options.append(f"options.threading.private_threadpool_size = {pool}")
    copies = {value for name, value in changed.items() if name.endswith(" parallel copy")}
    if copies:
        several = "  # holds for every batch of the pipeline" if True in copies else ""
        options.append(f"options.experimental_optimization.parallel_batch = {True in copies}{several}")
    if unfused:
        options.append("options.experimental_optimization.shuffle_and_repeat_fusion = False  # it draws another order")
    if options:
        yield from ("options = tf.data.Options()", *options, "ds = ds.with_options(options)")
    if "end prefetch" in changed:
        yield f"ds = ds.prefetch({_number(changed['end prefetch'])})"


def _number(value: Value) -> str:
    return "tf.data.AUTOTUNE" if value == AUTOTUNE else str(value)
