"""What tests of the magic replace in the kernel that runs their cells."""

import os
from contextlib import ExitStack
from unittest.mock import patch

from stand_in import StandIn

import tpunb.magic
from tpunb.charts import render
from tpunb.profiler import capture, schedule
from tpunb.widgets import frontends
from tpunb.widgets.summary import Summary

_replaced = ExitStack()


def begin(folder, *, drawn):
    """Go to a folder, and let cells need no framework and no second; undo what earlier cells replaced."""
    _replaced.close()
    os.chdir(folder)
    replace(capture, Local=StandIn)
    replace(frontends.CellOutput, every_s=0.01)
    for place, name in (
        (frontends.CellOutput, "line"),
        (tpunb.magic, "summary"),
        (schedule.WindowScheduler, "_most_informative"),
    ):
        replace(place, **{name: getattr(place, name)})  # which cells may replace
    if not drawn:
        replace(Summary, explorer=None)
        replace(render, svg=lambda chart: "<svg/>", png=lambda chart: b"")


def replace(place, **attributes):
    """Replace attributes until the next test begins."""
    _replaced.enter_context(patch.multiple(place, **attributes))
