"""HLO protos: every instruction under its name, of its framework op and category, however damaged its neighbours."""

import random

import polars as pl
import pytest
from examples import examples
from hlo_protos import messages, toy
from hypothesis import given
from hypothesis import strategies as st
from xprof_oracle import Oracle

from tpunb import schema
from tpunb.costs import hlo

COLUMNS = ["proto", "module", "hlo_op", "tf_op", "op_type", "opcode", "category"]


def rows(*protos):
    frame = hlo.instructions(messages(*protos))
    assert frame.schema == hlo.INSTRUCTIONS
    return frame.rows()


def expected(hlo_pb2, *protos):
    """Return the same rows by the protobuf library."""
    return [
        (
            number,
            module.name or None,
            one.name or None,
            one.metadata.op_name or None,
            one.metadata.op_type or None,
            one.opcode or None,
            hlo.category(one.opcode, one.fusion_kind) or None,
        )
        for number, proto in enumerate(protos)
        for module in [hlo_pb2.HloProto.FromString(proto).hlo_module]
        for computation in module.computations
        for one in computation.instructions
    ]


def test_an_instruction_is_a_row(hlo_pb2):
    metadata = {"op_name": "model/dense/MatMul", "op_type": "MatMul", "source_file": "/home/someone/train.py"}
    first = toy(
        hlo_pb2,
        ("dot.1", "dot", {"metadata": metadata}),
        ("fusion.2", "fusion", {"fusion_kind": "kLoop", "custom_call_target": "x", "called_computation_ids": [7, 9]}),
    )
    second = toy(hlo_pb2, ("copy.1", "copy", {"metadata": {"op_type": "Identity"}}), name="jit_g")
    assert rows(first, second) == [
        (0, "jit_f", "dot.1", "model/dense/MatMul", "MatMul", "dot", "dot"),
        (0, "jit_f", "fusion.2", None, None, "fusion", "loop fusion"),
        (1, "jit_g", "copy.1", None, "Identity", "copy", "data formatting"),
    ]
    assert "someone" not in str(rows(first, second))


def details(*protos):
    frame = hlo.details(messages(*protos))
    assert frame.schema == hlo.DETAILS
    return frame.rows()


def array(hlo_pb2, kind, dims, *order):
    shape = hlo_pb2.HloInstructionProto().shape
    shape.element_type = kind
    shape.dimensions.extend(dims)
    shape.layout.minor_to_major.extend(order)
    return shape


def test_the_shape_of_an_instruction_is_that_of_its_text(hlo_pb2):
    both = hlo_pb2.HloInstructionProto().shape
    both.element_type = 13
    both.tuple_shapes.extend([array(hlo_pb2, 16, [8, 128], 1, 0), array(hlo_pb2, 5, [])])
    program = toy(
        hlo_pb2, ("a", "add", {"shape": array(hlo_pb2, 11, [1024, 3], 0, 1)}), ("b", "b", {"shape": both}), ("c", "c")
    )
    assert [row[1:4] for row in details(program)] == [
        ("a", "f32[1024,3]{0,1}", 4 * 1024 * 3),
        ("b", "(bf16[8,128]{1,0}, s64[])", 2 * 8 * 128 + 8),
        ("c", None, None),
    ]


def test_types_have_the_names_of_the_library(hlo_pb2):
    enum = pytest.importorskip("tensorflow.compiler.xla.xla_data_pb2").PrimitiveType
    known = {name.lower(): number for name, number in enum.items() if number not in (0, 13, 14, 34)}
    program = toy(hlo_pb2, *((name, name, {"shape": array(hlo_pb2, number, [2])}) for name, number in known.items()))
    assert [row[2] for row in details(program)] == [f"{name}[2]" for name in known]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/home/someone/train.py", "train.py"),
        ("/mnt/data/someone/project/model/block.py:41", "block.py:41"),
        (r"C:\Users\someone\train.py:3", "train.py:3"),
        ("/home/someone/env/lib/python3.12/site-packages/keras/src/layers/dense.py", "keras/src/layers/dense.py"),
        ("/usr/lib/python3/dist-packages/flax/linen.py:7", "flax/linen.py:7"),
        ("<stdin>", "<stdin>"),
        ("", ""),
    ],
)
def test_a_source_path_names_no_person(path, kept):
    assert hlo.relative(path) == kept


def test_the_source_of_an_instruction_is_its_own_or_that_of_its_stack_frame(hlo_pb2):
    proto = hlo_pb2.HloProto.FromString(
        toy(
            hlo_pb2,
            (
                "a",
                "add",
                {"metadata": {"source_file": "/home/someone/train.py", "source_line": 41, "stack_frame_id": 1}},
            ),
            ("b", "add", {"metadata": {"stack_frame_id": 2}}),
            ("c", "add", {"metadata": {"stack_frame_id": 3}}),  # there are two
            ("d", "add", {"metadata": {"stack_frame_id": -1}}),
            ("e", "add"),
        )
    )
    index = proto.hlo_module.stack_frame_index
    index.file_names.extend(["/home/someone/loop.py", "/x/site-packages/keras/dense.py"])
    index.file_locations.add(file_name_id=1, line=7)
    index.file_locations.add(file_name_id=2, line=9)
    index.stack_frames.add(file_location_id=1)
    index.stack_frames.add(file_location_id=2, parent_frame_id=1)
    other = toy(hlo_pb2, ("f", "add", {"metadata": {"stack_frame_id": 1}}))
    found = [row[4] for row in details(other, proto.SerializeToString(), other)]
    assert found == [None, "train.py:41", "keras/dense.py:9", None, None, None, None]


def test_replica_groups_in_every_form(hlo_pb2):
    listed = {"replica_groups": [{"replica_ids": [0, 1]}, {"replica_ids": [2, 300]}]}
    iota = {"num_replica_groups": 2, "num_devices_per_group": 4, "iota_reshape_dims": [8], "iota_transpose_perm": [0]}
    turned = iota | {"iota_reshape_dims": [4, 2], "iota_transpose_perm": [1, 0]}
    program = toy(
        hlo_pb2,
        ("a", "all-reduce", listed),
        ("b", "all-reduce", {"collective_device_list": listed}),
        ("c", "all-reduce", {"collective_device_list": {"iota_replica_group_list": iota}}),
        ("d", "all-reduce", {"collective_device_list": {"iota_replica_group_list": turned}}),
        ("e", "all-reduce"),
    )
    forms = ["{{0,1},{2,300}}", "{{0,1},{2,300}}", "[2,4]<=[8]", "[2,4]<=[4,2]T(1,0)"]
    assert [row[5] for row in details(program)] == [*forms, None]
    texts = [f"%a = f32[] all-reduce(f32[] %b), channel_id=1, replica_groups={form}, to_apply=%add" for form in forms]
    assert [hlo.replica_groups(text) for text in [*texts, "%a = f32[] add(%b)"]] == [*forms, None]


def test_what_two_descriptions_disagree_on_is_null_and_the_first_source_wins():
    def frame(*rows):
        names = ["program", "hlo_op", "shape", "bytes", "source", "groups"]
        return pl.DataFrame(rows, schema={name: schema.INSTRUCTIONS[name] for name in names}, orient="row")

    first = frame((1, "a", "f32[]", 4, "x.py:1", None), (1, "a", "f32[]", 4, "x.py:2", None))
    second = frame((1, "a", "f32[]{0}", 4, "y.py:3", None), (2, "a", "s8[]", 1, None, None))
    counts = pl.DataFrame({"program": [1], "hlo_op": ["a"], "flops": [6.0]})
    assert hlo.merged([[first], [second], [counts]], "h").rows() == [
        ("h", 1, "a", None, None, None, "f32[]", None, 4, "y.py:3", None, 6.0, None, None),
        ("h", 2, "a", None, None, None, "s8[]", None, 1, None, None, None, None, None),
    ]


def test_no_program_and_no_instruction_is_no_row(hlo_pb2):
    assert rows() == rows(b"", toy(hlo_pb2)) == []


def test_a_damaged_program_costs_its_own_rows_alone(hlo_pb2):
    whole = toy(hlo_pb2, ("add.1", "add"))
    cut = toy(hlo_pb2, ("dot.1", "dot"))[:-1]
    assert [row[:3] for row in rows(whole, cut, whole)] == [(0, "jit_f", "add.1"), (2, "jit_f", "add.1")]


@pytest.mark.parametrize(
    ("opcode", "fusion_kind", "category"),
    [
        ("fusion", "kInput", "input fusion"),
        ("fusion", "kOutput", "output fusion"),
        ("fusion", "kCustom", "custom fusion"),
        ("fusion", "kNovel", "fusion"),
        ("transpose", "", "data formatting"),
        ("add", "", "non-fusion elementwise"),
        ("convolution", "", "convolution"),
        ("all-reduce-start", "", "all-reduce-start"),
        ("opcode-of-2040", "", "opcode-of-2040"),
    ],
)
def test_the_category_of_an_instruction(opcode, fusion_kind, category):
    assert hlo.category(opcode, fusion_kind) == category


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("jit_step(6)", 6),
        ("jit__psum(9646411105960254074)", 9646411105960254074 - 2**64),
        ("a(1)(18446744073709551615)", -1),
        ("jit_f", None),
        ("jit_f(-1)", None),
        ("jit_f(1) ", None),
        ("jit_f(123456789012345678901)", None),
        ("", None),
    ],
)
def test_the_program_id_of_a_name(name, program):
    assert hlo.program(name) == program


WORDS = st.sampled_from(["", "dot", "fusion", "kLoop", "jit(f)/mlp/dot_general", "añadir"]) | st.text(max_size=5)


@st.composite
def programs(draw, hlo_pb2):
    proto = hlo_pb2.HloProto()
    proto.hlo_module.name = draw(WORDS)
    proto.hlo_module.id = draw(st.integers(-(2**63), 2**63 - 1))
    for _ in range(draw(st.integers(0, 3))):
        computation = proto.hlo_module.computations.add(name=draw(WORDS), id=draw(st.integers(0, 2**40)))
        for _ in range(draw(st.integers(0, 4))):
            one = computation.instructions.add(name=draw(WORDS), opcode=draw(WORDS), fusion_kind=draw(WORDS))
            one.called_computation_ids.extend(draw(st.lists(st.integers(0, 2**40), max_size=3)))
            one.metadata.op_name, one.metadata.op_type = draw(WORDS), draw(WORDS)
            one.metadata.source_line = draw(st.integers(0, 2**31 - 1))
            one.metadata.stack_frame_id = draw(st.integers(-(2**31), 2**31 - 1))
            one.shape.element_type = draw(st.integers(0, 34))
            one.shape.dimensions.extend(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)))
            one.replica_groups.add(replica_ids=draw(st.lists(st.integers(0, 2**40), max_size=3)))
            if draw(st.booleans()):
                one.ClearField("metadata")
    return proto.SerializeToString()


@given(data=st.data())
@examples(30)
def test_random_programs_agree_with_the_protobuf_library(hlo_pb2, data):
    protos = data.draw(st.lists(programs(hlo_pb2), max_size=3))
    assert rows(*protos) == expected(hlo_pb2, *protos)


@given(data=st.data(), seed=st.integers(0, 2**32))
@examples(30)
def test_damage_costs_no_other_programs_rows(hlo_pb2, data, seed):
    healthy = data.draw(programs(hlo_pb2))
    damaged = bytearray(data.draw(programs(hlo_pb2)))
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4) if damaged else 0):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    found = rows(healthy, bytes(damaged[: chance.randint(0, len(damaged))]), healthy)
    assert [row for row in found if row[0] == 0] == expected(hlo_pb2, healthy)
    assert hlo.details(messages(bytes(damaged), healthy)).schema == hlo.DETAILS
    assert [row[1:] for row in found if row[0] == 2] == [row[1:] for row in expected(hlo_pb2, healthy)]


@given(noise=st.binary(max_size=200))
def test_any_bytes_are_rows_or_none(noise):
    assert hlo.instructions(messages(noise)).columns == COLUMNS
    assert hlo.details(messages(noise)).schema == hlo.DETAILS


def stored(path, xplane_pb2):
    """Return the programs of a capture, (name of their metadata, bytes), and the ids that its events refer to."""
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    known, asked = [], set()
    for plane in space.planes:
        names = {key: stat.name for key, stat in plane.stat_metadata.items()}
        for entry in plane.event_metadata.values():
            known += [(entry.name, stat.bytes_value) for stat in entry.stats if names[stat.metadata_id] == "Hlo Proto"]
        events = [event for line in plane.lines for event in line.events]
        for one in [*events, *plane.event_metadata.values()]:
            for stat in one.stats:
                if names.get(stat.metadata_id) == "program_id":
                    asked.add((stat.int64_value or stat.uint64_value or stat.ref_value) % 2**64)
    return known, asked


@pytest.mark.parametrize(
    ("capture", "programs", "instructions"),
    [
        ("tpu-v6e-4_jax_host-offload", 4, 43),
        ("gpu-mi300x_jax_conv", 8, 861),
        ("gpu-1080ti_julia", 3, 39),
        ("cpu_julia", 1, 9),
    ],
)
def test_programs_of_real_captures(real_profiles, hlo_pb2, xplane_pb2, capture, programs, instructions):
    known, asked = stored(real_profiles / f"{capture}.xplane.pb", xplane_pb2)
    protos = [proto for _, proto in known]
    assert len(protos) == programs
    assert rows(*protos) == expected(hlo_pb2, *protos)
    assert len(rows(*protos)) == instructions
    assert asked <= {hlo.program(name) % 2**64 for name, _ in known}


def test_categories_of_a_real_tpu_are_those_of_its_programs(real_profiles, xplane_pb2):
    path = real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"
    known, _ = stored(path, xplane_pb2)
    frame = hlo.instructions(messages(*(proto for _, proto in known)))
    categories = {
        (hlo.program(known[row][0]) % 2**64, op): word
        for row, op, word in frame.select(COLUMNS[0], COLUMNS[2], COLUMNS[6]).rows()
    }
    compared = 0
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        names = {key: stat.name for key, stat in plane.stat_metadata.items()}
        for entry in plane.event_metadata.values():
            stats = {names[stat.metadata_id]: stat for stat in entry.stats}
            key = "hlo_category" in stats and (stats["program_id"].uint64_value, entry.display_name)
            if key in categories:  # the halves of what runs asynchronously bear names of the profiler's own
                assert categories[key] == stats["hlo_category"].str_value
                compared += 1
    assert compared == 65


def test_a_program_of_jax_agrees_with_xprof(hlo_pb2, xplane_pb2, tmp_path):
    jax = pytest.importorskip("jax")
    proto = hlo_pb2.HloProto()
    lowered = jax.jit(many_operations).lower(jax.numpy.ones((8, 8)), jax.numpy.ones(8, "int32"))
    proto.hlo_module.ParseFromString(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    frame = hlo.instructions(messages(proto.SerializeToString()))
    (tmp_path / "gpu.xplane.pb").write_bytes(one_run_of_each(frame["hlo_op"].cast(pl.String), proto, xplane_pb2))
    said = Oracle(tmp_path / "gpu.xplane.pb").hlo_ops.select("hlo_op", "category")
    ours = frame.select(pl.col("hlo_op", "category").cast(pl.String))
    assert dict(ours.rows()) == dict(said.rows())
    assert ours["category"].n_unique() > 20


def many_operations(x, i):
    from jax import lax
    from jax import numpy as jnp

    unary = [
        *("abs", "ceil", "floor", "sign", "sin", "cos", "tan", "tanh", "exp", "exp2", "expm1", "log", "log1p", "sqrt"),
        *("rsqrt", "cbrt", "logistic", "round", "is_finite", "erf", "neg", "acos", "square"),
    ]
    binary = ["add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2", "eq", "complex", "nextafter"]
    bits = ["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"]
    return [
        *(getattr(lax, name)(x) for name in unary),
        *(getattr(lax, name)(x, x) for name in binary),
        *(getattr(lax, name)(i, i) for name in bits),
        *(lax.bitwise_not(i), lax.population_count(i), lax.clz(i), lax.clamp(0.0, x, 1.0)),
        *(lax.real(lax.complex(x, x)), lax.imag(lax.complex(x, x)), lax.reduce_precision(x, 5, 3), lax.sort(x)),
        *(lax.rev(x, (0,)), lax.reshape(x, (64,)), lax.transpose(x, (1, 0)), lax.pad(x, 0.0, [(1, 1, 0)] * 2)),
        *(lax.concatenate([x, x], 0), x @ x, x[i[0]], x.at[i[0]].set(1.0), lax.convert_element_type(x, jnp.int8)),
        *(lax.bitcast_convert_type(x, jnp.int32), lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID")),
        lax.cond(x[0, 0] > 0, lambda v: v, lambda v: -v, x),
        lax.while_loop(lambda v: v[0, 0] < 3, lambda v: v + 1, x),
        *(lax.conv(x[None, None], x[None, None], (1, 1), "SAME"), lax.iota("int32", 4), lax.optimization_barrier(x)),
        *(lax.fft(x.astype("complex64"), "fft", (8,)), lax.dynamic_slice(x, (i[0], i[0]), (2, 2)), jnp.sum(x)),
    ]


def one_run_of_each(instructions, proto, xplane_pb2):
    """Return a GPU's capture, in which a kernel ran for each instruction."""
    space = xplane_pb2.XSpace()
    gpu, metadata = space.planes.add(name="/device:GPU:0"), space.planes.add(name="/host:metadata")
    for key, name in enumerate(["hlo_op", "hlo_module", "program_id", "correlation_id"], 1):
        gpu.stat_metadata[key].id, gpu.stat_metadata[key].name = key, name
    gpu.event_metadata[1].id, gpu.event_metadata[1].name = 1, "kernel"
    line = gpu.lines.add(id=1, name="Stream #1(Kernel)", timestamp_ns=1000)
    for place, instruction in enumerate(instructions, 1):
        event = line.events.add(metadata_id=1, offset_ps=2000 * place, duration_ps=1000)
        event.stats.add(metadata_id=1, str_value=instruction)
        event.stats.add(metadata_id=2, str_value=proto.hlo_module.name)
        event.stats.add(metadata_id=3, int64_value=1)
        event.stats.add(metadata_id=4, int64_value=place)
    metadata.stat_metadata[1].id, metadata.stat_metadata[1].name = 1, "Hlo Proto"
    program = metadata.event_metadata[1]
    program.id, program.name = 1, f"{proto.hlo_module.name}(1)"
    program.stats.add(metadata_id=1, bytes_value=proto.SerializeToString())
    return space.SerializeToString()
