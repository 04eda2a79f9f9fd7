"""`read_decoder`: caches, whether they can be shared, and how long a text may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest

import mobius
from mobius.decoder_graph import Cache, read_decoder
from mobius.generation_plan import plan_generation
from mobius.package import ModelPackage
from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel

# Two layers whose keys differ in heads and width (C026).
ATTENDING = """<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
decoder (int64[B, S] input_ids, float[B, S, 16] x, int32[B] lengths, int32 total,
         float[B, 2, P, 8] "past_key_values.0.key", float[B, 2, P, 8] "past_key_values.0.value",
         float[B, 1, P, 16] "past_key_values.3.key", float[B, 1, P, 16] "past_key_values.3.value")
     => (float[B, S, 32] logits,
         float[B, 2, T, 8] "present.0.key", float[B, 2, T, 8] "present.0.value",
         float[B, 1, T, 16] "present.3.key", float[B, 1, T, 16] "present.3.value") {{
  a, "present.0.key", "present.0.value" = com.microsoft.GroupQueryAttention
      <num_heads = 2, kv_num_heads = 2{attribute}>
      (x, x, x, "past_key_values.0.key", "past_key_values.0.value", lengths, total)
  b, "present.3.key", "present.3.value" = com.microsoft.GroupQueryAttention
      <num_heads = 1, kv_num_heads = 1>
      (x, x, x, "past_key_values.3.key", "past_key_values.3.value", lengths, total)
  {more}
  c = Add (a, b)
  logits = Concat <axis = -1> (c, c)
}}"""


def attending(attribute: str = "", more: str = "") -> ir.Model:
    return ir.from_onnx_text(ATTENDING.format(attribute=attribute, more=more))


def test_caches_are_what_the_inputs_say() -> None:
    decoder = read_decoder(attending())
    assert decoder is not None
    assert decoder.inputs == ("input_ids", "x", "lengths", "total")
    assert decoder.caches[2] == Cache(3, "key", ("B", 1, "P", 16))
    assert (decoder.caches[2].past, decoder.caches[2].present) == (
        "past_key_values.3.key",
        "present.3.key",
    )
    assert decoder.vocab_size == 32
    assert decoder.shared_cache
    assert decoder.positions is None
    assert not decoder.loops


@pytest.mark.parametrize(
    ("attribute", "more"),
    [
        (", sliding_window_cache = 1, local_window_size = 4", ""),
        ("", 'r = Shape ("past_key_values.3.value")'),
        ("", 'r = ReduceSum ("present.0.key")'),
    ],
)
def test_what_else_touches_a_cache_cannot_share_it(attribute: str, more: str) -> None:
    decoder = read_decoder(attending(attribute, more))
    assert decoder is not None
    assert not decoder.shared_cache


def test_exchanged_caches_are_not_shared() -> None:
    model = attending()
    node = next(iter(model.graph))
    key, value = node.inputs[3], node.inputs[4]
    node.replace_input_with(3, value)
    node.replace_input_with(4, key)
    decoder = read_decoder(model)
    assert decoder is not None
    assert not decoder.shared_cache


@pytest.mark.parametrize("name", ["input_ids", "logits"])
def test_what_is_no_decoder(name: str) -> None:
    model = attending()
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name == name:
            value.name = "other"
    assert read_decoder(model) is None


CONFIG = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    head_dim=16,
    max_position_embeddings=40,
)


def built(config: ArchitectureConfig, ep: str) -> ModelPackage:
    return mobius.build_from_module(
        CausalLMModel(config), config, execution_provider=ep, dtype="f32"
    )


LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("ep", ["default", "cpu", "webgpu", "onnx-standard", "dml"])
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 40),
        ({"rope_scaling": LONG}, 56),  # a table for short texts before that for long ones
        ({"position_embedding": "learned", "position_offset": 2}, 42),
        ({"position_embedding": "alibi"}, None),
    ],
)
def test_tables_of_positions_are_found(ep: str, changes: dict[str, Any], rows: int | None) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    package = built(config, ep)
    decoder = read_decoder(package["model"])
    assert decoder is not None
    assert decoder.positions == rows
    plan = plan_generation(package, "model.onnx")
    assert plan is not None
    assert plan.entry.context_length == 40
    assert plan.entry.recompute_length == (16 if "rope_scaling" in changes else None)


def test_an_encoder_with_logits_generates_nothing(decoder: Callable[..., ModelPackage]) -> None:
    package = decoder(execution_provider="cpu")
    encoder = ModelPackage(
        {"model": package["model"]}, roles={"model": "encoder"}, config=package.config
    )
    assert read_decoder(encoder["model"]) is not None
    assert plan_generation(encoder, "model.onnx") is None


def test_a_shorter_table_decides(decoder: Callable[..., ModelPackage]) -> None:
    """A text ends where the rotary table does, whatever the configuration promises."""
    package = decoder(execution_provider="cpu")
    for name in ("model.rotary_emb.cos_cache", "model.rotary_emb.sin_cache"):
        package["model"].graph.initializers[name].shape = ir.Shape([24, 8])
    plan = plan_generation(package, "model.onnx")
    assert plan is not None
    assert plan.entry.context_length == 24
