"""How long an XPlane takes to become a frame of events: ours beside a loop over the protobuf library's messages.

``python benchmarks/decode.py [--quick] [FILE.xplane.pb]``; without a file, a window of 150,000 events is made up.
Both sides in one run, in turns; processor time of the process, for the machine may be busy with other things.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tpunb.io import xplane


def made_up(steps: int = 500, ops: int = 300) -> bytes:
    """Return a window of `steps` training steps of `ops` framework operations each."""
    space = xplane_pb2.XSpace(hostnames=["made-up"])
    cpu = space.planes.add(name="/host:CPU")
    cpu.stat_metadata[1].CopyFrom(xplane_pb2.XStatMetadata(id=1, name="step_num"))
    for op in range(ops):
        name = f"layer_{op}/Op{op % 60}:Op{op % 60}"
        cpu.event_metadata[op].CopyFrom(xplane_pb2.XEventMetadata(id=op, name=name, display_name=f"Op{op % 60}"))
    cpu.event_metadata[ops].CopyFrom(xplane_pb2.XEventMetadata(id=ops, name="train"))
    python, worker = cpu.lines.add(id=1, name="python"), cpu.lines.add(id=2, name="worker")
    for step in range(steps):
        begin = step * 2_000_000_000
        mark = python.events.add(metadata_id=ops, offset_ps=begin, duration_ps=2_000_000_000)
        mark.stats.add(metadata_id=1, int64_value=step)
        for op in range(ops):
            worker.events.add(metadata_id=op, offset_ps=begin + op * 6_000_000, duration_ps=5_000_000)
    return bytes(space.SerializeToString())


def by_messages(data: bytes) -> pl.DataFrame:
    """Return plane, line, name, start and duration of every event, by a loop over messages."""
    space = xplane_pb2.XSpace.FromString(data)
    planes, lines, names, starts, durs = [], [], [], [], []
    for plane in space.planes:
        known = {key: value.display_name or value.name for key, value in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                planes.append(plane.name)
                lines.append(line.display_name or line.name)
                names.append(known.get(event.metadata_id, ""))
                starts.append(line.timestamp_ns * 1000 + event.offset_ps)
                durs.append(event.duration_ps)
    return pl.DataFrame({"plane": planes, "line": lines, "name": names, "start_ps": starts, "dur_ps": durs})


def seconds(what: Callable[[], object]) -> float:
    """Return the processor time that a call takes."""
    begin = time.process_time()
    what()
    return time.process_time() - begin


def main() -> None:
    """Print the rounds, and one line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 15")
    options = parser.parse_args()
    data = options.file.read_bytes() if options.file else made_up()
    rounds = 3 if options.quick else 15
    frame = xplane.events(data, source="benchmark")  # compiles, and warms the caches
    assert by_messages(data).equals(
        frame.select(pl.col("plane", "line", "name").cast(pl.String), "start_ps", "dur_ps")
    ), "the two sides disagree"
    ours, theirs = [], []
    for number in range(rounds):
        ours.append(seconds(lambda: xplane.events(data, source="benchmark")))
        theirs.append(seconds(lambda: by_messages(data)))
        print(f"round {number}: tpunb {ours[-1] * 1e3:.0f} ms, protobuf loop {theirs[-1] * 1e3:.0f} ms")
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    print(
        json.dumps(
            {
                "events": frame.height,
                "tpunb_ms": round(statistics.median(ours) * 1e3, 1),
                "protobuf_loop_ms": round(statistics.median(theirs) * 1e3, 1),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
                "rounds": rounds,
                "quick": options.quick,
            }
        )
    )


if __name__ == "__main__":
    main()
