"""Programs as graphs, and a cost model that states which configurations to time."""

from tpunb.costmodel.collecting import collect
from tpunb.costmodel.evaluation import Evaluation
from tpunb.costmodel.graphs import ProgramGraph, graph
from tpunb.costmodel.measured import Measured
from tpunb.costmodel.metrics import kendall, ordered_pairs, top_error
from tpunb.costmodel.model import CostModel, Ranking
from tpunb.costmodel.node_features import LAYOUT_FEATURES, NODE_FEATURES, OPCODES, TILE_FEATURES
from tpunb.costmodel.recorded import read_collection, recorded, write_collection
from tpunb.costmodel.tpugraphs import TpuGraph, read_tpugraphs

__all__ = [
    "LAYOUT_FEATURES",
    "NODE_FEATURES",
    "OPCODES",
    "TILE_FEATURES",
    "CostModel",
    "Evaluation",
    "Measured",
    "ProgramGraph",
    "Ranking",
    "TpuGraph",
    "collect",
    "graph",
    "kendall",
    "ordered_pairs",
    "read_collection",
    "read_tpugraphs",
    "recorded",
    "top_error",
    "write_collection",
]
