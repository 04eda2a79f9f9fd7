"""`CausalLMModel`: which operators a configuration becomes, and that building keeps no state."""

import copy
from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import GraphBuilder

from mobius_components import ArchitectureConfig, set_build_dtype
from mobius_components.layers import KeyValue
from mobius_components.models import CausalLMModel
from mobius_components.query_temperature_config import QueryTemperatureConfig

BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
INT64 = ir.DataType.INT64


def trace(config: ArchitectureConfig, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Graph:
    module = CausalLMModel(config)
    set_build_dtype(module, dtype)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="test")
    builder = GraphBuilder(graph)
    input_ids = builder.input("input_ids", INT64, ["batch", "sequence"])
    attention_mask = builder.input("attention_mask", INT64, ["batch", "total"])
    position_ids = builder.input("position_ids", INT64, ["batch", "sequence"])
    shape = ["batch", config.kv_heads, "past", config.head_size]
    past = [
        KeyValue(builder.input(f"k{i}", dtype, shape), builder.input(f"v{i}", dtype, shape))
        for i in range(config.num_hidden_layers)
    ]
    logits, present = module(builder.op, input_ids, attention_mask, position_ids, past)
    assert len(present) == config.num_hidden_layers
    graph.outputs.append(logits)
    return graph


def counts(graph: ir.Graph) -> Counter:
    return Counter(node.op_type for node in graph)


def test_operators_of_a_plain_decoder():
    found = counts(trace(ArchitectureConfig(**BASE)))
    assert found["Attention"] == 2
    assert found["RotaryEmbedding"] == 4
    assert found["RMSNormalization"] == 5
    assert found["CausalMask"] == 1  # one for all layers
    assert found["MatMul"] == found["Transpose"] == 2 * 7 + 1
    assert found["Cast"] == 0


def test_parameter_names_are_those_of_huggingface():
    names = {name for name, _ in CausalLMModel(ArchitectureConfig(**BASE)).named_parameters()}
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} <= names
    assert len(names) == 2 * 9 + 3


def test_initializer_names_are_parameter_names():
    config = ArchitectureConfig(**BASE, attention_bias=True, qk_norm="head", mlp_bias=True)
    parameters = {name for name, _ in CausalLMModel(config).named_parameters()}
    unfilled = {
        name for name, value in trace(config).initializers.items() if value.const_value is None
    }
    assert unfilled == parameters


def test_tied_head_has_no_parameter_of_its_own():
    config = ArchitectureConfig(**BASE, tie_word_embeddings=True)
    assert "lm_head.weight" not in trace(config).initializers


def test_no_rotary_embedding_without_theta():
    """Case C011."""
    assert counts(trace(ArchitectureConfig(**BASE, rope_theta=None)))["RotaryEmbedding"] == 0


def test_one_mask_for_each_window():
    kinds = ("full_attention", "sliding_attention")
    graph = trace(ArchitectureConfig(**BASE, sliding_window=4, layer_types=kinds))
    assert counts(graph)["CausalMask"] == counts(graph)["SlidingWindowMask"] == 1
    masks = [node.inputs[3].producer().op_type for node in graph if node.op_type == "Attention"]
    assert masks == ["CausalMask", "SlidingWindowMask"]


def test_optional_attributes_stay_unwritten():
    """Case C022."""
    plain = trace(ArchitectureConfig(**BASE))
    capped = trace(ArchitectureConfig(**BASE, attn_logit_softcapping=5.0, attention_scale=0.3))
    for node in plain:
        if node.op_type == "Attention":
            assert not {"softcap", "scale"} & set(node.attributes)
    for node in capped:
        if node.op_type == "Attention":
            assert node.attributes["softcap"].as_float() == pytest.approx(5.0)
            assert node.attributes["scale"].as_float() == pytest.approx(0.3)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
@pytest.mark.parametrize(
    "options",
    [
        {"attention_bias": True, "qk_norm": "head"},
        {"qk_norm": "each_head", "qk_norm_type": "layer_no_bias", "qkv_clip": 3.0},
        {"qk_norm": "head", "qk_norm_type": "layer_plain", "norm_type": "layer_plain"},
        {"hidden_act": "xielu", "mlp_gated": False, "embedding_norm": True},
        {"embedding_size": 32, "layer_layout": "norm_after_add", "final_norm": False},
    ],
)
def test_no_float32_meets_a_lower_precision(dtype, options):
    """Case C046; and C047: the logits are float32 whatever the weights are."""
    config = ArchitectureConfig(**BASE, **options)
    graph = trace(config, dtype)
    for node in graph:
        if node.op_type == "Cast":
            continue
        floats = {
            value.dtype
            for value in (*node.inputs, *node.outputs)
            if value is not None and value.dtype is not None and value.dtype.is_floating_point()
        }
        assert floats <= {dtype}, node
    assert graph.outputs[0].dtype == ir.DataType.FLOAT


def test_norms_after_rotation_come_between_it_and_attention():
    """Case C042."""
    options = {"qk_norm": "head", "qk_norm_after_rotary": True}
    graph = trace(ArchitectureConfig(**BASE, **options))
    for node in graph:
        if node.op_type == "Attention":
            split = node.inputs[0].producer().inputs[0].producer()
            assert split.op_type == "RMSNormalization"
            assert split.inputs[0].producer().inputs[0].producer().op_type == "RotaryEmbedding"


def test_clipped_projections():
    found = counts(trace(ArchitectureConfig(**BASE, qkv_clip=2.0)))
    assert found["Clip"] == 3 * 2


def test_layers_that_do_not_rotate():
    found = counts(trace(ArchitectureConfig(**BASE, rope_layers=(True, False))))
    assert found["RotaryEmbedding"] == 2


def test_query_temperature_is_one_factor_of_all_layers():
    found = counts(
        trace(
            ArchitectureConfig(**BASE, query_temperature=QueryTemperatureConfig(beta=0.1, length=8))
        )
    )
    assert found["Log"] == 1
    assert found["Div"] == 1


def test_embedding_and_final_norm():
    plain = counts(trace(ArchitectureConfig(**BASE)))["RMSNormalization"]
    more = counts(trace(ArchitectureConfig(**BASE, embedding_norm=True)))["RMSNormalization"]
    fewer = counts(trace(ArchitectureConfig(**BASE, final_norm=False)))["RMSNormalization"]
    assert (more, fewer) == (plain + 1, plain - 1)


def test_a_narrow_embedding_is_projected_both_ways():
    shapes = {
        name: tuple(parameter.shape.numpy())
        for name, parameter in CausalLMModel(
            ArchitectureConfig(**BASE, embedding_size=32)
        ).named_parameters()
    }
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == (97, 32)
    assert shapes["model.project_in.weight"] == (64, 32)
    assert shapes["model.project_out.weight"] == (32, 64)


def test_a_module_builds_twice():
    module = CausalLMModel(ArchitectureConfig(**BASE))
    clone = copy.deepcopy(module)
    assert {id(p) for p in module.parameters()}.isdisjoint(id(p) for p in clone.parameters())
    set_build_dtype(clone, ir.DataType.FLOAT16)
    assert {p.dtype for p in module.parameters()} == {ir.DataType.FLOAT}


def test_longrope_is_one_table_without_control_flow():
    """Case C079."""
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 32,
    }
    config = ArchitectureConfig(**BASE, max_position_embeddings=128, rope_scaling=scaling)
    graph = trace(config)
    assert counts(graph)["If"] == 0
    table = graph.initializers["model.rotary_emb.cos_cache"]
    assert list(table.shape) == [32 + 128, 8]
    values = table.const_value.numpy()
    assert np.isfinite(values).all()
    assert not np.allclose(values[1], values[33])


def test_a_tied_head_keeps_its_own_bias():
    config = ArchitectureConfig(**BASE, tie_word_embeddings=True, lm_head_bias=True)
    names = dict(CausalLMModel(config).named_parameters())
    assert "lm_head.weight" not in names
    assert list(names["lm_head.bias"].shape) == [97]
    graph = trace(config)
    last = graph.outputs[-1].producer()
    assert last.op_type == "Add"
    assert last.inputs[1] is graph.initializers["lm_head.bias"]
