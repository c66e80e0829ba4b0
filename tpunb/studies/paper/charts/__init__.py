"""Charts of the paper's figures: measures by workload, balances, curves and coverages of many runs."""

from tpunb.studies.paper.charts.balances import balances
from tpunb.studies.paper.charts.measures import measures
from tpunb.studies.paper.charts.runs import coverages, sweeps

__all__ = ["balances", "coverages", "measures", "sweeps"]
