"""Optuna's samplers as a search: needs the extra ``optuna``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpunb.errors import need, whole
from tpunb.tuning.search import Proposals, Search, Space


def optuna_search(*, trials: int = 24, seed: int = 0, sampler: Any = None) -> Search:
    """Return a search that lets Optuna propose: ``tune(job, search=optuna_search(trials=30))``.

    Parameters
    ----------
    trials
        How many it proposes, the program's own values first.
    seed
        Of the sampler.
    sampler
        One of Optuna's; its tree-structured Parzen estimator if None.

    Raises
    ------
    MissingExtra
        Optuna is not installed.
    ValueError
        When `trials` is not 1 or more, or `seed` not 0 or more.
    """
    optuna = need("optuna", extra="optuna")
    trials, seed = whole("optuna_search", "trials", trials, 1), whole("optuna_search", "seed", seed, 0)

    def search(space: Space) -> Proposals:
        study = _quietly(optuna, lambda: optuna.create_study(sampler=sampler or optuna.samplers.TPESampler(seed=seed)))
        study.enqueue_trial(space.default)
        for _ in range(trials):
            asked = study.ask()
            cost = yield {name: asked.suggest_categorical(name, domain) for name, domain in space.items()}
            if cost is None:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(asked, cost)

    return search


def _quietly(optuna: Any, make: Callable[[], Any]) -> Any:
    """Return what is made, without a line in the log that says so."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return make()
    finally:
        optuna.logging.set_verbosity(before)
