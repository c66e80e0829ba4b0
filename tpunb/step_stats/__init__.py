"""Reduce events to statistics per step."""
