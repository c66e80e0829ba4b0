"""Train the network of `plain_torch` with two worker processes of the DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from programs.trainers import plain_torch


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    plain_torch.main(arguments, workers=2)


if __name__ == "__main__":
    main(sys.argv[1:])
