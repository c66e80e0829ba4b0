"""Altair charts of frames: each function returns a chart and shows nothing.

Frames are aggregated before Altair sees them, and names in them are not trusted. :mod:`tpunb.charts.render` draws
charts offline.
"""

from tpunb.charts.accounts import accounts
from tpunb.charts.compared import compared
from tpunb.charts.curves import dbscan_eps, hdbscan_tree, sweep_curve
from tpunb.charts.history import history
from tpunb.charts.hosts import hosts
from tpunb.charts.pipeline import pipeline
from tpunb.charts.roofline import counters, memory, roofline, stack
from tpunb.charts.shares import coverage, top_ops
from tpunb.charts.style import colours
from tpunb.charts.timeline import timeline
from tpunb.charts.trials import trials

__all__ = [
    "accounts",
    "colours",
    "compared",
    "counters",
    "coverage",
    "dbscan_eps",
    "hdbscan_tree",
    "history",
    "hosts",
    "memory",
    "pipeline",
    "roofline",
    "stack",
    "sweep_curve",
    "timeline",
    "top_ops",
    "trials",
]
