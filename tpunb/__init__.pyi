from . import analysis as analysis
from . import charts as charts
from . import checkpoint as checkpoint
from . import studies as studies
from . import testing as testing
from . import tuning as tuning
from .analysis.advice import advise
from .analysis.compare import compare
from .analysis.goodput import goodput
from .analysis.history import runs
from .analysis.roofline import roofline
from .analysis.run import phases, steps
from .analysis.stragglers import hosts
from .checkpoint import checkpointing, checkpoints
from .checkpoint.resume import resume
from .cluster import DBSCAN, HDBSCAN, OLS, KMeans, OLSPlus
from .errors import TpunbError
from .frames import Phases, Profile, Steps
from .io import load, sample
from .profiler import sources as sources
from .profiler.capture import capture
from .profiler.schedule import Schedule
from .studies.sweeps.measuring import sweep
from .tuning import tune
from .widgets.explorer import explore
from .widgets.summary import summary
from .widgets.tuning_panel import tuning_panel

def load_ipython_extension(shell: object) -> None: ...
def unload_ipython_extension(shell: object) -> None: ...

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "OLS",
    "KMeans",
    "OLSPlus",
    "Phases",
    "Profile",
    "Schedule",
    "Steps",
    "TpunbError",
    "advise",
    "analysis",
    "capture",
    "charts",
    "checkpoint",
    "checkpointing",
    "checkpoints",
    "compare",
    "explore",
    "goodput",
    "hosts",
    "load",
    "phases",
    "resume",
    "roofline",
    "runs",
    "sample",
    "sources",
    "steps",
    "studies",
    "summary",
    "sweep",
    "testing",
    "tune",
    "tuning",
    "tuning_panel",
]
