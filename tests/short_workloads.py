"""The paper's workloads on a handful of steps."""

from dataclasses import replace

from tpunb.workloads import workload
from tpunb.workloads.scaling import Plan


class Short:
    """A recipe with a plan of two short epochs on few examples."""

    def __init__(self, recipe, every=1):
        self.recipe, self.every = recipe, every

    def __getattr__(self, name):
        return getattr(self.recipe, name)

    def plan(self, scale):
        batch = self.recipe.plan(scale).batch
        return Plan(batch, epochs=2, epoch_steps=3, eval_steps=2, examples=32, eval_every=self.every)


def short(name, every=1):
    whole = workload(name)
    return replace(whole, recipe=Short(whole.recipe, every))
