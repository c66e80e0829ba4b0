"""The table of causes: what wastes the time of a run, how it is seen, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import polars as pl

from tpunb.instrument.remedies import Trial
from tpunb.schema import PEERS, STANDING
from tpunb.step_stats.sample_places import WORKS


@dataclass(frozen=True)
class Remedy:
    """What to try.

    Parameters
    ----------
    text
        Action in the imperative.
    code
        Code to paste, in the place of `before`.
    when
        Evidence that it is the remedy; of several, the first whose evidence is there is given.
    before
        Code that the waste is seen in.
    trial
        What `tpunb try` tries it by; None if it changes the program.
    is_part
        Whether the trial is a part of it: one without gain does not refute the rest.
    saves
        Share of the time that it saves at most, from the sums and from ``wasted``, that of the cause. One that saves
        less than a third of it is not given if another fits.
    """

    text: str
    code: str = ""
    when: pl.Expr | None = None
    before: str = ""
    trial: Trial | None = None
    is_part: bool = False
    saves: pl.Expr = pl.col("wasted")  # noqa: RUF009 - an expression never changes

    @property
    def action(self) -> str:
        """Text and code in one line."""
        return f"{self.text}: `{self.code}`" if self.code else self.text


@dataclass(frozen=True)
class Cause:
    """One cause of waste.

    Its expressions are over the sums of what it is a cause `of`; a cause that needs a sum that is null does not apply.

    Parameters
    ----------
    id
        Stable identity, and anchor in ``docs/causes.md``.
    account
        Account of ``tpunb.schema.ACCOUNTS`` whose time it is; None if it is of several, or of steps that compute.
    name
        Name, the ``rule`` of ``tpunb.schema.ADVICE``.
    wastes
        Share of the time of the run, or of the phase, that is wasted: what could be saved at most; null if unknown.
    sentence
        Observation: a format of the sums, with one base for its percentages.
    remedies
        What to try: the first that fits is given; none if what helps is not known.
    evidence
        What it is seen from.
    source
        Origin of the cause, or of its threshold.
    no_fault
        When it is none.
    of
        Level of its sums: "account", "run", "phase", "devices" (of phases), "roofline" (of phases), "call" or "host".
    when
        Condition, beside that it wastes enough of the run to be listed.
    places
        Places of the account that are its own, where another cause has the others.
    """

    id: str
    account: str | None
    name: str
    wastes: pl.Expr
    sentence: str
    remedies: tuple[Remedy, ...]
    evidence: str
    source: str
    no_fault: str
    of: str = "run"
    when: pl.Expr = pl.lit(value=True)  # noqa: RUF009 - an expression never changes
    places: pl.Expr | None = None

    @property
    def needs(self) -> list[str]:
        """Names of the sums in its expressions.

        >>> cause("T104").needs
        ['restarting']
        """
        return sorted({*self.when.meta.root_names(), *self.wastes.meta.root_names()})

    @property
    def texts(self) -> dict[str, Any]:
        """Texts of the cause and of its remedies, as plain values."""
        names = ("id", "name", "account", "sentence", "evidence", "source", "no_fault")
        remedies = [{"text": each.text, "code": each.code, "before": each.before} for each in self.remedies]
        return {**{name: getattr(self, name) for name in names}, "remedies": remedies}


def cause(name: str) -> Cause:
    """Return the cause of an id or a name.

    Raises
    ------
    ValueError
        If there is none.
    """
    for each in CAUSES:
        if name in (each.id, each.name):
            return each
    raise ValueError(f"The name parameter of cause must be the id or the name of a cause. Got {name!r} instead.")


def _is(column: str, *values: str) -> pl.Expr:
    return pl.any_horizontal(pl.col(column).eq_missing(value) for value in values)


NAMED_SHARE = 0.1
"""Share of run time from which a waste is one."""
LISTED_SHARE = 0.02
"""Share of run time from which a waste, or an account, is listed."""
_ONE_OF_TEN, _ONE_OF_FIVE = 0.9 * pl.col("wasted"), 0.8 * pl.col("wasted")  # where only that remains
WAITS = (
    pl.col("place")
    .str.contains(r" waits for | ← .*\.(get|put|join|wait|result|acquire|recv|communicate|poll)$")
    .fill_null(value=False)
)
"""Places where a thread waits for another thread or process."""
_UNKNOWN = pl.lit(None, pl.Float64)
_HIGH = 0.7  # share of MXU peak or HBM bandwidth that XProf's smart suggestions call high
_LOW = 0.5  # and low
_CLOCK = "clock of the host: "
_FULL = "steps traced in full: "
_XPROF = "XProf's smart suggestions: "

_EVALUATES = pl.lit(0.2)  # of run time: what the program asks for is no waste
_scoring = (pl.col("scoring") > pl.col("evaluation") / 2) & ~_is("evaluates", "predict")  # which sets up anew
_least = pl.when(pl.col("account") == "evaluation").then(_EVALUATES).otherwise(NAMED_SHARE)

_GENERAL = Cause(
    *("T001", None, "no known cause"),
    when=pl.col("rest") * (1 - pl.col("excused")) >= _least,
    wastes=pl.col("rest"),
    sentence="{subject} took {took}{mostly}",
    remedies=(),
    evidence="time of an account that no other cause explains, and samples of the thread that trains",
    source="10 % as for input, 20 % for an evaluation",
    no_fault="the work at that line is what the run is for",
    of="account",
)

# fmt: off

# -- input -------------------------------------------------------------------------------------------------------------

HANDOVER_PS = 2e9
"""Time that a batch from a worker of a DataLoader takes in the program, and in the worker; measured, of one tensor."""
_wasted, _working, _handing = pl.col("wasted"), pl.col("working"), pl.col("handing").fill_null(0)
_processors = pl.col("processors").cast(pl.Float64, strict=False).replace(0.0, None)


def _beside(readers: pl.Expr | int, computed: pl.Expr, handing: pl.Expr | int = 0) -> pl.Expr:
    """Return what readers beside the steps save; what is computed takes a time on all processors."""
    taken = pl.max_horizontal(_wasted / readers + handing, _working + handing, computed)
    return (_wasted + _working - taken).clip(0)


_on_all = (_wasted + _working) * pl.col("computing")
_on_one = _on_all * _processors  # as threads of Python compute
_by_workers = _beside(2, _on_all + (2 * _handing / _processors).fill_null(0), _handing)
_by_threads = _beside(_processors, _on_all)
# more than one processor is busy where others than threads of Python compute
_by_python = _beside(_processors, pl.when(pl.col("computing") * _processors < 1.5).then(_on_one))

_INPUT = (
    Remedy(
        "the pipeline is tuned already: store prepared data (Dataset.save, TFRecord)",
        when=_is("data", "tuned tf.data")),
    Remedy(
        "map in parallel, and store what runs in Python, or write it in TensorFlow's operations",
        "data = tp.tune(data).apply(data)", before="data.map(lambda x: tf.py_function(decode, [x], tf.float32))",
        when=_is("data", "Python tf.data"), trial=Trial.PARALLEL_MAPS,
        is_part=True, saves=_by_python),
    Remedy(
        "store what runs in Python, where one thread runs at a time, or write it in TensorFlow's operations",
        "data.map(decode).cache()", before="data.map(decode)", when=_is("data", "Python tf.data")),
    Remedy(
        "prefetch, map in parallel, cache (in a notebook: %%tpupoint --tune)", "data = tp.tune(data).apply(data)",
        before="data = data.map(decode).batch(32)",
        when=_is("data", "tf.data"), trial=Trial.PARALLEL_MAPS, is_part=True, saves=_by_threads),
    Remedy(
        "use larger batches, or run more steps per call", "model.compile(..., steps_per_execution=16)",
        when=_is("data", "arrays"), trial=Trial.STEPS_PER_CALL, is_part=True),
    Remedy(
        "give it workers, read more per batch at once",
        "PyDataset(workers=4, use_multiprocessing=True, max_queue_size=16)", when=_is("data", "PyDataset"),
        trial=Trial.PYDATASET_WORKERS, is_part=True, saves=_beside(4, _on_all)),
    Remedy(
        "cache what is prepared, or store it (Dataset.cache, Dataset.save): no processor is free to prepare it sooner",
        when=_is("data", "tf.data", "PyDataset")),
    Remedy(
        "make batches in a keras.utils.PyDataset or a tf.data.Dataset, which prepare them ahead of the steps",
        when=_is("data", "generator")),
    Remedy(
        "give the DataLoader workers", "DataLoader(..., num_workers=2, persistent_workers=True)",
        before="DataLoader(dataset, batch_size=32)", when=_is("data", "DataLoader"),
        trial=Trial.WORKERS, saves=_by_workers),
    Remedy(
        "prepare each example once and keep it, or transform whole batches: workers hand batches over, and share the "
        "processors, in about the time that they save",
        when=_is("data", "DataLoader")),
    Remedy(
        "give it more workers (num_workers=), store prepared items, transform whole batches",
        when=_is("data", "DataLoader with workers")),
    Remedy("its workers are tuned already: store prepared items", when=_is("data", "tuned DataLoader")),
    Remedy(
        "take batches of its tensors by index: a DataLoader reads its rows one by one",
        "for i in range(0, len(x), n): batch = x[order[i:i + n]]",
        before="for batch in DataLoader(TensorDataset(x), batch_size=n): ...", when=_is("data", "TensorDataset"),
        trial=Trial.ROWS_AT_ONCE),
    Remedy(
        "give Grain threads", "ds.to_iter_dataset(grain.ReadOptions(num_threads=16, prefetch_buffer_size=500))",
        when=_is("data", "Grain")),
    Remedy(
        "read through a DataLoader with num_workers=, map once and keep the result (Dataset.map, save_to_disk)",
        when=_is("data", "datasets")),
    Remedy("prepare batches in parallel and ahead of the steps, cache what every epoch reads"),
)
_anew = (pl.col("anew") - pl.col("awaiting") > 0.05) | (pl.col("anew") > 0.2)
_waiting = pl.col("loading") + pl.col("validating") - pl.sum_horizontal(
    pl.when(_anew).then("anew").otherwise("of_arrays"), "starting", "ended", "restarting"
)
_NO_AUTOTUNE = "options.autotune.enabled = False"  # of tf.data.Options, by data.with_options

_OF_INPUT = (
    Cause(
        "T101", "data loading", "slow input",
        when=(pl.col("refitting") == 0)
        & ((_waiting * (1 - pl.col("crowding")) > NAMED_SHARE) | (_waiting > pl.col("productive"))), wastes=_waiting,
        sentence="Waiting for input took {took}{mostly}", remedies=_INPUT,
        evidence=f"{_CLOCK}from the request of a batch until it is there",
        source="over 10 % of step time: XProf's InputBoundRule",
        no_fault="other programs kept all processors busy meanwhile, and it took no longer than the steps, which they "
        "slow down as much; or the storage has no more bandwidth"),
    Cause(
        "T102", "data loading", "new iterators",
        when=_anew, wastes=pl.col("anew"),
        sentence="New iterators, which Keras makes at the end of each epoch, and waits for their first batches took "
        "{took}",
        remedies=(
            Remedy(
                "pass a tf.data.Dataset that repeats, and its length: the iterator is kept then",
                "model.fit(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(n).repeat(), "
                "steps_per_epoch=len(x) // n)", before="model.fit(x, y, epochs=100)", when=_is("data", "arrays")),
            Remedy(
                "repeat the data and give their length: the iterator is kept then",
                "model.fit(data.repeat(), steps_per_epoch=n)", before="model.fit(data, epochs=100)")),
        evidence=f"{_CLOCK}calls of Keras that make an iterator, and waits for the first batch beyond a usual one",
        source="https://keras.io/api/models/model_training_apis: fit, steps_per_epoch",
        no_fault="the data differ from epoch to epoch"),
    Cause(
        "T103", "data loading", "ended iterators", wastes=pl.col("ended"),
        sentence="Iterators of tf.data that end, and wait for the thread of its autotuning, took {took}",
        remedies=(
            Remedy(
                "pass a tf.data.Dataset with_options, or train more epochs in one fit", _NO_AUTOTUNE,
                when=_is("data", "arrays", "generator", "PyDataset"), trial=Trial.NO_AUTOTUNING),
            Remedy(
                "give the data tf.data.Options, or iterate once over data.repeat(epochs)", _NO_AUTOTUNE,
                trial=Trial.NO_AUTOTUNING)),
        evidence=f"{_CLOCK}from the last batch to the end of the iteration",
        source="stacks of threads: RootDataset::Iterator waits for Model::OptimizeLoop (TensorFlow 2.21)",
        no_fault="the run is short: most ends take 0.1 s, and few of them seconds"),
    Cause(
        "T104", "data loading", "restarted workers", wastes=pl.col("restarting"),
        sentence="Workers of a DataLoader, which start anew in each of its passes, took {took}",
        remedies=(
            Remedy(
                "keep the workers of the DataLoader", "DataLoader(..., persistent_workers=True)",
                before="DataLoader(dataset, num_workers=2)", trial=Trial.KEPT_WORKERS),),
        evidence=f"{_CLOCK}ends and starts of workers, and the wait for the first batch beyond a usual one",
        source="https://docs.pytorch.org/docs/stable/data.html: persistent_workers",
        no_fault="the workers hold data of one epoch, which must go"),
    Cause(
        "T105", "data loading", "input", when=pl.col("input") * (1 - pl.col("crowding")) > NAMED_SHARE,
        wastes=pl.col("input"), sentence="Waiting for input takes {input} of the phase's step time", remedies=_INPUT,
        evidence=f"{_FULL}infeed of the device, and its idle time while the host waits for input",
        source="TPUPoint VI.B, observations 3 and 4; over 10 % of step time: XProf's InputBoundRule",
        no_fault="as T101", of="phase"),
    Cause(
        "T106", "data loading", "stall", wastes=pl.col("stall"),
        sentence="Its steps run the same {stalled_side} operations as those of {twin}, but take {step_ps} instead of "
        "{twin_ps}; {stall_ps} of this is {stalled}",
        remedies=(
            Remedy(
                "check the input of these steps: the end of a shuffle buffer, slow files, other work on the host"),),
        evidence=f"{_FULL}waits beyond those of a longer phase of the same operations",
        source="TPUPoint VI.C, observation 6: the bottleneck changes with the input",
        no_fault="the batches of these steps are larger", of="phase"),
)

# -- startup -----------------------------------------------------------------------------------------------------------

_ONCE = Remedy(
    "compile once: make functions outside of the loop, use few shapes (padding, buckets), pass no Python numbers"
)
_KEEP_ALL = "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)"  # by default, of a second or more
_JAX_CACHE = f"jax.config.update('jax_compilation_cache_dir', 'compiled'), {_KEEP_ALL}"
_again = pl.max_horizontal("retracing", "rebuilding")
_prepared = pl.col("preparation") - pl.col("importing").fill_null(0)

_OF_STARTUP = (
    Cause(
        "T201", "program startup", "retracing",
        when=pl.col("retraced").is_not_null(), wastes=pl.col("retracing"),
        sentence="Tracing and compiling again took {took}: mostly {retraced}, {again}, for {reason}{at}",
        remedies=(
            Remedy(
                "wrap the function in jit or tf.function once, outside of the loop, and call that",
                "step = jax.jit(update)", before="for batch in data: jax.jit(lambda x: update(x))(batch)",
                when=_is("changed", "function"), trial=Trial.WRAPPED_ONCE),
            Remedy(
                "pass the Python value as an array, and take it out of the static arguments",
                "jax.jit(step)(batch, rate)", before="jax.jit(step, static_argnums=1)(batch, rate)",
                when=_is("changed", "value") & _is("backend", "JAX")),
            Remedy(
                "pass the Python value as a tensor or an array", "step(batch, tf.constant(rate))",
                before="step(batch, rate)", when=_is("changed", "value")),
            Remedy(
                "use batches of one shape, or of few (drop_remainder, padding, buckets of lengths)",
                "data.batch(32, drop_remainder=True)", before="data.batch(32)", when=_is("changed", "shape")),
            Remedy(
                "collect values in a list, not in an array that grows", "losses.append(loss)",
                before="losses = jnp.append(losses, loss)", when=_is("changed", "growth")),
            _ONCE),
        evidence=f"{_CLOCK}compilations of a function after its first, and what differs",
        source="https://www.tensorflow.org/guide/function, on retracing",
        no_fault="few shapes, each of which is used often: they are compiled once each"),
    Cause(
        "T202", "program startup", "rebuilt models", wastes=pl.col("rebuilding"),
        sentence="Tracing and compiling the steps of {models} models took {took} after the first",
        remedies=(
            Remedy(
                "compile one model once, and set what differs between trainings: weights, the rate of its optimizer",
                "model.set_weights(weights); model.optimizer.learning_rate.assign(rate)",
                before="model.compile(keras.optimizers.SGD(rate), loss)"),),
        evidence=f"{_CLOCK}traces of the step of fit",
        source="https://keras.io/api/models/model_training_apis: compile() makes a new step",
        no_fault="the models differ"),
    Cause(
        "T203", "program startup", "long startup",
        when=(pl.col("first") > pl.col("productive")) & (pl.col("first") > 2 * _again), wastes=pl.col("first"),
        sentence="Tracing, compiling and first runs took {took}{mostly}",
        remedies=(
            Remedy("train longer per run: programs are kept already", when=_is("cache", "all")),
            Remedy(
                "keep programs that compile within a second, too, or train longer per run",
                _KEEP_ALL, when=_is("cache", "slow"), trial=Trial.KEPT_PROGRAMS, saves=pl.col("compiling")),
            Remedy(
                "keep programs, or train longer per run", _JAX_CACHE, when=_is("backend", "JAX"),
                trial=Trial.KEPT_PROGRAMS, saves=pl.col("compiling")),
            Remedy("train longer per run: most of it is not compilation", when=_is("backend", "JAX")),
            Remedy(
                "train longer per run: TensorFlow keeps no cache of what it traces",
                when=_is("framework", "Keras", "TensorFlow")),
            Remedy(
                "enable the persistent compilation cache, load data while programs compile, train longer per run")),
        evidence=f"{_CLOCK}tracing, lowering, compilation, and first runs of what was traced",
        source="longer than training", no_fault="a run that is short on purpose, such as a test"),
    Cause(
        "T204", "program startup", "compile", wastes=pl.col("compiled_ps") / pl.col("typical_ps"),
        sentence="Compilation takes {compiled_ps}",
        remedies=(
            Remedy("train longer per run: programs are kept already", when=_is("cache", "all")),
            Remedy(
                "keep programs that compile within a second, too", _KEEP_ALL,
                when=_is("cache", "slow"), trial=Trial.KEPT_PROGRAMS),
            Remedy(
                "keep programs, which costs this once", _JAX_CACHE, when=_is("backend", "JAX"),
                trial=Trial.KEPT_PROGRAMS),
            Remedy("enable a persistent compilation cache; this cost is paid once per run")),
        evidence=f"{_FULL}compilation in the first step of a kind",
        source="https://docs.jax.dev/en/latest/persistent_compilation_cache.html", no_fault="as T203", of="phase"),
    Cause(
        "T205", "program startup", "recompile", wastes=pl.col("recompile"),
        sentence="Recompilation after the first step takes {recompile} of the phase's step time", remedies=(_ONCE,),
        evidence=f"{_FULL}compilation in later steps of a kind",
        source="https://www.tensorflow.org/guide/function, on retracing", no_fault="as T201", of="phase"),
    Cause(
        "T206", "preparation", "fits of one batch", wastes=pl.col("refitting"),
        sentence="Beginning and ending fits of one batch each took {took}",
        remedies=(
            Remedy(
                "train on each batch without a fit of its own", "model.train_on_batch(x, y)",
                before="model.fit(x, y, epochs=1)"),),
        evidence=f"{_CLOCK}fits, and their number by that of steps",
        source="https://keras.io/api/models/model_training_apis: train_on_batch",
        no_fault="callbacks or metrics of each fit are used"),
    Cause(
        "T207", "preparation", "preparation",
        when=_prepared > pl.max_horizontal("productive", "importing"), wastes=_prepared,
        sentence="Preparation before and between trainings took {took}{mostly}",
        remedies=(Remedy("cache prepared data, build the model once, train longer per run"),),
        evidence=f"{_CLOCK}time before the first step, between fits, and after the last step",
        source="longer than training", no_fault="what is prepared is kept for later runs"),
)

_READ_ONCE = Remedy(
    "read an array once, and loop over what was read", "for each in np.asarray(array): ...",
    before="for each in array: float(each)", when=_is("backend", "JAX"))

# -- steps -------------------------------------------------------------------------------------------------------------

_OF_STEPS = (
    Cause(
        "T301", None, "eager steps",
        when=pl.col("eager").is_not_null()
        & ((pl.col("stepping") > 0.3 * (1 - pl.col("profiler"))) | (pl.col("called_between") > NAMED_SHARE)),
        wastes=pl.col("dispatching"), places=(pl.col("worked") >= WORKS).fill_null(value=True),
        sentence="The steps run operation by operation, {took}{mostly}",
        remedies=(
            Remedy(
                "compile the model without run_eagerly=True, and leave tf.config.run_functions_eagerly at False",
                when=_is("eager", "Keras"), trial=Trial.COMPILED),
            Remedy(
                "compile the whole step, the optimizer's apply within", "step = tf.function(step)",
                when=_is("eager", "TensorFlow")),
            Remedy(
                "compile the whole step, the update of the weights within", "step = jax.jit(step)",
                when=_is("eager", "JAX")),
            Remedy(
                "compute on batches, not on each example (torch.vmap), or compile the step (torch.compile)",
                when=_is("eager", "PyTorch"), trial=Trial.COMPILED_MODULE, is_part=True)),
        evidence="the number of compiled functions, or of small operations, in steps; samples of lines that call them",
        source="https://www.tensorflow.org/guide/function; docs.jax.dev, Just-in-time compilation",
        no_fault="the program is debugged"),
    Cause(
        "T313", "program code", "numbers read one by one",
        when=pl.col("read_at").is_not_null(), wastes=pl.col("reading"),
        sentence="Reading numbers of arrays one by one took {took}: mostly {read_at}", remedies=(_READ_ONCE,),
        evidence=f"{_CLOCK}numbers that JAX reads; samples of the lines that read them",
        source="40 in each step: as calls of steps that run operation by operation",
        no_fault="the next number to read depends on the last"),
    Cause(
        "T314", None, "short steps", when=pl.col("calling") > pl.col("stepping") / 2,
        wastes=pl.col("calling"),
        sentence="Calling the compiled step took {took}: operations run in less than half of it",
        remedies=(
            Remedy(
                "run more steps per call, or larger batches", "model.compile(..., steps_per_execution=16)",
                before="model.compile(...)", trial=Trial.STEPS_PER_CALL, is_part=True),),
        evidence=f"{_FULL}operations on the CPU, as a share of the time of steps",
        source="over half of the time of steps; measured: 16 steps per call save that much",
        no_fault="a larger batch trains worse, or a callback needs each batch"),
    Cause(
        "T302", None, "slowing steps", wastes=pl.col("slowing"),
        sentence="The steps take longer and longer, {took} beyond what the first quarter of them takes",
        remedies=(
            Remedy(
                "find what grows with each step, if not its episodes: a graph that is kept, a list or an array "
                "that each step copies",
                "total += loss.item(); hidden = hidden.detach()", before="total += loss",
                when=_is("framework", "PyTorch")),
            Remedy(
                "find what grows with each step: a list, an array or a file that each step copies, reads or writes")),
        evidence="processor time of steps, which rises with their number, to twice",
        source="rank correlation with the number of the step",
        no_fault="the work of a step grows by design: longer sequences, larger images, a fuller buffer"),
    Cause(
        "T303", "step time deviation", "garbage collection", wastes=pl.col("collecting"),
        sentence="Steps slower than usual, for the garbage collection of Python, took {took}",
        remedies=(
            Remedy(
                "remove gc.collect() from the loop: what nothing refers to is freed without it",
                when=_is("collects", "program"), trial=Trial.NO_COLLECT),
            Remedy(
                "call `gc.freeze()` once all is built; collect by hand, between epochs (gc.disable, gc.collect)",
                trial=Trial.NO_COLLECTION)),
        evidence=f"{_CLOCK}collections within steps", source="https://docs.python.org/3/library/gc.html: freeze",
        no_fault="objects that refer to each other in circles must go, or memory grows"),
    Cause(
        "T304", "step time deviation", "crowded steps",
        when=(pl.col("crowded") > 0.25) & pl.col("others").is_not_null(), wastes=pl.col("crowded"),
        sentence="Steps slower than usual took {took}: the machine was busy, {others}",
        remedies=(Remedy("measure again on an idle machine"),),
        evidence="processors that other programs used, by second",
        source="a quarter of the run: below, equal runs of this machine differ as much",
        no_fault="other programs run there always"),
    Cause(
        "T305", None, "growing memory", when=pl.col("growth") > 0, wastes=_UNKNOWN,
        sentence="The memory of the process grows steadily, by {growth} GiB an hour, to {memory} GiB",
        remedies=(
            Remedy(
                "keep numbers, not tensors or arrays, of what each step returns (float(loss)); close figures "
                "and files"),),
        evidence="resident memory by second, of those without a window of the profiler, after a third of the steps",
        source="growth in three of four of these seconds, and by a fifth",
        no_fault="a buffer of the program fills, such as that of a shuffle or of a replay"),
    Cause(
        "T306", None, "debugging", when=pl.col("debug").is_not_null(), wastes=_UNKNOWN,
        sentence="{debug} is on, and checks each operation",
        remedies=(Remedy("turn it off once the fault is found", trial=Trial.NO_ANOMALY_DETECTION),),
        evidence="the setting of the library",
        source="https://docs.pytorch.org/docs/stable/autograd.html: anomaly detection",
        no_fault="the fault is not found yet"),
    Cause(
        "T307", None, "unseen", when=(pl.col("full") == 0) & (pl.col("phase") >= 0), wastes=_UNKNOWN,
        sentence="No step of it was traced in full",
        remedies=(Remedy("capture longer or more windows: tpunb.Schedule(window=..., every=..., budget=...)"),),
        evidence="windows of the profiler", source="a step's metrics are known if a window holds all of it",
        no_fault="its operations are of no interest", of="phase"),
    Cause(
        "T312", STANDING, STANDING, wastes=pl.col("standing"),
        sentence="The training stood still for {took}{mostly}",
        remedies=(),
        evidence=f"{_CLOCK}no step, and nothing at work that may last; stacks of all threads",
        source="no step for the longer of 15 s and ten usual steps", no_fault="it was paused on purpose"),
    Cause(
        "T308", None, "frozen model", when=pl.col("frozen_at").is_not_null(),
        wastes=pl.col("frozen"),
        sentence="A model that takes no gradients runs in the steps, {took}: mostly {frozen_at}",
        remedies=(
            Remedy(
                "compute what it returns for each example once, and look that up", "target = targets[index]",
                before="with torch.no_grad(): target = teacher(x)"),),
        evidence=f"{_FULL}operations whose gradients are not taken; samples of a call of a model that takes longer "
        "than all gradients",
        source="a gradient takes about twice the operations of its forward pass",
        no_fault="its inputs differ each time, such as by augmentation"),
    Cause(
        "T309", None, "double precision", wastes=pl.col("double"),
        sentence="The steps compute in float64 throughout: float32 takes half of the time and memory, {took} at most",
        remedies=(
            Remedy(
                "compute in float32", "jax.config.update('jax_enable_x64', False)",
                before="jax.config.update('jax_enable_x64', True)", when=_is("backend", "JAX"),
                trial=Trial.SINGLE_PRECISION),
            Remedy(
                "compute in float32", "model.float()", before="model.double()", when=_is("framework", "PyTorch")),
            Remedy(
                "compute in float32: keras.config.set_floatx('float32')", when=_is("framework", "Keras"),
                trial=Trial.SINGLE_PRECISION),
            Remedy("compute in float32")),
        evidence="types of the parameters, or of the state that a compiled function takes and returns",
        source="a vector unit holds half as many numbers of twice the size",
        no_fault="the problem needs double precision"),
    Cause(
        "T310", None, "few threads", when=pl.col("unthreaded") * (1 - pl.col("crowding")) > NAMED_SHARE,
        wastes=_UNKNOWN,
        sentence="PyTorch uses {threads} of {processors} processors, as its number of threads is set: all of them save "
        "{unthreaded} of run time at most",
        remedies=(
            Remedy(
                "leave the number of threads to PyTorch: no torch.set_num_threads, no OMP_NUM_THREADS",
                before="torch.set_num_threads(1)", trial=Trial.ALL_THREADS),),
        evidence=f"the setting of PyTorch, and {_FULL}operations over 0.1 ms",
        source="https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
        no_fault="other processes of the job use the other processors"),
    Cause(
        "T311", None, "padding", when=_is("framework", "PyTorch"), wastes=pl.col("padding"),
        sentence="The steps compute padding for {took}, if all positions of a batch take as long: all batches have one "
        "width, and their masks leave the rest out",
        remedies=(
            Remedy(
                "pad each batch to its longest text, and put texts of similar length into one batch",
                "DataCollatorWithPadding(tokenizer)", before='tokenizer(texts, padding="max_length")'),),
        evidence="shapes of the batches, and how many elements of their masks are not 0",
        source="https://huggingface.co/docs/transformers/pad_truncation: padding to the longest of a batch",
        no_fault="what compiles the steps needs one shape, or the longest texts are in all batches"),
)

# -- what the program does beside its steps ----------------------------------------------------------------------------

SAVES = ": {save_ps} each, once in {save_every_ps}{also}"  # only where all saves are known
_every, _best = pl.col("save_every_ps"), pl.col("save_best_ps")
_YOUNG = "the square root of 2 x save time x time between failures: Young 1974, https://doi.org/10.1145/361147.361115"

_OF_THE_PROGRAM = (
    Cause(
        "T401", "program code", "program code",
        wastes=pl.col("code") - pl.col("waited") - pl.col("read_between") - pl.col("called_between"), places=~WAITS,
        sentence="Code of the program took {took}{mostly}",
        remedies=(
            Remedy(
                "remove gc.collect() from the loop: what nothing refers to is freed without it",
                when=_is("waits", "collector"), trial=Trial.NO_COLLECT),
            Remedy("do it less often, in another thread, or on the device")),
        evidence=f"{_CLOCK}time between steps; samples of the thread that trains, within",
        source="samples of the stack", no_fault="it is the work of the training, such as the environment of an agent"),
    Cause(
        "T402", "callbacks", "slow callbacks", when=pl.col("callback").is_not_null(),
        wastes=pl.col("callbacks"), sentence="Callbacks took {took}{mostly}",
        remedies=(
            Remedy(
                "call it less often, and the model in it on whole batches, not on each example",
                when=_is("calls", "model")),
            Remedy("call it less often, or do its work in another thread or after training")),
        evidence=f"{_CLOCK}each callback", source="https://keras.io/api/callbacks",
        no_fault="what it computes changes the training"),
    Cause(
        "T403", "checkpoint save", "checkpoint saves", wastes=pl.col("unplanned"),
        sentence=f"Saving checkpoints took {{took}}{SAVES}",
        remedies=(
            Remedy(
                "save less often, and wait for a save only before the next one (wait_until_finished)",
                when=_is("saves", "background")),
            Remedy(
                "save less often or in the background; tp.advise(run, failure_every_h=...) computes the interval",
                trial=Trial.RARE_SAVES, saves=_ONE_OF_TEN)),
        evidence=f"{_CLOCK}saves, as far as the program waits for them",
        source="https://orbax.readthedocs.io/en/stable/guides/checkpoint/async_checkpointing.html",
        no_fault="failures are frequent: `failure_every_h` of `tp.advise` weighs them"),
    Cause(
        "T404", "checkpoint save", "checkpoint interval", when=_every < _best / 1.5,
        wastes=pl.col("saving") * (1 - _every / _best),
        sentence="Checkpoints are saved once in {save_every_ps}, each in {save_ps}; least time is lost with one in "
        "{save_best_ps}",
        remedies=(Remedy("save less often"),), evidence=f"{_CLOCK}saves; the time between failures that is given",
        source=_YOUNG, no_fault="checkpoints have other uses"),
    Cause(
        "T405", "checkpoint save", "rare checkpoints", when=_every > _best * 1.5, wastes=_UNKNOWN,
        sentence="Checkpoints are saved once in {save_every_ps}; with these failures least time is lost with one in "
        "{save_best_ps}",
        remedies=(Remedy("save more often"),), evidence=f"{_CLOCK}saves; the time between failures that is given",
        source=_YOUNG, no_fault="a run that is lost is not repeated"),
    Cause(
        "T406", "evaluation", "long evaluation",
        when=(pl.col("evaluation") > pl.min_horizontal("productive", _EVALUATES))
        & ~_is("evaluates", "mode") & ~_scoring,
        wastes=pl.col("evaluation"), sentence="Evaluation took {took}{mostly}",
        remedies=(
            Remedy(
                "call the model on its batch, not predict, which sets up anew", "model(x, training=False)",
                before="model.predict(x)", when=_is("evaluates", "predict"), trial=Trial.CALLED_MODEL),
            Remedy(
                "evaluate every few epochs, or on fewer batches", "model.fit(..., validation_freq=5)",
                when=_is("framework", "Keras"), trial=Trial.RARE_EVALUATION, saves=_ONE_OF_FIVE),
            Remedy("evaluate every few epochs, or on fewer batches", saves=_ONE_OF_FIVE)),
        evidence=f"{_CLOCK}evaluations, and steps that only measure",
        source="longer than training, or a fifth of the run",
        no_fault="the evaluation is what the run is for"),
    Cause(
        "T407", "checkpoint save", "checkpoint", wastes=pl.col("checkpoint"),
        sentence="Saving checkpoints takes {checkpoint} of the phase's step time",
        remedies=(
            Remedy("save less often, or in the background (asynchronous checkpoints, such as those of Orbax)"),),
        evidence=f"{_FULL}operations that save",
        source="https://orbax.readthedocs.io/en/stable/guides/checkpoint/async_checkpointing.html",
        no_fault="as T403", of="phase"),
    Cause(
        "T408", None, "summary", wastes=pl.col("summary"),
        sentence="Writing summaries takes {summary} of the phase's step time",
        remedies=(Remedy("write summaries less often, with fewer histograms and images"),),
        evidence=f"{_FULL}operations that write summaries", source="TPUPoint VI.B, observation 3",
        no_fault="they are read", of="phase"),
    Cause(
        "T409", "evaluation", "mode to evaluate", when=_is("evaluates", "mode"),
        wastes=pl.col("evaluation"), sentence="A model in its mode to evaluate took {took}{mostly}",
        remedies=(
            Remedy(
                "let a policy that acts in it act in several environments at once, or evaluate less often"),
        ),
        evidence=f"{_CLOCK}from the mode of a model to evaluate until that to train; no batch is fetched in it",
        source="as T101", no_fault="the moves are what the policy learns from"),
    Cause(
        "T410", "program code", "waits for another thread", wastes=pl.col("waited"), places=WAITS,
        sentence="The training waited {took} for {awaited_at}{mostly}",
        remedies=(Remedy("make what it waits for faster, or share its work among processes"),),
        evidence=f"{_CLOCK}time between steps; samples of the thread that trains, and of those that work meanwhile",
        source="samples of the stack", no_fault="what it waits for is the purpose, such as the moves of an agent"),
    Cause(
        "T411", "evaluation", "scoring",
        when=(pl.col("evaluation") > pl.min_horizontal("productive", _EVALUATES)) & _scoring, wastes=pl.col("scoring"),
        sentence="Evaluation took {took} outside of its batches{mostly}",
        remedies=(Remedy("score on arrays rather than one by one, on fewer examples, or less often"),),
        evidence=f"{_CLOCK}evaluations, without the batches in them",
        source="most of the evaluation", no_fault="the score is what the run is for"),
)

# -- devices -----------------------------------------------------------------------------------------------------------

_mxu, _hbm = pl.col("mxu"), pl.col("hbm")
_to_high = pl.col("busy") * (1 - _mxu / _HIGH)  # the same work at a high utilisation


def _share(
    number: str, account: str | None, name: str, sentence: str, *remedies: Remedy, **texts: Any
) -> Cause:
    """Return the cause of a share of step time that could all be saved."""
    share = pl.col(texts.pop("sum", name))
    return Cause(number, account, name, share, sentence, remedies, **texts, of="phase")


def _headroom(number: str, bound: str, action: str) -> Cause:
    """Return the cause of device time above that at the roof, where one peak is the roof of most of it."""
    return Cause(
        *(number, None, f"{bound} headroom"),
        when=(pl.col("bound") == bound) & (pl.col("headroom") > 1 - _HIGH),
        wastes=pl.col("busy") * pl.col("headroom"),
        sentence=f"Its operations could save {{headroom}} of their self time at the roof, mostly that of {bound}",
        remedies=(Remedy(action),),
        evidence="FLOPs and bytes of operations, and the peaks of the device",
        source="Williams, Waterman, Patterson: Roofline, 2009",
        no_fault="the counts are of other programs than those that ran",
        of="roofline",
    )


_OF_DEVICES = (
    _share(
        "T501", "device idle", "idle", "The device is idle for {idle} of the phase's step time {idle_cause}",
        Remedy(
            "run more steps per call", "model.compile(..., steps_per_execution=16)", before="model.compile(...)",
            when=_is("framework", "Keras"), trial=Trial.STEPS_PER_CALL),
        Remedy("run more steps per call (lax.scan), fetch fewer values on the host", when=_is("framework", "JAX")),
        Remedy(
            "launch fewer, larger kernels (torch.compile, CUDA graphs), fetch fewer values on the host",
            when=_is("framework", "PyTorch"), trial=Trial.COMPILED_MODULE, is_part=True),
        Remedy("run more steps per call, fetch fewer values on the host"),
        evidence=f"{_FULL}time without work on a device, that nothing here explains",
        source="TPUPoint VI.B, Figure 10: 38.90 % (v2), 43.53 % (v3); XProf's TensorCoreIdleBoundRule",
        no_fault="the model is small: its computation takes less than its launch"),
    _share(
        "T502", "device idle", "reads",
        "The host waits for the device in {reads_op}, and launches its next work late: the device is idle for "
        "{reads} of the phase's step time",
        Remedy(
            "call loss.item(), float(loss), print or .cpu() in fewer steps, or one step later",
            when=_is("framework", "PyTorch"), trial=Trial.RARE_READS, saves=_ONE_OF_TEN),
        Remedy(
            "read what the device computes in fewer steps, or one step later",
            saves=_ONE_OF_TEN),
        evidence=f"{_FULL}idle time after the host waited for the device",
        source="HTA's host wait, up to the time that the host waited before",
        no_fault="the next step depends on what is read"),
    _share(
        "T503", None, "formatting",
        "Data formatting takes {formatting} of the phase's step time, mostly {formatting_op}",
        Remedy("use one layout throughout, batches and features in multiples of 8 and 128, fewer transposes"),
        evidence=f"{_FULL}reshapes, transposes and copies on the device",
        source="TPUPoint VI.B, Table II; https://cloud.google.com/tpu/docs/performance-guide",
        no_fault="the layout is what a faster kernel needs"),
    _share(
        "T504", None, "copies",
        "Waiting for copies between memories takes {copies} of the phase's step time, mostly {copies_op}",
        Remedy("offload less to the host, keep on the device what every step uses, or start its copies earlier"),
        evidence=f"{_FULL}ends of asynchronous copies (copy-done)", source="XProf's idle time of async-done",
        no_fault="the model does not fit into the memory of the device"),
    _share(
        "T505", None, "outfeed", "Outfeed takes {outfeed} of the phase's step time",
        Remedy("write summaries and metrics in fewer steps, make fewer host calls"),
        evidence=f"{_FULL}outfeed of the device", source="TPUPoint VI.B, Table II: OutfeedDequeueTuple",
        no_fault="what is sent is what the run is for"),
    _share(
        "T506", "device idle", "transfer",
        "Transfers between host and device that no computation hides take {transfer} of the phase's step time",
        Remedy("make fewer and larger transfers, prefetch to the device, leave on it what the host does not need"),
        evidence=f"{_FULL}transfers while the device does not compute",
        source="TPUPoint VI.B, observation 4; XProf's DataTransferBoundRule",
        no_fault="the batch must be moved, and the step is short"),
    _share(
        "T507", None, "collectives",
        "Collectives that no computation hides take {collective} of the phase's step time",
        Remedy(
            "use larger batches per device, bfloat16 gradients, collectives behind computation; find slow devices"),
        sum="collective", evidence=f"{_FULL}collectives while the device does not compute",
        source="XProf's CollectiveBoundRule",
        no_fault="the model is partitioned, and its links are at their bandwidth"),
    _share(
        "T508", None, "callbacks",
        "Callbacks to Python take {callbacks} of the phase's step time, mostly {callbacks_op}",
        Remedy("remove debug_print, py_function and io_callback from the step, or run them in few steps"),
        evidence=f"{_FULL}operations that call Python", source="XProf's DebugPrintRule",
        no_fault="the step needs what Python returns"),
    Cause(
        "T509", None, "memory", when=(_hbm > _HIGH) & (_mxu < _LOW), wastes=_to_high,
        sentence="Memory-bound: {hbm} of HBM bandwidth, but {mxu} of MXU peak used",
        remedies=(
            Remedy(
                "use bfloat16, fewer and larger fusions, less rematerialisation, shapes in multiples of 8 and 128"),),
        evidence=f"{_FULL}utilisation that the profiler counts",
        source=f"{_XPROF}HBM bandwidth over 70 % and MXU under 50 %: MemoryBoundRule",
        no_fault="the model does little arithmetic for each byte", of="phase"),
    Cause(
        "T510", None, "batch",
        when=(pl.max_horizontal(_mxu, _hbm) < _LOW) & (pl.max_horizontal("any_idle", "waits") < NAMED_SHARE),
        wastes=_to_high,
        sentence="Not input-bound, but {mxu} of MXU peak and {hbm} of HBM bandwidth used",
        remedies=(Remedy("use larger batches, in multiples of 8 and 128"),),
        evidence=f"{_FULL}utilisation that the profiler counts",
        source="TPUPoint VI.B, Figure 11: 22.72 % on TPUv2, 11.34 % on TPUv3; both under 50 %: XProf's latency bound",
        no_fault="a larger batch does not train as well", of="phase"),
    _headroom("T511", "compute", "use larger batches, bfloat16, dimensions in multiples of the matrix unit's"),
    _headroom("T512", "memory", "fuse operations (compile the step), use smaller data types, reuse what is read"),
)

# -- many devices and hosts --------------------------------------------------------------------------------------------

_PODS = "Kumar et al.: Scale MLPerf-0.6 models on Google TPU-v3 Pods, 2019, https://arxiv.org/abs/1909.09756"

_OF_RANKS = (
    Cause(
        "T601", PEERS, "uneven ranks", when=pl.col("peers") * (1 - pl.col("crowding")) > NAMED_SHARE,
        wastes=pl.col("peers"),
        sentence="Waiting for other ranks took {took}{mostly}",
        remedies=(
            Remedy(
                "give all ranks equal work in each step: shards and batches of one size, and what one rank "
                "does alone (saves, evaluation, logs) in the background"),),
        evidence=f"{_CLOCK}waits in collectives beyond those of the rank that came last",
        source="as T101", no_fault="other programs kept all processors busy meanwhile"),
    Cause(
        "T602", PEERS, "slow rank", when=pl.col("has_place"), wastes=pl.col("costs"),
        sentence="{host} delays the other ranks by {took}: {why}",
        remedies=(
            Remedy(
                "make that line as fast on this rank as on the others: equal shares of data and work, equal "
                "machines"),),
        evidence="waits of the other ranks; samples of the threads that train",
        source="tp.hosts: what the job would gain if it came second-last",
        no_fault="the rank does work that the job needs, and no other could", of="host"),
    Cause(
        "T603", None, "straggling host", when=~pl.col("has_place"),
        wastes=pl.col("costs"), sentence="Host {host} delays the others by {took} (cause: {cause})",
        remedies=(Remedy("replace or repair the host, or give it an equal share of input and work"),),
        evidence="runs of collectives on each device",
        source="tp.hosts: what the job would gain if it came second-last", no_fault="as T602", of="host"),
    Cause(
        "T604", None, "replicated update", when=pl.col("replicas") > 1,
        wastes=pl.col("update") * (1 - 1 / pl.col("replicas")),
        sentence="The weight update takes {update} of the phase's step time ({update_source}) on each of {replicas} "
        "devices that reduce their gradients",
        remedies=(
            Remedy("if they hold equal weights, shard the update and its moments over them (as ZeRO and FSDP do)"),),
        evidence="operations of the update, or the bytes of weights and moments by the bandwidth of the device",
        source=f"{_PODS}: weight-update sharding", no_fault="the devices hold different weights", of="devices"),
    Cause(
        "T605", "evaluation", "undistributed evaluation",
        when=(pl.col("main") == "eval") & (pl.col("devices") < pl.col("train_devices")),
        wastes=1 - pl.col("devices") / pl.col("train_devices"),
        sentence="Evaluation uses {devices} of the {train_devices} devices that train",
        remedies=(Remedy("distribute the evaluation over all devices, with its last batch padded"),),
        evidence=f"{_FULL}devices that work", source=f"{_PODS}: distributed evaluation",
        no_fault="its data are too few to divide", of="devices"),
    Cause(
        "T606", None, "small batch per device",
        when=(pl.col("intensity") < pl.col("ridge")) & (pl.col("device_batch") <= 8) & (pl.col("devices") > 1),
        wastes=_UNKNOWN,
        sentence="With {device_batch} examples per device its operations do {intensity} FLOP/byte, left of the ridge "
        "at {ridge}",
        remedies=(
            Remedy(
                "use larger batches, or partition each example over several devices (spatial or tensor "
                "partitioning)"),),
        evidence="the batch, and FLOPs and bytes of operations", source=f"{_PODS}: spatial partitioning",
        no_fault="a larger batch does not train as well", of="devices"),
)

# -- calls of PyTorch's operators --------------------------------------------------------------------------------------

_ROOF = "{operator} of {operands} takes {time} of the phase's {base}, {times} times its time at the roof: "
_TILES = "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication: tiles, alignment"
_CONVOLUTIONS = "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional"


def _call(
    number: str, fault: str, sentence: str, action: str, source: str, no_fault: str, trial: Trial | None = None
) -> Cause:
    """Return the cause of a fault of one call, or of all elementwise ones, as `tpunb.analysis.calls` finds it."""
    when, remedies = pl.col("fault") == fault, (Remedy(action, trial=trial, is_part=True),)
    evidence = "shapes of the operator's tensors, its time, and the peaks of the device"
    return Cause(number, None, fault, pl.col("gain"), sentence, remedies, evidence, source, no_fault, "call", when)


_OF_CALLS = (
    _call(
        "T701", "few tiles", f"{_ROOF}its result has few tiles, {{tiles}} of 128 x 128 for {{units}} compute units",
        "use larger batches, or split the sum over the inner dimension (split-k; torch.compile with max-autotune)",
        _TILES, "the call is short beside its launch"),
    _call(
        "T702", "odd sizes", f"{_ROOF}its sizes are misaligned, {{odd}} elements are no multiple of 16 bytes",
        "pad the dimension to a multiple of 8 (16-bit types) or 4 (f32), of 64 at best", _TILES,
        "the size is that of classes or characters, and padding costs as much"),
    _call(
        "T703", "thin product",
        f"{_ROOF}it is tall and skinny, with {{smallest}} rows or columns, and reads its factors for little work",
        "use larger batches, join products with a common factor (as query, key and value in one)", _TILES,
        "one example at a time is what the program is for"),
    _call(
        "T704", "transposed convolution", f"{_ROOF}it is a transposed convolution",
        "use torch.channels_last and 16-bit types, or upsample and convolve instead", _CONVOLUTIONS,
        "the weights are given", Trial.CHANNELS_LAST),
    _call(
        "T705", "depthwise convolution",
        f"{_ROOF}it is a depthwise convolution, each of {{channels}} channels on its own",
        "use torch.channels_last, fuse it with its neighbours (torch.compile), or use groups of several channels",
        _CONVOLUTIONS, "the weights are given", Trial.CHANNELS_LAST),
    _call(
        "T706", "small images",
        f"{_ROOF}it convolves {{channels}} channels at {{positions}} positions of each small image",
        "use larger batches, torch.channels_last and 16-bit types", _CONVOLUTIONS, "memory is full",
        Trial.CHANNELS_LAST),
    _call(
        "T707", "short attention",
        f"{_ROOF}its sequences are short, {{length}} positions, and each call lasts {{call_ps}}",
        "use larger batches, pack several sequences into one, or launch by CUDA graphs (mode='reduce-overhead')",
        "up to 512 positions a kernel has few tiles a head", "memory is full"),
    _call(
        "T708", "long attention", f"{_ROOF}its sequences are long, {{length}} positions",
        "try another backend of it (torch.nn.attention.sdpa_kernel), a causal or local mask (flex_attention)",
        "from 4096 positions products outweigh all else", "the backend is the fastest for this device"),
    _call(
        "T709", "sparse experts",
        "{operator} of {operands} takes {time} of the phase's {base}: {each} rows for each of its experts, "
        "whose weights are read for few tokens",
        "use larger batches, fewer experts or more of them for each token, or spread the experts over devices",
        "under half a tile of 128 rows", "the run is one of generation, token by token"),
    _call(
        "T710", "slow memory", f"{_ROOF}it computes little for each byte and uses little of the memory bandwidth",
        "use contiguous operands of one layout, smaller data types, or fuse it with its neighbours (torch.compile)",
        "under 50 % of the roof, as for a phase", "its tensors are small"),
    _call(
        "T711", "recomputation",
        "Computing the forward pass again for the backward pass takes {time} of the phase's {base}",
        "if memory is left, keep the activations of some modules: checkpoint fewer, or selectively "
        "(create_selective_checkpoint_contexts)",
        "https://docs.pytorch.org/docs/stable/checkpoint.html", "memory is full"),
    _call(
        "T712", "unfused",
        "Elementwise operations that run one by one take {time} of the phase's {base}, most of it {operator}",
        "fuse them (torch.compile, fused optimizers and activations)",
        "a pair that is fused reads and writes about half", "compilation takes longer than it saves",
        Trial.COMPILED_MODULE),
    _call(
        "T713", "far from its roof", f"{_ROOF}its shape does not say why",
        "look at its kernels (tp.roofline(run, 'kernel')), and try another type, layout or backend of it",
        "under 50 % of the roof, as for a phase",
        "the operator has no faster kernel for this device"),
)

# fmt: on

CAUSES = (_GENERAL, *_OF_INPUT, *_OF_STARTUP, *_OF_STEPS, *_OF_THE_PROGRAM, *_OF_DEVICES, *_OF_RANKS, *_OF_CALLS)
"""All causes; a new one needs an entry here, one in the corpus, and nothing else, unless it needs a new sum."""


_INTRODUCTION = """# Causes

What wastes the time of a run, as the verdict, `tp.advise` and `tp.report` name it: what each is seen from, what to do
about it, and when it is no fault. What could save 2 % of the run is listed; from a tenth on, it is a waste. The table
is `tpunb.analysis.causes`; this page is printed from it.

| id | name | account | tried by |
|---|---|---|---|
"""


def page() -> str:
    """Return ``docs/causes.md``: the table, with an anchor for each cause."""
    index = "".join(
        f"| [{each.id}](#{each.id.lower()}) | {each.name} | {each.account or ''} | "
        f"{'`tpunb try`' * any(remedy.trial for remedy in each.remedies)} |\n"
        for each in CAUSES
    )
    return _INTRODUCTION + index + "".join(map(_entry, CAUSES))


def _entry(each: Cause) -> str:
    """Return the part of the page on one cause."""
    effect = re.sub(r"\{(also|mostly)\}", "", each.sentence)
    lines = [
        f"\n## {each.id}\n",
        f"**{each.name}**. {re.sub(r'{[^}]*}', '…', effect)}.\n",
        f"- Seen from: {each.evidence}.",
    ]
    lines += [f"- Origin: {each.source}.", f"- No fault if: {each.no_fault}."]
    lines += ["- What to do:"] if each.remedies else []
    for remedy in each.remedies:
        lines.append(f"  - {remedy.text}.{' Can be tried: `tpunb try`.' * bool(remedy.trial)}")
        if remedy.code:
            before = [f"{line}  # before" for line in remedy.before.splitlines()]
            lines += [
                "",
                "    ```text",
                *(f"    {line}" for line in [*before, *remedy.code.splitlines()]),
                "    ```",
                "",
            ]
    return "\n".join(lines).rstrip("\n") + "\n"
