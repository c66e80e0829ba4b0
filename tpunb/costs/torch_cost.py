"""FLOPs and bytes of PyTorch's operators by the shapes and types of their operands.

A multiplication and an addition are two FLOPs, and every operand is read or written once, as in XLA's cost analysis:
what is read again because it left the cache is not counted. Attention with ``is_causal`` counts the pairs of positions
that its mask keeps; any other mask is data, so all pairs count. Of lists of tensors no profiler records the type, and
PyTorch's no shapes of more than 30: bytes are known where the name of the kernel says how wide an element is. An
operator that is not listed here, or whose shapes were not recorded, is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tpunb.text import plural

PRODUCT, CONVOLUTION, ATTENTION, EXPERTS = "matrix product", "convolution", "attention", "mixture of experts"
NORMALISATION, ELEMENTWISE, REDUCTION, GATHER = "normalisation", "elementwise", "reduction", "gather"
OPTIMIZER = "optimizer"

_TYPES = {  # PyTorch's names of types, as HLO names them, and bytes
    **dict.fromkeys(("float", "complexhalf"), ("f32", 4)),
    **dict.fromkeys(("int", "qint32"), ("s32", 4)),
    **{"double": ("f64", 8), "half": ("f16", 2), "bfloat16": ("bf16", 2), "bool": ("pred", 1)},
    **{"long": ("s64", 8), "long int": ("s64", 8), "short": ("s16", 2), "short int": ("s16", 2)},
    **{"char": ("s8", 1), "signed char": ("s8", 1), "byte": ("u8", 1), "unsigned char": ("u8", 1)},
    **{"float8_e4m3fn": ("f8e4m3fn", 1), "float8_e4m3fnuz": ("f8e4m3fnuz", 1)},
    **{"float8_e5m2": ("f8e5m2", 1), "float8_e5m2fnuz": ("f8e5m2fnuz", 1)},
    **{"complex<float>": ("c64", 8), "complexfloat": ("c64", 8), "complex<double>": ("c128", 16)},
}
_SCALAR_TYPES = {"5": 2, "6": 4, "15": 2}  # bytes of the numbers of c10::ScalarType: half, float, bfloat16
_MOST = 1 << 62


class Cost(NamedTuple):
    """What one call computes and moves."""

    kind: str
    flops: int
    bytes: int | None
    """None where data decide it."""


class Call(NamedTuple):
    """A call of an operator as its profiler recorded it."""

    name: str
    dims: Sequence[Any]
    """Sizes of each operand, none for a number; a list of those of its tensors for a list."""
    types: Sequence[Any]
    strides: Sequence[Any]
    concrete: Sequence[Any]
    """Values of the operands that are no tensors, as text."""
    element: int | None = None
    """Bytes of each element of its lists of tensors."""

    def operand(self, at: int) -> list[int]:
        """Return the sizes of a tensor; raises if the operand is none."""
        _type(self.types[at])
        dims = self.dims[at]
        if not all(type(size) is int and 0 <= size < _MOST for size in dims):
            raise ValueError
        return [*dims]

    def is_tensor(self, at: int) -> bool:
        """Return whether an operand is a tensor."""
        return at < len(self.types) and _name(self.types[at]) in _TYPES

    def width(self, at: int) -> int:
        """Return the bytes of one element of a tensor."""
        return _type(self.types[at])[1]

    def bytes(self, at: int) -> int:
        """Return the bytes of a tensor; a dimension with stride 0 repeats what is there once. 0 if it is none."""
        if not self.is_tensor(at):
            return 0
        dims, strides = self.operand(at), self.strides[at] if at < len(self.strides) else ()
        steps = strides if len(strides) == len(dims) else [1] * len(dims)
        return prod(size for size, step in zip(dims, steps, strict=True) if step != 0) * self.width(at)

    def elements(self) -> list[int]:
        """Return the elements of each list of tensors with the shapes of the first operand; raises if that is none."""
        first = self.dims[0]
        if self.types[0] != _LIST or not first or not all(isinstance(size, int) for dims in first for size in dims):
            raise TypeError
        lists = [dims for dims, kind in zip(self.dims, self.types, strict=False) if kind == _LIST]
        return [sum(map(prod, dims)) for dims in lists if dims == first]

    def numbers(self, at: int | None, count: int, default: int = 1) -> list[int]:
        """Return a list of `count` numbers, of which one is written for equal ones."""
        if at is None:
            return [default] * count
        numbers = [int(number) for number in re.findall(r"-?\d{1,18}", str(self.concrete[at]))]
        if len(numbers) not in (1, count):
            raise ValueError
        return numbers if len(numbers) == count else numbers * count

    def flags(self, at: int) -> list[bool]:
        """Return the values of an operand that is one Boolean or several."""
        return [text == "True" for text in re.findall("True|False", str(self.concrete[at]))]


_LIST = "TensorList"
_ELEMENT = re.compile(r"OpaqueType<(\d+)u?>|Functor<([\w:]+)[,>]")  # of a template of PyTorch's kernels over lists
_Formula = Callable[[Call], tuple[int, int | None]]


def _name(kind: object) -> str:
    return str(kind).removeprefix("c10::").lower()


def _type(kind: object) -> tuple[str, int]:
    return _TYPES[_name(kind)]


def described(call: Call) -> tuple[str | None, str | None]:
    """Return the tensors of a call as text, and the data type of the first, None where they were not recorded.

    >>> described(Call("aten::mm", [[2, 3], [3, 4]], ["float", "c10::BFloat16"], [], []))
    ('f32[2,3] bf16[3,4]', 'f32')
    """
    tensors = [
        (_type(kind)[0], dims) for kind, dims in zip(call.types, call.dims, strict=False) if _name(kind) in _TYPES
    ]
    texts = [f"{dtype}[{','.join(map(str, dims))}]" for dtype, dims in tensors[:_SHOWN]]
    formula = _FORMULAS.get(call.name, ("", None))[1]
    with suppress(IndexError, TypeError, ValueError):  # of what a profile holds
        if isinstance(formula, _Convolution) and formula.is_transposed(call):
            texts.append("transposed")
        elif isinstance(formula, _Attention) and call.flags(formula.causal)[0]:
            texts.append("causal")
        elif not texts:
            texts.append(f"{plural(len(call.dims[0]), 'tensor')} with {call.elements()[0]} elements")
    return " ".join(texts) or None, tensors[0][0] if tensors else None


_SHOWN = 6  # operands in the text of a call


def element(kernel: str) -> int | None:
    """Return the bytes of an element of the tensors of a list by the name of the kernel, None if it has no type.

    >>> element("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 3>"), element("TernaryFunctor<float, 4>")
    (2, 4)
    """
    found = _ELEMENT.search(kernel)
    if found is None:
        return None
    return int(found[1]) if found[1] else _TYPES.get(_name(found[2]), ("", None))[1]


def cost(call: Call) -> Cost | None:
    """Return what a call computes and moves, None if that is unknown.

    >>> cost(Call("aten::mm", [[2, 3], [3, 4]], ["float", "float"], [], []))
    Cost(kind='matrix product', flops=48, bytes=104)
    >>> cost(Call("aten::mm", [[], []], ["", ""], [], [])), cost(Call("my::op", [[2, 3]], ["float"], [], []))
    (None, None)
    """
    name = call.name.removesuffix("_") if call.name.startswith("aten::") else call.name
    kind, formula = _FORMULAS.get(name, (EXPERTS, _experts) if _EXPERTS.search(name) else ("", None))
    if formula is None:
        return None
    try:
        flops, size = formula(call)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):  # of what a profile holds
        return None
    return Cost(kind, flops, size) if 0 <= flops < _MOST and 0 <= (size or 0) < _MOST else None


def _broadcast(*shapes: Sequence[int]) -> list[int]:
    most = max(map(len, shapes), default=0)
    columns = zip(*([1] * (most - len(shape)) + [*shape] for shape in shapes), strict=True)
    return [0 if 0 in sizes else max(sizes) for sizes in columns]


def matrices(call: Call) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and inner size of a matrix product.

    >>> matrices(Call("aten::addmm", [[4], [2, 3], [3, 4]], ["float"] * 3, [], []))
    (1, 2, 4, 3)
    """
    left, right, _ = _PRODUCTS[call.name]
    a, b = call.operand(left), call.operand(right)
    b = b[::-1] if call.name == "aten::linear" else b
    a, b = a if len(a) > 1 else [1, *a], b if len(b) > 1 else [*b, 1]
    if a[-1] != b[-2]:
        raise ValueError
    return prod(_broadcast(a[:-2], b[:-2])), a[-2], b[-1], a[-1]


def _product(call: Call) -> tuple[int, int]:
    left, right, bias = _PRODUCTS[call.name]
    batch, rows, columns, inner = matrices(call)
    width = call.width(left)
    if call.name == "aten::_scaled_mm":
        width = _SCALAR_TYPES.get(str(call.concrete[_OUT_TYPE]), width)
    elif call.name == "aten::_int_mm":
        width = 4
    read = call.bytes(left) + call.bytes(right) + (0 if bias is None else call.bytes(bias))
    return 2 * batch * rows * columns * inner, read + batch * rows * columns * width


_OUT_TYPE = 6  # operand of _scaled_mm
_PRODUCTS: Mapping[str, tuple[int, int, int | None]] = {  # factors and what is added
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::matmul", "aten::mv", "aten::dot", "aten::_int_mm"), (0, 1, None)),
    **dict.fromkeys(("aten::addmm", "aten::addmv", "aten::baddbmm", "aten::_addmm_activation"), (1, 2, 0)),
    **{"aten::linear": (0, 1, 2), "aten::_scaled_mm": (0, 1, 4)},
}


@dataclass(frozen=True)
class _Convolution:
    """Places of the operands of a convolution."""

    stride: int | None
    padding: int
    dilation: int | None
    bias: int | None = 2
    groups: int | None = None
    transposed: int | bool = False  # a place, or whether it is
    added: int | None = None  # padding of the output

    def is_transposed(self, call: Call) -> bool:
        """Return whether a call is the transpose of a convolution."""
        return self.transposed if isinstance(self.transposed, bool) else call.flags(self.transposed)[0]

    def __call__(self, call: Call) -> tuple[int, int]:
        x, weight = call.operand(0), call.operand(1)
        if len(x) != len(weight):
            raise ValueError
        space, kernel = x[2:], weight[2:]
        rank = len(space)
        stride, dilation = (call.numbers(at, rank) for at in (self.stride, self.dilation))
        padding, added = call.numbers(self.padding, rank, 0), call.numbers(self.added, rank, 0)
        groups = call.numbers(self.groups, 1)[0]
        transposed = self.is_transposed(call)
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        sizes = zip(space, stride, padding, spans, added, strict=True)
        if transposed:
            out = [(size - 1) * step - 2 * pad + span + more for size, step, pad, span, more in sizes]
        else:
            out = [(size + 2 * pad - span) // step + 1 for size, step, pad, span, _ in sizes]
        channels = weight[1] * groups if transposed else weight[0]
        written = x[0] * channels * prod(out) * call.width(0)
        read = call.bytes(0) + call.bytes(1) + (0 if self.bias is None else call.bytes(self.bias))
        return 2 * x[0] * prod(space if transposed else out) * prod(weight), read + written


def _convolution_backward(call: Call) -> tuple[int, int]:
    grad, x, weight = (call.operand(at) for at in range(3))
    of_input, of_weight = call.flags(10)[:2]
    products = 2 * x[0] * prod((x if call.flags(7)[0] else grad)[2:]) * prod(weight)
    outer, inner, filters = (call.bytes(at) for at in range(3))  # each gradient reads two of these and is the third
    return products * (of_input + of_weight), (outer + inner + filters) * (of_input + of_weight)


@dataclass(frozen=True)
class _Attention:
    """Places of the operands of an attention."""

    causal: int
    first: int = 0  # place of the query
    mask: int | None = None
    is_backward: bool = False
    heads: int = 1  # dimension of the heads

    def __call__(self, call: Call) -> tuple[int, int]:
        query, key, value = (call.operand(self.first + at) for at in range(3))
        batch, (queries, keys) = query[0], (shape[3 - self.heads] for shape in (query, key))
        pairs = queries * keys
        if call.flags(self.causal)[0]:
            least = min(queries, keys)
            pairs = least * (least + 1) // 2 + (queries - least) * keys
        width = query[-1] + value[-1] if not self.is_backward else 3 * query[-1] + 2 * value[-1]
        read = sum(call.bytes(self.first + at) for at in range(3)) + (0 if self.mask is None else call.bytes(self.mask))
        out = prod(query[:-1]) * value[-1] * call.width(self.first)
        if self.is_backward:  # reads the result and its gradient, writes three gradients
            return 2 * batch * query[self.heads] * pairs * width, 2 * read + 2 * out
        return 2 * batch * query[self.heads] * pairs * width, read + out


_EXPERTS = re.compile(r"fused_moe|fused_experts")


def _experts(call: Call) -> tuple[int, None]:
    """Of tokens, two weights of each expert, and the weights of the routes of each token; data choose the experts."""
    (tokens, width), (_, gated, _), (_, _, hidden), (_, routes) = (call.operand(at) for at in range(4))
    return 2 * tokens * routes * width * (gated + hidden), None


def _mapped(flops: int, result: int | None = None) -> _Formula:
    """Return the formula of a function of each element: `flops` of each, and bytes of an element of the result."""

    def formula(call: Call) -> tuple[int, int]:
        tensors = [at for at in range(len(call.dims)) if call.is_tensor(at)]
        shapes = [call.operand(at) for at in tensors]
        read = sum(map(call.bytes, tensors))
        if call.name.endswith("_"):
            return flops * prod(shapes[0]), read + call.bytes(tensors[0])
        count = prod(shapes[0]) if flops > 1 else prod(_broadcast(*shapes))
        floats = [at for at in tensors if _type(call.types[at])[0][0] in "bfc" and call.dims[at]] or tensors
        width = result or max(map(call.width, floats))
        return flops * count, read + count * width

    return formula


def _copied(call: Call) -> tuple[int, int]:
    return 0, call.bytes(0) + call.bytes(1)


def _filled(call: Call) -> tuple[int, int]:
    return 0, prod(call.operand(0)) * call.width(0)


def _reduced(call: Call) -> tuple[int, int]:
    shape = call.operand(0)
    text = str(call.concrete[1]) if len(call.types) > 1 and call.types[1] in ("ScalarList", "Scalar") else ""
    dims = [int(number) for number in re.findall(r"-?\d{1,4}", text)]
    away = {dim % len(shape) for dim in dims} if dims else {*range(len(shape))}
    left = prod(size for at, size in enumerate(shape) if at not in away)
    return prod(shape), call.bytes(0) + left * call.width(0)


def _embedded(call: Call) -> tuple[int, int]:
    return 0, 2 * prod(call.operand(1)) * call.operand(0)[-1] * call.width(0) + call.bytes(1)


def _embedded_backward(call: Call) -> tuple[int, int]:
    grad = call.operand(0)
    return prod(grad), call.bytes(0) + call.bytes(1) + call.numbers(2, 1)[0] * grad[-1] * call.width(0)


def _selected(call: Call) -> tuple[int, int]:
    shape, count = call.operand(0), prod(call.operand(2))
    if call.name == "aten::index_select":
        count *= prod(shape) // shape[call.numbers(1, 1, 0)[0]]
    return 0, 2 * count * call.width(0) + call.bytes(2)


def _of_lists(flops: int, written: int | None = 1) -> _Formula:
    """Return the formula of a function of lists of tensors: `flops` of each element, and lists that are written."""
    # the update of parameters writes all of its lists but the gradients

    def formula(call: Call) -> tuple[int, int | None]:
        lists = call.elements()
        moved = len(lists) + (len(lists) - 1 if written is None else written)
        return flops * lists[0], None if call.element is None else moved * lists[0] * call.element

    return formula


def _aten(formula: _Formula, names: str) -> dict[str, _Formula]:
    return {f"aten::{name}": formula for name in names.split()}


_NORM, _NORM_BACKWARD, _SOFTMAX = _mapped(7), _mapped(14), _mapped(5)  # additions and products of each element

_BY_KIND: Mapping[str, Mapping[str, _Formula]] = {
    PRODUCT: dict.fromkeys(_PRODUCTS, _product),
    CONVOLUTION: {
        **_aten(_Convolution(3, 4, 5, groups=8, transposed=6, added=7), "convolution _convolution"),
        **_aten(_Convolution(3, 4, 5, groups=8, transposed=6, added=7), "convolution_overrideable"),
        **_aten(_Convolution(3, 4, 5, groups=6), "conv1d conv2d conv3d"),
        **_aten(_Convolution(3, 4, 7, groups=6, transposed=True, added=5), "conv_transpose1d conv_transpose2d"),
        **_aten(_Convolution(3, 4, 7, groups=6, transposed=True, added=5), "conv_transpose3d"),
        **_aten(_Convolution(3, 2, 4, bias=None, groups=5), "cudnn_convolution"),
        **_aten(_Convolution(4, 2, 5, bias=None, groups=6, transposed=True, added=3), "cudnn_convolution_transpose"),
        **_aten(_Convolution(4, 3, 5, groups=6), "mkldnn_convolution miopen_convolution miopen_depthwise_convolution"),
        **_aten(_Convolution(5, 3, 6, groups=7, transposed=True, added=4), "miopen_convolution_transpose"),
        **_aten(_Convolution(4, 5, 6, bias=3), "_conv_depthwise2d"),
        **_aten(_Convolution(4, 5, None, bias=3), "_slow_conv2d_forward thnn_conv2d"),
        **_aten(_convolution_backward, "convolution_backward convolution_backward_overrideable"),
    },
    ATTENTION: {
        **_aten(_Attention(5, mask=3), "scaled_dot_product_attention"),
        **_aten(_Attention(4), "_scaled_dot_product_flash_attention"),
        **_aten(_Attention(4, mask=5), "_scaled_dot_product_flash_attention_for_cpu"),
        **_aten(_Attention(6, mask=3), "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"),
        **_aten(_Attention(11, 1, is_backward=True), "_scaled_dot_product_flash_attention_backward"),
        **_aten(_Attention(7, 1, 8, is_backward=True), "_scaled_dot_product_flash_attention_for_cpu_backward"),
        **_aten(_Attention(11, 1, 4, is_backward=True), "_scaled_dot_product_efficient_attention_backward"),
        **_aten(_Attention(14, 1, 8, is_backward=True), "_scaled_dot_product_cudnn_attention_backward"),
        "flash_attn::_flash_attn_forward": _Attention(5, heads=2),
    },
    NORMALISATION: {
        **_aten(_NORM, "native_layer_norm native_batch_norm cudnn_batch_norm miopen_batch_norm native_group_norm"),
        **_aten(_NORM_BACKWARD, "native_layer_norm_backward native_batch_norm_backward cudnn_batch_norm_backward"),
        **_aten(_NORM_BACKWARD, "miopen_batch_norm_backward native_group_norm_backward"),
        **_aten(_NORM, "_fused_rms_norm"),
    },
    "softmax": _aten(_SOFTMAX, "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data"),
    ELEMENTWISE: {
        **_aten(_mapped(1), "add sub mul div rsub neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid erf pow"),
        **_aten(_mapped(1), "relu gelu silu mish hardtanh hardswish leaky_relu elu softplus clamp clamp_min clamp_max"),
        **_aten(_mapped(1), "maximum minimum where masked_fill addcmul addcdiv lerp floor ceil round tril triu"),
        **_aten(_mapped(1), "threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward"),
        **_aten(_mapped(1), "hardtanh_backward leaky_relu_backward elu_backward hardswish_backward mse_loss_backward"),
        **_aten(_mapped(1, 1), "eq ne lt le gt ge logical_and logical_or logical_not isnan isinf bitwise_not"),
        **_aten(_copied, "copy"),
        **_aten(_filled, "fill zero"),
        **_aten(_of_lists(0), "cat stack"),
        **_aten(_of_lists(1), "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_neg _foreach_abs"),
        **_aten(_of_lists(1), "_foreach_sqrt _foreach_reciprocal _foreach_lerp _foreach_addcmul _foreach_addcdiv"),
    },
    OPTIMIZER: {  # additions and products of each parameter
        **_aten(_of_lists(13, None), "_fused_adam"),
        **_aten(_of_lists(14, None), "_fused_adamw"),
        **_aten(_of_lists(4, None), "_fused_sgd"),
    },
    REDUCTION: {
        **_aten(_reduced, "sum mean prod amax amin any all logsumexp"),
        **_aten(_of_lists(2, 0), "_foreach_norm"),
    },
    GATHER: {
        **_aten(_embedded, "embedding"),
        **_aten(_embedded_backward, "embedding_dense_backward"),
        **_aten(_selected, "index_select gather"),
    },
}
_FORMULAS = {name: (kind, formula) for kind, formulas in _BY_KIND.items() for name, formula in formulas.items()}
KINDS = frozenset((*_BY_KIND, EXPERTS))
HEAVY = frozenset((PRODUCT, CONVOLUTION, ATTENTION))
"""Kinds into which larger operators are decomposed, whose work they are then."""
