"""Compare FLOPs, samples and tokens of steps with formulas that trainers publish, and with programs' own counters.

The formulas: nanoGPT's `estimate_mfu` (https://github.com/karpathy/nanoGPT, 6 N + 12 L H Q T a token), torchtitan's and
MaxText's with causal attention, PaLM's appendix B; a Keras transformer and a convnet by hand; and the ratio of MFU to
tokens/s that public experiments with Qwen3-8B on TPU v6e published (``TPUNB_DATA/answers/mfu``). Programs of XLA are
compiled, not run: their FLOPs are those of a step. Samples and tokens are those of trainings that run here.

    python benchmarks/rates.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import timeit
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import tpunb as tp
from tpunb.analysis.rates import _counted, _Part, rates
from tpunb.costs import hlo_cost
from tpunb.instrument.batches import Batches
from tpunb.protobuf.table import Messages

V6E_PEAK = 918e12


# -- FLOPs -------------------------------------------------------------------------------------------------------------


def message(compiled: Any) -> Messages:
    """Return a compiled program of JAX as a message."""
    data = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    prefix, size = b"\x0a", len(data)
    while size > 127:
        prefix, size = prefix + bytes([size & 127 | 128]), size >> 7
    return Messages.of(prefix + bytes([size]) + data, source="program")


def flops(compiled: Any, attention: str) -> tuple[float, float]:
    """Return FLOPs of the model and of the hardware in one run of a program."""
    rows = hlo_cost.products(message(compiled))
    assert rows["unknown"].null_count() == len(rows), rows
    parts = [_Part(dtype, attends, part, value) for _, dtype, attends, part, value, _ in rows.iter_rows()]
    counted = _counted(parts, attention)
    return sum(of[1] for of in counted), sum(of[2] for of in counted)


def decoder(  # of a Llama-like model: rotary embeddings and norms multiply no matrices
    *,
    layers: int,
    width: int,
    heads: int,
    keys: int,
    inner: int,
    words: int,
    length: int,
    remat: bool,
    gated: bool = True,
) -> tuple[Callable[..., Any], Any, int]:
    """Return a training step, its abstract weights, and the number of weights that multiply."""
    import jax
    import jax.numpy as jnp

    head = width // heads
    shapes = {
        "q": (width, width),
        "k": (width, keys * head),
        "v": (width, keys * head),
        "o": (width, width),
        **({"gate": (width, inner)} if gated else {}),
        "up": (width, inner),
        "down": (inner, width),
    }
    stack = {name: jax.ShapeDtypeStruct((layers, *shape), jnp.bfloat16) for name, shape in shapes.items()}
    weights = {
        "layers": stack,
        "embed": jax.ShapeDtypeStruct((words, width), jnp.bfloat16),
        "head": jax.ShapeDtypeStruct((width, words), jnp.bfloat16),
    }

    def block(x: Any, w: Any) -> tuple[Any, None]:
        batch, time, _ = x.shape
        h = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        q = (h @ w["q"]).reshape(batch, time, heads, head)
        k, v = ((h @ w[name]).reshape(batch, time, keys, head) for name in "kv")
        k, v = (jnp.repeat(each, heads // keys, axis=2) for each in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / head**0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(batch, time, width) @ w["o"]
        h = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        up = jax.nn.silu(h @ w["gate"]) * (h @ w["up"]) if gated else jax.nn.gelu(h @ w["up"])
        return x + up @ w["down"], None

    def loss(w: Any, ids: Any) -> Any:
        x = w["embed"][ids[:, :-1]]
        x, _ = jax.lax.scan(jax.checkpoint(block) if remat else block, x, w["layers"])
        scores = jax.nn.log_softmax((x @ w["head"]).astype(jnp.float32))
        return -jnp.take_along_axis(scores, ids[:, 1:, None], -1).mean()

    def step(w: Any, ids: Any) -> Any:
        gradients = jax.grad(loss)(w, ids)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, w, gradients)

    return step, weights, layers * sum(a * b for a, b in shapes.values()) + width * words


QWEN3_8B = {"layers": 36, "width": 4096, "heads": 32, "keys": 8, "inner": 12288, "words": 151936}
TINY = {"layers": 4, "width": 128, "heads": 4, "keys": 4, "inner": 512, "words": 256}
LLAMA = {"layers": 6, "width": 256, "heads": 8, "keys": 2, "inner": 768, "words": 1024}


def of_decoders(quick: bool) -> Iterator[tuple[str, float, float]]:
    """Yield FLOPs a token of decoders in JAX, and those of a formula."""
    import jax

    sizes = [
        ("GPT, PaLM's formula", TINY, 64, "full", False),
        ("Llama, torchtitan's formula", LLAMA, 128, "causal", True),
    ]
    for name, size, length, attention, gated in sizes:
        for remat in (False, True):
            step, weights, count = decoder(**size, length=length, remat=remat, gated=gated)
            ids = jax.ShapeDtypeStruct((2, length + 1), "int32")
            model, hardware = flops(jax.jit(step).lower(weights, ids).compile(), attention)
            formula = 6 * count + (12 if attention == "full" else 6) * size["layers"] * size["width"] * length
            yield name + ", recomputed" * remat, model / (2 * length), formula
            assert hardware >= model
            if remat:
                assert hardware > 1.05 * model
    published = of_published()
    for length in () if quick and not published else (2048, 8192):
        step, weights, _ = decoder(**QWEN3_8B, length=length, remat=True)
        ids = jax.ShapeDtypeStruct((1, length + 1), "int32")
        model, _ = flops(jax.jit(step).lower(weights, ids).compile(), "causal")
        if length in published:
            yield f"Qwen3-8B, {length} tokens, as published", model / length, published[length]


def of_published() -> dict[int, float]:
    """Return FLOPs a token by MFU and tokens/s of public experiments, the median by length of sequences."""
    if not (folder := os.environ.get("TPUNB_DATA")):
        return {}
    rows = json.loads(Path(folder, "answers", "mfu", "qwen3_8b_v6e_8.json").read_text())
    known = [(row["seq"], row["mfu"] / 100 * V6E_PEAK / row["tps"]) for row in rows if row["mfu"] and row["tps"]]
    return {
        length: median(ratio for of, ratio in known if of == length) for length in {of for of, _ in known} if length
    }


def of_convnet() -> tuple[str, float, float]:
    """Return FLOPs of a convnet in JAX, and by hand: input gradients of all layers but the first."""
    import jax

    def loss(w: Any, x: Any) -> Any:
        for kernel in w["convolutions"]:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        return (x.mean((1, 2)) @ w["dense"]).sum()

    channels, side, batch = [3, 16, 32, 32], 24, 8
    kernels = [jax.ShapeDtypeStruct((3, 3, a, b), "float32") for a, b in pairwise(channels)]
    weights = {"convolutions": kernels, "dense": jax.ShapeDtypeStruct((32, 10), "float32")}
    x = jax.ShapeDtypeStruct((batch, side, side, 3), "float32")
    model, _ = flops(jax.jit(jax.grad(loss)).lower(weights, x).compile(), "full")
    by_hand = 0.0
    for at, kernel in enumerate(kernels):
        side -= 2
        by_hand += (3 if at else 2) * 2 * batch * side * side * int(np.prod(kernel.shape))
    return (
        "convnet by hand",
        model,
        by_hand + 2 * 2 * batch * 32 * 10,
    )  # a sum needs no forward product of its last layer


def of_nanogpt(folder: Path, *, remat: bool) -> tuple[str, float, float]:
    """Return FLOPs of a step of a small GPT that PyTorch trains here, and by nanoGPT's formula."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(1)
    layers, width, heads, length, words, batch = 2, 64, 4, 32, 65, 4

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            q, k, v = (
                each.view(*each.shape[:2], heads, -1).transpose(1, 2)
                for each in self.qkv(self.first(x)).split(width, 2)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.second(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.blocks, self.head = nn.ModuleList(Block() for _ in range(layers)), nn.Linear(width, words, bias=False)
            self.words.weight = self.head.weight

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.places(torch.arange(length))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if remat else block(x)
            return self.head(x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with tp.capture(folder, keep="all", source=tp.sources.Torch()) as run:
        while run.status.windows < 2 or run.status.steps < 30:
            ids = torch.randint(words, (batch, length))
            functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    row = rates(folder).frame.row(0, named=True)
    assert row["model_flops"], rates(folder).reasons
    if remat:
        assert row["flops"] > 1.1 * row["model_flops"]
    count = sum(each.numel() for each in model.parameters()) - model.places.weight.numel()
    formula = (6 * count + 12 * layers * width * length) * batch * length
    return "nanoGPT's estimate_mfu" + ", recomputed" * remat, row["model_flops"], formula


def of_keras() -> tuple[str, float, float]:
    """Return FLOPs of a step of a Keras transformer by its graph, and by hand."""
    import keras

    from tpunb.training.graph_work import step_flops

    width, length, batch, inner = 32, 16, 8, 64
    inputs = keras.Input((length, width))
    x = keras.layers.MultiHeadAttention(2, width // 2)(inputs, inputs)
    x = keras.layers.Dense(inner, activation="gelu")(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.ones((batch, length, width), "f"), np.ones((batch, length, 1), "f"), batch_size=batch, verbose=0)
    tokens = batch * length
    dense = 3 * 2 * tokens * (width * width + width * inner + inner)
    of_input = 3 * 2 * 2 * tokens * width * width  # projections of the input, whose gradient nobody needs
    attention = 3 * 2 * 2 * tokens * length * width
    return "Keras transformer by hand", float(step_flops(model) or 0), dense + of_input + attention


# -- samples and tokens ------------------------------------------------------------------------------------------------


def of_counters(folder: Path) -> Iterator[tuple[str, tuple[int | None, int | None], tuple[int | None, int | None]]]:
    """Yield samples and tokens of trainings, and those that the programs count."""
    import keras
    import tensorflow as tf
    import torch

    torch.set_num_threads(1)
    lengths = np.arange(1, 54) % 11 + 3

    class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, *, mask: bool, pad: bool = True) -> None:
            self.mask, self.pad = mask, pad

        def __len__(self) -> int:
            return len(lengths)

        def __getitem__(self, at: int) -> Any:
            ids = np.zeros(16, np.int64)
            ids[: lengths[at]] = at + 1
            return {
                "input_ids": ids,
                "labels": ids,
                **({"attention_mask": (ids > 0).astype(np.int64)} if self.mask else {}),
            }

    def loop(data: Any, *, every: int = 1, evaluate: bool = False, marked: bool = False) -> tuple[int, int]:
        model = torch.nn.Embedding(64, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        samples = tokens = 0
        with tp.capture(folder / str(len([*folder.iterdir()])), keep="none") as run:
            for _ in range(2):
                for at, batch in enumerate(run.batches(data) if marked else data, 1):
                    samples += len(batch["input_ids"])
                    tokens += (
                        int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()
                    )
                    model(batch["input_ids"]).sum().backward()
                    if marked or at % every == 0 or at == len(data):
                        optimizer.step()
                        optimizer.zero_grad()
                if evaluate:
                    model.eval()
                    with torch.no_grad():
                        for batch in torch.utils.data.DataLoader(Texts(mask=True), batch_size=9):
                            model(batch["input_ids"])
                    model.train()
        return samples, tokens

    def counted() -> tuple[int | None, int | None]:
        latest = max(folder.iterdir(), key=lambda path: int(path.name))
        frame = tp.steps(latest).frame
        train = frame.filter(frame["kind"].cast(str) == "train")
        return tuple(None if train[name].null_count() else int(train[name].sum()) for name in ("samples", "tokens"))  # type: ignore[return-value]

    loader = torch.utils.data.DataLoader
    for name, data, more in (
        ("one batch a step", loader(Texts(mask=False), batch_size=8), {}),
        ("padding", loader(Texts(mask=True), batch_size=8), {}),
        ("accumulation of 3", loader(Texts(mask=True), batch_size=4), {"every": 3}),
        ("validation between epochs", loader(Texts(mask=True), batch_size=8, shuffle=True), {"evaluate": True}),
        ("marked steps", loader(Texts(mask=True), batch_size=8), {"marked": True}),
        ("workers", loader(Texts(mask=True), batch_size=8, num_workers=1), {}),
    ):
        own = loop(data, **more)
        yield name, counted(), own
    x, y = np.ones((53, 12), np.int64), np.zeros(53, "f")
    fits = {
        "arrays": (x, y),
        "tf.data, last short batch": (tf.data.Dataset.from_tensor_slices((x, y)).batch(8),),
        "tf.data, whole batches": (tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True),),
    }
    for name, data in fits.items():
        model = keras.Sequential([keras.layers.Embedding(4, 2), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with tp.capture(folder / str(len([*folder.iterdir()])), keep="none"):
            model.fit(*data, epochs=2, verbose=0, **({"batch_size": 8} if len(data) == 2 else {}))
        samples = 2 * (48 if "whole" in name else 53)
        yield f"Keras, {name}", counted(), (samples, 12 * samples)
    tape = tf.Variable(tf.ones((12, 1)))
    optimizer = keras.optimizers.SGD(0.01)
    own = 0
    with tp.capture(folder / str(len([*folder.iterdir()])), keep="none"):
        for images, _ in tf.data.Dataset.from_tensor_slices((x.astype("f"), y)).batch(8):
            own += len(images)
            with tf.GradientTape() as record:
                loss = tf.reduce_mean(images @ tape)
            optimizer.apply([record.gradient(loss, tape)], [tape])
    yield "a loop of TensorFlow", (counted()[0], None), (own, None)


def recording_us() -> dict[str, float]:
    """Return what it takes to record a batch of each library, in microseconds."""
    import torch

    ids = torch.ones(8, 128, dtype=torch.long)
    batches = Batches()
    kinds = {
        "torch": {"input_ids": ids, "labels": ids},
        "torch with a mask": {"input_ids": ids, "attention_mask": ids},
        "numpy": (np.ones((8, 3)), np.ones(8)),
    }
    number = 20_000
    return {
        name: min(timeit.repeat(lambda batch=batch, name=name: batches.of(name, batch), number=number, repeat=5))
        / number
        * 1e6
        for name, batch in kinds.items()
    }


def main() -> None:
    """Print each comparison, and one JSON object."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="leave out models of published size")
    quick = options.parse_args().quick
    worst, wrong, programs, models = 0.0, 0, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, found, formula in (
            *of_decoders(quick),
            of_convnet(),
            of_nanogpt(Path(temporary, "a"), remat=False),
            of_nanogpt(Path(temporary, "b"), remat=True),
            of_keras(),
        ):
            print(f"{name:45} {found:.6g} {formula:.6g} {found / formula - 1:+.2%}", flush=True)
            worst, models = max(worst, abs(found / formula - 1)), models + 1
        (runs := Path(temporary, "runs")).mkdir()
        for name, found_sizes, own in of_counters(runs):
            print(f"{name:45} {found_sizes} {own}", flush=True)
            wrong, programs = wrong + (found_sizes != own), programs + 1
    took = recording_us()
    print("recording a batch:", ", ".join(f"{name} {time:.2f} us" for name, time in took.items()))
    print(
        json.dumps(
            {
                "models": models,
                "largest difference of FLOPs": round(worst, 4),
                "programs": programs,
                "programs whose samples or tokens differ": wrong,
                "recording a batch, us": round(max(took.values()), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
