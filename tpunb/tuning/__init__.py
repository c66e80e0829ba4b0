"""Tune the input pipeline of a training without changing its output (paper VII)."""

from tpunb.tuning.job import Job, job_of
from tpunb.tuning.model_based import model_based
from tpunb.tuning.online import tuned
from tpunb.tuning.parameters import Kind, Parameter
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.results import Trial, Tuning
from tpunb.tuning.search import Space, StepCosts, hill_climb, is_better, optuna_search
from tpunb.tuning.tournament import Budget
from tpunb.tuning.tuner import tune

__all__ = [
    "Budget",
    "Job",
    "Kind",
    "Parameter",
    "Pipeline",
    "Space",
    "StepCosts",
    "Trial",
    "Tuning",
    "hill_climb",
    "is_better",
    "job_of",
    "model_based",
    "optuna_search",
    "tune",
    "tuned",
]
