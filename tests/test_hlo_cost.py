"""Work of HLO instructions: as XLA counts it, from programs that it compiled, and never a hang."""

import functools
import itertools
import random

import numpy as np
import polars as pl
import pytest
from examples import examples
from hlo_protos import messages, varint
from hypothesis import given
from hypothesis import strategies as st
from xprof_oracle import Oracle

import tpunb as tp
from tpunb.costs import hlo_cost
from tpunb.costs.hlo_cost import WORK, work

COUNTS = ["flops", "transcendentals", "bytes"]
CONVOLUTION = "cudnn-conv.1.0"
IMAGES, F32 = (8, 28, 28, 16), "float32"


def convolution(x, kernel, stride=1, padding="SAME", **options):
    from jax import lax

    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=dimensions, **options)


def gradient(function, *argnums):
    """Return the gradient of the sum of squares of what a function returns."""

    def call(*arrays):
        import jax

        return jax.grad(lambda *inputs: (function(*inputs) ** 2).sum(), argnums or 0)(*arrays)

    return call


def mlp_step(w1, w2, x, y):
    import jax
    import jax.numpy as jnp

    def loss(w1, w2):
        return jnp.mean((jax.nn.relu(x @ w1) @ w2 - y) ** 2)

    value, (d1, d2) = jax.value_and_grad(loss, (0, 1))(w1, w2)
    return value, w1 - 0.1 * d1, w2 - 0.1 * d2


def attention(q, k, v):
    import jax
    import jax.numpy as jnp

    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8, -1)
    return jnp.einsum("bhqk,bkhd->bqhd", scores, v)


def recurrence(h, xs, w):
    import jax.numpy as jnp
    from jax import lax

    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), h, xs)


def branches(choice, a):
    import jax.numpy as jnp
    from jax import lax

    return lax.switch(choice, [lambda a: a @ a, jnp.sin, lambda a: a @ a @ a], a)


def mixed(a, b, c):
    import jax

    return (jax.nn.gelu((a @ b).astype(F32)) * c).astype("bfloat16")


def pooled(kind, size):
    def pool(a):
        from jax import lax

        start, function = {"max": (-np.inf, lax.max), "mean": (0.0, lax.add)}[kind]
        return lax.reduce_window(a, start, function, (1, size, size, 1), (1, 2, 2, 1), "SAME")

    return pool


def jnp(name, *args, **options):
    """Return a function of jax.numpy, imported where it is called."""

    def call(*arrays):
        from jax import numpy

        return getattr(numpy, name)(*args, *arrays, **options)

    return call


def lax(name, **options):
    def call(*arrays):
        from jax import lax

        return getattr(lax, name)(*arrays, **options)

    return call


KERNEL = (3, 3, 16, 32)
PROGRAMS = {
    "mlp step": (mlp_step, (64, 128), (128, 10), (32, 64), (32, 10)),
    "convolution": (convolution, IMAGES, KERNEL),
    "strided": (functools.partial(convolution, stride=2), IMAGES, KERNEL),
    "dilated": (functools.partial(convolution, rhs_dilation=(2, 3)), IMAGES, KERNEL),
    "transposed": (
        functools.partial(convolution, lhs_dilation=(3, 2), stride=2, padding=((1, 2), (0, 4))),
        *(IMAGES, KERNEL),
    ),
    "grouped": (functools.partial(convolution, feature_group_count=4), IMAGES, (3, 3, 4, 32)),
    "depthwise": (functools.partial(convolution, feature_group_count=16), IMAGES, (3, 3, 1, 16)),
    "gradient of a convolution": (gradient(convolution, 0, 1), IMAGES, KERNEL),
    "gradient, strided": (gradient(functools.partial(convolution, stride=2), 0, 1), IMAGES, KERNEL),
    "gradient, depthwise": (
        gradient(functools.partial(convolution, feature_group_count=16), 0, 1),
        *(IMAGES, (3, 3, 1, 16)),
    ),
    "attention": (attention, *[(2, 64, 4, 32)] * 3),
    "gradient of attention": (gradient(attention, 0, 1, 2), *[(2, 64, 4, 32)] * 3),
    "batched dot": (jnp("einsum", "bij,bjk->bik"), (6, 30, 40), (6, 40, 50)),
    "scan": (recurrence, (8, 16), (20, 8, 16), (16, 16)),
    "switch": (branches, ((), "int32"), (40, 40)),
    "sort": (jnp("sort"), (1000,)),
    "argsort": (jnp("argsort", axis=1), (10, 100)),
    "gather": (lambda a, i: a[i] * 2, (1000, 64), ((50,), "int32")),
    "scatter": (lambda a, i, u: a.at[i].add(u), (1000, 64), ((50,), "int32"), (50, 64)),
    "gradient of an embedding": (gradient(lambda a, i: a[i]), (1000, 64), ((50,), "int32")),
    "max pooling": (pooled("max", 2), IMAGES),
    "gradient of mean pooling": (gradient(pooled("mean", 3)), IMAGES),
    "running sum": (jnp("cumsum", axis=1), (10, 300)),
    "update of a slice": (lambda a, b, i: a.at[i].set(b), (100, 64), (64,), ((), "int32")),
    "bf16 mixed": (mixed, ((64, 128), "bfloat16"), ((128, 32), "bfloat16"), (64, 32)),
    "4-bit integers": (lambda a: a.astype("int4"), ((1001,), "int32")),
    "fft": (lax("fft", fft_type="FFT", fft_lengths=(128,)), ((16, 128), "complex64")),
    "transcendental": (lambda a: lax("erf")(a) + lax("tan")(a) + lax("cbrt")(a) + lax("acosh")(a) ** a, (100,)),
}


@pytest.fixture(scope="module")
def compiled(hlo_pb2):
    """Return the bytes of a program, the names of the instructions of its entry, and what XLA counts for it."""
    jax = pytest.importorskip("jax")

    @functools.cache
    def of(name):
        function, *shapes = PROGRAMS[name]
        typed = [shape if shape and isinstance(shape[-1], str) else (shape, F32) for shape in shapes]
        program = jax.jit(function).lower(*(jax.ShapeDtypeStruct(*shape) for shape in typed)).compile()
        proto = program.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
        module = hlo_pb2.HloModuleProto.FromString(proto)
        entry = next(one for one in module.computations if one.id == module.entry_computation_id)
        counted = program.cost_analysis()
        by_xla = [counted.get(key, 0) for key in ("flops", "transcendentals", "bytes accessed")]
        return hlo_pb2.HloProto(hlo_module=module).SerializeToString(), [one.name for one in entry.instructions], by_xla

    return of


@pytest.mark.parametrize("name", PROGRAMS)
def test_work_is_what_xla_counts(compiled, name):
    proto, entry, (flops, transcendentals, moved) = compiled(name)
    rows = work(messages(proto))
    assert rows.schema == WORK
    assert rows.null_count().select(COUNTS).row(0) == (0, 0, 0)
    rows = rows.filter(pl.col("hlo_op").cast(pl.String).is_in(entry))
    assert rows["flops"].sum() == pytest.approx(flops, rel=1e-3)
    assert rows["transcendentals"].sum() == transcendentals
    assert rows["bytes"].sum() == pytest.approx(moved, rel=1e-2)
    assert moved > 0


def shaped(hlo_pb2, *dims, kind=11):
    shape = hlo_pb2.HloInstructionProto().shape
    shape.element_type = kind
    shape.dimensions.extend(dims)
    return shape


def rows_of(hlo_pb2, *computations):
    """Return the work of the instructions of computations: (name, opcode, shape, operands, called, fields) each.

    Instructions are numbered from 1 in the program, computations too; the last of each is its root.
    """
    proto = hlo_pb2.HloProto()
    number = itertools.count(1)
    for instructions in computations:
        computation = proto.hlo_module.computations.add(id=len(proto.hlo_module.computations) + 1)
        for name, opcode, shape, operands, called, *fields in instructions:
            one = computation.instructions.add(name=name, opcode=opcode, id=next(number), **dict(*fields))
            one.shape.CopyFrom(shape)
            one.operand_ids.extend(operands)
            one.called_computation_ids.extend(called)
            computation.root_id = one.id
    return work(messages(proto.SerializeToString()))


def counted(hlo_pb2, *computations):
    rows = rows_of(hlo_pb2, *computations)
    return {row["hlo_op"]: tuple(row[name] for name in COUNTS) for row in rows.iter_rows(named=True)}


def test_what_is_unknown_is_null_and_so_is_what_contains_it(hlo_pb2):
    array = shaped(hlo_pb2, 8)
    found = counted(
        hlo_pb2,
        [("a", "parameter", array, [], []), ("call", "custom-call", array, [1], [])],
        [
            ("b", "parameter", array, [], []),
            ("outer", "call", array, [3], [1]),
            ("norm", "batch-norm-training", array, [3], []),
            ("new", "opcode-of-2040", array, [3], []),
            ("lost", "add", array, [3, 99], []),
            ("known", "add", array, [3, 3], []),
        ],
    )
    assert found["call"] == found["outer"] == (None, None, None)
    assert found["norm"] == found["new"] == (None, None, 64)
    assert found["lost"] == (8, 0, None)
    assert found["known"] == (8, 0, 96)


def test_the_data_type_of_a_product_is_that_of_its_operands(hlo_pb2):
    half, single, number = (shaped(hlo_pb2, 8, 8, kind=kind) for kind in (16, 11, 5))
    pair = hlo_pb2.HloInstructionProto().shape
    pair.element_type = 13
    pair.tuple_shapes.extend([half, single])
    rows = rows_of(
        hlo_pb2,
        [("a", "parameter", half, [], []), ("dot", "dot", single, [1, 1], [])],
        [("b", "parameter", half, [], []), ("inner", "fusion", single, [3], [1]), ("tanh", "tanh", single, [4], [])],
        [
            ("c", "parameter", half, [], []),
            ("product", "fusion", single, [6], [2]),
            ("gemm", "custom-call", single, [6, 6], [], {"custom_call_target": "__cublas$gemm"}),
            ("other", "custom-call", single, [6, 6], [], {"custom_call_target": "top_k"}),
            ("both", "tuple", pair, [6, 7], []),
            ("index", "iota", number, [], []),
            ("lost", "dot", single, [99, 99], []),
        ],
    )
    expected = {"a": "bf16", "dot": "bf16", "inner": "bf16", "tanh": "f32", "product": "bf16", "gemm": "bf16"}
    expected |= {"other": "f32", "both": "bf16", "index": "s64", "lost": None, "b": "bf16", "c": "bf16"}
    assert dict(rows.select("hlo_op", "dtype").iter_rows()) == expected


def test_computations_that_call_each_other_are_null(hlo_pb2):
    array = shaped(hlo_pb2, 8)
    found = counted(
        hlo_pb2,
        [("to itself", "call", array, [], [1]), ("add", "add", array, [1, 1], [])],
        [("to the next", "call", array, [], [3])],
        [("to the last", "while", array, [], [2])],
        [("outside", "fusion", array, [], [1]), ("nowhere", "call", array, [], [77])],
    )
    assert found.pop("add") == (8, 0, 96)
    assert {*found.values()} == {(None, None, None)}


@pytest.mark.parametrize("dims", [(-1, 4), (-(2**63),), (2**31, 2**32), (2**63 - 1,) * 20])
def test_a_size_that_is_negative_or_too_large_is_null(hlo_pb2, dims):
    large = shaped(hlo_pb2, *dims)
    assert counted(hlo_pb2, [("a", "tanh", large, [1], [])])["a"] == (0, None, None)


def test_gemm_and_convolution_of_gpu_libraries(hlo_pb2):
    """By hand: 2 x 64 x 32 x 128 for the product; 2 x 10 x 9 positions x 3 x 5 channels for each of 2 images."""
    both = hlo_pb2.HloInstructionProto().shape
    both.element_type = 13
    both.tuple_shapes.extend([shaped(hlo_pb2, 64, 32), shaped(hlo_pb2, 4000, kind=6)])
    config = b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"]}}}'
    gemm = {"custom_call_target": "__cublas$lt$matmul", "backend_config": config}
    x, kernel, y = shaped(hlo_pb2, 2, 12, 3), shaped(hlo_pb2, 3, 3, 5), shaped(hlo_pb2, 2, 10, 5)
    numbers = {
        **{"input_batch_dimension": 0, "input_spatial_dimensions": [1], "input_feature_dimension": 2},
        **{"kernel_spatial_dimensions": [0], "kernel_input_feature_dimension": 1, "kernel_output_feature_dimension": 2},
        **{"output_batch_dimension": 0, "output_spatial_dimensions": [1], "output_feature_dimension": 2},
    }
    window = {"dimensions": [{"size": 3, "stride": 1, "window_dilation": 1, "base_dilation": 1}]}
    fields = {"convolution_dimension_numbers": numbers, "window": window}

    def conv(kind):
        return {"custom_call_target": f"__cudnn$conv{kind}", **fields}

    found = counted(
        hlo_pb2,
        [
            ("a", "parameter", shaped(hlo_pb2, 128, 64), [], []),
            ("b", "parameter", shaped(hlo_pb2, 128, 32), [], []),
            ("x", "parameter", x, [], []),
            ("k", "parameter", kernel, [], []),
            ("y", "parameter", y, [], []),
            ("gemm", "custom-call", both, [1, 2], [], gemm),
            ("unset", "custom-call", both, [1, 2], [], gemm | {"backend_config": b"{"}),
            ("forward", "custom-call", y, [3, 4], [], conv("Forward")),
            ("input", "custom-call", x, [5, 4], [], conv("BackwardInput")),
            ("filter", "custom-call", kernel, [3, 5], [], conv("BackwardFilter")),
        ],
    )
    assert found["gemm"] == (2 * 64 * 32 * 128, 0, 4 * (128 * 64 + 128 * 32 + 64 * 32))
    assert found["unset"][0] is None
    moved = 4 * (2 * 12 * 3 + 3 * 3 * 5 + 2 * 10 * 5)
    assert found["forward"] == found["input"] == found["filter"] == (2 * 2 * 10 * 3 * 3 * 5, 0, moved)


@given(
    size=st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(0, 9)),
    steps=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    low=st.integers(-5, 5),
)
def test_positions_of_a_window_are_those_of_a_loop(hlo_pb2, size, steps, low):
    (inputs, kernel, outputs), (stride, dilation, base) = size, steps
    places = [o * stride - low + k * dilation for k in range(kernel) for o in range(outputs)]
    met = sum(place % base == 0 and 0 <= place // base < inputs for place in places)
    window = hlo_pb2.HloInstructionProto().window
    window.dimensions.add(stride=stride, padding_low=low, window_dilation=dilation, base_dilation=base)
    dimension = (
        messages(hlo_pb2.HloInstructionProto(window=window).SerializeToString()).sub(15 << 3 | 2).sub(1 << 3 | 2)
    )
    sizes = (np.array([float(one)]) for one in (inputs, kernel, outputs))
    assert hlo_cost._positions(dimension, *sizes).tolist() == [met]


@given(
    fields=st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4)), max_size=4
    )
)
def test_numbers_are_read_packed_and_one_by_one(fields):
    def number(value):
        return varint(value % 2**64)

    message = b"\x08\x07"  # another field
    for packed, values in fields:
        content = b"".join(map(number, values))
        one_by_one = b"".join(varint(36 << 3) + number(value) for value in values)
        message += varint(36 << 3 | 2) + varint(len(content)) + content if packed else one_by_one
    rows, values = messages(b"", message).numbers(36)
    assert values.tolist() == [value for _, each in fields for value in each]
    assert {*rows.tolist()} <= {1}


OPCODES = st.sampled_from(
    [
        *("add", "dot", "convolution", "fusion", "while", "call", "reduce", "scatter", "conditional", "parameter"),
        *("tuple", "dynamic-update-slice", "reduce-window", "select-and-scatter", "custom-call", "sort", "fft"),
    ]
)
NUMBERS = st.integers(0, 6) | st.sampled_from([-1, 2**31, 2**62, -(2**63), 2**63 - 1])


@st.composite
def programs(draw, hlo_pb2):
    proto = hlo_pb2.HloProto()
    for number in range(draw(st.integers(0, 4))):
        computation = proto.hlo_module.computations.add(id=number, root_id=draw(NUMBERS))
        for place in range(draw(st.integers(0, 4))):
            one = computation.instructions.add(name=f"i{number}.{place}", opcode=draw(OPCODES), id=draw(NUMBERS))
            one.operand_ids.extend(draw(st.lists(NUMBERS, max_size=4)))
            one.called_computation_ids.extend(draw(st.lists(NUMBERS, max_size=3)))
            one.shape.CopyFrom(draw(shapes(hlo_pb2)))
            one.dot_dimension_numbers.lhs_contracting_dimensions.extend(draw(st.lists(NUMBERS, max_size=2)))
            one.convolution_dimension_numbers.input_spatial_dimensions.extend(draw(st.lists(NUMBERS, max_size=2)))
            one.custom_call_target = draw(st.sampled_from(["", "__cublas$gemm", "__cudnn$convForward"]))
            if draw(st.booleans()):
                low, stride, base = draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)
                one.window.dimensions.add(size=draw(NUMBERS), stride=stride, padding_low=low, base_dilation=base)
    return proto.SerializeToString()


@st.composite
def shapes(draw, hlo_pb2, depth=0):
    shape = shaped(hlo_pb2, *draw(st.lists(NUMBERS, max_size=3)), kind=draw(st.integers(0, 34)))
    if depth < 2 and draw(st.booleans()):
        shape.element_type = 13
        shape.tuple_shapes.extend(draw(st.lists(shapes(hlo_pb2, depth + 1), max_size=2)))
    return shape


@examples(30)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_program_whole_or_damaged_ends_in_a_frame(hlo_pb2, data, seed):
    program = data.draw(programs(hlo_pb2))
    rows = work(messages(program))
    assert rows.schema == WORK
    assert len(rows) == sum(
        len(one.instructions) for one in hlo_pb2.HloProto.FromString(program).hlo_module.computations
    )
    for name in COUNTS:
        assert rows[name].drop_nulls().is_between(0, 2**63, closed="left").all()
    chance, damaged = random.Random(seed), bytearray(program)
    for _ in range(chance.randint(1, 4) if damaged else 0):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    assert work(messages(bytes(damaged[: chance.randint(0, len(damaged))]))).schema == WORK


def test_tuples_in_tuples_without_end_are_null(hlo_pb2):
    shape = shaped(hlo_pb2, 4)
    for _ in range(40):
        outer = hlo_pb2.HloInstructionProto().shape
        outer.element_type = 13
        outer.tuple_shapes.append(shape)
        shape = outer
    assert counted(hlo_pb2, [("a", "all-reduce", shape, [], [])])["a"] == (None, None, None)


@pytest.mark.parametrize("kind", ["chain", "shapes", "convolutions"])
def test_many_instructions_end(hlo_pb2, kind, monkeypatch):
    n = 20_000
    monkeypatch.setattr(hlo_cost, "_POSITIONS", 1 << 18)  # instead of 1 << 24: the bound holds whatever it is
    proto = hlo_pb2.HloProto()
    if kind == "chain":
        for number in range(n):
            computation = proto.hlo_module.computations.add(id=number)
            one = computation.instructions.add(name=f"i{number}", opcode="call" if number else "add")
            one.called_computation_ids.append(number - 1)
            one.shape.CopyFrom(shaped(hlo_pb2, 3))
        assert work(messages(proto.SerializeToString()))["flops"].to_list() == [3.0] * n
        return
    computation = proto.hlo_module.computations.add(id=1)
    for number in range(n):
        one = computation.instructions.add(name=f"i{number}", opcode="add", id=number, operand_ids=[number, number])
        one.shape.CopyFrom(shaped(hlo_pb2, number))
        if kind == "convolutions":
            one.opcode = "convolution"
            one.window.dimensions.add(size=3, base_dilation=5 + number)
            for field in ("input_spatial_dimensions", "kernel_spatial_dimensions", "output_spatial_dimensions"):
                getattr(one.convolution_dimension_numbers, field).append(0)
    rows = work(messages(proto.SerializeToString()))
    if kind == "shapes":
        assert rows["flops"].sum() == n * (n - 1) / 2
    else:
        assert 0 < rows["flops"].null_count() < n  # the positions of the first are counted


def test_a_tpu_profiler_counts_the_same(real_profiles, hlo_pb2):
    profile = tp.load(real_profiles / "tpu-v6e-4_jax_host-offload.xplane.pb")
    layers = tp.steps(profile).layers
    assert {*layers["flops_source"].drop_nulls()} == {"profiler"}
    by_profiler = profile.events.filter(pl.col("flops") > 0).select("program", "hlo_op", by_profiler="flops").unique()
    both = by_profiler.join(profile.instructions, on=["program", "hlo_op"])
    assert len(both) == 4
    assert both["flops"].to_list() == both["by_profiler"].to_list()


def test_work_counts_once_a_run_of_an_instruction_not_once_a_kernel(real_profiles, tmp_path):
    """A run of this convolution launches two kernels: XProf counts its FLOPs for each, so its rate is twice too high.

    By hand: each of 32 x 60 x 104 input positions meets one kernel element (1 x 2 x 2, stride 1 x 2 x 2), with 16 input
    and 5,120 output channels.
    """
    path = real_profiles / "gpu-mi300x_jax_conv.xplane.pb"
    kernels = tp.steps(tp.load(path), by="whole").layers
    by_kernel = kernels.filter(pl.col("hlo_op").cast(pl.String) == CONVOLUTION)
    assert by_kernel["count"].to_list() == [5, 5]
    assert by_kernel["flops"].null_count() == 1  # the longer kernel has the work
    sums = pl.col("count", "total_ps", "flops", "bytes").sum()
    layers = kernels.group_by("hlo_op").agg(sums, pl.col("flops_source").drop_nulls().first())
    row = layers.row(by_predicate=pl.col("hlo_op").cast(pl.String) == CONVOLUTION, named=True)
    assert (row["count"], row["total_ps"], row["flops_source"]) == (10, 1_539_832_000, "program")
    assert row["flops"] == 5 * 2 * 32 * 60 * 104 * 16 * 5120 == pytest.approx(5 * 3.27156e10, rel=1e-5)
    assert row["flops"] / row["total_ps"] == pytest.approx(106.2, abs=0.05)  # TFLOP/s
    by_xprof = Oracle.of(path, tmp_path).hlo_ops.select("hlo_op", "count", by_xprof="flops", bytes_by_xprof="bytes")
    both = layers.with_columns(pl.col("hlo_op").cast(pl.String)).drop("count").join(by_xprof, on="hlo_op")
    row = both.row(by_predicate=pl.col("hlo_op") == CONVOLUTION, named=True)
    assert row["count"] == 10
    assert row["by_xprof"] == pytest.approx(2 * row["flops"], rel=1e-5)
    others = both.filter(pl.col("hlo_op") != CONVOLUTION)  # one kernel a run
    assert len(others) == 3
    assert others["bytes"].to_list() == pytest.approx(others["bytes_by_xprof"].to_list(), rel=2e-3)
