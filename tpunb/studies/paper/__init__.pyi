from . import charts as charts
from .balances import FASTER, OTHER_DATA, curves, gains, observations
from .figures import utilisation
from .recordings import RecordedRun, recorded, recorded_balances
from .tables import operators, published
from .workloads.catalogue import WORKLOADS, table_1, workload
from .workloads.workload import Workload

__all__ = [
    "FASTER",
    "OTHER_DATA",
    "WORKLOADS",
    "RecordedRun",
    "Workload",
    "charts",
    "curves",
    "gains",
    "observations",
    "operators",
    "published",
    "recorded",
    "recorded_balances",
    "table_1",
    "utilisation",
    "workload",
]
