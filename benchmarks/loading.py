"""Measure the time to load an XPlane into a frame of events, compared with all other readers.

``python benchmarks/loading.py [--quick] [FILE.xplane.pb]``, on two inputs: a synthetic host of a TPU pod with a million
events; and a training that it records, or FILE. Times are processor time (user and system, all threads), each in a
separate process, in rounds of random order. The last line is one JSON object, with the worse of the two inputs:

``vs_protobuf``, ``vs_profile_data``, ``vs_xprof`` (the fastest of its tools), ``vs_chrome``
    Their time divided by that of ``tpunb.io.xplane.read``, medians over the rounds.
``of_c``
    tpunb's time divided by that of a C program that decodes the same into plain arrays; null without gcc.
``memory_of_file``
    Peak additional memory of ``tp.load(file).events``, divided by the size of the file.
``cold_s``, ``steps_s``
    The first load in a process, of 10,000 events, without ``import tpunb``; ``tp.steps`` of the million events.
``file_ms``, ``many_mb``
    Time of ``tp.load`` and ``tp.steps`` for each of many files of 10,000 events, hosts of one pod, beyond 0.25 us an
    event, in milliseconds; the peak additional memory for all of them in megabytes. 500 files, with ``--quick`` 50.
``large_vs_xprof``
    Time of ``tp.load``, steps, phases, layers and top operations of a host of three million events, divided by that of
    XProf's overview page; null with ``--quick``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # if this file is not run by its name

import polars as pl
import rivals
import xspaces
from peak_memory import reset_peak, status

RIVALS = {
    "messages": "protobuf, a loop over messages",
    "profile_data": "JAX, a loop over ProfileData",
    "parquet": "XProf, Parquet and back",
    "overview": "XProf, overview page",
    "op_profile": "XProf, op profile",
    "chrome": "XProf, Chrome trace and json",
    "c": "C, bare arrays",
}
XPROF = ["parquet", "overview", "op_profile"]
MADE_UP, PART, TINY, LARGE = 1_000_000, 100_000, 10_000, 3_000_000  # events
EVENT_S = 0.25e-6  # time of an event that is no cost of its file


@dataclass(frozen=True)
class Plan:
    """Size of the measurement."""

    steps: int  # of the recorded training, about 1600 events each
    files: int  # of a pod
    sizes: tuple[int, ...]  # events of the synthetic inputs
    rounds: int = 5
    chrome_rounds: int = 1  # it takes half a minute


FULL = Plan(620, 500, (TINY, 30_000, PART, 300_000, MADE_UP, LARGE))
QUICK = Plan(200, 50, (TINY, 30_000, PART, 300_000, MADE_UP))


# -- tasks that run in separate processes and print JSON ----------------------------------------------------


def _side(name: str, file: Path) -> Callable[[], Any]:
    """Return the timed functions: XProf reads files, the others bytes."""
    if name == "tpunb":
        from tpunb.io import xplane

        data = file.read_bytes()
        return lambda: xplane.read(data, source=file.name)[0]
    if name == "c":
        return partial(rivals.in_c(file.with_name("decoder.so")), file.read_bytes())
    rival = getattr(rivals, name)
    return partial(rival, file.read_bytes() if name in ("messages", "profile_data") else file)


def _seconds(what: Callable[[], Any]) -> float:
    begin = time.process_time()
    what()
    return time.process_time() - begin


def timed(name: str, file: str, unmeasured: str, calls: str) -> float:
    """Return the median time of calls, after some warm-up calls."""
    what = _side(name, Path(file))
    for _ in range(int(unmeasured)):
        what()
    return statistics.median(_seconds(what) for _ in range(int(calls)))


def agreed(path: str, tiny: str, *names: str) -> dict[str, list[float]]:
    """Return the number of events of each reader, and the time of one call on a tiny file and on this one.

    The loops must say the same as tpunb, the others find as many; but XProf leaves events out of a Chrome trace.
    """
    answers, found = {}, {}
    for name in names:
        small, what = _side(name, Path(tiny)), _side(name, Path(path))
        small()  # imports
        begin = _seconds(small), time.process_time()
        answers[name] = what()
        found[name] = [_events(answers[name]), begin[0], time.process_time() - begin[1]]
    ours = answers["tpunb"]
    for name in names:
        if name in ("messages", "profile_data"):
            _check_same(ours, answers[name])
        assert found[name][0] in (ours.height, -1) or name == "chrome", f"{name}: {found[name][0]}, not {ours.height}"
    return found


def _events(answer: Any) -> int:
    """Return the number of events in a result, -1 for sums."""
    return int(answer[0]) if isinstance(answer, tuple) else getattr(answer, "height", -1)


def _check_same(ours: pl.DataFrame, theirs: pl.DataFrame) -> None:
    """Check that a loop found the same events; JAX has fewer statistics and whole nanoseconds."""
    exact = "shared_flops" in theirs
    words = ["host", "plane", "line", "name"] if exact else ["plane"]
    for name in words:
        assert (ours[name].cast(pl.String) == theirs[name].cast(pl.String)).all(), f"{name} differs"
    for name in ("start_ps", "dur_ps"):
        assert ((ours[name] - theirs[name]).abs() < (1 if exact else 1000)).all(), f"{name} differs"
    for column, stat in (("step_num", "step_num"), ("flow_out", "_p"), ("flow_in", "_c")):
        known = theirs[stat].is_not_null() if stat in theirs else pl.repeat(False, ours.height, eager=True)
        assert (ours[column].is_not_null() == known).all(), f"{column} is set for other events"


def memory(path: str, tiny: str) -> float:
    """Return the peak additional memory of loading a file, divided by its size."""
    import tpunb as tp

    _ = tp.load(tiny).events.height
    before = reset_peak()
    kept = tp.load(path).events
    assert kept.height
    return (status("VmHWM") - before) / Path(path).stat().st_size


def many(folder: str, tiny: str) -> list[float]:
    """Return processor seconds of loading a folder of hosts and finding steps, events, and peak additional bytes."""
    import tpunb as tp

    tp.steps(tp.load(tiny))
    before, begin = reset_peak(), time.process_time()
    profile = tp.load(folder)
    tp.steps(profile)
    took, peak = time.process_time() - begin, status("VmHWM") - before
    return [took, int(profile.windows["events"].sum()), peak]


def whole(path: str, tiny: str) -> float:
    """Return processor seconds of loading a file, and finding its steps, phases, layers and top operations."""
    import tpunb as tp

    for file in (tiny, path):
        begin = time.process_time()
        found = tp.steps(tp.load(file))
        tp.phases(found).top(10)
        _ = found.layers.height
    return time.process_time() - begin


def cold(path: str) -> list[float]:
    """Return processor and wall seconds of the first load in a process, without ``import tpunb``."""
    import tpunb as tp

    begin = time.process_time(), time.perf_counter()
    _ = tp.load(path).events.height
    return [time.process_time() - begin[0], time.perf_counter() - begin[1]]


def steps(path: str) -> list[float]:
    """Return processor and wall seconds of ``tp.steps`` on decoded events, and the number of steps."""
    import tpunb as tp

    profile = tp.load(path)
    found = tp.steps(profile)  # decodes, compiles
    times = []
    for _ in range(3):
        begin = time.process_time(), time.perf_counter()
        tp.steps(profile)
        times.append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
    return [*map(statistics.median, zip(*times, strict=True)), len(found)]


def linear(*paths: str) -> list[float]:
    """Return the time of tpunb on each file, medians of interleaved calls."""
    sides = {path: _side("tpunb", Path(path)) for path in paths}
    times: dict[str, list[float]] = {path: [] for path in paths}
    for number in range(4):
        for path in random.sample(paths, len(paths)):
            took = _seconds(sides[path])
            times[path] += [took] if number else []
    return [statistics.median(times[path]) for path in paths]


def recorded(folder: str, count: str) -> str:
    """Return the path of the capture of a training."""
    return str(xspaces.recorded(Path(folder), int(count)))


_TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (timed, agreed, memory, many, whole, cold, steps, linear, recorded)
}


def start(task: str, *args: object) -> subprocess.Popen[str]:
    """Start a task in a separate process."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TPUNB_CACHE": "off"}
    command = [sys.executable, __file__, "--task", task, *map(str, args)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **quiet}
    )


def answer(child: subprocess.Popen[str]) -> Any:
    """Return the result of a task that was started."""
    out, err = child.communicate()
    if child.returncode:
        sys.exit(f"a measurement failed: {' '.join(map(str, child.args[3:]))}\n{err[-2000:]}")
    return json.loads(out.splitlines()[-1])


def run(task: str, *args: object) -> Any:
    """Return the result of a task."""
    return answer(start(task, *args))


# -- the comparison --------------------------------------------------------------------------------------------


def by_rounds(file: Path, plan: Plan, sides: list[str]) -> dict[str, list[float]]:
    """Return the ratio of each reader's time to tpunb's, one per round; the time itself for "tpunb"."""
    ratios: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(plan.rounds):
        due = [name for name in sides if name != "chrome" or number < plan.chrome_rounds]
        calls = {name: 5 if name in ("tpunb", "c") else 1 for name in due}
        took = {name: run("timed", name, file, 1, calls[name]) for name in random.sample(due, len(due))}
        for name in due:
            ratios[name].append(took[name] / (took["tpunb"] if name != "tpunb" else 1))
    return ratios


def at_once(found: dict[str, list[float]], file: Path, sides: list[str], share: int) -> dict[str, list[float]]:
    """Return ratios like `by_rounds` from one call each; those of a part are extrapolated through TINY."""
    ours = run("timed", "tpunb", file, 1, 5)
    ratios = {"tpunb": [ours]}
    for name in sides[1:]:
        events, tiny, took = found["tpunb"][0], *found[name][1:]
        if share > 1:
            took += (took - tiny) / (events - TINY) * events * (share - 1)
        ratios[name] = [(run("timed", name, file, 1, 5) if name == "c" else took) / ours]
    return ratios


def report(ratios: dict[str, list[float]], found: dict[str, list[float]]) -> dict[str, float]:
    """Print the comparison on one input, and return its values of the last line."""
    middle = {name: statistics.median(every) for name, every in ratios.items()}
    ours = middle["tpunb"]
    print(f"  {'tpunb':32} {ours * 1e3:8.0f} ms  {found['tpunb'][0]:,} events agreed on")
    for name, words in RIVALS.items():
        if name in middle:
            span = f"[{min(ratios[name]):.2f} .. {max(ratios[name]):.2f}]" if len(ratios[name]) > 1 else ""
            few = name in found and found[name][0] not in (-1, found["tpunb"][0])
            lack = f" gives {found[name][0]:,} of {found['tpunb'][0]:,} events" if few else ""
            print(f"  {words:32} {middle[name] * ours * 1e3:8.0f} ms {middle[name]:7.2f}x  {span}{lack}")
    keys = {"vs_protobuf": "messages", "vs_profile_data": "profile_data", "vs_chrome": "chrome"}
    result = {key: middle[name] for key, name in keys.items() if name in middle}
    result["vs_xprof"] = min(middle[name] for name in XPROF)
    return result | ({"of_c": 1 / middle["c"]} if "c" in middle else {})


def compared(title: str, file: Path, plan: Plan, sides: list[str], part: Path) -> dict[str, float]:
    """Print the comparison on one input, and return its ratios; the other readers may get only a `part`."""
    tiny = file.with_name(f"{TINY}.xplane.pb")
    if plan is QUICK:
        found = run("agreed", part, tiny, *sides)
        share = 1 if part == file else MADE_UP // PART
        ratios = at_once(found, file, sides, share)
        title += ": one call of each rival" + (f", on {PART:,} of the events, extrapolated" if share > 1 else "")
    else:
        found = run("agreed", file, tiny, *(name for name in sides if name not in ("overview", "op_profile")))
        ratios = by_rounds(file, plan, sides)
    print(f"\n{title}; {file.stat().st_size / 1e6:.1f} MB", flush=True)
    return report(ratios, found)


def worse(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return the less favourable ratio of two inputs: the larger one if it should be small."""
    small = {"of_c", "memory_of_file", "cold_s", "steps_s"}
    both = {key: [part[key] for part in (one, other) if key in part] for key in {**one, **other}}
    return {key: max(values) if key in small else min(values) for key, values in both.items()}


def alone(big: list[Path], tiny: Path) -> dict[str, float]:
    """Print and return memory, the first call, and steps."""
    result: dict[str, float] = {}
    run("cold", tiny)  # fills numba's cache
    firsts = [run("cold", tiny) for _ in range(3 if len(big) > 1 else 1)]
    cpu, wall = (statistics.median(column) for column in zip(*firsts, strict=True))
    result["cold_s"] = cpu
    print(f"\nfirst load of a process: {cpu:.2f} s of processor, {wall:.2f} s of wall time")
    for file in big:
        share = run("memory", file, tiny)
        cpu, wall, count = run("steps", file)
        print(f"{file.name}: {share:.1f} x the file's size in memory; {count} steps in {cpu:.2f} s, wall {wall:.2f} s")
        result = worse(result, {"memory_of_file": share, "steps_s": cpu})
    return result


def of_pod(folder: Path, files: int, tiny: Path) -> dict[str, float]:
    """Print and return what many small files cost."""
    folder.mkdir()
    for number in range(files):
        (folder / f"host-{number}.xplane.pb").write_bytes(xspaces.made_up(TINY, host=f"host-{number}"))
    took, events, peak = run("many", folder, tiny)
    file_ms = (took - EVENT_S * events) / files * 1e3
    print(
        f"\n{files} files of {events / files:,.0f} events: {took:.2f} s, {file_ms:.1f} ms a file, {peak / 1e6:.0f} MB"
    )
    return {"file_ms": file_ms, "many_mb": peak / 1e6}


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a capture of yours in place of the one it records")
    parser.add_argument("--quick", action="store_true", help="a coarse answer in under 50 seconds")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording = None if options.file else start("recorded", folder / "log", plan.steps)
        made = {size: folder / f"{size}.xplane.pb" for size in plan.sizes}
        for size, file in made.items():
            file.write_bytes(xspaces.made_up(size))
        real = folder / "real.xplane.pb"
        real.symlink_to(Path(options.file or answer(recording)).resolve())
        sides = ["tpunb", *(name for name in RIVALS if name != "c" or rivals.compiled(folder / "decoder.so"))]
        pod = compared("a TPU pod's host, made up, 1 M events", made[MADE_UP], plan, sides, made[PART])
        if options.quick:  # a small capture shows only fixed costs of C, and Chrome takes seconds
            sides = [name for name in sides if name not in ("c", "chrome")]
        title = options.file.name if options.file else "a training on the CPU, recorded"
        result = worse(pod, compared(title, real, plan, sides, real))
        result |= alone([made[MADE_UP], *([] if options.quick else [real])], made[TINY])
        result |= of_pod(folder / "pod", plan.files, made[TINY])
        if LARGE in made:
            result["large_vs_xprof"] = run("whole", made[LARGE], made[TINY]) / run(
                "timed", "overview", made[LARGE], 0, 1
            )
        print("\ntime per event by size, synthetic:")
        for (size, _), took in zip(made.items(), run("linear", *made.values()), strict=True):
            print(f"  {size:9,} events {took * 1e3:8.1f} ms {took / size * 1e9:6.0f} ns per event")
    order = ["vs_protobuf", "vs_profile_data", "vs_xprof", "vs_chrome", "of_c", "memory_of_file", "cold_s", "steps_s"]
    order += ["file_ms", "many_mb", "large_vs_xprof"]
    print(json.dumps({key: round(result[key], 2) if key in result else None for key in order}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(_TASKS[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
