"""Trainings that do not know of a capture, each captured without windows, and what is found of them.

``python trainer_runs.py FOLDER NAME...`` captures some and writes ``FOLDER/found.json``: trainings that evaluate, of
``programs/evaluated.py``, and programs with a waste, of ``programs/trainers``, which measure what they waste.
"""

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS, WASTE_S = 20, 0.03


def maxtext_command(folder, **options):
    """Return the arguments of MaxText's trainer for a small model on synthetic data; checkpoints are in `folder`."""
    config = next(Path(find_spec("maxtext").submodule_search_locations[0]).rglob("base.yml"))
    small = {
        **{"run_name": "small", "base_output_directory": folder / "out", "hardware": "cpu"},
        **{"dataset_type": "synthetic", "attention": "dot_product", "skip_jax_distributed_system": True},
        **{"base_emb_dim": 64, "base_mlp_dim": 128, "base_num_decoder_layers": 2, "head_dim": 32, "vocab_size": 256},
        **{"base_num_query_heads": 2, "base_num_kv_heads": 2, "max_target_length": 64, "per_device_batch_size": 2},
        **{"enable_checkpointing": True, "async_checkpointing": False},
        **options,
    }
    return ["train", str(config), *[f"{name}={value}" for name, value in small.items()]]


def waste(name, folder):
    """Run a program with a waste, ``"plain_jax data"``; return what it measures."""
    import programs.trainers

    program, place = name.split()
    programs.trainers.WASTE_S = WASTE_S
    module = importlib.import_module(f"programs.trainers.{program}")
    module.main(["--waste", place, "--steps", str(STEPS), "--folder", str(folder)])
    truth = json.loads((folder / "truth.json").read_text())
    return {"train": truth["steps"], "injected_s": truth["injected_s"][place]}


def captured(name, folder):
    """Capture a run; return its truth, its steps by kind and rule, and its accounts in seconds."""
    import tpunb as tp
    from programs import evaluated
    from tpunb.schema import ACCOUNTS

    folder.mkdir(parents=True)
    with tp.capture(folder / "run", schedule=tp.Schedule.ticks(), keep="none"):
        truth = evaluated.PROGRAMS[name].train(folder) if name in evaluated.PROGRAMS else waste(name, folder)
    profile = tp.load(folder / "run")
    steps = tp.steps(profile).frame.group_by("kind", "rule").len().rows()
    goodput = tp.goodput(profile)
    accounts = {account: goodput.time_ps(account) / 1e12 for account in ACCOUNTS}
    return {"truth": truth, "steps": steps, "accounts": accounts}


def found(folder, *names, **environment):
    """Capture runs in a process of their own; return what is found of each."""
    command = [sys.executable, __file__, str(folder), *names]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    package = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, **quiet, "PYTHONPATH": package, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


if __name__ == "__main__":
    top = Path(sys.argv[1])
    report = {name: captured(name, top / name.replace(" ", "-")) for name in sys.argv[2:]}
    (top / "found.json").write_text(json.dumps(report))
