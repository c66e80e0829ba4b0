"""Measure what it costs to read a simulated pod, in this process, on Dask and with XProf, and to find its stragglers.

``python benchmarks/pods.py [--quick]``: XPlane files of 1,000 hosts x 4 chips x 20 steps x 63 operations, 5 million
events, made from a sample. Processor time is user and system time of all threads; each measurement is made in a
separate process after a small load, so that imports and compilation do not count. The last line is one JSON object:

``cpu_s``
    Processor time of ``tp.load`` and ``tp.steps`` in one process. With ``--quick`` of 200 hosts, times five.
``vs_xprof``
    The same divided by that of XProf's overview page of the same files.
``peak_mb``
    Peak memory of a process that loads them, above that after ``import tpunb``, without a small load before.
``dask_cpu``
    Processor time of client, scheduler and two workers of one thread, divided by that in one process.
``dask_wall``
    Wall time with two workers divided by that with one: rounds in alternation, median of the quieter half.
``hosts_s``
    Processor time of ``tp.hosts`` on 1,000 hosts x 500 steps x 8 collectives.

Frames of both ways are compared to the row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # if this file is not run by its name

HOSTS, QUICK = 1000, 200
CHIPS, STEPS, OPS, COLLECTIVES = 4, 20, 60, 3
ROUNDS, QUICK_ROUNDS = 9, 2
SMALL = 3  # files of the load before
ONE_THREAD = {"POLARS_MAX_THREADS": "1"}  # Dask itself limits other libraries
TABLES = ("frame", "ops", "devices", "windows")


def made(folder: str, hosts: str) -> float:
    """Write the files of a pod; return their size in megabytes."""
    from simulate.pod import Fault, pod
    from simulate.step_program import step_program

    import tpunb as tp

    program = step_program(tp.sample("resnet-imagenet"), ops=OPS, collectives=COLLECTIVES)
    faults = [Fault("slow chip", (3,), 0.1), Fault("slow input", (5,), 0.1)]
    pod(program, hosts=int(hosts), chips=CHIPS, steps=STEPS, faults=faults, folder=folder)
    return sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6


def files_of(folder: str) -> list[str]:
    """Return the files of a pod."""
    return sorted(str(file) for file in Path(folder).glob("*.xplane.pb"))


def loaded(folder: str) -> list[float]:
    """Return the processor time of loading a pod, and its events."""
    import tpunb as tp
    from tpunb.io import formats

    formats.MANY = 0
    tp.steps(tp.load(files_of(folder)[:SMALL]))
    begin = time.process_time()
    profile = tp.load(folder)
    tp.steps(profile)
    return [time.process_time() - begin, int(profile.windows["events"].sum())]


def peak(folder: str) -> float:
    """Return the peak memory of loading a pod above that after ``import tpunb``, in megabytes."""
    import tpunb as tp

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tp.steps(tp.load(folder))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def overview(folder: str) -> float:
    """Return the processor time of XProf's overview page."""
    from xprof.convert import raw_to_tool_data

    with tempfile.TemporaryDirectory() as name:  # XProf caches beside the files
        for number, some in enumerate([files_of(folder)[:SMALL], files_of(folder)]):
            run = Path(name, str(number))
            run.mkdir()
            for file in some:
                (run / Path(file).name).symlink_to(file)
            begin = time.process_time()
            data, _ = raw_to_tool_data.xspace_to_tool_data(files_of(str(run)), "overview_page", {})
        assert data
        return time.process_time() - begin


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Yield the client of workers of one thread each, which have read a small pod."""
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1", "env": ONE_THREAD}
    with LocalCluster(n_workers=workers, **options) as local, Client(local) as client:
        yield client


def used() -> tuple[float, float]:
    """Return processor time and peak memory, in seconds and megabytes, of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def dask(folder: str, rounds: str) -> dict[str, Any]:
    """Return times and memory of loading a pod on one and two workers, and whether the frames are as without."""
    import tpunb as tp

    files, walls, totals = files_of(folder), dict[int, list[float]]({1: [], 2: []}), list[float]()
    with cluster(1) as one, cluster(2) as two:
        for client in (one, two):
            client.run(tp.load, files[:SMALL])
            tp.load(files[:SMALL], client=client)
        for _ in range(int(rounds)):
            for number, client in ((1, one), (2, two)):
                before, mine, begin = client.run(used), used(), time.perf_counter()
                steps = tp.steps(tp.load(folder, client=client))
                walls[number].append(time.perf_counter() - begin)
                after, now = client.run(used), used()
                if number == 2:
                    totals.append(now[0] - mine[0] + sum(after[name][0] - before[name][0] for name in after))
        memory = [now[1], max(of_worker[1] for of_worker in after.values())]
        expected = tp.steps(tp.load(folder))
        pairs = [(getattr(steps, name), getattr(expected, name)) for name in TABLES]
        hosts = ("frame", "ops", "collectives", "lost")
        pairs += [(getattr(steps.by_host, name), getattr(expected.by_host, name)) for name in hosts]
        same = all(one.equals(two) for one, two in pairs)
    return {"one": walls[1], "two": walls[2], "cpu": min(totals), "memory": memory, "same": same}


def stragglers() -> float:
    """Return the processor time of ``tp.hosts``."""
    import pod_tables
    from simulate.pod import Fault, pod
    from simulate.step_program import step_program

    import tpunb as tp

    program = step_program(tp.sample("resnet-imagenet"), ops=OPS, collectives=8)
    for hosts, steps in ((20, 10), (1000, 500)):
        simulated = pod_tables.job_steps(pod(program, hosts=hosts, steps=steps, faults=[Fault("slow chip", (3,), 0.1)]))
        begin = time.process_time()
        found = tp.hosts(simulated)
    assert found.frame["host"][0] == "pod-0003"
    return time.process_time() - begin


_TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (made, loaded, peak, overview, dask, stragglers)
}


def run(task: str, *args: object) -> Any:
    """Return the result of a task in a separate process."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TPUNB_CACHE": "off"}
    command = [sys.executable, __file__, "--task", task, *map(str, args)]
    child = subprocess.run(command, text=True, capture_output=True, env={**os.environ, **quiet}, check=False)
    if child.returncode:
        sys.exit(f"a measurement failed: {task}\n{child.stderr[-2000:]}")
    return json.loads(child.stdout.splitlines()[-1])


def quieter(one: list[float], two: list[float]) -> float:
    """Return the median ratio of the rounds that took less time together."""
    pairs = sorted(zip(one, two, strict=True), key=sum)[: (len(one) + 1) // 2]
    return statistics.median(b / a for a, b in pairs)


def main() -> None:
    """Print the measurements, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a coarse answer in under 50 seconds")
    quick = parser.parse_args().quick
    hosts, result = QUICK if quick else HOSTS, dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        folder = str(Path(name, "pod"))
        size = run("made", folder, hosts)
        times = [run("loaded", folder) for _ in range(1 if quick else 3)]
        took, events = min(times)
        print(f"{hosts} hosts, {events / 1e6:.2f} M events, {size:.0f} MB: {took:.2f} s of processor", flush=True)
        result["cpu_s"] = took * HOSTS / hosts
        if quick:
            print(f"cpu_s is scaled to {HOSTS} hosts: {took:.2f} s times {HOSTS / hosts:g}")
        xprof = run("overview", folder)
        result["vs_xprof"] = took / xprof
        print(f"XProf's overview page: {xprof:.2f} s")
        result["peak_mb"] = run("peak", folder)
        print(f"peak memory of {hosts} hosts: {result['peak_mb']:.0f} MB above the process")
        if not quick:
            fewer = str(Path(name, "fewer"))
            run("made", fewer, 300)
            print(f"and of 300 hosts: {run('peak', fewer):.0f} MB")
        found = run("dask", folder, QUICK_ROUNDS if quick else ROUNDS)
        assert found["same"], "frames differ"
        client, worker = found["memory"]
        result["dask_cpu"], result["dask_wall"] = found["cpu"] / took, quieter(found["one"], found["two"])
        print(f"Dask: {found['cpu']:.2f} s of processor; client {client:.0f} MB, a worker {worker:.0f} MB at most")
        print(f"wall time of one worker {min(found['one']):.2f} s, of two {min(found['two']):.2f} s; equal frames")
    result["hosts_s"] = run("stragglers")
    print(f"tp.hosts of 1000 hosts x 500 steps x 8 collectives: {result['hosts_s']:.2f} s")
    print(json.dumps({key: round(value, 2) for key, value in result.items()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(_TASKS[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
