"""Altair charts of frames: each function returns a chart and shows nothing.

Frames are aggregated before Altair sees them, and names in them are not trusted. :mod:`tpunb.charts.render` draws
charts offline.
"""

from tpunb.charts.accounts import accounts
from tpunb.charts.balances import balances
from tpunb.charts.compared import agreed, compared
from tpunb.charts.curves import dbscan_eps, hdbscan_tree, sweep_curve
from tpunb.charts.history import history
from tpunb.charts.hosts import hosts
from tpunb.charts.measures import measures
from tpunb.charts.ranking import graph_table, ranking, top_errors
from tpunb.charts.resources import counters, memory
from tpunb.charts.roofline import roofline
from tpunb.charts.rows import colours
from tpunb.charts.runs import coverages, sweeps
from tpunb.charts.scaling import scaling
from tpunb.charts.shares import coverage, top_ops
from tpunb.charts.stack import stack
from tpunb.charts.sweep import heatmap, latency, sensitivity, speedups
from tpunb.charts.timeline import timeline
from tpunb.charts.trials import trials

__all__ = [
    "accounts",
    "agreed",
    "balances",
    "colours",
    "compared",
    "counters",
    "coverage",
    "coverages",
    "dbscan_eps",
    "graph_table",
    "hdbscan_tree",
    "heatmap",
    "history",
    "hosts",
    "latency",
    "measures",
    "memory",
    "ranking",
    "roofline",
    "scaling",
    "sensitivity",
    "speedups",
    "stack",
    "sweep_curve",
    "sweeps",
    "timeline",
    "top_errors",
    "top_ops",
    "trials",
]
