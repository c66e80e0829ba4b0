"""Framework ops, layers and parts of HLO instructions: own, fused, of neighbours; never a hang."""

import polars as pl
import pytest
from examples import examples
from hlo_protos import messages
from hypothesis import given
from hypothesis import strategies as st

from tpunb.io import hlo_names
from tpunb.step_stats.op_names import layer


def program(hlo_pb2, *computations):
    """Return an HloProto: of each computation (name, opcode, framework op, operands, called computations)."""
    proto, ids = hlo_pb2.HloProto(), {}
    for number, instructions in enumerate(computations, 1):
        computation = proto.hlo_module.computations.add(id=number)
        for name, opcode, op, operands, *called in instructions:
            ids[name] = len(ids) + 1
            one = computation.instructions.add(id=ids[name], name=name, opcode=opcode)
            one.metadata.op_name = op
            one.operand_ids.extend(ids[operand] for operand in operands)
            one.called_computation_ids.extend(called)
    return proto.SerializeToString()


def named(*protos):
    """Return framework op and part of each instruction."""
    rows = hlo_names.ops(messages(*protos)).select(pl.col("hlo_op", "tf_op").cast(pl.String), "part").rows()
    return {name: (op, part) for name, op, part in rows}


def test_a_fusion_has_the_ops_of_other_layers_and_parts_in_it(hlo_pb2):
    fused = [
        ("p", "parameter", "args[0]", []),
        ("c", "broadcast", "net/other/zeros", []),  # no work
        ("grad", "multiply", "gradient_tape/net/b/mul", ["p", "c"]),
        ("relu", "maximum", "net/a/Relu", ["grad"]),
        ("bias", "add", "net/a/BiasAdd", ["relu"]),
    ]
    copied = [("q", "parameter", "", []), ("t", "transpose", "net/a/Transpose", ["q"])]
    entry = [
        ("arg", "parameter", "x", []),
        ("own", "fusion", "gradient_tape/net/b/ReluGrad", ["arg"], 1),
        ("unnamed", "fusion", "", ["own"], 1),
        ("moved", "fusion", "", ["unnamed"], 2),
    ]
    found = named(program(hlo_pb2, fused, copied, entry))
    assert found["own"] == ("gradient_tape/net/b/ReluGrad;net/a/Relu", "backward")
    assert found["unnamed"] == ("gradient_tape/net/b/mul;net/a/Relu", "backward")
    assert found["moved"] == ("net/a/Transpose", "forward")
    assert layer(found["own"][0]) == "mixed"
    assert found["arg"] == ("gradient_tape/net/b/ReluGrad;net/a/Relu", "backward")  # of what uses it, not "x"


def test_what_the_compiler_inserted_has_the_op_of_what_uses_it_else_of_what_it_uses(hlo_pb2):
    entry = [
        ("x", "parameter", "", []),
        ("zero", "constant", "net/other/zeros", []),  # one for all uses of 0
        ("iota", "iota", "", []),
        ("copy", "copy", "", ["x"]),
        ("copy.2", "bitcast", "", ["copy"]),
        ("dot", "dot", "net/a/MatMul", ["copy.2", "iota"]),
        ("last", "copy", "", ["dot", "zero"]),
        ("alone", "copy", "", ["zero"]),
    ]
    found = named(program(hlo_pb2, entry))
    assert {name: op for name, (op, _) in found.items()} == {
        **dict.fromkeys(["x", "iota", "copy", "copy.2", "dot", "last"], "net/a/MatMul"),
        **dict.fromkeys(["zero"], "net/a/MatMul"),  # of `dot`, by `last`
        "alone": None,
    }


@pytest.mark.parametrize(
    ("forward", "gradient", "update"),
    [
        ("net/conv/convolution", "gradient_tape/net/conv/convolution", "adam/AssignSubVariableOp"),
        ("jit(f)/jvp(net)/conv/conv", "jit(f)/transpose(jvp(net))/conv/conv", "jit(f)/sub"),
    ],
)
def test_a_gradient_without_a_name_is_of_the_layer_whose_parameter_the_update_changes(
    hlo_pb2, forward, gradient, update
):
    of_next = gradient.replace("conv", "norm")
    entry = [
        ("kernel", "parameter", "", []),
        ("momentum", "parameter", "", []),
        ("x", "parameter", "", []),
        ("y", "convolution", forward, ["x", "kernel"]),
        ("dy", "multiply", of_next, ["y"]),
        ("turned", "transpose", "", ["dy"]),
        ("gradient", "convolution", "", ["x", "turned"]),
        ("m", "add", update, ["momentum", "gradient"]),
        ("new", "subtract", update, ["kernel", "m"]),
    ]
    found = named(program(hlo_pb2, entry))
    assert found["gradient"] == (gradient, "backward")
    assert found["turned"] == (gradient, "backward")
    assert found["m"][1] == found["new"][1] == "update"
    assert found["momentum"] == (update, "update")
    assert (found["kernel"][0], found["x"][0]) == (forward, forward)


def test_without_gradients_an_op_of_jax_has_no_part(hlo_pb2):
    assert named(program(hlo_pb2, [("a", "add", "jit(f)/add", [])])) == {"a": ("jit(f)/add", None)}


def test_a_damaged_program_costs_its_own_rows_alone(hlo_pb2):
    whole = program(hlo_pb2, [("a", "add", "jit(f)/jvp(net)/add", [])])
    assert hlo_names.ops(messages(whole, whole[:-1], whole))["proto"].to_list() == [0, 2]


def network(params, x):
    import jax
    from jax import lax

    for name in ("conv1", "conv2"):
        with jax.named_scope(name):
            x = lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        with jax.named_scope(f"norm_of_{name}"):
            x = (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)
    with jax.named_scope("dense"):
        return x.reshape(x.shape[0], -1) @ params["dense"]


def test_a_training_step_of_jax_names_every_layer_and_part(hlo_pb2):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def step(params, momenta, x, y):
        gradients = jax.grad(lambda params: ((network(params, x) - y) ** 2).mean())(params)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, momenta), momenta

    shapes = {"conv1": (3, 3, 3, 16), "conv2": (3, 3, 16, 8), "dense": (2048, 10)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    args = params, params, jnp.ones((4, 16, 16, 3)), jnp.ones((4, 10))
    compiled = jax.jit(step).lower(*args).compile().runtime_executable()
    proto = hlo_pb2.HloProto()
    proto.hlo_module.ParseFromString(compiled.hlo_modules()[0].as_serialized_hlo_module_proto())
    module = proto.hlo_module
    entry = next(each for each in module.computations if each.id == module.entry_computation_id)
    silent = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
    found = named(proto.SerializeToString())
    work = {one.name: found[one.name] for one in entry.instructions if one.opcode not in silent}
    assert all(op and part for op, part in work.values())
    assert {(layer(op), part) for op, part in work.values()} >= {
        (name, part) for name in shapes for part in ("forward", "backward")
    }
    assert "update" in {part for _, part in work.values()}


IDS = st.integers(0, 6) | st.sampled_from([-1, 2**40, 2**63 - 1])
NAMES = st.sampled_from(["", "a/b", "adam/x", "gradient_tape/a/b", "jit(f)/jvp(a)/x", "jit(f)/y", ";;", "x;y/z"])


@st.composite
def programs(draw, hlo_pb2):
    proto = hlo_pb2.HloProto()
    for number in range(draw(st.integers(0, 3))):
        computation = proto.hlo_module.computations.add(id=number)
        for row in range(draw(st.integers(0, 5))):
            opcodes = ["fusion", "call", "dot", "copy", "parameter", "add"]
            one = computation.instructions.add(id=row, name=f"{number}.{row}", opcode=draw(st.sampled_from(opcodes)))
            one.metadata.op_name = draw(NAMES)
            one.operand_ids.extend(draw(st.lists(IDS, max_size=4)))
            one.called_computation_ids.extend(draw(st.lists(IDS, max_size=3)))
    return proto.SerializeToString()


@given(data=st.data())
@examples(30)
def test_any_program_ends_in_a_row_per_instruction(hlo_pb2, data):
    """Cycles, missing operands, computations that contain themselves."""
    protos = data.draw(st.lists(programs(hlo_pb2), max_size=3))
    rows = hlo_names.ops(messages(*protos))
    parsed = [hlo_pb2.HloProto.FromString(proto).hlo_module for proto in protos]
    names = [one.name for module in parsed for each in module.computations for one in each.instructions]
    assert rows.schema == hlo_names.OPS
    assert rows["hlo_op"].cast(pl.String).to_list() == names
    assert set(rows["part"].drop_nulls()) <= {"forward", "backward", "update", "mixed"}
    assert rows.filter(pl.col("part").is_not_null() & pl.col("tf_op").is_null()).is_empty()


@given(noise=st.binary(max_size=200))
def test_any_bytes_are_rows_or_none(noise):
    assert hlo_names.ops(messages(noise)).schema == hlo_names.OPS


def test_a_long_chain_without_names_is_one_pass(hlo_pb2):
    proto = hlo_pb2.HloProto()
    computation = proto.hlo_module.computations.add(id=1)
    for number in range(1, 100_001):
        one = computation.instructions.add(id=number, name=f"copy.{number}", opcode="copy", operand_ids=[number - 1])
    one.metadata.op_name = "net/a/MatMul"
    assert set(hlo_names.ops(messages(proto.SerializeToString()))["tf_op"].cast(pl.String)) == {"net/a/MatMul"}
