from . import charts as charts
from .analysis import fit, mlperf, points
from .mlperf_runs import published
from .scaling import Scaling, ScalingFit

__all__ = [
    "Scaling",
    "ScalingFit",
    "charts",
    "fit",
    "mlperf",
    "points",
    "published",
]
