from . import charts as charts
from . import paradnn as paradnn
from .generators import cnn, fc, rnn, transformer
from .measuring import sweep
from .results import Saturation, Sensitivity, Speedup, Sweep

__all__ = [
    "Saturation",
    "Sensitivity",
    "Speedup",
    "Sweep",
    "charts",
    "cnn",
    "fc",
    "paradnn",
    "rnn",
    "sweep",
    "transformer",
]
