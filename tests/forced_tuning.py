"""Tuning while a fit runs, whose times are not measured: it begins at a step, and its races are won or lost by plan."""

from tpunb.tuning import live, online
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.search import StepCosts


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
    """Let trainings be tuned at a step, by a race of single steps."""
    for name, value in {"FIRST": step, "_SOON": 0.0, "_ENOUGH": 1e6}.items():
        patch.setattr(live, name, value)
    patch.setattr(online, "model_based", others)
    patch.setattr(live.Feed, "rest", _long)
    patch.setattr(live.LiveTuning, "_costs", lambda tuning, reference: StepCosts(1.0))
    for name, value in {"Race": race, "WARM": 1, "WINDOW": 1, "_HICCUP": 1e6}.items():
        patch.setattr(live, name, value)
