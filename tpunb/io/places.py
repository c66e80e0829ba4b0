"""Where profiles lie: files and folders, local or behind any URL that fsspec knows, as one kind of thing.

A local one never imports fsspec.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from tpunb.errors import BadProfile, MissingExtra, ProfileNotFound, TpunbError

PathLike = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]

PADDING = 32
"""Zero bytes behind what was read: with them the XPlane decoder needs no copy."""

LIMIT = 2**31 - PADDING
"""Bytes before which a profile ends, unzipped: protobuf's own limit."""

PATIENCE_S = 120.0
"""How long a server may take to say whether something is there: its client may well try again for half an hour."""

_BLOCK = 16 << 20  # bytes read at a time: many for a network, few beside a large profile
_PIECE = 1 << 18  # after so many whoever waits hears how far it is
_GZIP = b"\x1f\x8b"
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]*(://|::.*://)")
_CHANGES = ["etag", "generation", "contentmd5", "md5hash", "updated", "lastmodified", "mtime", "ctime", "created"]
_HTTP_DEPTH = 8  # pages may link to pages without end


class _Local:
    """Of fsspec's interface what is needed here, for local files."""

    def info(self, path: str) -> dict[str, Any]:
        seen = Path(path).stat()
        kind = "directory" if stat.S_ISDIR(seen.st_mode) else "file" if stat.S_ISREG(seen.st_mode) else "other"
        return {"type": kind, "size": seen.st_size, "mtime": seen.st_mtime_ns, "ctime": seen.st_ctime_ns}

    def ls(self, path: str, **_: object) -> list[str]:
        return [str(one) for one in Path(path).iterdir()]

    def find(self, path: str, **_: object) -> dict[str, None]:
        """Return every file below; links to folders are followed, and each folder is visited once."""
        files, visited = [], set()
        for parent, folders, names in os.walk(path, followlinks=True, onerror=_raised):
            real = os.path.realpath(parent)
            if real in visited:
                folders.clear()
                continue
            visited.add(real)
            folders.sort()
            files += [str(Path(parent, name)) for name in names]
        return dict.fromkeys(files)

    def open(self, path: str, **_: object) -> io.FileIO:
        return io.FileIO(path)


def _raised(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # gone since it was listed: it holds nothing any more
        raise error  # half a pod must not pass for a whole one


@dataclass(frozen=True, eq=False)
class Place:
    """A file or a folder: on which file system, its path there, and its URL, "" where it is local."""

    fs: Any
    path: str
    url: str = ""
    listed: Mapping[str, Any] | None = None  # what a listing told of it
    _seen: dict[str, Any] = field(default_factory=dict, init=False)

    def __str__(self) -> str:
        return self.url or self.path

    @property
    def source(self) -> Path | str:
        """The local path, or the URL."""
        return self.url or Path(self.path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._pure.name or str(self)

    @property
    def session(self) -> str:
        """The name of the folder that it lies in."""
        return self._pure.parent.name

    @property
    def _pure(self) -> PurePosixPath | Path:
        if not self.url:
            return Path(self.path)
        return PurePosixPath(re.split(r"[?#]", self.path)[0] if self._is_web else self.path)

    @property
    def _is_web(self) -> bool:
        return bool(self.url) and self.path.startswith("http")

    @property
    def parent(self) -> Place:
        """The folder that it lies in."""
        if not self.url:
            return local(Path(self.path).parent)
        return Place(self.fs, self.fs._parent(self.path), self.url.rstrip("/").rpartition("/")[0])

    @property
    def info(self) -> Mapping[str, Any]:
        """What the file system knows of it, asked once; raises ``ProfileNotFound`` where nothing is."""
        if self.listed and self.listed.get("size") is not None and _changes(self.listed):
            return self.listed
        if not self._seen:  # no cached_property: in Python 3.11 all of its kind share one lock, and servers are slow
            with _told(self):
                self._seen.update(self.fs.info(self.path))
        return self._seen

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder; with a slash at its end a URL is always: of pages nobody else tells."""
        return self.url.endswith("/") or self.info["type"] == "directory"

    @property
    def stamp(self) -> str | None:
        """A text that is another once the file has changed; None where nobody tells."""
        changes = _changes(self.info)
        return repr([self.info.get("size"), *changes]) if changes else None

    def below(self) -> dict[str, Place]:
        """Return every file in a folder and its folders, by the path from there."""
        with _told(self):
            found = self.fs.find(self.path, detail=True, **({"maxdepth": _HTTP_DEPTH} if self._is_web else {}))
        files = {}
        for path, listed in found.items():
            name = path.removeprefix(self.path).strip("/") if self.url else Path(path).relative_to(self.path).as_posix()
            files[name] = Place(self.fs, path, f"{self.url.rstrip('/')}/{name}" if self.url else "", listed)
        return files

    def children(self) -> list[Place]:
        """Return what lies in a folder itself; nothing where a web server would have to list it."""
        if self._is_web:
            return []
        with _told(self):
            paths = sorted(self.fs.ls(self.path, detail=False))
        return [
            Place(self.fs, path, self.url and f"{self.url.rstrip('/')}/{path.rstrip('/').rpartition('/')[2]}")
            for path in paths
        ]

    def holds(self) -> str:
        """Return what a folder holds, in words: the hint of an error that found nothing."""
        if self.url.endswith(":/"):
            return "check its name, and whether you may read it"
        try:
            names = sorted(Place(self.fs, path, self.url).name for path in self.fs.ls(self.path, detail=False))[:8]
        except (FileNotFoundError, NotADirectoryError):
            return f"{self} is no folder either"
        except Exception as error:  # noqa: BLE001  another error is on its way already
            return f"{self} cannot be listed: {_line(error)}"
        return f"{self} holds {', '.join(names)}" if names else f"{self} is empty"


def _changes(info: Mapping[str, Any]) -> list[str]:
    """Return the facts that change with a file; file systems spell their names in many ways."""
    told = {re.sub("[-_]", "", name.lower()): value for name, value in info.items()}
    return [f"{name} {told[name]}" for name in _CHANGES if told.get(name) is not None]


def local(path: PathLike) -> Place:
    """Return a local place, there or not."""
    return Place(_Local(), os.fspath(path))


def find(path: PathLike) -> Place:
    """Return what is at a local path or a URL.

    Raises
    ------
    ProfileNotFound
        When nothing is there; the hint says what is.
    MissingExtra
        When the package that speaks the URL's protocol is not installed.
    TpunbError
        When its server cannot be reached, in bounded time.

    >>> find(".").is_folder
    True
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(f"The path parameter of load must be a path or a list of paths. Got {path!r} instead.")
    if not text:
        raise ValueError("The path parameter of load must be a path or a URL. Got '' instead.")
    if isinstance(path, Path) and (slash := re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", text)) and not path.exists():
        hint = f"give a URL as text: a Path makes one slash of two in {slash[0]}"
        raise ProfileNotFound(f"nothing is at {text}", hint=hint)
    if text.lower().startswith("file://"):
        text = unquote(text[len("file://") :].removeprefix("localhost"))
    if _URL.match(text):
        return _asked(text)
    place = local(Path(os.path.expanduser(text)))  # noqa: PTH111  Path's own raises for a user that is not
    place.info  # noqa: B018  raises where nothing is
    return place


def _asked(url: str) -> Place:
    """Return what a server says is at a URL, or raise once it has taken too long."""
    answer: Future[Place] = Future()

    def ask() -> None:
        try:
            answer.set_result(_contact(url))
        except BaseException as error:  # noqa: BLE001  raised where it was asked for
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    if awaited([answer], PATIENCE_S):
        return answer.result()
    raise TpunbError(f"{url}: no answer within {PATIENCE_S:g} s", hint=_NETWORK)


def awaited(answers: Sequence[Future[Any]], seconds: float = float("inf")) -> bool:
    """Wait until all have answered, one has failed, or so many seconds are over; say whether one of the first two.

    In short turns: a wait without end in the main thread would hear of an interrupt only when it is over.
    """
    until = time.monotonic() + seconds
    pending = set(answers)
    while pending and time.monotonic() < until:
        done, pending = wait(pending, timeout=0.1, return_when=FIRST_EXCEPTION)
        if any(answer.exception() for answer in done):
            return True
    return not pending


_NETWORK = "check the address, the network and your credentials, then load again"


def _contact(url: str) -> Place:
    import fsspec

    if url.partition(":")[0].lower() not in fsspec.available_protocols():
        raise ValueError(f"The path parameter of load must be a path or a URL that fsspec knows. Got {url!r} instead.")
    try:
        with _told(url):
            fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = next((extra for name, extra in (("gcsfs", "gcs"), ("aiohttp", "http")) if name in str(error)), None)
        hint = f"pip install 'tpunb[{extra}]'" if extra else "install the package that it names"
        raise MissingExtra(f"{url}: {_line(error)}", hint=hint) from error
    fs.invalidate_cache()  # a listing of an earlier load may be of another day
    place = Place(fs, path, url)
    place.info  # noqa: B018  raises where nothing is
    return place


@contextmanager
def _told(place: Place | str) -> Iterator[None]:
    """Tell in our words what a file system could not do; what it raises is of any kind."""
    try:
        yield
    except (TpunbError, ImportError, MemoryError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
            raise TpunbError(f"{place}: cannot be reached: {_line(error.__cause__)}", hint=_NETWORK) from error
        hint = place.parent.holds() if isinstance(place, Place) else None
        raise ProfileNotFound(f"nothing is at {place}", hint=hint) from None
    except Exception as error:
        if isinstance(place, Place) and not place.url:
            raise BadProfile(f"{place}: cannot be read: {_line(error)}") from error
        raise TpunbError(f"{place}: cannot be read: {_line(error)}", hint=_NETWORK) from error


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def fetch(files: Sequence[Place]) -> list[bytes | None]:
    """Return the bytes of small files of one file system, fetched side by side; None for one that is gone.

    Raises
    ------
    BadProfile
        When they are not small.
    """
    size = sum(file.info.get("size") or 0 for file in files)
    if size >= LIMIT:
        raise BadProfile(f"{files[0]} and what lies beside it: {size} bytes; the statistics of a run end before 2 GiB")
    if not files:
        return []
    with _told(files[0]):
        # not `cat`, which takes the [ and * of names for patterns
        told = files[0].fs.cat_ranges([file.path for file in files], None, None, on_error="return")
    for file, data in zip(files, told, strict=True):
        if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):
            with _told(file):
                raise data
    return [None if isinstance(data, Exception) else data for data in told]


def read(file: Place, tell: Callable[[int], None] = lambda _: None) -> Bytes:
    """Return the bytes of a file, unzipped, with `PADDING` zeros behind the last one.

    Parameters
    ----------
    file
        Plain or gzipped: its first bytes tell.
    tell
        Hears how many bytes came, again and again.

    Raises
    ------
    BadProfile
        When it cannot be read, its zip is cut or corrupt, or it has 2 GiB or more.
    """
    size = file.info.get("size") or 0
    if file.info["type"] in ("directory", "other"):
        raise BadProfile(f"{file}: neither a file nor a folder")
    # from the web in one stream: a server of files may know nothing of ranges
    block = 0 if file._is_web else _BLOCK
    with _told(file), file.fs.open(file.path, mode="rb", block_size=block, cache_type="none") as raw:
        stream = io.BufferedReader(_Heard(raw, tell), _PIECE)
        if stream.peek(2)[:2] != _GZIP:
            return _whole(stream, size, file)
        try:
            with gzip.GzipFile(fileobj=stream) as unzipped:
                return _whole(unzipped, min(4 * size, LIMIT - 1), file)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadProfile(f"{file}: cannot be read: {_line(error)}") from error


class _Heard(io.RawIOBase):
    """An open file that tells how much was read."""

    def __init__(self, file: Any, tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._file.readinto(buffer))
        self._tell(count)
        return count


def _whole(stream: io.BufferedIOBase | gzip.GzipFile, size: int, file: Place) -> Bytes:
    """Return all that comes, in one array that has room for `size` bytes at first."""
    if size >= LIMIT:
        raise BadProfile(f"{file}: {size} bytes; a profile ends before 2 GiB")
    whole = np.zeros(size + PADDING, np.uint8)
    used = 0
    while True:
        room = whole.size - PADDING
        if used < room:
            count = stream.readinto(whole.data[used : min(used + 4 * _PIECE, room)])  # of which gzip makes a copy
            used += count
            if not count:
                break
        elif more := stream.read(1):  # zipped, of unknown size, or still being written
            if used + 1 >= LIMIT:
                raise BadProfile(f"{file}: 2 GiB or more once unzipped: a decompression bomb, or not a profile")
            whole.resize(min(max(2 * room, 1 << 16), LIMIT - 1) + PADDING, refcheck=False)
            whole[used] = more[0]
            used += 1
        else:
            break
    if used < room:
        whole.resize(used + PADDING, refcheck=False)
    return whole[:used]
