"""Random decoder graphs never change their numbers under any EP's pipeline.

`MOBIUS_EXAMPLES` is the number of graphs: 50 in CI, 500 in the nox session `property`.
"""

from __future__ import annotations

import dataclasses
import os
import warnings

import numpy as np
import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.decoders import build, configs, cuts, run

import mobius

EXAMPLES = int(os.environ.get("MOBIUS_EXAMPLES", "50"))
TOLERANCE = 1e-5
FLOAT = ir.DataType.FLOAT


def float32_twin(name: str) -> mobius.EpCapabilities:
    """Return an EP that makes in float32, which runs here, what the named one makes in float16."""
    caps = mobius.get_ep(name)
    if not caps.gqa_dtypes:
        return caps
    packs = caps.qkv_pack_dtypes | {FLOAT} if caps.qkv_pack_dtypes else caps.qkv_pack_dtypes
    return dataclasses.replace(
        caps, name=f"{name}-f32", gqa_dtypes=caps.gqa_dtypes | {FLOAT}, qkv_pack_dtypes=packs
    )


EPS = {name: float32_twin(name) for name in mobius.ep_registry}


@given(
    config=configs(),
    seed=st.integers(0, 3),
    opened=cuts,
    ep=st.sampled_from(sorted(EPS)),
)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_numbers_stay(config, seed, opened, ep):
    model = build(config, seed, opened)
    expected = run(model, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a refused fusion is no fault here
        mobius.optimize_model(model, ep=EPS[ep], dtype=FLOAT)
    found = run(model, config)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max(initial=0.0)))
        difference = float(np.abs(found[name] - value).max(initial=0.0))
        assert difference < TOLERANCE * scale, (name, difference, scale)
