"""Unmodified trainings of Hugging Face and Lightning, resumed bit for bit; checkpoints that PyTorch's tools write."""

import json
import os
import subprocess
import sys
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.formats import hugging_face
from tpunb.checkpoint.formats import torch as torch_format
from tpunb.checkpoint.resume import resume, trainers
from tpunb.errors import TpunbError
from tpunb.testing import check_checkpoint_format

torch = lazy("torch")
KINDS = {
    "hugging face": ("", "noise", "noise, workers", "accumulated", "evaluated", "stream"),
    "lightning": ("", "noise, workers", "lasting workers", "accumulated", "validated", "stream", "steps"),
}


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize(("family", "package"), [("hugging face", "transformers"), ("lightning", "lightning")])
def test_unmodified_trainings_resume_exactly(tmp_path, family, package):
    if find_spec(package) is None:
        pytest.skip(f"no {package}")
    names = [", ".join(filter(None, [family, kind])) for kind in KINDS[family]]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, Path(__file__).with_name("torch_trainers.py"), tmp_path, *names]
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert [*outcomes] == names
    for name, outcome in outcomes.items():
        assert outcome["whole"] == outcome["alone"], name  # saving changes nothing
        assert outcome["later"], name
        for step, reason, result, resumed in outcome["later"]:
            is_refused = name == "lightning, lasting workers"  # they might draw random numbers
            assert bool(reason) == is_refused, (name, step, reason)
            end = outcome["alone"][1] if result[1] else []
            assert [result[0], result[1], *result[2:]] == [outcome["alone"][0], end, *outcome["alone"][2:]], (
                name,
                step,
            )
            assert resumed.startswith(f"resumed {'at' if is_refused else 'exactly at'} step {step}"), resumed


def fake_trainer(monkeypatch, **attributes):
    """Install a module of a Trainer, whose class has some methods."""
    module = type(sys)("transformers.trainer")
    module.Trainer = type("Trainer", (), attributes)
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    return module.Trainer


def test_an_unknown_version_is_left_alone(monkeypatch, tmp_path):
    trainer = fake_trainer(monkeypatch, train=lambda self: 3)
    before = dict(vars(trainer))
    warned = pytest.warns(UserWarning, match=r"trainings of transformers.trainer are not saved: this version is not")
    with warned as caught, checkpointing(tmp_path):
        assert trainer().train() == 3
    assert len(caught) == 1
    assert dict(vars(trainer)) == before
    assert trainers._block.users == 0


def test_a_trainer_that_is_imported_in_the_block_is_named(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "transformers.trainer", raising=False)
    with pytest.warns(UserWarning, match="were not saved: import it before the block"), checkpointing(tmp_path):
        fake_trainer(monkeypatch)


# -- checkpoints of other tools ---------------------------------------------------------------------------------------


def written(folder, name, content):
    folder.mkdir(exist_ok=True)
    torch.save(content, folder / name)
    return folder / name


@pytest.fixture
def states():
    """States of a model and of an optimizer after a step."""
    pytest.importorskip("torch")
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.live
def test_files_of_torch_save_are_listed_without_unpickling(tmp_path, states):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    contents = {
        "a.pt": {"step": 120, **states},
        "b.pth": {**states, "global_step": 70, "step": 3},
        "model-step-12.pt": states["model"],
        "last.pt": {**states, "epoch": 3, "trap": Trap()},
        "optimizer.pt": states["optimizer"],
        "end.ckpt": {
            "epoch": 1,
            "global_step": 300,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": states["model"],
        },
        "rng.pth": torch.get_rng_state(),
        "schedule.pt": {"last_epoch": 3},
    }
    for name, content in contents.items():
        written(tmp_path, name, content)
    (tmp_path / "notes.pth").write_text("not a zip")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:900])
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("x", "y")
    found = checkpoints(tmp_path)
    both = ("weights", "optimizer")
    assert {one.path.name: (one.step, one.step_from, one.kind, one.holds) for one in found} == {
        "a.pt": (120, "counter", "torch", both),
        "b.pth": (70, "counter", "torch", both),
        "model-step-12.pt": (12, "name", "torch", ("weights",)),
        "last.pt": (None, "", "torch", both),
        "optimizer.pt": (None, "", "torch", ("optimizer",)),
        "end.ckpt": (300, "counter", "lightning", ("weights",)),
    }
    assert [*found.skipped] == ["cut.pt"]
    assert found.before(200).path.name == "a.pt"
    refused = pytest.raises(TpunbError, match=r"a.pt is a checkpoint of torch without data position and random")
    with refused, resume(found.before(200)):
        pass


@pytest.mark.live
def test_checkpoints_of_hugging_face_are_listed(tmp_path, states):
    for step in (20, 100):
        folder = tmp_path / f"checkpoint-{step}"
        for name in ("optimizer.pt", "rng_state.pth", "scheduler.pt"):
            written(folder, name, states["optimizer"])
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "trainer_state.json").write_text("{}")  # as `save_state` writes it beside the checkpoints
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "checkpoint-120").mkdir()
    (tmp_path / "checkpoint-120" / "model.safetensors").write_bytes(b"weights")
    found = checkpoints(tmp_path)
    assert [(one.step, one.step_from, one.kind) for one in found] == [
        (20, "counter", "hugging face"),
        (100, "counter", "hugging face"),
    ]
    assert found[0].holds == ("weights", "optimizer", "random state")
    assert found.skipped == {"checkpoint-120": "lacks trainer_state.json, which is written last"}


@pytest.mark.live
def test_the_formats_survive_damaged_files(tmp_path, states):
    written(tmp_path / "files", "a.pt", {"step": 1, **states})
    check_checkpoint_format(torch_format, tmp_path / "files")
    folder = tmp_path / "checkpoint-3"
    written(folder, "optimizer.pt", states["optimizer"])
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    check_checkpoint_format(hugging_face, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(checkpoints(tmp_path)) == 2
