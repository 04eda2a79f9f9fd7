"""Exact operators of layers with a state, on every EP: kernels where it has them, else loops."""

from __future__ import annotations

import warnings

import pytest
from tests.parity.reference import make_config

import mobius
from mobius_ir_rules.testing import op_counts

MICROSOFT = "com.microsoft::"
# Family -> convolutions, states, states of channels alone, attention, and norms with the addition
# before them: all but the first, and those where tokens are put in another order.
FAMILIES = {
    "lfm2": (2, 0, 0, 1, 4),
    "qwen3_5_text": (2, 2, 0, 1, 4),
    "mamba": (3, 3, 3, 0, 3),
    "mamba2": (3, 3, 0, 0, 3),
    "bamba": (2, 2, 0, 1, 4),
    "falcon_h1": (3, 3, 0, 3, 6),
    "recurrent_gemma": (2, 2, 2, 1, 2),
}
DELTA_RULE = {"qwen3_5_text"}
# EP -> kernels of linear attention; of convolutions; fast loops.
KERNELS = {
    "default": (True, False, True),
    "cpu": (True, False, True),
    "cuda": (True, True, False),
    "webgpu": (True, True, False),
    "mlx": (True, True, False),
    "dml": (False, False, False),
    "trt-rtx": (False, False, True),
    "onnx-standard": (False, False, True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each family's config, without weights."""
    made = {}
    for family in FAMILIES:
        made[family] = tmp_path_factory.mktemp(family)
        make_config(family).save_pretrained(made[family])
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ep", KERNELS)
def test_operators_of_recurrent_layers(folders, family, ep):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "[0-9]+ Loop nodes stay that ep='dml' lacks")
        package = mobius.build(
            folders[family], execution_provider=ep, dtype="f16", load_weights=False
        )
    found = op_counts(package["model"])
    convolutions, states, of_channels, attention, skips = FAMILIES[family]
    linear, convolves, loops = KERNELS[ep]
    kernels = states if linear and not loops else (states - of_channels) * linear
    assert found[f"{MICROSOFT}LinearAttention"] == kernels
    # Over chunks of tokens, or tokens; the delta rule has one more within, for an inverse.
    assert found["Loop"] == (states - kernels) * (2 if family in DELTA_RULE else 1)
    assert found[f"{MICROSOFT}CausalConvWithState"] == convolutions * convolves
    assert found["Conv"] == convolutions * (not convolves)
    # What the order of tokens costs, once a step.
    assert found["ScatterElements"] == 1
    fused = found[f"{MICROSOFT}GroupQueryAttention"]
    if ep in ("cuda", "webgpu", "mlx", "trt-rtx"):
        assert fused == attention
    assert ep == "dml" or fused + found["Attention"] == attention
    if ep not in ("trt-rtx", "onnx-standard"):
        assert found[f"{MICROSOFT}SkipSimplifiedLayerNormalization"] == skips


def test_functions_of_mobius_are_inlined_everywhere(folders):
    for ep in KERNELS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = mobius.build(
                folders["mamba"], execution_provider=ep, dtype="f32", load_weights=False
            )
        nodes = package["model"].graph.all_nodes()
        assert {node.domain for node in nodes} <= {"", "com.microsoft"}
