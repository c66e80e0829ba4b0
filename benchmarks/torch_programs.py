"""Programs of PyTorch whose products, convolutions and attentions its FlopCounterMode counts; faults of traces."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tpunb.costs.torch_cost import HEAVY, Call, cost

aten, nn = torch.ops.aten, torch.nn
FAULTS = {
    "conv_02_small_spatial_many_ch": "small image",
    "conv_04_depthwise": "depthwise",
    "conv_07_transposed": "transposed",
    "elem_01_add_poor_bw": "memory bandwidth",
    "gemm_01_compute_few_tiles": "few tiles",
    "gemm_03_compute_misaligned": "misaligned",
    "moe_01_many_experts_few_tokens": "few tokens",
    "moe_03_top1_sparse": "few tokens",
    "moe_05_large_capacity": "large",
    "sdpa_01_long_seq_low_eff": "sequences are long",
    "sdpa_03_short_seq_overhead": "sequences are short",
}
"""Words of the sentence that names each fault."""
KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def _r(*shape, device="cpu", dtype=torch.float32, grad=False):
    return torch.zeros(*shape, device=device, dtype=dtype, requires_grad=grad)


def _of(module, *shape, backward=False):
    """Return the program of a module on zeros, with its backward pass if asked."""

    def program():
        out = module(_r(*shape, grad=backward))
        if backward:
            out.sum().backward()

    return program


def _math(function):
    def program():
        with sdpa_kernel(SDPBackend.MATH):
            return function()

    return program


def _attend(q, k, v, backward=False, **options):
    def program():
        tensors = [_r(*shape, grad=backward) for shape in (q, k, v)]
        out = functional.scaled_dot_product_attention(*tensors, **options)
        if backward:
            out.sum().backward()

    return _math(program)


def _scaled():
    a, b = _r(32, 64, device="meta").to(torch.float8_e4m3fn), _r(48, 64, device="meta").to(torch.float8_e4m3fn)
    one = _r(1, device="meta")
    return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)


def _meta(*shape):
    return _r(*shape, device="meta", dtype=torch.bfloat16)


def _flash_backward():
    q, k, v = _meta(2, 4, 64, 32), _meta(2, 4, 48, 32), _meta(2, 4, 48, 32)
    lse, seed = _r(2, 4, 64, device="meta"), torch.zeros(2, device="meta", dtype=torch.int64)
    none = None
    aten._scaled_dot_product_flash_attention_backward(q, q, k, v, q, lse, none, none, 64, 48, 0.0, False, seed, seed)


def _efficient_backward():
    q, k, v = _meta(2, 4, 64, 32), _meta(2, 4, 48, 32), _meta(2, 4, 48, 32)
    lse, seed = _r(2, 4, 64, device="meta"), torch.zeros((), device="meta", dtype=torch.int64)
    aten._scaled_dot_product_efficient_attention_backward(
        q, q, k, v, None, q, lse, seed, seed, 0.0, [True, True, True, False]
    )


def _again():
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    checkpoint(layers, _r(8, 16, grad=True), use_reentrant=False, early_stop=False).sum().backward()


def _cast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nn.Linear(16, 32)(_r(8, 16)).sum().backward()


class _Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )

    def forward(self, x):
        return functional.relu(x + self.body(x))


def programs():
    """Return the programs by name."""
    q4, k4 = (2, 4, 64, 32), (2, 4, 48, 32)
    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return {
        "mm": lambda: _r(7, 5) @ _r(5, 3),
        "mm, double": lambda: _r(7, 5, dtype=torch.float64) @ _r(5, 3, dtype=torch.float64),
        "addmm": lambda: torch.addmm(_r(3), _r(7, 5), _r(5, 3)),
        "bmm": lambda: torch.bmm(_r(4, 7, 5), _r(4, 5, 3)),
        "baddbmm": lambda: torch.baddbmm(_r(4, 7, 3), _r(4, 7, 5), _r(4, 5, 3)),
        "matmul, 3 and 2": lambda: _r(4, 7, 5) @ _r(5, 3),
        "matmul, 4 and 4": lambda: _r(2, 4, 7, 5) @ _r(2, 4, 5, 3),
        "matmul, broadcast": lambda: _r(2, 1, 7, 5) @ _r(1, 4, 5, 3),
        "einsum": lambda: torch.einsum("bqhd,bkhd->bhqk", _r(2, 7, 4, 8), _r(2, 9, 4, 8)),
        "_scaled_mm": _scaled,
        "linear": _of(nn.Linear(16, 8), 4, 16),
        "linear, no bias": _of(nn.Linear(16, 8, bias=False), 4, 16),
        "linear, 4 dimensions": _of(nn.Linear(16, 8), 2, 3, 4, 16),
        "linear, backward": _of(nn.Linear(16, 8), 4, 16, backward=True),
        "autocast": _cast,
        "checkpoint": _again,
        "conv1d": _of(nn.Conv1d(4, 8, 5, stride=2), 2, 4, 33),
        "conv2d": _of(nn.Conv2d(3, 8, 3, padding=1), 2, 3, 17, 19),
        "conv2d, strides and padding": _of(nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(0, 2)), 2, 3, 17, 19),
        "conv2d, dilated": _of(nn.Conv2d(3, 8, 3, dilation=2), 2, 3, 17, 19),
        "conv2d, groups": _of(nn.Conv2d(8, 16, 3, groups=4), 2, 8, 17, 19),
        "conv2d, depthwise": _of(nn.Conv2d(8, 8, 3, groups=8), 2, 8, 17, 19),
        "conv2d, same": _of(nn.Conv2d(3, 8, 3, padding="same"), 2, 3, 17, 19),
        "conv2d, no batch": _of(nn.Conv2d(3, 8, 3), 3, 17, 19),
        "conv3d": _of(nn.Conv3d(3, 4, 3), 1, 3, 7, 9, 11),
        "conv2d, backward": _of(nn.Conv2d(3, 8, 3, stride=2), 2, 3, 17, 19, backward=True),
        "conv1d, backward": _of(nn.Conv1d(4, 8, 5), 2, 4, 33, backward=True),
        "conv3d, backward": _of(nn.Conv3d(3, 4, 3), 1, 3, 7, 9, 11, backward=True),
        "conv2d, backward of weights": lambda: nn.Conv2d(3, 8, 3)(_r(2, 3, 17, 19)).sum().backward(),
        "conv_transpose1d": _of(nn.ConvTranspose1d(8, 4, 4, stride=2), 2, 8, 9),
        "conv_transpose2d": _of(nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, output_padding=1), 2, 8, 9, 7),
        "conv_transpose2d, groups": _of(nn.ConvTranspose2d(8, 4, 4, groups=2), 2, 8, 9, 7),
        "conv_transpose3d": _of(nn.ConvTranspose3d(4, 3, 2, stride=2), 1, 4, 5, 6, 7),
        "conv_transpose2d, backward": _of(nn.ConvTranspose2d(8, 4, 4, stride=2), 2, 8, 9, 7, backward=True),
        "residual block, backward": _of(_Residual(), 2, 16, 9, 9, backward=True),
        "attention": _attend(q4, k4, k4),
        "attention, backward": _attend(q4, k4, k4, backward=True),
        "attention, mask": _attend(q4, k4, k4, attn_mask=_r(64, 48)),
        "attention, one query": _attend((2, 4, 1, 32), k4, k4),
        "flash attention": lambda: aten._scaled_dot_product_flash_attention(_meta(*q4), _meta(*k4), _meta(*k4)),
        "flash attention, backward": _flash_backward,
        "efficient attention": lambda: aten._scaled_dot_product_efficient_attention(
            _meta(*q4), _meta(*k4), _meta(*k4), None, False
        ),
        "efficient attention, backward": _efficient_backward,
        "multi-head attention": _math(
            lambda: nn.MultiheadAttention(32, 4)(*[_r(9, 2, 32, grad=True)] * 3)[0].sum().backward()
        ),
        "encoder": _math(_of(encoder, 2, 9, 32, backward=True)),
        "embedding and head": lambda: nn.Linear(16, 99)(nn.Embedding(99, 16)(torch.zeros(2, 9, dtype=torch.long))),
        "cells": lambda: (nn.GRUCell(8, 16)(_r(4, 8)), nn.LSTMCell(8, 16)(_r(4, 8))),
    }


def counted(program):
    """Return the FLOPs that FlopCounterMode counts."""
    with warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
        warnings.simplefilter("ignore")
        program()
    return counter.get_total_flops()


def recorded(program):
    """Return the spans of operators of a program, as its profiler writes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
            program()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        session.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("cat") == "cpu_op"]


def by_shapes(spans):
    """Return the FLOPs of the outermost operators whose work is known, and those of the innermost."""
    threads = {}
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        threads.setdefault(span["tid"], []).append(span)
    outermost = innermost = 0
    for rows in threads.values():
        stack = []
        for span in rows:
            while stack and stack[-1][0] <= span["ts"]:
                _, own, inner = stack.pop()
                innermost += own if not inner else 0
            call = Call(span["name"], *(span["args"].get(key, []) for key in KEYS))
            found = cost(call)
            if found is None or found.kind not in HEAVY:
                continue
            outermost += 0 if stack else found.flops
            for at, (end, own, _) in enumerate(stack):
                stack[at] = (end, own, True)
            stack.append((span["ts"] + span["dur"], found.flops, False))
        innermost += sum(own for _, own, inner in stack if not inner)
    return outermost, innermost
