"""Families with experts: experts compute something, and each sparse layer is one operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import logits_alone, make_config, make_model
from tests.parity.test_families import DECODE_STEPS, rows

import mobius
from mobius_ir_rules.testing import op_counts

MOE = "com.microsoft::MoE"
# Family -> layers with experts that are one operator on the CPU.
FUSED = {
    "deepseek_v2": 2,
    "deepseek_v3": 2,
    "afmoe": 2,
    "cohere2_moe": 2,
    "dots1": 2,
    "ernie4_5_moe": 2,
    "exaone_moe": 2,
    "flex_olmo": 3,
    "glm4_moe": 2,
    "gpt_oss": 3,
    "granitemoe": 3,
    "granitemoe_swa": 3,
    "granitemoeshared": 3,
    "hunyuan_v1_moe": 3,
    "lfm2_moe": 2,
    "mellum": 2,
    "minimax_m2": 3,
    "mistral4": 2,
    "mixtral": 3,
    "olmoe": 3,
    "phimoe": 3,
    "qwen2_moe": 2,
    "qwen3_moe": 1,
    "solar_open": 3,
}


@pytest.mark.parametrize("model_type", FUSED)
def test_each_sparse_layer_is_one_operator(tmp_path, model_type):
    make_config(model_type).save_pretrained(tmp_path)
    package = mobius.build(tmp_path, execution_provider="cpu", dtype="f32", load_weights=False)
    (model,) = package.values()
    counts = op_counts(model)
    assert counts[MOE] == FUSED[model_type]
    turned = [node for node in model.graph if node.op_type in ("Transpose", "Reshape")]
    assert not any(node.inputs[0].is_initializer() for node in turned)  # rows moved beforehand
    assert "mobius.moe" not in model.opset_imports


@pytest.mark.parametrize(
    "model_type", sorted(FUSED.keys() - {"deepseek_v2", "deepseek_v3", "mistral4"})
)
def test_experts_are_used(model_type):
    """What a parity test would not see: experts that no token is routed to, but for one."""
    model = make_model(model_type)
    used = {}

    def note(module, arguments):
        used.setdefault(module, []).append(arguments[1].flatten())

    for name, module in model.named_modules():
        if name.endswith(".experts"):
            module.register_forward_pre_hook(note)
    for row in rows(model.config.vocab_size):
        logits_alone(model, row)
    assert len(used) == FUSED[model_type]
    for module, chosen in used.items():
        assert len(torch.cat(chosen).unique()) >= module.num_experts - 1


@pytest.mark.parametrize("model_type", ["mixtral", "dots1"])
def test_float16(tmp_path, model_type):
    """The CPU has no kernel of MoE in float16: the body runs, its routing in float32."""
    model = make_model(model_type)
    model.save_pretrained(tmp_path)
    mobius.build(tmp_path, execution_provider="cpu", dtype="f16").save(tmp_path / "out")
    tokens = rows(model.config.vocab_size)
    ours = padded_logits(Decoder(tmp_path / "out" / "model.onnx"), tokens, DECODE_STEPS, "right")
    for row, got in zip(tokens, ours, strict=True):
        expected = logits_alone(model, row)
        assert np.abs(got - expected).max() < 3e-2 * np.abs(expected).max()
