"""What belongs to the project: what git tracks, not what a user of a clone left there."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(*places, ending=""):
    """Return the files at or below places of the project, sorted; all files of a copy without git."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *places]
    try:
        names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
        paths = [path for path in map(ROOT.joinpath, names) if path.is_file()]
    except (OSError, subprocess.CalledProcessError):
        below = [path for place in places for path in (ROOT / place, *(ROOT / place).rglob("*"))]
        paths = [path for path in below if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in paths if path.name.endswith(ending))
