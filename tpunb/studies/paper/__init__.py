"""The TPUPoint paper's workloads (section V) at any scale, its figures and tables beside its published numbers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
