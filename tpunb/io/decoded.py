"""What was decoded from raw files, kept for the next load: what came from afar, and what took long.

A folder an entry, in ``TPUNB_CACHE`` ("off": none) or the user's own cache folder; above ``TPUNB_CACHE_LIMIT`` bytes
(2 GiB) those not used for longest go. Nothing that goes wrong here fails a load: the file is decoded again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.io.places import Place

DECODER = 2
"""To be raised when the decoders answer otherwise than before: what was kept until then is not read any more."""

_LIMIT = 2 << 30
_EVENTS, _FACTS = "events.parquet", "facts.json"
_ENTRY = re.compile(r"\.?[0-9a-f]{64}(\.[0-9a-f]{8})?")


@dataclass(frozen=True)
class Decoded:
    """What one raw file holds."""

    host: str
    events: pl.DataFrame
    hardware: pl.DataFrame
    size: int  # bytes, unzipped
    start_ns: int | None = None  # since the epoch
    stop_ns: int | None = None
    reused: bool = False

    def watched(self) -> tuple[int, int]:
        """Return from when and how long the profiler watched: by its own word, else until the last event ends."""
        if self.start_ns is not None and self.stop_ns is not None:
            return 0, (self.stop_ns - self.start_ns) * 1000
        ends = self.events.select(pl.col("start_ps").min(), end_ps=(pl.col("start_ps") + pl.col("dur_ps")).max())
        begin, end = ends.row(0) if self.events.height else (0, 0)
        return min(0, begin), end - min(0, begin)

    def renamed(self, host: str) -> Decoded:
        """Return the same of a host of another name."""
        events = self.events.with_columns(host=pl.lit(host, schema.NAME))
        return replace(self, host=host, events=events, hardware=self.hardware.with_columns(host=pl.lit(host)))


def folder() -> Path | None:
    """Return the folder of all that is kept for later; None where nothing is to be."""
    where = os.environ.get("TPUNB_CACHE")
    if where == "off":
        return None
    if where:
        return Path(where).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("tpunb")


def entry(file: Place) -> Path | None:
    """Return where what a file holds is kept, there or not; None where nobody tells whether it has changed."""
    where = folder()
    if where is None or file.stamp is None:
        return None
    columns = {name: str(dtype) for name, dtype in schema.EVENTS.items()}
    what = [file.url or str(Path(file.path).absolute()), file.stamp, DECODER, columns]
    key = hashlib.sha256(json.dumps(what).encode("utf8", "surrogatepass")).hexdigest()
    return where / "decoded" / key


def get(entry: Path) -> Decoded | None:
    """Return what was kept, or None; an entry that cannot be read is dropped."""
    try:
        host, hardware, size, start_ns, stop_ns, check = json.loads((entry / _FACTS).read_text(encoding="utf-8"))
        kept = (entry / _EVENTS).read_bytes()
        whole = isinstance(host, str) and isinstance(size, int) and zlib.crc32(kept) == check
        if not whole or not all(isinstance(time, int | None) for time in (start_ns, stop_ns)):
            raise ValueError("not what was kept")
        events = pl.read_parquet(io.BytesIO(kept))
        if events.schema != schema.EVENTS:
            raise ValueError("other events than were kept")
        devices = pl.DataFrame(hardware, schema=schema.HARDWARE, orient="row")
    except (OSError, ValueError, TypeError, RecursionError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        shutil.rmtree(entry, ignore_errors=True)
        return None
    with suppress(OSError):  # a cache that may only be read
        os.utime(entry)
    return Decoded(host, events, devices, size, start_ns, stop_ns, reused=True)


def keep(entry: Path, part: Decoded) -> None:
    """Write an entry to the side and rename it, then make room; a full disk or one not to be written keeps nothing."""
    aside = entry.with_name(f".{entry.name}.{uuid4().hex[:8]}")
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.mkdir()
        part.events.write_parquet(aside / _EVENTS)
        check = zlib.crc32((aside / _EVENTS).read_bytes())  # Parquet of its own would not notice a flipped bit
        facts = [part.host, part.hardware.rows(), part.size, part.start_ns, part.stop_ns, check]
        (aside / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        aside.rename(entry)
        _make_room(entry.parent)
    except (OSError, pl.exceptions.PolarsError):
        shutil.rmtree(aside, ignore_errors=True)


def _make_room(folder: Path) -> None:
    """Remove what was not used for longest, until the rest is within the limit."""
    limit = os.environ.get("TPUNB_CACHE_LIMIT", "")
    left = int(limit) if limit.isdecimal() else _LIMIT
    own = [one for one in folder.iterdir() if _ENTRY.fullmatch(one.name)]  # what others put there is theirs
    used = sorted(((one.stat().st_mtime_ns, one) for one in own), reverse=True)
    for _, one in used:
        size = sum(file.stat().st_size for file in one.iterdir())
        if size > left:
            shutil.rmtree(one, ignore_errors=True)
        else:
            left -= size
