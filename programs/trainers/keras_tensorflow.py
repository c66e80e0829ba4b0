"""Train the model of `keras_fit` on TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from programs.trainers import keras_fit


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    keras_fit.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
