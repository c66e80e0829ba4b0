"""Libraries that compute the operations of devices, by the names of their kernels and calls."""

from __future__ import annotations

import re

_LIBRARIES = {
    "NCCL": r"nccl|rccl",
    "cuDNN": r"cudnn|xmma_(fprop|dgrad|wgrad)|(fprop|dgrad|wgrad)_|_(fprop|dgrad|wgrad)|implicit_convolve|winograd",
    "MIOpen": r"miopen|^igemm_|gridwise_|^im\w*2col",
    "hipBLAS": r"^cijk_|rocblas|hipblas",
    "cuBLAS": r"cublas|^(volta|turing|ampere|hopper|maxwell|sm\d+)_.*gemm|gemmsn_|gemv2|nvjet|splitkreduce|xmma_gemm",
    "CUTLASS": r"cutlass",
    "FlashAttention": r"flash|fmha",
    "cuFFT": r"cufft|^(regular|vector)_fft",
    "CUB": r"\bcub::|\bthrust::",
    "oneDNN": r"onednn|^_mkl|dnnl",
    "XNNPACK": r"xnn_|xnnpack",
    "YNNPACK": r"ynn_|ynnpack",
    "PyTorch": r"\bat::native|\bat_cuda_detail",
    "TensorFlow": r"^(void )?tensorflow::",
    "Eigen": r"^(void )?eigen::",
    "Triton": r"triton",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _LIBRARIES.items()}
_LONGEST = 500  # characters of a name that are matched


def library(kernel: str | None, hlo_op: str | None, op: str | None = None, category: str | None = None) -> str | None:
    """Return the library of an operation; None if its names name none.

    Parameters
    ----------
    kernel, hlo_op, op, category
        Names of the GPU kernel, the HLO instruction and the operation, and its category.

    >>> library("volta_sgemm_128x64_nn", "cublas-gemm.1"), library(None, "loop_fusion.3"), library("my_kernel", None)
    ('cuBLAS', 'XLA', None)
    """
    for name in (kernel, hlo_op, op):
        for found, pattern in _PATTERNS.items():
            if name and pattern.search(name[:_LONGEST]):
                return found
    return "XLA" if hlo_op and category != "custom-call" else None
