"""Trainings that are killed and resumed, with a clock beside; as a program, it is one attempt of Keras or MaxText."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from trainer_runs import maxtext_command

EVERY = 20  # steps between two checkpoints, which a fit takes


def note(path, event, step=-1):
    """Append an event and its time, which a kill leaves."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps([event, step, time.time_ns()]).encode() + b"\n")


def keras_attempt(folder, number, steps, kill):
    """Train from the last checkpoint to the end, or to a kill; it kills itself after a number of steps, if any."""
    import keras
    import numpy as np

    import tpunb as tp

    saved, clock = folder / "saved.keras", folder / f"clock-{number}.jsonl"

    class Beside(keras.callbacks.Callback):
        taken = 0

        def on_train_batch_begin(self, batch, logs=None):
            note(clock, "begun", int(self.model.optimizer.iterations))

        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            note(clock, "step", step - 1)
            Beside.taken += 1
            if Beside.taken == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % EVERY == 0:
                self.model.save(folder / "next.keras")
                (folder / "next.keras").replace(saved)
            time.sleep(0.02)

    capture = tp.capture(folder / "runs" / f"attempt{number}", schedule=tp.Schedule(every=3600.0, burst=0))
    note(clock, "begin")
    with capture:
        if saved.exists():
            model = keras.models.load_model(saved)
        else:
            model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        taken = int(model.optimizer.iterations)
        rows = np.random.default_rng(0).normal(size=(8 * EVERY, 8)).astype("float32")
        note(clock, "resumed", taken)
        for _ in range(taken, steps, EVERY):
            model.fit(rows, rows[:, :1], batch_size=8, verbose=0, callbacks=[Beside()])
        note(clock, "end")


def maxtext_attempt(folder, number, steps, kill):
    """Train from the last checkpoint to the end, or to a kill, with its goodput events recorded too."""
    from maxtext.trainers.pre_train import train
    from ml_goodput_measurement import goodput

    import tpunb as tp

    clock, before = folder / f"clock-{number}.jsonl", []

    class Beside(tp.analysis.GoodputRecorder):
        def record_step_start_time(self, step):
            note(clock, "step" if before else "resumed", before[-1] if before else step)
            note(clock, "begun", step)
            before.append(step)
            self.__getattr__("record_step_start_time")(step)

    goodput.GoodputRecorder = lambda job, _, enabled: Beside(folder / "events.jsonl", job, enabled)
    options = {"steps": steps, "checkpoint_period": EVERY, "enable_goodput_recording": True}
    capture = tp.capture(folder / "runs" / f"attempt{number}", schedule=tp.Schedule(every=3600.0, burst=0))
    note(clock, "begin")
    with capture:
        train.main(maxtext_command(folder, **options))
        note(clock, "end")


ATTEMPTS = {"keras": keras_attempt, "maxtext": maxtext_attempt}


class Truth(NamedTuple):
    """What the clock beside an attempt saw."""

    resumed: int
    begun: list[int]  # steps
    steps: list[int]  # that ended
    begin_ns: int
    end_ns: int  # of the kill, or of the training


def killed_job(folder, steps, kills, python, *, trainer="keras", itself=False):
    """Train in a process after the other; each but the last is killed, or kills itself, after its number of steps."""
    truths = []
    for number, kill in enumerate([*kills, None]):
        clock = folder / f"clock-{number}.jsonl"
        arguments = [trainer, folder, number, steps, kill if itself and kill is not None else 0]
        program = subprocess.Popen([*python, __file__, *map(str, arguments)])
        end_ns, until = None, time.monotonic() + 300
        while program.poll() is None and end_ns is None:
            assert time.monotonic() < until
            if kill is not None and not itself and clock.exists() and clock.read_text().count('"step"') >= kill:
                program.send_signal(signal.SIGKILL)
                end_ns = time.time_ns()
                program.wait()
            time.sleep(0.003)
        assert (program.returncode == 0) == (kill is None)
        events = [json.loads(line) for line in clock.read_text().splitlines()]
        at = {name: (step, ns) for name, step, ns in events}
        begun, ended = ([step for name, step, _ in events if name == which] for which in ("begun", "step"))
        truths.append(Truth(at["resumed"][0], begun, ended, at["begin"][1], end_ns or events[-1][2]))
    return truths


if __name__ == "__main__":
    ATTEMPTS[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))
