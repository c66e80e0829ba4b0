"""The TPUPoint paper's figures and tables, from runs of its workloads, beside its published numbers."""

from tpunb.workloads.paper.figures import on_devices, speedups, utilisation
from tpunb.workloads.paper.tables import operators, published

__all__ = ["on_devices", "operators", "published", "speedups", "utilisation"]
