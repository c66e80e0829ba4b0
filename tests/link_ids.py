"""Ids of flows and of launches as whole numbers, signed or unsigned, of Python."""

from tpunb.io.event_ids import MULTIPLIER


def flow_id(kind, number):
    return ((kind + 1) * MULTIPLIER + number) % 2**64


def run_launch(run_id, ordinal):
    return (run_id * MULTIPLIER + ordinal + 1) % 2**64
