"""One of the paper's workloads: a model, its dataset, and the plan of a whole training."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack

import numpy as np

from tpunb.errors import check_share, check_whole
from tpunb.studies.frameworks import keras
from tpunb.studies.paper.workloads import records
from tpunb.studies.paper.workloads.balance import pin, width
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.sizes import SPLITS, Plan
from tpunb.tuning.job import Job

PathLike = str | os.PathLike[str]

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, within a run's folder."""


@dataclass(frozen=True)
class WorkloadSpec(ABC):
    """Builds a model and its data at a scale from 0 (a minute on two cores) to 1 (the paper's), or of a width."""

    data: Any  # generator of the records, of the real sizes
    width: int | None = field(default=None, kw_only=True)  # of the model, with input of full size

    SIZE: ClassVar[Any]
    """Sizes of the model: ``at`` a scale, ``beside_input`` of full size."""

    UNIT: ClassVar[int]
    """Width at balance 1."""

    RUN: ClassVar[Plan]
    """Length of a training at a balance."""

    @abstractmethod
    def facts(self) -> Mapping[str, object]:
        """Return the parameters in the paper's Table I."""

    @abstractmethod
    def plan(self, scale: float) -> Plan:
        """Return the length of the training and the size of its data."""

    @abstractmethod
    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return the function from a record to input and target."""

    @abstractmethod
    def model(self, scale: float) -> Any:
        """Return the compiled model."""

    def size(self, scale: float) -> Any:
        """Return the size of the model: at the scale, or of the width."""
        return self.SIZE.at(scale) if self.width is None else self.SIZE.beside_input(self.width)

    def factory(self, scale: float) -> Any:
        """Return the generator of the records at a scale."""
        return self.data


class BuildOptions(TypedDict, total=False):
    """Options of `Workload.build`, described there."""

    naive: bool
    data: PathLike | None
    seed: int


@dataclass(frozen=True)
class Workload:
    """A model on a dataset, as in Table I or section VI.C of the paper.

    The data are synthetic, with the shapes of the real ones, unless ``data=`` names a folder of real ones. A seed gives
    the same run again, at any scale and with any data.

    Attributes
    ----------
    name
        Name of the workload: "bert-mrpc" and so on.
    task
        Kind of workload.
    model, dataset
        Names of both in the paper.
    size_mib
        Size of the dataset, in MiB.
    spec
        Builder of model and data.
    reduced
        Whether it is a workload of section VI.C, with less data than in Table I.
    balance
        Input work of full size by device work, of a whole width; None if neither is set against the other.
    """

    name: str
    task: str
    model: str
    dataset: str
    size_mib: float
    spec: WorkloadSpec = field(repr=False)
    reduced: bool = False
    balance: float | None = field(default=None, repr=False)
    _run: Plan | None = field(default=None, repr=False)  # at a balance

    def at_balance(self, balance: float, *, epoch_steps: int | None = None) -> Self:
        """Return this workload with input of the paper's size, against a model of another width.

        The model, compiled by XLA, is the device: it computes in one thread on one processor core. The input pipeline
        works in one private thread on another. Building it pins the threads of the process (`balance`).

        Parameters
        ----------
        balance
            Input work by device work: 1 at the width ``spec.UNIT``; four times that at half the width, whose matrix
            products are a quarter of the work, beside the same input.
        epoch_steps
            Training steps of an epoch; those of ``spec.RUN`` if None.

        Raises
        ------
        ValueError, TpunbError
            The balance is not above 0; the model cannot reach it, not even at width 1.
        """
        share, run = getattr(self.spec, "share", 1.0), self.spec.RUN
        steps = epoch_steps or run.epoch_steps
        run = replace(run, epoch_steps=max(1, round(steps * share)), examples=round(run.examples * share))
        wide = width(balance, self.spec.UNIT)
        return replace(self, balance=(self.spec.UNIT / wide) ** 2, spec=replace(self.spec, width=wide), _run=run)

    @property
    def table_1(self) -> Mapping[str, object]:
        """Training parameters in the paper, named as in Table I."""
        return dict(self.spec.facts())

    def plan(self, scale: float = 0.0) -> Plan:
        """Return the length of the training at a scale, and the size of its data.

        Raises
        ------
        ValueError
            The scale is not from 0 to 1.
        """
        plan = self.spec.plan(check_share("Workload", "scale", scale))
        return plan if self._run is None else self._run

    def build(
        self, scale: float = 0.0, *, folder: PathLike | None = None, **options: Unpack[BuildOptions]
    ) -> tuple[Any, Any]:
        """Return the compiled Keras model, and the ``tf.data.Dataset`` of one epoch.

        Parameters
        ----------
        scale
            Size of the run, from 0 (about a minute on two cores) to 1 (the paper's).
        folder
            Folder of the examples, written if missing; by default a temporary folder of this process.
        naive
            Whether the input pipeline works on one example at a time and prefetches nothing (paper VII.C). Its batches
            are the same.
        data
            Folder of real examples to read instead: TFRecord files whose names begin with "train" and "eval".
        seed
            Seed of the weights, the examples, their order and the randomness in training (default 0). It is also set
            for Python, NumPy and TensorFlow.

        Raises
        ------
        ValueError
            The scale is not from 0 to 1, or the seed is not an integer.
        MissingExtra
            TensorFlow is not installed.
        TpunbError
            `data` contains no such files; or at a balance, as in `pin`.
        """
        if self.balance is not None:
            pin()
        keras.utils.set_random_seed(check_whole("Workload", "seed", options.get("seed", 0), 0))
        data = self._dataset("train", scale, folder, **options)
        model = self.spec.model(scale)
        if self.balance is not None:
            model.jit_compile = True
        return model, data

    def job(self, scale: float = 0.0, *, folder: PathLike | None = None, **options: Unpack[BuildOptions]) -> Job:
        """Return a job for `tp.tune`, which calls `build` with these arguments when it is first needed."""

        def build() -> tuple[Any, Any]:
            return self.build(scale, folder=folder, **options)

        build.__name__ = self.name
        return Job(build)

    def training(self, scale: float = 0.0, *, folder: PathLike | None = None, **options: Unpack[BuildOptions]) -> Any:
        """Return the ``tf.data.Dataset`` of one epoch alone; the arguments are those of `build`."""
        return self._dataset("train", scale, folder, **options)

    def evaluation(self, scale: float = 0.0, *, folder: PathLike | None = None, **options: Unpack[BuildOptions]) -> Any:
        """Return the ``tf.data.Dataset`` of one evaluation; the arguments are those of `build`."""
        return self._dataset("eval", scale, folder, **options)

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
        """Train a model as in the paper, and return Keras' history.

        Each epoch ends with a checkpoint in ``checkpoints`` of the folder, and an evaluation; BERT is evaluated after
        the last epoch. `fit` calls this with the results of `build`; call it for tuned data, for example.

        Parameters
        ----------
        model, training
            Model and data from `build`.
        evaluation
            Data from `evaluation`.
        folder
            Folder of the run.
        scale
            Scale at which they were built.
        callbacks
            Further Keras callbacks.
        """
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

    def fit(self, folder: PathLike, *, scale: float = 0.0, **options: Unpack[BuildOptions]) -> Any:
        """Run the whole training as in the paper, and return Keras' history.

        Parameters
        ----------
        folder
            Folder of the run: examples are written to ``records`` in it if missing, checkpoints to ``checkpoints``. The
            other parameters are those of `build`.

        Raises
        ------
        ValueError, MissingExtra, TpunbError
            As in `build`.
        """
        examples = Path(folder) / "records"
        model, training = self.build(scale, folder=examples, **options)
        evaluation = self.evaluation(scale, folder=examples, **options)
        return self.train(model, training, evaluation, folder, scale=scale)

    def _dataset(
        self,
        split: str,
        scale: float,
        folder: PathLike | None,
        naive: bool = False,
        data: PathLike | None = None,
        seed: int = 0,
    ) -> Any:
        plan = self.plan(scale)
        if data is not None:
            source = Path(data)
            files = records.find(source, split)
        else:
            source = Path(folder or records.temporary().name) / f"{self.name}-scale-{scale:g}-seed-{seed}"
            examples = self.spec.factory(scale).records(np.random.default_rng([seed, SPLITS.index(split)]))
            files = records.write(source, split, examples, plan.records_of(split))
        decode = self.spec.decode(scale, split, seed, source)
        pipeline = records.pipeline(files, decode, plan, split, naive=naive, seed=seed)
        return pipeline if self.balance is None else records.in_private_thread(pipeline)
