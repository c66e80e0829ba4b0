"""The paper's workloads on a handful of steps."""

from dataclasses import replace

from tpunb.studies.paper import workload
from tpunb.studies.paper.workloads.sizes import Plan


class Short:
    """A workload spec with a plan of two short epochs on few examples."""

    def __init__(self, spec, every=1):
        self.spec, self.every = spec, every

    def __getattr__(self, name):
        return getattr(self.spec, name)

    def plan(self, scale):
        batch = self.spec.plan(scale).batch
        return Plan(batch, epochs=2, epoch_steps=3, eval_steps=2, examples=32, eval_every=self.every)


def short(name, every=1):
    whole = workload(name)
    return replace(whole, spec=Short(whole.spec, every))
