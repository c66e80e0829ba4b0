"""Simulated runs and pods whose phases, faults and costs are known, for the tests and the benchmarks.

All randomness is seeded. Scripts in ``benchmarks/`` and the tests import the modules by name, for example
``from simulate.pod import Fault, pod``.
"""
