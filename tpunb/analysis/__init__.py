"""Analysis of phases: advice, comparison of two runs, quality, rooflines."""

from tpunb.analysis.account_metrics import account_metrics
from tpunb.analysis.advice import ACCOUNT_RULES, RULES, Rule, advise
from tpunb.analysis.compare import compare
from tpunb.analysis.goodput import goodput
from tpunb.analysis.phase_metrics import phase_metrics
from tpunb.analysis.quality import assess, distinguishing_ops, label_agreement, stability
from tpunb.analysis.roofline import roofline, what_if
from tpunb.frames.hardware import DEVICES, Device, device

__all__ = [
    "ACCOUNT_RULES",
    "DEVICES",
    "RULES",
    "Device",
    "Rule",
    "account_metrics",
    "advise",
    "assess",
    "compare",
    "device",
    "distinguishing_ops",
    "goodput",
    "label_agreement",
    "phase_metrics",
    "roofline",
    "stability",
    "what_if",
]
