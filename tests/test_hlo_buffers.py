"""Buffers of programs: XLA's own sizes, and whose result each buffer holds."""

import threading

import polars as pl
import pytest
from examples import examples
from hlo_protos import messages
from hypothesis import given
from hypothesis import strategies as st

from tpunb import schema
from tpunb.io import programs, storage


def assigned(proto, *allocations):
    """Add allocations to a program: size and fields, then (id, offset, size, instruction) of each buffer."""
    for size, fields, *buffers in allocations:
        one = proto.buffer_assignment.buffer_allocations.add(size=size, **fields)
        one.index = len(proto.buffer_assignment.buffer_allocations) - 1
        for identity, offset, bytes_, instruction in buffers:
            one.assigned.add(logical_buffer_id=identity, offset=offset, size=bytes_)
            where = {"instruction_id": instruction}
            proto.buffer_assignment.logical_buffers.add(id=identity, size=bytes_, defined_at=where)
    return proto.SerializeToString()


def test_each_buffer_is_of_its_instruction_and_its_allocation(hlo_pb2):
    proto = hlo_pb2.HloProto()
    computation = proto.hlo_module.computations.add(id=1)
    ops = {1: "x", 2: "jit(f)/jvp(net)/a/dot", 3: "jit(f)/transpose(jvp(net))/a/dot"}
    for number, op in ops.items():
        one = computation.instructions.add(id=number, name=f"i.{number}", opcode="parameter" if number == 1 else "dot")
        one.metadata.op_name = op
        one.operand_ids.extend([1] if number > 1 else [])
    data = assigned(
        proto,
        (64, {"is_entry_computation_parameter": True}, (10, 0, 64, 1)),
        (32, {"is_entry_computation_parameter": True, "maybe_live_out": True}),
        (128, {}, (11, 0, 96, 2), (12, 64, 64, 3), (13, 0, 8, 99)),
        (8, {"maybe_live_out": True}),
        (4, {"is_constant": True}),
        (2, {"is_thread_local": True}),
    )
    rows = programs.buffers(messages(data))
    assert rows.schema == programs.BUFFERS
    names = pl.col("hlo_op", "layer").cast(pl.String)
    assert rows.select("allocation", "kind", "allocation_bytes", names, "part", "bytes", "offset_bytes").rows() == [
        (0, "argument", 64, "i.1", "net/a", "forward", 64, 0),  # of what uses it
        (1, "donated argument", 32, None, None, None, None, None),
        (2, "temporary", 128, "i.2", "net/a", "forward", 96, 0),
        (2, "temporary", 128, "i.3", "net/a", "backward", 64, 64),
        (2, "temporary", 128, None, None, None, 8, 0),
        (3, "output", 8, None, None, None, None, None),
        (4, "constant", 4, None, None, None, None, None),
        (5, "thread-local", 2, None, None, None, None, None),
    ]


@pytest.mark.live
def test_sizes_are_those_of_xlas_memory_analysis(own_name):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from tpunb.io import xplane
    from tpunb.profiler.sources.between_steps import BetweenSteps
    from tpunb.profiler.sources.xla_sessions import programs_of_jax

    def loss(params, x):
        for weights in params:
            x = jnp.tanh(x @ weights)
        return (x**2).sum()

    def trained(params, x):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x))

    def scanned(x):
        return jax.lax.scan(lambda h, row: (jnp.sin(h + row), h.sum()), x[0], x)

    def donated(x):
        return x * 2 + 1

    params, x = [jnp.ones((64, 64))] * 3, jnp.ones((32, 64))
    for function in (trained, scanned, donated):
        function.__name__ = f"{own_name}_{function.__name__}"
    compiled = {
        f"jit_{trained.__name__}": jax.jit(trained).lower(params, x).compile(),
        f"jit_{scanned.__name__}": jax.jit(scanned).lower(x).compile(),
        f"jit_{donated.__name__}": jax.jit(donated, donate_argnums=0).lower(x).compile(),
    }
    data = programs_of_jax(BetweenSteps(), threading.Event())
    held = {name: (program, proto) for program, (name, proto) in xplane.programs(data, source="").items()}
    for name, executable in compiled.items():
        program, proto = held[next(each for each in held if each.startswith(name))]
        rows = programs.buffers_of(proto, pl.Series([program], dtype=pl.Int64)).unique("allocation")
        sizes = dict(rows.group_by("kind").agg(pl.col("allocation_bytes").sum()).rows())
        both, theirs = sizes.get("donated argument", 0), executable.memory_analysis()
        assert sizes.get("argument", 0) + both == theirs.argument_size_in_bytes
        assert sizes.get("output", 0) + both == theirs.output_size_in_bytes
        assert sizes.get("temporary", 0) == theirs.temp_size_in_bytes
        assert both == theirs.alias_size_in_bytes
    assert sizes["donated argument"]


def test_kept_programs_add_their_buffers(hlo_pb2, tmp_path):
    (tmp_path / "7").write_bytes(assigned(hlo_pb2.HloProto(), (64, {"maybe_live_out": True})))
    (tmp_path / "8").write_bytes(b"\xff")  # damaged
    kept = {("a", int(path.name)): storage.find(path) for path in sorted(tmp_path.iterdir())}
    rows = programs.complete(pl.DataFrame(schema=schema.BUFFERS), kept, "buffers")
    assert rows.select("host", "program", "kind", "allocation_bytes").rows() == [("a", 7, "output", 64)]


IDS = st.integers(-1, 4) | st.sampled_from([2**40, 2**63 - 1])
SIZES = st.sampled_from([0, 1, 2**40, 2**63 - 1, -1])


@given(data=st.data())
@examples(30)
def test_any_assignment_is_a_row_per_buffer(hlo_pb2, data):
    proto = hlo_pb2.HloProto()
    computation = proto.hlo_module.computations.add(id=1)
    for number in range(data.draw(st.integers(0, 3))):
        computation.instructions.add(id=number, name=f"i.{number}", opcode="copy")
    expected = 0
    for _ in range(data.draw(st.integers(0, 3))):
        buffers = data.draw(st.lists(st.tuples(IDS, SIZES, SIZES, IDS), max_size=3))
        assigned(proto, (data.draw(SIZES), {}, *buffers))
        expected += max(1, len(buffers))
    rows = programs.buffers(messages(proto.SerializeToString()))
    assert len(rows) == expected
    assert all((rows[name].drop_nulls() >= 0).all() for name in ("bytes", "allocation_bytes", "offset_bytes"))


@given(noise=st.binary(max_size=200))
def test_any_bytes_are_rows_or_none(noise):
    assert programs.buffers(messages(noise)).schema == programs.BUFFERS
