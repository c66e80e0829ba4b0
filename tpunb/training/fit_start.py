"""What a call of Keras' ``fit`` starts from: a checkpoint, and the fits of its block that have ended before."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from tpunb.errors import TpunbError
from tpunb.frames.conversion import read_file
from tpunb.text import plain
from tpunb.tfdata import rewrite
from tpunb.tfdata.graph import graph_or_none
from tpunb.training import seeds, snapshot
from tpunb.training.fingerprints import OnDivergence, Resumed
from tpunb.training.positions import ITERATOR
from tpunb.training.state import METRICS, RANDOM, assign, to_numpy, variables_by_part

CheckpointPath = str | os.PathLike[str]

ENDS, TOTAL = ".ends-", "total.json"
"""Begin of the name of a folder of states in which trainings ended, and the file that counts them once all have."""

NUMBER = {"loop": "loop", "trainer": "call", "fit": "fit"}
"""Names in the metadata of a checkpoint: what it is of, and how many of these were before it in its block."""


class FitStart(NamedTuple):
    """Checkpoint from which a fit starts."""

    folder: Path
    metadata: Mapping[str, Any]
    resumed: Resumed

    @classmethod
    def read(cls, checkpoint: CheckpointPath, on_divergence: OnDivergence = "warn") -> Self:
        """Return the start that a checkpoint of `tpunb.checkpointing` is."""
        folder = Path(checkpoint)
        metadata = snapshot.read_metadata(folder)
        if "fit" not in metadata:
            raise TpunbError(
                f"{folder.name} is a checkpoint of a custom loop, not of fit",
                hint="restore it with tpunb.checkpoint.restore",
            )
        if len(metadata["ended"]) < metadata["fit"]:
            raise snapshot.BadSnapshot(folder, f"{snapshot.METADATA} lacks fits before its own")
        return cls(folder, metadata, Resumed.read(folder, metadata, on_divergence))

    @property
    def step(self) -> int:
        """Number of steps that the optimizer had taken."""
        step: int = self.metadata["step"]
        return step

    @property
    def number(self) -> int:
        """Number of trainings of the block before the one of the checkpoint, which are skipped."""
        number: int = self.metadata[NUMBER[self.kind]]
        return number

    @property
    def kind(self) -> str:
        """Kind of the training: "loop", "trainer" or "fit"."""
        return next(kind for kind in NUMBER if kind in self.metadata)

    def end(self, number: int) -> FitStart | None:
        """Return the state in which an earlier training of the block ended; None if it was not kept."""
        try:
            name = self.metadata.get("ends", {}).get(str(number), {}).get("name")
            folder = snapshot.path_within(self.folder.parent, name)
            end = FitStart(folder, snapshot.read_metadata(folder), self.resumed)
        except (*snapshot.DAMAGED, TpunbError):
            return None
        return end if NUMBER[self.kind] in end.metadata else None

    def check_ends(self) -> None:
        """Raise an error if the program would go on from a training that is skipped without the state it left."""
        ends = self.metadata.get("ends", {})
        for number in range(self.number):
            one = dict(ends.get(str(number), {}))
            reason = one.get("reason") or ("" if self.end(number) is not None else "it was not kept")
            if reason:
                place = f" after {plain(str(one['place']))}" if one.get("place") else ""
                raise TpunbError(
                    f"{self.folder.name} cannot be resumed exactly: the code{place} would run without the state in "
                    f"which training {number + 1} of the block ended ({plain(reason)})",
                    hint="put each stage into a block of its own, or give resume(..., exact=False) and put `if not "
                    "run.skipping:` in front of that code",
                )

    def read_counts(self) -> None:
        """Read how many steps the saved run had taken at the end of each training, and in all if it has ended."""
        with suppress(*snapshot.DAMAGED, TpunbError):
            ends = snapshot.path_within(self.folder.parent, self.metadata.get("ends_folder", ""))
            for folder in ends.iterdir() if ends.is_dir() else ():
                with suppress(TpunbError):
                    end = FitStart(folder, snapshot.read_metadata(folder), self.resumed)
                    self.resumed.expected_ends[end.number] = end.step
            total = json.loads(read_file(ends / TOTAL))[self.kind]
            self.resumed.expected_total = {what: int(number) for what, number in total.items()}

    def restore(self, model: Any, *, metrics: bool = True) -> None:
        """Restore the variables of a model, its metrics only where asked for, and the random state."""
        variables = variables_of_step(model, global_seed=self.metadata["global_seed"])
        if not metrics:
            del variables[METRICS]
        values = snapshot.read_arrays(self.folder, {part: to_numpy(each) for part, each in variables.items()})
        for part, each in variables.items():
            assign(each, values[part])
        seeds.set_host_random_state(self.metadata["random"])
        seeds.set_tensorflow_random_state(self.metadata.get("tensorflow_random"))

    @property
    def has_iterator(self) -> bool:
        """Whether the checkpoint has the state of an iterator."""
        return any(self.folder.glob(f"{ITERATOR}.*"))

    def check_data(self, saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
        """Raise an error if facts about the data, by names for people, are not those that were saved."""
        for name, value in saved.items():
            if present[name] != value:
                raise self.different_data(f"its {name} were {value}, now {present[name]}")

    def different_data(self, problem: str) -> TpunbError:
        """Return the error that the data are not those that the checkpoint was saved with."""
        return TpunbError(
            f"{self.folder.name} was saved with a different dataset: {problem}",
            hint="run the same cell as when it was saved",
        )

    def seed_shuffles(self, dataset: Any) -> Any:
        """Return a dataset whose unseeded shuffles have the seeds that the fit gave them."""
        graph = graph_or_none(dataset)
        return dataset if graph is None else rewrite.seed_shuffles(dataset, graph, self.metadata["seeds"])


@dataclass(frozen=True)
class EndedFit:
    """What remains of a fit that has ended: a later one of its block that is resumed does not train it again."""

    iterators: int = 0  # created from its data
    used: int = 0  # from which batches were taken


def variables_of_step(model: Any, *, global_seed: bool | None = None) -> dict[str, list[Any]]:
    """Return the variables of the next step by part; Keras' global seed if there is one, or as `global_seed` asks."""
    generator = seeds.make_keras_generator() if global_seed else seeds.keras_generator()
    has_seed = generator is not None and global_seed is not False
    return {**variables_by_part(model), RANDOM: [generator.state] if has_seed else []}
