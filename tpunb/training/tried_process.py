"""A process of a trial: it runs with a change, writes to the trial's folder alone, and keeps what it computed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

TRIAL = "TPUNB_TRIAL"
"""Variable of the environment with a `Plan` as JSON."""

REFUSED, OUTPUT = "refused.json", "output.npz"
_MOST = 10_000  # small results of a function of JAX that are kept
_SMALL = 1024  # elements of one
_LARGEST = 500_000_000  # bytes of parameters that are kept
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT
_TARGETS = {"os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)}  # places of the paths that change; of others: 0
_OF_LINKS = {"os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", *_TARGETS}  # which change a link, not its target
_CHANGES = {"os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", *_OF_LINKS}
_SYSTEM = ("/dev/", "/proc/", "/sys/")


class Plan(NamedTuple):
    """What a process of a trial does."""

    folder: str  # for what it keeps
    scratch: str  # what stands for the working directory
    home: str  # the working directory of the program
    change: str = ""  # value of a ``tpunb.instrument.remedies.Trial``
    writes: bool = False  # whether it may write anywhere


class Guard:
    """Lets a process write in its scratch folder, in temporary folders and in caches alone."""

    def __init__(self, plan: Plan) -> None:
        self.refused: list[str] = []
        self._plan = plan
        self._home = os.path.realpath(plan.home)
        caches = [os.path.expanduser("~/.cache"), os.path.expanduser("~/.keras"), tempfile.gettempdir()]  # noqa: PTH111
        self._allowed = [os.path.realpath(each) for each in (plan.folder, plan.scratch, *caches)]

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse to change a file elsewhere: an audit hook."""
        if event == "open":
            writes = isinstance(arguments[2], int) and arguments[2] & _WRITES
            if not writes:
                return
            paths: tuple[Any, ...] = arguments[:1]
        elif event in _CHANGES:
            paths = tuple(arguments[place] for place in _TARGETS.get(event, (0,)))
        else:
            return
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                self.check(os.fsdecode(path), follows=event not in _OF_LINKS)

    def opened(self, file: Any, mode: str) -> Any:
        """Return a file that a library opens, perhaps in another language, unless it must not be written."""
        if isinstance(file, str | bytes | os.PathLike) and any(letter in mode for letter in "wxa+"):
            self.check(os.fsdecode(file))
        return file

    def check(self, path: str, *, follows: bool = True) -> None:
        """Raise PermissionError for a path that is not to be changed; a link to a file of the program gets a copy."""
        path = os.path.abspath(path)  # noqa: PTH100
        scratch = self._plan.scratch + os.sep
        if follows and path.startswith(scratch) and os.path.islink(path):  # noqa: PTH114
            target = os.path.realpath(path)
            os.unlink(path)  # noqa: PTH108
            with suppress(OSError):
                shutil.copyfile(target, path)
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
        real = os.path.realpath(path) if follows else real
        if path.startswith(_SYSTEM) or f"{os.sep}__pycache__{os.sep}" in real:
            return
        within = [each for each in (*self._allowed, self._home) if real == each or real.startswith(each + os.sep)]
        if within and max(within, key=len) != self._home:
            return
        if path not in self.refused:
            self.refused.append(path)
            with suppress(OSError):
                Path(self._plan.folder, REFUSED).write_text(json.dumps(self.refused))
        raise PermissionError(errno.EACCES, "a trial writes nothing there: tpunb try --writes-again allows it", path)


def begin(stack: ExitStack, run: Any) -> None:
    """Change the program as the environment asks, and keep its output as the stack is closed."""
    plan = Plan(**json.loads(os.environ[TRIAL]))
    from tpunb.instrument import remedies
    from tpunb.training import files

    _seed(stack)
    if plan.change:
        remedies.CHANGES[remedies.Trial(plan.change)].apply(stack)
    if not plan.writes and _guards:
        files.listen_to_openers(_guards[0].opened, stack)
    _Output(plan).watch(stack, run)


def _seed(stack: ExitStack) -> None:
    """Seed the global generators of Python, NumPy, TensorFlow and PyTorch; Keras' follow Python's."""
    import random

    import numpy as np

    from tpunb.instrument import tensorflow, torch

    def seed_tensorflow(_: ExitStack) -> None:
        import tensorflow as library

        library.random.set_seed(0)

    def seed_torch(_: ExitStack) -> None:
        import torch as library

        library.manual_seed(0)

    random.seed(0)
    np.random.seed(0)
    tensorflow.LIBRARY.on_import(stack, seed_tensorflow)
    torch.LIBRARY.on_import(stack, seed_torch)


_guards: list[Guard] = []


def guard() -> None:
    """Refuse from now on what the trial's process must not write."""
    plan = Plan(**json.loads(os.environ[TRIAL]))
    if not plan.writes:
        _guards.append(Guard(plan))
        sys.addaudithook(_guards[0].audit)


class _Output:
    """What a training computed: parameters after the last step, and small results of functions of JAX."""

    def __init__(self, plan: Plan) -> None:
        self._path = os.path.join(plan.folder, OUTPUT)  # noqa: PTH118
        self._optimizers: dict[int, Any] = {}
        self._models: dict[int, Any] = {}
        self._results: list[Any] = []

    def watch(self, stack: ExitStack, run: Any) -> None:
        from tpunb.instrument import keras, torch
        from tpunb.instrument.registry import Priority, around

        def model(original: Any, self_: Any, *args: Any, **kwargs: Any) -> Any:
            self._models[id(self_)] = self_
            return original(self_, *args, **kwargs)

        loop, called = run._session.loop, run._session.loop.called

        def noted(function: str, begun_ns: int, now_ns: int, result: Any, **more: Any) -> None:
            called(function, begun_ns, now_ns, result, **more)
            if type(result).__module__.startswith("jax") and getattr(result, "size", _SMALL) < _SMALL:
                self._results.append(result)
                del self._results[:-_MOST]

        loop.called = noted
        stack.callback(self._write)
        torch.listen_to_optimizers(lambda each: self._optimizers.setdefault(id(each), each), stack)
        for attribute in (keras.METHODS["fit"], keras.UPDATE):
            stack.enter_context(attribute.listening(around(model), Priority.CHECKPOINTS))

    def _write(self) -> None:
        """Write arrays in order of first use."""
        import numpy as np

        from tpunb.training.state import as_array, to_numpy

        values: list[Any] = []
        with suppress(Exception):  # what the program has deleted
            parameters = [
                each for one in self._optimizers.values() for group in one.param_groups for each in group["params"]
            ]
            values += map(as_array, {id(each): each for each in parameters}.values())
        with suppress(Exception):
            of = (getattr(one, "weights", None) or one._trainable_variables for one in self._models.values())
            variables = [each for variables in of for each in variables]
            values += to_numpy([*{id(each): each for each in variables}.values()])
        for result in self._results:
            with suppress(Exception):  # donated to a later call
                values.append(np.asarray(result))
        if values and sum(value.nbytes for value in values) <= _LARGEST:
            np.savez(self._path, *values)
