"""The TPUPoint paper's figures and tables, from runs of its workloads, beside its published numbers."""

from tpunb.workloads.paper.balances import FASTER, OTHER_DATA, curves, gains, observations
from tpunb.workloads.paper.figures import utilisation
from tpunb.workloads.paper.tables import operators, published

__all__ = ["FASTER", "OTHER_DATA", "curves", "gains", "observations", "operators", "published", "utilisation"]
