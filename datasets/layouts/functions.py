"""The functions whose entry layouts are recorded: common layers, each in three sizes, by family."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

Shapes = list[tuple[int, ...]]


def attention(q, k, v):
    """Attend with heads as the third dimension."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _convolve(x, w, stride, dimensions):
    return jax.nn.relu(lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=dimensions))


def convolution(x, w1, w2):
    """Convolve images twice, channels last."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    return _convolve(_convolve(x, w1, 1, dimensions), w2, 2, dimensions).mean((1, 2))


def statistics(a, b, c):
    """Reduce elementwise results along each dimension."""
    return (jnp.tanh(a) * b).sum(0) + (a + c).max(1)[:, None].mean() + (b * c).sum(2).mean()


def mlp(x, w1, w2):
    """Apply two dense layers."""
    return jax.nn.relu(x @ w1) @ w2


def layer_norm(x, gain, w1, w2):
    """Normalise, and project twice."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return ((x - mean) * lax.rsqrt(variance + 1e-5) * gain) @ w1 @ w2


def products(a, b, c):
    """Multiply a batch of matrices, and reduce."""
    return jnp.einsum("bij,bjk->bik", a, b).sum(2) + c.mean(2)


def _loss(w, x, y):
    return -(jax.nn.log_softmax(jnp.einsum("btd,dv->btv", x, w)) * y).sum(-1).mean()


def gradient(w, x, y):
    """Return the gradient of a cross-entropy by the weights of its layer."""
    return jax.grad(_loss)(w, x, y)


def adam(p, g, m, v):
    """Return weights and moments after a step of Adam."""
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(jnp.abs(v)) + 1e-8), m, v


def pooling(x, scale):
    """Scale images, take maxima of windows, and average the batch."""
    return lax.reduce_window(x * scale, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").mean(0)


def recurrence(h, u, xs):
    """Run a simple recurrent layer."""

    def step(h, x):
        h = jnp.tanh(h @ u + x)
        return h, h.sum(-1)

    return lax.scan(step, h, xs)


def channels_first(x, w1, w2):
    """Convolve images twice, channels first."""
    dimensions = ("NCHW", "OIHW", "NCHW")
    return _convolve(_convolve(x, w1, 1, dimensions), w2, 2, dimensions).mean((2, 3))


def batch_norm(x, scale, bias):
    """Normalise channels, which are the second dimension."""
    mean = x.mean((0, 2, 3), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale[None, :, None, None] + bias


def swapped_axes(a, b, c):
    """Multiply and add arrays whose axes are in other orders."""
    return jnp.tanh(a) * jnp.swapaxes(b, 0, 2) + jnp.swapaxes(c, 0, 1)


Function = Callable[..., object]
FUNCTIONS: dict[Function, list[Shapes]] = {
    attention: [[(4, 128, 8, 32)] * 3, [(1, 256, 8, 64)] * 3, [(8, 64, 8, 64)] * 3],
    convolution: [
        [(8, 32, 32, 16), (3, 3, 16, 32), (3, 3, 32, 32)],
        [(4, 64, 64, 8), (3, 3, 8, 16), (3, 3, 16, 16)],
        [(16, 28, 28, 16), (3, 3, 16, 16), (1, 1, 16, 64)],
    ],
    statistics: [[(64, 64, 96)] * 3, [(128, 128, 32)] * 3, [(32, 256, 64)] * 3],
    mlp: [
        [(8, 32, 512), (512, 512), (512, 256)],
        [(4, 16, 1024), (1024, 512), (512, 512)],
        [(16, 32, 256), (256, 384), (384, 256)],
    ],
    layer_norm: [
        [(16, 64, 256), (256,), (256, 256), (256, 64)],
        [(4, 256, 384), (384,), (384, 128), (128, 128)],
        [(8, 128, 512), (512,), (512, 64), (64, 256)],
    ],
    products: [
        [(16, 128, 128), (16, 128, 64), (16, 128, 64)],
        [(64, 64, 64), (64, 64, 96), (64, 64, 32)],
        [(8, 128, 256), (8, 256, 96), (8, 128, 512)],
    ],
    gradient: [
        [(256, 512), (8, 32, 256), (8, 32, 512)],
        [(128, 512), (16, 32, 128), (16, 32, 512)],
        [(96, 256), (4, 256, 96), (4, 256, 256)],
    ],
    adam: [[(64, 64, 64)] * 4, [(3, 3, 128, 192)] * 4, [(8, 256, 128)] * 4],
    pooling: [[(8, 32, 32, 32)] * 2, [(4, 64, 64, 16)] * 2, [(16, 24, 24, 24)] * 2],
    recurrence: [
        [(32, 256), (256, 256), (16, 32, 256)],
        [(64, 128), (128, 128), (24, 64, 128)],
        [(16, 384), (384, 384), (12, 16, 384)],
    ],
    channels_first: [
        [(4, 16, 32, 32), (32, 16, 3, 3), (32, 32, 3, 3)],
        [(8, 16, 28, 28), (16, 16, 3, 3), (64, 16, 1, 1)],
        [(2, 32, 32, 32), (32, 32, 3, 3), (32, 32, 3, 3)],
    ],
    batch_norm: [
        [(8, 32, 32, 32), (32,), (32, 32, 32)],
        [(4, 64, 24, 24), (64,), (64, 24, 24)],
        [(16, 16, 28, 28), (16,), (16, 28, 28)],
    ],
    swapped_axes: [
        [(64, 64, 64), (64, 64, 64), (64, 64, 64)],
        [(128, 32, 48), (48, 32, 128), (32, 128, 48)],
        [(16, 128, 96), (96, 128, 16), (128, 16, 96)],
    ],
}
