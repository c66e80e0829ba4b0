"""A loop without a framework for `tp.sweep`: the process of its points imports NumPy alone."""

import os
import time

import numpy as np


def added(size=10, kind="sound"):
    """Return the model and the data of a loop without a framework; some kinds fail in ways of their own."""
    if kind == "ends":
        os._exit(3)
    if kind == "hangs":
        time.sleep(600)
    if kind == "wrong":
        return 5
    if kind == "large":
        np.ones(1 << 50, np.uint8)
    if kind == "raises":
        raise ValueError("no such\nkind")
    return {"sum": 0.0}, [] if kind == "empty" else [np.ones(size)]


def add(model, batch):
    """Take a step of the loop."""
    model["sum"] += float(batch.sum())
    return model["sum"]
