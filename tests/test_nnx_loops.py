"""Loops of Flax NNX: modules, optimizers, metrics and random streams are restored in place, bit for bit."""

from functools import cache

import numpy as np
import pytest
from optional import lazy

import tpunb as tp
from tpunb.checkpoint import checkpointing, checkpoints, restore, save
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError

jax, nnx, optax, grain = lazy("jax"), lazy("flax.nnx"), lazy("optax"), lazy("grain.python")
pytestmark = pytest.mark.live

ROWS = np.random.default_rng(7).normal(size=(24, 4)).astype("f")


@cache
def net_class():
    class Net(nnx.Module):
        """Two layers with normalisation and dropout, and a number in Python, for each of which a step is compiled."""

        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)])
            self.norm, self.drop = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.3, rngs=rngs)
            self.half = nnx.Param(jax.numpy.zeros(1, "bfloat16"))
            self.passes = 0

        def __call__(self, x):
            return self.layers[1](self.drop(self.norm(self.layers[0](x)))) + self.half.get_value()

    return Net


def model(seed=0):
    return net_class()(nnx.Rngs(seed))


@pytest.fixture(scope="module")
def step():
    @nnx.jit
    def step(net, optimizer, metrics, rngs, x):
        noisy = x + rngs.noise.normal(x.shape)

        def loss_of(net):
            return ((net(noisy) - x.sum(1, keepdims=True)) ** 2).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(net)
        optimizer.update(net, gradients)
        metrics.update(loss=loss)
        return loss

    return step


@cache
def adam():
    return optax.adam(optax.cosine_decay_schedule(0.05, 30))


def parts(seed=0):
    net = model(seed)
    net.passes = seed
    optimizer = nnx.Optimizer(net, adam(), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    return {"model": net, "optimizer": optimizer, "metrics": metrics, "rngs": nnx.Rngs(seed)}


def batches(*, iterator):
    data = grain.MapDataset.source(ROWS).shuffle(seed=2).batch(4)
    return iter(data.repeat(3).to_iter_dataset()) if iterator else data


def train(step, data, *, epochs=3, seed=0):
    """Train; return the losses of each step, and the bits of the state."""
    state, losses, means = parts(seed), [], []
    net = state["model"]
    for _ in range(1 if hasattr(data, "__next__") else epochs):
        for batch in tp.testing.null_run.batches(data, state=state):
            losses.append(float(step(*state.values(), jax.numpy.asarray(batch))).hex())  # noqa: PERF401  handed back
        net.passes += 1
        means.append(float(state["metrics"].compute()["loss"]).hex())
    return losses, means[-1], net.passes, bits(state)


def bits(state):
    leaves = jax.tree.leaves(nnx.state(tuple(state.values())))
    keys = [jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    assert sum(keys) == 2  # of the dropout and of the noise
    return [
        np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes().hex()
        for leaf, is_key in zip(leaves, keys, strict=True)
    ]


@pytest.mark.parametrize("data", ["list", "grain", "grain iterator"])
def test_a_loop_of_nnx_resumes_exactly(tmp_path, step, data):
    make = {
        "list": lambda: list(ROWS.reshape(6, 4, 4)),
        "grain": lambda: batches(iterator=False),
        "grain iterator": lambda: batches(iterator=True),
    }[data]
    with checkpointing(tmp_path, every=4):
        losses, *rest = train(step, make())
    found = checkpoints(tmp_path)
    assert [one.step for one in found] == [4, 8, 12, 16]
    assert found[0].holds == ("weights", "optimizer", "data position", "random state")
    assert all(one.exact for one in found), [one.reason for one in found]
    for one in found[::2]:
        with resume(one) as resumed:
            later, *ended = train(step, make(), seed=9)  # what it begins with does not matter
        assert later == losses
        assert ended == rest
        assert resumed.verified_steps == 18 - one.step


def test_lists_of_modules_and_single_variables_are_restored_in_place(tmp_path):
    def made(seed):
        return {"pair": [model(seed), model(seed + 1)], "scale": nnx.Param(jax.numpy.full(2, float(seed)))}

    first, other = made(0), made(5)
    first["pair"][1].eval()
    saved = save(tmp_path, 1, **first)
    assert restore(saved, **other) == {}
    assert other["scale"][...].tolist() == [0, 0]
    assert other["pair"][1].drop.deterministic
    assert not other["pair"][0].drop.deterministic
    for one, two in zip(
        jax.tree.leaves(nnx.state(first["pair"])), jax.tree.leaves(nnx.state(other["pair"])), strict=True
    ):
        assert one.dtype == two.dtype
        assert (one == two).all()


def test_a_state_of_nnx_is_a_tree_that_is_returned(tmp_path):
    _, state = nnx.split(model(0))
    _, other = nnx.split(model(5))
    trees = restore(save(tmp_path, 1, state=state), state=other)
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(trees["state"]), strict=True):
        assert (one == two).all()


def test_another_module_is_an_error(tmp_path):
    saved = save(tmp_path, 1, model=model())
    with pytest.raises(TpunbError, match="was saved with a different tree"):
        restore(saved, model=nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    with pytest.raises(TpunbError, match=r"holds model \(nnx\); got model \(arrays\)"):
        restore(saved, model={"a": np.ones(2)})


def test_a_module_that_the_state_lacks_is_a_divergence(tmp_path, step):
    def cell():
        whole = parts()
        state = {"model": whole["model"]}
        for batch in tp.testing.null_run.batches(list(ROWS.reshape(6, 4, 4)), state=state):
            step(*whole.values(), jax.numpy.asarray(batch))

    with checkpointing(tmp_path, every=2):
        cell()
    with pytest.warns(UserWarning, match="the computation of step 2 differs"), resume(checkpoints(tmp_path)[0]):
        cell()
