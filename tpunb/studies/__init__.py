"""What many runs made on purpose answer: sweeps, rankings, scaling over chips, the paper's figures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
