"""The five workloads of the paper (section V) at any scale, networks for sweeps, figures of ParaDnn and MLPerf."""

from tpunb.workloads import mlperf, paper, paradnn
from tpunb.workloads.catalogue import WORKLOADS, table_1, workload
from tpunb.workloads.generators import cnn, fc, rnn, transformer
from tpunb.workloads.recordings import RecordedRun, recorded, recorded_balances
from tpunb.workloads.workload import Workload

__all__ = [
    "WORKLOADS",
    "RecordedRun",
    "Workload",
    "cnn",
    "fc",
    "mlperf",
    "paper",
    "paradnn",
    "recorded",
    "recorded_balances",
    "rnn",
    "table_1",
    "transformer",
    "workload",
]
