from . import paper as paper
from . import ranking as ranking
from . import scaling as scaling
from . import sweeps as sweeps
