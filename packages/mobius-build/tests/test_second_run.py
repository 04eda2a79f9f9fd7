"""Optimising what is optimised already changes nothing, on every EP, wherever the graph is from."""

from __future__ import annotations

import functools

import onnx_ir as ir
import pytest

from mobius import build_from_module, optimize_model
from mobius.models import CausalLMModel
from mobius_components import ArchitectureConfig, MixtureConfig
from mobius_eps import get_ep
from mobius_eps.builtin import BUILTIN_EPS
from mobius_ir_rules.passes.graphs import all_nodes, roots

COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "gated, RMS norms, biases": {"attention_bias": True},
    "window, softcap, tied": {
        "sliding_window": 4,
        "layer_types": ("sliding_attention", "full_attention"),
        "attn_logit_softcapping": 20.0,
        "tie_word_embeddings": True,
    },
    "tanh, layer norms, biases": {
        "norm_type": "layer",
        "mlp_gated": False,
        "mlp_bias": True,
        "hidden_act": "gelu_new",
        "position_embedding": "learned",
        "attention_bias": True,
    },
    "erf without biases, ALiBi": {
        "norm_type": "layer",
        "mlp_gated": False,
        "hidden_act": "gelu",
        "position_embedding": "alibi",
    },
    "gated experts": {
        "moe": MixtureConfig(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)
    },
    "experts whose input is scaled": {
        "moe": MixtureConfig(
            num_experts=4, num_experts_per_tok=1, moe_intermediate_size=48, scale_input=True
        )
    },
}
TARGETS = [(caps.name, dtype) for caps in BUILTIN_EPS for dtype in sorted(caps.dtypes)]


@functools.cache
def _module(family: str) -> CausalLMModel:
    return CausalLMModel(ArchitectureConfig(**{**COMMON, **FAMILIES[family]}))


def build(family: str, ep: str, dtype: ir.DataType) -> ir.Model:
    module = _module(family)
    return build_from_module(module, module.config, execution_provider=ep, dtype=dtype)["model"]


def written(model: ir.Model) -> list[str]:
    """Return all that a file has of the graph, weights apart."""
    lines = [f"{dict(model.opset_imports)} {sorted(map(str, model.functions))}"]
    for root in roots(model):
        lines.append(f"{dict(root.opset_imports)} {list(root.inputs)} {list(root.outputs)}")
        if isinstance(root, ir.Graph):
            lines += map(str, root.initializers.values())
        lines += map(str, all_nodes(root))
    return lines


@pytest.mark.filterwarnings("ignore:GQA fusion expected:UserWarning")  # masks are inlined by now
@pytest.mark.parametrize("source", ["itself", "default", "dml"])
@pytest.mark.parametrize(("ep", "dtype"), TARGETS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_second_run(family: str, ep: str, dtype: ir.DataType, source: str) -> None:
    """Fused graphs are fed again, for the same EP or for another that takes apart what it lacks."""
    first = ep if source == "itself" else source
    if dtype not in get_ep(first).dtypes:
        pytest.skip(f"{first} does not run {dtype.name}")
    model = build(family, first, dtype)
    if first != ep:
        optimize_model(model, ep, dtype)
    before = written(model)
    report = optimize_model(model, ep, dtype)
    assert written(model) == before
    assert [stage.name for stage in report.stages if stage.applications or stage.deltas] == []
