"""torch.onnx exports of transformers models on every EP: fused, or refused, and never wrong.

At opset 18 the exporter writes norms, rotary and attention in primitives. Their operators exist
from opset 23 on: the pipeline raises the graphs, and the rules alone refuse them.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.foreign.checks import EPS, check, optimise

from mobius_ir_rules import refusals
from mobius_ir_rules.fusion.attention import attention_rules
from mobius_ir_rules.fusion.rms_normalization import rms_normalization_rules
from mobius_ir_rules.fusion.rotary_embedding import rotary_embedding_rules
from mobius_ir_rules.fusion.silu import quick_gelu_rules
from mobius_ir_rules.passes import InferShapes

# Rewrites in two layers of an export at opset 18, by key of RULES.
FUSED = {
    "llama": {"rms": 5, "rotary": 4, "attention": 2, "quick_gelu": 2},
    "llama-past": {"rms": 5, "rotary": 4, "attention": 2, "quick_gelu": 2},
    "qwen2": {"rms": 5, "rotary": 4, "attention": 2, "quick_gelu": 2},
    "mistral": {"rms": 5, "rotary": 4, "attention": 2, "quick_gelu": 2},
    "gemma2": {"rms": 9, "rotary": 4, "attention": 2},
    "gpt2": {"attention": 2},
    "bert": {"attention": 2},
    "vit": {"attention": 2},
}
FAST = (("llama", 18), ("gemma2", 18), ("gpt2", 18), ("vit", 23))
EXPORTS = [
    pytest.param(kind, opset, id=f"{kind}-{opset}", marks=[] if fast else [pytest.mark.slow])
    for kind in FUSED
    for opset in (18, 23)
    for fast in [(kind, opset) in FAST]
]
WITHOUT_QUICK_GELU = ("mlx", "onnx-standard", "trt-rtx")
ROLES = {"bert": "encoder", "vit": "vision"}


# What a report calls the rewrites, and the rules themselves.
RULES = {
    "rms": ("RMSNormFusion", rms_normalization_rules),
    "rotary": ("RotaryFusion", rotary_embedding_rules),
    "attention": ("AttentionFusion", attention_rules),
    "quick_gelu": ("quick_gelu_rules", quick_gelu_rules),
}


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize(("kind", "opset"), EXPORTS)
def test_as_exported(exported, kind, opset, ep):
    outcome = check(exported(kind, opset), ep, "f32", ROLES.get(kind, "decoder"), again=True)
    assert outcome.error == ""
    assert outcome.compared
    for name, count in FUSED[kind].items() if opset == 18 else ():
        if name == "quick_gelu" and ep in WITHOUT_QUICK_GELU:
            count = 0
        assert outcome.applied[RULES[name][0]] == count


@pytest.mark.parametrize(
    ("kind", "skips"), [("llama", ("SkipNorm", 4)), ("gpt2", ("SkipLayerNorm", 4))]
)
def test_what_an_old_export_gets_for_a_gpu(exported, kind, skips):
    """Norms that were primitives are fused with the residual in front, once the model is raised."""
    for ep in ("cuda", "dml"):
        outcome = check(exported(kind, 18), ep, "f32", "decoder")
        name, count = skips
        assert outcome.applied[name] == count, ep


@pytest.mark.parametrize(("kind", "opset"), [case for case in EXPORTS if case.values[1] == 18])
def test_opset_18_is_the_only_reason_against(exported, kind, opset):
    model = ir.from_proto(onnx.load_from_string(exported(kind, opset).data))
    InferShapes()(model)
    for name, count in FUSED[kind].items():
        if name == "quick_gelu":
            continue
        found = refusals(model, RULES[name][1]())
        assert len(found) == count
        assert all("imports opset 18 of ONNX" in each.reason for each in found)


def test_foreign_masks_are_not_taken_for_known_ones(exported):
    """C023: no mask of another exporter makes a GroupQueryAttention."""
    model = ir.from_proto(onnx.load_from_string(exported("llama", 18).data))
    optimise(model, "cpu", "f32", "decoder", primitives=True)
    counts = [node.op_type for node in model.graph]
    assert counts.count("GroupQueryAttention") == 0
    assert counts.count("Attention") == 2
