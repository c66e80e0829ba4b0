"""Compiled programs of a run: found in windows or requested, written once, and joined with what ran."""

import time
from contextlib import nullcontext
from importlib.util import find_spec

import polars as pl
import pytest
from capture_loops import facts, until
from recorded_runs import loops_of_jax, trained
from warm_python import warm_python

import tpunb as tp
from tpunb import schema
from tpunb.io import programs, storage
from tpunb.io.run_folder import PROGRAMS
from tpunb.io.run_writer import RunWriter
from tpunb.profiler.recorder import ProgramKeeper
from tpunb.profiler.reducer import Reducer


@pytest.fixture
def writer(tmp_path):
    writer = RunWriter(tmp_path / "run")
    writer.open()
    yield writer
    writer.close()


def compiled(hlo_pb2, *instructions):
    """Return a program of one computation: (name, opcode) each."""
    proto = hlo_pb2.HloProto()
    proto.hlo_module.name = "jit_f"
    computation = proto.hlo_module.computations.add(name="main")
    for name, opcode in instructions:
        computation.instructions.add(name=name, opcode=opcode)
    return proto.SerializeToString()


def space(xplane_pb2, **protos):
    """Return an XSpace with programs by their names, such as ``jit_f_7`` for ``jit_f(7)``."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:metadata")
    plane.stat_metadata[1].id, plane.stat_metadata[1].name = 1, "Hlo Proto"
    for key, (name, proto) in enumerate(protos.items(), 1):
        module, _, program = name.rpartition("_")
        plane.event_metadata[key].id, plane.event_metadata[key].name = key, f"{module}({program})"
        plane.event_metadata[key].stats.add(metadata_id=1, bytes_value=proto)
    return space.SerializeToString()


def ran(*rows):
    return pl.DataFrame(rows, schema={"program": pl.Int64, "hlo_op": pl.Categorical()}, orient="row")


def files(writer):
    return sorted(path.name for path in writer.source.glob("programs/*"))


def test_each_program_that_ran_is_written_once(hlo_pb2, xplane_pb2, writer):
    step, other = compiled(hlo_pb2, ("dot.1", "dot"), ("add.2", "add")), compiled(hlo_pb2, ("copy.1", "copy"))
    keeper = ProgramKeeper(writer, Reducer.programs)
    keeper.on_window({"a": ran((7, "dot.1"), (7, "add.2")), "b": ran((9, "dot.1"))})
    data = space(xplane_pb2, jit_step_7=step, jit_other_8=other)
    keeper.keep("a", data)
    assert keeper.missing == {("b", 9): {"dot.1"}}
    keeper.on_window({"a": ran((7, "add.2"))})  # not searched for again
    keeper.keep("a", data)
    keeper.keep("b", space(xplane_pb2, jit_step_9=step))  # the same program under another id
    assert keeper.missing == {}
    rows = keeper.take()
    assert [row[:3] for row in rows] == [("a", 7, "jit_step"), ("b", 9, "jit_step")]
    assert files(writer) == [f"{rows[0][3]}.hlo.pb.gz"]
    assert rows[0][3] == rows[1][3]
    assert keeper.take() == []
    stored = storage.find(writer.source / "programs" / files(writer)[0])
    assert storage.read(stored).tobytes() == step


def test_a_program_of_the_same_id_with_other_instructions_is_not_the_one_that_ran(hlo_pb2, xplane_pb2, writer):
    keeper = ProgramKeeper(writer, Reducer.programs)
    names = [f"dot.{number}" for number in range(100)]
    keeper.on_window({"a": ran(*((7, name) for name in names))})
    keeper.keep("a", space(xplane_pb2, jit_step_7=compiled(hlo_pb2, *((name, "dot") for name in names[:98]))))
    assert [*keeper.missing] == [("a", 7)]
    keeper.keep("a", space(xplane_pb2, jit_step_7=compiled(hlo_pb2, *((name, "dot") for name in names[:99]))))
    assert not keeper.missing


@pytest.mark.parametrize("data", [b"", b"\xff", b"no profile"])
def test_a_damaged_answer_costs_nothing(writer, data):
    keeper = ProgramKeeper(writer, Reducer.programs)
    keeper.on_window({"a": ran((7, "dot.1"))})
    keeper.keep("a", data)
    assert [*keeper.missing] == [("a", 7)]
    assert keeper.take() == []


def test_instructions_of_kept_programs_complete_those_of_windows(hlo_pb2, tmp_path):
    (tmp_path / "7").write_bytes(compiled(hlo_pb2, ("dot.1", "dot"), ("add.2", "add")))
    (tmp_path / "8").write_bytes(b"\xff")  # damaged
    kept = {("a", int(path.name)): storage.find(path) for path in sorted(tmp_path.iterdir())}
    of_window = {"host": ["a", "b"], "program": [7, 7], "hlo_op": ["dot.1", "dot.1"], "source": ["f.py:1", "g.py:1"]}
    frame = pl.DataFrame(of_window).with_columns(
        pl.lit(None).alias(name) for name in schema.INSTRUCTIONS.keys() - of_window
    )
    frame = frame.select(pl.col(name).cast(dtype) for name, dtype in schema.INSTRUCTIONS.items())
    complete = programs.complete(frame, kept, "instructions")
    rows = complete.select("host", "program", "hlo_op", "source").sort("host", pl.col("hlo_op").cast(pl.String))
    assert rows.rows() == [("a", 7, "add.2", None), ("a", 7, "dot.1", "f.py:1"), ("b", 7, "dot.1", "g.py:1")]


KERAS = """
import sys
import tpunb as tp
from tpunb.profiler.capture import Schedule
import keras, numpy as np

layers = keras.layers
model = keras.Sequential([
    layers.Input((6, 6, 3)), layers.Conv2D(4, 3, use_bias=False, name="first"), layers.BatchNormalization(),
    layers.Conv2D(4, 3, activation="relu", name="second"), layers.Flatten(), layers.Dropout(0.2),
    layers.Dense(32, activation="relu", name="hidden"), layers.Dense(10, name="head"),
])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
rows = np.ones((640, 6, 6, 3), "float32"), np.zeros(640)
model.fit(*rows, batch_size=64, verbose=0)  # compiled before anyone watches

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = run._session.recorder.full >= 20

with tp.capture(sys.argv[1], schedule=Schedule.continuous(window=0.3)) as run:
    model.fit(*rows, batch_size=64, verbose=0, epochs=10_000, callbacks=[Stop()])
"""


@pytest.mark.live
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_the_program_of_a_warm_training_is_requested_and_kept():
    folder = loops_of_jax()
    profile = tp.load(folder / "run")
    rows = tp.steps(profile).layers.filter(pl.col("side") == "device")
    assert rows.height
    assert rows["flops"].null_count() == 0
    assert set(rows["flops_source"]) == {"program"}
    dots = rows.filter(pl.col("flops") > 0).group_by("step").agg(pl.col("flops").sum())
    assert dots["flops"].median() >= 2 * 384**3
    assert (profile.instructions.group_by("host", "program", "hlo_op").len()["len"] == 1).all()
    kept = list(folder.glob("run/programs/*.hlo.pb.gz"))
    table = pl.concat([pl.read_parquet(path) for path in folder.glob("run/parts/*/programs.parquet")])
    assert {*PROGRAMS} <= {*table.columns}
    assert set(table["file"]) == {path.name.partition(".")[0] for path in kept}
    assert table.filter(pl.col("module").str.contains("lambda")).height == 1
    spans = profile.stored.wall.spans.filter(pl.col("detail") == "request of programs")
    assert spans.height >= 1


@pytest.mark.live
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_a_capture_of_statistics_alone_requests_no_programs():
    run = loops_of_jax() / "statistics"
    profile = tp.load(run)
    assert len(tp.steps(profile).full())
    assert not list(run.glob("programs"))
    assert not list(run.glob("parts/*/programs.parquet"))
    assert not profile.stored.wall.spans.filter(pl.col("detail") == "request of programs").height
    assert facts(run)["options"]["keep"] == "none"


@pytest.mark.live
@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
def test_layers_and_parts_of_a_warm_training_of_keras(tmp_path):
    trained(KERAS, tmp_path / "run", warm_python())
    rows = tp.steps(tp.load(tmp_path / "run")).layers.filter(pl.col("side") == "device")
    described = rows.drop_nulls(["tf_op", "flops", "category"])
    assert described["self_ps"].sum() >= 0.99 * rows["self_ps"].sum()
    name = pl.col("layer").cast(pl.String).str.split("/").list.last().str.replace(r"_\d+$", "")  # of the n-th tracing
    found = rows.select(name, "part").unique().rows()
    assert {(name, part) for name in ("second", "hidden", "head") for part in ("forward", "backward")} <= {*found}
    assert {("first", "forward"), ("first", "backward"), ("adam", "update")} <= {*found}
    assert len(list(tmp_path.glob("run/programs/*"))) == 1


def test_a_program_of_one_worker_is_that_of_all_that_ran_its_instructions(hlo_pb2, xplane_pb2, tmp_path):
    """Two workers under the same id: the second ran another program, which nobody has."""
    step = compiled(hlo_pb2, ("dot.1", "dot"))
    windows = {"a": ran_window(xplane_pb2, 7, "dot.1"), "b": ran_window(xplane_pb2, 7, "dot.1")}

    class Workers:
        def __init__(self):
            self.asked = 0

        def start(self):
            pass

        def facts(self):
            return {"workers": [*windows, "c"]}

        def window(self, seconds):
            time.sleep(seconds)
            return windows | {"c": ran_window(xplane_pb2, 7, "copy.9")}

        def programs(self):
            self.asked += 1
            return space(xplane_pb2, jit_step_7=step)

        def stop(self):
            pass

        def step(self, kind, number):
            return nullcontext()

    source = Workers()
    with tp.capture(tmp_path / "run", source=source, schedule=tp.Schedule.continuous(window=0.05)) as run:
        until(lambda: run.status.windows >= 3)
    assert source.asked == 1
    tables = [pl.read_parquet(path) for path in tmp_path.glob("run/parts/*/programs.parquet")]
    rows = pl.concat(tables).select("host", "program", "module").unique().sort("host").rows()
    assert rows == [("a", 7, "jit_step"), ("b", 7, "jit_step")]
    assert len(list(tmp_path.glob("run/programs/*"))) == 1
    assert facts(run)["profiler_messages"] == ["c: program 7 is not available"]


def ran_window(xplane_pb2, program, instruction):
    """Return a window in which an instruction ran on a host."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    for key, name in enumerate(["hlo_op", "program_id"], 1):
        plane.stat_metadata[key].id, plane.stat_metadata[key].name = key, name
    plane.event_metadata[1].id, plane.event_metadata[1].name = 1, instruction
    event = plane.lines.add(id=1, name="worker").events.add(metadata_id=1, offset_ps=1000, duration_ps=1000)
    event.stats.add(metadata_id=1, str_value=instruction)
    event.stats.add(metadata_id=2, int64_value=program)
    return space.SerializeToString()
