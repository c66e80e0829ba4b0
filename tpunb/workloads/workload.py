"""One of the paper's workloads: a model, the data it learns from, and how the whole run goes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tpunb.errors import need, share, whole
from tpunb.tuning.job import Job
from tpunb.workloads import records
from tpunb.workloads.records import Decode
from tpunb.workloads.scaling import SPLITS, Plan

PathLike = str | os.PathLike[str]

CHECKPOINTS = "checkpoints"
"""The folder within a run's own where its checkpoints are."""


class Made(Protocol):
    """What makes the examples of a dataset."""

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield serialised examples without end."""


class Recipe(Protocol):
    """How a model and its data are made, at any scale from 0 (a minute on two cores) to 1 (the paper's)."""

    def facts(self) -> Mapping[str, object]:
        """Return the parameters that Table I tells."""

    def plan(self, scale: float) -> Plan:
        """Return how long it trains, and on how much."""

    def made(self, scale: float) -> Made:
        """Return what makes the examples."""

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return what turns a record of a folder into input and target."""

    def model(self, scale: float) -> Any:
        """Return the compiled model."""


@dataclass(frozen=True)
class Workload:
    """A model on a dataset, as in Table I of the paper or section VI.C.

    The data are made here, of the shapes of the real ones, unless ``data=`` names a folder of real ones. At any scale
    and with any data the same seed gives the same run.

    Attributes
    ----------
    name
        "bert-mrpc" and so on.
    task
        What kind of workload it is.
    model, dataset
        What is trained on what, as the paper calls them.
    size_mib
        Of the dataset, in MiB.
    recipe
        How both are made.
    reduced
        Whether it is one of section VI.C, on less data than in Table I.
    """

    name: str
    task: str
    model: str
    dataset: str
    size_mib: float
    recipe: Recipe = field(repr=False)
    reduced: bool = False

    @property
    def batch_size(self) -> int:
        """Examples a step, in the paper."""
        return self.plan(1).batch

    @property
    def steps(self) -> int:
        """Steps of the whole training, in the paper."""
        return self.plan(1).steps

    @property
    def table_1(self) -> Mapping[str, object]:
        """Its training parameters in the paper, as Table I calls them."""
        return dict(self.recipe.facts())

    def plan(self, scale: float = 0.0) -> Plan:
        """Return how long it trains at a scale, and on how much.

        Raises
        ------
        ValueError
            When the scale is not from 0 to 1.
        """
        return self.recipe.plan(share("Workload", "scale", scale))

    def build(
        self,
        scale: float = 0.0,
        *,
        naive: bool = False,
        folder: PathLike | None = None,
        data: PathLike | None = None,
        seed: int = 0,
    ) -> tuple[Any, Any]:
        """Return the compiled Keras model, and the ``tf.data.Dataset`` of one epoch.

        Parameters
        ----------
        scale
            From 0, a run of about a minute on two cores, to 1, the paper's. What lies between is told by the recipe.
        naive
            Whether the input pipeline works on one example at a time and makes nothing ahead (paper VII.C). It gives
            the same batches.
        folder
            Where the examples are written, unless they are there already; a temporary folder of this process, if None.
        data
            A folder of real examples in the same form, to be read in their place: TFRecord files whose names begin
            with "train" and "eval".
        seed
            Of the weights, the examples, their order and what is drawn at random in training. Python's, NumPy's and
            TensorFlow's own random numbers begin anew with it.

        Raises
        ------
        ValueError
            When the scale is not from 0 to 1, or the seed no whole number.
        MissingExtra
            TensorFlow is not installed.
        TpunbError
            `data` holds no such files.
        """
        keras = need("keras", extra="tensorflow")
        keras.utils.set_random_seed(whole("Workload", "seed", seed, 0))
        made = self._data("train", scale, naive, folder, data, seed)
        return self.recipe.model(scale), made

    def job(
        self,
        scale: float = 0.0,
        *,
        naive: bool = False,
        folder: PathLike | None = None,
        data: PathLike | None = None,
        seed: int = 0,
    ) -> Job:
        """Return what `tp.tune` takes: `build` with these arguments, called when it is first needed."""

        def build() -> tuple[Any, Any]:
            return self.build(scale, naive=naive, folder=folder, data=data, seed=seed)

        build.__name__ = self.name
        return Job(build)

    def evaluation(
        self,
        scale: float = 0.0,
        *,
        naive: bool = False,
        folder: PathLike | None = None,
        data: PathLike | None = None,
        seed: int = 0,
    ) -> Any:
        """Return the ``tf.data.Dataset`` of one evaluation; the arguments are those of `build`."""
        return self._data("eval", scale, naive, folder, data, seed)

    def train(
        self,
        model: Any,
        training: Any,
        evaluation: Any,
        folder: PathLike,
        *,
        scale: float = 0.0,
        callbacks: Sequence[Any] = (),
    ) -> Any:
        """Train a model as the paper's run did, and return Keras' history.

        An epoch ends with a checkpoint in ``checkpoints`` of the folder; every epoch, or for BERT the last, with an
        evaluation. `fit` does this with what `build` gives; of one's own here is, say, data that were tuned.

        Parameters
        ----------
        model, training
            As `build` gives them.
        evaluation
            As the method of that name gives it.
        folder
            Of the run.
        scale
            What they were built at.
        callbacks
            Of Keras, besides.
        """
        keras = need("keras", extra="tensorflow")
        plan, saved = self.plan(scale), Path(folder) / CHECKPOINTS
        saved.mkdir(parents=True, exist_ok=True)

        def save(epoch: int, logs: Mapping[str, float]) -> None:
            model.save_weights(saved / f"step-{int(model.optimizer.iterations):06}.weights.h5")

        return model.fit(
            training,
            epochs=plan.epochs,
            validation_data=evaluation,
            validation_freq=plan.eval_every,
            callbacks=[*callbacks, keras.callbacks.LambdaCallback(on_epoch_end=save)],
            shuffle=False,  # the data are already
            verbose=0,
        )

    def fit(
        self,
        folder: PathLike,
        *,
        scale: float = 0.0,
        naive: bool = False,
        data: PathLike | None = None,
        seed: int = 0,
    ) -> Any:
        """Run the whole training as the paper's did, and return Keras' history.

        Parameters
        ----------
        folder
            Of the run: the examples are written to ``records`` in it, unless they are there, and checkpoints to
            ``checkpoints``. The other parameters are those of `build`.

        Raises
        ------
        ValueError, MissingExtra, TpunbError
            As `build` does.
        """
        kept = Path(folder) / "records"
        model, training = self.build(scale, naive=naive, folder=kept, data=data, seed=seed)
        evaluation = self.evaluation(scale, naive=naive, folder=kept, data=data, seed=seed)
        return self.train(model, training, evaluation, folder, scale=scale)

    def _data(
        self, split: str, scale: float, naive: bool, folder: PathLike | None, data: PathLike | None, seed: int
    ) -> Any:
        plan = self.plan(scale)
        if data is not None:
            where = Path(data)
            files = records.found(where, split)
        else:
            where = Path(folder or records.temporary()) / f"{self.name}-scale-{scale:g}-seed-{seed}"
            numbers = np.random.default_rng([seed, SPLITS.index(split)])
            examples = self.recipe.made(scale).records(numbers)
            files = records.written(where, split, examples, plan.records_of(split))
        decode = self.recipe.decode(scale, split, seed, where)
        return records.pipeline(files, decode, plan, split, naive=naive, seed=seed)
