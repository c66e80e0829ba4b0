"""Planes of a capture, spelled out event by event."""

US = 1_000_000


class Plane:
    """A plane whose events are spelled by name, start and duration in microseconds, and stats."""

    def __init__(self, space, name):
        self.plane, self.keys = space.planes.add(name=name), {}

    def key(self, name, names):
        number = self.keys.setdefault(name, len(self.keys) + 1)
        names[number].id, names[number].name = number, name
        return number

    def line(self, name, *events, **fields):
        line = self.plane.lines.add(name=name, **fields)
        for event, start, dur, stats in events:
            key = self.key(event, self.plane.event_metadata)
            added = line.events.add(metadata_id=key, offset_ps=start * US, duration_ps=dur * US)
            for stat, value in stats.items():
                kind = {str: "str_value", float: "double_value", int: "int64_value"}[type(value)]
                added.stats.add(metadata_id=self.key(stat, self.plane.stat_metadata), **{kind: value})


def written(space, tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return path


SHAPE = "f32[1000]{0}"
"""The shape of 4000 bytes."""


def op(name, category, groups, shape=SHAPE):
    """Return the name and the metadata of an instruction, as the profiler of a TPU writes them."""
    text = f"%{name} = {shape} {category}({shape} %p), channel_id=1, replica_groups={groups}, to_apply=%add"
    return text, name, {"hlo_category": category, "shape_with_layout": shape, "program_id": 7}
