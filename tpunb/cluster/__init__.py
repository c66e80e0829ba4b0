"""Group steps into phases: the verb ``phases`` and its methods (paper IV.A)."""

from tpunb.cluster.assign import phases
from tpunb.cluster.base import Curve, SliderSpec
from tpunb.cluster.dbscan import DBSCAN
from tpunb.cluster.hdbscan import HDBSCAN
from tpunb.cluster.kmeans import KMeans
from tpunb.cluster.ols import OLS, OnlineOLS
from tpunb.cluster.ols_plus import OLSPlus, OnlineOLSPlus

METHODS = {"dbscan": DBSCAN, "hdbscan": HDBSCAN, "kmeans": KMeans, "ols": OLS, "olsplus": OLSPlus}
"""Phase methods by their names in the magic and in the explorer."""

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
