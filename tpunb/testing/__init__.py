"""What extensions need: toy data, conformance tests, a fake profiler service, a run that records nothing.

They need no TPU and no network beyond loopback; all randomness is seeded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
