"""One model at many sizes: where throughput saturates, what a parameter does, how two devices compare."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
