from . import charts as charts
from .analysis import fit as fit
from .analysis import mlperf as mlperf
from .analysis import points as points
from .mlperf_runs import published as published
from .scaling import Scaling as Scaling
from .scaling import ScalingFit as ScalingFit
