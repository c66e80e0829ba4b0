"""Prepare a release: all but the upload. ``python .ci/release.py [--python PATH ...]``.

Build the distributions, check them, and try the wheel in a new environment of each Python: record a training with what
the wheel alone installs, then read it and run the first lines of README with `notebook`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = "3.11", "3.12", "3.13"
TRAINING = """
import time, jax, jax.numpy as jnp
step = jax.jit(lambda w, x: w - 1e-3 * (x.T @ (x @ w)))
def batches():
    for _ in range(100):
        time.sleep(0.01)
        yield jnp.ones((64, 128))
w = jnp.zeros((128, 128))
for x in batches():
    w = step(w, x)
"""
SIZES = """
import json
from importlib.metadata import distributions
paths = {each.name: [file.locate() for file in each.files or ()] for each in distributions()}
print(json.dumps({name: sum(path.stat().st_size for path in of if path.exists()) for name, of in paths.items()}))
"""


def call(*command: str | Path, fails: bool = False, cwd: Path = ROOT) -> str:
    """Return what a command prints; end with it if it fails, or does not where it should."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=kept, capture_output=True, text=True)
    if bool(done.returncode) != fails:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr if fails else done.stdout


def environment(folder: Path, python: str | Path = sys.executable) -> Path:
    """Return the folder of programs of a new environment."""
    call(python, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def installed(version: str) -> str | None:
    """Return a Python of that version: on the path, or of pyenv."""
    paths = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    works = (path for path in paths if path and not subprocess.run([path, "--version"], capture_output=True).returncode)
    return next(map(str, works), None)


def check_version() -> str:
    """Return the version of `pyproject.toml`, which the citation and the head of the changelog have too."""
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    for name, pattern in (("CITATION.cff", r"^version: (.*)$"), ("CHANGELOG.md", r"^## (\S+)")):
        found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        if found is None or found[1] != version:
            sys.exit(f"{name} is of version {found and found[1]}, pyproject.toml of {version}")
    return version


def first_lines() -> tuple[str, str]:
    """Return the first Python of README, and what it prints."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert found is not None, "README shows no code with its output"
    return found[1], found[2]


def try_wheel(wheel: Path, python: str, folder: Path) -> dict[str, object]:
    """Return the figures of a wheel in a new environment of a Python."""
    begun, programs = time.monotonic(), environment(folder / "environment", python)
    pip, tpunb = (programs / name for name in ("pip", "tpunb"))
    call(pip, "install", "-q", wheel)
    sizes = json.loads(call(programs / "python", "-c", SIZES))
    of_recording = {name: size for name, size in sizes.items() if name not in ("pip", "setuptools")}
    call(pip, "install", "-q", "jax")
    (folder / "train.py").write_text(TRAINING)
    call(tpunb, "run", "-o", "run", "--", programs / "python", "train.py", cwd=folder)
    missing = call(tpunb, "report", "run", fails=True, cwd=folder)
    assert "tpunb[report] @ file:" in missing, missing
    call(pip, "install", "-q", f"tpunb[notebook] @ {wheel.as_uri()}")
    report = call(tpunb, "report", "run", cwd=folder)
    assert "100 steps" in report, report
    code, printed = first_lines()
    shown = call(programs / "python", "-c", code, cwd=folder)
    assert shown.split() == printed.split(), shown
    return {
        "python": call(programs / "python", "--version").split()[1],
        "packages": len(of_recording),
        "megabytes": round(sum(of_recording.values()) / 1e6),
        "verdict": report.splitlines()[0],
        "seconds": round(time.monotonic() - begun),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Prepare the release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="try the wheel with it (default: those of 3.11 to 3.13)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the distributions")
    options = parser.parse_args(words)
    version = check_version()
    found = {version: installed(version) for version in VERSIONS}
    pythons = options.python or [python for python in found.values() if python]
    shutil.rmtree(options.dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tools = environment(Path(folder, "tools"))
        call(tools / "pip", "install", "-q", "build", "twine")
        call(tools / "python", "-m", "build", "-o", options.dist)
        files = sorted(options.dist.iterdir())
        call(tools / "twine", "check", "--strict", *files)
        wheel = next(path for path in files if path.suffix == ".whl").resolve()
        tried = []
        for number, python in enumerate(pythons):
            (place := Path(folder, str(number))).mkdir()
            tried.append(try_wheel(wheel, python, place))
            print(*(f"{name}: {value}" for name, value in tried[-1].items()), sep=" · ")
            shutil.rmtree(place)
    if not options.python and (absent := [version for version, python in found.items() if python is None]):
        print(f"not tried, since not installed: Python {', '.join(absent)}")
    print(f"{', '.join(path.name for path in files)} are ready: twine upload {options.dist}/*")
    count = len(zipfile.ZipFile(wheel).namelist())
    print(json.dumps({"version": version, "bytes": wheel.stat().st_size, "files": count, "tried": tried}))


if __name__ == "__main__":
    main()
