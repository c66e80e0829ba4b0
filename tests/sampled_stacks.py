"""Stacks as a run has them, from frames of this process."""

import importlib.util
import sys

import polars as pl

from tpunb import schema
from tpunb.profiler.stacks import StackTable, outwards, stacks
from tpunb.profiler.stall_sampler import Progress, StallSampler
from tpunb.step_stats.sample_places import Stacks


def samples_of(rows):
    """Return SAMPLES of rows, with nulls in place of the columns that they leave out at the end."""
    return pl.DataFrame(
        [(*row, *[None] * (len(schema.SAMPLES) - len(row))) for row in rows], schema.SAMPLES, orient="row"
    )


class Sampled:
    """A table of stacks: calling it adds the one of the caller, and returns its number."""

    def __init__(self):
        self.table = StackTable()

    def __call__(self):
        return self.table.add(outwards(sys._getframe(1)))

    @property
    def stacks(self):
        return Stacks(self.table.unwritten("vm"))

    def stack(self, number):
        return self.stacks.stack(number)


def place_of(thread, account):
    """Return where a thread of this process is, or the one that it waits for, as sampled and then loaded."""
    sampler = StallSampler(lambda: None)
    where = sampler._where(stacks(), Progress(thread, 0, None, account, 0))
    return Stacks(sampler.stacks.unwritten("vm")).place(*where, account)


def imported(path, source, name):
    """Return a module from a file of this source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
