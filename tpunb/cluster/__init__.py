"""Group steps into phases: the verb ``phases`` and its methods (paper IV.A)."""

from tpunb.cluster.assign import METHODS, phases
from tpunb.cluster.base import Curve, SliderSpec
from tpunb.cluster.dbscan import DBSCAN
from tpunb.cluster.hdbscan import HDBSCAN
from tpunb.cluster.kmeans import KMeans
from tpunb.cluster.ols import OLS, OnlineOLS
from tpunb.cluster.ols_plus import OLSPlus, OnlineOLSPlus

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "METHODS",
    "OLS",
    "Curve",
    "KMeans",
    "OLSPlus",
    "OnlineOLS",
    "OnlineOLSPlus",
    "SliderSpec",
    "phases",
]
