"""Frames in, Altair charts out: a chart is a value, made and returned, never shown.

Frames are aggregated before Altair sees them. Names in them are not trusted. How a chart draws itself, in a notebook
and offline, is in :mod:`tpunb.pictures`.
"""

from tpunb.charts.across import coverages, sweeps
from tpunb.charts.compared import agreed, compared
from tpunb.charts.curves import dbscan_eps, dbscan_noise, hdbscan_tree, kmeans_elbow, ols_phases, olsplus_phases
from tpunb.charts.measures import measures
from tpunb.charts.ribbon import timeline
from tpunb.charts.rows import colours
from tpunb.charts.shares import coverage, top_ops
from tpunb.charts.trials import trials

__all__ = [
    "agreed",
    "colours",
    "compared",
    "coverage",
    "coverages",
    "dbscan_eps",
    "dbscan_noise",
    "hdbscan_tree",
    "kmeans_elbow",
    "measures",
    "ols_phases",
    "olsplus_phases",
    "sweeps",
    "timeline",
    "top_ops",
    "trials",
]
