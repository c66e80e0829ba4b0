"""Advice: what would make each phase faster, by the time it would save."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tpunb import schema
from tpunb.cluster.facts import facts
from tpunb.errors import wrong
from tpunb.frames import Phases
from tpunb.frames.words import cut, plain, short

_HIGH = 0.7  # of the matrix unit or of the memory: XProf's smart suggestions call it high
_LOW = 0.5  # and this low
_LEAST = 0.001  # of the run: what would save less is no advice


@dataclass(frozen=True)
class Rule:
    """One piece of advice, and when to give it.

    Its expressions are over the facts of a phase (:func:`tpunb.cluster.facts.facts`). A fact that is unknown is null,
    and a rule that needs it stays silent.

    Parameters
    ----------
    name
        Of the rule.
    when
        Whether it fires.
    saves
        The share of the phase's time that it would save at most; null where nothing can be said.
    sentence
        What is seen: a format of the facts.
    knob
        What to try.
    source
        Who found that out, and whose threshold it is.
    """

    name: str
    when: pl.Expr
    saves: pl.Expr
    sentence: str
    knob: str
    source: str

    @property
    def needs(self) -> list[str]:
        """The facts that it speaks of.

        >>> RULES[0].needs
        ['input']
        """
        return sorted({*self.when.meta.root_names(), *self.saves.meta.root_names()})


_input, _idle, _mxu, _hbm = (pl.col(name) for name in ("input", "idle", "mxu", "hbm"))
_to_high = pl.col("busy") * (1 - _mxu / _HIGH)  # the work done at a high utilisation

RULES = (
    Rule(
        "input",
        when=_input > 0.1,
        saves=_input,
        sentence="it waits for input {input} of its time",
        knob="prefetch, map and interleave in parallel, cache what every epoch reads again",
        source="TPUPoint VI.B, observations 3 and 4; over 10 % of the step: XProf's InputBoundRule",
    ),
    Rule(
        "idle",
        when=_idle > 0.1,
        saves=_idle,
        sentence="the device idles {idle} of its time, and no known wait explains it",
        knob="more steps a call (Keras' steps_per_execution, a lax.scan), fewer values fetched by the host",
        source="TPUPoint VI.B, Figure 10: 38.90 % (v2), 43.53 % (v3); over 10 %: XProf's TensorCoreIdleBoundRule",
    ),
    Rule(
        "formatting",
        when=pl.col("formatting") > 0.1,
        saves=pl.col("formatting"),
        sentence="it reshapes, transposes and copies {formatting} of its time, most of it in {formatting_op}",
        knob="one layout throughout, batches and features in multiples of 8 and 128, no transposes between layers",
        source="TPUPoint VI.B, Table II; multiples: https://cloud.google.com/tpu/docs/performance-guide; 10 % is ours",
    ),
    Rule(
        "copies",
        when=pl.col("copies") > 0.1,
        saves=pl.col("copies"),
        sentence="the device waits {copies} of its time for copies between memories to end ({copies_op})",
        knob="offload less to the host, keep on the device what every step uses, or start its copies earlier",
        source="XLA's copy-done ends an asynchronous copy; over 10 %: as XProf for async-done",
    ),
    Rule(
        "outfeed",
        when=pl.col("outfeed") > 0.1,
        saves=pl.col("outfeed"),
        sentence="the device hands out data {outfeed} of its time",
        knob="summaries and metrics every so many steps only, fewer host calls",
        source="TPUPoint VI.B, Table II: OutfeedDequeueTuple; 10 % as for input",
    ),
    Rule(
        "transfer",
        when=pl.col("transfer") > 0.1,
        saves=pl.col("transfer"),
        sentence="data between host and device hold it up {transfer} of its time",
        knob="fewer and larger transfers, prefetched to the device; leave on the device what the host need not see",
        source="TPUPoint VI.B, observation 4; XProf's DataTransferBoundRule; 10 % as for input",
    ),
    Rule(
        "collectives",
        when=pl.col("collective") > 0.3,
        saves=pl.col("collective"),
        sentence="its devices exchange data {collective} of their time",
        knob="larger batches a device, gradients in bfloat16, collectives behind computation; look for a slow device",
        source="over 30 % of the step: XProf's CollectiveBoundRule",
    ),
    Rule(
        "callbacks",
        when=pl.col("callbacks") > 0.05,
        saves=pl.col("callbacks"),
        sentence="calls back to Python hold it up {callbacks} of its time, most of it {callbacks_op}",
        knob="no debug_print, py_function or io_callback in the step, or one in many steps",
        source="over 5 % of the step: XProf's DebugPrintRule",
    ),
    Rule(
        "recompile",
        when=pl.col("recompile") > 0.05,
        saves=pl.col("recompile"),
        sentence="it compiles {recompile} of its time in steps that are not the first",
        knob="batches of one shape (drop_remainder, padding, buckets), no Python numbers as arguments",
        source="https://www.tensorflow.org/guide/function, on retracing; 5 % is ours",
    ),
    Rule(
        "compile",
        when=pl.col("compile") > 0.1,
        saves=pl.col("compiled_ps") / pl.col("typical_ps"),
        sentence="it compiles {compiled_ps}, once",
        knob="a cache of compiled programs (JAX: jax_compilation_cache_dir); a longer run needs no more of it",
        source="https://docs.jax.dev/en/latest/persistent_compilation_cache.html; 10 % is ours",
    ),
    Rule(
        "checkpoint",
        when=pl.col("checkpoint") * pl.col("share") > 0.01,
        saves=pl.col("checkpoint"),
        sentence="its steps save checkpoints, which costs {checkpoint} of their time",
        knob="save less often, or in the background (Orbax' AsyncCheckpointer, Keras' OrbaxCheckpoint)",
        source="https://orbax.readthedocs.io/en/stable/guides/checkpoint/async_checkpointing.html; 1 % is ours",
    ),
    Rule(
        "summary",
        when=pl.col("summary") * pl.col("share") > 0.01,
        saves=pl.col("summary"),
        sentence="its steps write summaries, which costs {summary} of their time",
        knob="summaries less often, and fewer histograms and images",
        source="TPUPoint VI.B, observation 3; 1 % of the run is ours",
    ),
    Rule(
        "memory",
        when=(_hbm > _HIGH) & (_mxu < _LOW),
        saves=_to_high,
        sentence="its memory works at {hbm} of the bandwidth, its matrix unit at {mxu}, below the 70 % called high",
        knob="bfloat16, fewer and larger fusions, less rematerialisation, shapes in multiples of 8 and 128",
        source="memory over 70 % and matrix unit under 50 %: XProf's MemoryBoundRule",
    ),
    Rule(
        "batch",
        when=(_mxu < _LOW) & (_hbm < _LOW) & (pl.col("any_idle") < 0.1) & (pl.col("waits") < 0.1),
        saves=_to_high,
        sentence="it waits for nothing, yet uses its memory at {hbm} and its matrix unit at {mxu}: 70 % is called high",
        knob="larger batches, in multiples of 8 and 128",
        source="TPUPoint VI.B, Figure 11: 22.72 % on TPUv2, 11.34 % on TPUv3; both under 50 %: XProf's latency bound",
    ),
    Rule(
        "stall",
        when=pl.col("stall") > 0.1,
        saves=pl.col("stall"),
        sentence="on the {stalled_side} its steps run the operations of {twin}, but take {step_ps} instead "
        "of {twin_ps}, {stall_ps} of it {stalled}",
        knob="what the input reads then: the end of a shuffle buffer, slow files, a host that does other things too",
        source="TPUPoint VI.C, observation 6: the bottleneck changes with the input; 10 % is ours",
    ),
    Rule(
        "unseen",
        when=pl.col("full") == 0,
        saves=pl.lit(None, pl.Float64),
        sentence="no window saw a step of it in full: it is known by the clock alone",
        knob="longer or more windows: tpunb.recorder.Schedule(window=..., every=..., budget=...)",
        source="a step's figures are known where a window holds the whole of it",
    ),
)
"""All advice there is. A rule is added here, and nowhere else, unless it needs a fact that nobody gathers."""


def advise(phases: Phases) -> pl.DataFrame:
    """Return what would make each phase faster, most time saved first: ``tpunb.schema.ADVICE``.

    A row a (phase, rule of :data:`RULES`) that fires. What a rule would save is an upper bound: all of the wait that
    it speaks of, or all time beyond a high utilisation. Rows of one phase may speak of the same time, so they do not
    add up. Figures are those of the steps seen in full, and hold for as many such steps as the phase has; where the
    profiler does not tell a figure, the rules that need it stay silent. What the host does counts as far as the device
    idles meanwhile, and in full where nothing is known of a device. A phase of which nothing is known comes last, with
    nulls. Noise is advised on as a phase is. What would save less than a thousandth of the run is left out.

    Observations are those of the paper (VI), thresholds those of XProf's smart suggestions where it has them
    (https://github.com/openxla/xprof, ``convert/smart_suggestion``).

    Parameters
    ----------
    phases
        Of a run.

    Raises
    ------
    TypeError
        When `phases` is something else.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> print(advise(phases(toy_steps("aaabbb")))["sentence"][0])
    Phase 1 (train, 66.7 % of the run): the device idles 50 % of its time, and no known wait explains it: up to 33.3 % \
of the run.
    """
    if not isinstance(phases, Phases):
        raise wrong("advise", "phases", "be Phases", phases, hint="tp.phases(steps)")
    whole = max(int(phases.frame["dur_ps"].sum()), 1)
    known = facts(phases)
    rows = []
    for number, rule in enumerate(RULES):
        fires = rule.when & pl.all_horizontal(pl.col(rule.needs).is_not_null())
        fired = known.with_columns(saves_ps=rule.saves.clip(0, 1) * pl.col("typical_ps")).filter(fires)
        fired = fired.with_columns(saved=pl.col("saves_ps") / whole)
        for row in fired.filter((pl.col("saved") >= _LEAST).fill_null(True)).iter_rows(named=True):
            saves_ps = None if row["saves_ps"] is None else round(row["saves_ps"])
            rows.append((row["phase"], rule.name, saves_ps, row["saved"], _sentence(rule, row), rule.knob, number))
    frame = pl.DataFrame(rows, schema={**schema.ADVICE, "number": pl.Int64()}, orient="row")
    frame = frame.sort("saves_ps", "phase", "number", descending=[True, False, False], nulls_last=True)
    return schema.check(frame, schema.ADVICE, "advice")


def _sentence(rule: Rule, row: dict[str, object]) -> str:
    words = {name: _word(name, value) for name, value in row.items()}
    about = ", ".join([*([words["marks"]] if row["marks"] else []), f"{words['share']} of the run"])
    bound = "what it could save is unknown" if row["saved"] is None else f"up to {words['saved']} of the run"
    return f"{words['name']} ({about}): {rule.sentence.format(**words)}: {bound}."


def _word(name: str, value: object) -> str:
    """Return a fact as people write it.

    >>> _word("idle", 0.4137), _word("mxu", 4e-6), _word("step_ps", 18_340_000_000)
    ('41.4 %', 'under 0.1 %', '18.3 ms')
    """
    if isinstance(value, str):  # of the program: not to be trusted
        return cut(plain(value))
    if name.endswith("_ps") and isinstance(value, int | float):
        size, unit = next((one for one in _UNITS if value >= one[0]), (1e6, "µs"))
        return f"{short(value / size)} {unit}"
    if isinstance(value, float):
        return "under 0.1 %" if 0 < value < 0.0005 else f"{short(100 * value)} %"
    return str(value)


_UNITS = [(1e12, "s"), (1e9, "ms")]
