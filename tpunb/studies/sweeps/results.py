"""Sweep: one model at many sizes, a row per point."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from html import escape
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.analysis.roofline import WORK, Roofline
from tpunb.errors import BadProfile, IncompatibleRuns, TpunbError, check_share, wrong_type
from tpunb.frames.conversion import Tabular
from tpunb.frames.hardware import DEVICES, Device
from tpunb.frames.hardware import device as device_named
from tpunb.studies.sweeps.columns import SATURATION, SENSITIVITY, SPEEDUP, SWEEP
from tpunb.text import cut, percent, plain, plural


@dataclass(frozen=True, eq=False, repr=False)
class Saturation(Tabular):
    """The smallest value of a parameter that reaches nearly the best throughput.

    Parameters
    ----------
    frame
        One row per combination of the other parameters: their columns, then ``SATURATION``.
    parameter
        Name of the parameter.
    within
        Share of the best throughput that may be lost.
    """

    frame: pl.DataFrame
    parameter: str
    within: float

    @property
    def value(self) -> float | None:
        """Median over the combinations, the larger of the middle two; None if no two values ran."""
        value = self.frame["value"].quantile(0.5, "higher")
        return None if value is None else int(value) if value == int(value) else value

    @property
    def rising(self) -> bool | None:
        """Whether `value` is the largest that ran, in half or more of the rows that have it; None if no two ran."""
        rising = self.frame.filter(pl.col("value") == self.value)["rising"]
        return sum(rising) * 2 >= len(rising) if len(rising) else None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer, each part in one sentence without its full stop."""
        if self.value is None:
            return (f"{plain(self.parameter)}: fewer than two values ran",)
        at = self.frame.filter(pl.col("value") == self.value)
        count = self.frame["value"].count()
        base = f" (median of {plural(count, 'combination')} of the other parameters)" if count > 1 else ""
        name = f"{plain(self.parameter)} {self.value:,}"
        first = (
            f"{name} is the largest measured, and throughput still rises{base}"
            if self.rising
            else f"{name} is enough{base}"
        )
        if not at["certain"].all():
            return f"{first}, by too few rounds to be certain", "measure longer (budget=) for intervals"
        if (below := at.select(pl.col("below").max()).item()) is None:
            return (first,)
        away = at.filter(pl.col("below") == below)["given_away"]
        return first, f"at {below:,.10g} you give away {percent(median(away) or 0.0)}"

    def __repr__(self) -> str:
        return f"Saturation({'; '.join(self.sentences)})"


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Tabular):
    """A standardised linear regression of a column of a sweep on its parameters.

    Parameters
    ----------
    frame
        One row per term: ``SENSITIVITY``.
    of
        Name of the column.
    r_squared
        Share of the variance of the column that the regression explains, 0 to 1.
    log
        Whether the regression is of logarithms.
    """

    frame: pl.DataFrame
    of: str
    r_squared: float
    log: bool

    def __repr__(self) -> str:
        terms = ", ".join(f"{plain(term)} {weight:.3f}" for term, weight in self.frame.drop_nulls().rows())
        return (
            f"Sensitivity({self.of}{' (logarithms)' if self.log else ''}: {cut(terms, 200)}; R² {self.r_squared:.3f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Speedup(Tabular):
    """The throughput of one sweep by that of another, at the points that both ran.

    Parameters
    ----------
    frame
        One row per point: the columns of its parameters, then ``SPEEDUP``.
    this, other
        Device, and framework with its version, of each sweep.
    rank_correlation
        Spearman's rank correlation of FLOPs and time of this sweep, at these points; None for fewer than three.
    differences
        What was allowed to differ and does, each with its values.
    """

    frame: pl.DataFrame
    this: tuple[str, str]
    other: tuple[str, str]
    rank_correlation: float | None
    differences: tuple[str, ...] = ()

    @property
    def geometric_mean(self) -> float:
        """Geometric mean of the ratios."""
        return float(np.exp(np.log(self.frame["ratio"].to_numpy()).mean()))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Geometric means of the lower and of the upper ends; None if a point has no interval."""
        if self.frame["low"].null_count():
            return None
        low, high = (float(np.exp(np.log(self.frame[name].to_numpy()).mean())) for name in ("low", "high"))
        return low, high

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer, each part in one sentence without its full stop."""
        this, other = (f"{device} with {software}" for device, software in (self.this, self.other))
        low, high = self.interval or (None, None)
        mean, count = f"{self.geometric_mean:.2f}", plural(len(self), "point")
        between = "" if low is None else f", interval {low:.2f} to {high:.2f}"
        base = f"geometric mean of {count}{between}"
        if low is None or high is None:
            first = f"{this} has {mean} times the examples per second of {other} ({base}, no interval)"
        elif low <= 1 <= high:
            first = f"{this} and {other} are not distinguishable: ratio {mean} ({base})"
        else:
            first = f"{this} is {'faster' if low > 1 else 'slower'} than {other}: ratio {mean} ({base})"
        ratios = self.frame["ratio"].to_numpy()
        spread = f"ratios from {ratios.min():.2f} to {ratios.max():.2f}, {(ratios < 1).sum():,} of {count} below 1"
        unequal = self.this[1] != self.other[1]
        if unequal or "not recorded" in self.this[1]:
            software = "the software differs" if unequal else "the software may differ"
            return first, spread, f"{software}, so the ratio is not of the devices alone", *self.differences
        return first, spread, *self.differences

    def __str__(self) -> str:
        return "; ".join(self.sentences)

    def __repr__(self) -> str:
        return f"Speedup({self.sentences[0]})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.frame._repr_html_()}"


def median(values: pl.Series) -> float | None:
    """Return the median of the values that are not null."""
    values = values.drop_nulls()
    return float(np.median(values.to_numpy())) if len(values) else None


FORMAT = 1
"""Version of the Parquet file of a sweep."""

_KEY = "tpunb.sweep"  # of the file's metadata
_TYPES = (pl.Int64, pl.Float64, pl.Boolean, pl.String)  # of parameters
_DTYPES = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # Keras' names to Device's
_WORKLOAD = {"weights": 0.01, "flops": 0.25}  # largest difference of one workload; frameworks count FLOPs differently
_NAMES = {*SWEEP, *SATURATION, *SPEEDUP}  # of columns, which parameters cannot have
_TRAITS = ("dtype", "mode", "workload")


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Tabular):
    """Measurements of one model at many sizes on one device.

    Parameters
    ----------
    frame
        One row per point: a column per parameter, then ``SWEEP``. Columns may be absent, except ``state``;
        they become null, and ``examples_per_s`` is computed from ``examples`` and ``step_ps``.
    parameters
        Names of the parameters: columns of integers, floats, Booleans or text.
    chip
        Device with its peaks; by its name in the frame if None.
    metadata
        Facts about the sweep, such as the origin of its measurements.

    Raises
    ------
    BadProfile
        If a column is missing or of the wrong type, a parameter has the name of another column, or two rows are of
        one point.
    """

    frame: pl.DataFrame
    parameters: tuple[str, ...]
    chip: Device | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.parameters))
        object.__setattr__(self, "frame", _checked(self.frame, self.parameters))

    @cached_property
    def ok(self) -> pl.DataFrame:
        """The rows of the points that ran."""
        return self.frame.filter(pl.col("state") == "ok", pl.col("step_ps") > 0)

    def filter(self, **values: Any) -> Sweep:
        """Return the points that have these values of parameters; a list selects several.

        Raises
        ------
        ValueError
            If there is no parameter of a name, or a value is of another type.
        """
        frame = self.frame
        for name, value in values.items():
            several = isinstance(value, Iterable) and not isinstance(value, str)
            wanted = [*value] if several else [value]
            try:
                frame = frame.filter(pl.col(self._named(name, "filter")).is_in(wanted))
            except (pl.exceptions.PolarsError, TypeError) as error:
                raise ValueError(f"filter: {name} is of {frame.schema[name]}. Got {value!r} instead.") from error
        return replace(self, frame=frame)

    def saturation(self, parameter: str, within: float = 0.05) -> Saturation:
        """Return the smallest value of a parameter that reaches nearly the best throughput.

        A value reaches it if the upper end of the interval of its examples per second, or their number where there is
        no interval, is at least ``1 - within`` of the best.

        Parameters
        ----------
        parameter
            Name of a parameter of numbers, such as "batch".
        within
            Share of the best throughput that may be lost, 0 to 1.

        Raises
        ------
        ValueError
            If there is no such parameter, its values are no numbers, or `within` is no share.
        """
        within = check_share("saturation", "within", within)
        if self._named(parameter, "saturation") not in self._numeric:
            raise ValueError(f"The parameter of saturation must have numbers as values. Got {parameter!r} instead.")
        others = [name for name in self.parameters if name != parameter]
        value, rate, best = pl.col(parameter), pl.col("#rate"), pl.col("#rate").max()
        ran = (pl.col("state") == "ok") & (pl.col("step_ps") > 0)
        rows = self.frame.sort(parameter).with_columns(pl.when(ran).then("examples_per_s").alias("#rate"))
        upper = rate * pl.col("step_ps") / pl.coalesce("low_ps", "step_ps")
        enough = upper >= (1 - within) * _over(best, others)
        rows = rows.with_columns(enough.alias("#enough")).with_columns(
            value=_over(pl.when(rate.count() > 1).then(value.filter("#enough").min()), others),
            **{"#largest": _over(value.filter(rate.is_not_null()).max(), others)},
        )
        below = rate.is_not_null() & (value < pl.col("value"))
        saturation = rows.group_by(*others, pl.lit(0).alias(_KEY), maintain_order=True).agg(
            pl.col("value").first(),
            rising=(pl.col("value") == pl.col("#largest")).first(),
            examples_per_s=best,
            below=value.filter(below).last(),
            given_away=1 - rate.filter(below).last() / best,
            certain=(pl.col("rounds").is_null() | pl.col("low_ps").is_not_null() | rate.is_null()).all(),
        )
        return Saturation(_typed(saturation, others, SATURATION), parameter, within)

    def sensitivity(self, of: str = "flops_util", *, order: Literal[1, 2] = 1, log: bool = False) -> Sensitivity:
        """Return the linear regression of a column on the parameters, all standardised, over the points that ran.

        Of a parameter of text or Booleans, each value but the first is a term.

        Parameters
        ----------
        of
            Column of numbers of ``SWEEP``.
        order
            1 for the parameters, 2 for their squares and products too.
        log
            Whether the column, and parameters of numbers, enter by their logarithms.

        Raises
        ------
        ValueError
            If there is no such column, `order` is neither, or a logarithm is of a number that is not above 0.
        TpunbError
            If the column does not vary, or in fewer points than the regression has terms.
        """
        if of not in SWEEP or not SWEEP[of].is_numeric():
            numbers = ", ".join(name for name, dtype in SWEEP.items() if dtype.is_numeric())
            raise ValueError(f"The of parameter of sensitivity must be one of {numbers}. Got {of!r} instead.")
        if order not in (1, 2):
            raise ValueError(f"The order parameter of sensitivity must be 1 or 2. Got {order!r} instead.")
        rows = self.ok.drop_nulls([of, *self.parameters])
        terms = self._terms(rows, log=log)
        if order == 2:
            scaled = {name: _standardised(values) for name, values in terms.items()}
            terms |= {f"{a} x {b}": scaled[a] * scaled[b] for a, b in combinations_with_replacement(terms, 2)}
        values = _logarithm(of, rows[of].to_numpy()) if log else rows[of].cast(pl.Float64).to_numpy()
        varying = [name for name, term in terms.items() if len(rows) and term.std() > 1e-12 * abs(term).max()]
        if len(rows) <= len(varying) + 1 or not varying or values.std() == 0:
            problem = f"{plural(len(rows), 'point')} of different {of} for {plural(len(varying), 'term')}"
            raise TpunbError(
                f"too few points for a regression: {problem}", hint="measure more points, or other columns"
            )
        from sklearn.linear_model import LinearRegression

        matrix, target = (np.column_stack([_standardised(terms[name]) for name in varying]), _standardised(values))
        model = LinearRegression().fit(matrix, target)
        weights = dict(zip(varying, model.coef_.tolist(), strict=True))
        frame = pl.DataFrame({"term": [*terms], "weight": [weights.get(name) for name in terms]})
        return Sensitivity(schema.check(frame, SENSITIVITY, "sensitivity"), of, float(model.score(matrix, target)), log)

    def speedup(self, other: Sweep, allow_different: Collection[str] = ()) -> Speedup:
        """Compare the throughput with that of another sweep, at the points that both ran.

        Parameters
        ----------
        other
            Sweep of the same parameters, such as on another device or framework.
        allow_different
            What may differ: "dtype", "mode", "workload" (weights or FLOPs).

        Raises
        ------
        TypeError
            If `other` is no Sweep.
        ValueError
            If `allow_different` has another name.
        IncompatibleRuns
            If the parameters differ, no point is in common, or something differs that is not allowed to. A null dtype
            or mode, which was not recorded, does not differ.
        """
        if not isinstance(other, Sweep):
            raise wrong_type("speedup", "other", "be a Sweep", other)
        allowed = {allow_different} if isinstance(allow_different, str) else {*allow_different}
        if unknown := allowed - {*_TRAITS}:
            names = ", ".join(_TRAITS)
            raise ValueError(
                f"The allow_different parameter of speedup must be of {names}. Got {sorted(unknown)} instead."
            )
        if {*self.parameters} != {*other.parameters}:
            problem = f"{[*self.parameters]} and {[*other.parameters]}"
            raise IncompatibleRuns(f"the sweeps have different parameters: {problem}", hint="compare equal points")
        keys = [pl.col(name).cast(self._type_with(other, name)) for name in self.parameters]
        right = other.ok.with_columns(keys)
        pairs = self.ok.with_columns(keys).join(right, on=[*self.parameters], maintain_order="left")
        pairs = pairs.filter(pl.col("examples_per_s") > 0, pl.col("examples_per_s_right") > 0)
        if pairs.is_empty():
            raise IncompatibleRuns("the sweeps have no point in common that ran", hint="sweep over the same values")
        differences = _differences(pairs)
        if refused := [name for name in differences if name not in allowed]:
            named = ", ".join(f"{name} ({differences[name]})" for name in refused)
            hint = f"to compare them anyway: speedup(other, allow_different={tuple(refused)!r})"
            raise IncompatibleRuns(f"the sweeps differ in {named}", hint=hint)
        frame = _typed(_ratios(pairs), self.parameters, SPEEDUP)
        texts = tuple(f"{name}: {values}" for name, values in differences.items())
        return Speedup(frame, self.names, other.names, _spearman(pairs), texts)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's rank correlation of FLOPs and time of the points that ran; None for fewer than three."""
        return _spearman(self.ok)

    def roofline(self, device: Device | str | None = None) -> Roofline:
        """Return the points that ran as rows of a roofline, "unknown" where FLOPs or bytes are.

        Parameters
        ----------
        device
            Device whose peaks are the roof, or its name; that of the sweep if None.

        Raises
        ------
        TpunbError
            If the device of the sweep has no known peaks.
        """
        name = self.names[0]
        chip = device_named(device) if isinstance(device, str) else device or self.chip
        chip = chip or next((each for each in DEVICES.values() if each.of_kind(name)), None)
        if chip is None:
            raise TpunbError(f"no peaks of the device {name!r}", hint="sweep.roofline('TPU v5e'), or another device")
        varying = [name for name in self.parameters if self.ok[name].n_unique() > 1]
        point = [pl.format("{} {}", pl.lit(name), pl.col(name)) for name in varying or self.parameters]
        work = {
            **{name: pl.col(name) for name in ("flops", "bytes")},
            "what": pl.concat_str(point, separator=", "),
            "count": pl.lit(1),
            "self_ps": pl.col("step_ps"),
            "dtype": pl.col("dtype").str.strip_prefix("mixed_").replace(_DTYPES),
            "share": pl.lit(1.0),
        }
        columns = [work.get(name, pl.lit(None)).cast(kind).alias(name) for name, kind in WORK.items()]
        return Roofline(self.ok.select(columns), chip, "point")

    @property
    def names(self) -> tuple[str, str]:
        """Device, and framework with its version, as texts that are safe to show."""
        device, framework, version = (
            " and ".join(sorted(plain(text) for text in self.frame[name].drop_nulls().unique()))
            for name in ("device", "framework", "version")
        )
        software = " ".join(filter(None, [framework or "software", version or "(version not recorded)"]))
        return device or "unknown device", software

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answers, each in one sentence without its full stop."""
        states = self.frame["state"].str.split(":").list.first().value_counts(sort=True)
        counts = [f"{count:,} {plain(state)}" for state, count in states.filter(pl.col("state") != "ok").rows()]
        missing = [f"{len(self.ok):,} of {plural(len(self), 'point')} ran, {', '.join(counts)}"] if counts else []
        varying = [name for name in self._numeric if self.ok[name].n_unique() > 1]
        varying.sort(key=self._batches, reverse=True)
        texts = [
            text
            for name in varying
            for text in (self.saturation(name).sentences if self._batches(name) else [self._cost(name)])
        ]
        return *(text for text in texts if text), *missing

    def __str__(self) -> str:
        device, software = self.names
        return f"{device}, {software}: {'; '.join(self.sentences) or plural(len(self), 'point')}"

    def __repr__(self) -> str:
        device, software = self.names
        parameters = ", ".join(plain(name) for name in self.parameters)
        return f"Sweep({plural(len(self), 'point')} of {parameters}, {len(self.ok):,} ok, {device}, {software})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.frame._repr_html_()}"

    def save(self, path: str | Path) -> Path:
        """Write the sweep as Parquet and return its path; ``Sweep.read`` reads it."""
        facts = {
            "format": FORMAT,
            "parameters": self.parameters,
            "chip": self.chip and self.chip.to_json(),
            "metadata": dict(self.metadata),
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        self.frame.write_parquet(part, compression="zstd", metadata={_KEY: json.dumps(facts)})
        return part.replace(path)

    @staticmethod
    def read(path: str | Path | bytes, *, name: str | None = None) -> Sweep:
        """Read what `save` wrote, by path or content; `name` replaces the path in errors.

        Raises
        ------
        BadProfile
            If the file is damaged, no sweep, or of another version.
        """
        name = plain(name or ("the file" if isinstance(path, bytes) else str(path)))
        data = path if isinstance(path, bytes) else Path(path).read_bytes()
        try:
            facts = json.loads(pl.read_parquet_metadata(io.BytesIO(data))[_KEY])
            if facts["format"] != FORMAT:
                problem = f"{name} is a sweep of format {plain(str(facts['format']))}; this version reads {FORMAT}"
                raise BadProfile(problem, hint="read it with the version of tpunb that wrote it")
            chip = facts["chip"] and Device.from_json(facts["chip"])
            frame = pl.read_parquet(io.BytesIO(data))
            return Sweep(frame, tuple(facts["parameters"]), chip, facts["metadata"])
        except KeyError as error:
            raise BadProfile(f"{name} is a Parquet file, but no sweep", hint="write sweeps with sweep.save") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError) as error:
            if isinstance(error, BadProfile):
                raise
            raise BadProfile(f"{name} is damaged, or no Parquet file") from error

    @property
    def _numeric(self) -> list[str]:
        return [name for name in self.parameters if self.frame[name].dtype.is_numeric()]

    def _named(self, name: str, method: str) -> str:
        """Return the name of a parameter."""
        if name not in self.parameters:
            near = get_close_matches(str(name), self.parameters, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{method}: unknown parameter {name!r}; {hint}parameters: {', '.join(self.parameters)}")
        return name

    def _type_with(self, other: Sweep, name: str) -> pl.DataType:
        """Return the type in which the values of a parameter of both sweeps compare."""
        types = self.frame.schema[name], other.frame.schema[name]
        numbers = all(dtype.is_numeric() for dtype in types)
        return types[0] if types[0] == types[1] else pl.Float64() if numbers else pl.String()

    def _batches(self, name: str) -> bool:
        """Return whether a parameter is the number of examples of a step."""
        return name in ("batch", "batch_size") or bool((self.ok[name] == self.ok["examples"]).fill_null(False).all())

    def _cost(self, name: str) -> str | None:
        """Return what twice the value of a parameter costs: the median of neighbouring values."""
        others = [each for each in self.parameters if each != name]
        step, size = (_over(pl.col(each).log(2).diff(), others) for each in ("step_ps", name))
        rows = self.ok.filter(pl.col(name) > 0).sort(name).select(slope=step / size).drop_nulls()
        slope = median(rows["slope"])
        return None if slope is None else f"twice the {plain(name)} costs {2**slope:.1f}x"

    def _terms(self, rows: pl.DataFrame, *, log: bool) -> dict[str, Any]:
        """Return the parameters as arrays, those of text as one per value."""
        terms = {}
        for name in self.parameters:
            if name in self._numeric:
                terms[name] = _logarithm(name, rows[name].to_numpy()) if log else rows[name].cast(pl.Float64).to_numpy()
            else:
                for value in rows[name].unique().sort()[1:]:
                    terms[f"{name}={value}"] = (rows[name] == value).cast(pl.Float64).to_numpy()
        return terms


def _checked(frame: pl.DataFrame, parameters: tuple[str, ...]) -> pl.DataFrame:
    """Return the frame of a sweep with all columns in order."""
    if not parameters:
        raise BadProfile("a sweep has no parameters", hint="name at least one column of its points")
    if twice := [name for name in parameters if name in _NAMES or parameters.count(name) > 1]:
        hint = f"rename it; other columns are {', '.join(sorted(_NAMES))}"
        raise BadProfile(f"the parameter {twice[0]!r} has the name of another column of a sweep", hint=hint)
    types: dict[str, pl.DataType] = {}
    for name in parameters:
        if name not in frame.columns:
            raise BadProfile(f"the sweep frame lacks the parameter {name!r}; it has {frame.columns}")
        dtype = (
            pl.Int64()
            if frame.schema[name].is_integer()
            else pl.Float64()
            if frame.schema[name].is_float()
            else frame.schema[name]
        )
        if dtype not in _TYPES:
            raise BadProfile(f"the parameter {name!r} of a sweep is of type {dtype}, not of numbers, Booleans or text")
        types[name] = dtype
    missing = [
        pl.lit(None, dtype).alias(name) for name, dtype in SWEEP.items() if name not in (*frame.columns, "state")
    ]
    checked = schema.check(frame.with_columns(missing), {**types, **SWEEP}, "sweep")
    rate = pl.col("examples") * 1e12 / pl.when(pl.col("step_ps") > 0).then("step_ps")
    checked = checked.with_columns(pl.coalesce("examples_per_s", rate))
    if checked.select(parameters).is_duplicated().any():
        raise BadProfile(
            "the sweep frame has two rows of one point", hint="aggregate them first, or name all parameters"
        )
    return checked


def _typed(frame: pl.DataFrame, parameters: Iterable[str], columns: schema.Schema) -> pl.DataFrame:
    """Return the columns of parameters, then those of a schema in its types."""
    return frame.select(*parameters, *(pl.col(name).cast(dtype) for name, dtype in columns.items()))


def _over(value: pl.Expr, names: list[str]) -> pl.Expr:
    return value.over(names) if names else value


def _standardised(values: Any) -> Any:
    deviation = values.std()
    return (values - values.mean()) / (deviation if deviation > 0 else 1)


def _logarithm(name: str, values: Any) -> Any:
    if not (values > 0).all():
        raise ValueError(f"log=True requires values above 0; {name} has {values.min()}")
    return np.log(values)


def _ratios(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return a join of two sweeps with the ratio of their throughputs, its interval and what that says."""
    rates, others = (
        [pl.col(f"{name}{end}") for name in ("examples_per_s", "step_ps", "low_ps", "high_ps")]
        for end in ("", "_right")
    )
    ends = [rate * step / end for rate, step, low, high in (rates, others) for end in (high, low)]
    pairs = pairs.with_columns(ratio=rates[0] / others[0], low=ends[0] / ends[3], high=ends[1] / ends[2])
    verdict = pl.when(pl.col("low") > 1).then(pl.lit("faster")).when(pl.col("high") < 1).then(pl.lit("slower"))
    verdict = verdict.when(pl.col("low").is_not_null()).then(pl.lit("not distinguishable"))
    return pairs.with_columns(verdict=verdict, other_examples_per_s="examples_per_s_right")


def _differences(pairs: pl.DataFrame) -> dict[str, str]:
    """Return which of dtype, mode and workload differ between the two sides of a join, with their values."""
    differences = {}
    for name in ("dtype", "mode"):
        unequal = pairs.filter(pl.col(name) != pl.col(f"{name}_right"))
        if len(unequal):
            differences[name] = " and ".join(plain(unequal[each][0]) for each in (name, f"{name}_right"))
    for name, most in _WORKLOAD.items():
        ratio = median(pairs[name] / pairs[f"{name}_right"])
        if ratio is not None and not 1 / (1 + most) <= ratio <= 1 + most:
            differences.setdefault("workload", f"{name} differ by a factor of {ratio:.3g}")
    return differences


def _spearman(rows: pl.DataFrame) -> float | None:
    rows = rows.select("flops", "step_ps").drop_nulls()
    if len(rows) < 3 or min(rows[name].n_unique() for name in rows.columns) < 2:
        return None
    return float(rows.select(pl.corr("flops", "step_ps", method="spearman")).item())
