"""A method's curve with a rule that a slider moves along it."""

from __future__ import annotations

from typing import Any

import altair as alt

from tpunb import pictures
from tpunb.charts.rows import PALETTE


def slid(chart: alt.TopLevelMixin, parameter: str, ends: tuple[float, float], at: float) -> dict[str, Any]:
    """Return a chart of a sweep as a spec with the signal ``at``, the value of `parameter` where a rule stands.

    Parameters
    ----------
    chart
        One of :mod:`tpunb.charts.curves`, in layers, or several such charts below each other.
    parameter
        The field across.
    ends
        The first value that the rule can take and the last: they are the edges of the plot.
    at
        The value to begin with.
    """
    spec = pictures.spec(chart)
    rule = {
        "data": {"values": [{}]},
        "transform": [{"calculate": "at", "as": parameter}],
        "mark": {"type": "rule", "strokeWidth": 2, "clip": True, "color": PALETTE[5]},
        "encoding": {"x": {"field": parameter, "type": "quantitative"}},
    }
    for part in spec.get("vconcat", [spec]):
        part["layer"].append(rule)
        for layer in part["layer"]:
            if layer["encoding"].get("x", {}).get("field") == parameter:
                layer["encoding"]["x"]["scale"] = {"domain": [*ends], "nice": False, "zero": False}
    spec["params"] = [*spec.get("params", []), {"name": "at", "value": at}]
    return spec
