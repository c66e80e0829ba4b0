"""No output of a real capture holds the path of a person: people's folders are in source locations of programs."""

import re

import polars as pl
import polars.selectors as cs
import pytest
from test_xplane import each_capture

import tpunb as tp

PRIVATE = re.compile(r"/home/|/mnt/|/Users/")


def private(frame):
    texts = frame.select(cs.string() | cs.categorical()).unique()
    return {text for column in texts for text in column.cast(pl.String).unique() if text and PRIVATE.search(text)}


@each_capture("*.[xtp]*")
def test_no_output_of_a_capture_has_a_private_path(path, tmp_path):
    profile = tp.load(path)
    if profile.read_events is None:
        pytest.skip("tables hold no events")
    assert private(profile.events) == private(profile.instructions) == set()
    try:
        steps = tp.steps(profile)
    except tp.TpunbError:
        return
    assert private(steps.layers) == private(steps.ops) == set()
    phases = tp.phases(steps)
    written = [*phases.to_csv(tmp_path), phases.to_chrome_trace(tmp_path / "trace.json")]
    written.append(phases.open_trace(path=tmp_path / "step.json").path)
    assert not [file for file in written if PRIVATE.search(file.read_text(encoding="utf-8"))]


def test_the_sources_of_real_captures_are_lines_of_their_programs(real_profiles):
    """What the profilers and the programs say, without the folders."""
    found = {}
    for name in (
        "tpu-v6e-4_jax_host-offload.xplane.pb",
        "gpu-mi300x_jax_conv.xplane.pb",
        "tpu_vllm-qwen3.trace.json.gz",
    ):
        known = tp.load(real_profiles / name).instructions.filter(pl.col("source").is_not_null())
        assert known["source"].cast(pl.String).str.contains(r":[0-9]+$").all()
        found[name[:5]] = known["source"].cast(pl.String).unique().sort().to_list()
    assert found["tpu-v"] == [f"host_offload_stress_test.py:{line}" for line in (29, 37, 38)]
    assert "jax_conv_profiling.py:77" in found["gpu-m"]
    assert {"attention.py:262", "torchax/ops/jaten.py:583"} <= {*found["tpu_v"]}
