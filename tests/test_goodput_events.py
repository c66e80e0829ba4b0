"""Goodput events in a local file: the recorder that writes them, and jobs read from them."""

import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from restarted_jobs import buckets
from simulate.goodput_jobs import BEGIN, Job, disrupted, everything

import tpunb as tp
from tpunb.analysis import GoodputRecorder, categories
from tpunb.errors import BadProfile, IncompatibleRuns, TpunbError

S = 10**12


def seconds(job):
    return dict(categories(job).select("category", pl.col("time_ps") / S).iter_rows())


def test_the_situations_of_the_public_tests_have_the_buckets_expected_there(tmp_path):
    found = buckets(tmp_path)
    assert [name for name, right in found.items() if not right] == []
    assert len(found) == 37


def test_a_recorder_has_the_methods_of_the_library_and_writes_nothing_if_disabled(tmp_path):
    recorder = GoodputRecorder(tmp_path / "none.jsonl", logging_enabled=False)
    events = ("job", "tpu_init", "training_preparation", "data_loading", "custom_badput_event", "elastic_reinit")
    for name in [f"record_{event}_{which}_time" for event in events for which in ("start", "end")]:
        getattr(recorder, name)()
    recorder.record_step_start_time(3)
    recorder.record_checkpoint_progress(3, BEGIN)
    recorder.flush()
    assert not (tmp_path / "none.jsonl").exists()
    with pytest.raises(AttributeError, match="no attribute 'record_nothing'"):
        recorder.record_nothing()


def test_a_disk_that_cannot_be_written_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="job_start_time was not written: "):
        GoodputRecorder(tmp_path).record_job_start_time()


def test_a_number_that_is_none_is_a_warning(tmp_path):
    recorder = GoodputRecorder(tmp_path / "a.jsonl")
    with pytest.warns(UserWarning, match="step_start_time was not written: TypeError"):
        recorder.record_step_start_time([3])
    recorder.record_step_start_time(4)
    assert "4" in (tmp_path / "a.jsonl").read_text()


def test_arguments_by_name_and_place_are_one_event(tmp_path):
    recorder = GoodputRecorder(tmp_path / "a.jsonl", "mine")
    recorder.record_custom_badput_event_start_time(BEGIN, "sdc")
    recorder.record_custom_badput_event_start_time(custom_badput_event_type="sdc", start_time=BEGIN)
    recorder.record_custom_badput_event_start_time(start_time=BEGIN)
    recorder.record_elastic_slice_counts(3, 4, 4, BEGIN)
    assert getattr(recorder, "record_step_end_time", None) is None  # which MaxText asks for
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert (
        lines[0]
        == lines[1]
        == {
            "job_name": "mine",
            "custom_badput_event_type": "sdc",
            "custom_badput_event_start_time": BEGIN.timestamp(),
        }
    )
    assert lines[2]["custom_badput_event_type"] == "unknown"
    assert len(lines) == 3


def test_one_attempt_is_a_run_and_several_are_a_job(tmp_path):
    one, two = Job(tmp_path / "one.jsonl"), Job(tmp_path / "two.jsonl")
    everything(one)
    disrupted(two)
    assert len(tp.steps(tmp_path / "one.jsonl")) == 5
    assert tp.goodput(tmp_path / "one.jsonl").time_ps("data loading") == 12 * S
    with pytest.raises(TpunbError, match="holds 2 attempts of a job") as error:
        tp.load(tmp_path / "two.jsonl")
    assert "tp.job(" in error.value.hint
    assert len(tp.phases(tp.load(tmp_path / "one.jsonl"))) == 1


def test_exports_of_the_cloud_log_are_read(tmp_path):
    job = Job(tmp_path / "a.jsonl")
    disrupted(job)
    lines = [json.dumps({"jsonPayload": json.loads(line), "insertId": "x"}) for line in job.path.open()]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    assert tp.job(tmp_path / "b.jsonl").frame.equals(tp.job(job.path).frame)


def test_slices_that_come_and_go_are_resizing_and_what_their_loss_undoes_is_lost(tmp_path):
    job = Job(tmp_path / "a.jsonl")
    job.start("init")
    job.steps(0, 6)
    job.record("elastic_wait_start_time", "slice_down")
    job.now += 7
    job.record("elastic_wait_end_time", "slice_down")
    job.during("elastic_reinit", 4.0)
    job.steps(4, 8)
    job.record("elastic_wait_start_time", "scale_up")
    job.now += 2
    job.record("elastic_wait_end_time", "scale_up")
    job.steps(8, 9)
    job.end()
    found = tp.job(job.path)
    times = seconds(found)
    assert (times["ELASTIC_SLICE_DOWN"], times["ELASTIC_REINITIALIZATION"], times["ELASTIC_SCALE_UP"]) == (7, 4, 2)
    assert found.attempts["first_step"].to_list() == [0, 4, 8]
    assert found.attempts["lost_steps"].to_list() == [1, 0, 0]  # step 5 was not complete
    assert found.frame["time_ps"].sum() == found.wall_ps == round(job.now * S)


def test_damaged_lines_are_left_out_and_counted(tmp_path):
    job = Job(tmp_path / "a.jsonl")
    disrupted(job)
    whole = tp.job(job.path)
    lines = job.path.read_text().splitlines()
    bad = ["{", "3", "[]", '{"job_name": "a", "step_start_time": 3}', '{"job_name": "a", "job_end_time": NaN}', "\xff"]
    bad += ['{"job_name": "a"}', '{"job_name": "a", "job_start_time": "soon"}', '{"event_type": "save", "step": 1}']
    job.path.write_text("\n".join([*lines[:3], *bad, *lines[3:], lines[-1][:20]]), encoding="latin-1")
    found = tp.job(job.path)
    assert found.frame.equals(whole.frame)
    assert f"10 of {len(lines) + 10} lines left out: line 4: " in found.notes[0]


def test_a_line_cut_by_a_kill_loses_only_itself(tmp_path):
    job = Job(tmp_path / "a.jsonl")
    everything(job)
    job.path.write_text(job.path.read_text()[:-30])
    with pytest.warns(UserWarning, match="1 of 27 lines left out: line 27"):
        assert len(tp.steps(tp.load(job.path))) == 4  # the fifth did not end


def test_events_of_two_jobs_are_refused(tmp_path):
    for name in ("a", "b"):
        everything(Job(tmp_path / f"{name}.jsonl"))
    both = (tmp_path / "a.jsonl").read_text() + (tmp_path / "b.jsonl").read_text()
    (tmp_path / "c.jsonl").write_text(both)
    with pytest.raises(BadProfile, match="events of 2 jobs: a, b"):
        tp.job(tmp_path / "c.jsonl")
    later = GoodputRecorder(tmp_path / "b.jsonl", "b")
    later.record_job_start_time(BEGIN + timedelta(days=1))
    (tmp_path / "b.jsonl").write_text((tmp_path / "b.jsonl").read_text().splitlines()[-1])
    with pytest.raises(IncompatibleRuns, match="not attempts of one job: job a and b"):
        tp.job([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


@pytest.mark.parametrize("text", ["", "{}", '{"loss": 3}\n', "no json", "\n\n"])
def test_other_files_of_lines_are_no_job(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(TpunbError):
        tp.job(tmp_path / "a.jsonl")


def test_a_file_without_a_step_has_its_time(tmp_path):
    recorder = GoodputRecorder(tmp_path / "a.jsonl")
    recorder.record_job_start_time(BEGIN)
    recorder.record_job_end_time(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    job = tp.job(tmp_path / "a.jsonl")
    assert (job.wall_ps, job.time_ps("other"), job.attempts["steps"][0]) == (60 * S, 60 * S, 0)
