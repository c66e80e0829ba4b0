"""The end of a capture, cut anywhere: what was recorded is in the run, and a run that is not whole says so."""

import errno
import os
import time
from pathlib import Path

import pytest
from attacked_programs import TORCH, ended, facts
from stand_in import StandIn
from warm_python import TORCH as TORCH_MODULES
from warm_python import warm_python

import tpunb as tp
from tpunb import signals
from tpunb.profiler import session
from tpunb.signals import Spent

STEPS = 40


class Disk:
    """The writes of this process to a folder, which fail from a given one on: for ever, or once."""

    def __init__(self, monkeypatch, *, once):
        self.left, self.once, self.failed = None, once, False
        for owner, name in [
            *((Path, name) for name in ("write_bytes", "mkdir", "rename", "replace", "unlink", "rmdir")),
            (os, "pwrite"),
        ]:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, write):
        def counted(*args, **kwds):
            if self.left is not None:
                self.left -= 1
                if self.left == -1 or (self.left < 0 and not self.once):
                    self.failed = True
                    raise OSError(errno.ENOSPC, "No space left on device")
            return write(*args, **kwds)

        return counted


def captured(folder, disk, writes):
    """Capture steps and an evaluation; from so many writes after the last of them on, the disk fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "atexit", type("Atexit", (), {"register": print, "unregister": print}))
        with tp.capture(folder, source=StandIn(), schedule=tp.Schedule.ticks()) as run:
            for number in range(STEPS):
                with run.step(number):
                    pass
                if number in (STEPS // 4, STEPS // 2):
                    run._session.recorder.collect_steps()
                    run._session.recorder.write_part()
            now_ns = time.monotonic_ns()
            signals.spent.send(Spent("evaluation", "mine", now_ns - 5_000_000, now_ns))
            disk.left = writes
        disk.left = None


@pytest.mark.parametrize("once", [False, True], ids=["for ever", "once"])
def test_an_end_that_is_cut_at_any_write_loses_nothing_and_says_so(tmp_path, monkeypatch, once):
    """A kill leaves what a disk does that fails for ever: nothing is written after it."""
    disk, whole = Disk(monkeypatch, once=once), 0
    for writes in range(200):
        folder = tmp_path / str(writes)
        disk.failed = False
        captured(folder, disk, writes)
        profile = tp.load(folder)
        assert profile.stored.frame["step"].to_list() == [*range(STEPS)], writes
        spans = profile.stored.wall.spans.filter(account="evaluation")
        assert spans.select("detail", "dur_ps").rows() == [("mine", 5_000_000_000)], writes
        state = facts(folder)["state"]
        assert (state == "finished") <= (not profile.is_cut), writes
        assert profile.is_cut == any("run was cut" in note or "is incomplete" in note for note in profile.notes)
        assert profile.is_cut == (state != "finished"), writes
        whole += not disk.failed
        if whole == 2:
            break
    assert whole == 2
    assert writes > 5


@pytest.mark.parametrize("failure", [None, "OSError: full"])
def test_a_run_without_an_end_is_cut_unless_it_goes_on(tmp_path, failure):
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=tp.Schedule.ticks()) as run:
        with run.step(0):
            pass
        assert not tp.load(run).is_cut
    assert not tp.load(run).is_cut
    file = tmp_path / "run" / "run.json"
    text = (
        file.read_text()
        .replace('"finished"', '"running"')
        .replace(f'"updated": {facts(run.path)["updated"]}', '"updated": 1')
    )
    file.write_text(text if failure is None else text.replace('"failure": null', f'"failure": "{failure}"'))
    with pytest.warns(
        UserWarning, match="was cut: its process was killed" if failure is None else "incomplete: OSError"
    ):
        assert tp.load(run).is_cut


def test_no_state_but_running_is_written_before_all_else_is(tmp_path, monkeypatch):
    """A recording thread that writes ``run.json`` while the capture ends must not call it whole."""
    states, write = [], session.RunRecorder.write_facts
    monkeypatch.setattr(
        session.RunRecorder, "write_facts", lambda *args: (states.append(args[1]["state"]), write(*args))
    )
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=tp.Schedule.ticks()) as run, run.step(0):
        run._session._state = "finished"
        run._session._write_facts()
    assert states[:2] == ["running", "running"]
    assert states[-1] == "finished"


KILLED = """
import os, signal, threading
with tp.capture(folder):
    train()
    time.sleep(0.5)  # events of the last 0.2 s may not be folded yet
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    threading.Thread(target=lambda: (time.sleep(float(sys.argv[2])), os.kill(os.getpid(), signal.SIGKILL))).start()
time.sleep(60)
"""


@pytest.mark.live
@pytest.mark.parametrize("after_s", [0, 0.05, 0.2, 1])
def test_a_training_killed_as_its_capture_ends_has_its_steps_but_the_last_short_ones(tmp_path, after_s):
    pytest.importorskip("torch")
    seen = ended(f"import time\n{TORCH}\n{KILLED}", tmp_path / "run", after_s, python=warm_python(TORCH_MODULES))
    assert seen.returncode == -9, seen.stderr
    profile = tp.load(tmp_path / "run")
    frame = profile.stored.frame
    assert frame["step"].to_list() == [*range(frame.height)]
    trained = frame.filter(kind="train").height
    if profile.is_cut:
        assert 0 < trained <= 200
    else:
        assert trained == 200
        assert frame.filter(kind="eval").height + profile.stored.wall.spans.filter(account="evaluation").height > 0
    assert profile.is_cut == (facts(tmp_path / "run")["state"] != "finished")
