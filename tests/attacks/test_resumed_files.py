"""Files of programs that are resumed: as an uninterrupted run leaves them, or untouched."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from optional import lazy
from warm_python import warm_python

import tpunb as tp
from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError

torch = lazy("torch")
pytestmark = pytest.mark.live

PROGRAM = Path(__file__).with_name("staged_programs.py")
LOOPS = (
    *("files_of_epochs", "early_stopping", "two_optimizers", "folds", "tuned", "table", "open_table", "decided"),
    *("replaced", "accumulated", "broken_off"),
)


def outcomes(folder, *names):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [*warm_python(), PROGRAM, folder, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "outcomes.json").read_text())


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What programs left that were killed at three places each and resumed."""
    torch.zeros(1)
    return outcomes(tmp_path_factory.mktemp("staged"), *LOOPS, "appended")


def assert_identical(outcome):
    whole, every = outcome["whole"], outcome["killed"]
    assert len(every) == 3
    for one in every:
        assert one["exact"], one["reason"]
        assert one["after"].get("refused") is None
        assert one["after"]["result"] == whole["result"]
        assert one["after"]["files"] == whole["files"]
        assert one["after"]["said"].startswith("resumed exactly")


@pytest.mark.parametrize("name", LOOPS)
def test_a_killed_program_leaves_what_an_uninterrupted_one_does(killed, name):
    assert_identical(killed[name])


def test_a_line_that_would_be_appended_twice_ends_the_resumption_before_that(killed):
    for one in killed["appended"]["killed"]:
        assert "staged_programs.py" in one["after"]["refused"]
        assert one["after"]["files"] == one["before"]


def test_fits_leave_what_uninterrupted_ones_do_or_change_nothing(tmp_path):
    torch.zeros(1)
    pytest.importorskip("tensorflow")
    fits = outcomes(tmp_path, "fits")["fits"]
    ends = [one["after"].get("refused", "") for one in fits["killed"]]
    assert ends[0] == ""
    for one, refused in zip(fits["killed"], ends, strict=True):
        if refused:  # the file of the best model is that of a later fit
            assert "best.keras, as it was written later" in refused
            assert one["after"]["files"] == one["before"]
        else:
            assert_identical({**fits, "killed": [one] * 3})


def loop(tmp_path, between, *, epochs=3):
    """Train a network in a loop for each epoch, and call a function with the epoch after each."""
    torch.manual_seed(1)
    net = torch.nn.Linear(2, 1)
    state = {"net": net, "opt": torch.optim.SGD(net.parameters(), 0.1)}
    for epoch in range(epochs):
        for batch in tp.testing.null_run.batches([torch.ones(1, 2)] * 4, state=state):
            state["opt"].zero_grad()
            net(batch).sum().backward()
            state["opt"].step()
        between(tmp_path, epoch, net)
    return net


def nothing(*_):
    """Do nothing between two loops."""


def saved(folder, between=nothing, **more):
    with checkpointing(folder / "saved", every=2, **more):
        loop(folder, between)
    return checkpoints(folder / "saved")[-1]


WAYS = {
    "os.open": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "update": lambda path: path.open("r+").close(),
    "removed": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_suffix(".old")),
    "truncated": lambda path: os.truncate(path, 0),
    "folder": lambda path: __import__("shutil").rmtree(path.parent),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("caught", [False, True])
def test_what_cannot_be_kept_ends_the_resumption_before_the_file_is_touched(tmp_path, way, caught):
    one, path = saved(tmp_path), tmp_path / "mine" / "model.bin"
    path.parent.mkdir()
    path.write_text("of the user")

    def between(*_):
        try:
            WAYS[way](path)
        except TpunbError:
            if not caught:
                raise

    with pytest.raises(TpunbError, match=r"test_resumed_files.py:\d+ would change .* that is skipped"), resume(one):
        loop(tmp_path, between)
    assert path.read_text() == "of the user"


def test_a_program_can_ask_whether_its_code_is_repeated(tmp_path):
    one, asked = saved(tmp_path), []
    with resume(one):
        loop(tmp_path, lambda _, epoch, net: asked.append(tp.testing.null_run.skipping))
    assert asked == [True, True, False]
    assert not tp.testing.null_run.skipping


def test_hooks_are_gone_after_the_block(tmp_path):
    import builtins
    import io

    one, before = saved(tmp_path), (builtins.open, io.open, os.rename, os.replace)
    with resume(one):
        assert builtins.open is not before[0]
        loop(tmp_path, nothing)
    assert (builtins.open, io.open, os.rename, os.replace) == before


def test_without_the_states_of_ended_loops_a_resumption_is_refused(tmp_path):
    one = saved(tmp_path, ends_gb=0)
    with pytest.raises(TpunbError, match=r"the code after test_resumed_files.py:\d+ would run without the state"):
        resume(one).__enter__()
    with resume(one, exact=False) as resumed:
        loop(tmp_path, nothing)
    assert ", not exactly: the code after" in str(resumed)


def test_a_file_that_was_written_after_the_checkpoint_is_named_where_it_is_read(tmp_path):
    one = saved(tmp_path)
    later = tmp_path / "best.txt"
    later.write_text("of a later epoch")
    os.utime(later, (one.time.timestamp() + 60,) * 2)

    def between(_, epoch, net):
        if epoch == at:
            later.read_text()

    at, named = 2, r"test_resumed_files.py:\d+ reads .*best.txt, which was written after"
    with pytest.warns(UserWarning, match=named), resume(one) as resumed:
        loop(tmp_path, between)
    assert "written after the checkpoint" in str(resumed)
    at = 0
    skipped = r"test_resumed_files.py:\d+ reads .*best.txt, as it was written later"
    with pytest.raises(TpunbError, match=skipped), resume(one):
        loop(tmp_path, between)


def test_a_run_with_other_numbers_of_loops_is_not_said_to_be_exact(tmp_path):
    one = saved(tmp_path)
    with pytest.warns(UserWarning, match="it had 4 trainings, the saved run 3"), resume(one) as resumed:
        loop(tmp_path, nothing, epochs=4)
    assert "exactly" not in str(resumed)


def test_a_loop_whose_end_was_not_seen_is_not_skipped(tmp_path):
    def cell(folder):
        torch.manual_seed(1)
        net = torch.nn.Linear(2, 1)
        state, kept = {"net": net, "opt": torch.optim.SGD(net.parameters(), 0.1)}, []
        for _ in range(3):
            drawn = iter(tp.testing.null_run.batches([torch.ones(1, 2)] * 4, state=state))
            kept.append(drawn)  # so that a break does not end it
            for number, batch in enumerate(drawn):
                net(batch).sum().backward()
                state["opt"].step()
                if number == 2:
                    break

    with checkpointing(tmp_path, every=2):
        cell(tmp_path)
    with pytest.raises(TpunbError, match="its end was not seen"):
        resume(checkpoints(tmp_path)[-1]).__enter__()
