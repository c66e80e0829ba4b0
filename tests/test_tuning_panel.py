"""The tuning panel without a browser: traits in, a tuning out; a thread that reports, stops, and leaves nothing."""

import json
import random
import threading
import zipfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from optional import lazy
from slow_jobs import at_hand, everything, job, little, reading, reused

import tpunb as tp
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.testing import toy_steps
from tpunb.tuning import tournament, trial, tuner
from tpunb.tuning.job import Job
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.results import Journal, Message, Speedup, Trial, Tried, Tuning
from tpunb.tuning.tournament import Budget
from tpunb.widgets import tuning_panel as room
from tpunb.widgets.tuning_panel import TuningPanel, tuning_panel
from tpunb.widgets.tuning_view import trial_start

tf = lazy("tensorflow")

CALLS = "map:1(fetched) parallel calls"
THREADS = "options private threads"
EVIL = "<img src=x onerror=alert(1)>"
SECONDS = 600  # for what ends long before


@pytest.fixture(scope="module")
def one_job():
    return Job(lambda: (little(), reading(n=240)))


@pytest.fixture
def phases():
    return tp.phases(toy_steps("aaabbbbbbbcc"))


def panel_of(job, folder, *args, **more):
    return tuning_panel(job, *args, folder=folder, **more)


class Played:
    """Plays a tuner: its trials come when they are let, and may end with an error."""

    trials_to_come = (
        Trial(0, {}, "default", 0.016, equal=True, spent=1.0),
        Trial(1, {CALLS: 8}, "faster", 0.004, 0, 4.0, 3.5, 4.5, 3, True, spent=2.0),
        Trial(2, {CALLS: 16}, "failed", against=1, error=f"ValueError: {EVIL}", spent=0.5),
    )

    def __init__(self, job, start, search, budget, journal):
        self.given = {"start": start, "search": search, "budget": budget}
        self.messages, self.tuning, self.closed, self.thread = [], Tuning(()), False, None
        self.asked, self.next = threading.Semaphore(0), threading.Semaphore(0)
        self.error = None

    def trials(self):
        self.thread = threading.current_thread()
        ran = []
        try:
            self.messages.append(Message("budget spent", {"trials": 3}))
            for trial in self.trials_to_come:
                self.asked.release()  # the trial before is in the panel
                assert self.next.acquire(timeout=SECONDS)
                if self.error is not None:
                    raise self.error
                ran.append(trial)
                yield trial
        except GeneratorExit:
            self.closed = True
            raise
        finally:
            best = {CALLS: 8} if len(ran) > 1 else {}
            self.tuning = Tuning(tuple(ran), best, Speedup(4, 3.5, 4.5), tuple(self.messages), 3.5, "ds = ...")


@pytest.fixture
def played(monkeypatch, one_job, tmp_path):
    """Return a panel, and what it plays with once it runs; the thread is over at the end of the test."""
    made = []
    monkeypatch.setattr(room, "Tuner", lambda *args: made.append(Played(*args)) or made[-1])
    panel = panel_of(one_job, tmp_path)
    yield panel, made
    for one in made:
        one.next.release(9)
    if panel._thread is not None:
        panel._thread.join(SECONDS)


def one_trial(tuner):
    """Let a tuner that has begun run its first trial, and wait until it is asked for the second."""
    tuner.next.release()
    for _ in range(2):
        assert tuner.asked.acquire(timeout=SECONDS)


# ---- before anything runs


def rows(panel):
    """Return the rows of the parameters by name."""
    table = panel._run["parameters"]
    found = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return {f"{row['Stage']} {row['Parameter']}": row for row in found}


def test_a_panel_begins_with_the_parameters_and_writes_nothing(one_job, tmp_path):
    panel = panel_of(one_job, tmp_path / "tuning")
    assert (panel.state, panel.value, panel.trials, panel.phase, panel.budget) == ("ready", None, [], None, 60)
    parameters = rows(panel)
    assert list(parameters) == [parameter.name for parameter in one_job.pipeline.parameters]
    calls = parameters[CALLS]
    assert (calls["Current"], calls["Chosen"], calls["Verdict"]) == ("1", "–", "verify")
    assert parameters["batch:2 size"]["Verdict"] == "locked"
    assert not (tmp_path / "tuning").exists()
    assert repr(panel) == "TuningPanel(Job(little, tf.data, 1 model), ready)"
    assert panel.wait() is None
    with pytest.raises(TpunbError, match="no tuning has ended") as caught:
        panel.apply(reading())
    assert caught.value.hint == "run() one first"


def test_building_the_job_draws_no_random_numbers(tmp_path):
    before = random.getstate(), np.random.get_state()[1].tolist()
    panel_of(Job(lambda: (little(), reading())), tmp_path)  # it sets the seeds
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_pipeline_that_cannot_be_rebuilt_is_shown_with_the_reason(tmp_path):
    generator = tf.random.Generator.from_seed(1)
    data = at_hand().map(lambda x, y: (x + generator.normal(()), y))
    panel = panel_of(Job(lambda: (little(), data)), tmp_path)
    assert "draws from a tf.random.Generator" in panel._frame["refusal"]
    assert {row["Verdict"] for row in rows(panel).values()} == {"locked"}


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"job": 3}, TypeError, "job parameter"),
        ({"phases": 3}, TypeError, "phases parameter"),
        ({"saved": 3}, TypeError, "saved parameter"),
        ({"search": 3}, TypeError, "search parameter"),
        ({"search": "luck"}, ValueError, "no search 'luck'"),
        ({"budget": 0}, ValueError, "above 0"),
    ],
)
def test_wrong_arguments_raise(one_job, tmp_path, wrong, kind, words):
    with pytest.raises(kind, match=words):
        tuning_panel(**{"job": one_job, "folder": tmp_path, **wrong})


@pytest.mark.parametrize(
    ("trait", "value", "sentence"),
    [
        ("budget", -1, "The budget must be above 0 seconds. Got -1.0 instead."),
        ("budget", float("inf"), "The budget must be above 0 seconds. Got inf instead."),
        ("phase", 7, "There is no phase 7; there are [0, 1, 2]."),
        ("search", "luck", "There is no search 'luck'; there are ['hill climb', 'model'"),
    ],
)
def test_a_refused_value_changes_nothing(one_job, tmp_path, phases, trait, value, sentence):
    panel = panel_of(one_job, tmp_path, phases)
    before = getattr(panel, trait)
    panel.set_state({trait: value})  # what the page sends
    assert panel.error.startswith(sentence)
    assert getattr(panel, trait) == before
    with pytest.raises(ValueError, match=r"budget|phase|search"):
        setattr(panel, trait, value)


def test_the_page_cannot_set_the_state_of_the_tuning(one_job, tmp_path):
    panel = panel_of(one_job, tmp_path)
    before = panel._run
    panel.set_state({"state": "done", "_run": {}, "trials": [1], "value": 3})
    assert (panel.state, panel._run, panel.trials, panel.value) == ("ready", before, [], None)


# ---- where trials start


def test_the_hot_phase_is_selected(one_job, tmp_path, phases):
    panel = panel_of(one_job, tmp_path, phases)
    assert panel.phase == 1
    assert dict(panel._start["facts"])["Steps"] == "7 (7 traced in full)"
    assert dict(panel._start["facts"])["Trial start"] == "beginning (no checkpoints given)"
    panel.phase = 0
    assert dict(panel._start["facts"])["Steps"] == "3 (3 traced in full)"
    panel.phase = None
    assert dict(panel._start["facts"]) == {"Trial start": "beginning (no phases given)"}


def test_outliers_alone_can_be_selected(one_job, tmp_path):
    steps = toy_steps("abc")
    noise = tp.phases(steps, lambda steps: [-1] * len(steps))
    assert isinstance(noise, Phases)
    assert panel_of(one_job, tmp_path, noise).phase == -1


@pytest.mark.live
def test_the_nearest_checkpoint_that_holds_all_is_the_start(one_job, tmp_path, phases):
    with tp.checkpointing(tmp_path / "saved", every=4):
        reused().fit(reading(), epochs=1, verbose=0)
    panel = panel_of(one_job, tmp_path, phases, tmp_path / "saved")
    assert (panel.start.checkpoint.step, panel.start.text) == (4, "step 4, in the phase (tpunb-4)")
    panel.phase = 0
    assert panel.start.text == "step 4, 2 steps after the phase (tpunb-4)"
    panel.phase = 2
    assert panel.start.text == "step 12, 1 step after the phase (tpunb-12)"
    loop = Job(one_job.build, step=lambda model, batch: 0)
    start = trial_start(loop, phases[1], tp.checkpoints(tmp_path / "saved"))
    assert start.checkpoint is None
    assert "it is of fit, and the job is a custom loop" in start.text


def test_a_checkpoint_of_weights_alone_is_no_start(one_job, tmp_path, phases):
    little().save_weights(tmp_path / "epoch-04.weights.h5")
    panel = panel_of(one_job, tmp_path, phases, tmp_path)
    reason = "epoch-04.weights.h5 cannot be resumed: it is not a checkpoint of tpunb"
    assert panel.start == (None, f"beginning ({reason})")


def test_without_checkpoints_trials_start_at_the_beginning(one_job, tmp_path, phases):
    (tmp_path / "none").mkdir()
    panel = panel_of(one_job, tmp_path, phases, tp.checkpoints(tmp_path / "none"))
    assert panel.start == (None, "beginning (no checkpoint of a known step in none)")


# ---- a tuning, played


def test_trials_arrive_one_by_one_and_then_it_is_done(played):
    panel, made = played
    states = []
    panel.observe(lambda change: states.append(change["new"]), "state")
    panel.run()
    (tuner,) = made
    assert (panel.state, panel._run["headline"]) == ("running", "running: 0 trials so far")
    one_trial(tuner)
    assert panel._run["messages"] == ["The budget ended after 3 trials."]
    assert panel._run["since"] >= 0
    tuner.next.release(2)
    found = panel.wait(SECONDS)
    assert found is panel.value is tuner.tuning
    assert states == ["running", "done"]
    assert [row["verdict"] for row in panel.trials] == ["default", "faster", "failed"]
    assert panel.trials[1] == {
        "trial": 1,
        "values": f"{CALLS} = 8",
        "verdict": "faster",
        "step": "4 ms",
        "ratio": "4.00x [3.50, 4.50]",
        "output": "equal",
        "spent": "2 s",
    }
    assert (rows(panel)[CALLS]["Chosen"], rows(panel)[CALLS]["Verdict"]) == ("8", "verified")
    assert [row["Chosen"] for name, row in rows(panel).items() if name != CALLS] == ["–"] * (len(rows(panel)) - 1)
    assert panel._run["code"] == "ds = ..."
    assert panel._run["rejected"]["rows"] == [[f"{CALLS} = 16", f"ValueError: {EVIL}"]]
    assert panel._run["headline"] == "3 trials: 4.00 times as fast (95 % interval 3.50 to 4.50), same output"
    assert panel._run["since"] is None
    assert panel._run["chart"]["description"].startswith("Trials by")
    json.dumps(panel.get_state(), allow_nan=False, default=str)


def test_it_runs_in_a_thread_of_its_own_with_what_the_traits_say(played):
    panel, made = played
    panel.budget, panel.search = 7, "hill climb"
    panel.run()
    made[0].next.release(3)
    panel.wait(SECONDS)
    assert made[0].thread.name == "tpunb-tuning"
    assert made[0].given["budget"] == Budget(7)
    assert made[0].given["search"].__name__ == "hill_climb"
    assert made[0].given["start"] is None


def test_a_custom_search_and_a_limit_of_trials(monkeypatch, one_job, tmp_path):
    def mine(space):
        yield {}

    panel = panel_of(one_job, tmp_path, search=mine, budget=Budget(9, trials=4))
    assert panel._frame["searches"][-1] == panel.search == "custom"
    tuner = panel._tuner()
    assert (tuner._search, tuner._budget) == (mine, Budget(9, 4))


def test_stop_ends_it_after_the_current_trial(played):
    panel, made = played
    panel.stop()  # nothing runs: nothing to stop
    assert panel.state == "ready"
    panel.run()
    one_trial(made[0])
    panel.stop()
    assert panel.state == "stopping"
    with pytest.raises(TimeoutError, match="still runs after 0 s"):
        panel.wait(0)
    with pytest.raises(TpunbError, match="no tuning has ended") as caught:
        panel.apply(reading())
    assert "stop() it" in caught.value.hint
    made[0].next.release()
    assert len(panel.wait(SECONDS).trials) == 2
    assert made[0].closed
    assert panel.state == "done"


def test_one_tuning_runs_at_a_time(played, one_job, tmp_path):
    panel, made = played
    other = panel_of(one_job, tmp_path / "other")
    panel.run()
    for one in (panel, other):
        with pytest.raises(TpunbError, match="a tuning runs in this kernel") as caught:
            one.run()
        assert caught.value.hint
    assert (panel.state, other.state) == ("running", "ready")
    made[0].next.release(3)
    panel.wait(SECONDS)
    other.run()
    made[1].next.release(3)
    assert len(other.wait(SECONDS).trials) == 3


@pytest.mark.parametrize("error", [RuntimeError(EVIL), SystemExit(3)])
def test_an_error_is_kept_and_the_next_tuning_can_run(played, error):
    panel, made = played
    panel.run()
    one_trial(made[0])
    made[0].error = error
    made[0].next.release()
    with pytest.raises((RuntimeError, TpunbError)) as caught:
        panel.wait(SECONDS)
    assert caught.value is panel.failure
    assert (panel.state, panel._run["headline"]) == ("failed", "failed after 1 trial")
    assert panel._run["failed"] in (f"RuntimeError: {EVIL}", "the tuning was ended by SystemExit")
    assert len(panel.value.trials) == 1
    assert EVIL not in panel.still()["text/html"]
    panel.run()
    made[1].next.release(3)
    assert panel.wait(SECONDS).best
    assert (panel.failure, panel._run["failed"]) == (None, "")


def test_errors_at_the_start_raise_at_once(monkeypatch, one_job, tmp_path):
    def refuse(*_):
        raise TpunbError("no such luck", hint="none")

    monkeypatch.setattr(room, "Tuner", refuse)
    panel = panel_of(one_job, tmp_path)
    for _ in range(2):  # nothing is held
        with pytest.raises(TpunbError, match="no such luck"):
            panel.run()
    assert panel.state == "ready"


def test_the_page_runs_and_stops_it(played):
    panel, _ = played
    sent = []
    panel.send = lambda content, buffers=None: sent.append(content)
    for what in ("run", "run", "stop", "freeze"):
        panel._asked(panel, {"ask": what, "id": what}, [])
    assert [content.get("error", "") for content in sent] == [
        "",
        "a tuning runs in this kernel; stop() its panel, or wait() for its end",
        "",
        "",
    ]
    assert panel.state == "stopping"


# ---- what is shown without a kernel, and after a restart


def test_names_stay_text_in_what_a_saved_notebook_shows(played):
    panel, made = played
    panel.run()
    made[0].next.release(3)
    panel.wait(SECONDS)
    shown = panel._repr_mimebundle_()[0]
    assert EVIL not in shown["text/html"]
    assert "&lt;img src=x" in shown["text/html"]
    assert "4.00x [3.50, 4.50]" in shown["text/html"]
    assert "data:image/svg+xml" in shown["text/html"]
    assert shown["text/plain"] == repr(panel)
    assert "application/vnd.jupyter.widget-view+json" in shown


def test_front_ends_without_widgets_show_tables(monkeypatch, one_job, tmp_path):
    monkeypatch.setenv("TPUNB_WIDGETS", "plain")
    assert {*panel_of(one_job, tmp_path)._repr_mimebundle_()[0]} == {"text/html", "text/plain"}


def test_observers_that_raise_do_not_block_the_next_tuning(played):
    panel, made = played

    def watch(change):
        if change["new"] == "running":
            raise ValueError("mine")

    panel.observe(watch, "state")
    with pytest.raises(ValueError, match="mine"):
        panel.run()
    made[0].next.release(3)
    panel.wait(SECONDS)
    panel.unobserve(watch, "state")
    panel.run()
    made[1].next.release(3)
    panel.wait(SECONDS)
    assert panel.state == "done"


def written(folder, fingerprint, *trials, end=True):
    journal = Journal(folder)
    journal.start(fingerprint)
    for one in trials:
        journal.record(one)
    if end:
        journal.end(Tuning(trials, {CALLS: 8}, Speedup(4, 3.5, 4.5), (Message("stopped"),), 3.0, "ds = ..."))


class Tries:
    """Plays a trial of a remedy."""

    def __init__(self, job, remedy, start, seconds, phases, shown):
        self.row, self.shown = remedy.row(0, named=True), shown
        self.messages, self.tuning = shown.messages, shown

    def trials(self):
        found = Tried(self.row["id"], self.row["action"], EVIL, before_s=0.02, after_s=0.01, pairs=3, unit="step")
        self.tuning = replace(self.shown, tried=(replace(found, decision="faster", output="equal"),))
        yield self.tuning.tried[0]


def test_a_remedy_of_the_run_is_tried(monkeypatch, one_job, tmp_path):
    monkeypatch.setattr(room, "JobTrials", Tries)
    with zipfile.ZipFile(Path(__file__).parent / "corpus" / "torch_slow_dataset.zip") as entry:
        entry.extractall(tmp_path / "run")
    panel = panel_of(one_job, tmp_path / "trials", tp.phases(tmp_path / "run"))
    [[action, promised, tried]] = panel._run["remedies"]
    assert action.startswith("give the DataLoader workers")
    assert promised.endswith("ms")
    assert tried == "–"
    panel._asked(panel, {"ask": "try", "with": {"number": 0}}, [])
    assert panel.wait(SECONDS).tried[0].decision == "faster"
    outcome = "saves 10 ms of 20 ms a step; output equal, bit for bit"
    assert panel._run["remedies"][0][2] == outcome
    assert outcome in panel._run["headline"]
    assert outcome in panel.still()["text/html"]
    assert EVIL not in panel.still()["text/html"]


def test_a_panel_without_a_run_has_no_remedies(one_job, tmp_path):
    assert panel_of(one_job, tmp_path)._run["remedies"] == []


def test_an_earlier_tuning_is_shown_and_applied(one_job, tmp_path):
    written(tmp_path, one_job.fingerprint, *Played.trials_to_come)
    panel = panel_of(one_job, tmp_path)
    assert (panel.state, len(panel.trials), panel.value.best) == ("done", 3, {CALLS: 8})
    assert panel._run["notes"] == [f"These are trials of an earlier tuning, from the folder {tmp_path}."]
    assert panel._run["code"] == "ds = ..."
    assert [b[0].shape for b in panel.apply(reading(n=8))] == [(4, 4), (4, 4)]


def test_trials_of_a_dead_kernel_are_shown(one_job, tmp_path):
    written(tmp_path, one_job.fingerprint, *Played.trials_to_come[:2], end=False)
    panel = panel_of(one_job, tmp_path)
    assert len(panel.trials) == 2
    assert panel._run["messages"] == ["Interrupted after 2 trials: no values were chosen."]
    data = reading()
    assert panel.apply(data) is data


def test_trials_of_another_job_are_not_shown(one_job, tmp_path):
    other = Job(lambda: (little(), reading(batch=8)))
    written(tmp_path, other.fingerprint, Trial(0, {}, "default"), Trial(1, {CALLS: 2}, "faster"))
    panel = panel_of(one_job, tmp_path)
    assert (panel.state, panel.value) == ("ready", None)
    assert "holds trials of another job" in panel._run["notes"][0]


@pytest.mark.parametrize(
    "line", ['{"trial": {"warp": 9}}', '{"trial": {"number": 0, "values": 3, "verdict": "default"}}', "{"]
)
def test_an_unreadable_file_is_reported(one_job, tmp_path, line):
    (tmp_path / "tuning.jsonl").write_text(line + "\n")
    panel = panel_of(one_job, tmp_path)
    assert (panel.state, panel.value) == ("ready", None)
    assert "cannot be read" in panel._run["notes"][0]


# ---- a tuning, in earnest


@pytest.mark.live
def test_it_tunes_in_the_thread_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def parallel(space):
        yield {CALLS: 8, THREADS: 8}

    def won(pairs, **limits):
        return RaceResult("faster", 2.0, 1.8, 2.2, len(list(islice(pairs, 2))))

    monkeypatch.setattr(tournament, "race", won)  # whatever the clock shows
    monkeypatch.setattr(tuner, "_bound", lambda default, model: None)
    monkeypatch.setattr(trial, "_SECONDS", 0.1)
    monkeypatch.setattr(trial, "_HICCUP", SECONDS)
    one = job(n=240)
    panel = panel_of(one, tmp_path, search=parallel, budget=Budget(SECONDS, trials=2))
    assert isinstance(panel, TuningPanel)
    before = everything(one.parts[0])
    panel.run()
    found = panel.wait(SECONDS)
    assert everything(one.parts[0]) == before
    assert [trial.values for trial in found.trials] == [{}, {CALLS: 8, THREADS: 8}]
    assert all(trial.equal for trial in found.trials)
    assert len(panel.trials) == len(found.trials)
    tuned = one.parts[0].fit(panel.apply(reading()), epochs=1, verbose=0).history["loss"]
    assert tuned == reused().fit(reading(), epochs=1, verbose=0).history["loss"]
    again = panel_of(one, tmp_path)
    assert again.trials == panel.trials
    assert again.value.frame.equals(found.frame)
