"""The TPUPoint paper's figures and tables, from any runs of its workloads, beside what it published."""

from tpunb.paper.devices import on_devices
from tpunb.paper.operators import operators
from tpunb.paper.published import published
from tpunb.paper.speed import speedups
from tpunb.paper.utilisation import utilisation

__all__ = ["on_devices", "operators", "published", "speedups", "utilisation"]
