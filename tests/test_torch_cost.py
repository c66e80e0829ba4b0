"""FLOPs and bytes of PyTorch's operators: against its own counter, published tables, and sums done by hand."""

import ast
import csv
from contextlib import suppress

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.costs.torch_cost import Call, cost, described, element

FIELDS = ("Input Dims_first", "Input type_first", "Input Strides_first", "Concrete Inputs_first")


def call(name, *dims, types="float", concrete=(), strides=()):
    kinds = [types] * len(dims) if isinstance(types, str) else types
    return Call(name, [*dims], kinds, [*strides], [*concrete] or [""] * len(dims))


def conv(x, weight, *, stride=1, padding=0, dilation=1, transposed=False, added=0, groups=1):
    values = ["", "", "", f"[{stride}]", f"[{padding}]", f"[{dilation}]", str(transposed), f"[{added}]", str(groups)]
    return Call("aten::convolution", [x, weight, *[[]] * 7], ["float", "float", *[""] * 7], [], values)


@pytest.mark.parametrize(
    ("recorded", "flops", "size"),
    [
        (call("aten::addmm", [4], [2, 3], [3, 4], types="c10::Half"), 48, 2 * (4 + 6 + 12 + 8)),
        (call("aten::bmm", [5, 2, 3], [5, 3, 4]), 5 * 48, 4 * 5 * (6 + 12 + 8)),
        (call("aten::matmul", [5, 1, 2, 3], [6, 3, 4]), 30 * 48, 4 * (30 + 72 + 240)),
        (call("aten::linear", [7, 2, 3], [4, 3], [4]), 7 * 48, 4 * (42 + 12 + 4 + 56)),
        (call("aten::mv", [2, 3], [3]), 12, 4 * (6 + 3 + 2)),
        (
            Call(
                "aten::_scaled_mm",
                [[16, 32], [32, 16], [], [], [], [], []],
                ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float", "", "", "Scalar"],
                [],
                [""] * 6 + ["15"],
            ),
            2 * 16 * 32 * 16,
            16 * 32 + 32 * 16 + 2 * 16 * 16,
        ),
        (conv([2, 4, 8, 8], [6, 4, 3, 3], padding=1), 2 * 2 * 64 * 6 * 4 * 9, 4 * (512 + 216 + 768)),
        (conv([2, 4, 8, 8], [4, 1, 3, 3], stride=2, groups=4), 2 * 2 * 9 * 4 * 9, 4 * (512 + 36 + 72)),
        (
            conv([2, 4, 8, 8], [4, 6, 4, 4], stride=2, padding=1, transposed=True),
            2 * 2 * 64 * 4 * 6 * 16,
            4 * (512 + 384 + 2 * 6 * 256),
        ),
        (call("aten::add", [8, 1], [1, 4]), 32, 4 * (8 + 4 + 32)),
        (call("aten::add_", [8, 4], [8, 4]), 32, 4 * 3 * 32),
        (call("aten::eq", [8], [8]), 8, 4 * 16 + 8),
        (call("aten::mul", [8, 4], [8, 4], strides=[[4, 1], [0, 1]]), 32, 4 * (32 + 4 + 32)),
        (call("aten::copy_", [8], [8], types=["c10::BFloat16", "float"]), 0, 48),
        (call("aten::zero_", [8]), 0, 32),
        (call("aten::_softmax", [8, 4]), 160, 4 * 64),
        (Call("aten::sum", [[8, 4], [], []], ["float", "ScalarList", "Scalar"], [], ["", "[1]", "False"]), 32, 4 * 40),
        (call("aten::mean", [8, 4]), 32, 4 * 33),
        (call("aten::embedding", [99, 16], [5], types=["float", "long int"]), 0, 2 * 5 * 16 * 4 + 40),
        (
            call("vllm::fused_moe", [16, 8], [4, 32, 8], [4, 8, 16], [16, 2], types=["c10::BFloat16"] * 3 + ["float"]),
            2 * 32 * 8 * (32 + 16),
            None,  # which experts are used is data
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else None,
)
def test_work_is_that_of_the_formula(recorded, flops, size):
    assert cost(recorded)[1:] == (flops, size)


@given(st.integers(1, 9), st.integers(1, 9))
def test_causal_attention_counts_the_pairs_that_its_mask_keeps(queries, keys):
    def flops(causal):
        shapes = [[2, 3, queries, 8], [2, 3, keys, 8], [2, 3, keys, 4]]
        values = [""] * 4 + [str(causal)]
        return cost(Call("aten::_scaled_dot_product_flash_attention", shapes, ["float"] * 3, [], values)).flops

    pairs = sum(key <= query for query in range(queries) for key in range(keys))
    assert flops(causal=True) == 2 * 2 * 3 * pairs * (8 + 4)
    assert flops(causal=False) == 2 * 2 * 3 * queries * keys * (8 + 4)


SHAPES = [[2, 3], [5]]
ADAM = Call("aten::_fused_adam_", [*[SHAPES] * 4, [], [[], []]], ["TensorList"] * 6, [], [""] * 6)  # no amsgrad, steps


@pytest.mark.parametrize(
    ("recorded", "flops", "lists"),
    [
        (Call("aten::cat", [SHAPES, []], ["TensorList", "Scalar"], [], ["", "0"]), 0, 2),
        (Call("aten::_foreach_addcdiv_", [SHAPES] * 3, ["TensorList"] * 3, [], [""] * 3), 11, 4),
        (Call("aten::_foreach_norm", [SHAPES, [], []], ["TensorList", "Scalar", ""], [], [""] * 3), 22, 1),
        (ADAM, 13 * 11, 7),
        (Call("aten::_fused_sgd_", [SHAPES, SHAPES, []], ["TensorList"] * 3, [], [""] * 3), 4 * 11, 3),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else None,
)
def test_work_on_lists_of_tensors_has_bytes_where_the_kernel_names_their_type(recorded, flops, lists):
    assert described(recorded) == ("2 tensors with 11 elements", None)
    assert cost(recorded)[1:] == (flops, None)
    kernel = (
        "at::native::multi_tensor_apply_kernel<at::native::BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>, float>"
    )
    assert cost(recorded._replace(element=element(kernel)))[1:] == (flops, lists * 11 * 2)
    assert element("void CatArrayBatchedCopy_vectorized<char, unsigned int, 3, 128, 1, 16>") is None


def test_shapes_are_text_that_says_what_is_transposed_or_causal():
    assert described(conv([1, 2, 3], [2, 4, 5], transposed=True)) == ("f32[1,2,3] f32[2,4,5] transposed", "f32")
    values = [""] * 4 + ["True"]
    attention = Call("aten::_scaled_dot_product_flash_attention", [[1, 1, 2, 4]] * 3, ["c10::Half"] * 3, [], values)
    assert described(attention)[0] == " ".join(["f16[1,1,2,4]"] * 3 + ["causal"])
    assert described(Call("aten::add", [[2], []], ["Scalar", ""], [], [])) == (None, None)


@pytest.mark.parametrize(
    "unknown",
    [
        call("my::op", [2, 3]),
        call("aten::mm", [2, 3], [4, 3]),  # no product
        call("aten::mm", [2, 3]),
        call("aten::mm", [2, 3], [3, 4], types=["float", "Scalar"]),
        call("aten::mm", [1 << 40, 1 << 40], [1 << 40, 1 << 40]),
        conv([2, 4, 8, 8], [6, 4, 3]),
        Call("aten::conv2d", [[2, 4, 8, 8], [6, 4, 3, 3]], ["float"] * 2, [], [""] * 7),  # padding by name
        Call("aten::cat", [[[2, "x"]], []], ["TensorList", "Scalar"], [], ["", "0"]),
        Call("aten::cat", [[], []], ["TensorList", "Scalar"], [], ["", "0"]),  # of more than 30
        Call("aten::_foreach_add_", [[3], []], ["float", "Scalar"], [], ["", "0"]),
    ],
)
def test_what_is_not_known_is_none(unknown):
    assert cost(unknown) is None


def test_flops_are_those_that_pytorch_counts():
    pytest.importorskip("torch")
    import torch_programs as live

    programs = live.programs()
    assert len(programs) >= 40
    found = {name: (live.counted(run), *live.by_shapes(live.recorded(run))) for name, run in programs.items()}
    assert {name: flops for name, flops in found.items() if len({*flops}) > 1 or not flops[0]} == {}


def test_operators_of_a_cpu_have_work_and_modules(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    from tpunb.profiler.sources.torch import Modules

    class Failing(torch.nn.Module):
        def forward(self, x):
            raise ArithmeticError

    def step():
        net(torch.ones(2, 3, 8, 8)).square().mean().backward()
        with suppress(ArithmeticError):
            torch.nn.Sequential(torch.nn.ReLU(), Failing())(torch.ones(2))

    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.LayerNorm(6), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    net, modules = torch.nn.Sequential(*layers), Modules()
    with FlopCounterMode(display=False) as counter:
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
        modules.start(spans=True)
        step()
        modules.stop()
    path = tmp_path / "trace.json"
    session.export_chrome_trace(str(path))
    calls = tp.load(path).calls
    named = calls.drop_nulls("module").with_columns(pl.col("operator").cast(pl.String))
    found = {*named.filter(pl.col("operator").is_in(["aten::addmm", "aten::mm"])).select("module", "part").rows()}
    assert found == {("Sequential_0/Linear_0", "forward"), ("Sequential_0/Linear_0", "backward")}
    work = tp.load(path).events.filter(pl.col("category").cast(pl.String).is_in(["matrix product", "convolution"]))
    assert work["flops"].sum() == counter.get_total_flops()


@pytest.mark.parametrize("spans", [True, False])
def test_a_window_may_end_where_a_model_is_called_in_an_evaluation(spans):
    torch = pytest.importorskip("torch")

    from tpunb.profiler.sources.torch import Modules

    def evaluated():
        ended.append(True)
        modules.stop()

    ended, modules = [], Modules(evaluated)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    modules.start(spans=spans)
    net(torch.ones(2)).sum().backward()
    assert not ended
    with torch.no_grad():
        assert net(torch.ones(2)).shape == (2,)
        net(torch.ones(2))
    assert ended == [True]


@pytest.mark.parametrize(("table", "rows", "most"), [("GEMM", 40, 0.01), ("CONV_fwd", 4, 0.01), ("SDPA_fwd", 4, 0.02)])
def test_work_is_that_of_published_tables(answers, table, rows, most):
    paths = sorted((answers / "tracelens").glob(f"*/*/{table}.csv"))
    listed = [row for path in paths for row in csv.DictReader(path.open())]
    assert len(listed) == rows
    for row in listed:
        found = cost(Call(row["name"], *(ast.literal_eval(row[field]) for field in FIELDS)))
        assert found.flops == pytest.approx(float(row["GFLOPS_first"]) * 1e9, rel=most)
        assert found.bytes == pytest.approx(float(row["Data Moved (MB)_first"]) * 2**20, rel=most)
