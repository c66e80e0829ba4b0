"""Analysis of phases and hosts: advice, comparison of two runs, quality, rooflines, stragglers."""

from tpunb.analysis import machine as machine
from tpunb.analysis.account_metrics import account_metrics
from tpunb.analysis.advice import ACCOUNT_RULES, HEADROOM_RULES, HOST_RULES, RULES, SCALE_RULES, Rule, advise
from tpunb.analysis.compare import compare
from tpunb.analysis.goodput import goodput
from tpunb.analysis.history import runs
from tpunb.analysis.phase_metrics import phase_metrics
from tpunb.analysis.quality import assess, distinguishing_ops, label_agreement, stability
from tpunb.analysis.roofline import roofline
from tpunb.analysis.scale_metrics import weight_update_ps
from tpunb.analysis.stragglers import hosts
from tpunb.analysis.verdict import Verdict, verdict
from tpunb.frames.hardware import DEVICES, Device, device

__all__ = [
    "ACCOUNT_RULES",
    "DEVICES",
    "HEADROOM_RULES",
    "HOST_RULES",
    "RULES",
    "SCALE_RULES",
    "Device",
    "Rule",
    "Verdict",
    "account_metrics",
    "advise",
    "assess",
    "compare",
    "device",
    "distinguishing_ops",
    "goodput",
    "hosts",
    "label_agreement",
    "phase_metrics",
    "roofline",
    "runs",
    "stability",
    "verdict",
    "weight_update_ps",
]
