"""Programs as graphs: nodes, edges and the published numbers are those that the protobuf library gives."""

import functools
import itertools

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.errors import BadProfile, TpunbError
from tpunb.io import storage, xplane
from tpunb.studies.ranking import LAYOUT_FEATURES, NODE_FEATURES, OPCODES, TILE_FEATURES, ProgramGraph, columns, graph

WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")
TYPES = (
    *("PRIMITIVE_TYPE_INVALID", "PRED", "S8", "S16", "S32", "S64", "U8", "U16", "U32", "U64", "F16", "F32", "F64"),
    *("BF16", "C64", "C128", "TUPLE", "OPAQUE_TYPE", "TOKEN"),
)


@pytest.fixture(scope="module")
def hlo_pb2():
    return pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")


def padded(values, of=6, *, sums=True, pad=0):
    """Return the first values of a list, then sum and product, by the dataset's description."""
    values = [int(value) for value in values]
    first = [*values[:of], *[pad] * (of - len(values[:of]))]
    return [*first, sum(values), np.prod(values, dtype=float)] if sums else first


def numbers_of(one, root_id, pad=0):
    """Return the 140 numbers of an HloInstructionProto by the dataset's README."""
    from tensorflow.compiler.xla import xla_data_pb2

    shape, window = one.shape, one.window.dimensions
    found = [float(one.id == root_id), 0.0]
    found += [float(shape.element_type == xla_data_pb2.PrimitiveType.Value(name)) for name in TYPES]
    found += [*padded(shape.dimensions, pad=pad), len(shape.tuple_shapes), one.parameter_number]
    found += padded(one.dimensions, sums=False, pad=pad)
    for name in WINDOW:
        found += padded([getattr(each, name) for each in window], pad=pad)
    turned = [each.window_reversal for each in window]
    found += [*padded(turned, sums=False, pad=pad), sum(turned), len(turned) - sum(turned)]
    of = one.convolution_dimension_numbers
    found += [of.input_batch_dimension, of.input_feature_dimension]
    found += padded(of.input_spatial_dimensions, 4, sums=False, pad=pad)
    found += [of.kernel_input_feature_dimension, of.kernel_output_feature_dimension]
    found += padded(of.kernel_spatial_dimensions, 4, sums=False, pad=pad)
    found += [of.output_batch_dimension, of.output_feature_dimension, one.feature_group_count, one.batch_group_count]
    for name in ("start", "stride", "limit"):
        found += padded([getattr(each, name) for each in one.slice_dimensions], 2, pad=pad)
    found += padded(one.dynamic_slice_sizes, 2, pad=pad)
    for name in ("edge_padding_low", "edge_padding_high"):
        found += padded([getattr(each, name) for each in one.padding_config.dimensions], 2, pad=pad)
    return [*found, float(one.is_stable), *padded(shape.layout.minor_to_major, sums=False, pad=pad)]


def edges_of(module):
    """Return the pairs of nodes that the protobuf library gives: each operand once, then roots of computations."""
    place = {}
    for computation in module.computations:
        for one in computation.instructions:
            place[computation.id, one.id] = len(place)
    roots = {each.id: (each.id, each.root_id) for each in module.computations}
    pairs = []
    for computation in module.computations:
        for one in computation.instructions:
            consumer = place[computation.id, one.id]
            pairs += [(consumer, place[computation.id, each], "operand") for each in {*one.operand_ids}]
            pairs += [(consumer, place[roots[each]], "call") for each in one.called_computation_ids]
    return sorted(pairs)


def check(found: ProgramGraph, module):
    """Compare a graph with the message of its program."""
    instructions = [(one, each) for each in module.computations for one in each.instructions]
    assert found.nodes.schema == columns.NODES
    assert found.nodes["hlo_op"].cast(pl.String).to_list() == [one.name for one, _ in instructions]
    assert found.nodes["opcode"].cast(pl.String).to_list() == [one.opcode for one, _ in instructions]
    assert found.nodes["dims"].to_list() == [[*one.shape.dimensions] for one, _ in instructions]
    assert sorted(found.edges.cast({"kind": pl.String}).rows()) == edges_of(module)
    assert len(found.computations) == len(module.computations)
    assert found.computations["nodes"].sum() == len(instructions)
    assert found.opcodes.tolist() == [OPCODES.get(one.opcode, 0) for one, _ in instructions]
    for pad in (0, -1):
        expected = np.array([numbers_of(one, each.root_id, pad) for one, each in instructions], np.float32)
        np.testing.assert_array_equal(found.features(padding=pad), expected)


def convolution_step(x, kernel):
    import jax
    from jax import lax

    def loss(kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=dimensions)
        y = lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return (lax.dynamic_slice(y, (0, 1, 0, 0), (2, 1, 3, 4)) ** 2).sum() + jax.numpy.pad(y[:, :1], 1).sum()

    return jax.grad(loss)(kernel)


def scanned(h, xs):
    import jax.numpy as jnp
    from jax import lax

    return lax.scan(lambda h, x: (jnp.tanh(h @ h + x), jnp.sort(h)), h, xs)


def attention(q, k):
    import jax
    import jax.numpy as jnp

    return jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1).astype("bfloat16")


PROGRAMS = {
    "convolution": (convolution_step, (2, 12, 12, 3), (3, 3, 3, 4)),
    "scan": (scanned, (4, 4), (5, 4, 4)),
    "attention": (attention, (2, 8, 2, 4), (2, 8, 2, 4)),
}


@functools.cache
def stages(name):
    """Return a JAX function lowered and compiled."""
    jax = pytest.importorskip("jax")
    function, *shapes = PROGRAMS[name]
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes))
    return lowered, lowered.compile()


@pytest.mark.parametrize(("name", "stage"), [*itertools.product(PROGRAMS, (0, 1))])
def test_a_lowered_and_a_compiled_function_are_what_the_protobuf_library_reads(hlo_pb2, name, stage):
    found = graph(stages(name)[stage])
    data = found.protos.buffer[found.protos.start[0] : found.protos.stop[0]].tobytes()
    check(found, hlo_pb2.HloProto.FromString(data).hlo_module)


def test_the_texts_of_a_node_are_those_of_hlo():
    nodes = graph(stages("convolution")[0]).nodes
    row = nodes.filter(pl.col("opcode") == "convolution").row(0, named=True)
    assert (row["dtype"], row["dims"], row["layout"]) == ("f32", [2, 6, 6, 4], "{3,2,1,0}")
    assert row["window"] == "size=3x3 stride=2x2 pad=0_1x0_1"
    assert row["dimension_numbers"] == "b01f_01io->b01f"
    assert row["part"] == "forward"
    compiled = graph(stages("attention")[1]).nodes
    dot = compiled.filter(pl.col("opcode") == "dot").row(0, named=True)
    assert "lhs_contracting_dims={3}" in dot["dimension_numbers"]
    assert dot["layout"] == "{3,2,1,0}"
    assert dot["self_ps"] is None  # there is no capture


def test_edges_turn_along_the_data():
    found = graph(stages("scan")[1])
    against, along = found.edge_index(), found.edge_index(flow=True)
    assert against.dtype == np.int32
    assert (against[:, ::-1] == along).all()
    entry = found.computations.filter("entry").row(0, named=True)
    parameters = found.nodes.filter(pl.col("opcode") == "parameter", pl.col("computation") == entry["computation"])
    assert not {*parameters["node"]} & {*against[:, 0].tolist()}  # parameters use nothing


def test_names_of_the_numbers_are_the_published_ones():
    assert len(NODE_FEATURES) == len({*NODE_FEATURES}) == 140
    published = {
        0: "is_root",
        13: "shape_element_type_is_f32",
        15: "shape_element_type_is_bf16",
        28: "shape_dimensions_product",
    }
    published |= {30: "parameter_number", 44: "window_size_product", 69: "window_window_dilation_0"}
    published |= {92: "window_window_reversal_false_count", 98: "convolution_dim_numbers_input_spatial_dims_3"}
    published |= {
        106: "convolution_dim_numbers_output_feature_dim",
        108: "batch_group_count",
        116: "slice_dims_stride_product",
    }
    published |= {
        124: "dynamic_slice_sizes_product",
        129: "padding_config_edge_padding_high_0",
        139: "layout_minor_to_major_5",
    }
    assert {place: NODE_FEATURES[place] for place in published} == published
    assert (TILE_FEATURES[14], TILE_FEATURES[15], len(TILE_FEATURES)) == (
        "output_bounds_sum",
        "output_bounds_product",
        24,
    )
    assert (LAYOUT_FEATURES[6], len(LAYOUT_FEATURES)) == ("input_layout_0", 18)
    known = {
        "abs": 1,
        "compare": 20,
        "dot": 34,
        "parameter": 63,
        "trace": 97,
        "transpose": 98,
        "while": 102,
        "tan": 120,
    }
    assert {name: OPCODES[name] for name in known} == known


SHAPES = st.lists(st.integers(0, 300), max_size=8)
INSTRUCTIONS = st.lists(
    st.fixed_dictionaries(
        {
            "opcode": st.sampled_from(["add", "dot", "new-opcode", "parameter", "fusion"]),
            "type": st.integers(0, 33),
            "dims": SHAPES,
            "dimensions": SHAPES,
            "window": st.lists(st.tuples(*[st.integers(-3, 9)] * 6, st.booleans()), max_size=7),
            "spatial": st.lists(st.integers(0, 6), max_size=6),
            "slices": st.lists(st.tuples(*[st.integers(0, 99)] * 3), max_size=4),
            "pads": st.lists(st.tuples(*[st.integers(-9, 9)] * 2), max_size=4),
            "uses": st.lists(st.integers(0, 20), max_size=4),
        }
    ),
    min_size=1,
    max_size=12,
)


@examples(60)
@given(instructions=INSTRUCTIONS)
def test_any_program_is_what_the_protobuf_library_reads(hlo_pb2, instructions):
    module = hlo_pb2.HloModuleProto(name="made up")
    computation = module.computations.add(name="main", id=7, root_id=100)
    for number, given_ in enumerate(instructions):
        one = computation.instructions.add(name=f"i{number}", opcode=given_["opcode"], id=100 + number)
        one.shape.element_type, one.is_stable = given_["type"], number % 2 == 1
        one.shape.dimensions.extend(given_["dims"])
        one.shape.layout.minor_to_major.extend(range(len(given_["dims"]))[::-1])
        one.dimensions.extend(given_["dimensions"])
        one.operand_ids.extend(100 + use % len(instructions) for use in given_["uses"])
        for values in given_["window"]:
            one.window.dimensions.add(**dict(zip((*WINDOW, "window_reversal"), values, strict=True)))
        one.convolution_dimension_numbers.input_spatial_dimensions.extend(given_["spatial"])
        for start, limit, stride in given_["slices"]:
            one.slice_dimensions.add(start=start, limit=limit, stride=stride)
        for low, high in given_["pads"]:
            one.padding_config.dimensions.add(edge_padding_low=low, edge_padding_high=high)
    check(graph(module.SerializeToString()), module)


@pytest.mark.parametrize(
    "capture",
    ["cpu_julia", "gpu-1080ti_julia", "gpu-mi300x_jax08_gemm", "gpu-mi300x_jax_conv", "tpu-v6e-4_jax_host-offload"],
)
def test_every_program_of_a_real_capture(hlo_pb2, real_profiles, capture):
    path = real_profiles / f"{capture}.xplane.pb"
    programs = xplane.programs(storage.read(storage.find(path)), source=capture)
    profile = tp.load(path)
    assert programs
    assert {*profile.protos["program"]} == {*programs}
    for program in programs:
        found = graph(profile, program)
        proto = profile.protos.filter(pl.col("program") == program)["proto"][0]
        check(found, hlo_pb2.HloProto.FromString(proto).hlo_module)


def test_a_capture_gives_the_time_of_nodes_and_the_tiles_of_a_tpu(real_profiles):
    found = graph(tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"))  # that with the most time
    assert found.name == "jit_f"
    timed = found.nodes.drop_nulls("self_ps")
    assert 0 < len(timed) < len(found.nodes)
    assert timed.sort("self_ps")["opcode"][-1] == "copy-done"
    assert {"{3,2,1,0:T(8,128)}", "{3,2,1,0:T(8,128)S(5)}"} <= {*found.nodes["layout"].cast(pl.String).drop_nulls()}


def test_a_capture_without_programs_is_named(real_profiles):
    with pytest.raises(TpunbError, match="holds no compiled program") as caught:
        graph(tp.load(real_profiles / "gpu-v100_tf2_bert_steps.xplane.pb"))
    assert "jit_compile" in caught.value.hint
    with pytest.raises(TpunbError, match="no program 'jit_g'") as caught:
        graph(tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb"), "jit_g")
    assert "jit_f" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"jit_f", bytes(40), b"\x0a\x03abc"])
def test_bytes_that_are_no_program_are_refused(data):
    with pytest.raises(BadProfile):
        graph(data)


def test_what_is_no_program_is_refused():
    with pytest.raises(TypeError, match="must be a Profile"):
        graph(3)
    with pytest.raises(ValueError, match="with a profile only"):
        graph(b"", "jit_f")
    with pytest.raises(ValueError, match="must be 0 or -1"):
        graph(stages("scan")[0]).features(padding=2)
