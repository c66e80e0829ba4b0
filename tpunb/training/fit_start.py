"""What a call of Keras' ``fit`` starts from: a checkpoint, and the fits of its block that have ended before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from tpunb.errors import TpunbError
from tpunb.tfdata import rewrite
from tpunb.tfdata.graph import graph_or_none
from tpunb.training import seeds, snapshot
from tpunb.training.fingerprints import OnDivergence, Resumed
from tpunb.training.positions import ITERATOR
from tpunb.training.state import METRICS, RANDOM, assign, to_numpy, variables_by_part

CheckpointPath = str | os.PathLike[str]


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

    history: dict[str, list[float]] = field(default_factory=dict)  # as Keras' History holds it
    epochs: list[int] = field(default_factory=list)
    iterators: int = 0  # created from its data
    used: int = 0  # from which batches were taken
    model: Any = None  # its variables, kept to compare them; not saved

    @property
    def metadata(self) -> dict[str, Any]:
        """Attributes as JSON values."""
        return {name: value for name, value in vars(self).items() if name != "model"}


def variables_of_step(model: Any, *, global_seed: bool | None = None) -> dict[str, list[Any]]:
    """Return the variables of the next step by part; Keras' global seed if there is one, or as `global_seed` asks."""
    generator = seeds.make_keras_generator() if global_seed else seeds.keras_generator()
    has_seed = generator is not None and global_seed is not False
    return {**variables_by_part(model), RANDOM: [generator.state] if has_seed else []}
