"""Advice for each phase and for the run, ranked by the time it would save."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.analysis.calls import call_metrics
from tpunb.analysis.goodput import Goodput, goodput
from tpunb.analysis.metrics import READS, account_metrics, phase_metrics, scale_metrics, traits
from tpunb.analysis.roofline import Roofline, roofline
from tpunb.analysis.run import Run, loaded
from tpunb.analysis.run import phases as phases_of
from tpunb.analysis.stragglers import Hosts, slow_ranks
from tpunb.analysis.time_line import FEWEST_TRACED
from tpunb.costs.torch_cost import KINDS
from tpunb.errors import wrong_type
from tpunb.frames import Phases
from tpunb.frames.op_matrix import distinct_ops
from tpunb.text import cut, duration, percent, plain, short, short_time

_HIGH = 0.7  # share of MXU peak or HBM bandwidth that XProf's smart suggestions call high
_LOW = 0.5  # and low
_COUNTED = 0.9  # share of busy time with known FLOPs below which utilisation is a lower bound
_LEAST_SAVING = 0.01  # share of all step time, or of wall time: advice that saves less is left out


@dataclass(frozen=True)
class Rule:
    """One piece of advice, and when to give it.

    Its expressions are over :func:`tpunb.analysis.metrics.phase_metrics`, those of `ACCOUNT_RULES` over
    :func:`tpunb.analysis.metrics.account_metrics`. Unknown metrics are null, and a rule that needs one of them
    does not apply.

    Parameters
    ----------
    name
        Name of the rule.
    when
        Condition.
    saves
        Largest share of the phase's time, or of the run's wall time, that it could save; null if unknown.
    sentence
        Observation: a format of the metrics, with one base for its percentages.
    action
        What to try, in the imperative.
    source
        Origin of the rule and of its threshold.
    account
        Account of ``tpunb.schema.ACCOUNTS`` whose time it saves, if it is of one.
    actions
        What to try instead, by the value of the metric `by`, or by the framework of the run.
    by
        Name of a metric.
    """

    name: str
    when: pl.Expr
    saves: pl.Expr
    sentence: str
    action: str
    source: str
    account: str | None = None
    actions: Mapping[str, str] = field(default_factory=dict)
    by: str = "data"

    @property
    def needs(self) -> list[str]:
        """Names of the metrics in its expressions.

        >>> RULES[0].needs
        ['crowding', 'input']
        """
        return sorted({*self.when.meta.root_names(), *self.saves.meta.root_names()})


_TUNE = "prefetch, map in parallel, cache: `data = tp.tune(data).apply(data)`, or in a notebook %%tpupoint --tune"
_OF_INPUT = {
    "tf.data": _TUNE,
    "Python tf.data": f"{_TUNE}, and write in TensorFlow's operations what runs in Python, one call at a time; or "
    "store what it returns",
    "tuned tf.data": "the pipeline is tuned already: store prepared data (Dataset.save, TFRecord), use more processors",
    "arrays": "use larger batches, or run more steps per call: `model.compile(..., steps_per_execution=16)`",
    "PyDataset": "give it workers (workers=, use_multiprocessing=, max_queue_size=), read more per batch at once",
    "generator": "make batches in a keras.utils.PyDataset or a tf.data.Dataset, which prepare them ahead of the steps",
    "DataLoader": "give the DataLoader workers: `DataLoader(..., num_workers=2, persistent_workers=True)`",
    "DataLoader with workers": "give it more workers (num_workers=), store prepared items, transform whole batches",
    "tuned DataLoader": "its workers are tuned already: store prepared items, use more processors",
    "TensorDataset": "take batches of its tensors by index (x[order[i:i + n]]): a DataLoader reads its rows one by one",
    "Grain": "give Grain threads: `ds.to_iter_dataset(grain.ReadOptions(num_threads=16, prefetch_buffer_size=500))`",
    "datasets": "read through a DataLoader with num_workers=, map once and keep the result (Dataset.map, save_to_disk)",
}
"""What to do about slow input: the parameters are those of the documentation of each."""
_FEWER_FITS = "train more epochs in one fit; or pass a tf.data.Dataset with options.autotune.enabled = False"


def _share(
    name: str, least: float, sentence: str, action: str, source: str, *, metric: str = "", **options: Any
) -> Rule:
    """Return a rule for a share of step time above `least` that could all be saved."""
    share = pl.col(metric or name)
    return Rule(name, share > least, share, sentence, action, source, **options)


def _rare(name: str, sentence: str, action: str, source: str) -> Rule:
    """Return a rule for work of some steps that takes over 1 % of all step time."""
    when = pl.col(name) * pl.col("share") > 0.01
    return Rule(name, when=when, saves=pl.col(name), sentence=sentence, action=action, source=source)


_ONCE = "compile once: make functions outside of the loop, use few shapes (padding, buckets), pass no Python numbers"
_LONGER = "account of tp.goodput; longer than training is ours"
_mxu, _hbm = pl.col("mxu"), pl.col("hbm")
_to_high = pl.col("busy") * (1 - _mxu / _HIGH)  # the same work at a high utilisation

RULES = (
    Rule(
        "input",
        when=pl.col("input") * (1 - pl.col("crowding")) > 0.1,  # on a full machine a part of it waits for a processor
        saves=pl.col("input"),
        sentence="Waiting for input takes {input} of the phase's step time",
        action="prepare batches in parallel and ahead of the steps, cache what every epoch reads",
        source="TPUPoint VI.B, observations 3 and 4; over 10 % of step time: XProf's InputBoundRule",
        account="data loading",
        actions=_OF_INPUT,
    ),
    _share(
        "idle",
        0.1,
        sentence="The device is idle for {idle} of the phase's step time {idle_cause}",
        action="run more steps per call, fetch fewer values on the host",
        actions={
            "Keras": "run more steps per call: `model.compile(..., steps_per_execution=16)`",
            "JAX": "run more steps per call (lax.scan), fetch fewer values on the host",
            "PyTorch": "launch fewer, larger kernels (torch.compile, CUDA graphs), fetch fewer values on the host",
        },
        source="TPUPoint VI.B, Figure 10: 38.90 % (v2), 43.53 % (v3); over 10 %: XProf's TensorCoreIdleBoundRule",
        account="device idle",
    ),
    _share(
        "reads",
        READS,
        sentence="The host waits for the device in {reads_op}, and launches its next work late: the device is idle for "
        "{reads} of the phase's step time",
        action="read what the device computes in fewer steps, or one step later",
        actions={"PyTorch": "call loss.item(), float(loss), print or .cpu() in fewer steps, or one step later"},
        source="HTA's host wait, up to the time that the host waited before; 5 % is ours",
        account="device idle",
    ),
    _share(
        "formatting",
        0.1,
        sentence="Data formatting takes {formatting} of the phase's step time, mostly {formatting_op}",
        action="use one layout throughout, batches and features in multiples of 8 and 128, fewer transposes",
        source="TPUPoint VI.B, Table II; multiples: https://cloud.google.com/tpu/docs/performance-guide; 10 % is ours",
    ),
    _share(
        "copies",
        0.1,
        sentence="Waiting for copies between memories takes {copies} of the phase's step time, mostly {copies_op}",
        action="offload less to the host, keep on the device what every step uses, or start its copies earlier",
        source="XLA's copy-done ends an asynchronous copy; over 10 %: as XProf for async-done",
    ),
    _share(
        "outfeed",
        0.1,
        sentence="Outfeed takes {outfeed} of the phase's step time",
        action="write summaries and metrics in fewer steps, make fewer host calls",
        source="TPUPoint VI.B, Table II: OutfeedDequeueTuple; 10 % as for input",
    ),
    _share(
        "transfer",
        0.1,
        sentence="Transfers between host and device that no computation hides take {transfer} of the phase's step time",
        action="make fewer and larger transfers, prefetch to the device, leave on it what the host does not need",
        source="TPUPoint VI.B, observation 4; XProf's DataTransferBoundRule; 10 % as for input",
        account="device idle",
    ),
    _share(
        "collectives",
        0.3,
        sentence="Collectives that no computation hides take {collective} of the phase's step time",
        action="use larger batches per device, bfloat16 gradients, collectives behind computation; find slow devices",
        source="over 30 % of step time: XProf's CollectiveBoundRule",
        metric="collective",
    ),
    _share(
        "callbacks",
        0.05,
        sentence="Callbacks to Python take {callbacks} of the phase's step time, mostly {callbacks_op}",
        action="remove debug_print, py_function and io_callback from the step, or run them in few steps",
        source="over 5 % of step time: XProf's DebugPrintRule",
    ),
    _share(
        "recompile",
        0.05,
        sentence="Recompilation after the first step takes {recompile} of the phase's step time",
        action=_ONCE,
        source="https://www.tensorflow.org/guide/function, on retracing; 5 % is ours",
    ),
    Rule(
        "compile",
        when=pl.col("compile") > 0.1,
        saves=pl.col("compiled_ps") / pl.col("typical_ps"),
        sentence="Compilation takes {compiled_ps}",
        action="enable a persistent compilation cache; this cost is paid once per run",
        actions={
            "JAX": "keep programs: `jax.config.update('jax_compilation_cache_dir', 'compiled')`; paid once per run"
        },
        source="https://docs.jax.dev/en/latest/persistent_compilation_cache.html; 10 % is ours",
        account="program startup",
    ),
    _rare(
        "checkpoint",
        sentence="Saving checkpoints takes {checkpoint} of the phase's step time",
        action="save less often, or in the background (asynchronous checkpoints, such as those of Orbax)",
        source="https://orbax.readthedocs.io/en/stable/guides/checkpoint/async_checkpointing.html; 1 % is ours",
    ),
    _rare(
        "summary",
        sentence="Writing summaries takes {summary} of the phase's step time",
        action="write summaries less often, with fewer histograms and images",
        source="TPUPoint VI.B, observation 3; 1 % of all step time is ours",
    ),
    Rule(
        "memory",
        when=(_hbm > _HIGH) & (_mxu < _LOW),
        saves=_to_high,
        sentence="Memory-bound: {hbm} of HBM bandwidth, but {mxu} of MXU peak used",
        action="use bfloat16, fewer and larger fusions, less rematerialisation, shapes in multiples of 8 and 128",
        source="HBM bandwidth over 70 % and MXU under 50 %: XProf's MemoryBoundRule",
    ),
    Rule(
        "batch",
        when=(_mxu < _LOW) & (_hbm < _LOW) & (pl.col("any_idle") < 0.1) & (pl.col("waits") < 0.1),
        saves=_to_high,
        sentence="Not input-bound, but {mxu} of MXU peak and {hbm} of HBM bandwidth used",
        action="use larger batches, in multiples of 8 and 128",
        source="TPUPoint VI.B, Figure 11: 22.72 % on TPUv2, 11.34 % on TPUv3; both under 50 %: XProf's latency bound",
    ),
    _share(
        "stall",
        0.1,
        sentence="Its steps run the same {stalled_side} operations as those of {twin}, but take {step_ps} instead of "
        "{twin_ps}; {stall_ps} of this is {stalled}",
        action="check the input of these steps: the end of a shuffle buffer, slow files, other work on the host",
        source="TPUPoint VI.C, observation 6: the bottleneck changes with the input; 10 % is ours",
    ),
    Rule(
        "unseen",
        when=(pl.col("full") == 0) & (pl.col("phase") >= 0),  # outliers by the clock are known by their reason
        saves=pl.lit(None, pl.Float64),
        sentence="No step of it was traced in full",
        action="capture longer or more windows: tpunb.Schedule(window=..., every=..., budget=...)",
        source="a step's metrics are known if a window holds all of it",
    ),
)
"""Rules for phases. New advice needs a rule here and nothing else, unless it needs a new metric."""

_SOURCE = "Williams, Waterman, Patterson: Roofline, 2009; 20 % is ours"


def _headroom_rule(bound: str, action: str) -> Rule:
    """Return a rule for device time above that at the roof, where one peak is the roof of most of it."""
    headroom, busy = pl.col("headroom"), pl.col("busy")
    when = (pl.col("bound") == bound) & (headroom > 0.2)
    sentence = f"Its device operations could save {{headroom}} of their self time at the roof, mostly that of {bound}"
    return Rule(f"{bound} headroom", when, busy * headroom, sentence, action, _SOURCE)


HEADROOM_RULES = (
    _headroom_rule("compute", "use larger batches, bfloat16, dimensions in multiples of the matrix unit's"),
    _headroom_rule("memory", "fuse operations (compile the step), use smaller data types, reuse what is read"),
)
"""Rules for phases with a roofline: they also have the metrics ``bound`` and ``headroom``, a share of self time."""


def _call_rule(fault: str, sentence: str, action: str, source: str) -> Rule:
    """Return a rule for a fault of one call, or of all elementwise ones."""
    what = (
        "" if fault in ("unfused", "recomputation") else "{operator} of {operands} takes {time} of the phase's {base}"
    )
    return Rule(fault, pl.col("fault") == fault, pl.col("gain"), what + sentence, action, source)


_ROOF = ", {times} times its time at the roof: "
_TILES = "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication: tiles, alignment"
_CONVOLUTIONS = "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional"

CALL_RULES = (
    _call_rule(
        "few tiles",
        f"{_ROOF}its result has few tiles, {{tiles}} of 128 x 128 for {{units}} compute units",
        "use larger batches, or split the sum over the inner dimension (split-k; torch.compile with max-autotune)",
        _TILES,
    ),
    _call_rule(
        "odd sizes",
        f"{_ROOF}its sizes are misaligned, {{odd}} elements are no multiple of 16 bytes",
        "pad the dimension to a multiple of 8 (16-bit types) or 4 (f32), of 64 at best",
        _TILES,
    ),
    _call_rule(
        "thin product",
        f"{_ROOF}it is tall and skinny, with {{smallest}} rows or columns, and reads its factors for little work",
        "use larger batches, join products with a common factor (as query, key and value in one)",
        _TILES,
    ),
    _call_rule(
        "transposed convolution",
        f"{_ROOF}it is a transposed convolution",
        "use torch.channels_last and 16-bit types, or upsample and convolve instead",
        _CONVOLUTIONS,
    ),
    _call_rule(
        "depthwise convolution",
        f"{_ROOF}it is a depthwise convolution, each of {{channels}} channels on its own",
        "use torch.channels_last, fuse it with its neighbours (torch.compile), or use groups of several channels",
        _CONVOLUTIONS,
    ),
    _call_rule(
        "small images",
        f"{_ROOF}it convolves {{channels}} channels at {{positions}} positions of each small image",
        "use larger batches, torch.channels_last and 16-bit types",
        _CONVOLUTIONS,
    ),
    _call_rule(
        "short attention",
        f"{_ROOF}its sequences are short, {{length}} positions, and each call lasts {{call_ps}}",
        "use larger batches, pack several sequences into one, or launch by CUDA graphs (mode='reduce-overhead')",
        "ours: of up to 512 positions a kernel has few tiles a head",
    ),
    _call_rule(
        "long attention",
        f"{_ROOF}its sequences are long, {{length}} positions",
        "try another backend of it (torch.nn.attention.sdpa_kernel), a causal or local mask (flex_attention)",
        "ours: from 4096 positions products outweigh all else, so that the efficiency is that of the kernel",
    ),
    _call_rule(
        "sparse experts",
        ": {each} rows for each of its experts, whose weights are read for few tokens",
        "use larger batches, fewer experts or more of them for each token, or spread the experts over devices",
        "ours: under half a tile of 128 rows",
    ),
    _call_rule(
        "slow memory",
        f"{_ROOF}it computes little for each byte and uses little of the memory bandwidth",
        "use contiguous operands of one layout, smaller data types, or fuse it with its neighbours (torch.compile)",
        "ours: under 50 % of the roof, as for a phase",
    ),
    _call_rule(
        "recomputation",
        "Computing the forward pass again for the backward pass takes {time} of the phase's {base}",
        "if memory is left, keep the activations of some modules: checkpoint fewer, or selectively "
        "(create_selective_checkpoint_contexts)",
        "https://docs.pytorch.org/docs/stable/checkpoint.html; 10 % is ours",
    ),
    _call_rule(
        "unfused",
        "Elementwise operations that run one by one take {time} of the phase's {base}, most of it {operator}",
        "fuse them (torch.compile, fused optimizers and activations)",
        "ours: 20 % of the base; a pair that is fused reads and writes about half",
    ),
)
"""Rules for calls of PyTorch's operators with their shapes: metrics of `tpunb.analysis.calls`, of one phase each."""

_explained = pl.sum_horizontal("anew", "ended", "starting", "restarting")
_waiting = pl.col("loading") - _explained
_again = pl.max_horizontal("retracing", "rebuilding")
_every, _best = pl.col("save_every_ps"), pl.col("save_best_ps")
_YOUNG = "the square root of 2 x save time x time between failures: Young 1974, https://doi.org/10.1145/361147.361115"

ACCOUNT_RULES = (
    Rule(
        "slow input",
        when=_waiting * (1 - pl.col("crowding")) > 0.1,
        saves=_waiting,
        sentence="Waiting for input takes {loading} of wall time",
        action="prepare batches in parallel and ahead of the steps, cache what every epoch reads",
        source="account of tp.goodput; 10 % as for the input of a phase",
        account="data loading",
        actions=_OF_INPUT,
    ),
    Rule(
        "new iterators",
        when=pl.col("anew") > 0.05,
        saves=pl.col("anew"),
        sentence="At the end of each epoch Keras makes the iterator of its data anew, which takes {anew} of wall time",
        action="repeat the data and give their length (data.repeat(), steps_per_epoch=): the iterator is kept then",
        source="https://keras.io/api/models/model_training_apis: fit, steps_per_epoch; 5 % is ours",
        account="data loading",
    ),
    Rule(
        "ended iterators",
        when=pl.col("ending") > 0.05,
        saves=pl.col("ending"),
        sentence="Iterators of tf.data that end wait for the thread of its autotuning, which takes {ending} of wall "
        "time",
        action="iterate once over data.repeat(epochs); or switch autotuning off (options.autotune.enabled = False)",
        source="stacks of threads: RootDataset::Iterator waits for Model::OptimizeLoop (TensorFlow 2.21); 5 % is ours",
        account="data loading",
        actions=dict.fromkeys(("arrays", "generator", "PyDataset"), _FEWER_FITS),
    ),
    Rule(
        "restarted workers",
        when=pl.col("restarting") > 0.05,
        saves=pl.col("restarting"),
        sentence="The workers of a DataLoader are started anew in each of its passes, which takes {restarting} of wall "
        "time",
        action="keep the workers of the DataLoader: `DataLoader(..., persistent_workers=True)`",
        source="https://docs.pytorch.org/docs/stable/data.html: persistent_workers; 5 % is ours",
        account="data loading",
    ),
    Rule(
        "program code",
        when=pl.col("code") > 0.1,
        saves=pl.col("code"),
        sentence="Code of the program beside its computation takes {code} of wall time",
        action="do it less often, in another thread, or on the device",
        source="account of tp.goodput; 10 % as for input",
        account="program code",
        actions={
            "thread": "it waits for another thread or process: make that faster, or share its work among processes"
        },
        by="waits",
    ),
    Rule(
        "garbage collection",
        when=pl.col("collecting") > 0.05,
        saves=pl.col("collecting"),
        sentence="The garbage collection of Python takes {collecting} of wall time, in steps that are slower for it",
        action="call `gc.freeze()` once all is built; collect by hand, between epochs (gc.disable, gc.collect)",
        source="https://docs.python.org/3/library/gc.html: freeze; 5 % is ours",
        account="step time deviation",
        actions={"program": "remove gc.collect() from the loop: what nothing refers to is freed without it"},
        by="collects",
    ),
    Rule(
        "slowing steps",
        when=pl.col("slowing") > 0.1,
        saves=pl.col("slowing"),
        sentence="Steps take longer and longer, by {slowing} of wall time than as in the first quarter of them",
        action="find what grows with each step: a list, an array or a file that each step copies, reads or writes",
        source="ours: processor time of steps rises with their number, to twice; 10 % as for input",
        actions={
            "PyTorch": "find what grows with each step, if not its episodes: a graph that is kept (`hidden = hidden."
            "detach()`, `total += loss.item()`), a list or an array that each step copies"
        },
    ),
    Rule(
        "growing memory",
        when=pl.col("growth") > 0,
        saves=pl.lit(None, pl.Float64),
        sentence="The memory of the process grows steadily, by {growth} GiB an hour, to {memory} GiB",
        action="keep numbers, not tensors or arrays, of what each step returns (float(loss)); close figures and files",
        source="ours: growth in three of four seconds without a window, and by a fifth, after a third of the steps",
    ),
    Rule(
        "slow callbacks",
        when=(pl.col("callbacks") > 0.05) & pl.col("callback").is_not_null(),
        saves=pl.col("callbacks"),
        sentence="Callbacks take {callbacks} of wall time, mostly {callback}: {callback_ps}",
        action="call it less often, or do its work in another thread or after training",
        actions={"model": "call it less often, and the model in it on whole batches, not on each example"},
        by="calls",
        source="account of tp.goodput; 5 % as for callbacks of a step",
        account="callbacks",
    ),
    Rule(
        "checkpoint saves",
        when=pl.col("unplanned") > 0.01,
        saves=pl.col("unplanned"),
        sentence="Saving checkpoints takes {unplanned} of wall time: {save_ps} each, once in {save_every_ps}",
        action="save less often or in the background; advise(phases, failure_every_h=...) computes the best interval",
        source="account of tp.goodput; 1 % as for checkpoints of a phase",
        account="checkpoint save",
        actions={"background": "save less often, and wait for a save only before the next one (wait_until_finished)"},
        by="saves",
    ),
    Rule(
        "checkpoint interval",
        when=(_every < _best / 1.5) & (pl.col("saving") > 0.001),
        saves=pl.col("saving") * (1 - _every / _best),
        sentence="Checkpoints are saved once in {save_every_ps}, each in {save_ps}; least time is lost with one in "
        "{save_best_ps}",
        action="save less often",
        source=_YOUNG,
    ),
    Rule(
        "rare checkpoints",
        when=_every > _best * 1.5,
        saves=pl.lit(None, pl.Float64),
        sentence="Checkpoints are saved once in {save_every_ps}; with these failures least time is lost with one in "
        "{save_best_ps}",
        action="save more often",
        source=_YOUNG,
    ),
    Rule(
        "retracing",
        when=(pl.col("retracing") > 0.02) & pl.col("retraced").is_not_null(),
        saves=pl.col("retracing"),
        sentence="Tracing and compiling again what was traced before takes {retracing} of wall time, mostly "
        "{retraced}, for {reason}",
        action=_ONCE,
        source="https://www.tensorflow.org/guide/function, on retracing; 2 % is ours",
        account="program startup",
        actions={
            "function": "wrap the function in jit or tf.function once, outside of the loop, and call that",
            "value": "pass the Python value as a tensor or an array",
            "shape": "use batches of one shape, or of few (drop_remainder, padding, buckets of lengths)",
            "growth": "collect values in a list (`losses.append(loss)`), not in an array that grows",
        },
        by="changed",
    ),
    Rule(
        "rebuilt models",
        when=pl.col("rebuilding") > 0.1,
        saves=pl.col("rebuilding"),
        sentence="The step of {models} models is traced and compiled, which takes {rebuilding} of wall time after the "
        "first",
        action="build and compile one model, and set its weights (get_weights, set_weights) for each training",
        source="https://keras.io/api/models/model_training_apis: compile() makes a new step; 10 % is ours",
        account="program startup",
    ),
    Rule(
        "imports",
        when=pl.col("avoidable") > 0.1,
        saves=pl.col("avoidable"),
        sentence="Importing modules other than the framework takes about {avoidable} of wall time",
        action="import only what the program uses; a longer run pays this once, too",
        source="samples of the thread that trains; 10 % is ours",
        account="preparation",
    ),
    Rule(
        "eager steps",
        when=pl.col("eager").is_not_null() & (pl.col("stepping") > 0.3 * (1 - pl.col("profiler"))),
        saves=pl.col("dispatching"),
        sentence="{eager} runs each operation of a step on its own. Steps take {stepping} of wall time",
        action="compile the whole step",
        source="https://www.tensorflow.org/guide/function; docs.jax.dev, Just-in-time compilation; 30 % of what "
        "the profiler leaves is ours",
        actions={
            "Keras": "compile the model without run_eagerly=True, and leave tf.config.run_functions_eagerly at False",
            "TensorFlow": "compile the whole step, the optimizer's apply within: `step = tf.function(step)`",
            "JAX": "compile the whole step, the update of the weights within: `step = jax.jit(step)`",
            "PyTorch": "compute on batches, not on each example (torch.vmap), or compile the step (torch.compile)",
        },
        by="eager",
    ),
    Rule(
        "debugging",
        when=pl.col("debug").is_not_null(),
        saves=pl.lit(None, pl.Float64),
        sentence="{debug} is on, and checks each operation",
        action="turn it off once the fault is found",
        source="https://docs.pytorch.org/docs/stable/autograd.html: anomaly detection",
    ),
    Rule(
        "uneven ranks",
        when=pl.col("peers") * (1 - pl.col("crowding")) > 0.1,
        saves=pl.col("peers"),
        sentence="Waiting for other ranks takes {peers} of wall time",
        action="give all ranks equal work in each step: shards and batches of one size, and what one rank does alone "
        "(saves, evaluation, logs) in the background",
        source="account of tp.goodput; 10 % as for input",
        account=schema.PEERS,
    ),
    Rule(
        "preparation",
        when=pl.col("preparation") - pl.col("importing").fill_null(0) > pl.col("productive"),
        saves=pl.col("preparation") - pl.col("importing").fill_null(0),
        sentence="Preparation takes {preparation_ps}, longer than the {productive_ps} of productive training",
        action="cache prepared data, build the model once, train longer per run",
        source=_LONGER,
        account="preparation",
    ),
    Rule(
        "long startup",
        when=(pl.col("first") > pl.col("productive")) & (pl.col("first") > 2 * _again),
        saves=pl.col("first"),
        sentence="Tracing and compiling for the first time takes {first_ps}, longer than the {productive_ps} of "
        "productive training",
        action="enable the persistent compilation cache, load data while programs compile, train longer per run",
        actions={
            **dict.fromkeys(
                ("Keras", "TensorFlow"), "train longer per run: TensorFlow keeps no cache of what it traces"
            ),
            "JAX": "keep programs: `jax.config.update('jax_compilation_cache_dir', 'compiled')`, train longer per run",
        },
        source=_LONGER,
        account="program startup",
    ),
    Rule(
        "long evaluation",
        when=pl.col("evaluation") > pl.col("productive"),
        saves=pl.col("evaluation"),
        sentence="Evaluation takes {evaluation_ps}, longer than the {productive_ps} of productive training",
        action="evaluate every few epochs, or on fewer batches",
        actions={
            "predict": "call the model on its batch, not predict, which sets up anew: `model(x, training=False)`",
            "Keras": "evaluate every few epochs, or on fewer batches: `model.fit(..., validation_freq=5)`",
        },
        by="evaluates",
        source=_LONGER,
        account="evaluation",
    ),
)
"""Rules for the accounts of the run."""

_PODS = "Kumar et al.: Scale MLPerf-0.6 models on Google TPU-v3 Pods, 2019, https://arxiv.org/abs/1909.09756"

SCALE_RULES = (
    Rule(
        "replicated update",
        when=(pl.col("update") > 0.05) & (pl.col("replicas") > 1),
        saves=pl.col("update") * (1 - 1 / pl.col("replicas")),
        sentence="The weight update takes {update} of the phase's step time ({update_source}) on each of {replicas} "
        "devices that reduce their gradients",
        action="if they hold equal weights, shard the update and its moments over them (as ZeRO and FSDP do)",
        source=f"{_PODS}: weight-update sharding; 5 % is ours",
    ),
    Rule(
        "undistributed evaluation",
        when=(pl.col("main") == "eval") & (pl.col("devices") < pl.col("train_devices")),
        saves=1 - pl.col("devices") / pl.col("train_devices"),
        sentence="Evaluation uses {devices} of the {train_devices} devices that train",
        action="distribute the evaluation over all devices, with its last batch padded",
        source=f"{_PODS}: distributed evaluation",
        account="evaluation",
    ),
    Rule(
        "small batch per device",
        when=(pl.col("intensity") < pl.col("ridge")) & (pl.col("device_batch") <= 8) & (pl.col("devices") > 1),
        saves=pl.lit(None, pl.Float64),
        sentence="With {device_batch} examples per device its operations do {intensity} FLOP/byte, left of the ridge "
        "at {ridge}",
        action="use larger batches, or partition each example over several devices (spatial or tensor partitioning)",
        source=f"{_PODS}: spatial partitioning; 8 examples are ours",
    ),
)
"""Rules for phases of several devices: metrics of :func:`tpunb.analysis.metrics.scale_metrics` too."""

SAME_LINE = "make that line as fast on this rank as on the others: equal shares of data and work, equal machines"
HOST_RULES = (
    Rule(
        "straggling host",
        when=(pl.col("costs") > 0.01) & ~pl.col("has_place"),  # of hosts that tp.hosts names
        saves=pl.col("costs"),
        sentence="Host {host} delays the others by {costs_ps} (cause: {cause})",
        action="replace or repair the host, or give it an equal share of input and work",
        source="tp.hosts: what the job would gain if it came second-last; 1 % is ours",
    ),
    Rule(
        "slow rank",
        when=(pl.col("costs") > 0.01) & pl.col("has_place"),
        saves=pl.col("costs"),
        sentence="The other ranks wait {costs_ps} for {host}, which is at {place} (cause: {cause})",
        action=SAME_LINE,
        source="tp.hosts: as for a straggling host; samples of the threads that train",
        account=schema.PEERS,
    ),
)
"""Rules for the host that delays a job most."""


def advise(
    run: Run, *, failure_every_h: float | None = None, roof: Roofline | None = None, hosts: Hosts | None = None
) -> pl.DataFrame:
    """Return advice on each phase and on the run, most time saved first: ``tpunb.schema.ADVICE``.

    One row per phase and applicable rule of :data:`RULES` and :data:`SCALE_RULES`, and one per call of PyTorch's
    operators to which one of :data:`CALL_RULES` applies, if raw events with shapes were kept. The time saved is an
    upper bound: all of the wait, or all time beyond a high utilisation. Rows of one phase may concern the same time,
    so they do not add up. Metrics are those of the steps traced in full, extrapolated to all steps of the phase; rules
    with unknown metrics do not apply. Host work counts as far as the device idles meanwhile, and in full if nothing is
    known of a device. Phases without metrics come last, with nulls. Outliers count as a phase. Savings under 1 % of
    all step time are left out. Of a capture without steps, advice on calls is of the time of its devices.

    One row per applicable rule of :data:`ACCOUNT_RULES`, without a phase, if the run has a record of its wall time:
    input, callbacks, checkpoints, retracing, rebuilt models, preparation, evaluation (`tp.goodput`). Each saves at most
    the time of its account, and shares are of wall time.

    Observations are those of the paper (VI), thresholds those of XProf's smart suggestions if it has them
    (https://github.com/openxla/xprof, ``convert/smart_suggestion``).

    Parameters
    ----------
    run
        Path of a run, its Profile, Steps or Phases; steps are grouped by the default method.
    failure_every_h
        Mean time between failures of the job in hours: the checkpoint interval is compared with Young's.
    roof
        ``tp.roofline(phases)``: for :data:`HEADROOM_RULES`, whose savings are bounded by its headroom, the measured
        time of weight updates, and the batch per device.
    hosts
        ``tp.hosts(steps)``: for :data:`HOST_RULES`, whose shares are of the step time of the job. By default that of
        ranks whose clocks recorded their waits.

    Raises
    ------
    TypeError
        If `run`, `roof` or `hosts` is something else.
    ValueError
        If `failure_every_h` is not a number above 0.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> print(advise(phases(toy_steps("aaabbb")))["sentence"][0])
    train could save up to 3 ms of 9 ms step time. The device is idle for 50 % of the phase's step time \
without a known cause.
    """
    phases = phases_of(loaded(run, "advise"))
    valid = isinstance(failure_every_h, Real) and not isinstance(failure_every_h, bool)
    if failure_every_h is not None and not (valid and 0 < failure_every_h < math.inf):
        raise ValueError(
            f"The failure_every_h parameter of advise must be a number above 0. Got {failure_every_h!r} instead."
        )
    if roof is not None and not (isinstance(roof, Roofline) and roof.by == "phase"):
        raise wrong_type("advise", "roof", "be a Roofline by phase", roof, hint="tp.roofline(phases)")
    if hosts is not None and not isinstance(hosts, Hosts):
        raise wrong_type("advise", "hosts", "be Hosts", hosts, hint="tp.hosts(steps)")
    run_goodput = None if phases.steps.wall is None else goodput(phases)
    rows = advise_phases(phases, roof, None if run_goodput is None else _idle_in_steps(run_goodput))
    hosts = slow_ranks(phases.steps) if hosts is None else hosts
    if hosts is not None:
        metrics = hosts.frame.filter("named").head(1)
        metrics = metrics.select(
            *("host", "cause", "costs_ps", "place"),
            has_place=pl.col("place").is_not_null(),
            costs=pl.col("costs_ps") / max(hosts.span_ps, 1),
            typical_ps=pl.lit(float(hosts.span_ps)),
            name=pl.lit("The job"),
            phase=pl.lit(None, pl.Int64),
            kinds=pl.lit(None, pl.String),
        )
        rows = _ranked(rows, _applied(HOST_RULES, metrics, hosts.span_ps, "step time"))
    metrics = account_metrics(phases, failure_every_h, run_goodput)
    if metrics.is_empty():
        return rows
    if metrics.select((_waiting < _explained) & (_explained > 0.05)).item():  # the waits of phases have these causes
        rows = rows.filter(pl.col("rule") != "input")
    metrics = metrics.with_columns(phase=pl.lit(None, pl.Int64), typical_ps="wall_ps")
    of_run = _applied(ACCOUNT_RULES, metrics, metrics["wall_ps"].item(), "wall time")
    if "slow rank" in rows["rule"]:  # which makes them uneven
        of_run = of_run.filter(pl.col("rule") != "uneven ranks")
    if "retracing" in of_run["rule"]:  # what phases compile is that
        rows = rows.filter(pl.col("rule") != "recompile")
    return _ranked(rows, of_run)


def _ranked(*rows: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(rows).sort("saves_ps", descending=True, nulls_last=True, maintain_order=True)


def _idle_in_steps(run: Goodput) -> pl.DataFrame:
    """Return (phase, account_ps): time in which the devices idle in steps, without code of the program."""
    inside = run.frame.filter(account="device idle").drop_nulls("phase")
    return inside.group_by("phase").agg(account_ps=pl.col("time_ps").sum())


def advise_phases(phases: Phases, roof: Roofline | None = None, idle: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the advice on phases alone, which costs no account of the run; `idle` is from there."""
    metrics, rules = scale_metrics(phase_metrics(phases), phases, roof), [*RULES, *SCALE_RULES]
    metrics = metrics.with_columns(pl.lit(text, pl.String).alias(name) for name, text in traits(phases.steps).items())
    if idle is not None:
        most = (pl.col("account_ps") / pl.col("typical_ps")).fill_null(0.0)
        metrics = metrics.join(idle, on="phase", how="left", maintain_order="left")
        has_account = pl.col("idle").is_not_null() & (pl.col("full") >= FEWEST_TRACED)
        least = pl.when(has_account).then(pl.min_horizontal("idle", most)).otherwise("idle")
        metrics = metrics.with_columns(idle=least).drop("account_ps")
    if roof is not None:
        headroom = roof.frame.select(name="what", bound="bound", headroom=pl.col("headroom_ps") / pl.col("self_ps"))
        metrics, rules = metrics.join(headroom, on="name", how="left", maintain_order="left"), [*rules, *HEADROOM_RULES]
    run_ps = float(phases.aggregates["dur_ps"].sum())
    rows = _applied(rules, metrics, run_ps, "step time")
    of_pytorch = traits(phases.steps)["framework"] in ("PyTorch", None)
    of_pytorch &= bool(distinct_ops(phases.steps)["category"].cast(pl.String).is_in([*KINDS]).any())
    if roof is None and phases.steps.read_layers is not None and of_pytorch:
        roof = roofline(phases)
    if roof is None:
        return rows
    metrics = metrics.with_columns(base=pl.lit("step time"))
    if (phases.steps.frame["rule"] == "whole").all():  # what surrounds the work on devices is the profiler's
        time = pl.col("typical_ps") * pl.col("busy")
        metrics = metrics.with_columns(base=pl.lit("device time"), typical_ps=time, busy=pl.lit(1.0))
        run_ps = float(metrics["typical_ps"].sum())
    return _ranked(rows, _applied(CALL_RULES, call_metrics(metrics, roof), run_ps, metrics["base"][0]))


def _applied(rules: Sequence[Rule], metrics: pl.DataFrame, run_ps: float, base: str) -> pl.DataFrame:
    rows, whole = [], f"{duration(run_ps)} {base}"
    applies = metrics.select(
        (rule.when & pl.all_horizontal(pl.col(rule.needs).is_not_null())).alias(str(number))
        for number, rule in enumerate(rules)
    )
    for number, rule in enumerate(rules):
        if not applies[str(number)].any():
            continue
        applied = metrics.with_columns(saves_ps=rule.saves.clip(0, 1) * pl.col("typical_ps"))
        applied = applied.filter(applies[str(number)])
        applied = applied.with_columns(saved=pl.col("saves_ps") / max(run_ps, 1))
        for row in applied.filter((pl.col("saved") >= _LEAST_SAVING).fill_null(True)).iter_rows(named=True):
            saves_ps = None if row["saves_ps"] is None else round(row["saves_ps"])
            keys = (row.get(rule.by) or "", row.get("framework") or "")
            action = next((rule.actions[key] for key in keys if key in rule.actions), rule.action)
            rows.append((row["phase"], rule.name, saves_ps, row["saved"], _sentence(rule, row, whole), action, number))
    frame = pl.DataFrame(rows, schema={**schema.ADVICE, "number": pl.Int64()}, orient="row")
    frame = frame.sort("saves_ps", "phase", "number", descending=[True, False, False], nulls_last=True)
    return schema.check(frame, schema.ADVICE, "advice")


def _sentence(rule: Rule, row: dict[str, Any], whole: str) -> str:
    """Return whose time the advice saves, how much of the `whole`, and the observation."""
    texts = {name: _text(name, value) for name, value in row.items()}
    if "mxu" in texts:  # a lower bound where the FLOPs of some operations are unknown
        counted = row["flops_counted"]
        texts["mxu"] = f"{'at least' if isinstance(counted, float) and counted < _COUNTED else 'only'} {texts['mxu']}"
    kinds = f" ({texts['kinds']})" if row["phase"] == -1 and row["kinds"] else ""
    subject = f"{texts.get('name', 'The run')}{kinds}"
    saved = ":" if row["saves_ps"] is None else f" could save up to {duration(row['saves_ps'])} of {whole}."
    return f"{subject}{saved} {rule.sentence.format(**texts)}."


def _text(name: str, value: object) -> str:
    """Return a metric as text.

    >>> _text("idle", 0.4137), _text("mxu", 4e-6), _text("step_ps", 18_340_000_000)
    ('41.4 %', 'under 0.1 %', '18.3 ms')
    """
    if isinstance(value, str):  # the program's: not to be trusted
        return cut(plain(value))
    if name.endswith("_ps") and isinstance(value, int | float):
        return short_time(value)
    if name in ("growth", "memory") and isinstance(value, float):
        return short(value / 2**30)
    if name in ("intensity", "ridge", "device_batch", "times", "each") and isinstance(value, float):
        return short(value)
    if isinstance(value, float):
        return "under 0.1 %" if 0 < value < 0.0005 else percent(value, None)
    return str(value)
