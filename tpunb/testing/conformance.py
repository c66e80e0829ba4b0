"""Conformance tests of the extension points: each raises AssertionError with the object, the rule and the value."""

from __future__ import annotations

import json
import operator
import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.cluster.base import Curve as Curve
from tpunb.cluster.base import SliderSpec as SliderSpec
from tpunb.errors import NoSteps, TpunbError
from tpunb.frames import Profile, Steps
from tpunb.frames.phases import Labels as Labels
from tpunb.frames.phases import PhaseMethod
from tpunb.profiler.capture import null_run as null_run
from tpunb.profiler.reducer import decode
from tpunb.step_stats.reduce import StepRule
from tpunb.step_stats.reduce import steps as steps_of
from tpunb.testing.builders import toy_events, toy_steps

_PATTERNS = ("", "a", "aa", "aaabbb", "abcdefgh", "ab" * 20)
_PROPOSALS = 200  # of an endless search
_STOP_S = 20.0
_STEP_SOURCES = ("optimizer", "counter", "name", "")


def _require(holds: object, subject: object, rule: str, value: object) -> None:
    if not holds:
        raise AssertionError(f"{subject!r}: {rule}; got {value if isinstance(value, str) else repr(value)}")


def check_method(method: PhaseMethod) -> None:
    """Check that a phase method returns valid labels.

    It returns one integer of at least -1 per step, and the same ones when called again; for no steps, one step, two
    hosts, steps that all differ, and steps without operations.

    Parameters
    ----------
    method
        Function from `Steps` to one integer per step, -1 for noise.

    Raises
    ------
    AssertionError
        The labels break a rule.

    >>> from tpunb.cluster import DBSCAN
    >>> check_method(DBSCAN())
    >>> check_method(len)
    Traceback (most recent call last):
    AssertionError: <built-in function len>: one int a step; got 0 for Steps(0 steps, 0 ops, 0 traced in full)
    """
    for steps in (*map(toy_steps, _PATTERNS), _two_hosts(), _idle()):
        labels = _integers(method, steps)
        again = _integers(method, Steps(steps.frame, steps.ops))
        _require(len(labels) == len(steps), method, "one label a step", f"{len(labels)} for {steps!r}")
        _require(min(labels, default=0) >= -1, method, "no label below -1", f"{min(labels, default=0)} for {steps!r}")
        _require(labels == again, method, "the same twice", f"{labels} and {again} for {steps!r}")


def _integers(method: PhaseMethod, steps: Steps) -> list[int]:
    labels = method(steps)
    try:
        return [operator.index(label) for label in labels]
    except TypeError as error:
        raise AssertionError(f"{method!r}: one int a step; got {labels!r} for {steps!r}") from error


def _two_hosts() -> Steps:
    first, second = toy_steps("aaabbb", host="one"), toy_steps("ababab", host="two")
    return Steps(pl.concat([second.frame, first.frame]), pl.concat([second.ops, first.ops]))


def _idle() -> Steps:
    steps = toy_steps("aaa")
    return Steps(steps.frame, steps.ops.clear())


def check_source(source: Any, *, seconds: float = 0.2) -> None:
    """Check that a capture source starts, returns windows, stops and annotates steps.

    Its facts can be written as JSON. A window is an XSpace, or maps the names of workers to XSpaces or `TpunbError`.
    `stop` may be called without a window and repeatedly; called from another thread it ends a window early. `step`
    returns a context manager that raises what its block raises.

    Parameters
    ----------
    source
        Source that can be profiled now.
    seconds
        Length of a window.

    Raises
    ------
    AssertionError
        The source breaks a rule.
    """
    missing = [name for name in ("start", "facts", "window", "stop", "step") if not callable(getattr(source, name, 0))]
    _require(not missing, source, "a source has start, facts, window, stop and step", f"no {', '.join(missing)}")
    source.start()
    facts = source.facts()
    try:
        _require(isinstance(facts, dict) and json.dumps(facts), source, "facts() is a dict for JSON", facts)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{source!r}: facts() is a dict for JSON; {error}") from error
    source.stop()  # without a window
    _check_window(source, _window(source, seconds))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(_window(source, 10 * _STOP_S)), daemon=True)
    thread.start()
    for _ in range(round(_STOP_S / 0.05)):
        source.stop()
        thread.join(0.05)
        if not thread.is_alive():
            break
    _require(results, source, "stop() ends the window under way", f"no window {_STOP_S:g} s later")
    _check_window(source, results[0])
    step = source.step("train", 7)
    _require(isinstance(step, AbstractContextManager), source, "step() returns a context manager", step)
    try:
        with step:
            raise KeyError("a step fails")
    except KeyError:
        return
    raise AssertionError(f"{source!r}: step() raises what its block raises; got no KeyError")


def _window(source: Any, seconds: float) -> object:
    try:
        return source.window(seconds)
    except Exception as error:  # noqa: BLE001  _check_window reports it
        return error


def _check_window(source: Any, window: object) -> None:
    _require(window and isinstance(window, bytes | Mapping), source, "window() returns bytes or a mapping", window)
    for worker, part in (window if isinstance(window, Mapping) else {"window": window}).items():
        _require(isinstance(part, bytes | TpunbError), source, f"{worker} is bytes or a TpunbError", part)
        if isinstance(part, bytes):
            try:
                decode(part, str(worker))
            except TpunbError as error:
                raise AssertionError(f"{source!r}: {worker} is an XSpace; {error}") from error


def check_step_rule(rule: StepRule, profile: Profile | None = None) -> None:
    """Check that a step rule returns valid steps.

    One row per (host, step) with ``host``, ``step``, ``start_ps`` and ``dur_ps`` of at least 0, none null; hosts of the
    profile; the same rows when called again; no rows for a profile without events.

    Parameters
    ----------
    rule
        Function from a `Profile` to a frame.
    profile
        Profile in which the rule finds steps. A toy profile by default, in which it may find none.

    Raises
    ------
    AssertionError
        The frame breaks a rule.

    >>> annotated = pl.col("step_num").is_not_null()
    >>> check_step_rule(lambda profile: profile.events.filter(annotated).rename({"step_num": "step"}))
    """
    given = _toy_profile() if profile is None else profile
    hosts = set(given.events["host"].unique().cast(pl.String))
    try:
        steps = [steps_of(given, by=rule).frame for _ in range(2)]
    except NoSteps as error:
        if profile is not None:
            raise AssertionError(f"{rule!r}: the rule finds steps in {profile!r}; got none") from error
    except TpunbError as error:
        raise AssertionError(str(error)) from error
    else:
        others = set(steps[0]["host"].cast(pl.String)) - hosts
        _require(not others, rule, f"hosts are of {sorted(hosts)}", others)
        _require(steps[0].equals(steps[1]), rule, "the same steps when called again", steps[1])
    empty = rule(_profile(given.events.clear())).lazy().collect()
    _require(empty.is_empty(), rule, "no steps without events", empty)


def _toy_profile() -> Profile:
    rows: list[tuple[str, str, str, int, int] | tuple[str, str, str, int, int, int]] = [
        *(("/host:CPU", "python", "train", 10 * n, 9, n) for n in range(4)),
        *(("/device:TPU:0", "Steps", str(n), 10 * n + 1, 8) for n in range(4)),
        *(("/device:TPU:0", "XLA Modules", "jit_train(1)", 10 * n + 1, 8) for n in range(4)),
        *(("/device:TPU:0", "XLA Ops", "fusion.1", 10 * n + 2, 5) for n in range(4)),
    ]
    return _profile(pl.concat([toy_events(*rows, host=host) for host in ("one", "two")]))


def _profile(events: pl.DataFrame) -> Profile:
    windows, hardware = pl.DataFrame(schema=schema.WINDOWS), pl.DataFrame(schema=schema.HARDWARE)
    return Profile("toy", "toy", windows, hardware, span_ps=40_000_000, read_events=lambda: events)


def check_search(search: Callable[[Any], Generator[Mapping[str, Any], float | None, None]]) -> None:
    """Check that a search proposes valid values.

    ``search(space)`` is a generator. It yields mappings of names in the space to values of their domain, which do not
    change later. It accepts a cost or None (the trial failed) for each, and can be closed at any time. An empty space
    is no error.

    Parameters
    ----------
    search
        Function from a space to a generator, as ``tp.tune(job, search=search)`` takes it.

    Raises
    ------
    AssertionError
        The search breaks a rule.
    """
    costs: dict[str, Callable[[int], float | None]] = {
        "falling": lambda n: 1 / (n + 1),
        "rising": lambda n: n + 1.0,
        "None": lambda n: None,
        "sometimes None": lambda n: None if n % 2 else 1.0,
    }
    for space in _toy_spaces():
        for name, cost in costs.items():
            _check_proposals(search, space, name, cost)
        closed = search(space)
        next(closed, None)
        closed.close()


def _check_proposals(search: Any, space: Any, name: str, cost: Callable[[int], float | None]) -> None:
    proposals, kept = search(space), []
    _require(hasattr(proposals, "send"), search, "a search is a generator", proposals)
    try:
        values = next(proposals)
        for n in range(_PROPOSALS):
            _require(isinstance(values, Mapping), search, "a proposal is a mapping", values)
            for key, value in values.items():
                _require(key in space, search, f"names are of {list(space)}", key)
                _require(_is_in(space[key], value), search, f"a value of {key!r} is in {space[key]}", value)
            kept.append((values, dict(values)))
            values = proposals.send(cost(n))
    except StopIteration:
        pass
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{search!r}: a search accepts any cost; {error!r} with costs {name}") from error
    proposals.close()
    changed = [(dict(values), copy) for values, copy in kept if dict(values) != copy]
    _require(not changed, search, "a proposal does not change later", changed[:1])


def _is_in(domain: tuple[Any, ...], value: Any) -> bool:
    """Return whether a value is of a domain, or an integer between two of its integers."""
    if any(type(value) is type(each) and value == each for each in domain):
        return True
    numbers = [each for each in domain if type(each) is int and each >= 0]
    return type(value) is int and bool(numbers) and min(numbers) <= value <= max(numbers)


def _toy_spaces() -> list[Any]:
    """Return spaces without parameters, with one, and with several."""
    from tpunb.tuning.parameters import Kind, Parameter
    from tpunb.tuning.search import Space, StepCosts

    parameters = (
        Parameter(Kind.PREFETCH, "end", 0, (0, 1, 2, 4, -1), "safe", "toy"),
        Parameter(Kind.CALLS, "map:1(parse)", 1, (1, 2, 4, 8, -1), "safe", "toy"),
        Parameter(Kind.POOL, "options", 0, (0, 2, 4), "verify", "toy"),
        Parameter(Kind.COPY, "batch:2", False, (False, True), "verify", "toy"),
    )
    return [Space(parameters[:n], lambda: StepCosts(0.01), cores=2) for n in (0, 1, len(parameters))]


def check_checkpoint_format(reader: Any, folder: Path) -> None:
    """Check that a checkpoint format lists its checkpoints and survives damaged ones.

    ``reader.find(folder, names)`` yields, for a folder and the names of its files, what a `Checkpoint` or a `Skipped`
    states: a path in the folder, and either a reason or the step (None or at least 0) and its source, the time in UTC,
    the size and the parts. It yields the same when called again, nothing for an empty folder, and raises nothing if a
    file is empty or truncated. It changes no file.

    Parameters
    ----------
    reader
        Module of `tpunb.checkpoint.formats` or an object with ``find``, or that function.
    folder
        Folder with at least one complete checkpoint of the format.

    Raises
    ------
    AssertionError
        The reader breaks a rule.
    """
    before = _contents(folder)
    listed = _listed(reader, folder)
    good = [each for each in listed if not hasattr(each, "reason") or hasattr(each, "step")]
    _require(good, reader, f"the reader finds a checkpoint in {folder}", listed)
    for each in listed:
        _require(Path(each.path).is_relative_to(folder), reader, f"paths are in {folder}", each.path)
    for each in good:
        _require(each.step is None or operator.index(each.step) >= 0, reader, "a step is None or >= 0", each.step)
        _require(each.step_from in _STEP_SOURCES, reader, f"step_from is one of {_STEP_SOURCES}", each.step_from)
        _require((each.step is None) == (each.step_from == ""), reader, "step_from names the step's source", each)
        _require(each.time.utcoffset() is not None, reader, "a time has a time zone", each.time)
        _require(each.size > 0, reader, "a size is the bytes of the files", each.size)
        _require(all(isinstance(part, str) for part in each.holds), reader, "holds are names of parts", each.holds)
    _require(_listed(reader, folder) == listed, reader, "the same checkpoints when called again", listed)
    with TemporaryDirectory() as scratch:
        empty = Path(scratch) / "empty"
        empty.mkdir()
        _require(not _listed(reader, empty), reader, "no checkpoint in an empty folder", _listed(reader, empty))
        for number, name in enumerate(sorted(before)):
            for share in (0.0, 0.5):
                damaged = Path(scratch) / f"{number}-{share}" / folder.name
                shutil.copytree(folder, damaged)
                data = (damaged / name).read_bytes()
                (damaged / name).write_bytes(data[: int(share * len(data))])
                try:
                    _listed(reader, damaged)
                except Exception as error:
                    raise AssertionError(f"{reader!r}: a damaged {name} is skipped; got {error!r}") from error
                shutil.rmtree(damaged)
    _require(_contents(folder) == before, reader, "no file is changed", sorted(_contents(folder)))


def _listed(reader: Any, folder: Path) -> list[Any]:
    find: Callable[[Path, list[str]], Iterable[Any]] = getattr(reader, "find", reader)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return list(islice(find(folder, names), 10_000))


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
