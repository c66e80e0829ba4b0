"""Record a slow input and its remedy: ``python datasets/sample_profiles/record_loader.py [NAME ...]``.

``slow_loader`` is ``train.py``, a PyTorch training on pictures of an object store (``store.py``), and
``slow_loader_repaired`` the same with the remedy of its verdict, workers of the DataLoader. Statistics only, without
paths of the machine. Record on an idle one.
"""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before PyTorch starts threads; others may serve the store

import polars as pl  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  else the first optimizer imports it

import tpunb as tp  # noqa: E402

HERE = Path(__file__).resolve().parent
WORKERS = {"slow_loader": 0, "slow_loader_repaired": 2}
ELSEWHERE = {  # what is before the names of files
    str(HERE): "program",
    str(Path(tp.__file__).resolve().parent): "python/site-packages/tpunb",
    sys.prefix: "python",
    sys.base_prefix: "usr",
}


def record(name: str) -> None:
    """Train under a capture, and describe the recording in ``about.toml``."""
    target, here = HERE / name, Path.cwd()
    shutil.rmtree(target, ignore_errors=True)
    store = subprocess.Popen([sys.executable, HERE / "store.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert store.stdout is not None
        sys.argv = ["train.py", f"http://127.0.0.1:{store.stdout.readline().strip()}", str(WORKERS[name])]
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            with tp.capture(target, keep="none", schedule=tp.Schedule(budget=0.05)) as run:
                runpy.run_path(str(HERE / "train.py"))
            os.chdir(here)
    finally:
        store.terminate()
    for file in target.rglob("*.parquet"):
        table = pl.read_parquet(file)
        if "file" in table.columns:
            named = pl.col("file").cast(pl.String).str.replace_many(ELSEWHERE).cast(table["file"].dtype)
            table.with_columns(named).write_parquet(file)
    steps, workers = tp.steps(tp.load(run)), f"{WORKERS[name] or 'no'} workers"
    (target / "about.toml").write_text(
        f'name = "{name}"\n'
        f'what = "a small convolutional network on pictures of an object store, by a DataLoader with {workers}"\n'
        'run = "4 epochs of 40 training steps of 16 pictures, 10 evaluation steps and a torch.save after each"\n'
        f'recorded = "{datetime.now(UTC):%Y-%m-%d}"\n'
        f'device = "CPU, 1 core, {platform.machine()}"\n'
        f'versions = "torch {torch.__version__}, python {platform.python_version()}"\n'
        f"steps = {len(steps)}\n"
        f"seen_in_full = {len(steps.full())}\n"
        'keeps = "statistics only"\n'
        f'again = "python datasets/sample_profiles/record_loader.py {name}"\n'
    )
    print(tp.report(target))


if __name__ == "__main__":
    for sample in sys.argv[1:] or WORKERS:
        record(sample)
