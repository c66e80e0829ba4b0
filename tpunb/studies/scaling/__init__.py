"""What more chips buy: one training on several numbers of chips, from captures or MLPerf's logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
