"""HDF5: files that it opens without Python's `open`."""

from __future__ import annotations

from tpunb.instrument.registry import Library

LIBRARY = Library("h5py", "h5py", ("3.14", "3.14"))

FILE = LIBRARY.attribute("h5py", "File.__init__", "name", "mode")
