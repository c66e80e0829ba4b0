"""Keeps the program's files as they are while a resumed program repeats what came before the checkpoint.

Until the training continues, the program runs on the states that skipped trainings left. What it writes over a file
that is there goes to a copy instead, which it also reads; the file is replaced once the copy continues it. What cannot
be kept so ends the resumption before the file is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tpunb.errors import BadProfile, TpunbError, warn_user
from tpunb.frames.conversion import open_file
from tpunb.instrument import h5py, python, safetensors, tensorflow, torch
from tpunb.instrument.registry import Attribute, Priority, around
from tpunb.step_stats.sample_places import PACKAGES
from tpunb.text import plain
from tpunb.training.program import STANDARD_FOLDERS, TPUNB, is_user_code, place_of, user_frame

_CACHES = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.cache{os.sep}")
_SETTINGS = os.path.join(os.path.expanduser("~"), ".")  # noqa: PTH111, PTH118  Path raises for unknown users
"""Begin of the paths of files that libraries keep in the home directory."""

_WRITERS = tuple(f"{TPUNB}{each}" for each in (f"io{os.sep}", "training/snapshot.py", "training/fingerprints.py"))
"""Modules of this package that write files."""

_SYSTEM = ("/proc/", "/sys/", "/dev/")
CHECKPOINT_NAMES = ("tpunb-", ".tpunb-", ".ends-", "fingerprints-")
"""Begins of the names that checkpoints have in their folder."""

_LOADERS = re.compile(  # modules of libraries that load the files of a program
    r"[\\/](?:torch[\\/]serialization|numpy[\\/]lib|keras[\\/]src[\\/]saving|h5py|safetensors|pandas|joblib)\b"
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.truncate", "shutil.rmtree", "sqlite3.connect"}

_OPENERS: dict[Attribute, tuple[int, str | None]] = {
    **dict.fromkeys(python.OPENS, (0, None)),
    torch.WRITE_FILE: (0, "w"),
    safetensors.WRITE_FILE: (1, "a"),
    h5py.FILE: (1, None),
    tensorflow.FILE: (1, None),
    tensorflow.SAVER: (1, "a"),
}
"""Functions that open files, with the place of the path in their arguments, and their mode (None: as it is given)."""


class FileGuard:
    """Files of the program in a block of `resume`."""

    def __init__(self) -> None:
        self.is_skipping = False  # whether the program repeats what came before the checkpoint
        self._problem: TpunbError | None = None
        self._folder = ""  # of the copies
        self._copies: dict[str, str] = {}  # by file
        self._repeated: dict[str, tuple[int, int]] = {}  # what `_written` was of each as the training went on
        self._created = set[str]()  # files and folders that were not there before
        self._written = set[str]()  # by this block
        self.reached_s = 0.0  # when the saved run was where the program is, in seconds since the epoch
        self._saved_s = 0.0  # when the checkpoint was saved
        self._checkpoints: tuple[str, ...] = ()  # begins of paths of checkpoints
        self._diverge: Callable[[str], None] = warn_user

    @contextmanager
    def watching(self, checkpoint: Path, saved_s: float, diverge: Callable[[str], None]) -> Iterator[None]:
        """Keep files in the block until `resume_writes`; report one that is read and was written after `saved_s`."""
        _add_hook()
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tpunb-kept-"))
            stack.callback(vars(self).update, vars(FileGuard()))
            listen_to_openers(self.path, stack)
            for attribute in python.MOVES:
                stack.enter_context(attribute.listening(around(self._renaming), Priority.CHECKPOINTS))
            self._checkpoints = tuple(str(checkpoint.absolute().parent / name) for name in CHECKPOINT_NAMES)
            self.is_skipping, self.reached_s, self._saved_s, self._diverge = True, saved_s, saved_s, diverge
            try:
                yield
            finally:
                self.resume_writes()
                self._follow()
            self.check()

    def check(self) -> None:
        """Raise the error that has ended the resumption, if the program has caught it."""
        if self._problem is not None:
            raise self._problem

    def resume_writes(self) -> None:
        """Write files as the program does: the training continues."""
        if self.is_skipping:
            self.is_skipping, self.reached_s = False, self._saved_s
            self._repeated = {path: _written(copy) for path, copy in self._copies.items()}

    def path(self, file: Any, mode: str) -> Any:
        """Return what the program is to open in place of a file."""
        if not isinstance(file, str | bytes | os.PathLike):
            return file
        path = _absolute(file)
        if not any(letter in mode for letter in "wxa+"):
            if path not in self._copies and path not in self._written and self._is_later(path):
                self._written.add(path)
                if self.is_skipping:
                    self._end(path, "reads", "as it was written later")
                self._diverge(f"{place_of(user_frame())} reads {plain(path)}, which was written after the checkpoint")
            return self._copies.get(path, file)
        self._written.add(path)
        if not self.is_skipping or not _is_of_program():
            if "w" in mode:
                self._copies.pop(path, None)
            return self._copies.get(path, file)
        if self._may_change(path):
            self._created |= set() if Path(path).exists() else {path}
        elif "w" in mode or path in self._copies:
            return self._copy(path)
        else:
            self._end(path)
        return file

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """End the resumption before a file is written, moved or removed in another way."""
        is_read = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES)
        if is_read or not _is_of_program():
            return
        count = 2 if event == "os.rename" else 1
        for path in [_absolute(each) for each in arguments[:count] if isinstance(each, str | bytes | os.PathLike)]:
            if event != "os.mkdir" and not self._may_change(path):
                self._end(path)
            self._created |= set() if Path(path).exists() else {path}

    def _may_change(self, path: str) -> bool:
        """Return whether a path is none that was there before, or is not the program's."""
        if path.startswith((self._folder, *self._checkpoints)) or any(cache in path for cache in _CACHES):
            return True
        if path in self._created or any(str(each) in self._created for each in Path(path).parents):
            return True
        return not any(each.is_file() or each.is_dir() for each in map(Path, (path, f"{path}.index")))

    def _is_later(self, path: str) -> bool:
        """Return whether the program reads a file that it has written after the checkpoint, before it was killed."""
        if any(cache in path for cache in _CACHES) or path.startswith(
            (self._folder, *self._checkpoints, *_SYSTEM, _SETTINGS)
        ):
            return False
        return _written(path)[0] / 1e9 > self.reached_s and _is_loaded() and Path(path).is_file()

    def _copy(self, path: str) -> str:
        folder = Path(self._folder) / str(len(self._copies))
        folder.mkdir(exist_ok=True)
        return self._copies.setdefault(path, str(folder / Path(path).name))

    def _end(self, path: str, does: str = "would change", how: str = "in a part that is skipped") -> None:
        self._problem = TpunbError(
            f"the resumption has ended: {place_of(user_frame())} {does} {plain(path)}, {how}",
            hint="put `if not run.skipping:` in front of it, or each stage of the training into a block of its own",
        )
        raise self._problem

    def _follow(self) -> None:
        """Have the files whose copies the program has continued be those; one that does not continue it stays."""
        copies, self._copies = self._copies, {}
        for path, copy in copies.items():
            with suppress(OSError, BadProfile):
                if (present := _written(copy)) == self._repeated.get(path) or not present[1]:
                    continue
                with open_file(copy) as new, open_file(path) as old:
                    continues = all(part == new.read(len(part)) for part in iter(partial(old.read, 2**20), b""))
                beside = f"{path}.resumed" if not Path(f"{path}.resumed").exists() else f"{path}.resumed-{os.getpid()}"
                shutil.copyfile(copy, beside)
                if continues:
                    Path(beside).replace(path)
                else:
                    warn_user(f"{plain(path)} was kept; what the resumed run wrote there is in {plain(beside)}")

    def _renaming(self, original: Callable[..., Any], source: Any, target: Any, **kwargs: Any) -> Any:
        """Move a new file to the copy of one that is kept, as programs do that replace a file at once."""
        path, old = _absolute(target), _absolute(source)
        if self.is_skipping and _is_of_program() and Path(path).is_file() and old in self._created:
            if not self._may_change(path):
                shutil.copyfile(source, self._copy(path))
                return os.remove(source)  # noqa: PTH107  any kind of path
        elif not self.is_skipping:
            self._copies.pop(path, None)
        return original(source, target, **kwargs)


guard = FileGuard()
"""That of this process."""


def listen_to_openers(path: Callable[[Any, str], Any], stack: ExitStack) -> None:
    """Let functions that open a file by its path, of whatever language, open `path(file, mode)` in its place."""

    def opening(at: int, mode: str | None) -> Callable[..., Any]:
        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            given = mode or str(kwargs.get("mode", args[at + 1] if len(args) > at + 1 else "r") or "r")
            name = next((name for name in ("file", "name", "filename", "file_prefix") if name in kwargs), "")
            if name:
                kwargs[name] = path(kwargs[name], given)
            elif len(args) > at:
                args = (*args[:at], path(args[at], given), *args[at + 1 :])
            return original(*args, **kwargs)

        return hook

    for attribute, (at, mode) in _OPENERS.items():
        stack.enter_context(attribute.listening(around(opening(at, mode)), Priority.CHECKPOINTS))


def _absolute(file: Any) -> str:
    return os.path.abspath(os.fsdecode(os.fspath(file)))  # noqa: PTH100  links are kept


def _written(file: str) -> tuple[int, int]:
    """Return when a file was last written, and its size; zeros without it."""
    try:
        found = Path(file).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _is_loaded() -> bool:
    """Return whether the program reads a file itself, or by a function that loads files: not what a library caches."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*STANDARD_FOLDERS, TPUNB)) or PACKAGES.search(file):
            return is_user_code(file) or _LOADERS.search(file) is not None
        frame = frame.f_back
    return False


def _is_of_program() -> bool:
    """Return whether the program, and not this package or a thread of a library, asks for a file."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_code(file) or file.startswith(_WRITERS):
            return not file.startswith(_WRITERS)
        frame = frame.f_back
    return False


_hooked: list[bool] = []


def _add_hook() -> None:
    """Watch the files that this process opens, once: Python keeps such a hook for good."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(lambda event, arguments: _audit(event, arguments))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if guard.is_skipping and event in _EVENTS:
        guard.audit(event, arguments)
