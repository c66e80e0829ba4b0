"""A release: few dependencies to record, a small wheel, one version, a trial in a bare environment."""

import json
import runpy
import subprocess
import sys
import tomllib
import zipfile

import pytest
from tracked import ROOT, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPT = ROOT / ".ci" / "release.py"
MEGABYTES, DISTRIBUTIONS, DIRECT = 350, 15, 10  # of a recording, at most
WHEEL_BYTES, WHEEL_FILES = 2_500_000, 600


def test_a_recording_has_few_direct_dependencies():
    assert len(PROJECT["project"]["dependencies"]) <= DIRECT


def test_all_and_test_contain_what_reads_and_shows_runs():
    extras = PROJECT["project"]["optional-dependencies"]

    def contained(extra):
        inner = [name for each in extras[extra] if each.startswith("tpunb[") for name in each[6:-1].split(",")]
        return {extra, *inner}.union(*map(contained, inner))

    assert {"report", "notebook", "all"} <= contained("test")
    assert {"report", "notebook"} <= contained("lab"), "README's command"
    assert PROJECT["dependency-groups"]["test"] == ["tpunb[test]"]  # PEP 735: one list


def test_the_version_is_that_of_citation_and_changelog():
    assert runpy.run_path(str(SCRIPT))["check_version"]() == PROJECT["project"]["version"]


def test_forms_and_workflows_of_a_forge_can_be_read():
    yaml = pytest.importorskip("yaml")
    for path in (ROOT / ".github").rglob("*.yml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert content.keys() >= ({"jobs"} if path.parent.name == "workflows" else {"name", "description", "body"})


@pytest.mark.live
def test_the_wheel_is_no_larger_than_its_ceiling(tmp_path):
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    paths = tracked(*wheel["packages"], *wheel["force-include"])
    with zipfile.ZipFile(tmp_path / "wheel", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            archive.write(path, path.relative_to(ROOT))
    assert 0.7 * WHEEL_FILES < len(paths) + 6 <= WHEEL_FILES  # with its metadata
    assert 0.9 * WHEEL_BYTES < (tmp_path / "wheel").stat().st_size <= WHEEL_BYTES


@pytest.mark.slow
def test_the_wheel_records_and_reads_in_a_bare_environment(tmp_path):
    command = [sys.executable, SCRIPT, "--python", sys.executable, "--dist", tmp_path / "dist"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bytes"] <= WHEEL_BYTES
    assert found["files"] <= WHEEL_FILES
    (tried,) = found["tried"]
    assert tried["megabytes"] <= MEGABYTES
    assert tried["packages"] <= DISTRIBUTIONS
    assert tried["verdict"]
