"""Samples/s, tokens/s, FLOP/s, MFU and HFU of runs, beside what a person computes by hand."""

import json
from types import SimpleNamespace

import polars as pl
import pytest
from optional import lazy

import tpunb as tp
from tpunb import schema
from tpunb.analysis.rates import _counted, _of_calls, _Part, rates
from tpunb.costs import hlo_cost
from tpunb.frames.hardware import DEVICES
from tpunb.protobuf.table import Messages
from tpunb.testing import toy_steps

jax, torch = lazy("jax"), lazy("torch")


def sized(text, samples, tokens, **more):
    steps = toy_steps(text, **more)
    columns = {"samples": pl.Series(samples, dtype=pl.Int64), "tokens": pl.Series(tokens, dtype=pl.Int64)}
    return tp.Steps(**{**vars_of(steps), "frame": steps.frame.with_columns(**columns)})


def vars_of(steps):
    return {name: getattr(steps, name) for name in steps.__dataclass_fields__}


def test_rates_are_sums_over_step_time_of_the_steps_whose_batches_are_seen():
    steps = sized("aaabbb", [8, 8, 8, None, None, None], [80, 80, None, None, None, None])
    found = rates(steps)
    row = found.frame.filter(phase=0).row(0, named=True)
    assert (row["samples"], row["tokens"]) == (24, None)
    assert row["samples_per_s"] == pytest.approx(8 / 1e-3)
    assert row["tokens_per_s"] == pytest.approx(80 / 1e-3)
    assert found.frame.filter(phase=1)["samples_per_s"].to_list() == [None]
    assert found.frame.schema == schema.RATES


def test_tokens_of_a_step_can_be_given():
    found = rates(toy_steps("aaaa"), tokens_per_step=4096)
    assert found.frame["tokens_per_s"][0] == pytest.approx(4096 / 1e-3)
    assert found.sources["tokens"] == "tokens_per_step="
    assert set(found.reasons) >= {"samples_per_s", "mfu"}
    with pytest.raises(ValueError, match="must be 'full' or 'causal'"):
        rates(toy_steps("a"), attention="some")


def test_what_is_computed_again_is_in_hfu_alone():
    parts = [
        _Part("f32", attention=False, part=part, flops=flops)
        for part, flops in (("forward", 10.0), ("backward", 20.0), ("recomputation", 8.0))
    ]
    assert _counted(parts, "full") == [("f32", 30.0, 38.0)]
    merged = [part._replace(flops=7.0) if part.part == "forward" else part for part in parts]  # with what repeats it
    assert _counted(merged, "full") == [("f32", 30.0, 35.0)]
    attends = [_Part("f32", attention=True, part="forward", flops=4.0)]
    assert _counted(attends, "causal") == [("f32", 2.0, 2.0)]


def proto(function, *shapes):
    """Return the program of a function as a message."""
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    module = jax.jit(function).lower(*arrays).compile().runtime_executable().hlo_modules()[0]
    data, size, prefix = module.as_serialized_hlo_module_proto(), None, b"\x0a"
    size = len(data)
    while size > 127:
        prefix, size = prefix + bytes([size & 127 | 128]), size >> 7
    return Messages.of(prefix + bytes([size]) + data, source="toy")


def products(function, *shapes):
    return hlo_cost.products(proto(function, *shapes))


def test_a_program_has_the_products_of_its_loops_and_gradients():
    def step(weights, x):
        def loss(weights):
            return (jax.lax.scan(lambda h, w: (jax.numpy.tanh(h @ w), None), x, weights)[0] ** 2).mean()

        return weights - jax.grad(loss)(weights)

    found = products(step, (6, 32, 32), (16, 32))
    of = dict(found.select("part", "flops").rows())
    assert of == {"forward": 6 * 2 * 16 * 32 * 32, "backward": 6 * 4 * 16 * 32 * 32}
    assert found["unknown"].null_count() == len(found)


def test_a_loop_of_unknown_length_has_unknown_flops():
    def step(w, x):
        return jax.lax.while_loop(lambda h: h.sum() < 1e9, lambda h: h @ w, x)

    found = products(step, (8, 8), (8, 8))
    assert found["flops"].to_list() == [None]
    assert found["unknown"].to_list() == ["how often its loops run"]


def test_recomputed_products_are_told_apart_and_batched_ones_are_attention():
    def block(w, x):
        scores = jax.nn.softmax(jax.numpy.einsum("bqd,bkd->bqk", x, x))
        return jax.numpy.einsum("bqk,bkd->bqd", scores, x) @ w

    def step(w, x):
        def loss(w):
            h = x
            for _ in range(3):
                h = jax.checkpoint(block)(w, h)
            return h.sum()

        return jax.grad(loss)(w)

    rows = products(step, (16, 16), (4, 8, 16))
    assert set(rows["part"]) == {"forward", "backward", "recomputation"}
    parts = [_Part(dtype, attends, part, flops) for _, dtype, attends, part, flops, _ in rows.iter_rows()]
    model, hardware = (sum(of[at] for of in _counted(parts, "full")) for at in (1, 2))
    attention = sum(part.flops for part in parts if part.attention)
    assert hardware > model > 0
    assert 0 < attention < hardware


def test_report_has_rates_with_sources_or_reasons_and_metrics():
    report = tp.report(sized("aaaa", [8] * 4, [80] * 4))
    content = json.loads(report.to_json())["rates"]
    assert content["samples/s"] == {"value": 8000.0, "unit": "1/s", "evidence": "rates", "from": "fetched batches"}
    assert content["MFU"] is None
    assert set(content["why"]) == {"TFLOP/s a device, MFU, HFU"}
    assert "8,000 samples/s: fetched batches" in report.to_text()
    metrics = report.to_metrics()
    assert metrics["tpunb/tokens_per_second"] == 80_000
    assert "tpunb/mfu" not in metrics


def test_cost_is_of_the_whole_run_and_needs_a_price():
    assert tp.report(toy_steps("aaaa")).cost(per_hour=3.6) == {"run": None, "million tokens": None}
    report = tp.report(tp.sample("keras_cnn"), tokens_per_step=1000)
    cost = report.cost(per_hour=3.6)
    assert cost["run"] == pytest.approx(report.content["run time"]["value"] / 1000)
    assert cost["million tokens"] > 0
    with pytest.raises(ValueError, match="per_hour parameter of cost must be above 0"):
        report.cost(per_hour=0)


def test_two_runs_have_their_rates_beside_each_other():
    found = tp.compare(sized("aaaa", [8] * 4, [80] * 4), sized("aaaa", [16] * 4, [160] * 4))
    rows = {row["rate"]: row for row in found.rates.iter_rows(named=True)}
    assert rows["tokens_per_s"] == {"rate": "tokens_per_s", "a": 80_000, "b": 160_000, "ratio": 2}
    assert rows["mfu"]["ratio"] is None


def test_a_function_that_takes_its_state_alone_says_nothing_of_samples():
    calls = pl.DataFrame({"event": ["call"], "key": ["step"], "count": [3], "arrays": [0]})
    for takes, samples in (("float32[4,2]", None), ("float32[4,2], float32[8,2]", 8)):
        signatures = pl.DataFrame({"host": ["a"], "id": [0], "takes": [takes], "returns": ["float32[4,2]"]})
        events = SimpleNamespace(events=calls, signatures=signatures)
        assert _of_calls(events, 3)[0].samples == samples


@pytest.mark.live
def test_a_loop_of_pytorch_has_the_flops_of_its_formula(tmp_path):
    width, rows = 32, 24
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tp.capture(tmp_path / "run", keep="all", source=tp.sources.Torch()) as run:
        while run.status.windows < 2 or run.status.steps < 50:
            model(torch.ones(rows, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = rates(tmp_path / "run", device="A100 80GB")
    row = found.frame.row(0, named=True)
    if "model_flops" in found.reasons:
        pytest.skip("no window held a whole step")
    products = 2 * rows * width * width
    assert row["model_flops"] == pytest.approx(8 * products)  # the first layer has no gradient of its input
    peak = DEVICES["A100 80GB"].peaks["f32"]
    assert row["mfu"] == pytest.approx(row["model_flops"] / (row["step_ps"] / 1e12) / peak)
    assert found.sources["samples"] == "the first call, 1 a step"
    assert row["samples"] == rows * row["steps"]
    assert "samples_per_s" in found.estimated
