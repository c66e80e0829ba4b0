"""Steps into phases: the verb, the methods it takes (paper IV.A), and what the phases are worth."""

from tpunb.cluster.advice import advise
from tpunb.cluster.comparing import compare
from tpunb.cluster.dbscan import DBSCAN
from tpunb.cluster.hdbscan import HDBSCAN
from tpunb.cluster.kmeans import KMeans
from tpunb.cluster.ols import OLS, OnlineOLS
from tpunb.cluster.ols_plus import OLSPlus, OnlineOLSPlus
from tpunb.cluster.phasing import phases
from tpunb.cluster.quality import agreement, apart, assess, stability

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "OLS",
    "KMeans",
    "OLSPlus",
    "OnlineOLS",
    "OnlineOLSPlus",
    "advise",
    "agreement",
    "apart",
    "assess",
    "compare",
    "phases",
    "stability",
]
