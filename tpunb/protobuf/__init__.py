"""Protobuf's wire format, read into arrays without its library."""

PADDING = 32
"""Zero bytes after the contents of a file, so that decoding it needs no copy."""

LIMIT = 2**31 - PADDING
"""Upper bound of the size of a file in bytes, unzipped: the limit of protobuf."""
