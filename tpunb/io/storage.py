"""Files and folders, local or behind any URL that fsspec supports, behind one interface.

Local files never import fsspec.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from tpunb.errors import BadProfile, MissingExtra, ProfileNotFound, TpunbError, install, wrong_type
from tpunb.frames.conversion import METADATA_BYTES, open_file
from tpunb.protobuf import LIMIT, PADDING
from tpunb.text import format_error

PathLike = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]

PATIENCE_S = 120.0
"""Seconds until a server must respond: its client may retry for half an hour."""

RATIO, FREE = 100, 64 << 20
"""Times its size to which a compressed profile may grow, and bytes to which any may: real ones have less than 40."""

_BLOCK = 16 << 20  # bytes read at a time: many for a network, few beside a large profile
_PIECE = 1 << 18  # bytes between two reports of progress
_JSON = re.compile(rb"""(?:\xef\xbb\xbf)?\s*(?:\{\s*(?:"[^\x00-\x1f]{2}|\})|\[\s*[{\]])""")
_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_RIEGELI = bytes.fromhex("83af70d10d884a3f") + bytes(8)  # the first block header
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]*(://|::.*://)")
_CHANGES = ["etag", "generation", "contentmd5", "md5hash", "updated", "lastmodified", "mtime", "ctime", "created"]
_GOOGLE = ("gs", "gcs")
LOGIN = "gcloud auth application-default login, or name a key in GOOGLE_APPLICATION_CREDENTIALS"
_HTTP_DEPTH = 8  # pages may link to pages without end
_CREDENTIALS_S, _ANONYMOUS_S = 1.5, 2.5  # to look for Google credentials, and to ask without any
_NETWORK = "check the address, the network and your credentials, then load again"

_T = TypeVar("_T")


class NoAnswer(TpunbError):
    """A server did not respond in time; it may still do what was requested."""


class _Local:
    """The part of the interface of fsspec that is used here, for local files."""

    def info(self, path: str) -> dict[str, Any]:
        info = Path(path).stat()
        kind = "directory" if stat.S_ISDIR(info.st_mode) else "file" if stat.S_ISREG(info.st_mode) else "other"
        return {"type": kind, "size": info.st_size, "mtime": info.st_mtime_ns, "ctime": info.st_ctime_ns}

    def ls(self, path: str, **_: object) -> list[str]:
        return [str(child) for child in Path(path).iterdir()]

    def find(self, path: str, **_: object) -> dict[str, None]:
        """Return every file below; links to folders are followed, each folder once."""
        files, visited, folders = dict[str, None](), set[str](), [(str(Path(path)), os.path.realpath(path))]
        while folders:
            folder, real = folders.pop()
            if real in visited:
                continue
            visited.add(real)
            below = list[tuple[str, str]]()
            # other errors are raised: a part of a pod must not pass for all of it
            with suppress(FileNotFoundError), os.scandir(folder) as entries:  # removed since it was listed
                for entry in sorted(entries, key=lambda entry: entry.name):
                    inner = entry.name if folder == "." else f"{folder.rstrip(os.sep)}{os.sep}{entry.name}"
                    if not _is_folder(entry):
                        files[inner] = None
                    else:  # a run of a week has 60,000 folders: links alone are resolved
                        real_inner = os.path.realpath(inner) if entry.is_symlink() else f"{real}{os.sep}{entry.name}"
                        below.append((inner, real_inner))
            folders += reversed(below)
        return files


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


@dataclass(frozen=True, eq=False)
class Location:
    """A file or a folder: its file system, its path there, and its URL ("" for local ones)."""

    fs: Any
    path: str
    url: str = ""
    listed: Mapping[str, Any] | None = None  # its entry in a listing
    _info: dict[str, Any] = field(default_factory=dict, init=False)

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
        """The name of the parent folder."""
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
    def parent(self) -> Location:
        """The parent folder."""
        if not self.url:
            return local(Path(self.path).parent)
        return Location(self.fs, self.fs._parent(self.path), self.url.rstrip("/").rpartition("/")[0])

    @property
    def info(self) -> Mapping[str, Any]:
        """Metadata from the file system, requested once; raises ``ProfileNotFound`` if there is nothing."""
        if self.listed and self.listed.get("size") is not None and _changes(self.listed):
            return self.listed
        if not self._info:  # no cached_property: in Python 3.11 all instances share one lock, and servers are slow
            with _errors(self):
                self._info.update(self.fs.info(self.path))
        return self._info

    @property
    def size(self) -> int:
        """Size in bytes; 0 if unknown, or where a link leads nowhere."""
        try:
            return int(self.info.get("size") or 0)
        except (ProfileNotFound, BadProfile):
            return 0

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder; a URL with a slash at its end always is, since web servers do not say."""
        return self.url.endswith("/") or self.info["type"] == "directory"

    @property
    def stamp(self) -> str | None:
        """A string that changes with the file, or None where the file system has none."""
        changes = _changes(self.info)
        return repr([self.info.get("size"), *changes]) if changes else None

    def below(self, subfolder: str = "", *, refresh: bool = False) -> dict[str, Location]:
        """Return every file in a folder and its subfolders, or in one of them, by its path relative to the folder.

        `refresh` skips cached listings.
        """
        if refresh and self.url:
            self.fs.invalidate_cache()
        where = f"{self.path.rstrip('/')}/{subfolder}" if subfolder else self.path
        with _errors(self):
            listing = self.fs.find(where, detail=True, **({"maxdepth": _HTTP_DEPTH} if self._is_web else {}))
        top, files = self.path if self.url else str(Path(self.path)), {}
        top = "" if top == "." else top
        for path, listed in listing.items():
            name = path.removeprefix(top).replace(os.sep, "/").strip("/")
            files[name] = Location(self.fs, path, f"{self.url.rstrip('/')}/{name}" if self.url else "", listed)
        return files

    def children(self) -> list[Location]:
        """Return the direct children of a folder; nothing on a web server, which cannot list them."""
        if self._is_web:
            return []
        with _errors(self):
            paths = sorted(self.fs.ls(self.path, detail=False))
        return [
            Location(self.fs, path, self.url and f"{self.url.rstrip('/')}/{path.rstrip('/').rpartition('/')[2]}")
            for path in paths
        ]

    def holds(self) -> str:
        """Return the contents of a folder as text, for the hint of an error."""
        if self.url.endswith(":/"):
            return "check its name and your permission to read it"
        try:
            names = sorted(Location(self.fs, path, self.url).name for path in self.fs.ls(self.path, detail=False))[:8]
        except (FileNotFoundError, NotADirectoryError):
            return f"{self} is not a folder"
        except Exception as error:  # noqa: BLE001  another error is being raised already
            return f"{self} cannot be listed: {format_error(error)}"
        return f"{self} holds {', '.join(names)}" if names else f"{self} is empty"


def _changes(info: Mapping[str, Any]) -> list[str]:
    """Return metadata that changes with a file; file systems spell the names in many ways."""
    values = {re.sub("[-_]", "", name.lower()): value for name, value in info.items()}
    return [f"{name} {values[name]}" for name in _CHANGES if values.get(name) is not None]


def local(path: PathLike) -> Location:
    """Return a local file or folder, whether it exists or not."""
    return Location(_Local(), os.fspath(path))


def find(path: PathLike) -> Location:
    """Return the file or folder at a local path or a URL; raises ProfileNotFound if there is nothing.

    Raises MissingExtra without the package of the URL's protocol, TpunbError without an answer within `PATIENCE_S`.

    >>> find(".").is_folder
    True
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise wrong_type("load", "path", "be a path or a list of paths", path)
    if not text:
        raise ValueError("The path parameter of load must be a path or a URL. Got '' instead.")
    if isinstance(path, Path) and (slash := re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", text)) and not path.exists():
        hint = f"give a URL as text: a Path makes one slash of two in {slash[0]}"
        raise ProfileNotFound(f"nothing is at {text}", hint=hint)
    target = resolve(text)
    if isinstance(target, str):
        if is_anonymous(target):
            return _contact_anonymously(target)
        return bounded(lambda: _contact(target), target, _NETWORK)
    location = local(target)
    location.info  # noqa: B018  raises if there is nothing
    return location


def resolve(text: str) -> Path | str:
    """Return a URL as it is, and a local path, also of a ``file://`` or ``local://`` URL, with ``~`` expanded."""
    if text.lower().startswith(("file://", "local://")):
        text = unquote(text.partition("://")[2].removeprefix("localhost"))
    return text if _URL.match(text) else Path(os.path.expanduser(text))  # noqa: PTH111  Path raises for unknown users


def bounded(work: Callable[[], _T], url: str, hint: str, seconds: float | None = None) -> _T:
    """Return the result of work on a server, or raise `NoAnswer` after some seconds, by default `PATIENCE_S`."""
    seconds = PATIENCE_S if seconds is None else seconds
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised in the thread of the caller
            answer.set_exception(error)

    if url.startswith("memory://"):  # which always responds
        run()
    else:
        threading.Thread(target=run, daemon=True).start()
    if awaited([answer], seconds):
        return answer.result()
    raise NoAnswer(f"{url}: no answer within {seconds:g} s", hint=hint)


def awaited(answers: Sequence[Future[Any]], seconds: float = float("inf")) -> bool:
    """Wait until all are done or one has failed; return False on a timeout.

    It waits in short turns, because an endless wait in the main thread would delay an interrupt.
    """
    until = time.monotonic() + seconds
    pending = set(answers)
    while pending and time.monotonic() < until:
        done, pending = wait(pending, timeout=0.1, return_when=FIRST_EXCEPTION)
        if any(answer.exception() for answer in done):
            return True
    return not pending


def is_anonymous(url: str) -> bool:
    """Return whether a URL is of Google Cloud Storage, and this process has no credentials for it."""
    import fsspec

    protocol = url.partition(":")[0].lower()
    if protocol not in _GOOGLE or any("token" in fsspec.config.conf.get(name, {}) for name in _GOOGLE):
        return False
    try:
        import google.auth
    except ImportError:  # gcsfs, which needs it, is not installed either
        return False
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # else it prints a traceback for each failed request
    try:  # its client would ask a metadata server that does not exist for half a minute
        bounded(google.auth.default, url, LOGIN, _CREDENTIALS_S)
    except (NoAnswer, google.auth.exceptions.GoogleAuthError):
        return True
    return False


def _contact_anonymously(url: str) -> Location:
    """Return a location that anyone may read."""
    try:
        return bounded(lambda: _contact(url, token="anon"), url, LOGIN, _ANONYMOUS_S)
    except (ProfileNotFound, MissingExtra):
        raise
    except TpunbError as error:
        reason = str(error).removeprefix(f"{url}: ")
        raise TpunbError(f"{url}: there are no Google credentials, and without any: {reason}", hint=LOGIN) from None


def _contact(url: str, **options: Any) -> Location:
    import fsspec

    if url.partition(":")[0].lower() not in fsspec.available_protocols():
        raise ValueError(f"The path parameter of load must be a path or a URL that fsspec knows. Got {url!r} instead.")
    try:
        with _errors(url):
            fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        extra = next((extra for name, extra in (("gcsfs", "gcs"), ("aiohttp", "http")) if name in str(error)), None)
        hint = install(extra) if extra else "install the package named above"
        raise MissingExtra(f"{url}: {format_error(error)}", hint=hint) from error
    fs.invalidate_cache()  # the listing of an earlier load may be old
    location = Location(fs, path, url)
    location.info  # noqa: B018  raises if there is nothing
    return location


@contextmanager
def _errors(location: Location | str) -> Iterator[None]:
    """Raise errors of a file system, which are of any type, as `TpunbError`."""
    try:
        yield
    except (TpunbError, ImportError, MemoryError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
            raise TpunbError(
                f"{location}: cannot be reached: {format_error(error.__cause__ or error)}", hint=_NETWORK
            ) from error
        hint = location.parent.holds() if isinstance(location, Location) else None
        raise ProfileNotFound(f"nothing is at {location}", hint=hint) from None
    except Exception as error:
        if isinstance(location, Location) and not location.url:
            raise BadProfile(f"{location}: cannot be read: {format_error(error)}") from error
        raise TpunbError(f"{location}: cannot be read: {format_error(error)}", hint=_NETWORK) from error


def fetch(files: Sequence[Location]) -> list[bytes | None]:
    """Return the contents of small files of one file system, fetched in parallel; None for a missing file."""
    size = sum(file.size for file in files)
    if size >= LIMIT:
        raise BadProfile(f"{files[0]} and files beside it: {size} bytes; statistics of a run have less than 2 GiB")
    if not files:
        return []
    with _errors(files[0]):
        # not `cat`, which expands [ and * in names
        contents = files[0].fs.cat_ranges([file.path for file in files], None, None, on_error="return")
    for file, data in zip(files, contents, strict=True):
        if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):
            with _errors(file):
                raise data
    return [None if isinstance(data, Exception) else data for data in contents]


def read_small(file: Location) -> bytes:
    """Return the contents of a file of facts, which has `METADATA_BYTES` at most."""
    if file.size > METADATA_BYTES:
        raise BadProfile(f"{file}: {file.size:,} bytes; such a file has at most {METADATA_BYTES:,}")
    return read(file).tobytes()


def is_database(data: Bytes) -> bool:
    """Return whether data are a database of SQLite."""
    return data[: len(_SQLITE)].tobytes() == _SQLITE


def is_json(data: bytes | Bytes) -> bool:
    r"""Return whether a file begins as a JSON object or a list of them, after white space and a byte order mark.

    An XSpace may begin with a line feed, the tag of a plane, whose length may be that of a brace. The tag that follows
    is no white space, and where it is a quotation mark a control character follows soon, which JSON text cannot have.

    >>> is_json(b' {"traceEvents": []}'), is_json(b'\n{"w\x08\x01'), is_json(b"\n{" + bytes(123))
    (True, False, False)
    """
    return _JSON.match(data) is not None  # type: ignore[arg-type]


def read(file: Location, progress: Callable[[int], None] = lambda _: None) -> Bytes:
    """Return the contents of a file, unzipped, with `PADDING` zeros after the last byte; of Riegeli files the records.

    `progress` receives the number of bytes since the last call. Raises BadProfile if damaged, or 2 GiB or more.
    """
    size = file.info.get("size") or 0
    if file.info["type"] in ("directory", "other"):
        raise BadProfile(f"{file}: neither a file nor a folder")
    # from the web in one stream: a file server may not support ranges
    options = {"mode": "rb", "block_size": 0 if file._is_web else _BLOCK, "cache_type": "none"}
    with _errors(file), file.fs.open(file.path, **options) if file.url else open_file(file.path) as raw:
        stream = io.BufferedReader(_Progress(raw, progress), _PIECE)
        most = min(LIMIT, max(FREE, RATIO * size)) if size else LIMIT  # bytes once decompressed
        if stream.peek(2)[:2] != _GZIP:
            return _records(_whole(stream, size, file, LIMIT), file, most)
        try:
            with gzip.GzipFile(fileobj=stream) as unzipped:
                return _records(_whole(unzipped, min(16 * size, most - 1), file, most), file, most)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadProfile(f"{file}: cannot be read: {format_error(error)}") from error


def _records(data: Bytes, file: Location, most: int) -> Bytes:
    """Return the records of a Riegeli file one after the other, as one XSpace; other data unchanged."""
    if data[: len(_RIEGELI)].tobytes() != _RIEGELI:
        return data
    from tpunb.io import riegeli

    chunks = riegeli.records(data, source=str(file), limit=most - 1)
    return np.frombuffer(bytearray().join([*chunks, bytes(PADDING)]), np.uint8)[:-PADDING]


class _Progress(io.RawIOBase):
    """An open file that reports how much was read."""

    def __init__(self, file: Any, progress: Callable[[int], None]) -> None:
        self._file, self._progress = file, progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._file.readinto(buffer))
        self._progress(count)
        return count


def _whole(stream: io.BufferedIOBase | gzip.GzipFile, size: int, file: Location, most: int) -> Bytes:
    """Return the rest of a stream, less than `most` bytes, in one array, with room for `size` bytes at first."""
    if size >= LIMIT:
        raise BadProfile(f"{file}: {size} bytes; a profile has less than 2 GiB")
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
            if used + 1 >= most:
                unzipped = "2 GiB" if most == LIMIT else f"{most / 2**20:,.0f} MiB"
                raise BadProfile(
                    f"{file}: {unzipped} or more once unzipped, of {file.size:,} bytes: a decompression bomb",
                    hint="if it is a profile, unzip it and load the result",
                )
            whole.resize(min(max(2 * room, 1 << 16), most - 1) + PADDING, refcheck=False)
            whole[used] = more[0]
            used += 1
        else:
            break
    if used < room:
        whole.resize(used + PADDING, refcheck=False)
    return whole[:used]
