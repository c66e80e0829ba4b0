"""Read and write profiles of any format, local or behind a URL."""

from tpunb.io.formats import load, sample

__all__ = ["load", "sample"]
