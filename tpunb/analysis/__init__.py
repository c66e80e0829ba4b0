"""Analysis of phases and hosts: advice, comparison of two runs, quality, rooflines, stragglers."""

from tpunb.analysis import machine as machine
from tpunb.analysis.advice import advise
from tpunb.analysis.causes import CAUSES, Cause, Remedy, cause
from tpunb.analysis.compare import Comparison, compare
from tpunb.analysis.goodput import Goodput, goodput
from tpunb.analysis.history import runs
from tpunb.analysis.job import JobGoodput, categories, job
from tpunb.analysis.phase_metrics import phase_metrics
from tpunb.analysis.quality import assess, distinguishing_ops, label_agreement, stability
from tpunb.analysis.rates import Rates, rates
from tpunb.analysis.report import Report, report
from tpunb.analysis.representatives import Representatives, representative, representatives
from tpunb.analysis.roofline import Roofline, roofline
from tpunb.analysis.run_metrics import account_metrics
from tpunb.analysis.scale_metrics import weight_update_ps
from tpunb.analysis.slowdown import Slowdown, slowdown
from tpunb.analysis.step_trace import StepTrace, open_trace
from tpunb.analysis.storage_benchmark import accelerator_utilisation
from tpunb.analysis.stragglers import Hosts, hosts
from tpunb.analysis.verdict import Verdict, verdict
from tpunb.frames.hardware import DEVICES, Device, device
from tpunb.io.goodput_events import GoodputRecorder

__all__ = [
    "CAUSES",
    "DEVICES",
    "Cause",
    "Comparison",
    "Device",
    "Goodput",
    "GoodputRecorder",
    "Hosts",
    "JobGoodput",
    "Rates",
    "Remedy",
    "Report",
    "Representatives",
    "Roofline",
    "Slowdown",
    "StepTrace",
    "Verdict",
    "accelerator_utilisation",
    "account_metrics",
    "advise",
    "assess",
    "categories",
    "cause",
    "compare",
    "device",
    "distinguishing_ops",
    "goodput",
    "hosts",
    "job",
    "label_agreement",
    "open_trace",
    "phase_metrics",
    "rates",
    "report",
    "representative",
    "representatives",
    "roofline",
    "runs",
    "slowdown",
    "stability",
    "verdict",
    "weight_update_ps",
]
