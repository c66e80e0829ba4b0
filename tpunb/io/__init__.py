"""Read and write profiles of any format, local or behind a URL."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from tpunb.io.formats import load as load
    from tpunb.io.formats import sample as sample
else:  # a capture writes a run without the readers of all formats
    __getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"formats": ["load", "sample"]})
