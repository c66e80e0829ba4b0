"""``CostModel``: which configurations to time, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import TpunbError, check_whole, wrong_type
from tpunb.studies.ranking.collecting import Configuration, Function, Trials
from tpunb.studies.ranking.columns import JUDGED, RANKED
from tpunb.studies.ranking.evaluation import Evaluation, Judged, judged, splits
from tpunb.studies.ranking.graphs import module_of
from tpunb.studies.ranking.measured import Floats, Measured, inputs_of_graph, inputs_of_programs
from tpunb.studies.step_times import step_times
from tpunb.text import duration, plain, plural

Features = Literal["program", "graph"]

_ALPHAS = tuple(10.0**k for k in range(-1, 5))
_FOLDS = 5
_DECIMALS = 9  # equal inputs are equal predictions, however a library adds up


@dataclass(frozen=True, eq=False)
class CostModel:
    """Model of the order of the configurations of a graph by their time.

    Parameters
    ----------
    features
        "program": kernels of the compiled programs, or "graph": those that a program is expected to become, and
        configurations of TpuGraphs; nothing is compiled for these.
    estimator
        Regressor of scikit-learn; ridge if None, with the penalty that predicts graphs best that it was not fitted to.
    fitted
        The fitted regressor; see `fit`.
    """

    features: Features = "program"
    estimator: Any = None
    fitted: Any = None

    def __post_init__(self) -> None:
        if self.features not in ("program", "graph"):
            raise ValueError(f"The features of CostModel must be 'program' or 'graph'. Got {self.features!r} instead.")

    def fit(self, data: Measured | Iterable[Measured]) -> CostModel:
        """Return the model, fitted to graphs whose configurations differ by more than the measurement repeats.

        Raises
        ------
        TpunbError
            If no graph can be learnt from; the message states why.
        """
        from sklearn.base import clone
        from threadpoolctl import threadpool_limits

        graphs = graphs_of(data)
        usable = [each for each in graphs if each.nothing_to_rank is None]
        if not usable:
            reasons = sorted({f"{plain(each.name)}: {each.nothing_to_rank}" for each in graphs}) or [
                "no graph was given"
            ]
            raise TpunbError(
                f"nothing to fit: {'; '.join(reasons[:3])}", hint="measure more configurations of more graphs"
            )
        x = np.concatenate([self._inputs(each) for each in usable])
        y = np.concatenate([_target(each) for each in usable])
        groups = _groups(usable)
        with threadpool_limits(1):  # threads cost more than they compute
            if self.estimator is not None:
                return replace(self, fitted=clone(self.estimator).fit(x, y))
            return replace(self, fitted=_ridge(groups).fit(x, y, groups=groups))

    def predict(self, measured: Measured) -> Floats:
        """Return a number for each configuration of a graph, the lowest for that expected to be fastest."""
        return self._predicted(self._inputs(measured))

    def _predicted(self, inputs: Floats) -> Floats:
        if self.fitted is None:
            raise TpunbError("the model is not fitted", hint="fit it first: CostModel().fit(data)")
        return np.round(np.asarray(self.fitted.predict(inputs), float), _DECIMALS)

    def _inputs(self, measured: Measured) -> Floats:
        if self.features not in measured.inputs:
            other = "graph" if self.features == "program" else "program"
            raise TpunbError(
                f"{plain(measured.name)} has no {self.features} features", hint=f"use CostModel({other!r})"
            )
        return measured.inputs[self.features]

    def rank(
        self,
        f: Any,
        args: Sequence[Any],
        *,
        k: int = 3,
        layouts: int = 24,
        options: Sequence[Mapping[str, Any]] | None = None,
        seed: int = 0,
        budget: float = 20.0,
    ) -> Ranking:
        """Rank configurations of a function, and time the default and the first `k` alone.

        Parameters
        ----------
        f, args, layouts, options, seed, budget
            As in ``tpunb.studies.ranking.collect``.
        k
            Number of configurations to time beside the default.
        """
        check_whole("rank", "k", k, 1)
        function = Function(f, args)
        configurations = function.configurations(layouts, options, seed)
        if self.features == "program":
            auto = function.auto()
            if auto not in [each.orders for each in configurations]:
                configurations.insert(1, Configuration(auto))
            inputs = inputs_of_programs([module_of(function.compile(each)) for each in configurations])
        else:
            auto, inputs = None, inputs_of_graph(function.hlo, [each.orders or () for each in configurations])
        predicted = self._predicted(inputs)
        order = np.argsort(predicted, kind="stable")
        chosen = [0, *(int(place) for place in order[:k] if place)]
        trials = Trials(function, [configurations[place] for place in chosen], seed=seed)
        trials.run(budget)
        measured = trials.measured(auto=auto)
        kept = [configurations.index(each) for each in trials.configurations]
        return Ranking(function.name, self.features, _ranked(configurations, predicted, measured, kept))

    def evaluate(self, data: Iterable[Measured], by: str = "graph") -> Evaluation:
        """Return how well the model orders configurations that it was not fitted to, beside simple rules.

        Parameters
        ----------
        data
            Measured configurations of several graphs.
        by
            What is left out in turn: a "graph" (or "kernel", which is one), or a "family" of graphs; configurations of
            one graph are never on both sides. "configuration" instead fits to half of the configurations of each graph
            and judges the other half, 20 times.
        """
        results: list[Judged] = []
        for train, test in splits(graphs_of(data), by):
            model = self.fit(train)
            results += judged(test, model.predict(test))
        return Evaluation(self.features, by, pl.DataFrame(results, schema=JUDGED, orient="row"))


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Configurations of a function in the order to time them, and the times of the first.

    Parameters
    ----------
    name
        Name of the function.
    features
        Features of the model.
    frame
        A row for each configuration: ``RANKED``.
    """

    name: str
    features: str
    frame: pl.DataFrame

    @property
    def timed(self) -> pl.DataFrame:
        """The configurations that were timed, fastest first."""
        return self.frame.drop_nulls("time_ps").sort("time_ps")

    def __str__(self) -> str:
        best, count = self.timed.row(0, named=True), len(self.frame)
        default = self.frame.filter("default").row(0, named=True)
        timed = f"{plain(self.name)}: {len(self.timed)} of {plural(count, 'configuration')} timed; "
        if best["default"]:
            return f"{timed}the default is fastest, {duration(default['time_ps'])}"
        ratio = f"{best['ratio']:.2f}x" + (f" [{best['low']:.2f}, {best['high']:.2f}]" if best["low"] else "")
        certain = best["low"] is not None and best["low"] > 1
        verdict = "faster than" if certain else "not distinguishable from"
        return (
            f"{timed}layouts {_text(best['layouts'])} take {duration(best['time_ps'])}, {ratio} {verdict} the default"
        )

    def __repr__(self) -> str:
        return f"Ranking({self.name}, {plural(len(self.frame), 'configuration')}, {len(self.timed)} timed)"

    def _repr_html_(self) -> str:
        layouts = pl.Series([_text(layouts) for layouts in self.frame["layouts"].to_list()], dtype=pl.String)
        return f"<p>{escape(str(self))}</p>{self.frame.with_columns(layouts=layouts)._repr_html_()}"


def graphs_of(data: Measured | Iterable[Measured]) -> list[Measured]:
    """Return graphs as a list; one alone is one."""
    graphs = [data] if isinstance(data, Measured) else list(data)
    for each in graphs:
        if not isinstance(each, Measured):
            raise wrong_type("CostModel", "data", "be what collect and read_tpugraphs return", each)
    return graphs


def _target(measured: Measured) -> Floats:
    logs = np.log(measured.times)
    return np.asarray((logs - np.median(logs)) / logs.std())


def _groups(graphs: Sequence[Measured]) -> list[str]:
    """Return what is left out together when the penalty is chosen: families, graphs, or configurations of one."""
    families, names = ([getattr(each, kind) for each in graphs] for kind in ("family", "name"))
    of = families if len({*families}) > 2 else names
    if len({*of}) < 3:
        return [str(number % _FOLDS) for number in range(sum(map(len, graphs)))]
    return [name for name, each in zip(of, graphs, strict=True) for _ in range(len(each))]


def _ridge(groups: Sequence[str]) -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold

    folds = GroupKFold(min(_FOLDS, len({*groups})))
    return GridSearchCV(Ridge(), {"alpha": _ALPHAS}, cv=folds, scoring="neg_mean_squared_error")


def _ranked(
    configurations: Sequence[Configuration], predicted: Floats, measured: Measured, kept: Sequence[int]
) -> pl.DataFrame:
    """Return ``RANKED``."""
    columns = {
        "configuration": range(len(predicted)),
        "rank": np.argsort(np.argsort(predicted, kind="stable")) + 1,
        "predicted": predicted,
        "layouts": [[[*order] for order in each.orders or ()] for each in configurations],
        "options": [json.dumps(dict(each.options)) if each.options else None for each in configurations],
        "default": [k == 0 for k in range(len(predicted))],
    }
    rows = pl.DataFrame(columns, schema_overrides={"options": pl.String})
    taken = measured.frame.with_columns(configuration=pl.Series(kept, dtype=pl.Int64))
    rounds = np.array(measured.frame["rounds_ps"].to_list(), float)
    # each at 1 - 0.05 / k, so that all hold together
    ratios = [
        step_times((rounds[0] / each)[:, None], confidence=1 - 0.05 / max(1, len(kept) - 1))[0] for each in rounds
    ]
    enough = rounds.shape[1] >= 8
    taken = taken.with_columns(
        ratio=pl.Series([each.median for each in ratios]),
        low=pl.Series([each.low if enough else None for each in ratios], dtype=pl.Float64),
        high=pl.Series([each.high if enough else None for each in ratios], dtype=pl.Float64),
    ).select("configuration", "auto", "equal", "time_ps", "ratio", "low", "high")
    return schema.check(rows.join(taken, on="configuration", how="left").sort("rank"), RANKED, "ranked")


def _text(layouts: Sequence[Sequence[int]]) -> str:
    return " ".join("".join(map(str, order)) for order in layouts)
