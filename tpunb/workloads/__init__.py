"""The five workloads of the paper (section V), from a minute on two cores to the sizes in its Table I."""

from tpunb.workloads import paper, paradnn
from tpunb.workloads.catalogue import WORKLOADS, table_1, workload
from tpunb.workloads.recordings import RecordedRun, recorded
from tpunb.workloads.workload import Workload

__all__ = ["WORKLOADS", "RecordedRun", "Workload", "paper", "paradnn", "recorded", "table_1", "workload"]
