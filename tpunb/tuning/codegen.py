"""Lines of code that set parameters of a tf.data pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tfdata.stages import Stage
from tpunb.tuning.parameters import Kind, Parameter, Value


def as_code(stages: tuple[Stage, ...], changed: Mapping[Parameter, Value]) -> str:
    """Return the lines that set values: those of stages in the chain, then the options and the end of the pipeline."""
    by_name = {stage.name: stage for stage in stages if not stage.helper}
    chain: list[str] = []
    options: dict[Kind, Value] = {}  # one line for all stages
    end: list[str] = []
    for parameter, value in changed.items():
        kind, stage = parameter.kind, by_name.get(parameter.stage)
        if kind.code.startswith("options"):
            options[kind] = max(value, options.get(kind, value))
        elif stage is None:
            end.append(_line(kind, value))
        else:
            branch = f", of input {stage.branch}" if stage.branch else ""
            where = "right after stage" if kind is Kind.CACHE else "stage"
            code = _line(kind, value, method=stage.kind, function=_function(stage))
            chain.append(f"{code}  # {where} {stage.number} from the source{branch}")
    lines = [_line(kind, value) for kind, value in options.items()]
    if lines:
        lines = ["options = tf.data.Options()", *lines, "ds = ds.with_options(options)"]
    return "\n".join([*chain, *lines, *end])


def _line(kind: Kind, value: Value, **words: str) -> str:
    return kind.code.format(value="tf.data.AUTOTUNE" if value == AUTOTUNE else value, **words)


def _function(stage: Stage) -> str:
    """Return the first arguments of a stage's call."""
    named = stage.label.isidentifier() and not stage.label[0].isupper()  # a class would need its instance
    if not named or stage.kind not in ("map", "interleave"):
        return "..."
    return f"{stage.label}, ..." if stage.kind == "interleave" else stage.label
