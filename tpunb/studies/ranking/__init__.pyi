from . import charts as charts
from .collecting import collect
from .collection_files import read_collection, recorded, write_collection
from .evaluation import Evaluation
from .graphs import ProgramGraph, graph
from .measured import Measured
from .metrics import kendall, ordered_pairs, top_error
from .model import CostModel, Ranking
from .node_features import LAYOUT_FEATURES, NODE_FEATURES, OPCODES, TILE_FEATURES
from .tpugraphs import TpuGraph, read_tpugraphs

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
    "charts",
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
