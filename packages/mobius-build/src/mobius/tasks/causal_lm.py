"""`CausalLMTask`: one decoder graph that maps tokens and a cache to logits and a grown cache."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from mobius.package import ModelPackage
from mobius.tasks.base import build_graph
from mobius_components import ArchitectureConfig
from mobius_components.layers import KeyValue
from mobius_eps import ep_capabilities, get_build_dtype

MODEL_KEY = "model"


class CausalLMTask:
    """Text generation.

    Inputs: `input_ids` int64 `[batch, sequence_length]`, `attention_mask` int64
    `[batch, total_sequence_length]` (1 for a real token, past ones included), `position_ids`
    int64 `[batch, sequence_length]` (index among the real tokens of the row), and for each layer N
    `past_key_values.N.key` and `.value` `[batch, kv_heads, past_sequence_length, head_size]`.

    Outputs: `logits` float32 `[batch, sequence_length, vocab_size]`, `present.N.key` and `.value`.
    """

    def build(self, module: nn.Module, config: ArchitectureConfig) -> ModelPackage:
        """Return a package with the one model `"model"`, whose role is `"decoder"`."""

        def trace(module: nn.Module, builder: GraphBuilder) -> None:
            input_ids = builder.input("input_ids", _INT64, ["batch", "sequence_length"])
            attention_mask = builder.input(
                "attention_mask", _INT64, ["batch", "total_sequence_length"]
            )
            position_ids = builder.input("position_ids", _INT64, ["batch", "sequence_length"])
            past = [_past(builder, config, layer) for layer in range(config.num_hidden_layers)]
            logits, present = module(builder.op, input_ids, attention_mask, position_ids, past)
            _declare_outputs(builder, config, logits, present)

        model = build_graph(module, config.model_type, trace)
        package = ModelPackage({MODEL_KEY: model}, roles={MODEL_KEY: "decoder"}, config=config)
        return package.with_build(ep=ep_capabilities(), dtype=get_build_dtype(), reports={})


_INT64 = ir.DataType.INT64


def _cache_shape(config: ArchitectureConfig, length: str) -> list[int | str]:
    return ["batch", config.kv_heads, length, config.head_size]


def _past(builder: GraphBuilder, config: ArchitectureConfig, layer: int) -> KeyValue:
    shape = _cache_shape(config, "past_sequence_length")
    dtype = get_build_dtype()
    key = builder.input(f"past_key_values.{layer}.key", dtype, shape)
    value = builder.input(f"past_key_values.{layer}.value", dtype, shape)
    return KeyValue(key, value)


def _declare_outputs(
    builder: GraphBuilder,
    config: ArchitectureConfig,
    logits: ir.Value,
    present: Sequence[KeyValue],
) -> None:
    logits.shape = ir.Shape(["batch", "sequence_length", config.vocab_size])
    builder.add_output(logits, "logits")
    for layer, cache in enumerate(present):
        for part, value in (("key", cache.key), ("value", cache.value)):
            value.shape = ir.Shape(_cache_shape(config, "total_sequence_length"))
            builder.add_output(value, f"present.{layer}.{part}")
