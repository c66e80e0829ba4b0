"""Tuning while a fit runs, whose times are not measured: it begins at a step, and its races are won or lost by plan."""

from tpunb.tuning import live, online, trial
from tpunb.tuning.parameters import Kind
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.results import Speedup, Trial, Tuning
from tpunb.tuning.search import StepCosts
from tpunb.tuning.trial import TrialRunner


class Chosen:
    """A tuner that runs a trial of the present values and one of others, and chooses these whatever they gain."""

    def __init__(self, job, start, search, budget, journal):
        self.job, self.start, self.messages, self.tuning = job, start, [], Tuning(())

    def trials(self):
        parameters = [one for one in self.job.pipeline.parameters if one.verdict != "locked" and one.kind != Kind.CACHE]
        values = {parameter.name: other(parameter) for parameter in parameters}
        with TrialRunner(self.job, self.start, warmup=1, window=4) as runner:
            baseline = runner.calibrate()
            assert baseline.result.digest == baseline.trial(values).digest
            yield Trial(0, {}, "default", 1.0)
        self.tuning = Tuning((), values, Speedup(2.0, 1.5, 3.0), tuple(self.messages))


class Won:
    """A race that is won at once; `Lost` is lost after some blocks in turns."""

    def __init__(self):
        self.pairs = 0

    def add(self, baseline, candidate):
        self.pairs += 1
        return RaceResult("faster", 2.0, 1.5, 3.0, self.pairs)


class Lost(Won):
    def add(self, baseline, candidate):
        self.pairs += 1
        return RaceResult("not faster" if self.pairs == 4 else "undecided", 1.2, 0.9, 1.3, self.pairs)


def others(space):
    """Propose other values for all parameters, and no more."""
    yield {parameter.name: other(parameter) for parameter in space.parameters}


def other(parameter):
    return next(value for value in reversed(parameter.domain) if value != parameter.current)


def _long(feed, step):
    """Return a rest of the training for which any tuning pays; the steps left are read, as tuning reads them."""
    return 1e6 if feed.steps_left != 0 else 0.0


def force(patch, step, race=Won):
    """Let trainings be tuned at a step: in place by a race of single steps, or by `Chosen`."""
    for name, value in {"FIRST": step, "_SECONDS": 0.0, "_SOON": 0.0, "_ENOUGH": 1e6}.items():
        patch.setattr(live, name, value)
    patch.setattr(online, "Tuner", Chosen)
    patch.setattr(online, "model_based", others)
    patch.setattr(live.Feed, "rest", _long)
    patch.setattr(live.LiveTuning, "_costs", lambda tuning, reference: StepCosts(1.0))
    for name, value in {"Race": race, "WARM": 1, "WINDOW": 1, "_HICCUP": 1e6}.items():
        patch.setattr(live, name, value)
    patch.setattr(trial, "_HICCUP", 1e6)
