"""Programs as graphs, and a cost model that ranks their configurations."""

from tpunb.costmodel.graphs import ProgramGraph, graph

__all__ = ["ProgramGraph", "graph"]
