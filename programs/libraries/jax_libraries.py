"""Libraries of models for JAX: a step, or an evaluation, is a call of a compiled function."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from programs.evaluated import WASTE, Counts, program

ROWS, WIDTH, CLASSES, BATCH = 640, 32, 4, 32
STEPS, EVERY, EPOCHS = 60, 20, 3


def examples() -> tuple[Any, Any]:
    """Return rows and their classes."""
    rows = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    return rows, (rows[:, 0] > 0).astype("int32")


def save(path: Path) -> None:
    """Save a state of 32 MB."""
    np.save(path, np.zeros(4_000_000))


@program("equinox")
def equinox_steps(folder: Path) -> Counts:
    """Train as in Equinox's first example: loss and accuracy of the held-out batches are two functions."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    rows, labels = examples()
    model = eqx.nn.MLP(WIDTH, CLASSES, 64, 2, key=jax.random.PRNGKey(0))
    optimizer = optax.adamw(3e-4)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def loss(model: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    @eqx.filter_jit
    def accuracy(model: Any, x: Any, y: Any) -> Any:
        return jnp.mean(jnp.argmax(jax.vmap(model)(x), axis=1) == y)

    @eqx.filter_jit
    def make_step(model: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = eqx.filter_value_and_grad(loss)(model, x, y)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, value

    evaluations = 0
    for number in range(STEPS):
        at = slice(BATCH * (number % 16), BATCH * (number % 16 + 1))
        model, state, value = make_step(model, state, rows[at], labels[at])
        WASTE.update(model.layers[0].weight, save)
        if number % EVERY == EVERY - 1:
            float(value)
            for begin in range(512, ROWS, BATCH):
                x, y = rows[begin : begin + BATCH], labels[begin : begin + BATCH]
                float(loss(model, x, y)), float(accuracy(model, x, y))
                evaluations += 1
    return {"train": STEPS, "eval": evaluations}


@program("haiku")
def haiku_state(folder: Path) -> Counts:
    """Train as in Haiku's MNIST example: one state with averaged parameters, on batches of a generator."""
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import optax

    rows, labels = examples()
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([64, CLASSES])(x)))
    optimizer = optax.adam(1e-3)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(weights, x), y).mean()

    @jax.jit
    def evaluate(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean(jnp.argmax(network.apply(weights, x), axis=-1) == y)

    @jax.jit
    def update(state: Any, x: Any, y: Any) -> Any:
        weights, averaged, moments = state
        changes, moments = optimizer.update(jax.grad(loss)(weights, x, y), moments)
        weights = optax.apply_updates(weights, changes)
        return weights, optax.incremental_update(weights, averaged, 0.001), moments

    def batches(size: int) -> Any:
        draw = np.random.default_rng(size)
        while True:
            chosen = draw.integers(0, ROWS, size)
            yield np.stack([WASTE.row(row) for row in rows[chosen]]), labels[chosen]

    train, held = batches(BATCH), batches(4 * BATCH)
    weights = network.init(jax.random.PRNGKey(0), rows[:1])
    state = weights, weights, optimizer.init(weights)
    for number in range(STEPS):
        if number % EVERY == 0:
            np.asarray(evaluate(state[1], *next(held)))
        state = update(state, *next(train))
        WASTE.update(state[0]["mlp/~/linear_0"]["w"], save)
    return {"train": STEPS, "eval": STEPS // EVERY}


@program("flax")
def linen_epochs(folder: Path) -> Counts:
    """Train as in Linen's MNIST example: gradients and update are two functions, the first of which evaluates, too."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn
    from flax.training import train_state

    rows, labels = examples()
    model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(CLASSES)])
    weights = model.init(jax.random.key(0), rows[:1])["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=weights, tx=optax.sgd(0.1, 0.9))

    @jax.jit
    def apply_model(state: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = state.apply_fn({"params": weights}, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

        (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return gradients, value, jnp.mean(jnp.argmax(logits, -1) == y)

    @jax.jit
    def update_model(state: Any, gradients: Any) -> Any:
        return state.apply_gradients(grads=gradients)

    for epoch in range(EPOCHS):
        order, values = np.random.default_rng(epoch).permutation(512).reshape(-1, BATCH), []
        for chosen in order:
            gradients, value, _ = apply_model(state, rows[chosen], labels[chosen])
            state = update_model(state, gradients)
            values.append(value)
            WASTE.update(value, save)
        _, value, accuracy = apply_model(state, rows[512:], labels[512:])
        float(np.mean(values)), float(value), float(accuracy)
    return {"train": int(state.step), "eval": EPOCHS}


@program("optax")
def scanned_epochs(folder: Path) -> Counts:
    """Train whole epochs in one program each, by ``jax.lax.scan`` over their batches."""
    import jax
    import jax.numpy as jnp
    import optax

    rows, labels = examples()
    data = rows.reshape(-1, BATCH, WIDTH), labels.reshape(-1, BATCH)
    optimizer = optax.adam(1e-3)

    def step(state: Any, batch: Any) -> Any:
        weights, moments = state
        x, y = batch
        loss = partial(
            lambda x, y, weights: optax.softmax_cross_entropy_with_integer_labels(x @ weights, y).mean(), x, y
        )
        value, gradients = jax.value_and_grad(loss)(weights)
        changes, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(weights, changes), moments), value

    @jax.jit
    def epoch(state: Any, data: Any) -> Any:
        return jax.lax.scan(step, state, data)

    weights = jnp.zeros((WIDTH, CLASSES))
    state = weights, optimizer.init(weights)
    for _ in range(STEPS):
        state, values = epoch(state, data)
        float(values.mean())
        WASTE.update(state[0], save)
    return {"train": STEPS}


@program("tunix")
def tunix_trainer(folder: Path) -> Counts:
    """Fine-tune a tiny model of NNX by Tunix's trainer, with an evaluation before it and after each twentieth step."""
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, TrainingInput

    words, length, evaluated = 64, 16, list[Any]()

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.words, self.last = nnx.Embed(words, 32, rngs=rngs), nnx.Linear(32, words, rngs=rngs)

        def __call__(self, input_tokens: Any, positions: Any, cache: Any, attention_mask: Any) -> Any:
            return self.last(self.words(input_tokens)), None

    class Trainer(PeftTrainer):
        def _post_process_train_step(self, aux: Any) -> None:
            WASTE.update(self.model.words.embedding[...], save)

        def _post_process_eval_step(self, aux: Any) -> None:
            evaluated.append(aux)

    def inputs(example: Any) -> dict[str, Any]:
        positions = jnp.broadcast_to(jnp.arange(length), (8, length))
        facts = {"positions": positions, "attention_mask": jnp.ones((8, length, length), bool)}
        return {"input_tokens": example.input_tokens, "input_mask": example.input_mask, **facts}

    draw = np.random.default_rng(0)
    batches = [
        TrainingInput(input_tokens=draw.integers(0, words, (8, length)), input_mask=np.ones((8, length), bool))
        for _ in range(STEPS)
    ]
    config = TrainingConfig(eval_every_n_steps=EVERY, max_steps=STEPS)
    trainer = Trainer(Model(nnx.Rngs(0)), optax.adamw(1e-3), config).with_gen_model_input_fn(inputs)
    trainer.train(batches, batches[:5])
    return {"train": trainer.train_steps, "eval": len(evaluated)}


@program("levanter")
def levanter_trainer(folder: Path) -> Counts:
    """Train a model of Haliax by Levanter's Trainer, with its evaluation after each twentieth step."""
    import equinox as eqx
    import haliax as hax
    import jax
    import optax
    from levanter.checkpoint import CheckpointerConfig
    from levanter.data.dataset import ListAsyncDataset
    from levanter.tracker import NoopConfig
    from levanter.trainer import Trainer, TrainerConfig

    wide, deep = hax.Axis("wide", WIDTH), hax.Axis("deep", 64)

    class Model(eqx.Module):
        first: Any
        last: Any

        def __call__(self, x: Any) -> Any:
            return self.last(hax.nn.relu(self.first(x)))

    def make() -> Model:
        keys = jax.random.split(jax.random.PRNGKey(0))
        return Model(hax.nn.Linear.init(wide, deep, key=keys[0]), hax.nn.Linear.init(deep, (), key=keys[1]))

    def loss(model: Any, batch: Any, key: Any = None) -> Any:
        return hax.mean((model(batch) - hax.sum(batch, wide)) ** 2).scalar()

    rows = [hax.named(row, (wide,)) for row in examples()[0]]
    quiet = {
        "log_dir": folder,
        "tracker": NoopConfig(),
        "log_jaxprs": False,
        "log_xla_hlo": False,
        "require_accelerator": False,
    }
    config = TrainerConfig(
        **{"id": "tiny", "num_train_steps": STEPS, "train_batch_size": 8, "steps_per_eval": EVERY, **quiet},
        **{"per_device_eval_parallelism": 8, "checkpointer": CheckpointerConfig(base_path=str(folder / "saved"))},
    )
    config.initialize()
    with Trainer(config, optax.adam(1e-3), loss) as trainer:
        trainer.add_hook(lambda info: WASTE.update(info.model.first.weight.array, save), every=1)
        trainer.add_eval_hook(ListAsyncDataset(rows[:40]))
        state = trainer.initial_state(jax.random.PRNGKey(0), model_init=make)
        info = trainer.train(state, trainer.data_loader(ListAsyncDataset(rows)))
    return {"train": int(info.state.step), "eval": 5 * STEPS // EVERY}
