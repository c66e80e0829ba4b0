"""Fingerprints of batches and losses: noted after each checkpoint, compared when a fit is resumed from one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import TpunbError, warn_user
from tpunb.frames.conversion import read_file
from tpunb.instrument.tensorflow import dataset_of, iterator_kind
from tpunb.text import plural
from tpunb.training.state import digest

STEPS = 8
"""Steps after a checkpoint whose fingerprints are noted; of later epochs the first step."""

_BLOCKS, _BLOCK = 64, 1024  # evenly spaced blocks of a larger array that are hashed, and their size in bytes

OnDivergence = Literal["warn", "raise"]


class Diverged(TpunbError):
    """A resumed run has other data or computes other values than the saved run."""


@dataclass(eq=False)
class Resumed:
    """A fit that continues from a checkpoint, compared with the saved run."""

    step: int  # of the checkpoint
    reason: str = ""  # why it is not exact
    on_divergence: OnDivergence = "warn"
    verified_steps: int = 0  # whose batch and logs equal those of the saved run
    note: str = ""  # how the position in the data was restored, if that took long
    divergence: str = ""  # sentence that names the first step that differs, and whether its data or computation do
    expected: dict[int, list[str]] = field(default_factory=dict, repr=False)
    varying: str = ""  # why results of validation may be others
    expected_ends: dict[int, int] = field(default_factory=dict, repr=False)  # steps at the end of each training
    expected_total: dict[str, int] = field(default_factory=dict, repr=False)  # trainings and steps of the saved run
    is_over: bool = False  # whether the block has ended, so that its numbers are compared

    @classmethod
    def read(cls, folder: Path, metadata: Mapping[str, Any], on_divergence: OnDivergence) -> Resumed:
        """Return the resumption of a checkpoint, with the fingerprints that the saved run noted after it."""
        resumed = cls(metadata["step"], "" if metadata["exact"] else metadata["why"], on_divergence)
        resumed.varying = metadata.get("varying", "")
        if metadata["exact"] and "fingerprints" in metadata:
            lines = _lines(folder.parent / Path(metadata["fingerprints"]).name)
            resumed.expected = {step: each for step, *each in lines if step >= resumed.step}
        return resumed

    def __str__(self) -> str:
        if self.reason:
            return f"resumed at step {self.step}, not exactly: {self.reason}"
        if self.divergence:
            return f"resumed at step {self.step}: {self.divergence}"
        verified = f"verified over {plural(self.verified_steps, 'step')}" if self.verified_steps else "not verified"
        varying = f"; results of validation may differ ({self.varying})" if self.varying else ""
        exactly = "exactly " if self.is_over else ""
        return f"resumed {exactly}at step {self.step}, {'; '.join(filter(None, [verified, self.note]))}{varying}"

    def compare(self, step: int, present: list[str]) -> None:
        """Compare the fingerprints of a step; at the first difference, warn or raise an error."""
        saved = self.expected.pop(step, None)
        if saved is None or self.divergence:
            return
        (saved_data, saved_logs), (data, logs) = saved, present
        if data and saved_data and data != saved_data:
            self.divergence = f"the data of step {step} differ from those of the saved run"
        elif logs != saved_logs:
            self.divergence = f"the computation of step {step} differs from that of the saved run"
            if data and saved_data:
                self.divergence += ", on the same data"
        else:
            self.verified_steps += 1
            return
        self.diverge(self.divergence)

    def diverge(self, divergence: str) -> None:
        """Report that the run is not the saved one: warn, or raise an error."""
        self.divergence = divergence
        if self.on_divergence == "raise":
            raise Diverged(divergence, hint="run the same program on the same files, device and versions")
        warn_user(f"the resumed run is not exact: {divergence}", stacklevel=2)

    def compare_end(self, number: int, steps: int) -> None:
        """Compare how many steps were taken at the end of a training with the saved run."""
        saved = self.expected_ends.get(number, steps)
        if saved != steps and not self.divergence and not self.reason:
            self.diverge(f"training {number + 1} ended after {plural(steps, 'step')}, in the saved run after {saved:,}")

    def compare_total(self, counts: Mapping[str, int]) -> None:
        """Compare the numbers of trainings and steps of the block with those of the saved run."""
        self.is_over = True
        if self.divergence or self.reason:
            return
        ended = max(self.expected_ends, default=-1) + 1  # of the saved run, which may not have come to its end
        for what, number in counts.items():
            saved = self.expected_total.get(what, max(number, ended) if what == "trainings" else number)
            if saved != number:
                self.diverge(f"it had {plural(number, what.removesuffix('s'))}, the saved run {saved:,}")
                return


class Fingerprints:
    """Notes fingerprints of a fit's steps, and compares them if it is resumed.

    Lines ``[step, batch, logs]`` of the file `name` beside the checkpoints: hashes of samples of the batch, which is
    drawn before the step and fed to it by another iterator, and of logs, such as the mean of the losses so far.
    """

    def __init__(self, resumed: Resumed | None) -> None:
        self.name = f"fingerprints-{os.urandom(4).hex()}.jsonl"  # the program's random numbers are left alone
        self._resumed = resumed
        self._file: Path | None = None
        self._left = 0  # steps still to note
        self._step: int | None = None  # that is running and to be noted or compared
        self._batch: Any = None
        self._feeder: _Feeder | None = None
        self._steps = list[tuple[int, str, Any]]()  # noted, and not written

    def begin(self, folder: Path) -> None:
        """Note the steps from here on: a checkpoint was saved to a folder."""
        self.write()
        self._file, self._left = folder / self.name, STEPS

    def begin_step(self, step: int, first: int, last: int, iterator: Any) -> bool:
        """Return whether the batch of a step is to be drawn by `draw`."""
        if first == 0 and self._file is not None:
            self._left = max(self._left, 1)
        self._step, self._batch = step if self.is_noted(step) else None, None
        return self._step is not None and first == last and self._is_drawn_before(iterator)

    def draw(self, iterator: Any) -> Any:
        """Draw the next batch; return an iterator that feeds it to the step."""
        try:
            self._batch = next(iterator)
        except StopIteration:  # which the step finds too
            return iterator
        self._feeder = self._feeder or _Feeder(iterator.element_spec)
        return self._feeder.feed(self._batch)

    def _drawn(self) -> Any:
        """Return the batch of the step that has ended; None if it was not noted."""
        batch, self._batch = self._batch, None
        return batch

    def _is_drawn_before(self, iterator: Any) -> bool:
        """Return whether the batch of a step is drawn before it, by `draw`."""
        return _has_plain_batches(iterator)

    def _arrays(self, batch: Any) -> list[NDArray[Any]]:
        import tensorflow as tf

        return [tensor.numpy() for tensor in tf.nest.flatten(batch)]

    def on_logs(self, logs: Any) -> None:
        """Note or compare the step that has ended; its logs are read from the device later."""
        if self._step is None:
            return
        step, self._step = self._step, None
        batch = self._drawn()
        self.note(step, "" if batch is None else of_arrays(self._arrays(batch)), logs)

    def is_noted(self, step: int) -> bool:
        """Return whether a step is to be noted or compared."""
        return self._left > 0 or (self._resumed is not None and step in self._resumed.expected)

    def note(self, step: int, data: str, logs: Any) -> None:
        """Note or compare a step by the fingerprint of its batch, or "", and its logs."""
        if self._left:
            self._left -= 1
            self._steps.append((step, data, logs))
        if self._resumed is not None:
            self._resumed.compare(step, [data, digest([logs], [])])
        if not self._left:
            self.write()

    def write(self) -> None:
        """Write the noted steps to the file."""
        steps, self._steps = self._steps, []
        if self._file is not None and steps and self._file.parent.is_dir():
            lines = (json.dumps([step, data, digest([logs], [])]) for step, data, logs in steps)
            with self._file.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)


class _Feeder:
    """An iterator that draws one batch after the other from a queue."""

    def __init__(self, spec: Any) -> None:
        import tensorflow as tf

        parts = tf.nest.flatten(spec)
        self._queue = tf.queue.FIFOQueue(1, [part.dtype for part in parts])
        options = tf.data.Options()
        options.autotune.enabled = False  # nothing is drawn in advance
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_optimization.inject_prefetch = False

        def drawn(_: Any) -> Any:
            batch = self._queue.dequeue()
            batch = batch if isinstance(batch, list | tuple) else [batch]
            return tf.nest.pack_sequence_as(spec, [tf.ensure_shape(*each) for each in zip(batch, shapes, strict=True)])

        shapes = [part.shape for part in parts]
        batches = tf.data.Dataset.from_tensors(0).repeat().map(drawn).with_options(options)
        self._iterator = iter(dataset_of(batches._variant_tensor, spec))

    def feed(self, batch: Any) -> Any:
        """Return the iterator, whose next batch is this one."""
        import tensorflow as tf

        if int(self._queue.size()):  # a step has failed before it drew
            self._queue.dequeue()
        self._queue.enqueue(tf.nest.flatten(batch))
        return self._iterator


def _lines(file: Path) -> list[list[Any]]:
    """Return the lines of a file of fingerprints up to one that is damaged; none if it cannot be read."""
    lines = list[list[Any]]()
    try:
        for line in read_file(file).decode().splitlines():
            step, data, logs = json.loads(line)
            lines.append([int(step), str(data), str(logs)])
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        pass
    return lines


def _has_plain_batches(iterator: Any) -> bool:
    """Return whether an iterator draws nests of plain tensors on this machine."""
    import tensorflow as tf

    specs = tf.nest.flatten(iterator.element_spec) if isinstance(iterator, iterator_kind()) else []
    return bool(specs) and all(type(spec) is tf.TensorSpec for spec in specs)


def of_arrays(batch: Iterable[NDArray[Any]]) -> str:
    """Return a fingerprint of samples of arrays: shapes, types and evenly spaced blocks of the values."""
    hashed = hashlib.blake2b(digest_size=8)
    for array in map(np.ascontiguousarray, batch):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype == object:  # texts
            hashed.update(repr(array.ravel()[:_BLOCK].tolist()).encode())
            continue
        content = array.reshape(-1).view(np.uint8)
        if content.size > _BLOCKS * _BLOCK:
            content = np.ascontiguousarray(
                content[: content.size // _BLOCKS * _BLOCKS].reshape(_BLOCKS, -1)[:, :_BLOCK]
            )
        hashed.update(content.data)
    return hashed.hexdigest()
