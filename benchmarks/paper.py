"""Idle time of a device by the balance of input and device, and what tuning gains where it idles most of the time.

``python benchmarks/paper.py [--quick]``, on a machine with two cores. ResNet with images of full size runs at several
widths, in rounds in random order, as the samples were recorded (``datasets/sample_profiles/record_balances.py``): the
device is one core, the input pipeline another, naive. Then the width is found at which the device idles 62.5 % of step
time; there ``tp.tune`` chooses values, and naive and tuned runs take turns. Whole runs are compared. Intervals are the
least and the greatest of the rounds. ``--quick`` takes four balances, two runs of 4 s each, and one tuning of 10 s. The
last line is JSON: ``idle``, a median for each balance in their order; ``tuned``, the time of a naive run by that of a
tuned one; ``equal``, whether losses and final weights of all these runs are, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets" / "sample_profiles"))

from record_balances import NAIVE, TUNED, Options, Point, Session, width_of, widths

from tpunb.studies.paper import curves, gains, recorded_balances
from tpunb.studies.paper.recordings import BALANCES

NAME = "resnet-imagenet"
IDLE = 0.625
"""Idle share of step time at which the program is tuned: in the midst of 60 and 65 %."""


def main() -> None:
    """Print the idle time at each balance, what tuning gains, and the JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="four balances, two rounds, a tuning of 10 s")
    quick = options.parse_args().quick
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    rounds, chosen = (2, Options(4.0, 1, budget_s=10.0)) if quick else (6, Options(6.0, 1))
    with TemporaryDirectory() as folder, TemporaryDirectory() as scratch:
        session = Session(NAME, Path(folder) / BALANCES, chosen, Path(scratch))
        print(session.cores, flush=True)
        curve = widths(session.unit)
        curve = [curve[0], curve[1], curve[3], curve[-1]] if quick else curve
        for number in range(1, rounds + 1):
            for width in random.sample(curve, len(curve)):
                session.record(Point(NAME, width, NAIVE, number))
        idle = curves(recorded_balances(folder)).filter(measure="idle").sort("balance")
        times = session.times()
        wait_s = sum(step_s - device_s for step_s, device_s in times.values()) / len(times)
        device = {each: device_s for each, (_, device_s) in times.items()}
        target = width_of(wait_s * (1 - IDLE) / IDLE, device) or curve[-1]
        for number in range(1, rounds + 1):
            for form in random.sample([NAIVE, TUNED], 2):
                session.record(Point(NAME, target, form, number))
        runs = recorded_balances(folder)
    for row in idle.iter_rows(named=True):
        ends = f"[{row['low']:.1%}, {row['high']:.1%}]"
        print(f"balance {row['balance']:.1f}, width {row['width']}: idle {row['value']:.1%} {ends} of step time")
    at = curves(runs).filter(measure="idle", width=target, form=NAIVE).row(0, named=True)
    gain = gains(runs).filter(width=target).row(0, named=True)
    tuning = next(run.metadata for run in runs if run.metadata["form"] == TUNED)
    print(f"tuned at width {target}, where the device idles {at['value']:.1%} [{at['low']:.1%}, {at['high']:.1%}]:")
    print("\n".join(f"    {line}" for line in tuning["values"] or tuning["tuning"][-1:]))
    print(f"whole runs {gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}] times as fast")
    busy = sum(run.metadata["busy"] for run in runs)
    print(f"{busy} of {len(runs)} runs on a machine that other programs kept busy")
    figures = {"idle": [round(each, 4) for each in idle["value"]], "tuned": round(gain["value"], 3)}
    print(json.dumps(figures | {"equal": bool(gain["equal"])}))


if __name__ == "__main__":
    main()
