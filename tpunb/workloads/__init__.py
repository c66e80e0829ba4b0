"""The five workloads of the paper (section V), from a minute on two cores to the sizes of its Table I."""

from tpunb.workloads.catalogue import WORKLOADS, table_1, workload
from tpunb.workloads.recordings import Recording, recorded
from tpunb.workloads.workload import Workload

__all__ = ["WORKLOADS", "Recording", "Workload", "recorded", "table_1", "workload"]
